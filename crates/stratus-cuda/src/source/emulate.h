// The extensions of CUDA C, to run kernels on the CPU: blocks run in sequence, and the threads of a block are
// fibers of one thread.
//
// A thread runs until it ends or waits for others; only then another one runs. Kernels without barriers thus
// never switch. The compiler's checks of alignment, null and array bounds call the functions below, which end
// the launch with an error. Threads run in order or in reverse order, so that results that depend on a
// missing barrier differ.

#define EMULATED 1
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static
#define __constant__ static

struct uint3 {
    unsigned x, y, z;
};
typedef uint3 dim3;
uint3 threadIdx, blockIdx, blockDim, gridDim;
const int warpSize = 32;

namespace emulated {

typedef unsigned long long Word;

// The launch, from the caller.
struct Launch {
    unsigned grid[3], block[3];
    unsigned shared_bytes, reverse_order;
    const Word *words;
    Word count;
    // Memory for the stacks of threads and for shared memory.
    unsigned char *stacks, *shared;
    // The number of reads of the device's clock.
    Word *clock;
};

const unsigned MAX_BLOCK_THREADS = 1024;
const size_t STACK_BYTES = 64 << 10;

enum State { UNBEGUN, READY, AT_WARP, AT_BLOCK, ENDED };

struct Thread {
    State state;
    unsigned mask, parity;
    // Copies in flight, and the group of the next one.
    unsigned copies, group;
    // Products in flight, the group of the next one, and whether finished copies are not yet visible to
    // tensor cores: see hopper.cu.
    unsigned products, product_group, unshown;
    jmp_buf at;
};

Thread threads[MAX_BLOCK_THREADS];
Word slots[2][MAX_BLOCK_THREADS];
unsigned current, next_thread, count, free_stacks[MAX_BLOCK_THREADS], free_count;
const Launch *launch;
jmp_buf scheduler;
void (*body)(const void *kernel, const Word *words);
const void *kernel;
char error[256];

inline Word tick() { return ++*launch->clock; }

inline unsigned ordered(unsigned turn, unsigned of) { return launch->reverse_order ? of - 1 - turn : turn; }

void enter(unsigned thread) {
    current = thread;
    unsigned x = launch->block[0], y = launch->block[1];
    threadIdx = {thread % x, thread / x % y, thread / x / y};
}

__attribute__((noinline)) void fail(const char *what, const char *file, unsigned line) {
    snprintf(error, sizeof error, "%s at %s:%u, block (%u, %u, %u), thread (%u, %u, %u)", what, file, line,
             blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    _longjmp(scheduler, 1);
}

// Starts threads of a block until all have started: each on the stack of one that ended.
void work() {
    const unsigned stack = free_stacks[--free_count];
    while (next_thread < count) {
        enter(ordered(next_thread++, count));
        body(kernel, launch->words);
        threads[current].state = ENDED;
    }
    free_stacks[free_count++] = stack;
    _longjmp(scheduler, 1);
}

__attribute__((noinline)) void begin() {
    static ucontext_t context;
    if (_setjmp(scheduler)) return;
    getcontext(&context);
    context.uc_stack.ss_sp = launch->stacks + free_stacks[free_count - 1] * STACK_BYTES;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, work, 0);
    setcontext(&context);
}

__attribute__((noinline)) void resume(unsigned thread) {
    if (_setjmp(scheduler)) return;
    enter(thread);
    _longjmp(threads[thread].at, 1);
}

// Suspends the running thread.
__attribute__((noinline)) void wait(State state, unsigned mask) {
    threads[current].state = state;
    threads[current].mask = mask;
    if (!_setjmp(threads[current].at)) _longjmp(scheduler, 1);
}

// Returns whether all threads of a warp in a mask that have not ended wait with that mask, and if so makes
// them ready.
bool gather(unsigned first, unsigned mask) {
    for (unsigned lane = 0; lane < 32 && first + lane < count; lane++) {
        const Thread &thread = threads[first + lane];
        if ((mask >> lane & 1) && thread.state != ENDED && !(thread.state == AT_WARP && thread.mask == mask))
            return false;
    }
    for (unsigned lane = 0; lane < 32 && first + lane < count; lane++)
        if ((mask >> lane & 1) && threads[first + lane].state == AT_WARP) threads[first + lane].state = READY;
    return true;
}

// Runs a warp until its threads wait; returns whether any ran. A warp runs as far as it can before others do,
// so that a missing barrier is noticed.
bool advance(unsigned first) {
    const unsigned lanes = count - first < 32 ? count - first : 32;
    bool any = false;
    for (unsigned lane = 0; lane < lanes; lane++)
        if (threads[first + lane].state == AT_WARP && gather(first, threads[first + lane].mask)) any = true;
    for (unsigned turn = 0; turn < lanes; turn++) {
        const unsigned thread = first + ordered(turn, lanes);
        if (threads[thread].state != READY) continue;
        any = true;
        resume(thread);
        if (error[0]) return true;
    }
    return any;
}

void run_block() {
    memset(launch->shared, 0xff, launch->shared_bytes);
    for (unsigned i = 0; i < count; i++) {
        Thread &thread = threads[i];
        thread.state = UNBEGUN;
        thread.parity = thread.copies = thread.group = thread.products = thread.product_group =
            thread.unshown = 0;
        free_stacks[i] = count - 1 - i;
    }
    free_count = count;
    next_thread = 0;
    while (next_thread < count) {
        begin();
        if (error[0]) return;
    }
    for (;;) {
        bool any = false;
        for (unsigned turn = 0, warps = (count + 31) / 32; turn < warps; turn++)
            while (!error[0] && advance(ordered(turn, warps) * 32)) any = true;
        if (error[0]) return;
        unsigned ended = 0, at_block = 0;
        for (unsigned i = 0; i < count; i++) {
            ended += threads[i].state == ENDED;
            at_block += threads[i].state == AT_BLOCK;
        }
        if (ended == count) return;
        if (any) continue;
        if (ended + at_block < count) {
            snprintf(error, sizeof error, "deadlock at a barrier");
            return;
        }
        for (unsigned i = 0; i < count; i++)
            if (threads[i].state == AT_BLOCK) threads[i].state = READY;
    }
}

template <unsigned... I> struct Indices {};
template <unsigned N, unsigned... I> struct Counted : Counted<N - 1, N - 1, I...> {};
template <unsigned... I> struct Counted<0, I...> {
    typedef Indices<I...> type;
};

template <typename P> P parameter(Word word) {
    P value;
    memcpy(&value, &word, sizeof value);
    return value;
}

template <typename... P, unsigned... I> void call(void (*kernel)(P...), const Word *words, Indices<I...>) {
    kernel(parameter<P>(words[I])...);
}

// Runs a kernel; returns an error message, or null.
template <typename... P> const char *run(void (*function)(P...), const Launch *of) {
    error[0] = 0;
    if (of->count != sizeof...(P)) {
        snprintf(error, sizeof error, "the kernel has %u parameters, got %llu", (unsigned)sizeof...(P),
                 of->count);
        return error;
    }
    launch = of;
    kernel = (const void *)function;
    body = [](const void *kernel, const Word *words) {
        call((void (*)(P...))kernel, words, typename Counted<sizeof...(P)>::type());
    };
    blockDim = {of->block[0], of->block[1], of->block[2]};
    gridDim = {of->grid[0], of->grid[1], of->grid[2]};
    count = of->block[0] * of->block[1] * of->block[2];
    const Word blocks = (Word)of->grid[0] * of->grid[1] * of->grid[2];
    for (Word turn = 0; turn < blocks && !error[0]; turn++) {
        Word block = of->reverse_order ? blocks - 1 - turn : turn;
        blockIdx = {(unsigned)(block % of->grid[0]), (unsigned)(block / of->grid[0] % of->grid[1]),
                    (unsigned)(block / of->grid[0] / of->grid[1])};
        run_block();
    }
    return error[0] ? error : nullptr;
}

// The exchange of a warp: the value of another lane.
template <typename E> E exchange(unsigned mask, E value, unsigned lane) {
    static_assert(sizeof(E) <= sizeof(Word), "a single register is exchanged");
    const unsigned self = current, other = self / 32 * 32 + lane % 32;
    const bool whole = mask == 0xffffffffu;
    // With all lanes, no lane is two exchanges before another, so two slots suffice. Otherwise all wait until
    // all have read.
    const unsigned slot = whole ? threads[self].parity ^= 1 : 0;
    memcpy(&slots[slot][self], &value, sizeof value);
    wait(AT_WARP, mask);
    if (other < count) memcpy(&value, &slots[slot][other], sizeof value);
    if (!whole) wait(AT_WARP, mask);
    return value;
}

inline unsigned lane() { return current % 32; }

// The values of all lanes of a whole warp, valid until the exchange after the next.
template <typename E> const E *all_of(const E &value) {
    const unsigned self = current, slot = threads[self].parity ^= 1;
    static E wide[2][MAX_BLOCK_THREADS];
    wide[slot][self] = value;
    wait(AT_WARP, 0xffffffffu);
    return wide[slot] + self / 32 * 32;
}

// A copy is executed when it is waited for. Until then its target is NaN, so that missing waits and early
// reads are noticed.
struct Copy {
    unsigned char *to;
    const void *from;
    bool valid;
    unsigned group;
};

const unsigned MAX_COPIES_IN_FLIGHT = 128;
Copy copies[MAX_BLOCK_THREADS][MAX_COPIES_IN_FLIGHT];

void begin_copy(unsigned char *to, const void *from, bool valid) {
    Thread &self = threads[current];
    if ((size_t)to % 16 || (size_t)from % 16) fail("misaligned copy", "kernel", 0);
    if (self.copies == MAX_COPIES_IN_FLIGHT) fail("too many copies in flight", "kernel", 0);
    copies[current][self.copies++] = {to, from, valid, self.group};
    memset(to, 0xff, 16);
}

void wait_copies(unsigned groups) {
    Thread &self = threads[current];
    unsigned left = 0;
    for (unsigned i = 0; i < self.copies; i++) {
        Copy &copy = copies[current][i];
        if (copy.group + groups >= self.group)
            copies[current][left++] = copy;
        else if (copy.valid)
            memcpy(copy.to, copy.from, 16);
        else
            memset(copy.to, 0, 16);
    }
    if (left < self.copies) self.unshown = 1;
    self.copies = left;
}

inline unsigned ballot(unsigned mask, bool vote) {
    unsigned all = 0;
    for (unsigned other = 0; other < 32; other++)
        if (mask >> other & 1) {
            // A missing lane votes 0.
            bool valid =
                current / 32 * 32 + other < count && threads[current / 32 * 32 + other].state != ENDED;
            all |= (unsigned)(exchange(mask, (unsigned)vote, other) & (unsigned)valid) << other;
        }
    return all;
}

inline int votes(bool vote) {
    const unsigned self = current;
    slots[0][self] = vote;
    wait(AT_BLOCK, 0);
    int sum = 0;
    for (unsigned i = 0; i < count; i++) sum += threads[i].state != ENDED && slots[0][i];
    wait(AT_BLOCK, 0);
    return sum;
}

// A source location of the compiler's checks.
struct SourceLocation {
    const char *file;
    unsigned line, column;
};

} // namespace emulated

extern "C" void __ubsan_handle_type_mismatch_v1(emulated::SourceLocation *location, size_t address) {
    emulated::fail(address == 0 ? "a null address" : "a misaligned address", location->file, location->line);
}
extern "C" void __ubsan_handle_out_of_bounds(emulated::SourceLocation *location, size_t) {
    emulated::fail("an index out of bounds", location->file, location->line);
}

#define EXPORT(name)                                                               \
    extern "C" __attribute__((visibility("default"))) const char *emulated_##name( \
        const emulated::Launch *launch) {                                          \
        return emulated::run(name, launch);                                        \
    }
#define DYNAMIC_SHARED(type, name) type *name = (type *)emulated::launch->shared

inline void __syncthreads() { emulated::wait(emulated::AT_BLOCK, 0); }
inline int __syncthreads_or(int vote) { return emulated::votes(vote) != 0; }
inline int __syncthreads_count(int vote) { return emulated::votes(vote); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulated::wait(emulated::AT_WARP, mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename E> E __shfl_sync(unsigned mask, E value, int lane, int width = 32) {
    return emulated::exchange(mask, value, emulated::lane() / width * width + lane % width);
}
template <typename E> E __shfl_xor_sync(unsigned mask, E value, int distance, int width = 32) {
    return emulated::exchange(mask, value, emulated::lane() ^ distance);
}
template <typename E> E __shfl_down_sync(unsigned mask, E value, unsigned distance, int width = 32) {
    bool inside = emulated::lane() % width + distance < (unsigned)width;
    return emulated::exchange(mask, value, emulated::lane() + (inside ? distance : 0));
}
template <typename E> E __shfl_up_sync(unsigned mask, E value, unsigned distance, int width = 32) {
    bool inside = emulated::lane() % width >= distance;
    return emulated::exchange(mask, value, emulated::lane() - (inside ? distance : 0));
}
inline unsigned __ballot_sync(unsigned mask, int vote) { return emulated::ballot(mask, vote); }
inline int __any_sync(unsigned mask, int vote) { return emulated::ballot(mask, vote) != 0; }
inline int __all_sync(unsigned mask, int vote) { return emulated::ballot(mask, !vote) == 0; }

template <typename E, typename F> E __bits(F from) {
    static_assert(sizeof(E) == sizeof(F), "sizes must be equal");
    E to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x) { return __bits<unsigned>(x); }
inline int __float_as_int(float x) { return __bits<int>(x); }
inline float __uint_as_float(unsigned x) { return __bits<float>(x); }
inline float __int_as_float(int x) { return __bits<float>(x); }
inline long long __double_as_longlong(double x) { return __bits<long long>(x); }
inline double __longlong_as_double(long long x) { return __bits<double>(x); }

inline float __double2float_rn(double x) { return (float)x; }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __ull2float_rn(unsigned long long x) { return (float)x; }
inline int __float2int_rn(float x) { return (int)__builtin_rintf(x); }
inline int __float2int_rz(float x) { return (int)x; }

extern "C" {
float expf(float), exp2f(float), expm1f(float), logf(float), log2f(float), log1pf(float), sqrtf(float),
    powf(float, float), erff(float), erfcf(float), tanhf(float), fabsf(float), fminf(float, float),
    fmaxf(float, float), floorf(float), ceilf(float), rintf(float), fmaf(float, float, float), sinf(float),
    cosf(float), cbrtf(float), copysignf(float, float);
double exp(double), exp2(double), expm1(double), log(double), log2(double), log1p(double), sqrt(double),
    pow(double, double), erf(double), erfc(double), tanh(double), fabs(double), fmin(double, double),
    fmax(double, double), floor(double), ceil(double), rint(double), fma(double, double, double), sin(double),
    cos(double), cbrt(double), copysign(double, double);
}
inline float exp(float x) { return expf(x); }
inline float log(float x) { return logf(x); }
inline float sqrt(float x) { return sqrtf(x); }
inline float pow(float x, float y) { return powf(x, y); }
inline float erf(float x) { return erff(x); }
inline float tanh(float x) { return tanhf(x); }
inline float fabs(float x) { return fabsf(x); }
inline float floor(float x) { return floorf(x); }
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isnan(double x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }

inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

#define EMULATED_ORDER(type)                                    \
    inline type min(type a, type b) { return a < b ? a : b; }   \
    inline type max(type a, type b) { return a > b ? a : b; }
EMULATED_ORDER(int)
EMULATED_ORDER(unsigned)
EMULATED_ORDER(long long)
EMULATED_ORDER(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

template <typename E> E __ldg(const E *at) { return *at; }
template <typename E> E __ldcs(const E *at) { return *at; }
template <typename E> E __ldcg(const E *at) { return *at; }
template <typename E> void __stcs(E *at, E value) { *at = value; }
template <typename E> void __stcg(E *at, E value) { *at = value; }

inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned __int128)a * b >> 64;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}

// Integers only: sums of floats would depend on the order of threads.
#define EMULATED_ATOMICS(type)                     \
    inline type atomicAdd(type *at, type value) {  \
        type old = *at;                            \
        *at = old + value;                         \
        return old;                                \
    }                                              \
    inline type atomicMax(type *at, type value) {  \
        type old = *at;                            \
        *at = old > value ? old : value;           \
        return old;                                \
    }                                              \
    inline type atomicMin(type *at, type value) {  \
        type old = *at;                            \
        *at = old < value ? old : value;           \
        return old;                                \
    }                                              \
    inline type atomicExch(type *at, type value) { \
        type old = *at;                            \
        *at = value;                               \
        return old;                                \
    }
EMULATED_ATOMICS(int)
EMULATED_ATOMICS(unsigned)
EMULATED_ATOMICS(unsigned long long)

#define EMULATED_VECTORS(type, name, bytes)                                         \
    struct __align__(2 * bytes) name##2 { type x, y; };                             \
    struct __align__(4 * bytes > 16 ? 16 : 4 * bytes) name##4 { type x, y, z, w; }; \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMULATED_VECTORS(float, float, 4)
EMULATED_VECTORS(double, double, 8)
EMULATED_VECTORS(int, int, 4)
EMULATED_VECTORS(unsigned, uint, 4)
EMULATED_VECTORS(unsigned short, ushort, 2)
EMULATED_VECTORS(unsigned char, uchar, 1)

// The functions of tensor_cores.cu.
typedef unsigned char *SharedAddress;
inline SharedAddress shared_address(void *at) { return (SharedAddress)at; }
template <bool KEPT> void copy_async(SharedAddress to, const void *from, bool valid) {
    emulated::begin_copy(to, from, valid);
}
inline void commit_copies() { emulated::threads[emulated::current].group++; }
template <int N> void wait_copies() { emulated::wait_copies(N); }

inline void load_transposed(SharedAddress row, unsigned (&to)[4]) {
    if ((size_t)row % 16) emulated::fail("misaligned matrix row", "kernel", 0);
    const SharedAddress *rows = emulated::all_of(row);
    const unsigned column = emulated::lane() / 4, first = emulated::lane() % 4 * 2;
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        unsigned short upper, lower;
        memcpy(&upper, rows[8 * matrix + first] + 2 * column, 2);
        memcpy(&lower, rows[8 * matrix + first + 1] + 2 * column, 2);
        to[matrix] = (unsigned)lower << 16 | upper;
    }
}

namespace emulated {

struct Factors {
    unsigned short a[4][2], b[2][2];
};

} // namespace emulated

template <typename E> void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulated::Factors own;
    memcpy(own.a, a, sizeof own.a);
    memcpy(own.b[0], &b0, 4);
    memcpy(own.b[1], &b1, 4);
    const emulated::Factors *all = emulated::all_of(own);
    const unsigned row = emulated::lane() / 4, column = emulated::lane() % 4 * 2;
    for (unsigned e = 0; e < 4; e++)
        for (unsigned k = 0; k < 16; k++) {
            const E left = {all[row * 4 + k % 8 / 2].a[e / 2 + k / 8 * 2][k % 2]};
            const E right = {all[(column + e % 2) * 4 + k % 8 / 2].b[k / 8][k % 2]};
            sum[e] += widen(left) * widen(right);
        }
}

#line 1 "kernel"
