//! Bytes of one page or point: in memory, in a file, or queued for the folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::SystemTime;

use ixc_files::{Guard, Output, open_unlinked};
use ixc_runtime::saved::{Digest, KIND, SavedHeader};

/// Extension of files in the folder.
const EXTENSION: &str = "ixs";
/// Values of the state of a file. A file whose write failed counts as not written.
const NOT_WRITTEN: u8 = 0;
const BEING_WRITTEN: u8 = 1;
const WRITTEN: u8 = 2;
/// The file must be removed: by the writing thread if it is being written, or else by the caller.
const REMOVED: u8 = 3;

/// Sizes of all entries, in bytes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) memory: AtomicU64,
    pub(super) folder: AtomicU64,
    pub(super) queued: AtomicU64,
}

/// Bytes of a page or point.
#[derive(Debug)]
pub(super) struct Entry {
    /// Bytes in memory, which the counts include.
    pub(super) bytes: Option<Arc<Vec<u8>>>,
    /// Bytes of the entry, while the writing thread holds them.
    pub(super) queued: Weak<Vec<u8>>,
    pub(super) length: u64,
    /// Digest of the entry's kind, and of all tokens up to the entry's end.
    pub(super) name: Digest,
    pub(super) file: Arc<AtomicU8>,
    pub(super) last_use: u64,
    pub(super) counts: Arc<Counts>,
}

impl Entry {
    pub(super) fn new(facts: &SavedHeader, bytes: Vec<u8>, last_use: u64, counts: &Arc<Counts>) -> Entry {
        let mut entry = Entry::from_file(facts, 0, last_use, counts);
        (entry.length, entry.file) = (bytes.len() as u64, Arc::new(AtomicU8::new(NOT_WRITTEN)));
        entry.put(Arc::new(bytes));
        entry
    }

    /// Creates an entry that is in the folder only.
    pub(super) fn from_file(facts: &SavedHeader, length: u64, last_use: u64, counts: &Arc<Counts>) -> Entry {
        counts.folder.fetch_add(length, Ordering::Relaxed);
        let (file, counts) = (Arc::new(AtomicU8::new(WRITTEN)), Arc::clone(counts));
        Entry { bytes: None, queued: Weak::new(), length, name: name_of(facts), file, last_use, counts }
    }

    pub(super) fn last_use(&self) -> u64 {
        self.last_use
    }

    pub(super) fn put(&mut self, bytes: Arc<Vec<u8>>) {
        self.drop_bytes();
        self.counts.memory.fetch_add(self.length, Ordering::Relaxed);
        self.bytes = Some(bytes);
    }

    /// Drops the bytes in memory.
    pub(super) fn drop_bytes(&mut self) {
        if self.bytes.take().is_some() {
            self.counts.memory.fetch_sub(self.length, Ordering::Relaxed);
        }
    }

    pub(super) fn is_in_folder(&self) -> bool {
        matches!(self.file.load(Ordering::Acquire), BEING_WRITTEN | WRITTEN)
    }

    /// Returns whether the entry is neither in memory nor in the folder: the write failed, or there
    /// was no time to write.
    pub(super) fn is_lost(&self) -> bool {
        self.bytes.is_none() && !self.is_in_folder()
    }

    /// Returns the bytes, from memory or the folder.
    pub(super) fn take(&self, folder: Option<&Path>) -> io::Result<Arc<Vec<u8>>> {
        let path = folder.map(|folder| path_of(folder, &self.name));
        if let Some(path) = path.as_ref().filter(|_| self.file.load(Ordering::Acquire) == WRITTEN) {
            // The modification time records the last use for the next run.
            let _ = open_unlinked(path).and_then(|file| file.set_modified(SystemTime::now()));
        }
        if let Some(bytes) = &self.bytes {
            return Ok(Arc::clone(bytes));
        }
        // If the writing thread no longer holds the bytes, the file is complete, or the write
        // failed.
        if let Some(bytes) = self.queued.upgrade() {
            return Ok(bytes);
        }
        let read = ixc_files::read_bytes(&path.ok_or(io::ErrorKind::NotFound)?, self.length);
        read.map(Arc::new).map_err(io::Error::other)
    }

    /// Removes the entry's file, or cancels its pending write.
    pub(super) fn remove_file(&self, folder: Option<&Path>) {
        if let Some(folder) = folder
            && self.forget_file() == WRITTEN
        {
            remove(&path_of(folder, &self.name));
        }
    }

    /// Stops counting the file, and returns its previous state.
    pub(super) fn forget_file(&self) -> u8 {
        let before = self.file.swap(REMOVED, Ordering::AcqRel);
        if matches!(before, BEING_WRITTEN | WRITTEN) {
            self.counts.folder.fetch_sub(self.length, Ordering::Relaxed);
        }
        before
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.drop_bytes();
    }
}

/// Returns the name of a page or point: a digest of everything that it depends on.
pub(super) fn name_of(facts: &SavedHeader) -> Digest {
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

pub(super) fn path_of(folder: &Path, name: &Digest) -> PathBuf {
    folder.join(format!("{name}.{EXTENSION}"))
}

/// Returns whether a file's name has the form of a cache entry. Other files in the folder are
/// neither read nor removed.
pub(super) fn has_our_name(path: &Path) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    path.extension().is_some_and(|extension| extension == EXTENSION)
        && stem.len() == 2 * Digest::default().0.len()
        && stem.bytes().all(is_digit)
}

pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "a file stays");
    }
}

/// File to be written.
#[derive(Debug)]
pub(super) struct QueuedFile {
    pub(super) path: PathBuf,
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) state: Arc<AtomicU8>,
}

impl QueuedFile {
    pub(super) fn write(&self, counts: &Counts) {
        let length = self.bytes.len() as u64;
        if self.state.load(Ordering::Acquire) == BEING_WRITTEN {
            let output = Output::open(&self.path, &Guard::replacing(&KIND));
            let written = output.and_then(|output| output.write(|out| out.write_all(&self.bytes)));
            if let Err(error) = &written {
                tracing::warn!(%error, "a prompt cannot be saved in the folder of the prompt cache");
            }
            let to = if written.is_ok() { WRITTEN } else { NOT_WRITTEN };
            match self.state.compare_exchange(BEING_WRITTEN, to, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if written.is_err() => drop(counts.folder.fetch_sub(length, Ordering::Relaxed)),
                Ok(_) => {}
                // The entry was removed meanwhile, so this thread removes the file.
                Err(_) => remove(&self.path),
            }
        }
        counts.queued.fetch_sub(length, Ordering::Relaxed);
    }
}

/// Thread that writes files.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) queue: Sender<QueuedFile>,
    pub(super) folder: PathBuf,
    pub(super) thread: JoinHandle<()>,
}

impl Writer {
    pub(super) fn start(folder: PathBuf, counts: Arc<Counts>) -> io::Result<Writer> {
        let (queue, files) = channel::<QueuedFile>();
        let work = move || files.into_iter().for_each(|file| file.write(&counts));
        let thread = std::thread::Builder::new().name("prompt cache".into()).spawn(work)?;
        Ok(Writer { queue, folder, thread })
    }

    /// Queues an entry for the folder, if the folder lacks the entry and at most `most` bytes are
    /// queued. Returns whether the folder has or will have the entry. Does not wait.
    pub(super) fn write(&self, entry: &mut Entry, most: u64) -> bool {
        if entry.is_in_folder() {
            return true;
        }
        let Some(bytes) = &entry.bytes else { return false };
        let waiting = entry.counts.queued.load(Ordering::Relaxed);
        if waiting > 0 && waiting.saturating_add(entry.length) > most {
            return false;
        }
        entry.counts.queued.fetch_add(entry.length, Ordering::Relaxed);
        entry.counts.folder.fetch_add(entry.length, Ordering::Relaxed);
        entry.file.store(BEING_WRITTEN, Ordering::Release);
        entry.queued = Arc::downgrade(bytes);
        let (path, state) = (path_of(&self.folder, &entry.name), Arc::clone(&entry.file));
        match self.queue.send(QueuedFile { path, bytes: Arc::clone(bytes), state }) {
            Ok(()) => true,
            Err(_) => {
                entry.counts.folder.fetch_sub(entry.length, Ordering::Relaxed);
                entry.file.store(NOT_WRITTEN, Ordering::Release);
                false
            }
        }
    }

    /// Waits until all queued files are written.
    pub(super) fn end(self) {
        drop(self.queue);
        if self.thread.join().is_err() {
            tracing::warn!("the thread that keeps prompts has failed");
        }
    }
}
