// What each pixel's gradient tells the splats: the tile's list backwards, with two numbers of state a pixel.
//
// Let L be the loss as a function of the light T that passes a splat: what lies behind changes it by T * G. At the end G is
// (background . g) - g_alpha, where g is the gradient of the pixel's colour. A splat with colour c, covering alpha of the
// light T before it, has dL/dalpha = T (c . g - G), and in front of it G is G + alpha (c . g - G).
//
// With h = alpha dL/dalpha a splat needs the sums over pixels of h, h dx, h dy, h dx^2, h dx dy, h dy^2 and of its weight
// times g; the projection turns them into gradients.
//
// Where lists are long and tiles few, a list is cut into parts, and a block takes one: the forward pass has left the light T
// and the colour C of each pixel at the cuts. Behind a cut lies what the picture has more than C, so that there
// T G = (picture - C) . g - (light that is left) g_alpha.

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
#if BUNDLE
    SHARED(float, bundles, TILE_WARPS * BUNDLE * BUNDLE_FLOATS);
    SHARED(u64, all_targets, TILE_WARPS * TARGETS);
    u64* const targets = all_targets + (thread_index() >> 5) * TARGETS;
    float* const bundle = bundles + (thread_index() >> 5) * BUNDLE * BUNDLE_FLOATS;
    int bundled = 0;
#endif
    const int lane = thread_index() & 31;
    float* const slots = staged + (thread_index() >> 5) * 32 * SLOT_FLOATS;
    const bool cuts = CUTS && f.part;
    Share share = {0, 0};
    if (cuts) share = find_share(f, f.part);
    else share.tile = f.order[block_index()];
    const Strip s = make_strip(f, share.tile);
    const int list = f.ranges[s.tile], part = share.number;
    const int begin = cuts ? list + part * f.part : list, until = cuts ? begin + f.part : f.ranges[s.tile + 1];
    if (begin >= f.ranges[s.tile + 1] && part) return;
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
    if (f.out_backgrounds && part == 0) add_background(f, s, light, g);
UNROLL
    for (int j = 0; j < PIXELS; j++) {
        if (!CUTS || last[j] <= until) continue;
        const i64 pixel = ((i64)s.camera * f.height + s.y + 4 * j) * f.width + s.x;
        const float* const mark = mark_place(f, s, list / f.part + part, j);
        float more = f.v_alphas ? -light[j] * f.v_alphas[pixel] : 0.0f;
UNROLL
        for (int i = 0; i < CHAN; i++) more = mad(f.shown[pixel * CHAN + i] - mark[(1 + i) * TILE * TILE], g[j][i], more);
        light[j] = mark[0], behind[j] = more / light[j];
    }
UNROLL
    for (int mask = 16; mask; mask >>= 1) {
        const int other = shuffle_xor(end, mask);
        end = other > end ? other : end;
    }
    if (end <= begin) return;
    end = end < until ? end : until;
#if BUNDLE
    put_places(f, s.camera, lane, targets);
#else
    int strides[SUMS_LEFT];
    float* places[SUMS_LEFT];
    find_places(f, s.camera, lane, places, strides);
UNROLL
    for (int i = 0; i < SUMS_LEFT; i++) keep(places[i]), keep(strides[i]);
#endif

    Entry next;
    if (end - 32 + lane >= begin) next = load_entry(f, s.camera, f.ids[end - 32 + lane]);
    for (int base = end - 32; base + 32 > begin; base -= 32) {
        const Entry mine = next;
        const int at = base + lane;
        if (at - 32 >= begin) next = load_entry(f, s.camera, f.ids[at - 32]);
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
                v[H_AT] += h, v[H_DY_AT] += h_dy, v[other_sum(0)] = mad(h_dy, dy, v[other_sum(0)]);
#if ABSGRAD
                v[other_sum(1 + CHAN)] += fabsf(h * (2.0f * quad.x * dx + quad.y * dy));
                v[other_sum(2 + CHAN)] += fabsf(h * (2.0f * quad.z * dy + quad.y * dx));
#endif
            }
            if (!any_lane(touched)) continue;
#if BUNDLE
            put_sums(bundle, bundled, lane, v, centre.x, where >> 4);
            if (++bundled == BUNDLE) add_bundle(bundle, targets, bundled, lane, s.left), bundled = 0;
#else
            float w[WIDEST];
            fold(v, fold(v, COLUMN_SUMS, lane, 16), lane, 8);
            widen(v, dx, lane, w);
            fold(w, fold(w, fold(w, WIDEST, lane, 4), lane, 2), lane, 1);
UNROLL
            for (int i = 0; i < SUMS_LEFT; i++)
                if (strides[i]) add(places[i] + (u64)(where >> 4) * (u32)strides[i], w[i]);
#endif
        }
    }
#if BUNDLE
    if (bundled) add_bundle(bundle, targets, bundled, lane, s.left);
#endif
}
