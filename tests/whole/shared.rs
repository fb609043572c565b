//! Sequences that share the pages of a common prefix. They have the same bits as sequences that
//! share no pages.

use std::path::Path;

use crate::support::cover::cover;
use crate::support::engines::{bits, native};
use crate::support::{Golden, shared};
use ixc::compile::{CompileOptions, compile};
use ixc::ir::format::Format;
use ixc::ir::kernel::Kernel;
use ixc::ir::plan::Plan;
use ixc::ir::random::Random;
use ixc::model::Model;
use ixc::passes::manager;
use ixc::passes::options::OptionSet;
use ixc::runtime::engine::{self, Addition, Engine, FIRST, SequenceId};
use ixc::runtime::storage::shared_pages::Sharing;
use ixc::targets::Target;

const SEQUENCES: usize = 4;
/// Max tokens of a sequence.
const LONGEST: usize = 400;

fn load(plan: Plan<Kernel>, sharing: Sharing) -> Engine {
    let options = engine::EngineOptions {
        threads: Some(2),
        backend: native(Target::native()),
        sequences: SEQUENCES as u32,
        sharing,
        ..engine::EngineOptions::default()
    };
    Engine::load(plan, Path::new(""), &options).unwrap()
}

/// Two engines of a plan, one that shares pages and one that does not, and the tokens of their
/// sequences.
struct Pair {
    name: String,
    engines: [Engine; 2],
    ids: Vec<SequenceId>,
    held: Vec<Vec<u32>>,
    prompt: Vec<u32>,
}

impl Pair {
    fn new(name: String, plan: Plan<Kernel>, prompt: Vec<u32>) -> Pair {
        let mut engines = [Sharing::Always, Sharing::Never].map(|sharing| load(plan.clone(), sharing));
        let mut ids = vec![FIRST];
        for _ in 1..SEQUENCES {
            let [one, other] = engines.each_mut().map(|engine| engine.add_sequence().unwrap());
            assert_eq!(one, other);
            ids.push(one);
        }
        Pair { name, engines, ids, held: vec![Vec::new(); SEQUENCES], prompt }
    }

    /// Runs a step that has some tokens of some of the sequences.
    fn step(&mut self, random: &mut Random) {
        let longest = LONGEST.min(self.engines[0].context() as usize);
        let most = self.engines[0].max_tokens() as usize / SEQUENCES;
        let mut parts: Vec<(usize, Vec<u32>)> = Vec::new();
        for number in 0..SEQUENCES {
            let size = random.pick(&[1, 3, 40, 150]).min(longest - self.held[number].len()).min(most);
            if size > 0 && !random.once_in(3) {
                let start = random.index(self.prompt.len());
                let tokens = self.prompt.iter().cycle().skip(start).take(1 + random.index(size)).copied().collect();
                parts.push((number, tokens));
            }
        }
        if parts.is_empty() {
            return;
        }
        let outputs: Vec<[u32; 1]> = parts.iter().map(|(_, tokens)| [tokens.len() as u32 - 1]).collect();
        let additions: Vec<Addition<'_>> = parts
            .iter()
            .zip(&outputs)
            .map(|((number, tokens), outputs)| Addition { sequence: self.ids[*number], tokens, outputs })
            .collect();
        let [found, expected] = self.engines.each_mut().map(|engine| bits(engine.step_batch(&additions).unwrap()));
        assert!(found == expected, "{}: other bits of sequences {:?}", self.name, self.lengths());
        for (number, tokens) in &parts {
            self.held[*number].extend(tokens);
        }
    }

    fn lengths(&self) -> Vec<usize> {
        self.held.iter().map(Vec::len).collect()
    }

    /// Truncates, copies, restores or removes a sequence, or does nothing, chosen at random.
    fn act(&mut self, random: &mut Random) {
        let (one, other) = (random.index(SEQUENCES), random.index(SEQUENCES));
        let (length, ids) = (self.held[one].len(), [self.ids[one], self.ids[other]]);
        let tokens = if random.once_in(2) { length } else { random.index(length + 1) };
        match random.index(8) {
            0..2 => {
                let left = self.engines.each_mut().map(|engine| engine.truncate_sequence(ids[0], tokens as u32));
                assert_eq!(left[0], left[1]);
                self.held[one].truncate(left[0].clone().unwrap() as usize);
            }
            2..6 if one != other => {
                let copy = |engine: &mut Engine| engine.copy_sequence(ids[0], ids[1], tokens as u32);
                let left = self.engines.each_mut().map(copy);
                assert_eq!(left[0], left[1]);
                self.held[other] = self.held[one][..left[0].clone().unwrap() as usize].to_vec();
            }
            6 if one != other && length > 0 => {
                for engine in &mut self.engines {
                    let mut bytes = Vec::new();
                    engine.save_state(ids[0], &self.held[one], None, &mut bytes).unwrap();
                    engine.load_state(ids[1], &mut &*bytes, bytes.len() as u64).unwrap();
                }
                self.held[other] = self.held[one].clone();
            }
            7 => {
                for engine in &mut self.engines {
                    engine.remove_sequence(ids[0]);
                    if ids[0] != FIRST {
                        assert_eq!(engine.add_sequence(), Ok(ids[0]));
                    }
                }
                self.held[one].clear();
            }
            _ => {}
        }
    }

    /// Compares the saved states of both engines. If all cache blocks are full, the states contain
    /// nothing but results of steps, so their bytes must be equal.
    fn compare(&self) {
        for (id, tokens) in self.ids.iter().zip(&self.held).filter(|(_, tokens)| !tokens.is_empty()) {
            let positions = self.engines.each_ref().map(|engine| engine.sequence(*id).unwrap().position() as usize);
            assert_eq!(positions, [tokens.len(); 2], "{}", self.name);
            // If several positions of a state share an entry, a block has more positions than these
            // sequences, so the state is skipped.
            let (states, _) = self.engines[0].states();
            if tokens.len().is_multiple_of(32) && states.iter().all(|state| state.every == 1) {
                let saved = |engine: &Engine| {
                    let mut bytes = Vec::new();
                    engine.save_state(*id, tokens, None, &mut bytes).unwrap();
                    bytes
                };
                let [found, expected] = self.engines.each_ref().map(saved);
                assert!(found == expected, "{}: other bytes after {} tokens", self.name, tokens.len());
            }
        }
    }
}

/// Runs steps, truncations, copies, saving and restoring in random order. Returns the number of
/// copies that shared pages with their original.
fn random_steps(name: String, plan: Plan<Kernel>, prompt: Vec<u32>, random: &mut Random) -> u64 {
    let mut pair = Pair::new(name, plan, prompt);
    for _ in 0..40 {
        pair.step(random);
        pair.act(random);
        pair.compare();
    }
    let [found, expected] = pair.engines.each_ref().map(Engine::state_bytes);
    assert_eq!((expected.shared, expected.mappings, expected.refusal.clone()), (0, 0, None));
    assert_eq!((found.own + found.unshared, found.refusal), (expected.own, None), "{}", pair.name);
    assert!(found.shared <= found.unshared, "{}", pair.name);
    assert_eq!(copied_by_the_system(), 0, "{}: something wrote to shared pages", pair.name);
    found.copies - found.whole_copies
}

/// Checks that sequences with shared pages give the same bits as sequences with separate memory.
/// The models cover all kinds of states; every second model has a quantised KV cache.
#[test]
fn sharing_sequences_have_the_bits_of_separate_ones() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut random = Random::new(30);
    let (mut models, mut shares) = (0, 0);
    let folders = [Some(own), shared("golden")].into_iter().flatten();
    let goldens: Vec<Golden> = folders.flat_map(|folder| Golden::all(&folder)).collect();
    for (number, golden) in cover(&goldens, Target::native()).into_iter().enumerate() {
        // Models alternate between two pairs of formats. Running all models with both would take
        // another minute.
        let formats = [[Format::F16; 2], [Format::Q8_0, Format::Q4_0]][number % 2];
        let mut passes = OptionSet::default();
        for (field, format) in ["keys", "values"].into_iter().zip(formats) {
            manager::set(&mut passes, &format!("cache.{field}={}", format.name())).unwrap();
        }
        let options = CompileOptions { target: Some(Target::native()), passes, ..CompileOptions::default() };
        let Ok(compiled) = compile(&Model::open(&golden.model).unwrap(), &options) else { continue };
        let name = format!("{} in {formats:?}", golden.name());
        let copies = random_steps(name.clone(), compiled.plan, golden.tokens("prompt_tokens"), &mut random);
        println!("{name}: {copies} copies shared pages");
        models += 1;
        shares += u64::from(copies > 0);
    }
    assert!(shares * 2 > models, "{shares} of {models} shared something");
}

/// Returns the number of bytes of shared pages that the system copied for this process, because
/// they were written to.
fn copied_by_the_system() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut bytes) = (false, 0);
    for line in text.lines() {
        match line.strip_prefix("Anonymous:") {
            Some(kib) if inside => bytes += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10,
            Some(_) => {}
            None if line.split_once(' ').is_some_and(|(range, _)| range.contains('-')) => {
                inside = line.contains("/memfd:ixc-states");
            }
            None => {}
        }
    }
    bytes
}
