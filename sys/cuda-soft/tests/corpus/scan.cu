// Inclusive scan of one block, Hillis-Steele in shared memory, and the warp version.
extern "C" __global__ void scan_block(const int* in, int* out, int n) {
    __shared__ int buf[2][256];
    int t = threadIdx.x, cur = 0;
    buf[0][t] = t < n ? in[t] : 0;
    __syncthreads();
    for (int d = 1; d < 256; d <<= 1) {
        buf[1 - cur][t] = buf[cur][t] + (t >= d ? buf[cur][t - d] : 0);
        cur = 1 - cur;
        __syncthreads();
    }
    if (t < n) out[t] = buf[cur][t];
}

extern "C" __global__ void scan_warp(const long long* in, long long* out) {
    int lane = threadIdx.x & 31;
    long long v = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int d = 1; d < 32; d *= 2) {
        long long up = __shfl_up_sync(0xffffffffu, v, d);
        if (lane >= d) v += up;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
