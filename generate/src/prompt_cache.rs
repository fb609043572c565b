//! Cache of prompt prefixes for later prompts: in memory up to a limit, and in a folder for later
//! runs.
//!
//! ```text
//! "You are ..." ─┬─ page 0..256 ── page 256..512 ─┬─ page 512..600      one conversation
//!                │                                └─ page 512..768 ──   another one
//!                └─ points: states without positions, after 412 tokens, ...
//! ```
//!
//! The cache is a radix tree over tokens whose edges are *pages*: keys and values of [`PAGE`]
//! positions, or fewer at the end of a text. Texts with the same beginning share its pages. States
//! without positions (recurrent states) can only be restored where they were copied. Such copies
//! are *points* next to the pages.
//!
//! A prompt continues at the last position for which the tree has tokens and the states can be
//! restored ([`Engine::can_load_pages`]).
//!
//! Eviction removes the least recently used entries first, children before their parents. An entry
//! leaves memory once it is queued for the folder, or at once without a folder. It leaves the
//! folder when the folder is full.
//!
//! A thread writes the files, under temporary names first. A file's name depends on all tokens up
//! to its end, the plan and the weights. Files of other models count towards the limit, and are
//! evicted by age. No operation waits for the thread: if its queue is full, evicted entries are
//! lost. Only one process uses a folder; a second one keeps its entries in memory alone.
//!
//! Invariant: memory holds at most its limit, the bytes queued for the folder, and one page that is
//! being stored or loaded.
//!
//! Invariant: a loaded entry is checked like every saved state. If an entry is damaged or missing,
//! its tokens are computed again.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use ixc_files::open_unlinked;
use ixc_files::private_files::{open_own, private_folder};
use ixc_runtime::engine::{Engine, SequenceId};
use ixc_runtime::saved::{Digest, SavedError, SavedHeader};

use crate::Error;
use entry::{Counts, Entry, Writer, has_our_name, name_of, path_of, remove};
use tree::{EntryPath, Level, Page, Point};

mod entry;
#[cfg(test)]
mod tests;
mod tree;

/// Positions of a page, a multiple of attention's blocks.
pub const PAGE: usize = 256;
/// Min number of tokens that a cached prefix must have in addition to the best slot's prefix,
/// because loading it also takes time.
pub const MIN_GAIN: usize = 32;
/// Max bytes queued for the folder, in addition to the memory limit; at least one page can be
/// queued.
const MAX_QUEUED_BYTES: u64 = 256 << 20;
/// Name of the file whose lock reserves the folder for a process.
const LOCK: &str = "lock";

/// Location and size of the cache.
#[derive(Clone, Debug, Default)]
pub struct PromptCacheOptions {
    /// Folder for entries that later runs reuse.
    pub folder: Option<PathBuf>,
    /// Max bytes in the folder.
    pub folder_bytes: u64,
    /// Max bytes in memory.
    pub memory: u64,
}

/// Size of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pages and points in memory, in bytes.
    pub memory: u64,
    /// Bytes of the folder's files.
    pub folder: u64,
}

/// File of another model, or a page whose earlier pages are missing.
#[derive(Debug)]
struct ForeignFile {
    path: PathBuf,
    bytes: u64,
    age: SystemTime,
}

/// Cached prefix of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Number of tokens that need not be computed.
    pub position: u32,
    /// Page on each level.
    path: Vec<usize>,
    /// Index of the point on the last level to continue from, if any.
    point: Option<usize>,
}

/// Cache of prompt prefixes.
#[derive(Debug)]
pub struct PromptCache {
    options: PromptCacheOptions,
    root: Level,
    foreign_files: Vec<ForeignFile>,
    clock: u64,
    counts: Arc<Counts>,
    writer: Option<Writer>,
    /// File whose lock reserves the folder for this process while the file is open.
    lock: Option<File>,
}

impl PromptCache {
    /// Creates the cache for this engine's model, with the entries in the folder.
    ///
    /// # Errors
    /// When the folder cannot be created or read, or other users can write to it.
    pub fn new(options: PromptCacheOptions, engine: &Engine) -> Result<PromptCache, Error> {
        let (root, counts) = (Level::default(), Arc::default());
        let mut cache =
            PromptCache { options, root, foreign_files: Vec::new(), clock: 0, counts, writer: None, lock: None };
        if engine.is_divided() {
            tracing::warn!(
                "prompts of a model on several ranks are not cached in the folder, because no rank has a whole page of a prompt's state"
            );
            cache.options.folder = None;
            return Ok(cache);
        }
        if let Some(folder) = cache.options.folder.clone() {
            private_folder(&folder).map_err(Error::io(&folder, "keep prompts in"))?;
            if fs::metadata(&folder).is_ok_and(|there| there.permissions().mode() & 0o077 != 0) {
                tracing::warn!(folder = %folder.display(), "other users can read the folder of the prompt cache; new files are readable by this user only");
            }
            let lock = open_own(&folder.join(LOCK)).map_err(Error::io(&folder, "keep prompts in"))?;
            match lock.try_lock() {
                Ok(()) => cache.lock = Some(lock),
                Err(TryLockError::WouldBlock) => {
                    // Two processes would not know of each other's writes and removals.
                    tracing::warn!(folder = %folder.display(), "another process uses this folder of the prompt cache; this process keeps prompts in memory only");
                    cache.options.folder = None;
                    return Ok(cache);
                }
                Err(TryLockError::Error(source)) => return Err(Error::io(&folder, "lock")(source)),
            }
            cache.find(&folder, engine)?;
            cache.writer = Some(
                Writer::start(folder, Arc::clone(&cache.counts)).map_err(Error::io(Path::new("a thread"), "start"))?,
            );
            cache.make_room();
        }
        Ok(cache)
    }

    /// Reads the headers of the folder's files, and builds the tree from them.
    fn find(&mut self, folder: &Path, engine: &Engine) -> Result<(), Error> {
        // Pages, indexed by the digest of the pages before them.
        let mut found: HashMap<Digest, Vec<(SystemTime, u64, SavedHeader)>> = HashMap::new();
        for file in fs::read_dir(folder).map_err(Error::io(folder, "read"))? {
            let path = file.map_err(Error::io(folder, "read"))?.path();
            let Some(there) = fs::symlink_metadata(&path).ok().filter(|there| there.is_file() && has_our_name(&path))
            else {
                continue;
            };
            let age = there.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let facts = open_unlinked(&path)
                .map_err(SavedError::from)
                .and_then(|file| engine.saved_facts(&mut std::io::BufReader::new(file), there.len()));
            match facts {
                Ok(facts) if path == path_of(folder, &name_of(&facts)) => {
                    found.entry(facts.before).or_default().push((age, there.len(), facts));
                }
                _ => self.add_foreign_file(path, there.len(), age),
            }
        }
        let mut levels = vec![(Vec::new(), Digest::default())];
        while let Some((path, before)) = levels.pop() {
            let mut files = found.remove(&before).unwrap_or_default();
            // Files of equal age get a fixed order.
            files.sort_by(|(a, _, x), (b, _, y)| a.cmp(b).then(x.tokens.cmp(&y.tokens)));
            for (age, length, facts) in files {
                let count = facts.tokens.len();
                let is_next = facts.positions.start as usize == path.len() * PAGE && facts.positions.len() == count;
                if !is_next || count > PAGE {
                    self.add_foreign_file(path_of(folder, &name_of(&facts)), length, age);
                    continue;
                }
                self.clock += 1;
                let entry = Entry::from_file(&facts, length, self.clock, &self.counts);
                let Some(level) = self.root.at_mut(&path) else { continue };
                if facts.point().is_some() {
                    level.points.push(Point { facts, entry });
                    continue;
                }
                let digest = before.with(&facts.tokens);
                if facts.tokens.len() == PAGE {
                    levels.push((path.iter().copied().chain([level.pages.len()]).collect(), digest));
                }
                level.pages.push(Page { facts, entry, next_level: Level::default() });
            }
        }
        for (age, bytes, facts) in found.into_values().flatten() {
            self.add_foreign_file(path_of(folder, &name_of(&facts)), bytes, age);
        }
        Ok(())
    }

    fn add_foreign_file(&mut self, path: PathBuf, bytes: u64, age: SystemTime) {
        self.counts.folder.fetch_add(bytes, Ordering::Relaxed);
        self.foreign_files.push(ForeignFile { path, bytes, age });
    }

    /// Returns the longest cached prefix of `wanted` that a sequence can load.
    pub fn find_prefix(&self, engine: &Engine, id: SequenceId, wanted: &[u32]) -> Option<Match> {
        let (mut level, mut rest) = (&self.root, wanted);
        let (mut path, mut pages): (Vec<usize>, Vec<&SavedHeader>) = (Vec::new(), Vec::new());
        // Candidate positions: on each level, the end of the common tokens and the points.
        let mut ends: Vec<Match> = Vec::new();
        loop {
            let start = (wanted.len() - rest.len()) as u32;
            let there = level.pages.iter().enumerate().filter(|(_, page)| !page.entry.is_lost());
            let by_common = there.map(|(i, page)| (common(&page.facts.tokens, rest), i));
            let Some((shared, best)) = by_common.max().filter(|(shared, _)| *shared > 0) else { break };
            path.push(best);
            pages.push(&level.pages[best].facts);
            if engine.needs_points() {
                for (i, point) in level.points.iter().enumerate().filter(|(_, point)| !point.entry.is_lost()) {
                    let tokens = &point.facts.tokens;
                    if tokens.len() <= shared && rest.starts_with(tokens) {
                        let position = start + tokens.len() as u32;
                        ends.push(Match { position, path: path.clone(), point: Some(i) });
                    }
                }
            } else {
                ends.push(Match { position: start + shared as u32, path: path.clone(), point: None });
            }
            if shared < PAGE {
                break;
            }
            (level, rest) = (&level.pages[best].next_level, &rest[PAGE..]);
        }
        ends.sort_by_key(|end| std::cmp::Reverse(end.position));
        ends.into_iter().find(|end| engine.can_load_pages(id, &pages[..end.path.len()], end.position))
    }

    /// Loads a cached prefix into a sequence. Returns whether that was possible.
    pub fn load(&mut self, engine: &mut Engine, id: SequenceId, found: &Match) -> bool {
        self.clock += 1;
        let (clock, folder) = (self.clock, self.options.folder.clone());
        let (mut facts, mut missing) = (Vec::new(), 0);
        // Needed entries are evicted last.
        let mut mark = |entry: &mut Entry| {
            entry.last_use = clock;
            missing += if entry.bytes.is_none() { entry.length } else { 0 };
        };
        for depth in 0..found.path.len() {
            let Some(level) = self.root.at_mut(&found.path[..depth]) else { return false };
            let last = depth + 1 == found.path.len();
            if let Some(point) = found.point.filter(|_| last).and_then(|at| level.points.get_mut(at)) {
                mark(&mut point.entry);
            }
            let Some(page) = level.pages.get_mut(found.path[depth]) else { return false };
            mark(&mut page.entry);
            facts.push(page.facts.clone());
        }
        // The path stays valid: if there is a folder, freeing memory removes no entries from the
        // tree.
        if folder.is_some() {
            self.free_memory(missing);
        }
        let (root, memory, most) = (&mut self.root, &self.counts.memory, self.options.memory);
        let mut lost = None;
        let mut take = |depth: usize, point: Option<usize>| -> io::Result<Arc<Vec<u8>>> {
            let level = root.at_mut(&found.path[..depth]);
            let entry = level.and_then(|level| match point {
                Some(point) => level.points.get_mut(point).map(|point| &mut point.entry),
                None => level.pages.get_mut(found.path[depth]).map(|page| &mut page.entry),
            });
            let taken = entry.ok_or_else(|| io::ErrorKind::NotFound.into()).and_then(|entry| {
                let bytes = entry.take(folder.as_deref())?;
                if entry.bytes.is_none() && memory.load(Ordering::Relaxed).saturating_add(entry.length) <= most {
                    entry.put(Arc::clone(&bytes));
                }
                Ok(bytes)
            });
            if taken.is_err() {
                lost = Some(depth);
            }
            taken
        };
        let last = found.path.len().saturating_sub(1);
        let point = found.point.map(|point| take(last, Some(point))).transpose().map_err(SavedError::from);
        let facts: Vec<&SavedHeader> = facts.iter().collect();
        let loaded = point.and_then(|point| {
            let point = point.as_ref().map(|bytes| &***bytes);
            engine.load_pages(id, &facts, &mut |page| take(page, None), point, found.position)
        });
        if let Err(error) = &loaded {
            tracing::warn!(%error, "a prompt in the prompt cache cannot be used and is deleted");
            // The pages after a missing page are useless. It is unknown which page is damaged, and
            // trying them one by one may take longer than computing.
            let depth = lost.unwrap_or(0);
            self.forget(&found.path[..=depth.min(last)]);
        }
        self.make_room();
        loaded.is_ok()
    }

    /// Removes a page with all later ones, and the state copies of its level.
    fn forget(&mut self, path: &[usize]) {
        let Some((&last, before)) = path.split_last() else { return };
        let folder = self.options.folder.clone();
        if let Some(level) = self.root.at_mut(before).filter(|level| last < level.pages.len()) {
            level.pages.remove(last).remove_files(folder.as_deref());
            level.points.drain(..).for_each(|point| point.entry.remove_file(folder.as_deref()));
        }
    }

    /// Stores the state of a sequence with these tokens, or as much of its beginning as there is
    /// room for.
    pub fn store(&mut self, engine: &Engine, id: SequenceId, tokens: &[u32]) {
        // No rank has a whole sequence.
        if engine.is_divided() {
            return;
        }
        if let Err(error) = self.try_store(engine, id, tokens) {
            tracing::warn!(%error, "a prompt cannot be added to the cache");
        }
        self.make_room();
    }

    fn try_store(&mut self, engine: &Engine, id: SequenceId, tokens: &[u32]) -> Result<(), SavedError> {
        self.clock += 1;
        let clock = self.clock;
        let folder = self.options.folder.clone();
        let points = engine.points(id);
        let (mut entry_path, mut before) = (EntryPath::default(), Digest::default());
        for (number, page) in tokens.chunks(PAGE).enumerate() {
            let first = (number * PAGE) as u32;
            let left = tokens.chunks(PAGE).len() - number;
            let inside = |point: &&u32| **point > first && **point <= first + page.len() as u32;
            for point in points.iter().filter(inside) {
                let tokens = &page[..(point - first) as usize];
                let Some(level) = self.root.at_mut(&entry_path.path) else { return Ok(()) };
                let there =
                    level.points.iter_mut().find(|there| there.facts.tokens == tokens && !there.entry.is_lost());
                if let Some(there) = there {
                    there.entry.last_use = clock;
                } else if let Some((facts, bytes)) = engine.save_point(id, before, first, tokens)? {
                    let Some(entry) = self.make_entry(&facts, bytes, 1, &mut entry_path) else { return Ok(()) };
                    let Some(level) = self.root.at_mut(&entry_path.path) else { return Ok(()) };
                    level.points.retain(|there| there.facts.tokens != tokens);
                    level.points.push(Point { entry, facts });
                }
            }
            let Some(level) = self.root.at_mut(&entry_path.path) else { return Ok(()) };
            let is_there = |there: &Page| {
                there.facts.tokens.starts_with(page) && !there.entry.is_lost() && !engine.holds_more(id, &there.facts)
            };
            let at = match level.pages.iter().position(is_there) {
                Some(at) => at,
                None => {
                    let (facts, bytes) = engine.save_page(id, before, first, page)?;
                    let Some(entry) = self.make_entry(&facts, bytes, left, &mut entry_path) else { return Ok(()) };
                    let Some(level) = self.root.at_mut(&entry_path.path) else { return Ok(()) };
                    // An older page that is a prefix of the new page is replaced.
                    let within = |old: &Page| page.starts_with(&old.facts.tokens);
                    let next_level = match level.pages.iter().position(within) {
                        Some(at) => {
                            let Page { entry: old, next_level, .. } = level.pages.swap_remove(at);
                            if old.name == entry.name && entry.is_in_folder() {
                                // Both pages have the same file, which now belongs to the new page.
                                old.forget_file();
                            } else {
                                old.remove_file(folder.as_deref());
                            }
                            next_level
                        }
                        None => Level::default(),
                    };
                    level.pages.push(Page { facts, entry, next_level });
                    level.pages.len() - 1
                }
            };
            before = before.with(page);
            let Some(level) = self.root.at_mut(&entry_path.path) else { return Ok(()) };
            level.pages[at].entry.last_use = clock;
            entry_path.names.push(level.pages[at].entry.name);
            entry_path.path.push(at);
        }
        Ok(())
    }

    /// Creates the entry of a page or point, and makes room for `left` entries of this size,
    /// including it. Returns `None` if there is not enough room. The entry's ancestors in the tree
    /// are not evicted.
    fn make_entry(
        &mut self,
        facts: &SavedHeader,
        bytes: Vec<u8>,
        left: usize,
        entry_path: &mut EntryPath,
    ) -> Option<Entry> {
        let length = bytes.len() as u64;
        let is_room = |cache: &PromptCache| cache.tally().memory.saturating_add(length) <= cache.options.memory;
        if !is_room(self) {
            self.free_memory(length.saturating_mul(left as u64));
            entry_path.path = self.root.path_of(&entry_path.names)?;
        }
        let mut entry = Entry::new(facts, bytes, self.clock, &self.counts);
        if self.tally().memory > self.options.memory {
            // The new entry goes to the folder, if memory has no room.
            let is_queued = self.writer.as_ref().is_some_and(|writer| writer.write(&mut entry, MAX_QUEUED_BYTES));
            if !is_queued {
                return None;
            }
            entry.drop_bytes();
        }
        Some(entry)
    }

    /// Returns the size of the cache.
    pub fn tally(&self) -> Tally {
        let Counts { memory, folder, .. } = &*self.counts;
        Tally { memory: memory.load(Ordering::Relaxed), folder: folder.load(Ordering::Relaxed) }
    }

    /// Evicts entries that exceed the limits.
    fn make_room(&mut self) {
        self.free_memory(0);
        let Tally { folder, .. } = self.tally();
        if folder > self.options.folder_bytes {
            self.free_folder(folder - self.options.folder_bytes);
        }
    }

    /// Frees memory for `wanted` more bytes, or as many as the limit allows. The least recently
    /// used entries go first. Entries in use go only if the limit is exceeded.
    fn free_memory(&mut self, wanted: u64) {
        let (clock, most) = (self.clock, self.options.memory);
        let over = |cache: &PromptCache, most: u64| cache.tally().memory.saturating_sub(most);
        let optional = over(self, most.saturating_sub(wanted));
        self.free_older(optional, clock);
        let must = over(self, most);
        self.free_older(must, u64::MAX);
    }

    /// Frees `over` bytes of entries that were last used before `before`.
    fn free_older(&mut self, mut over: u64, before: u64) {
        if over == 0 {
            return;
        }
        let Some(writer) = &self.writer else {
            return self.evict(over, before, |entry| entry.bytes.is_some());
        };
        let mut oldest = Vec::new();
        self.root.visit_mut(&mut |entry, depth| {
            if entry.bytes.is_some() && entry.last_use < before {
                oldest.push((entry.last_use, std::cmp::Reverse(depth), entry));
            }
        });
        oldest.sort_by_key(|(last_use, depth, _)| (*last_use, *depth));
        // First free entries that are also in the folder or queued for it, because they can be read
        // again. Then free entries that exist only in memory.
        for is_lost in [false, true] {
            for (.., entry) in &mut oldest {
                if over == 0 {
                    return;
                }
                if entry.bytes.is_some() && (is_lost || writer.write(entry, MAX_QUEUED_BYTES)) {
                    entry.drop_bytes();
                    over = over.saturating_sub(entry.length);
                }
            }
        }
    }

    /// Frees `over` bytes in the folder.
    fn free_folder(&mut self, mut over: u64) {
        self.foreign_files.sort_by_key(|foreign_file| std::cmp::Reverse(foreign_file.age));
        while over > 0
            && let Some(foreign_file) = self.foreign_files.pop()
        {
            remove(&foreign_file.path);
            self.counts.folder.fetch_sub(foreign_file.bytes, Ordering::Relaxed);
            over = over.saturating_sub(foreign_file.bytes);
        }
        self.evict(over, u64::MAX, Entry::is_in_folder);
    }

    /// Evicts entries without children that were last used before `before`, until `over` counted
    /// bytes are freed.
    fn evict(&mut self, over: u64, before: u64, counts: impl Fn(&Entry) -> bool) {
        let evicted = if over > 0 { self.root.oldest(over, before, counts) } else { HashSet::new() };
        if evicted.is_empty() {
            return;
        }
        let folder = self.options.folder.clone();
        let mut open = vec![&mut self.root];
        while let Some(level) = open.pop() {
            let points = level.points.extract_if(.., |point| evicted.contains(&point.entry.name));
            points.for_each(|point| point.entry.remove_file(folder.as_deref()));
            let pages = level.pages.extract_if(.., |page| evicted.contains(&page.entry.name));
            pages.for_each(|page| page.remove_files(folder.as_deref()));
            open.extend(level.pages.iter_mut().map(|page| &mut page.next_level));
        }
    }

    /// Writes all entries that are not in the folder yet, and waits until they are written.
    pub fn finish(&mut self) {
        let PromptCache { root, writer, .. } = self;
        if let Some(writer) = writer {
            // The entries are in memory anyway, so all of them may be queued at once.
            root.visit_mut(&mut |entry, _| {
                writer.write(entry, u64::MAX);
            });
        }
        self.make_room();
        if let Some(writer) = self.writer.take() {
            writer.end();
        }
        // Release the folder for other processes. Closing the file is not enough, because a child
        // process that is just being started may have it open, too.
        if let Some(Err(error)) = self.lock.take().map(|lock| lock.unlock()) {
            tracing::debug!(%error, "the folder of prompts stays locked");
        }
    }
}

/// Returns the length of the common prefix of two lists of tokens.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
