//! `aqueduct info`: drivers, devices, NICs and settings of this machine. Works without a driver, too.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::gpu::{Device, Driver};
use aqueduct::internals::env::Env;
use aqueduct::internals::rdma::{self, Verbs};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// List every environment variable with its default, meaning, and value here
    #[arg(long)]
    env: bool,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    if args.env {
        environment();
        return Ok(ExitCode::SUCCESS);
    }
    println!("aqueduct {}", env!("CARGO_PKG_VERSION"));
    let hardware =
        Driver::load(std::env::var("AQUEDUCT_CUDA_LIBRARY").ok().filter(|p| !p.is_empty()).as_deref());
    match &hardware {
        Ok(driver) => describe("NVIDIA driver", driver),
        Err(error) => println!("NVIDIA driver: none: {error}"),
    }
    match nics(hardware.as_ref().ok()) {
        Ok(lines) => lines.iter().for_each(|line| println!("{line}")),
        Err(error) => println!("RDMA NICs: none: {error}"),
    }
    match Driver::software(cuda_soft::driver_table()) {
        Ok(driver) => describe("software device", &driver),
        Err(error) => println!("software device: unusable: {error}"),
    }
    match Driver::select(Some(cuda_soft::driver_table)) {
        Ok(driver) => println!("jobs use: {} ({})", driver.provenance(), driver.reason()),
        Err(error) => println!("jobs use: nothing: {error}"),
    }
    match Env::get() {
        Ok(_) => println!("environment: `aqueduct info --env` lists every variable"),
        Err(error) => println!("environment: {error}"),
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn describe(what: &str, driver: &Driver) {
    let (major, minor) = driver.version();
    println!("{what}: loaded from {}, CUDA {major}.{minor}", driver.provenance());
    let missing = driver.missing();
    if !missing.is_empty() {
        println!("  lacks optional functions: {}", missing.join(", "));
    }
    let devices = match Device::all(driver) {
        Ok(devices) => devices,
        Err(error) => return println!("  devices: {error}"),
    };
    println!("  devices: {}", devices.len());
    for device in &devices {
        match line(device) {
            Ok(line) => println!("  {line}"),
            Err(error) => println!("  device {}: {error}", device.ordinal()),
        }
    }
    if devices.len() > 1 {
        links(&devices);
    }
}

fn line(device: &Device) -> aqueduct::Result<String> {
    let handles: Vec<&str> = [
        (device.supports_fd_handles()?, "posix-fd"),
        (device.supports_fabric_handles()?, "fabric"),
        (true, "legacy-ipc"),
    ]
    .into_iter()
    .filter_map(|(has, name)| has.then_some(name))
    .collect();
    Ok(format!(
        "device {}: {}, sm_{}, {} SMs, {:.1} GiB, PCI {}, NUMA node {}, handles {}",
        device.ordinal(),
        device.name()?,
        device.compute_capability()?.sm(),
        device.sm_count()?,
        device.total_memory()? as f64 / f64::from(1 << 30),
        device.pci_bus_id()?,
        device.numa_node().map_or_else(|| "unknown".to_owned(), |n| n.to_string()),
        handles.join(" "),
    ))
}

/// One line per NIC: its name as a transport (`Ib0`), its device, and its distance from each GPU.
fn nics(driver: Option<&Driver>) -> aqueduct::Result<Vec<String>> {
    let verbs = Verbs::load(None)?;
    let chosen = Env::get().ok().and_then(|env| env.ib.devices.as_deref());
    let nics = verbs.devices(chosen)?;
    let gpus = driver.map(Device::all).transpose()?.unwrap_or_default();
    let mut lines = vec![format!("RDMA NICs: {}", nics.len())];
    for (number, nic) in nics.iter().enumerate() {
        let far = |gpu: &Device| {
            let distance = rdma::distance(Path::new("/sys"), &gpu.pci_bus_id().ok()?, nic.name());
            Some(format!(", device {}: {distance}", gpu.ordinal()))
        };
        let distances: String = gpus.iter().filter_map(far).collect();
        lines.push(format!("  Ib{number}: {}{distances}", nic.name()));
    }
    Ok(lines)
}

/// Prints how each device reaches each other: `NV` by loads, stores and native atomics (NVLink), `P2P` by loads and
/// stores, `-` not at all.
fn links(devices: &[Device]) {
    print!("  links: {:>6}", "");
    devices.iter().for_each(|d| print!("{:>5}", d.ordinal()));
    println!();
    for from in devices {
        print!("         {:>5} ", from.ordinal());
        for to in devices {
            let word = if from == to {
                "self"
            } else {
                match from.peer_link(to) {
                    Ok(link) if link.access && link.native_atomics => "NV",
                    Ok(link) if link.access => "P2P",
                    Ok(_) => "-",
                    Err(_) => "?",
                }
            };
            print!("{word:>5}");
        }
        println!();
    }
}

fn environment() {
    for row in Env::table() {
        let value = row.value.as_deref().map_or_else(|| "(unset)".to_owned(), |v| format!("= {v}"));
        let variable = row.variable;
        println!("{} {value}\n    default: {}\n    {}", variable.name, variable.default, variable.meaning);
    }
    for warning in aqueduct::internals::env::unknown(&text_variables()) {
        println!("warning: {warning}");
    }
}

/// The environment variables whose name and value are UTF-8.
fn text_variables() -> std::collections::BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
