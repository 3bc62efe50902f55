/* Takes back what prelude.h changed: the host's own code after this is compiled as it asked. */

#ifdef __clang__
#pragma float_control(pop)
#pragma clang diagnostic pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif
#pragma pop_macro("I")
