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

/* ---- tensor: shape, node, graph */

/* ---- op: the op table and its families */

/* ---- backend: the boundary; ref, cpu, vulkan */

/* ---- program: autodiff, plan, segments, exec */

/* ---- nn: named parameters, initialisers, layers */

/* ---- optim: optimizers, clipping */

/* ---- data: readers, shuffle, batches */

/* ---- file: safetensors */

#include "base/epilogue.h"
