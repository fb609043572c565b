//! Signals that would end the process without a message.
//!
//! A write beyond the limit of a file's size (`ulimit -f`) raises SIGXFSZ. The signal is ignored.
//! So the write fails, and the command reports it. [`ixc_files::page_faults`] handles SIGBUS.

/// Ignores SIGXFSZ.
pub fn install() {
    // SAFETY: it changes only the action of this signal. If the system refuses, nothing changes.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
