// Gradient clipping by the global norm. `norm` holds two doubles: the sum of squares so far, and the factor
// of the gradients. The number of blocks of a sum depends only on the tensor and the GPU, and their sums are
// added in order.

__device__ __forceinline__ void add_to_norm(double *norm, double squares, int is_first) {
    norm[0] = is_first ? squares : norm[0] + squares;
    norm[1] = 1.0;
}

// `partial[block]` is the sum of the block's squares. A single block adds it to the norm directly.
extern "C" __global__ void sum_of_squares(const T *gradient, double *partial, double *norm, i64 count,
                                          int is_first, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const i64 step = (i64)gridDim.x * blockDim.x * VECTOR;
    double squares = 0.0;
    for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; at < count; at += step) {
        float g[VECTOR];
        load(gradient + at, g);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) squares += (double)g[i] * (double)g[i];
    }
    squares = block_sum(squares);
    if (threadIdx.x > 0) return;
    if (gridDim.x > 1)
        partial[blockIdx.x] = squares;
    else
        add_to_norm(norm, squares, is_first);
}

// One block.
extern "C" __global__ void add_squares(const double *partial, double *norm, int blocks, int is_first,
                                       TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    double squares = 0.0;
    for (int block = threadIdx.x; block < blocks; block += blockDim.x) squares += partial[block];
    squares = block_sum(squares);
    if (threadIdx.x == 0) add_to_norm(norm, squares, is_first);
}

// One thread. NaN is propagated.
extern "C" __global__ void clip_factor(double *norm, double max_norm, const float *loss_scale,
                                       TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const double ratio = max_norm / (sqrt(norm[0]) * read_loss_scale(loss_scale).inverse + 1e-6);
    norm[1] = ratio >= 1.0 ? 1.0 : ratio;
}

// Grid-stride loop over the elements, VECTOR at a time.
extern "C" __global__ void clip_gradient(const double *norm, T *gradient, i64 count, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const float factor = (float)norm[1];
    if (factor == 1.0f) return;
    const i64 step = (i64)gridDim.x * blockDim.x * VECTOR;
    for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; at < count; at += step) {
        float g[VECTOR];
        load(gradient + at, g);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) g[i] *= factor;
        store(gradient + at, g);
    }
}

EXPORT(sum_of_squares)
EXPORT(add_squares)
EXPORT(clip_factor)
EXPORT(clip_gradient)
