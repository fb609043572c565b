//! Result of lowering one kernel, and the errors that prevent it.

use std::io;

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_ir::kernel::verify::VerifyError;
use ixc_targets::{Lowering, Target, cpu};

use crate::line::Line;
use crate::portable::{self, PortableError};
use crate::x64::listing::FinishedCode;
use crate::x64::{self, X64Error};

/// Reasons why kernels have no callable code.
#[derive(Debug, thiserror::Error)]
pub enum CodegenError {
    /// This machine can't run the target's code.
    #[error("target {} cannot run here: this machine lacks {}", target.name(), cpu::list(missing))]
    MissingFeatures {
        /// The target.
        target: Target,
        /// CPU or system features that the target needs and this machine lacks.
        missing: Vec<cpu::Missing>,
    },
    /// The kernel breaks a rule of the IR.
    #[error("kernel `{kernel}`: {source}")]
    Verify {
        /// Name of the kernel.
        kernel: String,
        /// The violated rule, and its place.
        source: VerifyError,
    },
    /// The x86-64 lowering rejected a kernel.
    #[error("kernel `{kernel}`: {source}")]
    X64 {
        /// Name of the kernel.
        kernel: String,
        /// The reason.
        source: X64Error,
    },
    /// The `portable` lowering rejected a kernel.
    #[error(transparent)]
    Portable(#[from] PortableError),
    /// The system gives no executable memory.
    #[error(
        "no executable memory: {source}; generated code needs mmap and then mprotect(PROT_EXEC), which systemd's \
         MemoryDenyWriteExecute=yes and some SELinux policies forbid"
    )]
    ExecutableMemory {
        /// The system's error.
        source: io::Error,
    },
}

impl CodegenError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            CodegenError::MissingFeatures { .. } | CodegenError::ExecutableMemory { .. } => Class::Unavailable,
            // IR from a file is verified before, so this is a bug.
            CodegenError::Verify { .. } | CodegenError::X64 { .. } | CodegenError::Portable(_) => Class::Failed,
        }
    }
}

/// Result of lowering one kernel, for listings and statistics.
#[derive(Clone, Debug)]
pub enum Artifact {
    /// From [`crate::x64`].
    X64(x64::Compiled),
    /// From [`crate::portable`].
    Portable(portable::Code),
}

impl Artifact {
    /// Generates the code of a verified kernel. With `with_text`, also keeps listings that cost
    /// extra time.
    ///
    /// # Errors
    /// [`CodegenError::X64`] or [`CodegenError::Portable`].
    pub fn generate(kernel: &Kernel, target: Target, with_text: bool) -> Result<Artifact, CodegenError> {
        Ok(match (target.isa().lowering, with_text) {
            (Lowering::X64, _) => {
                let refused = |source| CodegenError::X64 { kernel: kernel.name.clone(), source };
                Artifact::X64(x64::compile(kernel, target).map_err(refused)?)
            }
            (Lowering::Cranelift, false) => Artifact::Portable(portable::compile(kernel)?),
            (Lowering::Cranelift, true) => Artifact::Portable(portable::compile_with_text(kernel)?),
        })
    }

    /// Returns the bytes for executable memory: the code, then its constants.
    pub fn bytes(&self) -> [&[u8]; 2] {
        match self {
            Artifact::X64(compiled) => [&compiled.code, &compiled.constants],
            Artifact::Portable(code) => [&code.bytes, &[]],
        }
    }

    /// Returns the kernel statement of each instruction, in code order. Empty if unknown.
    pub fn lines(&self) -> &[Line] {
        match self {
            Artifact::X64(compiled) => &compiled.lines,
            Artifact::Portable(code) => &code.lines,
        }
    }

    /// Returns the input of x86-64 listings; `None` for code of other architectures.
    pub fn finished_code(&self) -> Option<FinishedCode<'_>> {
        match self {
            Artifact::X64(compiled) => Some(FinishedCode::from(compiled)),
            // The portable code runs on this machine, which is x86-64.
            Artifact::Portable(code) if cfg!(target_arch = "x86_64") => {
                let portable::Code { name, bytes, code_bytes, constants_at, lines, .. } = code;
                let (code, constants) = (bytes.get(..*code_bytes)?, bytes.get(*constants_at..)?);
                Some(FinishedCode { name, code, constants, constants_at: *constants_at, lines })
            }
            Artifact::Portable(_) => None,
        }
    }

    /// Returns the listing of one of several kernels. `number` makes its labels unique. On other
    /// architectures than x86-64, the listing is empty if the code was compiled without text.
    pub fn listing(&self, kernel: &Kernel, number: usize) -> String {
        if let Some(code) = self.finished_code() {
            return x64::listing::text_of_many(code, kernel, number);
        }
        match self {
            Artifact::X64(compiled) => x64::listing::text_of_many(compiled, kernel, number),
            Artifact::Portable(code) => {
                let listing = code.text.as_ref().map_or("", |text| &text.disassembly);
                format!("; {} ({} bytes)\n{listing}", code.name, code.bytes.len())
            }
        }
    }
}
