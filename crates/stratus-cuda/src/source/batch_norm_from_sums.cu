// Batch statistics from the sums over all parts of a batch; each thread has a channel.
extern "C" __global__ void batch_norm_from_sums(int channels, double count, double epsilon, double momentum,
                                                const double *sums, float *running_mean, float *running_var,
                                                float *mean, float *inverse_deviation, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    double average = sums[channel] / count, squares = sums[channels + channel] - sums[channel] * average;
    // Rounding may give a negative number. NaN is propagated.
    if (squares < 0.0) squares = 0.0;
    double variance = squares / count, unbiased = count > 1.0 ? squares / (count - 1.0) : variance;
    mean[channel] = (float)average;
    inverse_deviation[channel] = (float)(1.0 / sqrt(variance + epsilon));
    running_mean[channel] = (float)(running_mean[channel] + momentum * (average - running_mean[channel]));
    running_var[channel] = (float)(running_var[channel] + momentum * (unbiased - running_var[channel]));
}

EXPORT(batch_norm_from_sums)
