// Plain convolutions of any geometry, for convolutions without a cuDNN kernel, and for tests: a thread per
// element of the result, with a sum in f64. x [N, H, W, C], w [K, KH, KW, C / groups], y [N, OH, OW, K].
//
//   forward           y[n, p, q, k] = Σ_rsc x[n, p · stride - pad + r · dilation, …, c] · w[k, r, s, c]
//   data gradient     dx[n, h, w, c] = Σ_rsk dy[n, p, q, k] · w[k, r, s, c] over the (p, q) that read (h, w)
//                     by tap (r, s)
//   weight gradient   dw[k, r, s, c] = Σ_npq dy[n, p, q, k] · x[n, p · stride - pad + r · dilation, …, c]
//
// Also: bias and ReLU after a convolution in one pass, and the sums over rows for the gradients of biases.

#define GEOMETRY_PARAMETERS                                                                             \
    int channels, int height, int width, int outputs, int out_height, int out_width, int kernel_h,      \
        int kernel_w, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h, int dilation_w, \
        int groups

extern "C" __global__ void conv_forward(const T *x, const T *weight, T *y, i64 count, GEOMETRY_PARAMETERS,
                                        TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const int group_in = channels / groups, group_out = outputs / groups;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (i64)gridDim.x * blockDim.x) {
        int o = at % outputs;
        i64 pixel = at / outputs;
        int q = pixel % out_width, p = pixel / out_width % out_height;
        i64 n = pixel / out_width / out_height;
        int first = o / group_out * group_in;
        double sum = 0;
        for (int r = 0; r < kernel_h; r++) {
            int h = p * stride_h - pad_h + r * dilation_h;
            if (h < 0 || h >= height) continue;
            for (int s = 0; s < kernel_w; s++) {
                int w = q * stride_w - pad_w + s * dilation_w;
                if (w < 0 || w >= width) continue;
                const T *from = x + ((n * height + h) * width + w) * channels + first;
                const T *by = weight + (((i64)o * kernel_h + r) * kernel_w + s) * group_in;
                for (int c = 0; c < group_in; c++) sum += (double)widen(from[c]) * widen(by[c]);
            }
        }
        narrow((float)sum, y[at]);
    }
}

extern "C" __global__ void conv_backward_data(const T *dy, const T *weight, T *dx, i64 count,
                                              GEOMETRY_PARAMETERS, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const int group_in = channels / groups, group_out = outputs / groups;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (i64)gridDim.x * blockDim.x) {
        int c = at % channels;
        i64 pixel = at / channels;
        int w = pixel % width, h = pixel / width % height;
        i64 n = pixel / width / height;
        int first = c / group_in * group_out;
        double sum = 0;
        for (int r = 0; r < kernel_h; r++) {
            int p = h + pad_h - r * dilation_h;
            if (p < 0 || p % stride_h != 0 || p / stride_h >= out_height) continue;
            for (int s = 0; s < kernel_w; s++) {
                int q = w + pad_w - s * dilation_w;
                if (q < 0 || q % stride_w != 0 || q / stride_w >= out_width) continue;
                const T *from =
                    dy + ((n * out_height + p / stride_h) * out_width + q / stride_w) * outputs + first;
                for (int o = 0; o < group_out; o++) {
                    const T *by =
                        weight + (((i64)(first + o) * kernel_h + r) * kernel_w + s) * group_in + c % group_in;
                    sum += (double)widen(from[o]) * widen(*by);
                }
            }
        }
        narrow((float)sum, dx[at]);
    }
}

extern "C" __global__ void conv_backward_weights(const T *x, const T *dy, float *dweight, i64 count,
                                                 i64 batch, GEOMETRY_PARAMETERS, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const int group_in = channels / groups, group_out = outputs / groups;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (i64)gridDim.x * blockDim.x) {
        int c = at % group_in;
        int s = at / group_in % kernel_w, r = at / group_in / kernel_w % kernel_h;
        int o = at / group_in / kernel_w / kernel_h;
        int channel = o / group_out * group_in + c;
        double sum = 0;
        for (i64 n = 0; n < batch; n++) {
            for (int p = 0; p < out_height; p++) {
                int h = p * stride_h - pad_h + r * dilation_h;
                if (h < 0 || h >= height) continue;
                for (int q = 0; q < out_width; q++) {
                    int w = q * stride_w - pad_w + s * dilation_w;
                    if (w < 0 || w >= width) continue;
                    sum += (double)widen(x[((n * height + h) * width + w) * channels + channel]) *
                           widen(dy[((n * out_height + p) * out_width + q) * outputs + o]);
                }
            }
        }
        dweight[at] = (float)sum;
    }
}

// Adds a bias [columns] to rows of `columns` elements in place, with ReLU if RELU. NaN is propagated.
extern "C" __global__ void add_bias(const float *bias, T *y, i64 count, int columns, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; at < count;
         at += (i64)gridDim.x * blockDim.x * VECTOR) {
        int column = at % columns;
        float v[VECTOR];
        load(y + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            v[i] += bias[column + i];
            if (RELU && v[i] <= 0.0f) v[i] = 0.0f;
        }
        store(y + at, v);
    }
}

// Sums over the rows of a matrix [rows, columns], in gridDim.y parts. A block has 32 threads along the
// columns, VECTOR columns each, and 8 along the rows.
extern "C" __global__ void sum_rows(const T *x, double *partial, i64 rows, int columns, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    __shared__ double sums[8][32 * VECTOR];
    int column = (blockIdx.x * 32 + threadIdx.x) * VECTOR;
    i64 part = (rows + gridDim.y - 1) / gridDim.y;
    i64 first = blockIdx.y * part, end = first + part < rows ? first + part : rows;
    double sum[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum[i] = 0;
    if (column < columns) {
        for (i64 row = first + threadIdx.y; row < end; row += 32) {
            // Four rows at a time, with concurrent loads.
            float v[4][VECTOR];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                i64 at = row + 8 * j;
                if (at < end) {
                    load(x + at * columns + column, v[j]);
                } else {
#pragma unroll
                    for (int i = 0; i < VECTOR; i++) v[j][i] = 0;
                }
            }
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[i] += (double)((v[0][i] + v[1][i]) + (v[2][i] + v[3][i]));
        }
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sums[threadIdx.y][threadIdx.x * VECTOR + i] = sum[i];
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            double whole = 0;
            for (int row = 0; row < 8; row++) whole += sums[row][threadIdx.x * VECTOR + i];
            partial[(i64)blockIdx.y * columns + column + i] = whole;
        }
    }
}

extern "C" __global__ void sum_parts(const double *partial, float *sum, int parts, int columns,
                                     TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    double whole = 0;
    for (int part = 0; part < parts; part++) whole += partial[(i64)part * columns + column];
    sum[column] = (float)whole;
}

EXPORT(conv_forward)
EXPORT(conv_backward_data)
EXPORT(conv_backward_weights)
EXPORT(add_bias)
EXPORT(sum_rows)
EXPORT(sum_parts)
