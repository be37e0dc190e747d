// Uses the wrappers of aqueduct_device.h, several of them twice; compiled by ci/ptx.sh, run by nobody.
#include "aqueduct_device.h"

extern "C" __global__ void every_wrapper(AqueductMemoryChannelHandle channel, AqueductScratchRegion region, uint64_t bytes,
                                         uint32_t *result)
{
    void *dst = (void *)channel.dst, *src = (void *)channel.src, *packets = (void *)channel.packets;
    void *word = (void *)channel.abort.word, *record = (void *)channel.abort.record;
    void *inbound = (void *)channel.semaphore.inbound, *expected = (void *)channel.semaphore.expected_inbound;
    void *outbound = (void *)channel.semaphore.outbound, *remote = (void *)channel.semaphore.remote_inbound;
    uint32_t rank = channel.abort.rank, peer = channel.peer, aborted = 0, taken = 0, last = 0;
    uint64_t tid, nthreads, element64;
    uint32_t element32;

    aqueduct_grid_thread(tid, nthreads);
    for (int twice = 0; twice < 2; twice++) {
        aqueduct_copy(dst, src, bytes, tid, nthreads);
        aqueduct_put_packets_ll8(dst, src, bytes, tid, nthreads, 7);
        aqueduct_unpack_packets_ll8(packets, src, bytes, tid, nthreads, 7, word, record, rank, peer, aborted);
    }
    aqueduct_copy(src, dst, bytes, tid, nthreads);
    aqueduct_put_packets_ll16(dst, src, bytes, tid, nthreads, 7);
    aqueduct_unpack_packets_ll16(packets, src, bytes, tid, nthreads, 7, word, record, rank, peer, aborted);
    aqueduct_element_read_u64(dst, 1, element64);
    aqueduct_element_read_u32(dst, 1, element32);
    aqueduct_element_write_u64(dst, 2, element64);
    aqueduct_element_write_u32(dst, 2, element32);
    aqueduct_grid_barrier((void *)region.barrier, gridDim.x, threadIdx.x, blockDim.x, 0, word, record, rank, aborted);
    aqueduct_group_sync(0, blockDim.x, aborted);
    if (threadIdx.x == 0 && aborted == 0) {
        aqueduct_last_block((void *)channel.arrived, gridDim.x, last);
        if (last) aqueduct_sem_signal(outbound, remote);
        aqueduct_sem_relaxed_signal(outbound, remote);
        aqueduct_sem_wait(inbound, expected, word, record, rank, peer, aborted);
        aqueduct_sem_wait(inbound, expected, word, record, rank, peer, aborted);
        aqueduct_sem_relaxed_wait(inbound, expected, word, record, rank, peer, aborted);
        aqueduct_sem_poll(inbound, expected, taken);
        if (aborted) aqueduct_abort_record(record, rank, 1, peer, 0, 0, 0);
        *result = aborted + taken;
    }
}
