//! Tests that plans run correctly: as machine code and in the interpreter, with any number of
//! threads, and in any division into steps.

#[allow(dead_code, reason = "other tests use the rest of it")]
mod tiny;

use std::time::Duration;

use ixc_codegen::module::CodegenError;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{KernelId, Output, Plan, Step};
use ixc_runtime::engine::{BackendKind, Engine, EngineOptions, Softmax, StepError};
use ixc_runtime::file;
use ixc_runtime::load::LoadError;
use ixc_runtime::sample::{Sampler, SamplerSettings};
use ixc_targets::Target;
use tiny::{CONTEXT, Folder, MAX_TOKENS, VOCABULARY};

fn options(threads: usize, backend: BackendKind) -> EngineOptions {
    EngineOptions { threads: Some(threads), backend, ..EngineOptions::default() }
}

fn native(folder: &Folder, plan: &Plan<Kernel>, threads: usize) -> Engine {
    Engine::load(plan.clone(), &folder.0, &options(threads, BackendKind::Native)).unwrap()
}

fn prompt(count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 7 + i * i) % VOCABULARY).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Returns the logits of all tokens. The steps have these sizes, which are repeated.
fn all_logits(engine: &mut Engine, tokens: &[u32], sizes: &[usize]) -> Vec<f32> {
    let (mut rest, mut logits) = (tokens, Vec::new());
    for &size in sizes.iter().cycle() {
        let (step, left) = rest.split_at(size.min(rest.len()));
        let rows: Vec<u32> = (0..step.len() as u32).collect();
        logits.extend_from_slice(engine.step(step, &rows).unwrap());
        rest = left;
        if rest.is_empty() {
            break;
        }
    }
    logits
}

#[test]
fn machine_code_and_interpreter_agree() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let tokens = prompt(20);
    let mut slow = Engine::load(plan.clone(), &folder.0, &options(2, BackendKind::Interpreter)).unwrap();
    let expected = all_logits(&mut slow, &tokens, &[13, 1]);
    assert!(expected.iter().all(|x| x.is_finite()) && expected.iter().any(|x| x.abs() > 0.1));
    // None of this plan's ops is an approximation, so all results are bit-exact.
    let found = all_logits(&mut native(&folder, &plan, 2), &tokens, &[13, 1]);
    for (x, y) in found.iter().zip(&expected) {
        assert!((x - y).abs() <= 1e-5 * y.abs().max(1.0), "{x} and {y}");
    }
    assert_eq!(found.len(), expected.len());
}

#[test]
fn emulated_code_of_every_x86_target_agrees_with_the_interpreter() {
    let folder = Folder::new();
    let tokens = prompt(9);
    let mut slow = Engine::load(tiny::plan(&folder.0), &folder.0, &options(2, BackendKind::Interpreter)).unwrap();
    let expected = all_logits(&mut slow, &tokens, &[8, 1]);
    for target in [Target::AVX2, Target::AVX512, Target::AMX] {
        let plan = tiny::plan_for(&folder.0, target);
        let emulated = |threads| {
            let options = options(threads, BackendKind::Emulated);
            let mut engine = Engine::load(plan.clone(), &folder.0, &options).unwrap();
            all_logits(&mut engine, &tokens, &[8, 1])
        };
        let found = emulated(1);
        for (x, y) in found.iter().zip(&expected) {
            assert!((x - y).abs() <= 1e-5 * y.abs().max(1.0), "{}: {x} and {y}", target.name());
        }
        assert_eq!(found.len(), expected.len());
        assert_eq!(bits(&emulated(3)), bits(&found), "{}", target.name());
        match Engine::load(plan.clone(), &folder.0, &options(1, BackendKind::Native)) {
            Ok(mut native) => {
                println!("{}: natively, too", target.name());
                assert_eq!(bits(&all_logits(&mut native, &tokens, &[8, 1])), bits(&found), "{}", target.name());
            }
            Err(LoadError::Codegen(error)) => {
                println!("{}: emulated only: {error}", target.name());
                assert!(matches!(*error, CodegenError::MissingFeatures { .. }), "{error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    let portable = tiny::plan_for(&folder.0, Target::PORTABLE);
    let refused = Engine::load(portable, &folder.0, &options(1, BackendKind::Emulated));
    assert!(matches!(refused, Err(LoadError::NotEmulated { target: Target::PORTABLE })));
}

#[test]
fn threads_do_not_change_a_bit() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let tokens = prompt(CONTEXT);
    let expected = bits(&all_logits(&mut native(&folder, &plan, 1), &tokens, &[31, 1, 7]));
    for threads in [2, 3, 7] {
        let mut engine = native(&folder, &plan, threads);
        for _ in 0..5 {
            engine.reset();
            assert_eq!(bits(&all_logits(&mut engine, &tokens, &[31, 1, 7])), expected);
        }
    }
}

/// Tests that the attention of one token, which is divided along positions beyond 256 of them, is
/// accurate. Results are bit-identical for any number of threads and in the interpreter. Compared
/// with undivided attention, they differ only in the order of sums.
#[test]
fn partitioned_long_attention_is_deterministic_and_accurate() {
    let folder = Folder::new();
    let mut plan = tiny::plan(&folder.0);
    plan.context_length = 1200;
    let tokens = prompt(3);
    let [mut one, mut two, mut five] = [1, 2, 5].map(|threads| native(&folder, &plan, threads));
    for before in [255, 256, 300, 1023, 1100] {
        let after = |engine: &mut Engine, sizes: &[usize]| {
            engine.reset();
            engine.prefill(&prompt(before)).unwrap();
            all_logits(engine, &tokens, sizes)
        };
        let expected = after(&mut one, &[1]);
        for engine in [&mut two, &mut five] {
            assert_eq!(bits(&after(engine, &[1])), bits(&expected), "{before} positions");
        }
        if before == 300 {
            let mut slow = Engine::load(plan.clone(), &folder.0, &options(2, BackendKind::Interpreter)).unwrap();
            assert_eq!(bits(&after(&mut slow, &[1])), bits(&expected));
        }
        let whole = after(&mut two, &[3]);
        for (i, (x, y)) in expected.iter().zip(&whole).enumerate() {
            // The order of sums is different, as with another division into steps.
            assert!((x - y).abs() <= 1e-4 * y.abs().max(1.0), "{x} and {y} at {i} after {before} positions");
        }
    }
}

#[test]
fn prompt_can_be_split_into_any_steps() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let mut engine = native(&folder, &plan, 2);
    let tokens = prompt(CONTEXT);
    let expected = all_logits(&mut engine, &tokens, &[1]);
    for sizes in [&[48][..], &[5, 6, 7], &[33, 32, 31], &[2, 40]] {
        engine.reset();
        let found = all_logits(&mut engine, &tokens, sizes);
        for (i, (x, y)) in found.iter().zip(&expected).enumerate() {
            // The order of sums for one row differs from that for many rows.
            assert!((x - y).abs() <= 1e-4 * y.abs().max(1.0), "{x} and {y} at {i} of steps {sizes:?}");
        }
        assert_eq!(found.len(), expected.len());
    }
    // A prefill runs in steps of the maximum size and returns the logits of the last token.
    engine.reset();
    let chunked = all_logits(&mut engine, &tokens, &[MAX_TOKENS as usize]);
    engine.reset();
    let last = engine.prefill(&tokens).unwrap().to_vec();
    for (x, y) in last.iter().zip(&chunked[chunked.len() - VOCABULARY as usize..]) {
        // A prefill requests only one row of logits.
        assert!((x - y).abs() <= 1e-4 * y.abs().max(1.0), "{x} and {y}");
    }
    assert_eq!(bits(engine.logits(0)), bits(&last));
    assert!(engine.logits(1).is_empty());
}

#[test]
fn only_requested_outputs_are_computed() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let mut engine = native(&folder, &plan, 2);
    let tokens = prompt(9);
    let n = VOCABULARY as usize;
    let all = bits(engine.step(&tokens, &[0, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap());
    engine.reset();
    let some = bits(engine.step(&tokens, &[8, 2, 2]).unwrap());
    for (i, row) in [8, 2, 2].into_iter().enumerate() {
        let close = some[i * n..][..n].iter().zip(&all[row * n..][..n]);
        assert!(close.map(|(&x, &y)| (f32::from_bits(x), f32::from_bits(y))).all(|(x, y)| (x - y).abs() < 1e-4));
    }
    engine.reset();
    assert!(engine.step(&tokens, &[]).unwrap().is_empty());
    assert_eq!(engine.position(), 9);
}

#[test]
fn truncation_restores_the_earlier_state() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let mut engine = native(&folder, &plan, 2);
    engine.prefill(&prompt(60)).unwrap();
    engine.truncate(20);
    engine.truncate(30);
    assert_eq!(engine.position(), 20);
    let back = bits(engine.step(&[3], &[0]).unwrap());
    let mut fresh = native(&folder, &plan, 1);
    // The division into steps is the same, and so is the order of sums.
    fresh.step(&prompt(48), &[]).unwrap();
    fresh.truncate(20);
    assert_eq!(bits(fresh.step(&[3], &[0]).unwrap()), back);
}

#[test]
fn wrong_steps_are_errors_and_change_nothing() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let mut engine = native(&folder, &plan, 2);
    engine.prefill(&prompt(90)).unwrap();
    assert_eq!(engine.step(&[], &[]), Err(StepError::NoTokens));
    assert_eq!(engine.prefill(&[]), Err(StepError::NoTokens));
    let too_many = engine.step(&prompt(MAX_TOKENS + 1), &[]);
    assert_eq!(too_many, Err(StepError::TooManyTokens { found: 49, max: MAX_TOKENS }));
    let unknown = engine.step(&[1, VOCABULARY], &[]);
    assert_eq!(unknown, Err(StepError::Token { index: 1, id: VOCABULARY, vocabulary: VOCABULARY }));
    assert_eq!(engine.step(&[1, 2], &[2]), Err(StepError::Output { index: 0, row: 2, rows: 2 }));
    assert_eq!(engine.step(&[1, 2], &[0, 0, 0]), Err(StepError::Output { index: 2, row: 0, rows: 2 }));
    let full = engine.prefill(&prompt(11));
    assert_eq!(full, Err(StepError::ContextFull { position: 90, tokens: 11, context: CONTEXT }));
    assert_eq!(engine.position(), 90);
    assert!(engine.logits(0).is_empty());
    engine.step(&prompt(10), &[9]).unwrap();
    assert!(matches!(engine.step(&[0], &[]), Err(StepError::ContextFull { .. })));
    let mut out = [0.0; 3];
    assert!(matches!(engine.probabilities(&[0.0; 40], 1.0, &mut out), Err(StepError::Vocabulary { found: 3, .. })));
}

#[test]
fn tokens_are_sampled_with_the_plans_softmax() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let mut engine = native(&folder, &plan, 2);
    engine.prefill(&prompt(5)).unwrap();
    let mut probabilities = vec![0.0; VOCABULARY as usize];
    engine.probabilities(engine.logits(0), 2.0, &mut probabilities).unwrap();
    let exact: Vec<f64> = engine.logits(0).iter().map(|&x| (2.0 * f64::from(x)).exp()).collect();
    let sum: f64 = exact.iter().sum();
    for (p, e) in probabilities.iter().zip(exact) {
        assert!((f64::from(*p) - e / sum).abs() < 1e-6);
    }
    let run = |engine: &mut Engine, settings: SamplerSettings| -> Vec<u32> {
        engine.reset();
        engine.prefill(&prompt(5)).unwrap();
        let mut sampler = Sampler::new(settings).unwrap();
        (0..20)
            .map(|_| {
                let token = sampler.sample(engine.logits(0), engine).unwrap();
                engine.step(&[token], &[0]).unwrap();
                token
            })
            .collect()
    };
    let settings = |seed| SamplerSettings { seed, temperature: 1.5, ..SamplerSettings::default() };
    let first = run(&mut engine, settings(1));
    assert_eq!(run(&mut engine, settings(1)), first);
    assert_ne!(run(&mut engine, settings(2)), first);
    assert_eq!(run(&mut engine, SamplerSettings::greedy()), run(&mut engine, SamplerSettings::greedy()));
}

#[test]
fn statistics_name_every_task() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let options = EngineOptions { stats: true, ..options(2, BackendKind::Native) };
    let mut engine = Engine::load(plan, &folder.0, &options).unwrap();
    engine.prefill(&prompt(50)).unwrap();
    let stats = engine.take_stats();
    assert_eq!((stats.threads, stats.steps, stats.tokens), (2, 2, 50));
    let items = |label: &str| stats.tasks.iter().find(|task| task.label == label).map(|task| task.work.items);
    assert_eq!((items("embed"), items("head"), items("q")), (Some(50), Some(5), Some(2 * 4 + 2 * 2)));
    assert!(stats.tasks.iter().all(|task| task.work.time <= stats.wall * 2));
    // A kernel's count includes all tasks of its op.
    let sum = |op: &str| {
        let tasks = stats.tasks.iter().filter(|task| task.label.split_whitespace().next() == Some(op));
        tasks.map(|task| (task.work.items, task.work.time)).fold((0, Duration::ZERO), |a, b| (a.0 + b.0, a.1 + b.1))
    };
    for op in ["embed", "head", "q"] {
        let kernels = stats.kernels.iter().filter(|kernel| kernel.op == op).map(|kernel| kernel.work);
        let work = kernels.fold((0, Duration::ZERO), |sum, work| (sum.0 + work.items, sum.1 + work.time));
        assert_eq!(work, sum(op), "{op}");
    }
    let after = engine.take_stats();
    assert!(after.steps == 0 && after.kernels.is_empty(), "{after:?}");
}

#[test]
fn single_thread_steps_give_equal_bits_without_barriers() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let tokens = prompt(60);
    let sizes = [1, 3, 13, 2, 1];
    let expected = bits(&all_logits(&mut native(&folder, &plan, 2), &tokens, &sizes));
    let runs = |plan: &Plan<Kernel>, which: &dyn Fn(usize, u32) -> bool| {
        let is = |(i, step): &(usize, &Step)| matches!(step, Step::Run { alone, .. } if which(*i, *alone));
        plan.steps.iter().enumerate().filter(is).count() as u64
    };
    // Single-thread steps are all steps, every second step, or all but the last. Their limit is one
    // row, two rows or any number.
    for rows in [1, 2, MAX_TOKENS] {
        for which in [|_: usize| true, |i: usize| i.is_multiple_of(2), |i: usize| i < 12] {
            let alone = tiny::with_single_thread_limits(&plan, |i| if which(i) { rows } else { 0 });
            // There is no barrier before the first step or after the last.
            let shared = runs(&alone, &|i, rows| i == 0 || rows == 0);
            let few = shared - u64::from(!which(plan.steps.len() - 1));
            let many = if rows == MAX_TOKENS { few } else { runs(&alone, &|_, _| true) - 1 };
            // All numbers of threads use the same code, so it is generated only once.
            let options = EngineOptions { stats: true, ..options(5, BackendKind::Native) };
            let mut engine = Engine::load(alone, &folder.0, &options).unwrap();
            for threads in [1, 2, 3, 5] {
                engine.use_threads(threads).unwrap();
                engine.reset();
                assert_eq!(bits(&all_logits(&mut engine, &tokens, &sizes)), expected, "{threads} threads, {rows} rows");
                let stats = engine.take_stats();
                assert!(stats.tasks.iter().all(|task| task.work.items > 0 && !task.work.time.is_zero()), "{stats:?}");
                let mut barriers = |tokens: &[u32]| {
                    engine.step(tokens, &(0..tokens.len() as u32).collect::<Vec<_>>()).unwrap();
                    engine.take_stats().barriers / threads as u64
                };
                assert_eq!((barriers(&[1]), barriers(&[1, 2, 3])), (few, many), "{threads} threads, {rows} rows");
            }
        }
    }
}

#[test]
fn steps_without_outputs_have_fewer_barriers() {
    let folder = Folder::new();
    let options = EngineOptions { stats: true, ..options(2, BackendKind::Native) };
    let mut engine = Engine::load(tiny::plan(&folder.0), &folder.0, &options).unwrap();
    let mut barriers = |rows: &[u32]| {
        engine.step(&[1, 2], rows).unwrap();
        engine.take_stats().barriers / 2
    };
    // These barriers belong to the steps for outputs: the selection of rows, their norm, and the
    // head.
    assert_eq!(barriers(&[0, 1]) - barriers(&[]), 2);
}

#[test]
fn columns_are_split_when_items_are_few_per_thread() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let [mut one, mut four] = [1, 4].map(|threads| {
        let options = EngineOptions { stats: true, ..options(threads, BackendKind::Native) };
        Engine::load(plan.clone(), &folder.0, &options).unwrap()
    });
    let items = |engine: &mut Engine, tokens: u32, label: &str| {
        engine.reset();
        engine.prefill(&prompt(tokens)).unwrap();
        let stats = engine.take_stats();
        stats.tasks.iter().find(|task| task.label == label).map_or(0, |task| task.work.items)
    };
    // Each of a token's two experts has two columns with two bands each. These are 8 items, fewer
    // than the minimum for a second thread.
    assert_eq!([items(&mut one, 1, "swiglu"), items(&mut four, 1, "swiglu")], [8, 8]);
    assert_eq!([items(&mut one, 1, "q"), items(&mut four, 1, "q")], [4, 4]);
    // A kernel for more rows never divides its columns. For five tokens, the experts have as many
    // columns as one thread should get.
    assert_eq!([5, 6].map(|tokens| items(&mut four, tokens, "o")), [4, 2]);
    let of_five = [items(&mut one, 5, "swiglu"), items(&mut four, 5, "swiglu")];
    assert!(of_five[0] >= 8 && of_five[1] == 2 * of_five[0], "{of_five:?}");
}

#[test]
fn plan_file_round_trips() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let path = folder.0.join("tiny.ixp");
    file::write(&path, &plan).unwrap();
    file::write(&path, &plan).unwrap();
    let read = file::read(&path).unwrap();
    assert_eq!(read, plan);
    // No temporary file remains.
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2);
    let mut engine = Engine::load(read, &folder.0, &EngineOptions::default()).unwrap();
    assert_eq!((engine.tokenizer(), engine.architecture()), (&[1, 2, 3][..], "tiny"));
    engine.step(&[1], &[0]).unwrap();
}

#[test]
fn plans_not_fitting_machine_or_model_are_errors() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let load = |plan: &Plan<Kernel>, options: EngineOptions| Engine::load(plan.clone(), &folder.0, &options).map(drop);
    let context = |context| EngineOptions { context: Some(context), ..EngineOptions::default() };
    assert!(matches!(load(&plan, context(0)), Err(LoadError::Context { found: 0, max: CONTEXT })));
    assert!(matches!(load(&plan, context(101)), Err(LoadError::Context { found: 101, .. })));
    load(&plan, context(1)).unwrap();
    let threads = |threads| EngineOptions { threads: Some(threads), ..EngineOptions::default() };
    assert!(matches!(load(&plan, threads(0)), Err(LoadError::Threads { found: 0 })));
    assert!(matches!(load(&plan, threads(1 << 20)), Err(LoadError::Threads { .. })));
    let other = Plan { target: "z80".into(), ..plan.clone() };
    let error = load(&other, EngineOptions::default()).unwrap_err();
    assert!(error.to_string().contains("\"z80\"") && error.to_string().contains("avx2"), "{error}");

    let path = folder.0.join("tiny.weights");
    let bytes = std::fs::read(&path).unwrap();
    let mut changed = bytes.clone();
    changed[20] ^= 1;
    std::fs::write(&path, &changed).unwrap();
    let error = load(&plan, EngineOptions::default());
    assert!(matches!(error, Err(LoadError::OtherModel { what: "the checksum of its header", .. })));
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(load(&plan, EngineOptions::default()), Err(LoadError::OtherModel { what: "its length", .. })));
    std::fs::write(&path, vec![b'x'; bytes.len()]).unwrap();
    assert!(matches!(load(&plan, EngineOptions::default()), Err(LoadError::NotAModel { .. })));
    std::fs::write(&path, &bytes).unwrap();
    let mut unknown = plan.clone();
    (unknown.files[0].header_bytes, unknown.files[0].header_crc) = (0, 0);
    let error = load(&unknown, EngineOptions::default());
    assert!(matches!(error, Err(LoadError::PartOfHeader { found: 0, expected: 24, .. })));
    std::fs::remove_file(&path).unwrap();
    let error = load(&plan, EngineOptions::default());
    assert!(matches!(error, Err(LoadError::NoModelFile { path: found }) if found == path));
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(load(&plan, EngineOptions::default()), Err(LoadError::ModelFile { .. })));
}

/// Tests that a plan variant replaces another one of the same model. Its kernels may be numbered
/// differently.
#[test]
fn plan_variant_of_the_same_model_replaces_another() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let mut other = plan.clone();
    let Output::Logits { softmax } = &mut other.output else { panic!("a model") };
    other.kernels.push(plan.kernels[softmax.0 as usize].clone());
    *softmax = KernelId(plan.kernels.len() as u32);
    let tokens = prompt(9);
    let mut engine = native(&folder, &plan, 2);
    let expected = bits(&all_logits(&mut engine, &tokens, &[8, 1]));
    let mut variant = engine.variant(&other).unwrap();
    for _ in 0..2 {
        engine.exchange(&mut variant).unwrap();
        engine.truncate(0);
        assert_eq!(bits(&all_logits(&mut engine, &tokens, &[8, 1])), expected);
    }

    let mut second = native(&folder, &plan, 2);
    assert!(matches!(second.exchange(&mut variant), Err(LoadError::OtherPlan { streamed: false })));
    other.architecture.push('2');
    assert!(matches!(engine.variant(&other), Err(LoadError::OtherPlan { streamed: false })));
}

/// Tests that replacing a plan stays within the budget, although the activations of the new plan
/// may need more memory.
#[test]
fn plan_variant_stays_within_the_budget() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let with = |memory| EngineOptions { memory: Some(memory), ..options(1, BackendKind::Native) };
    let Err(LoadError::Larger { needed, .. }) = Engine::load(plan.clone(), &folder.0, &with(1)) else {
        panic!("a byte is enough")
    };
    // Memory that the process uses outside the engine also counts, and it grows during the test.
    let budget = needed + (1 << 30);
    let mut engine = Engine::load(plan.clone(), &folder.0, &with(budget)).unwrap();
    let mut other = plan.clone();
    other.arena_bytes += 1 << 31;
    let error = engine.variant(&other).unwrap_err();
    assert!(matches!(error, LoadError::Larger { budget: found, needed } if found == budget && needed > budget));
    other.arena_bytes = plan.arena_bytes + 4096;
    engine.variant(&other).unwrap();
}
