//! The `portable` target: kernel IR through cranelift.
//!
//! Compiles any verified kernel of vector ops into machine code for this machine, as one block of
//! bytes without relocations. The code computes exactly the interpreter's results. It shares no
//! instruction selection with the [`x64`](crate::x64) lowering, so tests compare both.
//!
//! Cranelift's vectors are 16 bytes, so a value is a list of *chunks* of 16 bytes. A narrower value
//! is in the lowest lanes of one chunk; the bytes above it are undefined.
//!
//! ```
//! use ixc_ir::kernel::{KernelBuilder, Type};
//!
//! let mut b = KernelBuilder::new("double_f32x8");
//! let (x, y) = (b.read("x", 32), b.write("y", 32));
//! let a = b.load(Type::f32(8), x, 0);
//! let sum = b.add(a, a);
//! b.store(y, 0, sum);
//! let code = ixc_codegen::portable::compile_with_text(&b.finish()).unwrap();
//! assert_eq!(code.name, "double_f32x8");
//! assert_eq!(code.text.unwrap().clif.matches("fadd").count(), 2);
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | `lower` | statements: loops, carried values, addresses |
//! | `ops` | one arm per row of the op table |
//! | `chunks` | constants, shuffles, loads and stores of chunks |
//! | `places` | offsets of instructions, with the IR statement of each |
//! | `float` | ops that cranelift lacks: halves, bf16, rounding conversion, fused multiply-add |
//!
//! Ops on tiles are rejected. They exist only for machines with tile registers, and tests compare
//! these with the interpreter.
//!
//! Invariant: the code calls nothing. Without FMA, SSE4.1 or SSSE3, cranelift would call library
//! functions; `float` and `chunks` contain replacements.
//!
//! Invariant: input kernels are verified. Properties that the verifier proves are not checked
//! again.

mod chunk_types;
mod chunks;
mod float;
mod lower;
mod ops;
mod places;
#[cfg(test)]
mod tests;

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{AbiParam, Function, Signature, UserFuncName, types};
use cranelift_codegen::isa::{Builder, CallConv, OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use ixc_ir::kernel::{Kernel, Type};

use crate::line::Line;

/// A compiled kernel: `extern "sysv64" fn(buffers: *const *mut u8, dims: *const i64)` on x86-64,
/// the system's convention elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Name of the kernel.
    pub name: String,
    /// Machine code and its constants; runs at any address that is a multiple of
    /// [`Code::alignment`].
    pub bytes: Vec<u8>,
    /// Bytes of instructions, before padding and constants. On other machines than x86-64, all
    /// bytes.
    pub code_bytes: usize,
    /// Offset of the constants in `bytes`.
    pub constants_at: usize,
    /// One line per instruction on x86-64; elsewhere, one line where the statement changes.
    pub lines: Vec<Line>,
    /// Required alignment of the first byte: constants are read as aligned vectors.
    pub alignment: usize,
    /// Listings, if requested, because writing them takes longer than the rest of the compilation.
    pub text: Option<Text>,
}

/// Listings of a compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Cranelift's IR before its optimiser.
    pub clif: String,
    /// Cranelift's listing of the machine code.
    pub disassembly: String,
}

/// Reason why a kernel could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortableError {
    /// Cranelift does not generate code for this machine.
    #[error(
        "cranelift has no code generator for this machine: {reason}; the portable target needs one that it supports"
    )]
    Machine {
        /// Cranelift's message.
        reason: String,
    },
    /// The kernel breaks a rule that the verifier checks.
    #[error("kernel `{kernel}`: {op} lacks {expected}; only verified kernels can be compiled")]
    Malformed {
        /// Name of the kernel.
        kernel: String,
        /// Mnemonic of the op, or the part of the kernel that was read.
        op: &'static str,
        /// Element that the op or this part of the kernel lacks.
        expected: &'static str,
    },
    /// An op that exists only on some machines.
    #[error("kernel `{kernel}`: the portable target has no `{op}` ({ty}); compile for a target with tile registers")]
    Unsupported {
        /// Name of the kernel.
        kernel: String,
        /// Mnemonic of the op.
        op: &'static str,
        /// Type of the op's result.
        ty: Type,
    },
    /// The kernel exceeds a limit.
    #[error("kernel `{kernel}` has {found} {what}; the limit is {max}")]
    TooLarge {
        /// Name of the kernel.
        kernel: String,
        /// Kind of the counted items, such as `instructions`.
        what: &'static str,
        /// Number of these items in the kernel.
        found: usize,
        /// Max number of these items.
        max: usize,
    },
    /// Cranelift rejected its input.
    #[error("kernel `{kernel}`: cranelift: {message}")]
    Cranelift {
        /// Name of the kernel.
        kernel: String,
        /// Cranelift's message.
        message: String,
    },
    /// Cranelift would call a library function: this lowering lacks an expansion for this CPU.
    #[error(
        "kernel `{kernel}` would call {calls}, because this CPU lacks an instruction; kernels must not call functions"
    )]
    RuntimeCall {
        /// Name of the kernel.
        kernel: String,
        /// Names of the library functions that the code would call.
        calls: String,
    },
}

/// Maximum cranelift instructions per kernel, so that a hostile plan cannot occupy the compiler for
/// long. The limit is one and a half times the largest kernel of the tests: a `gemm_swiglu` with 82
/// 219 instructions. That kernel packs two weights in grid formats, whose entries are looked up
/// lane by lane. With other formats, `gemm_swiglu` has 18 316.
const MAX_INSTRUCTIONS: usize = 1 << 17;
/// Max cranelift instructions on a CPU without `fma`, where one `fma` becomes about sixty
/// instructions. The limit is more than twice the largest kernel of the tests, an `attention` with
/// 81 848.
const MAX_INSTRUCTIONS_WITHOUT_FMA: usize = 1 << 18;
/// Max stack frame in bytes: an eighth of a thread's stack. The runtime's threads have almost all
/// of their stack free. On a CPU without `fma`, `attention` needs 183,712 bytes. A frame is touched
/// page by page ([`finish_isa`]), so a frame that does not fit hits the stack's guard page.
const MAX_FRAME: usize = 1 << 18;

/// Whether cranelift's verifier checks every kernel: yes in release builds and in the tests of this
/// crate. Other tests compile the same kernels thousands of times.
const VERIFY: bool = cfg!(any(test, not(debug_assertions)));

/// CPU features that decide whether cranelift has an instruction for an op, or would call a
/// library.
#[derive(Clone, Copy)]
struct Features {
    /// Whether this CPU has fused multiply-adds (`fma`).
    fma: bool,
    /// Whether this CPU can round to the nearest integer (`nearest`).
    round: bool,
    /// Whether this CPU can shuffle bytes: needed for `swizzle`, and for `shuffle` with most masks.
    shuffle_bytes: bool,
}

/// Compiles a verified kernel for this machine. For an unverified kernel, compilation may panic,
/// and the code may do anything.
///
/// # Errors
/// See [`PortableError`].
pub fn compile(kernel: &Kernel) -> Result<Code, PortableError> {
    let isa = cranelift_native::builder().map_err(machine)?;
    compile_for(kernel, &*finish_isa(isa, VERIFY, Effort::Usual)?, false)
}

/// Compiles like [`compile`], but without cranelift's optimiser and with one-pass register
/// allocation. The lowering is the same, and compilation takes a fraction of the time, but the code
/// is slow. Comparisons that run a kernel once use it.
///
/// # Errors
/// See [`PortableError`]. Frames are larger than with [`compile`], so more kernels exceed the
/// limit.
pub fn compile_plainly(kernel: &Kernel) -> Result<Code, PortableError> {
    let isa = cranelift_native::builder().map_err(machine)?;
    compile_for(kernel, &*finish_isa(isa, VERIFY, Effort::Least)?, false)
}

/// Compiles a verified kernel for x86-64-v2, as [`compile`] does on such a CPU, for example a
/// Nehalem. All supported x86-64 CPUs can run the code.
///
/// # Errors
/// See [`PortableError`].
#[cfg(target_arch = "x86_64")]
pub fn compile_for_v2(kernel: &Kernel) -> Result<Code, PortableError> {
    let mut isa = cranelift_native::builder_with_options(false).map_err(machine)?;
    for feature in ["has_cmpxchg16b", "has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt"] {
        isa.enable(feature).map_err(machine)?;
    }
    compile_for(kernel, &*finish_isa(isa, VERIFY, Effort::Usual)?, false)
}

/// Compiles like [`compile`], with listings.
///
/// # Errors
/// See [`PortableError`].
pub fn compile_with_text(kernel: &Kernel) -> Result<Code, PortableError> {
    let isa = cranelift_native::builder().map_err(machine)?;
    compile_for(kernel, &*finish_isa(isa, true, Effort::Usual)?, true)
}

fn machine(reason: impl ToString) -> PortableError {
    PortableError::Machine { reason: reason.to_string() }
}

/// Effort that cranelift spends on fast code.
#[derive(Clone, Copy)]
enum Effort {
    Usual,
    Least,
}

/// Builds the target description. `verify` runs cranelift's verifier between its passes, which
/// finds errors of this lowering.
fn finish_isa(isa: Builder, verify: bool, effort: Effort) -> Result<OwnedTargetIsa, PortableError> {
    let mut flags = settings::builder();
    let (opt_level, regalloc) = match effort {
        Effort::Usual => ("speed", "backtracking"),
        Effort::Least => ("none", "single_pass"),
    };
    let set = [
        ("opt_level", opt_level),
        ("regalloc_algorithm", regalloc),
        ("enable_verifier", if verify { "true" } else { "false" }),
        ("is_pic", "true"),
        ("enable_probestack", "true"),
        ("probestack_strategy", "inline"),
    ];
    for (name, value) in set {
        flags.set(name, value).map_err(machine)?;
    }
    isa.finish(settings::Flags::new(flags)).map_err(machine)
}

fn compile_for(kernel: &Kernel, isa: &dyn TargetIsa, with_text: bool) -> Result<Code, PortableError> {
    let cranelift = |message: String| PortableError::Cranelift { kernel: kernel.name.clone(), message };
    let is_x64 = isa.triple().architecture.to_string() == "x86_64";
    let mut signature = Signature::new(if is_x64 { CallConv::SystemV } else { isa.default_call_conv() });
    signature.params = vec![AbiParam::new(types::I64); 2];
    let mut context = Context::for_function(Function::with_name_signature(UserFuncName::user(0, 0), signature));
    context.set_disasm(with_text);
    let mut builder_context = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut context.func, &mut builder_context);
    // On other architectures of cranelift, the base instruction set has all of these features.
    let has = |name| !is_x64 || isa.isa_flags().iter().any(|flag| flag.name == name && flag.as_bool() == Some(true));
    let features = Features { fma: has("has_fma"), round: has("has_sse41"), shuffle_bytes: has("has_ssse3") };
    lower::Lowering::new(builder, kernel, features).finish(isa.frontend_config())?;
    let limit = |what, found, max| match found <= max {
        true => Ok(()),
        false => Err(PortableError::TooLarge { kernel: kernel.name.clone(), what, found, max }),
    };
    let most_instructions = if features.fma { MAX_INSTRUCTIONS } else { MAX_INSTRUCTIONS_WITHOUT_FMA };
    limit("instructions", context.func.dfg.num_insts(), most_instructions)?;
    let clif = with_text.then(|| context.func.display().to_string());
    let compiled =
        context.compile(isa, &mut ControlPlane::default()).map_err(|error| cranelift(format!("{:?}", error.inner)))?;
    let frame = compiled.buffer.frame_layout().map_or(0, |frame| frame.frame_to_fp_offset as usize);
    limit("bytes in its stack frame", frame, MAX_FRAME)?;
    if !compiled.buffer.relocs().is_empty() {
        let calls: Vec<_> = compiled.buffer.relocs().iter().map(|reloc| format!("{:?}", reloc.target)).collect();
        return Err(PortableError::RuntimeCall { kernel: kernel.name.clone(), calls: calls.join(", ") });
    }
    let bytes = compiled.code_buffer().to_vec();
    let origins = compiled.buffer.get_srclocs_sorted().iter().map(|place| {
        let origin = (!place.loc.is_default()).then(|| place.loc.bits());
        Line { offset: place.start, origin }
    });
    let origins: Vec<Line> = origins.collect();
    let all = bytes.len();
    let (code_bytes, constants_at, lines) =
        if is_x64 { places::locate_instructions(&bytes, &origins) } else { (all, all, origins) };
    Ok(Code {
        name: kernel.name.clone(),
        bytes,
        code_bytes,
        constants_at,
        lines,
        alignment: (compiled.buffer.alignment as usize).max(16),
        text: clif.map(|clif| Text { clif, disassembly: compiled.vcode.clone().unwrap_or_default() }),
    })
}
