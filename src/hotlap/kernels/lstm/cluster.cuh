// What lstm.cu needs of the machine besides primitives.cuh, in PTX: clusters of blocks and products of tiles.
// DTYPE is 0 for float32, 1 for float16, 2 for bfloat16.

#define CLUSTER_KERNEL(cluster, threads, blocks) \
    extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, blocks)

#if DTYPE == 0
typedef float elem;
DEVICE elem from_float(float x) { return x; }
DEVICE u32 bits(elem x) { return __float_as_uint(x); }
#else
typedef u16 elem;
DEVICE u32 bits(elem x) { return x; }
#endif

#if DTYPE == 1
DEVICE float to_float(elem x) { return to_float(half16{x}); }
DEVICE elem from_float(float x) { return to_half(x).bits; }
#elif DTYPE == 2
DEVICE float to_float(elem x) { return to_float(brain16{x}); }
DEVICE elem from_float(float x) {
    elem y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
#endif

extern __shared__ __align__(128) unsigned char dynamic_shared[];
DEVICE unsigned char* shared_memory() { return dynamic_shared; }
DEVICE int cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}

// Waits for the 64 threads of one pair of warps; barrier 0 is the whole block's.
DEVICE void pair_barrier(int pair) { asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory"); }
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEVICE u32 shuffle_xor(u32 value, int mask) { return __shfl_xor_sync(WHOLE_WARP, value, mask); }

typedef u32 peer_address;
// Where the shared memory at `mine` lies in the block `rank` of this cluster.
DEVICE peer_address peer(const unsigned char* mine, int rank) {
    u32 address = (u32)__cvta_generic_to_shared(mine), there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
DEVICE void store_peer(peer_address at, uint4 v) {
    asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
DEVICE void store_peer(peer_address at, uint2 v) {
    asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(v.x), "r"(v.y) : "memory");
}

// Volatile, so that the halves of the weights are made anew at each step: kept, they would take twice the registers.
DEVICE u32 round_tf32(u32 x) {
    u32 y;
    asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
    return y;
}

#if DTYPE == 0
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
#elif DTYPE == 1
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#endif
// d [16, 8] += a [16, K] b [K, 8] over the warp; K is 8 floats or 16 halves.
DEVICE void multiply(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
