// Bare kernels of two GPUs that exchange data over NVLink by graph replay, as the best that a library can come near to.
//
//   nvcc -O3 -std=c++20 -arch=native -o prototype benches/peers/prototype.cu && timeout 120 ./prototype
//
// Prints for each kind and size the best median time of a call in us over blocks and threads: graphs of 20 calls on both GPUs, started
// together, the slower GPU's time. Kinds: one hop of LL16 packets (what an all-reduce or an exchange of short messages is at least),
// the same with a second hop (as MSCCL++'s allreduce_packet plan), an exchange of LL128 lines, and stores to the peer's memory between
// two signals. All data are halves; the kernels reduce as an all-reduce does, or copy. With SIGNALS=1 it compares ways to begin and end such stores
// instead.
#include <cuda_fp16.h>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#include <barrier>
#include <type_traits>

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { std::printf("%s: %s\n", #call, cudaGetErrorString(e)); std::exit(1); } } while (0)

struct Args {
    const uint4* in; uint4* out; uint4* mine; uint4* theirs; uint4* their_out;
    unsigned* epoch; unsigned* my_flags; unsigned* their_flags; size_t bytes; size_t half;
};
__device__ inline void put16(uint4* at, uint32_t a, uint32_t b, uint32_t flag) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(at), "r"(a), "r"(flag), "r"(b), "r"(flag) : "memory");
}
__device__ inline uint2 take16(const uint4* at, uint32_t flag) {
    uint32_t a, f, b, g;
    do asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(a), "=r"(f), "=r"(b), "=r"(g) : "l"(at) : "memory");
    while (f != flag || g != flag);
    return make_uint2(a, b);
}
__device__ inline uint32_t add(uint32_t a, uint32_t b) {
    __half2 x = *(__half2*)&a, y = *(__half2*)&b, z = __hadd2(x, y);
    return *(uint32_t*)&z;
}
__device__ inline unsigned begin(const Args& a) { return a.epoch[blockIdx.x] + 1; }
__device__ inline void end(const Args& a, unsigned flag) { __syncthreads(); if (threadIdx.x == 0) a.epoch[blockIdx.x] = flag; }

template <bool REDUCE> __global__ void one_hop(Args a) {
    unsigned flag = begin(a);
    uint4* mine = a.mine + (flag & 1) * a.half; uint4* theirs = a.theirs + (flag & 1) * a.half;
    const uint2* in = (const uint2*)a.in; uint2* out = (uint2*)a.out;
    size_t units = a.bytes / 8, step = size_t(gridDim.x) * blockDim.x, first = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (size_t at = first; at < units; at += step) { uint2 v = in[at]; put16(theirs + at, v.x, v.y, flag); }
    for (size_t at = first; at < units; at += step) {
        uint2 v = take16(mine + at, flag);
        if (REDUCE) { uint2 own = in[at]; v.x = add(own.x, v.x); v.y = add(own.y, v.y); }
        out[at] = v;
    }
    end(a, flag);
}
// Rank r reduces half r of the data and sends it back: two hops.
__global__ void two_hops(Args a, int rank) {
    unsigned flag = begin(a);
    uint4* mine = a.mine + (flag & 1) * a.half; uint4* theirs = a.theirs + (flag & 1) * a.half;
    const uint2* in = (const uint2*)a.in; uint2* out = (uint2*)a.out;
    size_t units = a.bytes / 16, step = size_t(gridDim.x) * blockDim.x, first = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (size_t at = first; at < units; at += step) { uint2 v = in[(1 - rank) * units + at]; put16(theirs + at, v.x, v.y, flag); }
    for (size_t at = first; at < units; at += step) {
        uint2 v = take16(mine + at, flag), own = in[rank * units + at];
        v.x = add(own.x, v.x); v.y = add(own.y, v.y);
        put16(theirs + units + at, v.x, v.y, flag);
        out[rank * units + at] = v;
    }
    for (size_t at = first; at < units; at += step) out[(1 - rank) * units + at] = take16(mine + units + at, flag);
    end(a, flag);
}
// Lines of 128 bytes: 120 of data and 8 of flag, by eight threads each.
__device__ inline void put_line(uint4* at, uint64_t x, uint64_t y) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1,%2};" :: "l"(at), "l"(x), "l"(y) : "memory");
}
// A load instruction of several lanes is not known to read a line at once, so whoever relies on nothing else loads the data once the
// flags are there. LOOK: 0 data and flags at once; 1 flags, then data; 2 as 1, with the next round's flags on their way meanwhile.
template <bool REDUCE, int DEEP, int LOOK> __global__ void __launch_bounds__(1024) lines(Args a) {
    unsigned flag = begin(a);
    uint4* mine = a.mine + (flag & 1) * a.half; uint4* theirs = a.theirs + (flag & 1) * a.half;
    const uint64_t* in = (const uint64_t*)a.in; uint64_t* out = (uint64_t*)a.out;
    size_t count = (a.bytes / 8 + 14) / 15, words = a.bytes / 8;
    int lane = threadIdx.x % 8; bool last = lane == 7;
    size_t step = size_t(gridDim.x) * blockDim.x / 8, first = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) / 8;
    auto load = [&](size_t line, uint64_t& x, uint64_t& y) {
        size_t at = line * 15 + lane * 2;
        x = at < words ? in[at] : 0; y = last ? uint64_t(flag) : at + 1 < words ? in[at + 1] : 0;
    };
    // A round sends DEEP lines of each group of threads and receives them.
    size_t rounds = (count + step * DEEP - 1) / (step * DEEP);
    uint64_t ahead[DEEP] = {};
    auto look = [&](size_t round, int k) {
        size_t line = first + (round * DEEP + k) * step;
        if (line < count && last) asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(ahead[k]) : "l"((const uint64_t*)(mine + line * 8 + lane) + 1) : "memory");
    };
    for (size_t round = 0; round < rounds; ++round) {
        uint64_t x[DEEP], y[DEEP];
        #pragma unroll
        for (int k = 0; k < DEEP; ++k) { size_t line = first + (round * DEEP + k) * step; if (line < count) load(line, x[k], y[k]); }
        #pragma unroll
        for (int k = 0; k < DEEP; ++k) { size_t line = first + (round * DEEP + k) * step; if (line < count) put_line(theirs + line * 8 + lane, x[k], y[k]); }
        uint64_t v[DEEP], w[DEEP];
        if (LOOK > 0) {
            bool late, again = LOOK == 1 || round == 0;
            do {
                late = false;
                #pragma unroll
                for (int k = 0; k < DEEP; ++k) if (again) look(round, k);
                #pragma unroll
                for (int k = 0; k < DEEP; ++k) late |= last && first + (round * DEEP + k) * step < count && ahead[k] != flag;
                again = true;
            } while (__any_sync(~0u, late));
            #pragma unroll
            for (int k = 0; k < DEEP; ++k) {
                size_t line = first + (round * DEEP + k) * step;
                if (line < count) asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];" : "=l"(v[k]), "=l"(w[k]) : "l"(mine + line * 8 + lane) : "memory");
            }
            if (LOOK == 2) {
                #pragma unroll
                for (int k = 0; k < DEEP; ++k) look(round + 1, k);
            }
        }
        #pragma unroll
        for (int k = 0; k < DEEP; ++k) {
            size_t line = first + (round * DEEP + k) * step;
            uint64_t p = 0, q = 0;
            bool here = line < count;
            if (LOOK == 0) {
                bool done;
                do {
                    if (here) asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];" : "=l"(p), "=l"(q) : "l"(mine + line * 8 + lane) : "memory");
                    done = !here || !last || q == flag;
                } while (!__all_sync(~0u, done));
            } else { p = v[k]; q = w[k]; }
            if (here) {
                size_t at = line * 15 + lane * 2;
                if (REDUCE) {
                    p = uint64_t(add(uint32_t(p), uint32_t(x[k]))) | uint64_t(add(uint32_t(p >> 32), uint32_t(x[k] >> 32))) << 32;
                    q = uint64_t(add(uint32_t(q), uint32_t(y[k]))) | uint64_t(add(uint32_t(q >> 32), uint32_t(y[k] >> 32))) << 32;
                }
                if (at < words) out[at] = p;
                if (!last && at + 1 < words) out[at + 1] = q;
            }
        }
    }
    end(a, flag);
}
__device__ inline void signal(unsigned* at, unsigned flag) { asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(at), "r"(flag) : "memory"); }
__device__ inline void relaxed_signal(unsigned* at, unsigned flag) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(at), "r"(flag) : "memory"); }
__device__ inline void await(unsigned* at, unsigned flag) {
    unsigned v;
    do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory"); while (v != flag);
}
// Stores to the peer's output: each block tells that it has begun, waits for the peer's, stores, tells that it is done, and waits.
template <int DEEP> __global__ void store(Args a) {
    unsigned flag = begin(a);
    unsigned b = blockIdx.x * 2;
    if (threadIdx.x == 0) { relaxed_signal(a.their_flags + b * 8, flag); await(a.my_flags + b * 8, flag); }
    __syncthreads();
    size_t units = a.bytes / 16, step = size_t(gridDim.x) * blockDim.x, first = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (size_t at = first; at < units; at += step * DEEP) {
        uint4 v[DEEP];
        #pragma unroll
        for (int k = 0; k < DEEP; ++k) if (at + k * step < units) v[k] = a.in[at + k * step];
        #pragma unroll
        for (int k = 0; k < DEEP; ++k) if (at + k * step < units) a.their_out[at + k * step] = v[k];
    }
    __syncthreads();
    if (threadIdx.x == 0) { signal(a.their_flags + (b + 1) * 8, flag); await(a.my_flags + (b + 1) * 8, flag); }
    end(a, flag);
}
// BEGIN: 0 each block a relaxed signal, 1 each block a release, 2 one release of the first block, which all blocks of the peer look at.
// END: 0 each block a release, 1 a barrier of all blocks and one release, 2 the block that comes last releases and waits.
template <int BEGIN, int END> __global__ void ends(Args a) {
    unsigned flag = begin(a);
    unsigned b = blockIdx.x * 2;
    unsigned* count = a.epoch + 4096;
    if (threadIdx.x == 0) {
        if (BEGIN == 0) relaxed_signal(a.their_flags + b * 8, flag);
        if (BEGIN == 1 || (BEGIN == 2 && b == 0)) signal(a.their_flags + b * 8, flag);
        await(a.my_flags + (BEGIN == 2 ? 0 : b * 8), flag);
    }
    __syncthreads();
    size_t units = a.bytes / 16, step = size_t(gridDim.x) * blockDim.x, first = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (size_t at = first; at < units; at += step * 4) {
        uint4 v[4];
        #pragma unroll
        for (int k = 0; k < 4; ++k) if (at + k * step < units) v[k] = a.in[at + k * step];
        #pragma unroll
        for (int k = 0; k < 4; ++k) if (at + k * step < units) a.their_out[at + k * step] = v[k];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (END == 0) { signal(a.their_flags + (b + 1) * 8, flag); await(a.my_flags + (b + 1) * 8, flag); }
        else {
            unsigned old, seen = 0;
            asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(count) : "memory");
            bool last = old == flag * gridDim.x - 1;
            if (END == 1) {
                while (seen < flag * gridDim.x) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
                last = b == 0;
            }
            if (last) { signal(a.their_flags + 8, flag); await(a.my_flags + 8, flag); }
        }
    }
    end(a, flag);
}
// A share of lines by the first blocks while the others store.
template <int DEEP> __global__ void mixed(Args a, int line_blocks, size_t line_bytes) {
    unsigned flag = begin(a);
    if (int(blockIdx.x) >= line_blocks) {
        unsigned b = blockIdx.x * 2;
        if (threadIdx.x == 0) { relaxed_signal(a.their_flags + b * 8, flag); await(a.my_flags + b * 8, flag); }
        __syncthreads();
        size_t units = (a.bytes - line_bytes) / 16, base = line_bytes / 16, step = size_t(gridDim.x - line_blocks) * blockDim.x;
        size_t first = size_t(blockIdx.x - line_blocks) * blockDim.x + threadIdx.x;
        for (size_t at = first; at < units; at += step * DEEP) {
            uint4 v[DEEP];
            #pragma unroll
            for (int k = 0; k < DEEP; ++k) if (at + k * step < units) v[k] = a.in[base + at + k * step];
            #pragma unroll
            for (int k = 0; k < DEEP; ++k) if (at + k * step < units) a.their_out[base + at + k * step] = v[k];
        }
        __syncthreads();
        if (threadIdx.x == 0) { signal(a.their_flags + (b + 1) * 8, flag); await(a.my_flags + (b + 1) * 8, flag); }
    } else {
        uint4* mine = a.mine + (flag & 1) * a.half; uint4* theirs = a.theirs + (flag & 1) * a.half;
        const uint64_t* in = (const uint64_t*)a.in; uint64_t* out = (uint64_t*)a.out;
        size_t words = line_bytes / 8, count = (words + 14) / 15;
        int lane = threadIdx.x % 8; bool last = lane == 7;
        size_t step = size_t(line_blocks) * blockDim.x / 8, first = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) / 8;
        size_t rounds = (count + step * 4 - 1) / (step * 4);
        for (size_t round = 0; round < rounds; ++round) {
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                size_t line = first + (round * 4 + k) * step, at = line * 15 + lane * 2;
                if (line < count) put_line(theirs + line * 8 + lane, at < words ? in[at] : 0, last ? uint64_t(flag) : at + 1 < words ? in[at + 1] : 0);
            }
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                size_t line = first + (round * 4 + k) * step, at = line * 15 + lane * 2;
                uint64_t p = 0, q = 0; bool here = line < count, done;
                do {
                    if (here) asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];" : "=l"(p), "=l"(q) : "l"(mine + line * 8 + lane) : "memory");
                    done = !here || !last || q == flag;
                } while (!__all_sync(~0u, done));
                if (here && at < words) out[at] = p;
                if (here && !last && at + 1 < words) out[at + 1] = q;
            }
        }
    }
    end(a, flag);
}

struct Gpu { Args args; cudaStream_t stream; };
static Gpu gpus[2];
static std::barrier<> both(2);
static bool ok = true;

template <class Launch> float median(Launch launch, size_t bytes, bool reduces) {
    float times[2] = {0, 0};
    std::thread threads[2];
    for (int r = 0; r < 2; ++r) threads[r] = std::thread([&, r] {
        CHECK(cudaSetDevice(r));
        Gpu& gpu = gpus[r];
        gpu.args.bytes = bytes;
        CHECK(cudaMemsetAsync(gpu.args.out, 0xff, bytes, gpu.stream));
        cudaGraph_t graph; cudaGraphExec_t exec; cudaEvent_t from, to;
        CHECK(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
        for (int call = 0; call < 20; ++call) launch(gpu.args, gpu.stream, r);
        CHECK(cudaStreamEndCapture(gpu.stream, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        CHECK(cudaEventCreate(&from)); CHECK(cudaEventCreate(&to));
        std::vector<float> samples;
        for (int round = 0; round < 14; ++round) {
            CHECK(cudaStreamSynchronize(gpu.stream));
            both.arrive_and_wait();
            CHECK(cudaEventRecord(from, gpu.stream));
            CHECK(cudaGraphLaunch(exec, gpu.stream));
            CHECK(cudaEventRecord(to, gpu.stream));
            CHECK(cudaStreamSynchronize(gpu.stream));
            float ms; CHECK(cudaEventElapsedTime(&ms, from, to));
            if (round >= 3) samples.push_back(ms * 50);
        }
        std::sort(samples.begin(), samples.end());
        times[r] = samples[samples.size() / 2];
        // Every element of rank r is r + 1.
        std::vector<__half> out(bytes / 2);
        CHECK(cudaMemcpy(out.data(), gpu.args.out, bytes, cudaMemcpyDeviceToHost));
        float want = reduces ? 3 : 2 - r;
        for (size_t at = 0; at < out.size(); ++at) if (__half2float(out[at]) != want) { ok = false; std::printf("wrong at %zu: %f\n", at, __half2float(out[at])); break; }
        CHECK(cudaGraphExecDestroy(exec)); CHECK(cudaGraphDestroy(graph));
        both.arrive_and_wait();
    });
    for (auto& thread : threads) thread.join();
    return std::max(times[0], times[1]);
}

struct Best { float us = 1e9; int blocks = 0, threads = 0; char extra[40] = ""; };
static void consider(Best& best, float us, int blocks, int threads, const char* extra = "") {
    if (us < best.us) { best.us = us; best.blocks = blocks; best.threads = threads; std::strncpy(best.extra, extra, 39); }
}
static void print(const char* kind, size_t bytes, const Best& best) {
    std::printf("%-34s %10zu %9.2f us  (%d blocks of %d%s)\n", kind, bytes, best.us, best.blocks, best.threads, best.extra);
    std::fflush(stdout);
}

int main() {
    const size_t most = 64 << 20;
    for (int r = 0; r < 2; ++r) {
        CHECK(cudaSetDevice(r));
        CHECK(cudaDeviceEnablePeerAccess(1 - r, 0));
        Args& a = gpus[r].args;
        CHECK(cudaMalloc((void**)&a.in, most)); CHECK(cudaMalloc((void**)&a.out, most));
        CHECK(cudaMalloc((void**)&a.mine, 4 * most)); CHECK(cudaMemset(a.mine, 0, 4 * most));
        CHECK(cudaMalloc((void**)&a.epoch, 1 << 16)); CHECK(cudaMemset(a.epoch, 0, 1 << 16));
        CHECK(cudaMalloc((void**)&a.my_flags, 1 << 16)); CHECK(cudaMemset(a.my_flags, 0, 1 << 16));
        std::vector<__half> data(most / 2, __float2half(float(r + 1)));
        CHECK(cudaMemcpy((void*)a.in, data.data(), most, cudaMemcpyHostToDevice));
        a.half = 2 * most / 16;
        CHECK(cudaStreamCreateWithFlags(&gpus[r].stream, cudaStreamNonBlocking));
        CHECK(cudaDeviceSynchronize());
    }
    for (int r = 0; r < 2; ++r) {
        gpus[r].args.theirs = gpus[1 - r].args.mine; gpus[r].args.their_out = gpus[1 - r].args.out;
        gpus[r].args.their_flags = gpus[1 - r].args.my_flags;
    }
    // Epochs of blocks that a launch leaves out fall behind, so every launch has its own: all are set back between kinds.
    auto reset = [] {
        for (int r = 0; r < 2; ++r) { CHECK(cudaSetDevice(r)); Args& a = gpus[r].args;
            CHECK(cudaMemset(a.epoch, 0, 1 << 16)); CHECK(cudaMemset(a.my_flags, 0, 1 << 16)); CHECK(cudaMemset(a.mine, 0, 4 * most)); CHECK(cudaDeviceSynchronize()); }
    };
    auto run = [&](auto launch, size_t bytes, bool reduces) { reset(); return median(launch, bytes, reduces); };
    if (std::getenv("SIGNALS")) {
        for (int turn = 0; turn < 2; ++turn) for (size_t bytes : {64 << 10, 1 << 20, 4 << 20}) for (int blocks : {64, 128}) {
            auto one = [&](const char* name, auto kernel) { Best best; consider(best, run([=](Args& a, cudaStream_t s, int) { kernel<<<blocks, 512, 0, s>>>(a); }, bytes, false), blocks, 512); print(name, bytes, best); };
            one("relaxed; release", ends<0, 0>); one("relaxed; barrier", ends<0, 1>); one("relaxed; last", ends<0, 2>);
            one("release; release", ends<1, 0>); one("one release; release", ends<2, 0>); one("one release; barrier", ends<2, 1>); one("one release; last", ends<2, 2>);
        }
        return 0;
    }
    for (size_t bytes : {1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10}) {
        Best reduce, copy, two;
        for (int threads : {64, 128, 256, 512}) for (int blocks : {1, 2, 4, 8, 16, 32, 64, 128}) {
            size_t per = bytes / 8 / (size_t(blocks) * threads);
            if (per > 8 || size_t(blocks) * threads > bytes / 8 * 2) continue;
            consider(reduce, run([=](Args& a, cudaStream_t s, int) { one_hop<true><<<blocks, threads, 0, s>>>(a); }, bytes, true), blocks, threads);
            consider(copy, run([=](Args& a, cudaStream_t s, int) { one_hop<false><<<blocks, threads, 0, s>>>(a); }, bytes, false), blocks, threads);
            consider(two, run([=](Args& a, cudaStream_t s, int r) { two_hops<<<blocks, threads, 0, s>>>(a, r); }, bytes, true), blocks, threads);
        }
        print("all-reduce, one hop", bytes, reduce); print("exchange, one hop", bytes, copy); print("all-reduce, two hops", bytes, two);
    }
    auto all_lines = [&](auto look, const char* name, size_t bytes) {
        constexpr int LOOK = decltype(look)::value;
        Best reduce, copy;
        for (int threads : {256, 512, 1024}) for (int blocks : {32, 64, 96, 128}) {
            consider(reduce, run([=](Args& a, cudaStream_t s, int) { lines<true, 4, LOOK><<<blocks, threads, 0, s>>>(a); }, bytes, true), blocks, threads, ", 4 deep");
            consider(copy, run([=](Args& a, cudaStream_t s, int) { lines<false, 4, LOOK><<<blocks, threads, 0, s>>>(a); }, bytes, false), blocks, threads, ", 4 deep");
            consider(reduce, run([=](Args& a, cudaStream_t s, int) { lines<true, 2, LOOK><<<blocks, threads, 0, s>>>(a); }, bytes, true), blocks, threads, ", 2 deep");
            consider(copy, run([=](Args& a, cudaStream_t s, int) { lines<false, 2, LOOK><<<blocks, threads, 0, s>>>(a); }, bytes, false), blocks, threads, ", 2 deep");
        }
        char text[40];
        std::snprintf(text, 40, "all-reduce, lines, %s", name); print(text, bytes, reduce);
        std::snprintf(text, 40, "exchange, lines, %s", name); print(text, bytes, copy);
    };
    for (int turn = 0; turn < 2; ++turn) for (size_t bytes : {256 << 10, 1 << 20, 4 << 20, 16 << 20}) {
        all_lines(std::integral_constant<int, 0>(), "at once", bytes);
        all_lines(std::integral_constant<int, 1>(), "flags first", bytes);
        all_lines(std::integral_constant<int, 2>(), "flags ahead", bytes);
    }
    for (size_t bytes : {1 << 20, 4 << 20, 16 << 20, 64 << 20}) {
        Best stores, both_ways;
        for (int threads : {512, 1024}) for (int blocks : {32, 64, 96, 128}) {
            consider(stores, run([=](Args& a, cudaStream_t s, int) { store<4><<<blocks, threads, 0, s>>>(a); }, bytes, false), blocks, threads, ", 4 deep");
            consider(stores, run([=](Args& a, cudaStream_t s, int) { store<1><<<blocks, threads, 0, s>>>(a); }, bytes, false), blocks, threads, ", 1 deep");
        }
        for (int threads : {512, 1024}) for (int of : {16, 32, 64}) for (int eighths : {1, 2, 4}) {
            char extra[40]; std::snprintf(extra, 40, ", %d of them lines of %d/16", of, eighths);
            consider(both_ways, run([=](Args& a, cudaStream_t s, int) { mixed<4><<<128, threads, 0, s>>>(a, of, bytes / 16 * eighths); }, bytes, false), 128, threads, extra);
        }
        print("exchange, stores", bytes, stores); print("exchange, stores and lines", bytes, both_ways);
    }
    std::printf(ok ? "all values right\n" : "WRONG VALUES\n");
    return ok ? 0 : 1;
}
