//! The descriptor: all that a dataflow machine runs, as data. What a row of activations is, who holds which slice of which weight, what
//! fires when, and which way everything goes.
//!
//! **Rows.** A step has T tokens. A *row* is a token's vector ([`Axis::Tokens`]), a wanted token's ([`Axis::Outputs`]: those whose logits are asked for), or the
//! vector of one slot of a token's experts ([`Axis::Routed`]; row `token * top_k + slot`). Tokens are worked on one after the other in order, as many at once as are on the way.
//!
//! **Programs.** A [`Program`] is a kernel over `experts x columns x parts` *instances*, each on a PE ([`Sites::pe`]). An instance of a program over
//! - tokens fires once for each row, in order;
//! - outputs fires once for each wanted row;
//! - a routing fires for those rows whose slot named the instance's expert;
//! - parts (attention) fires for a row where its part has positions that the row sees ([`Parts`]).
//!
//! A wanted row is its token's: a program over outputs receives a tensor of tokens for the wanted ones only, and what is sent of others goes nowhere.
//!
//! It fires when all that it receives of that row has come and it has fired for all of its rows before. What it reads of weights, tables and states is in its PE's memory.
//! What it sends goes to all who receive it. Columns of a *chain* (the reduction of a product whose dot products are cut) are separate programs: each receives the
//! sum of the one before as its residual, so that the order of f32 additions is that of the plan.
//!
//! **Streams.** A [`Stream`] takes a tensor from one program's instances to another's. A message is what an instance sent of one row; it goes
//! once over each link of the union of the [`Route`]s to the PEs that want a part of it (multicast). A stream from or to the host enters or leaves at
//! the edge PE nearest to the other end (to the receiving program's first instance, or to the sending instance), in its row (west, east) or column
//! (north, south); of those equally near the one whose edge the grid names first.
//!
//! **Flow.** Each received slice has room for [`Slice::rows`] rows: a message of the instance's `n`-th firing may come when firing `n - rows` has ended.
//! A message leaves when it has been made, all that were sent before it by the same port and stream have left, and there is room at *all* who receive it;
//! until then it takes one of the `rows` of its sending slice, and an instance does not begin a firing whose slice has none left. So what goes around a long way (a residual) needs as many
//! rows as are on the way beside it. A message to routed programs leaves when the ids of its token are known at its sender: the sender of the ids tells it, by
//! links' latency alone. Streams of the same tensor from the same program by the same route in the same colour share messages if they go to programs of the same routing, or of
//! none; others, and each stream from the host, have their own. What the host sends waits before its edge until there is room.
//!
//! **Waves.** Programs of a wave are on the grid together. Where there are several, all rows of a step go through one before the next one's weights are
//! loaded over the edges; tensors that a later wave reads wait at the host.
//!
//! **State.** Positions of the KV cache lie where they are attended: part `p` of head `h` has positions `p * positions .. (p + 1) * positions`. A program that appends fires on the part that has the
//! row's position only. For one row, programs of the same state fire in the order of [`Descriptor::programs`].
//!
//! Invariant: sizes and offsets are bytes of the tensor's row, or of a weight as kernels read it, and every one lies inside; the simulator checks that again.

use serde::{Deserialize, Serialize};

use crate::grid::Grid;
use ixc_ir::plan::{DimExpr, RopeTable, SourceFile};

/// The version that this code reads and writes.
pub const VERSION: u32 = 2;

/// What runs on a grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// [`VERSION`].
    pub version: u32,
    /// The model, in words.
    pub model: String,
    /// The machine.
    pub grid: Grid,
    /// Positions of the KV cache.
    pub context: u32,
    /// Vocabulary.
    pub vocabulary: u32,
    /// Model files.
    pub files: Vec<SourceFile>,
    /// Weights as kernels read them.
    pub weights: Vec<WeightInfo>,
    /// Rotary tables; the host computes rows of them and sends them along with a token.
    pub ropes: Vec<RopeTable>,
    /// Kernels of the programs.
    pub kernels: Vec<KernelText>,
    /// What is streamed.
    pub tensors: Vec<Tensor>,
    /// Routings of tokens to experts.
    pub routings: Vec<Routing>,
    /// Key and value states.
    pub states: Vec<State>,
    /// What runs, in an order in which nothing reads what comes later.
    pub programs: Vec<Program>,
    /// What goes where.
    pub streams: Vec<Stream>,
    /// What is on the grid together.
    pub waves: Vec<Wave>,
    /// How the host makes a token's first row.
    pub embedding: Embedding,
    /// The tensor that the host receives: f32 `[vocabulary]` of each wanted row.
    pub logits: u32,
    /// Why it is placed as it is, for people: a line each.
    pub reasons: Vec<String>,
}

/// A weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WeightInfo {
    /// Tensor name.
    pub name: String,
    /// Name of the format that kernels read.
    pub format: String,
    /// Name of the format in the file: the same, or what `format` is packed from.
    pub stored: String,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// Which of [`Descriptor::files`].
    pub file: u32,
    /// Byte offset in the file.
    pub offset: u64,
    /// Length in bytes as kernels read it.
    pub bytes: u64,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelText {
    /// Its name.
    pub name: String,
    /// Kernel IR.
    pub text: String,
    /// Bytes of code that it takes on a PE, estimated: 64, 8 for each instruction and 16 for each loop.
    pub code_bytes: u64,
}

/// What the rows of a tensor, or the firings of a program, are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Tokens of a step.
    Tokens,
    /// Those of them whose logits are wanted.
    Outputs,
    /// Slots of tokens in one of [`Descriptor::routings`].
    Routed(u32),
}

/// What is streamed: rows of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Name, for people.
    pub name: String,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// What its rows are.
    pub axis: Axis,
    /// Who makes it.
    pub source: TensorSource,
}

/// Who makes a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TensorSource {
    /// The programs that send it.
    Programs,
    /// The host: rows of the embedding.
    Embedding,
    /// The host: the row of this rotary table at a token's position.
    Rope(u32),
}

/// How the host makes a token's first row: buffers id `index[1]`, table, y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// Which of [`Descriptor::kernels`].
    pub kernel: u32,
    /// The table.
    pub weight: u32,
    /// What it makes.
    pub tensor: u32,
}

/// A routing of tokens to experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Routing {
    /// The tensor of ids: i32 `[top_k]`, each below `experts`.
    pub ids: u32,
    /// Experts of a token.
    pub top_k: u32,
    /// Number of experts.
    pub experts: u32,
}

/// The keys and values of a layer, spread over parts: of each head and part, keys f16 `[positions / 16][key_len][16]` and values f16 `[positions][value_len]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Key and value heads.
    pub heads: u32,
    /// Elements of a key head.
    pub key_len: u32,
    /// Elements of a value head.
    pub value_len: u32,
    /// How positions are divided.
    pub parts: Parts,
}

/// Positions divided in parts: part `p` has positions `p * positions` up to the next part's first, or the context's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Positions of a part, a multiple of 32.
    pub positions: u32,
    /// Number of parts.
    pub count: u32,
}

/// A kernel over instances on PEs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// What it computes: the plan's label of the task.
    pub label: String,
    /// Which of [`Descriptor::kernels`].
    pub kernel: u32,
    /// The kernel's dims, for one row. `rows`, `tokens` and `outputs` are 1. `capacity` is the
    /// positions of a part, or 16 without a state. `part_begin` and `part_end` are those of the
    /// instance's part. `parts` are the parts that the row sees.
    pub dims: Vec<DimExpr>,
    /// What it fires for.
    pub axis: Axis,
    /// Columns.
    pub columns: u32,
    /// Which state's parts it has an instance for each of, if it works on one.
    pub state: Option<u32>,
    /// Whether it adds the row's position to its state: it fires on that position's part only.
    pub appends: bool,
    /// Where its instances are.
    pub sites: Sites,
    /// Where each of the kernel's buffers is, in order.
    pub ports: Vec<Port>,
    /// Which of [`Descriptor::waves`].
    pub wave: u32,
}

/// Where instances are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sites {
    /// Column of the first PE.
    pub x: u32,
    /// Row of the first PE.
    pub y: u32,
    /// By column.
    pub columns: Lattice,
    /// By expert.
    pub experts: Lattice,
    /// By part.
    pub parts: Lattice,
}

/// How an index moves a place: `group = index / share; dx = group % per_line * pitch_x; dy = group / per_line * pitch_y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Lattice {
    /// How many neighbours share a place, at least 1.
    pub share: u32,
    /// Places of a line, at least 1.
    pub per_line: u32,
    /// PEs from a place to the next in its line.
    pub pitch_x: u32,
    /// PEs from a line to the next.
    pub pitch_y: u32,
}

impl Lattice {
    /// All at one place.
    pub const ONE: Lattice = Lattice { share: 1, per_line: 1, pitch_x: 0, pitch_y: 0 };

    /// How far an index is from the first. Numbers that are too large stay at the largest: outside every grid.
    pub fn offset(&self, index: u32) -> (u32, u32) {
        let group = index / self.share.max(1);
        let (place, line) = (group % self.per_line.max(1), group / self.per_line.max(1));
        (place.saturating_mul(self.pitch_x), line.saturating_mul(self.pitch_y))
    }
}

impl Sites {
    /// The PE of an instance, `(x, y)`; it may lie outside of the grid where the descriptor is wrong.
    pub fn pe(&self, column: u32, expert: u32, part: u32) -> (u32, u32) {
        let offsets = [self.columns.offset(column), self.experts.offset(expert), self.parts.offset(part)];
        offsets.iter().fold((self.x, self.y), |(x, y), (dx, dy)| (x.saturating_add(*dx), y.saturating_add(*dy)))
    }
}

/// A slice of a tensor's row: `offset + column * column_stride + part * part_stride`, so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Which of [`Descriptor::tensors`].
    pub tensor: u32,
    /// Bytes before the first column's.
    pub offset: u64,
    /// Bytes from a column to the next.
    pub column_stride: u64,
    /// Bytes from a part to the next.
    pub part_stride: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Rows that there is memory for, at least 1. With 2 the next row comes (or the one before leaves) while one is worked on.
    pub rows: u32,
}

/// Where a kernel's buffer is for an instance and a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Port {
    /// A slice of a weight, which stays in the PE's memory: `offset + column * column_stride + expert * expert_stride`.
    Weight {
        /// Which of [`Descriptor::weights`].
        weight: u32,
        /// Bytes before the first column's.
        offset: u64,
        /// Bytes from a column to the next.
        column_stride: u64,
        /// Bytes from an expert to the next.
        expert_stride: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// A slice of the same row of a tensor, of the row's token where the program is routed and the tensor is not.
    Receive(Slice),
    /// The slices of all slots of the row's token, one behind the other, of a routed tensor.
    ReceiveSlots(Slice),
    /// The slices of all parts that the row sees, one behind the other; the slice is the first one's.
    ReceiveParts {
        /// The first part's.
        slice: Slice,
        /// Whose parts.
        state: u32,
    },
    /// A row of a rotary table, in its lane of the row's block of 16 ([`Port::PositionBlock`]). Only this row of the kernel's buffer has memory.
    ReceiveRope(Slice),
    /// What the instance makes.
    Send(Slice),
    /// The state's keys of the instance's head (its column) and part.
    Keys(u32),
    /// The state's values of the instance's head (its column) and part.
    Values(u32),
    /// The row's position, an i32.
    Position,
    /// The row's block of 16 positions in the instance's part; 0 for a program without a state.
    PositionBlock,
    /// The row's lane in that block.
    PositionLane,
    /// 0, 1, 2 and so on up to the routing's experts per token.
    SlotNumbers(u32),
    /// Working memory.
    Scratch {
        /// Length in bytes.
        bytes: u64,
    },
}

/// One end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The host, behind an edge.
    Host,
    /// The instances of one of [`Descriptor::programs`].
    Program(u32),
}

/// A tensor on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// What goes.
    pub tensor: u32,
    /// From whom.
    pub from: End,
    /// To whom.
    pub to: End,
    /// Which way.
    pub route: Route,
    /// Which of the links' colours; 0 where messages are packets.
    pub colour: u32,
}

/// The way from a PE to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Along x, then along y.
    XThenY,
    /// Along y, then along x.
    YThenX,
}

/// Programs that are on the grid together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Wave {
    /// Bytes of weights and states that are loaded over the edges when it begins; 0 where there is one wave only, whose weights stay. A sequence's first step, which
    /// has no states yet, loads `store_bytes` less.
    pub load_bytes: u64,
    /// Bytes of states that are stored over the edges when it ends.
    pub store_bytes: u64,
}

/// What names a program in errors: its number and label.
pub(crate) fn program_name(descriptor: &Descriptor, number: usize) -> String {
    let label = descriptor.programs.get(number).map_or("", |program| program.label.as_str());
    format!("program {number} ({label})")
}
