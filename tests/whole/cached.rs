//! Quantised KV caches. Compiled code is compared with the interpreter and with the exact model,
//! and streamed experts with resident ones. Sequences are also truncated, and plans loaded from
//! files. Invalid settings are refused.

use std::path::{Path, PathBuf};

use crate::support::engines::{bits, load, logits};
use crate::support::made::{BASE, ExpertParameters, ModelParameters};
use crate::support::{Golden, ixc, read_npy, scratch, shared, stderr, stdout};
use ixc::architectures::FileWeights;
use ixc::compile::{Compilation, CompileOptions, compile};
use ixc::ir::format::Format::{self, F16, F32, Q4K, Q8_0};
use ixc::ir::graph::interpret::Interpreter;
use ixc::model::Model;
use ixc::passes::manager;
use ixc::passes::options::OptionSet;
use ixc::targets::Target;
use ixc_testing::nmse::nmse;

const MAX_TOKENS: u32 = 48;
/// Relative squared error of numbers quantised in blocks of 32 to 127 steps. The largest number of
/// a block is about 2.2 times the root mean square.
const BYTES: f64 = 2.2 * 2.2 / (12.0 * 127.0 * 127.0);
const FOUR_BITS: f64 = 2.2 * 2.2 / (12.0 * 8.0 * 8.0);

/// Requested cache formats, and for each the relative squared error of the coarser format.
const CACHES: [(&str, f64); 4] = [("q8_0", BYTES), ("q4_0", FOUR_BITS), ("q8_0,q4_0", FOUR_BITS), ("f16,q8_0", BYTES)];

/// Writes the model to a file of this test. The caller has to remove the file.
fn open(name: &str, made: &ModelParameters) -> (PathBuf, Model, Vec<u32>) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cached_{name}.gguf"));
    std::fs::write(&path, made.file()).unwrap();
    let tokens = (0..MAX_TOKENS).map(|i| (i * i * 7 + i * 3 + 1) % made.vocabulary as u32).collect();
    (path.clone(), Model::open(&path).unwrap(), tokens)
}

fn options(target: Target, kv: &str) -> CompileOptions {
    let mut passes = OptionSet::default();
    let (keys, values) = kv.split_once(',').unwrap_or((kv, kv));
    for text in [format!("cache.keys={keys}"), format!("cache.values={values}")] {
        manager::set(&mut passes, &text).unwrap();
    }
    CompileOptions { target: Some(target), max_tokens: Some(MAX_TOKENS), passes, ..CompileOptions::default() }
}

/// Checks the errors of quantised caches. The interpreter differs from the exact model by rounding
/// keys and values. Kernels may add the same error again: they round queries to bytes, and their
/// inputs differ by rounding.
#[test]
fn compiled_code_with_quantised_cache_matches_the_graph() {
    let keys = vec![("rope.dimension_count", crate::support::made::Key::U32(32))];
    let made = ModelParameters { seed: 0xcace, context: 64, layers: 2, keys, formats: &[("", F32)], ..BASE };
    let (path, model, all) = open("bits", &made);
    let exact = model.exact_logits(&all).unwrap();
    for target in [Target::AVX2, Target::AVX512, Target::AMX, Target::PORTABLE] {
        let native = target.missing().is_empty();
        let (tokens, name) = (if native { &all[..] } else { &all[..35] }, target.name());
        for (kv, noise) in CACHES {
            let Compilation { fused, plan, .. } = compile(&model, &options(target, kv)).unwrap();
            let (positions, rows): (Vec<u32>, Vec<u32>) = (0..tokens.len() as u32).map(|i| (i, i)).unzip();
            let file = FileWeights::new(&model.gguf, &fused);
            let right = Interpreter::new(&fused, &file).unwrap().step(tokens, &positions, &rows).unwrap();
            let rounded = nmse(&right, &exact[..right.len()]);
            // The steps have all rows, five rows, or one row. With one row, attention is divided
            // into several parts.
            let mut engine = load(plan, target, 0).unwrap();
            for step in [MAX_TOKENS as usize, 5, 1] {
                let found = logits(&mut engine, tokens, step);
                let (error, from_exact) = (nmse(&found, &right), nmse(&found, &exact[..found.len()]));
                println!(
                    "{name} {kv}, {step} rows: {error:.1e} from the interpreter, {from_exact:.1e} from the model as it is, the interpreter {rounded:.1e}"
                );
                // The errors of keys and values of two layers add up.
                assert!(rounded > 0.0 && rounded <= 8.0 * noise, "{name} {kv}: {rounded:e} > {noise:e}");
                assert!(
                    error <= rounded && from_exact <= 2.0 * rounded,
                    "{name} {kv} {step}: {error:e}, {from_exact:e}"
                );
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// Checks that streaming experts, other numbers of threads, and a reset change no bits.
#[test]
fn quantised_cache_bits_are_independent_of_streaming_and_threads() {
    let experts = Some(ExpertParameters { count: 8, used: 3, inner: 256 });
    let formats: &[(&str, Format)] = &[("token_embd", F16), ("ffn_gate_inp", F32), ("attn_v", Q8_0), ("", Q4K)];
    let (path, model, tokens) =
        open("streamed", &ModelParameters { seed: 0xcac8, context: 64, layers: 2, experts, formats, ..BASE });
    for (kv, _) in CACHES {
        for target in [Target::AVX2, Target::PORTABLE] {
            let options = options(target, kv);
            let mut resident = load(compile(&model, &options).unwrap().plan, target, 0).unwrap();
            for step in [MAX_TOKENS as usize, 1] {
                let right = bits(&logits(&mut resident, &tokens, step));
                let budget = 8 * 3 * 256 * 320;
                let streamed = CompileOptions { expert_memory: Some(budget), ..options.clone() };
                let mut engine = load(compile(&model, &streamed).unwrap().plan, target, budget).unwrap();
                assert!(bits(&logits(&mut engine, &tokens, step)) == right, "{kv}, {step} rows");
            }
            // First, other tokens are computed. Their cache slots are then overwritten, or remain
            // after the last position.
            let right = bits(&logits(&mut resident, &tokens, 1));
            resident.reset();
            let mut found = Vec::new();
            let other: Vec<u32> = tokens.iter().rev().copied().collect();
            for i in 0..7 {
                found.extend(bits(resident.step(&tokens[i..=i], &[0]).unwrap()));
            }
            for token in other {
                resident.step(&[token], &[]).unwrap();
            }
            assert_eq!(resident.truncate(7), 7);
            for i in 7..tokens.len() {
                found.extend(bits(resident.step(&tokens[i..=i], &[0]).unwrap()));
            }
            assert!(found == right, "{kv}: after going back");
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// Golden models with windows, sinks, biases on keys, shared keys and values (MLA), and linear
/// attention. The numbers are the errors of llama.cpp from exact logits with `-fa on`, for keys and
/// values in q8_0 and in q4_0. They were measured with commit 0c1e570, in one step of all tokens.
const GOLDEN: [(&str, f64, f64); 7] = [
    ("llama-f16", 1.61e-4, 3.64e-2),
    ("gemma3-q8_0", 3.14e-4, 1.31e-2),
    ("gpt-oss-mxfp4", 1.03e-1, 2.69e-1),
    ("qwen2-q8_0", 5.87e-4, 2.44e-2),
    ("qwen3-q8_0", 8.45e-4, 3.63e-2),
    ("deepseek2-q4_k_m", 4.47e-3, 3.59e-2),
    ("qwen35moe-q4_k_m", 6.04e-2, 6.04e-2),
];

#[test]
fn quantised_cache_loses_no_more_than_llama_cpp() {
    let Some(golden) = shared("golden") else { return };
    let folder = scratch("cached_golden");
    for (name, bytes, four_bits) in GOLDEN {
        let model = Golden::read(&golden.join(format!("expect/{name}.json")));
        for (kv, rival) in [("q8_0", bytes), ("q4_0", four_bits)] {
            for target in [Target::AVX2, Target::AVX512, Target::AMX] {
                let emulate = (!target.missing().is_empty()).then_some("--emulate");
                let arguments = ["--target", target.name(), "--kv", kv].into_iter().chain(emulate);
                let logits = model.logits(&folder, &arguments.collect::<Vec<_>>());
                let (error, limit) = (nmse(model.last(&logits), &model.exact), 1.25 * rival);
                println!("{error:.2e} <= {limit:.2e}  {name} {kv} {}", target.name());
                assert!(error <= limit, "{error:e} > {limit:e}  {name} {kv} {}", target.name());
            }
        }
    }
}

#[test]
fn program_reports_cache_formats_and_refuses_unsupported_ones() {
    let folder = scratch("cached_program");
    let [plan, odd, out] = ["model.ixp", "odd.gguf", "out.npy"].map(|name| folder.join(name));
    let made = ModelParameters { key_length: 48, value_length: 64, ..BASE };
    std::fs::write(&odd, made.file()).unwrap();
    let [plan, odd, out] = [&plan, &odd, &out].map(|path| path.to_str().unwrap());
    let logits = |arguments: &[&str]| {
        stdout(ixc([&["logits", "--tokens", "1,17,60,3,99,5", "-o", out], arguments].concat()));
        let logits = read_npy(Path::new(out)).1;
        std::fs::remove_file(out).unwrap();
        bits(&logits)
    };
    let plain = logits(&[]);
    assert!(plain == logits(&["--kv", "f16"]) && plain == logits(&["--kv", "f16,f16"]));
    let per_position = |arguments: &[&str]| {
        stdout(ixc([&["compile", "-o", plan, "--force"], arguments].concat()));
        let facts: serde_json::Value = serde_json::from_str(&stdout(ixc(["inspect", plan, "--json"]))).unwrap();
        (facts["state_bytes_per_position"].as_u64().unwrap(), facts["cache_formats"].to_string())
    };
    let (halves, formats) = per_position(&[]);
    assert_eq!(formats, "[\"f16\"]");
    assert_eq!(per_position(&["--kv", "q4_0"]), (halves * 18 / 64, "[\"q4_0\"]".into()));
    assert_eq!(per_position(&["--kv", "q8_0,f16"]), ((halves + halves * 34 / 64) / 2, "[\"f16\",\"q8_0\"]".into()));
    assert_eq!(per_position(&["--kv", "q8_0"]), (halves * 34 / 64, "[\"q8_0\"]".into()));
    let read = |kv: &str| {
        let json = stdout(ixc(["bench", "-p", "0", "-n", "1", "-r", "1", "-d", "63", "--json", "--kv", kv]));
        let facts: serde_json::Value = serde_json::from_str(&json).unwrap();
        facts["rows"][0]["bytes_per_token"].as_u64().unwrap_or_else(|| panic!("{json}"))
    };
    // 63 positions before the token, and its own position.
    assert!((halves * 30 / 64 * 62..=halves * 30 / 64 * 65).contains(&(read("f16") - read("q8_0"))));
    let saved = logits(&[plan]);
    assert!(saved == logits(&["--kv", "q8_0"]) && saved != plain && saved != logits(&["--kv", "q4_0"]));
    let said = stderr(&ixc(["run", "--stats", "-n", "2", "-p", "The", plan]).output().unwrap());
    assert!(said.contains("positions, KV cache in q8_0"), "{said}");
    for (arguments, expected) in [
        (
            &["run", odd, "-p", "x", "--kv", "q8_0"][..],
            "heads of 48 elements, which are not a multiple of the q8_0 block of 32",
        ),
        (&["run", "-p", "x", "--kv", "q5_1"], "expected f16, q8_0, q4_0"),
        (&["run", "-p", "x", "--kv", "q8_0,"], "expected f16, q8_0, q4_0"),
        (&["run", plan, "-p", "x", "--kv", "q8_0"], "a plan already fixes"),
        (&["plan", plan, "--kv", "q8_0"], "a plan already fixes"),
        (&["run", "-p", "x", "-ctk", "q8_0"], "--kv"),
        (&["compile", "--target", "dataflow:tiny", "--kv", "q8_0", "-o", out], "keys and values in f16"),
        (&["logits", "--tokens", "1", "-o", out, "--engine", "interpreter", "--kv", "q8_0"], "--kv"),
    ] {
        let output = ixc(arguments).output().unwrap();
        assert!([2, 65].contains(&output.status.code().unwrap()), "{arguments:?}: {:?}", output.status);
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    // In this model, only rows of values are a multiple of the block length.
    assert!(logits(&[odd, "--kv", "f16,q8_0"]) != logits(&[odd]));
}
