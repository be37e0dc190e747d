//! Runs a few threads over many seeds and counts the outcomes.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use cuda_driver_sys::{CUcontext, CUfunction, CUresult, CUstream, DriverTable};
use cuda_soft::{Check, Config, Lines, Weak};

use team::Team;

#[path = "../races/team.rs"]
mod team;

/// Seeds of each program.
pub(crate) const SEEDS: u64 = 400;

/// Where the threads of a program run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Blocks of one grid.
    Blocks,
    /// Two devices, every other thread on each.
    Devices,
}

/// Words that the threads share, 1 KiB apart, all zero at first.
const WORDS: u64 = 4;
/// Where thread *t* leaves its registers `%r0` to `%r3`.
const RESULTS: usize = 8192;
const BYTES: usize = 1 << 16;

/// Two devices whose memory is weak. Tests use them one after another.
pub(crate) struct Devices {
    table: DriverTable,
    contexts: [CUcontext; 2],
    streams: [CUstream; 2],
    memory: u64,
    /// Words of both devices at one multicast address, `%all`.
    team: Option<Team>,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) type Outcomes = BTreeMap<Vec<u32>, u64>;

fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

impl Devices {
    pub(crate) fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        static TABLE: OnceLock<()> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        TABLE.get_or_init(|| {
            let watchdog = Some(Duration::from_secs(20));
            let check = Check { races: true, weak: Some(Weak::default()), ..Check::default() };
            cuda_soft::configure(Config {
                devices: 2,
                multicast: true,
                watchdog,
                check,
                ..Config::default()
            })
            .unwrap();
        });
        let table = cuda_soft::driver_table();
        let (mut contexts, mut streams, mut memory) = ([ptr::null_mut(); 2], [ptr::null_mut(); 2], 0);
        // SAFETY: all pointers are to locals.
        unsafe {
            ok((table.cuInit)(0));
            for ordinal in [0, 1] {
                ok((table.cuDevicePrimaryCtxRetain)(&raw mut contexts[ordinal], ordinal as i32));
                ok((table.cuCtxSetCurrent)(contexts[ordinal]));
                ok((table.cuStreamCreate)(&raw mut streams[ordinal], 1));
            }
            ok((table.cuCtxEnablePeerAccess)(contexts[0], 0));
            ok((table.cuCtxSetCurrent)(contexts[0]));
            ok((table.cuMemAlloc_v2)(&raw mut memory, BYTES));
        }
        Self { table, contexts, streams, memory, team: None, _turn: turn }
    }

    /// The same with a team of both.
    pub(crate) fn with_team() -> Self {
        let mut devices = Self::new();
        devices.team = Some(Team::new(&devices.table));
        devices
    }

    /// Runs `threads` with each seed. Returns how often each outcome came, as `outcome` takes it from the memory.
    pub(crate) fn count(
        &self,
        threads: &[String],
        placement: Placement,
        block: u32,
        lines: Lines,
        outcome: impl Fn(&Memory) -> Vec<u32>,
    ) -> Outcomes {
        self.count_of(0..SEEDS, threads, placement, block, lines, outcome)
    }

    /// The same with other seeds.
    pub(crate) fn count_of(
        &self,
        seeds: Range<u64>,
        threads: &[String],
        placement: Placement,
        block: u32,
        lines: Lines,
        outcome: impl Fn(&Memory) -> Vec<u32>,
    ) -> Outcomes {
        let text = program(threads);
        let functions = [0, 1].map(|device| self.load(device, &text));
        let mut outcomes = Outcomes::new();
        for seed in seeds {
            cuda_soft::weaken(Weak { seed, lines });
            self.enter(0);
            // SAFETY: the memory is alive.
            unsafe {
                ok((self.table.cuMemsetD8_v2)(self.memory, 0, BYTES));
                for own in self.team.iter().flat_map(|team| team.own) {
                    ok((self.table.cuMemsetD8_v2)(own, 0, BYTES));
                }
                ok((self.table.cuCtxSynchronize)());
            }
            let count = threads.len() as u32;
            let delays = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(21);
            match placement {
                Placement::Blocks => self.launch(0, functions[0], [0, 1], delays, [count, block]),
                Placement::Devices => {
                    self.launch(0, functions[0], [0, 2], delays, [count.div_ceil(2), block]);
                    self.launch(1, functions[1], [1, 2], delays, [count / 2, block]);
                }
            }
            let mut memory = vec![0_u8; BYTES];
            for device in [1, 0] {
                self.enter(device);
                // SAFETY: no pointers are passed.
                let code = unsafe { (self.table.cuCtxSynchronize)() };
                assert_eq!(code, CUresult::CUDA_SUCCESS, "seed {seed}: {:?}\n{text}", cuda_soft::races());
            }
            // SAFETY: the buffer has as many bytes.
            ok(unsafe { (self.table.cuMemcpyDtoH_v2)(memory.as_mut_ptr().cast(), self.memory, BYTES) });
            *outcomes.entry(outcome(&Memory(memory))).or_default() += 1;
        }
        outcomes
    }

    /// Runs `threads` once, as blocks, and returns how it ended.
    pub(crate) fn run(&self, threads: &[String]) -> CUresult {
        let function = self.load(0, &program(threads));
        // SAFETY: the memory is alive.
        unsafe {
            ok((self.table.cuMemsetD8_v2)(self.memory, 0, BYTES));
            ok((self.table.cuCtxSynchronize)());
        }
        self.launch(0, function, [0, 1], 0, [threads.len() as u32, 1]);
        // SAFETY: no pointers are passed.
        unsafe { (self.table.cuCtxSynchronize)() }
    }

    fn enter(&self, device: usize) {
        // SAFETY: the context is alive.
        ok(unsafe { (self.table.cuCtxSetCurrent)(self.contexts[device]) });
    }

    fn load(&self, device: usize, text: &str) -> CUfunction {
        self.enter(device);
        let owned = CString::new(text).unwrap();
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the text ends with NUL, and the pointers are to locals.
        unsafe {
            let code = (self.table.cuModuleLoadData)(&raw mut module, owned.as_ptr().cast());
            assert_eq!(code, CUresult::CUDA_SUCCESS, "{text}");
            ok((self.table.cuModuleGetFunction)(&raw mut function, module, c"k".as_ptr()));
        }
        function
    }

    /// Launches threads number `first`, `first + step` and so on, each as a block.
    fn launch(
        &self,
        device: usize,
        function: CUfunction,
        [mut first, mut step]: [u32; 2],
        mut delays: u64,
        [grid, block]: [u32; 2],
    ) {
        self.enter(device);
        let mut memory = self.memory;
        let mut all = self.team.as_ref().map_or(0, |team| team.all);
        let mut params: [*mut c_void; 5] = [
            (&raw mut memory).cast(),
            (&raw mut first).cast(),
            (&raw mut step).cast(),
            (&raw mut delays).cast(),
            (&raw mut all).cast(),
        ];
        let (stream, params) = (self.streams[device], params.as_mut_ptr());
        // SAFETY: there is one pointer per parameter.
        unsafe {
            ok((self.table.cuLaunchKernel)(
                function,
                grid,
                1,
                1,
                block,
                1,
                1,
                0,
                stream,
                params,
                ptr::null_mut(),
            ));
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        if let Some(team) = self.team.take() {
            team.leave(&self.table);
        }
        for device in [0, 1] {
            // SAFETY: retained once in `new`.
            unsafe { (self.table.cuDevicePrimaryCtxRelease_v2)(device) };
        }
    }
}

/// The memory after a run.
pub(crate) struct Memory(Vec<u8>);

impl Memory {
    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    /// Register `%r<number>` of lane `lane` of a thread.
    pub(crate) fn register(&self, thread: usize, lane: usize, number: usize) -> u32 {
        self.word(RESULTS + thread * 1024 + lane * 16 + number * 4)
    }

    /// A shared word: 0 is `x`.
    pub(crate) fn shared(&self, word: usize) -> u32 {
        self.word(word * 1024)
    }
}

/// The kernel. `%x`, `%y`, `%z` and `%w` are addresses of shared words, and `%all` is that of words of a team. The
/// threads begin together; nothing orders them.
fn program(threads: &[String]) -> String {
    let mut bodies = String::new();
    for number in 0..threads.len() {
        bodies += &format!("    setp.eq.u32 %p0, %thread, {number};\n    @%p0 bra THREAD{number};\n");
    }
    bodies += "    bra DONE;\n";
    for (number, body) in threads.iter().enumerate() {
        bodies += &format!("THREAD{number}:\n{body}\n    bra DONE;\n");
    }
    format!(
        ".version 8.1
.target sm_90
.address_size 64
.visible .entry k(.param .u64 memory, .param .u32 first, .param .u32 step, .param .u64 delays,
    .param .u64 team)
{{
    .reg .u64 %x, %y, %z, %w, %all, %gate, %out, %at, %delays, %d<12>;
    .reg .u32 %thread, %first, %step, %threads, %lane, %size, %r<8>, %t<8>;
    .reg .pred %p<8>;
    ld.param.u64 %x, [memory];
    ld.param.u32 %first, [first];
    ld.param.u32 %step, [step];
    ld.param.u64 %delays, [delays];
    ld.param.u64 %all, [team];
    add.u64 %y, %x, 1024;
    add.u64 %z, %x, 2048;
    add.u64 %w, %x, 3072;
    add.u64 %gate, %x, {gate};
    mov.u32 %thread, %ctaid.x;
    mad.lo.u32 %thread, %thread, %step, %first;
    mov.u32 %lane, %tid.x;
    mov.u32 %size, %ntid.x;
    mul.lo.u32 %threads, %size, {count};
    mul.wide.u32 %out, %thread, 1024;
    mad.wide.u32 %out, %lane, 16, %out;
    add.u64 %out, %out, %x;
    mov.u32 %r0, 0;
    mov.u32 %r1, 0;
    mov.u32 %r2, 0;
    mov.u32 %r3, 0;
    red.relaxed.sys.global.add.u32 [%gate], 1;
GATE:
    // A loop that writes is not taken for one that waits, so all threads go on being chosen.
    st.weak.global.u32 [%out+{RESULTS}], 0;
    ld.relaxed.sys.global.u32 %t0, [%gate];
    setp.ne.u32 %p0, %t0, %threads;
    @%p0 bra GATE;
    // Each thread then begins at a time of its own, which the seed determines.
    shl.b32 %t0, %thread, 3;
    shr.u64 %at, %delays, %t0;
    cvt.u32.u64 %t0, %at;
    and.b32 %t0, %t0, 7;
DELAY:
    nanosleep.u32 1;
    sub.s32 %t0, %t0, 1;
    setp.ge.s32 %p0, %t0, 0;
    @%p0 bra DELAY;
{bodies}
DONE:
    st.weak.global.v4.u32 [%out+{RESULTS}], {{%r0, %r1, %r2, %r3}};
    ret;
}}
",
        gate = WORDS * 1024,
        count = threads.len(),
    )
}
