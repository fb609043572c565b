//! What prompts began with, kept for later ones: in memory as far as there is room, and in a folder, where the next run finds it.
//!
//! ```text
//! "You are ..." ─┬─ page 0..256 ── page 256..512 ─┬─ page 512..600          the rest of one conversation
//!                │                                └─ page 512..768 ── ...   another one
//!                └─ points: what has no positions, behind 412 tokens, ...
//! ```
//!
//! It is a radix tree over tokens whose edges are *pages*: keys and values of [`PAGE`] positions, or of fewer at the end of a text. Texts with the same
//! beginning share its pages. What has no positions (recurrent states) can be put back alone where it was copied: such copies are *points* beside the pages.
//! A prompt goes on at the last position that the tree has tokens for and the states allow ([`Engine::can_load_pages`]).
//!
//! What was used least recently is given up first, leaves before what they hang on: from memory when it has been written to the folder, or at once
//! where there is none; from the folder when that is full. Files are written by a thread of their own, aside and renamed, and are named after all tokens up to
//! their end, the plan and the weights; those of other models count, and are given up by their age.
//!
//! Invariant: what is found is checked as any saved state is; what is damaged, or no longer there, is computed again.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use ixc_files::own::private_folder;
use ixc_files::{Guard, Output, open_unlinked};
use ixc_runtime::engine::{Engine, SequenceId};
use ixc_runtime::saved::{Digest, Facts, KIND, SavedError};

use crate::Error;

/// Positions of a page, a multiple of attention's blocks.
pub const PAGE: usize = 256;
/// A prompt must have as many more tokens here than anywhere else: putting a sequence together has its price, too.
pub const LEAST_GAIN: usize = 32;
/// Pages on their way to the folder, which memory holds besides its limit.
const ON_THEIR_WAY: usize = 4;
/// How often it is asked whether a page is written that is wanted already.
const WRITING: Duration = Duration::from_millis(1);
/// What files of the folder end with.
const EXTENSION: &str = "ixs";

/// Where prompts are kept.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The folder that outlasts a run.
    pub folder: Option<PathBuf>,
    /// Most bytes of the folder.
    pub folder_bytes: u64,
    /// Most bytes in memory.
    pub memory: u64,
}

/// How it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pages and points in memory, in bytes.
    pub memory: u64,
    /// Bytes of the folder's files.
    pub folder: u64,
}

/// Where a file is on its way.
const NOT_WRITTEN: u8 = 0;
const BEING_WRITTEN: u8 = 1;
const WRITTEN: u8 = 2;
const FAILED: u8 = 3;

/// The bytes of a page or point.
#[derive(Debug)]
struct Held {
    bytes: Option<Arc<Vec<u8>>>,
    length: u64,
    /// Of all tokens up to its end, and what it is.
    name: Digest,
    file: Arc<AtomicU8>,
    used: u64,
}

#[derive(Debug)]
struct Page {
    facts: Facts,
    held: Held,
    below: Level,
}

#[derive(Debug)]
struct Point {
    facts: Facts,
    held: Held,
}

/// What goes on from one position.
#[derive(Debug, Default)]
struct Level {
    pages: Vec<Page>,
    points: Vec<Point>,
}

/// A file of another model, or one whose beginning is not there.
#[derive(Debug)]
struct Stranger {
    path: PathBuf,
    bytes: u64,
    age: SystemTime,
}

/// Where a prompt can go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Tokens that need not be computed.
    pub position: u32,
    /// Of each level, the page.
    path: Vec<usize>,
    /// The point of the last level.
    point: Option<usize>,
}

/// Prompts that are kept.
#[derive(Debug)]
pub struct PromptCache {
    options: Options,
    root: Level,
    strangers: Vec<Stranger>,
    clock: u64,
    writer: Option<Writer>,
}

impl PromptCache {
    /// Of this engine's model; what the folder has of it is found again.
    ///
    /// # Errors
    /// When the folder cannot be made or read, or is one that others write to.
    pub fn new(options: Options, engine: &Engine) -> Result<PromptCache, Error> {
        let mut cache = PromptCache { options, root: Level::default(), strangers: Vec::new(), clock: 0, writer: None };
        if let Some(folder) = cache.options.folder.clone() {
            private_folder(&folder).map_err(Error::io(&folder, "keep prompts in"))?;
            cache.find(&folder, engine)?;
            cache.writer = Some(Writer::start(folder).map_err(Error::io(Path::new("a thread"), "start"))?);
            cache.make_room();
        }
        Ok(cache)
    }

    /// Reads what the folder's files say of themselves, and makes the tree of them.
    fn find(&mut self, folder: &Path, engine: &Engine) -> Result<(), Error> {
        // By what stands before them.
        let mut found: HashMap<Digest, Vec<(SystemTime, u64, Facts)>> = HashMap::new();
        for entry in fs::read_dir(folder).map_err(Error::io(folder, "read"))? {
            let path = entry.map_err(Error::io(folder, "read"))?.path();
            let Some(there) = fs::symlink_metadata(&path).ok().filter(|there| there.is_file() && is_ours(&path)) else {
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
                _ => self.strangers.push(Stranger { path, bytes: there.len(), age }),
            }
        }
        let mut levels = vec![(Vec::new(), Digest::default())];
        while let Some((path, before)) = levels.pop() {
            let mut files = found.remove(&before).unwrap_or_default();
            // Those of equal age always in the same order.
            files.sort_by(|(a, _, x), (b, _, y)| a.cmp(b).then(x.tokens.cmp(&y.tokens)));
            for (age, length, facts) in files {
                let count = facts.tokens.len();
                let is_next = facts.positions.start as usize == path.len() * PAGE && facts.positions.len() == count;
                if !is_next || count > PAGE {
                    self.strangers.push(Stranger { path: path_of(folder, &name_of(&facts)), bytes: length, age });
                    continue;
                }
                self.clock += 1;
                let file = Arc::new(AtomicU8::new(WRITTEN));
                let held = Held { bytes: None, length, name: name_of(&facts), file, used: self.clock };
                let Some(level) = self.root.at_mut(&path) else { continue };
                if facts.point().is_some() {
                    level.points.push(Point { facts, held });
                    continue;
                }
                let below = before.with(&facts.tokens);
                if facts.tokens.len() == PAGE {
                    levels.push((path.iter().copied().chain([level.pages.len()]).collect(), below));
                }
                level.pages.push(Page { facts, held, below: Level::default() });
            }
        }
        let lost = found.into_values().flatten();
        self.strangers.extend(lost.map(|(age, bytes, facts)| Stranger {
            path: path_of(folder, &name_of(&facts)),
            bytes,
            age,
        }));
        Ok(())
    }

    /// Where a prompt can go on in a sequence, at most behind all of `wanted`.
    pub fn find_prefix(&self, engine: &Engine, id: SequenceId, wanted: &[u32]) -> Option<Match> {
        let (mut level, mut rest) = (&self.root, wanted);
        let (mut path, mut pages): (Vec<usize>, Vec<&Facts>) = (Vec::new(), Vec::new());
        // Places to go on at: of each level the end of what it has of the prompt, and its points.
        let mut ends: Vec<Match> = Vec::new();
        loop {
            let start = (wanted.len() - rest.len()) as u32;
            let by_common = level.pages.iter().enumerate().map(|(i, page)| (common(&page.facts.tokens, rest), i));
            let Some((shared, best)) = by_common.max().filter(|(shared, _)| *shared > 0) else { break };
            path.push(best);
            pages.push(&level.pages[best].facts);
            if engine.needs_points() {
                for (i, point) in level.points.iter().enumerate() {
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
            (level, rest) = (&level.pages[best].below, &rest[PAGE..]);
        }
        ends.sort_by_key(|end| std::cmp::Reverse(end.position));
        ends.into_iter().find(|end| engine.can_load_pages(id, &pages[..end.path.len()], end.position))
    }

    /// Makes a sequence what was found for a prompt; whether it could be had.
    pub fn load(&mut self, engine: &mut Engine, id: SequenceId, found: &Match) -> bool {
        self.clock += 1;
        let (clock, folder) = (self.clock, self.options.folder.clone());
        let mut parts = Vec::new();
        for depth in 0..found.path.len() {
            let Some(level) = self.root.at_mut(&found.path[..depth]) else { return false };
            let last = depth + 1 == found.path.len();
            let point = found.point.filter(|_| last).and_then(|point| level.points.get_mut(point));
            let Some(page) = level.pages.get_mut(found.path[depth]) else { return false };
            let mut take = |held: &mut Held| {
                held.used = clock;
                held.take(folder.as_deref()).map(|bytes| parts.push(bytes)).is_some()
            };
            let taken = take(&mut page.held) && point.is_none_or(|point| take(&mut point.held));
            if !taken {
                // Without it nothing behind it can be had.
                self.forget(&found.path[..=depth]);
                return false;
            }
        }
        let point = found.point.and_then(|_| parts.pop());
        let pages: Vec<&[u8]> = parts.iter().map(|bytes| &***bytes).collect();
        let loaded = engine.load_pages(id, &pages, point.as_ref().map(|bytes| &***bytes), found.position);
        if let Err(error) = &loaded {
            tracing::warn!(%error, "what was kept of a prompt cannot be used, and is given up");
            // Which page it is, is not said, and to try them one by one may take longer than to compute them.
            self.forget(&found.path[..1]);
        }
        self.make_room();
        loaded.is_ok()
    }

    /// Gives up a page and all behind it, and its points' level.
    fn forget(&mut self, path: &[usize]) {
        let Some((&last, before)) = path.split_last() else { return };
        let folder = self.options.folder.clone();
        if let Some(level) = self.root.at_mut(before).filter(|level| last < level.pages.len()) {
            level.pages.remove(last).remove_files(folder.as_deref());
            level.points.drain(..).for_each(|point| point.held.remove_file(folder.as_deref()));
        }
    }

    /// Keeps what a sequence holds, whose tokens these are.
    pub fn keep(&mut self, engine: &Engine, id: SequenceId, tokens: &[u32]) {
        if let Err(error) = self.try_keep(engine, id, tokens) {
            tracing::warn!(%error, "a prompt is not kept");
        }
        self.make_room();
    }

    fn try_keep(&mut self, engine: &Engine, id: SequenceId, tokens: &[u32]) -> Result<(), SavedError> {
        self.clock += 1;
        let clock = self.clock;
        let folder = self.options.folder.clone();
        let points = engine.points(id);
        let (mut level, mut before) = (&mut self.root, Digest::default());
        for (number, page) in tokens.chunks(PAGE).enumerate() {
            let first = (number * PAGE) as u32;
            let inside = |point: &&u32| **point > first && **point <= first + page.len() as u32;
            for point in points.iter().filter(inside) {
                let tokens = &page[..(point - first) as usize];
                match level.points.iter_mut().find(|point| point.facts.tokens == tokens) {
                    Some(point) => point.held.used = clock,
                    None => {
                        if let Some((facts, bytes)) = engine.save_point(id, before, first, tokens)? {
                            level.points.push(Point { held: Held::new(&facts, bytes, clock), facts });
                        }
                    }
                }
            }
            let there = level.pages.iter().position(|there| there.facts.tokens.starts_with(page));
            let has_less = |there: &Page| engine.holds_more(id, &there.facts);
            let at = match there.filter(|&at| !has_less(&level.pages[at])) {
                Some(at) => at,
                None => {
                    let (facts, bytes) = engine.save_page(id, before, first, page)?;
                    let held = Held::new(&facts, bytes, clock);
                    // What it begins with is in it.
                    let within = |old: &Page| page.starts_with(&old.facts.tokens);
                    let below = match level.pages.iter().position(within) {
                        Some(at) => {
                            let Page { held, below, .. } = level.pages.swap_remove(at);
                            held.remove_file(folder.as_deref());
                            below
                        }
                        None => Level::default(),
                    };
                    level.pages.push(Page { facts, held, below });
                    level.pages.len() - 1
                }
            };
            before = before.with(page);
            let page = &mut level.pages[at];
            page.held.used = clock;
            level = &mut page.below;
        }
        Ok(())
    }

    /// Bytes that are kept.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally { folder: self.strangers.iter().map(|stranger| stranger.bytes).sum(), memory: 0 };
        self.root.visit(&mut |held, _| {
            tally.memory += if held.bytes.is_some() { held.length } else { 0 };
            tally.folder += if held.is_in_folder() { held.length } else { 0 };
        });
        tally
    }

    /// Gives up what there is no room for.
    fn make_room(&mut self) {
        let mut tally = self.tally();
        if tally.memory > self.options.memory {
            let over = tally.memory - self.options.memory;
            self.free_memory(over);
        }
        tally = self.tally();
        if tally.folder > self.options.folder_bytes {
            self.free_folder(tally.folder - self.options.folder_bytes);
        }
    }

    /// Frees so many bytes of memory, those first that were not used for the longest time.
    fn free_memory(&mut self, mut over: u64) {
        if self.writer.is_none() {
            return self.give_up(over, |held| held.bytes.is_some(), None);
        }
        let writer = self.writer.as_ref();
        let mut oldest = Vec::new();
        self.root.visit_mut(&mut |held, depth| {
            if held.bytes.is_some() {
                oldest.push((held.used, std::cmp::Reverse(depth), held));
            }
        });
        oldest.sort_by_key(|(used, depth, _)| (*used, *depth));
        for (.., held) in oldest {
            if over == 0 {
                break;
            }
            if let Some(writer) = writer {
                writer.write(held);
            }
            // On its way it is in the writer's hands, and is read from the file when it is wanted again.
            held.bytes = None;
            over = over.saturating_sub(held.length);
        }
    }

    /// Gives up so many bytes of the folder.
    fn free_folder(&mut self, mut over: u64) {
        self.strangers.sort_by_key(|stranger| std::cmp::Reverse(stranger.age));
        while over > 0
            && let Some(stranger) = self.strangers.pop()
        {
            remove(&stranger.path);
            over = over.saturating_sub(stranger.bytes);
        }
        if over > 0 {
            let folder = self.options.folder.clone();
            self.give_up(over, Held::is_in_folder, folder.as_deref());
        }
    }

    /// Gives up what hangs on nothing else, as long as that frees bytes that count.
    fn give_up(&mut self, mut over: u64, counts: impl Fn(&Held) -> bool, folder: Option<&Path>) {
        while over > 0
            && let Some((path, leaf)) = self.root.oldest_leaf()
            && let Some(level) = self.root.at_mut(&path)
        {
            let held = match leaf {
                Leaf::Page(at) => level.pages.swap_remove(at).held,
                Leaf::Point(at) => level.points.swap_remove(at).held,
            };
            if counts(&held) {
                over = over.saturating_sub(held.length);
            }
            held.remove_file(folder);
        }
    }

    /// Writes all that is not in the folder yet, and waits until it is there.
    pub fn finish(&mut self) {
        let PromptCache { root, writer, .. } = self;
        if let Some(writer) = writer {
            root.visit_mut(&mut |held, _| writer.write(held));
        }
        self.make_room();
        if let Some(writer) = self.writer.take() {
            writer.end();
        }
    }
}

/// What hangs on nothing else in a level.
#[derive(Clone, Copy, Debug)]
enum Leaf {
    Page(usize),
    Point(usize),
}

impl Level {
    fn at_mut(&mut self, path: &[usize]) -> Option<&mut Level> {
        path.iter().try_fold(self, |level, &page| level.pages.get_mut(page).map(|page| &mut page.below))
    }

    fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.points.is_empty()
    }

    /// All that is held, and how deep.
    fn visit(&self, see: &mut impl FnMut(&Held, usize)) {
        self.levels(0, &mut |level, depth| {
            level.pages.iter().map(|page| &page.held).for_each(|held| see(held, depth));
            level.points.iter().map(|point| &point.held).for_each(|held| see(held, depth));
        });
    }

    fn levels<'l>(&'l self, depth: usize, see: &mut impl FnMut(&'l Level, usize)) {
        // As deep as a context has pages: no recursion, whose depth a prompt would choose.
        let mut open = vec![(self, depth)];
        while let Some((level, depth)) = open.pop() {
            see(level, depth);
            open.extend(level.pages.iter().map(|page| (&page.below, depth + 1)));
        }
    }

    fn visit_mut<'l>(&'l mut self, see: &mut impl FnMut(&'l mut Held, usize)) {
        let mut open = vec![(self, 0)];
        while let Some((level, depth)) = open.pop() {
            for page in &mut level.pages {
                see(&mut page.held, depth);
                open.push((&mut page.below, depth + 1));
            }
            level.points.iter_mut().for_each(|point| see(&mut point.held, depth));
        }
    }

    /// What was not used for the longest time of what hangs on nothing else, and the way to its level.
    fn oldest_leaf(&self) -> Option<(Vec<usize>, Leaf)> {
        let mut oldest: Option<(u64, Vec<usize>, Leaf)> = None;
        let mut open = vec![(self, Vec::new())];
        while let Some((level, path)) = open.pop() {
            let pages = level.pages.iter().enumerate().filter(|(_, page)| page.below.is_empty());
            let pages = pages.map(|(at, page)| (page.held.used, Leaf::Page(at)));
            let points = level.points.iter().enumerate().map(|(at, point)| (point.held.used, Leaf::Point(at)));
            for (used, leaf) in pages.chain(points) {
                if oldest.as_ref().is_none_or(|(least, ..)| used < *least) {
                    oldest = Some((used, path.clone(), leaf));
                }
            }
            let below = level.pages.iter().enumerate().filter(|(_, page)| !page.below.is_empty());
            open.extend(below.map(|(at, page)| (&page.below, path.iter().copied().chain([at]).collect())));
        }
        oldest.map(|(_, path, leaf)| (path, leaf))
    }
}

/// Trees as deep as a long context has pages are taken apart level by level.
impl Drop for Level {
    fn drop(&mut self) {
        let mut open = std::mem::take(&mut self.pages);
        while let Some(mut page) = open.pop() {
            open.append(&mut page.below.pages);
        }
    }
}

impl Page {
    /// Removes its file and those of all behind it.
    fn remove_files(self, folder: Option<&Path>) {
        self.below.visit(&mut |held, _| held.remove_file(folder));
        self.held.remove_file(folder);
    }
}

impl Held {
    fn new(facts: &Facts, bytes: Vec<u8>, used: u64) -> Held {
        let (length, file) = (bytes.len() as u64, Arc::new(AtomicU8::new(NOT_WRITTEN)));
        Held { bytes: Some(Arc::new(bytes)), length, name: name_of(facts), file, used }
    }

    fn is_in_folder(&self) -> bool {
        matches!(self.file.load(Ordering::Acquire), BEING_WRITTEN | WRITTEN)
    }

    /// Its bytes, from memory or the folder; they stay in memory.
    fn take(&mut self, folder: Option<&Path>) -> Option<Arc<Vec<u8>>> {
        if self.bytes.is_none() {
            let path = path_of(folder?, &self.name);
            self.settle();
            let read = ixc_files::read_bytes(&path, self.length);
            match read {
                Ok(bytes) => self.bytes = Some(Arc::new(bytes)),
                Err(error) => {
                    tracing::warn!(%error, "what was kept of a prompt is not there any more");
                    return None;
                }
            }
        }
        self.bytes.clone()
    }

    /// Waits for the thread that writes it, if it does just now.
    fn settle(&self) {
        while self.file.load(Ordering::Acquire) == BEING_WRITTEN {
            std::thread::sleep(WRITING);
        }
    }

    fn remove_file(&self, folder: Option<&Path>) {
        if let Some(folder) = folder.filter(|_| self.is_in_folder()) {
            self.settle();
            remove(&path_of(folder, &self.name));
        }
    }
}

/// How many tokens two lists begin with alike.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// What a page or point is called: by all that it is of.
fn name_of(facts: &Facts) -> Digest {
    let ixc_runtime::saved::Identity { plan, weights } = facts.identity;
    let words = |digest: Digest| {
        digest
            .0
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect::<Vec<u32>>()
    };
    let kind = [u32::from(facts.point().is_some())];
    facts.before.with(&facts.tokens).with(&words(plan)).with(&words(weights)).with(&kind)
}

fn path_of(folder: &Path, name: &Digest) -> PathBuf {
    folder.join(format!("{name}.{EXTENSION}"))
}

fn is_ours(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "a file stays");
    }
}

/// The thread that writes files.
#[derive(Debug)]
struct Writer {
    queue: SyncSender<(PathBuf, Arc<Vec<u8>>, Arc<AtomicU8>)>,
    folder: PathBuf,
    thread: JoinHandle<()>,
}

impl Writer {
    fn start(folder: PathBuf) -> std::io::Result<Writer> {
        let (queue, pages) = sync_channel::<(PathBuf, Arc<Vec<u8>>, Arc<AtomicU8>)>(ON_THEIR_WAY);
        let work = move || {
            for (path, bytes, state) in pages {
                let output = Output::open(&path, &Guard::replacing(&KIND));
                let written = output.and_then(|output| output.write(|out| out.write_all(&bytes)));
                if let Err(error) = &written {
                    tracing::warn!(%error, "a prompt is not kept in the folder");
                }
                state.store(if written.is_ok() { WRITTEN } else { FAILED }, Ordering::Release);
            }
        };
        let thread = std::thread::Builder::new().name("prompt cache".into()).spawn(work)?;
        Ok(Writer { queue, folder, thread })
    }

    /// Has it written, where it is not yet.
    fn write(&self, held: &Held) {
        let Some(bytes) = &held.bytes else { return };
        let begun = held.file.compare_exchange(NOT_WRITTEN, BEING_WRITTEN, Ordering::AcqRel, Ordering::Acquire);
        if begun.is_ok() {
            let path = path_of(&self.folder, &held.name);
            if self.queue.send((path, Arc::clone(bytes), Arc::clone(&held.file))).is_err() {
                held.file.store(FAILED, Ordering::Release);
            }
        }
    }

    /// Waits until all is written.
    fn end(self) {
        drop(self.queue);
        if self.thread.join().is_err() {
            tracing::warn!("the thread that keeps prompts has failed");
        }
    }
}
