//! `ixc eval`. Its results are compared with results that this test computes from the logits of
//! `ixc logits`. A resumed run is compared with an uninterrupted one. Invalid inputs are refused.

use std::fs;
use std::path::Path;

use crate::support::{demo_model, ixc, list, read_npy, scratch, stderr, stdout};
use ixc::model_files::gguf::Gguf;
use serde_json::Value as Json;

/// A text file that never changes.
const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/LICENSE-APACHE");
const CONTEXT: usize = 48;
const PIECES: usize = 3;

fn eval(arguments: &[&str]) -> Json {
    let context = CONTEXT.to_string();
    let common = ["eval", "demo", "--text", TEXT, "--ctx", &context, "--target", "portable", "-t", "2", "--json"];
    serde_json::from_str(&stdout(ixc([&common[..], arguments].concat()))).unwrap()
}

/// Returns the tokens of a piece of the text; the first token is BOS if the model has one.
fn piece(number: usize) -> Vec<u32> {
    let text = fs::read_to_string(TEXT).unwrap();
    // The text has no newline at its end. Names of special tokens in it are ordinary text.
    let arguments = ["tokenize", "demo", text.trim_end_matches('\n'), "--json", "--no-special"];
    let found: Json = serde_json::from_str(&stdout(ixc(arguments))).unwrap();
    let ids = found["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32);
    ids.skip(number * CONTEXT).take(CONTEXT).collect()
}

/// Returns probabilities of the next token at each position of a piece.
fn probabilities(folder: &Path, tokens: &[u32], arguments: &[&str]) -> Vec<Vec<f64>> {
    let path = folder.join("logits.npy");
    let ids = list(tokens);
    let common = ["logits", "demo", "--tokens", &ids, "-o", path.to_str().unwrap(), "--target", "portable", "-t", "2"];
    stdout(ixc([&common[..], arguments].concat()));
    let (shape, logits) = read_npy(&path);
    let rows = logits.chunks_exact(shape[1]).map(|row| {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        row.iter().map(|&logit| f64::from(logit).exp() / sum).collect()
    });
    rows.collect()
}

#[test]
fn evaluation_figures_match_the_logits() {
    let folder = scratch("eval_figures");
    let changed = ["--weights", "i4_row"];
    let found = eval(&[&changed[..], &["--pieces", "3", "--against", "demo"]].concat());
    let (mut surprise, mut right_surprise, mut divergence, mut same) = (0.0, 0.0, 0.0, 0usize);
    let mut positions = 0usize;
    for number in 0..PIECES {
        let tokens = piece(number);
        let (ours, right) = (probabilities(&folder, &tokens, &changed), probabilities(&folder, &tokens, &[]));
        for at in CONTEXT / 2..CONTEXT - 1 {
            let (next, ours, right) = (tokens[at + 1] as usize, &ours[at], &right[at]);
            surprise -= ours[next].ln();
            right_surprise -= right[next].ln();
            divergence += right.iter().zip(ours).map(|(p, q)| p * (p / q).ln()).sum::<f64>();
            let top = |row: &[f64]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            same += usize::from(top(ours) == top(right));
            positions += 1;
        }
    }
    let near = |found: &Json, wanted: f64| {
        let found = found.as_f64().unwrap();
        assert!((found - wanted).abs() < 1e-5 * wanted.abs(), "{found} is not {wanted}");
    };
    let count = positions as f64;
    assert_eq!(found["positions"], positions);
    near(&found["perplexity"], (surprise / count).exp());
    let against = &found["against"];
    near(&against["perplexity"], (right_surprise / count).exp());
    near(&against["divergence"]["mean"], divergence / count);
    near(&against["same"]["mean"], same as f64 / count);
    near(&against["log_ratio"]["mean"], (surprise - right_surprise) / count);
    // Four-bit weights cause a measurable divergence.
    assert!(divergence / count > 1e-3 && against["divergence_99"].as_f64() > against["divergence"]["mean"].as_f64());
}

#[test]
fn a_model_against_itself_does_not_differ() {
    let found = eval(&["--pieces", "2", "--against", "demo"]);
    let against = &found["against"];
    assert_eq!((&against["divergence_max"], &against["same"]["mean"]), (&0.0.into(), &1.0.into()));
    assert_eq!(against["perplexity"], found["perplexity"]);
}

#[test]
fn an_interrupted_run_goes_on_and_gives_the_same() {
    let folder = scratch("eval_record");
    let (whole, part) = (folder.join("whole.jsonl"), folder.join("part.jsonl"));
    let (whole_path, part_path) = (whole.to_str().unwrap(), part.to_str().unwrap());
    let without_time = |mut found: Json| {
        found.as_object_mut().unwrap().remove("seconds");
        found
    };
    let wanted = without_time(eval(&["--pieces", "3", "--against", "demo", "-o", whole_path]));
    let bytes = fs::read(&whole).unwrap();
    assert_eq!(bytes.iter().filter(|&&byte| byte == b'\n').count(), 1 + PIECES);
    // Records of three runs that were killed: while the second piece was written, after the first
    // line, and while the first line was written.
    let lines: Vec<usize> = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    for end in [lines[1] + 7, lines[0], 5] {
        fs::write(&part, &bytes[..end]).unwrap();
        // A file that does not begin like a record is replaced only with `--force`.
        let force: &[&str] = if end == 5 { &["--force"] } else { &[] };
        let arguments = [&["--pieces", "3", "--against", "demo", "-o", part_path], force].concat();
        assert_eq!(without_time(eval(&arguments)), wanted);
        assert_eq!(fs::read(&part).unwrap(), bytes);
    }
    // With a complete record, no work is needed. Results for fewer pieces can also be requested.
    assert_eq!(without_time(eval(&["--pieces", "3", "--against", "demo", "-o", whole_path])), wanted);
    assert_eq!(eval(&["--pieces", "1", "--against", "demo", "-o", whole_path])["positions"], CONTEXT / 2 - 1);
    assert_eq!(fs::read(&whole).unwrap(), bytes);
}

#[test]
fn invalid_evaluations_are_refused() {
    let folder = scratch("eval_refused");
    let refused = |arguments: &[&str], status: i32, words: &[&str]| {
        let output = ixc([&["eval", "demo", "--target", "portable"], arguments].concat()).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{said}");
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
    };
    let short = folder.join("short.txt");
    fs::write(&short, "Too short.").unwrap();
    refused(&["--text", short.to_str().unwrap()], 65, &["has", "tokens", "512", "--ctx"]);
    refused(&["--text", TEXT, "--ctx", "100000"], 2, &["100000"]);
    refused(&["--text", TEXT, "--ctx", "2"], 2, &["a number of at least 3"]);
    refused(&["--text", TEXT, "--pieces", "0"], 65, &["nothing to score"]);
    let record = folder.join("record.jsonl");
    let path = record.to_str().unwrap();
    eval(&["--pieces", "1", "-o", path]);
    let same = ["--text", TEXT, "--pieces", "1", "-o", path];
    // These evaluations differ in the context, in the compared model, or in the weights.
    refused(&[&same[..], &["--ctx", "40"]].concat(), 2, &["a different evaluation", "context", "48", "40", "--force"]);
    let context = CONTEXT.to_string();
    let context = ["--ctx", &context];
    refused(&[&same[..], &context, &["--against", "demo"]].concat(), 2, &["a different evaluation", "against"]);
    refused(&[&same[..], &context, &["--weights", "i8_row"]].concat(), 2, &["a different evaluation", "options"]);
    // These records have invalid numbers, or more pieces than the text has.
    let text = fs::read_to_string(&record).unwrap();
    let (header, piece) = text.split_once('\n').unwrap();
    for (lines, words) in [
        (format!("{header}\n{{\"surprise\":[1.0]}}\n"), ["line 2", "no checksum"]),
        (format!("{header}\n{piece}nonsense\n"), ["line 3", "not a piece"]),
        (format!("{header}\n{}", piece.replacen("[", "[-900.5,", 1)), ["line 2", "damaged"]),
        (format!("{header}\n{piece}{piece}"), ["line 3", "damaged"]),
        (format!("{}\n{piece}", header.replacen("portable", "avx2", 1)), ["line 1", "damaged"]),
        (format!("{header}\n{}", piece.repeat(10_000)), ["line 1", "more than"]),
    ] {
        fs::write(&record, lines).unwrap();
        refused(&[&same[..], &context].concat(), 65, &words);
    }
    // These cases are a record of an older version, and a model whose bytes changed while its
    // length and time stayed the same.
    fs::write(&record, header.replacen("record.v2", "record.v1", 1) + "\n").unwrap();
    refused(&[&same[..], &context].concat(), 2, &["a different evaluation", "schema", "--force"]);
    let other = folder.join("other.txt");
    fs::write(&other, "Mine.").unwrap();
    refused(&[&same[..4], &["-o", other.to_str().unwrap()]].concat(), 2, &["--force"]);
    assert_eq!(fs::read_to_string(&other).unwrap(), "Mine.");
}

/// Checks an importance matrix. The first layer's rows are the normed rows of the embedding table.
/// The test sums their squares in f64, and counts the use of the experts. Streamed experts give the
/// same file.
#[test]
fn importance_matrix_sums_squares_of_multiplied_rows() {
    let folder = scratch("eval_imatrix");
    let path = folder.join("imatrix.gguf");
    let model = demo_model();
    let write = |path: &Path, more: &[&str]| {
        let arguments =
            ["--text", TEXT, "--ctx", "48", "--pieces", "3", "--target", "portable", "-t", "2", "--imatrix"];
        let mut command = ixc(["eval"]);
        command.arg(&model).args(arguments).arg(path).args(more);
        command.output().unwrap()
    };
    assert!(write(&path, &[]).status.success());
    let (found, model) = (Gguf::open(&path).unwrap(), Gguf::open(&model).unwrap());
    let floats = |gguf: &Gguf, name: &str| -> Vec<f64> {
        let tensor = gguf.require_tensor(name).unwrap();
        let (format, columns) = (gguf.require_format(tensor).unwrap(), tensor.dims()[0] as usize);
        format.dequantise_rows(&gguf.tensor_data(tensor), columns).into_iter().map(f64::from).collect()
    };
    let (table, norm) = (floats(&model, "token_embd.weight"), floats(&model, "blk.0.attn_norm.weight"));
    let columns = norm.len();
    let mut sums = vec![0.0; columns];
    for id in (0..PIECES).flat_map(piece) {
        let row = &table[id as usize * columns..][..columns];
        let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / columns as f64 + 1e-6);
        sums.iter_mut().zip(row.iter().zip(&norm)).for_each(|(sum, (x, w))| *sum += x * x * scale * w * w);
    }
    let counted = floats(&found, "blk.0.attn_q.weight.counts");
    assert_eq!(counted, [(PIECES * CONTEXT) as f64]);
    let size = sums.iter().copied().fold(0.0, f64::max);
    for (found, wanted) in floats(&found, "blk.0.attn_q.weight.in_sum2").iter().zip(&sums) {
        // Rows are rounded to eight bits before they are multiplied.
        assert!((found - wanted).abs() < 0.02 * wanted + 1e-4 * size, "{found} is not {wanted}");
    }
    for part in ["gate", "up", "down"] {
        let counts = floats(&found, &format!("blk.3.ffn_{part}_exps.weight.counts"));
        assert_eq!((counts.len(), counts.iter().sum::<f64>()), (16, (2 * PIECES * CONTEXT) as f64));
    }
    let refused = write(&folder.join("streamed.gguf"), &["--memory", "1MiB"]);
    let least = stderr(&refused).split("experts, and ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let least = least.parse::<u64>().unwrap() + 2;
    let streamed = folder.join("streamed.gguf");
    assert!(write(&streamed, &["--memory", &format!("{least}MiB")]).status.success());
    assert!(fs::read(&streamed).unwrap() == fs::read(&path).unwrap(), "other bits");
    // `ixc quantise` reads the written file, and the file does not replace a model.
    let quantised = folder.join("q2.gguf");
    let mut command = ixc(["quantise"]);
    command.arg(demo_model()).args(["Q2_K", "--allow-requantize", "--imatrix"]).arg(&path).arg("-o").arg(&quantised);
    stdout(command);
    let refused = write(&quantised, &[]);
    assert!(!refused.status.success() && stderr(&refused).contains("importance matrix"), "{}", stderr(&refused));
}
