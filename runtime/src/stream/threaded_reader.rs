//! Reads by a few threads that wait for one each: where there is no io_uring, and where a drive is to be slower than it is.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::affinity;
use super::drive::{Backend, Completion, Read};
use super::files::Files;
use super::queue::Wake;

/// Most threads: each is one read that the drive has at a time, and a stack.
const MOST_THREADS: usize = 16;

#[derive(Default)]
struct State {
    waiting: VecDeque<Read>,
    done: Vec<Completion>,
    woken: bool,
    ending: bool,
}

/// A drive that gives so many bytes per second, one read behind the other.
struct Throttle {
    rate: f64,
    /// When it is done with all that it was asked for.
    free: Mutex<Instant>,
}

impl Throttle {
    /// When a read of so many bytes that is begun now ends.
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
    /// With a thread for each read that may be outstanding, up to a bound.
    ///
    /// # Errors
    /// When the system gives no thread at all.
    pub fn new(files: Arc<Files>, depth: usize) -> io::Result<ThreadedReader> {
        ThreadedReader::start(files, depth, None)
    }

    /// As [`ThreadedReader::new`], as slowly as a drive that gives `rate` bytes per second (at least one), where this one gives more: to measure
    /// what other drives would bring, and what slow ones break.
    ///
    /// # Errors
    /// As [`ThreadedReader::new`].
    pub fn throttled(files: Arc<Files>, depth: usize, rate: f64) -> io::Result<ThreadedReader> {
        // Not a number is one byte, too.
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
        for i in 0..depth.clamp(1, MOST_THREADS) {
            let shared = Arc::clone(&pool.shared);
            match std::thread::Builder::new()
                .name(format!("ixc-pread-{i}"))
                .stack_size(64 << 10)
                .spawn(move || work(&shared))
            {
                Ok(thread) => pool.threads.push(thread),
                Err(error) if pool.threads.is_empty() => return Err(error),
                // Fewer do as well, only slower.
                Err(_) => break,
            }
        }
        Ok(pool)
    }
}

fn work(shared: &Shared) {
    // The thread that they read for says where it is refused.
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
        let result = read_at(&shared.files, &read);
        if let Some(ends) = ends {
            std::thread::sleep(ends.saturating_duration_since(Instant::now()));
        }
        state = shared.lock();
        state.done.push(Completion { tag: read.tag, result });
        shared.finished.notify_all();
    }
}

fn read_at(files: &Files, read: &Read) -> Result<u32, i32> {
    // No errno comes without one from the system, except for a file that is not there.
    const BAD_DESCRIPTOR: i32 = 9;
    let file = files.handle(read.file).ok_or(BAD_DESCRIPTOR)?;
    // SAFETY: the region is mapped, zeroed and stays so until the completion is given, as `Backend::start` demands, and nobody
    // else touches it before.
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
        state
            .done
            .extend(waiting.into_iter().map(|read| Completion { tag: read.tag, result: Err(super::drive::CANCELED) }));
    }
}

impl Drop for ThreadedReader {
    /// Waits for reads that are on: they write to memory that is given back after this.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ending = true;
        state.waiting.clear();
        drop(state);
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked reads no more.
            let _ = thread.join();
        }
    }
}
