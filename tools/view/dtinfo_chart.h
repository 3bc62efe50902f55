/* Part of dtinfo.c: a training step's plan, as text and as a drawing. A chart has a lane for each
 * device, with boxes in the order in which the device executes them. A box begins when the one
 * before it has ended and counters have reached its needs; a box that ends raises a counter. That
 * is all that is known here: dtinfo_plan.h makes one of a step's lists. Tests have it too. */

typedef enum chart_kind {
    CHART_OTHER,
    CHART_WRITE,
    CHART_OPEN,
    CHART_RECEIVE,
    CHART_FORWARD,
    CHART_WEIGHTS,
    CHART_BACKWARD,
    CHART_WEIGHT_GRADIENT,
    CHART_COLLECTIVE,
    CHART_SEND,
    CHART_CLOSE,
    CHART_ADD,
    CHART_ZEROS,
    CHART_GATHER,
    CHART_PASS,
    CHART_SUM,
    CHART_KINDS
} chart_kind;

static const struct {
    const char *name, *colour;
} chart_kinds[CHART_KINDS] = {
    [CHART_OTHER] = {"other", "#999999"},
    [CHART_WRITE] = {"write", "#8c6d46"},
    [CHART_OPEN] = {"open", "#b8b8b8"},
    [CHART_RECEIVE] = {"receive", "#5fb0a5"},
    [CHART_FORWARD] = {"forward", "#7fb2e5"},
    [CHART_WEIGHTS] = {"weights", "#c7a500"},
    [CHART_BACKWARD] = {"backward", "#f2b05e"},
    [CHART_WEIGHT_GRADIENT] = {"weight gradient", "#93c47d"},
    [CHART_COLLECTIVE] = {"collective", "#a0328c"},
    [CHART_SEND] = {"send", "#2f7f74"},
    [CHART_CLOSE] = {"close", "#666666"},
    [CHART_ADD] = {"sum", "#b98a8a"},
    [CHART_ZEROS] = {"zeros", "#d9d9d9"},
    [CHART_GATHER] = {"gather", "#6a5acd"},
    [CHART_PASS] = {"pass", "#c5bfee"},
    [CHART_SUM] = {"sum of a bucket", "#d06070"},
};

#define CHART_NONE UINT32_MAX

typedef struct chart_need {
    uint32_t counter, value;
} chart_need;

typedef struct chart_box {
    uint8_t kind;         /* chart_kind */
    bool waits;           /* for all that its device has begun */
    uint8_t shade;        /* which of its device's parts it is of: later ones are lighter */
    uint32_t part, micro; /* CHART_NONE: of none */
    uint32_t from, what;  /* segments, or a sync point or bucket; CHART_NONE */
    uint32_t buckets;     /* that have arrived after it; 0: not known */
    uint32_t need, need_count;
    uint32_t brings;        /* a counter that goes up when its device comes to it, or CHART_NONE */
    uint32_t raises, times; /* one that goes up when it ends, and by how much */
    double cost, begin, end;
} chart_box;

typedef struct chart_place {
    uint32_t lane, box;
} chart_place;

typedef struct chart_counter { /* the device that raised it, in this order */
    chart_place *by;
    uint32_t count, room;
} chart_counter;

typedef struct chart_lane {
    char name[160];
    chart_box *boxes;
    uint32_t count, room;
    uint32_t at; /* boxes that have ended */
    bool came, runs;
} chart_lane;

typedef struct chart {
    char title[300];
    chart_lane *lanes;
    uint32_t lane_count, lane_room;
    chart_need *needs;
    uint32_t need_count, need_room;
    chart_counter *counters;
    uint32_t counter_count, counter_room;
    bool chunks; /* devices have several parts */
    double end;  /* of the last box */
} chart;

/* ---- making one */

/* Room for one more; without memory a tool ends. */
static void *chart_grow(void *array, uint32_t count, uint32_t *room, size_t each) {
    if (count < *room)
        return array;
    *room = *room ? 2 * *room : 16;
    array = realloc(array, *room * each);
    if (!array)
        fputs("dtinfo: no memory\n", stderr), exit(1);
    return array;
}

static uint32_t chart_counters(chart *v, uint32_t count) {
    const uint32_t first = v->counter_count;
    for (uint32_t i = 0; i < count; i++) {
        v->counters =
            chart_grow(v->counters, v->counter_count, &v->counter_room, sizeof *v->counters);
        v->counters[v->counter_count++] = (chart_counter){0};
    }
    return first;
}

static uint32_t chart_lane_add(chart *v) {
    v->lanes = chart_grow(v->lanes, v->lane_count, &v->lane_room, sizeof *v->lanes);
    v->lanes[v->lane_count] = (chart_lane){0};
    return v->lane_count++;
}

static chart_box *chart_box_add(chart *v, uint32_t lane, chart_kind kind) {
    chart_lane *l = &v->lanes[lane];
    l->boxes = chart_grow(l->boxes, l->count, &l->room, sizeof *l->boxes);
    l->boxes[l->count] = (chart_box){.kind = (uint8_t)kind,
                                     .part = CHART_NONE,
                                     .micro = CHART_NONE,
                                     .from = CHART_NONE,
                                     .what = CHART_NONE,
                                     .need = v->need_count,
                                     .brings = CHART_NONE,
                                     .raises = CHART_NONE};
    return &l->boxes[l->count++];
}

/* Of the box that was added last. */
static void chart_need_add(chart *v, chart_box *b, uint32_t counter, uint32_t value) {
    v->needs = chart_grow(v->needs, v->need_count, &v->need_room, sizeof *v->needs);
    v->needs[v->need_count++] = (chart_need){counter, value};
    b->need_count++;
}

static void chart_close(chart *v) {
    for (uint32_t i = 0; i < v->lane_count; i++)
        free(v->lanes[i].boxes);
    for (uint32_t i = 0; i < v->counter_count; i++)
        free(v->counters[i].by);
    free(v->lanes);
    free(v->needs);
    free(v->counters);
    *v = (chart){0};
}

/* ---- playing it: each device begins what it can as soon as it can */

static void chart_raise(chart *v, uint32_t counter, uint32_t times, chart_place by) {
    for (uint32_t i = 0; counter != CHART_NONE && i < times; i++) {
        chart_counter *c = &v->counters[counter];
        c->by = chart_grow(c->by, c->count, &c->room, sizeof *c->by);
        c->by[c->count++] = by;
    }
}

static bool chart_is_ready(const chart *v, const chart_box *b) {
    for (uint32_t i = 0; i < b->need_count; i++) {
        const chart_need n = v->needs[b->need + i];
        if (v->counters[n.counter].count < n.value)
            return false;
    }
    return true;
}

/* What a lane does at a moment: ends its box, or begins one. Whether it did anything. */
static bool chart_move(chart *v, uint32_t lane, double now) {
    chart_lane *l = &v->lanes[lane];
    if (l->at == l->count)
        return false;
    chart_box *b = &l->boxes[l->at];
    const chart_place place = {lane, l->at};
    if (l->runs && b->end <= now) {
        chart_raise(v, b->raises, b->times, place);
        l->runs = l->came = false;
        l->at++;
        return true;
    }
    const bool comes = !l->came;
    if (comes)
        chart_raise(v, b->brings, 1, place);
    l->came = true;
    if (l->runs || !chart_is_ready(v, b))
        return comes;
    b->begin = now;
    b->end = now + b->cost;
    return l->runs = true;
}

/* The next moment at which a box ends; false: none runs. */
static bool chart_next(const chart *v, double *now) {
    bool any = false;
    for (uint32_t i = 0; i < v->lane_count; i++) {
        const chart_lane *l = &v->lanes[i];
        if (!l->runs)
            continue;
        *now = any ? DTI_MIN(*now, l->boxes[l->at].end) : l->boxes[l->at].end;
        any = true;
    }
    return any;
}

/* False: some wait for ever. */
static bool chart_play(chart *v) {
    double now = 0;
    do {
        for (bool moved = true; moved;) {
            moved = false;
            for (uint32_t i = 0; i < v->lane_count; i++)
                moved = chart_move(v, i, now) || moved;
        }
    } while (chart_next(v, &now));
    v->end = now;
    for (uint32_t i = 0; i < v->lane_count; i++)
        if (v->lanes[i].at < v->lanes[i].count)
            return false;
    return true;
}

/* Idle time of devices as a share of the time at work; sums take none. */
static double chart_idle(const chart *v) {
    double work = 0, devices = 0;
    for (uint32_t i = 0; i < v->lane_count; i++) {
        double lane = 0;
        for (uint32_t k = 0; k < v->lanes[i].count; k++)
            lane += v->lanes[i].boxes[k].cost;
        work += lane;
        devices += v->lanes[i].count && v->lanes[i].boxes[0].kind != CHART_SUM;
    }
    return work > 0 ? (devices * v->end - work) / work : 0;
}

/* ---- what a need is met by */

static const chart_box *chart_at(const chart *v, chart_place p) {
    return &v->lanes[p.lane].boxes[p.box];
}

/* The box that raised the counter to the value; false: none did, or several lanes did together. */
static bool chart_need_by(const chart *v, chart_need n, chart_place *by) {
    const chart_counter *c = &v->counters[n.counter];
    if (!n.value || c->count < n.value)
        return false;
    *by = c->by[n.value - 1];
    for (uint32_t i = 0; i < n.value; i++)
        if (c->by[i].lane != by->lane)
            return false;
    return true;
}

/* ---- as text */

static const char *chart_number(uint32_t n, char text[24]) {
    if (n == CHART_NONE)
        return "-";
    snprintf(text, 24, "%u", n);
    return text;
}

static const char *chart_range(const chart_box *b, char text[24]) {
    if (b->what == CHART_NONE || b->from == b->what)
        return chart_number(b->what, text);
    snprintf(text, 24, "%u-%u", b->from, b->what);
    return text;
}

/* "forward 3 of device 0", "collective 1 of the others". */
static void chart_print_need(const chart *v, chart_need n, FILE *to) {
    chart_place by;
    const bool one = chart_need_by(v, n, &by);
    if (!one && (!n.value || n.value > v->counters[n.counter].count)) { /* they wait for ever */
        fprintf(to, "counter %u = %u", n.counter, n.value);
        return;
    }
    const chart_box *other = chart_at(v, v->counters[n.counter].by[n.value - 1]);
    const bool sum = other->kind == CHART_SUM;
    fprintf(to, "%s %u", chart_kinds[other->kind].name, one && !sum ? other->micro : other->what);
    if (sum)
        return;
    if (one)
        fprintf(to, " of device %u", by.lane);
    else
        fputs(" of the others", to);
    if (one && v->chunks)
        fprintf(to, ", part %u", other->part);
}

/* Needs of the same lane go without saying: its order meets them. */
static void chart_print_needs(const chart *v, uint32_t lane, const chart_box *b, FILE *to) {
    const char *before = "";
    if (b->waits)
        fputs("all before it", to), before = "; ";
    for (uint32_t i = 0; i < b->need_count; i++) {
        chart_place by;
        const chart_need n = v->needs[b->need + i];
        if (chart_need_by(v, n, &by) && by.lane == lane)
            continue;
        fputs(before, to);
        chart_print_need(v, n, to);
        before = "; ";
    }
    fputs(*before ? "\n" : "-\n", to);
}

static void chart_print_lane(const chart *v, uint32_t lane, FILE *to) {
    const chart_lane *l = &v->lanes[lane];
    fprintf(to, "\n%s\n%6s  %6s  %-15s  %4s  %5s  %7s  %7s  waits for\n", l->name, "action", "time",
            "kind", "part", "micro", "number", "buckets");
    for (uint32_t i = 0; i < l->count; i++) {
        const chart_box *b = &l->boxes[i];
        char text[4][24];
        fprintf(to, "%6u  %6.4g  %-15s  %4s  %5s  %7s  %7s  ", i, b->begin,
                chart_kinds[b->kind].name, chart_number(b->part, text[0]),
                chart_number(b->micro, text[1]), chart_range(b, text[2]),
                chart_number(b->buckets ? b->buckets : CHART_NONE, text[3]));
        chart_print_needs(v, lane, b, to);
    }
}

static void chart_print(const chart *v, FILE *to) {
    fprintf(to, "%s\n%.6g units of time, idle %.3f of the time at work\n", v->title, v->end,
            chart_idle(v));
    for (uint32_t i = 0; i < v->lane_count; i++)
        chart_print_lane(v, i, to);
}

/* ---- as a drawing */

enum { CHART_WIDTH = 1000, CHART_LEFT = 92, CHART_RIGHT = 14, CHART_TOP = 54, CHART_LANE = 30 };
enum { CHART_PITCH = 54, CHART_TICK = 4 /* of what takes no time */ };

static double chart_x(const chart *v, double time) {
    return CHART_LEFT + time / (v->end > 0 ? v->end : 1) * (CHART_WIDTH - CHART_LEFT - CHART_RIGHT);
}

static double chart_y(uint32_t lane) {
    return CHART_TOP + CHART_PITCH * (double)lane;
}

static void chart_draw_text(FILE *to, double x, double y, const char *more, const char *text) {
    fprintf(to, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, more);
    for (; *text; text++) {
        const char *as = *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : 0;
        if (as)
            fputs(as, to);
        else
            fputc(*text, to);
    }
    fputs("</text>\n", to);
}

/* From the box that meets a need to the one that has it: dark where that one began just then. */
static void chart_draw_arrow(const chart *v, uint32_t lane, const chart_box *b, chart_place by,
                             FILE *to) {
    const chart_box *from = chart_at(v, by);
    const bool down = by.lane < lane, now = from->end >= b->begin;
    fprintf(to,
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
            "marker-end=\"url(#%s)\"/>\n",
            chart_x(v, from->end), chart_y(by.lane) + (down ? CHART_LANE : 0),
            chart_x(v, b->begin) + 1, chart_y(lane) + (down ? -2 : CHART_LANE + 2),
            now ? "#333" : "#bbb", now ? "now" : "was");
}

static void chart_draw_arrows(const chart *v, uint32_t lane, FILE *to) {
    const chart_lane *l = &v->lanes[lane];
    for (uint32_t i = 0; i < l->count; i++) {
        const chart_box *b = &l->boxes[i];
        for (uint32_t k = 0; k < b->need_count; k++) {
            chart_place by;
            if (chart_need_by(v, v->needs[b->need + k], &by) && by.lane != lane)
                chart_draw_arrow(v, lane, b, by, to);
        }
    }
}

static void chart_draw_box(const chart *v, uint32_t lane, const chart_box *b, FILE *to) {
    const double x = chart_x(v, b->begin), width = chart_x(v, b->end) - x, y = chart_y(lane);
    char text[24];
    fprintf(to,
            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
            "fill-opacity=\"%.2f\" stroke=\"#fff\" stroke-width=\"%s\"/>\n",
            x, y, width, CHART_LANE, chart_kinds[b->kind].colour, b->shade ? 0.5 : 1.0,
            width > 4 ? "1" : "0.3");
    chart_number(b->micro, text);
    if (b->micro != CHART_NONE && width > 6.5 * (double)strlen(text))
        chart_draw_text(to, x + width / 2, y + CHART_LANE / 2 + 4,
                        " text-anchor=\"middle\" fill=\"#111\"", text);
}

/* What takes no time stands side by side below its lane: a tick for each; a collective on it. */
static void chart_draw_tick(const chart *v, uint32_t lane, const chart_box *b, uint32_t beside,
                            FILE *to) {
    const bool meets = b->kind == CHART_COLLECTIVE || b->kind == CHART_SUM;
    const double x = chart_x(v, b->begin) + (meets ? -1.5 : (double)beside * CHART_TICK);
    char text[24];
    fprintf(to, "<rect x=\"%.2f\" y=\"%.1f\" width=\"3\" height=\"%d\" fill=\"%s\"/>\n",
            DTI_MIN(x, CHART_WIDTH - 4.0), chart_y(lane) + (meets ? 0 : CHART_LANE + 1),
            meets ? CHART_LANE : 6, chart_kinds[b->kind].colour);
    if (b->kind == CHART_SUM)
        chart_draw_text(to, x - 3, chart_y(lane) + CHART_LANE / 2 + 4, " text-anchor=\"end\"",
                        chart_number(b->what, text));
}

static void chart_draw_lane(const chart *v, uint32_t lane, FILE *to) {
    const chart_lane *l = &v->lanes[lane];
    char name[12];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(l->name, ":"), l->name);
    chart_draw_text(to, CHART_LEFT - 10, chart_y(lane) + CHART_LANE / 2 + 4, " text-anchor=\"end\"",
                    name);
    fprintf(to, "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"#f3f3f3\"/>\n",
            CHART_LEFT, chart_y(lane), CHART_WIDTH - CHART_LEFT - CHART_RIGHT, CHART_LANE);
}

static void chart_draw_boxes(const chart *v, uint32_t lane, FILE *to) {
    const chart_lane *l = &v->lanes[lane];
    uint32_t beside = 0;
    for (uint32_t i = 0; i < l->count; i++) {
        const chart_box *b = &l->boxes[i];
        beside = i && b->begin > l->boxes[i - 1].begin ? 0 : beside;
        if (b->cost > 0)
            chart_draw_box(v, lane, b, to);
        else
            chart_draw_tick(v, lane, b, beside++, to);
    }
}

/* Units of time: a number at every 1, 2, 5, 10, ... of them. */
static void chart_draw_axis(const chart *v, FILE *to) {
    static const int steps[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000};
    const double y = chart_y(v->lane_count) - 8;
    size_t k = 0;
    while (k + 1 < sizeof steps / sizeof *steps && v->end / steps[k] > 20)
        k++;
    for (int t = 0; t <= (int)(v->end + 1e-6); t += steps[k]) {
        char text[24];
        snprintf(text, sizeof text, "%d", t);
        chart_draw_text(to, chart_x(v, t), y, " text-anchor=\"middle\" fill=\"#888\"", text);
    }
    chart_draw_text(to, CHART_LEFT - 10, y, " text-anchor=\"end\" fill=\"#888\"", "time");
}

/* The kinds that the chart has. */
static void chart_draw_legend(const chart *v, FILE *to) {
    double x = CHART_LEFT;
    const double y = chart_y(v->lane_count) + 16;
    for (int kind = 0; kind < CHART_KINDS; kind++) {
        bool has = false;
        for (uint32_t i = 0; i < v->lane_count; i++)
            for (uint32_t k = 0; k < v->lanes[i].count; k++)
                has = has || v->lanes[i].boxes[k].kind == kind;
        if (!has)
            continue;
        fprintf(to, "<rect x=\"%.1f\" y=\"%.1f\" width=\"11\" height=\"11\" fill=\"%s\"/>\n", x,
                y - 10, chart_kinds[kind].colour);
        chart_draw_text(to, x + 16, y, "", chart_kinds[kind].name);
        x += 34 + 6.3 * (double)strlen(chart_kinds[kind].name);
    }
}

static void chart_draw(const chart *v, FILE *to) {
    const int height = CHART_TOP + CHART_PITCH * (int)v->lane_count + 30;
    char line[96];
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#444\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n<defs>\n",
            CHART_WIDTH, height, CHART_WIDTH, height, CHART_WIDTH, height);
    for (int now = 0; now < 2; now++)
        fprintf(
            to,
            "<marker id=\"%s\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" markerWidth=\"5\" "
            "markerHeight=\"5\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"%s\"/></marker>\n",
            now ? "now" : "was", now ? "#333" : "#bbb");
    fputs("</defs>\n", to);
    chart_draw_text(to, 10, 18, " font-size=\"13\"", v->title);
    snprintf(line, sizeof line, "%.6g units of time, idle %.3f of the time at work", v->end,
             chart_idle(v));
    chart_draw_text(to, 10, 36, " fill=\"#888\"", line);
    for (uint32_t i = 0; i < v->lane_count; i++)
        chart_draw_lane(v, i, to);
    for (uint32_t i = 0; i < v->lane_count; i++)
        chart_draw_arrows(v, i, to);
    for (uint32_t i = 0; i < v->lane_count; i++)
        chart_draw_boxes(v, i, to);
    chart_draw_axis(v, to);
    chart_draw_legend(v, to);
    fputs("</svg>\n", to);
}
