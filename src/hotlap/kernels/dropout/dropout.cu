// The mask of dropout by samples: an element stays if a hash of its sample's seed and its place in the sample is large
// enough. What is done with the mask, forward and backward, is torch's own: as bytes that say yes or no, or as the
// numbers that the elements are multiplied by.

#define THREADS 256

// In the order of LAYOUT in cuda.py.
struct Mask {
    void* out;
    const u32* seeds;
    double scale;              // of what stays
    u32 count;                 // elements of the mask
    u32 width;                 // of those, a sample's
    int start, threshold;
};

template <typename T> struct alignas(16) Pack { T at[16 / sizeof(T)]; };

DEVICE bool stays(const Mask& m, u32 seed, u32 element) {
    u32 h = seed + (u32)m.start + element * 0x9e3779b9u;
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return (int)h >= m.threshold;
}

template <typename T>
DEVICE void write_mask(const Mask& m, T stay) {
    constexpr u32 PACK = 16 / sizeof(T);
    const u32 first = ((u32)block_x() * THREADS + thread_index()) * PACK;
    if (first >= m.count) return;
    u32 sample = first / m.width, element = first - sample * m.width, seed = m.seeds[sample];
    Pack<T> pack;
    UNROLL
    for (int n = 0; n < PACK; n++) {
        if (first + n >= m.count) break;
        if (element == m.width) element = 0, seed = m.seeds[++sample];
        pack.at[n] = stays(m, seed, element++) ? stay : (T)0;
    }
    T* out = (T*)m.out;
    if (first + PACK <= m.count && (u64)out % 16 == 0) {
        *(Pack<T>*)(out + first) = pack;
    } else {
        UNROLL
        for (int n = 0; n < PACK; n++)
            if (first + n < m.count) out[first + n] = pack.at[n];
    }
}

KERNEL(THREADS) dropout_keep_kernel(const Mask m) { write_mask<u8>(m, 1); }
KERNEL(THREADS) dropout_factor_kernel(const Mask m) { write_mask<float>(m, (float)m.scale); }
