//! Arguments that are not a model: folders, files of other kinds, names in model registries. Each
//! gives a one-line error that names the kind of the file and a way to get a GGUF file.

use std::fs;
use std::path::Path;

use crate::support::{demo_model, ixc, scratch, stderr};

/// Returns the exit status of `ixc inspect PATH`, and the single line that it prints.
#[track_caller]
fn said(path: &Path) -> (Option<i32>, String) {
    let mut command = ixc(["inspect"]);
    let output = command.arg(path).output().unwrap();
    let said = stderr(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    (output.status.code(), said)
}

#[test]
fn files_of_other_kinds_are_named() {
    let folder = scratch("foreign_files");
    let cases: [(&str, &[u8], &str, &str); 9] = [
        (
            "model.safetensors",
            b"\x20\0\0\0\0\0\0\0{\"__metadata__\":{}}",
            "is a safetensors file",
            "give the folder of this file",
        ),
        (
            "pytorch_model.bin",
            b"PK\x03\x04\0\0\0\0archive/data.pkl",
            "is a PyTorch checkpoint",
            "convert_hf_to_gguf.py",
        ),
        ("old.pt", b"\x80\x02\x8a\x0al\xfc", "is a pickle", "convert_hf_to_gguf.py"),
        ("model.onnx", b"\x08\x08\x12\x07pytorch\x1a\x05", "is an ONNX model", "convert_hf_to_gguf.py"),
        ("model.gguf.gz", b"\x1f\x8b\x08\0\0\0", "is a gzip archive", "unpack the archive"),
        ("ggml-model.bin", b"tjgg\x03\0\0\0", "is a GGML file, older than GGUF", "convert_llama_ggml_to_gguf.py"),
        (
            "config.json",
            b"{\n  \"architectures\": [\"Qwen3ForCausalLM\"]",
            "is JSON text",
            "the folder with its safetensors files",
        ),
        ("lfs.gguf", b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer", "git lfs pull"),
        ("swapped.gguf", b"GGUF\0\0\0\x03\0\0\0\0", "is a big-endian file", "gguf_convert_endian.py"),
    ];
    for (name, bytes, what, advice) in cases {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        let (status, said) = said(&path);
        assert!(status == Some(65) && said.contains(what) && said.contains(advice), "{name}: {said}");
        assert!(name == "swapped.gguf" || said.contains("ixc only reads GGUF files"), "{said}");
    }
}

#[test]
fn descriptor_error_suggests_simulate() {
    let path = scratch("foreign_descriptor").join("demo.json");
    let mut command = ixc(["compile", "--target", "dataflow:small", "-o"]);
    crate::support::stdout({
        command.arg(&path);
        command
    });
    let (status, said) = said(&path);
    assert!(status == Some(65) && said.contains("is a dataflow descriptor") && said.contains("ixc simulate"), "{said}");
}

#[test]
fn model_folders_are_distinguished_and_contained_models_named() {
    let folder = scratch("foreign_folders");
    assert!(said(&folder).1.contains("is a folder without a GGUF file"), "{:?}", said(&folder));
    fs::write(folder.join("config.json"), "{}").unwrap();
    let (status, text) = said(&folder);
    assert!(status == Some(66) && text.contains("is a Hugging Face folder without model.safetensors"), "{text}");
    fs::copy(demo_model(), folder.join("only.gguf")).unwrap();
    assert!(said(&folder).1.contains("only.gguf"), "{:?}", said(&folder));
    fs::copy(demo_model(), folder.join("other.gguf")).unwrap();
    assert!(said(&folder).1.contains("one of the 2 GGUF files in the folder"), "{:?}", said(&folder));
}

/// Regression test: `-hf` was once read as `-h`, and printed the help with exit status 0.
#[test]
fn registry_names_suggest_a_download_command() {
    for (arguments, says) in [
        (
            &["run", "-hf", "Qwen/Qwen3-30B-A3B-GGUF", "-p", "hi"][..],
            "`hf download Qwen/Qwen3-30B-A3B-GGUF --include \"*.gguf\"`",
        ),
        (&["run", "--hf-repo", "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", "-p", "hi"], "\"*Q4_K_M*.gguf\"`"),
        (&["bench", "hf:Qwen/Qwen3-30B-A3B-GGUF"], "`hf download Qwen/Qwen3-30B-A3B-GGUF"),
        (&["run", "nobody/nothing-GGUF", "-p", "hi"], "`hf download nobody/nothing-GGUF"),
        (&["inspect", "qwen3:30b"], "has no registry"),
    ] {
        let output = ixc(arguments).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{arguments:?}: {said}");
        assert!(said.contains(says) && said.contains("downloads nothing"), "{arguments:?}: {said}");
    }
    // A text that looks like an option is accepted as the value of `-p`. A missing file is reported
    // as missing.
    let text = ixc(["tokenize", "demo", "-p", "-hf"]).output().unwrap();
    assert!(text.status.success(), "{}", stderr(&text));
    assert_eq!(ixc(["inspect", "folder/none.gguf"]).output().unwrap().status.code(), Some(66));
}
