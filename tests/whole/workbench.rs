//! The workflow of a kernel developer: inspect every compilation step, change a kernel, and run the
//! model with the changed kernel.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::support::{demo_model, ixc, scratch, stderr, stdout};
use ixc::compile::{CompileOptions, compile};
use ixc::model::Model;
use ixc::replacements::Replacements;
use ixc::targets::Target;
use serde_json::Value as Json;

fn arguments<'a>(words: &[&'a str], more: &[&'a Path]) -> Vec<&'a str> {
    words.iter().copied().chain(more.iter().map(|path| path.to_str().unwrap())).collect()
}

/// Returns the demo model's plan without weights, as `ixc compile` makes it with these options.
fn plan(folder: &Path, name: &str, options: &[&str]) -> Vec<u8> {
    let path = folder.join(name);
    stdout(ixc(arguments(
        &[&["compile", "--target", "avx2", "--no-weights", "--force"], options, &["-o"]].concat(),
        &[&path],
    )));
    fs::read(path).unwrap()
}

fn json(path: &Path) -> Json {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn compiling_resumes_after_each_pass_with_equal_plan() {
    let folder = scratch("workbench-resume");
    for memory in [&[][..], &["--memory", "6MiB"]] {
        let dump = folder.join(format!("dump{}", memory.len()));
        let whole = plan(&folder, "whole.ixp", &[memory, &["--dump-dir", dump.to_str().unwrap()]].concat());
        let manifest = json(&dump.join("manifest.json"));
        let passes = manifest["passes"].as_array().unwrap();
        assert_eq!(passes.len(), ixc::passes::manager::PASSES.len());
        let files: Vec<&str> = passes.iter().filter_map(|pass| pass["file"].as_str()).collect();
        assert!(files.len() >= 6 && passes.iter().any(|pass| pass["changed"] == false), "{manifest:#}");
        for file in files.into_iter().chain(["00-frontend.ix"]) {
            let start = dump.join(file);
            let resumed = plan(&folder, "resumed.ixp", &[memory, &["--start-from", start.to_str().unwrap()]].concat());
            assert!(resumed == whole, "after {file}");
        }
        // If compilation stops early, the last output is the same as that of this pass in a whole
        // compilation.
        let short = folder.join(format!("short{}", memory.len()));
        let command = [&["compile", "--target", "avx2", "--stop-after", "tile"], memory, &["--dump-dir"]].concat();
        stdout(ixc(arguments(&command, &[&short])));
        assert_eq!(fs::read(short.join("10-tile.ix")).unwrap(), fs::read(dump.join("10-tile.ix")).unwrap());
        assert!(!short.join("11-lower.ix").exists() && !short.join("kernels").exists());
        // `dump` can also continue from the output of an early stop.
        let left = dump.join("10-tile.ix");
        let resumed =
            stdout(ixc(arguments(&["dump", "--target", "avx2", "--after", "arena", "--start-from"], &[&left])));
        assert_eq!(resumed, fs::read_to_string(dump.join("13-arena.ix")).unwrap());
    }
}

#[test]
fn dump_names_the_kernels_of_ops_without_weights() {
    let (folder, plan) = (scratch("workbench-dump").join("d"), scratch("workbench-dump-plan").join("plan.ixp"));
    let compile =
        ["compile", "--target", "avx2", "--no-weights", "--force", "-o", plan.to_str().unwrap(), "--dump-dir"];
    stdout(ixc(arguments(&compile, &[&folder])));
    let (index, manifest) = (json(&folder.join("index.json")), json(&folder.join("manifest.json")));
    let tasks = index["tasks"].as_array().unwrap();
    let down = tasks.iter().find(|task| task["op"] == "expert.down blk.0.ffn_down_exps").unwrap();
    let mut named: Vec<&str> = tasks
        .iter()
        .flat_map(|task| task["kernels"].as_array().unwrap())
        .map(|kernel| kernel["kernel"].as_str().unwrap())
        .collect();
    named.push(index["softmax"].as_str().unwrap());
    named.sort_unstable();
    named.dedup();
    assert!(down["kernels"].as_array().unwrap().len() > 1, "{down}");
    // The manifest also counts kernels that pack weights, which the index does not name.
    assert!(manifest["kernels"].as_u64().unwrap() >= named.len() as u64, "{manifest:#}");
    for name in named {
        let kernel = |ending: &str| folder.join("kernels").join(format!("{name}.{ending}"));
        let text = fs::read_to_string(kernel("ix")).unwrap();
        assert!(
            text.contains("\n; spec: ") && fs::read_to_string(kernel("s")).unwrap().contains(".intel_syntax"),
            "{text}"
        );
        assert!(fs::metadata(kernel("bin")).unwrap().len() > 16);
    }
    let bytes: u64 = walk(&folder).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(bytes < fs::metadata(demo_model()).unwrap().len(), "{bytes}");
    // The command does not write into a folder that already has files.
    let again = ixc(arguments(&compile, &[&folder])).output().unwrap();
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn dump_without_resume_point_is_refused() {
    let folder = scratch("workbench-refused");
    let file = folder.join("left.ix");
    let refused = |text: &str, code: i32, says: &str| {
        fs::write(&file, text).unwrap();
        let output = ixc(arguments(&["run", "-n", "1", "-p", "a", "--start-from"], &[&file])).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(stderr(&output).contains(says), "{}", stderr(&output));
    };
    let graph = stdout(ixc(["dump", "--stage", "graph"]));
    assert!(graph.starts_with("; after frontend\n"), "{}", &graph[..80]);
    refused(&graph.replacen("; after frontend\n", "", 1), 65, "the text does not name the pass that wrote it");
    refused(&graph.replacen("after frontend", "after nothing", 1), 65, "there is no pass \"nothing\"");
    refused(
        &graph.replacen("after frontend", "after lower", 1),
        65,
        "the output of pass lower is tasks, but the text has a graph",
    );
    refused(&graph.replacen("rms_norm", "rms_nrom", 1), 65, "left.ix:");
    refused(&graph.replacen("rms_norm", "rms_nrom", 1), 65, "\n        ");
    refused("; after arena\n{\"plan\": 1}", 65, "not a text of tasks or a plan");
    let output = ixc(["dump", "--after", "arena", "--start-from", "/nothing.ix"]).output().unwrap();
    assert_eq!(output.status.code(), Some(66), "{}", stderr(&output));
    fs::write(&file, &graph).unwrap();
    let plan = folder.join("plan.ixp");
    stdout(ixc(arguments(&["compile", "--no-weights", "-o"], &[&plan])));
    let output =
        ixc(arguments(&["run", "-n", "1", "-p", "a"], &[&plan])).arg("--start-from").arg(&file).output().unwrap();
    assert!(output.status.code() == Some(2) && stderr(&output).contains("a plan already fixes"), "{}", stderr(&output));
}

/// Checks the work of a kernel developer: dump the kernels, edit one, compare it with the original,
/// and run the model with it.
#[test]
fn an_edited_kernel_is_compared_and_runs_in_the_model() {
    let folder = scratch("workbench-kernel");
    let dump = folder.join("d");
    let plan = folder.join("plan.ixp");
    let compile = ["compile", "--target", "portable", "--no-weights", "-o", plan.to_str().unwrap(), "--dump-dir"];
    stdout(ixc(arguments(&compile, &[&dump])));
    let run = |more: &[&Path]| -> Output {
        let words =
            ["run", "--raw", "--target", "portable", "-p", "The borrow checker", "-n", "8", "--temp", "0", "--stats"];
        ixc(arguments(&words, more)).output().unwrap()
    };
    let option = Path::new("--override");
    let own = run(&[]);
    assert!(own.status.success(), "{}", stderr(&own));
    // If no kernel was edited, no kernel of the plan is replaced.
    let same = run(&[option, &dump.join("kernels")]);
    assert!(same.stdout == own.stdout && !stderr(&same).contains("replaced"), "{}", stderr(&same));
    let kernels = walk(&dump.join("kernels"));
    let path = kernels
        .iter()
        .find(|path| path.extension().unwrap() == "ix" && path.to_str().unwrap().contains("/rms_norm_a8_"))
        .unwrap();
    let text = fs::read_to_string(path).unwrap();
    let name = path.file_stem().unwrap().to_str().unwrap();
    let edited = folder.join("edited.ix");
    let diff = |more: &[&str]| {
        stdout(ixc(arguments(&[&["kernel", "diff", "--target", "portable", "-r", "3"], more].concat(), &[&edited])))
    };
    // The file has the kernel as it was dumped.
    fs::write(&edited, &text).unwrap();
    assert!(diff(&[]).contains("with the same IR") && diff(&[]).contains("equal, bit for bit"), "{}", diff(&[]));
    // In this edit, another constant is added to the mean of squares.
    let wrong = text.replacen(" 1e-6", " 4.0", 1);
    assert_ne!(wrong, text);
    fs::write(&edited, &wrong).unwrap();
    let said = diff(&[]);
    assert!(said.contains("differ, first element") && said.contains("times as fast as a"), "{said}");
    assert!(
        said.lines().any(|line| line.contains(" 1e-6 ") && line.contains(" | ") && line.ends_with(" 4.0")),
        "{said}"
    );
    let facts: Json = serde_json::from_str(&diff(&["--json"])).unwrap();
    assert!(facts["same_ir"] == false && facts["buffers"][0]["equal"] == false, "{facts:#}");
    let exit = |words: &[&str], more: &[&Path]| {
        let output = ixc(arguments(words, more)).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output))
    };
    // The interpreter computes the same wrong result as the edited kernel, but the formula of the
    // spec gives another result.
    let (status, said, error) = exit(&["kernel", "run", "--target", "portable"], &[&edited]);
    assert!(said.contains("equal to the interpreter's, bit for bit") && said.contains("by spec  wrong: "), "{said}");
    assert!(status == Some(1) && error.contains("computes wrong results"), "{error}");
    let differs = ["kernel", "diff", "--target", "portable", "-r", "0", "--exit-code"];
    assert_eq!(exit(&differs, &[&edited]).0, Some(1));
    assert_eq!(exit(&[&differs[..], &["--json"]].concat(), &[&edited]).0, Some(1));
    // The edited kernel runs in the model only with --no-override-check.
    for command in [&["run", "-p", "a", "-n", "1"][..], &["bench", "-p", "0", "-n", "1"], &["compile", "--no-weights"]]
    {
        let words = [command, &["--target", "portable"]].concat();
        let (status, _, error) = exit(&words, &[option, &edited]);
        let says = ["edited.ix: kernel ", "by the formula of its spec", "--no-override-check"];
        assert!(status == Some(1) && says.iter().all(|says| error.contains(says)), "{command:?}: {error}");
    }
    let unchecked = Path::new("--no-override-check");
    let other = run(&[option, &edited, unchecked]);
    assert!(other.status.success() && other.stdout != own.stdout, "{}", stderr(&other));
    assert!(stderr(&other).contains("replaced  1 kernel: ") && stderr(&other).contains(name), "{}", stderr(&other));
    // A plan can also run with the edited kernel.
    let words =
        ["run", plan.to_str().unwrap(), "--raw", "-p", "The borrow checker", "-n", "8", "--temp", "0", "--override"];
    assert_eq!(exit(&words, &[&edited]).0, Some(1));
    assert_eq!(ixc(arguments(&words, &[&edited, unchecked])).output().unwrap().stdout, other.stdout);
    // A change is accepted if it is as small as that of summing in another order.
    let close = text.replacen(" 1e-6", " 1.1e-6", 1);
    fs::write(&edited, &close).unwrap();
    let (status, said, error) = exit(&["kernel", "run", "--target", "portable"], &[&edited]);
    assert!(status == Some(0) && said.contains("by spec  "), "{said} {error}");
    let (status, _, error) = exit(&words, &[&edited]);
    assert!(status == Some(0), "{error}");
    // If the kernel breaks a rule, the error shows the position.
    let store = text.lines().find(|line| line.contains("  store ")).unwrap();
    let outside = store.replacen('[', "[1048576 + ", 1);
    fs::write(&edited, text.replacen(store, &outside, 1)).unwrap();
    let refused = run(&[option, &edited]);
    assert_eq!(refused.status.code(), Some(65), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("edited.ix:") && stderr(&refused).contains('^'), "{}", stderr(&refused));
}

#[test]
fn replacement_kernel_must_have_the_same_signature() {
    let model = Model::new(ixc::demo::open().unwrap()).unwrap();
    let options = CompileOptions { target: Some(Target::PORTABLE), ..CompileOptions::default() };
    let mut plan = compile(&model, &options).unwrap().plan;
    let folder = scratch("workbench-replaced");
    let own = plan.kernels.iter().find(|kernel| kernel.name.starts_with("rms_norm")).unwrap().to_string();
    let name = own.split_whitespace().nth(1).unwrap().to_owned();
    let write = |file: &str, text: &str| fs::write(folder.join(file), text).unwrap();
    let put = |plan: &mut _| Replacements::read(&folder).and_then(|read| read.put_into(plan));
    assert!(put(&mut plan).unwrap_err().to_string().contains("has no file of kernel IR"));
    // If the kernel is unchanged, nothing is replaced.
    write("a.ix", &own);
    assert_eq!(put(&mut plan).unwrap(), [""; 0]);
    // A kernel with other results is refused, unless the caller turned the check off.
    let edited = own.replacen(" 1e-6", " 4.0", 1);
    assert_ne!(edited, own);
    write("a.ix", &edited);
    let departs = put(&mut plan.clone()).unwrap_err().to_string();
    assert!(departs.contains("a.ix: kernel ") && departs.contains("without a spec"), "{departs}");
    assert_eq!(Replacements::read(&folder).unwrap().without_check().put_into(&mut plan).unwrap(), [name.as_str()]);
    assert!(plan.kernels.iter().any(|kernel| kernel.to_string() == edited));
    // The signature and the name may not change.
    let error = |text: &str| {
        write("a.ix", text);
        put(&mut plan.clone()).unwrap_err().to_string()
    };
    let longer = own.replacen("buffer %", "buffer %other : read 64\n  buffer %", 1);
    assert!(error(&longer).contains("buffer %other : read 64"), "{}", error(&longer));
    assert!(error(&own.replacen(&name, "other", 1)).contains("has no kernel \"other\""));
    assert!(error("kernel a {").contains("a.ix:1:"));
    write("b.ix", &own);
    write("a.ix", &own);
    assert!(put(&mut plan).unwrap_err().to_string().contains("b.ix"));
}
