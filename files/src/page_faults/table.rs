//! The table of guarded mappings. The signal handler reads it without a lock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Number of mappings in a block of the table.
pub(super) const SLOTS: usize = 64;

/// An entry of the table for one guarded mapping. All atomic accesses are sequentially consistent,
/// because they are rare.
#[derive(Debug)]
pub(super) struct Slot {
    /// Number of changes of the address range, times two; odd while the range is being changed.
    version: AtomicU32,
    /// First address of the mapping; 0 if the slot is free.
    begin: AtomicUsize,
    end: AtomicUsize,
    /// Whether a page of the mapping could not be read.
    pub(super) has_faulted: AtomicBool,
}

/// Range of addresses that begins and ends at page boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageRange {
    pub(super) begin: usize,
    pub(super) end: usize,
}

/// A block of slots of the table, and a link to the next block. Blocks are never freed, because the
/// handler may read them at any time.
#[derive(Debug)]
struct Block {
    slots: [Slot; SLOTS],
    next: OnceLock<Box<Block>>,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            version: AtomicU32::new(0),
            begin: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            has_faulted: AtomicBool::new(false),
        }
    }

    /// Sets the address range. The caller holds the lock of the table.
    fn set(&self, range: PageRange) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.begin.store(range.begin, Ordering::SeqCst);
        self.end.store(range.end, Ordering::SeqCst);
        self.has_faulted.store(false, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the slot's range if it contains `address`. Returns `None` during a change of the
    /// range: a mapping that a thread is reading has a constant range.
    pub(super) fn range_with(&self, address: usize) -> Option<PageRange> {
        let version = self.version.load(Ordering::SeqCst);
        let range = PageRange { begin: self.begin.load(Ordering::SeqCst), end: self.end.load(Ordering::SeqCst) };
        let is_stable = version.is_multiple_of(2) && version == self.version.load(Ordering::SeqCst);
        (is_stable && (range.begin..range.end).contains(&address)).then_some(range)
    }

    /// Marks the slot as free.
    pub(super) fn free(&self) {
        let _lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(PageRange { begin: 0, end: 0 });
    }
}

impl Block {
    const fn new() -> Block {
        Block { slots: [const { Slot::new() }; SLOTS], next: OnceLock::new() }
    }
}

/// The first block of the table.
static TABLE: Block = Block::new();
/// Lock that is held during each change of the table.
static LOCK: Mutex<()> = Mutex::new(());

/// Returns all slots of the table, without taking the lock.
pub(super) fn slots() -> impl Iterator<Item = &'static Slot> {
    blocks().flat_map(|block| &block.slots)
}

fn blocks() -> impl Iterator<Item = &'static Block> {
    std::iter::successors(Some(&TABLE), |block| block.next.get().map(|next| &**next))
}

/// Adds a range of pages to the table.
pub(super) fn add(range: PageRange) -> &'static Slot {
    let _lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |slot: &&'static Slot| slot.begin.load(Ordering::SeqCst) == 0;
    let slot = slots().find(is_free).unwrap_or_else(|| {
        // The last block has no successor, and the lock is held, so the new block becomes its
        // successor.
        let last = blocks().last().unwrap_or(&TABLE);
        &last.next.get_or_init(|| Box::new(Block::new())).slots[0]
    });
    slot.set(range);
    slot
}
