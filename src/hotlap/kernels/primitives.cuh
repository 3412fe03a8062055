// What kernels need of the machine; no header of the toolkit, so that NVRTC needs no path to any.
// Compiled in front of the kernels of ssim, adam, densify, chamfer, dropout and, with cluster.cuh after it, lstm.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE static __device__ __forceinline__
// Threads of a block and, where it matters, blocks of a multiprocessor.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define UNROLL _Pragma("unroll")
#define WHOLE_WARP 0xffffffffu

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int block_x() { return blockIdx.x; }
DEVICE int block_y() { return blockIdx.y; }
DEVICE int block_z() { return blockIdx.z; }
DEVICE int blocks_x() { return gridDim.x; }
DEVICE int blocks_y() { return gridDim.y; }
DEVICE int blocks_z() { return gridDim.z; }
DEVICE void block_barrier() { __syncthreads(); }
DEVICE float shuffle_down(float value, int by) { return __shfl_down_sync(WHOLE_WARP, value, by); }
DEVICE int shuffle_up(int value, int by) { return __shfl_up_sync(WHOLE_WARP, value, by); }
DEVICE u32 multiply_high(u32 a, u32 b) { return __umulhi(a, b); }
DEVICE void atomic_min(u64* place, u64 value) { atomicMin(place, value); }
DEVICE void atomic_add(float* place, float value) { atomicAdd(place, value); }

// Sine and cosine of a part of a whole turn.
DEVICE void turn(float part, float* sine, float* cosine) { sincospif(2.0f * part, sine, cosine); }

struct half16 { u16 bits; };
struct brain16 { u16 bits; };
DEVICE float to_float(float x) { return x; }
DEVICE float to_float(u8 x) { return (float)x; }
DEVICE float to_float(half16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DEVICE float to_float(brain16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE half16 to_half(float x) {
    half16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
