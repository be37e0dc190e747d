// Float and double arithmetic, conversions and the hardware approximations.
extern "C" __global__ void transcendental(const float* in, float* out) {
    float x = in[threadIdx.x];
    float* o = out + 12 * threadIdx.x;
    o[0] = __expf(x);
    o[1] = __logf(x);
    o[2] = rsqrtf(x);
    o[3] = sqrtf(x);
    o[4] = __sinf(x) + __cosf(x);
    o[5] = __fdividef(1.f, x);
    o[6] = 1.f / x;
    o[7] = x / (x + 3.f);
    o[8] = exp2f(x);
    o[9] = __frcp_rn(x);
    o[10] = tanhf(x);
    o[11] = powf(x, 1.7f);
}

extern "C" __global__ void precise_sine(const float* in, float* out) { out[threadIdx.x] = sinf(in[threadIdx.x]); }

extern "C" __global__ void doubles(const double* a, const double* b, double* out) {
    int i = threadIdx.x;
    double x = a[i], y = b[i];
    double* o = out + 8 * i;
    o[0] = x + y;
    o[1] = x * y - 1.0;
    o[2] = fma(x, y, 0.5);
    o[3] = x / y;
    o[4] = sqrt(fabs(x));
    o[5] = fmin(x, y) + fmax(x, -y);
    o[6] = floor(x) + ceil(y) + trunc(x) + rint(y);
    o[7] = x < y ? exp(x) : -x;
}

extern "C" __global__ void convert(const float* f, const double* d, const int* n, const long long* w, double* out) {
    int i = threadIdx.x;
    double* o = out + 12 * i;
    o[0] = (int)f[i];
    o[1] = (unsigned)f[i];
    o[2] = (double)(long long)d[i];
    o[3] = (float)n[i];
    o[4] = (double)(unsigned)n[i];
    o[5] = (float)w[i];
    o[6] = (double)(unsigned long long)w[i];
    o[7] = __float2int_rn(f[i]) + __float2int_ru(f[i]) + __float2int_rd(f[i]);
    o[8] = (float)d[i];
    o[9] = __float_as_int(f[i]) + __double2hiint(d[i]) + __double2loint(d[i]);
    o[10] = __int_as_float(n[i]) == f[i] || isnan(f[i]) || isinf(d[i]);
    o[11] = (signed char)f[i] + (unsigned short)d[i] + roundf(f[i]) + copysignf(2.f, f[i]);
}

extern "C" __global__ void rounding(const float* a, const float* b, float* out) {
    int i = threadIdx.x;
    out[6 * i] = __fadd_rz(a[i], b[i]);
    out[6 * i + 1] = __fmul_ru(a[i], b[i]);
    out[6 * i + 2] = __fmaf_rd(a[i], b[i], a[i]);
    out[6 * i + 3] = __fdiv_rn(a[i], b[i]);
    out[6 * i + 4] = __fsqrt_rn(a[i]);
    out[6 * i + 5] = __saturatef(a[i]) + fminf(a[i], b[i]) + fmaxf(a[i], 0.f) + floorf(b[i]);
}
