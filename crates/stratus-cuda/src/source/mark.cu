// A marker kernel, which only records the time: between steps that are both library calls.

extern "C" __global__ void mark(TIMESTAMP_PARAMS) { RECORD_TIMESTAMPS; }
EXPORT(mark)
