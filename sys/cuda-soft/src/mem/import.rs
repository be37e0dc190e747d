//! Memory that this process has opened through legacy IPC.

/// One opened allocation of another process.
#[derive(Debug)]
pub(crate) struct Import {
    /// The identity of the memory object.
    pub(crate) identity: [u64; 2],
    /// The device whose context opened it.
    pub(crate) device: usize,
    /// The address of the mapping.
    pub(crate) base: u64,
    /// How often it was opened and not yet closed.
    pub(crate) opens: u32,
}
