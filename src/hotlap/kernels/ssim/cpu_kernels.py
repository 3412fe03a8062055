"""L1 and SSIM with their gradient, compiled by numba for the CPU; bands of rows may run side by side.

The passes are those of ``ssim.cu``: a row is convolved along itself, eleven such rows are kept, and the pictures x and
y are read as a = x + y and d = x - y.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hotlap.kernels.compiled import fast, inner

TAPS, REACH = 11, 5
FAST = fast("contract", "nsz", "arcp", "reassoc")
INNER = inner(FAST)


@njit(**INNER)
def _along_row(source, weights, channels, out):
    """Convolves ``source``, a row with five pixels of margin at each end."""
    n = out.size
    p0, p1, p2, p3 = source[:n], source[channels:], source[2 * channels :], source[3 * channels :]
    p4, p5, p6 = source[4 * channels :], source[5 * channels :], source[6 * channels :]
    p7, p8, p9 = source[7 * channels :], source[8 * channels :], source[9 * channels :]
    p10 = source[10 * channels :]
    w0, w1, w2, w3, w4, w5 = weights[0], weights[1], weights[2], weights[3], weights[4], weights[5]
    for e in range(n):
        near = w5 * p5[e] + w4 * (p4[e] + p6[e]) + w3 * (p3[e] + p7[e])
        out[e] = near + w2 * (p2[e] + p8[e]) + w1 * (p1[e] + p9[e]) + w0 * (p0[e] + p10[e])


@njit(**INNER)
def _down_columns(ring, newest, weights, out):
    """Convolves eleven rows, the newest of which is ``ring[newest]``, into one."""
    p0, p1, p2 = ring[(newest + 1) % TAPS], ring[(newest + 2) % TAPS], ring[(newest + 3) % TAPS]
    p3, p4, p5 = ring[(newest + 4) % TAPS], ring[(newest + 5) % TAPS], ring[(newest + 6) % TAPS]
    p6, p7, p8 = ring[(newest + 7) % TAPS], ring[(newest + 8) % TAPS], ring[(newest + 9) % TAPS]
    p9, p10 = ring[(newest + 10) % TAPS], ring[newest]
    w0, w1, w2, w3, w4, w5 = weights[0], weights[1], weights[2], weights[3], weights[4], weights[5]
    for e in range(out.size):
        near = w5 * p5[e] + w4 * (p4[e] + p6[e]) + w3 * (p3[e] + p7[e])
        out[e] = near + w2 * (p2[e] + p8[e]) + w1 * (p1[e] + p9[e]) + w0 * (p0[e] + p10[e])


@njit(**INNER)
def _similarity(mean, constants, slopes):
    """The sum of SSIM over a row; ``slopes`` becomes its derivatives, ``ssim.cu`` says which."""
    c1, c2, two = constants[0], constants[1], constants[2]
    total = 0.0
    for e in range(mean.shape[1]):
        ma, md = mean[0, e], mean[1, e]
        aa, dd = ma * ma, md * md
        va, vd = mean[2, e] - aa, mean[3, e] - dd
        n1, n2 = aa - dd + c1, va - vd + c2
        r1, r2 = constants[3] / (aa + dd + c1), constants[3] / (va + vd + c2)
        r = r1 * r2
        slope_a, slope_d = two * vd * n1 * r * r2, -two * (va + c2) * n1 * r * r2
        slopes[0, e] = two * (ma * (two * dd * n2 * r * r1 - slope_a) - md * (two * (aa + c1) * n2 * r * r1 + slope_d))
        slopes[1, e], slopes[2, e] = slope_a, slope_d
        total += n1 * n2 * r
    return total


@njit(**INNER)
def _clear(row):
    for e in range(row.size):
        row[e] = 0


@njit(**INNER)
def _read_row(x, y, side, lines):
    """Puts a, d, a^2 and d^2 of a row into ``lines`` behind their margins; returns the sum of the differences."""
    l1 = 0.0
    into_a, into_d, into_aa, into_dd = lines[0, side:], lines[1, side:], lines[2, side:], lines[3, side:]
    for e in range(x.size):
        a, d = x[e] + y[e], x[e] - y[e]
        into_a[e], into_d[e], into_aa[e], into_dd[e] = a, d, a * a, d * d
        l1 += abs(d)
    return l1


@njit(**INNER)
def _fwd_band(x, y, channels, weights, constants, first, end, slopes, sums):
    """Rows ``first`` to ``end`` of the pictures x and y [H, W * C]."""
    height, columns = x.shape
    side = REACH * channels
    lines, rings = np.zeros((4, columns + 2 * side), x.dtype), np.zeros((4, TAPS, columns), x.dtype)
    mean, unwanted = np.zeros((4, columns), x.dtype), np.zeros((3, columns), x.dtype)
    l1, total = 0.0, 0.0
    for row in range(first - REACH, end + REACH):
        newest, out = (row + TAPS) % TAPS, row - REACH
        if 0 <= row < height:
            difference = _read_row(x[row], y[row], side, lines)
            l1 += difference if first <= row < end else 0.0
            for m in range(4):
                _along_row(lines[m], weights, channels, rings[m, newest])
        else:
            for m in range(4):
                _clear(rings[m, newest])
        if out >= first:
            for m in range(4):
                _down_columns(rings[m], newest, weights, mean[m])
            total += _similarity(mean, constants, slopes[:, out] if slopes.size else unwanted)
    sums[0], sums[1] = l1, total


@njit(**INNER)
def _mixed(x, y, found, shares, grad):
    """A row of the gradient from the convolved slopes."""
    of_l1, of_ssim, two, none = shares[0], shares[1], shares[2], shares[3]
    for e in range(x.size):
        a, d = x[e] + y[e], x[e] - y[e]
        slope = found[0, e] + two * (a * found[1, e] + d * found[2, e])
        grad[e] = (of_l1 if d > 0 else -of_l1 if d < 0 else none) - of_ssim * slope


@njit(**INNER)
def _bwd_band(x, y, channels, weights, shares, first, end, slopes, grad):
    """Rows ``first`` to ``end`` of the gradient [H, W * C]."""
    height, columns = x.shape
    side = REACH * channels
    line = np.zeros((1, columns + 2 * side), x.dtype)
    rings, found = np.zeros((3, TAPS, columns), x.dtype), np.zeros((3, columns), x.dtype)
    for row in range(first - REACH, end + REACH):
        newest, out = (row + TAPS) % TAPS, row - REACH
        for m in range(3):
            if 0 <= row < height:
                for e in range(columns):
                    line[0, side + e] = slopes[m, row, e]
                _along_row(line[0], weights, channels, rings[m, newest])
            else:
                _clear(rings[m, newest])
            if out >= first:
                _down_columns(rings[m], newest, weights, found[m])
        if out >= first:
            _mixed(x[out], y[out], found, shares, grad[out])


@njit(**FAST)
def ssim_fwd_kernel(begin, stop, x, y, channels, weights, constants, rows, slopes, sums):
    """``slopes`` [3, B, H, W * C] and L1 and SSIM, ``sums`` [bands, 2], of the bands of rows from ``begin`` on."""
    bands = (x.shape[1] + rows - 1) // rows
    for band in range(begin, stop):
        n, first = band // bands, band % bands * rows
        end = min(first + rows, x.shape[1])
        _fwd_band(x[n], y[n], channels, weights, constants, first, end, slopes[:, n], sums[band])


@njit(**FAST)
def ssim_bwd_kernel(begin, stop, x, y, channels, weights, shares, rows, slopes, grad):
    """``grad`` [B, H, W * C]: the shares of L1 and SSIM of one number times their derivatives by x."""
    bands = (x.shape[1] + rows - 1) // rows
    for band in range(begin, stop):
        n, first = band // bands, band % bands * rows
        end = min(first + rows, x.shape[1])
        _bwd_band(x[n], y[n], channels, weights, shares, first, end, slopes[:, n], grad[n])
