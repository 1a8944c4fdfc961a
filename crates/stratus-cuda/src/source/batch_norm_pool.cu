// Batch normalisation fused with the following max-pooling. Neither the normalised map nor its gradient is
// stored.
//
//   apply           y = maxpool(relu(norm(x))), index = the argmax in its window, row by row, or RELU_MASKED
//   gradients       dbias, dweight: sums over the argmax pixels
//   backward data   dx, from the gradients of all windows whose argmax a pixel is
//
//   KERNEL, STRIDE, PADDING   of the windows, vertical _H and horizontal _W
//   INSIDE                    no window extends beyond the image
//
// Rows are pixels of the map that a kernel writes or, for sums, of the pooled map; there are fewer than 2^31.

#define RELU_MASKED 255

// Loops over the pixels of small windows are unrolled.
#define UNROLLED_H (KERNEL_H * KERNEL_W <= 25 ? KERNEL_H : 1)
#define UNROLLED_W (KERNEL_H * KERNEL_W <= 25 ? KERNEL_W : 1)

typedef Vector<u8, VECTOR> Indices;

// Calls `visit(position, x)` for every pixel of a window inside the image.
template <typename Visit>
__device__ __forceinline__ void visit_window(const X *x, u32 output, int channels, int height, int width,
                                             int out_height, int out_width, Visit visit) {
    u32 line = output / (u32)out_width, image = line / (u32)out_height;
    int top = (int)(line - image * (u32)out_height) * STRIDE_H - PADDING_H;
    int left = (int)(output - line * (u32)out_width) * STRIDE_W - PADDING_W;
    x += (i64)image * height * width * channels;
#pragma unroll UNROLLED_H
    for (int h = 0; h < KERNEL_H; h++) {
        int row = top + h;
#pragma unroll UNROLLED_W
        for (int w = 0; w < KERNEL_W; w++) {
            int column = left + w;
            if (!INSIDE && (row < 0 || row >= height || column < 0 || column >= width)) continue;
            visit(h * KERNEL_W + w, *(const Inputs *)(x + ((i64)row * width + column) * channels));
        }
    }
}

extern "C" __global__ void batch_norm_pool_apply(const X *x, T *y, u8 *index, const float *weight,
                                                 const float *bias, const float *mean,
                                                 const float *variance_or_inverse,
                                                 float epsilon, int rows, int channels, int height, int width,
                                                 int out_height, int out_width, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channel = CHANNEL;
    if (channel >= channels) return;
    const Affine affine(weight, bias, mean, variance_or_inverse, epsilon, channel);
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        float best[VECTOR];
        int argmax[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) argmax[i] = -1, best[i] = 0.0f;
        visit_window(x + channel, (u32)row, channels, height, width, out_height, out_width,
                     [&](int position, const Inputs &inputs) {
#pragma unroll
                         for (int i = 0; i < VECTOR; i++) {
                             float value = affine.normalise(widen(inputs.at[i]) - affine.mean[i], i);
                             // NaN is taken, and nothing compares larger.
                             bool loses = value <= best[i] || best[i] != best[i];
                             if (argmax[i] < 0 || !loses) best[i] = value, argmax[i] = position;
                         }
                     });
        i64 to = row * channels + channel;
        if (index) {
            Indices indices;
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                indices.at[i] = (u8)(RELU && best[i] <= 0.0f ? RELU_MASKED : argmax[i]);
            *(Indices *)(index + to) = indices;
        }
#pragma unroll
        for (int i = 0; i < VECTOR; i++) best[i] = activate(best[i]);
        store(y + to, best);
    }
}

// The sums for the gradients of the parameters: only argmax pixels have a gradient.
extern "C" __global__ void batch_norm_pool_gradients(const X *x, const T *dy, const u8 *index,
                                                     const float *mean, int rows, int channels, int height,
                                                     int width, int out_height, int out_width,
                                                     double *partial_sums, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    Sums sums = {};
    int channel = CHANNEL;
    if (channel < channels) {
        float means[VECTOR];
        load(mean + channel, means);
        for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
            i64 at = row * channels + channel;
            const Results gradients = *(const Results *)(dy + at);
            const Indices indices = *(const Indices *)(index + at);
            float maxima[VECTOR];
            bool won[VECTOR];
#pragma unroll
            for (int i = 0; i < VECTOR; i++) maxima[i] = 0.0f, won[i] = false;
            visit_window(x + channel, (u32)row, channels, height, width, out_height, out_width,
                         [&](int position, const Inputs &inputs) {
#pragma unroll
                             for (int i = 0; i < VECTOR; i++)
                                 if (indices.at[i] == position)
                                     maxima[i] = widen(inputs.at[i]), won[i] = true;
                         });
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                float gradient = won[i] ? widen(gradients.at[i]) : 0.0f;
                sums[i] += gradient;
                sums[VECTOR + i] += gradient * (maxima[i] - means[i]);
            }
        }
    }
    write_sums(sums, channels, partial_sums);
}

// The maximum number of windows that contain a row or column of the image.
#define WINDOWS_H ((KERNEL_H + STRIDE_H - 1) / STRIDE_H)
#define WINDOWS_W ((KERNEL_W + STRIDE_W - 1) / STRIDE_W)

// The gradient of a pixel of the normalised map: the sum over all windows whose argmax it is.
__device__ __forceinline__ void gather(float (&sums)[VECTOR], const T *dy, const u8 *index, u32 pixel,
                                       int channels, int height, int width, int out_height, int out_width) {
    u32 line = pixel / (u32)width, image = line / (u32)height;
    u32 row = line - image * (u32)height + PADDING_H, column = pixel - line * (u32)width + PADDING_W;
    i64 start = (i64)image * out_height * out_width;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sums[i] = 0.0f;
#pragma unroll (WINDOWS_H <= 3 ? WINDOWS_H : 1)
    for (int h = 0; h < WINDOWS_H; h++) {
        int tap_row = (int)(row % STRIDE_H) + h * STRIDE_H, out_row = (int)(row / STRIDE_H) - h;
        if (tap_row >= KERNEL_H || out_row < 0 || out_row >= out_height) continue;
#pragma unroll (WINDOWS_W <= 3 ? WINDOWS_W : 1)
        for (int w = 0; w < WINDOWS_W; w++) {
            int tap_column = (int)(column % STRIDE_W) + w * STRIDE_W,
                out_column = (int)(column / STRIDE_W) - w;
            if (tap_column >= KERNEL_W || out_column < 0 || out_column >= out_width) continue;
            i64 at = (start + (i64)out_row * out_width + out_column) * channels;
            const Results gradients = *(const Results *)(dy + at);
            const Indices indices = *(const Indices *)(index + at);
            int position = tap_row * KERNEL_W + tap_column;
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                if (indices.at[i] == position) sums[i] += widen(gradients.at[i]);
        }
    }
}

// Sums over ROWS pixels of the gradient, and of the gradient times (x - mean).
template <int ROWS>
__device__ __forceinline__ void add_gathered(Sums &sums, const X *x, const T *dy, const u8 *index,
                                             const float (&mean)[VECTOR], u32 row, u32 step, int channels,
                                             int height, int width, int out_height, int out_width) {
    Inputs inputs[ROWS];
    float gradients[ROWS][VECTOR];
#pragma unroll
    for (int r = 0; r < ROWS; r++) inputs[r] = *(const Inputs *)(x + (i64)(row + r * step) * channels);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        gather(gradients[r], dy, index, row + r * step, channels, height, width, out_height, out_width);
    add_products<ROWS>(sums, inputs, gradients, mean);
}

// batch_norm_pool_gradients for overlapping windows: every pixel of x is read once, instead of once per
// window. Rows are pixels of x.
extern "C" __global__ void batch_norm_pool_gradients_gathered(const X *x, const T *dy, const u8 *index,
                                                              const float *mean, int rows, int channels,
                                                              int height, int width, int out_height,
                                                              int out_width, double *partial_sums,
                                                              TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    Sums sums = {};
    int channel = CHANNEL;
    if (channel < channels) {
        float means[VECTOR];
        load(mean + channel, means);
        x += channel, dy += channel, index += channel;
        i64 row = FIRST_ROW, step = ROW_STEP;
        for (; row + step < rows; row += 2 * step)
            add_gathered<2>(sums, x, dy, index, means, (u32)row, (u32)step, channels, height, width,
                            out_height, out_width);
        if (row < rows)
            add_gathered<1>(sums, x, dy, index, means, (u32)row, 0, channels, height, width, out_height,
                            out_width);
    }
    write_sums(sums, channels, partial_sums);
}

// The sums cover all tiles of the batch. Three blocks of 256 threads fit a multiprocessor.
extern "C" __global__ void __launch_bounds__(256, 3)
    batch_norm_pool_backward_data(const X *x, const T *dy, const u8 *index, T *dx, const float *weight,
                                  const float *bias, const float *mean, const float *inverse_deviation,
                                  const float *dweight, const float *dbias, int tiles, int rows,
                                  int channels, int height, int width, int out_height, int out_width,
                                  TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channel = CHANNEL;
    if (channel >= channels) return;
    const Affine affine(weight, bias, mean, inverse_deviation, -1.0f, channel);
    const Correction correction(affine, dweight, dbias, 1.0f / ((float)rows * tiles), channel);
    dy += channel, index += channel;
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        i64 at = row * channels + channel;
        const Inputs inputs = *(const Inputs *)(x + at);
        float values[VECTOR];
        gather(values, dy, index, (u32)row, channels, height, width, out_height, out_width);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float rest =
                fmaf(widen(inputs.at[i]) - affine.mean[i], correction.slope[i], correction.offset[i]);
            values[i] = fmaf(affine.scale[i], values[i], rest);
        }
        store(dx + at, values);
    }
}

// Mean and variance are constants.
extern "C" __global__ void batch_norm_pool_inference_backward(const T *dy, const u8 *index, T *dx,
                                                              const float *weight, const float *bias,
                                                              const float *mean, const float *variance,
                                                              float epsilon, int rows, int channels,
                                                              int height, int width, int out_height,
                                                              int out_width, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channel = CHANNEL;
    if (channel >= channels) return;
    const Affine affine(weight, bias, mean, variance, epsilon, channel);
    dy += channel, index += channel;
    for (i64 row = FIRST_ROW; row < rows; row += ROW_STEP) {
        float values[VECTOR];
        gather(values, dy, index, (u32)row, channels, height, width, out_height, out_width);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) values[i] *= affine.scale[i];
        store(dx + row * channels + channel, values);
    }
}

EXPORT(batch_norm_pool_apply)
EXPORT(batch_norm_pool_gradients)
EXPORT(batch_norm_pool_gradients_gathered)
EXPORT(batch_norm_pool_backward_data)
EXPORT(batch_norm_pool_inference_backward)
