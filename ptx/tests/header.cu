// Uses every operation of aqueduct_device.h, several of them twice in one function, so that labels and registers of the
// two must not collide; compiled by ci/ptx.sh, run by nobody.
#include "aqueduct_device.h"

extern "C" __global__ void memory_channel(const AqueductMemoryChannelHandle channel, uint64_t bytes, uint64_t *result)
{
    const uint64_t thread = threadIdx.x, threads = blockDim.x;
    uint32_t status = AQUEDUCT_LEFT_NOT;

    for (int twice = 0; twice < 2; twice++) {
        aqueduct_memory_channel_put(channel, 0, 8, bytes, thread, threads);
        aqueduct_memory_channel_put_aligned(channel, 0, 16, bytes, thread, threads);
        aqueduct_memory_channel_put_packets_ll8(channel, 0, 4, bytes, thread, threads, 7);
        status |= aqueduct_memory_channel_unpack_packets_ll8(channel, 0, 4, bytes, thread, threads, 7);
    }
    aqueduct_memory_channel_get(channel, 0, 8, bytes, thread, threads);
    aqueduct_memory_channel_get_aligned(channel, 0, 16, bytes, thread, threads);
    aqueduct_memory_channel_put_packets_ll16(channel, 0, 8, bytes, thread, threads, 7);
    status |= aqueduct_memory_channel_unpack_packets_ll16(channel, 0, 8, bytes, thread, threads, 7);
    aqueduct_memory_channel_put_packets_ll128(channel, 0, 8, bytes, thread, threads, 7);
    status |= aqueduct_memory_channel_unpack_packets_ll128(channel, 0, 8, bytes, thread, threads, 7);
    status = aqueduct_group_barrier(status, 1, blockDim.x);
    if (thread == 0 && status == AQUEDUCT_LEFT_NOT) {
        aqueduct_memory_channel_write_u64(channel, 1, aqueduct_memory_channel_read_u64(channel, 0));
        aqueduct_memory_channel_write_u32(channel, 7, aqueduct_memory_channel_read_u32(channel, 6));
        if (aqueduct_memory_channel_last_group(channel, gridDim.x)) aqueduct_memory_channel_signal(channel);
        aqueduct_memory_channel_relaxed_signal(channel);
        status = aqueduct_memory_channel_wait(channel) | aqueduct_memory_channel_wait(channel);
        status |= aqueduct_memory_channel_relaxed_wait(channel);
        *result = status + aqueduct_memory_channel_poll(channel);
    }
}

extern "C" __global__ void port(const AqueductPortChannelHandle port, uint64_t bytes, uint64_t *result)
{
    const uint64_t thread = threadIdx.x, threads = blockDim.x;
    uint32_t status = aqueduct_port_put_packets_ll8(port, 0, 0, 4, bytes, thread, threads, 1, 7);

    status |= aqueduct_port_unpack_packets_ll8(port, 0, 4, bytes, thread, threads, 7);
    status |= aqueduct_port_put_packets_ll16(port, 0, 0, 8, bytes, thread, threads, 1, 7);
    status |= aqueduct_port_unpack_packets_ll16(port, 0, 8, bytes, thread, threads, 7);
    aqueduct_port_pack_packets_ll8(port, 0, 4, bytes, thread, threads, 7);
    aqueduct_port_pack_packets_ll16(port, 0, 8, bytes, thread, threads, 7);
    status = aqueduct_group_barrier(status, 1, blockDim.x);
    if (thread == 0 && status == AQUEDUCT_LEFT_NOT && aqueduct_port_last_group(port, gridDim.x)) {
        uint64_t position;
        status = aqueduct_port_put(port, 0, 0, 2 * bytes) | aqueduct_port_put(port, 8, 8, bytes);
        status |= aqueduct_port_put_with_signal(port, 0, 0, bytes) | aqueduct_port_signal(port);
        status |= aqueduct_port_put_with_signal_and_flush(port, 0, 0, bytes) | aqueduct_port_flush(port);
        status |= aqueduct_port_push(port, AQUEDUCT_TRIGGER_DATA + AQUEDUCT_TRIGGER_SYNC, 0, 0, bytes, position);
        status |= aqueduct_port_flushed(port, position) | aqueduct_port_wait(port);
        *result = status + aqueduct_port_poll(port);
    }
}

extern "C" __global__ void without_a_channel(const AqueductFifoHandle fifo, const AqueductSemaphoreHandle semaphore,
                                             const AqueductGridBarrierHandle grid, uint8_t *from, uint8_t *packets, uint8_t *to,
                                             uint32_t *arrived, uint64_t *result)
{
    const uint64_t thread = threadIdx.x, threads = blockDim.x;
    uint32_t status = AQUEDUCT_LEFT_NOT;

    aqueduct_copy(to, from, 960, thread, threads);
    aqueduct_copy_aligned(to, from, 960, thread, threads);
    aqueduct_put_packets_ll8(packets, from, 960, thread, threads, 1);
    status |= aqueduct_unpack_packets_ll8(packets, to, 960, thread, threads, 1, fifo.abort);
    aqueduct_put_packets_ll16(packets, from, 960, thread, threads, 2);
    status |= aqueduct_unpack_packets_ll16(packets, to, 960, thread, threads, 2, fifo.abort);
    aqueduct_put_packets_ll128(packets, from, 960, thread, threads, 3);
    status |= aqueduct_unpack_packets_ll128(packets, to, 960, thread, threads, 3, fifo.abort);
    status = aqueduct_grid_sync(grid, status);
    status = aqueduct_grid_sync(grid, status);
    status = aqueduct_grid_barrier(grid, status, gridDim.x, threadIdx.x, blockDim.x, 1);
    if (thread == 0 && status == AQUEDUCT_LEFT_NOT && aqueduct_last_group(arrived, gridDim.x)) {
        AqueductProxyTrigger trigger = {{1, 2, 3, 4}};
        uint64_t position;
        aqueduct_semaphore_signal(semaphore);
        aqueduct_semaphore_relaxed_signal(semaphore);
        status |= aqueduct_semaphore_wait(semaphore);
        status |= aqueduct_semaphore_relaxed_wait(semaphore);
        status |= aqueduct_fifo_push(fifo, trigger, position);
        if (!aqueduct_fifo_poll(fifo, position)) status |= aqueduct_fifo_sync(fifo, position);
        *result = status + aqueduct_semaphore_poll(semaphore);
    }
}
