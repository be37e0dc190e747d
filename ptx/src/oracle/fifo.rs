//! The triggers that the host must receive when a grid pushes.

use crate::abi::ProxyTrigger;

/// The payload of push `index` of thread `thread` of the grid. All zero for the first of all.
pub fn payload(thread: u32, index: u32) -> [u64; 4] {
    let (thread, index) = (u64::from(thread), u64::from(index));
    [thread, index, thread << 32 | index, thread ^ index]
}

/// Triggers received so far. Every thread's must come exactly once, in the order in which it pushed them.
#[derive(Debug)]
pub struct Arrivals {
    next: Vec<u32>,
}

impl Arrivals {
    /// Starts with no triggers, expecting `threads` threads.
    pub fn new(threads: u32) -> Self {
        Self { next: vec![0; threads as usize] }
    }

    /// Records a trigger. Returns its thread and index.
    ///
    /// # Errors
    /// A message if it is torn, out of order, repeated, or of no thread of the grid.
    pub fn take(&mut self, trigger: &ProxyTrigger) -> Result<(u32, u32), String> {
        let words = trigger.payload();
        let thread = u32::try_from(words[0]).map_err(|_| format!("no thread: {words:x?}"))?;
        let next = self.next.get_mut(thread as usize).ok_or_else(|| format!("no thread: {words:x?}"))?;
        if words != payload(thread, *next) {
            return Err(format!("expected push {next} of thread {thread}, got {words:x?}"));
        }
        *next += 1;
        Ok((thread, *next - 1))
    }

    /// Triggers received per thread, if the number is the same for all.
    pub fn per_thread(&self) -> Option<u32> {
        let first = *self.next.first()?;
        self.next.iter().all(|&next| next == first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_arrives_once_and_in_its_threads_order() {
        let trigger =
            |thread, index| ProxyTrigger::from_payload(payload(thread, index), index % 2 == 0).unwrap();
        let mut arrivals = Arrivals::new(2);
        assert_eq!(payload(0, 0), [0; 4]);
        assert_eq!(arrivals.take(&trigger(1, 0)), Ok((1, 0)));
        assert!(arrivals.take(&trigger(1, 0)).is_err(), "a second time");
        assert!(arrivals.take(&trigger(1, 2)).is_err(), "out of order");
        assert!(arrivals.take(&trigger(2, 0)).is_err(), "nobody");
        assert_eq!(arrivals.per_thread(), None);
        assert_eq!(arrivals.take(&trigger(0, 0)), Ok((0, 0)));
        assert_eq!(arrivals.per_thread(), Some(1));
    }
}
