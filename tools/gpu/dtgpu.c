/* The measuring half of ./build.sh gpu, which calls it once for each section. So a driver that
 * crashes ends one section and no more:
 *
 *     dtgpu list                           usable Vulkan devices, best first; without hardware also
 *                                          what may be missing, on standard error
 *     dtgpu SECTION DEVICE FOLDER SECONDS  measures, and writes FOLDER/parts/N-SECTION.tsv
 *     dtgpu report FOLDER                  FOLDER/report.md, .json, .html of all sections there
 *     dtgpu begin SECTION FOLDER           one that another program measures: tests, torch
 *
 * before each: --loader FILE, the Vulkan loader to open. It reaches into dtrain's internals: it
 * launches kernels by themselves and records timestamps. */
#define _GNU_SOURCE
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifdef DT_NO_VULKAN
#error "./build.sh gpu measures Vulkan devices: compile without DT_NO_VULKAN"
#endif

/* In the report's order. */
static const struct section {
    const char *name, *part, *heading, *text;
} sections[] = {
    {"device", "1-device", "The device", "What the driver says of it."},
    {"peaks", "2-peaks", "What it can do at most",
     "Measured by two kernels that do nothing else: fused multiply-adds in registers (an FMA is "
     "two "
     "operations), and a copy from one buffer to another. What follows is compared with these."},
    {"latency", "3-latency", "What a launch and a copy cost",
     "The host's time from the call to the end of the wait: what a training step pays whatever it "
     "computes."},
    {"checks", "4-checks", "Whether the kernels compute right",
     "Small products of every layout and ragged sizes, of whole numbers, whose sums are exact in "
     "any "
     "order, and of floats; NaN lies around all operands. A fast variant must give the bits of the "
     "portable one, which must give the CPU's. dtrain makes the same check before it uses one, and "
     "then times it."},
    {"tests", "5-tests", "dtrain's own tests of this backend",
     "Each op and its gradient beside a reference, memory, barriers, faults."},
    {"kernels", "6-kernels", "Kernels",
     "By the device's clock, each launch by itself; the best of some runs. Layout: N is an operand "
     "as it is written, T one that is transposed. A GPU is given the fastest variant that is "
     "right."},
    {"steps", "7-steps", "Training steps",
     "Two perceptrons, PyTorch's MNIST network, ResNet-20, a transformer of 6 layers, an LSTM "
     "unrolled and two layers of it by rows. Wall: for the host; busy: from the first to the last "
     "command on the device; idle: the rest, in which the device waits for the host; each in runs "
     "of its own. Kernels: gemm "
     "is a matrix product; conv a convolution, conv_dx and conv_dw its gradients (of the input, of "
     "the weight); reduce sums; map one operation an element; xent the loss; grad_norm, "
     "clip_finish "
     "and optim the update of the weights, in blocks of 256."},
    {"loss", "8-loss", "Whether training goes as on the CPU",
     "The same steps on both. Rounding differs, so the numbers do a little; what learns "
     "differently "
     "shows within these steps."},
    {"torch", "9-torch", "PyTorch on the same device",
     "The same networks, batches and optimizer in PyTorch: eager, compiled, and as a CUDA graph."},
};

#include "tools/check/launches.h"

#include "tools/gpu/dtgpu_log.h"
#include "tools/gpu/dtgpu_clock.h"
#include "tools/gpu/dtgpu_peak.h"
#include "tools/gpu/dtgpu_basics.h"
#include "tools/gpu/dtgpu_kernels.h"
#include "tools/gpu/dtgpu_steps.h"
#include "tools/gpu/dtgpu_summary.h"
#include "tools/gpu/dtgpu_report.h"
#include "tools/gpu/dtgpu_missing.h"

static const struct section *section_of(const char *name) {
    for (size_t i = 0; i < DTI_COUNT(sections); i++)
        if (!strcmp(sections[i].name, name))
            return &sections[i];
    fail(name, "no such section");
}

static void section_begin(const char *name, const char *folder, double seconds) {
    const struct section *s = section_of(name);
    char path[600];
    snprintf(path, sizeof path, "%s/parts", folder);
    mkdir(folder, 0777);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/parts/%s.tsv", folder, s->part);
    out.file = fopen(path, "w");
    if (!out.file)
        fail(path, "cannot be written");
    out.begin_ms = now_ms();
    out.limit_ms = 1e3 * seconds;
    say("section\t%s\t%s\t%s", s->name, s->heading, s->text);
}

static void measure(const char *name, const char *id, const char *folder, double seconds) {
    section_begin(name, folder, seconds);
    alarm((unsigned)(3 * seconds) + 120); /* a driver that hangs: the lines written so far stay */
    if (!strcmp(name, "device"))
        section_device(id);
    else if (!strcmp(name, "peaks"))
        section_peaks(id);
    else if (!strcmp(name, "latency"))
        section_latency(id);
    else if (!strcmp(name, "checks"))
        section_checks(id);
    else if (!strcmp(name, "kernels"))
        section_kernels(id, folder);
    else if (!strcmp(name, "steps"))
        section_steps(id);
    else if (!strcmp(name, "loss"))
        section_loss(id);
    else
        fail(name, "is measured by another program");
    say("end\t%.1f", (now_ms() - out.begin_ms) * 1e-3);
}

/* ---- list: the best first, as dt_store_create chooses; without any, what is missing. */

static void print_message(void *user, dt_log_level level, const char *message) {
    (void)user, (void)level;
    fprintf(stderr, "dtgpu: %s\n", message);
}

static int list(void) {
    static const dt_device_kind order[] = {DT_DEVICE_DISCRETE, DT_DEVICE_INTEGRATED,
                                           DT_DEVICE_VIRTUAL, DT_DEVICE_SOFTWARE};
    dt_ctx *ctx;
    const dt_ctx_desc desc = {.logger = {print_message, NULL}, .vulkan_loader = loader_file};
    int found = 0, hardware = 0;
    if (dt_ctx_create(&desc, &ctx))
        return 1;
    for (size_t k = 0; k < DTI_COUNT(order); k++)
        for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
            const dt_device_info *d = dt_ctx_device(ctx, i);
            if (d->usable && d->kind == order[k] && strcmp(d->id, "cpu")) {
                printf("%s %s %s\n", d->id,
                       order[k] == DT_DEVICE_SOFTWARE ? "software" : "hardware", d->name);
                found++;
                hardware += order[k] != DT_DEVICE_SOFTWARE;
            }
        }
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *d = dt_ctx_device(ctx, i);
        if (!d->usable)
            fprintf(stderr, "dtgpu: %s (%s) cannot be used: %s\n", d->id, d->name, d->driver);
    }
    if (!hardware)
        missing_say(found);
    dt_ctx_destroy(ctx);
    return found ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "--loader")) {
        loader_file = argv[2];
        argv += 2;
        argc -= 2;
    }
    if (argc == 2 && !strcmp(argv[1], "list"))
        return list();
    if (argc == 3 && !strcmp(argv[1], "report"))
        report(argv[2]);
    else if (argc == 4 && !strcmp(argv[1], "begin"))
        section_begin(argv[2], argv[3], 0);
    else if (argc == 5)
        measure(argv[1], argv[2], argv[3], atof(argv[4]));
    else
        fail("usage", "see the head of tools/gpu/dtgpu.c; ./build.sh gpu is what you want");
    return 0;
}
