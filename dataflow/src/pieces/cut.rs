//! The pass `pieces`: cuts each task in a way that depends on its kernel.
//!
//! Buffers get new numbers, in the order in which they are first written. Most buffers of the draft
//! become one buffer each. A buffer that is only read by sums over experts becomes several buffers:
//! one for each range of its rows' elements.

use ixc_ir::format::Format;
use ixc_ir::plan::{
    ArenaBuffer, Arg, Bands, BufferId, KernelId, Output, Plan, RopeTable, RowCount, Source, Split, Step, Task, Variant,
};
use ixc_kernels::generator::signature::BindError;
use ixc_kernels::{AddBias, Clamp, Gated, KernelSpec, Map, Relu, Scale, Softcap, Xielu};
use ixc_passes::draft::{Draft, Resource, Work, WorkItem, fit, row_bytes};
use ixc_passes::error::{PassError, ScheduleError};
use ixc_passes::pass::Context;
use ixc_passes::schedule::bind::Tasks;
use ixc_passes::schedule::{arena, steps};

use super::Partition;

/// Cuts a draft from `lower` into pieces and returns the plan. On a grid no threads meet, so no
/// step runs on a single thread.
///
/// # Errors
/// See [`run`], and the passes `steps` and `arena`.
pub fn plan(draft: &Draft, partition: &Partition, context: &Context<'_>) -> Result<Plan<KernelSpec>, PassError> {
    let context = context.clone().with(&steps::StepsOptions { alone: None, halves: None });
    arena::run(steps::run(run(draft, partition)?, &context)?, &context)
}

/// Cuts the tasks of a draft, and returns the draft with the pieces.
///
/// # Errors
/// If a task works on a state other than keys and values, or a number of the plan does not fit.
pub fn run(draft: &Draft, partition: &Partition) -> Result<Draft, ScheduleError> {
    let mut cutting = TaskCutter::new(draft, partition);
    for work in &draft.work {
        cutting.work(work)?;
    }
    cutting.combined_apart()?;
    let logits = cutting.new_buffer(draft.plan.logits)?;
    let output = match draft.plan.output {
        Output::Logits { softmax } => Output::Logits { softmax: cutting.kernel(softmax)? },
        hidden @ Output::Hidden { .. } => hidden,
        Output::Experts { .. } => {
            let problem = "expert layers on their own; a grid runs the steps of a model".to_string();
            return Err(ScheduleError::Unsupported { op: "route.given", problem });
        }
    };
    if draft.plan.takes.or(draft.plan.gives).is_some() {
        return plan_error(
            "hidden states in addition to tokens and logits; a grid takes tokens and returns logits".to_string(),
        );
    }
    let TaskCutter { tasks, buffers, ropes, .. } = cutting;
    let (kernels, work) = tasks.into_parts();
    tracing::debug!(whole = draft.work.len(), tasks = work.len(), kernels = kernels.len(), "in pieces");
    let plan = Plan { kernels, buffers, ropes, logits, output, ..draft.plan.clone() };
    Ok(Draft { plan, work, steps: None, layers: Vec::new() })
}

/// State of the pass, with the tasks cut so far.
pub(super) struct TaskCutter<'a> {
    pub(super) partition: &'a Partition,
    pub(super) tasks: Tasks,
    /// The uncut plan from `lower`.
    whole: &'a Plan<KernelSpec>,
    /// Whether each buffer of `whole` is only read by sums over experts.
    summed: Vec<bool>,
    /// For each buffer of `whole`, the new buffers that replace it. Empty until a task writes the
    /// buffer.
    made: Vec<Vec<BufferId>>,
    buffers: Vec<ArenaBuffer>,
    ropes: Vec<RopeTable>,
}

/// An uncut task from `lower`.
#[derive(Clone, Copy)]
pub(super) struct WholeTask<'a> {
    pub(super) task: &'a Task,
    /// The task's first kernel; all kernels of the task compute the same.
    kernel: &'a KernelSpec,
}

impl<'a> WholeTask<'a> {
    /// Returns the argument for a buffer of the kernel, if the kernel has it.
    pub(super) fn optional(&self, name: &'static str) -> Option<&'a Arg> {
        let position = self.kernel.signature().buffers.iter().position(|buffer| buffer.name == name);
        position.and_then(|position| self.task.args.get(position))
    }

    /// Returns the argument for a buffer of the kernel.
    pub(super) fn arg(&self, name: &'static str) -> Result<&'a Arg, ScheduleError> {
        self.optional(name).ok_or_else(|| BindError::Missing { kernel: self.kernel.name(), name }.into())
    }

    /// Returns the buffer that the task writes.
    pub(super) fn result(&self, name: &'static str) -> Result<BufferId, ScheduleError> {
        match self.arg(name)?.source {
            Source::Arena(buffer) => Ok(buffer),
            _ => plan_error(format!("results of {} that are in no buffer", self.task.label)),
        }
    }

    /// Returns the names of the kernel's buffers.
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.kernel.signature().names()
    }
}

/// Returns the argument for a part of a buffer. It begins `offset` bytes after the whole argument,
/// and its columns are `column_stride` bytes apart.
pub(super) fn part(arg: &Arg, offset: u64, column_stride: u64) -> Arg {
    Arg { offset: arg.offset.saturating_add(offset), column_stride, ..arg.clone() }
}

fn plan_error<T>(problem: String) -> Result<T, ScheduleError> {
    Err(ScheduleError::Draft { problem })
}

/// Returns the error for a state that no PE can keep.
fn refuse(op: &'static str) -> Result<(), ScheduleError> {
    Err(ScheduleError::Unsupported { op, problem: "a state other than keys and values, in pieces".to_string() })
}

/// Returns, for each buffer, whether it is only read by sums over experts.
fn expert_sum_buffers(draft: &Draft) -> Vec<bool> {
    let (mut sums, mut others) = (vec![false; draft.plan.buffers.len()], vec![false; draft.plan.buffers.len()]);
    for work in &draft.work {
        let rows = match &work.what {
            WorkItem::Task(task) => first_kernel(&draft.plan, task).ok().and_then(|kernel| match kernel {
                KernelSpec::Combine(_) => WholeTask { task, kernel }.result("x").ok(),
                _ => None,
            }),
            WorkItem::Bucket(_) | WorkItem::Residency(_) | WorkItem::Exchange(_) => None,
        };
        for read in &work.reads {
            let Resource::Buffer(buffer) = *read else { continue };
            let of = if rows == Some(BufferId(buffer)) { &mut sums } else { &mut others };
            if let Some(is) = of.get_mut(buffer as usize) {
                *is = true;
            }
        }
    }
    sums.into_iter().zip(others).map(|(sum, other)| sum && !other).collect()
}

fn first_kernel<'a>(plan: &'a Plan<KernelSpec>, task: &Task) -> Result<&'a KernelSpec, ScheduleError> {
    match task.variants.first().and_then(|variant| plan.kernels.get(variant.kernel.0 as usize)) {
        Some(kernel) => Ok(kernel),
        None => plan_error(format!("no kernel for {}", task.label)),
    }
}

impl<'a> TaskCutter<'a> {
    fn new(draft: &'a Draft, partition: &'a Partition) -> TaskCutter<'a> {
        let whole = &draft.plan;
        let groups = whole.expert_groups.iter().zip(0u32..);
        let groups = groups.flat_map(|(group, number)| group.weights.iter().map(move |&weight| (weight, number)));
        TaskCutter {
            partition,
            tasks: Tasks::of_groups(groups.collect()),
            whole,
            summed: expert_sum_buffers(draft),
            made: vec![Vec::new(); whole.buffers.len()],
            buffers: Vec::new(),
            ropes: Vec::new(),
        }
    }

    fn work(&mut self, work: &Work) -> Result<(), ScheduleError> {
        match &work.what {
            WorkItem::Task(task) => self.task(task, work),
            WorkItem::Bucket(step) => {
                let step = self.step(step)?;
                self.push(WorkItem::Bucket(step), work)
            }
            WorkItem::Residency(step) => {
                let step = self.step(step)?;
                self.push(WorkItem::Residency(step), work)
            }
            WorkItem::Exchange(_) => {
                let problem = "the graph is the part of a rank; a grid needs a whole model".to_string();
                Err(ScheduleError::Unsupported { op: "ranks.begin", problem })
            }
        }
    }

    /// Cuts a task, depending on its kernel.
    fn task(&mut self, task: &Task, work: &Work) -> Result<(), ScheduleError> {
        let whole: &'a Plan<KernelSpec> = self.whole;
        let kernel = first_kernel(whole, task)?;
        let whole = &WholeTask { task, kernel };
        match kernel {
            KernelSpec::Linear(spec) => self.linear(whole, spec),
            KernelSpec::Swiglu(spec) => self.swiglu(whole, spec),
            KernelSpec::Combine(spec) => self.combine(whole, spec),
            KernelSpec::Map(spec) => self.elementwise(whole, spec.n, |n| Map { n, ..*spec }.into()),
            KernelSpec::Gated(spec) => self.elementwise(whole, spec.n, |n| Gated { n, ..*spec }.into()),
            KernelSpec::Scale(spec) => self.elementwise(whole, spec.n, |n| Scale { n, ..*spec }.into()),
            KernelSpec::Relu(spec) => self.elementwise(whole, spec.n, |n| Relu { n, ..*spec }.into()),
            KernelSpec::Clamp(spec) => self.elementwise(whole, spec.n, |n| Clamp { n, ..*spec }.into()),
            KernelSpec::Xielu(spec) => self.elementwise(whole, spec.n, |n| Xielu { n, ..*spec }.into()),
            KernelSpec::Softcap(spec) => self.elementwise(whole, spec.n, |n| Softcap { n, ..*spec }.into()),
            // A task with several columns adds a bias to each head, and is small enough already,
            // like a norm of each head.
            KernelSpec::AddBias(spec) if task.columns == 1 => self.elementwise(whole, spec.n, |n| AddBias { n }.into()),
            KernelSpec::RmsNorm(spec) if task.columns == 1 => match self.norm_elements(spec) {
                Some(elements) => self.norm(whole, spec, elements),
                None => self.as_it_is(task, work),
            },
            KernelSpec::Quantise(spec) => self.quantise(whole, spec),
            KernelSpec::RopeHeads(spec) => self.rope_heads(whole, spec),
            KernelSpec::RopeAppend(spec) => self.append(whole, spec),
            KernelSpec::AttentionPart(spec) => self.attention(whole, spec),
            KernelSpec::ShortConv(_) => refuse("short_conv"),
            KernelSpec::DeltaNet(_) | KernelSpec::DeltaNetChunks(_) => refuse("delta_net"),
            KernelSpec::ColumnSquares(_) => refuse("column.squares"),
            KernelSpec::SsmScan(_) => refuse("ssm_scan"),
            KernelSpec::Wkv(_) => refuse("wkv"),
            KernelSpec::IndexTopK(_) | KernelSpec::IndexScores(_) | KernelSpec::IndexChoose(_) => refuse("index.top_k"),
            KernelSpec::Compress(_) => refuse("compress"),
            // New kernels are not cut either. `place` refuses states other than keys and values.
            _ => self.as_it_is(task, work),
        }
    }

    /// Adds a task without cutting it.
    fn as_it_is(&mut self, task: &Task, work: &Work) -> Result<(), ScheduleError> {
        for resource in &work.writes {
            if let Resource::Buffer(buffer) = *resource {
                self.replace_buffer(BufferId(buffer))?;
            }
        }
        let args = task.args.iter().map(|arg| self.arg(arg)).collect::<Result<_, _>>()?;
        let variants = task.variants.iter().map(|variant| self.variant(variant)).collect::<Result<_, _>>()?;
        self.push(WorkItem::Task(Task { label: task.label.clone(), args, variants, ..*task }), work)
    }

    fn variant(&mut self, variant: &Variant) -> Result<Variant, ScheduleError> {
        let split = match variant.split {
            Some(split) => Some(Split { combine: self.kernel(split.combine)?, ..split }),
            None => None,
        };
        let bands = match &variant.bands {
            Some(bands) => Some(Bands { kernel: self.kernel(bands.kernel)?, ..bands.clone() }),
            None => None,
        };
        Ok(Variant { kernel: self.kernel(variant.kernel)?, split, bands, ..variant.clone() })
    }

    /// Returns a step with the new numbers of its buffers.
    fn step(&self, step: &Step) -> Result<Step, ScheduleError> {
        let mut step = step.clone();
        match &mut step {
            Step::Bucket { ids, .. } | Step::Predict { ids, .. } => *ids = self.new_buffer(*ids)?,
            Step::Run { .. } | Step::Request { .. } | Step::Release { .. } | Step::Exchange(_) => {}
        }
        Ok(step)
    }

    /// Adds work with the new numbers of its buffers.
    fn push(&mut self, what: WorkItem, work: &Work) -> Result<(), ScheduleError> {
        let resources = |all: &[Resource]| -> Result<Vec<Resource>, ScheduleError> {
            let became = |resource: &Resource| match *resource {
                Resource::Buffer(buffer) => Ok(Resource::Buffer(self.new_buffer(BufferId(buffer))?.0)),
                other @ (Resource::Bucket(_)
                | Resource::State(_)
                | Resource::Group(_)
                | Resource::Slots
                | Resource::Ranks) => Ok(other),
            };
            all.iter().map(became).collect()
        };
        let (reads, writes) = (resources(&work.reads)?, resources(&work.writes)?);
        self.tasks.work.push(Work { what, reads, writes });
        Ok(())
    }

    /// Adds a kernel of the draft and returns its new number.
    fn kernel(&mut self, kernel: KernelId) -> Result<KernelId, ScheduleError> {
        match self.whole.kernels.get(kernel.0 as usize) {
            Some(spec) => self.tasks.kernel(spec.clone()),
            None => plan_error(format!("a missing kernel {}", kernel.0)),
        }
    }

    /// Returns an argument with the new number of its buffer. The new buffer must exist already.
    pub(super) fn arg(&mut self, arg: &Arg) -> Result<Arg, ScheduleError> {
        let source = match arg.source {
            Source::Arena(buffer) => Source::Arena(self.new_buffer(buffer)?),
            Source::Rope(table) => match self.whole.ropes.get(table as usize) {
                Some(table) => Source::Rope(self.rope(table)?),
                None => return plan_error(format!("a missing rotary table {table}")),
            },
            Source::Chosen { .. } => return plan_error("places that an index chose, which no PE gathers".into()),
            other @ (Source::Weight(_) | Source::State { .. } | Source::Scratch | Source::Input(_)) => other,
        };
        Ok(Arg { source, ..arg.clone() })
    }

    /// Returns the number of a rotary table. Adds the table if it is new.
    pub(super) fn rope(&mut self, table: &RopeTable) -> Result<u32, ScheduleError> {
        let position = self.ropes.iter().position(|other| other == table).unwrap_or(self.ropes.len());
        if position == self.ropes.len() {
            self.ropes.push(table.clone());
        }
        fit("number of rotary tables", position as u64)
    }

    /// Returns the rotary table of an argument of the draft.
    pub(super) fn table(&self, arg: &Arg) -> Option<&'a RopeTable> {
        match arg.source {
            Source::Rope(table) => self.whole.ropes.get(table as usize),
            _ => None,
        }
    }

    /// Returns the new buffer for a buffer of the draft that has exactly one new buffer.
    fn new_buffer(&self, buffer: BufferId) -> Result<BufferId, ScheduleError> {
        match self.ranges(buffer) {
            [one] => Ok(*one),
            [] => plan_error(format!("a buffer {} that is read before it is written", buffer.0)),
            _ => plan_error(format!("a buffer {} in ranges that is read whole", buffer.0)),
        }
    }

    /// Returns the new buffers for a buffer of the draft: one, one for each range of elements, or
    /// none yet.
    pub(super) fn ranges(&self, buffer: BufferId) -> &[BufferId] {
        self.made.get(buffer.0 as usize).map_or(&[], |made| made)
    }

    /// Records the new buffers of a buffer of the draft.
    pub(super) fn set_new_buffers(&mut self, buffer: BufferId, ranges: Vec<BufferId>) -> Result<(), ScheduleError> {
        match self.made.get_mut(buffer.0 as usize) {
            Some(made) => *made = ranges,
            None => return plan_error(format!("a missing buffer {}", buffer.0)),
        }
        Ok(())
    }

    /// Replaces a buffer of the draft with a new buffer of the same shape.
    pub(super) fn replace_buffer(&mut self, buffer: BufferId) -> Result<(), ScheduleError> {
        let ArenaBuffer { name, row_bytes, rows, .. } = self.draft_buffer(buffer)?;
        let (name, row_bytes, rows) = (name.clone(), *row_bytes, *rows);
        let new = self.buffer(&name, rows, row_bytes)?;
        self.set_new_buffers(buffer, vec![new])
    }

    /// Returns a buffer of the draft.
    pub(super) fn draft_buffer(&self, buffer: BufferId) -> Result<&'a ArenaBuffer, ScheduleError> {
        match self.whole.buffers.get(buffer.0 as usize) {
            Some(buffer) => Ok(buffer),
            None => plan_error(format!("a missing buffer {}", buffer.0)),
        }
    }

    /// Whether a buffer of the draft is only read by sums over experts.
    pub(super) fn is_summed(&self, buffer: BufferId) -> bool {
        self.summed.get(buffer.0 as usize).copied().unwrap_or(false)
    }

    /// Adds a new buffer.
    fn buffer(&mut self, name: &str, rows: RowCount, row_bytes: u64) -> Result<BufferId, ScheduleError> {
        let buffer = BufferId(fit("number of buffers", self.buffers.len() as u64)?);
        // `arena` sets the offset.
        self.buffers.push(ArenaBuffer { name: name.to_string(), row_bytes, rows, offset: 0 });
        Ok(buffer)
    }

    /// Adds a new buffer with rows of `width` elements. Returns the buffer, and the argument with
    /// which a kernel accesses a whole row of it.
    pub(super) fn row(
        &mut self,
        name: &str,
        rows: RowCount,
        format: Format,
        width: u64,
    ) -> Result<(BufferId, Arg), ScheduleError> {
        let buffer = self.buffer(name, rows, row_bytes(format, width)?)?;
        Ok((buffer, self.whole_row(buffer)))
    }

    /// Returns the argument with which a kernel accesses a whole row of a new buffer.
    pub(super) fn whole_row(&self, buffer: BufferId) -> Arg {
        let row_stride = self.row_bytes(buffer);
        Arg { source: Source::Arena(buffer), offset: 0, row_stride, column_stride: 0, expert_stride: 0 }
    }

    /// Returns the number of bytes of a row of a new buffer.
    pub(super) fn row_bytes(&self, buffer: BufferId) -> u64 {
        self.buffers.get(buffer.0 as usize).map_or(0, |buffer| buffer.row_bytes)
    }
}
