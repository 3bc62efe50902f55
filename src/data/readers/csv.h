/* CSV. A cursor over a file gives row after row of texts (csv_text.c). The first reading finds the
 * kinds of columns (csv_scan.c). Then rows are read again as numbers (csv.c). */

#define DTI_CSV_WINDOW ((size_t)1 << 16)
#define DTI_CSV_FIELD_MAX ((size_t)1 << 20) /* bytes of a row: a quote that does not end is found */
#define DTI_CSV_COLUMNS_MAX 65536
#define DTI_CSV_STRIDE 32 /* rows between two that have their place kept */

typedef struct dti_csv_cursor {
    dti_base *base;
    dti_reader reader;
    char *window;
    size_t at, filled; /* in the window */
    char delimiter;
    uint64_t line;     /* of the next byte, from 1 */
    uint64_t row_line; /* of the row that was read */
    dti_text row;      /* its values, each followed by a zero */
    size_t *fields;    /* where they begin */
    size_t capacity, count;
    bool settled;     /* no row is longer than those before: nothing is allocated any more */
    dt_result result; /* of all calls since it was opened, or moved */
} dti_csv_cursor;

typedef struct dti_csv_column {
    char *name;
    dt_csv_kind kind;
    dt_csv_rule rule;
    uint64_t missing, count;        /* missing values, and others */
    double min, max, mean, squares; /* squares: of differences from the mean */
    char **names;                   /* of categories, in the order of their bytes */
    size_t categories, capacity;
    uint64_t odd, almost; /* values that are not numbers, and those of them that look like some */
    uint64_t odd_line;    /* the line of the first of them; its text, and why it is not a number (or
                           * NULL) */
    dti_shown odd_text;
    const char *odd_why;
} dti_csv_column;

typedef struct dti_csv_skipped { /* bad rows that are left out; the first one's line and reason */
    uint64_t rows, line;
    char why[400];
} dti_csv_skipped;

struct dt_csv {
    dti_base *base;
    char *path;
    dti_csv_cursor cursor;
    dti_csv_column *columns;
    uint32_t count;
    bool known; /* columns are another file's: nothing is found out */
    bool skip_bad;
    size_t categories_max;
    uint64_t rows, skipped, next; /* next: the row at the cursor */
    uint64_t *places;             /* of every DTI_CSV_STRIDE-th row: its byte, and its line */
    size_t place_capacity;
    const void *home; /* the thread that opened it */
    dti_base reading; /* holds errors of dt_csv_read, which may be on the trainer's thread */
};

/* ---- csv_text.c */
static dt_result dti_csv_cursor_open(dti_base *base, const char *path, char delimiter,
                                     dti_csv_cursor *c);
static void dti_csv_cursor_close(dti_csv_cursor *c);
static dt_result dti_csv_cursor_seek(dti_csv_cursor *c, uint64_t at, uint64_t line);
static uint64_t dti_csv_cursor_place(const dti_csv_cursor *c);
/* The next row that is not empty; *more false: the end. */
static dt_result dti_csv_cursor_next(dti_csv_cursor *c, bool *more);
static const char *dti_csv_field(const dti_csv_cursor *c, size_t i);
static bool dti_csv_is_missing(const char *text);
/* Why a text that looks like a number is not one; NULL: it does not look like one. */
static const char *dti_csv_almost(const char *text);
/* A decimal number as in C, in any locale, to 14 digits at least. False: not a number, or not
 * finite. */
static bool dti_csv_number(const char *text, double *value);

/* ---- csv_scan.c: reads all and fills in dt_csv. */
static dt_result dti_csv_scan(dt_csv *csv, const dt_csv_desc *desc);
/* Whether the cursor's row counts, by the known columns. *why, of `size` bytes, is the reason if it
 * is an error. */
typedef enum dti_csv_verdict { DTI_CSV_KEPT, DTI_CSV_LEFT, DTI_CSV_BAD } dti_csv_verdict;
static dti_csv_verdict dti_csv_judge(const dt_csv *csv, char *why, size_t size);
static int dti_csv_find(const dt_csv *csv, const char *name); /* csv.c; -1: not found */
static size_t dti_csv_category(const dti_csv_column *column, const char *text, bool *found);
