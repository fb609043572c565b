//! A C program that computes a model's experts: compiled with `cc` against `include/ixc.h` and the
//! shared library, run, and compared with Rust.

use std::path::{Path, PathBuf};
use std::process::Command;

use ixc::moe::{Moe, MoeOptions, Rows};
use ixc::{compile, runtime::engine, targets::Target};

/// Returns the path of this package's shared library: in the folder of this program, or one above.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folders = program.ancestors().skip(1).take(2);
    let name = format!("{}ixc_capi{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let found = folders.map(|folder| folder.join(&name)).find(|path| path.exists());
    found.expect("the shared library is built with its package's tests")
}

#[test]
fn c_program_computes_experts_through_c_api() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = package.join("../examples/models/rustling-q4_k_m.gguf");
    let folder = tempfile::tempdir().unwrap();
    let (program, library) = (folder.path().join("moe"), library());
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-o"]).arg(&program);
    compiler.arg("-I").arg(package.join("include")).arg(package.join("tests/moe.c")).arg(&library);
    compiler.arg(format!("-Wl,-rpath,{}", library.parent().unwrap().display()));
    let compiled = compiler.output().expect("cc is needed for this test");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = Command::new(&program).arg(&model).output().unwrap();
    assert!(run.status.success(), "{}: {}", run.status, String::from_utf8_lossy(&run.stderr));

    let options = MoeOptions {
        compile: compile::Options { target: Some(Target::AVX2), ..compile::Options::default() },
        run: engine::Options { threads: Some(2), ..engine::Options::default() },
    };
    let moe = Moe::open(Some(&model), &options).unwrap();
    let text = String::from_utf8(run.stdout).unwrap();
    assert_eq!(text.lines().count(), moe.layers().len());
    for (line, layer) in text.lines().zip(moe.layers()) {
        let (number, sums) = line.split_once(' ').unwrap();
        assert_eq!(number, layer.number.to_string());
        let (width, used) = (layer.width as usize, layer.used as usize);
        let rows: Vec<f32> = (0..9 * width).map(|i| ((i * 7 % 23) as f32 - 11.0) / 8.0).collect();
        let id = |row: usize, slot: usize| {
            if row % 3 == slot % 3 { -1 } else { ((row + slot) % layer.experts as usize) as i32 }
        };
        let ids: Vec<i32> = (0..9 * used).map(|i| id(i / used, i % used)).collect();
        let weights: Vec<f32> = (0..9 * used).map(|i| (1 + i % used) as f32 / 4.0).collect();
        let expected = moe.submit(layer.number, Rows::F32(&rows), &ids, &weights).unwrap().wait().unwrap();
        let bits: Vec<String> = expected.iter().map(|x| format!("{:08x}", x.to_bits())).collect();
        assert!(sums == bits.join(" "), "layer {number}: other bits");
    }
}
