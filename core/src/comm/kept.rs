//! A place where the plans of a communicator find what they share, for as long as one of them keeps it.

use std::any::Any;
use std::sync::{Arc, Weak};

use crate::sync::{Mutex, lock};

/// A place for one value, which it does not keep alive, and a number that stands for it on all ranks. A rank may have the number and no
/// value. Ranks that tell each other the same number share the history of what they have kept here.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Place>);

#[derive(Debug, Default)]
struct Place {
    number: u64,
    value: Option<Weak<dyn Any + Send + Sync>>,
}

impl Kept {
    /// The number, and the value if this rank has one. The number is 0 if nothing was kept, or if the value has gone.
    pub(crate) fn get<T: Any + Send + Sync>(&self) -> (u64, Option<Arc<T>>) {
        let place = lock(&self.0);
        let Some(value) = &place.value else { return (place.number, None) };
        match value.upgrade().and_then(|value| value.downcast().ok()) {
            Some(value) => (place.number, Some(value)),
            None => (0, None),
        }
    }

    /// Remembers `value`, or that this rank has none, under `number`.
    pub(crate) fn set<T: Any + Send + Sync>(&self, number: u64, value: Option<&Arc<T>>) {
        let value = value.map(|value| {
            let value: Weak<T> = Arc::downgrade(value);
            value as Weak<dyn Any + Send + Sync>
        });
        *lock(&self.0) = Place { number, value };
    }

    /// Forgets it.
    pub(crate) fn clear(&self) {
        *lock(&self.0) = Place::default();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_a_value_only_while_that_is_kept() {
        let (kept, value) = (Kept::default(), Arc::new(5_u8));
        assert_eq!(kept.get::<u8>(), (0, None));
        kept.set(7, Some(&value));
        assert_eq!(kept.get(), (7, Some(value.clone())));
        drop(value);
        assert_eq!(kept.get::<u8>(), (0, None));
        kept.set::<u8>(8, None);
        assert_eq!(kept.get::<u8>(), (8, None), "this rank has none");
        kept.clear();
        assert_eq!(kept.get::<u8>(), (0, None));
    }
}
