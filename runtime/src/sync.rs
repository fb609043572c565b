//! Synchronisation between threads, re-exported from the standard library. `testing/schedules`
//! compiles the modules that use it with a scheduler's versions instead. The scheduler runs the
//! threads in random orders.

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic, mpsc};
pub(crate) use std::{hint, thread};

pub(crate) use ixc_files::SignalStack;

/// Returns how many rounds a thread spins before it sleeps. For the scheduler, one round is enough,
/// because each round is a choice of the next thread.
pub(crate) const fn spin_rounds(rounds: u32) -> u32 {
    rounds
}
