//! Replay of a bundle, with a comparison of its results.

use ixc_codegen::foreign::ForeignCode;
use ixc_emulator::Program;
use ixc_kernels::catalogue::compare::{Difference, difference};
use ixc_targets::cpu;

use super::BundleError;
use super::read::Bundle;
use crate::Error;
use crate::kernels::run::{Engine, slices};

/// Default limit of emulated instructions for foreign code. It is a thousand times the number that
/// a large kernel needs. Code that needs more probably has an endless loop.
pub const MAX_STEPS: u64 = 1 << 32;

/// Result of a replay.
#[derive(Clone, Debug)]
pub struct ReplayResult {
    /// Buffers after the call.
    pub buffers: Vec<Vec<u8>>,
    /// The first element that differs.
    pub difference: Option<Difference>,
    /// Executed instructions, if they were counted.
    pub instructions: Option<u64>,
}

/// Emulates the folder's code, for at most `steps` instructions.
///
/// # Errors
/// [`BundleError::Fault`] if the code does something forbidden.
pub fn emulate(bundle: &Bundle, steps: u64) -> Result<ReplayResult, Error> {
    let program = Program::new(&bundle.code, bundle.instruction_bytes, bundle.features).map_err(BundleError::from)?;
    let program = program.with_step_limit(steps);
    let mut found = bundle.before.clone();
    let names = bundle.index.buffers.iter().map(|buffer| (buffer.name.as_str(), buffer.kind.is_written()));
    let stats = program.call(&slices(names, &mut found), &bundle.dims).map_err(BundleError::from)?;
    Ok(compare(bundle, found, Some(stats.instructions)))
}

/// Runs the folder's code on this machine.
///
/// # Errors
/// If this machine lacks a feature that the index or the code names, if it gives no executable
/// memory, or if the code breaks the calling convention.
///
/// # Safety
/// The code runs unchecked in this process, with all of its rights. The caller trusts the author of
/// the folder.
pub unsafe fn native(bundle: &Bundle) -> Result<ReplayResult, Error> {
    let mut missing = cpu::missing(bundle.features);
    // The index may not list all features that the code needs.
    let silent = ixc_codegen::foreign::features(&bundle.code[..bundle.instruction_bytes]);
    missing.extend(cpu::missing(silent).into_iter().filter(|m| !missing.contains(m)).collect::<Vec<_>>());
    if !missing.is_empty() {
        return Err(BundleError::Missing { missing: cpu::list(&missing) }.into());
    }
    let code = ForeignCode::new(&bundle.code)?;
    let mut found = bundle.before.clone();
    // SAFETY: the caller trusts the code; the machine has its features, as was just checked.
    unsafe { code.call(&mut found, &bundle.dims) }.map_err(BundleError::from)?;
    Ok(compare(bundle, found, None))
}

/// Returns the [`Engine`] that was used.
pub fn engine(native: bool) -> Engine {
    if native { Engine::Native } else { Engine::Emulator }
}

fn compare(bundle: &Bundle, buffers: Vec<Vec<u8>>, instructions: Option<u64>) -> ReplayResult {
    let pairs = bundle.index.buffers.iter().zip(bundle.expected.iter().zip(&buffers));
    let difference = pairs.filter_map(|(buffer, (expected, found))| {
        difference(&buffer.name, Some(buffer.elements.elem()), expected.as_ref()?, found)
    });
    let difference = difference.into_iter().next();
    ReplayResult { difference, buffers, instructions }
}
