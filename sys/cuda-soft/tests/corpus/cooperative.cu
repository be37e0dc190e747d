// Cooperative groups, launch bounds, grid constants, and warp operations of later architectures.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

struct Arguments {
    const float* in;
    float* out;
    int n, table[5];
};

extern "C" __global__ void __launch_bounds__(256, 2) grid_constant(const __grid_constant__ Arguments args, int which) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < args.n) args.out[i] = args.in[i] * args.table[which];
}

extern "C" __global__ void grid_sync(unsigned* in, unsigned* out) {
    cg::grid_group grid = cg::this_grid();
    in[grid.thread_rank()] = (unsigned)grid.thread_rank();
    grid.sync();
    out[grid.thread_rank()] = in[grid.size() - 1 - grid.thread_rank()];
}

extern "C" __global__ void groups(const int* in, int* out) {
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    int v = in[block.thread_rank()];
    for (int d = tile.size() / 2; d > 0; d /= 2) v += tile.shfl_down(v, d);
    if (tile.thread_rank() == 0) out[block.thread_rank() / 8] = v;
    unsigned same = __match_any_sync(0xffffffffu, in[block.thread_rank()] & 3);
    out[64 + block.thread_rank()] = same + __reduce_add_sync(0xffffffffu, v);
}
