//! A text in generation, as the engine's events describe it.
//!
//! Input: the events of one request, in their order. [`super::Session::generate`] and
//! [`super::TextStream`] read them here.

use std::ops::ControlFlow;

use ixc_runtime::progress::Activity;

use super::{Generation, OpTimes, Phase};
use crate::Error;
use crate::generator::{DraftCounts, End, Event, FinalState};
use crate::loaded_model::LoadedModel;
use crate::speculate::Tally;
use crate::timing::Meter;

/// A text in generation.
#[derive(Debug)]
pub(super) struct TextRun {
    /// Number of tokens of the prompt.
    prompt_tokens: usize,
    /// Number of tokens of the prompt whose states were cached.
    pub reused_tokens: usize,
    /// The text so far, and its times.
    pub generation: Generation,
    /// Whether tokens of the prompt are not computed yet.
    pub is_prompt: bool,
    /// Result of the request, once it has ended.
    pub ended: Option<Result<(End, FinalState), Error>>,
    /// Time since the phase began.
    meter: Meter,
}

impl TextRun {
    /// Begins a text now, with a prompt of `prompt_tokens` tokens.
    pub fn new(prompt_tokens: usize, model: &LoadedModel) -> TextRun {
        let generation = Generation {
            tokens: Vec::new(),
            end: End::Limit,
            shifts: 0,
            prefill: Phase::default(),
            decode: Phase::default(),
            speculation: Tally::default(),
            op_times: OpTimes::default(),
        };
        TextRun {
            prompt_tokens,
            reused_tokens: 0,
            generation,
            is_prompt: true,
            ended: None,
            meter: Meter::new(model.engine()),
        }
    }

    /// Adds an event, and shows the progress of the prompt. Calls `progress` with each
    /// [`Event::Computed`], [`Event::Token`] and [`Event::Text`], and returns its result.
    pub fn read(
        &mut self,
        model: &LoadedModel,
        event: Event,
        progress: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let generation = &mut self.generation;
        match event {
            Event::Begun { prompt, reused } => {
                model.progress.begin(Activity::Prompt, (prompt - reused) as u64);
                self.reused_tokens = reused;
            }
            Event::Computed { tokens, position } => {
                model.progress.add(tokens as u64);
                let phase = if self.is_prompt { &mut generation.prefill } else { &mut generation.decode };
                *phase = self.meter.phase(phase.tokens + tokens, model.engine());
                let flow = progress(&event);
                if position == self.prompt_tokens {
                    (self.meter, self.is_prompt) = (Meter::new(model.engine()), false);
                }
                return flow;
            }
            Event::Token { token, .. } => {
                generation.tokens.push(token);
                return progress(&event);
            }
            Event::Text(_) => return progress(&event),
            Event::Shifted => generation.shifts += 1,
            Event::Drafted(DraftCounts { accepted, .. }) => generation.decode.tokens += accepted,
            Event::Ended { end, state } => self.ended = Some(Ok((end, state))),
            Event::Failed(error) => self.ended = Some(Err(error)),
        }
        ControlFlow::Continue(())
    }
}
