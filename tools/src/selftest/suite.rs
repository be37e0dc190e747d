//! Runs checks one after the other, in the same order on all ranks.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use aqueduct::ErrorKind;
use aqueduct::gpu::GpuBuffer;

use super::check::{Check, Manner, Ran};
use super::group::{Group, rounds};
use super::interrupted::{Report, first_lost, missing, reporter};
use super::lockstep::{Lockstep, Verdict};
use super::summary::{Row, print_row};
use crate::job::Rank;

/// The checks of one rank.
pub(super) struct Suite<'a> {
    rank: &'a Rank,
    manner: Manner,
    lockstep: Lockstep<'a>,
    /// The group that checks use, or why there is none. It is replaced after a failed check.
    group: Result<Group, String>,
    report: &'a Report,
    /// The rank that was lost. Without it nothing more can be checked.
    lost: Option<u32>,
}

impl<'a> Suite<'a> {
    /// Makes the first group, which is the first check.
    pub(super) fn new(rank: &'a Rank, manner: Manner, report: &'a Report) -> Result<Self> {
        let group = Err("there is no group".to_owned());
        let mut suite = Self { rank, manner, lockstep: Lockstep::new(rank), group, report, lost: None };
        let row = suite.assemble()?;
        suite.keep(row)?;
        Ok(suite)
    }

    /// Runs one check and prints its row at rank 0.
    ///
    /// The check during which a rank is lost has failed; later ones do not run.
    pub(super) fn check(&mut self, name: &str, run: impl FnOnce(&Check<'_>) -> Result<Ran>) -> Result<()> {
        let started = Instant::now();
        if let Some(lost) = self.lost {
            let verdict = Verdict::NotRun(format!("rank {lost} was lost"));
            return self.keep(Row { name: name.to_owned(), verdict, time: Duration::ZERO });
        }
        self.report.state().running = Some((name.to_owned(), started));
        let mine = match &self.group {
            Err(why) => Verdict::NotRun(why.clone()),
            Ok(group) => {
                let check = Check::new(self.rank, group, self.manner, &self.lockstep);
                let ended = run(&check);
                if let Err(error) = &ended {
                    // Other ranks' kernels may wait for something that this rank did not do; the abort makes them
                    // leave.
                    group.comm.abort(format!("selftest, {name}: {error:#}"));
                }
                check.verdict(ended)
            }
        };
        let row = self.close(name, started, mine)?;
        let failed = row.has_failed();
        self.keep(row)?;
        if failed && self.lost.is_none() {
            // The next check gets a fresh group. Making one is listed as a check only the first time, or if it fails.
            let row = self.assemble()?;
            if row.has_failed() {
                self.keep(row)?;
            }
        }
        Ok(())
    }

    /// The rank that was lost, if any.
    pub(super) fn lost(&self) -> Option<u32> {
        self.lost
    }

    /// Makes the group, or replaces it, on all ranks.
    fn assemble(&mut self) -> Result<Row> {
        let started = Instant::now();
        self.report.state().running = Some(("set-up".to_owned(), started));
        self.group = Err("the last group could not be replaced".to_owned());
        let group = self.replacement();
        let mine = match &group {
            Ok(group) => Verdict::Passed(format!("communicator, partners: {}", group.partners.len())),
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
        // Making a group needs every rank, so first see whether each device still works.
        let answers = GpuBuffer::new(&self.rank.context, 8);
        let others: Vec<u32> = (0..size).filter(|&rank| rank != me).collect();
        let all = self.lockstep.agree(&others, answers.is_ok())?;
        answers?;
        if !all {
            bail!("another rank's device does not work any more");
        }
        Group::new(self.rank, &rounds(size, self.manner.quick))
    }

    /// Ends a check and combines the verdicts of all ranks.
    fn close(&mut self, name: &str, started: Instant, mine: Verdict) -> Result<Row> {
        let verdict = match self.lockstep.verdicts(mine) {
            Ok(verdicts) => together(&verdicts),
            Err(error) => {
                let Some(lost) = first_lost(self.rank).or(lost_peer(&error)) else { return Err(error) };
                self.lost = Some(lost);
                self.report.wait_for_last_words(lost);
                Verdict::Failed(missing(lost))
            }
        };
        Ok(Row { name: name.to_owned(), verdict, time: started.elapsed() })
    }

    /// Prints and keeps a row.
    fn keep(&mut self, row: Row) -> Result<()> {
        let mut state = self.report.state();
        state.running = None;
        if reporter(self.lost) == self.rank.bootstrap.rank() {
            print_row(&row)?;
        }
        state.rows.push(row);
        Ok(())
    }
}

/// The rank that `error` says was lost.
fn lost_peer(error: &anyhow::Error) -> Option<u32> {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<aqueduct::Error>());
    causes.filter(|cause| cause.kind() == ErrorKind::PeerLost).find_map(aqueduct::Error::peer)
}

/// Combines the ranks' verdicts: failed if one failed, passed only if all passed.
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
        // All passed. The texts may differ in the partners that the ranks had, so take the first.
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
    fn the_worst_verdict_of_all_ranks_counts() {
        let passed = Verdict::Passed("all".into());
        let not_run = Verdict::NotRun("no way".into());
        let failed = Verdict::Failed("broken".into());
        assert_eq!(together(&[passed.clone(), passed.clone()]), passed);
        assert_eq!(
            together(&[passed.clone(), not_run.clone()]),
            Verdict::NotRun("rank 1: no way".into()),
            "a check that one rank could not run has not passed"
        );
        assert_eq!(together(&[not_run.clone(), not_run.clone()]), not_run);
        assert_eq!(
            together(&[not_run, failed.clone(), passed, failed]),
            Verdict::Failed("rank 1: broken\nrank 3: broken".into())
        );
    }
}
