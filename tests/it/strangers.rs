//! Strangers at the ports of a job: while it starts, and while its ranks all-reduce.
//!
//! What they can reach is the rendezvous, until all ranks have met, and each rank's bootstrap port, as long as it keeps
//! its bootstrap. Control links close their doors once up to 16 ranks are all linked.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aqueduct::bootstrap::{Bootstrap, Rendezvous, TcpBootstrap, UniqueId};
use aqueduct::collective::{AllReduce, AllReduceConfig, ElementType, ReduceOp};
use aqueduct::comm::{Communicator, CommunicatorConfig};
use aqueduct::gpu::{GpuBuffer, Stream};
use aqueduct::net::{Claims, Network, Secret, interfaces};
use aqueduct::{Deadline, ErrorKind};
use aqueduct_tests::ranks;

use crate::group::{Machine, allow_files, context, soon};

const RANKS: u32 = 2;
/// Connections that the crowd holds open at a time.
const CROWD: usize = 1000;
/// Between two deeds of one stranger. They share the processors with the job, and it is not their work that is measured.
const PAUSE: Duration = Duration::from_millis(5);
const ROUNDS: usize = 5;
const CALLS: usize = 400;
const COUNT: usize = 256;

/// Where the ranks tell the strangers what to do: a byte, one of the next three, then each rank's port.
const BOARD: &str = "AQUEDUCT_TEST_BOARD";

const KEEP_STILL: u8 = 0;
const ATTACK: u8 = 1;
/// Attack somebody else on this machine, so that what the attacking itself costs here is known.
const ATTACK_DECOY: u8 = 2;

/// Those who attack, until ended.
struct Strangers {
    stop: Arc<AtomicBool>,
    deeds: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Strangers {
    /// One thread per kind of attack, on the addresses that `targets` gives at the time; none means to keep still.
    fn start(targets: impl Fn() -> Vec<SocketAddr> + Send + Sync + 'static) -> Self {
        let (stop, deeds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let targets = Arc::new(targets);
        let kinds: [fn(SocketAddr, &mut Vec<TcpStream>); 5] =
            [wrong_secret, garbage, a_byte_at_a_time, a_gigabyte, crowd];
        let threads = kinds.map(|attack| {
            let (stop, deeds, targets) = (stop.clone(), deeds.clone(), targets.clone());
            std::thread::spawn(move || {
                let mut held = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let targets = targets();
                    if targets.is_empty() {
                        held.clear();
                    }
                    for target in targets {
                        attack(target, &mut held);
                        deeds.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(PAUSE);
                }
            })
        });
        Self { stop, deeds, threads: threads.into() }
    }

    /// Ends them; how often they attacked.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no stranger got in"));
        self.deeds.load(Ordering::Relaxed)
    }
}

/// Speaks the protocol, knows another secret.
fn wrong_secret(target: SocketAddr, _: &mut Vec<TcpStream>) {
    let network = Network::new(Secret::random().unwrap());
    let claims = Claims { purpose: 1, scope: 7, from: 0, to: Claims::ANY };
    let error =
        network.connect_tcp(&[target], claims, Deadline::after(Duration::from_millis(200))).unwrap_err();
    // `PeerLost` and `Timeout`: pushed out by the crowd, or nobody listens there any more.
    let expected = [ErrorKind::Authentication, ErrorKind::PeerLost, ErrorKind::Timeout, ErrorKind::System];
    assert!(expected.contains(&error.kind()), "{error}");
}

fn garbage(target: SocketAddr, _: &mut Vec<TcpStream>) {
    let noise: Vec<u8> = (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    send(target, &noise);
}

/// Opens with the protocol's first bytes, one with each deed.
fn a_byte_at_a_time(target: SocketAddr, held: &mut Vec<TcpStream>) {
    held.retain_mut(|stream| stream.write_all(b"A").is_ok());
    if held.len() < 50
        && let Some(mut stream) = connect(target)
        && stream.write_all(b"AQHS\x01\x00").is_ok()
    {
        held.push(stream);
    }
}

/// The protocol's first bytes, then a length of a gigabyte wherever one could be read.
fn a_gigabyte(target: SocketAddr, _: &mut Vec<TcpStream>) {
    let mut bytes = b"AQHS\x01\x00\x00\x00".to_vec();
    (0..256).for_each(|_| bytes.extend((1_u32 << 30).to_le_bytes()));
    send(target, &bytes);
}

/// Connects and says nothing; once there are enough, one comes when one goes.
fn crowd(target: SocketAddr, held: &mut Vec<TcpStream>) {
    let more = if held.len() < CROWD { 20 } else { 1 };
    held.extend((0..more).filter_map(|_| connect(target)));
    let beyond = held.len().saturating_sub(CROWD);
    held.drain(..beyond);
}

fn connect(target: SocketAddr) -> Option<TcpStream> {
    TcpStream::connect_timeout(&target, Duration::from_millis(200)).ok()
}

/// Says `bytes` and hears the answer out. The other end may close at any byte.
fn send(target: SocketAddr, bytes: &[u8]) {
    let Some(mut stream) = connect(target) else { return };
    let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
    let _ = stream.write_all(bytes);
    let _ = stream.read(&mut [0; 64]);
}

/// The ports on which this process listens, by what the kernel says (proc(5), tcp state 0A).
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

/// Somebody who takes connections, holds a hundred, and says and hears nothing. Lasts until the process ends.
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

/// On the software device the kernels run on the same processors as the strangers and the service threads that turn them
/// away, so that the bound says little more than that nothing stops.
#[test]
fn a_job_starts_and_runs_among_strangers() {
    among_strangers(Machine::Software, 3.0, "strangers::a_job_starts_and_runs_among_strangers");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_job_starts_and_runs_among_strangers_hardware() {
    among_strangers(Machine::Hardware, 1.05, "strangers::a_job_starts_and_runs_among_strangers_hardware");
}

/// `most`: how many times longer an all-reduce may take among strangers than when they are busy elsewhere.
fn among_strangers(machine: Machine, most: f64, test: &str) {
    if std::env::var_os(BOARD).is_some() {
        let me = ranks::start(RANKS, test).expect("this is a rank");
        return rank(machine, most, me);
    }
    allow_files(3 * CROWD as u64);
    let loopback: Vec<_> =
        interfaces().unwrap().into_iter().filter(|i| i.loopback && i.ip.is_ipv4()).collect();
    let meeting = Rendezvous::start_on(&loopback, Some(RANKS)).unwrap();
    let (id, root) = (meeting.unique_id().to_text(), meeting.unique_id().addresses()[0]);
    let folder = tempfile::tempdir().unwrap();
    let board = folder.path().join("board");
    std::fs::write(&board, [ATTACK; 1 + 2 * RANKS as usize]).unwrap();
    let watched = File::open(&board).unwrap();
    let decoy = decoy();
    let strangers = Strangers::start(move || {
        let mut state = [0; 1 + 2 * RANKS as usize];
        if watched.read_exact_at(&mut state, 0).is_err() || state[0] == KEEP_STILL {
            return Vec::new();
        }
        if state[0] == ATTACK_DECOY {
            return vec![decoy; RANKS as usize + 1];
        }
        let ports = state[1..].chunks_exact(2).map(|port| u16::from_le_bytes([port[0], port[1]]));
        // Until a rank has written its own, 257 is nobody's port.
        ports.filter(|port| *port != 257).map(|port| SocketAddr::new(root.ip(), port)).chain([root]).collect()
    });
    // They are there before the first rank.
    while strangers.deeds.load(Ordering::Relaxed) < 100 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = ranks::start_with(RANKS, test, |_, command| {
        command.env("AQUEDUCT_UNIQUE_ID", id.expose()).env(BOARD, &board).env("AQUEDUCT_LOG", "error");
    });
    assert!(ended.is_none());
    let said = std::fs::read_to_string(board.with_extension("said")).unwrap();
    println!("{said}; {} deeds of strangers", strangers.end());
}

fn rank(machine: Machine, most: f64, me: u32) {
    let id: UniqueId = std::env::var("AQUEDUCT_UNIQUE_ID").unwrap().parse().unwrap();
    let board = std::env::var_os(BOARD).unwrap();
    let since = Instant::now();
    let bootstrap = TcpBootstrap::new(me, RANKS, &id, soon()).unwrap();
    let context = context(&machine.driver(), me);
    let config = CommunicatorConfig::default().with_interface(bootstrap.local_ip());
    let comm = Communicator::new(&bootstrap, &context, config, soon()).unwrap();
    let started = since.elapsed();

    // The service thread closes the doors of the control links when it comes to it.
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

    let config = AllReduceConfig::default().with_variants([(ElementType::F32, ReduceOp::Sum)]);
    let reduce = AllReduce::prepare(&comm, config, soon()).unwrap();
    let (stream, data) =
        (Stream::new(&context).unwrap(), Arc::new(GpuBuffer::new(&context, COUNT * 4).unwrap()));
    let ones: Vec<u8> = (0..COUNT).flat_map(|_| 1_f32.to_le_bytes()).collect();
    let mut times = [const { Vec::new() }; 3];
    for round in 0..3 * ROUNDS {
        let mode = round % 3;
        bootstrap.barrier(soon()).unwrap();
        if me == 0 {
            shared.write_all_at(&[mode as u8], 0).unwrap();
        }
        // Until they have noticed.
        std::thread::sleep(Duration::from_millis(200));
        bootstrap.barrier(soon()).unwrap();
        let since = Instant::now();
        for _ in 0..CALLS {
            data.upload(0, &ones, soon()).unwrap();
            let slice = data.slice(..).unwrap();
            reduce.launch(&stream, &slice, &slice, COUNT, ElementType::F32, ReduceOp::Sum).unwrap();
            stream.synchronize(soon()).unwrap();
        }
        times[mode].push(since.elapsed().as_secs_f64() / CALLS as f64 * 1e6);
        let mut sums = vec![0_u8; COUNT * 4];
        data.download(0, &mut sums, soon()).unwrap();
        assert!(sums.chunks_exact(4).all(|sum| *sum == (RANKS as f32).to_le_bytes()), "a wrong sum");
    }
    let [quiet, attacked, decoy] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    comm.check().unwrap();
    bootstrap.barrier(soon()).unwrap();
    if me == 0 {
        let (ratio, share) = (attacked / decoy, attacked / quiet);
        let said = format!(
            "started in {started:.1?}; all-reduce {quiet:.1} us when quiet, {attacked:.1} us among strangers ({share:.3}), \
             {decoy:.1} us when they are busy elsewhere: {ratio:.3}"
        );
        std::fs::write(Path::new(&board).with_extension("said"), &said).unwrap();
        assert!(ratio < most, "{said}");
    }
    assert!(started < Duration::from_secs(20), "{started:?}");
}

/// A stranger that took the port of a rank that has gone learns nothing: who connects wants proof, too.
#[test]
fn an_impostor_at_the_rendezvous_is_found_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let impostor = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 64];
        stream.read_exact(&mut hello).unwrap();
        // The right form, and no idea of the secret.
        let mut reply = hello.to_vec();
        reply.extend([0x5a; 32]);
        stream.write_all(&reply).unwrap();
        stream.read(&mut [0; 64]).unwrap_or(0)
    });
    let network = Network::new(Secret::random().unwrap());
    let claims = Claims { purpose: 1, scope: 7, from: 0, to: Claims::ANY };
    let error = network.connect_tcp(&[address], claims, soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Authentication, "{error}");
    assert_eq!(impostor.join().unwrap(), 0, "it was told nothing more");
}
