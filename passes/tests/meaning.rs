//! Checks that the pipeline's output computes the same results as the original graph. Seeds are
//! fixed; a failure prints its seed.

use ixc_ir::graph::interpret::{Interpreter, Value};
use ixc_ir::graph::parse::parse;
use ixc_ir::graph::{Module, OpKind};
use ixc_ir::random::Random;
use ixc_passes::error::PassError;
use ixc_passes::manager::{graph_passes, run_pipeline};
use ixc_passes::pass::Context;
use ixc_passes::{defer, fuse, residency};
use ixc_targets::Target;
use ixc_testing::nmse::nmse_above;
use ixc_testing::random_graphs::{Formats, RandomModule, arguments, random_model, random_module};

/// Returns a context without options.
fn context() -> Context<'static> {
    Context::new(Target::AVX2)
}

/// Runs a module before and after the pipeline, and returns both results.
fn both(m: &RandomModule, seed: u64) -> (Vec<Value>, Vec<Value>) {
    let name = m.module.functions[0].name.clone();
    let run = |module| {
        let mut interpreter = Interpreter::new(module, &m.weights).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        interpreter
            .run(&name, arguments(&m.module, &name, seed))
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{module}"))
    };
    let fused = run_pipeline(m.module.clone(), &graph_passes(), &context())
        .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", m.module));
    (run(&m.module), run(&fused))
}

/// Returns the normalised mean squared error (NMSE). `exact` may be all 0.
fn nmse(found: &[f32], exact: &[f32]) -> f64 {
    nmse_above(found, exact, 1e-30)
}

fn assert_near(seed: u64, m: &RandomModule, limit: f64) {
    let (before, after) = both(m, seed);
    assert_eq!(before.len(), after.len(), "seed {seed}");
    for (i, (a, b)) in before.iter().zip(&after).enumerate() {
        match (a, b) {
            (Value::F32 { dims: da, data: a }, Value::F32 { dims: db, data: b }) => {
                assert_eq!(da, db, "seed {seed}, result {i}");
                let error = nmse(b, a);
                assert!(error <= limit, "seed {seed}, result {i}: NMSE {error:e} > {limit:e}\n{}", m.module);
            }
            (a, b) => assert_eq!(a, b, "seed {seed}, result {i}"),
        }
    }
}

/// Bound on the NMSE without quantisation. A fused op rounds to f32 once, instead of once for each
/// op that it replaces. A rounding has a relative error of 2^-24, an NMSE of 4e-15. The sum of 100
/// roundings, each amplified tenfold, is below 1e-10.
const ROUNDING: f64 = 1e-10;

#[test]
fn models_of_floats_keep_their_logits() {
    for seed in 0..40 {
        assert_near(seed, &random_model(seed, Formats::F32), ROUNDING);
    }
}

#[test]
fn passes_keep_results_of_random_float_modules() {
    for seed in 100..200 {
        assert_near(seed, &random_module(seed, Formats::F32), ROUNDING);
    }
}

/// Bound on the NMSE with quantisation. A block's step is amax / 127, and the error of an element
/// is uniform in half of it: variance amax² / (12 * 127²). Assume that elements have a tenth of the
/// block's peak on average: rms = amax / 10. Uniform elements have amax / 1.7, normal ones amax /
/// 3. The noise of a product is then 100 / (12 * 127²) = 5e-4 of the signal. A chain of two layers
/// has 9 products, whose noises add up.
const QUANTISED: f64 = 9.0 * 5e-4;

#[test]
fn passes_keep_logits_of_quantised_models_within_rounding() {
    for seed in 300..312 {
        let mut m = random_model(seed, Formats::All);
        // Quantisation noise could decide between two experts with nearly equal scores. Every token
        // therefore goes to all experts.
        let experts = m.module.weights.iter().find(|w| w.name.ends_with("_exps.weight")).map(|w| w.shape[0]);
        if let Some(experts) = experts {
            let text = m.module.to_string().replace("top_k = 2", &format!("top_k = {experts}"));
            let text = text.replace("[T, 2]", &format!("[T, {experts}]"));
            let text = text.replace("[T, 2, 256]", &format!("[T, {experts}, 256]"));
            m.module = parse(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        assert_near(seed, &m, QUANTISED);
    }
}

#[test]
fn every_projection_of_a_model_is_fused() {
    for seed in 0..40 {
        let m = random_model(seed, if seed.is_multiple_of(2) { Formats::All } else { Formats::F32 });
        let fused = run_pipeline(m.module, &graph_passes(), &context()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let ops: Vec<OpKind> = fused.functions[0].ops.iter().map(|op| op.kind).collect();
        assert!(ops.contains(&OpKind::LinearQkv) && ops.contains(&OpKind::RopeAppend), "seed {seed}\n{fused}");
        for kind in [OpKind::Matmul, OpKind::Add, OpKind::AddBias, OpKind::Rope, OpKind::KvAppend] {
            assert!(!ops.contains(&kind), "seed {seed}: {kind:?}\n{fused}");
        }
    }
}

#[test]
fn pipeline_is_idempotent() {
    for seed in 0..20 {
        let m = random_model(seed, Formats::F32);
        let once = run_pipeline(m.module, &graph_passes(), &context()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let twice =
            run_pipeline(once.clone(), &graph_passes(), &context()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(once.to_string(), twice.to_string(), "seed {seed}");
    }
}

/// Checks that loading experts on demand or earlier does not change any bit of the results.
#[test]
fn residency_and_prediction_keep_all_results() {
    let mut explicit = 0;
    for seed in 0..40 {
        let m = random_model(seed, if seed.is_multiple_of(4) { Formats::All } else { Formats::F32 });
        let run = |context: &Context<'_>| {
            let module =
                run_pipeline(m.module.clone(), &graph_passes(), context).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let interpreted = Interpreter::new(&module, &m.weights)
                .and_then(|mut interpreter| interpreter.run("step", arguments(&module, "step", seed)));
            let waits = module.functions[0].ops.iter().filter(|op| op.kind == OpKind::ExpertWait).count();
            (interpreted.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{module}")), waits)
        };
        let (resident, _) = run(&context());
        for predict_extra in [None, Some(0), Some(100)] {
            let (streamed, waits) =
                run(&context().with(&residency::ResidencyOptions { memory: Some(0), predict: predict_extra }));
            assert_eq!(streamed, resident, "seed {seed}");
            explicit += waits;
        }
    }
    assert!(explicit > 50, "{explicit}");
}

/// Checks that deferring neither loses an expert nor adds one twice. In this model, the second
/// layer's rows, router and attention do not depend on the first layer's experts.
#[test]
fn deferred_experts_are_added_once() {
    let text = "
weight @gate0 : f32[6, 8, 8]
weight @up0 : f32[6, 8, 8]
weight @down0 : f32[6, 8, 8]
weight @gate1 : f32[6, 8, 8]
weight @up1 : f32[6, 8, 8]
weight @down1 : f32[6, 8, 8]
state @kv.0 : paged f16[1, S, 8], f16[1, S, 8]
func @f(%kv: token<@kv.0>, %pos: i32[T], %k: f32[T, 1, 8], %x: f32[T, 8], %h: f32[T, 8], %l0: f32[T, 6], %l1: f32[T, 6]) -> (f32[T, 8], token<@kv.0>) {
  %ids0, %p0 = route %l0, _, _ {top_k = 4, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0}
  %a0 = expert.swiglu %h, %ids0, @gate0, @up0, _, _ {act = silu, limit = 0.0, shift = 0.0, format = f32}
  %y0 = expert.down %a0, %ids0, %p0, @down0, _, %x
  %kv1 = kv.append %kv, %k, %k, %pos
  %heads, %kv2 = attention %k, %kv1, %pos, _, _ {scale = 0.125, cap = 0.0}
  %rows = merge_heads %heads
  %x1 = add %rows, %y0
  %ids1, %p1 = route %l1, _, _ {top_k = 4, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0}
  %a1 = expert.swiglu %rows, %ids1, @gate1, @up1, _, _ {act = silu, limit = 0.0, shift = 0.0, format = f32}
  %y1 = expert.down %a1, %ids1, %p1, @down1, _, %x1
  return %y1, %kv2
}";
    let module = parse(text).unwrap();
    let mut rng = Random::new(5);
    let mut floats = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.signed()).collect() };
    let weights: Vec<Vec<u8>> =
        (0..6).map(|_| floats(6 * 8 * 8).iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let arguments = arguments(&module, "f", 3);
    let run = |defer: u32, expert_memory: Option<u64>| {
        let context = context()
            .with(&defer::DeferOptions { experts: defer })
            .with(&residency::ResidencyOptions { memory: expert_memory, predict: None });
        let module = run_pipeline(module.clone(), &["defer", "residency"], &context).unwrap();
        let splits = module.functions[0].ops.iter().filter(|op| op.kind == OpKind::ExpertSplit).count();
        assert_eq!(splits, usize::from(defer > 0), "{module}");
        let mut results = Interpreter::new(&module, &weights).unwrap().run("f", arguments.clone()).unwrap();
        let Value::F32 { data, .. } = results.swap_remove(0) else { panic!("no floats") };
        data
    };
    let right = run(0, None);
    for defer in 1..4 {
        let error = nmse(&run(defer, None), &right);
        assert!(error <= ROUNDING, "{defer} deferred: {error:e}");
        assert_eq!(run(defer, None), run(defer, Some(0)), "{defer} deferred, loaded when they are needed");
    }
}

#[test]
fn deferral_without_deferrable_experts_is_refused() {
    let mut refused = [0; 2];
    for seed in 0..20 {
        let m = random_model(seed, Formats::F32);
        match run_pipeline(m.module, &graph_passes(), &context().with(&defer::DeferOptions { experts: 100 })) {
            Err(PassError::NoExperts { deferred: 100 }) => refused[0] += 1,
            Err(PassError::Deferred { deferred: 100, .. }) => refused[1] += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(refused.iter().all(|&count| count > 0), "{refused:?}");
}

/// Checks that all layers with experts except the last defer some experts, and that the deferred
/// experts are also loaded.
#[test]
fn last_layer_does_not_defer_experts() {
    let mut layers = 0;
    for seed in 0..90 {
        let m = random_model(seed, if seed.is_multiple_of(4) { Formats::All } else { Formats::F32 });
        let run = |expert_memory, predict_extra| {
            let context = context()
                .with(&defer::DeferOptions { experts: 1 })
                .with(&residency::ResidencyOptions { memory: expert_memory, predict: predict_extra });
            run_pipeline(m.module.clone(), &graph_passes(), &context)
        };
        let Ok(deferred) = run(None, None) else { continue };
        let ops = &deferred.functions[0].ops;
        let at = |kind: OpKind| (0..ops.len()).filter(|&i| ops[i].kind == kind).collect::<Vec<_>>();
        let (routes, splits) = (at(OpKind::Route), at(OpKind::ExpertSplit));
        // A gate and an up projection of different formats are not one op, so nothing is deferred.
        let expected = if seed.is_multiple_of(4) { splits.len().min(routes.len() - 1) } else { routes.len() - 1 };
        assert_eq!(splits.len(), expected, "seed {seed}\n{deferred}");
        assert!(
            splits.iter().all(|split| routes[..routes.len() - 1].contains(&(split - 1))),
            "seed {seed}\n{deferred}"
        );
        assert_eq!(at(OpKind::ExpertDown).len(), routes.len() + splits.len(), "seed {seed}");
        let interpret = |module: &Module| {
            let mut interpreter = Interpreter::new(module, &m.weights).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            interpreter.run("step", arguments(module, "step", seed)).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
        };
        let right = interpret(&deferred);
        for predict_extra in [None, Some(1)] {
            let explicit = run(Some(0), predict_extra).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!(interpret(&explicit), right, "seed {seed}\n{explicit}");
        }
        layers += splits.len();
    }
    assert!(layers > 10, "{layers}");
}

/// Checks that a cut in the middle of a rule's match loses a fusion but does not change results.
#[test]
fn arbitrary_region_cuts_keep_results() {
    let mut unlike = 0;
    for seed in 0..40 {
        let m = random_model(seed, Formats::F32);
        let run = |fuse_region| {
            let module = run_pipeline(
                m.module.clone(),
                &graph_passes(),
                &context().with(&fuse::FuseOptions { region: fuse_region, ..fuse::FuseOptions::default() }),
            );
            let module = module.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let mut interpreter = Interpreter::new(&module, &m.weights).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let results = interpreter.run("step", arguments(&module, "step", seed));
            (module.functions[0].ops.len(), results.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{module}")))
        };
        let (ops, whole) = run(fuse::FuseOptions::default().region);
        for longest in [0, 1, 2, 3, 7] {
            let (cut_ops, cut) = run(longest);
            unlike += usize::from(cut_ops != ops);
            for (a, b) in whole.iter().zip(&cut) {
                match (a, b) {
                    (Value::F32 { data: a, .. }, Value::F32 { data: b, .. }) => assert!(nmse(b, a) <= ROUNDING),
                    (a, b) => assert_eq!(a, b, "seed {seed}"),
                }
            }
        }
    }
    assert!(unlike > 100, "{unlike}");
}
