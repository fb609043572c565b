//! No modules of a crate use each other in a circle: a reader can start with the modules that a
//! module uses.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use ixc_testing::files::files;
use ixc_testing::modules::{Graph, graph};
use petgraph::algo::{tarjan_scc, toposort};
use petgraph::graphmap::DiGraphMap;

/// Root files of all crates, and of the command line's folder of modules.
const ROOTS: &[&str] = &[
    "failure/src/lib.rs",
    "files/src/lib.rs",
    "ir/src/lib.rs",
    "targets/src/lib.rs",
    "frontend/text/src/lib.rs",
    "frontend/model_files/src/lib.rs",
    "frontend/architectures/src/lib.rs",
    "kernels/src/lib.rs",
    "passes/src/lib.rs",
    "codegen/src/lib.rs",
    "cost/src/lib.rs",
    "emulator/src/lib.rs",
    "dataflow/src/lib.rs",
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
    "bench/src/main.rs",
    "testing/src/lib.rs",
    "capi/src/lib.rs",
    "python/src/lib.rs",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns modules that use each other in a circle, in the order of their names.
fn circles(graph: &Graph) -> Vec<Vec<&str>> {
    let edges = graph.iter().flat_map(|(name, used)| used.iter().map(move |used| (name.as_str(), used.as_str())));
    let graph: DiGraphMap<&str, ()> = DiGraphMap::from_edges(edges);
    let mut circles: Vec<Vec<&str>> = tarjan_scc(&graph).into_iter().filter(|circle| circle.len() > 1).collect();
    circles.iter_mut().for_each(|circle| circle.sort_unstable());
    circles.sort();
    circles
}

#[test]
fn modules_use_each_other_in_one_direction() {
    let mut found = String::new();
    for root in ROOTS {
        let graph = graph(&workspace().join(root));
        assert!(!graph.is_empty(), "{root} declares no module");
        for circle in circles(&graph) {
            println!("{root}");
            for name in &circle {
                let used: Vec<&str> = circle.iter().copied().filter(|other| graph[*name].contains(*other)).collect();
                println!("    {name} uses {}", used.join(", "));
            }
            let _ = writeln!(found, "{root}: {}", circle.join(" "));
        }
    }
    assert_eq!(found, "", "modules that use each other in a circle");
}

/// Known circles between files, by their first file. Remove repaired circles; add none.
const KNOWN_CIRCLES: &[(&str, &str)] = &[
    ("ir/src/lib.rs", "derived::element"),
    ("ir/src/lib.rs", "format::codec"),
    ("ir/src/lib.rs", "graph::attrs"),
    ("frontend/model_files/src/lib.rs", "checkpoint::conversions"),
    ("passes/src/lib.rs", "schedule::lower"),
    ("dataflow/src/lib.rs", "simulate::pass"),
];

/// A file may use items of the modules that contain it: they are not counted here.
#[test]
fn files_use_each_other_in_one_direction() {
    let mut new = String::new();
    let mut known = Vec::new();
    for &root in ROOTS {
        let mut graph = files(&workspace().join(root));
        graph.remove("crate");
        for (name, used) in &mut graph {
            used.retain(|used| used != "crate" && !name.starts_with(&format!("{used}::")));
        }
        for circle in circles(&graph) {
            if KNOWN_CIRCLES.contains(&(root, circle[0])) {
                known.push((root, circle[0].to_owned()));
                continue;
            }
            let _ = writeln!(new, "{root}");
            for name in &circle {
                let used: Vec<&str> = circle.iter().copied().filter(|other| graph[*name].contains(*other)).collect();
                let _ = writeln!(new, "    {name} uses {}", used.join(", "));
            }
        }
    }
    assert_eq!(new, "", "files that use each other in a circle");
    let mended = KNOWN_CIRCLES.iter().filter(|(root, first)| !known.contains(&(*root, (*first).to_owned())));
    assert_eq!(mended.collect::<Vec<_>>(), [&("", ""); 0], "circles that are mended: take them out of the list");
}

/// Returns modules in layers: the first uses none of the crate, and each other uses only lower
/// layers.
fn layers(graph: &Graph) -> Vec<Vec<&str>> {
    let edges = graph.iter().flat_map(|(name, used)| used.iter().map(move |used| (name.as_str(), used.as_str())));
    let mut edges: DiGraphMap<&str, ()> = DiGraphMap::from_edges(edges);
    for name in graph.keys() {
        edges.add_node(name);
    }
    let mut heights: BTreeMap<&str, usize> = BTreeMap::new();
    for name in toposort(&edges, None).expect("no circles").into_iter().rev() {
        let height = edges.neighbors(name).map(|used| heights[used] + 1).max().unwrap_or(0);
        heights.insert(name, height);
    }
    let most = heights.values().max().map_or(0, |most| most + 1);
    (0..most)
        .rev()
        .map(|layer| graph.keys().map(String::as_str).filter(|name| heights[name] == layer).collect())
        .collect()
}

/// `ARCHITECTURE.md` refers to this page. `IXC_BLESS=1` rewrites it.
#[test]
fn recorded_module_layers_match_the_sources() {
    let mut text = String::from(
        "# Modules of each crate, in layers\n\nGenerated by `testing/tests/modules.rs` from the sources. \
         A module uses only modules of lower layers, which are listed after its arrow.\n",
    );
    for root in ROOTS {
        let graph = graph(&workspace().join(root));
        let layers = layers(&graph);
        let _ = writeln!(text, "\n## `{root}`\n\n```text");
        for (i, layer) in layers.iter().enumerate() {
            for (j, name) in layer.iter().enumerate() {
                let number = if j == 0 { (layers.len() - i).to_string() } else { String::new() };
                let used: Vec<&str> = graph[*name].iter().map(String::as_str).collect();
                let arrow = if used.is_empty() { "" } else { " ─▶ " };
                let _ = writeln!(text, "{}", format!("{number:>3}  {name:<16}{arrow}{}", used.join(" ")).trim_end());
            }
        }
        text += "```\n";
    }
    let path = workspace().join("docs/modules.md");
    if ixc_testing::bless::is_asked_for() {
        std::fs::write(&path, &text).unwrap();
    }
    let drawn = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        drawn == text,
        "docs/modules.md is not what the sources say: IXC_BLESS=1 cargo test -p ixc-testing --test modules"
    );
}

/// Every crate of the workspace is checked.
#[test]
fn every_crate_is_checked() {
    let manifest = std::fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
    let members = members.split('"').skip(1).step_by(2);
    for member in members {
        assert!(ROOTS.iter().any(|root| root.starts_with(&format!("{member}/src/"))), "{member}");
    }
}

#[test]
fn dependency_cycle_is_found() {
    let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")];
    let mut graph = Graph::new();
    for (name, used) in edges {
        graph.entry(name.to_owned()).or_default().insert(used.to_owned());
    }
    assert_eq!(circles(&graph), [["a", "b", "c"]]);
}

#[test]
fn layers_are_above_their_dependencies() {
    let mut graph = Graph::new();
    for (name, used) in [("a", vec!["b", "d"]), ("b", vec!["c"]), ("c", vec![]), ("d", vec![]), ("e", vec![])] {
        graph.insert(name.to_owned(), used.into_iter().map(str::to_owned).collect());
    }
    assert_eq!(layers(&graph), [vec!["a"], vec!["b"], vec!["c", "d", "e"]]);
}
