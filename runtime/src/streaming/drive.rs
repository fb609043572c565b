//! The drive's reading thread. Only this thread uses io_uring, or the pool of threads that replaces
//! io_uring.
//!
//! The thread takes reads from a [`Queue`] while fewer reads than the limit are outstanding. It
//! continues short reads and restarts interrupted ones. It reports each block that has arrived or
//! failed to a [`Sink`]. If a read fails, only its own block fails.
//!
//! ```
//! use ixc_runtime::streaming::queue::{Queue, ReadJob};
//! use ixc_runtime::streaming::{Extent, counters::Class, drive, files::Files};
//! use ixc_runtime::streaming::reservation::Reservation;
//! use std::sync::{Arc, Mutex, mpsc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("ixc-drive-example-{}", std::process::id()));
//! std::fs::write(&path, vec![7; 10_000])?;
//! let files = Arc::new(Files::open(&[path.clone()], true)?);
//! let queue = Arc::new(Queue::new(files, Arc::new(Reservation::new(1 << 20)?), 4096));
//! let (sender, receiver) = mpsc::channel();
//! let options = drive::DriveOptions::default();
//! let drive = drive::Drive::start(&options, &queue, Arc::new(Mutex::new(sender)))?;
//! // Bytes 5000..9000 are in pages 1 and 2. In memory, they begin 5000 - 4096 bytes after the
//! // start of these pages.
//! let extent = Extent { file: 0, offset: 5000, bytes: 4000, at: 0 };
//! queue.submit(vec![ReadJob { tag: 42, class: Class::Routed, parts: vec![(extent, 0)] }])?;
//! assert_eq!(receiver.recv()?, vec![drive::EndedJob { tag: 42, result: Ok(()) }]);
//! println!("{}: {:.0} bytes per second", drive.report().backend, queue.counters().rate());
//! # std::fs::remove_file(&path)?;
//! # Ok(()) }
//! ```
//!
//! Invariant: the submitter of a job accesses the job's memory only after its result was reported,
//! and frees it only then.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::pool::panic_message;
use crate::sync::thread::{Builder, JoinHandle};
use crate::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use crate::trace;

use super::StreamError;
use super::affinity;
use super::backend::{AGAIN, Backend, Completion, INTERRUPTED, INVALID, Read};
use super::counters::Class;
use super::files::{Files, PAGE};
use super::queue::{Active, Queue, ReadPiece, StartedPiece, State};
use super::threaded_reader::ThreadedReader;

/// Maximum number of times that a read is restarted without progress. Then the read fails.
const MAX_RETRIES: u32 = 1000;
/// Maximum time that dropping a drive waits for outstanding reads. Longer reads finish later, and
/// their memory is freed then.
const GRACE: Duration = Duration::from_millis(500);

/// A job that has ended: all its bytes have arrived, or it has failed.
#[derive(Debug, PartialEq, Eq)]
pub struct EndedJob {
    /// Tag of the job.
    pub tag: u64,
    /// Result of the job's reads.
    pub result: Result<(), StreamError>,
}

/// A receiver of ended jobs. The drive's thread calls it without holding a lock.
pub trait Sink: Send + Sync {
    /// Handles jobs that ended.
    fn handle_ended(&self, jobs: Vec<EndedJob>);
}

impl Sink for Mutex<mpsc::Sender<Vec<EndedJob>>> {
    fn handle_ended(&self, jobs: Vec<EndedJob>) {
        // If the channel has no receiver, no thread waits for the result.
        let _ = self.lock().unwrap_or_else(PoisonError::into_inner).send(jobs);
    }
}

/// Choice of the backend that reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// io_uring if the system allows it, otherwise threads.
    #[default]
    Auto,
    /// Threads that read, even if io_uring is available.
    ThreadedReader,
}

/// Number of outstanding reads below which a read of a predicted block may start. More reads of 256
/// KiB keep no drive busier, and a routed block would wait for all of them. On a drive with
/// 400 MB/s, one to four reads gave the same speed. Eight reads made tokens 2 to 4 % slower than
/// four.
pub const PREDICTED_DEPTH: usize = 4;

/// Options of a drive.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    /// Maximum number of outstanding reads, 1 to 1024.
    pub depth: usize,
    /// Number of outstanding reads below which reads of predicted blocks may start. A read that has
    /// started cannot be cancelled, and reads of routed blocks wait for it. So the number is just
    /// high enough to keep the drive busy.
    pub predicted_depth: usize,
    /// Choice of the backend.
    pub backend: BackendChoice,
    /// Whether io_uring pins the whole memory for reads, which saves page lookups. Pinning
    /// allocates all of this memory at once.
    pub register: bool,
    /// CPUs on which the reading thread may run, preferably near the drive:
    /// [`affinity::processors_near_file`].
    pub cpus: Option<Vec<usize>>,
}

impl Default for DriveOptions {
    fn default() -> DriveOptions {
        DriveOptions::of_depth(32)
    }
}

impl DriveOptions {
    /// Returns the default options with a maximum of `depth` outstanding reads.
    pub fn of_depth(depth: usize) -> DriveOptions {
        DriveOptions {
            depth,
            predicted_depth: PREDICTED_DEPTH,
            backend: BackendChoice::Auto,
            register: true,
            cpus: None,
        }
    }
}

/// Description of a drive: its backend, features that the system refused, and CPUs.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Description of the backend.
    pub backend: String,
    /// Features that the system refused, and what is used instead.
    pub notes: Vec<String>,
    /// CPUs to which the reading thread is bound, if it is bound.
    pub cpus: Option<Vec<usize>>,
}

#[derive(Default)]
struct EndFlag {
    flag: Mutex<bool>,
    changed: Condvar,
}

/// A running reading thread. It ends when this value is dropped.
pub struct Drive {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    finished: Arc<EndFlag>,
    report: Report,
}

impl Drive {
    /// Starts a thread that reads the jobs submitted to `queue`.
    ///
    /// # Errors
    /// [`StreamError::Closed`] if no thread can be started, or if no backend works.
    pub fn start(options: &DriveOptions, queue: &Arc<Queue>, sink: Arc<dyn Sink>) -> Result<Drive, StreamError> {
        let (depth, register, choice) = (options.depth.clamp(1, 1024), options.register, options.backend);
        let shared = Arc::clone(queue);
        Drive::start_with(options, queue, sink, move || open(&shared, choice, depth, register))
    }

    /// Starts a thread like [`Drive::start`], with a backend that `make` creates on that thread.
    /// Tests use this to inject faults.
    ///
    /// # Errors
    /// [`StreamError::Closed`] if no thread can be started, or the error of `make`.
    pub fn start_with(
        options: &DriveOptions,
        queue: &Arc<Queue>,
        sink: Arc<dyn Sink>,
        make: impl FnOnce() -> Result<(Box<dyn Backend>, Vec<String>), String> + Send + 'static,
    ) -> Result<Drive, StreamError> {
        let finished = Arc::new(EndFlag::default());
        let (reported, tell) = {
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
                // Sending fails only if the caller no longer waits for the report.
                let _ = tell.send(Ok(report));
                let mut owner =
                    Owner { queue: &shared, backend, flights: Vec::new(), free: Vec::new(), depth, predicted_depth };
                owner.run(&*sink).map_err(|error| error.to_string())
            })) {
                Ok(Ok(())) => shared.lock().closed.clone().unwrap_or_default(),
                Ok(Err(why)) => why,
                Err(panic) => panic_message(&*panic),
            };
            // The backend was dropped, so nothing is read any more and no thread needs a wake-up.
            // All remaining jobs fail with the reason.
            shared.lock().wake = None;
            shared.close(&why);
            let left: Vec<u64> = shared.lock().jobs.drain().map(|(tag, _)| tag).collect();
            sink.handle_ended(
                left.into_iter()
                    .map(|tag| EndedJob { tag, result: Err(StreamError::Closed { why: why.clone() }) })
                    .collect(),
            );
            let _ = tell.send(Err(why));
            *flag.flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
            flag.changed.notify_all();
        };
        let thread = Builder::new()
            .name("ixc-drive".into())
            .spawn(body)
            .map_err(|error| StreamError::Closed { why: error.to_string() })?;
        match reported.recv() {
            Ok(Ok(report)) => Ok(Drive { queue: Arc::clone(queue), thread: Some(thread), finished, report }),
            Ok(Err(why)) => Err(StreamError::Closed { why }),
            Err(_) => Err(StreamError::Closed { why: "the reading thread ended before it began to read".into() }),
        }
    }

    /// Returns a description of the drive, including the notes about its files.
    pub fn report(&self) -> Report {
        let mut report = self.report.clone();
        report.notes.extend(self.queue.files().notes());
        report
    }
}

impl Drop for Drive {
    /// Ends the reading thread, at once or after a long read. Jobs that have not started are never
    /// read.
    fn drop(&mut self) {
        self.queue.close("the drive is dropped");
        let flag = self.finished.flag.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.finished.changed.wait_timeout_while(flag, GRACE, |finished| !*finished);
        let (flag, _) = wait.unwrap_or_else(PoisonError::into_inner);
        if let (true, Some(thread)) = (*flag, self.thread.take()) {
            drop(flag);
            // The result is ignored, because the thread catches its own panics.
            let _ = thread.join();
        }
    }
}

/// Opens io_uring if the system allows it. Otherwise starts reading threads, and notes the reason.
#[cfg(target_os = "linux")]
pub(super) fn open(
    queue: &Queue,
    choice: BackendChoice,
    depth: usize,
    register: bool,
) -> Result<(Box<dyn Backend>, Vec<String>), String> {
    let mut notes = Vec::new();
    if choice == BackendChoice::Auto {
        match super::uring::Uring::new(queue.files(), queue.reservation(), depth, register) {
            Ok((uring, notes)) => return Ok((Box::new(uring), notes)),
            Err(why) => notes.push(format!("{why}: threads read instead")),
        }
    }
    threads(queue, depth, notes)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn open(
    queue: &Queue,
    _: BackendChoice,
    depth: usize,
    _: bool,
) -> Result<(Box<dyn Backend>, Vec<String>), String> {
    threads(queue, depth, vec!["this system has no io_uring: threads read instead".into()])
}

fn threads(queue: &Queue, depth: usize, notes: Vec<String>) -> Result<(Box<dyn Backend>, Vec<String>), String> {
    let reader = ThreadedReader::new(Arc::clone(queue.files()), depth)
        .map_err(|error| format!("no threads to read: {error}"))?;
    Ok((Box::new(reader), notes))
}

/// A piece of a job that is being read.
#[derive(Clone, Copy)]
struct Flight {
    job: u64,
    /// Class of the job when the read started.
    class: Class,
    piece: ReadPiece,
    /// Bytes of the piece that have arrived.
    filled: u64,
    /// Offset in the piece at which the outstanding read begins.
    from: u64,
    /// Whether the read bypasses the page cache.
    direct: bool,
    retries: u32,
    began: Instant,
}

/// Action after a backend's read has ended.
enum AfterRead {
    Again,
    Done,
    Failed(StreamError),
}

struct Owner<'a> {
    queue: &'a Queue,
    // The backend is declared first, so that it is dropped before the memory that it reads into,
    // which `queue` keeps alive.
    backend: Box<dyn Backend>,
    flights: Vec<Option<Flight>>,
    /// Indices of free entries in `flights`.
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
                sink.handle_ended(ended);
            }
        }
    }

    /// Takes pieces from the queue while fewer reads than the limit are outstanding. Then marks the
    /// thread as sleeping.
    fn take(&mut self) -> (Vec<usize>, bool) {
        let queue = self.queue;
        let mut state = queue.lock();
        let mut begun = Vec::new();
        let now = Instant::now();
        while state.closed.is_none() && self.outstanding() < self.depth {
            let may_predict = self.outstanding() < self.predicted_depth;
            let Some(StartedPiece { job, class, piece }) = state.take(may_predict) else { break };
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
        // Reads that bypass the page cache begin at whole pages. So the page in which the last read
        // stopped is read again.
        flight.from = if flight.direct { flight.filled / PAGE * PAGE } else { flight.filled };
        let rest = flight.piece.into.bytes() - flight.from;
        let Some(into) = flight.piece.into.part(flight.from, rest) else { return };
        let read = Read { tag: index as u64, file: flight.piece.file, offset: flight.piece.start + flight.from, into };
        // SAFETY: the region is in the queue's reservation, which outlives the backend. The
        // submitter of the job does not access the region until the job has ended.
        unsafe { self.backend.start(read) };
    }

    fn reap(&mut self, done: &mut Vec<Completion>) -> Vec<EndedJob> {
        let queue = self.queue;
        let mut ended = Vec::new();
        for completion in done.drain(..) {
            let Some(place) = usize::try_from(completion.tag).ok().and_then(|index| self.flights.get_mut(index)) else {
                continue;
            };
            let Some(flight) = place else { continue };
            // `judge` makes system calls, so it runs without the lock.
            let mut next = judge(flight, completion.result, queue.files());
            let after = *flight;
            let mut state = queue.lock();
            // If a read fails after the queue was closed, it was cancelled, so closing is the
            // reason.
            if let (AfterRead::Again | AfterRead::Failed(_), Some(why)) = (&next, &state.closed) {
                next = AfterRead::Failed(StreamError::Closed { why: why.clone() });
            }
            if let AfterRead::Again = next {
                state.counters.retries += 1;
                drop(state);
                // The piece is read on from `filled`. Its bytes are counted when it is complete or
                // has failed.
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
                        whole: matches!(next, AfterRead::Done),
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

/// Records that a piece of a job has ended. If no other piece of the job is left, ends the job.
fn end_piece(state: &mut State, tag: u64, next: AfterRead, ended: &mut Vec<EndedJob>) {
    let Some(job) = state.jobs.get_mut(&tag) else { return };
    job.outstanding -= 1;
    if let AfterRead::Failed(error) = next {
        job.error.get_or_insert(error);
    }
    if job.is_finished() {
        let error = state.jobs.remove(&tag).and_then(|Active { error, .. }| error);
        ended.push(EndedJob { tag, result: error.map_or(Ok(()), Err) });
    }
}

fn judge(flight: &mut Flight, result: Result<u32, i32>, files: &Files) -> AfterRead {
    let piece = flight.piece;
    let wanted = piece.end - piece.start;
    match result {
        Ok(bytes) => {
            let reached = (flight.from + u64::from(bytes)).min(piece.into.bytes());
            let progress = reached > flight.filled;
            flight.filled = flight.filled.max(reached);
            if flight.filled >= wanted {
                return AfterRead::Done;
            }
            if progress {
                return AfterRead::Again;
            }
            // The read made no progress: the file ends here, or the read was very short.
            let length = files.bytes_now(piece.file);
            flight.retries += 1;
            if length >= piece.end && flight.retries <= MAX_RETRIES {
                return AfterRead::Again;
            }
            AfterRead::Failed(StreamError::Truncated {
                path: files.path(piece.file),
                offset: piece.start + flight.from,
                found: length.min(piece.start + flight.filled),
                expected: piece.end,
            })
        }
        Err(INTERRUPTED | AGAIN) if flight.retries < MAX_RETRIES => {
            flight.retries += 1;
            AfterRead::Again
        }
        Err(INVALID) if flight.direct => {
            files.leave_direct(piece.file, "reads with O_DIRECT are refused (EINVAL)");
            flight.direct = false;
            AfterRead::Again
        }
        Err(errno) => AfterRead::Failed(StreamError::Read {
            path: files.path(piece.file),
            file: piece.file,
            offset: piece.start + flight.from,
            bytes: piece.into.bytes() - flight.from,
            errno,
            why: io::Error::from_raw_os_error(errno).to_string(),
        }),
    }
}
