//! The flat, checked form of a module: lowering produces it, the engine executes it.
//!
//! Names are resolved: registers to slots, labels to instruction indices, variables to symbol numbers or byte offsets.
//! Each instruction carries its full type, semantics and scope, so execution needs neither the source text nor the
//! syntax tree. The engine indexes registers and instructions without checking that they exist, because
//! [`Module::check`] has proved it.
//!
//! # Addresses, as instructions see them
//! - *global* and *const* addresses are host addresses; `cvta` does not change them.
//! - *shared* addresses are byte offsets into the block's shared memory, in 32 bits: first the static part of the
//!   kernel, then the dynamic part ([`Special::DynamicSharedBase`](op::Special)). `cvta.shared` adds the host address
//!   of the block's shared memory.
//! - *local* addresses are byte offsets into the thread's stack. Each call has a frame of [`Function::frame_size`]
//!   bytes for its parameters, returned values, `.local` variables, and the `.param` variables of its own calls.
//!   [`Base::Frame`] is the start of the frame; [`op::Special::FrameBase`] is its offset in the stack, which `mov %r,
//!   local_variable` starts from.
//! - *param* addresses of a kernel are offsets into the launch's parameter buffer ([`Base::KernelParam`]). Parameters
//!   of a `.func` are in its frame.

mod check;
pub mod op;
pub mod operand;

pub use op::Op;
pub use operand::{Addr, Base, Guard, Pred, PredSrc, Reg, Round, Scope, Semantics, Space, Src, Ty};

/// A module: functions and variables, independent of the addresses at which it is loaded.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Kernels and device functions; [`op::CallTarget::Function`] holds an index into this list.
    pub functions: Vec<Function>,
    /// `.global` and `.const` variables in order; [`Base::Global`] holds an index into this list.
    pub globals: Vec<Global>,
}

impl Module {
    /// The index of the kernel (`.entry`) called `name`.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<usize> {
        self.functions.iter().position(|f| f.kernel && f.name == name)
    }

    /// The index of the variable called `name`.
    #[must_use]
    pub fn global(&self, name: &str) -> Option<usize> {
        self.globals.iter().position(|g| g.name == name)
    }
}

/// One kernel or device function.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// The name in the source.
    pub name: String,
    /// Whether it is an `.entry`.
    pub kernel: bool,
    /// The instructions; branch targets are indices into this list. Falling off the end is `ret`.
    pub code: Vec<Inst>,
    /// The source line of each instruction, from 1; as long as `code`.
    pub lines: Vec<u32>,
    /// Number of 32-bit register slots, for 8-, 16- and 32-bit registers; narrow ones are zero-extended.
    pub regs32: u16,
    /// Number of 64-bit register slots.
    pub regs64: u16,
    /// Number of predicate registers.
    pub preds: u16,
    /// Parameters in order. Offsets are into the launch's parameter buffer for a kernel, into the frame for another
    /// function.
    pub params: Vec<Param>,
    /// Returned values of a `.func`, in its frame.
    pub returns: Vec<Param>,
    /// Bytes of the parameter buffer (kernels).
    pub param_size: u32,
    /// Bytes of a call's frame on the thread's stack, a multiple of 16.
    pub frame_size: u32,
    /// Bytes of static shared memory that the kernel and the functions it calls need.
    pub shared_size: u32,
    /// Whether the kernel or a function it calls uses the reserved shared memory, which follows the dynamic part.
    pub reserved_shared: bool,
    /// `.reqnctapercluster`, or zeros without that directive.
    pub required_cluster: [u32; 3],
    /// Alignment of the dynamic shared memory, which follows the static part (at least 16).
    pub dynamic_shared_align: u32,
    /// The product of `.maxntid`, or 0 without that directive.
    pub max_threads: u32,
    /// `.reqntid`, or zeros without that directive.
    pub required_block: [u32; 3],
    /// `.minnctapersm`, or 0 without that directive.
    pub min_blocks_per_sm: u32,
}

impl Function {
    /// The offset of dynamic shared memory in the block's shared memory.
    #[must_use]
    pub fn dynamic_shared_base(&self) -> u32 {
        let align = self.dynamic_shared_align.max(16).next_power_of_two();
        self.shared_size.next_multiple_of(align)
    }

    /// Bytes of shared memory of a block that is launched with `dynamic` bytes of dynamic shared memory.
    #[must_use]
    pub fn shared_bytes(&self, dynamic: u32) -> u32 {
        if self.reserved_shared {
            return self.reserved_shared_base(dynamic).saturating_add(RESERVED_SHARED);
        }
        self.own_shared_bytes(dynamic)
    }

    fn own_shared_bytes(&self, dynamic: u32) -> u32 {
        match dynamic {
            0 => self.shared_size,
            dynamic => self.dynamic_shared_base().saturating_add(dynamic),
        }
    }

    /// The offset of the reserved shared memory in the block's shared memory.
    #[must_use]
    pub fn reserved_shared_base(&self, dynamic: u32) -> u32 {
        self.own_shared_bytes(dynamic).checked_next_multiple_of(16).unwrap_or(u32::MAX)
    }
}

/// Bytes of shared memory of a block that cooperative groups use, as on devices of compute capability 8.0 and later. They
/// are zero when the block starts.
pub const RESERVED_SHARED: u32 = 1024;

/// The location of one parameter or returned value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Byte offset (see [`Function::params`]).
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
    /// Alignment in bytes.
    pub align: u32,
}

/// One instruction and its guard.
#[derive(Clone, Debug)]
pub struct Inst {
    /// `@p` or `@!p`; [`Guard::ALWAYS`] when absent.
    pub guard: Guard,
    /// The operation.
    pub op: Op,
}

/// A `.global` or `.const` variable.
#[derive(Clone, Debug, Default)]
pub struct Global {
    /// The name in the source.
    pub name: String,
    /// Whether it is in the constant bank: read-only for kernels, writable by the host.
    pub constant: bool,
    /// Size in bytes.
    pub size: u64,
    /// Alignment in bytes.
    pub align: u64,
    /// Initial bytes with their offsets, in order; all other bytes are zero.
    pub init: Vec<(u64, Vec<u8>)>,
    /// Addresses to write after `init`, once symbols have addresses.
    pub relocations: Vec<Relocation>,
}

/// Sets the bytes `offset .. offset + size` to `address(symbol) + addend`, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Byte offset in the variable.
    pub offset: u64,
    /// Bytes to write: 4 or 8.
    pub size: u8,
    /// The symbol.
    pub symbol: Symbol,
    /// Added to the address.
    pub addend: i64,
}

/// A variable or function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// A variable of the module, by index.
    Global(u32),
    /// A function of the module, by index; its address is [`function_address`].
    Function(u32),
}

/// The address of a function: the result of `mov` from its name, and the operand of an indirect call.
///
/// It is never a mapped address, so a load through it faults like one through a wild pointer.
#[must_use]
pub const fn function_address(index: u32) -> u64 {
    FUNCTION_TAG | (index as u64) << 4
}

/// The inverse of [`function_address`]; `None` for any other number.
#[must_use]
pub const fn function_at(address: u64) -> Option<u32> {
    if address & !0xf_ffff_fff0 == FUNCTION_TAG { Some((address >> 4) as u32) } else { None }
}

// Non-canonical on x86-64 and outside user space on aarch64, so no mapping has such an address.
const FUNCTION_TAG: u64 = 0x7c0d_e000_0000_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_addresses_round_trip_and_nothing_else_passes() {
        for index in [0, 1, 77, u32::MAX] {
            assert_eq!(function_at(function_address(index)), Some(index));
        }
        for wild in [0, 0x7fff_0000_1000, function_address(3) + 1, u64::MAX] {
            assert_eq!(function_at(wild), None);
        }
    }
}
