/* Bytes of a log before they are written. */

/* ---- proto.c: protocol buffers' wire format (protobuf.dev, "Encoding"), which TensorBoard
 * reads */
static void dti_proto_bytes(dti_text *to, uint32_t field, const void *data, size_t bytes);
static void dti_proto_text(dti_text *to, uint32_t field, const char *text);
static void dti_proto_whole(dti_text *to, uint32_t field, uint64_t value); /* a varint */
static void dti_proto_f32(dti_text *to, uint32_t field, float value);
static void dti_proto_f64(dti_text *to, uint32_t field, double value);
/* A message in a message: bytes that are added to `to` in between belong to it. */
static size_t dti_proto_open(dti_text *to, uint32_t field);
static void dti_proto_close(dti_text *to, size_t opened);

/* ---- png.c: a picture, not compressed. pixels: [height, width, channels] */
static void dti_png_write(dti_text *to, const uint8_t *pixels, uint32_t width, uint32_t height,
                          uint32_t channels);

/* ---- event.c: a record of an event file (TFRecord's frame around an Event) with one value */
/* Begins one: bytes that are added until the end are a Summary.Value of that name. */
typedef struct dti_event {
    size_t record, summary, value;
} dti_event;
static dti_event dti_event_begin(dti_text *to, double seconds, uint64_t step, const char *name);
static void dti_event_end(dti_text *to, dti_event e);
static void dti_event_version(dti_text *to, double seconds); /* the first of a file */
static void dti_event_start(dti_text *to, double seconds, uint64_t step);
/* metadata of a plugin: fields of a Summary.Value */
static void dti_event_plugin(dti_text *to, const char *plugin, const dti_text *content);
static void dti_event_histogram(dti_text *to, const float *values, size_t count);
