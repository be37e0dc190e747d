//! Decisions from measured times.

/// Times that differ by less say nothing: the cheaper candidate, which stands first, is taken.
const NOISE: f64 = 1.01;

/// The column whose times are the shortest over all rows: by the mean of their logarithms, so that no row weighs more for being
/// longer. The first one of those that are as good.
pub(super) fn best_column(rows: &[Vec<f64>]) -> usize {
    let columns = rows.first().map_or(0, Vec::len);
    let score = |column: usize| {
        let sum: f64 = rows.iter().map(|row| row[column].max(f64::MIN_POSITIVE).ln()).sum();
        (sum / rows.len() as f64).exp()
    };
    let scores: Vec<f64> = (0..columns).map(score).collect();
    let least = scores.iter().copied().fold(f64::INFINITY, f64::min);
    scores.iter().position(|&score| score <= least * NOISE).unwrap_or(0)
}

/// The last row for which the first way is taken: it is at least as fast in all rows before, but for single ones that the next row
/// contradicts. `None` if it never is.
pub(super) fn crossover(first: &[f64], second: &[f64]) -> Option<usize> {
    let wins = |index: usize| first[index] <= second[index];
    let rows = first.len().min(second.len());
    let lost = (0..rows).find(|&index| !wins(index) && (index + 1 == rows || !wins(index + 1)));
    lost.unwrap_or(rows).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_column_wins_and_the_cheaper_of_equals() {
        assert_eq!(best_column(&[vec![4.0, 2.0, 3.0], vec![40.0, 20.0, 30.0]]), 1);
        assert_eq!(best_column(&[vec![2.01, 2.0], vec![20.1, 20.0]]), 0, "within the noise");
        assert_eq!(
            best_column(&[vec![1.0, 2.0], vec![100.0, 60.0]]),
            0,
            "a long row weighs no more than a short one"
        );
        assert_eq!(best_column(&[vec![1.9, 2.0], vec![100.0, 60.0]]), 1);
        assert_eq!(best_column(&[]), 0);
    }

    #[test]
    fn one_row_out_of_line_moves_no_limit() {
        assert_eq!(crossover(&[1.0, 2.0, 5.0, 9.0], &[3.0, 3.0, 4.0, 5.0]), Some(1));
        assert_eq!(crossover(&[1.0, 4.0, 2.0, 9.0, 9.0], &[3.0, 3.0, 4.0, 5.0, 5.0]), Some(2));
        assert_eq!(crossover(&[1.0, 1.0], &[2.0, 2.0]), Some(1), "wherever it was measured");
        assert_eq!(crossover(&[3.0, 3.0], &[2.0, 2.0]), None);
        assert_eq!(crossover(&[1.0, 3.0], &[2.0, 2.0]), Some(0), "the last row has no next one");
        assert_eq!(crossover(&[], &[]), None);
    }
}
