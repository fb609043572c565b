//! Graphs of several ranks: interpreted together, they give the logits of the whole model.

use std::path::PathBuf;

use crate::support::{demo_model, ixc, shared, stderr, stdout};
use ixc::architectures::FileWeights;
use ixc::ir::graph::Module;
use ixc::ir::graph::interpret::ranks::RankInterpreter;
use ixc::ir::graph::interpret::{Interpreter, Value, WeightSource};
use ixc::model::Model;
use ixc::passes::manager;
use ixc::passes::pass::Context;
use ixc::passes::shard::{Division, Options};
use ixc::targets::Target;
use ixc_testing::nmse::nmse;

/// Rows of the first step, and of two more steps.
const STEPS: [usize; 3] = [5, 1, 2];

/// Bound of the error of sums in another order. An f32 sum of a few parts is off by 2^-24 of it,
/// and a few layers of norms enlarge the error by less than 1000.
const BOUND: f64 = 1e-10;

/// Bound of the error after `fuse`, which rounds activations to 8 bits. A sum in another order can
/// round an activation to the next step, which is 1/127 of the largest of its block.
const FUSED_BOUND: f64 = 1e-5;

/// Returns the demo model and the golden models with experts, latent attention or a delta net.
fn models() -> Vec<PathBuf> {
    let names = ["mixtral", "qwen3moe", "deepseek2", "qwen3next"];
    let golden = names.iter().filter_map(|name| shared(&format!("golden/models/{name}-q4_k_m.gguf")));
    [demo_model()].into_iter().chain(golden).collect()
}

/// Returns the graph of a rank, before and after `fuse`.
fn graph(model: &Model, options: &Options, passes: &[&str]) -> Module {
    let context = Context::new(Target::AVX2).with(options);
    manager::run_pipeline(model.arch.module.clone(), passes, &context).unwrap()
}

/// Returns the arguments of each step: token ids, positions and output rows.
fn steps(vocabulary: u32) -> Vec<[Vec<u32>; 3]> {
    let mut before = 0;
    let step = |rows: usize| {
        let positions: Vec<u32> = (before..).take(rows).collect();
        before += rows as u32;
        let ids = positions.iter().map(|i| (i * i * 7 + i * 3 + 1) % vocabulary).collect();
        [ids, positions, (0..rows as u32).collect()]
    };
    STEPS.map(step).into()
}

/// Returns the logits that the interpreted ranks return. All ranks that return any must agree.
fn logits(model: &Model, modules: &[Module], steps: &[[Vec<u32>; 3]]) -> Vec<f32> {
    let weights: Vec<FileWeights<'_>> = modules.iter().map(|module| FileWeights::new(&model.gguf, module)).collect();
    let ranks = modules.iter().zip(&weights).map(|(module, weights)| (module, weights as &dyn WeightSource));
    let mut group = RankInterpreter::new(ranks).unwrap();
    let mut logits = Vec::new();
    for [ids, positions, rows] in steps {
        let mut results = group.step(ids, positions, rows).unwrap();
        let first = results.remove(0);
        assert!(results.iter().all(|other| other.is_empty() || *other == first), "the ranks return other logits");
        let [Value::F32 { data, .. }] = &first[..] else { panic!("rank 0 returns {first:?}") };
        logits.extend(data);
    }
    logits
}

#[test]
fn ranks_together_give_the_logits_of_the_whole_model() {
    for path in models() {
        let model = Model::open(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy();
        let steps = steps(model.arch.hyper.vocabulary as u32);
        for passes in [&["canonicalise", "shard"][..], &["canonicalise", "shard", "fuse"]] {
            let whole = graph(&model, &Options::default(), passes);
            let weights = FileWeights::new(&model.gguf, &whole);
            let mut interpreter = Interpreter::new(&whole, &weights).unwrap();
            let run = |[ids, positions, rows]: &[Vec<u32>; 3]| interpreter.step(ids, positions, rows).unwrap();
            let right: Vec<f32> = steps.iter().flat_map(run).collect();
            for (ranks, by) in [2, 4].into_iter().flat_map(|ranks| Division::ALL.map(|by| (ranks, by))) {
                // Each rank needs a layer.
                if by == Division::Layers && model.arch.hyper.layers.len() < ranks as usize {
                    continue;
                }
                let of_rank = |rank| graph(&model, &Options { ranks, rank, by }, passes);
                let modules: Vec<Module> = (0..ranks).map(of_rank).collect();
                let found = logits(&model, &modules, &steps);
                let error = nmse(&found, &right);
                println!("{name}, {ranks} ranks by {}, {} passes: {error:.1e}", by.word(), passes.len());
                match by {
                    // A range of layers adds in the order of the whole graph.
                    Division::Layers => assert!(found == right, "{name} {ranks}: {error:e}"),
                    Division::Experts | Division::Tensors => {
                        let bound = if passes.contains(&"fuse") { FUSED_BOUND } else { BOUND };
                        assert!(error <= bound, "{name} {ranks}: {error:e}");
                    }
                }
                let elements = |module: &Module| -> u64 {
                    module.weights.iter().map(|weight| weight.shape.iter().product::<u64>()).sum()
                };
                let all = elements(&whole);
                assert!(modules.iter().all(|module| elements(module) < all), "{name}: a rank has all weights");
            }
        }
    }
}

#[test]
fn dump_prints_the_graph_of_a_rank_and_plans_are_refused() {
    let set = ["--set", "shard.ranks=2", "--set", "shard.rank=1", "--set", "shard.by=experts"];
    let of_rank = stdout(ixc(["dump", "--after", "shard"].iter().chain(&set)));
    assert!(of_rank.contains("ranks.begin {rank = 1, ranks = 2} : token[1, 2]"), "{of_rank}");
    assert!(
        of_rank.contains("shard = \"blk.0.ffn_up_exps.weight\", dim = 0, of = 16, ranges = \"8..16\""),
        "{of_rank}"
    );
    let output = ixc(["dump", "--stage", "plan"].iter().chain(&set)).output().unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("plans for several ranks do not exist yet"), "{}", stderr(&output));
}
