// The pairs of tile and splat, tile by tile in order of depth. A tile's pairs have a place of their own from the start,
// so that only they are sorted, in the registers of one block, and nothing on the host waits for a count.

#define PAIR_THREADS 256
#define SORT_THREADS 256
#define SORT_EACH 8
#define SORT_WARPS (SORT_THREADS / 32)
#define MERGE_THREADS 1024
#define SORT_MOST (SORT_THREADS * SORT_EACH)
#define SORT_SHORT (32 * SORT_EACH)
#define NO_KEY 0xffffffffffffffffull

#define PAIRS_AT_ONCE 4  // places that a thread asks for before it waits for the answers

// Each pair to some place of its tile.
KERNEL(PAIR_THREADS, 4)
splat_pair_kernel(const Frame f) {
    const int n = block_index() * PAIR_THREADS + thread_index(), camera = camera_index();
    const i64 row = (i64)camera * f.num_splats + n;
    const bool there = n < f.num_splats && f.tiles_per_splat[row] > 0;
    if (!any_lane(there)) return;
    Ellipse e = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    Box b = {0, 0, 0, 0};
    float depth = 0.0f;
    u32 reached = 0;
    if (there) {
        const float2 mean = reinterpret_cast<const float2*>(f.means2d)[row];
        b = tile_box(f, mean.x, mean.y, reinterpret_cast<const int2*>(f.radii)[row]);
        depth = f.depths[row], reached = f.reached[row];
        if (tiles_of(b) > ALONE) {
            const float* q = f.conics + row * 3;
            e = make_ellipse(mean.x, mean.y, q[0], q[1], q[2], f.shade[SH >= 0 ? row * 4 + 3 : row]);
        }
    }
    int* const cursors = f.cursors + (i64)camera * f.tiles_x * f.tiles_y;
    const u64 key = (u64)__float_as_uint(depth) << 32 | (u32)n;
    const int lane = thread_index() & 31;
    while (any_lane(reached != 0)) {
        int first[PAIRS_AT_ONCE];  // place of the first of the lanes with the same tile, which asks for all of them
        u32 alike[PAIRS_AT_ONCE];
        const u32 left = reached;
UNROLL
        for (int i = 0; i < PAIRS_AT_ONCE; i++) {
            const int tile = reached ? tile_of(f, b, first_bit(reached)) : NO_TILE;
            alike[i] = lanes_alike(tile), first[i] = f.capacity;
            if (tile != NO_TILE && first_bit(alike[i]) == lane) first[i] = fetch_add(cursors + tile, count_bits(alike[i]));
            reached &= reached - 1;
        }
UNROLL
        for (int i = 0; i < PAIRS_AT_ONCE; i++) {
            const int at = shuffle(first[i], first_bit(alike[i])) + count_bits(alike[i] & ((1u << lane) - 1));
            if (i < count_bits(left) && at < f.capacity) f.keys[at] = key;
        }
    }
    SHARED(u64, all_keys, PAIR_THREADS);  // of the warp's splats: a large one's pairs are written by other lanes
    u64* const keys = all_keys + (thread_index() & ~31);
    keys[thread_index() & 31] = key;
    warp_barrier();
    visit_large(f, b, e, [&](int tile, int who) {
        const int at = fetch_add(cursors + tile, 1);
        if (at < f.capacity) f.keys[at] = keys[who];
    });
}

DEVICE void order_two(u64& low, u64& high) {
    const u64 a = low, b = high;
    low = a < b ? a : b, high = a < b ? b : a;
}

// Each thread's eight keys against those of another thread; `mirrored` takes the other's from behind.
DEVICE void order_across(u64 (&key)[SORT_EACH], u64* exchange, int mask, bool mirrored) {
    const int thread = thread_index();
    const bool lower = (thread ^ mask) > thread;
    u64 other[SORT_EACH];
    if (mask < 32) {
UNROLL
        for (int i = 0; i < SORT_EACH; i++) other[i] = shuffle_xor(key[i], mask);
    } else {
        block_barrier();
UNROLL
        for (int i = 0; i < SORT_EACH; i++) exchange[i * SORT_THREADS + thread] = key[i];
        block_barrier();
UNROLL
        for (int i = 0; i < SORT_EACH; i++) other[i] = exchange[i * SORT_THREADS + (thread ^ mask)];
    }
UNROLL
    for (int i = 0; i < SORT_EACH; i++) {
        const u64 theirs = mirrored ? other[SORT_EACH - 1 - i] : other[i];
        key[i] = (theirs < key[i]) == lower ? theirs : key[i];
    }
}

// Sorts up to SORT_MOST keys of the block, or SORT_SHORT of the warp that begins at thread `first`, which is 0 for a
// block; its thread t ends with those of places 8t .. 8t + 7. A bitonic network without directions:
// the first step of each merge is mirrored, so that every comparison puts the smaller key first and padding stays last.
DEVICE void sort_keys(u64 (&key)[SORT_EACH], u64* exchange, int count, int first) {
UNROLL
    for (int size = 2; size <= SORT_EACH; size <<= 1) {
UNROLL
        for (int i = 0; i < SORT_EACH; i++)
            if ((i ^ (size - 1)) > i) order_two(key[i], key[i ^ (size - 1)]);
UNROLL
        for (int step = size >> 2; step > 0; step >>= 1)
UNROLL
            for (int i = 0; i < SORT_EACH; i++)
                if ((i ^ step) > i) order_two(key[i], key[i ^ step]);
    }
    for (int threads = 2; threads * SORT_EACH < 2 * count && threads <= SORT_THREADS; threads <<= 1) {
        const bool idle = ((thread_index() & ~31) - first) * SORT_EACH >= count;  // a warp with nothing but padding
        if (threads > 32 || !idle) order_across(key, exchange, threads - 1, true);
        for (int mask = threads >> 2; mask > 0; mask >>= 1)
            if (mask >= 32 || !idle) order_across(key, exchange, mask, false);
UNROLL
        for (int step = SORT_EACH >> 1; step > 0; step >>= 1)
UNROLL
            for (int i = 0; i < SORT_EACH; i++)
                if ((i ^ step) > i) order_two(key[i], key[i ^ step]);
    }
}

// Of the first `place` keys of two sorted lists together, how many are the first list's.
DEVICE int split(const u64* a, int num_a, const u64* b, int num_b, int place) {
    int low = place > num_b ? place - num_b : 0, high = place < num_a ? place : num_a;
    while (low < high) {
        const int middle = (low + high) >> 1;
        if (a[middle] < b[place - 1 - middle]) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Pairs of sorted runs become runs of twice the length, each of the block's threads making eight keys at a time.
DEVICE void merge_runs(const u64* from, u64* to, int count, int run, int threads) {
    for (int place = thread_index() * SORT_EACH; place < count; place += threads * SORT_EACH) {
        const int begin = place / (2 * run) * (2 * run), rest = count - begin;
        const int num_a = run < rest ? run : rest, num_b = rest - num_a < run ? rest - num_a : run;
        const u64 *a = from + begin, *b = a + num_a;
        int i = split(a, num_a, b, num_b, place - begin), j = place - begin - i;
        for (int n = 0; n < SORT_EACH && i + j < num_a + num_b; n++) {
            const bool first = j >= num_b || (i < num_a && a[i] < b[j]);
            to[place + n] = first ? a[i++] : b[j++];
        }
    }
}

// The keys of thread t of `threads`: which of the list's they are does not matter before they are sorted.
DEVICE void load_keys(const u64* from, int count, int thread, u64 (&key)[SORT_EACH]) {
    const int busy = (count + SORT_EACH - 1) / SORT_EACH;  // threads with keys
UNROLL
    for (int i = 0; i < SORT_EACH; i++) {
        const int at = i * busy + thread;
        key[i] = thread < busy && at < count ? from[at] : NO_KEY;
    }
}

// A run of a list by the whole block, from `base` on. Equal depths are in the order of the splats, which is part of the key.
// A list that is one run is done then.
DEVICE void sort_run(const Frame& f, int begin, int count, int base, u64* exchange) {
    const int thread = thread_index(), some = count - base < SORT_MOST ? count - base : SORT_MOST;
    u64 key[SORT_EACH];
    load_keys(f.keys + begin + base, some, thread, key);
    sort_keys(key, exchange, some, 0);
UNROLL
    for (int i = 0; i < SORT_EACH; i++) {
        const int at = begin + base + thread * SORT_EACH + i;
        if (thread * SORT_EACH + i >= some) continue;
        if (count <= SORT_MOST) f.ids[at] = (u32)key[i];
        else f.keys[at] = key[i];
    }
}

// The runs of a list of more than one, by all threads of the block.
DEVICE void merge_list(const Frame& f, int begin, int count, int threads) {
    u64 *from = f.keys + begin, *to = f.keys_spare + begin;
    for (int run = SORT_MOST; run < count; run <<= 1) {
        merge_runs(from, to, count, run, threads);
        block_barrier();
        u64* const swapped = from;
        from = to, to = swapped;
    }
    for (int n = thread_index(); n < count; n += threads) f.ids[begin + n] = (u32)from[n];
}

// One tile's list by a block of SORT_THREADS.
DEVICE void sort_tile(const Frame& f, int tile, u64* exchange) {
    const int begin = f.ranges[tile], count = f.ranges[tile + 1] - begin;
    for (int base = 0; base < count; base += SORT_MOST) {
        sort_run(f, begin, count, base, exchange);
        block_barrier();
    }
    if (count > SORT_MOST) merge_list(f, begin, count, SORT_THREADS);
}

// A list of up to SORT_SHORT by one warp.
DEVICE void sort_short(const Frame& f, int begin, int count) {
    const int lane = thread_index() & 31;
    u64 key[SORT_EACH];
    load_keys(f.keys + begin, count, lane, key);
    sort_keys(key, nullptr, count, thread_index() - lane);
UNROLL
    for (int i = 0; i < SORT_EACH; i++)
        if (lane * SORT_EACH + i < count) f.ids[begin + lane * SORT_EACH + i] = (u32)key[i];
}

// One block a run or, where most lists are short, one for as many tiles as it has warps: each warp sorts one, and the
// block then those that were too long. Which way is taken changes nothing but the time.
KERNEL(SORT_THREADS, 4)
splat_sort_kernel(const Frame f) {
    SHARED(u64, exchange, SORT_MOST);
    SHARED(int, too_long, SORT_WARPS);
    if (!f.short_lists) {
        const Share share = find_share(f, SORT_MOST);
        const int begin = f.ranges[share.tile], count = f.ranges[share.tile + 1] - begin, base = share.number * SORT_MOST;
        if (base < count) sort_run(f, begin, count, base, exchange);
        return;
    }
    const int tiles = f.num_cameras * f.tiles_x * f.tiles_y, blocks = (tiles + SORT_WARPS - 1) / SORT_WARPS;
    const int warp = thread_index() >> 5, at = block_index() + warp * blocks;  // the longest are first, in many blocks
    const int tile = at < tiles ? f.order[at] : -1;
    const int begin = tile < 0 ? 0 : f.ranges[tile], count = tile < 0 ? 0 : f.ranges[tile + 1] - begin;
    if (count > 0 && count <= SORT_SHORT) sort_short(f, begin, count);
    if ((thread_index() & 31) == 0) too_long[warp] = count > SORT_SHORT ? tile : -1;
    block_barrier();
    for (int n = 0; n < SORT_WARPS; n++)
        if (too_long[n] >= 0) sort_tile(f, too_long[n], exchange);
}

// The runs of long lists, after each was sorted by a block of its own.
KERNEL(MERGE_THREADS, 1)
splat_merge_kernel(const Frame f) {
    const int tile = f.order[block_index()], begin = f.ranges[tile], count = f.ranges[tile + 1] - begin;
    if (count > SORT_MOST) merge_list(f, begin, count, MERGE_THREADS);
}
