// Sum, maximum and logical reductions: warp shuffles, then shared memory.
#include <climits>

__device__ float warp_sum(float v) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    return v;
}

extern "C" __global__ void reduce_sum(const float* in, float* out, int n) {
    __shared__ float partial[32];
    float v = 0.f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += in[i];
    v = warp_sum(v);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = lane < (blockDim.x + 31) / 32 ? partial[lane] : 0.f;
        v = warp_sum(v);
        if (lane == 0) atomicAdd(out, v);
    }
}

extern "C" __global__ void reduce_max(const int* in, int* out, int n) {
    extern __shared__ int tile[];
    int best = INT_MIN;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) best = max(best, in[i]);
    tile[threadIdx.x] = best;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) tile[threadIdx.x] = max(tile[threadIdx.x], tile[threadIdx.x + half]);
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicMax(out, tile[0]);
}

extern "C" __global__ void vote_and_count(const int* in, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int positive = in[i] > 0;
    unsigned ballot = __ballot_sync(0xffffffffu, positive);
    int any = __any_sync(0xffffffffu, in[i] == 7);
    int all = __all_sync(0xffffffffu, positive);
    int count = __syncthreads_count(positive);
    int block_and = __syncthreads_and(positive);
    int block_or = __syncthreads_or(in[i] < 0);
    __syncwarp();
    int rotated = __shfl_sync(0xffffffffu, positive, (threadIdx.x + 1) & 31);
    int swapped = __shfl_xor_sync(0xffffffffu, i, 5);
    int below = __shfl_up_sync(0xffffffffu, i, 1);
    out[i] = __popc(ballot) + 100 * any + 200 * all + 1000 * count + 10000000 * block_and + 20000000 * block_or +
             rotated + swapped * 3 + below * 5 + (int)__activemask();
}
