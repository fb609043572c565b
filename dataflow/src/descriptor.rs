//! The descriptor: the complete program of a dataflow machine, as data. It defines the rows of
//! activations, the PEs of each weight's slices, the conditions for firing, and the routes.
//!
//! **Rows.** A step has T tokens. There are three kinds of rows:
//! - [`Axis::Tokens`]: one for each token;
//! - [`Axis::Outputs`]: one for each token whose logits were requested;
//! - [`Axis::Routed`]: one for each expert slot of a token, as row `token * top_k + slot`.
//!
//! Tokens are processed in order. Several can be on the grid at the same time.
//!
//! **Programs.** A [`Program`] is a kernel with `experts x columns x parts` *instances*, each on a
//! PE ([`Sites::pe`]). Instances fire, that is, run the kernel for a row. An instance of a program
//! over
//! - tokens fires once for each row, in order;
//! - outputs fires once for each requested row;
//! - a routing fires for each row whose slot selects the instance's expert;
//! - parts of a state (attention) fires for each row that sees positions of its part ([`Parts`]).
//!
//! A program over outputs receives a tensor of tokens only for the requested tokens; other rows are
//! not sent to it.
//!
//! An instance fires for a row when it has received all slices of that row, and has fired for all
//! earlier rows. Weights, tables and states are in its PE's memory. The slices that it computes are
//! sent to all receivers.
//!
//! If the dot products of a matrix product are divided, the product is a *chain* of programs, one
//! for each piece of the dot products. Each program adds the sum of the previous one like a
//! residual. The order of f32 additions is therefore that of the plan.
//!
//! **Streams.** A [`Stream`] takes a tensor from one program's instances to another program's
//! instances. A message is the slice of one row that one instance sent. It is multicast to all PEs
//! that need a part of it: it goes once over each link that is on any of their [`Route`]s.
//!
//! A stream from or to the host enters or leaves at the edge PE nearest to the instance at its
//! other end. For a stream from the host, this is the receiving program's first instance; for a
//! stream to the host, the sending instance. The edge PE is in the same row (west, east) or column
//! (north, south). Of equally near edges, the first of [`Io::edges`](crate::grid::Io::edges) is
//! used.
//!
//! **Flow.** Each received slice has memory for [`Slice::rows`] rows. A message for the instance's
//! `n`-th firing may arrive when firing `n - rows` has ended. A message leaves when three
//! conditions are true: it has been computed, all earlier messages of the same port and stream have
//! left, and *all* receivers have memory for it.
//!
//! Until a message leaves, it occupies one of the `rows` of its sending slice. An instance does not
//! begin a firing if a sending slice has no free row. If a row (such as a residual) waits for a
//! longer parallel path, its slice needs memory for all rows in flight on that path.
//!
//! A message to programs over a routing leaves when its sender knows the expert ids of its token.
//! The ids reach the sender with the latency of the links and no other cost.
//!
//! Streams with the same tensor, sending program, route and colour can share messages. They do so
//! if all their receivers are over the same routing, or no receiver is over a routing. Other
//! streams, and each stream from the host, have separate messages. A message from the host waits at
//! its edge PE until the receivers have memory for it.
//!
//! **Waves.** Programs of a wave are on the grid together. If there are several waves, all rows of
//! a step go through one wave before the next wave's weights are loaded over the edges. Tensors
//! that a later wave reads are stored at the host.
//!
//! **State.** Positions of the KV cache are stored on the PE that attends to them. Part `p` of head
//! `h` has the positions `p * positions .. (p + 1) * positions`. A program that appends fires only
//! on the part with the row's position. For one row, programs that use the same state fire in the
//! order of [`Descriptor::programs`].
//!
//! Invariant: sizes and offsets are bytes of the tensor's row, or of a weight as kernels read it.
//! All ranges are inside the row or weight, which the simulator also checks.

use serde::{Deserialize, Serialize};

use crate::grid::Grid;
use ixc_ir::plan::{DimExpr, RopeTable, SourceFile};

/// Version that this code reads and writes.
pub const VERSION: u32 = 2;

/// Complete input of a dataflow machine for one model on one grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// Version of the format: [`VERSION`].
    pub version: u32,
    /// Description of the model.
    pub model: String,
    /// The grid, with the properties of its PEs and links.
    pub grid: Grid,
    /// Number of positions of the KV cache.
    pub context: u32,
    /// Size of the vocabulary.
    pub vocabulary: u32,
    /// Model files.
    pub files: Vec<SourceFile>,
    /// Weights in the formats that kernels read.
    pub weights: Vec<WeightInfo>,
    /// Rotary tables; the host computes their rows and sends them with each token.
    pub ropes: Vec<RopeTable>,
    /// Kernels of the programs, as text.
    pub kernels: Vec<KernelText>,
    /// Tensors that streams carry.
    pub tensors: Vec<Tensor>,
    /// Routings of tokens to experts.
    pub routings: Vec<Routing>,
    /// Key and value states.
    pub states: Vec<State>,
    /// Programs, in an order in which no program reads results of a later one.
    pub programs: Vec<Program>,
    /// Streams between programs and the host.
    pub streams: Vec<Stream>,
    /// Waves: groups of programs that are on the grid together.
    pub waves: Vec<Wave>,
    /// Computation of a token's first row at the host.
    pub embedding: Embedding,
    /// Index of the tensor that the host receives: f32 `[vocabulary]` of each requested row.
    pub logits: u32,
    /// Reasons for the placement, as text for users, one per line.
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
    /// Name of the format in the file: the same, or the format that `format` is packed from.
    pub stored: String,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// Index in [`Descriptor::files`].
    pub file: u32,
    /// Byte offset in the file.
    pub offset: u64,
    /// Length in bytes, in the format that kernels read.
    pub bytes: u64,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelText {
    /// Name of the kernel.
    pub name: String,
    /// Kernel IR.
    pub text: String,
    /// Estimated bytes of code on a PE: 64, plus 8 for each instruction and 16 for each loop.
    pub code_bytes: u64,
}

/// Kind of a tensor's rows, or of the rows that a program fires for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// One row for each token of a step.
    Tokens,
    /// One row for each token of a step whose logits are requested.
    Outputs,
    /// One row for each expert slot of each token, in one of [`Descriptor::routings`].
    Routed(u32),
}

/// A streamed tensor: rows of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Name, as text for users.
    pub name: String,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Axis of the rows: the meaning of a row number.
    pub axis: Axis,
    /// Producer of the tensor.
    pub source: TensorSource,
}

/// Producer of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TensorSource {
    /// The programs that send the tensor.
    Programs,
    /// The host, with rows of the embedding.
    Embedding,
    /// The host, with the row of this rotary table at a token's position.
    Rope(u32),
}

/// Computation of a token's first row at the host. The kernel has three buffers: the id
/// (`index[1]`), the embedding table, and the result `y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// Index in [`Descriptor::kernels`].
    pub kernel: u32,
    /// Index of the embedding table in [`Descriptor::weights`].
    pub weight: u32,
    /// Index of the resulting tensor.
    pub tensor: u32,
}

/// A routing of tokens to experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Routing {
    /// Index of the tensor of ids: i32 `[top_k]`, each below `experts`.
    pub ids: u32,
    /// Number of experts of each token.
    pub top_k: u32,
    /// Number of experts.
    pub experts: u32,
}

/// Keys and values of a layer. Their positions are divided into parts. Each head and part has keys
/// f16 `[positions / 16][key_len][16]` and values f16 `[positions][value_len]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Number of key and value heads.
    pub heads: u32,
    /// Number of elements of a key head.
    pub key_len: u32,
    /// Number of elements of a value head.
    pub value_len: u32,
    /// Division of the positions into parts.
    pub parts: Parts,
}

/// Division of a state's positions. Part `p` begins at position `p * positions`, and ends at the
/// next part or at the context's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Number of positions of a part, a multiple of 32.
    pub positions: u32,
    /// Number of parts.
    pub count: u32,
}

/// A kernel with instances on PEs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Description of the computation: the label of the plan's task.
    pub label: String,
    /// Index in [`Descriptor::kernels`].
    pub kernel: u32,
    /// The kernel's dims for one row, as expressions over these inputs: `rows`, `tokens` and
    /// `outputs` are 1. `capacity` is the number of positions of a part, or 16 without a state.
    /// `part_begin` and `part_end` are the ends of the instance's part. `parts` is the number of
    /// parts that the row sees.
    pub dims: Vec<DimExpr>,
    /// Kind of rows that the program fires for.
    pub axis: Axis,
    /// Number of columns.
    pub columns: u32,
    /// State that the program uses, if any. The program has an instance for each part of this
    /// state.
    pub state: Option<u32>,
    /// Whether the program adds the row's position to its state. If so, the program fires only on
    /// the part with that position.
    pub appends: bool,
    /// PEs of the instances.
    pub sites: Sites,
    /// Contents of the kernel's buffers, in order.
    pub ports: Vec<Port>,
    /// Index in [`Descriptor::waves`].
    pub wave: u32,
}

/// PEs of a program's instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sites {
    /// Column of the first PE.
    pub x: u32,
    /// Row of the first PE.
    pub y: u32,
    /// Offset from the first PE, by column.
    pub columns: Lattice,
    /// Offset from the first PE, by expert.
    pub experts: Lattice,
    /// Offset from the first PE, by part.
    pub parts: Lattice,
}

/// Offset from the first PE, computed from an index:
/// `group = index / share; dx = group % per_line * pitch_x; dy = group / per_line * pitch_y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Lattice {
    /// Number of consecutive indices on one PE, at least 1.
    pub share: u32,
    /// Number of PEs in a line, at least 1.
    pub per_line: u32,
    /// Distance along x from one PE of a line to the next, in PEs.
    pub pitch_x: u32,
    /// Distance along y from one line to the next, in PEs.
    pub pitch_y: u32,
}

impl Lattice {
    /// All indices on one PE.
    pub const ONE: Lattice = Lattice { share: 1, per_line: 1, pitch_x: 0, pitch_y: 0 };

    /// Returns the offset of an index from the first PE. On overflow, numbers saturate, which is
    /// outside of every grid.
    pub fn offset(&self, index: u32) -> (u32, u32) {
        let group = index / self.share.max(1);
        let (place, line) = (group % self.per_line.max(1), group / self.per_line.max(1));
        (place.saturating_mul(self.pitch_x), line.saturating_mul(self.pitch_y))
    }
}

impl Sites {
    /// Returns the PE of an instance as `(x, y)`. In an unchecked descriptor, it may be outside of
    /// the grid.
    pub fn pe(&self, column: u32, expert: u32, part: u32) -> (u32, u32) {
        let offsets = [self.columns.offset(column), self.experts.offset(expert), self.parts.offset(part)];
        offsets.iter().fold((self.x, self.y), |(x, y), (dx, dy)| (x.saturating_add(*dx), y.saturating_add(*dy)))
    }
}

/// A slice of a tensor's row: `bytes` bytes from offset
/// `offset + column * column_stride + part * part_stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Index in [`Descriptor::tensors`].
    pub tensor: u32,
    /// Offset of the first column in bytes.
    pub offset: u64,
    /// Distance from one column to the next in bytes.
    pub column_stride: u64,
    /// Distance from one part to the next in bytes.
    pub part_stride: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Number of rows of this slice that fit in memory, at least 1. With 2, the next row can arrive
    /// (or the previous one leave) during a firing.
    pub rows: u32,
}

/// Content of a kernel's buffer for an instance and a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Port {
    /// A slice of a weight, which stays in the PE's memory, at
    /// `offset + column * column_stride + expert * expert_stride`.
    Weight {
        /// Index in [`Descriptor::weights`].
        weight: u32,
        /// Offset of the first column in bytes.
        offset: u64,
        /// Distance from one column to the next in bytes.
        column_stride: u64,
        /// Distance from one expert to the next in bytes.
        expert_stride: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// A slice of the same row of a tensor. If the program is over a routing and the tensor is not,
    /// it is the row of the slot's token.
    Receive(Slice),
    /// The slices of all expert slots of the row's token, one after the other. The tensor is over a
    /// routing.
    ReceiveSlots(Slice),
    /// The slices of all state parts that the row sees, one after the other.
    ReceiveParts {
        /// Slice of the first part.
        slice: Slice,
        /// The state that has these parts.
        state: u32,
    },
    /// A row of a rotary table. In the kernel's buffer it is in the row's lane of its block of 16
    /// positions ([`Port::PositionBlock`]). Only this row of the buffer takes memory.
    ReceiveRope(Slice),
    /// A slice that the instance computes and sends.
    Send(Slice),
    /// Keys of this state, for the instance's head (its column) and part.
    Keys(u32),
    /// Values of this state, for the instance's head (its column) and part.
    Values(u32),
    /// The row's position, an i32.
    Position,
    /// Index of the row's block of 16 positions in the instance's part of the state; 0 for a
    /// program without a state.
    PositionBlock,
    /// Lane of the row's position in its block of 16 positions.
    PositionLane,
    /// The numbers 0, 1, 2 and so on, one for each expert of a token in this routing.
    SlotNumbers(u32),
    /// Scratch memory.
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
    /// The host, which exchanges data with the grid over its edges (`io.edges`).
    Host,
    /// The instances of one of [`Descriptor::programs`].
    Program(u32),
}

/// A stream of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Index of the tensor.
    pub tensor: u32,
    /// Sender of the messages.
    pub from: End,
    /// Receiver of the messages.
    pub to: End,
    /// Route of the messages.
    pub route: Route,
    /// Colour that the messages have on links; 0 if they are packets.
    pub colour: u32,
}

/// Order of the axes on the route from one PE to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Messages travel along x first, then along y.
    XThenY,
    /// Messages travel along y first, then along x.
    YThenX,
}

/// Transfers of a wave: a group of programs that are on the grid together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Wave {
    /// Bytes of weights and states loaded over the edges when the wave begins. With a single wave,
    /// this is 0, because its weights stay on the PEs. The first step of a sequence has no states
    /// yet, so it loads `store_bytes` less.
    pub load_bytes: u64,
    /// Bytes of states stored over the edges when the wave ends.
    pub store_bytes: u64,
}

/// Returns the number and label of a program, for errors.
pub(crate) fn program_name(descriptor: &Descriptor, number: usize) -> String {
    let label = descriptor.programs.get(number).map_or("", |program| program.label.as_str());
    format!("program {number} ({label})")
}
