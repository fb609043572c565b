//! Output to a terminal: no text that a command prints controls the terminal, whoever made it.
//!
//! Commands write to [`standard_output`] and know nothing of this. Where a person reads it, all of it goes through [`Filter`], which leaves out
//! characters that a terminal obeys: escape sequences, controls but for newline and tab, marks that reverse the direction
//! of writing. Names are better escaped by [`Printable`](super::output::Printable), so that they can be told apart; the filter is for what is
//! text (a model's, `detokenize`'s) and for what somebody forgot. In a pipe or a file every byte is as it was made.
//!
//! What commands print on standard error, because standard output has the file that they make, goes through the same
//! ([`standard_error`]). What is said beside it, on standard error, comes through `note!`, which escapes wherever it goes to, as errors are.
//! The progress line's own sequences go there by their own way.

use std::io::{self, IsTerminal, Write};

use super::output::is_terminal_control;

/// Standard output, as commands may have it.
pub fn standard_output() -> Box<dyn Write> {
    let out = io::stdout().lock();
    match out.is_terminal() {
        true => Box::new(io::BufWriter::new(Filter::new(out))),
        false => Box::new(io::BufWriter::new(out)),
    }
}

/// Standard error, for what a command prints while its output goes to standard output.
pub fn standard_error() -> Box<dyn Write> {
    let out = io::stderr();
    match out.is_terminal() {
        true => Box::new(Filter::new(out)),
        false => Box::new(out),
    }
}

/// Passes text on without what steers a terminal. Bytes that are no UTF-8 become U+FFFD.
struct Filter<W> {
    to: W,
    /// The beginning of a character, whose end the next bytes bring: at most three.
    begun: Vec<u8>,
}

impl<W: Write> Filter<W> {
    fn new(to: W) -> Filter<W> {
        Filter { to, begun: Vec::new() }
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
        self.to.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_gets_through_however_it_is_cut() {
        let text = "a\x1b[2J\u{9b}31m\u{202e}é\r\n\t\u{7}漢\x08\u{2066}z".as_bytes();
        let bytes = [text, b"\xff\xc3", text, b"\xe6\xbc"].concat();
        let expected = "a[2J31mé\n\t漢z\u{fffd}\u{fffd}a[2J31mé\n\t漢z";
        for size in 1..=bytes.len() {
            let mut filter = Filter::new(Vec::new());
            bytes.chunks(size).for_each(|part| filter.write_all(part).unwrap());
            assert_eq!(String::from_utf8(filter.to).unwrap(), expected, "in parts of {size}");
        }
    }
}
