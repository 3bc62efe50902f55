/* Functions of the CPU backend that the layers above call by name. */

/* For a device that is the CPU: for hosts that compute what its launches would, with the same
 * bits. */
static const dti_isa_kernels *dti_cpu_kernels(const dti_device *device);
