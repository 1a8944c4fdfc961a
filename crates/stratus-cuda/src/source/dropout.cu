// Dropout: y = x · scale if a random word is at least `threshold`, else 0.
//
// The word is a function of seed, iteration, layer and the element's row-major index in the whole batch, so
// that masks equal those of the CPU. Philox computes blocks of four words, for four consecutive elements. A
// thread computes whole blocks: for channels-last maps, for four pixels of its channels, so that neighbouring
// threads read neighbouring channels. Spatial dropout draws once per image and channel, indexed over the
// channels of the whole batch.

#ifndef T_OUT
#define T_OUT T
#endif

struct Words {
    u32 at[4];
};

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011).
__device__ __forceinline__ Words philox(Words counter, u32 key0, u32 key1) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u64 first = (u64)0xD2511F53u * counter.at[0], second = (u64)0xCD9E8D57u * counter.at[2];
        counter = {{(u32)(second >> 32) ^ counter.at[1] ^ key0, (u32)second,
                    (u32)(first >> 32) ^ counter.at[3] ^ key1, (u32)first}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// The random words of a layer in an iteration.
struct Stream {
    u32 key0, key1, layer, low, high;

    __device__ __forceinline__ Stream(const double *scalars, u32 layer) : layer(layer) {
        const u32 dropout = 4;
        u64 iteration = (u64)scalars[1], seed = (u64)scalars[2] | (u64)scalars[3] << 32;
        low = (u32)iteration;
        high = (u32)(iteration >> 32);
        Words mixed = philox({{(u32)seed, (u32)(seed >> 32), dropout, layer}}, 0x53545241u, 0x54555300u);
        key0 = mixed.at[0] ^ mixed.at[2];
        key1 = mixed.at[1] ^ mixed.at[3];
    }

    __device__ __forceinline__ Words block(i64 position) const {
        return philox({{(u32)position, layer, low, high}}, key0, key1);
    }
};

// Elements in row-major order; `first` elements of the batch precede them.
extern "C" __global__ void dropout_flat(const T *x, const double *scalars, T_OUT *y, i64 count, i64 first,
                                        i64 layer, i64 threshold, float scale, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    Stream stream(scalars, (u32)layer);
    i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x, threads = (i64)gridDim.x * blockDim.x;
#if VECTOR >= 4
    for (i64 at = thread * VECTOR; at < count; at += threads * VECTOR) {
        float v[VECTOR];
        load(x + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i += 4) {
            Words words = stream.block((first + at + i) / 4);
#pragma unroll
            for (int j = 0; j < 4; j++) v[i + j] = words.at[j] >= (u32)threshold ? v[i + j] * scale : 0.0f;
        }
        store(y + at, v);
    }
#else
    // The first and the last block may extend beyond the elements.
    for (i64 block = first / 4 + thread; block * 4 < first + count; block += threads) {
        Words words = stream.block(block);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            i64 at = block * 4 + j - first;
            if (at >= 0 && at < count)
                narrow(words.at[j] >= (u32)threshold ? widen(x[at]) * scale : 0.0f, y[at]);
        }
    }
#endif
}

// Channels-last maps of `pixels` pixels. An item is VECTOR channels of four pixels, a block of random words
// per channel; an image has `fours` of these. Only if VECTOR is 1 may a channel start within a block.
extern "C" __global__ void dropout_maps(const T *x, const double *scalars, T_OUT *y, int items, i64 first,
                                        i64 layer, i64 threshold, float scale, int groups, int fours,
                                        int pixels, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    Stream stream(scalars, (u32)layer);
    i64 channels = (i64)groups * VECTOR;
    u32 step = gridDim.x * blockDim.x;
    for (u32 item = blockIdx.x * blockDim.x + threadIdx.x; item < (u32)items; item += step) {
        u32 rest = item / (u32)groups, four = rest % (u32)fours;
        i64 n = rest / (u32)fours, channel = (i64)(item % (u32)groups) * VECTOR;
        // The index of the channel's first element in the batch.
        i64 plane = first + (n * channels + channel) * pixels;
        Words words[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) words[i] = stream.block((plane + (i64)i * pixels) / 4 + four);
        int begin = (int)four * 4 - (VECTOR > 1 ? 0 : (int)(plane % 4));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int pixel = begin + j;
            if (VECTOR == 1 && (pixel < 0 || pixel >= pixels)) continue;
            i64 at = (n * pixels + pixel) * channels + channel;
            float v[VECTOR];
            load(x + at, v);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) v[i] = words[i].at[j] >= (u32)threshold ? v[i] * scale : 0.0f;
            store(y + at, v);
        }
    }
}

#ifdef PIXELS
// A factor per image and channel: channels-last maps of `pixels` pixels; `first` channels of the batch
// precede them. An item is VECTOR channels of up to PIXELS pixels; an image has `runs` of these. WHOLE: a
// factor per image, `first` of which precede. Neighbouring threads have neighbouring channels.
extern "C" __global__ void dropout_channels(const T *x, const double *scalars, T *y, i64 items, i64 first,
                                            i64 layer, i64 threshold, float scale, int groups, int runs,
                                            int pixels, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    Stream stream(scalars, (u32)layer);
    i64 channels = (i64)groups * VECTOR, step = (i64)gridDim.x * blockDim.x;
    for (i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x; item < items; item += step) {
        i64 rest = item / groups, n = rest / runs, channel = item % groups * VECTOR;
        int begin = (int)(rest % runs) * PIXELS, end = begin + PIXELS < pixels ? begin + PIXELS : pixels;
        i64 number = first + n * channels + channel;
        bool keeps[VECTOR];
#if WHOLE
        number = first + n;
        Words words = stream.block(number / 4);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) keeps[i] = words.at[number % 4] >= (u32)threshold;
#elif VECTOR >= 4
        // Channels are a multiple of VECTOR: no block of random words is shared.
#pragma unroll
        for (int i = 0; i < VECTOR; i += 4) {
            Words words = stream.block((number + i) / 4);
#pragma unroll
            for (int j = 0; j < 4; j++) keeps[i + j] = words.at[j] >= (u32)threshold;
        }
#else
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            Words words = stream.block((number + i) / 4);
            keeps[i] = words.at[(number + i) % 4] >= (u32)threshold;
        }
#endif
        for (int pixel = begin; pixel < end; pixel++) {
            i64 at = (n * pixels + pixel) * channels + channel;
            float v[VECTOR];
            load(x + at, v);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) v[i] = keeps[i] ? v[i] * scale : 0.0f;
            store(y + at, v);
        }
    }
}

EXPORT(dropout_channels)
#endif

EXPORT(dropout_flat)
EXPORT(dropout_maps)
