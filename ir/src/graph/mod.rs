//! Graph IR: a model as SSA over tensors.
//!
//! A [`Module`] has weights, states and one function, `@step`. Weights are symbols, printed without
//! their bytes. States last from step to step ([`crate::state`]). `@step` computes one step of the
//! model for `T` tokens. Its parameters are, in this order, the token ids `i32[T]`, their positions
//! `i32[T]` and the output rows `i32[L]`. Its result is the logits `f32[L, vocab]` of the output
//! rows.
//!
//! Only ops that take and return a state's token touch the state. Order is therefore an edge and
//! never a convention: `state.begin @kv.0` returns the first `token<@kv.0>` of a step. If experts
//! are loaded on demand, their memory is also an object with a token, a plain `token` that
//! `expert.slots` returns. This object exists for one step.
//!
//! ```text
//! weight @output_norm.weight : f32[256] {file = 0, offset = 0x1a000}
//! weight @output.weight : q6_k[4096, 256] {file = 0, offset = 0x1a400}
//! state @kv.0 : paged f16[2, S, 64], f16[2, S, 64]
//! func @step(%ids: i32[T], %pos: i32[T], %rows: i32[L]) -> (f32[L, 4096]) {
//!   ...
//!   %3 = state.begin @kv.0 : token<@kv.0>
//!   %4 = kv.append %3, %k, %v, %pos : token<@kv.0>
//!   %y, %5 = attention %q, %4, %pos, _, _ {scale = 0.125, cap = 0.0} : f32[T, 4, 64], token<@kv.0>
//!   %7 = rms_norm %6, @output_norm.weight {eps = 1e-6} : f32[L, 256]
//!   %8 = dequantise @output.weight : f32[4096, 256]
//!   %9 = matmul %7, %8 : f32[L, 4096]
//!   return %9
//! }
//! ```
//!
//! Shapes are row-major, with the last dimension contiguous: a GGUF tensor with `ne = [256, 4096]`
//! is `[4096, 256]` here.
//!
//! Invariant: nothing here knows a model's architecture by name. Ops and attributes describe the
//! model.

mod attr;
pub mod attrs;
pub mod builder;
pub mod def_use;
pub mod draw;
pub mod expert_layers;
pub mod interpret;
pub mod number;
pub mod op;
pub mod parse;
pub mod print;
pub mod quantise;
pub mod ranks;
pub mod recurrent;
pub mod rewrite;
pub mod shard;
pub mod types;
pub mod verify;
pub mod view;

use serde::{Deserialize, Serialize};

use crate::format::Format;
use crate::state::{Rollback, StateKind};
pub use attr::Attr;
pub use def_use::DefUse;
pub use op::{OpKind, Recurrent, Unary};
pub use rewrite::Rewriter;
pub use shard::Shard;
pub use view::OpView;

/// A dimension: a number or a symbol that gets its value when a step runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dim {
    /// A number.
    Fixed(u64),
    /// A symbol: `T` tokens in this step, `L` output rows.
    Symbol(String),
}

/// Element type of a tensor value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Element {
    /// 32-bit signed integer: ids and positions.
    I32,
    /// A block format; blocks lie along the last dimension.
    Format(Format),
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Type {
    /// A tensor.
    Tensor {
        /// Element type.
        element: Element,
        /// Dimensions, outermost first.
        dims: Vec<Dim>,
    },
    /// A token of a state, of experts' memory or of a group of ranks. An op that touches the object
    /// takes a token and returns the next one.
    Token(TokenOwner),
}

/// Object that a token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TokenOwner {
    /// A state of the module: `token<@kv.0>`.
    State(StateId),
    /// The memory that experts are loaded into: `token`.
    Experts,
    /// The group of ranks that share a model, as one of them sees it: `token[0, 2]`.
    Ranks(Group),
}

/// A rank and its group. Each rank has a graph of its own ([`ranks`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Group {
    /// Number of this rank, below `ranks`.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
}

impl Group {
    /// Maximum number of ranks.
    pub const MAX_RANKS: u32 = 4096;

    /// Whether the group is not too large and has the rank.
    pub fn is_valid(self) -> bool {
        self.rank < self.ranks && self.ranks <= Group::MAX_RANKS
    }
}

impl Type {
    /// `f32[dims]`.
    pub fn f32(dims: impl Into<Vec<Dim>>) -> Type {
        Type::Tensor { element: Element::Format(Format::F32), dims: dims.into() }
    }

    /// `i32[dims]`.
    pub fn i32(dims: impl Into<Vec<Dim>>) -> Type {
        Type::Tensor { element: Element::I32, dims: dims.into() }
    }

    /// `format[dims]`.
    pub fn new(format: Format, dims: impl Into<Vec<Dim>>) -> Type {
        Type::Tensor { element: Element::Format(format), dims: dims.into() }
    }

    /// The dimensions; empty for a token.
    pub fn dims(&self) -> &[Dim] {
        match self {
            Type::Tensor { dims, .. } => dims,
            Type::Token(_) => &[],
        }
    }

    /// The element type, if this is a tensor.
    pub fn element(&self) -> Option<Element> {
        match self {
            Type::Tensor { element, .. } => Some(*element),
            Type::Token(_) => None,
        }
    }

    /// Whether this is a token.
    pub fn is_token(&self) -> bool {
        matches!(self, Type::Token(_))
    }
}

impl Dim {
    /// A symbol.
    pub fn symbol(name: &str) -> Dim {
        Dim::Symbol(name.to_string())
    }

    /// Returns the number, if the dimension is fixed.
    pub fn fixed(&self) -> Option<u64> {
        match self {
            Dim::Fixed(n) => Some(*n),
            Dim::Symbol(_) => None,
        }
    }
}

impl From<u64> for Dim {
    fn from(n: u64) -> Dim {
        Dim::Fixed(n)
    }
}

/// A value of a function. [`Function::values`] has its type and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// A weight of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WeightId(pub u32);

/// A state of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StateId(pub u32);

impl StateId {
    /// Position in [`Module::states`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ValueId {
    /// Position in [`Function::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl WeightId {
    /// Position in [`Module::weights`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Location of a weight's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Number of the model file.
    pub file: u32,
    /// Byte offset in the file.
    pub offset: u64,
}

/// A slice of a tensor's rows that is a weight. If the tensor has a matrix for each expert, the
/// slice applies to every matrix.
///
/// ```text
/// weight @gate : q4_k[8, 512, 256] {file = 0, offset = 0x0, tensor = "gate_up", rows = 1024, from = 0}
/// weight @up : q4_k[8, 512, 256] {file = 0, offset = 0x0, tensor = "gate_up", rows = 1024, from = 512}
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The tensor's name in the model file.
    pub tensor: String,
    /// Rows of the tensor's matrix, or of each expert's matrix.
    pub rows: u64,
    /// First row that belongs to the weight.
    pub from: u64,
}

/// A weight: a symbol with its format, shape and place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// The tensor's name in the model file, or a name for a part of one.
    pub name: String,
    /// Storage format.
    pub format: Format,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Location of the bytes. `None` in hand-written text.
    pub place: Option<Place>,
    /// Slice of a tensor that this weight is, or `None` for a whole tensor. `place` is the location
    /// of the whole tensor.
    pub part: Option<Part>,
    /// Decisions of passes about the weight.
    pub choice: WeightChoices,
}

impl Weight {
    /// Returns the shape before a slice for this rank.
    pub fn whole_shape(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if let Some(shard) = &self.choice.shard
            && let Some(dim) = shape.get_mut(shard.dim as usize)
        {
            *dim = shard.of;
        }
        shape
    }

    /// Returns the shape of the tensor in the file.
    pub fn tensor_shape(&self) -> Vec<u64> {
        let mut shape = self.whole_shape();
        if let (Some(part), [.., rows, _]) = (&self.part, &mut shape[..]) {
            *rows = part.rows;
        }
        shape
    }

    /// Returns the name of the tensor in the file.
    pub fn tensor(&self) -> &str {
        let whole = self.choice.shard.as_ref().map_or(&self.name, |shard| &shard.weight);
        self.part.as_ref().map_or(whole, |part| &part.tensor)
    }

    /// Returns the format of the tensor in the file.
    pub fn stored_format(&self) -> Format {
        self.choice.stored.unwrap_or(self.format)
    }
}

/// Decisions of passes about a weight. A frontend leaves them empty. Only the kernels know the
/// meaning of a tiling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightChoices {
    /// Format of the tensor in the file, if the weight is requantised from it.
    pub stored: Option<Format>,
    /// Format that products read, if it differs from the file's format.
    pub layout: Option<Format>,
    /// Format of the activations in products with the weight.
    pub activations: Option<Format>,
    /// Tiling of the weight's products.
    pub tile: Option<String>,
    /// Reason for the tiling.
    pub why: Option<String>,
    /// Slice that this rank has of the weight, or `None` for all of it. The shape is the slice's.
    /// `place` and `part` are those of the whole weight.
    pub shard: Option<Shard>,
}

/// A field of a state: `f16[8, S, 128]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Element format.
    pub format: Format,
    /// Dimensions, outermost first; the symbol [`crate::state::POSITIONS`] counts positions.
    pub dims: Vec<Dim>,
}

/// A state: a symbol with its kind, its fields and its rollback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Name of the state.
    pub name: String,
    /// Kind of the state.
    pub kind: StateKind,
    /// Fields, as the kind lists them.
    pub fields: Vec<Field>,
    /// Method of returning to an earlier position.
    pub rollback: Rollback,
    /// Number of positions that a token needs, including the token's position. `None` means all
    /// positions up to and including it.
    pub window: Option<u64>,
    /// Number of positions that share one entry of the state. The last of these positions writes
    /// the entry. With 1, each position has its own.
    pub every: u64,
    /// Whether the window is a chunk: a token needs the positions from the last multiple of
    /// `window` on, and none before them.
    pub chunked: bool,
}

impl State {
    /// Returns a state with keys and values of `heads` heads for every position.
    pub fn paged(name: &str, heads: u64, key: u64, value: u64) -> State {
        let field = |format, width: u64| {
            let dims = vec![heads.into(), Dim::symbol(crate::state::POSITIONS), width.into()];
            Field { format, dims }
        };
        let fields = StateKind::Paged.row().fields.iter().zip([key, value]);
        State {
            name: name.to_string(),
            kind: StateKind::Paged,
            fields: fields.map(|(row, width)| field(row.format(), width)).collect(),
            rollback: Rollback::Cut,
            window: None,
            every: 1,
            chunked: false,
        }
    }

    /// Returns a state with one value of these dimensions, which every token updates.
    pub fn recurrent(name: &str, dims: &[u64], rollback: Rollback) -> State {
        let fields = StateKind::Recurrent.row().fields.iter();
        let dims: Vec<Dim> = dims.iter().map(|&n| n.into()).collect();
        State {
            name: name.to_string(),
            kind: StateKind::Recurrent,
            fields: fields.map(|row| Field { format: row.format(), dims: dims.clone() }).collect(),
            rollback,
            window: None,
            every: 1,
            chunked: false,
        }
    }
}

/// An operand of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operand {
    /// A value.
    Value(ValueId),
    /// A weight.
    Weight(WeightId),
    /// A state, of `state.begin`.
    State(StateId),
    /// An optional operand that is absent, `_` in text.
    Absent,
}

impl Operand {
    /// Returns the value, if the operand is one.
    pub fn value(self) -> Option<ValueId> {
        match self {
            Operand::Value(value) => Some(value),
            Operand::Weight(_) | Operand::State(_) | Operand::Absent => None,
        }
    }

    /// Applies `change` to the operand's value, if the operand is a value.
    pub fn map_value(self, change: impl FnOnce(ValueId) -> ValueId) -> Operand {
        match self {
            Operand::Value(value) => Operand::Value(change(value)),
            Operand::Weight(_) | Operand::State(_) | Operand::Absent => self,
        }
    }

    /// Returns the weight, if the operand is one.
    pub fn weight(self) -> Option<WeightId> {
        match self {
            Operand::Weight(weight) => Some(weight),
            Operand::Value(_) | Operand::State(_) | Operand::Absent => None,
        }
    }
}

/// An op of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Op {
    /// The computation.
    pub kind: OpKind,
    /// Operands, in the order of the op table.
    pub operands: Vec<Operand>,
    /// Attributes, in the order of the op table.
    pub attrs: Vec<Attr>,
    /// Values that the op defines.
    pub results: Vec<ValueId>,
}

impl Op {
    /// Returns the values that the op takes, each with its position among the operands.
    pub fn values(&self) -> impl Iterator<Item = (usize, ValueId)> + '_ {
        self.operands.iter().enumerate().filter_map(|(i, operand)| Some((i, operand.value()?)))
    }

    /// Returns the weights that the op takes.
    pub fn weights(&self) -> impl Iterator<Item = WeightId> + '_ {
        self.operands.iter().filter_map(|operand| operand.weight())
    }

    /// Returns the attribute `name`, which the op table must list.
    pub fn attr(&self, name: &str) -> &Attr {
        match self.kind.row().attrs.iter().position(|a| a.name == name) {
            Some(i) => &self.attrs[i],
            None => unreachable!("{} has no attribute {name}", self.kind.row().mnemonic),
        }
    }

    /// Whether this op reads data of other tokens of the sequence from a state. Every layer has
    /// such an op.
    pub fn mixes(&self, function: &Function) -> bool {
        let mut types = self.results.iter().map(|&result| function.ty(result));
        let (mut data, mut state) = (false, false);
        types.by_ref().for_each(|ty| match ty {
            Type::Tensor { .. } => data = true,
            Type::Token(TokenOwner::State(_)) => state = true,
            Type::Token(TokenOwner::Experts | TokenOwner::Ranks(_)) => {}
        });
        data && state
    }

    /// Returns the operand `name`, which the op table must list.
    pub fn operand(&self, name: &str) -> Operand {
        match self.kind.row().operands.iter().position(|o| o.name == name) {
            Some(i) => self.operands[i],
            None => unreachable!("{} has no operand {name}", self.kind.row().mnemonic),
        }
    }
}

/// A value's type and name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueData {
    /// Name without the sigil. Numbered values have none.
    pub name: Option<String>,
    /// Type of the value.
    pub ty: Type,
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Name without the sigil.
    pub name: String,
    /// Parameters of the function.
    pub params: Vec<ValueId>,
    /// Ops in order.
    pub ops: Vec<Op>,
    /// Results of the function.
    pub results: Vec<ValueId>,
    /// All values.
    pub values: Vec<ValueData>,
}

impl Function {
    /// Returns the type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        &self.values[value.index()].ty
    }

    /// Returns the value's label in messages: `%name`, or `%` and its number.
    pub fn label(&self, value: ValueId) -> String {
        match self.values.get(value.index()).and_then(|value| value.name.as_ref()) {
            Some(name) => format!("%{name}"),
            None => format!("%{}", value.0),
        }
    }

    /// Adds a value.
    pub fn add_value(&mut self, name: Option<&str>, ty: Type) -> ValueId {
        self.values.push(ValueData { name: name.map(str::to_string), ty });
        ValueId(self.values.len() as u32 - 1)
    }

    /// Adds a parameter.
    pub fn add_param(&mut self, name: &str, ty: Type) -> ValueId {
        let value = self.add_value(Some(name), ty);
        self.params.push(value);
        value
    }

    /// Appends an op with results of these types.
    pub fn push(&mut self, kind: OpKind, operands: Vec<Operand>, attrs: Vec<Attr>, types: Vec<Type>) -> Vec<ValueId> {
        let results: Vec<ValueId> = types.into_iter().map(|ty| self.add_value(None, ty)).collect();
        self.ops.push(Op { kind, operands, attrs, results: results.clone() });
        results
    }
}

/// A module: weights, states and functions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// Weights.
    pub weights: Vec<Weight>,
    /// States.
    pub states: Vec<State>,
    /// Functions; a model has one, `step`.
    pub functions: Vec<Function>,
}
