/* Options. Define any of these before including dtrain.h. All files of a program that include it
 * need the same values. No option changes the layout of a public type.
 *
 *   option              default   meaning and cost
 *   DT_IMPLEMENTATION   off       compile the library here: in exactly one C file (GCC or Clang)
 *   DT_IMPLEMENTATION_GRAPH, DT_IMPLEMENTATION_BACKEND, DT_IMPLEMENTATION_DATA
 *                       off       instead of DT_IMPLEMENTATION: seven C files that compile in
 *                                 parallel, each with one of these or of the next four
 *   DT_IMPLEMENTATION_TRAIN, DT_IMPLEMENTATION_KERNELS, DT_IMPLEMENTATION_SIMD
 *                       off       see above; docs/embedding.md has what each compiles
 *   DT_IMPLEMENTATION_COMM
 *                       off       see above
 *   DT_STATIC           off       make every public function static: a private copy in this file
 *   DT_COMM_ONLY        off       compile only the collectives (dt_comm), no graphs or devices
 *   DT_NO_VULKAN        off       the Vulkan backend (155 KB, 1 s)
 *   DT_NO_AVX512        off       kernels for AVX-512 (95 KB, 0 s): CPUs take those for AVX2, with
 *                                 the same bits
 *   DT_NO_COMM          off       what connects processes (178 KB, 4 s): a dt_comm has one rank;
 *                                 replicas of one process still work
 *   DT_NO_THREADS       off       start no threads and use no thread library: the caller computes
 *   DT_LIGHT            off       all options from the next row to DT_NO_CTC (434 KB, 9 s). What
 *                                 remains: graphs, CPU, Vulkan, data parallelism, TCP,
 *                                 dt_trainer_fit, safetensors and checkpoints
 *   DT_NO_EXPORT        off       dt_onnx_save, dt_c_save (48 KB, 2 s)
 *   DT_NO_SERVER        off       parameter servers and their workers (46 KB, 3 s)
 *   DT_NO_MODEL_PARALLEL off      .parallel.pipeline, .tensor and .tensor_slices (64 KB, 1 s)
 *   DT_NO_ZERO          off       .parallel.zero_stage (19 KB, 0 s)
 *   DT_NO_LOCAL         off       DT_TRAIN_LOCAL: local steps, gossip, compression (16 KB, 0 s)
 *   DT_NO_LAUNCHERS     off       launchers other than dtrun (15 KB, 0 s); tcpstore://, pmi:, pmix:
 *   DT_NO_READERS       off       files of samples (37 KB, 0 s): IDX, NumPy, WAV, CSV, pictures,
 *                                 tokens, replays
 *   DT_NO_LOG           off       dt_run_log, dt_profile, dt_png_save (14 KB, 0 s)
 *   DT_NO_REPORTS       off       dt_metric, dt_lr_find, dt_summary, dt_progress_show (13 KB, 0 s)
 *   DT_NO_AUGMENT       off       dt_dataset.augment (12 KB, 0 s)
 *   DT_NO_OPTIMIZERS    off       optimizers other than SGD, Adam and AdamW (47 KB, 2 s)
 *   DT_NO_COMPOSED      off       ops made of others (48 KB, 1 s): dt_where, dt_gather, dt_einsum
 *                                 and others of api/compose.h, the losses of api/loss.h
 *   DT_NO_RECURRENT     off       LSTM, GRU and RNN (40 KB, 1 s)
 *   DT_NO_CTC           off       dt_ctc_loss (13 KB, 0 s)
 *   DT_WITH_OPENSSL     off       add DT_COMM_MAC and DT_COMM_TLS; link with -lssl -lcrypto
 *   DT_WITH_ZLIB        off       read arrays of np.savez_compressed; link with -lz
 *   DT_WITH_PNG         off       read pictures in PNG files; link with -lpng
 *   DT_WITH_JPEG        off       read pictures in JPEG files; link with -ljpeg
 *   DT_WITH_MPI         off       add DT_COMM_MPI; compile the implementation with mpicc
 *   DT_DEBUG            off       add internal asserts, which abort: never ship this
 *
 * What DT_LIGHT and DT_NO_ leave out is still declared, but UNSUPPORTED: the error names the macro.
 * In parentheses: what a row saves of the default: 1616 KB, 34 s. On the CPU in one process
 * DT_LIGHT with DT_NO_VULKAN with DT_NO_COMM saves (727 KB, 14 s).
 * Measured on x86-64 by tools/check/options: gcc 12 -O2, text and data, user time within 2 s.
 */
#ifdef DT_STATIC
#define DT_API static
#else
#define DT_API extern
#endif

/* Dimensions of a tensor, without the sample axis. */
#define DT_MAX_DIMS 5
/* Losses, and metrics, of one program. */
#define DT_MAX_TERMS 8
/* Outputs, and gradients for the host, of one program. */
#define DT_MAX_OUTPUTS 8
/* dt_optim_desc.groups, plus 1 for group 0, the other parameters. */
#define DT_MAX_GROUPS 8
/* A schedule's phases, and a phase's milestones. */
#define DT_MAX_PHASES 4
#define DT_MAX_MILESTONES 8
/* A dataset's columns. */
#define DT_MAX_COLUMNS 8
/* The value 0, for a member whose default (0) is another value: a rate, decay, beta, eps,
 * coefficient, scale or class number. Exact in int, float and double. */
#define DT_ZERO (-2147483647 - 1)

/* The version of this header. */
#define DT_VERSION "0.2.0"
