//! The pass manager: the list of passes, and the functions that run them.
//!
//! ```text
//! ixc opt model.ix --passes canonicalise,fuse
//! ixc opt fused.ix --model model.gguf --passes pack,tile,lower,steps,arena
//! ```
//!
//! Needs: IR that verifies. Leaves: IR that verifies; otherwise, the error names the pass. A pass
//! is a file with a `PASS`, one `run` and the pass's options. After each pass the IR can be printed
//! and read back ([`Ir::text`], [`Ir::parse`]). A user can therefore edit the output of one pass
//! and run the next pass on it.

use ixc_failure::Class;
use ixc_ir::drawing::Drawing;
use ixc_ir::graph::Module;
use ixc_ir::graph::draw::draw;
use ixc_ir::graph::parse::{ParseError, parse};
use ixc_ir::graph::verify::verify;
use ixc_ir::plan::Plan;
use ixc_kernels::{KernelSpec, SpecError};

use crate::draft::Draft;
use crate::error::{PassError, ScheduleError};
use crate::options::{OptionError, OptionSet};
use crate::pass::{Context, Pass, Run};
use crate::schedule::{arena, lower, steps};
use crate::{cache, canonicalise, defer, fuse, hazards, observe, pack, requantise, residency, shard, tile};

/// All passes, in order from a frontend's graph to a plan.
pub static PASSES: &[&Pass] = &[
    &canonicalise::PASS,
    &requantise::PASS,
    &cache::PASS,
    &shard::PASS,
    &fuse::PASS,
    &observe::PASS,
    &defer::PASS,
    &residency::PASS,
    &pack::PASS,
    &tile::PASS,
    &lower::PASS,
    &steps::PASS,
    &arena::PASS,
];

/// Names of the kinds of [`Ir`], for messages.
const GRAPH: &str = "a graph";
const TASKS: &str = "tasks";
const PLAN: &str = "a plan";

/// IR between two passes.
#[derive(Clone, Debug, PartialEq)]
pub enum Ir {
    /// A graph.
    Graph(Module),
    /// Tasks, and the parts of a plan that are already known.
    Draft(Box<Draft>),
    /// A plan.
    Plan(Box<Plan<KernelSpec>>),
}

impl Ir {
    /// Returns text that [`Ir::parse`] reads: a graph as graph IR, other kinds as JSON.
    pub fn text(&self) -> String {
        // JSON fails only for maps whose keys are not strings, and this value has no such map.
        let json = |value: serde_json::Result<String>| value.map(|text| text + "\n").unwrap_or_default();
        match self {
            Ir::Graph(module) => module.to_string(),
            Ir::Draft(draft) => json(serde_json::to_string_pretty(&BorrowedText::Draft(draft))),
            Ir::Plan(plan) => json(serde_json::to_string_pretty(&BorrowedText::Plan(plan))),
        }
    }

    /// Returns a drawing: one for each function of a graph, or the dependencies of tasks. A plan
    /// has none, because its order is only that of its steps.
    pub fn drawing(&self) -> Option<Drawing> {
        match self {
            Ir::Graph(module) => {
                let graphs = module.functions.iter().map(|function| (function.name.clone(), draw(module, function)));
                Some(Drawing { graphs: graphs.collect() })
            }
            Ir::Draft(draft) => Some(Drawing { graphs: vec![("tasks".to_owned(), hazards::draw(draft))] }),
            Ir::Plan(_) => None,
        }
    }

    /// Parses the text of [`Ir::text`], and skips comments before it. The text may be hostile.
    ///
    /// # Errors
    /// A [`TextError`].
    pub fn parse(text: &str) -> Result<Ir, TextError> {
        let json = behind_comments(text);
        if !json.starts_with('{') {
            return Ok(Ir::Graph(parse(text)?));
        }
        match serde_json::from_str(json)? {
            OwnedText::Draft(draft) => {
                draft.check()?;
                draft.plan.kernels.iter().try_for_each(KernelSpec::check)?;
                Ok(Ir::Draft(draft))
            }
            OwnedText::Plan(plan) => {
                plan.kernels.iter().try_for_each(KernelSpec::check)?;
                Ok(Ir::Plan(plan))
            }
        }
    }

    /// Returns the name of the IR's kind in messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Ir::Graph(_) => GRAPH,
            Ir::Draft(_) => TASKS,
            Ir::Plan(_) => PLAN,
        }
    }
}

/// Returns the text after the comments at its start.
fn behind_comments(text: &str) -> &str {
    let mut rest = text.trim_start();
    while rest.starts_with(';') || rest.starts_with("//") {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest.trim_start());
    }
    rest
}

/// IR between two passes and the name of the pass that wrote it: a point at which compilation
/// stopped and can continue.
///
/// ```text
/// ; after fuse
/// weight @blk.0.ffn_gate_inp : f32[16, 256] {file = 0, offset = 0x1a000}
/// ...
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    /// Output of the pass.
    pub ir: Ir,
    /// Name of the pass; `None` for a graph from a frontend.
    pub after: Option<&'static str>,
}

impl Stop {
    /// Prefix of the line that names the pass.
    const AFTER: &str = "; after ";
    /// Word in the place of a pass name for a graph from a frontend.
    const FRONTEND: &str = "frontend";

    /// Returns text that [`Stop::parse`] reads.
    pub fn text(&self) -> String {
        Stop::text_of(&self.ir, self.after)
    }

    /// Returns the text of [`Stop::text`] for IR and the pass that wrote it.
    pub fn text_of(ir: &Ir, after: Option<&str>) -> String {
        Stop::with_header(after, ir.text())
    }

    /// Returns the text of [`Stop::text`] for a graph.
    pub fn graph_text(module: &Module, after: Option<&str>) -> String {
        Stop::with_header(after, module.to_string())
    }

    fn with_header(after: Option<&str>, text: String) -> String {
        format!("{}{}\n{text}", Stop::AFTER, after.unwrap_or(Stop::FRONTEND))
    }

    /// Parses the text of [`Stop::text`]. The text may be hostile.
    ///
    /// # Errors
    /// A [`StopError`].
    pub fn parse(text: &str) -> Result<Stop, StopError> {
        let ir = Ir::parse(text)?;
        let said = text.lines().map(str::trim).find_map(|line| line.strip_prefix(Stop::AFTER));
        let name = said.ok_or(StopError::Unsaid)?.trim();
        let after = if name == Stop::FRONTEND { None } else { Some(find(name)?.name) };
        let stop = Stop { ir, after };
        // The output of a pass is the input of the next one.
        let expected = stop.passes().first().map_or(PLAN, |next| next.takes());
        if stop.ir.kind() == expected {
            Ok(stop)
        } else {
            Err(StopError::Other { after: name.to_owned(), expected, found: stop.ir.kind() })
        }
    }

    /// Returns the passes that must still run to make a plan.
    pub fn passes(&self) -> &'static [&'static Pass] {
        let at = self.after.and_then(|name| PASSES.iter().position(|pass| pass.name == name));
        &PASSES[at.map_or(0, |at| at + 1)..]
    }
}

/// Reason why text is not a point to continue from.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The text is not IR.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The text does not name the pass that wrote it.
    #[error(
        "the text does not name the pass that wrote it; begin it with a line such as \"{}fuse\", or \"{}{}\" for a graph before all passes",
        Stop::AFTER,
        Stop::AFTER,
        Stop::FRONTEND
    )]
    Unsaid,
    /// No pass has this name.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The IR is of another kind than the output of the named pass.
    #[error("the output of pass {after} is {expected}, but the text has {found}")]
    Other {
        /// Name of the pass.
        after: String,
        /// Kind of IR that the named pass returns.
        expected: &'static str,
        /// Kind of the given IR.
        found: &'static str,
    },
}

impl StopError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            StopError::Text(error) => error.class(),
            // A wrong name of a pass is an error of the text, not of the command line.
            StopError::Pass(_) => Class::Data,
            StopError::Unsaid | StopError::Other { .. } => Class::Data,
        }
    }
}

/// JSON form of IR other than a graph.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Text<D, P> {
    Draft(D),
    Plan(P),
}

/// Form for serialisation.
type BorrowedText<'a> = Text<&'a Draft, &'a Plan<KernelSpec>>;
/// Form for deserialisation.
type OwnedText = Text<Box<Draft>, Box<Plan<KernelSpec>>>;

/// Reason why text is not IR.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The text is not a graph.
    #[error(transparent)]
    Graph(#[from] ParseError),
    /// The text is neither a draft with tasks nor a plan.
    #[error("not a text of tasks or a plan: {0}")]
    Json(#[from] serde_json::Error),
    /// Numbers in the text name missing items.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A kernel spec that is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl TextError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            TextError::Schedule(error) => error.class(),
            TextError::Spec(error) => error.class(),
            TextError::Graph(_) | TextError::Json(_) => Class::Data,
        }
    }
}

/// Returns the names of all passes, in the order in which they run.
pub fn names() -> Vec<&'static str> {
    PASSES.iter().map(|pass| pass.name).collect()
}

/// Returns the names of the passes that take and return a graph, in the order in which they run.
pub fn graph_passes() -> Vec<&'static str> {
    let graph = PASSES.iter().filter(|pass| matches!(pass.run, Run::Graph(_)));
    graph.map(|pass| pass.name).collect()
}

/// Returns the names of the passes from a graph to a plan, in the order in which they run.
pub fn plan_passes() -> Vec<&'static str> {
    let graph = graph_passes();
    names().into_iter().filter(|name| !graph.contains(name)).collect()
}

/// Returns the pass with a name.
///
/// # Errors
/// [`PassError::Unknown`].
pub fn find(name: &str) -> Result<&'static Pass, PassError> {
    let pass = PASSES.iter().find(|pass| pass.name == name);
    pass.copied().ok_or_else(|| PassError::Unknown { name: name.to_string(), known: names() })
}

/// Sets an option by its text, `PASS.KEY = VALUE`.
///
/// # Errors
/// An [`OptionError`].
pub fn set(options: &mut OptionSet, text: &str) -> Result<(), OptionError> {
    let all = || PASSES.iter().flat_map(|pass| pass.options.iter().map(move |row| (pass.name, row)));
    let Some((key, value)) = text.split_once('=') else {
        let mut examples = all().map(|(pass, row)| (pass, row.key, (row.default)()));
        let example = examples.find(|(_, _, value)| !value.is_empty());
        let example = example.map_or_else(String::new, |(pass, key, value)| format!("{pass}.{key}={value}"));
        return Err(OptionError::Form { found: text.chars().take(64).collect(), example });
    };
    let key = key.trim();
    match all().find(|(pass, row)| key.split_once('.') == Some((*pass, row.key))) {
        Some((pass, row)) => options.set(pass, row, value.trim()),
        None => {
            let known = all().map(|(pass, row)| format!("{pass}.{}", row.key)).collect();
            Err(OptionError::Unknown { found: key.chars().take(64).collect(), known })
        }
    }
}

/// Runs passes by name on a graph; each must be a pass from graph to graph.
///
/// # Errors
/// Errors of [`run`], and one for a pass that does not return a graph.
pub fn run_pipeline(module: Module, names: &[&str], context: &Context<'_>) -> Result<Module, PassError> {
    for name in names {
        let pass = find(name)?;
        if !matches!(pass.run, Run::Graph(_)) {
            return Err(PassError::Kind {
                pass: pass.name,
                expected: "a pass that returns a graph",
                found: "one that does not",
            });
        }
    }
    match run(Ir::Graph(module), names, context)? {
        Ir::Graph(module) => Ok(module),
        other @ (Ir::Draft(_) | Ir::Plan(_)) => Err(PassError::Left { expected: GRAPH, found: other.kind() }),
    }
}

/// Runs passes by name, one after the other. Verifies graphs before the first pass and after each
/// pass.
///
/// # Errors
/// If no pass has a name (before any pass runs), or a pass gets another kind of IR than it takes.
/// Also if a graph does not verify before or after a pass.
pub fn run(ir: Ir, names: &[&str], context: &Context<'_>) -> Result<Ir, PassError> {
    let passes = names.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
    run_watched(ir, &passes, context, None)
}

/// Function called after each pass, with the pass's output and whether the pass changed the IR.
pub type Watch<'w> = dyn FnMut(&'static Pass, &Ir, bool) + 'w;

/// Runs passes like [`run`], and calls `watch` after each. Graphs are copied only if there is a
/// `watch`, so that it learns whether a pass changed the graph.
///
/// # Errors
/// Errors of [`run`].
pub fn run_watched(
    ir: Ir,
    passes: &[&'static Pass],
    context: &Context<'_>,
    mut watch: Option<&mut Watch<'_>>,
) -> Result<Ir, PassError> {
    if let Ir::Graph(module) = &ir {
        verify(module).map_err(|error| PassError::Input(Box::new(error)))?;
    }
    passes.iter().try_fold(ir, |ir, pass| {
        let (ir, changed) = pass.apply(ir, context, watch.is_some())?;
        if let (Some(watch), Some(changed)) = (&mut watch, changed) {
            watch(pass, &ir, changed);
        }
        Ok(ir)
    })
}

/// Runs passes like [`run_watched`] on a borrowed graph. Copies it only if the first pass changes
/// graphs.
///
/// # Errors
/// Errors of [`run`].
pub fn run_on(
    module: &Module,
    passes: &[&'static Pass],
    context: &Context<'_>,
    mut watch: Option<&mut Watch<'_>>,
) -> Result<Ir, PassError> {
    let Some((pass, rest)) = passes.split_first() else { return Ok(Ir::Graph(module.clone())) };
    let Run::Lower(run) = pass.run else {
        return run_watched(Ir::Graph(module.clone()), passes, context, watch);
    };
    verify(module).map_err(|error| PassError::Input(Box::new(error)))?;
    pass.begin(context);
    let ir = Ir::Draft(Box::new(run(module, context)?));
    if let Some(watch) = &mut watch {
        watch(pass, &ir, true);
    }
    run_watched(ir, rest, context, watch)
}

impl Pass {
    /// Returns the kind of IR that the pass takes, as [`Ir::kind`] names it.
    fn takes(&self) -> &'static str {
        match self.run {
            Run::Graph(_) | Run::Lower(_) => GRAPH,
            Run::Draft(_) | Run::Plan(_) => TASKS,
        }
    }

    fn refuses(&self, ir: &Ir) -> PassError {
        PassError::Kind { pass: self.name, expected: self.takes(), found: ir.kind() }
    }

    /// Assigns the decisions that follow to this pass.
    fn begin(&self, context: &Context<'_>) {
        if let Some(decisions) = &context.decisions {
            decisions.begin(self.name);
        }
    }

    /// Returns the output of the pass, and whether it differs from the input. For a graph, the
    /// difference is `None` unless `compares` is set or debug logs are on.
    fn apply(&self, ir: Ir, context: &Context<'_>, compares: bool) -> Result<(Ir, Option<bool>), PassError> {
        self.begin(context);
        match (self.run, ir) {
            (Run::Graph(run), Ir::Graph(module)) => {
                self.graph(run, module, context, compares).map(|(module, changed)| (Ir::Graph(module), changed))
            }
            (Run::Lower(run), Ir::Graph(module)) => Ok((Ir::Draft(Box::new(run(&module, context)?)), Some(true))),
            (Run::Draft(run), Ir::Draft(draft)) => Ok((Ir::Draft(Box::new(run(*draft, context)?)), Some(true))),
            (Run::Plan(run), Ir::Draft(draft)) => Ok((Ir::Plan(Box::new(run(*draft, context)?)), Some(true))),
            (Run::Graph(_) | Run::Lower(_), ir @ (Ir::Draft(_) | Ir::Plan(_)))
            | (Run::Draft(_) | Run::Plan(_), ir @ (Ir::Graph(_) | Ir::Plan(_))) => Err(self.refuses(&ir)),
        }
    }

    fn graph(
        &self,
        run: fn(Module, &Context<'_>) -> Result<Module, PassError>,
        module: Module,
        context: &Context<'_>,
        compares: bool,
    ) -> Result<(Module, Option<bool>), PassError> {
        let ops = |module: &Module| module.functions.iter().map(|function| function.ops.len()).sum::<usize>();
        let ops_before = ops(&module);
        let before = (compares || tracing::enabled!(tracing::Level::DEBUG)).then(|| module.clone());
        let module = run(module, context)?;
        verify(&module).map_err(|error| PassError::Output { pass: self.name, error: Box::new(error) })?;
        let changed = before.as_ref().map(|before| module != *before);
        tracing::debug!(pass = self.name, changed, ops_before, ops = ops(&module), "pass");
        Ok((module, changed))
    }
}

#[cfg(test)]
mod tests {
    use ixc_targets::Target;

    use super::*;

    #[test]
    fn unknown_pass_error_lists_the_passes() {
        let error = run_pipeline(Module::default(), &["fuze"], &Context::new(Target::AVX2));
        assert_eq!(
            error.err().map(|e| e.to_string()).as_deref(),
            Some(
                "there is no pass \"fuze\"; the passes are canonicalise, requantise, cache, shard, fuse, observe, defer, residency, pack, tile, lower, steps, arena"
            )
        );
    }

    #[test]
    fn pass_error_states_the_expected_input() {
        let error = run(Ir::Graph(Module::default()), &["steps"], &Context::new(Target::AVX2));
        let error = error.err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), Some("pass steps expected tasks, but found a graph"));
    }

    /// Checks that passes record their choices and alternatives, and that recording does not change
    /// their output.
    #[test]
    fn passes_record_decisions_without_changing_output() {
        use crate::decision::{Decision, Decisions};
        let text = "
weight @n : f32[256]
weight @blk.0.g : q4_k[512, 256]
weight @blk.0.u : q8_0[512, 256]
weight @blk.0.w : q4_k[520, 512]
func @step(%x: f32[T, 256]) -> (f32[T, 520]) {
  %h = rms_norm %x, @n {eps = 1e-6}
  %0 = dequantise @blk.0.g
  %g = matmul %h, %0
  %1 = dequantise @blk.0.u
  %u = matmul %h, %1
  %s = silu %g
  %m = mul %s, %u
  %2 = dequantise @blk.0.w
  %y = matmul %m, %2
  return %y
}";
        let module = parse(text).unwrap();
        let decisions = std::sync::Arc::new(Decisions::default());
        let quiet = Context::new(Target::AVX2);
        let recorded = Context { decisions: Some(decisions.clone()), ..quiet.clone() };
        let passes = ["canonicalise", "fuse", "pack", "tile"];
        let left = run_pipeline(module.clone(), &passes, &recorded).unwrap();
        assert_eq!(left, run_pipeline(module, &passes, &quiet).unwrap());
        let all = decisions.take();
        let of = |pass: &str, op: &str, name: &str| -> Vec<&Decision> {
            all.iter().filter(|each| (each.pass, &*each.op, &*each.name) == (pass, op, name)).collect()
        };
        let why = |decision: &Decision, what: &str| {
            let lost = decision.rejected.iter().find(|lost| lost.what == what);
            lost.unwrap_or_else(|| panic!("{what}: {decision:#?}")).why.clone()
        };
        // In this model, gate and up take their rows in different formats.
        let [gated] = of("fuse", "gated", "blk.0.g")[..] else { panic!("{all:#?}") };
        assert_eq!(
            why(gated, "rule swiglu"),
            "the rule needs the same value in two places, but finds two different values"
        );
        assert!(why(gated, "mul").ends_with(" higher, where one pass over the rows costs 100"), "{gated:#?}");
        let [kept] = of("pack", "weight", "blk.0.w")[..] else { panic!("{all:#?}") };
        assert_eq!(
            (&*kept.chosen, &*why(kept, "q4_k_r16")),
            ("q4_k as stored", "its 520 rows are not a multiple of 16, the rows of a strip")
        );
        assert_eq!(of("pack", "weight", "blk.0.g")[0].chosen, "q4_k_r16");
        let [rows, kernels, ..] = of("tile", "weight", "blk.0.g")[..] else { panic!("{all:#?}") };
        assert_eq!((rows.question, kernels.question), ("item size", "kernels"));
        assert!(kernels.chosen.starts_with("gemv by ") && kernels.chosen.contains("gemm by "), "{kernels:#?}");
        assert!(
            kernels.rejected.iter().any(|lost| lost.why.contains(" cycles per element and row; by ")),
            "{kernels:#?}"
        );
        // A decision without an alternative is not recorded.
        assert!(all.iter().all(|each| !each.rejected.is_empty() && each.pass != "canonicalise"));
    }

    #[test]
    fn stop_text_names_its_pass_and_refuses_wrong_ir() {
        let context = Context::new(Target::AVX2);
        let ir = run(Ir::Graph(Module::default()), &["canonicalise", "fuse"], &context).unwrap();
        let stop = Stop { ir, after: Some("fuse") };
        assert_eq!(Stop::parse(&stop.text()).unwrap(), stop);
        let names: Vec<&str> = stop.passes().iter().map(|pass| pass.name).collect();
        assert_eq!(names, ["observe", "defer", "residency", "pack", "tile", "lower", "steps", "arena"]);
        let first = Stop { ir: Ir::Graph(Module::default()), after: None };
        assert_eq!((Stop::parse(&first.text()).unwrap(), first.passes().len()), (first.clone(), PASSES.len()));
        let refused = |text: &str| Stop::parse(text).unwrap_err().to_string();
        assert!(refused("").starts_with("the text does not name the pass that wrote it"), "{}", refused(""));
        assert!(refused("; after fuze").starts_with("there is no pass \"fuze\""));
        assert_eq!(refused("; after lower\n"), "the output of pass lower is tasks, but the text has a graph");
        assert_eq!(refused("; after arena"), "the output of pass arena is a plan, but the text has a graph");
    }

    #[test]
    fn pass_options_are_parsed_and_errors_state_valid_values() {
        let mut options = OptionSet::default();
        let mut error = |text: &str| set(&mut options, text).unwrap_err().to_string();
        assert_eq!(
            error("fuse"),
            "\"fuse\" is not an option of a pass; expected PASS.KEY=VALUE, such as cache.keys=keep"
        );
        assert!(error("fuse.speed=1").starts_with(
            "no pass has an option \"fuse.speed\"; the options are requantise.weights, cache.keys, cache.values, shard.ranks, shard.rank, shard.by, fuse.region, fuse.rounds, "
        ));
        assert_eq!(error("fuse.region=many"), "fuse.region is \"many\"; expected a number");
        set(&mut options, "residency.memory = none").unwrap();
        assert_eq!(options.get::<residency::ResidencyOptions>().memory, None);
    }
}
