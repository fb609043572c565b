//! The reference interpreter: the definition of every op, over plain byte buffers.
//!
//! A run takes a kernel, its dims and its buffers. Every lowering must leave the same bytes in the
//! buffers. The interpreter does not rely on the verifier's proofs: it checks dims, buffer sizes,
//! every access and every index value. It therefore also serves as a test of the verifier. Memory
//! is little-endian. No `match` over [`Op`] has a `_` arm, so a new op does not compile until it is
//! defined here.
//!
//! ```text
//! %a = load f32x8 %x[32*%i]     reads 32 bytes at 32 * i of buffer x, or stops with an error
//! %b = fma f32x8 %a, %a, %c     each lane a * a + c, rounded once
//! ```

mod arithmetic;
mod bf16;
mod dot;
mod lanes;
mod tile;
mod vector;

use half::f16;

use super::call::{CallError, check_buffer_count, check_dims};
use super::verify::{self, VerifyError};
use super::*;
use arithmetic::{
    bf16_pairs, convert, extend_unsigned, float2, fma, int2, less, max, min, narrow_signed, reduce, resize,
    shift_unsigned, to_i32,
};
use dot::{dot2_bf16, dot2_s16, dot2_u8s8, dot4_u8s8};
use ixc_failure::Class;
use lanes::{
    bytes_of, interleave, lookup, lookup_byte, lookup_quarter, multishift, repeat_element, select, shuffle_bytes,
    splat, swap_pairs, unpack,
};
use tile::Tile;
use vector::Vector;

/// Reason why a kernel could not be run to the end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpretError {
    /// A malformed kernel.
    #[error(transparent)]
    Malformed(#[from] VerifyError),
    /// Wrong numbers of arguments, or a dim outside its range.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A buffer that is smaller than its declaration.
    #[error("buffer %{name} must have {expected} bytes, found {found}")]
    BufferSize {
        /// Name of the buffer.
        name: String,
        /// Number of bytes in the buffer's declaration.
        expected: i64,
        /// Number of bytes that the caller passed.
        found: usize,
    },
    /// An access outside its buffer.
    #[error("`{op}` accesses {bytes} bytes at offset {offset} of buffer %{buffer}, which has {size} bytes")]
    OutOfBounds {
        /// Mnemonic of the op.
        op: &'static str,
        /// Name of the buffer.
        buffer: String,
        /// Byte offset of the access.
        offset: i64,
        /// Number of bytes of the access.
        bytes: u64,
        /// Declared size of the buffer.
        size: i64,
    },
    /// An access that the buffer's kind does not allow.
    #[error("`{op}` cannot access buffer %{buffer}, which is declared `{kind}`")]
    Forbidden {
        /// Mnemonic of the op.
        op: &'static str,
        /// Name of the buffer.
        buffer: String,
        /// Keyword of the buffer's kind.
        kind: &'static str,
    },
    /// An index value beyond its limit.
    #[error("index {found} at offset {offset} of buffer %{buffer} must be below {below}")]
    IndexValue {
        /// Name of the buffer.
        buffer: String,
        /// Byte offset of the value.
        offset: i64,
        /// Index value in the buffer.
        found: u32,
        /// Exclusive upper bound of the value.
        below: i64,
    },
    /// A loop with a negative number of iterations.
    #[error("loop %{var} would run {trip} times, must be 0 or more")]
    Trip {
        /// Name of the loop variable.
        var: String,
        /// Number of iterations, which is negative.
        trip: i64,
    },
    /// A `select` whose mask has a lane that is neither all ones nor all zeros.
    #[error("`select` with mask lane {lane} = {found:#x}, must be 0 or 0xffffffff")]
    Mask {
        /// Index of the lane.
        lane: usize,
        /// Value of the lane.
        found: u32,
    },
    /// An affine expression whose value does not fit in 64 bits.
    #[error("affine expression overflows 64 bits")]
    Overflow,
}

impl InterpretError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            InterpretError::Call(error) => error.class(),
            InterpretError::Malformed(_)
            | InterpretError::BufferSize { .. }
            | InterpretError::OutOfBounds { .. }
            | InterpretError::Forbidden { .. }
            | InterpretError::IndexValue { .. }
            | InterpretError::Trip { .. }
            | InterpretError::Mask { .. }
            | InterpretError::Overflow => Class::Data,
        }
    }
}

impl BufferKind {
    /// Returns the keyword of this kind of buffer in IR text.
    pub const fn keyword(&self) -> &'static str {
        match self {
            BufferKind::Read => "read",
            BufferKind::Write => "write",
            BufferKind::ReadWrite => "read_write",
            BufferKind::Scratch => "scratch",
            BufferKind::Index { .. } => "index",
        }
    }

    /// Whether `load`, `load_splat` and `tile_load` may read a buffer of this kind.
    pub const fn may_load(&self) -> bool {
        match self {
            BufferKind::Read | BufferKind::ReadWrite | BufferKind::Scratch => true,
            BufferKind::Write | BufferKind::Index { .. } => false,
        }
    }

    /// Whether `store` and `tile_store` may write a buffer of this kind.
    pub const fn may_store(&self) -> bool {
        match self {
            BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => true,
            BufferKind::Read | BufferKind::Index { .. } => false,
        }
    }
}

/// Runs a kernel over `buffers`, in the order of [`Kernel::buffers`]. `dims` are in the order of
/// [`Kernel::dims`].
///
/// # Errors
/// Returns the first error in the arguments or in the kernel's run. Buffers then keep all earlier
/// writes.
pub fn run(kernel: &Kernel, dims: &[i64], buffers: &mut [Vec<u8>]) -> Result<(), InterpretError> {
    verify::structure(kernel)?;
    check_dims(&kernel.dims, dims)?;
    check_buffer_count(&kernel.buffers, buffers.len())?;
    let mut machine = Machine {
        kernel,
        dims,
        sizes: Vec::with_capacity(buffers.len()),
        below: Vec::with_capacity(buffers.len()),
        values: vec![Vector::ZERO; kernel.values.len()],
        tiles: vec![Tile::new(); kernel.values.len()],
        vars: vec![0; kernel.vars.len()],
        buffers,
    };
    for (i, buffer) in kernel.buffers.iter().enumerate() {
        // A negative size means an empty buffer, for example `32*(%n - 1) + 4` bytes with %n = 0.
        let size = machine.affine(&buffer.size)?.max(0);
        let found = machine.buffers[i].len();
        if (found as u64) < size as u64 {
            return Err(InterpretError::BufferSize { name: buffer.name.clone(), expected: size, found });
        }
        machine.sizes.push(size);
        let below = match &buffer.kind {
            BufferKind::Index { below } => machine.affine(below)?,
            BufferKind::Read | BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => 0,
        };
        machine.below.push(below);
    }
    machine.block(&kernel.body)
}

struct Machine<'a> {
    kernel: &'a Kernel,
    dims: &'a [i64],
    /// Declared size of each buffer, for the dims of this run.
    sizes: Vec<i64>,
    /// Limit of the values of each index buffer, for the dims of this run.
    below: Vec<i64>,
    values: Vec<Vector>,
    /// Tiles, by value id. Empty for values that are vectors.
    tiles: Vec<Tile>,
    vars: Vec<i64>,
    buffers: &'a mut [Vec<u8>],
}

impl Machine<'_> {
    fn affine(&self, affine: &Affine) -> Result<i64, InterpretError> {
        affine
            .evaluate(|atom| match atom {
                Atom::Dim(dim) => self.dims[dim.index()],
                Atom::Var(var) => self.vars[var.index()],
            })
            .ok_or(InterpretError::Overflow)
    }

    /// Checks an access against the buffer's size, and returns its offset in the buffer.
    fn place(&self, op: &'static str, address: &Address, bytes: u64) -> Result<usize, InterpretError> {
        let offset = self.affine(&address.offset)?;
        let size = self.sizes[address.buffer.index()];
        if offset >= 0 && offset.checked_add_unsigned(bytes).is_some_and(|end| end <= size) {
            return Ok(offset as usize);
        }
        let buffer = self.kernel.buffers[address.buffer.index()].name.clone();
        Err(InterpretError::OutOfBounds { op, buffer, offset, bytes, size })
    }

    fn forbidden(&self, op: &'static str, buffer: BufferId) -> InterpretError {
        let buffer = &self.kernel.buffers[buffer.index()];
        InterpretError::Forbidden { op, buffer: buffer.name.clone(), kind: buffer.kind.keyword() }
    }

    fn block(&mut self, statements: &[Stmt]) -> Result<(), InterpretError> {
        for statement in statements {
            match statement {
                Stmt::Inst(inst) => self.inst(inst)?,
                Stmt::For(f) => self.counted_loop(f)?,
                Stmt::LoadIndex { var, address } => self.load_index(*var, address)?,
            }
        }
        Ok(())
    }

    fn counted_loop(&mut self, f: &For) -> Result<(), InterpretError> {
        let trip = self.affine(&f.trip)?;
        if trip < 0 {
            return Err(InterpretError::Trip { var: self.kernel.vars[f.var.index()].clone(), trip });
        }
        // All carried values change at once, because the next value of one may be another carried
        // value.
        let mut carried: Vec<Vector> = f.carries.iter().map(|c| self.values[c.init.index()]).collect();
        let mut tiles: Vec<Tile> = f.carries.iter().map(|c| self.tiles[c.init.index()].clone()).collect();
        for i in 0..trip {
            self.vars[f.var.index()] = i;
            for (carry, (value, tile)) in f.carries.iter().zip(carried.iter().zip(&mut tiles)) {
                self.values[carry.inner.index()] = *value;
                self.tiles[carry.inner.index()] = std::mem::take(tile);
            }
            self.block(&f.body)?;
            for (carry, (value, tile)) in f.carries.iter().zip(carried.iter_mut().zip(&mut tiles)) {
                *value = self.values[carry.next.index()];
                tile.clone_from(&self.tiles[carry.next.index()]);
            }
        }
        for (carry, (value, tile)) in f.carries.iter().zip(carried.into_iter().zip(tiles)) {
            self.values[carry.result.index()] = value;
            self.tiles[carry.result.index()] = tile;
        }
        Ok(())
    }

    fn load_index(&mut self, var: VarId, address: &Address) -> Result<(), InterpretError> {
        const OP: &str = "load_index";
        let buffer = &self.kernel.buffers[address.buffer.index()];
        if !matches!(buffer.kind, BufferKind::Index { .. }) {
            return Err(self.forbidden(OP, address.buffer));
        }
        let at = self.place(OP, address, 4)?;
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.buffers[address.buffer.index()][at..at + 4]);
        let found = u32::from_le_bytes(bytes);
        let below = self.below[address.buffer.index()];
        if i64::from(found) >= below {
            return Err(InterpretError::IndexValue { buffer: buffer.name.clone(), offset: at as i64, found, below });
        }
        self.vars[var.index()] = i64::from(found);
        Ok(())
    }

    fn load(&mut self, inst: &Inst, bytes: u32) -> Result<Vector, InterpretError> {
        let op = inst.op.row().mnemonic;
        // The verifier's structure check ensures that every load has an address.
        let Some(address) = &inst.address else { return Ok(Vector::ZERO) };
        if !self.kernel.buffers[address.buffer.index()].kind.may_load() {
            return Err(self.forbidden(op, address.buffer));
        }
        let at = self.place(op, address, bytes.into())?;
        let mut loaded = Vector::ZERO;
        let bytes = bytes as usize;
        loaded.0[..bytes].copy_from_slice(&self.buffers[address.buffer.index()][at..at + bytes]);
        Ok(loaded)
    }

    fn store(&mut self, inst: &Inst) -> Result<(), InterpretError> {
        let op = inst.op.row().mnemonic;
        let Some(address) = &inst.address else { return Ok(()) };
        if !self.kernel.buffers[address.buffer.index()].kind.may_store() {
            return Err(self.forbidden(op, address.buffer));
        }
        let at = self.place(op, address, inst.ty.bytes().into())?;
        let bytes = inst.ty.bytes() as usize;
        let value = self.values[inst.operands[0].index()];
        self.buffers[address.buffer.index()][at..at + bytes].copy_from_slice(&value.0[..bytes]);
        Ok(())
    }

    fn inst(&mut self, inst: &Inst) -> Result<(), InterpretError> {
        let ty = inst.ty;
        let (lanes, half) = (usize::from(ty.lanes), ty.bytes() as usize / 2);
        let arg = |i: usize| self.values[inst.operands[i].index()];
        let arg_ty = |i: usize| self.kernel.ty(inst.operands[i]);
        let result = match inst.op {
            // constants and indices
            Op::Splat => splat(ty, &inst.imm),
            Op::Bytes => bytes_of(&inst.imm),
            Op::Iota => Vector::from_lanes(lanes, |i| i as i32),
            Op::Index => {
                let value = inst.index.as_ref().map_or(Ok(0), |affine| self.affine(affine))?;
                Vector::from_lanes(1, |_| value as i32)
            }
            // memory
            Op::Load => self.load(inst, ty.bytes())?,
            Op::LoadSplat => repeat_element(ty, &self.load(inst, ty.elem.bytes())?, 0),
            Op::Store => return self.store(inst),
            Op::Prefetch => return Ok(()),
            // lanes
            Op::Broadcast => repeat_element(ty, &arg(0), 0),
            Op::Extract => repeat_element(ty, &arg(0), int(&inst.imm)),
            Op::Slice => arg(0).bytes_from(int(&inst.imm) * ty.elem.bytes() as usize, ty.bytes() as usize),
            Op::Concat => Vector::join(&arg(0), &arg(1), 0, 0, arg_ty(0).bytes() as usize),
            Op::JoinLo => Vector::join(&arg(0), &arg(1), 0, 0, half),
            Op::JoinHi => Vector::join(&arg(0), &arg(1), half, half, half),
            Op::Bitcast => arg(0),
            Op::UnpackLo => unpack(ty, &arg(0), &arg(1), int(&inst.imm), 0),
            Op::UnpackHi => unpack(ty, &arg(0), &arg(1), int(&inst.imm), 8),
            Op::SwapPairs => swap_pairs(lanes, &arg(0)),
            Op::Interleave => interleave(lanes, &arg(0)),
            Op::ShuffleBytes => shuffle_bytes(lanes, &arg(0), &arg(1)),
            Op::Lookup => lookup(lanes, &arg(0), int(&inst.imm)),
            Op::LookupQuarter => lookup_quarter(lanes, &arg(0), &arg(1), int(&inst.imm)),
            Op::LookupByte => lookup_byte(lanes, &arg(0), &arg(1), int(&inst.imm)),
            Op::Multishift => multishift(lanes, &arg(0), &arg(1)),
            Op::Select => select(lanes, &arg(0), &arg(1), &arg(2))?,
            // float arithmetic
            Op::Add => float2(lanes, &arg(0), &arg(1), |a, b| a + b),
            Op::Sub => float2(lanes, &arg(0), &arg(1), |a, b| a - b),
            Op::Mul => float2(lanes, &arg(0), &arg(1), |a, b| a * b),
            Op::Div => float2(lanes, &arg(0), &arg(1), |a, b| a / b),
            Op::Min => float2(lanes, &arg(0), &arg(1), min),
            Op::Max => float2(lanes, &arg(0), &arg(1), max),
            Op::Sqrt => convert(lanes, &arg(0), f32::sqrt),
            Op::Fma => fma(lanes, &arg(0), &arg(1), &arg(2)),
            // integer arithmetic
            Op::IAdd => int2(ty, &arg(0), &arg(1), |a, b| a + b),
            Op::ISub => int2(ty, &arg(0), &arg(1), |a, b| a - b),
            Op::IMul => int2(ty, &arg(0), &arg(1), |a, b| a * b),
            Op::IMin => int2(ty, &arg(0), &arg(1), i64::min),
            Op::IMax => int2(ty, &arg(0), &arg(1), i64::max),
            Op::IAbs => int2(ty, &arg(0), &arg(0), |a, _| a.abs()),
            Op::Sign => int2(ty, &arg(0), &arg(1), |a, b| a * b.signum()),
            Op::And => int2(ty, &arg(0), &arg(1), |a, b| a & b),
            Op::Or => int2(ty, &arg(0), &arg(1), |a, b| a | b),
            Op::Xor => int2(ty, &arg(0), &arg(1), |a, b| a ^ b),
            Op::Shl => int2(ty, &arg(0), &arg(0), |a, _| a << int(&inst.imm)),
            Op::ShrU => shift_unsigned(ty, &arg(0), int(&inst.imm)),
            Op::ShrS => int2(ty, &arg(0), &arg(0), |a, _| a >> int(&inst.imm)),
            // comparison
            Op::CmpEq => int2(ty, &arg(0), &arg(1), |a, b| -i64::from(a == b)),
            Op::CmpGt => int2(ty, &arg(0), &arg(1), |a, b| -i64::from(a > b)),
            Op::CmpLtF => less(lanes, &arg(0), &arg(1)),
            // conversion
            Op::ToF32 => convert(lanes, &arg(0), |a: i32| a as f32),
            Op::ToI32 => convert(lanes, &arg(0), to_i32),
            Op::F16ToF32 => convert(lanes, &arg(0), |a| f16::from_bits(a).to_f32()),
            Op::F32ToF16 => convert(lanes, &arg(0), |a| f16::from_f32(a).to_bits()),
            Op::ToBf16 => convert(lanes, &arg(0), bf16::from_f32),
            // Converts the bits as integers, because a move of a float may change the bits of a
            // NaN.
            Op::Bf16ToF32 => convert(lanes, &arg(0), |a: u16| u32::from(a) << 16),
            Op::ToBf16Pairs => bf16_pairs(lanes, &arg(0), &arg(1)),
            Op::ExtendS => resize(ty, arg_ty(0), &arg(0), |a| a),
            Op::ExtendU => extend_unsigned(ty, arg_ty(0), &arg(0)),
            Op::NarrowS => narrow_signed(ty, arg_ty(0), &arg(0)),
            // dot products
            Op::Dot2U8S8 => dot2_u8s8(lanes, &arg(0), &arg(1)),
            Op::Dot2S16 => dot2_s16(lanes, &arg(0), &arg(1)),
            Op::Dot4U8S8 => dot4_u8s8(lanes, &arg(0), &arg(1), &arg(2)),
            Op::Dot2Bf16 => dot2_bf16(lanes, &arg(0), &arg(1), &arg(2)),
            // reductions
            Op::ReduceAdd => reduce(arg_ty(0), &arg(0), |a, b| a + b, i32::wrapping_add),
            Op::ReduceMax => reduce(arg_ty(0), &arg(0), max, i32::max),
            Op::ReduceMin => reduce(arg_ty(0), &arg(0), min, i32::min),
            // tiles
            Op::TileZero => return self.set_tile(inst, vec![0; ty.bytes() as usize]),
            Op::TileLoad => return self.set_tile(inst, self.tile_load(inst)?),
            Op::TileStore => return self.tile_store(inst),
            Op::TileDotBf16 | Op::TileDotS8S8 | Op::TileDotS8U8 | Op::TileDotU8S8 | Op::TileDotU8U8 => {
                return self.set_tile(inst, self.tile_dot(inst));
            }
        };
        if let Some(value) = inst.result {
            self.values[value.index()] = result;
        }
        Ok(())
    }
}

fn int(imm: &Imm) -> usize {
    match imm {
        // The structure check ensures that the immediate is in the op's range, which is never
        // negative.
        Imm::Int(value) => *value as usize,
        Imm::None | Imm::Float(_) | Imm::Bytes(_) => 0,
    }
}
