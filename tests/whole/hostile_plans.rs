//! Valid plans that are designed to be expensive. Each is refused or runs, in time and memory
//! proportional to its size.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::measure::{Measured, measured};
use crate::support::{demo_model, ixc, scratch, stdout};
use ixc::ir::derived::{Axis, Change as Made, Derivation, Element, Extent, Piece};
use ixc::ir::kernel::{Affine, For, Kernel, Stmt, VarId};
use ixc::ir::plan::decode;
use ixc::ir::plan::{ArenaBuffer, BucketId, BufferId, Plan, RopeTable, RowCount, State, Step, WeightFile};
use ixc::runtime::file;
use ixc::runtime::program::work;

/// Max processor time for refusing a plan, in addition to the time to a good plan's first token.
/// The requirement is one second in a release build. Here, the code that reads plans is built with
/// `opt-level = 1` and takes about twice as long.
const SECOND: Duration = Duration::from_secs(2);
/// Max KiB of memory for refusing a plan, in addition to the memory of a good plan and to a
/// multiple of the plan's bytes.
const KIB: u64 = 64 << 10;

fn plan(folder: &Path, arguments: &[&str]) -> Plan<Kernel> {
    let path = folder.join("good.ixp");
    let mut command = ixc(["compile", "--no-weights", "--target", "avx2", "-o"]);
    command.arg(&path).arg(demo_model()).args(arguments);
    stdout(command);
    file::read(&path).unwrap()
}

fn run(path: &Path) -> Measured {
    let mut command = ixc(["run", "--raw", "-p", "The", "-n", "0", "-t", "2"]);
    command.arg(path);
    measured(&command, 60, None)
}

fn kernel(name: &str) -> Kernel {
    Kernel { name: name.into(), dims: vec![], buffers: vec![], values: vec![], vars: vec![], body: vec![] }
}

fn first_bucket(plan: &Plan<Kernel>) -> usize {
    plan.steps.iter().position(|step| matches!(step, Step::Bucket { .. })).unwrap()
}

/// Adds a new buffer of zeros, with `words` i32 for each token.
fn zeros(plan: &mut Plan<Kernel>, words: u64) -> BufferId {
    let buffer =
        ArenaBuffer { name: "z".into(), row_bytes: 4 * words, rows: RowCount::Tokens, offset: plan.arena_bytes };
    plan.arena_bytes += buffer.row_bytes * u64::from(plan.max_tokens);
    plan.buffers.push(buffer);
    BufferId(plan.buffers.len() as u32 - 1)
}

/// Returns the index of the first vector, a weight that is read as it is stored.
fn vector(plan: &Plan<Kernel>) -> usize {
    plan.weights.iter().position(|weight| weight.shape.len() == 1).unwrap()
}

/// Replaces a vector by a derived tensor that reads one number again and again.
fn derived(plan: &mut Plan<Kernel>, file: u32, offset: u64) -> usize {
    let (at, number) = (vector(plan), plan.derived.len() as u32);
    let columns = plan.weights[at].shape[0];
    let extent = Extent { file, offset, bytes: 4 };
    let axes = vec![Axis { len: columns, stride: 0 }];
    let piece = Piece {
        extent,
        element: Element::F32,
        first: 0,
        rows: Vec::new(),
        columns: axes,
        scales: None,
        groups: None,
        change: Made::Keep,
    };
    let format = plan.weights[at].stored;
    plan.derived.push(Derivation { format, columns, pieces_per_row: 1, pieces: vec![piece] });
    (plan.weights[at].file, plan.weights[at].offset) = (WeightFile::Derived(number), 0);
    at
}

type Change = fn(&mut Plan<Kernel>);

/// Name of each hostile plan, a part of the expected error, and the change that makes the plan.
const REFUSED: &[(&str, &str, Change)] = &[
    ("a derived tensor that is not there", "derived tensor 7 does not exist", |plan| {
        let at = vector(plan);
        plan.weights[at].file = WeightFile::Derived(7);
    }),
    ("a derived tensor of no file", "piece 0 is in file 9; the model has 1 file", |plan| {
        derived(plan, 9, 0);
    }),
    ("a derived tensor outside of its file", "the end of a stored tensor is after", |plan| {
        derived(plan, 0, u64::MAX - 8);
    }),
    ("a derived tensor of fewer columns", "is not whole blocks of", |plan| {
        derived(plan, 0, 0);
        let made = &mut plan.derived[0];
        made.columns -= 1;
        made.pieces[0].columns[0].len -= 1;
    }),
    ("numbers that are made many times", "bytes to be made is", |plan| {
        let at = derived(plan, 0, 0);
        let weight = plan.weights[at].clone();
        plan.weights.extend((0..100_000).map(|_| weight.clone()));
    }),
    (
        "a derived tensor of many pieces that many weights are of",
        "need more than 16 times their size in memory",
        |plan| {
            let at = derived(plan, 0, 0);
            let piece = plan.derived[0].pieces[0].clone();
            plan.derived[0].pieces.resize(100_000, piece);
            let weight = plan.weights[at].clone();
            plan.weights.extend((0..100_000).map(|_| weight.clone()));
        },
    ),
    ("routings", "number of routings is 12004, must be in 0..=8192", |plan| {
        let (ids, old, at) = (zeros(plan, 1), plan.buckets, first_bucket(plan) + 1);
        let bucket =
            |i| Step::Bucket { bucket: BucketId(old + i), ids, first: 0, top_k: 1, experts: 65_536, nobody: false };
        plan.steps.splice(at..at, (0..12_000).map(bucket));
        plan.buckets += 12_000;
    }),
    ("experts for each token", "number of experts that a token is routed to is", |plan| {
        let (ids, old, at) = (zeros(plan, 65_536), plan.buckets, first_bucket(plan) + 1);
        plan.steps.insert(
            at,
            Step::Bucket { bucket: BucketId(old), ids, first: 0, top_k: 65_536, experts: 65_536, nobody: false },
        );
        plan.buckets += 1;
    }),
    ("empty kernels", "need more than 16 times their size in memory", |plan| {
        plan.kernels.resize(1 << 20, kernel("k"));
    }),
    ("kernels", "number of kernels is 5000", |plan| plan.kernels.resize(5000, kernel("k"))),
    ("names of variables", "need more than 16 times their size in memory", |plan| {
        plan.kernels.push(Kernel { vars: vec![String::new(); 8 << 20], ..kernel("k") });
    }),
    ("statements", "number of statements of all kernels is", |plan| {
        let empty = For { var: VarId(0), trip: Affine::constant(1), carries: vec![], body: vec![] };
        let mut kernel = Kernel { vars: vec!["i".into()], body: vec![Stmt::For(empty); 6000], ..kernel("k") };
        // The limits depend on the plan's size. Long names increase it, so that another limit does
        // not refuse the plan first.
        kernel.name = "k".repeat(100_000);
        plan.kernels.resize(plan.kernels.len() + 100, kernel);
    }),
    ("empty steps", "number of steps is", |plan| plan.steps.resize(2_000_000, Step::Run { tasks: vec![], alone: 0 })),
    ("tasks", "number of tasks is", |plan| {
        let Some(Step::Run { tasks, .. }) = plan.steps.iter().find(|step| matches!(step, Step::Run { .. })).cloned()
        else {
            panic!("a plan runs something")
        };
        plan.steps.push(Step::Run { tasks: vec![tasks[0].clone(); 200_000], alone: 0 });
    }),
    ("variants", "number of variants of a task is", |plan| {
        let task = plan.steps.iter_mut().find_map(|step| match step {
            Step::Run { tasks, .. } => tasks.first_mut(),
            _ => None,
        });
        let variants = &mut task.unwrap().variants;
        let last = variants.last().unwrap().clone();
        variants.splice(0..0, (0..100_000).map(|i| ixc::ir::plan::Variant { up_to_rows: i, ..last.clone() }));
    }),
    ("heads", "number of heads of a state is 4294967295", |plan| {
        plan.states.resize(200, State::paged("none", u32::MAX, 0, 0));
    }),
    ("states", "number of states is 1000000", |plan| {
        plan.states.resize(1_000_000, State::paged("none", 1, 0, 0));
    }),
    ("weights", "number of weights is", |plan| plan.weights.resize(300_000, plan.weights[0].clone())),
    ("buffers", "number of buffers is", |plan| plan.buffers.resize(300_000, plan.buffers[0].clone())),
    ("rotary tables", "number of pairs of all rotary tables is", |plan| {
        let table = RopeTable { frequencies: vec![1.0; 60_000], ..RopeTable::still() };
        plan.ropes.resize(10, table);
    }),
    ("files", "number of model files is 5000", |plan| plan.files.resize(5000, plan.files[0].clone())),
    ("the arena", "cannot map 18446744073709551615 bytes for the arena", |plan| plan.arena_bytes = u64::MAX),
    ("words of the tokenizer", "need more than 16 times their size in memory", |plan| {
        // The list of the tokenizer's tokens has a huge number of empty texts.
        plan.tokenizer = [vec![2, 0], vec![0x80, 0x80, 0x80, 0x08], vec![0; 16 << 20]].concat();
    }),
];

#[test]
fn hostile_plan_is_refused_quickly_with_little_memory() {
    let folder = scratch("hostile-plans");
    let good = plan(&folder, &[]);
    let path = folder.join("hostile.ixp");
    std::fs::write(&path, file::encode(&good).unwrap()).unwrap();
    let base = run(&path);
    assert_eq!(base.code, Some(0), "{}", base.stderr);
    for (name, expected, change) in REFUSED {
        let mut hostile = good.clone();
        change(&mut hostile);
        let bytes = file::encode(&hostile).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let taken = run(&path);
        println!(
            "{name}: {} KiB of plan, {} KiB, {:?}: {}",
            bytes.len() >> 10,
            taken.peak_kib,
            taken.processor,
            taken.stderr.trim()
        );
        assert_eq!(taken.code, Some(65), "{name}: {}", taken.stderr);
        assert!(taken.stderr.contains(expected), "{name}: {}", taken.stderr);
        assert!(taken.stderr.len() < 1000, "{name}: {} bytes of error", taken.stderr.len());
        assert!(taken.processor < base.processor + SECOND, "{name}: {:?} of {:?}", taken.processor, base.processor);
        let allowed = base.peak_kib + KIB + (bytes.len() * file::MEMORY_PER_BYTE) as u64 / 1024;
        assert!(taken.peak_kib < allowed, "{name}: {} KiB, {allowed} allowed", taken.peak_kib);
    }
}

/// Checks that plans of real models are far from every limit: a model could be thirty times as deep
/// as the deepest known one.
#[test]
fn plans_of_models_are_far_from_the_limits() {
    let folder = scratch("modest-plans");
    let good = plan(&folder, &[]);
    let bytes = file::encode(&good).unwrap();
    println!(
        "{} bytes; {} steps, {} tasks, {} kernels, {} weights, {} buffers of {} layers",
        bytes.len(),
        good.steps.len(),
        good.steps.iter().map(|step| if let Step::Run { tasks, .. } = step { tasks.len() } else { 0 }).sum::<usize>(),
        good.kernels.len(),
        good.weights.len(),
        good.buffers.len(),
        good.states.len()
    );
    let mut deep: Vec<(&str, usize, usize)> = Vec::new();
    let layers = good.states.len();
    deep.push(("steps", good.steps.len(), 32));
    deep.push(("weights", good.weights.len(), 32));
    deep.push(("buffers", good.buffers.len(), 40));
    for (what, found, most) in deep {
        assert!(found <= most * layers / 2 + 20, "{what}: {found} of {layers} layers");
    }
    // Reading a normal plan takes far less memory than sixteen times its bytes. This plan is so
    // large that the constant allowance (`SLACK`) has no effect.
    let mut many = good.clone();
    many.kernels = good.kernels.iter().cycle().take(50 * good.kernels.len()).cloned().collect();
    many.steps = good.steps.iter().cycle().take(500 * good.steps.len()).cloned().collect();
    many.weights = good.weights.iter().cycle().take(500 * good.weights.len()).cloned().collect();
    let bytes = file::encode(&many).unwrap();
    assert!(bytes.len() * 16 > 40 * decode::SLACK, "{}", bytes.len());
    assert_eq!(file::decode(&bytes).unwrap().kernels.len(), many.kernels.len());
    let mut spec = ixc::compile::decode_tokenizer(&good.tokenizer).unwrap();
    spec.tokens = spec.tokens.iter().cycle().take(100 * spec.tokens.len()).cloned().collect();
    spec.merges = spec.merges.iter().cycle().take(200 * spec.merges.len()).cloned().collect();
    let tokenizer = ixc::compile::encode_tokenizer(&spec).unwrap();
    assert_eq!(ixc::compile::decode_tokenizer(&tokenizer).unwrap(), spec);
}

/// Regression test: checks of expert groups once took quadratic time. Each prediction looked at all
/// later windows, and each task at all earlier tasks.
#[test]
fn checking_groups_takes_time_in_proportion_to_the_plan() {
    let folder = scratch("hostile-groups");
    let good = plan(&folder, &["--memory", "101MiB"]);
    let path = folder.join("hostile.ixp");
    let taken = |plan: &Plan<Kernel>| {
        std::fs::write(&path, file::encode(plan).unwrap()).unwrap();
        run(&path)
    };
    let base = taken(&good);
    assert_eq!(base.code, Some(0), "{}", base.stderr);
    let request = good.steps.iter().position(|step| matches!(step, Step::Request { .. })).unwrap();
    let release = good.steps.iter().position(|step| matches!(step, Step::Release { .. })).unwrap();
    let window: Vec<Step> = good.steps[request..=release].to_vec();
    let Some(&Step::Bucket { ids, .. }) = good.steps.iter().find(|step| matches!(step, Step::Bucket { .. })) else {
        panic!("a model with experts has routings")
    };

    // This plan has the max number of predictions, followed by the max number of windows.
    let mut predicts = good.clone();
    let small = |step: &Step| match step {
        Step::Run { tasks, .. } => {
            Step::Run { tasks: tasks.iter().filter(|task| task.label.contains("exps")).cloned().collect(), alone: 0 }
        }
        other => other.clone(),
    };
    let windows: Vec<Step> =
        std::iter::repeat_n(window.iter().filter(|step| !matches!(step, Step::Predict { .. })).map(small), 4000)
            .flatten()
            .collect();
    let predict = Step::Predict { group: 1, ids, first: 0, count: 1 };
    predicts.steps.splice(request..request, std::iter::repeat_n(predict, 8000).chain(windows));
    let many = taken(&predicts);
    println!("predictions: {:?}, {:?}: {}", base.processor, many.processor, many.stderr.trim());
    assert!(many.processor < base.processor + SECOND, "{:?}", many.processor);

    // This plan has tasks of two stages in a window. Each task writes another buffer.
    let mut tasks = good.clone();
    let at =
        (request..release).find(|&i| matches!(&good.steps[i], Step::Run { tasks, .. } if !tasks.is_empty())).unwrap();
    let Step::Run { tasks: run, .. } = &good.steps[at] else { panic!("{:?}", good.steps[at]) };
    let mut task = run[0].clone();
    task.columns = 0;
    let run: Vec<Step> = (0..2)
        .map(|_| {
            let buffer = zeros(&mut tasks, 16);
            let mut task = task.clone();
            let kernel = &good.kernels[task.variants[0].kernel.0 as usize];
            for (arg, parameter) in task.args.iter_mut().zip(&kernel.buffers) {
                if matches!(parameter.kind, ixc::ir::kernel::BufferKind::Write | ixc::ir::kernel::BufferKind::ReadWrite)
                {
                    arg.source = ixc::ir::plan::Source::Arena(buffer);
                }
            }
            Step::Run { tasks: vec![task; 40_000], alone: 0 }
        })
        .collect();
    tasks.steps.splice(at + 1..at + 1, run);
    let many = taken(&tasks);
    println!("tasks: {:?}: {}", many.processor, many.stderr.trim());
    assert!(many.processor < base.processor + 2 * SECOND, "{:?}", many.processor);
}

/// Interrupts a command with Ctrl-C as soon as its output satisfies `until`. `out` selects standard
/// output; otherwise, standard error is read.
fn interrupted(mut command: std::process::Command, until: impl Fn(&str) -> bool, out: bool) -> (Option<i32>, String) {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;
    let limit = libc::rlimit { rlim_cur: 60, rlim_max: 60 };
    // SAFETY: between fork and exec only setrlimit is called. It is async-signal-safe and reads a
    // value that the closure owns.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_CPU, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut said, mut byte) = (String::new(), [0]);
    let from: &mut dyn Read = if out { &mut stdout } else { &mut stderr };
    while !until(&said) && from.read(&mut byte).unwrap() == 1 {
        said.push(char::from(byte[0]));
    }
    assert!(until(&said), "{said}");
    // SAFETY: the child belongs to this test and was not waited for.
    assert_eq!(unsafe { libc::kill(libc::pid_t::try_from(child.id()).unwrap(), libc::SIGINT) }, 0);
    let status = child.wait().unwrap();
    stdout.read_to_string(&mut said).unwrap();
    (status.code(), said)
}

/// Adds a loop with `rounds` iterations to a kernel.
fn spin(kernel: &mut Kernel, rounds: i64) {
    let var = VarId(kernel.vars.len() as u32);
    kernel.vars.push("spin".into());
    kernel.body.push(Stmt::For(For { var, trip: Affine::constant(rounds), carries: vec![], body: vec![] }));
}

/// Adds loops to some kernels, with as many iterations as the limit of work allows. In the
/// emulator, running the plan would take practically forever.
fn spinning(plan: &Plan<Kernel>, is_changed: impl Fn(usize) -> bool) -> Plan<Kernel> {
    let with_rounds = |power: u32| {
        let mut plan = plan.clone();
        let kernels = plan.kernels.iter_mut().enumerate().filter(|(i, _)| is_changed(*i));
        kernels.for_each(|(_, kernel)| spin(kernel, 1 << power));
        plan
    };
    let found = (0..=40).rev().map(with_rounds).find(|plan| work::check(plan, plan.context_length).is_ok());
    found.expect("loops of one round are within the limit")
}

fn write(folder: &Path, plan: &Plan<Kernel>) -> PathBuf {
    let path = folder.join("spins.ixp");
    std::fs::write(&path, file::encode(plan).unwrap()).unwrap();
    path
}

#[test]
fn the_first_ctrl_c_ends_a_prompt_that_does_not_end() {
    let folder = scratch("spins");
    let hostile = spinning(&plan(&folder, &[]), |_| true);
    let mut command = ixc(["run", "--raw", "-p", "The borrow checker", "-n", "4", "--stats", "--emulate"]);
    command.arg(write(&folder, &hostile));
    // The plan is loaded, so the run is computing or about to compute.
    let (code, said) = interrupted(command, |said| said.contains("emulated\n"), false);
    assert_eq!(code, Some(130), "{said}");
}

#[test]
fn the_first_ctrl_c_ends_a_token_that_does_not_end() {
    let folder = scratch("spins-later");
    let good = plan(&folder, &[]);
    // Only kernels that compute single tokens are changed. The prompt's logits need other kernels.
    let rows: Vec<_> = good
        .steps
        .iter()
        .flat_map(|step| if let Step::Run { tasks, .. } = step { &tasks[..] } else { &[] })
        .map(|task| (task.rows, task.variants.iter().map(|v| (v.up_to_rows, v.kernel)).collect::<Vec<_>>()))
        .collect();
    let elsewhere = |kernel| {
        rows.iter().any(|(axis, variants)| {
            variants.iter().any(|&(up_to, k)| k == kernel && (*axis != ixc::ir::plan::RowAxis::Tokens || up_to != 1))
        })
    };
    let kernel = rows.iter().flat_map(|(_, variants)| variants).map(|&(_, kernel)| kernel).find(|k| !elsewhere(*k));
    let kernel = kernel.expect("a kernel for single tokens");
    let hostile = spinning(&good, |i| i == kernel.0 as usize);
    let mut command = ixc(["run", "--raw", "-p", "The borrow checker", "-n", "4", "--temp", "0", "--emulate"]);
    command.arg(write(&folder, &hostile));
    // The first token was printed. Computing the next one would never end.
    let (code, said) = interrupted(command, |said| !said.is_empty(), true);
    assert_eq!(code, Some(130), "{said}");
}

/// Checks that Ctrl-C ends compiling. The model file is sparse and has 12 GiB. Packing it takes
/// many seconds, and Ctrl-C comes in the first second.
#[test]
fn the_first_ctrl_c_ends_compiling() {
    let folder = scratch("interrupted-compile");
    let model = folder.join("holes.gguf");
    crate::support::holes::write(&model);
    let mut command = ixc(["compile", "--target", "avx2", "-o"]);
    let plan = folder.join("holes.ixp");
    command.arg(&plan).arg(&model);
    let mut child = command.spawn().unwrap();
    let part = folder.join(".holes.ixp.part");
    while !part.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it packed");
        std::thread::yield_now();
    }
    // SAFETY: the child belongs to this test and was not waited for.
    assert_eq!(unsafe { libc::kill(libc::pid_t::try_from(child.id()).unwrap(), libc::SIGINT) }, 0);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!plan.exists() && part.exists());
}
