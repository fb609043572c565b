//! Test of `docs/unsafe.md`, the inventory of `unsafe` code. Each unsafe item has an invariant, and
//! each file with unsafe code has tests that run it. `tests.txt` names these tests.

use std::collections::BTreeMap;
use std::fmt::Write;

use ixc_testing::modules::{ROOTS, sources};
use ixc_testing::source::{code, words};
use ixc_testing::unsafe_code::{Entry, entries};

use super::workspace;

/// Text that names the tests of each file: the file, and after the colon the test files, each with
/// its functions.
const TESTS: &str = include_str!("tests.txt");

/// Line that marks the beginning of the generated part of the page.
const BEGIN: &str = "<!-- generated: IXC_BLESS=1 cargo test --workspace --test modules unsafe -->\n";

/// Root files of the crates that [`ROOTS`] omits, because they have few or no modules.
const PROGRAMS: &[&str] = &["src/lib.rs", "src/main.rs", "fuzz/src/main.rs"];

/// Name of a test function, with its file.
struct Test<'t> {
    file: &'t str,
    name: &'t str,
}

/// Returns the tests of each file with unsafe code.
fn tests() -> BTreeMap<&'static str, Vec<Test<'static>>> {
    let of_line = |line: &'static str| {
        let (file, tests) = line.split_once(": ").unwrap_or_else(|| panic!("{line}: no tests"));
        let test = |test: &'static str| {
            let (file, name) = test.split_once("::").unwrap_or_else(|| panic!("{test}: no function"));
            Test { file, name }
        };
        (file, tests.split(", ").map(test).collect())
    };
    TESTS.lines().filter(|line| !line.is_empty()).map(of_line).collect()
}

/// Returns whether a source has a test function of this name, and a test program runs it. Programs
/// with their own `main` call their tests by name.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let heads = [format!("fn {name}("), format!("async fn {name}(")];
    let mut places = (0..lines.len()).filter(|at| heads.iter().any(|head| lines[*at].starts_with(&**head))).peekable();
    if text.contains("\nfn main(") {
        let uses = words(&code(text)).iter().filter(|word| **word == name).count();
        return places.peek().is_some() && (name == "main" || uses > 1);
    }
    places.any(|at| attributes(&lines[..at]).any(is_test))
}

/// Returns the attributes directly above an item, the nearest first.
fn attributes<'l>(above: &'l [&'l str]) -> impl Iterator<Item = &'l str> {
    let belongs = |line: &&str| line.starts_with("#[") || line.starts_with("//") || line.ends_with(")]");
    above.iter().rev().copied().take_while(belongs).filter(|line| line.starts_with("#["))
}

/// Returns whether an attribute makes a function a test.
fn is_test(attribute: &str) -> bool {
    attribute == "#[test]" || attribute.starts_with("#[tokio::test")
}

/// Returns the unsafe code of each file, by path.
fn inventory() -> BTreeMap<String, Vec<Entry>> {
    let root = workspace().canonicalize().unwrap();
    let files = ROOTS.iter().flat_map(|file| sources(&root.join(file)));
    let of_file = |file: std::path::PathBuf| {
        let found = entries(&std::fs::read_to_string(&file).unwrap());
        let name = file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        (!found.is_empty()).then_some((name, found))
    };
    files.filter_map(of_file).collect()
}

#[test]
fn unsafe_code_has_an_invariant_and_a_test() {
    let (inventory, tests) = (inventory(), tests());
    let mut wrong = String::new();
    for (file, entries) in &inventory {
        for Entry { place, line, .. } in entries.iter().filter(|entry| entry.invariant.is_empty()) {
            let _ = writeln!(wrong, "{file}:{line}: unsafe code of `{place}` has no invariant");
        }
        if !tests.contains_key(&**file) {
            let _ = writeln!(wrong, "{file}: testing/tests/unsafe_code/tests.txt names no test of its unsafe code");
        }
    }
    for (file, tests) in &tests {
        if !inventory.contains_key(*file) {
            let _ = writeln!(wrong, "{file}: it has tests of unsafe code, but no unsafe code");
        }
        for Test { file, name } in tests {
            let text = std::fs::read_to_string(workspace().join(file)).unwrap_or_default();
            if !has_test(&text, name) {
                let _ = writeln!(wrong, "{file}: there is no test {name}");
            }
        }
    }
    assert_eq!(wrong, "");
}

#[test]
fn tests_of_unsafe_code_are_tests() {
    let harness = "#[test]\nfn first() {}\n\n/// Text.\n#[tokio::test]\nasync fn second() {}\n\nfn helper() {}\n";
    assert!(has_test(harness, "first") && has_test(harness, "second"));
    assert!(!has_test(harness, "helper") && !has_test(harness, "third"));
    let program = "fn called() {}\nfn forgotten() {}\nfn main() {\n    called();\n}\n";
    assert!(has_test(program, "called") && has_test(program, "main"));
    assert!(!has_test(program, "forgotten"));
}

/// Checks that each crate without an entry in the inventory forbids unsafe code. The compiler then
/// rejects a block that the inventory would overlook.
#[test]
fn crates_without_unsafe_code_forbid_it() {
    let inventory = inventory();
    let root = workspace().canonicalize().unwrap();
    let mut wrong = String::new();
    for file in ROOTS.iter().chain(PROGRAMS) {
        let forbids = std::fs::read_to_string(root.join(file)).unwrap().contains("\n#![forbid(unsafe_code)]\n");
        let paths = sources(&root.join(file));
        let has_entries = paths
            .iter()
            .filter_map(|path| path.strip_prefix(&root).ok()?.to_str())
            .any(|path| inventory.contains_key(path));
        if forbids == has_entries {
            let state = if forbids { "forbids unsafe code and has it" } else { "has no unsafe code and allows it" };
            let _ = writeln!(wrong, "{file}: the crate {state}");
        }
    }
    assert_eq!(wrong, "");
}

#[test]
fn inventory_of_unsafe_code_matches_the_sources() {
    let (inventory, tests) = (inventory(), tests());
    let mut text = String::from(BEGIN);
    let pieces: usize = inventory.values().map(Vec::len).sum();
    let _ = writeln!(text, "\n{pieces} pieces of unsafe code in {} files.", inventory.len());
    for (file, entries) in &inventory {
        let _ = writeln!(text, "\n## `{file}`\n");
        for Test { file, name } in tests.get(&**file).into_iter().flatten() {
            let _ = writeln!(text, "- tested by `{name}` in `{file}`");
        }
        text += "\n| code | in | invariant |\n| --- | --- | --- |\n";
        for Entry { kind, place, invariant, .. } in entries {
            let _ =
                writeln!(text, "| {} | `{place}` | {} |", kind.name(), without_paths(invariant).replace('|', "\\|"));
        }
    }
    let path = workspace().join("docs/unsafe.md");
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    let (head, generated) = page.split_at(page.find(BEGIN).unwrap_or(page.len()));
    if ixc_testing::bless::is_asked_for() {
        std::fs::write(&path, format!("{head}{text}")).unwrap();
    } else {
        assert!(generated == text, "docs/unsafe.md is not what the sources say: IXC_BLESS=1 cargo test --test modules");
    }
}

/// Removes the paths of intra-doc links from a text, because only rustdoc can resolve them.
fn without_paths(text: &str) -> String {
    let mut parts = text.split("](crate::");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push(']');
        plain.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    plain
}

/// Checks that no safe function writes through a raw pointer parameter, because safe code could
/// then break memory safety.
#[test]
fn safe_functions_write_through_no_pointer_parameter() {
    let mut wrong = String::new();
    for file in ROOTS.iter().flat_map(|file| sources(&workspace().join(file))) {
        let text = code(&std::fs::read_to_string(&file).unwrap());
        for name in ixc_testing::unsafe_code::safe_writers(&text) {
            let _ = writeln!(wrong, "{}: `{name}` writes through a parameter, and is safe", file.display());
        }
    }
    assert_eq!(wrong, "", "such functions are `unsafe fn`, or take a type that proves the right to write");
}
