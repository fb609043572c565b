//! The graph of a crate's modules: an edge leads from a top-level module to a top-level module that
//! it uses.
//!
//! Sources are read as text, without comments, literals, and code that is compiled only for tests.
//! A root file may declare the modules of a folder within an inline module. A path makes an edge if
//! it begins with `crate` or leaves its module by `super`. The edge goes to the module that the
//! path names. If the path names a re-export of the crate root, the edge goes to the module in the
//! path of its `pub use`.
//!
//! ```text
//! // src/plan.rs: use crate::graph::Op; fn f() -> super::Error { … }
//! // src/lib.rs: pub use error::Error;
//! plan -> {error, graph}
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::source::{code, words};

/// Root files of all crates, from the root of the repository.
pub const ROOTS: &[&str] = &[
    "failure/src/lib.rs",
    "files/src/lib.rs",
    "ir/src/lib.rs",
    "targets/src/lib.rs",
    "sandbox/src/lib.rs",
    "frontend/text/src/lib.rs",
    "frontend/model_files/src/lib.rs",
    "frontend/architectures/src/lib.rs",
    "kernels/src/lib.rs",
    "passes/src/lib.rs",
    "codegen/src/lib.rs",
    "cost/src/lib.rs",
    "emulator/src/lib.rs",
    "dataflow/src/lib.rs",
    "transport/src/lib.rs",
    "runtime/src/lib.rs",
    "grammar/src/lib.rs",
    "compile/src/lib.rs",
    "generate/src/lib.rs",
    "quantise/src/lib.rs",
    "measure/src/lib.rs",
    "workbench/src/lib.rs",
    "serve/src/lib.rs",
    "error/src/lib.rs",
    "cli/src/lib.rs",
    "mpi/src/lib.rs",
    "bench/src/main.rs",
    "testing/src/lib.rs",
    "fuzz/src/lib.rs",
    "capi/src/lib.rs",
    "python/src/lib.rs",
];

/// Edges between the top-level modules of a crate: for each module, the modules that it uses.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns the graph of the crate whose root file is `root`, such as `src/lib.rs`. Its modules are
/// declared in the root file.
///
/// # Panics
/// If a file cannot be read, or ends within a literal. Sources that compile do not.
pub fn graph(root: &Path) -> Graph {
    let text = code(&read(root));
    let folder = root.parent().unwrap_or(Path::new("."));
    let exported = exports(&text);
    let modules = declared_modules(&text);
    let names: BTreeSet<&String> = modules.iter().map(|path| &path[0]).collect();
    let mut graph = Graph::new();
    for path in &modules {
        let mut found = BTreeSet::new();
        module(folder, path, 0, &mut found);
        let known = |used: &String| names.get(used).copied().or_else(|| exported.get(used)).cloned();
        let edges = found.iter().filter_map(known).filter(|used| *used != path[0]);
        graph.entry(path[0].clone()).or_default().extend(edges);
    }
    graph
}

/// Returns the files of a crate's modules, the root file first. Modules that are compiled only for
/// tests are omitted.
///
/// # Panics
/// If a file cannot be read, or ends within a literal. Sources that compile do not.
pub fn sources(root: &Path) -> Vec<PathBuf> {
    let mut sources = vec![root.to_owned()];
    let mut folders = vec![root.parent().unwrap_or(Path::new(".")).to_owned()];
    let mut at = 0;
    while at < sources.len() {
        for path in declared_modules(&code(&read(&sources[at]))) {
            let place = Place::from_path(&folders[at], &path);
            sources.push(place.file);
            folders.push(place.folder);
        }
        at += 1;
    }
    sources
}

/// Reads a source file.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Location of a module's source.
pub(crate) struct Place {
    /// The module's source.
    pub file: PathBuf,
    /// Folder with the files of its child modules.
    pub folder: PathBuf,
}

impl Place {
    /// Returns the location of a module that another file declares. `folder` has the files of the
    /// modules that that file declares.
    pub(crate) fn from_path(folder: &Path, path: &[String]) -> Place {
        let own: PathBuf = std::iter::once(folder).chain(path.iter().map(Path::new)).collect();
        let file = own.with_extension("rs");
        Place { file: if file.is_file() { file } else { own.join("mod.rs") }, folder: own }
    }
}

/// Adds the first name of each path that leaves a module or one of its submodules. `path` is
/// relative to the declaring module, which is `depth` levels below the root.
fn module(folder: &Path, path: &[String], depth: usize, found: &mut BTreeSet<String>) {
    let Place { file, folder } = Place::from_path(folder, path);
    let (text, depth) = (code(&read(&file)), depth + path.len());
    paths(&text, depth, found);
    for inner in declared_modules(&text) {
        module(&folder, &inner, depth, found);
    }
}

/// Adds the first name of each path that begins at the crate's root.
fn paths(text: &str, depth: usize, found: &mut BTreeSet<String>) {
    let words = words(text);
    // `inline` has, for each open inline module, the number of open braces, including its own.
    let (mut braces, mut inline) = (0usize, Vec::new());
    let mut at = 0;
    while at < words.len() {
        match words[at] {
            "{" => {
                braces += 1;
                if at >= 2 && words[at - 2] == "mod" {
                    inline.push(braces);
                }
            }
            "}" => {
                if inline.last() == Some(&braces) {
                    inline.pop();
                }
                braces = braces.saturating_sub(1);
            }
            word @ ("crate" | "super") => {
                let up = words[at..].chunks(2).take_while(|pair| *pair == ["super", "::"]).count();
                let leaves = match up {
                    0 => word == "crate" && words.get(at + 1) == Some(&"::"),
                    _ => up == depth + inline.len(),
                };
                let next = at + (2 * up).max(1);
                if leaves {
                    names(&words[next + usize::from(up == 0)..], found);
                }
                at = next;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
}

/// Adds a name, or the first name of each path in braces.
fn names(words: &[&str], found: &mut BTreeSet<String>) {
    if words.first() != Some(&"{") {
        found.extend(words.first().map(|word| (*word).to_owned()));
        return;
    }
    let mut depth = 0;
    for (before, word) in words.iter().zip(&words[1..]) {
        match *before {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && matches!(*before, "{" | ",") {
            found.insert((*word).to_owned());
        }
    }
}

/// Returns the declared modules that have a separate file. Each is a path that starts with the
/// names of the inline modules around the declaration.
pub(crate) fn declared_modules(text: &str) -> Vec<Vec<String>> {
    let words = words(text);
    // Names of the open inline modules, each with the number of open braces, including its own.
    let (mut braces, mut inline, mut declared) = (0usize, Vec::new(), Vec::new());
    for (at, word) in words.iter().enumerate() {
        let name = if at >= 2 && words[at - 2] == "mod" { Some(words[at - 1]) } else { None };
        match *word {
            "{" => {
                braces += 1;
                inline.extend(name.map(|name| (braces, name)));
            }
            "}" => {
                inline.pop_if(|(depth, _)| *depth == braces);
                braces = braces.saturating_sub(1);
            }
            ";" => declared.extend(name.map(|name| {
                let around = inline.iter().map(|(_, name)| *name);
                around.chain([name]).map(str::to_owned).collect()
            })),
            _ => {}
        }
    }
    declared
}

/// Returns the names that a crate root re-exports, each with the first module in its path.
fn exports(text: &str) -> BTreeMap<String, String> {
    let words = words(text);
    let mut exports = BTreeMap::new();
    for (at, _) in words.windows(3).enumerate().filter(|(_, words)| words[0] == "use" && words[2] == "::") {
        let end = words[at..].iter().position(|word| *word == ";").map_or(words.len(), |len| at + len);
        let names = words[at + 3..end].iter().filter(|word| word.starts_with(char::is_alphabetic));
        exports.extend(names.map(|name| ((*name).to_owned(), words[at + 1].to_owned())));
    }
    exports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_uses(depth: usize, text: &str) -> Vec<String> {
        let mut found = BTreeSet::new();
        paths(&code(text), depth, &mut found);
        found.into_iter().collect()
    }

    #[test]
    fn crate_paths_are_found() {
        assert_eq!(found_uses(1, "use crate::a::{b, c}; fn f(x: super::d::E) { crate::g!(); }"), ["a", "d", "g"]);
        assert_eq!(found_uses(1, "use super::{h::{i, j}, k}; use crate::{l, m::n};"), ["h", "k", "l", "m"]);
        // In a module two levels below the root, one `super` leads to its parent. In an inline
        // module, one `super` leads to the module that contains it.
        assert_eq!(found_uses(2, "use super::a; use super::super::b;"), ["b"]);
        assert_eq!(
            found_uses(1, "mod m { use super::a; mod n { use super::super::super::b; } } use super::c;"),
            ["b", "c"]
        );
        assert_eq!(found_uses(1, "pub(crate) fn f() {} pub(super) struct S; pub(in crate::a) struct T;"), ["a"]);
    }

    #[test]
    fn comments_literals_and_tests_are_no_code() {
        let text = r##"
            //! [`crate::a`]
            /* crate::b /* crate::c */ */
            const S: &str = "crate::d \" crate::e"; const R: &str = r#"crate::f " "#; const C: char = '"';
            fn f<'a>(x: &'a str) -> char { '\'' }
            #[cfg(test)] use crate::g;
            #[cfg(all(test, unix))] #[path = "x"] mod tests { fn f() { crate::h(); } }
            use crate::i;
        "##;
        assert_eq!(found_uses(1, text), ["i"]);
    }

    #[test]
    fn inline_modules_are_part_of_paths() {
        let text = "mod a; mod ops { pub mod b; mod deep { mod c; } fn f() { } mod d; } mod e { } mod f;";
        let paths: Vec<String> = declared_modules(text).iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["a", "ops::b", "ops::deep::c", "ops::d", "f"]);
    }

    #[test]
    fn module_files_are_followed_and_reexports_resolved() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "lib.rs",
            "mod a; pub mod b; #[cfg(test)] mod gone; mod error; pub use error::{Error, Other}; mod x { } \
             mod ops { pub(crate) mod c; mod d; }",
        );
        write("ops/c.rs", "use super::d; use super::super::a::x; use crate::ops::d::y;");
        write("ops/d.rs", "use crate::Other;");
        write("a.rs", "mod inner;");
        write("a/inner.rs", "use super::super::b::B; use crate::Error;");
        write("b/mod.rs", "use crate::Gone; fn f() { super::a::g() }");
        write("error.rs", "");
        let graph = graph(&folder.path().join("lib.rs"));
        let edges: Vec<String> = graph.iter().map(|(name, used)| format!("{name} {used:?}")).collect();
        assert_eq!(edges, [r#"a {"b", "error"}"#, r#"b {"a"}"#, "error {}", r#"ops {"a", "error"}"#]);
    }
}
