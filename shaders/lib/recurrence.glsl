/* What recurrences share: a workgroup walks over the steps of up to four samples, a vector for each
 * unit, which is an invocation's for all of them. What others wrote is read behind a barrier. */
layout(binding = 0) readonly buffer buffer_x { float x[]; };
layout(binding = 1) readonly buffer buffer_w { float w[]; };
layout(binding = 2) readonly buffer buffer_s { float s[]; };
layout(binding = 3) coherent buffer buffer_y { float y[]; };

const bool LSTM = spec0 == DTI_RECURRENCE_LSTM, GRU = spec0 == DTI_RECURRENCE_GRU;
const bool RELU = spec0 == DTI_RECURRENCE_RELU;
const uint GATES = LSTM ? 4u : GRU ? 3u : 1u, LANES = 128u;

shared vec4 side[LANES];
uint lane, first_sample, here; /* samples of this workgroup */
uvec4 lengths;

bool has(uint flag)
{
    return (args.flags & flag) != 0u;
}

uint cells()
{
    return LSTM ? args.hidden : 0u;
}

/* Gates and cell of a step. */
uint units()
{
    return LSTM ? 5u * args.hidden : GRU ? 4u * args.hidden : 0u;
}

/* What is kept of a step. */
uint kept_size()
{
    return units() + (has(DTI_RECURRENCE_PROJECTED) ? args.hidden : 0u) + args.size;
}

/* Where a sample's kept values of step t begin, behind its y and last states. */
uint kept_at(uint t)
{
    return args.steps * args.size + args.size + cells() + t * kept_size();
}

uint step_of(uint i)
{
    return has(DTI_RECURRENCE_REVERSE) ? args.steps - 1u - i : i;
}

/* Whether t is where the sample's walk begins; else `before` is the step that it comes from. */
bool begins(uint i, uint t, out uint before)
{
    before = has(DTI_RECURRENCE_REVERSE) ? t + 1u : t - 1u;
    return has(DTI_RECURRENCE_REVERSE) ? t + 1u == lengths[i] : t == 0u;
}

/* state: where the sample's state before lies; false: there is nothing to do for this workgroup. */
bool open_samples(uint state)
{
    lane = gl_LocalInvocationID.x;
    first_sample = dti_group() * args.block;
    here = first_sample < args.samples ? min(args.block, args.samples - first_sample) : 0u;
    for (uint i = 0u; i < 4u; i++) {
        lengths[i] = i < here ? args.steps : 0u;
        if (i < here && has(DTI_RECURRENCE_LENGTHS)) {
            float n = s[args.s_offset + (first_sample + i) * args.s_sample + state + args.size + cells()];
            lengths[i] = uint(clamp(n, 0.0, float(args.steps)));
        }
    }
    return here > 0u;
}

/* Of four rows. */
vec4 weights(uint at)
{
    uint row = args.w_row;
    return vec4(w[at], w[at + row], w[at + 2u * row], w[at + 3u * row]);
}

/* All that was written so far is seen by the workgroup. */
void meet()
{
    memoryBarrierBuffer();
    barrier();
}
