//! Thunk that calls foreign code. It detects violations of the calling convention and restores the
//! registers and flags.
//!
//! Generated kernels are called directly: the lowering saves the registers, and the emulator checks
//! this for every kernel. Foreign code gives no such guarantee. A function of the System V
//! convention keeps `rbx`, `rbp`, `r12` to `r15` and the rounding and masks in MXCSR, and leaves
//! the direction flag clear. If the function does not, the caller fails later, at an unrelated
//! place.
//!
//! The thunk therefore saves this state, fills the registers with an unlikely value, and compares
//! the state after the call:
//!
//! ```text
//! push rbx … r15; push report; stmxcsr          saved; the stack stays aligned to 16
//! mov rbx, KEPT; … call entry
//! xor rbx, KEPT; mov [report], rbx; …           0 where it was kept
//! cld; ldmxcsr; vzeroupper; tilerelease         restores state, if the machine has the feature
//! pop r15 … rbx; ret
//! ```

#[cfg(target_arch = "x86_64")]
use std::arch::naked_asm;

use ixc_failure::Class;
use ixc_targets::{Feature, Features};

/// Value of the callee-saved registers when the code begins; unlikely to occur by chance.
const SAVED_VALUE: i64 = 0x5a5a_c3c3_6969_0ff1;
/// Direction flag in the flags register.
const DIRECTION: i32 = 1 << 10;
/// Control bits of MXCSR: rounding, exception masks and flushing. The lower bits are exception
/// flags.
const CONTROL: i32 = 0xffc0;
/// State that a function must preserve, in the order of the thunk's report.
const REPORTED: [&str; 8] =
    ["rbx", "rbp", "r12", "r13", "r14", "r15", "the control bits of MXCSR", "the direction flag"];

/// The code broke the calling convention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the code changed {}, which the System V calling convention preserves", changed.join(", "))]
pub struct ConventionError {
    /// Registers and flags that changed.
    pub changed: Vec<&'static str>,
}

impl ConventionError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        Class::Failed
    }
}

/// Function of a thunk. It calls the entry with buffers and dims, and writes the report.
#[cfg(target_arch = "x86_64")]
type Call = unsafe extern "sysv64" fn(*const u8, *const *mut u8, *const i64, *mut [u64; REPORTED.len()]);

/// A thunk for code of this convention:
/// `extern "sysv64" fn(buffers: *const *mut u8, dims: *const i64)`.
#[derive(Debug)]
pub(crate) struct Thunk {
    #[cfg(target_arch = "x86_64")]
    function: Call,
}

#[cfg(target_arch = "x86_64")]
macro_rules! thunk {
    ($(#[doc = $doc:literal])* $name:ident $($restore:literal),*) => {
        $(#[doc = $doc])*
        ///
        /// # Safety
        /// `entry` is a function of these arguments that returns, and `report` can be written.
        #[unsafe(naked)]
        unsafe extern "sysv64" fn $name(
            entry: *const u8,
            buffers: *const *mut u8,
            dims: *const i64,
            report: *mut [u64; REPORTED.len()],
        ) {
            // rdi: entry, rsi: buffers, rdx: dims, rcx: report.
            naked_asm!(
                "push rbx",
                "push rbp",
                "push r12",
                "push r13",
                "push r14",
                "push r15",
                "push rcx",
                // Two slots of eight bytes: MXCSR, and padding that aligns the stack.
                "sub rsp, 16",
                "stmxcsr [rsp]",
                "mov rax, rdi",
                "mov rdi, rsi",
                "mov rsi, rdx",
                "movabs rbx, {saved}",
                "mov rbp, rbx",
                "mov r12, rbx",
                "mov r13, rbx",
                "mov r14, rbx",
                "mov r15, rbx",
                "call rax",
                "mov rax, [rsp + 16]",
                "movabs rcx, {saved}",
                "xor rbx, rcx",
                "xor rbp, rcx",
                "xor r12, rcx",
                "xor r13, rcx",
                "xor r14, rcx",
                "xor r15, rcx",
                "mov [rax], rbx",
                "mov [rax + 8], rbp",
                "mov [rax + 16], r12",
                "mov [rax + 24], r13",
                "mov [rax + 32], r14",
                "mov [rax + 40], r15",
                "stmxcsr [rsp + 8]",
                "mov ecx, [rsp + 8]",
                "xor ecx, [rsp]",
                "and ecx, {control}",
                "mov [rax + 48], rcx",
                "pushfq",
                "pop rcx",
                "and ecx, {direction}",
                "mov [rax + 56], rcx",
                "cld",
                "ldmxcsr [rsp]",
                $($restore,)*
                "add rsp, 24",
                "pop r15",
                "pop r14",
                "pop r13",
                "pop r12",
                "pop rbp",
                "pop rbx",
                "ret",
                saved = const SAVED_VALUE,
                control = const CONTROL,
                direction = const DIRECTION,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
thunk! {
    /// Thunk for machines without AVX.
    without_vectors
}

#[cfg(target_arch = "x86_64")]
thunk! {
    /// Thunk for machines with AVX.
    with_vectors "vzeroupper"
}

#[cfg(target_arch = "x86_64")]
thunk! {
    /// Thunk for code that uses tiles. The bytes encode `tilerelease`, which not every assembler
    /// knows.
    with_tiles ".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0", "vzeroupper"
}

impl Thunk {
    /// Returns the thunk for a machine with these features. `tiles` states whether the code uses
    /// tiles.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn for_machine(present: Features, tiles: bool) -> Thunk {
        let function: Call = if tiles && present.has(Feature::AmxTile) {
            with_tiles
        } else if present.has(Feature::Avx) {
            with_vectors
        } else {
            without_vectors
        };
        Thunk { function }
    }

    /// Returns a thunk that cannot be called, because processors other than x86-64 do not run such
    /// code.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn for_machine(_present: Features, _tiles: bool) -> Thunk {
        Thunk {}
    }

    /// Calls code that begins at `entry`.
    ///
    /// # Errors
    /// The state that the code changed; the code has run to its end.
    ///
    /// # Safety
    /// `entry` is the address of a function that takes these arguments and returns. It accesses
    /// only memory that they point to, its stack and itself.
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn call(
        &self,
        entry: *const u8,
        buffers: *const *mut u8,
        dims: *const i64,
    ) -> Result<(), ConventionError> {
        let mut report = [0; REPORTED.len()];
        // SAFETY: the thunk keeps the convention and writes eight numbers to `report`; the caller
        // guarantees the rest.
        unsafe { (self.function)(entry, buffers, dims, &raw mut report) };
        let changed: Vec<&str> =
            REPORTED.into_iter().zip(report).filter(|(_, changed)| *changed != 0).map(|(name, _)| name).collect();
        if changed.is_empty() { Ok(()) } else { Err(ConventionError { changed }) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use ixc_targets::cpu;

    use super::*;
    use crate::module::executable;

    /// Calls code that takes no buffers, and returns the state that it changed. Then calls an empty
    /// function, which must find the state restored.
    fn changed_registers(code: &[u8]) -> Vec<&'static str> {
        let thunk = Thunk::for_machine(cpu::present(), false);
        let run = |code: &[u8]| {
            let memory = executable(code).unwrap();
            // SAFETY: each of these codes returns and changes only registers.
            unsafe { thunk.call(memory.as_ptr(), std::ptr::null(), std::ptr::null()) }
        };
        let result = run(code);
        assert_eq!(run(&[0xc3]), Ok(()));
        result.map_or_else(|error| error.changed, |()| Vec::new())
    }

    #[test]
    fn thunk_detects_and_restores_clobbered_registers_and_flags() {
        // xor ebx, ebx; xor r15d, r15d; std; ret
        assert_eq!(
            changed_registers(&[0x31, 0xdb, 0x45, 0x31, 0xff, 0xfd, 0xc3]),
            ["rbx", "r15", "the direction flag"]
        );
        // inc rbp; inc r12; inc r13; inc r14; ret
        let code = [0x48, 0xff, 0xc5, 0x49, 0xff, 0xc4, 0x49, 0xff, 0xc5, 0x49, 0xff, 0xc6, 0xc3];
        assert_eq!(changed_registers(&code), ["rbp", "r12", "r13", "r14"]);
        // push 0x7f80; ldmxcsr [rsp]; pop rax; ret: round towards zero
        let code = [0x68, 0x80, 0x7f, 0, 0, 0x0f, 0xae, 0x14, 0x24, 0x58, 0xc3];
        assert_eq!(changed_registers(&code), ["the control bits of MXCSR"]);
        let third = std::hint::black_box(1.0_f32) / std::hint::black_box(3.0);
        assert_eq!(third.to_bits(), 0x3eaa_aaab, "rounding is to the nearest again");
        // push rbx; mov ebx, 1; pop rbx; ret
        assert!(changed_registers(&[0x53, 0xbb, 1, 0, 0, 0, 0x5b, 0xc3]).is_empty());
    }

    #[test]
    fn stack_is_aligned_at_the_call() {
        // movaps [rsp - 24], xmm0; ret: faults if the stack is not aligned to 16 before the call.
        assert!(changed_registers(&[0x0f, 0x29, 0x44, 0x24, 0xe8, 0xc3]).is_empty());
    }
}
