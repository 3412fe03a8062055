// The primitives of the splatting kernels on a CPU: every thread of a block is a fibre, and warps run in a random order.
//
// Compiled in front of the kernels in place of primitives.cuh. Shared memory starts as NaN. Lanes of a warp run one after
// another up to where they must meet, so that a kernel that does not wait where it must gives wrong numbers.

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct int2 { int x, y; };
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static int2 make_int2(int x, int y) { return {x, y}; }
static u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
static float __uint_as_float(u32 x) { float y; memcpy(&y, &x, 4); return y; }
static int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }

#define DEVICE static inline
#define KERNEL(threads, blocks) static void
#define SHARED(type, name, count) type* const name = (type*)shared_memory(#name, sizeof(type) * (count))
#define UNROLL

struct Barrier { int waiting = 0, generation = 0; };
struct Warp { Barrier barrier; u64 deposit[2][32]; };
struct Block { std::map<std::string, std::vector<unsigned char>> shared; Barrier barrier; std::vector<Warp> warps; int threads, gone = 0; };
struct Fibre {
    ucontext_t context;
    jmp_buf here;
    std::vector<char> stack;
    int thread, turn = 0;
    Barrier* waits_for = nullptr;
    int until_after = 0;
    bool started = false, done = false;
};

static Block* block;
static Fibre* self;
static jmp_buf scheduler;
static int which_block, which_camera;
static std::mt19937 dice(0);

static void yield() {
    if (!_setjmp(self->here)) _longjmp(scheduler, 1);
}
// Jumps are many times faster than setcontext, which asks the kernel for the signal mask; it is for the start only.
static void resume() {
    if (_setjmp(scheduler)) return;
    if (self->started) _longjmp(self->here, 1);
    self->started = true;
    setcontext(&self->context);
}
static void meet(Barrier& barrier, int count) {
    const int before = barrier.generation;
    if (++barrier.waiting == count) barrier.waiting = 0, barrier.generation++;
    self->waits_for = &barrier, self->until_after = before;
    while (barrier.generation == before) yield();
    self->waits_for = nullptr;
}

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
static void raise_to(int* at, int value) { *at = std::max(*at, value); }

static float mul(float a, float b) { return a * b; }
static float minus(float a, float b) { return a - b; }
static float mad(float a, float b, float c) { return fmaf(a, b, c); }
static void keep(int&) {}
static void keep(float*&) {}
static float exp2_fast(float x) { return exp2f(x); }
static float reciprocal_fast(float x) { return 1.0f / x; }

static void (*body)();
static void enter() { body(); self->done = true; yield(); }

static void run_block(int threads) {
    Block mine;
    block = &mine;
    mine.threads = threads, mine.warps.resize(threads / 32);
    std::vector<std::unique_ptr<Fibre>> fibres;
    for (int n = 0; n < threads; n++) {
        auto f = std::make_unique<Fibre>();
        f->thread = n, f->stack.resize((32 << 10) + n * 7 % 64 * 64);  // not all at the same place of a cache
        getcontext(&f->context);
        f->context.uc_stack.ss_sp = f->stack.data(), f->context.uc_stack.ss_size = f->stack.size();
        makecontext(&f->context, enter, 0);
        fibres.push_back(std::move(f));
    }
    const int warps = threads / 32;
    for (bool running = true, moved = true; running;) {
        if (!moved) fprintf(stderr, "threads wait for each other forever\n"), abort();
        running = moved = false;
        const int first = dice() % warps;
        for (int n = 0; n < warps; n++) {
            // A warp runs until it must wait for another one, or for a while.
            bool moves = true;
            for (int rounds = dice() % 64; moves && rounds >= 0; rounds--) {
                moves = false;
                for (int lane = 0; lane < 32; lane++) {
                    self = fibres[(first + n) % warps * 32 + lane].get();
                    running = running || !self->done;
                    if (self->done || (self->waits_for && self->waits_for->generation == self->until_after)) continue;
                    moves = moved = true;
                    resume();
                }
            }
        }
    }
}
