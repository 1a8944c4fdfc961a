// Tensor cores from compute capability 8.0: asynchronous copies to shared memory (`cp.async`), fragments of
// matrices (`ldmatrix`) and products of a warp (`mma.sync`). The emulation has the same functions in
// emulate.h.

#ifndef EMULATED
// An address in shared memory.
typedef u32 SharedAddress;

__device__ __forceinline__ SharedAddress shared_address(void *at) {
    return (u32)__cvta_generic_to_shared(at);
}

// Starts copying 16 bytes, or filling them with zeros unless `valid`. Both addresses are multiples of 16.
// KEPT caches the source in L1, for data that other threads of the multiprocessor read too.
template <bool KEPT>
__device__ __forceinline__ void copy_async(SharedAddress to, const void *from, bool valid) {
    if constexpr (KEPT) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                     "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                     : "memory");
    } else {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                     "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
                     : "memory");
    }
}

// Closes a group: the copies that this thread started since the last call.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups of this thread except the last N.
template <int N> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Loads four matrices of 8x8 elements of two bytes, transposed. Lane l provides the address of row l % 8 of
// matrix l / 8. For each matrix it gets the elements in column l / 4, rows 2 (l % 4) and 2 (l % 4) + 1.
__device__ __forceinline__ void load_transposed(SharedAddress row, u32 (&to)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// sum [16, 8] += a [16, 16] · b [16, 8], with elements of E (bf16 or f16). The elements of lane l, with r = l
// / 4 and c = 2 (l % 4); each register of `a` and `b` holds two:
//   a[0..4]    (r, c), (r + 8, c), (r, c + 8), (r + 8, c + 8), each with its right neighbour
//   b0, b1     rows c and c + 8 of column r, each with the row below
//   sum[0..4]  (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1)
template <typename E>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1);

#define MULTIPLY_ADD(type)                                                                                  \
    template <>                                                                                             \
    __device__ __forceinline__ void multiply_add<type>(float (&sum)[4], const u32(&a)[4], u32 b0, u32 b1) { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type                                        \
            ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                          \
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                        \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                \
    }
MULTIPLY_ADD(bf16)
MULTIPLY_ADD(f16)
#endif

