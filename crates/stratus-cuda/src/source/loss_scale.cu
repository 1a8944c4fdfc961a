// The search for gradients that are not finite, and the loss scale of the next iteration.

// Vectors that a thread loads at once.
const int AT_A_TIME = 4;

// Sets the overflow flag where an element is not finite. Threads that find one all write the same.
extern "C" __global__ void find_overflow(const T *gradient, float *loss_scale, i64 count, TIMED) {
    NOTE_TIMES;
    const i64 step = (i64)gridDim.x * blockDim.x * VECTOR;
    bool found = false;
    for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; at < count; at += AT_A_TIME * step) {
        float v[AT_A_TIME][VECTOR];
        // Beyond the end, the first vector is loaded again: unconditional loads are issued early.
#pragma unroll
        for (int j = 0; j < AT_A_TIME; j++)
            load(gradient + (at + j * step < count ? at + j * step : at), v[j]);
#pragma unroll
        for (int j = 0; j < AT_A_TIME; j++)
#pragma unroll
            for (int i = 0; i < VECTOR; i++) found |= !(fabsf(v[j][i]) < __uint_as_float(0x7f800000u));
    }
    if (found) loss_scale[OVERFLOW] = 1.0f;
}

// One thread. Halves the scale on overflow, doubles it after `grows_after` iterations without; the exponent
// stays within ±`most`.
extern "C" __global__ void adjust_loss_scale(float *loss_scale, double grows_after, double most, TIMED) {
    NOTE_TIMES;
    float numbers[4];
    load(loss_scale, numbers);
    const double exponent = numbers[EXPONENT], iterations = numbers[ITERATIONS] + 1.0,
                 skipped = numbers[SKIPPED];
    const bool overflow = numbers[OVERFLOW] != 0.0f, grows = !overflow && iterations >= grows_after;
    const double next = overflow ? max(exponent - 1.0, -most) : grows ? min(exponent + 1.0, most) : exponent;
    numbers[EXPONENT] = (float)next;
    numbers[ITERATIONS] = overflow || grows ? 0.0f : (float)iterations;
    numbers[OVERFLOW] = 0.0f;
    numbers[SKIPPED] = overflow ? (float)(skipped + 1.0) : (float)skipped;
    store(loss_scale, numbers);
}

EXPORT(find_overflow)
EXPORT(adjust_loss_scale)
