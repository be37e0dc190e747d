//! One function per instruction. It takes the modifiers, checks the operands and emits code.
//!
//! Names and rules follow PTX ISA 9.0, chapter 9.7; where the text is ambiguous, ptxas 13.0 decides.

mod arithmetic;
mod atomic;
mod bits;
mod call;
mod carry;
mod cluster;
mod compare;
mod control;
mod convert;
mod float;
mod mbarrier;
mod memory;
mod mov;
mod multimem;
mod shape;
mod video;
mod warp;

use super::builder::{Builder, Lowered};
use super::modifiers::Modifiers;
use crate::ptx::ast::Instruction;

/// Lowers one instruction. Modifiers that it does not take stay in the last argument.
pub(super) type Handler = for<'a> fn(&mut Builder<'_, 'a>, &'a Instruction, &mut Modifiers<'a>) -> Lowered;

/// The function that lowers `opcode`; `None` for PTX that this device cannot run.
pub(super) fn handler(opcode: &str) -> Option<Handler> {
    let handler: Handler = match opcode {
        "mov" => mov::mov,
        "add" | "sub" => arithmetic::add_sub,
        "mul" => arithmetic::mul,
        "mad" => arithmetic::mad,
        "fma" => float::fma,
        "div" => arithmetic::div,
        "rem" => arithmetic::rem,
        "min" | "max" => arithmetic::min_max,
        "neg" | "abs" => arithmetic::neg_abs,
        "mul24" => arithmetic::mul24,
        "mad24" => arithmetic::mad24,
        "sad" => arithmetic::sad,
        "dp4a" | "dp2a" => arithmetic::dot,
        "vadd" | "vsub" | "vabsdiff" | "vmin" | "vmax" => video::scalar,
        "vadd2" | "vsub2" | "vavrg2" | "vabsdiff2" | "vmin2" | "vmax2" | "vset2" => video::packed,
        "vadd4" | "vsub4" | "vavrg4" | "vabsdiff4" | "vmin4" | "vmax4" | "vset4" => video::packed,
        "addc" | "subc" => carry::add_sub,
        "madc" => carry::madc,
        "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => float::function,
        "copysign" => float::copysign,
        "testp" => float::testp,
        "and" | "or" | "xor" | "not" | "cnot" => bits::logic,
        "shl" | "shr" => bits::shift,
        "shf" => bits::funnel,
        "lop3" => bits::lop3,
        "prmt" => bits::prmt,
        "popc" | "clz" | "brev" | "bfind" => bits::count,
        "bfe" => bits::bfe,
        "bfi" => bits::bfi,
        "bmsk" | "szext" => bits::mask,
        "setp" => compare::setp,
        "set" => compare::set,
        "selp" => compare::selp,
        "slct" => compare::slct,
        "cvt" => convert::cvt,
        "cvta" => convert::cvta,
        "isspacep" => convert::isspacep,
        "ld" | "ldu" => memory::ld,
        "st" => memory::st,
        "prefetch" | "prefetchu" => memory::prefetch,
        "discard" | "applypriority" => memory::line,
        "createpolicy" => memory::policy,
        "cp" => memory::cp_async,
        "mbarrier" => mbarrier::mbarrier,
        "multimem" => multimem::multimem,
        "mapa" => cluster::mapa,
        "getctarank" => cluster::getctarank,
        "atom" | "red" => atomic::atom,
        "fence" => atomic::fence,
        "membar" => atomic::membar,
        "bar" | "barrier" => warp::barrier,
        "vote" => warp::vote,
        "shfl" => warp::shfl,
        "match" => warp::matching,
        "redux" => warp::redux,
        "activemask" => warp::activemask,
        "elect" => warp::elect,
        "bra" => control::bra,
        "brx" => control::brx,
        "call" => call::call,
        "ret" | "exit" | "trap" | "brkpt" => control::leave,
        "nanosleep" => control::nanosleep,
        "setmaxnreg" | "pmevent" => control::nothing,
        "griddepcontrol" => control::griddepcontrol,
        _ => return None,
    };
    Some(handler)
}

#[cfg(test)]
mod tests {
    use super::handler;
    use crate::ptx::opcodes::{OPCODES, refused};

    #[test]
    fn every_instruction_is_lowered_or_refused() {
        for name in OPCODES {
            assert_eq!(handler(name).is_none(), refused(name), "{name}");
        }
    }
}
