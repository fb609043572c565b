//! The queue of the drive's reads, in which routed blocks come before predicted ones.
//!
//! A [`ReadJob`] reads one block. The queue divides it into reads of limited size (pieces), so that
//! the drive has many reads at once. A predicted job can be cancelled: its reads that have not
//! started are dropped. If the router chooses the block of a predicted job, the job becomes a
//! routed job and keeps its progress.

use std::collections::{HashMap, VecDeque};

use crate::storage::memory::Region;
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use crate::trace::Recorder;

use super::counters::{Class, Counters};
use super::files::{Files, PAGE};
use super::reservation::Reservation;
use super::{Extent, StreamError};

/// A handle that wakes the drive's reading thread.
pub trait Wake: Send + Sync {
    /// Ends the current call of [`Backend::wait`](super::backend::Backend::wait). If the thread is
    /// not waiting, its next call returns at once.
    fn wake(&self);
}

/// A request to read one block.
#[derive(Clone, Debug)]
pub struct ReadJob {
    /// Tag that identifies the job for the caller. Two unfinished jobs must not have the same tag.
    pub tag: u64,
    /// Class of the read: routed or predicted.
    pub class: Class,
    /// Extents to read, each with an offset in the reservation. The offset is a multiple of
    /// [`PAGE`], and [`Extent::span`] bytes must fit there. The extent's first byte is read to
    /// [`Extent::head`] bytes after the offset.
    pub parts: Vec<(Extent, u64)>,
}

/// A piece of a job: a single read of whole pages of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPiece {
    pub file: u32,
    /// Offset in the file at which the read begins; a multiple of [`PAGE`].
    pub start: u64,
    /// Offset in the file at which the needed bytes end. The read continues to the end of the page.
    pub end: u64,
    /// Memory into which the whole pages are read.
    pub into: Region,
}

/// Result of cancelling a job. `saved` is the number of bytes that will not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenBack {
    /// The job was not cancelled, because it is not a predicted job or all of its reads have
    /// started.
    No,
    /// The job was cancelled, and ends when its outstanding reads have ended.
    Ending {
        /// Number of bytes that will not be read.
        saved: u64,
    },
    /// The job was cancelled and removed. The sink gets no report of it.
    Gone {
        /// Number of bytes that will not be read.
        saved: u64,
    },
}

pub(super) struct Active {
    pub class: Class,
    pub pieces: Vec<ReadPiece>,
    /// Index in `pieces` of the first piece whose read has not started.
    pub next: usize,
    /// Number of pieces whose reads have started and not ended.
    pub outstanding: usize,
    pub error: Option<StreamError>,
}

impl Active {
    pub fn is_finished(&self) -> bool {
        self.outstanding == 0 && (self.next == self.pieces.len() || self.error.is_some())
    }
}

#[derive(Default)]
pub(super) struct State {
    pub jobs: HashMap<u64, Active>,
    /// Tags of queued routed jobs, in order. A tag is skipped if its job was removed or has another
    /// class now.
    routed: VecDeque<u64>,
    predicted: VecDeque<u64>,
    pub counters: Counters,
    /// Reason why the queue accepts no more jobs; `None` while it is open.
    pub closed: Option<String>,
    /// Whether the reading thread waits, and takes no piece until it is woken or a read ends.
    pub sleeping: bool,
    pub wake: Option<Arc<dyn Wake>>,
}

/// A piece whose read the caller must start.
pub(super) struct StartedPiece {
    /// Tag of the job that the piece belongs to.
    pub job: u64,
    /// Class of the job now.
    pub class: Class,
    pub piece: ReadPiece,
}

impl State {
    /// Takes the next piece: one of a routed job if there is any, otherwise one of a predicted job
    /// if `may_predict` is true.
    pub fn take(&mut self, may_predict: bool) -> Option<StartedPiece> {
        for class in [Class::Routed, Class::Predicted] {
            if class == Class::Predicted && !may_predict {
                return None;
            }
            let queue = match class {
                Class::Routed => &mut self.routed,
                Class::Predicted => &mut self.predicted,
            };
            while let Some(&tag) = queue.front() {
                let piece =
                    self.jobs.get_mut(&tag).filter(|job| job.class == class && job.error.is_none()).and_then(|job| {
                        let piece = *job.pieces.get(job.next)?;
                        job.next += 1;
                        job.outstanding += 1;
                        Some(piece)
                    });
                match piece {
                    Some(piece) => return Some(StartedPiece { job: tag, class, piece }),
                    None => queue.pop_front(),
                };
            }
        }
        None
    }
}

/// The queues of a drive for routed and for predicted jobs. Any thread can add jobs, and the
/// reading thread takes their pieces.
pub struct Queue {
    state: Mutex<State>,
    files: Arc<Files>,
    reservation: Arc<Reservation>,
    chunk: u64,
    trace: Option<Arc<Recorder>>,
}

impl Queue {
    /// Creates a queue for reads into `reservation`. A read has at most `chunk` bytes, rounded down
    /// to a multiple of [`PAGE`].
    pub fn new(files: Arc<Files>, reservation: Arc<Reservation>, chunk: u64) -> Queue {
        let chunk = chunk.clamp(PAGE, 1 << 30) / PAGE * PAGE;
        Queue { state: Mutex::new(State::default()), files, reservation, chunk, trace: None }
    }

    /// Returns the queue with a recorder, which records all reads.
    pub fn with_trace(self, trace: Option<Arc<Recorder>>) -> Queue {
        Queue { trace, ..self }
    }

    /// Returns the recorder of reads, if there is one.
    pub fn trace(&self) -> Option<&Recorder> {
        self.trace.as_deref()
    }

    /// Returns the files that jobs read from.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Returns the memory into which all jobs read.
    pub fn reservation(&self) -> &Arc<Reservation> {
        &self.reservation
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic, the tables are still consistent, because each change is a single
        // statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds jobs to the ends of the queues of their classes, all jobs at once.
    ///
    /// # Errors
    /// [`StreamError::Closed`] if the reading thread has ended; [`StreamError::Memory`] if a job
    /// reads outside the reservation. After an error, no job was added.
    pub fn submit(&self, jobs: Vec<ReadJob>) -> Result<(), StreamError> {
        let cut =
            |job: &ReadJob| job.parts.iter().map(|(extent, at)| self.cut(extent, *at)).collect::<Result<Vec<_>, _>>();
        let pieces = jobs.iter().map(cut).collect::<Result<Vec<_>, _>>()?;
        let mut state = self.lock();
        if let Some(why) = &state.closed {
            return Err(StreamError::Closed { why: why.clone() });
        }
        for (job, pieces) in jobs.into_iter().zip(pieces) {
            match job.class {
                Class::Routed => state.routed.push_back(job.tag),
                Class::Predicted => state.predicted.push_back(job.tag),
            }
            let pieces = pieces.concat();
            state.jobs.insert(job.tag, Active { class: job.class, pieces, next: 0, outstanding: 0, error: None });
        }
        self.wake(state);
        Ok(())
    }

    /// Converts a predicted job to a routed job. Its remaining reads come after the reads of
    /// earlier routed jobs.
    pub fn upgrade(&self, tag: u64) {
        let mut state = self.lock();
        if let Some(job) = state.jobs.get_mut(&tag).filter(|job| job.class == Class::Predicted) {
            job.class = Class::Routed;
            if job.next < job.pieces.len() {
                state.routed.push_back(tag);
                self.wake(state);
            }
        }
    }

    /// Cancels a predicted job, so that its remaining reads never start. If reads are outstanding,
    /// the job ends with [`StreamError::TakenBack`] after them; otherwise the job is removed. With
    /// `whole`, the job is cancelled only if none of its reads has started.
    pub fn take_back(&self, tag: u64, whole: bool) -> TakenBack {
        let mut state = self.lock();
        let unbegun = |job: &&mut Active| {
            let left = if whole { job.next == 0 } else { job.next < job.pieces.len() };
            job.class == Class::Predicted && left && job.error.is_none()
        };
        let Some(job) = state.jobs.get_mut(&tag).filter(unbegun) else { return TakenBack::No };
        let saved = job.pieces[job.next..].iter().map(|piece| piece.into.bytes()).sum();
        job.error = Some(StreamError::TakenBack);
        if job.outstanding > 0 {
            return TakenBack::Ending { saved };
        }
        state.jobs.remove(&tag);
        TakenBack::Gone { saved }
    }

    /// Returns the counters since the queue was created.
    pub fn counters(&self) -> Counters {
        self.lock().counters.snapshot()
    }

    /// Closes the queue: no more jobs are accepted. The reading thread ends as soon as no read is
    /// outstanding.
    pub(super) fn close(&self, why: &str) {
        let mut state = self.lock();
        state.closed.get_or_insert_with(|| why.to_string());
        state.sleeping = true;
        self.wake(state);
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let wake = if std::mem::take(&mut state.sleeping) { state.wake.clone() } else { None };
        drop(state);
        if let Some(wake) = wake {
            wake.wake();
        }
    }

    /// Divides an extent into reads of at most `self.chunk` bytes each.
    fn cut(&self, extent: &Extent, at: u64) -> Result<Vec<ReadPiece>, StreamError> {
        let outside = || StreamError::Memory {
            why: format!("a read of {} bytes to {at} is outside the reservation", extent.bytes),
        };
        let span = extent.span();
        let room = self.reservation.region().part(at, span).filter(|_| at.is_multiple_of(PAGE)).ok_or_else(outside)?;
        let (first, end) = (extent.offset - extent.head(), extent.offset.saturating_add(extent.bytes));
        let mut pieces = Vec::with_capacity(usize::try_from(span.div_ceil(self.chunk)).unwrap_or(0));
        let mut done = 0;
        while done < span {
            let bytes = self.chunk.min(span - done);
            let into = room.part(done, bytes).ok_or_else(outside)?;
            let start = first + done;
            pieces.push(ReadPiece { file: extent.file, start, end: end.min(start + bytes), into });
            done += bytes;
        }
        Ok(pieces)
    }
}
