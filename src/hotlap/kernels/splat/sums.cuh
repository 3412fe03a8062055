// How a warp adds up what its pixels tell a splat. The pixels of a column have one dx, so that a thread sums h, h dy, h dy^2,
// the channels and the absolute values over its own; h dx, h dx^2 and h dx dy follow where columns are added.
//
// Numbers are folded over lanes: at each step a lane gives half of its numbers away and adds the half it gets. With few
// channels the threads put their sums into shared memory, and do that for several splats at once: eight lanes a splat, each
// of which reads four columns. Else the sums of each splat are folded by themselves: first over the four lanes of a column,
// then, with dx multiplied in by the lanes that hold h and h dy, over the eight columns.

#define COLUMN_SUMS (3 + CHAN + 2 * ABSGRAD)
#ifndef BUNDLE
// Splats whose sums are added together. A block has 48 KiB of shared memory, which more channels or warps would fill.
#define BUNDLE (CHAN <= 4 && TILE_WARPS * COLUMN_SUMS <= 64 ? 4 : 0)
#endif
#define BUNDLE_FLOATS (COLUMN_SUMS * 32 + 4)  // of one splat: its sums, lane by lane, then the centre's x and its number
#define HALF ((COLUMN_SUMS + 1) / 2)
#define QUARTER ((HALF + 1) / 2)
// Lanes 8 g to 8 g + 7 hold the g-th part of a column's sums. The last number of part 1 is h dy, and the last of all is h.
#define H_PART (COLUMN_SUMS - HALF > QUARTER ? 3 : 2)
#define H_SIZE (H_PART == 3 ? COLUMN_SUMS - HALF - QUARTER : COLUMN_SUMS - HALF)
#define H_DY_SIZE (HALF - QUARTER)
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define WIDEST (BUNDLE ? SUMS : LARGER(LARGER(QUARTER, H_SIZE + 2), H_DY_SIZE + 1))
#define SUMS_LEFT ((WIDEST + 7) / 8)  // of one lane, in the end
#define H_AT (BUNDLE ? 0 : COLUMN_SUMS - 1)
#define H_DY_AT (BUNDLE ? 1 : HALF - 1)

// The place of the n-th of the sums other than h and h dy: h dy^2, channels, absolute x and y.
DEVICE constexpr int other_sum(int n) { return BUNDLE ? n + 2 : n < HALF - 1 ? n : n + 1; }

// Which of a splat's SUMS is the n-th number of a part, after dx is multiplied in; -1: none.
DEVICE int name_of(int part, int n) {
    if (BUNDLE) return n;
    const int begin = (part & 2 ? HALF : 0) + (part & 1 ? QUARTER : 0), limit = part & 2 ? COLUMN_SUMS : HALF;
    const int size = part & 1 ? limit - begin : (begin + QUARTER < limit ? QUARTER : limit - begin);
    if (n < size) {
        const int at = begin + n;
        return at == COLUMN_SUMS - 1 ? 0 : at == HALF - 1 ? 2 : 5 + (at < HALF ? at : at - 1);
    }
    if (part == H_PART) return n == size ? 1 : n == size + 1 ? 3 : -1;
    return part == 1 && n == size ? 4 : -1;
}

// The sums that this lane adds to memory.
DEVICE void share_sums(int lane, int (&names)[SUMS_LEFT]) {
    int first = 0, end = WIDEST, num = WIDEST;
UNROLL
    for (int mask = 4; mask > 0; mask >>= 1) {
        const int half = (num + 1) / 2;
        if (!(lane & mask)) end = first + half < end ? first + half : end;
        else first = num > 1 ? first + half : WIDEST;  // a single sum is whole in both halves; the lower one adds it
        num = half;
    }
UNROLL
    for (int i = 0; i < SUMS_LEFT; i++) names[i] = first + i < end ? name_of(lane >> 3, first + i) : -1;
}

// Folds the first `num` numbers over the lanes that differ in `mask`; half as many are left.
template <int SIZE> DEVICE int fold(float (&v)[SIZE], int num, int lane, int mask) {
    const int half = (num + 1) / 2;
    const bool upper = (lane & mask) != 0;
UNROLL
    for (int i = 0; i < (SIZE + 1) / 2; i++) {
        if (i >= half) continue;
        if (num == 1) {
            v[i] += shuffle_xor(v[i], mask);
        } else {
            const float low = v[i], high = i + half < num ? v[i + half < SIZE ? i + half : 0] : 0.0f;
            v[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, mask);
        }
    }
    return half;
}

#if !BUNDLE
// A column's sums, with dx multiplied in. Numbers that a part does not have are left as they are: no lane adds them.
DEVICE void widen(const float (&v)[COLUMN_SUMS], float dx, int lane, float (&w)[WIDEST]) {
    const int part = lane >> 3;
    const float h_dx = v[H_SIZE - 1] * dx, h_dy_dx = v[H_DY_SIZE - 1] * dx;
    const bool alike = H_SIZE == H_DY_SIZE && H_PART == 3;  // then odd parts have the same number there
UNROLL
    for (int n = 0; n < WIDEST; n++) {
        w[n] = n < QUARTER ? v[n] : n == H_SIZE + 1 ? h_dx * dx : n == H_SIZE ? h_dx : h_dy_dx;
        if (alike && n == H_SIZE) {
            w[n] = part & 1 ? h_dx : w[n];
        } else {
            if (n == H_SIZE) w[n] = part == H_PART ? h_dx : w[n];
            if (n == H_DY_SIZE) w[n] = part == 1 ? h_dy_dx : w[n];
            if (n == H_SIZE + 1) w[n] = part == H_PART ? h_dx * dx : w[n];
        }
    }
}
#else
// One splat's sums of this thread to their place in the bundle.
DEVICE void put_sums(float* bundle, int place, int lane, const float (&v)[COLUMN_SUMS], float x, u32 id) {
    float* const to = bundle + place * BUNDLE_FLOATS;
UNROLL
    for (int i = 0; i < COLUMN_SUMS; i++) to[i * 32 + lane] = v[i];
    if (lane == 0) *reinterpret_cast<float2*>(to + COLUMN_SUMS * 32) = make_float2(x, __uint_as_float(id));
}

DEVICE float sum_of(const float4& v) { return (v.x + v.y) + (v.z + v.w); }

// The sums of the splat whose part of the bundle this lane reads, over four columns; the splat's number comes back.
DEVICE u32 read_sums(const float* bundle, int lane, float left, float (&w)[SUMS]) {
    const float* const from = bundle + (lane >> 3) * BUNDLE_FLOATS;
    const float4* const mine = reinterpret_cast<const float4*>(from) + (lane & 7);
    const float2 who = *reinterpret_cast<const float2*>(from + COLUMN_SUMS * 32);
    const float4 h = mine[0], h_dy = mine[8];
    const float dx = who.x - left - 4 * (lane & 1), dx1 = dx - 1.0f, dx2 = dx - 2.0f, dx3 = dx - 3.0f;
    const float4 h_dx = make_float4(h.x * dx, h.y * dx1, h.z * dx2, h.w * dx3);
    w[0] = sum_of(h), w[1] = sum_of(h_dx), w[2] = sum_of(h_dy);
    w[3] = h_dx.x * dx + h_dx.y * dx1 + h_dx.z * dx2 + h_dx.w * dx3;
    w[4] = h_dy.x * dx + h_dy.y * dx1 + h_dy.z * dx2 + h_dy.w * dx3;
UNROLL
    for (int i = 2; i < COLUMN_SUMS; i++) w[3 + i] = sum_of(mine[8 * i]);
    return __float_as_uint(who.y);
}
#endif

// How far apart the n-th sums of two splats are, where sum_place says they lie.
DEVICE int sum_stride(const Frame& f, int n) { return f.sums ? SUMS : n < 4 ? 4 : n < 10 ? 3 : 1; }

// Where this lane's sums of splat 0 lie, and how far apart those of two splats are; 0: it has no such sum.
DEVICE void find_places(const Frame& f, int camera, int lane, float* (&places)[SUMS_LEFT], int (&strides)[SUMS_LEFT]) {
    int names[SUMS_LEFT];
    share_sums(lane, names);
UNROLL
    for (int i = 0; i < SUMS_LEFT; i++) {
        places[i] = sum_place(f, (i64)camera * f.num_splats, names[i] < 0 ? 0 : names[i]);
        strides[i] = names[i] < 0 ? 0 : sum_stride(f, names[i]);
    }
}

#if BUNDLE
#define TARGETS (8 * SUMS_LEFT * 2)  // of a warp: for each of eight lanes where its sums lie and how far apart

// The same in shared memory, where it takes no registers.
DEVICE void put_places(const Frame& f, int camera, int lane, u64* targets) {
    float* places[SUMS_LEFT];
    int strides[SUMS_LEFT];
    find_places(f, camera, lane, places, strides);
UNROLL
    for (int i = 0; i < SUMS_LEFT && lane < 8; i++) {
        targets[(lane * SUMS_LEFT + i) * 2] = (u64)places[i];
        targets[(lane * SUMS_LEFT + i) * 2 + 1] = (u64)strides[i];
    }
}

// Adds the first `num` splats of the bundle.
DEVICE void add_bundle(const float* bundle, const u64* targets, int num, int lane, float left) {
    float w[SUMS];
    warp_barrier();  // what was put is there for all
    const u32 id = read_sums(bundle, lane, left, w);
    warp_barrier();  // the bundle is used up
    fold(w, fold(w, fold(w, SUMS, lane, 4), lane, 2), lane, 1);
    const u64* const mine = targets + (lane & 7) * SUMS_LEFT * 2;
UNROLL
    for (int i = 0; i < SUMS_LEFT; i++) {
        const u32 stride = (u32)mine[2 * i + 1];
        if (stride && lane >> 3 < num) add((float*)mine[2 * i] + (u64)id * stride, w[i]);
    }
}
#endif
