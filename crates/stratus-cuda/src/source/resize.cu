// Bilinear resizing of maps [N, H, W, C], forward and backward.
//
//   item      VECTOR channels of a pixel of the result; grid-stride loop, neighbouring threads have
//             neighbouring channels
//   position  of output i of an axis, in pixels of the input: step * i if corners are aligned, else
//             step * (i + 0.5) - 0.5, at least 0; rounded after each operation, as on the CPU; for the
//             nearest pixels (`corners` is 2) i * inputs / outputs, rounded down
//   backward  gathers: a pixel adds up the outputs less than a pixel away, so there are no atomic additions
//   INDEX     an integer type that counts all items

#ifndef T_OUT
#define T_OUT T
#endif

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

// The position of an output in the input, along an axis of `inputs` pixels.
__device__ __forceinline__ float source_position(int output, float step, int corners, int inputs,
                                                 int outputs) {
    if (corners == 2) return (float)(int)((i64)output * inputs / outputs);
    float at = corners ? __fmul_rn(step, (float)output)
                       : __fadd_rn(__fmul_rn(step, __fadd_rn((float)output, 0.5f)), -0.5f);
    return fminf(fmaxf(at, 0.0f), (float)(inputs - 1));
}

// The outputs that may use an input, and a few more.
struct Range {
    int first, last;
};

__device__ __forceinline__ int within(float output, int outputs) {
    return (int)fminf(fmaxf(output, 0.0f), (float)(outputs - 1));
}

__device__ __forceinline__ Range readers(int input, float step, int corners, int inputs, int outputs) {
    float half = corners ? 0.0f : 0.5f;
    Range range;
    range.first = input == 0 ? 0 : within(((float)(input - 1) + half) / step - half - 1.0f, outputs);
    range.last =
        input == inputs - 1 ? outputs - 1 : within(((float)(input + 1) + half) / step - half + 2.0f, outputs);
    return range;
}

// The weight of an input in an output at `at`; 0 if it is a pixel or more away.
__device__ __forceinline__ float weight_of(int input, float at) {
    return fmaxf(at >= (float)input ? 1.0f - (at - (float)input) : at - (float)(input - 1), 0.0f);
}

extern "C" __global__ void resize_forward(const T *x, T_OUT *y, i64 items, int groups, int height, int width,
                                          int out_height, int out_width, float down, float across,
                                          int corners, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channels = groups * VECTOR;
    for (INDEX item = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; item < (INDEX)items;
         item += (INDEX)gridDim.x * blockDim.x) {
        ItemPosition at = item_position(item, groups, out_height, out_width);
        const T *image = x + (i64)at.n * height * width * channels + at.channel;
        float vertical = source_position(at.h, down, corners, height, out_height),
              horizontal = source_position(at.w, across, corners, width, out_width);
        int top = (int)vertical, left = (int)horizontal;
        int next = corners == 2 ? 0 : 1;
        int bottom = min(top + next, height - 1), right = min(left + next, width - 1);
        float below = vertical - (float)top, behind = horizontal - (float)left;
        float a[VECTOR], b[VECTOR], c[VECTOR], d[VECTOR], v[VECTOR];
        load(image + (top * width + left) * channels, a);
        load(image + (top * width + right) * channels, b);
        load(image + (bottom * width + left) * channels, c);
        load(image + (bottom * width + right) * channels, d);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float upper = (1.0f - behind) * a[i] + behind * b[i],
                  lower = (1.0f - behind) * c[i] + behind * d[i];
            v[i] = (1.0f - below) * upper + below * lower;
        }
        store(y + (i64)item * VECTOR, v);
    }
}

extern "C" __global__ void resize_backward(const T *dy, T_OUT *dx, i64 items, int groups, int height,
                                           int width, int out_height, int out_width, float down,
                                           float across, int corners, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channels = groups * VECTOR;
    for (INDEX item = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; item < (INDEX)items;
         item += (INDEX)gridDim.x * blockDim.x) {
        ItemPosition at = item_position(item, groups, height, width);
        const T *image = dy + (i64)at.n * out_height * out_width * channels + at.channel;
        Range rows = readers(at.h, down, corners, height, out_height),
              columns = readers(at.w, across, corners, width, out_width);
        float sum[VECTOR] = {};
        for (int row = rows.first; row <= rows.last; row++) {
            float vertical = weight_of(at.h, source_position(row, down, corners, height, out_height));
            if (vertical == 0.0f) continue;
            for (int column = columns.first; column <= columns.last; column++) {
                float horizontal = source_position(column, across, corners, width, out_width);
                float weight = vertical * weight_of(at.w, horizontal);
                if (weight == 0.0f) continue;
                float v[VECTOR];
                load(image + (row * out_width + column) * channels, v);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) sum[i] += weight * v[i];
            }
        }
        store(dx + (i64)item * VECTOR, sum);
    }
}

EXPORT(resize_forward)
EXPORT(resize_backward)
