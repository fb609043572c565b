//! The simulator: runs a descriptor on a machine, cycle by cycle and, if weights are given, byte by
//! byte.
//!
//! **Compute.** A PE runs one kernel at a time. A kernel takes the cycles that [`crate::cost`]
//! counts, after [`Pe::start_cycles`](crate::grid::Pe::start_cycles). Firings of a PE wait in the
//! order in which they became ready.
//!
//! **Messages** move as in [`crate::network`]. As [`crate::descriptor`] defines, they leave and
//! arrive in order, when all receivers have room. A sender knows at once when a receiver gets room.
//! The memory of a row in a sending slice is free when the row's message begins to leave.
//!
//! **The host** has one transfer rate for all input and output together, and a latency. It sends a
//! row as soon as the receivers have room.
//!
//! **Results.** With weights, each firing runs its kernel on the PE's own bytes, in the order in
//! which firings begin. Without weights, no values are computed, and experts are drawn at random.
//! Times depend on values only through the choice of experts.
//!
//! | module | what it owns |
//! | --- | --- |
//! | `pass` | one step: its state, and its result |
//! | `wave` | one wave: host input, events, and the check for unfinished work |
//! | `fire` | firings, and the conditions for them |
//! | `ids` | a token's experts |
//! | `receivers` | receivers of messages, and outlets that wait for them |
//! | `send` | messages: receivers, and time of leaving |
//! | `routing` | rows of a step, and their experts in a routing |
//! | `rows` | the rows that each instance fires for |
//! | `path` | the critical path |
//! | `stuck` | the chain of waits in a deadlock |
//!
//! Invariant: a firing never begins before all its inputs are there. Unfired rows and unsent
//! messages at the end of a wave are an error.

#[cfg(test)]
mod faults;
mod fire;
mod ids;
mod pass;
mod path;
mod receivers;
mod routing;
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

/// Max number of expert slots of all tokens of a step, summed over all routings.
const MAX_ROUTED: u64 = 1 << 26;

/// Reasons why a step was not simulated to its end.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The tokens are not a valid step.
    #[error("{problem}")]
    Tokens {
        /// Description of the problem with the tokens.
        problem: String,
    },
    /// A deadlock: there is work left, but no event.
    #[error("deadlock in wave {wave} at cycle {cycle}: {waiting} instances wait: {}", chain.join("; "))]
    Deadlock {
        /// Number of the wave that stopped.
        wave: u32,
        /// Cycle at which the wave stopped.
        cycle: u64,
        /// Number of instances that still have work.
        waiting: u64,
        /// Chain of waits: a circle, or a path to an instance whose input never comes.
        chain: Vec<String>,
        /// Whether the chain is a circle.
        cyclic: bool,
    },
    /// An instance received more bytes of a row than its slices have.
    #[error(
        "{program}: the instance of column {column}, expert {expert}, part {part} received {found} bytes of row {row}; its slices have {expected} bytes"
    )]
    SentTwice {
        /// Number and label of the program.
        program: String,
        /// Number of the column.
        column: u32,
        /// Number of the expert.
        expert: u32,
        /// Number of the part.
        part: u32,
        /// Row whose bytes the instance received.
        row: u32,
        /// Number of received bytes.
        found: u64,
        /// Expected bytes: the sum of the bytes of its slices.
        expected: u64,
    },
    /// A routing names an expert that does not exist.
    #[error("routing {routing} sends token {token} to expert {found}; the layer of this routing has {experts} experts")]
    Expert {
        /// Number of the routing.
        routing: u32,
        /// Index of the token in the step.
        token: u32,
        /// Number of the expert that does not exist.
        found: u32,
        /// Number of experts.
        experts: u32,
    },
    /// The host did not receive all logits.
    #[error("the host received {found} bytes of the logits of output {output}; expected {expected}")]
    Logits {
        /// Index of the requested output.
        output: usize,
        /// Number of received bytes.
        found: u64,
        /// Number of expected bytes.
        expected: u64,
    },
    /// The step takes too many cycles to count.
    #[error(
        "the step takes more than {} cycles, or one of its firings more than {}",
        pass::MAX_CYCLES,
        pass::MAX_FIRING
    )]
    TooLong,
    /// A dim has no value.
    #[error("dim {0}")]
    Dim(#[from] DimError),
    /// Bytes could not be computed.
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

/// Result of a step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Times of the step.
    pub report: Report,
    /// Logits of each requested row; empty without weights.
    pub logits: Vec<Vec<f32>>,
}

/// The state of a machine between steps, with the contents of its memories.
pub struct Simulator<'m> {
    machine: &'m Machine,
    data: Option<Data<'m>>,
    seed: u64,
    position: u32,
}

impl<'m> Simulator<'m> {
    /// Creates a simulator of times only. `seed` is for drawing experts at random.
    pub fn for_timing(machine: &'m Machine, seed: u64) -> Simulator<'m> {
        Simulator { machine, data: None, seed, position: 0 }
    }

    /// Creates a simulator of times and results.
    ///
    /// # Errors
    /// If the kernels cannot be compiled.
    pub fn with_weights(
        machine: &'m Machine,
        weights: &'m dyn WeightBytes,
        runner: Runner,
    ) -> Result<Simulator<'m>, SimulateError> {
        Ok(Simulator { machine, data: Some(Data::new(machine, weights, runner)?), seed: 0, position: 0 })
    }

    /// Returns the number of tokens before the next one.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Moves to a position, as if this number of tokens had been processed, to time a later step.
    /// With weights, the states must already contain all earlier positions.
    pub fn seek(&mut self, position: u32) {
        self.position = position;
    }

    /// Simulates a step: adds `tokens` to the sequence, and returns the logits of the tokens in
    /// `wanted`. `wanted` has ascending indices into `tokens`.
    ///
    /// # Errors
    /// See [`SimulateError`]; the sequence is then unchanged.
    pub fn step(&mut self, tokens: &[u32], wanted: &[u32]) -> Result<Step, SimulateError> {
        let d = &self.machine.descriptor;
        let tokens_error = |problem: String| Err(SimulateError::Tokens { problem });
        if tokens.is_empty() {
            return tokens_error("the step has no tokens; expected at least one".to_owned());
        }
        if tokens.len() as u64 + u64::from(self.position) > u64::from(d.context) {
            let problem = format!(
                "found {} tokens after the first {} tokens of the text; the context has {}",
                tokens.len(),
                self.position,
                d.context
            );
            return tokens_error(problem);
        }
        if let Some(token) = tokens.iter().find(|token| **token >= d.vocabulary) {
            return tokens_error(format!(
                "token id {token} does not exist; the vocabulary has {} tokens",
                d.vocabulary
            ));
        }
        let ascending = wanted.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || wanted.last().is_some_and(|last| *last as usize >= tokens.len()) {
            return tokens_error(format!(
                "the rows with requested logits are {wanted:?}; they must ascend and be below the number of tokens, {}",
                tokens.len()
            ));
        }
        let routed: u64 = d.routings.iter().map(|r| u64::from(r.top_k) * tokens.len() as u64).sum();
        if routed > MAX_ROUTED {
            let problem = format!(
                "found {} tokens, which use {routed} experts in all routings together; the limit is {MAX_ROUTED}",
                tokens.len()
            );
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

/// Whether rows of an axis belong to slots.
fn is_routed(axis: Axis) -> bool {
    match axis {
        Axis::Routed(_) => true,
        Axis::Tokens | Axis::Outputs => false,
    }
}
