// The primitives of lstm.cu on a CPU: every thread of a cluster is a fibre, and they run in a random order.
//
// Compiled in front of lstm.cu in place of primitives.cuh. The products follow the layouts of PTX's mma instructions.
// Shared memory starts as NaN. A store to another block is seen at once or only after the next cluster barrier, at
// random, so that a kernel that does not wait where it must gives wrong numbers.

#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>

#include <memory>
#include <random>
#include <vector>

typedef unsigned int u32;
typedef unsigned short u16;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
static float __uint_as_float(u32 x) { float y; memcpy(&y, &x, 4); return y; }

#define DEVICE static inline
#define KERNEL(cluster, threads, blocks) static void

#if DTYPE == 0
typedef float elem;
static float to_float(elem x) { return x; }
static elem from_float(float x) { return x; }
static u32 bits(elem x) { return __float_as_uint(x); }
#else
typedef u16 elem;
static u32 bits(elem x) { return x; }
#endif
#if DTYPE == 1
static float to_float(elem x) { _Float16 y; memcpy(&y, &x, 2); return (float)y; }
static elem from_float(float x) { _Float16 y = (_Float16)x; elem z; memcpy(&z, &y, 2); return z; }
#elif DTYPE == 2
static float to_float(elem x) { return __uint_as_float((u32)x << 16); }
static elem from_float(float x) { u32 y = __float_as_uint(x); return (elem)((y + 0x7fff + (y >> 16 & 1)) >> 16); }
#endif

struct Barrier { int waiting = 0, generation = 0; };
struct Warp { Barrier barrier; u32 deposit[2][32][6]; };
struct Block { std::vector<unsigned char> shared; Barrier barrier, pairs[4]; std::vector<Warp> warps; };
struct Pending { unsigned char* at; unsigned char bytes[16]; int size; };
struct Cluster { std::vector<Block> blocks; Barrier barrier; std::vector<Pending> pending; };
struct Fibre {
    ucontext_t context;
    jmp_buf here;
    std::vector<char> stack;
    int block, thread, turn = 0, arrived = 0;
    Barrier* waits_for = nullptr;
    int until_after = 0;
    bool started = false, done = false;
};

static Cluster* cluster;
static Fibre* self;
static jmp_buf scheduler;
static int tile_index, tile_direction;
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

static Block& block() { return cluster->blocks[self->block]; }
static unsigned char* shared_memory() { return block().shared.data(); }
static int thread_index() { return self->thread; }
static int block_index() { return tile_index * (int)cluster->blocks.size() + self->block; }
static int direction_index() { return tile_direction; }
static int cluster_rank() { return self->block; }
static void block_barrier() { Barrier& b = block().barrier; wait(b, arrive(b, 256)); }
static void pair_barrier(int pair) { Barrier& b = block().pairs[pair]; wait(b, arrive(b, 64)); }
static void cluster_arrive() {
    self->arrived = arrive(cluster->barrier, 256 * (int)cluster->blocks.size());
    if (cluster->barrier.waiting) return;
    for (Pending& p : cluster->pending) memcpy(p.at, p.bytes, p.size);
    cluster->pending.clear();
}
static void cluster_wait() { wait(cluster->barrier, self->arrived); }

typedef unsigned char* peer_address;
static peer_address peer(const unsigned char* mine, int rank) {
    return cluster->blocks[rank].shared.data() + (mine - shared_memory());
}
template <class T> static void store_peer(peer_address at, T value) {
    Pending p = {at, {}, sizeof(T)};
    memcpy(p.bytes, &value, sizeof(T));
    if (dice() & 1) cluster->pending.push_back(p);
    else memcpy(at, p.bytes, p.size);
}

// What each lane of the warp has brought; two places in turn, so that one rendezvous is enough.
static u32 (*gather(std::initializer_list<u32> mine))[6] {
    Warp& warp = block().warps[self->thread / 32];
    u32(*places)[6] = warp.deposit[self->turn ^= 1];
    std::copy(mine.begin(), mine.end(), places[self->thread % 32]);
    wait(warp.barrier, arrive(warp.barrier, 32));
    return places;
}
static u32 shuffle_xor(u32 value, int mask) { return gather({value})[self->thread % 32 ^ mask][0]; }
static u32 round_tf32(u32 x) { return (x + 0x1000) & ~0x1fffu; }
static float part(u32 word, int half) {
#if DTYPE == 0
    return __uint_as_float(word & ~0x1fffu);
#else
    return to_float((u16)(word >> 16 * half));
#endif
}
static void multiply(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    u32(*lanes)[6] = gather({a0, a1, a2, a3, b0, b1});
    const int words = DTYPE == 0 ? 1 : 2, lane = self->thread % 32;
    for (int n = 0; n < 4; n++) {
        const int row = lane / 4 + 8 * (n / 2), column = lane % 4 * 2 + n % 2;
        for (int k = 0; k < 8 * words; k++) {
            const int high = k / (4 * words), quad = k % (4 * words) / words;
            d[n] += part(lanes[row % 8 * 4 + quad][row / 8 + 2 * high], k % words) *
                    part(lanes[column * 4 + quad][4 + high], k % words);
        }
    }
}

static void (*body)();
static void enter() { body(); self->done = true; yield(); }

// Runs `body` in every thread of every cluster, one cluster after another.
static void launch(int blocks, int tiles, int directions, int shared_bytes) {
    for (int which = 0; which < tiles * directions; which++) {
        tile_index = which / directions, tile_direction = which % directions;
        Cluster mine;
        cluster = &mine;
        mine.blocks.resize(blocks);
        for (Block& b : mine.blocks) b.shared.assign(shared_bytes, 0xff), b.warps.resize(8);
        std::vector<std::unique_ptr<Fibre>> fibres;
        for (int n = 0; n < 256 * blocks; n++) {
            auto f = std::make_unique<Fibre>();
            f->block = n / 256, f->thread = n % 256, f->stack.resize((32 << 10) + n * 7 % 64 * 64);  // not all at the same place of a cache
            getcontext(&f->context);
            f->context.uc_stack.ss_sp = f->stack.data(), f->context.uc_stack.ss_size = f->stack.size();
            makecontext(&f->context, enter, 0);
            fibres.push_back(std::move(f));
        }
        for (bool running = true; running;) {
            running = false;
            const int first = dice() % (8 * blocks);
            for (int n = 0; n < 8 * blocks; n++) {
                // A warp runs until it must wait for another one, or for a while.
                bool moves = true;
                for (int rounds = dice() % 64; moves && rounds >= 0; rounds--) {
                    moves = false;
                    for (int lane = 0; lane < 32; lane++) {
                        self = fibres[(first + n) % (8 * blocks) * 32 + lane].get();
                        running = running || !self->done;
                        if (self->done || (self->waits_for && self->waits_for->generation == self->until_after)) continue;
                        moves = true;
                        resume();
                    }
                }
            }
        }
    }
}
