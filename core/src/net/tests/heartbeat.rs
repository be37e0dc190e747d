//! Peers that are silent for too long, by the listener's clock.

use std::time::Instant;

use super::reactor::reactor;
use super::*;
use crate::net::heartbeat::{Monitor, MonitoredLink};

const PATIENCE: Duration = Duration::from_secs(3);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A link that was taken into use between the two times. Nothing serves it any more.
fn monitored() -> (MonitoredLink, [Instant; 2]) {
    let (reactor, _seen) = reactor();
    let (_server, client) = pair(&network());
    let link = reactor.add(client);
    drop(reactor);
    let before = Instant::now();
    (MonitoredLink::new(link), [before, Instant::now()])
}

#[test]
fn a_peer_is_silent_since_it_was_heard_last() {
    let (mut link, [before, after]) = monitored();
    let monitor = Monitor::new(Some(PATIENCE));
    assert_eq!(monitor.silence(&link, before + ms(2999)), None);
    assert!(monitor.silence(&link, after + PATIENCE).is_some_and(|why| why.contains("silent for 3.0 s")));
    assert_eq!(Monitor::new(None).silence(&link, after + 100 * PATIENCE), None, "nobody is blamed");
    link.hear(after + ms(10_000));
    assert_eq!(monitor.silence(&link, after + ms(12_999)), None);
    assert!(monitor.silence(&link, after + ms(13_000)).is_some());
    assert!(monitor.is_on() && !Monitor::new(None).is_on());
}

#[test]
fn a_sign_of_life_is_due_half_a_second_after_anything_was_said() {
    let (mut link, [before, after]) = monitored();
    assert!(!link.beat(before + ms(499)));
    assert!(link.beat(after + ms(500)));
    assert!(!link.beat(after + ms(999)), "one was given");
    assert!(link.beat(after + ms(1000)));
    link.say(after + ms(1400));
    assert!(!link.beat(after + ms(1899)) && link.beat(after + ms(1900)));
}

#[test]
fn after_a_gap_of_this_process_peers_have_some_time_to_be_heard() {
    let (mut link, [_, start]) = monitored();
    let mut monitor = Monitor::new(Some(PATIENCE));
    let gap = start + ms(10_000);
    monitor.look(gap, std::iter::once(&mut link));
    assert_eq!(monitor.silence(&link, gap + ms(1249)), None);
    assert!(monitor.silence(&link, gap + ms(1250)).is_some());
    // A later sign of life stays heard.
    link.hear(gap + ms(900));
    monitor.look(gap + ms(2000), std::iter::once(&mut link));
    assert_eq!(monitor.silence(&link, gap + ms(3899)), None);
}

#[test]
fn others_give_up_a_process_that_did_not_run_for_as_long_as_they_wait() {
    let mut monitor = Monitor::new(Some(PATIENCE));
    let start = Instant::now();
    monitor.look(start, std::iter::empty());
    assert_eq!(monitor.given_up(start + ms(2999)), None);
    assert_eq!(monitor.given_up(start + PATIENCE), Some(PATIENCE), "the gap that ends now");
    let end = start + PATIENCE;
    monitor.look(end, std::iter::empty());
    assert_eq!(monitor.given_up(end), Some(PATIENCE), "it has just ended");
    monitor.look(end + ms(900), std::iter::empty());
    assert_eq!(monitor.given_up(end + ms(1249)), Some(PATIENCE));
    assert_eq!(monitor.given_up(end + ms(1250)), None, "others would have said so by now");
    // A shorter one that others do not notice.
    monitor.look(end + ms(3000), std::iter::empty());
    assert_eq!(monitor.given_up(end + ms(3000)), None);
    assert_eq!(Monitor::new(None).given_up(start + ms(90_000)), None);
}
