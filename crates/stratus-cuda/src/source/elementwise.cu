// Elementwise kernels: conversions, sums, ReLU, smooth activations, changes of layout. Grid-stride loops,
// VECTOR elements at a time.

// The types of the second input and of the output, if they differ from that of the first input.
#ifndef T_OTHER
#define T_OTHER T
#endif
#ifndef T_OUT
#define T_OUT T
#endif

// A grid-stride loop over `count` elements, VECTOR at a time.
#define FOR_EACH(position, count) \
    for (i64 position = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; position < (count); \
         position += (i64)gridDim.x * blockDim.x * VECTOR)

// NaN is propagated, so that a diverged run is noticed.
extern "C" __global__ void relu_forward(const T *x, T_OUT *y, i64 count, float ceiling, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) {
        float v[VECTOR];
        load(x + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = v[i] <= 0.0f ? 0.0f : v[i] >= ceiling ? ceiling : v[i];
        store(y + at, v);
    }
}

extern "C" __global__ void relu_backward(const T *y, const T_OTHER *dy, T_OUT *dx, i64 count, float ceiling,
                                         TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) {
        float y_value[VECTOR], v[VECTOR];
        load(y + at, y_value);
        load(dy + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = y_value[i] > 0.0f && !(y_value[i] >= ceiling) ? v[i] : 0.0f;
        store(dx + at, v);
    }
}

extern "C" __global__ void add(const T *a, const T_OTHER *b, T_OUT *y, i64 count, int relu,
                               TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) {
        float v[VECTOR], w[VECTOR];
        load(a + at, v);
        load(b + at, w);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            v[i] += w[i];
            v[i] = relu && v[i] <= 0.0f ? 0.0f : v[i];
        }
        store(y + at, v);
    }
}

// sum += x
extern "C" __global__ void accumulate(const T *x, T_OUT *sum, i64 count, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) {
        float v[VECTOR], w[VECTOR];
        load(x + at, v);
        load(sum + at, w);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) w[i] += v[i];
        store(sum + at, w);
    }
}

__device__ __forceinline__ void plus(double &sum, double part) { sum += part; }
template <typename E> __device__ __forceinline__ void plus(E &sum, E part) {
    narrow(widen(sum) + widen(part), sum);
}

// The first part initialises the sum.
extern "C" __global__ void add_tiles(const T *part, T *sum, i64 count, int is_first, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) {
        Vector<T, VECTOR> v = *(const Vector<T, VECTOR> *)(part + at);
        if (!is_first) {
            Vector<T, VECTOR> before = *(const Vector<T, VECTOR> *)(sum + at);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                T one = before.at[i];
                plus(one, v.at[i]);
                v.at[i] = one;
            }
        }
        *(Vector<T, VECTOR> *)(sum + at) = v;
    }
}

__device__ __forceinline__ void add_to(Vector<T, VECTOR> &v, const T *level, i64 at) {
    Vector<T, VECTOR> before = *(const Vector<T, VECTOR> *)(level + at);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        T one = before.at[i];
        plus(one, v.at[i]);
        v.at[i] = one;
    }
}

// Adds part `number` of a binary tree to the complete levels below it.
extern "C" __global__ void add_parts(const T *part, T *sum, T *level0, T *level1, T *level2, T *level3,
                                     T *level4, T *level5, i64 count, int number, int levels,
                                     TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    T *level[6] = {level0, level1, level2, level3, level4, level5};
    FOR_EACH(at, count) {
        Vector<T, VECTOR> v = *(const Vector<T, VECTOR> *)(part + at);
        int complete = 0;
#pragma unroll
        for (int i = 0; i < 6; i++)
            if (complete == i && i < levels && (number >> i & 1)) {
                add_to(v, level[i], at);
                complete = i + 1;
            }
        T *to = sum;
        if (complete == levels) {
            if (number >> levels & 1) add_to(v, sum, at);
        } else {
#pragma unroll
            for (int i = 0; i < 6; i++)
                if (complete == i) to = level[i];
        }
        *(Vector<T, VECTOR> *)(to + at) = v;
    }
}

extern "C" __global__ void convert(const T *x, T_OUT *y, i64 count, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) {
        float v[VECTOR];
        load(x + at, v);
        store(y + at, v);
    }
}

extern "C" __global__ void scale(const T *x, T_OUT *y, i64 count, float factor, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) {
        float v[VECTOR];
        load(x + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] *= factor;
        store(y + at, v);
    }
}

// The cumulative distribution function of the standard normal distribution, by erfc to be exact in the tails
// too.
__device__ __forceinline__ float distribution(float x) { return 0.5f * erfcf(-0.70710678f * x); }

__device__ __forceinline__ float gelu(float x) { return x * distribution(x); }
__device__ __forceinline__ float gelu_derivative(float x) {
    float density = 0.39894228f * expf(-0.5f * x * x);
    return distribution(x) + x * density;
}

// Computed from exp(-|x|), which cannot overflow; NaN is propagated.
__device__ __forceinline__ float sigmoid(float x) {
    float e = expf(-fabsf(x)), s = 1.0f / (1.0f + e);
    return x < 0.0f ? e * s : s;
}
__device__ __forceinline__ float sigmoid_derivative(float x) {
    float e = expf(-fabsf(x)), s = 1.0f / (1.0f + e);
    return e * s * s;
}

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
__device__ __forceinline__ float silu_derivative(float x) { return sigmoid(x) + x * sigmoid_derivative(x); }

// Three linear pieces, which meet at -3 and 3; NaN is propagated.
__device__ __forceinline__ float hard_sigmoid(float x) {
    float y = x + 3.0f;
    y = y < 0.0f ? 0.0f : y;
    return (y > 6.0f ? 6.0f : y) / 6.0f;
}
__device__ __forceinline__ float hard_sigmoid_derivative(float x) {
    return x <= -3.0f || x >= 3.0f ? 0.0f : x != x ? x : 1.0f / 6.0f;
}

__device__ __forceinline__ float hard_swish(float x) { return x <= -3.0f ? 0.0f : x * hard_sigmoid(x); }
__device__ __forceinline__ float hard_swish_derivative(float x) {
    return x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : x / 3.0f + 0.5f;
}

// y = f(x)
template <float F(float)> __device__ __forceinline__ void activation(const T *x, T_OUT *y, i64 count) {
    FOR_EACH(at, count) {
        float v[VECTOR];
        load(x + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = F(v[i]);
        store(y + at, v);
    }
}

// dx = dy * f'(x)
template <float DERIVATIVE(float)>
__device__ __forceinline__ void activation_backward(const T *x, const T_OTHER *dy, T_OUT *dx, i64 count) {
    FOR_EACH(at, count) {
        float v[VECTOR], w[VECTOR];
        load(x + at, v);
        load(dy + at, w);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = w[i] * DERIVATIVE(v[i]);
        store(dx + at, v);
    }
}

#define ACTIVATION(name)                                                                                     \
    extern "C" __global__ void name##_forward(const T *x, T_OUT *y, i64 count, TIMESTAMP_PARAMS) {           \
        RECORD_TIMESTAMPS;                                                                                   \
        activation<name>(x, y, count);                                                                       \
    }                                                                                                        \
    extern "C" __global__ void name##_backward(const T *x, const T_OTHER *dy, T_OUT *dx, i64 count,          \
                                               TIMESTAMP_PARAMS) {                                           \
        RECORD_TIMESTAMPS;                                                                                   \
        activation_backward<name##_derivative>(x, dy, dx, count);                                            \
    }

ACTIVATION(gelu)
ACTIVATION(hard_sigmoid)
ACTIVATION(hard_swish)
ACTIVATION(sigmoid)
ACTIVATION(silu)

// A change of layout, and of type, element by element: extents and strides of four dimensions in the order of
// `y`, outermost first.
extern "C" __global__ void reorder(const T *x, T_OUT *y, i64 count, i64 extent1, i64 extent2, i64 extent3,
                                   i64 x0, i64 x1, i64 x2, i64 x3, i64 y0, i64 y1, i64 y2, i64 y3,
                                   TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (i64)gridDim.x * blockDim.x) {
        i64 i3 = at % extent3, rest = at / extent3;
        i64 i2 = rest % extent2;
        rest /= extent2;
        i64 i1 = rest % extent1, i0 = rest / extent1;
        float v[1];
        load(x + i0 * x0 + i1 * x1 + i2 * x2 + i3 * x3, v);
        store(y + i0 * y0 + i1 * y1 + i2 * y2 + i3 * y3, v);
    }
}

EXPORT(relu_forward)
EXPORT(relu_backward)
EXPORT(add)
EXPORT(accumulate)
EXPORT(add_parts)
EXPORT(add_tiles)
EXPORT(convert)
EXPORT(scale)
EXPORT(gelu_forward)
EXPORT(gelu_backward)
EXPORT(hard_sigmoid_forward)
EXPORT(hard_sigmoid_backward)
EXPORT(hard_swish_forward)
EXPORT(hard_swish_backward)
EXPORT(sigmoid_forward)
EXPORT(sigmoid_backward)
EXPORT(silu_forward)
EXPORT(silu_backward)
EXPORT(reorder)
