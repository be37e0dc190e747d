//! A rank's memory as bytes, and what a kernel's steps do to it: by the meaning of a step, one element after another.

use aqueduct_ptx::plan::{Base, Block, Element, Kernel, Move, Number, Operand, PacketForm, Step};

use crate::elements::{is_nan, reduce};
use crate::rig::{ADDRESSES, Sizes};

/// A byte, or nothing if any byte would be right.
pub(crate) type Image = Vec<Option<u8>>;

/// One rank's buffers with what lies around them.
#[derive(Clone)]
pub(crate) struct Model {
    /// Input, output, scratch and packets, in the order of their addresses.
    pub(crate) images: [Image; 4],
    /// Where chunk 0 of the call's half lies in each.
    pub(crate) starts: [usize; 4],
    pub(crate) sizes: Sizes,
    pub(crate) scratch_chunk: usize,
    pub(crate) flag: u32,
    /// Packets are LL128 lines.
    pub(crate) lines: bool,
}

/// Part of a range in vectors.
#[derive(Clone, Copy)]
struct Slice {
    at: usize,
    unit: usize,
}

impl Model {
    /// Does all steps: from barrier to barrier, block after block.
    pub(crate) fn run(&mut self, kernel: &Kernel) {
        let parts = |block: &Block| {
            let steps = &kernel.shapes[block.shape as usize].steps;
            steps.split(|step| matches!(step, Step::Barrier { .. })).collect::<Vec<_>>()
        };
        for phase in 0..kernel.blocks.iter().map(|block| parts(block).len()).max().unwrap_or(0) {
            for block in &kernel.blocks {
                let steps = parts(block).get(phase).copied().unwrap_or_default();
                steps.iter().for_each(|step| self.step(kernel, block, step, None));
            }
        }
    }

    fn vectors(&self) -> usize {
        self.sizes.chunk.div_ceil(16) as usize
    }

    fn step(&mut self, kernel: &Kernel, block: &Block, step: &Step, slice: Option<Slice>) {
        match step {
            Step::Move(moved) => self.moves(kernel, block, moved, slice),
            Step::Loop { unit, chunks, body } => {
                let (total, unit) = (number(*chunks, block) * self.vectors(), *unit as usize / 16);
                for at in (0..total).step_by(unit) {
                    body.iter().for_each(|step| self.step(kernel, block, step, Some(Slice { at, unit })));
                }
            }
            Step::Repeat { turns, stride, body } => {
                for turn in 0..*turns {
                    let row = block.row[(turn * stride) as usize..].to_vec();
                    let block = Block { row, ..block.clone() };
                    body.iter().for_each(|step| self.step(kernel, &block, step, slice));
                }
            }
            _ => {}
        }
    }

    fn moves(&mut self, kernel: &Kernel, block: &Block, moved: &Move, slice: Option<Slice>) {
        let total = number(moved.count, block) * self.vectors();
        let (mut start, mut end) =
            slice.map_or((0, total), |slice| (slice.at.min(total), (slice.at + slice.unit).min(total)));
        if let Some(share) = moved.share {
            let (member, of) = (number(share.member, block), number(share.of, block));
            let cut = |member: usize| start + member * (end - start) / of;
            (start, end) = (cut(member), cut(member + 1));
        }
        if kernel.packets == PacketForm::Ll128 {
            (start, end) = (self.unit_of(start), self.unit_of(end));
            for target in moved.targets.iter().filter(|target| target.base == Base::Packets) {
                self.open_lines(number(target.first, block), start..end);
            }
        }
        let size = kernel.element.bytes();
        for vector in start..end {
            let (chunk, inside) = (vector / self.vectors(), 16 * (vector % self.vectors()));
            for inside in (inside..inside + 16).step_by(size) {
                let place = |operand: &Operand| self.place(operand, block, chunk, inside);
                let sources: Vec<_> =
                    moved.sources.iter().map(|operand| self.read(place(operand), size)).collect();
                let result = combine(kernel, moved, &sources);
                let targets: Vec<_> = moved.targets.iter().map(place).collect();
                for target in targets {
                    self.write(target, &result);
                }
            }
        }
    }

    /// Where the unit of lines begins of which a vector is not the first, or its chunk ends.
    fn unit_of(&self, vector: usize) -> usize {
        let (chunk, inside) = (vector / self.vectors(), vector % self.vectors());
        chunk * self.vectors() + (inside.div_ceil(60) * 60).min(self.vectors())
    }

    /// Writes the flags of all lines of these vectors. The data may be anything until it is written.
    fn open_lines(&mut self, first: usize, vectors: std::ops::Range<usize>) {
        for vector in vectors {
            let (chunk, inside) = (first + vector / self.vectors(), vector % self.vectors());
            if !inside.is_multiple_of(60) {
                continue;
            }
            let start = self.starts[3] + self.line(chunk, 16 * inside) / 1024 * 1024;
            for line in self.images[3][start..start + 1024].chunks_exact_mut(128) {
                line[..120].fill(None);
                line[120..].copy_from_slice(&u64::from(self.flag).to_le_bytes().map(Some));
            }
        }
    }

    /// Where a byte of a chunk lies among the lines, and the flag of its line 8 bytes before the line's end.
    fn line(&self, chunk: usize, inside: usize) -> usize {
        let (unit, vector, byte) = (inside / 960, inside % 960 / 16, inside % 16);
        let at = match vector {
            // The flag lanes' vectors are in two lines.
            7 | 15 | 23 | 31 if byte < 8 => 16 * vector + byte,
            7 | 15 | 23 | 31 => 512 + 16 * vector + byte - 8,
            0..32 => 16 * vector + byte,
            _ => 512 + 16 * (vector - 32 + (vector - 32) / 7) + byte,
        };
        1024 * (chunk * self.scratch_chunk.div_ceil(960) + unit) + at
    }

    /// Region and byte of an element; `None` if it lies behind its chunk or the user's buffer.
    fn place(&self, operand: &Operand, block: &Block, chunk: usize, inside: usize) -> Option<(usize, usize)> {
        let region = number(operand.address, block) % ADDRESSES as usize - 1;
        let chunk = number(operand.first, block) + chunk;
        let limit = match operand.base {
            Base::Input => self.sizes.input as usize,
            Base::Output => self.sizes.output as usize,
            Base::Packets if self.lines => return Some((region, self.line(chunk, inside))),
            _ => return Some((region, chunk * self.scratch_chunk + inside)),
        };
        let at = chunk * self.sizes.chunk as usize + inside;
        (inside < self.sizes.chunk as usize && at < limit).then_some((region, at))
    }

    fn read(&self, place: Option<(usize, usize)>, size: usize) -> Option<Vec<u8>> {
        let (region, at) = place?;
        (0..size)
            .map(|byte| {
                if region == 3 && self.lines {
                    let line = (at + byte) / 128 * 128 + self.starts[3];
                    let flag: Option<Vec<u8>> =
                        self.images[3][line + 120..line + 128].iter().copied().collect();
                    assert_eq!(flag, Some(u64::from(self.flag).to_le_bytes().to_vec()), "a line nobody sent");
                }
                if region != 3 || self.lines {
                    return self.images[region][self.starts[region] + at + byte];
                }
                let (word, byte) = ((at + byte) / 4, (at + byte) % 4);
                let word = &self.images[region][self.starts[region] + 8 * word..][..8];
                let flag: Option<Vec<u8>> = word[4..].iter().copied().collect();
                assert_eq!(flag.as_deref(), Some(&self.flag.to_le_bytes()[..]), "a packet nobody sent");
                word[byte]
            })
            .collect()
    }

    fn write(&mut self, place: Option<(usize, usize)>, element: &[Option<u8>]) {
        let Some((region, at)) = place else { return };
        for (byte, value) in element.iter().enumerate() {
            let at = at + byte;
            if region == 3 && !self.lines {
                let word = self.starts[region] + 8 * (at / 4);
                self.images[region][word + at % 4] = *value;
                let flag = self.flag.to_le_bytes().map(Some);
                self.images[region][word + 4..word + 8].copy_from_slice(&flag);
            } else {
                self.images[region][self.starts[region] + at] = *value;
            }
        }
    }
}

/// The result for one element; anything if a source is, or if it is a NaN, of which there are many.
fn combine(kernel: &Kernel, moved: &Move, sources: &[Option<Vec<u8>>]) -> Vec<Option<u8>> {
    let anything = vec![None; kernel.element.bytes()];
    let Some(sources) = sources.iter().map(Option::as_deref).collect::<Option<Vec<&[u8]>>>() else {
        return anything;
    };
    let Some(reduction) = moved.reduction else { return sources[0].iter().copied().map(Some).collect() };
    let result = reduce(kernel.element, reduction, kernel.ranks, &sources);
    if is_nan(&result, kernel.element) { anything } else { result.into_iter().map(Some).collect() }
}

fn number(number: Number, block: &Block) -> usize {
    match number {
        Number::Fixed(value) => value as usize,
        Number::Row(index) => block.row[index as usize] as usize,
    }
}

/// Bytes that look random and are elements whose sums and products are neither large nor NaN.
pub(crate) fn tame(seed: u64, bytes: usize, element: Element) -> Vec<u8> {
    let noise = crate::rig::noise(seed, bytes);
    // Between 0.5 and 2 in magnitude, with a mantissa of noise; integers of any bits.
    let float = |noise: u8, size: usize| -> Vec<u8> {
        let value = (0.5 + f64::from(noise & 0x7f) / 85.0) * if noise & 0x80 == 0 { 1.0 } else { -1.0 };
        match (element, size) {
            (_, 8) => value.to_le_bytes().to_vec(),
            (Element::F32, _) => (value as f32).to_le_bytes().to_vec(),
            (Element::F16, _) => {
                aqueduct_ptx::oracle::half::f16_from_f32(value as f32).to_le_bytes().to_vec()
            }
            (Element::Bf16, _) => {
                aqueduct_ptx::oracle::half::bf16_from_f32(value as f32).to_le_bytes().to_vec()
            }
            (Element::F8E4m3, _) => vec![(noise & 0x80) + 0x34 + noise % 8],
            _ => vec![(noise & 0x80) + 0x3a + noise % 4],
        }
    };
    match element {
        Element::I8 | Element::U8 | Element::I32 | Element::U32 | Element::I64 | Element::U64 => noise,
        _ => noise
            .iter()
            .step_by(element.bytes())
            .flat_map(|&byte| float(byte, element.bytes()))
            .take(bytes)
            .collect(),
    }
}
