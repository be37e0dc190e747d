//! The table of exposed memory.

use super::pauses::RETRY;
use super::*;
use crate::message::lent::Lent;
use crate::message::mappings::{Mapping, Place};

impl Lending {
    fn copy(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.copy(),
            Self::Device(_) => panic!("memory of a device"),
        }
    }
}

fn refused(table: &Exposures, token: Token, offset: u64, length: u64) -> Refusal {
    table.lend(&token, offset, length).unwrap_err()
}

#[test]
fn a_token_gives_any_part_of_its_memory_until_it_is_revoked() {
    let table = Arc::new(Exposures::new(7));
    let exposed = table.expose(vec![1, 2, 3, 4].into()).unwrap();
    let token = Token::from_bytes(&exposed.token().to_bytes()).unwrap();
    let read = |offset, length| table.lend(&token, offset, length).map(|lent| lent.copy());
    assert_eq!((read(0, 4), read(1, 2)), (Ok(vec![1, 2, 3, 4]), Ok(vec![2, 3])));
    assert_eq!((read(4, 0), read(0, 0)), (Ok(vec![]), Ok(vec![])));
    for (offset, length) in [(0, 5), (4, 1), (5, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        assert_eq!(refused(&table, token, offset, length), Refusal::Range, "{offset}+{length}");
    }
    let held = table.lend(&token, 0, 4).unwrap();
    exposed.revoke();
    assert_eq!(refused(&table, token, 0, 1), Refusal::Revoked);
    assert_eq!(held.copy(), [1, 2, 3, 4], "a piece on its way outlives the revocation");
    let next = table.expose(vec![9].into()).unwrap();
    assert_eq!(next.token().slot, token.slot, "the slot is used again");
    assert_eq!(refused(&table, token, 0, 1), Refusal::Revoked);
}

#[test]
fn a_changed_token_is_refused() {
    let table = Arc::new(Exposures::new(7));
    let exposed = table.expose(vec![1; 64].into()).unwrap();
    let good = exposed.token().to_bytes();
    for at in 0..Token::BYTES {
        let mut bytes = good;
        bytes[at] ^= 0x10;
        let token = Token::from_bytes(&bytes).unwrap();
        // Bytes 16 to 24 tell the holder how long the memory is; the owner knows itself.
        let is_length = (16..24).contains(&at);
        let refusal = table.lend(&token, 0, 64).err();
        assert_eq!(refusal, (!is_length).then_some(Refusal::Forged), "byte {at}");
    }
}

#[test]
fn memory_is_freed_once_it_is_revoked_and_read() {
    let (table, bytes) = (Arc::new(Exposures::new(7)), Arc::new(vec![1; 64]));
    let exposed = table.expose(bytes.clone().into()).unwrap();
    let piece = table.lend(&exposed.token(), 0, 1).unwrap();
    exposed.revoke();
    assert_eq!(Arc::strong_count(&bytes), 2, "a piece is on its way");
    drop(piece);
    table.reap();
    assert_eq!(Arc::strong_count(&bytes), 1);
}

#[test]
fn keys_of_much_memory_are_given_to_those_who_read_much_of_it() {
    let table = Arc::new(Exposures::new(7));
    let large = table.expose(vec![0; 3 << 30].into()).unwrap();
    let small = table.expose(vec![0; 1 << 30].into()).unwrap();
    let mut tried = 0;
    let mut ask = |exposed: &Exposed, length| {
        let register = |_: &Lent| {
            tried += 1;
            Err(Error::usage("test", "refused"))
        };
        assert!(table.key(&exposed.token(), 0, length, register).unwrap().is_none());
        tried
    };
    assert_eq!((ask(&large, 4096), ask(&large, 1 << 20)), (0, 0), "not worth while");
    assert_eq!((ask(&small, 1), ask(&small, 1)), (1, 1), "once in a while");
    table.sent(&large.token(), (3 << 27) - 4096);
    assert_eq!((ask(&large, 4095), ask(&large, 4096)), (1, 2), "all that was read counts");
    std::thread::sleep(RETRY);
    assert_eq!((ask(&small, 1), ask(&large, 4096)), (3, 4), "a failure is not for ever");
    let other = table.expose(vec![0; 3 << 30].into()).unwrap();
    assert_eq!(ask(&other, 3 << 27), 5, "one long read");
}

/// Each message with long data is an exposure: those of an allocation that the device refuses try it once in a while, and not each of them.
#[test]
fn an_allocation_that_was_refused_is_tried_once_in_a_while_whatever_its_exposures() {
    let table = Arc::new(Exposures::new(7));
    let [first, second] = [(); 2].map(|()| SharedMemory::allocate(64).unwrap());
    let (mut stocks, mut keys) = (0, 0);
    let mut ask = |memory: &SharedMemory| {
        let exposed = table.expose(memory.into()).unwrap();
        let stock = table.stock(&exposed.token(), 0, 64, |_, _| {
            stocks += 1;
            Err(Error::usage("test", "refused"))
        });
        assert!(stock.unwrap().is_none());
        let register = |_: &Lent| {
            keys += 1;
            Err(Error::usage("test", "refused"))
        };
        assert!(table.key(&exposed.token(), 0, 64, register).unwrap().is_none());
        (stocks, keys)
    };
    assert_eq!([(); 3].map(|()| ask(&first)), [(1, 1); 3]);
    assert_eq!([(); 3].map(|()| ask(&second)), [(2, 2); 3], "another allocation");
    std::thread::sleep(RETRY);
    assert_eq!(
        (ask(&first), ask(&first), ask(&second)),
        ((3, 3), (3, 3), (4, 4)),
        "a failure is not for ever"
    );
}

/// The slot may belong to other memory then: whoever had asked for the first must get no key of it, nor change what is kept about the second.
#[test]
fn memory_that_is_revoked_while_it_is_registered_leaves_nothing_to_the_next_one_in_its_slot() {
    let table = Arc::new(Exposures::new(7));
    let mut next = Vec::new();
    let first = table.expose(vec![1; 64].into()).unwrap();
    let token = first.token();
    let key = table.key(&token, 0, 64, |_| {
        first.revoke();
        next.push(table.expose(vec![2; 64].into()).unwrap());
        Err(Error::usage("test", "refused"))
    });
    assert!(matches!(key, Err(Refusal::Revoked)), "{:?}", key.err());
    let second = next.pop().unwrap();
    let (token, mut tried) = (second.token(), 0);
    assert_eq!(token.slot, 0, "the slot is used again");
    let key = table.key(&token, 0, 64, |_| {
        tried += 1;
        Err(Error::usage("test", "refused"))
    });
    assert!(key.is_ok_and(|key| key.is_none()) && tried == 1, "nothing had been tried for it");
    let stock = table.stock(&token, 0, 64, |_, _| {
        second.revoke();
        next.push(table.expose(vec![3; 64].into()).unwrap());
        Ok(None)
    });
    assert!(matches!(stock, Err(Refusal::Revoked)), "{:?}", stock.err());
}

#[test]
fn there_are_only_so_many() {
    let table = Arc::new(Exposures::new(7));
    lock(&table.slots).all.resize_with(MAX_SLOTS - 1, Slot::default);
    let last = table.expose(vec![1].into()).unwrap();
    assert_eq!(table.expose(vec![1].into()).unwrap_err().kind(), crate::ErrorKind::Exhausted);
    drop(last);
    table.expose(vec![1].into()).unwrap();
}

/// Whoever has mapped the memory may not read on because a piece of it is still on its way to another peer.
#[test]
fn mappings_see_the_revocation_while_a_piece_is_lent() {
    let table = Arc::new(Exposures::new(7));
    let memory = SharedMemory::allocate(64).unwrap();
    let exposed = table.expose((&memory).into()).unwrap();
    let token = exposed.token();
    let piece = table.lend(&token, 0, 64).unwrap();
    let shown = table.map(&token, 0, 64).unwrap().unwrap();
    let place = Place { length: 64, word: shown.index, serial: shown.serial };
    let fd = shown.descriptor().unwrap().try_clone_to_owned().unwrap();
    drop(shown);
    let mapping = Mapping::open(fd, place).unwrap();
    assert!(!mapping.is_revoked());
    drop(exposed);
    assert!(mapping.is_revoked());
    drop(piece);
}
