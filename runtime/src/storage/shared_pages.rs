//! Prefixes that sequences share: the same pages of memory, in the states of each.
//!
//! The states of a sequence are one mapping, in which each column (a head's keys, or its values) has its positions one after the other. All sequences of an engine have
//! the same layout. Where two begin alike, whole pages of each column are the same bytes at the same place; so the system's page table does what other
//! programs do with tables of blocks, and kernels have their columns as they were.
//!
//! ```text
//! file          [ home of a: .. keys.0 |aaaaaa      | keys.1 |aaaaaa      | .. ][ home of b: .. ]      written once, mapped privately, given back by refcount
//! sequence a                    keys.0 |aaaaaa.aa   | keys.1 |aaaaaa.aa   |                            a = pages of the file, . = a page that has its own rows, too
//! sequence b                    keys.0 |aaaaaa.b    | keys.1 |aaaaaa.b    |
//! ```
//!
//! **Freezing.** What a sequence writes lies in its own anonymous memory, as if there was nothing to share. When another shall begin as it does, its pages up to there
//! are written to a place of the file, and the file is mapped in their stead: that takes as long as copying them once, and no more memory. From then on they are a *run*, and every
//! further sequence that begins with it maps it: a system call for each column, whatever its length. What is no whole page, and what is not shared at all (windows, which move; recurrent states
//! and their copies), is copied.
//!
//! **Writing.** Rows are written behind a sequence's position, and pages are shared only up to there, so that nothing writes to them. Where a sequence is cut within a run, pages from there on
//! are its own again first ([`SharedPrefix::cut`]): the block of positions that is cut is copied, and the rest is zero. Should anything write to a shared page in spite of that, the
//! system makes a copy of it for this sequence, for the mapping is private; nobody else's bits change. The file itself is written before anybody maps it, never after: places in it are not
//! given twice.
//!
//! **Counting.** A run counts who uses it and up to where; what nobody uses is punched out of the file. So a page is in memory once for all who share it, and not longer than one
//! of them needs it. A page that is mapped is always used by who maps it: where the system refuses to take a mapping away, the use stays until the sequence is emptied.
//!
//! **What it costs.** Each column has up to two mappings more for each run of a sequence, and a process may have so many (`vm.max_map_count`, 65,530): up to three quarters of them are taken here.
//! Beyond, where the system has no such files, and where there is too little to share ([`WORTH_IT`]), all is copied. [`Pool::refusal`] says why, and results are the same.
//!
//! Invariant: pages of the file that a sequence maps are never written, and are not punched before they are mapped no more.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ixc_files::read_system;
use ixc_ir::plan::ATTENTION_BLOCK;

use crate::memory::Region;
use crate::page_file::{PageFile, renew};

/// Pages of each column, on average, that are worth mapping: a mapping takes about as long to make as these take to be copied, and a process may not have many.
const WORTH_IT: u64 = 4;
/// Mappings that a process may have where the system does not say ([`MOST_MAPPINGS`]): `DEFAULT_MAX_MAP_COUNT`.
const DEFAULT_MOST_MAPPINGS: u64 = 65_530;
/// Where Linux says how many mappings a process may have.
const MOST_MAPPINGS: &str = "/proc/sys/vm/max_map_count";
/// Mappings that pages of a column need at most: their own, and what of the column follows.
const MAPPINGS_OF_A_RUN: u64 = 2;

/// When sequences share what they begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Where it takes less time and memory than a copy.
    #[default]
    Paying,
    /// Wherever there is a page to share.
    Always,
    /// Never: each has memory of its own.
    Never,
}

/// Rows of a state that grow with positions, as they lie in the memory of every sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// Where it begins.
    pub(crate) offset: u64,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// Bytes of a row.
    pub(crate) row_bytes: u64,
    /// Positions that share a row.
    pub(crate) every: u32,
}

impl Column {
    /// Where the rows end of blocks that positions below this one fill.
    fn filled(&self, position: u32) -> u64 {
        self.row(position / self.every.max(1) / ATTENTION_BLOCK * ATTENTION_BLOCK)
    }

    /// Where the last block ends in which a position below this one has a row.
    fn begun(&self, position: u32) -> u64 {
        self.row(position.div_ceil(self.every.max(1)).next_multiple_of(ATTENTION_BLOCK))
    }

    fn row(&self, row: u32) -> u64 {
        self.offset + u64::from(row).saturating_mul(self.row_bytes).min(self.bytes)
    }

    /// The whole pages of positions from one to another.
    fn pages(&self, positions: &Range<u32>, page: u64) -> Range<u64> {
        let from = self.filled(positions.start).next_multiple_of(page);
        from..(self.filled(positions.end) / page * page).max(from)
    }
}

/// Why prefixes are copied that could be shared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The system has no anonymous files, or not for this process.
    #[error("the system has no memory that sequences could share: {0}")]
    NoFile(String),
    /// It refuses to write or map them.
    #[error("the system refused to share a sequence's memory: {0}")]
    Refused(String),
    /// As many mappings as the process is to have.
    #[error(
        "{found} mappings of sequences' memory are shared and {wanted} more were needed, of {max} (three quarters of vm.max_map_count)"
    )]
    Mappings {
        /// Those that are there.
        found: u64,
        /// Those that were wanted.
        wanted: u64,
        /// Most.
        max: u64,
    },
}

/// The pages that an engine's sequences share.
pub(crate) struct Pool {
    file: PageFile,
    columns: Vec<Column>,
    /// Bytes of a sequence's memory.
    layout_bytes: u64,
    /// Bytes of the file's pages.
    held: AtomicU64,
    mappings: AtomicU64,
    max_mappings: u64,
    /// Pages of each column, on average, that are shared at least.
    least_pages: u64,
    refusal: Mutex<Option<Refusal>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("columns", &self.columns.len()).field("held", &self.held()).finish_non_exhaustive()
    }
}

impl Pool {
    /// For sequences whose memory has these columns, among `layout_bytes` bytes; `None` where nothing is to be shared.
    ///
    /// # Errors
    /// [`Refusal::NoFile`].
    pub(crate) fn new(columns: Vec<Column>, layout_bytes: u64, sharing: Sharing) -> Result<Option<Arc<Pool>>, Refusal> {
        let least_pages = match sharing {
            Sharing::Paying => WORTH_IT,
            Sharing::Always => 0,
            Sharing::Never => return Ok(None),
        };
        if columns.is_empty() {
            return Ok(None);
        }
        let most = read_system(Path::new(MOST_MAPPINGS)).and_then(|text| text.trim().parse::<u64>().ok());
        let max_mappings = most.unwrap_or(DEFAULT_MOST_MAPPINGS) / 4 * 3;
        Pool::with(columns, layout_bytes, max_mappings, least_pages).map(Some)
    }

    /// At most so many mappings, for so many pages of each column at least.
    pub(crate) fn with(
        columns: Vec<Column>,
        layout_bytes: u64,
        max_mappings: u64,
        least_pages: u64,
    ) -> Result<Arc<Pool>, Refusal> {
        let file = PageFile::new().map_err(|error| Refusal::NoFile(error.to_string()))?;
        let (held, mappings, refusal) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(None));
        let pool = Pool { file, columns, layout_bytes, held, mappings, max_mappings, least_pages, refusal };
        Ok(Arc::new(pool))
    }

    /// Bytes of pages that are in the file.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Mappings that sharing takes.
    pub(crate) fn mappings(&self) -> u64 {
        self.mappings.load(Ordering::Relaxed)
    }

    /// Why something was last copied that could have been shared.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn refuse(&self, refusal: Refusal) {
        let mut last = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none() {
            // Once: it will go on.
            tracing::warn!(%refusal, "what sequences begin with is copied, not shared");
        }
        *last = Some(refusal);
    }

    /// What the system says that the file takes.
    #[cfg(test)]
    pub(crate) fn resident(&self) -> u64 {
        self.file.resident()
    }

    fn page(&self) -> u64 {
        self.file.page()
    }

    /// Bytes of whole pages of positions from one to another, in so many columns.
    fn bytes(&self, positions: &Range<u32>, columns: usize) -> u64 {
        let columns = self.columns.iter().take(columns);
        columns.map(|column| column.pages(positions, self.page())).map(|pages| pages.end - pages.start).sum()
    }

    /// Whether so many bytes are worth sharing.
    fn is_enough(&self, bytes: u64) -> bool {
        bytes > 0 && bytes >= self.least_pages * self.page() * self.columns.len() as u64
    }

    /// Whether there may be mappings for so many runs more.
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

/// Pages of the positions from one on, in the file.
#[derive(Debug)]
struct Run {
    pool: Arc<Pool>,
    /// Where the file has the place of the sequence that it was of.
    home: u64,
    from: u32,
    /// The first so many columns have their pages in the file.
    columns: usize,
    extent: Mutex<Extent>,
}

/// How much of a run there is.
#[derive(Debug)]
struct Extent {
    /// Up to where each user needs it.
    ends: Vec<u32>,
    /// Up to where it is in the file.
    kept: u32,
}

impl Run {
    /// The pages of each column that is in the file, up to a position.
    fn pages(&self, end: u32) -> impl Iterator<Item = Range<u64>> {
        let columns = self.pool.columns.iter().take(self.columns);
        columns.map(move |column| column.pages(&(self.from..end), self.pool.page()))
    }

    fn extent(&self) -> MutexGuard<'_, Extent> {
        self.extent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One user needs it up to `to` only, no longer to `end`; or not at all.
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

/// What a sequence has of a run.
#[derive(Debug)]
struct Use {
    run: Arc<Run>,
    end: u32,
}

impl Use {
    /// The first of a run.
    fn first(pool: &Arc<Pool>, home: u64, positions: Range<u32>, columns: usize) -> Use {
        let extent = Mutex::new(Extent { ends: vec![positions.end], kept: positions.end });
        let run = Run { pool: Arc::clone(pool), home, from: positions.start, columns, extent };
        Use { run: Arc::new(run), end: positions.end }
    }

    /// Another one, up to a position that this one has.
    fn share(&self, end: u32) -> Use {
        self.run.extent().ends.push(end);
        Use { run: Arc::clone(&self.run), end }
    }

    fn cut(&mut self, end: u32) {
        self.run.release(self.end, Some(end));
        self.end = end;
    }

    /// The pages of a column that are mapped.
    fn pages(&self, number: usize) -> Option<Range<u64>> {
        let column = self.run.pool.columns.get(number).filter(|_| number < self.run.columns)?;
        Some(column.pages(&(self.run.from..self.end), self.run.pool.page())).filter(|pages| !pages.is_empty())
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.run.release(self.end, None);
    }
}

/// What became zero since its pages were given back.
#[derive(Debug)]
pub(crate) enum Zeroed {
    /// Nothing.
    Nothing,
    /// All of the memory.
    All,
    /// Of each column, these parts.
    Parts(Vec<Vec<Range<u64>>>),
}

impl Zeroed {
    /// What of a range of a column is not zero for that.
    pub(crate) fn rest(&self, column: Option<usize>, range: Range<u64>) -> Vec<Range<u64>> {
        match (self, column) {
            (Zeroed::All, _) => Vec::new(),
            (Zeroed::Parts(parts), Some(column)) => gaps(range, parts.get(column).into_iter().flatten().cloned()),
            (Zeroed::Nothing | Zeroed::Parts(_), _) => vec![range],
        }
    }
}

/// What of a range lies in none of these, which rise.
fn gaps(range: Range<u64>, covered: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let (mut gaps, mut at) = (Vec::new(), range.start);
    for part in covered {
        let (start, end) = (part.start.clamp(at, range.end.max(at)), part.end.min(range.end));
        if start > at {
            gaps.push(at..start);
        }
        at = at.max(end);
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    gaps
}

/// What of a sequence lies in shared pages: runs, from the first position on.
///
/// Methods take the sequence's memory, of the layout that the pool was made for; no kernel runs meanwhile.
#[derive(Debug, Default)]
pub(crate) struct SharedPrefix {
    uses: Vec<Use>,
    /// What should be mapped no more, and could not be taken away.
    lingering: Vec<Use>,
    /// The place in the file of what this sequence freezes, and up to which position it was used.
    home: Option<(u64, u32)>,
    /// Those of [`Pool::mappings`] that are this sequence's.
    mappings: u64,
    /// Bytes of pages.
    bytes: u64,
}

impl SharedPrefix {
    /// Positions that are shared; of a column, those of whole pages.
    pub(crate) fn end(&self) -> u32 {
        self.uses.last().map_or(0, |used| used.end)
    }

    /// Bytes that lie in shared pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What of a range of a column is the sequence's own.
    pub(crate) fn own(&self, column: Option<usize>, range: Range<u64>) -> Vec<Range<u64>> {
        match column {
            Some(column) => gaps(range, self.uses.iter().filter_map(|used| used.pages(column))),
            None => vec![range],
        }
    }

    /// Makes the positions before `end` shared, as far as they fill pages, where that is worth it; otherwise all stays as it is.
    pub(crate) fn freeze(&mut self, memory: Region, pool: &Arc<Pool>, end: u32) {
        let positions = self.end()..end / ATTENTION_BLOCK * ATTENTION_BLOCK;
        // Who takes it needs mappings, too.
        let runs = 1 + self.uses.len() + 1;
        if positions.is_empty() || !pool.is_enough(pool.bytes(&positions, usize::MAX)) || !pool.has_room(runs) {
            return;
        }
        // Pages of a home follow each other in the file as in memory, so that the system makes one mapping of runs that do.
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
                // SAFETY: the region lies in the memory of the sequence, which is mapped; who calls has it exclusively, so no kernel runs.
                if let Err(error) = unsafe { pool.file.write(home + pages.start, region) } {
                    pool.refuse(Refusal::Refused(error.to_string()));
                    let _ = pool.file.punch(&(home + pages.start..home + pages.end));
                    break;
                }
                pool.held.fetch_add(pages.end - pages.start, Ordering::Relaxed);
                // SAFETY: as above, and it is whole pages of an anonymous mapping; what it holds stands in the file.
                if let Err(error) = unsafe { pool.file.map(home + pages.start, region) } {
                    // It keeps pages of its own with the same bytes.
                    pool.refuse(Refusal::Refused(error.to_string()));
                }
            }
            columns += 1;
        }
        if columns > 0 {
            self.uses.push(Use::first(pool, home, positions, columns));
        }
        self.count(pool);
    }

    /// Takes what another sequence shares, of the positions before `end`; its memory is `from_memory`. This one must be empty.
    pub(crate) fn take(
        &mut self,
        memory: Region,
        pool: &Arc<Pool>,
        (from, from_memory): (&SharedPrefix, Region),
        end: u32,
    ) {
        let end = end / ATTENTION_BLOCK * ATTENTION_BLOCK;
        let shared: Vec<(&Use, u32)> =
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
                // SAFETY: the region is whole pages of the sequence's memory, an anonymous mapping; who calls has it exclusively, so no kernel
                // runs.
                if let Err(error) = unsafe { pool.file.map(taken.run.home + pages.start, to) } {
                    pool.refuse(Refusal::Refused(error.to_string()));
                    // SAFETY: both are as long, and lie in the mappings of two sequences, of which the other is not written.
                    unsafe { to.base().copy_from_nonoverlapping(original.base(), to.bytes() as usize) };
                }
            }
            self.uses.push(taken);
        }
        self.count(pool);
    }

    /// Shares nothing from a position on: the rows of its block are the sequence's own, and so is what follows, which is zero as far as it was shared. At
    /// the beginning all memory is given back.
    pub(crate) fn cut(&mut self, memory: Region, position: u32) -> Zeroed {
        let end = position / ATTENTION_BLOCK * ATTENTION_BLOCK;
        let Some(pool) = self.uses.iter().chain(&self.lingering).map(|used| Arc::clone(&used.run.pool)).next() else {
            return Zeroed::Nothing;
        };
        if position == 0 {
            // SAFETY: it is all of the sequence's memory, an anonymous mapping; who calls has it exclusively, so no kernel runs.
            match unsafe { renew(memory) } {
                Ok(()) => {
                    self.uses.clear();
                    self.lingering.clear();
                    self.count(&pool);
                    return Zeroed::All;
                }
                Err(error) => pool.refuse(Refusal::Refused(error.to_string())),
            }
        }
        if end >= self.end() {
            return Zeroed::Nothing;
        }
        let (mut parts, mut failed) = (Vec::with_capacity(pool.columns.len()), false);
        for (number, column) in pool.columns.iter().enumerate() {
            let from = column.filled(position) / pool.page() * pool.page();
            let mut zeroed = Vec::new();
            for used in &self.uses {
                let Some(pages) = used.pages(number).filter(|pages| pages.end > from) else { continue };
                let pages = pages.start.max(from)..pages.end;
                let Some(region) = memory.part(pages.start, pages.end - pages.start) else { continue };
                let stays = column.begun(position).clamp(pages.start, pages.end) - pages.start;
                match own_again(region, stays) {
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
            // Pages that are still mapped are not to be punched.
            let still: Vec<Use> =
                self.uses.iter().filter(|used| used.end > end).map(|used| used.share(used.end)).collect();
            self.lingering.extend(still);
        }
        self.uses.retain(|used| used.run.from < end);
        self.uses.iter_mut().filter(|used| used.end > end).for_each(|used| used.cut(end));
        self.count(&pool);
        Zeroed::Parts(parts)
    }

    /// Counts its mappings and bytes.
    fn count(&mut self, pool: &Pool) {
        let bytes = |used: &Use| pool.bytes(&(used.run.from..used.end), used.run.columns);
        self.bytes = self.uses.iter().map(bytes).sum();
        let mut mappings = 0;
        let uses = || self.uses.iter().chain(&self.lingering);
        for column in 0..pool.columns.len() {
            let mut before = None;
            for used in uses() {
                let Some(pages) = used.pages(column) else { continue };
                // What follows in the file, too, is a part of the same mapping.
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

/// Makes pages a sequence's own, of which the first so many bytes stay as they are, and the others become zero.
fn own_again(region: Region, stays: u64) -> std::io::Result<()> {
    let mut bytes = vec![0; stays as usize];
    // SAFETY: the region lies in the memory of a sequence, which is mapped and has as many bytes there; who has it has it exclusively, so no kernel runs.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(region.base(), bytes.len()) };
    // SAFETY: as above, and it is whole pages of an anonymous mapping.
    unsafe { renew(region) }?;
    // SAFETY: as above, for writing.
    unsafe { region.base().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}
