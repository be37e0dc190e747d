//! Composes the text of a plan's kernel from fragments.

use std::fmt::Display;
use std::mem;

use super::{Kernel, Number};
use crate::template::{self, TemplateError};
use crate::{Target, failure, globals, sources};

/// The barrier resource of a block's group, which is the whole block here.
pub(super) const BARRIER: u32 = 0;

/// Limit of a module's text. The driver compiles a megabyte of PTX in seconds.
const MAX_TEXT: usize = 64 << 20;

/// The text so far.
pub(super) struct Text<'k> {
    pub(super) kernel: &'k Kernel,
    /// The kernel runs with any grid.
    pub(super) any_grid: bool,
    globals: Vec<(String, u64)>,
    out: String,
    labels: u32,
    /// Numbers of the step at hand that were loaded from the block's row.
    numbers: u32,
    /// State space of the rows, as in a load.
    space: &'static str,
    /// Index of the shape at hand.
    shape: usize,
    /// Turns and entries of a turn of the repetition at hand.
    turns: Option<(u32, u32)>,
    /// The shape's flag has not been asked for yet.
    flag: bool,
    /// How a lap of flags begins, if there are laps.
    lap: Option<String>,
}

impl<'k> Text<'k> {
    pub(super) fn new(kernel: &'k Kernel, target: Target, space: &'static str) -> Self {
        Self {
            kernel,
            any_grid: kernel.runs_with_any_grid(),
            globals: globals(target),
            out: String::new(),
            labels: 0,
            numbers: 0,
            space,
            shape: 0,
            turns: None,
            flag: false,
            lap: None,
        }
    }

    pub(super) fn into_string(self) -> String {
        self.out
    }

    /// Numbers of rows are from now on those of blocks of this shape.
    pub(super) fn set_shape(&mut self, shape: usize) {
        self.shape = shape;
    }

    /// Numbers of rows are from now on those of so many turns with so many entries each, or again those of the shape alone.
    pub(super) fn set_turns(&mut self, turns: Option<(u32, u32)>) {
        self.turns = turns;
    }

    /// Whether the step at hand is repeated with other numbers.
    pub(super) fn in_turns(&self) -> bool {
        self.turns.is_some()
    }

    /// The text that begins a lap of flags.
    pub(super) fn set_lap(&mut self, lap: String) {
        self.lap = Some(lap);
    }

    /// The shape at hand needs the call's flag from its next step on.
    pub(super) fn want_flag(&mut self) {
        self.flag = true;
    }

    /// Whether the call's flag has not been asked for.
    pub(super) fn wants_flag(&self) -> bool {
        self.flag
    }

    /// Writes the call's flag, unless it stands above.
    pub(super) fn flag(&mut self) -> Result<(), TemplateError> {
        if !mem::take(&mut self.flag) {
            return Ok(());
        }
        let double = u32::from(self.kernel.double_scratch);
        let lines = self.kernel.chunks_of_lines();
        let Some(lap) = self.lap.clone() else {
            return self.include("plan_flag", &[("DOUBLE", &double), ("LINES", &lines), ("OVER", &"none")]);
        };
        let over = self.label("LAP_OVER");
        self.include("plan_flag", &[("DOUBLE", &double), ("LINES", &lines), ("OVER", &over)])?;
        // Its labels are its own.
        self.line("{");
        self.out.push_str(&lap);
        self.line("}");
        self.include("plan_label", &[("NAME", &over)])
    }

    /// Loads an address that the caller passed.
    pub(super) fn address(&mut self, index: &str, to: &str) -> Result<(), TemplateError> {
        let fixed = u32::from(!index.starts_with('%'));
        self.include("plan_address", &[("FIXED", &fixed), ("INDEX", &index), ("TO", &to)])
    }

    /// A line that is no instruction: a declaration, a brace.
    pub(super) fn line(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    /// A label that no other step has.
    pub(super) fn label(&mut self, name: &str) -> String {
        self.labels += 1;
        format!("{name}_{}", self.labels)
    }

    /// A fragment with its names bound.
    #[cfg_attr(feature = "mutants", track_caller)]
    pub(super) fn include(
        &mut self,
        fragment: &str,
        params: &[(&str, &dyn Display)],
    ) -> Result<(), TemplateError> {
        let params: Vec<_> =
            params.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect();
        #[cfg(feature = "mutants")]
        let Some(params) = crate::replaced::call(std::panic::Location::caller(), params) else {
            return Ok(());
        };
        let file = format!("{fragment}.ptxi");
        self.out.push_str(&template::render_fragment(&file, &sources::find, &self.globals, &params)?);
        if self.out.len() > MAX_TEXT {
            let message =
                format!("a text of more than {MAX_TEXT} bytes: the plan has too many steps for one kernel");
            return Err(failure(&self.kernel.symbol, message));
        }
        Ok(())
    }

    /// A step in a scope of its own.
    pub(super) fn scoped(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<(), TemplateError>,
    ) -> Result<(), TemplateError> {
        let before = mem::take(&mut self.out);
        let numbers = mem::take(&mut self.numbers);
        let result = step(self);
        let body = mem::replace(&mut self.out, before);
        result?;
        self.line("{");
        self.include("plan_numbers", &[("COUNT", &self.numbers.max(1))])?;
        self.numbers = numbers;
        self.out.push_str(&body);
        self.line("}");
        Ok(())
    }

    /// The number as an instruction's operand: digits, or a register that was loaded for the step at hand.
    pub(super) fn number(&mut self, number: Number) -> Result<String, TemplateError> {
        match self.resolve(number) {
            Number::Fixed(value) => Ok(value.to_string()),
            Number::Row(index) => {
                let (register, space) = (self.register(), self.space);
                self.include("plan_number", &[("SPACE", &space), ("INDEX", &index), ("TO", &register)])?;
                Ok(register)
            }
        }
    }

    /// A register for a number of the step at hand.
    pub(super) fn register(&mut self) -> String {
        self.numbers += 1;
        format!("%n{}", self.numbers - 1)
    }

    /// State space of the rows, as in a load.
    pub(super) fn space(&self) -> &'static str {
        self.space
    }

    /// The number, fixed if all blocks of the shape have the same in all turns.
    pub(super) fn resolve(&self, number: Number) -> Number {
        let Number::Row(index) = number else { return number };
        let mut values = self.rows().map(|row| row[index as usize]);
        match values.next() {
            Some(first) if values.all(|value| value == first) => Number::Fixed(first),
            _ => number,
        }
    }

    /// Rows of the blocks of the shape at hand, from where each turn has them.
    pub(super) fn rows(&self) -> impl Iterator<Item = &'k [u32]> {
        let (kernel, shape, (turns, stride)) = (self.kernel, self.shape, self.turns.unwrap_or((1, 0)));
        let blocks = kernel.blocks.iter().filter(move |block| block.shape as usize == shape);
        blocks.flat_map(move |block| {
            (0..turns).filter_map(move |turn| block.row.get((turn * stride) as usize..))
        })
    }
}
