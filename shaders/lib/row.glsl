/* A row of contiguous values in units. A unit is four that follow each other, where all rows permit
 * it (spec3, DTI_ROW_FOURS), or one, which is .x of a vector. Sums over a row depend on the
 * unit. */
#include "sums.glsl"
layout(constant_id = 4) const uint spec3 = 0u;
const bool FOURS = (spec3 & DTI_ROW_FOURS) != 0u;
const bool ALL_HELD = DTI_ALL_HELD;
const uint WIDTH = (spec3 & DTI_ROW_FOURS) != 0u ? 4u : 1u;

#define DTI_EACH_UNIT(u, first, units)                                                             \
    for (uint u = gl_LocalInvocationID.x + (first); u < (units); u += gl_WorkGroupSize.x)

/* Branches, so that only one of the two is read or computed. Of a binding of DTI_READS (storage.glsl). */
#define DTI_ROW_READ(name, x)                                                                      \
    vec4 name(uint unit)                                                                           \
    {                                                                                              \
        if (FOURS)                                                                                 \
            return x##_get4(unit);                                                                 \
        return vec4(x##_get(unit), 0.0, 0.0, 0.0);                                                 \
    }

float dti_row_sum(vec4 v)
{
    return FOURS ? (v.x + v.y) + (v.z + v.w) : v.x;
}

DTI_SUMS_OF(float)

/* A sum over this invocation's units. Runs of units, whose four meet at its end, come first, and
 * then their sums as lib/sums.glsl has them. */
struct dti_row_sums {
    vec4 run;
    uint count;
    dti_sum_float runs;
};
#define DTI_ROW_SUMS dti_row_sums(vec4(0.0), 0u, DTI_SUM_NONE(float))

void dti_row_add(inout dti_row_sums s, vec4 value)
{
    s.run += value;
    s.count++;
    if (s.count % DTI_RUN == 0u) {
        dti_add(s.runs, dti_row_sum(s.run));
        s.run = vec4(0.0);
    }
}

float dti_row_total(dti_row_sums s)
{
    return dti_sum(s.runs) + dti_row_sum(s.run);
}

vec4 dti_row_exp(vec4 v)
{
    vec4 power = vec4(dti_m_exp(v.x), 0.0, 0.0, 0.0);
    if (FOURS)
        power.yzw = vec3(dti_m_exp(v.y), dti_m_exp(v.z), dti_m_exp(v.w));
    return power;
}

float dti_row_max(float high, vec4 v)
{
    if (FOURS)
        return dti_max(dti_max(high, dti_max(v.x, v.y)), dti_max(v.z, v.w));
    return dti_max(high, v.x);
}
