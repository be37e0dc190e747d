// What a launch costs: an empty kernel of 256 threads, launched again and again in one stream.
//
//   nvcc -o empty_launch benches/peers/empty_launch.cu && ./empty_launch
//
// Prints the median over 20 batches of 100 launches of the time of a launch, by two events around a batch, as `aqueduct perf`
// times plain calls.
#include <algorithm>
#include <cstdio>
#include <vector>

__global__ void empty() {}

int main() {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> batches;
    for (int batch = 0; batch < 25; ++batch) {
        cudaEventRecord(begin, stream);
        for (int launch = 0; launch < 100; ++launch) empty<<<1, 256, 0, stream>>>();
        cudaEventRecord(end, stream);
        if (cudaStreamSynchronize(stream) != cudaSuccess) return 1;
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, begin, end);
        if (batch >= 5) batches.push_back(10 * milliseconds);
    }
    std::sort(batches.begin(), batches.end());
    std::printf("empty launch: median %.2f us, least %.2f us\n", batches[batches.size() / 2], batches[0]);
}
