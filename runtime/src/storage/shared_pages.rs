//! Prefixes that sequences share: the same pages of memory in the states of each.
//!
//! The states of a sequence are one mapping. In it, each column (a head's keys or its values) has
//! its positions one after the other. All sequences of an engine have the same layout. If two begin
//! with the same tokens, whole pages of each column have the same bytes at the same offset. So the
//! system's page table replaces the block tables of other programs, and kernels see unchanged
//! columns.
//!
//! ```text
//! file        [ home of a: .. keys.0 |aaaaaa    | keys.1 |aaaaaa    | .. ][ home of b: .. ]
//! sequence a                  keys.0 |aaaaaa.aa | keys.1 |aaaaaa.aa |
//! sequence b                  keys.0 |aaaaaa.b  | keys.1 |aaaaaa.b  |
//! ```
//!
//! Here `a` is a page of the file, and `.` is a page that also has the sequence's own rows.
//! The file is written once and mapped privately, and its pages are released by reference count.
//!
//! **Freezing.** A sequence writes into its own anonymous memory, as if there was no sharing. When
//! another sequence begins with the same prefix, the pages of the prefix are written to the file.
//! The pages of the file are then mapped in their place. This takes as long as one copy, and no
//! additional memory.
//!
//! The pages are now a *run*. Every further sequence with this prefix maps the run. This takes one
//! system call for each column, independent of its length. Incomplete pages are copied, and so are
//! states that cannot be shared: windows, which move, and recurrent states with their copies.
//!
//! **Writing.** A sequence writes rows after its position, and shares only pages before it, so it
//! never writes to shared pages. If a sequence is truncated within a run, its pages from its new
//! end on first become private ([`SharedPrefix::cut`]). The block with the new end is copied, and
//! the rest is zero.
//!
//! If code wrote to a shared page after all, the system would copy the page for this sequence,
//! because the mapping is private. Other sequences would not change. The file itself is written
//! before it is mapped, and never after: an offset in it is never used twice.
//!
//! **Counting.** A run counts its users and the position that each needs. Pages without users are
//! punched out of the file. So a page is in memory once for all sequences that share it, and only
//! while one of them needs it. A mapped page always has a user: if the system refuses to remove a
//! mapping, the use stays until the sequence is emptied.
//!
//! **Cost.** Each column has up to two extra mappings for each run of a sequence. A process may
//! have `vm.max_map_count` mappings (65,530); sharing takes up to three quarters of them. Prefixes
//! are copied beyond this number, on systems without such files, and if there is too little to
//! share ([`WORTH_IT`]). [`Pool::refusal`] returns the reason. The results are the same.
//!
//! Invariant: pages of the file that a sequence maps are never written, and are not punched before
//! they are unmapped.

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

/// Min mean number of pages per column for sharing: making a mapping takes about as long as copying
/// this number of pages.
const WORTH_IT: u64 = 4;
/// Max mappings of a process if the system does not show the limit ([`MAX_MAPPINGS_FILE`]):
/// `DEFAULT_MAX_MAP_COUNT`.
const DEFAULT_MAX_MAPPINGS: u64 = 65_530;
/// File in which Linux shows the max mappings of a process.
const MAX_MAPPINGS_FILE: &str = "/proc/sys/vm/max_map_count";
/// Max mappings that a run adds to a column: one for the run, and one for the rest of the column.
const MAPPINGS_OF_A_RUN: u64 = 2;

/// Condition under which sequences share a common prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Share if sharing takes less time and memory than a copy.
    #[default]
    Paying,
    /// Share if there is at least one page.
    Always,
    /// Never share: each sequence has separate memory.
    Never,
}

/// A column of a state with one row for each position (or for a few positions), at the same offset
/// in the memory of every sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// Offset of the column in the memory of a sequence, in bytes.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Bytes of a row.
    pub(crate) row_bytes: u64,
    /// Positions per row.
    pub(crate) every: u32,
}

impl Column {
    /// Returns the byte offset after the last row whose positions are all below `position`, in
    /// whole blocks.
    fn filled_bytes(&self, position: u32) -> u64 {
        self.row(position / self.every.max(1) / ATTENTION_BLOCK * ATTENTION_BLOCK)
    }

    /// Returns the byte offset after the last block with a row of a position below `position`.
    fn begun_bytes(&self, position: u32) -> u64 {
        self.row(position.div_ceil(self.every.max(1)).next_multiple_of(ATTENTION_BLOCK))
    }

    fn row(&self, row: u32) -> u64 {
        self.offset + u64::from(row).saturating_mul(self.row_bytes).min(self.bytes)
    }

    /// Returns the whole pages of a range of positions.
    fn pages(&self, positions: &Range<u32>, page: u64) -> Range<u64> {
        let from = self.filled_bytes(positions.start).next_multiple_of(page);
        from..(self.filled_bytes(positions.end) / page * page).max(from)
    }
}

/// The reason that a prefix was copied although it could be shared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The system has no anonymous files, or forbids them for this process.
    #[error("sequences need an anonymous file to share memory, and the system refused one: {0}")]
    NoFile(String),
    /// The system refuses to write or map shared pages.
    #[error("the system refused to share a sequence's memory: {0}")]
    Refused(String),
    /// The process would have too many mappings.
    #[error(
        "sharing needs {wanted} more mappings; {found} of at most {max} are in use (three quarters of vm.max_map_count)"
    )]
    Mappings {
        /// Mappings in use.
        found: u64,
        /// Additional mappings for this prefix.
        wanted: u64,
        /// Max mappings for sharing.
        max: u64,
    },
}

/// The pages that the sequences of an engine share.
pub(crate) struct Pool {
    file: PageFile,
    columns: Vec<Column>,
    /// Bytes of a sequence's memory.
    layout_bytes: u64,
    /// Bytes of pages in the file.
    held: AtomicU64,
    mappings: AtomicU64,
    max_mappings: u64,
    /// Min number of shared pages of a column, averaged over the columns.
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
    /// Makes a pool for sequences with `layout_bytes` bytes of memory and these columns. Returns
    /// `None` if nothing can be shared.
    ///
    /// # Errors
    /// [`Refusal::NoFile`].
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

    /// Makes a pool with a max number of mappings and a min number of pages of each column.
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

    /// Returns the number of bytes of pages in the file.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the number of mappings for sharing.
    pub(crate) fn mappings(&self) -> u64 {
        self.mappings.load(Ordering::Relaxed)
    }

    /// Returns the reason why the last prefix was copied although it could be shared.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn refuse(&self, refusal: Refusal) {
        let mut last = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none() {
            // Warns only once, because the refusal will repeat.
            tracing::warn!(%refusal, "prefixes of sequences are copied, not shared");
        }
        *last = Some(refusal);
    }

    /// Returns the memory of the file according to the system.
    #[cfg(test)]
    pub(crate) fn resident(&self) -> u64 {
        self.file.resident()
    }

    fn page(&self) -> u64 {
        self.file.page()
    }

    /// Returns the number of bytes of whole pages of a range of positions, in the first `columns`
    /// columns.
    fn bytes(&self, positions: &Range<u32>, columns: usize) -> u64 {
        let columns = self.columns.iter().take(columns);
        columns.map(|column| column.pages(positions, self.page())).map(|pages| pages.end - pages.start).sum()
    }

    /// Returns whether this number of bytes is worth sharing.
    fn is_enough(&self, bytes: u64) -> bool {
        bytes > 0 && bytes >= self.min_pages * self.page() * self.columns.len() as u64
    }

    /// Returns whether there is room for the mappings of `runs` more runs.
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

/// A run: pages of a range of positions that were written to the file once.
#[derive(Debug)]
struct PageRun {
    pool: Arc<Pool>,
    /// Offset in the file of the range that belongs to the sequence that froze the pages.
    home: u64,
    from: u32,
    /// Number of columns, counted from the first, with pages in the file.
    columns: usize,
    extent: Mutex<Extent>,
}

/// Length and users of a run.
#[derive(Debug)]
struct Extent {
    /// End position of each user.
    ends: Vec<u32>,
    /// End position of the pages in the file.
    kept: u32,
}

impl PageRun {
    /// Returns the pages of each column in the file, up to a position.
    fn pages(&self, end: u32) -> impl Iterator<Item = Range<u64>> {
        let columns = self.pool.columns.iter().take(self.columns);
        columns.map(move |column| column.pages(&(self.from..end), self.pool.page()))
    }

    fn extent(&self) -> MutexGuard<'_, Extent> {
        self.extent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shortens a user's range from `end` to `to`, or removes the user.
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

/// A sequence's use of a run.
#[derive(Debug)]
struct PageUse {
    run: Arc<PageRun>,
    end: u32,
}

impl PageUse {
    /// Creates a run of pages with one user, and returns its use.
    fn first(pool: &Arc<Pool>, home: u64, positions: Range<u32>, columns: usize) -> PageUse {
        let extent = Mutex::new(Extent { ends: vec![positions.end], kept: positions.end });
        let run = PageRun { pool: Arc::clone(pool), home, from: positions.start, columns, extent };
        PageUse { run: Arc::new(run), end: positions.end }
    }

    /// Returns another use of the same pages, up to a position within this use.
    fn share(&self, end: u32) -> PageUse {
        self.run.extent().ends.push(end);
        PageUse { run: Arc::clone(&self.run), end }
    }

    fn cut(&mut self, end: u32) {
        self.run.release(self.end, Some(end));
        self.end = end;
    }

    /// Returns the mapped pages of a column.
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

/// The shared prefix of a sequence: runs, from the first position on.
///
/// Methods take the sequence's memory, in the layout of the pool; no kernel may run meanwhile.
#[derive(Debug, Default)]
pub(crate) struct SharedPrefix {
    uses: Vec<PageUse>,
    /// Uses of runs whose mappings could not be removed.
    lingering: Vec<PageUse>,
    /// Offset in the file of this sequence's range, and the position up to which the range is used.
    home: Option<(u64, u32)>,
    /// Number of this sequence's mappings in [`Pool::mappings`].
    mappings: u64,
    /// Bytes of shared pages.
    bytes: u64,
}

impl SharedPrefix {
    /// Returns the number of shared positions; of each column, only whole pages are shared.
    pub(crate) fn end(&self) -> u32 {
        self.uses.last().map_or(0, |used| used.end)
    }

    /// Returns the number of bytes in shared pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the parts of a column's range that no other sequence shares.
    pub(crate) fn own_ranges(&self, column: Option<usize>, range: Range<u64>) -> Vec<Range<u64>> {
        match column {
            Some(column) => gaps(range, self.uses.iter().filter_map(|used| used.pages(column))),
            None => vec![range],
        }
    }

    /// Makes whole pages of the positions before `end` shared, if they are large enough to pay;
    /// otherwise changes nothing.
    ///
    /// # Safety
    /// `memory` must be the whole memory of the sequence, and the caller must have exclusive access
    /// to it.
    pub(crate) unsafe fn freeze(&mut self, memory: Region, pool: &Arc<Pool>, end: u32) {
        let positions = self.end()..end / ATTENTION_BLOCK * ATTENTION_BLOCK;
        // The sequence that takes the prefix needs mappings too.
        let runs = 1 + self.uses.len() + 1;
        if positions.is_empty() || !pool.is_enough(pool.bytes(&positions, usize::MAX)) || !pool.has_room(runs) {
            return;
        }
        // Pages of a sequence have the same order in its file range as in memory, so the system
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
                // SAFETY: the region is in the mapped memory of the sequence. The caller has
                // exclusive access, so no kernel runs.
                if let Err(error) = unsafe { pool.file.write(home + pages.start, region) } {
                    pool.refuse(Refusal::Refused(error.to_string()));
                    let _ = pool.file.punch(&(home + pages.start..home + pages.end));
                    break;
                }
                pool.held.fetch_add(pages.end - pages.start, Ordering::Relaxed);
                // SAFETY: as above; the region is whole pages of an anonymous mapping, and its
                // bytes are in the file.
                if let Err(error) = unsafe { pool.file.map(home + pages.start, region) } {
                    // The sequence keeps its own pages with the same bytes.
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

    /// Takes another sequence's shared prefix, up to the position `end`. This sequence must be
    /// empty; `from_memory` is the other's memory.
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
                    // SAFETY: both have the same length, and are in the mappings of two sequences;
                    // the other one is not written.
                    unsafe { to.base().copy_from_nonoverlapping(original.base(), to.bytes() as usize) };
                }
            }
            self.uses.push(taken);
        }
        self.count(pool);
    }

    /// Ends sharing from a position on. The rows of the position's block become private to the
    /// sequence. Shared memory after the block becomes zero. With position 0, all memory is
    /// released.
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
            // SAFETY: the region is all of the sequence's memory, an anonymous mapping. The caller
            // has exclusive access, so no kernel runs.
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
            // Pages that are still mapped must not be punched.
            let still: Vec<PageUse> =
                self.uses.iter().filter(|used| used.end > end).map(|used| used.share(used.end)).collect();
            self.lingering.extend(still);
        }
        self.uses.retain(|used| used.run.from < end);
        self.uses.iter_mut().filter(|used| used.end > end).for_each(|used| used.cut(end));
        self.count(&pool);
        ZeroedMemory::Parts(parts)
    }

    /// Updates the counts of mappings and bytes.
    fn count(&mut self, pool: &Pool) {
        let bytes = |used: &PageUse| pool.bytes(&(used.run.from..used.end), used.run.columns);
        self.bytes = self.uses.iter().map(bytes).sum();
        let mut mappings = 0;
        let uses = || self.uses.iter().chain(&self.lingering);
        for column in 0..pool.columns.len() {
            let mut before = None;
            for used in uses() {
                let Some(pages) = used.pages(column) else { continue };
                // Pages that are adjacent in the file too are part of the same mapping.
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

/// Makes pages private to a sequence. The first `stays` bytes keep their values; the others become
/// zero.
///
/// # Safety
/// The region must be whole pages of the mapped memory of a sequence, with at least `stays` bytes.
/// The caller must have exclusive access to it.
unsafe fn own_again(region: Region, stays: u64) -> std::io::Result<()> {
    let mut bytes = vec![0; stays as usize];
    // SAFETY: the region is mapped and has at least `stays` bytes, and the caller has exclusive
    // access.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(region.base(), bytes.len()) };
    // SAFETY: as above; the region is whole pages of an anonymous mapping.
    unsafe { renew(region) }?;
    // SAFETY: as above, for writing.
    unsafe { region.base().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}
