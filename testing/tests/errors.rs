//! Rules for errors of all crates: `class()` matches have no wildcards, and error texts outside of
//! `cli` name no command line options.

mod troubleshooting;

use std::fs;
use std::path::{Path, PathBuf};

use ixc_testing::source::{code, literals, words};

/// Folders whose sources are checked. `cli` is not checked, because it may name options; `bench` is
/// a separate program.
const FOLDERS: &[&str] = &[
    "failure/src",
    "files/src",
    "ir/src",
    "targets/src",
    "sandbox/src",
    "frontend/text/src",
    "frontend/model_files/src",
    "frontend/architectures/src",
    "kernels/src",
    "passes/src",
    "codegen/src",
    "cost/src",
    "emulator/src",
    "dataflow/src",
    "transport/src",
    "mpi/src",
    "runtime/src",
    "grammar/src",
    "compile/src",
    "generate/src",
    "quantise/src",
    "measure/src",
    "workbench/src",
    "serve/src",
    "error/src",
    "capi/src",
    "src",
];
/// Names of folders that are not searched.
const LEFT_OUT: &[&str] = &["tests"];

/// Literals with options of other programs, which are allowed. Each has its file and the beginning
/// of the option.
const OTHER_OPTIONS: &[(&str, &str)] = &[
    // Option of KTransformers' converter.
    ("frontend/model_files/src/checkpoint/shards.rs", "--no-merge-safetensor"),
    // A title in a generated page, which is not an error text.
    ("compile/src/support.rs", "--support"),
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the sources of a folder, each with its path from the workspace and its text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(workspace().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = format!("{folder}/{name}");
            if LEFT_OUT.contains(&path.as_str()) || LEFT_OUT.contains(&name.trim_end_matches(".rs")) {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") {
                found.push((path, fs::read_to_string(entry.path()).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Returns the command line options in a text: `--` and a letter, not preceded by a letter or a
/// hyphen.
fn options(text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let begins = text.match_indices("--").filter(|(at, _)| !text[..*at].ends_with(is_name));
    let names = begins.map(|(at, _)| &text[at..at + text[at..].find(|c| !is_name(c)).unwrap_or(text.len() - at)]);
    names.filter(|name| name[2..].starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

/// Returns the arms of a match that cover variants without naming them.
fn wildcards(body: &str) -> Vec<String> {
    let words = words(body);
    let mut found = Vec::new();
    for (at, window) in words.windows(3).enumerate() {
        let [before, name, after] = window else { unreachable!() };
        let is_arm = matches!(*before, "{" | "}" | ",") && matches!(*after, "=" | "if");
        if !is_arm || !name.starts_with(|c: char| c == '_' || c.is_ascii_lowercase()) {
            continue;
        }
        // A binding as pattern is allowed if the arm returns the class of the inner error.
        let asks = words.get(at + 4..at + 7) == Some(&[*name, ".", "class"]);
        if !asks {
            found.push(format!("{name} {after}"));
        }
    }
    found
}

/// Returns the bodies of all functions `class()` in a source without comments.
fn class_bodies(code: &str) -> Vec<&str> {
    const HEAD: &str = "fn class(&self) -> Class {";
    let bodies = code.match_indices(HEAD).map(|(at, _)| {
        let rest = &code[at + HEAD.len() - 1..];
        let mut depth = 0usize;
        let end = rest.char_indices().find(|(_, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        &rest[..end.map_or(rest.len(), |(at, _)| at)]
    });
    bodies.collect()
}

/// Checks that libraries name no options. They return a remedy instead, for which
/// `cli/src/hints.rs` names the option.
#[test]
fn only_the_command_line_names_options() {
    let mut found = Vec::new();
    for (path, text) in FOLDERS.iter().flat_map(|folder| sources(folder)) {
        for literal in literals(&text) {
            for option in options(&literal) {
                let is_other = OTHER_OPTIONS.contains(&(&path, option));
                if !is_other {
                    found.push(format!("{path}: {option} in {literal}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "name a remedy, and the option in cli/src/hints.rs:\n{}", found.join("\n"));
}

/// Checks that `class()` has no wildcards, so that a new variant does not compile until its class
/// is chosen.
#[test]
fn classes_have_no_wildcard() {
    let mut found = Vec::new();
    for (path, text) in FOLDERS.iter().flat_map(|folder| sources(folder)) {
        let code = code(&text);
        for body in class_bodies(&code) {
            found.extend(wildcards(body).into_iter().map(|arm| format!("{path}: {arm}")));
        }
    }
    assert!(found.is_empty(), "name the variants in class():\n{}", found.join("\n"));
}

#[test]
fn every_crate_with_errors_has_classes() {
    for folder in FOLDERS {
        let name = folder.trim_end_matches("src").trim_end_matches('/');
        let manifest = fs::read_to_string(workspace().join(name).join("Cargo.toml")).unwrap();
        let has_errors = manifest.lines().any(|line| line == "thiserror.workspace = true");
        if has_errors {
            let has_classes = sources(folder).iter().any(|(_, text)| !class_bodies(&code(text)).is_empty());
            assert!(has_classes, "{folder}");
        }
    }
}

#[test]
fn options_in_texts_are_found() {
    assert_eq!(options("raise --ctx, `--no-pack`; a--b --- x -- y ---z"), ["--ctx", "--no-pack"]);
}

#[test]
fn wildcards_are_found() {
    let text = "
        fn class(&self) -> Class {
            match self {
                E::A { .. } | E::B(_) => Class::Data,
                E::C(error) => error.class(),
                E::D(inner) => match inner {
                    F::X => Class::Io,
                    error => error.class(),
                },
                other => Class::Failed,
                _ => Class::Data,
            }
        }
        fn other(&self) { match self { _ => {} } }";
    let code = code(text);
    let bodies = class_bodies(&code);
    assert_eq!(bodies.len(), 1);
    assert_eq!(wildcards(bodies[0]), ["other =", "_ ="]);
}
