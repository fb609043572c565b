//! Memory budgets of the whole program. The peak memory that the system reports stays within the
//! budget. A budget is refused only if streaming does not help.

use std::path::Path;
use std::process::Command;

use crate::support::made::{BASE, ExpertParameters, ModelParameters};
use crate::support::measure::measured;
use crate::support::{demo_model, ixc, scratch, stderr, stdout};
use ixc::ir::format::Format::{F16, F32, Q4K};

const RUN: [&str; 10] = ["run", "--raw", "-p", "The borrow checker", "-n", "32", "--temp", "0", "-t", "2"];

const BENCH: [&str; 10] = ["bench", "-p", "0", "-n", "24", "-r", "1", "-t", "2", "--json"];

/// Returns the least budget in MiB that the error of a command suggests.
fn least(command: &[&str], path: &Path, more: &[&str]) -> u64 {
    let refused = ixc(command).arg(path).args(["--memory", "1MiB"]).args(more).output().unwrap();
    let message = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    message.split("experts, and ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Returns the peak memory that a benchmark reads from the system. The peak of `wait4` would
/// include the memory of this test process, which also runs models.
fn peak(command: Command) -> u64 {
    let rows: serde_json::Value = serde_json::from_str(&stdout(command)).unwrap();
    rows["rows"][0]["peak_memory"].as_u64().unwrap()
}

/// Checks that experts are not kept in memory in addition to the budget. The experts have about 100
/// MiB, so the peak memory would show it.
#[test]
fn excess_experts_are_not_kept_in_memory() {
    let model = ModelParameters {
        seed: 0xb0d6e7,
        context: 64,
        layers: 4,
        width: 512,
        experts: Some(ExpertParameters { count: 64, used: 2, inner: 512 }),
        formats: &[("token_embd", F16), ("ffn_gate_inp", F32), ("", Q4K)],
        ..BASE
    };
    let path = scratch("budget_large").join("model.gguf");
    std::fs::write(&path, model.file()).unwrap();
    let budget = least(&BENCH, &path, &[]) + 4;
    let peak = |memory: &str| {
        let mut command = ixc(BENCH);
        command.arg(&path).args(["--memory", memory]);
        peak(command)
    };
    let (streamed, resident) = (peak(&format!("{budget}MiB")), peak("4GiB"));
    println!("{} of {budget} MiB; {} MiB with all in memory", streamed >> 20, resident >> 20);
    assert!(streamed <= (budget << 20) / 100 * 105, "{streamed} bytes with {budget} MiB");
    assert!(resident > budget << 20, "the test's model is too small: {resident} bytes");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_streamed_run_takes_no_more_than_its_budget() {
    let folder = scratch("budget_peak");
    let packed = folder.join("packed.ixp");
    let mut compile = ixc(["compile", "--memory", "1MiB", "--pack"]);
    compile.arg(demo_model()).arg("-o").arg(&packed);
    stdout(compile);
    for (path, more) in [
        (demo_model(), &[][..]),
        (demo_model(), &["--prefetch", "off"]),
        (demo_model(), &["--prefetch", "previous"]),
        (packed, &[]),
    ] {
        let least = least(&BENCH, &path, more);
        for budget in [least + 2, least + 4, least + 12] {
            let mut command = ixc(BENCH);
            command.arg(&path).args(["--memory", &format!("{budget}MiB")]).args(more);
            let peak = peak(command);
            println!("{}, {more:?}: {} of {budget} MiB", path.display(), peak >> 20);
            assert!(peak <= (budget << 20) / 100 * 105, "{}, {more:?}: {peak} bytes with {budget} MiB", path.display());
            // The peak shows that the budget is also used.
            assert!(peak > 8 << 20, "{peak}");
        }
    }
}

/// Checks that the demo model's least budget stays below the budget in the example of
/// docs/streaming.md.
#[test]
fn the_demo_model_takes_no_more_than_80_mib() {
    let folder = scratch("budget_demo");
    let plan = folder.join("demo.ixp");
    let mut compile = ixc(["compile", "--memory", "1MiB", "--prefetch", "router"]);
    compile.arg(demo_model()).arg("-o").arg(&plan);
    stdout(compile);
    let found = [(demo_model(), &[][..]), (plan.clone(), &["--prefetch", "router"])]
        .map(|(path, more)| least(&RUN, &path, more));
    println!("{found:?} MiB");
    assert!(found.into_iter().all(|least| least <= 80), "{found:?} MiB");
    let expected = stdout(ixc(RUN));
    let mut streamed = ixc(RUN);
    streamed.arg(&plan).args(["--memory", "80MiB", "--prefetch", "router"]);
    assert_eq!(stdout(streamed), expected);
}

/// Checks that `ixc plan` and all commands that run a model compute the same least budget.
#[test]
fn planned_minimum_budget_suffices_for_every_run() {
    let folder = scratch("budget_plan");
    let trace = folder.join("trace.json");
    let runs: [(&[&str], &[&str]); 4] = [
        (&[], &[]),
        (&[], &["--stats", "--trace", trace.to_str().unwrap()]),
        (&["-c", "512"], &["--prefetch", "router", "--prefetch-extra", "2"]),
        (&[], &["--prefetch", "off", "--spec", "ngram"]),
    ];
    let model = demo_model();
    for (of_both, of_run) in runs {
        let mut plan = ixc(["plan", "-t", "2", "--json"]);
        plan.arg(&model).args(of_both);
        let plan: serde_json::Value = serde_json::from_str(&stdout(plan)).unwrap();
        let least = plan["least_memory"].as_u64().unwrap();
        let run = |more: &[&str]| {
            let mut run = ixc(["run", "-p", "The", "-n", "8", "--temp", "0", "-t", "2"]);
            run.arg(&model).args(of_both).args(more);
            stdout(run)
        };
        let text = run(&[&["--memory", &format!("{least}B")], of_run].concat());
        assert_eq!(text, run(&[]), "{}, {of_both:?} {of_run:?}", model.display());
    }
    // Each of several simultaneous requests has a KV cache.
    let least = |parallel: &str| {
        let mut plan = ixc(["plan", "-t", "2", "--json", "--parallel", parallel]);
        plan.arg(demo_model());
        let plan: serde_json::Value = serde_json::from_str(&stdout(plan)).unwrap();
        plan["least_memory"].as_u64().unwrap()
    };
    let (one, four) = (least("1"), least("4"));
    assert!(four > one, "{four} bytes for four, {one} for one");
    let (requests, answers) = (folder.join("requests.jsonl"), folder.join("answers.jsonl"));
    std::fs::write(&requests, "{\"prompt\": \"The\", \"max_tokens\": 2}\n".repeat(5)).unwrap();
    let mut batch = ixc(["run", "-t", "2", "--parallel", "4", "--memory", &format!("{four}B"), "--batch"]);
    batch.arg(&requests).arg("-o").arg(&answers).arg(demo_model());
    stdout(batch);
    assert_eq!(std::fs::read_to_string(&answers).unwrap().matches("\"status_code\":200").count(), 5);
}

/// Checks that measuring the machine for `--stats` stays within the run's budget, and that the
/// printed peak is that of the run.
#[test]
fn statistics_stay_within_the_budget() {
    let budget = least(&RUN, &demo_model(), &["--stats"]) + 12;
    let mut command = ixc(RUN);
    command.arg(demo_model()).args(["--memory", &format!("{budget}MiB"), "--stats=json", "-q"]);
    let taken = measured(&command, 300, None);
    assert_eq!(taken.code, Some(0), "{}", taken.stderr);
    let facts: serde_json::Value = serde_json::from_str(taken.stderr.trim()).unwrap();
    let peak = facts["peak_memory"].as_u64().unwrap();
    println!("{} MiB of the run, {} with measuring, of {budget}", peak >> 20, taken.peak_kib >> 10);
    assert!(taken.peak_kib * 1024 <= (budget << 20) / 100 * 105, "{} KiB with {budget} MiB", taken.peak_kib);
    assert!(peak <= taken.peak_kib * 1024, "{peak}");
    let limits = &facts["limits"];
    let measured = limits["bytes_per_second"].is_number();
    assert!(measured != limits["no_bandwidth"].is_string(), "{limits}");
}

/// Checks that a model with experts in a file streams with the least budget and every larger one,
/// whatever other memory the process uses.
#[test]
fn every_budget_above_the_minimum_is_accepted() {
    let folder = scratch("budget_trace");
    let expected = stdout(ixc(RUN));
    for trace in [false, true] {
        let file = folder.join("trace.json");
        let more = if trace { &["--trace", file.to_str().unwrap()][..] } else { &[] };
        let least = least(&RUN, &demo_model(), more);
        for budget in (least + 2..least + 50).step_by(6) {
            let mut command = ixc(RUN);
            command.arg(demo_model()).args(["--memory", &format!("{budget}MiB")]).args(more);
            assert_eq!(stdout(command), expected, "{budget} MiB, traced {trace}");
        }
    }
}
