//! Pages of memory that the states of several sequences share, because the sequences begin with the
//! same tokens.
//!
//! The states of a sequence are one mapping. In this mapping, each column (the keys or the values
//! of a head) has its positions one after the other. All sequences of an engine have the same
//! layout. If two sequences begin with the same tokens, whole pages of each column have the same
//! bytes at the same offset. So the system's page table replaces the block tables of other
//! programs, and kernels see unchanged columns.
//!
//! ```text
//! file        [ home of a: .. keys.0 |aaaaaa    | keys.1 |aaaaaa    | .. ][ home of b: .. ]
//! sequence a                  keys.0 |aaaaaa.aa | keys.1 |aaaaaa.aa |
//! sequence b                  keys.0 |aaaaaa.b  | keys.1 |aaaaaa.b  |
//! ```
//!
//! In this picture, `a` is a page of an anonymous file, and `.` is a page that also has the
//! sequence's own rows. A page of the file is written once and then mapped privately by several
//! sequences. It is freed when its last user ends.
//!
//! **Freezing.** At first, a sequence writes to its own anonymous memory, without sharing. When
//! another sequence begins with the same prefix, the pages of the prefix are written to the file.
//! Then these pages of the file are mapped in place of the original pages. This takes as long as
//! one copy, and uses no additional memory.
//!
//! The frozen pages are called a *run*. Every further sequence with this prefix maps the run, with
//! one system call for each column, whatever its length. Incomplete pages are copied. States that
//! cannot be shared are also copied: sliding windows, which move their positions, and recurrent
//! states with their saved copies.
//!
//! **Writing.** A sequence writes only rows after its position, and shares only pages before its
//! position, so it never writes to shared pages. If a sequence is truncated inside a run, its pages
//! from the new end on first become private ([`SharedPrefix::cut`]). The block that contains the
//! new end is copied, and all later bytes become zero.
//!
//! If a kernel wrote to a shared page nevertheless, the system would copy the page for this
//! sequence, because the mapping is private. Other sequences would not change. Each page of the
//! file is written before it is mapped, and never afterwards: no offset of the file is used twice.
//!
//! **Counting.** A run stores the position up to which each of its users needs it. Pages without
//! users are punched out of the file. So a page is in memory once for all sequences that share it,
//! and only while a sequence needs it. A mapped page always has a user. If the system refuses to
//! remove a mapping, its user stays until the sequence is emptied.
//!
//! **Cost.** For each run, a sequence needs up to two additional mappings for each column. A
//! process may have `vm.max_map_count` mappings (65,530), and sharing uses up to three quarters of
//! them. Prefixes are copied instead if there are too many mappings, if the system has no anonymous
//! files, or if there is too little to share ([`WORTH_IT`]). [`Pool::refusal`] returns the reason.
//! The results are the same.
//!
//! Invariant: while a sequence maps pages of the file, these pages are never written and never
//! punched out of the file.

mod zeroed;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ixc_files::read_system;
use ixc_ir::plan::ATTENTION_BLOCK;

use crate::storage::memory::Region;
use crate::storage::page_file::{PageFile, renew};
pub(crate) use zeroed::ZeroedMemory;
use zeroed::gaps;

/// Minimum number of shared pages per column, on average over the columns. Making a mapping takes
/// about as long as copying this number of pages.
const WORTH_IT: u64 = 4;
/// Maximum mappings of a process if the system does not show its limit ([`MAX_MAPPINGS_FILE`]). It
/// is the kernel's `DEFAULT_MAX_MAP_COUNT`.
const DEFAULT_MAX_MAPPINGS: u64 = 65_530;
/// File in which Linux shows the maximum number of mappings of a process.
const MAX_MAPPINGS_FILE: &str = "/proc/sys/vm/max_map_count";
/// Maximum number of mappings that a run adds to a column: the run, and the rest of the column.
const MAPPINGS_OF_A_RUN: u64 = 2;

/// Condition under which sequences share a common prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Sequences share if sharing takes less time and memory than a copy.
    #[default]
    Paying,
    /// Sequences share if there is at least one whole page to share.
    Always,
    /// Sequences never share: each has separate memory.
    Never,
}

/// A column of a state that sequences can share. It has one row for each position or group of
/// positions, at the same offset in the memory of every sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// Offset of the column in the memory of a sequence, in bytes.
    pub(crate) offset: u64,
    /// Length of the column in bytes.
    pub(crate) bytes: u64,
    /// Bytes of a row in the column.
    pub(crate) row_bytes: u64,
    /// Number of positions that share a row.
    pub(crate) every: u32,
}

impl Column {
    /// Returns the end, in bytes, of the blocks whose positions are all below `position`.
    fn filled_bytes(&self, position: u32) -> u64 {
        self.row(position / self.every.max(1) / ATTENTION_BLOCK * ATTENTION_BLOCK)
    }

    /// Returns the end, in bytes, of the last block with a row of a position below `position`.
    fn begun_bytes(&self, position: u32) -> u64 {
        self.row(position.div_ceil(self.every.max(1)).next_multiple_of(ATTENTION_BLOCK))
    }

    fn row(&self, row: u32) -> u64 {
        self.offset + u64::from(row).saturating_mul(self.row_bytes).min(self.bytes)
    }

    /// Returns the byte range of the pages that contain only complete blocks of these positions.
    fn pages(&self, positions: &Range<u32>, page: u64) -> Range<u64> {
        let from = self.filled_bytes(positions.start).next_multiple_of(page);
        from..(self.filled_bytes(positions.end) / page * page).max(from)
    }
}

/// The reason why a prefix was copied, although its length would allow sharing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The system has no anonymous files, or forbids them for this process.
    #[error("sequences need an anonymous file to share memory, and the system refused one: {0}")]
    NoFile(String),
    /// The system refused to write or map shared pages.
    #[error("the system refused to share a sequence's memory: {0}")]
    Refused(String),
    /// The process would have too many mappings.
    #[error(
        "sharing needs {wanted} more mappings; {found} of at most {max} are in use (three quarters of vm.max_map_count)"
    )]
    Mappings {
        /// Number of mappings that sharing uses now.
        found: u64,
        /// Number of additional mappings that this prefix needs.
        wanted: u64,
        /// Maximum number of mappings for sharing.
        max: u64,
    },
}

/// The shared pages of an engine's sequences, and the counts of their memory and mappings.
pub(crate) struct Pool {
    file: PageFile,
    columns: Vec<Column>,
    /// Bytes of the memory of one sequence.
    layout_bytes: u64,
    /// Bytes of the file's pages that hold frozen prefixes.
    held: AtomicU64,
    mappings: AtomicU64,
    max_mappings: u64,
    /// Minimum number of shared pages per column, on average over the columns.
    min_pages: u64,
    refusal: Mutex<Option<Refusal>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("columns", &self.columns.len())
            .field("held", &self.held_bytes())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates a pool for sequences whose memory has `layout_bytes` bytes and these columns.
    /// Returns `None` if nothing can be shared.
    ///
    /// # Errors
    /// [`Refusal::NoFile`] if the system refuses an anonymous file.
    pub(crate) fn new(columns: Vec<Column>, layout_bytes: u64, sharing: Sharing) -> Result<Option<Arc<Pool>>, Refusal> {
        let min_pages = match sharing {
            Sharing::Paying => WORTH_IT,
            Sharing::Always => 0,
            Sharing::Never => return Ok(None),
        };
        if columns.is_empty() {
            return Ok(None);
        }
        let max = read_system(Path::new(MAX_MAPPINGS_FILE)).and_then(|text| text.trim().parse::<u64>().ok());
        let max_mappings = max.unwrap_or(DEFAULT_MAX_MAPPINGS) / 4 * 3;
        Pool::with(columns, layout_bytes, max_mappings, min_pages).map(Some)
    }

    /// Creates a pool with a maximum number of mappings and a minimum number of pages per column.
    pub(crate) fn with(
        columns: Vec<Column>,
        layout_bytes: u64,
        max_mappings: u64,
        min_pages: u64,
    ) -> Result<Arc<Pool>, Refusal> {
        let file = PageFile::new().map_err(|error| Refusal::NoFile(error.to_string()))?;
        let (held, mappings, refusal) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(None));
        let pool = Pool { file, columns, layout_bytes, held, mappings, max_mappings, min_pages, refusal };
        Ok(Arc::new(pool))
    }

    /// Returns the bytes of the file's pages that hold frozen prefixes.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the number of mappings that sharing uses now.
    pub(crate) fn mappings(&self) -> u64 {
        self.mappings.load(Ordering::Relaxed)
    }

    /// Returns the reason why a prefix was last copied, although its length would allow sharing.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn refuse(&self, refusal: Refusal) {
        let mut last = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none() {
            // Only the first refusal is logged, because it will repeat.
            tracing::warn!(%refusal, "prefixes of sequences are copied, not shared");
        }
        *last = Some(refusal);
    }

    /// Returns the bytes of memory that the file uses, as the system counts them.
    #[cfg(test)]
    pub(crate) fn resident(&self) -> u64 {
        self.file.resident()
    }

    fn page(&self) -> u64 {
        self.file.page()
    }

    /// Returns the number of bytes of the whole pages within a range of positions, in the first
    /// `columns` columns.
    fn bytes(&self, positions: &Range<u32>, columns: usize) -> u64 {
        let columns = self.columns.iter().take(columns);
        columns.map(|column| column.pages(positions, self.page())).map(|pages| pages.end - pages.start).sum()
    }

    /// Returns whether `bytes` bytes have at least the minimum number of pages for sharing.
    fn is_enough(&self, bytes: u64) -> bool {
        bytes > 0 && bytes >= self.min_pages * self.page() * self.columns.len() as u64
    }

    /// Returns whether the limit of mappings allows `runs` more runs. If not, stores the refusal.
    fn has_room(&self, runs: usize) -> bool {
        let wanted = MAPPINGS_OF_A_RUN * (self.columns.len() * runs) as u64;
        let found = self.mappings();
        let room = found.saturating_add(wanted) <= self.max_mappings;
        if !room {
            self.refuse(Refusal::Mappings { found, wanted, max: self.max_mappings });
        }
        room
    }
}

/// A run: frozen pages of a range of positions in the file.
#[derive(Debug)]
struct PageRun {
    pool: Arc<Pool>,
    /// Offset in the file at which the memory of the sequence that froze the pages would begin.
    home: u64,
    from: u32,
    /// Number of columns, from the first one on, whose pages are in the file.
    columns: usize,
    extent: Mutex<Extent>,
}

/// Use of a run of pages: the positions that its users need, and the part that is in the file.
#[derive(Debug)]
struct Extent {
    /// For each user, the position up to which it needs the run.
    ends: Vec<u32>,
    /// Position up to which the run's pages are still in the file.
    kept: u32,
}

impl PageRun {
    /// Returns, for each column, the pages of the run up to position `end`.
    fn pages(&self, end: u32) -> impl Iterator<Item = Range<u64>> {
        let columns = self.pool.columns.iter().take(self.columns);
        columns.map(move |column| column.pages(&(self.from..end), self.pool.page()))
    }

    fn extent(&self) -> MutexGuard<'_, Extent> {
        self.extent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shortens a user's range from `end` to `to`, or removes the user if `to` is `None`. Frees the
    /// pages that no user needs any more.
    fn release(&self, end: u32, to: Option<u32>) {
        let mut extent = self.extent();
        if let Some(at) = extent.ends.iter().position(|there| *there == end) {
            extent.ends.swap_remove(at);
        }
        extent.ends.extend(to);
        let needed = extent.ends.iter().copied().max().unwrap_or(self.from);
        if needed >= extent.kept {
            return;
        }
        for (needed, kept) in self.pages(needed).zip(self.pages(extent.kept)) {
            let unused = needed.end.max(kept.start)..kept.end;
            if unused.is_empty() {
                continue;
            }
            match self.pool.file.punch(&(self.home + unused.start..self.home + unused.end)) {
                Ok(()) => drop(self.pool.held.fetch_sub(unused.end - unused.start, Ordering::Relaxed)),
                Err(error) => tracing::debug!(%error, "shared pages stay in memory"),
            }
        }
        extent.kept = needed;
    }
}

/// Use of a run by one sequence.
#[derive(Debug)]
struct PageUse {
    run: Arc<PageRun>,
    end: u32,
}

impl PageUse {
    /// Creates a run, and returns its first use.
    fn first(pool: &Arc<Pool>, home: u64, positions: Range<u32>, columns: usize) -> PageUse {
        let extent = Mutex::new(Extent { ends: vec![positions.end], kept: positions.end });
        let run = PageRun { pool: Arc::clone(pool), home, from: positions.start, columns, extent };
        PageUse { run: Arc::new(run), end: positions.end }
    }

    /// Returns another use of the same run, up to position `end`. It must not be after the end of
    /// this use.
    fn share(&self, end: u32) -> PageUse {
        self.run.extent().ends.push(end);
        PageUse { run: Arc::clone(&self.run), end }
    }

    fn cut(&mut self, end: u32) {
        self.run.release(self.end, Some(end));
        self.end = end;
    }

    /// Returns the pages of a column that this use maps; `None` for a column without such pages.
    fn pages(&self, number: usize) -> Option<Range<u64>> {
        let column = self.run.pool.columns.get(number).filter(|_| number < self.run.columns)?;
        Some(column.pages(&(self.run.from..self.end), self.run.pool.page())).filter(|pages| !pages.is_empty())
    }
}

impl Drop for PageUse {
    fn drop(&mut self) {
        self.run.release(self.end, None);
    }
}

/// The shared prefix of a sequence. It consists of runs, from the first position on.
///
/// Methods get the whole memory of the sequence, which has the layout of the pool. No kernel may
/// run meanwhile.
#[derive(Debug, Default)]
pub(crate) struct SharedPrefix {
    uses: Vec<PageUse>,
    /// Uses of runs whose mappings the system refused to remove.
    lingering: Vec<PageUse>,
    /// Offset in the file of the range that this sequence reserved, and the position up to which
    /// the sequence has frozen its pages there.
    home: Option<(u64, u32)>,
    /// Number of mappings that this sequence adds to [`Pool::mappings`].
    mappings: u64,
    /// Number of bytes of shared pages.
    bytes: u64,
}

impl SharedPrefix {
    /// Returns the position up to which the sequence shares pages. Of each column, only whole pages
    /// are shared.
    pub(crate) fn end(&self) -> u32 {
        self.uses.last().map_or(0, |used| used.end)
    }

    /// Returns the number of bytes in shared pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the parts of a column's byte range that the sequence does not share.
    pub(crate) fn own_ranges(&self, column: Option<usize>, range: Range<u64>) -> Vec<Range<u64>> {
        match column {
            Some(column) => gaps(range, self.uses.iter().filter_map(|used| used.pages(column))),
            None => vec![range],
        }
    }

    /// Freezes the whole pages of the positions before `end`, if there are enough pages. Otherwise
    /// changes nothing.
    ///
    /// # Safety
    /// `memory` must be the whole memory of the sequence, and the caller must have exclusive access
    /// to it.
    pub(crate) unsafe fn freeze(&mut self, memory: Region, pool: &Arc<Pool>, end: u32) {
        let positions = self.end()..end / ATTENTION_BLOCK * ATTENTION_BLOCK;
        // Mappings are needed for the new run, and for all runs in the sequence that will take the
        // prefix.
        let runs = 1 + self.uses.len() + 1;
        if positions.is_empty() || !pool.is_enough(pool.bytes(&positions, usize::MAX)) || !pool.has_room(runs) {
            return;
        }
        // In the file, the pages of a sequence have the same order as in memory. So the system
        // merges the mappings of adjacent runs.
        let home = match self.home {
            Some((home, frozen)) if frozen <= positions.start => home,
            Some(_) | None => match pool.file.reserve(pool.layout_bytes) {
                Ok(home) => home,
                Err(error) => return pool.refuse(Refusal::Refused(error.to_string())),
            },
        };
        self.home = Some((home, positions.end));
        let mut columns = 0;
        for column in &pool.columns {
            let pages = column.pages(&positions, pool.page());
            if let Some(region) = memory.part(pages.start, pages.end - pages.start).filter(|_| !pages.is_empty()) {
                // SAFETY: the region lies in the mapped memory of the sequence. The caller has
                // exclusive access, so no kernel runs.
                if let Err(error) = unsafe { pool.file.write(home + pages.start, region) } {
                    pool.refuse(Refusal::Refused(error.to_string()));
                    let _ = pool.file.punch(&(home + pages.start..home + pages.end));
                    break;
                }
                pool.held.fetch_add(pages.end - pages.start, Ordering::Relaxed);
                // SAFETY: the reasons for the write above hold here, too. The region is whole pages
                // of an anonymous mapping, and its bytes are in the file.
                if let Err(error) = unsafe { pool.file.map(home + pages.start, region) } {
                    // The sequence keeps its own pages, which have the same bytes.
                    pool.refuse(Refusal::Refused(error.to_string()));
                }
            }
            columns += 1;
        }
        if columns > 0 {
            self.uses.push(PageUse::first(pool, home, positions, columns));
        }
        self.count(pool);
    }

    /// Maps the shared prefix of another sequence, up to position `end`. This sequence must be
    /// empty; `from_memory` is the memory of the other sequence.
    ///
    /// # Safety
    /// Each region must be the whole memory of its sequence, and the caller must have exclusive
    /// access to both.
    pub(crate) unsafe fn take(
        &mut self,
        memory: Region,
        pool: &Arc<Pool>,
        from: &SharedPrefix,
        from_memory: Region,
        end: u32,
    ) {
        let end = end / ATTENTION_BLOCK * ATTENTION_BLOCK;
        let shared: Vec<(&PageUse, u32)> =
            from.uses.iter().filter(|used| used.run.from < end).map(|used| (used, used.end.min(end))).collect();
        let bytes = shared.iter().map(|(used, end)| pool.bytes(&(used.run.from..*end), used.run.columns)).sum();
        if !self.uses.is_empty() || !pool.is_enough(bytes) || !pool.has_room(shared.len()) {
            return;
        }
        for (used, end) in shared {
            let taken = used.share(end);
            for pages in taken.run.pages(end).filter(|pages| !pages.is_empty()) {
                let at = |memory: Region| memory.part(pages.start, pages.end - pages.start);
                let (Some(to), Some(original)) = (at(memory), at(from_memory)) else { continue };
                // SAFETY: the region is whole pages of the sequence's memory, an anonymous mapping.
                // The caller has exclusive access, so no kernel runs.
                if let Err(error) = unsafe { pool.file.map(taken.run.home + pages.start, to) } {
                    pool.refuse(Refusal::Refused(error.to_string()));
                    // SAFETY: both regions have the same length and lie in the mappings of two
                    // sequences, and the other sequence's memory is not written.
                    unsafe { to.base().copy_from_nonoverlapping(original.base(), to.bytes() as usize) };
                }
            }
            self.uses.push(taken);
        }
        self.count(pool);
    }

    /// Ends sharing from `position` on. The rows of the block that contains the position become
    /// private to the sequence. Shared memory after that block becomes zero. With position 0, all
    /// memory is released.
    ///
    /// # Safety
    /// `memory` must be the whole memory of the sequence, and the caller must have exclusive access
    /// to it.
    pub(crate) unsafe fn cut(&mut self, memory: Region, position: u32) -> ZeroedMemory {
        let end = position / ATTENTION_BLOCK * ATTENTION_BLOCK;
        let Some(pool) = self.uses.iter().chain(&self.lingering).map(|used| Arc::clone(&used.run.pool)).next() else {
            return ZeroedMemory::Nothing;
        };
        if position == 0 {
            // SAFETY: the region is the whole memory of the sequence, an anonymous mapping. The
            // caller has exclusive access, so no kernel runs.
            match unsafe { renew(memory) } {
                Ok(()) => {
                    self.uses.clear();
                    self.lingering.clear();
                    self.count(&pool);
                    return ZeroedMemory::All;
                }
                Err(error) => pool.refuse(Refusal::Refused(error.to_string())),
            }
        }
        if end >= self.end() {
            return ZeroedMemory::Nothing;
        }
        let (mut parts, mut failed) = (Vec::with_capacity(pool.columns.len()), false);
        for (number, column) in pool.columns.iter().enumerate() {
            let from = column.filled_bytes(position) / pool.page() * pool.page();
            let mut zeroed = Vec::new();
            for used in &self.uses {
                let Some(pages) = used.pages(number).filter(|pages| pages.end > from) else { continue };
                let pages = pages.start.max(from)..pages.end;
                let Some(region) = memory.part(pages.start, pages.end - pages.start) else { continue };
                let stays = column.begun_bytes(position).clamp(pages.start, pages.end) - pages.start;
                // SAFETY: the region is whole pages of the sequence's memory, to which the caller
                // has exclusive access, and `stays` is at most its length.
                match unsafe { own_again(region, stays) } {
                    Ok(()) => zeroed.push(pages.start + stays..pages.end),
                    Err(error) => {
                        pool.refuse(Refusal::Refused(error.to_string()));
                        failed = true;
                    }
                }
            }
            parts.push(zeroed);
        }
        if failed {
            // Pages that are still mapped must not be punched out of the file, so their uses stay.
            let still: Vec<PageUse> =
                self.uses.iter().filter(|used| used.end > end).map(|used| used.share(used.end)).collect();
            self.lingering.extend(still);
        }
        self.uses.retain(|used| used.run.from < end);
        self.uses.iter_mut().filter(|used| used.end > end).for_each(|used| used.cut(end));
        self.count(&pool);
        ZeroedMemory::Parts(parts)
    }

    /// Updates the numbers of mappings and shared bytes.
    fn count(&mut self, pool: &Pool) {
        let bytes = |used: &PageUse| pool.bytes(&(used.run.from..used.end), used.run.columns);
        self.bytes = self.uses.iter().map(bytes).sum();
        let mut mappings = 0;
        let uses = || self.uses.iter().chain(&self.lingering);
        for column in 0..pool.columns.len() {
            let mut before = None;
            for used in uses() {
                let Some(pages) = used.pages(column) else { continue };
                // If the pages are also adjacent in the file, both runs have a single mapping.
                let follows = before == Some((used.run.home, pages.start));
                mappings += if follows { 0 } else { MAPPINGS_OF_A_RUN };
                before = Some((used.run.home, pages.end));
            }
        }
        pool.mappings.fetch_add(mappings, Ordering::Relaxed);
        pool.mappings.fetch_sub(self.mappings, Ordering::Relaxed);
        self.mappings = mappings;
    }
}

impl Drop for SharedPrefix {
    fn drop(&mut self) {
        if let Some(used) = self.uses.first().or(self.lingering.first()) {
            used.run.pool.mappings.fetch_sub(self.mappings, Ordering::Relaxed);
        }
    }
}

/// Replaces shared pages by private pages of the sequence. The first `stays` bytes keep their
/// values; all later bytes become zero.
///
/// # Safety
/// The region must be whole pages of the mapped memory of a sequence, with at least `stays` bytes.
/// The caller must have exclusive access to it.
unsafe fn own_again(region: Region, stays: u64) -> std::io::Result<()> {
    let mut bytes = vec![0; stays as usize];
    // SAFETY: the region is mapped, has at least `stays` bytes, and is the caller's alone.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(region.base(), bytes.len()) };
    // SAFETY: the caller has exclusive access; the region is whole pages of an anonymous mapping.
    unsafe { renew(region) }?;
    // SAFETY: the region is mapped, has at least `stays` bytes, and is the caller's alone.
    unsafe { region.base().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}
