//! Every environment variable the library reads: one documented struct, parsed once.
//!
//! [`VARIABLES`] is the list that users see (`aqueduct info --env`); [`Env`] holds the parsed values. A value that
//! cannot be parsed is an error that names the variable and what it takes; a variable that does not exist is a
//! warning with the nearest name that does.
#![forbid(unsafe_code)]

mod log_spec;
mod time;
mod unknown;
mod variables;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::fault::Rules;

pub use log_spec::LogSpec;
pub use time::time;
pub use unknown::unknown;
pub use variables::{PREFIX, VARIABLES, Variable};

/// Which driver [`AQUEDUCT_DRIVER`](VARIABLES) asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// The CUDA driver if there is one with a device, otherwise the software device.
    #[default]
    Auto,
    /// The CUDA driver only.
    Cuda,
    /// The software device only.
    Soft,
}

/// `AQUEDUCT_HANDLE`: the kind of handle by which device memory is shared with other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandlePolicy {
    /// `auto`: fabric handle and file descriptor together where both are permitted, else a file descriptor, else a legacy handle.
    #[default]
    Auto,
    /// `fabric`: fabric handle, also to other hosts of the NVLink domain; an error if not permitted.
    Fabric,
    /// `fd`: file descriptor of a virtual-memory allocation.
    Fd,
    /// `ipc`: a plain allocation with a legacy IPC handle.
    Legacy,
}

/// Which address family to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketFamily {
    /// IPv4 first, then IPv6.
    #[default]
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// The values of `AQUEDUCT_IB_*`; `None` where a variable is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IbEnv {
    /// `AQUEDUCT_IB_DEVICES`.
    pub devices: Option<String>,
    /// `AQUEDUCT_IB_PORT`.
    pub port: Option<u8>,
    /// `AQUEDUCT_IB_GID_INDEX`.
    pub gid_index: Option<u32>,
    /// `AQUEDUCT_IB_PKEY`.
    pub pkey: Option<u16>,
    /// `AQUEDUCT_IB_SL`.
    pub service_level: Option<u8>,
    /// `AQUEDUCT_IB_TC`.
    pub traffic_class: Option<u8>,
    /// `AQUEDUCT_IB_TIMEOUT`.
    pub timeout: Option<u8>,
    /// `AQUEDUCT_IB_RETRY_CNT`.
    pub retry_count: Option<u8>,
}

/// Which network interfaces the user wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Comma-separated name prefixes; `=name` means exactly that name, a leading `^` excludes the whole list.
    pub names: Option<String>,
    /// The address family.
    pub family: SocketFamily,
}

/// Bytes of pinned memory that the Ethernet connections of a communicator share, unless said otherwise.
pub(crate) const ETHERNET_STAGING: usize = 8 << 20;

/// The parsed environment.
#[derive(Clone, PartialEq, Eq)]
pub struct Env {
    /// `AQUEDUCT_DRIVER`.
    pub driver: DriverChoice,
    /// `AQUEDUCT_CUDA_LIBRARY`, if set.
    pub cuda_library: Option<PathBuf>,
    /// `AQUEDUCT_HANDLE`.
    pub handle: HandlePolicy,
    /// `AQUEDUCT_SCRATCH_BYTES`.
    pub scratch_bytes: usize,
    /// `AQUEDUCT_CACHE`, if set.
    pub cache: Option<PathBuf>,
    /// `AQUEDUCT_TUNING`, if set.
    pub tuning: Option<PathBuf>,
    /// `AQUEDUCT_MULTICAST`.
    pub multicast: bool,
    /// `AQUEDUCT_TIMEOUT`.
    pub timeout: Duration,
    /// `AQUEDUCT_PEER_TIMEOUT`; `None` for never.
    pub peer_timeout: Option<Duration>,
    /// Whether `AQUEDUCT_PEER_TIMEOUT` is set: messengers have another default.
    pub peer_timeout_is_set: bool,
    /// `AQUEDUCT_MESSAGE_EAGER`, if set.
    pub message_eager: Option<u32>,
    /// `AQUEDUCT_MESSAGE_SHARED_MEMORY`.
    pub message_shared_memory: bool,
    /// `AQUEDUCT_ETHERNET_STAGING`.
    pub ethernet_staging: usize,
    /// `AQUEDUCT_IB_*`.
    pub ib: IbEnv,
    /// `AQUEDUCT_SOCKET_IFNAME`, if set.
    pub socket_ifname: Option<String>,
    /// `AQUEDUCT_SOCKET_FAMILY`.
    pub socket_family: SocketFamily,
    /// `AQUEDUCT_RANK`, if set.
    pub rank: Option<u32>,
    /// `AQUEDUCT_WORLD_SIZE`, if set; at least 1.
    pub world_size: Option<u32>,
    /// `AQUEDUCT_LOCAL_RANK`, if set.
    pub local_rank: Option<u32>,
    /// `AQUEDUCT_UNIQUE_ID`, if set. Contains the job's secret; `Debug` hides it.
    pub unique_id: Option<String>,
    /// `AQUEDUCT_UNIQUE_ID_FILE`, if set.
    pub unique_id_file: Option<PathBuf>,
    /// `AQUEDUCT_RENDEZVOUS_FILE`, if set.
    pub rendezvous_file: Option<PathBuf>,
    /// `AQUEDUCT_LOG`.
    pub log: LogSpec,
    /// `AQUEDUCT_LOG_FILE`, if set, with its `%` codes not yet replaced.
    pub log_file: Option<String>,
    /// `AQUEDUCT_FAULTS`, if set.
    pub faults: Option<Rules>,
}

/// One line of `aqueduct info --env`.
#[derive(Clone, Debug)]
pub struct Row {
    /// The variable.
    pub variable: Variable,
    /// Its value if it is set; the unique id is hidden.
    pub value: Option<String>,
}

impl Env {
    /// The environment of this process, read at the first call. Warns about unknown variables then.
    pub fn get() -> Result<&'static Self> {
        static ENV: OnceLock<Result<Env>> = OnceLock::new();
        let env = ENV.get_or_init(|| {
            let env = Self::parse(&ours()).map(Self::with_paths);
            warn(env.as_ref().ok());
            env
        });
        env.as_ref().map_err(Error::clone)
    }

    /// Parses `variables` (name and value); an empty value counts as not set.
    pub fn parse(variables: &BTreeMap<String, String>) -> Result<Self> {
        let text = |name: &str| variables.get(&format!("{PREFIX}{name}")).filter(|v| !v.is_empty()).cloned();
        let env = Self {
            driver: choice(
                "DRIVER",
                text("DRIVER"),
                &[("auto", DriverChoice::Auto), ("cuda", DriverChoice::Cuda), ("soft", DriverChoice::Soft)],
            )?,
            cuda_library: text("CUDA_LIBRARY").map(PathBuf::from),
            handle: choice(
                "HANDLE",
                text("HANDLE"),
                &[
                    ("auto", HandlePolicy::Auto),
                    ("fabric", HandlePolicy::Fabric),
                    ("fd", HandlePolicy::Fd),
                    ("ipc", HandlePolicy::Legacy),
                ],
            )?,
            scratch_bytes: match text("SCRATCH_BYTES") {
                None => SCRATCH_BYTES,
                Some(v) => match v.trim().parse() {
                    Ok(bytes @ 1..) => bytes,
                    _ => return Err(invalid("SCRATCH_BYTES", &v, "a number of bytes, at least 1")),
                },
            },
            cache: text("CACHE").map(PathBuf::from),
            tuning: text("TUNING").map(PathBuf::from),
            multicast: choice("MULTICAST", text("MULTICAST"), &[("0", false), ("1", true)])?,
            timeout: match text("TIMEOUT") {
                None => Duration::from_secs(60),
                Some(v) => time(&v).map_err(|_| invalid("TIMEOUT", &v, TIME))?,
            },
            peer_timeout: match text("PEER_TIMEOUT") {
                None => Some(Duration::from_secs(3)),
                Some(v) if v.trim() == "0" => None,
                Some(v) => match time(&v) {
                    Ok(time) if time >= SHORTEST_PEER_TIMEOUT => Some(time),
                    _ => {
                        let least = SHORTEST_PEER_TIMEOUT.as_secs_f64();
                        let wanted = format!("{TIME}, at least {least} seconds, or 0 for never");
                        return Err(invalid("PEER_TIMEOUT", &v, &wanted));
                    }
                },
            },
            peer_timeout_is_set: text("PEER_TIMEOUT").is_some(),
            message_eager: number("MESSAGE_EAGER", text("MESSAGE_EAGER"), 1..=MAX_EAGER)?,
            ethernet_staging: number("ETHERNET_STAGING", text("ETHERNET_STAGING"), 1 << 20..=1 << 40)?
                .unwrap_or(ETHERNET_STAGING),
            message_shared_memory: choice(
                "MESSAGE_SHARED_MEMORY",
                text("MESSAGE_SHARED_MEMORY"),
                &[("1", Allowed(true)), ("0", Allowed(false))],
            )?
            .0,
            ib: IbEnv {
                devices: text("IB_DEVICES"),
                port: number("IB_PORT", text("IB_PORT"), 1..=u8::MAX)?,
                gid_index: number("IB_GID_INDEX", text("IB_GID_INDEX"), 0..=u32::MAX)?,
                pkey: number("IB_PKEY", text("IB_PKEY"), 0..=u16::MAX)?,
                service_level: number("IB_SL", text("IB_SL"), 0..=15)?,
                traffic_class: number("IB_TC", text("IB_TC"), 0..=u8::MAX)?,
                timeout: number("IB_TIMEOUT", text("IB_TIMEOUT"), 1..=31)?,
                retry_count: number("IB_RETRY_CNT", text("IB_RETRY_CNT"), 0..=7)?,
            },
            socket_ifname: text("SOCKET_IFNAME"),
            socket_family: choice(
                "SOCKET_FAMILY",
                text("SOCKET_FAMILY"),
                &[("any", SocketFamily::Any), ("4", SocketFamily::V4), ("6", SocketFamily::V6)],
            )?,
            rank: number("RANK", text("RANK"), 0..=u32::MAX)?,
            world_size: number("WORLD_SIZE", text("WORLD_SIZE"), 1..=u32::MAX)?,
            local_rank: number("LOCAL_RANK", text("LOCAL_RANK"), 0..=u32::MAX)?,
            unique_id: text("UNIQUE_ID"),
            unique_id_file: text("UNIQUE_ID_FILE").map(PathBuf::from),
            rendezvous_file: text("RENDEZVOUS_FILE").map(PathBuf::from),
            log: match text("LOG") {
                None => LogSpec::default(),
                Some(v) => LogSpec::parse(&v).map_err(|wanted| invalid("LOG", &v, wanted))?,
            },
            log_file: text("LOG_FILE"),
            faults: text("FAULTS").map(|v| Rules::parse(&v)).transpose()?,
        };
        if let (Some(rank), Some(size)) = (env.rank, env.world_size)
            && rank >= size
        {
            let what = format!("a rank below {PREFIX}WORLD_SIZE={size}");
            return Err(invalid("RANK", &rank.to_string(), &what));
        }
        Ok(env)
    }

    /// With its paths as this process's environment has them. [`parse`](Self::parse) sees text, and a path need not be UTF-8.
    fn with_paths(self) -> Self {
        Self {
            cuda_library: path("CUDA_LIBRARY"),
            cache: path("CACHE"),
            tuning: path("TUNING"),
            unique_id_file: path("UNIQUE_ID_FILE"),
            rendezvous_file: path("RENDEZVOUS_FILE"),
            ..self
        }
    }

    /// `AQUEDUCT_SOCKET_IFNAME` and `AQUEDUCT_SOCKET_FAMILY` together.
    pub fn selection(&self) -> Selection {
        Selection { names: self.socket_ifname.clone(), family: self.socket_family }
    }

    /// All variables with their values, for `aqueduct info --env`.
    pub fn table() -> Vec<Row> {
        let all = ours();
        let shown = |v: &Variable| match all.get(v.name) {
            Some(_) if v.name == "AQUEDUCT_UNIQUE_ID" => Some("(hidden)".to_owned()),
            value => value.cloned(),
        };
        VARIABLES.iter().map(|v| Row { variable: *v, value: shown(v) }).collect()
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env")
            .field("driver", &self.driver)
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Logs a warning for every `AQUEDUCT_` variable of this process that no code reads and for unknown parts of the log, unless
/// the launcher has done so for all ranks, and one if faults are injected.
pub(crate) fn warn(env: Option<&Env>) {
    let ours = ours();
    if !ours.contains_key("AQUEDUCT_LAUNCHER") {
        unknown(&ours).iter().for_each(|warning| log::warn!("{warning}"));
    }
    if env.is_some_and(|env| env.faults.is_some()) {
        log::warn!("AQUEDUCT_FAULTS is set: this process fails on purpose");
    }
}

/// The value of the variable `name`, without its prefix, that holds a path; `None` if it is empty or not set. For programs
/// that go on although [`Env::get`] fails.
pub fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(format!("{PREFIX}{name}")).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn ours() -> BTreeMap<String, String> {
    let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
    std::env::vars_os().map(|(n, v)| (text(n), text(v))).filter(|(n, _)| n.starts_with(PREFIX)).collect()
}

/// The shortest time of silence after which a rank may count as lost: signs of life are up to so far apart.
pub(crate) const SHORTEST_PEER_TIMEOUT: Duration = Duration::from_millis(1250);

/// Bytes of scratch of all plans of a communicator.
pub(crate) const SCRATCH_BYTES: usize = 1 << 30;

/// The longest message that may be sent at once.
const MAX_EAGER: u32 = 64 << 10;

/// A thing that is allowed unless the variable says otherwise.
#[derive(Clone, Copy)]
struct Allowed(bool);

impl Default for Allowed {
    fn default() -> Self {
        Self(true)
    }
}

/// Values of variables that hold a time.
const TIME: &str = "a positive number of seconds, or a time such as 500ms, 5s or 2m";

fn invalid(name: &str, value: &str, wanted: &str) -> Error {
    Error::usage(
        "environment",
        format!("{PREFIX}{name}={} is not valid; it takes {wanted}", value.escape_debug()),
    )
}

/// A whole number within `range`.
fn number<T>(name: &str, value: Option<String>, range: RangeInclusive<T>) -> Result<Option<T>>
where
    T: Copy + PartialOrd + FromStr + fmt::Display,
{
    let Some(value) = value else { return Ok(None) };
    match value.trim().parse() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        _ => {
            let wanted = format!("a whole number from {} to {}", range.start(), range.end());
            Err(invalid(name, &value, &wanted))
        }
    }
}

fn choice<T: Copy + Default>(name: &str, value: Option<String>, choices: &[(&str, T)]) -> Result<T> {
    let Some(value) = value else { return Ok(T::default()) };
    match choices.iter().find(|(text, _)| text.eq_ignore_ascii_case(value.trim())) {
        Some((_, choice)) => Ok(*choice),
        None => {
            let all: Vec<&str> = choices.iter().map(|(text, _)| *text).collect();
            Err(invalid(name, &value, &all.join(" or ")))
        }
    }
}

#[cfg(test)]
mod tests;
