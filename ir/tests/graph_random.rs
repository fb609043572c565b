//! Properties of the graph IR that random modules must have. Seeds are fixed, and a failure prints
//! its seed.

use std::collections::BTreeSet;

use ixc_ir::graph::interpret::{InterpretError, Interpreter, Value};
use ixc_ir::graph::number::canonical;
use ixc_ir::graph::op::OPS;
use ixc_ir::graph::parse::parse;
use ixc_ir::graph::verify::verify;
use ixc_ir::graph::{Module, Rewriter};
use ixc_ir::random::Random;
use ixc_testing::random_graphs::{
    Formats, RandomModule, arguments, mutate, mutated_module, random_model, random_module,
};

fn modules() -> impl Iterator<Item = (u64, RandomModule)> {
    let soup = (0..60).map(|seed| (seed, random_module(seed, Formats::All)));
    let f32s = (100..120).map(|seed| (seed, random_module(seed, Formats::F32)));
    let models = (200..220).map(|seed| (seed, random_model(seed, Formats::F32)));
    let quantised = (300..304).map(|seed| (seed, random_model(seed, Formats::All)));
    soup.chain(f32s).chain(models).chain(quantised)
}

#[test]
fn printed_modules_read_back_equal() {
    for (seed, m) in modules() {
        verify(&m.module).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", m.module));
        assert_eq!(canonical(&m.module), m.module, "seed {seed}");
        let text = m.module.to_string();
        let back = parse(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        assert_eq!(back, m.module, "seed {seed}\n{text}");
        assert_eq!(back.to_string(), text, "seed {seed}");
    }
}

#[test]
fn random_modules_cover_every_op() {
    let ops = |m: &RandomModule| m.module.functions[0].ops.iter().map(|op| op.kind).collect::<Vec<_>>();
    let seen: BTreeSet<_> = (0..20).flat_map(|seed| ops(&random_module(seed, Formats::All))).collect();
    // Random groups have one rank, so they have no ops that need a peer.
    let missing: Vec<&str> = OPS.iter().filter(|row| !seen.contains(&row.kind)).map(|row| row.mnemonic).collect();
    assert_eq!(missing, ["send", "recv"]);
}

#[test]
fn every_random_module_can_be_interpreted() {
    let (mut count, mut overflows) = (0, Vec::new());
    for (seed, m) in modules() {
        let name = m.module.functions[0].name.clone();
        let mut interpreter = Interpreter::new(&m.module, &m.weights).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let results = interpreter
            .run(&name, arguments(&m.module, &name, seed))
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", m.module));
        let is_finite = results.iter().all(|value| match value {
            Value::F32 { data, .. } => data.iter().all(|x| x.is_finite()),
            _ => true,
        });
        count += 1;
        overflows.extend((!is_finite).then_some(seed));
    }
    // If another op computes a decay, it may be above 1, and the state may overflow. Few random
    // modules have such a decay, and no model does.
    let text = format!("of {count} modules, the seeds {overflows:?} give results that are not finite");
    assert!(overflows.len() * 16 <= count && overflows.iter().all(|&seed| seed < 200), "{text}");
}

#[test]
fn decoding_token_by_token_gives_the_same_logits_as_all_at_once() {
    for seed in 0..12 {
        let m = random_model(seed, if seed % 4 == 0 { Formats::All } else { Formats::F32 });
        let tokens = [3, 1, 4, 1, 5];
        let positions = [0, 1, 2, 3, 4];
        let all = Interpreter::new(&m.module, &m.weights).unwrap().step(&tokens, &positions, &positions).unwrap();
        let mut interpreter = Interpreter::new(&m.module, &m.weights).unwrap();
        let mut one_by_one = interpreter.step(&tokens[..2], &positions[..2], &[0, 1]).unwrap();
        for i in 2..tokens.len() {
            one_by_one.extend(interpreter.step(&tokens[i..=i], &positions[i..=i], &[0]).unwrap());
        }
        assert_eq!(all, one_by_one, "seed {seed}");
    }
}

#[test]
fn a_broken_module_is_an_error_and_never_a_panic() {
    let mut passed = 0;
    for seed in 0..3000 {
        let m = random_module(seed % 40, Formats::All);
        let mut rng = Random::new(seed);
        let broken = mutate(&m.module, &mut rng);
        // Printing must also work for modules that the verifier rejects.
        let text = broken.to_string();
        if verify(&broken).is_err() {
            continue;
        }
        passed += 1;
        let back = parse(&text).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        assert_eq!(back, canonical(&broken), "seed {seed}");
        let name = &broken.functions[0].name;
        let result = Interpreter::new(&broken, &m.weights)
            .and_then(|mut interpreter| interpreter.run(name, arguments(&m.module, name, seed)));
        match result {
            Ok(_)
            | Err(
                InterpretError::Index { .. }
                | InterpretError::WeightBytes { .. }
                | InterpretError::Weight { .. }
                | InterpretError::Argument { .. },
            ) => {}
            Err(e) => panic!("seed {seed}: {e}\n{text}"),
        }
    }
    assert!(passed > 100, "only {passed} of the changed modules verify: change less");
}

#[test]
fn broken_text_is_an_error_and_never_a_panic() {
    let texts: Vec<String> = (0..10).map(|seed| random_module(seed, Formats::All).module.to_string()).collect();
    let bits = ["%", "@", "{", "}", "[", "]", ",", ":", "=", "-", "->", "\"", "\\u{", "0x", "1e-", "_", "é", ";", "\n"];
    for seed in 0..4000u64 {
        let mut rng = Random::new(seed);
        let mut text = texts[(seed % 10) as usize].clone();
        for _ in 0..=rng.below(3) {
            let mut at = rng.below(text.len() as u64 + 1) as usize;
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            match rng.below(3) {
                0 => text.truncate(at),
                1 => text.insert_str(at, rng.pick(&bits)),
                _ => {
                    if at < text.len() {
                        text.remove(at);
                    }
                }
            }
        }
        if let Ok(module) = parse(&text) {
            assert_eq!(parse(&module.to_string()), Ok(module), "seed {seed}");
        }
    }
}

#[test]
fn rewriting_mutated_functions_fails_or_verifies() {
    let (mut refused, mut kept) = (0, 0);
    for seed in 0..200 {
        let module = mutated_module(seed);
        let functions: Result<Vec<_>, _> =
            module.functions.iter().map(|function| Rewriter::new(&module, function).finish()).collect();
        match functions {
            Err(_) => refused += 1,
            // The verifier reports other damage.
            Ok(functions) => {
                let (before, after) = (verify(&module), verify(&Module { functions, ..module.clone() }));
                assert!(before.is_err() || after.is_ok(), "seed {seed}: {after:?}");
                kept += usize::from(after.is_ok());
            }
        }
    }
    assert!(refused > 0 && kept > 0, "{refused} refused, {kept} kept");
}
