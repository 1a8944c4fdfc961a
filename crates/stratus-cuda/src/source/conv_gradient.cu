// Weight gradient of a convolution on tensor cores (`mma.sync`): x and dy of T (bf16 or f16), dw in f32, one
// group.
//
//   dw [K, KH·KW·C] = dyᵀ [K, P] · im2col(x) [P, KH·KW·C]        P = N·OH·OW pixels of the output
//
//   x, dy    [N, H, W, C], [N, OH, OW, K]; dw [K, KH, KW, C], so that a column (tap, channel) has the channel
//            contiguous
//   grid     columns / TILE_N, outputs / TILE_M, parts of the pixels (split-K, summed by add_parts)
//   block    TILE_M outputs x TILE_N columns, over its pixels TILE_K at a time; BLOCKS resident per
//            multiprocessor
//   warp     WARP_M x WARP_N of these, as WARP_M · WARP_N / 32 accumulators (f32 registers) per thread
//   shared   a pipeline of STAGES stages, TILE_K · (TILE_M + TILE_N) · 2 bytes each; all but one are being
//            copied
//
// In shared memory a pixel is a row of 16-byte chunks (8 elements). Chunks are swizzled from row to row, so
// that the same chunk of 8 rows covers all banks.
//
//   VECTOR_X, VECTOR_Y  chunks of x and of dy are aligned, and copied by cp.async; else gathered element by
//                       element
//   CACHED              x is cached in L1, because neighbouring taps read the same elements
//
// cuDNN has no fast kernel that accumulates and stores f32 gradients of bf16 or f16 maps.

const int THREADS = TILE_M / WARP_M * (TILE_N / WARP_N) * 32;
// Eight threads load neighbouring chunks of a pixel; ROWS pixels are loaded at once.
const int ROWS = THREADS / 8;
const int CHUNKS_M = TILE_M / 8, CHUNKS_N = TILE_N / 8;
const int STAGE_M = TILE_K * TILE_M * 2, STAGE_N = TILE_K * TILE_N * 2;
static_assert(TILE_K % ROWS == 0 && TILE_K % 16 == 0, "threads load whole rows of a stage");
static_assert(CHUNKS_M % 4 == 0 && CHUNKS_N % 8 == 0 && WARP_M % 16 == 0 && WARP_N % 16 == 0,
              "tiles consist of whole fragments");

// The position of a chunk in a stage, in bytes.
template <int CHUNKS> __device__ __forceinline__ int swizzled_offset(int row, int chunk) {
    return (row * CHUNKS + (chunk ^ (CHUNKS % 8 == 0 ? row & 7 : row >> 1 & 3))) * 16;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_gradient(const T *__restrict__ x, const T *__restrict__ dy, float *__restrict__ sums, int pixels,
                  int part, int columns, int channels, int height, int width, int outputs, int out_height,
                  int out_width, int kernel_w, int pad_h, int pad_w, int stride_h, int stride_w,
                  int dilation_h, int dilation_w, int move_q, int move_p, int move_n, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    DYNAMIC_SHARED(unsigned char, shared);
    const SharedAddress stages = shared_address(shared);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int first_column = blockIdx.x * TILE_N, first_output = blockIdx.y * TILE_M;

    // The thread's part of loading: every ROWS-th row, and every eighth chunk of it.
    const int row = thread / 8, side = thread % 8;
    const int begin = blockIdx.z * part, end = min(begin + part, pixels);
    int pixel = begin + row;
    int q = pixel % out_width, p = pixel / out_width % out_height, n = pixel / out_width / out_height;
#if VECTOR_X
    Column column[CHUNKS_N / 8];
#pragma unroll
    for (int i = 0; i < CHUNKS_N / 8; i++)
        column[i] = column_of(first_column + (side + 8 * i) * 8, columns, channels, width, kernel_w,
                              dilation_h, dilation_w);
#else
    // [element of the chunk][chunk], so that neighbouring threads read neighbouring entries.
    int4 *table = (int4 *)(shared + STAGES * (STAGE_M + STAGE_N));
    for (int i = thread; i < TILE_N; i += THREADS) {
        Column at = column_of(first_column + i % CHUNKS_N * 8 + i / CHUNKS_N, columns, channels, width,
                              kernel_w, dilation_h, dilation_w);
        table[i] = make_int4(at.h, at.w, at.at, 0);
    }
    __syncthreads();
#endif

    auto load_stage = [&](int slot) {
        const int at_m = slot * (STAGE_M + STAGE_N), at_n = at_m + STAGE_M;
#pragma unroll
        for (int pass = 0; pass < TILE_K / ROWS; pass++) {
            const int r = row + pass * ROWS;
            const bool valid = pixel < end;
            // Rows and pixels of all images are contiguous. Only taps in the padding precede the first one.
            const int h = valid ? p * stride_h - pad_h : NOWHERE, w = q * stride_w - pad_w;
            const T *tap = x + (i64)((n * height + p * stride_h - pad_h) * width + w) * channels;
            const T *gradient = dy + (i64)pixel * outputs + first_output;
#pragma unroll
            for (int i = 0; i < CHUNKS_N / 8; i++) {
                const int chunk = side + 8 * i;
                const int to = at_n + swizzled_offset<CHUNKS_N>(r, chunk);
#if VECTOR_X
                const bool inside =
                    (u32)(h + column[i].h) < (u32)height && (u32)(w + column[i].w) < (u32)width;
                copy_async<CACHED>(stages + to, inside ? tap + column[i].at : x, inside);
#else
                u32 bits[8];
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const int4 at = table[e * CHUNKS_N + chunk];
                    const bool inside = (u32)(h + at.x) < (u32)height && (u32)(w + at.y) < (u32)width;
                    bits[e] = inside ? __ldg((const u16 *)tap + at.z) : 0;
                }
                *(uint4 *)(shared + to) = make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16,
                                                     bits[4] | bits[5] << 16, bits[6] | bits[7] << 16);
#endif
            }
#pragma unroll
            for (int i = 0; i < (CHUNKS_M + 7) / 8; i++) {
                const int chunk = side + 8 * i;
                if (CHUNKS_M % 8 != 0 && chunk >= CHUNKS_M) continue;
                const int to = at_m + swizzled_offset<CHUNKS_M>(r, chunk);
#if VECTOR_Y
                const bool inside = valid && first_output + chunk * 8 < outputs;
                copy_async<false>(stages + to, inside ? gradient + chunk * 8 : dy, inside);
#else
                u32 bits[8];
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    const bool inside = valid && first_output + chunk * 8 + e < outputs;
                    bits[e] = inside ? __ldg((const u16 *)gradient + chunk * 8 + e) : 0;
                }
                *(uint4 *)(shared + to) = make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16,
                                                     bits[4] | bits[5] << 16, bits[6] | bits[7] << 16);
#endif
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

    // The warp's part of the tile.
    const int warp_m = warp % (TILE_M / WARP_M) * WARP_M, warp_n = warp / (TILE_M / WARP_M) * WARP_N;
    float sum[WARP_M / 16][WARP_N / 8][4];
#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
        for (int j = 0; j < WARP_N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] = 0.0f;
    // The rows that this lane addresses for load_transposed: of dy, matrices of 8 outputs x 8 pixels, outputs
    // first; of the columns, pixels first.
    int from_m[WARP_M / 16], from_n[WARP_N / 16];
#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++)
        from_m[i] = swizzled_offset<CHUNKS_M>(lane % 8 + lane / 16 * 8, warp_m / 8 + 2 * i + lane / 8 % 2);
#pragma unroll
    for (int j = 0; j < WARP_N / 16; j++)
        from_n[j] = STAGE_M + swizzled_offset<CHUNKS_N>(lane % 8 + lane / 8 % 2 * 8,
                                                        warp_n / 8 + 2 * j + lane / 16);

    const int count = (end - begin + TILE_K - 1) / TILE_K;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (stage < count) load_stage(stage);
        commit_copies();
    }
    int slot = 0, next = STAGES - 1;
    for (int stage = 0; stage < count; stage++) {
        // This thread's copies of the stage are complete, and after the barrier those of all threads. All
        // threads have also read the stage that is overwritten next.
        wait_copies<STAGES - 2>();
        __syncthreads();
        if (stage + STAGES - 1 < count) load_stage(next);
        commit_copies();
        const SharedAddress stage_start = stages + slot * (STAGE_M + STAGE_N);
#pragma unroll
        for (int k = 0; k < TILE_K; k += 16) {
            u32 a[WARP_M / 16][4], b[WARP_N / 16][4];
#pragma unroll
            for (int i = 0; i < WARP_M / 16; i++)
                load_transposed(stage_start + from_m[i] + k * TILE_M * 2, a[i]);
#pragma unroll
            for (int j = 0; j < WARP_N / 16; j++)
                load_transposed(stage_start + from_n[j] + k * TILE_N * 2, b[j]);
#pragma unroll
            for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
                for (int j = 0; j < WARP_N / 8; j++)
                    multiply_add<T>(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }

    sums += (i64)blockIdx.z * outputs * columns;
    const bool paired = columns % 2 == 0;
#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int output = first_output + warp_m + i * 16 + half * 8 + lane / 4;
            if (output >= outputs) continue;
#pragma unroll
            for (int j = 0; j < WARP_N / 8; j++) {
                const int at = first_column + warp_n + j * 8 + lane % 4 * 2;
                float *to = sums + (i64)output * columns + at;
                const float left = sum[i][j][half * 2], right = sum[i][j][half * 2 + 1];
                if (paired && at < columns) {
                    *(float2 *)to = make_float2(left, right);
                } else {
                    if (at < columns) to[0] = left;
                    if (at + 1 < columns) to[1] = right;
                }
            }
        }
    }
}

EXPORT(conv_gradient)
EXPORT(add_parts)
