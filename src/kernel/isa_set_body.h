/* All bodies of one instruction set, DTI_ISA of DTI_LANES. */

#include "simd_body.h"
#if DTI_X86 && DTI_LANES == 4
DTI_OPTIMIZE_SIZE /* for CPUs from before 2013 */
#endif
#include "half_arrays_body.h"
#include "gemm_body.h"
#include "conv_body.h"
#include "vmath_body.h"
#include "vec_body.h"
#include "attention_body.h"
#include "recurrence_body.h"
#include "ctc_body.h"
#include "quantile_body.h"
#include "norm_body.h"
#include "pool_body.h"
#include "map8_body.h"
#if DTI_X86 && DTI_LANES == 4
DTI_OPTIMIZE_SIZE_END
#endif
