//! Targets for files that change how the program works: tuned choices, kernels, settings,
//! importance matrices.

use std::path::Path;

use ixc_compile::replacements::KernelFile;
use ixc_compile::tuned::TunedFile;
use ixc_generate::expert_use::ExpertUse;
use ixc_model_files::gguf::write::GgufWriter;
use ixc_quantise::importance::Importance;
use ixc_targets::Target;
use serde_json::{Value, json};

use crate::{Outcome, scratch};

/// Dictionary of configuration files.
pub const DICTIONARY: &[&str] = &[
    "\n[serve]\n",
    "[kernel.tune]\n",
    "[run]\n",
    "threads = ",
    "memory = ",
    "\"6GiB\"",
    "port = ",
    "stop = [",
    "]",
    "\"",
    "'''",
    "\"\"\"",
    "true",
    "false",
    "0x",
    "1e9",
    "inf",
    "nan",
    "1979-05-27T07:32:00Z",
    "{ a = 1 }",
    "temp = ",
    "no-pack",
    "config = ",
    "host = ",
    "verbose = ",
    "..",
    "[[",
    "\\u00e9",
];

/// Reads a file of tuned choices. A wrong checksum is corrected, since a hostile writer can compute
/// the right one.
pub fn tuned(input: &[u8]) -> Outcome {
    let path = scratch::file("tuned.json", input);
    let error = match TunedFile::from_path(&path) {
        Ok(_) => return Outcome::accepted(),
        Err(error) => error,
    };
    let Some(repaired) = repaired(input, &error.to_string()) else {
        let class = error.class();
        return Outcome::refused_as(error, class);
    };
    match TunedFile::from_path(&scratch::file("tuned.json", &repaired)) {
        Ok(file) => {
            let _ = file.check(Target::AVX2);
            Outcome::accepted()
        }
        Err(error) => {
            let class = error.class();
            Outcome::refused_as(error, class)
        }
    }
}

/// Returns the file with the right checksum, which the error states. Returns `None` if the error is
/// not about the checksum.
fn repaired(input: &[u8], error: &str) -> Option<Vec<u8>> {
    let mut file: Value = serde_json::from_slice(input).ok()?;
    let stored = file.get("crc32")?.as_str()?.to_owned();
    let mut words = error.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() == 8);
    let found = words.find(|word| *word != stored)?;
    file["crc32"] = found.into();
    serde_json::to_vec(&file).ok()
}

/// Returns a file of tuned choices that this version of the program accepts.
pub fn tuned_files() -> Vec<Vec<u8>> {
    let choice = "q4_k_r16 x=a8_super n=64 k=256: rows=16 gemm/48";
    let file = json!({
        "format": "ixc-tuned",
        "version": 1,
        "ixc": ixc_compile::build::version(),
        "target": "haswell",
        "by": {"model": "haswell"},
        "crc32": "00000000",
        "rows": [{"choice": choice, "instead_of": "", "ratio": [1.2, 1.1, 1.3]}],
    });
    vec![file.to_string().into_bytes()]
}

/// Reads the file of a kernel that replaces a generated one.
pub fn replacement(input: &[u8]) -> Outcome {
    match KernelFile::read(&scratch::file("kernel.ix", input)) {
        Ok(file) => {
            let _ = file.check_signature(&file.kernel);
            Outcome::Accepted(format!("spec {}", file.spec.is_some()))
        }
        Err(error) => {
            let class = error.class();
            Outcome::refused_as(error, class)
        }
    }
}

/// Reads a configuration file.
pub fn configuration(input: &[u8]) -> Outcome {
    let Ok(text) = std::str::from_utf8(input) else { return Outcome::refused("is not UTF-8") };
    match ixc_cli::check_configuration(Path::new("config.toml"), text) {
        Ok(options) => Outcome::Accepted(format!("options {}", options.min(20))),
        Err(error) => {
            let class = error.class();
            Outcome::refused_as(error, class)
        }
    }
}

/// Reads an importance matrix.
pub fn importance(input: &[u8]) -> Outcome {
    match Importance::read(&scratch::file("importance", input)) {
        Ok(found) => {
            assert!(!found.is_empty());
            for matrices in [0, 1, 2] {
                let _ = found.column_means("blk.0.ffn_up.weight", 4, matrices);
            }
            Outcome::Accepted(format!("{} matrices", found.len().min(8)))
        }
        Err(error) => {
            let class = error.class();
            Outcome::refused_as(error, class)
        }
    }
}

/// Returns an importance matrix in each file format.
pub fn importance_files() -> Vec<Vec<u8>> {
    let name = "blk.0.ffn_up.weight";
    let gguf = GgufWriter::new()
        .key("general.type", "imatrix")
        .f32_tensor(&format!("{name}.in_sum2"), &[4, 2], &[8.0, 2.0, 5.0, 5.0, 1.0, 1.0, 1.0, 1.0])
        .f32_tensor(&format!("{name}.counts"), &[1, 2], &[2.0, 0.0]);
    let mut binary = 1i32.to_le_bytes().to_vec();
    binary.extend((name.len() as i32).to_le_bytes());
    binary.extend(name.as_bytes());
    binary.extend([2i32, 4].into_iter().flat_map(i32::to_le_bytes));
    binary.extend([8.0f32, 2.0, 1.0, 0.0].into_iter().flat_map(f32::to_le_bytes));
    vec![gguf.finish(), binary]
}

/// Reads a record of expert use.
pub fn expert_use(input: &[u8]) -> Outcome {
    match ExpertUse::read(&scratch::file("experts.json", input)) {
        Ok(record) => {
            let text = record.to_json();
            let again = ExpertUse::read(&scratch::file("experts.json", text.as_bytes()));
            assert_eq!(again.expect("a written record can be read").to_json(), text);
            Outcome::accepted()
        }
        Err(error) => {
            let class = error.class();
            Outcome::refused_as(error, class)
        }
    }
}
