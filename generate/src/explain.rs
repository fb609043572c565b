//! Decisions in the compilation of a model, with their reasons. Only decisions that rejected an
//! alternative are listed.
//!
//! Passes record their decisions when they make them ([`ixc_passes::decision`]); this module
//! decides nothing again. Placement on a grid and the choice of an expert predictor at the start of
//! a run also record decisions. Similar decisions are grouped.
//!
//! ```
//! use ixc_compile::{compile::CompileOptions, model::Model};
//! use ixc_generate::explain;
//! use ixc_runtime::engine;
//!
//! let model = Model::new(ixc_compile::demo::open()?)?;
//! let (options, run) = (CompileOptions::default(), engine::EngineOptions::default());
//! let decisions = explain::decisions(&model, &options, &run)?;
//! assert!(decisions.iter().any(|decision| decision.pass == "tile"));
//! assert!(decisions.iter().all(|decision| !decision.rejected.is_empty()));
//! // All layers of the demo model have the same decisions, so grouping at least halves the number.
//! assert!(explain::group_decisions(&decisions).len() * 2 < decisions.len());
//! # Ok::<(), ixc_generate::Error>(())
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use ixc_dataflow::grid::Grid;
use ixc_dataflow::place::search::PlacedPlan;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_passes::decision::{Decision, Decisions, RejectedAlternative};
use ixc_runtime::streaming::predict::{Predictions, StrategyDecision};
use ixc_runtime::{engine, memory_estimate};

use crate::Error;
use crate::budget::compile_within;
use ixc_compile::compile::{self, CompileOptions, specs, with_kernels};
use ixc_compile::model::Model;
use ixc_compile::place;
use ixc_compile::select::{Item, in_any_layer, layer_of, ranges};

/// Name of a run in decisions, in place of a pass.
pub const RUN: &str = "run";

/// Returns the names of the sources of decisions (passes and others), in order.
pub fn sources() -> Vec<&'static str> {
    let passes = ixc_passes::manager::names();
    [&[compile::DECIDES][..], &passes, &[ixc_dataflow::place::DECIDES, RUN]].concat()
}

/// Returns the decisions for a model that is compiled and run with these options, in order. If
/// `run` has a memory budget, it is applied as in a run. Otherwise the decisions depend on
/// `options` only.
///
/// # Errors
/// The errors of [`compile`](ixc_compile::compile::compile).
pub fn decisions(model: &Model, options: &CompileOptions, run: &engine::EngineOptions) -> Result<Vec<Decision>, Error> {
    let decisions = Arc::new(Decisions::default());
    let options = CompileOptions { decisions: Some(Arc::clone(&decisions)), ..options.clone() };
    let plan = match run.memory {
        Some(_) => {
            let predict_extra = options.predict_extra.or(run.prefetch.early_routers());
            Some(compile_within(model, &CompileOptions { predict_extra, ..options }, run)?.0.plan)
        }
        None => {
            let (_, plan) = specs(model, &options)?;
            // Only plans with streamed experts predict experts.
            let streams = !plan.expert_groups.is_empty();
            streams.then(|| with_kernels(plan, options.target())).transpose()?
        }
    };
    let mut decisions = decisions.take();
    decisions.extend(plan.map(|plan| prediction(&plan, run)).transpose()?.flatten());
    Ok(decisions)
}

/// Returns the decision about expert prediction at the start of a run; `None` if all experts are in
/// memory or the user chose a predictor.
fn prediction(plan: &Plan<Kernel>, run: &engine::EngineOptions) -> Result<Option<Decision>, Error> {
    let groups = u32::try_from(plan.expert_groups.len()).unwrap_or(u32::MAX);
    if groups == 0 {
        return Ok(None);
    }
    let mut predictions = Predictions::new(run.prefetch.choice, groups);
    if !memory_estimate::has_early_routers(plan)? {
        predictions = predictions.without_early_routers();
    }
    let to_decision = |StrategyDecision { chosen, why, rejected }| {
        let rejected = rejected.into_iter().map(|(what, why)| RejectedAlternative { what, why }).collect();
        let (op, question) = ("experts".to_owned(), "predictor");
        Decision { pass: RUN, op, name: String::new(), question, chosen, why, rejected }
    };
    Ok(predictions.decision().map(to_decision))
}

/// Places a model on a grid, and returns the placement with its decisions.
///
/// # Errors
/// The errors of [`place`](ixc_compile::place::place).
pub fn placement(
    model: &Model,
    grid: &Grid,
    options: &place::PlaceOptions,
) -> Result<(PlacedPlan, Vec<Decision>), Error> {
    let decisions = Arc::new(Decisions::default());
    let placed = place::place_told(model, grid, options, Some(&decisions))?;
    Ok((placed, decisions.take()))
}

/// Returns the subject of a decision, in the form that selections match.
pub fn item(decision: &Decision) -> Item {
    let names = if decision.name.is_empty() { Vec::new() } else { vec![decision.name.clone()] };
    Item { op: decision.op.clone(), names, layer: layer_of(&decision.name) }
}

/// Group of similar decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<'d> {
    /// One of the decisions.
    pub decision: &'d Decision,
    /// Number of decisions.
    pub count: usize,
    /// Subjects of the decisions, with `*` in place of the layer's number, each with its layers. A
    /// subject outside of layers has none.
    pub about: BTreeMap<String, BTreeSet<u64>>,
}

/// Groups similar decisions, in the order of each group's first decision.
pub fn group_decisions(decisions: &[Decision]) -> Vec<Group<'_>> {
    /// Fields in which similar decisions are equal.
    #[derive(PartialEq, Eq, Hash)]
    struct Key<'d> {
        pass: &'d str,
        op: &'d str,
        question: &'d str,
        chosen: &'d str,
        why: &'d Option<String>,
        rejected: &'d [RejectedAlternative],
    }
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut known: HashMap<Key<'_>, usize> = HashMap::new();
    for decision in decisions {
        let Decision { pass, op, question, chosen, why, rejected, .. } = decision;
        let at = *known.entry(Key { pass, op, question, chosen, why, rejected }).or_insert_with(|| {
            groups.push(Group { decision, count: 0, about: BTreeMap::new() });
            groups.len() - 1
        });
        let group = &mut groups[at];
        group.count += 1;
        group.about.entry(in_any_layer(&decision.name)).or_default().extend(layer_of(&decision.name));
    }
    groups
}

impl fmt::Display for Group<'_> {
    /// Writes lines; the first has the pass and the question.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decision { pass, op, question, chosen, why, rejected, .. } = self.decision;
        match (&**op, self.count) {
            (noun @ ("weight" | "state"), 1) => writeln!(f, "{pass}: {question} of a {noun}")?,
            (noun @ ("weight" | "state"), count) => writeln!(f, "{pass}: {question} of {count} {noun}s")?,
            (op, 1) => writeln!(f, "{pass}: {question} of {op}")?,
            (op, count) => writeln!(f, "{pass}: {question} of {op}, {count} times")?,
        }
        // Subjects with the same layers are listed together.
        let mut by_layers: BTreeMap<&BTreeSet<u64>, Vec<&str>> = BTreeMap::new();
        for (name, layers) in self.about.iter().filter(|(name, _)| !name.is_empty()) {
            by_layers.entry(layers).or_default().push(name);
        }
        for (layers, names) in by_layers {
            write!(f, "  of        {}", names.join(", "))?;
            match layers.len() {
                0 => writeln!(f)?,
                1 => writeln!(f, ", layer {}", ranges(layers))?,
                _ => writeln!(f, ", layers {}", ranges(layers))?,
            }
        }
        write!(f, "  chosen    {chosen}")?;
        match why {
            Some(why) => writeln!(f, ": {why}")?,
            None => writeln!(f)?,
        }
        rejected.iter().try_for_each(|RejectedAlternative { what, why }| writeln!(f, "  rejected  {what}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_decisions_are_printed_once_with_their_layers() {
        let of = |name: &str, rows: &str| {
            Decision::new("weight", name, "layout").chose("q4_k").over("q4_k_r16", format!("its {rows} rows"))
        };
        let all = [of("blk.0.a", "5"), of("blk.0.b", "7"), of("blk.1.a", "5"), of("out", "5"), of("blk.3.a", "5")];
        let groups = group_decisions(&all);
        assert_eq!(groups.iter().map(|group| group.count).collect::<Vec<_>>(), [4, 1]);
        assert_eq!(
            groups[0].to_string(),
            ": layout of 4 weights\n  of        out\n  of        blk.*.a, layers 0-1, 3\n  chosen    q4_k\n  rejected  q4_k_r16: its 5 rows\n"
        );
        assert_eq!(item(&all[2]), Item { op: "weight".into(), names: vec!["blk.1.a".into()], layer: Some(1) });
    }
}
