//! How far something is that takes long: written by the threads that work on it, read by one that tells.
//!
//! ```
//! use ixc_runtime::gauge::{Activity, Gauge, Reading};
//!
//! let gauge = Gauge::default();
//! gauge.begin(Activity::Packing, 1000);
//! gauge.add(250);
//! assert_eq!(gauge.read(), Reading { activity: Activity::Packing, done: 250, total: 1000 });
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What is being done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// A plan is made of a model; what that takes is not known before.
    #[default]
    Compiling,
    /// Machine code is made of a plan; what that takes is not known before.
    Generating,
    /// Weights are read and their checksums compared, in bytes.
    Checking,
    /// Weights are packed, in bytes of the file.
    Packing,
    /// Experts that stay in memory are read, in bytes.
    Experts,
    /// The prompt is computed, in tokens.
    Prompt,
    /// Tokens are computed one by one.
    Tokens,
    /// Parts of a model and of this machine are measured; how long that takes is not known before.
    Measuring,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// What is being done.
    pub activity: Activity,
    /// How much of it is done, in what the activity counts.
    pub done: u64,
    /// How much there is.
    pub total: u64,
}

/// What says how far something is.
#[derive(Debug, Default)]
pub struct Gauge {
    /// The activity, and how much there is of it.
    what: Mutex<(Activity, u64)>,
    done: AtomicU64,
}

impl Gauge {
    /// Something begins.
    pub fn begin(&self, activity: Activity, total: u64) {
        let mut what = self.what.lock().unwrap_or_else(PoisonError::into_inner);
        *what = (activity, total);
        self.done.store(0, Ordering::Relaxed);
    }

    /// So much more of it is done.
    pub fn add(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }

    /// How far it is.
    pub fn read(&self) -> Reading {
        let (activity, total) = *self.what.lock().unwrap_or_else(PoisonError::into_inner);
        Reading { activity, done: self.done.load(Ordering::Relaxed).min(total), total }
    }
}
