// Types, conversions, vectors and sums over a block: the prefix of every source.
//
// NVRTC compiles without headers. The emulation defines EMULATED and provides the language extensions of CUDA
// C in emulate.h.
//
// Conventions
//   kernels        `extern "C" __global__`, repeated as EXPORT(name) at the end of the file; their last
//                  parameters are TIMESTAMP_PARAMS, their first statement RECORD_TIMESTAMPS (after the return
//                  of idle threads, if that saves registers: a block's first thread is never idle)
//   shared memory  of a size known at the launch: DYNAMIC_SHARED(type, name)
//   T, VECTOR      the type of elements, and how many a thread loads at once (16 bytes, or 1 element)
//   feature maps   channels last: [N, H, W, C] in memory; filters [K, KH, KW, C]
//   arithmetic     in f32, with sums over many elements in f64; results are rounded to the type of the map

#ifndef EMULATED
#define EXPORT(name)
#define DYNAMIC_SHARED(type, name)                                \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    type *name = (type *)name##_bytes
#endif

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

// Nanoseconds of the device's clock, which all multiprocessors share. The emulation counts.
__device__ __forceinline__ u64 device_time() {
#ifdef EMULATED
    return emulated::tick();
#else
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
#endif
}

// If the pointers are set: block 0 stores its start, and the first thread of every block takes `atomicMax` of
// its end, after all its work. The clock only advances, so the maximum is that of this run, whatever an
// earlier one has stored.
#define TIMESTAMP_PARAMS u64 *started_at, u64 *ended_at
#define RECORD_TIMESTAMPS const KernelTimestamps kernel_timestamps(started_at, ended_at)

struct KernelTimestamps {
    u64 *ended_at;
    static __device__ __forceinline__ bool is_first_thread() {
        return (threadIdx.x | threadIdx.y | threadIdx.z) == 0;
    }
    __device__ __forceinline__ KernelTimestamps(u64 *started_at, u64 *to) : ended_at(to) {
        if (started_at && is_first_thread() && (blockIdx.x | blockIdx.y | blockIdx.z) == 0)
            *started_at = device_time();
    }
    __device__ __forceinline__ ~KernelTimestamps() {
        if (ended_at && is_first_thread()) atomicMax(ended_at, device_time());
    }
};

// bfloat16: the upper half of a float.
struct bf16 {
    u16 bits;
};

// IEEE 754 binary16: a sign, 5 bits of exponent, 10 of the fraction.
struct f16 {
    u16 bits;
};

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float widen(f16 x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    const u32 sign = (u32)(x.bits & 0x8000u) << 16;
    u32 size = (u32)(x.bits & 0x7fffu) << 13;
    if (size >= 0x0f800000u)
        size |= size == 0x0f800000u ? 0x7f800000u : 0x7fc00000u;
    else
        // The exponents of a float start 112 lower. The product is exact for subnormal numbers too.
        size = __float_as_uint(__uint_as_float(size) * 0x1p112f);
    return __uint_as_float(sign | size);
#endif
}
__device__ __forceinline__ double widen(double x) { return x; }

#ifdef __CUDA_ARCH__
// The lower and upper of two elements in a word.
template <typename E> __device__ __forceinline__ float widen_lower(u32 word) { return widen(E{(u16)word}); }
template <typename E> __device__ __forceinline__ float widen_upper(u32 word) {
    return widen(E{(u16)(word >> 16)});
}
template <> __device__ __forceinline__ float widen_lower<bf16>(u32 word) {
    return __uint_as_float(word << 16);
}
template <> __device__ __forceinline__ float widen_upper<bf16>(u32 word) {
    return __uint_as_float(word & 0xffff0000u);
}
#endif

// Rounds to nearest, ties to even. NaN stays NaN.
__device__ __forceinline__ void narrow(float x, float &y) { y = x; }
__device__ __forceinline__ void narrow(float x, double &y) { y = x; }
__device__ __forceinline__ void narrow(double x, double &y) { y = x; }
__device__ __forceinline__ void narrow(float x, bf16 &y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    u32 bits = __float_as_uint(x);
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    y.bits = is_nan ? (u16)((bits >> 16) | 0x40u) : (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}
// Beyond 65,504 by half a unit or more: infinity.
__device__ __forceinline__ void narrow(float x, f16 &y) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    const u32 bits = __float_as_uint(x), size = bits & 0x7fffffffu;
    u32 to;
    if (size > 0x7f800000u)
        to = 0x7e00u | (size >> 13 & 0x3ffu);
    else if (size >= 0x47800000u)
        to = 0x7c00u;
    else if (size < 0x38800000u)
        // Subnormal: added to 0.5, the number is rounded to a multiple of 2^-24.
        to = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u;
    else
        to = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    y.bits = (u16)((bits >> 16 & 0x8000u) | to);
#endif
}

// N elements that are loaded and stored at once. Their address is a multiple of their size.
template <typename E, int N> struct __align__(sizeof(E) * N) Vector {
    E at[N];
};

template <int N, typename E> __device__ __forceinline__ void load(const E *from, float (&to)[N]) {
    Vector<E, N> vector = *(const Vector<E, N> *)from;
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = widen(vector.at[i]);
}

#ifdef __CUDA_ARCH__
// In PTX, as the compiler splits some vector stores into elements. The address is in global memory.
__device__ __forceinline__ void store_words(void *to, const u32 (&words)[1]) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(words[0]) : "memory");
}
__device__ __forceinline__ void store_words(void *to, const u32 (&words)[2]) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(words[0]),
                 "r"(words[1])
                 : "memory");
}
__device__ __forceinline__ void store_words(void *to, const u32 (&words)[4]) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

template <int N> __device__ __forceinline__ void store(float *to, const float (&from)[N]) {
    u32 words[N];
#pragma unroll
    for (int i = 0; i < N; i++) words[i] = __float_as_uint(from[i]);
    store_words(to, words);
}

// Two elements of two bytes in a word, the upper one first as in the PTX instruction.
#if __CUDA_ARCH__ >= 800
template <typename E> __device__ __forceinline__ u32 narrow_pair(float high, float low);
#define NARROW_PAIR(type)                                                                 \
    template <> __device__ __forceinline__ u32 narrow_pair<type>(float high, float low) { \
        u32 word;                                                                         \
        asm("cvt.rn." #type "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));     \
        return word;                                                                      \
    }
NARROW_PAIR(bf16)
NARROW_PAIR(f16)
#else
template <typename E> __device__ __forceinline__ u32 narrow_pair(float high, float low) {
    E lower, upper;
    narrow(low, lower);
    narrow(high, upper);
    return (u32)upper.bits << 16 | lower.bits;
}
#endif

template <int N, typename E> __device__ __forceinline__ void store(E *to, const float (&from)[N]) {
    if constexpr (N == 1) {
        narrow(from[0], *to);
    } else {
        u32 words[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) words[i] = narrow_pair<E>(from[2 * i + 1], from[2 * i]);
        store_words(to, words);
    }
}
#else
template <int N, typename E> __device__ __forceinline__ void store(E *to, const float (&from)[N]) {
    Vector<E, N> vector;
#pragma unroll
    for (int i = 0; i < N; i++) narrow(from[i], vector.at[i]);
    *(Vector<E, N> *)to = vector;
}
#endif

// The sum over the threads of a warp, in a fixed order. Every thread gets it.
template <typename E> __device__ __forceinline__ E warp_sum(E value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// The sum over a one-dimensional block of whole warps, in a fixed order. Every thread gets it.
template <typename E> __device__ E block_sum(E value) {
    __shared__ E sums[32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    E sum = 0;
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) sum += sums[warp];
    __syncthreads();
    return sum;
}

// Adds two sums per channel over the eight rows of a block of 32x8 threads, in a fixed order. A thread has
// COUNT channels from `channel` on. The second results are written unless `plain` is null.
template <int COUNT>
__device__ __forceinline__ void add_rows(const double (&product)[COUNT], const double (&sum)[COUNT],
                                         int channel, int channels, double *products, double *plain) {
    __shared__ double sums[2][8][32 * COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        sums[0][threadIdx.y][threadIdx.x * COUNT + i] = product[i];
        sums[1][threadIdx.y][threadIdx.x * COUNT + i] = sum[i];
    }
    __syncthreads();
    double *to = threadIdx.y == 0 ? products : plain;
    if (threadIdx.y < 2 && channel < channels && to) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            double whole = 0;
            for (int row = 0; row < 8; row++) whole += sums[threadIdx.y][row][threadIdx.x * COUNT + i];
            to[channel + i] = whole;
        }
    }
}
