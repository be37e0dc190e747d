//! Slurm's step variables and its two compressed lists: hosts `n[001-004,7]` and tasks per host `4(x2),1`.
//!
//! The lists come from the environment and may say anything; they are kept compressed, so that `n[1-999999999]`
//! costs as little as it looks. Formats: the manual pages of srun (OUTPUT ENVIRONMENT VARIABLES) and scontrol.
#![forbid(unsafe_code)]

use super::launcher::{Launch, Launcher};
use super::vars::{Vars, contradiction, invalid};
use crate::error::Result;

/// Steps from here on are not `srun`'s: the interactive shell, the batch script, the external step.
const SPECIAL_STEPS: u32 = 0xffff_fff0;
/// Slurm itself does not make longer ones.
const MAX_TEXT: usize = 64 << 10;
const MAX_DIGITS: usize = 18;

/// The rank that a step of `srun` gives; a batch script or an interactive shell has the same variables except those
/// of a step, and is no rank.
pub(super) fn step(vars: &Vars<'_>) -> Result<Option<Launch>> {
    let step = vars.text("SLURM_STEP_ID").or(vars.text("SLURM_STEPID"));
    let Some(step) = step.filter(|step| step.parse::<u32>().is_ok_and(|id| id < SPECIAL_STEPS)) else {
        return Ok(None);
    };
    if vars.text("SLURM_PROCID").is_none() {
        return Ok(None);
    }
    let mut launch = vars.family(Launcher::Slurm, "SLURM_LOCALID", "", "SLURM_NODEID")?;
    launch.job = vars.text("SLURM_JOB_ID").or(vars.text("SLURM_JOBID")).map(|job| format!("{job}.{step}"));
    Ok(Some(launch))
}

/// Completes `launch` with the number of tasks on this host, and checks that all variables of the step agree.
pub(super) fn complete(mut launch: Launch, vars: &Vars<'_>) -> Result<Launch> {
    let size = launch.size.unwrap_or(0);
    let mut hosts = vars.number("SLURM_STEP_NUM_NODES")?;
    const TASKS: &str = "SLURM_STEP_TASKS_PER_NODE";
    if let Some(text) = vars.text(TASKS) {
        let tasks = TaskCounts::parse(text)
            .ok_or_else(|| invalid(TASKS, text, "it must be counts such as 4(x2),1"))?;
        let node = launch.node.unwrap_or(0);
        launch.local_size = tasks.at(node);
        let here = launch.local_rank.unwrap_or(0);
        if tasks.total() != u64::from(size) || launch.local_size.is_none_or(|on_host| here >= on_host) {
            let wanted = format!(
                "it does not fit SLURM_STEP_NUM_TASKS={size}, SLURM_NODEID={node} and SLURM_LOCALID={here}"
            );
            return Err(invalid(TASKS, text, &wanted));
        }
        hosts = hosts.or(u32::try_from(tasks.hosts()).ok());
    }
    const HOSTS: &str = "SLURM_STEP_NODELIST";
    if let Some(text) = vars.text(HOSTS) {
        let list = NodeList::parse(text)
            .ok_or_else(|| invalid(HOSTS, text, "it must be host names such as n[001-004,7]"))?;
        if let Some(hosts) = hosts.filter(|hosts| u64::from(*hosts) != list.len()) {
            let wanted = format!("it has {} hosts, but the step has {hosts}", list.len());
            return Err(invalid(HOSTS, text, &wanted));
        }
    }
    if let (Some(hosts), Some(node)) = (hosts, launch.node)
        && node >= hosts
    {
        return Err(contradiction(&[("SLURM_NODEID", node), ("SLURM_STEP_NUM_NODES", hosts)]));
    }
    launch.services.extend(vars.pmix_service(launch.rank)?);
    launch.services.extend(vars.pmi_service(launch.rank)?);
    Ok(launch)
}

/// A compressed list of host names, kept compressed: `login,r[1-2]n[001-004,7]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeList(Vec<Vec<Part>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Numbers(Vec<Range>),
}

/// Numbers `first ..= last`, written with at least `width` digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Range {
    fn len(self) -> u64 {
        // No overflow: of at most MAX_DIGITS digits.
        self.last - self.first + 1
    }
}

impl NodeList {
    /// Takes the list apart; `None` if it is not one, or has more than 2^63 names.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_TEXT {
            return None;
        }
        let list = Self(split_outside_brackets(text)?.into_iter().map(host_pattern).collect::<Option<_>>()?);
        let total = list.0.iter().try_fold(0u64, |sum, pattern| sum.checked_add(pattern_len(pattern)?))?;
        (total <= 1 << 63).then_some(list)
    }

    /// How many names it has.
    pub(crate) fn len(&self) -> u64 {
        self.0.iter().filter_map(|pattern| pattern_len(pattern)).sum()
    }

    /// The name at `index`, in the list's order.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn name(&self, mut index: u64) -> Option<String> {
        for pattern in &self.0 {
            let len = pattern_len(pattern)?;
            if index < len {
                return Some(expand(pattern, index));
            }
            index -= len;
        }
        None
    }
}

/// How many tasks each host runs, kept compressed: `4(x2),1` is 4, 4, 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskCounts(Vec<(u32, u32)>);

impl TaskCounts {
    /// Takes the counts apart; `None` if they are none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_TEXT {
            return None;
        }
        let one = |item: &str| {
            let (count, times) = match item.split_once("(x") {
                Some((count, rest)) => (count, rest.strip_suffix(')')?),
                None => (item, "1"),
            };
            let number = |digits: &str| {
                digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u32>().ok()).flatten()
            };
            Some((number(count)?, number(times).filter(|times| *times > 0)?))
        };
        text.split(',').map(one).collect::<Option<_>>().map(Self)
    }

    /// How many hosts there are.
    pub(crate) fn hosts(&self) -> u64 {
        self.0.iter().map(|(_, times)| u64::from(*times)).sum()
    }

    /// How many tasks there are.
    pub(crate) fn total(&self) -> u64 {
        // At most 2^15 items of 2^64 do not fit.
        self.0
            .iter()
            .fold(0u64, |sum, (count, times)| sum.saturating_add(u64::from(*count) * u64::from(*times)))
    }

    /// How many tasks host number `host` has.
    pub(crate) fn at(&self, host: u32) -> Option<u32> {
        let mut left = u64::from(host);
        for (count, times) in &self.0 {
            if left < u64::from(*times) {
                return Some(*count);
            }
            left -= u64::from(*times);
        }
        None
    }
}

fn split_outside_brackets(text: &str) -> Option<Vec<&str>> {
    let (mut items, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' if !inside => inside = true,
            b']' if inside => inside = false,
            b'[' | b']' => return None,
            b',' if !inside => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&text[start..]);
    (!inside && items.iter().all(|item| !item.is_empty())).then_some(items)
}

fn host_pattern(item: &str) -> Option<Vec<Part>> {
    let (mut parts, mut rest) = (Vec::new(), item);
    while let Some((text, numbers)) = rest.split_once('[') {
        let (numbers, after) = numbers.split_once(']')?;
        parts.extend(literal(text)?);
        parts.push(Part::Numbers(numbers.split(',').map(range).collect::<Option<_>>()?));
        rest = after;
    }
    parts.extend(literal(rest)?);
    Some(parts)
}

/// Some(None) for no text; `None` for text that no host name has.
fn literal(text: &str) -> Option<Option<Part>> {
    let fine = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
    fine.then(|| (!text.is_empty()).then(|| Part::Text(text.to_owned())))
}

fn range(text: &str) -> Option<Range> {
    let number = |digits: &str| {
        let fine = (1..=MAX_DIGITS).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        fine.then(|| digits.parse::<u64>().ok()).flatten()
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = Range { first: number(first)?, last: number(last)?, width: first.len() };
    (range.first <= range.last).then_some(range)
}

fn pattern_len(pattern: &[Part]) -> Option<u64> {
    pattern.iter().try_fold(1u64, |product, part| match part {
        Part::Text(_) => Some(product),
        Part::Numbers(ranges) => {
            let sum = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(range.len()))?;
            product.checked_mul(sum)
        }
    })
}

/// The name at `index`: the last bracket counts fastest.
#[cfg(any(test, feature = "fuzzing"))]
fn expand(pattern: &[Part], mut index: u64) -> String {
    let mut parts = Vec::with_capacity(pattern.len());
    for part in pattern.iter().rev() {
        match part {
            Part::Text(text) => parts.push(text.clone()),
            Part::Numbers(ranges) => {
                let len: u64 = ranges.iter().map(|range| range.len()).sum();
                let mut at = index % len;
                index /= len;
                for range in ranges {
                    if at < range.len() {
                        parts.push(format!("{:0width$}", range.first + at, width = range.width));
                        break;
                    }
                    at -= range.len();
                }
            }
        }
    }
    parts.reverse();
    parts.concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        let list = NodeList::parse(text).unwrap();
        (0..list.len()).map(|index| list.name(index).unwrap()).collect()
    }

    #[test]
    fn lists_expand_in_order() {
        assert_eq!(names("n[001-003,7]"), ["n001", "n002", "n003", "n7"]);
        assert_eq!(
            names("login,r[1-2]n[08-10]-ib"),
            ["login", "r1n08-ib", "r1n09-ib", "r1n10-ib", "r2n08-ib", "r2n09-ib", "r2n10-ib"]
        );
        assert_eq!(names("a,b.c"), ["a", "b.c"]);
        let counts = TaskCounts::parse("4(x2),1").unwrap();
        assert_eq!((0..4).map(|host| counts.at(host)).collect::<Vec<_>>(), [Some(4), Some(4), Some(1), None]);
        assert_eq!((counts.hosts(), counts.total()), (3, 9));
    }

    #[test]
    fn a_huge_range_costs_nothing() {
        let list = NodeList::parse("n[1-999999999999999999]").unwrap();
        assert_eq!((list.len(), list.name(41).as_deref()), (999_999_999_999_999_999, Some("n42")));
        assert_eq!(NodeList::parse("n[0-999999999999999999][0-999999999999999999]"), None);
        let counts = TaskCounts::parse("4294967295(x4294967295),4294967295(x4294967295)").unwrap();
        assert_eq!((counts.at(u32::MAX), counts.total()), (Some(u32::MAX), u64::MAX));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let bad =
            ["", ",", "n[", "n]", "n[]", "n[1-]", "n[-1]", "n[2-1]", "n[1", "n[[1]]", "n[a]", "n m", "n,,m"];
        for text in bad {
            assert_eq!(NodeList::parse(text), None, "{text:?}");
        }
        for text in ["", "4(x", "4(x)", "4(x0)", "(x2)", "4x2", "-1", "+1", "4(x2)1", "4,", "4294967296"] {
            assert_eq!(TaskCounts::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[n0-9,x()\\[\\]-]{0,60}|.{0,60}") {
            if let Some(list) = NodeList::parse(&text) {
                prop_assert!(list.len() > 0 && list.name(list.len() - 1).is_some());
                prop_assert!(list.name(list.len()).is_none());
            }
            if let Some(counts) = TaskCounts::parse(&text) {
                prop_assert!(counts.hosts() > 0 && counts.at(0).is_some());
            }
        }

        #[test]
        fn a_list_names_what_was_compressed(first in 0u64..2000, count in 1u64..50, width in 1usize..6) {
            let text = format!("h[{first:0width$}-{}]", first + count - 1);
            let wanted: Vec<String> = (first..first + count).map(|n| format!("h{n:0width$}")).collect();
            prop_assert_eq!(names(&text), wanted);
        }
    }
}
