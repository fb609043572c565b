//! `ixc run` at a terminal: a conversation with the demo model, whose answers are always the same
//! at temperature 0.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::terminal::{CTRL_C, CTRL_D, PASTE, Terminal};
use crate::support::{demo_model, ixc, scratch, stderr, stdout};
use serde_json::Value as Json;

/// Returns the command of a conversation with short answers.
fn chat(arguments: &[&str]) -> Command {
    let mut command = ixc(["run", "--chat", "--temp", "0", "-t", "1"]);
    if !arguments.contains(&"-n") {
        command.args(["-n", "8"]);
    }
    command.args(arguments).env("TERM", "xterm").env("IXC_HISTORY", "");
    command
}

/// Returns the messages in a saved conversation, as `role: text`.
fn saved(path: &Path) -> Vec<String> {
    let facts: Json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!((&facts["format"], &facts["version"]), (&"ixc-conversation".into(), &1.into()));
    let messages = facts["messages"].as_array().unwrap().iter();
    messages.map(|m| format!("{}: {}", m["role"].as_str().unwrap(), m["content"].as_str().unwrap())).collect()
}

#[test]
fn a_conversation_goes_on_when_its_context_is_full() {
    let folder = scratch("converse_full");
    let file = folder.join("talk.json");
    let mut terminal = Terminal::start(&mut chat(&["-c", "64", "--system", "Be brief."]), None);
    terminal.asked();
    let mut dropped = 0;
    let questions = ["What is a trait?", "What is a lifetime?", "What is a borrow?", "What is a closure?"];
    for question in questions {
        let said = terminal.say(question);
        assert!(!said.contains("error"), "{said}");
        dropped += u32::from(said.contains("the context of 64 tokens is full: ") && said.contains("oldest turn"));
    }
    assert!(dropped > 0, "four turns fit into 64 tokens");
    // If a message alone exceeds the context, it is removed again, and no other message is lost.
    let said = terminal.say(&"and so on ".repeat(80));
    assert!(
        said.contains(
            "tokens do not fit into the context of 64; this model was trained for up to 2048 tokens; --ctx makes the context larger"
        ),
        "{said}"
    );
    assert!(said.contains("removed from the conversation"), "{said}");
    let said = terminal.say("Go on.");
    assert!(!said.contains("error"), "{said}");
    terminal.say(&format!("/save {}", file.display()));
    terminal.send(CTRL_D);
    let (_, status) = terminal.end();
    assert_eq!(status.code(), Some(0));
    // Messages that the model no longer sees remain in the saved conversation.
    let messages = saved(&file);
    assert_eq!(messages[0], "system: Be brief.");
    let asked: Vec<_> = messages.iter().filter_map(|message| message.strip_prefix("user: ")).collect();
    assert_eq!(asked, questions.iter().copied().chain(["Go on."]).collect::<Vec<_>>());
    assert_eq!(messages.len(), 11);
}

#[test]
fn oversized_message_error_suggests_a_larger_context() {
    let long = "and so on ".repeat(80);
    for arguments in [&["--chat"][..], &["--no-chat"]] {
        let output = ixc(["run", "-p", &long, "-c", "64", "-n", "4"]).args(arguments).output().unwrap();
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(65), "{error}");
        let says = "do not fit into the context of 64; this model was trained for up to 2048 tokens; --ctx makes the context larger";
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn full_context_ends_the_answer_and_next_message_continues() {
    let mut terminal = Terminal::start(&mut chat(&["-c", "32", "-n", "-1", "--ignore-eos"]), None);
    terminal.asked();
    let said = terminal.say("Hello");
    assert!(said.contains("the context of 32 tokens is full, so the text ends here"), "{said}");
    let said = terminal.say("Go on");
    assert!(
        said.contains("the context of 32 tokens is full: the conversation goes on without its 1 oldest turn"),
        "{said}"
    );
    terminal.send("/bye\r");
    assert_eq!(terminal.end().1.code(), Some(0));
}

#[test]
fn input_is_editable_and_pasted_text_is_one_message() {
    let folder = scratch("converse_lines");
    let (file, history) = (folder.join("talk.json"), folder.join("state/history"));
    let start = || Terminal::start(chat(&[]).env("IXC_HISTORY", &history), None);
    let mut terminal = start();
    let greeting = terminal.asked();
    assert!(greeting.contains("qwen3moe") && greeting.contains("q4_k") && greeting.contains("1 thread"), "{greeting}");
    // Left, left, delete: arrow keys move the cursor and print no characters.
    terminal.say("Helllo\x1b[D\x1b[D\x1b[3~");
    terminal.say(&format!("{}one\rtwo\nthree{}", PASTE[0], PASTE[1]));
    for line in ["\"\"\"", "four", "five\"\"\"", "six\\", "seven", "//slash", " /space"] {
        terminal.say(line);
    }
    // Pressing Up twice recalls the line before the last one. A line that begins with a space is
    // not remembered.
    terminal.say("\x1b[A\x1b[A");
    terminal.say(&format!("/save {}", file.display()));
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1.code(), Some(0));
    let asked: Vec<_> = saved(&file).into_iter().filter_map(|m| m.strip_prefix("user: ").map(str::to_owned)).collect();
    assert_eq!(asked, ["Hello", "one\ntwo\nthree", "four\nfive", "six\nseven", "/slash", "/space", "six\nseven"]);
    assert_eq!(fs::metadata(&history).unwrap().permissions().mode() & 0o777, 0o600);
    let remembered = fs::read_to_string(&history).unwrap();
    assert!(remembered.contains("one\\ntwo\\nthree") && !remembered.contains("/space"), "{remembered}");

    // The next conversation has the lines of this conversation in its history.
    let mut terminal = start();
    terminal.asked();
    terminal.say("\x1b[A\x1b[A");
    terminal.send(CTRL_D);
    terminal.end();
    assert_eq!(fs::read_to_string(&history).unwrap().matches("six").count(), 3);
}

#[test]
fn commands_are_obeyed_and_unknown_ones_are_not_sent() {
    let folder = scratch("converse_commands");
    let file = folder.join("talk.json");
    let save = format!("/save {}", file.display());
    let mut terminal = Terminal::start(&mut chat(&[]), None);
    terminal.asked();
    let help = terminal.say("/help");
    for command in ["/help", "/regen", "/system", "/save", "/clear", "/bye"] {
        assert!(help.contains(command), "{help}");
    }
    // Input that is typed before the program is ready, or pasted without bracketed paste, is not
    // lost.
    terminal.send("/system\r/nothing\r/regen\r");
    let said = [terminal.asked(), terminal.asked(), terminal.asked()].concat();
    assert!(
        ["no system message", "no command /nothing", "no answer yet"].iter().all(|part| said.contains(part)),
        "{said}"
    );
    let said = terminal.say("/nonsense now");
    assert!(said.contains("no command /nonsense") && said.contains("/regen"), "{said}");
    assert!(terminal.say("/regen").contains("no answer yet"));
    assert!(terminal.say("/system").contains("no system message"));
    terminal.say("/system Be brief.");
    let first = terminal.say("What is a trait?");
    // At temperature 0, the repeated answer is the same.
    let again = terminal.say("/regen");
    let answer = |said: &str| {
        said.lines().rev().find(|line| !line.contains('\x1b') && !line.trim().is_empty()).map(str::to_owned)
    };
    assert_eq!(answer(&first), answer(&again));
    assert!(terminal.say(&save).contains("3 messages"));
    let before = saved(&file);
    assert_eq!(before[..2], ["system: Be brief.", "user: What is a trait?"]);
    terminal.say("And a lifetime?");
    // The file exists, so the program asks for confirmation. Without confirmation, the file is
    // kept.
    terminal.say(&save);
    assert!(terminal.say("n").contains("Nothing was written"));
    assert_eq!(saved(&file), before);
    terminal.say("/clear");
    terminal.say(&save);
    assert!(terminal.say("y").contains("1 message "));
    assert_eq!(saved(&file), ["system: Be brief."]);
    let said = terminal.say(&format!("/save {}/no/folder/x", folder.display()));
    assert!(said.contains("error:") && said.contains("no/folder/x"), "{said}");
    terminal.send("/exit\r");
    assert_eq!(terminal.end().1.code(), Some(0));
}

#[test]
fn ctrl_c_clears_a_line_and_stops_an_answer() {
    let mut terminal = Terminal::start(&mut chat(&["-n", "-1", "--ignore-eos", "-c", "2048"]), None);
    terminal.asked();
    terminal.send("never sent");
    terminal.send(CTRL_C);
    assert!(!terminal.asked().contains("Ctrl-D or /bye"));
    terminal.send(CTRL_C);
    assert!(terminal.asked().contains("Ctrl-D or /bye"));
    // Input that is not UTF-8 does not end the conversation.
    terminal.send(b"\xe9 ");
    terminal.until("not UTF-8");
    terminal.asked();
    // This answer has no token limit: only an interruption ends it.
    terminal.send("Hello\r");
    terminal.until("\x1b[?2004l");
    terminal.until("e");
    terminal.send(CTRL_C);
    let rest = terminal.asked();
    assert!(!rest.contains("error"), "{rest}");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1.code(), Some(0));
}

#[test]
fn standard_output_has_only_the_answer() {
    let folder = scratch("converse_stdout");
    let file = folder.join("answers.txt");
    let answers = fs::File::create(&file).unwrap();
    let mut terminal = Terminal::start(&mut chat(&[]), Some(answers.into()));
    terminal.asked();
    terminal.say("What is a trait?");
    terminal.say("/help");
    terminal.send(CTRL_D);
    terminal.end();
    let once = stdout(chat(&["-p", "What is a trait?"]));
    assert_eq!(fs::read_to_string(&file).unwrap(), once);
}

#[test]
fn dumb_terminal_reads_plain_lines() {
    let mut command = chat(&[]);
    command.env("TERM", "dumb");
    let mut terminal = Terminal::start(&mut command, None);
    terminal.until("> ");
    terminal.send("\"\"\"Hello\n");
    terminal.until("... ");
    terminal.send("you\"\"\"\n");
    let said = terminal.until("\n> ");
    assert!(!said.contains('\x1b'), "{said}");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1.code(), Some(0));
}

/// Checks that a missing template is reported before the first question, and that the option for a
/// template replaces it.
#[test]
fn template_option_replaces_a_missing_template() {
    let folder = scratch("converse_template");
    // The key is replaced by one of the same length, because another length would move all later
    // bytes.
    let mut bytes = fs::read(demo_model()).unwrap();
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    bytes[at..at + key.len()].copy_from_slice(b"tokenizer.chat_tEMPLATE");
    let model = folder.join("bare.gguf");
    fs::write(&model, bytes).unwrap();
    let bare = |more: &[&str]| {
        let mut command = chat(more);
        command.arg(&model);
        command
    };
    let (text, status) = Terminal::start(&mut bare(&[]), None).end();
    assert_eq!(status.code(), Some(65), "{text}");
    assert!(text.contains("no chat template") && text.contains("--chat-template") && text.contains("chatml"), "{text}");
    assert!(!text.contains("> "), "{text}");
    let piped = bare(&["-p", "Hello"]).output().unwrap();
    assert_eq!(piped.status.code(), Some(65), "{}", stderr(&piped));

    // The demo model's own template is ChatML.
    let expected = stdout(chat(&["-p", "Hello"]));
    let named = stdout(bare(&["-p", "Hello", "--chat-template", "chatml"]));
    assert_eq!(named, expected);
    let file = folder.join("other.jinja");
    fs::write(&file, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:").unwrap();
    let file = file.to_str().unwrap();
    let other = stdout(bare(&["-p", "Hello", "--chat-template", file]));
    assert_eq!(other, stdout(ixc(["run", "--no-chat", "-p", "user: Hello\nassistant:", "--temp", "0", "-n", "8"])));
    // A template named by the option replaces the model's own, also for a plan.
    let plan = folder.join("demo.ixp");
    stdout({
        let mut compile = ixc(["compile"]);
        compile.arg(demo_model()).arg("-o").arg(&plan);
        compile
    });
    let mut from_plan = chat(&["-p", "Hello", "--chat-template", file]);
    assert_eq!(
        stdout({
            from_plan.arg(&plan);
            from_plan
        }),
        other
    );

    for (name, status, says) in
        [("nosuch", 65, "the known templates are alpaca"), ("no/such.jinja", 66, "no/such.jinja")]
    {
        let output = bare(&["-p", "Hello", "--chat-template", name]).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    }
    fs::write(folder.join("bad.jinja"), "{% if %}").unwrap();
    let bad = folder.join("bad.jinja");
    let output = bare(&["-p", "Hello", "--chat-template", bad.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(65), "{}", stderr(&output));
    assert!(stderr(&output).contains("the chat template, line 1: "), "{}", stderr(&output));
}

/// Checks that the program prints a model's reasoning between two marker lines. Both templates give
/// the same prompt, but only the source of the second one names the reasoning marker.
#[test]
fn thoughts_are_printed_separately() {
    let folder = scratch("converse_thoughts");
    let answer = |marker: &str| {
        let file = folder.join("think.jinja");
        let source = format!("{{{{ messages[0].content }}}} {{{{ {marker} }}}}");
        fs::write(&file, source).unwrap();
        stdout(chat(&["-p", "The borrow checker", "--chat-template", file.to_str().unwrap()]))
    };
    let plain = answer("'<thi' + 'nk>'");
    let thought = answer("'<think>'");
    assert!(!plain.trim().is_empty());
    assert_eq!(thought, format!("[Start thinking]\n{}\n[End thinking]\n\n", plain.trim()));
}

/// Checks that a terminal shows the progress of a long prompt, and clears it before the text. Here,
/// progress is shown at once and ten times a second. Even a fast machine shows it, because the
/// emulator takes a second for this prompt.
#[test]
fn long_prompt_shows_progress() {
    let prompt = "the borrow checker ".repeat(40);
    let run = || ixc(["run", "--no-chat", "-p", &prompt, "-n", "1", "--temp", "0", "--target", "avx2", "--emulate"]);
    let mut terminal = Terminal::start(run().env("IXC_PROGRESS_DELAY", "0"), None);
    let before = terminal.until("\r\x1b[Kreading the prompt: ");
    assert!(before.starts_with("\r\x1b[K"), "{before}");
    let (rest, status) = terminal.end();
    assert_eq!(status.code(), Some(0), "{rest}");
    assert!(rest.contains(" tokens"), "{rest}");
    // The line is cleared, and only the text follows.
    let (_, text) = rest.rsplit_once("\r\x1b[K").unwrap();
    assert!(!text.contains("prompt") && !text.trim().is_empty(), "{rest}");
    let piped = stdout(run());
    assert_eq!(text.replace("\r\n", "\n"), piped);
}

/// Checks the dim line after each answer, which shows the answer's length and how full the context
/// is. Tab completes commands, and settings can be changed.
#[test]
fn answer_statistics_are_shown_and_settings_can_change() {
    let mut terminal = Terminal::start(&mut chat(&["-c", "512"]), None);
    terminal.asked();
    let said = terminal.say("What is a trait?");
    let pace = said.lines().find(|line| line.contains("tokens, ")).unwrap_or_else(|| panic!("{said}"));
    assert!(
        pace.contains("\u{1b}[2m8 tokens, ") && pace.contains("/s, context ") && pace.contains(" of 512"),
        "{said}"
    );
    // Tab completes a unique command.
    let said = terminal.say("/sta\t");
    assert!(said.contains("prefill") && said.contains("decode") && said.contains("of 512 positions"), "{said}");
    let said = terminal.say("/set temp 0.5");
    assert!(said.contains("temperature 0.5"), "{said}");
    assert!(terminal.say("/set").contains("temperature 0.5"));
    let said = terminal.say("/set tmp 0.5");
    assert!(said.contains("no setting tmp") && said.contains("top-k"), "{said}");
    let said = terminal.say("/set temp 1001");
    assert!(said.contains("must be in"), "{said}");
    assert!(terminal.say("/set temp much").contains("much"));
    // Settings that the command does not name keep their values.
    let said = terminal.say("/set top-k 7");
    assert!(said.contains("temperature 0.5") && said.contains("top_k 7"), "{said}");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1.code(), Some(0));

    let mut plain = Terminal::start(chat(&["-q"]).env("NO_COLOR", "1"), None);
    plain.asked();
    let said = plain.say("What is a trait?");
    assert!(!said.contains("tokens, ") && !said.contains("\u{1b}[2m"), "{said}");
}

/// Checks that words are not broken at the edge of the screen, and that standard output has the
/// same text in a pipe.
#[test]
fn answers_are_wrapped_at_words() {
    let mut command = chat(&["-p", "What is a trait?", "-n", "60", "--ignore-eos"]);
    // Another test checks the progress line.
    command.env("IXC_PROGRESS_DELAY", "1000");
    let (text, status) = Terminal::start_with(&mut command, None, 40).end();
    assert_eq!(status.code(), Some(0), "{text}");
    let piped = stdout(chat(&["-p", "What is a trait?", "-n", "60", "--ignore-eos"]));
    assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&text), words(&piped));
    assert!(text.lines().count() > piped.lines().count(), "{text}");
}
