// Activations: y = f(x), dx = dy f'(x). The kernels are generated in source/mod.rs from the table of
// activations.

// y = f(x)
template <float F(float, float, float)>
__device__ __forceinline__ void activation(const T *x, T_OUT *y, i64 count, float a, float b) {
    FOR_EACH(at, count) {
        float v[VECTOR];
        load(x + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = F(v[i], a, b);
        store(y + at, v);
    }
}

// dx = dy * f'(x)
template <float DERIVATIVE(float, float, float)>
__device__ __forceinline__ void activation_backward(const T *x, const T_OTHER *dy, T_OUT *dx, i64 count,
                                                    float a, float b) {
    FOR_EACH(at, count) {
        float v[VECTOR], w[VECTOR];
        load(x + at, v);
        load(dy + at, w);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = w[i] * DERIVATIVE(v[i], a, b);
        store(dx + at, v);
    }
}

// Both kernels of an activation.
#define ACTIVATION(name)                                                                                     \
    extern "C" __global__ void name##_forward(const T *x, T_OUT *y, i64 count, float a, float b,             \
                                              TIMESTAMP_PARAMS) {                                            \
        RECORD_TIMESTAMPS;                                                                                   \
        activation<name>(x, y, count, a, b);                                                                 \
    }                                                                                                        \
    extern "C" __global__ void name##_backward(const T *x, const T_OTHER *dy, T_OUT *dx, i64 count, float a, \
                                               float b, TIMESTAMP_PARAMS) {                                  \
        RECORD_TIMESTAMPS;                                                                                   \
        activation_backward<name##_derivative>(x, dy, dx, count, a, b);                                      \
    }

