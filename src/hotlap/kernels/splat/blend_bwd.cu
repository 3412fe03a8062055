// What each pixel's gradient tells the splats: the tile's list backwards, with two numbers of state a pixel.
//
// Let L be the loss as a function of the light T that passes a splat: what lies behind changes it by T * G. At the end G is
// (background . g) - g_alpha, where g is the gradient of the pixel's colour. A splat with colour c, covering alpha of the
// light T before it, has dL/dalpha = T (c . g - G), and in front of it G is G + alpha (c . g - G).
//
// With h = alpha dL/dalpha a splat needs the sums over pixels of h, h dx, h dy, h dx^2, h dx dy, h dy^2 and of its weight
// times g; the projection turns them into gradients.
//
// The warp's sums are folded: at each step a lane gives half of its numbers away and adds the half it gets. The pixels of
// a column have one dx, so that a thread sums h, h dy, h dy^2 and the channels, the four lanes of a column fold those, and
// only then is dx multiplied in, by the lanes that hold h and h dy. The eight columns fold the rest.

#define COLUMN_SUMS (3 + CHAN + 2 * ABSGRAD)
#define HALF ((COLUMN_SUMS + 1) / 2)
#define QUARTER ((HALF + 1) / 2)
// Lanes 8 g to 8 g + 7 hold the g-th part of a column's sums. The last number of part 1 is h dy, and the last of all is h.
#define H_PART (COLUMN_SUMS - HALF > QUARTER ? 3 : 2)
#define H_SIZE (H_PART == 3 ? COLUMN_SUMS - HALF - QUARTER : COLUMN_SUMS - HALF)
#define H_DY_SIZE (HALF - QUARTER)
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define WIDEST LARGER(LARGER(QUARTER, H_SIZE + 2), H_DY_SIZE + 1)
#define SUMS_LEFT ((WIDEST + 7) / 8)  // of one lane, in the end

// The place of the n-th of the sums other than h and h dy: h dy^2, channels, absolute x and y.
DEVICE constexpr int other_sum(int n) { return n < HALF - 1 ? n : n + 1; }

// Which of a splat's SUMS is the n-th number of a part, after dx is multiplied in; -1: none.
DEVICE int name_of(int part, int n) {
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

// How far apart the n-th sums of two splats are, where sum_place says they lie.
DEVICE int sum_stride(const Frame& f, int n) { return f.sums ? SUMS : n < 4 ? 4 : n < 10 ? 3 : 1; }

// The gradient of the background: of each channel, the light that reaches it times g.
DEVICE void add_background(const Frame& f, const Strip& s, const float (&light)[PIXELS], const float (&g)[PIXELS][CHAN_ROOM]) {
    for (int i = 0; i < CHANNELS; i++) {
        float sum = 0.0f;
UNROLL
        for (int j = 0; j < PIXELS; j++) {
UNROLL
            for (int k = 0; k < CHAN; k++) sum += k == i ? light[j] * g[j][k] : 0.0f;
        }
UNROLL
        for (int mask = 16; mask; mask >>= 1) sum += shuffle_xor(sum, mask);
        if ((thread_index() & 31) == 0) add(f.out_backgrounds + s.camera * CHANNELS + i, sum);
    }
}

KERNEL(BLEND_THREADS, BLEND_BLOCKS)
splat_blend_bwd_kernel(const Frame f) {
    SHARED(float, staged, TILE_WARPS * 32 * SLOT_FLOATS);
    const int lane = thread_index() & 31;
    float* const slots = staged + (thread_index() >> 5) * 32 * SLOT_FLOATS;
    const Strip s = make_strip(f);
    const int begin = f.ranges[s.tile];
    const float x = s.x + 0.5f;
    float light[PIXELS], behind[PIXELS], g[PIXELS][CHAN_ROOM];  // behind: G
    int last[PIXELS], end = 0;
UNROLL
    for (int j = 0; j < PIXELS; j++) {
        const bool in = s.x < f.width && s.y + 4 * j < f.height;
        const i64 pixel = ((i64)s.camera * f.height + s.y + 4 * j) * f.width + s.x;
        light[j] = in ? f.light[pixel] : 0.0f;
        last[j] = in ? f.lasts[pixel] : 0;
        behind[j] = in && f.v_alphas ? -f.v_alphas[pixel] : 0.0f;
        end = last[j] > end ? last[j] : end;
UNROLL
        for (int i = 0; i < CHAN; i++) {
            g[j][i] = in && f.v_image ? f.v_image[pixel * CHAN + i] : 0.0f;
            if (f.backgrounds && i < CHANNELS) behind[j] = mad(f.backgrounds[s.camera * CHANNELS + i], g[j][i], behind[j]);
        }
    }
    if (f.out_backgrounds) add_background(f, s, light, g);
UNROLL
    for (int mask = 16; mask; mask >>= 1) {
        const int other = shuffle_xor(end, mask);
        end = other > end ? other : end;
    }
    if (end <= begin) return;
    int strides[SUMS_LEFT];  // 0: this lane has no such sum
    float* places[SUMS_LEFT];
    share_sums(lane, strides);
UNROLL
    for (int i = 0; i < SUMS_LEFT; i++) {
        const int name = strides[i];
        places[i] = sum_place(f, (i64)s.camera * f.num_splats, name < 0 ? 0 : name);
        strides[i] = name < 0 ? 0 : sum_stride(f, name);
        keep(places[i]), keep(strides[i]);
    }

    Entry next;
    if (end - 32 + lane >= begin) next = load_entry(f, s.camera, end - 32 + lane);
    for (int base = end - 32; base + 32 > begin; base -= 32) {
        const Entry mine = next;
        const int at = base + lane;
        if (at - 32 >= begin) next = load_entry(f, s.camera, at - 32);
        const u32 blocks = at >= begin ? blocks_reached(f, s, mine.e) : 0;
        const u32 live = ballot(blocks != 0);
        if (live == 0) continue;
        warp_barrier();  // the batch before this one is used up
        if (blocks) stage(f, s, slots + count_bits(live & ((1u << lane) - 1)) * SLOT_FLOATS, mine, blocks, at);
        warp_barrier();  // what is staged is there for all
        for (int n = count_bits(live) - 1; n >= 0; n--) {
            const float4* slot = reinterpret_cast<const float4*>(slots + n * SLOT_FLOATS);
            const float4 centre = slot[0], quad = slot[1];
            const u32 where = __float_as_uint(centre.w);
            const int place = __float_as_int(quad.w);
            const Column column = make_column(centre, quad, x);
            float chan[SLOT_FLOATS - 8], v[COLUMN_SUMS];
UNROLL
            for (int i = 0; i < (SLOT_FLOATS - 8) / 4; i++) {
                const float4 c = slot[2 + i];
                chan[4 * i] = c.x, chan[4 * i + 1] = c.y, chan[4 * i + 2] = c.z, chan[4 * i + 3] = c.w;
            }
UNROLL
            for (int i = 0; i < COLUMN_SUMS; i++) v[i] = 0.0f;
            const float dx = minus(centre.x, x), top_dy = first_dy(s, centre);
            bool touched = false;
UNROLL
            for (int j = 0; j < PIXELS; j++) {
                if (!(where >> j & 1)) continue;
                const float dy = next_dy(s, top_dy, j), power = exponent(column, quad.z, dy);
                if (!(power >= -LOG2_255) || place >= last[j]) continue;
                touched = true;
                const float alpha = exp2_fast(fminf(power, LOG2_MAX_ALPHA));
                light[j] *= reciprocal_fast(1.0f - alpha);
                const float weight = alpha * light[j];
                float more = -behind[j];
UNROLL
                for (int i = 0; i < CHAN; i++) {
                    more = mad(chan[i], g[j][i], more);
                    v[other_sum(1 + i)] = mad(weight, g[j][i], v[other_sum(1 + i)]);
                }
                behind[j] = mad(alpha, more, behind[j]);
                const float h = power > LOG2_MAX_ALPHA ? 0.0f : weight * more, h_dy = h * dy;
                v[COLUMN_SUMS - 1] += h, v[HALF - 1] += h_dy, v[other_sum(0)] = mad(h_dy, dy, v[other_sum(0)]);
#if ABSGRAD
                v[other_sum(1 + CHAN)] += fabsf(h * (2.0f * quad.x * dx + quad.y * dy));
                v[other_sum(2 + CHAN)] += fabsf(h * (2.0f * quad.z * dy + quad.y * dx));
#endif
            }
            if (!any_lane(touched)) continue;
            float w[WIDEST];
            fold(v, fold(v, COLUMN_SUMS, lane, 16), lane, 8);
            widen(v, dx, lane, w);
            fold(w, fold(w, fold(w, WIDEST, lane, 4), lane, 2), lane, 1);
UNROLL
            for (int i = 0; i < SUMS_LEFT; i++)
                if (strides[i]) add(places[i] + (u64)(where >> 4) * (u32)strides[i], w[i]);
        }
    }
}
