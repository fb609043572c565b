//! Tests of the prompt cache.

use super::*;
use crate::loaded_model::{LoadOptions, LoadedModel};
use ixc_runtime::engine::FIRST;

/// Returns the tokens of a text of `pages` pages, which the demo model has computed.
fn text(model: &mut LoadedModel, seed: u32, pages: usize) -> Vec<u32> {
    let words = model.vocabulary() as u32;
    let tokens: Vec<u32> = (0..(pages * PAGE) as u32).map(|i| (i * i + i * seed + seed) % words).collect();
    model.begin(&tokens).unwrap();
    tokens.chunks(model.max_tokens()).for_each(|part| assert!(model.engine.prefill(part).is_ok()));
    tokens
}

fn page_bytes(model: &LoadedModel, tokens: &[u32]) -> u64 {
    let page = model.engine.save_page(FIRST, Digest::default(), 0, &tokens[..PAGE]).unwrap();
    page.1.len() as u64
}

/// Returns the length of a text's cached prefix.
fn cached_tokens(cache: &PromptCache, model: &LoadedModel, tokens: &[u32]) -> usize {
    cache.find_prefix(&model.engine, FIRST, tokens).map_or(0, |found| found.position as usize)
}

/// Waits until all queued files are written.
fn settle(cache: &PromptCache) {
    while cache.counts.queued.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn prompt_cache_memory_stays_within_its_limit() {
    let mut model = LoadedModel::open(None, &LoadOptions::default()).unwrap();
    let long = text(&mut model, 3, 5);
    let page = page_bytes(&model, &long);
    let options = PromptCacheOptions { memory: 3 * page + page / 2, ..PromptCacheOptions::default() };
    let mut cache = PromptCache::new(options, &model.engine).unwrap();
    cache.store(&model.engine, FIRST, &long);
    // The cache contains the beginning of the text, not its end.
    assert_eq!((cache.tally().memory, cached_tokens(&cache, &model, &long)), (3 * page, 3 * PAGE));
    let short = text(&mut model, 7, 2);
    cache.store(&model.engine, FIRST, &short);
    assert_eq!(cache.tally(), Tally { memory: 3 * page, folder: 0 });
    assert_eq!([&long, &short].map(|text| cached_tokens(&cache, &model, text)), [PAGE, 2 * PAGE]);
    let there = cache.find_prefix(&model.engine, FIRST, &short).unwrap();
    assert!(cache.load(&mut model.engine, FIRST, &there));
    assert_eq!(cache.tally().memory, 3 * page);
    drop(std::mem::take(&mut cache.root));
    assert_eq!(cache.tally().memory, 0);
}

#[test]
fn evicted_prompts_move_to_folder_or_stay_in_memory() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("prompts");
    let mut model = LoadedModel::open(None, &LoadOptions::default()).unwrap();
    let long = text(&mut model, 3, 5);
    let page = page_bytes(&model, &long);
    let options = PromptCacheOptions { folder: Some(folder.clone()), folder_bytes: 1 << 40, memory: 2 * page };
    let mut cache = PromptCache::new(options.clone(), &model.engine).unwrap();
    cache.store(&model.engine, FIRST, &long);
    assert_eq!(cache.tally(), Tally { memory: 2 * page, folder: 3 * page });
    settle(&cache);
    let there = cache.find_prefix(&model.engine, FIRST, &long).unwrap();
    assert_eq!(there.position as usize, 5 * PAGE);
    assert!(cache.load(&mut model.engine, FIRST, &there));
    assert!(cache.tally().memory <= 2 * page);
    // While the first cache holds the folder's lock, a second cache keeps prompts in memory only.
    // Files in the folder that are not of a prompt cache are not deleted.
    let saved = folder.join("book.ixs");
    fs::write(&saved, "precious").unwrap();
    let second = PromptCache::new(PromptCacheOptions { folder_bytes: 0, ..options.clone() }, &model.engine).unwrap();
    assert_eq!((second.options.folder.as_deref(), second.tally()), (None, Tally::default()));
    cache.finish();
    drop(cache);
    let mut cache = PromptCache::new(PromptCacheOptions { folder_bytes: 3 * page, ..options }, &model.engine).unwrap();
    assert_eq!((cache.tally().folder, cached_tokens(&cache, &model, &long)), (3 * page, 3 * PAGE));
    assert!(saved.exists());
    // The folder was removed, so nothing can be written.
    fs::remove_dir_all(&folder).unwrap();
    cache.root = Level::default();
    cache.counts.folder.store(0, Ordering::Relaxed);
    let other = text(&mut model, 5, 5);
    cache.store(&model.engine, FIRST, &other);
    settle(&cache);
    assert_eq!(
        (cache.tally(), cached_tokens(&cache, &model, &other)),
        (Tally { memory: 2 * page, folder: 0 }, 2 * PAGE)
    );
    fs::create_dir(&folder).unwrap();
    cache.store(&model.engine, FIRST, &other);
    settle(&cache);
    assert_eq!(cached_tokens(&cache, &model, &other), 5 * PAGE);
}

#[test]
fn prompt_cache_file_names_are_recognised() {
    let is = |name: &str| has_our_name(&Path::new("folder").join(name));
    assert!(has_our_name(&path_of(Path::new("folder"), &Digest::default())));
    assert!(is("0123456789abcdef0123456789abcdef.ixs"));
    for other in ["book.ixs", "0123456789abcdef0123456789abcde.ixs", "0123456789ABCDEF0123456789abcdef.ixs", LOCK] {
        assert!(!is(other), "{other}");
    }
}
