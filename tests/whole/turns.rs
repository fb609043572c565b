//! Agents that take turns. Each agent's text remains in a slot, and the common prefix of the texts
//! is computed once.

use std::collections::BTreeMap;

use crate::support::session_without_tiles;
use ixc::generator::{Event, Generator, Request, RequestId};
use ixc::loaded_model::LoadedModel;
use ixc::runtime::engine;
use ixc::runtime::sample::SamplerSettings;

/// Number of tokens in the agents' common prefix.
const SHARED: usize = 304;
/// Number of new tokens that an agent gets in a turn, and number of tokens of its answer.
const TOLD: usize = 48;
const ANSWER: usize = 50;

fn generator(sequences: u32) -> Generator {
    let run =
        engine::EngineOptions { sequences, threads: Some(2), context: Some(1024), ..engine::EngineOptions::default() };
    Generator::new(LoadedModel::open(None, &session_without_tiles(run)).unwrap()).unwrap()
}

/// An agent's text so far.
struct Agent {
    /// Number of the agent. It makes the agent's tokens different from those of other agents.
    number: u32,
    text: Vec<u32>,
}

/// Results of a turn: the number of prompt tokens, the number of them that were not computed again,
/// and the generated tokens. Each generated token has its id and the bits of its log-probability.
#[derive(Debug, Default, PartialEq, Eq)]
struct Turn {
    prompt: usize,
    reused: usize,
    made: Vec<(u32, u32)>,
}

impl Agent {
    fn new(number: u32) -> Agent {
        Agent { number, text: (0..SHARED as u32).map(|i| 300 + i % 91).collect() }
    }

    /// Adds new tokens to the agent's text.
    fn tell(&mut self) {
        let begin = 1000 * (1 + self.number) + self.text.len() as u32;
        self.text.extend(begin..begin + TOLD as u32);
    }

    fn submit(&mut self, generator: &mut Generator) -> RequestId {
        self.tell();
        let never = generator.model().tokenizer().unwrap().end_of_generation();
        let sampling = SamplerSettings { banned: never, ..SamplerSettings::greedy() };
        let job = Request { limit: Some(ANSWER), top_logprobs: Some(0), ..Request::new(self.text.clone(), sampling) };
        generator.submit(job).unwrap()
    }

    /// Adds new tokens to the text, and lets the agent answer.
    fn turn(&mut self, generator: &mut Generator) -> Turn {
        let id = self.submit(generator);
        let mut turn = Turn::default();
        while !generator.is_idle() {
            for (of, event) in generator.step() {
                assert_eq!(of, id);
                match event {
                    Event::Begun { prompt, reused } => (turn.prompt, turn.reused) = (prompt, reused),
                    Event::Token { token, log_probs, .. } => {
                        turn.made.push((token, log_probs.unwrap().token.log_probability.to_bits()))
                    }
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
        }
        self.text.extend(turn.made.iter().map(|(token, _)| token));
        turn
    }
}

/// Returns the number of prompt tokens that the slot holds from earlier turns. The slot holds
/// neither the new tokens, nor the last token of the previous answer, which was never computed.
fn held_before(turn: &Turn) -> usize {
    turn.prompt - TOLD - 1
}

#[test]
fn alternating_agents_compute_only_their_new_tokens() {
    for agents in [2, 3] {
        let mut generator = generator(agents);
        let mut alone: Vec<Generator> = (0..agents).map(|_| self::generator(1)).collect();
        let mut texts: Vec<Agent> = (0..agents).map(Agent::new).collect();
        for round in 0..3 {
            for (agent, alone) in texts.iter_mut().zip(&mut alone) {
                let mut same = Agent { number: agent.number, text: agent.text.clone() };
                let turn = agent.turn(&mut generator);
                let expected = match (round, agent.number) {
                    (0, 0) => 0,
                    (0, _) => SHARED,
                    _ => held_before(&turn),
                };
                let how = format!("{agents} agents, round {round}, agent {}", agent.number);
                assert_eq!((turn.prompt, turn.reused), (same.text.len() + TOLD, expected), "{how}");
                // Another agent runs alone with the same tokens. It always continues in the only
                // slot, and its first prompt is computed completely.
                assert!(same.turn(alone).made == turn.made, "{how}: other bits");
            }
        }
    }
}

/// Checks that the least recently used text is dropped if there are more texts than slots. Parts
/// that other slots share are kept.
#[test]
fn least_recently_used_slot_is_reused_first() {
    let mut generator = generator(2);
    let [mut a, mut b, mut c] = [0, 1, 2].map(Agent::new);
    let reused = |agent: &mut Agent, generator: &mut Generator| {
        let turn = agent.turn(generator);
        (turn.reused, held_before(&turn))
    };
    assert_eq!(reused(&mut a, &mut generator).0, 0);
    assert_eq!(reused(&mut b, &mut generator).0, SHARED);
    // `c` takes the slot of `a`, and `b` is unchanged.
    assert_eq!(reused(&mut c, &mut generator).0, SHARED);
    for agent in [&mut b, &mut c] {
        let (reused, held) = reused(agent, &mut generator);
        assert_eq!(reused, held);
    }
    assert_eq!(reused(&mut a, &mut generator).0, SHARED);
    // In its previous turn, `a` took the slot of `b`.
    let (found, held) = reused(&mut c, &mut generator);
    assert_eq!(found, held);
    assert_eq!(reused(&mut b, &mut generator).0, SHARED);
}

/// Checks changes at the end of a text. If a short part changes, the slot is truncated. If more
/// changes, the common part is copied to another slot, and the slot is kept.
#[test]
fn short_changes_truncate_and_large_ones_copy_the_slot() {
    let mut generator = generator(3);
    let held = |generator: &Generator| -> Vec<usize> {
        let mut held: Vec<usize> = generator.slots().map(|slot| slot.cached_tokens).collect();
        held.sort_unstable();
        held
    };
    let mut a = Agent::new(0);
    let first = a.turn(&mut generator);
    let whole = first.prompt + ANSWER - 1;
    assert_eq!(held(&generator), [0, 0, whole]);
    // Other tokens replace the last tokens of the answer.
    a.text.truncate(whole - 10);
    let second = a.turn(&mut generator);
    assert_eq!(second.reused, whole - 10);
    let second = second.prompt + ANSWER - 1;
    assert_eq!(held(&generator), [0, 0, second]);
    // Other tokens replace the whole answer, so the slot with the earlier text is kept.
    a.text.truncate(first.prompt);
    let third = a.turn(&mut generator);
    assert_eq!(third.reused, first.prompt);
    assert_eq!(held(&generator), [0, third.prompt + ANSWER - 1, second]);
    // Another request uses the slot with the prefix.
    let mut b = Agent::new(1);
    let mut c = Agent::new(2);
    b.submit(&mut generator);
    generator.step();
    let id = c.submit(&mut generator);
    let events = generator.step();
    let begun = events.iter().find_map(|(of, event)| match event {
        Event::Begun { reused, .. } if *of == id => Some(*reused),
        _ => None,
    });
    assert_eq!(begun, Some(SHARED));
    while !generator.is_idle() {
        generator.step();
    }
}

/// Checks that a step reads at most the set number of prompt rows while another request decodes.
/// The texts are the same.
#[test]
fn prompt_rows_per_step_are_limited_while_decoding() {
    let run = |rows: Option<usize>| {
        let mut generator = generator(2);
        rows.into_iter().for_each(|rows| generator.limit_prompt_rows(rows));
        let (mut first, mut second) = (Agent::new(0), Agent::new(1));
        second.text.reverse();
        let first = first.submit(&mut generator);
        let (mut ids, mut parts) = (vec![first], Vec::new());
        let mut made: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
        while !generator.is_idle() {
            let events = generator.step();
            parts.push(generator.last_rows().prompt);
            for (id, event) in events {
                match event {
                    Event::Token { token, .. } => made.entry(id).or_default().push(token),
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
            if ids.len() == 1 {
                ids.push(second.submit(&mut generator));
            }
        }
        (parts.into_iter().filter(|&rows| rows > 0).collect::<Vec<_>>(), made)
    };
    let prompt = SHARED + TOLD;
    let (parts, made) = run(None);
    assert_eq!((&parts[..], made.len()), (&[prompt, 256, prompt - 256][..], 2));
    for (rows, expected) in [(64, vec![64, 64, 64, 64, 64, prompt - 320]), (192, vec![192, prompt - 192])] {
        let (parts, same) = run(Some(rows));
        assert_eq!((parts[0], &parts[1..], same), (prompt, &expected[..], made.clone()), "{rows}");
    }
}
