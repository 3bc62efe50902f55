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
 * where t > 1: PoissonNLLLoss. eps > 0; PyTorch's is 1e-8. */
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
