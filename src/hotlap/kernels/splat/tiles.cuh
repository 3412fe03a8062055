// Which pixels a splat may reach: the same answer in every kernel that asks.

// A splat on the screen, in powers of two: alpha = 2^(level - (kxx dx^2 + kxy dx dy + kyy dy^2)), d from pixel to centre.
struct Ellipse {
    float x, y, kxx, kxy, kyy, level;
};

DEVICE Ellipse make_ellipse(float x, float y, float xx, float xy, float yy, float level) {
    return {x, y, mul(0.5f * LOG2_E, xx), mul(LOG2_E, xy), mul(0.5f * LOG2_E, yy), level};
}

// What the exponent may lose before alpha is less than 1/255, and a little more, so that no rounding leaves out a pixel.
DEVICE float reach(const Ellipse& e) { return mad(e.level + LOG2_255, 1.0001f, 0.01f); }

DEVICE float fall(const Ellipse& e, float dx, float dy) {
    return mad(mul(e.kxx, dx), dx, mul(mad(e.kyy, dy, mul(e.kxy, dx)), dy));
}

// How x follows y, and y follows x, along the valleys of the quadratic.
struct Valleys {
    float x_by_y, y_by_x;
};
DEVICE Valleys make_valleys(const Ellipse& e) {
    return {mul(mul(-0.5f, e.kxy), reciprocal_fast(e.kxx)), mul(mul(-0.5f, e.kxy), reciprocal_fast(e.kyy))};
}

// Whether some point of a rectangle is within reach: the lowest is the centre if inside, else on an edge that faces it.
DEVICE bool reaches(const Ellipse& e, const Valleys& v, float within, float x0, float y0, float x1, float y1) {
    const float left = minus(e.x, x1), right = minus(e.x, x0), top = minus(e.y, y1), bottom = minus(e.y, y0);
    const float dx = clamp(0.0f, left, right), dy = clamp(0.0f, top, bottom);
    const float on_x = fall(e, dx, clamp(mul(v.y_by_x, dx), top, bottom));
    const float on_y = fall(e, clamp(mul(v.x_by_y, dy), left, right), dy);
    return fminf(on_x, on_y) <= within;
}

struct Box {
    int x0, y0, x1, y1;  // tiles, the last one excluded
};

// The tiles that the box around a splat touches. The radii are whole numbers, so that no kernel rounds them otherwise.
DEVICE Box tile_box(const Frame& f, float x, float y, int2 radii) {
    Box b;
    b.x0 = (int)clamp(floorf(minus(x, (float)radii.x) / TILE), 0.0f, (float)f.tiles_x);
    b.y0 = (int)clamp(floorf(minus(y, (float)radii.y) / TILE), 0.0f, (float)f.tiles_y);
    b.x1 = (int)clamp(floorf(minus(x, -(float)radii.x) / TILE) + 1.0f, (float)b.x0, (float)f.tiles_x);
    b.y1 = (int)clamp(floorf(minus(y, -(float)radii.y) / TILE) + 1.0f, (float)b.y0, (float)f.tiles_y);
    return b;
}

DEVICE bool reaches_tile(const Frame& f, const Ellipse& e, const Valleys& v, float within, int tx, int ty) {
    const float x0 = tx * TILE + 0.5f, y0 = ty * TILE + 0.5f;
    const float x1 = fminf(x0 + (TILE - 1), f.width - 0.5f), y1 = fminf(y0 + (TILE - 1), f.height - 0.5f);
    return reaches(e, v, within, x0, y0, x1, y1);
}

#define NO_TILE -1
#define ALONE 32  // tiles that one thread looks at by itself, a bit each; larger boxes are looked at by the whole warp

DEVICE int tiles_of(const Box& b) { return (b.x1 - b.x0) * (b.y1 - b.y0); }

// The n-th tile of a box, row by row.
DEVICE int tile_of(const Frame& f, const Box& b, int n) {
    const int columns = b.x1 - b.x0, row = n / columns;
    return (b.y0 + row) * f.tiles_x + b.x0 + n - row * columns;
}

// Which tiles of a box of up to ALONE the splat reaches.
DEVICE u32 tiles_reached(const Frame& f, const Box& b, const Ellipse& e) {
    if (tiles_of(b) == 1) return 1u;
    const Valleys v = make_valleys(e);
    const float within = reach(e);
    u32 found = 0, bit = 1;
    for (int ty = b.y0; ty < b.y1; ty++)
        for (int tx = b.x0; tx < b.x1; tx++, bit <<= 1)
            if (reaches_tile(f, e, v, within, tx, ty)) found |= bit;
    return found;
}

// Calls visit(tile, lane whose splat it is) for each tile that one of the warp's larger splats reaches; how many, for each
// lane.
template <class Visit> DEVICE int visit_large(const Frame& f, const Box& b, const Ellipse& mine, Visit visit) {
    const int lane = thread_index() & 31, area = tiles_of(b);
    int count = 0;
    for (u32 large = ballot(area > ALONE); large; large &= large - 1) {
        const int who = first_bit(large);
        const Ellipse e = {shuffle(mine.x, who), shuffle(mine.y, who), shuffle(mine.kxx, who),
                           shuffle(mine.kxy, who), shuffle(mine.kyy, who), shuffle(mine.level, who)};
        const int x0 = shuffle(b.x0, who), y0 = shuffle(b.y0, who), columns = shuffle(b.x1, who) - x0;
        const int tiles = shuffle(area, who);
        const Valleys v = make_valleys(e);
        const float within = reach(e);
        int found = 0;
        for (int n = lane; n < tiles; n += 32) {
            const int tx = x0 + n % columns, ty = y0 + n / columns;
            if (reaches_tile(f, e, v, within, tx, ty)) visit(ty * f.tiles_x + tx, who), found++;
        }
UNROLL
        for (int mask = 16; mask; mask >>= 1) found += shuffle_xor(found, mask);
        if (lane == who) count = found;
    }
    return count;
}

// Which part of which tile's list a block takes, where lists are shared out in parts of so many pairs: a list from a to b has
// b / part - a / part + 1 blocks, as many as it has parts or one more.
struct Share {
    int tile, number;
};
DEVICE Share find_share(const Frame& f, int part) {
    int low = 0, high = f.num_cameras * f.tiles_x * f.tiles_y;
    while (high - low > 1) {
        const int middle = (low + high) >> 1;
        if (f.ranges[middle] / part + middle <= block_index()) low = middle;
        else high = middle;
    }
    return {low, block_index() - (f.ranges[low] / part + low)};
}
