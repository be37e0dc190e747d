//! One value per type: what a driver or a context holds for the layers above it, without naming them.

use std::any::Any;
use std::sync::OnceLock;

/// A set that only grows: a list of cells, each written once. Reading takes no lock.
#[derive(Default)]
pub(super) struct Slots {
    first: OnceLock<Box<Slot>>,
}

struct Slot {
    value: Box<dyn Any + Send + Sync>,
    rest: Slots,
}

impl Slots {
    /// The value of type `T`, made now if there is none yet.
    pub(super) fn get<T: Any + Send + Sync + Default>(&self) -> &T {
        let mut at = self;
        loop {
            let slot =
                at.first.get_or_init(|| Box::new(Slot { value: Box::<T>::default(), rest: Self::default() }));
            if let Some(value) = slot.value.downcast_ref() {
                return value;
            }
            at = &slot.rest;
        }
    }

    /// Whether there is no value at all.
    pub(super) fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicUsize, Ordering};

    #[test]
    fn each_type_has_one_value_also_when_threads_ask_at_a_time() {
        let slots = Slots::default();
        assert!(slots.is_empty());
        let gate = std::sync::Barrier::new(4);
        let addresses: Vec<(usize, usize)> = std::thread::scope(|scope| {
            let ask = |n: usize| {
                let (slots, gate) = (&slots, &gate);
                move || {
                    gate.wait();
                    let number = || slots.get::<AtomicUsize>();
                    let text = || slots.get::<std::sync::Mutex<String>>();
                    let (number, text) = if n.is_multiple_of(2) {
                        let number = number();
                        (number, text())
                    } else {
                        let text = text();
                        (number(), text)
                    };
                    number.fetch_add(1, Ordering::Relaxed);
                    ((&raw const *number).addr(), (&raw const *text).addr())
                }
            };
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(ask(n))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(addresses.iter().all(|address| *address == addresses[0]));
        assert_eq!(slots.get::<AtomicUsize>().load(Ordering::Relaxed), 4);
    }
}
