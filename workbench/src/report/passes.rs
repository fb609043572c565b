//! Passes with their changes. Sets of layers with the same change have one diff.
//!
//! ```text
//! fuse, layers 0 to 47
//! -%1 = dequantise @blk.#.attn_q.weight : f32[256, 256]
//! -%2 = matmul %0, %1 : f32[T, 256]
//! +%1, %2, %3 = linear.qkv %0, %0, %0, @blk.#.attn_q.weight, ...
//! ```
//!
//! Graphs are compared as graph IR. Values are numbered anew in each layer, so one more op in a
//! layer does not change the next. Task lists and plans are compared as lines of buffers, steps and
//! tasks. If a pass changes the kind of IR, all of its result is shown.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ixc_ir::names::Label;
use ixc_ir::plan::{ArenaBuffer, Plan, RowAxis, RowCount, Step, Task};
use ixc_kernels::KernelSpec;
use ixc_passes::draft::{Draft, Resource, Work, WorkItem};
use ixc_passes::manager::Ir;
use ixc_passes::pass::Pass;
use serde::Serialize;
use similar::{Algorithm, DiffTag, capture_diff_slices_deadline, group_diff_ops};

use super::fold::{FoldedSections, ItemLayers, Section, layer_of, section_names, sections, without_number};
use super::graph;

/// Number of equal lines around changes.
const CONTEXT_LINES: usize = 2;
/// Max lines of a diff, and max diffs of a pass.
const MAX_LINES: usize = 1500;
const MAX_DIFFS: usize = 16;
/// Time limit for the comparison of two texts. If it is exceeded, the diff is coarser.
const PATIENCE: Duration = Duration::from_secs(2);

/// A pass and its changes.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    name: &'static str,
    doc: &'static str,
    changed: bool,
    /// Kinds of IR of the pass's input and output.
    kind: &'static str,
    /// Number of the graph's ops, or of tasks, before and after the pass.
    counts: [usize; 2],
    diffs: Vec<Diff>,
    /// Number of omitted diffs of further sections.
    more: usize,
}

/// The change of some sections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Diff {
    /// Names of the sections.
    sections: String,
    /// Lines that start with ` `, `-` or `+`, and `@` between parts.
    lines: Vec<String>,
    /// Number of omitted lines.
    more: usize,
}

/// IR as folded lines.
struct Lines {
    kind: &'static str,
    count: usize,
    folded: FoldedSections<String>,
}

impl Lines {
    fn from_ir(ir: &Ir) -> Lines {
        let (count, text) = match ir {
            Ir::Graph(module) => (graph::ops(module), graph::text(module)),
            Ir::Draft(draft) => (draft.work.len(), draft_text(draft)),
            Ir::Plan(plan) => (tasks(plan), plan_text(plan)),
        };
        Lines { kind: ir.kind(), count, folded: FoldedSections::new(text) }
    }

    /// Returns whether both texts can be compared line by line.
    fn is_like(&self, other: &Lines) -> bool {
        let graph = Ir::Graph(Default::default()).kind();
        (self.kind == graph) == (other.kind == graph)
    }
}

/// Recorder of passes as they run.
pub struct Watch {
    last: Lines,
    /// Passes that ran.
    pub ran: Vec<Ran>,
}

impl Watch {
    /// Starts recording with the IR before the first pass that runs.
    pub fn new(start: &Ir) -> Watch {
        Watch { last: Lines::from_ir(start), ran: Vec::new() }
    }

    /// Records the result of a pass.
    pub fn see(&mut self, pass: &'static Pass, ir: &Ir, changed: bool) {
        let (count, kind) = (self.last.count, ir.kind());
        if !changed {
            let counts = [count; 2];
            let (name, doc) = (pass.name, pass.doc);
            return self.ran.push(Ran { name, doc, changed, kind, counts, diffs: Vec::new(), more: 0 });
        }
        let now = Lines::from_ir(ir);
        let nothing = FoldedSections::default();
        let before = if self.last.is_like(&now) { &self.last.folded } else { &nothing };
        let (diffs, more) = diffs(before, &now.folded);
        let counts = [count, now.count];
        self.ran.push(Ran { name: pass.name, doc: pass.doc, changed, kind, counts, diffs, more });
        self.last = now;
    }
}

/// Returns the diffs between two folded texts, and the number of omitted ones.
fn diffs(before: &FoldedSections<String>, after: &FoldedSections<String>) -> (Vec<Diff>, usize) {
    let sections = before.places.iter().chain(&after.places).map(|place| place.0);
    /// Numbers of a section's bodies before and after the pass, if the section exists.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Bodies {
        before: Option<usize>,
        after: Option<usize>,
    }
    let mut pairs: Vec<(Bodies, Vec<Section>)> = Vec::new();
    for section in sections.collect::<std::collections::BTreeSet<_>>() {
        let pair = Bodies { before: before.body_of(section), after: after.body_of(section) };
        match pairs.iter_mut().find(|(known, _)| *known == pair) {
            Some((_, sections)) => sections.push(section),
            None => pairs.push((pair, vec![section])),
        }
    }
    let body = |folded: &FoldedSections<String>, number: Option<usize>| -> Vec<String> {
        number.and_then(|number| folded.bodies.get(number).cloned()).unwrap_or_default()
    };
    let mut all = pairs.into_iter().filter_map(|(bodies, sections)| {
        let (lines, more) = diff(&body(before, bodies.before), &body(after, bodies.after));
        (!lines.is_empty()).then(|| Diff { sections: section_names(&sections), lines, more })
    });
    let shown: Vec<Diff> = all.by_ref().take(MAX_DIFFS).collect();
    (shown, all.count())
}

/// Returns the lines of a diff, and the number of omitted ones.
fn diff(before: &[String], after: &[String]) -> (Vec<String>, usize) {
    let deadline = Instant::now() + PATIENCE;
    let ops = capture_diff_slices_deadline(Algorithm::Myers, before, after, Some(deadline));
    let mut lines = Vec::new();
    for (number, group) in group_diff_ops(ops, CONTEXT_LINES).into_iter().enumerate() {
        if number > 0 {
            lines.push("@".to_owned());
        }
        for op in group {
            let mut push =
                |mark: char, texts: &[String]| lines.extend(texts.iter().map(|text| format!("{mark}{text}")));
            match op.tag() {
                DiffTag::Equal => push(' ', &before[op.old_range()]),
                DiffTag::Delete | DiffTag::Insert | DiffTag::Replace => {
                    push('-', &before[op.old_range()]);
                    push('+', &after[op.new_range()]);
                }
            }
        }
    }
    let more = lines.len().saturating_sub(MAX_LINES);
    lines.truncate(MAX_LINES);
    (lines, more)
}

fn tasks(plan: &Plan<KernelSpec>) -> usize {
    let tasks = |step: &Step| if let Step::Run { tasks, .. } = step { tasks.len() } else { 1 };
    plan.steps.iter().map(tasks).sum()
}

fn rows(rows: RowCount) -> String {
    match rows {
        RowCount::Tokens => "tokens".to_owned(),
        RowCount::Outputs => "outputs".to_owned(),
        RowCount::Routed { top_k } => format!("tokens x {top_k}"),
    }
}

/// Returns a buffer's line; with its offset if `placed`.
fn buffer(buffer: &ArenaBuffer, placed: bool) -> String {
    let at = if placed { format!(" at {:#x}", buffer.offset) } else { String::new() };
    format!("buffer {}: {} bytes x {}{at}", without_number(&buffer.name), buffer.row_bytes, rows(buffer.rows))
}

fn task(plan: &Plan<KernelSpec>, task: &Task) -> String {
    let axis = match task.rows {
        RowAxis::Tokens => "tokens",
        RowAxis::Outputs => "outputs",
        RowAxis::Routed(_) => "routed rows",
    };
    let kernels = task.variants.iter().map(|variant| {
        let spec = plan.kernels.get(variant.kernel.0 as usize);
        let name = spec.map_or("?".to_owned(), KernelSpec::name);
        if variant.up_to_rows == u32::MAX { name } else { format!("{name} up to {} rows", variant.up_to_rows) }
    });
    let kernels: Vec<String> = kernels.collect();
    format!("task {}: {axis} x {} columns, {}", without_number(&task.label), task.columns, kernels.join(", "))
}

/// Returns the text of a step that runs no kernel.
pub fn step_text(step: &Step) -> String {
    match step {
        Step::Run { tasks, .. } => format!("run {} tasks", tasks.len()),
        Step::Bucket { top_k, experts, .. } => format!("sort rows by expert, {top_k} of {experts}"),
        Step::Request { .. } => "request experts".to_owned(),
        Step::Predict { count, .. } => format!("predict experts, {count} for each token"),
        Step::Release { .. } => "release experts".to_owned(),
        Step::Exchange(_) => "exchange rows with other ranks".to_owned(),
    }
}

fn resource(plan: &Plan<KernelSpec>, resource: Resource) -> String {
    match resource {
        Resource::Buffer(buffer) => {
            let buffer = plan.buffers.get(buffer as usize);
            buffer.map_or("?".to_owned(), |buffer| without_number(&buffer.name))
        }
        Resource::Bucket(_) => "the order of rows".to_owned(),
        Resource::State(state) => {
            plan.states.get(state as usize).map_or("?".to_owned(), |state| without_number(&state.name))
        }
        Resource::Group(_) => "the experts".to_owned(),
        Resource::Slots => "the slots of experts".to_owned(),
        Resource::Ranks => "the other ranks".to_owned(),
    }
}

/// Lines of a section's buffers and work.
#[derive(Default)]
struct SectionLines(BTreeMap<Section, Vec<String>>);

impl SectionLines {
    fn buffers(&mut self, plan: &Plan<KernelSpec>, placed: bool) {
        for one in &plan.buffers {
            let section = layer_of(&one.name).map_or(Section::In, Section::Layer);
            self.0.entry(section).or_default().push(buffer(one, placed));
        }
    }

    /// Adds lines of work in the model's order; a step's line precedes those of its tasks.
    fn work(&mut self, layers: &[ItemLayers], lines: Vec<Vec<String>>) {
        for (section, lines) in sections(layers).into_iter().zip(lines) {
            self.0.entry(section).or_default().extend(lines);
        }
    }
}

/// Returns the label of a piece of work.
fn label(what: &WorkItem) -> Option<&str> {
    match what {
        WorkItem::Task(task) => Some(&task.label),
        WorkItem::Bucket(_) | WorkItem::Residency(_) | WorkItem::Exchange(_) => None,
    }
}

/// Returns the names in a label, without the op.
fn names(label: &str) -> impl Iterator<Item = &str> {
    Label::parse(label).names()
}

fn step_head(alone: u32) -> String {
    if alone > 0 { format!("step, alone with up to {alone} rows:") } else { "step:".to_owned() }
}

fn draft_text(draft: &Draft) -> BTreeMap<Section, Vec<String>> {
    let plan = &draft.plan;
    let mut texts = SectionLines::default();
    texts.buffers(plan, false);
    let of_work = |work: &Work| match &work.what {
        WorkItem::Task(one) => task(plan, one),
        WorkItem::Bucket(step) | WorkItem::Residency(step) | WorkItem::Exchange(step) => step_text(step),
    };
    match &draft.steps {
        Some(steps) => {
            let of_step = |step: &ixc_passes::draft::DraftStep| {
                let work = step.work.iter().filter_map(|&at| draft.work.get(at));
                [step_head(step.alone)].into_iter().chain(work.map(|work| format!("  {}", of_work(work)))).collect()
            };
            let layers = steps.iter().map(|step| {
                let work = step.work.iter().filter_map(|&at| draft.work.get(at));
                ItemLayers::from_names(work.filter_map(|work| label(&work.what)).flat_map(names))
            });
            texts.work(&layers.collect::<Vec<_>>(), steps.iter().map(of_step).collect());
        }
        None => {
            let layers =
                draft.work.iter().map(|work| ItemLayers::from_names(label(&work.what).into_iter().flat_map(names)));
            let list = |resources: &[Resource]| -> String {
                let names: Vec<String> = resources.iter().map(|&one| resource(plan, one)).collect();
                names.join(", ")
            };
            let lines = draft.work.iter().map(|work| {
                vec![of_work(work), format!("  reads {}; writes {}", list(&work.reads), list(&work.writes))]
            });
            texts.work(&layers.collect::<Vec<_>>(), lines.collect());
        }
    }
    texts.0
}

fn plan_text(plan: &Plan<KernelSpec>) -> BTreeMap<Section, Vec<String>> {
    let mut texts = SectionLines::default();
    texts.buffers(plan, true);
    let layers = plan.steps.iter().map(|step| match step {
        Step::Run { tasks, .. } => ItemLayers::from_names(tasks.iter().flat_map(|task| names(&task.label))),
        Step::Bucket { .. }
        | Step::Request { .. }
        | Step::Predict { .. }
        | Step::Release { .. }
        | Step::Exchange(_) => ItemLayers::default(),
    });
    let lines = plan.steps.iter().map(|step| match step {
        Step::Run { tasks, alone } => {
            let tasks = tasks.iter().map(|one| format!("  {}", task(plan, one)));
            [step_head(*alone)].into_iter().chain(tasks).collect()
        }
        other => vec![step_head(0), format!("  {}", step_text(other))],
    });
    texts.work(&layers.collect::<Vec<_>>(), lines.collect());
    texts.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold_layers(layers: &[&[&str]]) -> FoldedSections<String> {
        let layers = (0..).zip(layers);
        FoldedSections::new(
            layers
                .map(|(at, lines)| (Section::Layer(at), lines.iter().map(|line| (*line).to_owned()).collect()))
                .collect(),
        )
    }

    #[test]
    fn equal_layer_changes_are_shown_once() {
        let before = fold_layers(&[&["a", "b", "c"], &["a", "b", "c"], &["a", "x"]]);
        let after = fold_layers(&[&["a", "c"], &["a", "c"], &["a", "x"]]);
        let (found, more) = diffs(&before, &after);
        let lines = [" a", "-b", " c"].map(str::to_owned).to_vec();
        assert_eq!(found, [Diff { sections: "layers 0, 1".to_owned(), lines, more: 0 }]);
        assert_eq!(more, 0);
        let many: Vec<[String; 1]> = (0..MAX_DIFFS + 3).map(|i| [i.to_string()]).collect();
        let many: Vec<Vec<&str>> = many.iter().map(|line| line.iter().map(String::as_str).collect()).collect();
        let many: Vec<&[&str]> = many.iter().map(Vec::as_slice).collect();
        let (found, more) = diffs(&FoldedSections::default(), &fold_layers(&many));
        assert_eq!((found.len(), more), (MAX_DIFFS, 3));
    }

    #[test]
    fn a_diff_has_a_bound() {
        let lines: Vec<String> = (0..MAX_LINES + 5).map(|i| i.to_string()).collect();
        let (shown, more) = diff(&[], &lines);
        assert_eq!((shown.len(), more), (MAX_LINES, 5));
        assert_eq!(diff(&lines, &lines).0, Vec::<String>::new());
    }
}
