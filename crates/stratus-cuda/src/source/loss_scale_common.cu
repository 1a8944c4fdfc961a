// The loss scale, four floats [exponent, iterations, overflow, skipped]: the scale is 2^(FIRST_EXPONENT +
// exponent); `iterations` since it changed; whether a gradient of this iteration is not finite; iterations
// without an update. Scale and inverse are normal numbers, so that multiplying by them is exact.

// The positions of the four numbers.
const int EXPONENT = 0, ITERATIONS = 1, OVERFLOW = 2, SKIPPED = 3;

#ifndef SCALED
#define SCALED 0
#endif

struct LossScale {
    float scale, inverse;
    bool overflow;
    float skipped;
};

// The address is null unless SCALED.
__device__ __forceinline__ LossScale read_loss_scale(const float *from) {
#if SCALED
    float numbers[4];
    load(from, numbers);
    const int exponent = FIRST_EXPONENT + (int)numbers[EXPONENT];
    return {__uint_as_float((u32)(127 + exponent) << 23), __uint_as_float((u32)(127 - exponent) << 23),
            numbers[OVERFLOW] != 0.0f, numbers[SKIPPED]};
#else
    return {1.0f, 1.0f, false, 0.0f};
#endif
}

