//! Measurement of a drive's speed without a model: random reads of one size with several numbers of
//! outstanding reads (depths). It also chooses the best depth for an expert cache.
//!
//! The measurement only reads a file, and returns the bytes per second for each depth. Reads are
//! made in the same way as those of the expert cache. They bypass the page cache, and use io_uring
//! with registered files and memory, or threads. One round measures all depths one after the other,
//! and each round begins with another depth. The result is the median of the rounds, so a temporary
//! disturbance of the drive affects all depths alike.
//!
//! ```
//! use ixc_runtime::streaming::probe::{self, ProbeOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("ixc-probe-example-{}", std::process::id()));
//! std::fs::write(&path, vec![7; 1 << 20])?;
//! // At least eight reads have to fit into the file.
//! let depths = vec![1, 4];
//! let options = ProbeOptions { chunk: 64 << 10, depths, rounds: 1, ..ProbeOptions::quick() };
//! let probe = probe::file(&path, &options)?;
//! println!("{}: {:.0} bytes per second with {} reads at once", probe.backend, probe.rate(), probe.depth);
//! # std::fs::remove_file(&path)?;
//! # Ok(()) }
//! ```
//!
//! A sample measures the steady state: a new read starts whenever a read ends, so `depth` reads are
//! always outstanding. Counting begins when the first read ends. It ends with the last read that
//! ends within the sample's time. So the rate includes neither the filling nor the emptying of the
//! queue.
//!
//! Invariant: after the first round, no sample starts once the limits [`ProbeOptions::max_time`] or
//! [`ProbeOptions::max_bytes`] are reached.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ixc_ir::random::Random;

use super::StreamError;
use super::backend::{AGAIN, Backend, Completion, INTERRUPTED, INVALID, Read};
use super::drive::{self, BackendChoice};
use super::files::{Files, PAGE};
use super::queue::Queue;
use super::reservation::Reservation;

/// Numbers of outstanding reads that are measured by default.
pub const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Fraction of the best rate that is good enough. With more outstanding reads, each read only waits
/// longer.
pub const SUFFICIENT_SHARE: f64 = 0.95;
/// Minimum number of reads for which the file must have room. In a smaller file, the result would
/// reflect the drive's own cache more than the drive.
const MIN_READS: u64 = 8;
/// Maximum number of times that one read is restarted. Then the read fails.
const MAX_RETRIES: u32 = 100;

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct ProbeOptions {
    /// Bytes of a read, a multiple of [`PAGE`].
    pub chunk: u64,
    /// Numbers of outstanding reads to measure, in this order.
    pub depths: Vec<usize>,
    /// Number of samples of each depth.
    pub rounds: usize,
    /// Minimum duration of a sample. A sample also has at least `depth` reads.
    pub sample: Duration,
    /// Time after which no new sample starts, except those of the first round.
    pub max_time: Duration,
    /// Number of bytes read after which no new sample starts, except those of the first round.
    pub max_bytes: u64,
    /// Backend to measure.
    pub backend: BackendChoice,
    /// Number of consecutive reads at adjacent offsets, as for the reads of a block. With 1, all
    /// offsets are random.
    pub adjacent_reads: u32,
    /// Seed of the random offsets. It should differ in each run, because the drive may have cached
    /// the offsets of earlier runs.
    pub seed: u64,
}

impl ProbeOptions {
    /// Returns options for measuring all depths for some seconds.
    pub fn thorough() -> ProbeOptions {
        ProbeOptions {
            chunk: super::store::CHUNK,
            depths: DEPTHS.to_vec(),
            rounds: 9,
            sample: Duration::from_millis(40),
            max_time: Duration::from_millis(3500),
            max_bytes: 8 << 30,
            backend: BackendChoice::Auto,
            adjacent_reads: 1,
            seed: seed(),
        }
    }

    /// Returns options for measuring the important depths for about a quarter of a second, before a
    /// model runs.
    pub fn quick() -> ProbeOptions {
        ProbeOptions {
            depths: vec![4, 8, 16, 32, 64],
            rounds: 5,
            sample: Duration::from_millis(8),
            max_time: Duration::from_millis(250),
            max_bytes: 1 << 30,
            ..ProbeOptions::thorough()
        }
    }

    /// Returns options for measuring the current rate at one depth, for about the given time.
    pub fn at(depth: usize, time: Duration) -> ProbeOptions {
        ProbeOptions { depths: vec![depth], rounds: 4, sample: time / 4, max_time: time, ..ProbeOptions::thorough() }
    }
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64) ^ u64::from(std::process::id()) << 40
}

/// Measured rate at one depth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Number of outstanding reads.
    pub depth: usize,
    /// Median of all samples, in bytes per second.
    pub median: f64,
    /// Rate of the slowest sample, in bytes per second.
    pub lowest: f64,
    /// Rate of the fastest sample, in bytes per second.
    pub highest: f64,
    /// Number of samples.
    pub samples: usize,
}

/// Result of a drive's measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Bytes of a read.
    pub chunk: u64,
    /// Description of the backend.
    pub backend: String,
    /// Whether the reads bypassed the page cache.
    pub direct: bool,
    /// Features that the system refused, and what was used instead.
    pub notes: Vec<String>,
    /// Rate at each depth, in the requested order of depths.
    pub rates: Vec<Rate>,
    /// The smallest depth that reaches [`SUFFICIENT_SHARE`] of the best rate.
    pub depth: usize,
}

impl Probe {
    /// Returns the rate in bytes per second at the chosen depth.
    pub fn rate(&self) -> f64 {
        self.rates.iter().find(|rate| rate.depth == self.depth).map_or(0.0, |rate| rate.median)
    }
}

/// Returns the smallest depth that reaches [`SUFFICIENT_SHARE`] of the best rate; 1 if there are no
/// rates.
pub fn choose(rates: &[Rate]) -> usize {
    let best = rates.iter().map(|rate| rate.median).fold(0.0, f64::max);
    rates.iter().filter(|rate| rate.median >= SUFFICIENT_SHARE * best).map(|rate| rate.depth).min().unwrap_or(1)
}

/// Measures the drive that contains a file.
///
/// # Errors
/// [`StreamError::Open`] if the file cannot be opened or is too small. [`StreamError::Read`] and
/// [`StreamError::Truncated`] if it cannot be read. [`StreamError::Memory`] if the system refuses
/// memory. [`StreamError::Closed`] if neither io_uring nor a thread is available.
pub fn file(path: &Path, options: &ProbeOptions) -> Result<Probe, StreamError> {
    let files = Arc::new(Files::open(&[path.to_path_buf()], true)?);
    let depth = options.depths.iter().copied().max().unwrap_or(1).clamp(1, 1024);
    let chunk = options.chunk.clamp(PAGE, 1 << 30) / PAGE * PAGE;
    let reservation = Arc::new(Reservation::new(chunk * depth as u64)?);
    let queue = Queue::new(Arc::clone(&files), reservation, chunk);
    let (mut backend, mut notes) =
        drive::open(&queue, options.backend, depth, true).map_err(|why| StreamError::Closed { why })?;
    let begun = Instant::now();
    let rates = rates(&mut *backend, &queue, &ProbeOptions { chunk, ..options.clone() }, &mut || begun.elapsed())?;
    notes.extend(files.notes());
    Ok(Probe { chunk, backend: backend.describe(), direct: files.is_direct(0), notes, depth: choose(&rates), rates })
}

/// Measures all depths with the given backend and clock. The backend reads the first file of the
/// queue into the queue's reservation.
pub(super) fn rates(
    backend: &mut dyn Backend,
    queue: &Queue,
    options: &ProbeOptions,
    now: &mut dyn FnMut() -> Duration,
) -> Result<Vec<Rate>, StreamError> {
    let files = queue.files();
    let (path, length) = (files.path(0), files.bytes(0));
    if length < options.chunk.saturating_mul(MIN_READS) {
        let needed = options.chunk.saturating_mul(MIN_READS);
        let why = format!("is too small to measure a drive with: it has {length} bytes, {needed} are needed");
        return Err(StreamError::Open { path, why });
    }
    let depths: Vec<usize> = options.depths.iter().map(|depth| (*depth).clamp(1, 1024)).collect();
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); depths.len()];
    let mut sampler = Sampler { backend, queue, options, random: Random::new(options.seed), bytes: 0, last: (0, 0) };
    let begun = now();
    for round in 0..options.rounds.max(1) {
        for step in 0..depths.len() {
            let over = now().saturating_sub(begun) >= options.max_time || sampler.bytes >= options.max_bytes;
            if round > 0 && over {
                break;
            }
            let index = (round + step) % depths.len();
            samples[index].push(sampler.sample(depths[index], now)?);
        }
    }
    let rate = |(depth, mut all): (usize, Vec<f64>)| {
        all.sort_unstable_by(f64::total_cmp);
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
    options: &'a ProbeOptions,
    random: Random,
    /// Number of bytes read so far.
    bytes: u64,
    /// The last offset, and the number of reads that still follow at adjacent offsets.
    last: (u64, u32),
}

impl Sampler<'_> {
    /// Measures one sample. Returns the bytes per second with `depth` outstanding reads.
    fn sample(&mut self, depth: usize, now: &mut dyn FnMut() -> Duration) -> Result<f64, StreamError> {
        let mut retries = vec![0; depth];
        let mut offsets = vec![0; depth];
        for (index, offset) in offsets.iter_mut().enumerate() {
            *offset = self.offset();
            self.begin(index, *offset)?;
        }
        let (mut outstanding, mut counted, mut failed) = (depth, 0u64, None);
        // Time when the first read ended, and time when the last counted read ended.
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
                    // Incomplete reads are restarted. After a failure, the sample only waits until
                    // no read is outstanding.
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
        // SAFETY: the region is in the queue's reservation, which outlives the backend. Each index
        // has its own region, and only one outstanding read.
        unsafe { self.backend.start(Read { tag: index as u64, file: 0, offset, into }) };
        Ok(())
    }

    /// Returns true if the read is complete, and false if it must be restarted.
    fn judge(&self, completion: Completion, offset: u64, retries: &mut u32) -> Result<bool, StreamError> {
        let (files, bytes) = (self.queue.files(), self.options.chunk);
        let path = files.path(0);
        *retries += 1;
        match completion.result {
            Ok(read) if u64::from(read) >= bytes => Ok(true),
            Ok(0) => Err(StreamError::Truncated { path, offset, found: files.bytes_now(0), expected: offset + bytes }),
            Ok(_) | Err(INTERRUPTED | AGAIN) if *retries < MAX_RETRIES => Ok(false),
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

    /// Returns the offset of the next read: adjacent to the last read, or at a random page. A whole
    /// read fits between the offset and the end of the file.
    fn offset(&mut self) -> u64 {
        let (after, left) = (self.last.0 + self.options.chunk, self.last.1);
        if left > 0 && after + self.options.chunk <= self.queue.files().bytes(0) {
            self.last = (after, left - 1);
            return after;
        }
        let pages = (self.queue.files().bytes(0) - self.options.chunk) / PAGE + 1;
        let high = u128::from(self.random.bits()) * u128::from(pages);
        let offset = (high >> 64) as u64 * PAGE;
        self.last = (offset, self.options.adjacent_reads.saturating_sub(1));
        offset
    }
}
