//! Ctrl-C: the first stops what is being written, at the next token; where nothing is being written, or the second, ends the
//! program.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);
static WAITING: AtomicBool = AtomicBool::new(false);

/// From here on Ctrl-C is ours.
pub fn install() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if WAITING.load(Ordering::Relaxed) || ASKED.swap(true, Ordering::Relaxed) {
            super::output::note!("");
            std::process::exit(ixc::error::INTERRUPTED.into());
        }
    })?;
    Ok(())
}

/// Whether Ctrl-C came.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Whether Ctrl-C came, and forgets it.
pub fn take() -> bool {
    ASKED.swap(false, Ordering::Relaxed)
}

/// Does what waits for the user: Ctrl-C ends the program meanwhile.
pub fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    WAITING.store(true, Ordering::Relaxed);
    let result = wait();
    WAITING.store(false, Ordering::Relaxed);
    result
}

/// The end of a command that Ctrl-C stopped after everything was written.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;
