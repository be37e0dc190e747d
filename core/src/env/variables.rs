//! The list of variables that users see.
#![forbid(unsafe_code)]

/// Prefix of all variables of this library.
pub const PREFIX: &str = "AQUEDUCT_";

/// One variable, as `aqueduct info --env` lists it.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// The full name.
    pub name: &'static str,
    /// The value used if it is not set.
    pub default: &'static str,
    /// Its meaning and the values it takes.
    pub meaning: &'static str,
}

const fn variable(name: &'static str, default: &'static str, meaning: &'static str) -> Variable {
    Variable { name, default, meaning }
}

/// All variables, in the order in which they are listed.
pub const VARIABLES: &[Variable] = &[
    variable(
        "AQUEDUCT_DRIVER",
        "auto",
        "which CUDA driver: cuda, soft (the software device), or auto: cuda if it works",
    ),
    variable("AQUEDUCT_CUDA_LIBRARY", "libcuda.so.1, then libcuda.so", "path of the CUDA driver library"),
    variable(
        "AQUEDUCT_HANDLE",
        "auto",
        "how GPU memory is shared with other processes: fabric, fd, ipc (legacy), or auto: fabric with fd where both work, else fd, else ipc",
    ),
    variable(
        "AQUEDUCT_SCRATCH_BYTES",
        "1073741824",
        "scratch memory that all plans of a communicator may use on a rank, in bytes, at least 1",
    ),
    variable(
        "AQUEDUCT_CACHE",
        "(none)",
        "folder that keeps compiled kernels of plans between processes, at most 256 MiB; GPUs run what lies there, so give one \
         that only you can write to",
    ),
    variable(
        "AQUEDUCT_TUNING",
        "(that of the library, if it knows the device)",
        "file of choices that aqueduct tune wrote, the same on all ranks: which sizes go as packets, and by how many blocks",
    ),
    variable(
        "AQUEDUCT_MULTICAST",
        "0",
        "1 puts switches of plans on multicast hardware if all ranks can; no hardware has confirmed it, so do not use it for results \
         that matter (docs/plans.md)",
    ),
    variable(
        "AQUEDUCT_TIMEOUT",
        "60",
        "seconds, or a time such as 500ms or 2m, after which a wait for other ranks gives up",
    ),
    variable(
        "AQUEDUCT_PEER_TIMEOUT",
        "3",
        "seconds of silence, or a time such as 2m, after which a rank counts as lost, at least 1.25; 0 for never, on all ranks, as debuggers \
         need it; for messages the silence of a peer's host, 10 if not set",
    ),
    variable(
        "AQUEDUCT_MESSAGE_EAGER",
        "8192",
        "the longest message that is sent at once, in bytes, 1 to 65536; between two processes the smaller one holds",
    ),
    variable(
        "AQUEDUCT_MESSAGE_SHARED_MEMORY",
        "1",
        "0 sends messages between processes of one host over TCP, too, instead of shared memory",
    ),
    variable(
        "AQUEDUCT_SOCKET_IFNAME",
        "(best)",
        "network interfaces: name prefixes with commas; =name exactly, ^ excludes",
    ),
    variable("AQUEDUCT_SOCKET_FAMILY", "any", "address family: any, 4 or 6"),
    variable(
        "AQUEDUCT_ETHERNET_STAGING",
        "8388608",
        "pinned host memory that all Ethernet connections of a communicator share for data of GPUs, in bytes, at least 1048576",
    ),
    variable(
        "AQUEDUCT_IB_DEVICES",
        "(all)",
        "RDMA NICs by name with commas, as ibv_devices lists them: the first is Ib0, the second Ib1",
    ),
    variable("AQUEDUCT_IB_PORT", "(first active)", "port of the NIC, from 1"),
    variable(
        "AQUEDUCT_IB_GID_INDEX",
        "(best)",
        "entry of the port's GID table; by default RoCE v2 over IPv4 if there is one",
    ),
    variable("AQUEDUCT_IB_PKEY", "0", "index into the port's partition key table"),
    variable("AQUEDUCT_IB_SL", "0", "service level, 0 to 15"),
    variable("AQUEDUCT_IB_TC", "0", "traffic class, 0 to 255: DSCP and ECN bits on RoCE"),
    variable("AQUEDUCT_IB_TIMEOUT", "18", "acknowledgement timeout: 4.096 us * 2^n; 1 to 31"),
    variable("AQUEDUCT_IB_RETRY_CNT", "6", "retransmissions before the peer counts as unreachable, 0 to 7"),
    variable("AQUEDUCT_RANK", "(none)", "this process's rank; set by aqueduct run"),
    variable("AQUEDUCT_WORLD_SIZE", "(none)", "number of ranks; set by aqueduct run"),
    variable("AQUEDUCT_LOCAL_RANK", "(none)", "rank among those on this host; set by aqueduct run"),
    variable(
        "AQUEDUCT_UNIQUE_ID",
        "(none)",
        "the job's unique id with its secret, as hexadecimal text; set by aqueduct run",
    ),
    variable("AQUEDUCT_UNIQUE_ID_FILE", "(none)", "instead, a file of mode 0600 with the unique id"),
    variable(
        "AQUEDUCT_RENDEZVOUS_FILE",
        "(none)",
        "instead, a path at which rank 0 leaves the unique id for the others; on a file system that all hosts share",
    ),
    variable(
        "AQUEDUCT_LOG",
        "warn",
        "level off, error, warn, info, debug or trace, then parts: info,net,bootstrap or info,^net",
    ),
    variable("AQUEDUCT_LOG_FILE", "(stderr)", "file for the log; %h is the host's name, %p the process id"),
    variable(
        "AQUEDUCT_FAULTS",
        "(none)",
        "faults to rehearse, as docs/faults.md describes: driver:cuMemCreate:3=OUT_OF_MEMORY;net:from=1:after=64:drop",
    ),
    variable(
        "AQUEDUCT_LAUNCHER",
        "(none)",
        "set by aqueduct run for its ranks: the launcher has warned of unknown variables, so they need not",
    ),
    variable(
        "AQUEDUCT_FAILURES",
        "(none)",
        "set by aqueduct run for its ranks: the file in which they note that they failed, for the order",
    ),
    variable(
        "AQUEDUCT_PROGRESS",
        "(none)",
        "set by aqueduct run for its ranks where its standard error is a terminal: aqueduct perf then writes the progress of \
         rows that take long as whole lines",
    ),
    variable("AQUEDUCT_SOFT_DEVICES", "8", "number of software devices, at most 64"),
    variable("AQUEDUCT_SOFT_SMS", "16", "multiprocessors of a software device, 1 to 1024"),
    variable(
        "AQUEDUCT_SOFT_MEMORY",
        "8G",
        "memory of a software device in each process, in bytes or with K, M or G; taken from the host when it is touched",
    ),
    variable(
        "AQUEDUCT_SOFT_CORES",
        "0",
        "threads that run kernels of software devices; 0: one per core, at most 8",
    ),
    variable(
        "AQUEDUCT_SOFT_WATCHDOG",
        "60",
        "seconds without progress after which a kernel of a software device is ended; 0 for never",
    ),
    variable("AQUEDUCT_SOFT_CC", "9.0", "compute capability of the software devices"),
    variable(
        "AQUEDUCT_SOFT_MULTICAST",
        "0",
        "1 gives software devices multicast objects, as over NVSwitch, which AQUEDUCT_MULTICAST=1 uses",
    ),
    variable(
        "AQUEDUCT_SOFT_LACKS",
        "(none)",
        "what software devices pretend to lack, with commas: vmm, p2p, native_atomics, posix_fd, ipc, stream_mem_ops, \
         cooperative, dma_buf, rdma_ordering",
    ),
    variable(
        "AQUEDUCT_SOFT_UNKIND",
        "(none)",
        "a seed: work of streams on software devices begins and ends late, and new memory holds garbage (docs/faults.md)",
    ),
    variable(
        "AQUEDUCT_SOFT_CHECK",
        "(none)",
        "what software devices check: races, weak (races with weak loads), aligned (docs/race-detector.md)",
    ),
    variable(
        "AQUEDUCT_SOFT_SHADOW",
        "4G",
        "host memory that the race detector of software devices may take, in bytes or with K, M or G",
    ),
    variable("AQUEDUCT_SOFT_SEED", "0", "determines the choices of weak loads"),
    variable(
        "AQUEDUCT_SOFT_LINES",
        "ascending",
        "how lines of 128 bytes arrive where loads are weak: whole, ascending or torn",
    ),
];
