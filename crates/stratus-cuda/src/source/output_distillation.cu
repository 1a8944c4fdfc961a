// The loss by the outputs of a teacher that are compared one by one, added to the metrics and the gradient
// of the main loss. Outputs are [N, T], with a target each, or a map of one channel, with a class for each
// pixel.
//
//   logits    p = σ(t / T)      q = σ(z / T)
//             loss += weight · T² · Σ (p log (p/q) + (1-p) log ((1-p)/(1-q))) / count
//             dz   += weight · T · (q - p) / count
//   numbers   loss += weight · Σ (z - t)² / count
//             dz   += 2 weight · (z - t) / count
//
//   output_counts   counts the outputs with a label, a partial sum per block
//   output_terms    a thread per output: loss and gradient; a partial sum of the loss per block
//   output_sums     one block: adds the partial sums in a fixed order
//
// For a part of a batch, the label counts of the whole batch give the count; otherwise their address is null.
// LABEL: the type of a label, float for targets, int for classes. LOGITS: 1 for logits, 0 for numbers.
// SCALED: the gradient is multiplied by the loss scale.

__device__ __forceinline__ bool is_counted(float target) { return target == target; }
__device__ __forceinline__ bool is_counted(int label) { return label >= 0; }

// The number of labels: of the whole batch, if its label counts are known, or else of these outputs.
__device__ double labels_of(const int *counts, u32 parts, const double *label_counts, int classes) {
    double sum = 0.0;
    if (label_counts)
        for (int c = 0; c < classes; c++) sum += label_counts[c];
    else
        for (u32 part = 0; part < parts; part++) sum += (double)counts[part];
    return sum;
}

extern "C" __global__ void output_counts(const LABEL *labels, int *counts, i64 outputs, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int count = 0;
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < outputs; at += step)
        count += is_counted(labels[at]);
    count = block_sum(count);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// The functions of a logit z: σ and softplus of z and of -z.
struct Logistic {
    float probability, opposite, above, below;
};

__device__ __forceinline__ Logistic logistic(float z) {
    const float e = expf(-fabsf(z)), tail = log1pf(e);
    const float large = 1.0f / (1.0f + e), small = e / (1.0f + e);
    const bool is_negative = z < 0.0f;
    return {is_negative ? small : large, is_negative ? large : small, (is_negative ? 0.0f : z) + tail,
            (is_negative ? -z : 0.0f) + tail};
}

// 0 · ∞ counts as 0.
__device__ __forceinline__ double part(float share, double value) {
    return share == 0.0f ? 0.0 : (double)share * value;
}

extern "C" __global__ void output_terms(const T *student, const T *teacher, const LABEL *labels,
                                        const int *counts, double *losses, T_OUT *gradient, i64 outputs,
                                        int classes, double weight, double temperature,
                                        const double *label_counts, const float *loss_scale,
                                        TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const LossScale scaling = read_loss_scale(loss_scale);
    __shared__ double shared_divisor;
    if (threadIdx.x == 0) shared_divisor = labels_of(counts, gridDim.x, label_counts, classes);
    __syncthreads();
    const double divisor = shared_divisor;
    double factor = divisor > 0.0 ? weight * (LOGITS ? temperature : 2.0) / divisor : 0.0;
    if (SCALED) factor *= (double)scaling.scale;
    const float inverse = (float)(1.0 / temperature);
    double loss = 0.0;
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < outputs; at += step) {
        if (!is_counted(labels[at]) || divisor == 0.0) continue;
        const float z = widen(student[at]), t = widen(teacher[at]);
        float slope = z - t;
        if (LOGITS) {
            const Logistic q = logistic(z * inverse), p = logistic(t * inverse);
            // log p - log q = softplus(-z) - softplus(-t)
            loss += part(p.probability, (double)q.below - (double)p.below) +
                    part(p.opposite, (double)q.above - (double)p.above);
            // From the smaller of the two probabilities, so that small differences are exact.
            slope = z > 0.0f ? p.opposite - q.opposite : q.probability - p.probability;
        } else {
            loss += (double)slope * (double)slope;
        }
        narrow(widen(gradient[at]) + (float)(factor * (double)slope), gradient[at]);
    }
    loss = block_sum(loss);
    if (threadIdx.x == 0) losses[blockIdx.x] = loss;
}

// One block of one warp, for the sums of `parts` blocks.
extern "C" __global__ void output_sums(const int *counts, const double *losses, double *metrics, int parts,
                                       int classes, double weight, double temperature,
                                       const double *label_counts, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    if (threadIdx.x > 0) return;
    const double divisor = labels_of(counts, parts, label_counts, classes);
    double loss = 0.0;
    for (int part = 0; part < parts; part++) loss += losses[part];
    const double factor = LOGITS ? weight * temperature * temperature : weight;
    if (divisor != 0.0) metrics[0] += factor * (loss / divisor);
}

EXPORT(output_counts)
EXPORT(output_terms)
EXPORT(output_sums)
