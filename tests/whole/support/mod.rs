//! Code that the whole-program tests share: commands, golden models, `.npy` files, and measures of
//! error.

pub mod browser;
pub mod cover;
pub mod engines;
pub mod headers;
pub mod holes;
pub mod made;
pub mod measure;
pub mod prometheus;
pub mod server;
pub mod split;
pub mod steps;
pub mod terminal;
pub mod timeline;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ixc::targets::{Feature, Target};
use serde_json::Value as Json;

/// Returns the command of the program with arguments.
pub fn ixc(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ixc"));
    command.args(arguments).stdin(Stdio::null());
    // Removes options that the person who runs the tests has set by variables, because they must
    // not affect the tests.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("IXC_")) {
        command.env_remove(name);
    }
    command.env("IXC_CONFIG", "none");
    // If plans in the user's cache folder were used, errors of compiling would stay hidden.
    command.env("IXC_NO_CACHE", "true");
    command
}

/// Runs a command with text on its standard input. A command that refuses its arguments may end
/// without reading it.
pub fn piped(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    match child.stdin.take().unwrap().write_all(input.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written.unwrap(),
    }
    child.wait_with_output().unwrap()
}

/// Runs a command, which must succeed, and returns its standard output.
#[track_caller]
pub fn stdout(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the standard error of a command.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the folder `name` in `../shared`. If it does not exist, prints a line and returns
/// `None`.
pub fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "../shared is missing");
    println!("NOT RUN: {name}: ../shared is missing");
    None
}

/// Returns the path of the demo model.
pub fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/rustling-q4_k_m.gguf")
}

/// Returns the best target of this machine without tiles. With tiles, rows of a step are rounded
/// together, so drafts and batches may change the last bits (docs/serving.md).
pub fn target_without_tiles() -> Target {
    let fits = |target: &Target| target.missing().is_empty() && !target.features().has(Feature::AmxTile);
    Target::all().filter(fits).max_by_key(|target| target.features().len()).unwrap_or(Target::PORTABLE)
}

/// Returns options for a session on [`target_without_tiles`].
pub fn session_without_tiles(run: ixc::runtime::engine::EngineOptions) -> ixc::loaded_model::LoadOptions {
    let compile = ixc::compile::CompileOptions { target: Some(target_without_tiles()), ..Default::default() };
    ixc::loaded_model::LoadOptions { run, compile, ..Default::default() }
}

/// Creates an empty folder for a test.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A golden model and its expected results.
#[derive(Clone)]
pub struct Golden {
    /// Path of the model file.
    pub model: PathBuf,
    /// Contents of the model's file of expectations.
    pub expect: Json,
    /// Exact logits at the last positions.
    pub exact: Vec<f32>,
}

impl Golden {
    /// Reads the expectations of a model from their file.
    pub fn read(expect: &Path) -> Golden {
        let folder = expect.parent().unwrap().parent().unwrap();
        let expect: Json = serde_json::from_slice(&fs::read(expect).unwrap()).unwrap();
        let (_, exact) = read_npy(&folder.join(expect["logits"].as_str().unwrap()));
        Golden { model: folder.join(expect["model"].as_str().unwrap()), expect, exact }
    }

    /// Returns all supported models of the folder `golden`. `ixc inspect` decides which models are
    /// supported. A folder is read once, since many tests need its models.
    pub fn all(golden: &Path) -> Vec<Golden> {
        static KNOWN: Mutex<BTreeMap<PathBuf, Vec<Golden>>> = Mutex::new(BTreeMap::new());
        // If one test fails to read the folder, the next test tries again.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(golden.to_owned()).or_insert_with(|| Golden::supported(golden)).clone()
    }

    fn supported(golden: &Path) -> Vec<Golden> {
        let mut paths: Vec<_> =
            fs::read_dir(golden.join("expect")).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        let models = paths.iter().map(|path| Golden::read(path));
        models
            .filter(|golden| {
                let facts = stdout(ixc([OsStr::new("inspect"), golden.model.as_os_str(), OsStr::new("--json")]));
                let facts: Json = serde_json::from_str(&facts).unwrap();
                if facts["supported"] != true {
                    println!("not supported: {}", facts["problems"][0]);
                }
                facts["supported"] == true
            })
            .collect()
    }

    /// Returns the token ids under `key` in the expectations.
    pub fn tokens(&self, key: &str) -> Vec<u32> {
        self.expect[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    }

    /// Returns the number under `key` in the expectations.
    pub fn number(&self, key: &str) -> f64 {
        self.expect[key].as_f64().unwrap()
    }

    /// Returns the name of the model, for messages.
    pub fn name(&self) -> &str {
        self.expect["model"].as_str().unwrap()
    }

    /// Returns the interpreter's logits, `[tokens, vocabulary]`. They are computed only once, since
    /// many tests compare with them.
    pub fn interpreted(&self, folder: &Path) -> Arc<Vec<f32>> {
        type Known = BTreeMap<PathBuf, Arc<OnceLock<Arc<Vec<f32>>>>>;
        static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
        // If one test fails to compute the logits, the next test tries again.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let own = known.entry(self.model.clone()).or_default().clone();
        drop(known);
        own.get_or_init(|| Arc::new(self.logits(folder, &["--engine", "interpreter"]))).clone()
    }

    /// Returns the logits of `ixc logits` with additional arguments, `[tokens, vocabulary]`.
    #[track_caller]
    pub fn logits(&self, folder: &Path, arguments: &[&str]) -> Vec<f32> {
        let tokens = list(&self.tokens("prompt_tokens"));
        let out = folder.join("out.npy");
        let mut command = ixc(["logits", "--tokens", &tokens, "-o"]);
        command.arg(&out).arg(&self.model).args(arguments);
        stdout(command);
        let (shape, data) = read_npy(&out);
        assert_eq!(shape[0], self.tokens("prompt_tokens").len());
        data
    }

    /// Returns the last rows of `logits`: those for which there are exact logits.
    pub fn last<'l>(&self, logits: &'l [f32]) -> &'l [f32] {
        &logits[logits.len() - self.exact.len()..]
    }
}

/// Formats ids for `--tokens`.
pub fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Reads an `.npy` file of version 1 with little-endian f32 in row-major order. Returns its shape
/// and data.
pub fn read_npy(path: &Path) -> (Vec<usize>, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..end]).unwrap();
    assert!(header.contains("'<f4'") && header.contains("'fortran_order': False"), "{header}");
    let shape = header.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0;
    let shape: Vec<usize> = shape.split(',').filter_map(|dim| dim.trim().parse().ok()).collect();
    let data: Vec<f32> = bytes[end..].as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
    assert_eq!(shape.iter().product::<usize>(), data.len());
    (shape, data)
}

/// Returns the mean over rows of KL(exact || found), in nats.
pub fn kl_divergence(found: &[f32], exact: &[f32], vocabulary: usize) -> f64 {
    assert_eq!(found.len(), exact.len());
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let top = row.iter().fold(f64::NEG_INFINITY, |top, &x| top.max(x.into()));
        let total = row.iter().map(|&x| (f64::from(x) - top).exp()).sum::<f64>().ln();
        row.iter().map(|&x| f64::from(x) - top - total).collect()
    };
    let rows = exact.chunks(vocabulary).zip(found.chunks(vocabulary));
    let sum: f64 = rows
        .map(|(exact, found)| {
            let (exact, found) = (log_softmax(exact), log_softmax(found));
            exact.iter().zip(&found).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
        })
        .sum();
    sum / (exact.len() / vocabulary) as f64
}
