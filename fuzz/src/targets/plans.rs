//! Targets for plans: the bytes of a plan file, and plans with random changes that run in the
//! emulator.

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{BufferId, DimExpr, DimInput, Plan, Source, Step, Task};
use ixc_ir::random::Random;
use ixc_runtime::engine::{BackendKind, Engine, EngineOptions, StepError};
use ixc_runtime::execute::{ExecuteError, Problem};
use ixc_runtime::file::{self, HEADER_BYTES};
use ixc_runtime::program::Program;
use ixc_targets::Target;

use super::differential::{self, seed_of};
use crate::Outcome;
use crate::small_models::{SmallModel, small_model};

/// Decodes the payload of a plan, checks the plan, and loads it. Checks that an accepted plan can
/// be encoded and decoded again without a change.
pub fn file(input: &[u8]) -> Outcome {
    let plan = match file::decode(&file::seal(input)) {
        Ok(plan) => plan,
        Err(error) => return Outcome::refused(error),
    };
    if let Err(error) = Program::new(&plan) {
        return Outcome::refused(format!("decoded, {error}"));
    }
    let encoded = file::encode(&plan).expect("a checked plan can be encoded");
    // The bytes are compared, because a plan with a NaN does not equal itself.
    let again = file::decode(&encoded).expect("an encoded plan can be decoded");
    assert!(file::encode(&again).is_ok_and(|bytes| bytes == encoded), "another encoding differs");
    // The plan's files are absent, so loading ends with an error.
    match Engine::load(plan, std::path::Path::new("/nonexistent"), &options(BackendKind::Native)) {
        Ok(_) => Outcome::accepted(),
        Err(error) => {
            assert!(error.class() != Class::Failed, "{error}");
            Outcome::Accepted(format!("checked, {error}"))
        }
    }
}

/// Returns the payloads of small plans with few kernels.
pub fn seeds() -> Vec<Vec<u8>> {
    let payload = |seed: u64| {
        let plan = small_model(seed, Target::AVX2).plan;
        file::encode(&plan).expect("a compiled plan can be encoded")[HEADER_BYTES..].to_vec()
    };
    vec![payload(1), payload(2)]
}

fn options(backend: BackendKind) -> EngineOptions {
    EngineOptions { threads: Some(1), backend, ..EngineOptions::default() }
}

/// Changes numbers of a valid plan. Checks that a plan that is still accepted runs in the emulator
/// without a fault.
pub fn changed(input: &[u8]) -> Outcome {
    let mut random = Random::new(seed_of(input));
    let SmallModel { mut plan, folder, .. } = small_model(random.below(4), Target::AVX2);
    // An empty input makes no changes.
    let changes = if input.is_empty() { 0 } else { 1 + random.below(3) };
    for _ in 0..changes {
        change(&mut plan, &mut random);
    }
    if let Err(error) = Program::new(&plan) {
        return Outcome::refused(error);
    }
    let vocabulary = plan.vocabulary;
    let mut engine = match Engine::load(plan, &folder, &options(BackendKind::Emulated)) {
        Ok(engine) => engine,
        Err(error) => return Outcome::refused(format!("checked, {error}")),
    };
    for tokens in [&[1u32, 2, 3, 4, 5][..], &[0]] {
        let tokens: Vec<u32> = tokens.iter().map(|token| token % vocabulary).collect();
        match engine.step(&tokens, &[0]) {
            Err(StepError::Execute(error)) if is_fault(&error) => panic!("{error}"),
            Err(error) => return Outcome::refused(format!("loaded, {error}")),
            Ok(_) => {}
        }
    }
    Outcome::accepted()
}

/// Returns whether a step broke an invariant: a panic, or an access outside of buffers.
fn is_fault(error: &ExecuteError) -> bool {
    match error {
        ExecuteError::Panic { .. } => true,
        ExecuteError::Item(error) => matches!(error.problem, Problem::Fault(_)),
        _ => false,
    }
}

/// Returns inputs that are seeds of changes, and the input that makes no changes.
pub fn change_seeds() -> Vec<Vec<u8>> {
    differential::seeds().into_iter().chain([Vec::new()]).collect()
}

/// Returns a number that is likely to cause errors: a limit, or a number near `near`.
fn number(random: &mut Random, near: u64) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => near.wrapping_add(1),
        2 => near.wrapping_sub(1),
        3 => near.wrapping_mul(2),
        4 => u64::from(u32::MAX),
        5 => 1 << random.below(64),
        6 => u64::MAX,
        _ => near.wrapping_add(random.below(1024) * 4),
    }
}

/// Changes one number of a plan, or one buffer argument of a task.
fn change(plan: &mut Plan<Kernel>, random: &mut Random) {
    match random.below(12) {
        0 => plan.max_tokens = number(random, plan.max_tokens.into()) as u32,
        1 => plan.vocabulary = number(random, plan.vocabulary.into()) as u32,
        2 => plan.arena_bytes = number(random, plan.arena_bytes),
        3 => plan.context_length = number(random, plan.context_length.into()) as u32,
        4 => {
            let at = random.index(plan.buffers.len());
            plan.buffers[at].offset = number(random, plan.buffers[at].offset);
        }
        5 => {
            let at = random.index(plan.buffers.len());
            plan.buffers[at].row_bytes = number(random, plan.buffers[at].row_bytes);
        }
        6 => {
            let at = random.index(plan.weights.len());
            let weight = &mut plan.weights[at];
            match random.below(3) {
                0 => weight.offset = number(random, weight.offset),
                1 => weight.bytes = number(random, weight.bytes),
                _ => {
                    let dimension = random.index(weight.shape.len());
                    weight.shape[dimension] = number(random, weight.shape[dimension]);
                }
            }
        }
        _ => change_task(plan, random),
    }
}

fn change_task(plan: &mut Plan<Kernel>, random: &mut Random) {
    let buffers = plan.buffers.len();
    let kernels = plan.kernels.len();
    let mut tasks: Vec<&mut Task> = plan
        .steps
        .iter_mut()
        .filter_map(|step| if let Step::Run { tasks, .. } = step { Some(tasks) } else { None })
        .flatten()
        .collect();
    let chosen = random.index(tasks.len());
    let task = &mut *tasks[chosen];
    let chosen = random.index(task.variants.len());
    let variant = &mut task.variants[chosen];
    match random.below(6) {
        0 => task.columns = number(random, task.columns.into()) as u32,
        1 => variant.row_chunk = number(random, variant.row_chunk.into()) as u32,
        2 => variant.kernel.0 = random.index(kernels) as u32,
        3 if !variant.dims.is_empty() => {
            let at = random.index(variant.dims.len());
            let n = number(random, 32) as u32;
            let exprs: [DimExpr; 4] = [
                DimInput::Tokens * n,
                DimInput::Last % (DimInput::WindowBegin + 1),
                DimInput::PartEnd - DimInput::Last,
                DimInput::Tokens * u32::MAX * u32::MAX,
            ];
            variant.dims[at] = exprs[random.index(exprs.len())].clone();
        }
        _ => {
            let at = random.index(task.args.len());
            task.args[at].source = Source::Arena(BufferId(random.index(buffers) as u32));
        }
    }
}
