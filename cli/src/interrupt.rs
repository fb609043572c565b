//! Handling of Ctrl-C.
//!
//! While a text is generated, the first Ctrl-C stops the text: the tokens so far stay, and a
//! conversation continues. At any other time (loading, compiling, packing, prefill, measuring,
//! waiting for the user) it ends the program with status 130. Nothing is lost: files get their
//! names when they are complete, and `compile` keeps its partial output, as after a kill.
//!
//! A second Ctrl-C also ends the program, and so does a first one if no further token arrives. A
//! step may run forever, since the running time of a plan's kernels is unbounded. The program waits
//! for a token three times as long as the slowest token of this text took, prompt included, and at
//! least a second.
//!
//! Each token is flushed when it is printed, so that ending the program loses no text.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Exit status after Ctrl-C.
pub const STATUS: u8 = 130;

/// Shortest wait for a token before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(1);
/// Max wait for a token, as a multiple of the slowest token's time.
const SLOWER: u32 = 3;

/// Text that is being generated, and the times of its tokens.
struct Text {
    /// Whether Ctrl-C was pressed.
    is_interrupted: bool,
    /// Whether the writing thread has seen the interruption.
    is_seen: bool,
    /// Time of the last token.
    last: Instant,
    /// Longest time of a token so far.
    longest: Duration,
}

static TEXT: Mutex<Option<Text>> = Mutex::new(None);
/// Action on the first Ctrl-C in place of ending the program, if something has to be shut down.
static ACTION: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);
/// Action before Ctrl-C ends the program, if other processes must end, too.
static AT_END: OnceLock<fn()> = OnceLock::new();
/// Signal of a change to [`TEXT`].
static CHANGED: Condvar = Condvar::new();

fn text() -> MutexGuard<'static, Option<Text>> {
    TEXT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the handler of Ctrl-C.
pub fn install() {
    // Without a thread for the handler, Ctrl-C has its default effect.
    if let Err(error) = ctrlc::set_handler(handle_signal) {
        tracing::warn!(%error, "cannot install a handler for Ctrl-C, so Ctrl-C ends the program at once");
    }
}

/// Sets the action of the next Ctrl-C. The one after it ends the program.
pub fn on_next(action: impl FnOnce() + Send + 'static) {
    *ACTION.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(action));
}

/// Sets the action before Ctrl-C ends the program.
pub fn before_end(action: fn()) {
    // A program sets it once.
    let _ = AT_END.set(action);
}

/// Handles Ctrl-C.
fn handle_signal() {
    let action = ACTION.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(action) = action {
        return action();
    }
    let mut text = text();
    let Some(text) = text.as_mut().filter(|text| !text.is_interrupted) else { end() };
    text.is_interrupted = true;
    let patience = PATIENCE.max(text.longest.saturating_mul(SLOWER));
    // A separate thread waits for the reaction, so that the handler sees another Ctrl-C meanwhile.
    let watch = std::thread::Builder::new().name("ctrl-c".into()).spawn(move || watch(patience));
    if watch.is_err() {
        end();
    }
}

/// Ends the program unless the writing thread reacts within `patience`.
fn watch(patience: Duration) {
    let waits = |text: &mut Option<Text>| text.as_ref().is_some_and(|text| text.is_interrupted && !text.is_seen);
    let (_text, waited) = CHANGED.wait_timeout_while(text(), patience, waits).unwrap_or_else(PoisonError::into_inner);
    if waited.timed_out() {
        end();
    }
}

fn end() -> ! {
    super::output::note!("");
    AT_END.get().into_iter().for_each(|action| action());
    std::process::exit(STATUS.into());
}

/// Guard of a text in generation. While it lives, Ctrl-C ends the text and not the program.
pub struct TextGuard(());

impl TextGuard {
    /// Begins a text. `took` is the time of its first token, prefill included.
    pub fn begin(took: Duration) -> TextGuard {
        *text() = Some(Text { is_interrupted: false, is_seen: false, last: Instant::now(), longest: took });
        TextGuard(())
    }

    /// Records a token, and returns whether the text must end here.
    pub fn is_interrupted(&self) -> bool {
        let mut text = text();
        let Some(text) = &mut *text else { return false };
        let now = Instant::now();
        text.longest = text.longest.max(now.saturating_duration_since(text.last));
        (text.last, text.is_seen) = (now, text.is_interrupted);
        CHANGED.notify_all();
        text.is_interrupted
    }
}

impl Drop for TextGuard {
    fn drop(&mut self) {
        *text() = None;
        CHANGED.notify_all();
    }
}

/// Error of a command that Ctrl-C stopped after everything was written.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;
