//! Checks that a job has as many ranks as an operation needs: by the launcher's variables, before a file is opened and before a
//! rank joins, so that every rank of a job that does not fit says so and exits at once.

use anyhow::Result;
use aqueduct::bootstrap::Launch;

use crate::job::Rank;
use crate::refusal::refuse;

/// The ranks that an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Any number.
    Any,
    /// Ranks 0 and 1, 2 and 3, ... work together.
    Pairs,
    /// Every rank works with every other.
    Several,
}

/// A need that the launcher's environment does not contradict.
#[derive(Debug)]
pub(super) struct Need {
    kind: Kind,
    /// The operation, and options without which it does not run.
    command: String,
}

impl Need {
    /// Any number of ranks.
    pub(super) fn none() -> Self {
        Self { kind: Kind::Any, command: String::new() }
    }

    /// An even number of ranks. `command` is the operation with the options that it needs, such as `write -t Ethernet`.
    pub(super) fn pairs(command: impl Into<String>) -> Result<Self> {
        Self { kind: Kind::Pairs, command: command.into() }.known()
    }

    /// Two ranks or more.
    pub(super) fn several(command: impl Into<String>) -> Result<Self> {
        Self { kind: Kind::Several, command: command.into() }.known()
    }

    /// Judges what the environment says: without a launcher there is one rank.
    fn known(self) -> Result<Self> {
        if let Some(size) = Launch::from_env()?.map_or(Some(1), |launch| launch.size) {
            self.judge(size)?;
        }
        Ok(self)
    }

    fn judge(&self, size: u32) -> Result<()> {
        let command = &self.command;
        let name = command.split(' ').next().unwrap_or_default();
        let (fits, needs) = match self.kind {
            Kind::Any => (true, ""),
            Kind::Pairs => {
                (size >= 2 && size.is_multiple_of(2), "works on pairs: run an even number of ranks")
            }
            Kind::Several => (size >= 2, "works between ranks: run two or more"),
        };
        if !fits {
            refuse!("perf {name} {needs}, such as `aqueduct run -n 2 -- aqueduct perf {command}`");
        }
        Ok(())
    }

    /// Joins the job.
    pub(super) fn join(&self) -> Result<Rank> {
        let rank = Rank::join()?;
        // Of some jobs only the launcher's server knows the size.
        self.judge(rank.bootstrap.size())?;
        Ok(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_ranks() {
        let fits = |kind, size| Need { kind, command: "put -t Way".to_owned() }.judge(size).is_ok();
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|size| fits(Kind::Pairs, size)),
            [false, false, true, false, true, false]
        );
        assert_eq!([1, 2, 3].map(|size| fits(Kind::Several, size)), [false, true, true]);
        assert!(fits(Kind::Any, 1));
        let error = Need { kind: Kind::Pairs, command: "put -t Way".to_owned() }.judge(3).unwrap_err();
        let said = "perf put works on pairs: run an even number of ranks, such as \
                    `aqueduct run -n 2 -- aqueduct perf put -t Way`";
        assert_eq!(error.to_string(), said);
    }
}
