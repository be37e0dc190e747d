// Whether the tensor memory accelerator (cp.async.bulk, PTX ISA 9.7.9.25) moves data to a peer GPU faster than threads do.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 -o tma benches/peers/tma.cu && timeout 120 ./tma
//
// Two GPUs; each kernel copies its own buffer to the peer's, on one GPU alone or on both at once. Prints the median GB/s of one
// direction by blocks and bytes: threads (512 a block, 16 bytes a load, four in flight) and bulk copies (one warp a block, six
// stages of 16 KiB through shared memory).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { std::printf("%s: %s\n", #call, cudaGetErrorString(e)); std::exit(1); } } while (0)

constexpr int STAGES = 6;
constexpr uint32_t PIECE = 16384;

__global__ void __launch_bounds__(512) by_threads(const uint4* from, uint4* to, size_t vectors) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; at + 3 * step < vectors; at += 4 * step) {
        uint4 held[4];
        for (int n = 0; n < 4; ++n) held[n] = from[at + n * step];
        for (int n = 0; n < 4; ++n) to[at + n * step] = held[n];
    }
    for (; at < vectors; at += step) to[at] = from[at];
}

__device__ inline uint32_t shared(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }

__global__ void by_bulk_copies(const char* from, char* to, size_t bytes) {
    extern __shared__ __align__(128) char stages[];
    __shared__ __align__(8) uint64_t come[STAGES];
    if (threadIdx.x != 0) return;
    for (int n = 0; n < STAGES; ++n) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(shared(&come[n])));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    const size_t pieces = bytes / PIECE;
    const size_t mine = pieces > blockIdx.x ? (pieces - blockIdx.x - 1) / gridDim.x + 1 : 0;
    auto place = [&](size_t n) { return (blockIdx.x + n * gridDim.x) * PIECE; };
    auto load = [&](size_t n) {
        const uint32_t barrier = shared(&come[n % STAGES]);
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(barrier), "r"(PIECE) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(shared(stages + (n % STAGES) * PIECE)), "l"(from + place(n)), "r"(PIECE), "r"(barrier) : "memory");
    };
    for (size_t n = 0; n < mine && n < STAGES - 1; ++n) load(n);
    for (size_t n = 0; n < mine; ++n) {
        const uint32_t barrier = shared(&come[n % STAGES]), phase = n / STAGES % 2;
        asm volatile("{ .reg .pred done; wait: mbarrier.try_wait.parity.shared.b64 done, [%0], %1; @!done bra wait; }"
                     :: "r"(barrier), "r"(phase) : "memory");
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                     :: "l"(to + place(n)), "r"(shared(stages + (n % STAGES) * PIECE)), "r"(PIECE) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        // The stage of the copy before this one is read, so it can be filled again.
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        if (n + STAGES - 1 < mine) load(n + STAGES - 1);
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

int main() {
    constexpr size_t MOST = size_t(256) << 20;
    char *from[2], *to[2];
    cudaStream_t streams[2];
    cudaEvent_t begin[2], end[2];
    for (int gpu = 0; gpu < 2; ++gpu) {
        CHECK(cudaSetDevice(gpu));
        CHECK(cudaDeviceEnablePeerAccess(1 - gpu, 0));
        CHECK(cudaMalloc(&from[gpu], MOST));
        CHECK(cudaMemset(from[gpu], 7 + gpu, MOST));
        CHECK(cudaMalloc(&to[1 - gpu], MOST));  // `to[gpu]` lies on the other device.
        CHECK(cudaStreamCreateWithFlags(&streams[gpu], cudaStreamNonBlocking));
        CHECK(cudaEventCreate(&begin[gpu]));
        CHECK(cudaEventCreate(&end[gpu]));
        CHECK(cudaFuncSetAttribute(by_bulk_copies, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGES * PIECE));
    }
    const int grids[] = {1, 2, 4, 8, 16, 32, 64, 132};
    for (size_t bytes : {size_t(1) << 20, size_t(16) << 20, MOST})
        for (int both : {0, 1})
            for (int blocks : grids) {
                double rates[2] = {0, 0};
                for (int bulk : {0, 1}) {
                    std::vector<float> times;
                    for (int turn = 0; turn < 12; ++turn) {
                        // One window of several calls, so that short ones are not dominated by the launch.
                        const int calls = int(std::clamp<size_t>((size_t(64) << 20) / bytes, 2, 32));
                        for (int gpu = 0; gpu <= both; ++gpu) {
                            CHECK(cudaSetDevice(gpu));
                            CHECK(cudaEventRecord(begin[gpu], streams[gpu]));
                            for (int call = 0; call < calls; ++call)
                                if (bulk) by_bulk_copies<<<blocks, 32, STAGES * PIECE, streams[gpu]>>>(from[gpu], to[gpu], bytes);
                                else by_threads<<<blocks, 512, 0, streams[gpu]>>>((const uint4*)from[gpu], (uint4*)to[gpu], bytes / 16);
                            CHECK(cudaEventRecord(end[gpu], streams[gpu]));
                        }
                        float worst = 0;
                        for (int gpu = 0; gpu <= both; ++gpu) {
                            float ms = 0;
                            CHECK(cudaSetDevice(gpu));
                            CHECK(cudaStreamSynchronize(streams[gpu]));
                            CHECK(cudaEventElapsedTime(&ms, begin[gpu], end[gpu]));
                            worst = std::max(worst, ms / calls);
                        }
                        if (turn >= 3) times.push_back(worst);
                    }
                    std::sort(times.begin(), times.end());
                    rates[bulk] = double(bytes) / times[times.size() / 2] / 1e6;
                    std::vector<char> seen(bytes);
                    CHECK(cudaMemcpy(seen.data(), to[0], bytes, cudaMemcpyDefault));
                    if (std::count(seen.begin(), seen.end(), 7) != long(bytes)) { std::printf("wrong data\n"); return 1; }
                    CHECK(cudaSetDevice(1));
                    CHECK(cudaMemset(to[0], 0, bytes));
                    CHECK(cudaDeviceSynchronize());
                }
                std::printf("%9zu bytes, %s, %3d blocks: threads %6.1f GB/s, bulk copies %6.1f, %.3f of that\n", bytes,
                            both ? "both ways" : "one way  ", blocks, rates[0], rates[1], rates[1] / rates[0]);
            }
}
