//! The memory that kernels work on: model files, packed weights, arena, KV cache, rotary tables, inputs, scratch.
//!
//! All of it is mapped: model files read-only and in place, the rest anonymous, zeroed, and without cost until touched. So
//! the KV cache of a long context takes memory as the sequence grows, and so do rotary tables, which are filled just before a
//! position is first used.
//!
//! A [`Region`] is where one buffer lies. Rust code here reads and writes regions only while no kernel runs; kernels get
//! their pointers after [`crate::execute`] has checked the slice.
//!
//! Invariant: no Rust reference to this memory exists while kernels run.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ixc_failure::Class;
use ixc_ir::ngram;
use ixc_ir::plan::{Choice, KEY_LANES, Ngram, RopeTable};
use memmap2::{MmapOptions, MmapRaw};

use crate::identity::{ChangedFile, Identity};

/// Bytes of an index, a position or a token id.
pub const INDEX_BYTES: u64 = 4;
/// Alignment of what lies in one mapping: a cache line.
const ALIGNMENT: u64 = 64;

/// Bytes of the addresses of a process on x86-64: 47 bits. A plan that needs more is wrong on every
/// machine.
const ADDRESS_SPACE: u64 = 1 << 47;

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {bytes} bytes for {what}: {source}")]
pub struct MemoryError {
    /// What for.
    pub what: &'static str,
    /// How much.
    pub bytes: u64,
    /// What the system said.
    pub source: io::Error,
}

impl MemoryError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        if self.bytes >= ADDRESS_SPACE { Class::Data } else { Class::Failed }
    }
}

/// A place in a mapping, which the owner of the region keeps alive.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    base: *mut u8,
    bytes: u64,
}

// SAFETY: a region is an address and a length; whoever reads or writes through it has to show why that is sound.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// Bytes that the owner of the region keeps where they are.
    pub fn of(bytes: &mut [u8]) -> Region {
        Region { base: bytes.as_mut_ptr(), bytes: bytes.len() as u64 }
    }

    /// The first byte.
    pub fn base(self) -> *mut u8 {
        self.base
    }

    /// Length in bytes.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// The part of `bytes` bytes from `offset`, where it lies inside.
    pub fn part(self, offset: u64, bytes: u64) -> Option<Region> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then(|| Region { base: self.base.wrapping_add(offset as usize), bytes })
    }
}

/// An anonymous mapping, zeroed.
#[derive(Debug)]
pub struct Memory {
    map: MmapRaw,
    bytes: u64,
}

impl Memory {
    /// Maps `bytes` bytes. Pages take memory when they are first touched; `huge` asks for large ones.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn zeroed(what: &'static str, bytes: u64, huge: bool) -> Result<Memory, MemoryError> {
        let error = |source| MemoryError { what, bytes, source };
        let length = usize::try_from(bytes)
            .ok()
            .filter(|&length| isize::try_from(length).is_ok())
            .ok_or_else(|| error(io::ErrorKind::OutOfMemory.into()))?;
        let map = MmapRaw::from(MmapOptions::new().len(length.max(1)).map_anon().map_err(error)?);
        #[cfg(target_os = "linux")]
        if huge {
            // Only a hint: kernels without transparent huge pages refuse it.
            if let Err(error) = map.advise(memmap2::Advice::HugePage) {
                tracing::debug!(what, %error, "no huge pages");
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = huge;
        Ok(Memory { map, bytes })
    }

    /// All of it.
    pub fn region(&self) -> Region {
        Region { base: self.map.as_mut_ptr(), bytes: self.bytes }
    }
}

/// A model file, mapped read-only, or a part of the program.
#[derive(Debug)]
pub struct Mapped {
    region: Region,
    /// The file; nothing of a part of the program.
    source: Option<MappedFile>,
}

/// The file of a mapping.
#[derive(Debug)]
struct MappedFile {
    path: PathBuf,
    /// Handle that [`Mapped::check_unchanged`] asks.
    file: File,
    /// Identity when it was mapped.
    identity: Identity,
    /// Mapping that holds the region.
    map: MmapRaw,
}

impl Mapped {
    /// Maps a file whole. Nothing in Rust ever reads the mapping, so that a file that changes while
    /// it is mapped changes results and nothing else. [`Mapped::check_unchanged`] notices that. A
    /// file that is cut short raises SIGBUS on access, as it does in every program that maps files;
    /// the command line ends with an error then.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(file: &File, path: &Path, bytes: u64) -> io::Result<Mapped> {
        let identity = Identity::of(&file.metadata()?);
        let map = MmapOptions::new().map_raw_read_only(file)?;
        if map.len() as u64 != bytes {
            return Err(io::Error::other(format!("{} changed its length while it was opened", path.display())));
        }
        // The mapping stays where it is when its owner moves.
        let source = MappedFile { path: path.to_owned(), file: file.try_clone()?, identity, map };
        Ok(Mapped { region: Region { base: source.map.as_mut_ptr(), bytes }, source: Some(source) })
    }

    /// Maps a part of a file, which must not be empty.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn part_of(file: &File, path: &Path, offset: u64, bytes: u64) -> io::Result<Mapped> {
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let identity = Identity::of(&file.metadata()?);
        let map = MmapOptions::new().offset(offset).len(length).map_raw_read_only(file)?;
        let source = MappedFile { path: path.to_owned(), file: file.try_clone()?, identity, map };
        Ok(Mapped { region: Region { base: source.map.as_mut_ptr(), bytes }, source: Some(source) })
    }

    /// A file that is a part of the program.
    pub fn built_in(bytes: &'static [u8]) -> Mapped {
        Mapped { region: Region { base: bytes.as_ptr().cast_mut(), bytes: bytes.len() as u64 }, source: None }
    }

    /// What the file was when it was mapped.
    pub fn identity(&self) -> Option<Identity> {
        self.source.as_ref().map(|source| source.identity)
    }

    /// Checks that the file was not written to since it was mapped. Another file at its path does
    /// not matter.
    ///
    /// # Errors
    /// [`ChangedFile`].
    pub fn check_unchanged(&self) -> Result<(), ChangedFile> {
        let Some(MappedFile { path, file, identity, .. }) = &self.source else { return Ok(()) };
        let now = file.metadata().map_err(|error| ChangedFile::unreadable(path, &error))?;
        Identity::of(&now).check_same_bytes(*identity, path)
    }

    /// Gives back the pages of a part, so far as the system allows: they leave this process's memory, stay in the system's cache
    /// as long as that likes, and come back from there or from the file when they are read again.
    pub fn release(&self, offset: u64, bytes: u64) {
        #[cfg(unix)]
        if let (Some(MappedFile { map, .. }), Ok(offset), Ok(bytes)) =
            (&self.source, usize::try_from(offset), usize::try_from(bytes))
        {
            // SAFETY: the mapping is shared and read-only, so that reading a page again gives the file's bytes. Nothing borrows it.
            let advised = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, bytes) };
            if let Err(error) = advised {
                tracing::debug!(offset, bytes, %error, "pages stay mapped");
            }
        }
        #[cfg(not(unix))]
        let _ = (offset, bytes);
    }

    /// Asks for large pages, of a file that will be read whole: the system then reads it in pieces of 2 MiB, where its file system can. What is read now
    /// and then, in smaller parts, takes longer and more of the page cache so.
    pub fn prefer_large_pages(&self) {
        #[cfg(target_os = "linux")]
        if let Some(MappedFile { map, .. }) = &self.source
            && let Err(error) = map.advise(memmap2::Advice::HugePage)
        {
            tracing::debug!(%error, "no large pages of files");
        }
    }

    /// Has the system begin to read the pages of a part that are not in memory. It may do so or not.
    pub fn will_need(&self, offset: u64, bytes: u64) {
        #[cfg(unix)]
        if let (Some(MappedFile { map, .. }), Ok(offset), Ok(bytes)) =
            (&self.source, usize::try_from(offset), usize::try_from(bytes))
            && let Err(error) = map.advise_range(memmap2::Advice::WillNeed, offset, bytes)
        {
            tracing::debug!(offset, bytes, %error, "pages are read when they are touched");
        }
        #[cfg(not(unix))]
        let _ = (offset, bytes);
    }

    /// All of it. Not writable.
    pub fn region(&self) -> Region {
        self.region
    }
}

/// Parts of one mapping, before it is made.
#[derive(Default)]
pub(crate) struct Layout {
    pub(crate) end: u64,
}

impl Layout {
    /// Has the next part begin at a multiple of so many bytes.
    pub(crate) fn align(&mut self, bytes: u64) {
        self.end = self.end.checked_next_multiple_of(bytes).unwrap_or(u64::MAX);
    }

    /// Adds a part; gives its offset. Saturates: the mapping is then refused.
    pub(crate) fn add(&mut self, bytes: u64) -> u64 {
        let at = self.end;
        self.end = at.saturating_add(bytes).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        at
    }
}

pub(crate) fn part(memory: &Memory, what: &'static str, offset: u64, bytes: u64) -> Result<Region, MemoryError> {
    memory.region().part(offset, bytes).ok_or(MemoryError { what, bytes, source: io::ErrorKind::OutOfMemory.into() })
}

/// A rotary table, filled up to some position.
#[derive(Debug)]
pub struct Rope {
    memory: Memory,
    table: RopeTable,
    filled: u32,
    capacity: u32,
}

impl Rope {
    /// Bytes of a table of `capacity` positions.
    pub fn bytes(table: &RopeTable, capacity: u32) -> u64 {
        row_bytes(table).saturating_mul(u64::from(capacity))
    }

    /// A table of `capacity` positions, for a context of no more than these.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(table: &RopeTable, capacity: u32, context: u32) -> Result<Rope, MemoryError> {
        let memory = Memory::zeroed("a rotary table", Rope::bytes(table, capacity), false)?;
        Ok(Rope { memory, table: table.within(context), filled: 0, capacity })
    }

    /// The whole table.
    pub fn region(&self) -> Region {
        self.memory.region()
    }

    /// Fills the rows of all positions below `end` that are not yet.
    pub fn fill(&mut self, end: u32) {
        let mut row = vec![0.0f32; row_bytes(&self.table) as usize / size_of::<f32>()];
        while self.filled < end.min(self.capacity) {
            self.table.fill_row(self.filled, &mut row);
            let bytes = size_of_val(&row[..]) as u64;
            let Some(to) = self.memory.region().part(u64::from(self.filled) * bytes, bytes) else { return };
            // SAFETY: `to` lies in this table's mapping, which is borrowed exclusively, so no kernel runs, and has as many bytes
            // as `row`; kernels read floats without alignment, and this copies bytes.
            unsafe { to.base.copy_from_nonoverlapping(row.as_ptr().cast(), row.len() * size_of::<f32>()) };
            self.filled += 1;
        }
    }
}

fn row_bytes(table: &RopeTable) -> u64 {
    table.style.row_bytes(u32::try_from(table.frequencies.len().saturating_mul(2)).unwrap_or(u32::MAX))
}

/// The ids before a step, as a state has them.
type Before = [f32; ngram::BEFORE];

/// Inputs of a step: one array of words for each.
#[derive(Debug)]
pub struct Inputs {
    _memory: Memory,
    /// Token ids.
    pub tokens: Region,
    /// Positions.
    pub positions: Region,
    /// Of each row the position of its sequence's last row in the step.
    pub ends: Region,
    /// By how many positions ahead: each row's and so many more.
    pub ahead: Vec<(u32, Region)>,
    /// Positions / 16.
    pub position_blocks: Region,
    /// Positions % 16.
    pub position_lanes: Region,
    /// By how many positions: each position's place among them, and how many times they are whole.
    pub shared: Vec<(u32, Region, Region)>,
    /// By what an index chooses: how many places those are, and the number of the last of them.
    pub chosen: Vec<(Choice, Region, Region)>,
    /// Rows of tables that tokens name together with those before them.
    pub ngrams: Vec<(Ngram, Region)>,
    /// Rows whose logits are wanted.
    pub output_rows: Region,
    /// For each routing: token of each routed row, and routed row of each token's slot.
    pub routed: Vec<(Region, Region)>,
}

impl Inputs {
    /// For steps of `max_tokens`, routings with `top_k` slots each, so many positions that share something, what indices choose, and rows that tokens
    /// name together.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(
        max_tokens: u32,
        top_k: &[u32],
        (shared, choices, ahead): (&[u32], &[Choice], &[u32]),
        ngrams: &[Ngram],
    ) -> Result<Inputs, MemoryError> {
        let what = "the inputs";
        let rows = u64::from(max_tokens) * INDEX_BYTES;
        let mut layout = Layout::default();
        let plain = [(); 6].map(|()| layout.add(rows));
        let shared: Vec<_> = shared.iter().map(|&every| (every, layout.add(rows), layout.add(rows))).collect();
        let chosen: Vec<_> = choices.iter().map(|&choice| (choice, layout.add(rows), layout.add(rows))).collect();
        let ahead: Vec<_> = ahead.iter().map(|&reach| (reach, layout.add(rows))).collect();
        let ngrams: Vec<_> = ngrams.iter().map(|&ngram| (ngram, layout.add(rows))).collect();
        let routed: Vec<_> = top_k
            .iter()
            .map(|&top_k| {
                let bytes = rows.saturating_mul(u64::from(top_k));
                (layout.add(bytes), layout.add(bytes), bytes)
            })
            .collect();
        let memory = Memory::zeroed(what, layout.end, false)?;
        let at = |offset, bytes| part(&memory, what, offset, bytes);
        let [tokens, positions, ends, position_blocks, position_lanes, output_rows] = plain;
        Ok(Inputs {
            tokens: at(tokens, rows)?,
            positions: at(positions, rows)?,
            ends: at(ends, rows)?,
            ahead: ahead
                .into_iter()
                .map(|(reach, offset)| Ok((reach, at(offset, rows)?)))
                .collect::<Result<_, MemoryError>>()?,
            position_blocks: at(position_blocks, rows)?,
            position_lanes: at(position_lanes, rows)?,
            output_rows: at(output_rows, rows)?,
            shared: shared
                .into_iter()
                .map(|(every, phase, whole)| Ok((every, at(phase, rows)?, at(whole, rows)?)))
                .collect::<Result<_, MemoryError>>()?,
            chosen: chosen
                .into_iter()
                .map(|(choice, count, last)| Ok((choice, at(count, rows)?, at(last, rows)?)))
                .collect::<Result<_, MemoryError>>()?,
            ngrams: ngrams
                .into_iter()
                .map(|(ngram, offset)| Ok((ngram, at(offset, rows)?)))
                .collect::<Result<_, MemoryError>>()?,
            routed: routed
                .into_iter()
                .map(|(token, slot, bytes)| Ok((at(token, bytes)?, at(slot, bytes)?)))
                .collect::<Result<_, MemoryError>>()?,
            _memory: memory,
        })
    }

    /// Writes the inputs of a step: for each row its token, its position and that of its sequence's last row, and which rows' logits are wanted.
    pub fn fill(&mut self, tokens: &[u32], (positions, ends): (&[u32], &[u32]), output_rows: &[u32]) {
        let positions = || positions.iter().copied();
        let words: [(Region, &mut dyn Iterator<Item = u32>); 6] = [
            (self.tokens, &mut tokens.iter().copied()),
            (self.positions, &mut positions()),
            (self.ends, &mut ends.iter().copied()),
            (self.position_blocks, &mut positions().map(|p| p / KEY_LANES)),
            (self.position_lanes, &mut positions().map(|p| p % KEY_LANES)),
            (self.output_rows, &mut output_rows.iter().copied()),
        ];
        words.into_iter().for_each(|(region, words)| self.write(region, words));
        for &(every, phase, whole) in &self.shared {
            self.write(phase, &mut positions().map(|p| p % every.max(1)));
            self.write(whole, &mut positions().map(|p| p.saturating_add(1) / every.max(1)));
        }
        for &(reach, ahead) in &self.ahead {
            self.write(ahead, &mut positions().map(|p| p.saturating_add(reach)));
        }
        for &(choice, count, last) in &self.chosen {
            self.write(count, &mut positions().map(|p| choice.count(p)));
            self.write(last, &mut positions().map(|p| choice.count(p).saturating_sub(1)));
        }
    }

    /// Writes the rows that a sequence's tokens, the first of which is row `first` of the step, name together with those before them, and remembers the tokens:
    /// `state` gives the memory of a state of the sequence.
    pub fn fill_ngrams(&mut self, first: usize, tokens: &[u32], mut state: impl FnMut(u32) -> Option<Region>) {
        for (ngram, rows) in &self.ngrams {
            let Some(region) = state(ngram.state).filter(|region| region.bytes as usize >= size_of::<Before>()) else {
                continue;
            };
            let place = region.base.cast::<Before>();
            // SAFETY: the region has room for it and lies in memory that was zeroed when it was made; no kernel runs between steps.
            let mut before = unsafe { place.read_unaligned() };
            let mut row = |&id: &u32| {
                let row = ngram.hash.row(id, &before) as u32;
                ngram::remember(&mut before, id);
                row
            };
            self.write_from(*rows, first, &mut tokens.iter().map(&mut row));
            // SAFETY: as before; the states are borrowed exclusively by who calls.
            unsafe { place.write_unaligned(before) };
        }
    }

    fn write(&self, region: Region, words: &mut dyn Iterator<Item = u32>) {
        self.write_from(region, 0, words);
    }

    fn write_from(&self, region: Region, first: usize, words: &mut dyn Iterator<Item = u32>) {
        let most = (region.bytes / INDEX_BYTES) as usize;
        for (i, word) in (first..most).zip(words) {
            // SAFETY: `i` is below the words of the region, which lies in the mapping of these inputs; they are borrowed
            // exclusively by who calls, so no kernel runs.
            unsafe { region.base.cast::<u32>().add(i).write_unaligned(word) };
        }
    }
}

#[cfg(test)]
mod tests {
    use ixc_ir::plan::{LongFrequencies, RopeStyle, Temperature};

    use super::*;

    fn floats(region: Region) -> Vec<f32> {
        // SAFETY: nothing writes to the region here, and every pattern of bits is a float.
        (0..region.bytes() as usize / 4)
            .map(|i| unsafe { region.base().cast::<f32>().add(i).read_unaligned() })
            .collect()
    }

    #[test]
    fn tables_are_laid_out_as_their_style_says_and_filled_when_needed() {
        let frequencies = vec![1.0, 0.25];
        let angle = |p: f64, f: f64| (((p * f).cos() * 2.0) as f32, ((p * f).sin() * 2.0) as f32);
        let ((c0, s0), (c1, s1)) = (angle(3.0, 1.0), angle(3.0, 0.25));
        for (style, row) in
            [(RopeStyle::Neox, vec![c0, c1, s0, s1]), (RopeStyle::Norm, vec![c0, c0, c1, c1, -s0, s0, -s1, s1])]
        {
            let table = RopeTable { style, frequencies: frequencies.clone(), magnitude: 2.0, ..RopeTable::still() };
            let mut rope = Rope::new(&table, 32, 32).unwrap();
            rope.fill(3);
            let n = row.len();
            assert_eq!(floats(rope.region())[3 * n..4 * n], vec![0.0; n]);
            rope.fill(4);
            assert_eq!(floats(rope.region())[3 * n..4 * n], row);
            rope.fill(100);
            assert_eq!(floats(rope.region()).len(), 32 * n);
        }
    }

    /// The others in contexts beyond those of the first ones alone, and a number for each step of positions.
    #[test]
    fn tables_of_long_contexts_have_other_frequencies_and_those_of_temperatures_steps() {
        let long = Some(LongFrequencies { beyond: 64, frequencies: vec![0.5] });
        let table = RopeTable { frequencies: vec![1.0], long, ..RopeTable::still() };
        for (context, frequency) in [(32, 1.0), (64, 1.0), (65, 0.5)] {
            let mut rope = Rope::new(&table, 96, context).unwrap();
            rope.fill(4);
            let angle: f64 = 3.0 * frequency;
            assert_eq!(floats(rope.region())[6..8], [angle.cos() as f32, angle.sin() as f32], "{context}");
        }
        let temperature = Some(Temperature { scale: 0.5, length: 2, offset: 1 });
        let mut rope = Rope::new(&RopeTable { temperature, ..RopeTable::still() }, 32, 32).unwrap();
        rope.fill(4);
        let factors: Vec<f32> = floats(rope.region()).chunks(2).map(|row| row[0]).take(4).collect();
        let step = |n: f64| (1.0 + 0.5 * n.ln_1p()) as f32;
        assert_eq!(factors, [step(0.0), step(1.0), step(1.0), step(2.0)]);
    }

    #[test]
    fn released_pages_come_back_from_the_file() {
        let path = std::env::temp_dir().join(format!("ixc-memory-{}", std::process::id()));
        let bytes: Vec<u8> = (0..40_000u32).map(|i| (i / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let whole = Mapped::open(&file, &path, bytes.len() as u64).unwrap();
        let part = Mapped::part_of(&file, &path, 8192, 10_000).unwrap();
        let read = |mapped: &Mapped| -> Vec<u8> {
            // SAFETY: the region is mapped, and nothing writes to the file.
            (0..mapped.region().bytes() as usize).map(|i| unsafe { mapped.region().base().add(i).read() }).collect()
        };
        for _ in 0..2 {
            assert!(read(&whole) == bytes && read(&part) == bytes[8192..18_192]);
            whole.release(5000, 20_000);
            part.release(0, 10_000);
        }
        Mapped::built_in(b"no mapping at all").release(3, 4);
    }

    #[test]
    fn memory_that_no_machine_has_is_an_error() {
        assert!(Memory::zeroed("a test", u64::MAX, false).is_err());
        assert!(Memory::zeroed("a test", 1 << 60, false).is_err());
    }
}
