// What every kernel is given: the addresses and sizes of one frame. cuda.py reads the fields and their order from here.
//
// Compiled with CHANNELS (of a colour), DEPTH (1: the depth is one more), SH (the degree, or -1 for colours as they are),
// ABSGRAD (1: absolute gradients too), CAMERA (1: gradients of poses and intrinsics) and PIXELS (of a thread: 1, 2 or 4).

#define TILE 16
#define CHAN (CHANNELS + DEPTH)
#define CHAN_ROOM (CHAN > 0 ? CHAN : 1)
#define SUMS (6 + CHAN + 2 * ABSGRAD)  // of a splat: h, h dx, h dy, h dx^2, h dx dy, h dy^2, channels, absolute x and y
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define LOG2_255 7.994353436858858f
#define LOG2_MAX_ALPHA -0.0014434168696687174f
#define MIN_ALPHA (1.0f / 255.0f)
#define MIN_LIGHT 1e-4f
#define FINITE_MAX 3.402823466e38f

struct Frame {
    const float* means;        // [N, 3]
    const float* quats;        // [N, 4]
    const float* scales;       // [N, 3]
    const float* opacities;    // [N]
    const float* colors;       // [N, K, 3] coefficients, or [N, D] or [C, N, D] colours
    const float* viewmats;     // [C, 4, 4]
    const float* Ks;           // [C, 3, 3]
    const float* backgrounds;  // [C, D] or null
    float* means2d;            // [C, N, 2]
    float* depths;             // [C, N]
    float* conics;             // [C, N, 3]
    float* shade;              // [C, N, 4] colour and log2 of the opacity, or [C, N] log2 of the opacity
    int* radii;                // [C, N, 2]
    int* tiles_per_splat;      // [C, N]
    u32* reached;              // [C, N] which tiles of its box a splat reaches, a bit each, if there are few
    int* cursors;              // [C, tiles, 1 more] pairs of a tile, then where its next pair goes; blocks that are done
    int* ranges;               // [C, tiles, 1 more] where each tile's pairs begin
    int* order;                // [C, tiles] in which the tiles are worked at
    u64* keys;                 // [capacity] depth and splat of each pair
    u64* keys_spare;           // [capacity]
    u32* ids;                  // [capacity] splat of each pair, tile by tile in order of depth
    int* needed;               // [2] pairs of this frame; the most pairs of a frame that did not fit
    int* told;                 // pairs of this frame, in memory of the host; or null
    float* image;              // [C, H, W, CHAN]
    float* alphas;             // [C, H, W]
    float* light;              // [C, H, W] what the splats leave
    int* lasts;                // [C, H, W] the pair after the last one that counts
    float* marks;              // [capacity / part, 1 + CHAN, TILE * TILE] light and colour so far, where a list is cut
    float* shown;              // [C, H, W, CHAN] the picture once more, if lists are cut
    float* sums;               // [C, N, SUMS] what the pixels tell each splat; null in the backward pass: see sum_place
    const float* v_image;      // [C, H, W, CHAN] or null
    const float* v_alphas;     // [C, H, W] or null
    const float* v_means2d;    // [C, N, 2] or null
    float* out_means;          // [N, 3] or null, as all that follow
    float* out_quats;          // [N, 4]
    float* out_scales;         // [N, 3]
    float* out_opacities;      // [N]
    float* out_colors;         // as colors
    float* out_viewmats;       // [C, 4, 4]
    float* out_Ks;             // [C, 3, 3]
    float* out_backgrounds;    // [C, D]
    float* out_means2d;        // [C, N, 2]
    float* out_means2d_abs;    // [C, N, 2]
    int num_splats;
    int num_cameras;
    int width;
    int height;
    int tiles_x;
    int tiles_y;
    int capacity;
    int part;                  // pairs after which a list is cut for the backward pass, a power of two; 0: never
    int project_blocks;        // of the projection, for a camera
    int short_lists;           // 1: most tiles have few pairs, so that a warp sorts a list
    int sort_first;            // 1: the blending kernel sorts its tile's list; only with one pixel a thread
    int sums_each;             // of a splat, that the projection clears for the backward pass; 0: none
    int coefficients;          // K
    int colors_by_camera;      // 1: [C, N, D]
    int raw;                   // 1: scales are logarithms, opacities logits
    int antialiased;
    float near_depth;
    float far_depth;
    float eps2d;
    float radius_clip;
};

// Where the n-th sum of a splat lies; row: camera * N + splat. With one camera, and 11 sums at most, in the memory of the
// gradients that are made from them: the thread that reads a splat's sums is the one that writes those.
DEVICE float* sum_place(const Frame& f, i64 row, int n) {
    if (f.sums) return f.sums + row * SUMS + n;
    return n < 4    ? f.out_quats + row * 4 + n
           : n < 7  ? f.out_means + row * 3 + n - 4
           : n < 10 ? f.out_scales + row * 3 + n - 7
                    : f.out_opacities + row;
}
