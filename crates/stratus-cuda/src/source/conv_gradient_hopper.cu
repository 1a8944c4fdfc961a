// Weight gradient of a convolution on Hopper's tensor cores (`wgmma`): the product of conv_gradient.cu, with
// factors that stay in shared memory instead of passing through registers.
//
//   dw [K, KH·KW·C] = dyᵀ [K, P] · im2col(x) [P, KH·KW·C]
//
//   grid       columns / TILE_N, outputs / TILE_M, parts of the pixels (split-K, summed by add_parts)
//   warpgroup  64 outputs x WARP_N columns, as WARP_N / 2 accumulators (f32 registers) per thread
//   shared     a pipeline of STAGES stages, TILE_K · (TILE_M + TILE_N) · 2 bytes each: one is multiplied, the
//              one before may still be, all others are being copied
//
// Channels and outputs are multiples of 8, so that every chunk of 8 elements is an aligned copy of 16 bytes.
// CACHED: x is cached in L1.
//
// If channels are a multiple of 64, the columns of a tile are taps of the same 64 channels as far as
// possible. These taps read nearly the same pixels of x, so most loads hit L1 instead of L2.

const int WARPS_M = TILE_M / 64;
const int THREADS = WARPS_M * (TILE_N / WARP_N) * 128;
// Eight threads load neighbouring chunks of a pixel; ROWS pixels are loaded at once.
const int ROWS = THREADS / 8;
// The bytes of 64 outputs or columns of a stage; of all outputs; of a whole stage.
const int BLOCK = TILE_K * 128;
const int STAGE_M = TILE_M / 64 * BLOCK, STAGE = STAGE_M + TILE_N / 64 * BLOCK;
static_assert(TILE_K % ROWS == 0 && TILE_K % 16 == 0 && ROWS % 8 == 0,
              "threads load whole rows of a stage, always the same row of a pattern");
static_assert(TILE_M % 64 == 0 && TILE_N % WARP_N == 0 && WARP_N % 64 == 0,
              "tiles consist of whole patterns");
static_assert(STAGES >= 3, "a stage is loaded while two are multiplied");

// The first column of a group of 64 columns of a tile.
__device__ __forceinline__ int pattern_column(int pattern, int columns, int channels) {
    if (channels % 64 != 0) return pattern * 64;
    const int taps = columns / channels;
    return pattern * 64 < columns ? pattern % taps * channels + pattern / taps * 64 : columns;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_gradient(const T *__restrict__ x, const T *__restrict__ dy, float *__restrict__ sums, int pixels,
                  int part, int columns, int channels, int height, int width, int outputs, int out_height,
                  int out_width, int kernel_w, int pad_h, int pad_w, int stride_h, int stride_w,
                  int dilation_h, int dilation_w, int move_q, int move_p, int move_n, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    DYNAMIC_SHARED(unsigned char, shared);
    const SharedAddress stages = next_pattern(shared_address(shared));
    const int thread = threadIdx.x, lane = thread % 32;
    const int first_pattern = blockIdx.x * (TILE_N / 64), first_output = blockIdx.y * TILE_M;

    // The thread's part of loading: every ROWS-th row, and every eighth chunk of it.
    const int row = thread / 8, side = thread % 8;
    const int begin = blockIdx.z * part, end = min(begin + part, pixels);
    int pixel = begin + row;
    int q = pixel % out_width, p = pixel / out_width % out_height, n = pixel / out_width / out_height;
    Column column[TILE_N / 64];
#pragma unroll
    for (int i = 0; i < TILE_N / 64; i++)
        column[i] = column_of(pattern_column(first_pattern + i, columns, channels) + side * 8, columns,
                              channels, width, kernel_w, dilation_h, dilation_w);
    const SharedAddress first_chunk = stages + row * 128 + (side ^ (row & 7)) * 16;

    auto load_stage = [&](int slot) {
#pragma unroll
        for (int pass = 0; pass < TILE_K / ROWS; pass++) {
            const SharedAddress to = first_chunk + slot * STAGE + pass * ROWS * 128;
            const bool valid = pixel < end;
            // Rows and pixels of all images are contiguous. Only taps in the padding precede the first one.
            const int h = valid ? p * stride_h - pad_h : NOWHERE, w = q * stride_w - pad_w;
            const T *tap = x + (i64)((n * height + p * stride_h - pad_h) * width + w) * channels;
            const T *gradient = dy + (i64)pixel * outputs + first_output;
#pragma unroll
            for (int i = 0; i < TILE_M / 64; i++) {
                const int output = (side + 8 * i) * 8;
                const bool inside = valid && first_output + output < outputs;
                copy_async<false>(to + i * BLOCK, inside ? gradient + output : dy, inside);
            }
#pragma unroll
            for (int i = 0; i < TILE_N / 64; i++) {
                const bool inside =
                    (u32)(h + column[i].h) < (u32)height && (u32)(w + column[i].w) < (u32)width;
                copy_async<CACHED>(to + STAGE_M + i * BLOCK, inside ? tap + column[i].at : x, inside);
            }
            // Advances to the thread's next pixel, ROWS pixels later: by move_n images, move_p rows and
            // move_q columns.
            pixel += ROWS;
            q += move_q;
            p += move_p;
            n += move_n;
            if (q >= out_width) q -= out_width, p++;
            if (p >= out_height) p -= out_height, n++;
        }
    };

    // The warpgroup's part of the tile. The shuffle tells the compiler that it is uniform across a warp.
    const int warpgroup = __shfl_sync(0xffffffffu, thread / 128, 0);
    const int warp_m = warpgroup % WARPS_M * 64, warp_n = warpgroup / WARPS_M * WARP_N;
    const u64 of_dy = factor_at(stages + warp_m / 64 * BLOCK, BLOCK, SWIZZLE_BLOCK_BYTES);
    const u64 of_x = factor_at(stages + STAGE_M + warp_n / 64 * BLOCK, BLOCK, SWIZZLE_BLOCK_BYTES);
    float sum[WARP_N / 2];
#pragma unroll
    for (int i = 0; i < WARP_N / 2; i++) sum[i] = 0.0f;
    keep_sums(sum);

    const int count = (end - begin + TILE_K - 1) / TILE_K;
#pragma unroll
    for (int stage = 0; stage < STAGES - 2; stage++) {
        if (stage < count) load_stage(stage);
        commit_copies();
    }
    int slot = 0, next = STAGES - 2;
    for (int stage = 0; stage < count; stage++) {
        // This thread's copies of the stage are complete, and after the barrier those of all threads. The
        // products of the stage before the last are complete too.
        wait_copies<STAGES - 3>();
        show_copies();
        __syncthreads();
        begin_products();
#pragma unroll
        for (int k = 0; k < TILE_K; k += 16) {
            const int on = (slot * STAGE + k * 128) / 16;
            multiply_tiles<T, WARP_N>(sum, of_dy + on, of_x + on);
        }
        commit_products();
        // This overwrites the stage before the last.
        if (stage + STAGES - 2 < count) load_stage(next);
        commit_copies();
        wait_products<1>();
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    wait_products<0>();
    keep_sums(sum);

    sums += (i64)blockIdx.z * outputs * columns;
    const int output = first_output + warp_m + thread / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < WARP_N / 64; i++) {
        const int first = pattern_column(first_pattern + warp_n / 64 + i, columns, channels) + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (output + half * 8 >= outputs) continue;
            float *to = sums + (i64)(output + half * 8) * columns + first;
            // The number of columns is a multiple of 8.
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (first + j * 8 < columns)
                    *(float2 *)(to + j * 8) =
                        make_float2(sum[i * 32 + j * 4 + half * 2], sum[i * 32 + j * 4 + half * 2 + 1]);
        }
    }
}

EXPORT(conv_gradient)
EXPORT(add_parts)
