//! Text tests: files of cases with what they print, or where they fail.
//!
//! A file holds cases that start with `;; name`. A case that reads is followed by what it prints, behind `; expect`, as
//! comments. A case that does not has `; error: column: message` at the end of the line that the error is on. With
//! `IXC_BLESS=1` in the environment the expectations are rewritten.

use std::fmt::Write;
use std::path::Path;

/// Why a case does not read.
pub struct Refusal {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

/// The input of a case with its expectations rewritten to what `print` does: read the text and print it again.
fn blessed(case: &str, print: &impl Fn(&str) -> Result<String, Refusal>) -> String {
    let input = case.split("\n; expect\n").next().unwrap_or(case);
    let lines: Vec<&str> = input.lines().map(|line| line.split("; error:").next().unwrap_or(line).trim_end()).collect();
    let input = lines.join("\n");
    let mut out = String::new();
    match print(&input) {
        Ok(printed) => {
            let _ = write!(out, "{}\n; expect\n", input.trim_end());
            for line in printed.lines() {
                let _ = writeln!(out, "{}", format!("; {line}").trim_end());
            }
        }
        Err(error) => {
            for (i, line) in lines.iter().enumerate() {
                let _ = match i + 1 == error.line {
                    true => writeln!(out, "{line}  ; error: {}: {}", error.column, error.message),
                    false => writeln!(out, "{line}"),
                };
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
    }
    out
}

/// Checks, or blesses, all files of a folder in `tests/`.
pub fn check(folder: &str, print: impl Fn(&str) -> Result<String, Refusal>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut cases = 0;
    for path in paths.iter().filter(|path| path.extension().is_some_and(|e| e == "ix")) {
        let text = std::fs::read_to_string(path).unwrap();
        let (head, rest) = text.split_once(";; ").expect("a file has at least one case");
        let mut out = head.to_string();
        for case in rest.split("\n;; ") {
            cases += 1;
            let separator = if out == head { "" } else { "\n" };
            let _ = write!(out, "{separator};; {}", blessed(&format!(";; {case}"), &print).trim_start_matches(";; "));
        }
        if std::env::var_os("IXC_BLESS").is_some() {
            std::fs::write(path, out).unwrap();
        } else {
            assert!(out == text, "{} is not what is expected; IXC_BLESS=1 writes this:\n{out}", path.display());
        }
    }
    assert!(cases > 20, "{cases} cases: where are the files?");
}
