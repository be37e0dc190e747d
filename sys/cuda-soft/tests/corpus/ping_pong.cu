// Two blocks hand a value to and fro with acquire and release (cuda::atomic_ref).
#include <cuda/atomic>

extern "C" __global__ void ping_pong(unsigned* flag, unsigned* data, int rounds) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> f(*flag);
    if (threadIdx.x != 0) return;
    for (int r = 0; r < rounds; r++) {
        while (f.load(cuda::memory_order_acquire) % 2 != blockIdx.x) { }
        *data = *data * 3 + blockIdx.x + 1;
        f.fetch_add(1, cuda::memory_order_release);
    }
}

extern "C" __global__ void orders(unsigned long long* word, unsigned* small, unsigned* out) {
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_system> w(*word);
    cuda::atomic_ref<unsigned, cuda::thread_scope_block> s(*small);
    w.store(threadIdx.x, cuda::memory_order_release);
    s.store(threadIdx.x, cuda::memory_order_relaxed);
    unsigned long long seen = w.exchange(7, cuda::memory_order_acq_rel);
    unsigned expected = 3;
    bool won = s.compare_exchange_strong(expected, 5, cuda::memory_order_acq_rel, cuda::memory_order_acquire);
    s.fetch_max(9, cuda::memory_order_relaxed);
    w.fetch_sub(2, cuda::memory_order_seq_cst);
    __threadfence();
    __threadfence_system();
    __threadfence_block();
    cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_system);
    out[threadIdx.x] = (unsigned)seen + won + expected + s.load(cuda::memory_order_seq_cst);
}

extern "C" __global__ void volatile_flag(volatile unsigned* flag, volatile unsigned long long* wide, unsigned* out) {
    if (threadIdx.x == 0) { *wide = 77; __threadfence_system(); *flag = 1; }
    __syncthreads();
    while (*flag == 0) __nanosleep(20);
    out[threadIdx.x] = (unsigned)*wide;
}
