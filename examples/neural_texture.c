/* Teaches to live in a renderer. A network learns a picture on the application's own VkDevice. Each
 * frame draws what it has learnt so far, out of the buffer that the network writes. Nothing is
 * copied: inputs, targets and output lie in buffers of the application. One timeline semaphore
 * orders a step of training and the drawing of a frame. Frames 0, 30 and 300 go to files.
 *     cc -O2 neural_texture.c -lm -ldl -lpthread; ./neural_texture [folder] */
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include "vulkan_frame.h"

#include <math.h>

enum { SIZE = 64, TEXELS = SIZE * SIZE, WAVES = 4, FEATURES = 2 + 4 * WAVES, FRAMES = 300 };

static dt_ctx *ctx;

static void check(dt_result result) {
    if (result == DT_OK)
        return;
    fprintf(stderr, "neural_texture: %s\n", ctx ? dt_ctx_error(ctx) : dt_result_text(result));
    exit(1);
}

/* The picture: rings in one colour, stripes in another, and a disc on top. */
static void paint(float *rgb) {
    for (int i = 0; i < TEXELS; i++, rgb += 3) {
        const float x = (float)(i % SIZE) / SIZE - 0.5f, y = (float)(i / SIZE) / SIZE - 0.5f;
        const float r = sqrtf(x * x + y * y);
        rgb[0] = 0.5f + 0.45f * sinf(30 * r);
        rgb[1] = 0.5f + 0.45f * sinf(12 * (x + y));
        rgb[2] = x * x + (y - 0.2f) * (y - 0.2f) < 0.03f ? 0.9f : 0.2f;
    }
}

/* What the network sees of a texel: where it lies, and waves over that, so that it learns edges. */
static void locate(float *features) {
    for (int i = 0; i < TEXELS; i++) {
        const float at[2] = {2 * (float)(i % SIZE) / SIZE - 1, 2 * (float)(i / SIZE) / SIZE - 1};
        for (int axis = 0; axis < 2; axis++) {
            *features++ = at[axis];
            for (int k = 0; k < WAVES; k++) {
                *features++ = sinf((float)(2 << k) * at[axis]);
                *features++ = cosf((float)(2 << k) * at[axis]);
            }
        }
    }
}

int main(int argc, char **argv) {
    static frame f;
    frame_open(&f);

    /* The buffers: where texels lie, the picture, and what the network makes of it. */
    const uint64_t bytes[3] = {4ull * FEATURES * TEXELS, 4ull * 3 * TEXELS, 4ull * 3 * TEXELS};
    VkBuffer buffers[3];
    VkDeviceMemory memory[3];
    void *mapped[3];
    for (int i = 0; i < 3; i++)
        buffers[i] =
            frame_buffer(&f, bytes[i], VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, &memory[i], &mapped[i]);
    locate(mapped[0]);
    paint(mapped[1]);
    frame_use(&f, buffers[2], SIZE);

    /* One thread submits to the queue, so there is no lock. */
    const dt_vulkan_desc vulkan = {.get_instance_proc_addr = (void (*)(void))f.get,
                                   .instance = f.instance,
                                   .physical_device = f.physical,
                                   .device = f.device,
                                   .queue = f.queue,
                                   .queue_family = f.family,
                                   .timeline_semaphore = true};
    check(dt_ctx_create(&(dt_ctx_desc){.vulkan = &vulkan}, &ctx));

    dt_graph *graph;
    check(dt_graph_create(ctx, &graph));
    dt_tensor x = dt_input(graph, "texel", DT_F32, dt_dims(FEATURES));
    dt_tensor t = dt_input(graph, "colour", DT_F32, dt_dims(3));
    dt_tensor h = dt_relu(dt_nn_linear(x, "fc1", 32));
    dt_tensor y = dt_sigmoid(dt_nn_linear(dt_relu(dt_nn_linear(h, "fc2", 32)), "fc3", 3));

    dt_store *store;
    dt_program *train;
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 3e-3};
    check(dt_store_create(graph, &(dt_store_desc){.device = "vulkan", .seed = 1}, &store));
    const dt_program_desc desc = {.loss = dt_mse(y, t),
                                  .outputs = {y},
                                  .batch = TEXELS,
                                  .external = {{x, {(uint64_t)buffers[0], 0, bytes[0]}},
                                               {t, {(uint64_t)buffers[1], 0, bytes[1]}},
                                               {y, {(uint64_t)buffers[2], 0, bytes[2]}}},
                                  .optim = &adam};
    check(dt_program_create(store, &desc, &train));
    printf("on %s\n", dt_store_device(store)->name);

    for (uint64_t n = 0; n <= FRAMES; n++) { /* timeline: 2n drawn so far, 2n + 1 computed */
        const uint64_t semaphore = (uint64_t)f.timeline;
        const dt_step_desc step = {.wait = {semaphore, 2 * n}, .signal = {semaphore, 2 * n + 1}};
        dt_report report;
        check(dt_program_run(train, &step, &report)); /* writes y, then updates the weights */
        frame_draw(&f, 2 * n + 1, 2 * n + 2);
        frame_wait(&f, 2 * n + 2);
        if (n == 0 || n == 30 || n == 300) {
            char path[512];
            snprintf(path, sizeof path, "%s/frame_%03d.png", argc > 1 ? argv[1] : ".", (int)n);
            frame_save(&f, path);
            printf("frame %3d: loss %.5f, %s\n", (int)n, report.loss, path);
        }
    }

    dt_ctx_destroy(ctx); /* before the device on which it computes */
    for (int i = 0; i < 3; i++)
        frame_buffer_end(&f, buffers[i], memory[i]);
    frame_close(&f);
    return 0;
}
