// Convolution of at most four channels on tensor cores (`mma.sync`), with bias and ReLU: x, w, y of T (bf16
// or f16), sums in f32, one group.
//
//   y [P, K] = relu(im2col(x) [P, KH·KW·4] · wᵀ [KH·KW·4, K] + bias [K])        P = N·OH·OW pixels
//
//   grid       resident blocks, each with every gridDim-th tile of pixels, and all outputs
//   block      WARPS warps, PIXELS = WARPS · FRAGMENTS · 16 pixels of a tile; BLOCKS resident per
//              multiprocessor
//   warp       FRAGMENTS · 16 pixels x OUTPUTS · 8 outputs: FRAGMENTS · OUTPUTS · 4 accumulators (registers)
//              per thread
//   shared     all weights (STEPS · OUTPUTS · 256 bytes), tables of taps, biases and pixels, and the window
//              of the tile
//
// A step of the product is 16 columns of the first factor: four taps of four channels. The order of columns
// is free if both factors agree, so a lane takes the four channels of one tap: for l = lane % 4, columns 2l,
// 2l + 1, 2l + 8 and 2l + 9. Likewise, outputs are ordered within fragments so that a lane holds neighbouring
// ones: 2 · GROUP of them, from GROUP fragments.
//
//   OUTPUTS     fragments of 8 outputs
//   STEPS       taps / 4, rounded up
//   VECTOR      a lane's outputs are stored at once
//   BIAS, RELU  whether there is a bias, and a ReLU
//
// cuDNN's kernels read and multiply eight channels, and read y again for bias and ReLU.

const int THREADS = WARPS * 32;
const int PIXELS = WARPS * FRAGMENTS * 16;
const int GROUP = OUTPUTS < 4 ? OUTPUTS : 4;
// The fragments of the weights that a lane loads at once.
const int PAIR = OUTPUTS < 2 ? 1 : 2;
static_assert(OUTPUTS % GROUP == 0, "groups of fragments are whole");

// The output in a column of a fragment.
__device__ __forceinline__ int output_of(int fragment, int column) {
    return fragment / GROUP * GROUP * 8 + column / 2 * GROUP * 2 + fragment % GROUP * 2 + column % 2;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_first(const T *__restrict__ x, const T *__restrict__ weight, const float *__restrict__ bias,
               T *__restrict__ y, int tiles, int outputs, int taps, int kernel_w, int dilation_h,
               int dilation_w, int height, int width, int out_height, int out_width, int stride_h,
               int stride_w, int pad_h, int pad_w, int tile_h, int tile_w, int window_h, int window_w,
               TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    DYNAMIC_SHARED(unsigned char, shared);
    uint2 *weights = (uint2 *)shared;
    int *distance = (int *)(weights + STEPS * OUTPUTS * 32);
    float *biases = (float *)(distance + STEPS * 4);
    int2 *pixels = (int2 *)(biases + OUTPUTS * 8);
    uint2 *window = (uint2 *)(pixels + PIXELS);
    const Geometry geometry = {height, width, out_height, out_width, stride_h, stride_w,
                               pad_h,  pad_w, tile_h,     tile_w,    window_h, window_w};
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;

#pragma unroll 4
    for (int at = thread; at < STEPS * OUTPUTS * 32; at += THREADS) {
        const int lane_index = at / PAIR % 32;
        const int fragment = at / (PAIR * 32) % (OUTPUTS / PAIR) * PAIR + at % PAIR;
        const int tap = at / (OUTPUTS * 32) * 4 + lane_index % 4;
        const int output = output_of(fragment, lane_index / 4);
        weights[at] = load_pixel(weight + (output * taps + tap) * CHANNELS, tap < taps && output < outputs);
    }
    // The distance of a tap from the first tap of a pixel, in pixels of the window.
    for (int tap = thread; tap < STEPS * 4; tap += THREADS)
        distance[tap] = tap < taps ? tap / kernel_w * dilation_h * window_w + tap % kernel_w * dilation_w : 0;
    for (int output = thread; output < OUTPUTS * 8; output += THREADS)
        biases[output] = BIAS && output < outputs ? bias[output] : 0.0f;

    // The position of a pixel's first tap in the window, and of the pixel in the tile. In shared memory, to
    // spare registers.
    for (int pixel = thread; pixel < PIXELS; pixel += THREADS) {
        const int row = pixel / tile_w, column = pixel % tile_w;
        pixels[pixel] =
            make_int2(row < tile_h ? row * stride_h * window_w + column * stride_w : 0, row << 16 | column);
    }
    const int2 *own = pixels + warp * FRAGMENTS * 16 + lane / 4;
    __syncthreads();

    for (int at = blockIdx.x; at < tiles; at += gridDim.x) {
        const Tile tile = tile_at(at, geometry);
        load_window<THREADS>(window, x, tile, geometry);
        __syncthreads();

        float sum[FRAGMENTS][OUTPUTS][4];
#pragma unroll
        for (int j = 0; j < OUTPUTS; j++) {
            const int output = output_of(j, lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = BIAS ? biases[output + e % 2] : 0.0f;
        }
        int first[FRAGMENTS][2];
#pragma unroll
        for (int i = 0; i < FRAGMENTS * 2; i++) first[i / 2][i % 2] = own[i * 8].x;
#pragma unroll 2
        for (int step = 0; step < STEPS; step++) {
            // Taps beyond the last are zero in both factors: an infinity times a zero weight would be NaN.
            const bool valid = step * 4 + lane % 4 < taps;
            const uint2 *tap = window + distance[step * 4 + lane % 4];
            u32 a[FRAGMENTS][4];
#pragma unroll
            for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint2 pixel = tap[first[i][half]];
                    a[i][half] = valid ? pixel.x : 0;
                    a[i][half + 2] = valid ? pixel.y : 0;
                }
#pragma unroll
            for (int j = 0; j < OUTPUTS; j += PAIR) {
                const uint2 *from = weights + (step * OUTPUTS + j) * 32 + lane * PAIR;
                if constexpr (PAIR == 2) {
                    const uint4 b = *(const uint4 *)from;
#pragma unroll
                    for (int i = 0; i < FRAGMENTS; i++) {
                        multiply_add<T>(sum[i][j], a[i], b.x, b.y);
                        multiply_add<T>(sum[i][j + PAIR - 1], a[i], b.z, b.w);
                    }
                } else {
                    const uint2 b = *from;
#pragma unroll
                    for (int i = 0; i < FRAGMENTS; i++) multiply_add<T>(sum[i][j], a[i], b.x, b.y);
                }
            }
        }
        // All threads have read the window.
        __syncthreads();

#pragma unroll
        for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int position = own[i * 16 + half * 8].y, row = position >> 16,
                          column = position & 0xffff;
                if (row >= tile_h || tile.row + row >= out_height || tile.column + column >= out_width)
                    continue;
                T *to = y + (((i64)tile.n * out_height + tile.row + row) * out_width + tile.column + column) *
                                outputs;
#pragma unroll
                for (int group = 0; group < OUTPUTS; group += GROUP) {
                    const int output = output_of(group, lane % 4 * 2);
                    float v[GROUP * 2];
#pragma unroll
                    for (int e = 0; e < GROUP * 2; e++) {
                        v[e] = sum[i][group + e / 2][half * 2 + e % 2];
                        // NaN is propagated.
                        if (RELU && v[e] <= 0.0f) v[e] = 0.0f;
                    }
#if VECTOR
                    if (output < outputs) store(to + output, v);
#else
#pragma unroll
                    for (int e = 0; e < GROUP * 2; e++)
                        if (output + e < outputs) narrow(v[e], to[output + e]);
#endif
                }
            }
    }
}

EXPORT(conv_first)
