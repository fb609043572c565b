//! The kinds of inputs that the tasks of a program read, besides token ids and routed rows.

use std::collections::BTreeSet;

use ixc_ir::plan::{Input, Ngram, RowInput, Source};

use super::{MAX_NGRAMS, MAX_PARTS, MAX_ROW_INPUTS, Problem, Result, Stage, range};

/// The distinct kinds of derived inputs that tasks use. For each kind, every step fills a table.
#[derive(Default)]
pub(super) struct InputKinds {
    pub(super) rows: BTreeSet<RowInput>,
    pub(super) ngrams: BTreeSet<Ngram>,
}

impl InputKinds {
    pub(super) fn from_stages(stages: &[Stage]) -> InputKinds {
        // A variant of the plan may use any input that has no parameter, so all of these are
        // included.
        let mut kinds = InputKinds { rows: RowInput::without_parameter().collect(), ngrams: BTreeSet::new() };
        for arg in stages.iter().flat_map(|stage| &stage.tasks).flat_map(|task| &task.args) {
            let Source::Input(input) = arg.source else { continue };
            match input {
                Input::Row(input) => _ = kinds.rows.insert(input),
                Input::Ngram(ngram) => _ = kinds.ngrams.insert(ngram),
                Input::Tokens | Input::OutputRows | Input::RoutedToken(_) | Input::RoutedSlot(_) => {}
            }
        }
        kinds
    }

    /// Checks the numbers of kinds. Also checks `chosen_bytes`, the size of the copies of chosen
    /// cache slots.
    pub(super) fn check(&self, chosen_bytes: u64) -> Result<(), Problem> {
        let InputKinds { rows, ngrams } = self;
        range("kinds of row inputs", rows.len() as u64, 0, MAX_ROW_INPUTS)?;
        range("bytes of chosen places", chosen_bytes, 0, MAX_PARTS)?;
        range("rows that tokens name together", ngrams.len() as u64, 0, MAX_NGRAMS)?;
        // Each n-gram row needs a state of its own, which holds the token ids before the step.
        let states: BTreeSet<u32> = ngrams.iter().map(|ngram| ngram.state).collect();
        let alone = Problem::Shape { expected: "a separate state for each n-gram row" };
        if states.len() == ngrams.len() { Ok(()) } else { Err(alone) }
    }
}
