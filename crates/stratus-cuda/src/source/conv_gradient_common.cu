// What the kernels for gradients of convolutions' weights share: where columns of the product lie, and the sum of its parts.

// What no row of a map reaches.
const int NOWHERE = -(1 << 30);

// Where a column of the product lies in x, relative to a pixel's first tap: rows down, pixels right, elements on.
struct Column {
    int h, w, at;
};

__device__ __forceinline__ Column column_of(int column, int columns, int channels, int width, int kernel_w, int dilation_h, int dilation_w) {
    if (column >= columns) return {NOWHERE, 0, 0};
    int tap = column / channels;
    int h = tap / kernel_w * dilation_h, w = tap % kernel_w * dilation_w;
    return {h, w, (h * width + w) * channels + column % channels};
}

// Adds up the parts of `count` sums. Threads with one x share the parts of a sum.
extern "C" __global__ void __launch_bounds__(256) add_parts(const float *partial, float *sums, int parts, int count) {
    __shared__ double shares[256];
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    double sum = 0;
    if (at < count) {
#pragma unroll 4
        for (int i = threadIdx.y; i < parts; i += blockDim.y) sum += partial[(i64)i * count + at];
    }
    shares[threadIdx.y * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && at < count) {
        for (int i = 1; i < blockDim.y; i++) sum += shares[i * blockDim.x + threadIdx.x];
        sums[at] = (float)sum;
    }
}

