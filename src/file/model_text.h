/* A model as lines of text, in files of its state. The lines "parameter 'fc.weight' [10, 784]", one
 * for each parameter and buffer, must be the same. After them each op has a line with label, shape
 * and attributes, "relu [B, 10]": to be read, and to name changes. They have no node numbers and no
 * bytes of structures. So one more field, or one more op, changes one line. */

static void dti_model_text_params(const dt_graph *g, dti_text *text);
/* The ops of the first `count` nodes. */
static void dti_model_text_ops(const dt_graph *g, uint32_t count, bool attributes, dti_text *text);
/* An op's attributes, " (i0 3, f1 0.5)": only those that are not 0. */
static void dti_model_text_attr(const dti_attr *attr, dti_text *text);
/* The text of a file of version 1, as dti_model_text_ops without attributes. */
static void dti_model_text_first(const char *file, size_t size, dti_text *text);

/* The line, from its beginning to the text's end. */
static dti_slice dti_model_line(const char *text, size_t size);
typedef struct dti_line_text {
    char text[161];
} dti_line_text;
static dti_line_text dti_show_line(dti_slice line); /* for a message */
/* Whether two texts differ; *line is where the first line that differs begins, in both. */
static bool dti_model_texts_differ(const char *a, size_t a_size, const char *b, size_t b_size,
                                   size_t *line);

/* INVALID: a parameter's line that only one of the two has; named. */
static dt_result dti_model_text_contract(dti_base *base, const char *path, const char *file,
                                         size_t size, const dti_text *here);
/* Warns of the first other difference. */
static void dti_model_text_warn(dti_base *base, const char *path, const char *file, size_t size,
                                const dti_text *here);
