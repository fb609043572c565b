//! Plans of models as large as there are, from their headers: for every target, with all experts in memory and without, each plan is
//! made, verified, and machine code is generated for all of its kernels. No limit of the compiler may refuse a real model.
//!
//! The files have holes where their weights would be (`support/headers.rs`): what no one writes takes no room, and what no one reads takes no
//! memory. What each took is printed; `cargo test --test whole real_shapes:: -- --nocapture` shows it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use crate::support::headers::{REAL_SHAPES, RealShape};
use ixc::compile::{Options, compile};
use ixc::model::Model;
use ixc::runtime::load;
use ixc::targets::Target;

const TARGETS: [Target; 4] = [Target::PORTABLE, Target::AVX2, Target::AVX512, Target::AMX];

/// The most memory that a model's header and plans may take, weights apart, beside what this process has when it begins: tests before this one leave some
/// hundred MB. The vocabularies are some MB.
const MOST_MEMORY: u64 = 512 << 20;

/// Bytes of memory of this process, where the system says so.
fn memory(which: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(which))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Bytes of memory that this process had at most since the last call.
fn peak_memory() -> Option<u64> {
    let peak = memory("VmHWM:")?;
    // Begins the count anew.
    fs::write("/proc/self/clear_refs", "5").ok()?;
    Some(peak)
}

fn compile_everywhere(shape: &RealShape, folder: &Path) {
    let path = folder.join(format!("{}.gguf", shape.name));
    shape.write(&path);
    let written = fs::metadata(&path).unwrap();
    // On file systems without holes there is no room for these files, and no use in the test.
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
        // A few GiB, where several hundred experts fit.
        let streamed = shape.experts.map(|_| ("streamed", Some(4 << 30)));
        for (experts, expert_memory) in resident.into_iter().chain(streamed) {
            let begin = Instant::now();
            let options = Options { target: Some(target), expert_memory, ..Options::default() };
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
