// Instructions on four bytes and two halves of a word.
extern "C" __global__ void bytes(const unsigned *a, const unsigned *b, unsigned *out) {
    int i = threadIdx.x;
    unsigned *to = out + 7 * i;
    to[0] = __vabsdiffu4(a[i], b[i]);
    to[1] = __vabsdiffs4(a[i], b[i]);
    to[2] = __vsadu4(a[i], b[i]);
    to[3] = __vaddus4(a[i], b[i]);
    to[4] = __vmaxs2(a[i], b[i]);
    to[5] = __vminu4(a[i], b[i]);
    to[6] = __vcmpgtu4(a[i], b[i]);
}
