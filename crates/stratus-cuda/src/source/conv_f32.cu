// Convolutions of f32 maps on the GPU's f32 units as implicit GEMM, for one group: all three passes.
//
//   PASS          rows              columns            depth
//   0 forward     pixels of y       outputs            (tap, channel)
//   1 data        pixels of x       channels           (tap, output)
//   2 weights     outputs           (tap, channel)     pixels of y
//
// Sums are more exact than sequential f32 additions, as in cuDNN: a thread adds up runs of RUN products in
// f32, and adds the runs to the total with compensation (Kahan), keeping the lost part in bf16. The error is
// that of RUN additions, however long the sum is.
//
// PASS 1 takes one launch per phase, stride_h · stride_w of them: pixels of x with equal coordinates modulo
// the stride have the same taps. In it `map`, the gathered map, is dy, and the result is dx.
//
//   grid     tiles of rows x columns; z: parts of the depth (split-K, summed by add_exactly)
//   block    TILE_M x TILE_N, over the depth TILE_K at a time; BLOCKS resident per multiprocessor
//   thread   MICRO_M x MICRO_N: equal numbers of registers for runs and totals, half that number for the
//            lost parts
//   shared   a pipeline of STAGES stages, TILE_K · (TILE_M + TILE_N) · 4 bytes each, all but one being
//            copied; in PASS 0 and 1 a table of 16 bytes per row
//
// In shared memory a factor has the order of global memory: the depth is contiguous ("deep") or not. A row of
// a deep factor is four chunks of four elements, swizzled so that the same chunk of eight rows covers all
// banks. VECTOR_A, VECTOR_B: chunks of the factors are aligned, and copied by cp.async; else gathered element
// by element.

const int TILE_K = 16, RUN = 64;
const int THREADS_M = TILE_M / MICRO_M, THREADS_N = TILE_N / MICRO_N, THREADS = THREADS_M * THREADS_N;
const int STAGE_A = TILE_M * TILE_K * 4, STAGE_B = TILE_N * TILE_K * 4, STAGE = STAGE_A + STAGE_B;
const bool DEEP_A = PASS != 2, DEEP_B = PASS == 0;
// For deep factors: threads that load a row, and rows loaded at once. The same follows for factors that are
// not deep.
const int THREADS_PER_ROW = VECTOR_A ? 4 : 16, ROWS_PER_PASS = THREADS / THREADS_PER_ROW;
const int QUADS_M = TILE_M / 4, QUADS_N = TILE_N / 4, ROWS_A = THREADS / QUADS_M, ROWS_B = THREADS / QUADS_N;
static_assert(MICRO_M % 4 == 0 && MICRO_N % 4 == 0 && THREADS_M % 4 == 0 && THREADS_N % 8 == 0,
              "warps are 4 x 8 threads");
static_assert(TILE_K % ROWS_A == 0 && TILE_K % ROWS_B == 0, "threads load whole rows of a stage");
static_assert(!DEEP_A || (TILE_M % ROWS_PER_PASS == 0 && (!DEEP_B || TILE_N % ROWS_PER_PASS == 0) &&
                          ROWS_PER_PASS % 8 == 0),
              "all threads load the same amount");

// A row outside of every map.
const int NOWHERE = -(1 << 30);

// The position of a chunk of a deep factor, in bytes.
__device__ __forceinline__ int swizzled_offset(int row, int chunk) {
    return (row * 4 + (chunk ^ (row >> 1 & 3))) * 16;
}

// The position in the row `distance` after another, computed from that position by exclusive or, so that one
// register serves all chunks.
__device__ __forceinline__ int swizzled_offset_from(int first, int distance, int chunk) {
    return (first ^ (chunk ^ (distance >> 1 & 3)) * 16) + distance * 64;
}

// Row i of a thread's MICRO rows, with `threads` threads along that side: groups of four neighbouring rows,
// `threads` groups between two groups of a thread.
__device__ __forceinline__ int member(int own, int i, int threads) {
    return (own + i / 4 * threads) * 4 + i % 4;
}

// The row of a deep factor in shared memory, where neighbouring threads read neighbouring rows.
__device__ __forceinline__ int member_at(int row, int threads) {
    return member(row % threads, row / threads, threads);
}

__device__ __forceinline__ void read_four(const unsigned char *from, float (&to)[4]) {
    const float4 four = *(const float4 *)from;
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// A position in the depth (tap, channel), the channel fastest.
struct Depth {
    int channel, w, h;

    __device__ __forceinline__ Depth(int at, int channels, int taps_w)
        : channel(at % channels), w(at / channels % taps_w), h(at / channels / taps_w) {}

    // Advances by this many taps and channels.
    __device__ __forceinline__ void advance(int by_h, int by_w, int by_channel, int channels, int taps_w) {
        channel += by_channel, w += by_w, h += by_h;
        if (channel >= channels) channel -= channels, w++;
        if (w >= taps_w) w -= taps_w, h++;
    }
};

// The product of `count` stages. `fetch` starts loading the next stage into a slot.
template <typename Fetch>
__device__ __forceinline__ void multiply(int count, unsigned char *shared, Fetch fetch,
                                         float (&total)[MICRO_M][MICRO_N]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int own_m = warp % (THREADS_M / 4) * 4 + lane / 8, own_n = warp / (THREADS_M / 4) * 8 + lane % 8;
    float run[MICRO_M][MICRO_N];
    // The lost parts of additions to the total: two bf16 per word.
    u32 lost[MICRO_M][MICRO_N / 2];
#pragma unroll
    for (int i = 0; i < MICRO_M; i++) {
#pragma unroll
        for (int j = 0; j < MICRO_N; j++) total[i][j] = run[i][j] = 0, lost[i][j / 2] = 0;
    }
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < count) fetch(stage);
        commit_copies();
    }
#pragma unroll 1
    for (int stage = 0; stage < count; stage++) {
        // This thread's copies of the stage are complete, and after the barrier those of all threads. All
        // threads have also read the stage that is overwritten next.
        wait_copies<STAGES - 2>();
        __syncthreads();
        if (stage + STAGES - 1 < count) fetch((stage + STAGES - 1) % STAGES);
        commit_copies();
        const int begin = stage % STAGES * STAGE;
        const int a = begin + (DEEP_A ? swizzled_offset(own_m, 0) : own_m * 16),
                  b = begin + STAGE_A + (DEEP_B ? swizzled_offset(own_n, 0) : own_n * 16);
#pragma unroll
        for (int chunk = 0; chunk < TILE_K / 4; chunk++) {
            float right[4][MICRO_N];
#pragma unroll
            for (int j = 0; j < MICRO_N; j++) {
                float four[4];
                if constexpr (DEEP_B) {
                    read_four(shared + swizzled_offset_from(b, j * THREADS_N, chunk), four);
#pragma unroll
                    for (int e = 0; e < 4; e++) right[e][j] = four[e];
                } else {
                    read_four(shared + (b + ((chunk * 4 + j % 4) * QUADS_N + j / 4 * THREADS_N) * 16), four);
#pragma unroll
                    for (int e = 0; e < 4; e++) right[j % 4][j / 4 * 4 + e] = four[e];
                }
            }
#pragma unroll
            for (int i = 0; i < MICRO_M; i++) {
                float four[4];
                if constexpr (DEEP_A) {
                    read_four(shared + swizzled_offset_from(a, i * THREADS_M, chunk), four);
#pragma unroll
                    for (int e = 0; e < 4; e++)
#pragma unroll
                        for (int j = 0; j < MICRO_N; j++) run[i][j] += four[e] * right[e][j];
                } else {
                    read_four(shared + (a + ((chunk * 4 + i % 4) * QUADS_M + i / 4 * THREADS_M) * 16), four);
#pragma unroll
                    for (int e = 0; e < 4; e++)
#pragma unroll
                        for (int j = 0; j < MICRO_N; j++) run[i / 4 * 4 + e][j] += four[e] * right[i % 4][j];
                }
            }
        }
        if (stage % (RUN / TILE_K) == RUN / TILE_K - 1 || stage + 1 == count) {
#pragma unroll
            for (int i = 0; i < MICRO_M; i++) {
#pragma unroll
                for (int j = 0; j < MICRO_N; j += 2) {
                    float left[2];
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const u32 before = half ? lost[i][j / 2] << 16 : lost[i][j / 2] & 0xffff0000u;
                        const float more = run[i][j + half] + __uint_as_float(before),
                                    sum = total[i][j + half] + more;
                        left[half] = more - (sum - total[i][j + half]);
                        total[i][j + half] = sum;
                        run[i][j + half] = 0;
                    }
                    lost[i][j / 2] = __byte_perm(__float_as_uint(left[1]), __float_as_uint(left[0]), 0x7632);
                }
            }
        }
    }
}

// Writes a thread's results. `row_of` returns the row of the result, or a negative number if there is none.
template <typename RowOf>
__device__ __forceinline__ void write(float *to, int first_column, int columns, RowOf row_of,
                                      const float (&total)[MICRO_M][MICRO_N]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int own_m = warp % (THREADS_M / 4) * 4 + lane / 8, own_n = warp / (THREADS_M / 4) * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < MICRO_M; i++) {
        const int row = row_of(own_m, i);
        if (row < 0) continue;
#pragma unroll
        for (int j = 0; j < MICRO_N; j += 4) {
            const int column = first_column + member(own_n, j, THREADS_N);
            float *at = to + (i64)row * columns + column;
            if (columns % 4 == 0) {
                if (column < columns)
                    *(float4 *)at =
                        make_float4(total[i][j], total[i][j + 1], total[i][j + 2], total[i][j + 3]);
            } else {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (column + e < columns) at[e] = total[i][j + e];
            }
        }
    }
}

#if PASS < 2
// Passes 0 and 1. `map` [N, height, width, channels] is gathered. For each image, pixel (h, w) of
// rows_h x rows_w
//   reads tap (i, j) at row h · step_h + first_h + i · tap_h of `map`, and the column alike,
//   is written to row h · result_step_h + result_first_h of the result, and the column alike.
// Tap (i, j) of taps_h x taps_w is row first_tap_h + i · next_tap_h of the filter, and the column alike.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    convolve(const float *__restrict__ map, const float *__restrict__ weight, float *__restrict__ result,
             i64 elements, int rows, int columns, int depth, int part, int channels, int height, int width,
             int rows_h, int rows_w, int step_h, int step_w, int first_h, int first_w, int tap_h, int tap_w,
             int taps_h, int taps_w, int result_height, int result_width, int result_step_h,
             int result_step_w, int result_first_h, int result_first_w, int kernel_h, int kernel_w,
             int first_tap_h, int first_tap_w, int next_tap_h, int next_tap_w, int move_ah, int move_aw,
             int move_ac, int move_bh, int move_bw, int move_bc, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    DYNAMIC_SHARED(unsigned char, shared);
    const SharedAddress stages = shared_address(shared);
    const int thread = threadIdx.x;
    const int across = (columns + TILE_N - 1) / TILE_N;
    const int first_column = blockIdx.x % across * TILE_N, first_row = blockIdx.x / across * TILE_M;
    const int begin = min((int)blockIdx.z * part, depth), end = min(begin + part, depth);

    // For each row in shared memory: row, column and offset of its first tap in `map`, and its row of the
    // result.
    int4 *table = (int4 *)(shared + STAGES * STAGE);
    for (int i = thread; i < TILE_M; i += THREADS) {
        const int row = first_row + member_at(i, THREADS_M);
        const int w = row % rows_w, h = row / rows_w % rows_h, n = row / rows_w / rows_h;
        const int map_h = h * step_h + first_h, map_w = w * step_w + first_w;
        const int at = ((n * result_height + h * result_step_h + result_first_h) * result_width) +
                       w * result_step_w + result_first_w;
        table[i] = row < rows ? make_int4(map_h, map_w, ((n * height + map_h) * width + map_w) * channels, at)
                              : make_int4(NOWHERE, 0, 0, -1);
    }
    __syncthreads();

    // The thread's part of loading the gathered factor: a chunk, or an element, of every ROWS_PER_PASS-th
    // row.
    const int row_a = thread / THREADS_PER_ROW, depth_a = thread % THREADS_PER_ROW * (16 / THREADS_PER_ROW);
    Depth a(begin + depth_a, channels, taps_w);
#if PASS == 1
    const int quad_b = thread % QUADS_N, row_b = thread / QUADS_N;
    Depth b(begin + row_b, channels, taps_w);
#endif

    auto fetch = [&](int slot) {
        const int into = slot * STAGE + swizzled_offset(row_a, depth_a / 4) + depth_a % 4 * 4;
        const int h = a.h < taps_h ? a.h * tap_h : NOWHERE, w = a.w * tap_w;
        const int tap = (a.h * tap_h * width + w) * channels + a.channel;
#pragma unroll
        for (int pass = 0; pass < TILE_M / ROWS_PER_PASS; pass++) {
            const int4 row_entry = table[row_a + pass * ROWS_PER_PASS];
            const bool inside = (u32)(row_entry.x + h) < (u32)height && (u32)(row_entry.y + w) < (u32)width;
            const float *from = inside ? map + (row_entry.z + tap) : map;
            const int to = into + pass * ROWS_PER_PASS * 64;
#if VECTOR_A
            copy_async<false>(stages + to, from, inside);
#else
            *(float *)(shared + to) = inside ? __ldg(from) : 0.0f;
#endif
        }
#if PASS == 0
        const int depth_offset = (a.h * taps_w + a.w) * channels + a.channel;
#pragma unroll
        for (int pass = 0; pass < TILE_N / ROWS_PER_PASS; pass++) {
            const int column = first_column + member_at(row_a + pass * ROWS_PER_PASS, THREADS_N);
            const bool inside = column < columns && a.h < taps_h;
            const float *from = inside ? weight + (column * depth + depth_offset) : weight;
            const int to = into + STAGE_A + pass * ROWS_PER_PASS * 64;
#if VECTOR_B
            copy_async<false>(stages + to, from, inside);
#else
            *(float *)(shared + to) = inside ? __ldg(from) : 0.0f;
#endif
        }
#else
#pragma unroll
        for (int pass = 0; pass < TILE_K / ROWS_B; pass++) {
            const int tap = (b.channel * kernel_h + first_tap_h + b.h * next_tap_h) * kernel_w + first_tap_w +
                            b.w * next_tap_w;
            const float *from = weight + (tap * columns + first_column);
            const int to = slot * STAGE + STAGE_A + (row_b + pass * ROWS_B) * TILE_N * 4;
#if VECTOR_B
            const bool inside = b.h < taps_h && first_column + quad_b * 4 < columns;
            copy_async<false>(stages + (to + quad_b * 16), inside ? from + quad_b * 4 : weight, inside);
#else
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int column = quad_b + e * QUADS_N;
                const bool inside = b.h < taps_h && first_column + column < columns;
                *(float *)(shared + to + column * 4) = inside ? __ldg(from + column) : 0.0f;
            }
#endif
            b.advance(move_bh, move_bw, move_bc, channels, taps_w);
        }
#endif
        a.advance(move_ah, move_aw, move_ac, channels, taps_w);
    };

    float total[MICRO_M][MICRO_N];
    multiply((end - begin + TILE_K - 1) / TILE_K, shared, fetch, total);
    write(
        result + blockIdx.z * elements, first_column, columns,
        [&](int own, int i) { return table[own + i * THREADS_M].w; }, total);
}

EXPORT(convolve)
#else
// A column (tap, channel) of the im2col matrix, relative to the first tap of a pixel: rows down, pixels
// right, and the offset in elements of x.
struct Column {
    int h, w, at;
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    convolve_weights(const float *__restrict__ x, const float *__restrict__ dy, float *__restrict__ sums,
                     i64 elements, int outputs, int columns, int pixels, int part, int channels, int height,
                     int width, int out_height, int out_width, int kernel_w, int pad_h, int pad_w,
                     int stride_h, int stride_w, int dilation_h, int dilation_w, int move_n, int move_p,
                     int move_q, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    DYNAMIC_SHARED(unsigned char, shared);
    const SharedAddress stages = shared_address(shared);
    const int thread = threadIdx.x;
    const int across = (columns + TILE_N - 1) / TILE_N;
    const int first_column = blockIdx.x % across * TILE_N, first_output = blockIdx.x / across * TILE_M;
    const int begin = min((int)blockIdx.z * part, pixels), end = min(begin + part, pixels);

    const int quad_a = thread % QUADS_M, quad_b = thread % QUADS_N, row_a = thread / QUADS_M,
              row_b = thread / QUADS_N;
    Column column[VECTOR_B ? 1 : 4];
#pragma unroll
    for (int e = 0; e < (VECTOR_B ? 1 : 4); e++) {
        const int at = first_column + (VECTOR_B ? quad_b * 4 : quad_b + e * QUADS_N);
        const Depth of(at, channels, kernel_w);
        const int h = of.h * dilation_h, w = of.w * dilation_w;
        column[e] = {at < columns ? h : NOWHERE, w, (h * width + w) * channels + of.channel};
    }
    int pixel_a = begin + row_a, pixel_b = begin + row_b;
    // A pixel of y as a position: its column, row and image in place of channel, tap column and tap row.
    Depth at(pixel_b, out_width, out_height);

    auto fetch = [&](int slot) {
        const int at_a = slot * STAGE, at_b = at_a + STAGE_A;
#pragma unroll
        for (int pass = 0; pass < TILE_K / ROWS_A; pass++) {
            const float *from = dy + (pixel_a * outputs + first_output);
            const int to = at_a + (row_a + pass * ROWS_A) * TILE_M * 4;
#if VECTOR_A
            const bool inside = pixel_a < end && first_output + quad_a * 4 < outputs;
            copy_async<false>(stages + (to + quad_a * 16), inside ? from + quad_a * 4 : dy, inside);
#else
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int output = quad_a + e * QUADS_M;
                const bool inside = pixel_a < end && first_output + output < outputs;
                *(float *)(shared + to + output * 4) = inside ? __ldg(from + output) : 0.0f;
            }
#endif
            pixel_a += ROWS_A;
        }
#pragma unroll
        for (int pass = 0; pass < TILE_K / ROWS_B; pass++) {
            const int tap_h = at.w * stride_h - pad_h, h = pixel_b < end ? tap_h : NOWHERE,
                      w = at.channel * stride_w - pad_w;
            const float *tap = x + ((at.h * height + tap_h) * width + w) * channels;
            const int to = at_b + (row_b + pass * ROWS_B) * TILE_N * 4;
#pragma unroll
            for (int e = 0; e < (VECTOR_B ? 1 : 4); e++) {
                const bool inside =
                    (u32)(h + column[e].h) < (u32)height && (u32)(w + column[e].w) < (u32)width;
                const float *from = inside ? tap + column[e].at : x;
#if VECTOR_B
                copy_async<false>(stages + (to + quad_b * 16), from, inside);
#else
                *(float *)(shared + to + (quad_b + e * QUADS_N) * 4) = inside ? __ldg(from) : 0.0f;
#endif
            }
            pixel_b += ROWS_B;
            at.advance(move_n, move_p, move_q, out_width, out_height);
        }
    };

    float total[MICRO_M][MICRO_N];
    multiply((end - begin + TILE_K - 1) / TILE_K, shared, fetch, total);
    auto row_of = [&](int own, int i) {
        const int output = first_output + member(own, i, THREADS_M);
        return output < outputs ? output : -1;
    };
    write(sums + blockIdx.z * elements, first_column, columns, row_of, total);
}

EXPORT(convolve_weights)
#endif

// sums[i] = Σ_p partial[p][i] over `parts` parts of `count` sums, in f64 and in a fixed order. Threads of a
// block with the same x divide the parts of a sum.
extern "C" __global__ void __launch_bounds__(256)
    add_exactly(const float *partial, float *sums, int parts, i64 count, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    __shared__ double partial_sums[256];
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    double sum = 0;
    if (at < count) {
#pragma unroll 4
        for (int i = threadIdx.y; i < parts; i += blockDim.y) sum += partial[i * count + at];
    }
    partial_sums[threadIdx.y * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && at < count) {
        for (int i = 1; i < blockDim.y; i++) sum += partial_sums[i * blockDim.x + threadIdx.x];
        sums[at] = (float)sum;
    }
}

EXPORT(add_exactly)
