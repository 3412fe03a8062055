// The counts of pairs, and where each tile's pairs begin: before the projection no tile has one, and its last block makes
// places of the counts.

#define CLEAR_THREADS 256

// No tile has a pair yet, and no block of the projection is done.
KERNEL(CLEAR_THREADS, 1)
splat_clear_kernel(const Frame f) {
    const int n = block_index() * CLEAR_THREADS + thread_index();
    if (n <= f.num_cameras * f.tiles_x * f.tiles_y) f.cursors[n] = 0;
}

#define SCAN_MOST (1 << 30)  // more than any capacity: sums stop there, so that they do not overflow

// Of numbers up to SCAN_MOST, two of which would overflow.
DEVICE int add_up(int a, int b) { return a < SCAN_MOST - b ? a + b : SCAN_MOST; }

// The sum of `value` over this lane and those before it.
DEVICE int sum_upto(int value) {
    const int lane = thread_index() & 31;
UNROLL
    for (int step = 1; step < 32; step <<= 1) {
        const int other = shuffle(value, lane < step ? lane : lane - step);
        if (lane >= step) value = add_up(value, other);
    }
    return value;
}

// The sum of `value` over the warps before this one; `all` becomes that over the block.
DEVICE int sum_before(int value, int* by_warp, int warps, int& all) {
    const int lane = thread_index() & 31, warp = thread_index() >> 5;
    const int mine = sum_upto(value);
    if (lane == 31) by_warp[warp] = mine;
    block_barrier();
    const int upto = sum_upto(lane < warps ? by_warp[lane] : 0);
    all = shuffle(upto, 31);
    const int before = shuffle(upto, warp == 0 ? 0 : warp - 1);
    return warp == 0 ? 0 : before;
}

// Whether all other blocks of the grid have come here before this one, and what they have added is there to read.
DEVICE bool is_last_block(int* done, int blocks) {
    SHARED(int, last, 1);
    block_barrier();
    if (thread_index() == 0) last[0] = arrive_at(done) == blocks - 1;
    block_barrier();
    return last[0];
}

// Counts become places, by one block, each of its `warps` warps with a part of the tiles. Tiles with more than twice the
// mean of pairs are first in the order of work: one that starts late would keep the card waiting for it alone.
DEVICE void scan_tiles(const Frame& f, int warps) {
    SHARED(int, pairs_by_warp, 32);
    SHARED(int, long_by_warp, 32);
    const int lane = thread_index() & 31, tiles = f.num_cameras * f.tiles_x * f.tiles_y;
    const int each = (tiles + warps * 32 - 1) / (warps * 32) * 32, first = (thread_index() >> 5) * each;
    const int end = first + each < tiles ? first + each : tiles;
    int sum = 0, all, num_long = 0, all_long;
    for (int n = first + lane; n < end; n += 32) sum = add_up(sum, f.cursors[n]);
    int at = sum_before(sum, pairs_by_warp, warps, all);
    const int ordinary = all / tiles * 2 + 32;
    for (int n = first + lane; n < end; n += 32) num_long += f.cursors[n] > ordinary;
    int longer = sum_before(num_long, long_by_warp, warps, all_long);
    for (int base = first; base < end; base += 32) {
        const int n = base + lane, count = n < end ? f.cursors[n] : 0;
        const int upto = sum_upto(count), before = shuffle(upto, lane == 0 ? 0 : lane - 1);
        const u32 long_ones = ballot(count > ordinary);
        if (n < end) {
            const int start = lane == 0 ? at : add_up(at, before), place = start < f.capacity ? start : f.capacity;
            const int long_before = longer + count_bits(long_ones & ((1u << lane) - 1));
            f.order[count > ordinary ? long_before : all_long + n - long_before] = n;
            f.cursors[n] = f.ranges[n] = place;
        }
        at = add_up(at, shuffle(upto, 31)), longer += count_bits(long_ones);
    }
    if (thread_index() > 0) return;
    f.needed[0] = all;
    if (f.told) tell_host(f.told, all);
    else if (all > f.capacity) raise_to(f.needed + 1, all);
    f.ranges[tiles] = all < f.capacity ? all : f.capacity;
}
