//! Which of this host's addresses the others can reach.

use std::ffi::CStr;
use std::net::IpAddr;

use super::connect::decode;
use super::sys;
use crate::env::{Selection, SocketFamily};
use crate::error::{Error, ErrorKind, Result};

/// One address of one network interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The name, for example `eth0`.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// Whether it only leads back to this host.
    pub loopback: bool,
}

/// All addresses of interfaces that are up, without IPv6 link-local ones.
pub fn interfaces() -> Result<Vec<Interface>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` lives across the call and receives a list that is freed below.
    sys::check(unsafe { libc::getifaddrs(&mut list) })
        .map_err(|error| Error::system("getifaddrs", "cannot list the network interfaces", error))?;
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is an entry of the list, which is not freed before the end of the loop.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: `ifa_addr` is a whole socket address of its family, aligned by the C library; the name is a
        // C string. Both live as long as the list.
        let (address, name) = unsafe { (decode(entry.ifa_addr.cast()), CStr::from_ptr(entry.ifa_name)) };
        found.extend(
            address.and_then(|address| usable(&name.to_string_lossy(), address.ip(), entry.ifa_flags)),
        );
    }
    // SAFETY: the list came from getifaddrs and nothing borrowed from it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The address `ip` of the interface `name`, unless nobody can be reached with it.
fn usable(name: &str, ip: IpAddr, flags: libc::c_uint) -> Option<Interface> {
    let has = |flag: libc::c_int| flags & flag as libc::c_uint != 0;
    // A link-local address needs a scope that means nothing to another host.
    let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    (has(libc::IFF_UP) && !link_local).then(|| Interface {
        name: name.to_owned(),
        ip,
        loopback: has(libc::IFF_LOOPBACK),
    })
}

/// The addresses to offer to other ranks, best first.
///
/// Without a wish: real interfaces; only if there are none, those of containers and bridges; only if there are
/// none of these either, the loopback.
pub fn choose(selection: &Selection) -> Result<Vec<Interface>> {
    pick(interfaces()?, selection)
}

fn pick(all: Vec<Interface>, selection: &Selection) -> Result<Vec<Interface>> {
    let family = |i: &Interface| match selection.family {
        SocketFamily::Any => true,
        SocketFamily::V4 => i.ip.is_ipv4(),
        SocketFamily::V6 => i.ip.is_ipv6(),
    };
    let mut usable: Vec<Interface> = all.iter().filter(|i| family(i)).cloned().collect();
    if let Some(names) = &selection.names {
        usable.retain(|i| matches(names, &i.name));
    } else if let Some(best) = usable.iter().map(rank).min() {
        usable.retain(|i| rank(i) == best);
    }
    usable.sort_by_key(|i| (rank(i), i.ip.is_ipv6()));
    if usable.is_empty() {
        let mut known: Vec<String> = all.iter().map(|i| format!("{} ({})", i.name, i.ip)).collect();
        known.sort();
        return Err(Error::new(
            ErrorKind::InvalidUsage,
            "interfaces",
            format!(
                "no network interface fits the names {} and the family {:?} (of AQUEDUCT_SOCKET_IFNAME and AQUEDUCT_SOCKET_FAMILY, \
                 unless the program says otherwise); there are: {}",
                selection.names.as_deref().unwrap_or("(any)"),
                selection.family,
                known.join(", ")
            ),
        ));
    }
    Ok(usable)
}

/// 0 for what leads to other hosts, 1 for container bridges and tunnels, 2 for the loopback.
fn rank(interface: &Interface) -> u8 {
    const INNER: [&str; 6] = ["docker", "veth", "virbr", "br-", "cni", "podman"];
    if interface.loopback {
        2
    } else {
        u8::from(INNER.iter().any(|prefix| interface.name.starts_with(prefix)))
    }
}

fn matches(names: &str, name: &str) -> bool {
    let (exclude, list) = match names.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, names),
    };
    let named = list.split(',').map(str::trim).filter(|s| !s.is_empty()).any(|s| match s.strip_prefix('=') {
        Some(exact) => name == exact,
        None => name.starts_with(s),
    });
    named != exclude
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ip: &str) -> Interface {
        Interface { name: name.into(), ip: ip.parse().unwrap(), loopback: name == "lo" }
    }

    fn names(selection: &Selection, all: &[Interface]) -> Vec<String> {
        pick(all.to_vec(), selection).unwrap().into_iter().map(|i| format!("{} {}", i.name, i.ip)).collect()
    }

    #[test]
    fn default_wish_and_exclusion() {
        let all = [
            interface("lo", "127.0.0.1"),
            interface("docker0", "172.17.0.1"),
            interface("eth0", "fd00::1"),
            interface("eth0", "10.0.0.1"),
            interface("eth01", "10.0.1.1"),
        ];
        let wish = |text: &str| Selection { names: Some(text.into()), family: SocketFamily::V4 };
        assert_eq!(names(&Selection::default(), &all), ["eth0 10.0.0.1", "eth01 10.0.1.1", "eth0 fd00::1"]);
        assert_eq!(names(&Selection::default(), &all[..2]), ["docker0 172.17.0.1"]);
        assert_eq!(names(&Selection::default(), &all[..1]), ["lo 127.0.0.1"]);
        assert_eq!(names(&wish("eth0"), &all), ["eth0 10.0.0.1", "eth01 10.0.1.1"]);
        assert_eq!(names(&wish("=eth0"), &all), ["eth0 10.0.0.1"]);
        assert_eq!(names(&wish("^lo,docker,=eth01"), &all), ["eth0 10.0.0.1"]);
        let error = pick(all.to_vec(), &wish("ib")).unwrap_err().to_string();
        assert!(
            error.contains("the names ib and")
                && error.contains("AQUEDUCT_SOCKET_IFNAME")
                && error.contains("docker0 (172.17.0.1)"),
            "{error}"
        );
    }

    #[test]
    fn this_host_has_a_loopback() {
        assert!(interfaces().unwrap().iter().any(|i| i.loopback && i.ip.is_loopback()));
    }

    #[test]
    fn only_addresses_that_others_can_use_are_listed() {
        const UP: libc::c_uint = libc::IFF_UP as libc::c_uint;
        const LOOPBACK: libc::c_uint = libc::IFF_LOOPBACK as libc::c_uint;
        const RUNNING: libc::c_uint = libc::IFF_RUNNING as libc::c_uint;
        let loopback = |ip: &str, flags| usable("x", ip.parse().unwrap(), flags).map(|found| found.loopback);
        assert_eq!(loopback("10.0.0.1", UP | RUNNING), Some(false));
        assert_eq!(loopback("127.0.0.1", UP | LOOPBACK), Some(true));
        assert_eq!(loopback("10.0.0.1", RUNNING), None, "it is down");
        assert_eq!((loopback("fe80::1", UP), loopback("fd00::1", UP)), (None, Some(false)));
        let found = usable("eth0", "10.0.0.1".parse().unwrap(), UP);
        assert_eq!(found, Some(interface("eth0", "10.0.0.1")));
    }
}
