// A kernel that only notes the time: between steps that both are calls of libraries.

extern "C" __global__ void mark(TIMED) { NOTE_TIMES; }
EXPORT(mark)
