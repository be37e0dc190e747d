//! What there is to instantiate: one row per kernel file.

/// A kernel file and everything a caller must know to use it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Name for [`crate::instantiate`].
    pub name: &'static str,
    /// File under `kernels/`.
    pub file: &'static str,
    /// What it is for.
    pub doc: &'static str,
    /// Lowest compute capability.
    pub min_sm: u32,
    /// Lowest PTX version, times ten.
    pub min_ptx: u32,
    /// Template parameters, each with every value that is allowed; the first is the default.
    pub params: &'static [Param],
    /// Entry points, in the order of the file.
    pub entries: &'static [Entry],
}

/// A template parameter.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Name in the template.
    pub name: &'static str,
    /// Allowed values; all their combinations are assembled in CI.
    pub values: &'static [&'static str],
}

/// An entry point.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Symbol, for `cuModuleGetFunction`; may contain `${PARAM}`.
    pub symbol: &'static str,
    /// Kernel parameters in order.
    pub args: &'static [Arg],
    /// Grid and block it may be launched with.
    pub launch: Launch,
    /// What it does.
    pub doc: &'static str,
}

/// A kernel parameter, passed by value.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Name.
    pub name: &'static str,
    /// Type: `u32`, `u64` or the name of a structure of [`crate::abi`].
    pub ty: &'static str,
}

/// Grids that an entry allows. Blocks are one-dimensional and a multiple of 32 threads in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// One block; thread 0 acts, so 32 threads are enough.
    OneBlock,
    /// Any one-dimensional grid.
    AnyGrid,
    /// Any one-dimensional grid whose blocks are all resident: launch cooperatively.
    Cooperative,
}

const fn arg(name: &'static str, ty: &'static str) -> Arg {
    Arg { name, ty }
}

const CHANNEL: Arg = arg("channel", "MemoryChannelHandle");

/// Every kernel file.
pub const CATALOG: &[Kernel] = &[
    Kernel {
        name: "channel",
        file: "channel.ptx",
        doc: "HB put and get of a memory channel",
        min_sm: 70,
        min_ptx: 60,
        params: &[Param { name: "UNROLL", values: &["4", "8"] }],
        entries: &[
            Entry {
                symbol: "aqueduct_channel_put",
                args: &[
                    CHANNEL,
                    arg("dst_offset", "u64"),
                    arg("src_offset", "u64"),
                    arg("bytes", "u64"),
                    arg("signal", "u32"),
                ],
                launch: Launch::AnyGrid,
                doc: "copy src + src_offset to dst + dst_offset; if signal != 0, signal once after all blocks",
            },
            Entry {
                symbol: "aqueduct_channel_get",
                args: &[
                    CHANNEL,
                    arg("remote_offset", "u64"),
                    arg("local_offset", "u64"),
                    arg("bytes", "u64"),
                ],
                launch: Launch::AnyGrid,
                doc: "copy dst + remote_offset to src + local_offset",
            },
        ],
    },
    Kernel {
        name: "semaphore",
        file: "semaphore.ptx",
        doc: "signal, wait and poll of a memory channel's semaphore",
        min_sm: 70,
        min_ptx: 60,
        params: &[],
        entries: &[
            Entry {
                symbol: "aqueduct_channel_signal",
                args: &[CHANNEL],
                launch: Launch::OneBlock,
                doc: "publish everything before in the stream, then signal the peer once",
            },
            Entry {
                symbol: "aqueduct_channel_relaxed_signal",
                args: &[CHANNEL],
                launch: Launch::OneBlock,
                doc: "signal the peer once without publishing anything else",
            },
            Entry {
                symbol: "aqueduct_channel_wait",
                args: &[CHANNEL],
                launch: Launch::OneBlock,
                doc: "take one signal, waiting for it; leaves with a record when the abort word is set",
            },
            Entry {
                symbol: "aqueduct_channel_relaxed_wait",
                args: &[CHANNEL],
                launch: Launch::OneBlock,
                doc: "as wait, without seeing what was published before the signal",
            },
            Entry {
                symbol: "aqueduct_channel_poll",
                args: &[CHANNEL, arg("taken", "u64")],
                launch: Launch::OneBlock,
                doc: "take one signal if there is one; store 1 or 0 (u32) at the global address taken",
            },
        ],
    },
];

/// The row with this name.
pub fn kernel(name: &str) -> Option<&'static Kernel> {
    CATALOG.iter().find(|row| row.name == name)
}

impl Kernel {
    /// Every combination of parameter values.
    pub fn variants(&self) -> Vec<Vec<(&'static str, &'static str)>> {
        self.params.iter().fold(vec![Vec::new()], |variants, param| {
            let extend =
                |variant: &Vec<_>, value| variant.iter().copied().chain([(param.name, value)]).collect();
            variants.iter().flat_map(|v| param.values.iter().map(move |&value| extend(v, value))).collect()
        })
    }
}
