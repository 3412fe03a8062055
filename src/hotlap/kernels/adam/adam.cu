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

// What one row needs: how many steps it missed or LEFT_ALONE, whether it has a gradient, and what the steps do to it.
struct Row { int missed, seen, slot; float decay1, decay2, eps; };

DEVICE Row find_row(const Given& given, int row, int now) {
    Row found = {0, given.visible ? given.visible[row] != 0 : 1, 0, 1.0f, 1.0f, 0.0f};
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

// Rows that are visible, and whose gradients are all 0, are left alone, but for those of a block that is due.
DEVICE void leave_idle(const Given& given, Row* rows, int* told, int begin, int count, int now) {
    const int thread = thread_index();
    for (int n = thread; n < count; n += THREADS) told[n] = 0;
    block_barrier();
    for (int g = 0; g < given.num_groups; g++) {
        const Group group = given.groups[g];
        const int size = count * group.width;
        for (int e = 4 * thread; e < size; e += 4 * THREADS) {
            const int num = size - e < 4 ? size - e : 4;
            bool any = false;
            UNROLL for (int n = 0; n < 4; n++) any = any || (n < num && rows[(e + n) / group.width].seen);
            if (!any) continue;
            const Four grad = read_four(group.grad + (i64)begin * group.width + e, num);
            UNROLL for (int n = 0; n < 4; n++)
                if (n < num && grad.at[n] != 0.0f) told[(e + n) / group.width] = 1;
        }
    }
    block_barrier();
    if (block_x() % WINDOW != now % WINDOW)
        for (int n = thread; n < count; n += THREADS)
            if (!told[n]) rows[n].missed = LEFT_ALONE;
    block_barrier();
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

KERNEL(THREADS, 4) adam_step_kernel(Given given) {
    SHARED(Row, rows, ROWS);
    const int thread = thread_index(), begin = block_x() * ROWS;
    const int count = given.num_rows - begin < ROWS ? given.num_rows - begin : ROWS;
    const int now = *given.step + (given.flush ? 0 : 1);
    const float correct1 = -expm1f(now * given.log_beta1), root2 = sqrtf(-expm1f(now * given.log_beta2));
    if (MODE) {
        for (int n = thread; n < count; n += THREADS) rows[n] = find_row(given, begin + n, now);
        block_barrier();
    }
#if MODE == 2
    SHARED(int, told, ROWS);
    if (!given.flush) leave_idle(given, rows, told, begin, count, now);
#endif
    if (MODE == 2 && block_x() == 0 && !given.flush) extend_history(given, now, root2, correct1);
    for (int g = 0; g < given.num_groups; g++) {
        const Group group = given.groups[g];
        const int size = count * group.width;
        const float rate = given.lrs[g] / correct1;
        const bool tailed = group.head < group.width;
        const float* moves = given.history + ((given.flush ? now + 1 : now) & 1) * given.num_groups * WINDOW + g * WINDOW;
        for (int e = 4 * thread; e < size; e += 4 * THREADS) {
            const int num = size - e < 4 ? size - e : 4;
            bool any = MODE == 0;
            if (MODE)
                UNROLL for (int n = 0; n < 4; n++) any = any || (n < num && rows[(e + n) / group.width].missed >= 0);
            if (!any) continue;
            const i64 at = (i64)begin * group.width + e;
            Four param = read_four(group.param + at, num), first = read_four(group.first + at, num);
            Four second = read_four(group.second + at, num), grad = {{0.0f, 0.0f, 0.0f, 0.0f}};
            if (!given.flush) grad = read_four(group.grad + at, num);
            UNROLL for (int n = 0; n < 4; n++) {
                float p = param.at[n], m = first.at[n], v = second.at[n], d = grad.at[n];
                const float share = tailed && (e + n) % group.width >= group.head ? group.tail : 1.0f;
                if (MODE && n < num) {
                    const Row& row = rows[(e + n) / group.width];
                    if (row.missed == LEFT_ALONE) continue;
                    if (row.missed > 0) {
                        if (m != 0.0f) p -= share * moves[row.slot] * (m / (sqrtf(v) + row.eps));
                        m *= row.decay1, v *= row.decay2;
                    }
                    d = row.seen ? d : 0.0f;
                }
                if (!given.flush) {
                    m = given.beta1 * m + (1.0f - given.beta1) * d;
                    v = given.beta2 * v + (1.0f - given.beta2) * d * d;
                    p -= share * rate * (m / (sqrtf(v) / root2 + given.eps));
                }
                param.at[n] = p, first.at[n] = m, second.at[n] = v;
            }
            write_four(group.param + at, param, num), write_four(group.first + at, first, num);
            write_four(group.second + at, second, num);
        }
    }
    if (MODE == 2)
        for (int n = thread; n < count; n += THREADS)
            if (rows[n].missed >= 0) given.last[begin + n] = now;
}
