// A factor per sample and channel, for channels-last maps [N][pixels][C] and factors [N][C]; the gradient of
// the factors.

// y = x s. An item is VECTOR channels of a pixel.
extern "C" __global__ void channel_scale(const T *x, const T *factors, T *y, i64 items, int groups,
                                         int pixels, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += step) {
        i64 n = item / groups / pixels, group = item % groups;
        float v[VECTOR], s[VECTOR];
        load(x + item * VECTOR, v);
        load(factors + (n * groups + group) * VECTOR, s);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] *= s[i];
        store(y + item * VECTOR, v);
    }
}

// dx = dy s + dmean / pixels.
extern "C" __global__ void channel_scale_mean_backward(const T *dy, const T *factors, const T *dmean, T *dx,
                                                       i64 items, int groups, int pixels, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    i64 step = (i64)gridDim.x * blockDim.x;
    float share = 1.0f / (float)pixels;
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += step) {
        i64 n = item / groups / pixels, group = item % groups;
        float v[VECTOR], s[VECTOR], m[VECTOR];
        load(dy + item * VECTOR, v);
        load(factors + (n * groups + group) * VECTOR, s);
        load(dmean + (n * groups + group) * VECTOR, m);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = fmaf(v[i], s[i], m[i] * share);
        store(dx + item * VECTOR, v);
    }
}

// ds = Σ x dy over the pixels. A block has 32 vectors of channels of a sample, with eight threads each, which
// divide the pixels.
extern "C" __global__ void channel_scale_gradient(const T *x, const T *dy, T *gradient, int groups,
                                                  int chunks, int pixels, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    __shared__ float sums[8][VECTOR][32];
    int n = blockIdx.x / chunks, group = blockIdx.x % chunks * 32 + threadIdx.x;
    i64 channels = (i64)groups * VECTOR;
    float sum[VECTOR] = {};
    if (group < groups) {
        i64 first = (i64)n * pixels * channels + (i64)group * VECTOR;
#pragma unroll 4
        for (int pixel = threadIdx.y; pixel < pixels; pixel += 8) {
            float v[VECTOR], w[VECTOR];
            load(x + first + pixel * channels, v);
            load(dy + first + pixel * channels, w);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[i] += v[i] * w[i];
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
        store(gradient + n * channels + (i64)group * VECTOR, sum);
    }
}

EXPORT(channel_scale)
EXPORT(channel_scale_gradient)
EXPORT(channel_scale_mean_backward)
