//! A plan, checked, as the tables that running it needs.
//!
//! Takes a plan that nobody trusts, with kernels that the kernel verifier has accepted. Leaves true, where it gives a
//! [`Program`]:
//!
//! - every id is in range: kernels, buffers, weights, files, tables, layers, routings;
//! - every variant has one dim rule for each dim of its kernel, and an argument for each buffer;
//! - a kernel writes only the arena, the cache and scratch; scratch buffers are in scratch memory, and nothing else is;
//!   index buffers are fed from inputs alone, at multiples of 4; what a call writes overlaps nothing else that it takes;
//! - a routing is used only after the one step that fills it;
//! - arena buffers lie in the arena, weights in their files.
//!
//! What it does not prove is that an item's slices lie inside their buffers: that depends on the step's row counts, and
//! [`crate::execute`] checks it for each item.

use ixc_ir::kernel::{Affine, Atom, BufferKind, Dim, Kernel};
use ixc_ir::plan::{
    ArenaBuffer, Arg, BucketId, BufferId, DimRule, Input, KernelId, Plan, RowAxis, RowCount, Source, Step, Task,
};

/// Most dims of a kernel in a plan.
pub const MAX_DIMS: usize = 8;
/// Most buffers of a kernel in a plan.
pub const MAX_BUFFERS: usize = 32;
/// Most tokens of a step.
pub const MAX_TOKENS: u32 = 1 << 20;
/// Longest context, in positions.
pub const MAX_CONTEXT: u32 = 1 << 24;
/// Largest vocabulary.
pub const MAX_VOCABULARY: u32 = 1 << 24;
/// Most experts of a routing.
pub const MAX_EXPERTS: u32 = 1 << 16;
/// Most scratch memory of a kernel, in bytes.
pub const MAX_SCRATCH: u64 = 1 << 28;
/// Most pairs that a rotary table turns.
pub const MAX_PAIRS: usize = 1 << 16;

/// What is wrong with a plan, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct PlanError {
    /// Which part of the plan.
    pub place: String,
    /// What is wrong, and what would be right.
    #[source]
    pub problem: Problem,
}

/// What can be wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A number outside its range.
    #[error("{what} is {found}, must be in {least}..={most}")]
    Range {
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// Smallest.
        least: u64,
        /// Largest.
        most: u64,
    },
    /// An id of something that is not there.
    #[error("{what} {found} does not exist, the plan has {right}")]
    Id {
        /// What kind of thing.
        what: &'static str,
        /// The id.
        found: u32,
        /// How many there are.
        right: usize,
    },
    /// Another number of things than there must be.
    #[error("has {found} {what}, must have {right}")]
    Count {
        /// What kind of things.
        what: &'static str,
        /// How many.
        found: usize,
        /// How many there must be.
        right: usize,
    },
    /// Something that ends outside what it lies in.
    #[error("{bytes} bytes at {offset} end outside {what} of {available} bytes")]
    Outside {
        /// What it must lie in.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// Its length; the largest number where that does not fit.
        bytes: u64,
        /// Length of what it must lie in.
        available: u64,
    },
    /// A weight whose length is not that of its shape.
    #[error("has {found} bytes; its format and shape take {right}")]
    WeightBytes {
        /// Found.
        found: u64,
        /// Right; 0 where the shape fits no format.
        right: u64,
    },
    /// A buffer that is fed from where it may not be.
    #[error("buffer %{buffer} is `{kind}` and comes from {source_name}; {right}")]
    Feed {
        /// The kernel's buffer.
        buffer: String,
        /// Keyword of its kind.
        kind: &'static str,
        /// Where it comes from.
        source_name: &'static str,
        /// What would be right.
        right: &'static str,
    },
    /// Indices at an address that is no multiple of 4.
    #[error("buffer %{buffer} of indices must lie at multiples of 4")]
    IndexAlignment {
        /// The kernel's buffer.
        buffer: String,
    },
    /// A written buffer in the memory of another one of the same call.
    #[error("buffer %{written} is written and shares memory with buffer %{other}")]
    Overlap {
        /// The buffer that is written.
        written: String,
        /// The other one.
        other: String,
    },
    /// Something that varies with more than dims.
    #[error("buffer %{buffer}: its size and limit may vary with dims only")]
    NotOverDims {
        /// The kernel's buffer.
        buffer: String,
    },
    /// Variants that do not cover all row counts in order.
    #[error("row counts of variants must ascend and end with {}", u32::MAX)]
    Variants,
    /// A dim rule that does not fit its task.
    #[error("dim rule {rule:?} {right}")]
    Rule {
        /// The rule.
        rule: DimRule,
        /// What it needs.
        right: &'static str,
    },
    /// A routing that is used before, or filled more than once, or never.
    #[error("routing {bucket} must be filled by one step, before any step that uses it")]
    Order {
        /// The routing.
        bucket: u32,
    },
    /// The logits, the ids of a routing or the softmax kernel are not what they must be.
    #[error("must be {right}")]
    Shape {
        /// What it must be.
        right: &'static str,
    },
}

type Result<T, E = PlanError> = std::result::Result<T, E>;

fn at<T>(place: &dyn std::fmt::Display, result: Result<T, Problem>) -> Result<T> {
    result.map_err(|problem| PlanError { place: place.to_string(), problem })
}

fn range(what: &'static str, found: impl Into<u64>, least: u64, most: impl Into<u64>) -> Result<(), Problem> {
    let (found, most) = (found.into(), most.into());
    if (least..=most).contains(&found) { Ok(()) } else { Err(Problem::Range { what, found, least, most }) }
}

fn id<'a, T>(what: &'static str, found: u32, all: &'a [T]) -> Result<&'a T, Problem> {
    all.get(found as usize).ok_or(Problem::Id { what, found, right: all.len() })
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
            buffers: buffers.collect::<Result<_, _>>()?,
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
            (Some(_), Some(_)) => Err(Problem::Shape { right: "a kernel with at most one scratch buffer" }),
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
    /// The arena buffer with the ids.
    pub ids: BufferId,
}

/// What lies between two barriers.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    /// One work list from these.
    pub tasks: Vec<Task>,
    /// Then these routings are sorted, by one thread.
    pub then: Vec<BucketId>,
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
    /// Arena buffers, by id.
    pub buffers: Vec<ArenaBuffer>,
    /// Scratch memory that each thread needs, in bytes.
    pub scratch_bytes: u64,
    /// Most tokens of a step.
    pub max_tokens: u32,
    /// Vocabulary.
    pub vocabulary: u32,
    /// Where the logits are.
    pub logits: BufferId,
    /// The sampler's softmax.
    pub softmax: KernelId,
}

impl Program {
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
        let mut kernels = Vec::with_capacity(plan.kernels.len());
        let mut scratch_bytes = 0;
        for kernel in &plan.kernels {
            let place = format!("kernel {:?}", shortened(&kernel.name));
            let signature = at(&place, Signature::of(kernel))?;
            scratch_bytes = scratch_bytes.max(at(&place, signature.scratch())?);
            kernels.push(signature);
        }
        for (i, table) in plan.ropes.iter().enumerate() {
            let pairs = range("pairs", table.frequencies.len() as u64, 1, MAX_PAIRS as u64);
            at(&format!("rotary table {i}"), pairs)?;
        }
        for weight in &plan.weights {
            at(&format!("weight {:?}", shortened(&weight.name)), check_weight(plan, weight))?;
        }
        for buffer in &plan.buffers {
            at(&format!("buffer {:?}", shortened(&buffer.name)), check_buffer(plan, buffer))?;
        }
        let routings = routings(plan)?;
        let checker = Checker { plan, kernels: &kernels, routings: &routings };
        let stages = checker.stages()?;
        at(&"logits", checker.logits())?;
        at(&"softmax", checker.softmax())?;
        Ok(Program {
            stages,
            routings,
            buffers: plan.buffers.clone(),
            scratch_bytes,
            max_tokens: plan.max_tokens,
            vocabulary: plan.vocabulary,
            logits: plan.logits,
            softmax: plan.softmax,
            kernels,
        })
    }
}

/// A name for an error, not longer than a line.
fn shortened(name: &str) -> String {
    if name.chars().nth(100).is_some() {
        name.chars().take(97).chain("...".chars()).collect()
    } else {
        name.to_string()
    }
}

fn check_weight(plan: &Plan<Kernel>, weight: &ixc_ir::plan::PlanWeight) -> Result<(), Problem> {
    let file = id("file", weight.file, &plan.files)?;
    let row = weight.format.row();
    let elements = weight.shape.iter().try_fold(1u64, |product, &d| product.checked_mul(d));
    let blocks = elements.filter(|n| n.is_multiple_of(row.block_len as u64)).map(|n| n / row.block_len as u64);
    let right = blocks.and_then(|blocks| blocks.checked_mul(row.block_bytes as u64));
    if right != Some(weight.bytes) {
        return Err(Problem::WeightBytes { found: weight.bytes, right: right.unwrap_or(0) });
    }
    inside("its file", weight.offset, Some(weight.bytes), file.bytes)
}

fn inside(what: &'static str, offset: u64, bytes: Option<u64>, available: u64) -> Result<(), Problem> {
    match bytes.and_then(|bytes| offset.checked_add(bytes)) {
        Some(end) if end <= available => Ok(()),
        _ => Err(Problem::Outside { what, offset, bytes: bytes.unwrap_or(u64::MAX), available }),
    }
}

/// Rows of a count at most.
fn most_rows(rows: RowCount, max_tokens: u32) -> u64 {
    match rows {
        RowCount::Tokens | RowCount::Outputs => u64::from(max_tokens),
        RowCount::Routed { top_k } => u64::from(max_tokens) * u64::from(top_k),
    }
}

fn check_rows(rows: RowCount) -> Result<(), Problem> {
    match rows {
        RowCount::Tokens | RowCount::Outputs => Ok(()),
        RowCount::Routed { top_k } => range("experts per token", top_k, 1, MAX_EXPERTS),
    }
}

fn check_buffer(plan: &Plan<Kernel>, buffer: &ArenaBuffer) -> Result<(), Problem> {
    check_rows(buffer.rows)?;
    let bytes = buffer.row_bytes.checked_mul(most_rows(buffer.rows, plan.max_tokens));
    inside("the arena", buffer.offset, bytes, plan.arena_bytes)
}

/// The routings; that each is filled once.
fn routings(plan: &Plan<Kernel>) -> Result<Vec<Routing>> {
    let mut routings = Vec::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let Step::Bucket { bucket, ids, top_k, experts } = step else { continue };
        let check = || {
            // Ids in order, as a schedule numbers them; so their number is bounded by that of the steps.
            if bucket.0 >= plan.buckets || bucket.0 as usize != routings.len() {
                return Err(Problem::Order { bucket: bucket.0 });
            }
            range("experts", *experts, 1, MAX_EXPERTS)?;
            range("experts per token", *top_k, 1, *experts)?;
            let buffer = id("buffer", ids.0, &plan.buffers)?;
            if buffer.rows != RowCount::Tokens || buffer.row_bytes != u64::from(*top_k) * 4 {
                return Err(Problem::Shape { right: "fed from a buffer with one i32 for each slot of a token" });
            }
            Ok(Routing { top_k: *top_k, experts: *experts, ids: *ids })
        };
        let routing = at(&format!("step {i}"), check())?;
        routings.push(routing);
    }
    let count =
        Problem::Count { what: "routings that a step fills", found: routings.len(), right: plan.buckets as usize };
    at(&"plan", if routings.len() == plan.buckets as usize { Ok(()) } else { Err(count) })?;
    Ok(routings)
}

struct Checker<'a> {
    plan: &'a Plan<Kernel>,
    kernels: &'a [Signature],
    routings: &'a [Routing],
}

impl Checker<'_> {
    fn stages(&self) -> Result<Vec<Stage>> {
        let mut stages: Vec<Stage> = Vec::new();
        // Routings that are filled when a step runs: all below this, since they are filled in order.
        let mut filled = 0;
        for (i, step) in self.plan.steps.iter().enumerate() {
            match step {
                Step::Run { tasks } => {
                    for task in tasks {
                        let place = format!("step {i}, task {:?}", shortened(&task.label));
                        at(&place, self.task(task, filled))?;
                    }
                    stages.push(Stage { tasks: tasks.clone(), then: Vec::new() });
                }
                Step::Bucket { bucket, .. } => {
                    if stages.is_empty() {
                        stages.push(Stage::default());
                    }
                    if let Some(stage) = stages.last_mut() {
                        stage.then.push(*bucket);
                    }
                    filled += 1;
                }
            }
        }
        Ok(stages)
    }

    fn task(&self, task: &Task, filled: u32) -> Result<(), Problem> {
        if let RowAxis::Routed(bucket) = task.rows {
            self.filled(bucket, filled)?;
        }
        range("arguments", task.args.len() as u64, 0, MAX_BUFFERS as u64)?;
        for arg in &task.args {
            self.source(arg.source, filled)?;
        }
        let ascending = task.variants.windows(2).all(|pair| pair[0].up_to_rows < pair[1].up_to_rows);
        if !ascending || task.variants.last().is_none_or(|last| last.up_to_rows != u32::MAX) {
            return Err(Problem::Variants);
        }
        for variant in &task.variants {
            range("row chunk", variant.row_chunk, 1, u64::from(u32::MAX))?;
            let kernel = id("kernel", variant.kernel.0, self.kernels)?;
            if variant.dims.len() != kernel.dims.len() {
                return Err(Problem::Count { what: "dims", found: variant.dims.len(), right: kernel.dims.len() });
            }
            for &rule in &variant.dims {
                self.rule(rule, task.rows, variant.row_chunk)?;
            }
            self.arguments(kernel, &task.args)?;
        }
        Ok(())
    }

    fn filled(&self, bucket: BucketId, filled: u32) -> Result<(), Problem> {
        id("routing", bucket.0, self.routings)?;
        if bucket.0 < filled { Ok(()) } else { Err(Problem::Order { bucket: bucket.0 }) }
    }

    fn source(&self, source: Source, filled: u32) -> Result<(), Problem> {
        match source {
            Source::Arena(buffer) => id("buffer", buffer.0, &self.plan.buffers).map(drop),
            Source::Weight(weight) => id("weight", weight, &self.plan.weights).map(drop),
            Source::Rope(table) => id("rotary table", table, &self.plan.ropes).map(drop),
            Source::Keys(layer) | Source::Values(layer) => id("cache layer", layer, &self.plan.cache).map(drop),
            Source::Input(Input::RoutedToken(bucket) | Input::RoutedSlot(bucket)) => self.filled(bucket, filled),
            Source::Scratch
            | Source::Input(
                Input::Tokens | Input::Positions | Input::PositionBlock | Input::PositionLane | Input::OutputRows,
            ) => Ok(()),
        }
    }

    fn rule(&self, rule: DimRule, rows: RowAxis, row_chunk: u32) -> Result<(), Problem> {
        match rule {
            DimRule::RowGroups(0) | DimRule::RowRest(0) => Err(Problem::Rule { rule, right: "divides by 0" }),
            DimRule::PositionBlocks if rows != RowAxis::Tokens || row_chunk != 1 => {
                Err(Problem::Rule { rule, right: "needs items of one token each" })
            }
            DimRule::All(rows) => check_rows(rows),
            DimRule::Rows
            | DimRule::RowGroups(_)
            | DimRule::RowRest(_)
            | DimRule::PositionBlocks
            | DimRule::CacheBlocks => Ok(()),
        }
    }

    fn arguments(&self, kernel: &Signature, args: &[Arg]) -> Result<(), Problem> {
        // Variants share their arguments; what one has no use for is scratch.
        let spare = args.get(kernel.buffers.len()..);
        if spare.is_none_or(|spare| spare.iter().any(|arg| arg.source != Source::Scratch)) {
            return Err(Problem::Count { what: "arguments", found: args.len(), right: kernel.buffers.len() });
        }
        for (i, (buffer, arg)) in kernel.buffers.iter().zip(args).enumerate() {
            feed(buffer, arg)?;
            if !matches!(buffer.access, Access::Write) {
                continue;
            }
            for (j, (other, other_arg)) in kernel.buffers.iter().zip(args).enumerate() {
                if i != j && self.may_overlap(arg.source, other_arg.source) {
                    return Err(Problem::Overlap { written: buffer.name.clone(), other: other.name.clone() });
                }
            }
        }
        Ok(())
    }

    fn may_overlap(&self, a: Source, b: Source) -> bool {
        match (a, b) {
            (Source::Arena(a), Source::Arena(b)) => {
                let place = |buffer: BufferId| {
                    let buffer = &self.plan.buffers[buffer.0 as usize];
                    // The product fits: the buffer was found to lie in the arena.
                    (buffer.offset, buffer.offset + buffer.row_bytes * most_rows(buffer.rows, self.plan.max_tokens))
                };
                let ((a, a_end), (b, b_end)) = (place(a), place(b));
                a < b_end && b < a_end
            }
            (a, b) => a == b,
        }
    }

    fn logits(&self) -> Result<(), Problem> {
        let buffer = id("buffer", self.plan.logits.0, &self.plan.buffers)?;
        let right = u64::from(self.plan.vocabulary) * 4;
        if buffer.rows == RowCount::Outputs && buffer.row_bytes == right && buffer.offset.is_multiple_of(4) {
            Ok(())
        } else {
            Err(Problem::Shape { right: "an aligned buffer with one f32 of each wanted output for each word" })
        }
    }

    fn softmax(&self) -> Result<(), Problem> {
        let kernel = id("kernel", self.plan.softmax.0, self.kernels)?;
        let row = u64::from(self.plan.vocabulary) * 4;
        let fits = |buffer: &Parameter, bytes: u64| buffer.size.at(&[]).is_some_and(|size| size <= bytes);
        match &kernel.buffers[..] {
            [logits, temperature, y]
                if kernel.dims.is_empty()
                    && matches!(
                        (&logits.access, &temperature.access, &y.access),
                        (Access::Read, Access::Read, Access::Write)
                    )
                    && fits(logits, row)
                    && fits(temperature, 4)
                    && fits(y, row) =>
            {
                Ok(())
            }
            _ => Err(Problem::Shape { right: "a kernel from logits and inverse temperature to probabilities" }),
        }
    }
}

/// Whether a kernel's buffer may come from there.
fn feed(buffer: &Parameter, arg: &Arg) -> Result<(), Problem> {
    let (source_name, writable) = match arg.source {
        Source::Arena(_) => ("the arena", true),
        Source::Weight(_) => ("a weight", false),
        Source::Rope(_) => ("a rotary table", false),
        Source::Keys(_) | Source::Values(_) => ("the cache", true),
        Source::Scratch => ("scratch memory", false),
        Source::Input(_) => ("an input", false),
    };
    let is_scratch = arg.source == Source::Scratch;
    let (kind, ok, right) = match buffer.access {
        Access::Read => ("read", !is_scratch, "scratch memory holds anything"),
        Access::Write => ("write", writable, "only the arena and the cache are written"),
        Access::Scratch => ("scratch", is_scratch, "it must come from scratch memory"),
        Access::Index(_) => ("index", matches!(arg.source, Source::Input(_)), "it must come from an input"),
    };
    if !ok {
        return Err(Problem::Feed { buffer: buffer.name.clone(), kind, source_name, right });
    }
    let aligned =
        [arg.offset, arg.row_stride, arg.column_stride, arg.expert_stride].iter().all(|n| n.is_multiple_of(4));
    if matches!(buffer.access, Access::Index(_)) && !aligned {
        return Err(Problem::IndexAlignment { buffer: buffer.name.clone() });
    }
    Ok(())
}
