//! The address at which ranks meet, as users write it, and what may be wrong with it.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::error::{Error, ErrorKind, Result};

const OP: &str = "TcpBootstrap::at";

/// The address that `text` names, and the interface before it, if there is one.
pub(super) fn parse(text: &str) -> Result<(Option<&str>, SocketAddr)> {
    let refuse = |why: &str| Err(Error::usage(OP, format!("`{text}` is not an address to meet at: {why}")));
    let plain = text.parse::<SocketAddr>().map(|address| (None, address));
    let behind_interface = || match text.split_once(':') {
        Some((name, rest)) if !name.is_empty() => Some((Some(name), rest.parse().ok()?)),
        _ => None,
    };
    let Some((interface, address)) = plain.ok().or_else(behind_interface) else {
        return refuse(
            "write ip:port, [ip]:port for IPv6, or interface:ip:port, for example eth0:10.0.0.1:29500; a host's name has to \
             be resolved first",
        );
    };
    if address.port() == 0 {
        return refuse("all ranks have to know the port, and 0 stands for any; name one, for example 29500");
    }
    if address.ip().is_unspecified() {
        return refuse(
            "it stands for every address of a host; name the one at which the others reach rank 0",
        );
    }
    if address.ip().is_multicast() || address.ip() == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return refuse("it stands for many hosts at once; name the one at which the others reach rank 0");
    }
    if matches!(address.ip(), IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        return refuse(
            "an address of the local link means nothing on another host; name a global or a unique local one",
        );
    }
    Ok((interface, address))
}

/// Explains why rank 0 could not listen at `address`.
pub(super) fn not_mine(address: SocketAddr, error: Error) -> Error {
    let why = match error.code() {
        libc::EADDRINUSE => {
            "another process listens there: another job, or a second rank 0; choose a port that is free on this host"
        }
        libc::EADDRNOTAVAIL => "it is no address of this host; start rank 0 on the host that has it",
        libc::EACCES => "ports below 1024 are for privileged processes; choose a higher one",
        _ => "see whether this host may listen there",
    };
    let text = format!("rank 0 cannot listen at {address}: {why}");
    Error::new(error.kind(), OP, text).with_code(error.code()).with_source(error)
}

/// Explains why `rank` could not reach rank 0 at `address`.
pub(super) fn not_reached(address: SocketAddr, rank: u32, error: Error) -> Error {
    let why = match error.kind() {
        ErrorKind::Authentication => "give all ranks the same secret, and each job a port of its own",
        _ => "see that rank 0 runs and names the same address, and that no firewall is between",
    };
    let text = format!("rank {rank} cannot join at {address}: {why}");
    Error::new(error.kind(), OP, text).with_code(error.code()).with_source(error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_with_and_without_an_interface() {
        for (text, interface, address) in [
            ("10.0.0.1:29500", None, "10.0.0.1:29500"),
            ("[fd00::1]:29500", None, "[fd00::1]:29500"),
            ("[::1]:1", None, "[::1]:1"),
            ("eth0:10.0.0.1:29500", Some("eth0"), "10.0.0.1:29500"),
            ("bond0.7:[fd00::1]:65535", Some("bond0.7"), "[fd00::1]:65535"),
        ] {
            assert_eq!(parse(text).unwrap(), (interface, address.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn what_is_none_says_how_one_is_written() {
        let written = "write ip:port, [ip]:port for IPv6, or interface:ip:port";
        for (text, why) in [
            ("", written),
            ("10.0.0.1", written),
            ("10.0.0.1:", written),
            ("10.0.0.1:70000", written),
            ("10.0.0.256:1", written),
            (":10.0.0.1:29500", written),
            ("fd00::1:29500", written),
            ("[fd00::1]29500", written),
            ("node1:29500", "a host's name has to be resolved first"),
            ("10.0.0.1:0", "all ranks have to know the port"),
            ("eth0:10.0.0.1:0", "all ranks have to know the port"),
            ("0.0.0.0:29500", "every address of a host"),
            ("[::]:29500", "every address of a host"),
            ("eth0:[fe80::1]:29500", "an address of the local link"),
            ("255.255.255.255:29500", "many hosts at once"),
            ("224.0.0.1:29500", "many hosts at once"),
            ("eth0:[ff02::1]:29500", "many hosts at once"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!((error.op(), error.kind()), (OP, ErrorKind::InvalidUsage), "{text}");
            assert!(error.message().contains(&format!("`{text}`")), "{error}");
            assert!(error.message().contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}|[a-z0-9]{0,5}:?\\[?[0-9a-f:.]{0,20}\\]?:[0-9]{0,6}") {
            if let Ok((interface, address)) = parse(&text) {
                let back = interface.map_or(String::new(), |name| format!("{name}:"));
                let back = format!("{back}{address}");
                prop_assert_eq!(parse(&back).unwrap(), (interface, address));
            }
        }
    }
}
