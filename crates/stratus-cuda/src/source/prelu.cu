// ReLU with trained slopes below 0, for channels-last maps, and the gradient of the slopes. There is one
// slope for all channels, with a `period` of 1, or one for each, with a period of the channels.

#define SLOPE(at, i) slopes[period == 1 ? 0 : (int)((at) % period) + (i)]

extern "C" __global__ void prelu_forward(const T *x, const float *slopes, T_OUT *y, i64 count, int period,
                                         TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) {
        float v[VECTOR];
        load(x + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = v[i] > 0.0f ? v[i] : v[i] * SLOPE(at, i);
        store(y + at, v);
    }
}

extern "C" __global__ void prelu_backward(const T *x, const T_OTHER *dy, const float *slopes, T_OUT *dx,
                                          i64 count, int period, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) {
        float v[VECTOR], g[VECTOR];
        load(x + at, v);
        load(dy + at, g);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = v[i] > 0.0f ? g[i] : g[i] * SLOPE(at, i);
        store(dx + at, v);
    }
}

// Partial sums of min(x, 0) · dy for each channel. A block has 32 vectors of channels, with eight threads
// each, which divide its part of the pixels.
extern "C" __global__ void prelu_sums(const T *x, const T_OTHER *dy, double *partial, i64 pixels,
                                      int channels, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    __shared__ double sums[8][32 * VECTOR];
    int channel = (blockIdx.x * 32 + threadIdx.x) * VECTOR;
    i64 part = (pixels + gridDim.y - 1) / gridDim.y;
    i64 first = blockIdx.y * part, end = first + part < pixels ? first + part : pixels;
    double sum[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum[i] = 0;
    if (channel < channels) {
        for (i64 pixel = first + threadIdx.y; pixel < end; pixel += 8) {
            float v[VECTOR], g[VECTOR];
            load(x + pixel * channels + channel, v);
            load(dy + pixel * channels + channel, g);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[i] += v[i] > 0.0f ? 0.0 : (double)(v[i] * g[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sums[threadIdx.y][threadIdx.x * VECTOR + i] = sum[i];
    __syncthreads();
    if (threadIdx.y == 0 && channel < channels) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            double whole = 0;
            for (int row = 0; row < 8; row++) whole += sums[row][threadIdx.x * VECTOR + i];
            partial[(i64)blockIdx.y * channels + channel + i] = whole;
        }
    }
}

// The gradient of a slope that all channels share. One block.
extern "C" __global__ void prelu_sum_of_all(const double *partial, float *gradient, i64 count,
                                            TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    double sum = 0;
    for (i64 at = threadIdx.x; at < count; at += blockDim.x) sum += partial[at];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *gradient = (float)sum;
}

EXPORT(prelu_forward)
EXPORT(prelu_backward)
EXPORT(prelu_sums)
EXPORT(prelu_sum_of_all)
