//! One function per instruction: it takes its modifiers, checks its operands and emits its code.
//!
//! Names and rules are those of PTX ISA 9.0, chapter 9.7; where the text leaves room, ptxas 13.0 decides.

mod arithmetic;
mod atomic;
mod bits;
mod call;
mod carry;
mod compare;
mod control;
mod convert;
mod float;
mod memory;
mod mov;
mod warp;

use super::function::Builder;
use super::modifiers::Modifiers;
use crate::ptx::Diagnostic;
use crate::ptx::ast::Instruction;

type Lowered = Result<(), Diagnostic>;

/// Emits the code of `i`. Modifiers that nothing took stay in `m`.
pub(super) fn lower<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    match i.opcode.text.as_str() {
        "mov" => mov::mov(b, i, m),
        "add" | "sub" => arithmetic::add_sub(b, i, m),
        "mul" => arithmetic::mul(b, i, m),
        "mad" => arithmetic::mad(b, i, m),
        "fma" => float::fma(b, i, m),
        "div" => arithmetic::div(b, i, m),
        "rem" => arithmetic::rem(b, i, m),
        "min" | "max" => arithmetic::min_max(b, i, m),
        "neg" | "abs" => arithmetic::neg_abs(b, i, m),
        "mul24" => arithmetic::mul24(b, i, m),
        "mad24" => arithmetic::mad24(b, i, m),
        "sad" => arithmetic::sad(b, i, m),
        "dp4a" | "dp2a" => arithmetic::dot(b, i, m),
        "addc" | "subc" => carry::add_sub(b, i, m),
        "madc" => carry::madc(b, i, m),
        "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => float::function(b, i, m),
        "copysign" => float::copysign(b, i, m),
        "testp" => float::testp(b, i, m),
        "and" | "or" | "xor" | "not" | "cnot" => bits::logic(b, i, m),
        "shl" | "shr" => bits::shift(b, i, m),
        "shf" => bits::funnel(b, i, m),
        "lop3" => bits::lop3(b, i, m),
        "prmt" => bits::prmt(b, i, m),
        "popc" | "clz" | "brev" | "bfind" => bits::count(b, i, m),
        "bfe" => bits::bfe(b, i, m),
        "bfi" => bits::bfi(b, i, m),
        "bmsk" | "szext" => bits::mask(b, i, m),
        "setp" => compare::setp(b, i, m),
        "set" => compare::set(b, i, m),
        "selp" => compare::selp(b, i, m),
        "slct" => compare::slct(b, i, m),
        "cvt" => convert::cvt(b, i, m),
        "cvta" => convert::cvta(b, i, m),
        "isspacep" => convert::isspacep(b, i, m),
        "ld" | "ldu" => memory::ld(b, i, m),
        "st" => memory::st(b, i, m),
        "prefetch" | "prefetchu" => memory::prefetch(b, i, m),
        "cp" => memory::cp_async(b, i, m),
        "atom" | "red" => atomic::atom(b, i, m),
        "fence" => atomic::fence(b, i, m),
        "membar" => atomic::membar(b, i, m),
        "bar" | "barrier" => warp::barrier(b, i, m),
        "vote" => warp::vote(b, i, m),
        "shfl" => warp::shfl(b, i, m),
        "match" => warp::matching(b, i, m),
        "redux" => warp::redux(b, i, m),
        "activemask" => warp::activemask(b, i, m),
        "elect" => warp::elect(b, i, m),
        "bra" => control::bra(b, i, m),
        "brx" => control::brx(b, i, m),
        "call" => call::call(b, i, m),
        "ret" | "exit" | "trap" | "brkpt" => control::leave(b, i, m),
        "nanosleep" => control::nanosleep(b, i, m),
        "griddepcontrol" => control::griddepcontrol(b, i, m),
        other => Err(i.opcode.at.error(format!("Instruction '{other}' is not supported on this device"))),
    }
}
