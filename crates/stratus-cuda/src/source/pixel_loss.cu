// Softmax and cross-entropy of every pixel: the loss, the predicted classes, and the gradient of the logits,
// which are channels last: [N, H, W, classes].
//
//   loss   = Σ w(y) (log Σ exp(z) - z[y]) / Σ w(y)          over the pixels with a label
//   dlogit = w(y) (softmax - onehot(y)) · weight / Σ w(y)
//
//   pixel_weights   counts the pixels with a label and sums their class weights, a partial sum per block
//   pixel_rows      a thread per pixel: prediction, loss, gradient; a partial sum of the loss per block
//   pixel_sums      one block: adds the partial sums in a fixed order
//
// With smoothing s, w(y) is multiplied by 1-s, and s/classes · Σₖ w(k) (log Σ exp(z) - z[k]) is added.
// Without class weights their address is null. For a part of a batch, the label counts of the whole batch
// give Σ w(y); otherwise their address is null. SCALED: the gradient is multiplied by the loss scale. BINARY:
// maps have one channel, the logit of class 1; that of class 0 is 0.

#ifndef T_OUT
#define T_OUT T
#endif

#ifndef BINARY
#define BINARY 0
#endif

// The logit of a class.
__device__ __forceinline__ float logit_of(const T *row, int class_) {
    if (BINARY) return class_ == 0 ? 0.0f : widen(row[0]);
    return widen(row[class_]);
}

// Stores the slope of a class's logit.
__device__ __forceinline__ void store_slope(float slope, T_OUT *to, int class_) {
    if (!BINARY)
        narrow(slope, to[class_]);
    else if (class_ == 1)
        narrow(slope, to[0]);
}

__device__ __forceinline__ double quiet_nan() { return (double)__uint_as_float(0x7fc00000u); }

__device__ __forceinline__ float weight_of(const float *class_weights, int class_) {
    return class_weights ? class_weights[class_] : 1.0f;
}

// The sum of `count` parts, in their order.
__device__ double sum_of(const double *parts, u32 count) {
    double sum = 0.0;
    for (u32 part = 0; part < count; part++) sum += parts[part];
    return sum;
}

// The divisor of the loss: the weight of these labels, or if there are label counts, of the whole batch's. A
// weight of NaN, from an out-of-range label, is propagated.
__device__ double divisor_of(double weight, const double *label_counts, const float *class_weights,
                             int classes) {
    if (!label_counts || weight != weight) return weight;
    double sum = 0.0;
    for (int c = 0; c < classes; c++) sum += label_counts[c] * (double)weight_of(class_weights, c);
    return sum;
}

// A kernel cannot fail: an out-of-range label makes the weight, and with it the loss, NaN.
extern "C" __global__ void pixel_weights(const int *labels, const float *class_weights, double *weights,
                                         int *counts, i64 pixels, int classes, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    double weight = 0.0;
    int count = 0;
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < pixels; at += step) {
        int label = labels[at];
        if (label < 0) continue;
        weight += label < classes ? (double)weight_of(class_weights, label) : quiet_nan();
        count++;
    }
    weight = block_sum(weight);
    count = block_sum(count);
    if (threadIdx.x > 0) return;
    weights[blockIdx.x] = weight;
    counts[blockIdx.x] = count;
}

// `predictions` and `gradient` may be null.
extern "C" __global__ void pixel_rows(const T *logits, const int *labels, const float *class_weights,
                                      const double *weights, double *losses, int *hits, int *predictions,
                                      T_OUT *gradient, i64 pixels, int classes, double smoothing,
                                      double auxiliary, const double *label_counts, const float *loss_scale,
                                      TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const LossScale scaling = read_loss_scale(loss_scale);
    __shared__ double shared_divisor;
    if (threadIdx.x == 0)
        shared_divisor = divisor_of(sum_of(weights, gridDim.x), label_counts, class_weights, classes);
    __syncthreads();
    const double divisor = shared_divisor;
    double factor = divisor > 0.0 ? auxiliary / divisor : (divisor == 0.0 ? 0.0 : divisor);
    if (SCALED) factor *= (double)scaling.scale;
    const double every = smoothing / classes;
    double all_weights = 0.0;
    if (smoothing > 0.0)
        for (int c = 0; c < classes; c++) all_weights += (double)weight_of(class_weights, c);
    const int channels = BINARY ? 1 : classes;
    double loss = 0.0;
    int right = 0;
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < pixels; at += step) {
        const T *row = logits + at * channels;
        T_OUT *to = gradient ? gradient + at * channels : gradient;
        float largest = __uint_as_float(0xff800000u);
        int best = 0;
        for (int c = 0; c < classes; c++) {
            float logit = logit_of(row, c);
            if (logit > largest) {
                largest = logit;
                best = c;
            }
        }
        if (predictions) predictions[at] = best;
        const int label = labels[at];
        if (label < 0 || label >= classes) {
            float value = label < 0 ? 0.0f : (float)quiet_nan();
            for (int c = 0; to && c < classes; c++) store_slope(value, to, c);
            continue;
        }
        const float own = logit_of(row, label);
        right += best == label && own == own;
        float sum = 0.0f;
        for (int c = 0; c < classes; c++) sum += expf(logit_of(row, c) - largest);
        const double log_sum = log((double)sum) + (double)largest;
        const double share = (1.0 - smoothing) * (double)weight_of(class_weights, label);
        // 0 · ∞ counts as 0.
        if (share != 0.0) loss += share * (log_sum - (double)own);
        for (int c = 0; smoothing > 0.0 && c < classes; c++) {
            double class_share = every * (double)weight_of(class_weights, c);
            if (class_share != 0.0) loss += class_share * (log_sum - (double)logit_of(row, c));
        }
        if (!to) continue;
        const float slope = (float)(factor * (share + every * all_weights)) / sum;
        for (int c = 0; c < classes; c++) {
            double target = every == 0.0 ? 0.0 : every * (double)weight_of(class_weights, c);
            if (c == label) target += share;
            float value = slope * expf(logit_of(row, c) - largest) - (float)(factor * target);
            store_slope(factor == 0.0 ? 0.0f : value, to, c);
        }
    }
    loss = block_sum(loss);
    right = block_sum(right);
    if (threadIdx.x > 0) return;
    losses[blockIdx.x] = loss;
    hits[blockIdx.x] = right;
}

// One block of one warp, for the sums of `parts` blocks.
extern "C" __global__ void pixel_sums(const double *weights, const double *losses, const int *counts,
                                      const int *hits, double *metrics, int parts, double auxiliary,
                                      const double *label_counts, const float *class_weights, int classes,
                                      int is_auxiliary, int is_first, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    if (threadIdx.x > 0) return;
    const double weight = sum_of(weights, parts), loss = sum_of(losses, parts);
    i64 counted = 0, right = 0;
    for (int part = 0; part < parts; part++) {
        counted += counts[part];
        right += hits[part];
    }
    const double divisor = divisor_of(weight, label_counts, class_weights, classes);
    double mean = divisor == 0.0 ? 0.0 : auxiliary * (loss / divisor);
    if (is_auxiliary) {
        metrics[0] += mean;
        return;
    }
    double values[4] = {mean, (double)counted, (double)right, weight};
    for (int i = 0; i < 4; i++) metrics[i] = is_first ? values[i] : metrics[i] + values[i];
}

EXPORT(pixel_weights)
EXPORT(pixel_rows)
EXPORT(pixel_sums)
