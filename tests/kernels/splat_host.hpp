// The primitives of the splatting kernels on a CPU, over fibres.hpp.
//
// Compiled in front of the kernels in place of primitives.cuh. Shared memory starts as NaN, so that a kernel that does not
// wait where it must gives wrong numbers.

#define DEVICE static inline
#define KERNEL(threads, blocks) static void
#define SHARED(type, name, count) type* const name = (type*)shared_memory(#name, sizeof(type) * (count))
#define UNROLL

struct Warp { Barrier barrier; u64 deposit[2][32]; };
struct Block {
    std::map<std::string, std::vector<unsigned char>> shared;
    Barrier barrier;
    std::vector<Warp> warps;
    int threads;
};

static Block* block;
static int which_block, which_camera;

static void meet(Barrier& barrier, int count) { wait(barrier, arrive(barrier, count)); }
static void* shared_memory(const char* name, size_t bytes) {
    auto& place = block->shared[name];
    if (place.empty()) place.assign(bytes, 0xff);
    return place.data();
}
static int thread_index() { return self->thread; }
static int block_index() { return which_block; }
static int camera_index() { return which_camera; }
static void block_barrier() { meet(block->barrier, block->threads); }
static Warp& warp() { return block->warps[self->thread / 32]; }
static void warp_barrier() { meet(warp().barrier, 32); }

// What each lane of the warp has brought; two places in turn, so that one meeting is enough.
static u64* gather(u64 mine) {
    u64* places = warp().deposit[self->turn ^= 1];
    places[self->thread % 32] = mine;
    meet(warp().barrier, 32);
    return places;
}
static u32 ballot(bool yes) {
    const u64* lanes = gather(yes);
    u32 mask = 0;
    for (int n = 0; n < 32; n++) mask |= (u32)(lanes[n] != 0) << n;
    return mask;
}
static bool any_lane(bool yes) { return ballot(yes) != 0; }
static bool all_lanes(bool yes) { return ballot(yes) == 0xffffffffu; }
static u32 lanes_alike(int value) {
    const u64* lanes = gather((u32)value);
    u32 mask = 0;
    for (int n = 0; n < 32; n++) mask |= (u32)(lanes[n] == (u32)value) << n;
    return mask;
}
static float shuffle(float value, int from) { return __uint_as_float((u32)gather(__float_as_uint(value))[from & 31]); }
static int shuffle(int value, int from) { return (int)gather((u32)value)[from & 31]; }
static float shuffle_xor(float value, int mask) { return shuffle(value, self->thread % 32 ^ mask); }
static int shuffle_xor(int value, int mask) { return shuffle(value, self->thread % 32 ^ mask); }
static u64 shuffle_xor(u64 value, int mask) { return gather(value)[self->thread % 32 ^ mask]; }
static int count_bits(u32 mask) { return __builtin_popcount(mask); }
static int first_bit(u32 mask) { return __builtin_ffs((int)mask) - 1; }

static void add(float* at, float value) { *at += value; }
static void add(int* at, int value) { *at += value; }
static int fetch_add(int* at, int value) { const int before = *at; *at += value; return before; }
static int arrive_at(int* done) { return (*done)++; }
static void raise_to(int* at, int value) { *at = std::max(*at, value); }
static void tell_host(int* at, int value) { *at = value; }

static float mul(float a, float b) { return a * b; }
static float minus(float a, float b) { return a - b; }
static float mad(float a, float b, float c) { return fmaf(a, b, c); }
static void keep(int&) {}
static void keep(float*&) {}
static float exp2_fast(float x) { return exp2f(x); }
static float reciprocal_fast(float x) { return 1.0f / x; }

static void run_block(int threads) {
    Block mine;
    block = &mine;
    mine.threads = threads, mine.warps.resize(threads / 32);
    Fibres fibres;
    for (int n = 0; n < threads; n++) add_fibre(fibres, 0, n);
    run_all(fibres);
}
