//! Description that every rank sends to all others when a communicator is made, and the checks of all descriptions.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::birth::{self, Birth};
use crate::error::{Error, ErrorKind, Result};
use crate::wire::{Reader, WireError, WireResult, Writer};

/// Version of [`PeerInfo`] on the wire.
const VERSION: u16 = 3;

pub(super) const MAX_TEXT: usize = 1024;
const MAX_ADDRESSES: usize = 64;

/// Which sort of driver a rank uses. Ranks of one communicator use the same sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriverKind {
    /// A GPU.
    Hardware,
    /// The software device.
    Software,
}

/// The device of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The same in every process; zero where the driver cannot say.
    pub uuid: [u8; 16],
    /// `domain:bus:device.function`, unique within a host.
    pub pci_bus_id: String,
    /// Product name.
    pub name: String,
    /// Hardware or software.
    pub kind: DriverKind,
    /// CUDA version of the driver, (major, minor).
    pub driver_version: (i32, i32),
    /// How many multiprocessors it has. Ranks agree on grids by the least of all.
    pub multiprocessors: u32,
}

impl DeviceIdentity {
    fn encode(&self, w: &mut Writer) {
        w.raw(&self.uuid).str(&self.pci_bus_id).str(&self.name);
        w.u8(u8::from(self.kind == DriverKind::Software));
        w.u32(self.driver_version.0.cast_unsigned()).u32(self.driver_version.1.cast_unsigned());
        w.u32(self.multiprocessors);
    }

    fn decode(r: &mut Reader<'_>) -> WireResult<Self> {
        Ok(Self {
            uuid: r.array()?,
            pci_bus_id: r.text(MAX_TEXT)?,
            name: r.text(MAX_TEXT)?,
            kind: if r.bool()? { DriverKind::Software } else { DriverKind::Hardware },
            driver_version: (r.u32()?.cast_signed(), r.u32()?.cast_signed()),
            multiprocessors: r.u32()?,
        })
    }
}

/// One rank of a communicator, as the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its number.
    pub rank: u32,
    /// How many ranks it believes there are.
    pub size: u32,
    /// Equal for ranks of one host.
    pub host: String,
    /// Random, equal for ranks of one process.
    pub process: u64,
    /// Its process id, for messages.
    pub pid: u32,
    /// Its device; `None` for a process that is a member without one.
    pub device: Option<DeviceIdentity>,
    /// Library version, for messages.
    pub library: String,
    pub(crate) birth: Birth,
    pub(crate) abi: u32,
    pub(crate) frames: u16,
    pub(crate) tcp: Vec<SocketAddr>,
    pub(crate) unix: PathBuf,
}

impl PeerInfo {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u16(VERSION).u16(self.frames).u32(self.abi).str(&self.library);
        w.u32(self.rank).u32(self.size).str(&self.host).u64(self.process).u32(self.pid);
        w.u64(self.birth.namespace).u64(self.birth.started);
        w.u8(u8::from(self.device.is_some()));
        if let Some(device) = &self.device {
            device.encode(&mut w);
        }
        w.count(self.tcp.len());
        for address in &self.tcp {
            match address.ip() {
                IpAddr::V4(ip) => w.u8(4).raw(&ip.octets()),
                IpAddr::V6(ip) => w.u8(6).raw(&ip.octets()),
            };
            w.u16(address.port());
        }
        w.bytes(self.unix.as_os_str().as_bytes());
        w.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> WireResult<Self> {
        let mut r = Reader::new(bytes);
        r.version(VERSION)?;
        let (frames, abi, library) = (r.u16()?, r.u32()?, r.text(MAX_TEXT)?);
        let (rank, size, host) = (r.u32()?, r.u32()?, r.str(MAX_TEXT)?.to_owned());
        let (process, pid) = (r.u64()?, r.u32()?);
        let birth = Birth { namespace: r.u64()?, started: r.u64()? };
        let device = if r.bool()? { Some(DeviceIdentity::decode(&mut r)?) } else { None };
        let mut tcp = Vec::new();
        for _ in 0..r.count(MAX_ADDRESSES, 7)? {
            let ip = match r.u8()? {
                4 => IpAddr::from(r.array::<4>()?),
                6 => IpAddr::from(r.array::<16>()?),
                _ => return Err(WireError::Invalid { what: "address family" }),
            };
            tcp.push(SocketAddr::new(ip, r.u16()?));
        }
        let unix = PathBuf::from(std::ffi::OsString::from_vec(r.bytes(MAX_TEXT)?.to_vec()));
        r.finish()?;
        Ok(Self { rank, size, host, process, pid, birth, device, library, abi, frames, tcp, unix })
    }

    /// Whether the kernel says that this rank's process has ended, or is past the point of running any more of its code.
    /// False where it cannot tell: on another host, in another namespace of process ids, without /proc.
    pub(crate) fn has_ended(&self, mine: &Self) -> bool {
        let other = self.pid_beside(mine).filter(|pid| *pid != mine.pid);
        other.is_some_and(|pid| !birth::is_running(pid, self.birth.started))
    }

    /// Its process id as that of `mine` sees it: on one host, and in one namespace of process ids.
    pub(crate) fn pid_beside(&self, mine: &Self) -> Option<u32> {
        let visible = self.same_host(mine) && self.birth.namespace == mine.birth.namespace;
        (visible && self.birth != Birth::default()).then_some(self.pid)
    }

    /// Whether both are ranks of one process.
    pub fn same_process(&self, other: &Self) -> bool {
        self.same_host(other) && self.process == other.process
    }

    /// Whether both are on one host.
    pub fn same_host(&self, other: &Self) -> bool {
        self.host == other.host
    }

    /// Whether both use one device. False for a rank without one.
    pub fn same_device(&self, other: &Self) -> bool {
        let one =
            |(a, b): (&DeviceIdentity, &DeviceIdentity)| a.pci_bus_id == b.pci_bus_id && a.uuid == b.uuid;
        self.same_host(other) && self.device.as_ref().zip(other.device.as_ref()).is_some_and(one)
    }

    /// The name and address of its device, for messages.
    pub(crate) fn device_label(&self) -> String {
        match &self.device {
            Some(device) => format!("{} ({})", device.name, device.pci_bus_id),
            None => "no device".into(),
        }
    }
}

/// Decodes what was gathered and refuses ranks that cannot work with `mine`.
pub(crate) fn check_all(mine: &PeerInfo, gathered: &[Vec<u8>]) -> Result<Vec<PeerInfo>> {
    const OP: &str = "Communicator::new";
    let mut all = Vec::with_capacity(gathered.len());
    for (rank, bytes) in gathered.iter().enumerate() {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        let info = PeerInfo::decode(bytes).map_err(|error| {
            let message = format!("rank {rank} describes itself in a way this version cannot read; use one version of aqueduct everywhere");
            Error::new(ErrorKind::Remote, OP, message).with_peer(rank).with_source(error)
        })?;
        let refuse = |message: String| Err(Error::usage(OP, message).with_peer(rank));
        if info.rank != rank {
            return refuse(format!(
                "the process in place {rank} says it is rank {}: two processes were given the same number; number them 0 to {}",
                info.rank,
                mine.size - 1
            ));
        }
        if info.size != mine.size || gathered.len() != mine.size as usize {
            return refuse(format!(
                "rank {rank} counts {} ranks, rank {} counts {}: give every process the same world size",
                info.size, mine.rank, mine.size
            ));
        }
        if (info.frames, info.abi) != (mine.frames, mine.abi) {
            return refuse(format!(
                "rank {rank} runs aqueduct {}, rank {} runs {}: use one version everywhere",
                info.library, mine.rank, mine.library
            ));
        }
        let kind = |info: &PeerInfo| info.device.as_ref().map(|device| device.kind);
        if let (Some(theirs), Some(ours)) = (kind(&info), kind(mine))
            && theirs != ours
        {
            let soft = if theirs == DriverKind::Software { rank } else { mine.rank };
            return refuse(format!(
                "rank {soft} uses the software device and others use GPUs: set AQUEDUCT_DRIVER to the same on every rank"
            ));
        }
        all.push(info);
    }
    if all.len() != mine.size as usize {
        return Err(Error::usage(OP, format!("the bootstrap gathered {} of {} ranks", all.len(), mine.size)));
    }
    Ok(all)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn info(rank: u32, size: u32) -> PeerInfo {
        PeerInfo {
            rank,
            size,
            host: "h/1".into(),
            process: 7,
            pid: 100 + rank,
            birth: Birth::default(),
            device: Some(DeviceIdentity {
                uuid: [rank as u8; 16],
                pci_bus_id: format!("0000:0{rank}:00.0"),
                name: "device".into(),
                kind: DriverKind::Software,
                driver_version: (12, 4),
                multiprocessors: 16 + rank,
            }),
            library: "0.1.0".into(),
            abi: 1,
            frames: 1,
            tcp: vec!["127.0.0.1:80".parse().unwrap(), "[::1]:81".parse().unwrap()],
            unix: "/run/x/s".into(),
        }
    }

    #[test]
    fn round_trip() {
        let mut info = info(3, 4);
        assert_eq!(PeerInfo::decode(&info.encode()).unwrap(), info);
        info.device = None;
        assert_eq!(PeerInfo::decode(&info.encode()).unwrap(), info);
    }

    #[test]
    fn ranks_that_do_not_fit_are_refused_with_what_to_do() {
        let mine = info(0, 2);
        let other = |change: &dyn Fn(&mut PeerInfo)| {
            let mut other = info(1, 2);
            change(&mut other);
            check_all(&mine, &[mine.encode(), other.encode()]).map_err(|e| e.to_string())
        };
        assert_eq!(other(&|_| {}).unwrap().len(), 2);
        assert!(other(&|o| o.rank = 0).unwrap_err().contains("same number"));
        assert!(other(&|o| o.size = 3).unwrap_err().contains("world size"));
        assert!(other(&|o| o.abi = 2).unwrap_err().contains("one version"));
        let hardware = |o: &mut PeerInfo| o.device.as_mut().unwrap().kind = DriverKind::Hardware;
        let error = other(&hardware).unwrap_err();
        assert!(
            error.contains("AQUEDUCT_DRIVER") && error.contains("rank 0 uses the software device"),
            "{error}"
        );
        let mut on_gpu = mine.clone();
        hardware(&mut on_gpu);
        let error = check_all(&on_gpu, &[on_gpu.encode(), info(1, 2).encode()]).unwrap_err().to_string();
        assert!(error.contains("rank 1 uses the software device"), "{error}");
        assert_eq!(other(&|o| o.device = None).unwrap().len(), 2, "a member without a device");
        assert!(check_all(&mine, &[mine.encode()]).is_err());
        assert!(check_all(&mine, &[mine.encode(), vec![1, 2, 3]]).is_err());
    }

    /// A second rank that differs from the first in what `change` changes.
    fn beside(mine: &PeerInfo, change: impl Fn(&mut PeerInfo)) -> PeerInfo {
        let mut other = PeerInfo { rank: 1, pid: mine.pid + 1, ..mine.clone() };
        change(&mut other);
        other
    }

    #[test]
    fn hosts_processes_and_devices_are_told_apart() {
        type Of = fn(&PeerInfo, &PeerInfo) -> bool;
        type Change = fn(&mut PeerInfo);
        let of: [Of; 3] = [PeerInfo::same_host, PeerInfo::same_process, PeerInfo::same_device];
        let mine = info(0, 2);
        let cases: [(Change, [bool; 3]); 6] = [
            (|_| {}, [true, true, true]),
            (|o| o.host = "h/2".into(), [false, false, false]),
            (|o| o.process += 1, [true, false, true]),
            (|o| o.device.as_mut().unwrap().uuid = [9; 16], [true, true, false]),
            (|o| o.device.as_mut().unwrap().pci_bus_id = "0000:0f:00.0".into(), [true, true, false]),
            (|o| o.device = None, [true, true, false]),
        ];
        for (case, (change, expected)) in cases.into_iter().enumerate() {
            let other = beside(&mine, change);
            assert_eq!(of.map(|same| same(&mine, &other)), expected, "case {case}");
            assert_eq!(of.map(|same| same(&other, &mine)), expected, "case {case}");
        }
    }

    #[test]
    fn a_process_has_ended_only_where_the_kernel_can_say_so() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let mine = PeerInfo { pid: std::process::id(), birth: Birth::of_this_process(), ..info(0, 2) };
        let gone = |change: &dyn Fn(&mut PeerInfo)| {
            let ended = beside(&mine, |o| {
                o.pid = child.id();
                change(o);
            });
            ended.has_ended(&mine)
        };
        assert!(gone(&|_| {}));
        assert!(!gone(&|o| o.host = "h/2".into()), "its number means nothing here");
        assert!(!gone(&|o| o.birth.namespace += 1), "nor in another namespace");
        let nowhere = PeerInfo { birth: Birth::default(), ..mine.clone() };
        assert!(!beside(&nowhere, |o| o.pid = child.id()).has_ended(&nowhere), "there is no /proc");
        assert!(!beside(&mine, |o| o.pid = mine.pid).has_ended(&mine), "this process runs");
        // As if this process were one that was started later.
        let later = |o: &mut PeerInfo| (o.pid, o.birth.started) = (mine.pid, mine.birth.started - 1);
        assert!(!beside(&mine, later).has_ended(&mine), "a rank of this process is never said to have ended");
    }

    #[test]
    fn a_label_names_the_device_and_its_address() {
        assert_eq!(info(2, 4).device_label(), "device (0000:02:00.0)");
        assert_eq!(beside(&info(0, 2), |o| o.device = None).device_label(), "no device");
    }

    proptest! {
        #[test]
        fn garbage_is_refused(bytes: Vec<u8>) {
            prop_assert!(PeerInfo::decode(&bytes).is_err());
        }
    }
}
