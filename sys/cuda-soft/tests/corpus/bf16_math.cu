// bf16 arithmetic as cuda_bf16.h spells it.
#include <cuda_bf16.h>

extern "C" __global__ void bf16_ops(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat16 x = a[i], y = b[i];
    out[3 * i] = __hadd(x, y);
    out[3 * i + 1] = __hmul(x, y);
    out[3 * i + 2] = __float2bfloat16(__bfloat162float(x) * 3.f + __bfloat162float(y));
}

extern "C" __global__ void bf162_ops(const __nv_bfloat162* a, const __nv_bfloat162* b, __nv_bfloat162* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = __hmax2(__hfma2(a[i], b[i], a[i]), __floats2bfloat162_rn(-1.f, 0.5f));
}
