//! Kernels that call one operation each: linked with its function, made from the library's declarations; or compiled by
//! nvcc with its inline function (`calls.cu`).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::device::LaunchShape;
use aqueduct_ptx::abi::{
    AbortHandle, DeviceStruct, FifoHandle, GridBarrierHandle, LEFT_CLOSED, LEFT_NOT, LEFT_REFUSED, LEFT_TOLD,
    MemoryChannelHandle, PortChannelHandle, SemaphoreHandle,
};
use aqueduct_ptx::{Target, declarations, functions};
use cuda_driver_sys::CUfunction;

use crate::device::{Args, Machine};
use crate::ring::word;

/// The least that knows `cvta.param`.
const CVTA_PARAM: Target = Target { sm: 70, ptx: 77 };

/// The thread whose status is the one given to a barrier.
pub(crate) const ODD_ONE: u64 = 5;
/// Threads of a launch at most.
const THREADS: usize = 512;
/// A result that was not written.
pub(crate) const NOTHING: u64 = 0xEEEE_EEEE_EEEE_EEEE;
/// The codes with which operations leave, as results.
pub(crate) const NOT: u64 = LEFT_NOT as u64;
pub(crate) const TOLD: u64 = LEFT_TOLD as u64;
pub(crate) const REFUSED: u64 = LEFT_REFUSED as u64;
pub(crate) const CLOSED: u64 = LEFT_CLOSED as u64;
/// Long enough for a kernel that does not wait to have ended.
pub(crate) const WHILE: Duration = Duration::from_millis(30);

/// In which form an operation is called.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Linked,
    Compiled,
}

/// Each test in either form.
macro_rules! in_both_forms {
    ($($test:ident),* $(,)?) => {
        mod linked {
            $(#[test] fn $test() { super::$test($crate::calls::Form::Linked); })*
        }
        mod compiled {
            $(#[test] fn $test() { super::$test($crate::calls::Form::Compiled); })*
        }
    };
}
pub(crate) use in_both_forms;

/// The operations of one rank, callable from the host.
pub(crate) struct Calls {
    rank: usize,
    entries: HashMap<String, CUfunction>,
    /// Per thread, two results (pinned).
    out: u64,
}

impl Calls {
    pub(crate) fn new(machine: &Machine, rank: usize, form: Form) -> Self {
        match form {
            Form::Linked => Self::of(machine, rank, &linked(&declarations().unwrap())),
            Form::Compiled => Self::of(machine, rank, include_str!("nvcc/calls.sm_75.ptx")),
        }
    }

    /// Of a module with a kernel for each function.
    pub(crate) fn of(machine: &Machine, rank: usize, text: &str) -> Self {
        let declared = declarations().unwrap();
        let names: Vec<&str> = names(&declared).collect();
        let symbols: Vec<String> = names.iter().map(|name| format!("call_{name}")).collect();
        let functions = machine.load_all(rank, text, &symbols);
        let entries = names.into_iter().map(str::to_owned).zip(functions).collect();
        Self { rank, entries, out: machine.host(16 * THREADS) as u64 }
    }

    /// Has a kernel call `name`. Where the function takes the place of a thread in its group or a status, all threads of the
    /// grid call it and are the group; otherwise the first one does. `args` are the other parameters in their order,
    /// structures by value.
    pub(crate) fn start(&self, machine: &Machine, name: &str, grid: u32, block: u32, args: Args) {
        for slot in 0..2 * THREADS as u64 {
            word(self.out + 8 * slot).store(NOTHING, Ordering::Release);
        }
        let shape = LaunchShape { grid, block };
        machine.launch(self.rank, self.entries[name], shape, &args.u64(self.out));
    }

    /// The same, to its end: the first thread's first result.
    pub(crate) fn run(&self, machine: &Machine, name: &str, grid: u32, block: u32, args: Args) -> u64 {
        self.start(machine, name, grid, block, args);
        machine.finish();
        self.result(0, 0)
    }

    /// A result of a thread's last call; a function with one result has it in slot 0.
    pub(crate) fn result(&self, thread: u64, slot: u64) -> u64 {
        word(self.out + 16 * thread + 8 * slot).load(Ordering::Acquire)
    }
}

/// The device library with a kernel for each function.
pub(crate) fn linked(declared: &str) -> String {
    let mut text = functions(CVTA_PARAM).unwrap().text;
    split(declared).for_each(|declaration| entry(&mut text, declaration));
    text
}

/// Names of the functions declared, without their prefix.
pub(crate) fn names(declared: &str) -> impl Iterator<Item = &str> {
    split(declared).map(name)
}

fn name(declaration: &str) -> &str {
    let at = declaration.find("aqueduct_device_").expect("a name") + "aqueduct_device_".len();
    declaration[at..].split('(').next().expect("parameters")
}

fn split(declared: &str) -> impl Iterator<Item = &str> {
    declared.split(".extern .func ").skip(1).map(|rest| rest.split(';').next().expect("an end"))
}

/// The bytes of a structure that is passed by its address.
fn handle(param: &str) -> Option<usize> {
    Some(match param {
        "channel" => MemoryChannelHandle::LAYOUT.size,
        "port" => PortChannelHandle::LAYOUT.size,
        "fifo" => FifoHandle::LAYOUT.size,
        "semaphore" => SemaphoreHandle::LAYOUT.size,
        "grid" => GridBarrierHandle::LAYOUT.size,
        "abort" => AbortHandle::LAYOUT.size,
        _ => return None,
    })
}

/// A kernel that calls the function of `declaration`.
fn entry(text: &mut String, declaration: &str) {
    let name = name(declaration);
    let (result, list) = declaration.split_once(name).expect("a name");
    let params: Vec<(&str, &str)> = list
        .trim_matches(['(', ')', '\n'])
        .split(",\n")
        .map(|param| {
            param.trim().strip_prefix(".param ").expect("a parameter").rsplit_once(' ').expect("a type")
        })
        .collect();
    let (mut outer, mut body) = (String::new(), String::new());
    let mut alone = true;
    for (nth, &(ty, param)) in params.iter().enumerate() {
        let ty = ty.trim_start_matches('.');
        let _ = writeln!(body, "    .param .{ty} p{nth}{};", param.find('[').map_or("", |at| &param[at..]));
        let own = match (param, ty) {
            ("thread", "u64") => "%index",
            ("threads", "u64") => "%count",
            ("thread", "u32") => "%lane",
            ("threads", "u32") => "%width",
            _ => "",
        };
        if !own.is_empty() {
            alone = false;
            let _ = writeln!(body, "    st.param.{ty} [p{nth}], {own};");
        } else if let Some(size) = handle(param) {
            let _ = writeln!(outer, "    .param .align 8 .b8 {param}[{size}],");
            let _ = writeln!(
                body,
                "    mov.b64 %a, {param};\n    cvta.param.u64 %a, %a;\n    st.param.u64 [p{nth}], %a;"
            );
        } else if param.starts_with("trigger[") {
            let _ = writeln!(outer, "    .param .{ty} {param},");
            for offset in [0, 8, 16, 24] {
                let _ = writeln!(
                    body,
                    "    ld.param.u64 %a, [trigger+{offset}];\n    st.param.u64 [p{nth}+{offset}], %a;"
                );
            }
        } else {
            let _ = writeln!(outer, "    .param .{ty} {param},");
            let register = if ty == "u64" { "%a" } else { "%w" };
            let _ = writeln!(body, "    ld.param.{ty} {register}, [{param}];");
            if param == "status" {
                alone = false;
                let _ = writeln!(body, "    setp.ne.u64 %p, %index, {ODD_ONE};\n    @%p mov.u32 %w, 0;");
            }
            let _ = writeln!(body, "    st.param.{ty} [p{nth}], {register};");
        }
    }
    let passed: Vec<String> = (0..params.len()).map(|nth| format!("p{nth}")).collect();
    let passed = passed.join(", ");
    let result = result.trim_end_matches("aqueduct_device_").trim();
    let (declared, taken, given) = match result {
        "" => (String::new(), "", String::new()),
        several if several.contains('[') => {
            let slots = "    ld.param.u32 %w, [result+0];\n    cvt.u64.u32 %a, %w;\n    st.weak.global.u64 [%out], %a;\n    \
                         ld.param.u64 %a, [result+8];\n    st.weak.global.u64 [%out+8], %a;\n";
            ("    .param .align 8 .b8 result[16];\n".to_owned(), "(result), ", slots.to_owned())
        }
        one => {
            let load = if one.contains(".u64") {
                "    ld.param.u64 %a, [result];\n"
            } else {
                "    ld.param.u32 %w, [result];\n    cvt.u64.u32 %a, %w;\n"
            };
            let declared = format!("    {};\n", one.trim_matches(['(', ')']));
            (declared, "(result), ", format!("{load}    st.weak.global.u64 [%out], %a;\n"))
        }
    };
    let guard = if alone { "    setp.ne.u64 %p, %index, 0;\n    @%p bra DONE;\n" } else { "" };
    let _ = write!(
        text,
        "
.visible .entry call_{name}(
{outer}    .param .u64 out
)
{{
    .reg .u64 %index, %count, %out, %a;
    .reg .u32 %lane, %width, %w;
    .reg .pred %p;
{declared}    mov.u32 %width, %ntid.x;
    mov.u32 %w, %nctaid.x;
    mul.wide.u32 %count, %w, %width;
    mov.u32 %w, %ctaid.x;
    mul.wide.u32 %index, %w, %width;
    mov.u32 %lane, %tid.x;
    cvt.u64.u32 %a, %lane;
    add.u64 %index, %index, %a;
    ld.param.u64 %out, [out];
    mad.lo.u64 %out, %index, 16, %out;
{guard}{body}    call {taken}aqueduct_device_{name}, ({passed});
{given}DONE:
    ret;
}}
"
    );
}
