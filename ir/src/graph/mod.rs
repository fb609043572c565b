//! Graph IR: a model as SSA over tensors.
//!
//! A [`Module`] has weights, states and one function, `@step`. Weights are symbols, printed without
//! their bytes. States last from step to step ([`crate::state`]). `@step` computes one step of the
//! model for `T` tokens. Its parameters are, in this order, the token ids `i32[T]`, their positions
//! `i32[T]` and the output rows `i32[L]`. Its result is the logits `f32[L, vocab]` of the output
//! rows.
//!
//! Only ops that take and return the token of a state may access the state. The order of these ops
//! is thus an edge of the graph: `state.begin @kv.0` returns the first `token<@kv.0>` of a step.
//! The memory for experts that are loaded on demand also has a token, a plain `token` that
//! `expert.slots` returns. This memory object exists for one step.
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
//! Invariant: this crate knows no model architecture by name. Ops and attributes describe the
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
    /// Block format. Blocks are along the last dimension.
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
    /// A token of a state, of the experts' memory or of a group of ranks. An op that accesses this
    /// object takes the token and returns the next one.
    Token(TokenOwner),
}

/// Object whose accesses a token puts in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TokenOwner {
    /// State of the module: `token<@kv.0>`.
    State(StateId),
    /// Memory for experts that are loaded on demand: `token`.
    Experts,
    /// Group of ranks that compute a model together, and the rank of this graph: `token[0, 2]`.
    Ranks(Group),
}

/// Number of a rank and size of its group. Each rank has its own graph ([`ranks`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Group {
    /// Number of this rank, below `ranks`.
    pub rank: u32,
    /// Number of ranks in the group.
    pub ranks: u32,
}

impl Group {
    /// Maximum number of ranks.
    pub const MAX_RANKS: u32 = 4096;

    /// Whether the number of ranks is at most [`MAX_RANKS`](Group::MAX_RANKS) and the rank is below
    /// it.
    pub fn is_valid(self) -> bool {
        self.rank < self.ranks && self.ranks <= Group::MAX_RANKS
    }
}

impl Type {
    /// Returns the type `f32[dims]`.
    pub fn f32(dims: impl Into<Vec<Dim>>) -> Type {
        Type::Tensor { element: Element::Format(Format::F32), dims: dims.into() }
    }

    /// Returns the type `i32[dims]`.
    pub fn i32(dims: impl Into<Vec<Dim>>) -> Type {
        Type::Tensor { element: Element::I32, dims: dims.into() }
    }

    /// Returns the type `format[dims]`.
    pub fn new(format: Format, dims: impl Into<Vec<Dim>>) -> Type {
        Type::Tensor { element: Element::Format(format), dims: dims.into() }
    }

    /// Returns the dimensions of a tensor. They are empty for a token.
    pub fn dims(&self) -> &[Dim] {
        match self {
            Type::Tensor { dims, .. } => dims,
            Type::Token(_) => &[],
        }
    }

    /// Returns the element type, or `None` for a token.
    pub fn element(&self) -> Option<Element> {
        match self {
            Type::Tensor { element, .. } => Some(*element),
            Type::Token(_) => None,
        }
    }

    /// Whether this is the type of a token.
    pub fn is_token(&self) -> bool {
        matches!(self, Type::Token(_))
    }
}

impl Dim {
    /// Returns a symbolic dimension.
    pub fn symbol(name: &str) -> Dim {
        Dim::Symbol(name.to_string())
    }

    /// Returns the number of a fixed dimension, or `None` for a symbol.
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

/// Index of a value of a function. [`Function::values`] has the value's type and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// Index of a weight of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WeightId(pub u32);

/// Index of a state of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StateId(pub u32);

impl StateId {
    /// Returns the index in [`Module::states`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ValueId {
    /// Returns the index in [`Function::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl WeightId {
    /// Returns the index in [`Module::weights`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Location of a weight's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Index of the model file.
    pub file: u32,
    /// Byte offset in the file.
    pub offset: u64,
}

/// A range of rows of a tensor that is a weight of its own. If the tensor has a matrix for each
/// expert, the range applies to every expert's matrix.
///
/// ```text
/// weight @gate : q4_k[8, 512, 256] {file = 0, offset = 0x0, tensor = "gate_up", rows = 1024, from = 0}
/// weight @up : q4_k[8, 512, 256] {file = 0, offset = 0x0, tensor = "gate_up", rows = 1024, from = 512}
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The tensor's name in the model file.
    pub tensor: String,
    /// Number of rows of the tensor's matrix, or of each expert's matrix.
    pub rows: u64,
    /// First row that belongs to the weight.
    pub from: u64,
}

/// A weight: a symbol with its format, its shape and the location of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// Name of the tensor in the model file, or another name if the weight is a part of a tensor.
    pub name: String,
    /// Storage format that the graph uses.
    pub format: Format,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Location of the bytes. `None` in hand-written text.
    pub place: Option<Place>,
    /// Range of rows of a tensor that this weight is, or `None` for a whole tensor. `place` is the
    /// location of the whole tensor.
    pub part: Option<Part>,
    /// Decisions of passes about storage and products of the weight.
    pub choice: WeightChoices,
}

impl Weight {
    /// Returns the shape of the whole weight. The rank's weight may be a slice of it.
    pub fn whole_shape(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if let Some(shard) = &self.choice.shard
            && let Some(dim) = shape.get_mut(shard.dim as usize)
        {
            *dim = shard.of;
        }
        shape
    }

    /// Returns the shape of the tensor in the model file.
    pub fn tensor_shape(&self) -> Vec<u64> {
        let mut shape = self.whole_shape();
        if let (Some(part), [.., rows, _]) = (&self.part, &mut shape[..]) {
            *rows = part.rows;
        }
        shape
    }

    /// Returns the name of the tensor in the model file.
    pub fn tensor(&self) -> &str {
        let whole = self.choice.shard.as_ref().map_or(&self.name, |shard| &shard.weight);
        self.part.as_ref().map_or(whole, |part| &part.tensor)
    }

    /// Returns the format of the tensor in the model file.
    pub fn stored_format(&self) -> Format {
        self.choice.stored.unwrap_or(self.format)
    }
}

/// Decisions of passes about a weight. A frontend makes none. Only kernels interpret the text of a
/// tiling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightChoices {
    /// Format of the tensor in the model file, if the weight is requantised from it.
    pub stored: Option<Format>,
    /// Packed format that products read, if it differs from the weight's format.
    pub layout: Option<Format>,
    /// Format of the activations in products with this weight.
    pub activations: Option<Format>,
    /// Tiling of products with this weight, as text for the kernels.
    pub tile: Option<String>,
    /// Reason for the tiling, for readers of the graph.
    pub why: Option<String>,
    /// Slice of the weight that this rank has, or `None` for the whole weight. The weight's shape
    /// is that of the slice. `place` and `part` belong to the whole weight.
    pub shard: Option<Shard>,
}

/// A field of a state, such as `f16[8, S, 128]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Element format.
    pub format: Format,
    /// Dimensions, outermost first; the symbol [`crate::state::POSITIONS`] counts positions.
    pub dims: Vec<Dim>,
}

/// A state: a symbol with its kind, its fields and its rollback method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Name of the state.
    pub name: String,
    /// Kind of the state.
    pub kind: StateKind,
    /// Fields of the state, in the order that its kind defines.
    pub fields: Vec<Field>,
    /// Method of returning the state to an earlier position.
    pub rollback: Rollback,
    /// Number of positions that a token sees, including its own position. `None` means its own and
    /// all earlier positions.
    pub window: Option<u64>,
    /// Number of positions that share one entry of the state. The last of these positions writes
    /// the entry. With 1, each position has its own entry.
    pub every: u64,
    /// Whether the window is a chunk. A token then sees the positions from the last multiple of
    /// `window` on, and no earlier ones.
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

    /// Returns a state that is one tensor of these dimensions. Every token updates the tensor.
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
    /// A state, operand of `state.begin`.
    State(StateId),
    /// An optional operand that is absent. IR text has `_` for it.
    Absent,
}

impl Operand {
    /// Returns the value, or `None` if the operand is no value.
    pub fn value(self) -> Option<ValueId> {
        match self {
            Operand::Value(value) => Some(value),
            Operand::Weight(_) | Operand::State(_) | Operand::Absent => None,
        }
    }

    /// Returns the operand with `change` applied to its value. Other operands stay unchanged.
    pub fn map_value(self, change: impl FnOnce(ValueId) -> ValueId) -> Operand {
        match self {
            Operand::Value(value) => Operand::Value(change(value)),
            Operand::Weight(_) | Operand::State(_) | Operand::Absent => self,
        }
    }

    /// Returns the weight, or `None` if the operand is no weight.
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
    /// Kind of the op: its row in the op table.
    pub kind: OpKind,
    /// Operands, in the order of the op table.
    pub operands: Vec<Operand>,
    /// Attributes, in the order of the op table.
    pub attrs: Vec<Attr>,
    /// Values that the op defines.
    pub results: Vec<ValueId>,
}

impl Op {
    /// Returns the values that the op uses, each with the index of its operand.
    pub fn values(&self) -> impl Iterator<Item = (usize, ValueId)> + '_ {
        self.operands.iter().enumerate().filter_map(|(i, operand)| Some((i, operand.value()?)))
    }

    /// Returns the weights that the op uses.
    pub fn weights(&self) -> impl Iterator<Item = WeightId> + '_ {
        self.operands.iter().filter_map(|operand| operand.weight())
    }

    /// Returns the attribute `name`. The op table must list it for this op.
    pub fn attr(&self, name: &str) -> &Attr {
        match self.kind.row().attrs.iter().position(|a| a.name == name) {
            Some(i) => &self.attrs[i],
            None => unreachable!("{} has no attribute {name}", self.kind.row().mnemonic),
        }
    }

    /// Whether this op reads data of other tokens of the sequence from a state. Every layer of a
    /// model has such an op.
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

    /// Returns the operand `name`. The op table must list it for this op.
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
    /// Name without `%`, or `None` for numbered values.
    pub name: Option<String>,
    /// Type of the value.
    pub ty: Type,
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Name without `@`.
    pub name: String,
    /// Parameters of the function, in order.
    pub params: Vec<ValueId>,
    /// Ops, in the order of evaluation.
    pub ops: Vec<Op>,
    /// Results of the function.
    pub results: Vec<ValueId>,
    /// All values of the function. A [`ValueId`] is an index into this list.
    pub values: Vec<ValueData>,
}

impl Function {
    /// Returns the type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        &self.values[value.index()].ty
    }

    /// Returns the label of a value for messages: `%name`, or `%` and its number.
    pub fn label(&self, value: ValueId) -> String {
        match self.values.get(value.index()).and_then(|value| value.name.as_ref()) {
            Some(name) => format!("%{name}"),
            None => format!("%{}", value.0),
        }
    }

    /// Adds a value, and returns its id. The caller must add its definition.
    pub fn add_value(&mut self, name: Option<&str>, ty: Type) -> ValueId {
        self.values.push(ValueData { name: name.map(str::to_string), ty });
        ValueId(self.values.len() as u32 - 1)
    }

    /// Adds a parameter, and returns its value.
    pub fn add_param(&mut self, name: &str, ty: Type) -> ValueId {
        let value = self.add_value(Some(name), ty);
        self.params.push(value);
        value
    }

    /// Appends an op with results of these types, and returns the results.
    pub fn push(&mut self, kind: OpKind, operands: Vec<Operand>, attrs: Vec<Attr>, types: Vec<Type>) -> Vec<ValueId> {
        let results: Vec<ValueId> = types.into_iter().map(|ty| self.add_value(None, ty)).collect();
        self.ops.push(Op { kind, operands, attrs, results: results.clone() });
        results
    }
}

/// A module: weights, states and functions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Module {
    /// Weights; a [`WeightId`] is an index into this list.
    pub weights: Vec<Weight>,
    /// States; a [`StateId`] is an index into this list.
    pub states: Vec<State>,
    /// Functions. A model has one, `@step`.
    pub functions: Vec<Function>,
}
