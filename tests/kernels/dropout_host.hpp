// What the dropout kernel takes of primitives.cuh on a CPU, compiled in front of it in place of that. Its threads never
// meet, so they run one after another, and fibres.hpp, which takes a second to compile, is not needed.

#include <string.h>

typedef unsigned int u32;
typedef unsigned char u8;
typedef unsigned long long u64;

#define DEVICE static inline
#define KERNEL(...) static void
#define UNROLL

static u32 which_block, which_thread;
static int thread_index() { return which_thread; }
static int block_x() { return which_block; }
