//! Properties of the plans of random models: data are written before they are read, and live
//! buffers never overlap.

use std::collections::BTreeMap;

use ixc_ir::format::{Field, Format};
use ixc_ir::graph::verify::verify;
use ixc_ir::graph::{Module, OpKind, Place};
use ixc_ir::plan::{
    Bands, BufferId, DimExpr, DimInput, KernelId, Plan, RowAxis, Source, SourceFile, Step, Task, Variant,
};
use ixc_ir::random::Random;
use ixc_kernels::generator::signature::Role;
use ixc_kernels::{KernelSpec, Linear, MatmulStrategy, Swiglu};
use ixc_passes::error::{PassError, ScheduleError};
use ixc_passes::manager::{self, Ir, graph_passes, plan_passes};
use ixc_passes::options::OptionSet;
use ixc_passes::pass::{Context, GraphResult, PlanProperties};
use ixc_passes::{defer, pack, residency, tile};
use ixc_targets::Target;
use ixc_testing::random_graphs::{Formats, RandomModule, mutate, random_model};

const MAX_TOKENS: u32 = 24;

/// Targets, and whether weights are packed.
const TARGETS: [(Target, bool); 3] = [(Target::AVX2, false), (Target::AVX2, true), (Target::AMX, true)];

/// A module with its weights' bytes and the length of their file.
struct SizedModule<'m> {
    module: Module,
    weights: &'m Vec<Vec<u8>>,
    bytes: u64,
}

/// Returns the plan that passes make from a module, and the graph before lowering.
fn planned(
    made: SizedModule<'_>,
    pipeline: &[&str],
    (target, packed): (Target, bool),
    options: &OptionSet,
) -> Result<(Plan<KernelSpec>, Module), PassError> {
    let facts = PlanProperties {
        architecture: "test".to_string(),
        max_tokens: MAX_TOKENS,
        context_length: 128,
        result_width: 0,
        result: GraphResult::Logits,
        files: vec![SourceFile { path: "model.gguf".to_string(), bytes: made.bytes, header_crc: 0, header_bytes: 0 }],
        derived: Vec::new(),
        tokenizer: Vec::new(),
        weights: made.weights,
    };
    let options = options.clone().with(&pack::PackOptions { weights: packed });
    let context = Context { target, caches: target.row().caches(), options, facts: Some(facts), decisions: None };
    let module = manager::run_pipeline(made.module, pipeline, &context)?;
    let module = manager::run_pipeline(module, &["pack", "tile"], &context)?;
    match manager::run(Ir::Graph(module.clone()), &plan_passes(), &context)? {
        Ir::Plan(plan) => Ok((*plan, module)),
        other => panic!("{} is no plan", other.kind()),
    }
}

/// Gives weights consecutive locations in a file; returns the file's length.
fn place(m: &mut RandomModule) -> u64 {
    let mut end = 0;
    for (weight, bytes) in m.module.weights.iter_mut().zip(&m.weights) {
        weight.place = Some(Place { file: 0, offset: end });
        end += bytes.len() as u64;
    }
    end
}

fn plan(seed: u64, pipeline: &[&str]) -> (Plan<KernelSpec>, usize) {
    plan_for(seed, pipeline, TARGETS[0])
}

fn plan_for(seed: u64, pipeline: &[&str], target: (Target, bool)) -> (Plan<KernelSpec>, usize) {
    plan_with(seed, pipeline, target, &OptionSet::default())
}

fn plan_with(seed: u64, pipeline: &[&str], target: (Target, bool), options: &OptionSet) -> (Plan<KernelSpec>, usize) {
    let mut m = random_model(seed, if seed.is_multiple_of(2) { Formats::All } else { Formats::F32 });
    let bytes = place(&mut m);
    let made = SizedModule { module: m.module, weights: &m.weights, bytes };
    let (plan, module) = planned(made, pipeline, target, options).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let layers = module.functions[0].ops.iter().filter(|op| op.kind == OpKind::Attention).count();
    (plan, layers)
}

/// Returns the buffers that each step reads and writes.
fn accesses(plan: &Plan<KernelSpec>) -> Vec<(Vec<BufferId>, Vec<BufferId>)> {
    let step = |step: &Step| {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        match step {
            Step::Bucket { ids, .. } | Step::Predict { ids, .. } => reads.push(*ids),
            Step::Request { .. } | Step::Release { .. } | Step::Exchange(_) => {}
            Step::Run { tasks, .. } => {
                for task in tasks {
                    let spec = &plan.kernels[task.variants[0].kernel.0 as usize];
                    for (arg, bound) in task.args.iter().zip(&spec.signature().buffers) {
                        if let Source::Arena(buffer) = arg.source {
                            if bound.role == Role::Write { writes.push(buffer) } else { reads.push(buffer) }
                        }
                    }
                }
            }
        }
        (reads, writes)
    };
    plan.steps.iter().map(step).collect()
}

fn end(plan: &Plan<KernelSpec>, buffer: usize) -> u64 {
    let buffer = &plan.buffers[buffer];
    buffer.offset + buffer.row_bytes * buffer.rows.most(MAX_TOKENS, plan.output.most(MAX_TOKENS))
}

fn check(seed: u64, plan: &Plan<KernelSpec>) {
    let accesses = accesses(plan);
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    for (number, (reads, writes)) in accesses.iter().enumerate() {
        for read in reads {
            // A buffer that is read was written in an earlier step, and is not written in this one.
            let life = lives[read.0 as usize].as_mut();
            let life = life.unwrap_or_else(|| panic!("seed {seed}: step {number} reads {read:?} before it is written"));
            assert!(!writes.contains(read), "seed {seed}: step {number} reads and writes {read:?}");
            life.1 = number;
        }
        for write in writes {
            // All parts of a buffer are written in the same step.
            let life = lives[write.0 as usize].get_or_insert((number, number));
            assert_eq!(life.0, number, "seed {seed}: {write:?} is written again");
        }
    }
    if let Some(life) = &mut lives[plan.logits.0 as usize] {
        life.1 = plan.steps.len();
    }
    for (i, a) in lives.iter().enumerate() {
        assert!(end(plan, i) <= plan.arena_bytes, "seed {seed}");
        for (j, b) in lives.iter().enumerate().take(i) {
            let (Some(a), Some(b)) = (a, b) else { panic!("seed {seed}: a buffer that nothing writes") };
            let meet = a.0 <= b.1 && b.0 <= a.1;
            let overlap = plan.buffers[i].offset < end(plan, j) && plan.buffers[j].offset < end(plan, i);
            assert!(!(meet && overlap), "seed {seed}: buffers {i} and {j} overlap while both live");
        }
    }
}

#[test]
fn buffers_are_written_first_and_never_overlap_in_use() {
    for seed in 0..40 {
        for target in TARGETS {
            check(seed, &plan_for(seed, &graph_passes(), target).0);
            check(seed, &plan_for(seed, &[], target).0);
        }
    }
}

/// Checks that the kernels of products read and write formats that the target supports, and read
/// each weight in the weight's format.
#[test]
fn kernel_formats_match_their_packed_or_plain_weights() {
    let (mut packed, mut floats) = (0, 0);
    for seed in 0..60 {
        for target in TARGETS {
            let (plan, _) = plan_for(seed, &graph_passes(), target);
            for weight in &plan.weights {
                packed += usize::from(weight.is_packed_at_load());
                let bytes = weight.bytes_in(weight.stored);
                assert_eq!(bytes, Some(weight.bytes), "seed {seed}: {}", weight.name);
                assert!(weight.bytes_in(weight.format).is_some(), "seed {seed}: {}", weight.name);
                assert!(
                    weight.format == weight.stored
                        || target.1 && weight.format.unpacked_format() == Some(weight.stored)
                );
            }
            let tasks = plan.steps.iter().filter_map(|step| match step {
                Step::Run { tasks, .. } => Some(tasks),
                Step::Bucket { .. }
                | Step::Request { .. }
                | Step::Predict { .. }
                | Step::Release { .. }
                | Step::Exchange(_) => None,
            });
            for task in tasks.flatten() {
                let weights: Vec<_> = task
                    .args
                    .iter()
                    .filter_map(|arg| match arg.source {
                        Source::Weight(w) => Some(&plan.weights[w as usize]),
                        _ => None,
                    })
                    .collect();
                for kernel in task.variants.iter().flat_map(Variant::kernels) {
                    let (formats, x, tile, strategy) = match plan.kernels[kernel.0 as usize] {
                        KernelSpec::Linear(Linear { format, x, tile, strategy, .. }) => {
                            (vec![format], x, tile, strategy)
                        }
                        KernelSpec::Swiglu(Swiglu { gate, up, x, tile, strategy, .. }) => {
                            (vec![gate, up], x, tile, strategy)
                        }
                        _ => {
                            assert!(weights.iter().all(|weight| !weight.is_packed_at_load()), "seed {seed}");
                            continue;
                        }
                    };
                    let strips = formats[0].rows();
                    for (format, weight) in formats.iter().zip(&weights) {
                        assert_eq!((weight.format, format.rows()), (*format, strips), "seed {seed}: {}", task.label);
                    }
                    assert_eq!(tile as usize % strips, 0, "seed {seed}: {}", task.label);
                    if strategy == MatmulStrategy::Tiles {
                        assert!(target == TARGETS[2] && strips > 1 && tile % 32 == 0, "seed {seed}: {}", task.label);
                    }
                    let own = formats[0].activation();
                    let right = match (own.row().tiles, target == TARGETS[2]) {
                        (Some(tiles), true) if own.is_quantised() || formats[0].tile_activation().is_some() => tiles,
                        _ => own,
                    };
                    assert_eq!(x, right, "seed {seed}: {}", task.label);
                    floats += usize::from(x == Format::Bf16x2);
                }
            }
        }
    }
    assert!(packed > 100 && floats > 10, "{packed} packed, {floats} products of floats with tiles");
}

/// Division of a kernel's work into items: columns, or bands of columns.
struct Items<'p> {
    kernel: KernelId,
    dims: &'p [DimExpr],
    bands: u32,
    strides: &'p [u64],
}

impl<'p> Items<'p> {
    fn new(variant: &'p Variant, banded: bool) -> Items<'p> {
        match variant.bands.as_ref().filter(|_| banded) {
            Some(Bands { count, kernel, dims, strides }) => Items { kernel: *kernel, dims, bands: *count, strides },
            None => Items { kernel: variant.kernel, dims: &variant.dims, bands: 1, strides: &[] },
        }
    }
}

/// Returns the bytes of a row of the result that one item writes, if its kernel is a product. If
/// several bands write one block, a band writes its part of each field of the block.
fn written(plan: &Plan<KernelSpec>, task: &Task, items: &Items<'_>, (column, band): (u32, u32)) -> Option<Vec<u64>> {
    let spec = &plan.kernels[items.kernel.0 as usize];
    let (tile, out) = match *spec {
        KernelSpec::Linear(Linear { tile, .. }) => (tile, Format::F32),
        KernelSpec::Swiglu(Swiglu { tile, out, .. }) => (tile, out),
        _ => return None,
    };
    let y = spec.signature().buffers.iter().position(|buffer| buffer.name == "y").unwrap();
    let stride = items.strides.get(y).copied().unwrap_or(0);
    let begin = task.args[y].offset + u64::from(column) * task.args[y].column_stride + u64::from(band) * stride;
    let block = out.block_len() as u32;
    if tile >= block {
        return Some((begin..begin + out.written_bytes(tile.into()).unwrap()).collect());
    }
    assert!(items.dims.iter().any(|dim| dim.is(DimInput::Band)), "{}", task.label);
    let share = |field: &Field| {
        let bytes = (field.bytes as u32 * tile / block) as u64;
        let first = begin + field.offset as u64 + u64::from(band) * bytes;
        first..first + bytes
    };
    Some(out.row().fields.iter().flat_map(share).collect())
}

/// Checks that all items of a product together write each byte of a result row exactly once. Checks
/// each row count and its kernel.
#[test]
fn items_of_products_write_each_byte_of_a_row_once() {
    let small = OptionSet::default().with(&tile::TileOptions { band_bytes: 0, ..tile::TileOptions::default() });
    let (mut banded, mut shared) = (0, 0);
    for seed in 0..60 {
        for target in TARGETS {
            let (plan, _) = plan_with(seed, &graph_passes(), target, &small);
            for (rows, divided) in [(1, false), (1, true), (5, true), (6, true), (16, true), (MAX_TOKENS, true)] {
                let mut writers: BTreeMap<BufferId, Vec<u32>> = BTreeMap::new();
                let tasks = plan.steps.iter().filter_map(|step| match step {
                    Step::Run { tasks, .. } => Some(tasks),
                    Step::Bucket { .. }
                    | Step::Request { .. }
                    | Step::Predict { .. }
                    | Step::Release { .. }
                    | Step::Exchange(_) => None,
                });
                for task in tasks.flatten() {
                    let variant = task.variants.iter().find(|variant| rows <= variant.up_to_rows).unwrap();
                    let items = Items::new(variant, divided);
                    for item in (0..task.columns).flat_map(|column| (0..items.bands).map(move |band| (column, band))) {
                        let Some(bytes) = written(&plan, task, &items, item) else { continue };
                        let spec = &plan.kernels[items.kernel.0 as usize];
                        let y = spec.signature().buffers.iter().position(|buffer| buffer.name == "y").unwrap();
                        let Source::Arena(buffer) = task.args[y].source else { panic!("{}", task.label) };
                        // No item writes the padding between rows.
                        let apart = match spec {
                            KernelSpec::Swiglu(Swiglu { out, .. }) if !out.has_row_scale() => out.tail_bytes(),
                            _ => 0,
                        };
                        let row_bytes = plan.buffers[buffer.0 as usize].row_bytes as usize - apart;
                        let writers = writers.entry(buffer).or_insert_with(|| vec![0; row_bytes]);
                        bytes.iter().for_each(|&byte| writers[byte as usize] += 1);
                        banded += usize::from(items.bands > 1);
                        shared += usize::from(items.dims.iter().any(|dim| dim.is(DimInput::Band)));
                    }
                }
                for (buffer, writers) in writers {
                    assert!(writers.iter().all(|writers| *writers == 1), "seed {seed}: {rows} rows, {buffer:?}");
                }
            }
        }
    }
    assert!(banded > 500 && shared > 100, "{banded} in bands, {shared} of them of a block");
}

/// Steps of a layer with experts: norm, projections, rotation and append, attention, output, norm.
/// The other steps are router, route, bucket, gather, gate and up, down, combine. A dense layer has
/// the steps from norm to output, then norm, gate and up, down. Quantised weights add one step,
/// which quantises the result of attention (`tests/ir/schedule_layer.ix`).
const STEPS_OF_EXPERTS: usize = 13;
const STEPS_OF_DENSE: usize = 8;
/// Steps outside layers: embedding, selection of requested rows, norm, logits.
const STEPS_AROUND: usize = 4;

#[test]
fn a_layer_has_as_many_steps_as_its_longest_chain() {
    for seed in (1..40).step_by(2) {
        let (plan, layers) = plan(seed, &graph_passes());
        let layer = if plan.buckets > 0 { STEPS_OF_EXPERTS } else { STEPS_OF_DENSE };
        assert_eq!(plan.steps.len(), layers * layer + STEPS_AROUND, "seed {seed}");
    }
}

/// Returns the numbers of the steps whose tasks read a weight of a group.
fn readers(plan: &Plan<KernelSpec>, group: usize) -> Vec<usize> {
    let weights = &plan.expert_groups[group].weights;
    let reads = |step: &Step| match step {
        Step::Run { tasks, .. } => tasks.iter().flat_map(|task| &task.args).any(|arg| match arg.source {
            Source::Weight(weight) => weights.contains(&weight),
            _ => false,
        }),
        Step::Bucket { .. }
        | Step::Request { .. }
        | Step::Predict { .. }
        | Step::Release { .. }
        | Step::Exchange(_) => false,
    };
    (0..plan.steps.len()).filter(|&i| reads(&plan.steps[i])).collect()
}

#[test]
fn expert_requests_enclose_their_readers_without_extra_barriers() {
    let all = &graph_passes()[..];
    let residency = |predict| OptionSet::default().with(&residency::ResidencyOptions { memory: Some(0), predict });
    let runs = |plan: &Plan<KernelSpec>| plan.steps.iter().filter(|step| matches!(step, Step::Run { .. })).count();
    let (mut groups, mut predictions) = (0, 0);
    for seed in 0..40 {
        for target in TARGETS {
            let (resident, layers) = plan_for(seed, &graph_passes(), target);
            for (predict_extra, pipeline) in [(None, all), (Some(1), all), (None, &["residency"][..])] {
                let (plan, _) = plan_with(seed, pipeline, target, &residency(predict_extra));
                check(seed, &plan);
                let accesses = accesses(&plan);
                assert_eq!(plan.expert_groups.len(), if resident.buckets > 0 { layers } else { 0 }, "seed {seed}");
                if pipeline == all {
                    assert_eq!(runs(&plan), runs(&resident), "seed {seed}");
                }
                for (group, facts) in plan.expert_groups.iter().enumerate() {
                    let positions = |wanted: &dyn Fn(&Step) -> bool| -> Vec<usize> {
                        (0..plan.steps.len()).filter(|&i| wanted(&plan.steps[i])).collect()
                    };
                    let number = group as u32;
                    let request = positions(&|step| matches!(step, Step::Request { group, .. } if *group == number));
                    let release = positions(&|step| *step == Step::Release { group: number });
                    let predict = positions(&|step| matches!(step, Step::Predict { group, .. } if *group == number));
                    let readers = readers(&plan, group);
                    let (first, last) = (readers[0], readers[readers.len() - 1]);
                    assert_eq!((request.len(), release.len()), (1, 1), "seed {seed}");
                    assert!(
                        request[0] < first && last < release[0] && release[0] + 1 < plan.steps.len(),
                        "seed {seed}"
                    );
                    assert!(predict.iter().all(|&predict| predict < request[0]), "seed {seed}");
                    // The first layer has no previous layer that could predict its experts.
                    assert_eq!(predict.len(), usize::from(predict_extra.is_some() && group > 0), "seed {seed}");
                    predictions += predict.len();
                    let names = facts.weights.iter().map(|&w| plan.weights[w as usize].name.as_str());
                    let parts: Vec<&str> = names.map(|name| name.split('.').nth(2).unwrap_or(name)).collect();
                    let (mut found, mut right) = (parts, vec!["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]);
                    // A fused graph may read gate and up in either order, if each has a product of
                    // its own.
                    found[..2].sort_unstable();
                    right[..2].sort_unstable();
                    assert_eq!(found, right, "seed {seed}");
                    // These steps run again for experts that arrive late, so the buffers that they
                    // access must be live during all of them.
                    let window = &accesses[first..=last];
                    let mut touched: Vec<usize> =
                        window.iter().flat_map(|(r, w)| r.iter().chain(w)).map(|buffer| buffer.0 as usize).collect();
                    touched.sort_unstable();
                    touched.dedup();
                    for (i, &a) in touched.iter().enumerate() {
                        for &b in &touched[..i] {
                            let meet = plan.buffers[a].offset < end(&plan, b) && plan.buffers[b].offset < end(&plan, a);
                            assert!(!meet, "seed {seed}: buffers {a} and {b} overlap in steps {first} to {last}");
                        }
                    }
                    groups += 1;
                }
            }
        }
    }
    assert!(groups > 100 && predictions > 20, "{groups} groups, {predictions} predictions");
}

/// Checks that deferred experts are requested again in the next layer, and that the windows of
/// requests do not overlap.
#[test]
fn deferred_experts_have_windows_of_their_own() {
    let (mut windows, mut again) = (0, 0);
    for seed in 0..40 {
        for target in TARGETS {
            if plan_for(seed, &graph_passes(), target).0.buckets == 0 {
                continue;
            }
            for (expert_memory, predict_extra) in [(None, None), (Some(0), None), (Some(0), Some(1))] {
                let residency = residency::ResidencyOptions { memory: expert_memory, predict: predict_extra };
                let options = OptionSet::default().with(&defer::DeferOptions { experts: 1 }).with(&residency);
                let (plan, layers) = plan_with(seed, &graph_passes(), target, &options);
                check(seed, &plan);
                if expert_memory.is_none() {
                    assert!(plan.expert_groups.is_empty());
                    continue;
                }
                let accesses = accesses(&plan);
                let (mut open, mut requests) = (None, vec![0; plan.expert_groups.len()]);
                for (i, step) in plan.steps.iter().enumerate() {
                    match step {
                        Step::Request { group, bucket } => {
                            assert!(open.replace((i, *group, *bucket)).is_none(), "seed {seed}, step {i}");
                            requests[*group as usize] += 1;
                        }
                        Step::Release { group } => {
                            let (request, requested, bucket) =
                                open.take().unwrap_or_else(|| panic!("seed {seed}, step {i}"));
                            assert_eq!(requested, *group, "seed {seed}, step {i}");
                            let readers: Vec<usize> = readers(&plan, requested as usize);
                            let inside: Vec<usize> = readers.into_iter().filter(|r| (request..i).contains(r)).collect();
                            let (first, last) = (inside[0], inside[inside.len() - 1]);
                            for &reader in &inside {
                                let Step::Run { tasks, .. } = &plan.steps[reader] else { panic!("seed {seed}") };
                                assert!(tasks.iter().any(|task| task.rows == RowAxis::Routed(bucket)), "seed {seed}");
                            }
                            let window = &accesses[first..=last];
                            let mut touched: Vec<usize> =
                                window.iter().flat_map(|(r, w)| r.iter().chain(w)).map(|b| b.0 as usize).collect();
                            touched.sort_unstable();
                            touched.dedup();
                            for (n, &a) in touched.iter().enumerate() {
                                for &b in &touched[..n] {
                                    let meet = plan.buffers[a].offset < end(&plan, b)
                                        && plan.buffers[b].offset < end(&plan, a);
                                    assert!(
                                        !meet,
                                        "seed {seed}: buffers {a} and {b} overlap in steps {first} to {last}"
                                    );
                                }
                            }
                            windows += 1;
                        }
                        Step::Run { .. } | Step::Bucket { .. } | Step::Predict { .. } | Step::Exchange(_) => {}
                    }
                }
                assert!(open.is_none(), "seed {seed}");
                // Each routing has one request.
                assert_eq!(requests.iter().sum::<u32>(), plan.buckets, "seed {seed}");
                assert!(requests.iter().all(|count| (1..=2).contains(count)), "seed {seed}: {requests:?}");
                assert_eq!(requests.last(), Some(&1), "seed {seed}: {requests:?}");
                again += plan.buckets as usize - layers;
            }
        }
    }
    assert!(windows > 100 && again >= 30, "{windows} windows, {again} of deferred experts");
}

#[test]
fn the_same_module_gives_the_same_plan() {
    assert_eq!(plan(3, &graph_passes()).0, plan(3, &graph_passes()).0);
}

/// Checks that text that verifies, but no frontend writes, gives a typed error or a plan, and never
/// a panic.
#[test]
fn any_module_that_verifies_gets_a_plan_or_an_error() {
    let mut plans = 0;
    for seed in 0..300 {
        let mut m = random_model(seed % 10, Formats::F32);
        let bytes = place(&mut m);
        let mut rng = Random::new(seed);
        let mut module = m.module.clone();
        for _ in 0..1 + seed % 3 {
            module = mutate(&module, &mut rng);
        }
        if verify(&module).is_err() {
            continue;
        }
        let made = |module: &Module| SizedModule { module: module.clone(), weights: &m.weights, bytes };
        for (target, pipeline) in
            [(TARGETS[0], &[][..]), (TARGETS[0], &graph_passes()[..]), (TARGETS[2], &graph_passes())]
        {
            match planned(made(&module), pipeline, target, &OptionSet::default()) {
                Ok((plan, _)) => {
                    check(seed, &plan);
                    plans += usize::from(pipeline.is_empty());
                }
                Err(PassError::Schedule(_)) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
    assert!(plans > 0);
}

#[test]
fn weights_beyond_their_file_are_refused() {
    let mut m = random_model(1, Formats::F32);
    let bytes = place(&mut m);
    let plan = |module: &Module, bytes: u64| {
        planned(
            SizedModule { module: module.clone(), weights: &m.weights, bytes },
            &[],
            TARGETS[0],
            &OptionSet::default(),
        )
    };
    let error = plan(&m.module, bytes - 1);
    assert!(matches!(error, Err(PassError::Schedule(ScheduleError::Place { .. }))), "{error:?}");
    m.module.weights[0].place = None;
    let error = plan(&m.module, bytes);
    assert!(matches!(error, Err(PassError::Schedule(ScheduleError::NoPlace { .. }))), "{error:?}");
}
