//! Tests with damaged and malicious plans. Each one is refused with a typed error, or runs inside
//! its own memory. None causes a panic.

#[allow(dead_code, reason = "other tests use the rest of it")]
mod tiny;
mod work;

use ixc_files::OutputError;
use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, For, Kernel, KernelBuilder, Stmt, Type, VarId};
use ixc_ir::ngram::Hash;
use ixc_ir::plan::*;
use ixc_ir::random::Random;
use ixc_ir::state::Rollback;
use ixc_kernels::generator::blocks;
use ixc_runtime::engine::{Engine, EngineOptions, StepError};
use ixc_runtime::execute::ExecuteError;
use ixc_runtime::file::{self, FileError, FormatError, HEADER_BYTES};
use ixc_runtime::load::LoadError;
use ixc_runtime::program::Program;
use ixc_targets::Target;
use tiny::{EXPERTS, Factors, Folder, MAX_TOKENS, VOCABULARY};

/// Makes a random generator from a seed and prints the seed.
fn seeded(seed: u64) -> Random {
    println!("seed {seed}");
    Random::new(seed)
}

trait Trouble {
    /// Returns a random number that is likely to cause errors: a limit, or a number close to
    /// `near`.
    fn number(&mut self, near: u64) -> u64;
}

impl Trouble for Random {
    fn number(&mut self, near: u64) -> u64 {
        match self.index(8) {
            0 => 0,
            1 => near.wrapping_add(1),
            2 => near.wrapping_sub(1),
            3 => near.wrapping_mul(2),
            4 => u64::MAX,
            5 => u64::from(u32::MAX),
            6 => 1 << self.index(64),
            _ => near.wrapping_add(self.bits() % 1024 * 4),
        }
    }
}

fn options() -> EngineOptions {
    EngineOptions { threads: Some(2), ..EngineOptions::default() }
}

/// Loads a plan, and runs a prefill and a step. Both must end, with any result.
fn survive(folder: &Folder, plan: Plan<Kernel>) -> Result<(), String> {
    let vocabulary = plan.vocabulary;
    let mut engine = Engine::load(plan, &folder.0, &options()).map_err(|error| error.to_string())?;
    for tokens in [&[1u32, 2, 3, 4, 5, 6, 7][..], &[0]] {
        let tokens: Vec<u32> = tokens.iter().map(|token| token % vocabulary).collect();
        match engine.step(&tokens, &[0]) {
            Err(StepError::Execute(ExecuteError::Panic { message })) => panic!("{message}"),
            result => drop(result.map_err(|error| error.to_string())?),
        }
    }
    Ok(())
}

#[test]
fn damaged_bytes_and_wrong_lengths_are_detected() {
    let folder = Folder::new();
    let mut plan = tiny::plan(&folder.0);
    // Most kernels are removed, which makes the test faster. The file format allows this.
    plan.kernels.truncate(2);
    let bytes = file::encode(&plan).unwrap();
    assert_eq!(file::decode(&bytes).unwrap(), plan);
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 1 << (i % 8);
        let error = file::decode(&damaged).unwrap_err();
        let right = match i {
            0..8 => matches!(error, FormatError::Magic { .. }),
            8..12 => matches!(error, FormatError::Version { .. }),
            12..HEADER_BYTES => matches!(error, FormatError::Header { .. }),
            _ => matches!(error, FormatError::Checksum { .. }),
        };
        assert!(right, "byte {i}: {error}");
        let error = file::decode(&bytes[..i]).unwrap_err();
        assert!(matches!(error, FormatError::Magic { .. } | FormatError::Truncated { .. }), "{i} bytes: {error}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(matches!(file::decode(&longer), Err(FormatError::Trailing { .. })));
    // Lengths that exceed any file and weights whose sizes overflow, in a header with a valid
    // checksum.
    for (at, field) in [(16, u64::MAX), (16, file::MAX_PAYLOAD + 1), (24, u64::MAX), (24, u64::MAX - 8191)] {
        let mut wrong = bytes.clone();
        wrong[at..at + 8].copy_from_slice(&field.to_le_bytes());
        let crc = crc32fast::hash(&wrong[..40]);
        wrong[40..44].copy_from_slice(&crc.to_le_bytes());
        let error = file::decode(&wrong).unwrap_err();
        assert!(matches!(error, FormatError::TooLong { .. } | FormatError::Truncated { .. }), "{error}");
    }
    let rest = file::seal(&[&bytes[HEADER_BYTES..], b"xy"].concat());
    assert_eq!(file::decode(&rest), Err(FormatError::Rest { bytes: 2 }));
    let missing = file::read(&folder.0.join("missing.ixp"));
    assert!(matches!(missing, Err(FileError::Io { action: "read", .. })));
    let nowhere = file::write(&folder.0.join("no/folder/plan.ixp"), &tiny::plan(&folder.0));
    assert!(matches!(nowhere, Err(FileError::Output(OutputError::Io { action: "write", .. }))));
}

/// Makes a kernel with `count` vectors that are live during a loop. With many vectors, they do not
/// fit into a stack frame.
fn alive(count: i64) -> Kernel {
    let mut b = KernelBuilder::new("alive");
    let (x, y) = (b.read("x", 32 * count), b.write("y", 32 * count));
    let values: Vec<_> = (0..count).map(|i| b.load(Type::f32(8), x, 32 * i)).collect();
    b.for_each("i", count, |b, i| {
        let v = b.load(Type::f32(8), x, i * 32);
        b.store(y, i * 32, v);
    });
    let mut sum = values[0];
    for (i, &v) in (0..).zip(&values) {
        sum = b.add(sum, v);
        b.store(y, 32 * i, sum);
    }
    b.finish()
}

#[test]
fn a_plan_that_cannot_be_loaded_is_never_written() {
    let folder = Folder::new();
    let good = tiny::plan_of(&folder.0, Target::AVX512, Factors::Packed);
    let with = |change: &dyn Fn(&mut Plan<Kernel>)| {
        let mut plan = good.clone();
        change(&mut plan);
        plan
    };
    type Expected = fn(&LoadError) -> bool;
    let refused: [(Plan<Kernel>, Expected); 5] = [
        (with(&|plan| plan.max_tokens = 0), |error| matches!(error, LoadError::Plan(_))),
        (with(&|plan| plan.target = "z80".to_owned()), |error| matches!(error, LoadError::Target { .. })),
        // The kernel reads more bytes than the buffer contains.
        (with(&|plan| plan.kernels[0].buffers[0].size = 1.into()), |error| matches!(error, LoadError::Kernel { .. })),
        // These kernels exceed limits of the verifier.
        (
            with(&|plan| plan.kernels[0].buffers[0].size = i64::MAX.into()),
            |error| matches!(error, LoadError::Kernel { source, .. } if source.to_string().contains("constant")),
        ),
        // The verifier accepts this kernel, but no code can be generated for it.
        (
            with(&|plan| plan.kernels.push(alive(5000))),
            |error| matches!(error, LoadError::Codegen(source) if source.to_string().contains("alive")),
        ),
    ];
    let path = folder.0.join("bad.ixp");
    for (plan, expected) in &refused {
        let written = [
            file::write(&path, plan).unwrap_err(),
            file::weights::write(&path, plan, &folder.0, &options(), |_, _| ()).unwrap_err(),
        ];
        for error in written {
            assert!(matches!(&error, FileError::Source(error) if expected(error)), "{error}");
            assert!(!path.exists());
        }
    }
    file::write(&path, &good).unwrap();
    assert!(path.exists());
}

/// Returns the range of a plan's payload that contains the kernels.
fn kernels_in(payload: &[u8], plan: &Plan<Kernel>) -> std::ops::Range<usize> {
    let kernels = postcard::to_allocvec(&plan.kernels).unwrap();
    let start = payload.windows(kernels.len()).position(|window| window == kernels).unwrap();
    start..start + kernels.len()
}

#[test]
fn payloads_with_a_right_checksum_and_wrong_bytes_do_no_harm() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let payload = postcard::to_allocvec(&plan).unwrap();
    let kernels = kernels_in(&payload, &plan);
    let mut random = seeded(11);
    let (mut decoded, mut loaded) = (0, 0);
    let outside = payload.len() - kernels.len();
    for _ in 0..1500 {
        let mut bytes = payload.clone();
        for _ in 0..=random.index(2) {
            let at = random.index(outside);
            let at = if at < kernels.start { at } else { at + kernels.len() };
            bytes[at] = random.bits() as u8;
        }
        let Ok(mut plan) = file::decode(&file::seal(&bytes)) else { continue };
        if tasks(&mut plan).iter().any(|task| task.columns > 1 << 16) {
            // A plan that is still accepted may be valid and run for an hour, so it is skipped.
            continue;
        }
        decoded += 1;
        loaded += usize::from(survive(&folder, plan).is_ok());
    }
    println!("{decoded} decoded, {loaded} ran");
    assert!(decoded > 100 && loaded > 0);
}

#[test]
fn kernels_with_wrong_bytes_are_refused_or_compile() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let payload = postcard::to_allocvec(&plan).unwrap();
    let kernels = kernels_in(&payload, &plan);
    let mut random = seeded(12);
    let (mut decoded, mut refused) = (0, 0);
    for _ in 0..400 {
        let mut bytes = payload.clone();
        bytes[kernels.start + random.index(kernels.len())] = random.bits() as u8;
        let Ok(plan) = file::decode(&file::seal(&bytes)) else { continue };
        decoded += 1;
        // The plan is only loaded, because a valid kernel may run for a very long time.
        refused += usize::from(Engine::load(plan, &folder.0, &options()).is_err());
    }
    println!("{decoded} decoded, {refused} refused");
    assert!(decoded > 50 && refused > 20);
}

#[test]
fn deeply_nested_loops_are_refused_while_decoding() {
    let folder = Folder::new();
    let mut plan = tiny::plan(&folder.0);
    plan.kernels.truncate(1);
    let nest = |body| Stmt::For(For { var: VarId(0), trip: Affine::constant(77_777), carries: Vec::new(), body });
    plan.kernels[0].body = vec![nest(Vec::new())];
    let innermost = postcard::to_allocvec(&nest(Vec::new())).unwrap();
    let payload = postcard::to_allocvec(&plan).unwrap();
    let at = payload.windows(innermost.len()).position(|window| window == innermost).unwrap();
    // The body of each loop contains the next loop.
    let opened = [&innermost[..innermost.len() - 1], &[1]].concat();
    for depth in [10, 63, 64, 1_000_000] {
        let bytes = [&payload[..at], &opened.repeat(depth), &payload[at..]].concat();
        let decoded = file::decode(&file::seal(&bytes));
        if depth < 64 {
            let plan = decoded.unwrap();
            assert!(matches!(
                Engine::load(plan, &folder.0, &options()),
                Err(LoadError::Plan(_) | LoadError::Kernel { .. })
            ));
        } else {
            assert!(matches!(decoded, Err(FormatError::Decode { .. })), "depth {depth}");
        }
    }
}

fn tasks(plan: &mut Plan<Kernel>) -> Vec<&mut Task> {
    let runs = plan.steps.iter_mut().filter_map(|step| match step {
        Step::Run { tasks, .. } => Some(tasks),
        Step::Bucket { .. }
        | Step::Request { .. }
        | Step::Predict { .. }
        | Step::Release { .. }
        | Step::Exchange(_) => None,
    });
    runs.flatten().collect()
}

fn task<'p>(plan: &'p mut Plan<Kernel>, label: &str) -> &'p mut Task {
    tasks(plan).into_iter().find(|task| task.label == label).unwrap()
}

/// Makes attention read chosen cache slots, without a task that writes the bit mask of the choice.
fn choose(plan: &mut Plan<Kernel>) -> PositionChoice {
    let choice = PositionChoice { top_k: 5, every: 1, of: ChoiceUnit::Positions };
    let row_bytes = u64::from(plan.context_length.div_ceil(32)) * 4;
    let (marks, offset) = (BufferId(plan.buffers.len() as u32), plan.arena_bytes.next_multiple_of(64));
    plan.buffers.push(ArenaBuffer { name: "marks".into(), row_bytes, rows: RowCount::Tokens, offset });
    plan.arena_bytes = offset + row_bytes * u64::from(plan.max_tokens);
    for arg in &mut task(plan, "attention").args {
        arg.source = match arg.source {
            Source::State { state, field } => Source::Chosen { state, field, marks, choice },
            Source::Input(Input::Row(RowInput::Positions)) => RowInput::LastChosen(choice).into(),
            other => other,
        };
    }
    choice
}

/// Returns the argument of attention that contains the chosen slots.
fn chosen_argument(plan: &mut Plan<Kernel>) -> &mut Arg {
    choose(plan);
    let chosen = |arg: &&mut Arg| matches!(arg.source, Source::Chosen { .. });
    task(plan, "attention").args.iter_mut().find(chosen).unwrap()
}

/// Returns the description of how the attention of one token is divided along positions.
fn split(plan: &mut Plan<Kernel>) -> &mut Split {
    task(plan, "attention").variants[0].split.as_mut().unwrap()
}

/// Returns the bands of a matrix product with few rows.
fn bands(plan: &mut Plan<Kernel>) -> &mut Bands {
    task(plan, "q").variants[0].bands.as_mut().unwrap()
}

/// Kinds of choices that an index can make.
const CHOSEN: [ChoiceUnit; 3] = [ChoiceUnit::Positions, ChoiceUnit::Entries, ChoiceUnit::Blocks];

/// Changes one property of the plan, and returns a description of the change.
fn mutate(plan: &mut Plan<Kernel>, random: &mut Random) -> String {
    let what = random.index(25);
    let (kernels, buffers, weights) = (plan.kernels.len(), plan.buffers.len(), plan.weights.len());
    match what {
        0 => plan.max_tokens = random.number(MAX_TOKENS.into()) as u32,
        1 => plan.vocabulary = random.number(VOCABULARY.into()) as u32,
        2 => plan.arena_bytes = random.number(plan.arena_bytes),
        3 => {
            let buffer = &mut plan.buffers[random.index(buffers)];
            buffer.row_bytes = random.number(buffer.row_bytes);
        }
        4 => {
            let buffer = &mut plan.buffers[random.index(buffers)];
            buffer.offset = random.number(buffer.offset);
        }
        5 => {
            let rows = [RowCount::Tokens, RowCount::Outputs, RowCount::Routed { top_k: random.number(2) as u32 }];
            plan.buffers[random.index(buffers)].rows = rows[random.index(3)];
        }
        6 => {
            let weight = &mut plan.weights[random.index(weights)];
            weight.offset = random.number(weight.offset);
        }
        7 => {
            let weight = &mut plan.weights[random.index(weights)];
            weight.bytes = random.number(weight.bytes);
        }
        8 => plan.weights[random.index(weights)].shape[0] = random.number(32),
        9 => plan.files[0].header_bytes = random.number(16),
        10 => plan.states[0].fields[random.index(2)].columns = random.number(1) as u32,
        11 => plan.states[0].fields[random.index(2)].width = random.number(16) as u32,
        12 => drop(plan.ropes[0].frequencies.pop()),
        13 => {
            if let Some(Step::Bucket { top_k, experts, ids, .. }) =
                plan.steps.iter_mut().find(|step| matches!(step, Step::Bucket { .. }))
            {
                match random.index(3) {
                    0 => *top_k = random.number(2) as u32,
                    1 => *experts = random.number(EXPERTS.into()) as u32,
                    _ => *ids = BufferId(random.index(buffers) as u32),
                }
            }
        }
        20 => {
            let formats = [Format::F32, Format::F16, Format::F16R16, Format::Q4KR16];
            let weight = &mut plan.weights[random.index(weights)];
            *[&mut weight.format, &mut weight.stored][random.index(2)] = formats[random.index(4)];
        }
        21 => {
            let weight = &mut plan.weights[random.index(weights)];
            let blocks = WeightFile::Blocks { stride: random.number(4096) };
            weight.file = [WeightFile::Plan, WeightFile::Source(random.index(2) as u32), blocks][random.index(3)];
            plan.own_weight_bytes = random.number(weight.bytes);
        }
        22 => {
            let weight = &mut plan.weights[random.index(weights)];
            let dim = random.index(weight.shape.len());
            weight.shape[dim] = random.number(16);
            weight.bytes = weight.bytes_in(weight.stored).unwrap_or(1);
        }
        24 => {
            let (step, rows) = (random.index(plan.steps.len()), random.number(MAX_TOKENS.into()) as u32);
            if let Step::Run { alone, .. } = &mut plan.steps[step] {
                *alone = rows;
            }
        }
        23 => {
            // The attention of a state with a sliding window cannot be divided along positions.
            plan.states[0].window = Some(random.number(64) as u32);
            tasks(plan).into_iter().for_each(|task| task.variants.retain(|variant| variant.split.is_none()));
        }
        14 => {
            let (i, j) = (random.index(plan.steps.len()), random.index(plan.steps.len()));
            plan.steps.swap(i, j);
        }
        _ => {
            let mut all = tasks(plan);
            let count = all.len();
            let task = &mut all[random.index(count)];
            let arg = random.index(task.args.len());
            let variant = random.index(task.variants.len());
            match random.index(14) {
                12 => {
                    let count = [0, 1, 2, 3, u32::MAX][random.index(5)];
                    let stride = random.number(256);
                    let strides = vec![stride; task.args.len() - random.index(2)];
                    let kernel = KernelId(random.index(kernels + 1) as u32);
                    let dims = task.variants[variant].dims.clone();
                    let bands = Bands { count, kernel, dims, strides };
                    task.variants[variant].bands = [None, Some(bands)][random.index(2)].clone();
                }
                0 => task.columns = (random.number(task.columns.into()) as u32).min(1 << 12),
                1 => task.rows = [RowAxis::Tokens, RowAxis::Outputs, RowAxis::Routed(BucketId(0))][random.index(3)],
                2 => task.args[arg].offset = random.number(task.args[arg].offset),
                3 => task.args[arg].row_stride = random.number(task.args[arg].row_stride),
                4 => task.args[arg].column_stride = random.number(task.args[arg].column_stride),
                5 => task.args[arg].expert_stride = random.number(task.args[arg].expert_stride),
                6 => {
                    let hash = Hash {
                        end: random.index(9) as u32,
                        multipliers: [random.number(1 << 40), 0, u64::MAX, 1],
                        modulus: random.number(7) as u32,
                        offset: random.number(7) as u32,
                    };
                    let numbers = [0, 1, 2, 4, 40, u32::MAX];
                    let (top_k, every) = (numbers[random.index(6)], numbers[random.index(6)]);
                    let choice = PositionChoice { top_k, every, of: CHOSEN[random.index(CHOSEN.len())] };
                    let (state, field) = (random.index(2) as u32, random.index(3) as u32);
                    let marks = BufferId(random.index(buffers + 1) as u32);
                    let sources = [
                        Source::Chosen { state, field, marks, choice },
                        Source::Chosen {
                            state,
                            field,
                            marks,
                            choice: PositionChoice { every: 1, of: ChoiceUnit::Positions, ..choice },
                        },
                        RowInput::Chosen(choice).into(),
                        RowInput::LastChosen(choice).into(),
                        Source::Input(Input::Ngram(Ngram { state: random.index(3) as u32, hash })),
                        Source::Arena(BufferId(random.index(buffers + 1) as u32)),
                        Source::Weight(random.index(weights + 1) as u32),
                        Source::Rope(random.index(2) as u32),
                        Source::State { state: random.index(2) as u32, field: random.index(3) as u32 },
                        Source::State { state: 0, field: 1 },
                        Source::Scratch,
                        Source::Input(Input::Tokens),
                        RowInput::Positions.into(),
                        RowInput::Ends.into(),
                        RowInput::Ahead(random.number(100) as u32).into(),
                        RowInput::PositionBlock.into(),
                        Source::Input(Input::OutputRows),
                        Source::Input(Input::RoutedToken(BucketId(random.index(2) as u32))),
                        Source::Input(Input::RoutedSlot(BucketId(0))),
                    ];
                    task.args[arg].source = sources[random.index(sources.len())];
                }
                7 => drop(task.args.remove(arg)),
                8 => task.variants[variant].kernel = KernelId(random.index(kernels + 1) as u32),
                9 => task.variants[variant].row_chunk = random.number(5) as u32,
                11 => {
                    let combine = KernelId(random.index(kernels + 1) as u32);
                    let alone = [None, Some(KernelId(random.index(kernels + 1) as u32))][random.index(2)];
                    let up_to_rows = [1, 1, 2, u32::MAX][random.index(4)];
                    let variant = &mut task.variants[variant];
                    (variant.split, variant.up_to_rows) = (
                        Some(Split {
                            argument: arg as u32,
                            division: Division::THREADS,
                            every: random.number(3) as u32,
                            leaves: [Leaves::Result, Leaves::Words][random.index(2)],
                            combine,
                            alone,
                        }),
                        up_to_rows,
                    );
                }
                10 => task.variants[variant].up_to_rows = random.number(5) as u32,
                _ => {
                    let n = random.number(6) as u32;
                    let runs = blocks::Runs::from_length(n);
                    let dims = [
                        DimInput::ROWS[random.index(DimInput::ROWS.len())].input.into(),
                        DimInput::Rows / n,
                        DimInput::Rows % n,
                        DimInput::Tokens * n,
                        blocks::full(),
                        blocks::masked_blocks(),
                        blocks::first(),
                        blocks::of_cache(),
                        blocks::whole(n),
                        blocks::whole_of_part(n),
                        blocks::of_top_k(random.number(40) as u32, random.number(3) as u32),
                        runs.full,
                        runs.masked,
                        runs.rest,
                        runs.lead,
                        runs.head,
                        DimInput::Tokens * u32::MAX * u32::MAX * n,
                        DimInput::PartEnd - DimInput::Last % (DimInput::WindowBegin + 1),
                    ];
                    let new = &dims[random.index(dims.len())];
                    task.variants[variant].dims.iter_mut().for_each(|dim| dim.clone_from(new));
                }
            }
        }
    }
    format!("mutation {what}")
}

#[test]
fn plans_with_wrong_numbers_do_no_harm() {
    let folders = [Folder::new(), Folder::new()];
    // A plan that packs weights is also tested, if this machine can run its code.
    let packs = Target::AVX512.missing().is_empty();
    let plans = [
        tiny::plan(&folders[0].0),
        if packs { tiny::plan_of(&folders[1].0, Target::AVX512, Factors::Packed) } else { tiny::plan(&folders[1].0) },
    ];
    println!("plans that pack weights: {}", if packs { "run" } else { "NOT RUN: this CPU has no AVX-512" });
    let mut random = seeded(13);
    let (mut refused, mut stopped, mut ran) = (0, 0, 0);
    for round in 0..2000 {
        let folder = &folders[round % 2];
        let mut wrong = plans[round % 2].clone();
        if round % 4 > 1 {
            choose(&mut wrong);
        }
        for _ in 0..=random.index(3) {
            mutate(&mut wrong, &mut random);
        }
        if Program::new(&wrong).is_err() {
            refused += 1;
        } else if survive(folder, wrong).is_ok() {
            ran += 1;
        } else {
            stopped += 1;
        }
    }
    println!("{refused} refused, {stopped} stopped, {ran} ran");
    assert!(refused > 200 && stopped > 100 && ran > 20);
}

#[test]
fn plan_errors_name_the_invalid_field() {
    type Change = fn(&mut Plan<Kernel>);
    let refused: &[(&str, Change)] = &[
        ("plan: max_tokens is 0, must be in 1..=1048576", |p| p.max_tokens = 0),
        ("plan: vocabulary is 4294967295", |p| p.vocabulary = u32::MAX),
        ("step 1: the number of rows up to which one thread runs the step is 4294967295, must be in 0..=", |p| {
            *p = tiny::with_single_thread_limits(p, |i| if i == 1 { u32::MAX } else { 1 });
        }),
        ("weight \"embed\": file 3 does not exist; the plan has 1", |p| p.weights[0].file = WeightFile::Source(3)),
        ("weight \"embed\": has 4 bytes; its format and shape take 5120", |p| p.weights[0].bytes = 4),
        ("end outside its file", |p| p.weights[1].offset = u64::MAX - 3),
        ("weight \"embed\": has 5120 bytes; its format and shape take 0", |p| {
            p.weights[0].format = Format::Q4K;
            p.weights[0].stored = Format::Q4K;
            p.weights[0].shape = vec![3];
        }),
        (
            "weight \"embed\": kernels read it as q4_k_r16, but it is stored as f32; expected the same format, or one packed or requantised from the other",
            |p| {
                p.weights[0].format = Format::Q4KR16;
            },
        ),
        ("weight \"embed\": kernels read it as f16_r16, but it is stored as f16; the plan's own weights", |p| {
            (p.weights[0].format, p.weights[0].stored) = (Format::F16R16, Format::F16);
            p.weights[0].file = WeightFile::Plan;
        }),
        ("weight \"embed\": 5120 bytes at 0 end outside the weights of the plan of 5119 bytes", |p| {
            (p.weights[0].file, p.weights[0].offset) = (WeightFile::Plan, 0);
            p.own_weight_bytes = 5119;
        }),
        ("weight \"embed\": shape [40, 32] is not whole blocks of f16_r16: 16 rows of 1 columns", |p| {
            (p.weights[0].format, p.weights[0].stored) = (Format::F16R16, Format::F16);
            p.weights[0].bytes /= 2;
        }),
        ("plan: bytes to be packed is 3145728, must be in 0..=", |p| {
            let packed = PlanWeight {
                format: Format::F16R16,
                stored: Format::F16,
                shape: vec![16, 32],
                bytes: 1024,
                ..p.weights[0].clone()
            };
            p.weights.extend(std::iter::repeat_n(packed, 3 << 10));
        }),
        ("buffer \"x0\": 6144 bytes at 9223372036854775808 end outside the arena", |p| p.buffers[0].offset = 1 << 63),
        ("rotary table 0: pairs is 0", |p| p.ropes[0].frequencies.clear()),
        ("step 0, task \"embed\": kernel 99 does not exist", |p| task(p, "embed").variants[0].kernel = KernelId(99)),
        ("buffer 77 does not exist", |p| task(p, "embed").args[2].source = Source::Arena(BufferId(77))),
        ("has 2 arguments, must have 3", |p| task(p, "embed").args.truncate(2)),
        ("has 0 dims, must have 2", |p| task(p, "q").variants[0].dims.clear()),
        ("row counts of variants must ascend", |p| task(p, "q").variants[0].up_to_rows = u32::MAX),
        ("divides by 0", |p| task(p, "q").variants[1].dims[0] = DimInput::Rows / 0),
        ("divides by 0", |p| task(p, "q").variants[1].dims[0] = blocks::Runs::from_length(0).lead),
        ("divides by 0", |p| task(p, "q").variants[1].dims[0] = blocks::Runs::from_length(0).head),
        ("needs a task whose rows are tokens", |p| task(p, "gather").variants[0].dims[0] = blocks::full()),
        ("needs a task whose rows are tokens", |p| {
            task(p, "gather").variants[0].dims[0] = blocks::Runs::from_length(4).lead
        }),
        ("needs a task whose rows are tokens", |p| task(p, "attention").rows = RowAxis::Outputs),
        ("rows of tokens, one at a time, because the task divides the positions into parts", |p| {
            task(p, "attention").variants[0].row_chunk = 2
        }),
        ("argument 9 does not exist", |p| split(p).argument = 9),
        ("kernel 99 does not exist", |p| split(p).combine = KernelId(99)),
        ("a kernel for a single partial result, with", |p| split(p).alone = Some(KernelId(0))),
        ("kernel 98 does not exist", |p| split(p).alone = Some(KernelId(98))),
        ("partial results have one size", |p| split(p).argument = 3),
        ("a kernel that combines partial results", |p| split(p).combine = KernelId(0)),
        ("the number of bytes of partial results is", |p| task(p, "attention").columns = 1 << 30),
        ("bands of a column is 0, must be in 2..=1024", |p| bands(p).count = 0),
        ("bands of a column is 1, must be in 2..=1024", |p| bands(p).count = 1),
        ("bands of a column is 4294967295, must be in 2..=1024", |p| bands(p).count = u32::MAX),
        ("has 3 strides of bands, must have 4", |p| bands(p).strides.truncate(3)),
        ("bands of a column that write different memory", |p| bands(p).strides[2] = 0),
        ("bands of columns or parts of the positions, not both", |p| {
            let strides = vec![64; task(p, "attention").args.len()];
            let variant = &mut task(p, "attention").variants[0];
            let (kernel, dims) = (variant.kernel, variant.dims.clone());
            variant.bands = Some(Bands { count: 2, kernel, dims, strides });
        }),
        ("dim `band` needs a work item that is a band of a column", |p| {
            task(p, "q").variants[1].dims[0] = DimInput::Band.into()
        }),
        ("has 0 dims, must have 2", |p| bands(p).dims.clear()),
        ("dim `tokens * 4294967295 * 4294967295` exceeds 64 bits", |p| {
            task(p, "gather").variants[0].dims[0] = DimInput::Tokens * u32::MAX * u32::MAX;
        }),
        ("`rows / capacity` divides by 0", |p| {
            task(p, "q").variants[1].dims[0] = DimInput::Rows / DimInput::Capacity;
        }),
        ("the number of positions per cache slot in the parts of the positions is 0, must be in 1..=", |p| {
            split(p).every = 0
        }),
        ("divides by 0", |p| bands(p).dims[0] = DimInput::Rows % 0),
        ("kernel 97 does not exist", |p| bands(p).kernel = KernelId(97)),
        ("buffer %id is `index`, but comes from the arena", |p| {
            let embed = task(p, "embed").variants[0].kernel;
            (bands(p).kernel, bands(p).dims) = (embed, vec![]);
        }),
        ("the number of bands of a column that the kernel's dim can number is 1024, must be in 2..=2", |p| {
            bands(p).count = 1024;
            let kernel = bands(p).kernel.0 as usize;
            p.kernels[kernel].dims[1].hi = 1;
            bands(p).dims[1] = DimInput::Band.into();
        }),
        ("the maximum number of rows of a work item is 0", |p| task(p, "attention").variants[0].row_chunk = 0),
        ("all chosen cache slots, from the first", |p| chosen_argument(p).offset = 2),
        ("all chosen cache slots, from the first", |p| chosen_argument(p).row_stride = 64),
        ("all chosen cache slots, from the first", |p| chosen_argument(p).column_stride = 2),
        ("a bit for each column and each cache slot of the context", |p| {
            chosen_argument(p).column_stride = 64;
            task(p, "attention").columns = 2;
        }),
        ("a choice of whole runs or blocks of positions", |p| {
            let arg = chosen_argument(p);
            let Source::Chosen { state, field, marks, .. } = arg.source else { panic!("{arg:?}") };
            let choice = PositionChoice { top_k: 5, every: 4, of: ChoiceUnit::Blocks };
            arg.source = Source::Chosen { state, field, marks, choice };
        }),
        ("no arguments from other states, because an index chose positions", |p| {
            chosen_argument(p).source = Source::State { state: 0, field: 0 };
        }),
        ("a single choice, because an index chose cache slots", |p| {
            let arg = chosen_argument(p);
            let Source::Chosen { state, field, marks, choice } = arg.source else { panic!("{arg:?}") };
            arg.source = Source::Chosen { state, field, marks, choice: PositionChoice { top_k: 6, ..choice } };
        }),
        ("aligned rows for tokens, with one bit for each cache slot", |p| {
            choose(p);
            p.buffers.last_mut().unwrap().row_bytes -= 4;
        }),
        ("the number of chosen cache slots is 0, must be in 1..=", |p| {
            let arg = chosen_argument(p);
            let Source::Chosen { state, field, marks, choice } = arg.source else { panic!("{arg:?}") };
            arg.source = Source::Chosen { state, field, marks, choice: PositionChoice { top_k: 0, ..choice } };
        }),
        ("a step after the one that writes the chosen cache slots", |p| {
            choose(p);
            let own = task(p, "attention").clone();
            let is_append = |step: &&mut Step| matches!(step, Step::Run { tasks, .. } if tasks.iter().any(|task| task.label == "append"));
            if let Some(Step::Run { tasks, .. }) = p.steps.iter_mut().find(is_append) {
                tasks.push(own);
            }
        }),
        ("state 0, \"kv.0\": has 1 fields, must have 2", |p| p.states[0].fields.truncate(1)),
        ("with the formats and positions of the state's kind", |p| p.states[0].fields[0].positions = false),
        ("a rollback that the state's kind supports", |p| p.states[0].rollback = Rollback::Snapshot),
        ("state 0, \"kv.0\": a state's window is 0, must be in 1..=", |p| p.states[0].window = Some(0)),
        ("rows of tokens, positions not divided into parts, and one state", |p| p.states[0].window = Some(8)),
        ("field of a state", |p| {
            let state = |arg: &&mut Arg| matches!(arg.source, Source::State { .. });
            let arg = task(p, "append").args.iter_mut().find(state).unwrap();
            arg.source = Source::State { state: 0, field: 2 };
        }),
        ("buffer %y is `write`, but comes from a weight; only the arena and states are written", |p| {
            task(p, "embed").args[2].source = Source::Weight(0);
        }),
        ("buffer %id is `index`, but comes from the arena; it must come from an input", |p| {
            task(p, "embed").args[0].source = Source::Arena(BufferId(0));
        }),
        ("comes from the arena; it must come from scratch memory", |p| {
            task(p, "route").args[3].source = Source::Arena(BufferId(0));
        }),
        ("buffer %id of indices must lie at multiples of 4", |p| task(p, "embed").args[0].row_stride = 3),
        ("is written and shares memory with", |p| {
            let x = task(p, "norm").args[0].source;
            task(p, "norm").args[2].source = x;
        }),
        ("routing 0 must be filled by one step, before any step that uses it", |p| p.steps.swap(9, 10)),
        ("has 0 routings that a step fills, must have 1", |p| drop(p.steps.remove(9))),
        ("logits: expected", |p| p.logits = BufferId(0)),
        ("softmax: expected", |p| p.output = Output::Logits { softmax: KernelId(0) }),
        ("softmax: kernel 4294967295 does not exist", |p| p.output = Output::Logits { softmax: KernelId(u32::MAX) }),
        ("layers: expected all of the steps", |p| p.output = Output::Experts { width: 41 }),
        ("logits: expected", |p| p.output = Output::Hidden { width: 41, pooling: None, unit: true }),
        ("logits: elements of a hidden state", |p| p.output = Output::Hidden { width: 0, pooling: None, unit: true }),
        ("logits: elements of a hidden state", |p| {
            p.output = Output::Hidden { width: u32::MAX, pooling: None, unit: true }
        }),
        ("hidden states that are taken: buffer 4294967295 does not exist", |p| {
            p.takes = Some(HiddenRows { buffer: BufferId(u32::MAX), width: 4 });
        }),
        ("hidden states that are taken: elements of a hidden state", |p| {
            p.takes = Some(HiddenRows { buffer: BufferId(0), width: 0 });
        }),
        ("hidden states that are given: expected an aligned buffer", |p| {
            p.gives = Some(HiddenRows { buffer: BufferId(0), width: 4 });
        }),
        ("hidden states that are given: expected an aligned buffer", |p| {
            p.gives = Some(HiddenRows { buffer: p.logits, width: p.vocabulary });
        }),
    ];
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    Program::new(&plan).unwrap();
    let mut chooses = plan.clone();
    choose(&mut chooses);
    survive(&folder, chooses).unwrap();
    let mut differences = Vec::new();
    for (expected, change) in refused {
        let mut wrong = plan.clone();
        change(&mut wrong);
        let error = Program::new(&wrong).map(drop).unwrap_err().to_string();
        if !error.contains(expected) {
            differences.push(format!("{error:?} has no {expected:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let stopped: &[(&str, Change)] = &[
        ("task \"q\"", |p| task(p, "q").columns = 5),
        ("buffer %w needs 2048 bytes at offset 4096, but only 4096 exist (row 0, column 2, band 0, expert 0)", |p| {
            task(p, "q").columns = 3
        }),
        ("buffer %w needs 1024 bytes at offset 4096, but only 4096 exist (row 0, column 1, band 2, expert 0)", |p| {
            bands(p).count = 3
        }),
        ("buffer %y needs 32 bytes at offset 144, but only 128 exist (row 0, column 1, band 1, expert 0)", |p| {
            bands(p).strides[2] = 80
        }),
        ("buffer %x needs 128 bytes at offset 18446744073709551615, but only 896 exist", |p| {
            task(p, "norm").args[0].offset = u64::MAX
        }),
        ("dim %blocks is 0, must be in 1..", |p| task(p, "rope").variants[0].dims[0] = DimInput::Rows / 2),
        ("buffer %id takes indices below 40, but the input has indices below 41", |p| {
            p.vocabulary = 41;
            p.buffers[p.logits.0 as usize].row_bytes = 164;
            p.arena_bytes += 1 << 20;
            let end = p.arena_bytes - (1 << 20);
            p.buffers[p.logits.0 as usize].offset = end;
        }),
        ("slot 0 of token 0 is routed to expert", |p| {
            // The routing reads weights instead of ids.
            let from = task(p, "route").args[2].source;
            let Source::Arena(ids) = from else { panic!("{from:?}") };
            if let Some(Step::Bucket { ids: to, .. }) = p.steps.iter_mut().find(|s| matches!(s, Step::Bucket { .. })) {
                *to = ids;
            }
        }),
    ];
    for (expected, change) in stopped {
        let mut wrong = plan.clone();
        change(&mut wrong);
        let error = survive(&folder, wrong).unwrap_err();
        assert!(error.contains(expected), "{error:?} has no {expected:?}");
    }
}
