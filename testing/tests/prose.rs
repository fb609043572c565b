//! Tests of the repository's English: no text breaks a rule, and subjects of commits have the form
//! `area: verb …`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ixc_testing::prose::{
    Rules, Text, texts_of_page, texts_of_rust, texts_of_script, wide_comments, wide_script_comments,
};

/// Time from which subjects of commits must follow the rule, in seconds since 1970: 2026-11-28.
const SUBJECTS_SINCE: u64 = 1_795_824_000;

/// Folders at the root that are not searched, because they contain build outputs.
const LEFT_OUT: &[&str] = &["target", "dist"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Language of a file that contains checked texts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    Markdown,
    Script,
}

impl Language {
    /// Returns the language of a file, or `None` if its texts are not checked.
    fn of_file(path: &str) -> Option<Language> {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.') {
            Some((_, "rs")) => Some(Language::Rust),
            Some((_, "md")) => Some(Language::Markdown),
            Some((_, "py" | "pyi" | "sh")) => Some(Language::Script),
            Some(_) => None,
            None => fs::read(workspace().join(path)).unwrap().starts_with(b"#!").then_some(Language::Script),
        }
    }

    fn texts(self, file: &str) -> Vec<Text> {
        match self {
            Language::Rust => texts_of_rust(file),
            Language::Markdown => texts_of_page(file),
            Language::Script => texts_of_script(file),
        }
    }

    /// Returns the numbers of comment lines that have too many columns.
    fn wide_comments(self, file: &str) -> Vec<usize> {
        match self {
            Language::Rust => wide_comments(file),
            Language::Markdown => Vec::new(),
            Language::Script => wide_script_comments(file),
        }
    }
}

/// Returns the paths of all files below a folder, relative to the root, in order.
fn files(folder: &str) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(workspace().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if entry.file_type().unwrap().is_dir() {
                let is_ours = name == ".ci" || !name.starts_with('.') && !LEFT_OUT.contains(&path.as_str());
                folders.extend((is_ours && name != "snapshots").then_some(path));
            } else if entry.file_type().unwrap().is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_text_keeps_the_rules_of_plain_english() {
    let (rules, mut texts, mut scripts, mut broken) = (Rules::new(), 0, 0, String::new());
    for path in files("") {
        let Some(language) = Language::of_file(&path) else { continue };
        let file = fs::read_to_string(workspace().join(&path)).unwrap();
        scripts += usize::from(language == Language::Script);
        for text in language.texts(&file) {
            texts += 1;
            let rules = rules.broken_by(&text.words, text.kind);
            if !rules.is_empty() {
                let _ = writeln!(broken, "{path}:{}: {}: {}", text.line, rules.join(", "), text.words);
            }
        }
        for line in language.wide_comments(&file) {
            let _ = writeln!(broken, "{path}:{line}: wide-comment");
        }
    }
    println!("{texts} texts were read, also in {scripts} scripts");
    assert!(texts > 20_000 && scripts > 50, "{texts}, {scripts}");
    assert_eq!(broken, "", "texts that break a rule of testing/src/prose.rs");
}

#[test]
fn subjects_of_commits_name_an_area_and_begin_with_a_verb() {
    let log = Command::new("git")
        .args(["log", "--no-merges", "--format=%ct %h %s"])
        .current_dir(workspace())
        .output()
        .ok()
        .filter(|log| log.status.success());
    let Some(log) = log else {
        println!("NOT RUN: subjects of commits, since this is no clone with git's history");
        return;
    };
    let rules = Rules::new();
    let log = String::from_utf8_lossy(&log.stdout);
    let mut bad = String::new();
    for commit in log.lines() {
        let (time, rest) = commit.split_once(' ').unwrap();
        let (_, subject) = rest.split_once(' ').unwrap_or((rest, ""));
        if time.parse::<u64>().unwrap() >= SUBJECTS_SINCE && !rules.is_subject(subject) {
            let _ = writeln!(bad, "{rest}");
        }
    }
    assert_eq!(bad, "", "subjects that are not `area: verb …` of at most 72 characters");
}
