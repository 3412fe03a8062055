// The mask of dropout by samples: an element stays if a hash of its sample's seed and its place in the sample is large
// enough. What is done with the mask, forward and backward, is torch's own.

#define THREADS 256
#define PACK 16

struct alignas(16) Pack { u8 at[PACK]; };

// In the order of LAYOUT in cuda.py.
struct Mask {
    u8* keep;
    const u32* seeds;
    u32 count;                 // elements of the mask
    u32 width;                 // of those, a sample's
    int start, threshold;
};

DEVICE bool stays(const Mask& m, u32 seed, u32 element) {
    u32 h = seed + (u32)m.start + element * 0x9e3779b9u;
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return (int)h >= m.threshold;
}

KERNEL(THREADS) keyed_dropout_kernel(const Mask m) {
    const u32 first = ((u32)block_x() * THREADS + thread_index()) * PACK;
    if (first >= m.count) return;
    u32 sample = first / m.width, element = first - sample * m.width, seed = m.seeds[sample];
    Pack pack;
    UNROLL
    for (int n = 0; n < PACK; n++) {
        if (first + n >= m.count) break;
        if (element == m.width) element = 0, seed = m.seeds[++sample];
        pack.at[n] = stays(m, seed, element++);
    }
    if (first + PACK <= m.count && (u64)m.keep % PACK == 0) {
        *(Pack*)(m.keep + first) = pack;
    } else {
        UNROLL
        for (int n = 0; n < PACK; n++)
            if (first + n < m.count) m.keep[first + n] = pack.at[n];
    }
}
