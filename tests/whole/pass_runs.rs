//! Checks how often a compilation runs each pass, counted in its log.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{ixc, scratch, stderr};

/// Returns how often a command runs each pass on a graph.
fn runs(arguments: &[&str], folder: &Path) -> BTreeMap<String, usize> {
    let mut command = ixc(arguments);
    command.env("IXC_LOG", "ixc_passes::manager=debug").current_dir(folder);
    let output = command.output().unwrap();
    let log = stderr(&output);
    assert!(output.status.success(), "{arguments:?}: {log}");
    let mut runs = BTreeMap::new();
    for name in log.split("pass=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        *runs.entry(name.to_owned()).or_default() += 1;
    }
    runs
}

#[test]
fn compiling_runs_each_pass_once() {
    let folder = scratch("pass-runs");
    let compile = ["compile", "--target", "avx2", "--no-weights", "--force", "-o", "plan.ixp"];
    let passes = ixc::passes::manager::graph_passes();
    // A plan for 1 MiB streams experts, since the experts alone are larger.
    for (number, memory) in [&[][..], &["--memory", "1MiB"]].into_iter().enumerate() {
        let dump = format!("dump{number}");
        for more in [&[][..], &["--dump-dir", &dump]] {
            let runs = runs(&[&compile, memory, more].concat(), &folder);
            assert_eq!(runs.keys().collect::<Vec<_>>().len(), passes.len(), "{runs:?}");
            assert!(runs.values().all(|count| *count == 1), "{memory:?} {more:?}: {runs:?}");
        }
    }
    let stop = ["compile", "--target", "avx2", "--memory", "1MiB", "--stop-after", "tile", "--dump-dir", "stop"];
    let stopped = runs(&stop, &folder);
    assert!(stopped["fuse"] == 1 && stopped["tile"] == 1, "{stopped:?}");
    // Only the finished plan shows whether a run with all experts in memory fits in this budget. If
    // it does not fit, compilation resumes at the first pass that uses the budget.
    let close = runs(&[&compile[..], &["--memory", "16MiB"]].concat(), &folder);
    for (name, count) in close {
        let expected = if ["residency", "pack", "tile"].contains(&&*name) { 2 } else { 1 };
        assert_eq!(count, expected, "{name}");
    }
}
