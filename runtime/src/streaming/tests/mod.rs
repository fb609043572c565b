//! Tests of expert streaming. They use real files with both backends, and a backend with injected
//! faults.

mod drive;
mod faults;
mod planted;
mod probe;
mod store;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use ixc_ir::random::Random;

use super::StreamError;
use super::backend::Backend;
use super::drive::{BackendChoice, Drive, DriveOptions, EndedJob};
use super::files::Files;
use super::queue::{Queue, ReadJob};
use super::reservation::Reservation;

/// A temporary file that is removed when it is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(bytes: &[u8]) -> Temporary {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ixc-stream-{}-{number}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Temporary(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the byte at this offset of a test file. Adjacent bytes are different, and so are pages.
fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(byte_at).collect()
}

type Results = mpsc::Receiver<Vec<EndedJob>>;

/// A drive that reads one file, and the channel of its results.
struct Rig {
    drive: Drive,
    queue: Arc<Queue>,
    results: Results,
    _file: Temporary,
}

impl Rig {
    fn parts(bytes: &[u8], direct: bool, chunk: u64) -> (Arc<Queue>, Temporary) {
        let file = Temporary::new(bytes);
        let files = Arc::new(Files::open(std::slice::from_ref(&file.0), direct).unwrap());
        (Arc::new(Queue::new(files, Arc::new(Reservation::new(8 << 20).unwrap()), chunk)), file)
    }

    fn new(bytes: &[u8], backend: BackendChoice, direct: bool, chunk: u64) -> Rig {
        let (queue, file) = Rig::parts(bytes, direct, chunk);
        let (sender, results) = mpsc::channel();
        let options = DriveOptions { depth: 4, predicted_depth: 2, backend, ..DriveOptions::default() };
        let drive = Drive::start(&options, &queue, Arc::new(Mutex::new(sender))).unwrap();
        Rig { drive, queue, results, _file: file }
    }

    /// Makes a rig with a backend that the test has made.
    fn planted<B: Backend + 'static>(
        bytes: &[u8],
        depth: usize,
        chunk: u64,
        make: impl FnOnce(Arc<Queue>) -> B + Send + 'static,
    ) -> Rig {
        let (queue, file) = Rig::parts(bytes, false, chunk);
        let (sender, results) = mpsc::channel();
        let options = DriveOptions { depth, predicted_depth: depth, ..DriveOptions::default() };
        let shared = Arc::clone(&queue);
        let drive = Drive::start_with(&options, &queue, Arc::new(Mutex::new(sender)), move || {
            Ok((Box::new(make(shared)) as Box<dyn Backend>, Vec::new()))
        })
        .unwrap();
        Rig { drive, queue, results, _file: file }
    }

    fn submit(&self, jobs: Vec<ReadJob>) {
        self.queue.submit(jobs).unwrap();
    }

    /// Waits for `count` results and returns them in the order of their tags.
    fn results(&self, count: usize) -> Vec<(u64, Result<(), StreamError>)> {
        let mut results = Vec::new();
        while results.len() < count {
            results.extend(self.results.recv().unwrap().into_iter().map(|job| (job.tag, job.result)));
        }
        results.sort_by_key(|(tag, _)| *tag);
        assert_eq!(results.len(), count);
        results
    }

    /// Returns a copy of bytes of the reservation.
    fn read(&self, at: u64, bytes: u64) -> Vec<u8> {
        let region = self.queue.reservation().region().part(at, bytes).unwrap();
        // SAFETY: the region is mapped, and the test has waited until no read of the drive writes
        // to it.
        unsafe { std::slice::from_raw_parts(region.base(), bytes as usize) }.to_vec()
    }
}
