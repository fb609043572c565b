//! Golden models: the graphs that the architectures build, interpreted, against logits that other people's tools computed.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use ixc_frontend::arch::{self, ARCHITECTURES, FileWeights};
use ixc_frontend::gguf::Gguf;
use ixc_ir::graph::interpret::Interpreter;
use serde_json::Value as Json;
use support::shared;

/// Shape and data of a little-endian f32 `.npy` file of version 1 in row-major order.
fn read_npy(path: &Path) -> (Vec<usize>, Vec<f32>) {
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

/// Sum of squared differences over sum of squares of `exact`.
fn nmse(found: &[f32], exact: &[f32]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let sum = |terms: &mut dyn Iterator<Item = f64>| terms.sum::<f64>();
    let error = sum(&mut found.iter().zip(exact).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)));
    error / sum(&mut exact.iter().map(|&b| f64::from(b).powi(2)))
}

fn numbers(expect: &Json, key: &str) -> Vec<u32> {
    expect[key].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect()
}

/// The last 8 rows of logits, the prompt fed in steps that end before each of `cuts`.
fn last_logits(path: &Path, tokens: &[u32], cuts: &[usize]) -> Vec<f32> {
    let gguf = Gguf::open(path).unwrap();
    let model = arch::build(&gguf).unwrap();
    let weights = FileWeights::new(&gguf, &model.module);
    let mut interpreter = Interpreter::new(&model.module, &weights).unwrap();
    let (mut start, mut logits) = (0, Vec::new());
    for &end in cuts.iter().chain([&tokens.len()]) {
        let positions: Vec<u32> = (start as u32..end as u32).collect();
        let wanted: Vec<u32> = (start..end).filter(|i| i + 8 >= tokens.len()).map(|i| (i - start) as u32).collect();
        logits.extend(interpreter.step(&tokens[start..end], &positions, &wanted).unwrap());
        start = end;
    }
    logits
}

/// The expectations in `folder` for models that can be built.
fn cases(folder: &Path) -> Vec<(PathBuf, Json)> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut cases = Vec::new();
    for path in paths {
        let expect: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let model = folder.parent().unwrap().join(expect["model"].as_str().unwrap());
        let gguf = Gguf::open(&model).unwrap();
        let known = ARCHITECTURES.iter().any(|row| Some(row.name) == expect["architecture"].as_str());
        match gguf.tensors().try_for_each(|tensor| gguf.require_format(tensor).map(drop)) {
            Ok(()) if known => cases.push((model, expect)),
            Ok(()) => println!("not supported: {}", expect["architecture"]),
            Err(error) => println!("not supported: {error}"),
        }
    }
    cases
}

fn check(folder: &Path, cuts: &[usize]) -> usize {
    let cases = cases(folder);
    for (model, expect) in &cases {
        let (_, exact) = read_npy(&folder.parent().unwrap().join(expect["logits"].as_str().unwrap()));
        let found = last_logits(model, &numbers(expect, "prompt_tokens"), cuts);
        let (nmse, limit) = (nmse(&found, &exact), expect["interpreter_nmse_max"].as_f64().unwrap());
        println!("{nmse:.2e} <= {limit:.0e}  {}", expect["model"]);
        assert!(nmse <= limit, "{nmse} > {limit} {}", expect["model"]);
    }
    cases.len()
}

#[test]
fn interpreted_logits_are_exact() {
    let Some(golden) = shared("golden") else { return };
    assert!(check(&golden.join("expect"), &[]) >= 12);
}

#[test]
fn the_demo_model_is_exact_in_one_step_and_in_many() {
    let Some(golden) = shared("golden") else { return };
    assert_eq!(check(&golden.join("demo/expect"), &[]), 1);
    check(&golden.join("demo/expect"), &[1, 13, 26, 27]);
}
