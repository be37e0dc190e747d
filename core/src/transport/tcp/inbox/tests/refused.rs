//! Frames for memory that the peer was not given, through all that a frame goes through.

use super::*;

const LEN: usize = 64;
/// More than a write that is copied at once.
const LONG: usize = SMALL + 8;

#[test]
fn nothing_is_written_or_read_that_the_peer_was_not_given() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let regions = Arc::new(Regions::default());
    let give = |peer, len| {
        let buffer = Arc::new(HostBuffer::new(&context, len).unwrap());
        let memory = register_host(&buffer, 0, len, Transport::Ethernet.into()).unwrap();
        let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        let grant = regions.grant(peer, memory.place().clone(), len, rights);
        (buffer, grant)
    };
    let [mine, another, gone] = [give(1, LEN), give(2, 2 * LONG), give(1, 2 * LONG)];
    let long = give(1, LONG);
    let number = gone.1.number();
    drop(gone.1);

    let refused = |region, offset, len: usize| {
        let frames = [
            Frame::Write { region, offset, len: len as u32 },
            Frame::Update { region, offset, value: u64::MAX },
            Frame::Read { region, offset, len: len as u32 },
        ];
        for frame in frames {
            // Where a device is late, updates take another way.
            for late in [false, true] {
                let (mut inbox, word) = behind_a_stuck_device();
                let stream = inbox.staging.stream().clone();
                let end = || {
                    word.memory().word64(0).unwrap().store(1, Ordering::Release);
                    stream.synchronize(Deadline::after(Duration::from_secs(60))).unwrap();
                };
                if !late {
                    end();
                }
                let payload = if matches!(frame, Frame::Write { .. }) { len } else { 0 };
                let outcome = inbox.progress(&Flood::of(frame, payload), &regions, COPIES);
                // A busy device puts cleanup off until a later call, and there is none.
                end();
                let error = outcome.err().unwrap_or_else(|| panic!("{frame:?} was taken"));
                assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(1)), "{frame:?}: {error}");
            }
        }
    };
    for len in [8, LONG] {
        refused(another.1.number(), 0, len);
        refused(number, 0, len);
        refused(number + 100, 0, len);
    }
    // One byte past the end, and an end that no address has.
    refused(mine.1.number(), LEN as u64 - 7, 8);
    refused(long.1.number(), 1, LONG);
    refused(long.1.number(), u64::MAX - 7, 8);
    for (buffer, len) in [(&mine.0, LEN), (&another.0, 2 * LONG), (&gone.0, 2 * LONG), (&long.0, LONG)] {
        let mut bytes = vec![0xff; len];
        buffer.memory().read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "something was written");
    }
}

#[test]
fn an_update_of_what_is_no_word_is_the_peers_fault() {
    let driver = Driver::software(cuda_soft::driver_table()).unwrap();
    let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
    let regions = Arc::new(Regions::default());
    let host = Arc::new(HostBuffer::new(&context, LEN).unwrap());
    let host = register_host(&host, 0, LEN, Transport::Ethernet.into()).unwrap();
    let device = Place::Device(Arc::new(GpuBuffer::new(&context, LEN).unwrap()).slice(..).unwrap());
    for place in [host.place().clone(), device] {
        let grant = regions.grant(1, place, LEN, Rights::REMOTE_WRITE);
        let mut inbox = Inbox::new(Staging::alone(&context, 4), 1, reads());
        let update = Frame::Update { region: grant.number(), offset: 12, value: 7 };
        let error = inbox.progress(&Flood::of(update, 0), &regions, COPIES).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (ErrorKind::Remote, Some(1)), "{error}");
        assert!(error.message().contains("not aligned to 8"), "{error}");
    }
}
