//! The graph verifier. Passes, the interpreter and the scheduler rely on its checks. Plan files and
//! text are untrusted, so their modules are verified first.
//!
//! In a module that passes:
//! - Weights can be stored and have unique names.
//! - Functions and values have unique names that can be written.
//! - Every id is in range.
//! - A parameter or an op defines each value once, before its first use, with the type that the
//!   type rule gives.
//! - In a function, each state, the experts' memory and the group of ranks have at most one first
//!   token. A first token is a parameter, or the result of `state.begin`, `expert.slots` or
//!   `ranks.begin`.
//! - Every token is used at most once, by an op on its state. The ops on each state thus form one
//!   chain.
//! - Fields, windows and rollbacks of states fit their kinds, and attributes are valid for the op
//!   table and the type rules.
//!
//! ```text
//! state @kv : paged f16[8, S, 4], f16[8, S, 4]
//! func @f(%kv: token<@kv>, %x: f32[T, 8, 4], %pos: i32[T]) -> (token<@kv>) {
//!   %1 = kv.append %kv, %x, %x, %pos : token<@kv>
//!   %2 = kv.append %kv, %x, %x, %pos : token<@kv>     // error: %kv is used by op 0 already
//!   return %2
//! }
//! ```

use std::collections::HashSet;

use super::op::Effect;
use super::types::{TypeError, check_state, check_type, check_weight, result_types};
use super::{Function, Module, Operand, TokenOwner, Type, ValueId};

/// Place of a problem in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// A weight, by its index.
    Weight(usize),
    /// A state, by its index.
    State(usize),
    /// A function, by its index.
    Function(usize),
    /// A parameter: the index of the function, and the index of the parameter.
    Param(usize, usize),
    /// An op: the index of the function, and the position of the op.
    Op(usize, usize),
    /// A result of a function: the index of the function, and the index of the result.
    Result(usize, usize),
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Site::Weight(w) => write!(f, "weight {w}"),
            Site::State(s) => write!(f, "state {s}"),
            Site::Function(function) => write!(f, "function {function}"),
            Site::Param(function, i) => write!(f, "function {function}, parameter {i}"),
            Site::Op(function, i) => write!(f, "function {function}, op {i}"),
            Site::Result(function, i) => write!(f, "function {function}, result {i}"),
        }
    }
}

/// A problem of a module, and its location.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{site}: {problem}")]
pub struct VerifyError {
    /// Location of the problem.
    pub site: Site,
    /// The problem.
    #[source]
    pub problem: Problem,
}

/// A problem of a module.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A weight, a state, a value or an op that the type rules reject.
    #[error("{0}")]
    Type(#[from] TypeError),
    /// A name that is not allowed.
    #[error("{name:?} is not a name; expected a letter or _, then letters, digits, '_', '.', '$', '-', at most 256")]
    Name {
        /// Invalid name.
        name: String,
    },
    /// A name that is already used.
    #[error("there is a {what} {name} already; names must be unique")]
    Duplicate {
        /// Kind of the name: `function` or `value`.
        what: &'static str,
        /// Name that is used twice.
        name: String,
    },
    /// A value id that the function does not have.
    #[error("value number {value} is not one of the function's {values}")]
    NoValue {
        /// The value id.
        value: u32,
        /// Number of values in the function.
        values: usize,
    },
    /// A value that is used before its definition.
    #[error("{value} is used before anything defines it")]
    Undefined {
        /// Value that is used too early.
        value: String,
    },
    /// A value with two definitions.
    #[error("{value} is defined already; a value is defined once")]
    Redefined {
        /// Value that is defined twice.
        value: String,
    },
    /// An op that defines too many values, or too few.
    #[error("{op} defines {expected} values, not {found}")]
    ResultCount {
        /// Mnemonic of the op.
        op: &'static str,
        /// Number of results in the op table.
        expected: usize,
        /// Number of results that the op has.
        found: usize,
    },
    /// A result whose type differs from the one that the type rule gives.
    #[error("{value} has the type {found}; {op} gives {expected}")]
    ResultType {
        /// Mnemonic of the op.
        op: &'static str,
        /// Result with the wrong type.
        value: String,
        /// Actual type.
        found: String,
        /// Type that the type rule gives.
        expected: String,
    },
    /// A token that is used twice.
    #[error("the token {value} is already used by {by}; use the token that {by} returns")]
    TokenReused {
        /// Name of the token.
        value: String,
        /// Location of its first use.
        by: Site,
    },
    /// A second first token of the same object: of a state, of the experts' memory, or of the group
    /// of ranks.
    #[error("{value} starts a second chain of tokens for {held}; use the token that the previous op returned")]
    SecondToken {
        /// Name of the second first token.
        value: String,
        /// Description of the object that the token belongs to.
        held: String,
    },
    /// A token of a state id that the module does not have.
    #[error("the token is for state number {state}; the module has {states} states")]
    NoState {
        /// The state id.
        state: u32,
        /// Number of states in the module.
        states: usize,
    },
    /// More states than [`verify`] accepts.
    #[error("the module has {states} states; the maximum is {max}")]
    ManyStates {
        /// Number of states that the module has.
        states: usize,
        /// Maximum number of states.
        max: usize,
    },
}

/// Verifies a module.
///
/// # Errors
/// Returns the first problem, in the order of the module's text.
pub fn verify(module: &Module) -> Result<(), VerifyError> {
    let mut names = HashSet::new();
    for (i, weight) in module.weights.iter().enumerate() {
        let at = |problem: TypeError| VerifyError { site: Site::Weight(i), problem: problem.into() };
        check_weight(weight).map_err(at)?;
        if !names.insert(weight.name.as_str()) {
            return Err(at(TypeError::DuplicateWeight { name: weight.name.clone() }));
        }
    }
    if module.states.len() > MAX_STATES {
        let problem = Problem::ManyStates { states: module.states.len(), max: MAX_STATES };
        return Err(VerifyError { site: Site::State(MAX_STATES), problem });
    }
    let mut names = HashSet::new();
    for (i, state) in module.states.iter().enumerate() {
        let at = |problem: TypeError| VerifyError { site: Site::State(i), problem: problem.into() };
        check_state(state).map_err(at)?;
        if !names.insert(state.name.as_str()) {
            return Err(at(TypeError::DuplicateState { name: state.name.clone() }));
        }
    }
    let mut names = HashSet::new();
    for (i, function) in module.functions.iter().enumerate() {
        let site = Site::Function(i);
        check_name(&function.name).map_err(|problem| VerifyError { site, problem })?;
        if !names.insert(function.name.as_str()) {
            let problem = Problem::Duplicate { what: "function", name: format!("@{}", function.name) };
            return Err(VerifyError { site, problem });
        }
        let defined = vec![false; function.values.len()];
        Body { module, function, index: i, defined, used: Vec::new(), begun: HashSet::new() }.verify()?;
    }
    Ok(())
}

/// Checks that a function or a value may have this name.
///
/// # Errors
/// Fails with [`Problem::Name`].
pub fn check_name(name: &str) -> Result<(), Problem> {
    if is_name(name) { Ok(()) } else { Err(Problem::Name { name: name.chars().take(64).collect() }) }
}

/// Whether the text is a letter or `_`, followed by letters, digits, `_`, `.`, `$` and `-`. A
/// single `_` is not a name; it stands for an absent operand.
pub fn is_name(name: &str) -> bool {
    let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | '-');
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(rest)
        && name != "_"
        && name.len() <= 256
}

struct Body<'a> {
    module: &'a Module,
    function: &'a Function,
    index: usize,
    /// Whether each value is defined so far.
    defined: Vec<bool>,
    /// First use of each token, by value id. `None` before the first use, and for other values.
    used: Vec<Option<Site>>,
    /// Objects whose first token the function has defined so far.
    begun: HashSet<TokenOwner>,
}

/// Maximum number of states in a module: two for each layer of the largest model that a plan
/// allows.
const MAX_STATES: usize = 8192;

impl Body<'_> {
    fn verify(mut self) -> Result<(), VerifyError> {
        let function = self.function;
        let whole = Site::Function(self.index);
        let mut names = HashSet::new();
        for value in &function.values {
            check_type(&value.ty).map_err(|e| fail(whole, e))?;
            if let Type::Token(TokenOwner::State(state)) = value.ty
                && state.index() >= self.module.states.len()
            {
                return Err(fail(whole, Problem::NoState { state: state.0, states: self.module.states.len() }));
            }
            if let Some(name) = &value.name {
                check_name(name).map_err(|e| fail(whole, e))?;
                if !names.insert(name.as_str()) {
                    return Err(fail(whole, Problem::Duplicate { what: "value", name: format!("%{name}") }));
                }
            }
        }
        for (i, &param) in function.params.iter().enumerate() {
            let site = Site::Param(self.index, i);
            self.define(site, param)?;
            self.begin(site, param)?;
        }
        for (i, op) in function.ops.iter().enumerate() {
            let site = Site::Op(self.index, i);
            for operand in &op.operands {
                if let Operand::Value(value) = operand {
                    self.use_value(site, *value)?;
                }
            }
            let types =
                result_types(self.module, function, op.kind, &op.operands, &op.attrs).map_err(|e| fail(site, e))?;
            let row = op.kind.row();
            if op.results.len() != row.results || types.len() != row.results {
                let (expected, found) = (row.results, op.results.len());
                return Err(fail(site, Problem::ResultCount { op: row.mnemonic, expected, found }));
            }
            for (&value, expected) in op.results.iter().zip(&types) {
                self.define(site, value)?;
                if function.ty(value) != expected {
                    let (found, expected) = (function.ty(value).text(self.module), expected.text(self.module));
                    let value = function.label(value);
                    return Err(fail(site, Problem::ResultType { op: row.mnemonic, value, found, expected }));
                }
            }
            // An op with the effect `State` but without a token operand returns the first token of
            // an object.
            if !op.operands.iter().any(|operand| self.is_token(operand)) {
                op.results.iter().try_for_each(|&result| self.begin(site, result))?;
            }
            // Passes read only the effect in the op table, so it must agree with the type rules.
            debug_assert_eq!(row.effect == Effect::State, types.iter().any(Type::is_token), "{}", row.mnemonic);
        }
        for (i, &value) in function.results.iter().enumerate() {
            self.use_value(Site::Result(self.index, i), value)?;
        }
        Ok(())
    }

    fn is_token(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Value(value) if self.function.ty(*value).is_token())
    }

    /// Records the first token of an object. Fails if the object has one already.
    fn begin(&mut self, site: Site, value: ValueId) -> Result<(), VerifyError> {
        let Type::Token(held) = *self.function.ty(value) else { return Ok(()) };
        let grouped = |held: &TokenOwner| matches!(held, TokenOwner::Ranks(_));
        // A function belongs to one group of ranks. A token for another rank is also a second token
        // of the group.
        let second_group = grouped(&held) && self.begun.iter().any(grouped);
        if self.begun.insert(held) && !second_group {
            return Ok(());
        }
        let held = match held {
            TokenOwner::State(state) => format!("@{}", self.module.states[state.index()].name),
            TokenOwner::Experts => "experts' memory".to_string(),
            TokenOwner::Ranks(_) => "the group of ranks".to_string(),
        };
        Err(fail(site, Problem::SecondToken { value: self.function.label(value), held }))
    }

    fn in_range(&self, site: Site, value: ValueId) -> Result<(), VerifyError> {
        let values = self.function.values.len();
        if value.index() < values { Ok(()) } else { Err(fail(site, Problem::NoValue { value: value.0, values })) }
    }

    fn define(&mut self, site: Site, value: ValueId) -> Result<(), VerifyError> {
        self.in_range(site, value)?;
        if std::mem::replace(&mut self.defined[value.index()], true) {
            return Err(fail(site, Problem::Redefined { value: self.function.label(value) }));
        }
        Ok(())
    }

    fn use_value(&mut self, site: Site, value: ValueId) -> Result<(), VerifyError> {
        self.in_range(site, value)?;
        if !self.defined[value.index()] {
            return Err(fail(site, Problem::Undefined { value: self.function.label(value) }));
        }
        if !self.function.ty(value).is_token() {
            return Ok(());
        }
        self.used.resize(self.function.values.len(), None);
        match self.used[value.index()].replace(site) {
            Some(by) => Err(fail(site, Problem::TokenReused { value: self.function.label(value), by })),
            None => Ok(()),
        }
    }
}

fn fail(site: Site, problem: impl Into<Problem>) -> VerifyError {
    VerifyError { site, problem: problem.into() }
}
