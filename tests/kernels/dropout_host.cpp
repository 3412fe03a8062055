// Compiled after the kernel: every thread of every block.

extern "C" int argument_bytes() { return sizeof(Dropout); }
extern "C" void run(int blocks, const void* given) {
    Dropout d;
    memcpy(&d, given, sizeof d);
    for (which_block = 0; which_block < (u32)blocks; which_block++)
        for (which_thread = 0; which_thread < THREADS; which_thread++) keyed_dropout_kernel(d);
}
