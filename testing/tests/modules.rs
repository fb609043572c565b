//! No modules of a crate use each other in a circle: what each needs can be read before it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use ixc_testing::modules::{Graph, graph};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

/// Root files of all crates, and of the folder of modules that the command line is.
const ROOTS: &[&str] = &[
    "files/src/lib.rs",
    "ir/src/lib.rs",
    "targets/src/lib.rs",
    "frontend/src/lib.rs",
    "kernels/src/lib.rs",
    "passes/src/lib.rs",
    "codegen/src/lib.rs",
    "emulator/src/lib.rs",
    "dataflow/src/lib.rs",
    "runtime/src/lib.rs",
    "src/lib.rs",
    "src/cli/mod.rs",
    "bench/src/main.rs",
    "testing/src/lib.rs",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Modules that use each other in a circle, in the order of their names.
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

/// Every crate of the workspace is looked at.
#[test]
fn no_crate_is_left_out() {
    let manifest = std::fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
    let members = members.split('"').skip(1).step_by(2);
    for member in members {
        assert!(ROOTS.iter().any(|root| root.starts_with(&format!("{member}/src/"))), "{member}");
    }
}

#[test]
fn a_circle_is_found() {
    let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")];
    let mut graph = Graph::new();
    for (name, used) in edges {
        graph.entry(name.to_owned()).or_default().insert(used.to_owned());
    }
    assert_eq!(circles(&graph), [["a", "b", "c"]]);
}
