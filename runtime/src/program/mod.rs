//! A plan, checked, as the tables that running it needs.
//!
//! Takes a plan that nobody trusts, with kernels that the kernel verifier has accepted. Leaves true, where it gives a
//! [`Program`]:
//!
//! - there is no more of anything than a model needs (`limits`), and checking it took time in proportion to the plan's length;
//! - every id is in range: kernels, buffers, weights, files, tables, states, routings;
//! - every variant has one dim rule for each dim of its kernel, and an argument for each buffer; bands of a column are those that its kernel
//!   can tell apart, or begin at different places where it writes;
//! - states are what their kinds can be;
//! - a kernel writes only the arena, states and scratch; scratch buffers are in scratch memory, and nothing else is;
//!   index buffers are fed from inputs alone, at multiples of 4; what a call writes overlaps nothing else that it takes;
//! - a routing is used only after the one step that fills it, and a group of experts between a step that requests it for a routing and the next that releases it;
//! - arena buffers lie in the arena, weights in their files, those in blocks as [`crate::blocks`] has them; weights that are not stored as kernels read them can be packed from
//!   what is there.
//!
//! What it does not prove is that an item's slices lie inside their buffers: that depends on the step's row counts, and
//! [`crate::execute`] checks it for each item.

mod check;
mod error;
mod extents;
mod groups;
mod layers;
mod limits;

use std::collections::BTreeSet;

use ixc_ir::kernel::products::Counter;
use ixc_ir::kernel::{Affine, Atom, BufferKind, Dim, Kernel};
use ixc_ir::plan::{ArenaBuffer, BucketId, BufferId, Choice, HiddenRows, Input, Ngram, Output, Plan, Source, Task};

use crate::blocks::BlockShape;
pub(crate) use check::shortened;
pub use error::{PlanError, Problem};
use groups::Checked;
pub use layers::Layer;
pub use limits::MAX_LAYERS;

/// Most dims of a kernel in a plan.
pub const MAX_DIMS: usize = 16;
/// Most buffers of a kernel in a plan.
pub const MAX_BUFFERS: usize = 32;
/// Most tokens of a step.
pub const MAX_TOKENS: u32 = 1 << 20;
/// Longest context, in positions.
pub const MAX_CONTEXT: u32 = 1 << 24;
/// Largest vocabulary.
pub const MAX_VOCABULARY: u32 = 1 << 24;
/// Most elements of a hidden state.
pub const MAX_WIDTH: u32 = 1 << 24;
/// Most experts of a routing.
pub const MAX_EXPERTS: u32 = 1 << 16;
/// Most scratch memory of a kernel, in bytes.
pub const MAX_SCRATCH: u64 = 1 << 28;
/// Most memory for the parts of a stage's items, in bytes.
pub const MAX_PARTS: u64 = 1 << 28;
/// Most numbers of positions that inputs count by: each has memory for the rows of a step. Models have two.
const MAX_SHARED: u64 = 16;
/// Most rows that tokens of a step name together: four times what models have, each of which is found anew for every token.
const MAX_NGRAMS: u64 = 64;
/// Most bands of a column.
pub const MAX_BANDS: u32 = 1 << 10;
/// Bytes of a line of caches, with which chosen places begin, and which a row's column is taken to need for its parts at least: there is a counter for each.
pub const LINE_BYTES: u64 = 64;
/// Most pairs that rotary tables turn, all together.
pub const MAX_PAIRS: usize = 1 << 16;

type Result<T, E = PlanError> = std::result::Result<T, E>;

fn at<T>(place: &dyn std::fmt::Display, result: Result<T, Problem>) -> Result<T> {
    result.map_err(|problem| PlanError { place: place.to_string(), problem })
}

fn range(what: &'static str, found: impl Into<u64>, least: u64, most: impl Into<u64>) -> Result<(), Problem> {
    let (found, most) = (found.into(), most.into());
    if (least..=most).contains(&found) { Ok(()) } else { Err(Problem::Range { what, found, least, most }) }
}

fn id<'a, T>(what: &'static str, found: u32, all: &'a [T]) -> Result<&'a T, Problem> {
    all.get(found as usize).ok_or(Problem::Id { what, found, count: all.len() })
}

/// An affine expression over dims, for quick evaluation.
#[derive(Clone, Debug)]
pub struct Linear {
    constant: i64,
    terms: Box<[(usize, i64)]>,
}

impl Linear {
    fn of(affine: &Affine, dims: usize) -> Option<Linear> {
        let term = |&(atom, coefficient): &(Atom, i64)| match atom {
            Atom::Dim(dim) if dim.index() < dims => Some((dim.index(), coefficient)),
            Atom::Dim(_) | Atom::Var(_) => None,
        };
        Some(Linear { constant: affine.constant, terms: affine.terms.iter().map(term).collect::<Option<_>>()? })
    }

    /// The value, 0 where it is negative (a size that is means empty); `None` where it overflows.
    pub fn at(&self, dims: &[i64]) -> Option<u64> {
        let mut sum = self.constant;
        for &(dim, coefficient) in &self.terms {
            sum = sum.checked_add(coefficient.checked_mul(*dims.get(dim)?)?)?;
        }
        Some(u64::try_from(sum).unwrap_or(0))
    }

    /// The largest value over the ranges of the dims.
    fn most(&self, dims: &[Dim]) -> Option<u64> {
        let corner: Vec<i64> = (0..dims.len())
            .map(|i| {
                let falls = self.terms.iter().any(|&(dim, coefficient)| dim == i && coefficient < 0);
                if falls { dims[i].lo } else { dims[i].hi }
            })
            .collect();
        self.at(&corner)
    }
}

/// What a kernel does with a buffer.
#[derive(Clone, Debug)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it, or reads and writes it.
    Write,
    /// Works in it.
    Scratch,
    /// Reads indices below the limit.
    Index(Linear),
}

/// A buffer of a kernel.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: Linear,
    /// What the kernel does with it.
    pub access: Access,
}

/// What a call of a kernel must look like.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The kernel's name.
    pub name: String,
    /// Its dims.
    pub dims: Vec<Dim>,
    /// Its buffers.
    pub buffers: Vec<Parameter>,
    /// How many products a call does.
    pub products: Counter,
    /// Whether it has tile products.
    pub has_tiles: bool,
}

impl Signature {
    fn of(kernel: &Kernel) -> Result<Signature, Problem> {
        range("dims", kernel.dims.len() as u64, 0, MAX_DIMS as u64)?;
        range("buffers", kernel.buffers.len() as u64, 0, MAX_BUFFERS as u64)?;
        let buffers = kernel.buffers.iter().map(|buffer| {
            let linear = |affine| {
                Linear::of(affine, kernel.dims.len())
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
            products: Counter::of(kernel),
            has_tiles: kernel.values.iter().any(|ty| ty.is_tile()),
        })
    }

    /// Most scratch bytes that a call takes.
    fn scratch(&self) -> Result<u64, Problem> {
        let mut sizes =
            self.buffers.iter().filter(|b| matches!(b.access, Access::Scratch)).map(|b| b.size.most(&self.dims));
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
    /// Where they are.
    pub ids: Ids,
    /// Whether some may be [`NOBODY`](ixc_ir::plan::NOBODY): they come from outside, or the plan says so.
    pub nobody: bool,
}

/// Where ids are: some of those that each row of a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ids {
    /// The arena buffer.
    pub buffer: BufferId,
    /// The first in each row.
    pub first: u32,
    /// From a row to the next, in ids.
    pub stride: u64,
}

/// What lies between two barriers.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    /// One work list from these.
    pub tasks: Vec<Task>,
    /// For each task the state with a window that it touches, if it does: its positions are counted in that state's memory.
    pub sliding: Vec<Option<u32>>,
    /// For each task what an index chose of the positions that its rows see, if it did: its positions are counted among those.
    pub listed: Vec<Option<Choice>>,
    /// For each task how far its rows see their text, where that is both before and behind them; `u32::MAX` where it is all.
    pub whole: Vec<Option<u32>>,
    /// For each task whether its items are of one sequence, or addition, each.
    pub apart: Vec<Apart>,
    /// Tasks of all stages before.
    pub first_task: usize,
    /// For each task where its parts are, if it has any.
    pub parts: Vec<PartPlace>,
    /// With so many rows at most it is done by the last thread to come to the barrier before it.
    pub alone: u32,
    /// Then this is done, by one thread, in this order.
    pub then: Vec<BarrierAction>,
    /// Position in [`Program::windows`] of the one in whose loop this stage is.
    pub window: Option<u32>,
}

/// Whether a task takes the rows of each addition to a sequence on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// Never: what it computes of a row does not depend on the others.
    Never,
    /// Where each addition is to have the bits that it has alone, and the rows together would be multiplied by tiles: those round otherwise than
    /// vectors, which give the same bits for any number of rows.
    Tiles,
    /// Where each addition is to have the bits that it has alone: with many rows this task rounds otherwise than with few.
    Exact,
    /// Always: it reads states or counts positions; or it adds otherwise with many rows than with few, which is dear nowhere.
    Always,
    /// Always, and all rows of a sequence together: it changes a state, row by row in their order.
    Sequence,
}

/// What one thread does at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierAction {
    /// Sorts a routing.
    Sort(BucketId),
    /// Requests the blocks of a window.
    Request {
        /// Its position in [`Program::windows`].
        window: u32,
        /// Its group.
        group: u32,
    },
    /// Announces the blocks of a window before they are requested: its routing has chosen them, and other experts are computed first.
    Announce {
        /// Its position in [`Program::windows`].
        window: u32,
        /// Its group.
        group: u32,
    },
    /// Where a window has experts that were not worked on, the walk goes on for these from stage `first`, without what is done behind
    /// this. In the stages of such a loop only tasks over the routing's rows read what such tasks wrote.
    Repeat {
        /// The loop's first stage; this one is its last.
        first: usize,
    },
    /// Predicts which blocks of a group will be requested.
    Predict {
        /// The group.
        group: u32,
        /// Ids `[T][count]`.
        ids: Ids,
        /// Experts for each token.
        count: u32,
    },
    /// Releases the blocks of a group.
    Release(u32),
}

/// A group of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its weights, by id, in the order of a block.
    pub weights: Vec<u32>,
    /// Number of experts.
    pub experts: u32,
    /// Where its blocks are in the plan's own file, if they are there.
    pub blocks: Option<BlockPlace>,
}

/// Stages that read experts of one group, between the step that requests them and the one that releases them: a loop, whose
/// [`BarrierAction::Repeat`] ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The group.
    pub group: u32,
    /// The routing that names those that are needed.
    pub bucket: BucketId,
}

/// The blocks of a group in the plan's own file: one for each expert, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPlace {
    /// What is where in each.
    pub shape: BlockShape,
    /// Where the first begins, from the first byte of the plan's own weights on. A multiple of a page.
    pub first: u64,
}

impl BlockPlace {
    /// Where an expert's block begins, from the first byte of the plan's own weights on. It fits where the expert is one of the group's.
    pub fn block(&self, expert: u32) -> u64 {
        self.first.saturating_add(self.shape.stride().saturating_mul(u64::from(expert)))
    }
}

/// Where the parts of a task's items are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartPlace {
    /// Bytes of a part.
    pub bytes: u64,
    /// Where the first part of the first line begins. A *line* is a row's column.
    pub offset: u64,
    /// The number of the first line, counted over the tasks of a stage.
    pub line: usize,
    /// Parts of a line.
    pub parts: u32,
    /// Columns of a row.
    pub columns: u32,
    /// Rows at most.
    pub rows: u64,
}

impl PartPlace {
    /// The number of a row's column; `None` where there is none such.
    pub fn line(&self, (row, column): (u64, u32)) -> Option<u64> {
        let inside = row < self.rows && column < self.columns;
        inside.then(|| row.checked_mul(self.columns.into())?.checked_add(column.into())).flatten()
    }

    /// Lines. Few enough for the program's check to have taken the memory of their parts.
    fn lines(&self) -> u64 {
        self.rows.saturating_mul(self.columns.into())
    }
}

/// A checked plan.
#[derive(Debug)]
pub struct Program {
    /// Work, in order.
    pub stages: Vec<Stage>,
    /// Kernels, by id.
    pub kernels: Vec<Signature>,
    /// Routings, by id.
    pub routings: Vec<Routing>,
    /// Groups of experts, by id.
    pub groups: Vec<Group>,
    /// Windows, in order. Each group has one at least.
    pub windows: Vec<Window>,
    /// Arena buffers, by id.
    pub buffers: Vec<ArenaBuffer>,
    /// Scratch memory that each thread needs, in bytes.
    pub scratch_bytes: u64,
    /// Memory for the parts of a stage's items, in bytes.
    pub part_bytes: u64,
    /// Rows' columns that have parts, in a stage.
    pub part_lines: usize,
    /// Memory that each thread needs for places that an index chose, in bytes.
    pub chosen_bytes: u64,
    /// By how many positions inputs count.
    pub shared: Vec<u32>,
    /// What indices choose, as inputs count it.
    pub choices: Vec<Choice>,
    /// By how many positions inputs are ahead of rows.
    pub ahead: Vec<u32>,
    /// Rows that tokens name together with those before them, each with a state of its own.
    pub ngrams: Vec<Ngram>,
    /// Most tokens of a step.
    pub max_tokens: u32,
    /// Vocabulary.
    pub vocabulary: u32,
    /// Where what a step gives is.
    pub logits: BufferId,
    /// What it is.
    pub output: Output,
    /// Hidden states that come in with the tokens.
    pub takes: Option<HiddenRows>,
    /// Those that are given of them.
    pub gives: Option<HiddenRows>,
    /// Layers that are run on their own; none where all stages are a model's step.
    pub layers: Vec<Layer>,
}

impl Program {
    /// Whether a step has all of a text, since every token of it sees all others.
    pub fn reads_whole(&self) -> bool {
        self.stages.iter().any(|stage| stage.whole.iter().any(Option::is_some))
    }

    /// Returns the rows of an addition from which on each task over tokens uses one kernel, if its
    /// kernels round differently. One where tiles make no bits equal, unless `exact` makes them.
    pub fn least_rows(&self, exact: bool) -> u32 {
        let rounds = |apart: Apart| match apart {
            Apart::Never => false,
            Apart::Always | Apart::Sequence => true,
            Apart::Tiles | Apart::Exact => exact,
        };
        if !exact && self.kernels.iter().any(|kernel| kernel.has_tiles) {
            return 1;
        }
        let least = |task: &Task| match &task.variants[..] {
            [.., few, _] if task.rows == ixc_ir::plan::RowAxis::Tokens => few.up_to_rows.saturating_add(1),
            _ => 1,
        };
        let tasks = self.stages.iter().flat_map(|stage| stage.tasks.iter().zip(&stage.apart));
        tasks.filter(|(_, apart)| rounds(**apart)).map(|(task, _)| least(task)).max().unwrap_or(1)
    }

    /// Windows of a group, by position.
    pub fn windows_of(&self, group: u32) -> impl Iterator<Item = usize> {
        self.windows.iter().enumerate().filter(move |(_, window)| window.group == group).map(|(i, _)| i)
    }

    /// How many experts of a group a token needs, in all windows of the group together.
    pub fn experts_of_token(&self, group: u32) -> u32 {
        let windows = self.windows.iter().filter(|window| window.group == group);
        let top_k = |window: &Window| self.routings.get(window.bucket.0 as usize).map_or(0, |routing| routing.top_k);
        windows.map(top_k).fold(0, u32::saturating_add)
    }

    /// Checks a plan whose kernels have been verified.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn new(plan: &Plan<Kernel>) -> Result<Program> {
        let sizes = || {
            range("max_tokens", plan.max_tokens, 1, MAX_TOKENS)?;
            range("vocabulary", plan.vocabulary, 1, MAX_VOCABULARY)?;
            range("context length", plan.context_length, 1, u64::from(u32::MAX))
        };
        at(&"plan", sizes())?;
        at(&"plan", limits::check(plan))?;
        let mut kernels = Vec::with_capacity(plan.kernels.len());
        let mut scratch_bytes = 0;
        for kernel in &plan.kernels {
            let place = format!("kernel {:?}", check::shortened(&kernel.name));
            let signature = at(&place, Signature::of(kernel))?;
            scratch_bytes = scratch_bytes.max(at(&place, signature.scratch())?);
            kernels.push(signature);
        }
        for (i, table) in plan.ropes.iter().enumerate() {
            at(&format!("rotary table {i}"), check::rope(table))?;
        }
        let made = check::derived(plan)?;
        for weight in &plan.weights {
            at(&format!("weight {:?}", check::shortened(&weight.name)), check::weight(plan, &made, weight))?;
        }
        for (i, state) in plan.states.iter().enumerate() {
            at(&format!("state {i}, {:?}", check::shortened(&state.name)), check::state(state))?;
        }
        at(&"plan", check::packed_at_load(plan, &made))?;
        for buffer in &plan.buffers {
            at(&format!("buffer {:?}", check::shortened(&buffer.name)), check::buffer(plan, buffer))?;
        }
        let routings = check::routings(plan)?;
        let checker = check::Checker { plan, kernels: &kernels, routings: &routings };
        let (stages, parts) = checker.stages()?;
        let Checked { stages, groups, windows } = groups::check(&checker, stages)?;
        let layers = layers::check(plan, &routings, parts)?;
        at(&"logits", checker.logits())?;
        if let Output::Logits { softmax } = plan.output {
            at(&"softmax", checker.softmax(softmax))?;
        }
        for (rows, place) in
            [(plan.takes, "hidden states that are taken"), (plan.gives, "hidden states that are given")]
        {
            rows.map_or(Ok(()), |rows| at(&place, checker.hidden(rows)))?;
        }
        let ends =
            |end: fn(&PartPlace) -> u64| stages.iter().flat_map(|stage| &stage.parts).map(end).max().unwrap_or(0);
        // They fit: each was found to be at most MAX_PARTS.
        let part_bytes = ends(|place| place.offset + place.bytes * place.lines() * u64::from(place.parts));
        let part_lines = ends(|place| place.line as u64 + place.lines());
        let inputs = || stages.iter().flat_map(|stage| &stage.tasks).flat_map(|task| &task.args);
        let shared: BTreeSet<u32> = inputs()
            .filter_map(|arg| match arg.source {
                Source::Input(Input::Phase(every) | Input::Whole(every)) => Some(every),
                _ => None,
            })
            .collect();
        at(&"plan", range("kinds of places that positions share", shared.len() as u64, 0, MAX_SHARED))?;
        let choices: BTreeSet<Choice> = inputs()
            .filter_map(|arg| match arg.source {
                Source::Input(Input::Chosen(choice) | Input::LastChosen(choice)) => Some(choice),
                _ => None,
            })
            .collect();
        at(&"plan", range("kinds of choices of places", choices.len() as u64, 0, MAX_SHARED))?;
        let chosen_bytes = stages.iter().flat_map(|stage| &stage.tasks).map(|task| checker.chosen_bytes(task)).max();
        let chosen_bytes = chosen_bytes.unwrap_or(0);
        at(&"plan", range("bytes of chosen places", chosen_bytes, 0, MAX_PARTS))?;
        let ahead: BTreeSet<u32> = inputs()
            .filter_map(|arg| match arg.source {
                Source::Input(Input::Ahead(reach)) => Some(reach),
                _ => None,
            })
            .collect();
        at(&"plan", range("kinds of positions ahead of rows", ahead.len() as u64, 0, MAX_SHARED))?;
        let ngrams: BTreeSet<Ngram> = inputs()
            .filter_map(|arg| match arg.source {
                Source::Input(Input::Ngram(ngram)) => Some(ngram),
                _ => None,
            })
            .collect();
        at(&"plan", range("rows that tokens name together", ngrams.len() as u64, 0, MAX_NGRAMS))?;
        // Each has the ids before a step in a state of its own, which remembers them once.
        let states: BTreeSet<u32> = ngrams.iter().map(|ngram| ngram.state).collect();
        let alone =
            Problem::Shape { expected: "with a state of its own for each of the rows that tokens name together" };
        at(&"plan", if states.len() == ngrams.len() { Ok(()) } else { Err(alone) })?;
        Ok(Program {
            chosen_bytes,
            ahead: ahead.into_iter().collect(),
            shared: shared.into_iter().collect(),
            choices: choices.into_iter().collect(),
            ngrams: ngrams.into_iter().collect(),
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
            kernels,
        })
    }
}
