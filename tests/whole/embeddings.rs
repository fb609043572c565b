//! Embeddings. Hidden states of golden models are compared with the interpreter's, and the vector
//! of a single text with its vector in a batch. The command and the server are tested, too.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::cover::cover;
use crate::support::made::{BASE, Key, ModelParameters};
use crate::support::server::Server;
use crate::support::{Golden, demo_model, ixc, read_npy, scratch, stderr, stdout};
use ixc::architectures::Parts;
use ixc::compile::CompileOptions;
use ixc::embedding::{Embedder, cut};
use ixc::ir::plan::Pooling;
use ixc::loaded_model::{LoadOptions, LoadedModel};
use ixc::model::Model;
use ixc::runtime::engine;
use ixc::targets::Target;
use ixc_testing::nmse::nmse;

const HEADLESS: Parts = Parts { head: false, ..Parts::ALL };

/// Loads a model that returns hidden states.
fn open(model: &Path, target: Target, sequences: u32) -> LoadedModel {
    open_within(model, target, sequences, None)
}

/// Loads a model with a given context length. For some models, rotary embeddings change if the
/// context is longer than in training.
fn open_within(model: &Path, target: Target, sequences: u32, context: Option<u64>) -> LoadedModel {
    let compile = CompileOptions { target: Some(target), ..CompileOptions::default() };
    let run = engine::EngineOptions { threads: Some(2), sequences, context, ..engine::EngineOptions::default() };
    let options = LoadOptions { compile, run, embeddings: true, ..LoadOptions::default() };
    LoadedModel::open(Some(model), &options).unwrap_or_else(|error| panic!("{}: {error}", model.display()))
}

/// Returns a target that this machine can run.
fn target() -> Target {
    [Target::AVX512, Target::AVX2, Target::PORTABLE].into_iter().find(|target| target.missing().is_empty()).unwrap()
}

/// Returns the vector that a pooling makes of rows `[tokens, width]`.
fn pooled(rows: &[f32], width: usize, pooling: Pooling) -> Vec<f32> {
    let rows: Vec<&[f32]> = rows.chunks(width).collect();
    let sum = |column: usize| match pooling {
        Pooling::Mean => rows.iter().map(|row| f64::from(row[column])).sum::<f64>(),
        Pooling::First => rows[0][column].into(),
        Pooling::Last => rows[rows.len() - 1][column].into(),
    };
    let sums: Vec<f64> = (0..width).map(sum).collect();
    let length = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
    sums.iter().map(|x| (x / length) as f32).collect()
}

/// Checks that a plan without the output matrix gives the interpreter's hidden states of the same
/// graph, within the limit for logits. Vectors are computed from these hidden states.
#[test]
fn hidden_states_of_golden_models_keep_the_limits_of_logits() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let models = Golden::all(&all);
    for (number, golden) in cover(&models, target()).into_iter().enumerate() {
        let (tokens, name) = (golden.tokens("prompt_tokens"), golden.name());
        let model = Model::open_parts(&golden.model, HEADLESS).unwrap();
        let exact = model.exact_logits(&tokens).unwrap();
        let within = || open_within(&golden.model, target(), 1, Some(tokens.len() as u64));
        let mut session = within();
        let width = model.arch.hyper.embedding_length as usize;
        assert_eq!((session.engine().output_width() as usize, exact.len()), (width, tokens.len() * width), "{name}");
        let found = session.logits(&tokens).unwrap();
        // The limit applies to the last positions.
        let rows = golden.exact.len() / model.arch.hyper.vocabulary as usize;
        let last = |all: &[f32]| all[all.len() - rows * width..].to_vec();
        // The limit in the file is for logits. Each logit is a sum over hidden states, so the error
        // of hidden states may be larger. Twice the limit is allowed.
        let (error, limit) = (nmse(&last(&found), &last(&exact)), 2.0 * golden.number("compiled_nmse_max"));
        println!("{error:.2e} <= {limit:.0e}  {name}");
        assert!(error <= limit, "{error:e} > {limit:e}  {name}");
        let (way, pooling) = Pooling::ALL[number % Pooling::ALL.len()];
        let mut embedder = Embedder::new(within(), Some(pooling)).unwrap();
        let vector = embedder.embed(vec![tokens.clone()]).unwrap().remove(0);
        // With float weights, products for few rows and for many rows sum in different orders. The
        // sums differ only by f32 rounding.
        let error = nmse(&vector, &pooled(&found, width, pooling));
        assert!(error <= 1e-11, "{error:e}  {name}, {way}");
    }
}

/// Checks that texts that are computed together have the same bits as each text alone. Long texts
/// take several steps.
#[test]
fn a_text_has_the_same_vector_alone_and_among_others() {
    let path = demo_model();
    let text = |length: u32, step: u32| (0..length).map(|i| (i * step + 7) % 4096).collect::<Vec<u32>>();
    let texts = [text(1, 3), text(700, 5), text(33, 7), text(1200, 11), text(64, 13), text(5, 17), text(512, 19)];
    for pooling in Pooling::ALL.map(|(_, pooling)| pooling) {
        let mut alone = Embedder::new(open(&path, target(), 1), Some(pooling)).unwrap();
        let expected: Vec<Vec<f32>> =
            texts.iter().map(|tokens| alone.embed(vec![tokens.clone()]).unwrap().remove(0)).collect();
        let mut together = Embedder::new(open(&path, target(), 3), Some(pooling)).unwrap();
        assert_eq!(together.embed(texts.to_vec()).unwrap(), expected, "{pooling:?}");
        // A refused request adds nothing to the queue.
        assert!(together.embed(vec![texts[0].clone(), vec![4096]]).is_err() && together.is_idle());
        assert!(together.embed(vec![vec![]]).is_err() && together.embed(vec![text(5000, 1)]).is_err());
        assert_eq!(together.embed(vec![texts[2].clone()]).unwrap()[0], expected[2]);
        let length: f64 = expected[1].iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        assert!((length - 1.0).abs() < 1e-5);
    }
}

/// Checks steps that have fewer tokens than a part of a text usually has.
#[test]
fn embedding_with_short_steps_terminates() {
    let compile = CompileOptions { max_tokens: Some(5), target: Some(target()), ..CompileOptions::default() };
    let run = engine::EngineOptions { threads: Some(1), sequences: 2, ..engine::EngineOptions::default() };
    let options = LoadOptions { compile, run, embeddings: true, ..LoadOptions::default() };
    let tokens: Vec<u32> = (0..23).collect();
    for (_, pooling) in Pooling::ALL {
        let mut short = Embedder::new(LoadedModel::open(None, &options).unwrap(), Some(pooling)).unwrap();
        let mut long = Embedder::new(open(&demo_model(), target(), 1), Some(pooling)).unwrap();
        let found = short.embed(vec![tokens.clone(), tokens[..3].to_vec()]).unwrap();
        let right = long.embed(vec![tokens.clone(), tokens[..3].to_vec()]).unwrap();
        assert!(found.iter().zip(&right).all(|(found, right)| nmse(found, right) < 1e-4), "{pooling:?}");
    }
}

#[test]
fn embed_command_prints_embeddings_of_texts() {
    let folder = scratch("embed");
    let texts = ["-p", "The borrow checker", "-p", "A trait"];
    let json = |more: &[&str]| -> Value {
        serde_json::from_str(&stdout(ixc(["embed", "-t", "2"].iter().chain(&texts).chain(more)))).unwrap()
    };
    let all = json(&[]);
    assert_eq!((&all["schema"], &all["pooling"]), (&json!("ixc.embed.v1"), &json!("last")));
    let vectors = |value: &Value| -> Vec<Vec<f32>> { serde_json::from_value(value["embeddings"].clone()).unwrap() };
    let whole = vectors(&all);
    assert_eq!((whole.len(), whole[0].len()), (2, all["dimensions"].as_u64().unwrap() as usize));
    assert_ne!(whole[0], whole[1]);
    // The same numbers come from a NumPy file, with a plan, and with an input file.
    let (out, text, plan) = (folder.join("out.npy"), folder.join("text.txt"), folder.join("plan.ixp"));
    fs::write(&text, "A trait\n").unwrap();
    let mut compile = ixc(["compile", "--embeddings"]);
    compile.arg(demo_model()).arg("-o").arg(&plan);
    stdout(compile);
    let mut command = ixc(["embed", "-t", "1", "-p", "The borrow checker", "-f"]);
    command.arg(&text).arg("-o").arg(&out).arg(&plan);
    stdout(command);
    assert_eq!(read_npy(&out), (vec![2, whole[0].len()], whole.concat()));
    assert_eq!(vectors(&json(&["--dimensions", "8"]))[1], cut(&whole[1], 8));
    assert_ne!(vectors(&json(&["--pooling", "mean"])), whole);

    // A plan returns either logits or hidden states, as it was compiled.
    let refused = ixc(["run", "-p", "x"]).arg(&plan).output().unwrap();
    assert!(refused.status.code() == Some(65) && stderr(&refused).contains("returns hidden states and no logits"));
    let logits = folder.join("logits.ixp");
    let mut compile = ixc(["compile", "--no-weights"]);
    compile.arg(demo_model()).arg("-o").arg(&logits);
    stdout(compile);
    let refused = ixc(["embed", "-p", "x"]).arg(&logits).output().unwrap();
    let message = stderr(&refused);
    assert!(refused.status.code() == Some(65) && message.contains("`ixc compile --embeddings`"), "{message}");
    for wrong in [&["embed"][..], &["embed", "-p", ""], &["embed", "-p", "x", "--dimensions", "100000"]] {
        assert_eq!(ixc(wrong).output().unwrap().status.code(), Some(65), "{wrong:?}");
    }
}

#[test]
fn embedding_server_serves_only_embeddings() {
    let server = Server::start(&["--embeddings", "--parallel", "3", "--alias", "vectors", "--api-key", "one"]);
    let post = |path: &str, body: &Value| {
        let (status, text) = server.ask("POST", path, "x-api-key: one\r\n", &body.to_string());
        (status, serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    };
    let embed = |body: Value| post("/v1/embeddings", &body);
    let vector = |answer: &Value, index: usize| -> Vec<f32> {
        assert_eq!(
            (&answer["data"][index]["object"], &answer["data"][index]["index"]),
            (&json!("embedding"), &json!(index))
        );
        serde_json::from_value(answer["data"][index]["embedding"].clone()).unwrap()
    };
    let (status, answer) = embed(json!({"input": ["The borrow checker", "A trait"], "model": "any", "user": "x"}));
    assert_eq!((status, &answer["object"], &answer["model"]), (200, &json!("list"), &json!("vectors")), "{answer}");
    let cli: Value =
        serde_json::from_str(&stdout(ixc(["embed", "-t", "2", "-p", "The borrow checker", "-p", "A trait"]))).unwrap();
    let expected: Vec<Vec<f32>> = serde_json::from_value(cli["embeddings"].clone()).unwrap();
    assert_eq!([vector(&answer, 0), vector(&answer, 1)], [expected[0].clone(), expected[1].clone()]);
    let tokens: u64 = cli["tokens"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(answer["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));

    // The requests have one text, tokens, vectors as base64, and fewer dimensions.
    assert_eq!(vector(&embed(json!({"input": "A trait"})).1, 0), expected[1]);
    let text = stdout(ixc(["tokenize", "-p", "A trait", "--json"]));
    let ids: Vec<u32> = serde_json::from_value(serde_json::from_str::<Value>(&text).unwrap()["ids"].clone()).unwrap();
    for input in [json!(ids), json!([ids])] {
        assert_eq!(vector(&embed(json!({"input": input})).1, 0), expected[1]);
    }
    let (_, bytes) = embed(json!({"input": "A trait", "encoding_format": "base64"}));
    let text = bytes["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(text.len(), (4 * expected[1].len()).div_ceil(3) * 4);
    assert_eq!(vector(&embed(json!({"input": "A trait", "dimensions": 8})).1, 0), cut(&expected[1], 8));

    // Simultaneous requests give the vectors of single requests.
    std::thread::scope(|scope| {
        for (i, expected) in expected.iter().cycle().take(6).enumerate() {
            let (embed, vector) = (&embed, &vector);
            scope.spawn(move || {
                let text = ["The borrow checker", "A trait"][i % 2];
                let (status, answer) = embed(json!({"input": vec![text; i + 1]}));
                assert_eq!((status, &vector(&answer, i)), (200, expected));
            });
        }
    });

    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ["a", ""]}), "input"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": 100_000}), "dimensions"),
    ] {
        let (status, answer) = embed(body.clone());
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{body}: {answer}");
    }
    assert_eq!(embed(json!({"input": [9_999_999]})).0, 400);
    let (status, long) = embed(json!({"input": vec![1; 5000]}));
    assert_eq!((status, &long["error"]["code"]), (400, &json!("context_length_exceeded")));
    for (path, body, expected) in [
        ("/v1/completions", json!({"prompt": "x"}), 400),
        ("/completion", json!({"prompt": "x"}), 400),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "x"}]}), 400),
        ("/slots/0?action=erase", json!({}), 501),
    ] {
        let (status, answer) = post(path, &body);
        assert_eq!(status, expected, "{path}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(expected == 501 || message.contains("vectors returns embeddings"), "{path}: {answer}");
    }
    let (_, models) = server.ask("GET", "/v1/models", "x-api-key: one\r\n", "");
    assert!(models.contains(&format!("\"n_embd\":{}", expected[0].len())), "{models}");
    assert_eq!(server.ask("POST", "/v1/embeddings", "", "{}").0, 401);
    // A server that generates text returns no vectors.
    let other = Server::start(&[]);
    let (status, refused) = other.post("/v1/embeddings", &json!({"input": "x"}));
    assert!(status == 400 && refused["error"]["message"].as_str().unwrap().contains("--embeddings"), "{refused}");
}

/// Checks that `pooling_type` in a file selects the pooling of a text's rows, by llama.cpp's
/// numbers. The default for text models is the last row.
#[test]
fn pooling_type_is_read_from_the_file() {
    let folder = scratch("embed_pooling");
    let made = |key: Option<u32>, tied: bool| {
        let keys = key.map(|number| ("pooling_type", Key::U32(number))).into_iter().collect();
        let path = folder.join(format!("{key:?}-{tied}.gguf"));
        fs::write(&path, ModelParameters { keys, tied, ..BASE }.file()).unwrap();
        path
    };
    for tied in [false, true] {
        for (key, pooling) in [
            (None, Pooling::Last),
            (Some(0), Pooling::Last),
            (Some(1), Pooling::Mean),
            (Some(2), Pooling::First),
            (Some(3), Pooling::Last),
        ] {
            let path = made(key, tied);
            let mut embedder = Embedder::new(open(&path, target(), 1), None).unwrap();
            assert_eq!(embedder.pooling(), pooling, "{key:?}");
            let asked = Embedder::new(open(&path, target(), 1), Some(Pooling::First)).unwrap();
            assert_eq!(asked.pooling(), Pooling::First);
            assert_eq!(embedder.embed(vec![vec![1, 2, 3]]).unwrap()[0].len(), BASE.width as usize);
        }
    }
    let reranker = made(Some(4), false);
    let error = Model::open_parts(&reranker, HEADLESS).unwrap_err().to_string();
    assert!(error.contains("\"llama.pooling_type\" is 4") && error.contains("0 to 3"), "{error}");
    Model::open(&reranker).unwrap();
}
