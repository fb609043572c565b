//! The whole output of `--help`, for terminals of 80 and 100 columns, and of `-h` for 80:
//! `snapshots/whole__help__*.snap`.

use std::collections::BTreeMap;
use std::process::Stdio;

use crate::support::{ixc, stdout};

/// Max lines of a short help, on a terminal of 80 columns.
const SCREEN: usize = 50;

/// Returns the help of a command at a width, from `--help` or `-h`.
fn help(command: &[&str], option: &str, width: usize) -> String {
    let mut program = ixc([command, &[option]].concat());
    // Without a terminal, the width comes from `COLUMNS`.
    program.stdin(Stdio::null()).stderr(Stdio::piped()).env("COLUMNS", width.to_string());
    stdout(program)
}

/// Returns the commands in a help text, except the commands that clap adds.
fn commands(help: &str) -> Vec<String> {
    let Some((_, list)) = help.split_once("Commands:\n") else { return Vec::new() };
    let names = list.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Returns the `--help` text of every command and subcommand, by name.
fn all(width: usize) -> BTreeMap<String, String> {
    all_from("--help", width)
}

/// Returns the help text that an option prints for every command and subcommand, by name.
fn all_from(option: &str, width: usize) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut open = vec![Vec::<String>::new()];
    while let Some(command) = open.pop() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let text = help(&words, option, width);
        open.extend(commands(&text).into_iter().map(|name| [&command[..], &[name]].concat()));
        all.insert(["ixc"].into_iter().chain(words).collect::<Vec<_>>().join(" "), text);
    }
    all
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns lines that seem to be wrapped twice: the first word of the next line would have fitted.
fn ragged(text: &str, width: usize) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let is_prose = |line: &str| {
        let words = line.trim_start();
        // Only paragraphs are checked. Lists, clap's additions in brackets, headings and examples
        // begin a new line intentionally.
        [0, 10].contains(&indent(line)) && !words.is_empty() && !words.starts_with(['[', '-']) && !words.ends_with(':')
    };
    let pairs =
        lines.windows(2).filter(|pair| indent(pair[0]) == indent(pair[1]) && pair.iter().all(|line| is_prose(line)));
    let pairs = pairs.filter(|pair| !pair.iter().any(|line| line.starts_with("Usage:")));
    let fits = |pair: &&[&str]| {
        let word = pair[1].split_whitespace().next().unwrap_or_default();
        pair[0].chars().count() + 1 + word.chars().count() <= width
    };
    pairs.filter(fits).map(|pair| pair.join("\n")).collect()
}

#[test]
fn help_fits_its_width_and_is_wrapped_once() {
    for width in [80, 100] {
        let all = all(width);
        assert!(all.len() > 18, "{:?}", all.keys());
        for (name, text) in &all {
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{name} at {width} columns: {line:?}");
            }
            assert_eq!(ragged(text, width), Vec::<String>::new(), "{name} at {width} columns");
        }
    }
}

/// Checks that a terminal of 80 columns does not wrap examples, because users copy these lines.
#[test]
fn examples_are_the_same_at_every_width() {
    let [narrow, wide] = [80, 100].map(all);
    for (name, text) in &narrow {
        let examples = |text: &str| {
            let (_, rest) = text.split_once("EXAMPLES:\n").unwrap_or_else(|| panic!("{name} has no examples"));
            rest.lines().take_while(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(examples(text), examples(&wide[name]), "{name}");
    }
}

#[test]
fn lines_that_were_wrapped_by_hand_are_found() {
    let twice = "A file that is sound but not supported is shown with the reasons, and the exit status is 0. One whose\nkeys or tensors\ncontradict each other is shown.";
    assert_eq!(ragged(twice, 100).len(), 1);
    assert!(ragged("Usage: ixc run\nThe model\n\n          [default: 1]\n          [env: X]", 100).is_empty());
}

#[test]
fn help_matches_its_snapshot() {
    for width in [80, 100] {
        let texts = all(width).into_iter().map(|(name, text)| format!("$ {name} --help\n{text}"));
        insta::assert_snapshot!(format!("{width}_columns"), texts.collect::<Vec<_>>().join("\n"));
    }
}

/// Checks that `-h` lists the most used options on one screen, and names the option that lists all
/// others.
#[test]
fn short_help_fits_a_screen() {
    let all = all_from("-h", 80);
    for (name, text) in &all {
        let lines = text.lines().count();
        assert!(lines <= SCREEN, "{name}: {lines} lines\n{text}");
        assert!(text.contains("EXAMPLES:"), "{text}");
    }
    for command in ["run", "serve", "compile", "bench", "eval", "logits", "dump"] {
        let text = &all[&format!("ixc {command}")];
        assert!(text.contains(&format!("`ixc {command} --help` shows all options")), "{text}");
        assert!(!text.contains("--tile") && !text.contains("--mirostat"), "{text}");
    }
    let texts = all.iter().map(|(name, text)| format!("$ {name} -h\n{text}"));
    insta::assert_snapshot!("short_80_columns", texts.collect::<Vec<_>>().join("\n"));
}

#[test]
fn options_of_one_kind_are_in_one_group() {
    let help = help(&["run"], "--help", 100);
    let places: Vec<usize> =
        ["\nModel:", "\nText:", "\nMemory:", "\nFor kernel developers:", "\nSampling:", "\nGrammar:"]
            .iter()
            .map(|heading| help.find(heading).unwrap_or_else(|| panic!("{heading}: {help}")))
            .collect();
    assert!(help.find("--tile").unwrap() > places[3] && help.find("--memory").unwrap() > places[2], "{help}");
}
