//! Targets for saved states and for files of the prompt cache. Wrong checksums in inputs are
//! corrected, since a hostile writer can compute right ones.

use std::cell::RefCell;

use ixc_generate::prompt_cache::{PromptCache, PromptCacheOptions};
use ixc_runtime::engine::{Engine, EngineOptions, FIRST};
use ixc_runtime::saved::{SavedError, SavedHeader};
use ixc_targets::Target;

use crate::small_models::{SmallModel, small_model};
use crate::{Outcome, scratch};

/// Max number of checksums that are corrected in a file.
const MAX_CHECKSUMS: usize = 16;

thread_local! {
    static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
}

/// Calls a function with the engine. Each process loads the engine once.
fn with_engine<R>(call: impl FnOnce(&mut Engine) -> R) -> R {
    ENGINE.with_borrow_mut(|engine| {
        let engine = engine.get_or_insert_with(|| {
            let SmallModel { plan, folder, .. } = small_model(1, Target::native());
            let options = EngineOptions { threads: Some(1), sequences: 2, ..EngineOptions::default() };
            Engine::load(plan, &folder, &options).expect("a compiled plan loads")
        });
        engine.reset();
        call(engine)
    })
}

/// Returns the first `count` tokens of the prompt in generated inputs.
fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|number| number % 13).collect()
}

/// Replaces the last occurrence of a wrong checksum with the right one. Returns whether the error
/// was about a checksum that occurs.
fn repair(bytes: &mut [u8], error: &SavedError) -> bool {
    let SavedError::Checksum { found, expected, .. } = error else { return false };
    let stored = expected.to_le_bytes();
    let Some(at) = bytes.windows(4).rposition(|word| word == stored) else { return false };
    bytes[at..at + 4].copy_from_slice(&found.to_le_bytes());
    true
}

/// Loads a saved state. If it is accepted, continues its sequence.
pub fn state(input: &[u8]) -> Outcome {
    with_engine(|engine| {
        let mut bytes = input.to_vec();
        for _ in 0..MAX_CHECKSUMS {
            match engine.load_state(FIRST, &mut &bytes[..], bytes.len() as u64) {
                Ok(loaded) => {
                    let vocabulary = engine.vocabulary();
                    assert!(loaded.tokens.iter().all(|token| *token < vocabulary));
                    if let Err(error) = engine.step(&[1], &[0]) {
                        return Outcome::refused(format!("loaded, {error}"));
                    }
                    return Outcome::accepted();
                }
                Err(error) if repair(&mut bytes, &error) => {}
                Err(error) => {
                    let class = error.class();
                    return Outcome::refused_as(error, class);
                }
            }
        }
        Outcome::refused("the checksums contradict each other")
    })
}

/// Returns one state of few tokens and one of many tokens.
pub fn states() -> Vec<Vec<u8>> {
    with_engine(|engine| {
        let mut states = Vec::new();
        for count in [3, 20] {
            engine.reset();
            engine.step(&tokens(count), &[]).expect("tokens of the model");
            let mut bytes = Vec::new();
            engine.save_state(FIRST, &tokens(count), None, &mut bytes).expect("a state can be saved");
            states.push(bytes);
        }
        states
    })
}

/// Reads a file of the prompt cache, and loads the prompt's state from it.
pub fn page(input: &[u8]) -> Outcome {
    with_engine(|engine| {
        let mut bytes = input.to_vec();
        let mut facts = Err(SavedError::NoState);
        for _ in 0..MAX_CHECKSUMS {
            facts = engine.saved_facts(&mut &bytes[..], bytes.len() as u64);
            match &facts {
                Err(error) if repair(&mut bytes, error) => {}
                _ => break,
            }
        }
        let facts = match facts {
            Ok(facts) => facts,
            Err(error) => return Outcome::refused(error),
        };
        let folder = scratch::empty_folder("prompts");
        std::fs::write(folder.join(name(&facts)), &bytes).expect("the folder of temporary files can be written");
        let options = PromptCacheOptions { folder: Some(folder), folder_bytes: 1 << 30, memory: 1 << 30 };
        let mut cache = match PromptCache::new(options, engine) {
            Ok(cache) => cache,
            Err(error) => return Outcome::refused(error),
        };
        let wanted = [&facts.tokens[..], &[1]].concat();
        let Some(found) = cache.find_prefix(engine, FIRST, &wanted) else { return Outcome::refused("is not found") };
        match cache.load(engine, FIRST, &found) {
            false => Outcome::refused("is not loaded"),
            true => match engine.step(&[1], &[0]) {
                Ok(_) => Outcome::accepted(),
                Err(error) => Outcome::refused(format!("loaded, {error}")),
            },
        }
    })
}

/// Returns the name that a file of the prompt cache must have
/// (`generate/src/prompt_cache/entry.rs`).
fn name(facts: &SavedHeader) -> String {
    let words = |bytes: [u8; 16]| -> Vec<u32> {
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
    };
    let digest = facts.before.with(&facts.tokens).with(&words(facts.identity.plan.0));
    let digest = digest.with(&words(facts.identity.weights.0)).with(&[u32::from(facts.point().is_some())]);
    format!("{digest}.{EXTENSION}")
}

/// Extension of the names of the prompt cache's files.
const EXTENSION: &str = "ixs";

/// Returns the prompt cache's files for a prompt.
pub fn pages() -> Vec<Vec<u8>> {
    with_engine(|engine| {
        let prompt = tokens(20);
        engine.step(&prompt, &[]).expect("tokens of the model");
        let folder = scratch::empty_folder("prompt-seeds");
        let options = PromptCacheOptions { folder: Some(folder.clone()), folder_bytes: 1 << 30, memory: 0 };
        let mut cache = PromptCache::new(options, engine).expect("an empty folder");
        cache.store(engine, FIRST, &prompt);
        cache.finish();
        let files = std::fs::read_dir(folder).expect("the folder of the cache").flatten().map(|entry| entry.path());
        let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == EXTENSION)).collect();
        files.sort();
        let pages: Vec<Vec<u8>> = files.into_iter().flat_map(std::fs::read).collect();
        assert!(!pages.is_empty(), "the prompt cache wrote no page");
        pages
    })
}
