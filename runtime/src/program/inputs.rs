//! The kinds of inputs that the tasks of a program have.

use std::collections::BTreeSet;

use ixc_ir::plan::{Choice, Input, Ngram, Source};

use super::{MAX_NGRAMS, MAX_PARTS, MAX_SHARED, Problem, Result, Stage, range};

/// The kinds of inputs that tasks have, each with a table of its own in every step.
#[derive(Default)]
pub(super) struct InputKinds {
    pub(super) shared: BTreeSet<u32>,
    pub(super) choices: BTreeSet<Choice>,
    pub(super) ahead: BTreeSet<u32>,
    pub(super) ngrams: BTreeSet<Ngram>,
}

impl InputKinds {
    pub(super) fn of(stages: &[Stage]) -> InputKinds {
        let mut kinds = InputKinds::default();
        for arg in stages.iter().flat_map(|stage| &stage.tasks).flat_map(|task| &task.args) {
            let Source::Input(input) = arg.source else { continue };
            match input {
                Input::Phase(every) | Input::Whole(every) => _ = kinds.shared.insert(every),
                Input::Chosen(choice) | Input::LastChosen(choice) => _ = kinds.choices.insert(choice),
                Input::Ahead(reach) => _ = kinds.ahead.insert(reach),
                Input::Ngram(ngram) => _ = kinds.ngrams.insert(ngram),
                _ => {}
            }
        }
        kinds
    }

    /// Checks the number of kinds. `chosen_bytes` are the bytes of places that a task chooses.
    pub(super) fn check(&self, chosen_bytes: u64) -> Result<(), Problem> {
        let InputKinds { shared, choices, ahead, ngrams } = self;
        range("kinds of places that positions share", shared.len() as u64, 0, MAX_SHARED)?;
        range("kinds of choices of places", choices.len() as u64, 0, MAX_SHARED)?;
        range("bytes of chosen places", chosen_bytes, 0, MAX_PARTS)?;
        range("kinds of positions ahead of rows", ahead.len() as u64, 0, MAX_SHARED)?;
        range("rows that tokens name together", ngrams.len() as u64, 0, MAX_NGRAMS)?;
        // Each n-gram row keeps the ids before a step in a state of its own, so that they are
        // stored once.
        let states: BTreeSet<u32> = ngrams.iter().map(|ngram| ngram.state).collect();
        let alone = Problem::Shape { expected: "a separate state for each n-gram row" };
        if states.len() == ngrams.len() { Ok(()) } else { Err(alone) }
    }
}
