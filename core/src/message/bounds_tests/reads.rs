//! Reads that end early.

use super::super::mappings::{Mapping, Place};
use super::*;

/// The owner would send all of the data for nobody.
#[test]
fn an_owner_is_told_of_reads_that_are_too_late() {
    let (wire, member) = (kept(10), member());
    let line = line(&wire);
    member.add_line(line.clone()).unwrap();
    let token = served(0, 0).1.token();
    let past = Deadline::after(Duration::ZERO);
    lock(&line.reads).add((token, 0), vec![0; 4], past, Box::new(|_| {}));
    assert!(line.kick().unwrap());
    assert!(member.expire().is_none(), "nothing else is under way");
    line.kick().unwrap();
    assert_eq!(wire.operations(), [Operation::Read, Operation::Cancel]);
    // The lists of a hub hold members, which hold their hub.
    member.inbox.drain();
    member.hub.clear();
    while member.hub.take_ready().is_some() {}
}

/// Nobody would ever look at it, and what is behind it would wait for good.
#[test]
fn a_read_that_is_too_late_when_its_memory_is_mapped_holds_up_no_other() {
    let memory = SharedMemory::allocate(8).unwrap();
    let exposed = Arc::new(Exposures::new(7)).expose(memory.clone().into()).unwrap();
    let shown = memory.show().unwrap();
    let place = Place { length: 8, word: shown.index, serial: shown.serial };
    let fd = shown.descriptor().unwrap().try_clone_to_owned().unwrap();
    let mut reads = Reads::new(true, false);
    let within = |reads: &mut Reads, deadline| {
        reads.add((exposed.token(), 0), vec![0; 8], Deadline::after(deadline), Box::new(|_| {}))
    };
    let late = within(&mut reads, Duration::ZERO);
    assert!(reads.ask((1, usize::MAX), None, |_, _, _: &[u8]| Ok(true)).unwrap());
    assert_eq!(reads.expire().len(), 1);
    within(&mut reads, Duration::from_secs(30));
    assert!(reads.mapped(late as u32, Some(Arc::new(Mapping::open(fd, place).unwrap()))).unwrap().is_none());
    assert!(reads.can_copy(), "the second one is of the same memory");
}

#[test]
fn reads_end_with_their_link_in_the_order_of_the_calls_although_numbers_start_over() {
    let (mut reads, token) = reads(0, 0);
    let first = u64::from(u32::MAX) - 1;
    reads.next = first;
    for _ in 0..4 {
        reads.add((token, 0), Vec::new(), Deadline::after(Duration::from_secs(30)), Box::new(|_| {}));
    }
    let why = crate::Error::peer_lost("test", 1, "on purpose");
    let ended = reads.fail(&why).settle(Deadline::after(Duration::ZERO));
    let numbers: Vec<u64> = ended.iter().map(|finished| finished.id).collect();
    assert_eq!(numbers, [0, 1, 2, 3].map(|nth| first + nth));
}

/// Handles keep the link for long, and what was landing may be large.
#[test]
fn a_link_that_progress_lets_go_keeps_no_place_of_data() {
    let (member, line) = (member(), line(&kept(10)));
    let token = served(0, 0).1.token();
    lock(&line.reads).add((token, 0), vec![0; 4], Deadline::after(Duration::from_secs(30)), Box::new(|_| {}));
    assert!(line.kick().unwrap());
    let head = Head::new(Operation::Data, 0, 0, 4);
    assert!(matches!(lock(&line.reads).landing(head, 0), Ok(Landing::Memory(_))));
    drop(Link::new(member, line.clone()).unwrap());
    assert!(lock(&line.reads).take_landing().is_none());
}
