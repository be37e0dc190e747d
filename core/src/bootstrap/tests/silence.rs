//! A peer that is stopped, and so falls silent.

use super::*;

#[test]
fn a_send_to_a_rank_lost_by_silence_says_so() {
    let id = id();
    let mut children = [spawn(1, &id), spawn(2, &id)];
    let config = BootstrapConfig::default().with_peer_timeout(Some(Duration::from_secs(6)));
    let b = TcpBootstrap::with_config(0, 3, &id, &config, soon()).unwrap();
    assert_eq!(b.recv(1, 1, soon()).unwrap(), b"here");
    assert_eq!(b.recv(2, 1, soon()).unwrap(), b"here");
    // The link to send on is made now, and kept.
    b.send(2, 3, b"before", soon()).unwrap();
    // SAFETY: a process of this test, which is not waited for yet.
    assert_eq!(unsafe { libc::kill(children[1].id().cast_signed(), libc::SIGSTOP) }, 0);
    let silent = b.recv(2, 1, soon()).unwrap_err();
    assert_eq!((silent.kind(), silent.peer()), (ErrorKind::PeerLost, Some(2)));
    // At once, while the link is being closed, and afterwards.
    for _ in 0..30 {
        let lost = b.send(2, 3, b"after", soon()).unwrap_err();
        assert_eq!((lost.op(), lost.kind(), lost.peer()), ("send", ErrorKind::PeerLost, Some(2)), "{lost}");
        assert!(lost.message().contains("silent"), "{lost}");
        std::thread::sleep(Duration::from_millis(100));
    }
    b.send(1, 2, b"", soon()).unwrap();
    assert!(children[0].wait().unwrap().success());
    children[1].kill().unwrap();
    children[1].wait().unwrap();
}
