//! What passes decided where something else was possible, told to whoever compiles with [`Decisions`].
//!
//! A pass tells what it chose where it chooses, with what lost against it and why ([`Context::decide`](crate::pass::Context::decide)); the manager adds which pass
//! it was. Nothing is told, and nothing is made to be told, where nobody asks. What is told changes no plan.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ixc_passes::{decision::{Decision, Decisions}, pass::Context};
//! use ixc_targets::Target;
//!
//! let decisions = Arc::new(Decisions::default());
//! let context = Context { decisions: Some(Arc::clone(&decisions)), ..Context::new(Target::AVX2) };
//! context.decide(|| Decision::of("weight", "blk.0.w", "layout").chose("q4_k").over("q4_k_r16", "5 rows are no strips of 16"));
//! // What has no loser was no decision.
//! context.decide(|| Decision::of("weight", "blk.1.w", "layout").chose("f32"));
//! assert_eq!(decisions.take().len(), 1);
//! ```

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Decision {
    /// The pass that made it.
    pub pass: &'static str,
    /// What it is about: an op's word, `weight`, `state`, `step`.
    pub op: String,
    /// The name of its weight or state; empty where there is none.
    pub name: String,
    /// What was asked, in a word or two: `layout`, `rows of an item`.
    pub question: &'static str,
    /// What was chosen.
    pub chosen: String,
    /// What speaks for it, where what speaks against the others does not say so.
    pub why: Option<String>,
    /// What lost.
    pub rejected: Vec<Rejected>,
}

/// What was not chosen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Rejected {
    /// What it is.
    pub what: String,
    /// Why it lost.
    pub why: String,
}

impl Rejected {
    /// What, and why.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Rejected {
        Rejected { what: what.into(), why: why.into() }
    }
}

impl Decision {
    /// Of an op and the name of a weight or state, which may be empty.
    pub fn of(op: impl Into<String>, name: impl Into<String>, question: &'static str) -> Decision {
        let (op, name) = (op.into(), name.into());
        Decision { pass: "", op, name, question, chosen: String::new(), why: None, rejected: Vec::new() }
    }

    /// With what was chosen.
    #[must_use]
    pub fn chose(self, chosen: impl Into<String>) -> Decision {
        Decision { chosen: chosen.into(), ..self }
    }

    /// With what speaks for it.
    #[must_use]
    pub fn since(self, why: impl Into<String>) -> Decision {
        Decision { why: Some(why.into()), ..self }
    }

    /// With something that lost.
    #[must_use]
    pub fn over(mut self, what: impl Into<String>, why: impl Into<String>) -> Decision {
        self.rejected.push(Rejected::new(what, why));
        self
    }

    /// With several that lost.
    #[must_use]
    pub fn over_all(mut self, rejected: impl IntoIterator<Item = Rejected>) -> Decision {
        self.rejected.extend(rejected);
        self
    }
}

/// Decisions as they are made.
#[derive(Debug, Default)]
pub struct Decisions(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    pass: &'static str,
    all: Vec<Decision>,
}

impl Decisions {
    /// Those that come next are of this pass.
    pub fn begin(&self, pass: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pass = pass;
    }

    /// Adds one, unless nothing lost.
    pub fn add(&self, decision: Decision) {
        if !decision.rejected.is_empty() {
            let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let pass = told.pass;
            told.all.push(Decision { pass, ..decision });
        }
    }

    /// All so far, in the order in which they were made; none is left.
    pub fn take(&self) -> Vec<Decision> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).all)
    }
}
