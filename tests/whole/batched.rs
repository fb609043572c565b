//! Steps with several sequences. The logits of each sequence have the same bits as if it were
//! computed alone.

use std::path::Path;

use crate::support::cover::{cover, cover_on};
use crate::support::engines::{bits, native};
use crate::support::{Golden, shared};
use ixc::compile::{CompileOptions, compile};
use ixc::generator::{Event, Generator, Request};
use ixc::ir::kernel::Kernel;
use ixc::ir::plan::Plan;
use ixc::ir::random::Random;
use ixc::loaded_model::{LoadOptions, LoadedModel};
use ixc::model::Model;
use ixc::runtime::engine::{self, Addition, Engine, FIRST, SequenceId, StepError};
use ixc::runtime::program::MAX_CONTEXT;
use ixc::runtime::program::work::{self, TokenWork};
use ixc::runtime::sample::SamplerSettings;
use ixc::targets::Target;

const SEQUENCES: usize = 4;

fn load(plan: Plan<Kernel>, target: Target) -> Engine {
    let options = engine::EngineOptions {
        threads: Some(2),
        backend: native(target),
        sequences: SEQUENCES as u32,
        exact_batch: true,
        ..engine::EngineOptions::default()
    };
    Engine::load(plan, Path::new(""), &options).unwrap()
}

/// The tokens of one sequence in a step, and the expected bits of its last logits.
type Part = (Vec<u32>, Vec<u32>);

/// Returns a sequence's steps: parts of a prompt, of random sizes. Each part has the last logits of
/// that part, from an engine that computes the sequence alone.
fn alone(engine: &mut Engine, prompt: &[u32], random: &mut Random) -> Vec<Part> {
    engine.reset();
    let mut rest: Vec<u32> = prompt.to_vec();
    rest.rotate_left(random.index(prompt.len()));
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let most = random.pick(&[1, 1, 5, 40]);
        let tokens: Vec<u32> = rest.drain(..rest.len().min(1 + random.index(most))).collect();
        let logits = bits(engine.step(&tokens, &[tokens.len() as u32 - 1]).unwrap());
        parts.push((tokens, logits));
    }
    parts
}

/// Runs the parts of all sequences in random order. Each step of the engine computes the next part
/// of some of the sequences.
fn together(engine: &mut Engine, sequences: &[Vec<Part>], random: &mut Random, how: &str) {
    let ids: Vec<SequenceId> = (0..sequences.len()).map(|_| engine.add_sequence().unwrap()).collect();
    let mut next = vec![0; sequences.len()];
    while sequences.iter().zip(&next).any(|(parts, &next)| next < parts.len()) {
        let first = random.index(sequences.len());
        let order = (0..sequences.len()).map(|i| (first + i) % sequences.len());
        let chosen: Vec<usize> = order.filter(|&i| next[i] < sequences[i].len() && !random.once_in(4)).collect();
        let outputs: Vec<[u32; 1]> = chosen.iter().map(|&i| [sequences[i][next[i]].0.len() as u32 - 1]).collect();
        let additions = chosen.iter().zip(&outputs).map(|(&i, outputs)| Addition {
            sequence: ids[i],
            tokens: &sequences[i][next[i]].0,
            outputs,
        });
        let additions: Vec<Addition<'_>> = additions.collect();
        if additions.is_empty() {
            continue;
        }
        engine.step_batch(&additions).unwrap();
        for (row, &i) in chosen.iter().enumerate() {
            let (tokens, expected) = &sequences[i][next[i]];
            let place = engine.sequence(ids[i]).unwrap().position();
            assert!(
                bits(engine.logits(row)) == *expected,
                "{how}: sequence {i}, {} tokens up to {place}, beside {} others: other bits",
                tokens.len(),
                chosen.len() - 1
            );
            next[i] += 1;
        }
    }
    ids.into_iter().for_each(|id| engine.remove_sequence(id));
}

/// Checks that the work of a plan stays far below the runtime's limit for any context. Models with
/// other sizes thus do not reach the limit.
fn check_work(plan: &Plan<Kernel>, how: &str) {
    for context in [1, 512, plan.context_length, MAX_CONTEXT] {
        let TokenWork { statements, limit } = work::check(plan, context).unwrap();
        println!("{:.4} of the limit of work with a context of {context}: {how}", statements as f64 / limit as f64);
        assert!(statements < limit / 8, "{statements} of {limit} with a context of {context}: {how}");
    }
}

/// Checks random mixes of prompt parts and single tokens, for a cover of the golden models.
#[test]
fn batched_sequences_have_the_bits_of_single_ones() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut random = Random::new(20);
    let folders = [Some(own), shared("golden")].into_iter().flatten();
    let goldens: Vec<Golden> = folders.flat_map(|folder| Golden::all(&folder)).collect();
    let targets: Vec<Target> =
        [Target::AVX2, Target::AVX512].into_iter().filter(|target| target.missing().is_empty()).collect();
    for (golden, target) in cover_on(&goldens, &targets) {
        let model = Model::open(&golden.model).unwrap();
        let prompt = golden.tokens("prompt_tokens");
        let plan = compile(&model, &CompileOptions { target: Some(target), ..CompileOptions::default() }).unwrap().plan;
        let how = format!("{} {}", golden.name(), target.name());
        check_work(&plan, &how);
        let mut engine = load(plan, target);
        let sequences: Vec<_> = (0..SEQUENCES - 1).map(|_| alone(&mut engine, &prompt, &mut random)).collect();
        together(&mut engine, &sequences, &mut random, &how);
    }
}

/// Checks that on targets with tiles, a sequence has the same bits in a batch and alone, if the
/// option for exact batches is set.
#[test]
fn tiles_keep_sequence_bits_with_exact_batches() {
    let target = Target::AMX;
    println!("amx: {}", if target.missing().is_empty() { "native" } else { "emulated" });
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut random = Random::new(21);
    let golden = Golden::all(&own).into_iter().find(|golden| golden.name().contains("granite")).unwrap();
    let model = Model::open(&golden.model).unwrap();
    let plan = compile(&model, &CompileOptions { target: Some(target), ..CompileOptions::default() }).unwrap().plan;
    let mut engine = load(plan, target);
    let prompt = &golden.tokens("prompt_tokens")[..60];
    let sequences: Vec<_> = (0..SEQUENCES - 1).map(|_| alone(&mut engine, prompt, &mut random)).collect();
    together(&mut engine, &sequences, &mut random, golden.name());
}

/// Checks that a copied sequence continues like the original, and that neither changes the other.
#[test]
fn copied_prefix_continues_like_the_original() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let target = Target::native();
    let goldens = Golden::all(&own);
    for golden in cover(&goldens, target) {
        let model = Model::open(&golden.model).unwrap();
        let plan = compile(&model, &CompileOptions { target: Some(target), ..CompileOptions::default() }).unwrap().plan;
        let mut engine = load(plan, target);
        let prompt = golden.tokens("prompt_tokens");
        let (prefix, rest) = prompt.split_at(prompt.len() / 2);
        engine.prefill(prefix).unwrap();
        let other = engine.add_sequence().unwrap();
        // The copy replaces the previous contents of the sequence.
        let garbage = Addition { sequence: other, tokens: &prompt, outputs: &[] };
        engine.step_batch(&[garbage]).unwrap();
        let copied = engine.copy_sequence(FIRST, other, prefix.len() as u32).unwrap();
        assert_eq!(copied as usize, prefix.len(), "{}", golden.name());
        let last = [rest.len() as u32 - 1];
        let expected = bits(engine.step(rest, &last).unwrap());
        let found = bits(engine.step_batch(&[Addition { sequence: other, tokens: rest, outputs: &last }]).unwrap());
        assert!(found == expected, "{}: other bits", golden.name());
    }
}

/// Quantised golden models whose prompts may be computed in several parts. Other models are
/// unsuitable: the rounding of floating-point experts and recurrent states depends on the number of
/// rows in a step (docs/serving.md).
const CUT: [&str; 4] = ["llama-q4_k", "gemma3-q8_0", "mixtral-q4_k_m", "qwen3moe-q4_k_m"];

/// Checks that the last logits of a prompt do not depend on its division into steps.
#[test]
fn prompt_logits_are_independent_of_its_partition() {
    let mut random = Random::new(22);
    let goldens = shared("golden").into_iter().flat_map(|folder| Golden::all(&folder));
    for golden in goldens.filter(|golden| CUT.iter().any(|name| golden.name().contains(name))) {
        let model = Model::open(&golden.model).unwrap();
        let tokens = golden.tokens("prompt_tokens");
        for target in [Target::AVX2, Target::AVX512].into_iter().filter(|target| target.missing().is_empty()) {
            let plan =
                compile(&model, &CompileOptions { target: Some(target), ..CompileOptions::default() }).unwrap().plan;
            let mut engine = load(plan, target);
            let how = format!("{} {}", golden.name(), target.name());
            let most = (engine.context() as usize).min(engine.max_tokens() as usize).min(600);
            // The prompt is longer than one part of attention.
            let prompt: Vec<u32> = tokens.iter().cycle().take(most).copied().collect();
            let least = engine.min_rows() as usize;
            let mut end = |parts: &[&[u32]]| {
                engine.reset();
                let last = parts.iter().map(|part| bits(engine.step(part, &[part.len() as u32 - 1]).unwrap())).last();
                last.unwrap()
            };
            let whole = end(&[&prompt]);
            for _ in 0..3 {
                let cut = random.index((prompt.len() - least) / 16) * 16;
                let (before, rest) = prompt.split_at(cut.max(16));
                assert!(end(&[before, rest]) == whole, "{how}, {} and {} tokens: other bits", before.len(), rest.len());
            }
            // The last part is as short as allowed.
            let (before, rest) = prompt.split_at((prompt.len() - least) / 16 * 16);
            assert!(end(&[before, rest]) == whole, "{how}, {} and {} tokens: other bits", before.len(), rest.len());
        }
    }
}

#[test]
fn invalid_batched_steps_are_refused() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let model = Model::open(&Golden::all(&own)[0].model).unwrap();
    let target = Target::native();
    let plan = compile(&model, &CompileOptions { target: Some(target), ..CompileOptions::default() }).unwrap().plan;
    let mut engine = load(plan, target);
    let other = engine.add_sequence().unwrap();
    let add = |sequence| Addition { sequence, tokens: &[1, 2], outputs: &[1] };
    assert_eq!(engine.step_batch(&[]), Err(StepError::NoTokens));
    let between = [add(other), add(FIRST), add(other)];
    assert_eq!(engine.step_batch(&between), Err(StepError::SequenceTwice { id: other }));
    assert_eq!(engine.copy_sequence(other, other, 1), Err(StepError::CopyOfItself { id: other }));
    engine.step_batch(&[add(other), add(FIRST)]).unwrap();
    let more: Vec<SequenceId> = (2..SEQUENCES).map(|_| engine.add_sequence().unwrap()).collect();
    assert_eq!(engine.add_sequence(), Err(StepError::TooManySequences { max: SEQUENCES as u32 }));
    engine.remove_sequence(other);
    assert_eq!(engine.step_batch(&[add(other)]), Err(StepError::NoSequence { id: other }));
    assert_eq!(engine.truncate_sequence(other, 0), Err(StepError::NoSequence { id: other }));
    assert_eq!(engine.copy_sequence(other, more[0], 0), Err(StepError::NoSequence { id: other }));
    assert_eq!(engine.position(), 2, "others are as they were");
    // The next sequence reuses the id of the removed one, and is empty.
    let again = engine.add_sequence().unwrap();
    assert_eq!(engine.sequence(again).unwrap().position(), 0);
}

/// Checks that each request gets its first token before any request ends, even with short steps.
/// Steps are shorter than the parts of prompts, or have fewer tokens than there are sequences.
#[test]
fn short_steps_serve_every_request_promptly() {
    for most in [2, 8] {
        let compile = CompileOptions { max_tokens: Some(most), ..CompileOptions::default() };
        let run = engine::EngineOptions { sequences: 3, threads: Some(2), ..engine::EngineOptions::default() };
        let options = LoadOptions { compile, run, ..LoadOptions::default() };
        let mut generator = Generator::new(LoadedModel::open(None, &options).unwrap()).unwrap();
        let never = generator.model().tokenizer().unwrap().end_of_generation();
        for tokens in [vec![300], vec![301], (302..322).collect()] {
            let sampling = SamplerSettings { banned: never.clone(), ..SamplerSettings::greedy() };
            generator.submit(Request { limit: Some(40), ..Request::new(tokens, sampling) }).unwrap();
        }
        let (mut begun, mut ended) = (Vec::new(), 0);
        while !generator.is_idle() {
            for (id, event) in generator.step() {
                match event {
                    Event::Token { .. } if !begun.contains(&id) => {
                        assert_eq!(ended, 0, "{id:?} waits for others in steps of {most}");
                        begun.push(id);
                    }
                    Event::Ended { .. } => ended += 1,
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
        }
        assert_eq!((begun.len(), ended), (3, 3));
    }
}
