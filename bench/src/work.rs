//! Quantities that can be measured ([`Work`]), such as prefill of 512 tokens.
//!
//! One process measures all quantities of a [`Job`]. A process's peak memory is that of its job's
//! [`Group`].

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// Prefill of this number of tokens, from an empty context.
    Prefill {
        /// Number of tokens.
        tokens: usize,
    },
    /// Decode of this number of tokens, after `depth` tokens.
    Decode {
        /// Number of tokens.
        tokens: usize,
        /// Number of tokens in the KV cache before the test.
        depth: usize,
    },
    /// Time from starting the program to its end after one token.
    FirstToken,
    /// One layer of experts, for this number of tokens at once.
    Layer {
        /// Number of tokens.
        tokens: usize,
    },
    /// The most resident memory of a process that did a group of works.
    Memory {
        /// The group of works.
        group: Group,
    },
}

/// A group of works that one process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Prompts of all lengths.
    Prefill,
    /// Decode from an empty context.
    Decode,
    /// Decode at a depth.
    Depth(usize),
    /// The first token after the start of a program.
    FirstToken,
    /// Layers of experts.
    Layer,
}

/// The unit of a work's measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Tokens per second: more is better.
    #[serde(rename = "tokens/s")]
    TokensPerSecond,
    /// Seconds: less is better.
    #[serde(rename = "s")]
    Seconds,
    /// Bytes: less is better.
    #[serde(rename = "bytes")]
    Bytes,
}

impl Unit {
    /// Returns the advantage of `ours` over `theirs`: 2 means twice as good.
    pub fn ratio(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Unit::TokensPerSecond => ours / theirs,
            Unit::Seconds | Unit::Bytes => theirs / ours,
        }
    }

    /// Formats a number of this unit, without the unit's name.
    pub fn text(self, value: f64) -> String {
        match self {
            Unit::TokensPerSecond if value < 100.0 => format!("{value:.2}"),
            Unit::TokensPerSecond => format!("{value:.1}"),
            Unit::Seconds => format!("{:.3}", value * 1e3),
            Unit::Bytes => format!("{:.0}", value / f64::from(1 << 20)),
        }
    }

    /// Returns the unit's name, for numbers in the form of [`Unit::text`].
    pub fn name(self) -> &'static str {
        match self {
            Unit::TokensPerSecond => "t/s",
            Unit::Seconds => "ms",
            Unit::Bytes => "MiB",
        }
    }
}

impl Work {
    /// Returns the unit of the work's measurements.
    pub fn unit(self) -> Unit {
        match self {
            Work::Prefill { .. } | Work::Decode { .. } => Unit::TokensPerSecond,
            Work::FirstToken | Work::Layer { .. } => Unit::Seconds,
            Work::Memory { .. } => Unit::Bytes,
        }
    }
}

impl Work {
    /// Returns the tokens of a test; `None` for other works.
    pub fn tokens(self) -> Option<usize> {
        match self {
            Work::Prefill { tokens } | Work::Decode { tokens, .. } | Work::Layer { tokens } => Some(tokens),
            Work::FirstToken | Work::Memory { .. } => None,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Prefill { tokens } => write!(f, "prefill {tokens}"),
            Work::Decode { tokens, depth: 0 } => write!(f, "decode {tokens}"),
            Work::Decode { tokens, depth } => write!(f, "decode {tokens} at {depth}"),
            Work::FirstToken => f.write_str("start to first token"),
            Work::Layer { tokens } => write!(f, "MoE layer, {tokens} tokens"),
            Work::Memory { group } => match group {
                Group::Prefill => f.write_str("peak memory, prefill"),
                Group::Decode => f.write_str("peak memory, decode"),
                Group::Depth(depth) => write!(f, "peak memory, decode at {depth}"),
                Group::FirstToken => f.write_str("peak memory, one token"),
                Group::Layer => f.write_str("peak memory, layer"),
            },
        }
    }
}

/// The task of one process.
#[derive(Clone, Debug)]
pub struct Job {
    /// Group to which the works belong.
    pub group: Group,
    /// Works that the process measures.
    pub works: Vec<Work>,
    /// The model, or the file of the layer.
    pub model: PathBuf,
    /// Threads to compute with.
    pub threads: usize,
    /// Number of times that the process measures each work, after a warm-up run.
    pub repetitions: usize,
    /// The prompt of [`Work::FirstToken`].
    pub prompt: String,
}

impl Job {
    /// Returns the tokens of all prefills, with commas.
    pub fn prefills(&self) -> String {
        list(self.works.iter().filter_map(|work| match work {
            Work::Prefill { tokens } => Some(*tokens),
            _ => None,
        }))
    }

    /// Returns the tokens of all decodes, with commas.
    pub fn decodes(&self) -> String {
        list(self.works.iter().filter_map(|work| match work {
            Work::Decode { tokens, .. } => Some(*tokens),
            _ => None,
        }))
    }

    /// Returns the number of tokens in the KV cache before the test.
    pub fn depth(&self) -> usize {
        match self.group {
            Group::Depth(depth) => depth,
            Group::Prefill | Group::Decode | Group::FirstToken | Group::Layer => 0,
        }
    }
}

/// Joins numbers with commas. Returns `0` for no numbers, since all benchmarks understand that.
fn list(numbers: impl Iterator<Item = usize>) -> String {
    let texts: Vec<String> = numbers.map(|number| number.to_string()).collect();
    if texts.is_empty() { "0".into() } else { texts.join(",") }
}
