//! Right programs with their planted races, and how to tell these from others.

use crate::device::kernel;

/// A right program, and changes of its text that each plant one race.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) body: &'static str,
    /// How operands begin that are not safe without the order that the program makes.
    pub(crate) guarded: &'static [&'static str],
    pub(crate) devices: usize,
    pub(crate) grid: u32,
    pub(crate) block: u32,
    pub(crate) plants: &'static [(&'static str, &'static str)],
}

/// The data of most programs.
pub(crate) const DATA: &[&str] = &["[%data"];
/// Addresses that the programs compute.
pub(crate) const COMPUTED: &[&str] = &["[%d1]", "[%d2]", "[%at]"];

impl Program {
    /// Whether a race in `changed`, a change of the body, is the one that this planted: one of its lines is new, or both access what
    /// is guarded.
    pub(crate) fn has_planted(&self, race: &str, changed: &str) -> bool {
        let (old, new) = (kernel(self.body), kernel(changed));
        let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
        let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
        let behind =
            old[same..].iter().rev().zip(new[same..].iter().rev()).take_while(|(old, new)| old == new);
        let planted = same..new.len() - behind.count();
        let numbers = race
            .split("k, line ")
            .skip(1)
            .map(|rest| rest.split(',').next().unwrap().parse::<usize>().unwrap() - 1);
        let numbers: Vec<usize> = numbers.collect();
        let guarded = |number: &usize| self.guarded.iter().any(|operand| new[*number].contains(operand));
        assert_eq!(numbers.len(), 2, "{race}");
        numbers.iter().any(|number| planted.contains(number)) || numbers.iter().all(guarded)
    }
}
