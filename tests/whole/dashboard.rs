//! Checks that the Grafana dashboard and the autoscaler of a release name only metrics that the
//! server has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Files of a release that name metrics.
const FILES: [&str; 2] = ["release/pack/dashboard.py", "release/kubernetes/adapter.yaml"];
/// Suffixes of the sample names of a histogram.
const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Returns the names that follow each occurrence of `before` in a text.
fn names<'t>(text: &'t str, before: &str) -> BTreeSet<&'t str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let rests = text.split(before).skip(1);
    rests.map(|rest| &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]).collect()
}

#[test]
fn dashboards_name_metrics_of_the_server() {
    let source = read("serve/src/http/metrics.rs");
    // In the server's table, a metric's name is the first argument of `metric(`, on the same line
    // or on the next one.
    let table: String = source.split_whitespace().collect();
    let known = names(&table, "metric(\"");
    assert!(known.len() > 30 && known.contains("requests_deferred"), "{known:?}");
    for file in FILES {
        let text = read(file);
        let shown = names(&text, "ixc:");
        assert!(!shown.is_empty(), "{file}");
        for name in shown {
            let whole = PARTS.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
            assert!(known.contains(name) || known.contains(whole), "{file}: the server has no metric {name}");
        }
    }
}
