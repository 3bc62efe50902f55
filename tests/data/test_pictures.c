/* Pictures: PNG and JPEG files against their formula and against Pillow's bytes
 * (tools/golden/record_golden_pictures.py). Also folders of classes, and training from them. */
#include "temp.h"
#include "train/train_model.h"

#define PICTURES "tests/fuzz/corpus/picture/"
enum { PICTURE_W = 9, PICTURE_H = 7, PICTURE_ALL = PICTURE_W * PICTURE_H };

static dt_ctx *picture_ctx(void) {
    dt_ctx *ctx = NULL;
    CHECK(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    return ctx;
}

static uint64_t picture_held(const dt_ctx *ctx) {
    dt_ctx_info info;
    dt_ctx_get_info(ctx, &info);
    return info.host_bytes;
}

#if defined DT_WITH_PNG && defined DT_WITH_JPEG

static dt_result picture_load(dt_ctx *ctx, const char *name, dt_image_desc desc, dt_array *out) {
    char path[100];
    snprintf(path, sizeof path, PICTURES "%s", name);
    return dt_image_load(ctx, path, &desc, out);
}

static int picture_value(int x, int y, int c) {
    return (36 * x + 11 * y + 50 * c) % 256;
}

/* Of a value the highest bits, spread over eight again. */
static int picture_spread(int value, int bits) {
    return (value >> (8 - bits)) * 255 / ((1 << bits) - 1);
}

static uint64_t picture_hash(const dt_array *a) {
    uint64_t h = 14695981039346656037u;
    const uint8_t *data = a->data;
    const size_t count = a->bytes / (size_t)a->dim[0], channels = (size_t)a->dim[0];
    for (size_t i = 0; i < a->bytes; i++) /* pixel after pixel */
        h = (h ^ data[i % channels * count + i / channels]) * 1099511628211u;
    return h;
}

TEST(png_files_of_all_kinds_have_the_pixels_that_were_written) {
    static const struct {
        const char *name;
        int channels, bits;
    } files[] = {{"grey1.png", 1, 1}, {"grey2.png", 1, 2},  {"grey4.png", 1, 4},
                 {"grey8.png", 1, 8}, {"grey16.png", 1, 8}, {"alpha8.png", 2, 8},
                 {"rgb8.png", 3, 8},  {"rgb16.png", 3, 8},  {"rgba8.png", 4, 8}};
    dt_ctx *ctx = picture_ctx();
    REQUIRE(ctx);
    const uint64_t held = picture_held(ctx);
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        dt_array a, f;
        const int c = files[k].channels;
        if (!CHECK_TEXT(picture_load(ctx, files[k].name, (dt_image_desc){.dtype = DT_U8}, &a) ==
                            DT_OK,
                        "%s: %s", files[k].name, dt_ctx_error(ctx)))
            continue;
        CHECK(picture_load(ctx, files[k].name, (dt_image_desc){0}, &f) == DT_OK);
        CHECK(a.rank == 3 && a.dim[0] == c && a.dim[1] == PICTURE_H && a.dim[2] == PICTURE_W);
        CHECK(a.dtype == DT_U8 && a.bytes == (size_t)(c * PICTURE_ALL) && a.element_bytes == 1);
        CHECK(f.dtype == DT_F32 && f.bytes == 4 * a.bytes && f.dim[0] == c);
        for (int i = 0; i < c * PICTURE_ALL; i++) {
            const int want = picture_spread(
                picture_value(i % PICTURE_W, i % PICTURE_ALL / PICTURE_W, i / PICTURE_ALL),
                files[k].bits);
            CHECK_TEXT(((uint8_t *)a.data)[i] == want, "%s: pixel %d is %d, not %d", files[k].name,
                       i, ((uint8_t *)a.data)[i], want);
            CHECK(((float *)f.data)[i] == (float)want / 255.0f);
        }
        dt_array_destroy(&a);
        dt_array_destroy(&f);
    }
    CHECK(picture_held(ctx) == held);
    dt_ctx_destroy(ctx);
}

TEST(png_palettes_become_colours_and_channels_are_as_asked) {
    dt_ctx *ctx = picture_ctx();
    dt_array a;
    REQUIRE(ctx);
    for (int clear = 0; clear < 2; clear++)
        for (int c = 3; c < 5; c++) {
            const dt_image_desc desc = {.channels = c, .dtype = DT_U8};
            const char *name = clear ? "palette-clear.png" : "palette.png";
            if (!CHECK_TEXT(picture_load(ctx, name, desc, &a) == DT_OK, "%s", dt_ctx_error(ctx)))
                continue;
            for (int i = 0; i < c * PICTURE_ALL; i++) {
                const int place = i % PICTURE_ALL % 64, alpha = clear ? place : 255;
                const int want =
                    i / PICTURE_ALL == 3 ? alpha : picture_value(place, 0, i / PICTURE_ALL);
                CHECK(((uint8_t *)a.data)[i] == want);
            }
            dt_array_destroy(&a);
        }
    for (int c = 1; c < 5; c++) { /* of RGBA */
        const dt_image_desc desc = {.channels = c, .dtype = DT_U8};
        REQUIRE(picture_load(ctx, "rgba8.png", desc, &a) == DT_OK && a.dim[0] == c);
        for (int i = 0; i < PICTURE_ALL; i++) {
            const int x = i % PICTURE_W, y = i / PICTURE_W;
            const int grey = (19595 * picture_value(x, y, 0) + 38470 * picture_value(x, y, 1) +
                              7471 * picture_value(x, y, 2) + 32768) >>
                             16;
            CHECK(((uint8_t *)a.data)[i] == (c < 3 ? grey : picture_value(x, y, 0)));
            CHECK(c % 2 ||
                  ((uint8_t *)a.data)[(c - 1) * PICTURE_ALL + i] == picture_value(x, y, 3));
        }
        dt_array_destroy(&a);
    }
    CHECK(picture_load(ctx, "rgb8.png", (dt_image_desc){.channels = 1, .dtype = DT_U8}, &a) ==
          DT_OK);
    CHECK(picture_hash(&a) == 0x5c346629f84fb538u); /* Pillow's convert('L') */
    dt_array_destroy(&a);
    CHECK(picture_load(ctx, "grey8.png", (dt_image_desc){.channels = 4, .dtype = DT_U8}, &a) ==
          DT_OK);
    for (int i = 0; i < 4 * PICTURE_ALL && a.data; i++)
        CHECK(((uint8_t *)a.data)[i] ==
              (i / PICTURE_ALL == 3
                   ? 255
                   : picture_value(i % PICTURE_W, i % PICTURE_ALL / PICTURE_W, 0)));
    dt_array_destroy(&a);
    dt_ctx_destroy(ctx);
}

TEST(jpeg_files_are_close_to_the_original_pixels) {
    static const struct {
        const char *name;
        int channels;
        double most;
    } files[] = {{"rgb444.jpg", 3, 4}, {"progressive.jpg", 3, 4}, {"rgb420.jpg", 3, 12}};
    dt_ctx *ctx = picture_ctx();
    dt_array a;
    REQUIRE(ctx);
    const uint64_t held = picture_held(ctx);
    for (size_t k = 0; k < 3; k++) {
        if (!CHECK_TEXT(picture_load(ctx, files[k].name, (dt_image_desc){.dtype = DT_U8}, &a) ==
                            DT_OK,
                        "%s: %s", files[k].name, dt_ctx_error(ctx)))
            continue;
        CHECK(a.dim[0] == 3 && a.dim[1] == 12 && a.dim[2] == 16);
        for (int i = 0; i < 192; i++) {
            const int x = i % 16, y = i / 16,
                      want[3] = {10 * x + 20, 12 * y + 30, 5 * (x + y) + 40};
            for (int c = 0; c < 3; c++)
                CHECK_NEAR(((uint8_t *)a.data)[c * 192 + i], want[c], files[k].most);
        }
        dt_array_destroy(&a);
    }
    CHECK(picture_load(ctx, "grey.jpg", (dt_image_desc){.channels = 3}, &a) == DT_OK);
    CHECK(a.dim[0] == 3 && a.data && !memcmp(a.data, (float *)a.data + 192, 768));
    dt_array_destroy(&a);
    CHECK(picture_held(ctx) == held);
    dt_ctx_destroy(ctx);
}

TEST(pictures_are_resized_to_the_bytes_that_pillow_gives) {
    static const struct {
        int width, height;
        uint64_t hash;
    } sizes[] = {{4, 3, 0x9ca0be0b16a5d6a8u},
                 {20, 11, 0x9a4c801d84807cb0u},
                 {5, 20, 0xd9646787d392c350u},
                 {1, 1, 0xce7d2d19879747afu},
                 {9, 3, 0x0e7e4a34539d045cu}};
    dt_ctx *ctx = picture_ctx();
    dt_array a;
    REQUIRE(ctx);
    for (int i = 0; i < 5; i++) {
        const dt_image_desc desc = {sizes[i].width, sizes[i].height, 3, DT_U8};
        REQUIRE(picture_load(ctx, "rgb8.png", desc, &a) == DT_OK);
        CHECK_TEXT(picture_hash(&a) == sizes[i].hash, "%d x %d: %016llx", sizes[i].width,
                   sizes[i].height, (unsigned long long)picture_hash(&a));
        dt_array_destroy(&a);
    }
    dt_ctx_destroy(ctx);
}

TEST(pictures_that_are_damaged_are_refused_with_file_and_reason) {
    static const struct {
        const char *name, *what;
        dt_result result;
    } files[] = {{"cut.png", "truncated: it ends too early", DT_ERROR_FORMAT},
                 {"flipped.png", "damaged", DT_ERROR_FORMAT},
                 {"wide.png", "which do not fit into", DT_ERROR_FORMAT},
                 {"header.png", "header is damaged or truncated", DT_ERROR_FORMAT},
                 {"text.png", "neither a PNG nor a JPEG", DT_ERROR_FORMAT},
                 {"cut.jpg", "truncated", DT_ERROR_FORMAT},
                 {"header.jpg", "ends before its frame", DT_ERROR_FORMAT},
                 {"cmyk.jpg", "CMYK", DT_ERROR_UNSUPPORTED},
                 {"none.jpg", "No such file", DT_ERROR_IO}};
    dt_ctx *ctx = picture_ctx();
    dt_array a;
    REQUIRE(ctx);
    const uint64_t held = picture_held(ctx);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        CHECK_TEXT(picture_load(ctx, files[i].name, (dt_image_desc){0}, &a) == files[i].result,
                   "%s", files[i].name);
        CHECK(!a.data);
        CHECK_CONTAINS(dt_ctx_error(ctx), files[i].name);
        CHECK_CONTAINS(dt_ctx_error(ctx), files[i].what);
    }
    CHECK(picture_load(ctx, "rgb8.png", (dt_image_desc){65536, 65536, 0, DT_F32}, &a) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(ctx), "at most 2^28");
    CHECK(picture_held(ctx) == held);
    dt_ctx_destroy(ctx);
}

/* What libjpeg reads is read: bytes between the parts of a header, fillers, and markers without a
 * length. They are put after the first mark, and before the frame's header. */
TEST(jpeg_files_with_bytes_between_their_parts_are_read) {
    static const struct {
        const char *bytes;
        int size;
        bool refused;
    } between[] = {{"\0\1\2\3", 4, false},       {"\xFF\xFF\xFF", 3, false},
                   {"\xFF\0\xFF\0x", 5, false},  {"junk\xFF", 5, false},
                   {"\xFF\1", 2, false},         {"\xFF\xD0\xFF\xD7", 4, false},
                   {"\xFF\xFE\0\4ab", 6, false}, {"\xFF\xD9", 2, true},
                   {"\xFF\xDA", 2, true},        {"\xFF\xFE\xFF\xFF", 4, true}};
    static uint8_t from[4096], to[8192];
    dt_ctx *ctx = picture_ctx();
    dt_array want, a;
    FILE *file = fopen(PICTURES "rgb444.jpg", "rb");
    REQUIRE(ctx && file && picture_load(ctx, "rgb444.jpg", (dt_image_desc){0}, &want) == DT_OK);
    const size_t size = fread(from, 1, sizeof from, file);
    fclose(file);
    for (size_t i = 0; i < 2 * sizeof between / sizeof *between; i++) {
        size_t at = 2, n = (size_t)between[i / 2].size;
        while (i % 2 && (from[at] != 0xFF || from[at + 1] != 0xC0))
            at++;
        const size_t times = i / 2 ? 1 : 200; /* more than a look at once */
        memcpy(to, from, at);
        for (size_t k = 0; k < times; k++)
            memcpy(to + at + k * n, between[i / 2].bytes, n);
        memcpy(to + at + times * n, from + at, size - at);
        const char *path = temp_write("made.jpg", to, size + times * n);
        const dt_result result = dt_image_load(ctx, path, NULL, &a);
        CHECK_TEXT(result == (between[i / 2].refused ? DT_ERROR_FORMAT : DT_OK), "%d: %s", (int)i,
                   dt_ctx_error(ctx));
        CHECK(result || picture_hash(&a) == picture_hash(&want));
        dt_array_destroy(&a);
    }
    dt_array_destroy(&want);
    dt_ctx_destroy(ctx);
}

/* ---- folders */

static char folder_root[300];

/* Copies a kept picture to root/class/name. */
static void folder_put(const char *class, const char *name, const char *from) {
    static uint8_t bytes[4096];
    char path[700];
    snprintf(path, sizeof path, PICTURES "%s", from);
    FILE *file = fopen(path, "rb");
    const size_t size = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    if (file)
        fclose(file);
    snprintf(path, sizeof path, "%s/%s", folder_root, class);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", folder_root, class, name);
    file = fopen(path, "wb");
    if (!CHECK_TEXT(file && size, "%s", path))
        return;
    fwrite(bytes, 1, size, file);
    fclose(file);
}

static void folder_begin(void) {
    snprintf(folder_root, sizeof folder_root, "%s", temp_path("classes"));
    mkdir(folder_root, 0700);
    folder_put("owl", "2.png", "grey8.png");
    folder_put("owl", "10.PNG", "grey16.png");
    folder_put("owl", "notes.txt", "text.png");
    folder_put("cat", "b.jpeg.png", "rgb8.png");
    folder_put("cat", ".hidden.png", "text.png");
    folder_put("yak", "1.png", "rgba8.png");
}

static void folder_end(void) {
    static const char *const classes[] = {"owl", "cat", "yak", "zoo"};
    for (int i = 0; i < 4; i++) {
        char path[800], name[700];
        snprintf(path, sizeof path, "%s/%s", folder_root, classes[i]);
        DIR *list = opendir(path);
        for (struct dirent *e; list && (e = readdir(list));) {
            snprintf(name, sizeof name, "%.400s/%.250s", path, e->d_name);
            remove(name);
        }
        if (list)
            closedir(list);
        rmdir(path);
    }
    rmdir(folder_root);
}

typedef struct folder_fixture {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_folder *folder;
    dt_folder_info info;
    dt_tensor x, t, y, loss;
    dt_dataset data;
    dt_trainer *trainer;
} folder_fixture;

static bool folder_open(folder_fixture *f, dt_folder_desc desc, bool soft) {
    memset(f, 0, sizeof *f);
    f->ctx = picture_ctx();
    if (!f->ctx || !CHECK_TEXT(dt_folder_open(f->ctx, folder_root, &desc, &f->folder) == DT_OK,
                               "%s", dt_ctx_error(f->ctx)))
        return false;
    dt_folder_get_info(f->folder, &f->info);
    dt_graph_create(f->ctx, &f->graph);
    f->x =
        dt_input(f->graph, "x", DT_F32, dt_dims(f->info.channels, f->info.height, f->info.width));
    f->t = soft ? dt_input(f->graph, "t", DT_F32, dt_dims(f->info.classes))
                : dt_input(f->graph, "t", DT_I32, dt_dims());
    f->y = dt_nn_linear(dt_flatten(f->x), "fc", f->info.classes);
    f->loss =
        soft ? dt_mean_loss(dt_soft_cross_entropy(f->y, f->t)) : dt_cross_entropy(f->y, f->t, NULL);
    if (!CHECK_TEXT(dt_folder_dataset(f->folder, f->x, f->t, &f->data) == DT_OK, "%s",
                    dt_ctx_error(f->ctx)))
        return false;
    const dt_trainer_desc job = {
        .loss = f->loss, .batch = 2, .devices = "cpu", .data = f->data, .seed = 3};
    return CHECK_TEXT(dt_trainer_create(f->graph, &job, &f->trainer) == DT_OK, "%s",
                      dt_ctx_error(f->ctx));
}

static void folder_shut(folder_fixture *f) {
    dt_trainer_destroy(f->trainer);
    dt_folder_close(f->folder);
    dt_ctx_destroy(f->ctx);
}

TEST(folders_are_classes_in_the_order_of_their_names) {
    folder_fixture f;
    folder_begin();
    if (!folder_open(&f, (dt_folder_desc){.channels = 3}, false)) {
        folder_end();
        return;
    }
    CHECK(f.info.rows == 4 && f.info.classes == 3 && f.info.skipped == 0);
    CHECK(f.info.width == PICTURE_W && f.info.height == PICTURE_H && f.info.channels == 3);
    CHECK_STR(dt_folder_class_name(f.folder, 0), "cat");
    CHECK_STR(dt_folder_class_name(f.folder, 1), "owl");
    CHECK_STR(dt_folder_class_name(f.folder, 2), "yak");
    CHECK(!dt_folder_class_name(f.folder, 3) && !dt_folder_class_name(f.folder, -1));
    const uint32_t *labels = dt_folder_labels(f.folder), want[4] = {0, 1, 1, 2};
    CHECK(labels && !memcmp(labels, want, sizeof want));
    float out[4][3 * PICTURE_ALL];
    REQUIRE(dt_trainer_predict(f.trainer, &f.data, dt_relu(f.x), 3, out, sizeof out) == DT_OK);
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < 3 * PICTURE_ALL; i++) {
            const int c = r == 1 || r == 2 ? 0 : i / PICTURE_ALL; /* the owls are grey */
            CHECK(out[r][i] ==
                  (float)picture_value(i % PICTURE_W, i % PICTURE_ALL / PICTURE_W, c) / 255.0f);
        }
    dt_train_report report;
    for (int i = 0; i < 4; i++)
        CHECK_TEXT(dt_trainer_epoch(f.trainer, &report) == DT_OK, "%s", dt_ctx_error(f.ctx));
    folder_shut(&f);
    folder_end();
}

/* The same weights, whatever the threads and the cache, with labels as numbers and as rows. */
TEST(folders_train_to_the_same_bits_with_threads_and_cache) {
    float first[3 * 3 * PICTURE_ALL], now[3 * 3 * PICTURE_ALL];
    folder_begin();
    for (int i = 0; i < 5; i++) {
        folder_fixture f;
        const dt_folder_desc desc = {.channels = 3,
                                     .threads = i > 1 ? 3 : 0,
                                     .cache_bytes = i == 1   ? 2 * 3 * PICTURE_ALL
                                                    : i == 3 ? 1 << 20
                                                             : 0};
        dt_train_report report = {0};
        if (!folder_open(&f, desc, i == 4))
            break;
        CHECK(f.info.cached_rows == (i == 1 ? 2 : i == 3 ? 4 : 0));
        for (int e = 0; e < 5; e++)
            CHECK(dt_trainer_epoch(f.trainer, &report) == DT_OK);
        dt_store *store = dt_trainer_store(f.trainer);
        float *to = i ? now : first;
        const int weight = dt_store_find(store, "fc.weight");
        CHECK_TEXT(dt_store_read(store, weight, DT_VALUE_PARAM, to, sizeof now) == DT_OK, "%s",
                   dt_ctx_error(f.ctx));
        if (i == 4)
            for (size_t k = 0; k < sizeof now / sizeof *now; k++)
                CHECK_NEAR(now[k], first[k], 1e-5);
        else
            CHECK(!i || !memcmp(first, now, sizeof now));
        folder_shut(&f);
    }
    folder_end();
}

static void folder_refused(dt_ctx *ctx, dt_folder_desc desc, dt_result want, const char *part) {
    dt_folder *folder = (dt_folder *)(void *)ctx;
    const uint64_t held = picture_held(ctx);
    const dt_result result = dt_folder_open(ctx, folder_root, &desc, &folder);
    CHECK_TEXT(result == want && !folder, "%d instead of: %s", (int)result, part);
    CHECK_CONTAINS(dt_ctx_error(ctx), part);
    CHECK(picture_held(ctx) == held);
    dt_folder_close(result ? NULL : folder);
}

TEST(folders_name_the_wrong_file_and_say_what_to_do) {
    dt_ctx *ctx = picture_ctx();
    dt_folder *folder;
    dt_folder_info info;
    REQUIRE(ctx);
    folder_begin();
    folder_put("owl", "3.jpg", "rgb444.jpg"); /* 16 x 12 */
    folder_refused(ctx, (dt_folder_desc){0}, DT_ERROR_FORMAT, "owl/3.jpg: it has 16 x 12 pixels");
    folder_refused(ctx, (dt_folder_desc){0}, DT_ERROR_FORMAT, "set .sizes");
    CHECK(dt_folder_open(ctx, folder_root, &(dt_folder_desc){.sizes = DT_FOLDER_SKIP}, &folder) ==
          DT_OK);
    dt_folder_get_info(folder, &info);
    CHECK(info.rows == 4 && info.skipped == 1);
    dt_folder_close(folder);
    folder_put("owl", "bad.png", "text.png");
    dt_folder_desc resize = {.sizes = DT_FOLDER_RESIZE};
    folder_refused(ctx, resize, DT_ERROR_FORMAT, "owl/bad.png: neither a PNG");
    folder_put("owl", "bad.png", "cut.png");
    resize.verify = true;
    folder_refused(ctx, resize, DT_ERROR_FORMAT, "owl/bad.png: damaged or truncated");
    folder_refused(ctx, resize, DT_ERROR_FORMAT, "; remove it, or set .skip_bad");
    resize.skip_bad = true;
    CHECK(dt_folder_open(ctx, folder_root, &resize, &folder) == DT_OK);
    dt_folder_get_info(folder, &info);
    CHECK(info.rows == 5 && info.skipped == 1 && info.channels == 3);
    const uint32_t *labels = dt_folder_labels(folder), want[5] = {0, 1, 1, 1, 2};
    CHECK(labels && !memcmp(labels, want, sizeof want));
    folder_put("zoo", "readme.txt", "text.png");
    folder_refused(ctx, resize, DT_ERROR_FORMAT, "zoo: the class has no pictures");
    folder_put("zoo", "1.png", "text.png");
    folder_refused(ctx, resize, DT_ERROR_FORMAT, "but those that are skipped");
    folder_put("zoo", "1.png", "rgb8.png");
    dt_folder_desc like = {.like = folder, .sizes = DT_FOLDER_RESIZE};
    folder_refused(ctx, like, DT_ERROR_FORMAT, "zoo: the folder of .like");
    dt_folder_close(folder);
    folder_refused(ctx, (dt_folder_desc){.width = 3}, DT_ERROR_INVALID, ".width is 3, .height 0");
    folder_refused(ctx, (dt_folder_desc){.width = 65536, .height = 4097}, DT_ERROR_INVALID, "2^28");
    folder_refused(ctx, (dt_folder_desc){.threads = 65}, DT_ERROR_INVALID, ".threads 65");
    folder_end();
    folder_refused(ctx, (dt_folder_desc){0}, DT_ERROR_IO, "No such file");
    mkdir(folder_root, 0700);
    folder_refused(ctx, (dt_folder_desc){0}, DT_ERROR_FORMAT, "no classes found");
    folder_end();
    dt_ctx_destroy(ctx);
}

#ifndef _WIN32
/* What a name leads to may be no file: with .skip_bad it is left out, else it is named. Nothing
 * waits for a FIFO that nobody writes to. */
TEST(folders_skip_entries_that_are_not_files_on_request) {
    static const char *const kinds[] = {"a link to nothing", "a link to itself", "a FIFO",
                                        "a device", "a folder"};
    const dt_folder_desc skips = {.skip_bad = true, .sizes = DT_FOLDER_RESIZE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        dt_ctx *ctx = picture_ctx();
        dt_folder *folder;
        dt_folder_info info;
        char path[400], top[400];
        REQUIRE(ctx);
        folder_begin();
        snprintf(path, sizeof path, "%s/cat/x.png", folder_root);
        snprintf(top, sizeof top, "%s/x.png", folder_root);
        for (int k = 0; k < 2 && i < 4; k++) { /* among the classes it is passed over */
            const char *at = k ? path : top;
            CHECK((i == 0   ? symlink("nowhere", at)
                   : i == 1 ? symlink("x.png", at)
                   : i == 2 ? mkfifo(at, 0600)
                            : symlink("/dev/zero", at)) == 0);
        }
        CHECK(i < 4 || mkdir(path, 0700) == 0);
        folder_refused(ctx, (dt_folder_desc){.sizes = DT_FOLDER_RESIZE}, DT_ERROR_IO, "cat/x.png");
        CHECK_TEXT(dt_folder_open(ctx, folder_root, &skips, &folder) == DT_OK, "%s: %s", kinds[i],
                   dt_ctx_error(ctx));
        dt_folder_get_info(folder, &info);
        CHECK_TEXT(info.rows == 4 && info.skipped == 1 && info.classes == 3, "%s: %d", kinds[i],
                   (int)info.rows);
        dt_folder_close(folder);
        CHECK(remove(path) == 0 && (i == 4 || remove(top) == 0));
        folder_end();
        dt_ctx_destroy(ctx);
    }
}
#endif

TEST(folders_made_like_another_have_its_classes_and_size) {
    dt_ctx *ctx = picture_ctx();
    dt_folder *train, *test;
    dt_folder_info info;
    REQUIRE(ctx);
    folder_begin();
    const dt_folder_desc desc = {.width = 4, .height = 4, .channels = 3, .sizes = DT_FOLDER_CROP};
    REQUIRE(dt_folder_open(ctx, folder_root, &desc, &train) == DT_OK);
    folder_end();
    mkdir(folder_root, 0700);
    folder_put("yak", "1.png", "rgb8.png");
    folder_put("owl", "1.jpg", "rgb444.jpg");
    const dt_folder_desc like = {.like = train, .sizes = DT_FOLDER_CROP};
    REQUIRE(dt_folder_open(ctx, folder_root, &like, &test) == DT_OK);
    dt_folder_get_info(test, &info);
    CHECK(info.classes == 3 && info.rows == 2 && info.width == 4 && info.channels == 3);
    CHECK(dt_folder_labels(test)[0] == 1 && dt_folder_labels(test)[1] == 2);
    CHECK_STR(dt_folder_class_name(test, 0), "cat");
    dt_folder_close(test);
    dt_folder_close(train);
    folder_end();
    dt_ctx_destroy(ctx);
}

static uint64_t folder_hash(const float *x, int pixels) {
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < 3 * pixels; i++)
        h = (h ^ (uint8_t)(x[i % 3 * pixels + i / 3] * 255.0f + 0.5f)) * 1099511628211u;
    return h;
}

TEST(folders_crop_the_middle_and_resize_it_as_pillow_does) {
    static const struct {
        int width, height;
        uint64_t hash;
    } sizes[] = {{4, 4, 0x135934b7c2289ffdu}, {6, 2, 0x3eeb37dadc2911f7u}};
    folder_begin();
    for (int i = 0; i < 2; i++) {
        folder_fixture f;
        float out[4][3 * 16];
        const int pixels = sizes[i].width * sizes[i].height;
        const dt_folder_desc desc = {.width = sizes[i].width,
                                     .height = sizes[i].height,
                                     .channels = 3,
                                     .sizes = DT_FOLDER_CROP};
        if (!folder_open(&f, desc, false))
            break;
        CHECK(dt_trainer_predict(f.trainer, &f.data, dt_relu(f.x), 4, out,
                                 (size_t)(4 * 3 * pixels) * sizeof(float)) == DT_OK);
        CHECK_TEXT(folder_hash(out[0], pixels) == sizes[i].hash, "%d x %d: %016llx", sizes[i].width,
                   sizes[i].height, (unsigned long long)folder_hash(out[0], pixels));
        folder_shut(&f);
    }
    folder_end();
}

TEST(folders_with_files_that_change_while_training_are_an_error) {
    folder_fixture f;
    dt_train_report report;
    folder_begin();
    if (folder_open(&f, (dt_folder_desc){.channels = 3, .threads = 2}, false)) {
        CHECK(dt_trainer_epoch(f.trainer, &report) == DT_OK);
        folder_put("owl", "2.png", "cut.png");
        dt_result result = DT_OK;
        for (int i = 0; i < 6 && !result; i++) /* the next batch was read before */
            result = dt_trainer_step(f.trainer, &report);
        CHECK(result == DT_ERROR_FORMAT);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "owl/2.png: damaged or truncated");
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "remove it, or open the folder with .verify and");
        folder_put("owl", "2.png", "rgb420.jpg"); /* of another size */
        for (int i = 0; i < 3; i++)
            result = dt_trainer_step(f.trainer, &report);
        CHECK(result == DT_ERROR_FORMAT);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "has changed since the folder was opened");
        folder_put("owl", "2.png", "grey8.png");
        for (int i = 0; i < 3; i++) /* repaired: it goes on */
            result = dt_trainer_step(f.trainer, &report);
        CHECK_TEXT(result == DT_OK, "%s", dt_ctx_error(f.ctx));
        folder_shut(&f);
    }
    folder_end();
}

TEST(folders_refuse_inputs_that_do_not_fit_their_pictures) {
    folder_fixture f;
    folder_begin();
    if (folder_open(&f, (dt_folder_desc){.channels = 3}, false)) {
        dt_dataset set;
        dt_tensor wrong = dt_input(f.graph, "w", DT_F32, dt_dims(3, PICTURE_W, PICTURE_H));
        CHECK(dt_folder_dataset(f.folder, wrong, f.t, &set) == DT_ERROR_INVALID && !set.rows);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "[3, 7, 9]");
        wrong = dt_input(f.graph, "v", DT_F32, dt_dims(4));
        CHECK(dt_folder_dataset(f.folder, f.x, wrong, &set) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "f32 [3]");
        CHECK(dt_folder_dataset(f.folder, f.x, (dt_tensor){0}, &set) == DT_OK && set.rows == 4);
        const uint32_t pick[1] = {9};
        float out[3 * PICTURE_ALL];
        set.indices = pick;
        set.rows = 1;
        CHECK(dt_trainer_predict(f.trainer, &set, dt_relu(f.x), 1, out, sizeof out) ==
              DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "row 9 is out of range: the folder has 4 pictures");
        folder_shut(&f);
    }
    folder_end();
}

#else

TEST(pictures_without_their_libraries_are_an_error_with_the_define) {
    dt_ctx *ctx = picture_ctx();
    dt_array a;
    REQUIRE(ctx);
    const uint64_t held = picture_held(ctx);
#ifndef DT_WITH_PNG
    CHECK(dt_image_load(ctx, PICTURES "rgb8.png", NULL, &a) == DT_ERROR_UNSUPPORTED && !a.data);
    CHECK_CONTAINS(dt_ctx_error(ctx), "rgb8.png: a PNG file; compile dtrain with DT_WITH_PNG");
#endif
#ifndef DT_WITH_JPEG
    CHECK(dt_image_load(ctx, PICTURES "grey.jpg", NULL, &a) == DT_ERROR_UNSUPPORTED && !a.data);
    CHECK_CONTAINS(dt_ctx_error(ctx), "grey.jpg: a JPEG file; compile dtrain with DT_WITH_JPEG");
#endif
    CHECK(picture_held(ctx) == held);
    dt_ctx_destroy(ctx);
}

#endif
