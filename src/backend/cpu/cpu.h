/* The CPU backend as the context sees it. isa_max: DTI_ISA_..., the best instruction set to use. */
static void dti_cpu_info(dti_base *base, int isa_max, dt_device_info *info);
static dt_result dti_cpu_open(dti_base *base, int isa_max, dti_device **out);
