/* ---- Recurrent layers ---------------------------------------------------------------------------
 *
 * LSTM, GRU and RNN over the steps of each sample, with PyTorch's formulas, order of gates, names
 * and initial values (uniform in +-1/sqrt(hidden)). A layer and direction is one launch a device
 * that walks over all steps, whatever their number, and one for its gradient. There are no second
 * derivatives: dt_gradient of such a layer's gradient is an error. */

/* {0}: one layer, from the first step to the last, from a state of zeros. D: directions, 1 or 2; P:
 * the size of the state, which is `projection`, or `hidden` where there is none. */
typedef struct dt_recurrent_desc {
    int layers;         /* 0 = 1; one takes what the one below gives */
    bool bidirectional; /* each layer also from the last step to the first, side by side */
    bool no_bias;
    bool relu; /* dt_nn_rnn alone: relu in place of tanh */
    int64_t
        projection;    /* dt_nn_lstm alone: h is projected to so many, fewer than hidden; 0 = not */
    float dropout;     /* between layers: as dt_dropout */
    dt_tensor lengths; /* i32 [] of each sample: how many of its steps there are. Behind them y is
                           0, the final state is the one at the length, and the other direction
                           begins there (PyTorch's packed sequences). Outside of [0, T] it counts as
                           the nearer of both. {0} = all T */
    dt_tensor h, c;    /* the state before: [layers * D, P], and of LSTM [layers * D, hidden], f32,
                           of each sample or one for all. {0} = zeros */
} dt_recurrent_desc;

/* What a recurrent layer gives. A state fed to the next batch goes on where this one ended: make h
 * (and c) inputs and outputs of the program, and write what was read (truncated backpropagation
 * through time). Row layer * D + direction of h and c belongs to that layer and direction. */
typedef struct dt_recurrent {
    dt_tensor y; /* [T, D * P]: h of the last layer after each step */
    dt_tensor h,
        c; /* [layers * D, P] and [layers * D, hidden]: the final state; c: LSTM's, or nil */
} dt_recurrent;

/* x: [T, in], f32; T and in at least 1. Make, for each layer l, "name.weight_ih_l0" [G hidden, in],
 * "name.weight_hh_l0" [G hidden, P], and "name.bias_ih_l0" and "name.bias_hh_l0" [G hidden], and
 * those of "_l0_reverse"; a projection is "name.weight_hr_l0" [P, hidden]. Gates: LSTM 4 (i f g o),
 * GRU 3 (r z n, of which r multiplies W_hn h + b_hn), RNN 1. desc may be NULL. PyTorch's nn.LSTM,
 * nn.GRU and nn.RNN with batch_first. Errors (all nil): x of another rank or type, hidden below 1,
 * layers below 0 or above 64, a projection that is not below hidden, dropout outside [0, 1],
 * lengths or states of other shapes or types, what another kind of layer alone takes. */
DT_API dt_recurrent dt_nn_lstm(dt_tensor x, const char *name, int64_t hidden,
                               const dt_recurrent_desc *desc);
DT_API dt_recurrent dt_nn_gru(dt_tensor x, const char *name, int64_t hidden,
                              const dt_recurrent_desc *desc);
DT_API dt_recurrent dt_nn_rnn(dt_tensor x, const char *name, int64_t hidden,
                              const dt_recurrent_desc *desc);
