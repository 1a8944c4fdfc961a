// Elementwise kernels: conversions, sums, ReLU, changes of layout.

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
EXPORT(reorder)
