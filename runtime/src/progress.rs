//! Progress of a long operation: worker threads write it, one thread reads and shows it.
//!
//! ```
//! use ixc_runtime::progress::{Activity, ProgressCounter, ProgressReading};
//!
//! let progress = ProgressCounter::default();
//! progress.begin(Activity::Packing, 1000);
//! progress.add(250);
//! let expected = ProgressReading { activity: Activity::Packing, done: 250, total: 1000 };
//! assert_eq!(progress.read(), expected);
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Making a plan from a model; the duration is unknown.
    #[default]
    Compiling,
    /// Generating machine code for a plan; the duration is unknown.
    Generating,
    /// Reading weights and comparing their checksums, in bytes.
    Checking,
    /// Packing weights, in bytes of the file.
    Packing,
    /// Reading pinned experts, in bytes.
    Experts,
    /// Computing the prompt, in tokens.
    Prompt,
    /// Computing tokens one by one.
    Tokens,
    /// Measuring kernels of a model on this machine; the duration is unknown.
    Measuring,
}

/// Progress of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressReading {
    /// Kind of operation.
    pub activity: Activity,
    /// Amount done, in the unit of the activity (bytes or tokens).
    pub done: u64,
    /// Total amount.
    pub total: u64,
}

/// A progress counter that threads share.
#[derive(Debug, Default)]
pub struct ProgressCounter {
    /// Activity and total amount.
    what: Mutex<(Activity, u64)>,
    done: AtomicU64,
}

impl ProgressCounter {
    /// Starts an operation.
    pub fn begin(&self, activity: Activity, total: u64) {
        let mut what = self.what.lock().unwrap_or_else(PoisonError::into_inner);
        *what = (activity, total);
        self.done.store(0, Ordering::Relaxed);
    }

    /// Adds to the amount done.
    pub fn add(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the progress.
    pub fn read(&self) -> ProgressReading {
        let (activity, total) = *self.what.lock().unwrap_or_else(PoisonError::into_inner);
        ProgressReading { activity, done: self.done.load(Ordering::Relaxed).min(total), total }
    }
}
