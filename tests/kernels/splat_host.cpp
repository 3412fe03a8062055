// Compiled after the kernels: one of them, by name, in every thread of every block.

#define NAMED(kernel) {#kernel, [] { kernel(frame); }}

static Frame frame;
static const std::map<std::string, void (*)()> kernels = {
#if BACKWARD
    NAMED(splat_clear_bwd_kernel), NAMED(splat_blend_bwd_kernel), NAMED(splat_project_bwd_kernel),
#else
    NAMED(splat_clear_kernel), NAMED(splat_project_fwd_kernel), NAMED(splat_pair_kernel),
    NAMED(splat_sort_kernel), NAMED(splat_merge_kernel), NAMED(splat_blend_fwd_kernel),
#endif
};

extern "C" int frame_bytes() { return sizeof(Frame); }
extern "C" void run(const char* name, int blocks, int cameras, int threads, const void* given) {
    memcpy(&frame, given, sizeof frame);
    body = kernels.at(name);
    for (which_camera = 0; which_camera < cameras; which_camera++)
        for (which_block = 0; which_block < blocks; which_block++) run_block(threads);
}
