//! Code from outside this process: the CPU features that its instructions need, and calling it.
//!
//! A [`crate::module::Module`] runs only code that it generated from verified kernels. This module
//! runs the code of an exported kernel that is read back from a file. Only the author of such code
//! can state what it does, so calling it is unsafe.

use iced_x86::{Decoder, DecoderOptions};
use memmap2::Mmap;

use crate::module::{CodegenError, executable};
use crate::thunk::{ConventionError, Thunk};
use ixc_targets::cpu;
use ixc_targets::instruction;
use ixc_targets::{Feature, Features};

/// Returns the features that the instructions of `code` need; features that no target uses are
/// omitted.
pub fn features(code: &[u8]) -> Features {
    let mut found = Features::default();
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let needs = instruction.cpuid_features().iter().filter_map(|cpuid| instruction::feature(*cpuid));
        found = found.with(&needs.collect::<Vec<_>>());
    }
    found
}

/// Foreign machine code at the start of a page of executable memory.
#[derive(Debug)]
pub struct ForeignCode {
    memory: Mmap,
    thunk: Thunk,
}

impl ForeignCode {
    /// Copies code and its constants into executable memory. The code's entry is its first byte.
    ///
    /// # Errors
    /// [`CodegenError::ExecutableMemory`].
    pub fn new(code: &[u8]) -> Result<ForeignCode, CodegenError> {
        let no_memory = |source| CodegenError::ExecutableMemory { source };
        let thunk = Thunk::for_machine(cpu::present(), features(code).has(Feature::AmxTile));
        Ok(ForeignCode { memory: executable(code).map_err(no_memory)?, thunk })
    }

    /// Calls the code as `extern "sysv64" fn(buffers: *const *mut u8, dims: *const i64)`.
    ///
    /// # Errors
    /// [`ConventionError`], after the code has run.
    ///
    /// # Safety
    /// The code is trusted: it returns and accesses only these buffers, the stack and itself. This
    /// machine has the features that it needs.
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn call(&self, buffers: &mut [Vec<u8>], dims: &[i64]) -> Result<(), ConventionError> {
        let pointers: Vec<*mut u8> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr()).collect();
        let start = self.memory.as_ptr();
        // SAFETY: the caller guarantees these requirements.
        unsafe { self.thunk.call(start, pointers.as_ptr(), dims.as_ptr()) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn required_features_follow_from_the_instructions() {
        // vaddps ymm0, ymm0, ymm1; vpdpbusd zmm0, zmm1, zmm2; ret
        let code = [0xc5, 0xfc, 0x58, 0xc1, 0x62, 0xf2, 0x75, 0x48, 0x50, 0xc2, 0xc3];
        assert_eq!(features(&code[..4]), Features::from_list(&[Feature::Avx]));
        assert_eq!(features(&code), Features::from_list(&[Feature::Avx, Feature::Avx512vnni]));
    }

    #[test]
    fn foreign_code_is_called_with_its_buffers() {
        // mov rax, [rdi]; add dword ptr [rax], 7; ret
        let code = ForeignCode::new(&[0x48, 0x8b, 0x07, 0x83, 0x00, 0x07, 0xc3]).unwrap();
        let mut buffers = [35_u32.to_le_bytes().to_vec()];
        // SAFETY: the code, shown above, adds to the four bytes of its buffer.
        unsafe { code.call(&mut buffers, &[]) }.unwrap();
        assert_eq!(buffers[0], 42_u32.to_le_bytes());
    }
}
