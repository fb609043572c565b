//! Rate at which this machine reads memory, which bounds the speed of decode.
//! `ixc::machine::bandwidth` measures the rate, here with a buffer of gigabytes.

use anyhow::ensure;
use ixc::machine::bandwidth::measure_rounds;
use serde::{Deserialize, Serialize};

/// Measures the rate at which memory is read, and prints JSON.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of threads that read.
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// Size of the buffer in GiB, at most a quarter of the free memory.
    #[arg(long, default_value_t = 2.0)]
    size: f64,
    /// Number of rounds.
    #[arg(long, default_value_t = 6)]
    rounds: usize,
}

/// A measured rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Threads that read.
    pub threads: usize,
    /// Bytes of the buffer.
    pub buffer: u64,
    /// Bytes read in a second, all threads together, in the best round.
    pub bytes_per_second: f64,
}

impl Args {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        ensure!(self.threads > 0 && self.rounds > 0 && self.size > 0.0, "threads, rounds and size must be above 0");
        let available = ixc::machine::system::memory();
        let available = [available.available, available.cgroup_limit].into_iter().flatten().min().unwrap_or(1 << 30);
        let bytes = ((self.size * f64::from(1 << 30)) as u64).min(available / 4);
        let bytes_per_second = measure_rounds(self.threads, usize::try_from(bytes)?, self.rounds);
        let bandwidth = Bandwidth { threads: self.threads, buffer: bytes, bytes_per_second };
        println!("{}", serde_json::to_string(&bandwidth)?);
        Ok(())
    }
}
