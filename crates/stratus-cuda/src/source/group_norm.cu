// Group normalisation of channels-last maps, of each sample's groups of channels.
//
//   y = weight · (x - mean) · inverse + bias
//   dx = (g - mean(g) - n · mean(g n)) · inverse       g = weight · dy, n = (x - mean) · inverse
//
// A block processes a group of a sample, which it reads several times: small groups stay in L1 or L2. Without
// weight and bias their addresses are null.

// The position of a group in its map.
struct Group {
    i64 first;                  // The first element.
    i64 vectors;                // The vectors of the group.
    int channel, row, channels; // The first channel, the vectors of a pixel, the channels of the map.

    __device__ __forceinline__ Group(i64 pixels, int channels, int groups) : channels(channels) {
        int width = channels / groups;
        row = width / VECTOR;
        channel = (int)(blockIdx.x % groups) * width;
        first = (i64)(blockIdx.x / groups) * pixels * channels + channel;
        vectors = pixels * row;
    }
    // The channel of a vector, within the group.
    __device__ __forceinline__ int channel_of(i64 vector) const { return (int)(vector % row) * VECTOR; }
    // The position of a vector in the map.
    __device__ __forceinline__ i64 at(i64 vector) const {
        return first + vector / row * channels + channel_of(vector);
    }
};

#define FOR_EACH_VECTOR(group) for (i64 item = threadIdx.x; item < (group).vectors; item += blockDim.x)

// Mean and inverse deviation of a group. Every thread gets them.
__device__ void moments_of(const T *x, const Group &group, float epsilon, float &mean, float &inverse) {
    double count = (double)(group.vectors * VECTOR), sum = 0, squares = 0;
    FOR_EACH_VECTOR(group) {
        float v[VECTOR], part = 0.0f;
        load(x + group.at(item), v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) part += v[i];
        sum += (double)part;
    }
    mean = (float)(block_sum(sum) / count);
    FOR_EACH_VECTOR(group) {
        float v[VECTOR], part = 0.0f;
        load(x + group.at(item), v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) part += (v[i] - mean) * (v[i] - mean);
        squares += (double)part;
    }
    inverse = (float)(1.0 / sqrt(block_sum(squares) / count + (double)epsilon));
}

extern "C" __global__ void group_norm(const T *x, const float *weight, const float *bias, T *y, i64 pixels,
                                      int channels, int groups, float epsilon, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    Group group(pixels, channels, groups);
    float mean, inverse;
    moments_of(x, group, epsilon, mean, inverse);
    FOR_EACH_VECTOR(group) {
        int channel = group.channel + group.channel_of(item);
        i64 at = group.at(item);
        float v[VECTOR];
        load(x + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            v[i] = (v[i] - mean) * inverse;
            if (weight) v[i] = weight[channel + i] * v[i] + bias[channel + i];
        }
        store(y + at, v);
    }
}

extern "C" __global__ void group_norm_backward(const T *x, const T *dy, const float *weight, T *dx,
                                               i64 pixels, int channels, int groups, float epsilon,
                                               TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    Group group(pixels, channels, groups);
    float mean, inverse;
    moments_of(x, group, epsilon, mean, inverse);
    double plain = 0, along = 0, count = (double)(group.vectors * VECTOR);
    FOR_EACH_VECTOR(group) {
        int channel = group.channel + group.channel_of(item);
        float v[VECTOR], g[VECTOR], part = 0.0f, product = 0.0f;
        load(x + group.at(item), v);
        load(dy + group.at(item), g);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if (weight) g[i] *= weight[channel + i];
            part += g[i];
            product += g[i] * ((v[i] - mean) * inverse);
        }
        plain += (double)part;
        along += (double)product;
    }
    float plain_mean = (float)(block_sum(plain) / count), along_mean = (float)(block_sum(along) / count);
    FOR_EACH_VECTOR(group) {
        int channel = group.channel + group.channel_of(item);
        i64 at = group.at(item);
        float v[VECTOR], g[VECTOR];
        load(x + at, v);
        load(dy + at, g);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if (weight) g[i] *= weight[channel + i];
            v[i] = (g[i] - plain_mean - (v[i] - mean) * inverse * along_mean) * inverse;
        }
        store(dx + at, v);
    }
}

// Mean and inverse deviation of each group.
extern "C" __global__ void group_norm_moments(const T *x, float *moments, i64 pixels, int channels,
                                              int groups, float epsilon, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    float mean, inverse;
    moments_of(x, Group(pixels, channels, groups), epsilon, mean, inverse);
    if (threadIdx.x == 0) {
        moments[2 * (i64)blockIdx.x] = mean;
        moments[2 * (i64)blockIdx.x + 1] = inverse;
    }
}

// The sums over a sample's pixels of dy · n and of dy. A block has 32 vectors of channels of a sample, with
// eight threads each.
extern "C" __global__ void group_norm_sums(const T *x, const T *dy, const float *moments, double *products,
                                           double *plain, i64 pixels, int channels, int groups,
                                           TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int blocks = (channels + 32 * VECTOR - 1) / (32 * VECTOR);
    i64 sample = blockIdx.x / blocks;
    int channel = ((int)(blockIdx.x % blocks) * 32 + threadIdx.x) * VECTOR;
    double product[VECTOR], sum[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) product[i] = sum[i] = 0;
    if (channel < channels) {
        // A vector's channels are of one group.
        const float *of_group = moments + 2 * (sample * groups + channel / (channels / groups));
        float mean = of_group[0], inverse = of_group[1];
        i64 first = sample * pixels * channels + channel;
        for (i64 pixel = threadIdx.y; pixel < pixels; pixel += 8) {
            float v[VECTOR], g[VECTOR];
            load(x + first + pixel * channels, v);
            load(dy + first + pixel * channels, g);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                product[i] += (double)(g[i] * ((v[i] - mean) * inverse));
                sum[i] += (double)g[i];
            }
        }
    }
    i64 to = sample * channels;
    add_rows(product, sum, channel, channels, products + to, plain + to);
}

EXPORT(group_norm)
EXPORT(group_norm_backward)
EXPORT(group_norm_moments)
EXPORT(group_norm_sums)
