//! Statements of random kernels: one of each vector op, with operands of fitting types.

use super::*;

impl Generator {
    /// Adds one statement of this op, and statements for its operands.
    pub(super) fn op(&mut self, op: Op, depth: usize) {
        let widest = self.widest;
        match op {
            Op::Splat | Op::Bytes | Op::Load | Op::LoadSplat => {
                let ty = self.any_type();
                self.fresh(ty);
            }
            Op::Iota => {
                let ty = self.lanes(Elem::I32);
                self.emit(op, ty, &[]);
            }
            Op::Index => {
                let mut value = Affine::constant(self.random_int(Elem::I32));
                for (var, _) in self.vars.clone() {
                    value = value + var * (self.rng.below(9) as i64 - 4);
                }
                value = value + self.dims[0] * (self.rng.below(9) as i64 - 4);
                let value = self.b.index(value);
                self.push(value, false);
            }
            Op::Store => self.store(),
            Op::Prefetch => {
                // Addresses around the buffer, not only in it.
                let buffer = BufferId(self.rng.below(self.sizes.len() as u64) as u32);
                let mut offset = Affine::constant(self.rng.below(1 << 16) as i64 - (1 << 15));
                for (var, _) in self.vars.clone() {
                    offset = offset + var * (self.rng.below(200) as i64 - 100);
                }
                self.b.prefetch(buffer, offset);
            }
            Op::Broadcast => {
                let ty = self.any_type();
                self.emit(op, ty, &[Type::new(ty.elem, 1)]);
            }
            Op::Extract => {
                let from = self.any_type();
                let lane = self.rng.below(u64::from(from.lanes)) as i64;
                self.emit_imm(op, Type::new(from.elem, 1), &[from], Some(lane));
            }
            Op::Slice => {
                let from = self.any_type();
                if from.lanes > 1 {
                    let lanes = 1 << self.rng.below(u64::from(from.lanes.ilog2()));
                    let first = self.rng.below(u64::from(from.lanes / lanes)) as i64 * i64::from(lanes);
                    self.emit_imm(op, Type::new(from.elem, lanes), &[from], Some(first));
                }
            }
            Op::Concat => {
                let ty = self.any_type();
                if ty.lanes > 1 {
                    let half = Type::new(ty.elem, ty.lanes / 2);
                    self.emit(op, ty, &[half, half]);
                }
            }
            Op::JoinLo | Op::JoinHi => {
                let ty = self.any_type();
                let ty = Type::new(ty.elem, (32.max(ty.bytes()) / ty.elem.bytes()) as u16);
                self.emit(op, ty, &[ty, ty]);
            }
            Op::Bitcast => {
                let (from, to) = (self.any_type(), self.rng.pick(&Elem::ALL));
                if from.bytes() >= to.bytes() {
                    self.emit(op, Type::new(to, (from.bytes() / to.bytes()) as u16), &[from]);
                }
            }
            Op::UnpackLo | Op::UnpackHi => {
                let ty = self.any_type();
                let ty = Type::new(ty.elem, (16.max(ty.bytes()) / ty.elem.bytes()) as u16);
                let unit = 1 << self.rng.below(4);
                self.emit_imm(op, ty, &[ty, ty], Some(unit));
            }
            Op::SwapPairs => {
                let elem = self.rng.pick(&[Elem::F32, Elem::I32]);
                let ty = self.lanes(elem);
                let ty = Type::new(elem, ty.lanes.max(2));
                self.emit(op, ty, &[ty]);
            }
            Op::Interleave => {
                let elem = self.rng.pick(&[Elem::I16, Elem::F16, Elem::Bf16]);
                let ty = self.lanes(elem);
                let ty = Type::new(elem, ty.lanes.max(2));
                self.emit(op, ty, &[ty]);
            }
            Op::ShuffleBytes => {
                let ty = self.lanes(Elem::I8);
                let ty = Type::i8(ty.lanes.max(16));
                self.emit(op, ty, &[ty, ty]);
            }
            Op::Lookup => {
                let ty = self.lanes(Elem::I32);
                let table = self.rng.below(TABLES.len() as u64) as i64;
                self.emit_imm(op, ty, &[ty], Some(table));
            }
            Op::LookupQuarter => {
                let ty = self.lanes(Elem::I32);
                let bytes = Type::i8(4 * ty.lanes);
                let immediate = self.rng.below(QUARTERS as u64 * TABLES.len() as u64) as i64;
                self.emit_imm(op, ty, &[bytes, bytes], Some(immediate));
            }
            Op::LookupByte => {
                let ty = self.lanes(Elem::I8);
                let table = self.rng.below(BYTE_TABLES.len() as u64) as i64;
                self.emit_imm(op, ty, &[ty, ty], Some(table));
            }
            Op::Multishift => {
                let ty = self.lanes(Elem::I8);
                let ty = Type::i8(ty.lanes.max(8));
                self.emit(op, ty, &[ty, ty]);
            }
            Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Min | Op::Max => {
                let ty = self.lanes(Elem::F32);
                self.emit(op, ty, &[ty, ty]);
            }
            Op::Sqrt => {
                let ty = self.lanes(Elem::F32);
                self.emit(op, ty, &[ty]);
            }
            Op::Fma => {
                let ty = self.lanes(Elem::F32);
                self.emit(op, ty, &[ty, ty, ty]);
            }
            Op::IAdd | Op::ISub | Op::IMin | Op::IMax | Op::Sign | Op::And | Op::Or | Op::Xor => {
                let elem = self.rng.pick(&[Elem::I8, Elem::I16, Elem::I32]);
                let ty = self.lanes(elem);
                self.emit(op, ty, &[ty, ty]);
            }
            Op::IMul => {
                let elem = self.rng.pick(&[Elem::I16, Elem::I32]);
                let ty = self.lanes(elem);
                self.emit(op, ty, &[ty, ty]);
            }
            Op::IAbs => {
                let elem = self.rng.pick(&[Elem::I8, Elem::I16, Elem::I32]);
                let ty = self.lanes(elem);
                self.emit(op, ty, &[ty]);
            }
            Op::Shl | Op::ShrU | Op::ShrS => {
                let elem = self.rng.pick(&[Elem::I16, Elem::I32]);
                let ty = self.lanes(elem);
                let by = self.rng.below(8 * u64::from(elem.bytes())) as i64;
                self.emit_imm(op, ty, &[ty], Some(by));
            }
            Op::CmpEq | Op::CmpGt => {
                let ty = self.lanes(Elem::I32);
                self.emit(op, ty, &[ty, ty]);
            }
            Op::CmpLtF => {
                let ty = self.lanes(Elem::I32);
                let of = Type::f32(ty.lanes);
                self.emit(op, ty, &[of, of]);
            }
            Op::Select => {
                let elem = self.rng.pick(&[Elem::F32, Elem::I32]);
                let ty = self.lanes(elem);
                let operands = [self.mask(ty.lanes), self.operand(ty, true), self.operand(ty, true)];
                let value = self.b.op(op, ty, &operands);
                self.push(value, true);
            }
            Op::ToF32 => {
                let ty = self.lanes(Elem::F32);
                self.emit(op, ty, &[Type::i32(ty.lanes)]);
            }
            Op::ToI32 => {
                let ty = self.lanes(Elem::I32);
                self.emit(op, ty, &[Type::f32(ty.lanes)]);
            }
            Op::F16ToF32 => {
                let ty = self.lanes(Elem::F32);
                self.emit(op, ty, &[Type::f16(ty.lanes)]);
            }
            Op::F32ToF16 => {
                let from = self.lanes(Elem::F32);
                self.emit(op, Type::f16(from.lanes), &[from]);
            }
            Op::ToBf16 => {
                let from = self.lanes(Elem::F32);
                self.emit(op, Type::bf16(from.lanes), &[from]);
            }
            Op::Bf16ToF32 => {
                let ty = self.lanes(Elem::F32);
                self.emit(op, ty, &[Type::bf16(ty.lanes)]);
            }
            Op::ToBf16Pairs => {
                let from = self.lanes(Elem::F32);
                self.emit(op, Type::bf16(from.lanes * 2), &[from, from]);
            }
            Op::ExtendS | Op::ExtendU | Op::NarrowS => {
                let pairs = [(Elem::I8, Elem::I16), (Elem::I8, Elem::I32), (Elem::I16, Elem::I32)];
                let (narrow, wide) = self.rng.pick(&pairs);
                let wide = self.lanes(wide);
                let narrow = Type::new(narrow, wide.lanes);
                let (ty, from) = if op == Op::NarrowS { (narrow, wide) } else { (wide, narrow) };
                self.emit(op, ty, &[from]);
            }
            Op::Dot2U8S8 => {
                let ty = self.lanes_up_to(Elem::I16, widest);
                let of = Type::i8(ty.lanes * 2);
                self.emit(op, ty, &[of, of]);
            }
            Op::Dot2S16 => {
                let ty = self.lanes_up_to(Elem::I32, widest);
                let of = Type::i16(ty.lanes * 2);
                self.emit(op, ty, &[of, of]);
            }
            Op::Dot4U8S8 => {
                let ty = self.lanes(Elem::I32);
                let of = Type::i8(ty.lanes * 4);
                self.emit(op, ty, &[ty, of, of]);
            }
            Op::Dot2Bf16 => {
                let ty = self.lanes(Elem::F32);
                let of = Type::bf16(ty.lanes * 2);
                self.emit(op, ty, &[ty, of, of]);
            }
            Op::TileZero
            | Op::TileLoad
            | Op::TileStore
            | Op::TileDotBf16
            | Op::TileDotS8S8
            | Op::TileDotS8U8
            | Op::TileDotU8S8
            | Op::TileDotU8U8 => self.tile_op(op, depth),
            Op::ReduceAdd | Op::ReduceMax | Op::ReduceMin => {
                let elem = self.rng.pick(&[Elem::F32, Elem::I32]);
                let from = self.lanes(elem);
                self.emit(op, Type::new(elem, 1), &[from]);
            }
        }
    }
}
