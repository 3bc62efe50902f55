/* dtrain: neural networks that train anywhere, in one C header. They run inside your application,
 * on any GPU with a Vulkan driver or just on the CPU.
 *
 * Do this in ONE C file, and only include the header in the others:
 *
 *     #define DT_IMPLEMENTATION
 *     #include "dtrain.h"
 *
 *     int main(void) {
 *         float x[8] = {0, 0, 0, 1, 1, 0, 1, 1}, y[4] = {0, 1, 1, 0}, out[4];
 *         dt_ctx *ctx; dt_graph *g; dt_store *store; dt_program *train, *predict;
 *         dt_ctx_create(&(dt_ctx_desc){.threads = DT_THREADS_ALL}, &ctx); // NULL: one thread
 *         dt_graph_create(ctx, &g);
 *         dt_tensor in = dt_input(g, "x", DT_F32, dt_dims(2)); // one sample's shape
 *         dt_tensor want = dt_input(g, "y", DT_F32, dt_dims(1));
 *         dt_tensor h = dt_tanh(dt_nn_linear(in, "fc1", 16)); // makes fc1.weight and fc1.bias
 *         dt_tensor got = dt_nn_linear(h, "fc2", 1);
 *         dt_store_create(g, NULL, &store); // values, on a device
 *         dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.05};
 *         dt_program_desc desc = {.loss = dt_mse(got, want), .batch = 4, .optim = &adam};
 *         dt_program_create(store, &desc, &train);
 *         dt_program_create(store, &(dt_program_desc){.outputs = {got}, .batch = 4}, &predict);
 *         dt_program_write(train, in, x, sizeof x);
 *         dt_program_write(train, want, y, sizeof y);
 *         for (int i = 0; i < 500; i++) dt_program_run(train, NULL, NULL);
 *         dt_program_write(predict, in, x, sizeof x);
 *         dt_program_run(predict, NULL, NULL);
 *         dt_program_read(predict, got, out, sizeof out);
 *         dt_ctx_destroy(ctx); // and its graphs, stores, trainers
 *         return !(out[0] < 0.2f && out[1] > 0.8f && out[2] > 0.8f && out[3] < 0.2f);
 *     }
 *
 *     cc -O2 app.c -lm -ldl -lpthread    (Windows: only -lws2_32)
 *
 * Nothing else is needed. The Vulkan loader is opened if it is there. Without a driver the CPU
 * backend runs the same model. Options are in the table below.
 *
 * WHAT DTRAIN DOES NOT DO. It never exits, aborts or installs a signal handler, and it has no
 * globals. Only dt_progress_show prints. It starts no thread that you did not ask for. A dt_comm
 * over TCP has one thread; a dt_trainer has those of dt_dataset.threads, and one for each device
 * after the first. A running program allocates nothing. Nothing falls back silently: what cannot be
 * done is an error with a text. The implementation is C11 for GCC or Clang, on Linux, Windows and
 * the web; for macOS and FreeBSD it compiles and links (docs/platforms.md). C++ files include the
 * declarations.
 *
 * WHAT IS NOT THERE.
 * - Training in f16. .precision has bf16; parameters and moments in fewer bits are for the CPU.
 * - Many measured GPUs: an NVIDIA H200 and software drivers so far (docs/devices/README.md).
 * - Jobs that outlive a lost rank: they continue from a checkpoint. Workers of a dt_server may die.
 *
 * SIX NOUNS. An object belongs to the object that it was made from, and ends with it.
 *
 * 1. dt_ctx, a context, holds memory, log, threads and the list of devices.
 * 2. dt_graph is symbolic: you write one sample's shape; the sample axis is implied. A
 *    dt_tensor is a handle by value. Model code needs no checks: dt_store_create reports the first
 *    error of an op.
 * 3. dt_store holds a graph's parameters and optimizer state on one device.
 * 4. dt_program is a graph compiled against a store for given losses, outputs, batch and mode. Any
 *    number of programs share one store and its memory.
 * 5. dt_trainer trains one model on several devices and ranks: stores, programs and data.
 * 6. dt_comm is this process's rank in a group. It sums and sends arrays, and needs no context.
 *
 * WAYS TO MAKE A STEP
 *
 * epochs, validation, early stopping, checkpoints   dt_trainer_fit
 * a loop of my own over a trainer                   dt_trainer_epoch, dt_trainer_step, _wait
 * several losses, such as a GAN's, on replicas      dt_trainer_desc.replicas_of
 * a batch that I write myself                       dt_program_run; or dt_program_start, _wait
 * part of a step in a frame, or host gradients      dt_program_begin, _advance, _advance_for, _end
 * workers that come and go                          dt_server_run, and .mode DT_TRAIN_SERVER
 *
 * dt_profile_run is dt_program_run with times. Micro-batches of your own: dt_step_desc.micro_batch.
 *
 * DEFAULTS. In a description 0 is the default. Where the default is another number, DT_ZERO means
 * 0. Arguments of functions mean what they say: 0 is 0, unless the comment gives a default. A
 * description `desc` may be NULL, which is {0}, unless a member is required. It is not kept.
 *
 * FUNCTIONS are called dt_<noun>_<verb>, or dt_<noun>_<value> if they return one value. If they
 * fail, *out is NULL; of a struct it is empty. Verbs:
 * - create, destroy: makes an object, and ends it. NULL is allowed.
 * - open, close: the same of a file or folder that is read piece by piece.
 * - get_info: fills a struct with figures; zeros for NULL. find: the index of a name, or -1.
 * - read, write: copies values between an object and host memory.
 * - save, load: writes and reads whole files. A file appears completely or not at all.
 * - name_with(..., desc): name(...) with a description.
 *
 * TENSORS are f32, i32, bf16 and f16 (dt_cast). They have at most 5 dimensions besides the
 * sample axis, and NumPy's broadcasting. Views (reshape, permute, slice, expand) copy nothing.
 * Images are [channels, height, width], PyTorch's NCHW.
 *
 * PATTERNS. Parameters have names, in scopes (dt_scope_push). A list of patterns selects names:
 * "*.bias, head.*". It is .params of an optimizer group, a program, a trainer or a load, and
 * .columns of a CSV rule. '*' stands for any number of characters, dots too, and '?' for one. A
 * pattern matches whole names. Blanks (spaces, tabs) around it are ignored, and so is an empty one,
 * as after a last comma. Each pattern must match a name: else INVALID.
 *
 * SEVERAL DEVICES AND HOSTS. .devices of a trainer lists devices ("cpu:2",
 * "vulkan:0,vulkan:1,cpu"). .comm adds the ranks that torchrun, mpirun, srun, Kubernetes or
 * build/dtrun started. Parallelism composes: data (.replicas) x pipeline (.pipeline) x tensor
 * (.tensor), with ZeRO (.zero_stage). For slow links replicas average once a round
 * (DT_TRAIN_LOCAL). docs/distributed/data-parallel.md has the rest.
 *
 * THE SAME BITS. On the CPU, weights do not depend on the number of threads, the compiler's flags
 * or the instruction set (with FMA). Random numbers depend only on seed, step and position in the
 * batch. A trainer with fixed .batch_slices has the same bits on 1, 2, 4 or 8 replicas, threads or
 * processes. It may resume on another number. All ranks of a collective get the same bits.
 *
 * ERRORS. Functions that can fail return dt_result (DT_OK is 0), and dt_ctx_error has the text. A
 * NaN or infinity in a loss, gradient or update is DT_ERROR_NUMERIC. The text names the op that
 * made it first, or the parameter. The store stays unchanged.
 *
 * FILES are safetensors under PyTorch's names. docs/data.md lists what reads data. */
