// Quotients of 128 bits, whose code mixes the carries of additions and subtractions.
extern "C" __global__ void divide(const unsigned __int128 *a, const unsigned __int128 *b, unsigned __int128 *out) {
    int i = threadIdx.x;
    out[3 * i] = a[i] / b[i];
    out[3 * i + 1] = a[i] % b[i];
    out[3 * i + 2] = a[i] * b[i] - (a[i] << 3) + (b[i] >> 5);
}
