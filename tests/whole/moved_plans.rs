//! Plans that were moved to another folder. Their model file is next to them, or an option names
//! it. A plan that holds all weights needs no model file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{demo_model, ixc, read_npy, scratch, stderr, stdout};
use ixc::runtime::file;

/// A folder with the demo model and its plan after a move, and the logits from before.
struct Moved {
    folder: PathBuf,
    expected: Vec<f32>,
}

/// Returns logits of a model or plan.
fn logits(model: &Path, more: &[&str]) -> Vec<f32> {
    let out = model.with_extension("npy");
    let mut command = ixc(["logits", "--tokens", "1,2,3", "-t", "2", "-o"]);
    command.arg(&out).arg(model).args(more);
    stdout(command);
    let logits = read_npy(&out).1;
    fs::remove_file(out).unwrap();
    logits
}

/// Returns the exit status and the error of a plan that is refused.
fn refused(plan: &Path, more: &[&str]) -> (Option<i32>, String) {
    let mut command = ixc(["logits", "--tokens", "1", "-o"]);
    command.arg(plan.with_extension("npy")).arg(plan).args(more);
    let output = command.output().unwrap();
    (output.status.code(), stderr(&output))
}

impl Moved {
    /// Compiles a plan with these arguments in one folder, and moves the plan and its model to
    /// another folder.
    fn new(name: &str, arguments: &[&str]) -> Moved {
        let folder = scratch(name);
        let (from, to) = (folder.join("from"), folder.join("to"));
        fs::create_dir(&from).unwrap();
        fs::copy(demo_model(), from.join("model.gguf")).unwrap();
        let mut command = ixc(["compile", "-o"]);
        command.arg(from.join("model.ixp")).arg(from.join("model.gguf")).args(arguments);
        stdout(command);
        let expected = logits(&from.join("model.ixp"), &[]);
        fs::rename(&from, &to).unwrap();
        Moved { folder: to, expected }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

fn same(found: &[f32], expected: &[f32]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn plan_finds_its_model_nearby_or_at_given_path() {
    let moved = Moved::new("moved_beside", &["--no-weights"]);
    let plan = moved.path("model.ixp");
    assert!(same(&logits(&plan, &[]), &moved.expected), "beside the plan");
    // Streamed experts also work.
    let mut command = ixc(["run", "--raw", "-p", "The", "-n", "2", "--temp", "0", "--memory", "200MiB"]);
    command.arg(&plan);
    assert!(!stdout(command).is_empty());

    let elsewhere = moved.path("elsewhere.gguf");
    fs::rename(moved.path("model.gguf"), &elsewhere).unwrap();
    let (status, said) = refused(&plan, &[]);
    assert!(
        status == Some(66) && said.contains("there is no file model.gguf next to the plan; --model FILE"),
        "{said}"
    );
    let named = ["--model", elsewhere.to_str().unwrap()];
    assert!(same(&logits(&plan, &named), &moved.expected), "named");

    // Another model with the same file name is refused, whether it is next to the plan or named by
    // the option. The error names the property that differs.
    let mut bytes = fs::read(&elsewhere).unwrap();
    bytes.push(0);
    fs::write(moved.path("model.gguf"), &bytes).unwrap();
    let (status, said) = refused(&plan, &[]);
    assert!(status == Some(65) && said.contains("its length is"), "{said}");
    let at = bytes.windows(7).position(|word| word == b"general").unwrap();
    bytes.pop();
    bytes[at + 8] ^= 1;
    fs::write(moved.path("model.gguf"), &bytes).unwrap();
    let (status, said) = refused(&plan, &[]);
    assert!(status == Some(65) && said.contains("the checksum of its header is"), "{said}");
    assert!(same(&logits(&plan, &named), &moved.expected), "named, beside a wrong one");
    // A model file cannot be combined with the option that names a plan's model file.
    let (status, said) = refused(&elsewhere, &named);
    assert!(status == Some(2) && said.contains("is a model file; only a plan"), "{said}");
}

#[test]
fn matching_model_near_the_plan_replaces_a_changed_one() {
    let folder = scratch("moved_both");
    let (model, plan) = (folder.join("model.gguf"), folder.join("plans/model.ixp"));
    fs::create_dir(folder.join("plans")).unwrap();
    fs::copy(demo_model(), &model).unwrap();
    let mut command = ixc(["compile", "--no-weights", "-o"]);
    command.arg(&plan).arg(&model);
    stdout(command);
    let expected = logits(&plan, &[]);
    fs::rename(&model, folder.join("plans/model.gguf")).unwrap();
    fs::write(&model, b"GGUF, another one").unwrap();
    assert!(same(&logits(&plan, &[]), &expected));
}

#[test]
fn all_files_of_a_split_model_are_found() {
    let folder = scratch("moved_split");
    let (from, to) = (folder.join("from"), folder.join("to"));
    fs::create_dir(&from).unwrap();
    let shards = crate::support::split::split(&from.join("part"), &ixc::demo::open().unwrap());
    let mut command = ixc(["compile", "--no-weights", "-o"]);
    command.arg(from.join("model.ixp")).arg(&shards[0]);
    let said = stdout(command);
    assert!(said.contains(&format!("needs {} model files", shards.len())), "{said}");
    let expected = logits(&from.join("model.ixp"), &[]);
    fs::rename(&from, &to).unwrap();
    assert!(same(&logits(&to.join("model.ixp"), &[]), &expected), "beside the plan");
    fs::create_dir(folder.join("plan")).unwrap();
    let plan = folder.join("plan/model.ixp");
    fs::rename(to.join("model.ixp"), &plan).unwrap();
    assert_eq!(refused(&plan, &[]).0, Some(66));
    // Naming any one of the shards finds all shards.
    let last = to.join(shards.last().unwrap().file_name().unwrap());
    assert!(same(&logits(&plan, &["--model", last.to_str().unwrap()]), &expected), "named");
    let demo = demo_model();
    let (status, said) = refused(&plan, &["--model", demo.to_str().unwrap()]);
    assert!(status == Some(2) && said.contains("made from 2"), "{said}");
}

#[test]
fn a_plan_that_holds_all_weights_needs_no_model_file() {
    // The plans hold packed weights, weights in the model file's layout, or experts in blocks.
    for (name, arguments) in [
        ("packed", &["--target", "native"][..]),
        ("as_in_the_file", &["--target", "portable"]),
        ("blocks", &["--memory", "1MiB"]),
        ("not_packed", &["--no-pack"]),
    ] {
        let moved = Moved::new(&format!("moved_whole_{name}"), &[arguments, &["--self-contained"]].concat());
        fs::remove_file(moved.path("model.gguf")).unwrap();
        let plan = moved.path("model.ixp");
        assert!(same(&logits(&plan, &[]), &moved.expected), "{name}");
        let without = Moved::new(&format!("moved_part_{name}"), arguments);
        assert!(same(&without.expected, &moved.expected), "{name}: other bits than with the model file");
        let mut command = ixc(["inspect"]);
        command.arg(&plan);
        let shown = stdout(command);
        assert!(shown.contains("model file    none: all weights are in the plan"), "{shown}");
    }
    let moved = Moved::new("moved_whole", &["--self-contained", "--memory", "1MiB"]);
    fs::remove_file(moved.path("model.gguf")).unwrap();
    let plan = moved.path("model.ixp");
    // Experts are streamed from the plan alone.
    let mut command = ixc(["run", "--raw", "-p", "The", "-n", "4", "--temp", "0", "--memory", "200MiB"]);
    command.arg(&plan);
    assert!(!stdout(command).is_empty());
    // A flipped byte in the copied weights is found.
    let mut bytes = fs::read(&plan).unwrap();
    let end = bytes.len() - 8192;
    bytes[end] ^= 1;
    fs::write(&plan, &bytes).unwrap();
    assert_eq!(refused(&plan, &[]).0, Some(65));
}

/// Checks that a plan opens only files that begin like models and whose header it knows. A plan may
/// come from anyone, and names its files.
#[test]
fn plan_opens_only_models_that_it_knows() {
    let folder = scratch("moved_foreign");
    let (models, plans) = (folder.join("models"), folder.join("plans"));
    [&models, &plans].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let model = models.join("model.gguf");
    fs::copy(demo_model(), &model).unwrap();
    let plan = plans.join("own.ixp");
    let mut command = ixc(["compile", "--no-weights", "-o"]);
    command.arg(&plan).arg(&model);
    stdout(command);
    let expected = logits(&plan, &[]);

    // This file has the same bytes as the model, except for the first ones.
    let secret = models.join("passwd");
    let mut bytes = fs::read(&model).unwrap();
    bytes[..4].copy_from_slice(b"root");
    fs::write(&secret, &bytes).unwrap();
    let naming = |name: &str, path: &str, header: Option<(u64, u32)>| {
        let mut changed = file::read(&plan).unwrap();
        let source = &mut changed.files[0];
        source.path = path.to_owned();
        header.into_iter().for_each(|(bytes, crc)| (source.header_bytes, source.header_crc) = (bytes, crc));
        file::write(&plans.join(name), &changed).unwrap();
        plans.join(name)
    };
    let link = plans.join("link");
    std::os::unix::fs::symlink(&secret, &link).unwrap();
    fs::copy(&secret, plans.join("inside")).unwrap();
    for (name, path) in [
        ("absolute.ixp", secret.to_str().unwrap()),
        ("up.ixp", "../models/passwd"),
        ("link.ixp", "link"),
        ("inside.ixp", "inside"),
    ] {
        // The plan is hostile: it asks for no byte of the file to be compared.
        let (status, said) = refused(&naming(name, path, Some((0, 0))), &[]);
        let wrong = "it does not begin like GGUF or safetensors";
        assert!(status == Some(65) && said.contains(wrong), "{name}: {status:?} {said}");
    }
    // A model is not opened if the plan's checksum covers too few bytes of the file's header.
    for bytes in [0, 23] {
        let crc = crc32fast::hash(&fs::read(&model).unwrap()[..bytes]);
        let unknown = naming("unknown.ixp", "../models/model.gguf", Some((bytes as u64, crc)));
        let (status, said) = refused(&unknown, &[]);
        let wrong = format!("the plan's checksum covers {bytes} bytes of the header; expected at least 24");
        assert!(status == Some(65) && said.contains(&wrong), "{status:?} {said}");
    }
    assert!(same(&logits(&naming("model.ixp", "../models/model.gguf", None), &[]), &expected), "a model elsewhere");
}
