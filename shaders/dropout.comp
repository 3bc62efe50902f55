/* y[i] = keep(i) ? x[i] * scale : 0, keep(i) = random word of element first + i below the
 * threshold. May run in place. A threshold of 0: the word itself as a number, without x. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/step.glsl"
#include "lib/fours.glsl"
#include "lib/storage.glsl"
#include "lib/rng.glsl"

DTI_PUSH(DTI_ARGS_DROPOUT)
DTI_READS(0u, x)
DTI_WRITES(1u, writeonly, y)

/* The words of four elements that follow each other: of one counter, or of two. Where an invocation
 * has one element (fours.glsl), the first alone is right. */
uvec4 words_of(uint i, uvec2 key)
{
    uint skip;
    uvec4 counter = dti_random_counter(i, args.first, dti_step_u32(DTI_STEP_FIRST_ROW),
                                       args.row_elements, dti_step_u32(DTI_STEP_NUMBER),
                                       args.stream, skip);
    uvec4 word = dti_philox(counter, key);
    if (skip == 0u || WIDTH == 1u)
        return WIDTH == 1u ? uvec4(word[skip]) : word;
    counter.x++;
    counter.y += counter.x == 0u ? 1u : 0u;
    uvec4 next = dti_philox(counter, key);
    return skip == 1u   ? uvec4(word.yzw, next.x)
           : skip == 2u ? uvec4(word.zw, next.xy)
                        : uvec4(word.w, next.xyz);
}

void main()
{
    uint i = WIDTH * dti_item();
    if (i >= args.n)
        return;
    uint from = args.x_offset + i, last = args.n - 1u - i;
    bool whole = DTI_ARE_WHOLE(last);
    vec4 v;
    DTI_TAKE(vec4, v, x, from, A_IS_ONE)
    uvec2 key = uvec2(dti_step_u32(DTI_STEP_SEED_LO), dti_step_u32(DTI_STEP_SEED_HI));
    uvec4 word = words_of(spec0 != 0u ? i + i / args.run * args.skip : i, key);
    if (args.threshold == 0u)
        DTI_EACH_OF_FOUR v[k] = float(int(word[k] >> 9) * 2 - 8388607) * args.scale + args.offset;
    else
        DTI_EACH_OF_FOUR v[k] = word[k] < args.threshold ? v[k] * args.scale : 0.0;
    DTI_GIVE(y, args.y_offset + i, v)
}
