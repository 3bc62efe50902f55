/* A workgroup's walk over runs of `length` elements that begin `pitch` apart, from element `first`
 * on. Each invocation takes every gl_WorkGroupSize.x'th element, and only the start divides.
 * Lengths, pitches and indices may as well be counted in fours. */
struct dti_runs {
    uint at;          /* this invocation's element, relative to the first run's start */
    uint run, inside; /* its run, and its place in that */
    uint elements, pitch, runs_on, inside_on;
};

dti_runs dti_runs_start(uint first, uint length, uint pitch)
{
    uint element = first + gl_LocalInvocationID.x, run = element / length;
    uint inside = element - run * length, runs_on = gl_WorkGroupSize.x / length;
    return dti_runs(run * pitch + inside, run, inside, length, pitch, runs_on,
                    gl_WorkGroupSize.x - runs_on * length);
}

void dti_runs_next(inout dti_runs r)
{
    r.at += r.runs_on * r.pitch + r.inside_on;
    r.run += r.runs_on;
    r.inside += r.inside_on;
    if (r.inside >= r.elements) {
        r.inside -= r.elements;
        r.run++;
        r.at += r.pitch - r.elements;
    }
}
