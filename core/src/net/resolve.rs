//! Addresses of hosts by their names, until a deadline.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::Builder;

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};

/// The addresses of `host` with `port`, in the order in which to try them. A numeric address needs no name server.
///
/// # Errors
/// `Timeout` if no name server has answered at the deadline; `System` if the name is unknown, or there are no more threads.
pub(crate) fn resolve(
    op: &'static str,
    host: &str,
    port: u16,
    deadline: Deadline,
) -> Result<Vec<SocketAddr>> {
    resolve_by(op, host, port, deadline, |host, port| (host, port).to_socket_addrs().map(Iterator::collect))
}

/// [`resolve`], with `look_up` on a thread of its own: the system's resolver takes no deadline. A thread that a dead name server
/// holds up outlives this call, and ends by itself.
fn resolve_by(
    op: &'static str,
    host: &str,
    port: u16,
    deadline: Deadline,
    look_up: impl FnOnce(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    let (tell, told) = mpsc::channel();
    let name = host.to_owned();
    // The caller may have gone, and need not hear it.
    let body = move || drop(tell.send(look_up(&name, port)));
    let no_thread =
        |error| Error::system(op, "cannot start a thread that looks up a host's name; see ulimit -u", error);
    Builder::new().name("aqueduct-names".into()).spawn(body).map_err(no_thread)?;
    match told.recv_timeout(deadline.remaining()) {
        Ok(found) => found.map_err(|error| {
            Error::system(op, format!("the host `{host}` has no address that the system knows"), error)
        }),
        Err(RecvTimeoutError::Timeout) => Err(Error::timeout(
            op,
            format!(
                "no name server told the address of the host `{host}` before the deadline; see that those in /etc/resolv.conf \
                 answer, or give the host's IP address instead of its name"
            ),
        )),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::new(ErrorKind::Internal, op, format!("the lookup of the host `{host}` panicked")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(60))
    }

    /// The name server answers only once the caller has given up.
    #[test]
    fn a_dead_name_server_holds_nobody_past_the_deadline() {
        let (given_up, waits) = mpsc::channel();
        let look_up = move |_: &str, _| {
            let _ = waits.recv_timeout(Duration::from_secs(60));
            Ok(Vec::new())
        };
        let late = resolve_by("x", "node1", 1, Deadline::after(Duration::ZERO), look_up).unwrap_err();
        assert_eq!((late.op(), late.kind()), ("x", ErrorKind::Timeout), "{late}");
        for words in ["`node1`", "/etc/resolv.conf", "IP address"] {
            assert!(late.message().contains(words), "{words}: {late}");
        }
        given_up.send(()).unwrap();
    }

    #[test]
    fn numeric_addresses_need_no_name_server() {
        for text in ["127.0.0.1", "::1"] {
            let look_up = |_: &str, _| unreachable!("it is numeric");
            let expired = Deadline::after(Duration::ZERO);
            let found = resolve_by("x", text, 29500, expired, look_up).unwrap();
            assert_eq!(found, [SocketAddr::new(text.parse().unwrap(), 29500)]);
        }
    }

    #[test]
    fn names_have_the_addresses_that_were_found_and_unknown_ones_say_so() {
        let found = resolve_by("x", "node1", 7, soon(), |name, port| {
            assert_eq!(name, "node1");
            Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))])
        });
        assert_eq!(found.unwrap(), ["10.0.0.1:7".parse().unwrap()]);
        let unknown = |_: &str, _| Err(io::Error::other("Name or service not known"));
        let error = resolve_by("x", "node2", 7, soon(), unknown).unwrap_err();
        assert!(error.kind() == ErrorKind::System && error.message().contains("`node2`"), "{error}");
        let panics = |_: &str, _| panic!("a bug");
        assert_eq!(resolve_by("x", "node3", 7, soon(), panics).unwrap_err().kind(), ErrorKind::Internal);
    }
}
