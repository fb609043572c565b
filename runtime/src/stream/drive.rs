//! The thread that reads: it alone owns the ring (or the pool of threads that stands in for one).
//!
//! It takes reads from a [`Queue`] as long as there is room, goes on with short ones where they stopped, begins interrupted ones
//! again, and tells a [`Sink`] of each block that has arrived or failed. A read that fails fails its block and no other.
//!
//! ```
//! use ixc_runtime::stream::{Extent, drive, files::Files, queue::{Job, Queue}, counters::Class, reservation::Reservation};
//! use std::sync::{Arc, Mutex, mpsc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("ixc-drive-example-{}", std::process::id()));
//! std::fs::write(&path, vec![7; 10_000])?;
//! let files = Arc::new(Files::open(&[path.clone()], true)?);
//! let queue = Arc::new(Queue::new(files, Arc::new(Reservation::new(1 << 20)?), 4096));
//! let (sender, receiver) = mpsc::channel();
//! let drive = drive::Drive::start(&drive::Options::default(), &queue, Arc::new(Mutex::new(sender)))?;
//! // Bytes 5000..9000 lie in pages 1 and 2: they land 5000 - 4096 bytes behind where those do.
//! let extent = Extent { file: 0, offset: 5000, bytes: 4000, at: 0 };
//! queue.submit(vec![Job { tag: 42, class: Class::Routed, parts: vec![(extent, 0)] }])?;
//! assert_eq!(receiver.recv()?, vec![(42, Ok(()))]);
//! println!("{}: {:.0} bytes per second", drive.report().backend, queue.counters().rate());
//! # std::fs::remove_file(&path)?;
//! # Ok(()) }
//! ```
//!
//! Invariant: the memory of a read is touched by nobody else until its job's result is told, and is given back only after that.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::memory::Region;
use crate::pool::panic_message;
use crate::trace;

use super::StreamError;
use super::affinity;
use super::counters::Class;
use super::files::{Files, PAGE};
use super::queue::{Active, Piece, Queue, State, Wake};
use super::threaded_reader::ThreadedReader;

/// How often a read is begun again without any progress before that is an error.
const MOST_RETRIES: u32 = 1000;
/// How long dropping a drive waits for reads that are on. Longer ones end by themselves, and their memory with them.
const GRACE: Duration = Duration::from_millis(500);
/// Linux's numbers of errors that are no failures.
pub(super) const INTERRUPTED: i32 = 4;
pub(super) const AGAIN: i32 = if cfg!(target_os = "linux") { 11 } else { 35 };
pub(super) const INVALID: i32 = 22;
/// What a read that was cancelled ends with.
pub const CANCELED: i32 = if cfg!(target_os = "linux") { 125 } else { 89 };

/// One read for a backend.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// What its completion is known by.
    pub tag: u64,
    /// Which of the files.
    pub file: u32,
    /// From where; a multiple of [`PAGE`] in files that are read past the page cache.
    pub offset: u64,
    /// Where to, and how much.
    pub into: Region,
}

/// A read that ended.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// Which read.
    pub tag: u64,
    /// Bytes read, 0 at the end of the file, or an errno.
    pub result: Result<u32, i32>,
}

/// What carries out reads. One thread makes, uses and drops it. Dropping waits for the reads that are on.
pub trait Backend {
    /// What it is, in words.
    fn describe(&self) -> String;

    /// What makes [`Backend::wait`] return when no read ends.
    fn waker(&self) -> Arc<dyn Wake>;

    /// Begins a read, or takes it to be begun by the next [`Backend::wait`].
    ///
    /// # Safety
    /// The read's memory must be mapped, and touched by nobody else, until its completion was given or the backend dropped.
    unsafe fn start(&mut self, read: Read);

    /// Waits until at least one read ended or somebody woke it, and gives what ended.
    ///
    /// # Errors
    /// When no read can be made any more.
    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Ends reads early as far as that is possible. Each still gets its completion.
    fn cancel(&mut self) {}
}

/// Who is told of jobs that ended. Called by the drive's thread, which holds no lock then.
pub trait Sink: Send + Sync {
    /// These jobs ended: all bytes are there, or why not.
    fn ended(&self, jobs: Vec<(u64, Result<(), StreamError>)>);
}

impl Sink for Mutex<mpsc::Sender<Vec<(u64, Result<(), StreamError>)>>> {
    fn ended(&self, jobs: Vec<(u64, Result<(), StreamError>)>) {
        // Nobody listens any more: nobody waits either.
        let _ = self.lock().unwrap_or_else(PoisonError::into_inner).send(jobs);
    }
}

/// Which backend to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// io_uring where the system lets us, or else threads.
    #[default]
    Auto,
    /// Threads.
    ThreadedReader,
}

/// Reads of predicted blocks at once: at 256 KiB each more keep no drive busier, and a router's choice waits for all of them (on a drive of
/// 400 MB/s, eight made tokens 2 to 4 % slower than four, one to four were alike).
pub const PREDICTED_DEPTH: usize = 4;

/// How to read.
#[derive(Clone, Debug)]
pub struct Options {
    /// Reads outstanding at once, 1 to 1024.
    pub depth: usize,
    /// Reads of predicted blocks are begun only while fewer than this are outstanding: enough to keep the drive busy, and few, since
    /// what is begun cannot be taken back, and a routed block's reads wait for it.
    pub predicted_depth: usize,
    /// Which backend.
    pub backend: Choice,
    /// Whether to pin the whole reservation (at once: it then takes all of its memory), which saves looking pages up.
    pub register: bool,
    /// CPUs that the thread may run on; best near the drive: [`affinity::near_file`].
    pub cpus: Option<Vec<usize>>,
}

impl Default for Options {
    fn default() -> Options {
        Options::of_depth(32)
    }
}

impl Options {
    /// With so many reads at once, and else as usual.
    pub fn of_depth(depth: usize) -> Options {
        Options { depth, predicted_depth: PREDICTED_DEPTH, backend: Choice::Auto, register: true, cpus: None }
    }
}

/// How reading is done here.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The backend in words.
    pub backend: String,
    /// What was refused, and what is done instead.
    pub notes: Vec<String>,
    /// CPUs that the thread is bound to, where it is.
    pub cpus: Option<Vec<usize>>,
}

#[derive(Default)]
struct Finished {
    flag: Mutex<bool>,
    changed: Condvar,
}

/// The thread, until it is dropped.
pub struct Drive {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    finished: Arc<Finished>,
    report: Report,
}

impl Drive {
    /// Starts reading what is submitted to `queue`.
    ///
    /// # Errors
    /// [`StreamError::Closed`] when there is no thread, or no backend at all.
    pub fn start(options: &Options, queue: &Arc<Queue>, sink: Arc<dyn Sink>) -> Result<Drive, StreamError> {
        let (depth, register, choice) = (options.depth.clamp(1, 1024), options.register, options.backend);
        let shared = Arc::clone(queue);
        Drive::start_with(options, queue, sink, move || open(&shared, choice, depth, register))
    }

    /// As [`Drive::start`], with a backend that `make` makes, on the drive's thread: tests plant faults with it.
    ///
    /// # Errors
    /// [`StreamError::Closed`] when there is no thread, or what `make` says.
    pub fn start_with(
        options: &Options,
        queue: &Arc<Queue>,
        sink: Arc<dyn Sink>,
        make: impl FnOnce() -> Result<(Box<dyn Backend>, Vec<String>), String> + Send + 'static,
    ) -> Result<Drive, StreamError> {
        let finished = Arc::new(Finished::default());
        let (told, tell) = {
            let (sender, receiver) = mpsc::channel();
            (receiver, sender)
        };
        let depth = options.depth.clamp(1, 1024);
        let (predicted_depth, cpus) = (options.predicted_depth.clamp(1, depth), options.cpus.clone());
        let (shared, flag) = (Arc::clone(queue), Arc::clone(&finished));
        let body = move || {
            let mut report = Report::default();
            if let Err(error) = affinity::prefer_short_slices() {
                report.notes.push(format!("the reading thread is scheduled like any other: {error}"));
            }
            if let Some(cpus) = cpus {
                match affinity::bind(&cpus) {
                    Ok(()) => report.cpus = Some(cpus),
                    Err(error) => {
                        report.notes.push(format!("the reading thread is not bound to CPUs {cpus:?}: {error}"))
                    }
                }
            }
            let why = match catch_unwind(AssertUnwindSafe(|| {
                let (backend, notes) = make()?;
                report.backend = backend.describe();
                report.notes.extend(notes);
                shared.lock().wake = Some(backend.waker());
                // The one who started this may be gone already.
                let _ = tell.send(Ok(report));
                let mut owner =
                    Owner { queue: &shared, backend, flights: Vec::new(), free: Vec::new(), depth, predicted_depth };
                owner.run(&*sink).map_err(|error| error.to_string())
            })) {
                Ok(Ok(())) => shared.lock().closed.clone().unwrap_or_default(),
                Ok(Err(why)) => why,
                Err(panic) => panic_message(&*panic),
            };
            // The backend is gone, so nothing is read any more, nobody has to be woken, and whoever still waits is told.
            shared.lock().wake = None;
            shared.close(&why);
            let left: Vec<u64> = shared.lock().jobs.drain().map(|(tag, _)| tag).collect();
            sink.ended(left.into_iter().map(|tag| (tag, Err(StreamError::Closed { why: why.clone() }))).collect());
            let _ = tell.send(Err(why));
            *flag.flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
            flag.changed.notify_all();
        };
        let thread = std::thread::Builder::new()
            .name("ixc-drive".into())
            .spawn(body)
            .map_err(|error| StreamError::Closed { why: error.to_string() })?;
        match told.recv() {
            Ok(Ok(report)) => Ok(Drive { queue: Arc::clone(queue), thread: Some(thread), finished, report }),
            Ok(Err(why)) => Err(StreamError::Closed { why }),
            Err(_) => Err(StreamError::Closed { why: "it ended before it began".into() }),
        }
    }

    /// How reading is done, with what the files had to say too.
    pub fn report(&self) -> Report {
        let mut report = self.report.clone();
        report.notes.extend(self.queue.files().notes());
        report
    }
}

impl Drop for Drive {
    /// Ends the thread: at once, or where a read takes long, as soon as that has ended. What was not begun is never read.
    fn drop(&mut self) {
        self.queue.close("the drive is dropped");
        let flag = self.finished.flag.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.finished.changed.wait_timeout_while(flag, GRACE, |finished| !*finished);
        let (flag, _) = wait.unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(thread)) = (*flag, self.thread.take()) {
            drop(flag);
            // It catches its panics.
            let _ = thread.join();
        }
    }
}

/// io_uring where the system lets us, or else threads, with the reason.
#[cfg(target_os = "linux")]
pub(super) fn open(
    queue: &Queue,
    choice: Choice,
    depth: usize,
    register: bool,
) -> Result<(Box<dyn Backend>, Vec<String>), String> {
    let mut notes = Vec::new();
    if choice == Choice::Auto {
        match super::uring::Uring::new(queue.files(), queue.reservation(), depth, register) {
            Ok((uring, notes)) => return Ok((Box::new(uring), notes)),
            Err(why) => notes.push(format!("{why}: threads read instead")),
        }
    }
    threads(queue, depth, notes)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn open(queue: &Queue, _: Choice, depth: usize, _: bool) -> Result<(Box<dyn Backend>, Vec<String>), String> {
    threads(queue, depth, vec!["this system has no io_uring: threads read instead".into()])
}

fn threads(queue: &Queue, depth: usize, notes: Vec<String>) -> Result<(Box<dyn Backend>, Vec<String>), String> {
    let reader = ThreadedReader::new(Arc::clone(queue.files()), depth)
        .map_err(|error| format!("no threads to read: {error}"))?;
    Ok((Box::new(reader), notes))
}

/// A piece that is being read.
#[derive(Clone, Copy)]
struct Flight {
    job: u64,
    /// As what it was begun.
    class: Class,
    piece: Piece,
    /// Bytes of the piece that are there.
    filled: u64,
    /// Where in the piece the read that is on began.
    from: u64,
    /// Whether the file was read past the page cache when it was begun.
    direct: bool,
    retries: u32,
    began: Instant,
}

/// What becomes of a read that ended.
enum Next {
    Again,
    Done,
    Failed(StreamError),
}

struct Owner<'a> {
    queue: &'a Queue,
    // Dropped before what it reads into: `queue` keeps that.
    backend: Box<dyn Backend>,
    flights: Vec<Option<Flight>>,
    /// Empty places in `flights`.
    free: Vec<usize>,
    depth: usize,
    predicted_depth: usize,
}

impl Owner<'_> {
    fn outstanding(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    fn run(&mut self, sink: &dyn Sink) -> io::Result<()> {
        let (mut done, mut cancelled) = (Vec::new(), false);
        loop {
            let (begun, closed) = self.take();
            for index in begun {
                self.begin(index);
            }
            if closed && self.outstanding() == 0 {
                return Ok(());
            }
            if closed && !cancelled {
                self.backend.cancel();
                cancelled = true;
            }
            self.backend.wait(&mut done)?;
            let ended = self.reap(&mut done);
            if !ended.is_empty() {
                sink.ended(ended);
            }
        }
    }

    /// Takes pieces as long as there is room, and says that it sleeps from now on.
    fn take(&mut self) -> (Vec<usize>, bool) {
        let queue = self.queue;
        let mut state = queue.lock();
        let mut begun = Vec::new();
        let now = Instant::now();
        while state.closed.is_none() && self.outstanding() < self.depth {
            let Some((job, class, piece)) = state.take(self.outstanding() < self.predicted_depth) else { break };
            state.counters.begin(class, now);
            let direct = queue.files().is_direct(piece.file);
            let flight = Flight { job, class, piece, filled: 0, from: 0, direct, retries: 0, began: now };
            let index = self.free.pop().unwrap_or(self.flights.len());
            match self.flights.get_mut(index) {
                Some(place) => *place = Some(flight),
                None => self.flights.push(Some(flight)),
            }
            begun.push(index);
        }
        state.sleeping = true;
        (begun, state.closed.is_some())
    }

    fn begin(&mut self, index: usize) {
        let Some(Some(flight)) = self.flights.get_mut(index) else { return };
        flight.direct = self.queue.files().is_direct(flight.piece.file);
        // Past the page cache, reads begin at whole pages: the page that the last one stopped in is read again.
        flight.from = if flight.direct { flight.filled / PAGE * PAGE } else { flight.filled };
        let rest = flight.piece.into.bytes() - flight.from;
        let Some(into) = flight.piece.into.part(flight.from, rest) else { return };
        let read = Read { tag: index as u64, file: flight.piece.file, offset: flight.piece.start + flight.from, into };
        // SAFETY: the region lies in the queue's reservation, which outlives the backend, and whoever submitted the job leaves it
        // alone until the job has ended.
        unsafe { self.backend.start(read) };
    }

    fn reap(&mut self, done: &mut Vec<Completion>) -> Vec<(u64, Result<(), StreamError>)> {
        let queue = self.queue;
        let mut ended = Vec::new();
        for completion in done.drain(..) {
            let Some(place) = usize::try_from(completion.tag).ok().and_then(|index| self.flights.get_mut(index)) else {
                continue;
            };
            let Some(flight) = place else { continue };
            // Asks the system: not under the lock.
            let mut next = judge(flight, completion.result, queue.files());
            let after = *flight;
            let mut state = queue.lock();
            // What was cancelled failed for no other reason.
            if let (Next::Again | Next::Failed(_), Some(why)) = (&next, &state.closed) {
                next = Next::Failed(StreamError::Closed { why: why.clone() });
            }
            if let Next::Again = next {
                state.counters.retries += 1;
                drop(state);
                // `filled` grew; the bytes are counted when the read ends.
                self.begin(completion.tag as usize);
                continue;
            }
            let now = Instant::now();
            state.counters.end(after.class, after.filled, after.began, now);
            if let Some(trace) = queue.trace() {
                trace.read(
                    after.began,
                    now,
                    trace::Read {
                        lane: completion.tag as u32,
                        block: after.job as u32,
                        class: after.class,
                        bytes: after.filled,
                        offset: after.piece.start,
                        whole: matches!(next, Next::Done),
                    },
                );
            }
            *place = None;
            self.free.push(completion.tag as usize);
            end_piece(&mut state, after.job, next, &mut ended);
        }
        ended
    }
}

/// Counts a piece of a job as ended, and the job where it was the last one.
fn end_piece(state: &mut State, tag: u64, next: Next, ended: &mut Vec<(u64, Result<(), StreamError>)>) {
    let Some(job) = state.jobs.get_mut(&tag) else { return };
    job.outstanding -= 1;
    if let Next::Failed(error) = next {
        job.error.get_or_insert(error);
    }
    if job.is_finished() {
        let error = state.jobs.remove(&tag).and_then(|Active { error, .. }| error);
        ended.push((tag, error.map_or(Ok(()), Err)));
    }
}

fn judge(flight: &mut Flight, result: Result<u32, i32>, files: &Files) -> Next {
    let piece = flight.piece;
    let wanted = piece.end - piece.start;
    match result {
        Ok(bytes) => {
            let reached = (flight.from + u64::from(bytes)).min(piece.into.bytes());
            let progress = reached > flight.filled;
            flight.filled = flight.filled.max(reached);
            if flight.filled >= wanted {
                return Next::Done;
            }
            if progress {
                return Next::Again;
            }
            // Nothing new: the file ends here, or this was a very short read.
            let length = files.bytes_now(piece.file);
            flight.retries += 1;
            if length >= piece.end && flight.retries <= MOST_RETRIES {
                return Next::Again;
            }
            Next::Failed(StreamError::Truncated {
                path: files.path(piece.file),
                offset: piece.start + flight.from,
                found: length.min(piece.start + flight.filled),
                expected: piece.end,
            })
        }
        Err(INTERRUPTED | AGAIN) if flight.retries < MOST_RETRIES => {
            flight.retries += 1;
            Next::Again
        }
        Err(INVALID) if flight.direct => {
            files.leave_direct(piece.file, "reads with O_DIRECT are refused (EINVAL)");
            flight.direct = false;
            Next::Again
        }
        Err(errno) => Next::Failed(StreamError::Read {
            path: files.path(piece.file),
            file: piece.file,
            offset: piece.start + flight.from,
            bytes: piece.into.bytes() - flight.from,
            errno,
            why: io::Error::from_raw_os_error(errno).to_string(),
        }),
    }
}
