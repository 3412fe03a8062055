// What the dropout kernel takes of primitives.cuh on a CPU, compiled in front of it in place of that. Its threads never
// meet, so they run one after another, and fibres.hpp, which takes a second to compile, is not needed.

#include <string.h>

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

#define DEVICE static inline
#define KERNEL(...) static void
#define UNROLL

static u32 which_block, which_thread;
static int thread_index() { return which_thread; }
static int block_x() { return which_block; }
static u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }

struct half16 { u16 bits; };
struct brain16 { u16 bits; };
static float to_float(half16 x) { _Float16 y; memcpy(&y, &x, 2); return (float)y; }
static float to_float(brain16 x) { u32 y = (u32)x.bits << 16; float z; memcpy(&z, &y, 4); return z; }
static half16 to_half(float x) { _Float16 y = (_Float16)x; half16 z; memcpy(&z, &y, 2); return z; }
