//! Tests that sequences with shared memory have the same bytes as sequences that are copied
//! completely.

use std::sync::Arc;

use ixc_ir::format::Format;
use ixc_ir::plan::StateField;
use ixc_ir::random::Random;
use ixc_ir::state::{Rollback, StateKind};

use super::*;
use crate::refused::refuse;
use crate::states::parts::places;

/// Number of positions for which each sequence has room.
const CAPACITY: u32 = 2048;
/// Maximum number of tokens that are added at once.
const STEP: u32 = 160;

fn paged(name: &str, columns: u32, (keys, values): (u32, u32)) -> State {
    State::paged(name, columns, keys, values)
}

/// Returns the first `count` of six test states. Some have f16 rows of a sixteenth of a page or of
/// an odd width, quantised blocks, or one row for several positions. The last two states are a
/// sliding window and a recurrent state. They can rarely be truncated, except to the beginning.
fn kinds(count: usize) -> Vec<State> {
    let mut blocks = paged("blocks", 2, (128, 64));
    for (field, format) in blocks.fields.iter_mut().zip([Format::Q8_0, Format::Q4_0]) {
        field.format = format;
    }
    let value = StateField { format: Format::F32, columns: 2, positions: false, width: 40 };
    let slots = [
        paged("plain", 3, (128, 128)),
        paged("odd", 2, (72, 40)),
        blocks,
        State { every: 4, ..paged("entries", 1, (256, 256)) },
        State { window: Some(100), ..paged("window", 1, (64, 64)) },
        State {
            name: "recurrent".into(),
            kind: StateKind::Recurrent,
            fields: vec![value],
            rollback: Rollback::Snapshot,
            ..paged("", 0, (0, 0))
        },
    ];
    slots[..count].to_vec()
}

/// Returns the byte that fills the row of a position. It depends on the token and on all earlier
/// tokens, as keys do.
fn pattern(history: u64, state: usize, field: u32, column: u32) -> u8 {
    let mixed = (history ^ (state as u64) << 8 ^ u64::from(field) << 16 ^ u64::from(column) << 24)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// A sequence, with a hash of its tokens up to each position.
struct Text {
    sequence: Sequence,
    histories: Vec<u64>,
}

impl Text {
    fn new(states: &[State]) -> Text {
        Text { sequence: Sequence::new(states, CAPACITY, STEP).unwrap(), histories: Vec::new() }
    }

    /// Writes to the states what a step would write: the rows of new positions, and the fields
    /// without positions.
    fn append(&mut self, tokens: &[u64]) {
        self.sequence.begin(0, tokens.len() as u32);
        for (row, token) in (self.sequence.position()..).zip(tokens) {
            let before = self.histories.last().copied().unwrap_or(1);
            let history = before.wrapping_mul(0x0100_0000_01b3) ^ token;
            self.histories.push(history);
            self.write(row, history);
        }
        self.sequence.advance(tokens.len() as u32);
    }

    fn write(&mut self, position: u32, history: u64) {
        let states = &self.sequence.states;
        for (number, state) in states.declared_states().iter().enumerate() {
            let sliding = states.sliding(number as u32);
            let place = match state.every {
                1 => position - sliding.map_or(0, |sliding| sliding.base()),
                every => position / every,
            };
            for (field, columns) in (0..).zip(&state.fields) {
                for column in 0..if columns.positions { columns.columns } else { 1 } {
                    let region = states.region(number as u32, field, column, 0).unwrap();
                    let (at, bytes) = match columns.positions {
                        true => (u64::from(place) * columns.row_bytes().unwrap(), columns.row_bytes().unwrap()),
                        false => (0, region.bytes()),
                    };
                    let row = region.part(at, bytes).unwrap();
                    // SAFETY: the region lies in the states, which nothing else uses.
                    unsafe { row.base().write_bytes(pattern(history, number, field, column), bytes as usize) };
                }
            }
        }
    }

    /// Returns all bytes that a kernel could see. They are the rows of all held positions, the
    /// zeros after these rows in fields that are cleared, fields without positions, and saved
    /// copies.
    fn seen(&self) -> Vec<Vec<u8>> {
        let (states, position) = (&self.sequence.states, self.sequence.position());
        let mut seen = Vec::new();
        let firsts = states.firsts(&(0..position));
        for (number, (state, first)) in states.declared_states().iter().zip(firsts).enumerate() {
            let places = first..places(state, &(0..position)).end;
            let row_bytes: Vec<(usize, bool)> = state
                .fields
                .iter()
                .zip(state.kind.row().fields)
                .filter(|(field, _)| field.positions)
                .flat_map(|(field, row)| {
                    let cleared = row.cleared && !field.format.is_quantised();
                    (0..field.columns).map(move |_| (field.row_bytes().unwrap() as usize, cleared))
                })
                .collect();
            let live = position.div_ceil(state.every).saturating_sub(first) as usize;
            let mut columns = row_bytes.into_iter();
            let mut put = |bytes: &[u8]| {
                let (row, cleared) = columns.next().unwrap();
                seen.push(bytes[..if cleared { bytes.len() } else { live * row }].to_vec());
                Ok(())
            };
            states.read_places(number, &places, &mut put).unwrap();
        }
        let mut whole = |bytes: &[u8]| {
            seen.push(bytes.to_vec());
            Ok(())
        };
        states.read_whole(&mut whole).unwrap();
        seen.extend(states.copies().map(|(at, bytes)| [&at.to_le_bytes(), bytes].concat()));
        seen
    }

    /// Restores this sequence from the bytes of another one, like loading a saved state.
    fn restore(&mut self, from: &Text) {
        let (states, position) = (&from.sequence.states, from.sequence.position());
        let firsts = states.firsts(&(0..position));
        self.sequence.stand_at(&Stand { used: position, bases: firsts.clone() });
        let declared = states.declared_states().to_vec();
        for (number, (state, first)) in declared.iter().zip(firsts).enumerate() {
            let places = first..places(state, &(0..position)).end;
            let mut columns = Vec::new();
            let mut put = |bytes: &[u8]| {
                columns.push(bytes.to_vec());
                Ok(())
            };
            states.read_places(number, &places, &mut put).unwrap();
            let mut columns = columns.into_iter();
            let mut get = |bytes: &mut [u8]| {
                bytes.copy_from_slice(&columns.next().unwrap());
                Ok(())
            };
            self.sequence.states.write_places(number, &places, &mut get).unwrap();
        }
        let mut whole = Vec::new();
        let mut put = |bytes: &[u8]| {
            whole.extend_from_slice(bytes);
            Ok(())
        };
        states.read_whole(&mut put).unwrap();
        self.sequence.go_back_with(position, Some(whole));
        self.histories.clone_from(&from.histories);
    }
}

/// Two sets of sequences with the same texts. The sequences of the first set share memory, those of
/// the second set do not.
struct Worlds {
    states: Vec<State>,
    texts: [Vec<Text>; 2],
    pool: Arc<Pool>,
}

impl Worlds {
    fn new(states: Vec<State>, max_mappings: u64, min_pages: u64) -> Worlds {
        let texts = [(); 2].map(|()| (0..4).map(|_| Text::new(&states)).collect::<Vec<_>>());
        let first = &texts[0][0].sequence.states;
        let pool = Pool::with(first.shared_columns(), first.memory().bytes(), max_mappings, min_pages).unwrap();
        Worlds { states, texts, pool }
    }

    /// Applies one random action to both sets. Returns a description of the action.
    fn act(&mut self, random: &mut Random) -> String {
        let (one, other) = (random.index(4), random.index(4));
        let position = self.texts[0][one].sequence.position();
        match random.index(10) {
            0..4 => {
                let count = (1 + random.index(STEP as usize) as u32).min(CAPACITY - position);
                let tokens: Vec<u64> = (0..count).map(|_| random.index(3) as u64).collect();
                if !tokens.is_empty() {
                    self.texts.iter_mut().for_each(|texts| texts[one].append(&tokens));
                }
                format!("append {count} to {one} at {position}")
            }
            4..6 => {
                let tokens = random.index(position as usize + 1) as u32;
                let [shared, plain] = &mut self.texts;
                for texts in [&mut *shared, &mut *plain] {
                    let left = texts[one].sequence.truncate(tokens);
                    texts[one].histories.truncate(left as usize);
                }
                format!("cut {one} from {position} to {tokens}")
            }
            6..9 if one != other => {
                let tokens = if random.once_in(2) { position } else { random.index(position as usize + 1) as u32 };
                let pools = [Some(Arc::clone(&self.pool)), None];
                for (texts, pool) in self.texts.iter_mut().zip(pools) {
                    let [from, to] = texts.get_disjoint_mut([one, other]).unwrap();
                    let left = to.sequence.copy_from(&mut from.sequence, tokens, pool.as_ref());
                    to.histories = from.histories[..left as usize].to_vec();
                }
                format!("copy {tokens} of {position} from {one} to {other}")
            }
            9 if one != other && position > 0 => {
                for texts in &mut self.texts {
                    let [from, to] = texts.get_disjoint_mut([one, other]).unwrap();
                    to.restore(from);
                }
                format!("restore {one} in {other}")
            }
            _ => {
                self.texts.iter_mut().for_each(|texts| texts[one] = Text::new(&self.states));
                format!("remove {one}")
            }
        }
    }

    fn compare(&self, did: &str) {
        for (number, (shared, plain)) in self.texts[0].iter().zip(&self.texts[1]).enumerate() {
            assert_eq!(shared.sequence.position(), plain.sequence.position(), "{did}: sequence {number}");
            assert!(shared.histories == plain.histories, "{did}: sequence {number}");
            for (column, (found, expected)) in shared.seen().iter().zip(&plain.seen()).enumerate() {
                let differs = found.iter().zip(expected).position(|(a, b)| a != b);
                assert!(
                    found == expected,
                    "{did}: sequence {number}, column {column} of {} bytes at {differs:?}",
                    found.len()
                );
            }
            let (used, bytes) = shared.sequence.bytes();
            assert!(bytes <= used, "{did}: sequence {number} shares {bytes} bytes of {used}");
        }
        let mapped: u64 = self.texts[0].iter().map(|text| text.sequence.states.shared_bytes()).sum();
        assert!(self.pool.held_bytes() <= mapped, "{did}: {} bytes are held for {mapped}", self.pool.held_bytes());
        assert_eq!(self.pool.resident(), self.pool.held_bytes(), "{did}: what the file has is not what is counted");
    }
}

/// Any order of appending, cutting, copying, removing and restoring has the same result with and
/// without sharing.
#[test]
fn shared_sequences_equal_copied_ones() {
    let (mut shared, mut cut) = (0, 0);
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let mut worlds = Worlds::new(kinds(4 + seed as usize % 3), u64::MAX, seed % 2 * 4);
        for _ in 0..150 {
            let before: Vec<u64> = worlds.texts[0].iter().map(|text| text.sequence.states.shared_bytes()).collect();
            let did = worlds.act(&mut random);
            worlds.compare(&format!("seed {seed}, {did}"));
            let after = worlds.texts[0].iter().map(|text| text.sequence.states.shared_bytes());
            shared += u64::from(after.clone().zip(&before).any(|(after, before)| after > *before));
            cut += u64::from(after.zip(&before).any(|(after, before)| (1..*before).contains(&after)));
        }
        // Shared pages are never written, so the system has not copied any of them.
        for text in &worlds.texts[0] {
            assert_eq!(copied_by_the_system(text.sequence.states.memory()), 0, "seed {seed}");
        }
        let pool = Arc::clone(&worlds.pool);
        drop(worlds);
        assert_eq!((pool.held_bytes(), pool.mappings(), pool.resident()), (0, 0, 0), "seed {seed}");
        assert_eq!(pool.refusal(), None);
    }
    println!("{shared} copies shared pages, {cut} sequences were cut within theirs");
    assert!(shared > 30 && cut > 10, "{shared} {cut}");
}

/// Returns the number of bytes in a region of private file mappings that the system has copied
/// because of a write.
fn copied_by_the_system(region: crate::storage::memory::Region) -> u64 {
    let text = ixc_files::read_system(std::path::Path::new("/proc/self/smaps")).unwrap();
    let (begin, end) = (region.base() as u64, region.base() as u64 + region.bytes());
    let (mut inside, mut bytes) = (false, 0);
    for line in text.lines() {
        if let Some((from, _)) = line.split_once('-')
            && let Ok(from) = u64::from_str_radix(from, 16)
        {
            inside = (begin..end).contains(&from) && line.contains("/memfd:ixc-states");
        }
        if let Some(kib) = line.strip_prefix("Anonymous:").filter(|_| inside) {
            bytes += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        }
    }
    bytes
}

/// If few mappings are left, sequences are copied instead of shared. The refusal is reported, and
/// results are the same.
#[test]
fn sequences_are_copied_when_mappings_run_out() {
    let mut random = Random::new(100);
    // A copy uses two mappings for each column, and so does the original when it is copied for the
    // first time.
    let columns = Text::new(&kinds(4)).sequence.states.shared_columns().len() as u64;
    let max = 2 * columns * 2;
    let mut worlds = Worlds::new(kinds(4), max, 1);
    let mut most = 0;
    for _ in 0..200 {
        let did = worlds.act(&mut random);
        worlds.compare(&did);
        most = most.max(worlds.pool.mappings());
    }
    assert!((1..=max).contains(&most), "{most}");
    assert!(matches!(worlds.pool.refusal(), Some(Refusal::Mappings { max: found, .. }) if found == max));
}

/// Nine sequences with the same prefix store the prefix once. Each sequence also uses memory for
/// its own later positions.
#[test]
fn a_common_prefix_is_in_memory_once() {
    let state = vec![paged("plain", 4, (128, 128)); 3];
    let mut sequences = Sequences::new(9, state.clone(), CAPACITY, STEP, Sharing::Paying).unwrap();
    let mut text = Text::new(&state);
    (0..10).for_each(|_| text.append(&[1; 100]));
    *sequences.get_mut(0).unwrap() = text.sequence;
    assert_eq!(sequences.bytes().shared, 0);
    for number in 1..9 {
        assert_eq!(sequences.add().unwrap(), Some(number));
        assert_eq!(sequences.copy(0, number, 1000), Some(1000));
    }
    // The 992 shared positions are whole blocks. With 256 bytes for each position, they fill whole
    // pages in each of the 24 columns.
    let prefix = 992 * 256 * 24;
    let StateBytes { own, shared, unshared, copies, whole_copies, refusal, mappings } = sequences.bytes();
    assert_eq!((shared, unshared), (prefix, 9 * prefix));
    assert_eq!((own, copies, whole_copies, refusal), (9 * 8 * 256 * 24, 8, 0, None));
    assert_eq!(mappings, 9 * 2 * 24);
    // First the original is removed, and then all copies but one.
    assert!(sequences.remove(0) && sequences.bytes().shared == prefix);
    assert!((1..8).all(|number| sequences.remove(number)));
    assert_eq!((sequences.bytes().shared, sequences.bytes().unshared), (prefix, prefix));
    // Truncation to 512 positions frees the pages that no sequence needs any more.
    assert_eq!(sequences.get_mut(8).unwrap().truncate(512), 512);
    assert_eq!(sequences.bytes().shared, 512 * 256 * 24);
    sequences.get_mut(8).unwrap().truncate(0);
    assert_eq!((sequences.bytes().shared, sequences.bytes().mappings), (0, 0));
}

/// Short prefixes, and sequences without sharing, are copied.
#[test]
fn short_prefixes_are_copied_instead_of_shared() {
    let state = vec![paged("plain", 4, (128, 128))];
    for (tokens, sharing) in [(40, Sharing::Paying), (1000, Sharing::Never)] {
        let mut sequences = Sequences::new(2, state.clone(), CAPACITY, STEP, sharing).unwrap();
        sequences.add().unwrap();
        let mut text = Text::new(&state);
        (0..tokens / 40).for_each(|_| text.append(&[1; 40]));
        *sequences.get_mut(0).unwrap() = text.sequence;
        assert_eq!(sequences.copy(0, 1, tokens), Some(tokens));
        let bytes = sequences.bytes();
        assert_eq!((bytes.shared, bytes.copies, bytes.whole_copies, bytes.refusal), (0, 1, 1, None));
    }
}

/// If the system refuses memory files, sequences are copied, and the refusal is reported.
#[test]
fn sequences_are_copied_without_memory_files() {
    // The refusal of a system call applies to one thread, so the test uses its own thread.
    let run = || {
        if let Err(error) = refuse(libc::SYS_memfd_create) {
            println!("NOT RUN: no system call can be refused here: {error}");
            return;
        }
        let state = vec![paged("plain", 4, (128, 128))];
        let mut sequences = Sequences::new(2, state.clone(), CAPACITY, STEP, Sharing::Paying).unwrap();
        sequences.add().unwrap();
        let mut text = Text::new(&state);
        (0..10).for_each(|_| text.append(&[1; 100]));
        let expected = text.seen();
        *sequences.get_mut(0).unwrap() = text.sequence;
        assert_eq!(sequences.copy(0, 1, 1000), Some(1000));
        let bytes = sequences.bytes();
        assert_eq!((bytes.shared, bytes.whole_copies), (0, 1));
        assert!(matches!(bytes.refusal, Some(Refusal::NoFile(_))), "{bytes:?}");
        let copy = sequences.slots[1].take().unwrap();
        assert!(Text { sequence: copy, histories: Vec::new() }.seen() == expected);
    };
    std::thread::spawn(run).join().unwrap();
}
