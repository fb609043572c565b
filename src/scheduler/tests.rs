//! Tests of concurrent requests: slow grammars, cached prompts, and requests without caching.

use ixc_grammar::{Source, Vocabulary};
use ixc_runtime::engine;
use ixc_targets::{Feature, Target};

use super::*;
use crate::compile;
use crate::session::SessionOptions;

/// Grammar that can read a text in too many ways to count.
const AMBIGUOUS: &str = "root ::= s\ns ::= s s | s s s | \"a\" | \"b\" | [a-z ]";

fn scheduler(sequences: u32, target: Option<Target>) -> Scheduler {
    let run = engine::Options { sequences, threads: Some(2), ..engine::Options::default() };
    let compile = compile::Options { target, ..compile::Options::default() };
    let options = SessionOptions { compile, run, ..SessionOptions::default() };
    Scheduler::new(Session::open(None, &options).unwrap()).unwrap()
}

/// A greedy request, which tells how likely its tokens are.
fn job(tokens: &[u32], limit: usize) -> Job {
    let own = Job::new(tokens.to_vec(), Settings::greedy());
    Job { limit: Some(limit), ignore_end: true, likeliest: Some(3), ..own }
}

/// Runs requests to their ends; returns tokens with the bits of their probabilities, and the ends.
fn run(scheduler: &mut Scheduler, jobs: Vec<Job>) -> Vec<(Vec<(u32, u32)>, String)> {
    let ids: Vec<RequestId> = jobs.into_iter().map(|job| scheduler.submit(job).unwrap()).collect();
    let mut all = vec![(Vec::new(), String::new()); ids.len()];
    while !scheduler.is_idle() {
        for (id, event) in scheduler.step() {
            let Some(own) = ids.iter().position(|own| *own == id).map(|number| &mut all[number]) else { continue };
            match event {
                Event::Token { token, likely: Some((likely, likeliest)) } => {
                    own.0.push((token, likely.log_probability.to_bits()));
                    own.0.extend(likeliest.iter().map(|one| (one.token, one.log_probability.to_bits())));
                }
                Event::Ended(end) => own.1 = format!("{end:?}"),
                Event::Failed(error) => own.1 = error.to_string(),
                Event::Token { .. } | Event::Begun { .. } | Event::Guessed { .. } => {}
            }
        }
    }
    all
}

#[test]
fn a_slow_grammar_ends_its_request_and_delays_no_other() {
    // Tiles round the rows of a step together.
    let tiles = Target::native().features().has(Feature::AmxTile);
    let mut scheduler = scheduler(2, tiles.then_some(Target::AVX512));
    scheduler.budget = Budget { text: Duration::from_millis(300), token: Duration::ZERO };
    let tokens = scheduler.session().encode_prompt("The borrow checker").unwrap();
    let alone = run(&mut scheduler, vec![job(&tokens, 60)]);
    let vocabulary = Vocabulary::new(scheduler.session().tokenizer().unwrap()).unwrap();
    let matcher = |source| Some(vocabulary.matcher(&source).unwrap());
    let slow = Job { grammar: matcher(Source::Gbnf(AMBIGUOUS.into())), ..job(&tokens, 400) };
    let found = run(&mut scheduler, vec![slow, job(&tokens, 60)]);
    assert!(found[0].1.contains("takes too long to follow: the limit is 0 seconds"), "{}", found[0].1);
    assert_eq!(found[1], alone[0]);
    // A usual grammar gives the same tokens alone and next to others.
    let digits = || Job { grammar: matcher(Source::Regex("[0-9]{12}".into())), ..job(&tokens, 40) };
    let both = run(&mut scheduler, vec![digits(), job(&tokens, 60)]);
    assert_eq!((&both[0].1, &both[1]), (&"Grammar".to_owned(), &alone[0]));
    assert_eq!(run(&mut scheduler, vec![digits()])[0], both[0]);
    // A grammar that ends with the last allowed token has ended by itself.
    let made = both[0].0.len() / 4;
    assert_eq!(run(&mut scheduler, vec![Job { limit: Some(made), ..digits() }])[0].1, "Grammar");
    assert_eq!(run(&mut scheduler, vec![Job { limit: Some(made - 1), ..digits() }])[0].1, "Limit");
}

#[test]
fn what_was_there_changes_no_bit() {
    let targets = [Target::AVX2, Target::AVX512];
    for target in targets.into_iter().filter(|target| target.missing().is_empty()) {
        let mut scheduler = scheduler(3, Some(target));
        let text = "The borrow checker looks at each reference, and at what it refers to. ".repeat(30);
        let tokens = scheduler.session().encode_prompt(&text).unwrap();
        for length in [1, 2, 3, 7, 40, 65, 130, 257, 300] {
            let prompt = &tokens[..length];
            let anew = || Job { cache_prompt: false, ..job(prompt, 6) };
            let alone = run(&mut scheduler, vec![anew()]).remove(0);
            let others = || vec![job(&tokens[1..200], 20), job(&tokens[5..90], 20)];
            for (how, jobs) in [
                ("beside others", [vec![anew()], others()].concat()),
                ("kept", vec![job(prompt, 6)]),
                ("from what was kept", vec![job(prompt, 6)]),
                ("from what was kept, beside others", [vec![job(prompt, 6)], others()].concat()),
                ("behind others", [others(), vec![job(prompt, 6)]].concat()),
            ] {
                let number = jobs.iter().position(|job| job.tokens == prompt).unwrap();
                assert!(run(&mut scheduler, jobs)[number] == alone, "{target:?}, {length} tokens, {how}: other bits");
            }
        }
    }
}

#[test]
fn a_request_that_caches_nothing_neither_finds_nor_leaves_anything() {
    let mut scheduler = scheduler(1, None);
    let tokens = scheduler.session().encode_prompt(&"The borrow checker looks at each reference. ".repeat(8)).unwrap();
    let mut reused = |cache_prompt: bool| {
        scheduler.submit(Job { cache_prompt, ..job(&tokens, 2) }).unwrap();
        let mut reused = None;
        while !scheduler.is_idle() {
            reused = scheduler.step().iter().find_map(|(_, event)| match event {
                Event::Begun { reused, .. } => Some(*reused),
                _ => reused,
            });
        }
        (reused.unwrap(), scheduler.slots().next().unwrap().0)
    };
    assert_eq!(reused(false), (0, 0));
    assert_eq!(reused(true), (0, tokens.len() + 1));
    assert!(reused(true).0 > 0);
    assert_eq!(reused(false), (0, 0));
    assert_eq!(reused(true).0, 0);
}
