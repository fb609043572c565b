//! Pace of a product along its weight: the distance between loads and prefetches, and the unrolling
//! of the innermost loops. The pace affects only speed: prefetches compute nothing, and an unrolled
//! loop does the same operations in the same order.
//!
//! ```text
//! 4096/1      a page ahead, loops as the generator writes them: where nobody tunes
//! 2048/2      half a page, two iterations of an innermost loop at a time
//! 0/1         no prefetches
//! ```
//!
//! The input is a generated kernel. The output is a kernel in canonical numbering that gives the
//! same results.

use std::fmt;
use std::str::FromStr;

use ixc_ir::kernel::number::canonical;
use ixc_ir::kernel::{Address, Affine, Atom, Carry, For, Inst, Kernel, Op, Stmt, Type, ValueId, VarId};
use serde::{Deserialize, Serialize};

use super::packed::ahead::{AHEAD, LINE};
use crate::generator::generate::{GenerateError, check};
use crate::generator::text::{FieldKind, Value};

/// Maximum prefetch distance. With a larger distance, lines leave the L1 cache before they are
/// read.
pub const MAX_AHEAD: u32 = 1 << 16;
/// Maximum number of iterations that are unrolled into one.
pub const MAX_UNROLLED: u32 = 8;
/// Maximum number of statements of an unrolled body. Longer code exceeds the caches of decoded
/// instructions.
const MAX_STATEMENTS: usize = 512;

/// Prefetch distance and unrolling of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pace {
    /// Distance in bytes from the current loads to the prefetched lines, in whole cache lines. 0
    /// turns prefetches off.
    pub ahead: u32,
    /// Number of iterations of an innermost loop that are unrolled into one.
    pub unroll: u32,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { ahead: AHEAD as u32, unroll: 1 }
    }
}

impl Pace {
    /// Whether a tuner may choose this pace.
    pub fn is_valid(self) -> bool {
        self.ahead <= MAX_AHEAD
            && self.ahead.is_multiple_of(LINE as u32)
            && self.unroll.is_power_of_two()
            && self.unroll <= MAX_UNROLLED
    }

    /// Returns the suffix of the kernel's name. It is empty for the default pace.
    pub(crate) fn suffix(self) -> String {
        if self == Pace::default() { String::new() } else { format!("_a{}u{}", self.ahead, self.unroll) }
    }

    pub(crate) fn check(self, name: &str) -> Result<(), GenerateError> {
        let most =
            format!("a multiple of {LINE} up to {MAX_AHEAD}, unrolled 1 to {MAX_UNROLLED} times by a power of two");
        check(name, "bytes ahead", self.ahead.into(), self.is_valid(), most)
    }

    /// Changes the kernel's prefetches and innermost loops to this pace, and returns the kernel.
    pub(crate) fn apply(self, mut kernel: Kernel) -> Kernel {
        if self == Pace::default() {
            return kernel;
        }
        let mut body = std::mem::take(&mut kernel.body);
        self.block(&mut kernel, &mut body);
        canonical(&Kernel { body, ..kernel })
    }

    fn block(self, kernel: &mut Kernel, body: &mut Vec<Stmt>) {
        body.retain_mut(|statement| match statement {
            Stmt::Inst(inst) if inst.op == Op::Prefetch => {
                if let Some(address) = &mut inst.address {
                    address.offset.constant += i64::from(self.ahead) - AHEAD;
                }
                self.ahead > 0
            }
            Stmt::Inst(_) | Stmt::LoadIndex { .. } => true,
            Stmt::For(inner) => {
                self.block(kernel, &mut inner.body);
                if self.unroll > 1 {
                    unroll(&mut kernel.values, inner, self.unroll);
                }
                true
            }
        });
    }
}

/// Unrolls a loop `times` times. Does nothing if the loop is not innermost, or if its number of
/// iterations is not a multiple of `times`.
fn unroll(values: &mut Vec<Type>, inner: &mut For, times: u32) {
    let is_innermost = inner.body.iter().all(|statement| matches!(statement, Stmt::Inst(_)));
    let trip = inner.trip.as_constant().filter(|trip| trip % i64::from(times) == 0 && *trip > i64::from(times));
    let (Some(trip), true) = (trip, is_innermost && inner.body.len() * times as usize <= MAX_STATEMENTS) else {
        return;
    };
    let mut body = Vec::with_capacity(inner.body.len() * times as usize);
    // Value that each carried value has after the previous copy of the body.
    let mut given: Vec<ValueId> = inner.carries.iter().map(|carry| carry.inner).collect();
    for iteration in 0..i64::from(times) {
        let carried = inner.carries.iter().zip(given).map(|(carry, to)| Rename { from: carry.inner, to });
        let mut names: Vec<Rename> = carried.collect();
        for statement in &inner.body {
            let Stmt::Inst(inst) = statement else { continue };
            let copy = copy_instruction(values, inst, &mut names, inner.var, times.into(), iteration);
            body.push(Stmt::Inst(copy));
        }
        given = inner.carries.iter().map(|carry| last_name(&names, carry.next)).collect();
    }
    let carries = inner.carries.iter().zip(given).map(|(carry, next)| Carry { next, ..carry.clone() });
    inner.carries = carries.collect();
    inner.trip = Affine::constant(trip / i64::from(times));
    inner.body = body;
}

/// New name of a value in a copy of the body.
#[derive(Clone, Copy)]
struct Rename {
    from: ValueId,
    to: ValueId,
}

/// Returns the name that a value has in the current copy of the body.
fn last_name(names: &[Rename], value: ValueId) -> ValueId {
    names.iter().rev().find(|name| name.from == value).map_or(value, |name| name.to)
}

/// Returns a copy of an instruction for copy `iteration` of `times`, with a new result.
fn copy_instruction(
    values: &mut Vec<Type>,
    inst: &Inst,
    names: &mut Vec<Rename>,
    var: VarId,
    times: i64,
    iteration: i64,
) -> Inst {
    let moved = |affine: &Affine| {
        let mut affine = affine.clone();
        for (atom, coefficient) in &mut affine.terms {
            if *atom == Atom::Var(var) {
                affine.constant += *coefficient * iteration;
                *coefficient *= times;
            }
        }
        affine
    };
    let operands = inst.operands.iter().map(|value| last_name(names, *value)).collect();
    let address =
        inst.address.as_ref().map(|address| Address { buffer: address.buffer, offset: moved(&address.offset) });
    let index = inst.index.as_ref().map(moved);
    let result = inst.result.map(|value| {
        let copy = ValueId(values.len() as u32);
        values.push(values[value.index()]);
        names.push(Rename { from: value, to: copy });
        copy
    });
    Inst { operands, address, index, result, ..inst.clone() }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ahead, self.unroll)
    }
}

impl FromStr for Pace {
    type Err = ();

    fn from_str(text: &str) -> Result<Pace, ()> {
        let (ahead, unroll) = text.split_once('/').ok_or(())?;
        let pace = Pace { ahead: ahead.parse().map_err(drop)?, unroll: unroll.parse().map_err(drop)? };
        if pace.is_valid() { Ok(pace) } else { Err(()) }
    }
}

impl Value for Pace {
    const KIND: FieldKind = FieldKind::Pace;

    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {name}={self}")
    }

    fn read(text: Option<&str>) -> Option<Pace> {
        text?.parse().ok()
    }

    fn expected_text() -> String {
        format!(
            "bytes ahead (a multiple of {LINE} up to {MAX_AHEAD}) and a power of two up to {MAX_UNROLLED}, such as 2048/2"
        )
    }
}

#[cfg(test)]
mod tests {
    use ixc_ir::kernel::interpret;
    use ixc_ir::kernel::verify::verify;
    use ixc_targets::Target;

    use super::*;
    use crate::catalogue::inputs;
    use crate::{KernelSpec, generate};

    /// Kernels for few rows and for many rows, with quantised and float weights, and with one and
    /// two weights.
    const SPECS: [&str; 5] = [
        "linear format=q4_k_r16 k=512 tile=32 n=32 shape=gemv",
        "linear format=q6_k_r16 k=512 tile=16 n=32 residual shape=gemm",
        "linear format=f16_r16 k=64 tile=16 n=16 shape=gemv",
        "linear format=q8_0 k=64 tile=16 n=16 shape=gemm",
        "swiglu gate=q4_0_r16 up=q4_0_r16 k=64 tile=32 n=32 out=a8_small rows=8 shape=gemv",
    ];

    fn results(kernel: &Kernel, spec: &KernelSpec) -> Vec<Vec<u8>> {
        let dims = spec.dims_of_rows(5);
        let mut buffers = inputs::fill(kernel, Some(spec), &dims, 3).unwrap();
        interpret::run(kernel, &dims, &mut buffers).unwrap();
        let results = kernel.buffers.iter().zip(buffers).filter(|(buffer, _)| buffer.kind.is_result());
        results.map(|(_, bytes)| bytes).collect()
    }

    #[test]
    fn no_bits_depend_on_the_pace() {
        let mut unrolled = 0;
        for text in SPECS {
            let own: KernelSpec = text.parse().unwrap();
            let kernel = generate(&own, Target::AVX2).unwrap();
            for pace in ["0/1", "1024/1", "4096/2", "65536/4", "2048/8"] {
                let spec: KernelSpec = format!("{text} pace={pace}").parse().unwrap();
                let other = generate(&spec, Target::AVX2).unwrap();
                verify(&other).unwrap();
                // Inputs depend on a spec's name, so both kernels must get the inputs of the same
                // spec.
                assert_eq!(results(&other, &own), results(&kernel, &own), "{spec}");
                let prefetches = |kernel: &Kernel| kernel.to_string().matches("prefetch").count();
                match pace.starts_with('0') {
                    true => assert_eq!(prefetches(&other), 0, "{spec}"),
                    false => assert!(prefetches(&other) >= prefetches(&kernel), "{spec}"),
                }
                unrolled += usize::from(other.to_string().lines().count() > kernel.to_string().lines().count());
                assert_eq!(ixc_ir::kernel::parse::parse(&other.to_string()), Ok(other));
            }
        }
        assert!(unrolled > 4, "{unrolled} kernels have a loop that was unrolled");
    }

    #[test]
    fn a_pace_that_no_kernel_has_is_refused() {
        for wrong in ["100/1", "4096/3", "4096/16", "131072/1", "4096", "/", "-64/1", "4096/0"] {
            assert_eq!(wrong.parse::<Pace>(), Err(()), "{wrong}");
        }
        let same: KernelSpec = format!("{} pace=4096/1", SPECS[0]).parse().unwrap();
        assert_eq!(same.to_string(), SPECS[0]);
    }
}
