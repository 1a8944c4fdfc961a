// Softmax and cross-entropy: the loss, the ranks of labels, and the gradient of the logits [N, classes].
//
//   loss = log Σ exp(logit) - (1-s) · logit[label] - s · mean(logit)      s: label smoothing
//   dlogit = (softmax - target) · weight / divisor                        divisor: samples with a label
//
// With class weights w, t = w · target, and the divisor is Σ w[label], or for mixed samples still their
// number:
//
//   loss = Σ t · (log Σ exp(logit) - logit)            dlogit = (softmax · Σ t - t) · weight / divisor
//
// For a part of a batch, the divisor is computed from the label counts of the whole batch.
//
//   add_label_weights    one block: the divisor
//   cross_entropy_rows   a block per sample, three passes over its row of logits: maximum and rank of the
//                        label; sum of exponentials; gradient
//   cross_entropy_sums   one block: sums losses and hits in f64, in a fixed order
//
// LABELS is the numbers of a label: 1, or 3 (label, other label, share) of a mixed sample. WEIGHTED: classes
// have weights, whose address is null otherwise. SCALED: the gradient is multiplied by the loss scale.

#ifndef T_OUT
#define T_OUT T
#endif

// A share of 1 as an integer.
constexpr double WHOLE = 16777216.0;
// The rank of a sample without a label.
constexpr int NONE = -1;

__device__ __forceinline__ double quiet_nan() { return (double)__uint_as_float(0x7fc00000u); }

// The weight of a label in the divisor.
__device__ __forceinline__ double weight_of(const float *class_weights, int label) {
    return WEIGHTED && LABELS == 1 ? (double)class_weights[label] : 1.0;
}

// `label_counts` may be null. An out-of-range label makes the divisor NaN.
extern "C" __global__ void add_label_weights(const int *labels, const float *class_weights,
                                             const double *label_counts, double *divisor, int batch,
                                             int classes, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    double weight = 0.0;
    for (int n = threadIdx.x; n < batch; n += blockDim.x) {
        const int label = labels[(i64)n * LABELS];
        if (label < 0) continue;
        weight += label < classes ? weight_of(class_weights, label) : quiet_nan();
    }
    weight = block_sum(weight);
    if (label_counts && weight == weight) {
        weight = 0.0;
        for (int c = threadIdx.x; c < classes; c += blockDim.x)
            weight += label_counts[c] * weight_of(class_weights, c);
        weight = block_sum(weight);
    }
    if (threadIdx.x == 0) *divisor = weight;
}

// The maximum over a block of whole warps; NaN is ignored.
__device__ __forceinline__ float block_max(float value) {
    __shared__ float largest[32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = value;
    __syncthreads();
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) value = fmaxf(value, largest[warp]);
    __syncthreads();
    return value;
}

// 0 · ∞ counts as 0.
__device__ __forceinline__ double part(double share, float logit) {
    return share > 0.0 ? share * (double)logit : 0.0;
}

// A block per sample. `gradient` may be null.
extern "C" __global__ void cross_entropy_rows(const T *logits, const int *labels, const float *class_weights,
                                              const double *divisor, double *losses, int *ranks,
                                              T_OUT *gradient, int classes, double smoothing, double weight,
                                              const float *loss_scale, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    i64 n = blockIdx.x;
    const LossScale scaling = read_loss_scale(loss_scale);
    const T *row = logits + n * classes;
    T_OUT *to = gradient ? gradient + n * classes : gradient;
    int own = labels[n * LABELS];
    int other = LABELS == 3 ? labels[n * LABELS + LABELS / 2] : own;
    double share = LABELS == 3 ? labels[n * LABELS + LABELS - 1] / WHOLE : 0.0;
    bool is_known = own < classes && other >= 0 && other < classes && share >= 0.0 && share <= 1.0;
    if (own < 0 || !is_known) {
        // A kernel cannot fail: an out-of-range label makes the loss NaN.
        double value = own < 0 ? 0.0 : quiet_nan();
        if (threadIdx.x == 0) {
            losses[n] = value;
            ranks[n] = own < 0 ? NONE : classes + 5;
        }
        for (int c = threadIdx.x; to && c < classes; c += blockDim.x) narrow((float)value, to[c]);
        return;
    }
    // The label that counts as correct.
    int label = share > 0.5 ? other : own;
    float label_logit = widen(row[label]);
    float largest = __uint_as_float(0xff800000u);
    int rank = 0;
    double mean = 0.0;
    double base_share = smoothing / classes;
    double own_share = (1.0 - smoothing) * (own == other ? 1.0 : 1.0 - share) + base_share;
    double other_share = (1.0 - smoothing) * share + base_share;
    // With class weights: Σ t, and Σ t · logit, over all classes except the label's.
    double targets = 0.0, terms = 0.0;
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
        float logit = widen(row[c]);
        if (WEIGHTED && c != own) {
            double target = (double)class_weights[c] * (LABELS == 3 && c == other ? other_share : base_share);
            targets += target;
            terms += part(target, logit);
        }
        largest = fmaxf(largest, logit);
        // Counts the classes that the label's logit does not exceed. NaN exceeds nothing.
        bool is_ahead = label_logit > logit || (label_logit == logit && label < c);
        rank += c != label && !is_ahead;
        if (smoothing > 0.0) mean += (double)logit;
    }
    largest = block_max(largest);
    rank = block_sum(rank);
    if (smoothing > 0.0) mean = block_sum(mean) / classes;
    if (WEIGHTED) {
        own_share *= (double)class_weights[own];
        targets = block_sum(targets);
        terms = block_sum(terms);
    }
    // Without the label's class, whose probability may be so close to 1 that the difference would vanish.
    float exponential = 0.0f;
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
        if (c != own) exponential += expf(widen(row[c]) - largest);
    }
    double others = block_sum((double)exponential), own_exponential = (double)expf(widen(row[own]) - largest),
           sum = others + own_exponential;
    if (threadIdx.x == 0) {
        double target = part(1.0 - share, widen(row[own])) + part(share, widen(row[other]));
        double loss = log(sum) + (double)largest - (1.0 - smoothing) * target;
        if (smoothing > 0.0) loss -= smoothing * mean;
        if (WEIGHTED) {
            target = part(own_share, widen(row[own])) + terms;
            // 0 · ∞ counts as 0.
            const double all_targets = own_share + targets;
            loss = all_targets > 0.0 ? all_targets * (log(sum) + (double)largest) - target : 0.0;
        }
        losses[n] = loss;
        ranks[n] = rank;
    }
    if (!to) return;
    double scale = *divisor == 0.0 ? 0.0 : weight / *divisor;
    if (SCALED) scale *= (double)scaling.scale;
    if (WEIGHTED) {
        float own_gradient = (float)(scale * (targets * own_exponential - own_share * others) / sum);
        float factor = (float)(scale * (own_share + targets) / sum);
        for (int c = threadIdx.x; c < classes; c += blockDim.x) {
            float probability = factor * expf(widen(row[c]) - largest);
            double target = (double)class_weights[c] * (LABELS == 3 && c == other ? other_share : base_share);
            float value = c == own ? own_gradient : probability - (float)(scale * target);
            narrow(scale == 0.0 ? 0.0f : value, to[c]);
        }
        return;
    }
    float own_gradient = (float)(scale * ((1.0 - own_share) * own_exponential - own_share * others) / sum);
    float factor = (float)(scale / sum), base_gradient = (float)(scale * base_share);
    float other_gradient = (float)(scale * other_share);
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
        float probability = factor * expf(widen(row[c]) - largest);
        float target = LABELS == 3 && c == other ? other_gradient : base_gradient;
        narrow(c == own ? own_gradient : probability - target, to[c]);
    }
}

// One block.
extern "C" __global__ void cross_entropy_sums(const double *losses, const int *ranks,
                                              const double *divisor, double *metrics, int batch,
                                              double weight, int is_auxiliary, int is_first,
                                              TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    double loss = 0.0;
    int counted = 0, top1 = 0, top5 = 0;
    for (int n = threadIdx.x; n < batch; n += blockDim.x) {
        int rank = ranks[n];
        if (rank == NONE) continue;
        loss += losses[n];
        counted++;
        top1 += rank < 1;
        top5 += rank < 5;
    }
    loss = block_sum(loss);
    counted = block_sum(counted);
    top1 = block_sum(top1);
    top5 = block_sum(top5);
    if (threadIdx.x > 0) return;
    double mean = *divisor == 0.0 ? 0.0 : weight * (loss / *divisor);
    if (is_auxiliary) {
        metrics[0] += mean;
        return;
    }
    double values[4] = {mean, (double)counted, (double)top1, (double)top5};
    for (int i = 0; i < 4; i++) metrics[i] = is_first ? values[i] : metrics[i] + values[i];
}

EXPORT(add_label_weights)
EXPORT(cross_entropy_rows)
EXPORT(cross_entropy_sums)
