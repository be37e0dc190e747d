//! Litmus tests of `docs/memory-model.md`: for every tag, many trials in which a reader must not see the signal without the data.
//!
//! Both sides of a trial are the fragments of the kernels, or the host's own code, that bear the tag. The software instance is
//! short; it tests the trials, and with `AQUEDUCT_SOFT_CHECK=races,weak` the orderings. The hardware instance takes seconds per
//! tag and prints a line for each: `LITMUS: tag, TRIALS trials, N forbidden`. Run it with `cargo test -p aqueduct-tests --test it
//! litmus::hardware -- --ignored --nocapture --test-threads=1`.
//!
//! A *twin* is the same text with an ordering taken out. On hardware its rate of forbidden outcomes is printed, so that a
//! reader sees how sharp the litmus is: a GPU may order more than the model, and then the rate is zero. The software device with
//! weak memory must catch every twin.

mod abort;
mod exchange;
mod fifo;
mod port;
mod region;
mod rig;
mod start;
mod turn;

macro_rules! instances {
    ($($name:ident: $file:ident::$litmus:ident $(and $twins:ident)?;)+) => {
        mod soft {
            $(#[test]
            fn $name() {
                super::rig::real(crate::group::Machine::Software, concat!("litmus::soft::", stringify!($name)), &super::$file::$litmus);
            })+
        }
        mod hardware {
            $(#[test]
            #[ignore = "needs an NVIDIA GPU; two where the tag crosses devices"]
            fn $name() {
                super::rig::real(crate::group::Machine::Hardware, concat!("litmus::hardware::", stringify!($name)), &super::$file::$litmus);
            })+
        }
        /// On the software device with weak memory.
        mod twins {
            $($(#[test]
            fn $name() {
                super::rig::$twins(concat!("litmus::twins::", stringify!($name)), &super::$file::$litmus);
            })?)+
        }
        /// Their tags.
        const TESTED: &[&str] = &[$($file::$litmus.tag),+];
    };
}

instances! {
    semaphore_signal: exchange::SEMAPHORE and twins;
    kernel_start: start::START and twins;
    packet_word_ll8: exchange::PACKET_LL8 and twins;
    packet_word_ll16: exchange::PACKET_LL16 and twins;
    packet_line: exchange::LINE and twins;
    grid_arrive: exchange::ARRIVE and twins;
    grid_barrier: exchange::BARRIER and twins;
    plan_semaphore: exchange::TAKEN and twins;
    fifo_commit: fifo::COMMIT and twins;
    fifo_tail: fifo::TAIL and twins;
    fifo_closed: fifo::CLOSED;
    abort_word: abort::WORD_LITMUS and twins;
    abort_record: abort::RECORD_LITMUS and twins;
    connection_signal_cuda_ipc: port::SIGNAL_IPC and twins;
    connection_signal_ethernet: port::SIGNAL_ETHERNET;
    port_flushed_cuda_ipc: port::FLUSHED_IPC and twins;
    port_flushed_ethernet: port::FLUSHED_ETHERNET;
    turn_word: turn::WORD and twins;
    turn_position: turn::POSITION and twins;
}

/// Tags of the software device alone, which no kernel of the library bears.
const SOFTWARE_ONLY: &[&str] = &["soft.event-count", "soft.multicast"];

/// How the tags of the ring between two host processes begin. Its models run the library's own code under loom.
const HOSTS_ONLY: &str = "message.";

#[test]
fn every_tag_of_the_memory_model_has_a_litmus() {
    let model = include_str!("../../../docs/memory-model.md");
    let rows = model.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(tag, _)| tag);
    // The other tables' first columns are no tags.
    let mut tags: Vec<&str> = rows.filter(|tag| tag.contains('.')).collect();
    tags.retain(|tag| !SOFTWARE_ONLY.contains(tag) && !tag.starts_with(HOSTS_ONLY));
    tags.sort_unstable();
    let mut tested = TESTED.to_vec();
    tested.sort_unstable();
    tested.dedup();
    assert!(tags.len() > 10, "the table of docs/memory-model.md has another form now");
    assert_eq!(tags, tested, "rows of docs/memory-model.md, and litmus");
}
