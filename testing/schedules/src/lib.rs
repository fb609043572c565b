//! Tested modules with threads, compiled with [shuttle](https://docs.rs/shuttle): a scheduler that
//! runs one thread at a time and chooses the next one at random.
//!
//! The modules are files of `runtime` and `transport`. They take locks, atomics and threads from
//! `crate::sync`. In their own crates, this is the standard library; here, it is the scheduler. The
//! tests in `tests/schedules.rs` run the modules in thousands of schedules. If a wake-up is lost,
//! the scheduler reports a deadlock with the schedule.
//!
//! The scheduler's atomics are sequentially consistent, so a test does not find an ordering that is
//! too weak.

#![allow(dead_code, reason = "the crates of the modules use the rest")]

pub mod sync;

#[path = "../../../transport/src/control.rs"]
mod control;
#[path = "../../../transport/src/frames.rs"]
mod frames;
#[path = "../../../transport/src/header.rs"]
mod header;
#[path = "../../../transport/src/linked.rs"]
pub mod linked;
#[path = "../../../transport/src/local.rs"]
pub mod local;
#[path = "../../../transport/src/membership.rs"]
mod membership;
#[path = "../../../runtime/src/storage/memory.rs"]
pub mod memory;
#[path = "../../../transport/src/memory.rs"]
mod memory_link;
#[path = "../../../runtime/src/pool.rs"]
pub mod pool;
#[path = "../../../runtime/src/processors.rs"]
pub mod processors;
#[path = "../../../runtime/src/reads.rs"]
mod reads;
#[path = "../../../runtime/src/executor/execute/shares.rs"]
mod shares;
#[path = "../../../runtime/src/streaming/mod.rs"]
pub mod streaming;
#[path = "../../../runtime/src/trace/mod.rs"]
pub mod trace;
#[path = "../../../runtime/src/watchdog.rs"]
pub mod watchdog;

/// Modules of `runtime::storage`, under the same paths as in that crate.
mod storage {
    pub(crate) use crate::memory;
}

/// Replacement for the NUMA module of `runtime`, which binds no memory.
mod numa {
    pub(crate) mod home {
        pub(crate) fn bind_new_memory(_: *mut u8, _: usize) {}
    }
}

use std::ops::Range;

pub use ixc_transport::{Incoming, Outgoing, Receipt, Transport, TransportError, check_peers, link};

/// Reason that a rank announces when it ends as planned.
const FINISHED: &str = "it is finished";

/// Returns the reason that a rank announces when its transport is dropped.
fn last_words() -> &'static str {
    if std::thread::panicking() { "it panicked; this is a bug" } else { FINISHED }
}

/// Work items that the threads of a group share, and take from each other.
pub struct Work(shares::Shares);

impl Work {
    /// Makes the work of some threads.
    pub fn new(threads: usize) -> Work {
        Work(shares::Shares::new(threads))
    }

    /// Returns all items that a thread gets in a round.
    pub fn items(&self, thread: usize, round: u64, total: u64, in_order: bool) -> Vec<Range<u64>> {
        let turn = self.0.turn(thread, round, total, in_order);
        std::iter::from_fn(|| turn.next()).collect()
    }
}

/// Returns the ranks of a group whose links are in memory. A failure panics, unless a rank has
/// announced its end.
pub fn linked_group(ranks: u32) -> Vec<Box<dyn Transport>> {
    let rank = |link| {
        let report = |error: &TransportError| assert!(matches!(error, TransportError::Ended { .. }), "{error}");
        let handler = linked::FailureHandler { report: Box::new(report), react: Box::new(|_| {}) };
        Box::new(linked::LinkedTransport::new(link, handler).unwrap()) as Box<dyn Transport>
    };
    memory_link::links(ranks).into_iter().map(rank).collect()
}
