//! What is to be read, in which order: routed blocks before predicted ones.
//!
//! A [`Job`] is one block. It is cut into reads of at most a given size, so that the drive has many of them at once. A predicted
//! block can be taken back: those of its reads that were not begun never are. One that the router confirms becomes a routed one in place.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::Region;
use crate::trace::Recorder;

use super::counters::{Class, Counters};
use super::files::{Files, PAGE};
use super::reservation::Reservation;
use super::{Extent, StreamError};

/// Who wakes the thread that reads.
pub trait Wake: Send + Sync {
    /// Makes a [`Backend::wait`](super::drive::Backend::wait) that is on, or else the next one, return.
    fn wake(&self);
}

/// One block to be read.
#[derive(Clone, Debug)]
pub struct Job {
    /// What its caller knows it by; no two unfinished jobs may share it.
    pub tag: u64,
    /// Routed or predicted.
    pub class: Class,
    /// What is read, and from where in the reservation on: a multiple of [`PAGE`], with room for [`Extent::span`] bytes. The
    /// extent's first byte lands [`Extent::head`] bytes later.
    pub parts: Vec<(Extent, u64)>,
}

/// One read: whole pages of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub file: u32,
    /// Where it begins in the file, a multiple of [`PAGE`].
    pub start: u64,
    /// Where what is wanted ends: in the last page of the read.
    pub end: u64,
    /// Where it lands: whole pages.
    pub into: Region,
}

/// The result of taking a job back; `saved` bytes are not read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenBack {
    /// Nothing: it is no predicted one, or all of its reads were begun.
    No,
    /// It ends when the reads that are on have ended.
    Ending {
        /// Bytes.
        saved: u64,
    },
    /// It is no more, and nobody is told of its end.
    Gone {
        /// Bytes.
        saved: u64,
    },
}

pub(super) struct Active {
    pub class: Class,
    pub pieces: Vec<Piece>,
    /// The first of `pieces` that is not begun.
    pub next: usize,
    /// Pieces begun and not ended.
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
    /// Tags; those of jobs that are gone, or changed class, are skipped.
    routed: VecDeque<u64>,
    predicted: VecDeque<u64>,
    pub counters: Counters,
    /// Why no more jobs are taken.
    pub closed: Option<String>,
    /// The reading thread takes nothing until it is woken or a read ends.
    pub sleeping: bool,
    pub wake: Option<Arc<dyn Wake>>,
}

impl State {
    /// Begins the next piece: a routed one before a predicted one, which is taken only where that `may` be.
    pub fn take(&mut self, may_predict: bool) -> Option<(u64, Class, Piece)> {
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
                    Some(piece) => return Some((tag, class, piece)),
                    None => queue.pop_front(),
                };
            }
        }
        None
    }
}

/// The two queues of a drive: anybody adds, one thread takes.
pub struct Queue {
    state: Mutex<State>,
    files: Arc<Files>,
    reservation: Arc<Reservation>,
    chunk: u64,
    trace: Option<Arc<Recorder>>,
}

impl Queue {
    /// For reads of at most `chunk` bytes (a multiple of [`PAGE`] is made of it) into `reservation`.
    pub fn new(files: Arc<Files>, reservation: Arc<Reservation>, chunk: u64) -> Queue {
        let chunk = chunk.clamp(PAGE, 1 << 30) / PAGE * PAGE;
        Queue { state: Mutex::new(State::default()), files, reservation, chunk, trace: None }
    }

    /// Tells a recorder what is read.
    pub fn traced(self, trace: Option<Arc<Recorder>>) -> Queue {
        Queue { trace, ..self }
    }

    /// Who is told what is read.
    pub fn trace(&self) -> Option<&Recorder> {
        self.trace.as_deref()
    }

    /// The files that are read.
    pub fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Where all of it lands.
    pub fn reservation(&self) -> &Arc<Reservation> {
        &self.reservation
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // What panics in between leaves the tables whole: each change is one statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds jobs, all at once, behind those of their class.
    ///
    /// # Errors
    /// [`StreamError::Closed`] when the thread ended; [`StreamError::Memory`] where a job lands outside the reservation. Then
    /// none of them is added.
    pub fn submit(&self, jobs: Vec<Job>) -> Result<(), StreamError> {
        let cut = |job: &Job| job.parts.iter().map(|(extent, at)| self.cut(extent, *at)).collect::<Result<Vec<_>, _>>();
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

    /// Makes a predicted job a routed one: what is left of it goes behind the routed ones that are there.
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

    /// Takes a predicted job back: reads of it that were not begun never are. Those that are on go to their end, and then the job
    /// ends with [`StreamError::TakenBack`], unless nothing was left to be begun. With `whole`, only if no read of it was begun.
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

    /// What was read so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters.snapshot()
    }

    /// Takes no more jobs, and has the thread end as soon as no read is outstanding.
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

    /// Reads of at most a chunk each for one extent.
    fn cut(&self, extent: &Extent, at: u64) -> Result<Vec<Piece>, StreamError> {
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
            pieces.push(Piece { file: extent.file, start, end: end.min(start + bytes), into });
            done += bytes;
        }
        Ok(pieces)
    }
}
