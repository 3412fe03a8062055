// What both blending kernels share: a warp's part of a tile, and the splats staged for it.
//
// A warp owns a strip of 8 columns and 4 * PIXELS rows, each thread PIXELS pixels of one column, 4 rows apart: a splat's
// dx is the same for all of them. The strip is PIXELS blocks of 8 x 4 pixels; a splat is looked at only in the blocks
// that its ellipse reaches. Warps do not wait for each other.

#define STRIP_ROWS (4 * PIXELS)
#define TILE_WARPS (2 * TILE / STRIP_ROWS)
#define BLEND_THREADS (32 * TILE_WARPS)
// Of a multiprocessor: 80 registers a thread, or 64 where that is enough; with colours of three none are spilled.
#define BLEND_BLOCKS (CHAN > 4 ? 1 : (PIXELS == 4 || CHAN == 4 ? 768 : 1024) / BLEND_THREADS)
#define EAGER (CHAN <= 4)  // colours are loaded with the rest, one batch ahead; more of them would fill the registers
#define SLOT_FLOATS (8 + (CHAN_ROOM + 3) / 4 * 4)
#define CUTS (CHAN <= 4)   // long lists may be cut; with more channels the state of a pixel would be too large

struct Strip {
    int camera, tile, x, y;  // of this thread's first pixel
    int row;                 // of the tile where the strip begins
    float left, top;         // of the strip, at pixel centres
};

DEVICE Strip make_strip(const Frame& f, int tile) {
    Strip s;
    const int lane = thread_index() & 31, warp = thread_index() >> 5;
    const int tiles = f.tiles_x * f.tiles_y;
    s.tile = tile;
    s.camera = s.tile / tiles;
    const int in_frame = s.tile - s.camera * tiles;
    s.row = TILE_WARPS > 2 ? (warp >> 1) * STRIP_ROWS : 0;
    const int x = in_frame % f.tiles_x * TILE + (warp & 1) * 8, y = in_frame / f.tiles_x * TILE + s.row;
    s.x = x + (lane & 7), s.y = y + (lane >> 3);
    s.left = x + 0.5f, s.top = y + 0.5f;
    return s;
}

// The state of this thread's j-th pixel at a cut of its tile's list, whose number over all tiles is `mark`: light, channels.
DEVICE float* mark_place(const Frame& f, const Strip& s, int mark, int j) {
    return f.marks + (i64)mark * (1 + CHAN) * (TILE * TILE) + (s.y % TILE + 4 * j) * TILE + s.x % TILE;
}

struct Entry {
    u32 id;
    Ellipse e;
    float chan[EAGER ? CHAN_ROOM : 1];
};

DEVICE float load_channel(const Frame& f, int camera, u32 id, int i) {
    const i64 row = (i64)camera * f.num_splats + id;
    if (DEPTH && i == CHANNELS) return f.depths[row];
#if SH >= 0
    return f.shade[row * 4 + i];
#else
    return f.colors[(f.colors_by_camera ? row : (i64)id) * CHANNELS + i];
#endif
}

DEVICE Entry load_entry(const Frame& f, int camera, u32 id) {
    Entry a;
    a.id = id;
    const i64 row = (i64)camera * f.num_splats + a.id;
    const float2 mean = reinterpret_cast<const float2*>(f.means2d)[row];
    const float* q = f.conics + row * 3;
#if SH >= 0
    const float4 shade = reinterpret_cast<const float4*>(f.shade)[row];
    a.e = make_ellipse(mean.x, mean.y, q[0], q[1], q[2], shade.w);
    a.chan[0] = shade.x, a.chan[1] = shade.y, a.chan[2] = shade.z;
    if (DEPTH) a.chan[CHAN - 1] = f.depths[row];
#else
    a.e = make_ellipse(mean.x, mean.y, q[0], q[1], q[2], f.shade[row]);
UNROLL
    for (int i = 0; i < CHAN && EAGER; i++) a.chan[i] = load_channel(f, camera, a.id, i);
#endif
    return a;
}

// Which blocks of the strip the splat reaches, a bit each.
DEVICE u32 blocks_reached(const Frame& f, const Strip& s, const Ellipse& e) {
    const Valleys v = make_valleys(e);
    const float within = reach(e), right = fminf(s.left + 7.0f, f.width - 0.5f);
    u32 found = 0;
UNROLL
    for (int j = 0; j < PIXELS; j++) {
        const float top = s.top + 4 * j;
        if (reaches(e, v, within, s.left, top, right, fminf(top + 3.0f, f.height - 0.5f))) found |= 1u << j;
    }
    return found;
}

// A staged splat: centre, level and (splat, blocks); the quadratic and its place in the list; channels.
DEVICE void stage(const Frame& f, const Strip& s, float* slot, const Entry& a, u32 blocks, int at) {
    reinterpret_cast<float4*>(slot)[0] = make_float4(a.e.x, a.e.y, a.e.level, __uint_as_float(a.id << 4 | blocks));
    reinterpret_cast<float4*>(slot)[1] = make_float4(a.e.kxx, a.e.kxy, a.e.kyy, __int_as_float(at));
UNROLL
    for (int i = 0; i < CHAN; i++) slot[8 + i] = EAGER ? a.chan[EAGER ? i : 0] : load_channel(f, s.camera, a.id, i);
}

// The exponents of alpha down one column: both passes must round them alike, for they decide what counts.
struct Column {
    float x_part, slope;
};
DEVICE Column make_column(const float4& centre, const float4& quad, float x) {
    const float dx = minus(centre.x, x);
    return {mad(-mul(quad.x, dx), dx, centre.z), mul(quad.y, dx)};
}
DEVICE float exponent(const Column& c, float kyy, float dy) { return mad(-mad(kyy, dy, c.slope), dy, c.x_part); }

// dy of this thread's j-th pixel, by way of the tile's first rows: the same for any number of pixels a thread.
DEVICE float first_dy(const Strip& s, const float4& centre) { return minus(centre.y, s.y - s.row + 0.5f); }
DEVICE float next_dy(const Strip& s, float first, int j) { return minus(first, s.row + 4 * j); }
