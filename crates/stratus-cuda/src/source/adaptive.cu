// Updates of the optimisers with per-weight rates; RULE chooses one. With the gradient g (divided by the loss
// scale if SCALED) and decay λ:
//
//   Adam      g += λp; a = β₀a + (1-β₀)g; b = β₁b + (1-β₁)g²; p -= rate · a / (√(b · correction) + ε)
//   AdamW     as Adam, with p -= lr · λp instead of g += λp
//   Adagrad   g += λp; a += g²; p -= rate · g / (√a + ε)
//   Adadelta  g += λp; a = ρa + (1-ρ)g²; δ = √(b + ε) / √(a + ε) · g; b = ρb + (1-ρ)δ²; p -= rate · δ
//
// Grid-stride loop over the elements, VECTOR at a time. One thread per block computes the scalars in f64. If
// a scaled gradient overflowed, nothing is updated, and the copy is that of the unchanged parameter.

#ifndef T_OUT
#define T_OUT T
#endif

#define ADAM 0
#define ADAM_DECOUPLED 1
#define ADAGRAD 2
#define ADADELTA 3

// `keep0` and `keep1` are the decays of the states. Adagrad has no second state.
extern "C" __global__ void adaptive_update(const T *gradient, const double *scalars, T *parameter, T *state0,
                                           T *state1, T_OUT *copy, i64 count, double factor, double decay,
                                           double keep0, double keep1, double epsilon,
                                           const float *loss_scale, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    constexpr bool is_adam = RULE == ADAM || RULE == ADAM_DECOUPLED;
    __shared__ float shared[3];
    const LossScale scaling = read_loss_scale(loss_scale);
    if (threadIdx.x == 0) {
        // Skipped iterations are not counted as steps.
        double learning_rate = factor * scalars[0],
               turn = (SCALED ? scalars[1] - scaling.skipped : scalars[1]) + 1.0;
        // A power in f64 costs as much as many elements, so one thread of the block computes it.
        shared[0] = (float)(is_adam ? learning_rate / (1.0 - pow(keep0, turn)) : learning_rate);
        shared[1] = (float)(is_adam ? 1.0 / (1.0 - pow(keep1, turn)) : 1.0);
        shared[2] = (float)(RULE == ADAM_DECOUPLED ? learning_rate * decay : decay);
    }
    __syncthreads();
    float rate = shared[0], correction = shared[1], decay_rate = shared[2], eps = (float)epsilon;
    float old0 = (float)keep0, new0 = (float)(1.0 - keep0), old1 = (float)keep1, new1 = (float)(1.0 - keep1);
    i64 step = (i64)gridDim.x * blockDim.x * VECTOR;
    for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; at < count; at += step) {
        float g[VECTOR], p[VECTOR], a[VECTOR], b[VECTOR];
        load(gradient + at, g);
        load(parameter + at, p);
        load(state0 + at, a);
        if (RULE != ADAGRAD) load(state1 + at, b);
        if (!scaling.overflow) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                if (SCALED) g[i] *= scaling.inverse;
                if (RULE == ADAM_DECOUPLED) {
                    p[i] -= decay_rate * p[i];
                } else {
                    g[i] += decay_rate * p[i];
                }
                if (is_adam) {
                    a[i] = old0 * a[i] + new0 * g[i];
                    b[i] = old1 * b[i] + new1 * g[i] * g[i];
                    p[i] -= rate * a[i] / (sqrtf(b[i] * correction) + eps);
                } else if (RULE == ADAGRAD) {
                    a[i] += g[i] * g[i];
                    p[i] -= rate * g[i] / (sqrtf(a[i]) + eps);
                } else {
                    a[i] = old0 * a[i] + new0 * g[i] * g[i];
                    float delta = sqrtf(b[i] + eps) / sqrtf(a[i] + eps) * g[i];
                    b[i] = old1 * b[i] + new1 * delta * delta;
                    p[i] -= rate * delta;
                }
            }
            store(state0 + at, a);
            if (RULE != ADAGRAD) store(state1 + at, b);
            store(parameter + at, p);
        }
        if (copy) store(copy + at, p);
    }
}

EXPORT(adaptive_update)
