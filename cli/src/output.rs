//! Output on the terminal: formatted numbers, names without control characters, JSON, and errors.

use std::env;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ixc_runtime::progress::{Activity, ProgressCounter, ProgressReading};
use serde::Serialize;

use super::hints::hint;
use super::library_error::LibraryError;
use super::terminal;
use super::wrap::{Text, wrap};

pub use super::printable::{Printable, is_terminal_control};
pub use ixc_ir::units::{Bytes, Count, count_text};

/// Verbosity of messages other than a command's output: 0 with `--quiet`, else 1 plus the number of
/// `--verbose`.
static LOUDNESS: AtomicU8 = AtomicU8::new(1);

/// Sets the verbosity of messages, once, when the command line is read.
pub fn set_loudness(quiet: bool, verbose: u8) {
    LOUDNESS.store(if quiet { 0 } else { verbose.saturating_add(1) }, Ordering::Relaxed);
}

/// Returns whether only errors are printed (`--quiet`).
pub fn is_quiet() -> bool {
    LOUDNESS.load(Ordering::Relaxed) == 0
}

/// Returns whether details are printed (`--verbose`).
pub fn is_verbose() -> bool {
    LOUDNESS.load(Ordering::Relaxed) > 1
}

/// Prints a message on standard error, in addition to the command's output. Control characters are
/// escaped. Prints nothing with `--quiet`.
macro_rules! note {
    ($($argument:tt)*) => {
        if !$crate::output::is_quiet() {
            $crate::output::print_stderr(&format!($($argument)*));
        }
    };
}
pub(super) use note;

/// Prints a requested fact on standard error, also with `--quiet`. Escapes terminal controls.
macro_rules! fact {
    ($($argument:tt)*) => {
        $crate::output::print_stderr(&format!($($argument)*))
    };
}
pub(super) use fact;

/// The first word of an error.
const ERROR: &str = "error:";
/// Escape sequences (ECMA-48): bold red, dim, and the end of both.
const RED: &str = "\x1b[1;31m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Prints lines on standard error. Escapes terminal controls, and wraps lines at the terminal's
/// width. A leading `error:` is red, as in clap's errors.
pub fn print_stderr(text: &str) {
    let text = escape_and_wrap(text);
    match text.strip_prefix(ERROR).filter(|_| colours()) {
        Some(rest) => write_error(&format!("{RED}{ERROR}{PLAIN}{rest}")),
        None => write_error(&text),
    }
}

/// Prints dim lines, unless `--quiet` is given.
pub fn print_dim(text: &str) {
    match (is_quiet(), colours()) {
        (true, _) => {}
        (false, true) => write_error(&format!("{DIM}{}{PLAIN}", escape_and_wrap(text))),
        (false, false) => write_error(&escape_and_wrap(text)),
    }
}

/// Prints a line for programs on standard error, unchanged.
pub fn print_stderr_unchanged(text: &str) {
    write_error(&lines(text));
}

/// Escapes lines, and wraps them if standard error is a terminal.
fn escape_and_wrap(text: &str) -> String {
    let text = lines(text);
    terminal::error_width().map_or_else(|| text.clone(), |width| wrap(&text, width))
}

fn write_error(text: &str) {
    // If standard error is closed, the message is lost; `eprintln!` would panic.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Condition for colours in text on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Colours {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Colours {
    /// Returns the condition as clap's type.
    pub fn choice(self) -> clap::ColorChoice {
        match self {
            Colours::Auto => clap::ColorChoice::Auto,
            Colours::Always => clap::ColorChoice::Always,
            Colours::Never => clap::ColorChoice::Never,
        }
    }
}

static COLOURS: AtomicU8 = AtomicU8::new(0);

/// Sets the condition for colours.
pub fn set_colours(colours: Colours) {
    COLOURS.store(colours as u8, Ordering::Relaxed);
}

/// Returns whether text on standard error has colours.
pub fn colours() -> bool {
    let colours = COLOURS.load(Ordering::Relaxed);
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    match colours {
        _ if colours == Colours::Always as u8 => true,
        _ if colours == Colours::Never as u8 => false,
        _ => io::stderr().is_terminal() && !is_set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb"),
    }
}

/// Escapes terminal controls in a text of several lines, as [`Printable`] does. Newlines and tabs
/// stay.
pub fn lines(text: &str) -> String {
    let printable =
        |line: &str| line.split('\t').map(|part| Printable(part).to_string()).collect::<Vec<_>>().join("\t");
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Time before the first progress line, unless [`DELAY`] sets another one.
const PATIENCE: Duration = Duration::from_secs(1);
/// Environment variable with the time before the first progress line, in seconds. git has a similar
/// one.
const DELAY: &str = "IXC_PROGRESS_DELAY";
/// Time between two updates of the progress line.
const PERIOD: Duration = Duration::from_millis(100);

/// Progress line on standard error; shown only on a terminal and only if the operation takes long.
pub struct Line {
    next: Instant,
    shown: bool,
}

impl Line {
    /// Creates the line of an operation that began at `begin`.
    pub fn new(begin: Instant) -> Line {
        static PATIENT: OnceLock<Duration> = OnceLock::new();
        let said = || env::var(DELAY).ok().and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        let patience = *PATIENT.get_or_init(|| said().unwrap_or(PATIENCE));
        Line { next: begin.checked_add(patience).unwrap_or(begin), shown: false }
    }

    /// Shows the progress, unless it was updated within `PERIOD`.
    pub fn show(&mut self, text: fmt::Arguments<'_>) {
        let now = Instant::now();
        if now < self.next || is_quiet() || !io::stderr().is_terminal() {
            return;
        }
        (self.next, self.shown) = (now + PERIOD, true);
        let text = Printable(&text.to_string()).to_string();
        // A progress line that the terminal wraps could not be cleared.
        let most = terminal::error_width().map_or(usize::MAX, |width| width.saturating_sub(1));
        let shown = text.char_indices().nth(most).map_or(&*text, |(end, _)| &text[..end]);
        let _ = write!(io::stderr(), "\r\x1b[K{shown}");
    }

    /// Clears the progress line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Progress line on the terminal. A thread updates it while this value lives.
pub struct Watch {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to show the progress of an operation. Does nothing if standard error is not a
    /// terminal.
    pub fn new(progress: &Arc<ProgressCounter>) -> Watch {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (seen, progress) = (Arc::clone(&stop), Arc::clone(progress));
        let watch = move || {
            let (mut line, mut rate, mut last) = (Line::new(Instant::now()), Rate::default(), None);
            let (lock, changed) = &*seen;
            let mut stopped = lock.lock().unwrap_or_else(PoisonError::into_inner);
            while !*stopped {
                let reading = progress.read();
                if last.replace(reading.activity) != Some(reading.activity) {
                    rate = Rate::default();
                }
                line.show(format_args!("{}", progress_text(&reading, &mut rate, Instant::now())));
                stopped = changed.wait_timeout(stopped, PERIOD).unwrap_or_else(PoisonError::into_inner).0;
            }
            line.clear();
        };
        let thread = (io::stderr().is_terminal() && !is_quiet())
            .then(|| thread::Builder::new().name("progress".into()).spawn(watch).ok());
        Watch { stop, thread: thread.flatten() }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and an error would change nothing here.
            let _ = thread.join();
        }
    }
}

/// Returns the progress as text.
fn progress_text(reading: &ProgressReading, rate: &mut Rate, now: Instant) -> String {
    let &ProgressReading { activity, done, total } = reading;
    let (what, unit) = match activity {
        Activity::Compiling => return "compiling the model".into(),
        Activity::Generating => return "generating code".into(),
        Activity::Measuring => return "measuring the machine".into(),
        Activity::Checking => ("checking weights", Unit::Bytes),
        Activity::Packing => ("packing weights", Unit::Bytes),
        Activity::Experts => ("reading pinned experts", Unit::Bytes),
        Activity::Prompt => ("reading the prompt", Unit::Tokens),
        Activity::Tokens => ("generating tokens", Unit::Tokens),
    };
    let (done_of, rate) = (unit.part(done, total), rate.at(now, done, total, unit));
    format!("{what}: {done_of}{rate}")
}

/// Unit of a progress count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, in binary units.
    Bytes,
    /// Unit of tokens.
    Tokens,
}

impl Unit {
    fn part(self, done: u64, total: u64) -> String {
        match self {
            Unit::Bytes => format!("{} of {}", Bytes(done), Bytes(total)),
            Unit::Tokens => format!("{done} of {}", count_text(total, "token")),
        }
    }

    fn rate(self, rate: f64) -> String {
        match self {
            Unit::Bytes => format!("{}/s", Bytes(rate as u64)),
            Unit::Tokens => format!("{rate:.1} tokens/s"),
        }
    }
}

/// Rate and remaining time of an operation, from its progress at the start and now.
#[derive(Default)]
pub struct Rate {
    begin: Option<(Instant, u64)>,
}

impl Rate {
    /// Returns rate and time left at `done` of `total`, such as `, 512 MiB/s, 1:05 left`; an empty
    /// text if there is too little progress to tell.
    pub fn at(&mut self, now: Instant, done: u64, total: u64, unit: Unit) -> String {
        let &mut (begin, first) = self.begin.get_or_insert((now, done));
        let (seconds, more) = (now.saturating_duration_since(begin).as_secs_f64(), done.saturating_sub(first));
        if seconds < PERIOD.as_secs_f64() || more == 0 {
            return String::new();
        }
        let rate = more as f64 / seconds;
        let left = (total.saturating_sub(done) as f64 / rate).ceil() as u64;
        let (hours, minutes, seconds) = (left / 3600, left / 60 % 60, left % 60);
        let left = match hours {
            0 => format!("{minutes}:{seconds:02}"),
            _ => format!("{hours}:{minutes:02}:{seconds:02}"),
        };
        format!(", {}, {left} left", unit.rate(rate))
    }
}

/// Returns bytes as text. A byte that is not UTF-8 becomes an escape such as `\xe4`.
pub fn lossless(bytes: &[u8]) -> String {
    let chunks = bytes.utf8_chunks();
    let texts = chunks.map(|chunk| {
        let rest: String = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")).collect();
        Printable(chunk.valid()).to_string() + &rest
    });
    texts.collect()
}

/// Facts, preceded by the name and version of their schema, such as `ixc.inspect.v1`. The version
/// grows when a field is removed or changes its meaning; a new field does not change it.
#[derive(Serialize)]
pub struct Document<'f, F> {
    schema: &'static str,
    #[serde(flatten)]
    facts: &'f F,
}

impl<'f, F: Serialize> Document<'f, F> {
    /// Creates a document from facts, which must be a map.
    pub fn new(schema: &'static str, facts: &'f F) -> Document<'f, F> {
        Document { schema, facts }
    }
}

/// Writes facts as one JSON document that names its schema, with a newline after it.
///
/// # Errors
/// If writing to `out` fails.
pub fn json(out: &mut dyn Write, schema: &'static str, facts: &impl Serialize) -> io::Result<()> {
    terminal::set_text(Text::Verbatim);
    serde_json::to_writer_pretty(&mut *out, &Document::new(schema, facts)).map_err(io::Error::from)?;
    writeln!(out)
}

/// Max length of a cause's text, in bytes: a name in a hostile file may have megabytes.
const LONGEST_CAUSE: usize = 4096;

/// Returns the text, or its beginning if it is too long.
fn shorten(cause: &str) -> &str {
    &cause[..cause.floor_char_boundary(LONGEST_CAUSE)]
}

/// Returns an error with its causes as text that is safe to print. Each cause with new information
/// gets a line, and a hint follows.
pub fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut said = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if said.contains(&cause) {
            continue;
        }
        let lead = if text.is_empty() { "error: " } else { "\n  because: " };
        text.push_str(lead);
        // Errors in IR text have a source line and a line with a caret, so their newlines are kept.
        text.push_str(&lines(shorten(&cause)));
        said.push_str(&cause);
    }
    let hint = error.chain().find_map(LibraryError::downcast).as_ref().and_then(hint);
    text + &hint.map_or_else(String::new, |hint| format!("; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_send_terminal_escapes() {
        assert_eq!(Printable("a\x1b[31m\u{202e}b\n").to_string(), "a\\u{1b}[31m\\u{202e}b\\n");
    }

    #[test]
    fn incomplete_utf8_is_printed_as_escapes() {
        assert_eq!(lossless("é\n".as_bytes()), "é\\n");
        assert_eq!(lossless(b"a\xe4\xb8b\xff"), "a\\xe4\\xb8b\\xff");
    }

    #[test]
    fn rate_excludes_progress_of_earlier_runs() {
        let (mut rate, begin) = (Rate::default(), Instant::now());
        let mut at =
            |seconds, done: u64| rate.at(begin + Duration::from_secs(seconds), done << 20, 10_000 << 20, Unit::Bytes);
        // Progress that was made before the first call does not count for the rate.
        assert_eq!(at(0, 4000), "");
        assert_eq!(at(1, 4000), "");
        assert_eq!(at(2, 4200), ", 100 MiB/s, 0:58 left");
        assert_eq!(at(20, 4020), ", 1 MiB/s, 1:39:40 left");
        assert_eq!(at(60, 10_000), ", 100 MiB/s, 0:00 left");
    }

    #[test]
    fn progress_shows_activity_rate_and_time_left() {
        let (progress, begin) = (ProgressCounter::default(), Instant::now());
        let mut rate = Rate::default();
        let mut at = |seconds: u64| progress_text(&progress.read(), &mut rate, begin + Duration::from_secs(seconds));
        assert_eq!(at(0), "compiling the model");
        progress.begin(Activity::Prompt, 4096);
        assert_eq!(at(1), "reading the prompt: 0 of 4096 tokens");
        progress.add(512);
        assert_eq!(at(5), "reading the prompt: 512 of 4096 tokens, 128.0 tokens/s, 0:28 left");
        progress.begin(Activity::Packing, 3 << 30);
        progress.add(1 << 30);
        assert!(at(9).starts_with("packing weights: 1 GiB of 3 GiB"));
    }

    #[test]
    fn repeated_causes_are_printed_once() {
        let error = anyhow::anyhow!("inner").context("outer: inner").context("top");
        assert_eq!(describe(&error), "error: top\n  because: outer: inner");
    }

    #[test]
    fn causes_are_short_and_printable() {
        assert_eq!(lines("a\tb\n\x1b[2J"), "a\tb\n\\u{1b}[2J");
        assert_eq!(describe(&anyhow::anyhow!("é".repeat(1 << 20))).len(), "error: ".len() + LONGEST_CAUSE);
    }
}
