//! Encoders. The interpreter and every target compute vectors of golden models, for texts alone and
//! in batches. The vectors are compared with exact vectors. Texts that are too long, and commands
//! that need logits, are refused.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::cover::runs_all;
use crate::support::server::Server;
use crate::support::{ixc, read_npy, scratch, stderr, stdout};
use ixc::architectures::Parts;
use ixc::compile::CompileOptions;
use ixc::embedding::Embedder;
use ixc::ir::plan::Pooling;
use ixc::loaded_model::{LoadOptions, LoadedModel};
use ixc::model::Model;
use ixc::runtime::engine;
use ixc::targets::Target;
use ixc_testing::bits::Table;
use ixc_testing::nmse::nmse;

const HEADLESS: Parts = Parts { head: false, ..Parts::ALL };

/// A model, one text, and the exact hidden states of its tokens.
struct Encoder {
    path: PathBuf,
    expect: Value,
    tokens: Vec<u32>,
    width: usize,
    exact: Vec<f32>,
}

impl Encoder {
    fn all() -> Vec<Encoder> {
        Encoder::read_all("tests/golden/encoders")
    }

    fn read_all(folder: &str) -> Vec<Encoder> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = fs::read_dir(folder.join("expect")).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect();
        paths.sort();
        assert_eq!(paths.len(), fs::read_dir(folder.join("models")).unwrap().count());
        let read = |path: PathBuf| {
            let expect: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            let (shape, exact) = read_npy(&folder.join(expect["hidden"].as_str().unwrap()));
            let tokens = expect["prompt_tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32);
            let (path, tokens) = (folder.join(expect["model"].as_str().unwrap()), tokens.collect());
            Encoder { path, expect, tokens, width: shape[1], exact }
        };
        paths.into_iter().map(read).collect()
    }

    fn bert() -> Encoder {
        Encoder::all().into_iter().find(|of| of.name() == "models/bert.gguf").unwrap()
    }

    fn name(&self) -> &str {
        self.expect["model"].as_str().unwrap()
    }

    fn check(&self, found: &[f32], exact: &[f32], limit: &str, how: &str) {
        let (error, limit) = (nmse(found, exact), self.expect[limit].as_f64().unwrap());
        println!("{error:.2e} <= {limit:.0e}  {} {how}", self.name());
        assert!(error <= limit, "{error:e} > {limit:e}  {} {how}", self.name());
    }

    fn open(&self, target: Target, sequences: u32, max_tokens: Option<u32>) -> LoadedModel {
        let compile = CompileOptions { target: Some(target), max_tokens, ..CompileOptions::default() };
        let run = engine::EngineOptions { threads: Some(2), sequences, ..engine::EngineOptions::default() };
        let run = engine::EngineOptions { backend: crate::support::engines::native(target), ..run };
        let options = LoadOptions { compile, run, embeddings: true, ..LoadOptions::default() };
        LoadedModel::open(Some(&self.path), &options).unwrap_or_else(|error| panic!("{}: {error}", self.name()))
    }

    /// Returns the vector that this pooling makes of rows of hidden states.
    fn pooled(&self, rows: &[f32], pooling: Pooling) -> Vec<f32> {
        let count = rows.len() / self.width;
        let rows = match pooling {
            Pooling::Mean => 0..count,
            Pooling::First => 0..1,
            Pooling::Last => count - 1..count,
        }
        .map(|row| &rows[row * self.width..][..self.width]);
        let mut sums = vec![0.0; self.width];
        rows.for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x)));
        let length = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
        sums.iter().map(|x| (x / length) as f32).collect()
    }
}

/// Returns the poolings to test. Each run tests one of them, by turns, because the code of pooling
/// is the same for all encoders and targets. `IXC_ALL=1` selects all.
fn poolings(turn: usize) -> impl Iterator<Item = (&'static str, Pooling)> {
    let all = Pooling::ALL.into_iter().enumerate();
    all.filter(move |(number, _)| runs_all() || *number == turn % Pooling::ALL.len()).map(|(_, pooling)| pooling)
}

/// Checks that hidden states of all tokens, and the vectors computed from them, stay within the
/// error limits.
#[test]
fn golden_encoders_keep_their_limits() {
    let mut table = Table::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bits/encoders.txt"));
    for (number, of) in Encoder::all().into_iter().enumerate() {
        let model = Model::open_parts(&of.path, HEADLESS).unwrap();
        assert!(!model.arch.hyper.causal);
        let exact = model.exact_logits(&of.tokens).unwrap();
        of.check(&exact, &of.exact, "interpreter_nmse_max", "interpreter");
        let targets = [Target::AVX2, Target::AVX512, Target::AMX, Target::PORTABLE];
        for (turn, target) in targets.into_iter().enumerate() {
            let found = of.open(target, 1, None).logits(&of.tokens).unwrap();
            of.check(&found, &of.exact, "compiled_nmse_max", target.name());
            let bytes: Vec<u8> = found.iter().flat_map(|x| x.to_le_bytes()).collect();
            table.add(&format!("{} {}", of.name(), target.name()), [&bytes[..]]);
            for (way, pooling) in poolings(number + turn) {
                let mut embedder = Embedder::new(of.open(target, 1, None), Some(pooling)).unwrap();
                let vector = embedder.embed(vec![of.tokens.clone()]).unwrap().remove(0);
                let how = format!("{} {way}", target.name());
                of.check(&vector, &of.pooled(&of.exact, pooling), "compiled_nmse_max", &how);
            }
        }
        let own = Embedder::new(of.open(Target::PORTABLE, 1, None), None).unwrap().pooling();
        assert_eq!(own.name(), of.expect["pooling"], "{}", of.name());
    }
    table.check();
}

/// Compares hidden states, ids and vectors with those of sentence-transformers.
#[test]
fn folders_of_encoders_are_read_as_sentence_transformers_reads_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/encoders");
    for of in Encoder::read_all("tests/checkpoints/encoders") {
        let exact = Model::open_parts(&of.path, HEADLESS).unwrap().exact_logits(&of.tokens).unwrap();
        of.check(&exact, &of.exact, "interpreter_nmse_max", "interpreter");
        let (_, right) = read_npy(&folder.join(of.expect["vectors"].as_str().unwrap()));
        for target in [Target::AVX2, Target::AVX512, Target::PORTABLE] {
            let found = of.open(target, 1, None).logits(&of.tokens).unwrap();
            of.check(&found, &of.exact, "compiled_nmse_max", target.name());
            let mut embedder = Embedder::new(of.open(target, 3, None), None).unwrap();
            assert_eq!(embedder.pooling().name(), of.expect["pooling"], "{}", of.name());
            let texts = of.expect["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
            let ids: Vec<Vec<u32>> = texts.map(|text| embedder.encode(text).unwrap()).collect();
            assert_eq!(json!(ids), of.expect["ids"], "{}", of.name());
            let vectors = embedder.embed(ids).unwrap().concat();
            of.check(&vectors, &right, "compiled_nmse_max", &format!("{} vectors", target.name()));
            let length = vectors[..of.width].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            assert_eq!((length - 1.0).abs() < 1e-5, of.expect["unit"].as_bool().unwrap(), "{} has {length}", of.name());
            let cut = embedder.cut(&vectors[..of.width], 8);
            assert_eq!(cut == vectors[..8], !of.expect["unit"].as_bool().unwrap(), "{}", of.name());
        }
    }
}

/// Checks that a plan of a folder, and a GGUF file made from the folder, give the folder's vectors.
#[test]
fn encoder_plans_and_gguf_files_match_their_folder() {
    let scratch = scratch("encoders_made");
    let text = ["-p", "The borrow checker said that.", "-t", "1"];
    let vectors = |model: &Path| {
        let mut command = ixc(["embed"].iter().chain(&text));
        command.arg(model);
        serde_json::from_str::<Value>(&stdout(command)).unwrap()
    };
    for of in Encoder::read_all("tests/checkpoints/encoders") {
        let (plan, file) = (scratch.join("a.ixp"), scratch.join("a.gguf"));
        let mut compile = ixc(["compile", "--embeddings", "-q", "--force", "-o"]);
        compile.arg(&plan).arg(&of.path);
        stdout(compile);
        let mut quantise = ixc(["quantise", "-q", "--force", "-o"]);
        quantise.arg(&file).arg(&of.path).arg("F16");
        stdout(quantise);
        let right = vectors(&of.path);
        assert_eq!(vectors(&plan), right, "{}", of.name());
        assert_eq!(vectors(&file), right, "{}", of.name());
    }
}

/// Checks that texts of different lengths give the same bits together as each alone, also if they
/// have more tokens than a step can have.
#[test]
fn batched_encoder_texts_match_single_texts() {
    for (number, of) in Encoder::all().into_iter().enumerate() {
        for (turn, target) in [Target::AVX2, Target::AVX512, Target::PORTABLE].into_iter().enumerate() {
            if !target.missing().is_empty() {
                println!("NOT RUN: this CPU lacks features of target {}", target.name());
                continue;
            }
            let lengths = [1, 140, 33, 100, 2, 64, 139, 31];
            let texts: Vec<Vec<u32>> =
                lengths.iter().map(|&n| of.tokens.iter().rev().cycle().take(n).copied().collect()).collect();
            for (way, pooling) in poolings(number + turn) {
                let mut alone = Embedder::new(of.open(target, 1, None), Some(pooling)).unwrap();
                let expected: Vec<Vec<f32>> =
                    texts.iter().map(|text| alone.embed(vec![text.clone()]).unwrap().remove(0)).collect();
                let mut together = Embedder::new(of.open(target, 4, None), Some(pooling)).unwrap();
                assert_eq!(together.embed(texts.clone()).unwrap(), expected, "{} {way} {}", of.name(), target.name());
            }
        }
    }
}

/// Checks texts and windows that begin and end at every offset within blocks and runs of positions.
/// The results agree with the interpreter.
#[test]
fn encoder_texts_of_all_lengths_match_the_interpreter() {
    for of in Encoder::all() {
        let model = Model::open_parts(&of.path, HEADLESS).unwrap();
        let most = u64::from(model.arch.hyper.context_length.min(250) as u32);
        let lengths = [1, 2, 23, 25, 31, 32, 33, 49, 63, 65, 97, 128, 129, 160, 250];
        let text = |n: usize| of.tokens.iter().cycle().skip(n).take(n).copied().collect::<Vec<u32>>();
        let texts: Vec<Vec<u32>> = lengths.into_iter().filter(|&n| n as u64 <= most).map(text).collect();
        let exact: Vec<Vec<f32>> = texts.iter().map(|text| model.exact_logits(text).unwrap()).collect();
        for target in [Target::AVX2, Target::AVX512, Target::AMX] {
            let mut session = of.open(target, 1, None);
            for (text, exact) in texts.iter().zip(&exact) {
                let error = nmse(&session.logits(text).unwrap(), exact);
                let limit = 2.0 * of.expect["compiled_nmse_max"].as_f64().unwrap();
                let how = format!("{} of {} {}", of.name(), text.len(), target.name());
                assert!(error <= limit, "{error:e} > {limit:e}  {how}");
            }
        }
    }
}

/// Checks that the hidden state of a token depends on both earlier and later tokens.
#[test]
fn a_token_sees_all_of_its_text() {
    let of = Encoder::bert();
    let mut session = of.open(Target::PORTABLE, 1, None);
    let mut first = |tokens: &[u32]| session.logits(tokens).unwrap()[..of.width].to_vec();
    let whole = first(&of.tokens[..40]);
    let mut other = of.tokens[..40].to_vec();
    other[39] = (other[39] + 1) % 64;
    assert_ne!(whole, first(&other));
    assert_ne!(whole, first(&of.tokens[..39]));
}

#[test]
fn long_encoder_text_is_refused_instead_of_truncated() {
    let of = Encoder::bert();
    let mut embedder = Embedder::new(of.open(Target::PORTABLE, 2, Some(50)), None).unwrap();
    let error = embedder.embed(vec![of.tokens[..51].to_vec()]).unwrap_err().to_string();
    assert!(error.contains("51 tokens") && error.contains("50 tokens"), "{error}");
    assert!(embedder.is_idle());
    let long = Embedder::new(of.open(Target::PORTABLE, 1, None), None).unwrap().embed(vec![of.tokens[..50].to_vec()]);
    assert_eq!(embedder.embed(vec![of.tokens[..50].to_vec()]).unwrap(), long.unwrap());
    // A caller without an embedder gets an error for a text that does not fit in a step.
    let mut session = of.open(Target::PORTABLE, 1, Some(50));
    let error = session.logits(&of.tokens).unwrap_err().to_string();
    assert!(error.contains("after the first 50 of a text") && error.contains("a whole text in one step"), "{error}");
}

#[test]
fn logit_commands_refer_encoders_to_embed() {
    let of = Encoder::bert();
    let (path, folder) = (of.path.to_str().unwrap(), scratch("encoders"));
    let [out, text] = ["out", "text.txt"].map(|name| folder.join(name));
    fs::write(&text, "A text.").unwrap();
    let [out, text] = [&out, &text].map(|path| path.to_str().unwrap());
    for command in [
        &["run", "-p", "x", path][..],
        &["logits", "--tokens", "1,2", "-o", out, path],
        &["compile", path, "-o", out],
        &["bench", path],
        &["eval", "--text", text, path],
    ] {
        let output = ixc(command).output().unwrap();
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(65), "{command:?}: {message}");
        assert!(message.contains("is an encoder (bert)") && message.contains("`ixc embed`"), "{command:?}: {message}");
    }
    let facts: Value = serde_json::from_str(&stdout(ixc(["inspect", path, "--json"]))).unwrap();
    assert_eq!((&facts["supported"], &facts["architecture"]), (&Value::Bool(true), &Value::from("bert")), "{facts}");
    // `ixc dump` works as for any other model.
    for (stage, part) in [("graph", "ends %pos"), ("plan", "input last positions")] {
        assert!(stdout(ixc(["dump", "--stage", stage, path])).contains(part), "{stage}");
    }
    // A plan of an encoder returns vectors.
    let plan = folder.join("bert.ixp");
    stdout(ixc(["compile".as_ref(), "--embeddings".as_ref(), of.path.as_os_str(), "-o".as_ref(), plan.as_os_str()]));
    let file = ixc::plan_file::open_plan(&plan, None).unwrap();
    let options = LoadOptions { embeddings: true, ..LoadOptions::default() };
    let mut model = LoadedModel::of_plan_file(file, plan.parent().unwrap(), &options).unwrap();
    of.check(&model.logits(&of.tokens).unwrap(), &of.exact, "compiled_nmse_max", "a plan");
}

/// Checks that texts of simultaneous requests have the same vectors as alone. A text that is too
/// long is refused at once, without waiting.
#[test]
fn server_embeds_whole_texts_of_concurrent_requests() {
    let of = Encoder::bert();
    let server = Server::for_model(of.path.to_str().unwrap(), &["--embeddings", "--parallel", "3"]);
    let text = |n: usize| of.tokens.iter().rev().cycle().take(n).copied().collect::<Vec<u32>>();
    let ask = |texts: &[Vec<u32>]| {
        let (status, answer) = server.post("/v1/embeddings", &json!({"input": texts}));
        let vector = |i: usize| serde_json::from_value::<Vec<f32>>(answer["data"][i]["embedding"].clone()).unwrap();
        assert_eq!(status, 200, "{answer}");
        (0..texts.len()).map(vector).collect::<Vec<_>>()
    };
    let lengths = [3, 140, 70, 1];
    let alone: Vec<Vec<f32>> = lengths.iter().map(|&n| ask(&[text(n)]).remove(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(ask(&lengths.map(text)), alone));
        }
    });
    let (status, refused) = server.post("/v1/embeddings", &json!({"input": text(161)}));
    assert_eq!((status, &refused["error"]["code"]), (400, &json!("context_length_exceeded")), "{refused}");
}
