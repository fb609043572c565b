//! Signals that would end the process without a message.
//!
//! - SIGBUS: a page of shared memory or of a mapped file is missing. [`ixc_files::page_faults`]
//!   handles pages of mapped model files, and calls this module's handler for all other pages. The
//!   handler prints one line and ends the process with an exit status.
//! - SIGXFSZ: a write exceeded the limit of a file's size (`ulimit -f`). The signal is ignored, so
//!   the write fails, and the command reports it.

/// Error message. A signal handler cannot format text.
const MESSAGE: &[u8] = b"error: a page of shared memory or of a mapped file cannot be read or written: /dev/shm is full, a file was cut short, or its drive failed (SIGBUS)\n";

/// Makes a SIGBUS of a missing page end the process with the status of
/// [`Class::Io`](ixc_failure::Class::Io), and ignores SIGXFSZ.
pub fn install() {
    // SAFETY: it changes only the action of this signal. If the system refuses, nothing changes.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    // SAFETY: all bytes of a `sigaction` may be zero: no mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    // The handler runs on the thread's alternate stack, if there is one, like Rust's own handler of
    // stack overflows.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is complete, and its handler makes only async-signal-safe calls. If the
    // system refuses, nothing changes. It replaces Rust's own handler for this signal, which
    // reports stack overflows; those raise SIGSEGV on Linux.
    unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) };
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the system passes a valid pointer.
    let code = unsafe { (*info).si_code };
    if code == libc::BUS_ADRERR {
        // SAFETY: `write` and `_exit` are async-signal-safe; the message is a static slice. A
        // failed write changes nothing.
        unsafe {
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
            libc::_exit(crate::failure::status(ixc_failure::Class::Io).into());
        }
    }
    // Causes other than a missing page are broken memory, a wrong address, or a signal from another
    // process. The default action is restored, so the signal comes again and ends the process.
    // SAFETY: both functions are async-signal-safe; the default action takes no handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
