// The step of gradient descent: parameter and velocity, and where it is wanted the parameter's copy in the compute precision.
//
// Threads share out the elements, VECTOR at a time. What the rate is, the iteration's numbers say.

#ifndef T_OUT
#define T_OUT T
#endif

extern "C" __global__ void sgd_update(const T *gradient, const double *hyper, T *parameter, T *velocity, T_OUT *copy, i64 count,
                                      double rate, float momentum, float decay, int nesterov) {
    float learning_rate = (float)(rate * hyper[0]);
    i64 step = (i64)gridDim.x * blockDim.x * VECTOR;
    for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; at < count; at += step) {
        float g[VECTOR], p[VECTOR], v[VECTOR];
        load(gradient + at, g);
        load(parameter + at, p);
        load(velocity + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float decayed = g[i] + decay * p[i];
            v[i] = momentum * v[i] + decayed;
            p[i] -= learning_rate * (nesterov ? decayed + momentum * v[i] : v[i]);
        }
        store(velocity + at, v);
        store(parameter + at, p);
        if (copy) store(copy + at, p);
    }
}

EXPORT(sgd_update)
