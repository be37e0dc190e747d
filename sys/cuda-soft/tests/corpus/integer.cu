// Integer arithmetic: 64-bit division, intrinsics, saturation, bit fields, narrow types.
extern "C" __global__ void divide(const long long* a, const long long* b, long long* out) {
    int i = threadIdx.x;
    out[4 * i] = a[i] / b[i];
    out[4 * i + 1] = a[i] % b[i];
    out[4 * i + 2] = (long long)((unsigned long long)a[i] / (unsigned long long)b[i]);
    out[4 * i + 3] = (int)a[i] / 7 + (unsigned)a[i] % 10u + (unsigned)a[i] / (unsigned)b[i];
}

extern "C" __global__ void intrinsics(const unsigned* in, unsigned* out) {
    unsigned v = in[threadIdx.x];
    unsigned long long w = ((unsigned long long)v << 32) | in[threadIdx.x + 1];
    unsigned* o = out + 16 * threadIdx.x;
    o[0] = __popc(v) + 100 * __popcll(w);
    o[1] = __clz(v) + 100 * __clzll(w);
    o[2] = __byte_perm(v, (unsigned)w, v & 0x7777);
    o[3] = __brev(v);
    o[4] = __ffs(v) + 100 * __ffsll(w);
    o[5] = __umulhi(v, (unsigned)w) + (unsigned)__umul64hi(w, w);
    o[6] = __mulhi((int)v, (int)w);
    o[7] = __funnelshift_l(v, (unsigned)w, v & 31) ^ __funnelshift_r(v, (unsigned)w, v & 31);
    o[8] = __sad((int)v, (int)w, 3);
    o[9] = __usad(v, (unsigned)w, 4);
    o[10] = __hadd((int)v, (int)w) + __rhadd((int)v, 5);
    o[11] = (unsigned)__brevll(w);
    o[12] = __mul24(v, 77) + __umul24(v, 1000);
    o[13] = min((int)v, 50) + max(v, 7u) + abs((int)v);
    o[14] = (v >> 5 & 0x3ff) | (((int)v << 7) >> 20);
    o[15] = __dp4a((int)v, (int)w, 5);
}

extern "C" __global__ void narrow(const short* s, const signed char* c, const unsigned short* u, int* out) {
    int i = threadIdx.x;
    short a = s[i];
    signed char b = c[i];
    unsigned short d = u[i];
    short e = a * b + d;
    out[i] = e / (b ? b : 1) + (unsigned char)(a + b) - (short)(d >> 3) + (a < b) + (a > d ? a : d);
}

extern "C" __global__ void wide(const int* a, const unsigned* b, long long* out) {
    int i = threadIdx.x;
    out[3 * i] = (long long)a[i] * a[i + 1] + i;
    out[3 * i + 1] = (unsigned long long)b[i] * b[i + 1];
    out[3 * i + 2] = ((unsigned long long)b[i] << 32 | (unsigned)a[i]) >> (i & 63);
    long long c = out[3 * i] * out[3 * i + 1] + out[3 * i + 2];
    out[3 * i] = c < 0 ? -c : c;
}

extern "C" __global__ void wide_carry(const ulonglong2* a, ulonglong2* out) {
    int i = threadIdx.x;
    unsigned __int128 x = ((unsigned __int128)a[i].y << 64) | a[i].x;
    x = x * 3 + 0xffffffffffffffffull;
    x -= a[i].y;
    out[i] = make_ulonglong2((unsigned long long)x, (unsigned long long)(x >> 64));
}
