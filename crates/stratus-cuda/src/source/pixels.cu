// Normalisation of images [N, H, W, CHANNELS] from bytes, with CHANNELS from 1 to 4: y = x · scale[c] +
// offset[c].

// Loads N bytes at once: one, or whole words.
template <int N> __device__ __forceinline__ void load_bytes(const u8 *from, float (&to)[N]) {
    if constexpr (N == 1) {
        to[0] = __uint2float_rn(*from);
    } else {
        Vector<u32, N / 4> words = *(const Vector<u32, N / 4> *)from;
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = __uint2float_rn(words.at[i / 4] >> 8 * (i % 4) & 0xffu);
    }
}

// Product and sum are both rounded, never fused: the same bits as on the CPU.
extern "C" __global__ void normalise_pixels(const u8 *images, T *y, i64 count, float scale0, float offset0,
                                            float scale1, float offset1, float scale2, float offset2,
                                            float scale3, float offset3, TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const float scales[4] = {scale0, scale1, scale2, scale3},
                offsets[4] = {offset0, offset1, offset2, offset3};
    const i64 step = (i64)gridDim.x * blockDim.x * VECTOR;
    for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; at < count; at += step) {
        // Scales and offsets, starting with the first element's channel. Chosen by comparisons, because a
        // dynamic index would put the array into local memory.
        const u32 first = VECTOR % CHANNELS == 0 ? 0 : (u32)(at % CHANNELS);
        float scale[CHANNELS], offset[CHANNELS];
#pragma unroll
        for (u32 i = 0; i < CHANNELS; i++) {
            scale[i] = scales[i];
            offset[i] = offsets[i];
#pragma unroll
            for (u32 turn = 1; turn < CHANNELS; turn++) {
                scale[i] = first == turn ? scales[(i + turn) % CHANNELS] : scale[i];
                offset[i] = first == turn ? offsets[(i + turn) % CHANNELS] : offset[i];
            }
        }
        float v[VECTOR];
        load_bytes(images + at, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            v[i] = __fadd_rn(__fmul_rn(v[i], scale[i % CHANNELS]), offset[i % CHANNELS]);
        store(y + at, v);
    }
}

EXPORT(normalise_pixels)
