//! Unix sockets and the descriptors that travel over them.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::wire::FrameHeader;

fn unix_pair() -> (Stream, Stream) {
    let (mut listener, path) = listen_unix();
    let client = std::thread::spawn(move || network().connect_unix(&path, claims(1, 0), soon()).unwrap());
    let server = listener.accept(soon()).unwrap();
    (server, client.join().unwrap())
}

fn null() -> File {
    File::open("/dev/null").unwrap()
}

#[test]
fn descriptors_arrive_open_with_their_frames_and_close_on_exec() {
    let (mut server, mut client) = unix_pair();
    let mut file = tempfile_like();
    client.send(1, b"none", soon()).unwrap();
    client.send_fds(2, b"two", &[file.as_fd(), null().as_fd()], soon()).unwrap();
    client.send(3, b"none", soon()).unwrap();
    assert_eq!(server.recv(soon()).unwrap().fds.len(), 0);
    let frame = server.recv(soon()).unwrap();
    assert_eq!((frame.kind, frame.fds.len()), (2, 2));
    assert_eq!(server.recv(soon()).unwrap().fds.len(), 0);
    // SAFETY: no pointers are passed.
    let flags = unsafe { libc::fcntl(frame.fds[0].as_raw_fd(), libc::F_GETFD) };
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    file.write_all(b"same file").unwrap();
    let mut received = File::from(frame.fds.into_iter().next().unwrap());
    received.rewind().unwrap();
    let mut text = String::new();
    received.read_to_string(&mut text).unwrap();
    assert_eq!(text, "same file");
}

#[test]
fn unannounced_missing_and_too_many_descriptors_are_refused_and_closed() {
    let header = |fds| FrameHeader { kind: 1, length: 0, fds }.encode();
    let file = null();
    // One that no frame announced.
    let (mut server, client) = unix_pair();
    client.raw.write(&header(0), &[file.as_fd()]).unwrap();
    assert_eq!(server.recv(soon()).unwrap_err().kind(), ErrorKind::Remote);
    // One announced, none sent.
    let (mut server, client) = unix_pair();
    client.raw.write(&header(1), &[]).unwrap();
    assert_eq!(server.recv(soon()).unwrap_err().kind(), ErrorKind::Remote);
    // More than fit: the kernel truncates the list, and what did arrive must not stay open here.
    let (mut server, client) = unix_pair();
    let (reader, writer) = std::io::pipe().unwrap();
    send_many(client.raw.fd(), &header(1), &[writer.as_fd(); 40]);
    drop((client, writer));
    let error = server.recv(soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    assert!(error.to_string().contains("too many file descriptors"), "{error}");
    drop(server);
    // All copies of the writing end are closed exactly if the pipe is at its end.
    let mut rest = Vec::new();
    (&reader).take(1).read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    // And the sending side has its own limit.
    let (_server, mut client) = unix_pair();
    let error = client.raw.write(b"x", &[file.as_fd(); MAX_FDS + 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let error = client.send_fds(1, b"", &[file.as_fd(); MAX_FDS + 1], soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUsage);
}

/// Wherever a read ends. The kernel shows a reader that looks at just the bytes before them the descriptors behind, too.
#[test]
fn descriptors_come_once_and_with_their_first_byte() {
    for length in 1..=41 {
        let (server, client) = unix_pair();
        let file = null();
        client.raw.write(&[1; 10], &[]).unwrap();
        client.raw.write(&[2; 20], &[file.as_fd(), file.as_fd()]).unwrap();
        client.raw.write(&[3; 10], &[]).unwrap();
        let mut came = Vec::new();
        while came.len() < 40 {
            let (mut into, mut fds) = (vec![0; length], Vec::new());
            let got = server.raw.read(&mut into, &mut fds).unwrap();
            let first = came.len() <= 10 && came.len() + got > 10;
            assert_eq!(fds.len(), if first { 2 } else { 0 }, "{got} bytes behind {} of {length}", came.len());
            came.extend_from_slice(&into[..got]);
        }
        assert_eq!(came, [vec![1; 10], vec![2; 20], vec![3; 10]].concat());
    }
}

#[test]
fn a_frame_may_have_all_its_descriptors_before_all_its_bytes() {
    let (mut server, client) = unix_pair();
    let header = FrameHeader { kind: 1, length: 3, fds: MAX_FDS as u16 }.encode();
    client.raw.write(&header, &[null().as_fd(); MAX_FDS]).unwrap();
    client.raw.write(b"abc", &[]).unwrap();
    let frame = server.recv(soon()).unwrap();
    assert_eq!((frame.fds.len(), &frame.payload[..]), (MAX_FDS, &b"abc"[..]));
}

/// Tells the kind of each frame and how many descriptors came with it. Waits at the first frame.
struct Waiter {
    seen: Sender<(u16, usize)>,
    go: Receiver<()>,
}

impl Handler for Waiter {
    fn frame(&mut self, _: &Link, frame: Frame) -> Result<()> {
        if frame.kind == 0 {
            self.go.recv().unwrap();
        }
        self.seen.send((frame.kind, frame.fds.len())).unwrap();
        Ok(())
    }

    fn closed(&mut self, _: &Link, _: &crate::Error) {
        self.seen.send((u16::MAX, 0)).unwrap();
    }
}

/// A read ends where descriptors begin: what lies behind must not be forgotten, least of all when there is no next time.
#[test]
fn what_a_peer_sent_before_it_closed_arrives_with_its_descriptors() {
    for fails in [false, true] {
        let ((go, waits), (seen, frames)) = (channel(), channel());
        let reactor = Reactor::start("test", ReactorConfig::default(), Box::new(Waiter { seen, go: waits }));
        let reactor = reactor.unwrap();
        let (server, mut client) = unix_pair();
        let link = reactor.add(server);
        client.send(0, b"", soon()).unwrap();
        for kind in 1..40_u16 {
            let fds = &[null(), null(), null()];
            let fds: Vec<_> = fds[..usize::from(kind) % 4].iter().map(AsFd::as_fd).collect();
            client.send_fds(kind, &[7; 100], &fds, soon()).unwrap();
        }
        drop(client);
        if fails {
            // The service thread hears of it before it can read what came after the first frame.
            assert_eq!(link.post(1, b"").unwrap_err().kind(), ErrorKind::PeerLost);
        }
        go.send(()).unwrap();
        let next = || frames.recv_timeout(Duration::from_secs(20)).expect("the service thread said nothing");
        for kind in 0..40_u16 {
            assert_eq!(next(), (kind, usize::from(kind) % 4), "fails: {fails}");
        }
        assert_eq!(next(), (u16::MAX, 0));
    }
}

#[test]
fn the_directory_is_private_and_goes_with_the_listener() {
    let (mut listener, path) = listen_unix();
    let directory = path.parent().unwrap().to_owned();
    assert_eq!(std::fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    listener.remove_path();
    assert!(!directory.exists());
    let second = network().listen_unix(claims(0, Claims::ANY)).unwrap();
    let Address::Unix(path) = second.address().clone() else { panic!("not unix") };
    assert!(path.exists());
    drop(second);
    assert!(!path.parent().unwrap().exists());
    assert!(network().connect_unix(&path, claims(1, 0), millis(50)).is_err());
    let long = PathBuf::from("/tmp/".to_owned() + &"x".repeat(120));
    assert_eq!(
        network().connect_unix(&long, claims(1, 0), soon()).unwrap_err().kind(),
        ErrorKind::InvalidUsage
    );
}

#[test]
fn descriptors_before_the_proof_are_refused() {
    let (mut listener, path) = listen_unix();
    let stranger = std::os::unix::net::UnixStream::connect(path).unwrap();
    send_many(stranger.as_fd(), b"AQHS\x01\x00\x00\x00", &[null().as_fd()]);
    assert!(listener.accept(millis(100)).is_err());
    assert!(listener.rejections().latest.is_some());
}

/// The limit of descriptors belongs to the whole process, so that this test has one of its own.
#[test]
fn a_peer_is_kept_while_descriptors_have_run_out() {
    let here = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "internals::net::tests::fds::process_without_descriptors",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&here.stdout) + String::from_utf8_lossy(&here.stderr);
    assert!(here.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "lowers the limit of descriptors of its process; another test starts it"]
fn process_without_descriptors() {
    let ((go, waits), (seen, frames)) = (channel(), channel());
    let reactor = Reactor::start("test", ReactorConfig::default(), Box::new(Waiter { seen, go: waits }));
    let reactor = reactor.unwrap();
    let (server, mut client) = unix_pair();
    let link = reactor.add(server);
    let file = null();
    // One connection whose handshake has begun, and one that nobody has accepted yet.
    let (mut listener, address) = listen(&network());
    let begun = std::net::TcpStream::connect(address).unwrap();
    assert_eq!(listener.accept(millis(50)).unwrap_err().kind(), ErrorKind::Timeout);
    let _waits = std::net::TcpStream::connect(address).unwrap();
    // Takes every descriptor that the process may have.
    set_limit(256);
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(taken.len() > 100);
    // Neither connection suffers: the first is not closed, the second not refused.
    assert_eq!(listener.accept(millis(150)).unwrap_err().kind(), ErrorKind::Timeout);
    let rests = listener.next_expiry().is_some_and(|at| at <= std::time::Instant::now() + sys::REST);
    assert!(rests, "it looks all the time");
    // To connect fails at once, whatever patience there is with others.
    let patient = network().with_patience(Duration::from_secs(60));
    let error = patient.connect_tcp(&[address], claims(1, 0), millis(0)).unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Exhausted, libc::EMFILE));
    begun.set_nonblocking(true).unwrap();
    assert_eq!((&begun).read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(listener.rejections().count, 0);
    client.send(1, b"none", soon()).unwrap();
    let next = || frames.recv_timeout(Duration::from_secs(20)).expect("the service thread said nothing");
    assert_eq!(next(), (1, 0), "what needs no descriptor arrives");
    // Room for one of three: the kernel would drop the two others for good.
    drop(taken.pop());
    client.send_fds(2, b"three", &[file.as_fd(); 3], soon()).unwrap();
    client.send(3, b"none", soon()).unwrap();
    assert_eq!(
        frames.recv_timeout(Duration::from_millis(400)),
        Err(std::sync::mpsc::RecvTimeoutError::Timeout)
    );
    assert!(link.is_starved(), "nobody is to take the peer for silent meanwhile");
    link.post(9, b"this direction still works").unwrap();
    assert_eq!(client.recv(soon()).unwrap().kind, 9);
    taken.truncate(10);
    assert_eq!((next(), next()), ((2, 3), (3, 0)));
    assert!(!link.is_starved());
    drop(client);
    assert_eq!(next(), (u16::MAX, 0));
    drop(go);
    let late = std::thread::spawn(move || network().connect_tcp(&[address], claims(1, 0), soon()).unwrap());
    assert_eq!(listener.accept(soon()).unwrap().peer().from, 1, "the listener goes on");
    late.join().unwrap();
    // No descriptor at all: poll(2) fails then, too.
    set_limit(0);
    let failed = sys::wait(listener.fd(), sys::READ, millis(20)).unwrap_err();
    set_limit(256);
    assert_eq!(failed.raw_os_error(), Some(libc::EINVAL));
}

/// How many descriptors this process may have.
fn set_limit(descriptors: libc::rlim_t) {
    // SAFETY: the limit lives across the calls.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = descriptors;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

/// A nameless file.
fn tempfile_like() -> File {
    // SAFETY: the name is a C string; the result is checked before it is used.
    File::from(sys::owned(unsafe { libc::memfd_create(c"test".as_ptr(), 0) }).unwrap())
}

/// Sends more descriptors with one message than our own code would.
fn send_many(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut control = vec![0_u64; 64];
    let size = size_of_val(fds) as u32;
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: as in `Socket::write`: the buffers live across the call and are large enough for 40 descriptors.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size) as usize;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
        std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), size as usize);
        assert_eq!(libc::sendmsg(socket.as_raw_fd(), &message, 0), bytes.len() as isize);
    }
}
