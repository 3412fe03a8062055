// primitives.cuh on a CPU: every thread of a block is a fibre, and they run in a random order, blocks too.
//
// Compiled behind fibres.hpp and in front of a kernel's source, in place of primitives.cuh. Shared memory starts as NaN in every block, and a
// warp runs for a random while before another does, so that a kernel that does not wait where it must gives wrong numbers.

#include <utility>

typedef unsigned char u8;

#define DEVICE static inline
#define KERNEL(...) static void
#define SHARED(type, name, count)                          \
    alignas(16) static type name[count];                   \
    static int name##_block = -1;                          \
    if (name##_block != block_number) name##_block = block_number, memset((void*)name, 0xff, sizeof name)
#define UNROLL

struct Warp { Barrier barrier; u32 deposit[2][32]; };

static int block_number, num_threads, grid[3], where[3];
static Barrier whole;
static std::vector<Warp> warps;

static void meet(Barrier& barrier, int count) { wait(barrier, arrive(barrier, count)); }
static int thread_index() { return self->thread; }
static int block_x() { return where[0]; }
static int block_y() { return where[1]; }
static int block_z() { return where[2]; }
static int blocks_x() { return grid[0]; }
static int blocks_y() { return grid[1]; }
static int blocks_z() { return grid[2]; }
static void block_barrier() { meet(whole, num_threads); }
// What each lane of the warp has brought; two places in turn, so that one rendezvous is enough.
template <class T> static T exchange(T value, int from) {
    Warp& warp = warps[self->thread / 32];
    u32* places = warp.deposit[self->turn ^= 1];
    const int lane = self->thread % 32;
    memcpy(&places[lane], &value, 4);
    meet(warp.barrier, 32);
    T found;
    memcpy(&found, &places[from >= 0 && from < 32 ? from : lane], 4);
    return found;
}
static float shuffle_down(float value, int by) { return exchange(value, self->thread % 32 + by); }
static int shuffle_up(int value, int by) { return exchange(value, self->thread % 32 - by); }
static u32 multiply_high(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
static void atomic_min(u64* place, u64 value) { *place = std::min(*place, value); }
static void atomic_add(float* place, float value) { *place += value; }
static void turn(float part, float* sine, float* cosine) {
    *sine = (float)sin(6.283185307179586 * part), *cosine = (float)cos(6.283185307179586 * part);
}

struct half16 { u16 bits; };
struct brain16 { u16 bits; };
static float to_float(float x) { return x; }
static float to_float(u8 x) { return x; }
static float to_float(half16 x) { _Float16 y; memcpy(&y, &x, 2); return (float)y; }
static float to_float(brain16 x) { return __uint_as_float((u32)x.bits << 16); }

static void launch(int x, int y, int z, int threads) {
    grid[0] = x, grid[1] = y, grid[2] = z, num_threads = threads;
    std::vector<int> order(x * y * z);
    for (size_t n = 0; n < order.size(); n++) order[n] = (int)n;
    std::shuffle(order.begin(), order.end(), dice);
    for (int n : order) {
        where[0] = n % x, where[1] = n / x % y, where[2] = n / x / y, block_number++;
        whole = Barrier(), warps.assign(threads / 32, Warp());
        Fibres fibres;
        for (int thread = 0; thread < threads; thread++) add_fibre(fibres, n, thread);
        run_all(fibres);
    }
}

template <class... A, size_t... I> static void apply(void (*kernel)(A...), void** given, std::index_sequence<I...>) {
    kernel(*(A*)given[I]...);
}
template <class... A> static void call(void (*kernel)(A...), void** given) {
    apply(kernel, given, std::index_sequence_for<A...>());
}
#define ENTRY(name)                                                                       \
    extern "C" void host_##name(void** given, int x, int y, int z, int threads) {         \
        static void** mine;                                                               \
        mine = given, body = [] { call(name, mine); };                                    \
        launch(x, y, z, threads);                                                         \
    }
