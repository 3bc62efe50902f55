/* ./build.sh devices: every device that dtrain finds on this machine, what each can do, and whether
 * it is usable or why not. Refuses nothing: without a Vulkan loader the list is the CPU, and the
 * log below it says what is missing. The exit status is 0 when at least one device is usable.
 * `dtinfo plan` shows what devices do in a training step (dtinfo_plan.h). */
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtinfo_plan.h"

#define LABEL_COLUMNS 16

static const char help[] = "usage: dtinfo [--validation] [--loader FILE] [DEVICE]\n"
                           "       dtinfo plan [OPTION VALUE]...   a training step's plan; --help\n"
                           "  DEVICE        only devices whose id or name contains it\n"
                           "  --validation  load the Khronos validation layer\n"
                           "  --loader FILE the Vulkan loader to open, instead of the system's\n";

static void print_log(void *user, dt_log_level level, const char *message) {
    static const char *const names[] = {"error", "warning", "note"};
    FILE *out = user;
    fprintf(out, "%s: %s\n", names[level], message);
}

static const char *kind_text(dt_device_kind kind) {
    switch (kind) {
    case DT_DEVICE_CPU: return "native CPU";
    case DT_DEVICE_DISCRETE: return "discrete GPU";
    case DT_DEVICE_INTEGRATED: return "integrated GPU";
    case DT_DEVICE_VIRTUAL: return "virtual GPU";
    case DT_DEVICE_SOFTWARE: return "software (Vulkan on the CPU)";
    }
    return "unknown";
}

/* "12.5 GiB"; 0 counts as unknown. */
static const char *bytes_text(uint64_t bytes, char text[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double size = (double)bytes;
    int unit = 0;
    for (; size >= 1024 && unit < 4; unit++)
        size /= 1024;
    if (!bytes)
        return "not reported";
    snprintf(text, 32, size < 10 && unit ? "%.1f %s" : "%.0f %s", size, units[unit]);
    return text;
}

static void label(const char *name) {
    printf("  %-*s", LABEL_COLUMNS, name);
}

/* The switches that are on, and those that are off, each in one row. */
static void print_capabilities(const dt_device_info *d) {
    const struct {
        const char *name;
        bool has;
    } rows[] = {{"float16", d->has_float16},
                {"storage16", d->has_storage16},
                {"cooperative-matrix", d->has_cooperative_matrix},
                {"timeline-semaphores", d->has_timeline},
                {"memory-budget", d->has_memory_budget},
                {"float-controls", d->has_float_controls}};
    for (int has = 1; has >= 0; has--) {
        int count = 0;
        label(has ? "has" : "has not");
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            if (rows[i].has == (has == 1))
                printf("%s%s", count++ ? ", " : "", rows[i].name);
        printf("%s\n", count ? "" : "-");
    }
}

static void print_vulkan(const dt_device_info *d) {
    char text[32];
    label("Vulkan");
    printf("%u.%u.%u\n", d->api_major, d->api_minor, d->api_patch);
    label("ids");
    printf("vendor 0x%04x, device 0x%04x\n", d->vendor_id, d->device_id);
    label("memory");
    printf("%s", bytes_text(d->memory_bytes, text));
    printf(", %s free\n", bytes_text(d->memory_budget_bytes, text));
    label("largest tensor");
    printf("%s, offsets aligned to %u\n", bytes_text(d->storage_range_bytes, text),
           d->offset_alignment);
    label("workgroup");
    printf("%u invocations, %s shared, subgroups of %u\n", d->workgroup_invocations,
           bytes_text(d->shared_bytes, text), d->subgroup_size);
    label("bindings");
    printf("%u storage buffers, %u bytes of push constants\n", d->storage_buffers,
           d->push_constant_bytes);
    print_capabilities(d);
}

static void print_device(const dt_device_info *d) {
    printf("%s  %s\n", d->id, d->name);
    label("kind");
    printf("%s\n", kind_text(d->kind));
    label("driver");
    printf("%s\n", d->driver);
    label("usable");
    printf("%s\n", d->usable ? "yes" : "no (the reason ends the driver's line)");
    if (d->kind != DT_DEVICE_CPU)
        print_vulkan(d);
    printf("\n");
}

/* One line a device: what to give to --device. */
static int print_table(dt_ctx *ctx) {
    int usable = 0;
    printf("%-10s %-7s %-28s %s\n", "id", "usable", "kind", "name");
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *d = dt_ctx_device(ctx, i);
        printf("%-10s %-7s %-28s %s\n", d->id, d->usable ? "yes" : "no", kind_text(d->kind),
               d->name);
        usable += d->usable;
    }
    printf("\n");
    return usable;
}

int main(int argc, char **argv) {
    dt_ctx_desc desc = {.logger = {print_log, stderr}, .threads = DT_THREADS_ALL};
    const char *only = "";
    if (argc > 1 && !strcmp(argv[1], "plan"))
        return chart_main(argc - 2, argv + 2, stdout, stderr);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--validation")) {
            desc.validation = true;
        } else if (!strcmp(argv[i], "--loader") && i + 1 < argc) {
            desc.vulkan_loader = argv[++i];
        } else if (argv[i][0] == '-') {
            bool asked = !strcmp(argv[i], "-h") || !strcmp(argv[i], "--help");
            fputs(help, asked ? stdout : stderr);
            return asked ? 0 : 2;
        } else {
            only = argv[i];
        }
    }
    dt_ctx *ctx;
    dt_result result = dt_ctx_create(&desc, &ctx);
    if (result) {
        fprintf(stderr, "dtinfo: %s\n", dt_result_text(result));
        return 1;
    }
    printf("dtrain %s\n\n", DT_VERSION);
    int usable = print_table(ctx);
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *d = dt_ctx_device(ctx, i);
        if (strstr(d->id, only) || strstr(d->name, only))
            print_device(d);
    }
    dt_ctx_destroy(ctx);
    return usable ? 0 : 1;
}
