// Compiled after the kernel: every thread of every block.

extern "C" int argument_bytes() { return sizeof(Mask); }
extern "C" void run(int is_factor, int blocks, const void* given) {
    Mask m;
    memcpy(&m, given, sizeof m);
    for (which_block = 0; which_block < (u32)blocks; which_block++)
        for (which_thread = 0; which_thread < THREADS; which_thread++)
            is_factor ? dropout_factor_kernel(m) : dropout_keep_kernel(m);
}
