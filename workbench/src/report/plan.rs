//! The plan on the page: steps and their tasks, buffers over steps, states, weights, and the times
//! of experts in memory.

use std::collections::{BTreeMap, BTreeSet};

use ixc_ir::format::Format;
use ixc_ir::graph::Module;
use ixc_ir::kernel::Kernel;
use ixc_ir::names::Label;
use ixc_ir::plan::{
    BucketId, DimExpr, DimInput, Output, Plan, PlanWeight, RowAxis, Source, Step, Task, Variant, WeightFile,
};
use ixc_kernels::generator::work::evaluate;
use serde::Serialize;

use super::fold::{ItemLayers, Section, sections, without_number};
use super::passes::step_text;

/// Schedule of a plan, and its buffers, states and weights.
#[derive(Clone, Debug, Serialize)]
pub struct PlanView {
    target: String,
    max_tokens: u32,
    context: u32,
    arena_bytes: u64,
    steps: Vec<StepView>,
    buffers: Vec<BufferView>,
    states: Vec<StateView>,
    groups: Vec<GroupView>,
}

#[derive(Clone, Debug, Serialize)]
struct StepView {
    section: Section,
    /// Action of a step that runs no kernels.
    text: Option<String>,
    alone: u32,
    tasks: Vec<TaskView>,
}

#[derive(Clone, Debug, Serialize)]
struct TaskView {
    label: String,
    /// Parts of the label: the op, the names, and the label without the layer's number.
    op: String,
    names: Vec<String>,
    kind: String,
    /// `tokens`, `outputs` or `routed`.
    rows: &'static str,
    columns: u32,
    variants: Vec<VariantView>,
    /// Buffers that the task reads or writes.
    buffers: Vec<u32>,
    /// Bytes of weights that the task reads for one token, and the multiply-adds for this token by
    /// type of the factors. `None` if these numbers depend on the position.
    one: Option<(u64, [u64; 3])>,
}

#[derive(Clone, Debug, Serialize)]
struct VariantView {
    up_to: u32,
    chunk: u32,
    kernel: u32,
    /// Dims, such as `groups = rows / 8`.
    dims: Vec<String>,
    /// Further kernels: the kernel for bands, and the kernel that combines parts.
    besides: Vec<u32>,
}

#[derive(Clone, Debug, Serialize)]
struct BufferView {
    name: String,
    offset: u64,
    bytes: u64,
    /// First and last step in which the buffer is used.
    life: Option<(usize, usize)>,
}

#[derive(Clone, Debug, Serialize)]
struct StateView {
    name: String,
    /// Bytes that do not depend on the context, and bytes for each position.
    fixed: u64,
    position: u64,
}

/// Experts that are loaded together, and their steps.
#[derive(Clone, Debug, Default, Serialize)]
struct GroupView {
    name: String,
    experts: u32,
    /// Bytes of an expert in the kernels' format.
    block: u64,
    /// Steps that predict, request, read and release the group's experts.
    predict: Vec<usize>,
    request: Vec<usize>,
    read: Vec<usize>,
    release: Vec<usize>,
}

/// A tensor of a model.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tensor {
    pub name: String,
    pub format: String,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    pub bytes: u64,
    /// Position in the file.
    pub place: String,
    /// The format that kernels read, if it differs from the format in the file.
    pub packed: Option<String>,
    /// Tiling of its products, and the reason.
    pub tile: Option<String>,
    pub why: Option<String>,
    /// Whether the weight is loaded on demand.
    pub streamed: bool,
}

/// Returns the position of a weight in its file.
fn place(plan: &Plan<Kernel>, weight: &PlanWeight) -> String {
    match weight.file {
        WeightFile::Source(file) => match plan.files.len() {
            0 | 1 => format!("{:#x}", weight.offset),
            _ => format!("file {file}, {:#x}", weight.offset),
        },
        WeightFile::Plan => format!("the plan, {:#x}", weight.offset),
        WeightFile::Blocks { stride } => format!("the plan, {:#x}, a block every {stride} bytes", weight.offset),
        WeightFile::Derived(number) => format!("derived {number}"),
    }
}

/// Returns the weights of a plan, with the passes' decisions if the graph is known.
pub fn tensors(plan: &Plan<Kernel>, graph: Option<&Module>) -> Vec<Tensor> {
    let choices: BTreeMap<&str, &ixc_ir::graph::WeightChoices> = graph
        .map(|graph| graph.weights.iter().map(|weight| (weight.name.as_str(), &weight.choice)).collect())
        .unwrap_or_default();
    let streamed: BTreeSet<u32> = plan.expert_groups.iter().flat_map(|group| group.weights.iter().copied()).collect();
    let tensor = |(number, weight): (u32, &PlanWeight)| {
        let choice = choices.get(weight.name.as_str());
        Tensor {
            name: weight.name.clone(),
            format: weight.stored.to_string(),
            shape: weight.shape.clone(),
            bytes: weight.bytes,
            place: place(plan, weight),
            packed: (weight.format != weight.stored).then(|| weight.format.to_string()),
            tile: choice.and_then(|choice| choice.tile.clone()),
            why: choice.and_then(|choice| choice.why.clone()),
            streamed: streamed.contains(&number),
        }
    };
    (0..).zip(&plan.weights).map(tensor).collect()
}

/// Returns a dim's value for `rows` rows, if it depends on neither positions nor context.
fn dim(dim: &DimExpr, rows: u32) -> Option<i64> {
    let known = |input| match input {
        DimInput::Rows | DimInput::Tokens | DimInput::Outputs => Some(rows.into()),
        DimInput::Band => Some(0),
        _ => None,
    };
    let value =
        dim.inputs().all(|input| known(input).is_some()).then(|| dim.evaluate(|input| known(input).unwrap_or(0)))?;
    i64::try_from(value.ok()?).ok()
}

/// Returns the dims of a variant's kernel for items of `rows` rows.
pub fn dims(variant: &Variant, rows: u32) -> Option<Vec<i64>> {
    variant.dims.iter().map(|value| dim(value, rows)).collect()
}

/// Returns a task's work for one token: bytes of weights, and multiply-adds.
fn token_work(plan: &Plan<Kernel>, task: &Task, routed: &BTreeMap<BucketId, u32>) -> Option<(u64, [u64; 3])> {
    let variant = task.variants.first()?;
    let kernel = plan.kernels.get(variant.kernel.0 as usize)?;
    let dims = dims(variant, 1)?;
    // Each expert's rows form separate items. A token has one item for each expert that it is
    // routed to.
    let items = u64::from(task.columns).saturating_mul(match task.rows {
        RowAxis::Tokens | RowAxis::Outputs => 1,
        RowAxis::Routed(bucket) => routed.get(&bucket).copied().unwrap_or(1).into(),
    });
    let weights = task.args.iter().zip(&kernel.buffers).filter(|(arg, _)| matches!(arg.source, Source::Weight(_)));
    let bytes = |(arg, buffer): (&ixc_ir::plan::Arg, &ixc_ir::kernel::Buffer)| {
        let size = evaluate(&buffer.size, &dims).and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
        // A lookup in a table reads one row.
        let table = matches!(arg.source, Source::Weight(_)) && arg.column_stride == 0 && task.columns == 1;
        let looked_up =
            kernel.buffers.iter().any(|buffer| matches!(buffer.kind, ixc_ir::kernel::BufferKind::Index { .. }));
        if table && looked_up { row_bytes(plan, arg).unwrap_or(size) } else { size.saturating_mul(items) }
    };
    let bytes = weights.map(bytes).fold(0, u64::saturating_add);
    let products = ixc_ir::kernel::products::Counter::from_kernel(kernel).count(&dims);
    Some((bytes, [products.int8, products.bf16, products.f32].map(|count| count.saturating_mul(items))))
}

/// Returns the number of bytes of a row of an argument's weight.
fn row_bytes(plan: &Plan<Kernel>, arg: &ixc_ir::plan::Arg) -> Option<u64> {
    let Source::Weight(weight) = arg.source else { return None };
    let weight = plan.weights.get(weight as usize)?;
    weight.format.row_bytes(*weight.shape.last()?)
}

fn task(plan: &Plan<Kernel>, task: &Task, routed: &BTreeMap<BucketId, u32>) -> TaskView {
    let variant = |variant: &Variant| {
        let bands = variant.bands.iter().map(|bands| bands.kernel.0);
        let combine = variant.split.iter().map(|split| split.combine.0);
        let own = plan.kernels.get(variant.kernel.0 as usize).map_or(&[][..], |kernel| &kernel.dims);
        let dims = own.iter().zip(&variant.dims).map(|(dim, value)| format!("{} = {value}", dim.name));
        VariantView {
            up_to: variant.up_to_rows,
            chunk: variant.row_chunk,
            kernel: variant.kernel.0,
            dims: dims.collect(),
            besides: bands.chain(combine).collect(),
        }
    };
    let label = Label::parse(&task.label);
    TaskView {
        label: task.label.clone(),
        op: label.op.to_owned(),
        names: label.names().map(str::to_owned).collect(),
        kind: without_number(&task.label),
        rows: match task.rows {
            RowAxis::Tokens => "tokens",
            RowAxis::Outputs => "outputs",
            RowAxis::Routed(_) => "routed",
        },
        columns: task.columns,
        variants: task.variants.iter().map(variant).collect(),
        buffers: arena(task).collect(),
        one: token_work(plan, task, routed),
    }
}

/// Returns the arena buffers that a task accesses.
fn arena(task: &Task) -> impl Iterator<Item = u32> {
    task.args.iter().filter_map(|arg| Some(arg.source.arena()?.0))
}

/// Returns the weights that a task reads.
fn weights(task: &Task) -> impl Iterator<Item = u32> {
    task.args.iter().filter_map(|arg| if let Source::Weight(weight) = arg.source { Some(weight) } else { None })
}

/// Returns the first and last step in which each buffer is used. Steps that read the experts of a
/// group can run again for late experts. If one of these steps uses a buffer, the buffer must live
/// through all of them. The result of the plan lives to the end.
fn lives(plan: &Plan<Kernel>, groups: &[GroupView]) -> Vec<Option<(usize, usize)>> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    let mut touch = |buffer: u32, first: usize, last: usize| {
        if let Some(life) = lives.get_mut(buffer as usize) {
            *life = Some(life.map_or((first, last), |(from, to)| (from.min(first), to.max(last))));
        }
    };
    let windows = groups.iter().filter_map(|group| Some((*group.read.first()?, *group.read.last()?)));
    let windows: Vec<(usize, usize)> = windows.collect();
    for (number, step) in plan.steps.iter().enumerate() {
        let (first, last) = windows
            .iter()
            .find(|(first, last)| (*first..=*last).contains(&number))
            .copied()
            .unwrap_or((number, number));
        match step {
            Step::Run { tasks, .. } => {
                tasks.iter().flat_map(arena).for_each(|buffer| touch(buffer, first, last));
            }
            Step::Bucket { ids, .. } | Step::Predict { ids, .. } => touch(ids.0, first, last),
            Step::Request { .. } | Step::Release { .. } => {}
            Step::Exchange(exchange) => {
                let buffers = exchange.sent_buffer().into_iter().chain(exchange.result());
                buffers.for_each(|buffer| touch(buffer.0, first, last));
            }
        }
    }
    touch(plan.logits.0, plan.steps.len().saturating_sub(1), plan.steps.len().saturating_sub(1));
    lives
}

fn groups(plan: &Plan<Kernel>) -> Vec<GroupView> {
    let named = plan.expert_groups.iter().enumerate().map(|(number, group)| {
        let weights = || group.weights.iter().filter_map(|&weight| plan.weights.get(weight as usize));
        let bytes = weights().filter_map(|weight| weight.bytes_in(weight.format)).fold(0, u64::saturating_add);
        let name = weights().next().and_then(|weight| super::fold::layer_of(&weight.name));
        GroupView {
            name: name.map_or_else(|| format!("group {number}"), |layer| format!("layer {layer}")),
            experts: group.experts,
            block: bytes / u64::from(group.experts.max(1)),
            ..GroupView::default()
        }
    });
    let mut views: Vec<GroupView> = named.collect();
    let of_weight: BTreeMap<u32, usize> = (plan.expert_groups.iter().enumerate())
        .flat_map(|(number, group)| group.weights.iter().map(move |&weight| (weight, number)))
        .collect();
    for (number, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Run { tasks, .. } => {
                let read = tasks.iter().filter(|task| matches!(task.rows, RowAxis::Routed(_))).flat_map(weights);
                for group in read.filter_map(|weight| of_weight.get(&weight)) {
                    if views[*group].read.last() != Some(&number) {
                        views[*group].read.push(number);
                    }
                }
            }
            Step::Bucket { .. } | Step::Exchange(_) => {}
            Step::Request { group, .. } => {
                views.get_mut(*group as usize).into_iter().for_each(|view| view.request.push(number));
            }
            Step::Predict { group, .. } => {
                views.get_mut(*group as usize).into_iter().for_each(|view| view.predict.push(number));
            }
            Step::Release { group } => {
                views.get_mut(*group as usize).into_iter().for_each(|view| view.release.push(number));
            }
        }
    }
    views
}

impl PlanView {
    /// Creates the view of a plan.
    pub fn from_plan(plan: &Plan<Kernel>) -> PlanView {
        let routed: BTreeMap<BucketId, u32> = (plan.steps.iter())
            .filter_map(|step| match step {
                Step::Bucket { bucket, top_k, .. } => Some((*bucket, *top_k)),
                Step::Run { .. }
                | Step::Request { .. }
                | Step::Predict { .. }
                | Step::Release { .. }
                | Step::Exchange(_) => None,
            })
            .collect();
        let layers: Vec<ItemLayers> = (plan.steps.iter())
            .map(|step| match step {
                Step::Run { tasks, .. } => {
                    ItemLayers::from_names(tasks.iter().flat_map(|task| Label::parse(&task.label).names()))
                }
                Step::Bucket { .. }
                | Step::Request { .. }
                | Step::Predict { .. }
                | Step::Release { .. }
                | Step::Exchange(_) => ItemLayers::default(),
            })
            .collect();
        let step = |(step, section): (&Step, Section)| match step {
            Step::Run { tasks, alone } => StepView {
                section,
                text: None,
                alone: *alone,
                tasks: tasks.iter().map(|one| task(plan, one, &routed)).collect(),
            },
            other => StepView { section, text: Some(step_text(other)), alone: 0, tasks: Vec::new() },
        };
        let groups = groups(plan);
        let buffers = plan.buffers.iter().zip(lives(plan, &groups)).map(|(buffer, life)| BufferView {
            name: buffer.name.clone(),
            offset: buffer.offset,
            bytes: buffer
                .row_bytes
                .saturating_mul(buffer.rows.most(plan.max_tokens, plan.output.most(plan.max_tokens))),
            life,
        });
        let states = plan.states.iter().map(|state| {
            let (fixed, position) = state.fixed_and_position_bytes(plan.max_tokens);
            StateView { name: state.name.clone(), fixed, position }
        });
        PlanView {
            target: plan.target.clone(),
            max_tokens: plan.max_tokens,
            context: plan.context_length,
            arena_bytes: plan.arena_bytes,
            steps: plan.steps.iter().zip(sections(&layers)).map(step).collect(),
            buffers: buffers.collect(),
            states: states.collect(),
            groups,
        }
    }
}

/// Returns the main facts of a plan.
pub fn facts(plan: &Plan<Kernel>) -> Vec<(&'static str, String)> {
    use ixc_ir::units::{Bytes, count_text};
    let weights = plan.weights.iter().filter_map(|weight| weight.bytes_in(weight.format)).fold(0, u64::saturating_add);
    let streamed = plan.expert_groups.iter().flat_map(|group| &group.weights);
    let streamed = streamed.filter_map(|&weight| plan.weights.get(weight as usize));
    let streamed = streamed.filter_map(|weight| weight.bytes_in(weight.format)).fold(0, u64::saturating_add);
    let mut formats: BTreeMap<Format, u64> = BTreeMap::new();
    plan.weights.iter().for_each(|weight| {
        let sum = formats.entry(weight.stored).or_default();
        *sum = sum.saturating_add(weight.bytes);
    });
    let mut formats: Vec<(Format, u64)> = formats.into_iter().collect();
    formats.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let formats: Vec<String> = formats.iter().map(|(format, bytes)| format!("{format} {}", Bytes(*bytes))).collect();
    let tasks = |step: &Step| if let Step::Run { tasks, .. } = step { tasks.len() } else { 0 };
    let positions: u64 =
        plan.states.iter().map(|state| state.fixed_and_position_bytes(plan.max_tokens).1).fold(0, u64::saturating_add);
    let mut facts = vec![
        ("Architecture", plan.architecture.clone()),
        ("Target", plan.target.clone()),
        (
            "Weights",
            format!("{}, {}: {}", count_text(plan.weights.len() as u64, "tensor"), Bytes(weights), formats.join(", ")),
        ),
        ("Steps", count_text(plan.steps.len() as u64, "step")),
        ("Tasks", count_text(plan.steps.iter().map(tasks).sum::<usize>() as u64, "task")),
        ("Kernels", count_text(plan.kernels.len() as u64, "kernel")),
        ("Tokens of a step", plan.max_tokens.to_string()),
        ("Context", format!("{} positions, {} for each", plan.context_length, Bytes(positions))),
        ("Vocabulary", plan.vocabulary.to_string()),
        ("Arena", Bytes(plan.arena_bytes).to_string()),
    ];
    if streamed > 0 {
        facts.push(("Loaded as needed", format!("{} of experts", Bytes(streamed))));
    }
    if let Output::Hidden { width, .. } = plan.output {
        facts.push(("Gives", format!("hidden states of {width}")));
    }
    facts
}
