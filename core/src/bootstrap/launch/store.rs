//! A client of the key-value store that torchrun's agent serves at `MASTER_ADDR:MASTER_PORT`.
//!
//! Protocol of PyTorch's TCPStore (2.1 and later): a request is one byte of command and its arguments; numbers are in
//! the host's byte order, texts have a 64-bit length before them. The first request proves by a number that we mean
//! a store. The store knows no authentication: whoever can reach its port can read what is in it, so the text is
//! deleted as soon as everybody has it.
#![forbid(unsafe_code)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::launcher::OP;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::net::{SecretText, resolve};

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const WAIT: u8 = 6;
const DELETE: u8 = 8;
const MAGIC: u32 = 0x3c85_f7ce;
const STOP_WAITING: u8 = 0;
const MAX_VALUE: u64 = 4096;
const PAUSE: Duration = Duration::from_millis(50);
/// The shortest time that a socket's call can be given.
const MOMENT: Duration = Duration::from_millis(1);

/// A connection to the store, about one key of it.
#[derive(Debug)]
pub(super) struct Store {
    stream: TcpStream,
    place: String,
    key: String,
    deadline: Deadline,
}

impl Store {
    /// Connects; tries again until the deadline, as the store may start later than we do.
    pub(super) fn connect(host: &str, port: u16, key: &str, deadline: Deadline) -> Result<Self> {
        let place = format!("{host}:{port}");
        let stream = loop {
            match try_connect(host, port, deadline) {
                Ok(stream) => break stream,
                Err(error) if error.kind() == ErrorKind::Timeout => return Err(error),
                Err(error) if deadline.remaining() <= PAUSE => {
                    let text = format!(
                        "no store of torchrun answers at MASTER_ADDR and MASTER_PORT ({place}); start the ranks by torchrun, \
                         or set AQUEDUCT_RENDEZVOUS_FILE"
                    );
                    return Err(Error::new(error.kind(), OP, text)
                        .with_code(error.code())
                        .with_source(error));
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        };
        Self::on(stream, place, key, deadline)
    }

    /// The same on a connection to `place`.
    pub(super) fn on(stream: TcpStream, place: String, key: &str, deadline: Deadline) -> Result<Self> {
        let mut store = Self { stream, place, key: key.to_owned(), deadline };
        let mut hello = vec![VALIDATE];
        hello.extend(MAGIC.to_ne_bytes());
        store.send(&hello)?;
        Ok(store)
    }

    /// Gives rank 0's `mine` to all ranks; the others pass `None`.
    pub(super) fn share(&mut self, mine: Option<&SecretText>) -> Result<SecretText> {
        mine.map_or(Ok(()), |id| self.set(id))?;
        self.get()
    }

    /// Puts `value` at our key.
    fn set(&mut self, value: &SecretText) -> Result<()> {
        let mut request = self.request(SET, false);
        text(&mut request, value.expose());
        self.send(&request)
    }

    /// Waits until our key has a value, and gets it.
    pub(super) fn get(&mut self) -> Result<SecretText> {
        self.send(&self.request(WAIT, true))?;
        if self.number::<1>()?[0] != STOP_WAITING {
            return Err(self.failed("it cancelled the wait for rank 0's id"));
        }
        self.send(&self.request(GET, false))?;
        let len = u64::from_ne_bytes(self.number()?);
        if len > MAX_VALUE {
            return Err(self.failed(&format!("it announces a value of {len} bytes")));
        }
        let mut value = vec![0; len as usize];
        self.read(&mut value)?;
        String::from_utf8(value).map(SecretText::new).map_err(|_| self.failed("its value is no text"))
    }

    /// Removes our key. Asks for that even when the time is over, and waits for the answer only while there is some left.
    pub(super) fn delete(&mut self) -> Result<()> {
        self.write(&self.request(DELETE, false), self.deadline.remaining().max(MOMENT))?;
        if self.deadline.expired() { Ok(()) } else { self.number::<8>().map(drop) }
    }

    fn request(&self, command: u8, counted: bool) -> Vec<u8> {
        let mut request = vec![command];
        if counted {
            request.extend(1u64.to_ne_bytes());
        }
        text(&mut request, &self.key);
        request
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let left = self.left()?;
        self.write(bytes, left)
    }

    fn write(&mut self, bytes: &[u8], within: Duration) -> Result<()> {
        let sent = self.stream.set_write_timeout(Some(within)).and_then(|()| self.stream.write_all(bytes));
        sent.map_err(|error| self.broken(error))
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            let left = self.left()?;
            match self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(bytes)) {
                Ok(0) => return Err(self.failed("it closed the connection")),
                Ok(n) => bytes = &mut bytes[n..],
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
        Ok(())
    }

    fn left(&self) -> Result<Duration> {
        let left = self.deadline.remaining();
        if left.is_zero() {
            let text = format!("rank 0 did not put its id into torchrun's store at {} in time", self.place);
            return Err(Error::timeout(OP, text));
        }
        Ok(left)
    }

    fn broken(&self, error: std::io::Error) -> Error {
        Error::system(OP, format!("the connection to torchrun's store at {} broke", self.place), error)
    }

    fn failed(&self, what: &str) -> Error {
        let text =
            format!("what answers at MASTER_ADDR and MASTER_PORT ({}) is of no use: {what}", self.place);
        Error::new(ErrorKind::System, OP, text)
    }
}

fn text(request: &mut Vec<u8>, text: &str) {
    request.extend((text.len() as u64).to_ne_bytes());
    request.extend(text.as_bytes());
}

/// `Timeout` only if the name `host` was not resolved before the deadline.
fn try_connect(host: &str, port: u16, deadline: Deadline) -> Result<TcpStream> {
    let addresses = resolve(OP, host, port, deadline)?;
    let connected = first_of(&addresses, deadline, TcpStream::connect_timeout)
        .and_then(|stream| stream.set_nodelay(true).map(|()| stream));
    connected.map_err(|error| Error::system(OP, "nothing answers there", error))
}

/// What `connect` makes of the first of `addresses` that answers, each in its share of the time.
fn first_of<T>(
    addresses: &[SocketAddr],
    deadline: Deadline,
    mut connect: impl FnMut(&SocketAddr, Duration) -> std::io::Result<T>,
) -> std::io::Result<T> {
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for (index, address) in addresses.iter().enumerate() {
        // An address that swallows packets must leave time for those after it.
        let share = deadline.remaining() / (addresses.len() - index) as u32;
        match connect(address, share.max(MOMENT)) {
            Ok(connected) => return Ok(connected),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_key_is_removed_even_when_the_time_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut served = listener.accept().unwrap().0;
        let mut store =
            Store::on(stream, "here".to_owned(), "key", Deadline::after(Duration::from_secs(60))).unwrap();
        store.deadline = Deadline::after(Duration::ZERO);
        store.delete().unwrap();
        let wanted = store.request(DELETE, false);
        drop(store);
        let mut heard = Vec::new();
        served.read_to_end(&mut heard).unwrap();
        assert!(heard.ends_with(&wanted), "{heard:?}");
    }

    #[test]
    fn an_address_that_swallows_packets_leaves_time_for_those_behind_it() {
        const WHOLE: Duration = Duration::from_secs(600);
        let addresses = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let mut limits = Vec::new();
        let none = first_of(&addresses, Deadline::after(WHOLE), |_, limit| -> std::io::Result<()> {
            limits.push(limit);
            Err(std::io::ErrorKind::TimedOut.into())
        });
        assert_eq!(none.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        for (limit, waiting) in limits.iter().zip([3, 2, 1]) {
            assert!(*limit <= WHOLE / waiting, "{limits:?}");
        }
        assert_eq!(limits.len(), 3);
    }
}
