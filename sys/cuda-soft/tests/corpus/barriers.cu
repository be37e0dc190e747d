// Barrier objects, pipelines of asynchronous copies, and groups larger than a warp.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;

#pragma nv_diag_suppress static_var_with_dynamic_init

extern "C" __global__ void phases(int *out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ int values[128];
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    int i = threadIdx.x, sum = i;
    for (int round = 0; round < 5; round++) {
        values[i] = sum;
        barrier.arrive_and_wait();
        sum += values[(i + 33) % blockDim.x];
        auto token = barrier.arrive();
        barrier.wait(std::move(token));
    }
    out[i] = sum;
}

extern "C" __global__ void staged(const int *in, int *out, int tiles) {
    extern __shared__ int buffer[];
    auto block = cg::this_thread_block();
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto pipe = cuda::make_pipeline(block, &state);
    int size = block.size(), sum = 0;
    for (int fetch = 0, use = 0; use < tiles; use++) {
        for (; fetch < tiles && fetch < use + 2; fetch++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, buffer + fetch % 2 * size, in + fetch * size, sizeof(int) * size, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum = sum * 3 + buffer[use % 2 * size + (threadIdx.x + 1) % size];
        pipe.consumer_release();
    }
    out[blockIdx.x * size + threadIdx.x] = sum;
}

extern "C" __global__ void tiles(int *out) {
    auto block = cg::this_thread_block();
    __shared__ cg::block_tile_memory<256> scratch;
    auto whole = cg::this_thread_block(scratch);
    auto tile = cg::tiled_partition<64>(whole);
    out[threadIdx.x] = cg::reduce(tile, int(threadIdx.x), cg::plus<int>()) + int(tile.thread_rank());
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) neighbours(int *out) {
    __shared__ int word;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) word = int(blockIdx.x) * 10;
    cluster.sync();
    int *other = cluster.map_shared_rank(&word, cluster.block_rank() ^ 1);
    out[blockIdx.x * blockDim.x + threadIdx.x] = *other + int(threadIdx.x);
    cluster.sync();
}
