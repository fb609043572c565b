//! Synchronisation between threads: that of the standard library. `testing/schedules` compiles the
//! modules that use it with a scheduler's, which runs the threads in random orders.

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic, mpsc};
pub(crate) use std::{hint, thread};

pub(crate) use ixc_files::SignalStack;

/// Returns the rounds of spinning before a thread sleeps. A scheduler needs only one: each round is
/// a choice of a thread.
pub(crate) const fn spin_rounds(rounds: u32) -> u32 {
    rounds
}
