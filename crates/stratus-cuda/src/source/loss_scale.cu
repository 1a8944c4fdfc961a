// The search for gradients that are not finite, and the loss scale of the next iteration.

// Vectors that a thread loads at once.
const int LOADS_IN_FLIGHT = 4;

// Sets the overflow flag if an element is not finite. All threads that find one write the same value.
extern "C" __global__ void find_overflow(const T *gradient, float *loss_scale, i64 count, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const i64 step = (i64)gridDim.x * blockDim.x * VECTOR;
    bool found = false;
    for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; at < count;
         at += LOADS_IN_FLIGHT * step) {
        float v[LOADS_IN_FLIGHT][VECTOR];
        // Beyond the end, the first vector is loaded again: unconditional loads are issued early.
#pragma unroll
        for (int j = 0; j < LOADS_IN_FLIGHT; j++)
            load(gradient + (at + j * step < count ? at + j * step : at), v[j]);
#pragma unroll
        for (int j = 0; j < LOADS_IN_FLIGHT; j++)
#pragma unroll
            for (int i = 0; i < VECTOR; i++) found |= !(fabsf(v[j][i]) < __uint_as_float(0x7f800000u));
    }
    if (found) loss_scale[OVERFLOW] = 1.0f;
}

// One thread. Halves the scale on overflow, doubles it after `growth_interval` iterations without; the
// exponent stays within ±`max_exponent`.
extern "C" __global__ void adjust_loss_scale(float *loss_scale, double growth_interval, double max_exponent,
                                             TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    float numbers[4];
    load(loss_scale, numbers);
    const double exponent = numbers[EXPONENT], iterations = numbers[ITERATIONS] + 1.0,
                 skipped = numbers[SKIPPED];
    const bool overflow = numbers[OVERFLOW] != 0.0f, grows = !overflow && iterations >= growth_interval;
    const double next = overflow ? max(exponent - 1.0, -max_exponent)
                        : grows  ? min(exponent + 1.0, max_exponent)
                                 : exponent;
    numbers[EXPONENT] = (float)next;
    numbers[ITERATIONS] = overflow || grows ? 0.0f : (float)iterations;
    numbers[OVERFLOW] = 0.0f;
    numbers[SKIPPED] = overflow ? (float)(skipped + 1.0) : (float)skipped;
    store(loss_scale, numbers);
}

EXPORT(find_overflow)
EXPORT(adjust_loss_scale)
