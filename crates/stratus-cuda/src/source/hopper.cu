// Tensor cores of Hopper GPUs (compute capability 9.0, compiled for sm_90a): `wgmma`, products of matrices in
// shared memory that a warpgroup of four warps starts together and completes asynchronously.
//
// Both factors are stored depth-major (k rows of M or N elements). 64 elements of one k are a row of 128
// bytes:
//
//   swizzle block  8 rows = 1024 bytes, aligned to 1024; row r has its 16-byte chunk c at c ^ r
//   `stride`       bytes from one swizzle block to the next 8 k
//   `leading`      bytes from one swizzle block to the next 64 elements
//
// In the PTX ISA this is the canonical layout ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO)) of MN-major matrices with
// a swizzle of 128 bytes.

// The size and alignment of a swizzle block. Launches reserve additional bytes of this size, to align the
// first block.
const int SWIZZLE_BLOCK_BYTES = 1024;

#ifndef EMULATED
__device__ __forceinline__ SharedAddress next_pattern(SharedAddress at) {
    return (at + SWIZZLE_BLOCK_BYTES - 1) / SWIZZLE_BLOCK_BYTES * SWIZZLE_BLOCK_BYTES;
}

// A matrix descriptor: address, `leading` and `stride` in units of 16 bytes, and the swizzle of 128 bytes. To
// advance it by a multiple of SWIZZLE_BLOCK_BYTES, add the number of bytes / 16.
__device__ __forceinline__ u64 factor_at(SharedAddress at, int leading, int stride) {
    return (u64)((at & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

// Makes this thread's copies visible to tensor cores, after the next barrier.
__device__ __forceinline__ void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Required before the first product, and after accumulators were accessed.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group: the products started since the last call.
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits for all groups except the last N.
template <int N> __device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps the compiler from moving accesses to the accumulators across this point.
template <int N> __device__ __forceinline__ void keep_sums(float (&sum)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(sum[i])::"memory");
}

#define SUMS_4(at) "+f"(sum[at]), "+f"(sum[at + 1]), "+f"(sum[at + 2]), "+f"(sum[at + 3])
#define SUMS_16(at) SUMS_4(at), SUMS_4(at + 4), SUMS_4(at + 8), SUMS_4(at + 12)
#define SUMS_32(at) SUMS_16(at), SUMS_16(at + 16)
#define NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
    "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_96 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
    "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_128                                                                                        \
    NAMES_96                                                                                             \
        ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// sum [64, COLUMNS] += a [64, 16] · b [16, COLUMNS], with elements of E (bf16 or f16). Warp w of the
// warpgroup has rows 16 w to 16 w + 15. sum[4 j + e] of lane l is row l / 4 + 8 (e / 2), column 8 j + 2 (l %
// 4) + e % 2.
template <typename E, int COLUMNS>
__device__ __forceinline__ void multiply_tiles(float (&sum)[COLUMNS / 2], u64 a, u64 b);

#define MULTIPLY_TILES(type, columns, names, at_a, at_b, ...)                                                \
    template <>                                                                                              \
    __device__ __forceinline__ void multiply_tiles<type, columns>(float (&sum)[columns / 2], u64 a, u64 b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {" names      \
                     "}, " at_a ", " at_b ", 1, 1, 1, 1, 1;"                                                 \
                     : __VA_ARGS__                                                                           \
                     : "l"(a), "l"(b));                                                                      \
    }
#define MULTIPLY_TILES_OF(type)                                                             \
    MULTIPLY_TILES(type, 128, NAMES_64, "%64", "%65", SUMS_32(0), SUMS_32(32))              \
    MULTIPLY_TILES(type, 192, NAMES_96, "%96", "%97", SUMS_32(0), SUMS_32(32), SUMS_32(64)) \
    MULTIPLY_TILES(type, 256, NAMES_128, "%128", "%129", SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_32(96))
MULTIPLY_TILES_OF(bf16)
MULTIPLY_TILES_OF(f16)
#else
// The emulation reads factors by the layout of the PTX ISA, both when a product starts and when it is waited
// for, and compares: a factor that changes in between is an error.
inline SharedAddress next_pattern(SharedAddress at) {
    const SharedAddress start = emulated::launch->shared;
    return start + (at - start + SWIZZLE_BLOCK_BYTES - 1) / SWIZZLE_BLOCK_BYTES * SWIZZLE_BLOCK_BYTES;
}

inline u64 factor_at(SharedAddress at, int leading, int stride) {
    const u64 address = at - emulated::launch->shared;
    return (address & 0x3ffff) >> 4 | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

namespace emulated {

// A product in flight, and the thread that started it.
struct Product {
    u64 a, b, read;
    float *sum;
    unsigned columns, group;
    u64 (*multiply)(const Product &product, bool add);
};

const unsigned MAX_PRODUCTS_IN_FLIGHT = 32;
Product products[MAX_BLOCK_THREADS][MAX_PRODUCTS_IN_FLIGHT];

// An element of a factor, by its row or column and its depth.
u16 element(u64 factor, unsigned row, unsigned depth) {
    if (factor >> 62 != 1 || (factor >> 49 & 7) != 0)
        fail("a factor is not swizzled by 128 bytes", "kernel", 0);
    const u64 start = (factor & 0x3fff) << 4, leading = (factor >> 16 & 0x3fff) << 4,
              stride = (factor >> 32 & 0x3fff) << 4;
    if (start % 1024 || leading % 1024 || stride % 1024)
        fail("misaligned pattern of a factor", "kernel", 0);
    const u64 unswizzled =
        start + row / 64 * leading + depth / 8 * stride + depth % 8 * 128 + row % 64 * 2;
    // The swizzle: bits 7 to 9 of an address are added to bits 4 to 6 by exclusive or.
    const u64 address = unswizzled ^ (unswizzled >> 3 & 0x70);
    if (address + 2 > launch->shared_bytes) fail("a factor outside of shared memory", "kernel", 0);
    u16 bits;
    memcpy(&bits, launch->shared + address, 2);
    return bits;
}

// Adds this thread's part of a product, if `add`, and returns a checksum of the bits read.
template <typename E> u64 multiply(const Product &product, bool add) {
    const unsigned warp = current / 32 % 4, lane = current % 32;
    u64 read = 0;
    auto next = [&](u64 factor, unsigned row, unsigned depth) {
        const u16 bits = element(factor, row, depth);
        read = (read ^ bits) * 0x100000001b3ull;
        return widen(E{bits});
    };
    for (unsigned depth = 0; depth < 16; depth++) {
        float rows[2];
        for (unsigned half = 0; half < 2; half++)
            rows[half] = next(product.a, 16 * warp + lane / 4 + 8 * half, depth);
        for (unsigned j = 0; j < product.columns / 8; j++)
            for (unsigned right = 0; right < 2; right++) {
                const float column = next(product.b, 8 * j + lane % 4 * 2 + right, depth);
                for (unsigned half = 0; half < 2 && add; half++)
                    product.sum[4 * j + 2 * half + right] += rows[half] * column;
            }
    }
    return read;
}

void wait_products(unsigned groups) {
    Thread &self = threads[current];
    unsigned left = 0;
    for (unsigned i = 0; i < self.products; i++) {
        const Product product = products[current][i];
        if (product.group + groups >= self.product_group)
            products[current][left++] = product;
        else if (product.multiply(product, true) != product.read)
            fail("a factor was overwritten before its product finished", "kernel", 0);
    }
    self.products = left;
}

} // namespace emulated

inline void show_copies() { emulated::threads[emulated::current].unshown = 0; }
inline void begin_products() {}
inline void commit_products() { emulated::threads[emulated::current].product_group++; }
template <int N> void wait_products() { emulated::wait_products(N); }
template <int N> void keep_sums(float (&)[N]) {}

template <typename E, int COLUMNS> void multiply_tiles(float (&sum)[COLUMNS / 2], u64 a, u64 b) {
    using namespace emulated;
    static_assert(COLUMNS % 8 == 0 && COLUMNS <= 256, "supported shapes");
    Thread &self = threads[current];
    if (self.products == MAX_PRODUCTS_IN_FLIGHT) fail("too many products in flight", "kernel", 0);
    for (unsigned i = 0; i < count; i++)
        if (threads[i].unshown) fail("copies not visible to tensor cores", "kernel", 0);
    Product product = {a, b, 0, sum, COLUMNS, self.product_group, multiply<E>};
    product.read = product.multiply(product, false);
    products[current][self.products++] = product;
}
#endif

