//! Alternate stacks, on which threads run signal handlers.
//!
//! The system saves all registers on the alternate stack before it calls a handler. With AMX the
//! registers take 11 KiB. The standard library gives each thread an alternate stack of the smallest
//! size that the system allows, which leaves little for handlers. Threads that read much of a
//! mapped file therefore get a larger stack.
//!
//! Invariant: a thread has this stack only during [`SignalStack::run`], and has its previous stack
//! afterwards.

use std::ptr::null_mut;

/// Minimum bytes, in addition to the saved registers, of a thread's own stack that is kept. The
/// alternate stacks of Go have 32 KiB.
const OWN_BYTES: usize = 16 << 10;
/// Bytes of a new stack in addition to the saved registers. They also suffice for a handler of the
/// embedding program.
const NEW_BYTES: usize = 64 << 10;

/// A stack for signal handlers of one thread.
#[derive(Debug, Default)]
pub struct SignalStack {
    /// Mapping with an inaccessible page below the stack; `None` before the first use.
    map: Option<StackMap>,
}

impl SignalStack {
    /// Runs `work` with this stack if the thread's alternate stack is too small. If the thread has
    /// no alternate stack, handlers run on its normal stack. If the system refuses memory, the
    /// thread keeps its alternate stack.
    pub fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let registers = register_bytes();
        let is_small = |stack: &libc::stack_t| stack.ss_size < registers.saturating_add(OWN_BYTES);
        // A thread that is running a signal handler on its alternate stack cannot replace that
        // stack.
        let replaceable = current().filter(|stack| stack.ss_flags & (libc::SS_DISABLE | libc::SS_ONSTACK) == 0);
        let Some(previous) = replaceable.filter(is_small) else { return work() };
        if self.map.is_none() {
            self.map = StackMap::new(registers.saturating_add(NEW_BYTES));
        }
        let Some(map) = &self.map else { return work() };
        let stack = libc::stack_t { ss_sp: map.stack(), ss_flags: 0, ss_size: map.stack_bytes() };
        // SAFETY: the stack is mapped, and is used by nothing else. It stays mapped until `Restore`
        // sets the previous stack again.
        if unsafe { libc::sigaltstack(&raw const stack, null_mut()) } != 0 {
            return work();
        }
        let _restore = Restore(previous);
        work()
    }
}

/// Guard that restores the thread's previous stack, also after a panic.
struct Restore(libc::stack_t);

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: this was the thread's stack before, and its owner does not know of the change.
        unsafe { libc::sigaltstack(&raw const self.0, null_mut()) };
    }
}

/// Returns the current alternate stack of the thread, if the system reports it.
fn current() -> Option<libc::stack_t> {
    let mut stack = libc::stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: the call only writes the stack's description.
    (unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) } == 0).then_some(stack)
}

/// Returns the number of bytes that the system writes on the stack for a signal: at least
/// `MINSIGSTKSZ`, which suffices for old processors.
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
    /// Maps a stack of at least `bytes` bytes.
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
        // SAFETY: no thread uses this stack now: only `SignalStack::run` installs it, and that call
        // borrows the `SignalStack`.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.base), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Address of a local variable of [`deep_handler`]. It shows on which stack the handler ran.
    static PLACE: AtomicUsize = AtomicUsize::new(0);

    /// A handler that needs more stack than the alternate stacks of the standard library have.
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
                    // SAFETY: the handler for this signal is `deep_handler`.
                    assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
                    current().map(describe).unwrap()
                });
                assert!(bytes >= register_bytes() + NEW_BYTES && begin != own.0, "{bytes}");
                assert!((begin..begin + bytes).contains(&PLACE.load(Ordering::SeqCst)));
                assert_eq!(current().map(describe), Some(own));
            }
            // The previous stack is also restored after a panic. A stack that is large enough is
            // not replaced.
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
