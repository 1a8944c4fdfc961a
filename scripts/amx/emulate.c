/* Emulates AMX-BF16 on CPUs without it, for tests: preload this library, and every tile instruction
 * that raises SIGILL is executed here. Each takes microseconds.
 *
 * Source: Intel, "Intel 64 and IA-32 architectures software developer's manual", volume 2: LDTILECFG,
 * TILELOADD, TILESTORED, TILEZERO, TILERELEASE, TDPBF16PS, and the section on the VEX prefix. Any
 * instruction that a CPU with AMX would reject too ends the process: tile registers without configuration,
 * and other illegal instructions. Registers are per thread. */

#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#if !defined(__x86_64__) || !defined(__linux__)
#error "for x86-64 Linux"
#endif

enum { TILES = 8, ROWS = 16, BYTES = 64 };

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} configuration;

static __thread configuration shape;
static __thread uint8_t tiles[TILES][ROWS][BYTES];

static void refuse(const char *why) {
    char line[160];
    int length = snprintf(line, sizeof line, "emulated AMX: %s\n", why);
    if (write(STDERR_FILENO, line, length) != length) _exit(133);
    signal(SIGILL, SIG_DFL);
    raise(SIGILL);
    _exit(133);
}

static void need(int holds, const char *why) {
    if (!holds) refuse(why);
}

/* A general register by its number in instructions. */
static uint64_t general(const ucontext_t *context, unsigned number) {
    static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return context->uc_mcontext.gregs[order[number]];
}

/* A memory operand: its address without the index register, and the scaled index, which tile instructions
 * take as the stride of rows. */
typedef struct {
    uint64_t start, stride;
} memory;

/* Decodes the operand from its ModRM byte on; returns its length in bytes. `x` and `b` are the bits of the
 * VEX prefix that extend register numbers. */
static unsigned operand(const ucontext_t *context, const uint8_t *code, unsigned x, unsigned b,
                        memory *found) {
    unsigned mode = code[0] >> 6, base = code[0] & 7, length = 1;
    found->stride = 0;
    int has_base = 1;
    if (base == 4) {
        unsigned scale = code[1] >> 6, index = (code[1] >> 3 & 7) | x << 3;
        base = code[1] & 7;
        length = 2;
        if (index != 4) found->stride = general(context, index) << scale;
        has_base = base != 5 || mode != 0;
    } else {
        need(base != 5 || mode != 0, "an operand relative to the instruction");
    }
    int32_t away = 0;
    if (mode == 1) {
        away = (int8_t)code[length];
        length += 1;
    } else if (mode == 2 || !has_base) {
        memcpy(&away, code + length, 4);
        length += 4;
    }
    found->start = (has_base ? general(context, base | b << 3) : 0) + (int64_t)away;
    return length;
}

static void need_tile(unsigned tile) {
    need(shape.palette == 1, "registers without configuration");
    need(tile < TILES && shape.rows[tile] && shape.bytes[tile], "a register without rows");
}

static void configure(const void *from) {
    configuration wanted;
    memcpy(&wanted, from, sizeof wanted);
    need(wanted.palette == 1 && wanted.start_row == 0, "a configuration of another kind");
    for (int i = 0; i < 16; i++) {
        int fits = i < TILES && wanted.rows[i] <= ROWS && wanted.bytes[i] <= BYTES;
        int consistent = !wanted.rows[i] == !wanted.bytes[i];
        int unused = !wanted.rows[i] && !wanted.bytes[i];
        need((fits && consistent) || unused, "a register larger than the hardware's");
    }
    shape = wanted;
    memset(tiles, 0, sizeof tiles);
}

static void load(unsigned tile, memory from) {
    need_tile(tile);
    memset(tiles[tile], 0, sizeof tiles[tile]);
    for (int row = 0; row < shape.rows[tile]; row++)
        memcpy(tiles[tile][row], (const void *)(from.start + row * from.stride), shape.bytes[tile]);
}

static void store(unsigned tile, memory to) {
    need_tile(tile);
    for (int row = 0; row < shape.rows[tile]; row++)
        memcpy((void *)(to.start + row * to.stride), tiles[tile][row], shape.bytes[tile]);
}

/* Denormals are flushed to zero, as TDPBF16PS does. */
static float flushed(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (!(bits & 0x7f800000)) bits &= 0x80000000;
    memcpy(&value, &bits, 4);
    return value;
}

static float widened(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, 2);
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return flushed(value);
}

static void multiply(unsigned sums, unsigned left, unsigned right) {
    need_tile(sums);
    need_tile(left);
    need_tile(right);
    need(sums != left && sums != right && left != right, "a register named twice");
    int pairs = shape.bytes[left] / 4, columns = shape.bytes[sums] / 4;
    need(shape.rows[left] == shape.rows[sums] && shape.rows[right] == pairs &&
             shape.bytes[right] == shape.bytes[sums],
         "factors whose shapes do not match");
    float all[ROWS][2][ROWS];
    for (int pair = 0; pair < pairs; pair++)
        for (int half = 0; half < 2; half++)
            for (int column = 0; column < columns; column++)
                all[pair][half][column] = widened(&tiles[right][pair][4 * column + 2 * half]);
    for (int row = 0; row < shape.rows[sums]; row++) {
        /* Even and odd products are accumulated separately. */
        float partial[2][ROWS] = {{0}};
        for (int pair = 0; pair < pairs; pair++)
            for (int half = 0; half < 2; half++) {
                float a = widened(&tiles[left][row][4 * pair + 2 * half]);
                for (int column = 0; column < columns; column++)
                    partial[half][column] =
                        flushed(__builtin_fmaf(a, all[pair][half][column], partial[half][column]));
            }
        for (int column = 0; column < columns; column++) {
            float sum;
            memcpy(&sum, &tiles[sums][row][4 * column], 4);
            sum = flushed(flushed(sum) + flushed(partial[0][column] + partial[1][column]));
            memcpy(&tiles[sums][row][4 * column], &sum, 4);
        }
    }
}

static void execute(int signal, siginfo_t *info, void *of_thread) {
    (void)signal, (void)info;
    ucontext_t *context = of_thread;
    const uint8_t *code = (const uint8_t *)context->uc_mcontext.gregs[REG_RIP];
    /* A VEX prefix of three bytes (map 0F38, W0, L0), then opcode and ModRM. */
    need(code[0] == 0xc4 && (code[1] & 0x1f) == 2 && !(code[2] & 0x84),
         "an illegal instruction that is not of AMX");
    unsigned x = !(code[1] & 0x40), b = !(code[1] & 0x20), other = ~code[2] >> 3 & 15, prefix = code[2] & 3;
    unsigned operation = code[3], mode = code[4] >> 6, tile = code[4] >> 3 & 7, second = code[4] & 7;
    enum { NONE, P66, PF3, PF2 };
    unsigned length = 5;
    memory at;
    if (operation == 0x49 && mode == 3 && prefix == NONE && code[4] == 0xc0) {
        memset(&shape, 0, sizeof shape);
    } else if (operation == 0x49 && mode == 3 && prefix == PF2 && second == 0) {
        need_tile(tile);
        memset(tiles[tile], 0, sizeof tiles[tile]);
    } else if (operation == 0x49 && mode != 3 && prefix == NONE && tile == 0) {
        length = 4 + operand(context, code + 4, x, b, &at);
        configure((const void *)at.start);
    } else if (operation == 0x4b && mode != 3 && (prefix == PF2 || prefix == P66)) {
        length = 4 + operand(context, code + 4, x, b, &at);
        load(tile, at);
    } else if (operation == 0x4b && mode != 3 && prefix == PF3) {
        length = 4 + operand(context, code + 4, x, b, &at);
        store(tile, at);
    } else if (operation == 0x5c && mode == 3 && prefix == PF3) {
        multiply(tile, second, other);
    } else {
        refuse("an unknown instruction");
    }
    context->uc_mcontext.gregs[REG_RIP] += length;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = execute;
    /* A fault on the operand of an emulated instruction must be delivered while the handler runs. */
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (sigaction(SIGILL, &action, NULL) != 0) {
        perror("emulated AMX");
        exit(1);
    }
}
