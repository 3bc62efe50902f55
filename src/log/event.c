/* TensorBoard's event files: records in TFRecord's frame (length, its masked CRC32C, data, its
 * masked CRC32C), each an Event of tensorflow/core/util/event.proto with one Summary.Value of
 * tensorflow/core/framework/summary.proto. Numbers of fields are those of these files. */

enum {
    DTI_EVENT_TIME = 1,
    DTI_EVENT_STEP,
    DTI_EVENT_VERSION,
    DTI_EVENT_SUMMARY = 5,
    DTI_EVENT_SESSION = 7
};
enum { DTI_EVENT_VALUE = 1, DTI_EVENT_TAG = 1, DTI_EVENT_HISTOGRAM = 5, DTI_EVENT_METADATA = 9 };
enum { DTI_METADATA_PLUGIN = 1, DTI_PLUGIN_NAME = 1, DTI_PLUGIN_CONTENT };
enum {
    DTI_HISTO_MIN = 1,
    DTI_HISTO_MAX,
    DTI_HISTO_COUNT,
    DTI_HISTO_SUM,
    DTI_HISTO_SQUARES,
    DTI_HISTO_LIMITS,
    DTI_HISTO_BUCKETS
};

#define DTI_EVENT_HEAD 12 /* length, and its CRC */
#define DTI_EVENT_INTERVALS 64

static uint32_t dti_event_masked(const void *data, size_t bytes) {
    const uint32_t crc = dti_crc32c(0, data, bytes);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static size_t dti_event_open(dti_text *to, double seconds, uint64_t step) {
    const size_t record = to->size;
    dti_text_add_bytes(to, (const char[DTI_EVENT_HEAD]){0}, DTI_EVENT_HEAD);
    dti_proto_f64(to, DTI_EVENT_TIME, seconds);
    dti_proto_whole(to, DTI_EVENT_STEP, step);
    return record;
}

static void dti_event_close(dti_text *to, size_t record) {
    uint8_t crc[4];
    if (!to->ok)
        return;
    uint8_t *head = (uint8_t *)to->data + record;
    const size_t size = to->size - record - DTI_EVENT_HEAD;
    dti_put64(head, size);
    dti_put32(head + 8, dti_event_masked(head, 8));
    dti_put32(crc, dti_event_masked(head + DTI_EVENT_HEAD, size));
    dti_text_add_bytes(to, crc, sizeof crc);
}

static dti_event dti_event_begin(dti_text *to, double seconds, uint64_t step, const char *name) {
    dti_event e = {.record = dti_event_open(to, seconds, step)};
    e.summary = dti_proto_open(to, DTI_EVENT_SUMMARY);
    e.value = dti_proto_open(to, DTI_EVENT_VALUE);
    dti_proto_text(to, DTI_EVENT_TAG, name);
    return e;
}

static void dti_event_end(dti_text *to, dti_event e) {
    dti_proto_close(to, e.value);
    dti_proto_close(to, e.summary);
    dti_event_close(to, e.record);
}

static void dti_event_version(dti_text *to, double seconds) {
    const size_t record = dti_event_open(to, seconds, 0);
    dti_proto_text(to, DTI_EVENT_VERSION, "brain.Event:2");
    dti_event_close(to, record);
}

static void dti_event_start(dti_text *to, double seconds, uint64_t step) {
    const size_t record = dti_event_open(to, seconds, step);
    const size_t session = dti_proto_open(to, DTI_EVENT_SESSION);
    dti_proto_whole(to, 1, 1); /* SessionLog.status: START */
    dti_proto_close(to, session);
    dti_event_close(to, record);
}

static void dti_event_plugin(dti_text *to, const char *plugin, const dti_text *content) {
    const size_t metadata = dti_proto_open(to, DTI_EVENT_METADATA);
    const size_t data = dti_proto_open(to, DTI_METADATA_PLUGIN);
    dti_proto_text(to, DTI_PLUGIN_NAME, plugin);
    if (content && content->ok && content->size)
        dti_proto_bytes(to, DTI_PLUGIN_CONTENT, content->data, content->size);
    dti_proto_close(to, data);
    dti_proto_close(to, metadata);
}

typedef struct dti_event_spread {
    double low, high, sum, squares, count;
    double buckets[DTI_EVENT_INTERVALS];
} dti_event_spread;

static void dti_event_measure(dti_event_spread *s, const float *values, size_t count) {
    *s = (dti_event_spread){0};
    for (size_t i = 0; i < count; i++) {
        const double v = (double)values[i];
        if (!dti_fits_f32(v))
            continue;
        s->low = s->count > 0.0 ? DTI_MIN(s->low, v) : v;
        s->high = s->count > 0.0 ? DTI_MAX(s->high, v) : v;
        s->sum += v;
        s->squares += v * v;
        s->count += 1.0;
    }
    const double width = (s->high - s->low) / DTI_EVENT_INTERVALS;
    for (size_t i = 0; i < count; i++) {
        const double v = (double)values[i];
        if (!dti_fits_f32(v))
            continue;
        const double at = width > 0.0 ? (v - s->low) / width : 0.0;
        s->buckets[(int)DTI_MIN(at, (double)(DTI_EVENT_INTERVALS - 1))] += 1.0;
    }
}

static void dti_event_histogram(dti_text *to, const float *values, size_t count) {
    dti_event_spread s;
    dti_event_measure(&s, values, count);
    const double width = (s.high - s.low) / DTI_EVENT_INTERVALS;
    const size_t histogram = dti_proto_open(to, DTI_EVENT_HISTOGRAM);
    dti_proto_f64(to, DTI_HISTO_MIN, s.low);
    dti_proto_f64(to, DTI_HISTO_MAX, s.high);
    dti_proto_f64(to, DTI_HISTO_COUNT, s.count);
    dti_proto_f64(to, DTI_HISTO_SUM, s.sum);
    dti_proto_f64(to, DTI_HISTO_SQUARES, s.squares);
    for (int i = 0; i < DTI_EVENT_INTERVALS; i++) /* repeated, each with its key */
        dti_proto_f64(to, DTI_HISTO_LIMITS,
                      i + 1 < DTI_EVENT_INTERVALS ? s.low + width * (i + 1) : s.high);
    for (int i = 0; i < DTI_EVENT_INTERVALS; i++)
        dti_proto_f64(to, DTI_HISTO_BUCKETS, s.buckets[i]);
    dti_proto_close(to, histogram);
}
