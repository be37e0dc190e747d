//! Functions that kernels call and the device provides: output, assertions, and the heap.

use std::fmt::Write;
use std::sync::atomic::{AtomicU8, Ordering};

use super::console::Target;
use super::fault::{FaultKind, Trouble};
use super::memory::{self, Request};
use super::printf;
use super::regs::lanes;
use super::turn::Context;
use super::warp::{Frame, Warp};
use crate::code::Space;
use crate::code::op::{Call, FrameCopy, Service};

/// Longest string that a kernel can print.
const LONGEST: u64 = 64 << 10;

impl Warp {
    /// Calls `service` for each lane of `mask`.
    #[cold]
    #[inline(never)]
    pub(super) fn service(
        &mut self,
        cx: &mut Context<'_, '_>,
        mask: u32,
        frame: Frame,
        call: &Call,
        service: Service,
    ) -> Result<(), Trouble> {
        let services = &cx.grid.launch().services;
        for lane in lanes(mask) {
            let mut caller = Caller { warp: self, cx, lane, frame };
            match service {
                Service::AssertFail => {
                    let text = caller.assertion(&call.args)?;
                    services.console.print(Target::Stderr, text.into_bytes());
                }
                Service::Printf => {
                    let count = match caller.argument(&call.args[0])? {
                        0 => -1,
                        format => {
                            let format = caller.read_string(format)?;
                            let arguments = caller.argument(&call.args[1])?;
                            let mut source = Arguments { caller: &mut caller, base: arguments };
                            let (text, count) = printf::format(&format, &mut source)?;
                            services.console.print(Target::Stdout, text);
                            count.cast_signed()
                        }
                    };
                    caller.give(&call.returns, u64::from(count.cast_unsigned()))?;
                }
                Service::Malloc => {
                    let size = caller.argument(&call.args[0])?;
                    caller.give(&call.returns, services.heap.malloc(size))?;
                }
                Service::Free => {
                    let address = caller.argument(&call.args[0])?;
                    if address != 0 && !services.heap.free(address) {
                        return Err(Trouble::at(FaultKind::IllegalAddress, lane, address));
                    }
                }
            }
        }
        self.spin.wrote();
        match service {
            Service::AssertFail => Err(Trouble::of(FaultKind::Assert, mask)),
            _ => Ok(()),
        }
    }
}

/// One lane at a call.
struct Caller<'w, 'c, 'a, 'v> {
    warp: &'w Warp,
    cx: &'c mut Context<'a, 'v>,
    lane: usize,
    frame: Frame,
}

impl Caller<'_, '_, '_, '_> {
    /// The host address of `offset` in the lane's current frame.
    fn place(&self, offset: u32, size: u32) -> Result<u64, Trouble> {
        let stack = self.warp.stacks().of_lane(self.lane);
        let at = stack.base + u64::from(self.frame.stack) + u64::from(offset);
        if !stack.holds(at, at + u64::from(size)) {
            return Err(Trouble::of(FaultKind::StackOverflow, 1 << self.lane));
        }
        Ok(at)
    }

    fn argument(&mut self, copy: &FrameCopy) -> Result<u64, Trouble> {
        let at = self.place(copy.from, copy.size)?;
        self.read(at, u64::from(copy.size))
    }

    /// Stores the result of the call, if it has one.
    fn give(&mut self, returns: &[FrameCopy], value: u64) -> Result<(), Trouble> {
        let Some(copy) = returns.first() else { return Ok(()) };
        let bytes = value.to_le_bytes();
        let at = self.place(copy.to, copy.size)?;
        for (offset, byte) in bytes.iter().take(copy.size as usize).enumerate() {
            // SAFETY: the byte is in this lane's stack, checked just now, which only this thread accesses.
            unsafe { memory::word::<AtomicU8>(at + offset as u64) }.store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads up to eight bytes at a generic address.
    fn read(&mut self, address: u64, size: u64) -> Result<u64, Trouble> {
        let mut bytes = [0; 8];
        for offset in 0..size.min(8) {
            bytes[offset as usize] = self.byte(address.wrapping_add(offset))?;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    fn byte(&mut self, address: u64) -> Result<u8, Trouble> {
        let stacks = self.warp.stacks();
        let ask = Request { space: Space::Generic, size: 1, write: false, stacks };
        self.cx.access.check_lane(address, self.lane, ask)?;
        // SAFETY: checked just now, under the view that `access` borrows.
        Ok(unsafe { memory::word::<AtomicU8>(address) }.load(Ordering::Relaxed))
    }

    fn read_string(&mut self, address: u64) -> Result<Vec<u8>, Trouble> {
        let mut text = Vec::new();
        for offset in 0..LONGEST {
            match self.byte(address.wrapping_add(offset))? {
                0 => break,
                byte => text.push(byte),
            }
        }
        Ok(text)
    }

    /// The text of a failed assertion, in the form of the driver's.
    fn assertion(&mut self, args: &[FrameCopy]) -> Result<String, Trouble> {
        let word = |warp: &mut Self, n: usize| -> Result<String, Trouble> {
            let address = warp.argument(&args[n])?;
            let bytes = if address == 0 { Vec::new() } else { warp.read_string(address)? };
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let (message, file) = (word(self, 0)?, word(self, 1)?);
        let line = self.argument(&args[2])?;
        let function = word(self, 3)?;
        let [bx, by, bz] = self.cx.place.index;
        let [tx, ty, tz] = self.cx.place.thread(self.warp.index, self.lane);
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{file}:{line}: {function}: block: [{bx},{by},{bz}], thread: [{tx},{ty},{tz}] Assertion `{message}` failed."
        );
        Ok(text)
    }
}

/// The argument buffer of a `vprintf` call.
struct Arguments<'r, 'w, 'c, 'a, 'v> {
    caller: &'r mut Caller<'w, 'c, 'a, 'v>,
    base: u64,
}

impl printf::Source for Arguments<'_, '_, '_, '_, '_> {
    type Error = Trouble;

    fn argument(&mut self, offset: u64, size: u64) -> Result<u64, Trouble> {
        self.caller.read(self.base.wrapping_add(offset), size)
    }

    fn string(&mut self, address: u64) -> Result<Vec<u8>, Trouble> {
        self.caller.read_string(address)
    }
}
