//! Statements of random kernels: for each vector op, one statement with operands of fitting types.

use super::*;

/// Element types of integer ops.
const INTEGERS: [Elem; 3] = [Elem::I8, Elem::I16, Elem::I32];
/// Element types of integer ops for which targets have no byte instructions.
const WIDE_INTEGERS: [Elem; 2] = [Elem::I16, Elem::I32];
/// Element types of four bytes.
const WORDS: [Elem; 2] = [Elem::F32, Elem::I32];

impl Generator {
    /// Adds one statement of this op, and statements for its operands.
    pub(super) fn op(&mut self, op: Op, depth: usize) {
        match op {
            Op::Splat | Op::Bytes | Op::Load | Op::LoadSplat => {
                let ty = self.any_type();
                self.fresh(ty);
            }
            Op::Iota => self.elementwise::<0>(op, Elem::I32),
            Op::Index => self.index(),
            Op::Store => self.store(),
            Op::Prefetch => self.prefetch(),
            Op::Broadcast => {
                let ty = self.any_type();
                self.emit(op, ty, &[Type::new(ty.elem, 1)]);
            }
            Op::Extract => {
                let from = self.any_type();
                let lane = self.rng.below(u64::from(from.lanes)) as i64;
                self.emit_imm(op, Type::new(from.elem, 1), &[from], Some(lane));
            }
            Op::Slice => self.slice(),
            Op::Concat => self.concat(),
            Op::JoinLo | Op::JoinHi => {
                let ty = self.any_type_of_bytes(32);
                self.emit(op, ty, &[ty, ty]);
            }
            Op::Bitcast => self.bitcast(),
            Op::UnpackLo | Op::UnpackHi => {
                let ty = self.any_type_of_bytes(16);
                let unit = 1 << self.rng.below(4);
                self.emit_imm(op, ty, &[ty, ty], Some(unit));
            }
            Op::SwapPairs => {
                let elem = self.rng.pick(&WORDS);
                self.shuffle::<1>(op, elem, 2);
            }
            Op::Interleave => {
                let elem = self.rng.pick(&[Elem::I16, Elem::F16, Elem::Bf16]);
                self.shuffle::<1>(op, elem, 2);
            }
            Op::ShuffleBytes => self.shuffle::<2>(op, Elem::I8, 16),
            Op::Lookup => self.lookup::<1>(op, Elem::I32, TABLES.len()),
            Op::LookupQuarter => self.lookup_quarter(),
            Op::LookupByte => self.lookup::<2>(op, Elem::I8, BYTE_TABLES.len()),
            Op::Multishift => self.shuffle::<2>(op, Elem::I8, 8),
            Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Min | Op::Max => self.elementwise::<2>(op, Elem::F32),
            Op::Sqrt => self.elementwise::<1>(op, Elem::F32),
            Op::Fma => self.elementwise::<3>(op, Elem::F32),
            Op::IAdd | Op::ISub | Op::IMin | Op::IMax | Op::Sign | Op::And | Op::Or | Op::Xor => {
                let elem = self.rng.pick(&INTEGERS);
                self.elementwise::<2>(op, elem);
            }
            Op::IMul => {
                let elem = self.rng.pick(&WIDE_INTEGERS);
                self.elementwise::<2>(op, elem);
            }
            Op::IAbs => {
                let elem = self.rng.pick(&INTEGERS);
                self.elementwise::<1>(op, elem);
            }
            Op::Shl | Op::ShrU | Op::ShrS => self.shift(op),
            Op::CmpEq | Op::CmpGt => self.elementwise::<2>(op, Elem::I32),
            Op::CmpLtF => self.per_lane::<2>(op, Elem::I32, Type::f32),
            Op::Select => self.select(),
            Op::ToF32 => self.per_lane::<1>(op, Elem::F32, Type::i32),
            Op::ToI32 => self.per_lane::<1>(op, Elem::I32, Type::f32),
            Op::F16ToF32 => self.per_lane::<1>(op, Elem::F32, Type::f16),
            Op::Bf16ToF32 => self.per_lane::<1>(op, Elem::F32, Type::bf16),
            Op::F32ToF16 => self.float_lanes::<1>(op, Type::f16),
            Op::ToBf16 => self.float_lanes::<1>(op, Type::bf16),
            Op::ToBf16Pairs => self.float_lanes::<2>(op, |lanes| Type::bf16(lanes * 2)),
            Op::ExtendS | Op::ExtendU | Op::NarrowS => self.resize(op),
            Op::Dot2U8S8 => {
                let ty = self.lanes_up_to(Elem::I16, self.widest);
                self.emit(op, ty, &[Type::i8(ty.lanes * 2); 2]);
            }
            Op::Dot2S16 => {
                let ty = self.lanes_up_to(Elem::I32, self.widest);
                self.emit(op, ty, &[Type::i16(ty.lanes * 2); 2]);
            }
            Op::Dot4U8S8 => self.dot(op, Elem::I32, |lanes| Type::i8(lanes * 4)),
            Op::Dot2Bf16 => self.dot(op, Elem::F32, |lanes| Type::bf16(lanes * 2)),
            Op::TileZero
            | Op::TileLoad
            | Op::TileStore
            | Op::TileDotBf16
            | Op::TileDotS8S8
            | Op::TileDotS8U8
            | Op::TileDotU8S8
            | Op::TileDotU8U8 => self.tile_op(op, depth),
            Op::ReduceAdd | Op::ReduceMax | Op::ReduceMin => {
                let elem = self.rng.pick(&WORDS);
                let from = self.lanes(elem);
                self.emit(op, Type::new(elem, 1), &[from]);
            }
        }
    }

    /// Adds an op whose operands have the type of its result.
    fn elementwise<const OPERANDS: usize>(&mut self, op: Op, elem: Elem) {
        let ty = self.lanes(elem);
        self.emit(op, ty, &[ty; OPERANDS]);
    }

    /// Adds an op whose operands have as many lanes as its result.
    fn per_lane<const OPERANDS: usize>(&mut self, op: Op, elem: Elem, operand: fn(u16) -> Type) {
        let ty = self.lanes(elem);
        self.emit(op, ty, &[operand(ty.lanes); OPERANDS]);
    }

    /// Adds an op on float operands. Their number of lanes determines the type of the result.
    fn float_lanes<const OPERANDS: usize>(&mut self, op: Op, result: fn(u16) -> Type) {
        let from = self.lanes(Elem::F32);
        self.emit(op, result(from.lanes), &[from; OPERANDS]);
    }

    /// Adds an op that moves elements within groups; a group has `least` lanes.
    fn shuffle<const OPERANDS: usize>(&mut self, op: Op, elem: Elem, least: u16) {
        let ty = self.lanes(elem);
        let ty = Type::new(elem, ty.lanes.max(least));
        self.emit(op, ty, &[ty; OPERANDS]);
    }

    /// Adds a lookup in one of the first `tables` tables.
    fn lookup<const OPERANDS: usize>(&mut self, op: Op, elem: Elem, tables: usize) {
        let ty = self.lanes(elem);
        let table = self.rng.below(tables as u64) as i64;
        self.emit_imm(op, ty, &[ty; OPERANDS], Some(table));
    }

    fn lookup_quarter(&mut self) {
        let ty = self.lanes(Elem::I32);
        let bytes = Type::i8(4 * ty.lanes);
        let immediate = self.rng.below(QUARTERS as u64 * TABLES.len() as u64) as i64;
        self.emit_imm(Op::LookupQuarter, ty, &[bytes, bytes], Some(immediate));
    }

    /// Adds a dot product, which adds to an accumulator.
    fn dot(&mut self, op: Op, elem: Elem, factor: fn(u16) -> Type) {
        let ty = self.lanes(elem);
        let factor = factor(ty.lanes);
        self.emit(op, ty, &[ty, factor, factor]);
    }

    /// Returns a type of at least this many bytes.
    fn any_type_of_bytes(&mut self, least: u32) -> Type {
        let ty = self.any_type();
        Type::new(ty.elem, (least.max(ty.bytes()) / ty.elem.bytes()) as u16)
    }

    fn index(&mut self) {
        let mut value = Affine::constant(self.random_int(Elem::I32));
        for (var, _) in self.vars.clone() {
            value = value + var * (self.rng.below(9) as i64 - 4);
        }
        value = value + self.dims[0] * (self.rng.below(9) as i64 - 4);
        let value = self.b.index(value);
        self.push(value, false);
    }

    /// Adds a prefetch of an address inside or outside a buffer.
    fn prefetch(&mut self) {
        let buffer = BufferId(self.rng.below(self.sizes.len() as u64) as u32);
        let mut offset = Affine::constant(self.rng.below(1 << 16) as i64 - (1 << 15));
        for (var, _) in self.vars.clone() {
            offset = offset + var * (self.rng.below(200) as i64 - 100);
        }
        self.b.prefetch(buffer, offset);
    }

    fn slice(&mut self) {
        let from = self.any_type();
        if from.lanes > 1 {
            let lanes = 1 << self.rng.below(u64::from(from.lanes.ilog2()));
            let first = self.rng.below(u64::from(from.lanes / lanes)) as i64 * i64::from(lanes);
            self.emit_imm(Op::Slice, Type::new(from.elem, lanes), &[from], Some(first));
        }
    }

    fn concat(&mut self) {
        let ty = self.any_type();
        if ty.lanes > 1 {
            let half = Type::new(ty.elem, ty.lanes / 2);
            self.emit(Op::Concat, ty, &[half, half]);
        }
    }

    fn bitcast(&mut self) {
        let (from, to) = (self.any_type(), self.rng.pick(&Elem::ALL));
        if from.bytes() >= to.bytes() {
            self.emit(Op::Bitcast, Type::new(to, (from.bytes() / to.bytes()) as u16), &[from]);
        }
    }

    fn shift(&mut self, op: Op) {
        let elem = self.rng.pick(&WIDE_INTEGERS);
        let ty = self.lanes(elem);
        let by = self.rng.below(8 * u64::from(elem.bytes())) as i64;
        self.emit_imm(op, ty, &[ty], Some(by));
    }

    fn select(&mut self) {
        let elem = self.rng.pick(&WORDS);
        let ty = self.lanes(elem);
        let operands = [self.mask(ty.lanes), self.operand(ty, true), self.operand(ty, true)];
        let value = self.b.op(Op::Select, ty, &operands);
        self.push(value, true);
    }

    /// Adds a conversion between integers of different sizes.
    fn resize(&mut self, op: Op) {
        let pairs = [(Elem::I8, Elem::I16), (Elem::I8, Elem::I32), (Elem::I16, Elem::I32)];
        let (narrow, wide) = self.rng.pick(&pairs);
        let wide = self.lanes(wide);
        let narrow = Type::new(narrow, wide.lanes);
        let (ty, from) = if op == Op::NarrowS { (narrow, wide) } else { (wide, narrow) };
        self.emit(op, ty, &[from]);
    }
}
