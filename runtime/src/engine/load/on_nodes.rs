//! Weights on NUMA nodes: loading packs all weights, and copies them to the nodes of each home.

use std::time::Instant;

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, WeightFile};

use super::{LoadError, own_memory_layout, pack_all, record_phase};
use crate::execute::EngineMemory;
use crate::numa::error::NumaError;
use crate::options::{EngineOptions, ExpertStore};
use crate::pool::Pool;

/// Returns whether all weights are copied to the nodes of the engine's homes. With experts in
/// mapped files, no weight is copied, because the page cache holds the weights.
pub(super) fn copies_weights(options: &EngineOptions) -> bool {
    !options.homes.all().is_empty() && options.experts != ExpertStore::Map
}

/// Returns the bytes of all copies of the weights but the first one.
///
/// # Errors
/// [`NumaError::MirrorStreamed`] if there are several homes, but experts are streamed or in mapped
/// files.
pub(super) fn copies_bytes(
    options: &EngineOptions,
    plan: &Plan<Kernel>,
    streamed: Option<&[bool]>,
    copied: Option<&[bool]>,
) -> Result<u64, LoadError> {
    let copies = options.homes.all().len().saturating_sub(1) as u64;
    // Experts in blocks are not copied: they stay in the mapped file.
    let has_blocks = plan.weights.iter().any(|weight| matches!(weight.file, WeightFile::Blocks { .. }));
    if copies > 0 && (streamed.is_some() || has_blocks || !copies_weights(options)) {
        return Err(NumaError::MirrorStreamed.into());
    }
    Ok(if copies == 0 { 0 } else { own_memory_layout(&plan.weights, copied).1.saturating_mul(copies) })
}

/// Packs all weights, so that steps read no file, and copies the weights to the nodes of each home.
pub(super) fn copy_to_homes(
    store: &mut EngineMemory,
    pool: &mut Pool,
    options: &EngineOptions,
) -> Result<(), LoadError> {
    let begin = Instant::now();
    pack_all(&mut store.weights, &store.files, pool, options.progress.as_deref())?;
    store.weights.copy_to(options.homes.all(), &options.homes.of_threads(pool.threads()))?;
    record_phase(options, begin, "bring weights to NUMA nodes");
    Ok(())
}
