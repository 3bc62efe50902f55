/* A launch whose result the host knows without running a kernel. It sums many short rows of whole
 * numbers, which is exact in any order. A device computes it when it is opened. The launch needs a
 * workgroup for each row, shared memory, a barrier, push constants and two bindings. */

#ifndef DT_NO_VULKAN

enum { DTI_KNOWN_COLS = 77, DTI_KNOWN_PITCH = 80, DTI_KNOWN_FRONT = 4 };

static bool dti_known_trial(uint32_t number, dti_trial *t) {
    *t = (dti_trial){.launch = {.kernel = DTI_K_REDUCE_ROW,
                                .args_bytes = sizeof(dti_args_reduce),
                                .items = DTI_KNOWN_ROWS,
                                .spec = {DTI_R_SUM}}};
    t->launch.args.reduce = (dti_args_reduce){.n = DTI_KNOWN_ROWS,
                                              .r = DTI_KNOWN_COLS,
                                              .kept = DTI_AXES - 1,
                                              .dim = {1, 1, 1, 1, DTI_KNOWN_ROWS, DTI_KNOWN_COLS},
                                              .x_stride = {0, 0, 0, 0, DTI_KNOWN_PITCH, 1},
                                              .x_offset = DTI_KNOWN_FRONT,
                                              .y_offset = DTI_KNOWN_FRONT,
                                              .scale = 1.0f};
    t->operand[0] =
        (dti_trial_operand){DTI_KNOWN_FRONT, DTI_KNOWN_ROWS, DTI_KNOWN_COLS, DTI_KNOWN_PITCH};
    t->operand[1] = (dti_trial_operand){DTI_KNOWN_FRONT, 1, DTI_KNOWN_ROWS, DTI_KNOWN_ROWS};
    return number == 0;
}

static void dti_known_answer(const float *x, float *y) {
    for (int i = 0; i < DTI_KNOWN_ROWS; i++) {
        const float *row = x + DTI_KNOWN_FRONT + i * DTI_KNOWN_PITCH;
        float sum = 0.0f;
        for (int j = 0; j < DTI_KNOWN_COLS; j++)
            sum += row[j];
        y[DTI_KNOWN_FRONT + i] = sum;
    }
}

#endif
