//! Chunks of 16 bytes: their types, constants, byte shuffles, loads and stores.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    self, ConstantData, Endianness, InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, Value, types,
};
use ixc_ir::format::grids::{BYTE_TABLES, TABLES};
use ixc_ir::kernel::{Address, Imm, Inst, Op, QUARTERS, Stmt, Type};

use super::PortableError;
use super::chunk_types::{CHUNK_BYTES, Chunks, chunk_count, chunk_type};
use super::lower::Lowering;

/// Returns the flags for memory that the verifier has proved in bounds; kernels assume no
/// alignment.
fn memory_flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

impl Lowering<'_> {
    /// Reinterprets 16 bytes as another vector type.
    pub(super) fn cast(&mut self, ty: ir::Type, value: Value) -> Value {
        if self.b.func.dfg.value_type(value) == ty {
            return value;
        }
        self.b.ins().bitcast(ty, MemFlagsData::new().with_endianness(Endianness::Little), value)
    }

    /// Emits a constant chunk.
    pub(super) fn constant(&mut self, ty: ir::Type, bytes: [u8; CHUNK_BYTES]) -> Value {
        let constant = self.b.func.dfg.constants.insert(ConstantData::from(bytes.to_vec()));
        self.b.ins().vconst(ty, constant)
    }

    /// Emits a 32-bit pattern in every lane of an `I32X4` or `F32X4`.
    pub(super) fn constant32(&mut self, ty: ir::Type, bits: u32) -> Value {
        self.constant(ty, std::array::from_fn(|i| bits.to_le_bytes()[i % 4]))
    }

    /// Emits a 64-bit pattern in every lane of an `I64X2` or `F64X2`.
    pub(super) fn constant64(&mut self, ty: ir::Type, bits: u64) -> Value {
        self.constant(ty, std::array::from_fn(|i| bits.to_le_bytes()[i % 8]))
    }

    /// Emits the chunks of a constant of up to [`Type::MAX_BYTES`].
    pub(super) fn constants(&mut self, ty: Type, byte: impl Fn(usize) -> u8) -> Chunks {
        let size = ty.bytes() as usize;
        let at = |i: usize| if i < size { byte(i) } else { 0 };
        (0..chunk_count(ty))
            .map(|chunk| self.constant(chunk_type(ty.elem), std::array::from_fn(|i| at(chunk * CHUNK_BYTES + i))))
            .collect()
    }

    /// Shuffles bytes: byte `i` of the result is byte `from(i)` of the 32 bytes of `low` and
    /// `high`. The result has the type of `low`.
    pub(super) fn shuffle(&mut self, low: Value, high: Value, mut from: impl FnMut(usize) -> usize) -> Value {
        let ty = self.b.func.dfg.value_type(low);
        let (low, high) = (self.cast(types::I8X16, low), self.cast(types::I8X16, high));
        let shuffled = if self.features.shuffle_bytes {
            let mask: Vec<u8> = (0..CHUNK_BYTES).map(|i| from(i) as u8).collect();
            let mask = self.b.func.dfg.immediates.push(ConstantData::from(mask));
            self.b.ins().shuffle(low, high, mask)
        } else {
            let base = self.spill([low, high]);
            self.gather(base, |_, i| (base, from(i) as i32))
        };
        self.cast(ty, shuffled)
    }

    /// Writes two chunks to the stack and reserves space for a third chunk after them. Returns the
    /// address of the first chunk.
    fn spill(&mut self, chunks: [Value; 2]) -> Value {
        let slot = StackSlotData::new(StackSlotKind::ExplicitSlot, 3 * CHUNK_BYTES as u32, 4);
        let slot = self.b.create_sized_stack_slot(slot);
        let base = self.b.ins().stack_addr(types::I64, slot, 0);
        for (i, chunk) in chunks.into_iter().enumerate() {
            self.b.ins().store(memory_flags(), chunk, base, (i * CHUNK_BYTES) as i32);
        }
        base
    }

    /// Builds a chunk byte by byte in the space that [`Self::spill`] reserves at `base`. `from`
    /// returns the address of each source byte.
    fn gather(&mut self, base: Value, mut from: impl FnMut(&mut Self, usize) -> (Value, i32)) -> Value {
        let room = 2 * CHUNK_BYTES as i32;
        for i in 0..CHUNK_BYTES {
            let (address, offset) = from(self, i);
            let byte = self.b.ins().uload8(types::I32, memory_flags(), address, offset);
            self.b.ins().istore8(memory_flags(), byte, base, room + i as i32);
        }
        self.b.ins().load(types::I8X16, memory_flags(), base, room)
    }

    /// Shuffles the bytes of `a`: the low 4 bits of byte `i` of `index` select the source of byte
    /// `i`. The result is 0 where the top bit of the index byte is set.
    pub(super) fn shuffle_bytes(&mut self, a: Value, index: Value) -> Value {
        if self.features.shuffle_bytes {
            // Cranelift's `swizzle` gives 0 for every index above 15, so clear bits 4 to 6.
            let mask = self.constant(types::I8X16, [0x8f; CHUNK_BYTES]);
            let index = self.b.ins().band(index, mask);
            return self.b.ins().swizzle(a, index);
        }
        let low = self.constant(types::I8X16, [0x0f; CHUNK_BYTES]);
        let numbers = self.b.ins().band(index, low);
        let base = self.spill([a, numbers]);
        let shuffled = self.gather(base, |lowering, i| {
            let at = (CHUNK_BYTES + i) as i32;
            let number = lowering.b.ins().uload8(types::I64, memory_flags(), base, at);
            (lowering.b.ins().iadd(base, number), 0)
        });
        let zero = self.constant(types::I8X16, [0; CHUNK_BYTES]);
        let cleared = self.b.ins().icmp(IntCC::SignedLessThan, index, zero);
        self.b.ins().band_not(shuffled, cleared)
    }

    /// Moves the chunk's bytes from byte `first` on to the lowest bytes. The bytes above the moved
    /// ones are undefined.
    pub(super) fn move_down(&mut self, chunk: Value, first: usize) -> Value {
        if first == 0 { chunk } else { self.shuffle(chunk, chunk, |i| (first + i) % CHUNK_BYTES) }
    }

    /// Copies the lowest lane, which has `size` bytes, to every lane.
    pub(super) fn splat_lowest(&mut self, chunk: Value, size: usize) -> Value {
        self.shuffle(chunk, chunk, |i| i % size)
    }

    /// Puts a 32- or 64-bit integer scalar into the lowest lane of a chunk.
    pub(super) fn scalar_chunk(&mut self, ty: ir::Type, scalar: Value) -> Value {
        let vector = if self.b.func.dfg.value_type(scalar) == types::I64 { types::I64X2 } else { types::I32X4 };
        let chunk = self.b.ins().scalar_to_vector(vector, scalar);
        self.cast(ty, chunk)
    }

    /// Copies the lookup tables that these statements use to the stack, because code without
    /// relocations cannot index other data.
    pub(super) fn copy_tables(&mut self, statements: &[Stmt]) {
        for statement in statements {
            match statement {
                Stmt::Inst(Inst { op: op @ (Op::Lookup | Op::LookupQuarter), imm: Imm::Int(immediate), .. }) => {
                    let each = if *op == Op::Lookup { 1 } else { QUARTERS };
                    let table = (immediate / each) as usize;
                    if self.tables[table].is_none() {
                        let bytes: Vec<u8> = TABLES[table].iter().flat_map(|entry| entry.to_le_bytes()).collect();
                        self.tables[table] = Some(self.copy_table(&bytes));
                    }
                }
                Stmt::Inst(Inst { op: Op::LookupByte, imm: Imm::Int(table), .. }) => {
                    let table = *table as usize;
                    if self.byte_tables[table].is_none() {
                        self.byte_tables[table] = Some(self.copy_table(BYTE_TABLES[table]));
                    }
                }
                Stmt::Inst(_) | Stmt::LoadIndex { .. } => {}
                Stmt::For(looped) => self.copy_tables(&looped.body),
            }
        }
    }

    /// Copies a table to the stack. Its size is a multiple of 16 bytes.
    fn copy_table(&mut self, bytes: &[u8]) -> Value {
        let slot = StackSlotData::new(StackSlotKind::ExplicitSlot, bytes.len() as u32, 4);
        let slot = self.b.create_sized_stack_slot(slot);
        let base = self.b.ins().stack_addr(types::I64, slot, 0);
        for (i, bytes) in bytes.chunks_exact(CHUNK_BYTES).enumerate() {
            let chunk = self.constant(types::I8X16, std::array::from_fn(|byte| bytes[byte]));
            self.b.ins().store(memory_flags(), chunk, base, (i * CHUNK_BYTES) as i32);
        }
        base
    }

    /// Looks up table entries. Each 32-bit lane contains a 16-bit entry number: its low byte is
    /// byte `quarter` of operand 0, its high byte the same byte of operand 1.
    pub(super) fn lookup_quarter(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        let immediate = self.immediate(inst)?;
        let (table, quarter) = ((immediate / QUARTERS) as usize, immediate % QUARTERS);
        let Some(base) = self.tables[table] else { return Err(self.malformed_error("lookup_quarter", "a table")) };
        let (lanes, mask) = (usize::from(inst.ty.lanes), TABLES[table].len() as i64 - 1);
        let mut all = Chunks::new();
        for (c, (low, high)) in self.operand(inst, 0)?.into_iter().zip(self.operand(inst, 1)?).enumerate() {
            let mut chunk = self.cast(types::I32X4, low);
            for lane in 0..(lanes - c * CHUNK_BYTES / 4).min(CHUNK_BYTES / 4) {
                let [low, high] = [low, high].map(|bytes| {
                    let byte = self.b.ins().extractlane(bytes, (QUARTERS as usize * lane) as u8 + quarter as u8);
                    self.b.ins().uextend(types::I64, byte)
                });
                let high = self.b.ins().ishl_imm_u(high, 8);
                let number = self.b.ins().bor(low, high);
                let number = self.b.ins().band_imm_u(number, mask);
                let at = self.b.ins().ishl_imm_u(number, 2);
                let at = self.b.ins().iadd(base, at);
                let entry = self.b.ins().load(types::I32, memory_flags(), at, 0);
                chunk = self.b.ins().insertlane(chunk, entry, lane as u8);
            }
            all.push(chunk);
        }
        Ok(all)
    }

    /// Looks up entries of a table of bytes. Operand 0 has the low bytes of the entry numbers,
    /// operand 1 the high bytes.
    pub(super) fn lookup_byte(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        let table = self.immediate(inst)? as usize;
        let Some(base) = self.byte_tables[table] else { return Err(self.malformed_error("lookup_byte", "a table")) };
        let mask = BYTE_TABLES[table].len() as i64 - 1;
        self.map2(inst, |lowering, low, high| {
            let mut chunk = low;
            for lane in 0..CHUNK_BYTES as u8 {
                let [low, high] = [low, high].map(|bytes| {
                    let byte = lowering.b.ins().extractlane(bytes, lane);
                    lowering.b.ins().uextend(types::I64, byte)
                });
                let high = lowering.b.ins().ishl_imm_u(high, 8);
                let number = lowering.b.ins().bor(low, high);
                let number = lowering.b.ins().band_imm_u(number, mask);
                let at = lowering.b.ins().iadd(base, number);
                let entry = lowering.b.ins().load(types::I8, memory_flags(), at, 0);
                chunk = lowering.b.ins().insertlane(chunk, entry, lane);
            }
            chunk
        })
    }

    /// Selects bits like `vpmultishiftqb`: byte `i` of `from` is a bit offset into the 64-bit lane
    /// of `a` that contains byte `i`. Byte `i` of the result is the 8 bits that begin at this
    /// offset, with wrap-around.
    pub(super) fn multishift(&mut self, a: Value, from: Value) -> Value {
        let [a, from] = [a, from].map(|chunk| self.cast(types::I64X2, chunk));
        let mut chunk = a;
        for half in 0..2 {
            let [eight, from] = [a, from].map(|chunk| self.b.ins().extractlane(chunk, half));
            let mut all = self.b.ins().iconst(types::I64, 0);
            for byte in 0..8 {
                // Rotations use the amount modulo 64, so higher bits need no mask.
                let by = self.b.ins().ushr_imm_u(from, 8 * byte);
                let bits = self.b.ins().rotr(eight, by);
                let bits = self.b.ins().band_imm_u(bits, 0xff);
                let bits = self.b.ins().ishl_imm_u(bits, 8 * byte);
                all = self.b.ins().bor(all, bits);
            }
            chunk = self.b.ins().insertlane(chunk, all, half);
        }
        self.cast(types::I8X16, chunk)
    }

    /// Looks up entries of a table of 32-bit values.
    pub(super) fn lookup(&mut self, inst: &Inst) -> Result<Chunks, PortableError> {
        let table = self.immediate(inst)? as usize;
        let Some(base) = self.tables[table] else { return Err(self.malformed_error("lookup", "a table")) };
        let (lanes, mask) = (usize::from(inst.ty.lanes), TABLES[table].len() as i64 - 1);
        let mut all = Chunks::new();
        for (c, numbers) in self.operand(inst, 0)?.into_iter().enumerate() {
            let mut chunk = numbers;
            for lane in 0..(lanes - c * CHUNK_BYTES / 4).min(CHUNK_BYTES / 4) {
                let number = self.b.ins().extractlane(numbers, lane as u8);
                let number = self.b.ins().uextend(types::I64, number);
                let number = self.b.ins().band_imm_u(number, mask);
                let at = self.b.ins().ishl_imm_u(number, 2);
                let at = self.b.ins().iadd(base, at);
                let entry = self.b.ins().load(types::I32, memory_flags(), at, 0);
                chunk = self.b.ins().insertlane(chunk, entry, lane as u8);
            }
            all.push(chunk);
        }
        Ok(all)
    }

    /// Loads a value.
    pub(super) fn load(&mut self, ty: Type, address: &Address) -> Result<Chunks, PortableError> {
        let (base, offset) = self.address(address)?;
        let (chunk, flags) = (chunk_type(ty.elem), memory_flags());
        let ins = |lowering: &mut Self, ty, at| lowering.b.ins().load(ty, flags, base, at);
        let narrow = match ty.bytes() {
            1 => self.b.ins().uload8(types::I32, flags, base, offset),
            2 => self.b.ins().uload16(types::I32, flags, base, offset),
            4 => ins(self, types::I32, offset),
            8 => ins(self, types::I64, offset),
            _ => {
                let at = |i: usize| offset + (i * CHUNK_BYTES) as i32;
                return Ok((0..chunk_count(ty)).map(|i| ins(self, chunk, at(i))).collect());
            }
        };
        Ok(vec![self.scalar_chunk(chunk, narrow)])
    }

    /// Loads one element into every lane.
    pub(super) fn load_splat(&mut self, ty: Type, address: &Address) -> Result<Chunks, PortableError> {
        let (base, offset) = self.address(address)?;
        let chunk = chunk_type(ty.elem);
        let element = self.b.ins().load(chunk.lane_type(), memory_flags(), base, offset);
        let splat = self.b.ins().splat(chunk, element);
        Ok(vec![splat; chunk_count(ty)])
    }

    /// Stores a value.
    pub(super) fn store(&mut self, ty: Type, chunks: &[Value], address: &Address) -> Result<(), PortableError> {
        let (base, offset) = self.address(address)?;
        let flags = memory_flags();
        if ty.bytes() as usize >= CHUNK_BYTES {
            for (i, &chunk) in chunks.iter().enumerate() {
                self.b.ins().store(flags, chunk, base, offset + (i * CHUNK_BYTES) as i32);
            }
            return Ok(());
        }
        let vector = if ty.bytes() == 8 { types::I64X2 } else { types::I32X4 };
        let chunk = self.cast(vector, chunks[0]);
        let scalar = self.b.ins().extractlane(chunk, 0);
        match ty.bytes() {
            1 => self.b.ins().istore8(flags, scalar, base, offset),
            2 => self.b.ins().istore16(flags, scalar, base, offset),
            _ => self.b.ins().store(flags, scalar, base, offset),
        };
        Ok(())
    }
}
