// Shared by the kernels of batch normalisation, the files batch_norm*.cu.
//
// A map is a matrix [rows, channels], a row per pixel. It may be a range of channels of a larger map: then
// the stride of its rows exceeds its width.
//
//   block    blockDim.x threads along the channels, VECTOR channels each; blockDim.y rows
//   grid     x: along the channels; y: along the rows, in a grid-stride loop
//   thread   the same channels for all of its rows, so that their parameters stay in registers
//
// T is the type of outputs and gradients, X that of the normalised map.
//
//   RELU             whether a ReLU follows
//   ACTIVATION       the function of another activation that follows
//   DERIVATIVE       its derivative
//   CONSTANT_A, CONSTANT_B   their constants: see activation_functions.cu

#ifndef X
#define X T
#endif
#ifndef RELU
#define RELU 0
#endif

// The maximum number of threads of a block.
#define THREADS 256

typedef Vector<X, VECTOR> Inputs;
typedef Vector<T, VECTOR> Results;

#define CHANNEL ((int)(blockIdx.x * blockDim.x + threadIdx.x) * VECTOR)
#define FIRST_ROW ((i64)blockIdx.y * blockDim.y + threadIdx.y)
#define ROW_STEP ((i64)gridDim.y * blockDim.y)

// The normalisation of a thread's channels: y = weight · (x - mean) · inverse_deviation + bias.
struct Affine {
    float mean[VECTOR];
    float inverse_deviation[VECTOR];
    float scale[VECTOR];
    float bias[VECTOR];

    // `variance_or_inverse` is the inverse deviation if epsilon is negative, else the variance.
    __device__ __forceinline__ Affine(const float *weight, const float *biases, const float *means,
                                      const float *variance_or_inverse, float epsilon, int channel) {
        load(means + channel, mean);
        load(variance_or_inverse + channel, inverse_deviation);
        load(weight + channel, scale);
        load(biases + channel, bias);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if (epsilon >= 0.0f) inverse_deviation[i] = 1.0f / sqrtf(inverse_deviation[i] + epsilon);
            scale[i] *= inverse_deviation[i];
        }
    }

    // The result for `centred` = x - mean. All kernels call it, so that the activation gets the
    // same number in both passes.
    __device__ __forceinline__ float normalise(float centred, int i) const {
        return fmaf(centred, scale[i], bias[i]);
    }
};

// The gradient of the input, with the sums Σ over all n elements of a channel, and `inverse_count` = 1 / n:
//
//   dx = scale · (dy - Σ dy / n - x̂ · Σ (dy · x̂) / n) = scale · dy + slope · (x - mean) + offset
struct Correction {
    float slope[VECTOR];
    float offset[VECTOR];

    __device__ __forceinline__ Correction(const Affine &affine, const float *dweight, const float *dbias,
                                          float inverse_count, int channel) {
        load(dweight + channel, slope);
        load(dbias + channel, offset);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            slope[i] *= -inverse_count * affine.scale[i] * affine.inverse_deviation[i];
            offset[i] *= -inverse_count * affine.scale[i];
        }
    }
};

#ifdef ACTIVATION
#define HAS_ACTIVATION true
__device__ __forceinline__ float activate(float z) { return ACTIVATION(z, CONSTANT_A, CONSTANT_B); }
// The gradient of z from that of activate(z).
__device__ __forceinline__ float gradient_of(float z, float dy) {
    float derivative = DERIVATIVE(z, CONSTANT_A, CONSTANT_B);
    // Where an activation is constant, no gradient passes, not even an infinite one.
    return derivative == 0.0f ? 0.0f : dy * derivative;
}
#else
#define HAS_ACTIVATION RELU
// NaN is propagated, so that a diverged run is noticed.
__device__ __forceinline__ float activate(float z) { return RELU && z <= 0.0f ? 0.0f : z; }
__device__ __forceinline__ float gradient_of(float z, float dy) { return RELU && z <= 0.0f ? 0.0f : dy; }
#endif

// Sums over the rows of a block, in a fixed order; the threads of the first row get the sums. Every thread of
// the block calls it, once per launch.
template <int COUNT, int MAX_THREADS> __device__ __forceinline__ void sum_rows(double (&values)[COUNT]) {
    __shared__ double shared[COUNT * MAX_THREADS];
    int row = threadIdx.y, own = row * blockDim.x + threadIdx.x;
    for (int rows = blockDim.y, half; rows > 1; rows = half) {
        half = (rows + 1) / 2;
        // A level writes only entries that no thread reads at another level: one barrier is enough.
        if (row >= half && row < rows) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) shared[i * MAX_THREADS + own] = values[i];
        }
        __syncthreads();
        if (row + half < rows) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) values[i] += shared[i * MAX_THREADS + own + half * blockDim.x];
        }
    }
}

// Two sums for each of a thread's channels: the first sums of all channels, then the second.
typedef double Sums[2 * VECTOR];

// Sums over the block, and writes its partial sums to `partial_sums` [blocks along the rows, 2, channels].
__device__ __forceinline__ void write_sums(Sums &sums, int channels, double *partial_sums) {
    sum_rows<2 * VECTOR, THREADS>(sums);
    int channel = CHANNEL;
    if (threadIdx.y != 0 || channel >= channels) return;
    double *to = partial_sums + (i64)blockIdx.y * 2 * channels + channel;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        to[i] = sums[i];
        to[channels + i] = sums[VECTOR + i];
    }
}

// Adds ROWS rows to the sums: of the gradients, and of the gradients times (x - mean).
template <int ROWS>
__device__ __forceinline__ void add_products(Sums &sums, const Inputs (&inputs)[ROWS],
                                             const float (&gradients)[ROWS][VECTOR],
                                             const float (&mean)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        float sum = 0.0f, weighted = 0.0f;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sum += gradients[r][i];
            weighted = fmaf(gradients[r][i], widen(inputs[r].at[i]) - mean[i], weighted);
        }
        sums[i] += sum;
        sums[VECTOR + i] += weighted;
    }
}
