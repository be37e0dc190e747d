// Output, assertions, calls through pointers and virtual functions, and the heap.
#include <cassert>
#include <cstdio>

__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }
__device__ __noinline__ int negate(int x) { return -x; }

typedef int (*function)(int);
static __device__ function const table[3] = {twice, square, negate};

extern "C" __global__ void through_pointers(const int *which, int *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = table[which[i] % 3](i) + 1;
}

struct Shape {
    __device__ virtual int area() const = 0;
    __device__ virtual int corners() const { return 0; }
};
struct Square : Shape {
    int side;
    __device__ explicit Square(int side) : side(side) {}
    __device__ int area() const override { return side * side; }
    __device__ int corners() const override { return 4; }
};
struct Disc : Shape {
    int radius;
    __device__ explicit Disc(int radius) : radius(radius) {}
    __device__ int area() const override { return 3 * radius * radius; }
};

extern "C" __global__ void virtual_functions(int *out) {
    int i = threadIdx.x;
    Shape *shape;
    if (i % 2) {
        shape = new Square(i);
    } else {
        shape = new Disc(i);
    }
    out[i] = shape->area() * 10 + shape->corners();
    delete shape;
}

extern "C" __global__ void says(int *out) {
    int i = threadIdx.x;
    if (i < 2) out[i] = printf("%s %d: %lld %5.2f %c %#x%%\n", i ? "odd" : "even", i, -5000000000ll * i, 1.5 * i, 'a' + i, i + 16);
}

extern "C" __global__ void checks(int limit) { assert(int(threadIdx.x) < limit); }
