// Concatenation of matrices [rows, width] along their columns, and copies of ranges of columns. Feature maps
// are matrices of pixels and channels.
//
// Grid-stride loops over the vectors of a matrix. The row and column of the next vector are computed by
// additions, without divisions.

// Copies `width` vectors of every row; rows have strides of `from_row` and `to_row` elements.
__device__ __forceinline__ void copy(const T *from, i64 from_row, T *to, i64 to_row, i64 rows, u32 width) {
    u32 item = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    i64 row = item / width;
    u32 column = item % width;
    u32 rows_on = step / width, columns_on = step % width;
    while (row < rows) {
        i64 inside = (i64)column * VECTOR;
        *(Vector<T, VECTOR> *)(to + row * to_row + inside) =
            *(const Vector<T, VECTOR> *)(from + row * from_row + inside);
        row += rows_on;
        column += columns_on;
        if (column >= width) {
            column -= width;
            row++;
        }
    }
}

extern "C" __global__ void copy_rows(const T *from, i64 from_row, T *to, i64 to_row, i64 rows, int width,
                                     TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    copy(from, from_row, to, to_row, rows, (u32)width);
}

// Blocks with blockIdx.y = y copy input y. Widths are in vectors.
extern "C" __global__ void join_rows(T *to, i64 to_row, i64 rows, const T *x0, const T *x1, const T *x2,
                                     const T *x3, const T *x4, const T *x5, const T *x6, const T *x7,
                                     const T *x8, const T *x9, const T *x10, const T *x11, const T *x12,
                                     const T *x13, int w0, int w1, int w2, int w3, int w4, int w5, int w6,
                                     int w7, int w8, int w9, int w10, int w11, int w12, int w13,
                                     TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    const T *from = x0;
    int width = w0;
    i64 before = 0, sum = 0;
// Not an array, which would be in local memory.
#define CHOOSE(i)                \
    if (blockIdx.y == i) {       \
        from = x##i;             \
        width = w##i;            \
        before = sum;            \
    }                            \
    sum += w##i;
    CHOOSE(0) CHOOSE(1) CHOOSE(2) CHOOSE(3) CHOOSE(4) CHOOSE(5) CHOOSE(6)
    CHOOSE(7) CHOOSE(8) CHOOSE(9) CHOOSE(10) CHOOSE(11) CHOOSE(12) CHOOSE(13)
    copy(from, (i64)width * VECTOR, to + before * VECTOR, to_row, rows, (u32)width);
}

EXPORT(copy_rows)
EXPORT(join_rows)
