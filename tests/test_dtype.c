/* Types of elements: conversions in every instruction set, and what graphs, programs and the CPU do
 * with values that are stored in 16 bits. */
#include "harness.h"

/* ---- conversions */

typedef struct dtype_half {
    dt_dtype dtype;
    float (*widen)(uint16_t bits);
    uint16_t (*narrow)(float value);
    uint16_t infinity;
} dtype_half;

static const dtype_half dtype_halves[] = {
    {DT_BF16, dti_f32_from_bf16, dti_bf16_from_f32, 0x7F80},
    {DT_F16, dti_f32_from_f16, dti_f16_from_f32, 0x7C00}};

/* What every set gives for n floats; n small, so that the ends of arrays are in it. */
static void dtype_narrow(const dtype_half *h, const float *x, int n, uint16_t *out) {
    static const int sets[] = {DTI_ISA_PORTABLE, DTI_ISA_AVX2, DTI_ISA_AVX512};
    uint16_t other[64];
    for (size_t i = 0; i < DTI_COUNT(sets); i++) {
        const dti_isa_kernels *k = dti_isa_kernels_select(sets[i]);
        k->narrow[h->dtype](i ? other : out, x, n);
        CHECK(i == 0 || !memcmp(other, out, (size_t)n * sizeof *out));
    }
}

TEST(every_pattern_of_16_bits_is_widened_alike_in_every_instruction_set) {
    static const int sets[] = {DTI_ISA_PORTABLE, DTI_ISA_AVX2, DTI_ISA_AVX512};
    uint16_t *all = malloc(65536 * sizeof *all);
    float *wide = malloc(65536 * sizeof *wide);
    for (uint32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (size_t t = 0; t < 2 * DTI_COUNT(sets); t++) {
        const dtype_half *h = &dtype_halves[t % 2];
        const dti_isa_kernels *k = dti_isa_kernels_select(sets[t / 2]);
        k->widen[h->dtype](wide, all, 65536);
        int wrong = 0;
        for (uint32_t i = 0; i < 65536; i++)
            wrong += dti_bits_from_f32(wide[i]) != dti_bits_from_f32(h->widen((uint16_t)i));
        CHECK(wrong == 0);
        k->narrow[h->dtype](all, wide, 65536); /* and back: every one but a NaN is itself */
        for (uint32_t i = 0; i < 65536; i++) {
            const bool nan = (i & 0x7FFF) > h->infinity;
            wrong += nan ? (all[i] & 0x7FFF) <= h->infinity : all[i] != i;
            all[i] = (uint16_t)i;
        }
        CHECK(wrong == 0);
    }
    free(all);
    free(wide);
}

/* Between each two neighbours: the middle goes to the even one, a float beside it to the near one. */
TEST(floats_between_neighbours_of_16_bits_round_to_the_nearest_and_ties_to_even) {
    for (size_t t = 0; t < DTI_COUNT(dtype_halves); t++) {
        const dtype_half *h = &dtype_halves[t];
        int wrong = 0;
        for (uint32_t i = 0; i + 1 < h->infinity; i++) {
            const float low = h->widen((uint16_t)i), high = h->widen((uint16_t)(i + 1));
            const float middle = low + (high - low) / 2;
            const uint32_t bits = dti_bits_from_f32(middle);
            float x[6] = {middle, dti_f32_from_bits(bits - 1), dti_f32_from_bits(bits + 1)};
            const uint16_t even = (uint16_t)(i & 1 ? i + 1 : i), near[2] = {(uint16_t)i,
                                                                            (uint16_t)(i + 1)};
            for (int k = 0; k < 3; k++)
                x[3 + k] = -x[k];
            uint16_t got[6];
            dtype_narrow(h, x, 6, got);
            for (int k = 0; k < 6; k++) {
                const uint16_t sign = k < 3 ? 0 : 0x8000;
                const uint16_t want = (uint16_t)((k % 3 ? near[k % 3 - 1] : even) | sign);
                wrong += got[k] != want || h->narrow(x[k]) != want;
            }
        }
        CHECK(wrong == 0);
    }
}
