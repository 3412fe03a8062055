// Dropout whose masks belong to samples: an element stays if a hash of its sample's seed and its place in the sample is
// large enough. The gradient is the same function of the output's gradient. README.md describes the walk through memory.
//
// DTYPE is 0 for float32, 1 for float16, 2 for bfloat16, 3 for float64.

#define THREADS 256

#if DTYPE == 0
typedef float elem;
typedef float wide;
DEVICE wide widen(elem x) { return x; }
DEVICE elem narrow(wide x) { return x; }
#elif DTYPE == 1
typedef u16 elem;
typedef float wide;
DEVICE wide widen(elem x) { return to_float(half16{x}); }
DEVICE elem narrow(wide x) { return to_half(x).bits; }
#elif DTYPE == 2
typedef u16 elem;
typedef float wide;
DEVICE wide widen(elem x) { return to_float(brain16{x}); }
// In whole numbers, to nearest with ties to even: cards before sm_80 have no instruction for it.
DEVICE elem narrow(wide x) {
    if (x != x) return 0x7fc0;
    const u32 bits = __float_as_uint(x);
    return (elem)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#else
typedef double elem;
typedef double wide;
DEVICE wide widen(elem x) { return x; }
DEVICE elem narrow(wide x) { return x; }
#endif

#define PACK (16 / (int)sizeof(elem))

struct alignas(16) Pack { elem at[PACK]; };

// In the order of LAYOUT in cuda.py.
struct Dropout {
    const elem* x;
    elem* y;
    const u32* seeds;
    double scale;
    u32 count;                 // elements of x, in memory without gaps
    u32 width;                 // elements of a sample's mask
    u32 start;
    int threshold;
    u32 middle, inner;         // sizes of the last two digits of a place in memory
    u32 steps[3];              // what each digit adds to the place in the mask
};

struct Place { u32 sample, element; bool runs_on; };

// Where the mask has the element at `index` in memory; whether the next ones follow each other in the same sample.
DEVICE Place place_of(const Dropout& d, u32 index) {
    const u32 rest = index / d.inner, last = index - rest * d.inner;
    const u32 first = rest / d.middle, second = rest - first * d.middle;
    const u32 flat = first * d.steps[0] + second * d.steps[1] + last * d.steps[2];
    Place place;
    place.sample = flat / d.width;
    place.element = flat - place.sample * d.width;
    place.runs_on = last + PACK <= d.inner && place.element + (u64)(PACK - 1) * d.steps[2] < d.width;
    return place;
}

DEVICE bool stays(const Dropout& d, u32 seed, u32 element) {
    u32 h = seed + d.start + element * 0x9e3779b9u;
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return (int)h >= d.threshold;
}

KERNEL(THREADS) keyed_dropout_kernel(const Dropout d) {
    const u32 first = ((u32)block_x() * THREADS + thread_index()) * PACK;
    if (first >= d.count) return;
    const bool is_whole = first + PACK <= d.count && ((u64)d.x | (u64)d.y) % 16 == 0;
    Pack pack;
    if (is_whole) {
        pack = *(const Pack*)(d.x + first);
    } else {
        UNROLL
        for (int n = 0; n < PACK; n++)
            if (first + n < d.count) pack.at[n] = d.x[first + n];
    }

    Place place = place_of(d, first);
    const bool runs_on = place.runs_on;
    u32 seed = d.seeds[place.sample];
    const wide scale = (wide)d.scale;
    UNROLL
    for (int n = 0; n < PACK; n++) {
        if (first + n >= d.count) break;
        if (n > 0 && runs_on) place.element += d.steps[2];
        if (n > 0 && !runs_on) place = place_of(d, first + n), seed = d.seeds[place.sample];
        pack.at[n] = stays(d, seed, place.element) ? narrow(widen(pack.at[n]) * scale) : elem(0);
    }

    if (is_whole) {
        *(Pack*)(d.y + first) = pack;
    } else {
        UNROLL
        for (int n = 0; n < PACK; n++)
            if (first + n < d.count) d.y[first + n] = pack.at[n];
    }
}
