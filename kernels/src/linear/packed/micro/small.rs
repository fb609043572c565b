//! Micro-kernel for formats without integer scales. Each sub-block, or each half of it, has a float
//! scale.

use ixc_ir::format::Minimum;
use ixc_ir::kernel::{Affine, KernelBuilder, Op, Type, ValueId};

use super::super::SUB;
use super::super::activations::RowBlock;
use super::super::panel::{self, Dots, Item};
use super::super::strip::{self, Part};
use super::{Micro, Step, pair_with_high, zero_point};
use crate::generator::buffer_offset::BufferOffset;

impl Micro {
    /// Adds the products of `columns` columns, for formats without integer scales. Blocks have two
    /// sub-blocks; the last block may have only one.
    pub(super) fn small(&self, b: &mut KernelBuilder, columns: i64) {
        let slots = self.slots();
        let parts = self.parts();
        let mut sums = Vec::new();
        if slots.is_none() {
            for part in &parts {
                sums.extend((0..self.rows.len()).map(|r| b.load(part.floats(), self.to, self.result(r, *part))));
            }
        }
        let len = self.source.format.block_len() as i64;
        let x_bytes = self.x_format.block_bytes() as i64;
        let block = |b: &mut KernelBuilder, i: Affine, subs: i64, sums: &[ValueId]| {
            b.for_carry("s", subs, sums, |b, s, sums| {
                let row = |at: &Affine| {
                    let at = at.clone() + i.clone() * (len / SUB * x_bytes) + s * x_bytes;
                    RowBlock { buffer: self.x, format: self.x_format, at, sub: None }
                };
                let weights = self.source.block(i.clone());
                let step = Step { weights, sub: s, rows: self.rows.iter().map(row).collect() };
                self.prefetch(b, &step);
                self.small_step(b, &step, sums, slots.as_deref())
            })
        };
        if columns / len > 0 {
            sums = b.for_carry("b", columns / len, &sums, |b, i, sums| block(b, i.into(), len / SUB, sums));
        }
        if columns % len > 0 {
            sums = block(b, (columns / len).into(), columns % len / SUB, &sums);
        }
        for (part, sums) in parts.iter().zip(self.by_part(&sums)) {
            for (r, sum) in sums.iter().enumerate() {
                b.store(self.to, self.result(r, *part), *sum);
            }
        }
    }

    fn small_step(
        &self,
        b: &mut KernelBuilder,
        step: &Step,
        sums: &[ValueId],
        slots: Option<&[BufferOffset]>,
    ) -> Vec<ValueId> {
        let (parts, rows) = (self.parts(), self.rows.len());
        // With magnitudes, signs are on the other factor, so there is no zero point.
        let zero = if self.has_magnitudes() || self.begins_with_zero_point() { 0 } else { self.codec().zero() };
        let by_halves = strip::by_halves_of_d(self.source.format);
        let high: Vec<Vec<ValueId>> = parts.iter().map(|part| step.weights.high(b, step.sub, *part)).collect();
        let mut low: Vec<ValueId> = Vec::new();
        let mut next = sums.to_vec();
        for half in 0..2 {
            let integers = self.half_sums(b, step, half, &high);
            let items = |b: &mut KernelBuilder, item: Item| -> Vec<ValueId> {
                let at = |part: Part| step.weights.number_of(step.sub, half, part);
                parts.iter().map(|part| step.weights.item(b, item, at(*part), *part)).collect()
            };
            let (mut d, mut m) = (Vec::new(), None);
            if half == 1 || by_halves {
                d = items(b, Item::D);
                m = (self.codec().minimum == Minimum::Half).then(|| items(b, Item::M));
            }
            let mut terms: Vec<Option<ValueId>> = vec![None; integers.len()];
            for (r, row) in step.rows.iter().enumerate() {
                let dx = row.splat(b, parts[0].floats(), "d", 8, 4 * half);
                let sum = |b: &mut KernelBuilder| row.splat(b, parts[0].floats(), "sums", 4, 0);
                let start = (half == 0 && zero > 0).then(|| {
                    let (sum, zero) = (sum(b), b.splat_f32(self.vectors.lanes, -f32::from(zero)));
                    b.mul(sum, zero)
                });
                let added = m.as_ref().map(|m| (m, sum(b)));
                for (p, part) in parts.iter().enumerate() {
                    let i = p * rows + r;
                    let value = b.op(Op::ToF32, part.floats(), &[integers[i]]);
                    let total = match slots {
                        Some(_) => Total::Memory(self.result(r, *part)),
                        None => Total::Register(&mut next[i]),
                    };
                    if by_halves {
                        self.update(b, part.floats(), total, |b, old| {
                            let term = b.mul(value, dx);
                            b.fma(term, d[p], old)
                        });
                    } else if half == 0 {
                        let term = match start {
                            Some(start) => b.fma(value, dx, start),
                            None => b.mul(value, dx),
                        };
                        match slots {
                            Some(slots) => b.store(slots[i].buffer, slots[i].at, term),
                            None => terms[i] = Some(term),
                        }
                    } else {
                        let first = match slots {
                            Some(slots) => b.load(part.floats(), slots[i].buffer, slots[i].at),
                            None => low[i],
                        };
                        let term = b.fma(value, dx, first);
                        self.update(b, part.floats(), total, |b, old| {
                            let sum = b.fma(term, d[p], old);
                            added.map_or(sum, |(m, x)| b.fma(m[p], x, sum))
                        });
                    }
                }
            }
            low = terms.into_iter().flatten().collect();
        }
        next
    }

    fn has_magnitudes(&self) -> bool {
        panel::has_magnitudes(self.source.format, self.source.dots)
    }

    /// Whether the initial value of integer sums is the contribution of the zero point.
    fn begins_with_zero_point(&self) -> bool {
        strip::begins_with_zero_point(self.source.format, self.x_format)
    }

    /// Returns the integer sums of one half of a sub-block.
    fn half_sums(&self, b: &mut KernelBuilder, step: &Step, half: i64, high: &[Vec<ValueId>]) -> Vec<ValueId> {
        let (parts, rows) = (self.parts(), self.rows.len());
        let pairs = 2 * half..2 * half + 2;
        let starts = |b: &mut KernelBuilder| -> Vec<ValueId> {
            // The initial value is computed again for each part, because a product overwrites its
            // sum.
            let each = parts.iter().flat_map(|part| step.rows.iter().map(move |row| (row, *part)));
            each.map(|(row, part)| zero_point(b, row, half, 2, self.codec().zero(), part.lanes)).collect()
        };
        match self.source.dots {
            Dots::Dot2 => {
                let ones = b.splat_int(parts[0].words(), 1);
                let sums: Vec<ValueId> = if panel::by_groups(self.source.format, self.source.dots) {
                    let mut sums = vec![None; parts.len() * rows];
                    self.by_groups(b, step, pairs, &pair_with_high(&parts, high), &|_, _| ones, &mut sums);
                    sums.into_iter().flatten().collect()
                } else {
                    let words = self.words(b, step, pairs, &parts, high);
                    words.into_iter().map(|words| b.op(Op::Dot2S16, parts[0].dwords(), &[words, ones])).collect()
                };
                match self.begins_with_zero_point() && !self.has_magnitudes() {
                    true => starts(b).into_iter().zip(sums).map(|(start, sum)| b.iadd(start, sum)).collect(),
                    false => sums,
                }
            }
            Dots::Dot4 => {
                let zero = b.splat_int(parts[0].dwords(), 0);
                let mut sums = if self.begins_with_zero_point() { starts(b) } else { vec![zero; parts.len() * rows] };
                self.groups(b, step, pairs, &parts, high, |b, i, quants, x| {
                    sums[i] = b.dot4_u8s8(sums[i], quants, x);
                });
                sums
            }
        }
    }

    /// Replaces a result by the value that `sum` computes from it.
    fn update(
        &self,
        b: &mut KernelBuilder,
        ty: Type,
        total: Total,
        sum: impl FnOnce(&mut KernelBuilder, ValueId) -> ValueId,
    ) {
        match total {
            Total::Memory(at) => {
                let old = b.load(ty, self.to, at.clone());
                let sum = sum(b, old);
                b.store(self.to, at, sum);
            }
            Total::Register(value) => *value = sum(b, *value),
        }
    }
}

/// Location of a result: in memory, or in a register.
enum Total<'a> {
    Memory(Affine),
    Register(&'a mut ValueId),
}
