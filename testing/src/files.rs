//! Graph of a crate's files: an edge leads from a file to a file whose items it uses.
//!
//! A path in the code is followed through the modules and `use` declarations that it names, to the
//! file that has the item. Declaring a module and re-exporting a name (`pub use`) do not count as
//! uses. A `mod.rs` may therefore list the modules of its folder.
//!
//! ```text
//! // src/plan/mod.rs: mod check; mod schema; pub use schema::Plan;
//! // src/plan/check.rs: use super::Plan;
//! plan::check -> {plan::schema}
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use crate::modules::{Graph, Place, declared_modules, read};
use crate::source::{code, words};

/// Max number of `use` declarations that are followed to resolve one path. A longer chain is a
/// cycle.
const MAX_DECLARATIONS: usize = 16;

/// A module with its own file, or an inline module that contains modules with files.
#[derive(Debug, Default)]
struct Module {
    /// Child modules in separate files, as declared.
    children: Vec<String>,
    /// Names that `use` declarations import, each with its path as written.
    uses: BTreeMap<String, Vec<String>>,
    /// Paths that the code uses, except paths of `pub use`.
    paths: Vec<Vec<String>>,
}

/// All modules of a crate, by their paths from the crate's root. The root's own path is empty.
type Tree = BTreeMap<Vec<String>, Module>;

/// Returns the graph of the crate whose root file is `root`. Nodes are named by module paths, such
/// as `plan::check`; the root is `crate`.
///
/// # Panics
/// If a file cannot be read, or ends within a literal. Sources that compile do not.
pub fn files(root: &Path) -> Graph {
    let mut tree = Tree::new();
    let folder = root.parent().unwrap_or(Path::new("."));
    add(&mut tree, root, folder, Vec::new());
    let name = |path: &[String]| if path.is_empty() { "crate".to_owned() } else { path.join("::") };
    let edges = tree.iter().map(|(path, module)| {
        let used = module.paths.iter().filter_map(|used| resolve(&tree, path, used, 0));
        (name(path), used.filter(|used| used != path).map(|used| name(&used)).collect())
    });
    edges.collect()
}

/// Adds a module and the modules below it. `folder` contains the files of its child modules.
fn add(tree: &mut Tree, file: &Path, folder: &Path, path: Vec<String>) {
    let text = code(&read(file));
    let Module { uses, paths, .. } = parse(&text);
    for declared in declared_modules(&text) {
        let mut child = path.clone();
        for name in &declared {
            let children = &mut tree.entry(child.clone()).or_default().children;
            if !children.contains(name) {
                children.push(name.clone());
            }
            child.push(name.clone());
        }
        let place = Place::from_path(folder, &declared);
        add(tree, &place.file, &place.folder, child);
    }
    let module = tree.entry(path).or_default();
    (module.uses, module.paths) = (uses, paths);
}

/// Reads the declarations and paths of a file.
fn parse(text: &str) -> Module {
    let words = words(text);
    let mut module = Module::default();
    // `inline` has, for each open inline module, the number of open braces, including its own. In
    // such modules, `super` may name the file's own module.
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
            "use" => {
                let end = words[at..].iter().position(|word| *word == ";").map_or(words.len(), |len| at + len);
                let is_export = at > 0 && matches!(words[at - 1], "pub" | ")");
                let mut found = Vec::new();
                expand(&words[at + 1..end], &[], &mut found);
                for (path, alias) in found {
                    let Some(path) = outside(path, inline.len()) else { continue };
                    if !is_export {
                        module.paths.push(path.clone());
                    }
                    if inline.is_empty() && alias != "*" {
                        module.uses.insert(alias, path);
                    }
                }
                at = end;
            }
            word if is_name(word) && (at == 0 || words[at - 1] != "::") => {
                let mut path = vec![word.to_owned()];
                while words.get(at + 1) == Some(&"::") && words.get(at + 2).is_some_and(|word| is_name(word)) {
                    path.push(words[at + 2].to_owned());
                    at += 2;
                }
                if path.len() > 1 {
                    module.paths.extend(outside(path, inline.len()));
                }
            }
            _ => {}
        }
        at += 1;
    }
    module
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Expands the tree of a `use` declaration to pairs: an imported name and its path.
fn expand(words: &[&str], prefix: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while at < words.len() {
        match words[at] {
            "::" => {}
            "{" => {
                let (mut depth, mut from) = (0, at + 1);
                for (index, word) in words.iter().enumerate().skip(at) {
                    match *word {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        _ => {}
                    }
                    let is_end = depth == 0;
                    if is_end || depth == 1 && *word == "," {
                        if from < index {
                            expand(&words[from..index], &path, found);
                        }
                        from = index + 1;
                    }
                    if is_end {
                        break;
                    }
                }
                return;
            }
            "as" => {
                found.push((path, words.get(at + 1).copied().unwrap_or("_").to_owned()));
                return;
            }
            word => path.push(word.to_owned()),
        }
        at += 1;
    }
    // For example, `use a::{self, b}` imports the name `a`.
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let alias = path.last().cloned().unwrap_or_default();
    found.push((path, alias));
}

/// Returns a path relative to the file's own module. Returns `None` if the path stays within inline
/// modules of the file.
fn outside(mut path: Vec<String>, inline: usize) -> Option<Vec<String>> {
    let up = path.iter().take_while(|name| *name == "super").count();
    if up == 0 {
        let is_inner = inline > 0 && path.first().is_some_and(|name| name == "self");
        return (!is_inner).then_some(path);
    }
    if up < inline {
        return None;
    }
    path.drain(..inline);
    // If each `super` left an inline module, the remaining path is relative to the file's own
    // module.
    if up == inline {
        path.insert(0, "self".to_owned());
    }
    Some(path)
}

/// Returns the module whose item a path names, where `from` is the module that contains the path.
/// Returns `None` for a path to a module or to another crate.
fn resolve(tree: &Tree, from: &[String], path: &[String], declarations: usize) -> Option<Vec<String>> {
    if declarations > MAX_DECLARATIONS {
        return None;
    }
    let mut module = from.to_vec();
    let mut rest = path;
    let mut is_within = false;
    while let [first, more @ ..] = rest {
        match first.as_str() {
            "crate" => module.clear(),
            "self" => {}
            "super" => {
                module.pop()?;
            }
            _ => break,
        }
        (rest, is_within) = (more, true);
    }
    loop {
        let [first, more @ ..] = rest else { return None };
        let here = tree.get(&module)?;
        if here.children.contains(first) {
            module.push(first.clone());
        } else if let Some(used) = here.uses.get(first) {
            let whole: Vec<String> = used.iter().chain(more).cloned().collect();
            // Following a declaration that resolves to itself would never end.
            return if *used == path { None } else { resolve(tree, &module, &whole, declarations + 1) };
        } else if is_within {
            // The path names one item of the file, or with `*` all of them.
            return Some(module);
        } else {
            return None;
        }
        (rest, is_within) = (more, true);
    }
}

#[cfg(test)]
mod tests {
    fn graph_of(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let graph = super::files(&folder.path().join("lib.rs"));
        let edges = graph.iter().flat_map(|(name, used)| used.iter().map(move |used| format!("{name} {used}")));
        edges.collect()
    }

    #[test]
    fn paths_resolve_to_the_file_of_the_item() {
        let edges = graph_of(&[
            ("lib.rs", "mod a; pub mod b; pub use b::deep::Deep; #[cfg(test)] mod tests;"),
            ("a.rs", "use crate::Deep; use crate::b; fn f() { b::other::g(); }"),
            ("b/mod.rs", "pub mod deep; pub mod other; pub struct Own;"),
            ("b/deep.rs", "use super::Own; use super::other::{self, g as h};"),
            ("b/other.rs", "use std::fmt; fn g() { fmt::f(); Self::x(); }"),
        ]);
        assert_eq!(edges, ["a b::deep", "a b::other", "b::deep b", "b::deep b::other"]);
    }

    #[test]
    fn reexports_are_ignored_and_inline_modules_belong_to_files() {
        let edges = graph_of(&[
            ("lib.rs", "mod a; mod b; pub use a::A; mod inner { use super::b::B; fn f() { super::own(); } }"),
            ("a.rs", "use super::*; use crate::inner::x;"),
            ("b.rs", "mod m { use super::C; use super::super::a::A; }"),
        ]);
        assert_eq!(edges, ["a crate", "b a", "crate b"]);
    }

    #[test]
    fn modules_in_inline_modules_have_their_files() {
        let edges = graph_of(&[
            ("lib.rs", "mod a; mod ops { pub mod b; pub mod c; } pub use ops::b::B;"),
            ("a.rs", "use crate::ops::c; fn f() { c::g(); crate::B::new(); }"),
            ("ops/b.rs", "use super::c::C;"),
            ("ops/c.rs", "use crate::a::A;"),
        ]);
        assert_eq!(edges, ["a ops::b", "a ops::c", "ops::b ops::c", "ops::c a"]);
    }

    #[test]
    fn circular_use_declarations_terminate() {
        assert_eq!(
            graph_of(&[("lib.rs", "mod a;"), ("a.rs", "use self::x::y; use self::x; use self::x::z as y;")]),
            [""; 0]
        );
    }
}
