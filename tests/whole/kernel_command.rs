//! `ixc kernel`, run as its users run it.

use std::path::Path;
use std::process::Output;

use crate::support::{ixc, scratch, stderr, stdout};
use ixc::kernels::KernelSpec;
use ixc::kernels::catalogue::ROWS;
use ixc::targets::Target;
use serde_json::Value as Json;

fn kernel<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Output {
    ixc(["kernel"].into_iter().chain(arguments)).output().unwrap()
}

fn text<'a>(arguments: impl IntoIterator<Item = &'a str>) -> String {
    stdout(ixc(["kernel"].into_iter().chain(arguments)))
}

fn json<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Json {
    serde_json::from_str(&text(arguments)).unwrap()
}

/// Returns the path of a file in a folder, as an argument.
fn file(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn the_help_of_every_subcommand_has_an_example_of_it() {
    let help = text(["--help"]);
    let (_, list) = help.split_once("Commands:\n").unwrap();
    // Further lines of a description have more indentation.
    let lines = list.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    // `help` is clap's own command.
    let names = lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let names: Vec<&str> = names.collect();
    assert!(names.contains(&"list") && names.contains(&"show") && names.contains(&"run"), "{names:?}");
    for name in names {
        let help = text([name, "--help"]);
        let (_, examples) = help.split_once("EXAMPLES:").unwrap_or_else(|| panic!("{name} has no examples"));
        assert!(examples.contains(&format!("ixc kernel {name}")), "{name}: {examples}");
    }
}

#[test]
fn list_shows_every_row_with_a_spec_that_reads_back() {
    let list = json(["list", "--json", "--target", "avx2"]);
    let rows = list["kernels"].as_array().unwrap();
    assert_eq!(rows.len(), ROWS.len());
    for row in rows {
        let spec = row["spec"].as_str().unwrap();
        assert_eq!(spec.parse::<KernelSpec>().unwrap().to_string(), spec);
        assert!(["native", "emulated", "not"].contains(&row["runs"].as_str().unwrap()), "{row}");
        assert_eq!(row["problem"].is_null(), row["runs"] != "not", "{row}");
        assert!(row["runs"] == "not" || !row["buffers"].as_array().unwrap().is_empty(), "{row}");
    }
    let all = text(["list", "--target", "portable"]);
    assert!(all.contains("gemv_q4_k ") && all.contains("portable  linear format=q4_k"), "{all}");
    let few = text(["list", "rope_", "--target", "portable"]);
    assert!(few.lines().count() < all.lines().count() && !few.contains("gemv"), "{few}");
}

#[test]
fn show_prints_each_stage_for_targets_that_this_machine_lacks_too() {
    let show = |stage: &str| text(["show", "map", "function=add", "n=17", "--target", "haswell", "--stage", stage]);
    let (ir, lowered, asm, bytes) = (show("ir"), show("lowered"), show("asm"), show("bytes"));
    for (text, comment) in [(&ir, ";"), (&lowered, ";"), (&asm, "#"), (&bytes, ";")] {
        let head = format!(
            "{comment} add_n17_haswell for haswell\n{comment} spec: map function=add n=17\n{comment} spills 0 "
        );
        assert!(text.starts_with(&head), "{text}");
        assert!(text.lines().nth(2).unwrap().contains(" instructions, "), "{text}");
    }
    assert!(ixc::ir::kernel::parse::parse(&ir).is_ok(), "{ir}");
    assert!(lowered.contains("vaddps        ymm0(v") && lowered.contains("; depth 1, innermost; then b"), "{lowered}");
    let add = asm.lines().find(|line| line.contains("vaddps ymm")).unwrap();
    assert!(add.contains("  %2 = add f32x8 %0, %1"), "{add}");
    // `vzeroupper` and `ret` end the code.
    assert!(bytes.trim_end().ends_with("c5 f8 77 c3"), "{bytes}");
    let portable = text(["show", "silu", "--target", "portable", "--stage", "lowered"]);
    assert!(portable.contains("function "), "{portable}");
}

#[test]
fn run_compares_with_the_interpreter() {
    for target in ["portable", "native"] {
        for arguments in [
            &["linear", "format=q4_k", "k=256", "tile=8", "n=8", "shape=gemm", "--rows", "7"][..],
            &["rms_norm_a8_super"],
            &["attention_64", "--rows", "2"],
        ] {
            let facts =
                json(["run"].into_iter().chain(arguments.iter().copied()).chain(["--json", "--target", target]));
            assert_eq!((&facts["equal"], &facts["difference"]), (&true.into(), &Json::Null), "{facts}");
        }
    }
    let crc = |seed: &str| {
        json(["run", "silu", "--target", "portable", "--json", "--seed", seed])["buffers"][1]["crc32"].clone()
    };
    assert_eq!(crc("1"), crc("1"));
    assert_ne!(crc("1"), crc("2"));
    assert!(text(["run", "add", "--target", "portable"]).contains("equal to the interpreter's, bit for bit"));
}

#[test]
fn kernels_come_from_files_and_models() {
    let folder = scratch("kernel-sources");
    let ir = file(&folder, "k.ix");
    let shown = text(["show", "demo:combine_n", "--stage", "ir", "--target", "portable"]);
    let run = |text: &str| {
        std::fs::write(&ir, text).unwrap();
        json(["run", &ir, "--rows", "5", "--target", "portable", "--json"])
    };
    // A kernel that was shown as text runs with the line that names its spec, and without this
    // line.
    let facts = run(&shown);
    assert!(facts["equal"] == true && facts["spec"].as_str().unwrap().starts_with("combine n=256"), "{facts}");
    let facts = run(&shown.replacen("; spec: ", "; ", 1));
    assert_eq!((&facts["equal"], &facts["spec"]), (&true.into(), &Json::Null), "{facts}");
    let (plan, model) = (file(&folder, "demo.ixp"), crate::support::demo_model());
    let arguments = ["compile", model.to_str().unwrap(), "-o", &plan, "--target", "portable"];
    assert!(ixc(arguments).output().unwrap().status.success());
    let facts = json(["run", &format!("{plan}:route"), "--target", "portable", "--json"]);
    assert_eq!(facts["equal"], true, "{facts}");
}

#[test]
fn usage_errors_state_the_valid_values() {
    let fails = |arguments: &[&str], status: i32, part: &str| {
        let output = kernel(arguments.iter().copied());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    };
    fails(&["show", "gemm_q4"], 65, "similar names: gemm_q4_0, gemm_q4_k");
    fails(&["show", "route", "k=3"], 65, "route has no field \"k\"; its fields are experts, top_k");
    fails(&["run", "quantise", "n=33", "out=a8_small"], 65, "error: kernel quantise_a8_small_n33");
    fails(&["run", "gemm_q4_k", "--dims", "1,1,6"], 65, "dim %rest is 6; it must be in 0..=3");
    fails(&["run", "gemm_q4_k", "--dims", "1"], 65, "1 dims; the kernel has 3");
    fails(
        &["cost", "tiles_q4_k_r16", "--target", "amx", "--rows", "2048"],
        65,
        "takes at most 512 rows in a call; 2048 were requested",
    );
    fails(
        &["cost", "attention_tiles_64", "--target", "amx", "--rows", "73"],
        65,
        "takes at most 72 rows in a call; 73 were requested",
    );
    fails(&["run", "gather", "bytes=16777216", "--rows", "200"], 65, "the buffers need more than");
    fails(&["show", "missing.ix"], 66, "missing.ix: cannot read");
    fails(&["show", "missing.gguf:gemm"], 66, "missing.gguf");
    fails(&["show", "add", "--target", "avx3"], 2, "targets are native");
    let folder = scratch("kernel-errors");
    let file = file(&folder, "bad.ix");
    std::fs::write(&file, "kernel k {\n  buffer %x : read -1\n").unwrap();
    fails(&["show", &file], 65, "bad.ix:3:1: expected");
    std::fs::write(&file, b"kernel \xff").unwrap();
    fails(&["run", &file], 65, "byte 0x7 is not UTF-8 text");
}

#[test]
fn bench_gives_every_rate_with_its_spread() {
    let arguments =
        ["bench", "linear", "format=q4_k", "k=256", "tile=8", "n=8", "shape=gemv", "-r", "2", "--threads", "2"];
    let facts = json(arguments.into_iter().chain(["--json"]));
    assert_eq!(
        (&facts["bytes"], &facts["multiply_adds"], &facts["arithmetic"]),
        (&(8 * 144).into(), &(8 * 256 * 8).into(), &"int8".into())
    );
    let rows = facts["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let seconds = &row["measured"]["seconds"];
        let of = |name: &str| seconds[name].as_f64().unwrap();
        assert!(of("min") <= of("median") && of("median") <= of("max") && of("spread") >= 0.0, "{row}");
        assert!(row["bandwidth_share"].as_f64().unwrap() > 0.0 && row["peak_share"].as_f64().unwrap() > 0.0, "{row}");
    }
    let table = text(["bench", "silu", "-r", "2", "--target", "portable"]);
    assert!(table.contains("us/call") && table.contains("+-") && table.contains("1 thread: memory "), "{table}");
}

#[test]
fn code_for_other_machines_is_emulated() {
    for target in ["haswell", "skylake-x", "sapphire-rapids"] {
        for row in [["gemm_q6_k", "7"], ["gemv_q8_0", "2"], ["attention_128", "2"]] {
            let [name, rows] = row;
            let facts = json(["run", name, "--rows", rows, "--target", target, "--emulate", "--json"]);
            assert_eq!((&facts["equal"], &facts["engine"]), (&true.into(), &"the emulator".into()), "{facts}");
            assert!(facts["instructions"].as_u64().unwrap() > 1000, "{facts}");
        }
    }
    let output = kernel(["run", "add", "--target", "portable", "--emulate"]);
    assert_eq!(output.status.code(), Some(65));
    assert!(
        stderr(&output).contains("the emulator needs x86-64 code from ixc's own code generator"),
        "{}",
        stderr(&output)
    );
    match Target::all().find(|target| !target.missing().is_empty()) {
        None => println!("NOT RUN: this machine lacks nothing that a target needs"),
        Some(target) => {
            let output = kernel(["run", "add", "--target", target.name()]);
            assert_eq!(output.status.code(), Some(69));
            let said = stderr(&output);
            assert!(
                said.contains("this machine lacks ") && said.contains("--emulate runs the kernel on any machine"),
                "{said}"
            );
        }
    }
}

#[test]
fn kernel_cost_works_for_foreign_targets() {
    let facts = json(["cost", "gemm_q4_k", "--target", "zen4", "--rows", "96", "--json"]);
    assert!(facts["whole"]["cycles"].as_f64().unwrap() > 1e4, "{facts}");
    assert!(!facts["report"]["loops"].as_array().unwrap().is_empty());
    let table = text(["cost", "gemv_q8_0", "--target", "skylake-x"]);
    assert!(table.contains("bound by") && table.contains("the whole kernel"), "{table}");
    let output = kernel(["cost", "gemv_q8_0", "--target", "portable"]);
    assert_eq!(output.status.code(), Some(65), "{}", stderr(&output));
    let bound = |from: &str| {
        json(["cost", "gemv_q4_k", "--target", "zen4", "--rows", "1", "--json", "--from", from])["levels"]["bound"]
            .take()
    };
    let (near, far) = (bound("w=l1"), bound("w=memory,x=L3"));
    assert!(near["level"].is_null(), "{near}");
    assert_eq!((far["level"].as_str(), far["what"].as_str()), (Some("memory"), Some("loads of w")));
    let wrong = |from: &str| {
        let output = kernel(["cost", "gemv_q4_k", "--target", "zen4", "--from", from]);
        (output.status.code(), stderr(&output))
    };
    let unknown = "error: the kernel has no buffer \"weights\"; its buffers are x, w, y, scratch\n";
    assert_eq!(wrong("weights=l2"), (Some(65), unknown.into()));
    let (status, said) = wrong("w=l4");
    assert!(status == Some(2) && said.contains("the levels are l1, l2, l3 and memory"), "{status:?}: {said}");
}

/// Checks that errors in kernel IR have the same form as errors in graph IR: a position
/// `file:line:column`, the line, and a caret.
#[test]
fn errors_in_kernel_ir_point_at_their_place() {
    let folder = scratch("kernel-errors");
    let ir = file(&folder, "bad.ix");
    std::fs::write(&ir, "kernel k where %n in 0..=1 {\n  buffer %x : read 4*%n\n  %a = lode f32x1 %x[0]\n}\n").unwrap();
    let output = ixc(["kernel", "run", &ir, "--dims", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(65));
    let said = crate::support::stderr(&output);
    assert_eq!(said, format!("error: {ir}:3:8: there is no op `lode`\n    %a = lode f32x1 %x[0]\n         ^\n"));
    // Errors of the verifier are shown in the same way.
    std::fs::write(&ir, "kernel k where %n in 0..=1 {\n  buffer %x : read 4*%n\n  %a = load f32x1 %x[0]\n}\n").unwrap();
    let said = crate::support::stderr(&ixc(["kernel", "show", &ir]).output().unwrap());
    assert!(said.starts_with(&format!("error: {ir}:3:")) && said.ends_with("^\n"), "{said}");
}
