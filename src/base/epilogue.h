/* Undoes prelude.h's changes: the host's code after this is compiled with its own flags. */

#ifdef __clang__
DTI_OPTIMIZE_SIZE_END
#pragma float_control(pop)
#pragma clang diagnostic pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#ifndef DT_IMPLEMENTATION /* GCC looks for functions of other parts at the end of the file */
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#endif
#pragma pop_macro("I")
