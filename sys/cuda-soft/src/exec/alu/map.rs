//! Applies a function to each lane.

use super::super::regs::{LANES, Lanes};

/// `r[i] = f(a[i])`.
#[inline(always)]
pub(super) fn map1<A: Copy, R: Copy + Default>(a: &Lanes<A>, f: impl Fn(A) -> R) -> Lanes<R> {
    let mut r = [R::default(); LANES];
    for i in 0..LANES {
        r[i] = f(a[i]);
    }
    r
}

/// [`map1`] for functions that are too expensive or too rare to deserve a loop of their own.
#[inline(never)]
pub(super) fn each1<A: Copy, R: Copy + Default>(a: &Lanes<A>, f: fn(A) -> R) -> Lanes<R> {
    map1(a, f)
}

/// The same for [`map2`].
#[inline(never)]
pub(super) fn each2<A: Copy, B: Copy, R: Copy + Default>(
    a: &Lanes<A>,
    b: &Lanes<B>,
    f: fn(A, B) -> R,
) -> Lanes<R> {
    map2(a, b, f)
}

/// The same for [`map3`].
#[inline(never)]
pub(super) fn each3<A: Copy, B: Copy, C: Copy, R: Copy + Default>(
    a: &Lanes<A>,
    b: &Lanes<B>,
    c: &Lanes<C>,
    f: fn(A, B, C) -> R,
) -> Lanes<R> {
    map3(a, b, c, f)
}

/// `r[i] = f(a[i], b[i])`.
#[inline(always)]
pub(super) fn map2<A: Copy, B: Copy, R: Copy + Default>(
    a: &Lanes<A>,
    b: &Lanes<B>,
    f: impl Fn(A, B) -> R,
) -> Lanes<R> {
    let mut r = [R::default(); LANES];
    for i in 0..LANES {
        r[i] = f(a[i], b[i]);
    }
    r
}

/// `r[i] = f(a[i], b[i], c[i])`.
#[inline(always)]
pub(super) fn map3<A: Copy, B: Copy, C: Copy, R: Copy + Default>(
    a: &Lanes<A>,
    b: &Lanes<B>,
    c: &Lanes<C>,
    f: impl Fn(A, B, C) -> R,
) -> Lanes<R> {
    let mut r = [R::default(); LANES];
    for i in 0..LANES {
        r[i] = f(a[i], b[i], c[i]);
    }
    r
}
