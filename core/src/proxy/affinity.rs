//! Which cores a thread runs on: those beside its GPU (sched_setaffinity(2), sysfs-bus-pci).

use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::gpu::Device;

/// A set of cores, as many as the C library's fixed set has.
#[derive(Clone, Copy)]
struct Cores(libc::cpu_set_t);

impl Cores {
    fn empty() -> Self {
        // SAFETY: all zero is the empty set.
        Self(unsafe { std::mem::zeroed() })
    }

    /// Cores that the calling thread may run on.
    fn allowed() -> Result<Self> {
        let mut cores = Self::empty();
        // SAFETY: the set is a live output of the size given; 0 is the calling thread.
        let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut cores.0) };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Error::system("sched_getaffinity", "the cores of this thread are unknown", error));
        }
        Ok(cores)
    }

    fn contains(&self, core: usize) -> bool {
        // SAFETY: the number is below the size of the set, which is read only.
        core < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(core, &self.0) }
    }

    fn add(&mut self, core: usize) {
        if core < libc::CPU_SETSIZE as usize {
            // SAFETY: the number is below the size of the set, which is this value's own.
            unsafe { libc::CPU_SET(core, &mut self.0) };
        }
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..libc::CPU_SETSIZE as usize).filter(|&core| self.contains(core))
    }

    /// Lets the calling thread run on these only.
    fn apply(&self) -> Result<()> {
        // SAFETY: the set lives for the call and has the size given; 0 is the calling thread.
        if unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Error::system("sched_setaffinity", "the thread cannot be bound to its cores", error));
        }
        Ok(())
    }
}

/// Binds the calling thread to core `cpu`, or else to the cores beside `device` as far as it may run on them.
pub(super) fn bind(device: &Device, cpu: Option<usize>) -> Result<()> {
    let allowed = Cores::allowed()?;
    let mut cores = Cores::empty();
    if let Some(cpu) = cpu {
        if !allowed.contains(cpu) {
            let list = format_list(allowed.iter());
            let message = format!("core {cpu} is not among those that this process may use: {list}");
            return Err(Error::usage("ProxyConfig::with_cpu", message));
        }
        cores.add(cpu);
    } else {
        beside(device).into_iter().filter(|&core| allowed.contains(core)).for_each(|core| cores.add(core));
    }
    if cores.iter().next().is_none() { Ok(()) } else { cores.apply() }
}

/// The cores beside a device; none if the system does not say.
fn beside(device: &Device) -> Vec<usize> {
    let Ok(id) = device.pci_bus_id() else { return Vec::new() };
    let path = format!("/sys/bus/pci/devices/{}/local_cpulist", id.to_lowercase());
    std::fs::read_to_string(path).map(|text| parse_list(&text)).unwrap_or_default()
}

/// The kernel's form of a set: `0-3,8,10-11`. What cannot be read is left out.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?.min(1 << 20))
    };
    text.split(',').filter_map(range).flatten().collect()
}

fn format_list(cores: impl Iterator<Item = usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => ranges.push((core, core)),
        }
    }
    let mut text = String::new();
    for (first, last) in ranges {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = if first == last {
            write!(text, "{comma}{first}")
        } else {
            write!(text, "{comma}{first}-{last}")
        };
    }
    text
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_and_written_as_the_kernel_does() {
        assert_eq!(parse_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list(""), [0; 0]);
        assert_eq!(parse_list("x,2-y,5"), [5]);
        assert_eq!(format_list([0, 1, 2, 3, 8, 10, 11].into_iter()), "0-3,8,10-11");
    }

    #[test]
    fn a_thread_is_bound_and_its_creator_is_not() {
        let before = Cores::allowed().unwrap();
        let core = before.iter().last().unwrap();
        std::thread::spawn(move || {
            let mut one = Cores::empty();
            one.add(core);
            one.apply().unwrap();
            assert_eq!(Cores::allowed().unwrap().iter().collect::<Vec<_>>(), [core]);
        })
        .join()
        .unwrap();
        assert!(Cores::allowed().unwrap().iter().eq(before.iter()));
    }

    #[test]
    fn a_thread_is_bound_to_the_core_it_names_or_where_no_core_is_beside_the_device_to_none() {
        let driver = crate::gpu::Driver::software(cuda_soft::driver_table()).unwrap();
        let device = Device::new(&driver, 0).unwrap();
        let before: Vec<usize> = Cores::allowed().unwrap().iter().collect();
        let last = *before.last().unwrap();
        assert_eq!(beside(&device), [0; 0], "the software device is on no bus");
        let bound = |cpu| bind(&device, cpu).map(|()| Cores::allowed().unwrap().iter().collect::<Vec<_>>());
        std::thread::scope(|scope| {
            assert_eq!(scope.spawn(|| bound(None).unwrap()).join().unwrap(), before);
            assert_eq!(scope.spawn(|| bound(Some(last)).unwrap()).join().unwrap(), [last]);
            let error = scope.spawn(|| bound(Some(last + 1)).unwrap_err()).join().unwrap();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidUsage, "{error}");
        });
    }
}
