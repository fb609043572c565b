//! How fast a drive is by itself: random reads of one size at several depths, and the depth that a store should keep.
//!
//! Takes a file, which is only read, and gives bytes per second for each depth. Reads go the store's own way: past the page cache, by
//! io_uring with registered files and memory, or by threads. One round measures all depths one after the other, each round from
//! another depth on, and the median of the rounds counts: what disturbs a drive for a while disturbs all depths alike.
//!
//! ```
//! use ixc_runtime::stream::probe::{self, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("ixc-probe-example-{}", std::process::id()));
//! std::fs::write(&path, vec![7; 1 << 20])?;
//! // At least eight reads have to fit into the file.
//! let options = Options { chunk: 64 << 10, depths: vec![1, 4], rounds: 1, ..Options::quick() };
//! let probe = probe::file(&path, &options)?;
//! println!("{}: {:.0} bytes per second with {} reads at once", probe.backend, probe.rate(), probe.depth);
//! # std::fs::remove_file(&path)?;
//! # Ok(()) }
//! ```
//!
//! A sample is the steady state: reads are begun as others end, so that as many as the depth says are outstanding, and what counts is
//! from the first that ends to the last one before the sample's end. So neither filling the queue nor emptying it is in the rate.
//!
//! Invariant: at most [`Options::most_bytes`] are counted, and no sample is begun after [`Options::most`], but for a first round.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::StreamError;
use super::drive::{self, AGAIN, Backend, Choice, Completion, INTERRUPTED, INVALID, Read};
use super::files::{Files, PAGE};
use super::queue::Queue;
use super::reservation::Reservation;

/// The depths that are measured.
pub const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The part of the best rate that is good enough: deeper queues only make each read wait longer.
pub const ENOUGH: f64 = 0.95;
/// Reads that a file has room for at least: fewer say more of the drive's own memory than of the drive.
const LEAST_READS: u64 = 8;
/// How often one read is begun again before that is an error.
const MOST_RETRIES: u32 = 100;

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a read, a multiple of [`PAGE`].
    pub chunk: u64,
    /// Reads outstanding at once, one after the other.
    pub depths: Vec<usize>,
    /// Samples of each depth.
    pub rounds: usize,
    /// How long a sample takes at least; it has as many reads as its depth at least.
    pub sample: Duration,
    /// No sample is begun later, but for those of the first round.
    pub most: Duration,
    /// Nor when so many bytes were read.
    pub most_bytes: u64,
    /// Which backend.
    pub backend: Choice,
    /// Reads in a row that lie behind each other, as those of a block do; 1 for all at random.
    pub together: u32,
    /// What offsets are drawn from: other ones at each run, or the drive may have them in its memory.
    pub seed: u64,
}

impl Options {
    /// All depths, for some seconds.
    pub fn thorough() -> Options {
        Options {
            chunk: super::store::CHUNK,
            depths: DEPTHS.to_vec(),
            rounds: 9,
            sample: Duration::from_millis(40),
            most: Duration::from_millis(3500),
            most_bytes: 8 << 30,
            backend: Choice::Auto,
            together: 1,
            seed: seed(),
        }
    }

    /// The depths that matter, for about a quarter of a second: before a model is run.
    pub fn quick() -> Options {
        Options {
            depths: vec![4, 8, 16, 32, 64],
            rounds: 5,
            sample: Duration::from_millis(8),
            most: Duration::from_millis(250),
            most_bytes: 1 << 30,
            ..Options::thorough()
        }
    }

    /// One depth, for about so long: what the drive gives now.
    pub fn at(depth: usize, time: Duration) -> Options {
        Options { depths: vec![depth], rounds: 4, sample: time / 4, most: time, ..Options::thorough() }
    }
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64) ^ u64::from(std::process::id()) << 40
}

/// What one depth gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Reads outstanding at once.
    pub depth: usize,
    /// Bytes per second: the median of all samples.
    pub median: f64,
    /// The slowest sample.
    pub lowest: f64,
    /// The fastest.
    pub highest: f64,
    /// How many there were.
    pub samples: usize,
}

/// What a drive gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Bytes of a read.
    pub chunk: u64,
    /// How it was read, in words.
    pub backend: String,
    /// Whether past the page cache.
    pub direct: bool,
    /// What was refused, and what was done instead.
    pub notes: Vec<String>,
    /// By depth, in the order asked for.
    pub rates: Vec<Rate>,
    /// The smallest depth with [`ENOUGH`] of the best rate.
    pub depth: usize,
}

impl Probe {
    /// Bytes per second at the chosen depth.
    pub fn rate(&self) -> f64 {
        self.rates.iter().find(|rate| rate.depth == self.depth).map_or(0.0, |rate| rate.median)
    }
}

/// The smallest depth that gives [`ENOUGH`] of the best rate; 1 where there is none.
pub fn choose(rates: &[Rate]) -> usize {
    let best = rates.iter().map(|rate| rate.median).fold(0.0, f64::max);
    rates.iter().filter(|rate| rate.median >= ENOUGH * best).map(|rate| rate.depth).min().unwrap_or(1)
}

/// Measures the drive that a file lies on.
///
/// # Errors
/// [`StreamError::Open`] where it cannot be opened or is too small, [`StreamError::Read`] and [`StreamError::Truncated`] where it cannot be
/// read, [`StreamError::Memory`], and [`StreamError::Closed`] where there is neither io_uring nor a thread.
pub fn file(path: &Path, options: &Options) -> Result<Probe, StreamError> {
    let files = Arc::new(Files::open(&[path.to_path_buf()], true)?);
    let depth = options.depths.iter().copied().max().unwrap_or(1).clamp(1, 1024);
    let chunk = options.chunk.clamp(PAGE, 1 << 30) / PAGE * PAGE;
    let reservation = Arc::new(Reservation::new(chunk * depth as u64)?);
    let queue = Queue::new(Arc::clone(&files), reservation, chunk);
    let (mut backend, mut notes) =
        drive::open(&queue, options.backend, depth, true).map_err(|why| StreamError::Closed { why })?;
    let begun = Instant::now();
    let rates = rates(&mut *backend, &queue, &Options { chunk, ..options.clone() }, &mut || begun.elapsed())?;
    notes.extend(files.notes());
    Ok(Probe { chunk, backend: backend.describe(), direct: files.is_direct(0), notes, depth: choose(&rates), rates })
}

/// Measures with any backend, which reads the first of the queue's files into the queue's reservation, and any clock.
pub(super) fn rates(
    backend: &mut dyn Backend,
    queue: &Queue,
    options: &Options,
    now: &mut dyn FnMut() -> Duration,
) -> Result<Vec<Rate>, StreamError> {
    let files = queue.files();
    let (path, length) = (files.path(0), files.bytes(0));
    if length < options.chunk.saturating_mul(LEAST_READS) {
        let needed = options.chunk.saturating_mul(LEAST_READS);
        let why = format!("is too small to measure a drive with: it has {length} bytes, {needed} are needed");
        return Err(StreamError::Open { path, why });
    }
    let depths: Vec<usize> = options.depths.iter().map(|depth| (*depth).clamp(1, 1024)).collect();
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); depths.len()];
    let mut sampler = Sampler { backend, queue, options, random: options.seed | 1, bytes: 0, last: (0, 0) };
    let begun = now();
    for round in 0..options.rounds.max(1) {
        for step in 0..depths.len() {
            let over = now().saturating_sub(begun) >= options.most || sampler.bytes >= options.most_bytes;
            if round > 0 && over {
                break;
            }
            let index = (round + step) % depths.len();
            samples[index].push(sampler.sample(depths[index], now)?);
        }
    }
    let rate = |(depth, mut all): (usize, Vec<f64>)| {
        all.sort_by(f64::total_cmp);
        let (low, high) = (all.len().saturating_sub(1) / 2, all.len() / 2);
        let at = |index: usize| all.get(index).copied().unwrap_or(0.0);
        Rate {
            depth,
            median: (at(low) + at(high)) / 2.0,
            lowest: at(0),
            highest: at(all.len().saturating_sub(1)),
            samples: all.len(),
        }
    };
    Ok(depths.into_iter().zip(samples).map(rate).collect())
}

struct Sampler<'a> {
    backend: &'a mut dyn Backend,
    queue: &'a Queue,
    options: &'a Options,
    random: u64,
    /// Read so far.
    bytes: u64,
    /// The last offset, and how many reads are to come behind it.
    last: (u64, u32),
}

impl Sampler<'_> {
    /// Bytes per second with so many reads outstanding.
    fn sample(&mut self, depth: usize, now: &mut dyn FnMut() -> Duration) -> Result<f64, StreamError> {
        let mut retries = vec![0; depth];
        let mut offsets = vec![0; depth];
        for (index, offset) in offsets.iter_mut().enumerate() {
            *offset = self.offset();
            self.begin(index, *offset)?;
        }
        let (mut outstanding, mut counted, mut failed) = (depth, 0u64, None);
        // When the first read ended, and the last one that counts.
        let mut times: Option<(Duration, Duration)> = None;
        let mut done: Vec<Completion> = Vec::new();
        while outstanding > 0 {
            self.backend.wait(&mut done).map_err(|error| StreamError::Closed { why: error.to_string() })?;
            let time = now();
            let first = times.is_none() && !done.is_empty();
            let measuring = |times: &Option<(Duration, Duration)>, counted: u64| {
                let long = times.is_some_and(|(first, _)| time.saturating_sub(first) >= self.options.sample);
                !(long && counted >= depth as u64)
            };
            let counts = measuring(&times, counted);
            for completion in std::mem::take(&mut done) {
                let index = completion.tag as usize;
                let Some(offset) = offsets.get(index).copied() else { continue };
                match self.judge(completion, offset, &mut retries[index]) {
                    // What failed is begun again, until all end.
                    Ok(false) if failed.is_none() => self.begin(index, offset)?,
                    Ok(true) if failed.is_none() && counts => {
                        counted += u64::from(!first);
                        offsets[index] = self.offset();
                        retries[index] = 0;
                        self.begin(index, offsets[index])?;
                    }
                    Ok(_) => outstanding -= 1,
                    Err(error) => {
                        failed.get_or_insert(error);
                        outstanding -= 1;
                    }
                }
            }
            if first {
                times = Some((time, time));
            } else if let (true, Some((_, last))) = (counts, &mut times) {
                *last = time;
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let seconds = times.map_or(0.0, |(first, last)| last.saturating_sub(first).as_secs_f64());
        Ok(if seconds > 0.0 { (counted * self.options.chunk) as f64 / seconds } else { 0.0 })
    }

    fn begin(&mut self, index: usize, offset: u64) -> Result<(), StreamError> {
        let chunk = self.options.chunk;
        let into = self.queue.reservation().region().part(index as u64 * chunk, chunk);
        let into = into.ok_or_else(|| StreamError::Memory { why: "a read outside the reservation".into() })?;
        self.bytes += chunk;
        // SAFETY: the region lies in the queue's reservation, which outlives the backend, and no other read that is on has it: there is
        // one for each index.
        unsafe { self.backend.start(Read { tag: index as u64, file: 0, offset, into }) };
        Ok(())
    }

    /// Whether a read brought all of its bytes; `false` where it is to be begun again.
    fn judge(&self, completion: Completion, offset: u64, retries: &mut u32) -> Result<bool, StreamError> {
        let (files, bytes) = (self.queue.files(), self.options.chunk);
        let path = files.path(0);
        *retries += 1;
        match completion.result {
            Ok(read) if u64::from(read) >= bytes => Ok(true),
            Ok(0) => Err(StreamError::Truncated { path, offset, found: files.bytes_now(0), expected: offset + bytes }),
            Ok(_) | Err(INTERRUPTED | AGAIN) if *retries < MOST_RETRIES => Ok(false),
            Err(INVALID) if files.is_direct(0) => {
                files.leave_direct(0, "reads with O_DIRECT are refused (EINVAL)");
                Ok(false)
            }
            Ok(read) => {
                Err(StreamError::Truncated { path, offset, found: offset + u64::from(read), expected: offset + bytes })
            }
            Err(errno) => {
                let why = std::io::Error::from_raw_os_error(errno).to_string();
                Err(StreamError::Read { path, file: 0, offset, bytes, errno, why })
            }
        }
    }

    /// Where to read next: behind the last read, or any page of the file that has a whole read behind it.
    fn offset(&mut self) -> u64 {
        let (behind, left) = (self.last.0 + self.options.chunk, self.last.1);
        if left > 0 && behind + self.options.chunk <= self.queue.files().bytes(0) {
            self.last = (behind, left - 1);
            return behind;
        }
        // xorshift64*.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let pages = (self.queue.files().bytes(0) - self.options.chunk) / PAGE + 1;
        let high = u128::from(self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(pages);
        let offset = (high >> 64) as u64 * PAGE;
        self.last = (offset, self.options.together.saturating_sub(1));
        offset
    }
}
