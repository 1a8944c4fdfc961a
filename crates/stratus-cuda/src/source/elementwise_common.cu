// The common part of elementwise kernels: grid-stride loops, VECTOR elements at a time.

// The types of the second input and of the output, if they differ from that of the first input.
#ifndef T_OTHER
#define T_OTHER T
#endif
#ifndef T_OUT
#define T_OUT T
#endif

// A grid-stride loop over `count` elements, VECTOR at a time.
#define FOR_EACH(position, count) \
    for (i64 position = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; position < (count); \
         position += (i64)gridDim.x * blockDim.x * VECTOR)

