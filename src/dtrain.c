/* The one ordered list of dtrain's source files, a layer after the layers that it uses. It is the
 * development build (`cc -c src/dtrain.c`) and the input of tools/amalgamate, which writes dtrain.h
 * from it: what follows dtrain_api.h is compiled under DT_IMPLEMENTATION, or a part of it, only. */
#include "dtrain_api.h"

/* ---- base: memory, errors, text, threads, random numbers, hashes, json, files */
#include "base/prelude.h"
#include "base/split.h"
#include "base/base.h"
#include "base/dtype.h"
#include "base/system/thread.h"
#include "base/system/file.h"
#include "base/memory.c"
#include "base/error.c"
#include "base/text.c"
#include "base/array.c"
#include "base/tree.c"
#include "base/system/time.c"
#include "base/system/thread_posix.c"
#include "base/system/thread_win32.c"
#include "base/system/thread_none.c"
#include "base/system/processors.c"
#include "base/system/process.c"
#include "base/system/file_posix.c"
#include "base/system/file_win32.c"
#include "base/threads.c"
DTI_OPTIMIZE_SPEED
#include "base/rng.c"
#include "base/isa.h"
#include "base/hash.c"
#include "base/crc32c.c"
#include "base/lz4.c"
#include "base/sha256.c"
#include "base/hmac.c"
#include "base/half.c"
#include "base/isfinite.c"
DTI_OPTIMIZE_END
#include "base/json.c"
#include "base/file.c"

/* ---- comm: collectives over threads, TCP and MPI; uses base alone */
#include "comm/comm.h"
#include "comm/collective/fold.h"
#if DTI_COMPILES_COMM
#include "comm/collective/kind.c"
DTI_OPTIMIZE_SPEED
#include "comm/collective/fold.c"
DTI_OPTIMIZE_END
#ifndef DT_NO_COMM
#include "comm/collective/schedule.h"
#include "comm/collective/schedule.c"
#include "comm/collective/algo_direct.c"
#include "comm/collective/algo_one_shot.c"
#include "comm/collective/algo_doubling.c"
#include "comm/collective/algo_halving.c"
#include "comm/collective/algo_ring.c"
#include "comm/collective/algo_hierarchical.c"
#include "comm/collective/algo_rooted.c"
#include "comm/collective/algo_exchange.c"
#include "comm/collective/cost.c"
#include "comm/collective/choose.c"
#endif
#include "comm/collective/coll.c"
#include "comm/life.c"
#ifndef DT_NO_COMM
#include "comm/socket.h"
#include "comm/socket_posix.c"
#include "comm/socket_win32.c"
#include "comm/socket_local.c"
DTI_OPTIMIZE_SPEED
#include "comm/protocol/wire.h"
#include "comm/protocol/wire.c"
#include "comm/protocol/gmac.c"
#include "comm/protocol/core.h"
#include "comm/protocol/note.c"
#include "comm/protocol/backlog.c"
#include "comm/protocol/link.c"
#include "comm/protocol/handshake.c"
#include "comm/protocol/flight.c"
#include "comm/protocol/failure.c"
#include "comm/protocol/engine_announce.c"
#include "comm/protocol/engine_receive.c"
#include "comm/protocol/engine_send.c"
#include "comm/protocol/connect.c"
#include "comm/protocol/join.c"
#include "comm/protocol/member.c"
#include "comm/protocol/core.c"
DTI_OPTIMIZE_END
#include "comm/launch/env.h"
#include "comm/launch/nodelist.c"
#include "comm/launch/descriptor.c"
#include "comm/launch/pmi.c"
#include "comm/launch/pmix.c"
#include "comm/launch/env_value.c"
#include "comm/launch/launcher.c"
#include "comm/launch/env.c"
#include "comm/meet/key.c"
#include "comm/meet/address.c"
#include "comm/meet/tcpstore.c"
#include "comm/meet/rendezvous.c"
#include "comm/tls/tls.c"
#else
#include "comm/alone.c"
#endif
#include "comm/transport/single.c"
#ifndef DT_NO_COMM
#include "comm/transport/thread_hub.c"
#include "comm/transport/thread_job.c"
#include "comm/transport/thread.c"
DTI_OPTIMIZE_SPEED
#include "comm/transport/shm.c"
#include "comm/transport/tcp.h"
#include "comm/transport/tcp_congestion.c"
#include "comm/transport/tcp_shm.c"
#include "comm/transport/tcp_conn.c"
#include "comm/transport/tcp_tls.c"
#include "comm/transport/tcp_wait.c"
#include "comm/transport/tcp.c"
DTI_OPTIMIZE_END
#include "comm/mpi/mpi_op.c"
#include "comm/mpi/mpi.c"
#endif
#ifndef DT_NO_COMM
#include "comm/measure.c"
#endif
#include "comm/comm.c"
#include "comm/group.c"
#endif /* DTI_COMPILES_COMM */

#ifndef DT_COMM_ONLY
/* ---- kernel: raw pointers only */
DTI_OPTIMIZE_SPEED
#include "kernel/simd.h"
#include "../shaders/lib/map_body.h"
#include "../shaders/lib/optim_body.h"
#include "kernel/gemm.h"
#include "kernel/vec.h"
#include "kernel/norm.h"
#include "kernel/attention.h"
#include "kernel/recurrence.h"
#include "kernel/pool.h"
#include "kernel/conv.h"
#include "kernel/half.h"
#include "kernel/isa_kernels.h"
#if DTI_COMPILES_KERNELS
#include "kernel/gemm.c"
#include "kernel/gemm_half.c"
#include "kernel/conv_walk.c"
#include "kernel/conv_dw.c"
#include "kernel/isa_kernels.c"
#endif
DTI_OPTIMIZE_END

#if DTI_COMPILES_CORE
/* ---- tensor: shape, node, graph */
#include "tensor/graph.h"
#include "tensor/shape.c"
#include "tensor/graph.c"

/* ---- op: the op table and its families */
#include "op/launch.h"
#include "op/op_table.h"
#include "op/op.h"
#include "op/emit.h"
#include "op/cpu_task.h"
#include "op/ref_index.h"
#include "op/build.c"
#include "op/name.c"
#include "op/emit.c"
#include "op/walk.c"
#include "op/moved.c"
#include "op/families.h" /* written by tools/amalgamate: every file with a family in it */
#include "op/table.c"
#include "op/differentiate.c"
#include "op/volume.c"
#include "op/rope.c"

/* ---- optim: descriptions of optimizers, and the commit segment on the CPU */
#include "optim/optim.h"
#include "optim/rate.c"
#include "optim/optim.c"
#include "optim/optim_cpu.c"

/* ---- backend: the boundary; ref, cpu, vulkan */
#include "backend/backend.h"
#include "backend/trial.h"
#include "backend/trial.c"
#include "backend/ref/ref.h"
#include "backend/ref/ref.c"
#include "backend/cpu/cpu.h"
#include "backend/cpu/cpu.c"
#include "backend/vulkan/vulkan.h"
#include "backend/vulkan/none.c"
#include "backend/vulkan/vk_decl.h"
#ifndef DT_NO_VULKAN
#include "backend/vulkan/shader_table.h"
#endif
#include "backend/vulkan/device.h"
#include "backend/vulkan/hazard.c"
#include "backend/vulkan/grid.c"
#include "backend/vulkan/shader.c"
#include "backend/vulkan/load.c"
#include "backend/vulkan/vk_memory.c"
#include "backend/vulkan/tune.c"
#include "backend/vulkan/qualify.c"
#include "backend/vulkan/pipeline.c"
#include "backend/vulkan/device.c"
#include "backend/vulkan/command.c"
#include "backend/vulkan/divide.c"
#include "backend/vulkan/work.c"
#include "backend/vulkan/record.c"
#include "backend/vulkan/exec.c"
#include "backend/vulkan/search.c"
#include "backend/vulkan/parts.c"
#include "backend/vulkan/driver.c"
#include "backend/context.h"
#include "backend/context.c"

/* ---- lower: from a graph and a description to code, by passes */
#include "lower/layout.h"
#include "lower/shards.h"
#include "lower/code.h"
#include "lower/lower.h"
#include "lower/layout.c"
#include "lower/shards.c"
#include "lower/describe.c"
#include "lower/recompute.c"
#include "lower/need.c"
#include "lower/cut.c"
#include "lower/pieces.c"
#include "lower/buckets.c"
#include "lower/ports.c"
#include "lower/segments.c"
#include "lower/commit.c"
#include "lower/labels.c"
#include "lower/space.h"
#include "lower/space.c"
#include "lower/cast.c"
#include "lower/types.c"
#include "lower/plan.c"
#include "lower/code.c"
#include "lower/replay.c"
#include "lower/passes.c"
#include "lower/budget.c"

/* ---- program: stores, code bound to memory, runs */
#include "program/store.h"
#include "program/program.h"
#include "program/assembly.h"
#include "program/store.c"
#include "program/finite.c"
#include "program/step_block.c"
#include "program/drive.c"
#include "program/codes.c"
#include "program/lent.c"
#include "program/compile.c"
#include "program/shadow.c"
#include "program/run.c"
#include "program/ahead.c"
#include "program/replica.c"
#include "program/assembly.c"

/* ---- nn: named parameters, initialisers, layers */
#include "nn/nn_linear.c"
#include "nn/nn_conv.c"
#include "nn/nn_norm.c"
#include "nn/nn_loss.c"
#include "nn/nn_attention.c"
#include "nn/nn_transformer.c"
#include "nn/nn_recurrent.c"

/* ---- data: readers, shuffle, batches */
#include "data/idx.c"
#include "data/batch.c"
#include "data/loader.h"
#include "data/loader.c"

/* ---- file: safetensors, checkpoints */
#include "file/safetensors.h"
#include "file/safetensors.c"
#include "file/store_file.c"
#include "file/checkpoint.h"
#include "file/checkpoint.c"
#include "file/model_text.h"
#include "file/model_text.c"
#include "file/state_file.h"
#include "file/state_file.c"
#include "file/store_state.c"

/* ---- parallel: replicas on several devices and ranks */
#include "parallel/partition.h"
#include "parallel/crew.h"
#include "parallel/parallel.h"
#include "parallel/partition.c"
#include "parallel/crew.c"
#include "parallel/exchange.c"
#include "parallel/statistics.c"
#include "parallel/agree.c"
#include "parallel/step.c"
#include "parallel/one.c"
#include "parallel/make.c"
#include "parallel/replicas.c"

/* ---- train: the trainer */
#include "train/trainer.h"
#include "train/contract.c"
#include "train/plateau.c"
#include "train/under_way.c"
#include "train/trainer.c"
#include "train/shared.c"
#include "train/balance.c"
#include "train/evaluate.c"
#include "train/state.c"
#include "train/metric.c"

#endif /* DTI_COMPILES_CORE */
#endif /* DT_COMM_ONLY */

#include "base/epilogue.h"
