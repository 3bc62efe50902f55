/* What a program can leave out (src/api/config.h), by a macro for each feature, or by DT_LIGHT. The
 * source stays whole: DTI_HAS_SERVER is a constant, and the compiler drops dead code and static
 * functions without callers.
 *
 * In dtrain.c DTI_OPTIONAL says to which feature the files after it belong. Without the feature
 * every DTI_PUBLIC in them returns UNSUPPORTED. A public function without DTI_PUBLIC checks
 * DTI_HERE. */

#include "features.h"

/* Names that a user may write by mistake. No compiler reports a macro that is never used. */
#if defined DT_NO_EXPORTS || defined DT_NO_ONNX || defined DT_NO_C || defined DT_NO_SERVERS ||     \
    defined DT_NO_WORKERS || defined DT_NO_PARALLEL || defined DT_NO_PIPELINE ||                   \
    defined DT_NO_TENSOR_PARALLEL || defined DT_NO_GOSSIP || defined DT_NO_LOCAL_STEPS ||          \
    defined DT_NO_LAUNCHER || defined DT_NO_SLURM || defined DT_NO_PMI || defined DT_NO_PMIX ||    \
    defined DT_NO_READER || defined DT_NO_CSV || defined DT_NO_LOGS ||                             \
    defined DT_NO_TENSORBOARD || defined DT_NO_PROFILE || defined DT_NO_REPORT ||                  \
    defined DT_NO_METRICS || defined DT_NO_AUGMENTATION || defined DT_NO_RNN ||                    \
    defined DT_NO_LSTM || defined DT_NO_OPTIM || defined DT_NO_COMPOSE || defined DT_NO_LOSSES ||  \
    defined DT_NO_EINSUM || defined DT_NO_OPTIMIZER || defined DT_NO_OPTIMISERS ||                 \
    defined DT_NO_VULCAN || defined DT_NO_LOSS || defined DT_NO_RECURRENCE || defined DT_NO_GPU || \
    defined DT_NO_VK || defined DT_NO_TCP || defined DT_NO_MPI || defined DT_NO_NETWORK ||         \
    defined DT_NO_THREAD || defined DT_NO_AVX || defined DT_NO_AVX2 || defined DT_NO_SIMD ||       \
    defined DT_LITE || defined DT_NO_PNG || defined DT_NO_JPEG || defined DT_NO_PICTURES ||        \
    defined DT_NO_ZERO_STAGE || defined DT_NO_FSDP || defined DT_NO_ADAM ||                        \
    defined DT_NO_PIPELINES || defined DT_NO_TENSOR || defined DT_IMPLEMENTATION_CORE
#define DTI_MISSPELT
#endif
/* clang-format off */
#ifdef DTI_MISSPELT
#error "dtrain.h: no such option. There are DT_LIGHT, DT_NO_AUGMENT, DT_NO_AVX512, DT_NO_COMM, \
DT_NO_COMPOSED, DT_NO_CTC, DT_NO_EXPORT, DT_NO_LAUNCHERS, DT_NO_LOCAL, DT_NO_LOG, \
DT_NO_MODEL_PARALLEL, DT_NO_OPTIMIZERS, DT_NO_READERS, DT_NO_RECURRENT, DT_NO_REPORTS, \
DT_NO_SERVER, DT_NO_THREADS, DT_NO_VULKAN, DT_NO_ZERO"
#endif
#if !DTI_HAS_READERS && (defined DT_WITH_ZLIB || defined DT_WITH_PNG || defined DT_WITH_JPEG)
#error "dtrain.h: DT_NO_READERS, or DT_LIGHT, leaves out what DT_WITH_ZLIB, _PNG and _JPEG are for"
#endif
/* clang-format on */

/* The first three optimizers (SGD, Adam and AdamW) always exist. */
#define DTI_HAS_OPTIM(kind) (DTI_HAS_OPTIMIZERS || (kind) <= DT_OPTIM_ADAMW)

/* Why something is refused: DTI_OFF(SERVER). A test looks at how often that is asked. */
#ifndef DTI_OFF_ASKED
#define DTI_OFF_ASKED(why) why
#endif
#ifdef DT_LIGHT
#define DTI_OFF(feature) DTI_OFF_ASKED("dtrain was compiled with DT_LIGHT (DT_NO_" #feature ")")
#else
#define DTI_OFF(feature) DTI_OFF_ASKED("dtrain was compiled with DT_NO_" #feature)
#endif

/* A list of one, so that the host's macros of a feature's name are not expanded. */
#define DTI_OPTIONAL(X) X(ALWAYS)
#define DTI_HAS_ALWAYS 1
#define DTI_HAS(feature) DTI_HAS_##feature
#define DTI_HERE DTI_OPTIONAL(DTI_HAS)
#define DTI_HERE_OFF DTI_OPTIONAL(DTI_OFF)
