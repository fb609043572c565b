//! Errors of grammars, and limits on their cost.

use ixc_failure::Class;
use serde::{Deserialize, Serialize};

/// Longest source, in bytes: schemas of whole interfaces have 100 kB.
pub const MAX_BYTES: usize = 256 << 10;
/// How deep brackets and rules may nest. Compilers of grammars recurse.
pub const MAX_DEPTH: usize = 256;
/// Deepest nesting of a schema's objects and lists. Readers of JSON stop at 127 levels; requests
/// have some of them around a schema.
pub const MAX_SCHEMA_DEPTH: usize = 120;
/// Longest form of a source that is compiled, in bytes: a GBNF grammar's is longer than the grammar.
pub(crate) const MAX_LARK_BYTES: usize = 4 * MAX_BYTES;
/// How deep all lines of that form together may nest, each one deep at least: rules that name rules recurse through all of them. The stack of a compiler
/// has 16 KiB for each.
pub(crate) const MAX_LARK_DEPTH: usize = 16 << 10;

/// Processor time that the compiler of a grammar may take.
pub const COMPILE_SECONDS: u64 = 10;

/// Returns the words that tell a tool's schema from others.
fn of_owner(owner: &str) -> String {
    if owner.is_empty() { String::new() } else { format!(" of the tool {owner:?}") }
}

impl GrammarError {
    /// Notes the tool whose schema is at fault.
    pub(crate) fn owned_by(mut self, name: &str) -> GrammarError {
        if let GrammarError::Schema { owner, .. } = &mut self {
            name.clone_into(owner);
        }
        self
    }
}

/// Why a grammar is not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum GrammarError {
    /// It is too long.
    #[error("the grammar or schema has {bytes} bytes; the limit is {MAX_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It nests too deep.
    #[error("the grammar nests brackets {depth} deep; the limit is {MAX_DEPTH}")]
    TooDeep {
        /// How deep.
        depth: usize,
    },
    /// It is short, and what it stands for is not.
    #[error("the grammar is too large once its rules are written out; use fewer or shorter rules")]
    TooLarge,
    /// It is no GBNF.
    #[error("line {line} of the grammar: {message}")]
    Gbnf {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A part of a JSON schema is malformed, allows nothing, or cannot be followed.
    #[error("the schema{} at {place}: {message}", of_owner(owner))]
    Schema {
        /// The tool whose arguments it describes; empty for an answer's schema.
        owner: String,
        /// The part, as a JSON pointer with a `#`.
        place: String,
        /// Fault and remedy.
        message: String,
    },
    /// No text has it.
    #[error("the grammar matches no text: every way through its rules leads back to itself without end")]
    Empty,
    /// It cannot be compiled.
    #[error("the grammar cannot be followed: {message}")]
    Compile {
        /// Why.
        message: String,
    },
    /// The program that compiles grammars failed. The grammar is not at fault.
    #[error("the program that compiles grammars failed: {message}")]
    Failed {
        /// Why.
        message: String,
    },
    /// The grammar takes too long to compile.
    #[error(
        "the grammar takes more than {COMPILE_SECONDS} seconds to compile; make it shorter, or give it fewer choices"
    )]
    CompileTime,
    /// The compiler needs more memory or stack than it may have.
    #[error("the grammar needs more {what} to compile than the limit allows; make it shorter, or nest it less")]
    CompileLimit {
        /// Memory or stack.
        what: String,
    },
    /// Too many abandoned compilers run.
    #[error("too many other grammars are still being compiled; try again later")]
    Busy,
    /// The client has left.
    #[error("the grammar is not wanted any more")]
    Unwanted,
    /// The begun answer does not match the grammar.
    #[error("the last message, which the answer continues, does not begin an answer that the grammar or schema allows")]
    Begun,
    /// Computing masks takes too long.
    #[error(
        "the grammar takes too long to follow: the limit is {seconds} seconds for each answer and {milliseconds} ms for each token besides; use a grammar with fewer ways to read the same text"
    )]
    MaskTime {
        /// CPU seconds for each answer.
        seconds: u64,
        /// CPU milliseconds added for each token.
        milliseconds: u64,
    },
    /// It cannot be followed further.
    #[error("the answer left the grammar: {message}")]
    Step {
        /// Why.
        message: String,
    },
    /// The vocabulary has no form that masks can be made for.
    #[error("grammars are not supported with this model's vocabulary: {message}")]
    Vocabulary {
        /// Why.
        message: String,
    },
}

impl GrammarError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            GrammarError::TooLong { .. }
            | GrammarError::TooDeep { .. }
            | GrammarError::TooLarge
            | GrammarError::Gbnf { .. }
            | GrammarError::Schema { .. }
            | GrammarError::Empty
            | GrammarError::Compile { .. }
            | GrammarError::CompileTime
            | GrammarError::CompileLimit { .. }
            | GrammarError::Busy
            | GrammarError::Unwanted
            | GrammarError::Begun
            | GrammarError::MaskTime { .. }
            | GrammarError::Step { .. }
            | GrammarError::Vocabulary { .. } => Class::Data,
            GrammarError::Failed { .. } => Class::Failed,
        }
    }
}
