// The nearest point of another cloud for every point, both directions in one launch, and the gradient.
//
// A thread keeps QUERIES points in registers and walks over the targets, which the block lays into shared memory tile by
// tile. It asks only for the least distance of each chunk of targets, one instruction a pair, and remembers the chunk;
// which target of the chunk it was is looked up once at the end. Blocks may share the targets of one query: what each
// found is merged by the least of (distance, index) as one number, so that the result does not depend on their order.

#define CHUNK 16
#define TILE 1024
#define NOTHING 0xffffffffffffffffull
#define FAR_AWAY __uint_as_float(0x7f800000u)

struct alignas(16) Point { float x, y, z, unused; };
struct Cloud {
    const float* points;   // [B, count, 3]
    const i64* lengths;    // [B] or null
    int count;
};

struct Found { float* distance; i64* index; };  // [B, count] each
// What one search reads and writes; keys are a distance and the index it leads to as one number.
struct Search { Cloud x, y; u64* x_keys; u64* y_keys; Found of_x, of_y; };

DEVICE int cloud_length(const Cloud& cloud, int object) {
    if (!cloud.lengths) return cloud.count;
    const i64 length = cloud.lengths[object];
    return length < 0 ? 0 : length > cloud.count ? cloud.count : (int)length;
}
DEVICE float squared(const Point& a, const Point& b) {
    const float x = a.x - b.x, y = a.y - b.y, z = a.z - b.z;
    return x * x + y * y + z * z;
}
DEVICE Point read_point(const float* points, i64 number) {
    return {points[3 * number], points[3 * number + 1], points[3 * number + 2], 0.0f};
}

// Blocks by queries, by shares of the targets, and by object and direction.
KERNEL(THREADS, 8) chamfer_fwd_kernel(Search search) {
    SHARED(Point, tile, TILE);
    const int object = block_z() >> 1, thread = thread_index();
    const bool back = block_z() & 1;
    const Cloud here = back ? search.y : search.x, there = back ? search.x : search.y;
    u64* keys = (back ? search.y_keys : search.x_keys) + (i64)object * here.count;
    const int num_queries = cloud_length(here, object), num_targets = cloud_length(there, object);
    const int first_query = block_x() * THREADS * QUERIES;
    const int share = ((num_targets + blocks_y() - 1) / blocks_y() + CHUNK - 1) / CHUNK * CHUNK;
    const int begin = block_y() * share, end = begin + share < num_targets ? begin + share : num_targets;
    if (first_query >= num_queries || begin >= end) return;  // the whole block
    const float* targets = there.points + (i64)object * there.count * 3;
    Point query[QUERIES];
    float best[QUERIES];
    int chunk[QUERIES];
    UNROLL for (int q = 0; q < QUERIES; q++) {
        const int n = first_query + q * THREADS + thread;
        query[q] = read_point(here.points + (i64)object * here.count * 3, n < num_queries ? n : first_query);
        best[q] = FAR_AWAY, chunk[q] = -1;
    }
    for (int start = begin; start < end; start += TILE) {
        block_barrier();
        for (int k = thread; k < TILE; k += THREADS) {
            if (start + k < end) tile[k] = read_point(targets, start + k);
            else tile[k] = {FAR_AWAY, FAR_AWAY, FAR_AWAY, 0.0f};
        }
        block_barrier();
        const int filled = end - start < TILE ? end - start : TILE;
        for (int c = 0; c < filled; c += CHUNK) {
            float least[QUERIES];
            UNROLL for (int q = 0; q < QUERIES; q++) least[q] = FAR_AWAY;
            UNROLL for (int k = 0; k < CHUNK; k++) {
                const Point target = tile[c + k];
                UNROLL for (int q = 0; q < QUERIES; q++) least[q] = fminf(least[q], squared(query[q], target));
            }
            UNROLL for (int q = 0; q < QUERIES; q++)
                if (least[q] < best[q]) best[q] = least[q], chunk[q] = start + c;
        }
    }
    UNROLL for (int q = 0; q < QUERIES; q++) {
        const int n = first_query + q * THREADS + thread;
        if (n >= num_queries || chunk[q] < 0) continue;
        float nearest = FAR_AWAY;
        int which = -1;
        for (int m = chunk[q]; m < chunk[q] + CHUNK && m < end; m++) {
            const float distance = squared(query[q], read_point(targets, m));
            if (distance < nearest) nearest = distance, which = m;
        }
        if (which >= 0) atomic_min(&keys[n], (u64)__float_as_uint(nearest) << 32 | (u32)which);
    }
}

// The two halves of the keys. Points behind a cloud's length get 0 and -1, those without any target infinity and -1.
KERNEL(THREADS, 1) chamfer_unpack_kernel(Search search) {
    const int object = block_z() >> 1, n = block_x() * THREADS + thread_index();
    const bool back = block_z() & 1;
    const Cloud here = back ? search.y : search.x;
    if (n >= here.count) return;
    const i64 place = (i64)object * here.count + n;
    const u64 key = (back ? search.y_keys : search.x_keys)[place];
    const Found found = back ? search.of_y : search.of_x;
    const bool real = n < cloud_length(here, object);
    found.distance[place] = !real ? 0.0f : key == NOTHING ? FAR_AWAY : __uint_as_float((u32)(key >> 32));
    found.index[place] = !real || key == NOTHING ? -1 : (i64)(key & 0xffffffffull);
}

// The gradient by a distance is read where it lies: that of a sum is one number with strides of 0.
struct Wanted { const i64* index; const float* v; i64 v_row, v_step; float* grad; };
struct Slope { Cloud x, y; Wanted of_x, of_y; };

// Adds 2 v (p - q) to the gradient of a point p and takes it from that of its nearest point q.
KERNEL(THREADS, 1) chamfer_bwd_kernel(Slope slope) {
    const int object = block_z() >> 1, n = block_x() * THREADS + thread_index();
    const bool back = block_z() & 1;
    const Cloud here = back ? slope.y : slope.x, there = back ? slope.x : slope.y;
    const Wanted mine = back ? slope.of_y : slope.of_x, other = back ? slope.of_x : slope.of_y;
    if (n >= here.count) return;
    const i64 place = (i64)object * here.count + n, index = mine.index[place];
    if (index < 0) return;
    const i64 target = (i64)object * there.count + index;
    const Point p = read_point(here.points, place), q = read_point(there.points, target);
    const float twice = 2.0f * mine.v[object * mine.v_row + n * mine.v_step];
    const float step[3] = {twice * (p.x - q.x), twice * (p.y - q.y), twice * (p.z - q.z)};
    UNROLL for (int axis = 0; axis < 3; axis++) {
        atomic_add(&mine.grad[3 * place + axis], step[axis]);
        atomic_add(&other.grad[3 * target + axis], -step[axis]);
    }
}
