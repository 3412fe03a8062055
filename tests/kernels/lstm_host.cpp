// Compiled after lstm.cu: the two kernels as plain functions.

static const void* in[8];
static void* to[5];
static int dims[5];

extern "C" void host_forward(const void** inputs, void** outputs, const int* sizes) {
    memcpy(in, inputs, 5 * sizeof(void*)), memcpy(to, outputs, 5 * sizeof(void*)), memcpy(dims, sizes, sizeof dims);
    body = [] {
        lstm_fwd_kernel((const elem*)in[0], (const elem*)in[1], (const elem*)in[2], (const float*)in[3],
                        (const int*)in[4], (elem*)to[0], (elem*)to[1], (float*)to[2], (elem*)to[3], (float*)to[4],
                        dims[0], dims[1], dims[2], dims[3], dims[4]);
    };
    launch(CLUSTER, (dims[0] + ROWS - 1) / ROWS, dims[2], SHARED_BYTES);
}

extern "C" void host_backward(const void** inputs, void** outputs, const int* sizes) {
    memcpy(in, inputs, 8 * sizeof(void*)), memcpy(to, outputs, 3 * sizeof(void*)), memcpy(dims, sizes, sizeof dims);
    body = [] {
        lstm_bwd_kernel((const elem*)in[0], (const elem*)in[1], (const float*)in[2], (const elem*)in[3],
                        (const float*)in[4], (const elem*)in[5], (const float*)in[6], (const int*)in[7], (elem*)to[0],
                        (elem*)to[1], (float*)to[2], dims[0], dims[1], dims[2], dims[3]);
    };
    launch(CLUSTER, (dims[0] + ROWS - 1) / ROWS, dims[2], SHARED_BYTES);
}
