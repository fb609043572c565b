//! Compilation of the largest known models, from their headers. For every target, a plan with all
//! experts in memory and one with streamed experts are made and verified. Machine code is generated
//! for all kernels of the plans. No limit of the compiler may refuse a real model.
//!
//! The files have holes in place of their weights (`support/headers.rs`). A hole that is never
//! written takes no space, and a hole that is never read takes no memory. The test prints time and
//! memory; `cargo test --workspace --test whole real_shapes:: -- --nocapture` shows them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use crate::support::headers::{REAL_SHAPES, RealShape};
use ixc::compile::{CompileOptions, compile};
use ixc::model::Model;
use ixc::runtime::load;
use ixc::targets::Target;

const TARGETS: [Target; 4] = [Target::PORTABLE, Target::AVX2, Target::AVX512, Target::AMX];

/// Max memory for a model's header and plans, without weights. This process's memory at the start
/// is not included: earlier tests leave some hundred MB. The vocabularies take some MB.
const MOST_MEMORY: u64 = 512 << 20;

/// Returns a number of bytes from this process's memory status, if the system reports it.
fn memory(which: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(which))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Returns the peak memory of this process, in bytes, and resets it. It covers the time since the
/// last call.
fn peak_memory() -> Option<u64> {
    let peak = memory("VmHWM:")?;
    // Resets the peak memory.
    fs::write("/proc/self/clear_refs", "5").ok()?;
    Some(peak)
}

fn compile_everywhere(shape: &RealShape, folder: &Path) {
    let path = folder.join(format!("{}.gguf", shape.name));
    shape.write(&path);
    let written = fs::metadata(&path).unwrap();
    // On a file system that does not support holes, there would be no space for these files, so the
    // test cannot run.
    assert!(written.blocks() * 512 < written.len() / 100, "{}: no holes here", path.display());
    let begin = Instant::now();
    peak_memory();
    let had = memory("VmRSS:").unwrap_or(0);
    let model = Model::open(&path).unwrap();
    let (gib, opened) = (written.len() as f64 / (1u64 << 30) as f64, begin.elapsed());
    println!("{}: {gib:.0} GiB, header read in {opened:.2?}", shape.name);
    let experts: u64 =
        model.arch.module.weights.iter().filter(|weight| weight.shape.len() == 3).map(|w| w.shape[0]).sum();
    assert_eq!(experts > 0, shape.experts.is_some());
    for target in TARGETS {
        let resident = [("in memory", None)];
        // The budget for streaming has a few GiB, which hold several hundred experts.
        let streamed = shape.experts.map(|_| ("streamed", Some(4 << 30)));
        for (experts, expert_memory) in resident.into_iter().chain(streamed) {
            let begin = Instant::now();
            let options = CompileOptions { target: Some(target), expert_memory, ..CompileOptions::default() };
            let compiled = compile(&model, &options).unwrap_or_else(|error| panic!("{}: {error}", shape.name));
            let (plan, planned) = (compiled.plan, begin.elapsed());
            load::check(&plan).unwrap_or_else(|error| panic!("{} for {}: {error}", shape.name, target.name()));
            let checked = begin.elapsed() - planned;
            assert_eq!(plan.expert_groups.len() as u64, if expert_memory.is_some() { shape.layers } else { 0 });
            assert_eq!(u64::from(plan.vocabulary), shape.vocabulary);
            let peak = peak_memory().map(|peak| peak.saturating_sub(had));
            println!(
                "  {:<9} {experts:<9} {} steps, {} kernels: planned in {planned:.2?}, code in {checked:.2?}, {} MiB at most",
                target.name(),
                plan.steps.len(),
                plan.kernels.len(),
                peak.map_or("?".to_owned(), |peak| (peak >> 20).to_string()),
            );
            assert!(peak.is_none_or(|peak| peak < MOST_MEMORY), "{peak:?} bytes of memory");
        }
    }
    drop(model);
    let after = fs::metadata(&path).unwrap();
    assert_eq!((after.blocks(), after.len()), (written.blocks(), written.len()), "nothing was written");
    fs::remove_file(&path).unwrap();
}

#[test]
fn every_kernel_of_real_models_has_code_on_every_target() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-shapes");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for shape in &REAL_SHAPES {
        compile_everywhere(shape, &folder);
    }
}
