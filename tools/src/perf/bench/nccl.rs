//! NCCL, opened at run time: a communicator over the ranks of the job, and its collectives on streams of the library's.
#![allow(unsafe_code, reason = "calls functions of a library that is opened at run time")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use anyhow::{Context as _, Result, bail};
use aqueduct::gpu::Stream;
use aqueduct::plan::{Element, Kind, Reduction};
use aqueduct::{Error, ErrorKind};
use libloading::{Library, Symbol};

use crate::job::Rank;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

type Code = c_int;
type Handle = *mut c_void;
type Pointer = *mut c_void;
type Moves = unsafe extern "C" fn(Pointer, Pointer, usize, c_int, Handle, Handle) -> Code;
type Reduces = unsafe extern "C" fn(Pointer, Pointer, usize, c_int, c_int, Handle, Handle) -> Code;
type Rooted = unsafe extern "C" fn(Pointer, Pointer, usize, c_int, c_int, Handle, Handle) -> Code;
type Reduce = unsafe extern "C" fn(Pointer, Pointer, usize, c_int, c_int, c_int, Handle, Handle) -> Code;
type Sends = unsafe extern "C" fn(Pointer, usize, c_int, c_int, Handle, Handle) -> Code;

/// `NCCL_WIN_COLL_SYMMETRIC`: the buffer lies at the same place of the window on every rank.
const SYMMETRIC: c_int = 1;
/// `ncclUint8`.
const BYTES: c_int = 1;

/// The functions that are used, by their names in nccl.h.
struct Functions {
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
    destroy: unsafe extern "C" fn(Handle) -> Code,
    group_start: unsafe extern "C" fn() -> Code,
    group_end: unsafe extern "C" fn() -> Code,
    all_reduce: Reduces,
    all_gather: Moves,
    reduce_scatter: Reduces,
    broadcast: Rooted,
    reduce: Reduce,
    send: Sends,
    recv: Sends,
}

/// A communicator of NCCL's over all ranks of the job.
pub(super) struct Nccl {
    functions: Functions,
    comm: Handle,
    ranks: usize,
    rank: usize,
    version: c_int,
    /// Functions for symmetric buffers, if this version has them.
    windows: Option<Windows>,
}

#[derive(Clone, Copy)]
struct Windows {
    alloc: unsafe extern "C" fn(*mut Pointer, usize) -> Code,
    register: unsafe extern "C" fn(Handle, Pointer, usize, *mut Handle, c_int) -> Code,
}

/// An input and an output.
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    pub(super) input: u64,
    pub(super) output: u64,
}

impl Nccl {
    /// Opens the library `name` and makes a communicator for such elements; an error says why not. Collective: if a step fails on one
    /// rank, all get its reason once NCCL has let them go.
    pub(super) fn open(rank: &Rank, name: &str, ty: Element, op: Reduction) -> Result<Self> {
        let loaded = Self::load(name).and_then(|loaded| match lacks(loaded.2, ty, op) {
            Some(why) => bail!("{why}"),
            None => Ok(loaded),
        });
        let (library, functions, version, windows) = all_agree(rank, loaded)?;
        let mut id = UniqueId([0; 128]);
        // SAFETY: the signature is nccl.h's; the id is written by the call.
        let made = unsafe {
            library
                .get::<unsafe extern "C" fn(*mut UniqueId) -> Code>(b"ncclGetUniqueId")
                .map(|unique| if rank.is_root() { unique(&raw mut id) } else { 0 })
        };
        let made = made.map_err(anyhow::Error::from);
        all_agree(rank, made.and_then(|made| Ok(functions.check(made, "ncclGetUniqueId")?)))?;
        let ids = rank.bootstrap.all_gather(&id.0, rank.deadline())?;
        let id = ids.first().and_then(|id| <[u8; 128]>::try_from(&id[..]).ok()).context("no id of rank 0")?;
        let (ranks, me) = (rank.bootstrap.size(), rank.bootstrap.rank());
        let mut comm: Handle = ptr::null_mut();
        let mut init = || {
            let _entered = rank.context.enter()?;
            let (ranks, me) = (c_int::try_from(ranks)?, c_int::try_from(me)?);
            // SAFETY: the signature is nccl.h's; `comm` is written by the call, and the device is the one of the context just entered.
            let made = unsafe {
                type Init = unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> Code;
                let init: Symbol<'_, Init> = library.get(b"ncclCommInitRank")?;
                init(&raw mut comm, ranks, UniqueId(id), me)
            };
            Ok(functions.check(made, "ncclCommInitRank")?)
        };
        all_agree(rank, init())?;
        // Threads of the library may outlive the communicator, so it is never closed.
        std::mem::forget(library);
        Ok(Self { functions, comm, ranks: ranks as usize, rank: me as usize, version, windows })
    }

    fn load(name: &str) -> Result<(Library, Functions, c_int, Option<Windows>)> {
        // SAFETY: NCCL's initializers have no preconditions. The signatures are nccl.h's, which keeps them within major version 2.
        unsafe {
            let library = Library::new(name).with_context(|| {
                format!(
                    "cannot open {name}; name NCCL's library with --nccl, or its folder in LD_LIBRARY_PATH"
                )
            })?;
            let mut version = 0;
            let get: Symbol<'_, unsafe extern "C" fn(*mut c_int) -> Code> = library.get(b"ncclGetVersion")?;
            get(&raw mut version);
            let functions = Functions {
                error_string: *library.get(b"ncclGetErrorString")?,
                destroy: *library.get(b"ncclCommDestroy")?,
                group_start: *library.get(b"ncclGroupStart")?,
                group_end: *library.get(b"ncclGroupEnd")?,
                all_reduce: *library.get(b"ncclAllReduce")?,
                all_gather: *library.get(b"ncclAllGather")?,
                reduce_scatter: *library.get(b"ncclReduceScatter")?,
                broadcast: *library.get(b"ncclBroadcast")?,
                reduce: *library.get(b"ncclReduce")?,
                send: *library.get(b"ncclSend")?,
                recv: *library.get(b"ncclRecv")?,
            };
            let windows = match (library.get(b"ncclMemAlloc"), library.get(b"ncclCommWindowRegister")) {
                (Ok(alloc), Ok(register)) => Some(Windows { alloc: *alloc, register: *register }),
                _ => None,
            };
            Ok((library, functions, version, windows))
        }
    }

    /// Such as 2.27.3.
    pub(super) fn version(&self) -> String {
        dotted(self.version)
    }

    /// Buffers of NCCL's own in symmetric windows, its fastest path; `None` if this version has none. They live until the process
    /// ends. Collective.
    pub(super) fn symmetric(&self, rank: &Rank, bytes: usize) -> Result<Option<Buffers>> {
        let Some(windows) = self.windows else { return Ok(None) };
        let _entered = rank.context.enter()?;
        let new = || {
            let (mut buffer, mut window): (Pointer, Handle) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the communicator lives as long as `self`; both calls write only the variables that they are given.
            unsafe {
                self.functions.check((windows.alloc)(&raw mut buffer, bytes.max(16)), "ncclMemAlloc")?;
                let made = (windows.register)(self.comm, buffer, bytes.max(16), &raw mut window, SYMMETRIC);
                self.functions.check(made, "ncclCommWindowRegister")?;
            }
            Ok::<_, Error>(buffer as u64)
        };
        let both = || Ok(Buffers { input: new()?, output: new()? });
        all_agree(rank, both()).map(Some)
    }

    /// Enqueues a collective: `bytes` of input and of output on this rank, as the library's [`Kind`] has them.
    ///
    /// The buffers must be that long and live until the stream has done it.
    pub(super) fn enqueue(
        &self,
        stream: &Stream,
        kind: &Kind,
        Buffers { input, output }: Buffers,
        [inputs, outputs]: [usize; 2],
        Elements { ty, op, bytes: size }: Elements,
    ) -> aqueduct::Result<()> {
        let functions = &self.functions;
        let (input, output) = (input as Pointer, output as Pointer);
        let (stream, comm) = (stream.raw().cast(), self.comm);
        let at = |pointer: Pointer, offset: usize| pointer.wrapping_byte_add(offset);
        let root = |root: u32| c_int::try_from(root).unwrap_or(c_int::MAX);
        // SAFETY: the communicator lives as long as `self`, and the caller answers for buffers and stream.
        unsafe {
            let done = match *kind {
                Kind::AllReduce => (functions.all_reduce)(input, output, inputs / size, ty, op, comm, stream),
                Kind::AllGather => (functions.all_gather)(input, output, inputs / size, ty, comm, stream),
                Kind::ReduceScatter => {
                    (functions.reduce_scatter)(input, output, outputs / size, ty, op, comm, stream)
                }
                Kind::Broadcast { root: from } => {
                    (functions.broadcast)(input, output, inputs / size, ty, root(from), comm, stream)
                }
                Kind::Reduce { root: to } => {
                    (functions.reduce)(input, output, inputs / size, ty, op, root(to), comm, stream)
                }
                Kind::AllToAll | Kind::SendRecv => {
                    (functions.group_start)();
                    let part = if *kind == Kind::AllToAll { inputs / self.ranks } else { 0 };
                    let len = if *kind == Kind::AllToAll { part } else { inputs };
                    let peers = |step: usize| match kind {
                        Kind::AllToAll => (step, step),
                        _ => ((self.rank + 1) % self.ranks, (self.rank + self.ranks - 1) % self.ranks),
                    };
                    for step in 0..if *kind == Kind::AllToAll { self.ranks } else { 1 } {
                        let (to, from) = peers(step);
                        let (source, target) = (at(input, to * part), at(output, from * part));
                        (functions.send)(source, len, BYTES, code(to), comm, stream);
                        (functions.recv)(target, len, BYTES, code(from), comm, stream);
                    }
                    (functions.group_end)()
                }
                _ => return Err(Error::new(ErrorKind::Unsupported, "nccl", "NCCL has no such collective")),
            };
            functions.check(done, "a collective of NCCL")
        }
    }
}

impl Functions {
    fn check(&self, code: Code, what: &'static str) -> aqueduct::Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NCCL returns a string that is never freed.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        Err(Error::new(ErrorKind::Unsupported, what, text.to_string_lossy().into_owned()))
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // SAFETY: nobody else has the communicator; graphs that hold its work are dropped before it. What it answers changes nothing.
        unsafe { (self.functions.destroy)(self.comm) };
    }
}

fn code(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

/// This rank's result if all ranks succeeded, else the first failure. Collective.
fn all_agree<T>(rank: &Rank, mine: Result<T>) -> Result<T> {
    let here = mine.as_ref().map_or_else(|error| format!("{error:#}"), |_| String::new());
    let everywhere = rank.bootstrap.all_gather(here.as_bytes(), rank.deadline())?;
    if let Some((who, why)) = everywhere.iter().enumerate().find(|(_, why)| !why.is_empty()) {
        bail!("rank {who}: {}", String::from_utf8_lossy(why));
    }
    mine
}

/// Elements as NCCL numbers them.
#[derive(Clone, Copy)]
pub(super) struct Elements {
    ty: c_int,
    op: c_int,
    bytes: usize,
}

impl Elements {
    /// Those of a type and a reduction of the library's.
    pub(super) fn of(ty: Element, op: Reduction) -> Self {
        let bytes = ty.bytes();
        let ty = match ty {
            Element::I8 => 0,
            Element::U8 => BYTES,
            Element::I32 => 2,
            Element::U32 => 3,
            Element::I64 => 4,
            Element::U64 => 5,
            Element::F16 => 6,
            Element::F32 => 7,
            Element::F64 => 8,
            Element::Bf16 => 9,
            Element::F8E4m3 => 10,
            Element::F8E5m2 => 11,
        };
        let op = match op {
            Reduction::Sum => 0,
            Reduction::Prod => 1,
            Reduction::Max => 2,
            Reduction::Min => 3,
            Reduction::Avg => 4,
        };
        Self { ty, op, bytes }
    }
}

/// Why a version of NCCL, as `ncclGetVersion` says it, cannot have such elements; `None` if it can. Numbers that a version does not
/// know it takes for errors of the caller, or for another type.
pub(super) fn lacks(version: c_int, ty: Element, op: Reduction) -> Option<String> {
    let since = [
        (matches!(ty, Element::F8E4m3 | Element::F8E5m2), ty.name(), 22400),
        (ty == Element::Bf16, ty.name(), 21000),
        (op == Reduction::Avg, op.name(), 21000),
    ];
    let (_, what, first) = since.into_iter().find(|(asked, _, first)| *asked && version < *first)?;
    Some(format!("NCCL {} does not know {what}, which came with {}", dotted(version), dotted(first)))
}

/// Such as 2.27.3.
fn dotted(version: c_int) -> String {
    // Before 2.9 there were fewer digits.
    let major = if version < 10_000 { 1_000 } else { 10_000 };
    format!("{}.{}.{}", version / major, version % major / 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_a_version_does_not_know_are_named() {
        let lacks = |version, ty, op| lacks(version, ty, op).unwrap_or_default();
        let (sum, avg) = (Reduction::Sum, Reduction::Avg);
        for ty in [Element::F8E4m3, Element::F8E5m2] {
            let why = format!("NCCL 2.23.4 does not know {}, which came with 2.24.0", ty.name());
            assert_eq!(lacks(22304, ty, sum), why);
            assert_eq!(lacks(22403, ty, avg), "");
        }
        assert_eq!(lacks(2804, Element::Bf16, sum), "NCCL 2.8.4 does not know bf16, which came with 2.10.0");
        assert_eq!(lacks(20909, Element::F32, avg), "NCCL 2.9.9 does not know avg, which came with 2.10.0");
        for (ty, op) in Element::ALL.into_iter().flat_map(|ty| Reduction::ALL.map(|op| (ty, op))) {
            assert_eq!(lacks(22703, ty, op), "", "{ty:?} {op:?}");
        }
    }

    /// As in nccl.h.
    #[test]
    fn types_have_numbers_of_their_own() {
        let numbers = Element::ALL.map(|ty| Elements::of(ty, Reduction::Sum).ty);
        assert_eq!(numbers, [7, 8, 6, 9, 10, 11, 0, 1, 2, 3, 4, 5]);
        assert_eq!(Reduction::ALL.map(|op| Elements::of(Element::F32, op).op), [0, 1, 3, 2, 4]);
    }
}
