// Initialised globals, constants, pointers in tables, local arrays indexed at run time.
struct Entry {
    short small;
    double big;
    const char* text;
};

__constant__ float weights[8] = {0.5f, -1.25f, 2.f, 3.5f, 0.f, 1e-7f, 1e30f, -0.f};
__constant__ int runtime_constant;
__device__ int counter = 41;
__device__ unsigned long long table[4] = {1, 1ull << 40, ~0ull};
__device__ unsigned char bytes[5] = {1, 2, 3, 4, 255};
__device__ double doubles[2] = {3.141592653589793, -1e-300};
__device__ int zeroed[16];
__device__ Entry entries[2] = {{-3, 2.5, "left"}, {9, -7.125, "right"}};
__device__ int* where = &counter;
__device__ unsigned long long* third = table + 2;

extern "C" __global__ void globals(float* f, unsigned long long* u, int* s, double* d) {
    int t = threadIdx.x;
    f[t] = weights[t & 7] * runtime_constant;
    u[t] = table[t & 3] + bytes[t % 5] + third[-1];
    s[t] = atomicAdd(where, 1) + entries[t & 1].small + entries[t & 1].text[t % 4];
    d[t] = doubles[t & 1] + entries[t & 1].big;
    zeroed[t & 15] = t;
}

extern "C" __global__ void local_array(const int* in, int* out, int n) {
    int stack[32];
    for (int i = 0; i < 32; i++) stack[i] = in[(i * 7 + threadIdx.x) % n];
#pragma unroll 1
    for (int i = 0; i < 31; i++)
#pragma unroll 1
        for (int j = 0; j < 31 - i; j++)
            if (stack[j] > stack[j + 1]) { int x = stack[j]; stack[j] = stack[j + 1]; stack[j + 1] = x; }
    out[threadIdx.x] = stack[in[threadIdx.x] & 31];
}

extern "C" __global__ void generic(const int* in, int* out, int which) {
    __shared__ int tile[32];
    int mine[4] = {1, 2, 3, (int)threadIdx.x};
    tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    int* p = which == 0 ? tile + (threadIdx.x ^ 1) : which == 1 ? mine + (threadIdx.x & 3) : (int*)in;
    *((volatile int*)&mine[threadIdx.x & 3]) += 1;
    out[threadIdx.x] = *p + (__isShared(p) ? 1000 : 0) + (__isLocal(p) ? 2000 : 0) + (__isGlobal(p) ? 4000 : 0);
}
