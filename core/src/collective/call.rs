//! Sizes of a call, and how its buffers lie to each other.

use super::plans::in_place_differs;
use crate::error::{Error, Result};
use crate::gpu::{Context, DeviceSlice};
use crate::plan::{Division, Element, Kind};

/// One rank's call without its buffers: the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) element: Element,
    /// Elements of a rank's input.
    pub(super) count: usize,
    /// Parts of a rank's input and output. All parts of both are equally long.
    pub(super) parts: [usize; 2],
    /// Bytes of a part.
    pub(super) part: usize,
    /// A rank that has no input, or no output, unless it is this one.
    absent: [Option<u32>; 2],
    /// Calls in place take plans of their own.
    differs: bool,
}

impl Call {
    /// # Errors
    /// Of `op`: `InvalidUsage` for a size that does not divide, or exceeds the address space.
    pub(super) fn new(
        op: &'static str,
        kind: &Kind,
        ranks: u32,
        count: usize,
        element: Element,
    ) -> Result<Self> {
        let parts = parts(kind, ranks as usize);
        let size = element.bytes();
        let longest = count.checked_div(parts[0]).and_then(|part| part.checked_mul(parts[0].max(parts[1])));
        if longest
            .and_then(|elements| elements.checked_mul(size))
            .is_none_or(|bytes| bytes > isize::MAX as usize)
        {
            let message = format!("{count} elements of {size} bytes exceed the address space");
            return Err(Error::usage(op, message));
        }
        if !count.is_multiple_of(parts[0]) {
            let message = format!(
                "{count} elements do not divide into parts for {ranks} ranks; {} needs a multiple of {ranks}",
                kind.name()
            );
            return Err(Error::usage(op, message));
        }
        let absent = match *kind {
            Kind::Gather { root } => [None, Some(root)],
            Kind::Scatter { root } => [Some(root), None],
            _ => [None, None],
        };
        let differs = in_place_differs(kind);
        Ok(Self { element, count, parts, part: count / parts[0] * size, absent, differs })
    }

    /// Bytes of the input in a call with this many bytes of the larger buffer.
    pub(super) fn most_input(kind: &Kind, ranks: u32, bytes: u64) -> u64 {
        match parts(kind, ranks as usize) {
            [1, outputs] if outputs > 1 => bytes / outputs as u64,
            _ => bytes,
        }
    }

    /// Bytes of input and output that a rank must pass.
    pub(super) fn needed(&self, rank: u32) -> [usize; 2] {
        let [input, output] = self.lengths();
        let takes_part = self.absent.map(|only| only.is_none_or(|root| root == rank));
        [if takes_part[0] { input } else { 0 }, if takes_part[1] { output } else { 0 }]
    }

    /// As staged calls need it.
    pub(super) fn division(&self) -> Division {
        Division { parts: self.parts, part: self.part }
    }

    /// Bytes of the whole input and output.
    pub(super) fn lengths(&self) -> [usize; 2] {
        self.parts.map(|parts| parts * self.part)
    }

    /// Bytes of the larger of both, by which plans are chosen.
    pub(super) fn bytes(&self) -> u64 {
        self.lengths().into_iter().max().unwrap_or(0) as u64
    }

    /// Where input and output begin in one memory that holds both.
    pub(super) fn in_place(&self, rank: u32) -> [usize; 2] {
        match self.parts {
            // There is nothing beside what begins there.
            _ if self.needed(rank).contains(&0) => [0, 0],
            [1, outputs] if outputs > 1 => [rank as usize * self.part, 0],
            [inputs, 1] if inputs > 1 => [0, rank as usize * self.part],
            _ => [0, 0],
        }
    }

    /// Whether a call on these buffers takes the plans of calls in place.
    ///
    /// # Errors
    /// Of `op`: `InvalidUsage` for buffers that are too small, misaligned, of another device, or that overlap otherwise.
    pub(super) fn place(
        &self,
        op: &'static str,
        context: &Context,
        rank: u32,
        [input, output]: [&DeviceSlice; 2],
    ) -> Result<bool> {
        let refuse = |message: String| Err(Error::usage(op, message));
        let (lengths, size) = (self.needed(rank), self.element.bytes());
        for ((name, slice), needed) in [("input", input), ("output", output)].into_iter().zip(lengths) {
            slice.check_context(op, context)?;
            if slice.len() < needed {
                return refuse(format!(
                    "this call needs {needed} bytes of {name}, which has {}",
                    slice.len()
                ));
            }
            if !slice.ptr().is_multiple_of(size as u64) {
                return refuse(format!(
                    "the {name} at {:#x} is not aligned to its elements of {size} bytes",
                    slice.ptr()
                ));
            }
        }
        let [inputs, outputs] = lengths.map(|bytes| bytes as u64);
        let [input_at, output_at] = self.in_place(rank).map(|at| at as u64);
        let (input, output) = (input.ptr(), output.ptr());
        if input.wrapping_sub(input_at) == output.wrapping_sub(output_at) {
            return Ok(self.differs);
        }
        // A side without a part in the call touches nothing.
        if inputs == 0 || outputs == 0 || input + inputs <= output || output + outputs <= input {
            return Ok(false);
        }
        let rule = match (input_at, output_at) {
            (0, 0) => "begin at the same address".to_owned(),
            (at, 0) => format!("the input begin {at} bytes behind the output"),
            (_, at) => format!("the output begin {at} bytes behind the input"),
        };
        refuse(format!(
            "input at {input:#x} and output at {output:#x} overlap; they must lie apart, or, in place, {rule}"
        ))
    }
}

/// Parts of a rank's input and output: one for each rank where each rank gives or gets another one.
fn parts(kind: &Kind, ranks: usize) -> [usize; 2] {
    match kind {
        Kind::AllGather | Kind::Gather { .. } => [1, ranks],
        Kind::ReduceScatter | Kind::Scatter { .. } => [ranks, 1],
        Kind::AllToAll => [ranks, ranks],
        _ => [1, 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: &Kind, count: usize) -> Call {
        Call::new("test", kind, 4, count, Element::F16).unwrap()
    }

    #[test]
    fn sizes_follow_from_the_collective() {
        assert_eq!(call(&Kind::AllReduce, 6).lengths(), [12, 12]);
        assert_eq!(call(&Kind::AllGather, 6).lengths(), [12, 48]);
        assert_eq!(call(&Kind::ReduceScatter, 8).lengths(), [16, 4]);
        assert_eq!(call(&Kind::AllToAll, 8).lengths(), [16, 16]);
        assert_eq!(call(&Kind::AllGather, 6).bytes(), 48);
        let (gather, scatter) = (Kind::Gather { root: 2 }, Kind::Scatter { root: 2 });
        assert_eq!([1, 2].map(|rank| call(&gather, 6).needed(rank)), [[12, 0], [12, 48]]);
        assert_eq!([1, 2].map(|rank| call(&scatter, 8).needed(rank)), [[0, 4], [16, 4]]);
        assert_eq!([1, 2].map(|rank| call(&gather, 6).in_place(rank)), [[0, 0], [24, 0]]);
        assert_eq!([1, 2].map(|rank| call(&scatter, 8).in_place(rank)), [[0, 0], [0, 8]]);
        assert_eq!(call(&Kind::AllGather, 6).in_place(2), [24, 0]);
        assert_eq!(call(&Kind::ReduceScatter, 8).in_place(2), [0, 8]);
        assert_eq!(call(&Kind::AllToAll, 8).in_place(2), [0, 0]);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for kind in [Kind::ReduceScatter, Kind::AllToAll, Kind::Scatter { root: 0 }] {
            let error = Call::new("test", &kind, 4, 6, Element::F16).unwrap_err();
            assert!(error.to_string().contains("multiple of 4"), "{error}");
        }
        for kind in [Kind::AllGather, Kind::AllReduce, Kind::Gather { root: 0 }] {
            let error = Call::new("test", &kind, 4, usize::MAX / 2, Element::F16).unwrap_err();
            assert!(error.to_string().contains("address space"), "{error}");
        }
    }
}
