//! `ixc run --trace`, which writes a timeline of the whole program.

use std::fs;

use crate::support::timeline::Timeline;
use crate::support::{demo_model, ixc, scratch, stderr, stdout};

const GREEDY: [&str; 10] = ["run", "--raw", "-p", "The borrow checker", "-n", "12", "--temp", "0", "-t", "2"];

#[test]
fn a_run_writes_its_timeline_and_the_same_text() {
    let folder = scratch("trace_run");
    let path = folder.join("out.json");
    let expected = stdout(ixc(GREEDY));
    for (memory, streamed) in [(None, false), (Some("8MiB"), true)] {
        // The error for a small budget states how much memory the process needs in addition to
        // experts.
        let needed = memory.map(|memory| {
            let refused =
                ixc(GREEDY).arg(demo_model()).args(["--memory", memory, "--trace"]).arg(&path).output().unwrap();
            let message = stderr(&refused);
            assert_eq!(refused.status.code(), Some(2), "{message}");
            let needed: u64 =
                message.split("experts, and ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
            format!("{}MiB", needed + 1)
        });
        let mut command = ixc(GREEDY);
        command.args(needed.iter().flat_map(|needed| ["--memory", needed])).arg("--trace").arg(&path).arg(demo_model());
        assert_eq!(stdout(command), expected, "{memory:?}");
        let trace = Timeline::read(&fs::read_to_string(&path).unwrap());
        // There are steps for the prompt and for all tokens except the last, because no step
        // follows the last token.
        let steps = trace.spans("tokens");
        assert_eq!(steps.len(), 12);
        assert!(steps[0].name.starts_with("prefill of "), "{}", steps[0].name);
        assert!(steps[1..].iter().all(|step| step.name.starts_with("token ")));
        let phases: Vec<&str> = trace.spans("compile and load").iter().map(|span| span.name.as_str()).collect();
        assert!(phases.starts_with(&["compile"]) && phases.contains(&"generate code"), "{phases:?}");
        let lanes = |process: &str| trace.spans(process).iter().map(|span| span.lane).max();
        assert_eq!(lanes("threads"), Some(1));
        assert_eq!([lanes("drive").is_some(), lanes("slots").is_some()], [streamed; 2]);
        assert_eq!(trace.counters.contains_key("GB/s read"), streamed);
        assert_eq!(trace.dropped, 0);
    }
}

#[test]
fn unwritable_trace_is_refused() {
    let output = ixc(GREEDY).args(["--trace", "/dev/null"]).output().unwrap();
    assert!(output.stdout.is_empty());
    let message = stderr(&output);
    assert!(output.status.code() == Some(74) && message.contains("only be written to a regular file"), "{message}");
    let nowhere = scratch("trace_nowhere").join("no/folder/out.json");
    let output = ixc(GREEDY).arg("--trace").arg(nowhere).output().unwrap();
    assert!(output.status.code() == Some(74) && stderr(&output).contains("no/folder"), "{}", stderr(&output));
}
