// The step of gradient descent: parameter and velocity, and where it is wanted the parameter's copy in the compute precision.
//
// Threads share out the elements, VECTOR at a time. What the rate is, the iteration's numbers say. Where gradients are SCALED they are divided by the
// loss's scale; where one of them overflowed, nothing is updated, and the copy is that of the parameter as it is.

#ifndef T_OUT
#define T_OUT T
#endif

extern "C" __global__ void sgd_update(const T *gradient, const double *hyper, T *parameter, T *velocity, T_OUT *copy, i64 count,
                                      double rate, float momentum, float decay, int nesterov, const float *loss_scale) {
    i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR, step = (i64)gridDim.x * blockDim.x * VECTOR;
    if (at >= count) return;
    // Most parameters are so small that the time is that of one load: the rate is asked for with the first elements, and not before.
    float g[VECTOR], p[VECTOR], v[VECTOR];
    load(gradient + at, g);
    load(parameter + at, p);
    load(velocity + at, v);
    const float learning_rate = (float)(rate * hyper[0]);
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
