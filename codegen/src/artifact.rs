//! Result of lowering one kernel, and the reasons why kernels get no code.
//!
//! A process that loads the same kernels many times can share their artifacts. Lowering is
//! deterministic, so shared artifacts are equal to new ones:
//!
//! ```
//! use ixc_codegen::artifact::{Artifact, share_artifacts};
//! use ixc_ir::kernel::{KernelBuilder, Type};
//! use ixc_targets::Target;
//!
//! let mut b = KernelBuilder::new("copy_f32x8");
//! let (x, y) = (b.read("x", 32), b.write("y", 32));
//! let value = b.load(Type::f32(8), x, 0);
//! b.store(y, 0, value);
//! let kernel = b.finish();
//! let lower = || Artifact::generate(&kernel, Target::AVX2, false).unwrap();
//!
//! let new = lower();
//! share_artifacts();
//! let (first, shared) = (lower(), lower());
//! assert_eq!((first.bytes(), shared.bytes()), (new.bytes(), new.bytes()));
//! ```

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

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
        /// Target of the code.
        target: Target,
        /// CPU or system features that the target needs and this machine lacks.
        missing: Vec<cpu::Missing>,
    },
    /// The kernel breaks a rule of the IR.
    #[error("kernel `{kernel}`: {source}")]
    Verify {
        /// Name of the kernel.
        kernel: String,
        /// The violated rule, and its place in the kernel.
        source: VerifyError,
    },
    /// The x86-64 lowering rejected a kernel.
    #[error("kernel `{kernel}`: {source}")]
    X64 {
        /// Name of the kernel.
        kernel: String,
        /// Reason of the rejection.
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
        /// The system's error for the mapping.
        source: io::Error,
    },
}

impl CodegenError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            CodegenError::MissingFeatures { .. } | CodegenError::ExecutableMemory { .. } => Class::Unavailable,
            // IR from a file is verified when the file is read, so this is a bug.
            CodegenError::Verify { .. } | CodegenError::X64 { .. } | CodegenError::Portable(_) => Class::Failed,
        }
    }
}

/// Artifacts by the text and the target of their kernels. Kernels are compared by text, because
/// text has the exact bits of floats: `==` considers zeros of both signs equal.
#[derive(Default)]
struct SharedArtifacts {
    /// Bytes of all kernels' texts and artifacts.
    bytes: usize,
    by_text: HashMap<(String, Target), Artifact>,
}

static SHARED: OnceLock<Mutex<SharedArtifacts>> = OnceLock::new();

/// Max bytes of shared artifacts with the texts of their kernels.
const MAX_SHARED: usize = 200_000_000;

/// Keeps artifacts in memory from now on, and reuses them for equal kernels. They take up to 200
/// MB.
///
/// Only tests call this: they load the plans of a few models hundreds of times.
pub fn share_artifacts() {
    SHARED.get_or_init(Mutex::default);
}

impl SharedArtifacts {
    fn add(&mut self, key: (String, Target), artifact: &Artifact) {
        let bytes = key.0.len() + artifact.bytes().concat().len();
        if self.bytes + bytes > MAX_SHARED {
            *self = SharedArtifacts::default();
        }
        self.bytes += bytes;
        self.by_text.insert(key, artifact.clone());
    }
}

/// Result of lowering one kernel, for listings and statistics.
#[derive(Clone, Debug)]
pub enum Artifact {
    /// Machine code from [`crate::x64`].
    X64(x64::CompiledKernel),
    /// Machine code from [`crate::portable`].
    Portable(portable::Code),
}

impl Artifact {
    /// Generates the code of a verified kernel. With `with_text`, also keeps listings, which cost
    /// extra time. Otherwise, returns a shared artifact if there is one ([`share_artifacts`]).
    ///
    /// # Errors
    /// [`CodegenError::X64`] or [`CodegenError::Portable`].
    pub fn generate(kernel: &Kernel, target: Target, with_text: bool) -> Result<Artifact, CodegenError> {
        let Some(shared) = SHARED.get().filter(|_| !with_text) else {
            return Artifact::lower(kernel, target, with_text);
        };
        // The lock is not held during lowering, because other threads lower other kernels.
        let locked = || shared.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kernel.to_string(), target);
        if let Some(artifact) = locked().by_text.get(&key) {
            return Ok(artifact.clone());
        }
        let artifact = Artifact::lower(kernel, target, with_text)?;
        locked().add(key, &artifact);
        Ok(artifact)
    }

    fn lower(kernel: &Kernel, target: Target, with_text: bool) -> Result<Artifact, CodegenError> {
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

    /// Returns the data from which x86-64 listings are made; `None` for code of other
    /// architectures.
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

    /// Returns the listing of one of several kernels. `number` makes the labels of the listing
    /// unique. On other architectures than x86-64, the listing is empty if the code was compiled
    /// without text.
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

#[cfg(test)]
mod tests {
    use ixc_ir::kernel::{KernelBuilder, Type};

    use super::*;

    /// Returns a kernel that copies eight floats from an offset.
    fn copy(name: &str, offset: i64) -> Kernel {
        let mut b = KernelBuilder::new(name);
        let (x, y) = (b.read("x", 64), b.write("y", 32));
        let value = b.load(Type::f32(8), x, offset);
        b.store(y, 0, value);
        b.finish()
    }

    #[test]
    fn different_kernels_of_one_name_share_no_artifact() {
        share_artifacts();
        let kernels = [0, 32].map(|offset| copy("copy", offset));
        let own = kernels.each_ref().map(|kernel| Artifact::lower(kernel, Target::AVX2, false).unwrap());
        assert_ne!(own[0].bytes(), own[1].bytes());
        for _ in 0..2 {
            for (kernel, own) in kernels.iter().zip(&own) {
                assert_eq!(Artifact::generate(kernel, Target::AVX2, false).unwrap().bytes(), own.bytes());
            }
        }
    }

    #[test]
    fn shared_artifacts_are_limited() {
        let artifact = Artifact::lower(&copy("copy", 0), Target::AVX2, false).unwrap();
        let mut shared = SharedArtifacts::default();
        let mut add = |name: &str, bytes: usize| {
            shared.bytes += bytes;
            shared.add((name.to_owned(), Target::AVX2), &artifact);
            shared.by_text.len()
        };
        assert_eq!([add("first", 0), add("second", 0), add("third", MAX_SHARED), add("fourth", 0)], [1, 2, 1, 2]);
    }
}
