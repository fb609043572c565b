//! Stages of a kernel as text: IR, machine IR with registers, assembly with its IR statements, and
//! bytes.

use std::fmt::Write;

use ixc_codegen::module::{Artifact, CodegenError};
use ixc_codegen::x64::{self, CompiledKernel, Stats, X64Error};
use ixc_ir::kernel::Kernel;

use super::KernelError;
use super::choose::TargetKernel;
use crate::Error;
use ixc_compile::replacements::SPEC;

/// A stage of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Kernel IR.
    Ir,
    /// Machine IR after register allocation; for `portable`, cranelift's IR.
    Lowered,
    /// Instructions with their IR statements.
    Asm,
    /// Bytes with offsets.
    Bytes,
}

/// Compiles a chosen kernel, even if this machine cannot run it.
///
/// # Errors
/// If the target has no code for it.
pub fn compile(chosen: &TargetKernel) -> Result<Artifact, Error> {
    Ok(Artifact::generate(&chosen.kernel, chosen.target, true)?)
}

fn compile_error(chosen: &TargetKernel, source: X64Error) -> Error {
    CodegenError::X64 { kernel: chosen.kernel.name.clone(), source }.into()
}

/// Returns the stage as text. Lines with the kernel's cost start with the comment mark: `;` in IR,
/// `#` in assembly.
///
/// # Errors
/// If the target has no code for it.
pub fn text(chosen: &TargetKernel, stage: Stage) -> Result<String, Error> {
    let kernel = &chosen.kernel;
    let code = compile(chosen)?;
    let comment = if stage == Stage::Asm { '#' } else { ';' };
    let mut out = format!("{comment} {} for {}\n", kernel.name, chosen.target.name());
    if let Some(spec) = &chosen.spec {
        let _ = writeln!(out, "{comment}{SPEC}{spec}");
    }
    let _ = writeln!(out, "{comment} {}", cost(&code));
    match (stage, &code) {
        (Stage::Ir, _) => out += &kernel.to_string(),
        (Stage::Lowered, Artifact::X64(_)) => {
            let (function, allocation) =
                x64::lower(kernel, chosen.target).map_err(|error| compile_error(chosen, error))?;
            out += &x64::print::text(kernel, &function, &allocation);
        }
        (Stage::Lowered, Artifact::Portable(code)) => out += code.text.as_ref().map_or("", |text| &text.clif),
        (Stage::Asm, artifact) => out += &listing(artifact, kernel),
        (Stage::Bytes, Artifact::X64(compiled)) => {
            out += &hex(&compiled.code, 0);
            if !compiled.constants.is_empty() {
                let _ = writeln!(out, "; constants");
                out += &hex(&compiled.constants, compiled.code.len());
            }
        }
        (Stage::Bytes, Artifact::Portable(code)) => out += &hex(&code.bytes, 0),
    }
    Ok(out)
}

/// Returns the listing of one kernel.
fn listing(artifact: &Artifact, kernel: &Kernel) -> String {
    match artifact.finished_code() {
        Some(code) => x64::listing::text(code, kernel),
        None => artifact.listing(kernel, 0),
    }
}

/// Returns the cost of a kernel's code, in one line.
pub fn cost(code: &Artifact) -> String {
    match code {
        Artifact::X64(compiled) => {
            let Stats { vector_spills, gpr_spills, rematerialised, moves, moves_in_innermost_loops, .. } =
                compiled.stats;
            format!(
                "spills {} ({vector_spills} vector, {gpr_spills} integer), constants read again {rematerialised}, moves {moves} \
                 ({moves_in_innermost_loops} in innermost loops), {} instructions, {} bytes of code, {} of constants",
                vector_spills + gpr_spills,
                compiled.stats.instructions,
                compiled.code_bytes,
                compiled.constants.len()
            )
        }
        Artifact::Portable(code) => format!("{} bytes of code and constants", code.bytes.len()),
    }
}

/// Returns bytes in hexadecimal, 16 on a line after their offset.
fn hex(bytes: &[u8], start: usize) -> String {
    let lines = bytes.chunks(16).enumerate().map(|(i, line)| {
        let bytes: String = line.iter().map(|byte| format!(" {byte:02x}")).collect();
        format!("{:6x} {bytes}\n", start + 16 * i)
    });
    lines.collect()
}

/// Returns the compiled kernel of an x86-64 target.
///
/// # Errors
/// [`KernelError::NotOurs`] for `portable`; also see [`compile`].
pub fn compile_x64(chosen: &TargetKernel, what: &'static str) -> Result<CompiledKernel, Error> {
    match compile(chosen)? {
        Artifact::X64(compiled) => Ok(compiled),
        Artifact::Portable(_) => Err(KernelError::NotOurs { what, target: chosen.target.name() }.into()),
    }
}
