//! Recording of events for a timeline: work of each thread, reads of the drive, contents of slots,
//! and steps.
//!
//! A [`Recorder`] is made before a plan is loaded
//! ([`EngineOptions::trace`](crate::engine::EngineOptions::trace)) and records events while steps
//! run. It is written as a trace that Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing`
//! can open.
//!
//! ```no_run
//! use std::sync::Arc;
//! use ixc_runtime::{engine::{Engine, EngineOptions}, file, trace::Recorder};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::path::Path::new("model.ixp");
//! let recorder = Arc::new(Recorder::new());
//! let options = EngineOptions { trace: Some(Arc::clone(&recorder)), ..EngineOptions::default() };
//! let mut engine = Engine::load(file::read(path)?, path.parent().unwrap_or(path), &options)?;
//! engine.prefill(&[1, 2, 3])?;
//! let dropped = recorder.save(std::path::Path::new("out.json"))?;
//! # let _ = dropped; Ok(()) }
//! ```
//!
//! Each source of events has a buffer for a fixed number of them. [`Recorder::bytes`] returns the
//! total size of the buffers. A full buffer only counts further events, so the trace is complete up
//! to the time when the buffer became full. Each thread writes to its own buffer, and no other
//! thread locks that buffer before the end.
//!
//! Invariant: two events of a lane are nested or disjoint; they never overlap partially. Invariant:
//! without a recorder, no clock is read for the trace.

mod write;

use std::cell::Cell;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use ixc_files::{Guard, Kind, Output, OutputError};

use crate::reads::{BlockId, Class};

/// File kind of traces. A trace is never written to a pipe or a device, because standard output is
/// reserved for the run's text.
pub const KIND: Kind = Kind { name: "trace", is: write::is_trace, streams: false, private: false };

/// Max number of events of all threads together.
const MAX_THREAD_EVENTS: usize = 1 << 20;
/// Min and max number of events of one thread.
const EVENTS_PER_THREAD: (usize, usize) = (1 << 12, 1 << 18);
/// Max number of reads of the drive.
const MAX_READS: usize = 1 << 18;
/// Max number of events of slots.
const MAX_SLOT_EVENTS: usize = 1 << 18;
/// Max number of steps.
const MAX_STEPS: usize = 1 << 16;
/// Max number of events before the first step: compiling, and parts of loading.
const MAX_PHASES: usize = 1 << 6;
/// Max gap, in nanoseconds, between two shares of a task that are recorded as one event.
const CLOSE: u64 = 2_000;

thread_local! {
    /// Number of this thread in the pool.
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

/// Kinds of work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Processing of items of a task. `task` is the task's number in the whole plan. Also recorded
    /// are the task's kernel, the rows, and the bytes that the items may read.
    Task { task: u32, kernel: u32, expert: Option<u32>, items: u64, rows: u64, bytes: u64 },
    /// Waiting for an expert.
    Wait(BlockId),
    /// Packing of an expert after its read.
    Pack(BlockId),
    /// Packing of weights that are not streamed.
    PackWeights,
    /// Waiting for the other threads. For the thread that arrives last, this is the serial work at
    /// the barrier.
    Barrier,
    /// Sorting of a routing.
    Sort,
    /// Request for experts of a group.
    Request(u32),
    /// Prediction of the experts that a group uses next.
    Predict(u32),
    /// Release of a group's experts.
    Release(u32),
    /// Exchanging rows with other ranks.
    Exchange,
    /// Start of the next round of experts. These arrived late, or had no slot before.
    Next,
}

/// An event with its start and its end, in nanoseconds since the recorder was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span<T> {
    start: u64,
    end: u64,
    what: T,
}

/// A read of the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    /// Index of the read among the outstanding reads.
    pub lane: u32,
    /// Number of the block.
    pub block: u32,
    /// Class of the read when it started.
    pub class: Class,
    /// Number of bytes that arrived.
    pub bytes: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Whether all bytes arrived.
    pub whole: bool,
}

/// Stages of a block in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The block is being read from the drive.
    Loading,
    /// The block has arrived in staging memory.
    Arrived,
    /// A thread is packing the block into the layout that kernels read.
    Packing,
    /// Kernels can read the block.
    Resident,
}

/// Contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotContents {
    /// Number of the block.
    pub block: u32,
    /// Stage of the block.
    pub stage: Stage,
    /// Whether the block has not been requested yet.
    pub shadow: bool,
}

/// An event of a slot: the whole stay of a block, or one stage of the stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Whole { slot: u32, block: u32 },
    Part { slot: u32, contents: SlotContents },
}

/// Properties of a traced step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Number of tokens.
    pub tokens: u32,
    /// Position of the first token.
    pub position: u32,
    /// Whether the step failed.
    pub failed: bool,
}

/// A list of events with a maximum length.
#[derive(Debug)]
struct Buffer<T> {
    spans: Vec<Span<T>>,
    max: usize,
    dropped: u64,
}

impl<T> Buffer<T> {
    fn new(max: usize) -> Buffer<T> {
        // Unused capacity needs no memory, because its pages are never written.
        Buffer { spans: Vec::with_capacity(max), max, dropped: 0 }
    }

    /// Reduces the maximum length.
    fn shrink(&mut self, max: usize) {
        self.max = self.max.min(max);
    }

    fn bytes(max: usize) -> u64 {
        (max * size_of::<Span<T>>()) as u64
    }

    fn push(&mut self, span: Span<T>) {
        if self.spans.len() < self.max {
            self.spans.push(span);
        } else {
            self.dropped += 1;
        }
    }
}

/// A thread's events. Because of the alignment, lanes of two threads share no cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Lane(Mutex<Buffer<Work>>);

/// Events of the pool's threads, with names for the plan's tasks and kernels.
#[derive(Debug)]
struct Threads {
    lanes: Vec<Lane>,
    /// Label of each task.
    labels: Vec<String>,
    /// Name of each kernel.
    kernels: Vec<String>,
}

/// Descriptions of the blocks and slots of the expert cache.
#[derive(Debug)]
struct Blocks {
    /// Ids of the blocks, indexed by number.
    ids: Vec<BlockId>,
    /// Bytes of each slot.
    slots: Vec<u64>,
}

/// A block that is in a slot now, with the start of its stay and of its current stage.
#[derive(Clone, Copy, Debug)]
struct SlotStay {
    since: u64,
    stage_since: u64,
    contents: SlotContents,
}

#[derive(Debug)]
struct Slots {
    open: Vec<Option<SlotStay>>,
    events: Buffer<Slot>,
}

/// Recorder of a run's events.
#[derive(Debug)]
pub struct Recorder {
    begun: Instant,
    /// Max number of events of a thread, if it differs from [`events_of_a_thread`].
    thread_events: OnceLock<usize>,
    threads: OnceLock<Threads>,
    blocks: OnceLock<Blocks>,
    reads: Mutex<Buffer<Read>>,
    slots: Mutex<Slots>,
    steps: Mutex<Buffer<Step>>,
    /// Events before the first step.
    phases: Mutex<Buffer<&'static str>>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder::new()
    }
}

impl Recorder {
    /// Makes a recorder. Its times count from now on.
    pub fn new() -> Recorder {
        Recorder {
            begun: Instant::now(),
            thread_events: OnceLock::new(),
            threads: OnceLock::new(),
            blocks: OnceLock::new(),
            reads: Mutex::new(Buffer::new(MAX_READS)),
            slots: Mutex::new(Slots { open: Vec::new(), events: Buffer::new(MAX_SLOT_EVENTS) }),
            steps: Mutex::new(Buffer::new(MAX_STEPS)),
            phases: Mutex::new(Buffer::new(MAX_PHASES)),
        }
    }

    /// Returns how much memory a recorder for `threads` threads needs at most, in bytes.
    pub fn bytes(threads: usize) -> u64 {
        let threads = threads.max(1);
        let lanes = Buffer::<Work>::bytes(events_of_a_thread(threads)).saturating_mul(threads as u64);
        [Buffer::<Read>::bytes(MAX_READS), Buffer::<Slot>::bytes(MAX_SLOT_EVENTS), Buffer::<Step>::bytes(MAX_STEPS)]
            .iter()
            .fold(lanes, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Limits the recorder's memory for a number of threads by limiting the number of events of
    /// each kind. Must be called before the first event.
    pub(crate) fn keep_within(&self, bytes: u64, threads: usize) {
        let part = (bytes as f64 / Recorder::bytes(threads).max(1) as f64).min(1.0);
        let of = |max: usize| ((max as f64 * part) as usize).max(1);
        let _ = self.thread_events.set(of(events_of_a_thread(threads)));
        lock(&self.reads).shrink(of(MAX_READS));
        lock(&self.slots).events.shrink(of(MAX_SLOT_EVENTS));
        lock(&self.steps).shrink(of(MAX_STEPS));
    }

    /// Writes the trace to a file. Returns the number of events that were dropped.
    ///
    /// # Errors
    /// See [`OutputError`].
    pub fn save(&self, path: &Path) -> Result<u64, OutputError> {
        self.save_to(Output::open(path, &Guard::replacing(&KIND))?)
    }

    /// Writes the trace, like [`Recorder::save`], to an output that was opened before the run.
    ///
    /// # Errors
    /// See [`OutputError`].
    pub fn save_to(&self, output: Output) -> Result<u64, OutputError> {
        let mut dropped = 0;
        output.write(|out| {
            dropped = self.write(out)?;
            Ok(())
        })?;
        Ok(dropped)
    }

    /// Describes the plan's tasks and kernels, and the number of threads. Only the first call has
    /// an effect, because a recorder is for one engine.
    pub(crate) fn describe_threads(&self, threads: usize, labels: Vec<String>, kernels: Vec<String>) {
        let max = self.thread_events.get().copied().unwrap_or_else(|| events_of_a_thread(threads));
        self.threads.get_or_init(|| Threads {
            lanes: (0..threads).map(|_| Lane(Mutex::new(Buffer::new(max)))).collect(),
            labels,
            kernels,
        });
    }

    /// Describes the blocks of the expert cache, indexed by number, and the bytes of its slots.
    pub(crate) fn describe_blocks(&self, ids: Vec<BlockId>, slots: Vec<u64>) {
        let count = slots.len();
        if self.blocks.set(Blocks { ids, slots }).is_ok() {
            lock(&self.slots).open.resize(count, None);
        }
    }

    /// Sets the number of the calling thread in the pool.
    pub(crate) fn enter(&self, thread: usize) {
        THREAD.set(thread);
    }

    /// Records work of this thread from `begun` until now.
    pub(crate) fn work(&self, begun: Instant, what: Work) {
        let (start, end) = (self.at(begun), self.at(Instant::now()));
        let lane = self.threads.get().and_then(|threads| threads.lanes.get(THREAD.get()));
        let Some(lane) = lane else { return };
        let mut lane = lock(&lane.0);
        if let (Work::Task { task, kernel, expert, items, rows, bytes }, Some(last)) = (what, lane.spans.last_mut())
            && let Work::Task {
                task: last_task,
                kernel: last_kernel,
                expert: last_expert,
                items: sum,
                rows: last_rows,
                bytes: all,
            } = &mut last.what
            && (*last_task, *last_kernel, *last_expert, *last_rows) == (task, kernel, expert, rows)
            && start.saturating_sub(last.end) < CLOSE
        {
            *sum = sum.saturating_add(items);
            *all = all.saturating_add(bytes);
            last.end = end;
            return;
        }
        lane.push(Span { start, end, what });
    }

    /// Records a read that has ended.
    pub(crate) fn read(&self, began: Instant, now: Instant, read: Read) {
        lock(&self.reads).push(Span { start: self.at(began), end: self.at(now), what: read });
    }

    /// Records the new contents of a slot. The caller has locked the cache, so the times of a slot
    /// are in order.
    pub(crate) fn slot(&self, slot: u32, contents: Option<SlotContents>) {
        let now = self.at(Instant::now());
        let slots = &mut *lock(&self.slots);
        let Some(place) = slots.open.get_mut(slot as usize) else { return };
        let same = |open: &SlotStay| contents.is_some_and(|contents| contents.block == open.contents.block);
        match place {
            Some(open) if same(open) && contents == Some(open.contents) => return,
            Some(open) => {
                open.close(slot, now, same(open), &mut slots.events);
            }
            None => {}
        }
        *place = contents.map(|contents| match *place {
            Some(open) if same(&open) => SlotStay { stage_since: now, contents, ..open },
            _ => SlotStay { since: now, stage_since: now, contents },
        });
    }

    /// Records work before the first step, from `begun` until now: compiling the model, or a part
    /// of loading the plan. Phases are recorded one after another.
    pub fn phase(&self, begun: Instant, what: &'static str) {
        let (start, end) = (self.at(begun), self.at(Instant::now()));
        lock(&self.phases).push(Span { start, end, what });
    }

    /// Records a step that has ended.
    pub(crate) fn step(&self, begun: Instant, step: Step) {
        let (start, end) = (self.at(begun), self.at(Instant::now()));
        lock(&self.steps).push(Span { start, end, what: step });
    }

    fn at(&self, time: Instant) -> u64 {
        u64::try_from(time.saturating_duration_since(self.begun).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl SlotStay {
    /// Records the last stage of the block in the slot. Unless `stays` is true, also records the
    /// block's whole stay.
    fn close(&self, slot: u32, now: u64, stays: bool, events: &mut Buffer<Slot>) {
        let part = Slot::Part { slot, contents: self.contents };
        events.push(Span { start: self.stage_since, end: now, what: part });
        if !stays {
            let whole = Slot::Whole { slot, block: self.contents.block };
            events.push(Span { start: self.since, end: now, what: whole });
        }
    }
}

fn events_of_a_thread(threads: usize) -> usize {
    let (min, max) = EVENTS_PER_THREAD;
    (MAX_THREAD_EVENTS / threads.max(1)).clamp(min, max)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Even after a panic, the events are complete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_buffer_counts_dropped_spans() {
        let mut buffer = Buffer::new(2);
        (0..5).for_each(|i| buffer.push(Span { start: i, end: i, what: () }));
        assert_eq!((buffer.spans.len(), buffer.dropped), (2, 3));
        assert!(buffer.spans.capacity() >= 2);
    }

    #[test]
    fn task_shares_form_one_event_in_bounded_memory() {
        let recorder = Recorder::new();
        recorder.describe_threads(1, vec!["task".into()], vec!["few".into(), "many".into()]);
        recorder.enter(0);
        let begun = recorder.begun;
        let task = |expert| Work::Task { task: 0, kernel: 1, expert, items: 2, rows: 3, bytes: 64 };
        // All shares begin at the start of the recorder, so there is no gap between them.
        for expert in [None, None, Some(1), Some(1), None] {
            recorder.work(begun, task(expert));
        }
        let lane = lock(&recorder.threads.get().unwrap().lanes[0].0);
        let items: Vec<Work> = lane.spans.iter().map(|span| span.what).collect();
        let sum = |expert, items| Work::Task { task: 0, kernel: 1, expert, items, rows: 3, bytes: 32 * items };
        assert_eq!(items, [sum(None, 4), sum(Some(1), 4), sum(None, 2)]);
        assert!(Recorder::bytes(1) < 64 << 20 && Recorder::bytes(1000) < 256 << 20, "{}", Recorder::bytes(1000));
    }

    #[test]
    fn slot_events_show_successive_blocks() {
        let recorder = Recorder::new();
        recorder.describe_blocks(vec![BlockId { group: 0, expert: 0 }; 2], vec![4096]);
        let contents = |block, stage, shadow| Some(SlotContents { block, stage, shadow });
        recorder.slot(0, contents(0, Stage::Loading, true));
        recorder.slot(0, contents(0, Stage::Loading, true));
        recorder.slot(0, contents(0, Stage::Loading, false));
        recorder.slot(0, contents(0, Stage::Resident, false));
        recorder.slot(0, contents(1, Stage::Loading, false));
        recorder.slot(0, None);
        recorder.slot(0, None);
        recorder.slot(7, None);
        let slots = lock(&recorder.slots);
        let parts = slots.events.spans.iter().filter(|span| matches!(span.what, Slot::Part { .. })).count();
        assert_eq!((parts, slots.events.spans.len()), (4, 6));
        assert!(slots.open[0].is_none());
    }
}
