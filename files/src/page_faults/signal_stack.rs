//! Alternate stacks on which threads run signal handlers.
//!
//! The system writes all registers on this stack before it calls a handler. With AMX these take
//! 11 KiB. The standard library gives each thread a stack of the least size that the system allows,
//! so little of it remains for handlers. Threads that read much of a mapped file get a larger one.
//!
//! Invariant: a thread has the stack only while [`SignalStack::run`] works, and has its previous
//! stack afterwards.

use std::ptr::null_mut;

/// Min bytes that a thread's own stack must have besides the registers. Go has 32 KiB in all.
const OWN_BYTES: usize = 16 << 10;
/// Bytes of a new stack besides the registers: also for a handler of the embedding program.
const NEW_BYTES: usize = 64 << 10;

/// A stack for signal handlers of one thread.
#[derive(Debug, Default)]
pub struct SignalStack {
    /// Mapping with an inaccessible page below the stack; `None` before the first use.
    map: Option<StackMap>,
}

impl SignalStack {
    /// Runs some work with this stack if the thread has an alternate stack that is too small. A
    /// thread without one runs handlers on its normal stack, and so does this function if the
    /// system refuses memory.
    pub fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let registers = register_bytes();
        let is_small = |stack: &libc::stack_t| stack.ss_size < registers.saturating_add(OWN_BYTES);
        // A thread that handles a signal now cannot change its stack.
        let replaceable = current().filter(|stack| stack.ss_flags & (libc::SS_DISABLE | libc::SS_ONSTACK) == 0);
        let Some(previous) = replaceable.filter(is_small) else { return work() };
        if self.map.is_none() {
            self.map = StackMap::new(registers.saturating_add(NEW_BYTES));
        }
        let Some(map) = &self.map else { return work() };
        let stack = libc::stack_t { ss_sp: map.stack(), ss_flags: 0, ss_size: map.stack_bytes() };
        // SAFETY: the stack is mapped, and is used by nothing else. It stays mapped until the
        // thread has the previous one.
        if unsafe { libc::sigaltstack(&raw const stack, null_mut()) } != 0 {
            return work();
        }
        let _restore = Restore(previous);
        work()
    }
}

/// Gives the thread its previous stack, also after a panic.
struct Restore(libc::stack_t);

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: it was the thread's stack before, and its owner does not know of the change.
        unsafe { libc::sigaltstack(&raw const self.0, null_mut()) };
    }
}

/// Returns the alternate stack of the thread, if the system reports it.
fn current() -> Option<libc::stack_t> {
    let mut stack = libc::stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: the call only writes the stack's description.
    (unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) } == 0).then_some(stack)
}

/// Returns the bytes that the system writes for a signal: at least those of old processors.
fn register_bytes() -> usize {
    // SAFETY: the call has no conditions. It returns 0 if the system does not report the size.
    let bytes = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) };
    usize::try_from(bytes).unwrap_or(0).max(libc::MINSIGSTKSZ)
}

/// A private mapping, whose first page is inaccessible.
#[derive(Debug)]
struct StackMap {
    /// Address of the mapping.
    base: usize,
    bytes: usize,
}

impl StackMap {
    /// Maps a stack of at least this size.
    fn new(bytes: usize) -> Option<StackMap> {
        let page = super::page_bytes();
        let bytes = bytes.checked_next_multiple_of(page)?.checked_add(page)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping is used by nothing else.
        let base = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let map = StackMap { base: base.expose_provenance(), bytes };
        // SAFETY: the page belongs to the new mapping.
        (unsafe { libc::mprotect(base, page, libc::PROT_NONE) } == 0).then_some(map)
    }

    fn stack(&self) -> *mut libc::c_void {
        std::ptr::with_exposed_provenance_mut(self.base + super::page_bytes())
    }

    fn stack_bytes(&self) -> usize {
        self.bytes - super::page_bytes()
    }
}

impl Drop for StackMap {
    fn drop(&mut self) {
        // SAFETY: no thread has this stack: only `SignalStack::run` lends it, and borrows it.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.base), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Address of a variable of [`deep_handler`].
    static PLACE: AtomicUsize = AtomicUsize::new(0);

    /// A handler that needs more stack than the standard library's threads have.
    extern "C" fn deep_handler(_: libc::c_int) {
        let mut room = [0u8; 20 << 10];
        black_box(&mut room);
        PLACE.store(room.as_ptr().addr(), Ordering::SeqCst);
    }

    #[test]
    fn handlers_have_room_and_the_thread_gets_its_stack_back() {
        let handler: extern "C" fn(libc::c_int) = deep_handler;
        // SAFETY: all bytes of a `sigaction` may be zero. The action is complete, and its handler
        // makes no call.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler as usize, libc::SA_ONSTACK);
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        }
        let describe = |stack: libc::stack_t| (stack.ss_sp.addr(), stack.ss_size, stack.ss_flags);
        let thread = std::thread::spawn(move || {
            let own = current().map(describe).unwrap();
            let mut stack = SignalStack::default();
            for _ in 0..2 {
                let (begin, bytes, _) = stack.run(|| {
                    // SAFETY: the handler is the one above.
                    assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
                    current().map(describe).unwrap()
                });
                assert!(bytes >= register_bytes() + NEW_BYTES && begin != own.0, "{bytes}");
                assert!((begin..begin + bytes).contains(&PLACE.load(Ordering::SeqCst)));
                assert_eq!(current().map(describe), Some(own));
            }
            // A panic restores the stack, too. A stack that is large enough is kept.
            let mut inner = SignalStack::default();
            let nested = stack.run(|| {
                let large = current().map(describe);
                (large, inner.run(|| current().map(describe)))
            });
            assert_eq!(nested.0, nested.1);
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stack.run(|| panic!("expected"))));
            assert!(panicked.is_err() && current().map(describe) == Some(own));
        });
        thread.join().unwrap();
    }
}
