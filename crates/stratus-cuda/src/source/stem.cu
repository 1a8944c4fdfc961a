// The stem: convolution of images, batch norm, ReLU and 2x2 max-pooling, without the convolution's output in
// memory.
//
//   y = maxpool(relu(norm(conv(images))))
//
// Statistics and gradients follow from sums over the batch: of the images' correlation between taps, and of
// the pooled gradient times the pixels at the argmax (`stratus-engine`'s ops/stem.rs has the algebra). The
// convolution is recomputed wherever it is needed. A thread has an element of the pooled map, or an entry of
// a sum; blocks divide the batch into ranges of pixels, and their sums are added up in a fixed order.
//
//   IN            channels of the images
//   KH, KW        size of the filters
//   PAD_H, PAD_W  zeros before the first row and column
//   RELU          whether there is a ReLU
//
// Taps are counted (channel, row, column); in memory, filters are (row, column, channel).

#define TAPS (IN * KH * KW)

// The offset of a tap in a filter.
__device__ __forceinline__ int in_memory(int tap) { return tap % (KH * KW) * IN + tap / (KH * KW); }

// The pixel that a tap reads for a row and column of the convolution's output.
__device__ __forceinline__ float seen(const T *image, int height, int width, int row, int column, int tap) {
    int h = row + tap / KW % KH - PAD_H, w = column + tap % KW - PAD_W;
    bool inside = h >= 0 && h < height && w >= 0 && w < width;
    return inside ? widen(image[((i64)h * width + w) * IN + tap / (KH * KW)]) : 0.0f;
}

// The pooled map and its argmax. `deviation` is the inverse deviation or, where epsilon is not negative, the
// running variance.
extern "C" __global__ void stem_apply(const T *images, const T *weight, const float *norm_weight,
                                      const float *norm_bias, const float *mean, const float *deviation, T *y,
                                      u8 *index, i64 count, int channels, int height, int width,
                                      int out_height, int out_width, float epsilon, TIMED) {
    NOTE_TIMES;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (i64)gridDim.x * blockDim.x) {
        int c = (int)(at % channels);
        i64 place = at / channels;
        int column = (int)(place % out_width), row = (int)(place / out_width % out_height);
        const T *image = images + place / out_width / out_height * height * width * IN;
        float inverse = epsilon >= 0.0f ? 1.0f / sqrtf(deviation[c] + epsilon) : deviation[c];
        float best = 0.0f;
        int winner = 0;
        for (int position = 0; position < 4; position++) {
            float sum = 0.0f;
            for (int tap = 0; tap < TAPS; tap++) {
                float pixel =
                    seen(image, height, width, 2 * row + position / 2, 2 * column + position % 2, tap);
                sum += pixel * widen(weight[c * TAPS + in_memory(tap)]);
            }
            float value = norm_weight[c] * ((sum - mean[c]) * inverse) + norm_bias[c];
            // NaN wins, so that a diverged run shows.
            if (position == 0 || !(value <= best || isnan(best))) best = value, winner = position;
        }
        bool cut = RELU && best <= 0.0f;
        narrow(cut ? 0.0f : best, y[at]);
        if (index) index[at] = cut ? 255 : (u8)winner;
    }
}

// A block's share of the correlation: entries [TAPS + 1, TAPS], the last row of which is the sums of pixels.
// A thread per entry.
extern "C" __global__ void stem_correlation(const T *images, double *shares, i64 places, int height,
                                            int width, int rows, int columns, TIMED) {
    NOTE_TIMES;
    const i64 begin = places * blockIdx.x / gridDim.x, end = places * (blockIdx.x + 1) / gridDim.x;
    for (int entry = threadIdx.x; entry < (TAPS + 1) * TAPS; entry += blockDim.x) {
        int j = entry / TAPS, k = entry % TAPS;
        double sum = 0.0;
        for (i64 place = begin; place < end; place++) {
            int column = (int)(place % columns), row = (int)(place / columns % rows);
            const T *image = images + place / columns / rows * height * width * IN;
            double pixel = seen(image, height, width, row, column, k);
            sum += j < TAPS ? pixel * seen(image, height, width, row, column, j) : pixel;
        }
        shares[(i64)blockIdx.x * (TAPS + 1) * TAPS + entry] = sum;
    }
}

// A block's share of the sums of the gradient times pixels: entries [channels, TAPS + 1], the last column of
// which is the sums of the gradient. Only argmax pixels have a gradient.
extern "C" __global__ void stem_products(const T *images, const T *dy, const u8 *index, double *shares,
                                         i64 places, int channels, int height, int width, int out_height,
                                         int out_width, TIMED) {
    NOTE_TIMES;
    const i64 begin = places * blockIdx.x / gridDim.x, end = places * (blockIdx.x + 1) / gridDim.x;
    for (int entry = threadIdx.x; entry < channels * (TAPS + 1); entry += blockDim.x) {
        int c = entry / (TAPS + 1), k = entry % (TAPS + 1);
        double sum = 0.0;
        for (i64 place = begin; place < end; place++) {
            int winner = index[place * channels + c];
            double gradient = widen(dy[place * channels + c]);
            if (winner > 3 || gradient == 0.0) continue;
            int column = (int)(place % out_width), row = (int)(place / out_width % out_height);
            const T *image = images + place / out_width / out_height * height * width * IN;
            sum += k < TAPS ? gradient *
                                  seen(image, height, width, 2 * row + winner / 2, 2 * column + winner % 2, k)
                            : gradient;
        }
        shares[(i64)blockIdx.x * channels * (TAPS + 1) + entry] = sum;
    }
}

// Adds up the shares of blocks, and the sums of the tiles before.
extern "C" __global__ void stem_add(const double *shares, double *sums, int blocks, int entries,
                                    int is_first, TIMED) {
    NOTE_TIMES;
    int entry = blockIdx.x * blockDim.x + threadIdx.x;
    if (entry >= entries) return;
    double sum = is_first ? 0.0 : sums[entry];
    for (int block = 0; block < blocks; block++) sum += shares[(i64)block * entries + entry];
    sums[entry] = sum;
}

// With the last tile: mean and inverse deviation of a channel, from the correlation.
extern "C" __global__ void stem_settle(const T *weight, const double *correlation, float *running_mean,
                                       float *running_var, float *mean, float *inverse_deviation, i64 places,
                                       int channels, float epsilon, float momentum, int tiles, int is_last,
                                       TIMED) {
    NOTE_TIMES;
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (!is_last || c >= channels) return;
    const T *w = weight + c * TAPS;
    double average = 0.0, squares = 0.0, total = (double)places * tiles;
    for (int k = 0; k < TAPS; k++) average += widen(w[in_memory(k)]) * correlation[TAPS * TAPS + k];
    average /= total;
    for (int j = 0; j < TAPS; j++)
        for (int k = 0; k < TAPS; k++)
            squares += (double)widen(w[in_memory(j)]) * widen(w[in_memory(k)]) * correlation[j * TAPS + k];
    squares -= total * average * average;
    // Rounding may give a negative number. NaN stays.
    if (squares < 0.0) squares = 0.0;
    double unbiased = total > 1.0 ? squares / (total - 1.0) : squares / total;
    mean[c] = (float)average;
    inverse_deviation[c] = (float)(1.0 / sqrt(squares / total + epsilon));
    running_mean[c] = (float)(running_mean[c] + momentum * (average - running_mean[c]));
    running_var[c] = (float)(running_var[c] + momentum * (unbiased - running_var[c]));
}

// With the last tile: the gradients of a channel's parameters, from the sums over the batch.
extern "C" __global__ void stem_finish(const T *weight, const float *norm_weight, const float *mean,
                                       const float *inverse_deviation, const double *correlation,
                                       const double *sums, float *dweight, float *dnorm_weight,
                                       float *dnorm_bias, i64 places, int channels, int tiles, int is_last,
                                       TIMED) {
    NOTE_TIMES;
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (!is_last || c >= channels) return;
    const T *w = weight + c * TAPS;
    const double *products = sums + c * (TAPS + 1);
    double average = mean[c], inverse = inverse_deviation[c], sum = products[TAPS],
           total = (double)places * tiles, weighted = 0.0;
    for (int k = 0; k < TAPS; k++) weighted += widen(w[in_memory(k)]) * products[k];
    weighted -= average * sum;
    dnorm_bias[c] = (float)sum;
    dnorm_weight[c] = (float)(weighted * inverse);
    for (int k = 0; k < TAPS; k++) {
        double pixel = correlation[TAPS * TAPS + k], along = 0.0;
        for (int j = 0; j < TAPS; j++) along += widen(w[in_memory(j)]) * correlation[k * TAPS + j];
        double normalised = (along - average * pixel) * inverse;
        double rest = products[k] - sum / total * pixel - weighted * inverse / total * normalised;
        dweight[c * TAPS + in_memory(k)] = (float)(norm_weight[c] * inverse * rest);
    }
}

EXPORT(stem_apply)
EXPORT(stem_correlation)
EXPORT(stem_products)
EXPORT(stem_add)
EXPORT(stem_settle)
EXPORT(stem_finish)
