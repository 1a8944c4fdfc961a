// Shared by the convolutions of at most four channels: tiles of pixels of the output, and the window of the
// input that a tile reads.
//
// A tile is tile_h x tile_w pixels of one image. Its window is in shared memory, where a pixel has four
// channels in 8 bytes; missing channels and padding are zero. One load thus reads a whole tap, and a tap is
// at the same distance from the first tap for all pixels.

// The sizes of the input, the output, a tile and its window.
struct Geometry {
    int height, width, out_height, out_width;
    int stride_h, stride_w, pad_h, pad_w;
    int tile_h, tile_w, window_h, window_w;
};

// A tile: its image, and its first pixel of the output.
struct Tile {
    int n, row, column;
};

__device__ __forceinline__ Tile tile_at(int tile, const Geometry &of) {
    const int across = (of.out_width + of.tile_w - 1) / of.tile_w,
              down = (of.out_height + of.tile_h - 1) / of.tile_h;
    const int strip = tile / across;
    return {strip / down, strip % down * of.tile_h, tile % across * of.tile_w};
}

// The channels of a pixel, or zeros unless `inside`.
__device__ __forceinline__ uint2 load_pixel(const T *at, bool inside) {
    uint2 pixel = make_uint2(0, 0);
    if (!inside) return pixel;
#if CHANNELS == 4
    pixel = __ldg((const uint2 *)at);
#elif CHANNELS == 2
    pixel.x = __ldg((const u32 *)at);
#else
    const u16 *bits = (const u16 *)at;
    pixel.x = __ldg(bits);
    if (CHANNELS == 3) {
        pixel.x |= (u32)__ldg(bits + 1) << 16;
        pixel.y = __ldg(bits + 2);
    }
#endif
    return pixel;
}

// Loads the window of a tile, with all threads of a block; each loads several pixels at once.
template <int THREADS>
__device__ __forceinline__ void load_window(uint2 *window, const T *x, const Tile &tile, const Geometry &of) {
    const int AT_A_TIME = 8;
    const int first_h = tile.row * of.stride_h - of.pad_h, first_w = tile.column * of.stride_w - of.pad_w;
    const T *corner = x + (((i64)tile.n * of.height + first_h) * of.width + first_w) * CHANNELS;
    const int size = of.window_h * of.window_w;
    const int move_row = THREADS / of.window_w, move_column = THREADS % of.window_w;
    int row = threadIdx.x / of.window_w, column = threadIdx.x % of.window_w;
    for (int at = threadIdx.x; at < size; at += AT_A_TIME * THREADS) {
        uint2 pixel[AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            const bool inside = row < of.window_h && (u32)(first_h + row) < (u32)of.height &&
                                (u32)(first_w + column) < (u32)of.width;
            pixel[i] = load_pixel(corner + (row * of.width + column) * CHANNELS, inside);
            row += move_row;
            column += move_column;
            if (column >= of.window_w) column -= of.window_w, row++;
        }
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++)
            if (at + i * THREADS < size) window[at + i * THREADS] = pixel[i];
    }
}
