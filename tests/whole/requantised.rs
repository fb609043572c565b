//! Requantised weights. They have one scale for a whole row, or an integer multiple of this scale
//! for every 128 columns. Compiled code is compared with the interpreter and with the original
//! model, and streamed experts with resident ones. Packing when a plan is loaded is compared with
//! packing in the plan. Invalid settings are refused.

use std::path::{Path, PathBuf};

use crate::support::engines::{bits, load, logits, native};
use crate::support::made::{BASE, ExpertParameters, ModelParameters};
use crate::support::{Golden, ixc, read_npy, scratch, shared, stderr, stdout};
use ixc::architectures::FileWeights;
use ixc::compile::{Compilation, CompileOptions, compile};
use ixc::ir::format::Format::{self, Bf16, F16, F32, Q4K, Q6K, Q8_0};
use ixc::ir::graph::interpret::Interpreter;
use ixc::model::Model;
use ixc::passes::manager;
use ixc::passes::options::OptionSet;
use ixc::targets::Target;
use ixc_testing::nmse::nmse;

const MAX_TOKENS: u32 = 40;
/// Bytes of memory for 8 of the 16 blocks; each block has 3 * 256 rows of 320 bytes.
const BUDGET: u64 = 8 * 3 * 256 * 320;
/// Number of consecutive products in these models; their errors add up.
const PRODUCTS: f64 = 9.0;
/// Relative squared error of activations, which are rounded to 127 steps of a row's largest number:
/// (amax / 127)^2 / 12. The mean square is assumed to be at least (amax / 10)^2.
const BYTES: f64 = 100.0 / (12.0 * 127.0 * 127.0);
/// Relative squared error of weights in four bits. For normally distributed numbers, a uniform
/// quantiser of 16 steps has an error of 0.01154 (Max, 1960). The bound is twice this number, since
/// short rows are not normally distributed.
const FOUR_BITS: f64 = 2.0 * 0.01154;
/// Relative squared error of weights in four bits with a scale for every 128 columns. For
/// Laplace-distributed numbers with the best scale, it is 0.0178 (simulated; for normally
/// distributed numbers, it is 0.0095). Rounding these scales to multiples of the row's scale adds 2
/// %.
const FOUR_BITS_OF_GROUPS: f64 = 1.02 * 0.0178;

/// Values of `--weights`, each with the relative squared error of a product with such weights.
const WEIGHTS: [(&str, f64); 5] = [
    ("i8_row", BYTES),
    ("i4_row", FOUR_BITS),
    ("i4_g128", FOUR_BITS_OF_GROUPS),
    ("i8_row,*_exps*=i4_row,*attn_q*=keep", FOUR_BITS),
    ("i8_row,*_exps*=i4_g128,*ffn_down*=i4_row", FOUR_BITS),
];

/// Returns models with and without experts, of several formats.
fn models() -> [ModelParameters; 2] {
    let experts = Some(ExpertParameters { count: 8, used: 3, inner: 256 });
    let formats: &[(&str, Format)] = &[
        ("token_embd", F16),
        ("ffn_gate_inp", F32),
        ("ffn_down", Q6K),
        ("attn_v", Q8_0),
        ("output.", Bf16),
        ("", Q4K),
    ];
    let made = ModelParameters { seed: 0x10e, context: 64, layers: 2, formats, ..BASE };
    // The rows of the output matrix are whole strips in one model, but not in the other.
    [ModelParameters { experts, vocabulary: 160, ..made.clone() }, made]
}

/// Writes the model to a file of this test, and opens it. The caller has to remove the file.
fn open(name: &str, made: &ModelParameters) -> (PathBuf, Model, Vec<u32>) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("requantised_{name}.gguf"));
    std::fs::write(&path, made.file()).unwrap();
    let tokens = (0..MAX_TOKENS).map(|i| (i * i * 7 + i * 3 + 1) % made.vocabulary as u32).collect();
    let model = Model::open(&path).unwrap();
    (path, model, tokens)
}

fn options(target: Target, weights: &str) -> CompileOptions {
    let mut passes = OptionSet::default();
    manager::set(&mut passes, &format!("requantise.weights={weights}")).unwrap();
    CompileOptions { target: Some(target), max_tokens: Some(MAX_TOKENS), passes, ..CompileOptions::default() }
}

#[test]
fn requantised_code_matches_the_graph_within_format_error() {
    for (i, made) in models().into_iter().enumerate() {
        let (path, model, all) = open(&format!("bits_{i}"), &made);
        let exact = model.exact_logits(&all).unwrap();
        for target in [Target::AVX2, Target::AVX512, Target::AMX, Target::PORTABLE] {
            let (tokens, name) = (if target.missing().is_empty() { &all[..] } else { &all[..19] }, target.name());
            println!("{name}: {:?}", native(target));
            for (weights, noise) in WEIGHTS {
                let what = format!("{name}, model {i}, {weights}");
                let Compilation { fused, plan, .. } = compile(&model, &options(target, weights)).unwrap();
                let by_rows = plan.weights.iter().filter(|weight| weight.format.has_row_scale()).count();
                assert!(by_rows >= 8, "{what}: {by_rows} weights");
                let (positions, rows): (Vec<u32>, Vec<u32>) = (0..tokens.len() as u32).map(|i| (i, i)).unzip();
                let file = FileWeights::new(&model.gguf, &fused);
                let right = Interpreter::new(&fused, &file).unwrap().step(tokens, &positions, &rows).unwrap();
                let found = logits(&mut load(plan, target, 0).unwrap(), tokens, MAX_TOKENS as usize);
                let (error, from_exact) = (nmse(&found, &right), nmse(&found, &exact[..found.len()]));
                println!("{what}: {error:.1e} from the interpreter, {from_exact:.1e} from the model as it was");
                // Rows are float sums before they are rounded to bytes. The sums differ in their
                // last bits, so a few bytes differ.
                assert!(error <= PRODUCTS * BYTES, "{what}: {error:e}");
                let limit = PRODUCTS * (noise + BYTES);
                assert!(from_exact <= limit, "{what}: {from_exact:e} > {limit:e}");
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn streamed_experts_have_the_bits_of_resident_ones() {
    let [made, _] = models();
    let (path, model, tokens) = open("streamed", &made);
    for (weights, _) in WEIGHTS {
        for target in [Target::AVX2, Target::PORTABLE] {
            let options = options(target, weights);
            let right =
                bits(&logits(&mut load(compile(&model, &options).unwrap().plan, target, 0).unwrap(), &tokens, 40));
            let streamed = CompileOptions { expert_memory: Some(BUDGET), ..options };
            let plan = compile(&model, &streamed).unwrap().plan;
            for budget in [0, BUDGET] {
                let mut engine = load(plan.clone(), target, budget).unwrap();
                assert!(bits(&logits(&mut engine, &tokens, 40)) == right, "{weights}, {budget} bytes for experts");
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}

/// Checks golden models: the error that requantising adds is compared with the error of the models'
/// own rounding.
#[test]
fn requantising_golden_models_meets_the_error_bounds() {
    let Some(golden) = shared("golden") else { return };
    let folder = scratch("requantised_golden");
    for name in ["expect/qwen3moe-q4_k_m.json", "expect/llama-q8_0.json", "expect/llama-bf16.json"] {
        let model = Golden::read(&golden.join(name));
        let exact = model.logits(&folder, &["--engine", "interpreter"]);
        for (weights, noise) in WEIGHTS {
            let found = model.logits(&folder, &["--target", "avx2", "--weights", weights]);
            let (error, limit) = (nmse(&found, &exact), PRODUCTS * (noise + BYTES));
            println!("{error:.1e} <= {limit:.1e}  {name} {weights}");
            assert!(error <= limit, "{name} {weights}: {error:e} > {limit:e}");
        }
    }
}

#[test]
fn program_requantises_reports_the_error_and_saves() {
    let folder = scratch("requantised_program");
    let [plan, text, out] = ["model.ixp", "text.txt", "out.npy"].map(|name| folder.join(name));
    std::fs::write(&text, "The quick brown fox jumps over the lazy dog, and the dog does not mind it.").unwrap();
    let [plan, text, out] = [&plan, &text, &out].map(|path| path.to_str().unwrap());
    for weights in ["i4_row", "i4_g128"] {
        let said = stdout(ixc(["compile", "--weights", weights, "--text", text, "-o", plan, "--force"]));
        assert!(said.contains("requantised, over ") && said.contains("the same likeliest token at"), "{said}");
    }
    let json = stdout(ixc(["compile", "--weights", "i8_row", "--text", text, "-o", plan, "--force", "--json"]));
    let facts: serde_json::Value = serde_json::from_str(&json).unwrap();
    let mean = facts["divergence"]["mean"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 0.05, "{json}");
    let logits = |arguments: &[&str]| {
        stdout(ixc([&["logits", "--tokens", "1,17,60,3,99,5", "-o", out], arguments].concat()));
        let logits = read_npy(Path::new(out)).1;
        std::fs::remove_file(out).unwrap();
        bits(&logits)
    };
    let saved = logits(&[plan]);
    assert!(saved == logits(&["--weights", "i8_row"]), "a saved plan has other bits");
    assert!(saved == logits(&["--weights", "i8_row", "--no-pack"]), "what is requantised is packed in any case");
    assert!(saved != logits(&[]) && logits(&["--weights", "keep"]) == logits(&[]));
    let dump = stdout(ixc(["dump", "--stage", "fused", "--weights", "i8_row"]));
    assert!(dump.contains("stored = q4_k"), "{dump}");
    for (arguments, expected) in [
        (&["compile", "--text", text, "-o", plan, "--force"][..], "--weights"),
        (
            &["compile", "--target", "dataflow:tiny", "--weights", "i8_row", "-o", out],
            "in the formats of the model file",
        ),
        (&["run", "-p", "x", "--weights", "i5_row"], "expected i8_row, i4_row, i4_g128 or keep"),
        (&["run", "-p", "x", "--weights", "*_exps*=q4_k"], "expected i8_row, i4_row, i4_g128 or keep"),
        (&["run", plan, "-p", "x", "--weights", "i4_row"], "a plan already fixes"),
        (&["logits", "--tokens", "1", "-o", out, "--engine", "interpreter", "--weights", "i8_row"], "--weights"),
    ] {
        let output = ixc(arguments).output().unwrap();
        assert!([2, 65].contains(&output.status.code().unwrap()), "{arguments:?}: {:?}", output.status);
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

/// Checks that the runtime refuses plans whose weights cannot be converted from their stored
/// format.
#[test]
fn plans_with_impossible_requantisation_are_refused() {
    let [_, made] = models();
    let (path, model, _) = open("hostile", &made);
    let plan = compile(&model, &options(Target::AVX2, "i8_row")).unwrap().plan;
    let at = plan.weights.iter().position(|weight| weight.format == Format::I8RowR16).unwrap();
    for (format, stored) in [
        (Format::I8Row, Q4K),
        (Format::I8RowR16, Format::I4RowR16),
        (Format::I8RowR16, Format::A8Row),
        (Format::A8Row, Q4K),
        (Format::Q4KR16, Q6K),
    ] {
        let mut plan = plan.clone();
        (plan.weights[at].format, plan.weights[at].stored) = (format, stored);
        let error = load(plan, Target::AVX2, 0).unwrap_err().to_string();
        assert!(error.contains(&format!("it is stored as {stored}")), "{format} of {stored}: {error}");
    }
    std::fs::remove_file(&path).unwrap();
}
