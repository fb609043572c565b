//! Time of a processor that a thread has taken, as another thread sees it.
//!
//! A limit in this time is the same on a machine that has much else to do, where the time of a
//! clock would pass.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most bytes of the system's file; it has three numbers.
const MAX_BYTES: u64 = 4096;

/// The time that a thread has taken.
#[derive(Clone, Debug)]
pub struct ThreadClock {
    /// The file in which the system tells it.
    path: Option<PathBuf>,
    begun: Instant,
}

impl ThreadClock {
    /// Makes the clock of the calling thread.
    pub fn of_this_thread() -> ThreadClock {
        let own = std::fs::read_link("/proc/thread-self").ok();
        let path = own.map(|own| Path::new("/proc").join(own).join("schedstat"));
        ThreadClock { path: path.filter(|path| path.is_file()), begun: Instant::now() }
    }

    /// Time of a processor since the thread began; of a system that does not tell it, time since
    /// this was made.
    pub fn spent(&self) -> Duration {
        let told = self.path.as_ref().and_then(|path| ixc_files::read_text(path, MAX_BYTES).ok());
        let nanoseconds = told.and_then(|told| told.split(' ').next()?.parse().ok());
        nanoseconds.map_or_else(|| self.begun.elapsed(), Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_sees_the_time() {
        let (send, clock) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(ThreadClock::of_this_thread()).unwrap();
            let mut sum = 0u64;
            while ended.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
        });
        let clock = clock.recv().unwrap();
        let first = clock.spent();
        while clock.spent() <= first {
            std::thread::yield_now();
        }
        drop(end);
        thread.join().unwrap();
    }
}
