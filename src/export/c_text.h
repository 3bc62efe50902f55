/* Functions of the C files that c_save.c writes, each with those that it calls. They make the sums
 * of the CPU's portable class in its order (kernel/gemm.h, conv.h, vec_body.h) and its elementary
 * functions (shaders/lib/math_body.h); a test compares the bits.
 *
 * X(ID, others that it needs, text) */
/* clang-format off */
#define DTI_C_LIST(X)                                                                              \
    X(FMA, 0,                                                                                      \
      "/* With DT_FMA the bits of processors that multiply and add at once. */\n"                  \
      "static float dt_fma(float x, float y, float z) {\n"                                         \
      "#ifdef DT_FMA\n"                                                                            \
      "    return fmaf(x, y, z);\n"                                                                \
      "#else\n"                                                                                    \
      "    const float product = x * y;\n"                                                         \
      "    return product + z;\n"                                                                  \
      "#endif\n"                                                                                   \
      "}\n")                                                                                       \
    X(BITS, 0,                                                                                     \
      "typedef union dt_word {\n"                                                                  \
      "    float f;\n"                                                                             \
      "    int32_t i;\n"                                                                           \
      "} dt_word;\n"                                                                               \
      "static int32_t dt_bits(float x) {\n"                                                        \
      "    dt_word w;\n"                                                                           \
      "    w.f = x;\n"                                                                             \
      "    return w.i;\n"                                                                          \
      "}\n"                                                                                        \
      "static float dt_float(int32_t i) {\n"                                                       \
      "    dt_word w;\n"                                                                           \
      "    w.i = i;\n"                                                                             \
      "    return w.f;\n"                                                                          \
      "}\n")                                                                                       \
    X(EXP, DTI_C_ON(FMA) | DTI_C_ON(BITS),                                                         \
      "static float dt_power2(int32_t n) {\n"                                                      \
      "    return dt_float((n + 127) * 8388608);\n"                                                \
      "}\n"                                                                                        \
      "static float dt_exp(float x) {\n"                                                           \
      "    const float t = x < -104.0f ? -104.0f : 89.0f < x ? 89.0f : x;\n"                       \
      "    if (x != x)\n"                                                                          \
      "        return x;\n"                                                                        \
      "    const int32_t n = dt_bits(dt_fma(t, 1.44269504f, 12582912.0f)) - 0x4b400000;\n"         \
      "    const int32_t half = (n + 256) / 2 - 128;\n"                                            \
      "    const float f = (float)n;\n"                                                            \
      "    float r = dt_fma(f, -0.693145752f, t), p = 0.00139464810f;\n"                           \
      "    r = dt_fma(f, -1.42860677e-6f, r);\n"                                                   \
      "    p = dt_fma(p, r, 0.00836660154f);\n"                                                    \
      "    p = dt_fma(p, r, 0.0416662805f);\n"                                                     \
      "    p = dt_fma(p, r, 0.166665435f);\n"                                                      \
      "    p = dt_fma(p, r, 0.5f);\n"                                                              \
      "    p = dt_fma(p, r, 1.0f);\n"                                                              \
      "    p = dt_fma(p, r, 1.0f);\n"                                                              \
      "    p = p * dt_power2(half);\n"                                                             \
      "    return p * dt_power2(n - half);\n"                                                      \
      "}\n")                                                                                       \
    X(ERF, DTI_C_ON(EXP),                                                                          \
      "static float dt_erf(float x) {\n"                                                           \
      "    const float far = dt_float(dt_bits(x) & 0x7fffffff), t = 5.0f < far ? 5.0f : far;\n"    \
      "    const float s = t * t;\n"                                                               \
      "    float p = dt_fma(-1.72853470e-5f, t, 3.83197126e-4f);\n"                                \
      "    const float q = dt_fma(-3.88396438e-3f, t, 2.42546219e-2f);\n"                          \
      "    if (x != x)\n"                                                                          \
      "        return x;\n"                                                                        \
      "    if (0.927734375f < t) {\n"                                                              \
      "        p = dt_fma(p, s, q);\n"                                                             \
      "        p = dt_fma(p, t, -1.06777877e-1f);\n"                                               \
      "        p = dt_fma(p, t, -6.34846687e-1f);\n"                                               \
      "        p = dt_fma(p, t, -1.28717512e-1f);\n"                                               \
      "        p = dt_fma(p, t, -t);\n"                                                            \
      "        p = 1.0f - dt_exp(p);\n"                                                            \
      "        return x < 0.0f ? -p : p;\n"                                                        \
      "    }\n"                                                                                    \
      "    p = -5.96761703e-4f;\n"                                                                 \
      "    p = dt_fma(p, s, 4.99119423e-3f);\n"                                                    \
      "    p = dt_fma(p, s, -2.67681349e-2f);\n"                                                   \
      "    p = dt_fma(p, s, 1.12819925e-1f);\n"                                                    \
      "    p = dt_fma(p, s, -3.76125336e-1f);\n"                                                   \
      "    p = dt_fma(p, s, 1.28379166e-1f);\n"                                                    \
      "    return dt_fma(p, x, x);\n"                                                              \
      "}\n")                                                                                       \
    X(SIGMOID, DTI_C_ON(EXP),                                                                      \
      "static float dt_sigmoid(float x) {\n"                                                       \
      "    const float e = dt_exp(dt_float((int32_t)((uint32_t)dt_bits(x) | 0x80000000u)));\n"     \
      "    const float top = dt_bits(x) < 0 ? e : 1.0f, all = e + 1.0f;\n"                         \
      "    return x != x ? x : top / all;\n"                                                       \
      "}\n")                                                                                       \
    X(TANH, DTI_C_ON(EXP),                                                                         \
      "static float dt_tanh(float x) {\n"                                                          \
      "    const float far = dt_float(dt_bits(x) & 0x7fffffff), t = 10.0f < far ? 10.0f : far;\n"  \
      "    const float s = x * x;\n"                                                               \
      "    float p = dt_exp(t + t) + 1.0f;\n"                                                      \
      "    if (x != x)\n"                                                                          \
      "        return x;\n"                                                                        \
      "    if (!(t < 0.58f)) {\n"                                                                  \
      "        p = 2.0f / p;\n"                                                                    \
      "        p = 1.0f - p;\n"                                                                    \
      "        return x < 0.0f ? -p : p;\n"                                                        \
      "    }\n"                                                                                    \
      "    p = -0.00603349973f;\n"                                                                 \
      "    p = dt_fma(p, s, 0.0209029987f);\n"                                                     \
      "    p = dt_fma(p, s, -0.0538120829f);\n"                                                    \
      "    p = dt_fma(p, s, 0.133322150f);\n"                                                      \
      "    p = dt_fma(p, s, -0.333333075f);\n"                                                     \
      "    p = p * s;\n"                                                                           \
      "    return dt_fma(p, x, x);\n"                                                              \
      "}\n")                                                                                       \
    X(LINEAR, DTI_C_ON(FMA),                                                                       \
      "/* Adds sums of 256 products in order. Above 4096 products, sums of 4096 are added in\n"    \
      " * double, and the rest after them. */\n"                                                   \
      "static void dt_linear(float *y, const float *x, const float *w, const float *b,\n"          \
      "                      int rows, int in, int out) {\n"                                       \
      "    for (int r = 0; r < rows; r++)\n"                                                       \
      "        for (int o = 0; o < out; o++) {\n"                                                  \
      "            float all = 0.0f;\n"                                                            \
      "            double wide = 0.0;\n"                                                           \
      "            for (int k = 0; k < in;) {\n"                                                   \
      "                const int first = k, end = in - k < 256 ? in : k + 256;\n"                  \
      "                const int last = in > 4096 && end == in;\n"                                 \
      "                const int span = first && (last || first % 4096 == 0);\n"                   \
      "                float sum = 0.0f;\n"                                                        \
      "                for (; k < end; k++)\n"                                                     \
      "                    sum = dt_fma(x[r * in + k], w[o * in + k], sum);\n"                     \
      "                if (span)\n"                                                                \
      "                    wide = wide + (double)all;\n"                                           \
      "                if (span && last)\n"                                                        \
      "                    all = (float)wide;\n"                                                   \
      "                all = first && (!span || last) ? all + sum : sum;\n"                        \
      "            }\n"                                                                            \
      "            y[r * out + o] = b ? all + b[o] : all;\n"                                       \
      "        }\n"                                                                                \
      "}\n")                                                                                       \
    X(CONV, DTI_C_ON(FMA),                                                                         \
      "/* s: channels in a group, height, width; out channels, height, width; taps; strides;\n"    \
      " * paddings; dilations; groups. Products by (tap row, channel, tap column). */\n"           \
      "static void dt_conv(float *y, const float *x, const float *w, const float *b,\n"            \
      "                    const int *s) {\n"                                                      \
      "    for (int at = 0; at < s[3] * s[4] * s[5]; at++) {\n"                                    \
      "        const int o = at / s[5] / s[4], p = at / s[5] % s[4], q = at % s[5];\n"             \
      "        const float *image = x + o / (s[3] / s[14]) * s[0] * s[1] * s[2];\n"                \
      "        const int products = s[0] * s[6] * s[7];\n"                                         \
      "        float all = 0.0f, sum = 0.0f;\n"                                                    \
      "        for (int k = 0; k < products; k++) {\n"                                             \
      "            const int v = k % s[7], c = k / s[7] % s[0], u = k / s[7] / s[0];\n"            \
      "            const int i = p * s[8] - s[10] + u * s[12];\n"                                  \
      "            const int j = q * s[9] - s[11] + v * s[13];\n"                                  \
      "            if (i >= 0 && i < s[1] && j >= 0 && j < s[2])\n"                                \
      "                sum = dt_fma(w[((o * s[0] + c) * s[6] + u) * s[7] + v],\n"                  \
      "                             image[(c * s[1] + i) * s[2] + j], sum);\n"                     \
      "            if (k % 256 == 255 || k + 1 == products) {\n"                                   \
      "                all = k < 256 ? sum : all + sum;\n"                                         \
      "                sum = 0.0f;\n"                                                              \
      "            }\n"                                                                            \
      "        }\n"                                                                                \
      "        y[at] = b ? all + b[o] : all;\n"                                                    \
      "    }\n"                                                                                    \
      "}\n")                                                                                       \
    X(POOL, 0,                                                                                     \
      "/* A mean adds the sums of rows; above 32 rows or columns, each element in double.\n"       \
      " * s: planes, height, width; height and width of y; kernel; strides; paddings; 0: the\n"    \
      " * maximum, 1: the mean without padding, 2: the mean with it. */\n"                         \
      "static void dt_pool(float *y, const float *x, const int *s) {\n"                            \
      "    for (int at = 0; at < s[0] * s[3] * s[4]; at++) {\n"                                    \
      "        const float *plane = x + at / s[4] / s[3] * s[1] * s[2];\n"                         \
      "        const int top = at / s[4] % s[3] * s[7] - s[9], left = at % s[4] * s[8] - s[10];\n" \
      "        float best = 0.0f;\n"                                                               \
      "        double wide = 0.0;\n"                                                               \
      "        int count = 0;\n"                                                                   \
      "        for (int i = top; i < top + s[5]; i++) {\n"                                         \
      "            float row = 0.0f;\n"                                                            \
      "            for (int j = left; j < left + s[6]; j++) {\n"                                   \
      "                if (i < 0 || j < 0 || i >= s[1] || j >= s[2])\n"                            \
      "                    continue;\n"                                                            \
      "                const float v = plane[i * s[2] + j];\n"                                     \
      "                if (s[11] && (s[5] > 32 || s[6] > 32))\n"                                   \
      "                    wide = wide + (double)v;\n"                                             \
      "                else if (s[11])\n"                                                          \
      "                    row = row + v;\n"                                                       \
      "                else if (!count || best < v || v != v)\n"                                   \
      "                    best = v;\n"                                                            \
      "                count++;\n"                                                                 \
      "            }\n"                                                                            \
      "            best = s[11] ? best + row : best;\n"                                            \
      "        }\n"                                                                                \
      "        if (s[11] && (s[5] > 32 || s[6] > 32))\n"                                           \
      "            best = (float)wide;\n"                                                          \
      "        y[at] = s[11] ? best / (float)(s[11] == 2 ? s[5] * s[6] : count) : best;\n"         \
      "    }\n"                                                                                    \
      "}\n")                                                                                       \
    X(NORM, DTI_C_ON(FMA),                                                                         \
      "static void dt_norm(float *y, const float *x, const float *mean, const float *var,\n"       \
      "                    const float *w, const float *b, int outer, int channels,\n"             \
      "                    int spatial, float eps) {\n"                                            \
      "    for (int at = 0; at < outer * channels * spatial; at++) {\n"                            \
      "        const int c = at / spatial % channels;\n"                                           \
      "        const float wide = var[c] + eps, factor = 1.0f / sqrtf(wide);\n"                    \
      "        float u = x[at] - mean[c];\n"                                                       \
      "        u = u * factor;\n"                                                                  \
      "        y[at] = b ? dt_fma(u, w[c], b[c]) : w ? u * w[c] : u;\n"                            \
      "    }\n"                                                                                    \
      "}\n")                                                                                       \
    X(SOFTMAX, DTI_C_ON(EXP),                                                                      \
      "/* The sum has 16 parts, which are added up after each 512 elements. */\n"                  \
      "static void dt_softmax(float *y, const float *x, int rows, int n) {\n"                      \
      "    for (; rows > 0; rows--, x += n, y += n) {\n"                                           \
      "        float most = x[0], part[16] = {0};\n"                                               \
      "        double all = 0.0;\n"                                                                \
      "        for (int i = 1; i < n; i++)\n"                                                      \
      "            most = most < x[i] ? x[i] : most;\n"                                            \
      "        for (int i = 0; i < n; i++) {\n"                                                    \
      "            const float shifted = x[i] - most;\n"                                           \
      "            y[i] = dt_exp(shifted);\n"                                                      \
      "            part[i % 16] = part[i % 16] + y[i];\n"                                          \
      "            if (i % 512 < 511 && i + 1 < n)\n"                                              \
      "                continue;\n"                                                                \
      "            for (int h = 8; h; h /= 2)\n"                                                   \
      "                for (int k = 0; k < h; k++)\n"                                              \
      "                    part[k] = part[k] + part[k + h];\n"                                     \
      "            all = all + (double)part[0];\n"                                                 \
      "            for (int k = 0; k < 16; k++)\n"                                                 \
      "                part[k] = 0.0f;\n"                                                          \
      "        }\n"                                                                                \
      "        const float share = 1.0f / (float)all;\n"                                           \
      "        for (int i = 0; i < n; i++)\n"                                                      \
      "            y[i] = y[i] * share;\n"                                                         \
      "    }\n"                                                                                    \
      "}\n")                                                                                       \
    X(MAP, 0,                                                                                      \
      "static void dt_map(float *y, const float *x, int n, float p, float q,\n"                    \
      "                   float (*f)(float, float, float)) {\n"                                    \
      "    for (int i = 0; i < n; i++)\n"                                                          \
      "        y[i] = f(x[i], p, q);\n"                                                            \
      "}\n")                                                                                       \
    X(PAIR, 0,                                                                                     \
      "/* s: sizes of five axes, steps of a, steps of b. */\n"                                     \
      "static void dt_pair(float *y, const float *a, const float *b, const int *s,\n"              \
      "                    float (*f)(float, float, float)) {\n"                                   \
      "    for (int at = 0; at < s[0] * s[1] * s[2] * s[3] * s[4]; at++) {\n"                      \
      "        int u = 0, v = 0;\n"                                                                \
      "        for (int k = 0, rest = at; k < 5; k++) {\n"                                         \
      "            u += rest % s[4 - k] * s[9 - k];\n"                                             \
      "            v += rest % s[4 - k] * s[14 - k];\n"                                            \
      "            rest /= s[4 - k];\n"                                                            \
      "        }\n"                                                                                \
      "        y[at] = f(a[u], b[v], 0.0f);\n"                                                     \
      "    }\n"                                                                                    \
      "}\n")                                                                                       \
    X(COPY, 0,                                                                                     \
      "/* s: sizes of five axes, steps of y, steps of x. */\n"                                     \
      "static void dt_copy(float *y, const float *x, const int *s) {\n"                            \
      "    for (int at = 0; at < s[0] * s[1] * s[2] * s[3] * s[4]; at++) {\n"                      \
      "        int u = 0, v = 0;\n"                                                                \
      "        for (int k = 0, rest = at; k < 5; k++) {\n"                                         \
      "            u += rest % s[4 - k] * s[9 - k];\n"                                             \
      "            v += rest % s[4 - k] * s[14 - k];\n"                                            \
      "            rest /= s[4 - k];\n"                                                            \
      "        }\n"                                                                                \
      "        y[u] = x[v];\n"                                                                     \
      "    }\n"                                                                                    \
      "}\n")                                                                                       \
    X(FILL, 0,                                                                                     \
      "static void dt_fill(float *y, int n, float value) {\n"                                      \
      "    for (int i = 0; i < n; i++)\n"                                                          \
      "        y[i] = value;\n"                                                                    \
      "}\n")                                                                                       \
    X(GATHER, 0,                                                                                   \
      "/* An index out of range gives NaN. */\n"                                                   \
      "static void dt_embedding(float *y, const float *table, const int32_t *index, int n,\n"      \
      "                      int rows, int cols) {\n"                                              \
      "    for (int at = 0; at < n * cols; at++) {\n"                                              \
      "        const int32_t row = index[at / cols];\n"                                            \
      "        y[at] = row >= 0 && row < rows ? table[row * cols + at % cols] : NAN;\n"            \
      "    }\n"                                                                                    \
      "}\n")
/* X(ID of the row, others that it needs, expression of x, p and q; x and p of two tensors) */
#define DTI_C_MAPS(X)                                                                              \
    X(NEG, 0, "-x")                                                                                \
    X(ABS, 0, "fabsf(x)")                                                                          \
    X(SIGN, 0, "0.0f < x ? 1.0f : x < 0.0f ? -1.0f : 0.0f")                                        \
    X(SQRT, 0, "sqrtf(x)")                                                                         \
    X(RSQRT, 0, "1.0f / sqrtf(x)")                                                                 \
    X(RECIPROCAL, 0, "1.0f / x")                                                                   \
    X(SQUARE, 0, "x * x")                                                                          \
    X(RELU, 0, "x < 0.0f ? 0.0f : x")                                                              \
    X(LEAKY_RELU, 0, "0.0f < x ? x : x * p")                                                       \
    X(CLAMP, 0, "q < (x < p ? p : x) ? q : x < p ? p : x")                                         \
    X(HEAVISIDE, 0, "0.0f < x ? 1.0f : 0.0f")                                                      \
    X(AFFINE, DTI_C_ON(FMA), "dt_fma(p, x, q)")                                                    \
    X(EXP, DTI_C_ON(EXP), "dt_exp(x)")                                                             \
    X(ERF, DTI_C_ON(ERF), "dt_erf(x)")                                                             \
    X(TANH, DTI_C_ON(TANH), "dt_tanh(x)")                                                          \
    X(SIGMOID, DTI_C_ON(SIGMOID), "dt_sigmoid(x)")                                                 \
    X(SILU, DTI_C_ON(SIGMOID), "x * dt_sigmoid(x)")                                                \
    X(GELU, DTI_C_ON(ERF), "dt_fma(x * 0.5f, dt_erf(x * 0.707106781f), x * 0.5f)")                 \
    X(HARDSIGMOID, 0, "fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) / 6.0f")                                 \
    X(ADD, 0, "x + p")                                                                             \
    X(SUB, 0, "x - p")                                                                             \
    X(MUL, 0, "x * p")                                                                             \
    X(DIV, 0, "x / p")
/* clang-format on */
