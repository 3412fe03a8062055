// The primitives of the dropout kernel on a CPU, compiled in front of it in place of primitives.cuh. Its threads never
// meet, so they run one after another.

#include <string.h>

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

#define DEVICE static inline
#define KERNEL(threads) static void
#define UNROLL

static u32 which_block, which_thread;
static u32 thread_index() { return which_thread; }
static u32 block_index() { return which_block; }
static u32 float_bits(float x) { u32 y; memcpy(&y, &x, 4); return y; }
static float float_of(u32 bits) { float y; memcpy(&y, &bits, 4); return y; }
static float half_to_float(u16 x) { _Float16 y; memcpy(&y, &x, 2); return (float)y; }
static u16 float_to_half(float x) { _Float16 y = (_Float16)x; u16 z; memcpy(&z, &y, 2); return z; }
