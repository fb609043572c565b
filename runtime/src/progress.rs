//! Progress of a long operation. Worker threads write it, and one thread reads and shows it.
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

/// Kind of a long operation, which determines the unit of its progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Compiling a plan from a model. The total amount is unknown.
    #[default]
    Compiling,
    /// Generating machine code for a plan. The total amount is unknown.
    Generating,
    /// Reading weights and comparing their checksums. The unit is bytes.
    Checking,
    /// Packing weights. The unit is bytes of the model file.
    Packing,
    /// Reading pinned experts. The unit is bytes.
    Experts,
    /// Computing the prompt (prefill). The unit is tokens.
    Prompt,
    /// Generating tokens one by one (decode). The unit is tokens.
    Tokens,
    /// Measuring kernels of a model on this machine. The total amount is unknown.
    Measuring,
}

/// Progress of an operation at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressReading {
    /// Kind of operation.
    pub activity: Activity,
    /// Amount that is done, in the unit of the activity.
    pub done: u64,
    /// Total amount, in the unit of the activity; 0 if it is unknown.
    pub total: u64,
}

/// A progress counter that worker threads and the reading thread share.
#[derive(Debug, Default)]
pub struct ProgressCounter {
    /// Kind and total amount of the current operation.
    what: Mutex<(Activity, u64)>,
    done: AtomicU64,
}

impl ProgressCounter {
    /// Starts an operation with amount 0.
    pub fn begin(&self, activity: Activity, total: u64) {
        let mut what = self.what.lock().unwrap_or_else(PoisonError::into_inner);
        *what = (activity, total);
        self.done.store(0, Ordering::Relaxed);
    }

    /// Adds `more` to the amount that is done.
    pub fn add(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the current progress.
    pub fn read(&self) -> ProgressReading {
        let (activity, total) = *self.what.lock().unwrap_or_else(PoisonError::into_inner);
        ProgressReading { activity, done: self.done.load(Ordering::Relaxed).min(total), total }
    }
}
