//! Branches, returns and pauses (PTX ISA 9.7.12).

use crate::code::{Op, Ty};
use crate::lower::builder::{Builder, Lowered, exactly};
use crate::lower::modifiers::Modifiers;
use crate::ptx::ast::{Instruction, OperandKind};

/// `bra`. The branch holds the number of its label until the function is complete.
pub(super) fn bra<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    m.take("uni");
    let [target] = exactly(b, i)?;
    let OperandKind::Name { name, component: None, offset: 0 } = &target.kind else {
        return Err(b.mismatch(target.at, "a label is wanted"));
    };
    let target = b.label(name, target.at)?;
    b.emit(Op::Bra { target });
    Ok(())
}

/// `brx.idx`.
pub(super) fn brx<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    m.required("'.idx'", &[("idx", ())])?;
    m.take("uni");
    let [index, list] = exactly(b, i)?;
    let index = b.value(index, Ty::U32)?;
    let OperandKind::Name { name, component: None, offset: 0 } = &list.kind else {
        return Err(b.mismatch(list.at, "a list of branch targets is wanted"));
    };
    let targets = b.targets(name, list.at)?;
    b.emit(Op::Brx { index, targets: targets.into() });
    Ok(())
}

/// `ret`, `exit`, `trap`, `brkpt`.
pub(super) fn leave<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let [] = exactly(b, i)?;
    let op = match i.opcode.text.as_str() {
        "ret" => {
            m.take("uni");
            b.store_returns()?;
            Op::Ret
        }
        "exit" => Op::Exit,
        _ => Op::Trap,
    };
    b.emit(op);
    Ok(())
}

pub(super) fn nanosleep<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    let ty = m.ty(&[Ty::U32])?;
    b.needs("nanosleep", 70, (6, 3), m.at())?;
    let [duration] = exactly(b, i)?;
    let duration = b.value(duration, ty)?;
    b.emit(Op::Nanosleep { duration });
    Ok(())
}

/// `setmaxnreg` and `pmevent`: this device has neither a limit of registers nor performance counters.
pub(super) fn nothing<'a>(b: &mut Builder<'_, 'a>, i: &'a Instruction, m: &mut Modifiers<'a>) -> Lowered {
    m.one_of(&[("inc", ()), ("dec", ()), ("mask", ())]);
    m.take("sync");
    m.take("aligned");
    m.one_of(&[("u32", ())]);
    let [number] = exactly(b, i)?;
    b.value(number, Ty::U32)?;
    b.emit(Op::Nop);
    Ok(())
}

/// `griddepcontrol` has no effect: launches on this device never overlap their predecessors in a stream.
pub(super) fn griddepcontrol<'a>(
    b: &mut Builder<'_, 'a>,
    i: &'a Instruction,
    m: &mut Modifiers<'a>,
) -> Lowered {
    m.required("Action", &[("launch_dependents", ()), ("wait", ())])?;
    b.needs("griddepcontrol", 90, (7, 8), m.at())?;
    let [] = exactly(b, i)?;
    b.emit(Op::Nop);
    Ok(())
}
