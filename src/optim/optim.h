/* Optimizers: between the ops, whose launches the commit segment continues, and the backends that run
 * them. Knows no store and no program. */

/* The defaults in their places. DT_ZERO has become 0, so it is not done twice. */
static dt_optim_desc dti_optim_resolved(const dt_optim_desc *desc);
/* Whether a step may have this rate: not negative, and finite as an f32 in every group. */
static bool dti_optim_lr_fits(const dt_optim_desc *resolved, double lr);
static double dti_optim_lr_max(const dt_optim_desc *resolved);
static void dti_optim_check(const dt_optim_desc *d, dti_text *problems);
/* The parameter group that takes a parameter of this name; 0: none of .groups. */
static uint32_t dti_optim_group_of(const dt_optim_desc *d, const char *name);
/* How many moments it keeps of each parameter. */
static uint32_t dti_optim_moments(const dt_optim_desc *resolved);
