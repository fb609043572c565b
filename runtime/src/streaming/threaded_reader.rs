//! A backend of a few threads that make blocking reads. It serves systems without io_uring, and
//! simulates slow drives.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::affinity;
use super::backend::{Backend, CANCELED, Completion, Read};
use super::files::Files;
use super::queue::Wake;

/// Max number of threads. Each thread has a stack and makes one read at a time.
const MAX_THREADS: usize = 16;

#[derive(Default)]
struct State {
    waiting: VecDeque<Read>,
    done: Vec<Completion>,
    woken: bool,
    ending: bool,
}

/// A simulated drive that makes one read after another, at a fixed rate in bytes per second.
struct Throttle {
    rate: f64,
    /// Time at which all reads so far are done.
    free: Mutex<Instant>,
}

impl Throttle {
    /// Returns the time at which a read of `bytes` bytes ends if it starts now.
    fn ends(&self, bytes: u64) -> Instant {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = (*free).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / self.rate);
        *free
    }
}

struct Shared {
    files: Arc<Files>,
    throttle: Option<Throttle>,
    state: Mutex<State>,
    work: Condvar,
    finished: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Shared {
    fn wake(&self) {
        self.lock().woken = true;
        self.finished.notify_all();
    }
}

/// A pool of threads that read.
pub struct ThreadedReader {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadedReader {
    /// Starts one thread for each of `depth` outstanding reads, but at most a fixed number.
    ///
    /// # Errors
    /// If the system refuses to start any thread.
    pub fn new(files: Arc<Files>, depth: usize) -> io::Result<ThreadedReader> {
        ThreadedReader::start(files, depth, None)
    }

    /// Starts threads like [`ThreadedReader::new`], and limits their rate to `rate` bytes per
    /// second (at least 1). This simulates slow drives and the failures that they cause.
    ///
    /// # Errors
    /// Errors are those of [`ThreadedReader::new`].
    pub fn with_rate(files: Arc<Files>, depth: usize, rate: f64) -> io::Result<ThreadedReader> {
        // NaN also becomes 1.
        let rate = if rate > 1.0 { rate } else { 1.0 };
        ThreadedReader::start(files, depth, Some(Throttle { rate, free: Mutex::new(Instant::now()) }))
    }

    fn start(files: Arc<Files>, depth: usize, throttle: Option<Throttle>) -> io::Result<ThreadedReader> {
        let shared = Arc::new(Shared {
            files,
            throttle,
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            finished: Condvar::new(),
        });
        let mut pool = ThreadedReader { shared, threads: Vec::new() };
        for i in 0..depth.clamp(1, MAX_THREADS) {
            let shared = Arc::clone(&pool.shared);
            match std::thread::Builder::new()
                .name(format!("ixc-pread-{i}"))
                .stack_size(64 << 10)
                .spawn(move || work(&shared))
            {
                Ok(thread) => pool.threads.push(thread),
                Err(error) if pool.threads.is_empty() => return Err(error),
                // With fewer threads, reads are only slower.
                Err(_) => break,
            }
        }
        Ok(pool)
    }
}

fn work(shared: &Shared) {
    // If the system refuses, the drive's thread reports it, so the result is ignored here.
    let _ = affinity::prefer_short_slices();
    let mut state = shared.lock();
    loop {
        let Some(read) = state.waiting.pop_front() else {
            if state.ending {
                return;
            }
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(state);
        let ends = shared.throttle.as_ref().map(|throttle| throttle.ends(read.into.bytes()));
        // SAFETY: the caller of `Backend::start` guarantees the conditions until the completion is
        // returned.
        let result = unsafe { read_at(&shared.files, &read) };
        if let Some(ends) = ends {
            std::thread::sleep(ends.saturating_duration_since(Instant::now()));
        }
        state = shared.lock();
        state.done.push(Completion { tag: read.tag, result });
        shared.finished.notify_all();
    }
}

/// Reads bytes of a file into the memory of `read`.
///
/// # Safety
/// The memory must be mapped and initialised, and no other code may access it.
unsafe fn read_at(files: &Files, read: &Read) -> Result<u32, i32> {
    // Error number for an unknown file and for errors that have no number from the system.
    const BAD_DESCRIPTOR: i32 = 9;
    let file = files.handle(read.file).ok_or(BAD_DESCRIPTOR)?;
    // SAFETY: the region is mapped and initialised, and no other code accesses it.
    let into = unsafe { std::slice::from_raw_parts_mut(read.into.base(), read.into.bytes() as usize) };
    file.read_at(into, read.offset)
        .map(|bytes| bytes as u32)
        .map_err(|error| error.raw_os_error().unwrap_or(BAD_DESCRIPTOR))
}

impl Backend for ThreadedReader {
    fn describe(&self) -> String {
        format!("pread by {} threads", self.threads.len())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.shared) as Arc<dyn Wake>
    }

    unsafe fn start(&mut self, read: Read) {
        self.shared.lock().waiting.push_back(read);
        self.shared.work.notify_one();
    }

    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let mut state = self.shared.lock();
        while state.done.is_empty() && !state.woken {
            state = self.shared.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.woken = false;
        done.append(&mut state.done);
        Ok(())
    }

    fn cancel(&mut self) {
        let mut state = self.shared.lock();
        let waiting = std::mem::take(&mut state.waiting);
        state.done.extend(waiting.into_iter().map(|read| Completion { tag: read.tag, result: Err(CANCELED) }));
    }
}

impl Drop for ThreadedReader {
    /// Waits for outstanding reads, because they write to memory that is freed afterwards.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ending = true;
        state.waiting.clear();
        drop(state);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked makes no more reads.
            let _ = thread.join();
        }
    }
}
