//! Chunks of 16 bytes: their types, constants, byte shuffles, loads and stores.

use cranelift_codegen::ir::{self, ConstantData, Endianness, InstBuilder, MemFlagsData, Value, types};
use ixc_ir::kernel::{Address, Elem, Type};

use super::PortableError;
use super::lower::Lowering;

/// Bytes of a chunk: cranelift's widest vector.
pub(super) const CHUNK_BYTES: usize = 16;

/// The chunks of a value, lowest lanes first.
pub(super) type Chunks = Vec<Value>;

/// How many chunks hold a value of this type.
pub(super) fn chunk_count(ty: Type) -> usize {
    (ty.bytes() as usize).div_ceil(CHUNK_BYTES)
}

/// Cranelift's type of a chunk; halves are only bits here.
pub(super) fn chunk_type(elem: Elem) -> ir::Type {
    match elem {
        Elem::I8 => types::I8X16,
        Elem::I16 | Elem::F16 => types::I16X8,
        Elem::I32 => types::I32X4,
        Elem::F32 => types::F32X4,
    }
}

/// Memory that the verifier has proved in bounds; kernels assume no alignment.
fn memory_flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

impl Lowering<'_> {
    /// The same 16 bytes as another vector type.
    pub(super) fn cast(&mut self, ty: ir::Type, value: Value) -> Value {
        if self.b.func.dfg.value_type(value) == ty {
            return value;
        }
        self.b.ins().bitcast(ty, MemFlagsData::new().with_endianness(Endianness::Little), value)
    }

    /// A constant chunk.
    pub(super) fn constant(&mut self, ty: ir::Type, bytes: [u8; CHUNK_BYTES]) -> Value {
        let constant = self.b.func.dfg.constants.insert(ConstantData::from(bytes.to_vec()));
        self.b.ins().vconst(ty, constant)
    }

    /// A 32-bit pattern in every lane of an `I32X4` or `F32X4`.
    pub(super) fn constant32(&mut self, ty: ir::Type, bits: u32) -> Value {
        self.constant(ty, std::array::from_fn(|i| bits.to_le_bytes()[i % 4]))
    }

    /// A 64-bit pattern in every lane of an `I64X2` or `F64X2`.
    pub(super) fn constant64(&mut self, ty: ir::Type, bits: u64) -> Value {
        self.constant(ty, std::array::from_fn(|i| bits.to_le_bytes()[i % 8]))
    }

    /// The chunks of a constant of up to [`Type::MAX_BYTES`].
    pub(super) fn constants(&mut self, ty: Type, byte: impl Fn(usize) -> u8) -> Chunks {
        let size = ty.bytes() as usize;
        let at = |i: usize| if i < size { byte(i) } else { 0 };
        (0..chunk_count(ty))
            .map(|chunk| self.constant(chunk_type(ty.elem), std::array::from_fn(|i| at(chunk * CHUNK_BYTES + i))))
            .collect()
    }

    /// Byte `i` of the result is byte `from(i)` of the 32 bytes of `low` and `high`; has the type of `low`.
    pub(super) fn shuffle(&mut self, low: Value, high: Value, from: impl FnMut(usize) -> usize) -> Value {
        let ty = self.b.func.dfg.value_type(low);
        let mask: Vec<u8> = (0..CHUNK_BYTES).map(from).map(|byte| byte as u8).collect();
        let mask = self.b.func.dfg.immediates.push(ConstantData::from(mask));
        let (low, high) = (self.cast(types::I8X16, low), self.cast(types::I8X16, high));
        let shuffled = self.b.ins().shuffle(low, high, mask);
        self.cast(ty, shuffled)
    }

    /// The chunk's bytes from `first` on, moved to the bottom; what is above means nothing.
    pub(super) fn move_down(&mut self, chunk: Value, first: usize) -> Value {
        if first == 0 { chunk } else { self.shuffle(chunk, chunk, |i| (first + i) % CHUNK_BYTES) }
    }

    /// The lowest lane of `size` bytes in every lane.
    pub(super) fn splat_lowest(&mut self, chunk: Value, size: usize) -> Value {
        self.shuffle(chunk, chunk, |i| i % size)
    }

    /// An integer scalar of 32 or 64 bits in the lowest lane of a chunk.
    pub(super) fn scalar_chunk(&mut self, ty: ir::Type, scalar: Value) -> Value {
        let vector = if self.b.func.dfg.value_type(scalar) == types::I64 { types::I64X2 } else { types::I32X4 };
        let chunk = self.b.ins().scalar_to_vector(vector, scalar);
        self.cast(ty, chunk)
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
