/* Moments of 8 bits: codes for the values of floats in a block (optim/stored.c makes the map). */

#define DTI_MAP8_LINES 8

/* Codes lie between the borders of lines. On line i a number y in [0, 1] has the code floor(y *
 * slope[i] + offset[i]), at most limit[i]. */
typedef struct dti_map8 {
    float size[256];                  /* by code its value */
    float border[DTI_MAP8_LINES - 1]; /* above border[i] line i + 1 begins */
    float slope[DTI_MAP8_LINES], offset[DTI_MAP8_LINES], limit[DTI_MAP8_LINES];
    int negative; /* code of the last positive value, after which negative ones come; or 255 */
} dti_map8;

/* codes[i] = that of x[i] * factor, which is in [-1, 1] except for rounding. */
typedef void dti_map8_fn(uint8_t *codes, const float *x, int64_t n, float factor,
                         const dti_map8 *m);
