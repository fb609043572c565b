//! Every command that a page shows is run, and must print the output that the page shows.
//!
//! A block of commands is fenced as `console`. If any line begins with `$ `, these lines are
//! commands, and all other lines are their output. In the output, `...` stands for any text; alone
//! on a line, it stands for any lines. If no line begins with `$ `, each line is a command. A
//! command must succeed, unless its output begins with `error:`. HTML comments in a page control
//! its blocks:
//!
//! ```text
//! <!-- not run: WHY -->      the next block does not run, but its commands' options are parsed
//! <!-- before: COMMAND -->   is run before the next block
//! ```
//!
//! The commands of a page run in order in a separate folder, which has the demo model as
//! `model.gguf` and `large.gguf`. `$ROOT` is the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{demo_model, scratch};

/// Min number of commands that run. If fewer run, this test has failed to find commands.
const LEAST_RUN: usize = 50;
/// Max number of commands that are not run. If there are more, some are skipped that could run.
const MOST_LEFT_OUT: usize = 20;

/// A command that a page shows.
#[derive(Debug, PartialEq)]
struct Shown {
    line: usize,
    command: String,
    /// The command's output, if the page shows it.
    output: Option<Vec<String>>,
    /// Reason why the command is not run, if it is not.
    left_out: Option<String>,
    /// Whether the command is in a comment `before:`.
    is_before: bool,
}

/// Returns the pages: the README and `docs/`.
pub(super) fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

/// Returns the path of a page, for messages.
pub(super) fn name(page: &Path) -> String {
    page.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap_or(page).display().to_string()
}

/// Returns the commands of a page in order.
///
/// # Errors
/// Fails if a comment or a block has an unknown form. The error has its line.
fn commands(text: &str) -> Result<Vec<Shown>, String> {
    let (mut shown, mut left_out): (Vec<Shown>, Option<String>) = Default::default();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let comment = line.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        if let Some(comment) = comment {
            match comment.split_once(": ") {
                Some(("not run", why)) => left_out = Some(why.to_owned()),
                Some(("before", command)) => {
                    let command = command.to_owned();
                    shown.push(Shown { line: number, command, output: None, left_out: None, is_before: true });
                }
                _ => {}
            }
            continue;
        }
        let Some(info) = line.strip_prefix("```") else {
            if !line.trim().is_empty() && left_out.is_some() {
                return Err(format!("{number}: no block follows what is not to be run"));
            }
            continue;
        };
        let block: Vec<(&str, usize)> = lines.by_ref().take_while(|(line, _)| !line.starts_with("```")).collect();
        if info != "console" {
            let is_command = |line: &str| ["ixc ", "$ ", "cargo "].iter().any(|start| line.starts_with(start));
            match block.iter().find(|(line, _)| is_command(line)) {
                Some((line, number)) if info != "text" => {
                    return Err(format!(
                        "{number}: {line}: a block of commands is fenced as console, a synopsis as text"
                    ));
                }
                _ if left_out.is_some() => return Err(format!("{number}: only a block of commands is not run")),
                _ => continue,
            }
        }
        let prompted = block.iter().any(|(line, _)| line.starts_with("$ "));
        let mut block = block.into_iter();
        while let Some((line, number)) = block.next() {
            let command = if prompted { line.strip_prefix("$ ") } else { Some(line).filter(|line| !line.is_empty()) };
            match (command, shown.last_mut()) {
                (Some(command), _) => {
                    let mut command = command.to_owned();
                    while command.ends_with('\\') {
                        let (more, _) = block.next().ok_or(format!("{number}: a command goes on behind its block"))?;
                        command = command + "\n" + more;
                    }
                    if let Some(end) = command.split_once("<< '").and_then(|(_, rest)| rest.strip_suffix('\'')) {
                        let end = end.to_owned();
                        while !command.lines().skip(1).any(|line| line == end) {
                            let (more, _) = block.next().ok_or(format!("{number}: {end} is not in the block"))?;
                            command = command + "\n" + more;
                        }
                    }
                    let left_out = left_out.clone();
                    shown.push(Shown { line: number, command, output: None, left_out, is_before: false });
                }
                (None, Some(last)) if prompted => last.output.get_or_insert_default().push(line.to_owned()),
                (None, _) => {}
            }
        }
        left_out = None;
    }
    Ok(shown)
}

/// Returns whether an output line matches a page's line, in which `...` stands for any text.
fn is_line(line: &str, shown: &str) -> bool {
    let mut parts = shown.trim_end().split("...");
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.trim_end().strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Returns whether output lines match a page's lines, in which a line `...` stands for any number
/// of lines.
fn are_lines(lines: &[&str], shown: &[String]) -> bool {
    match shown.split_first() {
        None => lines.iter().all(|line| line.trim().is_empty()),
        Some((first, behind)) if first == "..." => (0..=lines.len()).any(|at| are_lines(&lines[at..], behind)),
        Some((first, behind)) => {
            lines.split_first().is_some_and(|(line, rest)| is_line(line, first) && are_lines(rest, behind))
        }
    }
}

/// Runs a command in a folder. Returns whether it succeeded, and its output.
fn run(command: &str, folder: &Path) -> (bool, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_ixc")).parent().unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("exec 2>&1\nset -o pipefail\n{command}")]).current_dir(folder).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("IXC_")) {
        bash.env_remove(name);
    }
    let path = std::env::join_paths([program, Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    // Commands in comments use files of the repository.
    bash.env("ROOT", env!("CARGO_MANIFEST_DIR"));
    bash.env("PATH", path)
        .env("HOME", folder)
        .env_remove("XDG_STATE_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_CACHE_HOME")
        .env("TERM", "dumb")
        .env("LC_ALL", "C");
    let output = bash.output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Results of running a page's commands.
#[derive(Default)]
struct Done {
    run: usize,
    left_out: Vec<String>,
    wrong: Vec<String>,
}

/// Runs the commands of a page.
fn follow(page: &Path, model: &Path) -> Done {
    let (name, mut done) = (name(page), Done::default());
    let shown = match commands(&fs::read_to_string(page).unwrap()) {
        Ok(shown) => shown,
        Err(problem) => return Done { wrong: vec![format!("{name}:{problem}")], ..Done::default() },
    };
    let folder = scratch(&format!("documentation/{}", name.replace('/', "-")));
    for file in ["model.gguf", "large.gguf"] {
        fs::hard_link(model, folder.join(file)).unwrap();
    }
    for Shown { line, command, output, left_out, is_before } in shown {
        let at = format!("{name}:{line}: {command}");
        if let Some(why) = left_out {
            // `--help` at the end checks the options without running the command.
            let plain = command.starts_with("ixc ") && !command.contains(['|', '>', '&', '#', '\n']);
            if plain && let (false, said) = run(&format!("{command} --help"), &folder) {
                done.wrong.push(format!("{at}\n{said}"));
            }
            done.left_out.push(format!("{at}: {why}"));
            continue;
        }
        let (succeeded, printed) = run(&command, &folder);
        let is_error = output.iter().flatten().any(|line| line.starts_with("error:"));
        let lines: Vec<&str> = printed.lines().collect();
        let as_shown = output.as_ref().is_none_or(|shown| are_lines(&lines, shown));
        if succeeded == is_error || !as_shown {
            let shown = output.map(|shown| format!("\nthe page shows:\n{}", shown.join("\n"))).unwrap_or_default();
            let how = if succeeded { "succeeded" } else { "failed" };
            done.wrong.push(format!("{at}\n{how}, and printed:\n{printed}{shown}"));
        }
        done.run += usize::from(!is_before);
    }
    done
}

#[test]
fn documented_commands_print_the_documented_output() {
    if !ixc::targets::Target::AVX2.missing().is_empty() {
        println!("NOT RUN: the commands of the pages: they are for avx2, which this machine has not");
        return;
    }
    let model = scratch("documentation-model").join("model.gguf");
    fs::copy(demo_model(), &model).unwrap();
    let pages = pages();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(page) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let what = follow(page, &model);
                    done.lock().unwrap().push((name(page), what));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (page, Done { run, left_out, .. }) in done.iter().filter(|(_, done)| done.run + done.left_out.len() > 0) {
        println!("commands: {page}: {run} run, {} left out", left_out.len());
        left_out.iter().for_each(|what| println!("LEFT OUT: {what}"));
    }
    let wrong: Vec<&str> = done.iter().flat_map(|(_, done)| &done.wrong).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let run: usize = done.iter().map(|(_, done)| done.run).sum();
    let left_out: usize = done.iter().map(|(_, done)| done.left_out.len()).sum();
    assert!(run >= LEAST_RUN && left_out <= MOST_LEFT_OUT, "{run} commands were run, {left_out} left out");
}

#[test]
fn commands_of_a_page_are_found() {
    let text = "\
<!-- before: touch a -->
```console
ixc run a   # why

ixc b \\
  c
```
<!-- not run: it is slow -->

```console
$ ixc d
one ... three

...
$ cat << 'END'
$ e
END
```
";
    let shown = |line, command: &str, output: Option<&[&str]>, left_out: Option<&str>| Shown {
        line,
        command: command.to_owned(),
        output: output.map(|lines| lines.iter().map(ToString::to_string).collect()),
        left_out: left_out.map(ToOwned::to_owned),
        is_before: command.starts_with("touch"),
    };
    let expected = vec![
        shown(1, "touch a", None, None),
        shown(3, "ixc run a   # why", None, None),
        shown(5, "ixc b \\\n  c", None, None),
        shown(11, "ixc d", Some(&["one ... three", "", "..."]), Some("it is slow")),
        shown(15, "cat << 'END'\n$ e\nEND", None, Some("it is slow")),
    ];
    assert_eq!(commands(text), Ok(expected));
    for (wrong, part) in [
        ("```sh\nixc run\n```\n", "2: ixc run: a block of commands"),
        ("<!-- not run: x -->\ntext\n", "2: no block follows"),
        ("<!-- not run: x -->\n```json\n{}\n```\n", "only a block of commands"),
        ("```console\nixc run \\\n```\n", "2: a command goes on"),
        ("```console\ncat << 'END'\n```\n", "2: END is not in the block"),
    ] {
        assert!(commands(wrong).unwrap_err().contains(part), "{wrong}");
    }
    assert_eq!(commands("```text\nixc kernel list [FILTER]\n```\n"), Ok(Vec::new()));
}

#[test]
fn printed_output_is_compared_with_wildcards() {
    let same = |printed: &str, shown: &str| {
        let shown: Vec<String> = shown.lines().map(ToOwned::to_owned).collect();
        are_lines(&printed.lines().collect::<Vec<_>>(), &shown)
    };
    assert!(same("a\nb \nc\n", "a\nb\nc"));
    assert!(same("a\nb\nc\n", "...\nc"));
    assert!(same("a 12 b 3 c", "a ... b ... c"));
    assert!(same("a\n\n", "a\n...\n..."));
    for (printed, shown) in
        [("a\nb", "a"), ("a", "a\nb"), ("ab", "a"), ("a 1 b", "a ... c"), ("x\na", "a\n..."), ("b", "...\na")]
    {
        assert!(!same(printed, shown), "{printed:?} is not {shown:?}");
    }
}
