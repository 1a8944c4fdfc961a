// Shared by the depthwise convolutions: x [N, H, W, C], a filter of KERNEL_H x KERNEL_W taps per channel, w
// [C, KH, KW].

#define TAPS (KERNEL_H * KERNEL_W)

// VECTOR channels of a pixel, as in memory.
#ifdef __CUDA_ARCH__
#define WORDS (sizeof(T) * VECTOR < 4 ? 1 : sizeof(T) * VECTOR / 4)
struct Pixel {
    u32 words[WORDS];
};

__device__ __forceinline__ float channel_of(const Pixel &pixel, int i) {
    if constexpr (sizeof(T) == 4)
        return __uint_as_float(pixel.words[i]);
    else
        return i % 2 ? widen_upper<T>(pixel.words[i / 2]) : widen_lower<T>(pixel.words[i / 2]);
}

// Predicated loads, because the compiler branches around each load written in CUDA C. `nc`: the kernel does
// not write the data read here.
__device__ __forceinline__ void read_words(u32 (&to)[1], const void *from, u32 valid) {
    if constexpr (sizeof(T) * VECTOR == 2)
        asm("{.reg .pred valid; .reg .u16 half; setp.ne.u32 valid, %1, 0; mov.u16 half, 0; @valid "
            "ld.global.nc.u16 half, [%2]; "
            "cvt.u32.u16 %0, half;}"
            : "=r"(to[0])
            : "r"(valid), "l"(__cvta_generic_to_global(from)));
    else
        asm("{.reg .pred valid; setp.ne.u32 valid, %1, 0; mov.b32 %0, 0; @valid ld.global.nc.b32 %0, [%2];}"
            : "=&r"(to[0])
            : "r"(valid), "l"(__cvta_generic_to_global(from)));
}
__device__ __forceinline__ void read_words(u32 (&to)[2], const void *from, u32 valid) {
    asm("{.reg .pred valid; setp.ne.u32 valid, %2, 0; mov.b32 %0, 0; mov.b32 %1, 0; @valid "
        "ld.global.nc.v2.b32 {%0, %1}, [%3];}"
        : "=&r"(to[0]), "=&r"(to[1])
        : "r"(valid), "l"(__cvta_generic_to_global(from)));
}
__device__ __forceinline__ void read_words(u32 (&to)[4], const void *from, u32 valid) {
    asm("{.reg .pred valid; setp.ne.u32 valid, %4, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 "
        "%3, 0; "
        "@valid ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%5];}"
        : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
        : "r"(valid), "l"(__cvta_generic_to_global(from)));
}
__device__ __forceinline__ void read_if(Pixel &pixel, const T *from, u32 valid) {
    read_words(pixel.words, from, valid);
}
#else
typedef Vector<T, VECTOR> Pixel;

inline float channel_of(const Pixel &pixel, int i) { return widen(pixel.at[i]); }
inline void read_if(Pixel &pixel, const T *from, u32 valid) {
    pixel = valid ? *(const Pixel *)from : Pixel{};
}
#endif

// The pixels, of COUNT starting with `column`, inside a row of `width`: a bit each, at most 32.
template <int COUNT> __device__ __forceinline__ u32 columns_inside(int column, int width) {
    int first = min(max(-column, 0), COUNT), end = min(max(width - column, 0), COUNT);
    return (u32)(((u64)1 << end) - 1) & ~(u32)(((u64)1 << first) - 1);
}

// Pixels of a row; those outside of the map are zero. `at` is the first one's offset in its row and `step`
// the offset between two, in bytes. An image has fewer than 2^31 bytes; offsets outside of it may wrap
// around. Only the pixels k with `uses(k)` are read.
template <int COUNT, typename Uses>
__device__ __forceinline__ void read_row(Pixel (&pixels)[COUNT], const T *map, int row, int height,
                                         u32 row_bytes, u32 at, u32 step, u32 inside, Uses uses) {
    const u32 valid = (u32)row < (u32)height ? inside : 0;
    at += (u32)row * row_bytes;
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        if (uses(k)) read_if(pixels[k], (const T *)((const char *)map + (at + k * step)), valid & 1u << k);
    }
}
