// Byte histogram with shared and global atomics, and every other atomic once.
extern "C" __global__ void histogram(const unsigned char* in, unsigned* bins, size_t n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        atomicAdd(&local[in[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (local[i]) atomicAdd(&bins[i], local[i]);
}

struct Counters {
    unsigned inc, dec, exch, mask_and, mask_or, mask_xor, umin, cas;
    int smax, smin;
    unsigned long long total, largest;
    float f;
    double d;
};

extern "C" __global__ void atomics(Counters* c, unsigned* old) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    old[i] = atomicInc(&c->inc, 9u) + 100 * atomicDec(&c->dec, 9u);
    atomicExch(&c->exch, i);
    atomicAnd(&c->mask_and, ~(1u << (i & 31)));
    atomicOr(&c->mask_or, 1u << (i & 31));
    atomicXor(&c->mask_xor, i);
    atomicMin(&c->umin, i);
    atomicMax(&c->smax, (int)i - 5);
    atomicMin(&c->smin, 5 - (int)i);
    atomicAdd(&c->total, (unsigned long long)i << 20);
    atomicMax(&c->largest, (unsigned long long)i << 33);
    atomicAdd(&c->f, 0.5f);
    atomicAdd(&c->d, 0.25);
    unsigned seen = c->cas, want;
    do {
        want = seen;
        seen = atomicCAS(&c->cas, want, want * 2 + 1 > 1000 ? 0 : want + i);
    } while (seen != want);
}
