//! The flat, checked form of a module: what lowering produces and the engine executes.
//!
//! Names are resolved (registers to slots, labels to instruction indices, variables to symbol
//! numbers or byte offsets) and every instruction carries its full type, semantics and scope, so
//! that execution needs neither the source text nor the syntax tree. [`Module::check`] proves the
//! properties on which the engine relies: it indexes registers and instructions without asking
//! again whether they exist.
//!
//! # Memory of a thread, as instructions see it
//! - *global* and *const* addresses are real addresses; `cvta` leaves them alone.
//! - *shared* addresses are byte offsets into the block's shared memory (32 bits suffice): the
//!   static part of the kernel first, then the dynamic part
//!   ([`Special::DynamicSharedBase`](op::Special)). `cvta.shared` adds the block's real base.
//! - *local* addresses are byte offsets into the thread's stack. Each call owns a frame of
//!   [`Function::frame_size`] bytes: parameters received, values returned, `.local` variables and
//!   the `.param` variables it declares for its own calls. [`Base::Frame`] is the frame's start,
//!   [`op::Special::FrameBase`] its stack offset (the value of `mov %r, local_variable`).
//! - *param* of a kernel is the launch's parameter buffer ([`Base::KernelParam`]); parameters of a
//!   `.func` lie in its frame.

mod check;
pub mod op;
pub mod operand;

pub use op::Op;
pub use operand::{Addr, Base, Guard, Pred, PredSrc, Reg, Round, Scope, Semantics, Space, Src, Ty};

/// A module: functions, variables and nothing that depends on where it is loaded.
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

    /// Proves that every register, label, symbol and call in the module exists.
    ///
    /// # Errors
    /// A sentence with function, instruction index and source line of the first violation.
    pub fn check(&self) -> Result<(), String> {
        check::module(self)
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
    /// The source line of each instruction (1-based), as long as `code`.
    pub lines: Vec<u32>,
    /// Number of 32-bit register slots (8-, 16- and 32-bit registers; narrow ones zero-extended).
    pub regs32: u16,
    /// Number of 64-bit register slots.
    pub regs64: u16,
    /// Number of predicate registers.
    pub preds: u16,
    /// Parameters in order. A kernel's `offset` is into the launch's parameter buffer, another
    /// function's into its frame.
    pub params: Vec<Param>,
    /// Returned values of a `.func`, in its frame.
    pub returns: Vec<Param>,
    /// Bytes of the parameter buffer (kernels).
    pub param_size: u32,
    /// Bytes of a call's frame on the thread's stack, a multiple of 16.
    pub frame_size: u32,
    /// Bytes of static shared memory the kernel and all it calls need.
    pub shared_size: u32,
    /// Alignment of the dynamic shared memory, which follows the static part (at least 16).
    pub dynamic_shared_align: u32,
    /// `.maxntid` as a product, or 0 where the source does not say.
    pub max_threads: u32,
    /// `.reqntid`, or zeros where the source does not say.
    pub required_block: [u32; 3],
    /// `.minnctapersm`, or 0 where the source does not say.
    pub min_blocks_per_sm: u32,
}

/// One parameter or returned value: where it lies and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Byte offset (see [`Function::params`]).
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
    /// Alignment in bytes.
    pub align: u32,
}

/// One instruction: a guard and what it does.
#[derive(Clone, Debug)]
pub struct Inst {
    /// `@p` or `@!p`; [`Guard::ALWAYS`] when absent.
    pub guard: Guard,
    /// What it does.
    pub op: Op,
}

/// A `.global` or `.const` variable.
#[derive(Clone, Debug, Default)]
pub struct Global {
    /// The name in the source.
    pub name: String,
    /// Whether it lies in the constant bank (read-only to kernels, writable by the host).
    pub constant: bool,
    /// Visible to `cuModuleGetGlobal` and to the linker (`.visible`, `.weak`, `.common`).
    pub visible: bool,
    /// Size in bytes.
    pub size: u64,
    /// Alignment in bytes.
    pub align: u64,
    /// Initial bytes by their offset, in order; everything else is zero.
    pub init: Vec<(u64, Vec<u8>)>,
    /// Addresses to write over `init` once symbols have addresses.
    pub relocations: Vec<Relocation>,
}

/// The bytes `offset .. offset + size` are `address(symbol) + addend`, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Byte offset in the variable.
    pub offset: u64,
    /// Bytes to write: 4 or 8.
    pub size: u8,
    /// Whose address.
    pub symbol: Symbol,
    /// Added to the address.
    pub addend: i64,
}

/// Something with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// A variable of the module, by index.
    Global(u32),
    /// A function of the module, by index; its address is [`function_address`].
    Function(u32),
}

/// The value that `mov` from a function name yields and an indirect call accepts.
///
/// Not a mapped address: loads through it fault, as a wild pointer does.
#[must_use]
pub const fn function_address(index: u32) -> u64 {
    FUNCTION_TAG | (index as u64) << 4
}

/// The function index in an address made by [`function_address`].
#[must_use]
pub const fn function_at(address: u64) -> Option<u32> {
    if address & !0xf_ffff_fff0 == FUNCTION_TAG { Some((address >> 4) as u32) } else { None }
}

// Non-canonical on x86-64 and outside user space on aarch64, so never a mapping.
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
