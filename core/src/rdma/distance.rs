//! How far a NIC is from a GPU on the PCIe bus, and which NIC to take for it.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use super::device::Device;

/// How far apart two PCI devices are, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// Below a common switch: data passes this many bridges and never the root complex.
    Switch(u8),
    /// At the same root complex (host bridge).
    RootComplex,
    /// At different root complexes of one NUMA node.
    Node,
    /// On different NUMA nodes.
    System,
    /// One of them is no PCI device (soft-RoCE), or sysfs does not say.
    Unknown,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(bridges) => write!(f, "same switch ({bridges} bridges)"),
            Self::RootComplex => f.write_str("same root complex"),
            Self::Node => f.write_str("same NUMA node"),
            Self::System => f.write_str("across NUMA nodes"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// The distance between a GPU by its PCI bus id, as the CUDA driver prints it, and the RDMA device `nic`, by what the sysfs
/// mounted at `sysfs` says.
pub fn distance(sysfs: &Path, gpu: &str, nic: &str) -> Distance {
    let gpu = sysfs.join("bus/pci/devices").join(bus_id(gpu));
    between(&Pci::read(&gpu), &Pci::read(&sysfs.join("class/infiniband").join(nic).join("device")))
}

/// Which of `nics` is nearest to the GPU with this bus id, among those with an active port if there are any. Of several
/// equally near ones `turn` picks, so that the GPUs of a host share them: give each its number on the host.
pub fn nearest(sysfs: &Path, gpu: &str, nics: &[Device], turn: usize) -> Option<(usize, Distance)> {
    let of = |nic: &Device| (!has_active_port(sysfs, nic.name()), distance(sysfs, gpu, nic.name()));
    let distances: Vec<(bool, Distance)> = nics.iter().map(of).collect();
    let index = pick(&distances, turn)?;
    Some((index, distances[index].1))
}

/// The index of the least; of equal ones, by `turn`.
fn pick<T: Ord>(distances: &[T], turn: usize) -> Option<usize> {
    let best = distances.iter().min()?;
    let near: Vec<usize> = (0..distances.len()).filter(|i| distances[*i] == *best).collect();
    Some(near[turn % near.len()])
}

/// Whether sysfs names an active port of the RDMA device `nic`, or says nothing about its ports.
fn has_active_port(sysfs: &Path, nic: &str) -> bool {
    let ports = std::fs::read_dir(sysfs.join("class/infiniband").join(nic).join("ports"));
    let mut states = ports.into_iter().flatten().flatten().filter_map(|port| {
        // As in `4: ACTIVE`.
        std::fs::read_to_string(port.path().join("state")).ok()
    });
    let Some(first) = states.next() else { return true };
    std::iter::once(first).chain(states).any(|state| state.starts_with("4:"))
}

/// CUDA writes the domain with eight digits in some versions, and in upper case.
fn bus_id(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => {
            format!("{}:{rest}", domain.get(domain.len() - 4..).unwrap_or(domain))
        }
        _ => lower,
    }
}

/// A PCI device: the chain from its host bridge down, and its NUMA node.
struct Pci {
    chain: Vec<PathBuf>,
    node: Option<u32>,
}

impl Pci {
    fn read(link: &Path) -> Self {
        // The node file holds -1 where the firmware does not say.
        let node =
            std::fs::read_to_string(link.join("numa_node")).ok().and_then(|text| text.trim().parse().ok());
        let path = std::fs::canonicalize(link).unwrap_or_default();
        Self { chain: chain(&path), node }
    }
}

/// `/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0` without what comes before the host bridge; empty if there is none.
/// A virtual function is a neighbour of its physical one there.
fn chain(path: &Path) -> Vec<PathBuf> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let is_bridge =
        |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with("pci") && name.contains(':'));
    names.skip_while(|name| !is_bridge(name)).map(PathBuf::from).collect()
}

fn between(a: &Pci, b: &Pci) -> Distance {
    let (Some(root_a), Some(root_b)) = (a.chain.first(), b.chain.first()) else { return Distance::Unknown };
    let common = a.chain.iter().zip(&b.chain).take_while(|(x, y)| x == y).count();
    if root_a == root_b {
        // The host bridge and the root port are shared below a switch; the devices themselves are no bridges.
        let bridges = (a.chain.len() - common).saturating_sub(1) + (b.chain.len() - common).saturating_sub(1);
        return match common {
            0 | 1 => Distance::RootComplex,
            _ => Distance::Switch(u8::try_from(bridges).unwrap_or(u8::MAX)),
        };
    }
    match (a.node, b.node) {
        (Some(x), Some(y)) if x == y => Distance::Node,
        // Where the firmware says nothing, other root complexes count as far.
        _ => Distance::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pci(path: &str, node: Option<u32>) -> Pci {
        Pci { chain: chain(Path::new(path)), node }
    }

    const GPU: &str = "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0";

    fn from_gpu(path: &str, node: Option<u32>) -> Distance {
        between(&pci(GPU, Some(0)), &pci(path, node))
    }

    #[test]
    fn distances_are_ordered_as_paths_grow() {
        let beside =
            from_gpu("/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.1", Some(0));
        let switch =
            from_gpu("/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1a:00.0", Some(0));
        let port = from_gpu("/sys/devices/pci0000:16/0000:16:03.0/0000:1c:00.0", Some(0));
        let node = from_gpu("/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0", Some(0));
        let system = from_gpu("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0", Some(1));
        let soft = from_gpu("/sys/devices/virtual/infiniband/rxe0", None);
        assert_eq!(
            [beside, switch, port, node, system, soft],
            [
                Distance::Switch(0),
                Distance::Switch(2),
                Distance::RootComplex,
                Distance::Node,
                Distance::System,
                Distance::Unknown
            ]
        );
        let mut sorted = [soft, system, node, port, switch, beside];
        sorted.sort();
        assert_eq!(sorted, [beside, switch, port, node, system, soft]);
        // Where no domain has a node the domains alone tell that it is far.
        assert_eq!(from_gpu("/sys/devices/pci0001:00/0001:00:00.0/0001:01:00.0", None), Distance::System);
    }

    #[test]
    fn equally_near_ones_are_taken_in_turn() {
        let distances = [Distance::System, Distance::Switch(2), Distance::Unknown, Distance::Switch(2)];
        let picks: Vec<_> = (0..4).map(|turn| pick(&distances, turn)).collect();
        assert_eq!(picks, [Some(1), Some(3), Some(1), Some(3)]);
        assert_eq!(pick::<Distance>(&[], 0), None);
    }

    #[test]
    fn a_tree_of_links_is_followed() {
        let root = std::env::temp_dir().join(format!("aqueduct-pci-{}", std::process::id()));
        let gpu = root.join("devices/pci0000:16/0000:16:01.0/0000:17:00.0");
        let near = root.join("devices/pci0000:16/0000:16:01.0/0000:17:00.1");
        let far = root.join("devices/pci0000:80/0000:80:01.0/0000:81:00.0");
        let ports = root.join("class/infiniband/mlx5_1/ports");
        for (port, state) in [("1", "1: DOWN\n"), ("2", "4: ACTIVE\n")] {
            std::fs::create_dir_all(ports.join(port)).unwrap();
            std::fs::write(ports.join(port).join("state"), state).unwrap();
        }
        for (device, node) in [(&gpu, "0\n"), (&near, "0\n"), (&far, "-1\n")] {
            std::fs::create_dir_all(device).unwrap();
            std::fs::write(device.join("numa_node"), node).unwrap();
        }
        let link = |from: PathBuf, to: &Path| {
            std::fs::create_dir_all(from.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, from).unwrap();
        };
        link(root.join("bus/pci/devices/0000:17:00.0"), &gpu);
        link(root.join("class/infiniband/mlx5_0/device"), &far);
        link(root.join("class/infiniband/mlx5_1/device"), &near);
        std::fs::create_dir_all(root.join("class/infiniband/rxe0")).unwrap();
        let found: Vec<_> =
            ["mlx5_0", "mlx5_1", "rxe0"].iter().map(|nic| distance(&root, "00000000:17:00.0", nic)).collect();
        let active = |nic| has_active_port(&root, nic);
        assert!(active("mlx5_1") && active("rxe0"), "one of two, and nothing known");
        std::fs::remove_file(ports.join("2/state")).unwrap();
        assert!(!active("mlx5_1"));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [Distance::System, Distance::Switch(0), Distance::Unknown]);
    }
}
