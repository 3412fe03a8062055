// Threads of a card on a CPU: every thread is a fibre, and the fibres of a warp run one after another up to where they
// must meet. Warps run in a random order. Compiled in front of the primitives of a kernel's own.

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
typedef unsigned short u16;
typedef unsigned long long u64;
typedef long long i64;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct int2 { int x, y; };
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static int2 make_int2(int x, int y) { return {x, y}; }
static uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
static float __uint_as_float(u32 x) { float y; memcpy(&y, &x, 4); return y; }
static int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }

struct Barrier { int waiting = 0, generation = 0; };
struct Fibre {
    ucontext_t context;
    jmp_buf here;
    std::vector<char> stack;
    int block, thread, turn = 0, arrived = 0;
    Barrier* waits_for = nullptr;
    int until_after = 0;
    bool started = false, done = false;
};
typedef std::vector<std::unique_ptr<Fibre>> Fibres;

static Fibre* self;
static jmp_buf scheduler;
static std::mt19937 dice(0);
static void (*body)();

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
static int arrive(Barrier& barrier, int count) {
    int before = barrier.generation;
    if (++barrier.waiting == count) barrier.waiting = 0, barrier.generation++;
    return before;
}
static void wait(Barrier& barrier, int before) {
    self->waits_for = &barrier, self->until_after = before;
    while (barrier.generation == before) yield();
    self->waits_for = nullptr;
}

static void enter() { body(); self->done = true; yield(); }
static void add_fibre(Fibres& fibres, int block, int thread) {
    auto f = std::make_unique<Fibre>();
    f->block = block, f->thread = thread, f->stack.resize((32 << 10) + fibres.size() * 7 % 64 * 64);  // not all at the same place of a cache
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack.data(), f->context.uc_stack.ss_size = f->stack.size();
    makecontext(&f->context, enter, 0);
    fibres.push_back(std::move(f));
}

// Runs `body` in every fibre to its end; 32 after another are a warp.
static void run_all(Fibres& fibres) {
    const int warps = (int)fibres.size() / 32;
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
