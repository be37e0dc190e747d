//! The least number of points that hit every interval, on a line and on a circle.
//!
//! Items are numbered 0..n. Gap g lies before item g. A dependence of item b on an earlier item a asks for a point in one of
//! the gaps a + 1..=b.

/// Points for a line. `fixed` says which gaps have a point already; `place` gives, for the item that asks, the last gap that
/// a point may be put in. Latest placement is optimal: of all points that serve the first interval to end, the last one
/// serves the most others.
pub(super) fn line(
    items: usize,
    fixed: impl Fn(usize) -> bool,
    depends: impl Fn(usize, usize) -> bool,
    place: impl Fn(usize) -> usize,
) -> Vec<usize> {
    let (mut points, mut last) = (Vec::new(), 0);
    for item in 0..items {
        if fixed(item) {
            last = item;
        }
        if (last..item).rev().any(|earlier| depends(earlier, item)) {
            last = place(item);
            points.push(last);
        }
    }
    points
}

/// Points for a circle: after the last item comes the first of the next round, and gap 0 lies between.
///
/// `depends(a, b)` is asked for `a < b` within a round, and for `b <= a` as b of the next round.
pub(super) fn circle(
    items: usize,
    fixed: impl Fn(usize) -> bool,
    depends: impl Fn(usize, usize) -> bool,
) -> Vec<usize> {
    // The line that begins at a gap with a point: no interval crosses it.
    let cut = |first: usize| {
        let turned = |index: usize| (first + index) % items;
        let points = line(
            items,
            |gap| gap > 0 && fixed(turned(gap)),
            |a, b| depends(turned(a), turned(b)),
            |item| item,
        );
        points.into_iter().map(turned).collect::<Vec<usize>>()
    };
    if items == 0 {
        return Vec::new();
    }
    if let Some(first) = (0..items).find(|&gap| fixed(gap)) {
        return sorted(cut(first));
    }
    let straight = line(items, |_| false, &depends, |item| item);
    // An interval around the end that no point hits must be hit by one of its own gaps.
    let unhit = (0..items).flat_map(|b| (b..items).map(move |a| (a, b))).find(|&(a, b)| {
        let hit = straight.iter().any(|&point| point > a || point <= b);
        !hit && depends(a, b)
    });
    let Some((a, b)) = unhit else { return straight };
    let gaps = (0..=b).chain(a + 1..items);
    let with = |first: usize| {
        let mut points = cut(first);
        points.push(first);
        sorted(points)
    };
    gaps.map(with).min_by_key(Vec::len).unwrap_or_default()
}

fn sorted(mut points: Vec<usize>) -> Vec<usize> {
    points.sort_unstable();
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the points hit all intervals.
    fn hits(items: usize, points: u32, fixed: u32, depends: impl Fn(usize, usize) -> bool) -> bool {
        let points = points | fixed;
        let hit = |a: usize, b: usize| {
            let gaps = if a < b { a + 1..b + 1 } else { a + 1..items + b + 1 };
            gaps.into_iter().any(|gap| points >> (gap % items) & 1 == 1)
        };
        (0..items).all(|a| (0..items).all(|b| !depends(a, b) || hit(a, b)))
    }

    /// All points sets of a small circle are tried: none is smaller.
    fn least(items: usize, fixed: u32, depends: &impl Fn(usize, usize) -> bool) -> usize {
        let sets = (0..1u32 << items).filter(|points| points & fixed == 0);
        let sizes = sets.filter(|&points| hits(items, points, fixed, depends)).map(u32::count_ones);
        sizes.min().unwrap() as usize
    }

    #[test]
    fn points_are_enough_and_the_fewest() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for round in 0..3000 {
            let items = 1 + random(7) as usize;
            let density = 2 + random(8);
            let pairs: Vec<bool> = (0..items * items).map(|_| random(density) == 0).collect();
            // A point at gap 0 of a circle hits what goes around; on a line nothing does.
            let around = round % 2 == 0;
            let depends = |a: usize, b: usize| pairs[a * items + b] && (around || a < b);
            let fixed = if random(3) == 0 { 1u32 << random(items as u64) } else { 0 };
            let is_fixed = |gap: usize| fixed >> gap & 1 == 1;
            let points = circle(items, is_fixed, depends);
            let set = points.iter().fold(0, |set, point| set | 1 << point);
            assert!(hits(items, set, fixed, depends), "{pairs:?} {points:?}");
            assert_eq!(points.len(), least(items, fixed, &depends), "{pairs:?} {points:?}");
            if !around && fixed == 0 {
                assert_eq!(line(items, is_fixed, depends, |item| item).len(), points.len());
            }
        }
    }
}
