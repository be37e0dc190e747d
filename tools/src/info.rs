//! `aqueduct info`: drivers, devices, NICs and settings of this machine. Works without a driver, too.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use aqueduct::gpu::{Device, Driver};
use aqueduct::internals::env::Env;
use aqueduct::internals::rdma::{self, Verbs};

use crate::stdout::Stdout;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// List every environment variable with its default, meaning, and value here
    #[arg(long)]
    env: bool,
}

pub(crate) fn execute(args: &Args) -> Result<ExitCode> {
    if args.env {
        environment(&mut Stdout)?;
        return Ok(ExitCode::SUCCESS);
    }
    report(&mut Stdout)?;
    Ok(ExitCode::SUCCESS)
}

fn report(out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "aqueduct {}", env!("CARGO_PKG_VERSION"))?;
    let hardware =
        Driver::load(std::env::var("AQUEDUCT_CUDA_LIBRARY").ok().filter(|p| !p.is_empty()).as_deref());
    match &hardware {
        Ok(driver) => describe(out, "NVIDIA driver", driver)?,
        Err(error) => writeln!(out, "NVIDIA driver: none: {error}")?,
    }
    match nics(hardware.as_ref().ok()) {
        Ok(lines) => lines.iter().try_for_each(|line| writeln!(out, "{line}"))?,
        Err(error) => writeln!(out, "RDMA NICs: none: {error}")?,
    }
    match Driver::software(cuda_soft::driver_table()) {
        Ok(driver) => describe(out, "software device", &driver)?,
        Err(error) => writeln!(out, "software device: unusable: {error}")?,
    }
    match Driver::select(Some(cuda_soft::driver_table)) {
        Ok(driver) => writeln!(out, "jobs use: {} ({})", driver.provenance(), driver.reason())?,
        Err(error) => writeln!(out, "jobs use: nothing: {error}")?,
    }
    match Env::get() {
        Ok(_) => writeln!(out, "environment: `aqueduct info --env` lists every variable"),
        Err(error) => writeln!(out, "environment: {error}"),
    }
}

pub(crate) fn describe(out: &mut impl Write, what: &str, driver: &Driver) -> std::io::Result<()> {
    let (major, minor) = driver.version();
    writeln!(out, "{what}: loaded from {}, CUDA {major}.{minor}", driver.provenance())?;
    let missing = driver.missing();
    if !missing.is_empty() {
        writeln!(out, "  lacks optional functions: {}", missing.join(", "))?;
    }
    let devices = match Device::all(driver) {
        Ok(devices) => devices,
        Err(error) => return writeln!(out, "  devices: {error}"),
    };
    writeln!(out, "  devices: {}", devices.len())?;
    for device in &devices {
        match line(device) {
            Ok(line) => writeln!(out, "  {line}")?,
            Err(error) => writeln!(out, "  device {}: {error}", device.ordinal())?,
        }
    }
    if devices.len() > 1 { links(out, &devices) } else { Ok(()) }
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
fn links(out: &mut impl Write, devices: &[Device]) -> std::io::Result<()> {
    let head: String = devices.iter().map(|device| format!("{:>5}", device.ordinal())).collect();
    writeln!(out, "  links: {:>6}{head}", "")?;
    for from in devices {
        let row: String = devices.iter().map(|to| format!("{:>5}", link(from, to))).collect();
        writeln!(out, "         {:>5} {row}", from.ordinal())?;
    }
    Ok(())
}

fn link(from: &Device, to: &Device) -> &'static str {
    if from == to {
        return "self";
    }
    match from.peer_link(to) {
        Ok(link) if link.access && link.native_atomics => "NV",
        Ok(link) if link.access => "P2P",
        Ok(_) => "-",
        Err(_) => "?",
    }
}

fn environment(out: &mut impl Write) -> std::io::Result<()> {
    for row in Env::table() {
        let value = row.value.as_deref().map_or_else(|| "(unset)".to_owned(), |v| format!("= {v}"));
        let variable = row.variable;
        writeln!(
            out,
            "{} {value}\n    default: {}\n    {}",
            variable.name, variable.default, variable.meaning
        )?;
    }
    for warning in aqueduct::internals::env::unknown(&text_variables()) {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

/// The environment variables whose name and value are UTF-8.
fn text_variables() -> std::collections::BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}
