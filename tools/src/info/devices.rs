//! The devices of a driver: what each is, how its memory can be shared, and how they reach each other.

use std::io::Write;

use aqueduct::gpu::{Context, Device, Driver};
use aqueduct::internals::probe::{self, Finding};

/// Prints the driver and its devices, with all that they offer and refuse.
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
    let tried: Vec<Tried> = devices.into_iter().map(Tried::new).collect();
    tried.iter().try_for_each(|tried| tried.print(out))?;
    if tried.len() > 1 { links(out, &tried) } else { Ok(()) }
}

/// A device, and a context in which its capabilities are tried.
struct Tried {
    device: Device,
    context: aqueduct::Result<Context>,
}

impl Tried {
    fn new(device: Device) -> Self {
        let context = Context::new(&device);
        Self { device, context }
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let ordinal = self.device.ordinal();
        let facts = match facts(&self.device) {
            Ok(facts) => facts,
            Err(error) => return writeln!(out, "  device {ordinal}: {error}"),
        };
        let context = match &self.context {
            Ok(context) => context,
            Err(error) => {
                writeln!(out, "  device {ordinal}: {facts}, handles unknown")?;
                return writeln!(out, "    nothing could be tried: {error}");
            }
        };
        let (mut works, mut refused) = (Vec::new(), Vec::new());
        for (name, finding) in probe::sharing(context) {
            match finding {
                Finding::Works => works.push(name),
                Finding::Absent => {}
                Finding::Refused(error) => refused.push((name, error)),
            }
        }
        let works = if works.is_empty() { "none".to_owned() } else { works.join(" ") };
        writeln!(out, "  device {ordinal}: {facts}, handles {works}")?;
        refused.iter().try_for_each(|(name, error)| writeln!(out, "    {name} is refused: {error}"))
    }
}

fn facts(device: &Device) -> aqueduct::Result<String> {
    Ok(format!(
        "{}, sm_{}, {} SMs, {:.1} GiB, PCI {}, NUMA node {}",
        device.name()?,
        device.compute_capability()?.sm(),
        device.sm_count()?,
        device.total_memory()? as f64 / f64::from(1 << 30),
        device.pci_bus_id()?,
        device.numa_node().map_or_else(|| "unknown".to_owned(), |n| n.to_string()),
    ))
}

/// Prints how each device reaches each other: `NV` by loads, stores and native atomics (NVLink), `P2P` by loads and
/// stores, `-` not at all, `no` if the driver refuses what it has promised, `?` if it could not be tried.
fn links(out: &mut impl Write, devices: &[Tried]) -> std::io::Result<()> {
    let head: String = devices.iter().map(|to| format!("{:>5}", to.device.ordinal())).collect();
    writeln!(out, "  links: {:>6}{head}", "")?;
    let mut refused = Vec::new();
    for from in devices {
        let mut row = String::new();
        for to in devices {
            let word = match link(&from.device, to) {
                Ok(word) => word,
                Err(error) => {
                    refused.push((from.device.ordinal(), to.device.ordinal(), error));
                    "no"
                }
            };
            row.push_str(&format!("{word:>5}"));
        }
        writeln!(out, "         {:>5} {row}", from.device.ordinal())?;
    }
    refused.iter().try_for_each(|(from, to, error)| {
        writeln!(out, "    device {from} is refused access to memory of device {to}: {error}")
    })
}

fn link(from: &Device, to: &Tried) -> aqueduct::Result<&'static str> {
    if *from == to.device {
        return Ok("self");
    }
    let Ok(context) = &to.context else { return Ok("?") };
    match probe::peer_access(from, context) {
        Finding::Works => Ok(if from.peer_link(&to.device)?.native_atomics { "NV" } else { "P2P" }),
        Finding::Absent => Ok("-"),
        Finding::Refused(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use aqueduct::gpu::CUresult;
    use aqueduct::internals::fault::{Calls, DriverFault, DriverFaults};

    use super::*;

    /// The lines about software devices. From the `nth` call on, `function` returns "not permitted".
    fn refusing(function: &str, nth: u64) -> String {
        let calls = Calls::Function(function.to_owned());
        let refused = DriverFault::nth(calls, nth, CUresult::CUDA_ERROR_NOT_PERMITTED).and_after();
        let faults = DriverFaults::new([refused]);
        let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(Arc::new(faults));
        let mut text = Vec::new();
        describe(&mut text, "device under test", &driver).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn what_the_driver_refuses_is_not_listed() {
        let all = refusing("cuNoSuchFunction", 1);
        assert_eq!(all.matches("handles posix-fd legacy-ipc dma-buf\n").count(), 8, "{all}");
        assert!(all.contains(" 0  self   NV   NV") && !all.contains("refused"), "{all}");
        for (function, handles, refused) in [
            ("cuMemExportToShareableHandle", "handles legacy-ipc dma-buf\n", "posix-fd is refused: "),
            ("cuIpcGetMemHandle", "handles posix-fd dma-buf\n", "legacy-ipc is refused: "),
            ("cuMemGetHandleForAddressRange", "handles posix-fd legacy-ipc\n", "dma-buf is refused: "),
        ] {
            let text = refusing(function, 1);
            assert_eq!(text.matches(handles).count(), 8, "{function}: {text}");
            assert_eq!(text.matches(refused).count(), 8, "{function}: {text}");
            assert!(text.contains(&format!("{function} returned CUDA_ERROR_NOT_PERMITTED")), "{text}");
        }
    }

    #[test]
    fn links_that_the_driver_refuses_are_not_listed() {
        // The first call gives access to the memory's own device, the second one to the peer.
        let text = refusing("cuMemSetAccess", 2);
        assert!(!text.contains(" NV") && !text.contains(" P2P"), "{text}");
        assert!(text.contains("device 0 is refused access to memory of device 1: cuMemSetAccess"), "{text}");
    }

    #[test]
    fn a_device_without_a_context_is_described_all_the_same() {
        let text = refusing("cuDevicePrimaryCtxRetain", 1);
        assert_eq!(text.matches(", handles unknown\n").count(), 8, "{text}");
        assert_eq!(text.matches("nothing could be tried: cuDevicePrimaryCtxRetain").count(), 8, "{text}");
        assert!(text.contains(" self    ?"), "{text}");
    }
}
