//! Tests, with real kernels, that sharing pages between sequences does not change any bit of the
//! results.

#[allow(dead_code, reason = "other tests use the rest of it")]
mod tiny;

use ixc_ir::random::Random;
use ixc_runtime::engine::{Addition, Engine, EngineOptions, FIRST, SequenceId};
use ixc_runtime::storage::shared_pages::Sharing;
use tiny::{Folder, MAX_TOKENS, VOCABULARY};

const SEQUENCES: usize = 3;
/// Number of positions. A column with 16 elements for each has 8 pages.
const CONTEXT: u32 = 1024;

/// Tests random steps, truncations and copies. Each step must give the same logits as an engine
/// without sharing.
#[test]
fn steps_of_sequences_that_share_have_the_same_bits() {
    let folder = Folder::new();
    let mut plan = tiny::plan(&folder.0);
    plan.context_length = CONTEXT;
    let mut engines = [Sharing::Always, Sharing::Never].map(|sharing| {
        let options =
            EngineOptions { threads: Some(2), sequences: SEQUENCES as u32, sharing, ..EngineOptions::default() };
        Engine::load(plan.clone(), &folder.0, &options).unwrap()
    });
    let others = (1..SEQUENCES).map(|_| engines.each_mut().map(|engine| engine.add_sequence().unwrap())[0]);
    let ids: Vec<SequenceId> = [FIRST].into_iter().chain(others).collect();
    let (mut random, mut shared, mut saved) = (Random::new(40), 0, 0);
    for act in 0..600 {
        let (one, other) = (random.index(SEQUENCES), random.index(SEQUENCES));
        let position = engines[0].sequence(ids[one]).unwrap().position();
        match random.index(12) {
            0 => {
                let tokens = random.index(position as usize + 1) as u32;
                let left = engines.each_mut().map(|engine| engine.truncate_sequence(ids[one], tokens));
                assert_eq!(left, [Ok(tokens), Ok(tokens)]);
            }
            1..3 if one != other => {
                let tokens = if random.once_in(2) { position } else { random.index(position as usize + 1) as u32 };
                let left = engines.each_mut().map(|engine| engine.copy_sequence(ids[one], ids[other], tokens));
                assert_eq!(left, [Ok(tokens), Ok(tokens)]);
                shared += u64::from(engines[0].sequence(ids[other]).unwrap().bytes().1 > 0);
            }
            _ => {
                let room = |id: &SequenceId| CONTEXT - engines[0].sequence(*id).unwrap().position();
                let most = MAX_TOKENS / SEQUENCES as u32;
                let tokens = ids.iter().map(|id| {
                    let count = (1 + random.index(most as usize) as u32).min(room(id));
                    (*id, (0..count).map(|_| random.index(VOCABULARY as usize) as u32).collect::<Vec<u32>>())
                });
                let tokens: Vec<(SequenceId, Vec<u32>)> = tokens.filter(|(_, tokens)| !tokens.is_empty()).collect();
                let outputs: Vec<[u32; 1]> = tokens.iter().map(|(_, tokens)| [tokens.len() as u32 - 1]).collect();
                let additions: Vec<Addition<'_>> = tokens
                    .iter()
                    .zip(&outputs)
                    .map(|((sequence, tokens), outputs)| Addition { sequence: *sequence, tokens, outputs })
                    .collect();
                if additions.is_empty() {
                    continue;
                }
                let logits = engines.each_mut().map(|engine| {
                    let logits = engine.step_batch(&additions).unwrap();
                    logits.iter().map(|logit| logit.to_bits()).collect::<Vec<u32>>()
                });
                assert!(logits[0] == logits[1], "act {act}: other bits");
            }
        }
        assert_eq!(copied_by_the_system(), 0, "act {act}: something wrote to shared pages");
        let [found, expected] = engines.each_ref().map(Engine::state_bytes);
        assert_eq!((expected.shared, expected.own, found.refusal), (0, found.own + found.unshared, None), "act {act}");
        saved = saved.max(found.unshared - found.shared);
    }
    println!("{shared} copies shared pages, which saved up to {saved} bytes");
    assert!(shared > 30 && saved >= 16_384, "{shared} {saved}");
}

/// Returns how many bytes of this process's shared pages the system has copied because a thread
/// wrote to them.
fn copied_by_the_system() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut inside, mut bytes) = (false, 0);
    for line in text.lines() {
        match line.strip_prefix("Anonymous:") {
            Some(kib) if inside => bytes += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10,
            // `7f9d46c00000-7f9d52400000 rw-p 00000000 00:01 7 /memfd:ixc-states (deleted)`
            None if line.split_once(' ').is_some_and(|(range, _)| range.contains('-')) => {
                inside = line.contains("/memfd:ixc-states");
            }
            _ => {}
        }
    }
    bytes
}
