//! Saved states. A sequence that continues from a saved state has the same bits as an uninterrupted
//! sequence. Invalid states are refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::cover::cover;
use crate::support::engines::{bits, native};
use crate::support::{Golden, scratch, shared};
use ixc::compile::{CompileOptions, compile};
use ixc::ir::format::Format;
use ixc::ir::kernel::Kernel;
use ixc::ir::plan::Plan;
use ixc::ir::random::Random;
use ixc::model::Model;
use ixc::passes::manager;
use ixc::passes::options::OptionSet;
use ixc::prompt_cache::{self, PromptCache};
use ixc::runtime::engine::{self, Addition, Engine, FIRST, SequenceId};
use ixc::runtime::sample::{Sampler, SamplerSettings};
use ixc::runtime::saved::{Digest, HEADER_BYTES, SavedError};
use ixc::targets::Target;

fn load(plan: Plan<Kernel>, context: Option<u64>) -> Engine {
    let options = engine::EngineOptions {
        threads: Some(2),
        backend: native(Target::native()),
        sequences: 3,
        context,
        ..engine::EngineOptions::default()
    };
    Engine::load(plan, Path::new(""), &options).unwrap()
}

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn goldens() -> Vec<Golden> {
    [Some(own()), shared("golden")].into_iter().flatten().flat_map(|folder| Golden::all(&folder)).collect()
}

fn golden(name: &str) -> Golden {
    Golden::read(&own().join("expect").join(name).with_extension("json"))
}

/// Models with each kind of state:
///
/// - Attention to all positions, also several times in a layer, with sinks, and with soft caps.
/// - Attention to windows and to chunks.
/// - Latent attention, with an index, with compressed entries, and by blocks of each key head.
/// - Recurrent states: delta-net, Mamba-2 with attention and alone, Mamba-1 with attention,
///   constant decays, short convolutions, and rows that the last tokens select.
const KINDS: [&str; 17] = [
    "granite",
    "nanbeige",
    "gemma2",
    "gpt-oss",
    "llama4",
    "deepseek2-kv_b",
    "deepseek32",
    "deepseek4",
    "deepseek4-chosen",
    "minimax-m3-chosen",
    "qwen3next-ssm_in",
    "falcon-h1",
    "mamba2",
    "jamba",
    "minimax-01",
    "lfm2",
    "qwen4exp",
];

fn plan(golden: &Golden, options: CompileOptions) -> Plan<Kernel> {
    let options = CompileOptions { target: Some(Target::native()), ..options };
    compile(&Model::open(&golden.model).unwrap(), &options).unwrap().plan
}

fn save(engine: &Engine, id: SequenceId, tokens: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = engine.save_state(id, tokens, None, &mut bytes).unwrap();
    assert_eq!(written, bytes.len() as u64);
    bytes
}

fn restore(engine: &mut Engine, id: SequenceId, bytes: &[u8]) -> Result<Vec<u32>, SavedError> {
    engine.load_state(id, &mut &*bytes, bytes.len() as u64).map(|loaded| loaded.tokens)
}

/// Returns `count` tokens: the golden prompt, repeated.
fn long(golden: &Golden, count: usize) -> Vec<u32> {
    golden.tokens("prompt_tokens").into_iter().cycle().take(count).collect()
}

/// Runs the tokens in several short steps, and returns the bits of each step's logits.
fn go_on(engine: &mut Engine, id: SequenceId, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut random = Random::new(9);
    let (mut rest, mut all) = (tokens, Vec::new());
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.len().min(1 + random.index(9)));
        let addition = Addition { sequence: id, tokens: part, outputs: &[part.len() as u32 - 1] };
        all.push(bits(engine.step_batch(&[addition]).unwrap()));
        rest = after;
    }
    all
}

/// Saves a sequence at several positions. Continues from there in another sequence of the same
/// engine, which was used before, and in another engine.
fn goes_on_as_it_was(name: &str, engine: &mut Engine, mut other: Option<&mut Engine>, tokens: &[u32]) {
    let used = engine.add_sequence().unwrap();
    for at in [31, tokens.len() - 12] {
        engine.reset();
        let (before, after) = tokens.split_at(at);
        let after = &after[..after.len().min(40)];
        engine.prefill(&before[..at - 5]).unwrap();
        go_on(engine, FIRST, &before[at - 5..]);
        let bytes = save(engine, FIRST, before);
        let expected = go_on(engine, FIRST, after);
        engine.step_batch(&[Addition { sequence: used, tokens: &tokens[..20], outputs: &[] }]).unwrap();
        let check = |engine: &mut Engine, id| {
            assert_eq!(restore(engine, id, &bytes).unwrap(), before, "{name}");
            assert_eq!(engine.sequence(id).unwrap().position() as usize, at);
            assert!(save(engine, id, before) == bytes, "{name} at {at}: what was restored is saved otherwise");
            assert!(go_on(engine, id, after) == expected, "{name} at {at}: other bits");
        };
        check(engine, used);
        other.iter_mut().for_each(|engine| check(engine, FIRST));
    }
    engine.remove_sequence(used);
}

/// Checks a cover of the golden models. They continue from whole states, and from pages with copies
/// of other states.
#[test]
fn saved_states_of_golden_models_continue_with_equal_bits() {
    let mut points = 0;
    let goldens = goldens();
    for golden in cover(&goldens, Target::native()) {
        let mut engine = load(plan(golden, CompileOptions::default()), None);
        let tokens = long(golden, 200.min(engine.context() as usize));
        goes_on_as_it_was(golden.name(), &mut engine, None, &tokens[..70]);
        points += pages_are_what_they_are_of(golden.name(), &mut engine, &tokens);
    }
    assert!(points > 0);
}

/// Checks that each kind of state continues in another engine, also with a quantised KV cache, and
/// after more positions than a window has.
#[test]
fn every_kind_of_state_goes_on_in_another_engine() {
    let mut tried = 0;
    for name in KINDS {
        let golden = golden(name);
        for formats in [[Format::F16; 2], [Format::Q8_0, Format::Q4_0]] {
            let mut passes = OptionSet::default();
            for (field, format) in ["keys", "values"].into_iter().zip(formats) {
                manager::set(&mut passes, &format!("cache.{field}={}", format.name())).unwrap();
            }
            let options = CompileOptions { target: Some(Target::native()), passes, ..CompileOptions::default() };
            let compiled = compile(&Model::open(&golden.model).unwrap(), &options);
            // Models whose head size is not a multiple of the block length are skipped.
            let Ok(compiled) = compiled else { continue };
            tried += 1;
            let (mut engine, mut other) = (load(compiled.plan.clone(), None), load(compiled.plan, None));
            let tokens = long(&golden, 300.min(engine.context() as usize));
            goes_on_as_it_was(&format!("{name} in {formats:?}"), &mut engine, Some(&mut other), &tokens);
            if formats[0] == Format::F16 {
                pages_are_what_they_are_of(name, &mut engine, &tokens);
            }
        }
    }
    assert!(tried > KINDS.len(), "{tried}");
}

/// Checks that pages together with a point (a copy of the states without positions) restore the
/// sequence. If the model needs no points, pages alone do so, even if only a part of the last page
/// is used.
fn pages_are_what_they_are_of(name: &str, engine: &mut Engine, tokens: &[u32]) -> usize {
    const PAGE: usize = 64;
    let mut points = 0;
    engine.reset();
    let ends = [PAGE + 7, 2 * PAGE, tokens.len() - 20];
    let other = engine.add_sequence().unwrap();
    // The prompt is computed in three parts, and the sequence can return to the end of each part.
    let mut begin = 0;
    for end in ends {
        let outputs = [(end - begin) as u32 - 1];
        engine.step(&tokens[begin..end], &outputs).unwrap();
        begin = end;
    }
    let (mut pages, mut before) = (Vec::new(), Digest::default());
    for (number, page) in tokens[..begin].chunks(PAGE).enumerate() {
        pages.push(engine.save_page(FIRST, before, (number * PAGE) as u32, page).unwrap());
        before = before.with(page);
    }
    let wanted = if engine.needs_points() { ends.to_vec() } else { vec![1, PAGE - 1, PAGE, 2 * PAGE + 3, begin] };
    for at in wanted {
        let first = (at - 1) / PAGE * PAGE;
        let point = engine.save_point(FIRST, Digest::default(), first as u32, &tokens[first..at]).unwrap();
        assert_eq!(point.is_some(), engine.needs_points(), "{name} at {at}");
        points += usize::from(point.is_some());
        let chosen = &pages[..at.div_ceil(PAGE)];
        let facts: Vec<_> = chosen.iter().map(|(facts, _)| facts).collect();
        if !engine.can_load_pages(other, &facts, at as u32) {
            // The first positions of a short window are no longer in memory.
            assert!(engine.reach(at as u32) < at as u32, "{name} at {at}");
            continue;
        }
        let point = point.as_ref().map(|(_, bytes)| &**bytes);
        let mut read = |page: usize| Ok(Arc::new(chosen[page].1.clone()));
        engine.load_pages(other, &facts, &mut read, point, at as u32).unwrap();
        assert_eq!(engine.sequence(other).unwrap().position() as usize, at);
        let found = go_on(engine, other, &tokens[at..(at + 20).min(tokens.len())]);
        let third = engine.add_sequence().unwrap();
        assert_eq!(engine.copy_sequence(FIRST, third, at as u32).unwrap() as usize, at);
        let expected = go_on(engine, third, &tokens[at..(at + 20).min(tokens.len())]);
        engine.remove_sequence(third);
        assert!(found == expected, "{name} at {at}: other bits");
    }
    if engine.needs_points() {
        let facts: Vec<_> = pages.iter().map(|(facts, _)| facts).collect();
        let mut read = |page: usize| Ok(Arc::new(pages[page].1.clone()));
        let error = engine.load_pages(other, &facts, &mut read, None, begin as u32).unwrap_err();
        assert!(matches!(error, SavedError::Number { .. }), "{error}");
        assert_eq!(engine.sequence(other).unwrap().position(), 0);
    }
    engine.remove_sequence(other);
    points
}

/// Checks that a saved sampler continues with the same random draws.
#[test]
fn saved_sampler_continues_its_sequence() {
    let golden = golden("granite");
    let plan = plan(&golden, CompileOptions::default());
    let (mut engine, mut other) = (load(plan.clone(), None), load(plan, None));
    let settings = SamplerSettings { temperature: 1.5, presence_penalty: 0.3, seed: 4, ..SamplerSettings::default() };
    let mut tokens = golden.tokens("prompt_tokens")[..20].to_vec();
    let write = |engine: &mut Engine, sampler: &mut Sampler, tokens: &mut Vec<u32>| {
        for _ in 0..15 {
            let position = engine.position() as usize;
            engine.prefill(&tokens[position..]).unwrap();
            tokens.push(sampler.sample(engine.logits(0), engine).unwrap());
        }
    };
    let mut sampler = Sampler::new(settings.clone()).unwrap();
    write(&mut engine, &mut sampler, &mut tokens);
    let mut bytes = Vec::new();
    engine.save_state(FIRST, &tokens, Some(&sampler.state()), &mut bytes).unwrap();
    write(&mut engine, &mut sampler, &mut tokens);
    let loaded = other.load_state(FIRST, &mut &*bytes, bytes.len() as u64).unwrap();
    let (mut again, mut goes_on) = (loaded.tokens, Sampler::new(settings).unwrap());
    assert_eq!(again, tokens[..35]);
    goes_on.resume(&loaded.sampler.unwrap());
    write(&mut other, &mut goes_on, &mut again);
    assert_eq!(again, tokens);
}

#[test]
fn invalid_saved_states_are_refused() {
    let (golden, hybrid) = (&golden("granite"), &golden("qwen3next-ssm_in"));
    let mut engine = load(plan(golden, CompileOptions::default()), None);
    let tokens = long(golden, 50);
    engine.step(&tokens, &[]).unwrap();
    let bytes = save(&engine, FIRST, &tokens);
    // Only the used blocks of the cache are saved, so half of the tokens take about half of the
    // bytes.
    engine.truncate(20);
    let short = save(&engine, FIRST, &tokens[..20]);
    assert!(short.len() * 2 < bytes.len() + 4096 && short.len() < bytes.len(), "{} {}", short.len(), bytes.len());
    let refused = |engine: &mut Engine, bytes: &[u8]| restore(engine, FIRST, bytes).unwrap_err();
    // A state with a changed, missing or added byte is refused.
    let mut random = Random::new(3);
    let at = (0..HEADER_BYTES + 300).chain((0..200).map(|_| random.index(bytes.len()))).collect::<Vec<_>>();
    for at in at {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let error = refused(&mut engine, &damaged);
        assert!(!matches!(error, SavedError::Io { .. }), "byte {at}: {error}");
    }
    for length in (0..HEADER_BYTES + 300).chain([bytes.len() - 1, bytes.len() / 2]) {
        let error = refused(&mut engine, &bytes[..length]);
        assert!(matches!(error, SavedError::Length { .. } | SavedError::Magic { .. }), "{length}: {error}");
    }
    let error = refused(&mut engine, &[&*bytes, b"x"].concat());
    assert!(matches!(error, SavedError::Length { .. }), "{error}");
    assert_eq!(engine.position(), 0, "a sequence whose loading fails is empty");
    // An engine with a smaller context accepts the short state, but refuses the long one.
    let mut small = load(plan(golden, CompileOptions::default()), Some(40));
    assert!(matches!(refused(&mut small, &bytes), SavedError::Positions { found: 50, context: 40 }));
    assert!(restore(&mut small, FIRST, &short).is_ok());
    // The state is refused by another model, by the same model with other formats of keys, and by
    // the same model on another target.
    let mut foreign = load(plan(hybrid, CompileOptions::default()), None);
    assert!(matches!(refused(&mut foreign, &bytes), SavedError::OtherPlan { .. }));
    let target = Some(Target::PORTABLE);
    let compiled =
        compile(&Model::open(&golden.model).unwrap(), &CompileOptions { target, ..CompileOptions::default() }).unwrap();
    let mut portable = load(compiled.plan, None);
    assert!(matches!(refused(&mut portable, &bytes), SavedError::OtherPlan { .. }));
    let mut weights = std::fs::read(&golden.model).unwrap();
    // The last bytes of the file are changed, which are weights.
    let end = weights.len();
    weights[end - 60_000..].iter_mut().for_each(|byte| *byte ^= 1);
    let path = scratch("saved-other").join("other.gguf");
    std::fs::write(&path, weights).unwrap();
    let options = CompileOptions { target: Some(Target::native()), ..CompileOptions::default() };
    let mut changed = load(compile(&Model::open(&path).unwrap(), &options).unwrap().plan, None);
    let error = refused(&mut changed, &bytes);
    assert!(matches!(error, SavedError::OtherModel { .. }), "{error}");
    insta::assert_snapshot!(
        [refused(&mut small, &bytes), refused(&mut engine, b"GGUF"), refused(&mut engine, &bytes[..70])]
            .map(|error| error.to_string())
            .join("\n")
    );
}

/// Checks that impossible numbers with correct checksums are refused.
#[test]
fn forged_numbers_are_refused() {
    let golden = &golden("gemma2");
    let mut engine = load(plan(golden, CompileOptions::default()), None);
    let tokens = long(golden, 50);
    engine.step(&tokens, &[]).unwrap();
    let bytes = save(&engine, FIRST, &tokens);
    let forge = |at: usize, number: u32| {
        let mut forged = bytes.clone();
        forged[at..at + 4].copy_from_slice(&number.to_le_bytes());
        let facts = crc32fast::hash(&forged[HEADER_BYTES..facts_end(&bytes)]);
        forged[88..92].copy_from_slice(&facts.to_le_bytes());
        let header = crc32fast::hash(&forged[16..HEADER_BYTES]);
        forged[12..16].copy_from_slice(&header.to_le_bytes());
        forged
    };
    let firsts = HEADER_BYTES + 4 * tokens.len();
    let numbers = [(64, "from"), (68, "to"), (72, "tokens"), (76, "states"), (80, "copies"), (84, "recent")];
    let inside = [(HEADER_BYTES, "a token"), (firsts, "a first place")];
    for (at, what) in numbers.into_iter().chain(inside) {
        // Other numbers are valid if they need the same number of blocks, for example 33 positions
        // and 17 following tokens. The test avoids such numbers.
        for number in [1, 32, 64, 1000, 1 << 20, 1 << 24, 1 << 31, u32::MAX - 1, u32::MAX] {
            let forged = forge(at, number);
            if forged == bytes || what == "a token" && number < engine.vocabulary() {
                continue;
            }
            let error = restore(&mut engine, FIRST, &forged).expect_err(what);
            assert!(!matches!(error, SavedError::Io { .. }), "{what} {number}: {error}");
        }
    }
    restore(&mut engine, FIRST, &forge(HEADER_BYTES, 1)).unwrap();
}

/// Returns the offset of the cache slots in a saved state without a sampler.
fn facts_end(bytes: &[u8]) -> usize {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    HEADER_BYTES + 4 * (word(72) + word(76) + word(80))
}

/// Checks the prompt cache with prompts that share their first three quarters. The second prompt
/// continues from the cached part of the first, up to the last position that the states can
/// restore. The cache is in memory, and then in a folder.
#[test]
fn cached_prompts_are_reused_to_the_last_restorable_position() {
    let mut found_points = 0;
    for name in KINDS {
        let golden = golden(name);
        let mut engine = load(plan(&golden, CompileOptions::default()), None);
        let other = engine.add_sequence().unwrap();
        let length = 420.min(engine.context() as usize);
        let first = long(&golden, length);
        let shared = length * 3 / 4;
        let mut second = first.clone();
        second[shared..].iter_mut().for_each(|token| *token = (*token + 1) % engine.vocabulary());
        for part in first.chunks(100) {
            engine.step(part, &[]).unwrap();
        }
        let path = scratch(&format!("kept-{name}"));
        let options = prompt_cache::PromptCacheOptions { folder: Some(path), folder_bytes: u64::MAX, memory: u64::MAX };
        let mut cache = PromptCache::new(options.clone(), &engine).unwrap();
        assert_eq!(cache.find_prefix(&engine, other, &first), None);
        cache.store(&engine, FIRST, &first);
        let tally = cache.tally();
        cache.store(&engine, FIRST, &first);
        assert_eq!(cache.tally(), tally, "{name}: what is there is not kept twice");
        let expected = engine.reach(shared as u32);
        let found = cache.find_prefix(&engine, other, &second).map_or(0, |found| found.position);
        assert_eq!(found, expected, "{name}: found, and what the sequence itself gets back to");
        assert_eq!(cache.find_prefix(&engine, other, &second[shared..]).map_or(0, |found| found.position), 0);
        cache.finish();

        let mut again = PromptCache::new(options, &engine).unwrap();
        assert_eq!((again.tally().folder, again.tally().memory), (tally.memory, 0), "{name}");
        let matched = again.find_prefix(&engine, other, &second);
        assert_eq!(matched.as_ref().map_or(0, |found| found.position), expected, "{name}: after a restart");
        let Some(matched) = matched else { continue };
        found_points += usize::from(engine.needs_points());
        assert!(again.load(&mut engine, other, &matched), "{name} from {expected} on");
        let third = engine.add_sequence().unwrap();
        assert_eq!(engine.copy_sequence(FIRST, third, expected).unwrap(), expected);
        let rest = &second[expected as usize..];
        assert!(go_on(&mut engine, other, rest) == go_on(&mut engine, third, rest), "{name}: other bits");
        // The second text shares the cached pages of the first one, but has its own points.
        again.store(&engine, other, &second);
        assert!(engine.needs_points() || again.tally().memory < 2 * tally.memory, "{name}");
    }
    assert!(found_points > 0);
}

/// Checks the limit of the prompt cache without a folder. If its memory is full, the least recently
/// used text is dropped, beginning with its end.
#[test]
fn memory_for_prompts_has_a_limit() {
    let golden = &golden("granite");
    let mut engine = load(plan(golden, CompileOptions::default()), None);
    let length = 600.min(engine.context() as usize);
    let texts: Vec<Vec<u32>> = (0..3)
        .map(|text| long(golden, length).iter().map(|token| (token + text) % engine.vocabulary()).collect())
        .collect();
    let keep = |engine: &mut Engine, cache: &mut PromptCache, text: &[u32]| {
        engine.reset();
        text.chunks(200).for_each(|part| assert!(engine.step(part, &[]).unwrap().is_empty()));
        cache.store(engine, FIRST, text);
    };
    let unlimited =
        prompt_cache::PromptCacheOptions { memory: u64::MAX, ..prompt_cache::PromptCacheOptions::default() };
    let mut cache = PromptCache::new(unlimited, &engine).unwrap();
    keep(&mut engine, &mut cache, &texts[0]);
    let one = cache.tally().memory;
    let limited = prompt_cache::PromptCacheOptions { memory: one * 2, ..prompt_cache::PromptCacheOptions::default() };
    let mut cache = PromptCache::new(limited, &engine).unwrap();
    let found = |engine: &Engine, cache: &PromptCache, text: &[u32]| {
        cache.find_prefix(engine, FIRST, text).map_or(0, |found| found.position as usize)
    };
    for text in &texts[..2] {
        keep(&mut engine, &mut cache, text);
    }
    assert_eq!([0, 1].map(|text| found(&engine, &cache, &texts[text])), [length; 2]);
    keep(&mut engine, &mut cache, &texts[2]);
    let left: Vec<usize> = texts.iter().map(|text| found(&engine, &cache, text)).collect();
    assert!(left[0] == 0 && left[1] == length && left[2] == length, "{left:?}");
    assert!(cache.tally().memory <= one * 2);
}
