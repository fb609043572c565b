//! The English of the repository: counts of texts that break a rule, by crate. They only fall.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ixc_testing::bless;
use ixc_testing::prose::{Kind, Rules, texts_of_page, texts_of_rust, wide_comments};

/// Most texts of comments and errors that may break a rule, per 1,000 of the repository.
const MAX_PER_MILLE_OF_CODE: usize = 20;

/// Most paragraphs of Markdown pages that may break a rule, per 1,000 of the repository.
const MAX_PER_MILLE_OF_PAGES: usize = 50;

/// Seconds since 1970 from which subjects of commits follow the rule: 2026-11-28.
const SUBJECTS_SINCE: u64 = 1_795_824_000;

/// Folders at the root whose files are not ours or are no sources.
const LEFT_OUT: &[&str] = &["target", "dist"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the paths of all Rust and Markdown files below a folder, from the root, in order.
fn files(folder: &str) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(workspace().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if entry.file_type().unwrap().is_dir() {
                let is_ours = !name.starts_with('.') && name != "snapshots" && !LEFT_OUT.contains(&path.as_str());
                folders.extend(is_ours.then_some(path));
            } else if name.ends_with(".rs") || name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Counts of a folder at the root.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    /// Texts of comments and errors.
    code: usize,
    broken_code: usize,
    /// Paragraphs of pages.
    pages: usize,
    broken_pages: usize,
    /// Lines that are comments of too many columns.
    wide: usize,
}

/// Returns the counts by folder, and a line for each finding.
fn counts() -> (BTreeMap<String, Count>, Vec<(String, String)>) {
    let (rules, mut counts, mut findings) = (Rules::new(), BTreeMap::<String, Count>::new(), Vec::new());
    for path in files("") {
        let file = fs::read_to_string(workspace().join(&path)).unwrap();
        let is_page = path.ends_with(".md");
        let folder = path.split_once('/').map_or(".", |(folder, _)| folder).to_owned();
        let count = counts.entry(folder.clone()).or_default();
        for text in if is_page { texts_of_page(&file) } else { texts_of_rust(&file) } {
            let broken = rules.broken_by(&text.words, text.kind);
            let is_broken = usize::from(!broken.is_empty());
            if text.kind == Kind::Page {
                (count.pages, count.broken_pages) = (count.pages + 1, count.broken_pages + is_broken);
            } else {
                (count.code, count.broken_code) = (count.code + 1, count.broken_code + is_broken);
            }
            if !broken.is_empty() {
                findings.push((folder.clone(), format!("{path}:{}: {}: {}", text.line, broken.join(", "), text.words)));
            }
        }
        for line in if is_page { Vec::new() } else { wide_comments(&file) } {
            count.wide += 1;
            findings.push((folder.clone(), format!("{path}:{line}: wide-comment")));
        }
    }
    (counts, findings)
}

/// Returns the table of counts as it is recorded.
fn table(counts: &BTreeMap<String, Count>) -> String {
    let mut table = String::from("# folder: comments and errors, pages, wide comments that break a rule\n");
    for (folder, count) in counts {
        let _ = writeln!(table, "{folder} {} {} {}", count.broken_code, count.broken_pages, count.wide);
    }
    table
}

/// Reads the recorded table.
fn recorded(table: &str) -> BTreeMap<&str, [usize; 3]> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| {
        let mut fields = row.split(' ');
        let folder = fields.next().unwrap();
        let counts: Vec<usize> = fields.map(|field| field.parse().unwrap()).collect();
        (folder, counts.try_into().unwrap())
    })
    .collect()
}

#[test]
fn prose_violations_never_increase() {
    let path = workspace().join("testing/tests/prose.txt");
    let (counts, findings) = counts();
    let text = fs::read_to_string(&path).unwrap();
    let old = recorded(&text);
    let mut worse = String::new();
    for (folder, count) in &counts {
        let limits = old.get(folder.as_str()).copied().unwrap_or_default();
        let now = [count.broken_code, count.broken_pages, count.wide];
        if now.iter().zip(limits).any(|(now, limit)| *now > limit) {
            let _ = writeln!(worse, "{folder}: {now:?}, at most {limits:?}; all of them:");
            for (_, finding) in findings.iter().filter(|(of, _)| of == folder) {
                let _ = writeln!(worse, "  {finding}");
            }
        }
    }
    assert_eq!(worse, "", "texts that break a rule of testing/src/prose.rs");
    let new = table(&counts);
    if new != text {
        assert!(bless::is_asked_for(), "fewer texts break a rule: record it with IXC_BLESS=1 in {}", path.display());
        fs::write(&path, &new).unwrap();
    }
    let (code, broken_code) = counts.values().fold((0, 0), |(all, broken), c| (all + c.code, broken + c.broken_code));
    let (pages, broken_pages) =
        counts.values().fold((0, 0), |(all, broken), c| (all + c.pages, broken + c.broken_pages));
    println!("{broken_code} of {code} texts of sources and {broken_pages} of {pages} of pages break a rule");
    assert!(broken_code * 1000 <= code * MAX_PER_MILLE_OF_CODE, "{broken_code} of {code} texts of sources");
    assert!(broken_pages * 1000 <= pages * MAX_PER_MILLE_OF_PAGES, "{broken_pages} of {pages} paragraphs of pages");
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
