//! Signals that would end the process without a message.
//!
//! A write beyond the limit of a file's size (`ulimit -f`) raises SIGXFSZ. The signal is ignored, so
//! the write fails, and the command reports it. SIGBUS of a mapped file is handled by
//! [`ixc_files::page_faults`].

/// Ignores SIGXFSZ.
pub fn install() {
    // SAFETY: it changes only the action of this signal. If the system refuses, nothing changes.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
