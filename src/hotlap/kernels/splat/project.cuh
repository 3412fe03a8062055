// One splat seen by one camera, and its colour: what the projection kernels of both passes share.

struct Camera {
    float r[3][3], t[3];
    float fx, fy, cx, cy;
};

DEVICE Camera load_camera(const Frame& f, int camera) {
    const float* v = f.viewmats + camera * 16;
    const float* k = f.Ks + camera * 9;
    Camera c;
UNROLL
    for (int i = 0; i < 3; i++) {
UNROLL
        for (int j = 0; j < 3; j++) c.r[i][j] = v[4 * i + j];
        c.t[i] = v[4 * i + 3];
    }
    c.fx = k[0], c.fy = k[4], c.cx = k[2], c.cy = k[5];
    return c;
}

struct Splat {
    float mean[3], s[3], q[4], rot[3][3];  // rot is the rotation matrix of q, which may have any length
    float length2, opacity;
};

DEVICE Splat load_splat(const Frame& f, int n) {
    Splat a;
    const float4 q = reinterpret_cast<const float4*>(f.quats)[n];
    a.q[0] = q.x, a.q[1] = q.y, a.q[2] = q.z, a.q[3] = q.w;
UNROLL
    for (int i = 0; i < 3; i++) {
        a.mean[i] = f.means[(i64)n * 3 + i];
        const float s = f.scales[(i64)n * 3 + i];
        a.s[i] = f.raw ? expf(s) : s;
    }
    const float o = f.opacities[n];
    a.opacity = f.raw ? 1.0f / (1.0f + expf(-o)) : o;
    a.length2 = q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w;
    const float two = 2.0f / a.length2;
    const float w = q.x, x = q.y, y = q.z, z = q.w;
    a.rot[0][0] = 1.0f - two * (y * y + z * z), a.rot[0][1] = two * (x * y - w * z), a.rot[0][2] = two * (x * z + w * y);
    a.rot[1][0] = two * (x * y + w * z), a.rot[1][1] = 1.0f - two * (x * x + z * z), a.rot[1][2] = two * (y * z - w * x);
    a.rot[2][0] = two * (x * z - w * y), a.rot[2][1] = two * (y * z + w * x), a.rot[2][2] = 1.0f - two * (x * x + y * y);
    return a;
}

struct Seen {
    float p[3], u, v, u_lim, v_lim, inv_z;  // in the camera's frame
    float to_screen[2][3];                  // d screen / d world at the mean
    float axes[2][3];                       // the splat's axes on the screen
    float thin[3];                          // their covariance xx, xy, yy, before eps2d
    float det, ratio;                       // with eps2d; ratio: the opacity is lowered to so much of itself
};

DEVICE float clamp(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

DEVICE Seen see(const Frame& f, const Camera& c, const Splat& a) {
    Seen s;
UNROLL
    for (int i = 0; i < 3; i++) s.p[i] = c.r[i][0] * a.mean[0] + c.r[i][1] * a.mean[1] + c.r[i][2] * a.mean[2] + c.t[i];
    s.inv_z = 1.0f / s.p[2];
    s.u = s.p[0] * s.inv_z, s.v = s.p[1] * s.inv_z;
    s.u_lim = clamp(s.u, (-0.15f * f.width - c.cx) / c.fx, (1.15f * f.width - c.cx) / c.fx);
    s.v_lim = clamp(s.v, (-0.15f * f.height - c.cy) / c.fy, (1.15f * f.height - c.cy) / c.fy);
    const float jx = c.fx * s.inv_z, jy = c.fy * s.inv_z;
UNROLL
    for (int j = 0; j < 3; j++) {
        s.to_screen[0][j] = jx * (c.r[0][j] - s.u_lim * c.r[2][j]);
        s.to_screen[1][j] = jy * (c.r[1][j] - s.v_lim * c.r[2][j]);
    }
UNROLL
    for (int i = 0; i < 2; i++)
UNROLL
        for (int k = 0; k < 3; k++)
            s.axes[i][k] = a.s[k] * (s.to_screen[i][0] * a.rot[0][k] + s.to_screen[i][1] * a.rot[1][k] +
                                     s.to_screen[i][2] * a.rot[2][k]);
    const float(&m)[2][3] = s.axes;
    s.thin[0] = m[0][0] * m[0][0] + m[0][1] * m[0][1] + m[0][2] * m[0][2];
    s.thin[1] = m[0][0] * m[1][0] + m[0][1] * m[1][1] + m[0][2] * m[1][2];
    s.thin[2] = m[1][0] * m[1][0] + m[1][1] * m[1][1] + m[1][2] * m[1][2];
    // det(A A^T) as the sum of squares that it is: xx * yy - xy^2 would lose the digits of a thin splat.
    const float a0 = m[0][1] * m[1][2] - m[0][2] * m[1][1], a1 = m[0][2] * m[1][0] - m[0][0] * m[1][2];
    const float a2 = m[0][0] * m[1][1] - m[0][1] * m[1][0];
    const float thin = a0 * a0 + a1 * a1 + a2 * a2;
    s.det = thin + f.eps2d * (s.thin[0] + s.thin[2] + f.eps2d);
    s.ratio = f.antialiased ? sqrtf(thin / s.det) : 1.0f;
    return s;
}

DEVICE bool is_finite(float x) { return fabsf(x) <= FINITE_MAX; }

#if SH >= 0
#define COEFFICIENTS ((SH + 1) * (SH + 1))
#define SH_0 0.28209479177387814f
#define SH_1 0.4886025119029199f

// From the camera's centre to the splat; the length comes back.
DEVICE float look(const Camera& c, const Splat& a, float (&d)[3]) {
UNROLL
    for (int j = 0; j < 3; j++) d[j] = a.mean[j] + c.r[0][j] * c.t[0] + c.r[1][j] * c.t[1] + c.r[2][j] * c.t[2];
    const float length = sqrtf(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]);
UNROLL
    for (int j = 0; j < 3; j++) d[j] /= length;
    return length;
}

// A colour that is not below 0. What was below becomes -0, which draws as 0 does and tells the backward pass to leave it:
// a colour of exactly 0, as black points have from the start, was not below, and learns.
DEVICE float hold_up(float color) { return color < 0.0f ? __uint_as_float(0x80000000u) : color; }
DEVICE bool held_up(float color) { return __float_as_int(color) < 0; }

DEVICE void sh_basis(const float (&d)[3], float (&b)[COEFFICIENTS]) {
    b[0] = SH_0;
#if SH >= 1
    const float x = d[0], y = d[1], z = d[2];
    b[1] = -SH_1 * y, b[2] = SH_1 * z, b[3] = -SH_1 * x;
#endif
#if SH >= 2
    b[4] = 1.0925484305920792f * x * y, b[5] = -1.0925484305920792f * y * z;
    b[6] = 0.9461746957575601f * z * z - 0.31539156525252f;
    b[7] = -1.0925484305920792f * x * z, b[8] = 0.5462742152960396f * (x * x - y * y);
#endif
#if SH >= 3
    b[9] = 0.5900435899266435f * y * (y * y - 3.0f * x * x), b[10] = 2.890611442640554f * x * y * z;
    b[11] = 0.4570457994644658f * y * (1.0f - 5.0f * z * z), b[12] = 0.3731763325901154f * z * (5.0f * z * z - 3.0f);
    b[13] = 0.4570457994644658f * x * (1.0f - 5.0f * z * z), b[14] = 1.445305721320277f * z * (x * x - y * y);
    b[15] = 0.5900435899266435f * x * (3.0f * y * y - x * x);
#endif
}

// The gradient of the direction, where t has that of each basis function.
DEVICE void sh_direction(const float (&d)[3], const float (&t)[COEFFICIENTS], float (&v)[3]) {
    v[0] = v[1] = v[2] = 0.0f;
#if SH >= 1
    const float x = d[0], y = d[1], z = d[2];
    v[0] = -SH_1 * t[3], v[1] = -SH_1 * t[1], v[2] = SH_1 * t[2];
#endif
#if SH >= 2
    v[0] += 1.0925484305920792f * (y * t[4] - z * t[7] + x * t[8]);
    v[1] += 1.0925484305920792f * (x * t[4] - z * t[5] - y * t[8]);
    v[2] += 1.0925484305920792f * (-y * t[5] - x * t[7]) + 1.8923493915151202f * z * t[6];
#endif
#if SH >= 3
    const float xx = x * x, yy = y * y, zz = z * z;
    const float flat = 0.4570457994644658f * (1.0f - 5.0f * zz), steep = -4.570457994644658f * z;
    v[0] += -3.540261539559861f * x * y * t[9] + 2.890611442640554f * y * z * t[10] + flat * t[13] +
            2.890611442640554f * x * z * t[14] + 1.7701307697799304f * (yy - xx) * t[15];
    v[1] += 1.7701307697799304f * (yy - xx) * t[9] + 2.890611442640554f * x * z * t[10] + flat * t[11] -
            2.890611442640554f * y * z * t[14] + 3.540261539559861f * x * y * t[15];
    v[2] += 2.890611442640554f * x * y * t[10] + steep * (y * t[11] + x * t[13]) +
            0.3731763325901154f * (15.0f * zz - 3.0f) * t[12] + 1.445305721320277f * (xx - yy) * t[14];
#endif
}

// The coefficients of splat n in groups of four where they lie so; K = 16 does.
template <class Take> DEVICE void read_coefficients(const Frame& f, int n, Take take) {
    const float* from = f.colors + (i64)n * f.coefficients * 3;
    if (f.coefficients % 4 == 0) {
UNROLL
        for (int i = 0; i < COEFFICIENTS * 3; i += 4) {
            const float4 v = *reinterpret_cast<const float4*>(from + i);
            take(i, v.x);
            if (i + 1 < COEFFICIENTS * 3) take(i + 1, v.y);
            if (i + 2 < COEFFICIENTS * 3) take(i + 2, v.z);
            if (i + 3 < COEFFICIENTS * 3) take(i + 3, v.w);
        }
    } else {
UNROLL
        for (int i = 0; i < COEFFICIENTS * 3; i++) take(i, from[i]);
    }
}
#endif
