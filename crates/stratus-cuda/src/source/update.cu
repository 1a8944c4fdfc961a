// Stochastic gradient descent with momentum: g = dw + λp; v = μv + g; p -= rate · (nesterov ? g + μv : v). It
// also writes the parameter's copy in the compute precision, if there is one.
//
// Grid-stride loop over the elements, VECTOR at a time. SCALED gradients are divided by the loss scale; if
// one of them overflowed, nothing is updated, and the copy is that of the unchanged parameter.

#ifndef T_OUT
#define T_OUT T
#endif

extern "C" __global__ void sgd_update(const T *gradient, const double *scalars, T *parameter, T *velocity,
                                      T_OUT *copy, i64 count, double rate, float momentum, float decay,
                                      int nesterov, const float *loss_scale, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR,
        step = (i64)gridDim.x * blockDim.x * VECTOR;
    if (at >= count) return;
    // Most parameters are so small that the kernel takes the time of one load: the rate is loaded together
    // with the first elements, not before.
    float g[VECTOR], p[VECTOR], v[VECTOR];
    load(gradient + at, g);
    load(parameter + at, p);
    load(velocity + at, v);
    const float learning_rate = (float)(rate * scalars[0]);
    const LossScale scaling = read_loss_scale(loss_scale);
    while (true) {
        if (!scaling.overflow) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                float decayed = (SCALED ? g[i] * scaling.inverse : g[i]) + decay * p[i];
                v[i] = momentum * v[i] + decayed;
                p[i] -= learning_rate * (nesterov ? decayed + momentum * v[i] : v[i]);
            }
            store(velocity + at, v);
            store(parameter + at, p);
        }
        if (copy) store(copy + at, p);
        at += step;
        if (at >= count) return;
        load(gradient + at, g);
        load(parameter + at, p);
        load(velocity + at, v);
    }
}

EXPORT(sgd_update)
