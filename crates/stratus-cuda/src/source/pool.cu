// Pooling of maps [N, H, W, C], forward and backward: maximum and average.
//
//   item      VECTOR channels of a pixel of the result; grid-stride loop, neighbouring threads have
//             neighbouring channels
//   backward  gathers: a pixel adds up the windows that contain it, so there are no atomic additions
//   windows   KH x KW pixels, strides SH and SW, padding PH and PW; or, with BINS, the bins of adaptive
//             pooling
//   INDEX     an integer type that counts all items
//   MASK_RELU no gradient passes if the maximum is not positive, as with a ReLU

#ifndef MASK_RELU
#define MASK_RELU 0
#endif

// Windows of few pixels are unrolled, so that their loads are in flight together.
constexpr int TAPS = KH * KW <= 25 ? KH * KW : 1;
// The maximum number of windows that contain a pixel, along each axis.
constexpr int ABOVE = (KH + SH - 1) / SH, LEFT = (KW + SW - 1) / SW;
constexpr int COVERING = ABOVE * LEFT <= 25 ? ABOVE * LEFT : 1;

struct ItemPosition {
    INDEX n;
    int h, w, channel;
};

// The pixel and channel of an item, in maps of `height` x `width` pixels and `groups` · VECTOR channels.
__device__ __forceinline__ ItemPosition item_position(INDEX item, int groups, int height, int width) {
    ItemPosition at;
    INDEX pixel = item / (INDEX)groups, row = pixel / (INDEX)width;
    at.channel = (int)(item - pixel * (INDEX)groups) * VECTOR;
    at.w = (int)(pixel - row * (INDEX)width);
    at.n = row / (INDEX)height;
    at.h = (int)(row - at.n * (INDEX)height);
    return at;
}

#define FOR_EACH_ITEM(item, items)                                                                         \
    for (INDEX item = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; item < (INDEX)(items); \
         item += (INDEX)gridDim.x * blockDim.x)

// Pixels outside are read at the border and ignored: unconditional loads are issued early.
__device__ __forceinline__ int inside(int at, int extent) { return min(max(at, 0), extent - 1); }

// The first of equal pixels is the argmax. NaN is propagated, so that a diverged run is noticed.
extern "C" __global__ void max_pool_forward(const T *x, T *y, u8 *index, i64 items, int groups, int height,
                                            int width, int out_height, int out_width, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channels = groups * VECTOR;
    FOR_EACH_ITEM(item, items) {
        ItemPosition at = item_position(item, groups, out_height, out_width);
        const T *image = x + (i64)at.n * height * width * channels + at.channel;
        int top = at.h * SH - PH, left = at.w * SW - PW;
        float best[VECTOR];
        int argmax[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            best[i] = __uint_as_float(0xff800000u);
            argmax[i] = max(-top, 0) * KW + max(-left, 0);
        }
#pragma unroll TAPS
        for (int kh = 0; kh < KH; kh++) {
            int row = inside(top + kh, height);
#pragma unroll TAPS
            for (int kw = 0; kw < KW; kw++) {
                int column = inside(left + kw, width);
                bool is_inside = row == top + kh && column == left + kw;
                float v[VECTOR];
                load(image + (row * width + column) * channels, v);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    if (is_inside && !(v[i] <= best[i]) && best[i] == best[i]) {
                        best[i] = v[i];
                        argmax[i] = kh * KW + kw;
                    }
                }
            }
        }
        i64 to = (i64)item * VECTOR;
        store(y + to, best);
        if (index) {
            Vector<u8, VECTOR> argmaxes;
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                argmaxes.at[i] = (u8)(MASK_RELU && best[i] <= 0.0f ? 255 : argmax[i]);
            *(Vector<u8, VECTOR> *)(index + to) = argmaxes;
        }
    }
}

extern "C" __global__ void max_pool_backward(const T *dy, const u8 *index, T *dx, i64 items, int groups,
                                             int height, int width, int out_height, int out_width,
                                             TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channels = groups * VECTOR;
    FOR_EACH_ITEM(item, items) {
        ItemPosition at = item_position(item, groups, height, width);
        i64 image = (i64)at.n * out_height * out_width * channels + at.channel;
        // The last window that starts no later, and the pixel's position in it.
        int bottom = (at.h + PH) / SH, right = (at.w + PW) / SW;
        int row_in_window = (at.h + PH) % SH, column_in_window = (at.w + PW) % SW;
        float sum[VECTOR] = {};
#pragma unroll COVERING
        for (int above = 0; above < ABOVE; above++) {
            int row = inside(bottom - above, out_height), kh = row_in_window + above * SH;
#pragma unroll COVERING
            for (int before = 0; before < LEFT; before++) {
                int column = inside(right - before, out_width), kw = column_in_window + before * SW;
                bool is_inside = row == bottom - above && column == right - before && kh < KH && kw < KW;
                i64 from = image + (row * out_width + column) * channels;
                Vector<u8, VECTOR> argmaxes = *(const Vector<u8, VECTOR> *)(index + from);
                float v[VECTOR];
                load(dy + from, v);
#pragma unroll
                for (int i = 0; i < VECTOR; i++)
                    sum[i] += is_inside && argmaxes.at[i] == kh * KW + kw ? v[i] : 0.0f;
            }
        }
        store(dx + (i64)item * VECTOR, sum);
    }
}

// The pixels that an output averages along an axis: `first` to `end`, divided by `count`, which may include
// padding.
struct PoolRange {
    int first, end, count;
};

// The range of output `at` of `outputs`, along an axis of `size` pixels.
__device__ __forceinline__ PoolRange pool_range(int at, int outputs, int size, int kernel, int step,
                                                int padding) {
    PoolRange found;
    if (BINS) {
        found.first = (int)((i64)at * size / outputs);
        found.end = (int)(((i64)(at + 1) * size + outputs - 1) / outputs);
        found.count = found.end - found.first;
    } else {
        found.first = max(at * step - padding, 0);
        found.end = min(at * step - padding + kernel, size);
        found.count = COUNT_PADDING ? kernel : found.end - found.first;
    }
    return found;
}

extern "C" __global__ void avg_pool_forward(const T *x, T *y, i64 items, int groups, int height, int width,
                                            int out_height, int out_width, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channels = groups * VECTOR;
    FOR_EACH_ITEM(item, items) {
        ItemPosition at = item_position(item, groups, out_height, out_width);
        const T *image = x + (i64)at.n * height * width * channels + at.channel;
        PoolRange rows = pool_range(at.h, out_height, height, KH, SH, PH),
                  columns = pool_range(at.w, out_width, width, KW, SW, PW);
        float sum[VECTOR] = {};
#if BINS
        for (int row = rows.first; row < rows.end; row++) {
#pragma unroll 4
            for (int column = columns.first; column < columns.end; column++) {
                float v[VECTOR];
                load(image + (row * width + column) * channels, v);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[i] += v[i];
            }
        }
#else
        int top = at.h * SH - PH, left = at.w * SW - PW;
#pragma unroll TAPS
        for (int kh = 0; kh < KH; kh++) {
            int row = inside(top + kh, height);
#pragma unroll TAPS
            for (int kw = 0; kw < KW; kw++) {
                int column = inside(left + kw, width);
                bool is_inside = row == top + kh && column == left + kw;
                float v[VECTOR];
                load(image + (row * width + column) * channels, v);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[i] += is_inside ? v[i] : 0.0f;
            }
        }
#endif
        float share = 1.0f / ((float)rows.count * (float)columns.count);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum[i] *= share;
        store(y + (i64)item * VECTOR, sum);
    }
}

// The average of a whole map of `pixels` pixels. A block has 32 vectors of channels of a sample, with eight
// threads each, which divide the pixels: one thread per output would be too few.
extern "C" __global__ void avg_pool_whole(const T *x, T *y, int groups, int chunks, int pixels, float share,
                                          TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    __shared__ float sums[8][VECTOR][32];
    int n = blockIdx.x / chunks, group = blockIdx.x % chunks * 32 + threadIdx.x;
    i64 channels = (i64)groups * VECTOR;
    float sum[VECTOR] = {};
    if (group < groups) {
        const T *image = x + (i64)n * pixels * channels + (i64)group * VECTOR;
#pragma unroll 8
        for (int pixel = threadIdx.y; pixel < pixels; pixel += 8) {
            float v[VECTOR];
            load(image + pixel * channels, v);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[i] += v[i];
        }
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sums[threadIdx.y][i][threadIdx.x] = sum[i];
    __syncthreads();
    if (threadIdx.y == 0 && group < groups) {
        for (int part = 1; part < 8; part++) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[i] += sums[part][i][threadIdx.x];
        }
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum[i] *= share;
        store(y + n * channels + (i64)group * VECTOR, sum);
    }
}

extern "C" __global__ void avg_pool_backward(const T *dy, T *dx, i64 items, int groups, int height, int width,
                                             int out_height, int out_width, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channels = groups * VECTOR;
    FOR_EACH_ITEM(item, items) {
        ItemPosition at = item_position(item, groups, height, width);
        const T *image = dy + (i64)at.n * out_height * out_width * channels + at.channel;
        float sum[VECTOR] = {};
#if BINS
        // The bins that contain the pixel: bin i is [floor(i · size / bins), ceil((i + 1) · size / bins)).
        int top = (int)((i64)at.h * out_height / height), left = (int)((i64)at.w * out_width / width);
        int bottom = (int)(((i64)(at.h + 1) * out_height - 1) / height),
            right = (int)(((i64)(at.w + 1) * out_width - 1) / width);
        for (int row = top; row <= bottom; row++) {
            float vertical = (float)pool_range(row, out_height, height, KH, SH, PH).count;
            for (int column = left; column <= right; column++) {
                float horizontal = (float)pool_range(column, out_width, width, KW, SW, PW).count;
                float share = 1.0f / (vertical * horizontal);
                float v[VECTOR];
                load(image + (row * out_width + column) * channels, v);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[i] += v[i] * share;
            }
        }
#else
        int bottom = (at.h + PH) / SH, right = (at.w + PW) / SW;
        int row_in_window = (at.h + PH) % SH, column_in_window = (at.w + PW) % SW;
#pragma unroll COVERING
        for (int above = 0; above < ABOVE; above++) {
            int row = inside(bottom - above, out_height);
            float vertical = (float)pool_range(row, out_height, height, KH, SH, PH).count;
            bool is_in_row = row == bottom - above && row_in_window + above * SH < KH;
#pragma unroll COVERING
            for (int before = 0; before < LEFT; before++) {
                int column = inside(right - before, out_width);
                bool is_inside = is_in_row && column == right - before && column_in_window + before * SW < KW;
                float horizontal = (float)pool_range(column, out_width, width, KW, SW, PW).count;
                float share = 1.0f / (vertical * horizontal);
                float v[VECTOR];
                load(image + (row * out_width + column) * channels, v);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[i] += is_inside ? v[i] * share : 0.0f;
            }
        }
#endif
        store(dx + (i64)item * VECTOR, sum);
    }
}

EXPORT(max_pool_forward)
EXPORT(max_pool_backward)
EXPORT(avg_pool_forward)
EXPORT(avg_pool_whole)
EXPORT(avg_pool_backward)
