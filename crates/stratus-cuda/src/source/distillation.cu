// The loss by the logits of a teacher, added to the metrics and the gradient of the main loss. Logits are
// channels last, [N, H, W, classes], or [N, classes].
//
//   p = softmax(t / T)      q = softmax(z / T)
//   loss += weight · T² · Σ p (log p - log q) / labels            dlogit += weight · T · (q - p) / labels
//
//   distillation_counts   counts the rows with a label, a partial sum per block
//   distillation_rows     a thread per row: loss and gradient; a partial sum of the loss per block
//   distillation_sums     one block: adds the partial sums in a fixed order
//
// For a part of a batch, the label counts of the whole batch give the number of labels; otherwise their
// address is null. SCALED: the gradient is multiplied by the loss scale. STRIDE: the distance between labels.

// The number of labels: of the whole batch, if its label counts are known, or else of these rows.
__device__ double labels_of(const int *counts, u32 parts, const double *label_counts, int classes) {
    double sum = 0.0;
    if (label_counts)
        for (int c = 0; c < classes; c++) sum += label_counts[c];
    else
        for (u32 part = 0; part < parts; part++) sum += (double)counts[part];
    return sum;
}

extern "C" __global__ void distillation_counts(const int *labels, int *counts, i64 rows, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int count = 0;
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < rows; at += step)
        count += labels[at * STRIDE] >= 0;
    count = block_sum(count);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// The largest of a row of logits; NaN is never the largest.
__device__ __forceinline__ float largest_of(const T *row, int classes) {
    float largest = __uint_as_float(0xff800000u);
    for (int c = 0; c < classes; c++) {
        float logit = widen(row[c]);
        if (logit > largest) largest = logit;
    }
    return largest;
}

extern "C" __global__ void distillation_rows(const T *logits, const T *teacher, const int *labels,
                                             const int *counts, double *losses, T_OUT *gradient, i64 rows,
                                             int classes, double weight, double temperature,
                                             const double *label_counts, const float *loss_scale,
                                             TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const LossScale scaling = read_loss_scale(loss_scale);
    __shared__ double shared_divisor;
    if (threadIdx.x == 0) shared_divisor = labels_of(counts, gridDim.x, label_counts, classes);
    __syncthreads();
    const double divisor = shared_divisor;
    double slope = divisor > 0.0 ? weight * temperature / divisor : 0.0;
    if (SCALED) slope *= (double)scaling.scale;
    const float inverse = (float)(1.0 / temperature);
    double loss = 0.0;
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < rows; at += step) {
        if (labels[at * STRIDE] < 0 || divisor == 0.0) continue;
        const T *row = logits + at * classes, *teacher_row = teacher + at * classes;
        T_OUT *to = gradient + at * classes;
        const float largest = largest_of(row, classes), teacher_largest = largest_of(teacher_row, classes);
        float sum = 0.0f, teacher_sum = 0.0f;
        double cross = 0.0;
        for (int c = 0; c < classes; c++) {
            const float a = (widen(row[c]) - largest) * inverse;
            const float b = (widen(teacher_row[c]) - teacher_largest) * inverse;
            const float exponential = expf(b);
            sum += expf(a);
            teacher_sum += exponential;
            // 0 · ∞ counts as 0.
            if (exponential != 0.0f) cross += (double)exponential * ((double)b - (double)a);
        }
        loss += cross / (double)teacher_sum + log((double)sum) - log((double)teacher_sum);
        const float factor = (float)slope / sum, teacher_factor = (float)slope / teacher_sum;
        for (int c = 0; c < classes; c++) {
            const float q = factor * expf((widen(row[c]) - largest) * inverse);
            const float p = teacher_factor * expf((widen(teacher_row[c]) - teacher_largest) * inverse);
            narrow(widen(to[c]) + (q - p), to[c]);
        }
    }
    loss = block_sum(loss);
    if (threadIdx.x == 0) losses[blockIdx.x] = loss;
}

// One block of one warp, for the sums of `parts` blocks.
extern "C" __global__ void distillation_sums(const int *counts, const double *losses, double *metrics,
                                             int parts, int classes, double weight, double temperature,
                                             const double *label_counts, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    if (threadIdx.x > 0) return;
    const double divisor = labels_of(counts, parts, label_counts, classes);
    double loss = 0.0;
    for (int part = 0; part < parts; part++) loss += losses[part];
    if (divisor != 0.0) metrics[0] += weight * temperature * temperature * (loss / divisor);
}

EXPORT(distillation_counts)
EXPORT(distillation_rows)
EXPORT(distillation_sums)
