//! One call: the addresses and the parameters of its kernels.
#![allow(unsafe_code, reason = "launches kernels")]

use std::sync::Arc;

use aqueduct_ptx::abi::PlanArgs;
use aqueduct_ptx::plan::Base;

use super::buffers::{Shown, Window};
use super::kernel::Kernel;
use super::lower::Address;
use super::parameter::Parameter;
use super::ports::Handles;
use super::prepared::{Prepared, missing};
use crate::error::Result;
use crate::gpu::{KeepAlive, Stream, bytes as bytes_arg};

/// A call with sizes that its buffers have.
pub(super) struct Call<'c> {
    pub(super) prepared: &'c Prepared,
    /// Addresses of input and output.
    pub(super) buffers: [u64; 2],
    pub(super) shown: Option<&'c Arc<Shown>>,
    /// Which part of them.
    pub(super) window: Window,
    pub(super) handles: Option<&'c Arc<Handles>>,
    /// The fixed part of the kernels' parameters.
    pub(super) args: PlanArgs,
    /// The words of [`PlanRows`](aqueduct_ptx::abi::PlanRows), for a plan whose chunks have sizes of their own.
    pub(super) rows: Option<&'c [u64]>,
}

impl Call<'_> {
    /// Where something begins in this call.
    pub(super) fn address(&self, address: Address) -> Result<u64> {
        let Self { prepared, buffers: [input, output], rows, args, window, .. } = self;
        let (me, shown) = (prepared.comm.rank(), self.shown.map(|shown| &**shown));
        match address {
            Address::Trace => Ok(prepared.trace.as_ref().ok_or_else(|| missing(address))?.address()),
            Address::Input(rank) if rank == me => Ok(*input),
            Address::Output(rank) if rank == me => Ok(*output),
            // Each rank keeps its rows within its own buffers.
            Address::Input(_) | Address::Output(_) if rows.is_some() => {
                let found = shown.and_then(|shown| shown.address(address));
                found.map(|(address, _)| address).ok_or_else(|| missing(address))
            }
            Address::Input(_) | Address::Output(_) => prepared.shown(shown, address, args, *window),
            Address::RowWord(index) => {
                let word = rows.and_then(|rows| rows.get(index as usize).copied());
                word.ok_or_else(|| missing(address))
            }
            // Proxies take offsets in the shown input. Those in rows count from the input that the kernel has, which begins at 0 where rows have
            // addresses.
            Address::Offset(_, Base::Input) if rows.is_some() => {
                shown.map(|shown| input.wrapping_sub(shown.input.ptr())).ok_or_else(|| missing(address))
            }
            Address::Offset(_, Base::Output) if rows.is_some() => Ok(0),
            Address::Offset(rank, base) => prepared.offset(shown, rank, base, args, *window),
            Address::Multicast(team, base) => {
                prepared.team(shown, team, base).ok_or_else(|| missing(address))
            }
            Address::Port { .. } => {
                let handle = self.handles.and_then(|handles| handles.address(address));
                handle.ok_or_else(|| missing(address))
            }
            _ => prepared.arena.address(address).ok_or_else(|| missing(address)),
        }
    }

    /// Launches a kernel of the call. The stream retains each of `keep` for it.
    ///
    /// # Safety
    /// What the kernel's parameter names must stay accessible until it is done; `keep` may see to that.
    pub(super) unsafe fn launch(
        &self,
        kernel: &Kernel,
        stream: &Stream,
        keep: impl IntoIterator<Item = KeepAlive>,
    ) -> Result<()> {
        let mut args = self.args;
        let (function, config) = kernel.launch(&mut args);
        let mut parameter = Parameter::new(&args);
        for &address in &kernel.addresses {
            parameter.push(self.address(address)?)?;
        }
        parameter.extend(&kernel.rows)?;
        let parameter = bytes_arg(parameter.words());
        // SAFETY: the one argument is the kernel's parameter: the fixed part and the addresses that its description lists. All blocks
        // can be resident (`compile` checked it), and a wait leaves when the abort word is set. The caller vouches for the memory.
        unsafe { function.launch_keeping(stream, &config, &[parameter], keep) }
    }
}
