/* The average of weights: how far a step moves it. In the state it follows the moments, so all code
 * that keeps, moves and sends those includes it. */

static double dti_average_part(const dt_average *a, uint64_t step, uint64_t from) {
    const uint64_t start = DTI_MAX(a->start, from);
    if (a->kind == DT_AVERAGE_NONE)
        return 0.0;
    if (step <= start)
        return 1.0;
    if ((step - start) % a->every)
        return 0.0;
    const double n = (double)((step - start) / a->every);
    if (a->kind == DT_AVERAGE_SWA)
        return 1.0 / (n + 1.0);
    return 1.0 - (a->warmup ? DTI_MIN(a->decay, (1.0 + n) / (10.0 + n)) : a->decay);
}
