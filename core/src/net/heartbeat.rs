//! Signs of life: how a rank that is stopped, or behind a dead network, is told from one that has nothing to say.
//!
//! A closed socket says that a process is gone. A stopped process closes nothing, nor does a host without power or a
//! network that swallows packets. So every rank says something on every link at least every [`BEAT`], by its service
//! thread, which no user code can hold up, and a rank from which a link has brought nothing for the peer timeout counts
//! as lost. Any frame is a sign of life.
//!
//! A process that did not run itself has heard nothing either, and must not blame others for it: the service thread
//! reads the clock every [`TICK`], and after a [`GAP`] between two reads it gives all peers some time to be heard before
//! it judges them. For the same reason it does not judge a peer whose frames wait because this process is out of file
//! descriptors.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::link::Link;

/// How often the service thread reads the clock.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// A rank whose monitor is on sends something on every link at least this often. With the monitor off it sends no signs of
/// life: debuggers need that, and so does the start of thousands of ranks on one machine.
const BEAT: Duration = Duration::from_millis(500);
/// The shortest time of silence after which a rank may count as lost: twice a beat, and the tick that sends it.
pub(crate) const SHORTEST: Duration = crate::env::SHORTEST_PEER_TIMEOUT;
/// If this much time passes between two clock reads, this process was stopped or starved, so a peer's silence is not the
/// peer's fault.
const GAP: Duration = Duration::from_secs(1);

/// A link, and when something last crossed it in each direction.
#[derive(Clone, Debug)]
pub(crate) struct MonitoredLink {
    pub(crate) link: Link,
    heard: Instant,
    said: Instant,
}

impl MonitoredLink {
    pub(crate) fn new(link: Link) -> Self {
        let now = Instant::now();
        Self { link, heard: now, said: now }
    }

    pub(crate) fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Gives the peer at least [`SHORTEST`] from now on to be heard, after a gap of this process.
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

/// Judges the silence of peers by the service thread's own clock.
#[derive(Debug)]
pub(crate) struct Monitor {
    patience: Option<Duration>,
    /// When the clock was last read.
    looked: Instant,
    /// The last gap, and when it ended.
    last: Option<(Instant, Duration)>,
}

impl Monitor {
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

    /// A gap that has just ended, or is about to end, and was so long that others will have given up this process.
    pub(crate) fn given_up(&self, now: Instant) -> Option<Duration> {
        let recent = self.last.filter(|(end, _)| now.saturating_duration_since(*end) < SHORTEST);
        let gap = self.gap(now).or(recent.map(|(_, gap)| gap));
        gap.filter(|gap| self.patience.is_some_and(|patience| *gap >= patience))
    }

    /// Reads the clock. If a gap ends here, gives the peers behind `links` more time.
    pub(crate) fn look<'a>(&mut self, now: Instant, links: impl Iterator<Item = &'a mut MonitoredLink>) {
        if let Some(gap) = self.gap(now) {
            log::debug!("this process did not run for {:.1} s", gap.as_secs_f64());
            links.for_each(|link| link.excuse(now, self.patience));
            self.last = Some((now, gap));
        }
        self.looked = now;
    }

    /// The reason to give up the peer of `monitored` if it has been silent for too long.
    pub(crate) fn silence(&self, monitored: &MonitoredLink, now: Instant) -> Option<String> {
        if monitored.link.is_starved() {
            return None;
        }
        let silence = now.saturating_duration_since(monitored.heard);
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
        let mut watch = Monitor::new(Some(Duration::from_secs(3)));
        let start = watch.looked;
        let at = |ms| start + Duration::from_millis(ms);
        for (now, gap) in [(300, None), (1200, None), (9200, Some(Duration::from_secs(8))), (9450, None)] {
            assert_eq!(watch.gap(at(now)), gap, "at {now} ms");
            watch.look(at(now), std::iter::empty());
        }
    }
}
