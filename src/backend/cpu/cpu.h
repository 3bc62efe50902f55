/* What those above ask of the CPU backend by name. */

/* Of a device that is the CPU: for hosts that compute what its launches would, in their bits. */
static const dti_isa_kernels *dti_cpu_kernels(const dti_device *device);
