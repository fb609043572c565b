//! Messages of the library, for a callback of the program.
//!
//! `tracing` allows one receiver in a process, so the process has one callback.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::{self, Write};
use std::sync::{OnceLock, PoisonError, RwLock};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::metadata::Metadata;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};

use crate::error::{Failure, IxcStatus, status};

/// `ixc_log_callback`.
pub type IxcLogCallback = Option<unsafe extern "C" fn(user: *mut c_void, level: c_int, text: *const c_char)>;

/// Levels by their numbers, from `IXC_LOG_ERROR` on.
const LEVELS: [Level; 5] = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];

/// A callback, its user pointer, and the max level of its messages.
#[derive(Clone, Copy)]
struct Sink {
    callback: unsafe extern "C" fn(*mut c_void, c_int, *const c_char),
    user: *mut c_void,
    max: LevelFilter,
}

// SAFETY: the header requires a callback that any thread may call with this pointer.
unsafe impl Send for Sink {}
// SAFETY: the header requires a callback that any thread may call with this pointer.
unsafe impl Sync for Sink {}

/// The log callback of this process.
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Returns the number of a level in the header.
fn number(level: &Level) -> c_int {
    (1..).zip(&LEVELS).find(|(_, other)| *other == level).map_or(0, |(number, _)| number)
}

/// Subscriber that passes all log messages to the callback.
struct Receiver;

/// Writer of a message's fields as one line.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, "{name}={value:?}"),
        };
    }
}

impl Subscriber for Receiver {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let sink = SINK.read().unwrap_or_else(PoisonError::into_inner);
        sink.is_some_and(|sink| *metadata.level() <= sink.max)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let text = format!("{}: {}", event.metadata().target(), line.0).replace(['\0', '\n'], " ");
        let text = CString::new(text).unwrap_or_default();
        // The lock is held during the call, so that no call begins after the callback was replaced.
        let sink = SINK.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(sink) = *sink {
            // SAFETY: the header requires a callback that takes any text on any thread.
            unsafe { (sink.callback)(sink.user, number(event.metadata().level()), text.as_ptr()) };
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Sets the callback for messages.
///
/// # Safety
/// `callback` is null, or any thread may call it with `user` until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_set_log(max_level: c_int, callback: IxcLogCallback, user: *mut c_void) -> IxcStatus {
    status(|| {
        static IS_SET: OnceLock<bool> = OnceLock::new();
        let level = usize::try_from(max_level).ok().and_then(|number| LEVELS.get(number.checked_sub(1)?));
        let sink = match (callback, level) {
            (None, _) => None,
            (Some(callback), Some(level)) => Some(Sink { callback, user, max: (*level).into() }),
            (Some(_), None) => {
                return Err(Failure::usage(format!(
                    "there is no log level {max_level}; log levels are 1 to {}",
                    LEVELS.len()
                )));
            }
        };
        if sink.is_some() && !*IS_SET.get_or_init(|| tracing::subscriber::set_global_default(Receiver).is_ok()) {
            let text = "this program has already installed another receiver for messages of Rust's `tracing`";
            return Err(Failure { status: IxcStatus::Failed, text: text.to_owned() });
        }
        *SINK.write().unwrap_or_else(PoisonError::into_inner) = sink;
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    })
}
