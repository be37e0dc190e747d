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

/// The sizes up to which packets and LL128 packets are taken, of the times of these two and of the direct way; 0 for never.
pub(super) fn limits(sizes: &[u64], [packets, lines, direct]: [&[f64]; 3]) -> [u64; 2] {
    let limit = |index: Option<usize>| index.map_or(0, |index| sizes[index]);
    let shorter: Vec<f64> = lines.iter().zip(direct).map(|(lines, direct)| lines.min(*direct)).collect();
    let packet_bytes = limit(crossover(packets, &shorter));
    let behind = sizes.partition_point(|&size| size <= packet_bytes);
    let line_bytes = crossover(&lines[behind..], &direct[behind..]).map_or(0, |index| sizes[behind + index]);
    [packet_bytes, line_bytes]
}

/// The size from which on a way is faster than the direct one in all rows, but for single ones that the row before contradicts; 0 for
/// never. It must win the last row, which speaks for all longer messages.
pub(super) fn beginning(sizes: &[u64], way: &[f64], direct: &[f64]) -> u64 {
    if !way.last().zip(direct.last()).is_some_and(|(way, direct)| *way <= direct / NOISE) {
        return 0;
    }
    let upwards = |times: &[f64]| times.iter().rev().copied().collect::<Vec<_>>();
    // At the noise, the direct way stays: it needs no streams of its own.
    let direct: Vec<f64> = upwards(direct).iter().map(|time| time / NOISE).collect();
    crossover(&upwards(way), &direct).map_or(0, |index| sizes[sizes.len() - 1 - index])
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
    fn each_sort_of_packets_is_taken_where_it_is_the_fastest() {
        let sizes = [1, 2, 4, 8, 16];
        let direct = [9.0, 9.0, 9.0, 9.0, 9.0];
        let packets = [1.0, 2.0, 4.0, 8.0, 16.0];
        assert_eq!(limits(&sizes, [&packets, &[3.0, 3.0, 3.0, 5.0, 9.5], &direct]), [2, 8]);
        assert_eq!(limits(&sizes, [&packets, &direct, &direct]), [8, 16], "lines are no worse");
        assert_eq!(limits(&sizes, [&packets, &[9.5; 5], &direct]), [8, 0], "never lines");
        assert_eq!(limits(&sizes, [&[10.0; 5], &[1.0; 5], &direct]), [0, 16], "never packets");
        assert_eq!(limits(&sizes, [&[1.0; 5], &[2.0; 5], &direct]), [16, 0], "packets to the end");
    }

    #[test]
    fn copy_engines_are_taken_from_where_they_stay_faster() {
        let sizes = [1, 2, 4, 8, 16];
        let direct = [1.0, 2.0, 4.0, 8.0, 16.0];
        assert_eq!(beginning(&sizes, &[5.0, 5.0, 5.0, 7.0, 13.0], &direct), 8);
        assert_eq!(beginning(&sizes, &[0.5, 1.5, 4.5, 7.0, 13.0], &direct), 1, "one row out of line");
        assert_eq!(beginning(&sizes, &[5.0, 5.0, 5.0, 7.99, 15.99], &direct), 0, "within the noise");
        assert_eq!(beginning(&sizes, &[0.5, 0.5, 0.5, 0.5, 99.0], &direct), 0, "longer ones lose");
        assert_eq!(beginning(&sizes, &[f64::INFINITY; 5], &direct), 0, "no such way");
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
