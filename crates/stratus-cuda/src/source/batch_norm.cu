// Batch normalisation, the elementwise passes: its application (with optional addition and activation), and
// the gradient of its input.
//
//   apply           y = f(weight · (x - mean) · inverse_deviation + bias + a)
//   backward data   dx = scale · dy + slope · (x - mean) + offset, see Correction
//
// Each reads its maps once, in rows as described in batch_norm_common.cu.

// ROWS rows starting with `row`, for enough loads in flight.
template <int ROWS, bool ADDS>
__device__ __forceinline__ void apply_rows(const Affine &affine, const X *x, const T *a, T *y, i64 row,
                                           i64 x_stride, i64 y_stride) {
    i64 step = ROW_STEP;
    Inputs inputs[ROWS];
    Results others[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        inputs[r] = *(const Inputs *)(x + (row + r * step) * x_stride);
        if (ADDS) others[r] = *(const Results *)(a + (row + r * step) * y_stride);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float values[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float value = affine.normalise(widen(inputs[r].at[i]) - affine.mean[i], i);
            values[i] = activate(ADDS ? value + widen(others[r].at[i]) : value);
        }
        store(y + (row + r * step) * y_stride, values);
    }
}

template <bool ADDS>
__device__ __forceinline__ void apply(const X *x, const T *a, T *y, const float *weight, const float *bias,
                                      const float *mean, const float *variance_or_inverse, float epsilon,
                                      i64 rows, int channels, i64 x_stride, i64 y_stride) {
    int channel = CHANNEL;
    if (channel >= channels) return;
    const Affine affine(weight, bias, mean, variance_or_inverse, epsilon, channel);
    constexpr int ROWS = ADDS ? 2 : 4;
    i64 row = FIRST_ROW, step = ROW_STEP;
    x += channel, y += channel;
    if (ADDS) a += channel;
    for (; row + (ROWS - 1) * step < rows; row += ROWS * step)
        apply_rows<ROWS, ADDS>(affine, x, a, y, row, x_stride, y_stride);
    for (; row < rows; row += step) apply_rows<1, ADDS>(affine, x, a, y, row, x_stride, y_stride);
}

extern "C" __global__ void batch_norm_apply(const X *x, T *y, const float *weight, const float *bias,
                                            const float *mean, const float *variance_or_inverse,
                                            float epsilon, i64 rows,
                                            int channels, i64 x_stride, i64 y_stride, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    apply<false>(x, 0, y, weight, bias, mean, variance_or_inverse, epsilon, rows, channels, x_stride,
                 y_stride);
}

// `a` has the layout of `y`.
extern "C" __global__ void batch_norm_add_apply(const X *x, const T *a, T *y, const float *weight,
                                                const float *bias, const float *mean,
                                                const float *variance_or_inverse,
                                                float epsilon, i64 rows, int channels, i64 x_stride,
                                                i64 y_stride, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    apply<true>(x, a, y, weight, bias, mean, variance_or_inverse, epsilon, rows, channels, x_stride,
                y_stride);
}

// `dx` has the layout of `x`. Without CORRECTS, mean and variance are constants.
template <int ROWS, bool CORRECTS>
__device__ __forceinline__ void backward_rows(const Affine &affine, const Correction *correction, const X *x,
                                              const T *dy, T *dx, i64 row, i64 x_stride, i64 y_stride) {
    i64 step = ROW_STEP;
    Inputs inputs[ROWS];
    Results gradients[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (CORRECTS || HAS_ACTIVATION) inputs[r] = *(const Inputs *)(x + (row + r * step) * x_stride);
        gradients[r] = *(const Results *)(dy + (row + r * step) * y_stride);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float values[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float gradient = widen(gradients[r].at[i]), centred = 0.0f;
            if (CORRECTS || HAS_ACTIVATION) centred = widen(inputs[r].at[i]) - affine.mean[i];
            if (HAS_ACTIVATION) gradient = gradient_of(affine.normalise(centred, i), gradient);
            values[i] = CORRECTS ? fmaf(affine.scale[i], gradient,
                                        fmaf(centred, correction->slope[i], correction->offset[i]))
                                 : affine.scale[i] * gradient;
        }
        store(dx + (row + r * step) * x_stride, values);
    }
}

template <bool CORRECTS>
__device__ __forceinline__ void backward(const Affine &affine, const Correction *correction, const X *x,
                                         const T *dy, T *dx, i64 rows, i64 x_stride, i64 y_stride) {
    int channel = CHANNEL;
    i64 row = FIRST_ROW, step = ROW_STEP;
    x += channel, dy += channel, dx += channel;
    for (; row + step < rows; row += 2 * step)
        backward_rows<2, CORRECTS>(affine, correction, x, dy, dx, row, x_stride, y_stride);
    for (; row < rows; row += step)
        backward_rows<1, CORRECTS>(affine, correction, x, dy, dx, row, x_stride, y_stride);
}

// The sums cover all tiles of the batch.
extern "C" __global__ void batch_norm_backward_data(const X *x, const T *dy, T *dx, const float *weight,
                                                    const float *bias, const float *mean,
                                                    const float *inverse_deviation, const float *dweight,
                                                    const float *dbias, int tiles, i64 rows, int channels,
                                                    i64 x_stride, i64 y_stride, TIMESTAMP_PARAMS) {
    int channel = CHANNEL;
    if (channel >= channels) return;
    RECORD_TIMESTAMPS;
    const Affine affine(weight, bias, mean, inverse_deviation, -1.0f, channel);
    const Correction correction(affine, dweight, dbias, 1.0f / ((float)rows * tiles), channel);
    backward<true>(affine, &correction, x, dy, dx, rows, x_stride, y_stride);
}

extern "C" __global__ void batch_norm_inference_backward(const X *x, const T *dy, T *dx, const float *weight,
                                                         const float *bias, const float *mean,
                                                         const float *variance, float epsilon, i64 rows,
                                                         int channels, i64 x_stride, i64 y_stride,
                                                         TIMESTAMP_PARAMS) {
    int channel = CHANNEL;
    if (channel >= channels) return;
    RECORD_TIMESTAMPS;
    const Affine affine(weight, bias, mean, variance, epsilon, channel);
    backward<false>(affine, 0, x, dy, dx, rows, x_stride, y_stride);
}

EXPORT(batch_norm_apply)
EXPORT(batch_norm_add_apply)
EXPORT(batch_norm_backward_data)
EXPORT(batch_norm_inference_backward)
