// What the kernels of batch normalisation share. The files batch_norm*.cu follow it.
//
// A map is rows (pixels) of channels, and may be some of the channels of a larger map: then its rows lie further apart than it is wide. A block has
// blockDim.x threads along the channels, VECTOR channels each, and blockDim.y rows; blockIdx.x counts along the channels, blockIdx.y along the rows.
// A thread keeps its channels while it goes on over the rows in steps of the grid, so that what belongs to a channel stays in its registers.
//
// T is the type of results and gradients, X that of the map that is normalised, RELU whether a rectifier follows.

#ifndef X
#define X T
#endif
#ifndef RELU
#define RELU 0
#endif

// The most threads of a block.
#define THREADS 256

typedef Vector<X, VECTOR> Inputs;
typedef Vector<T, VECTOR> Results;

#define CHANNEL ((int)(blockIdx.x * blockDim.x + threadIdx.x) * VECTOR)
#define FIRST_ROW ((i64)blockIdx.y * blockDim.y + threadIdx.y)
#define ROW_STEP ((i64)gridDim.y * blockDim.y)

// The normalisation of a thread's channels.
struct Affine {
    float mean[VECTOR];
    float inverse_deviation[VECTOR];
    float scale[VECTOR];
    float bias[VECTOR];

    // `spread` is the inverse deviation where epsilon is negative, else the variance.
    __device__ __forceinline__ Affine(const float *weight, const float *biases, const float *means, const float *spread,
                                      float epsilon, int channel) {
        load(means + channel, mean);
        load(spread + channel, inverse_deviation);
        load(weight + channel, scale);
        load(biases + channel, bias);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if (epsilon >= 0.0f) inverse_deviation[i] = 1.0f / sqrtf(inverse_deviation[i] + epsilon);
            scale[i] *= inverse_deviation[i];
        }
    }

    // From what is left of an input without the mean. Every kernel asks here, so that the backward pass cuts off what the forward pass did.
    __device__ __forceinline__ float of(float centred, int i) const { return fmaf(centred, scale[i], bias[i]); }
};

// The gradient of the input, `scale * dy + slope * (x - mean) + offset`: without its mean and without its part along the normalised map, neither of
// which can change the result.
// `share` is what one element is of all that the sums are over.
struct Correction {
    float slope[VECTOR];
    float offset[VECTOR];

    __device__ __forceinline__ Correction(const Affine &affine, const float *dweight, const float *dbias, float share,
                                          int channel) {
        load(dweight + channel, slope);
        load(dbias + channel, offset);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            slope[i] *= -share * affine.scale[i] * affine.inverse_deviation[i];
            offset[i] *= -share * affine.scale[i];
        }
    }
};

// What is not a number passes: a diverged run must show.
__device__ __forceinline__ float rectified(float value) { return RELU && value <= 0.0f ? 0.0f : value; }

// Adds up over the rows of a block, in a fixed order; the threads of the first row have the sums. Every thread of the block calls it, and once.
template <int COUNT, int MOST> __device__ __forceinline__ void sum_rows(double (&values)[COUNT]) {
    __shared__ double shared[COUNT * MOST];
    int row = threadIdx.y, own = row * blockDim.x + threadIdx.x;
    for (int rows = blockDim.y, half; rows > 1; rows = half) {
        half = (rows + 1) / 2;
        // Where a level writes, no thread reads at another level: one barrier is enough.
        if (row >= half && row < rows) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) shared[i * MOST + own] = values[i];
        }
        __syncthreads();
        if (row + half < rows) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) values[i] += shared[i * MOST + own + half * blockDim.x];
        }
    }
}

// Two sums for each of a thread's channels: the first of all of them, then the second.
typedef double Sums[2 * VECTOR];

// Adds up over the block and writes its share of the sums [blocks along the rows, 2, channels].
__device__ __forceinline__ void write_sums(Sums &sums, int channels, double *shares) {
    sum_rows<2 * VECTOR, THREADS>(sums);
    int channel = CHANNEL;
    if (threadIdx.y != 0 || channel >= channels) return;
    double *to = shares + (i64)blockIdx.y * 2 * channels + channel;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        to[i] = sums[i];
        to[channels + i] = sums[VECTOR + i];
    }
}

// Adds `ROWS` rows of gradients and of the same times what is left of x without its mean.
template <int ROWS>
__device__ __forceinline__ void add_products(Sums &sums, const Inputs (&inputs)[ROWS],
                                             const float (&gradients)[ROWS][VECTOR], const float (&mean)[VECTOR]) {
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
