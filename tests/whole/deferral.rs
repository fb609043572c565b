//! Deferred experts, which are computed one layer late. Compiled code is compared with the
//! interpreter, and streamed experts with resident ones. The runtime refuses invalid plans.

use std::path::{Path, PathBuf};

use crate::support::engines::{bits, load, load_reading_ahead, logits, native};
use crate::support::made::{BASE, ExpertParameters, ModelParameters};
use crate::support::{ixc, stderr, stdout};
use ixc::architectures::FileWeights;
use ixc::compile::{Compilation, CompileOptions, compile};
use ixc::ir::format::Format::{F16, F32, Q4K};
use ixc::ir::graph::OpKind;
use ixc::ir::graph::interpret::Interpreter;
use ixc::ir::kernel::Kernel;
use ixc::ir::plan::{BucketId, Plan, Step};
use ixc::model::Model;
use ixc::runtime::streaming::predict::{Strategy, StrategyChoice};
use ixc::runtime::streaming::store::stats::GroupStats;
use ixc::targets::Target;
use ixc_testing::nmse::nmse;

const MAX_TOKENS: u32 = 40;
/// Max error, the same as for other models with quantised weights (`made_models.rs`): activations
/// are rounded in a chain of a few products.
const BOUND: f64 = 2e-3;
/// Memory for at least six of the 24 blocks: a block has 3 * 256 rows of up to 272 bytes.
const BUDGET: u64 = 6 * 3 * 256 * 272;

/// Returns a model of three layers with 8 experts each, 3 for a token.
fn made() -> ModelParameters {
    ModelParameters {
        seed: 0xdefe,
        context: 64,
        layers: 3,
        experts: Some(ExpertParameters { count: 8, used: 3, inner: 256 }),
        formats: &[("token_embd", F16), ("ffn_gate_inp", F32), ("", Q4K)],
        ..BASE
    }
}

/// Writes the model to a file of this test, and opens it. The caller has to remove the file.
fn open(name: &str) -> (PathBuf, Model, Vec<u32>) {
    let made = made();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("deferral_{name}.gguf"));
    std::fs::write(&path, made.file()).unwrap();
    let tokens = (0..MAX_TOKENS).map(|i| (i * i * 7 + i * 3 + 1) % made.vocabulary as u32).collect();
    let model = Model::open(&path).unwrap();
    (path, model, tokens)
}

/// Targets with different kernels, and whether weights are packed. `portable` is missing because it
/// gives the bits of `avx2`, as `made_models.rs` shows.
const TARGETS: [(Target, bool); 4] =
    [(Target::AVX2, true), (Target::AVX2, false), (Target::AVX512, true), (Target::AMX, true)];

#[test]
fn deferred_graph_compiles_correctly_and_streams_bit_exactly() {
    let (path, model, all) = open("bits");
    let exact = model.exact_logits(&all).unwrap();
    for (target, pack) in TARGETS {
        let (tokens, name) = (if target.missing().is_empty() { &all[..] } else { &all[..13] }, target.name());
        println!("{name}: {:?}", native(target));
        for defer in [1, 2] {
            let options = CompileOptions {
                target: Some(target),
                max_tokens: Some(MAX_TOKENS),
                pack: Some(pack),
                defer,
                ..CompileOptions::default()
            };
            let Compilation { fused, plan, .. } = compile(&model, &options).unwrap();
            let splits = fused.functions[0].ops.iter().filter(|op| op.kind == OpKind::ExpertSplit).count();
            assert_eq!((splits, plan.buckets, plan.expert_groups.len()), (2, 5, 0));
            let weights = FileWeights::new(&model.gguf, &fused);
            let (positions, rows): (Vec<u32>, Vec<u32>) = (0..tokens.len() as u32).map(|i| (i, i)).unzip();
            let right = Interpreter::new(&fused, &weights).unwrap().step(tokens, &positions, &rows).unwrap();
            assert!(nmse(&right, &exact[..right.len()]) > 10.0 * BOUND, "deferral changes nothing");
            let found = logits(&mut load(plan, target, 0).unwrap(), tokens, MAX_TOKENS as usize);
            // If two experts have nearly the same weight, rounding may select the other expert for
            // one token.
            let width = right.len() / tokens.len();
            let errors = found.chunks(width).zip(right.chunks(width)).map(|(found, right)| nmse(found, right));
            let beyond: Vec<f64> = errors.filter(|&error| error > BOUND).collect();
            assert!(beyond.len() <= 1, "{name}, {defer} deferred: errors of tokens {beyond:?}");
            let lengths =
                if target.missing().is_empty() { &[MAX_TOKENS as usize, 1][..] } else { &[MAX_TOKENS as usize] };
            for (predict_extra, choice) in
                [(None, StrategyChoice::Off), (Some(1), StrategyChoice::Always(Strategy::EarlyRouter))]
            {
                let options = CompileOptions { expert_memory: Some(BUDGET), predict_extra, ..options.clone() };
                let plan = compile(&model, &options).unwrap().plan;
                let requests = plan.steps.iter().filter(|step| matches!(step, Step::Request { .. })).count();
                assert_eq!((plan.expert_groups.len(), requests), (3, 5));
                for &length in lengths {
                    let resident = logits(&mut load(plan.clone(), target, 0).unwrap(), tokens, length);
                    let mut engine = load_reading_ahead(plan.clone(), target, BUDGET, choice).unwrap();
                    let streamed = logits(&mut engine, tokens, length);
                    let how = format!("{name}, {defer} deferred, {predict_extra:?}, steps of {length}");
                    assert!(bits(&streamed) == bits(&resident), "{how}: other bits");
                    assert!(length == 1 || bits(&resident) == bits(&found), "{how}: other bits than without groups");
                    let stats = engine.stream().unwrap().stats().groups;
                    // There may be no missing experts, since all experts that are read ahead may
                    // arrive in time.
                    let missing = |layer: &GroupStats| layer.misses + layer.on_the_way + layer.predicted_bytes > 0;
                    assert!(stats.iter().all(missing), "{how}: {stats:?}");
                    assert!(stats.iter().all(|layer| layer.failures == 0), "{how}: {stats:?}");
                    if (length, choice) == (1, StrategyChoice::Off) {
                        announced(&plan, target, tokens, &how);
                    }
                }
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// Checks that deferred experts are read before the next layer starts, if memory holds the experts
/// of two layers or more. Every expert that was read is used.
fn announced(plan: &Plan<Kernel>, target: Target, tokens: &[u32], how: &str) {
    let mut engine = load(plan.clone(), target, 2 * BUDGET).unwrap();
    logits(&mut engine, tokens, 1);
    let stats = engine.stream().unwrap().stats().groups;
    for layer in &stats[..2] {
        assert!(layer.predicted_bytes > 0 && layer.right_bytes == layer.predicted_bytes, "{how}: {stats:?}");
        assert_eq!((layer.cancelled, layer.wasted_bytes), (0, 0), "{how}: {stats:?}");
    }
}

#[test]
fn plan_without_deferral_is_unchanged() {
    let (path, model, _) = open("off");
    for expert_memory in [None, Some(BUDGET)] {
        let plan = |defer| {
            compile(
                &model,
                &CompileOptions { target: Some(Target::AVX2), expert_memory, defer, ..CompileOptions::default() },
            )
            .unwrap()
        };
        let off = plan(0);
        assert!(off.fused.functions[0].ops.iter().all(|op| op.kind != OpKind::ExpertSplit));
        assert_eq!(off.plan.buckets, 3);
        assert_ne!(off.plan, plan(1).plan);
    }
    std::fs::remove_file(&path).unwrap();
}

/// Checks that the runtime refuses plans with wrong request windows.
#[test]
fn plans_with_windows_that_are_wrong_are_refused() {
    type Change = fn(&mut Plan<Kernel>);
    fn position(plan: &Plan<Kernel>, number: usize, wanted: fn(&Step) -> bool) -> usize {
        (0..plan.steps.len()).filter(|&i| wanted(&plan.steps[i])).nth(number).unwrap()
    }
    const REQUEST: fn(&Step) -> bool = |step| matches!(step, Step::Request { .. });
    const RELEASE: fn(&Step) -> bool = |step| matches!(step, Step::Release { .. });
    let cases: [(&str, Change); 9] = [
        // The windows are: layer 0, deferred experts of layer 0, layer 1, deferred experts of layer
        // 1, layer 2.
        ("requested, then released", |p| {
            let at = position(p, 1, REQUEST);
            p.steps.remove(at);
        }),
        ("requested, then released", |p| {
            let at = position(p, 1, RELEASE);
            p.steps.remove(at);
        }),
        ("after they are requested and before", |p| {
            let (request, release) = (position(p, 1, REQUEST), position(p, 1, RELEASE));
            p.steps.remove(release);
            p.steps.remove(request);
        }),
        ("requested, then released", |p| {
            let at = position(p, 1, RELEASE);
            p.steps[at] = Step::Release { group: 1 };
        }),
        ("over the rows of the group's routing", |p| {
            let at = position(p, 1, REQUEST);
            p.steps[at] = Step::Request { group: 0, bucket: BucketId(0) };
        }),
        ("over the rows of the group's routing", |p| {
            let (at, bucket) = (position(p, 0, REQUEST), position(p, 1, |step| matches!(step, Step::Bucket { .. })));
            p.steps[at] = Step::Request { group: 0, bucket: BucketId(1) };
            // The bucket is moved, so that it is filled before the request that now needs it.
            let bucket = p.steps.remove(bucket);
            p.steps.insert(position(p, 0, |step| matches!(step, Step::Bucket { .. })) + 1, bucket);
        }),
        ("a task that reads the experts between their request and release", |p| {
            let at = position(p, 1, REQUEST);
            p.steps[at] = Step::Request { group: 2, bucket: BucketId(1) };
            let at = position(p, 1, RELEASE);
            p.steps[at] = Step::Release { group: 2 };
        }),
        ("one i32 for each slot", |p| {
            let at = position(p, 1, |step| matches!(step, Step::Bucket { .. }));
            let Step::Bucket { first, .. } = &mut p.steps[at] else { panic!() };
            *first += 1;
        }),
        ("one i32 for each slot", |p| {
            let at = position(p, 0, |step| matches!(step, Step::Predict { .. }));
            let Step::Predict { first, .. } = &mut p.steps[at] else { panic!() };
            *first = u32::MAX;
        }),
    ];
    let (path, model, _) = open("hostile");
    let options = CompileOptions {
        target: Some(Target::AVX2),
        defer: 1,
        expert_memory: Some(BUDGET),
        pack: Some(false),
        ..CompileOptions::default()
    };
    let plan = compile(&model, &options).unwrap().plan;
    assert!(load(plan.clone(), Target::AVX2, 0).is_ok());
    for (i, (expected, change)) in cases.into_iter().enumerate() {
        let mut plan = plan.clone();
        change(&mut plan);
        let error = load(plan, Target::AVX2, 0).unwrap_err().to_string();
        assert!(error.contains(expected), "case {i}: {expected}: {error}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn program_defers_on_request_and_reports_it() {
    let (path, _, _) = open("program");
    let model = path.to_str().unwrap();
    let dump = |more: &[&str]| stdout(ixc([&["dump", model, "--stage", "fused"], more].concat()));
    assert_eq!(dump(&["--defer", "0"]), dump(&[]));
    assert_eq!(dump(&["--defer", "1"]).matches("expert.split").count(), 2);
    for (command, expected) in [
        (vec!["dump", model, "--stage", "fused", "--defer", "3"], "a token uses 3, so at most 2 can be deferred"),
        (vec!["run", model, "--raw", "-p", "x", "--defer", "7"], "a token uses 3, so at most 2 can be deferred"),
        (
            vec!["logits", model, "--tokens", "1", "-o", "never.npy", "--engine", "interpreter", "--defer", "1"],
            "--defer",
        ),
    ] {
        let output = ixc(&command).output().unwrap();
        assert!([2, 65].contains(&output.status.code().unwrap()), "{command:?}");
        assert!(stderr(&output).contains(expected), "{command:?}: {}", stderr(&output));
    }
    // The built-in demo model also has a tokenizer.
    let run = ixc(["run", "--raw", "-p", "The borrow checker", "-n", "4", "--temp", "0", "--stats", "--defer", "1"])
        .output()
        .unwrap();
    assert!(run.status.success() && stderr(&run).contains("approximate"), "{}", stderr(&run));
    let bench = stdout(ixc(["bench", "-p", "0", "-n", "4", "-r", "1", "-t", "1", "--json", "--defer", "1"]));
    let rows: serde_json::Value = serde_json::from_str(&bench).unwrap();
    let rows = &rows["rows"];
    assert!(rows[0]["deferral"].is_null() && rows.as_array().unwrap().len() == 2, "{bench}");
    let deferral = &rows[1]["deferral"];
    assert_eq!(deferral["experts"], 1);
    let ratio = rows[1]["median"].as_f64().unwrap() / rows[0]["median"].as_f64().unwrap();
    assert!((deferral["ratio"].as_f64().unwrap() / ratio - 1.0).abs() < 1e-6, "{bench}");
    let divergence = |name: &str| deferral["divergence"][name].as_f64().unwrap();
    assert!(divergence("mean") > 0.0 && divergence("mean") < divergence("max"), "{bench}");
    assert!(divergence("agreement") > 0.3 && divergence("positions") > 20.0, "{bench}");
    // A plan fixes its deferral, so options of a run cannot change it.
    let plan = path.with_extension("ixp");
    stdout(ixc(["compile", model, "--no-weights", "--defer", "1", "-o", plan.to_str().unwrap()]));
    let output = ixc(["bench", plan.to_str().unwrap(), "--defer", "1"]).output().unwrap();
    assert!(output.status.code() == Some(2) && stderr(&output).contains("a plan already fixes"), "{}", stderr(&output));
    std::fs::remove_file(&plan).unwrap();
    std::fs::remove_file(&path).unwrap();
}
