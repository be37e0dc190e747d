//! Reads that the devices cannot make or do not allow: the owner sends the data, or says what is wrong.

use rdma_core_sys::ibv_access_flags as access;

use super::super::reader::PIECES;
use super::falling_back::config;
use super::reading::{Both, bytes};
use super::*;
use crate::message::lent::Lent;
use crate::message::one_sided::{OneSided, PIECE};
use crate::rdma::{RemoteRegion, Settings};
use crate::wire::{Reader, Writer};

/// The devices of a link.
pub(super) fn devices(wire: &VerbsWire) -> &dyn OneSided {
    wire.one_sided().unwrap()
}

/// Makes a pair by which `one` reads from `two`.
pub(super) fn connect(one: &dyn OneSided, two: &dyn OneSided) {
    let offered = one.prepare().unwrap().unwrap();
    assert_eq!(one.prepare().unwrap(), Some(offered), "the same until it is connected");
    assert!(!one.is_connected());
    one.connect(&two.admit(&offered).unwrap()).unwrap();
    assert!(one.is_connected() && one.prepare().unwrap().is_none());
}

/// Reads the first bytes of `region`; an error ends the pair.
pub(super) fn read(one: &dyn OneSided, region: &RemoteRegion) -> Result<Vec<u8>> {
    let mut left = Some(region.range(0, 8)?);
    one.begin(&mut || Ok(left.take().map(wanted)))?;
    let deadline = Deadline::after(SOON);
    loop {
        if let Some(piece) = one.take()? {
            let bytes = piece.brought.bytes().to_vec();
            let pair = piece.pair;
            drop(piece);
            one.release(pair);
            return Ok(bytes);
        }
        assert!(!deadline.expired());
    }
}

/// `region` with another address and key.
fn changed(region: &RemoteRegion, address: u64, key: u32) -> RemoteRegion {
    let mut w = Writer::new();
    w.u64(address).u64(region.len()).u32(key);
    RemoteRegion::decode(&mut Reader::new(w.as_bytes())).unwrap()
}

/// Memory is found only by the address and key that were given, and only as long as it is registered.
#[test]
fn guesses_find_nothing_and_end_only_the_pair() {
    let [one, two] = pair();
    let memory = Lent::of(body(100));
    let (reader, owner) = (devices(&one), devices(&two));
    let region = owner.register(&memory).unwrap();
    let right = region.remote();
    let real = memory.address().addr() as u64;
    assert_ne!(right.address(), real, "its address is made up");
    let other = owner.register(&memory).unwrap().remote();
    for guess in [
        changed(&right, real, right.key()),
        changed(&right, right.address() ^ 1 << 30, right.key()),
        changed(&right, right.address(), right.key() ^ 1),
        changed(&right, right.address(), right.key() ^ 0x100),
        other,
    ] {
        connect(reader, owner);
        assert_eq!(read(reader, &right).unwrap(), body(100)[..8]);
        assert!(read(reader, &guess).is_err());
        assert!(!reader.is_connected() && reader.is_able(), "a pair that has worked is made again");
    }
    connect(reader, owner);
    drop(region);
    assert!(read(reader, &right).is_err());
    let mut kept = Kept::default();
    assert!(push(&one, head(3, b"still"), b"still"));
    pull(&two, &mut kept, 1);
}

/// Pairs that never bring anything are not made again and again.
#[test]
fn devices_that_never_bring_anything_are_given_up() {
    let [one, two] = pair();
    let memory = Lent::of(body(100));
    let (reader, owner) = (devices(&one), devices(&two));
    let region = owner.register(&memory).unwrap();
    let wrong = changed(&region.remote(), 0, 0);
    for failures in [2, 2, 3] {
        for _ in 0..failures {
            assert!(reader.is_able());
            connect(reader, owner);
            assert!(read(reader, &wrong).is_err());
        }
        if failures < 3 {
            connect(reader, owner);
            read(reader, &region.remote()).unwrap();
            assert!(read(reader, &wrong).is_err());
        }
    }
    assert!(!reader.is_able());
}

/// The reader's end gives its peer no rights, the owner's end only that to read. The link itself gives none to memory.
#[test]
fn each_end_allows_no_more_than_it_must() {
    let [one, two] = pair();
    let reader = devices(&one).prepare().unwrap().unwrap();
    let owner = devices(&two).admit(&reader).unwrap();
    devices(&one).connect(&owner).unwrap();
    let rights = |number| standin::moves(number)[0].qp_access_flags;
    assert_eq!(rights(reader.qp_number) & !access::IBV_ACCESS_LOCAL_WRITE.0, 0);
    assert_eq!(rights(owner.qp_number), access::IBV_ACCESS_REMOTE_READ.0);
    assert_eq!(rights(number(&one)) & access::IBV_ACCESS_REMOTE_READ.0, 0);
}

/// A device is asked for no more than there is room for, and gives pieces in order.
#[test]
fn there_is_room_for_so_many_pieces() {
    let [one, two] = pair();
    let memory = Lent::of(body(100));
    let (reader, owner) = (devices(&one), devices(&two));
    let region = owner.register(&memory).unwrap().remote();
    let registered = owner.register(&memory).unwrap();
    assert_ne!(region.key(), registered.remote().key());
    connect(reader, owner);
    let (mut asked, mut come) = (0, 0);
    while come < 100 {
        let ask = &mut || {
            asked += 1;
            registered.remote().range(asked % 90, 1 + asked % 7).map(wanted).map(Some)
        };
        reader.begin(ask).unwrap();
        assert!(asked - come <= u64::from(PIECES));
        if let Some(piece) = reader.take().unwrap() {
            come += 1;
            let expected = &body(100)[(come % 90) as usize..][..(1 + come % 7) as usize];
            assert_eq!(piece.brought.bytes(), expected, "piece {come}");
            let pair = piece.pair;
            drop(piece);
            reader.release(pair);
        }
    }
}

/// What one side cannot do, or cannot do now, makes no read fail.
#[test]
fn without_a_device_that_can_the_owner_sends_the_data() {
    let memory = bytes(2 * PIECE);
    let without = || config("null0").with_ib(Settings { max_read_atomic: 0, ..Settings::default() });
    let table = rdma_core_sys::VerbsTable { ibv_reg_mr_iova2: None, ..standin::table() };
    let old = || config("null0").with_verbs_library(Verbs::from_table(table, "old"));
    for both in [
        Both::with(without(), config("null0")),
        Both::with(config("null0"), without()),
        Both::with(config("null0"), old()),
    ] {
        drop(both.exposed(&memory));
        assert_eq!(both.pair(), None);
    }
    // A reader needs none of that.
    let both = Both::with(old(), config("null0"));
    drop(both.exposed(&memory));
    assert!(both.pair().is_some());
}

/// Calls of the devices that fail: on this thread the reader prepares when a read is asked for, the owner when it is polled.
#[test]
fn what_the_devices_refuse_the_owner_sends() {
    let memory = bytes(2 * PIECE);
    for (function, calls) in
        [("ibv_reg_mr", 0), ("ibv_create_cq", 0), ("ibv_create_qp", 0), ("ibv_modify_qp", 0)]
    {
        let both = Both::new();
        both.settle();
        standin::refuse_after(function, calls, libc::ENOMEM);
        let first = both.owner.expose(memory.clone()).unwrap();
        both.read(&first.token(), 0, PIECE, 1);
        assert_eq!(standin::not_called(), 0, "{function}");
        assert!(both.until(1, true)[0].1.is_ok());
        assert_eq!(both.pair(), None, "{function}");
        both.exposed(&memory);
        assert!(both.pair().is_some(), "once is no reason to give it up: {function}");
    }
    // Of the owner's two registrations, one for a copy, one of the memory itself.
    for refusals in [
        &[("ibv_reg_mr", 0), ("ibv_reg_mr", 0)][..],
        &[("ibv_create_cq", 0)],
        &[("ibv_create_qp", 0)],
        &[("ibv_modify_qp", 0)],
        &[("ibv_modify_qp", 1)],
        &[("ibv_modify_qp", 2)],
        &[("ibv_modify_qp", 3)],
        &[("ibv_modify_qp", 4)],
    ] {
        let both = Both::new();
        both.settle();
        let first = both.owner.expose(memory.clone()).unwrap();
        both.read(&first.token(), 0, PIECE, 1);
        refusals.iter().for_each(|(function, calls)| standin::refuse_after(function, *calls, libc::ENOMEM));
        assert!(both.until(1, true)[0].1.is_ok());
        assert_eq!(standin::not_called(), 0, "{refusals:?}");
        assert_eq!(both.pair(), None, "{refusals:?}");
        both.exposed(&memory);
        assert!(both.pair().is_some(), "{refusals:?}");
    }
}
