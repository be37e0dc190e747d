//! Signs of life: how a rank that is stopped, or behind a dead network, is told from one that has nothing to say.
//!
//! A closed socket says that a process is gone. A stopped process closes nothing, nor does a host without power or a
//! network that swallows packets. So every rank says something on every link at least every [`BEAT`], by its service
//! thread, which no user code can hold up, and a rank from which a link has brought nothing for the peer timeout counts
//! as lost. Any frame is a sign of life.
//!
//! A watcher that did not run itself has heard nothing either, and must not blame others for it: the service thread
//! looks at the clock every [`TICK`], and after a [`GAP`] in its own looks all others have some
//! time to be heard before they are judged.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::Link;

/// How often the service thread looks at the clock.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// How long a rank that watches may leave a link without a frame. One that does not watch says nothing of itself: with the
/// watch off on all ranks, as debuggers need it and the start of thousands of ranks on one machine, nobody pays for it.
const BEAT: Duration = Duration::from_millis(500);
/// The shortest time of silence after which a rank may count as lost: twice a beat, and the tick that sends it.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1250);
/// So long between two looks at the clock, and this process did not run: it was stopped, or the machine is overloaded.
const GAP: Duration = Duration::from_secs(1);

/// A link and when something last crossed it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) link: Link,
    heard: Instant,
    said: Instant,
}

impl Line {
    pub(crate) fn new(link: Link) -> Self {
        let now = Instant::now();
        Self { link, heard: now, said: now }
    }

    pub(crate) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Leaves it [`SHORTEST`] from now on to be heard, whatever was before: what `patience` is worth after a gap.
    pub(crate) fn excuse(&mut self, now: Instant, patience: Option<Duration>) {
        let spent = patience.unwrap_or_default().saturating_sub(SHORTEST);
        self.heard = now.checked_sub(spent).map_or(self.heard, |latest| latest.max(self.heard));
    }

    pub(crate) fn say(&mut self, now: Instant) {
        self.said = now;
    }

    /// Whether it is time for a sign of life; if so, it counts as given.
    pub(crate) fn beat(&mut self, now: Instant) -> bool {
        let due = now.saturating_duration_since(self.said) >= BEAT;
        if due {
            self.said = now;
        }
        due
    }
}

/// The service thread's own clock.
#[derive(Debug)]
pub(crate) struct Watch {
    patience: Option<Duration>,
    looked: Instant,
    /// The last gap, and when it ended.
    last: Option<(Instant, Duration)>,
}

impl Watch {
    /// `patience` is the peer timeout; `None` never blames anyone.
    pub(crate) fn new(patience: Option<Duration>) -> Self {
        Self { patience, looked: Instant::now(), last: None }
    }

    /// Whether signs of life are exchanged.
    pub(crate) fn is_on(&self) -> bool {
        self.patience.is_some()
    }

    /// For how long this process did not run, if that is long enough for others to notice.
    pub(crate) fn gap(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.looked)).filter(|gap| *gap >= GAP)
    }

    /// A gap that has just ended, or is about to, after which others will have given up this process.
    pub(crate) fn given_up(&self, now: Instant) -> Option<Duration> {
        let recent = self.last.filter(|(end, _)| now.saturating_duration_since(*end) < SHORTEST);
        let gap = self.gap(now).or(recent.map(|(_, gap)| gap));
        gap.filter(|gap| self.patience.is_some_and(|patience| *gap >= patience))
    }

    /// A look at the clock. A gap that it ends is no fault of those behind `lines`.
    pub(crate) fn look<'a>(&mut self, now: Instant, lines: impl Iterator<Item = &'a mut Line>) {
        if let Some(gap) = self.gap(now) {
            log::debug!("this process did not run for {:.1} s", gap.as_secs_f64());
            lines.for_each(|line| line.excuse(now, self.patience));
            self.last = Some((now, gap));
        }
        self.looked = now;
    }

    /// What to say of `line` if it has been silent for too long.
    pub(crate) fn silence(&self, line: &Line, now: Instant) -> Option<String> {
        if line.link.is_starved() {
            return None;
        }
        let silence = now.saturating_duration_since(line.heard);
        self.patience.filter(|patience| silence >= *patience).map(|_| {
            format!(
                "it has been silent for {:.1} s: its process is stopped, its host is down or overloaded, the network to it \
                 is broken, or AQUEDUCT_PEER_TIMEOUT is 0 there and not here",
                silence.as_secs_f64()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_the_watchers_own_and_is_seen_once() {
        let mut watch = Watch::new(Some(Duration::from_secs(3)));
        let start = watch.looked;
        let at = |ms| start + Duration::from_millis(ms);
        for (now, gap) in [(300, None), (1200, None), (9200, Some(Duration::from_secs(8))), (9450, None)] {
            assert_eq!(watch.gap(at(now)), gap, "at {now} ms");
            watch.look(at(now), std::iter::empty());
        }
    }
}
