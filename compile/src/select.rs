//! Selection of ops, tasks, steps and kernels of a model, by a pattern of names and by layers.
//!
//! ```text
//! --op 'linear*'                 ops by their word: linear, linear.qkv, linear.swiglu
//! --op ffn_down                  items of a weight, state or kernel with this in its name
//! --op 'blk.*.attn_q' --layer 3  by a whole name, in a layer
//! ```
//!
//! A pattern with `*` or `?` must match a whole op word or a whole name (for weights, with or
//! without `.weight`). A pattern without wildcards is an op's word, or a part of a name. An op's
//! layer is the number in its names (`blk.3.attn_q`, `kv.3`). An op whose names have no number is
//! in the last layer from which it takes values.
//!
//! ```
//! use ixc_compile::model::Model;
//! use ixc_passes::manager::Ir;
//! use ixc_compile::select::{self, Selection};
//!
//! let graph = Ir::Graph(Model::new(ixc_compile::demo::open()?)?.arch.module);
//! let selection = Selection { op: Some("route".into()), layers: vec!["2-3".parse().unwrap()] };
//! assert_eq!(select::text(&graph, &selection)?.matches("= route ").count(), 2);
//! let error = select::text(&graph, &Selection { op: Some("rout".into()), layers: vec![] }).unwrap_err();
//! assert!(error.to_string().contains("similar names: route"));
//! # Ok::<(), ixc_compile::Error>(())
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ixc_ir::graph::{Function, Module, Operand};
use ixc_ir::names::Label;
use ixc_ir::plan::{KernelId, Plan, Source, Step, Task, Variant, print};
use ixc_kernels::KernelSpec;
use ixc_passes::draft::{Draft, WorkItem};
use ixc_passes::manager::Ir;

mod selection;

pub use selection::{Item, LayerRange, SelectError, Selection, in_any_layer, layer_of, ranges};

/// Layer of each value, for items that are visited in order. An item whose names have no layer is
/// in the last layer from which it takes values.
#[derive(Default)]
struct Flow(HashMap<u32, u64>);

impl Flow {
    /// Returns the layer of an item from its names, the values that it takes and the values that it
    /// gives.
    fn layer(&mut self, names: &[String], takes: &[u32], gives: &[u32]) -> Option<u64> {
        let own = names.iter().filter_map(|name| layer_of(name)).max();
        let layer = match names.is_empty() {
            true => takes.iter().filter_map(|value| self.0.get(value)).copied().max(),
            false => own,
        };
        if let Some(layer) = layer {
            gives.iter().for_each(|&value| {
                self.0.insert(value, layer);
            });
        }
        layer
    }
}

/// Returns the ops of a function as items that can be selected.
pub fn ops(module: &Module, function: &Function) -> Vec<Item> {
    let mut flow = Flow::default();
    let item = |op: &ixc_ir::graph::Op| {
        let mut names = Vec::new();
        for operand in &op.operands {
            match operand {
                Operand::Weight(w) => names.extend(module.weights.get(w.index()).map(|weight| weight.name.clone())),
                Operand::State(s) => names.extend(module.states.get(s.index()).map(|state| state.name.clone())),
                Operand::Value(_) | Operand::Absent => {}
            }
        }
        let takes: Vec<u32> = op.values().map(|(_, value)| value.0).collect();
        let gives: Vec<u32> = op.results.iter().map(|value| value.0).collect();
        let layer = flow.layer(&names, &takes, &gives);
        // The name of an op's result identifies the op, but its number is not a layer.
        names.extend(op.results.iter().filter_map(|&value| function.values.get(value.index())?.name.clone()));
        Item { op: op.kind.row().mnemonic.to_owned(), names, layer }
    };
    function.ops.iter().map(item).collect()
}

/// A task, or a step without tasks.
#[derive(Clone, Copy, Debug)]
enum Work<'p> {
    Task(&'p Task),
    Step(&'p Step),
}

/// The work of a plan or draft as items that can be selected, in order.
struct Works<'p, K> {
    plan: &'p Plan<K>,
    name: &'p dyn Fn(&K) -> String,
    flow: Flow,
}

impl<'p, K> Works<'p, K> {
    fn item(&mut self, work: Work<'_>) -> Item {
        match work {
            Work::Task(task) => self.task(task),
            Work::Step(step) => self.step(step),
        }
    }

    fn weight(&self, at: u32) -> Option<String> {
        self.plan.weights.get(at as usize).map(|weight| weight.name.clone())
    }

    fn task(&mut self, task: &Task) -> Item {
        let label = Label::parse(&task.label);
        let (op, mut names) = (label.op, label.names().take(1).map(str::to_owned).collect::<Vec<String>>());
        let mut buffers = Vec::new();
        for arg in &task.args {
            match arg.source {
                Source::Arena(buffer) => buffers.push(buffer.0),
                Source::Weight(weight) => names.extend(self.weight(weight)),
                Source::State { state, .. } => {
                    names.extend(self.plan.states.get(state as usize).map(|state| state.name.clone()));
                }
                Source::Chosen { state, marks, .. } => {
                    buffers.push(marks.0);
                    names.extend(self.plan.states.get(state as usize).map(|state| state.name.clone()));
                }
                Source::Rope(_) | Source::Scratch | Source::Input(_) => {}
            }
        }
        // A buffer is written once: by the first work that uses it. All later work reads it.
        let (takes, gives): (Vec<u32>, Vec<u32>) =
            buffers.into_iter().partition(|buffer| self.flow.0.contains_key(buffer));
        let layer = self.flow.layer(&names, &takes, &gives);
        let kernels = kernels_of(task).into_iter().filter_map(|id| self.plan.kernels.get(id.0 as usize));
        names.extend(kernels.map(self.name));
        names.dedup();
        Item { op: op.to_owned(), names, layer }
    }

    fn step(&mut self, step: &Step) -> Item {
        let of_group = |group: u32| {
            let group = self.plan.expert_groups.get(group as usize);
            group.into_iter().flat_map(|group| &group.weights).filter_map(|&w| self.weight(w)).collect::<Vec<_>>()
        };
        let (op, names, takes) = match step {
            Step::Run { .. } => ("run", Vec::new(), Vec::new()),
            Step::Bucket { ids, .. } => ("bucket", Vec::new(), vec![ids.0]),
            Step::Request { group, .. } => ("request", of_group(*group), Vec::new()),
            Step::Predict { group, .. } => ("predict", of_group(*group), Vec::new()),
            Step::Release { group } => ("release", of_group(*group), Vec::new()),
            Step::Exchange(exchange) => {
                let buffers = [exchange.sent_buffer(), exchange.result()];
                ("exchange", Vec::new(), buffers.into_iter().flatten().map(|buffer| buffer.0).collect())
            }
        };
        let layer = self.flow.layer(&names, &takes, &[]);
        Item { op: op.to_owned(), names, layer }
    }
}

/// Returns the kernels of a task without duplicates.
fn kernels_of(task: &Task) -> BTreeSet<KernelId> {
    task.variants.iter().flat_map(|variant| used_by(variant).into_iter().map(|(id, _)| id)).collect()
}

/// Returns the kernels of a task's variant, with their roles.
fn used_by(variant: &Variant) -> Vec<(KernelId, Role)> {
    let bands = variant.bands.iter().map(|bands| (bands.kernel, Role::Band));
    let parts = variant.split.iter().flat_map(|split| [Some(split.combine), split.alone].into_iter().flatten());
    [(variant.kernel, Role::Rows)].into_iter().chain(bands).chain(parts.map(|id| (id, Role::Parts))).collect()
}

/// Returns all work of a plan: for each item, the step and the task's position in it.
fn of_steps<K>(plan: &Plan<K>, name: &dyn Fn(&K) -> String) -> Vec<(usize, Option<usize>, Item)> {
    let mut works = Works { plan, name, flow: Flow::default() };
    let mut all = Vec::new();
    for (at, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Run { tasks, .. } => {
                let tasks =
                    tasks.iter().enumerate().map(|(place, task)| (at, Some(place), works.item(Work::Task(task))));
                all.extend(tasks);
            }
            Step::Bucket { .. }
            | Step::Request { .. }
            | Step::Predict { .. }
            | Step::Release { .. }
            | Step::Exchange(_) => {
                all.push((at, None, works.item(Work::Step(step))));
            }
        }
    }
    all
}

/// Returns the selected part of IR as text for users: the ops of a graph with their weights and
/// states, or tasks and steps.
///
/// # Errors
/// [`SelectError`] if nothing is selected.
pub fn text(ir: &Ir, selection: &Selection) -> Result<String, SelectError> {
    match ir {
        Ir::Graph(module) => of_graph(module, selection),
        Ir::Draft(draft) => of_draft(draft, selection),
        Ir::Plan(plan) => of_plan(plan, &KernelSpec::name, selection),
    }
}

/// Returns the selected ops of a graph with their weights and states, as text for users.
///
/// # Errors
/// [`SelectError`] if nothing is selected.
pub fn of_graph(module: &Module, selection: &Selection) -> Result<String, SelectError> {
    let items: Vec<Vec<Item>> = module.functions.iter().map(|function| ops(module, function)).collect();
    let chosen: BTreeSet<usize> = selection.positions(&items.concat())?.into_iter().collect();
    let (mut weights, mut states, mut lines) = (BTreeSet::new(), BTreeSet::new(), Vec::<String>::new());
    let mut at = 0;
    for function in &module.functions {
        let text = ixc_ir::graph::print::function_text(module, function);
        // The first line has the parameters; each op has a line after it.
        for (op, line) in function.ops.iter().zip(text.lines().skip(1)) {
            if chosen.contains(&at) {
                for operand in &op.operands {
                    match operand {
                        Operand::Weight(w) => weights.extend([w.index()]),
                        Operand::State(s) => states.extend([s.index()]),
                        Operand::Value(_) | Operand::Absent => {}
                    }
                }
                lines.push(line.to_owned());
            }
            at += 1;
        }
    }
    let weights = weights.into_iter().filter_map(|w| module.weights.get(w)).map(ToString::to_string);
    let states = states.into_iter().filter_map(|s| module.states.get(s)).map(ToString::to_string);
    let first = format!("; {} of {at} ops", lines.len());
    Ok(join_lines([first].into_iter().chain(weights).chain(states).chain(lines)))
}

fn of_draft(draft: &Draft, selection: &Selection) -> Result<String, SelectError> {
    let mut works = Works { plan: &draft.plan, name: &KernelSpec::name, flow: Flow::default() };
    let items: Vec<Item> = (draft.work.iter())
        .map(|work| match &work.what {
            WorkItem::Task(task) => works.item(Work::Task(task)),
            WorkItem::Bucket(step) | WorkItem::Residency(step) | WorkItem::Exchange(step) => {
                works.item(Work::Step(step))
            }
        })
        .collect();
    let chosen = selection.positions(&items)?;
    let first = format!("; {} of {} tasks", chosen.len(), items.len());
    let line = |at: usize| match &draft.work[at].what {
        WorkItem::Task(task) => print::task(&draft.plan, task, &KernelSpec::name),
        WorkItem::Bucket(step) | WorkItem::Residency(step) | WorkItem::Exchange(step) => {
            let text = print::step(&draft.plan, at, step, &|_| true, &KernelSpec::name);
            // The printed step number has no meaning, because the work is not in a step yet.
            text.split_once(": ").map_or(text.clone(), |(_, what)| format!("  {what}"))
        }
    };
    Ok(join_lines([first].into_iter().chain(chosen.into_iter().map(|at| line(at).trim_end().to_owned()))))
}

/// Returns the selected part of a plan as text for users; `name` returns a kernel's name.
///
/// # Errors
/// [`SelectError`] if nothing is selected.
pub fn of_plan<K>(plan: &Plan<K>, name: &dyn Fn(&K) -> String, selection: &Selection) -> Result<String, SelectError> {
    let all = of_steps(plan, name);
    let items: Vec<Item> = all.iter().map(|(.., item)| item.clone()).collect();
    let chosen = selection.positions(&items)?;
    let mut steps: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for &at in &chosen {
        let (step, task, _) = &all[at];
        steps.entry(*step).or_default().extend(task);
    }
    let first = format!("; {} of {} tasks, in {} of {} steps", chosen.len(), all.len(), steps.len(), plan.steps.len());
    let line = |(at, tasks): (usize, BTreeSet<usize>)| {
        print::step(plan, at, &plan.steps[at], &|task| tasks.contains(&task), name).trim_end().to_owned()
    };
    Ok(join_lines([first].into_iter().chain(steps.into_iter().map(line))))
}

fn join_lines(lines: impl Iterator<Item = String>) -> String {
    lines.map(|line| line + "\n").collect()
}

/// Role of a kernel in a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The kernel computes whole items.
    Rows,
    /// The kernel computes bands of items, if there are many threads.
    Band,
    /// The kernel combines the parts of items.
    Parts,
}

impl Role {
    /// Returns the role as a word.
    pub fn name(self) -> &'static str {
        match self {
            Role::Rows => "rows",
            Role::Band => "bands",
            Role::Parts => "combining parts",
        }
    }
}

/// A use of a kernel by tasks. Tasks that differ only in their layer are one use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// Label of the tasks, with `*` for the layer: `linear blk.*.attn_q`.
    pub task: String,
    /// Layers of the tasks, if any.
    pub layers: BTreeSet<u64>,
    /// Role of the kernel in the tasks.
    pub role: Role,
    /// Min number of rows for which the kernel is used.
    pub from_rows: u32,
    /// Max number of rows for which the kernel is used; `None` for no limit.
    pub to_rows: Option<u32>,
}

/// Returns the positions of the selected kernels of a plan, with their uses. A kernel without uses
/// is returned only if everything is selected.
///
/// # Errors
/// [`SelectError`] if no kernel is selected.
pub fn kernels<K>(
    plan: &Plan<K>,
    name: &dyn Fn(&K) -> String,
    selection: &Selection,
) -> Result<Vec<(usize, Vec<Use>)>, SelectError> {
    let all = of_steps(plan, name);
    let items: Vec<Item> = all.iter().map(|(.., item)| item.clone()).collect();
    let mut uses: BTreeMap<usize, Vec<Use>> = BTreeMap::new();
    if selection.is_all() {
        uses.extend((0..plan.kernels.len()).map(|at| (at, Vec::new())));
    }
    for at in selection.positions(&items)? {
        let (step, Some(task), item) = &all[at] else { continue };
        let Step::Run { tasks, .. } = &plan.steps[*step] else { continue };
        let task = &tasks[*task];
        let label = in_any_layer(&task.label);
        let mut from_rows = 1;
        for variant in &task.variants {
            let to_rows = (variant.up_to_rows < u32::MAX).then_some(variant.up_to_rows);
            for (kernel, role) in used_by(variant) {
                let uses = uses.entry(kernel.0 as usize).or_default();
                let alike = |other: &&mut Use| {
                    other.task == label
                        && other.role == role
                        && (other.from_rows, other.to_rows) == (from_rows, to_rows)
                };
                match uses.iter_mut().find(alike) {
                    Some(known) => known.layers.extend(item.layer),
                    None => {
                        let layers = item.layer.into_iter().collect();
                        uses.push(Use { task: label.clone(), layers, role, from_rows, to_rows });
                    }
                }
            }
            from_rows = variant.up_to_rows.saturating_add(1);
        }
    }
    Ok(uses.into_iter().filter(|(at, _)| *at < plan.kernels.len()).collect())
}
