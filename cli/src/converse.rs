//! Conversation with the user at the terminal: messages, answers and commands.
//!
//! If a message fails (it does not fit, or the template refuses it), the error is printed and the
//! message removed. The conversation then continues.

use std::path::{Path, PathBuf};

use ixc_files::{Guard, Kind, Output};
use ixc_generate::chat::Chat;
use ixc_text::chat::ToolCall;
use ixc_text::template::Message;
use serde_json::json;

use super::interrupt::Interrupted;
use super::library_error::LibraryError;
use super::lines::{InputMessage, Lines};
use super::output::{Bytes, Printable, count_text, describe, note, print_stderr};
use super::writer::Writer;

/// Whether the conversation continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    End,
}

/// A command that the user can type instead of a message.
struct Command {
    /// All names of the command. The first one is shown in the list of commands.
    names: &'static [&'static str],
    /// Argument, as the list of commands shows it.
    argument: &'static str,
    /// Description in the list of commands.
    about: &'static str,
    act: fn(&mut Conversation<'_, '_>, &str) -> anyhow::Result<Flow>,
}

const COMMANDS: [Command; 8] = [
    Command { names: &["/help", "/?"], argument: "", about: "this list", act: help },
    Command {
        names: &["/regen"],
        argument: "",
        about: "answer the last message again, with the next seed",
        act: regenerate,
    },
    Command { names: &["/system"], argument: "[TEXT]", about: "show the system message, or replace it", act: system },
    Command {
        names: &["/set"],
        argument: "[NAME VALUE]",
        about: "show the settings of sampling, or change one, as in /set temp 0.2",
        act: set,
    },
    Command {
        names: &["/stats"],
        argument: "",
        about: "show how fast the last answer was, and what is in memory",
        act: stats,
    },
    Command { names: &["/save"], argument: "FILE", about: "write the conversation to a file, as JSON", act: save },
    Command {
        names: &["/clear"],
        argument: "",
        about: "begin a new conversation with the same system message",
        act: clear,
    },
    Command {
        names: &["/bye", "/exit", "/quit"],
        argument: "",
        about: "end the conversation, as Ctrl-D does",
        act: end,
    },
];

/// Prints the result of a command or an error, also with `--quiet`.
fn print_result(text: impl std::fmt::Display) {
    print_stderr(&text.to_string());
}

/// Name of the format of a file that [`save`] writes.
const FORMAT: &str = "ixc-conversation";
/// The version of that format.
const VERSION: u32 = 1;
/// File kind of a saved conversation. Files of other kinds are not overwritten.
const CONVERSATION: Kind = Kind {
    name: "saved conversation",
    is: |head| head.windows(FORMAT.len()).any(|window| window == FORMAT.as_bytes()),
    streams: false,
    private: true,
};

/// Conversation with its writer of answers and its source of messages.
struct Conversation<'w, 'a> {
    writer: &'w mut Writer<'a>,
    chat: Chat,
    lines: Lines,
}

impl Writer<'_> {
    /// Runs the conversation until the user ends it.
    ///
    /// # Errors
    /// When the terminal or standard output fails.
    pub fn converse(&mut self, chat: Chat) -> anyhow::Result<()> {
        self.converses = true;
        let names = COMMANDS.iter().flat_map(|command| command.names).copied().collect();
        Conversation { writer: self, chat, lines: Lines::new(names) }.run()
    }
}

impl Conversation<'_, '_> {
    fn run(&mut self) -> anyhow::Result<()> {
        self.introduce();
        // Number of consecutive lines that Ctrl-C discarded.
        let mut cleared = 0;
        loop {
            let typed = self.lines.message()?;
            cleared = if typed == InputMessage::Cleared { cleared + 1 } else { 0 };
            let flow = match typed {
                InputMessage::End => Flow::End,
                InputMessage::Cleared if cleared > 1 => {
                    print_result("Ctrl-D or /bye ends the conversation.");
                    Flow::On
                }
                InputMessage::Cleared => Flow::On,
                InputMessage::Line(line) => self.run_line(&line)?,
                InputMessage::Text(text) => self.say(&text)?,
            };
            if flow == Flow::End {
                return Ok(());
            }
        }
    }

    /// Prints facts about the model, such as its size and context length, and the most important
    /// keys.
    fn introduce(&self) {
        let Writer { session, params, .. } = &*self.writer;
        let (facts, name) = (session.model().facts(), params.model.name());
        let name = Path::new(name.file_name().unwrap_or(name.as_os_str()));
        let format = facts.format.map_or(String::new(), |format| format!(" mostly {}", format.name()));
        let context = match facts.context > session.model().context() {
            true => format!("{} of {} (--ctx)", session.model().context(), facts.context),
            false => session.model().context().to_string(),
        };
        let streamed = session
            .model()
            .engine()
            .stream()
            .map(|store| format!(", experts streamed through {}", Bytes(store.bytes())));
        note!(
            "{}: {}, {}{format}, context {context}, {}, {}{}",
            Printable(&name.to_string_lossy()),
            Printable(&facts.architecture),
            Bytes(facts.bytes),
            session.model().target().name(),
            count_text(session.model().threads() as u64, "thread"),
            streamed.unwrap_or_default()
        );
        note!("Ctrl-C stops an answer, Ctrl-D ends the conversation, /help shows commands.");
    }

    /// Handles a line: a command, or a message.
    fn run_line(&mut self, line: &str) -> anyhow::Result<Flow> {
        // A line that begins with `//` or a space is a message, even if it looks like a command.
        if let Some(message) = line.strip_prefix('/').filter(|rest| rest.starts_with('/')) {
            return self.say(message);
        }
        if !line.starts_with('/') {
            return self.say(line.trim());
        }
        let (name, argument) = line.trim_end().split_once(char::is_whitespace).unwrap_or((line.trim_end(), ""));
        match COMMANDS.iter().find(|command| command.names.contains(&name)) {
            Some(command) => (command.act)(self, argument.trim()),
            None => {
                print_result(format_args!(
                    "There is no command {}; // or a space before it sends the line as a message.",
                    Printable(name)
                ));
                help(self, "")
            }
        }
    }

    /// Sends a message to the model, and writes its answer.
    fn say(&mut self, message: &str) -> anyhow::Result<Flow> {
        if message.trim().is_empty() {
            return Ok(Flow::On);
        }
        self.chat.say(message);
        let answered = self.turn()?;
        if self.chat.take_back().is_some() && !answered {
            print_result("The message has no answer and was removed from the conversation.");
        }
        Ok(Flow::On)
    }

    /// Lets the model answer, and returns whether there is an answer or a part of one. Errors of
    /// the model are printed.
    fn turn(&mut self) -> anyhow::Result<bool> {
        let before = self.chat.messages().len();
        match self.writer.answer(&mut self.chat) {
            Ok(()) => {}
            Err(error) if error.is::<Interrupted>() => {}
            Err(error) if LibraryError::downcast(error.as_ref()).is_some() => print_result(describe(&error)),
            Err(error) => return Err(error),
        }
        Ok(self.chat.messages().len() > before)
    }
}

fn help(_: &mut Conversation<'_, '_>, _: &str) -> anyhow::Result<Flow> {
    for command in &COMMANDS {
        let usage = format!("{} {}", command.names[0], command.argument);
        print_result(format_args!("  {usage:<16} {}", command.about));
    }
    print_result("A message of several lines: paste it, or begin and end it with \"\"\", or end lines with \\.");
    Ok(Flow::On)
}

fn end(_: &mut Conversation<'_, '_>, _: &str) -> anyhow::Result<Flow> {
    Ok(Flow::End)
}

fn clear(talk: &mut Conversation<'_, '_>, _: &str) -> anyhow::Result<Flow> {
    talk.chat.clear();
    let but = if talk.chat.system().is_some() { " but for the system message" } else { "" };
    print_result(format_args!("The conversation is empty{but}."));
    Ok(Flow::On)
}

fn regenerate(talk: &mut Conversation<'_, '_>, _: &str) -> anyhow::Result<Flow> {
    let Some(before) = talk.chat.take_back_answer() else {
        print_result("There is no answer yet.");
        return Ok(Flow::On);
    };
    // Change the seed, since the same seed would give the same answer.
    talk.writer.seed = talk.writer.seed.wrapping_add(1);
    let answered = talk.turn();
    if !matches!(answered, Ok(true)) {
        talk.chat.put_back_answer(before);
        print_result("The previous answer is kept.");
    }
    answered.map(|_| Flow::On)
}

fn system(talk: &mut Conversation<'_, '_>, text: &str) -> anyhow::Result<Flow> {
    if text.is_empty() {
        match talk.chat.system() {
            Some(system) => print_result(Printable(system)),
            None => print_result("There is no system message."),
        }
        return Ok(Flow::On);
    }
    match talk.chat.set_system(talk.writer.session.model(), Some(text)) {
        Ok(()) => print_result("The system message applies from the next answer on."),
        Err(error) => print_result(describe(&error.into())),
    }
    Ok(Flow::On)
}

/// Formats the value of a setting as on the command line: numbers as f32, and the elements of a
/// list separated by semicolons.
fn setting_text(value: &serde_json::Value) -> String {
    match (value.as_f64(), value.as_array()) {
        (Some(number), _) => (number as f32).to_string(),
        (None, Some(list)) => list.iter().filter_map(|each| each.as_str()).collect::<Vec<_>>().join(";"),
        (None, None) => value.to_string(),
    }
}

fn set(talk: &mut Conversation<'_, '_>, setting: &str) -> anyhow::Result<Flow> {
    let Writer { params, seed, .. } = &mut *talk.writer;
    if !setting.is_empty() {
        let words = setting.split_once(char::is_whitespace);
        let (name, value) = words.map_or((setting, None), |(name, value)| (name, Some(value.trim())));
        if let Err(problem) = params.sampling.set(name, value) {
            print_result(problem);
            return Ok(Flow::On);
        }
        if name == "seed" {
            *seed = params.sampling.seed();
        }
    }
    let fields = params.sampling.fields();
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name} {}", setting_text(value))).collect();
    print_result(fields.join(", "));
    Ok(Flow::On)
}

fn stats(talk: &mut Conversation<'_, '_>, _: &str) -> anyhow::Result<Flow> {
    let Writer { session, last, .. } = &*talk.writer;
    match last {
        None => print_result("There is no answer yet."),
        Some(pace) => {
            for (what, phase) in [("prefill", &pace.prefill), ("decode", &pace.decode)] {
                let rate = if phase.seconds > 0.0 { phase.tokens as f64 / phase.seconds } else { 0.0 };
                let tokens = count_text(phase.tokens as u64, "token");
                print_result(format_args!("{what:<9} {tokens} in {:.2} s, {rate:.1} tokens/s", phase.seconds));
            }
        }
    }
    let (_, bytes) = session.model().engine().states();
    print_result(format_args!(
        "context   {} of {}; keys and values take up to {}",
        session.model().engine().position(),
        count_text(session.model().context() as u64, "position"),
        Bytes(bytes)
    ));
    if let Some(resident) = ixc_compile::machine::system::resident_memory() {
        print_result(format_args!("memory    {}, including mapped weights", Bytes(resident)));
    }
    Ok(Flow::On)
}

/// Returns a message in the form of OpenAI's API, with the usual name for reasoning.
fn message_json(message: &Message) -> serde_json::Value {
    let mut saved = json!({ "role": message.role, "content": message.content });
    if let Some(reasoning) = &message.reasoning {
        saved["reasoning_content"] = json!(reasoning);
    }
    if !message.tool_calls.is_empty() {
        let call = |ToolCall { id, name, arguments }: &ToolCall| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        saved["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    saved
}

fn save(talk: &mut Conversation<'_, '_>, file: &str) -> anyhow::Result<Flow> {
    if file.is_empty() {
        print_result("/save needs the name of a file.");
        return Ok(Flow::On);
    }
    let path = match (file.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(file),
    };
    let replaces = path.exists();
    if replaces && !talk.lines.agrees(&format!("{} exists; replace it?", Printable(&path.to_string_lossy())))? {
        print_result("Nothing was written.");
        return Ok(Flow::On);
    }
    let Conversation { writer, chat, .. } = talk;
    let system = chat.system().map(|text| json!({ "role": "system", "content": text }));
    let said = chat.messages().iter().map(message_json);
    let messages: Vec<_> = system.into_iter().chain(said).collect();
    let facts = json!({
        "format": FORMAT,
        "version": VERSION,
        "model": writer.params.model.name().to_string_lossy(),
        "messages": messages,
    });
    let mut inputs = writer.params.inputs.clone();
    inputs.extend(writer.session.model().files().iter().map(PathBuf::as_path));
    let guard = Guard { kind: Some(&CONVERSATION), force: replaces, inputs: &inputs };
    let written = Output::open(&path, &guard).and_then(|output| {
        output.write(|out| {
            serde_json::to_writer_pretty(&mut *out, &facts)?;
            out.write_all(b"\n")
        })
    });
    match written {
        Ok(_) => {
            let count = count_text(messages.len() as u64, "message");
            print_result(format_args!("{count} in {}.", Printable(&path.to_string_lossy())));
        }
        Err(error) => print_result(describe(&error.into())),
    }
    Ok(Flow::On)
}
