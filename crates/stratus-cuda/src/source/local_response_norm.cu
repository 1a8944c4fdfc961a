// Local response normalisation across channels (AlexNet), with s_c = k + weight · Σ x² over the window of
// channel c:
//
//   y_c = x_c · s_c^-β
//   dx_c = dy_c · s_c^-β - slope · x_c · Σ_o dy_o · x_o · s_o^(-β - 1)
//
// where o are the outputs whose window contains c, and slope = 2 · β · weight.
//
// A thread has VECTOR channels of a pixel. It also loads the neighbouring channels that it needs, as whole
// vectors; neighbouring threads load these too, so they are in L1. With WIDE, the window is too wide for
// registers: a thread has one channel and slides its window in f64, because a sliding f32 sum accumulates
// rounding errors.
//
//   BEFORE, AFTER  channels of a window on either side
//   POWER          chooses a fast power for some β
//   INDEX          an integer type that counts all vectors

#define ROUNDED_UP(value) (((value) + VECTOR - 1) / VECTOR * VECTOR)

// scale^-beta.
__device__ __forceinline__ float decay(float scale, float beta) {
#if POWER == 1
    float root = rsqrtf(scale);
    return root * sqrtf(root);
#elif POWER == 2
    return rsqrtf(scale);
#elif POWER == 3
    return 1.0f / scale;
#else
    return powf(scale, -beta);
#endif
}

#if WIDE

// The scales of consecutive channels of a pixel.
struct Scales {
    const T *pixel;
    int channels, at;
    double squares;

    __device__ double square(int channel) const {
        if (channel < 0 || channel >= channels) return 0.0;
        double x = widen(pixel[channel]);
        return x * x;
    }

    __device__ Scales(const T *pixel, int channels, int first)
        : pixel(pixel), channels(channels), at(first), squares(0.0) {
        for (int c = max(first - BEFORE, 0); c <= min(first + AFTER, channels - 1); c++) squares += square(c);
    }

    __device__ float get(float k, float weight) const { return (float)(k + weight * squares); }

    __device__ void advance() {
        squares += square(at + 1 + AFTER) - square(at - BEFORE);
        at++;
    }
};

extern "C" __global__ void lrn_forward(const T *x, T *y, i64 count, int channels, float k, float weight,
                                       float beta, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (i64)gridDim.x * blockDim.x) {
        int c = (int)(at % channels);
        Scales scales(x + (at - c), channels, c);
        narrow(widen(x[at]) * decay(scales.get(k, weight), beta), y[at]);
    }
}

extern "C" __global__ void lrn_backward(const T *x, const T *dy, T *dx, i64 count, int channels, float k,
                                        float weight, float beta, float slope, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (i64)gridDim.x * blockDim.x) {
        int c = (int)(at % channels);
        const T *pixel = x + (at - c), *gradient = dy + (at - c);
        // The outputs whose window contains the channel.
        int first = max(c - AFTER, 0), last = min(c + BEFORE, channels - 1);
        Scales scales(pixel, channels, first);
        float own = 0.0f, others = 0.0f;
        for (int o = first; o <= last; o++) {
            float scale = scales.get(k, weight), part = widen(gradient[o]) * decay(scale, beta);
            if (o == c) own = part;
            others += part * widen(pixel[o]) / scale;
            scales.advance();
        }
        narrow(own - slope * widen(x[at]) * others, dx[at]);
    }
}

#else

// Channels `first - REACH` to `first + VECTOR + REACH` of a pixel; zeros outside of the map.
template <int REACH>
__device__ __forceinline__ void load_around(const T *at, int first, int channels,
                                            float (&to)[2 * REACH + VECTOR]) {
#pragma unroll
    for (int i = 0; i < 2 * REACH + VECTOR; i += VECTOR) {
        int channel = first + i - REACH;
        float v[VECTOR];
        if (channel >= 0 && channel < channels) {
            load(at + i - REACH, v);
        } else {
#pragma unroll
            for (int j = 0; j < VECTOR; j++) v[j] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < VECTOR; j++) to[i + j] = v[j];
    }
}

// The scale of the channel at index `at` of an array of N channels.
template <int N>
__device__ __forceinline__ float scale_of(const float (&x)[N], int at, float k, float weight) {
    float squares = 0.0f;
#pragma unroll
    for (int i = -BEFORE; i <= AFTER; i++) squares += x[at + i] * x[at + i];
    return k + weight * squares;
}

extern "C" __global__ void lrn_forward(const T *x, T *y, i64 count, int channels, float k, float weight,
                                       float beta, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const int REACH = ROUNDED_UP(BEFORE);
    const INDEX vectors = (INDEX)(count / VECTOR), pixel_vectors = (INDEX)(channels / VECTOR);
    for (INDEX item = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; item < vectors;
         item += (INDEX)gridDim.x * blockDim.x) {
        int first = (int)(item % pixel_vectors) * VECTOR;
        i64 at = (i64)item * VECTOR;
        float around[2 * REACH + VECTOR], v[VECTOR];
        load_around<REACH>(x + at, first, channels, around);
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            v[j] = around[REACH + j] * decay(scale_of(around, REACH + j, k, weight), beta);
        store(y + at, v);
    }
}

// Every output whose window contains the channel contributes to its gradient.
extern "C" __global__ void lrn_backward(const T *x, const T *dy, T *dx, i64 count, int channels, float k,
                                        float weight, float beta, float slope, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const int REACH = ROUNDED_UP(BEFORE), FAR = ROUNDED_UP(BEFORE + AFTER);
    const INDEX vectors = (INDEX)(count / VECTOR), pixel_vectors = (INDEX)(channels / VECTOR);
    for (INDEX item = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; item < vectors;
         item += (INDEX)gridDim.x * blockDim.x) {
        int first = (int)(item % pixel_vectors) * VECTOR;
        i64 at = (i64)item * VECTOR;
        float around[2 * FAR + VECTOR], gradient[2 * REACH + VECTOR];
        load_around<FAR>(x + at, first, channels, around);
        load_around<REACH>(dy + at, first, channels, gradient);
        // The contribution of each output to the channels of its window, from the first output whose window
        // contains a channel of the vector.
        float own[VECTOR], passed[VECTOR + BEFORE + AFTER];
#pragma unroll
        for (int o = -AFTER; o < VECTOR + BEFORE; o++) {
            float scale = scale_of(around, FAR + o, k, weight),
                  part = gradient[REACH + o] * decay(scale, beta);
            if (o >= 0 && o < VECTOR) own[o < 0 ? 0 : o] = part;
            // Outside of the map there is no output: a scale of zero would give NaN.
            bool is_output = first + o >= 0 && first + o < channels;
            passed[AFTER + o] = is_output ? part * around[FAR + o] / scale : 0.0f;
        }
        float v[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            float others = 0.0f;
#pragma unroll
            for (int o = 0; o <= BEFORE + AFTER; o++) others += passed[j + o];
            v[j] = own[j] - slope * around[FAR + j] * others;
        }
        store(dx + at, v);
    }
}

#endif

EXPORT(lrn_forward)
EXPORT(lrn_backward)
