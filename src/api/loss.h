/* ---- Losses of each element ---------------------------------------------------------------------
 *
 * These give a value for each element or row, PyTorch's reduction 'none'. What a program minimises
 * is a term made of them:
 *
 *     dt_mean_loss(dt_huber(y, t, 1))              reduction 'mean'
 *     dt_weighted_loss(dt_huber(y, t, 1), w)       with a weight for each sample, or element
 *     dt_mean_loss(dt_sum(dt_kl_div(y, t, false), dt_dims(), false))      'batchmean'
 *
 * Formulas and gradients are PyTorch's, of the function that is named; docs/ops.md has those of
 * terms. y is what the model gives, t its target; both are f32 of one shape, with samples or
 * without, unless it is said otherwise, and the result has their shape. Errors (nil): other shapes
 * or types, and numbers that are not finite or outside of what is said. */

/* |y - t|: L1Loss. */
DT_API dt_tensor dt_l1(dt_tensor y, dt_tensor t);
/* d = |y - t|: d < beta ? d^2 / (2 beta) : d - beta / 2: SmoothL1Loss. beta >= 0; 0 is L1. */
DT_API dt_tensor dt_smooth_l1(dt_tensor y, dt_tensor t, float beta);
/* delta * smooth L1 of beta = delta: HuberLoss. delta > 0. */
DT_API dt_tensor dt_huber(dt_tensor y, dt_tensor t, float delta);

/* Binary cross-entropy of probabilities p in [0, 1]; logarithms end at -100: BCELoss. */
DT_API dt_tensor dt_bce(dt_tensor p, dt_tensor t);
/* The same of logits, computed stably; pos_weight, or {0} for 1, broadcasts over them and counts
 * the positive part: BCEWithLogitsLoss. */
DT_API dt_tensor dt_bce_with_logits(dt_tensor x, dt_tensor t, dt_tensor pos_weight);
/* alpha_t (1 - p_t)^gamma times the above: torchvision's sigmoid_focal_loss. alpha in [0, 1], or -1
 * for none; gamma >= 0. */
DT_API dt_tensor dt_focal(dt_tensor x, dt_tensor t, float alpha, float gamma);
/* log(1 + e^(-t y)), t = 1 or -1: SoftMarginLoss. */
DT_API dt_tensor dt_soft_margin(dt_tensor y, dt_tensor t);

/* t (log t - y), 0 where t is 0; y: log-probabilities; log_target: t is a logarithm too: KLDivLoss.
 * The mean over all elements, dt_mean_loss's, is not the divergence: sum over classes first. */
DT_API dt_tensor dt_kl_div(dt_tensor y, dt_tensor t, bool log_target);
/* Softmax cross-entropy with probabilities t: y: [..., C] logits, t: [..., C]; result [...]:
 * CrossEntropyLoss with soft targets, for mixup, label smoothing, distillation. */
DT_API dt_tensor dt_soft_cross_entropy(dt_tensor y, dt_tensor t);
/* The cross-entropy of each row, not yet a term: CrossEntropyLoss, its reduction 'none', 0 for a
 * target that is ignored or no class. y: [..., C] logits, t: [...] i32 class numbers; result [...].
 * dt_cross_entropy is its mean, by class weights; with a weight for each sample that is
 * dt_weighted_loss(dt_cross_entropy_each(y, t, NULL), w). desc may be NULL. */
DT_API dt_tensor dt_cross_entropy_each(dt_tensor y, dt_tensor t, const dt_cross_entropy_desc *desc);
/* temperature^2 KL(softmax(t / temperature) || softmax(y / temperature)) over the last dimension;
 * y and t: [..., C] logits of student and teacher (dt_detach it); result [...]. temperature > 0. */
DT_API dt_tensor dt_distillation(dt_tensor y, dt_tensor t, float temperature);
/* Of two views of N things, q and k: [N, D], each row brought to length 1: for each row of q the
 * cross-entropy of its similarities q k^T / temperature with its own number as the target; result
 * [N]. A sample holds its N things; rows of other samples are no negatives. */
DT_API dt_tensor dt_info_nce(dt_tensor q, dt_tensor k, float temperature);

/* 0.5 (log v + (y - t)^2 / v), v = max(variance, eps), + 0.5 log 2 pi with `full`: GaussianNLLLoss.
 * The gradient passes to a variance below eps. eps > 0; PyTorch's is 1e-6. */
DT_API dt_tensor dt_gaussian_nll(dt_tensor y, dt_tensor t, dt_tensor variance, float eps,
                                 bool full);
/* log_input: e^y - t y; else y - t log(y + eps); with `full` Stirling's approximation of log t!
 * where t > 1: PoissonNLLLoss. eps >= 0; PyTorch's is 1e-8. */
DT_API dt_tensor dt_poisson_nll(dt_tensor y, dt_tensor t, bool log_input, float eps, bool full);

/* 1 - cos where t = 1, max(0, cos - margin) where t = -1; a, b: [..., D], t: [...]; result [...]:
 * CosineEmbeddingLoss. */
DT_API dt_tensor dt_cosine_embedding(dt_tensor a, dt_tensor b, dt_tensor t, float margin);
/* max(0, -t (a - b) + margin), t = 1 or -1: MarginRankingLoss. */
DT_API dt_tensor dt_margin_ranking(dt_tensor a, dt_tensor b, dt_tensor t, float margin);
/* t = 1: y; t = -1: max(0, margin - y): HingeEmbeddingLoss. */
DT_API dt_tensor dt_hinge_embedding(dt_tensor y, dt_tensor t, float margin);

/* {0}: PyTorch's defaults. */
typedef struct dt_triplet_desc {
    float margin; /* 0 = 1, DT_ZERO = 0 */
    float p;      /* of the norm, at least 1; 0 = 2 */
    float eps;    /* added to each difference; 0 = 1e-6 */
    bool swap;    /* take the nearer of anchor and positive to the negative */
} dt_triplet_desc;
/* max(0, |a - p| - |a - n| + margin) of [..., D]; result [...]: TripletMarginLoss. desc may be
 * NULL. */
DT_API dt_tensor dt_triplet_margin(dt_tensor a, dt_tensor p, dt_tensor n,
                                   const dt_triplet_desc *desc);
/* sum over c != t of max(0, margin - y[t] + y[c])^p / C; y: [..., C], t: [...] i32 class numbers;
 * power 1 or 2; class_weights: [C], of the target's class, or {0}; result [...]: MultiMarginLoss.
 * A class number outside of [0, C) counts as no class. */
DT_API dt_tensor dt_multi_margin(dt_tensor y, dt_tensor t, int power, float margin,
                                 dt_tensor class_weights);
/* sum over j of the row's labels and i of the others of max(0, 1 - y[j] + y[i]) / C. y: [..., C];
 * t: [..., C], 1 where the label is there, else 0 (PyTorch lists their numbers); result [...]:
 * MultiLabelMarginLoss. */
DT_API dt_tensor dt_multilabel_margin(dt_tensor y, dt_tensor t);
/* The mean over the last dimension of binary cross-entropy of logits; result [...]:
 * MultiLabelSoftMarginLoss. */
DT_API dt_tensor dt_multilabel_soft_margin(dt_tensor y, dt_tensor t);

/* 1 - (2 sum p t + smooth) / (sum p + sum t + smooth) over all of a sample; and the same of the
 * intersection over the union. p: probabilities; result [] per sample. smooth >= 0. */
DT_API dt_tensor dt_dice(dt_tensor p, dt_tensor t, float smooth);
DT_API dt_tensor dt_jaccard(dt_tensor p, dt_tensor t, float smooth);

/* {0}: all steps, all labels, class 0 for the blank. */
typedef struct dt_ctc_desc {
    dt_tensor steps;    /* i32 [] of each sample: how many steps of log_p there are; {0} = all T */
    dt_tensor labels;   /* i32 [] of each sample: how many labels of targets; {0} = all S */
    int blank;          /* the class of the blank */
    bool zero_infinity; /* loss and gradient of a target that no path says are 0 */
    bool by_length;     /* the loss is divided by the labels' number, at least 1 */
} dt_ctc_desc;
/* Connectionist temporal classification (Graves et al., 2006): -log of the probability that the
 * steps, with blanks between them and repeated ones taken together, say the target: CTCLoss, its
 * reduction 'none'; dt_mean_loss of it is the mean over samples, and with by_length PyTorch's
 * reduction 'mean'. log_p: [T, C] f32, of dt_log_softmax (samples are the batch, so N comes
 * first); targets: [S] i32 classes of each sample, filled up with -1 or any class; result [] per
 * sample. Lengths outside of [0, T] and [0, S] count as the nearer of both; a label of -1 ends its
 * target as well. The gradient is the derivative in log_p, -1 times the share of paths through
 * each class, 0 behind a sample's steps; PyTorch's has dt_log_softmax's in it, and of logits both
 * are one. A target with more labels, and blanks between equal ones, than steps: infinite loss and
 * a NaN gradient, or 0. Class numbers are checked as dt_cross_entropy's; a blank among the labels
 * gives NaN. No second derivative. desc may be NULL. Errors (nil): other shapes or types, T or C
 * of 0, more than 2^24 of T, C or S, blank outside of [0, C). */
DT_API dt_tensor dt_ctc_loss(dt_tensor log_p, dt_tensor targets, const dt_ctc_desc *desc);
