//! Draft layers of models (nextn), which predict the next tokens. Their results are compared with
//! numbers from `tests/golden/make/nextn.py`. Generated texts must be the same with and without
//! draft layers.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use crate::speculation::{Ended, always, generate, run, same, settings};
use crate::support::engines::{bits, native};
use crate::support::server::Server;
use crate::support::{ixc, read_npy, scratch, session_without_tiles, stderr, stdout, target_without_tiles};
use ixc::architectures::{FileWeights, Nextn, Parts};
use ixc::compile::{CompileOptions, compile};
use ixc::draft_model;
use ixc::error::draft::OwnLayerError;
use ixc::generator::{ContextShift, Generator, Request};
use ixc::ir::graph::interpret::{self, Interpreter};
use ixc::ir::random::Random;
use ixc::loaded_model::{LoadOptions, LoadedModel};
use ixc::model::Model;
use ixc::model_files::gguf::write::GgufWriter;
use ixc::model_files::gguf::{Array, Gguf, Value};
use ixc::own_layer::OwnLayer;
use ixc::runtime::engine::{self, Addition, Engine, FIRST, StepError};
use ixc::runtime::sample::SamplerSettings;
use ixc::runtime::streaming::store::Config;
use ixc::session::Session;
use ixc::speculate::{self, Drafter, HiddenStates, Speculation, Text};
use ixc::targets::Target;
use ixc_testing::nmse::nmse;

/// Max error of the f32 interpreter from the f64 numbers.
const EXACT: f64 = 1e-9;
/// Max error of compiled code. Keys and values are f16, and activations are rounded to 8 bits
/// before each product, with a relative squared error of 2e-5 (`made_models.rs`). About ten
/// products follow each other, and softmax and SwiGLU amplify the error.
const COMPILED: f64 = 5e-4;

const NAMES: [&str; 2] = ["own", "shared"];

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/nextn").join(name).with_extension("gguf")
}

/// Expected results of a model.
struct Known {
    tokens: Vec<u32>,
    /// Token that is the input of the second prediction.
    deeper: u32,
    kept: usize,
    logits: Vec<f32>,
    hidden: Vec<f32>,
    /// Logits of the draft layer. The last row has the logits of the second prediction, which
    /// follows the first predicted token.
    guess: Vec<f32>,
    guess_hidden: Vec<f32>,
}

impl Known {
    fn read(name: &str) -> Known {
        let folder = model(name);
        let folder = folder.parent().unwrap();
        let said: Json = serde_json::from_slice(&std::fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap();
        let ids =
            |key: &str| Vec::from_iter(said[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32));
        let [logits, hidden, guess, guess_hidden] = ["logits", "hidden", "guess", "guess-hidden"]
            .map(|what| read_npy(&folder.join(format!("{name}-{what}.npy"))).1);
        let kept = said["kept"].as_u64().unwrap() as usize;
        Known { tokens: ids("tokens"), deeper: ids("deeper")[0], kept, logits, hidden, guess, guess_hidden }
    }

    /// Checks that the last rows of `found` are close to the known rows.
    #[track_caller]
    fn is(&self, found: &[f32], known: &[f32], limit: f64, what: &str) {
        let error = nmse(&found[found.len() - known.len()..], known);
        println!("{what}: {error:e}");
        assert!(error <= limit, "{what}: {error:e} > {limit:e}");
    }
}

fn parts(nextn: Nextn) -> Parts {
    Parts { nextn, ..Parts::ALL }
}

fn ints(numbers: impl IntoIterator<Item = u32>) -> interpret::Value {
    let data: Vec<i32> = numbers.into_iter().map(|n| n as i32).collect();
    interpret::Value::I32 { dims: vec![data.len()], data }
}

/// Returns the results of a step of the interpreter: logits, and hidden states.
fn interpret(interpreter: &mut Interpreter<'_>, first: u32, tokens: &[u32], hidden: Option<&[f32]>) -> [Vec<f32>; 2] {
    let count = tokens.len();
    let mut given = vec![ints(tokens.iter().copied()), ints(first..first + count as u32), ints(0..count as u32)];
    given.extend(
        hidden.map(|rows| interpret::Value::F32 { dims: vec![count, rows.len() / count], data: rows.to_vec() }),
    );
    let results = interpreter.run("step", given).unwrap();
    let results = results.into_iter().map(|value| match value {
        interpret::Value::F32 { data, .. } => data,
        other => panic!("{other:?}"),
    });
    results.collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn interpreter_matches_recorded_draft_layer_results() {
    for name in NAMES {
        let known = Known::read(name);
        let (of_model, of_layer) =
            (Model::open_parts(&model(name), parts(Nextn::Fed)), Model::open_parts(&model(name), parts(Nextn::Alone)));
        let (of_model, of_layer) = (of_model.unwrap(), of_layer.unwrap());
        let weights = FileWeights::new(&of_model.gguf, &of_model.arch.module);
        let mut interpreter = Interpreter::new(&of_model.arch.module, &weights).unwrap();
        let [logits, hidden] = interpret(&mut interpreter, 0, &known.tokens, None);
        known.is(&logits, &known.logits, EXACT, "logits");
        known.is(&hidden, &known.hidden, EXACT, "hidden states");
        assert_eq!(logits, Model::open(&model(name)).unwrap().exact_logits(&known.tokens).unwrap(), "{name}");
        let weights = FileWeights::new(&of_layer.gguf, &of_layer.arch.module);
        let mut interpreter = Interpreter::new(&of_layer.arch.module, &weights).unwrap();
        let width = hidden.len() / known.tokens.len();
        let all_but_last = &hidden[..hidden.len() - width];
        let [mut guess, own] = interpret(&mut interpreter, 0, &known.tokens[1..], Some(all_but_last));
        known.is(&own, &known.guess_hidden, EXACT, "hidden states of the layer");
        let last = known.tokens.len() as u32 - 1;
        let [deeper, _] = interpret(&mut interpreter, last, &[known.deeper], Some(&own[own.len() - width..]));
        guess.extend(deeper);
        known.is(&guess, &known.guess, EXACT, "guesses");
        assert_eq!(known.kept * width, known.hidden.len());
    }
}

fn engine(name: &str, nextn: Nextn, target: Target) -> Engine {
    let model = Model::open_parts(&model(name), parts(nextn)).unwrap();
    let plan = compile(&model, &CompileOptions { target: Some(target), ..CompileOptions::default() }).unwrap().plan;
    let options =
        engine::EngineOptions { threads: Some(2), backend: native(target), ..engine::EngineOptions::default() };
    Engine::load(plan, Path::new(""), &options).unwrap()
}

/// Checks that all targets compute the known results, in steps of several lengths. Returning hidden
/// states changes no bits of the logits.
#[test]
fn plans_match_recorded_draft_layer_results() {
    for target in [Target::AVX2, Target::PORTABLE, Target::AVX512, Target::AMX] {
        for name in NAMES {
            // Emulated code is slow, so this model is skipped.
            if native(target) != native(Target::PORTABLE) && name == "shared" {
                continue;
            }
            let known = Known::read(name);
            let mut plain = engine(name, Nextn::Absent, target);
            let mut of_model = engine(name, Nextn::Fed, target);
            let (mut logits, mut hidden, mut same) = (Vec::new(), Vec::new(), Vec::new());
            for part in known.tokens.chunks(17) {
                let rows: Vec<u32> = (0..part.len() as u32).collect();
                logits.extend_from_slice(of_model.step(part, &rows).unwrap());
                hidden.extend_from_slice(of_model.hidden_states());
                same.extend_from_slice(plain.step(part, &rows).unwrap());
                assert!(plain.hidden_states().is_empty() && plain.gives_hidden().is_none());
            }
            assert!(
                bits(&logits) == bits(&same),
                "{name} {}: other logits where there are hidden states",
                target.name()
            );
            known.is(&logits, &known.logits, COMPILED, "logits");
            known.is(&hidden, &known.hidden, COMPILED, "hidden states");
            let width = of_model.gives_hidden().unwrap() as usize;
            let mut layer = engine(name, Nextn::Alone, target);
            assert_eq!((layer.takes_hidden(), layer.gives_hidden()), (Some(width as u32), Some(width as u32)));
            let (mut guess, mut own) = (Vec::new(), Vec::new());
            for (part, hidden) in known.tokens[1..].chunks(13).zip(hidden.chunks(13 * width)) {
                let rows: Vec<u32> = (0..part.len() as u32).collect();
                let addition = Addition { sequence: FIRST, tokens: part, outputs: &rows };
                guess.extend_from_slice(layer.step_hidden(&[addition], &hidden[..part.len() * width]).unwrap());
                own.extend_from_slice(layer.hidden_states());
            }
            known.is(&own, &known.guess_hidden, COMPILED, "hidden states of the layer");
            let addition = Addition { sequence: FIRST, tokens: &[known.deeper], outputs: &[0] };
            guess.extend_from_slice(layer.step_hidden(&[addition], &own[own.len() - width..]).unwrap());
            known.is(&guess, &known.guess, COMPILED, "guesses");
            // Hidden states of a wrong number of rows are refused and change nothing.
            let position = layer.position();
            for found in [0, width - 1, 2 * width] {
                let expected = StepError::Hidden { found, rows: 1, expected: width as u32 };
                assert_eq!(layer.step_hidden(&[addition], &own[..found]), Err(expected));
            }
            assert!(of_model.step_hidden(&[addition], &own[..width]).is_err());
            assert_eq!((layer.position(), layer.hidden_states().len()), (position, 0));
        }
    }
}

/// Settings with which sessions are opened.
#[derive(Clone, Copy)]
struct How {
    guesses: u32,
    sequences: u32,
    context: Option<u64>,
}

const ALONE: How = How { guesses: 9, sequences: 1, context: None };

fn open(name: &str, how: How, nextn: Nextn) -> LoadedModel {
    let run = engine::EngineOptions {
        threads: Some(2),
        sequences: how.sequences,
        context: how.context,
        more_additions: if nextn == Nextn::Fed { how.guesses } else { 0 },
        ..engine::EngineOptions::default()
    };
    LoadedModel::open(Some(&model(name)), &LoadOptions { nextn, ..session_without_tiles(run) }).unwrap()
}

fn own_layer(name: &str, how: How, model: &LoadedModel, least: f32) -> Box<OwnLayer> {
    let layer = open(name, how, Nextn::Alone);
    Box::new(OwnLayer::new(layer, model, draft_model::DraftModelOptions { min_probability: least }).unwrap())
}

#[test]
fn draft_layer_changes_no_texts() {
    for name in NAMES {
        let known = Known::read(name);
        for (number, sampling) in settings().into_iter().enumerate() {
            let never = vec![256];
            let sampling = SamplerSettings { banned: never, ..sampling };
            let mut plain = Session::new(open(name, ALONE, Nextn::Absent));
            let mut guessing = Session::new(open(name, ALONE, Nextn::Fed));
            let layer = own_layer(name, ALONE, guessing.model(), 0.0);
            guessing.speculate(Speculation::new(layer, always(9))).unwrap();
            // The texts continue an earlier text, return to an earlier position, or are different.
            // Prompts are long, so that they become cache entries while they are computed, or
            // short.
            let long: Vec<u32> = known.tokens.iter().copied().cycle().take(100).collect();
            let other: Vec<u32> = known.tokens.iter().rev().copied().collect();
            let (mut accepted, mut drafted) = (0, 0);
            for prompt in [&known.tokens[..7], &known.tokens, &known.tokens[..20], &long, &other[..1], &long] {
                for limit in [1, 2, 33] {
                    let request = Request { limit: Some(limit), ..Request::new(prompt, sampling.clone()) };
                    let expected = generate(&mut plain, &request);
                    let what = format!("{name}, settings {number}, {limit} tokens behind {}", prompt.len());
                    let (true_ones, all) = same(&mut guessing, &request, &expected, &what);
                    (accepted, drafted) = (accepted + true_ones, drafted + all);
                }
            }
            println!("{name}, settings {number}: {accepted} of {drafted} came true");
            assert!(drafted > 100, "{drafted}");
            // The draft layer of `shared` predicts nearly all tokens of a greedy text correctly.
            let least = if name == "shared" { [0.9, 0.5, 0.02][number] } else { 0.0 };
            assert!(accepted as f64 >= least * drafted as f64, "{name}, settings {number}: {accepted} of {drafted}");
        }
    }
}

/// Checks that predictions end at the first token whose probability is below the layer's minimum.
#[test]
fn draft_layer_stops_below_its_minimum_probability() {
    let (name, known) = ("own", Known::read("own"));
    let mut guessing = Session::new(open(name, ALONE, Nextn::Fed));
    let layer = own_layer(name, ALONE, guessing.model(), 0.99);
    guessing.speculate(Speculation::new(layer, always(9))).unwrap();
    let request = Request { limit: Some(20), ..Request::new(&known.tokens[..], SamplerSettings::greedy()) };
    let expected = generate(&mut Session::new(open(name, ALONE, Nextn::Absent)), &request);
    // With random weights, the layer never reaches this probability.
    assert_eq!(same(&mut guessing, &request, &expected, "sure"), (0, 0));
}

/// Checks that a text ends or continues as it does without predictions, if the context becomes full
/// during predictions.
#[test]
fn draft_layer_changes_no_context_end() {
    for shift in [None, Some(ContextShift { keep: 4 })] {
        let (name, how) = ("shared", How { context: Some(64), ..ALONE });
        let known = Known::read(name);
        let [mut plain, mut guessing] = [Nextn::Absent, Nextn::Fed].map(|nextn| Session::new(open(name, how, nextn)));
        let layer = own_layer(name, how, guessing.model(), 0.0);
        guessing.speculate(Speculation::new(layer, always(9))).unwrap();
        let sampling = SamplerSettings { banned: vec![256], ..SamplerSettings::greedy() };
        let request = Request { limit: Some(150), ..Request::new(&known.tokens[..12], sampling) };
        plain.set_context_shift(shift);
        guessing.set_context_shift(shift);
        let (expected, found) = (generate(&mut plain, &request), generate(&mut guessing, &request));
        assert_eq!((&found.tokens, found.end, found.shifts), (&expected.tokens, expected.end, expected.shifts));
        let (accepted, drafted) = (found.speculation.accepted, found.speculation.drafted);
        assert!(accepted * 10 > drafted * 8 && drafted > 20, "{accepted} of {drafted}");
        assert_eq!(found.shifts > 0, shift.is_some());
    }
}

/// Loads a model whose experts are streamed.
fn streamed(name: &str, nextn: Nextn) -> LoadedModel {
    let options =
        CompileOptions { expert_memory: Some(0), target: Some(target_without_tiles()), ..CompileOptions::default() };
    let plan = compile(&Model::open_parts(&model(name), parts(nextn)).unwrap(), &options).unwrap().plan;
    let run = engine::EngineOptions {
        threads: Some(2),
        more_additions: 9,
        stream: Config { budget: 1 << 20, ..Config::default() },
        ..engine::EngineOptions::default()
    };
    let model = LoadedModel::of_plan(plan, Path::new(""), &session_without_tiles(run)).unwrap();
    assert!(model.engine().stream().is_some());
    model
}

/// Checks models in which the experts of both the model and its draft layer are streamed from the
/// drive.
#[test]
fn draft_layer_changes_no_texts_of_streamed_models() {
    for name in NAMES {
        let known = Known::read(name);
        let request = Request { limit: Some(24), ..Request::new(&known.tokens[..], SamplerSettings::greedy()) };
        let expected = generate(&mut Session::new(open(name, ALONE, Nextn::Absent)), &request);
        let mut session = Session::new(streamed(name, Nextn::Fed));
        let mut came_true = Vec::new();
        for layer in [open(name, ALONE, Nextn::Alone), streamed(name, Nextn::Alone)] {
            let layer =
                OwnLayer::new(layer, session.model(), draft_model::DraftModelOptions { min_probability: 0.0 }).unwrap();
            session.speculate(Speculation::new(Box::new(layer), always(9))).unwrap();
            came_true.push(same(&mut session, &request, &expected, "streamed"));
        }
        let (accepted, drafted) = came_true[0];
        assert!(drafted > 0 && (name == "own" || accepted > 0), "{accepted} of {drafted}");
    }
}

/// Returns a layer's predictions for a text in slot 0.
fn guess(layer: &mut OwnLayer, tokens: &[u32]) -> Vec<u32> {
    let mut text = [Text { slot: 0, tokens, max_draft: 5, draft: Vec::new() }];
    layer.draft(&mut text).unwrap();
    let [text] = text;
    text.draft
}

/// Checks that a layer's predictions depend only on the text. Rejected predictions, earlier
/// predictions, and the division of the text into parts change nothing. A layer that gets the text
/// in one step predicts the same tokens.
#[test]
fn draft_layer_predictions_depend_only_on_the_text() {
    let (name, how) = ("own", ALONE);
    let known = Known::read(name);
    let mut text: Vec<u32> = known.tokens.iter().copied().cycle().take(120).collect();
    let fed = open(name, how, Nextn::Fed);
    let mut model = engine(name, Nextn::Fed, target_without_tiles());
    let mut random = Random::new(70);
    let mut layer = own_layer(name, how, &fed, 0.0);
    let mut compared = 0;
    for round in 0..6 {
        // In most rounds, the same text continues from some position; in every third round, a
        // different text follows.
        let other = round % 3 == 2;
        if other {
            text.rotate_left(7);
        }
        let mut at = model.truncate(if other { 0 } else { random.index(40) as u32 }) as usize;
        let mut wrong: Vec<u32> = Vec::new();
        while at < 100 {
            // The layer gets one or a few tokens with predictions after them, or a part of a
            // prompt.
            let most = if wrong.is_empty() && random.once_in(2) { 50 } else { 4 };
            let right = 1 + random.index(most);
            let right = right.min(text.len() - 1 - at);
            model.step(&[&text[at..at + right], &wrong].concat(), &[]).unwrap();
            let (tokens, draft) = (&text[at..at + right], &wrong[..]);
            let states = HiddenStates { slot: 0, before: &text[..at], tokens, draft, hidden: model.hidden_states() };
            layer.observe(&[states]).unwrap();
            at += right;
            model.truncate(at as u32);
            wrong.clear();
            if random.once_in(2) {
                continue;
            }
            let mut fresh = own_layer(name, how, &fed, 0.0);
            let mut at_once = engine(name, Nextn::Fed, target_without_tiles());
            at_once.step(&text[..at], &[]).unwrap();
            let (tokens, hidden) = (&text[..at], at_once.hidden_states());
            let whole = HiddenStates { slot: 0, before: &[], tokens, draft: &[], hidden };
            fresh.observe(&[whole]).unwrap();
            let expected = guess(&mut fresh, &text[..at + 1]);
            assert_eq!(expected.len(), 5);
            assert_eq!(guess(&mut layer, &text[..at + 1]), expected, "at {at}");
            wrong.extend((0..random.index(5)).map(|_| random.index(288) as u32));
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
    // For a text that the layer has not read, it predicts nothing.
    assert!(guess(&mut layer, &text[3..20]).is_empty());
}

/// Checks many simultaneous requests. Some of them begin with a text that another request has
/// computed.
#[test]
fn draft_layer_serves_concurrent_requests() {
    for name in NAMES {
        let known = Known::read(name);
        let how = How { guesses: 29, sequences: 3, context: None };
        let mut plain = Generator::new(open(name, how, Nextn::Absent)).unwrap();
        let long: Vec<u32> = known.tokens.iter().copied().cycle().take(90).collect();
        let branch = [&long[..80], &known.tokens[3..9]].concat();
        let prompts = [&known.tokens[..9], &long, &branch, &known.tokens[5..30], &branch, &long[..70]];
        let mut jobs = Vec::new();
        for (number, sampling) in settings().into_iter().cycle().take(9).enumerate() {
            let sampling = SamplerSettings { seed: number as u64, banned: vec![256], ..sampling };
            let tokens = prompts[number % prompts.len()].to_vec();
            jobs.push(Request { limit: Some(1 + 5 * number), ..Request::new(tokens, sampling) });
        }
        let mut random = Random::new(60);
        let (expected, _): (Vec<Ended>, usize) = run(&mut plain, &jobs, &mut random);
        for round in 0..4 {
            let fed = open(name, how, Nextn::Fed);
            let layer = own_layer(name, how, &fed, 0.0);
            let mut guessing = Generator::new(fed).unwrap();
            let options = speculate::SpeculationOptions { always: round < 3, ..always(6) };
            guessing.speculate(Speculation::new(layer, options)).unwrap();
            let (found, _) = run(&mut guessing, &jobs, &mut random);
            assert_eq!(found, expected, "{name}, round {round}");
            let tally = guessing.speculation_tally();
            println!("{name}, round {round}: {tally:?}");
            assert!(round == 3 || tally.drafted > 20 && (name == "own" || tally.accepted > 10), "{tally:?}");
        }
    }
}

#[test]
fn foreign_draft_layer_is_refused() {
    let fed = open("own", ALONE, Nextn::Fed);
    let options = draft_model::DraftModelOptions::default();
    let refused = |layer: LoadedModel, model: &LoadedModel| match OwnLayer::new(layer, model, options) {
        Err(ixc::GenerationError::OwnLayer(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(open("own", ALONE, Nextn::Fed), &fed), OwnLayerError::Layer);
    let plain = open("own", ALONE, Nextn::Absent);
    let wrong = OwnLayerError::Hidden { takes: 64, gives: None };
    assert_eq!(refused(open("own", ALONE, Nextn::Alone), &plain), wrong);
    // A session with only the draft layer, without the main model, generates no text.
    let mut alone = Session::new(open("own", ALONE, Nextn::Alone));
    let request = Request::new([1, 2], SamplerSettings::greedy());
    let error =
        alone.generate(&request, |_| Ok::<_, ixc::GenerationError>(std::ops::ControlFlow::Continue(()))).unwrap_err();
    assert!(
        matches!(error, ixc::GenerationError::Step(StepError::Hidden { found: 0, rows: 2, expected: 64 })),
        "{error}"
    );
}

/// Checks the program: texts, the lines of `--stats`, saved states, and refused options.
#[test]
fn draft_layer_works_on_the_command_line() {
    let folder = scratch("nextn");
    let shared = model("shared");
    let run = |more: &[&str]| {
        let mut command = ixc(["run", "-t", "2", "--no-chat", "-n", "50", "-p", "the borrow"]);
        command.arg("-m").arg(&shared).args(more);
        command
    };
    for sampling in [&["--temp", "0"][..], &["--temp", "1", "--seed", "4"]] {
        let plain = stdout(run(sampling));
        for how in [
            &["--spec", "nextn"][..],
            &["--spec-type", "draft-mtp", "--draft-max", "3"],
            &["--spec", "mtp", "--target", "portable"],
        ] {
            let output = run(&[sampling, how, &["--spec-always", "--stats"]].concat()).output().unwrap();
            assert!(output.status.success(), "{how:?}: {}", stderr(&output));
            assert_eq!(String::from_utf8(output.stdout.clone()).unwrap(), plain, "{how:?}");
            let said = stderr(&output);
            let line = said.lines().find(|line| line.contains("by nextn")).unwrap_or_else(|| panic!("{said}"));
            assert!(!line.contains(" 0 accepted"), "{line}");
        }
    }
    // A saved state does not contain the state of the draft layer. After loading, the layer starts
    // to predict from the following tokens. A saved state of a plan with the layer cannot be loaded
    // into a plan without it.
    let goes_on = |spec: &[&str]| {
        let state = folder.join("text.state");
        let with = |option: &str| {
            let mut command = run(&[&["--temp", "0", "--force"], spec, &[option]].concat());
            command.arg(&state);
            command
        };
        stdout(with("--save-state"));
        (stdout(with("--load-state")), state)
    };
    let (plain, _) = goes_on(&[]);
    let (found, state) = goes_on(&["--spec", "nextn", "--spec-always"]);
    assert_eq!(found, plain);
    let output = run(&["--load-state"]).arg(&state).output().unwrap();
    assert!(
        output.status.code() == Some(65) && stderr(&output).contains("was saved by another plan"),
        "{}",
        stderr(&output)
    );
    // `ixc inspect` names the option and the reasons.
    let said = |file: &Path| stdout(ixc([OsStr::new("inspect"), file.as_os_str()]));
    assert!(said(&shared).contains("\ndraft layers  1, used with --spec nextn\n"), "{}", said(&shared));
    let left_out = with_layer("dots1", &folder);
    let line =
        "\ndraft layers  1, not supported: draft layers (nextn) of dots1 are not supported; supported are those of ";
    assert!(said(&left_out).contains(line), "{}", said(&left_out));
    let recurrent = with_layer("lfm2", &folder);
    let line = "\ndraft layers  1, not supported: tokens cannot be drafted: recurrent states cannot be";
    assert!(said(&recurrent).contains(line), "{}", said(&recurrent));
    // The option is refused for a model without draft layers, and for a plan.
    let plan = folder.join("plan.ixp");
    assert!(ixc(["compile", "-o"]).arg(&plan).arg(&shared).status().unwrap().success());
    let qwen = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/qwen3vlmoe.gguf");
    for (file, why) in [(&plan, "is a plan; expected the model file"), (&qwen, "the model has no draft layers (nextn)")]
    {
        let output = ixc(["run", "--raw", "-p", "a", "-n", "1", "--spec", "nextn", "-m"]).arg(file).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.code() == Some(65) && said.contains(why) && said.lines().count() == 1, "{said}");
    }
}

/// Checks the server with several simultaneous clients, and its metrics.
#[test]
fn draft_layer_works_in_a_server() {
    let shared = model("shared");
    let (shared, body) = (
        shared.to_str().unwrap(),
        |prompt: &str, seed: u32| json!({"prompt": prompt, "n_predict": 40, "temperature": f64::from(seed), "seed": seed, "ignore_eos": true}),
    );
    let asked = [("the borrow", 0), ("says: ", 1), ("the borrow checker says: move", 0), ("drop.", 1)];
    let plain = Server::for_model(shared, &[]);
    let guessing = Server::for_model(shared, &["--spec", "nextn", "--spec-always", "--parallel", "3"]);
    let expected: Vec<Json> =
        asked.iter().map(|(prompt, seed)| plain.post("/completion", &body(prompt, *seed)).1).collect();
    let found: Vec<Json> = std::thread::scope(|scope| {
        let ask = |(prompt, seed): (&'static str, u32)| {
            let (guessing, body) = (&guessing, &body);
            scope.spawn(move || guessing.post("/completion", &body(prompt, seed)).1)
        };
        let threads: Vec<_> = asked.into_iter().map(ask).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut accepted = 0;
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(found["content"], expected["content"]);
        accepted += found["timings"]["draft_n_accepted"].as_u64().unwrap_or(0);
    }
    assert!(accepted > 20, "{found:?}");
    assert!(guessing.metric("spec_decode_num_accepted_tokens_total") as u64 == accepted);
}

/// Writes a golden model with an added draft layer. The layer is a copy of the last layer, with
/// random numbers in the weights that only draft layers have.
fn with_layer(name: &str, folder: &Path) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models").join(name).with_extension("gguf");
    let gguf = Gguf::open(&golden).unwrap();
    let read = |key: &str| {
        let architecture: &str = gguf.metadata().read("general.architecture").unwrap();
        gguf.metadata().read::<u32>(&format!("{architecture}.{key}")).unwrap()
    };
    let (layers, width) = (read("block_count"), u64::from(read("embedding_length")));
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        // A list with one element for each layer gets one more element.
        let value = match value {
            Value::Array(Array::U32(of)) if of.len() == layers as usize => Array::U32(longer(of)).into(),
            Value::Array(Array::I32(of)) if of.len() == layers as usize => Array::I32(longer(of)).into(),
            Value::Array(Array::F32(of)) if of.len() == layers as usize => Array::F32(longer(of)).into(),
            Value::Array(Array::Bool(of)) if of.len() == layers as usize => Array::Bool(longer(of)).into(),
            _ if key.ends_with(".block_count") => (layers + 1).into(),
            _ if key.ends_with(".nextn_predict_layers") => continue,
            other => other.clone(),
        };
        writer = writer.key(key, value);
    }
    let architecture: &str = gguf.metadata().read("general.architecture").unwrap();
    writer = writer.key(&format!("{architecture}.nextn_predict_layers"), 1u32);
    let last = format!("blk.{}.", layers - 1);
    for tensor in gguf.tensors() {
        let data = gguf.tensor_data(tensor).into_owned();
        if let Some(part) = tensor.name().strip_prefix(&last) {
            let name = format!("blk.{layers}.{part}");
            writer = writer.tensor(&name, tensor.tensor_type().id, tensor.dims(), data.clone());
        }
        writer = writer.tensor(tensor.name(), tensor.tensor_type().id, tensor.dims(), data);
    }
    let mut random = Random::new(80);
    let mut numbers = |count: u64, mean: f32, size: f32| -> Vec<f32> {
        (0..count).map(|_| mean + size * (random.index(2001) as f32 / 1000.0 - 1.0)).collect()
    };
    for (part, dims, mean, size) in [
        ("eh_proj", &[2 * width, width][..], 0.0, (1.5 / width as f32).sqrt()),
        ("enorm", &[width], 1.0, 0.3),
        ("hnorm", &[width], 1.0, 0.3),
        ("shared_head_norm", &[width], 1.0, 0.3),
    ] {
        let data = numbers(dims.iter().product(), mean, size);
        writer = writer.f32_tensor(&format!("blk.{layers}.nextn.{part}.weight"), dims, &data);
    }
    let path = folder.join(name).with_extension("gguf");
    std::fs::write(&path, writer.finish()).unwrap();
    path
}

/// Returns a list with its last element repeated.
fn longer<T: Clone>(of: &[T]) -> Vec<T> {
    of.iter().chain(of.last()).cloned().collect()
}

/// Checks draft layers of every architecture that has them: plans compute the interpreter's
/// results. The models have latent attention, chosen positions, windows, sinks and gates. The
/// models' own logits are the same as without draft layers.
#[test]
fn draft_layers_of_all_architectures_match_the_interpreter() {
    /// Max error for float weights, where only keys and values are rounded, to f16
    /// (`made_models.rs`).
    const FLOATS: f64 = 1e-6;
    let folder = scratch("nextn_architectures");
    let names = ["deepseek2-kv_b", "deepseek32", "glm-dsa", "hy_v3", "mimo2", "step35"];
    let of_file = |path: &Path, nextn: Nextn| Model::open_parts(path, parts(nextn)).unwrap();
    for name in names {
        let path = with_layer(name, &folder);
        let original =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models").join(name).with_extension("gguf");
        let [model, layer] = [Nextn::Fed, Nextn::Alone].map(|nextn| of_file(&path, nextn));
        // There are more tokens than positions in any window of these models.
        let tokens: Vec<u32> =
            (0..60u64).map(|i| (i * i * 7 + i * 3 + 1) % model.arch.hyper.vocabulary).map(|id| id as u32).collect();
        let weights = FileWeights::new(&model.gguf, &model.arch.module);
        let mut interpreter = Interpreter::new(&model.arch.module, &weights).unwrap();
        let [logits, hidden] = interpret(&mut interpreter, 0, &tokens, None);
        assert!(logits == Model::open(&original).unwrap().exact_logits(&tokens).unwrap(), "{name}");
        let width = hidden.len() / tokens.len();
        let hidden = &hidden[..hidden.len() - width];
        let weights = FileWeights::new(&layer.gguf, &layer.arch.module);
        let mut interpreter = Interpreter::new(&layer.arch.module, &weights).unwrap();
        let [guess, own] = interpret(&mut interpreter, 0, &tokens[1..], Some(hidden));
        for target in [Target::AVX2, Target::PORTABLE].into_iter().filter(|target| target.missing().is_empty()) {
            let load = |model: &Model| {
                let plan =
                    compile(model, &CompileOptions { target: Some(target), ..CompileOptions::default() }).unwrap().plan;
                let options = engine::EngineOptions { threads: Some(2), ..engine::EngineOptions::default() };
                Engine::load(plan, Path::new(""), &options).unwrap()
            };
            let rows: Vec<u32> = (0..tokens.len() as u32).collect();
            let logits = |model: &Model| bits(load(model).step(&tokens, &rows).unwrap());
            assert!(logits(&model) == logits(&of_file(&original, Nextn::Absent)), "{name} {}", target.name());
            let mut engine = load(&layer);
            let (mut found, mut found_own) = (Vec::new(), Vec::new());
            for (part, hidden) in tokens[1..].chunks(23).zip(hidden.chunks(23 * width)) {
                let rows: Vec<u32> = (0..part.len() as u32).collect();
                let addition = Addition { sequence: FIRST, tokens: part, outputs: &rows };
                found.extend_from_slice(engine.step_hidden(&[addition], hidden).unwrap());
                found_own.extend_from_slice(engine.hidden_states());
            }
            let errors = [nmse(&found, &guess), nmse(&found_own, &own)];
            println!("{name} {}: {errors:?}", target.name());
            assert!(errors.iter().all(|error| *error <= FLOATS), "{name} {}: {errors:?}", target.name());
        }
    }
}
