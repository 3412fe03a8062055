// The bookkeeping of densification, a thread for each splat.

#define THREADS 256
#define WARPS (THREADS / 32)
#define EACH 4
#define ROWS (THREADS * EACH)
#define KEPT 0
#define COPY 1
#define CHILD_A 2
#define CHILD_B 3

KERNEL(THREADS, 4) densify_accumulate_kernel(const float* v_means2d, const int* radii, float* grad, int* count,
                                             float* max_radius, u8* visible, int num_splats, int num_cameras,
                                             float scale_x, float scale_y, float longer_side) {
    const int splat = block_x() * THREADS + thread_index();
    if (splat >= num_splats) return;
    float sum = 0.0f;
    int times = 0, largest = 0;
    for (int camera = 0; camera < num_cameras; camera++) {
        const i64 at = 2 * ((i64)camera * num_splats + splat);
        const int rx = radii[at], ry = radii[at + 1];
        if (rx <= 0 || ry <= 0) continue;
        const float x = v_means2d[at] * scale_x, y = v_means2d[at + 1] * scale_y;
        sum += sqrtf(x * x + y * y), times++;
        largest = rx > largest ? rx : largest, largest = ry > largest ? ry : largest;
    }
    visible[splat] = times > 0;
    if (!times) return;
    const float share = largest / longer_side;
    grad[splat] += sum, count[splat] += times;
    if (share > max_radius[splat]) max_radius[splat] = share;
}

// How many rows a splat becomes.
DEVICE int rows_of(const u8* clone, const u8* split, const u8* prune, int splat, int num_splats) {
    if (splat >= num_splats || prune[splat]) return 0;
    return split[splat] || clone[splat] ? 2 : 1;
}

// The sum of what the threads before this one have, and of what all have.
DEVICE int sum_before(int mine, int* places, int* total) {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    int sum = mine;
    UNROLL for (int by = 1; by < 32; by *= 2) {
        const int before = shuffle_up(sum, by);
        if (lane >= by) sum += before;
    }
    block_barrier();  // the places may still be read from the sum before
    if (lane == 31) places[warp] = sum;
    block_barrier();
    int before = 0;
    *total = 0;
    for (int n = 0; n < WARPS; n++) before += n < warp ? places[n] : 0, *total += places[n];
    return before + sum - mine;
}

KERNEL(THREADS, 4) densify_count_kernel(const u8* clone, const u8* split, const u8* prune, int* sums, int num_splats) {
    SHARED(int, places, WARPS);
    const int first = block_x() * ROWS + thread_index() * EACH;
    int mine = 0, total;
    UNROLL for (int n = 0; n < EACH; n++) mine += rows_of(clone, split, prune, first + n, num_splats);
    sum_before(mine, places, &total);
    if (thread_index() == 0) sums[block_x()] = total;
}

// One block: what each block of the count has becomes what all before it have.
KERNEL(THREADS, 1) densify_scan_kernel(int* sums, int* count, int num_blocks) {
    SHARED(int, places, WARPS);
    int carried = 0;
    for (int first = 0; first < num_blocks; first += THREADS) {
        const int block = first + thread_index();
        const int mine = block < num_blocks ? sums[block] : 0;
        int total;
        const int before = sum_before(mine, places, &total);
        if (block < num_blocks) sums[block] = carried + before;
        carried += total;
    }
    if (thread_index() == 0) *count = carried;
}

KERNEL(THREADS, 4) densify_place_kernel(const u8* clone, const u8* split, const u8* prune, const int* sums, int* source,
                                        u8* kind, int num_splats, int capacity) {
    SHARED(int, places, WARPS);
    const int first = block_x() * ROWS + thread_index() * EACH;
    int mine = 0, total;
    UNROLL for (int n = 0; n < EACH; n++) mine += rows_of(clone, split, prune, first + n, num_splats);
    int row = sums[block_x()] + sum_before(mine, places, &total);
    for (int n = 0; n < EACH; n++) {
        const int splat = first + n, num = rows_of(clone, split, prune, splat, num_splats);
        for (int copy = 0; copy < num; copy++, row++) {
            if (row >= capacity) continue;
            source[row] = splat, kind[row] = split[splat] ? CHILD_A + copy : KEPT + copy;
        }
    }
}

// The rows behind the last one.
KERNEL(THREADS, 4) densify_rest_kernel(const int* count, int* source, u8* kind, int capacity) {
    const int row = block_x() * THREADS + thread_index();
    if (row >= *count && row < capacity) source[row] = -1, kind[row] = KEPT;
}

// `ratio` splats of the new opacity p let as much light through as one of the old, and the scales shrink by
// old / (2 / sqrt(pi) times the integral over t > 0 of 1 - (1 - p exp(-t^2))^ratio), which is the method's double sum of
// binomial coefficients with 18 terms instead of ratio^2 / 2. The trapezoid rule with step 1/4 is exact to 2e-9.
KERNEL(THREADS, 4) densify_relocate_kernel(const float* opacities, const float* scales, const int* ratios,
                                           float* new_opacities, float* new_scales, int num_splats) {
    const int splat = block_x() * THREADS + thread_index();
    if (splat >= num_splats) return;
    const float opacity = opacities[splat], ratio = (float)ratios[splat];
    const float part = -expm1f(log1pf(-opacity) / ratio);
    float sum = -0.5f * expm1f(ratio * log1pf(-part));
    for (int n = 1; n <= 17; n++) sum -= expm1f(ratio * log1pf(-part * expf(-0.0625f * n * n)));
    const float shrink = sum > 0.0f ? opacity / (0.28209479f * sum) : 1.0f;
    new_opacities[splat] = part;
    UNROLL for (int axis = 0; axis < 3; axis++) new_scales[3 * splat + axis] = shrink * scales[3 * splat + axis];
}

struct Bits { u32 at[4]; };
// Ten rounds of Philox 4x32.
DEVICE Bits philox(Bits counter, u32 key0, u32 key1) {
    UNROLL for (int round = 0; round < 10; round++) {
        const u32 high0 = multiply_high(0xD2511F53u, counter.at[0]), low0 = 0xD2511F53u * counter.at[0];
        const u32 high1 = multiply_high(0xCD9E8D57u, counter.at[2]), low1 = 0xCD9E8D57u * counter.at[2];
        counter.at[0] = high1 ^ counter.at[1] ^ key0, counter.at[1] = low1;
        counter.at[2] = high0 ^ counter.at[3] ^ key1, counter.at[3] = low0;
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return counter;
}
// Between 0 and 1, and neither: 23 bits and a half.
DEVICE float part_of_one(u32 bits) { return ((float)(bits >> 9) + 0.5f) * 1.1920929e-7f; }

KERNEL(THREADS, 4) densify_noise_kernel(float* means, const float* quats, const float* log_scales, const float* logits,
                                        const float* lr, const int* step, int num_splats, float strength, int seed_low,
                                        int seed_high) {
    const int splat = block_x() * THREADS + thread_index();
    if (splat >= num_splats) return;
    const Bits bits = philox({{(u32)splat, 0u, (u32)*step, 0u}}, (u32)seed_low, (u32)seed_high);
    const float length0 = sqrtf(-2.0f * logf(part_of_one(bits.at[0]))), length1 = sqrtf(-2.0f * logf(part_of_one(bits.at[2])));
    float sine, cosine, unused, normal[3];
    turn(part_of_one(bits.at[1]), &sine, &cosine);
    normal[0] = length0 * cosine, normal[1] = length0 * sine;
    turn(part_of_one(bits.at[3]), &unused, &cosine);
    normal[2] = length1 * cosine;
    float w = quats[4 * splat], x = quats[4 * splat + 1], y = quats[4 * splat + 2], z = quats[4 * splat + 3];
    const float scale = 1.0f / sqrtf(w * w + x * x + y * y + z * z);
    w *= scale, x *= scale, y *= scale, z *= scale;
    const float rotation[3][3] = {{1.0f - 2.0f * (y * y + z * z), 2.0f * (x * y - w * z), 2.0f * (x * z + w * y)},
                                  {2.0f * (x * y + w * z), 1.0f - 2.0f * (x * x + z * z), 2.0f * (y * z - w * x)},
                                  {2.0f * (x * z - w * y), 2.0f * (y * z + w * x), 1.0f - 2.0f * (x * x + y * y)}};
    const float opacity = 1.0f / (1.0f + expf(-logits[splat]));
    const float size = *lr * strength / (1.0f + expf(100.0f * (opacity - 0.005f)));
    float along[3];
    UNROLL for (int k = 0; k < 3; k++) {
        const float projected = rotation[0][k] * normal[0] + rotation[1][k] * normal[1] + rotation[2][k] * normal[2];
        along[k] = expf(2.0f * log_scales[3 * splat + k]) * projected * size;
    }
    UNROLL for (int k = 0; k < 3; k++)
        means[3 * splat + k] += rotation[k][0] * along[0] + rotation[k][1] * along[1] + rotation[k][2] * along[2];
}
