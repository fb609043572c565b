//! Speed of a model on several ranks, predicted from the graphs of the ranks and a description of
//! the machines. No model is run, and no weights are read.
//!
//! | module | contents |
//! | --- | --- |
//! | [`machines`] | description of machines and their links, in TOML |
//! | [`exchange`] | time of sums, concatenations and messages |
//! | [`work`] | bytes and operations of an op |
//! | [`routing`] | expected load of the busiest rank |
//! | [`step`] | time of a step: all ranks, from exchange to exchange |
//! | [`report`] | text of a forecast |
//! | [`page`] | a forecast as a web page |
//!
//! ```
//! use ixc_compile::cluster::{self, ClusterRequest, machines};
//! use ixc_compile::model::Model;
//!
//! let model = Model::new(ixc_compile::demo::open()?)?;
//! let machines = machines::find("xeon-6980p")?;
//! let request = ClusterRequest { ranks: 2, division: None, position: 0 };
//! let forecast = cluster::forecast(&model.arch.module, &machines, &request)?;
//! assert!(forecast.decode.seconds > 0.0 && forecast.ranks == 2);
//! # Ok::<(), ixc_compile::Error>(())
//! ```

pub mod exchange;
pub mod machines;
pub mod page;
pub mod report;
pub mod routing;
pub mod step;
pub mod work;

use ixc_ir::graph::Module;
use ixc_ir::graph::ranks::verify_ranks;
use ixc_passes::decision::{Decision, RejectedAlternative};
use ixc_passes::manager;
use ixc_passes::pass::Context;
use ixc_passes::shard::{self, Division, ShardOptions};
use ixc_targets::Target;
use serde::Serialize;

use crate::Error;
use crate::cluster_error::ClusterError;
use machines::Machines;
use step::StepForecast;
use work::StepSize;

/// Tokens of the prompt in a forecast.
pub const PROMPT: u64 = 512;

/// A forecast to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterRequest {
    /// Number of ranks, one for each socket.
    pub ranks: u32,
    /// Division of the model. `None` takes the fastest one.
    pub division: Option<Division>,
    /// Number of tokens before the decoded token.
    pub position: u64,
}

/// Predicted speed of a model on several ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterForecast {
    /// Name of the machines.
    pub machines: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of ranks on a machine.
    pub sockets: u32,
    /// Division of the model.
    pub division: &'static str,
    /// Forecast of decode: a step of one token.
    pub decode: StepForecast,
    /// Forecast of prefill: a step of [`PROMPT`] tokens at position 0.
    pub prefill: StepForecast,
    /// Predicted decode of each division that was compared.
    pub compared: Vec<ComparedDivision>,
}

/// A division, and its predicted decode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedDivision {
    /// Division of the model.
    pub division: &'static str,
    /// Seconds for a token; `None` if the model cannot be divided in this way.
    pub seconds: Option<f64>,
    /// Reason why the model cannot be divided in this way, if it cannot.
    pub problem: Option<String>,
}

/// The fastest division, with the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DivisionChoice {
    /// Fastest division.
    pub division: Division,
    /// Predicted times of all divisions, as a sentence.
    pub reason: String,
    /// The choice as a decision of the pass `shard`, for explanations.
    pub decision: Decision,
}

/// Returns the division for which decode takes the least predicted time, if `ranks` ranks of these
/// machines run the graph. The prediction is for the token at position 0.
///
/// # Errors
/// Fails if no division is possible, or the model does not fit in memory.
pub fn choose(module: &Module, machines: &Machines, ranks: u32) -> Result<DivisionChoice, Error> {
    let comparison = compare(module, machines, &ClusterRequest { ranks, division: None, position: 0 })?;
    let times = comparison.compared.iter().map(|row| match row.seconds {
        Some(seconds) => format!("{} {:.2} ms", row.division, seconds * 1e3),
        None => format!("{} is not possible", row.division),
    });
    let times = times.collect::<Vec<_>>().join(", ");
    let bound = comparison.decode.bound.words();
    let reason = format!("predicted time of a token on {ranks} ranks of {}: {times}; bound: {bound}", machines.name);
    let decision = decision(&comparison, machines, ranks);
    Ok(DivisionChoice { division: comparison.division, reason, decision })
}

/// Returns the choice of a division as a decision. It lists the predicted times of the other
/// divisions.
fn decision(comparison: &Comparison, machines: &Machines, ranks: u32) -> Decision {
    let division = comparison.division.word();
    let rejected = comparison.compared.iter().filter(|row| row.division != division).map(|row| {
        let why = match (row.seconds, &row.problem) {
            (Some(seconds), _) => format!("{:.2} ms a token", seconds * 1e3),
            (None, problem) => problem.clone().unwrap_or_default(),
        };
        RejectedAlternative::new(row.division, why)
    });
    let StepForecast { seconds, bound, .. } = &comparison.decode;
    let (time, bound, name) = (seconds * 1e3, bound.words(), &machines.name);
    let why = format!("predicted {time:.2} ms for each token on {ranks} ranks of {name}; bound: {bound}");
    let decision = Decision::new("the model", "", "division").chose(division).since(why).over_all(rejected);
    Decision { pass: shard::PASS.name, ..decision }
}

/// Predicts the speed of a graph on several ranks.
///
/// # Errors
/// Fails if the division is not possible, or the model does not fit in memory.
pub fn forecast(module: &Module, machines: &Machines, request: &ClusterRequest) -> Result<ClusterForecast, Error> {
    let Comparison { division, modules, decode, compared } = compare(module, machines, request)?;
    let prefill = step::forecast(&modules, machines, StepSize { tokens: PROMPT, position: 0 })?;
    Ok(ClusterForecast {
        machines: machines.name.clone(),
        ranks: request.ranks,
        sockets: machines.sockets,
        division: division.word(),
        decode,
        prefill,
        compared,
    })
}

/// Result of comparing divisions: the fastest one, and the data for its forecast.
struct Comparison {
    division: Division,
    modules: Vec<Module>,
    decode: StepForecast,
    compared: Vec<ComparedDivision>,
}

/// Predicts decode for the requested division, or for all divisions if none is requested.
fn compare(module: &Module, machines: &Machines, request: &ClusterRequest) -> Result<Comparison, Error> {
    machines.check_ranks(request.ranks)?;
    let divisions = match (request.division, request.ranks) {
        (Some(division), _) => vec![division],
        // The divisions of a single rank are equal.
        (None, 1) => vec![Division::Layers],
        (None, _) => Division::ALL.to_vec(),
    };
    let mut best: Option<Comparison> = None;
    let (mut compared, mut first_error) = (Vec::new(), None);
    for division in divisions {
        let found = graphs(module, request.ranks, division).and_then(|modules| {
            let size = StepSize { tokens: 1, position: request.position };
            Ok((step::forecast(&modules, machines, size)?, modules))
        });
        let (seconds, problem) = match found {
            Ok((decode, modules)) => {
                let seconds = decode.seconds;
                if best.as_ref().is_none_or(|best| seconds < best.decode.seconds) {
                    best = Some(Comparison { division, modules, decode, compared: Vec::new() });
                }
                (Some(seconds), None)
            }
            Err(error) => {
                let problem = error.to_string();
                first_error.get_or_insert(error);
                (None, Some(problem))
            }
        };
        compared.push(ComparedDivision { division: division.word(), seconds, problem });
    }
    match (best, first_error) {
        (Some(best), _) => Ok(Comparison { compared, ..best }),
        (None, Some(error)) => Err(error),
        // At least one division was tried, and it succeeded or failed, so this arm is never
        // reached.
        (None, None) => Err(ClusterError::NoRanks.into()),
    }
}

/// Returns the graphs of all ranks, whose exchanges match.
fn graphs(module: &Module, ranks: u32, by: Division) -> Result<Vec<Module>, Error> {
    // The passes before `fuse` do not depend on the target.
    let context = Context::new(Target::AVX2);
    let canonical = manager::run_pipeline(module.clone(), &["canonicalise"], &context)?;
    let of_rank = |rank| {
        let context = Context::new(Target::AVX2).with(&ShardOptions { ranks, rank, by });
        manager::run_pipeline(canonical.clone(), &["shard"], &context)
    };
    let modules = (0..ranks).map(of_rank).collect::<Result<Vec<Module>, _>>()?;
    if ranks > 1 {
        verify_ranks(&modules.iter().collect::<Vec<_>>()).map_err(ClusterError::from)?;
    }
    Ok(modules)
}
