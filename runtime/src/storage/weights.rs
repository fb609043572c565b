//! The memory in which kernels find weights: mapped files, or memory into which weights are packed
//! on first use.
//!
//! A weight whose stored format differs from the kernels' format is packed in parts. A *part* is
//! the matrix of one expert, or a whole weight without experts. Each part has one of two states:
//!
//! - **unpacked**: a work item that reads strips of the part first packs them into its thread's own
//!   memory ([`Weights::tile`]). The strips stay there for the following items, which multiply
//!   other rows with them.
//! - **ready**: the whole part is packed in kept memory. Before a stage, all threads together pack
//!   the parts that it needs ([`Weights::missing`]). Then the pages of the file that the part was
//!   packed from are released.
//!
//! Kept memory is expensive: finding and zeroing its pages takes as long as packing the same bytes
//! about ten times. So prefill steps keep no packed parts, and the first token does not wait for
//! this. The following decode steps make parts ready. The work is spread over several steps, so
//! that no step takes much longer than the others ([`Step::keeps`]).
//!
//! ```text
//! prompt          first step: items pack the strips that they read               -> first token
//! tokens 2 to 5   each packs and keeps a further quarter of the parts that it needs
//! token 6         most experts are ready; one or two are packed before use
//! ```
//!
//! Invariant: kernels read the same packed bytes in both states, so results do not depend on the
//! state. Invariant: parts become ready only while all threads of a pass are at a barrier. So all
//! threads see the same state between barriers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::numa::home::{Home, HomeBinding, PresentPages};
use crate::storage::memory::{Mapped, Memory, MemoryError, Region};
use crate::storage::pack::Job;
use crate::storage::weight_source::WeightSource;

/// Number of prefill steps that keep no packed parts. Keeping a part takes as much time as packing
/// it ten times. The number is half as large again as ten, because prefill may end soon.
const PROMPT_STEPS: u64 = 16;
/// Number of decode steps over which weights that every step uses are made ready.
const FEW_STEPS: u64 = 4;
/// Maximum number of tokens of a step that counts as decode and not as prefill.
const FEW_TOKENS: u32 = 16;
/// Bytes before a page that the system may map together with the page when it is read
/// (fault-around). They are released together with the page.
const FAULT_AROUND_BYTES: u64 = 64 << 10;
/// Bytes of the file's pages that are released at a time during packing.
const WINDOW: u64 = 2 << 20;
/// Alignment of packed strips in a thread's memory: a cache line, so that each vector load reads
/// only one line.
const LINE: usize = 64;

/// Memory of one weight, and its packing if it is packed on demand.
#[derive(Debug)]
pub(crate) struct Weight {
    /// The whole weight in the kernels' format. For a weight in blocks, this includes the bytes
    /// between its matrices.
    pub region: Region,
    /// Distance between the matrices of two experts, and bytes of a matrix; `None` if the weight is
    /// not in blocks.
    pub matrices: Option<(u64, u64)>,
    /// State of packing, if the weight's stored format differs from the kernels' format.
    pub on_demand: Option<OnDemandPacking>,
}

/// A weight that is packed when it is first needed.
#[derive(Debug)]
pub(crate) struct OnDemandPacking {
    /// Job that packs the whole weight.
    job: Job,
    /// Index of the weight's file, and offset of the weight in the file. They have no meaning for a
    /// derived tensor.
    file: usize,
    offset: u64,
    part_strips: u64,
    ready: Box<[AtomicBool]>,
    /// Number of parts that are not ready.
    unpacked_parts: AtomicU64,
}

impl OnDemandPacking {
    /// Creates the state of a weight in file number `file`. `job` packs the whole weight, which has
    /// `parts` parts of equal length.
    pub(crate) fn new(job: Job, file: usize, offset: u64, parts: u64) -> Option<OnDemandPacking> {
        let part_strips = job.strips().checked_div(parts)?;
        let whole = part_strips > 0 && part_strips.checked_mul(parts) == Some(job.strips());
        let ready = (0..parts).map(|_| AtomicBool::new(false)).collect();
        whole.then_some(OnDemandPacking { job, file, offset, part_strips, ready, unpacked_parts: parts.into() })
    }

    /// Returns the parts that contain a byte range of the packed weight. Bytes outside the weight
    /// belong to no part.
    fn parts(&self, offset: u64, bytes: u64) -> std::ops::Range<u64> {
        let (_, strip) = self.job.strip_bytes();
        // `part` is not 0, because strips are not empty. The product cannot overflow, because the
        // length of the weight does not.
        let part = self.part_strips * strip;
        let end = offset.saturating_add(bytes).div_ceil(part).min(self.ready.len() as u64);
        (offset / part).min(end)..end
    }

    fn is_ready(&self, part: u64) -> bool {
        self.ready.get(part as usize).is_none_or(|ready| ready.load(Ordering::Acquire))
    }

    /// Releases the file's pages of a byte range of the stored weight, and earlier pages that the
    /// system mapped with them.
    fn release(&self, offset: u64, bytes: u64, files: &[Mapped]) {
        match (self.job.from(), files.get(self.file)) {
            (WeightSource::Mapped(_), Some(file)) => release_around(file, self.offset + offset, bytes),
            (WeightSource::Mapped(_), None) => {}
            (derived @ WeightSource::Derived(_), _) => {
                let bytes = bytes.min(derived.bytes().saturating_sub(offset));
                derived.part(offset, bytes).iter().for_each(|part| part.release(files));
            }
        }
    }

    fn part(&self, part: u64) -> Option<Job> {
        self.job.part(part.checked_mul(self.part_strips)?, self.part_strips, None)
    }
}

/// Strips of a weight that a thread has packed for its own use.
#[derive(Debug, Default)]
struct Tile {
    /// Number of the weight, first strip, and number of strips that are in the memory.
    what: Option<(u32, u64, u64)>,
    memory: Vec<u8>,
}

/// The strips that a thread has packed for its own use. There is one tile for each buffer of a
/// kernel.
#[derive(Debug, Default)]
struct Tiles {
    tiles: Vec<Tile>,
    /// Working memory for the rows that are packed.
    rows: Vec<u8>,
    /// Packing time of this thread since [`Weights::take_packing`] last read it.
    packing: Duration,
}

/// The properties of a step that determine which packed parts it keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Number of steps before this step.
    number: u64,
    /// Number of tokens of this step.
    tokens: u32,
}

impl Step {
    /// Returns whether the step makes a part ready that it needs. The result does not depend on the
    /// states of parts, so all threads get the same result.
    fn keeps(self, weight: u32, part: u64) -> bool {
        let before = if self.tokens > FEW_TOKENS { PROMPT_STEPS } else { 1 + (u64::from(weight) + part) % FEW_STEPS };
        self.number >= before
    }
}

/// Releases pages of a file, and the earlier pages that fault-around mapped with them.
fn release_around(file: &Mapped, begin: u64, bytes: u64) {
    let before = begin.min(FAULT_AROUND_BYTES);
    file.release(begin - before, bytes + before);
}

/// A part of a weight: an expert's matrix, or a whole weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WeightPart {
    /// Number of the weight.
    weight: u32,
    /// Index of the part in the weight.
    part: u64,
}

/// All weights of a plan.
#[derive(Debug)]
pub(crate) struct Weights {
    weights: Vec<Weight>,
    /// Kept memory of packed weights.
    packed: Memory,
    /// Additional copies of the packed weights on other NUMA nodes.
    copies: Vec<Memory>,
    /// For each thread, the index of the copy that it reads; 0 is [`Weights::packed_region`]. Empty
    /// if there are no copies.
    copy_of_thread: Vec<usize>,
    /// Number of parts that are not ready.
    unpacked_parts: AtomicU64,
    /// Number of steps so far.
    steps: u64,
    /// Whether the last step was a prefill step.
    prompt: bool,
    /// Nanoseconds that steps spent on packing, summed over all threads.
    packing: AtomicU64,
    threads: Box<[Mutex<Tiles>]>,
}

impl Weights {
    /// Returns the kept memory of packed weights.
    pub(crate) fn packed_region(&self) -> Region {
        self.packed.region()
    }

    /// Creates the table of weights for `threads` threads. `packed` is the kept memory, into which
    /// weights are packed later.
    pub(crate) fn new(weights: Vec<Weight>, packed: Memory, threads: usize) -> Weights {
        let unpacked_parts =
            weights.iter().filter_map(|weight| weight.on_demand.as_ref()).map(|u| u.ready.len() as u64).sum();
        let threads = (0..threads).map(|_| Mutex::default()).collect();
        Weights {
            weights,
            packed,
            copies: Vec::new(),
            copy_of_thread: Vec::new(),
            unpacked_parts: AtomicU64::new(unpacked_parts),
            steps: 0,
            prompt: false,
            packing: AtomicU64::new(0),
            threads,
        }
    }

    /// Returns the memory regions that contain the weights, except weights for which `leaves_out`
    /// returns true. The kept memory of packed weights is one region, and so is each copy of it.
    /// All other regions are parts of mapped files.
    pub(crate) fn regions(&self, leaves_out: impl Fn(usize) -> bool) -> Vec<Region> {
        let packed = self.packed.region();
        let is_packed = |region: Region| {
            let first = packed.base() as usize;
            (first..first.saturating_add(packed.bytes() as usize)).contains(&(region.base() as usize))
        };
        let others = self.weights.iter().enumerate().filter(|(number, _)| !leaves_out(*number));
        let others = others.map(|(_, weight)| weight.region).filter(|region| region.bytes() > 0 && !is_packed(*region));
        std::iter::once(packed).chain(self.copies.iter().map(Memory::region)).chain(others).collect()
    }

    /// Returns the number of parts of all weights that are not ready.
    pub(crate) fn on_demand_parts(&self) -> u64 {
        self.unpacked_parts.load(Ordering::Acquire)
    }

    /// Returns the time that steps spent on packing, summed over all threads.
    pub(crate) fn packing(&self) -> Duration {
        Duration::from_nanos(self.packing.load(Ordering::Relaxed))
    }

    /// Adds the packing time of a thread.
    pub(crate) fn add_packing(&self, time: Duration) {
        self.packing.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the time that a thread has spent on packing for its own use ([`Weights::tile`])
    /// since the last call.
    pub(crate) fn take_packing(&self, thread: usize) -> Duration {
        let Some(tiles) = self.threads.get(thread) else { return Duration::ZERO };
        std::mem::take(&mut tiles.lock().unwrap_or_else(PoisonError::into_inner).packing)
    }

    /// Begins a step with `tokens` tokens. In the first decode step after prefill, releases the
    /// pages of files that prefill read, because packed weights replace them.
    pub(crate) fn step(&mut self, tokens: u32, files: &[Mapped]) -> Step {
        let step = Step { number: self.steps, tokens };
        self.steps += 1;
        let prompt = step.number == 0 || tokens > FEW_TOKENS;
        if !prompt && self.prompt && self.on_demand_parts() > 0 {
            for on_demand in self.weights.iter().filter_map(|weight| weight.on_demand.as_ref()) {
                on_demand.release(0, on_demand.job.strips() * on_demand.job.strip_bytes().0, files);
            }
        }
        self.prompt = prompt;
        step
    }

    /// Returns the memory of a weight in the kernels' format. Parts that are not ready have no
    /// valid bytes there; see [`Weights::tile`].
    pub(crate) fn region(&self, weight: u32) -> Option<Region> {
        self.weights.get(weight as usize).map(|weight| weight.region)
    }

    /// Returns the memory of a weight that a thread should read: the copy on the thread's NUMA
    /// node. Without copies, returns the same as [`Weights::region`].
    pub(crate) fn region_for(&self, thread: usize, weight: u32) -> Option<Region> {
        let region = self.region(weight)?;
        let copy = self.copy_of_thread.get(thread).and_then(|copy| self.copies.get(copy.checked_sub(1)?));
        let (Some(copy), packed) = (copy, self.packed.region()) else { return Some(region) };
        let offset = (region.base() as usize).checked_sub(packed.base() as usize);
        let own = offset.and_then(|offset| copy.region().part(offset as u64, region.bytes()));
        Some(own.unwrap_or(region))
    }

    /// Returns the memory of each copy of the packed weights, beginning with the original.
    pub(crate) fn copies(&self) -> impl Iterator<Item = Region> {
        std::iter::once(&self.packed).chain(&self.copies).map(Memory::region)
    }

    /// Copies the packed weights to each home except the first, which gets the original. All parts
    /// must be ready. `home_of_thread` has the index of each thread's home.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    pub(crate) fn copy_to(&mut self, homes: &[Arc<Home>], home_of_thread: &[usize]) -> Result<(), MemoryError> {
        let Some((first, others @ [_, ..])) = homes.split_first() else { return Ok(()) };
        let packed = self.packed.region();
        first.bind_memory(packed.base(), packed.bytes() as usize, PresentPages::Move);
        for home in others {
            let _binding = HomeBinding::enter(home);
            let copy = Memory::zeroed("a copy of weights", packed.bytes(), true)?;
            // SAFETY: both regions are mapped and have the same length. The new one is used by
            // nothing else, and the weights are borrowed exclusively, so no kernel runs.
            unsafe { copy.region().base().copy_from_nonoverlapping(packed.base(), packed.bytes() as usize) };
            self.copies.push(copy);
        }
        self.assign_copies(home_of_thread);
        Ok(())
    }

    /// Assigns a copy of the weights to each thread. `home_of_thread` has the index of each
    /// thread's home.
    pub(crate) fn assign_copies(&mut self, home_of_thread: &[usize]) {
        self.copy_of_thread = home_of_thread.to_vec();
    }

    /// Returns the matrix of an expert if the weight is in blocks. The region is empty if the
    /// expert does not exist.
    pub(crate) fn matrix(&self, weight: u32, expert: u32) -> Option<Region> {
        let weight = self.weights.get(weight as usize)?;
        let (stride, bytes) = weight.matrices?;
        let place = stride.checked_mul(expert.into()).and_then(|offset| weight.region.part(offset, bytes));
        place.or_else(|| weight.region.part(0, 0))
    }

    /// Adds to `missing` the parts in a byte range of a weight that are not ready and that the step
    /// must make ready.
    pub(crate) fn missing(&self, step: Step, weight: u32, offset: u64, bytes: u64, missing: &mut Vec<WeightPart>) {
        let unready = self.unready(weight, offset, bytes).filter(|&part| step.keeps(weight, part));
        missing.extend(unready.map(|part| WeightPart { weight, part }));
    }

    /// Returns the parts in a byte range of a weight that are not ready.
    fn unready(&self, weight: u32, offset: u64, bytes: u64) -> impl Iterator<Item = u64> {
        let on_demand = self.weights.get(weight as usize).and_then(|weight| weight.on_demand.as_ref());
        let on_demand = on_demand.filter(|on_demand| on_demand.unpacked_parts.load(Ordering::Acquire) > 0).into_iter();
        on_demand.flat_map(move |on_demand| on_demand.parts(offset, bytes).filter(|part| !on_demand.is_ready(*part)))
    }

    /// Returns whether all parts of a weight are ready.
    pub fn is_ready(&self, weight: u32) -> bool {
        let on_demand = self.weights.get(weight as usize).and_then(|weight| weight.on_demand.as_ref());
        on_demand.is_none_or(|on_demand| on_demand.unpacked_parts.load(Ordering::Acquire) == 0)
    }

    /// Returns the parts of all weights that are not ready.
    pub(crate) fn all_missing(&self) -> Vec<WeightPart> {
        let unready = |weight| self.unready(weight, 0, u64::MAX).map(move |part| WeightPart { weight, part });
        (0..self.weights.len() as u32).flat_map(unready).collect()
    }

    /// Returns jobs that pack parts into the kept memory of packed weights.
    pub(crate) fn jobs(&self, parts: &[WeightPart]) -> Vec<Job> {
        let on_demand = |weight: u32| self.weights.get(weight as usize)?.on_demand.as_ref();
        parts.iter().filter_map(|&WeightPart { weight, part }| on_demand(weight)?.part(part)).collect()
    }

    /// Releases pages of the file before `strip`, the strip of a part that was just packed. Because
    /// parts may be large, this is done once for each window of [`WINDOW`] bytes. If other threads
    /// still read such pages, the system maps them again.
    pub(crate) fn release(&self, part: WeightPart, strip: u64, files: &[Mapped]) {
        let WeightPart { weight, part } = part;
        let on_demand = self.weights.get(weight as usize).and_then(|weight| weight.on_demand.as_ref());
        let Some(on_demand) = on_demand else { return };
        let (strip_bytes, _) = on_demand.job.strip_bytes();
        let window = (strip + 1) * strip_bytes / WINDOW;
        if window >= 2 && window > strip * strip_bytes / WINDOW {
            let begin = part * on_demand.part_strips * strip_bytes + (window - 2) * WINDOW;
            on_demand.release(begin, WINDOW, files);
        }
    }

    /// Marks parts as ready, and releases the pages of the files that they were packed from. No
    /// kernel may run meanwhile.
    pub(crate) fn mark_ready(&self, parts: &[WeightPart], files: &[Mapped]) {
        for &WeightPart { weight, part } in parts {
            let Some(on_demand) = self.weights.get(weight as usize).and_then(|weight| weight.on_demand.as_ref()) else {
                continue;
            };
            let Some(ready) = on_demand.ready.get(part as usize) else { continue };
            if ready.swap(true, Ordering::AcqRel) {
                continue;
            }
            on_demand.unpacked_parts.fetch_sub(1, Ordering::AcqRel);
            self.unpacked_parts.fetch_sub(1, Ordering::AcqRel);
            let (strip, _) = on_demand.job.strip_bytes();
            let bytes = on_demand.part_strips * strip;
            on_demand.release(part * bytes, bytes, files);
        }
    }

    /// Packs bytes of a weight into the own memory of `thread`, for buffer `buffer` of the thread's
    /// kernel. Returns `None` if the parts are ready, or if the bytes are outside the weight. The
    /// packed bytes stay until the same thread needs other bytes for the same buffer.
    ///
    /// # Safety
    /// Only the thread with number `thread` may call this, and only while no kernel reads the last
    /// result for the buffer.
    pub(crate) unsafe fn tile(
        &self,
        thread: usize,
        buffer: usize,
        weight: u32,
        offset: u64,
        bytes: u64,
    ) -> Option<Region> {
        let on_demand = self.weights.get(weight as usize)?.on_demand.as_ref()?;
        if on_demand.unpacked_parts.load(Ordering::Acquire) == 0
            || on_demand.parts(offset, bytes).all(|p| on_demand.is_ready(p))
        {
            return None;
        }
        let (_, strip) = on_demand.job.strip_bytes();
        let first = offset / strip;
        let count = offset.checked_add(bytes)?.div_ceil(strip).checked_sub(first)?;
        // Fails if the strips are not inside the weight.
        on_demand.job.part(first, count, None)?;
        let length = count * strip;
        let mut tiles = self.threads.get(thread)?.lock().unwrap_or_else(PoisonError::into_inner);
        let Tiles { tiles, rows, packing } = &mut *tiles;
        if tiles.len() <= buffer {
            tiles.resize_with(buffer + 1, Tile::default);
        }
        let tile = &mut tiles[buffer];
        let room = length as usize + LINE;
        if tile.memory.len() < room {
            *tile = Tile { what: None, memory: vec![0; room] };
        }
        let skipped = tile.memory.as_ptr().align_offset(LINE).min(LINE);
        let region = Region::from_bytes(&mut tile.memory[skipped..skipped + length as usize]);
        let what = Some((weight, first, count));
        if tile.what != what {
            tile.what = None;
            let begin = Instant::now();
            let job = on_demand.job.part(first, count, Some(region))?;
            // SAFETY: the job's source lies in a mapped file; `region` belongs to this thread, and
            // no kernel reads it now.
            unsafe { job.run(rows) };
            let time = begin.elapsed();
            *packing += time;
            self.add_packing(time);
            tile.what = what;
        }
        region.part(offset - first * strip, bytes)
    }
}

#[cfg(test)]
mod tests {
    use ixc_ir::format::Format;
    use ixc_ir::format::packed;

    use super::*;

    /// Number of strips of the test's weight: three experts with two strips of 256 columns each.
    /// All bytes of the weight differ.
    const STRIPS: u64 = 6;

    fn weights() -> (Memory, Weights, Vec<u8>) {
        let strip = |format: Format| 16 * format.row_bytes(256).unwrap();
        let source: Vec<u8> = (0..STRIPS * strip(Format::Q4K)).map(|i| (i * 41 + i / 199) as u8).collect();
        let from = Memory::zeroed("a test", source.len() as u64, false).unwrap();
        // SAFETY: the memory is new, and as long as `source`.
        unsafe { from.region().base().copy_from_nonoverlapping(source.as_ptr(), source.len()) };
        let to = Memory::zeroed("a test", STRIPS * strip(Format::Q4KR16), false).unwrap();
        let job = Job::new(Format::Q4K, Format::Q4KR16, 256, from.region(), to.region()).unwrap();
        assert!(
            OnDemandPacking::new(job.clone(), 0, 0, 4).is_none()
                && OnDemandPacking::new(job.clone(), 0, 0, 0).is_none()
        );
        let region = to.region();
        let weights = vec![
            Weight { region: from.region(), matrices: None, on_demand: None },
            Weight { region, matrices: None, on_demand: Some(OnDemandPacking::new(job, 0, 0, 3).unwrap()) },
        ];
        let mut right = vec![0; region.bytes() as usize];
        let strips = source.chunks_exact(strip(Format::Q4K) as usize);
        for (rows, out) in strips.zip(right.chunks_exact_mut(strip(Format::Q4KR16) as usize)) {
            packed::pack(Format::Q4KR16, rows, out);
        }
        (from, Weights::new(weights, to, 2), right)
    }

    fn read(region: Region) -> Vec<u8> {
        // SAFETY: the region is mapped, and nothing writes it now.
        (0..region.bytes() as usize).map(|i| unsafe { region.base().add(i).read() }).collect()
    }

    #[test]
    fn strips_are_packed_per_reader_until_all_are_ready() {
        let (_from, weights, right) = weights();
        let tile = |thread, buffer, offset, bytes| {
            // SAFETY: no kernel runs, and no other thread uses the weights.
            unsafe { weights.tile(thread, buffer, 1, offset, bytes) }
        };
        let strip = right.len() as u64 / STRIPS;
        for (offset, bytes) in [(0, strip), (strip, 3 * strip), (5 * strip, strip), (strip + 100, 64), (strip - 7, 30)]
        {
            let found = tile(1, 3, offset, bytes).unwrap();
            assert!(read(found) == right[offset as usize..][..bytes as usize], "{bytes} bytes from {offset} on");
            assert_eq!(tile(1, 3, offset, bytes).unwrap().base(), found.base());
            assert!(tile(0, 3, offset, bytes).unwrap().base() != found.base());
        }
        assert!(tile(0, 0, 5 * strip, strip + 1).is_none() && tile(0, 0, u64::MAX, strip).is_none());
        assert!(tile(2, 0, 0, strip).is_none(), "there is no such thread");
        assert_eq!(weights.on_demand_parts(), 3);

        let needs = |number, tokens| {
            let (step, mut missing) = (Step { number, tokens }, Vec::new());
            weights.missing(step, 1, 3 * strip, 2 * strip, &mut missing);
            weights.missing(step, 0, 0, u64::MAX, &mut missing);
            weights.missing(step, 7, 0, u64::MAX, &mut missing);
            missing
        };
        // Decode makes different parts ready in different steps. Prefill makes parts ready only
        // after many steps.
        assert!([needs(0, 1), needs(2, 1), needs(15, 17)].iter().all(Vec::is_empty));
        let [first, second] = [1, 2].map(|part| WeightPart { weight: 1, part });
        assert_eq!([needs(3, 16), needs(4, 1), needs(16, 17)], [vec![first], vec![first, second], vec![first, second]]);
        let missing = needs(9, 1);
        let jobs = weights.jobs(&missing[..1]);
        // SAFETY: the jobs' memory is mapped, and nothing else uses it.
        jobs.iter().for_each(|job| unsafe { job.run(&mut Vec::new()) });
        weights.mark_ready(&missing[..1], &[]);
        weights.mark_ready(&missing[..1], &[]);
        assert!(!weights.is_ready(1) && weights.is_ready(0));
        assert_eq!((jobs.len(), weights.on_demand_parts()), (1, 2));
        assert_eq!(weights.all_missing(), [0, 2].map(|part| WeightPart { weight: 1, part }));
        assert!(tile(0, 0, 2 * strip, 2 * strip).is_none(), "it is ready");
        let found = weights.region(1).unwrap().part(2 * strip, 2 * strip).unwrap();
        assert!(read(found) == right[2 * strip as usize..4 * strip as usize]);
        // This byte range contains a ready part and an unpacked part.
        assert!(read(tile(0, 0, 3 * strip, 2 * strip).unwrap()) == right[3 * strip as usize..5 * strip as usize]);
    }
}
