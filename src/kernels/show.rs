//! A kernel in each stage: IR, machine IR with registers, assembly traced to the IR, bytes.

use std::fmt::Write;

use ixc_codegen::module::CodegenError;
use ixc_codegen::portable;
use ixc_codegen::x64::{self, Compiled, Stats, X64Error};
use ixc_targets::Isa;

use super::KernelError;
use super::choose::Chosen;
use crate::Error;

/// A stage of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Kernel IR.
    Ir,
    /// Machine IR after register allocation; for `portable`, cranelift's IR.
    Lowered,
    /// Instructions, each with the IR statement that it comes from.
    Asm,
    /// Bytes with offsets.
    Bytes,
}

/// A kernel's machine code, for any target.
#[derive(Clone, Debug)]
pub enum Code {
    /// Of our lowering.
    X64(Compiled),
    /// Of cranelift.
    Portable(portable::Code),
}

/// Compiles a chosen kernel, whatever this machine can run.
///
/// # Errors
/// Where the target has no code for it.
pub fn compile(chosen: &Chosen) -> Result<Code, Error> {
    let Chosen { kernel, target, .. } = chosen;
    Ok(match target.isa() {
        Isa::Avx2 | Isa::Avx512 | Isa::Amx => Code::X64(x64::compile(kernel, *target).map_err(|e| refused(chosen, e))?),
        Isa::Portable => Code::Portable(portable::compile_with_text(kernel).map_err(CodegenError::from)?),
    })
}

fn refused(chosen: &Chosen, source: X64Error) -> Error {
    CodegenError::X64 { kernel: chosen.kernel.name.clone(), source }.into()
}

/// The stage as text; lines with what the kernel cost start with `;`, which IR takes as comments, or with `#`, as assemblers do.
///
/// # Errors
/// Where the target has no code for it.
pub fn text(chosen: &Chosen, stage: Stage) -> Result<String, Error> {
    let kernel = &chosen.kernel;
    let code = compile(chosen)?;
    let comment = if stage == Stage::Asm { '#' } else { ';' };
    let mut out = format!("{comment} {} for {}\n", kernel.name, chosen.target.name());
    if let Some(spec) = &chosen.spec {
        let _ = writeln!(out, "{comment} {spec}");
    }
    let _ = writeln!(out, "{comment} {}", cost(&code));
    match (stage, &code) {
        (Stage::Ir, _) => out += &kernel.to_string(),
        (Stage::Lowered, Code::X64(_)) => {
            let (function, allocation) = x64::lower(kernel, chosen.target).map_err(|error| refused(chosen, error))?;
            out += &x64::print::text(kernel, &function, &allocation);
        }
        (Stage::Lowered, Code::Portable(code)) => out += code.text.as_ref().map_or("", |text| &text.clif),
        (Stage::Asm, Code::X64(compiled)) => out += &x64::listing::text(compiled, kernel),
        (Stage::Asm, Code::Portable(code)) => out += code.text.as_ref().map_or("", |text| &text.disassembly),
        (Stage::Bytes, Code::X64(compiled)) => {
            out += &hex(&compiled.code, 0);
            if !compiled.constants.is_empty() {
                let _ = writeln!(out, "; constants");
                out += &hex(&compiled.constants, compiled.code.len());
            }
        }
        (Stage::Bytes, Code::Portable(code)) => out += &hex(&code.bytes, 0),
    }
    Ok(out)
}

/// What a kernel's code cost, in one line.
pub fn cost(code: &Code) -> String {
    match code {
        Code::X64(compiled) => {
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
        Code::Portable(code) => format!("{} bytes of code and constants", code.bytes.len()),
    }
}

/// Bytes, 16 on a line behind their offset.
fn hex(bytes: &[u8], start: usize) -> String {
    let lines = bytes.chunks(16).enumerate().map(|(i, line)| {
        let bytes: String = line.iter().map(|byte| format!(" {byte:02x}")).collect();
        format!("{:6x} {bytes}\n", start + 16 * i)
    });
    lines.collect()
}

/// The compiled kernel of an x86-64 target.
///
/// # Errors
/// [`KernelError::NotOurs`] for `portable`, and as [`compile`].
pub fn compile_x64(chosen: &Chosen, what: &'static str) -> Result<Compiled, Error> {
    match compile(chosen)? {
        Code::X64(compiled) => Ok(compiled),
        Code::Portable(_) => Err(KernelError::NotOurs { what, target: chosen.target.name() }.into()),
    }
}
