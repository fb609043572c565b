//! Speculation: draft tokens are computed in the same step as the last token, and kept as long as
//! they are also sampled.
//!
//! ```text
//! text            the cat sat on the
//! guessed         mat | and | then                  by a drafter
//! one step        the, mat, and, then: 4 rows       weights are read once
//! sampled         mat | and | it                    from each row's logits, as without speculation
//! text            the cat sat on the mat and it     3 tokens in one step; cuts off the row `then`
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | `ngram` | guesses from the text itself |
//! | `payoff` | the number of tokens to draft, by measured step times and acceptance rates |
//!
//! Drafters with a model are [`DraftModel`](crate::draft_model::DraftModel), for a small model, and
//! [`OwnLayer`](crate::own_layer::OwnLayer), for the model's own draft layer. To add a drafter, add
//! a file with a type that is a [`Drafter`], and its name where the command line reads `--spec`.
//!
//! Invariant: a text has the same tokens as without speculation. Each token is sampled from the
//! logits of its own row, in order. No token is sampled after a rejected draft token, so samplers
//! and grammars have their usual states. Each row is a separate
//! [`Addition`](ixc_runtime::engine::Addition), so its results are bit-identical to a step of one
//! token.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::Error;

mod ngram;
mod payoff;

pub use ngram::{Ngram, NgramOptions};
use payoff::{DraftLimit, Payoff};

/// Max number of rows in a step with drafts. For more rows, the time of a step is about
/// proportional to their number.
pub const MAX_ROWS: usize = 32;
/// Max number of draft tokens for a text in one step: all rows except that of its last token.
pub const MAX_DRAFT: usize = MAX_ROWS - 1;

/// Text to draft for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text<'t> {
    /// Slot of the text; a drafter may keep state for each slot. It is less than the number of
    /// slots of the drafter.
    pub slot: usize,
    /// Tokens, at least one.
    pub tokens: &'t [u32],
    /// Max number of draft tokens.
    pub max_draft: usize,
    /// Draft: tokens that may follow the text. Empty before drafting, and if the drafter has no
    /// draft.
    pub draft: Vec<u32>,
}

/// Hidden states of a text in a step, for drafters that use them.
#[derive(Clone, Copy, Debug)]
pub struct HiddenStates<'t> {
    /// The text's slot: see [`Text::slot`].
    pub slot: usize,
    /// Tokens that the model had read before the step.
    pub before: &'t [u32],
    /// Tokens of the text that the model read in this step.
    pub tokens: &'t [u32],
    /// Draft tokens that the model read after these tokens.
    pub draft: &'t [u32],
    /// Hidden states of the tokens and the draft, one after the other.
    pub hidden: &'t [f32],
}

/// Source of draft tokens.
pub trait Drafter: Debug + Send {
    /// Returns the drafter's name for messages.
    fn name(&self) -> &'static str;

    /// Drafts tokens for each of these texts, which have different slots. Returns the time for
    /// drafting, without reading for later drafts.
    ///
    /// # Errors
    /// When the drafter's own model fails. There are no drafts then.
    fn draft(&mut self, texts: &mut [Text<'_>]) -> Result<Duration, Error>;

    /// Returns whether the drafter uses hidden states of the model, and must be shown each step.
    fn needs_hidden_states(&self) -> bool {
        false
    }

    /// Receives the results of a step, before rejected tokens are cut off. No two texts have the
    /// same slot.
    ///
    /// # Errors
    /// See [`Drafter::draft`].
    fn observe(&mut self, _texts: &[HiddenStates<'_>]) -> Result<(), Error> {
        Ok(())
    }
}

/// Options of speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculationOptions {
    /// Max number of draft tokens in a step, at most [`MAX_DRAFT`].
    pub max: usize,
    /// Min number of draft tokens; shorter drafts are not used.
    pub min: usize,
    /// Draft as many tokens as possible, even if measurements show no gain.
    pub always: bool,
}

impl Default for SpeculationOptions {
    fn default() -> SpeculationOptions {
        SpeculationOptions { max: 8, min: 1, always: false }
    }
}

/// Counters of speculation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Draft tokens that were computed.
    pub drafted: u64,
    /// Draft tokens that the model accepted, because it sampled the same tokens.
    pub accepted: u64,
    /// Number of drafts that were computed.
    pub drafts: u64,
    /// Time for drafting, without computing the drafts.
    pub drafting: Duration,
    /// Number of times that a text had no draft because of measurements.
    pub declined: u64,
}

impl Tally {
    /// Returns the difference to an earlier count.
    pub fn since(&self, before: &Tally) -> Tally {
        Tally {
            drafted: self.drafted.saturating_sub(before.drafted),
            accepted: self.accepted.saturating_sub(before.accepted),
            drafts: self.drafts.saturating_sub(before.drafts),
            drafting: self.drafting.saturating_sub(before.drafting),
            declined: self.declined.saturating_sub(before.declined),
        }
    }
}

/// Drafter with its measurements.
#[derive(Debug)]
pub struct Speculation {
    drafter: Box<dyn Drafter>,
    options: SpeculationOptions,
    payoff: Payoff,
    tally: Tally,
    /// Whether the drafter has failed. A failed drafter is not used again.
    failed: bool,
}

impl Speculation {
    /// Creates the speculation, without measurements.
    pub fn new(drafter: Box<dyn Drafter>, options: SpeculationOptions) -> Speculation {
        let max = options.max.min(MAX_DRAFT);
        let options = SpeculationOptions { max, min: options.min.clamp(1, max.max(1)), ..options };
        Speculation { drafter, options, payoff: Payoff::default(), tally: Tally::default(), failed: false }
    }

    /// Returns the drafter's name.
    pub fn name(&self) -> &'static str {
        self.drafter.name()
    }

    /// Returns the max number of draft tokens in a step.
    pub fn max(&self) -> usize {
        self.options.max
    }

    /// Returns the counters.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Begins another text in a slot. Resets its acceptance rate, which depends on the text.
    pub fn begin(&mut self, slot: usize) {
        self.payoff.begin(slot);
    }

    /// Drafts the continuations of texts whose last tokens are in the next step. Each draft has at
    /// most the tokens in `max_draft`, and all together at most `room`.
    pub fn draft(&mut self, mut texts: Vec<Text<'_>>, room: usize) -> Vec<Vec<u32>> {
        let rows = texts.len();
        let SpeculationOptions { max, min, always } = self.options;
        let room = room.min(MAX_ROWS.saturating_sub(rows));
        if self.failed || room == 0 {
            return vec![Vec::new(); rows];
        }
        let limit = |text: &Text<'_>| DraftLimit { slot: text.slot, max_tokens: text.max_draft.min(max) };
        let limits: Vec<DraftLimit> = texts.iter().map(limit).collect();
        let counts = self.payoff.counts(&limits, room, always);
        for (text, count) in texts.iter_mut().zip(&counts) {
            text.max_draft = *count;
        }
        self.tally.declined +=
            limits.iter().zip(&counts).filter(|(limit, count)| limit.max_tokens >= min && **count < min).count() as u64;
        let mut requests: Vec<Text<'_>> = texts.iter().filter(|text| text.max_draft >= min).cloned().collect();
        if requests.is_empty() {
            return vec![Vec::new(); rows];
        }
        let begin = Instant::now();
        let result = self.drafter.draft(&mut requests);
        self.tally.drafting += begin.elapsed();
        match result {
            Ok(guessing) => {
                let deepest = requests.iter().map(|text| text.draft.len()).max().unwrap_or(0);
                self.payoff.record_drafting(deepest, guessing.as_secs_f64());
            }
            Err(error) => {
                self.fail(&error);
                return vec![Vec::new(); rows];
            }
        }
        for text in requests {
            let Text { slot, max_draft, mut draft, .. } = text;
            draft.truncate(max_draft);
            if draft.len() < min {
                draft.clear();
            }
            if let Some(text) = texts.iter_mut().find(|text| text.slot == slot) {
                text.draft = draft;
            }
        }
        texts.into_iter().map(|text| text.draft).collect()
    }

    /// Turns the failed drafter off. Generation continues without drafts.
    fn fail(&mut self, error: &Error) {
        tracing::warn!(%error, "speculation with {} failed, and is now off", self.drafter.name());
        self.failed = true;
    }

    /// Returns whether the drafter must be shown the results of steps:
    /// [`Drafter::needs_hidden_states`].
    pub fn needs_hidden_states(&self) -> bool {
        !self.failed && self.drafter.needs_hidden_states()
    }

    /// Shows the results of a step to the drafter.
    pub fn observe(&mut self, texts: &[HiddenStates<'_>]) {
        let begin = Instant::now();
        if let Err(error) = self.drafter.observe(texts) {
            self.fail(&error);
        }
        self.tally.drafting += begin.elapsed();
    }

    /// Records the time of a step with `texts` texts, one token and its draft for each, and `rows`
    /// rows in all.
    pub fn note_step(&mut self, texts: usize, rows: usize, took: Duration) {
        self.payoff.record_step(texts, rows, took.as_secs_f64());
    }

    /// Records that `drafted` draft tokens in a slot were computed, and `accepted` of them sampled.
    pub fn note_draft(&mut self, slot: usize, drafted: usize, accepted: usize) {
        if drafted == 0 {
            return self.payoff.record_token(slot);
        }
        self.payoff.record_draft(slot, drafted, accepted);
        self.tally.drafts += 1;
        self.tally.drafted += drafted as u64;
        self.tally.accepted += accepted as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drafter that continues a sequence of increasing tokens.
    #[derive(Debug)]
    struct Counting(bool);

    impl Drafter for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }

        fn draft(&mut self, texts: &mut [Text<'_>]) -> Result<Duration, Error> {
            for text in texts {
                let last = text.tokens.last().copied().unwrap_or(0);
                text.draft.extend(last + 1..=last + text.max_draft as u32);
            }
            if self.0 { Err(ixc_compile::Error::NoTokens.into()) } else { Ok(Duration::ZERO) }
        }
    }

    fn text(slot: usize, tokens: &[u32], max_draft: usize) -> Text<'_> {
        Text { slot, tokens, max_draft, draft: Vec::new() }
    }

    #[test]
    fn drafts_fit_the_available_room() {
        let options = SpeculationOptions { max: 4, always: true, ..SpeculationOptions::default() };
        let mut speculation = Speculation::new(Box::new(Counting(false)), options);
        assert_eq!(speculation.draft(vec![text(0, &[7], 9)], 100), [vec![8, 9, 10, 11]]);
        assert_eq!(speculation.draft(vec![text(0, &[7], 2), text(1, &[1], 9)], 100), [vec![8, 9], vec![2, 3, 4, 5]]);
        // The room for drafts is given to texts in turn.
        assert_eq!(speculation.draft(vec![text(0, &[7], 9), text(1, &[1], 9)], 3), [vec![8, 9], vec![2]]);
        assert_eq!(speculation.draft(vec![text(0, &[7], 0)], 100), [Vec::<u32>::new()]);
        assert_eq!(speculation.draft(vec![text(0, &[7], 9)], 0), [Vec::<u32>::new()]);
        let many: Vec<Text<'_>> = (0..MAX_ROWS).map(|slot| text(slot, &[7], 9)).collect();
        assert!(speculation.draft(many, 100).iter().all(Vec::is_empty), "the step is full");
    }

    #[test]
    fn drafts_below_the_minimum_are_dropped() {
        let options = SpeculationOptions { min: 3, always: true, ..SpeculationOptions::default() };
        let mut speculation = Speculation::new(Box::new(Counting(false)), options);
        assert_eq!(
            speculation.draft(vec![text(0, &[7], 2), text(1, &[1], 3)], 100),
            [Vec::<u32>::new(), vec![2, 3, 4]]
        );
    }

    #[test]
    fn failed_drafter_is_not_called_again() {
        let options = SpeculationOptions { always: true, ..SpeculationOptions::default() };
        let mut speculation = Speculation::new(Box::new(Counting(true)), options);
        assert_eq!(speculation.draft(vec![text(0, &[7], 2)], 100), [Vec::<u32>::new()]);
        assert!(speculation.failed);
        assert_eq!(speculation.draft(vec![text(0, &[7], 2)], 100), [Vec::<u32>::new()]);
    }

    #[test]
    fn drafts_and_accepted_tokens_are_counted() {
        let mut speculation = Speculation::new(Box::new(Counting(false)), SpeculationOptions::default());
        let before = speculation.tally();
        speculation.note_draft(0, 0, 0);
        speculation.note_draft(0, 4, 1);
        speculation.note_draft(3, 2, 2);
        let Tally { drafted, accepted, drafts, .. } = speculation.tally().since(&before);
        assert_eq!((drafted, accepted, drafts), (6, 3, 2));
    }
}
