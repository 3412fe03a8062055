// The primitives of lstm.cu on a CPU, over fibres.hpp.
//
// Compiled in front of lstm.cu in place of primitives.cuh and cluster.cuh. The products follow the layouts of PTX's mma instructions.
// Shared memory starts as NaN. A store to another block is seen at once or only after the next cluster barrier, at
// random, so that a kernel that does not wait where it must gives wrong numbers.

#define DEVICE static inline
#define CLUSTER_KERNEL(cluster, threads, blocks) static void

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

struct Warp { Barrier barrier; u32 deposit[2][32][6]; };
struct Block { std::vector<unsigned char> shared; Barrier barrier, pairs[4]; std::vector<Warp> warps; };
struct Pending { unsigned char* at; unsigned char bytes[16]; int size; };
struct Cluster { std::vector<Block> blocks; Barrier barrier; std::vector<Pending> pending; };

static Cluster* cluster;
static int tile_index, tile_direction;

static Block& block() { return cluster->blocks[self->block]; }
static unsigned char* shared_memory() { return block().shared.data(); }
static int thread_index() { return self->thread; }
static int block_x() { return tile_index * (int)cluster->blocks.size() + self->block; }
static int block_y() { return tile_direction; }
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

// Runs `body` in every thread of every cluster, one cluster after another.
static void launch(int blocks, int tiles, int directions, int shared_bytes) {
    for (int which = 0; which < tiles * directions; which++) {
        tile_index = which / directions, tile_direction = which % directions;
        Cluster mine;
        cluster = &mine;
        mine.blocks.resize(blocks);
        for (Block& b : mine.blocks) b.shared.assign(shared_bytes, 0xff), b.warps.resize(8);
        Fibres fibres;
        for (int n = 0; n < 256 * blocks; n++) add_fibre(fibres, n / 256, n % 256);
        run_all(fibres);
    }
}
