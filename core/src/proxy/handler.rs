//! The trait of the code that handles a proxy's triggers.
#![forbid(unsafe_code)]

use aqueduct_ptx::abi::ProxyTrigger;

use crate::error::{Error, Result};

/// A handler's instruction to the proxy after a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHandlerResult {
    /// Go on with the next trigger.
    Continue,
    /// End the thread. Triggers behind this one are not handled, and pushes leave with `LEFT_CLOSED`.
    Stop,
}

/// Handles the triggers of a proxy. A closure that takes a trigger is a handler.
///
/// Everything runs on the proxy's thread, with the device context current. An error or a panic ends the proxy: kernels
/// that wait for it leave, and [`Proxy::check`](super::Proxy::check) has the reason.
pub trait ProxyHandler: Send + 'static {
    /// Runs once on the proxy's thread, after the thread was bound to its cores and before the first trigger.
    ///
    /// # Errors
    /// Why the proxy cannot start.
    fn init(&mut self) -> Result<()> {
        Ok(())
    }

    /// Handles the trigger at `position` of the FIFO. Its slot is given back when this returns.
    ///
    /// # Errors
    /// Why the proxy must end.
    fn handle(&mut self, position: u64, trigger: &ProxyTrigger) -> Result<ProxyHandlerResult>;

    /// Runs whenever the FIFO is empty, and after every few triggers. Returns whether work is still under way; a proxy
    /// that is being stopped ends only when none is.
    ///
    /// # Errors
    /// Why the proxy must end.
    fn progress(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Runs once, as the last call. `failure` is the reason if the proxy was not simply stopped.
    fn ended(&mut self, _failure: Option<&Error>) {}
}

impl<F> ProxyHandler for F
where
    F: FnMut(&ProxyTrigger) -> Result<ProxyHandlerResult> + Send + 'static,
{
    fn handle(&mut self, _: u64, trigger: &ProxyTrigger) -> Result<ProxyHandlerResult> {
        self(trigger)
    }
}
