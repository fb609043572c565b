//! Tests of rules that `cargo publish` requires of the workspace's packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use ixc_testing::modules::{ROOTS, sources};

/// Returns the folder of the workspace.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns the value of a key in a line such as `key = "value"`. The key may be inside an inline
/// table.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_once(&format!("{key} = \""))?.1.split('"').next()
}

/// Returns the folders of the workspace's packages by their names.
fn folders(manifest: &str) -> BTreeMap<String, PathBuf> {
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
    let members = members.split('"').skip(1).step_by(2).map(|member| workspace().join(member));
    let folders = members.chain([workspace()]);
    folders.map(|folder| (name(&fs::read_to_string(folder.join("Cargo.toml")).unwrap()), folder)).collect()
}

/// Returns the name of a package.
fn name(manifest: &str) -> String {
    let package = manifest.lines().skip_while(|line| *line != "[package]");
    package.into_iter().find_map(|line| value(line, "name")).unwrap().to_owned()
}

/// Checks that the workspace lists each of its packages as a dependency with the exact version of
/// the workspace.
#[test]
fn dependencies_have_the_version_of_the_workspace() {
    let manifest = fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = ")).unwrap().trim_matches('"');
    let mut count = 0;
    for line in manifest.lines().filter(|line| line.contains(" = { ") && line.contains("path = ")) {
        let required = value(line, "version");
        if line.starts_with("ixc-testing ") {
            // Cargo omits a dev-dependency without a version from packages.
            assert_eq!(required, None, "{line}");
        } else {
            assert_eq!(required, Some(format!("={version}").as_str()), "{line}");
            count += 1;
        }
    }
    assert!(count > 20, "dependencies with a path: {count}");
}

/// Checks that an order of publication exists: no package needs another package that needs it, not
/// even for tests.
#[test]
fn packages_can_be_published_in_an_order() {
    let folders = folders(&fs::read_to_string(workspace().join("Cargo.toml")).unwrap());
    let mut waiting: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let manifests: BTreeMap<&str, String> = folders
        .iter()
        .map(|(name, folder)| (name.as_str(), fs::read_to_string(folder.join("Cargo.toml")).unwrap()))
        .filter(|(_, manifest)| !manifest.contains("\npublish = false\n"))
        .collect();
    assert!(manifests.len() > 20, "packages to publish: {:?}", manifests.keys());
    for (name, manifest) in &manifests {
        // Dependencies that come from the workspace have a version. Dependencies with a path in the
        // manifest have no version, so cargo omits them from packages.
        let needed = manifest.lines().filter(|line| line.contains("workspace = true"));
        let needed = needed.filter_map(|line| line.split(['.', ' ']).next());
        let needed = needed.filter(|other| folders.contains_key(*other) && *other != "ixc-testing");
        waiting.insert(name, needed.collect());
    }
    while !waiting.is_empty() {
        let ready: Vec<&str> = waiting.iter().filter(|(_, needed)| needed.is_empty()).map(|(name, _)| *name).collect();
        assert!(!ready.is_empty(), "each of these packages needs another of them: {waiting:#?}");
        for name in ready {
            waiting.remove(name);
            waiting.values_mut().for_each(|needed| {
                needed.remove(name);
            });
        }
    }
}

/// Checks that a library with `test = false` has no unit tests, because cargo would silently not
/// run them.
#[test]
fn libraries_not_built_for_unit_tests_have_none() {
    let mut without = 0;
    for (name, folder) in folders(&fs::read_to_string(workspace().join("Cargo.toml")).unwrap()) {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let library = manifest.split("\n[").find_map(|section| section.strip_prefix("lib]\n")).unwrap_or_default();
        if library.lines().any(|line| line == "test = false") {
            let has_tests = |source: &PathBuf| fs::read_to_string(source).unwrap().contains("#[cfg(test)]\n");
            assert!(!sources(&folder.join("src/lib.rs")).iter().any(has_tests), "{name}: remove `test = false`");
            without += 1;
        }
    }
    assert!(without > 3, "libraries without unit tests: {without}");
}

/// Checks that a package contains all files that its sources include, since it is built without the
/// checkout.
#[test]
fn packages_contain_the_files_that_they_include() {
    let (mut outside, mut count) = (Vec::new(), 0);
    for root in ROOTS.iter().copied().chain(["src/lib.rs"]) {
        let root = workspace().join(root);
        let folder = root.ancestors().nth(2).unwrap();
        for source in sources(&root) {
            let text = fs::read_to_string(&source).unwrap();
            // A package is built without its tests, so files that only tests include may be
            // missing.
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for included in ["include_str!(\"", "include_bytes!(\""].iter().flat_map(|word| text.split(word).skip(1)) {
                let path = included.split('"').next().unwrap_or_default();
                count += 1;
                // A link in a package to a file elsewhere is replaced by the file when the package
                // is made.
                let mut place = source.parent().unwrap().to_owned();
                for part in path.split('/') {
                    match part {
                        ".." => assert!(place.pop(), "{}: {path}", source.display()),
                        part => place.push(part),
                    }
                }
                if !place.starts_with(folder) {
                    outside.push(format!("{}: {path}", source.display()));
                }
            }
        }
    }
    assert!(count > 3, "included files: {count}");
    assert!(outside.is_empty(), "{outside:#?}");
}
