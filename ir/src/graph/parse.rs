//! Parser of the text form that [`super::print`] writes.
//!
//! ```text
//! weight @w : f32[2, 4]
//! state @kv : paged f16[2, S, 64], f16[2, S, 64]
//! func @f(%x: f32[T, 4]) -> (f32[T, 2]) {
//!   %d = dequantise @w            // types after ` : ` are optional: the type rule gives them
//!   %y = matmul %x, %d : f32[T, 2]
//!   return %y                     ; comments start with // or ; and end with the line
//! }
//! ```
//!
//! The text may be hostile. Every error has a line, a column and the expectation. Memory use is
//! bounded by the length of the text. The returned module passes the verifier and is in canonical
//! numbering.

mod lex;

use std::collections::HashMap;

use super::attr::Attr;
use super::op::{AttrKind, AttrRow, OpKind, OperandKind};
use super::types::{TypeError, check_state, check_type, check_weight, result_types};
use super::verify::{Problem, Site, is_name, verify};
use super::{
    Dim, Element, Field, Function, Group, Module, Operand, Part, Place, Shard, State, StateId, TokenOwner, Type,
    ValueId, Weight, WeightChoices, WeightId, shard,
};
use crate::format::Format;
use crate::state::{Rollback, STATES, StateKind};
use lex::{Token, clip, expected_error};

/// An error in the text, with its location.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// Column number in characters, from 1.
    pub column: usize,
    /// The problem.
    #[source]
    pub problem: ParseProblem,
}

/// A problem in the text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParseProblem {
    /// An unexpected lexical token.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// Description of the expected token.
        expected: String,
        /// Actual token, shortened.
        found: String,
    },
    /// A name that has no definition.
    #[error("there is no {what} {name}")]
    Unknown {
        /// Kind of the name: `op`, `format`, `value` or `weight`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A name that is already used.
    #[error("there is a {what} {name} already; names must be unique")]
    Duplicate {
        /// Kind of the name: `value`, `weight` or `attribute`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An op without one of its attributes.
    #[error("{op} needs the attribute {attr}; its attributes: {known}")]
    MissingAttr {
        /// Mnemonic of the op.
        op: &'static str,
        /// Name of the attribute.
        attr: &'static str,
        /// Names of all attributes of this op.
        known: String,
    },
    /// An attribute that an op does not have.
    #[error("{op} has no attribute {attr}; its attributes: {known}")]
    NoAttr {
        /// Mnemonic of the op.
        op: &'static str,
        /// Name of the attribute.
        attr: String,
        /// Names of all attributes of this op.
        known: String,
    },
    /// Too many values left of `=`, or too few.
    #[error("{op} defines {expected} values, not {found}")]
    ResultCount {
        /// Mnemonic of the op.
        op: &'static str,
        /// Number of results in the op table.
        expected: usize,
        /// Number of values in the text.
        found: usize,
    },
    /// Types after ` : ` or `->` that differ from the actual types of the values.
    #[error("the types are {found}; they must be {expected}")]
    Types {
        /// Types in the text.
        found: String,
        /// Actual types of the values.
        expected: String,
    },
    /// An error of a type rule.
    #[error("{0}")]
    Type(#[from] TypeError),
    /// An error of the verifier.
    #[error("{0}")]
    Verify(#[from] Problem),
}

/// Parses a module and verifies it.
///
/// # Errors
/// Returns the first problem, with its line and column.
pub fn parse(text: &str) -> Result<Module, ParseError> {
    let mut parser = Parser {
        text,
        at: 0,
        module: Module::default(),
        weights: HashMap::new(),
        states: HashMap::new(),
        sites: Vec::new(),
    };
    let result = parser.module().and_then(|()| {
        verify(&parser.module).map_err(|error| {
            let at = parser.sites.iter().find(|(site, _)| *site == error.site).map_or(0, |(_, at)| *at);
            Failure { at, problem: error.problem.into() }
        })
    });
    match result {
        Ok(()) => Ok(parser.module),
        Err(Failure { at, problem }) => {
            let before = text.get(..at).unwrap_or(text);
            let line_start = before.rfind('\n').map_or(0, |i| i + 1);
            Err(ParseError {
                line: before.matches('\n').count() + 1,
                column: before[line_start..].chars().count() + 1,
                problem,
            })
        }
    }
}

/// A problem with its byte offset in the text.
struct Failure {
    at: usize,
    problem: ParseProblem,
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    module: Module,
    weights: HashMap<String, WeightId>,
    states: HashMap<String, StateId>,
    /// Byte offset of each part of the module in the text, for the verifier's errors.
    sites: Vec<(Site, usize)>,
}

/// The function that is being parsed, and the labels of its values.
#[derive(Default)]
struct Open<'t> {
    function: Function,
    labels: HashMap<&'t str, ValueId>,
}

impl<'t> Open<'t> {
    fn define(&mut self, label: &'t str, ty: Type, at: usize) -> Result<ValueId, Failure> {
        if !is_name(label) && !label.bytes().all(|b| b.is_ascii_digit()) {
            let expected = "a name (a letter or _, at most 256 characters) or a number".to_string();
            return Err(Failure {
                at,
                problem: ParseProblem::Expected { expected, found: format!("'%{}'", clip(label)) },
            });
        }
        let numbered = label.starts_with(|c: char| c.is_ascii_digit());
        let id = self.function.add_value((!numbered).then_some(label), ty);
        match self.labels.insert(label, id) {
            Some(_) => {
                let name = format!("%{}", clip(label));
                Err(Failure { at, problem: ParseProblem::Duplicate { what: "value", name } })
            }
            None => Ok(id),
        }
    }

    fn find(&self, label: &str, at: usize) -> Result<ValueId, Failure> {
        let unknown = || ParseProblem::Unknown { what: "value", name: format!("%{}", clip(label)) };
        self.labels.get(label).copied().ok_or_else(|| Failure { at, problem: unknown() })
    }
}

impl<'t> Parser<'t> {
    fn module(&mut self) -> Result<(), Failure> {
        loop {
            let (at, token) = self.next()?;
            match token {
                Token::Word("weight") => self.weight(at)?,
                Token::Word("state") => self.state(at)?,
                Token::Word("func") => self.function(at)?,
                Token::End => return Ok(()),
                other => return Err(expected_error(at, "weight, state, func or the end of the text", &other)),
            }
        }
    }

    fn weight(&mut self, start: usize) -> Result<(), Failure> {
        let (at, name) = self.symbol()?;
        self.mark(":")?;
        let (format_at, format) = self.word("a format")?;
        let format = self.format(format_at, format)?;
        self.mark("[")?;
        let shape = self.list("]", |this| {
            let (at, token) = this.next()?;
            this.unsigned(at, &token)
        })?;
        let (place, part, choice) =
            if self.take("{")? { self.weight_attrs()? } else { (None, None, WeightChoices::default()) };
        let weight = Weight { name: name.clone(), format, shape, place, part, choice };
        check_weight(&weight).map_err(|e| Failure { at, problem: e.into() })?;
        let id = WeightId(self.module.weights.len() as u32);
        if self.weights.insert(name, id).is_some() {
            let name = format!("@{}", clip(&weight.name));
            return Err(Failure { at, problem: ParseProblem::Duplicate { what: "weight", name } });
        }
        self.sites.push((Site::Weight(self.module.weights.len()), start));
        self.module.weights.push(weight);
        Ok(())
    }

    fn state(&mut self, start: usize) -> Result<(), Failure> {
        let (at, name) = self.symbol()?;
        self.mark(":")?;
        let (kind_at, kind) = self.word("a kind of state")?;
        let kind = StateKind::from_name(kind).ok_or_else(|| {
            let names: Vec<&str> = STATES.iter().map(|row| row.name).collect();
            expected_error(kind_at, &names.join(" or "), &Token::Word(kind))
        })?;
        let mut fields = Vec::new();
        loop {
            let (format_at, format) = self.word("a format")?;
            fields.push(Field { format: self.format(format_at, format)?, dims: self.dims()? });
            if !self.take(",")? {
                break;
            }
        }
        let rollback = kind.row().rollbacks[0];
        let mut state = State { name: name.clone(), kind, fields, rollback, window: None, every: 1, chunked: false };
        if self.take("{")? {
            let mut said = Vec::new();
            self.list("}", |this| {
                let (at, word) = this.word("rollback, window, every or chunked")?;
                if said.contains(&word) {
                    return Err(Failure {
                        at,
                        problem: ParseProblem::Duplicate { what: "attribute", name: clip(word) },
                    });
                }
                said.push(word);
                this.mark("=")?;
                let (value_at, value) = this.next()?;
                match (word, &value) {
                    ("rollback", Token::Word(found)) => {
                        let rollback = Rollback::ALL.into_iter().find(|rollback| rollback.word() == *found);
                        let words = Rollback::ALL.map(Rollback::word).join(" or ");
                        state.rollback = rollback.ok_or_else(|| expected_error(value_at, &words, &value))?;
                    }
                    ("rollback", other) => return Err(expected_error(value_at, "a kind of rollback", other)),
                    ("window", token) => state.window = Some(this.unsigned(value_at, token)?),
                    ("every", token) => state.every = this.unsigned(value_at, token)?,
                    ("chunked", Token::Word("true")) => state.chunked = true,
                    ("chunked", other) => return Err(expected_error(value_at, "true", other)),
                    (other, _) => {
                        return Err(expected_error(at, "rollback, window, every or chunked", &Token::Word(other)));
                    }
                }
                Ok(())
            })?;
        }
        check_state(&state).map_err(|e| Failure { at, problem: e.into() })?;
        let id = StateId(self.module.states.len() as u32);
        if self.states.insert(name.clone(), id).is_some() {
            return Err(Failure {
                at,
                problem: ParseProblem::Duplicate { what: "state", name: format!("@{}", clip(&name)) },
            });
        }
        self.sites.push((Site::State(self.module.states.len()), start));
        self.module.states.push(state);
        Ok(())
    }

    fn find_state(&self, at: usize, name: &str) -> Result<StateId, Failure> {
        let unknown = || ParseProblem::Unknown { what: "state", name: format!("@{}", clip(name)) };
        self.states.get(name).copied().ok_or_else(|| Failure { at, problem: unknown() })
    }

    /// Reads `file = 0, offset = 0x40, layout = q4_k_r16, ...}`. All attributes are optional, but
    /// `file` requires `offset`, `tensor` requires `rows` and `from`, and `shard` requires `dim`,
    /// `of` and `ranges`.
    fn weight_attrs(&mut self) -> Result<(Option<Place>, Option<Part>, WeightChoices), Failure> {
        let (mut place, mut part, mut choice) = (None, None, WeightChoices::default());
        self.list("}", |this| {
            let (at, name) = this.word("an attribute's name")?;
            this.mark("=")?;
            let again = match name {
                "file" => {
                    let (at, token) = this.next()?;
                    let file = this.unsigned(at, &token)?;
                    let file =
                        u32::try_from(file).map_err(|_| expected_error(at, "a file number of 32 bits", &token))?;
                    this.mark(",")?;
                    this.keyword("offset")?;
                    this.mark("=")?;
                    let (at, token) = this.next()?;
                    place.replace(Place { file, offset: this.unsigned(at, &token)? }).is_some()
                }
                "tensor" => {
                    let tensor = this.string()?;
                    let [rows, from] = ["rows", "from"].map(|name| {
                        this.mark(",")?;
                        this.keyword(name)?;
                        this.mark("=")?;
                        let (at, token) = this.next()?;
                        this.unsigned(at, &token)
                    });
                    part.replace(Part { tensor, rows: rows?, from: from? }).is_some()
                }
                "stored" | "layout" | "activations" => {
                    let (at, word) = this.word("a format")?;
                    let slot = match name {
                        "stored" => &mut choice.stored,
                        "layout" => &mut choice.layout,
                        _ => &mut choice.activations,
                    };
                    slot.replace(this.format(at, word)?).is_some()
                }
                "shard" => {
                    let weight = this.string()?;
                    let [dim, of] = ["dim", "of"].map(|name| {
                        this.mark(",")?;
                        this.keyword(name)?;
                        this.mark("=")?;
                        let (at, token) = this.next()?;
                        Ok((at, this.unsigned(at, &token)?, token))
                    });
                    let ((dim_at, dim, token), (_, of, _)) = (dim?, of?);
                    let wide = |_| expected_error(dim_at, "the number of a dimension", &token);
                    let dim = u32::try_from(dim).map_err(wide)?;
                    this.mark(",")?;
                    this.keyword("ranges")?;
                    this.mark("=")?;
                    let at = this.at;
                    let text = this.string()?;
                    let ranges = shard::ranges_from(&text).ok_or_else(|| {
                        expected_error(at, "ranges such as 0..64, with a space between", &Token::Text(text))
                    })?;
                    choice.shard.replace(Shard { weight, dim, of, ranges }).is_some()
                }
                "tile" | "why" => {
                    let text = this.string()?;
                    let slot = if name == "tile" { &mut choice.tile } else { &mut choice.why };
                    slot.replace(text).is_some()
                }
                other => {
                    let expected = "file, tensor, shard, stored, layout, activations, tile or why".to_string();
                    let found = Token::Word(other).text();
                    return Err(Failure { at, problem: ParseProblem::Expected { expected, found } });
                }
            };
            match again {
                true => {
                    Err(Failure { at, problem: ParseProblem::Duplicate { what: "attribute", name: name.to_string() } })
                }
                false => Ok(()),
            }
        })?;
        Ok((place, part, choice))
    }

    fn function(&mut self, start: usize) -> Result<(), Failure> {
        let index = self.module.functions.len();
        self.sites.push((Site::Function(index), start));
        let mut open = Open::default();
        open.function.name = self.symbol()?.1;
        self.mark("(")?;
        self.list(")", |this| {
            let (at, label) = this.value()?;
            this.mark(":")?;
            let ty = this.ty()?;
            this.sites.push((Site::Param(index, open.function.params.len()), at));
            let id = open.define(label, ty, at)?;
            open.function.params.push(id);
            Ok(())
        })?;
        self.mark("->")?;
        self.mark("(")?;
        let types = self.list(")", |this| this.ty())?;
        self.mark("{")?;
        loop {
            let (at, token) = self.next()?;
            match token {
                Token::Value(label) => self.op(index, &mut open, at, label)?,
                Token::Word("return") => {
                    self.results(index, &mut open, at, &types)?;
                    break;
                }
                other => return Err(expected_error(at, "a value or return", &other)),
            }
        }
        self.mark("}")?;
        self.module.functions.push(open.function);
        Ok(())
    }

    fn results(&mut self, index: usize, open: &mut Open<'t>, at: usize, types: &[Type]) -> Result<(), Failure> {
        if !self.peek_is("}")? {
            loop {
                let (at, label) = self.value()?;
                self.sites.push((Site::Result(index, open.function.results.len()), at));
                let id = open.find(label, at)?;
                open.function.results.push(id);
                if !self.take(",")? {
                    break;
                }
            }
        }
        let found: Vec<Type> = open.function.results.iter().map(|&v| open.function.ty(v).clone()).collect();
        same_types(&self.module, at, types, &found)
    }

    fn op(&mut self, index: usize, open: &mut Open<'t>, start: usize, first: &'t str) -> Result<(), Failure> {
        self.sites.push((Site::Op(index, open.function.ops.len()), start));
        let mut labels = vec![(start, first)];
        while self.take(",")? {
            labels.push(self.value()?);
        }
        self.mark("=")?;
        let (at, mnemonic) = self.word("an op")?;
        let unknown = || ParseProblem::Unknown { what: "op", name: clip(mnemonic) };
        let kind = OpKind::from_mnemonic(mnemonic).ok_or_else(|| Failure { at, problem: unknown() })?;
        let row = kind.row();
        let mut operands = Vec::new();
        while !row.operands.is_empty() {
            let (at, token) = self.next()?;
            operands.push(match token {
                Token::Value(label) => Operand::Value(open.find(label, at)?),
                // The symbol is a state if the op table lists a state as this operand.
                Token::Symbol(name)
                    if row.operands.get(operands.len()).is_some_and(|operand| operand.kind == OperandKind::State) =>
                {
                    Operand::State(self.find_state(at, &name)?)
                }
                Token::Symbol(name) => {
                    let unknown = || ParseProblem::Unknown { what: "weight", name: format!("@{}", clip(&name)) };
                    let id = self.weights.get(&name).ok_or_else(|| Failure { at, problem: unknown() })?;
                    Operand::Weight(*id)
                }
                Token::Word("_") => Operand::Absent,
                other => return Err(expected_error(at, "a value, a weight or _", &other)),
            });
            if !self.take(",")? {
                break;
            }
        }
        let attrs = self.attrs(kind, at)?;
        let types = result_types(&self.module, &open.function, kind, &operands, &attrs)
            .map_err(|e| Failure { at, problem: e.into() })?;
        if labels.len() != types.len() {
            let (expected, found) = (types.len(), labels.len());
            let problem = ParseProblem::ResultCount { op: row.mnemonic, expected, found };
            return Err(Failure { at: start, problem });
        }
        let (colon, _) = self.peek()?;
        if self.take(":")? {
            let mut found = vec![self.ty()?];
            while self.take(",")? {
                found.push(self.ty()?);
            }
            same_types(&self.module, colon, &found, &types)?;
        }
        let mut results = Vec::with_capacity(types.len());
        for ((at, label), ty) in labels.into_iter().zip(types) {
            results.push(open.define(label, ty, at)?);
        }
        open.function.ops.push(super::Op { kind, operands, attrs, results });
        Ok(())
    }

    /// Reads `{name = value, ...}` in any order. An op without attributes has no braces.
    fn attrs(&mut self, kind: OpKind, at: usize) -> Result<Vec<Attr>, Failure> {
        let row = kind.row();
        let known = || match row.attrs {
            [] => "none".to_string(),
            attrs => attrs.iter().map(|attr| attr.name).collect::<Vec<_>>().join(", "),
        };
        let mut found: Vec<Option<Attr>> = vec![None; row.attrs.len()];
        if self.take("{")? {
            self.list("}", |this| {
                let (at, name) = this.word("an attribute's name")?;
                let Some(i) = row.attrs.iter().position(|attr| attr.name == name) else {
                    let problem = ParseProblem::NoAttr { op: row.mnemonic, attr: clip(name), known: known() };
                    return Err(Failure { at, problem });
                };
                this.mark("=")?;
                let attr = this.attr(&row.attrs[i])?;
                match found[i].replace(attr) {
                    Some(_) => {
                        let problem = ParseProblem::Duplicate { what: "attribute", name: name.to_string() };
                        Err(Failure { at, problem })
                    }
                    None => Ok(()),
                }
            })?;
        }
        let missing = |attr: &AttrRow| {
            let problem = ParseProblem::MissingAttr { op: row.mnemonic, attr: attr.name, known: known() };
            Failure { at, problem }
        };
        found.into_iter().zip(row.attrs).map(|(attr, row)| attr.or(row.absent()).ok_or_else(|| missing(row))).collect()
    }

    fn attr(&mut self, row: &AttrRow) -> Result<Attr, Failure> {
        let (at, token) = self.next()?;
        match (row.kind, &token) {
            (AttrKind::Int | AttrKind::OptInt, Token::Number(text)) => {
                let value = match text.strip_prefix("0x") {
                    Some(hex) => i64::from_str_radix(hex, 16),
                    None => text.parse(),
                };
                value.map(Attr::Int).map_err(|_| expected_error(at, "an integer of 64 bits", &token))
            }
            (AttrKind::Float | AttrKind::OptFloat, Token::Number(text)) => match text.parse::<f32>() {
                Ok(value) if value.is_finite() => Ok(Attr::Float(value)),
                Ok(_) | Err(_) => Err(expected_error(at, "a finite number", &token)),
            },
            (AttrKind::Bool, Token::Word("true")) => Ok(Attr::Bool(true)),
            (AttrKind::Bool, Token::Word("false")) => Ok(Attr::Bool(false)),
            (AttrKind::Word(words), Token::Word(word)) if words.contains(word) => Ok(Attr::Word(word.to_string())),
            (AttrKind::Format, Token::Word(word)) => Ok(Attr::Format(self.format(at, word)?)),
            (AttrKind::Int | AttrKind::OptInt, _) => Err(expected_error(at, "an integer", &token)),
            (AttrKind::Float | AttrKind::OptFloat, _) => Err(expected_error(at, "a number", &token)),
            (AttrKind::Bool, _) => Err(expected_error(at, "true or false", &token)),
            (AttrKind::Word(words), _) => Err(expected_error(at, &words.join(" or "), &token)),
            (AttrKind::Format, _) => Err(expected_error(at, "a format", &token)),
        }
    }

    fn ty(&mut self) -> Result<Type, Failure> {
        let (at, word) = self.word("a type")?;
        if word == "token" {
            if self.take("[")? {
                return self.group();
            }
            if !self.take("<")? {
                return Ok(Type::Token(TokenOwner::Experts));
            }
            let (at, name) = self.symbol()?;
            let state = self.find_state(at, &name)?;
            self.mark(">")?;
            return Ok(Type::Token(TokenOwner::State(state)));
        }
        let element = match word {
            "i32" => Element::I32,
            format => Element::Format(self.format(at, format)?),
        };
        let ty = Type::Tensor { element, dims: self.dims()? };
        check_type(&ty).map_err(|e| Failure { at, problem: e.into() })?;
        Ok(ty)
    }

    /// Parses `0, 2]`, which follows `token[`: the number of the rank and the number of ranks.
    fn group(&mut self) -> Result<Type, Failure> {
        let (at, rank) = self.next()?;
        let narrow = |this: &Self, at: usize, token: &Token<'_>| {
            u32::try_from(this.unsigned(at, token)?).map_err(|_| expected_error(at, "a number of 32 bits", token))
        };
        let rank = narrow(self, at, &rank)?;
        self.mark(",")?;
        let (ranks_at, ranks) = self.next()?;
        let ty = Type::Token(TokenOwner::Ranks(Group { rank, ranks: narrow(self, ranks_at, &ranks)? }));
        self.mark("]")?;
        check_type(&ty).map_err(|e| Failure { at, problem: e.into() })?;
        Ok(ty)
    }

    /// Reads `[T, 256]`.
    fn dims(&mut self) -> Result<Vec<Dim>, Failure> {
        self.mark("[")?;
        self.list("]", |this| {
            let (at, token) = this.next()?;
            match token {
                Token::Word(symbol) => Ok(Dim::symbol(symbol)),
                token => Ok(Dim::Fixed(this.unsigned(at, &token)?)),
            }
        })
    }

    /// Reads a comma-separated list, which may be empty, up to `end`.
    fn list<T>(&mut self, end: &str, mut item: impl FnMut(&mut Self) -> Result<T, Failure>) -> Result<Vec<T>, Failure> {
        let mut items = Vec::new();
        if self.take(end)? {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.take(end)? {
                return Ok(items);
            }
            self.mark(",")?;
        }
    }

    fn format(&self, at: usize, name: &str) -> Result<Format, Failure> {
        let unknown = || ParseProblem::Unknown { what: "format", name: clip(name) };
        Format::from_name(name).ok_or_else(|| Failure { at, problem: unknown() })
    }

    fn unsigned(&self, at: usize, token: &Token<'_>) -> Result<u64, Failure> {
        let value = match token {
            Token::Number(text) => match text.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok(),
                None => text.parse().ok(),
            },
            _ => None,
        };
        value.ok_or_else(|| expected_error(at, "a number of 64 bits", token))
    }
}

fn same_types(module: &Module, at: usize, found: &[Type], expected: &[Type]) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    let text = |types: &[Type]| match types {
        [] => "none".to_string(),
        types => types.iter().take(8).map(|ty| ty.text(module)).collect::<Vec<_>>().join(", "),
    };
    Err(Failure { at, problem: ParseProblem::Types { found: text(found), expected: text(expected) } })
}
