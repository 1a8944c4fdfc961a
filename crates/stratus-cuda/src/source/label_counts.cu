// The labels of a batch, counted by class: a block per class. `stride` numbers make a label, the first of
// which is its class.
extern "C" __global__ void label_counts(const int *labels, double *counts, i64 samples, int stride, TIMED) {
    NOTE_TIMES;
    int count = 0;
    for (i64 n = threadIdx.x; n < samples; n += blockDim.x) count += labels[n * stride] == (int)blockIdx.x;
    count = block_sum(count);
    if (threadIdx.x == 0) counts[blockIdx.x] = (double)count;
}

EXPORT(label_counts)
