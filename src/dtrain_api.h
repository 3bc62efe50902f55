/* The public part of dtrain.h, in reading order. A file of the project that is compiled apart from
 * the generated header includes this one; ./build.sh header expands it. */
#ifndef DTRAIN_H
#define DTRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "api/essay.h"
#include "api/config.h"
#include "api/base.h"
#include "api/vulkan.h"
#include "api/ctx.h"
#include "api/tensor.h"
#include "api/image.h"
#include "api/norm.h"
#include "api/schedule.h"
#include "api/attention.h"
#include "api/compose.h"
#include "api/program.h"
#include "api/nn.h"
#include "api/recurrent.h"
#include "api/loss.h"
#include "api/data.h"
#include "api/augment.h"
#include "api/file.h"
#include "api/comm.h"
#include "api/train.h"
#include "api/pictures.h"
#include "api/tokens.h"
#include "api/replay.h"
#include "api/server.h"
#include "api/fit.h"
#include "api/log.h"
#include "api/profile.h"
#include "api/metric.h"
#include "api/export.h"

#ifdef __cplusplus
}
#endif

/* amalgamate: C++ overloads */

#endif /* DTRAIN_H */
