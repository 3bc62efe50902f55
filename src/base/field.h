/* Descriptions as tables: a row for each member, with its place, type, range and default. Defaults,
 * errors of range and the values that ranks compare are made from the rows. So a member is named
 * once. */

typedef enum dti_field_type {
    DTI_FIELD_INT,
    DTI_FIELD_INT_ZERO, /* whose DT_ZERO is 0 */
    DTI_FIELD_ENUM,     /* an int whose numbers have names */
    DTI_FIELD_U32,
    DTI_FIELD_U64,
    DTI_FIELD_BOOL,
    DTI_FIELD_F32,
    DTI_FIELD_F64, /* DT_ZERO is 0 */
    DTI_FIELD_TEXT,
    DTI_FIELD_POINTER, /* only whether it is set */
    DTI_FIELD_OTHER    /* not a number: its struct has rows of its own, or code checks it */
} dti_field_type;

#define DTI_FIELD_SIZE (sizeof(size_t) == 8 ? DTI_FIELD_U64 : DTI_FIELD_U32)

/* Which members have the same value. */
enum {
    DTI_SCOPE_ALL,  /* all ranks, and servers and their workers */
    DTI_SCOPE_JOB,  /* all ranks; a server's differs from its workers' */
    DTI_SCOPE_RANK, /* each rank has its own */
    DTI_SCOPE_CODE  /* all ranks; contract.c describes it */
};

/* The allowed values of a member, and the meaning of its 0. */
typedef struct dti_field_range {
    double least, most, otherwise;
    const char *const *names; /* of an enum's numbers 0 to most, NULL if not allowed */
    const char *kind;         /* "DT_THREADS_ALL (-1), or ", or NULL */
    bool above, below;        /* without the least or the most value itself */
    bool single;              /* rounded to f32 first */
} dti_field_range;

typedef struct dti_field {
    uint16_t offset;
    uint8_t type, scope, range, count; /* range 0: any, and 0 is 0; count: of an array */
} dti_field;

typedef struct dti_fields {
    const char *names; /* ".parallel.pipeline", one after the other */
    const dti_field *rows;
    const dti_field_range *ranges;
    uint32_t count;
} dti_fields;

#define DTI_RANGE_ANY 0
/* An enum, by an array of its enumerators. */
#define DTI_ENUMERATOR(x) [x] = #x
#define DTI_RANGE_ENUM(list) .most = DTI_COUNT(list) - 1, .names = list
/* Makes ranges and their names of a list X(name, members of a dti_field_range). */
#define DTI_RANGE_NAME(name, ...) DTI_RANGE_##name,
#define DTI_RANGE_ROW(name, ...) {__VA_ARGS__},
#define DTI_RANGES(name, LIST)                                                                     \
    enum { name##_any = DTI_RANGE_ANY, LIST(DTI_RANGE_NAME) };                                     \
    static const dti_field_range name[] = {{0}, LIST(DTI_RANGE_ROW)}
/* Makes rows of a list X(struct, member, type, scope, range, count). */
#define DTI_FIELD_NAME(S, m, type, scope, range, n) "." #m "\0"
#define DTI_FIELD_ROW(S, m, type, scope, range, n)                                                 \
    {(uint16_t)offsetof(S, m), DTI_FIELD_##type, DTI_SCOPE_##scope, DTI_RANGE_##range, n},
#define DTI_FIELDS(name, LIST, ranges)                                                             \
    static const dti_field name##_rows[] = {LIST(DTI_FIELD_ROW)};                                  \
    static const dti_fields name = {LIST(DTI_FIELD_NAME), name##_rows, ranges,                     \
                                    DTI_COUNT(name##_rows)}

/* Goes through the rows: */
typedef struct dti_field_at {
    const dti_field *row;
    const char *name;
} dti_field_at;

/* Defaults in their places. */
static void dti_fields_resolve(const dti_fields *fields, void *of);
/* Adds "prefixNAME is VALUE; it must be ..." for each member out of its range; of = resolved. */
static void dti_fields_problems(dti_text *text, const char *prefix, const dti_fields *fields,
                                const void *of);
/* INVALID: the first of these. */
static dt_result dti_fields_check(dti_base *base, const char *prefix, const dti_fields *fields,
                                  const void *of);
/* A line for each member that ranks share: prefix, name, value. servers: only those that servers
 * share too. */
static void dti_fields_describe(dti_text *text, const char *prefix, const dti_fields *fields,
                                const void *of, bool servers);
/* The member at an offset, which must exist. */
static dti_field_at dti_fields_find(const dti_fields *fields, size_t offset);
/* The name of an enum's number, or NULL. */
static const char *dti_field_enumerator(const dti_field_range *r, double x);
/* The number at a place: 0 or 1 of a pointer. */
static double dti_field_number(uint32_t type, const void *at);
