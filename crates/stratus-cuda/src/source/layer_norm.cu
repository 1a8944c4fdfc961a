// Layer normalisation over the channels of each pixel, of channels-last maps; a trained factor per channel;
// and the sums over all pixels that both need for their parameters.
//
//   y = weight · (x - mean) · inverse + bias
//   dx = (g - mean(g) - n · mean(g n)) · inverse       g = weight · dy, n = (x - mean) · inverse
//
// A warp processes a pixel. It reads the channels several times: after the first time they are in L1.

#define LANE (int)(threadIdx.x % 32)
#define FIRST_ROW ((i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32)
#define ROW_STEP ((i64)gridDim.x * (blockDim.x / 32))

// Mean and inverse deviation of a pixel's channels. Every thread of the warp gets them.
__device__ __forceinline__ void moments_of(const T *x, int channels, float epsilon, float &mean,
                                           float &inverse) {
    float sum = 0.0f, squares = 0.0f;
    for (int channel = LANE * VECTOR; channel < channels; channel += 32 * VECTOR) {
        float v[VECTOR];
        load(x + channel, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum += v[i];
    }
    mean = warp_sum(sum) / (float)channels;
    for (int channel = LANE * VECTOR; channel < channels; channel += 32 * VECTOR) {
        float v[VECTOR];
        load(x + channel, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) squares += (v[i] - mean) * (v[i] - mean);
    }
    inverse = 1.0f / sqrtf(warp_sum(squares) / (float)channels + epsilon);
}

extern "C" __global__ void layer_norm(const T *x, const float *weight, const float *bias, T *y, i64 rows,
                                      int channels, float epsilon, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        float mean, inverse;
        moments_of(x + row * channels, channels, epsilon, mean, inverse);
        for (int channel = LANE * VECTOR; channel < channels; channel += 32 * VECTOR) {
            float v[VECTOR];
            load(x + row * channels + channel, v);
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                v[i] = weight[channel + i] * ((v[i] - mean) * inverse) + bias[channel + i];
            store(y + row * channels + channel, v);
        }
    }
}

extern "C" __global__ void layer_norm_backward(const T *x, const T *dy, const float *weight, T *dx, i64 rows,
                                               int channels, float epsilon, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        i64 first = row * channels;
        float mean, inverse, plain = 0.0f, along = 0.0f;
        moments_of(x + first, channels, epsilon, mean, inverse);
        for (int channel = LANE * VECTOR; channel < channels; channel += 32 * VECTOR) {
            float v[VECTOR], g[VECTOR];
            load(x + first + channel, v);
            load(dy + first + channel, g);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                g[i] *= weight[channel + i];
                plain += g[i];
                along += g[i] * ((v[i] - mean) * inverse);
            }
        }
        plain = warp_sum(plain) / (float)channels;
        along = warp_sum(along) / (float)channels;
        for (int channel = LANE * VECTOR; channel < channels; channel += 32 * VECTOR) {
            float v[VECTOR], g[VECTOR];
            load(x + first + channel, v);
            load(dy + first + channel, g);
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                v[i] = (weight[channel + i] * g[i] - plain - (v[i] - mean) * inverse * along) * inverse;
            store(dx + first + channel, v);
        }
    }
}

// Mean and inverse deviation of each pixel, for the sums below.
extern "C" __global__ void layer_norm_moments(const T *x, float *moments, i64 rows, int channels,
                                              float epsilon, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        float mean, inverse;
        moments_of(x + row * channels, channels, epsilon, mean, inverse);
        if (LANE == 0) {
            moments[2 * row] = mean;
            moments[2 * row + 1] = inverse;
        }
    }
}

// Partial sums over the pixels: of dy · n, or without moments of dy · x, and optionally of dy. A block has 32
// vectors of channels, with eight threads each, which divide its part of the pixels.
extern "C" __global__ void channel_sums(const T *x, const T *dy, const float *moments, double *products,
                                        double *plain, i64 rows, int channels, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channel = (blockIdx.x * 32 + threadIdx.x) * VECTOR;
    i64 part = (rows + gridDim.y - 1) / gridDim.y;
    i64 first = blockIdx.y * part, end = first + part < rows ? first + part : rows;
    double product[VECTOR], sum[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) product[i] = sum[i] = 0;
    if (channel < channels) {
        for (i64 row = first + threadIdx.y; row < end; row += 8) {
            float v[VECTOR], g[VECTOR];
            load(x + row * channels + channel, v);
            load(dy + row * channels + channel, g);
            float mean = moments ? moments[2 * row] : 0.0f, inverse = moments ? moments[2 * row + 1] : 1.0f;
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                product[i] += (double)(g[i] * ((v[i] - mean) * inverse));
                sum[i] += (double)g[i];
            }
        }
    }
    i64 to = (i64)blockIdx.y * channels;
    add_rows(product, sum, channel, channels, products + to, plain ? plain + to : nullptr);
}

// y = x · factors. An item is VECTOR channels of a pixel.
extern "C" __global__ void layer_scale(const T *x, const float *factors, T *y, i64 items, int groups,
                                       TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += step) {
        int channel = (int)(item % groups) * VECTOR;
        float v[VECTOR];
        load(x + item * VECTOR, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] *= factors[channel + i];
        store(y + item * VECTOR, v);
    }
}

EXPORT(layer_norm)
EXPORT(layer_norm_backward)
EXPORT(layer_norm_moments)
EXPORT(channel_sums)
EXPORT(layer_scale)
