//! Errors of grammars, and limits on their cost.

use ixc_failure::Class;
use serde::{Deserialize, Serialize};

/// Max bytes of a source. For comparison, schemas of whole interfaces have 100 kB.
pub const MAX_BYTES: usize = 256 << 10;
/// Max nesting of brackets and rules, because compilers of grammars recurse.
pub const MAX_DEPTH: usize = 256;
/// Max nesting of a schema's objects and lists. JSON readers stop at 127 levels, and requests put
/// some of these levels around a schema.
pub const MAX_SCHEMA_DEPTH: usize = 120;
/// Max bytes of a source in Lark. The limit is higher because a GBNF grammar becomes longer in
/// Lark.
pub(crate) const MAX_LARK_BYTES: usize = 4 * MAX_BYTES;
/// Max sum of the nesting depths of all lines of the generated Lark, where each line counts at
/// least one. If rules name each other, recursion can pass through all lines. The compiler's stack
/// has 16 KiB for each level.
pub(crate) const MAX_LARK_DEPTH: usize = 16 << 10;

/// Limit on the CPU seconds that the compilation of a grammar may take.
pub const COMPILE_SECONDS: u64 = 10;

/// Returns the part of a message that names the tool of a schema.
fn owner_phrase(owner: &str) -> String {
    if owner.is_empty() { String::new() } else { format!(" of the tool {owner:?}") }
}

impl GrammarError {
    /// Records the tool whose schema has the error, and returns the error.
    pub(crate) fn owned_by(mut self, name: &str) -> GrammarError {
        if let GrammarError::Schema { owner, .. } = &mut self {
            name.clone_into(owner);
        }
        self
    }
}

/// Reason why a grammar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum GrammarError {
    /// The grammar is too long.
    #[error(
        "the grammar or schema has {bytes} bytes; the limit is {MAX_BYTES} (write repeated parts once, as rules or $defs)"
    )]
    TooLong {
        /// Length of the grammar in bytes.
        bytes: usize,
    },
    /// The grammar is nested too deeply.
    #[error("the grammar nests brackets {depth} deep; the limit is {MAX_DEPTH} (move inner parts to rules)")]
    TooDeep {
        /// Nesting depth of the grammar.
        depth: usize,
    },
    /// The grammar is short, but it becomes too long when its rules are written out.
    #[error("the grammar is too large once its rules are written out; use fewer or shorter rules")]
    TooLarge,
    /// The text is not valid GBNF.
    #[error("line {line} of the grammar: {message}")]
    Gbnf {
        /// Number of the line with the error, counted from 1.
        line: usize,
        /// Description of the problem.
        message: String,
    },
    /// A part of a JSON schema is malformed, allows no value, or cannot be enforced.
    #[error("the schema{} at {place}: {message}", owner_phrase(owner))]
    Schema {
        /// Name of the tool whose arguments the schema describes. It is empty for an answer's
        /// schema.
        owner: String,
        /// Position of the part, as a JSON pointer that begins with `#`.
        place: String,
        /// Description of the problem and its remedy.
        message: String,
    },
    /// The grammar matches no text.
    #[error(
        "the grammar matches no text: its rules refer to each other without end; give one of them an alternative that ends"
    )]
    Empty,
    /// The grammar cannot be compiled.
    #[error("cannot compile the grammar: {message}")]
    Compile {
        /// Reason as a text.
        message: String,
    },
    /// The program that compiles grammars failed, for a reason other than the grammar.
    #[error("the program that compiles grammars failed: {message}")]
    HelperFailed {
        /// Reason as a text.
        message: String,
    },
    /// The grammar takes too long to compile.
    #[error(
        "the grammar takes more than {COMPILE_SECONDS} seconds to compile; make it shorter, or give it fewer choices"
    )]
    CompileTime,
    /// The compiler needs more memory or stack than its limit.
    #[error("the grammar needs more {what} to compile than the limit allows; make it shorter, or nest it less")]
    CompileLimit {
        /// Name of the exceeded resource: memory or stack.
        what: String,
    },
    /// Too many abandoned compilers are running.
    #[error("too many other grammars are still being compiled; try again later")]
    Busy,
    /// The client has left.
    #[error("the client no longer waits for the grammar")]
    ClientGone,
    /// The tokens that the answer already has do not match the grammar.
    #[error(
        "the last message does not match the grammar or schema, so the answer cannot continue it; remove the message or change the grammar"
    )]
    PrefixMismatch,
    /// Computing masks takes too long.
    #[error(
        "the grammar takes too long: the limit for an answer is {seconds} seconds plus {milliseconds} ms for each token; use a grammar with fewer ways to match the same text"
    )]
    MaskTime {
        /// CPU seconds that each answer may take.
        seconds: u64,
        /// CPU milliseconds that each token adds to the limit.
        milliseconds: u64,
    },
    /// The answer no longer matches the grammar.
    #[error("the answer no longer matches the grammar: {message}")]
    AnswerMismatch {
        /// Reason as a text.
        message: String,
    },
    /// Masks cannot be computed for the vocabulary.
    #[error("grammars are not supported with this model's vocabulary: {message}")]
    Vocabulary {
        /// Reason as a text.
        message: String,
    },
}

impl GrammarError {
    /// Returns the class of the error, which determines the exit code.
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
            | GrammarError::ClientGone
            | GrammarError::PrefixMismatch
            | GrammarError::MaskTime { .. }
            | GrammarError::AnswerMismatch { .. }
            | GrammarError::Vocabulary { .. } => Class::Data,
            GrammarError::HelperFailed { .. } => Class::Failed,
        }
    }
}
