//! Processes of other users at a unix socket whose directory they can enter after all.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use super::*;
use crate::net::unix::SocketDir;

/// The user `nobody`.
const NOBODY: libc::uid_t = 65534;

/// Runs `act` in a thread that is of the user `nobody`, as the kernel sees it.
fn as_nobody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: takes no pointer. The system call, unlike the C function, changes this thread alone, and it ends soon.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
            act()
        });
        thread.join().unwrap()
    })
}

fn open_to_all(path: &std::path::Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
#[ignore = "needs root, to act as another user: the lane two-users runs it"]
fn a_unix_peer_of_another_user_is_turned_away() {
    let mut listener = network().listen_unix(claims(0, Claims::ANY)).unwrap();
    let Address::Unix(path) = listener.address().clone() else { panic!("not unix") };
    open_to_all(path.parent().unwrap(), 0o711);
    open_to_all(&path, 0o666);
    let stranger = as_nobody(|| UnixStream::connect(&path).unwrap());
    assert_eq!(listener.accept(millis(300)).unwrap_err().kind(), ErrorKind::Timeout);
    let why = listener.rejections().latest.clone().unwrap_or_default();
    assert!(why.contains("user 65534 is at the other end"), "{why:?}");
    drop(stranger);
}

#[test]
#[ignore = "needs root, to act as another user: the lane two-users runs it"]
fn a_unix_listener_of_another_user_learns_nothing() {
    let folder = SocketDir::create().unwrap();
    let path = folder.socket().to_owned();
    open_to_all(path.parent().unwrap(), 0o777);
    let impostor = as_nobody(|| UnixListener::bind(&path).unwrap());
    let error = network().connect_unix(&path, claims(1, 0), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
    assert!(error.to_string().contains("user 65534 is at the other end"), "{error}");
    let (mut stream, _) = impostor.accept().unwrap();
    let said = std::io::Read::read(&mut stream, &mut [0; 64]).unwrap_or(0);
    assert_eq!(said, 0, "not even a hello");
}
