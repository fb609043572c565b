//! Tests of packed weights, which are packed when they are needed or are mapped from the plan's
//! file. Also tests of damaged files.

#[allow(dead_code, reason = "other tests use the rest of it")]
mod tiny;

use ixc_ir::format::Format;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, WeightFile};
use ixc_runtime::engine::{BackendKind, Engine, EngineOptions};
use ixc_runtime::file::{self, FileError, FormatError, HEADER_BYTES};
use ixc_runtime::load::LoadError;
use ixc_targets::Target;
use tiny::{Factors, Folder, MAX_TOKENS, VOCABULARY};

/// Names of the weights that consist of whole strips.
const PACKED: [&str; 7] = ["q", "k", "v", "o", "gate", "up", "down"];

fn options(threads: usize, backend: BackendKind) -> EngineOptions {
    EngineOptions { threads: Some(threads), backend, ..EngineOptions::default() }
}

fn tokens() -> Vec<u32> {
    (0..MAX_TOKENS + 9).map(|i| (i * 7 + i * i) % VOCABULARY).collect()
}

/// Returns the logits of all tokens, from long and short steps.
fn logits(engine: &mut Engine) -> Vec<f32> {
    let (tokens, mut logits, mut at) = (tokens(), Vec::new(), 0);
    for length in [30, 1, 5, 14, 7] {
        let rows: Vec<u32> = (0..length as u32).collect();
        logits.extend_from_slice(engine.step(&tokens[at..at + length], &rows).unwrap());
        at += length;
    }
    assert_eq!(at, tokens.len());
    logits
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn packed_when_loaded_is_the_same_as_not_packed() {
    let folder = Folder::new();
    let target = Target::AVX512;
    let load = |factors, threads, backend| {
        let plan = tiny::plan_of(&folder.0, target, factors);
        let packed: Vec<_> = plan.weights.iter().filter(|w| w.is_packed_at_load()).map(|w| w.name.as_str()).collect();
        assert_eq!(packed, if factors == Factors::Packed { &PACKED[..] } else { &[] });
        logits(&mut Engine::load(plan, &folder.0, &options(threads, backend)).unwrap())
    };
    let right = load(Factors::F16, 2, BackendKind::Interpreter);
    assert_eq!(bits(&load(Factors::Packed, 2, BackendKind::Interpreter)), bits(&right));
    let emulated = load(Factors::Packed, 1, BackendKind::Emulated);
    assert_eq!(bits(&emulated), bits(&right));
    if target.missing().is_empty() {
        for threads in [1, 2, 3] {
            assert_eq!(bits(&load(Factors::Packed, threads, BackendKind::Native)), bits(&emulated));
        }
    } else {
        println!("{}: emulated only: this machine lacks {:?}", target.name(), target.missing());
    }
}

#[test]
fn packing_on_demand_matches_packing_at_load() {
    let folder = Folder::new();
    let plan = tiny::plan_of(&folder.0, Target::AVX512, Factors::Packed);
    let backend = if Target::AVX512.missing().is_empty() { BackendKind::Native } else { BackendKind::Emulated };
    let load = |threads| Engine::load(plan.clone(), &folder.0, &options(threads, backend)).unwrap();
    let mut before = load(2);
    // The parts are `q`, `k`, `v` and `o`, and the `gate`, `up` and `down` of each expert.
    let parts = 4 + 3 * u64::from(tiny::EXPERTS);
    assert_eq!(before.on_demand_parts(), parts);
    before.pack_weights().unwrap();
    assert_eq!(before.on_demand_parts(), 0);
    let right = bits(&logits(&mut before));
    before.pack_weights().unwrap();
    // The division into steps determines which kernels run, and so the order of sums.
    let mut long = load(1);
    long.pack_weights().unwrap();
    let rows: Vec<u32> = (0..MAX_TOKENS).collect();
    let long = bits(long.step(&tokens()[..rows.len()], &rows).unwrap());
    let run = |engine: &mut Engine, sizes: &[usize]| {
        let (tokens, mut logits, mut at) = (tokens(), Vec::new(), 0);
        let mut left = Vec::new();
        for &length in sizes {
            let rows: Vec<u32> = (0..length as u32).collect();
            logits.extend_from_slice(engine.step(&tokens[at..at + length], &rows).unwrap());
            left.push(engine.on_demand_parts());
            at += length;
        }
        (bits(&logits), left)
    };
    for threads in [1, 2, 3] {
        // After the first step, no packed weights remain. Each later step keeps packed weights that
        // it needs, a quarter of them at a time.
        let (found, left) = run(&mut load(threads), &[30, 1, 5, 14, 7]);
        assert!(found == right, "{threads} threads");
        assert!(left[0] == parts && left.is_sorted_by(|a, b| a >= b), "{left:?}");
        let [first, few] = [parts - left[1], 4 + 3 * u64::from(tiny::TOP_K)];
        assert!(first > 0 && first < few && parts - left[4] >= few, "{left:?}");
        // After the first step, no packed weights remain, even if it has the maximum length.
        let (found, left) = run(&mut load(threads), &[MAX_TOKENS as usize]);
        assert!(found == long && left[0] == parts, "{threads} threads: {left:?}");
        // After steps without outputs, the test packs all remaining weights.
        let mut engine = load(threads);
        engine.step(&tokens()[..30], &[]).unwrap();
        engine.step(&tokens()[30..31], &[]).unwrap();
        engine.pack_weights().unwrap();
        assert_eq!(engine.on_demand_parts(), 0);
        engine.reset();
        assert!(bits(&logits(&mut engine)) == right);
    }
}

/// Returns the path of a plan file with weights, the plan in it, and the original plan.
fn written(folder: &Folder) -> (std::path::PathBuf, Plan<Kernel>, Plan<Kernel>) {
    let plan = tiny::plan_of(&folder.0, Target::AVX512, Factors::Packed);
    let path = folder.0.join("tiny.ixp");
    let mut steps = Vec::new();
    let options = options(2, BackendKind::Native);
    let written = file::weights::write(&path, &plan, &folder.0, &options, |done, of| steps.push((done, of))).unwrap();
    let packed: u64 = plan.weights.iter().filter(|w| w.is_packed_at_load()).map(|w| w.bytes).sum();
    // Packed f16 weights have the same length as unpacked ones.
    assert_eq!(steps.last().unwrap().0, packed);
    assert!(steps.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 == pair[1].1));
    (path, written, plan)
}

#[test]
fn weights_written_into_the_plan_are_mapped_and_the_same() {
    let folder = Folder::new();
    let (path, written, plan) = written(&folder);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2, "nothing is left beside the plan and its model");
    let file = file::open(&path).unwrap();
    assert_eq!(file.plan, written);
    assert_eq!(file::read(&path).unwrap(), written);
    for (weight, before) in written.weights.iter().zip(&plan.weights) {
        let own = PACKED.contains(&weight.name.as_str());
        assert_eq!(weight.file == WeightFile::Plan, own, "{}", weight.name);
        assert!(!weight.is_packed_at_load() && weight.format == before.format, "{}", weight.name);
        assert!(!own || weight.offset % 4096 == 0 && weight.format == Format::F16R16, "{}", weight.name);
    }
    let native =
        options(2, if Target::AVX512.missing().is_empty() { BackendKind::Native } else { BackendKind::Emulated });
    let right = logits(&mut Engine::load(plan, &folder.0, &native).unwrap());
    for threads in [1, 3] {
        let options = EngineOptions { threads: Some(threads), ..native.clone() };
        let found = logits(&mut Engine::load_file(file::open(&path).unwrap(), &folder.0, &options).unwrap());
        assert_eq!(bits(&found), bits(&right));
    }
    // Without the file, the plan has no weights. Such a plan cannot be loaded, written without
    // weights, or packed again.
    assert!(matches!(Engine::load(written.clone(), &folder.0, &native), Err(LoadError::NoWeights)));
    let again = file::write(&path, &written);
    assert!(matches!(again, Err(FileError::Format { source: FormatError::Weights { found: 0, .. }, .. })));
    let again = file::weights::write(&path, &written, &folder.0, &native, |_, _| ());
    assert!(matches!(again, Err(FileError::Source(error)) if matches!(*error, LoadError::NoWeights)));
    assert_eq!(file::read(&path).unwrap(), written, "what failed left what was there");
}

#[test]
fn plan_without_packable_weights_is_written_without_weights() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let path = folder.0.join("tiny.ixp");
    let written = file::weights::write(&path, &plan, &folder.0, &EngineOptions::default(), |_, _| ()).unwrap();
    assert_eq!((&written, &file::open(&path).unwrap().plan), (&plan, &plan));
    assert_eq!(std::fs::read(&path).unwrap(), file::encode(&plan).unwrap());
}

#[test]
fn damage_anywhere_in_a_file_with_weights_is_noticed() {
    let folder = Folder::new();
    let (path, plan, _) = written(&folder);
    let good = std::fs::read(&path).unwrap();
    let count = PACKED.len();
    let table = good.len() - 4 * count;
    let start = table - plan.own_weight_bytes as usize;
    assert_eq!(start % 4096, 0);
    let backend = if Target::AVX512.missing().is_empty() { BackendKind::Native } else { BackendKind::Emulated };
    let load = |bytes: &[u8], skip_weight_check| {
        std::fs::write(&path, bytes).unwrap();
        let options = EngineOptions { skip_weight_check, ..options(2, backend) };
        let file = file::open(&path).map_err(|error| match error {
            FileError::Format { source, .. } => Ok(source),
            error => panic!("{error}"),
        });
        file.and_then(|file| Engine::load_file(file, &folder.0, &options).map(drop).map_err(Err))
    };
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    load(&good, false).unwrap();
    for weight in plan.weights.iter().filter(|weight| weight.file == WeightFile::Plan) {
        for at in [weight.offset, weight.offset + weight.bytes / 2, weight.offset + weight.bytes - 1] {
            let bytes = flipped(start + at as usize);
            match load(&bytes, false) {
                Err(Err(LoadError::DamagedWeight { name, .. })) => assert_eq!(name, weight.name),
                other => panic!("{}: {other:?}", weight.name),
            }
            // Without the check, damaged weights are accepted.
            load(&bytes, true).unwrap();
        }
    }
    for at in table..good.len() {
        assert!(matches!(load(&flipped(at), false), Err(Ok(FormatError::WeightChecksums { .. }))), "byte {at}");
    }
    for at in 12..HEADER_BYTES {
        assert!(matches!(load(&flipped(at), false), Err(Ok(FormatError::Header { .. }))), "byte {at}");
    }
    assert!(matches!(load(&flipped(HEADER_BYTES + 9), false), Err(Ok(FormatError::Checksum { .. }))));
    for end in [0, 7, 40, HEADER_BYTES, start - 1, start, table - 1, table, good.len() - 1] {
        let error = load(&good[..end], false);
        assert!(matches!(error, Err(Ok(FormatError::Magic { .. } | FormatError::Truncated { .. }))), "{end} bytes");
    }
    assert!(matches!(load(&[&good[..], b"x"].concat(), false), Err(Ok(FormatError::Trailing { .. }))));
    // The file ends after the valid payload, without weights.
    let end = u64::from_le_bytes(good[16..24].try_into().unwrap()) as usize;
    let without = file::seal(&good[HEADER_BYTES..HEADER_BYTES + end]);
    assert!(matches!(load(&without, false), Err(Ok(FormatError::Weights { found: 0, .. }))));
}

#[test]
fn packing_another_model_file_is_refused() {
    let folder = Folder::new();
    let plan = tiny::plan_of(&folder.0, Target::AVX512, Factors::Packed);
    let model = folder.0.join("tiny.weights");
    let mut bytes = std::fs::read(&model).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&model, bytes).unwrap();
    let path = folder.0.join("tiny.ixp");
    let error = file::weights::write(&path, &plan, &folder.0, &EngineOptions::default(), |_, _| ());
    assert!(matches!(error, Err(FileError::Source(error)) if matches!(*error, LoadError::OtherModel { .. })));
    assert!(!path.exists());
}

#[cfg(unix)]
#[test]
fn non_regular_file_is_not_replaced() {
    let folder = Folder::new();
    let plan = tiny::plan_of(&folder.0, Target::AVX512, Factors::Packed);
    let path = folder.0.join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let with_weights = file::weights::write(&path, &plan, &folder.0, &EngineOptions::default(), |_, _| ());
    for error in [file::write(&path, &plan).unwrap_err(), with_weights.unwrap_err()] {
        assert!(error.to_string().contains("only be written to a regular file"), "{error}");
    }
    assert!(!std::fs::symlink_metadata(&path).unwrap().is_file());
    let left = std::fs::read_dir(&folder.0)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".socket"));
    assert_eq!(left.count(), 0);
}
