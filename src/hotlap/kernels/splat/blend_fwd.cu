// The picture: each pixel takes the splats of its tile from the front until too little light is left.

#define STAGED_FLOATS (TILE_WARPS * 32 * SLOT_FLOATS)
#define SORTS (BLEND_THREADS == SORT_THREADS)  // with one pixel a thread the block may sort its tile's list first
#define SORT_FLOATS (SORTS ? 2 * SORT_MOST : 0)
#define LEAVES (CUTS && PIXELS == 1)  // marks for the backward pass: long lists are walked with one pixel a thread

KERNEL(BLEND_THREADS, BLEND_BLOCKS)
splat_blend_fwd_kernel(const Frame f) {
    SHARED(float, staged, STAGED_FLOATS > SORT_FLOATS ? STAGED_FLOATS : SORT_FLOATS);
    const int lane = thread_index() & 31;
    float* const slots = staged + (thread_index() >> 5) * 32 * SLOT_FLOATS;
    const Strip s = make_strip(f, f.order[block_index()]);
    if (SORTS && f.sort_first) {
        sort_tile(f, s.tile, reinterpret_cast<u64*>(staged));
        block_barrier();  // what other threads have sorted is there to read
    }
    const int begin = f.ranges[s.tile], end = f.ranges[s.tile + 1];
    const float x = s.x + 0.5f;
    float light[PIXELS], least[PIXELS], color[PIXELS][CHAN_ROOM];  // least: what alpha's exponent must be to count
    int last[PIXELS];
    u32 open = 0;  // blocks with a pixel that still takes light
UNROLL
    for (int j = 0; j < PIXELS; j++) {
        light[j] = 1.0f, last[j] = 0;
        least[j] = s.x < f.width && s.y + 4 * j < f.height ? -LOG2_255 : FINITE_MAX;
UNROLL
        for (int i = 0; i < CHAN; i++) color[j][i] = 0.0f;
        if (any_lane(least[j] < 0.0f)) open |= 1u << j;
    }
    Entry next;
    u32 ahead = 0;  // the splat after the next: without it the next would be waited for twice
    if (begin + lane < end) next = load_entry(f, s.camera, f.ids[begin + lane]);
    if (begin + lane + 32 < end) ahead = f.ids[begin + lane + 32];
    for (int base = begin; base < end && open; base += 32) {
        if (LEAVES && base > begin && ((base - begin) & (f.part - 1)) == 0) {  // never where part is 0
            const int mark = begin / f.part + (base - begin) / f.part - 1;
UNROLL
            for (int j = 0; j < PIXELS; j++) {
                float* const to = mark_place(f, s, mark, j);
                to[0] = light[j];
UNROLL
                for (int i = 0; i < CHAN; i++) to[(1 + i) * TILE * TILE] = color[j][i];
            }
        }
        const Entry mine = next;
        const int at = base + lane;
        if (at + 32 < end) next = load_entry(f, s.camera, ahead);
        if (at + 64 < end) ahead = f.ids[at + 64];
        const u32 blocks = at < end ? blocks_reached(f, s, mine.e) & open : 0;
        const u32 live = ballot(blocks != 0);
        if (live == 0) continue;
        warp_barrier();  // the batch before this one is used up
        if (blocks) stage(f, s, slots + count_bits(live & ((1u << lane) - 1)) * SLOT_FLOATS, mine, blocks, at);
        warp_barrier();  // what is staged is there for all
        const int num = count_bits(live);
        for (int n = 0; n < num; n++) {
            const float4* slot = reinterpret_cast<const float4*>(slots + n * SLOT_FLOATS);
            const float4 centre = slot[0], quad = slot[1];
            const u32 where = __float_as_uint(centre.w);
            const Column column = make_column(centre, quad, x);
            const float dy = first_dy(s, centre);
            float chan[SLOT_FLOATS - 8];
UNROLL
            for (int i = 0; i < (SLOT_FLOATS - 8) / 4; i++) {
                const float4 v = slot[2 + i];
                chan[4 * i] = v.x, chan[4 * i + 1] = v.y, chan[4 * i + 2] = v.z, chan[4 * i + 3] = v.w;
            }
UNROLL
            for (int j = 0; j < PIXELS; j++) {
                if (!(where >> j & 1)) continue;
                const float power = exponent(column, quad.z, next_dy(s, dy, j));
                if (!(power >= least[j])) continue;
                const float alpha = exp2_fast(fminf(power, LOG2_MAX_ALPHA)), rest = mad(-alpha, light[j], light[j]);
                if (rest > MIN_LIGHT) {
                    const float weight = alpha * light[j];
UNROLL
                    for (int i = 0; i < CHAN; i++) color[j][i] = mad(weight, chan[i], color[j][i]);
                    light[j] = rest, last[j] = __float_as_int(quad.w) + 1;
                } else {
                    least[j] = FINITE_MAX;
                }
            }
        }
UNROLL
        for (int j = 0; j < PIXELS; j++)
            if (all_lanes(least[j] > 0.0f)) open &= ~(1u << j);
    }
UNROLL
    for (int j = 0; j < PIXELS; j++) {
        if (s.x >= f.width || s.y + 4 * j >= f.height) continue;
        const i64 pixel = ((i64)s.camera * f.height + s.y + 4 * j) * f.width + s.x;
        f.light[pixel] = light[j], f.lasts[pixel] = last[j], f.alphas[pixel] = 1.0f - light[j];
UNROLL
        for (int i = 0; i < CHAN; i++) {
            const float behind = f.backgrounds && i < CHANNELS ? f.backgrounds[s.camera * CHANNELS + i] : 0.0f;
            const float value = mad(light[j], behind, color[j][i]);
            f.image[pixel * CHAN + i] = value;
            if (LEAVES && f.part) f.shown[pixel * CHAN + i] = value;
        }
    }
}
