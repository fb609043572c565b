//! Decisions of passes. Each records the choice, the rejected alternatives and the reasons.
//!
//! A pass records a decision where it makes the choice
//! ([`Context::decide`](crate::pass::Context::decide)); the manager adds the name of the pass.
//! Without a [`Decisions`] in the context, no decision is computed or recorded. Recording changes
//! no plan.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ixc_passes::{decision::{Decision, Decisions}, pass::Context};
//! use ixc_targets::Target;
//!
//! let decisions = Arc::new(Decisions::default());
//! let context = Context { decisions: Some(Arc::clone(&decisions)), ..Context::new(Target::AVX2) };
//! let why = "5 rows are not a multiple of 16";
//! context.decide(|| Decision::new("weight", "w", "layout").chose("q4_k").over("q4_k_r16", why));
//! // Without a rejected candidate, there was no decision.
//! context.decide(|| Decision::new("weight", "blk.1.w", "layout").chose("f32"));
//! assert_eq!(decisions.take().len(), 1);
//! ```

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// A decision of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Decision {
    /// The pass that made the decision.
    pub pass: &'static str,
    /// Subject of the decision: an op's mnemonic, `weight`, `state` or `step`.
    pub op: String,
    /// Name of the op's weight or state; empty if it has neither.
    pub name: String,
    /// The subject of the choice in a word or two: `layout`, `item size`.
    pub question: &'static str,
    /// The chosen alternative.
    pub chosen: String,
    /// The reason for the choice, unless the reasons against the alternatives already explain it.
    pub why: Option<String>,
    /// The rejected alternatives.
    pub rejected: Vec<RejectedAlternative>,
}

/// A rejected alternative.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RejectedAlternative {
    /// Name of the rejected alternative, such as a format or an op.
    pub what: String,
    /// Reason against the alternative.
    pub why: String,
}

impl RejectedAlternative {
    /// Creates a rejected alternative with its reason.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> RejectedAlternative {
        RejectedAlternative { what: what.into(), why: why.into() }
    }
}

impl Decision {
    /// Creates a decision about an op and the name of a weight or state; the name may be empty.
    pub fn new(op: impl Into<String>, name: impl Into<String>, question: &'static str) -> Decision {
        let (op, name) = (op.into(), name.into());
        Decision { pass: "", op, name, question, chosen: String::new(), why: None, rejected: Vec::new() }
    }

    /// Sets the chosen alternative.
    #[must_use]
    pub fn chose(self, chosen: impl Into<String>) -> Decision {
        Decision { chosen: chosen.into(), ..self }
    }

    /// Sets the reason for the choice.
    #[must_use]
    pub fn since(self, why: impl Into<String>) -> Decision {
        Decision { why: Some(why.into()), ..self }
    }

    /// Adds a rejected alternative.
    #[must_use]
    pub fn over(mut self, what: impl Into<String>, why: impl Into<String>) -> Decision {
        self.rejected.push(RejectedAlternative::new(what, why));
        self
    }

    /// Adds several rejected alternatives.
    #[must_use]
    pub fn over_all(mut self, rejected: impl IntoIterator<Item = RejectedAlternative>) -> Decision {
        self.rejected.extend(rejected);
        self
    }
}

/// Decisions that passes recorded so far.
#[derive(Debug, Default)]
pub struct Decisions(Mutex<Record>);

/// Recorded decisions, and the name of the pass that makes the next ones.
#[derive(Debug, Default)]
struct Record {
    pass: &'static str,
    all: Vec<Decision>,
}

impl Decisions {
    /// Sets the pass to which later decisions are assigned.
    pub fn begin(&self, pass: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pass = pass;
    }

    /// Adds a decision, unless it has no rejected alternative.
    pub fn add(&self, decision: Decision) {
        if !decision.rejected.is_empty() {
            let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let pass = record.pass;
            record.all.push(Decision { pass, ..decision });
        }
    }

    /// Adds decisions of another record.
    pub fn extend(&self, decisions: Vec<Decision>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all.extend(decisions);
    }

    /// Returns all decisions so far in the order in which they were made, and clears the record.
    pub fn take(&self) -> Vec<Decision> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).all)
    }
}
