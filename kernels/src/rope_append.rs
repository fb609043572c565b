//! Rotation of a key head, and the append of key and value to the cache.

use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Op, Type};
use ixc_ir::plan::{DimRule, RopeStyle};

use crate::catalogue::{Row, row};
use crate::definition::Definition;
use crate::generate::{GenerateError, Vectors};
use crate::reference::{Mismatch, Run, close};
use crate::rotation::{self, Head, KEY_BLOCK, checked, position, rotate, rotated};
use crate::signature::{Holds, Signature};
use crate::text::{Bits, spec};
use crate::vectors::for_vectors;
use crate::work::{Call, Work};

spec! {
    /// [`crate::RopeHeads`] of one key head, then key and value into the cache as f16. Items: row, and column = head.
    pub struct RopeAppend "rope_append" {
        /// Elements of a key head.
        pub d: u32,
        /// Elements of a value head.
        pub dv: u32,
        /// Elements that are rotated.
        pub dims: u32,
        /// Which elements make a pair.
        pub style: RopeStyle,
        /// Epsilon of the norm; `None` where there is no norm.
        pub norm: Option<Bits>,
    }
}

/// Representative ones.
#[rustfmt::skip] // One line each.
const ROWS: &[Row] = &[
    row("rope_append_64", 16, "rope_append d=64 dv=64 dims=64 style=norm"),
    row("rope_append_128", 16, "rope_append d=128 dv=128 dims=128 style=neox norm=1e-6"),
];

impl Definition for RopeAppend {
    fn name(&self) -> String {
        let RopeAppend { d, dv, dims, style, norm } = *self;
        let (style, norm) = rotation::name(style, norm);
        format!("rope_append_{style}_d{d}v{dv}r{dims}{norm}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("k", Holds::Floats)
            .read("v", Holds::Floats)
            .read_if(self.norm.is_some(), "norm", Holds::Floats)
            .index("block")
            .index("lane")
            .read("table", Holds::Floats)
            .write("keys", Holds::Halves)
            .write("values", Holds::Halves)
            .scratch("rotated")
            .dim("blocks", DimRule::CacheBlocks)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let RopeAppend { d, dv, dims, style, norm } = *self;
        checked(&name, d, dims)?;
        let mut b = KernelBuilder::new(name);
        let k = b.read("k", i64::from(d) * 4);
        let v = b.read("v", i64::from(dv) * 4);
        let norm = norm.map(|eps| (eps, b.read("norm", i64::from(d) * 4)));
        let position = position(&mut b, style, dims);
        let blocks = ixc_ir::kernel::DimId(0);
        let keys = b.write("keys", blocks * (KEY_BLOCK * i64::from(d) * 2));
        let values = b.write("values", blocks * (KEY_BLOCK * i64::from(dv) * 2));
        let rotated = b.buffer("rotated", BufferKind::Scratch, i64::from(d) * 4);
        rotate(
            &mut b,
            &Head { lanes, d, dims, style, norm },
            &position,
            k,
            Affine::constant(0),
            rotated,
            Affine::constant(0),
        );
        let key = position.block * (KEY_BLOCK * i64::from(d) * 2) + position.lane * 2;
        for_vectors(&mut b, lanes, d, |b, at, lanes| {
            let x = b.load(Type::f32(lanes), rotated, at.clone() * 4);
            let x = b.op(Op::F32ToF16, Type::f16(lanes), &[x]);
            for lane in 0..lanes {
                let element = if lanes == 1 { x } else { b.op_imm(Op::Extract, Type::f16(1), &[x], i64::from(lane)) };
                b.store(keys, key.clone() + (at.clone() + i64::from(lane)) * (KEY_BLOCK * 2), element);
            }
        });
        let value = position.block * (KEY_BLOCK * i64::from(dv) * 2) + position.lane * (i64::from(dv) * 2);
        for_vectors(&mut b, lanes, dv, |b, at, lanes| {
            let x = b.load(Type::f32(lanes), v, at.clone() * 4);
            let x = b.op(Op::F32ToF16, Type::f16(lanes), &[x]);
            b.store(values, value.clone() + at * 2, x);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let RopeAppend { d, dv, dims, style, norm } = *self;
        let (input, output) = (run.input(), run.output());
        let (position, expected) = rotated(&input, &input.floats("k")?, (d, dims), style, norm)?;
        let (keys, values) = (output.halves("keys")?, output.halves("values")?);
        // Half precision: 11 bits.
        let bound = |expected: f64| expected.abs() / 2048.0 + 1e-4;
        let (block, lane) = (position / KEY_BLOCK as usize, position % KEY_BLOCK as usize);
        for (i, &expected) in expected.iter().enumerate() {
            let key = keys[(block * d as usize + i) * KEY_BLOCK as usize + lane];
            close(format_args!("key {i}"), key, expected, bound(expected))?;
        }
        for (i, &expected) in input.floats("v")?.iter().enumerate() {
            close(format_args!("value {i}"), values[position * dv as usize + i], expected, bound(expected))?;
        }
        Ok(())
    }

    fn work(&self, call: &Call<'_>) -> Work {
        Work::of_bytes(["k", "v", "norm"].iter().map(|name| call.bytes(name)).sum())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
