//! Running checks one after the other, on all ranks alike.

use std::time::Instant;

use anyhow::{Result, bail};
use aqueduct::gpu::GpuBuffer;

use super::check::{Check, Ran};
use super::group::{Group, rounds};
use super::lockstep::{Lockstep, Verdict};
use super::summary::{Row, print_row};
use crate::job::Rank;

/// The checks of one rank.
pub(super) struct Suite<'a> {
    rank: &'a Rank,
    quick: bool,
    lockstep: Lockstep<'a>,
    /// What checks work with. One that fails is not used again.
    group: Result<Group, String>,
    rows: Vec<Row>,
}

impl<'a> Suite<'a> {
    /// Makes the first group, which is a check itself.
    pub(super) fn new(rank: &'a Rank, quick: bool) -> Result<Self> {
        let group = Err("there is no group".to_owned());
        let mut suite = Self { rank, quick, lockstep: Lockstep::new(rank), group, rows: Vec::new() };
        let row = suite.assemble()?;
        suite.keep(row)?;
        Ok(suite)
    }

    /// Runs one check and prints its row at rank 0.
    ///
    /// # Errors
    /// A rank is lost: nothing more can be checked.
    pub(super) fn check(&mut self, name: &str, run: impl FnOnce(&Check<'_>) -> Result<Ran>) -> Result<()> {
        let started = Instant::now();
        let mine = match &self.group {
            Err(why) => Verdict::NotRun(why.clone()),
            Ok(group) => {
                let check = Check::new(self.rank, group, self.quick, &self.lockstep);
                let ended = run(&check);
                if let Err(error) = &ended {
                    // So that kernels of others, which wait for what this rank has not done, leave.
                    group.comm.abort(format!("selftest, {name}: {error:#}"));
                }
                check.verdict(ended)
            }
        };
        let row = self.close(name, started, mine)?;
        let failed = row.has_failed();
        self.keep(row)?;
        if failed {
            // The next check begins with something that nobody has touched. That this works is a check only once.
            let row = self.assemble()?;
            if row.has_failed() {
                self.keep(row)?;
            }
        }
        Ok(())
    }

    /// All rows.
    pub(super) fn finish(self) -> Vec<Row> {
        self.rows
    }

    /// Makes the group, or replaces it, on all ranks.
    fn assemble(&mut self) -> Result<Row> {
        let started = Instant::now();
        self.group = Err("the last group could not be replaced".to_owned());
        let group = self.replacement();
        let mine = match &group {
            Ok(group) => Verdict::Passed(format!("communicator, partners: {}", group.pairs.len())),
            Err(error) => Verdict::Failed(format!("{error:#}")),
        };
        let row = self.close("set-up", started, mine)?;
        self.group = match group {
            Ok(group) if !row.has_failed() => Ok(group),
            _ => Err("the set-up has failed".to_owned()),
        };
        Ok(row)
    }

    fn replacement(&self) -> Result<Group> {
        let (me, size) = (self.rank.bootstrap.rank(), self.rank.bootstrap.size());
        // Making a group takes every rank: first see whether each device still answers.
        let answers = GpuBuffer::new(&self.rank.context, 8);
        let others: Vec<u32> = (0..size).filter(|&rank| rank != me).collect();
        let all = self.lockstep.agree(&others, answers.is_ok())?;
        answers?;
        if !all {
            bail!("another rank's device is out of order");
        }
        Group::new(self.rank, &rounds(size, self.quick))
    }

    /// Ends a check: what all ranks together say of it.
    fn close(&self, name: &str, started: Instant, mine: Verdict) -> Result<Row> {
        let verdict = together(&self.lockstep.verdicts(mine)?);
        Ok(Row { name: name.to_owned(), verdict, time: started.elapsed() })
    }

    /// Shows and keeps a row.
    fn keep(&mut self, row: Row) -> Result<()> {
        if self.rank.is_root() {
            print_row(&row)?;
        }
        self.rows.push(row);
        Ok(())
    }
}

/// One verdict of all ranks': failed if one has failed; passed only if all have.
fn together(verdicts: &[Verdict]) -> Verdict {
    let with = |text_of: fn(&Verdict) -> Option<&String>| -> Option<String> {
        let texts: Vec<(usize, &String)> =
            verdicts.iter().enumerate().filter_map(|(rank, v)| Some((rank, text_of(v)?))).collect();
        let (_, first) = texts.first()?;
        if texts.len() == verdicts.len() && texts.iter().all(|(_, text)| text == first) {
            return Some((*first).clone());
        }
        Some(texts.iter().map(|(rank, text)| format!("rank {rank}: {text}")).collect::<Vec<_>>().join("\n"))
    };
    let failed = with(|v| if let Verdict::Failed(text) = v { Some(text) } else { None });
    let not_run = with(|v| if let Verdict::NotRun(text) = v { Some(text) } else { None });
    match (failed, not_run) {
        (Some(text), _) => Verdict::Failed(text),
        (None, Some(text)) => Verdict::NotRun(text),
        // What every rank has run; they may differ in the partners they had.
        (None, None) => match verdicts.first() {
            Some(verdict) => verdict.clone(),
            None => Verdict::NotRun("there is no rank".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_decides() {
        let passed = Verdict::Passed("all".into());
        let not_run = Verdict::NotRun("no way".into());
        let failed = Verdict::Failed("broken".into());
        assert_eq!(together(&[passed.clone(), passed.clone()]), passed);
        assert_eq!(
            together(&[passed.clone(), not_run.clone()]),
            Verdict::NotRun("rank 1: no way".into()),
            "what one rank could not run has not passed"
        );
        assert_eq!(together(&[not_run.clone(), not_run.clone()]), not_run);
        assert_eq!(
            together(&[not_run, failed.clone(), passed, failed]),
            Verdict::Failed("rank 1: broken\nrank 3: broken".into())
        );
    }
}
