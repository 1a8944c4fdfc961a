// The stem: convolution of images, batch norm, ReLU and 2x2 max-pooling, without the convolution's output in
// memory.
//
//   y = maxpool(relu(norm(conv(images))))
//
// Statistics and gradients are computed from sums over the batch: of the images' correlation between taps,
// and of the pooled gradient times the pixels at the argmax (`stratus-engine`'s ops/stem.rs has the algebra).
// The convolution is recomputed wherever it is needed. A thread has an element of the pooled map, or an entry
// of a sum; blocks divide the batch into ranges of pixels, and their sums are added in a fixed order.
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
__device__ __forceinline__ float tap_input(const T *image, int height, int width, int row, int column,
                                           int tap) {
    int h = row + tap / KW % KH - PAD_H, w = column + tap % KW - PAD_W;
    bool inside = h >= 0 && h < height && w >= 0 && w < width;
    return inside ? widen(image[((i64)h * width + w) * IN + tap / (KH * KW)]) : 0.0f;
}

// The pooled map and its argmax. `deviation` is the inverse deviation or, if epsilon is not negative, the
// running variance.
extern "C" __global__ void stem_apply(const T *images, const T *weight, const float *norm_weight,
                                      const float *norm_bias, const float *mean, const float *deviation, T *y,
                                      u8 *index, i64 count, int channels, int height, int width,
                                      int out_height, int out_width, float epsilon, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (i64)gridDim.x * blockDim.x) {
        int c = (int)(at % channels);
        i64 output = at / channels;
        int column = (int)(output % out_width), row = (int)(output / out_width % out_height);
        const T *image = images + output / out_width / out_height * height * width * IN;
        float inverse = epsilon >= 0.0f ? 1.0f / sqrtf(deviation[c] + epsilon) : deviation[c];
        float best = 0.0f;
        int argmax = 0;
        for (int position = 0; position < 4; position++) {
            float sum = 0.0f;
            for (int tap = 0; tap < TAPS; tap++) {
                float pixel =
                    tap_input(image, height, width, 2 * row + position / 2, 2 * column + position % 2, tap);
                sum += pixel * widen(weight[c * TAPS + in_memory(tap)]);
            }
            float value = norm_weight[c] * ((sum - mean[c]) * inverse) + norm_bias[c];
            // NaN is propagated, so that a diverged run is noticed.
            if (position == 0 || !(value <= best || isnan(best))) best = value, argmax = position;
        }
        bool masked = RELU && best <= 0.0f;
        narrow(masked ? 0.0f : best, y[at]);
        if (index) index[at] = masked ? 255 : (u8)argmax;
    }
}

// A block's partial sum of the correlation: entries [TAPS + 1, TAPS], the last row of which is the sums of
// pixels. A thread per entry.
extern "C" __global__ void stem_correlation(const T *images, double *partial_sums, i64 outputs, int height,
                                            int width, int rows, int columns, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const i64 begin = outputs * blockIdx.x / gridDim.x, end = outputs * (blockIdx.x + 1) / gridDim.x;
    for (int entry = threadIdx.x; entry < (TAPS + 1) * TAPS; entry += blockDim.x) {
        int j = entry / TAPS, k = entry % TAPS;
        double sum = 0.0;
        for (i64 output = begin; output < end; output++) {
            int column = (int)(output % columns), row = (int)(output / columns % rows);
            const T *image = images + output / columns / rows * height * width * IN;
            double pixel = tap_input(image, height, width, row, column, k);
            sum += j < TAPS ? pixel * tap_input(image, height, width, row, column, j) : pixel;
        }
        partial_sums[(i64)blockIdx.x * (TAPS + 1) * TAPS + entry] = sum;
    }
}

// A block's partial sums of the gradient times pixels: entries [channels, TAPS + 1], the last column of which
// is the sums of the gradient. Only argmax pixels have a gradient.
extern "C" __global__ void stem_products(const T *images, const T *dy, const u8 *index, double *partial_sums,
                                         i64 outputs, int channels, int height, int width, int out_height,
                                         int out_width, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const i64 begin = outputs * blockIdx.x / gridDim.x, end = outputs * (blockIdx.x + 1) / gridDim.x;
    for (int entry = threadIdx.x; entry < channels * (TAPS + 1); entry += blockDim.x) {
        int c = entry / (TAPS + 1), k = entry % (TAPS + 1);
        double sum = 0.0;
        for (i64 output = begin; output < end; output++) {
            int argmax = index[output * channels + c];
            double gradient = widen(dy[output * channels + c]);
            if (argmax > 3 || gradient == 0.0) continue;
            int column = (int)(output % out_width), row = (int)(output / out_width % out_height);
            const T *image = images + output / out_width / out_height * height * width * IN;
            sum += k < TAPS ? gradient *
                                  tap_input(image, height, width, 2 * row + argmax / 2,
                                            2 * column + argmax % 2, k)
                            : gradient;
        }
        partial_sums[(i64)blockIdx.x * channels * (TAPS + 1) + entry] = sum;
    }
}

// Adds the partial sums of blocks, and the sums of the tiles before.
extern "C" __global__ void stem_add(const double *partial_sums, double *sums, int blocks, int entries,
                                    int is_first, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int entry = blockIdx.x * blockDim.x + threadIdx.x;
    if (entry >= entries) return;
    double sum = is_first ? 0.0 : sums[entry];
    for (int block = 0; block < blocks; block++) sum += partial_sums[(i64)block * entries + entry];
    sums[entry] = sum;
}

// With the last tile: mean and inverse deviation of a channel, from the correlation.
extern "C" __global__ void stem_finish_statistics(const T *weight, const double *correlation,
                                                  float *running_mean, float *running_var, float *mean,
                                                  float *inverse_deviation, i64 outputs, int channels,
                                                  float epsilon, float momentum, int tiles, int is_last,
                                                  TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (!is_last || c >= channels) return;
    const T *w = weight + c * TAPS;
    double average = 0.0, squares = 0.0, total = (double)outputs * tiles;
    for (int k = 0; k < TAPS; k++) average += widen(w[in_memory(k)]) * correlation[TAPS * TAPS + k];
    average /= total;
    for (int j = 0; j < TAPS; j++)
        for (int k = 0; k < TAPS; k++)
            squares += (double)widen(w[in_memory(j)]) * widen(w[in_memory(k)]) * correlation[j * TAPS + k];
    squares -= total * average * average;
    // Rounding may give a negative number. NaN is propagated.
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
                                       float *dnorm_bias, i64 outputs, int channels, int tiles, int is_last,
                                       TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (!is_last || c >= channels) return;
    const T *w = weight + c * TAPS;
    const double *products = sums + c * (TAPS + 1);
    double average = mean[c], inverse = inverse_deviation[c], sum = products[TAPS],
           total = (double)outputs * tiles, weighted = 0.0;
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
EXPORT(stem_finish_statistics)
EXPORT(stem_finish)
