/* dtrain: neural networks that train anywhere, in one C header. On any GPU with a Vulkan driver, on
 * the CPU alone, inside the application that includes it.
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
 *         dt_tensor in = dt_input(g, "x", DT_F32, dt_dims(2));    // one sample's shape
 *         dt_tensor want = dt_input(g, "y", DT_F32, dt_dims(1));
 *         dt_tensor h = dt_tanh(dt_nn_linear(in, "fc1", 16));     // makes fc1.weight and fc1.bias
 *         dt_tensor got = dt_nn_linear(h, "fc2", 1);
 *         dt_store_create(g, NULL, &store);                       // values, on a device
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
 *         dt_ctx_destroy(ctx);                                    // and all that was made from it
 *         return !(out[0] < 0.2f && out[1] > 0.8f && out[2] > 0.8f && out[3] < 0.2f);
 *     }
 *
 *     cc -O2 app.c -lm -ldl -lpthread            (Windows: -lws2_32 and no other)
 *
 * Nothing else is needed: the Vulkan loader is opened when it is there, the kernels lie inside the
 * header, and without a driver the CPU backend runs the same model. The options (DT_NO_VULKAN and
 * others) are in the table below this essay.
 *
 * WHAT DTRAIN DOES NOT DO. It never prints (dt_progress_show() does, a callback that you pass),
 * exits, aborts, installs a signal handler or starts a thread that you did not ask for (a Vulkan
 * driver may have its own; a dt_comm over TCP has one, a dt_trainer one for data and one for each
 * device but the first). A running program allocates nothing. It never falls back silently: what
 * cannot be done is an error with a text, dt_ctx_error(). The implementation is C11 for GCC or
 * Clang, on Linux, Windows and the web (docs/platforms.md says what is tested); C++ files include
 * the declarations. It has no mixed precision: values are cast to 16 bits by hand, in single ops,
 * and on the CPU alone. When a rank is lost the job goes on from a checkpoint, not by itself, but
 * for the workers of a dt_server.
 *
 * STEP BY STEP.
 *
 * 1. A context (dt_ctx) holds memory, log, threads and the list of devices.
 * 2. A graph (dt_graph) is symbolic. You write one sample's shape; the sample axis is implied. A
 *    dt_tensor is a handle by value. A wrong op gives nil and the graph keeps the first error, so
 *    that model code needs no checks: dt_store_create reports it, dt_graph_clear_error goes on.
 * 3. A store (dt_store) is a graph's parameters and optimizer state on one device.
 * 4. A program (dt_program) is a graph compiled against a store for given losses, outputs, batch
 *    and mode. As many as you like share one store and one arena: train at 64, the tail at 32,
 *    predict at 1, a GAN's two sides. Everything wrong with it is reported at creation.
 * 5. A step is write, run, read. Or begin, advance segment by segment, end: for a frame's time
 *    budget, for dL/dy from the host between forward and backward, or to cancel.
 *
 * DEFAULTS. Every description may be {0}; a field that is 0 takes its default. Where the default is
 * another number, DT_ZERO means zero: .weight_decay = DT_ZERO, .beta1 = DT_ZERO.
 *
 * TENSORS. f32 and i32, and on the CPU bf16 and f16 (dt_cast); at most 5 dimensions besides the
 * sample axis; NumPy's broadcasting. Views (reshape, permute, slice, expand) move nothing.
 *
 * IMAGES are [channels, height, width], PyTorch's NCHW. dt_nn_conv2d() and its kin make PyTorch's
 * parameters; bare ops take tensors. Batch norm has buffers, values that no gradient trains: they
 * change when a step commits, and are saved and loaded like parameters. The statistics are those of
 * a program's own batch, or of a trainer's shard; with .sync, of the whole job's batch.
 *
 * NAMES. Parameters have names, by which optimizer groups, patterns and files find them. Between
 * dt_scope_push() and dt_scope_pop() they begin with the name of a block. Tables and masks that are
 * fixed need no name: dt_constant().
 *
 * PATTERNS. .params of an optimizer group, a program, a trainer and a dt_load_desc, and .columns of
 * a CSV rule, list patterns with commas between them: "*.bias, head.*". '*' stands for any number
 * of characters, dots too, and '?' for one. A pattern matches whole names; blanks (spaces, tabs)
 * around it are ignored. One that matches no name is INVALID, also where others of its list do, and
 * the error names it: it is misspelt, or of another model. An empty one, as behind a last comma, is
 * none. dt_store_save_matching takes patterns too.
 *
 * OTHER SHAPES. Programs of one store may give the graph's inputs other shapes (.shapes): sentences
 * of three lengths train the same parameters in turn, in memory that they share.
 *
 * GENERATION. A program with .cached runs the same graph on what is new alone: attention with a
 * cache keeps keys and values of all runs on the device.
 *
 * GRADIENTS. A program with an optimizer computes them. dt_gradient() is the same as a tensor in
 * the graph, and can be differentiated again: a gradient penalty is a few ops.
 *
 * LOSSES are terms (sum, weight); the value is sum / weight over the whole global batch, so ignored
 * targets, class weights, several losses and unequal micro-batches are exact.
 *
 * MEMORY. dt_program_get_info tells every byte of the device before anything runs; a run allocates
 * nothing. dt_recompute() marks tensors that the backward pass computes again instead of keeping
 * them: the same bits in less memory; dt_program_desc.memory_bytes has them chosen. Its own host
 * memory comes from the allocator of dt_ctx_desc.
 *
 * DEVICES. "auto", "cpu", "vulkan", "vulkan:N" or a part of a name. See dt_store_desc.
 *
 * SEVERAL DEVICES, AND HOSTS. A dt_trainer trains one model on the devices that its description
 * lists ("cpu:2", "vulkan:0,vulkan:1,cpu") and on all ranks of a dt_comm: it reads the data, runs
 * epochs, evaluates and keeps checkpoints. Gradients are summed while the backward pass runs, and
 * nothing changes before all ranks have all of them. Where links are slow, replicas can train by
 * themselves and exchange once in a round (DT_TRAIN_LOCAL); where workers come and go, dt_server
 * hands out the work. Replicas can share out the optimizer's state, gradients and parameters
 * (.parallel.zero_stage), and a model that is larger than a device can be cut into stages on several, of
 * any ranks, as often as there are devices (.parallel.pipeline, .parallel.replicas): the bits stay the same. Or
 * devices share out each layer (.tensor), also as several such squads that share the batch
 * (.tensor, .parallel.replicas), or as the stages of a pipeline (.tensor, .parallel.pipeline), and in fixed slices
 * with the same bits on any number (.parallel.tensor_slices).
 *
 * A LOOP. dt_trainer_fit() runs epochs with validation, early stopping, the best weights and
 * checkpoints; callbacks see every step; dt_progress_show() is one that shows a bar,
 * dt_run_log_fit() one that writes CSV, JSON lines and TensorBoard's files. dt_trainer_predict()
 * computes a tensor for all rows of a set; dt_summary() lists a model's layers. dt_csv_open(),
 * dt_npy_load() and dt_idx_load() read data.
 *
 * SEVERAL PROCESSES. dt_comm joins the ranks that torchrun, mpirun, srun, Kubernetes or build/dtrun
 * started, over TCP, and sums, gathers and sends arrays between them: dt_comm_all_reduce() and its
 * kin, blocking or not. It needs no context. Ranks prove the job's key to each other; data has
 * checksums; all ranks get the same bits; a rank that is lost ends the group with an error that
 * names it, never with a hang.
 *
 * THE SAME BITS. On the CPU, weights do not depend on the number of threads, the compiler's flags
 * or the instruction set (among those with FMA). Random numbers depend on seed, step and the place
 * in the batch alone. A trainer with a fixed number of shards gives the same bits on 1, 2, 4 or 8
 * replicas, threads or processes, and after a resume on another number.
 *
 * ERRORS. Functions that meet the outside world return dt_result (DT_OK is 0). A NaN or infinity in
 * a loss or gradient is DT_ERROR_NUMERIC and names the op that made it first; one that the update
 * would write names the parameter. The store stays unchanged: every write of a step happens in its
 * last segment, after the check. NULL where a pointer is needed is DT_ERROR_INVALID, and the text
 * names it; see dt_result.
 *
 * THREADS. A context and what it owns belong to one thread at a time; several contexts run in
 * parallel. A step computes on the calling thread, unless dt_ctx_desc asks for more (.threads = 4,
 * or DT_THREADS_ALL for one per processor) or names your job system. The log says how many of the
 * processors compute; the bits do not depend on it.
 *
 * FILES. safetensors, under PyTorch's names; dt_store_load_matching() takes parts of one, also
 * under other names. A file appears whole or not at all.
 *
 * NOT YET, and refused with a text: 16 bits but in single ops on the CPU; gradients and parameters
 * that the replicas of a pipeline's stage, or of a member of .tensor, share out (they share out the
 * optimizer's state); groups that go on without a rank that was lost. GPUs have been software
 * drivers and compilers alone so far: ./build.sh gpu writes a report of yours. */
