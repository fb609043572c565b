//! Tests of plan files that contain experts as blocks: damage at any byte, processes that are
//! killed while they write, and invalid plans.

#[allow(dead_code, reason = "other tests use the rest of it")]
mod tiny;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, WeightFile};
use ixc_runtime::engine::{BackendKind, Engine, EngineOptions, StepError};
use ixc_runtime::execute::ExecuteError;
use ixc_runtime::file::{self, FileError};
use ixc_runtime::load::LoadError;
use ixc_runtime::storage::blocks::BlockError;
use ixc_runtime::streaming::StreamError;
use ixc_runtime::streaming::store::Config;
use ixc_targets::Target;
use tiny::{EXPERTS, Factors, Folder, MAX_TOKENS, VOCABULARY, grouped};

/// Bytes of a block: its header and three matrices of 32 rows with 32 f16 each. The next block
/// begins two pages after this one.
const BLOCK: usize = 64 + 3 * 2048;
const STRIDE: usize = 8192;

fn options(budget: u64) -> EngineOptions {
    let backend = if Target::AVX512.missing().is_empty() { BackendKind::Native } else { BackendKind::Emulated };
    let stream = Config { budget, ..Config::default() };
    EngineOptions { threads: Some(2), backend, stream, ..EngineOptions::default() }
}

/// A plan with its model and their folder.
struct PlanFixture {
    folder: PathBuf,
    plan: Plan<Kernel>,
    _removed: Option<Folder>,
}

impl PlanFixture {
    fn new() -> PlanFixture {
        let folder = Folder::new();
        let plan = grouped(&folder.0, Target::AVX512, Factors::Packed);
        PlanFixture { folder: folder.0.clone(), plan, _removed: Some(folder) }
    }

    /// Returns the plan and folder of the parent process, if [`child`] started this process.
    fn given() -> Option<PlanFixture> {
        let folder = PathBuf::from(std::env::var_os("IXC_TEST_FOLDER")?);
        let model = folder.join("tiny.weights");
        // Writing the plan rewrites the model file. Its modification time must be restored, so that
        // it counts as the same model.
        let modified = fs::metadata(&model).unwrap().modified().unwrap();
        let plan = grouped(&folder, Target::AVX512, Factors::Packed);
        File::options().write(true).open(&model).unwrap().set_modified(modified).unwrap();
        Some(PlanFixture { folder, plan, _removed: None })
    }

    fn path(&self) -> PathBuf {
        self.folder.join("tiny.ixp")
    }

    fn model(&self) -> PathBuf {
        self.folder.join("tiny.weights")
    }

    fn write(&self, progress: impl FnMut(u64, u64)) -> Result<Plan<Kernel>, FileError> {
        file::weights::write(&self.path(), &self.plan, &self.folder, &EngineOptions::default(), progress)
    }

    /// Writes the plan's file, and panics at the given call of the progress function. Returns
    /// `false` if there are fewer calls.
    fn write_and_stop(&self, call: usize) -> bool {
        let mut calls = 0;
        let stopped = catch_unwind(AssertUnwindSafe(|| {
            self.write(|_, _| {
                calls += 1;
                assert!(calls <= call, "stopped, as planned");
            })
        }));
        stopped.is_err()
    }
}

/// Returns the offset of the first block in a plan file with these bytes.
fn first_block(bytes: &[u8], plan: &Plan<Kernel>) -> usize {
    let payload = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
    let gate = plan.weights.iter().find(|weight| weight.name == "gate").unwrap();
    assert_eq!(gate.file, WeightFile::Blocks { stride: STRIDE as u64 });
    (48 + payload).next_multiple_of(4096) as usize + gate.offset as usize - 64
}

/// Runs a step that uses all experts.
fn step(path: &Path, options: &EngineOptions) -> Result<Vec<u32>, StepError> {
    let mut engine = Engine::load_file(file::open(path).unwrap(), path.parent().unwrap(), options).unwrap();
    let tokens: Vec<u32> = (0..MAX_TOKENS).map(|i| (i * 7 + i * i) % VOCABULARY).collect();
    let bits = engine.step(&tokens, &[MAX_TOKENS - 1])?.iter().map(|logit| logit.to_bits()).collect();
    if let Some(store) = engine.stream() {
        let stats = store.stats().groups[0];
        assert_eq!(stats.misses + stats.on_the_way, u64::from(EXPERTS));
    }
    Ok(bits)
}

/// Tests that a block that arrives damaged is discarded, and is read and checked again when it is
/// needed next.
#[test]
fn a_block_that_arrived_damaged_is_read_again() {
    let made = PlanFixture::new();
    let path = made.path();
    let written = made.write(|_, _| ()).unwrap();
    let good = fs::read(&path).unwrap();
    let streamed = options(1 << 20);
    let right = step(&path, &streamed).unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    // Simulates a drive that returns wrong bytes for this block. Also changes the file's mode,
    // which is a harmless explanation of the new status change time.
    let put = |bytes: &[u8], mode: u32| {
        let mut file = File::options().write(true).open(&path).unwrap();
        file.write_all(bytes).unwrap();
        file.set_modified(modified).unwrap();
        file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
    };
    let mut bytes = good.clone();
    let first = first_block(&good, &written);
    bytes[first + 2 * STRIDE + 100] ^= 1;
    put(&bytes, 0o600);
    let mut engine = Engine::load_file(file::open(&path).unwrap(), &made.folder, &streamed).unwrap();
    let tokens: Vec<u32> = (0..MAX_TOKENS).map(|i| (i * 7 + i * i) % VOCABULARY).collect();
    for _ in 0..2 {
        match engine.step(&tokens, &[MAX_TOKENS - 1]) {
            Err(StepError::Execute(ExecuteError::Block(error))) => assert_eq!(error.block.expert, 2),
            other => panic!("{other:?}"),
        }
    }
    put(&good, 0o640);
    let logits = engine.step(&tokens, &[MAX_TOKENS - 1]).unwrap();
    assert!(logits.iter().map(|logit| logit.to_bits()).eq(right));
    // The damaged block was read in each of three steps, and all others once. Some reads of a
    // failed step continue in the next step. Their blocks count twice among the requests.
    let stats = engine.stream().unwrap().stats().groups[0];
    assert_eq!(stats.bytes, (u64::from(EXPERTS) + 2) * STRIDE as u64, "{stats:?}");
}

#[test]
fn damage_anywhere_in_a_block_is_noticed() {
    let made = PlanFixture::new();
    let path = made.path();
    let written = made.write(|_, _| ()).unwrap();
    let good = fs::read(&path).unwrap();
    let first = first_block(&good, &written);
    assert_eq!(first % 4096, 0);
    assert_eq!(good[first..][..6], *b"IXCB\x01\x03");
    let streamed = options(1 << 20);
    let right = step(&path, &streamed).unwrap();
    let resident = |bytes: &[u8], options: &EngineOptions| {
        fs::write(&path, bytes).unwrap();
        Engine::load_file(file::open(&path).unwrap(), &made.folder, options).map(drop)
    };
    let check = |bytes: &[u8], expert: usize, what: &str| {
        let named = |error: &BlockError| {
            assert_eq!((&error.path, error.block.group, error.block.expert), (&path, 0, expert as u32));
            assert!(what.is_empty() || error.what == what, "{error}");
            assert_ne!(error.found, error.expected);
        };
        match resident(bytes, &options(0)) {
            Err(LoadError::Block(error)) => named(&error),
            other => panic!("resident: {other:?}"),
        }
        match step(&path, &streamed) {
            Err(StepError::Execute(ExecuteError::Block(error))) => named(&error),
            other => panic!("streamed: {other:?}"),
        }
    };
    let payload = (64..BLOCK).step_by(211).chain([BLOCK - 1]);
    for (i, at) in (0..64).chain(payload).enumerate() {
        let (expert, mut bytes) = (i % EXPERTS as usize, good.clone());
        bytes[first + expert * STRIDE + at] ^= 1 << (i % 7);
        check(&bytes, expert, if at < 64 { "" } else { "payload's checksum" });
        if i % 29 == 0 {
            // Without the check, damaged experts are accepted.
            resident(&bytes, &EngineOptions { skip_weight_check: true, ..options(0) }).unwrap();
            step(&path, &EngineOptions { skip_weight_check: true, ..streamed.clone() }).unwrap();
        }
    }
    // The block is intact, but it belongs to another expert.
    let mut bytes = good.clone();
    bytes.copy_within(first..first + BLOCK, first + 3 * STRIDE);
    check(&bytes, 3, "expert");
    // Bytes between blocks are not checked.
    let mut bytes = good.clone();
    bytes[first + BLOCK] ^= 1;
    resident(&bytes, &options(0)).unwrap();
    assert!(step(&path, &streamed).unwrap() == right);
}

#[test]
fn loading_for_streaming_reads_no_experts() {
    let made = PlanFixture::new();
    let path = made.path();
    let written = made.write(|_, _| ()).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let first = first_block(&bytes, &written);
    bytes[first..first + EXPERTS as usize * STRIDE].fill(0xee);
    fs::write(&path, &bytes).unwrap();
    let load = |budget| Engine::load_file(file::open(&path).unwrap(), &made.folder, &options(budget)).map(drop);
    load(1 << 20).unwrap();
    assert!(matches!(load(0), Err(LoadError::Block(_))));
    // Experts that stay in memory are also compared with their checksums.
    bytes[first - 4096] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(load(1 << 20), Err(LoadError::DamagedWeight { .. })));
}

/// Changes bytes of the model file, but keeps its modification time.
fn change_unseen(model: &Path, from: usize, bytes: usize) {
    let modified = fs::metadata(model).unwrap().modified().unwrap();
    let mut content = fs::read(model).unwrap();
    content[from..from + bytes].fill(0x11);
    fs::write(model, content).unwrap();
    File::options().write(true).open(model).unwrap().set_modified(modified).unwrap();
}

fn parts(path: &Path) -> [PathBuf; 2] {
    ["part", "part.journal"].map(|end| path.with_file_name(format!(".tiny.ixp.{end}")))
}

#[test]
fn interrupted_write_is_resumed_from_any_point() {
    let made = PlanFixture::new();
    let path = made.path();
    made.write(|_, _| ()).unwrap();
    let right = fs::read(&path).unwrap();
    let count = 4 + EXPERTS as usize;
    for call in 0..count {
        fs::remove_file(&path).unwrap();
        assert!(made.write_and_stop(call), "call {call}");
        assert!(!path.exists() && parts(&path).iter().all(|part| part.exists()));
        let mut steps = Vec::new();
        made.write(|done, total| steps.push((done, total))).unwrap();
        assert!(fs::read(&path).unwrap() == right, "stopped at call {call}");
        assert!(steps.is_sorted() && steps.last().is_some_and(|(done, total)| done == total));
        // The last batch was written but is not yet recorded in the journal, so it is written
        // again.
        assert!(steps.len() >= count - call && steps.len() <= count - call + 3, "{call}: {}", steps.len());
        assert_eq!(fs::read_dir(&made.folder).unwrap().count(), 2, "nothing is left");
    }
    assert!(!made.write_and_stop(count));
    // An old plan file stays until the new one is complete.
    fs::write(&path, b"old").unwrap();
    assert!(made.write_and_stop(5));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    made.write(|_, _| ()).unwrap();
    assert!(fs::read(&path).unwrap() == right);
}

#[test]
fn model_changed_during_packing_is_refused_and_restarted() {
    let made = PlanFixture::new();
    let (path, model) = (made.path(), made.model());
    let right = fs::read(&model).unwrap();
    let file = File::options().write(true).open(&model).unwrap();
    // This modification time is far in the past, so it differs from that of every later write.
    let before = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30);
    file.set_modified(before).unwrap();
    for replaced in [false, true] {
        let mut calls = 0;
        let error = made.write(|_, _| {
            calls += 1;
            match calls {
                1 if replaced => {
                    let other = model.with_extension("other");
                    fs::write(&other, &right).unwrap();
                    File::open(&other).unwrap().set_modified(before).unwrap();
                    fs::rename(&other, &model).unwrap();
                }
                1 => file.write_all_at(&[0; 4096], right.len() as u64 - 4096).unwrap(),
                _ => {}
            }
        });
        let Err(FileError::Source(error)) = error else { panic!("{error:?}") };
        let LoadError::Stream(error) = *error else { panic!("{error}") };
        let what = if replaced { "device and inode" } else { "time of change" };
        assert!(matches!(&*error, StreamError::Changed(changed) if changed.what == what), "{error}");
        assert!(calls > 1 && !path.exists() && parts(&path).iter().all(|part| !part.exists()));
        if !replaced {
            file.write_all_at(&right, 0).unwrap();
            file.set_modified(before).unwrap();
        }
    }
    made.write(|_, _| ()).unwrap();
}

#[test]
fn links_at_temporary_names_are_not_followed() {
    for number in [0, 1] {
        let made = PlanFixture::new();
        let other = made.folder.join("other");
        fs::write(&other, b"somebody else's").unwrap();
        std::os::unix::fs::symlink(&other, &parts(&made.path())[number]).unwrap();
        let error = made.write(|_, _| ()).unwrap_err().to_string();
        assert!(error.contains("is a symbolic link"), "{error}");
        assert_eq!(fs::read(&other).unwrap(), b"somebody else's");
    }
}

#[test]
fn finished_parts_are_reused_only_for_the_same_model() {
    let made = PlanFixture::new();
    let (path, model) = (made.path(), made.model());
    made.write(|_, _| ()).unwrap();
    let right = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let plan = &made.plan;
    let gate = plan.weights.iter().find(|weight| weight.name == "gate").unwrap();
    let matrix = (gate.bytes / u64::from(EXPERTS)) as usize;
    let original = fs::read(&model).unwrap();
    let first_of_second_run = || {
        let mut first = None;
        made.write(|done, _| first = first.or(Some(done))).unwrap();
        first.unwrap()
    };

    // The block of the first expert is already on the disk, so its bytes in the model are not read
    // again.
    assert!(made.write_and_stop(4 + 5));
    change_unseen(&model, gate.offset as usize, matrix);
    made.write(|_, _| ()).unwrap();
    assert!(fs::read(&path).unwrap() == right);

    // Now the model file is rewritten. Its plan stays the same, but its modification time is
    // different.
    fs::write(&model, &original).unwrap();
    assert!(made.write_and_stop(4 + 5));
    let noted = fs::read(&parts(&path)[1]).unwrap();
    let mut changed = original.clone();
    changed[gate.offset as usize] ^= 1;
    fs::write(&model, &changed).unwrap();
    File::options().write(true).open(&model).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let one = first_of_second_run();
    assert!(one < 3000, "{one}: it begins with the first weight");
    let other = fs::read(&path).unwrap();
    assert!(other.len() == right.len() && other != right);
    // Writing also begins again for a plan with other properties.
    fs::write(&model, &original).unwrap();
    let longer = Plan { context_length: plan.context_length - 1, ..plan.clone() };
    assert!(made.write_and_stop(4 + 5));
    let mut first = None;
    let progress = |done, _| first = first.or(Some(done));
    let written = file::weights::write(&path, &longer, &made.folder, &EngineOptions::default(), progress).unwrap();
    assert!(first.unwrap() < 3000 && written.context_length == longer.context_length);
    assert_eq!(file::read(&path).unwrap(), written);

    // Existing bytes and the journal are checked before writing continues.
    for damage in 0..6 {
        fs::remove_file(&path).unwrap();
        assert!(made.write_and_stop(4 + 5));
        let [part, journal] = parts(&path);
        let (mut bytes, mut notes) = (fs::read(&part).unwrap(), fs::read(&journal).unwrap());
        assert_eq!(notes.len(), noted.len());
        let last = notes.len() - 1;
        match damage {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes[right.len() - EXPERTS as usize * STRIDE] ^= 1,
            2 => notes[last - 8] ^= 1,
            3 => notes.truncate(last - 20),
            4 => notes.extend([0xee; 999]),
            _ => notes = b"IXCPART\nand then nothing".to_vec(),
        }
        fs::write(&part, bytes).unwrap();
        fs::write(&journal, notes).unwrap();
        made.write(|_, _| ()).unwrap();
        assert!(fs::read(&path).unwrap() == right, "damage {damage}");
    }

    // Only one process at a time can write the file.
    fs::remove_file(&path).unwrap();
    let held = File::create(&parts(&path)[0]).unwrap();
    held.lock().unwrap();
    let error = made.write(|_, _| ()).unwrap_err().to_string();
    assert!(error.contains("another process is writing"), "{error}");
    drop(held);
    made.write(|_, _| ()).unwrap();
    assert!(fs::read(&path).unwrap() == right);
}

/// Runs a test of this file in another process, which gets the folder of `made`.
fn child(test: &str, made: &PlanFixture) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("IXC_TEST_FOLDER", &made.folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn killed_writer_leaves_no_plan_and_is_resumed() {
    if let Some(made) = PlanFixture::given() {
        let mut calls = 0;
        let wait = |_, _| {
            calls += 1;
            if calls == 10 {
                println!("\nkill me");
                std::io::stdout().flush().unwrap();
                // Waits until the pipe is closed, which happens after the end of this process.
                let _ = std::io::stdin().read(&mut [0]);
            }
        };
        made.write(wait).unwrap();
        return;
    }
    let made = PlanFixture::new();
    let path = made.path();
    made.write(|_, _| ()).unwrap();
    let right = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let mut killed = child("killed_writer_leaves_no_plan_and_is_resumed", &made);
    let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "kill me"));
    killed.kill().unwrap();
    assert!(!killed.wait().unwrap().success());
    assert!(!path.exists());
    let mut first = None;
    made.write(|done, _| first = first.or(Some(done))).unwrap();
    assert!(fs::read(&path).unwrap() == right);
    assert!(first.unwrap() > 4 * STRIDE as u64, "it goes on");
    assert_eq!(fs::read_dir(&made.folder).unwrap().count(), 2);
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_error_states_needed_space_and_resumes() {
    // The file has room for all blocks except the last three.
    let room = |made: &PlanFixture| fs::read(made.folder.join("right")).unwrap().len() as u64 - 3 * STRIDE as u64;
    if let Some(made) = PlanFixture::given() {
        let limit = libc::rlimit { rlim_cur: room(&made), rlim_max: room(&made) };
        // SAFETY: both calls affect only this process, which was started for them.
        let limited = unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &limit)
        };
        assert_eq!(limited, 0);
        let error = made.write(|_, _| ()).unwrap_err();
        let FileError::Space { needed, left, .. } = &error else { panic!("{error:?}") };
        println!("\nspace {needed} {left} {error}");
        return;
    }
    let made = PlanFixture::new();
    let path = made.path();
    made.write(|_, _| ()).unwrap();
    let right = fs::read(&path).unwrap();
    fs::rename(&path, made.folder.join("right")).unwrap();
    let mut limited = child("full_disk_error_states_needed_space_and_resumes", &made);
    let lines = BufReader::new(limited.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.filter_map(|line| line.strip_prefix("space ").map(str::to_string)).collect::<Vec<_>>();
    assert!(limited.wait().unwrap().success());
    let words: Vec<&str> = said[0].split(' ').collect();
    let (needed, left): (u64, u64) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    assert_eq!(needed, right.len() as u64);
    // The last three blocks are missing. One block more may have been cut off, and the batch before
    // it may be missing from the journal.
    assert!((3 * STRIDE as u64..6 * STRIDE as u64).contains(&left), "{left} of {needed}");
    assert!(said[0].contains(".tiny.ixp.part") && said[0].contains("compile again to continue"), "{}", said[0]);
    assert!(!path.exists() && parts(&path)[0].exists());
    made.write(|_, _| ()).unwrap();
    assert!(fs::read(&path).unwrap() == right);
}

#[test]
fn plans_with_inconsistent_blocks_are_refused() {
    let made = PlanFixture::new();
    let good = made.write(|_, _| ()).unwrap();
    let number = |name: &str| good.weights.iter().position(|weight| weight.name == name).unwrap();
    let [gate, up, down, q] = ["gate", "up", "down", "q"].map(number);
    type Change<'a> = &'a dyn Fn(&mut Plan<Kernel>);
    let one_after_the_other = "weights in consecutive blocks that start at pages";
    let blocks = |stride: u64| WeightFile::Blocks { stride };
    let cases: [(&str, Change<'_>); 15] = [
        (one_after_the_other, &|p| p.weights[gate].offset += 64),
        (one_after_the_other, &|p| p.weights[up].offset += 64),
        (one_after_the_other, &|p| p.weights[down].offset -= 4096),
        (one_after_the_other, &|p| p.weights[gate].offset = 0),
        (one_after_the_other, &|p| p.weights[gate].offset = 63),
        (one_after_the_other, &|p| p.weights[up].file = blocks(4096)),
        (one_after_the_other, &|p| p.weights[up].file = blocks(0)),
        (one_after_the_other, &|p| p.weights[down].file = WeightFile::Plan),
        (one_after_the_other, &|p| p.expert_groups[0].weights.swap(0, 1)),
        ("outside the weights of the plan", &|p| p.weights[up].file = blocks(u64::MAX)),
        ("outside the weights of the plan", &|p| p.weights[up].file = blocks(u64::MAX / 7)),
        ("outside the weights of the plan", &|p| p.weights[up].offset = u64::MAX - 63),
        ("outside the weights of the plan", &|p| p.own_weight_bytes -= 4096),
        ("a group of experts for a weight in blocks", &|p| p.weights[q].file = blocks(64)),
        ("must be as kernels read them", &|p| p.weights[gate].stored = ixc_ir::format::Format::F16),
    ];
    for (expected, change) in cases {
        let mut plan = good.clone();
        change(&mut plan);
        let error = Engine::load(plan, &made.folder, &options(0)).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // The header has no room for more weights.
    let mut plan = good.clone();
    plan.weights.push(plan.weights[down].clone());
    plan.expert_groups[0].weights.push(plan.weights.len() as u32 - 1);
    let error = Engine::load(plan, &made.folder, &options(0)).unwrap_err().to_string();
    assert!(error.contains("weights that fit a block"), "{error}");
    assert!(matches!(Engine::load(good, &made.folder, &options(0)), Err(LoadError::NoWeights)));
}
