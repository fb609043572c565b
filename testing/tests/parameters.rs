//! Test that functions name their parameters and types name their fields. Two counts of each crate
//! must not grow: parameters that are tuple or array patterns, and type aliases of tuples.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use ixc_testing::bless;
use ixc_testing::modules::{ROOTS, sources};
use ixc_testing::parameters::{find_unnamed_parameters, tuple_aliases};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns a line for each unnamed parameter and each type alias of a tuple, by the folder of its
/// crate.
fn findings() -> BTreeMap<&'static str, Vec<String>> {
    let mut findings = BTreeMap::new();
    for root in ROOTS {
        let folder = root.split_once("/src/").map_or(*root, |(folder, _)| folder);
        let of_crate: &mut Vec<String> = findings.entry(folder).or_default();
        for file in sources(&workspace().join(root)) {
            let shown = file.strip_prefix(workspace()).unwrap_or(&file).display().to_string();
            let text = fs::read_to_string(&file).unwrap();
            let found = find_unnamed_parameters(&text);
            of_crate.extend(found.iter().map(|one| format!("{shown}:{}: {}: {}", one.line, one.function, one.pattern)));
            let found = tuple_aliases(&text);
            of_crate.extend(found.iter().map(|one| format!("{shown}:{}: {}: {}", one.line, one.name, one.tuple)));
        }
    }
    findings
}

#[test]
fn unnamed_parameters_never_increase() {
    let path = workspace().join("testing/tests/parameters.txt");
    let text = fs::read_to_string(&path).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let limits: BTreeMap<&str, usize> =
        rows.map(|row| row.split_once(' ').unwrap()).map(|(folder, count)| (folder, count.parse().unwrap())).collect();
    let (mut more, mut new) = (
        String::new(),
        String::from("# crate: parameters that are patterns of tuples or arrays, and tuples as types\n"),
    );
    for (folder, found) in &findings() {
        let limit = limits.get(folder).copied().unwrap_or(0);
        if found.len() > limit {
            let _ =
                writeln!(more, "{folder}: {}, at most {limit}; all of them:\n  {}", found.len(), found.join("\n  "));
        }
        if !found.is_empty() {
            let _ = writeln!(new, "{folder} {}", found.len());
        }
    }
    assert!(
        more.is_empty(),
        "give each value its own parameter, or declare a struct with named fields if there would be more than 7, or in place of a tuple:\n{more}"
    );
    if new != text {
        assert!(
            bless::is_asked_for(),
            "fewer parameters without a name: record it with IXC_BLESS=1 in {}",
            path.display()
        );
        fs::write(&path, &new).unwrap();
    }
}
