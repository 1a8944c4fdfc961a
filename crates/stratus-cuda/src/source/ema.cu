// The exponential moving average of weights: a += (1 - min(decay, (1 + t) / (10 + t))) · (x - a) in the
// iteration t. Grid-stride loop over the elements, VECTOR at a time.

extern "C" __global__ void ema_update(const T *value, const double *scalars, T *average, i64 count,
                                      double decay, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR,
        step = (i64)gridDim.x * blockDim.x * VECTOR;
    if (at >= count) return;
    // As in the optimiser's update, the iteration is loaded together with the first elements.
    float x[VECTOR], a[VECTOR];
    load(value + at, x);
    load(average + at, a);
    const double iteration = scalars[1];
    const float gain = (float)(1.0 - min(decay, (1.0 + iteration) / (10.0 + iteration)));
    while (true) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) a[i] += gain * (x[i] - a[i]);
        store(average + at, a);
        at += step;
        if (at >= count) return;
        load(value + at, x);
        load(average + at, a);
    }
}

EXPORT(ema_update)
