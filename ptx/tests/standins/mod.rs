//! Kernels of tests that take the place of the host, of a proxy or of a peer's program.

/// Takes `count` triggers as the host does, one after the other. Each must have the words of `aqueduct_fifo_push`; unless `cells`
/// is zero, `cells[thread]` must be `index + 1` before it is popped, which the thread wrote before its push and changes only
/// behind the pop.
pub(crate) const CONSUMER: &str = "
.visible .entry consume(.param .u64 slots, .param .u64 tail, .param .u64 cells, .param .u64 wrong,
    .param .u32 capacity, .param .u32 log2, .param .u32 count)
{
    .reg .u64 %slots, %tail, %cells, %to, %slot, %position, %lap, %a, %b, %c, %d, %t, %count, %mask;
    .reg .u32 %log2, %small, %seen, %wrong;
    .reg .pred %p;
    ld.param.u64 %slots, [slots];
    ld.param.u64 %tail, [tail];
    ld.param.u64 %cells, [cells];
    ld.param.u32 %log2, [log2];
    ld.param.u32 %small, [capacity];
    cvt.u64.u32 %mask, %small;
    sub.u64 %mask, %mask, 1;
    ld.param.u32 %small, [count];
    cvt.u64.u32 %count, %small;
    mov.u64 %position, 0;
    mov.u32 %wrong, 0;
NEXT:
    setp.ge.u64 %p, %position, %count;
    @%p bra DONE;
    and.b64 %slot, %position, %mask;
    mad.lo.u64 %slot, %slot, 32, %slots;
    shr.u64 %lap, %position, %log2;
    not.b64 %lap, %lap;
    shl.b64 %lap, %lap, 63;
POLL:
    ld.relaxed.sys.global.v2.u64 {%a, %b}, [%slot];
    ld.relaxed.sys.global.v2.u64 {%c, %d}, [%slot+16];
    xor.b64 %a, %a, %lap;
    xor.b64 %b, %b, %lap;
    xor.b64 %c, %c, %lap;
    xor.b64 %d, %d, %lap;
    or.b64 %t, %a, %b;
    or.b64 %t, %t, %c;
    or.b64 %t, %t, %d;
    setp.lt.s64 %p, %t, 0;
    @%p bra POLL;
    fence.acq_rel.sys;
    // thread << 32 | index, thread ^ index
    shl.b64 %t, %a, 32;
    or.b64 %t, %t, %b;
    xor.b64 %c, %c, %t;
    xor.b64 %t, %a, %b;
    xor.b64 %d, %d, %t;
    or.b64 %c, %c, %d;
    setp.eq.u64 %p, %c, 0;
    @%p bra WORDS;
    mov.u32 %wrong, 1;
WORDS:
    setp.eq.u64 %p, %cells, 0;
    @%p bra POP;
    mad.lo.u64 %t, %a, 4, %cells;
    ld.weak.global.u32 %seen, [%t];
    cvt.u32.u64 %small, %b;
    add.u32 %small, %small, 1;
    xor.b32 %seen, %seen, %small;
    or.b32 %wrong, %wrong, %seen;
POP:
    add.u64 %position, %position, 1;
    st.release.sys.global.u64 [%tail], %position;
    bra NEXT;
DONE:
    ld.param.u64 %to, [wrong];
    st.weak.global.u32 [%to], %wrong;
    ret;
}
";

/// Takes the first trigger as a proxy does, reads `words` words of the memory that it is about, and completes a flush.
pub(crate) const PROXY: &str = "
.visible .entry proxy(.param .u64 slots, .param .u64 memory, .param .u32 words, .param .u64 flushed, .param .u64 sum)
{
    .reg .u64 %slots, %memory, %to, %a, %b, %c, %d;
    .reg .u32 %words, %sum, %seen;
    .reg .pred %p;
    ld.param.u64 %slots, [slots];
    ld.param.u64 %memory, [memory];
    ld.param.u32 %words, [words];
    mov.u32 %sum, 0;
POLL:
    ld.relaxed.sys.global.v2.u64 {%a, %b}, [%slots];
    ld.relaxed.sys.global.v2.u64 {%c, %d}, [%slots+16];
    and.b64 %a, %a, %b;
    and.b64 %a, %a, %c;
    and.b64 %a, %a, %d;
    setp.ge.s64 %p, %a, 0;
    @%p bra POLL;
    fence.acq_rel.sys;
ADD:
    ld.weak.global.u32 %seen, [%memory];
    add.u32 %sum, %sum, %seen;
    add.u64 %memory, %memory, 4;
    sub.u32 %words, %words, 1;
    setp.ne.u32 %p, %words, 0;
    @%p bra ADD;
    ld.param.u64 %to, [sum];
    st.weak.global.u32 [%to], %sum;
    ld.param.u64 %to, [flushed];
    mov.u64 %a, 1;
    st.release.sys.global.u64 [%to], %a;
    ret;
}
.visible .entry fill(.param .u64 memory, .param .u32 value)
{
    .reg .u64 %memory;
    .reg .u32 %i, %value;
    ld.param.u64 %memory, [memory];
    ld.param.u32 %value, [value];
    mov.u32 %i, %tid.x;
    mad.wide.u32 %memory, %i, 4, %memory;
    st.weak.global.u32 [%memory], %value;
    ret;
}
.visible .entry tell(.param .u64 memory, .param .u32 value, .param .u64 word)
{
    .reg .u64 %to, %one;
    .reg .u32 %value;
    ld.param.u64 %to, [memory];
    ld.param.u32 %value, [value];
    st.weak.global.u32 [%to], %value;
    ld.param.u64 %to, [word];
    mov.u64 %one, 1;
    st.release.sys.global.u64 [%to], %one;
    ret;
}
";

/// Polls by a function of the device library, and copies a word when it has what it polls for.
pub(crate) const POLLER: &str = "
.visible .entry poll(.param .u64 handle, .param .u64 memory, .param .u64 copy)
{
    .reg .u64 %handle, %memory, %copy;
    .reg .u32 %seen;
    .reg .pred %p;
    ld.param.u64 %handle, [handle];
    ld.param.u64 %memory, [memory];
    ld.param.u64 %copy, [copy];
POLL:
    {
        .param .u64 p0;
        .param .u64 p1;
        .param .u32 result;
        st.param.u64 [p0], %handle;
        st.param.u64 [p1], 0;
        call (result), FUNCTION;
        ld.param.u32 %seen, [result];
    }
    setp.eq.u32 %p, %seen, 0;
    @%p bra POLL;
    ld.weak.global.u32 %seen, [%memory];
    st.weak.global.u32 [%copy], %seen;
    ret;
}
";

/// Sets the abort word, waits until a record is complete, and copies it.
pub(crate) const READER: &str = "
.visible .entry abort(.param .u64 word, .param .u32 value, .param .u64 record, .param .u64 copy, .param .u32 words,
    .param .u32 state)
{
    .reg .u64 %word, %record, %copy;
    .reg .u32 %state, %seen, %i;
    .reg .pred %p;
    ld.param.u64 %word, [word];
    ld.param.u32 %i, [value];
    st.release.sys.global.u32 [%word], %i;
    ld.param.u64 %record, [record];
    ld.param.u64 %copy, [copy];
    ld.param.u32 %state, [state];
POLL:
    ld.acquire.sys.global.u32 %seen, [%record];
    setp.ne.u32 %p, %seen, %state;
    @%p bra POLL;
    ld.param.u32 %i, [words];
COPY:
    ld.weak.global.u32 %seen, [%record];
    st.weak.global.u32 [%copy], %seen;
    add.u64 %record, %record, 4;
    add.u64 %copy, %copy, 4;
    sub.u32 %i, %i, 1;
    setp.ne.u32 %p, %i, 0;
    @%p bra COPY;
    ret;
}
";
