//! CPU time of a thread, which other threads can read as well.
//!
//! A limit on CPU time does not depend on the machine's load, unlike a limit on wall time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Max bytes to read from the system's file. The file has three numbers.
const MAX_BYTES: u64 = 4096;

/// Clock of one thread's CPU time.
#[derive(Clone, Debug)]
pub struct ThreadClock {
    /// Path of the system file with the thread's CPU time, if the system has one.
    path: Option<PathBuf>,
    begun: Instant,
}

impl ThreadClock {
    /// Makes the clock of the calling thread.
    pub fn of_current_thread() -> ThreadClock {
        let own = std::fs::read_link("/proc/thread-self").ok();
        let path = own.map(|own| Path::new("/proc").join(own).join("schedstat"));
        ThreadClock { path: path.filter(|path| path.is_file()), begun: Instant::now() }
    }

    /// Returns the CPU time since the thread began. On systems that do not provide it, returns the
    /// wall time since the clock was made instead.
    pub fn cpu_time(&self) -> Duration {
        let stat = self.path.as_ref().and_then(|path| ixc_files::read_text(path, MAX_BYTES).ok());
        let nanoseconds = stat.and_then(|stat| stat.split(' ').next()?.parse().ok());
        nanoseconds.map_or_else(|| self.begun.elapsed(), Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_clock_is_readable_from_another_thread() {
        let (send, clock) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(ThreadClock::of_current_thread()).unwrap();
            let mut sum = 0u64;
            while ended.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
        });
        let clock = clock.recv().unwrap();
        let first = clock.cpu_time();
        while clock.cpu_time() <= first {
            std::thread::yield_now();
        }
        drop(end);
        thread.join().unwrap();
    }
}
