//! Attacks on the ports of a job by processes that do not know its secret: while it starts, and while its ranks
//! all-reduce.
//!
//! They can reach the rendezvous until all ranks have connected, and each rank's bootstrap port as long as the rank
//! keeps its bootstrap. In a job of up to 16 ranks, a rank stops listening for control links once all are connected.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aqueduct::bootstrap::{Bootstrap, Rendezvous, TcpBootstrap, UniqueId};
use aqueduct::collective::{Collective, CollectiveConfig};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{Context, GpuBuffer, Stream};
use aqueduct::internals::net::{Claims, Network, Secret, interfaces};
use aqueduct::plan::{Element, Kind, Reduction};
use aqueduct::{Deadline, ErrorKind};
use aqueduct_tests::ranks;

use crate::group::{Machine, allow_files, context, soon};

const RANKS: u32 = 2;
/// Number of idle connections that `crowd` holds open.
const CROWD: usize = 1000;
/// Pause between two attacks of one thread: attackers share the CPU with the job, and their CPU use is not the subject.
const PAUSE: Duration = Duration::from_millis(5);
const ROUNDS: usize = 5;
const CALLS: usize = 400;
const COUNT: usize = 256;
/// How often a job is measured at most: it must be fast enough once.
const MEASUREMENTS: usize = 3;

/// Environment variable with the path of a file in which the ranks tell the attackers what to do: a mode (one of the
/// next three), then each rank's port as two bytes.
const BOARD: &str = "AQUEDUCT_TEST_BOARD";

const IDLE: u8 = 0;
const ATTACK: u8 = 1;
/// Attack an unrelated listener on this machine, to measure what the attackers' own CPU use costs the job.
const ATTACK_DECOY: u8 = 2;

/// Running attackers.
struct Attackers {
    stop: Arc<AtomicBool>,
    attacks: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Attackers {
    /// Starts a thread per kind of attack on the addresses that `targets` currently returns; no address means idle.
    fn start(targets: impl Fn() -> Vec<SocketAddr> + Send + Sync + 'static) -> Self {
        let (stop, attacks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let targets = Arc::new(targets);
        let kinds: [fn(SocketAddr, &mut Vec<TcpStream>); 5] =
            [wrong_secret, garbage, a_byte_at_a_time, a_gigabyte, crowd];
        let threads = kinds.map(|attack| {
            let (stop, attacks, targets) = (stop.clone(), attacks.clone(), targets.clone());
            std::thread::spawn(move || {
                let mut held = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let targets = targets();
                    if targets.is_empty() {
                        held.clear();
                    }
                    for target in targets {
                        attack(target, &mut held);
                        attacks.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(PAUSE);
                }
            })
        });
        Self { stop, attacks, threads: threads.into() }
    }

    /// Stops the attackers and returns the number of attacks.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no attacker got in"));
        self.attacks.load(Ordering::Relaxed)
    }
}

/// Speaks the protocol with a wrong secret.
fn wrong_secret(target: SocketAddr, _: &mut Vec<TcpStream>) {
    let network = Network::new(Secret::random().unwrap());
    let claims = Claims { purpose: 1, scope: 7, from: 0, to: Claims::ANY };
    let error =
        network.connect_tcp(&[target], claims, Deadline::after(Duration::from_millis(200))).unwrap_err();
    // `PeerLost` and `Timeout` happen when `crowd` used up the connections, or when the port is closed.
    let expected = [ErrorKind::Authentication, ErrorKind::PeerLost, ErrorKind::Timeout, ErrorKind::System];
    assert!(expected.contains(&error.kind()), "{error}");
}

fn garbage(target: SocketAddr, _: &mut Vec<TcpStream>) {
    let noise: Vec<u8> = (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    send(target, &noise);
}

/// Sends the protocol's first bytes, then one more byte with each attack.
fn a_byte_at_a_time(target: SocketAddr, held: &mut Vec<TcpStream>) {
    held.retain_mut(|stream| stream.write_all(b"A").is_ok());
    if held.len() < 50
        && let Some(mut stream) = connect(target)
        && stream.write_all(b"AQHS\x01\x00").is_ok()
    {
        held.push(stream);
    }
}

/// Sends the protocol's first bytes, then a length of a gigabyte wherever a length could be.
fn a_gigabyte(target: SocketAddr, _: &mut Vec<TcpStream>) {
    let mut bytes = b"AQHS\x01\x00\x00\x00".to_vec();
    (0..256).for_each(|_| bytes.extend((1_u32 << 30).to_le_bytes()));
    send(target, &bytes);
}

/// Connects and sends nothing. With `CROWD` connections open, replaces the oldest.
fn crowd(target: SocketAddr, held: &mut Vec<TcpStream>) {
    let more = if held.len() < CROWD { 20 } else { 1 };
    held.extend((0..more).filter_map(|_| connect(target)));
    let beyond = held.len().saturating_sub(CROWD);
    held.drain(..beyond);
}

fn connect(target: SocketAddr) -> Option<TcpStream> {
    TcpStream::connect_timeout(&target, Duration::from_millis(200)).ok()
}

/// Sends `bytes` and reads the answer. The other end may close at any byte.
fn send(target: SocketAddr, bytes: &[u8]) {
    let Some(mut stream) = connect(target) else { return };
    let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
    let _ = stream.write_all(bytes);
    let _ = stream.read(&mut [0; 64]);
}

/// The ports on which this process listens, from /proc (proc(5), tcp state 0A).
fn listening() -> Vec<u16> {
    let sockets: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| {
            std::fs::read_link(entry.ok()?.path()).ok()?.to_str()?.split(['[', ']']).nth(1).map(str::to_owned)
        })
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[3] == "0A" && sockets.iter().any(|inode| inode == row[9]))
        .map(|row| u16::from_str_radix(row[1].split(':').nth(1).unwrap(), 16).unwrap())
        .collect()
}

/// Starts an unrelated listener that accepts connections, holds a hundred, and never reads or writes. It lives as long
/// as this process.
fn decoy() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut held = std::collections::VecDeque::new();
        for stream in listener.incoming().flatten() {
            held.push_back(stream);
            if held.len() > 128 {
                held.pop_front();
            }
        }
    });
    address
}

/// On the software device the kernels share the CPU with the attackers and with the service threads that reject them,
/// so the bound shows little more than that the job makes progress.
#[test]
fn a_job_starts_and_runs_under_attack() {
    under_attack(Machine::Software, 3.0, "attackers::a_job_starts_and_runs_under_attack");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_job_starts_and_runs_under_attack_hardware() {
    under_attack(Machine::Hardware, 1.05, "attackers::a_job_starts_and_runs_under_attack_hardware");
}

/// `most` is how many times longer an all-reduce may take while the job is attacked than while the decoy is.
fn under_attack(machine: Machine, most: f64, test: &str) {
    if std::env::var_os(BOARD).is_some() {
        let me = ranks::start(RANKS, test).expect("this is a rank");
        return rank(machine, most, me);
    }
    allow_files(3 * CROWD as u64);
    let loopback: Vec<_> =
        interfaces().unwrap().into_iter().filter(|i| i.loopback && i.ip.is_ipv4()).collect();
    let rendezvous = Rendezvous::start_on(&loopback, Some(RANKS)).unwrap();
    let (id, root) = (rendezvous.unique_id().to_text(), rendezvous.unique_id().addresses()[0]);
    let folder = tempfile::tempdir().unwrap();
    let board = folder.path().join("board");
    std::fs::write(&board, [ATTACK; 1 + 2 * RANKS as usize]).unwrap();
    let watched = File::open(&board).unwrap();
    let decoy = decoy();
    let attackers = Attackers::start(move || {
        let mut state = [0; 1 + 2 * RANKS as usize];
        if watched.read_exact_at(&mut state, 0).is_err() || state[0] == IDLE {
            return Vec::new();
        }
        if state[0] == ATTACK_DECOY {
            return vec![decoy; RANKS as usize + 1];
        }
        let ports = state[1..].chunks_exact(2).map(|port| u16::from_le_bytes([port[0], port[1]]));
        // 257, the mode byte twice, means that the rank has not written its port yet.
        ports.filter(|port| *port != 257).map(|port| SocketAddr::new(root.ip(), port)).chain([root]).collect()
    });
    // Attacks run before the first rank starts.
    while attackers.attacks.load(Ordering::Relaxed) < 100 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = ranks::start_with(RANKS, test, |_, command| {
        command.env("AQUEDUCT_UNIQUE_ID", id.expose()).env(BOARD, &board).env("AQUEDUCT_LOG", "error");
    });
    assert!(ended.is_none());
    let said = std::fs::read_to_string(board.with_extension("said")).unwrap();
    println!("{said}; {} attacks", attackers.end());
}

fn rank(machine: Machine, most: f64, me: u32) {
    let id: UniqueId = std::env::var("AQUEDUCT_UNIQUE_ID").unwrap().parse().unwrap();
    let board = std::env::var_os(BOARD).unwrap();
    let since = Instant::now();
    let bootstrap = TcpBootstrap::new(me, RANKS, &id, soon()).unwrap();
    let context = context(&machine.driver(), me);
    let config = CommunicatorConfig::default().with_local_address(bootstrap.local_ip());
    let comm = Communicator::new(&bootstrap, &context, config, soon()).unwrap();
    let started = since.elapsed();

    // The service thread stops listening for control links some time after all are connected.
    let doors = soon();
    let ports = loop {
        match listening() {
            ports if ports.len() == 1 => break ports,
            ports => assert!(!doors.expired(), "still listening on {ports:?}, besides the bootstrap's port"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let shared = File::options().write(true).open(&board).unwrap();
    shared.write_all_at(&ports[0].to_le_bytes(), 1 + 2 * u64::from(me)).unwrap();

    let config = CollectiveConfig::default().with_variants([(Element::F32, Reduction::Sum)]);
    let reduce = Collective::prepare(&comm, Kind::AllReduce, config, soon()).unwrap();
    let job = Job { me, bootstrap: &bootstrap, board: &shared, reduce: &reduce, context: &context };
    // A machine that does something else for a while slows one of the three modes by chance, and seldom twice.
    let mut said = Vec::new();
    loop {
        let [quiet, attacked, decoy] = job.times_of_a_call();
        // Rank 0 decides for all.
        let slow = bootstrap.broadcast(0, &[u8::from(attacked / decoy >= most)], soon()).unwrap() == [1];
        said.push(format!(
            "all-reduce {quiet:.1} us when idle, {attacked:.1} us under attack ({:.3}), {decoy:.1} us while the decoy is \
             attacked: {:.3}",
            attacked / quiet,
            attacked / decoy
        ));
        assert!(!slow || said.len() < MEASUREMENTS, "rank {me} is slow under attack each time: {said:#?}");
        if !slow {
            break;
        }
    }
    comm.check().unwrap();
    bootstrap.barrier(soon()).unwrap();
    if me == 0 {
        let said = format!("started in {started:.1?}; {}", said.join("; "));
        std::fs::write(Path::new(&board).with_extension("said"), &said).unwrap();
    }
    // A job that attackers keep from starting does not start at all. The limit is ten times what a busy machine needs.
    assert!(started < Duration::from_secs(20), "{started:?}");
}

/// One rank of the job that is attacked.
struct Job<'a> {
    me: u32,
    bootstrap: &'a TcpBootstrap,
    board: &'a File,
    reduce: &'a Collective,
    context: &'a Context,
}

impl Job<'_> {
    /// Microseconds of an all-reduce while nobody is attacked, this job is, and the decoy is.
    fn times_of_a_call(&self) -> [f64; 3] {
        let (stream, data) =
            (Stream::new(self.context).unwrap(), Arc::new(GpuBuffer::new(self.context, COUNT * 4).unwrap()));
        let ones: Vec<u8> = (0..COUNT).flat_map(|_| 1_f32.to_le_bytes()).collect();
        let mut times = [const { Vec::new() }; 3];
        for round in 0..3 * ROUNDS {
            let mode = round % 3;
            self.bootstrap.barrier(soon()).unwrap();
            if self.me == 0 {
                self.board.write_all_at(&[mode as u8], 0).unwrap();
            }
            // Wait until the attackers have read the mode.
            std::thread::sleep(Duration::from_millis(200));
            self.bootstrap.barrier(soon()).unwrap();
            let since = Instant::now();
            for _ in 0..CALLS {
                data.upload(0, &ones, soon()).unwrap();
                let slice = data.slice(..).unwrap();
                self.reduce.launch(&stream, &slice, &slice, COUNT, Element::F32, Reduction::Sum).unwrap();
                stream.synchronize(soon()).unwrap();
            }
            times[mode].push(since.elapsed().as_secs_f64() / CALLS as f64 * 1e6);
            let mut sums = vec![0_u8; COUNT * 4];
            data.download(0, &mut sums, soon()).unwrap();
            assert!(sums.chunks_exact(4).all(|sum| *sum == (RANKS as f32).to_le_bytes()), "a wrong sum");
        }
        times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        })
    }
}

/// An impostor on the port of the rendezvous learns nothing, because the connecting side also demands proof of the
/// secret.
#[test]
fn an_impostor_at_the_rendezvous_is_found_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let impostor = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 64];
        stream.read_exact(&mut hello).unwrap();
        // A reply of the right form, without knowledge of the secret.
        let mut reply = hello.to_vec();
        reply.extend([0x5a; 32]);
        stream.write_all(&reply).unwrap();
        stream.read(&mut [0; 64]).unwrap_or(0)
    });
    let network = Network::new(Secret::random().unwrap());
    let claims = Claims { purpose: 1, scope: 7, from: 0, to: Claims::ANY };
    let error = network.connect_tcp(&[address], claims, soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
    assert_eq!(impostor.join().unwrap(), 0, "it received nothing more");
}
