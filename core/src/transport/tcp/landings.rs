//! Frames that were received, until their bytes are where they belong.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::error::Result;

/// Frames on their last way, for instance through a device, in the order in which they came. A frame has landed only once all
/// before it have: an acknowledgement names one number.
pub(super) struct Landings<T> {
    /// Each with whether it is the end of a counted frame.
    waiting: VecDeque<(T, bool)>,
    /// Number of counted frames that have landed.
    landed: u64,
}

impl<T> Landings<T> {
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::new(), landed: 0 }
    }

    /// Number of counted frames that have landed.
    #[inline]
    pub(super) fn landed(&self) -> u64 {
        self.landed
    }

    /// Frames that have not landed.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A frame has come, and lands once it reaches the front and is done.
    #[inline]
    pub(super) fn push(&mut self, frame: T) {
        self.waiting.push_back((frame, true));
    }

    /// A part of a frame has come, whose end will come later.
    pub(super) fn push_part(&mut self, part: T) {
        self.waiting.push_back((part, false));
    }

    /// A frame has come whose effect is there: it lands now, unless earlier ones have not. Whether it has.
    #[inline]
    pub(super) fn land_at_once(&mut self) -> bool {
        // Not `landed += u64::from(first)`: rustc 1.95 forgets such a value once callers branch on it too (rust-lang/rust#158206),
        // and `ci/undefined.sh` looks for that.
        if !self.waiting.is_empty() {
            return false;
        }
        self.landed += 1;
        true
    }

    /// The next frame, or part of one, that lands now; none while it is not `done`.
    pub(super) fn land(&mut self, done: impl FnOnce(&T) -> Result<bool>) -> Result<Option<T>> {
        match self.waiting.front() {
            Some((first, _)) if done(first)? => {}
            _ => return Ok(None),
        }
        let Some((frame, ends)) = self.waiting.pop_front() else { return Ok(None) };
        self.landed += u64::from(ends);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_land_in_the_order_in_which_they_came() {
        let mut landings = Landings::new();
        assert!(landings.land_at_once());
        landings.push(2);
        assert!(!landings.land_at_once(), "the one before it has not landed");
        landings.push(3);
        assert_eq!((landings.landed(), landings.waiting()), (1, 2));
        assert_eq!(landings.land(|_| Ok(false)).unwrap(), None);
        assert_eq!(landings.landed(), 1);
        assert_eq!(landings.land(|frame| Ok(*frame == 2)).unwrap(), Some(2));
        assert_eq!(landings.land(|frame| Ok(*frame == 2)).unwrap(), None);
        assert_eq!(landings.land(|_| Ok(true)).unwrap(), Some(3));
        assert_eq!((landings.landed(), landings.waiting()), (3, 0));
        assert!(landings.land(|_| Ok(true)).unwrap().is_none() && landings.land_at_once());
        assert_eq!(landings.landed(), 4);
    }

    #[test]
    fn a_part_of_a_frame_is_not_counted_and_nothing_overtakes_it() {
        let mut landings = Landings::new();
        landings.push_part(1);
        assert!(!landings.land_at_once());
        landings.push(2);
        assert_eq!(landings.land(|_| Ok(true)).unwrap(), Some(1));
        assert_eq!((landings.landed(), landings.waiting()), (0, 1));
        assert_eq!(landings.land(|_| Ok(true)).unwrap(), Some(2));
        assert_eq!((landings.landed(), landings.waiting()), (1, 0));
    }
}
