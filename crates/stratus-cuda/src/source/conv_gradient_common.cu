// Shared by the weight gradient kernels: the columns of the im2col matrix, and the sum of split-K parts.

// A row outside of every map.
const int NOWHERE = -(1 << 30);

// A column (tap, channel) of the im2col matrix, relative to the first tap of a pixel: rows down, pixels
// right, and the offset in elements of x.
struct Column {
    int h, w, at;
};

__device__ __forceinline__ Column column_of(int column, int columns, int channels, int width, int kernel_w,
                                            int dilation_h, int dilation_w) {
    if (column >= columns) return {NOWHERE, 0, 0};
    int tap = column / channels;
    int h = tap / kernel_w * dilation_h, w = tap % kernel_w * dilation_w;
    return {h, w, (h * width + w) * channels + column % channels};
}

// sums[i] = Σ_p partial[p][i] over `parts` parts of `count` sums, in f64 and in a fixed order. Threads of a
// block with the same x divide the parts of a sum.
extern "C" __global__ void __launch_bounds__(256)
    add_parts(const float *partial, float *sums, int parts, int count, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    __shared__ double partial_sums[256];
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    double sum = 0;
    if (at < count) {
#pragma unroll 4
        for (int i = threadIdx.y; i < parts; i += blockDim.y) sum += partial[(i64)i * count + at];
    }
    partial_sums[threadIdx.y * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && at < count) {
        for (int i = 1; i < blockDim.y; i++) sum += partial_sums[i * blockDim.x + threadIdx.x];
        sums[at] = (float)sum;
    }
}
