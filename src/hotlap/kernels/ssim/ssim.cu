// L1 and SSIM of two pictures and their gradient, in two passes over rows.
//
// A row of a picture is its W * CHANNELS numbers, channels side by side; taps of a pixel's window are CHANNELS apart, so
// no thread needs to know its channel. A block owns a strip of THREADS such columns and walks down `rows` rows: each row
// is convolved along itself from shared memory, and a thread keeps the last eleven results of its column in registers.
//
// The two pictures x and y are read as a = x + y and d = x - y. The variances that SSIM needs are sums and differences
// of those of a and d, and where the pictures are alike no large numbers cancel in the gradient.

#define THREADS 256
#define WARPS (THREADS / 32)
#define REACH 5
#define TAPS 11
#define SIDE (REACH * CHANNELS)
#define SPAN (THREADS + 2 * SIDE)
#define LOADS ((SPAN + THREADS - 1) / THREADS)
#define C1_TWICE 2e-4f
#define C2_TWICE 1.8e-3f

template <int KIND> struct Number;
template <> struct Number<0> { typedef float type; };
template <> struct Number<1> { typedef half16 type; };
template <> struct Number<2> { typedef brain16 type; };
template <> struct Number<3> { typedef u8 type; };
typedef Number<IMAGE>::type image_t;
typedef Number<TARGET>::type target_t;
#define TARGET_SCALE (TARGET == 3 ? 1.0f / 255.0f : 1.0f)

// Normal weights of standard deviation 1.5 pixels, their sum 1.
DEVICE float weight(int tap) {
    constexpr float weights[TAPS] = {0.00102838008f, 0.00759875814f, 0.0360007721f, 0.10936069f, 0.213005538f, 0.266011725f,
                                     0.213005538f, 0.10936069f, 0.0360007721f, 0.00759875814f, 0.00102838008f};
    return weights[tap];
}

struct Given {
    const image_t* image;      // [B, H, W, CHANNELS]
    const target_t* target;    // [B, H, W, CHANNELS + ALPHA]
    const float* mask;         // [B, H, W] or null
    const float* background;   // [1 or B, CHANNELS] or null
    int batch, height, width, background_step;
};
struct Pixel { float sum, difference, mask; };

// What is compared at number `column` of a row; zeros outside the picture.
DEVICE Pixel read_pixel(const Given& given, int picture, int row, int column) {
    Pixel found = {0.0f, 0.0f, 0.0f};
    if (row < 0 || row >= given.height || column < 0 || column >= given.width * CHANNELS) return found;
    const i64 line = (i64)picture * given.height + row;
    const int pixel = column / CHANNELS;
    float x = to_float(given.image[line * given.width * CHANNELS + column]), y;
#if ALPHA
    const target_t* here = given.target + (line * given.width + pixel) * (CHANNELS + 1);
    const int channel = column - pixel * CHANNELS;
    const float alpha = to_float(here[CHANNELS]) * TARGET_SCALE;
    const float behind = given.background ? given.background[picture * given.background_step + channel] : 0.0f;
    y = to_float(here[channel]) * TARGET_SCALE * alpha + behind * (1.0f - alpha);
#else
    y = to_float(given.target[line * given.width * CHANNELS + column]) * TARGET_SCALE;
#endif
    found.mask = given.mask ? given.mask[line * given.width + pixel] : 1.0f;
    found.sum = (x + y) * found.mask, found.difference = (x - y) * found.mask;
    return found;
}

// The sum of a number over the block, in its first thread.
DEVICE float block_sum(float value, float* places) {
    UNROLL for (int by = 16; by; by /= 2) value += shuffle_down(value, by);
    block_barrier();  // the places may still be read from the sum before
    if (thread_index() % 32 == 0) places[thread_index() / 32] = value;
    block_barrier();
    float sum = 0.0f;
    if (thread_index() == 0)
        for (int warp = 0; warp < WARPS; warp++) sum += places[warp];
    return sum;
}

// SSIM from the windowed means of a, d, a^2 and d^2, and its derivatives: by the means of a and d together, by the mean
// of a^2 and by that of d^2.
DEVICE float similarity(const float (&mean)[4], float (&slope)[3]) {
    const float aa = mean[0] * mean[0], dd = mean[1] * mean[1], va = mean[2] - aa, vd = mean[3] - dd;
    const float n1 = aa - dd + C1_TWICE, d1 = aa + dd + C1_TWICE, n2 = va - vd + C2_TWICE, d2 = va + vd + C2_TWICE;
    const float r1 = 1.0f / d1, r2 = 1.0f / d2, r = r1 * r2;
    slope[1] = 2.0f * vd * n1 * r * r2;
    slope[2] = -2.0f * (va + C2_TWICE) * n1 * r * r2;
    slope[0] = 2.0f * (mean[0] * (2.0f * dd * n2 * r * r1 - slope[1]) -
                       mean[1] * (2.0f * (aa + C1_TWICE) * n2 * r * r1 + slope[2]));
    return n1 * n2 * r;
}

KERNEL(THREADS, 3) ssim_fwd_kernel(Given given, float* slopes, float* sums, int rows) {
    SHARED(float2, lines, 2 * SPAN);
    SHARED(float, places, WARPS);
    const int picture = block_z(), first = block_y() * rows, thread = thread_index();
    const int end = first + rows < given.height ? first + rows : given.height;
    const int left = block_x() * THREADS - SIDE, column = left + SIDE + thread, columns = given.width * CHANNELS;
    const i64 plane = (i64)given.batch * given.height * columns;
    float window[TAPS][4], l1 = 0.0f, total = 0.0f;
    float2 next[LOADS];
    auto fetch = [&](int row) {
        UNROLL for (int n = 0; n < LOADS; n++) {
            if (n * THREADS + thread >= SPAN) break;
            const Pixel pixel = read_pixel(given, picture, row, left + n * THREADS + thread);
            next[n].x = pixel.sum, next[n].y = pixel.difference;
        }
    };
    fetch(first - REACH);
    int half = 0;
    for (int base = first - REACH; base < end + REACH; base += TAPS) {
        UNROLL for (int turn = 0; turn < TAPS; turn++) {
            const int row = base + turn;
            if (row >= end + REACH) break;
            float2* line = lines + half * SPAN;
            half ^= 1;  // so that a slow thread may still read the line before
            UNROLL for (int n = 0; n < LOADS; n++)
                if (n * THREADS + thread < SPAN) line[n * THREADS + thread] = next[n];
            block_barrier();
            fetch(row + 1);
            float mean[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            UNROLL for (int tap = 0; tap < TAPS; tap++) {
                const float2 at = line[thread + tap * CHANNELS];
                const float a = weight(tap) * at.x, d = weight(tap) * at.y;
                mean[0] += a, mean[1] += d, mean[2] += a * at.x, mean[3] += d * at.y;
            }
            UNROLL for (int m = 0; m < 4; m++) window[turn][m] = mean[m];
            if (row >= first && row < end) l1 += fabsf(line[thread + SIDE].y);
            const int out = row - REACH;
            if (out < first || column >= columns) continue;
            UNROLL for (int m = 0; m < 4; m++) {
                mean[m] = 0.0f;
                UNROLL for (int tap = 0; tap < TAPS; tap++) mean[m] += weight(tap) * window[(turn + 1 + tap) % TAPS][m];
            }
            float slope[3];
            total += similarity(mean, slope);
            if (!slopes) continue;
            const i64 at = ((i64)picture * given.height + out) * columns + column;
            UNROLL for (int m = 0; m < 3; m++) slopes[m * plane + at] = slope[m];
        }
    }
    l1 = column < columns ? l1 : 0.0f;
    l1 = block_sum(l1, places), total = block_sum(total, places);
    const int block = (block_z() * blocks_y() + block_y()) * blocks_x() + block_x();
    if (thread == 0) sums[2 * block] = l1, sums[2 * block + 1] = total;
}

// The loss from what the blocks of the first pass have summed.
DEVICE void write_loss(const float* sums, int num_blocks, float ssim_weight, float count, float* loss, float* places) {
    float l1 = 0.0f, total = 0.0f;
    for (int block = thread_index(); block < num_blocks; block += THREADS)
        l1 += sums[2 * block], total += sums[2 * block + 1];
    l1 = block_sum(l1, places), total = block_sum(total, places);
    if (thread_index() == 0) *loss = (1.0f - ssim_weight) * (l1 / count) + ssim_weight * (1.0f - total / count);
}

KERNEL(THREADS, 3) ssim_bwd_kernel(Given given, const float* slopes, const float* sums, float* grad, float* loss, int rows,
                                   int num_blocks, float ssim_weight, float count) {
    SHARED(float, lines, 6 * SPAN);
    SHARED(float, places, WARPS);
    const int picture = block_z(), first = block_y() * rows, thread = thread_index();
    const int end = first + rows < given.height ? first + rows : given.height;
    const int left = block_x() * THREADS - SIDE, column = left + SIDE + thread, columns = given.width * CHANNELS;
    const i64 plane = (i64)given.batch * given.height * columns;
    const float of_l1 = (1.0f - ssim_weight) / count, of_ssim = ssim_weight / count;
    float window[TAPS][3], next[LOADS][3];
    auto fetch = [&](int row) {
        UNROLL for (int n = 0; n < LOADS; n++) {
            const int there = left + n * THREADS + thread;
            const bool inside = row >= 0 && row < given.height && there >= 0 && there < columns;
            const i64 at = ((i64)picture * given.height + row) * columns + there;
            UNROLL for (int m = 0; m < 3; m++)
                next[n][m] = inside && n * THREADS + thread < SPAN ? slopes[m * plane + at] : 0.0f;
        }
    };
    fetch(first - REACH);
    int half = 0;
    for (int base = first - REACH; base < end + REACH; base += TAPS) {
        UNROLL for (int turn = 0; turn < TAPS; turn++) {
            const int row = base + turn;
            if (row >= end + REACH) break;
            float* line = lines + half * 3 * SPAN;
            half ^= 1;  // so that a slow thread may still read the line before
            UNROLL for (int n = 0; n < LOADS; n++)
                UNROLL for (int m = 0; m < 3; m++)
                    if (n * THREADS + thread < SPAN) line[m * SPAN + n * THREADS + thread] = next[n][m];
            block_barrier();
            fetch(row + 1);
            UNROLL for (int m = 0; m < 3; m++) {
                float sum = 0.0f;
                UNROLL for (int tap = 0; tap < TAPS; tap++)
                    sum += weight(tap) * line[m * SPAN + thread + tap * CHANNELS];
                window[turn][m] = sum;
            }
            const int out = row - REACH;
            if (out < first || column >= columns) continue;
            float sum[3] = {0.0f, 0.0f, 0.0f};
            UNROLL for (int m = 0; m < 3; m++)
                UNROLL for (int tap = 0; tap < TAPS; tap++) sum[m] += weight(tap) * window[(turn + 1 + tap) % TAPS][m];
            const Pixel at = read_pixel(given, picture, out, column);
            const float sign = at.difference > 0.0f ? 1.0f : at.difference < 0.0f ? -1.0f : 0.0f;
            const float slope = sum[0] + 2.0f * (at.sum * sum[1] + at.difference * sum[2]);
            grad[((i64)picture * given.height + out) * columns + column] = at.mask * (of_l1 * sign - of_ssim * slope);
        }
    }
    if (block_x() == 0 && block_y() == 0 && block_z() == 0) write_loss(sums, num_blocks, ssim_weight, count, loss, places);
}

// The loss alone, for one block.
KERNEL(THREADS, 1) ssim_sum_kernel(const float* sums, float* loss, int num_blocks, float ssim_weight, float count) {
    SHARED(float, places, WARPS);
    write_loss(sums, num_blocks, ssim_weight, count, loss, places);
}
