// A ring all-gather over memory channels, with the header of the device library.
//
// Every rank has a buffer of ranks * bytes, its own part at rank * bytes. In each of ranks - 1 steps it puts the part
// that it got last to the next rank and waits for the one that the previous rank puts here. The host gives each rank a
// channel to either neighbour, both with the buffer as src and the neighbour's buffer as dst, and launches the kernel
// cooperatively: any grid of blocks of a multiple of 32 threads.
#include "aqueduct_device.h"

extern "C" __global__ void ring_all_gather(const AqueductMemoryChannelHandle next, const AqueductMemoryChannelHandle prev,
                                           const AqueductGridBarrierHandle grid, uint64_t bytes, uint32_t rank,
                                           uint32_t ranks, uint32_t *left)
{
    const uint64_t thread = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    uint32_t status = AQUEDUCT_LEFT_NOT;

    // The next rank may still read what the last call put there. A relaxed signal would not order that before the put.
    if (thread == 0) {
        aqueduct_memory_channel_signal(prev);
        status = aqueduct_memory_channel_wait(next);
    }
    status = aqueduct_grid_sync(grid, status);

    uint32_t part = rank;
    for (uint32_t step = 1; step < ranks && status == AQUEDUCT_LEFT_NOT; step++) {
        aqueduct_memory_channel_put(next, part * bytes, part * bytes, bytes, thread, threads);
        __syncthreads();
        if (threadIdx.x == 0 && aqueduct_memory_channel_last_group(next, gridDim.x)) {
            aqueduct_memory_channel_signal(next);
        }
        if (thread == 0) {
            status = aqueduct_memory_channel_wait(prev);
        }
        part = (part == 0 ? ranks : part) - 1;
        status = aqueduct_grid_sync(grid, status);
    }
    if (threadIdx.x == 0 && status != AQUEDUCT_LEFT_NOT) {
        *(volatile uint32_t *)left = status;
    }
}
