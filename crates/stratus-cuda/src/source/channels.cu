// Channel shuffle and slices of channels-last maps: rows of channels, one per pixel.

// y: the `taken` channels of x starting with `first`, interleaved over groups of `each` channels.
extern "C" __global__ void select_channels(const T *x, T *y, i64 items, int channels, int first, int taken,
                                           int groups, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int each = taken / groups;
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += step) {
        i64 row = item / taken;
        int channel = (int)(item % taken);
        y[item] = x[row * channels + first + channel % groups * each + channel / groups];
    }
}

// The inverse: dx has `channels` channels, of which those that were not taken are zero.
extern "C" __global__ void place_channels(const T *dy, T *dx, i64 items, int channels, int first, int taken,
                                          int groups, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    int each = taken / groups;
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += step) {
        i64 row = item / channels;
        int channel = (int)(item % channels) - first;
        if (channel < 0 || channel >= taken) {
            narrow(0.0f, dx[item]);
        } else {
            dx[item] = dy[row * taken + channel % each * groups + channel / each];
        }
    }
}

EXPORT(select_channels)
EXPORT(place_channels)
