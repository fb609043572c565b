//! Sparse attention, in which an index chooses the positions to attend to. Golden models' files are
//! edited so that they choose another number of positions. Results are unchanged before the first
//! position for which some positions are not chosen. Results agree for steps of any size, any
//! number of threads, and attention in parts.

use std::path::Path;

use crate::support::Golden;
use crate::support::engines::{bits, load, logits};
use ixc::compile::{CompileOptions, compile};
use ixc::ir::graph::parse::parse;
use ixc::model::Model;
use ixc::targets::Target;
use ixc_testing::nmse::nmse;

const TOKENS: u32 = 450;

/// Golden models, and the number of positions, entries or blocks that their index chooses here.
///
/// - Most models choose about 300 positions, more than one part of attention has. `glm5-next`
///   chooses them in runs of 4.
/// - `deepseek4-chosen` chooses among entries of 4 positions, so it chooses a smaller number.
/// - `BLOCKS` chooses blocks of 32 positions for each head.
const MODELS: [(&str, u32); 8] = [
    ("deepseek32", 300),
    ("glm-dsa", 290),
    ("glm5-next", 300),
    ("deepseek4-chosen", 40),
    ("hy_v4", 300),
    ("dots3note", 300),
    (BLOCKS, 9),
    ("mistral-large4", 300),
];
const BLOCKS: &str = "minimax-m3-chosen";
const BLOCK: u32 = 32;

/// Returns a number to choose that is larger than the number of existing positions, but smaller
/// than the context. All positions are then chosen, but the graph still has an index.
fn all(name: &str) -> u32 {
    if name == BLOCKS { TOKENS.div_ceil(BLOCK) } else { 512 }
}

/// Returns a golden model whose index chooses `top_k` positions, entries or blocks.
fn choosing(name: &str, top_k: u32) -> Model {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/models/{name}.gguf"));
    let mut file = std::fs::read(golden).unwrap();
    let key = b"attention.indexer.top_k";
    // After the key come its type, a u32, and its value.
    let at = file.windows(key.len()).position(|bytes| bytes == key).unwrap() + key.len();
    assert_eq!(file[at..at + 4], 4u32.to_le_bytes());
    file[at + 4..at + 8].copy_from_slice(&top_k.to_le_bytes());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chosen_{name}_{top_k}.gguf"));
    std::fs::write(&path, file).unwrap();
    Model::open(&path).unwrap()
}

fn tokens(name: &str) -> Vec<u32> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/expect/{name}.json"));
    let golden = Golden::read(&golden);
    let prompt = golden.tokens("prompt_tokens");
    (0..TOKENS as usize).map(|i| prompt[(i * i + i / 7) % prompt.len()]).collect()
}

/// Returns the first position for which the index does not choose all positions, runs of positions
/// or entries.
fn beyond(name: &str, top_k: u32) -> usize {
    match name {
        "glm5-next" => top_k as usize + 3,
        "deepseek4-chosen" => (top_k as usize + 1) * 4 - 1,
        BLOCKS => (top_k * BLOCK) as usize,
        _ => top_k as usize,
    }
}

#[test]
fn unselected_positions_affect_only_later_rows() {
    for (name, top_k) in MODELS {
        let (few, all, tokens) = (choosing(name, top_k), choosing(name, all(name)), tokens(name));
        let target = Target::AVX2;
        if !target.missing().is_empty() {
            println!("not on this machine: it would be emulated for long");
            return;
        }
        let options = CompileOptions { target: Some(target), max_tokens: Some(64), ..CompileOptions::default() };
        let engine = |model: &Model| load(compile(model, &options).unwrap().plan, target, 0).unwrap();
        let (mut few, mut all) = (engine(&few), engine(&all));
        let beyond = beyond(name, top_k);
        let mut by_rows = Vec::new();
        for step in [64, 37, 1] {
            let (found, right) = (logits(&mut few, &tokens, step), logits(&mut all, &tokens, step));
            let width = found.len() / tokens.len();
            let differs = found.chunks(width).zip(right.chunks(width)).position(|(a, b)| bits(a) != bits(b));
            // If positions with small weights are not chosen, the bits may stay the same at first.
            let differs = differs.unwrap_or(tokens.len());
            println!(
                "{name}, {step} rows: logits differ from position {differs} on; positions are dropped from {beyond} on"
            );
            assert!((beyond..beyond + 20).contains(&differs), "{name}, {step} rows: {differs}, {beyond}");
            by_rows.push(found);
        }
        // Sums of floats depend on the number of rows and on the parts, so bits may differ. If the
        // index chose other positions, the difference would be larger.
        let many = &by_rows[0];
        let width = many.len() / tokens.len();
        for (found, how) in by_rows[1..].iter().zip(["in other steps", "one by one"]) {
            let mut errors: Vec<f64> = many.chunks(width).zip(found.chunks(width)).map(|(a, b)| nmse(b, a)).collect();
            errors.sort_by(f64::total_cmp);
            let (usual, most) = (errors[errors.len() * 9 / 10], errors[errors.len() - 1]);
            println!("{name}: {how} {usual:.1e} from 64 together, {most:.1e} at the most");
            assert!(usual < 1e-8 && most < 1e-2, "{name}, {how}: {usual:e}, {most:e}");
        }
    }
}

/// Checks that all targets choose the same positions. Their logits must not differ by more than in
/// models without an index.
#[test]
fn targets_agree_on_chosen_places() {
    for (name, top_k) in [("deepseek32", 20), ("glm5-next", 20), ("deepseek4-chosen", 7), ("hy_v4", 20), (BLOCKS, 2)] {
        let (model, tokens) = (choosing(name, top_k), &tokens(name)[..70]);
        let engine = |target: Target| {
            let options = CompileOptions { target: Some(target), max_tokens: Some(64), ..CompileOptions::default() };
            load(compile(&model, &options).unwrap().plan, target, 0).unwrap()
        };
        let (mut portable, mut avx2) = (engine(Target::PORTABLE), engine(Target::AVX2));
        let mut others = [Target::AVX512, Target::AMX].map(|target| (target, engine(target)));
        for step in [64, 1] {
            let right = logits(&mut portable, tokens, step);
            assert!(bits(&logits(&mut avx2, tokens, step)) == bits(&right), "{name}, {step} rows");
            for (target, engine) in &mut others {
                let error = nmse(&logits(engine, tokens, step), &right);
                println!("{name}, {step} rows: {} {error:.1e} from portable", target.name());
                assert!(error < 1e-4, "{name}, {step} rows: {error:e}");
            }
        }
    }
}

/// Checks that a plan with scores that depend on the distance (ALiBi) is refused. Chosen positions
/// are stored consecutively, so kernels do not know their distance.
#[test]
fn distance_slopes_with_selected_positions_are_refused() {
    let mut model = choosing("deepseek32", 20);
    let text = model.arch.module.to_string().replace("cap = 0.0}", "cap = 0.0, max_bias = 8.0}");
    model.arch.module = parse(&text).unwrap();
    let error = compile(&model, &CompileOptions::default()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("does not support ALiBi slopes for positions that an index chose"), "{error}");
}

/// Checks that streaming experts changes no bits. Sequences are also truncated, to positions at
/// which some blocks are not chosen, and to positions at which all are.
#[test]
fn selected_blocks_are_independent_of_streaming_and_truncation() {
    let (model, tokens) = (choosing(BLOCKS, 2), tokens(BLOCKS));
    for target in [Target::AVX2, Target::PORTABLE] {
        let options = CompileOptions { target: Some(target), max_tokens: Some(64), ..CompileOptions::default() };
        let mut resident = load(compile(&model, &options).unwrap().plan, target, 0).unwrap();
        for step in [64, 1] {
            let right = bits(&logits(&mut resident, &tokens, step));
            // This budget has memory for six of the sixteen experts.
            let budget = 6 << 14;
            let streamed = CompileOptions { expert_memory: Some(budget), ..options.clone() };
            let mut engine = load(compile(&model, &streamed).unwrap().plan, target, budget).unwrap();
            assert!(bits(&logits(&mut engine, &tokens, step)) == right, "{}, {step} rows", target.name());
        }
        let right = bits(&logits(&mut resident, &tokens, 1));
        let width = right.len() / tokens.len();
        let other: Vec<u32> = tokens.iter().rev().copied().collect();
        for kept in [200, 50] {
            assert_eq!(resident.truncate(kept), kept);
            for tokens in other[..100].chunks(50) {
                resident.step(tokens, &[]).unwrap();
            }
            assert_eq!(resident.truncate(kept), kept);
            for (i, token) in tokens.iter().enumerate().skip(kept as usize) {
                let found = bits(resident.step(&[*token], &[0]).unwrap());
                assert!(found == right[i * width..][..width], "{}: position {i} after going back", target.name());
            }
        }
    }
}
