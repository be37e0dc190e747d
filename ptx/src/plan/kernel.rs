//! The description of a plan's kernel.

use super::{Element, Move, Number, Step};

/// The kernel of one rank: one launch is one call of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Symbol of the entry point: a PTX identifier.
    pub symbol: String,
    /// Type of the elements that reductions combine. Moves without a reduction copy bytes.
    pub element: Element,
    /// Ranks of the plan: the divisor of [`Reduction::Avg`](super::Reduction::Avg).
    pub ranks: u32,
    /// Threads of each block: a multiple of 32, at most 1024.
    pub threads: u32,
    /// Addresses behind [`PlanArgs`](crate::abi::PlanArgs) in the kernel's parameter.
    pub addresses: u32,
    /// Offset in the control area of `blocks` counters of calls (u64). Each block counts its own: the flag of a call's packets is
    /// the lower half, which goes from 2^32 - 1 to 2, and the half of double scratch is its lowest bit. Not touched if there are
    /// neither packets nor double scratch.
    pub calls: u32,
    /// Calls alternate between two halves of scratch.
    pub double_scratch: bool,
    /// How packets lie in scratch.
    pub packets: PacketForm,
    /// How ranks meet before a new lap of flags; `None` if no step reads or writes packets.
    pub laps: Option<Laps>,
    /// Chunks of input and output have sizes of their own, which the ranks tell each other.
    pub rows: Option<Rows>,
    /// Where [`Step::Mark`] notes times; `None` if there is none, and then the text is the same as ever.
    pub trace: Option<Trace>,
    /// The launch goes on with what an earlier one of the same stream began. Once a wait of this rank was given up, it signals nothing and
    /// waits for nothing: whoever gave up has written the abort record.
    pub follows: bool,
    /// Bodies.
    pub shapes: Vec<Shape>,
    /// Blocks of the grid, or of its largest if it [runs with any](Self::runs_with_any_grid).
    pub blocks: Vec<Block>,
}

impl Kernel {
    /// Chunks of a half of LL128 packets; 0 if packets are LL16.
    pub(super) fn chunks_of_lines(&self) -> u32 {
        match (self.packets, &self.laps) {
            (PacketForm::Ll128, Some(laps)) => laps.chunks / (1 + u32::from(self.double_scratch)),
            _ => 0,
        }
    }

    /// Whether a launch may have fewer blocks than [`blocks`](Self::blocks), from one on, and another number in each call: all
    /// moves are of equally many chunks, the same in all blocks and shared by them, block k as member k, and only the first block
    /// does anything else but sync. The shares are then those of the launch's blocks, by which
    /// [`PlanArgs::grid_magic`](crate::abi::PlanArgs::grid_magic) divides.
    ///
    /// Equal ranges have equal shares, so what a block reads of its own writes stays its own whatever the grid.
    pub fn runs_with_any_grid(&self) -> bool {
        let mut counts = self.shapes.iter().flat_map(|shape| &shape.steps).filter_map(|step| match step {
            Step::Move(moved) => Some(moved.count),
            _ => None,
        });
        let first = counts.next();
        // What all blocks share of each move.
        let moves = |shape: &Shape| -> Vec<Move> {
            let moves = shape.steps.iter().filter_map(|step| match step {
                Step::Move(moved) => Some(Move { share: None, ..moved.clone() }),
                _ => None,
            });
            moves.collect()
        };
        self.blocks.len() > 1
            && first
                .is_some_and(|first| matches!(first, Number::Fixed(_)) && counts.all(|count| count == first))
            && self.blocks.iter().enumerate().all(|(nth, block)| {
                let steps = self.shapes.get(block.shape as usize).map_or(&[][..], |shape| &shape.steps);
                steps.iter().all(|step| match step {
                    Step::Sync => true,
                    Step::Move(moved) => moved.is_shared_by_all(nth, &block.row, self.blocks.len()),
                    Step::Signal(_) | Step::Wait(_) => nth == 0,
                    _ => false,
                })
            })
            // A launch without some of the blocks would leave out what only they move.
            && self.shapes.windows(2).all(|pair| moves(&pair[0]) == moves(&pair[1]))
    }
}

/// Data of a unit of LL128 packets, which a warp handles at once.
pub const UNIT_DATA: u32 = 960;
/// The same unit as 8 lines of 128 bytes.
pub const UNIT_LINES: u32 = 1024;

/// How packets carry their flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PacketForm {
    /// LL16: 8 bytes of data and two flags of 4 bytes.
    #[default]
    Ll16,
    /// LL128: lines of 120 bytes of data and a flag of 8 bytes. Right only where the path between devices keeps the 128 bytes of a
    /// store instruction together or in order, as NVLink does. Moves of a kernel are then divided between units of 960 bytes, from
    /// the start of a chunk on, those without packets as well.
    Ll128,
}

/// How the ranks that exchange packets begin a new lap of flags, once in 2^32 calls: each waits until the others have ended their
/// last call of the old lap, all its blocks zero its packets, and it waits until the others have done the same. The flag of an
/// old packet could otherwise pass for that of a new one. All blocks must be resident.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Laps {
    /// Index of the address of this rank's packets.
    pub packets: u32,
    /// Multiple of `scratch_chunk` that its packets take, both halves included: twice the chunks, times the halves. Of LL128
    /// packets the chunks, times the halves, each as long as its lines ([`PlanArgs::lines`](crate::abi::PlanArgs::lines)).
    pub chunks: u32,
    /// Offset of the state of a barrier of all blocks in the control area.
    pub barrier: u32,
    /// Tells the ranks with which this one exchanges packets, either way, and waits until they have told it: taken twice in a new
    /// lap. These are signals and waits, of counters that serve nothing else or of port channels, and their numbers are fixed.
    pub meeting: Vec<Step>,
}

/// How ranks tell each other the places and sizes of chunks, once in each call: each block shows this rank's rows to the block of
/// its number at every rank ([`Step::ShowRows`]), and each block compares all rows of all ranks itself ([`Step::JudgeRows`]). Where proxies
/// put rows to ranks that others do not reach, only the first block shows and puts rows, into tables that all blocks share. A
/// [`PlanRow`](crate::abi::PlanRow) speaks of one pair of ranks; row `s * ranks + r` of a table is what rank s says of
/// rank r.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    /// This rank.
    pub me: u32,
    /// Ranks that this one reaches, itself included.
    pub reached: u32,
    /// All blocks have the first block's tables.
    pub shared: bool,
    /// Offset in every rank's control area of the tables: two halves for each block that has any, of `ranks * ranks` rows each.
    pub tables: u32,
    /// Index of the address of the control area of the first rank that is reached; those of the others follow.
    pub controls: u32,
    /// Index of the first of 11 addresses that are the words of a [`PlanRows`](crate::abi::PlanRows).
    pub words: u32,
    /// Parts that are sent must fill the room, as where rows are reduced.
    pub exact: bool,
    /// Parts that are sent must fit a chunk of scratch.
    pub bounded: bool,
}

/// Records of times: [`TraceRecord`](crate::abi::TraceRecord), `records` of them for each block, one block's behind the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Trace {
    /// Index of their address.
    pub address: u32,
    /// Records of each block: what does not fit is not noted.
    pub records: u32,
}

/// Threads that do the same but for numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The steps.
    pub steps: Vec<Step>,
}

/// One thread block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Index into [`Kernel::shapes`].
    pub shape: u32,
    /// Numbers that the shape asks for. Blocks of one shape have equally many.
    pub row: Vec<u32>,
}
