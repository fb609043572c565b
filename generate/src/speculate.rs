//! Speculation: what may follow is guessed, computed in the same step as the last token, and kept as far as it is what is drawn then.
//!
//! ```text
//! text            the cat sat on the
//! guessed         mat | and | then                  by a drafter
//! one step        the, mat, and, then: 4 rows       weights are read once
//! drawn           mat | and | it                    from each row's logits, with the sampler that there is anyway
//! text            the cat sat on the mat and it     3 tokens of one step; the row of `then` is cut off
//! ```
//!
//! | file | what it owns |
//! | --- | --- |
//! | `ngram` | guesses from the text itself |
//! | `payoff` | whether and how far to guess, by what steps and guesses were measured to do |
//!
//! A guess of a small model is [`DraftModel`](crate::draft_model::DraftModel), one of the model's own layer [`OwnLayer`](crate::own_layer::OwnLayer). To add a drafter: a file with a type that is a [`Drafter`], and its name
//! where the command line reads `--spec`.
//!
//! Invariant: a text has the tokens that it has without speculation. Each token is drawn from the logits of its own row, in order, and no
//! draw is made behind one that was guessed wrong, so that samplers and grammars are where they would be. Rows have the bits that they have in steps
//! of their own, as [`Addition`](ixc_runtime::engine::Addition)s.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::Error;

mod ngram;
mod payoff;

pub use ngram::{Ngram, NgramOptions};
use payoff::Payoff;

/// Most rows of a step that has guesses: about from there on a step takes as long as its rows do, whoever they are of.
pub const MAX_ROWS: usize = 32;
/// Most tokens that are guessed behind a text for one step: all rows but that of its last token.
pub const MAX_DRAFT: usize = MAX_ROWS - 1;

/// A text that a drafter guesses about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text<'t> {
    /// Where the text before was that this one goes on from: a drafter may keep something for each. Below what the drafter was made for.
    pub slot: usize,
    /// Its tokens, one at least.
    pub tokens: &'t [u32],
    /// Most tokens to guess.
    pub most: usize,
    /// The guess: what follows the tokens. Empty before, and where nothing is guessed.
    pub draft: Vec<u32>,
}

/// What a step has computed of a text, for what guesses from hidden states.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'t> {
    /// The text's slot: see [`Text::slot`].
    pub slot: usize,
    /// Its tokens that the model had read before.
    pub before: &'t [u32],
    /// Those that it has read in the step: the text's own, and what was guessed to follow them.
    pub added: [&'t [u32]; 2],
    /// The hidden states of these, one behind the other.
    pub hidden: &'t [f32],
}

/// What guesses.
pub trait Drafter: Debug + Send {
    /// What it is called, for people.
    fn name(&self) -> &'static str;

    /// Guesses for each of these texts; no two have the same slot. Gives how long guessing took, without what was read for later guesses.
    ///
    /// # Errors
    /// When a model of its own fails. Nothing is guessed then.
    fn draft(&mut self, texts: &mut [Text<'_>]) -> Result<Duration, Error>;

    /// Whether it guesses from hidden states of the model, and is to be shown what each step computes.
    fn sees(&self) -> bool {
        false
    }

    /// Is shown what a step has computed, before anything of that is cut off again; no two texts have the same slot.
    ///
    /// # Errors
    /// As for [`Drafter::draft`].
    fn see(&mut self, _texts: &[Seen<'_>]) -> Result<(), Error> {
        Ok(())
    }
}

/// When to guess, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most tokens that are guessed for one step, at most [`MAX_DRAFT`].
    pub max: usize,
    /// Guesses of fewer tokens are not tried.
    pub min: usize,
    /// Guess as far as one can, whether it is measured to pay or not.
    pub always: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { max: 8, min: 1, always: false }
    }
}

/// What came of guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tokens that were guessed and computed.
    pub drafted: u64,
    /// Those of them that were drawn, too.
    pub accepted: u64,
    /// Guesses: how often a text had some computed.
    pub drafts: u64,
    /// Time that guessing took, apart from computing the guesses.
    pub drafting: Duration,
    /// How often a text had no guess because it was measured not to pay.
    pub declined: u64,
}

impl Tally {
    /// What has come since.
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

/// A drafter, and what it was measured to do.
#[derive(Debug)]
pub struct Speculation {
    drafter: Box<dyn Drafter>,
    options: Options,
    payoff: Payoff,
    tally: Tally,
    /// It failed, and is not asked again.
    failed: bool,
}

impl Speculation {
    /// With nothing measured.
    pub fn new(drafter: Box<dyn Drafter>, options: Options) -> Speculation {
        let max = options.max.min(MAX_DRAFT);
        let options = Options { max, min: options.min.clamp(1, max.max(1)), ..options };
        Speculation { drafter, options, payoff: Payoff::default(), tally: Tally::default(), failed: false }
    }

    /// What guesses.
    pub fn name(&self) -> &'static str {
        self.drafter.name()
    }

    /// Most tokens that are guessed for one step.
    pub fn max(&self) -> usize {
        self.options.max
    }

    /// What came of it so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Another text begins in a slot: how guesses about the last one did says little of this one's.
    pub fn begin(&mut self, slot: usize) {
        self.payoff.begin(slot);
    }

    /// Guesses what follows texts of which a step has the last token each: for each at most as many tokens as `most` says, and all together at most `room`.
    pub fn draft(&mut self, mut texts: Vec<Text<'_>>, room: usize) -> Vec<Vec<u32>> {
        let rows = texts.len();
        let Options { max, min, always } = self.options;
        let room = room.min(MAX_ROWS.saturating_sub(rows));
        if self.failed || room == 0 {
            return vec![Vec::new(); rows];
        }
        let wanted: Vec<(usize, usize)> = texts.iter().map(|text| (text.slot, text.most.min(max))).collect();
        let counts = self.payoff.counts(&wanted, room, always);
        for (text, count) in texts.iter_mut().zip(&counts) {
            text.most = *count;
        }
        self.tally.declined +=
            wanted.iter().zip(&counts).filter(|((_, most), count)| *most >= min && **count < min).count() as u64;
        let mut asked: Vec<Text<'_>> = texts.iter().filter(|text| text.most >= min).cloned().collect();
        if asked.is_empty() {
            return vec![Vec::new(); rows];
        }
        let begin = Instant::now();
        let result = self.drafter.draft(&mut asked);
        self.tally.drafting += begin.elapsed();
        match result {
            Ok(guessing) => {
                let deepest = asked.iter().map(|text| text.draft.len()).max().unwrap_or(0);
                self.payoff.drafted(deepest, guessing.as_secs_f64());
            }
            Err(error) => {
                self.fail(&error);
                return vec![Vec::new(); rows];
            }
        }
        for text in asked {
            let Text { slot, most, mut draft, .. } = text;
            draft.truncate(most);
            if draft.len() < min {
                draft.clear();
            }
            if let Some(text) = texts.iter_mut().find(|text| text.slot == slot) {
                text.draft = draft;
            }
        }
        texts.into_iter().map(|text| text.draft).collect()
    }

    /// It has failed. Texts do not need it.
    fn fail(&mut self, error: &Error) {
        tracing::warn!(%error, "guessing with {} has failed, and is off from now on", self.drafter.name());
        self.failed = true;
    }

    /// Whether what guesses is to be shown what steps compute: [`Drafter::sees`].
    pub fn sees(&self) -> bool {
        !self.failed && self.drafter.sees()
    }

    /// Shows what guesses what a step has computed.
    pub fn see(&mut self, texts: &[Seen<'_>]) {
        let begin = Instant::now();
        if let Err(error) = self.drafter.see(texts) {
            self.fail(&error);
        }
        self.tally.drafting += begin.elapsed();
    }

    /// A step of one token and its guesses each for so many texts had so many rows, and took so long.
    pub fn note_step(&mut self, texts: usize, rows: usize, took: Duration) {
        self.payoff.took(texts, rows, took.as_secs_f64());
    }

    /// Of a guess in a slot so many tokens were computed, and so many of these drawn, too.
    pub fn note_draft(&mut self, slot: usize, drafted: usize, accepted: usize) {
        if drafted == 0 {
            return self.payoff.plain(slot);
        }
        self.payoff.verified(slot, drafted, accepted);
        self.tally.drafts += 1;
        self.tally.drafted += drafted as u64;
        self.tally.accepted += accepted as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guesses that counting goes on.
    #[derive(Debug)]
    struct Counting(bool);

    impl Drafter for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }

        fn draft(&mut self, texts: &mut [Text<'_>]) -> Result<Duration, Error> {
            for text in texts {
                let last = text.tokens.last().copied().unwrap_or(0);
                text.draft.extend(last + 1..=last + text.most as u32);
            }
            if self.0 { Err(ixc_compile::Error::NoTokens.into()) } else { Ok(Duration::ZERO) }
        }
    }

    fn text(slot: usize, tokens: &[u32], most: usize) -> Text<'_> {
        Text { slot, tokens, most, draft: Vec::new() }
    }

    #[test]
    fn guesses_keep_to_what_there_is_room_for() {
        let options = Options { max: 4, always: true, ..Options::default() };
        let mut speculation = Speculation::new(Box::new(Counting(false)), options);
        assert_eq!(speculation.draft(vec![text(0, &[7], 9)], 100), [vec![8, 9, 10, 11]]);
        assert_eq!(speculation.draft(vec![text(0, &[7], 2), text(1, &[1], 9)], 100), [vec![8, 9], vec![2, 3, 4, 5]]);
        // Room goes round.
        assert_eq!(speculation.draft(vec![text(0, &[7], 9), text(1, &[1], 9)], 3), [vec![8, 9], vec![2]]);
        assert_eq!(speculation.draft(vec![text(0, &[7], 0)], 100), [Vec::<u32>::new()]);
        assert_eq!(speculation.draft(vec![text(0, &[7], 9)], 0), [Vec::<u32>::new()]);
        let many: Vec<Text<'_>> = (0..MAX_ROWS).map(|slot| text(slot, &[7], 9)).collect();
        assert!(speculation.draft(many, 100).iter().all(Vec::is_empty), "the step is full");
    }

    #[test]
    fn guesses_that_are_too_short_are_not_tried() {
        let options = Options { min: 3, always: true, ..Options::default() };
        let mut speculation = Speculation::new(Box::new(Counting(false)), options);
        assert_eq!(
            speculation.draft(vec![text(0, &[7], 2), text(1, &[1], 3)], 100),
            [Vec::<u32>::new(), vec![2, 3, 4]]
        );
    }

    #[test]
    fn what_fails_is_not_asked_again() {
        let options = Options { always: true, ..Options::default() };
        let mut speculation = Speculation::new(Box::new(Counting(true)), options);
        assert_eq!(speculation.draft(vec![text(0, &[7], 2)], 100), [Vec::<u32>::new()]);
        assert!(speculation.failed);
        assert_eq!(speculation.draft(vec![text(0, &[7], 2)], 100), [Vec::<u32>::new()]);
    }

    #[test]
    fn guesses_are_counted() {
        let mut speculation = Speculation::new(Box::new(Counting(false)), Options::default());
        let before = speculation.tally();
        speculation.note_draft(0, 0, 0);
        speculation.note_draft(0, 4, 1);
        speculation.note_draft(3, 2, 2);
        let Tally { drafted, accepted, drafts, .. } = speculation.tally().since(&before);
        assert_eq!((drafted, accepted, drafts), (6, 3, 2));
    }
}
