//! Values that calls of several threads use one after the other.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::error::{Failure, IxcStatus};

/// A value with a lock.
///
/// Invariant: a thread that has the lock never waits for it again. It would wait forever, for
/// example in a callback.
#[derive(Debug)]
pub(crate) struct Exclusive<T> {
    value: Mutex<T>,
    /// Mark of the thread that has the lock, or 0.
    owner: AtomicUsize,
}

/// The lock of a value.
pub(crate) struct LockGuard<'a, T> {
    value: MutexGuard<'a, T>,
    owner: &'a AtomicUsize,
}

/// Returns an id of this thread that no other thread has; never 0.
fn thread_mark() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl<T> Exclusive<T> {
    pub fn new(value: T) -> Exclusive<T> {
        Exclusive { value: Mutex::new(value), owner: AtomicUsize::new(0) }
    }

    /// Waits for the lock. `what` is the name of the value in error texts.
    ///
    /// # Errors
    /// When this thread has the lock, or an earlier call panicked while it had the lock.
    pub fn lock(&self, what: &str) -> Result<LockGuard<'_, T>, Failure> {
        // Only this thread writes its own mark, so it reads it if it has the lock.
        if self.owner.load(Ordering::Relaxed) == thread_mark() {
            return Err(Failure::usage(format!("{what} is already in use by this thread: a callback may not use it")));
        }
        let value = self.value.lock().map_err(|_| {
            let text = format!("an earlier call panicked and left {what} unfinished; close it");
            Failure { status: IxcStatus::Panic, text }
        })?;
        self.owner.store(thread_mark(), Ordering::Relaxed);
        Ok(LockGuard { value, owner: &self.owner })
    }
}

impl<T> Drop for LockGuard<'_, T> {
    fn drop(&mut self) {
        // The lock itself is released after the mark is cleared.
        self.owner.store(0, Ordering::Relaxed);
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
