//! Rotation of a key head, and append of key and value to the KV cache.

use ixc_ir::graph::attrs::RopeStyle;
use ixc_ir::kernel::{Address, Affine, BufferId, BufferKind, Kernel, KernelBuilder, Op, Type};

use crate::catalogue::{Row, row};
use crate::generator::blocks;
use crate::generator::buffer_offset::BufferOffset;
use crate::generator::cache::{Blocks, Cache};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::rotation::{self, Head, KEY_BLOCK, check_rotated_dims, position, rotate, rotate_heads};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::vectors::for_vectors;
use crate::generator::work::{Call, Work};

spec! {
    /// [`crate::RopeHeads`] of one key head, followed by the append of key and value to the KV
    /// cache. An item is one row and one column; columns are key heads.
    pub struct RopeAppend "rope_append" {
        /// Number of elements of a key head.
        pub d: u32,
        /// Number of elements of a value head.
        pub dv: u32,
        /// Number of elements that are rotated.
        pub dims: u32,
        /// Choice of the two elements of a pair.
        pub style: RopeStyle,
        /// Epsilon of the norm, or `None` if there is no norm.
        pub norm: Option<Bits>,
        /// Formats of keys and values.
        #[serde(default)]
        pub cache: Cache = Cache::default(),
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("rope_append_64", 16, "rope_append d=64 dv=64 dims=64 style=norm"),
    row("rope_append_128", 16, "rope_append d=128 dv=128 dims=128 style=neox norm=1e-6"),
    row("rope_append_q8_0", 16, "rope_append d=128 dv=128 dims=128 style=neox cache=q8_0/q8_0"),
    row("rope_append_q4_0", 16, "rope_append d=128 dv=128 dims=128 style=neox cache=q4_0/q4_0"),
];

impl Definition for RopeAppend {
    fn name(&self) -> String {
        let RopeAppend { d, dv, dims, style, norm, cache } = *self;
        let (style, norm) = rotation::name(style, norm);
        format!("rope_append_{style}_d{d}v{dv}r{dims}{norm}{}", cache.suffix())
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("k", BufferContents::Floats)
            .read("v", BufferContents::Floats)
            .read_if(self.norm.is_some(), "norm", BufferContents::Floats)
            .index("block")
            .index("lane")
            .read("table", BufferContents::Floats)
            .write("keys", self.cache.keys(self.d).holds())
            .write("values", self.cache.values(self.dv).holds())
            .scratch("rotated")
            .dim("blocks", blocks::of_cache())
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let RopeAppend { d, dv, dims, style, norm, cache } = *self;
        check_rotated_dims(&name, d, dims)?;
        cache.check(&name, d, dv)?;
        let (of_keys, of_values) = (cache.keys(d), cache.values(dv));
        let mut b = KernelBuilder::new(name);
        let k = b.read("k", i64::from(d) * 4);
        let v = b.read("v", i64::from(dv) * 4);
        let norm = norm.map(|eps| (eps, b.read("norm", i64::from(d) * 4)));
        let position = position(&mut b, style, dims);
        let blocks = ixc_ir::kernel::DimId(0);
        let keys = b.write("keys", blocks * of_keys.strip_bytes());
        let values = b.write("values", blocks * of_values.strip_bytes());
        // Scratch memory first has the rotated key, and then the codes of one of its blocks.
        let codes_at = i64::from(d) * 4;
        let codes = of_keys.codes().map_or(0, |blocks| blocks.bytes());
        let rotated = b.buffer("rotated", BufferKind::Scratch, codes_at + codes);
        rotate(
            &mut b,
            &Head { lanes, d, dims, style, norm },
            &position,
            k,
            Affine::constant(0),
            rotated,
            Affine::constant(0),
        );
        // `append` passes offsets in a block; they become offsets in the whole row.
        let in_blocks = |b: &mut KernelBuilder, blocks: Blocks, from: BufferId, to: Address, scratch| {
            b.for_each("block", blocks.count, |b, i| {
                let elements = |b: &mut KernelBuilder, at: Affine, lanes: u16| {
                    b.load(Type::f32(lanes), from, (i * blocks.len() + at) * 4)
                };
                let panel = Address { buffer: to.buffer, offset: to.offset.clone() + i * blocks.panel() };
                blocks.append(b, lanes, &elements, panel, position.lane.into(), scratch);
            });
        };
        let strip = position.block * of_keys.strip_bytes();
        match of_keys.codes() {
            Some(blocks) => {
                let scratch = Some(BufferOffset { buffer: rotated, at: codes_at });
                in_blocks(&mut b, blocks, rotated, Address { buffer: keys, offset: strip }, scratch);
            }
            None => for_vectors(&mut b, lanes, d, |b, at, lanes| {
                let key = strip.clone() + position.lane * 2;
                let x = b.load(Type::f32(lanes), rotated, at.clone() * 4);
                let x = b.op(Op::F32ToF16, Type::f16(lanes), &[x]);
                for lane in 0..lanes {
                    let element =
                        if lanes == 1 { x } else { b.op_imm(Op::Extract, Type::f16(1), &[x], i64::from(lane)) };
                    b.store(keys, key.clone() + (at.clone() + i64::from(lane)) * (KEY_BLOCK * 2), element);
                }
            }),
        }
        let strip = position.block * of_values.strip_bytes();
        match of_values.codes() {
            Some(blocks) => in_blocks(&mut b, blocks, v, Address { buffer: values, offset: strip }, None),
            None => for_vectors(&mut b, lanes, dv, |b, at, lanes| {
                let value = strip.clone() + position.lane * (i64::from(dv) * 2);
                let x = b.load(Type::f32(lanes), v, at.clone() * 4);
                let x = b.op(Op::F32ToF16, Type::f16(lanes), &[x]);
                b.store(values, value + at * 2, x);
            }),
        }
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let RopeAppend { d, dv, dims, style, norm, cache } = *self;
        let (input, output) = (run.input(), run.output());
        let (position, key) = rotate_heads(&input, &input.floats("k")?, d, dims, style, norm)?;
        let value = input.floats("v")?;
        for (name, field, expected) in [("keys", cache.keys(d), key), ("values", cache.values(dv), value)] {
            let found = field.reader(&output, name)?;
            let largest: Vec<f64> = expected
                .chunks(field.block_len())
                .map(|block| block.iter().fold(0.0, |most, x| x.abs().max(most)))
                .collect();
            for (i, &expected) in expected.iter().enumerate() {
                let bound = field.rounding(expected, largest[i / field.block_len()]) + 1e-4;
                close(format_args!("{name} {i}"), found(position, i), expected, bound)?;
            }
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
