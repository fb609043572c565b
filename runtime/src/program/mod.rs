//! A checked plan: the tables that running it needs.
//!
//! The input is an untrusted plan, whose kernels the kernel verifier has accepted. If the check
//! returns a [`Program`], the following holds:
//!
//! - no list of the plan is longer than a model needs (`limits`), and checking took time
//!   proportional to the plan's length;
//! - every id is in range: kernels, buffers, weights, files, tables, states, routings;
//! - every variant has one rule for each dim of its kernel, and an argument for each buffer;
//! - the bands of a column write different memory;
//! - every state has a form that its kind allows;
//! - a kernel writes only the arena, states and scratch; scratch buffers lie in scratch memory, and
//!   no others do;
//! - index buffers have only inputs as sources, at multiples of 4; a written buffer overlaps no
//!   other buffer of its call;
//! - the kernels do no more work for a token than the model's weights and states explain
//!   ([`work`]);
//! - a routing is used only after the one step that fills it;
//! - a group of experts is read only between a step that requests it for a routing and the next
//!   that releases it;
//! - arena buffers lie in the arena, weights in their files, and weights in blocks as in
//!   [`crate::storage::blocks`];
//! - exchanges are with ranks that exist, of buffers with equal rows, and not in loops over
//!   experts;
//! - steps that compute halves of the rows are in one sum each, and their buffers are apart;
//! - weights in another format than the kernels' can be packed from their stored format.
//!
//! The check does not prove that an item's slices lie inside their buffers. This depends on the
//! step's row counts, and [`crate::execute`] checks it for each item.

mod check;
mod error;
mod extents;
mod groups;
pub mod halves;
mod inputs;
mod layers;
mod limits;
mod ranks;
mod tables;
pub mod work;

use ixc_ir::kernel::products::Counter;
use ixc_ir::kernel::{Affine, Atom, BufferKind, Dim, Kernel};
use ixc_ir::plan::{
    ArenaBuffer, BucketId, BufferId, Exchange, HiddenRows, Ngram, Output, Plan, PositionChoice, Ranks, RowInput, Task,
};

use crate::storage::blocks::BlockShape;
pub use error::{PlanError, Problem};
use groups::CheckedGroups;
use halves::{StageHalf, SumHalf};
use inputs::InputKinds;
pub use layers::Layer;
pub use limits::MAX_LAYERS;
pub(crate) use ranks::check as check_ranks;
pub(crate) use tables::shorten;

/// Max dims of a kernel in a plan.
pub const MAX_DIMS: usize = 16;
/// Max buffers of a kernel in a plan.
pub const MAX_BUFFERS: usize = 32;
/// Max tokens of a step.
pub const MAX_TOKENS: u32 = 1 << 20;
/// Max context, in positions.
pub const MAX_CONTEXT: u32 = 1 << 24;
/// Max vocabulary.
pub const MAX_VOCABULARY: u32 = 1 << 24;
/// Max elements of a hidden state.
pub const MAX_WIDTH: u32 = 1 << 24;
/// Max experts of a routing.
pub const MAX_EXPERTS: u32 = 1 << 16;
/// Max scratch memory of a kernel, in bytes.
pub const MAX_SCRATCH: u64 = 1 << 28;
/// Max memory for the partial results of a stage's items, in bytes.
pub const MAX_PARTS: u64 = 1 << 28;
/// Max different inputs that are computed from positions. Each has a number for each row of a step.
/// Models have at most ten.
const MAX_ROW_INPUTS: u64 = 96;
/// Max n-gram rows of a token: four times those of known models. Each is looked up for every token.
const MAX_NGRAMS: u64 = 64;
/// Max bands of a column.
pub const MAX_BANDS: u32 = 1 << 10;
/// Bytes of a cache line. Copies of chosen cache slots begin at a line. The partial results of a
/// row's column are assumed to need at least one line, which limits the number of their counters.
pub const LINE_BYTES: u64 = 64;
/// Max pairs of all rotary tables together.
pub const MAX_PAIRS: usize = 1 << 16;

type Result<T, E = PlanError> = std::result::Result<T, E>;

fn at<T>(place: &dyn std::fmt::Display, result: Result<T, Problem>) -> Result<T> {
    result.map_err(|problem| PlanError { place: place.to_string(), problem })
}

fn range(what: &'static str, found: impl Into<u64>, min: u64, max: impl Into<u64>) -> Result<(), Problem> {
    let (found, max) = (found.into(), max.into());
    if (min..=max).contains(&found) { Ok(()) } else { Err(Problem::Range { what, found, min, max }) }
}

fn id<'a, T>(what: &'static str, found: u32, all: &'a [T]) -> Result<&'a T, Problem> {
    all.get(found as usize).ok_or(Problem::Id { what, found, count: all.len() })
}

/// An affine expression over dims, prepared for fast evaluation.
#[derive(Clone, Debug)]
pub struct Linear {
    constant: i64,
    terms: Box<[(usize, i64)]>,
}

impl Linear {
    fn from_affine(affine: &Affine, dims: usize) -> Option<Linear> {
        let term = |&(atom, coefficient): &(Atom, i64)| match atom {
            Atom::Dim(dim) if dim.index() < dims => Some((dim.index(), coefficient)),
            Atom::Dim(_) | Atom::Var(_) => None,
        };
        Some(Linear { constant: affine.constant, terms: affine.terms.iter().map(term).collect::<Option<_>>()? })
    }

    /// Returns the value; 0 if it is negative, because a negative size means empty. `None` if it
    /// overflows.
    pub fn at(&self, dims: &[i64]) -> Option<u64> {
        let mut sum = self.constant;
        for &(dim, coefficient) in &self.terms {
            sum = sum.checked_add(coefficient.checked_mul(*dims.get(dim)?)?)?;
        }
        Some(u64::try_from(sum).unwrap_or(0))
    }

    /// Returns the largest value over the ranges of the dims.
    fn max_value(&self, dims: &[Dim]) -> Option<u64> {
        let corner: Vec<i64> = (0..dims.len())
            .map(|i| {
                let falls = self.terms.iter().any(|&(dim, coefficient)| dim == i && coefficient < 0);
                if falls { dims[i].lo } else { dims[i].hi }
            })
            .collect();
        self.at(&corner)
    }
}

/// The access of a kernel to a buffer.
#[derive(Clone, Debug)]
pub enum Access {
    /// The kernel reads the buffer.
    Read,
    /// The kernel writes the buffer, or reads and writes it.
    Write,
    /// The kernel uses the buffer as scratch memory.
    Scratch,
    /// The kernel reads indices below this limit.
    Index(Linear),
}

/// A buffer of a kernel.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Name of the buffer.
    pub name: String,
    /// Size in bytes.
    pub size: Linear,
    /// The kernel's access.
    pub access: Access,
}

/// The form of a call of a kernel.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The kernel's name.
    pub name: String,
    /// The kernel's dims.
    pub dims: Vec<Dim>,
    /// The kernel's buffers.
    pub buffers: Vec<Parameter>,
    /// Counter of the multiply-adds of a call.
    pub products: Counter,
    /// Whether the kernel has tile products.
    pub has_tiles: bool,
}

impl Signature {
    fn from_kernel(kernel: &Kernel) -> Result<Signature, Problem> {
        range("dims", kernel.dims.len() as u64, 0, MAX_DIMS as u64)?;
        range("buffers", kernel.buffers.len() as u64, 0, MAX_BUFFERS as u64)?;
        let buffers = kernel.buffers.iter().map(|buffer| {
            let linear = |affine| {
                Linear::from_affine(affine, kernel.dims.len())
                    .ok_or_else(|| Problem::NotOverDims { buffer: buffer.name.clone() })
            };
            let access = match &buffer.kind {
                BufferKind::Read => Access::Read,
                BufferKind::Write | BufferKind::ReadWrite => Access::Write,
                BufferKind::Scratch => Access::Scratch,
                BufferKind::Index { below } => Access::Index(linear(below)?),
            };
            Ok(Parameter { name: buffer.name.clone(), size: linear(&buffer.size)?, access })
        });
        Ok(Signature {
            name: kernel.name.clone(),
            dims: kernel.dims.clone(),
            buffers: buffers.collect::<Result<_, Problem>>()?,
            products: Counter::from_kernel(kernel),
            has_tiles: kernel.values.iter().any(|ty| ty.is_tile()),
        })
    }

    /// Returns the max scratch bytes of a call.
    fn scratch(&self) -> Result<u64, Problem> {
        let mut sizes =
            self.buffers.iter().filter(|b| matches!(b.access, Access::Scratch)).map(|b| b.size.max_value(&self.dims));
        match (sizes.next(), sizes.next()) {
            (None, _) => Ok(0),
            (Some(size), None) => {
                let size = size.unwrap_or(u64::MAX);
                range("scratch bytes", size, 0, MAX_SCRATCH).map(|()| size)
            }
            (Some(_), Some(_)) => Err(Problem::Shape { expected: "a kernel with at most one scratch buffer" }),
        }
    }
}

/// A routing.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// Experts per token.
    pub top_k: u32,
    /// Number of experts.
    pub experts: u32,
    /// The location of the expert ids.
    pub ids: Ids,
    /// Whether ids may be [`NO_EXPERT`](ixc_ir::plan::NO_EXPERT): the caller passes them, or the
    /// plan allows it.
    pub partial: bool,
}

/// The location of expert ids: consecutive elements in each row of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ids {
    /// The arena buffer.
    pub buffer: BufferId,
    /// The first id in each row.
    pub first: u32,
    /// Distance between rows, in ids.
    pub stride: u64,
}

/// The work between two barriers.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    /// Tasks, whose items form one work list.
    pub tasks: Vec<Task>,
    /// Sliding-window state in whose memory the kernels of each task count positions, if any.
    pub sliding: Vec<Option<u32>>,
    /// The index's choice of the positions that rows of each task see, if any. Kernels then count
    /// positions within the chosen list.
    pub listed: Vec<Option<PositionChoice>>,
    /// Number of later positions that rows of each task attend to; `None` for causal attention,
    /// `u32::MAX` for the whole text.
    pub whole: Vec<Option<u32>>,
    /// Whether items of each task process the rows of sequences or additions separately.
    pub separation: Vec<RowSeparation>,
    /// Number of tasks in all stages before.
    pub first_task: usize,
    /// Layout of the partial results of each task; empty if it has none.
    pub parts: Vec<PartPlace>,
    /// Max rows with which the last thread to arrive at the barrier before the stage runs it alone.
    pub alone: u32,
    /// Actions after the stage, which one thread runs in this order.
    pub then: Vec<BarrierAction>,
    /// Position in [`Program::windows`] of the window whose loop contains this stage.
    pub window: Option<u32>,
    /// The half of the rows that this stage computes, if not all.
    pub half: Option<StageHalf>,
}

/// Rule for separating the rows of different additions (tokens added to a sequence) in a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSeparation {
    /// Rows are never separated: the result of a row does not depend on other rows.
    Never,
    /// Rows are separated if additions must be bit-exact and tiles would multiply the rows
    /// together. Tiles round differently from vectors; vectors give the same bits for any number of
    /// rows.
    Tiles,
    /// Rows are separated if additions must be bit-exact: this task rounds differently with many
    /// rows than with few.
    Exact,
    /// Rows are always separated: the task reads states or counts positions, or it sums in another
    /// order with many rows and separation costs little.
    Always,
    /// Rows of different sequences are always separated: the task changes a state, row by row in
    /// their order.
    Sequence,
}

/// An action that one thread runs at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierAction {
    /// Sorts a routing.
    Sort(BucketId),
    /// Requests the blocks of a window.
    Request {
        /// The window's position in [`Program::windows`].
        window: u32,
        /// The window's group.
        group: u32,
    },
    /// Announces the blocks of a window before they are requested: its routing has chosen them, but
    /// other experts are computed first.
    Announce {
        /// The window's position in [`Program::windows`].
        window: u32,
        /// The window's group.
        group: u32,
    },
    /// Repeats a loop from stage `first` on, if the window has experts that were not computed. The
    /// remaining actions of this barrier are then skipped. In a loop, only tasks over the routing's
    /// rows read results of tasks over these rows.
    Repeat {
        /// The loop's first stage; the stage of this action is its last.
        first: usize,
    },
    /// Predicts blocks of a group that will be requested.
    Predict {
        /// Number of the group.
        group: u32,
        /// The ids, `[T][count]`.
        ids: Ids,
        /// Number of experts for each token.
        count: u32,
    },
    /// Releases the blocks of a group.
    Release(u32),
    /// Exchanges rows with other ranks.
    Exchange(Exchange),
    /// Begins the sum of a half of the rows. Does nothing in steps with too few tokens for halves.
    BeginSum(SumHalf),
    /// Finishes the sum of a half of the rows. With too few tokens for halves, the action of the
    /// first half adds all rows.
    FinishSum(SumHalf),
}

/// A group of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's weights, by id, in the order of a block.
    pub weights: Vec<u32>,
    /// Number of experts.
    pub experts: u32,
    /// The layout of the group's blocks in the plan's own file, if the file has them.
    pub blocks: Option<BlockPlace>,
}

/// The stages that read experts of one group, between the step that requests them and the one that
/// releases them. They form a loop that ends with [`BarrierAction::Repeat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of the group.
    pub group: u32,
    /// The routing that chooses the experts.
    pub bucket: BucketId,
}

/// The blocks of a group in the plan's own file: one for each expert, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// The layout of each block.
    pub shape: BlockShape,
    /// Offset of the first block from the first byte of the plan's own weights; a multiple of a
    /// page.
    pub first: u64,
}

impl BlockPlace {
    /// Returns the offset of an expert's block from the first byte of the plan's own weights. It
    /// cannot overflow for an expert of the group.
    pub fn block(&self, expert: u32) -> u64 {
        self.first.saturating_add(self.shape.stride().saturating_mul(u64::from(expert)))
    }
}

/// The memory layout of the partial results of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartPlace {
    /// Bytes of a partial result.
    pub bytes: u64,
    /// Offset of the first partial result of the first line. A *line* is one column of one row.
    pub offset: u64,
    /// Number of the task's first line; lines are numbered over all tasks of a stage.
    pub line: usize,
    /// Max partial results of a line.
    pub parts: u32,
    /// Columns of a row.
    pub columns: u32,
    /// Max rows.
    pub rows: u64,
}

impl PartPlace {
    /// Returns the line number of a row's column; `None` if it does not exist.
    pub fn line(&self, row: u64, column: u32) -> Option<u64> {
        let inside = row < self.rows && column < self.columns;
        inside.then(|| row.checked_mul(self.columns.into())?.checked_add(column.into())).flatten()
    }

    /// Returns the number of lines. The program's check limits the memory of their partial results.
    fn lines(&self) -> u64 {
        self.rows.saturating_mul(self.columns.into())
    }
}

/// A checked plan.
#[derive(Debug)]
pub struct Program {
    /// The stages, in order.
    pub stages: Vec<Stage>,
    /// Kernels, by id.
    pub kernels: Vec<Signature>,
    /// Routings, by id.
    pub routings: Vec<Routing>,
    /// Groups of experts, by id.
    pub groups: Vec<Group>,
    /// Windows, in order. Each group has at least one.
    pub windows: Vec<Window>,
    /// Arena buffers, by id.
    pub buffers: Vec<ArenaBuffer>,
    /// Scratch memory that each thread needs, in bytes.
    pub scratch_bytes: u64,
    /// Memory for the partial results of a stage's items, in bytes.
    pub part_bytes: u64,
    /// Max lines with partial results in a stage.
    pub part_lines: usize,
    /// Memory that each thread needs for copies of chosen cache slots, in bytes.
    pub chosen_bytes: u64,
    /// The inputs that are computed from positions of rows.
    pub row_inputs: Vec<RowInput>,
    /// The n-gram rows, which a token and those before it name. Each has a state of its own.
    pub ngrams: Vec<Ngram>,
    /// Max tokens of a step.
    pub max_tokens: u32,
    /// Size of the vocabulary.
    pub vocabulary: u32,
    /// The buffer of a step's output.
    pub logits: BufferId,
    /// The kind of a step's output.
    pub output: Output,
    /// Hidden states that the plan takes with the tokens.
    pub takes: Option<HiddenRows>,
    /// Hidden states that a step returns for the tokens.
    pub gives: Option<HiddenRows>,
    /// Separately callable layers; empty if all stages form a model's step.
    pub layers: Vec<Layer>,
    /// Part of the model that the plan computes, if it does not compute the whole model.
    pub ranks: Option<Ranks>,
    /// Max memory for the messages of an exchange with other ranks, in bytes.
    pub exchange_bytes: u64,
}

impl Program {
    /// Returns whether a step must have the whole text, because every token sees all others.
    pub fn reads_whole(&self) -> bool {
        self.stages.iter().any(|stage| stage.whole.iter().any(Option::is_some))
    }

    /// Returns the min number of rows of an addition from which each token task always uses the
    /// same kernel, if its kernels round differently. Returns 1 if tiles are used without `exact`,
    /// because then results depend on any number of rows.
    pub fn min_rows(&self, exact: bool) -> u32 {
        let rounds = |separation: RowSeparation| match separation {
            RowSeparation::Never => false,
            RowSeparation::Always | RowSeparation::Sequence => true,
            RowSeparation::Tiles | RowSeparation::Exact => exact,
        };
        if !exact && self.kernels.iter().any(|kernel| kernel.has_tiles) {
            return 1;
        }
        let min = |task: &Task| match &task.variants[..] {
            [.., few, _] if task.rows == ixc_ir::plan::RowAxis::Tokens => few.up_to_rows.saturating_add(1),
            _ => 1,
        };
        let tasks = self.stages.iter().flat_map(|stage| stage.tasks.iter().zip(&stage.separation));
        tasks.filter(|(_, apart)| rounds(**apart)).map(|(task, _)| min(task)).max().unwrap_or(1)
    }

    /// Returns the windows of a group, by position.
    pub fn windows_of(&self, group: u32) -> impl Iterator<Item = usize> {
        self.windows.iter().enumerate().filter(move |(_, window)| window.group == group).map(|(i, _)| i)
    }

    /// Returns the number of experts of a group that a token needs, in all windows of the group
    /// together.
    pub fn experts_of_token(&self, group: u32) -> u32 {
        let windows = self.windows.iter().filter(|window| window.group == group);
        let top_k = |window: &Window| self.routings.get(window.bucket.0 as usize).map_or(0, |routing| routing.top_k);
        windows.map(top_k).fold(0, u32::saturating_add)
    }

    /// Checks a plan whose kernels have been verified.
    ///
    /// # Errors
    /// Returns the first problem found.
    pub fn new(plan: &Plan<Kernel>) -> Result<Program> {
        let sizes = || {
            range("max_tokens", plan.max_tokens, 1, MAX_TOKENS)?;
            range("vocabulary", plan.vocabulary, 1, MAX_VOCABULARY)?;
            range("context length", plan.context_length, 1, u64::from(u32::MAX))
        };
        at(&"plan", sizes())?;
        at(&"plan", limits::check(plan))?;
        let (kernels, scratch_bytes) = signatures(plan)?;
        check_tables(plan)?;
        ranks::check(plan)?;
        let routings = tables::routings(plan)?;
        let checker = check::Checker { plan, kernels: &kernels, routings: &routings };
        let (stages, parts) = checker.stages()?;
        let CheckedGroups { stages, groups, windows } = groups::check(&checker, stages)?;
        ranks::check_loops(&stages)?;
        let layers = layers::check(plan, &routings, parts)?;
        at(&"logits", checker.logits())?;
        if let Output::Logits { softmax } = plan.output {
            at(&"softmax", checker.softmax(softmax))?;
        }
        for (rows, place) in
            [(plan.takes, "hidden states that are taken"), (plan.gives, "hidden states that are given")]
        {
            rows.map_or(Ok(()), |rows| at(&place, checker.check_hidden(rows)))?;
        }
        let ends =
            |end: fn(&PartPlace) -> u64| stages.iter().flat_map(|stage| &stage.parts).map(end).max().unwrap_or(0);
        // The sums cannot overflow: each was found to be at most MAX_PARTS.
        let part_bytes = ends(|place| place.offset + place.bytes * place.lines() * u64::from(place.parts));
        let part_lines = ends(|place| place.line as u64 + place.lines());
        let inputs = InputKinds::from_stages(&stages);
        let chosen_bytes = stages.iter().flat_map(|stage| &stage.tasks).map(|task| checker.chosen_bytes(task)).max();
        let chosen_bytes = chosen_bytes.unwrap_or(0);
        at(&"plan", inputs.check(chosen_bytes))?;
        Ok(Program {
            chosen_bytes,
            row_inputs: inputs.rows.into_iter().collect(),
            ngrams: inputs.ngrams.into_iter().collect(),
            part_bytes,
            part_lines: part_lines as usize,
            stages,
            routings,
            groups,
            windows,
            buffers: plan.buffers.clone(),
            scratch_bytes,
            max_tokens: plan.max_tokens,
            vocabulary: plan.vocabulary,
            logits: plan.logits,
            output: plan.output,
            takes: plan.takes,
            gives: plan.gives,
            layers,
            ranks: plan.ranks,
            exchange_bytes: ranks::exchange_bytes(plan),
            kernels,
        })
    }
}

/// Returns the signatures of kernels, and the scratch bytes of the kernel that needs the most.
fn signatures(plan: &Plan<Kernel>) -> Result<(Vec<Signature>, u64)> {
    let mut kernels = Vec::with_capacity(plan.kernels.len());
    let mut scratch_bytes = 0;
    for kernel in &plan.kernels {
        let place = format!("kernel {:?}", tables::shorten(&kernel.name));
        let signature = at(&place, Signature::from_kernel(kernel))?;
        scratch_bytes = scratch_bytes.max(at(&place, signature.scratch())?);
        kernels.push(signature);
    }
    Ok((kernels, scratch_bytes))
}

/// Checks rotary tables, derived tensors, weights, states and buffers.
fn check_tables(plan: &Plan<Kernel>) -> Result<()> {
    for (i, table) in plan.ropes.iter().enumerate() {
        at(&format!("rotary table {i}"), tables::rope(table))?;
    }
    let made = tables::check_derived(plan)?;
    for weight in &plan.weights {
        at(&format!("weight {:?}", tables::shorten(&weight.name)), tables::weight(plan, &made, weight))?;
    }
    for (i, state) in plan.states.iter().enumerate() {
        at(&format!("state {i}, {:?}", tables::shorten(&state.name)), tables::state(state))?;
    }
    at(&"plan", tables::packed_at_load(plan, &made))?;
    for buffer in &plan.buffers {
        at(&format!("buffer {:?}", tables::shorten(&buffer.name)), tables::buffer(plan, buffer))?;
    }
    Ok(())
}
