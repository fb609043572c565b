//! Generated models with random weights, in sizes and formats that no golden model has. Compiled
//! logits are compared with the reference interpreter's logits, targets with each other, and steps
//! of every length with each other.

use std::path::Path;

use crate::support::made::{BASE, ExpertParameters, Key, ModelParameters};
use crate::support::steps::{run, same_bits};
use ixc::compile::{CompileOptions, compile};
use ixc::ir::format::Format::{
    Bf16, F16, F32, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4K, Q5K, Q6K, Q8_0,
};
use ixc::model::Model;
use ixc::runtime::engine::{self, BackendKind, Engine};
use ixc::runtime::streaming::predict::{PredictionSettings, Strategy, StrategyChoice};
use ixc::runtime::streaming::store::Config;
use ixc::targets::Target;
use ixc_testing::nmse::nmse_above;

/// Number of tokens. It is more than two attention blocks of 32 positions, and more than one step.
const TOKENS: usize = 75;
/// Max tokens in a step of these plans.
const MAX_TOKENS: u32 = 56;
/// Max error without quantised activations, where only f32 sums and the f16 cache round. The cache
/// rounds each key and value by up to 2^-11. The relative squared error is 8e-8, for a few layers.
const FLOAT_BOUND: f64 = 1e-6;
/// Max error with quantised activations, which are rounded to steps of amax / 127 in groups of 16
/// or 32. For normally distributed numbers, amax is about two standard deviations. The relative
/// squared error is therefore (2 / 127)^2 / 12 = 2e-5 for each product. Up to four products follow
/// each other in each of three layers, and their errors add up to 2.5e-4. Softmax and SwiGLU
/// amplify this sum, by less than the bound allows.
const QUANTISED_BOUND: f64 = 2e-3;

/// Number of tokens for emulated code. It gives full blocks of rows for every kernel, and a
/// remainder.
const EMULATED_TOKENS: usize = 39;

/// Checks the logits of one model on all targets, with packed and unpacked weights, all numbers of
/// threads, and all lengths of steps.
fn check(name: &str, made: &ModelParameters) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("made_{}.gguf", name.replace(' ', "_")));
    std::fs::write(&path, made.file()).unwrap();
    let model = Model::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let tokens: Vec<u32> =
        (0..TOKENS as u64).map(|i| (i * i * 7 + i * 3 + 1) % made.vocabulary).map(|id| id as u32).collect();
    let exact = model.exact_logits(&tokens).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(exact.iter().all(|x| x.is_finite()), "{name}: a logit is not finite");
    let quantised = model.arch.module.weights.iter().any(|weight| weight.format.is_quantised());
    let bound = if quantised { QUANTISED_BOUND } else { FLOAT_BOUND };

    let mut of_avx2 = Vec::new();
    let ways = [
        (Target::AVX2, true),
        (Target::PORTABLE, true),
        (Target::AVX512, true),
        (Target::AMX, true),
        // Tests of kernels compare portable code with kernels of unpacked weights. Repeating the
        // comparison here would take a third of this test's time.
        (Target::AVX2, false),
    ];
    for (target, pack) in ways {
        let native = target.missing().is_empty();
        // On `portable`, the same number of tokens is computed as on AVX2, because both must give
        // the same bits: targets with vectors of the same length have the same kernels.
        let all = native && (target != Target::PORTABLE || Target::AVX2.missing().is_empty());
        let tokens = if all { &tokens[..] } else { &tokens[..EMULATED_TOKENS] };
        let exact = &exact[..tokens.len() * made.vocabulary as usize];
        // Generating code takes longer than running it, so one engine is used with all numbers of
        // threads. Engines for long steps keep no packed weights.
        //
        // Emulated code runs only once, in long steps. Native targets show that the number of
        // threads changes no bits.
        let threads = if native { &[3, 2, 1][..] } else { &[2] };
        let mut engine = load(name, &model, target, pack, threads[0]);
        let of_many: Vec<_> = threads
            .iter()
            .map(|&threads| {
                engine.use_threads(threads).unwrap();
                (threads, run(&mut engine, tokens, |_| MAX_TOKENS as usize))
            })
            .collect();
        let logits = of_many[of_many.len() - 1].1.clone();
        engine.use_threads(1).unwrap();
        // These steps have one token, or the lengths at which other kernels are used.
        let lengths = [1, 5, 6, 7, 12, 1, 13, 8];
        let mut ways = vec![("in long steps", nmse(&logits, exact))];
        ways.push(("in mixed steps", nmse(&run(&mut engine, tokens, |step| lengths[step % lengths.len()]), exact)));
        if native {
            ways.push(("one by one", nmse(&run(&mut engine, tokens, |_| 1), exact)));
        }
        let how = if native { "native" } else { "emulated" };
        println!("{} {how}{}: {ways:?}  {name}", target.name(), if pack { ", packed" } else { "" });
        for (way, error) in ways {
            // The comparison fails for NaN.
            assert!(error <= bound, "{name}: {} {way}: {error:e} > {bound:e}", target.name());
        }
        for (threads, many) in of_many {
            assert!(same_bits(&logits, &many), "{name}: {}: other bits with {threads} threads", target.name());
        }
        match target {
            Target::AVX2 => of_avx2 = logits,
            Target::PORTABLE => {
                let difference = nmse(&logits, &of_avx2);
                let same = same_bits(&logits, &of_avx2);
                assert!(same, "{name}: portable gives other bits than avx2: {difference:e}");
            }
            _ => {}
        }
    }
    std::fs::remove_file(&path).unwrap();
}

fn load(name: &str, model: &Model, target: Target, pack: bool, threads: usize) -> Engine {
    let options = CompileOptions {
        target: Some(target),
        max_tokens: Some(MAX_TOKENS),
        pack: Some(pack),
        ..CompileOptions::default()
    };
    load_with(name, model, &options, threads, 0)
}

/// Loads a model. `budget` is the memory for blocks of experts; 0 keeps all experts in memory.
fn load_with(name: &str, model: &Model, options: &CompileOptions, threads: usize, budget: u64) -> Engine {
    load_for(name, model, options, threads, budget, PredictionSettings { choice: StrategyChoice::Off, extra: 0 })
}

fn load_for(
    name: &str,
    model: &Model,
    options: &CompileOptions,
    threads: usize,
    budget: u64,
    prefetch: PredictionSettings,
) -> Engine {
    let target = options.target();
    let compiled = compile(model, options);
    let plan = compiled.unwrap_or_else(|error| panic!("{name}: {}: {error}", target.name())).plan;
    let backend = if target.missing().is_empty() { BackendKind::Native } else { BackendKind::Emulated };
    let stream = Config { budget, ..Config::default() };
    let options =
        engine::EngineOptions { threads: Some(threads), backend, stream, prefetch, ..engine::EngineOptions::default() };
    Engine::load(plan, Path::new(""), &options).unwrap_or_else(|error| panic!("{name}: {}: {error}", target.name()))
}

/// Returns the NMSE, with a lower bound on the denominator. Rows of the output matrix have length
/// 1, so logits have a deviation of about 1. If the logits of a small vocabulary happen to be near
/// 0, differences are compared with 1.
fn nmse(found: &[f32], exact: &[f32]) -> f64 {
    nmse_above(found, exact, exact.len() as f64)
}

fn check_all(models: &[(&str, ModelParameters)]) {
    models.iter().for_each(|(name, made)| check(name, made));
}

#[test]
fn dense_models_in_floats() {
    check_all(&[
        (
            "f32, tied, nothing a multiple of 8",
            ModelParameters {
                width: 96,
                heads: 3,
                kv_heads: 3,
                key_length: 32,
                value_length: 32,
                inner: 100,
                vocabulary: 37,
                tied: true,
                ..BASE
            },
        ),
        (
            "f16, heads of 40, half of them turned",
            ModelParameters {
                layers: 3,
                width: 160,
                kv_heads: 1,
                key_length: 40,
                value_length: 40,
                inner: 416,
                formats: &[("", F16)],
                keys: vec![("rope.dimension_count", Key::U32(20))],
                ..BASE
            },
        ),
        (
            "bf16, heads of 80, 4097 tokens",
            ModelParameters {
                architecture: "qwen2",
                width: 320,
                key_length: 80,
                value_length: 80,
                inner: 300,
                vocabulary: 4097,
                formats: &[("", Bf16)],
                ..BASE
            },
        ),
        (
            "f32, values longer than keys",
            ModelParameters {
                architecture: "qwen3",
                width: 100,
                heads: 6,
                key_length: 24,
                value_length: 56,
                inner: 132,
                formats: &[("attn", F16), ("", F32)],
                ..BASE
            },
        ),
        (
            "f16, values shorter than keys",
            ModelParameters {
                width: 64,
                heads: 5,
                kv_heads: 1,
                key_length: 72,
                value_length: 8,
                inner: 72,
                formats: &[("", F16)],
                ..BASE
            },
        ),
        (
            "f16, heads of 100",
            ModelParameters { heads: 6, key_length: 100, value_length: 100, formats: &[("", F16)], ..BASE },
        ),
        (
            "bf16, 9 heads of 33 on a key, a part turned",
            ModelParameters {
                architecture: "qwen3",
                heads: 9,
                kv_heads: 1,
                key_length: 33,
                value_length: 33,
                formats: &[("", Bf16)],
                keys: vec![("rope.dimension_count", Key::U32(32))],
                ..BASE
            },
        ),
    ]);
}

/// Max error of activations that are rounded to bf16. Just above a power of two, the relative
/// squared error is (2^-7)^2 / 12. The mean over all numbers is half of that, 2.7e-6. The errors of
/// four products in each of three layers add up to 3e-5, and are amplified.
const BF16_BOUND: f64 = 2e-4;

/// Checks that bits do not depend on the number of rows of a step, on targets with dot products of
/// bf16 pairs and without tiles.
#[test]
fn bf16_in_pairs_has_the_same_bits_in_steps_of_any_length() {
    let name = "bf16 in pairs";
    // The matrices are whole strips. Products with unpacked matrices take f32 activations, and sum
    // in another order for one row than for many.
    let made = ModelParameters { layers: 3, width: 256, inner: 1056, vocabulary: 160, formats: &[("", Bf16)], ..BASE };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("made_bf16_in_pairs.gguf");
    std::fs::write(&path, made.file()).unwrap();
    let model = Model::open(&path).unwrap();
    let tokens: Vec<u32> = (0..TOKENS as u64).map(|i| ((i * i * 7 + i * 3 + 1) % made.vocabulary) as u32).collect();
    let exact = model.exact_logits(&tokens).unwrap();
    let mut engine = load(name, &model, Target::from_name("zen4").unwrap(), true, 2);
    let long = run(&mut engine, &tokens, |_| MAX_TOKENS as usize);
    let error = nmse(&long, &exact);
    println!("{error:.1e} <= {BF16_BOUND:.1e}");
    assert!(error <= BF16_BOUND && error > FLOAT_BOUND, "{error:e}");
    let lengths = [1, 5, 6, 7, 12, 1, 13, 8];
    assert!(same_bits(&long, &run(&mut engine, &tokens, |step| lengths[step % lengths.len()])), "in mixed steps");
    assert!(same_bits(&long, &run(&mut engine, &tokens, |_| 1)), "one by one");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn dense_models_in_blocks_of_32() {
    check_all(&[
        (
            "q8_0, 7 heads on a key",
            ModelParameters {
                architecture: "qwen2",
                layers: 3,
                width: 896,
                heads: 14,
                inner: 672,
                formats: &[("", Q8_0)],
                tied: true,
                ..BASE
            },
        ),
        (
            "q4_0, 16 heads on a key",
            ModelParameters {
                layers: 3,
                width: 96,
                heads: 16,
                kv_heads: 1,
                key_length: 32,
                value_length: 32,
                inner: 352,
                vocabulary: 37,
                formats: &[("", Q4_0)],
                ..BASE
            },
        ),
        (
            "q8_0 beside f16, 7 heads of 40",
            ModelParameters {
                width: 160,
                heads: 7,
                kv_heads: 1,
                key_length: 40,
                value_length: 40,
                inner: 160,
                formats: &[("attn_output", F16), ("", Q8_0)],
                ..BASE
            },
        ),
    ]);
}

/// Checks models with formats of two to four bits, in dense layers and in experts.
#[test]
fn models_of_few_bits() {
    check_all(&[
        (
            "iq2 and iq3, an embedding by a grid",
            ModelParameters {
                layers: 2,
                inner: 256,
                formats: &[
                    ("token_embd", Iq2Xxs),
                    ("attn_q", Iq2Xs),
                    ("attn_k", Iq2S),
                    ("attn_v", Iq3Xxs),
                    ("attn_output", Iq3S),
                    ("gate", Iq2Xxs),
                    ("up", Iq2S),
                    ("down", Iq2Xs),
                    ("", Iq3S),
                ],
                ..BASE
            },
        ),
        (
            "k-quants and iq4_xs, an embedding in q2_k",
            ModelParameters {
                inner: 256,
                formats: &[
                    ("token_embd", Q2K),
                    ("attn_q", Q3K),
                    ("attn_k", Iq4Xs),
                    ("attn_", Q2K),
                    ("gate", Q2K),
                    ("up", Iq4Xs),
                    ("", Q3K),
                ],
                ..BASE
            },
        ),
        (
            "experts in mxfp4, 96 columns",
            ModelParameters {
                width: 96,
                experts: Some(ExpertParameters { count: 4, used: 1, inner: 160 }),
                formats: &[("token_embd", F32), ("gate_inp", F32), ("", Mxfp4)],
                ..BASE
            },
        ),
        (
            "experts in q2_k, q3_k and iq3_s",
            ModelParameters {
                experts: Some(ExpertParameters { count: 5, used: 2, inner: 256 }),
                formats: &[
                    ("token_embd", F32),
                    ("gate_inp", F32),
                    ("gate_exps", Q2K),
                    ("up_exps", Q3K),
                    ("down_exps", Iq3S),
                    ("", Iq4Xs),
                ],
                ..BASE
            },
        ),
    ]);
}

#[test]
fn dense_models_in_blocks_of_256() {
    check_all(&[
        (
            "q4_k, 4 heads of 128 on a key, 4097 tokens",
            ModelParameters {
                width: 512,
                kv_heads: 1,
                key_length: 128,
                value_length: 128,
                inner: 768,
                vocabulary: 4097,
                formats: &[("", Q4K)],
                ..BASE
            },
        ),
        (
            "q5_k, 12 heads on a key",
            ModelParameters { layers: 3, heads: 12, kv_heads: 1, inner: 256, formats: &[("", Q5K)], ..BASE },
        ),
        (
            "q6_k, 8 heads of 96 on a key",
            ModelParameters {
                architecture: "qwen2",
                width: 768,
                heads: 8,
                kv_heads: 1,
                key_length: 96,
                value_length: 96,
                formats: &[("", Q6K)],
                tied: true,
                ..BASE
            },
        ),
        (
            "q4_k and q6_k, heads of 256",
            ModelParameters {
                architecture: "qwen3",
                layers: 3,
                heads: 3,
                kv_heads: 1,
                key_length: 256,
                value_length: 256,
                formats: &[("attn_v", Q6K), ("ffn_down", Q6K), ("", Q4K)],
                ..BASE
            },
        ),
    ]);
}

#[test]
fn dense_models_in_mixed_formats() {
    check_all(&[
        (
            "q, k and v in three activation formats",
            ModelParameters {
                layers: 3,
                formats: &[
                    ("attn_q", Q4K),
                    ("attn_k", Q8_0),
                    ("attn_v", F16),
                    ("ffn_gate", Q4K),
                    ("ffn_up", Q6K),
                    ("ffn_down", Q5K),
                    ("output", Q6K),
                    ("", Q8_0),
                ],
                ..BASE
            },
        ),
        (
            "gate and up in two activation formats",
            ModelParameters {
                architecture: "qwen3",
                formats: &[
                    ("attn_q", Q8_0),
                    ("attn_k", Q8_0),
                    ("attn_v", Q6K),
                    ("ffn_gate", Q8_0),
                    ("ffn_up", F16),
                    ("ffn_down", Q4_0),
                    ("output", F32),
                    ("", Q4K),
                ],
                ..BASE
            },
        ),
        (
            "gate in floats, up in blocks",
            ModelParameters {
                architecture: "qwen2",
                inner: 96,
                formats: &[("ffn_gate", Bf16), ("ffn_up", Q5K), ("ffn_down", F32), ("token_embd", Q5K), ("", Q4_0)],
                tied: true,
                ..BASE
            },
        ),
    ]);
}

#[test]
fn models_with_experts() {
    let experts = |count, used, inner| Some(ExpertParameters { count, used, inner });
    check_all(&[
        (
            "2 of 8 experts in q4_k",
            ModelParameters {
                layers: 3,
                experts: experts(8, 2, 256),
                formats: &[("token_embd", F16), ("ffn_gate_inp", F32), ("", Q4K)],
                ..BASE
            },
        ),
        (
            "1 of 3 experts in q8_0",
            ModelParameters {
                width: 160,
                key_length: 40,
                value_length: 40,
                experts: experts(3, 1, 96),
                formats: &[("token_embd", Q8_0), ("ffn_gate_inp", F32), ("", Q8_0)],
                ..BASE
            },
        ),
        (
            "2 of 33 experts, mixed",
            ModelParameters {
                architecture: "qwen3moe",
                layers: 3,
                experts: experts(33, 2, 96),
                formats: &[
                    ("token_embd", Q8_0),
                    ("ffn_gate_inp", F16),
                    ("ffn_down_exps", Q4_0),
                    ("ffn_up_exps", Q6K),
                    ("", Q5K),
                ],
                ..BASE
            },
        ),
        (
            "8 of 128 experts",
            ModelParameters {
                architecture: "qwen3moe",
                experts: experts(128, 8, 32),
                formats: &[("token_embd", F32), ("ffn_gate_inp", F32), ("ffn_down_exps", Q8_0), ("", Q4K)],
                tied: true,
                ..BASE
            },
        ),
    ]);
}

/// Memory for the experts of [`residency_changes_no_bit`], which has 24 blocks of 3 * 256 rows of
/// up to 272 bytes. The budget holds six or more blocks. A long step needs all 8 blocks of a layer.
const EXPERT_BUDGET: u64 = 6 * 3 * 256 * 272;

/// Checks that a plan that loads experts explicitly passes the runtime's checks, and gives the same
/// bits as a plan that does not. Experts are in memory or streamed, in long steps and in steps of
/// one token. Weights are packed or as stored, gate and up fused or not, with and without
/// prediction.
#[test]
fn residency_changes_no_bit() {
    let experts = Some(ExpertParameters { count: 8, used: 2, inner: 256 });
    let formats: [(&str, &[(&str, ixc::ir::format::Format)]); 2] = [
        ("fused", &[("token_embd", F16), ("ffn_gate_inp", F32), ("", Q4K)]),
        ("gate beside up", &[("token_embd", F16), ("ffn_gate_inp", F32), ("ffn_gate_exps", Q8_0), ("", Q4K)]),
    ];
    for (name, formats) in formats {
        let made = ModelParameters { layers: 3, experts, formats, ..BASE };
        let file = format!("made_residency_{}.gguf", name.replace(' ', "_"));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
        std::fs::write(&path, made.file()).unwrap();
        let model = Model::open(&path).unwrap();
        let tokens: Vec<u32> = (0..EMULATED_TOKENS as u32).map(|i| (i * i * 7 + 1) % made.vocabulary as u32).collect();
        for (target, pack) in [(Target::AVX2, true), (Target::AVX2, false), (Target::AMX, true)] {
            let resident = CompileOptions {
                target: Some(target),
                max_tokens: Some(MAX_TOKENS),
                pack: Some(pack),
                ..CompileOptions::default()
            };
            assert!(compile(&model, &resident).unwrap().plan.expert_groups.is_empty());
            // The emulator is slow, especially with steps of one token.
            let lengths =
                if target.missing().is_empty() { &[MAX_TOKENS as usize, 1][..] } else { &[MAX_TOKENS as usize] };
            for &length in lengths {
                let expected = run(&mut load_with(name, &model, &resident, 2, 0), &tokens, |_| length);
                for (predict_extra, budget) in
                    [(None, 0), (None, EXPERT_BUDGET), (Some(1), 0), (Some(1), EXPERT_BUDGET)]
                {
                    let options =
                        CompileOptions { expert_memory: Some(EXPERT_BUDGET), predict_extra, ..resident.clone() };
                    assert_eq!(compile(&model, &options).unwrap().plan.expert_groups.len(), 3);
                    let mut engine = load_with(name, &model, &options, 2, budget);
                    let logits = run(&mut engine, &tokens, |_| length);
                    let target = target.name();
                    let how =
                        format!("{name}: {target}, steps of {length}, {predict_extra:?}, {budget} bytes of experts");
                    assert!(same_bits(&logits, &expected), "{how}: other bits");
                    let misses =
                        engine.stream().map(|store| store.stats().groups.iter().map(|l| l.misses).sum::<u64>());
                    assert_eq!(misses.map(|misses| misses > 0), (budget > 0).then_some(true), "{how}");
                }
                // Every prediction strategy gives the same bits.
                let strategies = Strategy::ALL.map(|(_, strategy)| StrategyChoice::Always(strategy));
                for choice in strategies.into_iter().chain([StrategyChoice::Auto]).filter(|_| length == 1) {
                    let options = CompileOptions {
                        expert_memory: Some(EXPERT_BUDGET),
                        predict_extra: Some(1),
                        ..resident.clone()
                    };
                    let prefetch = PredictionSettings { choice, extra: 1 };
                    let mut engine = load_for(name, &model, &options, 2, EXPERT_BUDGET, prefetch);
                    assert!(same_bits(&run(&mut engine, &tokens, |_| 1), &expected), "{name}: {choice}: other bits");
                    for (strategy, layers) in engine.predictions().unwrap().tallies {
                        // The early router cannot predict for the first layer, because no layer is
                        // before it.
                        let first = usize::from(strategy == Strategy::EarlyRouter);
                        assert!(layers[first..].iter().all(|tally| tally.predicted > 0), "{strategy}: {layers:?}");
                    }
                }
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn rotations() {
    let small =
        ModelParameters { width: 128, key_length: 48, value_length: 48, inner: 96, formats: &[("", F32)], ..BASE };
    check_all(&[
        (
            "linear scaling",
            ModelParameters {
                keys: vec![
                    ("rope.scaling.type", Key::Text("linear")),
                    ("rope.scaling.factor", Key::F32(4.0)),
                    ("rope.freq_base", Key::F32(1e6)),
                ],
                ..small.clone()
            },
        ),
        (
            "yarn",
            ModelParameters {
                architecture: "qwen3",
                keys: vec![
                    ("rope.scaling.type", Key::Text("yarn")),
                    ("rope.scaling.factor", Key::F32(4.0)),
                    ("rope.scaling.original_context_length", Key::U32(32)),
                ],
                ..small.clone()
            },
        ),
        (
            "factors, a part turned",
            ModelParameters { rope_factors: true, keys: vec![("rope.dimension_count", Key::U32(22))], ..small.clone() },
        ),
        (
            "factors, halves, a part turned",
            ModelParameters {
                architecture: "qwen2",
                rope_factors: true,
                keys: vec![("rope.dimension_count", Key::U32(30))],
                ..small.clone()
            },
        ),
    ]);
}

#[test]
fn activations_of_every_size() {
    check_all(&[
        (
            "embeddings of 0 to 1e5, blocks of 32",
            ModelParameters { extreme: true, formats: &[("token_embd", F32), ("", Q8_0)], ..BASE },
        ),
        (
            "embeddings of 0 to 1e5, blocks of 256",
            ModelParameters { extreme: true, layers: 2, formats: &[("token_embd", F32), ("", Q5K)], ..BASE },
        ),
    ]);
}

/// Number of random models in each run. A few hundred more seeds were tried once.
const RANDOM: u64 = 24;

/// Two tests split the random models between two threads.
#[test]
fn random_models_of_even_seeds() {
    random_models(0);
}

#[test]
fn random_models_of_odd_seeds() {
    random_models(1);
}

fn random_models(first: u64) {
    for seed in (first..RANDOM).step_by(2) {
        let made = ModelParameters::random(seed);
        println!("{made:?}");
        check(&format!("random {seed}"), &made);
    }
}
