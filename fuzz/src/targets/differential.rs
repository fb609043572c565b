//! Targets that compute the same result in different ways: random models and kernels on several
//! backends, and requests in several schedules.

use std::cell::RefCell;
use std::collections::HashMap;

use ixc_codegen::x64;
use ixc_emulator::{Program, Slice};
use ixc_generate::generator::{Event, Generator, Request, RequestId};
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
use ixc_ir::graph::interpret::Interpreter;
use ixc_ir::kernel::{BufferKind, Kernel, interpret};
use ixc_runtime::engine::{BackendKind, Engine, EngineOptions};
use ixc_runtime::sample::SamplerSettings;
use ixc_targets::Target;
use ixc_testing::nmse::nmse;
use ixc_testing::random_kernels::{random_buffers, random_dims, random_kernel};

use crate::Outcome;
use crate::small_models::{SmallModel, small_model};

/// Max normalised error of compiled code relative to the graph's interpreter. Weights are in f32,
/// so results differ only by the order of sums and by approximations of functions.
const MAX_ERROR: f64 = 1e-6;
/// Number of positions in the context of scheduled requests.
const CONTEXT: u64 = 64;

/// Returns the seed that the first eight bytes of an input encode.
pub fn seed_of(input: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = input.len().min(8);
    bytes[..length].copy_from_slice(&input[..length]);
    // Mixing the bits gives similar inputs very different seeds.
    ixc_ir::random::mix(u64::from_le_bytes(bytes))
}

/// Returns inputs that are seeds.
pub fn seeds() -> Vec<Vec<u8>> {
    (1..4u8).map(|seed| vec![seed; 8]).collect()
}

/// Returns the logits of a plan for a prompt and for one more token.
fn logits(model: &SmallModel, backend: BackendKind, threads: usize) -> Vec<f32> {
    let options = EngineOptions { threads: Some(threads), backend, ..EngineOptions::default() };
    let mut engine = Engine::load(model.plan.clone(), &model.folder, &options).expect("a compiled plan loads");
    let mut logits = engine.step(&[3, 1, 4, 1], &[0, 3]).expect("tokens of the model").to_vec();
    logits.extend_from_slice(engine.step(&[5], &[0]).expect("a token of the model"));
    logits
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Runs a random model in the graph's interpreter, and its plan on all backends. Checks that all
/// backends give the same bits.
pub fn graphs(input: &[u8]) -> Outcome {
    let seed = seed_of(input) % 100_000;
    let models = [small_model(seed, Target::PORTABLE), small_model(seed, Target::AVX2)];
    let random = &models[0].random;
    let mut interpreter = Interpreter::new(&random.module, &random.weights).expect("a random model");
    let mut expected = interpreter.step(&[3, 1, 4, 1], &[0, 1, 2, 3], &[0, 3]).expect("tokens of the model");
    expected.extend(interpreter.step(&[5], &[4], &[0]).expect("a token of the model"));
    let is_native = Target::AVX2.missing().is_empty();
    for (number, model) in models.iter().enumerate() {
        let mut results = vec![logits(model, BackendKind::Interpreter, 1)];
        if number == 0 || is_native {
            results.push(logits(model, BackendKind::Native, 1));
            results.push(logits(model, BackendKind::Native, 3));
        }
        if number == 1 {
            results.push(logits(model, BackendKind::Emulated, 2));
        }
        for (backend, result) in results.iter().enumerate() {
            assert_eq!(bits(result), bits(&results[0]), "seed {seed}, plan {number}, backend {backend}");
        }
        let error = nmse(&results[0], &expected);
        assert!(error <= MAX_ERROR, "seed {seed}, plan {number}: error {error}");
    }
    Outcome::accepted()
}

/// Runs a random kernel in the interpreter, and its machine code in the emulator.
pub fn kernels(input: &[u8]) -> Outcome {
    let seed = seed_of(input);
    let (target, widest) = if seed.is_multiple_of(2) { (Target::AVX2, 32) } else { (Target::AVX512, 64) };
    let kernel = random_kernel(seed, widest);
    let dims = random_dims(&kernel, seed);
    let buffers = random_buffers(&kernel, &dims, seed);
    let compiled = match x64::compile(&kernel, target) {
        Ok(compiled) => compiled,
        Err(error) => return Outcome::refused(error),
    };
    let code = [&compiled.code[..], &compiled.constants].concat();
    let program = Program::new(&code, compiled.code_bytes, target.features()).expect("own code");
    let (mut expected, mut found) = (buffers.clone(), buffers);
    interpret::run(&kernel, &dims, &mut expected).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    program.call(&slices(&kernel, &mut found), &dims).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    assert_eq!(found, expected, "seed {seed}, dims {dims:?}\n{kernel}");
    Outcome::accepted()
}

fn slices<'b>(kernel: &'b Kernel, buffers: &'b mut [Vec<u8>]) -> Vec<Slice<'b>> {
    let pairs = kernel.buffers.iter().zip(buffers);
    pairs
        .map(|(buffer, bytes)| match buffer.kind {
            BufferKind::Read | BufferKind::Index { .. } => Slice::read(&buffer.name, bytes),
            BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => Slice::write(&buffer.name, bytes),
        })
        .collect()
}

thread_local! {
    static GENERATOR: RefCell<Option<Generator>> = const { RefCell::new(None) };
}

/// A request, with the time at which it is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Scheduled {
    /// Number of steps before the request is submitted.
    delay: usize,
    prompt: Vec<u32>,
    limit: usize,
    /// Whether the request is cancelled after two more steps.
    is_cancelled: bool,
}

/// Reads the requests of a schedule: each has four bytes.
fn schedule(input: &[u8], vocabulary: u32) -> Vec<Scheduled> {
    let requests = input.chunks_exact(4).take(12);
    requests
        .map(|bytes| Scheduled {
            delay: usize::from(bytes[0] % 4),
            // There are only a few different first tokens, so that prompts share prefixes.
            prompt: (0..1 + u32::from(bytes[1] % 24))
                .map(|at| (u32::from(bytes[2] % 3) * 17 + at * (1 + u32::from(bytes[2] / 128))) % vocabulary)
                .collect(),
            limit: usize::from(bytes[3] % 8),
            is_cancelled: bytes[3] >= 224,
        })
        .collect()
}

/// Runs requests according to a schedule. Checks that each request gives the same tokens as it
/// gives alone.
pub fn schedules(input: &[u8]) -> Outcome {
    GENERATOR.with_borrow_mut(|generator| {
        let generator = generator.get_or_insert_with(|| {
            let mut load = LoadOptions::default();
            load.run.context = Some(CONTEXT);
            load.run.threads = Some(2);
            load.run.sequences = 3;
            load.run.exact_batch = true;
            Generator::new(LoadedModel::open(None, &load).expect("the demo model opens")).expect("three sequences")
        });
        let vocabulary = generator.model().vocabulary() as u32;
        let requests = schedule(input, vocabulary);
        let together = run(generator, &requests);
        for (number, request) in requests.iter().enumerate() {
            let alone = run(generator, &[Scheduled { delay: 0, is_cancelled: false, ..request.clone() }]);
            match request.is_cancelled {
                true => assert!(alone[0].starts_with(&together[number]), "request {number} of {requests:?}"),
                false => assert_eq!(together[number], alone[0], "request {number} of {requests:?}"),
            }
        }
        Outcome::Accepted(format!("{:?}", requests.iter().map(|request| request.is_cancelled).collect::<Vec<_>>()))
    })
}

/// Runs requests according to their delays. Returns the sampled tokens of each request.
fn run(generator: &mut Generator, requests: &[Scheduled]) -> Vec<Vec<u32>> {
    let mut tokens: HashMap<RequestId, Vec<u32>> = HashMap::new();
    let mut ids = Vec::new();
    let mut step = |generator: &mut Generator| {
        for (id, event) in generator.step() {
            if let Event::Token { token, .. } = event {
                tokens.entry(id).or_default().push(token);
            }
        }
    };
    for (number, scheduled) in requests.iter().enumerate() {
        (0..scheduled.delay).for_each(|_| step(generator));
        let settings = SamplerSettings { seed: number as u64 % 2, ..SamplerSettings::greedy() };
        let request = Request { limit: Some(scheduled.limit), ..Request::new(scheduled.prompt.clone(), settings) };
        let id = generator.submit(request).expect("tokens of the model");
        ids.push(id);
        if scheduled.is_cancelled {
            (0..2).for_each(|_| step(generator));
            generator.cancel(id);
        }
    }
    while !generator.is_idle() {
        step(generator);
    }
    ids.iter().map(|id| tokens.remove(id).unwrap_or_default()).collect()
}

/// Returns schedules of a few requests.
pub fn schedule_seeds() -> Vec<Vec<u8>> {
    vec![vec![0, 5, 0, 4, 1, 9, 0, 6, 0, 20, 1, 3], (0..32u32).map(|number| (number * 37 % 251) as u8).collect()]
}
