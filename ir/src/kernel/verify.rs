//! The kernel verifier: it proves the properties that lowerings rely on, also for untrusted
//! kernels.
//!
//! The input is any [`Kernel`], also one from a hostile plan. If the result is `Ok`, these
//! statements hold:
//!
//! - Every id is in range and every type is valid. Every op has the operands, types and immediate
//!   of the op table.
//! - Every value and variable is defined once, before its uses, which are in the same body or in a
//!   nested one.
//! - No affine expression overflows 64 bits, for any dims with which it is evaluated. Trip counts
//!   are never negative. A buffer with a negative size has no bytes, and no access to it.
//! - **Every access lies inside its declared buffer**, and the buffer's kind allows it. This holds
//!   for all dims in their ranges and all index values below their limit; [`bounds`] has the proof.
//!   Index values are loaded only from offsets that the caller has checked.
//!
//! The *time* of a kernel has no bound: a hostile plan may loop for a long time.
//!
//! ```text
//! for %i in 0..%n { %0 = load f32x8 %x[32*%i + 4] ... }     with %x of 32*%n bytes
//! -> statement 1 (`load`): reads up to byte 36 of a buffer of 32 bytes (32*%n + 4 of 32*%n) ...
//! ```

pub mod bounds;

use super::op::{ImmKind, Memory};
use super::*;

/// Maximum nesting of loops.
pub const MAX_DEPTH: usize = 32;
/// Maximum number of dims, and of terms of one affine expression.
pub const MAX_TERMS: usize = 64;
/// Maximum number of bytes of a name.
pub const MAX_NAME: usize = 200;
/// Maximum number of values, of variables, of buffers and of statements. It is a hundred times that
/// of the largest kernel that `ixc` generates.
pub const MAX_ITEMS: usize = 1 << 20;

/// Part of a kernel to which an error belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    /// The kernel as a whole.
    Kernel,
    /// A dim, by its index.
    Dim(usize),
    /// A buffer, by its index.
    Buffer(usize),
    /// A statement.
    Statement {
        /// Index in the order of the text, from 0. A loop comes before the statements of its body.
        number: usize,
        /// Mnemonic of the op, `for` or `load_index`.
        what: &'static str,
    },
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Site::Kernel => f.write_str("kernel"),
            Site::Dim(i) => write!(f, "dim {i}"),
            Site::Buffer(i) => write!(f, "buffer {i}"),
            Site::Statement { number, what } => write!(f, "statement {number} (`{what}`)"),
        }
    }
}

/// Error of the verifier: the kernel must not be run or lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{site}: {problem}")]
pub struct VerifyError {
    /// Location of the problem.
    pub site: Site,
    /// The problem, and the expectation.
    #[source]
    pub problem: Problem,
}

/// A problem of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// More items of one kind than the verifier accepts.
    #[error("{found} {what}, at most {max} are allowed")]
    TooMany {
        /// Name of the items, such as `dims`, `values` or `nested loops`.
        what: &'static str,
        /// Number of these items in the kernel.
        found: usize,
        /// Maximum number of these items.
        max: usize,
    },
    /// A name that is not allowed.
    #[error("name {name:?} must be a letter or `_`, then at most {MAX_NAME} letters, digits, `_` and `.`")]
    Name {
        /// The name, cut to [`MAX_NAME`].
        name: String,
    },
    /// A name that is already used.
    #[error("name %{name} is taken; dims and variables must have unique names, and so must buffers")]
    Duplicate {
        /// Name that is used twice.
        name: String,
    },
    /// A dim with an invalid range.
    #[error("range {lo}..={hi} must satisfy 0 <= lo <= hi <= {}", Dim::MAX)]
    DimRange {
        /// Smallest value of the range.
        lo: i64,
        /// Largest value of the range.
        hi: i64,
    },
    /// An id of an item that the kernel does not have.
    #[error("{what} {found} does not exist, the kernel has {count}")]
    Id {
        /// Kind of the item: `value`, `variable`, `dim` or `buffer`.
        what: &'static str,
        /// The id.
        found: u32,
        /// Number of items of this kind in the kernel.
        count: usize,
    },
    /// A type that [`Type::is_valid`] rejects.
    #[error(
        "value {value} has type {ty}; a vector has a power of two of lanes and at most {} bytes, a tile 1 to {} rows of 4 to {} bytes each, a multiple of 4",
        Type::MAX_BYTES,
        Type::MAX_ROWS,
        Type::MAX_BYTES
    )]
    InvalidType {
        /// Id of the value.
        value: u32,
        /// Type of the value.
        ty: Type,
    },
    /// A statement that does not fit its op's row of the op table.
    #[error("the statement must have {expected}, found {found}")]
    Shape {
        /// Description of the expected shape.
        expected: String,
        /// Description of the actual shape.
        found: String,
    },
    /// Types that break the op's type rule.
    #[error("expected {expected}")]
    Types {
        /// Text of the expected and the actual types.
        expected: String,
    },
    /// A value that a loop carries, and whose four types are not all equal.
    #[error(
        "carried value {carry} must have one type throughout, found init {init}, inner {inner}, next {next}, result {result}"
    )]
    CarryTypes {
        /// Index of the carried value in the loop.
        carry: usize,
        /// Type before the loop.
        init: Type,
        /// Type in the body.
        inner: Type,
        /// Type of the value that the body passes to the next iteration.
        next: Type,
        /// Type after the loop.
        result: Type,
    },
    /// A value or variable that is used where it is not defined.
    #[error("{what} %{name} is not defined here; it must be defined before, in this body or one around it")]
    Undefined {
        /// Kind of the item: `value` or `variable`.
        what: &'static str,
        /// Number of the value, or name of the variable.
        name: String,
    },
    /// A value or variable that is defined twice.
    #[error("{what} %{name} is defined already; it must be defined once")]
    Redefined {
        /// Kind of the item: `value` or `variable`.
        what: &'static str,
        /// Number of the value, or name of the variable.
        name: String,
    },
    /// An affine expression whose terms are not sorted, or that has a zero coefficient.
    #[error("terms of an affine expression must be sorted, without repetition and without zeros")]
    NotNormal,
    /// An affine expression with variables, in a place where only dims are allowed.
    #[error("{what} may vary with dims only")]
    NotOverDims {
        /// Place of the expression: `trip`, `size` or `below`.
        what: &'static str,
    },
    /// A number in an affine expression that is beyond its limit.
    #[error("{what} {found} must be in -{max}..={max}")]
    Coefficient {
        /// Role of the number: `coefficient` or `constant`.
        what: &'static str,
        /// The number that is too large.
        found: i64,
        /// Largest allowed magnitude.
        max: i64,
    },
    /// An affine expression whose value could overflow.
    #[error("affine expression reaches {reach}, must stay below 2^{}", bounds::REACH_BITS)]
    Reach {
        /// Sum of the largest magnitudes of the expression's terms.
        reach: i128,
    },
    /// A trip count or bound that is negative for some dims.
    #[error("{what} is {least} for some dims, must be 0 or more for all dims")]
    Negative {
        /// Place of the expression: `trip` or `below`.
        what: &'static str,
        /// Minimum value of the expression.
        least: i128,
    },
    /// An access that the buffer's kind does not allow.
    #[error("buffer %{buffer} is `{kind}`, must be {expected}")]
    Forbidden {
        /// Name of the buffer.
        buffer: String,
        /// Keyword of the buffer's kind.
        kind: &'static str,
        /// Kinds that allow the access.
        expected: &'static str,
    },
    /// An access that may begin before the start of its buffer.
    #[error("offset in buffer %{buffer} can be {least}, must be 0 or more")]
    BeforeStart {
        /// Name of the buffer.
        buffer: String,
        /// Minimum offset of the access.
        least: i128,
    },
    /// An access that may end after the end of its buffer.
    #[error(
        "the access ends up to {excess} bytes after the end of buffer %{buffer}, must end inside for all dims in range"
    )]
    AfterEnd {
        /// Name of the buffer.
        buffer: String,
        /// Maximum number of bytes after the end of the buffer.
        excess: i128,
    },
    /// A load of an index value at an offset that is not a multiple of 4. The caller has not
    /// checked such values.
    #[error("index values must be read at multiples of 4, as the caller checks them; found {found}")]
    IndexAlignment {
        /// Constant or coefficient of the offset that is not a multiple of 4.
        found: i64,
    },
}

/// Proves that a kernel is well formed and stays inside its buffers.
///
/// # Errors
/// Returns the first violation of the rules in the module's documentation.
pub fn verify(kernel: &Kernel) -> Result<(), VerifyError> {
    structure(kernel)?;
    bounds::prove(kernel)
}

/// Proves all rules of the module's documentation except the bounds of accesses.
/// [`super::interpret`] needs only these, since it checks every access itself.
///
/// # Errors
/// Returns the first violation.
pub fn structure(kernel: &Kernel) -> Result<(), VerifyError> {
    let at = |site: Site| move |problem| VerifyError { site, problem };
    limits(kernel).and_then(|()| names(kernel)).map_err(at(Site::Kernel))?;
    for (i, dim) in kernel.dims.iter().enumerate() {
        if !(0 <= dim.lo && dim.lo <= dim.hi && dim.hi <= Dim::MAX) {
            return Err(at(Site::Dim(i))(Problem::DimRange { lo: dim.lo, hi: dim.hi }));
        }
    }
    let mut checker = Checker {
        kernel,
        values: vec![State::Undefined; kernel.values.len()],
        vars: vec![State::Undefined; kernel.vars.len()],
        statements: 0,
    };
    for (i, buffer) in kernel.buffers.iter().enumerate() {
        checker.affine_over_dims(&buffer.size, "size").map_err(at(Site::Buffer(i)))?;
        if let BufferKind::Index { below } = &buffer.kind {
            checker.affine_over_dims(below, "below").map_err(at(Site::Buffer(i)))?;
        }
    }
    checker.statements_of(&kernel.body, 0, &mut Vec::new(), &mut Vec::new())
}

/// Whether a kernel, a dim, a buffer or a variable may have this name.
pub fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'.')
}

fn limits(kernel: &Kernel) -> Result<(), Problem> {
    let counts = [
        ("dims", kernel.dims.len(), MAX_TERMS),
        ("buffers", kernel.buffers.len(), MAX_ITEMS),
        ("values", kernel.values.len(), MAX_ITEMS),
        ("variables", kernel.vars.len(), MAX_ITEMS),
    ];
    for (what, found, max) in counts {
        if found > max {
            return Err(Problem::TooMany { what, found, max });
        }
    }
    match kernel.values.iter().position(|ty| !ty.is_valid()) {
        Some(value) => Err(Problem::InvalidType { value: value as u32, ty: kernel.values[value] }),
        None => Ok(()),
    }
}

fn names(kernel: &Kernel) -> Result<(), Problem> {
    fn all_unique<'a>(names: impl Iterator<Item = &'a String>) -> Result<(), Problem> {
        let mut seen = std::collections::HashSet::new();
        for name in names {
            if !is_name(name) {
                return Err(Problem::Name { name: name.chars().take(MAX_NAME).collect() });
            }
            if !seen.insert(name) {
                return Err(Problem::Duplicate { name: name.clone() });
            }
        }
        Ok(())
    }
    all_unique(std::iter::once(&kernel.name))?;
    all_unique(kernel.dims.iter().map(|dim| &dim.name).chain(&kernel.vars))?;
    all_unique(kernel.buffers.iter().map(|buffer| &buffer.name))
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Undefined,
    InScope,
    /// Defined in a loop body that has ended, and thus no longer in scope.
    Left,
}

struct Checker<'a> {
    kernel: &'a Kernel,
    values: Vec<State>,
    vars: Vec<State>,
    statements: usize,
}

impl Checker<'_> {
    fn statements_of(
        &mut self,
        statements: &[Stmt],
        depth: usize,
        values: &mut Vec<ValueId>,
        vars: &mut Vec<VarId>,
    ) -> Result<(), VerifyError> {
        for statement in statements {
            let site = Site::Statement { number: self.statements, what: what(statement) };
            let at = |problem| VerifyError { site: site.clone(), problem };
            self.statements += 1;
            if self.statements > MAX_ITEMS {
                let problem = Problem::TooMany { what: "statements", found: self.statements, max: MAX_ITEMS };
                return Err(at(problem));
            }
            match statement {
                Stmt::Inst(inst) => {
                    self.inst(inst).map_err(at)?;
                    values.extend(inst.result);
                }
                Stmt::LoadIndex { var, address } => {
                    self.address(address).and_then(|()| self.define_var(*var)).map_err(at)?;
                    vars.push(*var);
                }
                Stmt::For(f) => {
                    self.enter(f, depth).map_err(at)?;
                    let mut inner: Vec<ValueId> = f.carries.iter().map(|carry| carry.inner).collect();
                    let mut inner_vars = vec![f.var];
                    self.statements_of(&f.body, depth + 1, &mut inner, &mut inner_vars)?;
                    self.carries(f).map_err(at)?;
                    inner.into_iter().for_each(|value| self.values[value.index()] = State::Left);
                    inner_vars.into_iter().for_each(|var| self.vars[var.index()] = State::Left);
                    for carry in &f.carries {
                        self.define(carry.result).map_err(at)?;
                        values.push(carry.result);
                    }
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, f: &For, depth: usize) -> Result<(), Problem> {
        if depth >= MAX_DEPTH {
            return Err(Problem::TooMany { what: "nested loops", found: depth + 1, max: MAX_DEPTH });
        }
        self.affine_over_dims(&f.trip, "trip")?;
        f.carries.iter().try_for_each(|carry| self.check_use(carry.init))?;
        self.define_var(f.var)?;
        f.carries.iter().try_for_each(|carry| self.define(carry.inner))
    }

    /// Checks the carried values of a loop at the end of its body, while the values of the body are
    /// in scope.
    fn carries(&mut self, f: &For) -> Result<(), Problem> {
        for (number, carry) in f.carries.iter().enumerate() {
            self.check_use(carry.next)?;
            self.value_exists(carry.result)?;
            let ty = |value: ValueId| self.kernel.ty(value);
            let (init, inner, next, result) = (ty(carry.init), ty(carry.inner), ty(carry.next), ty(carry.result));
            if inner != init || next != init || result != init {
                return Err(Problem::CarryTypes { carry: number, init, inner, next, result });
            }
        }
        Ok(())
    }

    fn inst(&mut self, inst: &Inst) -> Result<(), Problem> {
        let row = inst.op.row();
        let shape = |expected: String, found: String| Err(Problem::Shape { expected, found });
        if !inst.ty.is_valid() {
            let value = inst.result.map_or(u32::MAX, |result| result.0);
            return Err(Problem::InvalidType { value, ty: inst.ty });
        }
        if inst.operands.len() != row.operands {
            return shape(format!("{} operands", row.operands), format!("{}", inst.operands.len()));
        }
        inst.operands.iter().try_for_each(|&operand| self.check_use(operand))?;
        let immediate = self.immediate(inst)?;
        let mut operands = [inst.ty; 3];
        for (ty, &operand) in operands.iter_mut().zip(&inst.operands) {
            *ty = self.kernel.ty(operand);
        }
        (row.rule)(&operands[..row.operands.min(3)], inst.ty, immediate)
            .map_err(|expected| Problem::Types { expected })?;
        let (address, index, result) = match row.memory {
            Memory::None => (false, false, true),
            Memory::Load | Memory::LoadElement | Memory::LoadRows => (true, false, true),
            Memory::Store | Memory::StoreRows | Memory::Hint => (true, false, false),
            Memory::Index => (false, true, true),
        };
        let yes_no = |needed: bool, what: &str| format!("{} {what}", if needed { "an" } else { "no" });
        if inst.address.is_some() != address {
            return shape(yes_no(address, "address"), yes_no(!address, "address"));
        }
        if inst.index.is_some() != index {
            return shape(yes_no(index, "affine value"), yes_no(!index, "affine value"));
        }
        if inst.result.is_some() != result {
            return shape(yes_no(result, "result"), yes_no(!result, "result"));
        }
        if let Some(affine) = &inst.index {
            self.affine(affine)?;
        }
        if let Some(address) = &inst.address {
            self.address(address)?;
        }
        if let Some(result) = inst.result {
            self.define(result)?;
            if self.kernel.ty(result) != inst.ty {
                return shape(format!("type {} as its result has", self.kernel.ty(result)), inst.ty.to_string());
            }
        }
        Ok(())
    }

    /// Checks the immediate of an instruction. Returns its value as an integer, for the type rule.
    fn immediate(&self, inst: &Inst) -> Result<i64, Problem> {
        let ty = inst.ty;
        let bits = 8 * ty.elem.bytes();
        let expected = match (inst.op.row().imm, &inst.imm) {
            (ImmKind::None, Imm::None) => return Ok(0),
            (ImmKind::Int, Imm::Int(value)) => return Ok(*value),
            (ImmKind::Bytes, Imm::Bytes(bytes)) if bytes.len() == ty.bytes() as usize => return Ok(0),
            (ImmKind::Scalar, Imm::Float(_)) if ty.elem == Elem::F32 => return Ok(0),
            // An integer immediate may be in the signed or in the unsigned range of the element
            // type.
            (ImmKind::Scalar, Imm::Int(value))
                if ty.elem != Elem::F32 && (-(1i64 << (bits - 1))..1i64 << bits).contains(value) =>
            {
                return Ok(0);
            }
            (ImmKind::None, _) => "no immediate".to_string(),
            (ImmKind::Int, _) => "an integer immediate".to_string(),
            (ImmKind::Bytes, _) => format!("{} bytes as immediate", ty.bytes()),
            (ImmKind::Scalar, _) if ty.elem == Elem::F32 => "a float immediate".to_string(),
            (ImmKind::Scalar, _) => format!("an integer immediate of {bits} bits"),
        };
        let found = match &inst.imm {
            Imm::None => "none".to_string(),
            Imm::Int(value) => format!("the integer {value}"),
            Imm::Float(value) => format!("the float {value:?}"),
            Imm::Bytes(bytes) => format!("{} bytes", bytes.len()),
        };
        Err(Problem::Shape { expected, found })
    }

    fn address(&self, address: &Address) -> Result<(), Problem> {
        let (found, count) = (address.buffer.0, self.kernel.buffers.len());
        if address.buffer.index() >= count {
            return Err(Problem::Id { what: "buffer", found, count });
        }
        self.affine(&address.offset)
    }

    fn affine_over_dims(&self, affine: &Affine, what: &'static str) -> Result<(), Problem> {
        if !affine.is_over_dims() {
            return Err(Problem::NotOverDims { what });
        }
        self.affine(affine)
    }

    fn affine(&self, affine: &Affine) -> Result<(), Problem> {
        let found = affine.terms.len();
        if found > MAX_TERMS {
            return Err(Problem::TooMany { what: "terms", found, max: MAX_TERMS });
        }
        let sorted = affine.terms.is_sorted_by(|(a, _), (b, _)| a < b);
        if !sorted || affine.terms.iter().any(|(_, c)| *c == 0) {
            return Err(Problem::NotNormal);
        }
        let limit = |what, found: i64, max: i64| match found.unsigned_abs() <= max as u64 {
            true => Ok(()),
            false => Err(Problem::Coefficient { what, found, max }),
        };
        limit("constant", affine.constant, Affine::MAX_CONSTANT)?;
        for &(atom, c) in &affine.terms {
            limit("coefficient", c, Affine::MAX_COEFFICIENT)?;
            match atom {
                Atom::Dim(dim) if dim.index() < self.kernel.dims.len() => {}
                Atom::Dim(dim) => {
                    return Err(Problem::Id { what: "dim", found: dim.0, count: self.kernel.dims.len() });
                }
                Atom::Var(var) => {
                    self.var_exists(var)?;
                    if self.vars[var.index()] != State::InScope {
                        let name = self.kernel.vars[var.index()].clone();
                        return Err(Problem::Undefined { what: "variable", name });
                    }
                }
            }
        }
        Ok(())
    }

    fn value_exists(&self, value: ValueId) -> Result<(), Problem> {
        let count = self.values.len();
        if value.index() < count { Ok(()) } else { Err(Problem::Id { what: "value", found: value.0, count }) }
    }

    fn var_exists(&self, var: VarId) -> Result<(), Problem> {
        let count = self.vars.len();
        if var.index() < count { Ok(()) } else { Err(Problem::Id { what: "variable", found: var.0, count }) }
    }

    fn check_use(&self, value: ValueId) -> Result<(), Problem> {
        self.value_exists(value)?;
        match self.values[value.index()] {
            State::InScope => Ok(()),
            State::Undefined | State::Left => Err(Problem::Undefined { what: "value", name: value.0.to_string() }),
        }
    }

    fn define(&mut self, value: ValueId) -> Result<(), Problem> {
        self.value_exists(value)?;
        match std::mem::replace(&mut self.values[value.index()], State::InScope) {
            State::Undefined => Ok(()),
            State::InScope | State::Left => Err(Problem::Redefined { what: "value", name: value.0.to_string() }),
        }
    }

    fn define_var(&mut self, var: VarId) -> Result<(), Problem> {
        self.var_exists(var)?;
        match std::mem::replace(&mut self.vars[var.index()], State::InScope) {
            State::Undefined => Ok(()),
            State::InScope | State::Left => {
                Err(Problem::Redefined { what: "variable", name: self.kernel.vars[var.index()].clone() })
            }
        }
    }
}

/// Returns the mnemonic or keyword of a statement.
pub(super) fn what(statement: &Stmt) -> &'static str {
    match statement {
        Stmt::Inst(inst) => inst.op.row().mnemonic,
        Stmt::For(_) => "for",
        Stmt::LoadIndex { .. } => "load_index",
    }
}
