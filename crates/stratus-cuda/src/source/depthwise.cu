// Depthwise convolution, the forward pass and (REVERSED: with the taps in reverse order) the data gradient.
// For every channel:
//
//   y[u] = Σ_tap w[tap] · x[(u · DOWN - padding + tap · DILATION) / UP], where that index is an integer
//
//   forward        DOWN is the stride, UP is 1
//   data gradient  UP is the stride, DOWN is 1
//
//   thread     VECTOR channels, PIXELS columns (a multiple of UP_W), and down `rows` rows (a multiple of
//              UP_H)
//   registers  TAPS · VECTOR weights and PIXELS · VECTOR sums; inputs that neighbouring outputs share are
//              read once per row. Input rows shared by several output rows are cached
//   shared     none
//   grid       threads along the channels first, so that a warp reads contiguous bytes; RESIDENT blocks per
//              multiprocessor
//
// The first rows and columns may precede the output, so that the first tap's index is an integer.
//
// The kernel is bound by memory bandwidth, which cuDNN's depthwise kernels do not saturate.

#define SPAN (((PIXELS - 1) * DOWN_W + (KERNEL_W - 1) * DILATION_W) / UP_W + 1)

// Returns whether an output of the thread reads input k of the span.
__device__ constexpr bool is_read(int k) {
    for (int j = 0; j < PIXELS; j++) {
        for (int s = 0; s < KERNEL_W; s++) {
            if (j * DOWN_W + s * DILATION_W == k * UP_W) return true;
        }
    }
    return false;
}

// `first_h`, `first_w`: the first output; `begin_h`, `begin_w`: the input of its first tap.
extern "C" __global__ void __launch_bounds__(128, RESIDENT)
    depthwise(const T *x, const T *weight, T *y, i64 count, int channels, int height, int width,
              int out_height, int out_width, int rows, int parts, int groups, int first_h, int begin_h,
              int first_w, int begin_w, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const int vectors = channels / VECTOR;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (i64)gridDim.x * blockDim.x) {
        int channel = (int)(at % vectors) * VECTOR;
        i64 rest = at / vectors;
        int group = (int)(rest % groups);
        rest /= groups;
        int part = (int)(rest % parts);
        i64 n = rest / parts;
        float taps[TAPS][VECTOR];
        {
            const T *from = weight + (i64)channel * TAPS;
#pragma unroll
            for (int t = 0; t < TAPS; t++) {
                float some[VECTOR];
                load(from + t * VECTOR, some);
#pragma unroll
                for (int i = 0; i < VECTOR; i++)
                    taps[(t * VECTOR + i) % TAPS][(t * VECTOR + i) / TAPS] = some[i];
            }
        }
        const T *from = x + n * height * width * channels + channel;
        T *to = y + n * out_height * out_width * channels + channel;
        const int column = first_w + group * PIXELS, in_column = begin_w + group * (PIXELS * DOWN_W / UP_W);
        const u32 step = channels * sizeof(T), at_column = in_column * step,
                  inside = columns_inside<SPAN>(in_column, width);
        int row = first_h + part * rows, in_row = begin_h + part * (rows / UP_H) * DOWN_H;
        const int end = min(row + rows, out_height);
#pragma unroll 1
        for (; row < end; row += UP_H, in_row += DOWN_H) {
#pragma unroll
            for (int phase = 0; phase < UP_H; phase++) {
                float sums[PIXELS][VECTOR] = {};
#pragma unroll
                for (int r = 0; r < KERNEL_H; r++) {
                    if ((phase + r * DILATION_H) % UP_H != 0) continue;
                    Pixel in[SPAN];
                    read_row(in, from, in_row + (phase + r * DILATION_H) / UP_H, height, width * step,
                             at_column, step, inside, [](int k) { return is_read(k); });
#pragma unroll
                    for (int s = 0; s < KERNEL_W; s++) {
                        const int t = REVERSED ? TAPS - 1 - (r * KERNEL_W + s) : r * KERNEL_W + s;
#pragma unroll
                        for (int j = 0; j < PIXELS; j++) {
                            const int k = j * DOWN_W + s * DILATION_W;
                            if (k % UP_W != 0) continue;
#pragma unroll
                            for (int i = 0; i < VECTOR; i++)
                                sums[j][i] = fmaf(channel_of(in[k / UP_W], i), taps[t][i], sums[j][i]);
                        }
                    }
                }
                int out_row = row + phase;
                if (out_row < 0 || out_row >= out_height) continue;
                const u32 line = (u32)(out_row * out_width + column) * step;
#pragma unroll
                for (int j = 0; j < PIXELS; j++) {
                    if (column + j >= 0 && column + j < out_width)
                        store((T *)((char *)to + (line + j * step)), sums[j]);
                }
            }
        }
    }
}

EXPORT(depthwise)
