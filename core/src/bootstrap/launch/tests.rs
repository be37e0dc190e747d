//! Discovery over made-up environments, and joining by each means that needs no launcher.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const OMPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                    OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=300744705";
const HYDRA: &str = "PMI_RANK=3 PMI_SIZE=4 PMI_FD=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
const TORCH: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 \
                     MASTER_ADDR=n1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none \
                     TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True";
const SLURM: &str = "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=9 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_STEP_ID=0 \
                     SLURM_JOB_ID=77 SLURM_STEP_TASKS_PER_NODE=4(x2),1 SLURM_STEP_NUM_NODES=3 \
                     SLURM_STEP_NODELIST=n[001-002,7]";
/// Variables that `salloc` and `sbatch` set for every process started inside them.
const ALLOCATION: &str = "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_ID=77";

fn variables(texts: &[&str]) -> BTreeMap<String, String> {
    let words = texts.iter().flat_map(|text| text.split_ascii_whitespace());
    words.map(|word| word.split_once('=').unwrap()).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}

fn discover(texts: &[&str]) -> Result<Option<Launch>> {
    Launch::discover(&variables(texts))
}

fn found(texts: &[&str]) -> Launch {
    discover(texts).unwrap().unwrap()
}

/// Launcher, rank, size, local rank, local size, node.
fn numbers(texts: &[&str]) -> (Launcher, u32, Option<u32>, Option<u32>, Option<u32>, Option<u32>) {
    let l = found(texts);
    (l.launcher, l.rank, l.size, l.local_rank, l.local_size, l.node)
}

fn refused(texts: &[&str]) -> String {
    discover(texts).unwrap_err().to_string()
}

#[test]
fn every_family_is_read() {
    assert_eq!(numbers(&[OMPI]), (Launcher::OpenMpi, 1, Some(4), Some(1), Some(2), None));
    assert_eq!(numbers(&[HYDRA]), (Launcher::Pmi, 3, Some(4), Some(1), Some(2), None));
    assert_eq!(numbers(&[TORCH]), (Launcher::Torchrun, 5, Some(8), Some(1), Some(4), Some(1)));
    assert_eq!(numbers(&[SLURM]), (Launcher::Slurm, 5, Some(9), Some(1), Some(4), Some(1)));
    let pmix = "PMIX_RANK=2 PMIX_NAMESPACE=ns";
    assert_eq!(numbers(&[pmix]), (Launcher::Pmix, 2, None, None, None, None));
    let own = "AQUEDUCT_RANK=0 AQUEDUCT_WORLD_SIZE=2 AQUEDUCT_LOCAL_RANK=0";
    assert_eq!(numbers(&[own, OMPI, TORCH]), (Launcher::Own, 0, Some(2), Some(0), None, None));
    assert_eq!(discover(&["HOME=/root"]).unwrap(), None);
    assert_eq!(discover(&["OMPI_COMM_WORLD_RANK= OMPI_COMM_WORLD_SIZE="]).unwrap(), None);
}

#[test]
fn each_launcher_offers_its_service() {
    assert_eq!(found(&[OMPI]).services, [Service::Pmix]);
    assert_eq!(found(&[HYDRA]).services, [Service::Pmi { fd: 8 }]);
    let torch = found(&[TORCH]);
    let key = "aqueduct/none.2@n1:29500/unique-id".to_owned();
    assert_eq!(torch.services, [Service::Store { host: "n1".to_owned(), port: 29500, key }]);
    assert_eq!(found(&[TORCH, "TORCHELASTIC_USE_AGENT_STORE=False"]).services, []);
    let slurm = found(&[SLURM]);
    assert_eq!((slurm.services, slurm.job.as_deref()), (vec![], Some("77.0")));
    let pmix = "PMIX_RANK=5 PMIX_NAMESPACE=slurm.pmix.77.0";
    let with_pmix = found(&[SLURM, pmix]);
    assert_eq!((with_pmix.launcher, with_pmix.services), (Launcher::Slurm, vec![Service::Pmix]));
    let with_pmi = found(&[SLURM, "PMI_RANK=5 PMI_SIZE=9 PMI_FD=11"]);
    assert_eq!((with_pmi.launcher, with_pmi.services), (Launcher::Slurm, vec![Service::Pmi { fd: 11 }]));
}

#[test]
fn an_allocation_or_a_shell_in_it_is_no_rank() {
    assert_eq!(discover(&[ALLOCATION]).unwrap(), None);
    assert_eq!(discover(&[ALLOCATION, "SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1"]).unwrap(), None);
    assert_eq!(discover(&["RANK=3 WORLD_SIZE=4"]).unwrap(), None, "too common to mean anything alone");
}

#[test]
fn nested_launchers_give_the_inner_rank() {
    assert_eq!(found(&[ALLOCATION, OMPI]).launcher, Launcher::OpenMpi);
    // mpirun's daemon is itself a task of srun.
    let daemon = "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1";
    assert_eq!(numbers(&[daemon, OMPI]).1, 1);
    assert_eq!(found(&[daemon, HYDRA, "PMIX_RANK=0 PMIX_NAMESPACE=slurm.pmix.77.0"]).launcher, Launcher::Pmi);
    // One torchrun per node, started by mpirun: the outer size is the number of groups.
    let agents = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=9";
    assert_eq!(found(&[agents, TORCH]).launcher, Launcher::Torchrun);
    assert_eq!(found(&[SLURM, TORCH]).launcher, Launcher::Torchrun);
}

#[test]
fn contradictions_are_named() {
    for (texts, named) in [
        (&[OMPI, HYDRA][..], &["OMPI_COMM_WORLD_RANK=1", "PMI_RANK=3", "PMI_SIZE=4", "Open MPI"][..]),
        (&[OMPI, "PMIX_RANK=2"], &["OMPI_COMM_WORLD_RANK=1", "PMIX_RANK=2"]),
        (&[OMPI, TORCH], &["RANK=5", "OMPI_COMM_WORLD_SIZE=4", "AQUEDUCT_RANK"]),
        (&[OMPI, "OMPI_COMM_WORLD_RANK=4"], &["OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_SIZE=4"]),
        (&[HYDRA, "MPI_LOCALRANKID=2"], &["MPI_LOCALRANKID=2", "MPI_LOCALNRANKS=2"]),
        (&[HYDRA, "PMI_SIZE="], &["PMI_SIZE is not set", "PMI_RANK"]),
        (&[HYDRA, "PMI_RANK=three"], &["PMI_RANK=three"]),
        (&[SLURM, "SLURM_STEP_NUM_TASKS="], &["SLURM_STEP_NUM_TASKS is not set"]),
        (&[SLURM, "SLURM_STEP_NUM_TASKS=8"], &["SLURM_STEP_TASKS_PER_NODE=4(x2),1", "NUM_TASKS=8"]),
        (&[SLURM, "SLURM_LOCALID=4"], &["SLURM_LOCALID=4"]),
        (&[SLURM, "SLURM_STEP_TASKS_PER_NODE=4(x"], &["SLURM_STEP_TASKS_PER_NODE", "4(x2),1"]),
        (&[SLURM, "SLURM_STEP_NODELIST=n[1-999999999]"], &["999999999 hosts", "the step has 3"]),
        (&[SLURM, "SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST="], &["SLURM_NODEID=1"]),
        (&[TORCH, "MASTER_PORT=70000"], &["MASTER_PORT=70000"]),
        (&["AQUEDUCT_RANK=2 AQUEDUCT_WORLD_SIZE=2"], &["AQUEDUCT_RANK=2", "AQUEDUCT_WORLD_SIZE=2"]),
    ] {
        let error = refused(texts);
        for name in named {
            assert!(error.contains(name), "{name} in: {error}");
        }
    }
}

proptest! {
    #[test]
    fn any_values_are_read_or_refused(values in proptest::collection::vec("[0-9]{1,3}|.{0,12}", 24)) {
        let all = variables(&[OMPI, HYDRA, TORCH, SLURM]);
        let mixed = all.keys().cloned().zip(values).filter(|(_, value)| value.len() % 4 > 0).collect();
        if let Ok(Some(launch)) = Launch::discover(&mixed) {
            prop_assert!(launch.size.is_none_or(|size| launch.rank < size));
        }
    }
}

fn joined(texts: &[&str]) -> Result<Option<Joined>> {
    let all = variables(texts);
    join(&Env::parse(&all)?, Launch::discover(&all)?)
}

#[test]
fn no_job_a_whole_job_and_parts_of_one() {
    assert!(joined(&[]).unwrap().is_none());
    assert_eq!(joined(&["AQUEDUCT_RANK=0 AQUEDUCT_WORLD_SIZE=1"]).unwrap().unwrap().size(), 1);
    let one = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1";
    assert_eq!(joined(&[one]).unwrap().unwrap().size(), 1, "nobody to meet");
    let two = "AQUEDUCT_RANK=0 AQUEDUCT_WORLD_SIZE=2";
    for (texts, named) in [
        (&["AQUEDUCT_RANK=0"][..], "AQUEDUCT_WORLD_SIZE is not set"),
        (&["AQUEDUCT_WORLD_SIZE=2"], "AQUEDUCT_RANK is not set"),
        (&["AQUEDUCT_UNIQUE_ID=00"], "AQUEDUCT_UNIQUE_ID is set, but neither AQUEDUCT_RANK"),
        (&[two], "set AQUEDUCT_RENDEZVOUS_FILE"),
        (&[SLURM], "srun --mpi=pmix"),
        (&[two, "AQUEDUCT_UNIQUE_ID=00"], "2 characters instead of 256"),
        (&["PMIX_RANK=0 PMIX_NAMESPACE=n", &id_of_nobody()], "AQUEDUCT_WORLD_SIZE"),
        (&["PMI_RANK=0 PMI_SIZE=2 PMI_FD=999999"], "PMI_FD=999999 is not open"),
    ] {
        let error = joined(texts).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

fn id_of_nobody() -> String {
    let nobody = Rendezvous::start_on(&loopback(), Some(2)).unwrap();
    format!("AQUEDUCT_UNIQUE_ID={}", nobody.unique_id().to_text().expose())
}

fn loopback() -> Vec<crate::net::Interface> {
    crate::net::interfaces().unwrap().into_iter().filter(|interface| interface.loopback).collect()
}

#[test]
fn the_id_may_come_from_a_private_file_only() {
    let meeting = Rendezvous::start_on(&loopback(), Some(1)).unwrap();
    let path = std::env::temp_dir().join(format!("aqueduct-id-test-{}", std::process::id()));
    std::fs::write(&path, meeting.unique_id().to_text().expose()).unwrap();
    let file = format!("AQUEDUCT_UNIQUE_ID_FILE={}", path.display());
    let with_file = || joined(&["AQUEDUCT_RANK=0 AQUEDUCT_WORLD_SIZE=1", &file]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = with_file().map(drop);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let private = with_file().map(drop);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(open.unwrap_err().kind(), ErrorKind::Authentication);
    private.unwrap();
    assert_eq!(with_file().unwrap_err().kind(), ErrorKind::System);
}

/// Every rank of a job in a thread; what each of them says about itself after a barrier.
fn all_join(size: u32, of_rank: impl Fn(u32) -> String + Sync) -> Vec<(u32, u32)> {
    let one = |rank| {
        let bootstrap = joined(&[&of_rank(rank)]).unwrap().unwrap();
        bootstrap.barrier(Deadline::after(Duration::from_secs(20))).unwrap();
        (bootstrap.rank(), bootstrap.size())
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || one(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

const WITHIN: &str = "AQUEDUCT_TIMEOUT=20 AQUEDUCT_SOCKET_IFNAME=lo";

#[test]
fn ranks_meet_by_a_file_and_by_a_host_alone() {
    let path = std::env::temp_dir().join(format!("aqueduct-meet-{}", std::process::id()));
    let wanted = [(0, 3), (1, 3), (2, 3)];
    let named = |rank| {
        format!(
            "{WITHIN} AQUEDUCT_RANK={rank} AQUEDUCT_WORLD_SIZE=3 AQUEDUCT_RENDEZVOUS_FILE={}",
            path.display()
        )
    };
    assert_eq!(all_join(3, named), wanted);
    assert!(!path.exists(), "the secret is gone");
    let job = std::process::id();
    let on_host = |rank| {
        format!(
            "{WITHIN} SLURM_PROCID={rank} SLURM_LOCALID={rank} SLURM_STEP_NUM_TASKS=3 SLURM_STEP_ID=1 \
             SLURM_JOB_ID={job} SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=3"
        )
    };
    assert_eq!(all_join(3, on_host), wanted);
}

/// A stand-in for torchrun's store, as far as our client uses it: one value, and whether it was deleted. It answers a wait by
/// `answer`.
fn serve_store(listener: TcpListener, clients: usize, answer: u8) -> (Vec<u8>, bool) {
    let value = (crate::sync::Mutex::new(None), crate::sync::Condvar::new());
    let deleted = crate::sync::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..clients {
            let (stream, _) = listener.accept().unwrap();
            let (value, deleted) = (&value, &deleted);
            scope.spawn(move || serve_client(stream, value, deleted, answer));
        }
    });
    (value.0.into_inner().unwrap().unwrap_or_default(), deleted.load(crate::sync::Ordering::Relaxed))
}

type Slot = (crate::sync::Mutex<Option<Vec<u8>>>, crate::sync::Condvar);

fn serve_client(
    mut stream: TcpStream,
    (value, changed): &Slot,
    deleted: &crate::sync::AtomicBool,
    answer: u8,
) {
    fn bytes<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
        let mut bytes = [0; N];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }
    fn text(stream: &mut TcpStream) -> Vec<u8> {
        let mut text = vec![0; u64::from_ne_bytes(bytes(stream)) as usize];
        stream.read_exact(&mut text).unwrap();
        text
    }
    let mut command = [0];
    assert_eq!(bytes::<1>(&mut stream), [0], "validated first");
    assert_eq!(u32::from_ne_bytes(bytes(&mut stream)), 0x3c85_f7ce);
    // A client whose time is over leaves before its last answer.
    while matches!(stream.read(&mut command), Ok(1)) {
        if command[0] == 6 {
            assert_eq!(u64::from_ne_bytes(bytes(&mut stream)), 1);
        }
        assert!(text(&mut stream).starts_with(b"aqueduct/run.0@"));
        match command[0] {
            1 => {
                let new = text(&mut stream);
                *value.lock().unwrap() = Some(new);
                changed.notify_all();
            }
            3 => {
                let value = value.lock().unwrap().clone().unwrap();
                stream.write_all(&(value.len() as u64).to_ne_bytes()).unwrap();
                stream.write_all(&value).unwrap();
            }
            6 => {
                drop(changed.wait_while(value.lock().unwrap(), |value| value.is_none()).unwrap());
                stream.write_all(&[answer]).unwrap();
            }
            8 => {
                deleted.store(true, crate::sync::Ordering::Relaxed);
                stream.write_all(&1i64.to_ne_bytes()).unwrap();
            }
            other => panic!("command {other}"),
        }
    }
}

#[test]
fn ranks_meet_at_torchruns_store() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let store = std::thread::spawn(move || serve_store(listener, 3, 0));
    let variables = |rank| {
        format!(
            "{WITHIN} RANK={rank} WORLD_SIZE=3 LOCAL_RANK={rank} LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 \
             MASTER_PORT={port} TORCHELASTIC_RUN_ID=run TORCHELASTIC_USE_AGENT_STORE=True"
        )
    };
    assert_eq!(all_join(3, variables), [(0, 3), (1, 3), (2, 3)]);
    assert!(store.join().unwrap().1, "the secret is gone");
}

/// Rank 0 of two fails while it joins by a store that answers its wait by `answer`: the error, the id that it put there, and
/// whether it deleted that.
fn fails_at_store(answer: u8, seconds: u32) -> (Error, UniqueId, bool) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let store = std::thread::spawn(move || serve_store(listener, 1, answer));
    let variables = format!(
        "AQUEDUCT_TIMEOUT={seconds} AQUEDUCT_SOCKET_IFNAME=lo RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
         MASTER_PORT={port} TORCHELASTIC_RUN_ID=run TORCHELASTIC_USE_AGENT_STORE=True"
    );
    let error = joined(&[&variables]).map(drop).unwrap_err();
    let (id, deleted) = store.join().unwrap();
    (error, String::from_utf8(id).unwrap().parse().unwrap(), deleted)
}

#[test]
fn rank_0_takes_its_secret_out_of_the_store_when_it_fails() {
    let (error, _, deleted) = fails_at_store(1, 20);
    assert!(error.to_string().contains("cancelled the wait"), "{error}");
    assert!(deleted, "the secret is still there");
}

#[test]
fn rank_0_takes_its_secret_out_of_the_store_when_the_others_do_not_come_in_time() {
    let (error, _, deleted) = fails_at_store(0, 2);
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(deleted, "the secret is still there");
}

#[test]
fn nobody_listens_for_ranks_after_an_attempt_that_failed_before_the_id_was_shared() {
    // Another test's listener may get one of the ports. That does not happen every time.
    let nobody = (0..20).any(|_| {
        let (error, id, _) = fails_at_store(1, 20);
        assert!(error.to_string().contains("cancelled the wait"), "{error}");
        id.addresses().iter().all(|address| {
            let refused = TcpStream::connect(address).err();
            refused.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        })
    });
    assert!(nobody, "the rendezvous is still there");
}

#[test]
fn a_store_that_is_none_and_one_that_is_not_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let variables = format!(
        "AQUEDUCT_TIMEOUT=2 RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port} \
         TORCHELASTIC_RUN_ID=run TORCHELASTIC_USE_AGENT_STORE=True"
    );
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // A canceled wait, then nothing.
        stream.write_all(&[1]).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    let error = joined(&[&variables]).unwrap_err().to_string();
    assert!(error.contains("cancelled the wait"), "{error}");
    server.join().unwrap();
    let error = joined(&[&variables, "AQUEDUCT_TIMEOUT=0.2"]).unwrap_err().to_string();
    assert!(error.contains("start the ranks by torchrun"), "{error}");
}

#[test]
fn the_environments_timeout_is_public() {
    assert_eq!(timeout_from_env().unwrap(), Env::get().unwrap().timeout);
}
