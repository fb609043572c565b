//! The type rule of every op. A rule takes operands and attributes, and returns the types of the
//! results or an error with the reason. [`result_types`] selects the rule. Each family of ops has a
//! file of rules.
//!
//! The builder, the verifier and the parser all call [`result_types`], so they always agree.
//! Symbolic dimensions with the same name are equal.
//!
//! ```text
//! %8 = matmul %7, @w : f32[L, 4096]     // %7 : f32[L, 256], %w : f32[4096, 256]
//! ```
//!
//! The input is any op. Ids of values may be out of range, and attributes may have any kind and
//! value. The rules reject such ops.
//!
//! Result: if the rule accepts an op, [`super::Op::attr`], [`super::Op::operand`] and
//! [`super::attrs`] can read it. Divisions of dimensions have no remainder, and every product of
//! the dimensions of a result fits in `u64`.

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

/// Reason why the type rule rejects an op, a weight, a state or a type.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TypeError {
    /// Too many operands, or too few.
    #[error("{op} takes {expected} operands, not {found}")]
    OperandCount {
        /// Mnemonic of the op.
        op: &'static str,
        /// Number of operands in the op table.
        expected: usize,
        /// Number of operands that the op has.
        found: usize,
    },
    /// Too many attributes, or too few.
    #[error("{op} takes {expected} attributes, not {found}")]
    AttrCount {
        /// Mnemonic of the op.
        op: &'static str,
        /// Number of attributes in the op table.
        expected: usize,
        /// Number of attributes that the op has.
        found: usize,
    },
    /// An operand that the type rule rejects.
    #[error("{op}: operand {operand} is {found}; it must be {expected}")]
    Operand {
        /// Mnemonic of the op.
        op: &'static str,
        /// Name of the operand in the op table.
        operand: &'static str,
        /// Description of the actual operand.
        found: String,
        /// Description of the expected operand.
        expected: String,
    },
    /// An attribute that the type rule rejects.
    #[error("{op}: attribute {attr} is {found}; it must be {expected}")]
    Attr {
        /// Mnemonic of the op.
        op: &'static str,
        /// Name of the attribute.
        attr: &'static str,
        /// Text of the actual attribute.
        found: String,
        /// Description of the expected attribute.
        expected: String,
    },
    /// A weight whose shape its format cannot store.
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
    /// A state that its kind does not allow.
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

/// Number of heads and sizes of a `paged` state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Number of key heads.
    pub heads: u64,
    /// Number of elements of one head's key.
    pub key: u64,
    /// Number of elements of one head's value.
    pub value: u64,
}

impl CacheShape {
    /// Returns the shape of a `paged` state, or `None` for other kinds of state.
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

/// Checks that a value may have this type. Its element type must be `i32`, `f32` or an activation
/// format in whole blocks. No dimension may be 0, and symbols must be valid. A group's token must
/// have a rank of the group.
///
/// # Errors
/// Fails with [`TypeError::Type`].
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
    // The limit bounds the memory for copies of a type with many dimensions in hostile text.
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

/// Whether the text is a valid symbol: a letter, then letters, digits and `_`, at most 32
/// characters.
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
    /// Writes states by their index. [`Type::text`] writes their names.
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

/// Returns the type list of an op with one result.
fn one(ty: Type) -> Result<Vec<Type>, TypeError> {
    Ok(vec![ty])
}

/// Returns the dimensions `lead`, followed by `last`.
fn with(lead: &[Dim], last: Dim) -> Vec<Dim> {
    lead.iter().cloned().chain([last]).collect()
}
