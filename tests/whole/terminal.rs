//! Untrusted text at a terminal: names, labels and texts in models, descriptors and file names.
//! Control characters in them never reach the terminal, which the tests check on a pseudo-terminal.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::terminal::Terminal;
use crate::support::{demo_model, ixc, scratch, stdout};
use ixc::model_files::gguf::write::GgufWriter;
use ixc::model_files::gguf::{Gguf, StringArray};
use serde_json::Value as Json;

/// Text that sets a title, clears the screen, rings the bell, and reverses the writing direction.
const EVIL: &str = "\u{1b}]0;pwned\u{7}\u{1b}[2J\u{202e}\u{9b}31mEVIL";

/// Runs a command on a new terminal, and returns its output there. Standard error is on the
/// terminal. Standard output is on the terminal too, unless `out` is set.
fn on_terminal(mut command: Command, out: Option<Stdio>) -> String {
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: both pointers are valid, and the other pointers are null, which the call allows.
    let opened = unsafe {
        libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut())
    };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both were opened just now, and have no other owner.
    let (ours, theirs) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    // Turns off colours, which are escape sequences of `ixc` itself.
    command.env("NO_COLOR", "1").env("TERM", "xterm");
    let mut child =
        command.stdout(out.unwrap_or_else(|| theirs.try_clone().unwrap().into())).stderr(theirs).spawn().unwrap();
    // The command object would keep the terminal open, so it is dropped.
    drop(command);
    let (mut shown, mut part) = (Vec::new(), [0; 4096]);
    let mut ours = File::from(ours);
    // Reading fails when the last holder closes the other end.
    while let Ok(count @ 1..) = ours.read(&mut part) {
        shown.extend(&part[..count]);
    }
    child.wait().unwrap();
    // Removes the escape sequence of the progress line, which belongs to `ixc`.
    String::from_utf8_lossy(&shown).replace("\r\u{1b}[K", "")
}

fn is_terminal_control(shown: &str) -> bool {
    shown.chars().any(|c| !matches!(c, '\n' | '\r' | '\t') && (c.is_control() || c == '\u{202e}'))
}

/// Writes the demo model with an escape sequence in every token of ordinary text, and in its name.
fn hostile_model(path: &Path) {
    let demo = Gguf::open(&demo_model()).unwrap();
    // `ě` is the character with which GPT-2's vocabularies represent the byte 0x1b. The following
    // letters are the remaining part of the escape sequence.
    let tokens = demo.metadata().read::<&StringArray>("tokenizer.ggml.tokens").unwrap();
    let evil = tokens.iter().enumerate().map(|(i, text)| if i < 300 { text.to_owned() } else { format!("ě[2J{i}") });
    let tokens: StringArray = evil.collect();
    let mut writer = GgufWriter::new();
    for (key, value) in demo.metadata().iter() {
        writer = match key {
            "tokenizer.ggml.tokens" => writer.key(key, tokens.clone()),
            "general.name" => writer.key(key, EVIL),
            _ => writer.key(key, value.clone()),
        };
    }
    for tensor in demo.tensors() {
        let data = demo.tensor_data(tensor).to_vec();
        writer = writer.tensor(tensor.name(), tensor.tensor_type().id, tensor.dims(), data);
    }
    fs::write(path, writer.finish()).unwrap();
}

#[test]
fn hostile_names_send_no_terminal_escapes() {
    let folder = scratch("terminal");
    let model = folder.join("model.gguf");
    hostile_model(&model);
    let descriptor = folder.join("good.json");
    let mut command = ixc(["compile", "--target", "dataflow:small", "-o"]);
    command.arg(&descriptor).arg(demo_model());
    stdout(command);
    let good: Json = serde_json::from_slice(&fs::read(&descriptor).unwrap()).unwrap();
    let changed = |name: &str, change: &dyn Fn(&mut Json)| {
        let (mut descriptor, path) = (good.clone(), folder.join(name));
        change(&mut descriptor);
        fs::write(&path, serde_json::to_vec(&descriptor).unwrap()).unwrap();
        path
    };
    let grid = changed("grid.json", &|d| d["grid"]["name"] = EVIL.into());
    let label = changed("label.json", &|d| {
        d["programs"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .for_each(|p| p["label"] = format!("{EVIL} {}", p["label"]).into());
    });
    let long = changed("long.json", &|d| d["programs"][0]["kernel"] = "k".repeat(3 << 20).into());
    let named = folder.join(format!("{}.gguf", EVIL.replace('/', "")));
    fs::write(&named, "GGUF").unwrap();

    // In a pipe, text is unchanged. This test thus also shows that it would see escape sequences.
    let mut raw = ixc(["detokenize"]);
    raw.arg(&model).arg("300,301");
    assert!(stdout(raw).contains("\u{1b}[2J"));

    let with = |before: &[&str], path: &Path, after: &[&str]| {
        let mut command = ixc(before);
        command.arg(path).args(after);
        command
    };
    let text = ["-p", "the", "-n", "3"];
    let commands = [
        with(&["detokenize"], &model, &["300,301"]),
        with(&["tokenize"], &model, &["the borrow checker"]),
        with(&["run", "--temp", "0", "--stats"], &model, &text),
        with(&["simulate", "--target", "dataflow:small"], &model, &text),
        with(&["inspect"], &model, &[]),
        with(&["dump", "--stage", "plan"], &model, &[]),
        with(&["simulate"], &grid, &[]),
        with(&["simulate"], &label, &[]),
        with(&["simulate"], &long, &[]),
        with(&["inspect"], &named, &[]),
        with(&["run"], &named, &[]),
        with(
            &["compile", "--no-weights", "-o"],
            &folder.join(format!("{}.ixp", EVIL.replace('/', ""))),
            &[demo_model().to_str().unwrap()],
        ),
        ixc(["run", "--target", EVIL]),
        ixc([EVIL]),
        ixc(["kernel", "run", EVIL]),
        ixc(["simulate", "--target", &format!("dataflow:{EVIL}")]),
    ];
    // These commands print texts on standard error, while standard output is a file.
    let beside = [
        with(&["simulate", "--target", "dataflow:small", "--html", "-"], &model, &text),
        with(&["compile", "--target", "dataflow:small", "-o", "-"], &model, &[]),
    ];
    let all =
        commands.into_iter().map(|command| (command, false)).chain(beside.into_iter().map(|command| (command, true)));
    for (command, beside) in all {
        let shown = format!("{command:?}");
        let got = on_terminal(command, beside.then(Stdio::null));
        assert!(!got.is_empty(), "{shown}");
        assert!(!is_terminal_control(&got), "{shown}: {got:?}");
        assert!(got.len() < 100_000, "{shown}: {} bytes", got.len());
    }
}

/// Checks that lines are no wider than the terminal or `COLUMNS`, and are not wrapped in a pipe.
/// Wrapping loses no words.
#[test]
fn lines_fit_the_terminal() {
    let commands: [&[&str]; 7] = [
        &["explain", "--pass", "fuse"],
        &["kernel", "list", "gemv"],
        &["kernel", "cost", "gemv_q4_k", "--target", "zen4"],
        &["inspect", "--support"],
        &["dump", "--stage", "plan", "--target", "avx2"],
        &["plan", "--hit-rate", "0.5", "--memory", "200MiB"],
        &["inspect", "no-such-model-of-a-long-name-which-no-terminal-has-room-for-in-one-line.gguf"],
    ];
    let on = |words: &[&str], columns: u16, variable: &str| {
        let mut command = ixc(words);
        command
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .env("COLUMNS", variable)
            .env("XDG_CACHE_HOME", scratch("width_cache"));
        let (text, _) = Terminal::start_with(&mut command, None, columns).end();
        text.rsplit("\r\u{1b}[K").next().unwrap().replace('\r', "")
    };
    for words in commands {
        let text = on(words, 80, "");
        assert!(!text.is_empty(), "{words:?}");
        for line in text.lines() {
            // A word that is wider than a line stays whole.
            let is_long_word = line.split_whitespace().any(|word| word.chars().count() > 40);
            assert!(line.chars().count() <= 80 || is_long_word, "{words:?}: {} columns: {line}", line.chars().count());
        }
    }
    // `COLUMNS` takes precedence over the terminal's width; neither applies to a pipe.
    let words = ["kernel", "list", "gemv"];
    let (wide, narrow) = (on(&words, 80, "1000"), on(&words, 1000, "60"));
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest(&wide) > 100 && widest(&narrow) <= 60, "{wide}\n{narrow}");
    let mut piped = ixc(words);
    piped.env("COLUMNS", "60");
    assert_eq!(stdout(piped), wide);
    let all = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(all(&narrow), all(&wide));
}
