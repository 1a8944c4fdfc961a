// Batch normalisation, the sums over the batch: of the map in the forward pass, of its gradient in the
// backward pass.
//
//   forward    mean = Σ x / n, variance = Σ (x - mean)² / n
//   backward   dbias = Σ dy, dweight = Σ dy · (x - mean) · inverse_deviation
//
// Sums take two launches. In the first, a thread sums a few rows in f32 and these in f64, then the block sums
// its rows; it writes `partial_sums` [blocks, 2, channels]. The second sums these, channel by channel in a
// fixed order.

// ROWS rows with a stride of `stride`. Squares are taken around the mean of these rows: with a mean much
// larger than the deviation, f32 would lose them otherwise.
template <int ROWS> __device__ __forceinline__ void add_moments(Sums &sums, const X *x, i64 stride) {
    Inputs inputs[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) inputs[r] = *(const Inputs *)(x + r * stride);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum += widen(inputs[r].at[i]);
        float mean = sum * (1.0f / ROWS);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float delta = widen(inputs[r].at[i]) - mean;
            squares = fmaf(delta, delta, squares);
        }
        double exact = sum;
        sums[i] += exact;
        sums[VECTOR + i] += squares;
        sums[VECTOR + i] = fma(exact, exact * (1.0 / ROWS), sums[VECTOR + i]);
    }
}

// Σ x and Σ x².
extern "C" __global__ void batch_norm_statistics(const X *x, i64 rows, int channels, i64 stride,
                                                 double *partial_sums, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    Sums sums = {};
    int channel = CHANNEL;
    if (channel < channels) {
        i64 row = FIRST_ROW, step = ROW_STEP;
        x += channel;
        for (; row + 7 * step < rows; row += 8 * step) add_moments<8>(sums, x + row * stride, step * stride);
        for (; row + step < rows; row += 2 * step) add_moments<2>(sums, x + row * stride, step * stride);
        if (row < rows) add_moments<1>(sums, x + row * stride, 0);
    }
    write_sums(sums, channels, partial_sums);
}

// The sums of the blocks' partial sums for a channel; the threads of the first row get them.
__device__ __forceinline__ void add_partial_sums(double (&sums)[2], const double *partial_sums, int count,
                                                 int channel, int channels) {
    sums[0] = sums[1] = 0.0;
    if (channel < channels) {
#pragma unroll 4
        for (int part_index = threadIdx.y; part_index < count; part_index += blockDim.y) {
            sums[0] += partial_sums[(i64)part_index * 2 * channels + channel];
            sums[1] += partial_sums[((i64)part_index * 2 + 1) * channels + channel];
        }
    }
    sum_rows<2, 1024>(sums);
}

// From sums to statistics; each thread of the first row of its block has a channel. Until the last tile of a
// batch, `inverse_deviation` holds the number of tiles so far.
extern "C" __global__ void batch_norm_finish(const double *partial_sums, int count, int channels, double rows,
                                             int is_first, int is_last, double epsilon, double momentum,
                                             float *running_mean, float *running_var, float *mean,
                                             float *inverse_deviation, double *moments, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channel = blockIdx.x * blockDim.x + threadIdx.x;
    double sums[2];
    add_partial_sums(sums, partial_sums, count, channel, channels);
    if (threadIdx.y != 0 || channel >= channels) return;
    double average = sums[0] / rows, squares = sums[1] - sums[0] * average, total = rows;
    // Rounding may give a negative number. NaN is propagated.
    if (squares < 0.0) squares = 0.0;
    if (!is_first) {
        double before = rows * inverse_deviation[channel];
        total += before;
        double delta = average - moments[channel];
        average = moments[channel] + delta * rows / total;
        squares += moments[channels + channel] + delta * delta * before * rows / total;
    }
    moments[channel] = average;
    moments[channels + channel] = squares;
    if (!is_last) {
        inverse_deviation[channel] = is_first ? 1.0f : inverse_deviation[channel] + 1.0f;
        return;
    }
    double variance = squares / total, unbiased = total > 1.0 ? squares / (total - 1.0) : variance;
    mean[channel] = (float)average;
    inverse_deviation[channel] = (float)(1.0 / sqrt(variance + epsilon));
    running_mean[channel] = (float)(running_mean[channel] + momentum * (average - running_mean[channel]));
    running_var[channel] = (float)(running_var[channel] + momentum * (unbiased - running_var[channel]));
}

// The sums of a part of the batch.
extern "C" __global__ void batch_norm_add_sums(const double *partial_sums, int count, int channels,
                                               double *totals, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channel = blockIdx.x * blockDim.x + threadIdx.x;
    double sums[2];
    add_partial_sums(sums, partial_sums, count, channel, channels);
    if (threadIdx.y != 0 || channel >= channels) return;
    totals[channel] = sums[0];
    totals[channels + channel] = sums[1];
}

template <int ROWS>
__device__ __forceinline__ void add_gradients(Sums &sums, const Affine &affine, const X *x, const T *dy,
                                              i64 row, i64 x_stride, i64 y_stride) {
    i64 step = ROW_STEP;
    Inputs inputs[ROWS];
    Results y_value[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        inputs[r] = *(const Inputs *)(x + (row + r * step) * x_stride);
        y_value[r] = *(const Results *)(dy + (row + r * step) * y_stride);
    }
    float gradients[ROWS][VECTOR];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float value = affine.normalise(widen(inputs[r].at[i]) - affine.mean[i], i);
            gradients[r][i] = gradient_of(value, widen(y_value[r].at[i]));
        }
    }
    add_products<ROWS>(sums, inputs, gradients, affine.mean);
}

extern "C" __global__ void batch_norm_gradients(const X *x, const T *dy, const float *weight,
                                                const float *bias, const float *mean,
                                                const float *inverse_deviation, i64 rows, int channels,
                                                i64 x_stride, i64 y_stride, double *partial_sums,
                                                TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    Sums sums = {};
    int channel = CHANNEL;
    if (channel < channels) {
        const Affine affine(weight, bias, mean, inverse_deviation, -1.0f, channel);
        i64 row = FIRST_ROW, step = ROW_STEP;
        x += channel, dy += channel;
        for (; row + 3 * step < rows; row += 4 * step)
            add_gradients<4>(sums, affine, x, dy, row, x_stride, y_stride);
        for (; row < rows; row += step) add_gradients<1>(sums, affine, x, dy, row, x_stride, y_stride);
    }
    write_sums(sums, channels, partial_sums);
}

// The gradient of relu(y) for a sum `y`, in place: adds `part` to `dy`, if there is one, and clears it where
// y <= 0. The sums are those of the rounded gradients as stored, which later steps read.
template <int ROWS, bool ADDS>
__device__ __forceinline__ void mask_rows(Sums &sums, const float (&mean)[VECTOR], const X *x, const T *y,
                                          const T *part, T *dy, i64 row, i64 stride) {
    i64 step = ROW_STEP;
    Inputs inputs[ROWS];
    Results y_value[ROWS], parts[ROWS], dy_value[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        i64 at = (row + r * step) * stride;
        inputs[r] = *(const Inputs *)(x + at);
        y_value[r] = *(const Results *)(y + at);
        dy_value[r] = *(const Results *)(dy + at);
        if (ADDS) parts[r] = *(const Results *)(part + at);
    }
    float gradients[ROWS][VECTOR];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float gradient = widen(dy_value[r].at[i]);
            if (ADDS) gradient += widen(parts[r].at[i]);
            // No gradient passes where y is NaN.
            if (!(widen(y_value[r].at[i]) > 0.0f)) gradient = 0.0f;
            narrow(gradient, dy_value[r].at[i]);
            gradients[r][i] = widen(dy_value[r].at[i]);
        }
        *(Results *)(dy + (row + r * step) * stride) = dy_value[r];
    }
    add_products<ROWS>(sums, inputs, gradients, mean);
}

template <bool ADDS>
__device__ __forceinline__ void mask(const X *x, const T *y, const T *part, T *dy, const float *means,
                                     i64 rows, int channels, double *partial_sums) {
    Sums sums = {};
    int channel = CHANNEL;
    if (channel < channels) {
        float mean[VECTOR];
        load(means + channel, mean);
        i64 row = FIRST_ROW, step = ROW_STEP;
        x += channel, y += channel, dy += channel;
        if (ADDS) part += channel;
        for (; row + step < rows; row += 2 * step)
            mask_rows<2, ADDS>(sums, mean, x, y, part, dy, row, channels);
        if (row < rows) mask_rows<1, ADDS>(sums, mean, x, y, part, dy, row, channels);
    }
    write_sums(sums, channels, partial_sums);
}

extern "C" __global__ void batch_norm_masked_gradients(const X *x, const T *y, T *dy, const float *mean,
                                                       i64 rows, int channels, double *partial_sums,
                                                       TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    mask<false>(x, y, 0, dy, mean, rows, channels, partial_sums);
}

extern "C" __global__ void batch_norm_add_masked_gradients(const X *x, const T *y, const T *part, T *dy,
                                                           const float *mean, i64 rows, int channels,
                                                           double *partial_sums, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    mask<true>(x, y, part, dy, mean, rows, channels, partial_sums);
}

// From sums to the gradients of the parameters; each thread of the first row of its block has a channel.
extern "C" __global__ void batch_norm_finish_gradients(const double *partial_sums, int count, int channels,
                                                       const float *inverse_deviation, int is_first,
                                                       int is_last, float *dweight, float *dbias,
                                                       double *totals, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channel = blockIdx.x * blockDim.x + threadIdx.x;
    double sums[2];
    add_partial_sums(sums, partial_sums, count, channel, channels);
    if (threadIdx.y != 0 || channel >= channels) return;
    if (!is_first) {
        sums[0] += totals[channel];
        sums[1] += totals[channels + channel];
    }
    totals[channel] = sums[0];
    totals[channels + channel] = sums[1];
    if (!is_last) return;
    dbias[channel] = (float)sums[0];
    dweight[channel] = (float)(sums[1] * inverse_deviation[channel]);
}

EXPORT(batch_norm_statistics)
EXPORT(batch_norm_finish)
EXPORT(batch_norm_add_sums)
EXPORT(batch_norm_gradients)
EXPORT(batch_norm_masked_gradients)
EXPORT(batch_norm_add_masked_gradients)
EXPORT(batch_norm_finish_gradients)
