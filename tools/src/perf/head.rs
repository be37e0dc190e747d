//! Describes a run: the lines above its table and the header of its files.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use aqueduct::gpu::Driver;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::job::Rank;

/// Name and version of what the files hold. The version is raised when a field goes or changes its meaning.
pub(super) const SCHEMA: &str = "aqueduct-perf";
pub(super) const SCHEMA_VERSION: u32 = 1;

/// The head of a run.
pub(super) struct Head {
    pub(super) operation: String,
    /// Lines above the table.
    pub(super) lines: Vec<String>,
    /// Options as they were used.
    parameters: Map<String, Value>,
    /// The meaning of the times.
    time: String,
    driver: Option<DriverInfo>,
    machines: Vec<Machine>,
    ranks: Vec<Place>,
}

/// Host and device of a rank.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    rank: u32,
    host: String,
    pid: u32,
    device: u32,
    gpu: String,
    pci: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
}

/// A host, with the devices that the job uses there.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
struct Machine {
    host: String,
    cpu: String,
    cores: usize,
    gpus: Vec<String>,
}

impl Head {
    /// The head of an operation of all ranks. Collective.
    pub(super) fn gather(rank: &Rank, operation: &str) -> Result<Self> {
        let (driver, device) = (rank.context.driver(), rank.context.device());
        let mine = Place {
            rank: rank.bootstrap.rank(),
            host: aqueduct::logging::host_name(),
            pid: std::process::id(),
            device: device.ordinal(),
            gpu: device.name()?,
            pci: device.pci_bus_id()?,
            machine: Some(Machine::here()),
        };
        let mut ranks = Vec::new();
        for bytes in rank.bootstrap.all_gather(&serde_json::to_vec(&mine)?, rank.deadline())? {
            let place: Place = serde_json::from_slice(&bytes).context(
                "another rank described itself in a way this one does not know; do all ranks run the same version?",
            )?;
            ranks.push(place);
        }
        let mut head = Self::new(operation);
        if driver.is_software() {
            head.lines.insert(0, "software device: times say nothing about GPUs".to_owned());
        }
        let (major, minor) = driver.version();
        head.line(format!("driver {}, CUDA {major}.{minor}: {}", driver.provenance(), driver.reason()));
        for Place { rank, host, pid, device, gpu, pci, .. } in &ranks {
            head.lines.push(format!("rank {rank:>3} pid {pid:>7} on {host} device {device} [{pci}] {gpu}"));
        }
        head.driver = Some(describe(driver));
        head.machines = machines(&mut ranks);
        head.ranks = ranks;
        Ok(head)
    }

    /// The head of an operation of this process alone, without a device.
    pub(super) fn alone(operation: &str) -> Self {
        Self { machines: vec![Machine::here()], ..Self::new(operation) }
    }

    fn new(operation: &str) -> Self {
        Self {
            operation: operation.to_owned(),
            lines: vec![format!("aqueduct {} perf {operation}", env!("CARGO_PKG_VERSION"))],
            parameters: Map::new(),
            time: String::new(),
            driver: None,
            machines: Vec::new(),
            ranks: Vec::new(),
        }
    }

    /// Adds a line above the table.
    pub(super) fn line(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Adds options, or what became of them. Null stands for a default that depends on size and device.
    pub(super) fn parameters<'p>(&mut self, parameters: impl IntoIterator<Item = (&'p str, Value)>) {
        self.parameters.extend(parameters.into_iter().map(|(name, value)| (name.to_owned(), value)));
    }

    /// Says what the times are.
    pub(super) fn time(&mut self, meaning: impl Into<String>) {
        let meaning = meaning.into();
        self.line(format!("time: {meaning}"));
        self.time = meaning;
    }

    /// The first line of the files.
    pub(super) fn header(&self) -> impl Serialize {
        Header {
            record: "header",
            schema: SCHEMA,
            schema_version: SCHEMA_VERSION,
            operation: &self.operation,
            aqueduct_version: env!("CARGO_PKG_VERSION"),
            time_utc: utc(SystemTime::now()),
            time_meaning: &self.time,
            parameters: &self.parameters,
            driver: &self.driver,
            machines: &self.machines,
            ranks: &self.ranks,
        }
    }
}

#[derive(Serialize)]
struct Header<'a> {
    record: &'static str,
    schema: &'static str,
    schema_version: u32,
    operation: &'a str,
    aqueduct_version: &'static str,
    time_utc: String,
    time_meaning: &'a str,
    parameters: &'a Map<String, Value>,
    driver: &'a Option<DriverInfo>,
    machines: &'a [Machine],
    ranks: &'a [Place],
}

/// The driver of this rank.
#[derive(Serialize)]
struct DriverInfo {
    name: String,
    software: bool,
    cuda_version: String,
    /// Of the kernel module of a real device.
    version: Option<String>,
}

fn describe(driver: &Driver) -> DriverInfo {
    let (major, minor) = driver.version();
    let module = std::fs::read_to_string("/sys/module/nvidia/version").ok();
    DriverInfo {
        name: driver.provenance().to_string(),
        software: driver.is_software(),
        cuda_version: format!("{major}.{minor}"),
        version: module.filter(|_| !driver.is_software()).map(|version| version.trim().to_owned()),
    }
}

/// The machines of the ranks, which keep only the name of theirs.
fn machines(ranks: &mut [Place]) -> Vec<Machine> {
    let mut machines: BTreeMap<String, Machine> = BTreeMap::new();
    for place in ranks {
        let Some(machine) = place.machine.take() else { continue };
        let machine = machines.entry(place.host.clone()).or_insert(machine);
        let gpu = format!("{} [{}]", place.gpu, place.pci);
        if !machine.gpus.contains(&gpu) {
            machine.gpus.push(gpu);
        }
    }
    machines.into_values().collect()
}

impl Machine {
    fn here() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            host: aqueduct::logging::host_name(),
            cpu: cpu_name(&info).unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            gpus: Vec::new(),
        }
    }
}

/// The name of the first CPU in the text of /proc/cpuinfo, which has none on some architectures.
fn cpu_name(info: &str) -> Option<String> {
    let named = info.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(named.trim_start().strip_prefix(':')?.trim().to_owned())
}

/// `time` as 2026-11-22T14:30:05Z.
pub(super) fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of the Gregorian calendar, `days` after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut rest) = (1970, days);
    while rest >= 365 + u64::from(leap(year)) {
        rest -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

/// An optional number as text: `auto` if it was not given.
pub(super) fn auto(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "auto".to_owned(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_of_leap_years_and_ends_of_years() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(1_795_357_805), "2026-11-22T14:30:05Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn the_name_of_a_cpu() {
        let info = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: Other\n";
        assert_eq!(cpu_name(info).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(cpu_name("processor : 0\n"), None);
    }

    #[test]
    fn ranks_of_one_machine_share_its_entry() {
        let place = |rank: u32, host: &str| Place {
            rank,
            host: host.into(),
            pid: 1,
            device: rank,
            gpu: "G".into(),
            pci: rank.to_string(),
            machine: Some(Machine { host: host.into(), cpu: "C".into(), cores: 2, gpus: vec![] }),
        };
        let mut ranks = [place(0, "a"), place(1, "a"), place(2, "b")];
        let machines = machines(&mut ranks);
        let gpus: Vec<_> = machines.iter().map(|m| (m.host.as_str(), m.gpus.clone())).collect();
        assert_eq!(gpus, [("a", vec!["G [0]".to_owned(), "G [1]".into()]), ("b", vec!["G [2]".into()])]);
        assert!(ranks.iter().all(|place| place.machine.is_none()));
    }
}
