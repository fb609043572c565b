//! Input of a conversation: lines, which the user can edit if the terminal supports it, and
//! messages of one or several lines.
//!
//! A message is one line, one paste, lines joined by a final `\`, or all text between two `"""`.
//!
//! Lines are remembered across conversations in a file that only its user may read (see
//! [`history_path`]). Lines that begin with a space are not saved.

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use ixc_files::private_files;
use rustyline::Editor;
use rustyline::completion::Completer;
use rustyline::config::{Behavior, CompletionType, Config};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};

use super::BadInput;
use super::output::{colours, note};

/// Prompt of the first line of a message; [`CONTINUATION`] is that of the other lines.
const PROMPT: &str = "> ";
const CONTINUATION: &str = "... ";
/// Start and end of a message of several lines.
const QUOTES: &str = "\"\"\"";
/// Environment variable that names the history file; empty for none.
const HISTORY: &str = "IXC_HISTORY";
/// First line of a history file.
const HISTORY_BEGINS: &[u8] = b"#V2\n";
/// Max number of remembered messages.
const MAX_HISTORY: usize = 1000;

/// Result of reading a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputMessage {
    /// A line, which may be a command.
    Line(String),
    /// Several lines, or quoted ones, which are never a command.
    Text(String),
    /// Ctrl-C, which discards the line.
    Cleared,
    /// Ctrl-D, or the end of the input.
    End,
}

/// Result of reading one line: its text, a cleared line, or the end of the input.
enum Line {
    Text(String),
    Cleared,
    End,
}

/// Callbacks of the line editor: Tab completes commands, and the user's input has another style
/// than answers.
#[derive(Debug)]
struct LineHelper {
    commands: Vec<&'static str>,
    colours: bool,
}

/// Escape sequences (ECMA-48): bold green for the prompt, bold for the input, and the end of both.
const PROMPT_STYLE: &str = "\x1b[1;32m";
const INPUT_STYLE: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

impl LineHelper {
    fn style<'t>(&self, text: &'t str, style: &str) -> Cow<'t, str> {
        match self.colours && !text.is_empty() {
            true => format!("{style}{text}{PLAIN}").into(),
            false => text.into(),
        }
    }
}

impl Highlighter for LineHelper {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        self.style(line, INPUT_STYLE)
    }

    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        self.style(prompt, PROMPT_STYLE)
    }

    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        self.colours
    }
}

impl Completer for LineHelper {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..at];
        let names = self.commands.iter().filter(|name| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, names.map(|name| (*name).to_owned()).collect()))
    }
}

impl Hinter for LineHelper {
    type Hint = String;
}

impl Validator for LineHelper {}

impl Helper for LineHelper {}

type LineEditor = Editor<LineHelper, FileHistory>;

/// Reader of a conversation's lines.
pub struct Lines {
    /// Line editor, if the terminal supports one.
    editor: Option<LineEditor>,
    /// File of remembered lines.
    history: Option<PathBuf>,
}

impl Lines {
    /// Creates a reader of standard input. On a terminal, Tab completes these commands.
    pub fn new(commands: Vec<&'static str>) -> Lines {
        let mut lines = Lines { editor: editor(), history: None };
        if let Some(editor) = &mut lines.editor {
            editor.set_helper(Some(LineHelper { commands, colours: colours() }));
        }
        if let (Some(editor), Some(path)) = (&mut lines.editor, history_path()) {
            match prepare(&path).and_then(|()| editor.load_history(&path).map_err(io::Error::other)) {
                Ok(()) => lines.history = Some(path),
                Err(error) => note!("ixc: cannot read the history of input lines: {}: {error}", path.display()),
            }
        }
        lines
    }

    /// Reads the next message.
    ///
    /// # Errors
    /// When the terminal or standard input cannot be read.
    pub fn message(&mut self) -> anyhow::Result<InputMessage> {
        let mut message = Message::default();
        let mut prompt = PROMPT;
        loop {
            match self.line(prompt)? {
                Line::Text(line) => {
                    if let Some(typed) = message.push(&line) {
                        self.remember(&message.history_entry);
                        return Ok(typed);
                    }
                }
                Line::Cleared => return Ok(InputMessage::Cleared),
                Line::End => return Ok(InputMessage::End),
            }
            prompt = CONTINUATION;
        }
    }

    /// Asks a question, and returns whether the answer is `y` or `yes`.
    ///
    /// # Errors
    /// See [`Lines::message`].
    pub fn agrees(&mut self, question: &str) -> anyhow::Result<bool> {
        Ok(match self.line(&format!("{question} [y/N] "))? {
            Line::Text(answer) => matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"),
            Line::Cleared | Line::End => false,
        })
    }

    fn line(&mut self, prompt: &str) -> anyhow::Result<Line> {
        let failed = |error| ixc_error::Error::io("-".as_ref(), "read")(error);
        let Some(editor) = &mut self.editor else {
            let _ = write!(io::stderr(), "{prompt}");
            let mut line = Vec::new();
            let read = io::stdin().lock().read_until(b'\n', &mut line).map_err(failed)?;
            if read == 0 {
                note!("");
                return Ok(Line::End);
            }
            let line = ixc_files::without_mark(&line).map_err(|error| BadInput(error.to_string()))?;
            return Ok(Line::Text(String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']).to_owned()));
        };
        match editor.readline(prompt) {
            Ok(line) => Ok(Line::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Line::Cleared),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                note!("The input line is not UTF-8 and was ignored.");
                Ok(Line::Cleared)
            }
            Err(ReadlineError::Io(error)) => Err(failed(error).into()),
            Err(error) => Err(failed(io::Error::other(error)).into()),
        }
    }

    /// Adds a message to the history, in memory and in the file.
    fn remember(&mut self, message: &str) {
        let Some(editor) = &mut self.editor else { return };
        // The editor does not add a line that begins with a space.
        let added = editor.add_history_entry(message);
        let Some(path) = self.history.as_ref().filter(|_| matches!(added, Ok(true))) else { return };
        if let Err(error) = editor.append_history(path) {
            note!("ixc: cannot write the history of input lines: {}: {error}", path.display());
            self.history = None;
        }
    }
}

/// Returns a line editor, if there is a terminal that supports it.
fn editor() -> Option<LineEditor> {
    let can = |term: &str| !matches!(term, "dumb" | "emacs" | "cons25");
    if !io::stdin().is_terminal() || !std::env::var("TERM").is_ok_and(|term| can(&term)) {
        return None;
    }
    // Standard output is for the model's text, so the editor uses the terminal itself.
    #[expect(clippy::disallowed_methods, reason = "the terminal, or nothing is edited")]
    OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
    let config = Config::builder().behavior(Behavior::PreferTerm).history_ignore_space(true);
    let config = config.completion_type(CompletionType::List);
    let config = config.max_history_size(MAX_HISTORY).ok()?.build();
    Editor::with_config(config).ok()
}

/// Returns the file of remembered lines: `IXC_HISTORY` (no file if it is empty), or else
/// `$XDG_STATE_HOME/ixc/history` or `~/.local/state/ixc/history`.
fn history_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(HISTORY) {
        return Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty());
    }
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(base.join("ixc/history"))
}

/// Creates the file of remembered lines if it does not exist, readable only by its user.
fn prepare(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        private_files::create_folder(folder)?;
    }
    // The editor writes to this file and sets its mode. It must not be a device, another user's
    // file or a file of another kind.
    let mut start = Vec::new();
    private_files::open_own(path)?.take(HISTORY_BEGINS.len() as u64).read_to_end(&mut start)?;
    match start.is_empty() || start == HISTORY_BEGINS {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the file is not a history of input lines; it is left as it is",
        )),
    }
}

/// Message whose end has not been read yet.
#[derive(Debug, Default)]
struct Message {
    text: String,
    is_quoted: bool,
    several: bool,
    /// History entry of the message. Entering the entry again gives the same message.
    history_entry: String,
}

impl Message {
    /// Adds a line or a paste, and returns the message if it ends here.
    fn push(&mut self, line: &str) -> Option<InputMessage> {
        let mut line = line.trim_end_matches('\n');
        if let Some(rest) = line.trim_start().strip_prefix(QUOTES).filter(|_| !self.several) {
            self.is_quoted = true;
            line = rest;
        }
        let first = !std::mem::replace(&mut self.several, true);
        let (part, ends) = match self.is_quoted {
            true => line.trim_end().strip_suffix(QUOTES).map_or((line, false), |part| (part, true)),
            // An escaped backslash does not continue the line.
            false => match line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 {
                1 => (&line[..line.len() - 1], false),
                _ => (line, true),
            },
        };
        if !first {
            self.text.push('\n');
        }
        self.text.push_str(part);
        if !ends {
            return None;
        }
        let text = std::mem::take(&mut self.text);
        self.history_entry = if self.is_quoted { format!("{QUOTES}{text}{QUOTES}") } else { text.clone() };
        // Line breaks next to the quotes are not part of the message, and neither is an empty last
        // line.
        let text = if self.is_quoted { text.trim_matches('\n') } else { text.trim_end_matches('\n') }.to_owned();
        Some(if self.is_quoted || text.contains('\n') { InputMessage::Text(text) } else { InputMessage::Line(text) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_lines_form_messages() {
        let line = |text: &str| InputMessage::Line(text.into());
        let text = |text: &str| InputMessage::Text(text.into());
        for (lines, expected) in [
            (&["hi"][..], line("hi")),
            (&[""], line("")),
            (&["/help"], line("/help")),
            (&["one\\", "two"], text("one\ntwo")),
            (&["C:\\\\"], line("C:\\\\")),
            (&["a\\", ""], line("a")),
            (&["\"\"\"", "one", "", "two\\", "\"\"\""], text("one\n\ntwo\\")),
            (&["\"\"\"one", "two\"\"\" "], text("one\ntwo")),
            (&["\"\"\"/help\"\"\""], text("/help")),
            // A paste of two lines.
            (&["/usr/bin\nis a folder\n"], text("/usr/bin\nis a folder")),
            (&["\"\"\"\na\nb\n\"\"\""], text("a\nb")),
        ] {
            let mut message = Message::default();
            let (last, before) = lines.split_last().unwrap();
            assert!(before.iter().all(|line| message.push(line).is_none()), "{lines:?}");
            assert_eq!(message.push(last), Some(expected.clone()), "{lines:?}");
            assert_eq!(Message::default().push(&message.history_entry), Some(expected), "{lines:?} recalled");
        }
    }
}
