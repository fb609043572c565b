//! Random models on several ranks: all divisions give the results of the whole model.

use ixc_ir::graph::interpret::ranks::RankInterpreter;
use ixc_ir::graph::interpret::{Interpreter, SourceError, Value, WeightSource};
use ixc_ir::graph::parse::parse;
use ixc_ir::graph::{Module, WeightId};
use ixc_passes::manager::run_pipeline;
use ixc_passes::pass::Context;
use ixc_passes::shard::{Division, ShardOptions};
use ixc_targets::Target;
use ixc_testing::nmse::nmse;
use ixc_testing::random_graphs::{Formats, random_model};
use std::borrow::Cow;

/// The weights of a rank, which are slices of the whole model's weights.
struct Slices<'a> {
    whole: &'a Module,
    weights: &'a [Vec<u8>],
    module: &'a Module,
}

impl WeightSource for Slices<'_> {
    fn bytes(&self, weight: WeightId) -> Result<Cow<'_, [u8]>, SourceError> {
        let weight = &self.module.weights[weight.index()];
        let shard = weight.choice.shard.as_ref();
        let name = shard.map_or(&weight.name, |shard| &shard.weight);
        let at = self.whole.weights.iter().position(|whole| whole.name == *name).ok_or("no such weight")?;
        match shard {
            None => Ok(Cow::Borrowed(&self.weights[at])),
            Some(shard) => {
                let cut = shard.cut(&weight.shape, weight.stored_format(), &self.weights[at]);
                Ok(Cow::Owned(cut.ok_or("the weight has too few bytes")?))
            }
        }
    }
}

fn divided(module: &Module, options: &ShardOptions) -> Result<Module, String> {
    let context = Context::new(Target::AVX2).with(options);
    run_pipeline(module.clone(), &["canonicalise", "shard"], &context).map_err(|error| error.to_string())
}

fn floats(results: &[Value]) -> Vec<f32> {
    let [Value::F32 { data, .. }] = results else { panic!("{results:?}") };
    data.clone()
}

/// Returns the results of `@step` on rank 0, for a few tokens and then for one more.
fn run(whole: &Module, weights: &[Vec<u8>], modules: &[Module]) -> Vec<f32> {
    let slices: Vec<Slices<'_>> = modules.iter().map(|module| Slices { whole, weights, module }).collect();
    let ranks = modules.iter().zip(&slices).map(|(module, slices)| (module, slices as &dyn WeightSource));
    let mut group = RankInterpreter::new(ranks).unwrap();
    let first = floats(&group.step(&[3, 1, 2], &[0, 1, 2], &[0, 2]).unwrap()[0]);
    let next = floats(&group.step(&[1], &[3], &[0]).unwrap()[0]);
    [first, next].concat()
}

#[test]
fn random_models_on_ranks_give_the_results_of_the_whole() {
    let (mut divided_models, mut refused) = ([0; Division::ALL.len()], 0);
    for seed in 0..24 {
        let m = random_model(seed, if seed % 6 == 0 { Formats::All } else { Formats::F32 });
        let mut interpreter = Interpreter::new(&m.module, &m.weights).unwrap();
        let first = interpreter.step(&[3, 1, 2], &[0, 1, 2], &[0, 2]).unwrap();
        let right = [first, interpreter.step(&[1], &[3], &[0]).unwrap()].concat();
        for (number, by) in Division::ALL.into_iter().enumerate() {
            for ranks in [2, 3] {
                let modules = (0..ranks).map(|rank| divided(&m.module, &ShardOptions { ranks, rank, by }));
                let modules = match modules.collect::<Result<Vec<Module>, String>>() {
                    Ok(modules) => modules,
                    // A model with one dense layer has few points at which it can be divided.
                    Err(error) => {
                        assert!(
                            error.starts_with("function @step cannot be divided among ranks by"),
                            "seed {seed}: {error}"
                        );
                        refused += 1;
                        continue;
                    }
                };
                divided_models[number] += 1;
                let found = run(&m.module, &m.weights, &modules);
                match by {
                    Division::Layers => assert_eq!(found, right, "seed {seed}, {ranks} ranks"),
                    // Sums in another order differ by a relative 2^-24, and norms amplify the
                    // difference.
                    Division::Experts | Division::Tensors => {
                        let error = nmse(&found, &right);
                        assert!(error <= 1e-10, "seed {seed}, {ranks} ranks: {error:e}");
                    }
                }
            }
        }
    }
    assert!(divided_models.iter().all(|&count| count > 4), "{divided_models:?} divided, {refused} refused");
}

/// Checks that bits stay the same if one rank has both experts of a row: the other ranks add 0.
#[test]
fn experts_of_one_rank_give_the_same_bits() {
    let text = "weight @w : f32[4, 3, 2]
func @f(%x: f32[T, 2], %ids: i32[T, 2], %p: f32[T, 2]) -> (f32[T, 3]) {
  %m = dequantise @w
  %y = expert.matmul %x, %ids, %m
  %z = expert.combine %y, %p
  return %z
}";
    let module = parse(text).unwrap();
    let elements = (0..24).map(|i| (i as f32 - 11.0) / 7.0);
    let weights = vec![elements.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()];
    let ids = |data: &[i32]| Value::I32 { dims: vec![2, 2], data: data.to_vec() };
    let pairs = |data: &[f32]| Value::F32 { dims: vec![2, 2], data: data.to_vec() };
    // The first row selects experts of rank 1, and the second row experts of rank 0.
    let args = [pairs(&[0.3, -1.7, 2.1, 0.9]), ids(&[3, 2, 0, 1]), pairs(&[0.7, 0.3, 0.6, 0.4])];
    let right = Interpreter::new(&module, &weights).unwrap().run("f", args.to_vec()).unwrap();
    let of_rank = |rank| divided(&module, &ShardOptions { ranks: 2, rank, by: Division::Experts }).unwrap();
    let modules = [of_rank(0), of_rank(1)];
    let slices = modules.each_ref().map(|of| Slices { whole: &module, weights: &weights, module: of });
    let ranks = modules.iter().zip(&slices).map(|(module, slices)| (module, slices as &dyn WeightSource));
    let found = RankInterpreter::new(ranks).unwrap().run("f", &args).unwrap();
    assert_eq!(found, [right.clone(), right]);
}

/// Checks that chains of ops longer than in any model are divided in nearly linear time, without
/// overflowing the stack.
#[test]
fn long_chains_of_ops_are_divided() {
    let begin = "weight @up : f32[4, 4]
weight @down : f32[4, 4]
func @step(%x: f32[T, 4]) -> (f32[T, 4]) {
  %wu = dequantise @up
  %v0 = matmul %x, %wu
";
    let end = |last: usize| format!("  %wd = dequantise @down\n  %y = matmul %v{last}, %wd\n  return %y\n}}");
    // Each sum adds a value to itself, which doubles the number of paths to the product.
    let sums: String = (0..64).map(|i| format!("  %v{} = add %v{i}, %v{i}\n", i + 1)).collect();
    let chain: String = (0..50_000).map(|i| format!("  %v{} = silu %v{i}\n", i + 1)).collect();
    for (body, last) in [(sums, 64), (chain, 50_000)] {
        let module = parse(&format!("{begin}{body}{}", end(last))).unwrap();
        let part = divided(&module, &ShardOptions { ranks: 2, rank: 1, by: Division::Tensors }).unwrap();
        let names: Vec<(&str, &[u64])> = part.weights.iter().map(|w| (w.name.as_str(), &w.shape[..])).collect();
        assert_eq!(names, [("up", &[2, 4][..]), ("down", &[4, 2])]);
    }
}

/// Checks that each rank computes chains of integers itself, even long chains.
#[test]
fn long_chains_of_integers_are_divided_by_layers() {
    let example = include_str!("ir/shard_layers.ix");
    let (text, _) = example.split_once("// becomes").unwrap();
    let last = "  %p = positions %pos {every = 2, back = false}\n";
    let link = |i: u32, of: &str| format!("  %n{i} = positions {of} {{every = 2, back = false}}\n");
    let links: String = (1..50_000).map(|i| link(i, &format!("%n{}", i - 1))).collect();
    let chain = link(0, "%pos") + &links + &last.replace("%pos", "%n49999");
    let module = parse(&text.replace(last, &chain)).unwrap();
    let part = divided(&module, &ShardOptions { ranks: 2, rank: 1, by: Division::Layers }).unwrap();
    assert!(part.functions[0].ops.len() > 50_000, "{} ops", part.functions[0].ops.len());
}
