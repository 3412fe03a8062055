// Where each splat is on each screen, its colour there, and how many pairs each tile will have. One thread a splat; the last
// block makes places of the counts, and a small scene's sums are cleared for the backward pass: both save the host a launch.

#define PROJECT_THREADS 256

KERNEL(PROJECT_THREADS, 4)
splat_project_fwd_kernel(const Frame f) {
    const int n = block_index() * PROJECT_THREADS + thread_index(), camera = camera_index();
    const bool in = n < f.num_splats;
    const i64 row = (i64)camera * f.num_splats + n;
    float2 mean = make_float2(0.0f, 0.0f);
    float conic[3] = {0.0f, 0.0f, 0.0f}, depth = 0.0f, level = 0.0f;
    int2 radii = make_int2(0, 0);
#if SH >= 0
    float color[3] = {0.0f, 0.0f, 0.0f};
#endif
    bool seen = false;
    if (in) {
        const Camera c = load_camera(f, camera);
        const Splat a = load_splat(f, n);
        const Seen s = see(f, c, a);
        const float opacity = a.opacity * s.ratio;
        const float xx = s.thin[0] + f.eps2d, yy = s.thin[2] + f.eps2d;
        mean = make_float2(c.fx * s.u + c.cx, c.fy * s.v + c.cy);
        conic[0] = yy / s.det, conic[1] = -s.thin[1] / s.det, conic[2] = xx / s.det;
        depth = s.p[2];
        const float tau = 2.0f * logf(opacity / MIN_ALPHA);
        const float ex = ceilf(sqrtf(tau * xx)), ey = ceilf(sqrtf(tau * yy));
        seen = opacity > MIN_ALPHA && s.det > 0.0f && depth >= f.near_depth && depth <= f.far_depth;
        seen = seen && (ex > f.radius_clip || ey > f.radius_clip) && is_finite(s.det) && is_finite(opacity);
        seen = seen && mean.x + ex > 0.0f && mean.y + ey > 0.0f && mean.x - ex < f.width && mean.y - ey < f.height;
        seen = seen && is_finite(mean.x) && is_finite(mean.y);
        seen = seen && is_finite(conic[0]) && is_finite(conic[1]) && is_finite(conic[2]);
        if (seen) {
            radii = make_int2((int)fminf(ex, 1073741824.0f), (int)fminf(ey, 1073741824.0f));
            level = log2f(opacity);
#if SH >= 0
            float d[3], basis[COEFFICIENTS];
            look(c, a, d);
            sh_basis(d, basis);
            read_coefficients(f, n, [&](int i, float v) { color[i % 3] += basis[i / 3] * v; });
UNROLL
            for (int i = 0; i < 3; i++) seen = seen && is_finite(color[i]), color[i] = hold_up(color[i] + 0.5f);
#else
            const float* from = f.colors + (f.colors_by_camera ? row : (i64)n) * CHANNELS;
            for (int i = 0; i < CHANNELS; i++) seen = seen && is_finite(from[i]);
#endif
        }
        if (!seen) {
            mean = make_float2(0.0f, 0.0f), radii = make_int2(0, 0);
            conic[0] = conic[1] = conic[2] = depth = level = 0.0f;
        }
    }
    const Ellipse e = make_ellipse(mean.x, mean.y, conic[0], conic[1], conic[2], level);
    int* const counts = f.cursors + (i64)camera * f.tiles_x * f.tiles_y;
    Box b = {0, 0, 0, 0};
    if (radii.x > 0) b = tile_box(f, mean.x, mean.y, radii);
    u32 reached = 0;
    if (tiles_of(b) > 0 && tiles_of(b) <= ALONE) reached = tiles_reached(f, b, e);
    for (u32 left = reached; any_lane(left != 0); left &= left - 1) {
        // Neighbours in memory are mostly neighbours on the screen, and one of them counts for all of the same tile.
        const int tile = left ? tile_of(f, b, first_bit(left)) : NO_TILE;
        const u32 alike = lanes_alike(tile);
        if (tile != NO_TILE && first_bit(alike) == (thread_index() & 31)) add(counts + tile, count_bits(alike));
    }
    const int tiles = count_bits(reached) + visit_large(f, b, e, [&](int tile, int) { add(counts + tile, 1); });
    if (in) {
        f.reached[row] = reached;
        reinterpret_cast<float2*>(f.means2d)[row] = mean;
        reinterpret_cast<int2*>(f.radii)[row] = radii;
        f.depths[row] = depth;
        f.tiles_per_splat[row] = tiles;
UNROLL
        for (int i = 0; i < 3; i++) f.conics[row * 3 + i] = conic[i];
#if SH >= 0
        if (seen) reinterpret_cast<float4*>(f.shade)[row] = make_float4(color[0], color[1], color[2], level);
#else
        if (seen) f.shade[row] = level;
#endif
    }
    const int before = block_index() * PROJECT_THREADS, left = f.num_splats - before;
    float* const sums = f.sums + ((i64)camera * f.num_splats + before) * f.sums_each;
    const int num_sums = (left < PROJECT_THREADS ? left : PROJECT_THREADS) * f.sums_each;
    for (int i = thread_index(); i < num_sums; i += PROJECT_THREADS) sums[i] = 0.0f;
    if (is_last_block(f.cursors + f.num_cameras * f.tiles_x * f.tiles_y, f.num_cameras * f.project_blocks))
        scan_tiles(f, PROJECT_THREADS / 32);
}
