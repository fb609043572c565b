//! Synchronisation between threads, and time, re-exported from the standard library.
//! `testing/schedules` compiles the modules that use it with a scheduler's versions instead. The
//! scheduler runs the threads in random orders.

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, atomic};
pub(crate) use std::thread;
pub(crate) use std::time::Instant;
