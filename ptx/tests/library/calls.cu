// A kernel for each operation of aqueduct_device.h, with the parameters of those that calls.rs writes in PTX. What nvcc
// makes of them is kept in nvcc/ and run by the same tests; ci/corpus.sh makes it.
//
// Where an operation takes the place of a thread in its group, the grid (or, as 32 bits, the block) is the group;
// otherwise the first thread calls it alone. Each thread has two results.
#include "aqueduct_device.h"

// The thread whose status is the one given to a barrier.
#define ODD_ONE 5

static __device__ __forceinline__ uint64_t place()
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ uint64_t all()
{
    return (uint64_t)gridDim.x * blockDim.x;
}

extern "C" __global__ void call_memory_channel_put(const AqueductMemoryChannelHandle channel, uint64_t dst_offset,
                                                   uint64_t src_offset, uint64_t bytes, uint64_t *)
{
    aqueduct_memory_channel_put(channel, dst_offset, src_offset, bytes, place(), all());
}

extern "C" __global__ void call_memory_channel_get(const AqueductMemoryChannelHandle channel, uint64_t remote_offset,
                                                   uint64_t local_offset, uint64_t bytes, uint64_t *)
{
    aqueduct_memory_channel_get(channel, remote_offset, local_offset, bytes, place(), all());
}

extern "C" __global__ void call_memory_channel_put_aligned(const AqueductMemoryChannelHandle channel,
                                                           uint64_t dst_offset, uint64_t src_offset, uint64_t bytes,
                                                           uint64_t *)
{
    aqueduct_memory_channel_put_aligned(channel, dst_offset, src_offset, bytes, place(), all());
}

extern "C" __global__ void call_memory_channel_get_aligned(const AqueductMemoryChannelHandle channel,
                                                           uint64_t remote_offset, uint64_t local_offset,
                                                           uint64_t bytes, uint64_t *)
{
    aqueduct_memory_channel_get_aligned(channel, remote_offset, local_offset, bytes, place(), all());
}

extern "C" __global__ void call_memory_channel_put_packets_ll16(const AqueductMemoryChannelHandle channel,
                                                                uint64_t dst_offset, uint64_t src_offset,
                                                                uint64_t bytes, uint32_t flag, uint64_t *)
{
    aqueduct_memory_channel_put_packets_ll16(channel, dst_offset, src_offset, bytes, place(), all(), flag);
}

extern "C" __global__ void call_memory_channel_put_packets_ll8(const AqueductMemoryChannelHandle channel,
                                                               uint64_t dst_offset, uint64_t src_offset, uint64_t bytes,
                                                               uint32_t flag, uint64_t *)
{
    aqueduct_memory_channel_put_packets_ll8(channel, dst_offset, src_offset, bytes, place(), all(), flag);
}

extern "C" __global__ void call_memory_channel_put_packets_ll128(const AqueductMemoryChannelHandle channel,
                                                                 uint64_t dst_offset, uint64_t src_offset,
                                                                 uint64_t bytes, uint32_t flag, uint64_t *)
{
    aqueduct_memory_channel_put_packets_ll128(channel, dst_offset, src_offset, bytes, place(), all(), flag);
}

extern "C" __global__ void call_memory_channel_unpack_packets_ll16(const AqueductMemoryChannelHandle channel,
                                                                   uint64_t packet_offset, uint64_t dst_offset,
                                                                   uint64_t bytes, uint32_t flag, uint64_t *out)
{
    out[2 * place()] = aqueduct_memory_channel_unpack_packets_ll16(channel, packet_offset, dst_offset, bytes, place(),
                                                                   all(), flag);
}

extern "C" __global__ void call_memory_channel_unpack_packets_ll8(const AqueductMemoryChannelHandle channel,
                                                                  uint64_t packet_offset, uint64_t dst_offset,
                                                                  uint64_t bytes, uint32_t flag, uint64_t *out)
{
    out[2 * place()] = aqueduct_memory_channel_unpack_packets_ll8(channel, packet_offset, dst_offset, bytes, place(),
                                                                  all(), flag);
}

extern "C" __global__ void call_memory_channel_unpack_packets_ll128(const AqueductMemoryChannelHandle channel,
                                                                    uint64_t packet_offset, uint64_t dst_offset,
                                                                    uint64_t bytes, uint32_t flag, uint64_t *out)
{
    out[2 * place()] = aqueduct_memory_channel_unpack_packets_ll128(channel, packet_offset, dst_offset, bytes, place(),
                                                                    all(), flag);
}

extern "C" __global__ void call_memory_channel_read_u64(const AqueductMemoryChannelHandle channel, uint64_t index,
                                                        uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_memory_channel_read_u64(channel, index);
}

extern "C" __global__ void call_memory_channel_read_u32(const AqueductMemoryChannelHandle channel, uint64_t index,
                                                        uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_memory_channel_read_u32(channel, index);
}

extern "C" __global__ void call_memory_channel_write_u64(const AqueductMemoryChannelHandle channel, uint64_t index,
                                                         uint64_t value, uint64_t *)
{
    if (place() != 0) return;
    aqueduct_memory_channel_write_u64(channel, index, value);
}

extern "C" __global__ void call_memory_channel_write_u32(const AqueductMemoryChannelHandle channel, uint64_t index,
                                                         uint32_t value, uint64_t *)
{
    if (place() != 0) return;
    aqueduct_memory_channel_write_u32(channel, index, value);
}

extern "C" __global__ void call_memory_channel_signal(const AqueductMemoryChannelHandle channel, uint64_t *)
{
    if (place() != 0) return;
    aqueduct_memory_channel_signal(channel);
}

extern "C" __global__ void call_memory_channel_relaxed_signal(const AqueductMemoryChannelHandle channel, uint64_t *)
{
    if (place() != 0) return;
    aqueduct_memory_channel_relaxed_signal(channel);
}

extern "C" __global__ void call_memory_channel_wait(const AqueductMemoryChannelHandle channel, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_memory_channel_wait(channel);
}

extern "C" __global__ void call_memory_channel_relaxed_wait(const AqueductMemoryChannelHandle channel, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_memory_channel_relaxed_wait(channel);
}

extern "C" __global__ void call_memory_channel_poll(const AqueductMemoryChannelHandle channel, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_memory_channel_poll(channel);
}

extern "C" __global__ void call_memory_channel_last_group(const AqueductMemoryChannelHandle channel, uint32_t groups,
                                                          uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_memory_channel_last_group(channel, groups);
}

extern "C" __global__ void call_port_put(const AqueductPortChannelHandle port, uint64_t dst_offset, uint64_t src_offset,
                                         uint64_t bytes, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_port_put(port, dst_offset, src_offset, bytes);
}

extern "C" __global__ void call_port_signal(const AqueductPortChannelHandle port, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_port_signal(port);
}

extern "C" __global__ void call_port_flush(const AqueductPortChannelHandle port, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_port_flush(port);
}

extern "C" __global__ void call_port_put_with_signal(const AqueductPortChannelHandle port, uint64_t dst_offset,
                                                     uint64_t src_offset, uint64_t bytes, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_port_put_with_signal(port, dst_offset, src_offset, bytes);
}

extern "C" __global__ void call_port_put_with_signal_and_flush(const AqueductPortChannelHandle port,
                                                               uint64_t dst_offset, uint64_t src_offset, uint64_t bytes,
                                                               uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_port_put_with_signal_and_flush(port, dst_offset, src_offset, bytes);
}

extern "C" __global__ void call_port_push(const AqueductPortChannelHandle port, uint32_t kind, uint64_t dst_offset,
                                          uint64_t src_offset, uint64_t bytes, uint64_t *out)
{
    if (place() != 0) return;
    uint64_t position;
    out[0] = aqueduct_port_push(port, kind, dst_offset, src_offset, bytes, position);
    out[1] = position;
}

extern "C" __global__ void call_port_flushed(const AqueductPortChannelHandle port, uint64_t position, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_port_flushed(port, position);
}

extern "C" __global__ void call_port_wait(const AqueductPortChannelHandle port, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_port_wait(port);
}

extern "C" __global__ void call_port_poll(const AqueductPortChannelHandle port, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_port_poll(port);
}

extern "C" __global__ void call_port_put_packets_ll16(const AqueductPortChannelHandle port, uint64_t dst_offset,
                                                      uint64_t src_offset, uint64_t data_offset, uint64_t bytes,
                                                      uint32_t barrier, uint32_t flag, uint64_t *out)
{
    out[2 * place()] = aqueduct_port_put_packets_ll16(port, dst_offset, src_offset, data_offset, bytes, place(), all(),
                                                      barrier, flag);
}

extern "C" __global__ void call_port_put_packets_ll8(const AqueductPortChannelHandle port, uint64_t dst_offset,
                                                     uint64_t src_offset, uint64_t data_offset, uint64_t bytes,
                                                     uint32_t barrier, uint32_t flag, uint64_t *out)
{
    out[2 * place()] = aqueduct_port_put_packets_ll8(port, dst_offset, src_offset, data_offset, bytes, place(), all(),
                                                     barrier, flag);
}

extern "C" __global__ void call_port_pack_packets_ll16(const AqueductPortChannelHandle port, uint64_t src_offset,
                                                       uint64_t data_offset, uint64_t bytes, uint32_t flag, uint64_t *)
{
    aqueduct_port_pack_packets_ll16(port, src_offset, data_offset, bytes, place(), all(), flag);
}

extern "C" __global__ void call_port_pack_packets_ll8(const AqueductPortChannelHandle port, uint64_t src_offset,
                                                      uint64_t data_offset, uint64_t bytes, uint32_t flag, uint64_t *)
{
    aqueduct_port_pack_packets_ll8(port, src_offset, data_offset, bytes, place(), all(), flag);
}

extern "C" __global__ void call_port_unpack_packets_ll16(const AqueductPortChannelHandle port, uint64_t packet_offset,
                                                         uint64_t data_offset, uint64_t bytes, uint32_t flag,
                                                         uint64_t *out)
{
    out[2 * place()] = aqueduct_port_unpack_packets_ll16(port, packet_offset, data_offset, bytes, place(), all(), flag);
}

extern "C" __global__ void call_port_unpack_packets_ll8(const AqueductPortChannelHandle port, uint64_t packet_offset,
                                                        uint64_t data_offset, uint64_t bytes, uint32_t flag,
                                                        uint64_t *out)
{
    out[2 * place()] = aqueduct_port_unpack_packets_ll8(port, packet_offset, data_offset, bytes, place(), all(), flag);
}

extern "C" __global__ void call_port_last_group(const AqueductPortChannelHandle port, uint32_t groups, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_port_last_group(port, groups);
}

extern "C" __global__ void call_fifo_push(const AqueductFifoHandle fifo, const AqueductProxyTrigger trigger, uint64_t *out)
{
    if (place() != 0) return;
    uint64_t position;
    out[0] = aqueduct_fifo_push(fifo, trigger, position);
    out[1] = position;
}

extern "C" __global__ void call_fifo_poll(const AqueductFifoHandle fifo, uint64_t position, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_fifo_poll(fifo, position);
}

extern "C" __global__ void call_fifo_sync(const AqueductFifoHandle fifo, uint64_t position, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_fifo_sync(fifo, position);
}

extern "C" __global__ void call_semaphore_signal(const AqueductSemaphoreHandle semaphore, uint64_t *)
{
    if (place() != 0) return;
    aqueduct_semaphore_signal(semaphore);
}

extern "C" __global__ void call_semaphore_relaxed_signal(const AqueductSemaphoreHandle semaphore, uint64_t *)
{
    if (place() != 0) return;
    aqueduct_semaphore_relaxed_signal(semaphore);
}

extern "C" __global__ void call_semaphore_wait(const AqueductSemaphoreHandle semaphore, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_semaphore_wait(semaphore);
}

extern "C" __global__ void call_semaphore_relaxed_wait(const AqueductSemaphoreHandle semaphore, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_semaphore_relaxed_wait(semaphore);
}

extern "C" __global__ void call_semaphore_poll(const AqueductSemaphoreHandle semaphore, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_semaphore_poll(semaphore);
}

extern "C" __global__ void call_group_barrier(uint32_t status, uint32_t barrier, uint64_t *out)
{
    out[2 * place()] = aqueduct_group_barrier(place() == ODD_ONE ? status : AQUEDUCT_LEFT_NOT, barrier, blockDim.x);
}

extern "C" __global__ void call_grid_sync(const AqueductGridBarrierHandle grid, uint32_t status, uint64_t *out)
{
    out[2 * place()] = aqueduct_grid_sync(grid, place() == ODD_ONE ? status : AQUEDUCT_LEFT_NOT);
}

extern "C" __global__ void call_grid_barrier(const AqueductGridBarrierHandle grid, uint32_t status, uint32_t groups,
                                             uint32_t barrier, uint64_t *out)
{
    out[2 * place()] = aqueduct_grid_barrier(grid, place() == ODD_ONE ? status : AQUEDUCT_LEFT_NOT, groups,
                                             threadIdx.x, blockDim.x, barrier);
}

extern "C" __global__ void call_last_group(void *arrived, uint32_t groups, uint64_t *out)
{
    if (place() != 0) return;
    out[0] = aqueduct_last_group(arrived, groups);
}

extern "C" __global__ void call_copy(void *dst, void *src, uint64_t bytes, uint64_t *)
{
    aqueduct_copy(dst, src, bytes, place(), all());
}

extern "C" __global__ void call_copy_aligned(void *dst, void *src, uint64_t bytes, uint64_t *)
{
    aqueduct_copy_aligned(dst, src, bytes, place(), all());
}

extern "C" __global__ void call_put_packets_ll16(void *packets, void *src, uint64_t bytes, uint32_t flag, uint64_t *)
{
    aqueduct_put_packets_ll16(packets, src, bytes, place(), all(), flag);
}

extern "C" __global__ void call_put_packets_ll8(void *packets, void *src, uint64_t bytes, uint32_t flag, uint64_t *)
{
    aqueduct_put_packets_ll8(packets, src, bytes, place(), all(), flag);
}

extern "C" __global__ void call_put_packets_ll128(void *packets, void *src, uint64_t bytes, uint32_t flag, uint64_t *)
{
    aqueduct_put_packets_ll128(packets, src, bytes, place(), all(), flag);
}

extern "C" __global__ void call_unpack_packets_ll16(void *packets, void *dst, uint64_t bytes, uint32_t flag,
                                                    const AqueductAbortHandle abort, uint64_t *out)
{
    out[2 * place()] = aqueduct_unpack_packets_ll16(packets, dst, bytes, place(), all(), flag, abort);
}

extern "C" __global__ void call_unpack_packets_ll8(void *packets, void *dst, uint64_t bytes, uint32_t flag,
                                                   const AqueductAbortHandle abort, uint64_t *out)
{
    out[2 * place()] = aqueduct_unpack_packets_ll8(packets, dst, bytes, place(), all(), flag, abort);
}

extern "C" __global__ void call_unpack_packets_ll128(void *packets, void *dst, uint64_t bytes, uint32_t flag,
                                                     const AqueductAbortHandle abort, uint64_t *out)
{
    out[2 * place()] = aqueduct_unpack_packets_ll128(packets, dst, bytes, place(), all(), flag, abort);
}
