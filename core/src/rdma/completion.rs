//! Completions: how a work request ended, in words.

use std::fmt;

use rdma_core_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use crate::error::{Error, ErrorKind};

/// The end of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's [`id`](super::Request::id).
    pub id: u64,
    /// The number of this side's queue pair.
    pub qp_number: u32,
    /// Success, or the reason of the failure.
    pub result: Result<Done, Failure>,
}

/// A request that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Type of the request.
    pub operation: Operation,
    /// Bytes received or read; providers leave it undefined for others.
    pub bytes: u32,
    /// The immediate value that the peer sent with it (receives only).
    pub immediate: Option<u32>,
}

/// Type of a completed request. An integer: newer NICs may have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation(pub u32);

impl Operation {
    /// A message sent.
    pub const SEND: Self = Self(ibv_wc_opcode::IBV_WC_SEND.0);
    /// Memory of the peer written, with or without an immediate.
    pub const WRITE: Self = Self(ibv_wc_opcode::IBV_WC_RDMA_WRITE.0);
    /// Memory of the peer read.
    pub const READ: Self = Self(ibv_wc_opcode::IBV_WC_RDMA_READ.0);
    /// Compared and swapped at the peer.
    pub const COMPARE_SWAP: Self = Self(ibv_wc_opcode::IBV_WC_COMP_SWAP.0);
    /// Added at the peer.
    pub const FETCH_ADD: Self = Self(ibv_wc_opcode::IBV_WC_FETCH_ADD.0);
    /// A window bound.
    pub const BIND: Self = Self(ibv_wc_opcode::IBV_WC_BIND_MW.0);
    /// A window invalidated.
    pub const INVALIDATE: Self = Self(ibv_wc_opcode::IBV_WC_LOCAL_INV.0);
    /// A message received.
    pub const RECEIVE: Self = Self(ibv_wc_opcode::IBV_WC_RECV.0);
    /// A receive consumed by the peer's write with an immediate.
    pub const RECEIVE_WRITE: Self = Self(ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM.0);
}

/// A request that failed. Its queue pair is then in the error state: everything posted to it later ends as flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub status: Status,
    /// The vendor's own code; its support can read it.
    pub vendor: u32,
}

/// The status of a work completion. An integer: newer NICs may have more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Never executed, because an earlier request failed or the queue pair was torn down.
    pub const FLUSHED: Self = Self(ibv_wc_status::IBV_WC_WR_FLUSH_ERR.0);
    /// The peer's NIC refused the access.
    pub const REMOTE_ACCESS: Self = Self(ibv_wc_status::IBV_WC_REM_ACCESS_ERR.0);
    /// The peer's NIC did not acknowledge.
    pub const RETRIES_EXCEEDED: Self = Self(ibv_wc_status::IBV_WC_RETRY_EXC_ERR.0);
    /// The peer had no receive posted.
    pub const RECEIVER_NOT_READY: Self = Self(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR.0);
    /// The request named memory that is not registered here.
    pub const LOCAL_PROTECTION: Self = Self(ibv_wc_status::IBV_WC_LOC_PROT_ERR.0);

    /// A description of the failure, and a remedy.
    pub fn meaning(self) -> (&'static str, &'static str) {
        use ibv_wc_status as s;
        match ibv_wc_status(self.0) {
            s::IBV_WC_LOC_LEN_ERR => {
                ("a message was longer than its buffer or than the port allows", "check sizes on both sides")
            }
            s::IBV_WC_LOC_QP_OP_ERR => (
                "the local queue pair could not execute the request",
                "check its settings; look at the vendor's code",
            ),
            s::IBV_WC_LOC_PROT_ERR => (
                "local memory of the request is not registered, or not for this",
                "keep the region until the request has completed, and register it with local write for reads",
            ),
            s::IBV_WC_WR_FLUSH_ERR => (
                "the request was dropped because the connection had failed before",
                "look for the first failure",
            ),
            s::IBV_WC_BAD_RESP_ERR => {
                ("the peer's NIC sent a response that makes no sense", "look at both NICs' logs")
            }
            s::IBV_WC_LOC_ACCESS_ERR => {
                ("a write of the peer hit memory without the right to", "register it with remote write")
            }
            s::IBV_WC_REM_INV_REQ_ERR => (
                "the peer's NIC found the request invalid",
                "check sizes, and that its queue pair allows reads and atomics",
            ),
            s::IBV_WC_REM_ACCESS_ERR => (
                "the peer's NIC refused the access: wrong key, range or rights",
                "check that the peer's memory is still registered, and for this kind of access",
            ),
            s::IBV_WC_REM_OP_ERR => {
                ("the peer's NIC could not execute the request", "look at the peer's log")
            }
            s::IBV_WC_RETRY_EXC_ERR => (
                "the peer's NIC did not answer",
                "the peer is gone, or the path to it is: check link, GID and traffic class, or raise timeout and retry_count",
            ),
            s::IBV_WC_RNR_RETRY_EXC_ERR => (
                "the peer had no receive posted",
                "post receives earlier, or raise rnr_retry and min_rnr_timer",
            ),
            s::IBV_WC_REM_ABORT_ERR => ("the peer aborted the operation", "look at the peer's log"),
            s::IBV_WC_FATAL_ERR => ("the NIC failed", "look at the kernel's log"),
            s::IBV_WC_RESP_TIMEOUT_ERR => ("the peer's NIC answered too late", "raise timeout"),
            s::IBV_WC_GENERAL_ERR => {
                ("the NIC reported a failure of no particular kind", "look at the vendor's code")
            }
            _ => ("the NIC reported a status that is not known here", "look at the vendor's code"),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.meaning().0)
    }
}

impl Failure {
    /// Whether it is only the consequence of an earlier failure.
    pub fn is_flushed(&self) -> bool {
        self.status == Status::FLUSHED
    }

    /// The error of operation `op`, with the completion status as its code.
    pub fn to_error(&self, op: &'static str) -> Error {
        Error::new(ErrorKind::Verbs, op, self.to_string()).with_code(self.status.0.cast_signed())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, advice) = self.status.meaning();
        let Self { status, vendor } = self;
        write!(f, "{what} (completion status {}, vendor code {vendor:#x}); {advice}", status.0)
    }
}

impl Completion {
    pub(super) fn new(wc: &ibv_wc) -> Self {
        let result = if wc.status == ibv_wc_status::IBV_WC_SUCCESS {
            let immediate = (wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0)
                // SAFETY: both fields of the union are four plain bytes, and the flag says which it is.
                .then(|| u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }));
            Ok(Done { operation: Operation(wc.opcode.0), bytes: wc.byte_len, immediate })
        } else {
            // After a failure only the id, the status, the vendor's code and the queue pair are defined.
            Err(Failure { status: Status(wc.status.0), vendor: wc.vendor_err })
        };
        Self { id: wc.wr_id, qp_number: wc.qp_num, result }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_says_what_to_do() {
        let unknown = Status(1000).meaning();
        // 3, 6, 14 and 17 to 18 belong to transports that are not used here.
        for status in [1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 16, 19, 20, 21] {
            assert_ne!(Status(status).meaning(), unknown, "{status}");
        }
        let failure = Failure { status: Status::RETRIES_EXCEEDED, vendor: 0x81 };
        let error = failure.to_error("write");
        assert_eq!((error.kind(), error.code()), (ErrorKind::Verbs, 12));
        assert!(
            error
                .to_string()
                .contains("did not answer (completion status 12, vendor code 0x81); the peer is gone")
        );
    }

    #[test]
    fn a_failed_completion_shows_nothing_that_is_undefined() {
        let wc = ibv_wc {
            wr_id: 9,
            status: ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
            wc_flags: u32::MAX,
            byte_len: 77,
            ..Default::default()
        };
        let completion = Completion::new(&wc);
        assert_eq!(completion.id, 9);
        assert!(completion.result.unwrap_err().is_flushed());
        let wc = ibv_wc { status: ibv_wc_status::IBV_WC_SUCCESS, wc_flags: 0, ..wc };
        assert_eq!(Completion::new(&wc).result.unwrap().immediate, None);
    }
}
