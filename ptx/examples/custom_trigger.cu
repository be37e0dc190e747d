// A kernel that has the host compute, by triggers of its own meaning, with the header of the device library.
//
// A trigger's words are: what to do, two numbers, and where the answer goes, an index into `answers`. All but the first
// bit of each word is free. Each thread asks `rounds` times, each time about the answer before; the host writes the answer
// to pinned memory and then pops the trigger, which is what a thread waits for. Any grid, any blocks.
#include "aqueduct_device.h"

extern "C" __global__ void custom_trigger(const AqueductFifoHandle fifo, uint32_t rounds, const uint64_t *answers,
                                          uint64_t *results, uint32_t *left)
{
    const uint64_t thread = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t number = thread + 1;

    for (uint32_t round = 0; round < rounds; round++) {
        const AqueductProxyTrigger trigger = {{round % 3, number, 5 * round + 3, thread}};
        uint64_t position;
        uint32_t status = aqueduct_fifo_push(fifo, trigger, position);
        if (status == AQUEDUCT_LEFT_NOT) {
            status = aqueduct_fifo_sync(fifo, position);
        }
        if (status != AQUEDUCT_LEFT_NOT) {
            *(volatile uint32_t *)left = status;
            return;
        }
        number = answers[thread];
    }
    results[thread] = number;
}
