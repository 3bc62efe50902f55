/* The one ordered list of dtrain's source files, a layer after the layers that it uses. It is the
 * development build (`cc -c src/dtrain.c`). ./build.sh header makes dtrain.h of it: the files after
 * dtrain_api.h are compiled only under DT_IMPLEMENTATION, or a part of it. A part (base/split.h) is
 * under its DTI_COMPILES_; headers before that are shared. */
#ifndef DT_IMPLEMENTATION
#define DT_IMPLEMENTATION
#endif
#include "dtrain_api.h"

/* ---- base: memory, errors, text, threads, random numbers, hashes, json, files */
#include "base/prelude.h"
#include "base/optional.h"
#include "base/split.h"
#include "base/base.h"
#include "base/dtype.h"
#include "base/system/thread.h"
#include "base/system/file.h"
#include "base/enter.c"
#include "base/memory.c"
#include "base/error.c"
#include "base/text.c"
#include "base/sought.c"
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
#include "base/system/terminal.c"
#include "base/threads.c"
DTI_OPTIMIZE_SPEED
#include "base/rng.c"
#include "base/isa.h"
#include "base/hash.c"
#include "base/crc32c.c"
#include "base/sha256.c"
#include "base/hmac.c"
#include "base/half.c"
#include "base/isfinite.c"
#include "base/exact.c"
DTI_OPTIMIZE_END
#include "base/json.c"
#include "base/file.c"
#include "base/grow.c"
#include "base/field.h"
#include "base/field.c"

/* ---- comm: collectives over threads, TCP and MPI; uses only base */
#include "comm/comm.h"
#include "comm/message_server.h"
#include "comm/collective/fold.h"
#ifdef DTI_COMPILES_COMM
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
#include "comm/socket.c"
#include "comm/socket_local.c"
DTI_OPTIMIZE_SPEED
#include "comm/protocol/wire.h"
#include "comm/protocol/wire.c"
#include "comm/protocol/gmac.c"
#include "comm/protocol/core.h"
#include "comm/protocol/note.c"
#include "comm/protocol/backlog.c"
#include "comm/protocol/link.c"
DTI_OPTIMIZE_SIZE
#include "comm/protocol/handshake.c"
DTI_OPTIMIZE_SIZE_END
#include "comm/protocol/flight.c"
DTI_OPTIMIZE_SIZE
#include "comm/protocol/failure.c"
#include "comm/protocol/engine_announce.c"
DTI_OPTIMIZE_SIZE_END
#include "comm/protocol/engine_receive.c"
#include "comm/protocol/engine_send.c"
DTI_OPTIMIZE_SIZE
#include "comm/protocol/connect.c"
#include "comm/protocol/join.c"
#include "comm/protocol/member.c"
DTI_OPTIMIZE_SIZE_END
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
DTI_OPTIMIZE_SIZE
#include "comm/transport/tcp_congestion.c"
DTI_OPTIMIZE_SIZE_END
#include "comm/transport/tcp_shm.c"
#include "comm/transport/tcp_conn.c"
#include "comm/transport/tcp_tls.c"
#include "comm/transport/tcp_wait.c"
#include "comm/transport/tcp.c"
DTI_OPTIMIZE_END
#include "comm/transport/tcp_open.c"
#include "comm/message/message_link.h"
#include "comm/message/message_link.c"
#include "comm/message/message_server_tls.c"
#include "comm/message/message_server.c"
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
#include "kernel/wide.h"
#include "kernel/gemm.h"
#include "kernel/vec.h"
#include "kernel/norm.h"
#include "kernel/attention.h"
#include "kernel/recurrence.h"
#include "kernel/ctc.h"
#include "kernel/pool.h"
#include "kernel/conv.h"
#include "kernel/half.h"
#include "kernel/map8.h"
#include "kernel/half_product.h"
#include "kernel/isa_kernels.h"
#ifdef DTI_COMPILES_KERNELS
#include "kernel/wide.c"
#include "kernel/gemm.c"
#include "kernel/gemm_half.c"
#include "kernel/half_product.c"
#include "kernel/conv_walk.c"
#include "kernel/conv_dw.c"
#endif
#include "kernel/isa_kernels.c" /* KERNELS has the portable set, SIMD those of x86 */
DTI_OPTIMIZE_END

/* ---- tensor: shape, node, graph */
#include "tensor/graph.h"
#ifdef DTI_COMPILES_GRAPH
#include "tensor/shape.c"
#include "tensor/graph.c"
#endif

/* ---- op: the op table and its families */
#include "op/core/launch.h"
#include "op/op_table.h"
#include "op/op.h"
#include "op/attributes.h"
#include "op/core/emit.h"
#include "op/core/cpu_task.h"
#ifdef DTI_COMPILES_GRAPH
#include "op/core/build.c"
#include "op/core/autocast.c"
#include "op/core/name.c"
#include "op/core/emit.c"
#include "op/core/stage.c"
#include "op/core/walk.c"
#include "op/core/moved.c"
#include "op/core/parted.c"
#include "op/families/families.h" /* written by ./build.sh header: every file with a family in it */
#include "op/core/table.c"
#include "op/core/known.c"
#include "op/core/differentiate.c"
#include "op/families/volume.c"
#include "op/families/rope.c"
#include "op/families/attention_cached.c"
#endif

/* ---- optim: descriptions of optimizers, and the commit segment on the CPU */
#include "optim/optim.h"
#include "optim/optim_fields.c"
#ifdef DTI_COMPILES_GRAPH
#include "optim/rate.c"
#include "optim/average.c"
#include "optim/stored.c"
#include "optim/optim.c"
#include "optim/optim_cpu.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(OPTIMIZERS)
#include "optim/whole.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#endif

/* ---- backend: the boundary; cpu, vulkan */
#include "backend/backend.h"
#include "backend/trial.h"
#include "backend/cpu/cpu.h"
#include "backend/context.h"
#ifdef DTI_COMPILES_BACKEND
#include "backend/trial.c"
#include "backend/cpu/cpu.c"
#ifndef DT_NO_VULKAN
#include "backend/vulkan/vulkan.h"
#include "backend/vulkan/vk_decl.h"
#include "backend/vulkan/shader_table.h"
#include "backend/vulkan/device/device.h"
#include "backend/vulkan/run/hazard.c"
#include "backend/vulkan/pipeline/grid.c"
#include "backend/vulkan/pipeline/unpack.c"
#include "backend/vulkan/pipeline/shader.c"
#include "backend/vulkan/pipeline/specialize.c"
#include "backend/vulkan/pipeline/prune.c"
#include "backend/vulkan/device/icd.c"
#include "backend/vulkan/device/load.c"
#include "backend/vulkan/device/vk_memory.c"
#include "backend/vulkan/pipeline/spills.c"
#include "backend/vulkan/pipeline/tune.c"
#include "backend/vulkan/pipeline/qualify.c"
#include "backend/vulkan/pipeline/self_test.c"
#include "backend/vulkan/pipeline/pipeline.c"
#include "backend/vulkan/device/device.c"
#include "backend/vulkan/run/command.c"
#include "backend/vulkan/run/divide.c"
#include "backend/vulkan/run/work.c"
#include "backend/vulkan/run/record.c"
#include "backend/vulkan/run/exec.c"
#include "backend/vulkan/run/search.c"
#include "backend/vulkan/run/parts.c"
#endif
#include "backend/vulkan/driver.c"
#include "backend/context.c"
#endif

/* ---- lower: from a graph and a description to code, by passes */
#include "lower/layout.h"
#include "lower/batch_slices.h"
#include "lower/code.h"
#include "lower/lower.h"
#include "lower/space.h"
#ifdef DTI_COMPILES_BACKEND
#include "lower/layout.c"
#include "lower/batch_slices.c"
#include "lower/describe.c"
#include "lower/recompute.c"
#include "lower/need.c"
#include "lower/cut.c"
#include "lower/pieces.c"
#include "lower/buckets.c"
#include "lower/bindings.c"
#include "lower/segments.c"
#include "lower/sync_points.c"
#include "lower/units.c"
#include "lower/sparse.c"
#include "lower/commit.c"
#include "lower/labels.c"
#include "lower/space.c"
#include "lower/cast.c"
#include "lower/types.c"
#include "lower/widen.c"
#include "lower/plan.c"
#include "lower/code.c"
#include "lower/replay.c"
#include "lower/passes.c"
#include "lower/budget.c"
#endif

/* ---- program: stores, code bound to memory, runs */
#include "program/store/store.h"
#include "program/program.h"
#ifdef DTI_COMPILES_BACKEND
#include "program/store/init.c"
#include "program/store/stored_values.c"
#include "program/store/store.c"
#include "program/store/offload.c"
#include "program/run/finite.c"
#include "program/run/step_block.c"
#include "program/run/drive.c"
#include "program/codes.c"
#include "program/run/external.c"
#include "program/compile.c"
#include "program/store/host_copy.c"
#include "program/run/run.c"
#include "program/run/inflight.c"
#include "program/run/host_weights.c"
#include "program/run/replica.c"
#include "program/run/micro_slots.c"
#endif

/* ---- nn: named parameters, initialisers, layers */
#ifdef DTI_COMPILES_DATA
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(COMPOSED)
#include "nn/nn_compose.c"
#include "nn/nn_order.c"
#include "nn/nn_angle.c"
#include "nn/nn_fold.c"
#include "nn/nn_einsum.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#include "nn/nn_linear.c"
#include "nn/nn_table.c"
#include "nn/nn_conv.c"
#include "nn/nn_norm.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(COMPOSED)
#include "nn/nn_loss.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#include "nn/nn_attention.c"
#include "nn/nn_transformer.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(RECURRENT)
#include "nn/nn_recurrent.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#endif

/* ---- data: readers, shuffle, batches */
#include "data/loader/loader.h"
#include "data/loader/augment_fields.c"
#ifdef DTI_COMPILES_DATA
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(READERS)
#include "data/readers/idx.c"
#include "data/readers/npy.h"
#include "data/readers/npy.c"
#include "data/readers/npz.c"
#include "data/readers/csv.h"
#include "data/readers/csv_text.c"
#include "data/readers/csv_scan.c"
#include "data/readers/csv.c"
#include "data/readers/wav.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#include "data/loader/batch.c"
#include "data/loader/split.c"
#include "data/loader/sampler.c"
DTI_OPTIMIZE_SPEED
#include "data/loader/augment.c"
DTI_OPTIMIZE_END
#include "data/loader/loader_row.c"
#include "data/loader/shuffle_buffer.c"
#include "data/loader/loader.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(READERS)
#include "data/readers/picture.h"
DTI_OPTIMIZE_SPEED
#include "data/readers/picture_size.c"
DTI_OPTIMIZE_END
#include "data/readers/picture_png.c"
#include "data/readers/picture_jpeg.c"
#include "data/readers/picture.c"
#include "data/readers/folder.h"
#include "data/readers/folder_scan.c"
#include "data/readers/folder.c"
#include "data/readers/tokens.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#include "data/replay/replay_buffer.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(READERS)
#include "data/replay/replay_file.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#endif

/* ---- file: safetensors, checkpoints */
#include "file/safetensors.h"
#include "file/checkpoint.h"
#include "file/model_text.h"
#include "file/state_file.h"
#ifdef DTI_COMPILES_DATA
#include "file/safetensors.c"
#include "file/safetensors_index.c"
#include "file/safetensors_write.c"
#include "file/store_file.c"
#include "file/checkpoint.c"
#include "file/checkpoint_folder.c"
#include "file/checkpoint_parts.c"
#include "file/checkpoint_copy.c"
#include "file/model_text.c"
#include "file/state_file.c"
#include "file/store_state.c"
#endif

/* ---- log: CSV, JSON lines, TensorBoard's events */
#include "log/record.h"
#include "log/run_log.h"
#include "log/profile.h"
#ifdef DTI_COMPILES_DATA
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(LOG)
#include "log/proto.c"
#include "log/png.c"
#include "log/event.c"
#include "log/run_log.c"
#include "log/profile.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#endif

/* ---- export: models for other runtimes */
#ifdef DTI_COMPILES_DATA
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(EXPORT)
#include "export/onnx.h"
#include "export/onnx_make.c"
#include "export/onnx_layers.c"
#include "export/onnx_rows.c"
#include "export/onnx.c"
#include "export/c_text.h"
#include "export/c_rows.c"
#include "export/c_save.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#endif

/* ---- parallel: replicas on several devices and ranks */
#ifdef DTI_COMPILES_TRAIN
#include "parallel/step/actions.h"
#include "parallel/step/execute.h"
#include "parallel/mesh/partition.h"
#include "parallel/mesh/mesh.h"
#include "parallel/mesh/device_team.h"
#include "parallel/pipeline/pipe_schedule.h"
#include "parallel/step/reducer.h"
#include "parallel/local/local.h"
#include "parallel/parallel.h"
#include "parallel/step/protocol.h"
#include "parallel/pipeline/pipe_cut.h"
#include "parallel/step/slice_stack.h"
#include "parallel/tensor/tp_sync.h"
#include "parallel/tensor/tp.h"
#include "parallel/pipeline/pipe.h"
#include "parallel/values/values.h"
#include "parallel/step/actions.c"
#include "parallel/mesh/partition.c"
#include "parallel/mesh/mesh.c"
#include "parallel/mesh/mesh_job.c"
#include "parallel/mesh/device_team.c"
#include "parallel/mesh/agree.c"
#include "parallel/mesh/replicas.c"
#include "parallel/step/execute.c"
#include "parallel/step/reducer.c"
#include "parallel/data/bucket_sums.c"
#include "parallel/data/statistics.c"
#include "parallel/data/sync_point.c"
#include "parallel/data/micro_step.c"
#include "parallel/step/scalar_sums.c"
#include "parallel/data/replica_actions.c"
#include "parallel/step/protocol.c"
#include "parallel/step/nan_search.c"
#include "parallel/data/replica_step.c"
#include "parallel/values/trained.c"
#include "parallel/zero/owners.c"
#include "parallel/zero/unit_step.c"
#include "parallel/zero/unit_make.c"
#include "parallel/zero/unit_evaluate.c"
#include "parallel/zero/unit_full.c"
#include "parallel/data/one.c"
#include "parallel/local/compress.c"
#include "parallel/local/round.c"
#include "parallel/local/gossip.c"
#include "parallel/local/inner.c"
#include "parallel/data/replica_make.c"
#include "parallel/pipeline/device_grid.c"
#include "parallel/tensor/tp_sync.c"
#include "parallel/pipeline/pipe_schedule.c"
#include "parallel/pipeline/pipe_search.c"
#include "parallel/pipeline/pipe_cut.c"
#include "parallel/pipeline/pipe_grid.c"
#include "parallel/pipeline/pipe_program.c"
#include "parallel/pipeline/pipe_make.c"
#include "parallel/pipeline/pipe_wire.c"
#include "parallel/pipeline/pipe_list.c"
#include "parallel/step/slice_stack.c"
#include "parallel/pipeline/pipe_sum.c"
#include "parallel/pipeline/pipe_share.c"
#include "parallel/pipeline/pipe_units.c"
#include "parallel/pipeline/pipe_step.c"
#include "parallel/pipeline/pipe_forward.c"
#include "parallel/pipeline/pipe_average.c"
#include "parallel/tensor/tp_cut.c"
#include "parallel/tensor/tp_model.c"
#include "parallel/values/maps.c"
#include "parallel/values/values.c"
#include "parallel/values/snapshot.c"
#include "parallel/values/host.c"
#endif

/* ---- train: the trainer */
#ifdef DTI_COMPILES_TRAIN
#include "train/trainer.h"
#include "train/trainer_fields.c"
#include "train/compat.h"
#include "train/compat.c"
#include "train/contract.c"
#include "train/plateau.c"
#include "train/names.c"
#include "train/settings.c"
#include "train/feed.c"
#include "train/trainer.c"
#include "train/make_step.c"
#include "train/steps.c"
#include "train/rounds.c"
#include "train/shared.c"
#include "train/balance.c"
#include "train/evaluate.c"
#include "train/watched.c"
#include "train/state.c"
#include "train/state_load.c"
#include "train/round_state.c"
#include "train/sharded.c"
#include "train/checkpoints.c"
#include "train/weights.c"
#include "train/sharing.c"
#endif

/* ---- server: parameter servers and their workers, which are trainers */
#ifdef DTI_COMPILES_TRAIN
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(SERVER)
#include "server/tickets.h"
#include "server/tickets.c"
#include "server/message.h"
#include "server/compute.h"
#include "server/compute.c"
#include "server/client.h"
#include "server/client.c"
#include "server/worker.c"
#include "server/worker_agree.c"
#include "server/serve_batch.c"
#include "server/serve_agree.c"
#include "server/serve_push.c"
#include "server/serve.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#endif

/* ---- loop: fit, and what looks at it */
#ifdef DTI_COMPILES_TRAIN
#include "loop/fit.h"
#include "loop/fit_desc.c"
#include "loop/fit_watch.c"
#include "loop/fit.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(REPORTS)
#include "loop/lr_find.c"
#include "loop/progress.c"
#include "loop/summary.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(LOG)
#include "loop/log_fit.c"
#include "loop/profile_fit.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(REPORTS)
#include "loop/metric.c"
#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
#endif

#endif /* DT_COMM_ONLY */

#include "base/epilogue.h"
