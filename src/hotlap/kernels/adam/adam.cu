// A step of Adam over all parameters of a model in one launch. A block owns ROWS rows of every parameter.
//
// MODE is 0 for dense, 1 for selective, 2 for lazy; VECTOR is 1 where all parameters start at multiples of 16 bytes.
//
// Lazy: a row that is left alone from step l to step t would have moved by
//     sum over s in l+1..t of lr(s) sqrt(1 - b2^s) / (1 - b1^s) (b1 / sqrt(b2))^(s-l)  times  m / sqrt(v),
// but for eps. The sum depends on l alone: `history` holds it for the last WINDOW steps l, and the first block brings it
// from one step to the next in the other half of the array, which no block reads in this launch. Every block brings its
// rows up to date once in WINDOW steps, whether they are visible or not, so that no older step is ever asked for. A visible
// row whose gradient is 0 all over is left alone likewise: of a scene's splats on the screen most lie behind others.

#define THREADS 256
#define ROWS 128
#define WINDOW 256
#define MAX_GROUPS 8
#define LEFT_ALONE -1
#define NARROW 4  // numbers of a row that one thread looks through

struct Group {
    float* param;
    const float* grad;
    float* first;
    float* second;
    int width, head;      // columns of a row, and how many of them have the whole rate
    float tail;           // the others' share of it
    int unused;
};
struct Given {
    Group groups[MAX_GROUPS];
    const float* lrs;     // [G]
    const int* step;      // steps made before this one
    int* last;            // [N]
    float* history;       // [2, G, WINDOW]
    const u8* visible;    // [N] or null: all are
    int num_rows, num_groups, flush;
    float beta1, beta2, log_beta1, log_beta2, eps;
};
struct Four { float at[4]; };

DEVICE Four read_four(const float* from, int count) {
    Four found = {{0.0f, 0.0f, 0.0f, 0.0f}};
#if VECTOR
    if (count == 4) {
        const float4 whole = *(const float4*)from;
        found.at[0] = whole.x, found.at[1] = whole.y, found.at[2] = whole.z, found.at[3] = whole.w;
        return found;
    }
#endif
    UNROLL for (int n = 0; n < 4; n++)
        if (n < count) found.at[n] = from[n];
    return found;
}
DEVICE void write_four(float* to, const Four& four, int count) {
#if VECTOR
    if (count == 4) {
        float4 whole;
        whole.x = four.at[0], whole.y = four.at[1], whole.z = four.at[2], whole.w = four.at[3];
        *(float4*)to = whole;
        return;
    }
#endif
    UNROLL for (int n = 0; n < 4; n++)
        if (n < count) to[n] = four.at[n];
}

// What one row needs: how many steps it missed or LEFT_ALONE, whether it has a gradient, whether that is 0, and what the steps
// do to it.
struct Row { int missed, seen, idle, slot; float decay1, decay2, eps; };

DEVICE Row find_row(const Given& given, int row, int now) {
    Row found = {0, given.visible ? given.visible[row] != 0 : 1, 0, 0, 1.0f, 1.0f, 0.0f};
#if MODE == 1
    if (!found.seen) found.missed = LEFT_ALONE;
#elif MODE == 2
    const int last = given.last[row];
    found.missed = given.flush ? now - last : now - 1 - last;
    const bool due = block_x() % WINDOW == now % WINDOW;
    if (given.flush ? found.missed == 0 : !found.seen && !due) found.missed = LEFT_ALONE;
    if (found.missed > 0) {
        found.slot = last % WINDOW;
        found.decay1 = expf(found.missed * given.log_beta1), found.decay2 = expf(found.missed * given.log_beta2);
        found.eps = given.eps * sqrtf(-expm1f(last * given.log_beta2));
    }
#endif
    return found;
}

// The places of the rows for which `yes` is not 0, in order, and how many they are. The first ROWS threads ask for a row each.
DEVICE int gather(int yes, int* places, int* by_warp) {
    const int thread = thread_index(), lane = thread % 32, warp = thread / 32;
    int upto = yes;
    UNROLL for (int by = 1; by < 32; by *= 2) {
        const int before = shuffle_up(upto, by);
        if (lane >= by) upto += before;
    }
    block_barrier();  // what was gathered before is used up
    if (lane == 31) by_warp[warp] = upto;
    block_barrier();
    int before = 0, all = 0;
    for (int n = 0; n < ROWS / 32; n++) before += n < warp ? by_warp[n] : 0, all += by_warp[n];
    if (yes) places[before + upto - yes] = thread;
    block_barrier();
    return all;
}

// Rows that are visible, and whose gradients are all 0, are left alone. Most that have any show it in a narrow parameter;
// the wide ones are read only of the others.
DEVICE void leave_idle(const Given& given, Row* rows, int* places, int* by_warp, int begin, int count) {
    const int thread = thread_index();
    bool asked = thread < count && rows[thread].seen;
    for (int g = 0; g < given.num_groups && asked; g++) {
        const Group group = given.groups[g];
        const float* const grad = group.grad + (i64)(begin + thread) * group.width;
        for (int n = 0; n < group.width && group.width <= NARROW && asked; n++) asked = grad[n] == 0.0f;
    }
    const int num = gather(asked, places, by_warp);
    if (asked) rows[thread].idle = 1;
    block_barrier();
    for (int g = 0; g < given.num_groups; g++) {
        const Group group = given.groups[g];
        if (group.width <= NARROW) continue;
        for (int e = thread; e < num * group.width; e += THREADS) {
            const int row = places[e / group.width];
            if (group.grad[(i64)(begin + row) * group.width + e % group.width] != 0.0f) rows[row].idle = 0;
        }
    }
    block_barrier();
    if (asked && rows[thread].idle) rows[thread].missed = LEFT_ALONE;
}

// The sums of the steps that rows may have been left alone since, one step later.
DEVICE void extend_history(const Given& given, int now, float root2, float correct1) {
    const int size = given.num_groups * WINDOW;
    const float* before = given.history + (now & 1) * size;
    float* after = given.history + (now + 1 & 1) * size;
    for (int n = thread_index(); n < size; n += THREADS) {
        const int since = (now - n % WINDOW + WINDOW) % WINDOW;
        const float shrink = expf(since * (given.log_beta1 - 0.5f * given.log_beta2));
        after[n] = since ? before[n] + given.lrs[n / WINDOW] * root2 / correct1 * shrink : 0.0f;
    }
}

// One number: the steps that its row has missed, then this one.
DEVICE void step_one(const Given& given, const Row& row, float missed_move, float share, float rate, float root2, float d, float& p,
                     float& m, float& v) {
    if (MODE == 2 && row.missed > 0) {
        if (m != 0.0f) p -= share * missed_move * (m / (sqrtf(v) + row.eps));
        m *= row.decay1, v *= row.decay2;
    }
    if (given.flush) return;
    d = row.seen ? d : 0.0f;
    m = given.beta1 * m + (1.0f - given.beta1) * d;
    v = given.beta2 * v + (1.0f - given.beta2) * d * d;
    p -= share * rate * (m / (sqrtf(v) / root2 + given.eps));
}

// EACH numbers at a time of the `num` rows that take part.
template <int EACH>
DEVICE void step_group(const Given& given, const Group& group, const Row* rows, const int* places, int num, int begin,
                       float rate, float root2, const float* moves) {
    const int parts = group.width / EACH;
    for (int e = thread_index(); e < num * parts; e += THREADS) {
        const int place = e / parts, column = (e - place * parts) * EACH;
        const int row = places[place];
        const Row& mine = rows[row];
        const i64 at = (i64)(begin + row) * group.width + column;
        Four param = read_four(group.param + at, EACH), first = read_four(group.first + at, EACH);
        Four second = read_four(group.second + at, EACH), grad = {{0.0f, 0.0f, 0.0f, 0.0f}};
        if (!given.flush && mine.seen) grad = read_four(group.grad + at, EACH);
        const float move = MODE == 2 && mine.missed > 0 ? moves[mine.slot] : 0.0f;
        UNROLL for (int n = 0; n < EACH; n++)
            step_one(given, mine, move, column + n >= group.head ? group.tail : 1.0f, rate, root2, grad.at[n], param.at[n],
                     first.at[n], second.at[n]);
        write_four(group.param + at, param, EACH), write_four(group.first + at, first, EACH);
        write_four(group.second + at, second, EACH);
    }
}

// All numbers of the block's rows, four at a time wherever they lie.
DEVICE void step_all(const Given& given, const Group& group, int count, int begin, float rate, float root2) {
    const int size = count * group.width;
    const Row all = {0, 1, 0, 0, 1.0f, 1.0f, 0.0f};
    const bool tailed = group.head < group.width;
    for (int e = 4 * thread_index(); e < size; e += 4 * THREADS) {
        const int num = size - e < 4 ? size - e : 4;
        const i64 at = (i64)begin * group.width + e;
        Four param = read_four(group.param + at, num), first = read_four(group.first + at, num);
        Four second = read_four(group.second + at, num), grad = read_four(group.grad + at, num);
        UNROLL for (int n = 0; n < 4; n++) {
            const float share = tailed && (e + n) % group.width >= group.head ? group.tail : 1.0f;
            step_one(given, all, 0.0f, share, rate, root2, grad.at[n], param.at[n], first.at[n], second.at[n]);
        }
        write_four(group.param + at, param, num), write_four(group.first + at, first, num);
        write_four(group.second + at, second, num);
    }
}

KERNEL(THREADS, 4) adam_step_kernel(Given given) {
    const int thread = thread_index(), begin = block_x() * ROWS;
    const int count = given.num_rows - begin < ROWS ? given.num_rows - begin : ROWS;
    const int now = *given.step + (given.flush ? 0 : 1);
    const float correct1 = -expm1f(now * given.log_beta1), root2 = sqrtf(-expm1f(now * given.log_beta2));
#if MODE
    SHARED(Row, rows, ROWS);
    SHARED(int, places, ROWS);
    SHARED(int, by_warp, THREADS / 32);
    if (thread < count) rows[thread] = find_row(given, begin + thread, now);
    block_barrier();
    if (MODE == 2 && !given.flush && block_x() % WINDOW != now % WINDOW) leave_idle(given, rows, places, by_warp, begin, count);
    const int num = gather(thread < count && rows[thread].missed >= 0, places, by_warp);
    if (MODE == 2 && block_x() == 0 && !given.flush) extend_history(given, now, root2, correct1);
#endif
    for (int g = 0; g < given.num_groups; g++) {
        const Group group = given.groups[g];
        const float rate = given.lrs[g] / correct1;
#if MODE
        const float* moves = given.history + ((given.flush ? now + 1 : now) & 1) * given.num_groups * WINDOW + g * WINDOW;
        if (group.width % 4 == 0) step_group<4>(given, group, rows, places, num, begin, rate, root2, moves);
        else step_group<1>(given, group, rows, places, num, begin, rate, root2, moves);
#else
        step_all(given, group, count, begin, rate, root2);
#endif
    }
#if MODE == 2
    if (thread < num) given.last[begin + places[thread]] = now;
#endif
}
