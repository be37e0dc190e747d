//! Configuration of the software machine, from [`configure`] or from the environment.

mod unused;

use std::sync::OnceLock;
use std::time::Duration;

use crate::mem::MAX_DEVICES;

/// Describes the software machine of this process.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Number of devices, at most [`MAX_DEVICES`] (`AQUEDUCT_SOFT_DEVICES`, default 8).
    pub devices: usize,
    /// Multiprocessors per device: bounds how many blocks are resident (`AQUEDUCT_SOFT_SMS`, default 16).
    pub sms: u32,
    /// Bytes of memory per device and process. Pages take host memory only once they are touched
    /// (`AQUEDUCT_SOFT_MEMORY`, with a suffix K, M or G, default 8G).
    pub memory: u64,
    /// Bytes of host memory that the race detector takes at most, about, for what it knows of memory. A kernel that needs more
    /// fails (`AQUEDUCT_SOFT_SHADOW`, with a suffix K, M or G, default 4G).
    pub shadow: u64,
    /// Worker threads (`AQUEDUCT_SOFT_CORES`; default 0: as many as the process has cores, at most 8).
    pub cores: usize,
    /// Time without progress after which a kernel is killed with `CUDA_ERROR_LAUNCH_TIMEOUT`
    /// (`AQUEDUCT_SOFT_WATCHDOG`, in seconds, 0 for never, default 60). `docs/faults.md` says what progress is.
    pub watchdog: Option<Duration>,
    /// Compute capability (`AQUEDUCT_SOFT_CC`, as in `9.0`).
    pub compute_capability: (u32, u32),
    /// Multicast objects, as over NVSwitch (`AQUEDUCT_SOFT_MULTICAST`, 0 or 1, default 0).
    pub multicast: bool,
    /// Features to hide, for tests of code for old or restricted machines.
    pub lacks: Lacks,
    /// Checks while work runs.
    pub check: Check,
    /// With a seed, work of streams begins and ends late, and memory and registers that are new hold garbage, shared and local memory
    /// included: all that the driver API and PTX allow and a program may not rely on (`AQUEDUCT_SOFT_UNKIND`).
    pub unkind: Option<u64>,
}

/// Checks that the machine makes while work runs, at the cost of speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Data races of kernels, copies and stream operations (`AQUEDUCT_SOFT_CHECK=races`).
    pub races: bool,
    /// A warp that is diverged at a barrier that PTX calls aligned, as `bar.sync` is, ends its kernel
    /// (`AQUEDUCT_SOFT_CHECK=aligned`). PTX promises that lanes meet again only at `bar.warp.sync` and its like, though compilers
    /// rely on more.
    pub aligned: bool,
    /// Strong loads and stores behave as weakly as the memory model allows, and registers, shared and local memory hold garbage
    /// until they are written (`AQUEDUCT_SOFT_CHECK=weak`, which looks for races, too).
    pub weak: Option<Weak>,
}

/// How weak memory is chosen to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weak {
    /// Determines all choices (`AQUEDUCT_SOFT_SEED`, default 0).
    pub seed: u64,
    /// The rule for lines (`AQUEDUCT_SOFT_LINES`).
    pub lines: Lines,
}

/// How a line of 128 bytes arrives that a warp writes with one instruction of vectors. The memory model has no rule for
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lines {
    /// At once (`whole`).
    Whole,
    /// In increasing order of address (`ascending`).
    #[default]
    Ascending,
    /// In any order, as the memory model has it (`torn`).
    Torn,
}

/// Features that the machine pretends not to have, so that code for such machines can be tested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// Virtual memory management: the attribute is 0 and the entries are missing from the table
    /// (`AQUEDUCT_SOFT_LACKS=vmm`).
    pub vmm: bool,
    /// Access between devices (`p2p`).
    pub p2p: bool,
    /// Native atomics between devices, as over NVLink. Without them the links are like PCIe (`native_atomics`).
    pub native_atomics: bool,
    /// Export of memory as a POSIX file descriptor (`posix_fd`).
    pub posix_fd: bool,
    /// Legacy IPC (`ipc`).
    pub ipc: bool,
    /// Stream memory operations: the entries are missing from the table (`stream_mem_ops`).
    pub stream_mem_ops: bool,
    /// Cooperative launches (`cooperative`).
    pub cooperative: bool,
    /// Export of memory as a dma-buf: the attribute is 0 and the entry is missing from the table (`dma_buf`).
    pub dma_buf: bool,
    /// The promise that kernels see a NIC's writes in order: only the attribute changes, to 0 (`rdma_ordering`).
    pub rdma_ordering: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 8,
            sms: 16,
            memory: 8 << 30,
            shadow: 4 << 30,
            cores: 0,
            watchdog: Some(Duration::from_secs(60)),
            compute_capability: (9, 0),
            multicast: false,
            lacks: Lacks::default(),
            check: Check::default(),
            unkind: None,
        }
    }
}

impl Config {
    /// Reads the environment; variables that are empty or not set keep their defaults.
    ///
    /// # Errors
    /// A sentence that names the variable whose value is invalid.
    pub fn from_env() -> Result<Self, String> {
        // No variable takes a value with the replacement character, so one that is not UTF-8 is refused.
        let get = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self::from_lookup(|name| get(name).filter(|value| !value.is_empty()))
    }

    /// Like [`from_env`](Self::from_env), with `get` as the source of variables.
    ///
    /// # Errors
    /// A sentence that names the variable whose value is invalid.
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut c = Self::default();
        let lacks = Lacks::default().words().map(|(name, _)| name);
        let field = |name: &str, wanted: &str, set: &mut dyn FnMut(&str) -> Option<()>| match get(name) {
            Some(text) if set(text.trim()).is_none() => {
                Err(format!("{name}={} is not valid; it takes {wanted}", text.escape_debug()))
            }
            _ => Ok(()),
        };
        field("AQUEDUCT_SOFT_DEVICES", &format!("a whole number from 0 to {MAX_DEVICES}"), &mut |t| {
            c.devices = t.parse().ok().filter(|n| *n <= MAX_DEVICES)?;
            Some(())
        })?;
        field("AQUEDUCT_SOFT_SMS", "a whole number from 1 to 1024", &mut |t| {
            c.sms = t.parse().ok().filter(|n| (1..=1024).contains(n))?;
            Some(())
        })?;
        field("AQUEDUCT_SOFT_MEMORY", BYTES, &mut |t| {
            c.memory = bytes(t)?;
            Some(())
        })?;
        field("AQUEDUCT_SOFT_SHADOW", BYTES, &mut |t| {
            c.shadow = bytes(t)?;
            Some(())
        })?;
        field("AQUEDUCT_SOFT_CORES", "a whole number from 0, for one thread per core, to 1024", &mut |t| {
            c.cores = t.parse().ok().filter(|n| *n <= 1024)?;
            Some(())
        })?;
        field("AQUEDUCT_SOFT_WATCHDOG", "a number of seconds, or 0 for never", &mut |t| {
            let seconds = t.parse::<f64>().ok().filter(|s| (0.0..1e9).contains(s))?;
            c.watchdog = (seconds > 0.0).then(|| Duration::from_secs_f64(seconds));
            Some(())
        })?;
        field("AQUEDUCT_SOFT_CC", "a compute capability such as 9.0", &mut |t| {
            let (major, minor) = t.split_once('.')?;
            let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
            c.compute_capability = ((1..100).contains(&major) && minor < 10).then_some((major, minor))?;
            Some(())
        })?;
        field("AQUEDUCT_SOFT_MULTICAST", "0 or 1", &mut |t| {
            c.multicast = match t {
                "0" => false,
                "1" => true,
                _ => return None,
            };
            Some(())
        })?;
        field("AQUEDUCT_SOFT_UNKIND", "a seed, which is a whole number", &mut |t| {
            c.unkind = Some(t.parse().ok()?);
            Some(())
        })?;
        field(
            "AQUEDUCT_SOFT_LACKS",
            &format!("words with commas between: {}", lacks.join(", ")),
            &mut |t| {
                for word in t.split(',') {
                    *c.lacks.field(word.trim())? = true;
                }
                Some(())
            },
        )?;
        field("AQUEDUCT_SOFT_CHECK", "words with commas between: races, aligned, weak", &mut |t| {
            for word in t.split(',') {
                match word.trim() {
                    "races" => c.check.races = true,
                    "aligned" => c.check.aligned = true,
                    "weak" => {
                        c.check.races = true;
                        c.check.weak = Some(Weak::default());
                    }
                    _ => return None,
                }
            }
            Some(())
        })?;
        let mut weak = Weak::default();
        field("AQUEDUCT_SOFT_SEED", "a whole number", &mut |t| {
            weak.seed = t.parse().ok()?;
            Some(())
        })?;
        field("AQUEDUCT_SOFT_LINES", "whole, ascending or torn", &mut |t| {
            weak.lines = match t {
                "whole" => Lines::Whole,
                "ascending" => Lines::Ascending,
                "torn" => Lines::Torn,
                _ => return None,
            };
            Some(())
        })?;
        c.check.weak = c.check.weak.and(Some(weak));
        Ok(c)
    }
}

impl Config {
    /// Whether devices have multicast objects: they take virtual memory management and `multimem` instructions.
    pub(crate) fn has_multicast(&self) -> bool {
        self.multicast && !self.lacks.vmm && self.compute_capability >= (9, 0)
    }
}

impl Lacks {
    /// All features with the words of `AQUEDUCT_SOFT_LACKS`.
    fn words(&mut self) -> [(&'static str, &mut bool); 9] {
        [
            ("vmm", &mut self.vmm),
            ("p2p", &mut self.p2p),
            ("native_atomics", &mut self.native_atomics),
            ("posix_fd", &mut self.posix_fd),
            ("ipc", &mut self.ipc),
            ("stream_mem_ops", &mut self.stream_mem_ops),
            ("cooperative", &mut self.cooperative),
            ("dma_buf", &mut self.dma_buf),
            ("rdma_ordering", &mut self.rdma_ordering),
        ]
    }

    fn field(&mut self, word: &str) -> Option<&mut bool> {
        self.words().into_iter().find(|(name, _)| *name == word).map(|(_, lacks)| lacks)
    }
}

/// Configures the machine of this process. Call it before anything else in this crate.
///
/// # Errors
/// A sentence, if the configuration is impossible or was already set or read from the environment.
pub fn configure(config: Config) -> Result<(), String> {
    if config.devices > MAX_DEVICES || config.sms == 0 {
        return Err(format!("a machine has at most {MAX_DEVICES} devices of at least one multiprocessor"));
    }
    CONFIG
        .set(Ok(config))
        .map_err(|_| "the software machine of this process is already configured".to_owned())
}

/// Returns the configuration in force, read from the environment if [`configure`] was not called. `cuInit` reports
/// an invalid environment.
pub(crate) fn current() -> Result<&'static Config, &'static str> {
    let read = || {
        let config = Config::from_env()?;
        unused::warn(config.check.races, config.check.weak.is_some());
        Ok(config)
    };
    CONFIG.get_or_init(read).as_ref().map_err(String::as_str)
}

static CONFIG: OnceLock<Result<Config, String>> = OnceLock::new();

/// What [`bytes`] takes.
const BYTES: &str = "a number of bytes from 1 to 65536G, such as 1048576, 64M or 8G";

fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().next_back()? {
        (i, 'K' | 'k') => (&text[..i], 10),
        (i, 'M' | 'm') => (&text[..i], 20),
        (i, 'G' | 'g') => (&text[..i], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|n| (1..=1 << 46).contains(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(vars: &[(&str, &str)]) -> Result<Config, String> {
        Config::from_lookup(|name| vars.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn nothing_said_is_the_default() {
        assert_eq!(from(&[]), Ok(Config::default()));
    }

    #[test]
    fn every_variable_counts() {
        let c = from(&[
            ("AQUEDUCT_SOFT_DEVICES", "2"),
            ("AQUEDUCT_SOFT_SMS", "4"),
            ("AQUEDUCT_SOFT_MEMORY", "64M"),
            ("AQUEDUCT_SOFT_SHADOW", "1G"),
            ("AQUEDUCT_SOFT_CORES", "3"),
            ("AQUEDUCT_SOFT_WATCHDOG", "0.5"),
            ("AQUEDUCT_SOFT_CC", "8.6"),
            ("AQUEDUCT_SOFT_MULTICAST", "1"),
            ("AQUEDUCT_SOFT_UNKIND", "7"),
            ("AQUEDUCT_SOFT_LACKS", "vmm,p2p"),
            ("AQUEDUCT_SOFT_CHECK", "aligned,weak"),
            ("AQUEDUCT_SOFT_SEED", "7"),
            ("AQUEDUCT_SOFT_LINES", "torn"),
        ]);
        let expected = Config {
            devices: 2,
            sms: 4,
            memory: 64 << 20,
            shadow: 1 << 30,
            cores: 3,
            watchdog: Some(Duration::from_millis(500)),
            compute_capability: (8, 6),
            multicast: true,
            lacks: Lacks { vmm: true, p2p: true, ..Lacks::default() },
            unkind: Some(7),
            check: Check { races: true, aligned: true, weak: Some(Weak { seed: 7, lines: Lines::Torn }) },
        };
        assert_eq!(c, Ok(expected));
        let races = from(&[("AQUEDUCT_SOFT_CHECK", "races"), ("AQUEDUCT_SOFT_SEED", "7")]);
        assert_eq!(races.expect("parses").check, Check { races: true, ..Check::default() });
        assert_eq!(from(&[("AQUEDUCT_SOFT_WATCHDOG", "0")]).expect("parses").watchdog, None);
    }

    #[test]
    fn the_list_for_warnings_has_every_variable() {
        let asked = std::cell::RefCell::new(Vec::new());
        let ask = |name: &str| {
            asked.borrow_mut().push(name.to_owned());
            None
        };
        Config::from_lookup(ask).expect("nothing is invalid");
        let (mut asked, mut all) =
            (asked.into_inner(), unused::VARIABLES.map(|word| format!("{}{word}", unused::PREFIX)));
        asked.sort();
        all.sort();
        assert_eq!(asked, all);
    }

    #[test]
    fn nonsense_names_its_variable() {
        for (name, value, wanted) in [
            ("DEVICES", "65", "a whole number from 0 to 64"),
            ("SMS", "0", "a whole number from 1 to 1024"),
            ("MEMORY", "many", "such as 1048576, 64M or 8G"),
            ("MEMORY", "99999999999999G", "from 1 to 65536G"),
            ("SHADOW", "0", "a number of bytes from 1"),
            ("CORES", "1025", "to 1024"),
            ("WATCHDOG", "-1", "seconds, or 0 for never"),
            ("CC", "9", "such as 9.0"),
            ("CC", "300.0", "such as 9.0"),
            ("CC", "9.10", "such as 9.0"),
            ("MULTICAST", "yes", "0 or 1"),
            ("UNKIND", "very", "a seed"),
            (
                "LACKS",
                "everything",
                "vmm, p2p, native_atomics, posix_fd, ipc, stream_mem_ops, cooperative, dma_buf",
            ),
            ("CHECK", "everything", "races, aligned, weak"),
            ("CHECK", ",", "races, aligned, weak"),
            ("CHECK", "races,,weak", "races, aligned, weak"),
            ("LACKS", "vmm,", "words with commas between"),
            ("SEED", "any", "a whole number"),
            ("LINES", "some", "whole, ascending or torn"),
        ] {
            let name = format!("AQUEDUCT_SOFT_{name}");
            let said = from(&[(&name, value)]).expect_err(value);
            assert!(said.starts_with(&format!("{name}={value} is not valid; it takes ")), "{said}");
            assert!(said.contains(wanted), "{said}");
        }
    }
}
