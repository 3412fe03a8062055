// The gradients of the inputs from what the pixels told each splat. One thread a splat, all cameras: every output is
// written once, without atomics, and zeros where a splat is not drawn. Only the cameras' own gradients are summed over
// splats: within a warp, then a block, then by one atomic a number and block.

#define GRAD_THREADS 128
#define GRAD_WARPS (GRAD_THREADS / 32)
#define CAMERA_SUMS 16  // [R | t] row by row, fx, fy, cx, cy
#define CLEAR_BWD_THREADS 256

// The gradients in whose memory the pixels' sums will lie, if these have none of their own, are 0.
KERNEL(CLEAR_BWD_THREADS, 1)
splat_clear_bwd_kernel(const Frame f) {
    const i64 n = (i64)block_index() * CLEAR_BWD_THREADS + thread_index(), splats = f.num_splats;
    if (n < 4 * splats) f.out_quats[n] = 0.0f;
    if (n < 3 * splats) f.out_means[n] = f.out_scales[n] = 0.0f;
    if (n < splats) f.out_opacities[n] = 0.0f;
}

struct Grads {
    float mean[3], axes[3][3];  // axes: of rotation times scale, whose columns are the splat's axes
    float opacity;
};

// The colour's gradient, back to the coefficients' basis and to the direction.
#if SH >= 0
struct Shading {
    float basis[COEFFICIENTS], v[3];
};

DEVICE void color_backward(const Frame& f, const Camera& c, const Splat& a, int n, Shading& b, float (&v_mean)[3]) {
    float d[3], t[COEFFICIENTS], v_d[3];
    const float length = look(c, a, d);
    sh_basis(d, b.basis);
UNROLL
    for (int k = 0; k < COEFFICIENTS; k++) t[k] = 0.0f;
#if SH >= 1
    read_coefficients(f, n, [&](int i, float value) { t[i / 3] += value * b.v[i % 3]; });
#endif
    sh_direction(d, t, v_d);
    const float along = d[0] * v_d[0] + d[1] * v_d[1] + d[2] * v_d[2];
UNROLL
    for (int j = 0; j < 3; j++) v_mean[j] = (v_d[j] - d[j] * along) / length;
}

// Writes the coefficients' gradients of a warp's 32 splats together, so that each store is a row of memory.
DEVICE void write_coefficients(const Frame& f, int first, float* rows, const Shading& b, bool more) {
    const int lane = thread_index() & 31, stride = COEFFICIENTS + 3;
    warp_barrier();
UNROLL
    for (int k = 0; k < COEFFICIENTS; k++) rows[lane * stride + k] = b.basis[k];
UNROLL
    for (int i = 0; i < 3; i++) rows[lane * stride + COEFFICIENTS + i] = b.v[i];
    warp_barrier();
    const int each = f.coefficients * 3, left = f.num_splats - first, num = (left < 32 ? left : 32) * each;
    float* const to = f.out_colors + (i64)first * each;
    if (f.coefficients == 16) {
        for (int i = lane; i < num / 4; i += 32) {
            const float* row = rows + i / 12 * stride;
            const int at = i % 12 * 4;
            float4 v;
            v.x = at / 3 < COEFFICIENTS ? row[at / 3] * row[COEFFICIENTS + at % 3] : 0.0f;
            v.y = (at + 1) / 3 < COEFFICIENTS ? row[(at + 1) / 3] * row[COEFFICIENTS + (at + 1) % 3] : 0.0f;
            v.z = (at + 2) / 3 < COEFFICIENTS ? row[(at + 2) / 3] * row[COEFFICIENTS + (at + 2) % 3] : 0.0f;
            v.w = (at + 3) / 3 < COEFFICIENTS ? row[(at + 3) / 3] * row[COEFFICIENTS + (at + 3) % 3] : 0.0f;
            float4* const place = reinterpret_cast<float4*>(to) + i;
            if (more) v.x += place->x, v.y += place->y, v.z += place->z, v.w += place->w;
            *place = v;
        }
        return;
    }
    for (int i = lane; i < num; i += 32) {
        const float* row = rows + i / each * stride;
        const int at = i % each;
        const float v = at / 3 < COEFFICIENTS ? row[at / 3] * row[COEFFICIENTS + at % 3] : 0.0f;
        to[i] = more ? to[i] + v : v;
    }
}
#endif

// Back through the projection: `sums` are the pixels', v_z the gradient of the depth.
DEVICE void see_backward(const Frame& f, const Camera& c, const Splat& a, const Seen& s, const float* sums, const float2 v_mean2d,
                         float v_z, Grads& out, float (&camera)[CAMERA_SUMS]) {
    const float inv_det = 1.0f / s.det;
    const float qxx = (s.thin[2] + f.eps2d) * inv_det, qxy = -s.thin[1] * inv_det, qyy = (s.thin[0] + f.eps2d) * inv_det;
    // dL/dcov = 1/2 Q (sum of h d d^T) Q, as sigma is 1/2 d^T Q d and h is -dL/dsigma.
    const float hxx = sums[3], hxy = sums[4], hyy = sums[5];
    const float axx = qxx * hxx + qxy * hxy, axy = qxx * hxy + qxy * hyy, ayx = qxy * hxx + qyy * hxy, ayy = qxy * hxy + qyy * hyy;
    float vxx = 0.5f * (axx * qxx + axy * qxy), vxy = 0.5f * (axx * qxy + axy * qyy), vyy = 0.5f * (ayx * qxy + ayy * qyy);
    const float v_log_opacity = sums[0];
    out.opacity += v_log_opacity / a.opacity;
    if (f.antialiased) {  // the opacity's ratio r: d(r^2)/dcov = (1 - r^2) Q - eps2d / det
        const float k = 0.5f * v_log_opacity / (s.ratio * s.ratio), thin = 1.0f - s.ratio * s.ratio;
        vxx += k * (thin * qxx - f.eps2d * inv_det), vxy += k * thin * qxy, vyy += k * (thin * qyy - f.eps2d * inv_det);
    }
    float v_screen[2][3];  // of to_screen = J R
    float v_axes[2][3];
UNROLL
    for (int k = 0; k < 3; k++) {
        v_axes[0][k] = 2.0f * (vxx * s.axes[0][k] + vxy * s.axes[1][k]);
        v_axes[1][k] = 2.0f * (vxy * s.axes[0][k] + vyy * s.axes[1][k]);
    }
UNROLL
    for (int j = 0; j < 3; j++) {
        v_screen[0][j] = v_screen[1][j] = 0.0f;
UNROLL
        for (int k = 0; k < 3; k++) {
            out.axes[j][k] += s.to_screen[0][j] * v_axes[0][k] + s.to_screen[1][j] * v_axes[1][k];
            v_screen[0][j] += v_axes[0][k] * a.s[k] * a.rot[j][k];
            v_screen[1][j] += v_axes[1][k] * a.s[k] * a.rot[j][k];
        }
    }
    // J = [[fx/z, 0, -fx u/z], [0, fy/z, -fy v/z]] with u, v held within limits that depend on the intrinsics.
    float v_jx = 0.0f, v_jxz = 0.0f, v_jy = 0.0f, v_jyz = 0.0f;
UNROLL
    for (int j = 0; j < 3; j++) {
        v_jx += v_screen[0][j] * c.r[0][j], v_jxz += v_screen[0][j] * c.r[2][j];
        v_jy += v_screen[1][j] * c.r[1][j], v_jyz += v_screen[1][j] * c.r[2][j];
    }
    const bool free_u = s.u == s.u_lim, free_v = s.v == s.v_lim;
    const float jx = c.fx * s.inv_z, jy = c.fy * s.inv_z;
    float v_u = v_mean2d.x * c.fx, v_v = v_mean2d.y * c.fy;
    if (free_u) v_u -= jx * v_jxz;
    if (free_v) v_v -= jy * v_jyz;
    float v_p[3] = {v_u * s.inv_z, v_v * s.inv_z, 0.0f};
    v_p[2] = v_z - (v_u * s.u + v_v * s.v) * s.inv_z -
             (jx * (v_jx - s.u_lim * v_jxz) + jy * (v_jy - s.v_lim * v_jyz)) * s.inv_z;
UNROLL
    for (int j = 0; j < 3; j++) out.mean[j] += c.r[0][j] * v_p[0] + c.r[1][j] * v_p[1] + c.r[2][j] * v_p[2];
#if CAMERA
UNROLL
    for (int j = 0; j < 3; j++) {
        camera[j] += v_p[0] * a.mean[j] + jx * v_screen[0][j];
        camera[4 + j] += v_p[1] * a.mean[j] + jy * v_screen[1][j];
        camera[8 + j] += v_p[2] * a.mean[j] - jx * s.u_lim * v_screen[0][j] - jy * s.v_lim * v_screen[1][j];
        camera[4 * j + 3] += v_p[j];
    }
    camera[12] += v_mean2d.x * s.u + s.inv_z * (v_jx - (free_u ? s.u_lim * v_jxz : 0.0f));
    camera[13] += v_mean2d.y * s.v + s.inv_z * (v_jy - (free_v ? s.v_lim * v_jyz : 0.0f));
    camera[14] += v_mean2d.x + (free_u ? 0.0f : s.inv_z * v_jxz);
    camera[15] += v_mean2d.y + (free_v ? 0.0f : s.inv_z * v_jyz);
#endif
}

#if CAMERA
// One camera's gradients, summed over the block.
DEVICE void add_camera(const Frame& f, int camera, float (&v)[CAMERA_SUMS], float* shared) {
    const int lane = thread_index() & 31, warp = thread_index() >> 5;
    block_barrier();
UNROLL
    for (int i = 0; i < CAMERA_SUMS; i++) {
UNROLL
        for (int mask = 16; mask; mask >>= 1) v[i] += shuffle_xor(v[i], mask);
        if (lane == 0) shared[warp * CAMERA_SUMS + i] = v[i];
    }
    block_barrier();
    if (thread_index() >= CAMERA_SUMS) return;
    float sum = 0.0f;
    for (int n = 0; n < GRAD_WARPS; n++) sum += shared[n * CAMERA_SUMS + thread_index()];
    const int i = thread_index(), at = i == 12 ? 0 : i == 13 ? 4 : i == 14 ? 2 : 5;
    if (i < 12 && f.out_viewmats) add(f.out_viewmats + camera * 16 + i, sum);
    if (i >= 12 && f.out_Ks) add(f.out_Ks + camera * 9 + at, sum);
}
#endif

DEVICE void write_splat(const Frame& f, int n, const Splat& a, const Grads& v, bool seen) {
    if (f.out_means) {
UNROLL
        for (int i = 0; i < 3; i++) f.out_means[(i64)n * 3 + i] = v.mean[i];
    }
    if (f.out_opacities) f.out_opacities[n] = seen ? v.opacity * (f.raw ? a.opacity * (1.0f - a.opacity) : 1.0f) : 0.0f;
    float g[3][3];
UNROLL
    for (int k = 0; k < 3; k++) {
        const float along = a.rot[0][k] * v.axes[0][k] + a.rot[1][k] * v.axes[1][k] + a.rot[2][k] * v.axes[2][k];
        if (f.out_scales) f.out_scales[(i64)n * 3 + k] = seen ? along * (f.raw ? a.s[k] : 1.0f) : 0.0f;
UNROLL
        for (int j = 0; j < 3; j++) g[j][k] = v.axes[j][k] * a.s[k];
    }
    if (!f.out_quats) return;
    const float w = a.q[0], x = a.q[1], y = a.q[2], z = a.q[3];
    float4 q;
    q.x = x * (g[2][1] - g[1][2]) + y * (g[0][2] - g[2][0]) + z * (g[1][0] - g[0][1]);
    q.y = -2.0f * x * (g[1][1] + g[2][2]) + y * (g[0][1] + g[1][0]) + z * (g[0][2] + g[2][0]) + w * (g[2][1] - g[1][2]);
    q.z = -2.0f * y * (g[0][0] + g[2][2]) + x * (g[0][1] + g[1][0]) + z * (g[1][2] + g[2][1]) + w * (g[0][2] - g[2][0]);
    q.w = -2.0f * z * (g[0][0] + g[1][1]) + x * (g[0][2] + g[2][0]) + y * (g[1][2] + g[2][1]) + w * (g[1][0] - g[0][1]);
    const float scale = 2.0f / a.length2, along = (w * q.x + x * q.y + y * q.z + z * q.w) / a.length2;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    reinterpret_cast<float4*>(f.out_quats)[n] =
        seen ? make_float4(scale * (q.x - w * along), scale * (q.y - x * along), scale * (q.z - y * along), scale * (q.w - z * along)) : zero;
}

KERNEL(GRAD_THREADS, CAMERA ? 3 : 4)
splat_project_bwd_kernel(const Frame f) {
    const int n = block_index() * GRAD_THREADS + thread_index();
    const bool in = n < f.num_splats;
    Grads out = {};
    Splat a = {};
    bool loaded = false;
#if SH >= 0
    SHARED(float, rows, GRAD_WARPS * 32 * (COEFFICIENTS + 3));
#endif
#if CAMERA
    SHARED(float, by_warp, GRAD_WARPS * CAMERA_SUMS);
#endif
    for (int camera = 0; camera < f.num_cameras; camera++) {
        const i64 row = (i64)camera * f.num_splats + n;
        const bool seen = in && f.radii[row * 2] > 0;
        float v_camera[CAMERA_SUMS] = {};
        float2 v_blend = make_float2(0.0f, 0.0f), v_abs = make_float2(0.0f, 0.0f);
#if SH >= 0
        Shading shading = {};
#endif
        float sums[SH >= 0 ? SUMS : 6];
        bool told = seen && f.v_means2d;  // a splat that no pixel has taken, as it lies behind others, learns nothing
        if (seen) {
UNROLL
            for (int i = 0; i < (SH >= 0 ? SUMS : 6); i++) sums[i] = *sum_place(f, row, i), told = told || sums[i] != 0.0f;
UNROLL
            for (int i = 6 + CHANNELS; i < SUMS; i++) told = told || *sum_place(f, row, i) != 0.0f;
        }
        if (told) {
            if (!loaded) a = load_splat(f, n);
            loaded = true;
            const Camera c = load_camera(f, camera);
            const Seen s = see(f, c, a);
            const float* conic = f.conics + row * 3;
            v_blend = make_float2(-(conic[0] * sums[1] + conic[1] * sums[2]), -(conic[1] * sums[1] + conic[2] * sums[2]));
            float2 v_mean2d = v_blend;
            if (f.v_means2d) {
                const float2 given = reinterpret_cast<const float2*>(f.v_means2d)[row];
                v_mean2d.x += given.x, v_mean2d.y += given.y;
            }
#if ABSGRAD
            v_abs = make_float2(LN_2 * *sum_place(f, row, 6 + CHAN), LN_2 * *sum_place(f, row, 7 + CHAN));
#endif
            const float v_z = DEPTH ? *sum_place(f, row, 6 + CHANNELS) : 0.0f;
            see_backward(f, c, a, s, sums, v_mean2d, v_z, out, v_camera);
#if SH >= 0
            const float4 shade = reinterpret_cast<const float4*>(f.shade)[row];
            shading.v[0] = held_up(shade.x) ? 0.0f : sums[6];
            shading.v[1] = held_up(shade.y) ? 0.0f : sums[7];
            shading.v[2] = held_up(shade.z) ? 0.0f : sums[8];
            float v_mean[3];
            color_backward(f, c, a, n, shading, v_mean);
UNROLL
            for (int j = 0; j < 3; j++) out.mean[j] += v_mean[j];
#if CAMERA
            // The direction starts at the camera's centre -R^T t.
UNROLL
            for (int i = 0; i < 3; i++) {
                v_camera[4 * i + 3] += c.r[i][0] * v_mean[0] + c.r[i][1] * v_mean[1] + c.r[i][2] * v_mean[2];
UNROLL
                for (int j = 0; j < 3; j++) v_camera[4 * i + j] += c.t[i] * v_mean[j];
            }
#endif
#endif
        }
        if (in && f.out_means2d) reinterpret_cast<float2*>(f.out_means2d)[row] = v_blend;
        if (in && f.out_means2d_abs) reinterpret_cast<float2*>(f.out_means2d_abs)[row] = v_abs;
#if SH >= 0
        const int first = n - (thread_index() & 31);
        if (f.out_colors && first < f.num_splats && (camera == 0 || any_lane(told)))
            write_coefficients(f, first, rows + (thread_index() >> 5) * 32 * (COEFFICIENTS + 3), shading, camera > 0);
#else
        if (f.out_colors && in) {
            float* const to = f.out_colors + (f.colors_by_camera ? row : (i64)n) * CHANNELS;
            const bool more = camera > 0 && !f.colors_by_camera;
            for (int i = 0; i < CHANNELS; i++) to[i] = (more ? to[i] : 0.0f) + (seen ? *sum_place(f, row, 6 + i) : 0.0f);
        }
#endif
#if CAMERA
        add_camera(f, camera, v_camera, by_warp);
#endif
    }
    if (in) write_splat(f, n, a, out, loaded);
}
