// Power-average pooling of norm 2 of maps [N, H, W, C]: y = √(Σ x²), dx = x Σ dy / y. An item is VECTOR
// channels of a pixel of the result; a pixel of the gradient gathers from the windows that contain it.

#define POOL_PARAMS                                                                                     \
    int channels, int height, int width, int out_height, int out_width, int kernel_height,              \
        int kernel_width, int stride_height, int stride_width

#define FOR_EACH_ITEM(item, items)                                            \
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; \
         item += (i64)gridDim.x * blockDim.x)

extern "C" __global__ void lp_pool_forward(const T *x, T *y, i64 items, POOL_PARAMS, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int vectors = channels / VECTOR;
    FOR_EACH_ITEM(item, items) {
        int channel = (int)(item % vectors) * VECTOR;
        i64 pixel = item / vectors, row = pixel / out_width, sample = row / out_height;
        i64 top = row % out_height * stride_height, left = pixel % out_width * stride_width;
        const T *image = x + sample * height * width * channels + channel;
        float sum[VECTOR] = {};
        for (int i = 0; i < kernel_height; i++) {
            for (int j = 0; j < kernel_width; j++) {
                float v[VECTOR];
                load(image + ((top + i) * width + left + j) * channels, v);
#pragma unroll
                for (int k = 0; k < VECTOR; k++) sum[k] += v[k] * v[k];
            }
        }
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[k] = sqrtf(sum[k]);
        store(y + item * VECTOR, sum);
    }
}

extern "C" __global__ void lp_pool_backward(const T *x, const T *y, const T *dy, T *dx, i64 items,
                                            POOL_PARAMS, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int vectors = channels / VECTOR;
    FOR_EACH_ITEM(item, items) {
        int channel = (int)(item % vectors) * VECTOR;
        i64 pixel = item / vectors, above = pixel / width, sample = above / height;
        int row = (int)(above % height), column = (int)(pixel % width);
        // The windows that contain the pixel.
        int top = (max(row + 1 - kernel_height, 0) + stride_height - 1) / stride_height;
        int left = (max(column + 1 - kernel_width, 0) + stride_width - 1) / stride_width;
        int bottom = min(row / stride_height, out_height - 1);
        int right = min(column / stride_width, out_width - 1);
        i64 first = sample * out_height * out_width * channels + channel;
        float sum[VECTOR] = {};
        for (int i = top; i <= bottom; i++) {
            for (int j = left; j <= right; j++) {
                i64 at = first + ((i64)i * out_width + j) * channels;
                float norm[VECTOR], gradient[VECTOR];
                load(y + at, norm);
                load(dy + at, gradient);
#pragma unroll
                for (int k = 0; k < VECTOR; k++)
                    sum[k] += norm[k] == 0.0f ? 0.0f : gradient[k] / norm[k];
            }
        }
        float v[VECTOR];
        load(x + item * VECTOR, v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[k] *= v[k];
        store(dx + item * VECTOR, sum);
    }
}

EXPORT(lp_pool_forward)
EXPORT(lp_pool_backward)
