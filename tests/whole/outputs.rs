//! Outputs of commands, and files that a command must not overwrite. These are the command's inputs
//! under any name, other programs' files, and files with the names of temporary files. Inputs
//! without an end, and pipes instead of files, are also tested.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{demo_model, ixc, read_npy, scratch, stderr, stdout};
use ixc::ir::plan::WeightFile;

/// Commands with an output, and the first bytes of the output. `M` stands for a model file, `O` for
/// the output.
const COMMANDS: [(&str, &[u8]); 8] = [
    ("compile M --target avx2 -o O", b"IXCPLAN\n"),
    ("compile M --target avx2 --no-weights -o O", b"IXCPLAN\n"),
    ("compile M --target portable -o O", b"IXCPLAN\n"),
    ("compile M --target dataflow:small -o O", b"{\"version\":"),
    ("logits M --tokens 1 --target portable -o O", b"\x93NUMPY"),
    ("logits M --tokens 1 --engine interpreter -o O", b"\x93NUMPY"),
    ("run M --target portable -p a -n 1 --trace O", b"{\"displayTimeUnit\""),
    ("simulate M --html O", b"<!doctype html>"),
];

/// Returns the command for a line of [`COMMANDS`].
fn command(line: &str, model: &Path, output: &Path) -> Command {
    ixc(line.split(' ').map(|word| match word {
        "M" => model.as_os_str(),
        "O" => output.as_os_str(),
        word => word.as_ref(),
    }))
}

#[track_caller]
fn refused(output: &Output, status: i32, part: &str) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.starts_with("error: ") && said.contains(part) && said.lines().count() == 1, "{said}");
    assert!(!stderr(output).contains(".part\""), "it names a file that is none of the user's: {}", stderr(output));
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

/// Returns a copy of the demo model and several paths to it. These are its own path, a hard link, a
/// symbolic link, a link to that link, and a path through a linked folder.
fn model_and_names(folder: &Path) -> (PathBuf, Vec<PathBuf>) {
    let model = folder.join("x.gguf");
    fs::copy(demo_model(), &model).unwrap();
    let all = names_of(folder, &model);
    (model, all)
}

fn names_of(folder: &Path, file: &Path) -> Vec<PathBuf> {
    let named = |name: &str| folder.join(name);
    fs::hard_link(file, named("hard")).unwrap();
    symlink(file.file_name().unwrap(), named("soft")).unwrap();
    symlink(named("soft"), named("soft-soft")).unwrap();
    symlink(".", named("here")).unwrap();
    let around = named("here").join(file.file_name().unwrap());
    vec![file.to_owned(), named("hard"), named("soft"), named("soft-soft"), around]
}

#[test]
fn an_output_is_never_the_model() {
    let folder = scratch("outputs-model");
    let (model, all) = model_and_names(&folder);
    let before = (fs::read(&model).unwrap(), names(&folder));
    for (line, _) in COMMANDS {
        for name in &all {
            refused(&command(line, &model, name).output().unwrap(), 2, "is the input file");
            let forced = command(line, name, &model).arg("--force").output().unwrap();
            refused(&forced, 2, "give another path for the output");
        }
        assert!((fs::read(&model).unwrap(), names(&folder)) == before, "{line}");
    }
}

#[test]
fn output_is_never_a_loaded_plan_or_its_model() {
    let folder = scratch("outputs-plan");
    let model = folder.join("m.gguf");
    fs::copy(demo_model(), &model).unwrap();
    let plan = folder.join("x.ixp");
    stdout(command("compile M --target portable -o O", &model, &plan));
    let all = names_of(&folder, &plan);
    let before = (fs::read(&plan).unwrap(), fs::read(&model).unwrap(), names(&folder));
    for line in ["compile M -o O", "logits M --tokens 1 -o O", "run M -p a -n 1 --trace O", "simulate M --html O"] {
        for name in &all {
            refused(&command(line, &plan, name).arg("--force").output().unwrap(), 2, "is the input file");
        }
    }
    fs::hard_link(&model, folder.join("m-hard")).unwrap();
    for line in ["logits M --tokens 1 -o O", "run M -p a -n 1 --trace O"] {
        for name in ["m.gguf", "m-hard"] {
            // This model is an input only because the plan refers to it.
            let output = command(line, &plan, &folder.join(name)).arg("--force").output().unwrap();
            refused(&output, 2, "is the input file");
        }
    }
    fs::remove_file(folder.join("m-hard")).unwrap();
    assert!((fs::read(&plan).unwrap(), fs::read(&model).unwrap(), names(&folder)) == before);
}

#[test]
fn output_is_never_another_input() {
    let folder = scratch("outputs-inputs");
    let model = folder.join("m.gguf");
    fs::copy(demo_model(), &model).unwrap();
    let grid = include_str!("../../dataflow/src/grids/small.toml");
    for (name, text) in [("text", "a"), ("ids", "1"), ("grid.toml", grid)] {
        fs::write(folder.join(name), text).unwrap();
    }
    stdout(command("compile M --target dataflow:small -o O", &model, &folder.join("d.json")));
    let before: Vec<_> = names(&folder).iter().map(|name| fs::read(folder.join(name)).unwrap()).collect();
    for line in [
        "run m.gguf -f text -n 1 --trace text",
        "run m.gguf -f - -n 1 --trace text",
        "logits m.gguf --tokens @ids -o ids",
        "simulate m.gguf --target dataflow:grid.toml --html grid.toml",
        "simulate d.json --html d.json",
        "simulate d.json --model m.gguf --html m.gguf",
        "compile m.gguf --target dataflow:grid.toml -o grid.toml",
    ] {
        let mut command = ixc(line.split(' '));
        command.arg("--force").current_dir(&folder).stdin(fs::File::open(folder.join("text")).unwrap());
        refused(&command.output().unwrap(), 2, "is the input file");
    }
    let after: Vec<_> = names(&folder).iter().map(|name| fs::read(folder.join(name)).unwrap()).collect();
    assert!(before == after);
}

/// Returns the bytes of a key and a value in a GGUF header.
fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&(name.len() as u64).to_le_bytes(), name.as_bytes(), &kind.to_le_bytes(), value].concat()
}

#[test]
fn an_output_is_no_part_of_a_split_model() {
    const U16: u32 = 2;
    const STRING: u32 = 8;
    let folder = scratch("outputs-split");
    let [first, second] = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"].map(|name| folder.join(name));
    let keys = |number: u16| [key("split.no", U16, &number.to_le_bytes()), key("split.count", U16, &[2, 0])].concat();
    let whole = fs::read(demo_model()).unwrap();
    // The header grows by a multiple of the file's alignment, so that the tensors keep their
    // offsets.
    let unpadded = [keys(0), key("pad", STRING, &0u64.to_le_bytes())].concat().len();
    let pad = unpadded.next_multiple_of(64) - unpadded;
    let pad = key("pad", STRING, &[&(pad as u64).to_le_bytes()[..], &vec![b'x'; pad]].concat());
    let count = u64::from_le_bytes(whole[16..24].try_into().unwrap());
    fs::write(&first, [&whole[..16], &(count + 3).to_le_bytes(), &keys(0), &pad, &whole[24..]].concat()).unwrap();
    let empty = [&whole[..8], &0u64.to_le_bytes(), &2u64.to_le_bytes(), &keys(1)].concat();
    fs::write(&second, &empty).unwrap();
    for (line, _) in COMMANDS {
        let output = command(line, &first, &second).arg("--force").output().unwrap();
        refused(&output, 2, "is the input file");
    }
    assert_eq!(fs::read(&second).unwrap(), empty);
    assert_eq!(names(&folder).len(), 2);
}

#[test]
fn foreign_file_is_replaced_only_with_force() {
    let folder = scratch("outputs-foreign");
    let path = folder.join("out");
    for (line, begins) in COMMANDS {
        fs::write(&path, "precious").unwrap();
        refused(&command(line, &demo_model(), &path).output().unwrap(), 2, "--force replaces the file");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        stdout({
            let mut forced = command(line, &demo_model(), &path);
            forced.arg("--force");
            forced
        });
        assert!(fs::read(&path).unwrap().starts_with(begins), "{line}");
        // An existing output of the same kind is replaced.
        stdout(command(line, &demo_model(), &path));
        assert_eq!(names(&folder), ["out"]);
    }
}

#[test]
fn emitted_stages_replace_only_stage_files() {
    let folder = scratch("outputs-stages");
    let line = "compile M --target portable --emit fused,plan -o O";
    let (plan, stages) = (folder.join("p.ixp"), folder.join("p.d"));
    fs::write(&stages, "a file in the place of the folder").unwrap();
    refused(&command(line, &demo_model(), &plan).output().unwrap(), 74, "p.d: cannot create");
    fs::remove_file(&stages).unwrap();
    fs::create_dir(&stages).unwrap();
    fs::write(stages.join("3.plan.txt"), "precious").unwrap();
    refused(&command(line, &demo_model(), &plan).output().unwrap(), 2, "--force replaces the file");
    assert_eq!((names(&folder), names(&stages)), (vec!["p.d".to_owned()], vec!["3.plan.txt".to_owned()]));
    fs::remove_dir_all(&stages).unwrap();
    for _ in 0..2 {
        stdout(command(line, &demo_model(), &plan));
        assert_eq!(names(&stages), ["2.fused.ix", "3.plan.txt"]);
    }
    // `dump` recognises outputs of its own stages, and replaces them.
    for line in [
        "compile M --target portable --emit graph,fused,plan,kernel,asm -o O",
        "compile M --target avx2 --no-weights --emit graph,fused,plan,kernel,asm -o O",
    ] {
        for _ in 0..2 {
            stdout(command(line, &demo_model(), &plan));
            assert_eq!(names(&stages).len(), 5);
        }
    }
    // If compilation is refused, no dump folder is created.
    let other = folder.join("q.ixp");
    let output = command(line, &folder.join("no.gguf"), &other).output().unwrap();
    refused(&output, 66, "no.gguf");
    assert_eq!(names(&folder), ["p.d", "p.ixp"]);
}

/// Checks that an output that cannot be written is refused first, even if the model is invalid too.
#[test]
fn unwritable_output_is_refused_before_the_work() {
    let folder = scratch("outputs-early");
    let model = folder.join("m.gguf");
    fs::write(&model, "no model").unwrap();
    let mut lines: Vec<&str> = COMMANDS.iter().map(|(line, _)| *line).collect();
    lines.push("compile M --target portable --emit kernel -o O");
    lines.push("kernel export no-such-kernel -o O");
    for line in lines {
        let output = command(line, &model, &folder.join("no/folder")).output().unwrap();
        refused(&output, 74, "no/folder: cannot ");
        let output = command(line, &model, &model.join("x")).output().unwrap();
        refused(&output, 74, "m.gguf/x: cannot ");
    }
    refused(&command("kernel export no-such-kernel -o O", &model, &folder).output().unwrap(), 2, "it exists already");
    // A command that fails later leaves no file.
    for (line, _) in COMMANDS {
        assert_eq!(command(line, &model, &folder.join("out")).output().unwrap().status.code(), Some(65), "{line}");
    }
    assert_eq!(names(&folder), ["m.gguf"]);
}

#[test]
fn a_dash_is_standard_output() {
    let folder = scratch("outputs-dash");
    let model = demo_model();
    let written = |line: &str| {
        let output = command(line, &model, "-".as_ref()).current_dir(&folder).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        output.stdout
    };
    let file = folder.join("file");
    for (line, _) in COMMANDS.iter().filter(|(line, _)| line.starts_with("logits") || line.contains("dataflow")) {
        stdout(command(line, &model, &file));
        assert!(written(line) == fs::read(&file).unwrap(), "{line}");
        fs::remove_file(&file).unwrap();
    }
    let page = written("simulate M --html O");
    assert!(page.starts_with(b"<!doctype html>") && page.trim_ascii_end().ends_with(b"</html>"));
    for line in ["compile M --target portable -o O", "compile M --target avx2 -o O", "run M -p a -n 1 --trace O"] {
        let output = command(line, &model, "-".as_ref()).current_dir(&folder).output().unwrap();
        refused(&output, 2, "cannot be written to standard output");
        assert!(output.stdout.is_empty());
    }
    // Standard output may not be the command's input file.
    let read = folder.join("m.gguf");
    fs::copy(&model, &read).unwrap();
    for line in
        ["logits M --tokens 1 --target portable -o O", "compile M --target dataflow:small -o O", "simulate M --html O"]
    {
        let appended = fs::File::options().append(true).open(&read).unwrap();
        let output = command(line, &read, "-".as_ref()).stdout(appended).output().unwrap();
        refused(&output, 2, "-: is the input file");
        assert!(fs::read(&read).unwrap() == fs::read(&model).unwrap(), "{line}");
    }
    fs::remove_file(read).unwrap();
    // If the reader of a pipe closes it early, the command does not fail.
    let mut child = command("logits M --tokens 1 --target portable -o O", &model, "-".as_ref());
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
    assert!(names(&folder).is_empty());
}

#[test]
fn output_link_is_kept_and_devices_are_written_directly() {
    let folder = scratch("outputs-links");
    let line = "logits M --tokens 1 --target portable -o O";
    let (target, link) = (folder.join("target.npy"), folder.join("link.npy"));
    symlink("target.npy", &link).unwrap();
    refused(
        &command(line, &demo_model(), &link).output().unwrap(),
        74,
        "is a link to target.npy, which does not exist",
    );
    stdout(command(line, &demo_model(), &target));
    let good = fs::read(&target).unwrap();
    fs::write(&target, "").unwrap();
    stdout(command(line, &demo_model(), &link));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read(&target).unwrap() == good);
    assert_eq!(read_npy(&link).0[0], 1);
    stdout(command(line, &demo_model(), "/dev/null".as_ref()));
    let through = command(line, &demo_model(), "/dev/stdout".as_ref()).output().unwrap();
    assert!(through.status.success() && through.stdout == good);
    if cfg!(target_os = "linux") {
        refused(&command(line, &demo_model(), "/dev/full".as_ref()).output().unwrap(), 74, "/dev/full: cannot write");
    }
}

/// Checks links at guessable names of temporary files. The links point to a file that must not be
/// overwritten.
#[test]
fn links_at_temporary_file_names_are_not_followed() {
    let folder = scratch("outputs-guessed");
    let victim = folder.join("victim");
    fs::write(&victim, "precious").unwrap();
    let script = r#"cd "$1"; shift
        for i in $(seq $$ $(($$ + 400))); do ln -s victim .plan.ixp.$i.part; done
        exec "$@""#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(&folder).arg(env!("CARGO_BIN_EXE_ixc"));
    shell.arg("compile").arg(demo_model()).args(["--target", "avx2", "--no-weights", "-o", "plan.ixp"]);
    stdout(shell);
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    let plan = folder.join("plan.ixp");
    assert!(!fs::symlink_metadata(&plan).unwrap().is_symlink() && fs::read(&plan).unwrap().starts_with(b"IXCPLAN\n"));
}

/// Checks that files and pipes with the name of a plan's temporary file remain unchanged, and that
/// no command waits for them.
#[test]
fn foreign_file_at_the_temporary_name_is_refused() {
    let folder = scratch("outputs-part");
    let victim = folder.join("victim");
    fs::write(&victim, "precious").unwrap();
    let line = "compile M --target avx2 -o O";
    let plan = folder.join("h.ixp");
    for name in [".h.ixp.part", ".h.ixp.part.journal"] {
        let place = folder.join(name);
        let pipe = |place: &Path| {
            assert!(Command::new("mkfifo").arg(place).status().unwrap().success());
        };
        type Plant<'a> = &'a dyn Fn(&Path);
        let planted: [(Plant, &str); 4] = [
            (&|place| fs::hard_link(&victim, place).unwrap(), "hard links"),
            (&|place| symlink(&victim, place).unwrap(), "is a symbolic link"),
            (&pipe, "a pipe, not a regular file"),
            (&|place| fs::create_dir(place).unwrap(), "a folder, not a regular file"),
        ];
        for (plant, why) in planted {
            plant(&place);
            let output = command(line, &demo_model(), &plan).output().unwrap();
            assert!(matches!(output.status.code(), Some(66 | 74)), "{}", output.status);
            assert!(stderr(&output).contains(why) && stderr(&output).contains(name), "{}", stderr(&output));
            assert!(!plan.exists() && fs::read(&victim).unwrap() == b"precious", "{name}: {why}");
            if place.is_dir() {
                fs::remove_dir(&place).unwrap();
            } else {
                fs::remove_file(&place).unwrap();
            }
        }
    }
    stdout(command(line, &demo_model(), &plan));
    let mut left = names(&folder);
    left.retain(|name| name != ".h.ixp.part");
    assert_eq!(left, ["h.ixp", "victim"]);
}

/// Checks that unfinished files of `ixc` are replaced. Other files are kept unless `--force` is
/// set, and inputs are kept even with `--force`.
#[test]
fn foreign_part_file_is_replaced_only_with_force() {
    let folder = scratch("outputs-other-part");
    let (line, plan) = ("compile M --target avx2 -o O", folder.join("h.ixp"));
    for (name, contents) in [(".h.ixp.part", "precious"), (".h.ixp.part.journal", "precious")] {
        let place = folder.join(name);
        fs::write(&place, contents).unwrap();
        refused(&command(line, &demo_model(), &plan).output().unwrap(), 2, "--force replaces the file");
        assert_eq!(fs::read_to_string(&place).unwrap(), contents);
        stdout({
            let mut forced = command(line, &demo_model(), &plan);
            forced.arg("--force");
            forced
        });
        assert!(!place.exists());
        fs::remove_file(&plan).unwrap();
        let _ = fs::remove_file(folder.join(".h.ixp.part"));

        fs::copy(demo_model(), &place).unwrap();
        for forced in [None, Some("--force")] {
            let output = command(line, &place, &plan).args(forced).output().unwrap();
            refused(&output, 2, "is the input file");
            assert!(fs::read(&place).unwrap() == fs::read(demo_model()).unwrap(), "{name}");
        }
        fs::remove_file(&place).unwrap();
        let _ = fs::remove_file(folder.join(".h.ixp.part"));
    }
}

/// Checks that `ixc` does not continue a part file that another program wrote, with other weights
/// and a matching journal.
#[test]
fn foreign_part_file_is_not_resumed() {
    let folder = scratch("outputs-poisoned");
    let model = folder.join("m.gguf");
    fs::copy(demo_model(), &model).unwrap();
    let (path, line) = (folder.join("p.ixp"), "compile M --target avx2 -o O");
    stdout(command(line, &model, &path));
    let good = fs::read(&path).unwrap();
    let plan = ixc::runtime::file::read(&path).unwrap();
    fs::remove_file(&path).unwrap();

    // This part file has the whole plan, with zeros for all weights.
    let payload = u64::from_le_bytes(good[16..24].try_into().unwrap());
    let weights_at = (48 + payload).next_multiple_of(4096) as usize;
    let mut part = good[..weights_at + plan.own_weight_bytes as usize].to_vec();
    part[..48].fill(0);
    let own = plan.weights.iter().filter(|weight| weight.file == WeightFile::Plan);
    let mut units: Vec<(usize, usize)> = own.map(|weight| (weight.offset as usize, weight.bytes as usize)).collect();
    units.sort();
    assert!(units.len() > 10);
    let modified = fs::metadata(&model).unwrap().modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut begin = b"IXCPART\n".to_vec();
    begin.extend(11u32.to_le_bytes());
    begin.extend([modified.as_secs(), modified.subsec_nanos().into()].into_iter().flat_map(u64::to_le_bytes));
    let checksum = |bytes: &[u8]| crc32fast::hash(bytes).to_le_bytes();
    // Journals of the old version have checksums, which any program can compute. Journals of the
    // new version have a seal, which the forger has to guess.
    let (mut old, mut new) = ([&begin[..], &checksum(&begin)].concat(), [&begin[..], &[0; 8]].concat());
    for (number, (offset, bytes)) in (0u32..).zip(units) {
        let unit = &mut part[weights_at + offset..][..bytes];
        unit.fill(0);
        let crc = checksum(unit);
        old.extend([crc, checksum(&[number.to_le_bytes(), crc].concat())].concat());
        new.extend([&crc[..], &[0; 8]].concat());
    }
    for journal in [old, new] {
        fs::write(folder.join(".p.ixp.part"), &part).unwrap();
        fs::write(folder.join(".p.ixp.part.journal"), journal).unwrap();
        stdout(command(line, &model, &path));
        assert!(fs::read(&path).unwrap() == good);
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(names(&folder), ["m.gguf"]);
}

#[test]
fn every_text_input_is_limited_in_length() {
    let folder = scratch("outputs-endless");
    for line in [
        "opt /dev/zero",
        "run -f /dev/zero -n 1",
        "tokenize M -f /dev/zero",
        "detokenize M @/dev/zero",
        "logits M --tokens @/dev/zero -o O",
    ] {
        refused(&command(line, &demo_model(), &folder.join("o")).output().unwrap(), 65, "has more than 16777216 bytes");
    }
    // The size limit also applies to standard input.
    let mut child = ixc(["opt", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // The program may end before all input is written.
    let _ = input.write_all(&vec![b' '; (16 << 20) + 1]);
    drop(input);
    refused(&child.wait_with_output().unwrap(), 65, "-: has more than");
    assert!(names(&folder).is_empty());
}

#[test]
fn pipes_and_devices_are_refused_as_model_files() {
    let folder = scratch("outputs-pipes");
    for name in ["p.json", "p.toml", "p.ix", "p.gguf"] {
        assert!(Command::new("mkfifo").arg(folder.join(name)).status().unwrap().success());
        symlink("/dev/zero", folder.join(name.replace("p.", "z."))).unwrap();
    }
    for start in ["p", "z"] {
        for line in [
            "simulate S.json",
            "simulate --target dataflow:S.toml",
            "simulate S.gguf",
            "compile S.gguf --target dataflow:S.toml -o o.json",
            "kernel run S.ix",
            "run S.gguf -p a",
            "inspect S.gguf",
            "tokenize S.gguf a",
        ] {
            let output = ixc(line.replace('S', start).split(' ')).current_dir(&folder).output().unwrap();
            let said = stderr(&output);
            assert!(
                matches!(output.status.code(), Some(65 | 66)) && said.contains("not a regular file"),
                "{line}: {said}"
            );
        }
    }
    // A text file that the user names may be a pipe.
    let model = demo_model();
    let ids = |command: &mut Command| {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"Hello").unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    let through = |path: &str| ids(ixc(["tokenize", "--file", path]).arg(&model));
    let expected = stdout(ixc(["tokenize".as_ref(), model.as_os_str(), "Hello".as_ref()])).into_bytes();
    assert!(through("-") == expected && through("/dev/stdin") == expected);
}

#[test]
fn empty_ir_and_unmatched_kernel_filters_are_refused() {
    let folder = scratch("outputs-nothing");
    let empty = folder.join("empty.ix");
    for text in ["", "\n", "// a comment\n"] {
        fs::write(&empty, text).unwrap();
        refused(&ixc(["opt"]).arg(&empty).output().unwrap(), 65, "it has no graph");
    }
    refused(&ixc(["kernel", "list", "nosuch"]).output().unwrap(), 2, "`ixc kernel list` shows all");
    refused(&ixc(["kernel", "list", "nosuch", "--json"]).output().unwrap(), 2, "\"nosuch\"");
}
