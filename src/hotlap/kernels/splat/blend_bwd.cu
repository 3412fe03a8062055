// What each pixel's gradient tells the splats: the tile's list backwards, with two numbers of state a pixel.
//
// Let L be the loss as a function of the light T that passes a splat: what lies behind changes it by T * G. At the end G is
// (background . g) - g_alpha, where g is the gradient of the pixel's colour. A splat with colour c, covering alpha of the
// light T before it, has dL/dalpha = T (c . g - G), and in front of it G is G + alpha (c . g - G).
//
// With h = alpha dL/dalpha a splat needs the sums over pixels of h, h dx, h dy, h dx^2, h dx dy, h dy^2 and of its weight
// times g; the projection turns them into gradients. A thread's pixels lie in one column, so that dx is multiplied in
// after they are summed. The warp's sums are folded: in each of five steps a lane gives half of its numbers away.

#define SUMS_LEFT ((SUMS + 31) / 32)  // of one lane, after folding

// The sums that a lane ends up with, first <= which < end.
struct Share {
    int first, end;
};
DEVICE Share make_share(int lane) {
    Share s = {0, SUMS};
    int num = SUMS;
UNROLL
    for (int mask = 16; mask > 0; mask >>= 1) {
        const int half = (num + 1) / 2;
        if (!(lane & mask)) s.end = s.first + half < s.end ? s.first + half : s.end;
        else s.first = num > 1 ? s.first + half : SUMS;  // a single sum is whole in both halves; the lower one adds it
        num = half;
    }
    return s;
}

DEVICE void fold(float (&v)[SUMS], int lane) {
    int num = SUMS;
UNROLL
    for (int mask = 16; mask > 0; mask >>= 1) {
        const int half = (num + 1) / 2;
        const bool upper = (lane & mask) != 0;
UNROLL
        for (int i = 0; i < (SUMS + 1) / 2; i++) {
            if (i >= half) continue;
            if (num == 1) {
                v[i] += shuffle_xor(v[i], mask);
            } else {
                const float low = v[i], high = i + half < num ? v[i + half < SUMS ? i + half : 0] : 0.0f;
                v[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, mask);
            }
        }
        num = half;
    }
}

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
    const float x = s.x + 0.5f, y = s.y + 0.5f;
    float light[PIXELS], behind[PIXELS], g[PIXELS][CHAN_ROOM];  // behind: G
    int last[PIXELS], end = 0;
UNROLL
    for (int j = 0; j < PIXELS; j++) {
        const bool in = s.x < f.width && s.y + 4 * j < f.height;
        const i64 pixel = ((i64)s.camera * f.height + s.y + 4 * j) * f.width + s.x;
        light[j] = in ? f.light[pixel] : 0.0f;
        last[j] = in ? f.lasts[pixel] : 0;
        behind[j] = in ? -f.v_alphas[pixel] : 0.0f;
        end = last[j] > end ? last[j] : end;
UNROLL
        for (int i = 0; i < CHAN; i++) {
            g[j][i] = in ? f.v_image[pixel * CHAN + i] : 0.0f;
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
    const Share share = make_share(lane);
    float* sums = f.sums + (i64)s.camera * f.num_splats * SUMS + share.first;
    int num_mine = share.end - share.first;  // sums that this lane adds
    keep(sums), keep(num_mine);

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
            float chan[SLOT_FLOATS - 8], v[SUMS];
UNROLL
            for (int i = 0; i < (SLOT_FLOATS - 8) / 4; i++) {
                const float4 c = slot[2 + i];
                chan[4 * i] = c.x, chan[4 * i + 1] = c.y, chan[4 * i + 2] = c.z, chan[4 * i + 3] = c.w;
            }
UNROLL
            for (int i = 0; i < SUMS; i++) v[i] = 0.0f;
            const float dx = minus(centre.x, x), first_dy = minus(centre.y, y);
            bool touched = false;
UNROLL
            for (int j = 0; j < PIXELS; j++) {
                if (!(where >> j & 1)) continue;
                const float dy = minus(first_dy, 4 * j), power = exponent(column, quad.z, dy);
                if (!(power >= -LOG2_255) || place >= last[j]) continue;
                touched = true;
                const float alpha = exp2_fast(fminf(power, LOG2_MAX_ALPHA));
                light[j] *= reciprocal_fast(1.0f - alpha);
                const float weight = alpha * light[j];
                float more = -behind[j];
UNROLL
                for (int i = 0; i < CHAN; i++) more = mad(chan[i], g[j][i], more), v[6 + i] = mad(weight, g[j][i], v[6 + i]);
                behind[j] = mad(alpha, more, behind[j]);
                const float h = power > LOG2_MAX_ALPHA ? 0.0f : weight * more, h_dy = h * dy;
                v[0] += h, v[2] += h_dy, v[5] = mad(h_dy, dy, v[5]);
#if ABSGRAD
                v[6 + CHAN] += fabsf(h * (2.0f * quad.x * dx + quad.y * dy));
                v[7 + CHAN] += fabsf(h * (2.0f * quad.z * dy + quad.y * dx));
#endif
            }
            if (!any_lane(touched)) continue;
            v[1] = v[0] * dx, v[3] = v[1] * dx, v[4] = v[2] * dx;
            fold(v, lane);
            float* const to = sums + (u64)(where >> 4) * SUMS;
UNROLL
            for (int i = 0; i < SUMS_LEFT; i++)
                if (i < num_mine) add(to + i, v[i]);
        }
    }
}
