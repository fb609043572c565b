//! Cycles of a kernel on a PE. The analysis walks the kernel's loops for given dims. It counts
//! operations by class, and the bytes of loads and stores.
//!
//! A PE issues one stream of vector instructions, so the cycles of all classes add up. Loads and
//! stores run in parallel, each through its own port. A kernel takes the longest of these three
//! times:
//!
//! ```text
//! cycles = max(int8 / rate + int / rate + f32 / rate + special / rate,
//!              bytes read / port, bytes written / port)
//! ```
//!
//! A vector operation counts once for each lane. Constants, addresses, and ops that only select
//! lanes of a register are free. Shuffles are integer operations. A reduction of n lanes is n - 1
//! operations.

use crate::grid::Pe;
use ixc_ir::kernel::{Affine, Atom, Inst, Kernel, Op, Stmt, Type};

/// Work of one kernel call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of int8 multiplications.
    pub int8: u64,
    /// Number of other integer operations.
    pub int: u64,
    /// Number of f32 operations.
    pub f32: u64,
    /// Number of conversions, divisions and square roots.
    pub special: u64,
    /// Bytes that the kernel loads.
    pub read: u64,
    /// Bytes that the kernel stores.
    pub written: u64,
    /// Number of instructions and loop iterations, including instructions that take no cycles. It
    /// measures the work of simulating the call.
    pub steps: u64,
}

impl Cost {
    /// Adds another cost `times` times.
    pub(super) fn add(&mut self, other: &Cost, times: u64) {
        let fields = [
            (&mut self.int8, other.int8),
            (&mut self.int, other.int),
            (&mut self.f32, other.f32),
            (&mut self.special, other.special),
            (&mut self.read, other.read),
            (&mut self.written, other.written),
            (&mut self.steps, other.steps),
        ];
        for (field, other) in fields {
            *field = field.saturating_add(other.saturating_mul(times));
        }
    }

    /// Returns the number of cycles on a PE, at least 1, without the cycles to start the kernel.
    pub fn cycles(&self, pe: &Pe) -> u64 {
        let rates = &pe.operations;
        let issue = self.int8 as f64 / rates.int8
            + self.int as f64 / rates.int
            + self.f32 as f64 / rates.f32
            + self.special as f64 / rates.special;
        // The cast of a float that is too large saturates.
        let issue = issue.ceil() as u64;
        let read = self.read.div_ceil(u64::from(pe.read_bytes).max(1));
        let written = self.written.div_ceil(u64::from(pe.write_bytes).max(1));
        issue.max(read).max(written).max(1)
    }
}

/// Counts the work of a verified kernel with these dims. Counts saturate.
pub fn cost(kernel: &Kernel, dims: &[i64]) -> Cost {
    block(kernel, &kernel.body, dims)
}

fn block(kernel: &Kernel, statements: &[Stmt], dims: &[i64]) -> Cost {
    let mut sum = Cost::default();
    let step = Cost { steps: 1, ..Cost::default() };
    for statement in statements {
        match statement {
            Stmt::Inst(inst) => sum.add(&inst_cost(kernel, inst), 1),
            Stmt::For(f) => {
                let mut turn = block(kernel, &f.body, dims);
                turn.add(&step, 1);
                sum.add(&turn, evaluate(&f.trip, dims));
            }
            Stmt::LoadIndex { .. } => sum.add(&Cost { read: 4, ..Cost::default() }, 1),
        }
        sum.add(&step, 1);
    }
    sum
}

/// Evaluates an affine expression over dims. Negative values count as 0, and so do variables that
/// are not dims.
pub(crate) fn evaluate(affine: &Affine, dims: &[i64]) -> u64 {
    let value = affine.evaluate(|atom| match atom {
        Atom::Dim(dim) => dims.get(dim.index()).copied().unwrap_or(0),
        Atom::Var(_) => 0,
    });
    value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
}

fn inst_cost(kernel: &Kernel, inst: &Inst) -> Cost {
    let lanes = |ty: Type| u64::from(ty.lanes) * u64::from(ty.rows.max(1));
    let n = lanes(inst.ty);
    let operand = |i: usize| inst.operands.get(i).map_or(0, |id| lanes(kernel.ty(*id)));
    let bytes = u64::from(inst.ty.bytes());
    let int = |int| Cost { int, ..Cost::default() };
    let float = |f32| Cost { f32, ..Cost::default() };
    let special = |special| Cost { special, ..Cost::default() };
    let int8 = |int8| Cost { int8, ..Cost::default() };
    // Number of multiply-adds in a product of tiles: rows times columns times the elements in a row
    // of the first factor.
    let products = || {
        let k = inst.operands.get(1).map_or(0, |id| u64::from(kernel.ty(*id).lanes));
        n * k
    };
    match inst.op {
        Op::Splat | Op::Bytes | Op::Iota | Op::Index | Op::Prefetch | Op::TileZero => Cost::default(),
        Op::Broadcast | Op::Extract | Op::Slice | Op::Concat | Op::Bitcast => Cost::default(),
        Op::Load | Op::TileLoad => Cost { read: bytes, ..Cost::default() },
        Op::LoadSplat => Cost { read: inst.ty.elem.bytes().into(), ..Cost::default() },
        Op::Store | Op::TileStore => Cost { written: bytes, ..Cost::default() },
        Op::JoinLo | Op::JoinHi | Op::UnpackLo | Op::UnpackHi | Op::SwapPairs => int(n),
        Op::Interleave | Op::ShuffleBytes | Op::Multishift => int(n),
        Op::Lookup | Op::LookupQuarter => Cost { read: 4 * n, ..Cost::default() },
        Op::LookupByte => Cost { read: n, ..Cost::default() },
        Op::Add | Op::Sub | Op::Mul | Op::Min | Op::Max | Op::Fma | Op::CmpLtF => float(n),
        Op::Div | Op::Sqrt | Op::ToF32 | Op::ToI32 => special(n),
        Op::F16ToF32 | Op::F32ToF16 | Op::ToBf16 | Op::Bf16ToF32 | Op::ToBf16Pairs => special(n),
        Op::IAdd | Op::ISub | Op::IMul | Op::IMin | Op::IMax | Op::IAbs | Op::Sign => int(n),
        Op::And | Op::Or | Op::Xor | Op::Shl | Op::ShrU | Op::ShrS | Op::CmpEq | Op::CmpGt | Op::Select => int(n),
        Op::ExtendS | Op::ExtendU | Op::NarrowS => int(n),
        Op::Dot2U8S8 => int8(2 * n),
        Op::Dot2S16 => int(2 * n),
        Op::Dot2Bf16 => float(2 * n),
        Op::Dot4U8S8 => int8(4 * n),
        Op::ReduceAdd | Op::ReduceMax | Op::ReduceMin => match inst.ty.elem {
            ixc_ir::kernel::Elem::F32 | ixc_ir::kernel::Elem::F16 | ixc_ir::kernel::Elem::Bf16 => {
                float(operand(0).saturating_sub(1))
            }
            ixc_ir::kernel::Elem::I8 | ixc_ir::kernel::Elem::I16 | ixc_ir::kernel::Elem::I32 => {
                int(operand(0).saturating_sub(1))
            }
        },
        Op::TileDotBf16 => float(products()),
        Op::TileDotS8S8 | Op::TileDotS8U8 | Op::TileDotU8S8 | Op::TileDotU8U8 => int8(products()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grids;

    #[test]
    fn kernel_counts_and_cycles_match_hand_calculation() {
        let text = "kernel k where %n in 0..=64 {
  buffer %x : read 32*%n
  buffer %y : write 4
  %zero = splat i32x8 0
  %sum = for %i in 0..%n carry(%s = %zero) {
    %a = load i8x32 %x[32*%i]
    %d = dot4_u8s8 i32x8 %s, %a, %a
    yield %d
  }
  %r = reduce_add i32x1 %sum
  %f = to_f32 f32x1 %r
  %g = mul f32x1 %f, %f
  store f32x1 %y[0], %g
}
";
        let kernel = ixc_ir::kernel::parse::parse(text).unwrap();
        let found = cost(&kernel, &[10]);
        let right = Cost { int8: 320, int: 7, f32: 1, special: 1, read: 320, written: 4, steps: 36 };
        assert_eq!(found, right);
        let pe = grids::find("tiny").unwrap().pe;
        // Operations take 320/16 + 7/8 + 1/4 + 1 = 22.1 cycles; reading takes 320/16.
        assert_eq!(found.cycles(&pe), 23);
        assert_eq!(cost(&kernel, &[0]).cycles(&pe), 3);
        assert_eq!(Cost { read: 1000, ..right }.cycles(&pe), 63);
        assert_eq!(Cost { written: 1000, ..right }.cycles(&pe), 125);
    }
}
