//! Values of the attributes of ops.

use serde::{Deserialize, Serialize};

use crate::format::Format;

/// An attribute's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Attr {
    /// An integer.
    Int(i64),
    /// A 32-bit float, as in model files and kernels. IR text has the fewest digits that read back
    /// to the same bits.
    Float(f32),
    /// `true` or `false`.
    Bool(bool),
    /// One of the words that the op table lists for the attribute.
    Word(String),
    /// A block format.
    Format(Format),
}

impl Attr {
    /// Returns a float attribute, rounded to 32 bits.
    pub fn rounded(value: f64) -> Attr {
        Attr::Float(value as f32)
    }

    /// Returns the value of an integer attribute. The op table guarantees the attribute's type.
    pub fn int(&self) -> i64 {
        match self {
            Attr::Int(v) => *v,
            other => unreachable!("attribute {other:?} is no integer"),
        }
    }

    /// Returns the value of a float attribute. The op table guarantees the attribute's type.
    pub fn float(&self) -> f64 {
        match self {
            Attr::Float(v) => f64::from(*v),
            other => unreachable!("attribute {other:?} is no float"),
        }
    }

    /// Returns the value of a bool attribute. The op table guarantees the attribute's type.
    pub fn bool(&self) -> bool {
        match self {
            Attr::Bool(v) => *v,
            other => unreachable!("attribute {other:?} is no bool"),
        }
    }

    /// Returns the value of a word attribute. The op table guarantees the attribute's type.
    pub fn word(&self) -> &str {
        match self {
            Attr::Word(v) => v,
            other => unreachable!("attribute {other:?} is no word"),
        }
    }

    /// Returns the value of a format attribute. The op table guarantees the attribute's type.
    pub fn format(&self) -> Format {
        match self {
            Attr::Format(v) => *v,
            other => unreachable!("attribute {other:?} is no format"),
        }
    }
}
