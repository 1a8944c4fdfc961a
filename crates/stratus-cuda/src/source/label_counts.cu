// Counts the labels of a batch by class: a block per class. A label has `stride` numbers, starting with its
// class.
extern "C" __global__ void label_counts(const int *labels, double *counts, i64 samples, int stride,
                                        TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int count = 0;
    for (i64 n = threadIdx.x; n < samples; n += blockDim.x) count += labels[n * stride] == (int)blockIdx.x;
    count = block_sum(count);
    if (threadIdx.x == 0) counts[blockIdx.x] = (double)count;
}

// Counts the present targets [samples, columns], those that are not NaN: a block per column.
extern "C" __global__ void target_counts(const float *targets, double *counts, i64 samples, int columns,
                                         TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int count = 0;
    for (i64 n = threadIdx.x; n < samples; n += blockDim.x) {
        const float target = targets[n * columns + blockIdx.x];
        count += target == target;
    }
    count = block_sum(count);
    if (threadIdx.x == 0) counts[blockIdx.x] = (double)count;
}

EXPORT(label_counts)
EXPORT(target_counts)
