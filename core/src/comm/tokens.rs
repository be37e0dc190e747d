//! The words of semaphores: slots of one allocation per communicator, so that a peer maps it once.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::gpu::{Context, GpuBuffer};
use crate::memory::{self, HostBuffer, RegisteredMemory, Registration, Rights};
use crate::rdma::Access;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::transport::endpoint::{Transport, Transports};
use crate::transport::{Resources, table};

/// Bytes of a slot: the word that the peer writes, and the words that only this rank uses, in cache lines apart.
pub(crate) const SLOT_BYTES: usize = 256;
/// Where in a slot the inbound counter is.
pub(crate) const INBOUND: usize = 0;
/// Where the expected inbound counter is.
pub(crate) const EXPECTED_INBOUND: usize = 128;
/// Where the outbound counter is.
pub(crate) const OUTBOUND: usize = 136;

/// How long zeroing a slot may take before the device counts as stuck.
const ZEROING: Duration = Duration::from_secs(30);

/// The side that waits for a semaphore; its memory holds the semaphore's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Device,
    Host,
}

/// The pools of a communicator, each allocated when the first semaphore needs it.
#[derive(Debug)]
pub(crate) struct Tokens {
    context: Context,
    /// Slots of each pool.
    count: u32,
    device: Mutex<Option<Arc<TokenPool>>>,
    host: Mutex<Option<Arc<TokenPool>>>,
}

impl Tokens {
    pub(crate) fn new(context: Context, count: u32) -> Arc<Self> {
        Arc::new(Self { context, count, device: Mutex::default(), host: Mutex::default() })
    }

    /// The words of semaphores that are waited for on the device, or on the host.
    pub(crate) fn pool(&self, side: Side) -> Result<Arc<TokenPool>> {
        let known = match side {
            Side::Device => &self.device,
            Side::Host => &self.host,
        };
        if let Some(pool) = &*lock(known) {
            return Ok(pool.clone());
        }
        // Without the lock: an allocation drops what the user's streams retain, and that may ask for a semaphore.
        let pool = TokenPool::new(&self.context, side, self.count)?;
        Ok(lock(known).get_or_insert(pool).clone())
    }
}

/// All slots of one communicator on one side.
#[derive(Debug)]
pub(crate) struct TokenPool {
    side: Side,
    memory: RegisteredMemory,
    /// The same for each transport that a semaphore has needed it for.
    registered: Mutex<HashMap<Transport, RegisteredMemory>>,
    /// In order of release, so that a slot rests as long as possible before its next use.
    free: Mutex<VecDeque<u32>>,
    count: u32,
    /// Claims so far.
    claims: AtomicU32,
}

/// A slot in use. The semaphore of this rank holds it, and the ledger until the peer has given it back: when neither the peer's
/// semaphore nor a signal on its way uses it any more. So no signal can reach the next semaphore in the slot.
#[derive(Debug)]
pub(crate) struct TokenSlot {
    pool: Arc<TokenPool>,
    slot: u32,
    /// The number of the claim: a peer that gives a slot back twice does not give back its next use.
    claim: u32,
}

impl TokenPool {
    pub(crate) fn new(context: &Context, side: Side, count: u32) -> Result<Arc<Self>> {
        let bytes = SLOT_BYTES * (count as usize).max(1);
        // Signals may be a NIC's atomics.
        let registration =
            Registration::new(Transports::CUDA_IPC).with_rights(Rights::READ_WRITE | Rights::REMOTE_ATOMIC);
        let memory = match side {
            Side::Device => {
                let buffer = Arc::new(GpuBuffer::new(context, bytes)?);
                memory::register_buffer(&buffer, 0, bytes, registration)?
            }
            Side::Host => {
                let buffer = Arc::new(HostBuffer::new(context, bytes)?);
                memory::register_host(&buffer, 0, bytes, registration)?
            }
        };
        Ok(Arc::new(Self {
            side,
            memory,
            registered: Mutex::default(),
            free: Mutex::new((0..count).collect()),
            count,
            claims: AtomicU32::new(0),
        }))
    }

    /// All of it, for one transport.
    fn memory(&self, resources: &Resources, transport: Transport) -> Result<RegisteredMemory> {
        let mut known = lock(&self.registered);
        if let Some(memory) = known.get(&transport) {
            return Ok(memory.clone());
        }
        let memory = self.memory.clone().with_transports(transport.into());
        // Signals must not pass the data that they speak of: no relaxed ordering.
        let memory = table::provider(transport).register(resources, transport, memory, Access::FLAGS)?;
        Ok(known.entry(transport).or_insert(memory).clone())
    }

    /// A slot whose words are zero.
    pub(crate) fn claim(self: &Arc<Self>) -> Result<Arc<TokenSlot>> {
        // Signals that have arrived give their slots back, here and at peers that do the same.
        self.memory.context().reap();
        let Some(slot) = lock(&self.free).pop_front() else {
            let message = format!(
                "all {} semaphores of this communicator are in use; drop some, or raise CommunicatorConfig::with_max_semaphores",
                self.count
            );
            return Err(Error::new(ErrorKind::Exhausted, "build_semaphore", message));
        };
        let claim = self.claims.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::new(TokenSlot { pool: self.clone(), slot, claim });
        let memory = self.memory.range(slot.slot as usize * SLOT_BYTES, SLOT_BYTES)?;
        match memory.host() {
            Some(words) => words.fill(0),
            // If this fails before the device has done it, the work keeps the slot, so that it is not given out
            // again and zeroed while its next semaphore counts in it.
            None => memory.slice()?.clone().keeping(slot.clone()).fill(0, Deadline::after(ZEROING))?,
        }
        Ok(slot)
    }
}

impl TokenSlot {
    /// Its name among all claims of the communicator's slots.
    pub(crate) fn number(&self) -> u64 {
        u64::from(self.claim) << 32 | u64::from(self.slot) << 1 | u64::from(self.pool.side == Side::Host)
    }

    /// Its bytes, as memory that can be sent, for `transport`.
    pub(crate) fn memory(&self, resources: &Resources, transport: Transport) -> Result<RegisteredMemory> {
        self.pool.memory(resources, transport)?.range(self.slot as usize * SLOT_BYTES, SLOT_BYTES)
    }
}

impl Drop for TokenSlot {
    fn drop(&mut self) {
        lock(&self.pool.free).push_back(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use cuda_driver_sys::CUresult;

    use super::*;
    use crate::gpu::{Device, Driver, Hooks};

    /// Makes `cuStreamQuery` fail once, and then say that the stream is busy until it is told otherwise.
    #[derive(Default)]
    struct Stuck(AtomicU32);

    const FAILS: u32 = 1;
    const BUSY: u32 = 2;
    const WORKS: u32 = 0;

    impl Hooks for Stuck {
        fn before(&self, function: &'static str) -> Option<CUresult> {
            match (function, self.0.load(Ordering::Relaxed)) {
                ("cuStreamQuery", FAILS) => {
                    self.0.store(BUSY, Ordering::Relaxed);
                    Some(CUresult::CUDA_ERROR_NOT_SUPPORTED)
                }
                ("cuStreamQuery", BUSY) => Some(CUresult::CUDA_ERROR_NOT_READY),
                _ => None,
            }
        }
    }

    /// The semaphore before it was dropped with signals that nobody had waited for.
    #[test]
    fn a_slot_that_is_used_again_counts_from_zero() {
        let deadline = Deadline::after(ZEROING);
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        for side in [Side::Device, Side::Host] {
            let pool = TokenPool::new(&context, side, 1).unwrap();
            let words = pool.memory.range(0, SLOT_BYTES).unwrap();
            let first = pool.claim().unwrap();
            match words.host() {
                Some(words) => words.fill(3),
                None => words.slice().unwrap().fill(3, deadline).unwrap(),
            }
            drop(first);
            let again = pool.claim().unwrap();
            let mut seen = [1; SLOT_BYTES];
            match words.host() {
                Some(words) => words.read(0, &mut seen).unwrap(),
                None => words.slice().unwrap().download(0, &mut seen, deadline).unwrap(),
            }
            assert_eq!((again.slot, seen), (0, [0; SLOT_BYTES]), "{side:?}");
        }
    }

    #[test]
    fn a_slot_is_not_used_again_before_its_words_have_been_zeroed() {
        let stuck = Arc::new(Stuck::default());
        let driver = Driver::software(cuda_soft::driver_table()).unwrap().with_hooks(stuck.clone());
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let pool = TokenPool::new(&context, Side::Device, 1).unwrap();
        stuck.0.store(FAILS, Ordering::Relaxed);
        let failed = pool.claim().unwrap_err();
        assert_eq!(failed.code(), CUresult::CUDA_ERROR_NOT_SUPPORTED.0.cast_signed(), "{failed}");
        assert_eq!(stuck.0.load(Ordering::Relaxed), BUSY, "the memset is under way");
        assert!(lock(&pool.free).is_empty(), "the memset may still write to the slot");
        assert_eq!(pool.claim().unwrap_err().kind(), ErrorKind::Exhausted);
        stuck.0.store(WORKS, Ordering::Relaxed);
        drop(pool.claim().unwrap());
        assert_eq!(lock(&pool.free).len(), 1);
    }

    /// A word on its way to the former user of a slot then most probably finds nobody there.
    #[test]
    fn a_slot_rests_as_long_as_possible() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let pool = TokenPool::new(&context, Side::Host, 3).unwrap();
        let [first, second] = [(); 2].map(|()| pool.claim().unwrap());
        drop(second);
        drop(first);
        assert_eq!([(); 3].map(|()| pool.claim().unwrap()).map(|slot| slot.slot), [2, 1, 0]);
    }

    struct Asks(std::sync::Weak<Tokens>, std::sync::mpsc::Sender<bool>);

    impl Drop for Asks {
        fn drop(&mut self) {
            let pool = self.0.upgrade().and_then(|tokens| tokens.pool(Side::Device).ok());
            self.1.send(pool.is_some()).unwrap();
        }
    }

    #[test]
    fn what_is_dropped_while_a_pool_is_made_may_ask_for_a_slot() {
        let driver = Driver::software(cuda_soft::driver_table()).unwrap();
        let context = Context::new(&Device::new(&driver, 0).unwrap()).unwrap();
        let tokens = Tokens::new(context.clone(), 1);
        let (asking, answer) = (Arc::downgrade(&tokens), std::sync::mpsc::channel());
        let stream = crate::gpu::Stream::new(&context).unwrap();
        stream.retain(Arc::new(Asks(asking, answer.0))).unwrap();
        let making = std::thread::spawn(move || (tokens.pool(Side::Device).unwrap(), tokens));
        let answered = answer.1.recv_timeout(Duration::from_secs(20));
        assert_eq!(answered, Ok(true), "it waits for a lock of the thread that it runs on");
        let (pool, tokens) = making.join().unwrap();
        assert!(Arc::ptr_eq(&pool, &tokens.pool(Side::Device).unwrap()), "there is one");
    }
}
