//! Search for the first partition (sizes of pieces) for which the grid has room.
//!
//! At first, each column has its own PE; partitions are tried from the finest pieces to the
//! coarsest. Then columns share PEs, and partitions are tried from the coarsest pieces to the
//! finest. Finally, programs run in waves.

use crate::descriptor::Descriptor;
use crate::grid::Grid;
use ixc_ir::graph::Module;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_kernels::{GenerateError, KernelSpec};
use ixc_passes::decision::{Decision, Decisions, RejectedAlternative};

use super::kernels::Kernels;
use super::{DECIDES, PlaceError, Placement, PlacementOptions, run, sizing};
use crate::pieces::{Partition, Reduction};

/// A plan and its placement.
#[derive(Clone, Debug)]
pub struct PlacedPlan {
    /// The plan.
    pub plan: Plan<Kernel>,
    /// Placement of the plan, as a descriptor.
    pub descriptor: Descriptor,
}

/// Reasons why no plan was placed on the grid.
#[derive(Debug, thiserror::Error)]
pub enum SearchError<E> {
    /// No plan could be made.
    #[error(transparent)]
    Plan(E),
    /// A kernel could not be generated.
    #[error(transparent)]
    Generate(GenerateError),
    /// The error of the last attempt.
    #[error(transparent)]
    Place(PlaceError),
}

/// Tries partitions until the grid has room for `context` positions. `plan_for` returns the plan of
/// `module` in pieces of these sizes. Decisions are recorded in `decisions`, if given.
///
/// # Errors
/// Fails if a plan cannot be made, or if there is no room even in waves. In that case, the error is
/// that of the last attempt.
pub fn search<E>(
    module: &Module,
    grid: &Grid,
    model: &str,
    context: u32,
    decisions: Option<&Decisions>,
    mut plan_for: impl FnMut(&Partition) -> Result<Plan<KernelSpec>, E>,
) -> Result<PlacedPlan, SearchError<E>> {
    grid.check().map_err(|error| SearchError::Place(error.into()))?;
    if context > sizing::MAX_CONTEXT {
        return Err(SearchError::Place(PlaceError::Plan {
            task: "context".to_string(),
            problem: format!("the context has {context} positions; the limit is {}", sizing::MAX_CONTEXT),
        }));
    }
    let ladder = sizing::ladder(module, grid, context);
    let one_per_pe = ladder.iter().map(|partition| (partition, Placement::OnePerPe));
    let shared = ladder.iter().rev().map(|partition| (partition, Placement::Shared));
    let time_multiplexed = ladder.iter().rev().map(|partition| (partition, Placement::TimeMultiplexed));
    let mut error = None;
    let mut tried: Vec<Attempt<'_>> = Vec::new();
    let mut kernels = Kernels::default();
    for (partition, placement) in one_per_pe.chain(shared).chain(time_multiplexed) {
        if let Some(problem) = impossible(module, grid, partition, placement) {
            tracing::debug!(?partition, ?placement, "not tried: {problem}");
            tried.push(Attempt { partition, placement, problem });
            continue;
        }
        let plan =
            kernels.generate_all(plan_for(partition).map_err(SearchError::Plan)?).map_err(SearchError::Generate)?;
        let options = PlacementOptions { model: model.to_string(), context, placement };
        let told = decisions.map(|_| Decisions::default());
        match run(&plan, grid, &options, told.as_ref()) {
            Ok(mut descriptor) => {
                let mut why = vec![sizes(partition)];
                why.append(&mut descriptor.reasons);
                if let Some(Attempt { problem, .. }) = tried.last() {
                    why.push(format!(
                        "{} other choices of sizes did not fit on the grid; the reason for the last one: {problem}",
                        tried.len()
                    ));
                }
                descriptor.reasons = why;
                if let (Some(decisions), Some(told)) = (decisions, told) {
                    decisions.begin(DECIDES);
                    record_decision(decisions, &tried, partition, placement, &Ladder { module, grid, all: &ladder });
                    told.take().into_iter().for_each(|decision| decisions.add(decision));
                }
                return Ok(PlacedPlan { plan, descriptor });
            }
            Err(other) => {
                tracing::debug!(?partition, ?placement, "no room: {other}");
                tried.push(Attempt { partition, placement, problem: other.to_string() });
                error = Some(other);
            }
        }
    }
    Err(SearchError::Place(error.unwrap_or_else(|| PlaceError::Plan {
        task: "sizes".to_string(),
        problem: "the model has no sizes of pieces to try".to_string(),
    })))
}

/// A partition for which there was no room, and the reason.
struct Attempt<'l> {
    partition: &'l Partition,
    placement: Placement,
    problem: String,
}

/// All candidate partitions, and the inputs of their time estimates.
struct Ladder<'l> {
    module: &'l Module,
    grid: &'l Grid,
    all: &'l [Partition],
}

/// Describes a partition in words.
fn sizes(partition: &Partition) -> String {
    let sums = match partition.dense.reduction {
        Reduction::Separate => "added on PEs of their own",
        Reduction::Chained => "added in the next piece",
    };
    let (rows, dot) = (partition.dense.rows, partition.dense.dot);
    format!(
        "products in pieces of up to {rows} rows and {dot} elements, {sums}; products of experts of up to {} rows and {} elements; row ops of {} elements",
        partition.experts.rows, partition.experts.dot, partition.elements
    )
}

/// Records the chosen method of distributing instances over PEs, and the sizes of pieces.
fn record_decision(
    decisions: &Decisions,
    tried: &[Attempt<'_>],
    partition: &Partition,
    placement: Placement,
    ladder: &Ladder<'_>,
) {
    let mut how = Decision::new("the model", "", "placement").chose(placement.describe());
    for other in Placement::ALL.into_iter().filter(|other| *other != placement) {
        let mut failed = tried.iter().filter(|tried| tried.placement == other);
        let count = failed.clone().count();
        how = match failed.next_back() {
            Some(last) => how.over(
                other.describe(),
                format!(
                    "{count} choices of sizes do not fit on the grid; the reason for the last one: {}",
                    last.problem
                ),
            ),
            None => how.over(other.describe(), "it is slower, and the chosen placement fits on the grid"),
        };
    }
    decisions.add(how);
    let Ladder { module, grid, all } = *ladder;
    let positions = |partition: &Partition| format!("parts of {} positions", partition.positions);
    let name = |partition: &Partition| format!("{}; {}", sizes(partition), positions(partition));
    let failed = tried.iter().filter(|tried| tried.placement == placement);
    let lost = failed.map(|tried| RejectedAlternative::new(name(tried.partition), &*tried.problem));
    let mut chosen = Decision::new("the model", "", "pieces").chose(name(partition)).over_all(lost);
    let at = all.iter().position(|other| other == partition);
    match placement {
        // The candidate partitions are in order: from fewest cycles to least memory.
        Placement::OnePerPe => {
            let cycles = |partition: &Partition| sizing::cycles(module, grid, partition).round();
            let own = cycles(partition);
            if let Some(next) = at.and_then(|at| all.get(at + 1)) {
                let others = cycles(next);
                let why = match others > own {
                    true => format!("a layer would take {others} cycles by estimate"),
                    false => "it is meant for grids with less memory".to_owned(),
                };
                chosen = chosen.since(format!("{own} cycles for a layer by estimate")).over(name(next), why);
            }
        }
        Placement::Shared | Placement::TimeMultiplexed => {
            if let Some(next) = at.and_then(|at| at.checked_sub(1)).and_then(|at| all.get(at)) {
                chosen = chosen
                    .over(name(next), "more pieces need more copies of activations, and the PEs work in turn anyway");
            }
        }
    }
    decisions.add(chosen);
}

/// Returns the reason why a partition has no room, if this is known without making a plan.
fn impossible(module: &Module, grid: &Grid, partition: &Partition, placement: Placement) -> Option<String> {
    let (pes, bytes) = sizing::demand(module, partition);
    let there = grid.pes().saturating_mul(grid.usable_bytes());
    match placement {
        Placement::OnePerPe if pes > grid.pes() => Some(format!("{pes} PEs are needed; the grid has {}", grid.pes())),
        Placement::OnePerPe | Placement::Shared if bytes > there => {
            Some(format!("weights take {bytes} bytes; all PEs together have {there}"))
        }
        Placement::OnePerPe | Placement::Shared | Placement::TimeMultiplexed => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::grid::{Edge, Io, Link, Operations, Pe, Routing};

    use super::*;

    #[test]
    fn context_beyond_the_limit_is_refused() {
        let operations = Operations { int8: 1.0, int: 1.0, f32: 1.0, special: 1.0 };
        let grid = Grid {
            name: "some".to_string(),
            description: String::new(),
            sources: Vec::new(),
            not_public: Vec::new(),
            width: 4,
            height: 4,
            clock_hz: 1e9,
            pe: Pe {
                sram_bytes: 48 << 10,
                reserved_bytes: 0,
                read_bytes: 16,
                write_bytes: 8,
                operations,
                start_cycles: 1,
            },
            link: Link { bytes: 4, hop_cycles: 1, routing: Routing::Packets },
            io: Io { edges: vec![Edge::West], bytes_per_second: 1e9, latency_seconds: 0.0 },
        };
        let error = |context: u32| {
            search(&Module::default(), &grid, "none", context, None, |_| Err("no plan")).unwrap_err().to_string()
        };
        assert_eq!(error(u32::MAX), "context: the context has 4294967295 positions; the limit is 2147483648");
        assert_eq!(
            error(sizing::MAX_CONTEXT + 1),
            "context: the context has 2147483649 positions; the limit is 2147483648"
        );
        assert_eq!(error(sizing::MAX_CONTEXT), "no plan");
    }
}
