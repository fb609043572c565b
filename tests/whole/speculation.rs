//! Speculative decoding, which changes no text, only the time.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::support::cover::cover_on;
use crate::support::engines::{self, bits, native};
use crate::support::server::Server;
use crate::support::{
    Golden, demo_model, ixc, scratch, session_without_tiles, shared, stderr, stdout, target_without_tiles,
};
use ixc::compile::{CompileOptions, compile};
use ixc::draft_model::{self, DraftModel};
use ixc::error::draft::DraftError;
use ixc::generator::{End, Event, Generator, Request, RequestId};
use ixc::grammar::{GrammarSource, Matcher, Vocabulary};
use ixc::ir::random::Random;
use ixc::loaded_model::LoadedModel;
use ixc::model::Model;
use ixc::runtime::engine::{self, Addition, Engine, FIRST, StepError};
use ixc::runtime::load::LoadError;
use ixc::runtime::sample::SamplerSettings;
use ixc::runtime::streaming::StreamError;
use ixc::runtime::streaming::store::Config;
use ixc::session::{Generation, Session};
use ixc::speculate::{self, Drafter, MAX_ROWS, Ngram, NgramOptions, Speculation, Text};
use ixc::targets::Target;

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn goldens() -> Vec<Golden> {
    [Some(own()), shared("golden")].into_iter().flatten().flat_map(|folder| Golden::all(&folder)).collect()
}

fn golden(name: &str) -> Golden {
    Golden::read(&own().join("expect").join(name).with_extension("json"))
}

/// Models for each kind of state that can be truncated, with and without experts, and with float
/// weights.
const KINDS: [&str; 6] = ["granite", "gemma2", "gpt-oss", "llama4", "deepseek2-kv_b", "qwen3vlmoe"];

/// A draft source that knows the expected text, and sometimes drafts wrong tokens. Every case of
/// accepted and rejected drafts thus occurs.
#[derive(Debug)]
struct Knows {
    texts: Vec<Vec<u32>>,
    random: Random,
}

impl Drafter for Knows {
    fn name(&self) -> &'static str {
        "knows"
    }

    fn draft(&mut self, texts: &mut [Text<'_>]) -> Result<Duration, ixc::GenerationError> {
        for text in texts {
            let Some(known) = self.texts.iter().find(|known| known.starts_with(text.tokens)) else { continue };
            let most = self.random.index(text.max_draft + 1);
            text.draft.extend(known[text.tokens.len()..].iter().take(most));
            for token in &mut text.draft {
                if self.random.once_in(6) {
                    *token = known[self.random.index(known.len())];
                }
            }
        }
        Ok(Duration::ZERO)
    }
}

pub fn always(max: usize) -> speculate::SpeculationOptions {
    speculate::SpeculationOptions { max, min: 1, always: true }
}

/// Checks that the logits of draft tokens, computed as rows of one step, have the same bits as in
/// steps of one token.
fn rows_are_steps(golden: &Golden, target: Target, random: &mut Random) {
    let plan = compile(
        &Model::open(&golden.model).unwrap(),
        &CompileOptions { target: Some(target), ..CompileOptions::default() },
    );
    let options = engine::EngineOptions {
        threads: Some(2),
        backend: native(target),
        sequences: 2,
        more_additions: 8,
        exact_batch: true,
        ..engine::EngineOptions::default()
    };
    let mut engine = Engine::load(plan.unwrap().plan, Path::new(""), &options).unwrap();
    let prompt = golden.tokens("prompt_tokens");
    let from = prompt.len() / 3;
    engine.prefill(&prompt[..from]).unwrap();
    let expected: Vec<_> = prompt[from..].iter().map(|token| bits(engine.step(&[*token], &[0]).unwrap())).collect();
    engine.reset();
    let other = engine.add_sequence().unwrap();
    engine.prefill(&prompt[..from]).unwrap();
    let mut at = from;
    while at < prompt.len() {
        let right = (1 + random.index(7)).min(prompt.len() - at);
        // Wrong tokens follow the right ones, as in a rejected draft. The sequence is truncated
        // afterwards.
        let wrong = if engine.cuts_steps() { random.index(8 - right + 1) } else { 0 };
        let tokens = [&prompt[at..at + right], &prompt[..wrong]].concat();
        let tokens = &tokens[..tokens.len().min((engine.context() as usize).saturating_sub(at))];
        let mut additions: Vec<Addition<'_>> =
            tokens.chunks(1).map(|tokens| Addition { sequence: FIRST, tokens, outputs: &[0] }).collect();
        // Some steps also have tokens of another sequence, which starts from the beginning each
        // time.
        let beside = random.once_in(2);
        if beside {
            engine.truncate_sequence(other, 0).unwrap();
            additions.push(Addition { sequence: other, tokens: &prompt[..1], outputs: &[] });
        }
        engine.step_batch(&additions).unwrap();
        for row in 0..right {
            assert!(
                bits(engine.logits(row)) == expected[at - from + row],
                "{} {}: row {row} of {}, {wrong} of them wrong, at {at}, alone {}: other bits than in a step of its own",
                golden.name(),
                target.name(),
                tokens.len(),
                !beside
            );
        }
        at += right;
        if wrong > 0 {
            assert_eq!(engine.truncate(at as u32), at as u32, "{}", golden.name());
        }
    }
}

#[test]
fn draft_rows_match_the_bits_of_single_steps() {
    let mut random = Random::new(31);
    let goldens = goldens();
    let targets: Vec<Target> =
        [Target::AVX2, Target::AVX512].into_iter().filter(|target| target.missing().is_empty()).collect();
    for (golden, target) in cover_on(&goldens, &targets) {
        rows_are_steps(golden, target, &mut random);
    }
    rows_are_steps(&golden("granite"), Target::PORTABLE, &mut random);
}

/// Checks targets with tiles, on which the rows that are added together are rounded together. With
/// the option for exact batches, the rows of drafts still have the bits of single steps.
#[test]
fn draft_rows_match_single_step_bits_with_tiles() {
    println!("amx: {}", if Target::AMX.missing().is_empty() { "native" } else { "emulated" });
    rows_are_steps(&golden("granite"), Target::AMX, &mut Random::new(32));
}

#[test]
fn invalid_draft_steps_are_refused() {
    let options = engine::EngineOptions { more_additions: 1, sequences: 2, ..engine::EngineOptions::default() };
    let options = session_without_tiles(options);
    let model = Model::open(&golden("granite").model).unwrap();
    let plan = compile(&model, &CompileOptions::default()).unwrap().plan;
    let mut engine = Engine::load(plan, Path::new(""), &options.run).unwrap();
    let other = engine.add_sequence().unwrap();
    let add = |sequence| Addition { sequence, tokens: &[1], outputs: &[0] };
    assert_eq!(engine.step_batch(&[add(FIRST), add(other), add(FIRST)]), Err(StepError::SequenceTwice { id: FIRST }));
    assert_eq!(
        engine.step_batch(&[add(FIRST), add(FIRST), add(FIRST), add(other)]),
        Err(StepError::TooManyAdditions { found: 4, max: 3 })
    );
    assert_eq!((engine.max_additions(), engine.position()), (3, 0), "nothing was added");
    // Positions of the second addition follow those of the first.
    let context = engine.context();
    let long = vec![1; 512];
    while engine.position() + 512 < context {
        engine.step(&long, &[]).unwrap();
    }
    let left = (context - engine.position()) as usize;
    let most = [Addition { sequence: FIRST, tokens: &long[..left], outputs: &[] }, add(FIRST)];
    assert_eq!(
        engine.step_batch(&most),
        Err(if left == 512 {
            StepError::TooManyTokens { found: 513, max: 512 }
        } else {
            StepError::ContextFull { position: context, tokens: 1, context }
        })
    );
}

/// Loads a model for drafts of `max` tokens.
fn model(path: Option<&Path>, max: usize) -> LoadedModel {
    let run =
        engine::EngineOptions { threads: Some(2), more_additions: max as u32, ..engine::EngineOptions::default() };
    LoadedModel::open(path, &session_without_tiles(run)).unwrap()
}

/// Opens a session for drafts of `max` tokens.
fn session(path: Option<&Path>, max: usize) -> Session {
    Session::new(model(path, max))
}

pub fn generate(session: &mut Session, request: &Request) -> Generation {
    session.generate(request, |_| Ok::<_, ixc::Error>(ControlFlow::Continue(()))).unwrap()
}

/// Returns greedy settings, settings with random sampling, and settings with random sampling and
/// all penalties on earlier tokens.
pub fn settings() -> [SamplerSettings; 3] {
    let drawn = SamplerSettings { seed: 11, temperature: 1.2, ..SamplerSettings::default() };
    let remembers = SamplerSettings {
        repeat_penalty: 1.2,
        presence_penalty: 0.3,
        dry_multiplier: 0.8,
        mirostat: 0,
        seed: 12,
        ..SamplerSettings::default()
    };
    [SamplerSettings::greedy(), drawn, remembers]
}

/// Checks that the text and the session's position are the same as without drafts. Returns the
/// number of accepted and of drafted tokens.
#[track_caller]
pub fn same(session: &mut Session, request: &Request, expected: &Generation, what: &str) -> (u64, u64) {
    let found = generate(session, request);
    assert_eq!((&found.tokens, &found.end), (&expected.tokens, &expected.end), "{what}");
    assert_eq!(found.decode.tokens, expected.decode.tokens, "{what}");
    let held = request.tokens.len() + found.tokens.len() - usize::from(!matches!(found.end, End::Token(_)));
    assert_eq!(session.model().engine().position() as usize, held, "{what}");
    (found.speculation.accepted, found.speculation.drafted)
}

#[test]
fn drafts_change_no_texts() {
    let mut sums = [(0, 0); 2];
    for name in KINDS {
        let golden = golden(name);
        let mut session = session(Some(&golden.model), 9);
        let prompt = golden.tokens("prompt_tokens");
        // A text with repetitions, as real texts have.
        let prompt = [&prompt[..prompt.len().min(40)], &prompt[..prompt.len().min(20)]].concat();
        for (number, sampling) in settings().into_iter().enumerate() {
            for limit in [1, 2, 33] {
                let request = Request { limit: Some(limit), ..Request::new(&prompt[..], sampling.clone()) };
                let expected = generate(&mut session, &request);
                let text = [&prompt[..], &expected.tokens].concat();
                let what = format!("{name}, settings {number}, {limit} tokens");
                let drafters: [Box<dyn Drafter>; 2] = [
                    Box::new(Ngram::new(NgramOptions { min: 1, max: 4 })),
                    Box::new(Knows { texts: vec![text], random: Random::new(number as u64) }),
                ];
                let mut guessing = self::session(Some(&golden.model), 9);
                for (drafter, sum) in drafters.into_iter().zip(&mut sums) {
                    guessing.speculate(Speculation::new(drafter, always(9))).unwrap();
                    let (accepted, drafted) = same(&mut guessing, &request, &expected, &what);
                    *sum = (sum.0 + accepted, sum.1 + drafted);
                }
            }
        }
    }
    println!("came true, of guesses: ngram {:?}, known text {:?}", sums[0], sums[1]);
    assert!(sums[0].1 > 0 && sums[1].0 > 100 && sums[1].0 < sums[1].1, "{sums:?}");
}

#[test]
fn drafts_change_no_texts_of_streamed_models() {
    let golden = golden("qwen3vlmoe");
    let prompt = golden.tokens("prompt_tokens");
    let request = Request { limit: Some(24), ..Request::new(&prompt[..], SamplerSettings::greedy()) };
    let expected = generate(&mut session(Some(&golden.model), 0), &request);
    let text = [&prompt[..], &expected.tokens].concat();
    let options =
        CompileOptions { expert_memory: Some(0), target: Some(target_without_tiles()), ..CompileOptions::default() };
    let plan = compile(&Model::open(&golden.model).unwrap(), &options).unwrap().plan;
    // With the least budget, the experts for all rows of a draft do not fit in memory at once.
    let budget = match engines::load(plan.clone(), target_without_tiles(), 1) {
        Err(LoadError::Stream(error)) => match *error {
            StreamError::Budget { needed, .. } => needed,
            other => panic!("{other}"),
        },
        other => panic!("a byte is enough, or not tried: {:?}", other.err()),
    };
    let run = engine::EngineOptions {
        threads: Some(2),
        more_additions: 9,
        stream: Config { budget, ..Config::default() },
        ..engine::EngineOptions::default()
    };
    let options = session_without_tiles(run);
    let mut streamed = Session::new(LoadedModel::of_plan(plan, Path::new(""), &options).unwrap());
    assert!(streamed.model().engine().stream().is_some());
    let knows = Knows { texts: vec![text], random: Random::new(3) };
    streamed.speculate(Speculation::new(Box::new(knows), always(9))).unwrap();
    let (accepted, drafted) = same(&mut streamed, &request, &expected, "streamed");
    assert!(accepted > 0 && accepted < drafted, "{accepted} of {drafted}");
}

fn json_matcher(model: &LoadedModel) -> Matcher {
    let source =
        GrammarSource::Schema(json!({"type": "array", "items": {"type": "integer"}, "minItems": 5, "maxItems": 9}));
    Vocabulary::new(model.tokenizer().unwrap()).unwrap().matcher(&source).unwrap()
}

/// Checks that draft tokens that a grammar forbids are rejected. After a rejection, the grammar's
/// state is the one after the last sampled token.
#[test]
fn drafts_change_no_grammar_constrained_answers() {
    let mut plain = session(None, 0);
    let prompt = plain.model().encode_prompt("Numbers: [1, 2, 3, 4] and again: [1, 2, 3, 4] and again: ").unwrap();
    let matcher = json_matcher(plain.model());
    let (mut accepted, mut drafted) = (0, 0);
    for seed in 0..6 {
        let sampling = SamplerSettings { seed, ..SamplerSettings::default() };
        let request =
            Request { limit: Some(60), grammar: Some(matcher.clone()), ..Request::new(&prompt[..], sampling) };
        let expected = generate(&mut plain, &request);
        for max in [1, 4, 9] {
            let mut guessing = session(None, max);
            let text = [&prompt[..], &expected.tokens].concat();
            let knows = Knows { texts: vec![text], random: Random::new(seed) };
            guessing.speculate(Speculation::new(Box::new(knows), always(max))).unwrap();
            let (true_ones, all) = same(&mut guessing, &request, &expected, "a list of numbers");
            (accepted, drafted) = (accepted + true_ones, drafted + all);
            guessing.speculate(Speculation::new(Box::new(Ngram::default()), always(max))).unwrap();
            same(&mut guessing, &request, &expected, "a list of numbers, ngram");
        }
    }
    assert!(accepted > 20 && accepted < drafted, "{accepted} of {drafted}");
}

/// Checks a text that the caller stops within a draft. Later tokens are dropped, and the next
/// request reuses the remaining tokens.
#[test]
fn stopping_during_a_draft_keeps_only_returned_tokens() {
    let mut plain = session(None, 9);
    let prompt = plain.model().encode_prompt("The borrow checker").unwrap();
    let request = Request { limit: Some(30), ..Request::new(&prompt[..], SamplerSettings::greedy()) };
    let expected = generate(&mut plain, &request);
    let text = [&prompt[..], &expected.tokens].concat();
    for stop in 1..20 {
        let knows = Knows { texts: vec![text.clone()], random: Random::new(stop) };
        plain.speculate(Speculation::new(Box::new(knows), always(9))).unwrap();
        let mut told = 0;
        let generation = plain.generate(&request, |event| {
            told += u64::from(matches!(event, Event::Token { .. }));
            Ok::<_, ixc::Error>(if told == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        let generation = generation.unwrap();
        assert_eq!((generation.tokens.len() as u64, generation.end), (stop, End::Stopped));
        assert_eq!(generation.tokens, expected.tokens[..stop as usize]);
        assert_eq!(plain.model().engine().position() as usize, prompt.len() + stop as usize - 1);
    }
    assert_eq!(generate(&mut plain, &request).tokens, expected.tokens);
}

/// Checks that a text ends or continues as it does without drafts, if the context becomes full
/// during a draft.
#[test]
fn drafts_change_no_context_end() {
    let open = |max: usize| {
        let run = engine::EngineOptions {
            threads: Some(2),
            context: Some(48),
            more_additions: max as u32,
            ..engine::EngineOptions::default()
        };
        Session::open(None, &session_without_tiles(run)).unwrap()
    };
    for shift in [None, Some(ixc::generator::ContextShift { keep: 4 })] {
        let (mut plain, mut guessing) = (open(0), open(9));
        let prompt = plain.model().encode_prompt("The borrow checker").unwrap();
        let never = plain.model().tokenizer().unwrap().end_of_generation();
        let sampling = SamplerSettings { banned: never, ..SamplerSettings::greedy() };
        let request = Request { limit: Some(120), ..Request::new(&prompt[..], sampling) };
        plain.set_context_shift(shift);
        guessing.set_context_shift(shift);
        let expected = generate(&mut plain, &request);
        guessing.speculate(Speculation::new(Box::new(Ngram::new(NgramOptions { min: 1, max: 3 })), always(9))).unwrap();
        let found = generate(&mut guessing, &request);
        assert_eq!((&found.tokens, found.end, found.shifts), (&expected.tokens, expected.end, expected.shifts));
        assert!(found.speculation.drafted > 0 && (shift.is_none() || found.shifts > 0));
    }
}

/// The tokens of a request, and the reason for its end.
pub type Ended = (Vec<u32>, Option<End>);

/// Runs requests. Returns the tokens of each request with the reason for its end, and the max
/// number of rows in a step.
pub fn run(generator: &mut Generator, jobs: &[Request], random: &mut Random) -> (Vec<Ended>, usize) {
    let mut waiting: Vec<usize> = (0..jobs.len()).collect();
    let mut ids: Vec<Option<RequestId>> = vec![None; jobs.len()];
    let mut all = vec![(Vec::new(), None); jobs.len()];
    let mut most = 0;
    while !waiting.is_empty() || !generator.is_idle() {
        while !waiting.is_empty() && (generator.is_idle() || random.once_in(3)) {
            let job = waiting.remove(0);
            ids[job] = Some(generator.submit(jobs[job].clone()).unwrap());
        }
        for (id, event) in generator.step() {
            let job = ids.iter().position(|found| *found == Some(id)).unwrap();
            match event {
                Event::Token { token, log_probs, .. } => {
                    assert_eq!(log_probs.is_some(), jobs[job].top_logprobs.is_some());
                    assert!(log_probs.is_none_or(|log_probs| log_probs.token.token == token));
                    all[job].0.push(token);
                }
                Event::Ended { end, .. } => all[job].1 = Some(end),
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        most = most.max(generator.last_rows().total);
    }
    (all, most)
}

/// Checks requests of all kinds that run together, in random combinations.
#[test]
fn drafts_change_no_concurrent_requests() {
    let open = |more: u32| {
        let run = engine::EngineOptions {
            threads: Some(2),
            sequences: 3,
            more_additions: more,
            ..engine::EngineOptions::default()
        };
        Generator::new(LoadedModel::open(None, &session_without_tiles(run)).unwrap()).unwrap()
    };
    let mut plain = open(0);
    let matcher = json_matcher(plain.model());
    let prompts =
        ["The borrow checker", "[1, 2, 3, 4], [1, 2, 3, 4], ", "fn main() {", "A trait is", "Once upon a time"];
    let mut random = Random::new(40);
    let mut jobs = Vec::new();
    for (number, sampling) in settings().into_iter().cycle().take(9).enumerate() {
        let tokens = plain.model().encode_prompt(prompts[number % prompts.len()]).unwrap();
        let grammar = (number % 4 == 1).then(|| matcher.clone());
        let (limit, top_logprobs) = (Some(1 + random.index(40)), (number % 3 == 0).then_some(2));
        let sampling = SamplerSettings { seed: number as u64, ..sampling };
        jobs.push(Request { limit, grammar, top_logprobs, ..Request::new(tokens, sampling) });
    }
    let (expected, _) = run(&mut plain, &jobs, &mut random);
    let texts: Vec<Vec<u32>> =
        jobs.iter().zip(&expected).map(|(job, (made, _))| [&job.tokens[..], made].concat()).collect();
    for round in 0..6 {
        let more = [3, 29][round % 2];
        let mut guessing = open(more);
        let drafter: Box<dyn Drafter> = match round % 3 {
            0 => Box::new(Ngram::new(NgramOptions { min: 1, max: 4 })),
            _ => Box::new(Knows { texts: texts.clone(), random: Random::new(round as u64) }),
        };
        let options = speculate::SpeculationOptions { always: round < 4, ..always(7) };
        guessing.speculate(Speculation::new(drafter, options)).unwrap();
        let (found, most) = run(&mut guessing, &jobs, &mut random);
        assert_eq!(found, expected, "round {round}");
        assert!(most <= MAX_ROWS.max(64 * 3), "{most} rows");
        let tally = guessing.speculation_tally();
        println!("round {round}: {tally:?}");
        assert!(round >= 4 || tally.drafted > 0 && (round % 3 == 0 || tally.accepted > 0), "{tally:?}");
    }
}

#[test]
fn models_without_state_truncation_refuse_drafts() {
    for name in ["mamba2", "qwen3next-ssm_in", "lfm2"] {
        let mut session = session(Some(&golden(name).model), 9);
        let refused = session.speculate(Speculation::new(Box::new(Ngram::default()), always(9)));
        assert!(matches!(refused, Err(ixc::GenerationError::NoSpeculation)), "{name}");
    }
    let model = golden("mamba2").model;
    // This model has no vocabulary, so an error about that follows the warning.
    let output = ixc(["run", "-m"]).arg(&model).args(["--spec", "ngram", "-p", "a"]).output().unwrap();
    assert!(stderr(&output).contains("--spec has no effect"), "{}", stderr(&output));
}

/// Checks a draft model with the same weights as the large model. It drafts every likely token, and
/// its state follows the large model's.
#[test]
fn draft_model_predicts_for_a_large_model() {
    let mut plain = session(None, 0);
    let prompt = plain.model().encode_prompt("The borrow checker").unwrap();
    for (sampling, least) in
        settings().into_iter().flat_map(|sampling| [0.0, 0.6].map(|least| (sampling.clone(), least)))
    {
        let greedy = sampling.temperature == 0.0;
        let request = Request { limit: Some(40), ..Request::new(&prompt[..], sampling) };
        let expected = generate(&mut plain, &request);
        let mut large = session(None, 5);
        let small =
            DraftModel::new(model(None, 0), large.model(), draft_model::DraftModelOptions { min_probability: least })
                .unwrap();
        large.speculate(Speculation::new(Box::new(small), always(5))).unwrap();
        // In the second round, the draft model's sequence has to be truncated first.
        for _ in 0..2 {
            let (accepted, drafted) = same(&mut large, &request, &expected, "the demo model, by itself");
            println!("greedy {greedy}, at least {least}: {accepted} of {drafted}");
            assert!((drafted > 0 || least > 0.0) && (!greedy || accepted == drafted), "{accepted} of {drafted}");
        }
    }
}

#[test]
fn draft_model_serves_concurrent_requests() {
    let open = |more: u32, sequences: u32| {
        let run = engine::EngineOptions {
            threads: Some(2),
            sequences,
            more_additions: more,
            ..engine::EngineOptions::default()
        };
        LoadedModel::open(None, &session_without_tiles(run)).unwrap()
    };
    let mut plain = Generator::new(open(0, 3)).unwrap();
    let mut random = Random::new(50);
    let job = |prompt: &str| {
        let tokens = plain.model().encode_prompt(prompt).unwrap();
        Request { limit: Some(24), ..Request::new(tokens, SamplerSettings::greedy()) }
    };
    let long = "A long prompt is read by the small model in parts. ".repeat(30);
    let jobs: Vec<Request> = ["The borrow checker", "A trait is", "fn main() {", &long].map(job).to_vec();
    let (expected, _) = run(&mut plain, &jobs, &mut random);
    let large = open(29, 3);
    let small = DraftModel::new(open(0, 3), &large, draft_model::DraftModelOptions::default()).unwrap();
    let mut guessing = Generator::new(large).unwrap();
    guessing.speculate(Speculation::new(Box::new(small), always(4))).unwrap();
    let (found, _) = run(&mut guessing, &jobs, &mut random);
    assert_eq!(found, expected);
    let tally = guessing.speculation_tally();
    // Some drafts are rejected, because the two models read the prompt in different parts, which
    // changes the rounding.
    assert!(tally.accepted > 10 && tally.accepted * 2 > tally.drafted, "{tally:?}");
}

#[test]
fn draft_model_of_another_vocabulary_is_refused() {
    let large = model(None, 5);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/qwen3moe");
    let small = model(Some(&path), 0);
    let refused = DraftModel::new(small, &large, draft_model::DraftModelOptions::default()).map(drop);
    assert!(matches!(&refused, Err(ixc::GenerationError::Draft(DraftError::Token { .. }))), "{refused:?}");
    let none = model(Some(&golden("granite").model), 0);
    let refused = DraftModel::new(none, &large, draft_model::DraftModelOptions::default()).map(drop);
    assert!(matches!(&refused, Err(ixc::GenerationError::NoTokenizer { .. })), "{refused:?}");
    let output = ixc(["run", "demo", "--raw", "-p", "a", "-n", "1", "--spec"]).arg(&path).output().unwrap();
    assert!(!output.status.success() && stderr(&output).contains("vocabulary"), "{}", stderr(&output));
}

/// Checks the program: the text, the lines of `--stats`, and refused options.
#[test]
fn drafts_work_on_the_command_line() {
    let folder = scratch("speculation");
    let prompt = folder.join("prompt.txt");
    std::fs::write(&prompt, "one two three four five, one two three four five, ".repeat(4)).unwrap();
    let run = |more: &[&str]| {
        let mut command = ixc(["run", "demo", "-n", "40", "--temp", "0", "-t", "2", "--no-chat", "-f"]);
        command.arg(&prompt).args(more).stderr(Stdio::piped());
        command
    };
    let plain = stdout(run(&[]));
    for how in [&["--spec", "ngram"][..], &["--spec-type", "ngram-simple", "--draft-max", "16"], &["--spec", "off"]] {
        assert_eq!(stdout(run(how)), plain, "{how:?}");
    }
    let output = run(&["--spec", "ngram", "--spec-always", "--stats"]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), plain);
    let said = stderr(&output);
    let line = said.lines().find(|line| line.starts_with("drafts ")).unwrap_or_else(|| panic!("{said}"));
    assert!(!line.contains(" 0 accepted"), "{line}");
    let demo = demo_model();
    let demo = demo.to_str().unwrap();
    for how in [&["-md", demo][..], &["--spec", demo], &["--spec", "draft", "--model-draft", demo]] {
        let output = run(&[how, &["--stats", "--spec-always"]].concat()).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), plain, "{how:?}");
        assert!(stderr(&output).contains("by draft"), "{}", stderr(&output));
    }
    for (how, why) in [
        (&["--spec", "draft"][..], "give it with --model-draft"),
        (&["--spec", "ngram", "-md", demo], "leave --spec or --model-draft out"),
        (&["--spec", "nextn", "-md", demo], "leave --spec or --model-draft out"),
        (&["--spec", "ngram", "--spec-ngram-min", "9"], "--spec-ngram-max"),
        (&["--spec", demo, "--draft-p-min", "1.5"], "from 0 to 1"),
        (&["--spec", "ngram", "--draft-max", "65"], "65"),
    ] {
        let output = run(how).output().unwrap();
        assert!(output.status.code() == Some(2) && stderr(&output).contains(why), "{how:?}: {}", stderr(&output));
    }
}

/// Checks that the server reports draft statistics to each client and to Prometheus.
#[test]
fn server_reports_draft_statistics() {
    let body = json!({
        "prompt": "one two three four five, one two three four five, one two three four five, ",
        "n_predict": 40, "temperature": 0, "ignore_eos": true,
    });
    let plain = Server::start(&[]);
    let (status, expected) = plain.post("/completion", &body);
    assert_eq!((status, expected["timings"]["draft_n"].as_u64()), (200, None), "{expected}");
    assert!(plain.metric("spec_decode_num_draft_tokens_total") == 0.0);
    let server = Server::start(&["--spec", "ngram", "--spec-always"]);
    let (status, answer) = server.post("/completion", &body);
    assert_eq!((status, &answer["content"]), (200, &expected["content"]), "{answer}");
    let [drafted, accepted] = ["draft_n", "draft_n_accepted"].map(|name| answer["timings"][name].as_u64().unwrap());
    assert!(accepted > 0 && accepted <= drafted, "{answer}");
    assert!(server.metric("spec_decode_num_draft_tokens_total") as u64 == drafted);
    assert!(server.metric("spec_decode_num_accepted_tokens_total") as u64 == accepted);
    assert!(server.metric("spec_decode_num_drafts_total") > 0.0);
    // If a stop text is within a draft, the answer ends at the stop text.
    let text = expected["content"].as_str().unwrap();
    let stop: String = text.chars().skip(text.chars().count() / 2).take(3).collect();
    let mut stopped = body.clone();
    stopped["stop"] = json!([stop]);
    let [expected, found] = [&plain, &server].map(|server| server.post("/completion", &stopped).1);
    for field in ["content", "stop_type", "stopping_word", "tokens_predicted"] {
        assert_eq!(found[field], expected[field], "{field}");
    }
}
