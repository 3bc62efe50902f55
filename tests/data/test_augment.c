/* Augmentation: each step against what it says, from the random numbers that it took; and the same
 * samples whatever the threads, batches, shares and the place where reading begins. Included by
 * main.c, after test_loader.c. */

enum { AUGMENT_ROWS = 60, AUGMENT_C = 3, AUGMENT_H = 6, AUGMENT_W = 8 };
enum { AUGMENT_PLANE = AUGMENT_H * AUGMENT_W, AUGMENT_SIZE = AUGMENT_C * AUGMENT_PLANE };

typedef struct augment_fixture {
    dt_ctx *ctx;
    dti_base *base;
    dt_graph *graph;
    dt_dataset data;
    dt_augment_desc desc;
    float x[AUGMENT_ROWS][AUGMENT_SIZE];
    int32_t class[AUGMENT_ROWS]; /* its own of each row */
    float out[AUGMENT_ROWS][AUGMENT_SIZE], target[AUGMENT_ROWS][AUGMENT_ROWS];
} augment_fixture;

static bool augment_open(augment_fixture *f) {
    memset(f, 0, sizeof *f);
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &f->ctx) != DT_OK ||
        dt_graph_create(f->ctx, &f->graph) != DT_OK)
        return false;
    f->base = dti_ctx_base(f->ctx);
    for (int i = 0; i < AUGMENT_ROWS; i++) {
        f->class[i] = i;
        for (int k = 0; k < AUGMENT_SIZE; k++)
            f->x[i][k] = (float)(i * AUGMENT_SIZE + k + 1) / (AUGMENT_ROWS * AUGMENT_SIZE + 1);
    }
    f->data.rows = AUGMENT_ROWS;
    f->data.augment = &f->desc;
    f->data.columns[0] = (dt_column){
        .input = dt_input(f->graph, "x", DT_F32, dt_dims(AUGMENT_C, AUGMENT_H, AUGMENT_W)),
        .data = f->x};
    f->data.columns[1] =
        (dt_column){.input = dt_input(f->graph, "t", DT_F32, dt_dims(AUGMENT_ROWS)),
                    .data = f->class,
                    .dtype = DT_I32,
                    .one_hot = true};
    return dt_graph_error(f->graph) == NULL;
}

/* The last rows of each batch but the first two. */
static void augment_share(void *user, uint32_t rows, uint32_t *first, uint32_t *count) {
    (void)user;
    *first = rows > 2 ? 2 : rows;
    *count = rows - *first;
}

/* Fills out and target by row, from batch `from` of an epoch on; what is not read stays. */
static bool augment_read(augment_fixture *f, const dti_loader_desc *d, uint64_t epoch,
                         uint64_t from) {
    dti_loader *l;
    const dti_batch *b;
    dti_loader_desc desc = *d;
    desc.data = &f->data;
    if (dti_loader_create(f->base, &desc, &l))
        return false;
    bool ok = dti_loader_seek(l, epoch, from, 1000) == DT_OK;
    for (uint64_t i = from; i < dti_loader_epoch_batches(l) && ok; i++) {
        ok = dti_loader_next(l, &b) == DT_OK;
        for (uint32_t k = 0; ok && k < b->count; k++) {
            memcpy(f->out[b->sources[k]], (const float *)b->values[0] + k * AUGMENT_SIZE,
                   sizeof f->out[0]);
            memcpy(f->target[b->sources[k]], (const float *)b->values[1] + k * AUGMENT_ROWS,
                   sizeof f->target[0]);
        }
    }
    dti_loader_destroy(l);
    return ok;
}

static bool augment_all(augment_fixture *f, uint64_t epoch) {
    const dti_loader_desc d = {.seed = 5, .batch = 16};
    return augment_read(f, &d, epoch, 0);
}

static dti_draw augment_draw(int row, uint64_t epoch) {
    const dt_sample s = {.seed = 5, .epoch = epoch, .row = (uint64_t)row};
    return dti_draw_of(&(dti_augment){0}, &s, false);
}

static float augment_at(const float *x, int c, int y, int i) {
    return x[c * AUGMENT_PLANE + y * AUGMENT_W + i];
}

static const dt_augment_desc augment_everything = {.crop_padding = 2,
                                                   .shift = 1,
                                                   .fill = 0.25,
                                                   .flip = 0.5,
                                                   .flip_vertical = 0.3,
                                                   .rotate = 30,
                                                   .brightness = 0.4,
                                                   .contrast = 0.5,
                                                   .saturation = 0.6,
                                                   .noise = 0.1,
                                                   .mean = {0.5f, 0.4f, 0.3f},
                                                   .std = {0.2f, 0.3f, 0.4f},
                                                   .cutout = 3,
                                                   .mixup = 0.4,
                                                   .cutmix = 1.0,
                                                   .mix_chance = 0.7};

TEST(augmented_samples_depend_only_on_seed_epoch_and_row) {
    static augment_fixture f, g;
    REQUIRE(augment_open(&f) && augment_open(&g));
    f.desc = g.desc = augment_everything;
    REQUIRE(augment_all(&f, 4));
    for (int i = 0; i < 10; i++) {
        dti_loader_desc d = {.seed = 5, .batch = i % 2 ? 7 : 25, .shuffle = i & 2};
        d.threaded = i > 3;
        g.data.threads = i;
        d.share = i == 9 ? augment_share : NULL;
        d.share_max = 25;
        memset(g.out, 0, sizeof g.out);
        memset(g.target, 0, sizeof g.target);
        REQUIRE(augment_read(&g, &d, 4, i > 6 ? 2 : 0)); /* resumed in an epoch */
        int same = 0, read = 0;
        for (int r = 0; r < AUGMENT_ROWS; r++) {
            const bool is_read = g.target[r][r] != 0.0f || g.out[r][0] != 0.0f;
            read += is_read;
            same += is_read && !memcmp(f.out[r], g.out[r], sizeof f.out[r]) &&
                    !memcmp(f.target[r], g.target[r], sizeof f.target[r]);
        }
        CHECK(same == read && read > 8);
        CHECK(i > 6 || read == AUGMENT_ROWS);
    }
    REQUIRE(augment_all(&g, 5));
    int other = 0;
    for (int r = 0; r < AUGMENT_ROWS; r++)
        other += memcmp(f.out[r], g.out[r], sizeof f.out[r]) != 0;
    CHECK(other == AUGMENT_ROWS);
    dt_ctx_destroy(f.ctx);
    dt_ctx_destroy(g.ctx);
}

/* Copies of a row in an epoch of draws by weight differ; a resumed epoch has the same. */
TEST(rows_that_weights_draw_again_are_augmented_again) {
    static augment_fixture f;
    static float seen[2][AUGMENT_ROWS][AUGMENT_SIZE];
    float weights[AUGMENT_ROWS] = {[3] = 1};
    REQUIRE(augment_open(&f));
    f.data.weights = weights;
    f.desc = (dt_augment_desc){.noise = 0.5};
    for (int pass = 0; pass < 2; pass++) {
        const dti_loader_desc d = {
            .data = &f.data, .seed = 5, .batch = 5, .shuffle = true, .threaded = pass};
        const dti_batch *b;
        dti_loader *l;
        REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
        CHECK(dti_loader_seek(l, 4, (uint64_t)pass * 2, 1000 + (uint64_t)pass * 2) == DT_OK);
        for (int i = pass * 2; i < AUGMENT_ROWS / 5; i++) {
            REQUIRE(dti_loader_next(l, &b) == DT_OK && b->count == 5);
            CHECK(b->sources[0] == 3);
            memcpy(seen[pass][i * 5], b->values[0], 5 * sizeof seen[0][0]);
        }
        dti_loader_destroy(l);
    }
    for (int i = 0; i < AUGMENT_ROWS / 5 * 5; i++) {
        for (int k = 0; k < i; k++)
            CHECK(memcmp(seen[0][i], seen[0][k], sizeof seen[0][0]) != 0);
        CHECK(i < 10 || !memcmp(seen[0][i], seen[1][i], sizeof seen[0][0]));
    }
    dt_ctx_destroy(f.ctx);
}

TEST(augmentation_of_zeros_changes_nothing) {
    static augment_fixture f;
    REQUIRE(augment_open(&f) && augment_all(&f, 0));
    CHECK(!memcmp(f.x, f.out, sizeof f.x));
    dt_ctx_destroy(f.ctx);
}

/* Whether a picture is another one moved by (-dx, -dy), with `fill` coming in. */
static bool augment_is_moved(const float *x, const float *from, int dx, int dy, float fill) {
    for (int c = 0; c < AUGMENT_C; c++)
        for (int y = 0; y < AUGMENT_H; y++)
            for (int i = 0; i < AUGMENT_W; i++) {
                const bool in =
                    y + dy >= 0 && y + dy < AUGMENT_H && i + dx >= 0 && i + dx < AUGMENT_W;
                if (augment_at(x, c, y, i) != (in ? augment_at(from, c, y + dy, i + dx) : fill))
                    return false;
            }
    return true;
}

TEST(augmentation_moves_pictures_by_up_to_the_padding_each_way) {
    static augment_fixture f;
    int seen[5][5] = {{0}}, all = 0;
    REQUIRE(augment_open(&f));
    f.desc = (dt_augment_desc){.crop_padding = 2, .fill = 9};
    for (uint64_t epoch = 0; epoch < 8; epoch++) {
        REQUIRE(augment_all(&f, epoch));
        for (int r = 0; r < AUGMENT_ROWS; r++) {
            int ways = 0;
            for (int k = 0; k < 25; k++) {
                const bool is = augment_is_moved(f.out[r], f.x[r], k % 5 - 2, k / 5 - 2, 9);
                ways += is;
                seen[k / 5][k % 5] += is;
            }
            CHECK(ways == 1);
        }
    }
    for (int k = 0; k < 25; k++)
        all += seen[k / 5][k % 5] > 3;
    CHECK(all == 25);
    f.desc = (dt_augment_desc){.shift = 20, .fill = -1}; /* further than they are wide */
    REQUIRE(augment_all(&f, 0));
    int away = 0;
    for (int r = 0; r < AUGMENT_ROWS; r++) {
        int ways = 0;
        for (int dx = -20; dx <= 20; dx++)
            ways += augment_is_moved(f.out[r], f.x[r], dx, 0, -1);
        CHECK(ways > 0);
        away += ways > 1;
    }
    CHECK(away > 10);
    dt_ctx_destroy(f.ctx);
}

TEST(augmentation_mirrors_with_the_given_probability) {
    static augment_fixture f;
    int count[4] = {0};
    REQUIRE(augment_open(&f));
    f.desc = (dt_augment_desc){.flip = 0.75, .flip_vertical = 0.25};
    for (uint64_t epoch = 0; epoch < 10; epoch++) {
        REQUIRE(augment_all(&f, epoch));
        for (int r = 0; r < AUGMENT_ROWS; r++) {
            int found = -1;
            for (int k = 0; k < 4; k++) {
                bool is = true;
                for (int j = 0; j < AUGMENT_SIZE; j++) {
                    const int c = j / AUGMENT_PLANE, y = j % AUGMENT_PLANE / AUGMENT_W;
                    const int i = j % AUGMENT_W;
                    is = is && f.out[r][j] == augment_at(f.x[r], c, k & 2 ? AUGMENT_H - 1 - y : y,
                                                         k & 1 ? AUGMENT_W - 1 - i : i);
                }
                found = is ? k : found;
            }
            REQUIRE(found >= 0);
            count[found]++;
        }
    }
    const double n = 10 * AUGMENT_ROWS; /* chances 3/16, 9/16, 1/16, 3/16 */
    CHECK_NEAR(count[0] / n, 3.0 / 16, 0.06);
    CHECK_NEAR(count[1] / n, 9.0 / 16, 0.08);
    CHECK_NEAR(count[2] / n, 1.0 / 16, 0.04);
    CHECK_NEAR(count[3] / n, 3.0 / 16, 0.06);
    dt_ctx_destroy(f.ctx);
}

/* Of a plane that rises evenly the value between pixels is known. */
TEST(augmentation_rotates_by_the_angle_that_was_drawn) {
    static augment_fixture f;
    REQUIRE(augment_open(&f));
    f.desc = (dt_augment_desc){.rotate = 40, .fill = -5};
    for (int r = 0; r < AUGMENT_ROWS; r++)
        for (int j = 0; j < AUGMENT_SIZE; j++)
            f.x[r][j] = (float)(3 * (j % AUGMENT_W) + 7 * (j % AUGMENT_PLANE / AUGMENT_W));
    REQUIRE(augment_all(&f, 1));
    int inside = 0, outside = 0;
    for (int r = 0; r < AUGMENT_ROWS; r++) {
        const dti_draw d = augment_draw(r, 1);
        const double angle = (2 * dti_draw01(&d, DTI_DRAW_ROTATE) - 1) * 40 * acos(-1.0) / 180;
        for (int j = 0; j < AUGMENT_SIZE; j++) {
            const double x = j % AUGMENT_W - 3.5, y = j % AUGMENT_PLANE / AUGMENT_W - 2.5;
            const double px = cos(angle) * x + sin(angle) * y + 3.5;
            const double py = cos(angle) * y - sin(angle) * x + 2.5;
            if (px >= 0 && px <= 7 && py >= 0 && py <= 5) {
                CHECK_NEAR(f.out[r][j], 3 * px + 7 * py, 1e-5);
                inside++;
            } else if (px < -1 || px > 8 || py < -1 || py > 6) {
                CHECK(f.out[r][j] == -5.0f);
                outside++;
            }
        }
    }
    CHECK(inside > 5000 && outside > 50);
    dt_ctx_destroy(f.ctx);
}

static double augment_grey(const float *x, int i) {
    return 0.299 * (double)x[i] + 0.587 * (double)x[i + AUGMENT_PLANE] +
           0.114 * (double)x[i + 2 * AUGMENT_PLANE];
}

static double augment_cut(double x) {
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

TEST(augmentation_changes_colours_by_the_factors_that_were_drawn) {
    static augment_fixture f;
    REQUIRE(augment_open(&f));
    int cut = 0, changed = 0;
    for (int kind = 0; kind < 3; kind++) {
        f.desc = (dt_augment_desc){.brightness = kind == 0 ? 0.8 : 0,
                                   .contrast = kind == 1 ? 1.5 : 0,
                                   .saturation = kind == 2 ? 1.2 : 0};
        REQUIRE(augment_all(&f, 2));
        for (int r = 0; r < AUGMENT_ROWS; r++) {
            const dti_draw d = augment_draw(r, 2);
            static const int places[] = {DTI_DRAW_BRIGHTNESS, DTI_DRAW_CONTRAST,
                                         DTI_DRAW_SATURATION};
            static const double by[] = {0.8, 1.5, 1.2};
            double factor = 1 + by[kind] * (2 * dti_draw01(&d, places[kind]) - 1), mean = 0;
            factor = factor < 0 ? 0 : factor;
            for (int i = 0; i < AUGMENT_PLANE; i++)
                mean += augment_grey(f.x[r], i) / AUGMENT_PLANE;
            for (int j = 0; j < AUGMENT_SIZE; j++) {
                const double to = kind == 0   ? 0
                                  : kind == 1 ? mean
                                              : augment_grey(f.x[r], j % AUGMENT_PLANE);
                const double want = factor * (double)f.x[r][j] + (1 - factor) * to;
                CHECK_NEAR(f.out[r][j], augment_cut(want), 1e-6);
                cut += want < 0 || want > 1;
                changed += fabs(want - (double)f.x[r][j]) > 1e-3;
            }
        }
    }
    CHECK(cut > 100 && changed > 10000);
    dt_ctx_destroy(f.ctx);
}

TEST(augmentation_adds_noise_and_normalises_each_channel) {
    static augment_fixture f;
    REQUIRE(augment_open(&f));
    f.desc = (dt_augment_desc){.noise = 0.5};
    REQUIRE(augment_all(&f, 0));
    double sum = 0, squares = 0, beside = 0;
    for (int r = 0; r < AUGMENT_ROWS; r++)
        for (int j = 0; j < AUGMENT_SIZE; j++) {
            const double n = ((double)f.out[r][j] - (double)f.x[r][j]) / 0.5;
            sum += n;
            squares += n * n;
            if (j)
                beside += n * ((double)f.out[r][j - 1] - (double)f.x[r][j - 1]) / 0.5;
        }
    const double n = AUGMENT_ROWS * AUGMENT_SIZE;
    CHECK_NEAR(sum / n, 0, 0.05);
    CHECK_NEAR(squares / n, 1, 0.06);
    CHECK_NEAR(beside / n, 0, 0.05);
    f.desc = (dt_augment_desc){.mean = {1, 2, 3}, .std = {0.5f, 0, 2}};
    REQUIRE(augment_all(&f, 0));
    for (int j = 0; j < AUGMENT_SIZE; j++) {
        const float deviation[] = {0.5f, 1, 2};
        const int c = j / AUGMENT_PLANE;
        CHECK(f.out[9][j] == (f.x[9][j] - (float)(c + 1)) / deviation[c]);
    }
    f.desc = (dt_augment_desc){.mean = {0.5f}, .std = {0.25f}}; /* of all channels */
    REQUIRE(augment_all(&f, 0));
    for (int j = 0; j < AUGMENT_SIZE; j++)
        CHECK(f.out[9][j] == (f.x[9][j] - 0.5f) / 0.25f);
    dt_ctx_destroy(f.ctx);
}

TEST(augmentation_cuts_out_one_square) {
    static augment_fixture f;
    int whole = 0, places = 0;
    bool seen[AUGMENT_PLANE] = {false};
    REQUIRE(augment_open(&f));
    f.desc = (dt_augment_desc){.cutout = 3};
    for (uint64_t epoch = 0; epoch < 4; epoch++) {
        REQUIRE(augment_all(&f, epoch));
        for (int r = 0; r < AUGMENT_ROWS; r++) {
            int left = AUGMENT_W, right = -1, top = AUGMENT_H, bottom = -1, zeros = 0;
            for (int j = 0; j < AUGMENT_SIZE; j++) {
                const int i = j % AUGMENT_W, y = j % AUGMENT_PLANE / AUGMENT_W;
                if (f.out[r][j] != 0.0f) {
                    CHECK(f.out[r][j] == f.x[r][j]);
                    continue;
                }
                zeros++;
                seen[j % AUGMENT_PLANE] = true;
                left = DTI_MIN(left, i), right = DTI_MAX(right, i);
                top = DTI_MIN(top, y), bottom = DTI_MAX(bottom, y);
            }
            CHECK(zeros == AUGMENT_C * (right - left + 1) * (bottom - top + 1));
            CHECK(right - left < 3 && bottom - top < 3 && zeros > 0);
            whole += zeros == 27;
        }
    }
    for (int j = 0; j < AUGMENT_PLANE; j++)
        places += seen[j];
    CHECK(whole > 80 && places == AUGMENT_PLANE);
    dt_ctx_destroy(f.ctx);
}

/* The row that a row was mixed with, and its own share, by its target. */
static bool augment_mixed(const augment_fixture *f, int r, int *partner, double *share) {
    double sum = 0;
    *partner = r;
    *share = (double)f->target[r][r];
    for (int k = 0; k < AUGMENT_ROWS; k++) {
        sum += (double)f->target[r][k];
        if (k != r && f->target[r][k] != 0.0f) {
            if (*partner != r)
                return false;
            *partner = k;
        }
    }
    return fabs(sum - 1) < 1e-6;
}

TEST(augmentation_mixes_pictures_and_targets_by_one_share) {
    static augment_fixture f;
    double sum = 0, squares = 0;
    int count = 0, partners[AUGMENT_ROWS] = {0}, met = 0;
    REQUIRE(augment_open(&f));
    f.desc = (dt_augment_desc){.mixup = 0.5, .target = 1};
    for (uint64_t epoch = 0; epoch < 20; epoch++) {
        REQUIRE(augment_all(&f, epoch));
        for (int r = 0; r < AUGMENT_ROWS; r++) {
            int partner;
            double share;
            REQUIRE(augment_mixed(&f, r, &partner, &share));
            partners[partner]++;
            for (int j = 0; j < AUGMENT_SIZE; j += 5)
                CHECK_NEAR(f.out[r][j],
                           share * (double)f.x[r][j] + (1 - share) * (double)f.x[partner][j], 1e-6);
            if (partner != r) {
                sum += share;
                squares += (share - 0.5) * (share - 0.5);
                count++;
            }
        }
    }
    /* Beta(1/2, 1/2): mean 1/2, variance 1/8 */
    CHECK(count > 1000);
    CHECK_NEAR(sum / count, 0.5, 0.05);
    CHECK_NEAR(squares / count, 0.125, 0.012);
    for (int r = 0; r < AUGMENT_ROWS; r++)
        met += partners[r] > 0;
    CHECK(met == AUGMENT_ROWS);
    dt_ctx_destroy(f.ctx);
}

TEST(augmentation_mixes_targets_of_column_0_by_dt_zero) {
    static augment_fixture f;
    dti_loader *l;
    const dti_batch *b;
    REQUIRE(augment_open(&f));
    f.desc = (dt_augment_desc){.mixup = 0.5};
    REQUIRE(augment_all(&f, 0));
    const dt_column picture = f.data.columns[0];
    f.data.columns[0] = f.data.columns[1], f.data.columns[1] = picture;
    f.desc = (dt_augment_desc){.mixup = 0.5, .column = 1, .target = DT_ZERO};
    const dti_loader_desc d = {.data = &f.data, .seed = 5, .batch = AUGMENT_ROWS};
    REQUIRE(!dti_loader_create(f.base, &d, &l));
    REQUIRE(!dti_loader_seek(l, 0, 0, 1000) && !dti_loader_next(l, &b));
    for (uint32_t k = 0; k < b->count; k++) {
        const float *t = (const float *)b->values[0] + k * AUGMENT_ROWS;
        const float *x = (const float *)b->values[1] + k * AUGMENT_SIZE;
        CHECK(!memcmp(t, f.target[b->sources[k]], sizeof f.target[0]));
        CHECK(!memcmp(x, f.out[b->sources[k]], sizeof f.out[0]));
    }
    dti_loader_destroy(l);
    dt_ctx_destroy(f.ctx);
}

TEST(augmentation_pastes_a_box_and_shares_the_target_by_its_area) {
    static augment_fixture f;
    int pasted = 0;
    REQUIRE(augment_open(&f));
    f.desc = (dt_augment_desc){.cutmix = 1};
    for (uint64_t epoch = 0; epoch < 4; epoch++) {
        REQUIRE(augment_all(&f, epoch));
        for (int r = 0; r < AUGMENT_ROWS; r++) {
            int partner, other = 0;
            double share;
            REQUIRE(augment_mixed(&f, r, &partner, &share));
            for (int j = 0; j < AUGMENT_SIZE; j++) {
                const bool own = f.out[r][j] == f.x[r][j];
                CHECK(own || f.out[r][j] == f.x[partner][j]);
                other += !own;
            }
            CHECK_NEAR(share, 1 - other / (double)AUGMENT_SIZE, 1e-6);
            pasted += other > 0;
        }
    }
    CHECK(pasted > 120);
    f.desc.mix_chance = 0.25;
    pasted = 0;
    for (uint64_t epoch = 0; epoch < 4; epoch++) {
        REQUIRE(augment_all(&f, epoch));
        for (int r = 0; r < AUGMENT_ROWS; r++)
            pasted += f.target[r][r] != 1.0f;
    }
    CHECK(pasted > 25 && pasted < 75);
    dt_ctx_destroy(f.ctx);
}

/* Beta(a, a) by its mean and variance, 1 / (4 (2 a + 1)). */
TEST(augmentation_draws_shares_of_the_beta_distribution) {
    static const double alphas[] = {0.1, 0.2, 0.5, 1, 2, 8};
    for (int k = 0; k < 6; k++) {
        double sum = 0, squares = 0;
        const int n = 20000;
        for (int i = 0; i < n; i++) {
            const dti_draw d = augment_draw(i, 3);
            const double x = dti_draw_beta(&d, alphas[k]);
            CHECK(x >= 0 && x <= 1);
            sum += x;
            squares += (x - 0.5) * (x - 0.5);
        }
        const double variance = 1 / (4 * (2 * alphas[k] + 1));
        CHECK_NEAR(sum / n, 0.5, 5 * sqrt(variance / n));
        CHECK_NEAR(squares / n / variance, 1, 0.06);
    }
}

static void augment_refused(augment_fixture *f, dt_augment_desc desc, int line, const char *part) {
    const dti_loader_desc d = {.data = &f->data, .batch = 4};
    dti_loader *l = NULL;
    f->desc = desc;
    const dt_result result = dti_loader_create(f->base, &d, &l);
    test_check(result == DT_ERROR_INVALID && !l, __FILE__, line, "not refused: %s", part);
    test_check(strstr(dt_ctx_error(f->ctx), part) != NULL, __FILE__, line, "\"%s\" has no \"%s\"",
               dt_ctx_error(f->ctx), part);
    dti_loader_destroy(l);
}

TEST(augmentation_refuses_settings_that_do_not_fit) {
    static augment_fixture f;
    REQUIRE(augment_open(&f));
    augment_refused(&f, (dt_augment_desc){.column = 2}, __LINE__, "column is 2");
    augment_refused(&f, (dt_augment_desc){.column = -1}, __LINE__, "column is -1");
    augment_refused(&f, (dt_augment_desc){.flip = 1.5}, __LINE__, "flip is 1.5");
    augment_refused(&f, (dt_augment_desc){.rotate = 181}, __LINE__, "rotate is 181");
    augment_refused(&f, (dt_augment_desc){.noise = (double)NAN}, __LINE__, "noise is");
    augment_refused(&f, (dt_augment_desc){.cutout = -1}, __LINE__, "cutout is -1");
    augment_refused(&f, (dt_augment_desc){.crop_padding = -1}, __LINE__, "crop_padding is -1");
    augment_refused(&f, (dt_augment_desc){.fill = (double)INFINITY}, __LINE__, "fill");
    augment_refused(&f, (dt_augment_desc){.std = {1, -1}}, __LINE__, ".mean[1] is 0 and .std -1");
    augment_refused(&f, (dt_augment_desc){.mixup = 1, .target = 5}, __LINE__, "target is 5");
    augment_refused(&f, (dt_augment_desc){.cutmix = 1, .column = 1}, __LINE__, "target is 1");
    f.data.columns[0].input = dt_input(f.graph, "one", DT_F32, dt_dims(1, 3, 3));
    augment_refused(&f, (dt_augment_desc){.saturation = 1}, __LINE__, "3 channels");
    f.data.columns[0].input = dt_input(f.graph, "deep", DT_F32, dt_dims(5, 1, 3, 3));
    augment_refused(&f, (dt_augment_desc){.flip = 1}, __LINE__, "[C, H, W]");
    f.data.columns[0].input = dt_input(f.graph, "wide", DT_F32, dt_dims(5, 3, 3));
    augment_refused(&f, (dt_augment_desc){.mean = {1, 2}}, __LINE__, "5 channels");
    dt_ctx_destroy(f.ctx);
}
