//! The SIGBUS handler that replaces guarded mappings by zeros.

use std::cell::UnsafeCell;
use std::sync::Once;
use std::sync::atomic::Ordering;

use super::table::{self, PageRange};

/// The program's SIGBUS handler that was installed before this one.
struct Previous(UnsafeCell<libc::sigaction>);

// SAFETY: the cell is written once, before the handler is installed, and only read afterwards.
unsafe impl Sync for Previous {}

// SAFETY: all bytes of a `sigaction` may be zero: the default action, no mask, no flags.
static PREVIOUS: Previous = Previous(UnsafeCell::new(unsafe { std::mem::zeroed() }));
static INSTALL: Once = Once::new();

/// Installs the handler once. If the system refuses, SIGBUS keeps its previous action.
pub(super) fn install() {
    INSTALL.call_once(|| {
        // SAFETY: only this thread runs this function, once, and no handler of ours exists yet.
        // The new action is complete, and its handler makes only async-signal-safe calls.
        unsafe {
            let previous = PREVIOUS.0.get();
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), previous) != 0 {
                return;
            }
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_mask = (*previous).sa_mask;
            // The handler runs on the thread's alternate stack, if the thread has one. Go programs
            // require this.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    });
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the system passes a valid pointer. The address is used only for
    // BUS_ADRERR, for which the system sets it.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code == libc::BUS_ADRERR && replace(address) {
        return;
    }
    // SAFETY: the previous action is not written after the handler is installed.
    let previous = unsafe { *PREVIOUS.0.get() };
    match previous.sa_sigaction {
        libc::SIG_IGN if is_sent(code) => {}
        libc::SIG_IGN | libc::SIG_DFL => end(signal, code),
        address => {
            let is_for_one_signal = previous.sa_flags & libc::SA_RESETHAND != 0;
            if is_for_one_signal {
                // SAFETY: the call is async-signal-safe. For SA_RESETHAND, the system also resets
                // the action before it calls a handler.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            call(address, &previous, signal, info, context);
            // The previous handler has restored the default action and expects the signal to end
            // the process.
            if !is_for_one_signal && is_sent(code) && has_default_action(signal) {
                end(signal, code);
            }
        }
    }
}

/// Returns whether a program sent the signal, or the system only announced broken memory. After the
/// handler such a signal does not come again, but a real fault does.
fn is_sent(code: libc::c_int) -> bool {
    code <= 0 || code == libc::BUS_MCEERR_AO
}

/// Ends the process by restoring the signal's default action. A fault occurs again when the handler
/// returns; a sent signal is raised again here.
fn end(signal: libc::c_int, code: libc::c_int) {
    // SAFETY: both calls are async-signal-safe.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if is_sent(code) {
            libc::raise(signal);
        }
    }
}

fn has_default_action(signal: libc::c_int) -> bool {
    // SAFETY: all bytes of a `sigaction` may be zero, and the call is async-signal-safe.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_DFL
    }
}

/// Calls the previous handler. With `SA_NODEFER`, the signal is not blocked while that handler
/// runs.
fn call(
    handler: libc::sighandler_t,
    previous: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    if previous.sa_flags & libc::SA_NODEFER != 0 {
        // SAFETY: all bytes of a signal set may be zero, and the calls are async-signal-safe. The
        // system restores the thread's signal mask after the handler.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
    }
    match handler {
        address if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: by setting SA_SIGINFO the program has promised a function of this type.
            let call: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(address) };
            call(signal, info, context);
        }
        address => {
            // SAFETY: without SA_SIGINFO the program has promised a function of this type.
            let call: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(address) };
            call(signal);
        }
    }
}

/// Replaces the guarded mapping that contains `address` by zeros. Returns false if no guarded
/// mapping contains it, or if the system refuses.
fn replace(address: usize) -> bool {
    let mut slots = table::slots();
    let found = slots.find_map(|slot| slot.range_with(address).map(|range| (slot, range)));
    let Some((slot, PageRange { begin, end })) = found else { return false };
    // Other threads may read the new zeros at once, so the mapping is marked as faulty before it is
    // replaced.
    slot.has_faulted.store(true, Ordering::SeqCst);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let at = std::ptr::with_exposed_provenance_mut(begin);
    // SAFETY: the guard's creator has promised that this range is a read-only mapping of a file. It
    // is mapped, because the interrupted thread reads it. The interrupted code must find `errno`
    // unchanged.
    unsafe {
        let number = libc::__errno_location();
        let before = *number;
        let map = libc::mmap(at, end - begin, libc::PROT_READ, flags, -1, 0);
        *number = before;
        map != libc::MAP_FAILED
    }
}
