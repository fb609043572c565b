//! The memory that kernels access: model files, packed weights, arena, KV cache, rotary tables,
//! inputs and scratch memory.
//!
//! All of this memory is mapped. Model files are mapped read-only. All other mappings are anonymous
//! and zeroed, and use no memory before a page is touched. So the KV cache of a long context takes
//! memory only as the sequence grows. This is also true for rotary tables, because a row is filled
//! just before its position is first used.
//!
//! A [`Region`] is the address range of one buffer. Rust code accesses regions only while no kernel
//! runs. Kernels get pointers only after [`crate::execute`] has checked that the accessed bytes lie
//! in their region.
//!
//! Invariant: no Rust reference to this memory exists while kernels run.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ixc_failure::Class;
use ixc_files::FaultGuard;
use ixc_files::changed::{ChangedFile, Identity};
use ixc_ir::ngram;
use ixc_ir::plan::{Ngram, RopeTable, RowInput, RowPosition};
use memmap2::{MmapOptions, MmapRaw};

use crate::numa::home::bind_new_memory;

/// Bytes of an index, a position or a token id in an input of kernels.
pub const INDEX_BYTES: u64 = 4;
/// Alignment of the parts of a mapping: the length of a cache line.
const ALIGNMENT: u64 = 64;

/// Bytes of a process's address space on x86-64: 47 bits. A plan that needs more memory is wrong on
/// every machine.
const ADDRESS_SPACE: u64 = 1 << 47;

/// Error for memory that the system refused to allocate.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {bytes} bytes for {what}: {source}")]
pub struct MemoryError {
    /// Purpose of the memory, for the error message.
    pub what: &'static str,
    /// Number of requested bytes.
    pub bytes: u64,
    /// Error of the system.
    pub source: io::Error,
}

impl MemoryError {
    /// Returns the class of the failure.
    pub fn class(&self) -> Class {
        if self.bytes >= ADDRESS_SPACE { Class::Data } else { Class::Failed }
    }
}

/// An address range in a mapping. The owner of the mapping keeps it alive.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    base: *mut u8,
    bytes: u64,
}

// SAFETY: a region is an address and a length. Each read or write through it has its own
// justification.
unsafe impl Send for Region {}
// SAFETY: the same reason as for `Send` holds.
unsafe impl Sync for Region {}

impl Region {
    /// Returns the region of a slice. The owner must neither move nor free the bytes while the
    /// region is used.
    pub fn from_bytes(bytes: &mut [u8]) -> Region {
        Region { base: bytes.as_mut_ptr(), bytes: bytes.len() as u64 }
    }

    /// Returns the address of the first byte.
    pub fn base(self) -> *mut u8 {
        self.base
    }

    /// Returns the length in bytes.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the part of the region with `bytes` bytes from `offset` on; `None` if it is not
    /// inside the region.
    pub fn part(self, offset: u64, bytes: u64) -> Option<Region> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then(|| Region { base: self.base.wrapping_add(offset as usize), bytes })
    }
}

/// An anonymous mapping whose bytes are initially zero.
#[derive(Debug)]
pub struct Memory {
    map: MmapRaw,
    bytes: u64,
}

impl Memory {
    /// Maps `bytes` zeroed bytes. Pages use memory only after they are touched. `huge` requests
    /// large pages. If the calling thread has a home, the mapping is bound to the home's NUMA
    /// nodes.
    ///
    /// # Errors
    /// Fails if the system refuses the mapping.
    pub fn zeroed(what: &'static str, bytes: u64, huge: bool) -> Result<Memory, MemoryError> {
        let error = |source| MemoryError { what, bytes, source };
        let length = usize::try_from(bytes)
            .ok()
            .filter(|&length| isize::try_from(length).is_ok())
            .ok_or_else(|| error(io::ErrorKind::OutOfMemory.into()))?;
        let map = MmapRaw::from(MmapOptions::new().len(length.max(1)).map_anon().map_err(error)?);
        #[cfg(target_os = "linux")]
        if huge {
            // The advice is only a hint: systems without transparent huge pages refuse it.
            if let Err(error) = map.advise(memmap2::Advice::HugePage) {
                tracing::debug!(what, %error, "no huge pages");
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = huge;
        bind_new_memory(map.as_mut_ptr(), map.len());
        Ok(Memory { map, bytes })
    }

    /// Returns the whole mapping as a region.
    pub fn region(&self) -> Region {
        Region { base: self.map.as_mut_ptr(), bytes: self.bytes }
    }
}

/// A file that is mapped read-only, or a file that is part of the program.
#[derive(Debug)]
pub struct Mapped {
    region: Region,
    /// The mapped file; `None` for a file that is part of the program.
    source: Option<MappedFile>,
}

/// A mapped file with its mapping.
#[derive(Debug)]
struct MappedFile {
    path: PathBuf,
    /// Handle of the file, for [`Mapped::check_unchanged`].
    file: File,
    /// Identity of the file when it was mapped.
    identity: Identity,
    /// Guard against unreadable pages. It is dropped before the mapping.
    guard: FaultGuard,
    /// The mapping that contains the region.
    map: MmapRaw,
}

impl MappedFile {
    fn new(file: &File, path: &Path, map: MmapRaw, identity: Identity) -> io::Result<MappedFile> {
        let file = file.try_clone()?;
        // SAFETY: the range is a read-only mapping of a file, and it is dropped after the guard.
        let guard = unsafe { FaultGuard::new(map.as_ptr(), map.len()) };
        Ok(MappedFile { path: path.to_owned(), file, identity, guard, map })
    }
}

impl Mapped {
    /// Maps a whole file. Rust code never borrows the mapping, so a change of the file while it is
    /// mapped can only affect results. [`Mapped::check_unchanged`] detects such a change. If a page
    /// cannot be read, because the file was truncated or its drive failed, the region contains
    /// zeros.
    ///
    /// # Errors
    /// Fails if the system refuses the mapping, or if the file's length is not `bytes`.
    pub fn open(file: &File, path: &Path, bytes: u64) -> io::Result<Mapped> {
        let identity = Identity::from_metadata(&file.metadata()?);
        let map = MmapOptions::new().map_raw_read_only(file)?;
        if map.len() as u64 != bytes {
            return Err(io::Error::other(format!("{} changed its length while it was opened", path.display())));
        }
        // The address of the mapping stays the same when its owner is moved.
        let source = MappedFile::new(file, path, map, identity)?;
        Ok(Mapped { region: Region { base: source.map.as_mut_ptr(), bytes }, source: Some(source) })
    }

    /// Maps a part of a file. The part must not be empty.
    ///
    /// # Errors
    /// Fails if the system refuses the mapping.
    pub fn part_of(file: &File, path: &Path, offset: u64, bytes: u64) -> io::Result<Mapped> {
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let identity = Identity::from_metadata(&file.metadata()?);
        let map = MmapOptions::new().offset(offset).len(length).map_raw_read_only(file)?;
        let source = MappedFile::new(file, path, map, identity)?;
        Ok(Mapped { region: Region { base: source.map.as_mut_ptr(), bytes }, source: Some(source) })
    }

    /// Wraps the bytes of a file that is part of the program.
    pub fn built_in(bytes: &'static [u8]) -> Mapped {
        Mapped { region: Region { base: bytes.as_ptr().cast_mut(), bytes: bytes.len() as u64 }, source: None }
    }

    /// Returns the identity of the file when it was mapped; `None` for a file that is part of the
    /// program.
    pub fn identity(&self) -> Option<Identity> {
        self.source.as_ref().map(|source| source.identity)
    }

    /// Checks that the file was not written to since it was mapped, and that all its pages could be
    /// read. Replacing the path by a new file is no change of the mapped file.
    ///
    /// # Errors
    /// [`ChangedFile`] if the file was written to, or if a page could not be read.
    pub fn check_unchanged(&self) -> Result<(), ChangedFile> {
        let Some(MappedFile { path, file, identity, guard, .. }) = &self.source else { return Ok(()) };
        let now = file.metadata().map_err(|error| ChangedFile::unreadable(path, &error))?;
        Identity::from_metadata(&now).check_same_bytes(*identity, path)?;
        match guard.has_faulted() {
            true => Err(ChangedFile::unreadable_page(path)),
            false => Ok(()),
        }
    }

    /// Releases the pages of a part of the mapping, if the system allows it. They no longer count
    /// as memory of this process, but the page cache may keep them. The next read maps them again,
    /// from the page cache or from the file.
    pub fn release(&self, offset: u64, bytes: u64) {
        #[cfg(unix)]
        if let (Some(MappedFile { map, .. }), Ok(offset), Ok(bytes)) =
            (&self.source, usize::try_from(offset), usize::try_from(bytes))
        {
            // SAFETY: the mapping is shared and read-only, so reading a page again returns the
            // file's bytes. No reference borrows the mapping.
            let advised = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, bytes) };
            if let Err(error) = advised {
                tracing::debug!(offset, bytes, %error, "pages stay mapped");
            }
        }
        #[cfg(not(unix))]
        let _ = (offset, bytes);
    }

    /// Requests large pages for a file that will be read completely. The system then reads 2 MiB at
    /// a time, if the file system supports it. For sparse reads, this would be slower and use more
    /// of the page cache.
    pub fn prefer_large_pages(&self) {
        #[cfg(target_os = "linux")]
        if let Some(MappedFile { map, .. }) = &self.source
            && let Err(error) = map.advise(memmap2::Advice::HugePage)
        {
            tracing::debug!(%error, "no large pages of files");
        }
    }

    /// Asks the system to start reading those pages of a part that are not in memory. The system
    /// may ignore the request.
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

    /// Returns the whole mapping as a region, which is read-only.
    pub fn region(&self) -> Region {
        self.region
    }
}

/// Layout of a mapping with several parts, computed before the memory is mapped.
#[derive(Default)]
pub(crate) struct Layout {
    pub(crate) end: u64,
}

impl Layout {
    /// Aligns the beginning of the next part to a multiple of `bytes`.
    pub(crate) fn align(&mut self, bytes: u64) {
        self.end = self.end.checked_next_multiple_of(bytes).unwrap_or(u64::MAX);
    }

    /// Adds a part and returns its offset. On overflow, the total saturates, so that mapping it
    /// fails.
    pub(crate) fn add(&mut self, bytes: u64) -> u64 {
        let at = self.end;
        self.end = at.saturating_add(bytes).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        at
    }
}

pub(crate) fn part(memory: &Memory, what: &'static str, offset: u64, bytes: u64) -> Result<Region, MemoryError> {
    memory.region().part(offset, bytes).ok_or(MemoryError { what, bytes, source: io::ErrorKind::OutOfMemory.into() })
}

/// A table of rotary embeddings, filled up to some position.
#[derive(Debug)]
pub struct Rope {
    memory: Memory,
    table: RopeTable,
    filled: u32,
    capacity: u32,
}

impl Rope {
    /// Returns the number of bytes of a table for `capacity` positions.
    pub fn bytes(table: &RopeTable, capacity: u32) -> u64 {
        row_bytes(table).saturating_mul(u64::from(capacity))
    }

    /// Allocates a table for `capacity` positions. The frequencies are those for a context of at
    /// most `context` positions.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    pub fn new(table: &RopeTable, capacity: u32, context: u32) -> Result<Rope, MemoryError> {
        let memory = Memory::zeroed("a rotary table", Rope::bytes(table, capacity), false)?;
        Ok(Rope { memory, table: table.for_context(context), filled: 0, capacity })
    }

    /// Returns the memory of the whole table.
    pub fn region(&self) -> Region {
        self.memory.region()
    }

    /// Fills the rows of all positions below `end` that are not filled yet.
    pub fn fill(&mut self, end: u32) {
        let mut row = vec![0.0f32; row_bytes(&self.table) as usize / size_of::<f32>()];
        while self.filled < end.min(self.capacity) {
            self.table.fill_row(self.filled, &mut row);
            let bytes = size_of_val(&row[..]) as u64;
            let Some(to) = self.memory.region().part(u64::from(self.filled) * bytes, bytes) else { return };
            // SAFETY: `to` is in this table's mapping and has as many bytes as `row`. The table is
            // borrowed exclusively, so no kernel runs. Kernels read floats without alignment, and
            // this copies bytes.
            unsafe { to.base.copy_from_nonoverlapping(row.as_ptr().cast(), row.len() * size_of::<f32>()) };
            self.filled += 1;
        }
    }
}

fn row_bytes(table: &RopeTable) -> u64 {
    table.style.row_bytes(u32::try_from(table.frequencies.len().saturating_mul(2)).unwrap_or(u32::MAX))
}

/// The token ids before a step, in the form in which a state stores them.
type PreviousIds = [f32; ngram::BEFORE];

/// Inputs of a step for kernels. Each input is an array of 32-bit words.
#[derive(Debug)]
pub struct Inputs {
    _memory: Memory,
    /// Token id of each row.
    pub tokens: Region,
    /// Values of each input that is computed from positions. An input has one value for each row.
    rows: Vec<(RowInput, Region)>,
    /// For each n-gram table, the table row that each token selects together with the tokens before
    /// it.
    pub ngrams: Vec<(Ngram, Region)>,
    /// Indices of the rows whose outputs are requested.
    pub output_rows: Region,
    /// For each routing, the token of each routed row, and the routed row of each slot of each
    /// token.
    pub routed: Vec<(Region, Region)>,
}

impl Inputs {
    /// Allocates inputs for steps of up to `max_tokens` tokens. `top_k` has the slots per token of
    /// each routing. `row_inputs` are the inputs that are computed from positions, and `ngrams` are
    /// the n-gram tables.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    pub fn new(
        max_tokens: u32,
        top_k: &[u32],
        row_inputs: &[RowInput],
        ngrams: &[Ngram],
    ) -> Result<Inputs, MemoryError> {
        let what = "the inputs";
        let rows = u64::from(max_tokens) * INDEX_BYTES;
        let mut layout = Layout::default();
        let [tokens, output_rows] = [(); 2].map(|()| layout.add(rows));
        let row_inputs: Vec<_> = row_inputs.iter().map(|&input| (input, layout.add(rows))).collect();
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
        Ok(Inputs {
            tokens: at(tokens, rows)?,
            output_rows: at(output_rows, rows)?,
            rows: row_inputs
                .into_iter()
                .map(|(input, offset)| Ok((input, at(offset, rows)?)))
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

    /// Returns the memory of an input that is computed from positions; `None` if the plan does not
    /// use it.
    pub fn rows_of(&self, input: RowInput) -> Option<Region> {
        self.rows.iter().find(|(own, _)| *own == input).map(|(_, region)| *region)
    }

    /// Writes the inputs of a step. Each row has a token, a position, and the last position of its
    /// sequence. `output_rows` are the rows whose outputs are requested.
    pub fn fill(&mut self, tokens: &[u32], positions: &[u32], ends: &[u32], output_rows: &[u32]) {
        // SAFETY: both regions are parts of these inputs, which are borrowed exclusively, so no
        // kernel runs.
        unsafe {
            write_words(self.tokens, 0, &mut tokens.iter().copied());
            write_words(self.output_rows, 0, &mut output_rows.iter().copied());
        }
        for &(input, region) in &self.rows {
            let rows = positions.iter().zip(ends);
            let row = |(&position, &end)| input.value(RowPosition { place: position, position, end });
            // SAFETY: the region is a part of these inputs, which are borrowed exclusively, so no
            // kernel runs.
            unsafe { write_words(region, 0, &mut rows.map(row)) };
        }
    }

    /// Writes the n-gram rows of a sequence's tokens, and stores the last token ids in the n-gram's
    /// state. The sequence's first token is row `first` of the step. `state` returns the memory of
    /// one of the sequence's states.
    ///
    /// # Safety
    /// The regions of `state` must be mapped, and the caller must have exclusive access to them.
    pub unsafe fn fill_ngrams(&mut self, first: usize, tokens: &[u32], mut state: impl FnMut(u32) -> Option<Region>) {
        for (ngram, rows) in &self.ngrams {
            let Some(region) = state(ngram.state).filter(|region| region.bytes as usize >= size_of::<PreviousIds>())
            else {
                continue;
            };
            let place = region.base.cast::<PreviousIds>();
            // SAFETY: the region is mapped and has room for the value, and the caller has exclusive
            // access.
            let mut before = unsafe { place.read_unaligned() };
            let mut row = |&id: &u32| {
                let row = ngram.hash.row(id, &before) as u32;
                ngram::remember(&mut before, id);
                row
            };
            // SAFETY: the region is a part of these inputs, which are borrowed exclusively, so no
            // kernel runs.
            unsafe { write_words(*rows, first, &mut tokens.iter().map(&mut row)) };
            // SAFETY: the reasons for the read of `before` also hold here.
            unsafe { place.write_unaligned(before) };
        }
    }
}

/// Writes words to a region, from word `first` on. Words beyond the region are ignored.
///
/// # Safety
/// The region must be mapped, and the caller must have exclusive access to it.
unsafe fn write_words(region: Region, first: usize, words: &mut dyn Iterator<Item = u32>) {
    let max = (region.bytes / INDEX_BYTES) as usize;
    for (i, word) in (first..max).zip(words) {
        // SAFETY: `i` is below the number of words of the region, to which the caller has exclusive
        // access.
        unsafe { region.base.cast::<u32>().add(i).write_unaligned(word) };
    }
}

#[cfg(test)]
mod tests {
    use ixc_ir::graph::attrs::RopeStyle;
    use ixc_ir::plan::{LongFrequencies, Temperature};

    use super::*;

    fn floats(region: Region) -> Vec<f32> {
        // SAFETY: nothing writes to the region here, and every bit pattern is a float.
        (0..region.bytes() as usize / 4)
            .map(|i| unsafe { region.base().cast::<f32>().add(i).read_unaligned() })
            .collect()
    }

    #[test]
    fn rope_tables_follow_their_style_and_fill_on_demand() {
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

    /// Tests that contexts beyond the original limit use the long frequencies. Also tests that a
    /// temperature table has one factor for each step of positions.
    #[test]
    fn long_rope_and_temperature_tables_have_correct_factors() {
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
            // SAFETY: the region is mapped, and nothing writes to the file meanwhile.
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
    fn impossible_allocation_is_an_error() {
        assert!(Memory::zeroed("a test", u64::MAX, false).is_err());
        assert!(Memory::zeroed("a test", 1 << 60, false).is_err());
    }
}
