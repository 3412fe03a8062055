// The recurrence of an LSTM layer, all steps in one launch. README.md beside this file draws the layout.
//
// A cluster of CLUSTER blocks owns one direction of ROWS sequences. Each block owns 32 hidden units and keeps its slice
// of the recurrent weights in registers for the whole sequence. At every step the blocks hand each other what they have
// computed through distributed shared memory, in two buffers used in turn, with one cluster barrier a step.
//
// Compiled with DTYPE, HIDDEN (64, 128 or 256, the hidden size rounded up), TILES (of 8 sequences: 1 or 2) and
// PRODUCTS (3: float32 from three TF32 products; 1: one product).
//
// Products are taken over 32-bit words: a word is one float or two halves. Lane 4 * g + q of a warp holds rows g and
// g + 8 of the weights and sequence g. Which k stands in which of its words is free as long as weights and states agree;
// the order here makes every load of the states 16 bytes: word 4 * q + 2 * s + j of 16 is operand j of product s.

#define UNITS 32
#define THREADS 256
#define CLUSTER (HIDDEN / UNITS)
#define ROWS (8 * TILES)
#define BLOCKS (DTYPE != 0 && TILES == 1 ? 2 : 1)  // blocks that must fit a multiprocessor at once
#define ELEM_BYTES (DTYPE == 0 ? 4 : 2)
#define WORD_ELEMS (4 / ELEM_BYTES)
#define CHUNK_BYTES 64

// Rows are 64 bytes longer than a multiple of 128, so that the 16-byte loads of two neighbouring rows share no bank.
#define STATE_STRIDE (HIDDEN * ELEM_BYTES + 64)
#define STATE_BYTES (ROWS * STATE_STRIDE)
#define FWD_CHUNKS (HIDDEN * ELEM_BYTES / CHUNK_BYTES / 2)

// Backward, a block multiplies the gradients of its own 128 gates with its slice of the weights. A warp has COLUMNS
// tiles of 16 hidden units and, where there are fewer tiles than warps, only one of SPLITS parts of the gates.
#define COLUMNS (HIDDEN >= 128 ? HIDDEN / 128 : 1)
#define SPLITS (HIDDEN >= 128 ? 1 : 2)
#define SLOTS (CLUSTER * SPLITS)
#define GRAD_STRIDE (4 * UNITS * ELEM_BYTES + 64)
#define GRAD_BYTES (ROWS * GRAD_STRIDE)
#define BWD_CHUNKS (4 * UNITS * ELEM_BYTES / CHUNK_BYTES / SPLITS)
#define SUM_FLOATS (TILES * UNITS * 8)

typedef long long i64;

struct Accumulator {
    float main[2][4];   // one for each of the two products of a chunk, so that neither waits for the other
    float small[4];     // the products with what TF32 leaves of a float32
};

DEVICE void clear(Accumulator& a) {
#pragma unroll
    for (int n = 0; n < 4; n++) a.main[0][n] = a.main[1][n] = a.small[n] = 0.0f;
}

DEVICE float total(const Accumulator& a, int n) {
    float sum = a.main[0][n] + a.main[1][n];
    return DTYPE == 0 && PRODUCTS == 3 ? sum + a.small[n] : sum;
}

#if DTYPE == 0 && PRODUCTS == 3
DEVICE u32 rest_tf32(u32 x, u32 high) { return round_tf32(__float_as_uint(__uint_as_float(x) - __uint_as_float(high))); }
#endif

// acc += w [16, chunk] b [chunk, 8] for each tile, where w has the words of both products of a chunk.
DEVICE void multiply_chunk(Accumulator (&acc)[TILES], const u32 (&w)[2][4], const uint4 (&b)[TILES]) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
#if DTYPE == 0 && PRODUCTS == 3
        u32 high[4], rest[4];
#pragma unroll
        for (int n = 0; n < 4; n++) high[n] = round_tf32(w[s][n]), rest[n] = rest_tf32(w[s][n], high[n]);
#endif
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const u32 b0 = s ? b[tile].z : b[tile].x, b1 = s ? b[tile].w : b[tile].y;
#if DTYPE == 0
            const u32 high0 = round_tf32(b0), high1 = round_tf32(b1);
#endif
#if DTYPE == 0 && PRODUCTS == 3
            multiply(acc[tile].main[s], high[0], high[1], high[2], high[3], high0, high1);
            multiply(acc[tile].small, high[0], high[1], high[2], high[3], rest_tf32(b0, high0), rest_tf32(b1, high1));
            multiply(acc[tile].small, rest[0], rest[1], rest[2], rest[3], high0, high1);
#elif DTYPE == 0
            multiply(acc[tile].main[s], w[s][0], w[s][1], w[s][2], w[s][3], high0, high1);
#else
            multiply(acc[tile].main[s], w[s][0], w[s][1], w[s][2], w[s][3], b0, b1);
#endif
        }
    }
}

// A word of weights as the products want it.
DEVICE u32 weight_word(elem first, elem second) {
#if DTYPE == 0
    return PRODUCTS == 1 ? round_tf32(bits(first)) : bits(first);
#else
    return bits(first) | bits(second) << 16;
#endif
}

// The four gates of a unit as they lie in memory, and as numbers. They stay as they lie until they are needed: turning
// them into numbers right after the load would wait for it.
#if DTYPE == 0
typedef uint4 Quad;
DEVICE Quad no_quad() { return make_uint4(0, 0, 0, 0); }
DEVICE Quad pack_quad(float a, float b, float c, float d) { return make_uint4(bits(a), bits(b), bits(c), bits(d)); }
DEVICE float4 unpack_quad(Quad v) {
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
#else
typedef uint2 Quad;
DEVICE Quad no_quad() { return make_uint2(0, 0); }
DEVICE Quad pack_quad(float a, float b, float c, float d) {
    return make_uint2(bits(from_float(a)) | bits(from_float(b)) << 16, bits(from_float(c)) | bits(from_float(d)) << 16);
}
DEVICE float4 unpack_quad(Quad v) {
    return make_float4(to_float((u16)v.x), to_float((u16)(v.x >> 16)), to_float((u16)v.y), to_float((u16)(v.y >> 16)));
}
#endif
DEVICE Quad load_quad(const elem* at) { return *reinterpret_cast<const Quad*>(at); }

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Element [row, t] of a tensor [B, T, D, H]; times 4 of a tensor [B, T, D, H, 4].
DEVICE i64 at_step(int row, int t, int direction, int unit, int num_steps, int num_directions, int hidden) {
    return (((i64)row * num_steps + t) * num_directions + direction) * hidden + unit;
}

// Collects the values of the eight units of lanes g = 0..7 and sends them to block g of the cluster.
DEVICE void share_units(elem value, int g, peer_address to) {
    u32 v = bits(value);
#if DTYPE == 0
    u32 a[8], other = shuffle_xor(v, 4);
    a[0] = g & 1 ? other : v, a[1] = g & 1 ? v : other;
    u32 o0 = shuffle_xor(a[0], 8), o1 = shuffle_xor(a[1], 8);
    a[2] = g & 2 ? a[0] : o0, a[3] = g & 2 ? a[1] : o1;
    a[0] = g & 2 ? o0 : a[0], a[1] = g & 2 ? o1 : a[1];
    u32 p[4];
#pragma unroll
    for (int n = 0; n < 4; n++) p[n] = shuffle_xor(a[n], 16);
    uint4 mine = make_uint4(a[0], a[1], a[2], a[3]), others = make_uint4(p[0], p[1], p[2], p[3]);
    if (g < CLUSTER) {
        store_peer(to, g & 4 ? others : mine);
        store_peer(to + 16, g & 4 ? mine : others);
    }
#else
    u32 other = shuffle_xor(v, 4);
    u32 two = g & 1 ? other | v << 16 : v | other << 16;
    other = shuffle_xor(two, 8);
    u32 low = g & 2 ? other : two, high = g & 2 ? two : other;
    u32 low_other = shuffle_xor(low, 16), high_other = shuffle_xor(high, 16);
    if (g < CLUSTER)
        store_peer(to, g & 4 ? make_uint4(low_other, high_other, low, high) : make_uint4(low, high, low_other, high_other));
#endif
}

CLUSTER_KERNEL(CLUSTER, THREADS, BLOCKS)
lstm_fwd_kernel(const elem* __restrict__ gates,    // [B, T, D, H, 4]
                const elem* __restrict__ w_hh,     // [D, 4H, H]
                const elem* __restrict__ h0,       // [D, B, H]
                const float* __restrict__ c0,      // [D, B, H]
                const int* __restrict__ lengths,   // [B]
                elem* __restrict__ out,            // [B, T, D, H]
                elem* __restrict__ h_n,            // [D, B, H]
                float* __restrict__ c_n,           // [D, B, H]
                elem* __restrict__ acts,           // [B, T, D, H, 4] if save
                float* __restrict__ cells,         // [B, T, D, H] if save
                int num_batch, int num_steps, int num_directions, int hidden, int save) {
    unsigned char* states = shared_memory();                                        // [2, ROWS, STATE_STRIDE]
    float4* partial = reinterpret_cast<float4*>(shared_memory() + 2 * STATE_BYTES);  // [8 warps, TILES, 32 lanes]
    const int lane = thread_index() & 31, warp = thread_index() >> 5, g = lane >> 2, q = lane & 3;
    const int group = warp >> 1, half = warp & 1;  // two warps share eight units; each sums over half of k
    const int direction = block_y(), rank = cluster_rank();
    const int first_row = block_x() / CLUSTER * ROWS, unit = rank * UNITS + group * 8 + g;

    u32 w[FWD_CHUNKS][2][2][4];  // [chunk, gates (i, f) or (g, o), product, operand]
#pragma unroll
    for (int n = 0; n < FWD_CHUNKS * 16; n++) {
        int r = n & 1, j = n >> 1 & 1, s = n >> 2 & 1, m = n >> 3 & 1, c = n >> 4;
        int k = ((half * FWD_CHUNKS + c) * 16 + 4 * q + 2 * s + j) * WORD_ELEMS;
        const elem* row = w_hh + ((i64)(direction * 4 + 2 * m + r) * hidden + unit) * hidden;
        elem first = unit < hidden && k < hidden ? row[k] : elem(0);
        elem second = WORD_ELEMS == 2 && unit < hidden && k + 1 < hidden ? row[k + 1] : elem(0);
        w[c][m][s][2 * j + r] = weight_word(first, second);
    }
    for (int n = thread_index(); n < ROWS * HIDDEN; n += THREADS) {
        int r = n / HIDDEN, k = n % HIDDEN, row = first_row + r;
        bool there = row < num_batch && k < hidden;
        *reinterpret_cast<elem*>(states + r * STATE_STRIDE + k * ELEM_BYTES) =
            there ? h0[((i64)direction * num_batch + row) * hidden + k] : elem(0);
    }

    int length[TILES], row[TILES];
    bool there[TILES];
    float c[TILES];
    elem h[TILES];
    Quad x[TILES];
    const int first_t = direction == 0 ? 0 : num_steps - 1;
#pragma unroll
    for (int b = 0; b < TILES; b++) {
        row[b] = first_row + b * 8 + 2 * q + half;
        there[b] = row[b] < num_batch && unit < hidden;
        length[b] = row[b] < num_batch ? lengths[row[b]] : 0;
        i64 at = ((i64)direction * num_batch + row[b]) * hidden + unit;
        c[b] = there[b] ? c0[at] : 0.0f;
        h[b] = there[b] ? h0[at] : elem(0);
        i64 from = 4 * at_step(row[b], first_t, direction, unit, num_steps, num_directions, hidden);
        x[b] = there[b] ? load_quad(gates + from) : no_quad();
    }
    const int mine = (2 * q + half) * STATE_STRIDE + (rank * UNITS + group * 8) * ELEM_BYTES;
    const peer_address to = peer(states, g < CLUSTER ? g : 0) + mine;
    cluster_arrive();

    for (int step = 0; step < num_steps; step++) {
        const int t = direction == 0 ? step : num_steps - 1 - step;
        const int t_next = direction == 0 ? t + 1 : t - 1;
        Quad x_now[TILES];
#pragma unroll
        for (int b = 0; b < TILES; b++) {
            x_now[b] = x[b];
            i64 from = 4 * at_step(row[b], t_next, direction, unit, num_steps, num_directions, hidden);
            if (step + 1 < num_steps && there[b]) x[b] = load_quad(gates + from);
        }
        cluster_wait();  // the states that this step starts from are written in every block

        Accumulator acc[2][TILES];
#pragma unroll
        for (int b = 0; b < TILES; b++) clear(acc[0][b]), clear(acc[1][b]);
        const unsigned char* from = states + (step & 1) * STATE_BYTES + g * STATE_STRIDE + q * 16;
#pragma unroll
        for (int n = 0; n < FWD_CHUNKS; n++) {
            uint4 h_words[TILES];
#pragma unroll
            for (int b = 0; b < TILES; b++) {
                const int at = b * 8 * STATE_STRIDE + (half * FWD_CHUNKS + n) * CHUNK_BYTES;
                h_words[b] = *reinterpret_cast<const uint4*>(from + at);
            }
            multiply_chunk(acc[0], w[n][0], h_words);
            multiply_chunk(acc[1], w[n][1], h_words);
        }

        // A thread has the four gates of sequences 2q and 2q + 1. It keeps its half's and gives the other away.
        float4 kept[TILES];
#pragma unroll
        for (int b = 0; b < TILES; b++) {
            float4 even = make_float4(total(acc[0][b], 0), total(acc[0][b], 2), total(acc[1][b], 0), total(acc[1][b], 2));
            float4 odd = make_float4(total(acc[0][b], 1), total(acc[0][b], 3), total(acc[1][b], 1), total(acc[1][b], 3));
            kept[b] = half ? odd : even;
            partial[(warp * TILES + b) * 32 + lane] = half ? even : odd;
        }
        pair_barrier(group);

        float4 a[TILES];
        bool alive[TILES];
#pragma unroll
        for (int b = 0; b < TILES; b++) {
            float4 given = partial[((warp ^ 1) * TILES + b) * 32 + lane];
            float4 z = unpack_quad(x_now[b]);
            a[b].x = sigmoid(z.x + kept[b].x + given.x);
            a[b].y = sigmoid(z.y + kept[b].y + given.y);
            a[b].z = tanhf(z.z + kept[b].z + given.z);
            a[b].w = sigmoid(z.w + kept[b].w + given.w);
            alive[b] = t < length[b];
            float c_next = a[b].y * c[b] + a[b].x * a[b].z;
            if (alive[b]) c[b] = c_next, h[b] = from_float(a[b].w * tanhf(c_next));
            if (step + 1 < num_steps) share_units(h[b], g, to + ((step + 1) & 1) * STATE_BYTES + b * 8 * STATE_STRIDE);
        }
        cluster_arrive();

#pragma unroll
        for (int b = 0; b < TILES; b++) {
            if (!there[b]) continue;
            i64 at = at_step(row[b], t, direction, unit, num_steps, num_directions, hidden);
            out[at] = alive[b] ? h[b] : elem(0);
            if (save) {
                *reinterpret_cast<Quad*>(acts + 4 * at) = pack_quad(a[b].x, a[b].y, a[b].z, a[b].w);
                cells[at] = c[b];
            }
        }
    }
    cluster_wait();
#pragma unroll
    for (int b = 0; b < TILES; b++) {
        i64 at = ((i64)direction * num_batch + row[b]) * hidden + unit;
        if (there[b]) h_n[at] = h[b], c_n[at] = c[b];
    }
}

CLUSTER_KERNEL(CLUSTER, THREADS, BLOCKS)
lstm_bwd_kernel(const elem* __restrict__ d_out,    // [B, T, D, H]
                const elem* __restrict__ d_h_n,    // [D, B, H]
                const float* __restrict__ d_c_n,   // [D, B, H]
                const elem* __restrict__ acts,     // [B, T, D, H, 4]
                const float* __restrict__ cells,   // [B, T, D, H]
                const elem* __restrict__ w_hh,     // [D, 4H, H]
                const float* __restrict__ c0,      // [D, B, H]
                const int* __restrict__ lengths,   // [B]
                elem* __restrict__ d_gates,        // [B, T, D, H, 4]
                elem* __restrict__ d_h0,           // [D, B, H]
                float* __restrict__ d_c0,          // [D, B, H]
                int num_batch, int num_steps, int num_directions, int hidden) {
    float* sums = reinterpret_cast<float*>(shared_memory());          // [2, SLOTS, TILES, UNITS, 8]
    unsigned char* grads = shared_memory() + 2 * SLOTS * SUM_FLOATS * 4;  // [ROWS, GRAD_STRIDE]
    const int lane = thread_index() & 31, warp = thread_index() >> 5, g = lane >> 2, q = lane & 3;
    const int group = warp >> 1, half = warp & 1;                       // whose gates: as in the forward pass
    const int first_tile = warp * COLUMNS / SPLITS, split = warp % SPLITS;  // whose products
    const int direction = block_y(), rank = cluster_rank();
    const int first_row = block_x() / CLUSTER * ROWS, unit = rank * UNITS + group * 8 + g;

    u32 w[BWD_CHUNKS][COLUMNS][2][4];  // [chunk, tile, product, operand]; k counts the block's units, four gates each
#pragma unroll
    for (int n = 0; n < BWD_CHUNKS * COLUMNS * 8; n++) {
        int r = n & 1, j = n >> 1 & 1, s = n >> 2 & 1, m = n / 8 % COLUMNS, c = n / (8 * COLUMNS);
        int k = ((split * BWD_CHUNKS + c) * 16 + 4 * q + 2 * s + j) * WORD_ELEMS;
        int column = (first_tile + m) * 16 + 8 * r + g, from_unit = rank * UNITS + k / 4;
        const elem* from = w_hh + (i64)direction * 4 * hidden * hidden + column;
        bool in = column < hidden && from_unit < hidden;
        elem first = in ? from[((i64)(k & 3) * hidden + from_unit) * hidden] : elem(0);
        elem second = WORD_ELEMS == 2 && in ? from[((i64)((k & 3) + 1) * hidden + from_unit) * hidden] : elem(0);
        w[c][m][s][2 * j + r] = weight_word(first, second);
    }
    // Where the products go: the block that owns their hidden units has a slot for each block that adds to them.
    peer_address to[COLUMNS];
#pragma unroll
    for (int m = 0; m < COLUMNS; m++) {
        const int column = (first_tile + m) * 16, slot = rank * SPLITS + split;
        to[m] = peer(shared_memory(), column / UNITS) + (slot * SUM_FLOATS + (column % UNITS + g) * 8 + 2 * q) * 4;
    }

    int length[TILES], row[TILES];
    bool there[TILES];
    float d_h[TILES], d_c[TILES], c[TILES], c_start[TILES], c_before[TILES];
    Quad a_raw[TILES];
    elem d_y[TILES];
    const int last_t = direction == 0 ? num_steps - 1 : 0, back = direction == 0 ? -1 : 1;
    const i64 stride = (i64)back * num_directions * hidden;
#pragma unroll
    for (int b = 0; b < TILES; b++) {
        row[b] = first_row + b * 8 + 2 * q + half;
        there[b] = row[b] < num_batch && unit < hidden;
        length[b] = there[b] ? lengths[row[b]] : 0;
        i64 at = ((i64)direction * num_batch + row[b]) * hidden + unit;
        d_h[b] = there[b] ? to_float(d_h_n[at]) : 0.0f;
        d_c[b] = there[b] ? d_c_n[at] : 0.0f;
        c_start[b] = there[b] ? c0[at] : 0.0f;
        at = at_step(row[b], last_t, direction, unit, num_steps, num_directions, hidden);
        bool alive = last_t < length[b], has_before = num_steps > 1 && last_t + back < length[b];
        a_raw[b] = alive ? load_quad(acts + 4 * at) : no_quad();
        d_y[b] = alive ? d_out[at] : elem(0);
        c[b] = alive ? cells[at] : 0.0f;
        c_before[b] = has_before ? cells[at + stride] : c_start[b];
    }
    cluster_arrive();
    cluster_wait();  // every block has started, so that its shared memory is there

    for (int step = 0; step < num_steps; step++) {
        const int t = last_t + step * back;
        Quad grad[TILES], a_next[TILES];
        elem d_y_next[TILES];
        float c_next[TILES];
#pragma unroll
        for (int b = 0; b < TILES; b++) {
            const i64 at = at_step(row[b], t, direction, unit, num_steps, num_directions, hidden) + stride;
            const bool next = step + 1 < num_steps && t + back < length[b];
            a_next[b] = next ? load_quad(acts + 4 * at) : no_quad();
            d_y_next[b] = next ? d_out[at] : elem(0);
            c_next[b] = step + 2 < num_steps && t + 2 * back < length[b] ? cells[at + stride] : c_start[b];
        }
#pragma unroll
        for (int b = 0; b < TILES; b++) {
            const bool alive = t < length[b];
            const float4 a = unpack_quad(a_raw[b]);
            float tanh_c = tanhf(c[b]), d_step = d_h[b] + to_float(d_y[b]);
            float d_cell = d_c[b] + d_step * a.w * (1.0f - tanh_c * tanh_c);
            float live = alive ? d_cell : 0.0f, live_step = alive ? d_step : 0.0f;
            grad[b] = pack_quad(live * a.z * a.x * (1.0f - a.x), live * c_before[b] * a.y * (1.0f - a.y),
                                live * a.x * (1.0f - a.z * a.z), live_step * tanh_c * a.w * (1.0f - a.w));
            if (alive) d_c[b] = d_cell * a.y, d_h[b] = 0.0f;
            const int at = (b * 8 + 2 * q + half) * GRAD_STRIDE + (group * 8 + g) * 4 * ELEM_BYTES;
            *reinterpret_cast<Quad*>(grads + at) = grad[b];
        }
        block_barrier();

        Accumulator acc[COLUMNS][TILES];
#pragma unroll
        for (int n = 0; n < COLUMNS * TILES; n++) clear(acc[n / TILES][n % TILES]);
        const unsigned char* from = grads + g * GRAD_STRIDE + q * 16 + split * BWD_CHUNKS * CHUNK_BYTES;
#pragma unroll
        for (int n = 0; n < BWD_CHUNKS; n++) {
            uint4 words[TILES];
#pragma unroll
            for (int b = 0; b < TILES; b++)
                words[b] = *reinterpret_cast<const uint4*>(from + b * 8 * GRAD_STRIDE + n * CHUNK_BYTES);
#pragma unroll
            for (int m = 0; m < COLUMNS; m++) multiply_chunk(acc[m], w[n][m], words);
        }
#pragma unroll
        for (int n = 0; n < COLUMNS * TILES; n++) {
            const int m = n / TILES, b = n % TILES;
            const peer_address at = to[m] + ((step & 1) * SLOTS * SUM_FLOATS + b * UNITS * 8) * 4;
            store_peer(at, make_uint2(__float_as_uint(total(acc[m][b], 0)), __float_as_uint(total(acc[m][b], 1))));
            store_peer(at + 256, make_uint2(__float_as_uint(total(acc[m][b], 2)), __float_as_uint(total(acc[m][b], 3))));
        }
        cluster_arrive();
#pragma unroll
        for (int b = 0; b < TILES; b++) {
            const i64 at = at_step(row[b], t, direction, unit, num_steps, num_directions, hidden);
            if (there[b]) *reinterpret_cast<Quad*>(d_gates + 4 * at) = grad[b];
            c[b] = c_before[b], c_before[b] = c_next[b], a_raw[b] = a_next[b], d_y[b] = d_y_next[b];
        }
        cluster_wait();  // what every block adds to the gradient of this block's states is written
#pragma unroll
        for (int n = 0; n < SLOTS * TILES; n++) {
            const int slot = n / TILES, b = n % TILES;
            const int at = ((step & 1) * SLOTS + slot) * SUM_FLOATS + (b * UNITS + group * 8 + g) * 8 + 2 * q + half;
            d_h[b] += sums[at];
        }
    }
#pragma unroll
    for (int b = 0; b < TILES; b++) {
        i64 at = ((i64)direction * num_batch + row[b]) * hidden + unit;
        if (there[b]) d_h0[at] = from_float(d_h[b]), d_c0[at] = d_c[b];
    }
}
