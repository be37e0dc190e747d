//! Reads, in both directions: what the peer asks for, and the answers to this rank.

use super::*;

const LEN: usize = 64;

/// Memory of this rank that the peer may use as `rights` say.
fn granted(inbox: &Inbox, rights: Rights) -> (Arc<HostBuffer>, Arc<Regions>, crate::memory::Grant) {
    let buffer = Arc::new(HostBuffer::new(inbox.staging.stream().context(), LEN).unwrap());
    let memory = register_host(&buffer, 0, LEN, Transport::Ethernet.into()).unwrap();
    let regions = Arc::new(Regions::default());
    let grant = regions.grant(1, memory.place().clone(), LEN, rights);
    (buffer, regions, grant)
}

fn go_on(inbox: &mut Inbox, word: &PinnedBuffer, turn: &mut Turn) {
    word.memory().word64(0).unwrap().store(1, Ordering::Release);
    inbox.staging.stream().synchronize(Deadline::after(Duration::from_secs(60))).unwrap();
    inbox.land(turn).unwrap();
}

/// Whoever waits for the acknowledgement looks at the bytes next.
#[test]
fn an_acknowledgement_waits_for_answers_that_are_on_their_way_to_a_device() {
    let (mut inbox, word) = behind_a_stuck_device();
    let (regions, mut turn) = (Regions::default(), Turn { copies: COPIES, ..Turn::default() });
    let to = GpuBuffer::new(inbox.staging.stream().context(), LEN).unwrap();
    inbox.reads.ask(Place::Device(Arc::new(to).slice(..).unwrap()), LEN);
    inbox.begin(Frame::Data { len: LEN as u32 }, &regions, &mut turn).unwrap();
    inbox.buffer[..LEN].fill(7);
    (inbox.start, inbox.end) = (0, LEN);
    inbox.parse(&regions, &mut turn).unwrap();
    inbox.begin(Frame::Ack { count: 3 }, &regions, &mut turn).unwrap();
    let (early, waiting) = (turn.acknowledged, inbox.reads.waiting());
    go_on(&mut inbox, &word, &mut turn);
    // Asserted last: nobody waits for a device that stays stuck.
    assert_eq!((early, waiting), (None, 1), "the bytes are not there yet");
    assert_eq!((turn.acknowledged, inbox.reads.waiting(), inbox.landed()), (Some(3), 0, 1));
}

/// It says only that what this rank sent has landed there.
#[test]
fn an_acknowledgement_waits_for_nothing_else() {
    let (mut inbox, word) = behind_a_stuck_device();
    let (regions, mut turn) = (Regions::default(), Turn { copies: COPIES, ..Turn::default() });
    // A read that has ended.
    let to = Arc::new(HostBuffer::new(inbox.staging.stream().context(), LEN).unwrap());
    let memory = register_host(&to, 0, LEN, Transport::Ethernet.into()).unwrap();
    inbox.reads.ask(memory.place().clone(), LEN);
    inbox.begin(Frame::Data { len: LEN as u32 }, &regions, &mut turn).unwrap();
    inbox.buffer[..LEN].fill(7);
    (inbox.start, inbox.end) = (0, LEN);
    inbox.parse(&regions, &mut turn).unwrap();
    go_on(&mut inbox, &word, &mut turn);
    let landed = inbox.reads.waiting() == 0;
    // A copy that does not end.
    word.memory().word64(0).unwrap().store(0, Ordering::Release);
    inbox.staging.stream().wait_value64(&word.slice(..).unwrap(), 1).unwrap();
    let copied = inbox.staging.event().unwrap();
    inbox.arrived(Some(copied), false, Effect::None);
    inbox.begin(Frame::Ack { count: 3 }, &regions, &mut turn).unwrap();
    let early = turn.acknowledged;
    go_on(&mut inbox, &word, &mut turn);
    // Asserted last: nobody waits for a device that stays stuck.
    assert_eq!((landed, early), (true, Some(3)));
}

/// It reads what it wrote before.
#[test]
fn a_read_of_the_peer_waits_for_what_was_sent_before_it() {
    let (mut inbox, word) = behind_a_stuck_device();
    let (_buffer, regions, grant) = granted(&inbox, Rights::REMOTE_READ);
    let mut turn = Turn::default();
    inbox.begin(Frame::Read { region: grant.number(), offset: 8, len: 16 }, &regions, &mut turn).unwrap();
    let early = turn.asked.len();
    go_on(&mut inbox, &word, &mut turn);
    assert_eq!((early, turn.asked.len(), turn.asked[0].1), (0, 1, 16));
}

#[test]
fn a_peer_that_reads_what_it_may_not_or_answers_what_nobody_asked_is_refused() {
    let (mut inbox, word) = behind_a_stuck_device();
    let (_buffer, regions, grant) = granted(&inbox, Rights::REMOTE_WRITE);
    let region = grant.number();
    let refused = [
        Frame::Read { region, offset: 0, len: 8 },
        Frame::Read { region: region + 1, offset: 0, len: 8 },
        Frame::Data { len: 8 },
    ];
    let errors = refused.map(|frame| inbox.begin(frame, &regions, &mut Turn::default()).unwrap_err());
    let (_more, readable, grant) = granted(&inbox, Rights::REMOTE_READ);
    let beyond = Frame::Read { region: grant.number(), offset: 60, len: 8 };
    let beyond = inbox.begin(beyond, &readable, &mut Turn::default()).unwrap_err();
    go_on(&mut inbox, &word, &mut Turn::default());
    for error in errors.iter().chain([&beyond]) {
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(1)), "{error}");
    }
}
