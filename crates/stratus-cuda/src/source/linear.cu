// A plain matrix product, for the emulation and tests: a thread per element of C, with a sum in f64.
//
//   C [rows, columns] = A [rows, depth] · B [depth, columns]
//
// A_TRANSPOSED: A is stored as [depth, rows]; B_TRANSPOSED: B is stored as [columns, depth].

extern "C" __global__ void multiply(const T *a, const T *b, RESULT *c, i64 rows, i64 columns, i64 depth,
                                    TIMESTAMP_PARAMS) {
    RECORD_TIMESTAMPS;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < rows * columns;
         at += (i64)gridDim.x * blockDim.x) {
        i64 row = at / columns, column = at % columns;
        double sum = 0;
        for (i64 k = 0; k < depth; k++) {
            T a_value = A_TRANSPOSED ? a[k * rows + row] : a[row * depth + k];
            T b_value = B_TRANSPOSED ? b[column * depth + k] : b[k * columns + column];
            sum += (double)widen(a_value) * widen(b_value);
        }
        narrow((float)sum, c[at]);
    }
}

EXPORT(multiply)
