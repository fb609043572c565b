//! Graph IR text tests: `tests/graph/*.ix`.
//!
//! A file holds cases that start with `;; name`. A case that reads is followed by what it prints, behind `; expect`, as
//! comments. A case that does not read has `; error: message` at the end of the line that the error is on.
//! `IXC_BLESS=1 cargo test -p ixc-ir --test graph_text` rewrites both.

use std::fmt::Write;
use std::path::PathBuf;

use ixc_ir::graph::parse::parse;

/// The input of a case with its expectations rewritten to what the code does.
fn blessed(case: &str) -> String {
    let input = case.split("\n; expect\n").next().unwrap_or(case);
    let lines: Vec<&str> = input.lines().map(|line| line.split("; error:").next().unwrap_or(line).trim_end()).collect();
    let mut out = String::new();
    match parse(&lines.join("\n")) {
        Ok(module) => {
            let input = lines.join("\n");
            let _ = write!(out, "{}\n; expect\n", input.trim_end());
            for line in module.to_string().lines() {
                let _ = writeln!(out, "{}", format!("; {line}").trim_end());
            }
        }
        Err(error) => {
            for (i, line) in lines.iter().enumerate() {
                let _ = match i + 1 == error.line {
                    true => writeln!(out, "{line}  ; error: {}: {}", error.column, error.problem),
                    false => writeln!(out, "{line}"),
                };
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
    }
    out
}

#[test]
fn text_prints_and_fails_as_expected() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/graph");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut cases = 0;
    for path in paths.iter().filter(|path| path.extension().is_some_and(|e| e == "ix")) {
        let text = std::fs::read_to_string(path).unwrap();
        let (head, rest) = text.split_once(";; ").expect("a file has at least one case");
        let mut out = head.to_string();
        for case in rest.split("\n;; ") {
            cases += 1;
            let separator = if out == head { "" } else { "\n" };
            let _ = write!(out, "{separator};; {}", blessed(&format!(";; {case}")).trim_start_matches(";; "));
        }
        if std::env::var_os("IXC_BLESS").is_some() {
            std::fs::write(path, out).unwrap();
        } else {
            assert!(out == text, "{} is not what is expected; IXC_BLESS=1 writes this:\n{out}", path.display());
        }
    }
    assert!(cases > 20, "{cases} cases: where are the files?");
}
