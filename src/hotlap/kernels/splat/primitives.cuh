// What the splatting kernels need of the machine; no header of the toolkit, so that NVRTC needs no path to any.
// Compiled in front of the others. mul, minus and mad are
// for arithmetic that two kernels must round alike: the compiler does not contract them.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE static __device__ __forceinline__
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define UNROLL _Pragma("unroll")
#define WHOLE_WARP 0xffffffffu

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int block_index() { return blockIdx.x; }
DEVICE int camera_index() { return blockIdx.y; }
DEVICE void block_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }
DEVICE u32 ballot(bool yes) { return __ballot_sync(WHOLE_WARP, yes); }
DEVICE bool any_lane(bool yes) { return __any_sync(WHOLE_WARP, yes); }
DEVICE bool all_lanes(bool yes) { return __all_sync(WHOLE_WARP, yes); }
DEVICE u32 lanes_alike(int value) { return __match_any_sync(WHOLE_WARP, value); }  // those with the same
DEVICE float shuffle(float value, int from) { return __shfl_sync(WHOLE_WARP, value, from); }
DEVICE int shuffle(int value, int from) { return __shfl_sync(WHOLE_WARP, value, from); }
DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(WHOLE_WARP, value, mask); }
DEVICE int shuffle_xor(int value, int mask) { return __shfl_xor_sync(WHOLE_WARP, value, mask); }
DEVICE u64 shuffle_xor(u64 value, int mask) { return __shfl_xor_sync(WHOLE_WARP, value, mask); }
DEVICE int count_bits(u32 mask) { return __popc(mask); }
DEVICE int first_bit(u32 mask) { return __ffs(mask) - 1; }

DEVICE void add(float* at, float value) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "f"(value) : "memory");
}
DEVICE void add(int* at, int value) { atomicAdd(at, value); }
DEVICE int fetch_add(int* at, int value) { return atomicAdd(at, value); }
// How many blocks have come here before. What they have added by then is there for all threads of this one that it waits
// for afterwards, as what its threads have added before it waited is for those that come later.
DEVICE int arrive_at(int* done) {
    __threadfence();
    const int before = atomicAdd(done, 1);
    __threadfence();
    return before;
}
DEVICE void raise_to(int* at, int value) { atomicMax(at, value); }
// Into memory of the host, who looks there while kernels run.
DEVICE void tell_host(int* at, int value) { *(volatile int*)at = value, __threadfence_system(); }

DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
DEVICE float minus(float a, float b) { return __fsub_rn(a, b); }
DEVICE float mad(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// A number that stays in its register: without this it is computed again wherever it is used, to save the register.
DEVICE void keep(int& x) { asm volatile("" : "+r"(x)); }
DEVICE void keep(float*& x) { asm volatile("" : "+l"(x)); }
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
