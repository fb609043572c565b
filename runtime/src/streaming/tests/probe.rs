//! Tests of the probe with a simulated drive of known latency and a simulated clock.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::super::StreamError;
use super::super::backend::{Backend, Completion, Read};
use super::super::drive::BackendChoice;
use super::super::files::Files;
use super::super::probe::{self, ProbeOptions, Rate, choose};
use super::super::queue::{Queue, Wake};
use super::super::reservation::Reservation;

const CHUNK: u64 = 8192;
const BYTES: u64 = 1 << 20;

struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

/// A simulated drive with several channels. Each channel makes one read at a time, and each read
/// takes a fixed time. Further reads wait for a free channel.
struct Channels<F> {
    free_at: Vec<Duration>,
    takes: Duration,
    /// Outstanding reads with the times at which they end.
    on: Vec<(Duration, Read)>,
    clock: Rc<Cell<Duration>>,
    result: F,
    begun: u64,
    offsets: Vec<u64>,
}

impl<F: FnMut(u64, &Read) -> Result<u32, i32>> Backend for Channels<F> {
    fn describe(&self) -> String {
        "channels".into()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::new(Nobody)
    }

    unsafe fn start(&mut self, read: Read) {
        let now = self.clock.get();
        let channel = self.free_at.iter_mut().min().unwrap();
        *channel = (*channel).max(now) + self.takes;
        self.offsets.push(read.offset);
        self.on.push((*channel, read));
    }

    fn wait(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let next = self.on.iter().map(|(end, _)| *end).min().expect("somebody waits for nothing");
        self.clock.set(next);
        let (ended, on) = self.on.drain(..).partition(|(end, _)| *end == next);
        self.on = on;
        let ended: Vec<(Duration, Read)> = ended;
        for (_, read) in ended {
            self.begun += 1;
            done.push(Completion { tag: read.tag, result: (self.result)(self.begun, &read) });
        }
        Ok(())
    }
}

/// A sparse temporary file that is removed when it is dropped.
struct Sparse(PathBuf);

impl Sparse {
    fn new(name: &str, bytes: u64) -> Sparse {
        let path = std::env::temp_dir().join(format!("ixc-probe-{name}-{}", std::process::id()));
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        Sparse(path)
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn options(depths: &[usize]) -> ProbeOptions {
    ProbeOptions {
        chunk: CHUNK,
        depths: depths.to_vec(),
        rounds: 3,
        sample: Duration::from_millis(10),
        max_time: Duration::from_secs(1000),
        max_bytes: u64::MAX,
        backend: BackendChoice::Auto,
        adjacent_reads: 1,
        seed: 42,
    }
}

fn measure(
    name: &str,
    channels: usize,
    options: &ProbeOptions,
    result: impl FnMut(u64, &Read) -> Result<u32, i32>,
) -> (Result<Vec<Rate>, StreamError>, Vec<u64>, Duration) {
    let file = Sparse::new(name, BYTES);
    let files = Arc::new(Files::open(std::slice::from_ref(&file.0), false).unwrap());
    let depth = options.depths.iter().max().unwrap();
    let reservation = Arc::new(Reservation::new(CHUNK * *depth as u64).unwrap());
    let queue = Queue::new(files, reservation, CHUNK);
    let clock = Rc::new(Cell::new(Duration::ZERO));
    let takes = Duration::from_micros(100);
    let mut backend = Channels {
        free_at: vec![Duration::ZERO; channels],
        takes,
        on: Vec::new(),
        clock: Rc::clone(&clock),
        result,
        begun: 0,
        offsets: Vec::new(),
    };
    let rates = probe::rates(&mut backend, &queue, options, &mut || clock.get());
    assert!(backend.on.is_empty(), "reads are left");
    (rates, backend.offsets, clock.get())
}

fn all(_: u64, read: &Read) -> Result<u32, i32> {
    Ok(read.into.bytes() as u32)
}

#[test]
fn probe_measures_drive_rates_and_finds_its_parallelism() {
    for channels in [1, 4, 8, 64, 100] {
        let (rates, offsets, _) = measure("rates", channels, &options(&probe::DEPTHS), all);
        let rates = rates.unwrap();
        for rate in &rates {
            // Each channel in use reads 8192 bytes in 100 µs.
            let right = rate.depth.min(channels) as f64 * CHUNK as f64 / 100e-6;
            assert!((rate.median / right - 1.0).abs() < 0.02, "{channels} channels: {rate:?}, {right} is right");
            assert_eq!(rate.samples, 3);
        }
        assert_eq!(choose(&rates), channels.min(64));
        assert!(offsets.iter().all(|offset| offset % 4096 == 0 && offset + CHUNK <= BYTES));
        // The offsets are spread over the whole file.
        let quarters: Vec<bool> = (0..4).map(|q| offsets.iter().any(|offset| offset / (BYTES / 4) == q)).collect();
        assert_eq!(quarters, [true; 4]);
    }
}

#[test]
fn probe_reads_are_sequential_on_request() {
    let options = ProbeOptions { adjacent_reads: 3, ..options(&[4]) };
    let (rates, offsets, _) = measure("together", 4, &options, all);
    assert!(rates.unwrap()[0].median > 0.0);
    let after = offsets.windows(2).filter(|pair| pair[0] + CHUNK == pair[1]).count();
    // Two of three reads begin where the read before ended, except at the end of the file.
    assert!(after * 100 > offsets.len() * 60 && after * 100 < offsets.len() * 70, "{after} of {}", offsets.len());
}

#[test]
fn the_smallest_depth_that_is_nearly_as_fast_is_chosen() {
    let rate = |depth, median| Rate { depth, median, lowest: median, highest: median, samples: 1 };
    assert_eq!(choose(&[rate(1, 10.0), rate(4, 94.0), rate(8, 96.0), rate(16, 100.0)]), 8);
    // The choice depends neither on the order of the rates nor on deeper, slower queues.
    assert_eq!(choose(&[rate(64, 80.0), rate(8, 100.0), rate(4, 99.0)]), 4);
    assert_eq!(choose(&[]), 1);
}

#[test]
fn interrupted_probe_reads_are_restarted() {
    // One of seven reads is interrupted and started again.
    let result = |number: u64, read: &Read| if number % 7 == 3 { Err(4) } else { all(number, read) };
    let (rates, ..) = measure("interrupted", 4, &options(&[1, 2, 4, 8]), result);
    assert_eq!(choose(&rates.unwrap()), 4);
}

#[test]
fn a_slow_drive_ends_the_probe_after_a_round() {
    let options = ProbeOptions { max_time: Duration::from_millis(1), rounds: 100, ..options(&[1, 2, 4]) };
    let (rates, _, time) = measure("slow", 2, &options, all);
    assert!(rates.unwrap().iter().all(|rate| rate.samples == 1));
    // The time is that of three samples of 10 ms, plus the time for filling and emptying the queue.
    assert!(time < Duration::from_millis(35), "{time:?}");
}

#[test]
fn probe_failures_are_reported_without_pending_reads() {
    let (error, ..) =
        measure("eio", 4, &options(&[8]), |number, read| if number > 20 { Err(5) } else { all(number, read) });
    assert!(matches!(error, Err(StreamError::Read { errno: 5, .. })), "{error:?}");
    let (error, ..) =
        measure("ends", 4, &options(&[8]), |number, read| if number > 20 { Ok(0) } else { all(number, read) });
    assert!(matches!(error, Err(StreamError::Truncated { .. })), "{error:?}");
    // A measurement ends even if its reads are always interrupted.
    let (error, ..) = measure("again", 4, &options(&[8]), |_, _| Err(4));
    assert!(matches!(error, Err(StreamError::Read { errno: 4, .. })), "{error:?}");
}

#[test]
fn each_backend_probes_files_but_refuses_small_ones() {
    let file = Sparse::new("real", BYTES);
    for backend in [BackendChoice::Auto, BackendChoice::ThreadedReader] {
        let options = ProbeOptions { backend, rounds: 1, sample: Duration::from_micros(100), ..options(&[1, 4]) };
        let probe = probe::file(&file.0, &options).unwrap();
        assert!(probe.rates.iter().all(|rate| rate.median > 0.0) && probe.rate() > 0.0, "{probe:?}");
        assert!([1, 4].contains(&probe.depth));
        assert!(backend == BackendChoice::Auto || probe.backend.starts_with("pread"), "{}", probe.backend);
    }
    let small = Sparse::new("small", 7 * CHUNK);
    let error = probe::file(&small.0, &options(&[1])).unwrap_err().to_string();
    assert!(error.contains("57344 bytes, 65536 are needed"), "{error}");
    assert!(matches!(probe::file(&small.0.join("x"), &options(&[1])), Err(StreamError::Open { .. })));
}
