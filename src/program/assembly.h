/* An assembly: programs on devices of their own that make one step together, as parts of a model
 * that is larger than a device. Their segments wait on each other: an edge takes what one program's
 * segment gives (an output, or the gradient of an input) to what another's needs (an input, or the
 * gradient of an output). All of them update their stores, or none does. */

/* Of programs by number. forward: y is an output of `from`, x the input of `to` that gets it.
 * gradient: the way back, dL/dy of an input y of `from` (dti_joint) to x of `to`, which has x in
 * host_gradients. */
typedef struct dti_edge {
    uint32_t from, to;
    dt_tensor y, x;
    bool gradient;
} dti_edge;

typedef struct dti_wire { /* an edge, found */
    uint32_t from, to;
    const dti_port *out, *in;
    bool delivered; /* in the step under way */
} dti_wire;

typedef struct dti_assembly {
    dti_base *base; /* of the first program's context: its errors */
    dt_program **programs;
    uint32_t program_count;
    dti_wire *wires;
    uint32_t wire_count;
} dti_assembly;

/* dt_program_create of a program for an assembly. */
static dt_result dti_program_create_joint(dt_store *store, const dt_program_desc *desc,
                                          const dti_joint *joint, dt_program **out);
/* The programs are of that function, of a store each, and outlive it. INVALID, with *out NULL: an
 * edge that does not fit, or segments that would wait on each other for ever. UNSUPPORTED: a
 * clipped norm, which is one over all of them. */
static dt_result dti_assembly_create(dt_program *const *programs, uint32_t program_count,
                                     const dti_edge *edges, uint32_t edge_count,
                                     dti_assembly **out);
static void dti_assembly_destroy(dti_assembly *a); /* NULL is fine */
/* One step of all, waited for; allocates nothing. reports: NULL, or one for each program. Errors:
 * as dt_program_run; of one that fails nothing has changed in any store, but where a device is
 * lost in the update itself, which the text says. */
static dt_result dti_assembly_run(dti_assembly *a, const dt_step_desc *step, dt_report *reports);
