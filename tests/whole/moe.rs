//! A model's routed experts as an operator. Results of a layer are computed with all experts, with
//! parts of the experts, and with streamed experts. Invalid inputs are refused.

use std::path::Path;
use std::process::Command;

use ixc::GenerationError as Error;
use ixc::architectures::FileWeights;
use ixc::compile::{CompileOptions, compile};
use ixc::ir::graph::interpret::{Interpreter, Value};
use ixc::ir::graph::{Function, Module, OpKind, OpView, ValueId, expert_layers, view};
use ixc::ir::kernel::Kernel;
use ixc::ir::plan::{BucketId, BufferId, Output, Plan, RowAxis, State, Step};
use ixc::ir::random::Random;
use ixc::loaded_model::{LoadOptions, LoadedModel};
use ixc::model::Model;
use ixc::moe::{Layer, Moe, MoeOptions, Rows};
use ixc::runtime::engine;
use ixc::runtime::expert_layers::ExpertLayers;
use ixc::runtime::load::LoadError;
use ixc::targets::Target;

use crate::support::engines::{bits, native};
use crate::support::{Golden, shared, stderr};

/// Returns golden models whose layers have routed experts, except models whose layers have experts
/// of two different sizes.
fn models() -> impl Iterator<Item = (Golden, Model)> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let all = [Some(own), shared("golden")].into_iter().flatten().flat_map(|folder| Golden::all(&folder));
    all.filter_map(|golden| {
        let model = Model::open(&golden.model).unwrap();
        let (layers, step) = (&model.arch.hyper.layers, &model.arch.module.functions[0]);
        let has_groups = step.ops.iter().any(|op| op.kind == OpKind::ExpertGroups);
        let is_cut = layers.iter().any(|layer| layer.experts.is_some()) && !has_groups;
        is_cut.then_some((golden, model))
    })
}

fn options(target: Target) -> MoeOptions {
    MoeOptions {
        compile: CompileOptions { target: Some(target), ..CompileOptions::default() },
        run: engine::EngineOptions { threads: Some(2), backend: native(target), ..engine::EngineOptions::default() },
    }
}

/// Inputs and weights of a layer's call.
struct Call {
    rows: Vec<f32>,
    ids: Vec<i32>,
    weights: Vec<f32>,
}

impl Call {
    fn random(layer: &Layer, rows: usize, random: &mut Random) -> Call {
        let number = |random: &mut Random| random.index(2001) as f32 / 1000.0 - 1.0;
        let (width, used) = (layer.width as usize, layer.used as usize);
        let mut ids = Vec::new();
        for _ in 0..rows {
            let mut left: Vec<i32> = (0..layer.experts as i32).collect();
            ids.extend((0..used).map(|_| left.swap_remove(random.index(left.len()))));
        }
        Call {
            rows: (0..rows * width).map(|_| number(random)).collect(),
            ids,
            weights: (0..rows * used).map(|_| number(random)).collect(),
        }
    }

    fn run(&self, moe: &Moe, layer: &Layer) -> Vec<f32> {
        moe.submit(layer.number, Rows::F32(&self.rows), &self.ids, &self.weights).unwrap().wait().unwrap()
    }

    /// Returns the call restricted to the experts `first..first + count`. Ids of all other experts
    /// are replaced by -1.
    fn with_experts(&self, first: i32, count: i32) -> Call {
        let (rows, weights) = (self.rows.clone(), self.weights.clone());
        Call { rows, weights, ids: Moe::own_ids(&self.ids, first, count) }
    }

    /// Returns the interpreter's result for the call.
    fn exact(&self, module: &Module, model: &Model, layer: &Layer) -> Vec<f32> {
        let weights = FileWeights::new(&model.gguf, module);
        let mut interpreter = Interpreter::new(module, &weights).unwrap();
        let rows = self.ids.len() / layer.used as usize;
        let of_row = |width: u32| vec![rows, width as usize];
        let args = vec![
            Value::F32 { dims: of_row(layer.width), data: self.rows.clone() },
            Value::I32 { dims: of_row(layer.used), data: self.ids.clone() },
            Value::F32 { dims: of_row(layer.used), data: self.weights.clone() },
        ];
        let name = expert_layers::function_name(layer.number.into());
        floats(interpreter.run(&name, args).unwrap().swap_remove(0))
    }
}

fn floats(value: Value) -> Vec<f32> {
    match value {
        Value::F32 { data, .. } => data,
        other => panic!("{other:?}"),
    }
}

/// Returns the sum of squared differences over the sum of squares of `exact`.
fn error(found: &[f32], exact: &[f32]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let of: f64 = found.iter().zip(exact).map(|(a, b)| square(a - b)).sum();
    of / exact.iter().map(|&x| square(x)).sum::<f64>().max(f64::MIN_POSITIVE)
}

/// Returns the values of each layer's experts in a model's step: rows, ids, weights and sums.
fn own_values(function: &Function) -> Vec<[ValueId; 4]> {
    let (mut found, mut taken) = (Vec::new(), None);
    for op in &function.ops {
        if let Some(product) = view::ExpertMatmul::from_op(op)
            && function.ty(product.x).dims().len() == 2
        {
            taken = Some((product.x, product.ids));
        }
        if let (Some(sum), Some((x, ids))) = (view::ExpertCombine::from_op(op), taken) {
            found.push([x, ids, sum.p, op.results[0]]);
        }
    }
    found
}

/// Checks that the operator gives the sums of a model's own step, if it gets the inputs of a layer
/// in that step.
#[test]
fn expert_layer_matches_the_model() {
    let mut count = 0;
    for (golden, model) in models() {
        let tokens = &golden.tokens("prompt_tokens")[..9];
        let mut whole = model.arch.module.clone();
        let values = own_values(&whole.functions[0]);
        whole.functions[0].results = values.iter().flatten().copied().collect();
        let weights = FileWeights::new(&model.gguf, &whole);
        let numbers = |data: Vec<i32>| Value::I32 { dims: vec![data.len()], data };
        let (ids, positions) = (tokens.iter().map(|&id| id as i32).collect(), (0..tokens.len() as i32).collect());
        let args = vec![numbers(ids), numbers(positions), numbers(vec![0])];
        let mut results = Interpreter::new(&whole, &weights).unwrap().run("step", args).unwrap().into_iter();
        let cut = Model::open(&golden.model).unwrap().into_expert_layers().unwrap();
        let compiled = compile(&cut, &options(Target::AVX2).compile).unwrap();
        let moe = Moe::of_model(Model::open(&golden.model).unwrap(), &options(Target::AVX2)).unwrap();
        assert_eq!(moe.layers().len(), values.len(), "{}", golden.name());
        for layer in moe.layers() {
            let [rows, ids, weights, exact] = std::array::from_fn(|_| results.next().unwrap());
            let Value::I32 { data: ids, .. } = ids else { panic!("no ids") };
            let (call, exact) = (Call { rows: floats(rows), ids, weights: floats(weights) }, floats(exact));
            let how = format!("{}, layer {}", golden.name(), layer.number);
            assert_eq!(bits(&call.exact(&cut.arch.module, &cut, layer)), bits(&exact), "{how}: cut");
            let found = call.run(&moe, layer);
            // The fused graph rounds rows like kernels do. Results still differ in the last bits of
            // sums, and in bytes that are rounded from these sums.
            let fused = call.exact(&compiled.fused, &cut, layer);
            assert!(error(&found, &fused) < 1e-6, "{how}: {} of the fused graph", error(&found, &fused));
            assert!(error(&found, &exact) < 2e-3, "{how}: {}", error(&found, &exact));
            count += 1;
        }
    }
    assert!(count >= 4, "{count} layers");
}

/// Checks that the results of two operators, each with half of the experts, add up to the result
/// with all experts.
#[test]
fn parts_of_two_machines_add_up() {
    let mut random = Random::new(30);
    for (golden, model) in models() {
        let moe = Moe::of_model(model, &options(Target::AVX2)).unwrap();
        for layer in moe.layers() {
            let how = format!("{}, layer {}", golden.name(), layer.number);
            let call = Call::random(layer, 37, &mut random);
            let half = layer.experts as i32 / 2;
            let parts = [call.with_experts(0, half), call.with_experts(half, layer.experts as i32 - half)];
            let (width, used) = (layer.width as usize, layer.used as usize);
            let (whole, found) = (call.run(&moe, layer), parts.each_ref().map(|part| part.run(&moe, layer)));
            for row in 0..37 {
                let of = |sums: &[f32]| sums[row * width..][..width].to_vec();
                let (whole, found) = (of(&whole), found.each_ref().map(|sums| of(sums)));
                let own =
                    parts.each_ref().map(|part| part.ids[row * used..][..used].iter().filter(|&&id| id >= 0).count());
                for (sums, own) in found.iter().zip(own) {
                    if own == 0 {
                        assert!(sums.iter().all(|x| x.to_bits() == 0), "{how}: row {row} has no expert here");
                    }
                    if own == used {
                        assert_eq!(bits(sums), bits(&whole), "{how}: row {row} has all of its experts here");
                    }
                }
                for (at, whole) in whole.iter().enumerate() {
                    // Each result is a sum of at most `used` products, each with one rounding. The
                    // rounding error is bounded by the largest number of the row.
                    let largest = found.iter().map(|sums| sums[at].abs()).sum::<f32>() + whole.abs() + 1.0;
                    let bound = 4.0 * used as f32 * f32::EPSILON * largest;
                    let sum = found[0][at] + found[1][at];
                    assert!((sum - whole).abs() <= bound, "{how}: row {row}, {at}: {sum} and {whole}");
                }
            }
        }
    }
}

/// Checks that a row's bits do not depend on other rows, on the number of submitted rows, or on
/// threads. For quantised weights, bits are also the same on all targets.
#[test]
fn row_bits_are_independent_of_other_rows() {
    let mut random = Random::new(31);
    let model = || Model::new(ixc::demo::open().unwrap()).unwrap();
    let moe = Moe::of_model(model(), &options(Target::AVX2)).unwrap();
    let mut alone = options(Target::AVX2);
    alone.run.threads = Some(1);
    alone.compile.max_tokens = Some(16);
    let short = Moe::of_model(model(), &alone).unwrap();
    let portable = Moe::of_model(model(), &options(Target::PORTABLE)).unwrap();
    for layer in moe.layers() {
        let mut call = Call::random(layer, 50, &mut random);
        call.ids.iter_mut().for_each(|id| *id = if random.once_in(2) { -1 } else { *id });
        // An id of -1 means that no expert is computed, and that the weight has no effect.
        let nobody = |(id, weight): (&i32, &mut f32)| {
            if *id < 0 {
                *weight = f32::NAN
            }
        };
        call.ids.iter().zip(&mut call.weights).for_each(nobody);
        let expected = call.run(&moe, layer);
        assert!(expected.iter().all(|x| x.is_finite()));
        for (how, other) in [("steps of 16 rows", &short), ("portable", &portable)] {
            assert_eq!(bits(&call.run(other, layer)), bits(&expected), "layer {}: {how}", layer.number);
        }
        let (width, used) = (layer.width as usize, layer.used as usize);
        for row in [0, 17, 49] {
            let one = Call {
                rows: call.rows[row * width..][..width].to_vec(),
                ids: call.ids[row * used..][..used].to_vec(),
                weights: call.weights[row * used..][..used].to_vec(),
            };
            assert_eq!(bits(&one.run(&moe, layer)), bits(&expected[row * width..][..width]), "row {row} alone");
        }
        // Converts f32 to bf16 by truncation.
        let half = |x: &f32| (x.to_bits() >> 16) as u16;
        let halves: Vec<u16> = call.rows.iter().map(half).collect();
        let rows: Vec<f32> = halves.iter().map(|&half| f32::from_bits(u32::from(half) << 16)).collect();
        let wide = moe.submit(layer.number, Rows::F32(&rows), &call.ids, &call.weights).unwrap();
        let narrow = moe.submit(layer.number, Rows::Bf16(&halves), &call.ids, &call.weights).unwrap();
        moe.sync();
        assert!(wide.is_done() && narrow.is_done());
        assert_eq!(bits(&narrow.poll().unwrap().unwrap()), bits(&wide.wait().unwrap()));
    }
}

/// Environment variable that is set if a test runs in a separate process.
const ALONE: &str = "IXC_TEST_ALONE";

/// Checks that within a memory budget, the bits are the same, and only requested experts are read.
#[test]
fn streamed_expert_layers_match_resident_bits() {
    // A budget applies to the whole process. The test therefore runs in a separate process, in
    // which no other test takes memory.
    if std::env::var_os(ALONE).is_none() {
        let test = "moe::streamed_expert_layers_match_resident_bits";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output = alone.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}{}", stderr(&output));
        return;
    }
    let mut random = Random::new(32);
    let path = crate::support::demo_model();
    let resident = Moe::open(Some(&path), &options(Target::AVX2)).unwrap();
    let little = options(Target::AVX2);
    let least = |memory: u64| {
        let mut options = little.clone();
        options.run.memory = Some(memory);
        match Moe::open(Some(&path), &options) {
            Err(Error::Load(LoadError::Budget { .. } | LoadError::Larger { .. })) => None,
            other => Some(other.unwrap()),
        }
    };
    let streamed = (1..512).find_map(|mib| least(mib << 20)).unwrap();
    assert!(streamed.is_streamed() && !resident.is_streamed());
    for round in 0..3 {
        for layer in resident.layers() {
            for rows in [1, 3, 40] {
                let mut call = Call::random(layer, rows, &mut random);
                if round == 1 {
                    call.ids.iter_mut().for_each(|id| *id = if *id % 2 == 0 { -1 } else { *id });
                }
                let expected = call.run(&resident, layer);
                assert_eq!(bits(&call.run(&streamed, layer)), bits(&expected), "layer {}, {rows} rows", layer.number);
            }
        }
    }
}

#[test]
fn invalid_expert_calls_are_refused() {
    let moe = Moe::open(None, &options(Target::native())).unwrap();
    let layer = moe.layers()[0].clone();
    let call = Call::random(&layer, 2, &mut Random::new(33));
    let (used, width) = (layer.used as usize, layer.width as usize);
    let refused = |number: u32, rows: usize, change: &dyn Fn(&mut Call)| {
        let mut call = Call { rows: call.rows[..rows].to_vec(), ids: call.ids.clone(), weights: call.weights.clone() };
        change(&mut call);
        moe.submit(number, Rows::F32(&call.rows), &call.ids, &call.weights).map(drop).unwrap_err().to_string()
    };
    let all = 2 * width;
    let messages = [
        refused(999, all, &|_| {}),
        refused(layer.number, all - 1, &|_| {}),
        refused(layer.number, all, &|call| call.ids.truncate(used + 1)),
        refused(layer.number, all, &|call| call.weights.truncate(used)),
        refused(layer.number, all, &|call| call.ids[used] = layer.experts as i32),
        refused(layer.number, all, &|call| call.ids[0] = -2),
        refused(layer.number, all, &|call| call.weights[used + 1] = f32::NAN),
        refused(layer.number, all, &|call| call.weights[1] = f32::INFINITY),
    ];
    insta::assert_snapshot!(messages.join("\n"));
    // A call with no rows, and a handle that is dropped, are valid.
    drop(moe.submit(layer.number, Rows::F32(&call.rows), &call.ids, &call.weights).unwrap());
    assert!(moe.submit(layer.number, Rows::F32(&[]), &[], &[]).unwrap().wait().unwrap().is_empty());
    // After refused calls, the operator still works.
    assert_eq!(call.run(&moe, &layer).len(), all);
    let twice = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models/grovemoe.gguf");
    assert_eq!(
        Moe::of_model(Model::open(&twice).unwrap(), &MoeOptions::default()).unwrap_err().to_string(),
        "layer 0 has experts twice; each layer has one function"
    );
    let dense = models_without();
    assert_eq!(
        Moe::of_model(dense, &MoeOptions::default()).unwrap_err().to_string(),
        "the model has no routed experts"
    );
}

/// Returns a golden model without experts.
fn models_without() -> Model {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let models = Golden::all(&own).into_iter().map(|golden| Model::open(&golden.model).unwrap());
    models.into_iter().find(|model| model.arch.hyper.layers.iter().all(|layer| layer.experts.is_none())).unwrap()
}

/// Checks that a plan of experts can be saved to a file and loaded. It cannot be used as a plan of
/// a whole model, nor a plan of a model as a plan of experts.
#[test]
fn plans_of_experts_are_files_of_their_own_kind() {
    let folder = crate::support::scratch("moe-plan");
    let plan = folder.join("experts.ixp");
    let mut command = crate::support::ixc(["compile", "--moe", "--target", "avx2", "-o"]);
    command.arg(&plan).arg(crate::support::demo_model());
    crate::support::stdout(command);
    let run = options(Target::AVX2);
    // Settings that the plan fixes cannot be changed when the plan is loaded.
    let refused = |options: MoeOptions| Moe::open(Some(&plan), &options).err().unwrap().to_string();
    assert!(refused(options(Target::PORTABLE)).contains("avx2"), "{}", refused(options(Target::PORTABLE)));
    let mut rows = options(Target::AVX2);
    rows.compile.max_tokens = Some(7);
    assert!(refused(rows).contains("the number of rows in a step"));
    let (of_file, of_model) = (Moe::open(Some(&plan), &run).unwrap(), Moe::open(None, &run).unwrap());
    for layer in of_file.layers() {
        let call = Call::random(layer, 5, &mut Random::new(34));
        assert_eq!(bits(&call.run(&of_file, layer)), bits(&call.run(&of_model, layer)));
    }
    let steps = |options: &LoadOptions| LoadedModel::open(Some(&plan), options).map(drop).unwrap_err();
    for embeddings in [false, true] {
        let error = steps(&LoadOptions { embeddings, ..LoadOptions::default() });
        assert!(matches!(error, Error::Load(LoadError::NoSteps)), "{error}");
    }
    let whole = folder.join("whole.ixp");
    let mut command = crate::support::ixc(["compile", "--target", "avx2", "-o"]);
    command.arg(&whole).arg(crate::support::demo_model());
    crate::support::stdout(command);
    let error = Moe::open(Some(&whole), &run).map(drop).unwrap_err();
    assert!(matches!(error, Error::Load(LoadError::NoLayers)), "{error}");
}

/// Checks inconsistent plans of expert layers, which `ixc` never makes. Each is refused before it
/// runs.
#[test]
fn inconsistent_expert_plans_are_refused() {
    let model = Model::new(ixc::demo::open().unwrap()).unwrap().into_expert_layers().unwrap();
    let options = options(Target::AVX2);
    let plan = compile(&model, &options.compile).unwrap().plan;
    assert!(plan.expert_layers.len() > 1 && plan.buckets > 1);
    let Output::Experts { width } = plan.output else { panic!("{:?}", plan.output) };
    type Change<'c> = &'c dyn Fn(&mut Plan<Kernel>);
    let rows: [(&str, Change<'_>); 12] = [
        ("layers: expected consecutive parts of the steps", &|plan| plan.expert_layers[1].first += 1),
        ("layers: expected consecutive parts of the steps", &|plan| plan.expert_layers[0].steps = 0),
        ("layers: expected consecutive parts of the steps", &|plan| plan.expert_layers[0].steps = u32::MAX),
        ("layers: expected all of the steps", &|plan| plan.expert_layers.truncate(1)),
        ("layers: expected no states", &|plan| plan.states.push(State::paged("kv", 1, 32, 32))),
        ("expected only expert layers", &|plan| plan.output = Output::Hidden { width: 32, pooling: None, unit: true }),
        ("a number and ids that no other layer has", &|plan| plan.expert_layers[1].layer = plan.expert_layers[0].layer),
        ("expected a number and ids", &|plan| plan.expert_layers[1].ids = plan.expert_layers[0].ids),
        ("expected rows of the plan's width", &|plan| plan.expert_layers[0].rows = plan.expert_layers[0].ids),
        ("expected rows of the plan's width", &|plan| plan.output = Output::Experts { width: width + 1 }),
        ("buffer 4294967295 does not exist", &|plan| plan.expert_layers[0].result = BufferId(u32::MAX)),
        ("routing 0 must be filled", &|plan| {
            let second = plan.expert_layers[1].first as usize;
            for step in &mut plan.steps[second..] {
                let Step::Run { tasks, .. } = step else { continue };
                for task in tasks.iter_mut().filter(|task| matches!(task.rows, RowAxis::Routed(_))) {
                    task.rows = RowAxis::Routed(BucketId(0));
                }
            }
        }),
    ];
    for (expected, change) in rows {
        let mut plan = plan.clone();
        change(&mut plan);
        let found = ExpertLayers::load(plan, Path::new(""), &options.run).map(drop).unwrap_err().to_string();
        assert!(found.contains(expected), "{expected:?}: {found}");
    }
}
