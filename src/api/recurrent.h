/* ---- Recurrent layers
 *
 * LSTM, GRU and RNN over the steps of each sample. Formulas, order of gates, names and initial
 * values (uniform in +-1/sqrt(hidden)) are PyTorch's. There are no second derivatives. */

/* {0}: one layer, one direction, from a state of zeros. D: number of directions, 1 or 2. P: size of
 * the state, which is .projection, or `hidden` without one. */
typedef struct dt_recurrent_desc {
    int layers;         /* stacked layers, up to 64; 0 = 1 */
    bool bidirectional; /* each layer also runs from the last step to the first; D = 2 */
    bool no_bias;       /* without "name.bias_..." */
    bool relu;          /* dt_nn_rnn only: relu instead of tanh */
    /* dt_nn_lstm only: project h to this size, below hidden (PyTorch's proj_size). 0 = off. */
    int64_t projection;
    float dropout; /* between layers, as dt_dropout; in [0, 1] */
    /* i32 [] of each sample: its number of steps, clamped to [0, T]. y is 0 after them. The final
     * state is that of the last of them (PyTorch's packed sequences). {0} = all T. */
    dt_tensor lengths;
    /* Initial state, f32, with or without samples. h: [layers * D, P]. c, dt_nn_lstm only:
     * [layers * D, hidden]. {0} = zeros. */
    dt_tensor h, c;
} dt_recurrent_desc;

/* The results of a recurrent layer. Row layer * D + direction of h and c belongs to that layer and
 * direction.
 *
 * Truncated backpropagation through time: make h (and c) inputs and outputs of the program. Write
 * what you read to the inputs of the next batch. */
typedef struct dt_recurrent {
    dt_tensor y; /* [T, D * P]: h of the last layer after each step */
    /* Final state: [layers * D, P] and [layers * D, hidden]. c: of dt_nn_lstm only, else nil. */
    dt_tensor h, c;
} dt_recurrent;

/* Make a recurrent layer and apply it. PyTorch: nn.LSTM, nn.GRU and nn.RNN with batch_first.
 * x: [T, in], f32; T and in are at least 1.
 *
 * Parameters of layer l: "name.weight_ih_l0" [G hidden, in], "name.weight_hh_l0" [G hidden, P],
 * "name.bias_ih_l0" and "name.bias_hh_l0" [G hidden]. Those of the other direction end in
 * "_l0_reverse". A projection is "name.weight_hr_l0" [P, hidden].
 *
 * Gates: G = 4 for LSTM (i f g o), 3 for GRU (r z n, where r multiplies W_hn h + b_hn) and 1 for
 * RNN.
 *
 * With dt_recurrent_desc.lengths the other direction begins at a sample's last step.
 *
 * Errors (all nil): a shape or type that does not fit; a member that only another kind of layer
 * has. */
DT_API dt_recurrent dt_nn_lstm(dt_tensor x, const char *name, int64_t hidden,
                               const dt_recurrent_desc *desc);
DT_API dt_recurrent dt_nn_gru(dt_tensor x, const char *name, int64_t hidden,
                              const dt_recurrent_desc *desc);
DT_API dt_recurrent dt_nn_rnn(dt_tensor x, const char *name, int64_t hidden,
                              const dt_recurrent_desc *desc);
