//! The simulator: what a machine does with a descriptor, cycle by cycle, and, where weights are there, byte by byte.
//!
//! **Compute.** A PE runs one kernel at a time, for as many cycles as [`crate::cost`] counts and [`Pe::start_cycles`](crate::grid::Pe::start_cycles)
//! before. What is ready waits in the order in which it became ready.
//!
//! **Messages** go as [`crate::network`] says, and leave and come as [`crate::descriptor`] says: in order, when there is room for them
//! at all who receive them. That there is room, is known without delay; a sending slice's place is free when its message begins to leave.
//!
//! **The host** has one rate for all that goes in and out, and a latency. It sends as soon as there is room.
//!
//! **Results.** With weights each firing runs its kernel on the PE's own bytes, in the order in which firings begin; without, experts are drawn at
//! random and nothing else is computed. Time does not depend on values but by experts.
//!
//! | module | what it owns |
//! | --- | --- |
//! | `pass` | one step: its state, and what it gives in the end |
//! | `wave` | one wave: from what the host sends into it to what is left |
//! | `fire` | firings, and what they wait for |
//! | `ids` | a token's experts |
//! | `send` | messages: who wants them, when they leave |
//! | `rows` | rows: which instance fires for which |
//! | `dims` | the kernels' dims |
//! | `path` | the longest chain of what waited for what |
//! | `stuck` | who waits for whom where nothing goes on |
//!
//! Invariant: a firing begins when all it receives is there, never before; what has not fired or not left at the end of a wave is an error.

#[cfg(test)]
mod faults;
mod fire;
mod ids;
mod pass;
mod path;
mod rows;
mod send;
mod stuck;
#[cfg(test)]
pub(crate) mod tests;
mod wave;

use crate::descriptor::Axis;

use crate::check::Machine;
use crate::data::{Data, DataError, Runner, WeightBytes};
use crate::report::Report;
use ixc_failure::Class;
use ixc_ir::plan::DimError;
use pass::Pass;

/// Experts of all tokens of a step, of all routings, at most.
const MOST_ROUTED: u64 = 1 << 26;

/// Why a step was not simulated to its end.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// Tokens that make no step.
    #[error("{problem}")]
    Tokens {
        /// What is wrong with them.
        problem: String,
    },
    /// Nothing goes on, and there is work left.
    #[error("deadlock in wave {wave} at cycle {cycle}: {waiting} instances wait; {}", chain.join("; "))]
    Deadlock {
        /// The wave.
        wave: u32,
        /// When it came to a halt.
        cycle: u64,
        /// Instances that have work left.
        waiting: u64,
        /// Who waits for whom: round a circle, or up to who waits for what never comes.
        chain: Vec<String>,
        /// Whether it is a circle.
        cyclic: bool,
    },
    /// An instance that got more bytes of a row than its slices have.
    #[error(
        "{program}, column {column}, expert {expert}, part {part} received {found} bytes of row {row}; its slices have {expected}"
    )]
    SentTwice {
        /// The program.
        program: String,
        /// Column.
        column: u32,
        /// Expert.
        expert: u32,
        /// Part.
        part: u32,
        /// The firing.
        row: u32,
        /// Bytes that came.
        found: u64,
        /// Bytes of its slices.
        expected: u64,
    },
    /// A routing that names what is no expert.
    #[error("routing {routing} names expert {found} for token {token}; there are {experts}")]
    Expert {
        /// The routing.
        routing: u32,
        /// The token, counted in the step.
        token: u32,
        /// What it names.
        found: u32,
        /// How many experts there are.
        experts: u32,
    },
    /// Logits that did not all come to the host.
    #[error("the host received {found} bytes of the logits of output {output}; there are {expected}")]
    Logits {
        /// Which wanted output.
        output: usize,
        /// Bytes that came.
        found: u64,
        /// Bytes that there are.
        expected: u64,
    },
    /// A step that takes too long to be counted.
    #[error(
        "the step takes more than {} cycles, or one of its firings more than {}",
        pass::MOST_CYCLES,
        pass::MOST_FIRING
    )]
    TooLong,
    /// A dim without a value.
    #[error("dim {0}")]
    Dim(#[from] DimError),
    /// Bytes that cannot be computed.
    #[error(transparent)]
    Data(Box<DataError>),
}

impl SimulateError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            SimulateError::Data(error) => error.class(),
            SimulateError::Dim(error) => error.class(),
            SimulateError::Tokens { .. }
            | SimulateError::Deadlock { .. }
            | SimulateError::SentTwice { .. }
            | SimulateError::Expert { .. }
            | SimulateError::Logits { .. }
            | SimulateError::TooLong => Class::Data,
        }
    }
}

impl From<DataError> for SimulateError {
    fn from(error: DataError) -> SimulateError {
        SimulateError::Data(Box::new(error))
    }
}

/// What a step gave.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it took.
    pub report: Report,
    /// Logits of each wanted row; none without weights.
    pub logits: Vec<Vec<f32>>,
}

/// A machine, and what is in its memories between steps.
pub struct Simulator<'m> {
    machine: &'m Machine,
    data: Option<Data<'m>>,
    seed: u64,
    position: u32,
}

impl<'m> Simulator<'m> {
    /// Times only: experts are drawn with `seed`.
    pub fn timed(machine: &'m Machine, seed: u64) -> Simulator<'m> {
        Simulator { machine, data: None, seed, position: 0 }
    }

    /// Times and results.
    ///
    /// # Errors
    /// When the kernels cannot be compiled.
    pub fn with_weights(
        machine: &'m Machine,
        weights: &'m dyn WeightBytes,
        runner: Runner,
    ) -> Result<Simulator<'m>, SimulateError> {
        Ok(Simulator { machine, data: Some(Data::new(machine, weights, runner)?), seed: 0, position: 0 })
    }

    /// Tokens before the next one.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Goes to a position, as if so many tokens had been before: for times. With weights, what is in the states of positions before must have been
    /// computed.
    pub fn seek(&mut self, position: u32) {
        self.position = position;
    }

    /// Simulates a step: adds `tokens` to the sequence, and gives the logits of those (by their number in `tokens`, ascending) in `wanted`.
    ///
    /// # Errors
    /// See [`SimulateError`]; the sequence is then as it was.
    pub fn step(&mut self, tokens: &[u32], wanted: &[u32]) -> Result<Step, SimulateError> {
        let d = &self.machine.descriptor;
        let tokens_error = |problem: String| Err(SimulateError::Tokens { problem });
        if tokens.is_empty() {
            return tokens_error("a step has at least one token".to_owned());
        }
        if tokens.len() as u64 + u64::from(self.position) > u64::from(d.context) {
            let problem = format!("{} tokens behind {}; the context has {}", tokens.len(), self.position, d.context);
            return tokens_error(problem);
        }
        if let Some(token) = tokens.iter().find(|token| **token >= d.vocabulary) {
            return tokens_error(format!("token {token}; the vocabulary has {}", d.vocabulary));
        }
        let ascending = wanted.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || wanted.last().is_some_and(|last| *last as usize >= tokens.len()) {
            return tokens_error(format!("wanted rows {wanted:?} of {} tokens; they must ascend", tokens.len()));
        }
        let routed: u64 = d.routings.iter().map(|r| u64::from(r.top_k) * tokens.len() as u64).sum();
        if routed > MOST_ROUTED {
            let problem =
                format!("{} tokens with {routed} experts of all routings; {MOST_ROUTED} are the most", tokens.len());
            return tokens_error(problem);
        }
        let outcome = Pass::new(self.machine, self.data.as_mut(), self.seed, self.position, tokens, wanted).run();
        match outcome {
            Ok(step) => {
                self.position += tokens.len() as u32;
                Ok(step)
            }
            Err(error) => {
                if let Some(data) = &mut self.data {
                    data.clear();
                }
                Err(error)
            }
        }
    }
}

/// Whether rows of an axis are slots' rows.
fn is_routed(axis: Axis) -> bool {
    match axis {
        Axis::Routed(_) => true,
        Axis::Tokens | Axis::Outputs => false,
    }
}
