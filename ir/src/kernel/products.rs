//! Number of multiply-adds in a call of a kernel, by the type of the factors.
//!
//! The count includes all ops that sum products. Each lane of an `fma` counts as one multiply-add,
//! each byte of a `dot4_u8s8` does too, and so does each product of two elements in a tile product.
//! All rows of a tile count, even rows without data.
//!
//! ```
//! use ixc_ir::kernel::{parse::parse, products::Counter};
//!
//! let kernel = parse("kernel k where %n in 0..=64 {
//!   buffer %x : read 32*%n
//!   buffer %y : write 32
//!   %zero = splat i32x8 0
//!   %sum = for %i in 0..%n carry(%s = %zero) {
//!     %a = load i8x32 %x[32*%i]
//!     %d = dot4_u8s8 i32x8 %s, %a, %a
//!     yield %d
//!   }
//!   store i32x8 %y[0], %sum
//! }")?;
//! assert_eq!(Counter::from_kernel(&kernel).count(&[10]).int8, 320);
//! # Ok::<(), ixc_ir::kernel::parse::ParseError>(())
//! ```

use std::ops::AddAssign;

use super::{Affine, Atom, Inst, Kernel, Op, Stmt, Type};

/// Multiply-adds, by the type of the factors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Products {
    /// Products of bytes, or of 16-bit words that are sums of products of bytes.
    pub int8: u64,
    /// Products of bf16 numbers by tiles.
    pub bf16: u64,
    /// Products of f32 numbers.
    pub f32: u64,
}

impl Products {
    fn times(self, n: u64) -> Products {
        let times = |of: u64| of.saturating_mul(n);
        Products { int8: times(self.int8), bf16: times(self.bf16), f32: times(self.f32) }
    }
}

impl AddAssign for Products {
    fn add_assign(&mut self, other: Products) {
        let Products { int8, bf16, f32 } = other;
        for (sum, more) in [(&mut self.int8, int8), (&mut self.bf16, bf16), (&mut self.f32, f32)] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// Numbers of multiply-adds of a kernel, for any values of its dims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Products outside loops, and in loops whose trip counts are all constants.
    once: Products,
    /// Products in loops whose trip counts depend on dims. For each nest: the trip counts,
    /// outermost first, and the products of one innermost iteration.
    loops: Vec<(Vec<Affine>, Products)>,
}

impl Counter {
    /// Counts the multiply-adds of a verified kernel.
    pub fn from_kernel(kernel: &Kernel) -> Counter {
        let mut counter = Counter::default();
        counter.block(kernel, &kernel.body, &mut Vec::new(), 1);
        counter
    }

    /// Returns the multiply-adds of a call with these dims. A negative trip count counts as 0, and
    /// sums saturate.
    pub fn count(&self, dims: &[i64]) -> Products {
        let mut sum = self.once;
        for (trips, each) in &self.loops {
            sum += each.times(trips.iter().map(|trip| evaluate(trip, dims)).fold(1, u64::saturating_mul));
        }
        sum
    }

    fn block(&mut self, kernel: &Kernel, statements: &[Stmt], trips: &mut Vec<Affine>, times: u64) {
        let mut sum = Products::default();
        for statement in statements {
            match statement {
                Stmt::Inst(inst) => sum += inst_products(kernel, inst),
                Stmt::For(f) => match f.trip.as_constant() {
                    Some(trip) => {
                        let times = times.saturating_mul(u64::try_from(trip).unwrap_or(0));
                        self.block(kernel, &f.body, trips, times);
                    }
                    None => {
                        trips.push(f.trip.clone());
                        self.block(kernel, &f.body, trips, times);
                        trips.pop();
                    }
                },
                Stmt::LoadIndex { .. } => {}
            }
        }
        let sum = sum.times(times);
        if sum == Products::default() {
            return;
        }
        match trips.is_empty() {
            true => self.once += sum,
            false => self.loops.push((trips.clone(), sum)),
        }
    }
}

fn evaluate(trip: &Affine, dims: &[i64]) -> u64 {
    let value = trip.evaluate(|atom| match atom {
        Atom::Dim(dim) => dims.get(dim.index()).copied().unwrap_or(0),
        Atom::Var(_) => 0,
    });
    value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
}

fn inst_products(kernel: &Kernel, inst: &Inst) -> Products {
    let lanes = |ty: Type| u64::from(ty.lanes) * u64::from(ty.rows.max(1));
    let n = lanes(inst.ty);
    let k = || inst.operands.get(1).map_or(0, |id| u64::from(kernel.ty(*id).lanes));
    let int8 = |int8| Products { int8, ..Products::default() };
    match inst.op {
        Op::Fma => Products { f32: n, ..Products::default() },
        Op::Dot2U8S8 => int8(2 * n),
        Op::Dot4U8S8 => int8(4 * n),
        Op::Dot2Bf16 => Products { bf16: 2 * n, ..Products::default() },
        Op::TileDotBf16 => Products { bf16: n * k(), ..Products::default() },
        Op::TileDotS8S8 | Op::TileDotS8U8 | Op::TileDotU8S8 | Op::TileDotU8U8 => int8(n * k()),
        // `dot2_s16` multiplies 16-bit sums of products by scales. Those products were counted
        // where they were computed.
        Op::Dot2S16 => Products::default(),
        Op::Splat
        | Op::Broadcast
        | Op::Bytes
        | Op::Iota
        | Op::Index
        | Op::Prefetch
        | Op::Load
        | Op::LoadSplat
        | Op::Store => Products::default(),
        Op::TileZero | Op::TileLoad | Op::TileStore | Op::Extract | Op::Slice | Op::Concat | Op::Bitcast => {
            Products::default()
        }
        Op::JoinLo
        | Op::JoinHi
        | Op::UnpackLo
        | Op::UnpackHi
        | Op::SwapPairs
        | Op::Interleave
        | Op::ShuffleBytes
        | Op::Lookup
        | Op::LookupQuarter
        | Op::LookupByte
        | Op::Multishift => Products::default(),
        Op::Add | Op::Sub | Op::Mul | Op::Min | Op::Max | Op::CmpLtF | Op::Div | Op::Sqrt => Products::default(),
        Op::ToF32 | Op::ToI32 | Op::F16ToF32 | Op::F32ToF16 | Op::ToBf16 | Op::Bf16ToF32 | Op::ToBf16Pairs => {
            Products::default()
        }
        Op::IAdd | Op::ISub | Op::IMul | Op::IMin | Op::IMax | Op::IAbs | Op::Sign => Products::default(),
        Op::And | Op::Or | Op::Xor | Op::Shl | Op::ShrU | Op::ShrS | Op::CmpEq | Op::CmpGt | Op::Select => {
            Products::default()
        }
        Op::ExtendS | Op::ExtendU | Op::NarrowS | Op::ReduceAdd | Op::ReduceMax | Op::ReduceMin => Products::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;

    #[test]
    fn multiply_counts_cover_loops_and_empty_ranges() {
        let text = "kernel k where %n in 0..=8, %m in 0..=8 {
  buffer %y : write 32
  %a = splat f32x8 1.0
  %b = fma f32x8 %a, %a, %a
  for %i in 0..%n + 1 {
    %c = fma f32x8 %a, %a, %b
    for %j in 0..3 {
      for %l in 0..%m {
        %d = fma f32x8 %a, %a, %b
        store f32x8 %y[0], %d
      }
    }
    store f32x8 %y[0], %c
  }
}";
        let counter = Counter::from_kernel(&parse(text).unwrap());
        let f32 = |dims: [i64; 2]| counter.count(&dims).f32;
        assert_eq!([[0, 0], [1, 0], [1, 2]].map(f32), [16, 24, 24 + 2 * 3 * 2 * 8]);
        assert_eq!(f32([-1, 5]), 8);
    }
}
