// Comparisons and atomics of halves and their pairs, and conversions of 8-bit floats.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void compare(const __half2 *a, const __half2 *b, unsigned *out) {
    int i = threadIdx.x;
    unsigned *to = out + 6 * i;
    __half2 ones = __hgt2(a[i], b[i]);
    to[0] = *reinterpret_cast<unsigned *>(&ones);
    to[1] = __hle2_mask(a[i], b[i]);
    to[2] = __hneu2_mask(a[i], b[i]);
    to[3] = __hlt(__low2half(a[i]), __low2half(b[i]));
    to[4] = __hbeq2(a[i], b[i]) * 2 + __hbltu2(a[i], b[i]);
    __half2 most = __hmax2(a[i], b[i]);
    to[5] = *reinterpret_cast<unsigned *>(&most);
}

extern "C" __global__ void sums(__half2 *pairs, __half *single) {
    atomicAdd(pairs + threadIdx.x % 4, __floats2half2_rn(1.0f, 0.5f));
    atomicAdd(single, __float2half(0.25f));
}

extern "C" __global__ void eight_bits(const float2 *in, unsigned short *e4m3, unsigned short *e5m2, float2 *back) {
    int i = threadIdx.x;
    e4m3[i] = __nv_cvt_float2_to_fp8x2(in[i], __NV_SATFINITE, __NV_E4M3);
    e5m2[i] = __nv_cvt_float2_to_fp8x2(in[i], __NV_SATFINITE, __NV_E5M2);
    __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(e4m3[i], __NV_E4M3);
    back[i] = __half22float2(__half2(raw));
}
