//! One row of the catalog.

/// A kernel file and everything a caller must know to use it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Name for [`crate::instantiate`].
    pub name: &'static str,
    /// File under `kernels/`.
    pub file: &'static str,
    /// Its purpose.
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
    /// Its effect, for the documentation.
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

pub(super) const fn arg(name: &'static str, ty: &'static str) -> Arg {
    Arg { name, ty }
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
