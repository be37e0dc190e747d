//! Work requests, collected to be posted with one doorbell.

use std::fmt;
use std::ptr::null_mut;

use rdma_core_sys::{ibv_send_flags as flags, ibv_send_wr, ibv_sge, ibv_wr_opcode as op};

use super::region::{LocalRange, RemoteRange};
use crate::error::{Error, Result};

/// The most bytes that a request carries in itself. A queue pair may allow fewer: see
/// [`max_inline`](super::QueuePair::max_inline).
pub const INLINE_BYTES: usize = 256;

/// The longest message that InfiniBand has, in bytes; longer transfers are several requests.
const MAX_MESSAGE: u64 = 1 << 31;

const WRITE_INLINE: &str = "write_inline";

/// A list of work requests. [`post`](super::QueuePair::post) hands it to the NIC with one doorbell and leaves it empty,
/// with its memory kept for the next one.
#[derive(Default)]
pub struct Batch {
    /// Requests of this batch, and free slots of earlier ones.
    slots: Vec<Slot>,
    used: usize,
    /// The most inline data that any request had since the batch was empty.
    inline: u32,
}

/// A request with what it points to. The pointers are set when it is posted, since the vector may move before.
struct Slot {
    wr: ibv_send_wr,
    sge: ibv_sge,
    data: [u8; INLINE_BYTES],
}

// SAFETY: the pointers in the slots are set anew by `link` and followed only during the call that posts them.
unsafe impl Send for Batch {}
// SAFETY: a shared batch can only be looked at.
unsafe impl Sync for Batch {}

/// The request that was added last.
#[derive(Debug)]
pub struct Request<'a> {
    slot: &'a mut Slot,
}

impl Batch {
    /// Empty, with room for `capacity` requests.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { slots: Vec::with_capacity(capacity), used: 0, inline: 0 }
    }

    /// Requests in it.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Drops all requests.
    pub fn clear(&mut self) {
        self.used = 0;
        self.inline = 0;
    }

    /// Writes `from` to `to`. Zero bytes are fine.
    ///
    /// # Errors
    /// `InvalidUsage` for ranges of different length or longer than 2 GiB.
    #[inline]
    pub fn write(&mut self, from: LocalRange, to: RemoteRange) -> Result<Request<'_>> {
        self.rdma("write", op::IBV_WR_RDMA_WRITE, from, to)
    }

    /// Writes `data` to `to`; the NIC copies it when it is posted.
    ///
    /// # Errors
    /// `InvalidUsage` for different lengths or more than [`INLINE_BYTES`].
    #[inline]
    pub fn write_inline(&mut self, data: &[u8], to: RemoteRange) -> Result<Request<'_>> {
        same_length(WRITE_INLINE, data.len() as u64, to.length)?;
        self.write_inline_with(to, |bytes| {
            bytes.copy_from_slice(data);
            Ok(())
        })
    }

    /// [`write_inline`](Self::write_inline) of what `fill` puts into as many bytes as `to` has.
    ///
    /// # Errors
    /// `InvalidUsage` for more than [`INLINE_BYTES`]; the error of `fill`, and no request then.
    #[inline]
    pub fn write_inline_with(
        &mut self,
        to: RemoteRange,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Request<'_>> {
        let slot = self.push_inline(WRITE_INLINE, op::IBV_WR_RDMA_WRITE, to.length, fill)?;
        slot.aim(to);
        Ok(Request { slot })
    }

    /// Writes `from` to `to` and then consumes a receive of the peer, which completes there with `immediate`.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn write_with_immediate(
        &mut self,
        from: LocalRange,
        to: RemoteRange,
        immediate: u32,
    ) -> Result<Request<'_>> {
        let request = self.rdma("write", op::IBV_WR_RDMA_WRITE_WITH_IMM, from, to)?;
        request.slot.wr.__bindgen_anon_1.imm_data = immediate.to_be();
        Ok(request)
    }

    /// [`write_inline`](Self::write_inline), consuming a receive of the peer like
    /// [`write_with_immediate`](Self::write_with_immediate).
    ///
    /// # Errors
    /// As for [`write_inline`](Self::write_inline).
    pub fn write_inline_with_immediate(
        &mut self,
        data: &[u8],
        to: RemoteRange,
        immediate: u32,
    ) -> Result<Request<'_>> {
        let request = self.write_inline(data, to)?;
        request.slot.wr.opcode = op::IBV_WR_RDMA_WRITE_WITH_IMM;
        request.slot.wr.__bindgen_anon_1.imm_data = immediate.to_be();
        Ok(request)
    }

    /// Consumes a receive of the peer, which completes there with `immediate`, and writes nothing.
    pub fn immediate(&mut self, immediate: u32) -> Request<'_> {
        let slot = self.push(op::IBV_WR_RDMA_WRITE_WITH_IMM);
        slot.aim(RemoteRange { address: 0, length: 0, key: 0 });
        slot.wr.__bindgen_anon_1.imm_data = immediate.to_be();
        Request { slot }
    }

    /// Reads `from` into `into`, whose region needs local write.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    #[inline]
    pub fn read(&mut self, into: LocalRange, from: RemoteRange) -> Result<Request<'_>> {
        self.rdma("read", op::IBV_WR_RDMA_READ, into, from)
    }

    /// Adds `value` to the 8 bytes at `at`, which become the old value's in `old`.
    ///
    /// # Errors
    /// `InvalidUsage` unless both are 8 bytes at a multiple of 8.
    pub fn fetch_add(&mut self, old: LocalRange, at: RemoteRange, value: u64) -> Result<Request<'_>> {
        self.atomic("fetch_add", op::IBV_WR_ATOMIC_FETCH_AND_ADD, old, at, value, 0)
    }

    /// Sets the 8 bytes at `at` to `new` if they are `expected`; what they were is put into `old`.
    ///
    /// # Errors
    /// As for [`fetch_add`](Self::fetch_add).
    pub fn compare_swap(
        &mut self,
        old: LocalRange,
        at: RemoteRange,
        expected: u64,
        new: u64,
    ) -> Result<Request<'_>> {
        self.atomic("compare_swap", op::IBV_WR_ATOMIC_CMP_AND_SWP, old, at, expected, new)
    }

    /// Sends `from` as a message, into the memory of a receive that the peer has posted.
    ///
    /// # Errors
    /// `InvalidUsage` for more than 2 GiB.
    pub fn send(&mut self, from: LocalRange) -> Result<Request<'_>> {
        check_length("send", from.length)?;
        let slot = self.push(op::IBV_WR_SEND);
        slot.take(from);
        Ok(Request { slot })
    }

    /// Sends `data` as a message; the NIC copies it when it is posted.
    ///
    /// # Errors
    /// `InvalidUsage` for more than [`INLINE_BYTES`].
    pub fn send_inline(&mut self, data: &[u8]) -> Result<Request<'_>> {
        let slot = self.push_inline("send_inline", op::IBV_WR_SEND, data.len() as u64, |bytes| {
            bytes.copy_from_slice(data);
            Ok(())
        })?;
        Ok(Request { slot })
    }

    #[inline]
    fn rdma(
        &mut self,
        name: &'static str,
        opcode: op,
        local: LocalRange,
        remote: RemoteRange,
    ) -> Result<Request<'_>> {
        same_length(name, local.length, remote.length)?;
        check_length(name, local.length)?;
        let slot = self.push(opcode);
        slot.take(local);
        slot.aim(remote);
        Ok(Request { slot })
    }

    fn atomic(
        &mut self,
        name: &'static str,
        opcode: op,
        old: LocalRange,
        at: RemoteRange,
        compare_add: u64,
        swap: u64,
    ) -> Result<Request<'_>> {
        let whole = |address: u64, length: u64| length == 8 && address.is_multiple_of(8);
        if !whole(old.address, old.length) || !whole(at.address, at.length) {
            let message = "an atomic needs 8 bytes at an address that is a multiple of 8, on both sides";
            return Err(Error::usage(name, message));
        }
        let slot = self.push(opcode);
        slot.take(old);
        let atomic = rdma_core_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: at.address,
            compare_add,
            swap,
            rkey: at.key,
        };
        slot.wr.wr.atomic = atomic;
        Ok(Request { slot })
    }

    #[inline]
    fn push_inline(
        &mut self,
        name: &'static str,
        opcode: op,
        length: u64,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<&mut Slot> {
        if length > INLINE_BYTES as u64 {
            return Err(too_long(name, length, INLINE_BYTES as u64));
        }
        self.inline = self.inline.max(length as u32);
        let slot = self.push(opcode);
        slot.sge.length = length as u32;
        slot.wr.send_flags = flags::IBV_SEND_INLINE.0;
        match fill(&mut slot.data[..length as usize]) {
            Ok(()) => Ok(&mut self.slots[self.used - 1]),
            Err(error) => {
                self.used -= 1;
                Err(error)
            }
        }
    }

    /// The next slot. What the opcode does not use may be left from an earlier request.
    #[inline]
    fn push(&mut self, opcode: op) -> &mut Slot {
        if self.used == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[self.used];
        self.used += 1;
        (slot.wr.opcode, slot.wr.wr_id, slot.wr.send_flags) = (opcode, 0, 0);
        slot.sge.length = 0;
        slot
    }

    /// Links the requests; the head of the list, which is valid until the batch is touched again. Null if it is empty.
    pub(super) fn link(&mut self) -> *mut ibv_send_wr {
        let mut next = null_mut();
        for slot in self.slots[..self.used].iter_mut().rev() {
            if slot.wr.send_flags & flags::IBV_SEND_INLINE.0 != 0 {
                slot.sge.addr = slot.data.as_ptr().addr() as u64;
            }
            // A list entry of length 0 would mean 2 GiB to some NICs.
            let carries = slot.sge.length != 0;
            slot.wr.num_sge = carries.into();
            slot.wr.sg_list = if carries { &raw mut slot.sge } else { null_mut() };
            slot.wr.next = next;
            next = &raw mut slot.wr;
        }
        next
    }

    /// Where in the list `wr` stands.
    pub(super) fn position(&self, wr: *const ibv_send_wr) -> Option<usize> {
        self.slots[..self.used].iter().position(|slot| std::ptr::eq(&raw const slot.wr, wr))
    }

    /// Removes the first `count`, which the NIC has.
    pub(super) fn remove_first(&mut self, count: usize) {
        self.slots[..self.used].rotate_left(count);
        self.used -= count;
    }

    /// At least the inline data of every request.
    pub(super) fn largest_inline(&self) -> u32 {
        self.inline
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self { wr: ibv_send_wr::default(), sge: ibv_sge::default(), data: [0; INLINE_BYTES] }
    }
}

impl Slot {
    #[inline]
    fn take(&mut self, local: LocalRange) {
        // Lengths were checked to fit.
        self.sge = ibv_sge { addr: local.address, length: local.length as u32, lkey: local.key };
    }

    #[inline]
    fn aim(&mut self, remote: RemoteRange) {
        let rdma = rdma_core_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: remote.address,
            rkey: remote.key,
        };
        self.wr.wr.rdma = rdma;
    }
}

impl Request<'_> {
    /// Sets the id that its [`Completion`](super::Completion) carries. A failed request completes even if it is not
    /// signalled.
    #[inline]
    pub fn id(self, id: u64) -> Self {
        self.slot.wr.wr_id = id;
        self
    }

    /// Makes it complete visibly. Without this only a failure is seen.
    #[inline]
    pub fn signalled(self) -> Self {
        self.flag(flags::IBV_SEND_SIGNALED)
    }

    /// [`signalled`](Self::signalled) if `signal`.
    #[inline]
    pub fn signalled_if(self, signal: bool) -> Self {
        if signal { self.signalled() } else { self }
    }

    /// Executes it only after the reads and atomics before it have completed.
    #[inline]
    pub fn fence(self) -> Self {
        self.flag(flags::IBV_SEND_FENCE)
    }

    #[inline]
    fn flag(self, flag: flags) -> Self {
        self.slot.wr.send_flags |= flag.0;
        self
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("id", &self.wr.wr_id)
            .field("opcode", &self.wr.opcode)
            .field("length", &self.sge.length)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.slots[..self.used]).finish()
    }
}

#[inline]
fn same_length(name: &'static str, local: u64, remote: u64) -> Result<()> {
    if local == remote { Ok(()) } else { Err(unequal(name, local, remote)) }
}

#[cold]
fn unequal(name: &'static str, local: u64, remote: u64) -> Error {
    Error::usage(name, format!("the local range has {local} bytes, the remote one {remote}"))
}

#[inline]
fn check_length(name: &'static str, length: u64) -> Result<()> {
    if length <= MAX_MESSAGE { Ok(()) } else { Err(too_long(name, length, MAX_MESSAGE)) }
}

#[cold]
fn too_long(name: &'static str, length: u64, most: u64) -> Error {
    Error::usage(name, format!("{length} bytes do not fit into one request, {most} do; use several"))
}
