// Dense switches (jump tables), functions that are not inlined, early returns in loops.
__device__ __noinline__ int opcode(int op, int a, int b) {
    switch (op) {
        case 0: return a + b;
        case 1: return a - b;
        case 2: return a * b;
        case 3: return b ? a / b : 0;
        case 4: return b ? a % b : 0;
        case 5: return a & b;
        case 6: return a | b;
        case 7: return a ^ b;
        case 8: return a << (b & 31);
        case 9: return a >> (b & 31);
        default: return -1;
    }
}

struct Pair {
    double first;
    int second;
    short third;
};

__device__ __noinline__ Pair combine(Pair p, Pair q) {
    Pair r;
    r.first = p.first * q.first + 1.0;
    r.second = p.second - q.second;
    r.third = (short)(p.third + q.third);
    return r;
}

__device__ __noinline__ void store_twice(int* where, int value) {
    where[0] = value;
    where[1] = value;
}

__device__ __noinline__ unsigned char low_byte(unsigned v, bool invert) { return invert ? ~v : v; }

extern "C" __global__ void interpret(const int* ops, const int* a, const int* b, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) store_twice(out + 2 * i, opcode(ops[i], a[i], b[i]));
}

extern "C" __global__ void structs(const Pair* in, Pair* out, unsigned char* bytes) {
    int i = threadIdx.x;
    out[i] = combine(in[i], in[i + 1]);
    bytes[i] = low_byte(in[i].second, i & 1);
}

extern "C" __global__ void jump_table(const int* ops, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int* o = out + i;
    for (int step = 0; step < 3; step++) {
        switch (ops[3 * i + step]) {
            case 0: atomicAdd(o, 1); break;
            case 1: *o = i * 3; break;
            case 2: atomicExch(o, 5); __threadfence(); break;
            case 3: *o = clock() != 0 ? 4 : 0; break;
            case 4: atomicMax(o, 6); break;
            case 5: *o = *o * *o + 1; break;
            case 6: atomicXor(o, 11); break;
            case 7: atomicAnd(o, 13); break;
            case 8: atomicOr(o, 32); break;
            case 9: atomicSub(o, 3); __threadfence_block(); break;
            case 10: *o = *o / 3; break;
            case 11: atomicMin(o, 90); break;
            case 12: return;
            default: *o = -1;
        }
    }
}
