//! Parser of the text form that [`super::print`] writes.
//!
//! ```text
//! kernel scale_f32 where %n in 0..=1024 {
//!   buffer %x : read 32*%n
//!   buffer %y : write 32*%n
//!   %two = splat f32x8 2.0         // values may have names, each once
//!   for %i in 0..%n {
//!     %a = load f32x8 %x[32*%i]
//!     %b = mul f32x8 %a, %two
//!     store f32x8 %y[32*%i], %b    ; comments start with // or ; and end with the line
//!   }
//! }
//! ```
//!
//! The text may be hostile. Every error has a line and a column, the actual text and the
//! expectation. Recursion is bounded, and memory use grows with the length of the text. The kernel
//! that [`parse()`] returns passes the verifier and is in canonical numbering.

mod lex;

use std::collections::HashMap;

use super::op::{ImmKind, Memory};
use super::verify::{MAX_DEPTH, MAX_TERMS, Problem, Site, verify};
use super::*;
use lex::{Lexer, Position, Token};

/// An error in the text, with its location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseProblem {
    /// An unexpected lexical token.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// Description of the expected token.
        expected: String,
        /// Actual token.
        found: String,
    },
    /// A name that has no definition.
    #[error("there is no {what} {name}")]
    Unknown {
        /// Kind of the name: `op`, `value`, `buffer` or `dim or variable`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A name that is already used.
    #[error("there is a {what} %{name} already; each is defined once")]
    Duplicate {
        /// Kind of the name: `value`, `buffer` or `dim or variable`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Loops that are nested too deeply.
    #[error("more than {limit} nested loops")]
    TooDeep {
        /// Maximum nesting of loops.
        limit: usize,
    },
    /// A kernel that the verifier rejects.
    #[error(transparent)]
    Verify(#[from] Problem),
}

/// Parses one kernel and verifies it.
///
/// # Errors
/// Returns the first syntax error, otherwise the first problem that the verifier finds.
pub fn parse(text: &str) -> Result<Kernel, ParseError> {
    let (kernel, positions) = parse_with_positions(text)?;
    match verify(&kernel) {
        Ok(()) => Ok(kernel),
        Err(error) => Err(positions.position(&error.site).error(error.problem.into())),
    }
}

/// Parses one kernel without verifying it.
///
/// # Errors
/// Returns the first syntax error.
pub fn parse_unverified(text: &str) -> Result<Kernel, ParseError> {
    Ok(parse_with_positions(text)?.0)
}

fn parse_with_positions(text: &str) -> Result<(Kernel, Positions), ParseError> {
    let lexer = Lexer::new(text)?;
    let kernel = Kernel {
        name: String::new(),
        dims: Vec::new(),
        buffers: Vec::new(),
        values: Vec::new(),
        vars: Vec::new(),
        body: Vec::new(),
    };
    let mut parser = Parser {
        lexer,
        kernel,
        atoms: HashMap::new(),
        buffers: HashMap::new(),
        values: HashMap::new(),
        positions: Positions::default(),
    };
    parser.kernel()?;
    Ok((parser.kernel, parser.positions))
}

/// Locations of a kernel's dims, buffers and statements in its text.
#[derive(Default)]
struct Positions {
    kernel: Position,
    dims: Vec<Position>,
    buffers: Vec<Position>,
    statements: Vec<Position>,
}

impl Positions {
    fn position(&self, site: &Site) -> Position {
        let found = match site {
            Site::Kernel => None,
            Site::Dim(i) => self.dims.get(*i),
            Site::Buffer(i) => self.buffers.get(*i),
            Site::Statement { number, .. } => self.statements.get(*number),
        };
        found.copied().unwrap_or(self.kernel)
    }
}

type Parsed<T> = Result<T, ParseError>;

struct Parser<'a> {
    lexer: Lexer<'a>,
    kernel: Kernel,
    /// Dims and variables by name.
    atoms: HashMap<&'a str, Atom>,
    buffers: HashMap<&'a str, BufferId>,
    values: HashMap<&'a str, ValueId>,
    positions: Positions,
}

impl<'a> Parser<'a> {
    fn kernel(&mut self) -> Parsed<()> {
        self.keyword("kernel")?;
        self.positions.kernel = self.lexer.position;
        self.kernel.name = self.word("the kernel's name")?.to_string();
        if self.lexer.token == Token::Word("where") {
            self.lexer.next()?;
            loop {
                self.positions.dims.push(self.lexer.position);
                self.dim()?;
                if !self.accept(",")? {
                    break;
                }
            }
        }
        self.symbol("{")?;
        while self.lexer.token == Token::Word("buffer") {
            self.positions.buffers.push(self.lexer.position);
            self.buffer()?;
        }
        let body = self.block(0)?;
        self.kernel.body = body;
        self.symbol("}")?;
        match self.lexer.token {
            Token::End => Ok(()),
            _ => Err(self.expected_error("the end of the text")),
        }
    }

    fn dim(&mut self) -> Parsed<()> {
        let dim = DimId(self.kernel.dims.len() as u32);
        let name = self.define_atom(Atom::Dim(dim))?;
        self.keyword("in")?;
        let lo = self.integer()?;
        self.symbol("..=")?;
        let hi = self.integer()?;
        self.kernel.dims.push(Dim { name: name.to_string(), lo, hi });
        Ok(())
    }

    fn buffer(&mut self) -> Parsed<()> {
        self.keyword("buffer")?;
        let position = self.lexer.position;
        let name = self.name("a buffer's name")?;
        if self.buffers.insert(name, BufferId(self.kernel.buffers.len() as u32)).is_some() {
            return Err(position.error(ParseProblem::Duplicate { what: "buffer", name: name.to_string() }));
        }
        self.symbol(":")?;
        let kind = match self.lexer.token {
            Token::Word("read") => BufferKind::Read,
            Token::Word("write") => BufferKind::Write,
            Token::Word("read_write") => BufferKind::ReadWrite,
            Token::Word("scratch") => BufferKind::Scratch,
            Token::Word("index") => BufferKind::Index { below: Affine::default() },
            _ => return Err(self.expected_error("`read`, `write`, `read_write`, `scratch` or `index`")),
        };
        self.lexer.next()?;
        let kind = match kind {
            BufferKind::Index { .. } => {
                self.symbol("(")?;
                let below = self.affine()?;
                self.symbol(")")?;
                BufferKind::Index { below }
            }
            BufferKind::Read | BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => kind,
        };
        let size = self.affine()?;
        self.kernel.buffers.push(Buffer { name: name.to_string(), kind, size });
        Ok(())
    }

    /// Parses statements up to `}` or `yield`.
    fn block(&mut self, depth: usize) -> Parsed<Vec<Stmt>> {
        let mut statements = Vec::new();
        while !matches!(self.lexer.token, Token::Symbol("}") | Token::Word("yield")) {
            self.positions.statements.push(self.lexer.position);
            statements.push(self.statement(depth)?);
        }
        Ok(statements)
    }

    fn statement(&mut self, depth: usize) -> Parsed<Stmt> {
        let mut results = Vec::new();
        if matches!(self.lexer.token, Token::Name(_)) {
            loop {
                let position = self.lexer.position;
                results.push((position, self.name("a value")?));
                if !self.accept(",")? {
                    break;
                }
            }
            self.symbol("=")?;
        }
        let position = self.lexer.position;
        let mnemonic = self.word("an op, `load_index` or `for`")?;
        let count = |expected: &str| {
            let found = format!("{} before `=`", results.len());
            position.error(ParseProblem::Expected { expected: expected.to_string(), found })
        };
        match mnemonic {
            "for" => self.counted_loop(&results, depth, position),
            "load_index" => {
                let &[(at, name)] = results.as_slice() else { return Err(count("one name before `=`")) };
                let address = self.address()?;
                let var = VarId(self.kernel.vars.len() as u32);
                self.insert_atom(at, name, Atom::Var(var))?;
                self.kernel.vars.push(name.to_string());
                Ok(Stmt::LoadIndex { var, address })
            }
            _ => {
                let Some(op) = Op::from_mnemonic(mnemonic) else {
                    return Err(position.error(ParseProblem::Unknown { what: "op", name: format!("`{mnemonic}`") }));
                };
                let has_result = op.row().memory.has_result();
                if results.len() != usize::from(has_result) {
                    let expected = format!("no value before `{mnemonic}`");
                    return Err(count(if has_result { "one value before `=`" } else { &expected }));
                }
                let mut inst = self.instruction(op)?;
                for (at, name) in results {
                    inst.result = Some(self.define(at, name, inst.ty)?);
                }
                Ok(Stmt::Inst(inst))
            }
        }
    }

    /// Parses the text after the mnemonic: the type, then the address or affine expression, the
    /// operands and the immediate.
    fn instruction(&mut self, op: Op) -> Parsed<Inst> {
        let row = op.row();
        let ty = self.ty()?;
        let (mut address, mut index, mut imm) = (None, None, Imm::None);
        let mut operands = Vec::with_capacity(row.operands);
        let mut first = true;
        match row.memory {
            Memory::None => {}
            Memory::Load
            | Memory::LoadElement
            | Memory::Store
            | Memory::LoadRows
            | Memory::StoreRows
            | Memory::Hint => {
                address = Some(self.address()?);
                first = false;
            }
            Memory::Index => {
                index = Some(self.affine()?);
                first = false;
            }
        }
        for _ in 0..row.operands {
            if !std::mem::take(&mut first) {
                self.symbol(",")?;
            }
            operands.push(self.value()?);
        }
        if row.imm != ImmKind::None {
            if !first {
                self.symbol(",")?;
            }
            imm = match row.imm {
                ImmKind::None => Imm::None,
                ImmKind::Scalar if ty.elem == Elem::F32 => Imm::Float(self.float()?),
                ImmKind::Scalar | ImmKind::Int => Imm::Int(self.integer()?),
                ImmKind::Bytes => Imm::Bytes(self.bytes(ty.bytes() as usize)?),
            };
        }
        Ok(Inst { op, ty, operands, imm, address, index, result: None })
    }

    fn counted_loop(&mut self, results: &[(Position, &'a str)], depth: usize, start: Position) -> Parsed<Stmt> {
        if depth >= MAX_DEPTH {
            return Err(start.error(ParseProblem::TooDeep { limit: MAX_DEPTH }));
        }
        let position = self.lexer.position;
        let var = VarId(self.kernel.vars.len() as u32);
        let name = self.name("a variable")?;
        self.keyword("in")?;
        let zero = self.lexer.position;
        if self.integer()? != 0 {
            let (expected, found) = ("`0`, where every loop starts".into(), "another number".into());
            return Err(zero.error(ParseProblem::Expected { expected, found }));
        }
        self.symbol("..")?;
        let trip = self.affine()?;
        self.insert_atom(position, name, Atom::Var(var))?;
        self.kernel.vars.push(name.to_string());
        let mut carries = Vec::new();
        if self.lexer.token == Token::Word("carry") {
            self.lexer.next()?;
            self.symbol("(")?;
            let mut inner = Vec::new();
            loop {
                let position = self.lexer.position;
                let name = self.name("a value")?;
                self.symbol("=")?;
                inner.push((position, name, self.value()?));
                if !self.accept(",")? {
                    break;
                }
            }
            self.symbol(")")?;
            // The loop's inner values are defined only now, after all initial values are parsed. An
            // initial value can therefore not be one of them.
            for (position, name, init) in inner {
                let inner = self.define(position, name, self.kernel.ty(init))?;
                carries.push(Carry { inner, init, next: inner, result: inner });
            }
        }
        if carries.len() != results.len() {
            let expected = format!("{} values before `=`, one for each carried", carries.len());
            return Err(start.error(ParseProblem::Expected { expected, found: results.len().to_string() }));
        }
        self.symbol("{")?;
        let body = self.block(depth + 1)?;
        if !carries.is_empty() {
            self.keyword("yield")?;
        }
        for (i, carry) in carries.iter_mut().enumerate() {
            if i > 0 {
                self.symbol(",")?;
            }
            carry.next = self.value()?;
        }
        self.symbol("}")?;
        for (carry, &(position, name)) in carries.iter_mut().zip(results) {
            carry.result = self.define(position, name, self.kernel.ty(carry.init))?;
        }
        Ok(Stmt::For(For { var, trip, carries, body }))
    }

    fn address(&mut self) -> Parsed<Address> {
        let position = self.lexer.position;
        let name = self.name("a buffer")?;
        let Some(&buffer) = self.buffers.get(name) else {
            return Err(position.error(ParseProblem::Unknown { what: "buffer", name: format!("%{name}") }));
        };
        self.symbol("[")?;
        let offset = self.affine()?;
        self.symbol("]")?;
        Ok(Address { buffer, offset })
    }

    /// Parses an affine expression such as `4*%i - %n + 12`. Terms may have any order, and an atom
    /// may occur several times.
    fn affine(&mut self) -> Parsed<Affine> {
        let mut affine = Affine::default();
        let mut negative = self.accept("-")?;
        loop {
            let position = self.lexer.position;
            let number = match self.lexer.token {
                Token::Number(_) => Some(self.magnitude()?),
                Token::Name(_) => None,
                _ => return Err(self.expected_error("a number, a dim or a variable")),
            };
            let signed = i128::from(number.unwrap_or(1)) * if negative { -1 } else { 1 };
            let atom = match number {
                Some(_) if !self.accept("*")? => None,
                Some(_) | None => Some(self.atom()?),
            };
            let too_large = || {
                let expected = "numbers of at most 64 bits".to_string();
                position.error(ParseProblem::Expected { expected, found: format!("a sum with {signed}") })
            };
            let sum = |old: i64| i64::try_from(i128::from(old) + signed).map_err(|_| too_large());
            match atom {
                None => affine.constant = sum(affine.constant)?,
                Some(atom) => match affine.terms.binary_search_by_key(&atom, |(a, _)| *a) {
                    Ok(i) => affine.terms[i].1 = sum(affine.terms[i].1)?,
                    Err(_) if affine.terms.len() >= MAX_TERMS => {
                        let expected = format!("at most {MAX_TERMS} dims and variables in one expression");
                        return Err(position.error(ParseProblem::Expected { expected, found: "more".into() }));
                    }
                    Err(i) => affine.terms.insert(i, (atom, sum(0)?)),
                },
            }
            negative = self.lexer.token == Token::Symbol("-");
            if !negative && self.lexer.token != Token::Symbol("+") {
                break;
            }
            self.lexer.next()?;
        }
        affine.terms.retain(|(_, c)| *c != 0);
        Ok(affine)
    }

    fn atom(&mut self) -> Parsed<Atom> {
        let position = self.lexer.position;
        let name = self.name("a dim or a variable")?;
        let unknown = ParseProblem::Unknown { what: "dim or variable", name: format!("%{name}") };
        self.atoms.get(name).copied().ok_or_else(|| position.error(unknown))
    }

    fn define_atom(&mut self, atom: Atom) -> Parsed<&'a str> {
        let position = self.lexer.position;
        let name = self.name("a name")?;
        self.insert_atom(position, name, atom)?;
        Ok(name)
    }

    fn insert_atom(&mut self, position: Position, name: &'a str, atom: Atom) -> Parsed<()> {
        match self.atoms.insert(name, atom) {
            None => Ok(()),
            Some(_) => Err(position.error(ParseProblem::Duplicate { what: "dim or variable", name: name.to_string() })),
        }
    }

    fn value(&mut self) -> Parsed<ValueId> {
        let position = self.lexer.position;
        let name = self.name("a value")?;
        let unknown = ParseProblem::Unknown { what: "value", name: format!("%{name} before here") };
        self.values.get(name).copied().ok_or_else(|| position.error(unknown))
    }

    fn define(&mut self, position: Position, name: &'a str, ty: Type) -> Parsed<ValueId> {
        let value = ValueId(self.kernel.values.len() as u32);
        if self.values.insert(name, value).is_some() {
            return Err(position.error(ParseProblem::Duplicate { what: "value", name: name.to_string() }));
        }
        self.kernel.values.push(ty);
        Ok(value)
    }

    fn ty(&mut self) -> Parsed<Type> {
        if self.lexer.token == Token::Word("tile") {
            return self.tile();
        }
        if let Token::Word(word) = self.lexer.token {
            let lanes_of = |elem: Elem| word.strip_prefix(elem.name())?.strip_prefix('x')?.parse().ok();
            let ty = Elem::ALL.into_iter().find_map(|elem| Some(Type::new(elem, lanes_of(elem)?)));
            // A type has only one spelling.
            if let Some(ty) = ty.filter(|ty| ty.is_valid() && ty.to_string() == word) {
                self.lexer.next()?;
                return Ok(ty);
            }
        }
        Err(self.expected_error(&format!(
            "a type as f32x8, of i8, i16, i32, f16, bf16 or f32, lanes a power of two, at most {} bytes",
            Type::MAX_BYTES
        )))
    }

    /// Reads `tile<16x64xi8>`.
    fn tile(&mut self) -> Parsed<Type> {
        self.lexer.next()?;
        self.symbol("<")?;
        if let Token::Number(text) = self.lexer.token {
            let mut parts = text.splitn(3, 'x');
            let rows = parts.next().and_then(|rows| rows.parse().ok());
            let lanes = parts.next().and_then(|lanes| lanes.parse().ok());
            let elem = parts.next().and_then(|name| Elem::ALL.into_iter().find(|elem| elem.name() == name));
            if let (Some(rows), Some(lanes), Some(elem)) = (rows, lanes, elem) {
                let ty = Type::tile(elem, rows, lanes);
                // A type has only one spelling.
                if ty.is_tile() && ty.is_valid() && ty.to_string() == format!("tile<{text}>") {
                    self.lexer.next()?;
                    self.symbol(">")?;
                    return Ok(ty);
                }
            }
        }
        Err(self.expected_error(&format!(
            "rows, lanes and element type of a tile as 16x64xi8, of 1 to {} rows of 4 to {} bytes each, a multiple of 4",
            Type::MAX_ROWS,
            Type::MAX_BYTES
        )))
    }

    fn bytes(&mut self, count: usize) -> Parsed<Vec<u8>> {
        let mut bytes = Vec::with_capacity(count);
        self.symbol("[")?;
        for i in 0..count {
            if i > 0 {
                self.symbol(",")?;
            }
            match self.lexer.token {
                Token::Number(text) if text.parse::<u8>().is_ok() => bytes.extend(text.parse::<u8>()),
                _ => return Err(self.expected_error("a byte, 0 to 255")),
            }
            self.lexer.next()?;
        }
        self.symbol("]")?;
        Ok(bytes)
    }

    fn integer(&mut self) -> Parsed<i64> {
        let position = self.lexer.position;
        let negative = self.accept("-")?;
        let magnitude = i128::from(self.magnitude()?);
        let value = if negative { -magnitude } else { magnitude };
        i64::try_from(value).map_err(|_| {
            let expected = "an integer of 64 bits".into();
            position.error(ParseProblem::Expected { expected, found: format!("`{value}`") })
        })
    }

    fn magnitude(&mut self) -> Parsed<u64> {
        if let Token::Number(text) = self.lexer.token
            && let Ok(value) = text.parse()
        {
            self.lexer.next()?;
            return Ok(value);
        }
        Err(self.expected_error("an integer of 64 bits"))
    }

    fn float(&mut self) -> Parsed<f32> {
        let negative = self.accept("-")?;
        if let Token::Number(text) = self.lexer.token {
            let value = match text.strip_prefix("0x") {
                Some(bits) if !negative => u32::from_str_radix(bits, 16).ok().map(f32::from_bits),
                Some(_) => None,
                None => text.parse().ok().filter(|value: &f32| value.is_finite()),
            };
            if let Some(value) = value {
                self.lexer.next()?;
                return Ok(if negative { -value } else { value });
            }
        }
        Err(self.expected_error("a finite float, or its bits as 0x7fc00000"))
    }

    fn name(&mut self, expected: &str) -> Parsed<&'a str> {
        let Token::Name(name) = self.lexer.token else {
            return Err(self.expected_error(&format!("{expected}, which starts with %")));
        };
        self.lexer.next()?;
        Ok(name)
    }

    fn word(&mut self, expected: &str) -> Parsed<&'a str> {
        let Token::Word(word) = self.lexer.token else { return Err(self.expected_error(expected)) };
        self.lexer.next()?;
        Ok(word)
    }

    fn keyword(&mut self, keyword: &'static str) -> Parsed<()> {
        if self.lexer.token != Token::Word(keyword) {
            return Err(self.expected_error(&format!("`{keyword}`")));
        }
        self.lexer.next()
    }

    fn symbol(&mut self, symbol: &'static str) -> Parsed<()> {
        if self.lexer.token != Token::Symbol(symbol) {
            return Err(self.expected_error(&format!("`{symbol}`")));
        }
        self.lexer.next()
    }

    fn accept(&mut self, symbol: &'static str) -> Parsed<bool> {
        let found = self.lexer.token == Token::Symbol(symbol);
        if found {
            self.lexer.next()?;
        }
        Ok(found)
    }

    fn expected_error(&self, expected: &str) -> ParseError {
        let found = self.lexer.token.to_string();
        self.lexer.position.error(ParseProblem::Expected { expected: expected.to_string(), found })
    }
}
