//! Engines that run plans: natively if this machine supports the target, otherwise emulated.

use std::path::Path;

use ixc::codegen::artifact::share_artifacts;
use ixc::ir::kernel::Kernel;
use ixc::ir::plan::Plan;
use ixc::runtime::engine::{self, BackendKind, Engine};
use ixc::runtime::load::LoadError;
use ixc::runtime::streaming::predict::{PredictionSettings, StrategyChoice};
use ixc::runtime::streaming::store::Config;
use ixc::targets::Target;

/// Returns the backend that runs a target's kernels on this machine. From then on, all engines of
/// this process share code. Most tests load the same models, and generating their code takes most
/// of a test's time.
pub fn native(target: Target) -> BackendKind {
    share_artifacts();
    if target.missing().is_empty() { BackendKind::Native } else { BackendKind::Emulated }
}

/// Loads an engine of two threads, with `budget` bytes for experts; 0 keeps all experts in memory.
pub fn load(plan: Plan<Kernel>, target: Target, budget: u64) -> Result<Engine, LoadError> {
    load_reading_ahead(plan, target, budget, StrategyChoice::Off)
}

/// Loads an engine like [`load`] that also reads experts ahead.
pub fn load_reading_ahead(
    plan: Plan<Kernel>,
    target: Target,
    budget: u64,
    choice: StrategyChoice,
) -> Result<Engine, LoadError> {
    let stream = Config { budget, ..Config::default() };
    let prefetch = PredictionSettings { choice, extra: 0 };
    let (threads, backend) = (Some(2), native(target));
    let options = engine::EngineOptions { threads, backend, stream, prefetch, ..engine::EngineOptions::default() };
    Engine::load(plan, Path::new(""), &options)
}

/// Returns the logits of all tokens, computed from the start, in steps of `step` tokens.
pub fn logits(engine: &mut Engine, tokens: &[u32], step: usize) -> Vec<f32> {
    engine.reset();
    let parts = tokens.chunks(step).map(|part| (part, (0..part.len() as u32).collect::<Vec<_>>()));
    parts.flat_map(|(part, rows)| engine.step(part, &rows).unwrap().to_vec()).collect()
}

/// Returns the bits of logits, for comparisons in which the sign of a zero counts.
pub fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}
