/* Whatever a caller may pass: the machine that tries it. A row is a valid call whose arguments, and
 * the fields of whose descriptions, pass through slots:
 *
 *     ROW(STORE, dt_store_read, ) {
 *         return RESULT(dt_store_read(OBJECT(here.store), INDEX(0, 2), ...));
 *     }
 *
 * The machine makes the call again and again; each time one slot gives one of the bad values of its
 * type in place of the right one. Such a call must be refused with a text, and leave all that
 * there is as it was; at last nothing is replaced, and the call must be taken. Then it is made with
 * memory for 0, 1, 2 and more allocations, until they suffice. A call that fails has a text, leaks
 * nothing and changes no value. What is not in a slot is right whatever its value is (NULL for a
 * description, any seed). `./build.sh check calls` fails when a public function has no row. */
#ifndef DTRAIN_TESTS_WRONG_ARGS_H
#define DTRAIN_TESTS_WRONG_ARGS_H

#include "dtrain.h"

#include "harness.h"

#include <float.h>
#include <limits.h>
#include <stdlib.h>

/* ---- What there is to call with */

typedef struct world {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, z, label, index, image, signal, term; /* inputs and tensors computed from them */
    dt_tensor w, b, table, left, right, logits, loss, weights, weighted;
    dt_tensor volume, deep, kernel, kernel1, back, back1, bias, scale, mean, variance;
    dt_store *store;
    dt_program *train, *predict;
    dt_trainer *trainer;
    dt_comm *comm, *pair[2];
    char text[1024]; /* the newest error that the logger got */
    int errors;      /* how many */
    int held;        /* blocks of memory */
    int until;       /* the number of allocations that are left; -1: no end */
    bool starved;    /* there was one too many */
} world;

extern world here, there; /* `there` has another context, up to a graph */

extern float wrong_x[64];       /* samples of `x`, and room for values */
extern int32_t wrong_labels[8]; /* and of `label` */

const char *wrong_path(const char *name); /* in a folder of the test run's */
const char *wrong_saved(void);            /* the state of `here` before any step */
void wrong_empty(const char *folder);
dt_dataset wrong_dataset(void); /* 8 samples for a trainer */
dt_trainer_desc wrong_trainer(void);
dt_allocator wrong_allocator(world *w);
dt_logger wrong_logger(world *w);

/* ---- Slots */

typedef struct attack {
    int slot, variant; /* which slot is replaced, by which of its bad values */
    int seen;          /* slots that this call has passed */
    int variants;      /* bad values of that slot; 0: the call is as it should be */
    bool null;         /* a pointer is NULL: the text says so */
    bool silent;       /* a nil tensor, or no object to hold a text */
    char what[160];    /* for messages */
} attack;

extern attack wrong;

/* Whether this slot is replaced, by its bad value number wrong.variant. */
bool wrong_turn(const char *name, int variants);

void *wrong_pointer(const char *name, void *valid, bool object);
const char *wrong_text(const char *name, const char *valid, const char *const *bad, int count);
int64_t wrong_integer(const char *name, int64_t valid, const int64_t *bad, int count);
double wrong_number(const char *name, double valid, const double *bad, int count);
size_t wrong_bytes(const char *name, size_t valid);
dt_shape wrong_shape(const char *name, dt_shape valid, bool axes);
dt_comm_work wrong_work(const char *name, dt_comm_work valid);
/* What else is wrong, apart from nil and tensors of other graphs. */
enum { WRONG_F32 = 1, WRONG_I32 = 2, WRONG_TERM = 4, WRONG_FOREIGN = 8, WRONG_NIL = 16 };
dt_tensor wrong_tensor(const char *name, dt_tensor valid, int kinds);

/* An object, and any other pointer that is needed: NULL. */
#define OBJECT(...) wrong_pointer(#__VA_ARGS__, (void *)(uintptr_t)(__VA_ARGS__), true)
#define POINTER(...) wrong_pointer(#__VA_ARGS__, (void *)(uintptr_t)(__VA_ARGS__), false)
/* Texts: bad ones are listed. */
#define TEXT(valid, ...)                                                                           \
    wrong_text(#valid, valid, (const char *const[]){__VA_ARGS__},                                  \
               (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))
#define NAME(valid) TEXT(valid, NULL, "")
#define PATH(valid) TEXT(valid, NULL, "", "/", "/nowhere/at/all")
/* Integers: bad ones are listed, and INT_MIN always is. */
#define INTEGER(valid, ...)                                                                        \
    wrong_integer(#valid, valid, (const int64_t[]){__VA_ARGS__},                                   \
                  (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
#define INT(valid, ...) ((int)INTEGER(valid, INT_MIN, __VA_ARGS__))
#define COUNT(valid) INT(valid, 0, -1, INT_MAX)
#define COUNT_OR_0(valid) INT(valid, -1, INT_MAX)
#define INDEX(valid, count) INT(valid, -1, count, INT_MAX)
#define AXIS(valid, rank) INT(valid, rank, -(rank)-1, INT_MAX)
#define SIZE(valid) INTEGER(valid, 0, -1, INT64_MIN, INT64_MAX)
#define ENUM(valid, count) INT(valid, -1, count, INT_MAX)
#define NUMBER(valid, ...)                                                                         \
    wrong_number(#valid, valid, (const double[]){(double)NAN, __VA_ARGS__},                        \
                 (int)(sizeof((const double[]){(double)NAN, __VA_ARGS__}) / sizeof(double)))
#define AT_LEAST_0(valid) NUMBER(valid, -1.0, (double)INFINITY, -(double)INFINITY)
#define FINITE(valid) NUMBER(valid, (double)INFINITY, -(double)INFINITY)
#define BYTES(valid) wrong_bytes(#valid, valid)
#define SHAPE(...) wrong_shape(#__VA_ARGS__, __VA_ARGS__, false)
#define AXES(...) wrong_shape(#__VA_ARGS__, __VA_ARGS__, true)
#define WORK(valid) wrong_work(#valid, valid)
/* Tensors: F32 must be one, ANY may be i32 too. The only one of a call cannot be foreign. */
#define F32(valid) wrong_tensor(#valid, valid, WRONG_I32 | WRONG_TERM | WRONG_FOREIGN | WRONG_NIL)
#define I32(valid) wrong_tensor(#valid, valid, WRONG_F32 | WRONG_TERM | WRONG_FOREIGN | WRONG_NIL)
#define ONLY_F32(valid) wrong_tensor(#valid, valid, WRONG_I32 | WRONG_TERM | WRONG_NIL)
#define ONLY_I32(valid) wrong_tensor(#valid, valid, WRONG_F32 | WRONG_TERM | WRONG_NIL)
#define ONLY_ANY(valid) wrong_tensor(#valid, valid, WRONG_TERM | WRONG_NIL)
#define MAYBE_F32(valid) MAYBE(valid, WRONG_I32 | WRONG_TERM)
#define MAYBE(valid, kinds) wrong_tensor(#valid, valid, kinds | WRONG_FOREIGN)
#define TENSOR(valid) wrong_tensor(#valid, valid, WRONG_FOREIGN | WRONG_NIL)
#define ONLY_TENSOR(valid) wrong_tensor(#valid, valid, WRONG_NIL)

/* In a row, of what comes before its call. */
#define SURE(condition) CHECK((condition) || here.starved)

/* ---- Rows */

typedef enum answer {
    TAKEN,
    REFUSED, /* with a text */
    NEUTRAL, /* a getter's value for what is not there: no text */
    NOTHING  /* a function that returns nothing */
} answer;

extern dt_result wrong_newest; /* of what a row's call returned */
answer wrong_result(dt_result result);
answer wrong_nil(dt_tensor made);
#define RESULT(...) wrong_result(__VA_ARGS__)
#define NIL(...) wrong_nil(__VA_ARGS__)
#define GIVES(...) ((__VA_ARGS__) ? TAKEN : NEUTRAL)
#define DOES(...) ((__VA_ARGS__), NOTHING)

/* What `here` must have before the call: made again for each row, a graph for each call. */
typedef enum wrong_level { GRAPH, STORE, TRAINER, COMM } wrong_level;

typedef struct row {
    const char *function, *aspect;
    wrong_level level;
    answer (*call)(void);
    struct row *next;
} row;

void wrong_register(row *r);

/* ---- The machine's parts, for the one of test_busy.c */

const row *wrong_rows(void);
void wrong_open(world *w, wrong_level level);
void wrong_close(world *w); /* and nothing is left */
/* What `here` does as it should: a step and the weights after it, or a sum; 0: it does not. */
uint64_t wrong_works(wrong_level level);
/* Called first by the allocator ("allocator") and for an error ("logger"); NULL: not. */
extern void (*wrong_hook)(const char *callback);
extern dt_job_system wrong_jobs; /* of contexts that are made from now on */

#define ROW(level, function, aspect)                                                               \
    static answer wrong_call_##function##aspect(void);                                             \
    __attribute__((constructor)) static void wrong_register_##function##aspect(void) {             \
        static row entry = {#function, #aspect, level, wrong_call_##function##aspect, NULL};       \
        wrong_register(&entry);                                                                    \
    }                                                                                              \
    static answer wrong_call_##function##aspect(void)

#endif
