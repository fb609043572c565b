//! Output to a terminal. Text that a command prints cannot control the terminal, whatever its
//! source.
//!
//! Commands write to [`standard_output`]. On a terminal, [`Filter`] removes control characters from
//! this output: escape sequences, controls except newline and tab, and marks that reverse the
//! writing direction. In a pipe or a file every byte stays as it is.
//!
//! Names should be escaped by [`Printable`](super::printable::Printable), so that different names
//! look different. The filter is for text of models and of `detokenize`, and for names that were
//! not escaped.
//!
//! If a command writes its output file to standard output, it prints messages to
//! [`standard_error`], through the same filter. Notes on standard error come from `note!`, which
//! always escapes, as error messages do. The progress line writes its own escape sequences
//! directly.
//!
//! Lines that are wider than the terminal are wrapped at words ([`wrap`](super::wrap)). `COLUMNS`
//! sets the width, if it is set.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use terminal_size::{Width, terminal_size_of};

use super::printable::is_terminal_control;
use super::wrap::{Text, Wrapper};

/// Environment variable with the number of columns, which shells set.
const COLUMNS: &str = "COLUMNS";

/// Returns the number of columns in the variable, if it is a number.
pub fn columns_variable() -> Option<usize> {
    std::env::var(COLUMNS).ok()?.trim().parse().ok().filter(|columns| *columns > 0)
}

/// Returns the number of columns of a terminal on standard output; `None` for a pipe, or if the
/// width is unknown.
pub fn output_width() -> Option<usize> {
    width_of(&io::stdout())
}

/// Returns the number of columns of a terminal on standard error.
pub fn error_width() -> Option<usize> {
    width_of(&io::stderr())
}

fn width_of(out: &(impl IsTerminal + std::os::fd::AsFd)) -> Option<usize> {
    if !out.is_terminal() {
        return None;
    }
    columns_variable().or_else(|| {
        let (Width(columns), _) = terminal_size_of(out)?;
        (columns > 0).then_some(columns.into())
    })
}

/// Kind of the text that the command prints next.
static KIND: AtomicU8 = AtomicU8::new(0);

/// Sets the kind of the text that follows on standard output.
pub fn set_text(kind: Text) {
    let number = match kind {
        Text::Report => 0,
        Text::Prose => 1,
        Text::Verbatim => 2,
    };
    KIND.store(number, Ordering::Relaxed);
}

/// Ends a model's text, and shows its last word, which may otherwise wait for more text.
pub fn end_text() {
    if kind() == Text::Prose {
        set_text(Text::Report);
    }
}

fn kind() -> Text {
    match KIND.load(Ordering::Relaxed) {
        0 => Text::Report,
        1 => Text::Prose,
        _ => Text::Verbatim,
    }
}

/// Returns filtered standard output, for commands.
pub fn standard_output() -> Box<dyn Write> {
    let out = io::stdout().lock();
    match out.is_terminal() {
        true => Box::new(io::BufWriter::new(Filter::new(out, output_width()))),
        false => Box::new(io::BufWriter::new(out)),
    }
}

/// Returns standard error, for messages of a command whose output goes to standard output.
pub fn standard_error() -> Box<dyn Write> {
    let out = io::stderr();
    match out.is_terminal() {
        true => Box::new(Filter::new(out, error_width())),
        false => Box::new(out),
    }
}

/// Filter that removes terminal controls from text and wraps lines. Bytes that are not UTF-8 become
/// U+FFFD.
struct Filter<W> {
    to: W,
    /// Bytes of an incomplete UTF-8 character, at most three.
    begun: Vec<u8>,
    /// Wraps lines, if the width is known.
    wrapper: Option<Wrapper>,
}

impl<W: Write> Filter<W> {
    fn new(to: W, width: Option<usize>) -> Filter<W> {
        Filter { to, begun: Vec::new(), wrapper: width.map(Wrapper::new) }
    }
}

impl<W: Write> Write for Filter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.begun);
        all.extend(bytes);
        let mut shown = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            shown.extend(chunk.valid().chars().filter(|&c| matches!(c, '\n' | '\t') || !is_terminal_control(c)));
            let unfinished = |bytes| std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none());
            match chunk.invalid() {
                [] => {}
                begun if chunks.peek().is_none() && unfinished(begun) => self.begun = begun.into(),
                _ => shown.push(char::REPLACEMENT_CHARACTER),
            }
        }
        if let Some(wrapper) = &mut self.wrapper {
            let text = std::mem::take(&mut shown);
            wrapper.push(&text, kind(), &mut shown);
        }
        self.to.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // A word at the end of a model's text may still get more letters, so it is not written yet.
        if let Some(wrapper) = self.wrapper.as_mut().filter(|_| kind() != Text::Prose) {
            let mut rest = String::new();
            wrapper.finish(kind(), &mut rest);
            self.to.write_all(rest.as_bytes())?;
        }
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_filtered_at_any_chunk_size() {
        let text = "a\x1b[2J\u{9b}31m\u{202e}é\r\n\t\u{7}漢\x08\u{2066}z".as_bytes();
        let bytes = [text, b"\xff\xc3", text, b"\xe6\xbc"].concat();
        let expected = "a[2J31mé\n\t漢z\u{fffd}\u{fffd}a[2J31mé\n\t漢z";
        for size in 1..=bytes.len() {
            let mut filter = Filter::new(Vec::new(), None);
            bytes.chunks(size).for_each(|part| filter.write_all(part).unwrap());
            assert_eq!(String::from_utf8(filter.to).unwrap(), expected, "in parts of {size}");
        }
    }
}
