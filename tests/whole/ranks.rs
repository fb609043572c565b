//! Graphs and plans of several ranks. Together, the ranks give the logits of the whole model.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::support::server::{Server, completion};
use crate::support::{demo_model, engines, ixc, scratch, shared, stderr, stdout, target_without_tiles};
use ixc::architectures::FileWeights;
use ixc::compile;
use ixc::ir::graph::Module;
use ixc::ir::graph::interpret::ranks::RankInterpreter;
use ixc::ir::graph::interpret::{Interpreter, Value, WeightSource};
use ixc::ir::kernel::{BufferKind, Kernel};
use ixc::ir::plan::{BufferId, Exchange, Halves, Output, Plan, Step};
use ixc::model::Model;
use ixc::passes::manager;
use ixc::passes::options::OptionSet;
use ixc::passes::pass::Context;
use ixc::passes::shard::{Division, ShardOptions};
use ixc::ranks::compile_ranks;
use ixc::runtime::engine::{self, Addition, Engine, FIRST};
use ixc::runtime::file::PlanFile;
use ixc::runtime::load::LoadError;
use ixc::runtime::stats::ExchangeCounts;
use ixc::runtime::streaming::store::Config;
use ixc::runtime::traffic::step_traffic;
use ixc::targets::Target;
use ixc::transport::{Transport, local};
use ixc_testing::nmse::nmse;

/// Number of rows of the first step, and of two more steps.
const STEPS: [usize; 3] = [5, 1, 2];

/// Bound of the error if sums have another order. An f32 sum of a few parts has a relative error of
/// 2^-24. A few layers of norms amplify the error by less than 1000.
const BOUND: f64 = 1e-10;

/// Bound of the error after `fuse`, which rounds activations to 8 bits. If a sum has another order,
/// an activation can be rounded to the next step, which is 1/127 of the largest activation of its
/// block.
const FUSED_BOUND: f64 = 1e-5;

/// Returns the demo model and the golden models with experts, latent attention or a delta net.
fn models() -> Vec<PathBuf> {
    let names = ["mixtral", "qwen3moe", "deepseek2", "qwen3next"];
    let golden = names.iter().filter_map(|name| shared(&format!("golden/models/{name}-q4_k_m.gguf")));
    [demo_model()].into_iter().chain(golden).collect()
}

/// Returns the graph of a rank, after these passes.
fn graph(model: &Model, options: &ShardOptions, passes: &[&str]) -> Module {
    let context = Context::new(Target::AVX2).with(options);
    manager::run_pipeline(model.arch.module.clone(), passes, &context).unwrap()
}

/// Returns the arguments of each step: token ids, positions and output rows.
fn steps(vocabulary: u32) -> Vec<[Vec<u32>; 3]> {
    steps_of(STEPS, vocabulary)
}

/// Returns the arguments of steps that have these numbers of rows.
fn steps_of(rows: [usize; 3], vocabulary: u32) -> Vec<[Vec<u32>; 3]> {
    let mut before = 0;
    let step = |rows: usize| {
        let positions: Vec<u32> = (before..).take(rows).collect();
        before += rows as u32;
        let ids = positions.iter().map(|i| (i * i * 7 + i * 3 + 1) % vocabulary).collect();
        [ids, positions, (0..rows as u32).collect()]
    };
    rows.map(step).into()
}

/// Returns the logits of ranks that are interpreted. All ranks that return logits must agree.
fn logits(model: &Model, modules: &[Module], steps: &[[Vec<u32>; 3]]) -> Vec<f32> {
    let weights: Vec<FileWeights<'_>> = modules.iter().map(|module| FileWeights::new(&model.gguf, module)).collect();
    let ranks = modules.iter().zip(&weights).map(|(module, weights)| (module, weights as &dyn WeightSource));
    let mut group = RankInterpreter::new(ranks).unwrap();
    let mut logits = Vec::new();
    for [ids, positions, rows] in steps {
        let mut results = group.step(ids, positions, rows).unwrap();
        let first = results.remove(0);
        assert!(results.iter().all(|other| other.is_empty() || *other == first), "the ranks return other logits");
        let [Value::F32 { data, .. }] = &first[..] else { panic!("rank 0 returns {first:?}") };
        logits.extend(data);
    }
    logits
}

#[test]
fn ranks_together_give_the_logits_of_the_whole_model() {
    for path in models() {
        let model = Model::open(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy();
        let steps = steps(model.arch.hyper.vocabulary as u32);
        for passes in [&["canonicalise", "shard"][..], &["canonicalise", "shard", "fuse"]] {
            let whole = graph(&model, &ShardOptions::default(), passes);
            let weights = FileWeights::new(&model.gguf, &whole);
            let mut interpreter = Interpreter::new(&whole, &weights).unwrap();
            let run = |[ids, positions, rows]: &[Vec<u32>; 3]| interpreter.step(ids, positions, rows).unwrap();
            let right: Vec<f32> = steps.iter().flat_map(run).collect();
            for (ranks, by) in [2, 4].into_iter().flat_map(|ranks| Division::ALL.map(|by| (ranks, by))) {
                // Each rank needs at least one layer.
                if by == Division::Layers && model.arch.hyper.layers.len() < ranks as usize {
                    continue;
                }
                let of_rank = |rank| graph(&model, &ShardOptions { ranks, rank, by }, passes);
                let modules: Vec<Module> = (0..ranks).map(of_rank).collect();
                let found = logits(&model, &modules, &steps);
                let error = nmse(&found, &right);
                println!("{name}, {ranks} ranks by {}, {} passes: {error:.1e}", by.word(), passes.len());
                match by {
                    // If ranks have ranges of layers, sums have the same order as in the whole
                    // graph.
                    Division::Layers => assert!(found == right, "{name} {ranks}: {error:e}"),
                    Division::Experts | Division::Tensors => {
                        let bound = if passes.contains(&"fuse") { FUSED_BOUND } else { BOUND };
                        assert!(error <= bound, "{name} {ranks}: {error:e}");
                    }
                }
                let elements = |module: &Module| -> u64 {
                    module.weights.iter().map(|weight| weight.shape.iter().product::<u64>()).sum()
                };
                let all = elements(&whole);
                assert!(modules.iter().all(|module| elements(module) < all), "{name}: a rank has all weights");
            }
        }
    }
}

/// Compiles the plans of all ranks. If `experts` is set, it limits the memory for experts, so that
/// they are streamed from the drive.
fn plans(model: &Model, ranks: u32, by: Division, experts: Option<u64>) -> PlanFile {
    plans_with(model, ranks, by, experts, OptionSet::default())
}

/// Compiles the plans of all ranks with options of passes.
fn plans_with(model: &Model, ranks: u32, by: Division, experts: Option<u64>, passes: OptionSet) -> PlanFile {
    let target = Some(Target::AVX2);
    let options = compile::CompileOptions { target, expert_memory: experts, passes, ..Default::default() };
    let mut plans = compile_ranks(model, &options, &engine::EngineOptions::default(), ranks, by).unwrap();
    let other_ranks = plans.split_off(1);
    PlanFile { other_ranks, ..PlanFile::new(plans.remove(0)) }
}

/// Loads all ranks in this process. `budget` is the memory for streamed experts; 0 keeps all
/// experts in memory.
fn load(file: PlanFile, threads: usize, budget: u64) -> Result<Engine, LoadError> {
    let stream = Config { budget, ..Config::default() };
    let backend = engines::native(Target::AVX2);
    let options = engine::EngineOptions {
        threads: Some(threads),
        sequences: 2,
        stream,
        backend,
        ..engine::EngineOptions::default()
    };
    Engine::load_file(file, Path::new(""), &options)
}

/// Returns the logits of all steps. Between the steps, the sequence is truncated and copied.
fn engine_logits(engine: &mut Engine, steps: &[[Vec<u32>; 3]]) -> Vec<u32> {
    let mut logits = Vec::new();
    for [ids, _, rows] in steps {
        logits.extend(engine.step(ids, rows).unwrap());
    }
    let (first, all) = (&steps[0], engine.position());
    let other = engine.add_sequence().unwrap();
    assert_eq!(engine.copy_sequence(FIRST, other, all).unwrap(), all);
    let additions = [FIRST, other].map(|sequence| Addition { sequence, tokens: &first[0], outputs: &first[2] });
    logits.extend(engine.step_batch(&additions).unwrap());
    // A sequence with a recurrent state can only return to the beginning, or to the end of a step.
    let left = engine.truncate(all);
    logits.extend(engine.step(&first[0], &first[2]).unwrap());
    logits.push(left as f32);
    engine.remove_sequence(other);
    engines::bits(&logits)
}

/// Returns the exchanges of rank 0 in [`engine_logits`], as its plan states them.
fn planned(file: &PlanFile, steps: &[[Vec<u32>; 3]]) -> ExchangeCounts {
    let first = steps[0][0].len();
    let rows = steps.iter().map(|[ids, ..]| ids.len()).chain([2 * first, first]);
    let mut counts = ExchangeCounts::default();
    rows.for_each(|rows| counts += step_traffic(&file.plan, rows as u32, rows as u32));
    counts
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|bits| f32::from_bits(*bits)).collect()
}

/// Returns the logits of the interpreted model, whose activations are not rounded.
fn exact(model: &Model, steps: &[[Vec<u32>; 3]]) -> Vec<f32> {
    let whole = graph(model, &ShardOptions::default(), &["canonicalise"]);
    let weights = FileWeights::new(&model.gguf, &whole);
    let mut interpreter = Interpreter::new(&whole, &weights).unwrap();
    steps.iter().flat_map(|[ids, positions, rows]| interpreter.step(ids, positions, rows).unwrap()).collect()
}

/// Returns the bound of the error between ranks and the interpreter, from the error of a single
/// engine. Both errors come from the same number of roundings of activations and cached keys. If a
/// sum has another order, some activations are rounded the other way, which gives an error of the
/// same size.
fn bound(usual: f64) -> f64 {
    2.0 * usual + FUSED_BOUND
}

/// Bytes of memory for the experts of a rank, less than all its experts need.
const EXPERTS: u64 = 2 << 20;

#[test]
fn engines_of_ranks_give_the_logits_of_one_engine() {
    for path in models() {
        let model = Model::open(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy();
        let steps = steps(model.arch.hyper.vocabulary as u32);
        let options = compile::CompileOptions { target: Some(Target::AVX2), ..Default::default() };
        let whole = compile::compile(&model, &options).unwrap().plan;
        let right = engine_logits(&mut load(PlanFile::new(whole), 2, 0).unwrap(), &steps);
        let exact = exact(&model, &steps);
        let error_of = |found: &[u32]| nmse(&floats(&found[..exact.len()]), &exact);
        let usual = error_of(&right);
        for (ranks, by) in [2, 4].into_iter().flat_map(|ranks| Division::ALL.map(|by| (ranks, by))) {
            if by == Division::Layers && model.arch.hyper.layers.len() < ranks as usize {
                continue;
            }
            let how = format!("{name}, {ranks} ranks by {}", by.word());
            let file = plans(&model, ranks, by, None);
            let planned = planned(&file, &steps);
            let mut engine = load(file, 1, 0).unwrap();
            let found = engine_logits(&mut engine, &steps);
            let exchanged = engine.take_stats().exchanged;
            assert!(exchanged.messages > 0, "{how}: no messages");
            assert_eq!(ExchangeCounts { waited: Duration::ZERO, ..exchanged }, planned, "{how}");
            let error = error_of(&found);
            println!("{how}: {error:.1e}, one engine: {usual:.1e}");
            match by {
                Division::Layers => assert!(found == right, "{how}: {error:e}"),
                Division::Experts | Division::Tensors => assert!(error <= bound(usual), "{how}: {error:e}"),
            }
            if ranks == 2 {
                let threads = engine_logits(&mut load(plans(&model, ranks, by, None), 2, 0).unwrap(), &steps);
                assert!(threads == found, "{how}: other bits with 2 threads");
            }
            // The columns of an expert's matrix are not a contiguous range of a file, so they
            // cannot be streamed.
            if ranks == 2 && by != Division::Tensors {
                let file = plans(&model, ranks, by, Some(1));
                assert!(!file.plan.expert_groups.is_empty() || !file.other_ranks[0].expert_groups.is_empty(), "{how}");
                let streamed = engine_logits(&mut load(file, 2, ranks as u64 * EXPERTS).unwrap(), &steps);
                assert!(streamed == found, "{how}: other bits with streamed experts");
            }
        }
    }
}

/// Compiles the plans of all ranks. Sums over ranks are computed in halves of the rows in steps of
/// at least `rows` tokens.
fn plans_in_halves(model: &Model, ranks: u32, by: Division, experts: Option<u64>, rows: u32) -> PlanFile {
    let mut passes = OptionSet::default();
    manager::set(&mut passes, &format!("steps.halves={rows}")).unwrap();
    plans_with(model, ranks, by, experts, passes)
}

/// Returns, for each sum over ranks in halves in a plan, how its steps are divided.
fn halves(plan: &Plan<Kernel>) -> Vec<Halves> {
    let halves = plan.steps.iter().filter_map(|step| match step {
        Step::Exchange(exchange) => exchange.halves(),
        _ => None,
    });
    halves.collect()
}

#[test]
fn sums_in_halves_of_the_rows_change_no_bit() {
    // With 150 rows, each half has several chunks of rows. A step with 1 row has no halves.
    const ROWS: [usize; 3] = [150, 1, 7];
    let (models, mut with_steps_before) = (models(), 0);
    for path in &models {
        let model = Model::open(path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy();
        let steps = steps_of(ROWS, model.arch.hyper.vocabulary as u32);
        for (ranks, by, experts) in [
            (2, Division::Experts, None),
            (2, Division::Experts, Some(1)),
            (2, Division::Tensors, None),
            (3, Division::Experts, None),
        ] {
            let how = format!("{name}, {ranks} ranks by {}, streamed: {}", by.word(), experts.is_some());
            let budget = experts.map_or(0, |_| u64::from(ranks) * EXPERTS);
            let run = |file: PlanFile| {
                let planned = planned(&file, &steps);
                let mut engine = load(file, 2, budget).unwrap();
                let logits = engine_logits(&mut engine, &steps);
                let exchanged = engine.take_stats().exchanged;
                assert_eq!(ExchangeCounts { waited: Duration::ZERO, ..exchanged }, planned, "{how}");
                (logits, exchanged.messages)
            };
            let (expected, messages) = run(plans(&model, ranks, by, experts));
            let file = plans_in_halves(&model, ranks, by, experts, 7);
            let halves = halves(&file.plan);
            // The weights of some models cannot be cut by columns. The ranks of such models
            // exchange products instead.
            assert!(by == Division::Tensors || halves.iter().any(|halves| halves.after > 0), "{how}: {halves:?}");
            with_steps_before += usize::from(halves.iter().any(|halves| halves.before > 0));
            let (found, in_halves) = run(file);
            assert!(found == expected, "{how}: other bits in halves");
            assert!(halves.is_empty() || in_halves > messages, "{how}: no halves in {messages} messages");
        }
    }
    // In the demo model, no sum has steps before it.
    assert!(with_steps_before > 0 || models.len() == 1, "no plan has steps before a sum");
}

#[test]
fn hostile_plans_with_sums_in_halves_are_refused() {
    let model = Model::open(&demo_model()).unwrap();
    let is_in_halves = |step: &Step| matches!(step, Step::Exchange(exchange) if exchange.halves().is_some_and(|halves| halves.after > 0));
    let refused = |expected: &str, ranks: &[usize], edit: &dyn Fn(&mut Plan<Kernel>, usize)| {
        let mut file = plans_in_halves(&model, 2, Division::Experts, None, 7);
        for &rank in ranks {
            let plan = if rank == 0 { &mut file.plan } else { &mut file.other_ranks[rank - 1] };
            let at = plan.steps.iter().position(is_in_halves).unwrap();
            edit(plan, at);
        }
        let error = load(file, 1, 0).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}; expected {expected}");
    };
    let halves = |edit: fn(&mut Halves)| {
        move |plan: &mut Plan<Kernel>, at: usize| match &mut plan.steps[at] {
            Step::Exchange(Exchange::SumHalves { halves, .. }) => edit(halves),
            step => panic!("{step:?}"),
        }
    };
    // Exchanges of ranks with different halves do not match, so both ranks get the wrong number
    // here.
    refused(
        "the number of tokens from which a sum is computed in halves is 1",
        &[0, 1],
        &halves(|halves| halves.rows = 1),
    );
    refused(
        "the number of steps before a sum in halves is 4294967295",
        &[0],
        &halves(|halves| halves.before = u32::MAX),
    );
    refused("expected tasks that compute each token from its own rows", &[0], &halves(|halves| halves.before += 1));
    refused(
        "expected steps of the sum's layer that no other sum divides into halves",
        &[0],
        &halves(|halves| halves.before = 64),
    );
    refused("does not match those of the other ranks", &[1], &halves(|halves| halves.rows += 1));
    refused("expected separate memory for each buffer", &[0], &|plan, at| {
        let Step::Exchange(exchange) = plan.steps[at] else { panic!("no exchange") };
        let Step::Run { tasks, .. } = &plan.steps[at + 1] else { panic!("no tasks") };
        let sum = exchange.result().unwrap();
        // No earlier step uses the buffer that this task writes.
        let kernel = &plan.kernels[tasks[0].variants[0].kernel.0 as usize];
        let args = tasks[0].args.iter().zip(&kernel.buffers);
        let mut outputs = args.filter(|(_, buffer)| matches!(buffer.kind, BufferKind::Write));
        let written = outputs.find_map(|(arg, _)| arg.source.arena()).unwrap();
        plan.buffers[written.0 as usize].offset = plan.buffers[sum.0 as usize].offset;
    });
    refused("expected only tasks in the steps that compute halves of the rows", &[0], &|plan, at| {
        plan.steps.insert(at + 1, Step::Release { group: 0 });
    });
    // If layers ran separately, exchanges would stay open. A rank's plan may therefore not have
    // such layers.
    refused("expected a whole model, not the part of one that runs on its own", &[1], &|plan, _| {
        plan.output = Output::Experts { width: 8 };
    });
}

/// Returns the saved state of an engine's first sequence.
fn save(engine: &Engine, tokens: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let count = engine.save_state(FIRST, tokens, None, &mut bytes).unwrap();
    assert_eq!(count, bytes.len() as u64);
    bytes
}

#[test]
fn saved_sequences_continue_on_all_ranks() {
    let prompt = [1, 7, 3, 9, 5];
    // The demo model's state has only cache slots. A model with a delta net also has a state
    // without positions.
    for path in models().into_iter().filter(|path| path == &demo_model() || path.to_string_lossy().contains("next")) {
        let model = Model::open(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy();
        for (ranks, by) in [(2, Division::Layers), (2, Division::Experts), (3, Division::Experts)] {
            let how = format!("{name}, {ranks} ranks by {}", by.word());
            let engine = || load(plans(&model, ranks, by, None), 1, 0).unwrap();
            let mut first = engine();
            first.step(&prompt, &[4]).unwrap();
            let saved = save(&first, &prompt);
            let expected = engines::bits(first.step(&[2], &[0]).unwrap());
            let mut second = engine();
            let loaded = second.load_state(FIRST, &mut &saved[..], saved.len() as u64).unwrap();
            assert_eq!((loaded.tokens, second.position()), (prompt.to_vec(), 5), "{how}");
            assert_eq!(engines::bits(second.step(&[2], &[0]).unwrap()), expected, "{how}");
            // A file whose last part is damaged leaves an empty sequence on all ranks.
            let mut damaged = saved.clone();
            let end = damaged.len() - 5;
            damaged[end] ^= 1;
            let error = second.load_state(FIRST, &mut &damaged[..], saved.len() as u64).unwrap_err().to_string();
            let refusal = format!("rank {} cannot save or load its part: the saved state has checksum", ranks - 1);
            assert!(error.starts_with(&refusal), "{how}: {error}");
            assert_eq!(second.position(), 0, "{how}");
            second.step(&prompt, &[4]).unwrap();
            assert_eq!(engines::bits(second.step(&[2], &[0]).unwrap()), expected, "{how}: after a damaged file");
        }
    }
}

#[test]
fn saved_sequences_of_other_ranks_are_refused() {
    let model = Model::open(&demo_model()).unwrap();
    let of_two = || load(plans(&model, 2, Division::Experts, None), 1, 0).unwrap();
    let options = compile::CompileOptions { target: Some(Target::AVX2), ..Default::default() };
    let of_one = || load(PlanFile::new(compile::compile(&model, &options).unwrap().plan), 1, 0).unwrap();
    let saved = |mut engine: Engine| {
        engine.step(&[1, 2, 3], &[2]).unwrap();
        save(&engine, &[1, 2, 3])
    };
    let refused = |mut engine: Engine, bytes: &[u8], expected: &str| {
        let error = engine.load_state(FIRST, &mut &bytes[..], bytes.len() as u64).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(engine.position(), 0);
    };
    let (two, one) = (saved(of_two()), saved(of_one()));
    refused(of_one(), &two, "the state was saved on 2 ranks; this plan is for 1");
    refused(of_two(), &one, "the state was saved on 1 ranks; this plan is for 2");
    refused(of_two(), &two[..two.len() - 1], "the saved state has ");
    let of_layers = load(plans(&model, 2, Division::Layers, None), 1, 0).unwrap();
    refused(of_layers, &two, "the state was saved by another plan");
}

/// Changes the first exchange of a plan for which `change` returns true.
fn change(plan: &mut Plan<Kernel>, change: impl Fn(&mut Exchange) -> bool) {
    let exchanges = plan.steps.iter_mut().filter_map(|step| match step {
        Step::Exchange(exchange) => Some(exchange),
        _ => None,
    });
    assert!(exchanges.into_iter().any(change), "no such exchange");
}

#[test]
fn hostile_plans_of_ranks_are_refused() {
    let model = Model::open(&demo_model()).unwrap();
    let layers = || plans(&model, 2, Division::Layers, None);
    let experts = || plans(&model, 2, Division::Experts, None);
    let refused = |file: PlanFile, expected: &str| {
        let error = load(file, 1, 0).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}; expected {expected}");
    };
    let send_to = |rank: u32| {
        let mut file = layers();
        change(&mut file.plan, |exchange| match exchange {
            Exchange::Send { to, .. } => {
                *to = rank;
                true
            }
            _ => false,
        });
        file
    };
    refused(send_to(2), "number of the other rank is 2, must be in 0..=1");
    refused(send_to(0), "expected a message to or from another rank");
    let mut file = layers();
    file.other_ranks.clear();
    refused(file, "found 1 ranks; the plan is for 2");
    let mut file = layers();
    std::mem::swap(&mut file.plan, &mut file.other_ranks[0]);
    refused(file, "the file has the plan of rank 1; expected the plan of rank 0");
    let mut file = experts();
    change(&mut file.plan, |exchange| match exchange {
        Exchange::Sum { part, .. } => {
            *part = BufferId(u32::MAX);
            true
        }
        _ => false,
    });
    refused(file, "buffer 4294967295 does not exist");
    for plan in [0, 1] {
        let mut file = experts();
        let plan = if plan == 0 { &mut file.plan } else { &mut file.other_ranks[0] };
        change(plan, |exchange| match *exchange {
            Exchange::Sum { part, .. } => {
                *exchange = Exchange::Sum { part, sum: part };
                true
            }
            _ => false,
        });
        refused(file, "expected a result with the rows of all parts, in memory of its own");
    }
    // The ranks exchange rows of another length.
    let mut file = layers();
    file.other_ranks[0].buffers.iter_mut().for_each(|buffer| buffer.row_bytes *= 2);
    refused(file, "exchange 0 of rank 0 does not match those of the other ranks");
    let mut file = experts();
    file.plan.ranks = None;
    refused(file, "found 2 ranks; the plan is for 1");
}

/// Loads one rank with a context length, and a connection to the other ranks.
fn load_rank(file: PlanFile, transport: local::LocalTransport, context: u64) -> Result<Engine, LoadError> {
    let (transport, backend): (Arc<dyn Transport>, _) = (Arc::new(transport), engines::native(Target::AVX2));
    let (threads, context) = (Some(1), Some(context));
    let options = engine::EngineOptions { threads, context, backend, transport: Some(transport), ..Default::default() };
    Engine::load_file(file, Path::new(""), &options)
}

#[test]
fn a_rank_that_differs_or_ends_ends_all_ranks() {
    let model = Model::open(&demo_model()).unwrap();
    let run = |context: u64, steps: usize| {
        let [first, second] = local::group(2).try_into().unwrap();
        let file = || plans(&model, 2, Division::Experts, None);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut engine = load_rank(file(), second, context).map_err(|error| error.to_string())?;
                match steps {
                    // This rank ends without announcing a reason.
                    0 => Ok(()),
                    _ => engine.follow().map_err(|error| error.to_string()),
                }
            });
            let own = load_rank(file(), first, 64).map_err(|error| error.to_string());
            let own = own.and_then(|mut engine| {
                (0..steps.max(1))
                    .try_for_each(|_| engine.step(&[1, 2], &[1]).map(drop).map_err(|error| error.to_string()))
            });
            (own, other.join().unwrap())
        })
    };
    assert_eq!(run(64, 3), (Ok(()), Ok(())));
    let (own, other) = run(128, 3);
    let expected = "rank 1 has another context than rank 0; start all ranks with the same program, plan and options";
    assert_eq!(own, Err(expected.to_string()));
    assert_eq!(other, Err(format!("rank 0 ended the run: {expected}")));
    let (own, other) = run(64, 0);
    assert_eq!((own.unwrap_err(), other), ("rank 1 ended the run: it is finished".to_string(), Ok(())));
}

#[test]
fn one_file_has_the_plans_of_all_ranks() {
    let folder = scratch("ranks");
    let plan = folder.join("plan.ixp");
    let text = |arguments: &[&str]| stdout(ixc(arguments.iter().copied()));
    let prompt = ["-p", "one two three", "-n", "8", "--temp", "0", "-t", "1"];
    let whole = text(&[&["run"], &prompt[..]].concat());
    for shard in ["layers", "experts"] {
        let path = plan.to_str().unwrap();
        let report = text(&["compile", "--ranks", "2", "--shard", shard, "--force", "-o", path]);
        assert!(report.contains(&format!("2 ranks by {shard}")) && report.contains("rank 1: "), "{report}");
        let of_ranks = text(&[&["run", path], &prompt[..]].concat());
        if shard == "layers" {
            assert_eq!(of_ranks, whole);
        }
    }
    let arguments = ["compile", "--ranks", "2", "--shard", "auto", "--machines", "round", "--force", "-o"];
    let report = text(&[&arguments[..], &[plan.to_str().unwrap()]].concat());
    let reason = report.lines().find(|line| line.contains("predicted time of a token on 2 ranks of round: "));
    let reason = reason.unwrap_or_else(|| panic!("{report}"));
    assert!(["tensors ", "experts ", "layers ", "bound: "].iter().all(|word| reason.contains(word)), "{reason}");
    // The file ends within the plan of a rank, or before it.
    let bytes = std::fs::read(&plan).unwrap();
    for length in [bytes.len() - 1, bytes.len() / 2] {
        std::fs::write(&plan, &bytes[..length]).unwrap();
        let output = ixc(["run", plan.to_str().unwrap(), "-p", "one"]).output().unwrap();
        assert!(stderr(&output).contains("is cut short"), "{}", stderr(&output));
    }
}

#[test]
fn metrics_of_a_server_have_numbers_of_each_rank() {
    let plan = scratch("rank-metrics").join("plan.ixp");
    let plan = plan.to_str().unwrap();
    // Uses the same target as the servers of other tests.
    let target = target_without_tiles().name();
    stdout(ixc(["compile", "--ranks", "2", "--shard", "experts", "--target", target, "-o", plan]));
    let server = Server::for_model(plan, &["-c", "256"]);
    let request = serde_json::json!({"prompt": "one two three", "max_tokens": 4, "temperature": 0});
    assert_eq!(server.post("/v1/completions", &request).0, 200);
    let number = |name: &str, rank: &str| server.metrics().sum(&format!("ixc:rank_{name}"), &[("rank", rank)]);
    // The server collects these numbers once a second.
    server.until("the numbers of the steps", |_| number("messages_total", "0") > 0.0);
    for name in ["exchanges_total", "messages_total", "sent_bytes_total", "wait_seconds_total", "memory_bytes"] {
        assert!(["0", "1"].iter().all(|rank| number(name, rank) > 0.0), "{name}");
    }
    assert_eq!(number("sent_bytes_total", "0"), number("sent_bytes_total", "1"));
}

#[test]
fn dump_prints_graph_and_plan_of_a_rank() {
    let set = ["--set", "shard.ranks=2", "--set", "shard.rank=1", "--set", "shard.by=experts"];
    let of_rank = stdout(ixc(["dump", "--after", "shard"].iter().chain(&set)));
    assert!(of_rank.contains("ranks.begin {rank = 1, ranks = 2} : token[1, 2]"), "{of_rank}");
    assert!(
        of_rank.contains("shard = \"blk.0.ffn_up_exps.weight\", dim = 0, of = 16, ranges = \"8..16\""),
        "{of_rank}"
    );
    let plan = stdout(ixc(["dump", "--stage", "plan"].iter().chain(&set)));
    assert!(plan.contains("rank 1 of 2, by experts\n"), "{plan}");
    assert!(plan.contains(" of all ranks to "), "{plan}");
}

/// Checks that the server reports the loss of a rank's group, and ends. Without its group, a rank
/// cannot compute steps.
#[test]
fn server_ends_with_its_group() {
    let folder = scratch("ranks_served");
    let (model, plan) = (folder.join("model.gguf"), folder.join("plan.ixp"));
    std::fs::copy(demo_model(), &model).unwrap();
    let mut compile = ixc(["compile", "--ranks", "2", "--shard", "layers", "--no-weights", "-o"]);
    compile.arg(&plan).arg(&model).args(["--target", target_without_tiles().name()]);
    stdout(compile);
    // For some seconds, the server finishes its answers; in this time, it reports that it is
    // unhealthy.
    let mut server = Server::for_model(plan.to_str().unwrap(), &["--drain-delay", "5"]);
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.post("/v1/completions", &completion("one", 2)).0, 200);
    // One rank fails, because the model file was changed.
    let file = std::fs::OpenOptions::new().write(true).open(&model).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(server.post("/v1/completions", &completion("one two", 2)).0, 500);
    server.until("an unhealthy server", |server| server.get("/health").0 == 503);
    assert_eq!(server.child.wait().unwrap().code(), Some(74));
}
