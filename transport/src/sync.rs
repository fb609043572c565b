//! Synchronisation between threads, and time: those of the standard library. `testing/schedules`
//! compiles the modules that use it with a scheduler's, which runs the threads in random orders.

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, atomic};
pub(crate) use std::thread;
pub(crate) use std::time::Instant;
