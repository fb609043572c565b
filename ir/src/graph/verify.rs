//! The graph verifier: what every pass, the interpreter and the scheduler may rely on, checked on modules that nobody vouches
//! for (from plan files and text).
//!
//! A module that passes: weights can be stored and have unique names; functions and values have unique names that can be
//! written; every id is in range; every value is defined once, by a parameter or an op, before it is used, and has the type
//! that the type rule gives; each state, and experts' memory, has at most one first token in a function (a parameter's, or that of `state.begin` or
//! `expert.slots`), every token is used at most once, and by ops of its state, so that the ops of each state form one chain; states are what their
//! kinds can be, and attributes what the op table and the type rules allow.
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
use super::{Function, Held, Module, Operand, Type, ValueId};

/// Where in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// A weight, by its number.
    Weight(usize),
    /// A state, by its number.
    State(usize),
    /// A function, by its number.
    Function(usize),
    /// A parameter of a function.
    Param(usize, usize),
    /// An op of a function.
    Op(usize, usize),
    /// A result of a function.
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

/// What is wrong with a module, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{site}: {problem}")]
pub struct VerifyError {
    /// Where.
    pub site: Site,
    /// What.
    #[source]
    pub problem: Problem,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A weight, a value's type or an op breaks its rule.
    #[error("{0}")]
    Type(#[from] TypeError),
    /// A name that cannot be written.
    #[error("{name:?} is no name: one is a letter or _, then letters, digits, '_', '.', '$' and '-', at most 256")]
    Name {
        /// The name.
        name: String,
    },
    /// A name that something else has.
    #[error("there is a {what} {name} already; names must be unique")]
    Duplicate {
        /// `function` or `value`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A value that the function does not have.
    #[error("value number {value} is not one of the function's {values}")]
    NoValue {
        /// Its number.
        value: u32,
        /// How many there are.
        values: usize,
    },
    /// A value that is used where nothing has defined it.
    #[error("{value} is used before anything defines it")]
    Undefined {
        /// The value.
        value: String,
    },
    /// A value with two definitions.
    #[error("{value} is defined already; a value is defined once")]
    Redefined {
        /// The value.
        value: String,
    },
    /// An op that defines too many values or too few.
    #[error("{op} defines {expected} values, not {found}")]
    ResultCount {
        /// Mnemonic.
        op: &'static str,
        /// In the op table.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// A result whose type is not what the type rule gives.
    #[error("{value} has the type {found}; {op} gives {expected}")]
    ResultType {
        /// Mnemonic.
        op: &'static str,
        /// The value.
        value: String,
        /// Its type.
        found: String,
        /// What the type rule gives.
        expected: String,
    },
    /// A token that two ops take.
    #[error("the token {value} is used by {by} already; take the token that it gives")]
    TokenReused {
        /// The token.
        value: String,
        /// What used it first.
        by: Site,
    },
    /// More than one first token of one state.
    #[error("{value} is a second first token of {held}: take the token that the last op gave")]
    SecondToken {
        /// The token.
        value: String,
        /// What it is of.
        held: String,
    },
    /// The token of a state that the module does not have.
    #[error("a token of state number {state}; the module has {states}")]
    NoState {
        /// Its number.
        state: u32,
        /// How many there are.
        states: usize,
    },
    /// More states than any model has.
    #[error("there are {states} states; at most {max} are read")]
    ManyStates {
        /// How many.
        states: usize,
        /// The most.
        max: usize,
    },
}

/// Checks a module.
///
/// # Errors
/// The first thing that is wrong, in the order of the text.
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

/// Whether a function or a value may have this name.
///
/// # Errors
/// [`Problem::Name`].
pub fn check_name(name: &str) -> Result<(), Problem> {
    if is_name(name) { Ok(()) } else { Err(Problem::Name { name: name.chars().take(64).collect() }) }
}

/// A letter or `_`, then letters, digits, `_`, `.`, `$` and `-`; not `_` alone, which is an absent operand.
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
    /// Values defined so far.
    defined: Vec<bool>,
    /// What took each token; empty until the first is taken.
    used: Vec<Option<Site>>,
    /// What had its first token.
    begun: HashSet<Held>,
}

/// Most states of a module: two for each of the most layers that plans are made of.
const MAX_STATES: usize = 8192;

impl Body<'_> {
    fn verify(mut self) -> Result<(), VerifyError> {
        let function = self.function;
        let whole = Site::Function(self.index);
        let mut names = HashSet::new();
        for value in &function.values {
            check_type(&value.ty).map_err(|e| fail(whole, e))?;
            if let Type::Token(Held::State(state)) = value.ty
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
            // An op without a token gives the first one of what it touches.
            if !op.operands.iter().any(|operand| self.is_token(operand)) {
                op.results.iter().try_for_each(|&result| self.begin(site, result))?;
            }
            // The table's effect column and the type rules must agree: passes read only the column.
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

    /// Takes note of a first token.
    fn begin(&mut self, site: Site, value: ValueId) -> Result<(), VerifyError> {
        let Type::Token(held) = *self.function.ty(value) else { return Ok(()) };
        if self.begun.insert(held) {
            return Ok(());
        }
        let held = match held {
            Held::State(state) => format!("@{}", self.module.states[state.index()].name),
            Held::Experts => "experts' memory".to_string(),
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
