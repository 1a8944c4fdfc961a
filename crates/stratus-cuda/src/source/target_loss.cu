// Losses of several targets per sample: the loss, the score, and the gradient of the outputs [N, columns]. A
// target of NaN is missing.
//
//   labels    loss = y · p w softplus(-z) + (1-y) · w softplus(z)     dz = (1-y) · w σ(z) - y · p w σ(-z)
//   squared   loss = w (z - y)²                                       dz = 2 w (z - y)
//   Huber     loss = w (z - y)² / 2, from 1 on w (|z - y| - 1/2)      dz = w clamp(z - y, -1, 1)
//
// The sums are divided by the number of present targets, for a part of a batch by that of the whole batch,
// from its label counts. With smoothing s, a label y is replaced by (1-s) y + s/2.
//
//   present_targets   a block per sample: counts its targets
//   target_rows       a block per sample: loss, score, gradient
//   target_sums       one block: sums in f64, in a fixed order
//
// FUNCTION: LABELS, SQUARED or HUBER. WEIGHTED: targets have weights [2, columns], w and p, whose address is
// null otherwise. SCALED: the gradient is multiplied by the loss scale.

#ifndef T_OUT
#define T_OUT T
#endif

#define LABELS 0
#define SQUARED 1
#define HUBER 2

// The count of a sample with a label that is not in [0, 1].
constexpr int INVALID = -1;

__device__ __forceinline__ double quiet_nan() { return (double)__uint_as_float(0x7fc00000u); }

extern "C" __global__ void present_targets(const float *targets, int *counts, int columns,
                                           TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const float *row = targets + (i64)blockIdx.x * columns;
    int present = 0, invalid = 0;
    for (int t = threadIdx.x; t < columns; t += blockDim.x) {
        const float y = row[t];
        present += y == y;
        if (FUNCTION == LABELS) invalid += y < 0.0f || y > 1.0f;
    }
    present = block_sum(present);
    if (FUNCTION == LABELS) invalid = block_sum(invalid);
    if (threadIdx.x == 0) counts[blockIdx.x] = invalid > 0 ? INVALID : present;
}

// The divisor of the loss, for all threads of a block. A kernel cannot fail: an invalid label makes it NaN.
__device__ double divisor_of(const int *counts, int batch, const double *label_counts, int columns) {
    double sum = 0.0;
    for (int n = threadIdx.x; n < batch; n += blockDim.x)
        sum += counts[n] == INVALID ? quiet_nan() : (double)counts[n];
    sum = block_sum(sum);
    if (!label_counts || sum != sum) return sum;
    sum = 0.0;
    for (int t = threadIdx.x; t < columns; t += blockDim.x) sum += label_counts[t];
    return block_sum(sum);
}

struct Term {
    float loss, slope;
    double score;
};

// 0 · ∞ counts as 0.
__device__ __forceinline__ float share_of(float share, float value) {
    return share == 0.0f ? 0.0f : share * value;
}

// The loss of an output z and its target y.
__device__ __forceinline__ Term term_of(float z, float y, float w, float p, float smoothing) {
    if (FUNCTION == LABELS) {
        const float target = (1.0f - smoothing) * y + 0.5f * smoothing;
        const float yes = w * p * target, no = w * (1.0f - target);
        const float e = expf(-fabsf(z)), tail = log1pf(e);
        const float large = 1.0f / (1.0f + e), small = e / (1.0f + e);
        const bool is_negative = z < 0.0f;
        const float above = (is_negative ? 0.0f : z) + tail, below = (is_negative ? -z : 0.0f) + tail;
        const bool is_correct = (z > 0.0f) == (y > 0.5f) && z == z;
        return {share_of(yes, below) + share_of(no, above),
                share_of(no, is_negative ? small : large) - share_of(yes, is_negative ? large : small),
                is_correct ? 1.0 : 0.0};
    }
    const float difference = z - y, size = fabsf(difference);
    // Sums of scores may cancel.
    const double exact = (double)z - (double)y, score = 1.0 - exact * exact;
    float loss = difference * difference, slope = 2.0f * difference;
    if (FUNCTION == HUBER) {
        const bool is_near = size < 1.0f;
        const float side = difference > 0.0f ? 1.0f : (difference < 0.0f ? -1.0f : difference);
        loss = is_near ? 0.5f * difference * difference : size - 0.5f;
        slope = is_near ? difference : side;
    }
    return {share_of(w, loss), share_of(w, slope), score};
}

// A block per sample. `gradient` may be null.
extern "C" __global__ void target_rows(const T *outputs, const float *targets, const float *weights,
                                       const int *counts, double *losses, double *scores, T_OUT *gradient,
                                       int batch, int columns, double smoothing, double factor,
                                       const double *label_counts, const float *loss_scale,
                                       TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const i64 first = (i64)blockIdx.x * columns;
    const LossScale scaling = read_loss_scale(loss_scale);
    const double divisor = divisor_of(counts, batch, label_counts, columns);
    double scale = divisor == 0.0 ? 0.0 : factor / divisor;
    if (SCALED) scale *= (double)scaling.scale;
    double loss = 0.0, score = 0.0;
    for (int t = threadIdx.x; t < columns; t += blockDim.x) {
        const float y = targets[first + t];
        float slope = 0.0f;
        if (y == y) {
            const float w = WEIGHTED ? weights[t] : 1.0f, p = WEIGHTED ? weights[columns + t] : 1.0f;
            const Term term = term_of(widen(outputs[first + t]), y, w, p, (float)smoothing);
            loss += (double)term.loss;
            score += term.score;
            slope = scale == 0.0 ? 0.0f : (float)(scale * (double)term.slope);
        }
        if (gradient) narrow(slope, gradient[first + t]);
    }
    loss = block_sum(loss);
    score = block_sum(score);
    if (threadIdx.x > 0) return;
    losses[blockIdx.x] = loss;
    scores[blockIdx.x] = score;
}

// One block.
extern "C" __global__ void target_sums(const int *counts, const double *losses, const double *scores,
                                       double *metrics, int batch, int columns, double factor,
                                       const double *label_counts, int is_auxiliary, int is_first,
                                       TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const double divisor = divisor_of(counts, batch, label_counts, columns);
    double loss = 0.0, score = 0.0, present = 0.0;
    int samples = 0;
    for (int n = threadIdx.x; n < batch; n += blockDim.x) {
        loss += losses[n];
        score += scores[n];
        present += (double)counts[n];
        samples += counts[n] > 0;
    }
    loss = block_sum(loss);
    score = block_sum(score);
    present = block_sum(present);
    samples = block_sum(samples);
    if (threadIdx.x > 0) return;
    const double mean = divisor == 0.0 ? 0.0 : factor * (loss / divisor);
    if (is_auxiliary) {
        metrics[0] += mean;
        return;
    }
    const double values[4] = {mean, present, score, (double)samples};
    for (int i = 0; i < 4; i++) metrics[i] = is_first ? values[i] : metrics[i] + values[i];
}

EXPORT(present_targets)
EXPORT(target_rows)
EXPORT(target_sums)
