//! Ctrl-C.
//!
//! While a text is written, token by token, the first one stops the text: what there is stays, and a conversation goes on. At any other time
//! (loading, compiling, packing, reading a prompt, measuring, waiting for the user) it ends the program with status 130: nothing
//! is lost by that, files appear under their names when they are whole, and what `compile` keeps to go on with it keeps as
//! if it had been killed. So does a second one, and a first one that no token answers: a step may take for ever, since nothing bounds
//! the time of a plan's kernels. A token is waited for three times as long as any has taken in this text, its prompt included,
//! and a second at least.
//!
//! Text that was made is flushed with each token, so that ending the program loses none of it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Exit status after Ctrl-C.
pub const STATUS: u8 = 130;

/// What a token may take at least before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(1);
/// How much longer than the others' a token's time may be.
const SLOWER: u32 = 3;

/// The text that is being written.
struct Text {
    /// Whether Ctrl-C came.
    asked: bool,
    /// Whether the one who writes knows.
    heard: bool,
    /// When the last token came.
    last: Instant,
    /// The longest time of a token so far.
    longest: Duration,
}

static TEXT: Mutex<Option<Text>> = Mutex::new(None);
/// What the first one does instead, where something is to be brought to an end.
static INSTEAD: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);
/// Something of [`TEXT`] changed.
static CHANGED: Condvar = Condvar::new();

fn text() -> MutexGuard<'static, Option<Text>> {
    TEXT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on Ctrl-C is ours.
pub fn install() {
    // Where the system gives no thread for it, Ctrl-C does what it does to any program.
    if let Err(error) = ctrlc::set_handler(asked_for) {
        tracing::warn!(%error, "Ctrl-C is left to the system");
    }
}

/// The next Ctrl-C does this, and the one after it ends the program.
pub fn once(instead: impl FnOnce() + Send + 'static) {
    *INSTEAD.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(instead));
}

/// Ctrl-C came.
fn asked_for() {
    let instead = INSTEAD.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(instead) = instead {
        return instead();
    }
    let mut text = text();
    let Some(text) = text.as_mut().filter(|text| !text.asked) else { end() };
    text.asked = true;
    let patience = PATIENCE.max(text.longest.saturating_mul(SLOWER));
    // On a thread of its own, so that another Ctrl-C is seen meanwhile.
    let watch = std::thread::Builder::new().name("ctrl-c".into()).spawn(move || watch(patience));
    if watch.is_err() {
        end();
    }
}

/// Ends the program unless the one who writes has heard by then.
fn watch(patience: Duration) {
    let waits = |text: &mut Option<Text>| text.as_ref().is_some_and(|text| text.asked && !text.heard);
    let (_text, waited) = CHANGED.wait_timeout_while(text(), patience, waits).unwrap_or_else(PoisonError::into_inner);
    if waited.timed_out() {
        end();
    }
}

fn end() -> ! {
    super::output::note!("");
    std::process::exit(STATUS.into());
}

/// A text is being written, until this is dropped.
pub struct Writing(());

impl Writing {
    /// The first token has come; getting there took so long.
    pub fn begin(took: Duration) -> Writing {
        *text() = Some(Text { asked: false, heard: false, last: Instant::now(), longest: took });
        Writing(())
    }

    /// A token has come. Whether the text is to end here.
    pub fn asked(&self) -> bool {
        let mut text = text();
        let Some(text) = &mut *text else { return false };
        let now = Instant::now();
        text.longest = text.longest.max(now.saturating_duration_since(text.last));
        (text.last, text.heard) = (now, text.asked);
        CHANGED.notify_all();
        text.asked
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        *text() = None;
        CHANGED.notify_all();
    }
}

/// The end of a command that Ctrl-C stopped after everything was written.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;
