//! Replay of exported kernels: unchanged, and after hostile changes. Every refusal is one message
//! with the right exit status. Manipulated code ends with an emulator fault, never with a crash.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::{ixc, scratch, stderr, stdout};
use ixc::ir::random::Random;
use ixc::targets::Target;
use serde_json::{Value as Json, json};

const DATA: i32 = 65;

/// Exports a small kernel with a loop, and returns its folder.
fn exported(name: &str, arguments: &[&str]) -> PathBuf {
    let folder = scratch(name).join("kernel");
    let mut command = ixc(["kernel", "export"]);
    stdout({
        command.args(arguments).arg("-o").arg(&folder);
        command
    });
    folder
}

fn add(name: &str) -> PathBuf {
    exported(name, &["map", "function=add", "n=33", "--target", "avx2"])
}

fn replay(folder: &Path, more: &[&str]) -> Output {
    ixc(["kernel", "replay", "--steps", "1000000"]).args(more).arg(folder).output().unwrap()
}

/// Changes the index of an exported folder.
fn edit(folder: &Path, change: impl FnOnce(&mut Json)) {
    let path = folder.join("index.json");
    let mut index: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut index);
    fs::write(&path, serde_json::to_vec(&index).unwrap()).unwrap();
}

/// Replaces the file that the index names at `at`, and updates the index.
fn replace(folder: &Path, at: &str, bytes: &[u8]) {
    edit(folder, |index| {
        let file = index.pointer_mut(at).unwrap();
        fs::write(folder.join(file["file"].as_str().unwrap()), bytes).unwrap();
        file["bytes"] = bytes.len().into();
        file["crc32"] = format!("{:08x}", crc32fast::hash(bytes)).into();
    });
}

#[track_caller]
fn refused(output: &Output, status: i32, part: &str) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.starts_with("error: ") && said.contains(part), "{said}");
}

#[test]
fn exported_kernels_replay_emulated_and_natively() {
    for (name, target, arguments) in [
        ("replay-add", Target::AVX2, &["map", "function=add", "n=33"][..]),
        (
            "replay-gemm",
            Target::AVX512,
            &["linear", "format=q5_k", "k=256", "tile=16", "n=16", "shape=gemm", "--rows", "7"],
        ),
        ("replay-attention", Target::AVX512, &["attention_64", "--rows", "2"]),
        ("replay-embed", Target::AVX2, &["embed", "format=q6_k", "rows=9", "n=256"]),
    ] {
        let folder = exported(name, &[arguments, &["--target", target.name()]].concat());
        let facts: Json = serde_json::from_slice(&replay(&folder, &["--json"]).stdout).unwrap();
        assert_eq!((&facts["equal"], &facts["engine"]), (&true.into(), &"the emulator".into()), "{facts}");
        assert!(facts["instructions"].as_u64().unwrap() > 10, "{facts}");
        let native = replay(&folder, &["--native", "--json"]);
        let missing = target.missing();
        if missing.is_empty() {
            let facts: Json = serde_json::from_slice(&native.stdout).unwrap();
            assert_eq!((&facts["equal"], &facts["engine"]), (&true.into(), &"this machine".into()), "{facts}");
        } else {
            println!("NOT RUN natively: {name}: this machine lacks {}", ixc::targets::cpu::list(&missing));
            refused(&native, 69, "this machine lacks");
        }
    }
}

#[test]
fn a_folder_is_written_whole_or_not_at_all() {
    let folder = add("replay-whole");
    let parent = folder.parent().unwrap();
    let files = || fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(files(), ["kernel"]);
    // An existing folder stays unchanged.
    let before = fs::read(folder.join("index.json")).unwrap();
    let again = ixc(["kernel", "export", "add", "--target", "avx2", "-o"]).arg(&folder).output().unwrap();
    refused(&again, 2, "cannot create");
    assert_eq!((files(), fs::read(folder.join("index.json")).unwrap()), (vec!["kernel".into()], before));
    let nowhere = ixc(["kernel", "export", "add", "--target", "avx2", "-o"]).arg(parent.join("no/folder")).output();
    refused(&nowhere.unwrap(), 74, "cannot create");
    let portable = ixc(["kernel", "export", "add", "--target", "portable", "-o"]).arg(parent.join("p")).output();
    refused(&portable.unwrap(), DATA, "an export needs x86-64 code from ixc's own code generator");
    assert_eq!(files(), ["kernel"]);
}

#[test]
fn the_same_seed_exports_the_same_bytes() {
    let code = |name: &str, seed: &str| {
        let folder = exported(name, &["rms_norm_a8_small", "--target", "avx512", "--seed", seed]);
        (fs::read(folder.join("index.json")).unwrap(), fs::read(folder.join("in_0_x.bin")).unwrap())
    };
    assert_eq!(code("replay-seed-a", "5"), code("replay-seed-b", "5"));
    assert_ne!(code("replay-seed-a", "5").1, code("replay-seed-b", "6").1);
}

#[test]
fn missing_and_malformed_indices_are_refused() {
    let folder = add("replay-index");
    let index = folder.join("index.json");
    refused(&replay(&folder.join("nowhere"), &[]), 66, "index.json: cannot read");
    let whole = fs::read(&index).unwrap();
    for length in [0, 1, 10, whole.len() / 2, whole.len() - 3] {
        fs::write(&index, &whole[..length]).unwrap();
        refused(&replay(&folder, &[]), DATA, "index.json: ");
    }
    fs::write(&index, &whole).unwrap();
    edit(&folder, |index| index["version"] = 2.into());
    refused(&replay(&folder, &[]), DATA, "version 2; expected \"ixc-kernel\" version 1");
    fs::write(&index, &whole).unwrap();
    edit(&folder, |index| index["format"] = "other\u{1b}[31m".into());
    refused(&replay(&folder, &[]), DATA, "format \"other\\u{1b}[31m\"");
    fs::remove_file(&index).unwrap();
    fs::create_dir(&index).unwrap();
    refused(&replay(&folder, &[]), DATA, "is not a regular file");
    fs::remove_dir(&index).unwrap();
    // The file is longer than any valid index, so no memory is allocated for it.
    fs::File::create(&index).unwrap().set_len(1 << 40).unwrap();
    refused(&replay(&folder, &[]), DATA, "bytes of an index; expected at most");
}

#[test]
fn damaged_files_are_refused() {
    for (name, file) in [("replay-code", "code.bin"), ("replay-in", "in_1_b.bin"), ("replay-out", "out_2_y.bin")] {
        let folder = add(name);
        let path = folder.join(file);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        bytes[whole.len() / 2] ^= 4;
        fs::write(&path, &bytes).unwrap();
        refused(&replay(&folder, &[]), DATA, "the file is damaged");
        fs::write(&path, &whole[1..]).unwrap();
        refused(&replay(&folder, &[]), DATA, "bytes; the index says");
        fs::remove_file(&path).unwrap();
        refused(&replay(&folder, &[]), 66, file);
        // The link's target is a valid file, so the link is refused only because it is a link.
        let elsewhere = folder.parent().unwrap().join("elsewhere");
        fs::write(&elsewhere, &whole).unwrap();
        symlink(&elsewhere, &path).unwrap();
        refused(&replay(&folder, &[]), DATA, "is not a regular file");
    }
}

#[test]
fn indices_that_make_no_sense_are_refused() {
    let folder = add("replay-sense");
    let whole = fs::read(folder.join("index.json")).unwrap();
    fs::write(folder.parent().unwrap().join("out"), [0; 132]).unwrap();
    let outside = folder.parent().unwrap().join("out");
    let outside = outside.to_str().unwrap();
    for (at, value, part) in [
        ("/code/file", json!("../out"), "file name \"../out\""),
        ("/code/file", json!(outside), "file name \"/"),
        ("/code/file", json!(""), "file name \"\""),
        ("/code/file", json!(".hidden"), "file name \".hidden\""),
        ("/code/file", json!("a\u{0}b"), "file name"),
        ("/code/file", json!("x".repeat(5000)), "file name"),
        ("/buffers/0/input/file", json!("sub/in.bin"), "file name \"sub/in.bin\""),
        ("/buffers/2/expected/file", json!(".."), "file name \"..\""),
        ("/code/bytes", json!(1_u64 << 60), "bytes of code; expected at most"),
        ("/code/bytes", json!(-1), "index.json: "),
        ("/code/entry", json!(1), "code.entry is 1; expected 0"),
        ("/code/alignment", json!(3), "code.alignment is 3"),
        ("/code/instruction_bytes", json!(1_u64 << 40), "code.instruction_bytes is"),
        ("/call/convention", json!("win64"), "call.convention is win64; expected sysv64"),
        ("/buffers/0/bytes", json!(131), "expected the buffer's, 131"),
        ("/buffers/0/bytes", json!(u64::MAX), "bytes of buffers; expected at most"),
        ("/buffers/2/kind", json!("read"), "kind of buffer y is Read"),
        ("/buffers/2/kind", json!("secret"), "index.json: "),
        ("/buffers/0/kind", json!("index"), "with `below`"),
        ("/features", json!(["sse9"]), "a feature is sse9; expected one of avx, f16c"),
        ("/buffers", json!(vec![json!(null); 65]), "index.json: "),
        ("/dims", json!([{"name": "n", "value": 9, "lo": 0, "hi": 8}]), "dim n is 9; expected 0 to 8"),
    ] {
        fs::write(folder.join("index.json"), &whole).unwrap();
        edit(&folder, |index| *index.pointer_mut(at).unwrap() = value);
        println!("{at}");
        refused(&replay(&folder, &[]), DATA, part);
        refused(&replay(&folder, &["--native"]), DATA, part);
    }
    // The memory limit also applies to a buffer that the index fills with a value.
    fs::write(folder.join("index.json"), &whole).unwrap();
    edit(&folder, |index| {
        let buffer = index.pointer_mut("/buffers/2").unwrap();
        buffer["expected"] = Json::Null;
        buffer["bytes"] = (1_u64 << 50).into();
    });
    refused(&replay(&folder, &[]), DATA, "bytes of buffers; expected at most");
    let many = json!((0..65).map(|_| json!({"name": "n", "value": 0, "lo": 0, "hi": 0})).collect::<Vec<_>>());
    fs::write(folder.join("index.json"), &whole).unwrap();
    edit(&folder, |index| index["dims"] = many);
    refused(&replay(&folder, &[]), DATA, "65 dims; expected at most 64");
}

#[test]
fn index_values_beyond_their_bound_are_refused() {
    let folder = exported("replay-below", &["gather", "bytes=16", "--rows", "4", "--target", "avx2"]);
    replace(&folder, "/buffers/0/input", &4_u32.to_le_bytes());
    refused(&replay(&folder, &[]), DATA, "a value of index buffer row is 4; expected below 4");
}

#[test]
fn differing_results_are_reported_by_element() {
    let folder = add("replay-differs");
    let mut y = fs::read(folder.join("out_2_y.bin")).unwrap();
    y[4 * 20 + 3] ^= 0x80;
    replace(&folder, "/buffers/2/expected", &y);
    refused(&replay(&folder, &[]), 1, "buffer %y: 1 of 33 f32 differ, first element 20 (byte 80)");
}

#[test]
fn tampered_code_ends_in_a_fault() {
    let folder = add("replay-tampered");
    let code = fs::read(folder.join("code.bin")).unwrap();
    // One buffer is shorter than the code assumes.
    let whole = fs::read(folder.join("index.json")).unwrap();
    let b = fs::read(folder.join("in_1_b.bin")).unwrap();
    replace(&folder, "/buffers/1/input", &b[..131]);
    edit(&folder, |index| index["buffers"][1]["bytes"] = 131.into());
    refused(&replay(&folder, &[]), 1, "load of 4 bytes at byte 128 of buffer `b`, which has 131 bytes");
    fs::write(folder.join("in_1_b.bin"), &b).unwrap();
    // The code uses a feature that the index does not name.
    fs::write(folder.join("index.json"), &whole).unwrap();
    edit(&folder, |index| index["features"] = json!([]));
    refused(&replay(&folder, &[]), 1, "the emulator stopped the code: ");
    // The codes are `jmp $`, a system call, `int3`, an unknown opcode, and a store to a read-only
    // buffer.
    for bytes in [
        &[0xeb, 0xfe][..],
        &[0x0f, 0x05],
        &[0xcc],
        &[0x0f, 0xff, 0xff],
        &[0x48, 0x8b, 0x07, 0xc6, 0x00, 1, 0xc3],
        &[0xc3],
    ] {
        fs::write(folder.join("index.json"), &whole).unwrap();
        replace(&folder, "/code", bytes);
        edit(&folder, |index| index["code"]["instruction_bytes"] = bytes.len().into());
        let output = replay(&folder, &[]);
        println!("{bytes:02x?}: {}", stderr(&output));
        assert_eq!(output.status.code(), Some(1), "{bytes:02x?}: {}", stderr(&output));
    }
    // After flipping random bits of the code, there are three possible outcomes: a result that is
    // right by chance, a wrong result, or an emulator fault.
    let mut random = Random::new(11);
    let mut stopped = 0;
    for _ in 0..60 {
        let mut code = code.clone();
        for _ in 0..1 + random.bits() % 3 {
            let at = random.bits() as usize % code.len();
            code[at] ^= 1 << (random.bits() % 8);
        }
        fs::write(folder.join("index.json"), &whole).unwrap();
        replace(&folder, "/code", &code);
        let output = replay(&folder, &[]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{:02x?}: {}", code, stderr(&output));
        stopped += usize::from(stderr(&output).contains("the emulator stopped the code"));
    }
    assert!(stopped > 5, "{stopped}");
}
