/* ---- Losses of each element
 *
 * These functions return a tensor of losses, one for each element or row: PyTorch's
 * reduction='none'. Make a term of them:
 *
 *     dt_mean_loss(dt_huber(y, t, 1))              reduction 'mean'
 *     dt_weighted_loss(dt_huber(y, t, 1), w)       with a weight for each sample, or element
 *     dt_mean_loss(dt_sum(dt_kl_div(y, t, false), dt_dims(), false))      'batchmean'
 *
 * y is the model's output and t its target. Both are f32 of one shape, and both or neither have
 * samples. The result has their shape, if no comment gives another. Formulas and gradients are
 * those of the PyTorch function that is named.
 *
 * Errors (nil): another shape or type; a number that is not finite, or not in the range given. */

/* Computes the absolute error: |y - t|. PyTorch: L1Loss. */
DT_API dt_tensor dt_l1(dt_tensor y, dt_tensor t);
/* Computes smooth L1, with d = |y - t|: d < beta ? d^2 / (2 beta) : d - beta / 2.
 * PyTorch: SmoothL1Loss.
 * beta: 0 or more. 0 is dt_l1. */
DT_API dt_tensor dt_smooth_l1(dt_tensor y, dt_tensor t, float beta);
/* Computes the Huber loss: delta * smooth L1 with beta = delta. PyTorch: HuberLoss.
 * delta: above 0. */
DT_API dt_tensor dt_huber(dt_tensor y, dt_tensor t, float delta);

/* Computes binary cross-entropy of probabilities. PyTorch: BCELoss.
 * p: in [0, 1]. Its logarithms are limited to -100 and above. */
DT_API dt_tensor dt_bce(dt_tensor p, dt_tensor t);
/* Computes binary cross-entropy of logits, stably. PyTorch: BCEWithLogitsLoss.
 * pos_weight: multiplies the term of t = 1. It broadcasts to x. {0} = 1. */
DT_API dt_tensor dt_bce_with_logits(dt_tensor x, dt_tensor t, dt_tensor pos_weight);
/* Computes the focal loss of logits: alpha_t (1 - p_t)^gamma * dt_bce_with_logits. torchvision:
 * sigmoid_focal_loss.
 * alpha: in [0, 1], or -1 for no alpha_t.
 * gamma: 0 or more. */
DT_API dt_tensor dt_focal(dt_tensor x, dt_tensor t, float alpha, float gamma);
/* Computes log(1 + e^(-t y)). PyTorch: SoftMarginLoss.
 * t: 1 or -1. */
DT_API dt_tensor dt_soft_margin(dt_tensor y, dt_tensor t);

/* Computes the Kullback-Leibler divergence by element: t (log t - y), and 0 where t is 0.
 * PyTorch: KLDivLoss.
 * y: log-probabilities.
 * log_target: true if t is log-probabilities too.
 * Sum over the classes before dt_mean_loss: see above. */
DT_API dt_tensor dt_kl_div(dt_tensor y, dt_tensor t, bool log_target);
/* Computes softmax cross-entropy with probabilities as targets. PyTorch: CrossEntropyLoss with soft
 * targets.
 * y: [..., C] logits; t: [..., C] probabilities; result: [...]. */
DT_API dt_tensor dt_soft_cross_entropy(dt_tensor y, dt_tensor t);
/* Computes softmax cross-entropy of each row, with class numbers as targets.
 * PyTorch: CrossEntropyLoss with reduction='none'.
 * dt_cross_entropy is the term: the mean of these rows, weighted by .class_weights.
 * y: [..., C] logits.
 * t: [...] i32 class numbers. A target that is ignored or not a class gives 0.
 * result: [...]. */
DT_API dt_tensor dt_cross_entropy_each(dt_tensor y, dt_tensor t, const dt_cross_entropy_desc *desc);
/* Computes the loss of distillation: temperature^2 KL(softmax(t / temperature) ||
 * softmax(y / temperature)), over the last dimension.
 * y: [..., C] logits of the student.
 * t: [..., C] logits of the teacher; use dt_detach.
 * temperature: above 0.
 * result: [...]. */
DT_API dt_tensor dt_distillation(dt_tensor y, dt_tensor t, float temperature);
/* Computes InfoNCE, a contrastive loss: cross-entropy of the cosine similarities q
 * k^T / temperature. The target of row i is column i.
 * q, k: [N, D], two views of N items. Rows are normalised to length 1.
 * temperature: above 0.
 * result: [N]. Negatives come from the same sample only, so one sample holds all N items. */
DT_API dt_tensor dt_info_nce(dt_tensor q, dt_tensor k, float temperature);

/* Computes the Gaussian negative log-likelihood: 0.5 (log v + (y - t)^2 / v), with
 * v = max(variance, eps). PyTorch: GaussianNLLLoss.
 * variance: of y's shape. Its gradient is not cut off below eps.
 * eps: above 0; PyTorch's is 1e-6.
 * full: adds 0.5 log(2 pi). */
DT_API dt_tensor dt_gaussian_nll(dt_tensor y, dt_tensor t, dt_tensor variance, float eps,
                                 bool full);
/* Computes the Poisson negative log-likelihood: y - t log(y + eps). PyTorch: PoissonNLLLoss.
 * log_input: y is the logarithm of the rate: e^y - t y.
 * eps: 0 or more; PyTorch's is 1e-8.
 * full: adds Stirling's approximation of log t! where t > 1. */
DT_API dt_tensor dt_poisson_nll(dt_tensor y, dt_tensor t, bool log_input, float eps, bool full);

/* Computes 1 - cos(a, b) where t = 1, max(0, cos(a, b) - margin) where t = -1. PyTorch:
 * CosineEmbeddingLoss.
 * a, b: [..., D]; t: [...], 1 or -1; result: [...]. */
DT_API dt_tensor dt_cosine_embedding(dt_tensor a, dt_tensor b, dt_tensor t, float margin);
/* Computes max(0, -t (a - b) + margin). PyTorch: MarginRankingLoss.
 * t: 1 if a should be larger, -1 if b should. */
DT_API dt_tensor dt_margin_ranking(dt_tensor a, dt_tensor b, dt_tensor t, float margin);
/* Computes y where t = 1, max(0, margin - y) where t = -1. PyTorch: HingeEmbeddingLoss. */
DT_API dt_tensor dt_hinge_embedding(dt_tensor y, dt_tensor t, float margin);

/* {0}: PyTorch's defaults. */
typedef struct dt_triplet_desc {
    float margin; /* 0 = 1, DT_ZERO = 0 */
    float p;      /* the norm's exponent, 1 or more; 0 = 2 */
    float eps;    /* added to each difference, above 0; 0 = 1e-6 */
    bool swap;    /* use the smaller of |a - n| and |p - n| as the distance to the negative */
} dt_triplet_desc;
/* Computes max(0, |a - p| - |a - n| + margin). PyTorch: TripletMarginLoss.
 * a, p, n: anchor, positive and negative, [..., D].
 * result: [...]. */
DT_API dt_tensor dt_triplet_margin(dt_tensor a, dt_tensor p, dt_tensor n,
                                   const dt_triplet_desc *desc);
/* Sums max(0, margin - y[t] + y[c])^power / C over c != t. PyTorch: MultiMarginLoss.
 * y: [..., C].
 * t: [...] i32 class numbers. One outside [0, C) is treated as no class.
 * power: 1 or 2.
 * class_weights: [C], the weight of the target's class. {0} = 1.
 * result: [...]. */
DT_API dt_tensor dt_multi_margin(dt_tensor y, dt_tensor t, int power, float margin,
                                 dt_tensor class_weights);
/* Sums max(0, 1 - y[j] + y[i]) / C over labels j and other classes i.
 * PyTorch: MultiLabelMarginLoss.
 * y: [..., C].
 * t: [..., C], 1 for the row's labels, else 0. PyTorch takes a list of class numbers instead.
 * result: [...]. */
DT_API dt_tensor dt_multilabel_margin(dt_tensor y, dt_tensor t);
/* Averages dt_bce_with_logits over the last dimension. PyTorch: MultiLabelSoftMarginLoss.
 * result: [...]. */
DT_API dt_tensor dt_multilabel_soft_margin(dt_tensor y, dt_tensor t);

/* Compare a whole sample. dt_dice: 1 - (2 sum p t + smooth) / (sum p + sum t + smooth).
 * dt_jaccard: the same of intersection over union.
 * p: probabilities.
 * smooth: 0 or more.
 * result: [], one per sample. */
DT_API dt_tensor dt_dice(dt_tensor p, dt_tensor t, float smooth);
DT_API dt_tensor dt_jaccard(dt_tensor p, dt_tensor t, float smooth);

/* {0}: all steps, all labels, class 0 is the blank. */
typedef struct dt_ctc_desc {
    dt_tensor steps;    /* i32 [] of each sample: number of steps of log_p; {0} = all T */
    dt_tensor labels;   /* i32 [] of each sample: number of labels in targets; {0} = all S */
    int blank;          /* class of the blank, in [0, C) */
    bool zero_infinity; /* loss and gradient 0 where the target is impossible */
    bool by_length;     /* divide the loss by the number of labels, at least 1 */
} dt_ctc_desc;
/* Computes connectionist temporal classification (Graves et al., 2006): -log of the target's
 * probability. PyTorch: CTCLoss with reduction='none'. dt_mean_loss with .by_length is its
 * reduction='mean'.
 * log_p: [T, C] f32 of each sample, from dt_log_softmax. Samples come first, unlike in PyTorch.
 * targets: [S] i32 classes of each sample, padded with -1 or any class. A -1 ends the target. A
 * blank in it gives NaN. Checked as those of dt_cross_entropy.
 * result: [], one per sample.
 *
 * Lengths: .steps and .labels outside [0, T] and [0, S] are clamped.
 *
 * Impossible targets: a target needs a step for each label, and one more between two equal labels.
 * With fewer steps the loss is infinite and the gradient NaN. With .zero_infinity both are 0.
 *
 * Gradient: of log_p; PyTorch's includes that of log_softmax. Of logits the two are equal. There is
 * no second derivative.
 *
 * Errors (nil): also T or C of 0; T, C or S above 2^24. */
DT_API dt_tensor dt_ctc_loss(dt_tensor log_p, dt_tensor targets, const dt_ctc_desc *desc);
