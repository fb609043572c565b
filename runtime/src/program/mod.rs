//! A checked plan: the tables that the executor needs to run it.
//!
//! The input is an untrusted plan whose kernels the kernel verifier has accepted. If the check
//! returns a [`Program`], then:
//!
//! - no list of the plan is longer than a model needs (`limits`), and the check took time
//!   proportional to the plan's length;
//! - every id is in range: kernels, buffers, weights, files, tables, states, routings;
//! - every variant of a task has one expression for each dim of its kernel, and an argument for
//!   each buffer;
//! - the bands of a column write different memory;
//! - every state has a form that its kind allows ([`ixc_ir::state`]);
//! - a kernel writes only to the arena, states and scratch memory; scratch buffers, and no other
//!   buffers, lie in scratch memory;
//! - index buffers are only fed from inputs, at multiples of 4; a written buffer overlaps no other
//!   buffer of its call;
//! - the kernels execute no more statements for a token than the model's weights and states explain
//!   ([`work`]);
//! - a routing is used only after the single step that fills it;
//! - a group of experts is read only between a step that requests it for a routing and the next
//!   step that releases it;
//! - arena buffers lie in the arena, weights lie in their files, and weights in blocks have the
//!   layout of [`crate::storage::blocks`];
//! - exchanges are with ranks that exist, have a result with as many rows as the sent buffer, and
//!   are not inside loops over streamed experts;
//! - each step that computes halves of its rows belongs to one sum only, and the buffers of such
//!   steps do not overlap;
//! - weights that are not stored in the kernels' format can be packed from their stored format.
//!
//! The check does not prove that the memory of a work item lies inside its buffers. This depends on
//! the row counts of a step, so [`crate::execute`] checks it for each item.

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

/// Maximum number of dims (run-time sizes) of a kernel in a plan.
pub const MAX_DIMS: usize = 16;
/// Maximum number of buffers of a kernel in a plan.
pub const MAX_BUFFERS: usize = 32;
/// Maximum number of tokens of a step.
pub const MAX_TOKENS: u32 = 1 << 20;
/// Maximum context length, in positions.
pub const MAX_CONTEXT: u32 = 1 << 24;
/// Maximum size of the vocabulary.
pub const MAX_VOCABULARY: u32 = 1 << 24;
/// Maximum number of elements of a hidden state.
pub const MAX_WIDTH: u32 = 1 << 24;
/// Maximum number of experts of a routing.
pub const MAX_EXPERTS: u32 = 1 << 16;
/// Maximum scratch memory of a kernel, in bytes.
pub const MAX_SCRATCH: u64 = 1 << 28;
/// Maximum memory for the partial results of a stage's items, in bytes.
pub const MAX_PARTS: u64 = 1 << 28;
/// Maximum number of different inputs that are computed from positions. Each input has a number for
/// each row of a step. Models have at most ten.
const MAX_ROW_INPUTS: u64 = 96;
/// Maximum number of n-gram rows that a token looks up: four times that of known models.
const MAX_NGRAMS: u64 = 64;
/// Maximum number of bands into which a column is divided.
pub const MAX_BANDS: u32 = 1 << 10;
/// Bytes of a cache line. Copies of chosen cache slots begin at a line. The partial results of a
/// row and column are assumed to need at least one line, which limits the number of their counters.
pub const LINE_BYTES: u64 = 64;
/// Maximum number of cosine and sine pairs of all rotary tables together.
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

/// An affine expression over a kernel's dims, prepared for fast evaluation.
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

    /// Returns the value of the expression. A negative value means an empty size, so it becomes 0.
    /// Returns `None` on overflow.
    pub fn at(&self, dims: &[i64]) -> Option<u64> {
        let mut sum = self.constant;
        for &(dim, coefficient) in &self.terms {
            sum = sum.checked_add(coefficient.checked_mul(*dims.get(dim)?)?)?;
        }
        Some(u64::try_from(sum).unwrap_or(0))
    }

    /// Returns the largest value of the expression over the ranges of the dims.
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
    /// The kernel reads indices, which must be below this limit.
    Index(Linear),
}

/// A buffer of a kernel.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Name of the buffer.
    pub name: String,
    /// Size in bytes, as an expression over dims.
    pub size: Linear,
    /// Access of the kernel to the buffer.
    pub access: Access,
}

/// The signature of a kernel: the dims and buffers that a call must pass.
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
    /// Whether the kernel computes products with AMX tiles.
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

    /// Returns the maximum number of scratch bytes of a call.
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

/// A routing: the assignment of each token of a step to experts, as chosen by a router.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// Number of experts that each token is assigned to.
    pub top_k: u32,
    /// Number of experts to choose from.
    pub experts: u32,
    /// Location of the chosen expert ids.
    pub ids: Ids,
    /// Whether ids may be [`NO_EXPERT`](ixc_ir::plan::NO_EXPERT). This is so if the caller passes
    /// the ids, or if the plan allows it.
    pub partial: bool,
}

/// The location of expert ids: consecutive elements in each row of an arena buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ids {
    /// The arena buffer that contains the ids.
    pub buffer: BufferId,
    /// Index in each row of the first id.
    pub first: u32,
    /// Distance between two rows, in ids.
    pub stride: u64,
}

/// A stage: the tasks between two barriers.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    /// Tasks of the stage. Their work items form a single list.
    pub tasks: Vec<Task>,
    /// For each task, the sliding-window state in whose memory its kernels count positions, if any.
    pub sliding: Vec<Option<u32>>,
    /// For each task, the sparse-attention choice of the positions that its rows see, if any.
    /// Kernels then count positions within the chosen list.
    pub listed: Vec<Option<PositionChoice>>,
    /// For each task, the number of later positions that its rows attend to. It is `None` for
    /// causal attention, and `u32::MAX` for the whole text.
    pub whole: Vec<Option<u32>>,
    /// For each task, the rule for computing the rows of different additions separately.
    pub separation: Vec<RowSeparation>,
    /// Number of tasks in all earlier stages.
    pub first_task: usize,
    /// For each task, the layout of its partial results; empty if the task has none.
    pub parts: Vec<PartPlace>,
    /// Maximum number of rows with which the stage runs on a single thread: the last one to arrive
    /// at the barrier before the stage.
    pub alone: u32,
    /// Actions at the barrier after the stage. One thread runs them in this order.
    pub then: Vec<BarrierAction>,
    /// Index in [`Program::windows`] of the window that contains this stage.
    pub window: Option<u32>,
    /// The half of the rows that this stage computes; `None` if it computes all rows.
    pub half: Option<StageHalf>,
}

/// Rule for computing the rows of different additions separately in a task. An addition is the
/// tokens that a step adds to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSeparation {
    /// Rows are never separated: the result of a row does not depend on other rows.
    Never,
    /// Rows of different additions are separated if results must be bit-exact and AMX tiles would
    /// multiply these rows together. Tiles round differently from vectors, but vectors give the
    /// same bits for any number of rows. See [`RowSeparation`] for additions.
    Tiles,
    /// Rows are separated for bit-exact additions: this task rounds many and few rows differently.
    Exact,
    /// Rows are always separated. The task reads states or counts positions. Or it sums in another
    /// order with many rows, and separation costs little.
    Always,
    /// Rows of different sequences are always separated, because the task changes a state, row by
    /// row in their order.
    Sequence,
}

/// An action that one thread runs at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierAction {
    /// Sorts the rows of a routing by expert.
    Sort(BucketId),
    /// Requests the experts of a window.
    Request {
        /// Index of the window in [`Program::windows`].
        window: u32,
        /// Expert group of the window.
        group: u32,
    },
    /// Announces the experts of a window before they are requested. The window's routing has chosen
    /// them, but other experts are computed first.
    Announce {
        /// Index of the window in [`Program::windows`].
        window: u32,
        /// Expert group of the window.
        group: u32,
    },
    /// Repeats a loop from stage `first` on, if some experts of the window are not computed yet.
    /// The remaining actions of this barrier are then skipped. In a loop, only tasks over the
    /// window's routed rows read results of tasks over these rows.
    Repeat {
        /// Index of the loop's first stage. The stage before this action is the loop's last one.
        first: usize,
    },
    /// Predicts experts of a group that will be requested later.
    Predict {
        /// Number of the expert group.
        group: u32,
        /// Location of the predicted ids, `[T][count]`.
        ids: Ids,
        /// Number of predicted experts for each token.
        count: u32,
    },
    /// Releases the experts of a group.
    Release(u32),
    /// Exchanges rows with other ranks.
    Exchange(Exchange),
    /// Begins the sum over ranks of a half of the rows, in steps with enough tokens for halves.
    BeginSum(SumHalf),
    /// Finishes the sum over ranks of a half of the rows. In steps with too few tokens for halves,
    /// the action of the first half adds all rows.
    FinishSum(SumHalf),
}

/// A group of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Indices of the group's weights, in the order of a block.
    pub weights: Vec<u32>,
    /// Number of experts of the group.
    pub experts: u32,
    /// Layout of the group's blocks in the plan file; `None` if the file has no blocks of it.
    pub blocks: Option<BlockPlace>,
}

/// A window: the stages that read experts of one group, between a request of these experts and the
/// next release. They form a loop that ends with [`BarrierAction::Repeat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of the expert group.
    pub group: u32,
    /// The routing that has chosen the experts.
    pub bucket: BucketId,
}

/// Location of a group's blocks in the plan file: adjacent blocks, one for each expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// The layout of each block.
    pub shape: BlockShape,
    /// Offset of the first block from the file's first weight byte; a multiple of a page.
    pub first: u64,
}

impl BlockPlace {
    /// Returns the offset of an expert's block from the first byte of the weights in the plan file.
    /// The sum cannot overflow for an expert of the group.
    pub fn block(&self, expert: u32) -> u64 {
        self.first.saturating_add(self.shape.stride().saturating_mul(u64::from(expert)))
    }
}

/// The memory layout of the partial results of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartPlace {
    /// Bytes of one partial result.
    pub bytes: u64,
    /// Offset of the task's first partial result in the memory of a piece. A *line* is the partial
    /// results of one row and column.
    pub offset: u64,
    /// Number of the task's first line. Lines are numbered over all tasks of a stage.
    pub line: usize,
    /// Maximum number of partial results in a line.
    pub parts: u32,
    /// Number of columns of a row.
    pub columns: u32,
    /// Maximum number of rows.
    pub rows: u64,
}

impl PartPlace {
    /// Returns the line of a row and column, counted from the task's first line; `None` if they do
    /// not exist.
    pub fn line(&self, row: u64, column: u32) -> Option<u64> {
        let inside = row < self.rows && column < self.columns;
        inside.then(|| row.checked_mul(self.columns.into())?.checked_add(column.into())).flatten()
    }

    /// Returns the number of lines of the task. The check of the plan limits the memory of their
    /// partial results.
    fn lines(&self) -> u64 {
        self.rows.saturating_mul(self.columns.into())
    }
}

/// A checked plan, which the executor can run.
#[derive(Debug)]
pub struct Program {
    /// The stages in the order of execution.
    pub stages: Vec<Stage>,
    /// Signatures of the kernels, indexed by kernel id.
    pub kernels: Vec<Signature>,
    /// Routings, indexed by bucket id.
    pub routings: Vec<Routing>,
    /// Expert groups, indexed by number.
    pub groups: Vec<Group>,
    /// Windows in the order of their requests. Each group has at least one window.
    pub windows: Vec<Window>,
    /// Arena buffers, indexed by buffer id.
    pub buffers: Vec<ArenaBuffer>,
    /// Scratch memory that each thread needs, in bytes.
    pub scratch_bytes: u64,
    /// Memory for the partial results of a stage's items, in bytes.
    pub part_bytes: u64,
    /// Maximum number of lines with partial results in a stage.
    pub part_lines: usize,
    /// Memory that each thread needs for copies of chosen cache slots, in bytes.
    pub chosen_bytes: u64,
    /// The inputs that are computed from the positions of rows.
    pub row_inputs: Vec<RowInput>,
    /// N-gram rows: table rows that a token and earlier tokens select. An n-gram has its own state.
    pub ngrams: Vec<Ngram>,
    /// Maximum number of tokens of a step.
    pub max_tokens: u32,
    /// Size of the vocabulary.
    pub vocabulary: u32,
    /// The buffer with a step's output.
    pub logits: BufferId,
    /// The kind of a step's output.
    pub output: Output,
    /// Hidden states that the plan needs as input with the tokens, if any.
    pub takes: Option<HiddenRows>,
    /// Hidden states that a step returns for the tokens in addition to the logits, if any.
    pub gives: Option<HiddenRows>,
    /// Layers that can be called separately; empty if the stages are the step of a whole model.
    pub layers: Vec<Layer>,
    /// This rank and the number of ranks, if the plan is that of one rank of several.
    pub ranks: Option<Ranks>,
    /// Maximum memory for the messages of an exchange with other ranks, in bytes.
    pub exchange_bytes: u64,
}

impl Program {
    /// Returns whether a step must contain the whole text: every token attends to all others.
    pub fn reads_whole(&self) -> bool {
        self.stages.iter().any(|stage| stage.whole.iter().any(Option::is_some))
    }

    /// Returns the smallest number of rows of an addition from which on each task over tokens
    /// always uses the same kernel variant. Only tasks whose variants round differently count.
    /// Returns 1 if the plan uses AMX tiles and `exact` is false, because results then depend on
    /// the number of rows anyway.
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

    /// Returns the indices of a group's windows in [`Program::windows`].
    pub fn windows_of(&self, group: u32) -> impl Iterator<Item = usize> {
        self.windows.iter().enumerate().filter(move |(_, window)| window.group == group).map(|(i, _)| i)
    }

    /// Returns the number of experts of a group that a token needs in all windows of the group
    /// together.
    pub fn experts_of_token(&self, group: u32) -> u32 {
        let windows = self.windows.iter().filter(|window| window.group == group);
        let top_k = |window: &Window| self.routings.get(window.bucket.0 as usize).map_or(0, |routing| routing.top_k);
        windows.map(top_k).fold(0, u32::saturating_add)
    }

    /// Checks a plan whose kernels have been verified.
    ///
    /// # Errors
    /// Returns the first problem found in the plan.
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
        // The sums cannot overflow, because each of them was checked to be at most `MAX_PARTS`.
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

/// Returns the signatures of all kernels, and the scratch bytes of the kernel that needs most.
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
