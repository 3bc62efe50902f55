/* dtinfo plan: what its chart of a step says, as numbers, text and drawing. Included by main.c. */
#include "tools/view/dtinfo_plan.h"

#include <ctype.h>

static const char *const chart_rows[][12] = {
    {"--devices", "cpu"},
    {"--devices", "cpu:4", "--accumulate", "2", "--bucket-bytes", "40000"},
    {"--devices", "cpu:3", "--batch-slices", "4", "--accumulate", "3", "--batch", "40"},
    {"--devices", "cpu:3", "--sync-norm", "1", "--layers", "4"},
    {"--devices", "cpu:2", "--zero", "3", "--layers", "5"},
    {"--devices", "cpu:4", "--zero", "2", "--shard-degree", "2", "--layers", "4"},
    {"--devices", "cpu:3", "--zero", "2", "--bucket-bytes", "16000", "--accumulate", "2",
     "--layers", "4"},
    {"--devices", "cpu:2", "--zero", "3", "--bucket-bytes", "9000", "--sync-norm", "1"},
    {"--devices", "cpu:4", "--pipeline", "4", "--accumulate", "8"},
    {"--devices", "cpu:4", "--pipeline", "4", "--accumulate", "6", "--schedule", "fill-drain"},
    {"--devices", "cpu:3", "--pipeline", "3", "--accumulate", "9", "--schedule", "zero-bubble"},
    {"--devices", "cpu:2", "--pipeline", "2", "--accumulate", "5", "--schedule", "interleaved"},
    {"--devices", "cpu:4", "--pipeline", "2", "--accumulate", "4", "--batch-slices", "6"},
    {"--devices", "cpu:4", "--pipeline", "2", "--accumulate", "3", "--tensor", "2"},
    {"--devices", "cpu:4", "--tensor", "2", "--batch-slices", "4", "--layers", "5"},
    {"--devices", "cpu:2", "--tensor", "2", "--tensor-slices", "4", "--accumulate", "2"},
};

static int chart_words(const char *const *row) {
    int count = 0;
    while (count < 12 && row[count])
        count++;
    return count;
}

typedef struct chart_case {
    chart_options options;
    chart_job job;
    chart view;
} chart_case;

static bool chart_case_open(size_t row, chart_case *c) {
    char **argv = (char **)(uintptr_t)chart_rows[row];
    memset(c, 0, sizeof *c);
    return CHECK_TEXT(chart_parse(chart_words(chart_rows[row]), argv, &c->options, stdout) &&
                          !chart_job_open(&c->options, &c->job) &&
                          chart_of(&c->view, &c->options, &c->job.trainer->par, stdout),
                      "row %d: %s", (int)row, c->job.ctx ? dt_ctx_error(c->job.ctx) : "");
}

static void chart_case_close(chart_case *c) {
    chart_close(&c->view);
    chart_job_close(&c->job);
}

/* What has been written to a stream, which it closes. */
static char *chart_written(FILE *f) {
    const long size = ftell(f);
    char *text = calloc(1, (size_t)size + 1);
    rewind(f);
    CHECK(text && fread(text, 1, (size_t)size, f) == (size_t)size);
    fclose(f);
    return text;
}

static uint32_t chart_count(const char *text, const char *what) {
    uint32_t count = 0;
    for (; (text = strstr(text, what)) != NULL; text++)
        count++;
    return count;
}

/* ---- */

TEST(each_kind_of_action_has_a_name_in_a_chart) {
    for (int kind = 0; kind < DTI_ACTION_KINDS; kind++)
        CHECK_TEXT(chart_kind_of[kind] != CHART_OTHER, "kind %d", kind);
    for (int kind = 0; kind < CHART_KINDS; kind++)
        CHECK(chart_kinds[kind].name && chart_kinds[kind].colour);
}

static void chart_check_box(const chart *v, uint32_t lane, uint32_t i) {
    const chart_box *b = &v->lanes[lane].boxes[i];
    CHECK(b->end >= b->begin && b->end <= v->end);
    CHECK(!i || b->begin >= v->lanes[lane].boxes[i - 1].end);
    for (uint32_t k = 0; k < b->need_count; k++) {
        const chart_need n = v->needs[b->need + k];
        const chart_counter *c = &v->counters[n.counter];
        if (!CHECK_TEXT(n.value && c->count >= n.value, "counter %u", n.counter))
            continue;
        const chart_box *by = chart_at(v, c->by[n.value - 1]);
        CHECK(b->brings == n.counter ? by->begin == b->begin : by->end <= b->begin);
    }
}

TEST(no_action_of_a_chart_begins_before_the_actions_it_waits_for) {
    for (size_t row = 0; row < DTI_COUNT(chart_rows); row++) {
        chart_case c;
        if (chart_case_open(row, &c)) {
            CHECK(c.view.lane_count > 0 && c.view.end > 0);
            for (uint32_t lane = 0; lane < c.view.lane_count; lane++)
                for (uint32_t i = 0; i < c.view.lanes[lane].count; i++)
                    chart_check_box(&c.view, lane, i);
        }
        chart_case_close(&c);
    }
}

TEST(a_chart_of_a_pipeline_has_the_idle_time_that_its_trainer_reports) {
    for (size_t row = 0; row < DTI_COUNT(chart_rows); row++) {
        chart_case c;
        dt_trainer_info info = {0};
        if (chart_case_open(row, &c) && c.options.pipeline) {
            dt_trainer_get_info(c.job.trainer, &info);
            CHECK_TEXT(fabs(chart_idle(&c.view) - info.bubble) < 1e-9, "row %d: %g, %g", (int)row,
                       chart_idle(&c.view), info.bubble);
        }
        chart_case_close(&c);
    }
}

TEST(devices_that_wait_for_each_other_are_a_chart_without_an_end) {
    for (int circle = 0; circle < 2; circle++) {
        chart v = {0};
        const uint32_t counters = chart_counters(&v, 2);
        for (uint32_t lane = 0; lane < 2; lane++) {
            chart_box *b = chart_box_add(&v, chart_lane_add(&v), CHART_FORWARD);
            *b =
                (chart_box){.cost = 1, .brings = CHART_NONE, .raises = counters + lane, .times = 1};
            b->need = v.need_count;
            if (lane || circle)
                chart_need_add(&v, b, counters + 1 - lane, 1);
        }
        CHECK(chart_play(&v) == !circle && v.end == (circle ? 0 : 2));
        chart_close(&v);
    }
}

/* ---- what it writes */

TEST(a_chart_as_text_has_a_line_for_each_action) {
    for (size_t row = 0; row < DTI_COUNT(chart_rows); row++) {
        chart_case c;
        FILE *f = tmpfile();
        REQUIRE(f);
        uint32_t lines = 2; /* of the title */
        if (chart_case_open(row, &c))
            chart_print(&c.view, f);
        for (uint32_t lane = 0; lane < c.view.lane_count; lane++)
            lines += 3 + c.view.lanes[lane].count;
        chart_case_close(&c);
        char *text = chart_written(f);
        CHECK_TEXT(chart_count(text, "\n") == lines, "row %d: %s", (int)row, text);
        if (c.options.pipeline)
            CHECK(strstr(text, "forward 0 of device 0") && strstr(text, " 0 of device 1"));
        free(text);
    }
}

/* Tags are closed in their order, and what has a place lies within the picture. */
static void chart_check_svg(const char *svg) {
    char open[8][16];
    int depth = 0;
    for (const char *at = strchr(svg, '<'); at; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>'), *x = strstr(at, " x=\""),
                   *width = strstr(at, " width=\"");
        if (!CHECK_TEXT(end && depth < 8 && (at[1] != '/' || depth > 0), "%.40s", at))
            return;
        if (at[1] == '/') {
            depth--;
            CHECK_TEXT(!strncmp(at + 2, open[depth], strlen(open[depth])), "%.40s", at);
        } else if (end[-1] != '/') {
            sscanf(at + 1, "%15[a-z]", open[depth++]);
        }
        if (x && width && x < end && width < end)
            CHECK_TEXT(atof(x + 4) >= 0 && atof(x + 4) + atof(width + 8) <= CHART_WIDTH + 0.01,
                       "%.*s", (int)(end - at), at);
    }
    CHECK(depth == 0 && !strstr(svg, "nan") && !strstr(svg, "inf"));
}

static const char *chart_next_rect(const char *svg) {
    return svg ? strstr(svg + 1, "<rect ") : NULL;
}

/* Boxes come after the background and the lanes', and before the legend: each at its time. */
static void chart_check_places(const chart *v, const char *svg) {
    const char *at = svg;
    for (uint32_t i = 0; i < 1 + v->lane_count; i++)
        at = chart_next_rect(at);
    for (uint32_t lane = 0; lane < v->lane_count; lane++) {
        for (uint32_t i = 0; i < v->lanes[lane].count; i++) {
            const chart_box *b = &v->lanes[lane].boxes[i];
            double x = 0, y = 0;
            at = chart_next_rect(at);
            REQUIRE(at && sscanf(at, "<rect x=\"%lf\" y=\"%lf\"", &x, &y) == 2);
            CHECK_TEXT(fabs(x - chart_x(v, b->begin)) < 8 * CHART_TICK &&
                           fabs(y - chart_y(lane)) < CHART_PITCH,
                       "lane %u, box %u: at %g, %g", lane, i, x, y);
        }
    }
    CHECK(chart_next_rect(at));
}

TEST(a_drawing_of_a_chart_has_each_action_at_its_time_within_1000_pixels) {
    for (size_t row = 0; row < DTI_COUNT(chart_rows); row++) {
        chart_case c;
        FILE *f = tmpfile();
        REQUIRE(f);
        const bool open = chart_case_open(row, &c);
        if (open)
            chart_draw(&c.view, f);
        char *svg = chart_written(f);
        chart_check_svg(svg);
        if (open)
            chart_check_places(&c.view, svg);
        chart_case_close(&c);
        free(svg);
    }
}

/* Numbers may differ by a rounding; nothing else does. */
static bool chart_alike(const char *a, const char *b) {
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            char *ends[2];
            if (fabs(strtod(a, &ends[0]) - strtod(b, &ends[1])) > 0.11)
                return false;
            a = ends[0], b = ends[1];
        } else if (*a++ != *b++) {
            return false;
        }
    }
    return *a == *b;
}

/* DTRAIN_RECORD=1 draws them again. */
TEST(docs_have_the_drawings_that_dtinfo_plan_makes) {
    static const struct {
        const char *file, *words[8];
    } rows[] = {
        {"docs/plan_replicas.svg",
         {"--devices", "cpu:3", "--batch-slices", "4", "--accumulate", "2", "--bucket-bytes",
          "40000"}},
        {"docs/plan_sync_norm.svg", {"--devices", "cpu:3", "--sync-norm", "1", "--layers", "5"}},
        {"docs/plan_zero3.svg",
         {"--devices", "cpu:2", "--zero", "3", "--layers", "6", "--bucket-bytes", "16000"}},
        {"docs/plan_tensor.svg", {"--devices", "cpu:4", "--tensor", "4", "--layers", "4"}},
        {"docs/plan_pipeline.svg", {"--devices", "cpu:4", "--pipeline", "4", "--accumulate", "8"}},
        {"docs/plan_zero_bubble.svg",
         {"--devices", "cpu:4", "--pipeline", "4", "--accumulate", "8", "--schedule",
          "zero-bubble"}},
    };
    for (size_t i = 0; i < DTI_COUNT(rows); i++) {
        char name[64], *argv[12] = {0}, *said[2];
        int count = 0;
        snprintf(name, sizeof name, "%s", rows[i].file);
        if (!getenv("DTRAIN_RECORD"))
            snprintf(name, sizeof name, "/tmp/dtrain_plan_%ld.svg", (long)getpid());
        for (; count < 8 && rows[i].words[count]; count++)
            argv[count] = (char *)(uintptr_t)rows[i].words[count];
        argv[count] = (char *)(uintptr_t) "--svg";
        argv[count + 1] = name;
        FILE *f = tmpfile(), *drawn[2];
        REQUIRE(f && chart_main(count + 2, argv, f, stdout) == 0);
        fclose(f);
        for (int k = 0; k < 2; k++) {
            REQUIRE((drawn[k] = fopen(k ? rows[i].file : name, "rb")) != NULL);
            fseek(drawn[k], 0, SEEK_END);
            said[k] = chart_written(drawn[k]);
        }
        CHECK_TEXT(chart_alike(said[0], said[1]), "%s is not what dtinfo plan draws", rows[i].file);
        free(said[0]);
        free(said[1]);
        if (!getenv("DTRAIN_RECORD"))
            remove(name);
    }
}

/* ---- the command */

TEST(dtinfo_plan_names_the_option_that_is_wrong) {
    static const struct {
        const char *words[6], *says;
        int status;
    } rows[] = {
        {{"--help"}, "usage: dtinfo plan", 0},
        {{"--stages", "4"}, "there is no option '--stages'", 2},
        {{"--batch"}, "--batch has no value", 2},
        {{"--batch", "0"}, "--batch is '0'; give a whole number from 1 to", 2},
        {{"--batch", "8x"}, "--batch is '8x'", 2},
        {{"--pipeline", "99999999999"}, "--pipeline is '99999999999'", 2},
        {{"--schedule", "gpipe"}, "--schedule is 'gpipe'; give 1f1b, fill-drain", 2},
        {{"--devices", "cpu:0"}, "cpu:0", 1},
        {{"--devices", "cpu:4", "--batch", "3"}, ".batch", 1},
        {{"--zero", "4"}, ".parallel.zero_stage", 1},
        {{"--devices", "cpu:3", "--pipeline", "2"}, "3", 1},
        {{"--svg", "/nowhere/plan.svg"}, "--svg is '/nowhere/plan.svg'", 1},
        {{"--layers", "2"}, "A step of 2 layers of 64 on cpu:2: batch 64, 1 micro-batch\n", 0},
    };
    for (size_t i = 0; i < DTI_COUNT(rows); i++) {
        FILE *f = tmpfile();
        REQUIRE(f);
        int count = 0;
        while (count < 6 && rows[i].words[count])
            count++;
        const int status = chart_main(count, (char **)(uintptr_t)rows[i].words, f, f);
        char *text = chart_written(f);
        CHECK_TEXT(status == rows[i].status && strstr(text, rows[i].says), "row %d: %d, %s", (int)i,
                   status, text);
        free(text);
    }
}
