//! `ixc kernel tune` and `ixc kernel reduce`, and the files that they write.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{demo_model, scratch, stderr, stdout, target_without_tiles};
use ixc::kernels::cut::ProductCut;
use ixc::kernels::{KernelSpec, MatmulStrategy};
use ixc::targets::Target;
use serde_json::Value as Json;

/// Returns a command of the program for a target without tiles, because these tests name kernels of
/// this target.
fn ixc<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Command {
    let mut command = crate::support::ixc(words);
    command.env("IXC_TARGET", target_without_tiles().name());
    command
}

/// Returns the spec of a kernel of the demo model with this strategy, and the tiling of its weight.
fn spec_of_demo(target: Target, strategy: MatmulStrategy) -> (KernelSpec, ProductCut) {
    let model = ixc::model::Model::new(ixc::demo::open().unwrap()).unwrap();
    let options = ixc::compile::CompileOptions { target: Some(target), ..ixc::compile::CompileOptions::default() };
    let (_, plan) = ixc::compile::specs(&model, &options).unwrap();
    let cut = |spec: &KernelSpec| ProductCut::from_spec(spec).map(|cut| (spec.clone(), cut));
    let is_wanted = |(_, cut): &(KernelSpec, ProductCut)| cut.strategy == strategy && cut.tile == 32;
    plan.kernels.iter().filter_map(cut).find(is_wanted).expect("the demo model has such a product")
}

#[test]
fn tuning_lists_candidates_and_writes_a_valid_winner() {
    let folder = scratch("kernel-tune");
    let file = folder.join("tuned.json");
    let tune = ["kernel", "tune", "linear", "format=q4_k_r16", "k=256", "tile=32", "n=512", "shape=gemv"];
    let more = ["-r", "3", "--place", "caches", "--json", "-o", file.to_str().unwrap()];
    let facts: Json = serde_json::from_str(&stdout(ixc(tune.into_iter().chain(more)))).unwrap();
    let candidates = facts["candidates"].as_array().unwrap();
    assert!(candidates.iter().any(|row| row["what"].as_str().unwrap().contains("@0/1")), "{facts:#}");
    assert!(facts["tiling"].as_str().unwrap().contains("gemv<=5/5"), "{facts:#}");
    assert_eq!(facts["winner"].is_null(), !file.exists());
    // A model decodes one token at a time.
    assert!(facts["rows"] == 1 && facts["threads"].as_u64() >= Some(1), "{facts:#}");
    // A candidate that is reported as faster was faster in two measurements.
    if let Some(ratio) = facts["winner"]["measured"]["ratio"].as_array() {
        let ratio: Vec<f64> = ratio.iter().map(|value| value.as_f64().unwrap()).collect();
        assert!(ratio[1] > 1.0 && ratio[0] > 1.01, "{facts:#}");
    }
    let table = stdout(ixc(tune.into_iter().chain(["-r", "2", "--place", "caches", "--no-save"])));
    assert!(
        table.contains("candidate")
            && table.contains("us/row")
            && table.contains("default choice from cache sizes: rows="),
        "{table}"
    );
    // `--choose` stores the chosen candidate, even if another candidate is faster.
    let by_hand = folder.join("by-hand.json");
    let choose = |what: &str| {
        let more = ["-r", "2", "--place", "caches", "-o", by_hand.to_str().unwrap(), "--choose", what];
        ixc(tune.into_iter().chain(more)).output().unwrap()
    };
    let wrong = choose("gemv@1/1");
    assert!(wrong.status.code() == Some(2) && !by_hand.exists(), "{}", stderr(&wrong));
    assert!(
        stderr(&wrong).contains("\"gemv@1/1\" is not a candidate; expected one of gemv@0/1, "),
        "{}",
        stderr(&wrong)
    );
    let chosen = choose("gemv@0/1");
    let said = String::from_utf8_lossy(&chosen.stdout).into_owned();
    assert!(said.contains("as requested: gemv@0/1 is ") && said.contains("gemv@0/1\nwritten to "), "{said}");
    assert!(fs::read_to_string(&by_hand).unwrap().contains("q4_k_r16 x=a8_super n=512 k=256: gemv@0/1"));
    // For a CPU other than this machine's, the cost model of that CPU decides.
    let zen4 = folder.join("zen4.json");
    let by_model =
        ["kernel", "tune", "linear", "format=q4_k_r16", "k=512", "tile=32", "n=512", "shape=gemm", "--target"];
    let foreign = Target::all().find(|target| !target.missing().is_empty() && target.isa().vector_bytes == 64);
    let Some(foreign) = foreign else { return };
    let output = ixc(by_model.into_iter().chain([foreign.name()])).output().unwrap();
    assert!(stderr(&output).contains("name a file to write with -o"), "{}", stderr(&output));
    let table = stdout(ixc(by_model.into_iter().chain([foreign.name(), "-o", zen4.to_str().unwrap()])));
    assert!(table.contains("cycles/row") && table.contains("the cost model of "), "{table}");
}

/// Checks the tuning of a model in its own steps. First, each expensive product is tuned. Then,
/// whole steps decide which choices are kept.
#[test]
fn model_tuning_keeps_only_choices_that_speed_up_steps() {
    let folder = scratch("kernel-tune-model");
    let (file, model) = (folder.join("tuned.json"), demo_model());
    let model = model.to_str().unwrap();
    let more = ["-r", "2", "-t", "2", "--rows", "32", "--least", "0.1", "-o", file.to_str().unwrap(), "--json"];
    let facts: Json = serde_json::from_str(&stdout(ixc(["kernel", "tune", model].into_iter().chain(more)))).unwrap();
    assert_eq!((&facts["threads"], &facts["prompt"]), (&2.into(), &32.into()));
    let kernels = facts["kernels"].as_array().unwrap();
    assert!(!kernels.is_empty() && kernels.iter().all(|kernel| kernel["rows"] == 1 || kernel["rows"] == 32));
    let mut kept = 0;
    for kernel in kernels {
        assert!(kernel["share"].as_f64().unwrap() >= 0.1 && !kernel["candidates"].as_array().unwrap().is_empty());
        assert!(kernel["kept"].is_null() || kernel["winner"]["choice"] == kernel["kept"], "{kernel:#}");
        kept += usize::from(kernel["kept"].is_string());
    }
    let last = facts["together"].as_array().unwrap().last();
    assert_eq!(kept > 0, last.is_some_and(|last| last["is_faster"] == true), "{facts:#}");
    assert_eq!((kept > 0, facts["file"].is_string()), (file.exists(), file.exists()));
    // `--choose` selects a candidate for one kernel of the model.
    let _ = fs::remove_file(&file);
    let kernel = format!("{model}:gemv_q6_k_r16_a8_super_t32n4096k256");
    let by_hand = ["-r", "2", "--choose", "gemv@0/1", "-o", file.to_str().unwrap()];
    let said = stdout(ixc(["kernel", "tune", &kernel].into_iter().chain(by_hand)));
    assert!(said.contains("% of decode") && said.contains("as requested: gemv@0/1 is "), "{said}");
    assert!(fs::read_to_string(&file).unwrap().contains("q6_k_r16 x=a8_super n=4096 k=256: gemv@0/1"));
    // These uses are refused: `--choose` with several kernels, a model with another machine's
    // target, and a plan, whose weights already have a tiling.
    let refused = |words: &[&str]| {
        let output = ixc(["kernel", "tune"].iter().chain(words)).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
        stderr(&output)
    };
    assert!(refused(&[model, "--choose", "gemv@0/1"]).contains("MODEL:gemm_q6_k"));
    if let Some(foreign) = Target::all().find(|target| !target.missing().is_empty()) {
        let said = refused(&[model, "--target", foreign.name()]);
        assert!(said.contains("cannot run here"), "{said}");
    }
}

/// Checks that the pass `tile` finds and reports tuned choices, which change no bits. An unknown
/// candidate, or a choice tuned on another machine, is refused.
#[test]
fn tuned_model_runs_with_equal_bits() {
    let folder = scratch("kernel-tuned");
    let (file, model) = (folder.join("tuned.json"), demo_model());
    let (spec, cut) = spec_of_demo(target_without_tiles(), MatmulStrategy::Gemm);
    let target = target_without_tiles();
    let caches = ixc::targets::CoreCaches::here(target.row());
    let (own, _) = ixc::passes::tile::by_caches(&cut.weight, target, &caches);
    let part = &own.parts[0];
    let rows = if part.rows == 16 { 32 } else { 16 };
    let weight = {
        let ixc::kernels::candidates::Weight { format, x, n, k, .. } = cut.weight;
        format!("{format} x={x} n={n} k={k}")
    };
    let put = |choice: &str| {
        let _ = fs::remove_file(&file);
        let row =
            ixc::tuned::Row { choice: choice.to_owned(), instead_of: own.to_string(), ratio: [1.2, 1.1, 1.3].into() };
        let by = ixc::tuned::MeasurementSource::Cpu(ixc::machine::features::cpu_name());
        let place = ixc::tuned::Place { path: file.clone(), is_own: false };
        let kernel = ixc::tuned::WeightKernel { weight: cut.weight, strategy: cut.strategy };
        ixc::tuned::put(&place, target, &by, kernel, Some(row)).unwrap();
    };
    let run = |tuned: &str| {
        let words = ["run", "--raw", "-p", "The borrow checker", "-n", "6", "--temp", "0", "--stats", "--tuned", tuned];
        ixc(words).arg(&model).output().unwrap()
    };
    let plain = run("none");
    assert!(plain.status.success() && !stderr(&plain).contains("tuned  "), "{}", stderr(&plain));
    let path = file.to_str().unwrap();
    for choice in [format!("{weight}: rows={rows} gemm/24@1024/2"), format!("{weight}: gemm/48@0/4")] {
        put(&choice);
        let tuned = run(path);
        let said = stderr(&tuned);
        assert!(tuned.status.success(), "{spec}: {said}");
        assert!(said.contains("tuned  ") && said.contains(" by ") && said.contains("tuned.json"), "{said}");
        assert_eq!(tuned.stdout, plain.stdout, "{choice}");
    }
    // Returns the logits of a plan that was compiled with a file of tuned choices.
    let logits = |tuned: &str| {
        let [plan, out] = ["plan.ixp", "logits.npy"].map(|name| folder.join(name));
        let mut compile = ixc(["compile", "--no-weights", "--force", "--tuned", tuned, "-o", plan.to_str().unwrap()]);
        compile.arg(&model);
        stdout(compile);
        let tokens = (1..40).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
        let mut logits = ixc(["logits", "--tokens", &tokens, "--force", "-o", out.to_str().unwrap()]);
        logits.arg(&plan);
        stdout(logits);
        (fs::read(&out).unwrap(), fs::read(&plan).unwrap())
    };
    let (own, tuned) = (logits("none"), logits(path));
    assert!(own.0 == tuned.0 && own.1 != tuned.1, "the tuned plan gives other logits, or is the same");
    put(&format!("{weight}: rows=24 gemm/24"));
    let refused = run(path);
    assert!(!refused.status.success() && stderr(&refused).contains("is not a candidate of @"), "{}", stderr(&refused));
    put(&format!("{weight}: gemm/48"));
    let text = fs::read_to_string(&file).unwrap();
    for (edit, says) in [
        (text.replace("gemm/48", "gemm/24"), "the file is damaged"),
        (text.replace(target.name(), "amx"), "was tuned for target amx"),
        (text[..text.len() / 2].to_owned(), "is not a file of tuned choices"),
    ] {
        fs::write(&file, edit).unwrap();
        let refused = run(path);
        assert!(!refused.status.success() && stderr(&refused).contains(says), "{says}: {}", stderr(&refused));
    }
    let missing = run(folder.join("nothing.json").to_str().unwrap());
    assert_eq!(missing.status.code(), Some(66), "{}", stderr(&missing));
    // A plan is refused, because its weights already have a tiling.
    fs::write(&file, &text).unwrap();
    let plan = folder.join("demo.ixp");
    let compile = ["compile", "--no-weights", "--tuned", path, "-o", plan.to_str().unwrap()];
    stdout({
        let mut command = ixc(compile);
        command.arg(&model);
        command
    });
    let output = ixc(["run", "--raw", "-p", "a", "-n", "1", "--tuned", path]).arg(&plan).output().unwrap();
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("the tiling of weights"),
        "{}",
        stderr(&output)
    );
}

/// Checks that a tuned file in the user's folder applies to this machine. If the file is invalid,
/// it is ignored without an error.
#[test]
fn user_tuned_file_is_found_and_ignored_if_invalid() {
    let folder = scratch("kernel-tuned-own");
    // The file in the user's folder is for this machine's target, with or without tiles.
    let target = Target::native();
    let (_, cut) = spec_of_demo(target, MatmulStrategy::Gemv);
    let ixc::kernels::candidates::Weight { format, x, n, k, .. } = cut.weight;
    let choice = format!("{format} x={x} n={n} k={k}: gemv@0/1");
    let file = folder.join("ixc").join(format!("tuned-{}.json", target.name()));
    let put = |choice: &str| {
        let row =
            ixc::tuned::Row { choice: choice.to_owned(), instead_of: String::new(), ratio: [1.2, 1.1, 1.3].into() };
        let by = ixc::tuned::MeasurementSource::Cpu(ixc::machine::features::cpu_name());
        let place = ixc::tuned::Place { path: file.clone(), is_own: true };
        let kernel = ixc::tuned::WeightKernel { weight: cut.weight, strategy: cut.strategy };
        ixc::tuned::put(&place, target, &by, kernel, Some(row)).unwrap();
    };
    put(&choice);
    let run = |more: &[&str]| {
        let words = ["run", "--raw", "-p", "a", "-n", "1", "--temp", "0", "--stats"];
        let output = crate::support::ixc(words.iter().chain(more)).env("XDG_CACHE_HOME", &folder).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    assert!(run(&[]).contains("tuned  "));
    // With a named target, the file is not used, so that the plan is the same on every machine.
    assert!(!run(&["--target", target.name()]).contains("tuned  "));
    assert!(!run(&["--tuned", "none"]).contains("tuned  "));
    fs::write(&file, "{").unwrap();
    assert!(!run(&[]).contains("tuned  "));
    // A valid file with an unknown candidate is also ignored. Tuning replaces the file, whatever it
    // contains.
    put(&choice.replace("@0/1", "@1/1"));
    assert!(!run(&[]).contains("tuned  "));
    put(&choice);
    assert!(run(&[]).contains("tuned  "));
}

#[test]
fn failing_kernel_is_reduced() {
    let folder = scratch("kernel-reduce");
    let (kernel, small) = (folder.join("k.ix"), folder.join("small.ix"));
    let [from, to] = [&kernel, &small].map(|path| path.to_str().unwrap());
    let shown = stdout(ixc(["kernel", "show", "silu", "--stage", "ir", "--target", "avx512"]));
    fs::write(&kernel, &shown).unwrap();
    // The target refuses the kernel, because the kernel needs vectors that the target lacks. In the
    // reduced kernel, only statements with such vectors have to remain.
    let reduce = ["kernel", "reduce", from, "--target", "avx2", "-o", to];
    let refused = ixc(reduce).output().unwrap();
    // The kernel that is generated from the spec for this target has the same signature, so it is
    // tried as a candidate.
    let said = String::from_utf8_lossy(&refused.stdout).into_owned() + &stderr(&refused);
    assert!(refused.status.success(), "{said}");
    assert!(said.contains("it is refused: ") && said.contains("statements"), "{said}");
    let text = fs::read_to_string(&small).unwrap();
    assert!(text.starts_with("; reduced from ") && text.lines().count() < 10, "{text}");
    let failing = ixc(["kernel", "run", to, "--target", "avx2", "--emulate"]).output().unwrap();
    assert!(stderr(&failing).contains("vectors of at most 32 bytes"), "{}", stderr(&failing));
    // A command decides whether a kernel fails. Here, kernels with a `min` statement fail.
    let facts: Json = serde_json::from_str(&stdout(ixc([
        "kernel",
        "reduce",
        "silu",
        "--target",
        "avx2",
        "-o",
        to,
        "--while",
        "grep -q ' min f32x8' \"$1\"",
        "--json",
    ])))
    .unwrap();
    assert!(facts["after"]["statements"].as_u64() <= Some(4) && facts["complete"] == true, "{facts:#}");
    assert!(fs::read_to_string(&small).unwrap().contains(" min f32x8"));
    assert_eq!(folder_of(&folder), ["k.ix", "small.ix"]);
    // A kernel that does not fail is not reduced, and another file is not overwritten.
    let fine = ixc(["kernel", "reduce", "silu", "--target", "avx2", "-o", to]).output().unwrap();
    assert!(fine.status.code() == Some(65) && stderr(&fine).contains("has no failure to reduce"), "{}", stderr(&fine));
    let other = folder.join("precious");
    fs::write(&other, "text").unwrap();
    let kept = ixc(["kernel", "reduce", from, "--target", "avx2", "-o", other.to_str().unwrap()]).output().unwrap();
    assert!(kept.status.code() == Some(2) && fs::read(&other).unwrap() == b"text", "{}", stderr(&kept));
}

fn folder_of(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Checks that kernels with different dims do not get each other's inputs.
#[test]
fn kernels_with_different_signatures_are_not_compared() {
    let output = ixc(["kernel", "diff", "gemv_q4_k", "gemm_q4_k", "--target", "avx2"]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(65), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "error: kernels with different signatures cannot be compared:");
    assert!(lines[1].starts_with("  gemv_q4_k") && lines[1].contains("dim %groups in 0..="), "{said}");
    assert!(lines[2].starts_with("  gemm_q4_k") && lines[2].contains("dim %small_groups in 0..=1"), "{said}");
}
