/* The one ordered list of dtrain's source files, a layer after the layers that it uses. It is the
 * development build (`cc -c src/dtrain.c`) and the input of tools/amalgamate, which writes dtrain.h
 * from it: what follows dtrain_api.h is compiled under DT_IMPLEMENTATION only. */
#include "dtrain_api.h"

/* ---- base: memory, errors, text, threads, random numbers, hashes, json, files */
#include "base/prelude.h"
#include "base/base.h"
#include "base/memory.c"
#include "base/error.c"
#include "base/text.c"
#include "base/array.c"
#include "base/time.c"
#include "base/threads.c"
#include "base/rng.c"
#include "base/hash.c"
#include "base/half.c"
#include "base/json.c"
#include "base/file.c"

/* ---- kernel: raw pointers only */
#include "kernel/simd.h"
#include "../shaders/lib/unary_list.h"
#include "kernel/gemm.h"
#include "kernel/vec.h"
#include "kernel/norm.h"
#include "kernel/pool.h"
#include "kernel/conv.h"
#include "kernel/kernels.h"
#include "kernel/gemm.c"
#include "kernel/conv.c"
#include "kernel/conv_dw.c"
#include "kernel/kernels.c"

/* ---- tensor: shape, node, graph */
#include "tensor/graph.h"
#include "tensor/shape.c"
#include "tensor/graph.c"

/* ---- op: the op table and its families */
#include "op/launch.h"
#include "op/op_table.h"
#include "op/op.h"
#include "op/emit.h"
#include "op/cpu.h"
#include "op/ref.h"
#include "op/build.c"
#include "op/emit.c"
#include "op/walk.c"
#include "op/leaf.c"
#include "op/unary.c"
#include "op/binary.c"
#include "op/view.c"
#include "op/copy.c"
#include "op/reduce.c"
#include "op/product.c"
#include "op/softmax.c"
#include "op/gather.c"
#include "op/dropout.c"
#include "op/loss.c"
#include "op/conv.c"
#include "op/pool.c"
#include "op/norm.c"
#include "op/commit.c"
#include "op/conv_cpu.c"
#include "op/pool_cpu.c"
#include "op/norm_cpu.c"
#include "op/table.c"
#include "op/differentiate.c"

/* ---- backend: the boundary; ref, cpu, vulkan */
#include "backend/backend.h"
#include "backend/ref/ref.h"
#include "backend/ref/ref.c"
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels.c"
#include "backend/cpu/cpu.c"
#include "backend/vulkan/vulkan.h"
#include "backend/vulkan/none.c"
#include "backend/vulkan/vk_decl.h"
#ifndef DT_NO_VULKAN
#include "backend/vulkan/shader_table.h"
#endif
#include "backend/vulkan/device.h"
#include "backend/vulkan/hazard.c"
#include "backend/vulkan/load.c"
#include "backend/vulkan/memory.c"
#include "backend/vulkan/pipeline.c"
#include "backend/vulkan/device.c"
#include "backend/vulkan/command.c"
#include "backend/vulkan/exec.c"
#include "backend/context.h"
#include "backend/context.c"

/* ---- program: description, gradients, segments, plan, run */
#include "program/store.h"
#include "program/program.h"
#include "program/store.c"
#include "program/plan.c"
#include "program/commit.c"
#include "program/describe.c"
#include "program/cut.c"
#include "program/segments.c"
#include "program/compile.c"
#include "program/run.c"

/* ---- nn: named parameters, initialisers, layers */
#include "nn/linear.c"
#include "nn/conv.c"
#include "nn/norm.c"

/* ---- data: readers, shuffle, batches */
#include "data/idx.c"
#include "data/batch.c"

/* ---- file: safetensors */
#include "file/safetensors.h"
#include "file/safetensors.c"
#include "file/store_file.c"

#include "base/epilogue.h"
