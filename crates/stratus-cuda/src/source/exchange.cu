// The sums of several GPUs: values that another one sent are added to, rounded, or copied.

#define FOR_EACH(position, count)                                                               \
    for (i64 position = (i64)blockIdx.x * blockDim.x + threadIdx.x; position < (count);         \
         position += (i64)gridDim.x * blockDim.x)

// sums += received, as on the CPU: one addition, rounded once.
extern "C" __global__ void add_received(T *sums, const T *received, i64 count, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) sums[at] = sums[at] + received[at];
}

// The same with values that travelled as bf16.
extern "C" __global__ void add_rounded(T *sums, const bf16 *received, i64 count, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) sums[at] = sums[at] + (T)widen(received[at]);
}

extern "C" __global__ void round_values(const T *values, bf16 *rounded, i64 count, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) narrow((float)values[at], rounded[at]);
}

extern "C" __global__ void widen_values(const bf16 *rounded, T *values, i64 count, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    FOR_EACH(at, count) values[at] = (T)widen(rounded[at]);
}

EXPORT(add_received)
EXPORT(add_rounded)
EXPORT(round_values)
EXPORT(widen_values)
