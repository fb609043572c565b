//! Compiled kernels in executable memory, callable.
//!
//! [`Module`] verifies kernels, compiles each for one target, and places all code in one memory
//! mapping. The mapping is first written and then made executable, never both at once.
//!
//! ```
//! use ixc_codegen::module::Module;
//! use ixc_targets::Target;
//! use ixc_ir::kernel::{KernelBuilder, Type};
//!
//! let mut b = KernelBuilder::new("double_f32x8");
//! let (x, y) = (b.read("x", 32), b.write("y", 32));
//! let a = b.load(Type::f32(8), x, 0);
//! let sum = b.add(a, a);
//! b.store(y, 0, sum);
//! let module = Module::compile(&[b.finish()], Target::native()).unwrap();
//!
//! let mut buffers = [1.5_f32.to_le_bytes().repeat(8), vec![0; 32]];
//! module.run_checked(0, &[], &mut buffers).unwrap();
//! assert_eq!(buffers[1], 3.0_f32.to_le_bytes().repeat(8));
//! ```
//!
//! Invariant: the mapping is not writable once a [`Module`] exists, and its code calls nothing
//! outside itself.

use std::io;
use std::marker::PhantomData;

use memmap2::{Mmap, MmapMut};

use ixc_ir::kernel::call::{CallError, check_buffer_count, check_dims};
use ixc_ir::kernel::verify::verify;
use ixc_ir::kernel::{Affine, Atom, Buffer, BufferKind, Dim, Kernel};

pub use crate::artifact::{Artifact, CodegenError};
use crate::parallel;
use crate::profile;
use ixc_targets::Target;

/// Alignment of every kernel in the mapping: the size of a cache line, which is also enough for
/// vector constants.
const ALIGNMENT: usize = 64;
/// `int3`, the padding between kernels. Execution never reaches it.
const PADDING: u8 = 0xcc;

#[cfg(target_arch = "x86_64")]
type Entry = unsafe extern "sysv64" fn(*const *mut u8, *const i64);
#[cfg(not(target_arch = "x86_64"))]
type Entry = unsafe extern "C" fn(*const *mut u8, *const i64);

/// Errors in the arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// The kernel number is out of range.
    #[error("there is no kernel {kernel}; the module has {kernels} kernels")]
    Kernel {
        /// The requested number of a kernel.
        kernel: usize,
        /// Number of kernels that the module has.
        kernels: usize,
    },
    /// A wrong number of dims or buffers, or a dim outside its range.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A buffer is too small.
    #[error("buffer %{name} has {found} bytes; with these dims it must have {expected}")]
    Buffer {
        /// Name of the buffer.
        name: String,
        /// Size of the given buffer in bytes.
        found: usize,
        /// Required size in bytes.
        expected: i64,
    },
    /// A value in an index buffer that is not below the bound.
    #[error("index buffer %{name} has {value} at byte {offset}; every value must be below {below}")]
    Index {
        /// Name of the buffer.
        name: String,
        /// Byte offset of the value.
        offset: usize,
        /// The value, which is too large.
        value: u32,
        /// Exclusive upper bound of the indices.
        below: i64,
    },
}

/// A kernel of a module.
#[derive(Debug)]
pub struct ModuleKernel {
    /// The kernel's name.
    pub name: String,
    /// The kernel's dims.
    pub dims: Vec<Dim>,
    /// The kernel's buffers.
    pub buffers: Vec<Buffer>,
    /// The compiled code.
    pub artifact: Artifact,
    offset: usize,
}

/// Kernels in executable memory.
#[derive(Debug)]
pub struct Module {
    target: Target,
    /// Registration with gdb; dropped together with the code.
    _registered: Option<profile::gdb::GdbRegistration>,
    memory: Mmap,
    kernels: Vec<ModuleKernel>,
}

/// Verifies kernels and generates their code, for any target on any machine, without making it
/// executable. It fails if [`Module::compile`] would reject a kernel.
///
/// # Errors
/// [`CodegenError::Verify`], [`CodegenError::X64`] or [`CodegenError::Portable`] of the first
/// kernel that has no code.
pub fn lower(kernels: &[Kernel], target: Target) -> Result<Vec<Artifact>, CodegenError> {
    parallel::map(kernels, |kernel| artifact(kernel, target)).into_iter().collect()
}

/// Verifies one kernel and generates its code.
fn artifact(kernel: &Kernel, target: Target) -> Result<Artifact, CodegenError> {
    verify(kernel).map_err(|source| CodegenError::Verify { kernel: kernel.name.clone(), source })?;
    Artifact::generate(kernel, target, false)
}

impl Module {
    /// Verifies and compiles kernels and makes them callable.
    ///
    /// # Errors
    /// See [`CodegenError`].
    pub fn compile(kernels: &[Kernel], target: Target) -> Result<Module, CodegenError> {
        let missing = target.missing();
        if !missing.is_empty() {
            return Err(CodegenError::MissingFeatures { target, missing });
        }
        let mut code: Vec<u8> = Vec::new();
        let mut placed = Vec::with_capacity(kernels.len());
        for (kernel, artifact) in kernels.iter().zip(lower(kernels, target)?) {
            code.resize(code.len().next_multiple_of(ALIGNMENT), PADDING);
            let offset = code.len();
            if let Artifact::Portable(compiled) = &artifact {
                debug_assert!(ALIGNMENT.is_multiple_of(compiled.alignment));
            }
            artifact.bytes().into_iter().for_each(|bytes| code.extend_from_slice(bytes));
            code.resize(code.len().max(offset + profile::room(&artifact)), PADDING);
            placed.push(ModuleKernel {
                name: kernel.name.clone(),
                dims: kernel.dims.clone(),
                buffers: kernel.buffers.clone(),
                artifact,
                offset,
            });
        }
        let memory = executable(&code).map_err(|source| CodegenError::ExecutableMemory { source })?;
        let begin = memory.as_ptr() as u64;
        let known = kernels.iter().zip(&placed).map(|(kernel, own)| profile::PlacedKernel {
            kernel,
            artifact: &own.artifact,
            address: begin + own.offset as u64,
        });
        let registered = profile::add_kernels(&known.collect::<Vec<_>>());
        Ok(Module { target, _registered: registered, memory, kernels: placed })
    }

    /// Returns the target of all kernels.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Returns the kernels in the order of [`Module::compile`]'s argument.
    pub fn kernels(&self) -> &[ModuleKernel] {
        &self.kernels
    }

    /// Returns the number of the kernel with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.kernels.iter().position(|k| k.name == name)
    }

    /// Calls a kernel.
    ///
    /// # Panics
    /// The module has no kernel with this number.
    ///
    /// # Safety
    /// With the kernel's signature ([`Module::kernels`]):
    /// - `dims` has one value per dim, each in its range;
    /// - `buffers` has one pointer per buffer, each valid for the buffer's size with these dims.
    ///   Index, read and read-write buffers are valid for reads. Written buffers are valid for
    ///   writes; during the call, no other code accesses the parts that the call writes;
    /// - a written or scratch buffer overlaps no other buffer of the call;
    /// - every value in an index buffer is below the buffer's bound.
    pub unsafe fn call(&self, kernel: usize, buffers: &[*mut u8], dims: &[i64]) {
        let kernel = &self.kernels[kernel];
        debug_assert_eq!((buffers.len(), dims.len()), (kernel.buffers.len(), kernel.dims.len()));
        let start = self.memory[kernel.offset..].as_ptr();
        // SAFETY: the code at this offset belongs to a kernel with this signature. Its memory is
        // executable and lives as long as `self`, and generated code follows the calling
        // convention. `Module::compile` checked that this machine has the target's features.
        let entry: Entry = unsafe { std::mem::transmute(start) };
        // SAFETY: the verifier proved that a kernel stays inside its buffers if its arguments are
        // as the caller promises.
        unsafe { entry(buffers.as_ptr(), dims.as_ptr()) }
    }

    /// Checks all requirements of [`Module::call`] and returns the checked call, which can run any
    /// number of times.
    ///
    /// # Errors
    /// See [`ArgumentError`].
    pub fn bind<'a>(
        &'a self,
        kernel: usize,
        dims: &[i64],
        buffers: &'a mut [Vec<u8>],
    ) -> Result<Bound<'a>, ArgumentError> {
        let Some(signature) = self.kernels.get(kernel) else {
            return Err(ArgumentError::Kernel { kernel, kernels: self.kernels.len() });
        };
        let views: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        check_arguments(&signature.dims, &signature.buffers, dims, &views)?;
        let pointers = buffers.iter_mut().map(|b| b.as_mut_ptr()).collect();
        Ok(Bound { module: self, kernel, pointers, dims: dims.to_vec(), buffers: PhantomData })
    }

    /// Calls a kernel after checking all requirements of [`Module::call`].
    ///
    /// # Errors
    /// See [`ArgumentError`]; in that case nothing has run.
    pub fn run_checked(&self, kernel: usize, dims: &[i64], buffers: &mut [Vec<u8>]) -> Result<(), ArgumentError> {
        self.bind(kernel, dims, buffers)?.call();
        Ok(())
    }
}

/// A kernel with checked arguments, which can be called many times.
#[derive(Debug)]
pub struct Bound<'a> {
    module: &'a Module,
    kernel: usize,
    pointers: Vec<*mut u8>,
    dims: Vec<i64>,
    buffers: PhantomData<&'a mut [Vec<u8>]>,
}

impl Bound<'_> {
    /// Calls the kernel.
    pub fn call(&mut self) {
        // SAFETY: sizes, ranges and index values were checked, and a kernel writes no index buffer.
        // Distinct vectors don't overlap and stay mutably borrowed.
        unsafe { self.module.call(self.kernel, &self.pointers, &self.dims) };
    }
}

/// Checks arguments against a kernel's signature: counts, ranges, sizes and index values.
///
/// # Errors
/// The first error found.
pub fn check_arguments(
    dims: &[Dim],
    buffers: &[Buffer],
    dim_values: &[i64],
    buffer_bytes: &[&[u8]],
) -> Result<(), ArgumentError> {
    check_dims(dims, dim_values)?;
    check_buffer_count(buffers, buffer_bytes.len())?;
    // No buffer is large enough if the size overflows.
    let evaluate = |affine: &Affine| {
        affine.evaluate(|atom| match atom {
            Atom::Dim(d) => dim_values.get(d.index()).copied().unwrap_or(i64::MAX),
            Atom::Var(_) => i64::MAX,
        })
    };
    for (buffer, bytes) in buffers.iter().zip(buffer_bytes) {
        let expected = evaluate(&buffer.size).unwrap_or(i64::MAX).max(0);
        if i64::try_from(bytes.len()).is_ok_and(|found| found < expected) {
            return Err(ArgumentError::Buffer { name: buffer.name.clone(), found: bytes.len(), expected });
        }
        if let BufferKind::Index { below } = &buffer.kind {
            let below = evaluate(below).unwrap_or(0);
            let indexed = usize::try_from(expected).map_or(bytes.len(), |expected| expected.min(bytes.len()));
            for (i, word) in bytes[..indexed].chunks_exact(4).enumerate() {
                let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                if i64::from(value) >= below {
                    return Err(ArgumentError::Index { name: buffer.name.clone(), offset: 4 * i, value, below });
                }
            }
        }
    }
    Ok(())
}

/// Copies code into memory, then makes the memory executable and no longer writable.
pub(crate) fn executable(code: &[u8]) -> io::Result<Mmap> {
    // `mmap` rejects a length of 0, so at least one byte is mapped.
    let mut memory = MmapMut::map_anon(code.len().max(1))?;
    memory[..code.len()].copy_from_slice(code);
    memory.make_exec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_ir::kernel::{KernelBuilder, Type};

    fn gather() -> Kernel {
        let mut b = KernelBuilder::new("gather");
        let n = b.dim("n", 0, 100);
        let ids = b.buffer("ids", BufferKind::Index { below: Affine::constant(4) }, n * 4);
        let (x, y) = (b.read("x", 4 * 32), b.write("y", n * 32));
        b.for_each("i", n, |b, i| {
            let row = b.load_index("row", ids, i * 4);
            let a = b.load(Type::f32(8), x, row * 32);
            b.store(y, i * 32, a);
        });
        b.finish()
    }

    #[test]
    fn arguments_are_checked_before_anything_runs() {
        for target in [Target::PORTABLE, Target::AVX2] {
            let module = match Module::compile(&[gather()], target) {
                Err(CodegenError::MissingFeatures { .. }) => {
                    println!("NOT RUN: this CPU lacks features of target {}", target.name());
                    continue;
                }
                module => module.unwrap(),
            };
            let ids = |v: [u32; 2]| v.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<u8>>();
            let x: Vec<u8> = (0..128).collect();
            let mut good = [ids([3, 0]), x.clone(), vec![0; 64]];
            module.run_checked(0, &[2], &mut good).unwrap();
            assert_eq!(good[2], [&x[96..128], &x[..32]].concat());
            let error = module.run_checked(0, &[2], &mut [ids([3, 4]), x.clone(), vec![0; 64]]).unwrap_err();
            assert_eq!(error, ArgumentError::Index { name: "ids".into(), offset: 4, value: 4, below: 4 });
            let error = module.run_checked(0, &[2], &mut [ids([0, 0]), x.clone(), vec![0; 63]]).unwrap_err();
            assert_eq!(error, ArgumentError::Buffer { name: "y".into(), found: 63, expected: 64 });
            let error = module.run_checked(0, &[101], &mut good).unwrap_err();
            assert_eq!(
                error,
                ArgumentError::Call(CallError::DimRange { name: "n".into(), found: 101, lo: 0, hi: 100 })
            );
            let error = module.run_checked(0, &[], &mut good).unwrap_err();
            assert_eq!(error, ArgumentError::Call(CallError::DimCount { found: 0, expected: vec!["n".into()] }));
            let error = module.run_checked(1, &[], &mut good).unwrap_err();
            assert_eq!(error, ArgumentError::Kernel { kernel: 1, kernels: 1 });
        }
    }
}
