//! Table of file types that are often mistaken for a GGUF file. The error states the type of the
//! file and how to get a GGUF file.
//!
//! ```
//! use ixc_model_files::gguf::{Gguf, GgufError};
//! let error = Gguf::from_bytes("w.bin".as_ref(), &b"\x1f\x8b\x08\0"[..]).unwrap_err();
//! assert!(matches!(error, GgufError::Foreign { what: "a gzip archive", .. }));
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use ixc_failure::Class;

use super::error::GgufError;

/// Type of file that is often mistaken for a model.
struct ForeignKind {
    what: &'static str,
    advice: &'static str,
    /// Function that tests whether a file with these first bytes has this type.
    is: fn(&[u8]) -> bool,
}

const CONVERT: &str = "convert its folder with llama.cpp's `python convert_hf_to_gguf.py FOLDER`";
const UNPACK: &str = "unpack the archive first";

/// File types. The most specific types come first, as the first match is used.
const KINDS: [ForeignKind; 19] = [
    ForeignKind {
        what: "a safetensors file",
        advice: "give the folder of this file, with its config.json",
        is: is_safetensors,
    },
    ForeignKind {
        what: "a PyTorch checkpoint",
        advice: CONVERT,
        is: |b| b.starts_with(b"PK\x03\x04") && holds(b, b"data.pkl"),
    },
    // These are pickles with protocols 2 to 5. Before version 1.6, `torch.save` wrote plain
    // pickles.
    ForeignKind {
        what: "a pickle, as older PyTorch checkpoints are",
        advice: CONVERT,
        is: |b| matches!(b, [0x80, 2..=5, ..]),
    },
    ForeignKind { what: "a zip archive", advice: UNPACK, is: |b| b.starts_with(b"PK\x03\x04") },
    ForeignKind { what: "a gzip archive", advice: UNPACK, is: |b| b.starts_with(&[0x1f, 0x8b]) },
    ForeignKind { what: "a Zstandard archive", advice: UNPACK, is: |b| b.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) },
    ForeignKind { what: "an xz archive", advice: UNPACK, is: |b| b.starts_with(b"\xfd7zXZ\0") },
    ForeignKind { what: "a 7z archive", advice: UNPACK, is: |b| b.starts_with(b"7z\xbc\xaf\x27\x1c") },
    ForeignKind { what: "a tar archive", advice: UNPACK, is: |b| b.get(257..262) == Some(b"ustar") },
    // These are the magic numbers that llama.cpp wrote before GGUF, in little-endian order: ggml,
    // ggmf, ggjt, ggla.
    ForeignKind {
        what: "a GGML file, older than GGUF",
        advice: "convert the file with llama.cpp's `convert_llama_ggml_to_gguf.py`, or get the model as GGUF",
        is: |b| [&b"lmgg"[..], b"fmgg", b"tjgg", b"algg"].iter().any(|magic| b.starts_with(magic)),
    },
    ForeignKind {
        what: "an ONNX model",
        advice: "convert the model that it was exported from: llama.cpp's `python convert_hf_to_gguf.py FOLDER`",
        is: is_onnx,
    },
    ForeignKind { what: "an HDF5 file", advice: CONVERT, is: |b| b.starts_with(b"\x89HDF\r\n\x1a\n") },
    ForeignKind { what: "a NumPy array", advice: CONVERT, is: |b| b.starts_with(b"\x93NUMPY") },
    ForeignKind {
        what: "a Git LFS pointer: the file itself was not downloaded",
        advice: "`git lfs pull` fetches the file",
        is: |b| b.starts_with(b"version https://git-lfs"),
    },
    ForeignKind {
        what: "a web page, not the expected file",
        advice: "download the file itself",
        is: |b| {
            let text = text_of(b).to_ascii_lowercase();
            text.starts_with("<!doctype html") || text.starts_with("<html")
        },
    },
    ForeignKind {
        what: "a dataflow descriptor",
        advice: "`ixc simulate` takes such a file",
        is: |b| {
            let text = text_of(b);
            text.starts_with('{') && text.contains("\"grid\"") && text.contains("\"version\"")
        },
    },
    ForeignKind {
        what: "JSON text, such as a model's configuration",
        advice: "give the model itself, or the folder with its safetensors files",
        is: |b| {
            let text = text_of(b);
            let inner = text.strip_prefix('{').map(|rest| (rest, "\"}"));
            let inner = inner.or_else(|| text.strip_prefix('[').map(|rest| (rest, "\"[{]-0123456789tfn")));
            // TOML files and templates begin with a bracket, too, so the text after the bracket
            // decides.
            inner.is_some_and(|(rest, begins)| rest.trim_start().chars().next().is_none_or(|c| begins.contains(c)))
        },
    },
    ForeignKind {
        what: "IR text",
        advice: "`ixc opt` takes graphs, `ixc kernel` kernels",
        is: |b| ["weight @", "func @", "kernel "].iter().any(|word| text_of(b).starts_with(word)),
    },
    ForeignKind {
        what: "a picture or a document",
        advice: "give a model",
        is: |b| [&b"\x89PNG"[..], b"\xff\xd8\xff", b"%PDF"].iter().any(|magic| b.starts_with(magic)),
    },
];

/// Number of bytes at the start of a file that are examined.
const LOOK: usize = 1024;
/// Maximum number of files in a folder that are examined.
const FILES: usize = 10_000;

fn holds(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

/// Returns the text at the start of a file, without white space before it. It ends before the first
/// byte that is not text.
fn text_of(bytes: &[u8]) -> &str {
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid()).trim_start_matches('\u{feff}').trim_start()
}

/// Returns whether the bytes are a length, followed by the start of a JSON object.
fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((length, json)) = bytes.split_first_chunk::<8>() else { return false };
    // The header of a safetensors file is always shorter than 256 MiB.
    u64::from_le_bytes(*length) < 1 << 28 && json.starts_with(b"{\"")
}

/// Returns whether the bytes are a protobuf message that begins with a small version number and the
/// name of a producer.
fn is_onnx(bytes: &[u8]) -> bool {
    match *bytes {
        [0x08, 1..=32, 0x12, length, ref name @ ..] => {
            name.get(..length.into()).is_some_and(|name| length > 0 && name.iter().all(|byte| byte.is_ascii_graphic()))
        }
        _ => false,
    }
}

/// Returns the error for a file that begins with these bytes; `None` if its type is not in the
/// table.
pub(super) fn file(path: &Path, bytes: &[u8]) -> Option<GgufError> {
    let bytes = &bytes[..bytes.len().min(LOOK)];
    let kind = KINDS.iter().find(|kind| (kind.is)(bytes))?;
    Some(GgufError::Foreign { path: path.into(), what: kind.what, advice: kind.advice.into(), class: Class::Data })
}

/// Returns the error for a folder.
pub(super) fn folder(path: &Path) -> GgufError {
    let entries = fs::read_dir(path).into_iter().flatten().take(FILES).filter_map(Result::ok);
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort_unstable();
    let ends = |end: &str| files.iter().filter(|file| file.extension().is_some_and(|found| found == end)).count();
    let models: Vec<&PathBuf> = files.iter().filter(|file| file.extension().is_some_and(|end| end == "gguf")).collect();
    let (what, advice) = match models.as_slice() {
        [] if ends("safetensors") > 0 => {
            ("a folder of safetensors without config.json", "download config.json and the tokenizer, too".to_owned())
        }
        [] => ("a folder without a GGUF file in it", "give the file of a model".to_owned()),
        [model] => ("a folder", format!("give the GGUF file in the folder, {}", model.display())),
        // The path of any shard opens all shards of a split model.
        [model, ..] => (
            "a folder",
            format!("give one of the {} GGUF files in the folder, such as {}", models.len(), model.display()),
        ),
    };
    GgufError::Foreign { path: path.into(), what, advice: advice.into(), class: Class::NoInput }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_file_kinds_are_recognised_by_first_bytes() {
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        let cases: [(&[u8], &str); 16] = [
            (b"Y\0\0\0\0\0\0\0{\"__metadata__\":{}}", "a safetensors file"),
            (b"PK\x03\x04\0\0\0\0archive/data.pkl", "a PyTorch checkpoint"),
            (b"\x80\x02\x8a\x0a", "a pickle, as older PyTorch checkpoints are"),
            (b"PK\x03\x04\0\0\0\0notes.txt", "a zip archive"),
            (b"\x1f\x8b\x08", "a gzip archive"),
            (&tar, "a tar archive"),
            (b"tjgg\x03\0\0\0", "a GGML file, older than GGUF"),
            (b"\x08\x08\x12\x07pytorch\x1a", "an ONNX model"),
            (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer: the file itself was not downloaded"),
            (b"\n<!DOCTYPE html><html>", "a web page, not the expected file"),
            (b"{\"version\":1,\"model\":\"m\",\"grid\":{", "a dataflow descriptor"),
            (b"{\"architectures\": [\"Qwen3\"]}", "JSON text, such as a model's configuration"),
            (b"[\n  {\"role\": 1}]", "JSON text, such as a model's configuration"),
            (b"weight @a : f32[3]", "IR text"),
            (b"\x89PNG\r\n", "a picture or a document"),
            (b"\x93NUMPY\x01\0", "a NumPy array"),
        ];
        for (bytes, right) in cases {
            match file("x".as_ref(), bytes) {
                Some(GgufError::Foreign { what, .. }) => assert_eq!(what, right),
                other => panic!("{right}: {other:?}"),
            }
        }
        for unknown in [
            &b""[..],
            b"FUGG\x03\0\0\0",
            b"GG",
            b"\0\0\0\0\0\0\0\0",
            b"\xff\xff\xff\xff\xff\xff\xff\xff{\"",
            b"[workspace]\n",
            b"{% for m in messages %}",
            b"{{ bos_token }}",
        ] {
            assert!(file("x".as_ref(), unknown).is_none(), "{unknown:?}");
        }
    }
}
