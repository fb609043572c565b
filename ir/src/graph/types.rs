//! The type rule of every op. A rule turns operands and attributes into the types of the results,
//! or into an error with the reason. [`result_types`] selects the rule; each family of ops has a
//! file of rules.
//!
//! The builder, the verifier and the parser all call [`result_types`], so they always agree.
//! Symbolic dimensions with the same name are equal.
//!
//! ```text
//! %8 = matmul %7, @w : f32[L, 4096]     // %7 : f32[L, 256], %w : f32[4096, 256]
//! ```
//!
//! Input: any op. Ids of values may be out of range, and attributes may have any kind and value.
//! This module rejects hostile ones.
//!
//! Result: an op that passes can be read with [`super::Op::attr`], [`super::Op::operand`] and
//! [`super::attrs`]. Its divisions have no remainder, and every product of dimensions in its
//! results fits `u64`.

mod attention;
mod elementwise;
mod experts;
mod loading;
mod norms;
mod positions;
mod products;
mod ranks;
mod recurrent;
mod results;
mod routes;
mod rows;
pub(super) mod rule;
mod state;
mod streams;
mod weight;

use super::{Dim, Element, Group, State, TokenOwner, Type};
use crate::format::Format;
use crate::state::StateKind;
pub use results::result_types;
pub use state::check_state;
pub use weight::check_weight;

/// Reason why an op has no type.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TypeError {
    /// Too many operands, or too few.
    #[error("{op} takes {expected} operands, not {found}")]
    OperandCount {
        /// Mnemonic of the op.
        op: &'static str,
        /// Number in the op table.
        expected: usize,
        /// Number of operands that the op has.
        found: usize,
    },
    /// Too many attributes, or too few.
    #[error("{op} takes {expected} attributes, not {found}")]
    AttrCount {
        /// Mnemonic of the op.
        op: &'static str,
        /// Number in the op table.
        expected: usize,
        /// Number of attributes that the op has.
        found: usize,
    },
    /// An operand that the type rule rejects.
    #[error("{op}: operand {operand} is {found}; it must be {expected}")]
    Operand {
        /// Mnemonic of the op.
        op: &'static str,
        /// Name in the op table.
        operand: &'static str,
        /// Actual operand.
        found: String,
        /// Expected operand.
        expected: String,
    },
    /// An attribute that the type rule rejects.
    #[error("{op}: attribute {attr} is {found}; it must be {expected}")]
    Attr {
        /// Mnemonic of the op.
        op: &'static str,
        /// Name of the attribute.
        attr: &'static str,
        /// Actual attribute.
        found: String,
        /// Expected attribute.
        expected: String,
    },
    /// A weight with a shape that cannot be stored.
    #[error("weight @{name}: {format}{shape:?} {problem}")]
    Weight {
        /// Name of the weight.
        name: String,
        /// Format of the weight.
        format: Format,
        /// Shape of the weight.
        shape: Vec<u64>,
        /// The problem, and the expectation.
        problem: String,
    },
    /// A second weight of the same name.
    #[error("there is a weight @{name} already; names must be unique")]
    DuplicateWeight {
        /// Name that both weights have.
        name: String,
    },
    /// A state that does not fit its kind.
    #[error("state @{name} {problem}")]
    State {
        /// Name of the state.
        name: String,
        /// The problem, and the expectation.
        problem: String,
    },
    /// A second state of the same name.
    #[error("there is a state @{name} already; names must be unique")]
    DuplicateState {
        /// Name that both states have.
        name: String,
    },
    /// A type that no value may have.
    #[error("{ty} {problem}")]
    Type {
        /// Text of the type.
        ty: String,
        /// The problem, and the expectation.
        problem: String,
    },
}

/// Heads and sizes of a `paged` state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Key heads.
    pub heads: u64,
    /// Elements of a key.
    pub key: u64,
    /// Elements of a value.
    pub value: u64,
}

impl CacheShape {
    /// Returns the shape of a state, or `None` for a state of another kind.
    pub fn from_state(state: &State) -> Option<CacheShape> {
        if state.kind != StateKind::Paged {
            return None;
        }
        let number = |field: &str, dim: usize| {
            state.fields.get(state.kind.field(field) as usize).and_then(|field| field.dims.get(dim)?.fixed())
        };
        Some(CacheShape { heads: number("keys", 0)?, key: number("keys", 2)?, value: number("values", 2)? })
    }
}

/// Checks that a value may have this type: `i32`, `f32` or an activation format in whole blocks, no
/// dimension of 0, and valid symbols. A token of a group must have one of its ranks.
///
/// # Errors
/// [`TypeError::Type`].
pub fn check_type(ty: &Type) -> Result<(), TypeError> {
    let error = |problem: String| TypeError::Type { ty: ty.to_string(), problem };
    if let Type::Token(TokenOwner::Ranks(group)) = ty
        && !group.is_valid()
    {
        return Err(error(format!(
            "must have a rank below the number of ranks, which is at most {}",
            Group::MAX_RANKS
        )));
    }
    let Type::Tensor { element, dims } = ty else { return Ok(()) };
    // The limit bounds the memory for copies of a long type from the text.
    if dims.len() > 4 {
        return Err(TypeError::Type {
            ty: format!("a tensor of {} dimensions", dims.len()),
            problem: "has more than four".to_string(),
        });
    }
    for dim in dims {
        match dim {
            Dim::Fixed(0) => return Err(error("has a dimension of 0; each must be at least 1".to_string())),
            Dim::Symbol(name) if !is_symbol(name) => {
                let name: String = name.chars().take(32).collect();
                return Err(TypeError::Type {
                    ty: format!("the symbol {name:?}"),
                    problem: "is malformed: expected a letter, then letters, digits and _, at most 32".to_string(),
                });
            }
            Dim::Fixed(_) | Dim::Symbol(_) => {}
        }
    }
    let fixed = dims.iter().filter_map(Dim::fixed).try_fold(1u64, |n, dim| n.checked_mul(dim));
    if fixed.is_none_or(|n| i64::try_from(n).is_err()) {
        return Err(error("has more elements than fit 63 bits".to_string()));
    }
    let Element::Format(format) = element else { return Ok(()) };
    if format.activation() != *format {
        return Err(error("is a weight's format; a value is i32, f32, a8_super or a8_small".to_string()));
    }
    let block = format.block_len() as u64;
    if block > 1 && !dims.last().and_then(Dim::fixed).is_some_and(|n| n.is_multiple_of(block)) {
        return Err(error(format!("must have a last dimension that is a multiple of {block}")));
    }
    Ok(())
}

/// Whether text is a valid symbol: a letter, then letters, digits and `_`, at most 32 characters.
pub fn is_symbol(name: &str) -> bool {
    name.len() <= 32
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl std::fmt::Display for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Symbol(name) => f.write_str(name),
        }
    }
}

impl std::fmt::Display for Type {
    /// Writes states by number. [`Type::text`] writes their names.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Type::Token(TokenOwner::Experts) => f.write_str("token"),
            Type::Token(TokenOwner::State(state)) => write!(f, "token<state {}>", state.0),
            Type::Token(TokenOwner::Ranks(Group { rank, ranks })) => write!(f, "token[{rank}, {ranks}]"),
            Type::Tensor { element: Element::I32, dims } => write_dims(f, "i32", dims),
            Type::Tensor { element: Element::Format(format), dims } => write_dims(f, format.row().name, dims),
        }
    }
}

impl std::fmt::Display for super::Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_dims(f, self.format.row().name, &self.dims)
    }
}

fn write_dims(f: &mut std::fmt::Formatter<'_>, element: &str, dims: &[Dim]) -> std::fmt::Result {
    write!(f, "{element}[")?;
    for (i, dim) in dims.iter().enumerate() {
        write!(f, "{}{dim}", if i == 0 { "" } else { ", " })?;
    }
    f.write_str("]")
}

/// Returns the types of an op with one result.
fn one(ty: Type) -> Result<Vec<Type>, TypeError> {
    Ok(vec![ty])
}

/// Returns `lead`, then `last`.
fn with(lead: &[Dim], last: Dim) -> Vec<Dim> {
    lead.iter().cloned().chain([last]).collect()
}
