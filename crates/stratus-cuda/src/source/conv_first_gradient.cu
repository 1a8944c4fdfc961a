// Weight gradient of a convolution of at most four channels on tensor cores (`mma.sync`): x, dy of T (bf16 or
// f16), dw in f32, one group.
//
//   dw [K, KH·KW·C] = dyᵀ [K, P] · im2col(x) [P, KH·KW·C]        P = N·OH·OW pixels of the output
//
//   grid     parts of the tiles (split-K, summed by add_parts) x outputs, FRAGMENTS · 16 at a time
//   block    tiles in sequence, PIXELS pixels each: loads dy and window of a tile while it multiplies
//            the last one
//   warps    WARPS_N x WARPS_K: along the taps, eight each with all channels; and along the tile's pixels, 16
//            at a time. Each of the WARPS_K has separate sums, as a part of the split
//   thread   FRAGMENTS · CHANNELS · 4 accumulators (registers)
//   shared   two stages of dy (PIXELS · FRAGMENTS · 32 bytes each), a table of 8 bytes per pixel, two windows
//
// The order of the 16 pixels in a fragment is free if both factors agree. For l = lane % 4, a lane takes
// pixels l, l + 4, l + 8 and l + 12, so that a warp reads neighbouring pixels of the window at once, from
// different banks.
//
// In shared memory a pixel of dy is a row of 16-byte chunks (8 outputs), swizzled from row to row so that the
// same chunk of 8 rows covers all banks.
//
// Other kernels gather im2col(x) element by element, because three channels are not an aligned chunk; this
// one reads each pixel of x once per tile.

const int THREADS = WARPS_N * WARPS_K * 32;
const int CHUNKS = FRAGMENTS * 2;
const int STAGE = PIXELS * CHUNKS * 16;
static_assert((CHUNKS & (CHUNKS - 1)) == 0 && CHUNKS <= 8, "chunks are exchanged within a row");

// The position of a chunk in a stage, in bytes.
__device__ __forceinline__ int swizzled_offset(int row, int chunk) {
    return (row * CHUNKS + (chunk ^ (row * CHUNKS / 8 & (CHUNKS - 1)))) * 16;
}

// The lower, or the upper, halves of two words as one word.
__device__ __forceinline__ u32 lower(u32 left, u32 right) { return __byte_perm(left, right, 0x5410); }
__device__ __forceinline__ u32 upper(u32 left, u32 right) { return __byte_perm(left, right, 0x7632); }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_first_gradient(const T *__restrict__ x, const T *__restrict__ dy, float *__restrict__ sums,
                        int tiles, int part, int outputs, int taps, int kernel_w, int dilation_h,
                        int dilation_w, int height, int width, int out_height, int out_width, int stride_h,
                        int stride_w, int pad_h, int pad_w, int tile_h, int tile_w, int window_h,
                        int window_w, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    DYNAMIC_SHARED(unsigned char, shared);
    const SharedAddress stages = shared_address(shared);
    // `first`: the first tap of a pixel in the window, in the order of lanes. `position`: row and column in
    // the tile.
    int *first = (int *)(shared + 2 * STAGE);
    int *position = first + PIXELS;
    uint2 *windows = (uint2 *)(position + PIXELS);
    const Geometry geometry = {height, width, out_height, out_width, stride_h, stride_w,
                               pad_h,  pad_w, tile_h,     tile_w,    window_h, window_w};
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int warp_n = warp % WARPS_N, warp_k = warp / WARPS_N;
    const int first_output = blockIdx.y * FRAGMENTS * 16;
    const int size = window_h * window_w;

    for (int pixel = thread; pixel < PIXELS; pixel += THREADS) {
        const int row = pixel / tile_w, column = pixel % tile_w;
        first[pixel / 16 * 16 + pixel % 4 * 4 + pixel % 16 / 4] =
            row < tile_h ? row * stride_h * window_w + column * stride_w : 0;
        position[pixel] = row << 16 | column;
    }
    __syncthreads();

    auto load_stage = [&](int at, int slot) {
        const Tile tile = tile_at(at, geometry);
        const T *corner =
            dy + (((i64)tile.n * out_height + tile.row) * out_width + tile.column) * outputs + first_output;
#pragma unroll 4
        for (int i = thread; i < PIXELS * CHUNKS; i += THREADS) {
            const int pixel = i / CHUNKS, chunk = i % CHUNKS;
            const int row = position[pixel] >> 16, column = position[pixel] & 0xffff;
            const bool inside = row < tile_h && tile.row + row < out_height &&
                                tile.column + column < out_width && first_output + chunk * 8 < outputs;
            const T *from = corner + (i64)(row * out_width + column) * outputs + chunk * 8;
            copy_async<false>(stages + slot * STAGE + swizzled_offset(pixel, chunk), inside ? from : dy,
                              inside);
        }
        commit_copies();
        load_window<THREADS>(windows + slot * size, x, tile, geometry);
    };

    float sum[FRAGMENTS][CHANNELS][4];
#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
        for (int c = 0; c < CHANNELS; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][c][e] = 0.0f;
    // The rows that this lane addresses for load_transposed: matrices of 8 pixels x 8 outputs, outputs first.
    int from[FRAGMENTS];
#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++)
        from[i] = swizzled_offset(lane % 8 / 2 + lane % 2 * 4 + lane / 16 * 8, 2 * i + lane / 8 % 2);
    // The distance of this lane's tap from the first tap of a pixel.
    const int own = warp_n * 8 + lane / 4;
    const int distance =
        own < taps ? own / kernel_w * dilation_h * window_w + own % kernel_w * dilation_w : 0;

    const int begin = blockIdx.x * part, end = min(begin + part, tiles);
    if (begin < end) load_stage(begin, 0);
    for (int at = begin; at < end; at++) {
        const int slot = (at - begin) & 1;
        // This thread's copies are complete, and after the barrier those of all threads. All threads have
        // also read the slot that is overwritten next.
        wait_copies<0>();
        __syncthreads();
        if (at + 1 < end) load_stage(at + 1, slot ^ 1);
        const uint2 *tap = windows + slot * size + distance;
#pragma unroll 1
        for (int k = warp_k * 16; k < PIXELS; k += WARPS_K * 16) {
            const int4 pixels = *(const int4 *)(first + k + lane % 4 * 4);
            const uint2 p0 = tap[pixels.x], p1 = tap[pixels.y], p2 = tap[pixels.z], p3 = tap[pixels.w];
            u32 b[4][2] = {{lower(p0.x, p1.x), lower(p2.x, p3.x)},
                           {upper(p0.x, p1.x), upper(p2.x, p3.x)},
                           {lower(p0.y, p1.y), lower(p2.y, p3.y)},
                           {upper(p0.y, p1.y), upper(p2.y, p3.y)}};
#pragma unroll
            for (int i = 0; i < FRAGMENTS; i++) {
                u32 a[4];
                load_transposed(stages + slot * STAGE + from[i] + k * CHUNKS * 16, a);
#pragma unroll
                for (int c = 0; c < CHANNELS; c++) multiply_add<T>(sum[i][c], a, b[c][0], b[c][1]);
            }
        }
    }

    const int columns = taps * CHANNELS;
    sums += (i64)(blockIdx.x * WARPS_K + warp_k) * outputs * columns;
#pragma unroll
    for (int i = 0; i < FRAGMENTS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int output = first_output + i * 16 + e / 2 * 8 + lane / 4,
                      tap = warp_n * 8 + lane % 4 * 2 + e % 2;
            if (output >= outputs || tap >= taps) continue;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
                sums[(i64)output * columns + tap * CHANNELS + c] = sum[i][c][e];
        }
}

EXPORT(conv_first_gradient)
EXPORT(add_parts)
