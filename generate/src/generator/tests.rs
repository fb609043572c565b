//! Tests of concurrent requests: slow grammars, cached prompts, and requests without caching.

use ixc_grammar::{GrammarSource, Vocabulary};
use ixc_runtime::engine;
use ixc_runtime::sample::SamplerSettings;
use ixc_targets::{Feature, Target};

use super::*;
use crate::loaded_model::LoadOptions;
use ixc_compile::compile;

/// Grammar with exponentially many parses of a text.
const AMBIGUOUS: &str = "root ::= s\ns ::= s s | s s s | \"a\" | \"b\" | [a-z ]";

fn generator(sequences: u32, target: Option<Target>) -> Generator {
    let compile = compile::CompileOptions { target, ..compile::CompileOptions::default() };
    let run = engine::EngineOptions { sequences, ..engine::EngineOptions::default() };
    Generator::new(model(LoadOptions { compile, run, ..LoadOptions::default() })).unwrap()
}

/// Loads the demo model on two threads.
fn model(options: LoadOptions) -> LoadedModel {
    let run = engine::EngineOptions { threads: Some(2), ..options.run };
    LoadedModel::open(None, &LoadOptions { run, ..options }).unwrap()
}

/// Creates generators for many callers and for one.
fn generators(options: &LoadOptions) -> [Generator; 2] {
    [Generator::new(model(options.clone())).unwrap(), Generator::for_one(model(options.clone()))]
}

/// Returns a greedy request that also returns the probabilities of its tokens.
fn request(tokens: &[u32], limit: usize) -> Request {
    let own = Request::new(tokens.to_vec(), SamplerSettings::greedy());
    Request { limit: Some(limit), ignore_end: true, top_logprobs: Some(3), ..own }
}

/// Runs requests to their ends; returns tokens with the bits of their probabilities, and the ends.
fn run(generator: &mut Generator, requests: Vec<Request>) -> Vec<(Vec<(u32, u32)>, String)> {
    let ids: Vec<RequestId> = requests.into_iter().map(|request| generator.submit(request).unwrap()).collect();
    let mut all = vec![(Vec::new(), String::new()); ids.len()];
    while !generator.is_idle() {
        for (id, event) in generator.step() {
            let Some(own) = ids.iter().position(|own| *own == id).map(|number| &mut all[number]) else { continue };
            match event {
                Event::Token { token, log_probs: Some(log_probs), .. } => {
                    own.0.push((token, log_probs.token.log_probability.to_bits()));
                    own.0.extend(log_probs.top.iter().map(|one| (one.token, one.log_probability.to_bits())));
                }
                Event::Ended { end, .. } => own.1 = format!("{end:?}"),
                Event::Failed(error) => own.1 = error.to_string(),
                _ => {}
            }
        }
    }
    all
}

#[test]
fn a_slow_grammar_ends_its_request_and_delays_no_other() {
    // With tiles, rounding depends on the other rows of a step.
    let tiles = Target::native().features().has(Feature::AmxTile);
    let mut generator = generator(2, tiles.then_some(Target::AVX512));
    generator.budget = Budget { text: Duration::from_millis(300), token: Duration::ZERO };
    let tokens = generator.model().encode_prompt("The borrow checker").unwrap();
    let alone = run(&mut generator, vec![request(&tokens, 60)]);
    let vocabulary = Vocabulary::new(generator.model().tokenizer().unwrap()).unwrap();
    let matcher = |source| Some(vocabulary.matcher(&source).unwrap());
    let slow = Request { grammar: matcher(GrammarSource::Gbnf(AMBIGUOUS.into())), ..request(&tokens, 400) };
    let found = run(&mut generator, vec![slow, request(&tokens, 60)]);
    assert!(found[0].1.contains("takes too long: the limit for an answer is 0 seconds"), "{}", found[0].1);
    assert_eq!(found[1], alone[0]);
    // A usual grammar gives the same tokens alone and next to other requests.
    let digits = || Request { grammar: matcher(GrammarSource::Regex("[0-9]{12}".into())), ..request(&tokens, 40) };
    let both = run(&mut generator, vec![digits(), request(&tokens, 60)]);
    assert_eq!((&both[0].1, &both[1]), (&"Grammar".to_owned(), &alone[0]));
    assert_eq!(run(&mut generator, vec![digits()])[0], both[0]);
    // If the grammar ends with the last allowed token, the reason of the end is the grammar, not
    // the limit.
    let generated = both[0].0.len() / 4;
    assert_eq!(run(&mut generator, vec![Request { limit: Some(generated), ..digits() }])[0].1, "Grammar");
    assert_eq!(run(&mut generator, vec![Request { limit: Some(generated - 1), ..digits() }])[0].1, "Limit");
}

#[test]
fn cached_prompts_and_other_requests_change_no_bits() {
    let targets = [Target::AVX2, Target::AVX512];
    for target in targets.into_iter().filter(|target| target.missing().is_empty()) {
        let mut generator = generator(3, Some(target));
        let text = "The borrow checker looks at each reference, and at what it refers to. ".repeat(30);
        let tokens = generator.model().encode_prompt(&text).unwrap();
        for length in [1, 2, 3, 7, 40, 65, 130, 257, 300] {
            let prompt = &tokens[..length];
            let anew = || Request { cache_prompt: false, ..request(prompt, 6) };
            let alone = run(&mut generator, vec![anew()]).remove(0);
            let others = || vec![request(&tokens[1..200], 20), request(&tokens[5..90], 20)];
            for (how, requests) in [
                ("beside others", [vec![anew()], others()].concat()),
                ("kept", vec![request(prompt, 6)]),
                ("from what was kept", vec![request(prompt, 6)]),
                ("from what was kept, beside others", [vec![request(prompt, 6)], others()].concat()),
                ("behind others", [others(), vec![request(prompt, 6)]].concat()),
            ] {
                let number = requests.iter().position(|request| request.tokens == prompt).unwrap();
                assert!(
                    run(&mut generator, requests)[number] == alone,
                    "{target:?}, {length} tokens, {how}: other bits"
                );
            }
        }
    }
}

#[test]
fn uncached_request_neither_reads_nor_fills_the_cache() {
    let mut generator = generator(1, None);
    let tokens = generator.model().encode_prompt(&"The borrow checker looks at each reference. ".repeat(8)).unwrap();
    let mut reused = |cache_prompt: bool| {
        generator.submit(Request { cache_prompt, ..request(&tokens, 2) }).unwrap();
        let mut reused = None;
        while !generator.is_idle() {
            reused = generator.step().iter().find_map(|(_, event)| match event {
                Event::Begun { reused, .. } => Some(*reused),
                _ => reused,
            });
        }
        (reused.unwrap(), generator.slots().next().unwrap().cached_tokens)
    };
    assert_eq!(reused(false), (0, 0));
    assert_eq!(reused(true), (0, tokens.len() + 1));
    assert!(reused(true).0 > 0);
    assert_eq!(reused(false), (0, 0));
    assert_eq!(reused(true).0, 0);
}

/// Restricts samples to one token.
fn only(token: u32, vocabulary: usize) -> SamplerSettings {
    SamplerSettings {
        banned: (0..vocabulary as u32).filter(|other| *other != token).collect(),
        ..SamplerSettings::greedy()
    }
}

/// Checks that the last token is computed even if all remaining tokens are cached after a shift.
#[test]
fn context_shift_recomputes_the_last_token() {
    let run = engine::EngineOptions { context: Some(32), ..engine::EngineOptions::default() };
    for mut generator in generators(&LoadOptions { run, ..LoadOptions::default() }) {
        generator.set_context_shift(Some(ContextShift { keep: 4 }));
        let token = generator.model().encode_more("a").unwrap()[0];
        let settings = only(token, generator.model().vocabulary());
        let id = generator.submit(Request { limit: Some(80), ..Request::new(vec![token; 20], settings) }).unwrap();
        let (mut generated, mut shifts) = (0, 0);
        for _ in 0..200 {
            for (of, event) in generator.step() {
                assert_eq!(of, id);
                generated += usize::from(matches!(event, Event::Token { .. }));
                shifts += usize::from(matches!(event, Event::Shifted));
            }
        }
        assert!(generator.is_idle() && generated == 80 && shifts > 1, "{generated} tokens, {shifts} shifts");
    }
}

#[test]
fn zero_token_request_computes_its_prompt_only() {
    for mut generator in generators(&LoadOptions::default()) {
        let end = generator.end_tokens[0];
        let tokens = generator.model().encode_prompt("The borrow checker").unwrap();
        // The only token that could be sampled ends the text.
        let settings = only(end, generator.model().vocabulary());
        let none = Request { limit: Some(0), ..Request::new(&tokens[..], settings.clone()) };
        assert_eq!(run(&mut generator, vec![none]), [(Vec::new(), "Limit".to_owned())]);
        let slot = generator.slots().next().unwrap();
        assert_eq!((slot.cached_tokens, slot.has_request), (tokens.len(), false));
        let all = Request::new(&tokens[..], settings);
        assert_eq!(run(&mut generator, vec![all]), [(Vec::new(), format!("Token({end})"))]);
    }
}

#[test]
fn request_with_complete_grammar_computes_its_prompt() {
    for mut generator in generators(&LoadOptions::default()) {
        let tokens = generator.model().encode_prompt("The borrow checker").unwrap();
        let vocabulary = Vocabulary::new(generator.model().tokenizer().unwrap()).unwrap();
        let begun = generator.model().encode_more(" yes").unwrap();
        let source = GrammarSource::Gbnf("root ::= \" yes\"".into());
        let grammar = Some(vocabulary.matcher_after(&source, &begun, &|| true).unwrap());
        let complete = Request { grammar, ..Request::new(&tokens[..], SamplerSettings::greedy()) };
        assert_eq!(run(&mut generator, vec![complete]), [(Vec::new(), "Grammar".to_owned())]);
        let slot = generator.slots().next().unwrap();
        assert_eq!((slot.cached_tokens, slot.has_request), (tokens.len(), false));
    }
}

/// Checks that a session's answers equal those of a generator for many callers.
#[test]
fn session_and_generator_give_equal_answers() {
    let [mut many, mut one] = generators(&LoadOptions::default());
    let tokens = many.model().encode_prompt("The borrow checker").unwrap();
    let vocabulary = Vocabulary::new(many.model().tokenizer().unwrap()).unwrap();
    let digits = vocabulary.matcher(&GrammarSource::Regex("[0-9]{12}".into())).unwrap();
    for grammar in [None, Some(digits)] {
        let drawn = SamplerSettings { seed: 5, ..SamplerSettings::default() };
        // For a repeated prompt, a session would compute only its last token, and attention of one
        // row rounds differently on some processors. So caching is off, and both compute the whole
        // prompt.
        let asked = Request { grammar, sampling: Arc::new(drawn), cache_prompt: false, ..request(&tokens, 40) };
        let expected = run(&mut many, vec![asked.clone()]);
        assert!(!expected[0].0.is_empty());
        assert_eq!(run(&mut one, vec![asked]), expected);
    }
}
