// Depthwise convolution, the weight gradient. For every channel:
//
//   dw[tap] = Σ over N and the pixels u of y: dy[u] · x[u · STRIDE - padding + tap · DILATION]
//
//   unit     PIXELS neighbouring outputs of a row; a block processes `share` units
//   block    x: threads along the channels, VECTOR each; y: threads along the units
//   thread   TAPS · VECTOR sums in registers (f32), which the block sums in f64 through two tables in shared
//            memory
//   grid     x: along the channels; y: along the units. A second launch sums the blocks' `partial_sums`
//            [blocks, TAPS, C] in a fixed order

#define SPAN ((PIXELS - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)
#define MAX_THREADS 128

// Returns whether an output of the unit reads input k of the span.
__device__ constexpr bool is_read(int k) {
    for (int j = 0; j < PIXELS; j++) {
        for (int s = 0; s < KERNEL_W; s++) {
            if (j * STRIDE_W + s * DILATION_W == k) return true;
        }
    }
    return false;
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, RESIDENT)
    depthwise_weights(const T *x, const T *dy, double *partial_sums, int units, int share, int channels,
                      int height, int width, int out_height, int out_width, int groups, int pad_h, int pad_w,
                      TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    const u32 step = channels * sizeof(T);
    float sums[TAPS][VECTOR] = {};
    if (channel < channels) {
        const u32 end = min((blockIdx.y + 1) * (u32)share, (u32)units);
#pragma unroll 1
        for (u32 unit = blockIdx.y * (u32)share + threadIdx.y; unit < end; unit += blockDim.y) {
            const u32 line = unit / (u32)groups, n = line / (u32)out_height;
            const int row = (int)(line - n * (u32)out_height),
                      column = (int)(unit - line * (u32)groups) * PIXELS;
            const int in_column = column * STRIDE_W - pad_w;
            const T *from = x + (i64)n * height * width * channels + channel;
            const u32 inside = columns_inside<SPAN>(in_column, width);
            Pixel y_value[PIXELS];
            read_row(y_value, dy + (i64)n * out_height * out_width * channels + channel, row, out_height,
                     out_width * step, column * step, step, columns_inside<PIXELS>(column, out_width),
                     [](int) { return true; });
#pragma unroll
            for (int r = 0; r < KERNEL_H; r++) {
                Pixel in[SPAN];
                read_row(in, from, row * STRIDE_H - pad_h + r * DILATION_H, height, width * step,
                         in_column * step, step, inside, [](int k) { return is_read(k); });
#pragma unroll
                for (int s = 0; s < KERNEL_W; s++) {
#pragma unroll
                    for (int j = 0; j < PIXELS; j++) {
                        const Pixel &at = in[j * STRIDE_W + s * DILATION_W];
#pragma unroll
                        for (int i = 0; i < VECTOR; i++) {
                            float &sum = sums[r * KERNEL_W + s][i];
                            sum = fmaf(channel_of(at, i), channel_of(y_value[j], i), sum);
                        }
                    }
                }
            }
        }
    }
    // Two alternating tables: one is written while the other may still be read.
    __shared__ float tables[2][MAX_THREADS * VECTOR];
    const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y,
              across = blockDim.x * VECTOR;
#pragma unroll
    for (int t = 0; t < TAPS; t++) {
        float *table = tables[t % 2];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) table[thread * VECTOR + i] = sums[t][i];
        __syncthreads();
        for (int i = thread; i < across && (int)blockIdx.x * across + i < channels; i += threads) {
            double sum = 0;
            for (int below = 0; below < blockDim.y; below++) sum += table[below * across + i];
            partial_sums[((i64)blockIdx.y * TAPS + t) * channels + blockIdx.x * across + i] = sum;
        }
    }
}

// Sums `count` partial sums. A block has 32 sums, with 16 threads each.
extern "C" __global__ void __launch_bounds__(512)
    depthwise_weights_sum(const double *partial_sums, float *dweight, int count, int channels,
                          TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    __shared__ double sums[16][32];
    const int taps = TAPS * channels, at = blockIdx.x * 32 + threadIdx.x;
    double sum = 0;
    if (at < taps) {
#pragma unroll 4
        for (int share = threadIdx.y; share < count; share += 16) sum += partial_sums[(i64)share * taps + at];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || at >= taps) return;
    double whole = 0;
    for (int below = 0; below < 16; below++) whole += sums[below][threadIdx.x];
    dweight[at % channels * TAPS + at / channels] = (float)whole;
}

EXPORT(depthwise_weights)
EXPORT(depthwise_weights_sum)
