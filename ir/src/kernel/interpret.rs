//! The reference interpreter: the definition of every op, over plain byte buffers.
//!
//! A run takes a kernel, its dims and its buffers. It leaves in the buffers the bytes that every
//! lowering must leave there. It assumes no proofs. It checks dims, buffer sizes, every access and
//! every index value, so that it also tests the verifier. Memory is little-endian. There is no `_`
//! arm over [`Op`]: a new op does not compile until it is defined here.
//!
//! ```text
//! %a = load f32x8 %x[32*%i]     reads 32 bytes at 32 * i of buffer x, or stops with an error
//! %b = fma f32x8 %a, %a, %c     each lane a * a + c, rounded once
//! ```

mod bf16;
mod tile;
mod vector;

use half::f16;

use super::verify::{self, VerifyError};
use super::*;
use crate::format::grids::{BYTE_TABLES, TABLES};
use ixc_failure::Class;
use tile::Tile;
use vector::Vector;

/// Reason why a kernel could not be run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpretError {
    /// A malformed kernel.
    #[error(transparent)]
    Malformed(#[from] VerifyError),
    /// A wrong number of dims.
    #[error("kernel takes {expected} dims, found {found}")]
    DimCount {
        /// Number in the kernel.
        expected: usize,
        /// Number from the caller.
        found: usize,
    },
    /// A dim outside its range.
    #[error("dim %{name} must be in {lo}..={hi}, found {found}")]
    DimRange {
        /// The dim.
        name: String,
        /// Smallest value.
        lo: i64,
        /// Largest value.
        hi: i64,
        /// Value from the caller.
        found: i64,
    },
    /// A wrong number of buffers.
    #[error("kernel takes {expected} buffers, found {found}")]
    BufferCount {
        /// Number in the kernel.
        expected: usize,
        /// Number from the caller.
        found: usize,
    },
    /// A buffer that is smaller than its declaration.
    #[error("buffer %{name} must have {expected} bytes, found {found}")]
    BufferSize {
        /// The buffer.
        name: String,
        /// Bytes of its declaration.
        expected: i64,
        /// Bytes from the caller.
        found: usize,
    },
    /// An access outside its buffer.
    #[error("`{op}` accesses {bytes} bytes at offset {offset} of buffer %{buffer}, which has {size} bytes")]
    OutOfBounds {
        /// Mnemonic.
        op: &'static str,
        /// The buffer.
        buffer: String,
        /// Offset of the access.
        offset: i64,
        /// Size of the access.
        bytes: u64,
        /// Declared size of the buffer.
        size: i64,
    },
    /// An access that the kind of its buffer does not allow.
    #[error("`{op}` cannot access buffer %{buffer}, which is declared `{kind}`")]
    Forbidden {
        /// Mnemonic.
        op: &'static str,
        /// The buffer.
        buffer: String,
        /// Keyword of its kind.
        kind: &'static str,
    },
    /// An index value beyond its limit.
    #[error("index {found} at offset {offset} of buffer %{buffer} must be below {below}")]
    IndexValue {
        /// The buffer.
        buffer: String,
        /// Offset of the value.
        offset: i64,
        /// The value.
        found: u32,
        /// The exclusive upper bound.
        below: i64,
    },
    /// A loop with a negative number of iterations.
    #[error("loop %{var} would run {trip} times, must be 0 or more")]
    Trip {
        /// Loop variable.
        var: String,
        /// The number.
        trip: i64,
    },
    /// A `select` whose mask has a lane that is neither all ones nor all zeros.
    #[error("`select` with mask lane {lane} = {found:#x}, must be 0 or 0xffffffff")]
    Mask {
        /// The lane.
        lane: usize,
        /// Value of the lane.
        found: u32,
    },
    /// An affine expression that does not fit 64 bits.
    #[error("affine expression overflows 64 bits")]
    Overflow,
}

impl InterpretError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            InterpretError::Malformed(_)
            | InterpretError::DimCount { .. }
            | InterpretError::DimRange { .. }
            | InterpretError::BufferCount { .. }
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
    /// Returns the keyword of this kind in IR text.
    pub const fn keyword(&self) -> &'static str {
        match self {
            BufferKind::Read => "read",
            BufferKind::Write => "write",
            BufferKind::ReadWrite => "read_write",
            BufferKind::Scratch => "scratch",
            BufferKind::Index { .. } => "index",
        }
    }

    /// Whether `load`, `load_splat` and `tile_load` may read it.
    pub const fn may_load(&self) -> bool {
        match self {
            BufferKind::Read | BufferKind::ReadWrite | BufferKind::Scratch => true,
            BufferKind::Write | BufferKind::Index { .. } => false,
        }
    }

    /// Whether `store` and `tile_store` may write it.
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
/// The first fault of the caller or the kernel. Buffers then keep all earlier writes.
pub fn run(kernel: &Kernel, dims: &[i64], buffers: &mut [Vec<u8>]) -> Result<(), InterpretError> {
    verify::structure(kernel)?;
    if dims.len() != kernel.dims.len() {
        return Err(InterpretError::DimCount { expected: kernel.dims.len(), found: dims.len() });
    }
    for (dim, &found) in kernel.dims.iter().zip(dims) {
        if !(dim.lo..=dim.hi).contains(&found) {
            return Err(InterpretError::DimRange { name: dim.name.clone(), lo: dim.lo, hi: dim.hi, found });
        }
    }
    if buffers.len() != kernel.buffers.len() {
        return Err(InterpretError::BufferCount { expected: kernel.buffers.len(), found: buffers.len() });
    }
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
        // A negative size means an empty buffer: `32*(%n - 1) + 4` bytes with %n = 0.
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
    /// Declared size of each buffer at these dims.
    sizes: Vec<i64>,
    /// Limit of each index buffer's values at these dims.
    below: Vec<i64>,
    values: Vec<Vector>,
    /// Values that are tiles; empty for vectors.
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

    /// Checks an access and returns its place in the buffer.
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
        // All values move at once: the next value of one may be another carried value.
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
        // The structure check ensures that every load has an address.
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
        let lanes = usize::from(ty.lanes);
        let arg = |i: usize| self.values[inst.operands[i].index()];
        let arg_ty = |i: usize| self.kernel.ty(inst.operands[i]);
        let result = match inst.op {
            // constants and indices
            Op::Splat => splat(ty, &inst.imm),
            Op::Bytes => bytes_of(&inst.imm),
            Op::Iota => Vector::from_lanes(lanes, |i| i as i32),
            Op::Index => {
                let value = match &inst.index {
                    Some(affine) => self.affine(affine)?,
                    None => 0,
                };
                Vector::from_lanes(1, |_| value as i32)
            }
            // memory
            Op::Load => self.load(inst, ty.bytes())?,
            Op::LoadSplat => {
                let element = self.load(inst, ty.elem.bytes())?;
                repeat_element(ty, &element, 0)
            }
            Op::Store => return self.store(inst),
            Op::Prefetch => return Ok(()),
            // lanes
            Op::Broadcast => repeat_element(ty, &arg(0), 0),
            Op::Extract => repeat_element(ty, &arg(0), int(&inst.imm)),
            Op::Slice => arg(0).bytes_from(int(&inst.imm) * ty.elem.bytes() as usize, ty.bytes() as usize),
            Op::Concat => Vector::joined(&arg(0), &arg(1), 0, 0, arg_ty(0).bytes() as usize),
            Op::JoinLo => Vector::joined(&arg(0), &arg(1), 0, 0, ty.bytes() as usize / 2),
            Op::JoinHi => {
                let half = ty.bytes() as usize / 2;
                Vector::joined(&arg(0), &arg(1), half, half, half)
            }
            Op::Bitcast => arg(0),
            Op::UnpackLo => unpack(ty, &arg(0), &arg(1), int(&inst.imm), 0),
            Op::UnpackHi => unpack(ty, &arg(0), &arg(1), int(&inst.imm), 8),
            Op::SwapPairs => {
                let a = arg(0);
                Vector::from_lanes(lanes, |i| a.lane::<i32>(i ^ 1))
            }
            Op::Interleave => {
                let a = arg(0);
                Vector::from_lanes(lanes, |i| a.lane::<u16>(i / 2 + i % 2 * (lanes / 2)))
            }
            Op::ShuffleBytes => {
                let (a, pick) = (arg(0), arg(1));
                Vector::from_lanes(lanes, |i| {
                    let by = pick.lane::<u8>(i);
                    if by & 0x80 != 0 { 0u8 } else { a.lane((i & !15) + usize::from(by & 15)) }
                })
            }
            Op::Lookup => {
                let (a, table) = (arg(0), TABLES[int(&inst.imm)]);
                Vector::from_lanes(lanes, |i| table[a.lane::<u32>(i) as usize % table.len()])
            }
            Op::LookupQuarter => {
                let (low, high, immediate) = (arg(0), arg(1), int(&inst.imm));
                let (table, quarter) = (TABLES[immediate / QUARTERS as usize], immediate % QUARTERS as usize);
                Vector::from_lanes(lanes, |i| {
                    let byte = QUARTERS as usize * i + quarter;
                    table[usize::from(u16::from_le_bytes([low.lane(byte), high.lane(byte)])) % table.len()]
                })
            }
            Op::LookupByte => {
                let (low, high, table) = (arg(0), arg(1), BYTE_TABLES[int(&inst.imm)]);
                let number = |i| usize::from(u16::from_le_bytes([low.lane(i), high.lane(i)]));
                Vector::from_lanes(lanes, |i| table[number(i) % table.len()])
            }
            Op::Multishift => {
                let (a, from) = (arg(0), arg(1));
                Vector::from_lanes(lanes, |i| {
                    let eight = u64::from_le_bytes(std::array::from_fn(|byte| a.lane((i & !7) + byte)));
                    eight.rotate_right(u32::from(from.lane::<u8>(i) & 63)) as u8
                })
            }
            // float arithmetic
            Op::Add => float2(lanes, &arg(0), &arg(1), |a, b| a + b),
            Op::Sub => float2(lanes, &arg(0), &arg(1), |a, b| a - b),
            Op::Mul => float2(lanes, &arg(0), &arg(1), |a, b| a * b),
            Op::Div => float2(lanes, &arg(0), &arg(1), |a, b| a / b),
            Op::Min => float2(lanes, &arg(0), &arg(1), min),
            Op::Max => float2(lanes, &arg(0), &arg(1), max),
            Op::Sqrt => {
                let a = arg(0);
                Vector::from_lanes(lanes, |i| a.lane::<f32>(i).sqrt())
            }
            Op::Fma => {
                let (a, b, c) = (arg(0), arg(1), arg(2));
                Vector::from_lanes(lanes, |i| a.lane::<f32>(i).mul_add(b.lane(i), c.lane(i)))
            }
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
            Op::Shl => {
                let by = int(&inst.imm);
                int2(ty, &arg(0), &arg(0), |a, _| a << by)
            }
            Op::ShrU => {
                let (by, mask) = (int(&inst.imm), (1i64 << (8 * ty.elem.bytes())) - 1);
                int2(ty, &arg(0), &arg(0), |a, _| (a & mask) >> by)
            }
            Op::ShrS => {
                let by = int(&inst.imm);
                int2(ty, &arg(0), &arg(0), |a, _| a >> by)
            }
            // comparison
            Op::CmpEq => int2(ty, &arg(0), &arg(1), |a, b| -i64::from(a == b)),
            Op::CmpGt => int2(ty, &arg(0), &arg(1), |a, b| -i64::from(a > b)),
            Op::CmpLtF => {
                let (a, b) = (arg(0), arg(1));
                Vector::from_lanes(lanes, |i| -i32::from(a.lane::<f32>(i) < b.lane::<f32>(i)))
            }
            Op::Select => select(lanes, &arg(0), &arg(1), &arg(2))?,
            // conversion
            Op::ToF32 => {
                let a = arg(0);
                Vector::from_lanes(lanes, |i| a.lane::<i32>(i) as f32)
            }
            Op::ToI32 => {
                let a = arg(0);
                Vector::from_lanes(lanes, |i| to_i32(a.lane(i)))
            }
            Op::F16ToF32 => {
                let a = arg(0);
                Vector::from_lanes(lanes, |i| f16::from_bits(a.lane(i)).to_f32())
            }
            Op::F32ToF16 => {
                let a = arg(0);
                Vector::from_lanes(lanes, |i| f16::from_f32(a.lane(i)).to_bits())
            }
            Op::ToBf16 => {
                let a = arg(0);
                Vector::from_lanes(lanes, |i| bf16::from_f32(a.lane(i)))
            }
            Op::Bf16ToF32 => {
                let a = arg(0);
                // Bits, because moving a float may change those of a NaN.
                Vector::from_lanes(lanes, |i| u32::from(a.lane::<u16>(i)) << 16)
            }
            Op::ToBf16Pairs => {
                let (a, b) = (arg(0), arg(1));
                Vector::from_lanes(lanes, |i| bf16::from_f32(if i % 2 == 0 { a.lane(i / 2) } else { b.lane(i / 2) }))
            }
            Op::ExtendS => resize(ty, arg_ty(0), &arg(0), |a| a),
            Op::ExtendU => {
                let mask = (1i64 << (8 * arg_ty(0).elem.bytes())) - 1;
                resize(ty, arg_ty(0), &arg(0), |a| a & mask)
            }
            Op::NarrowS => {
                let limit = 1i64 << (8 * ty.elem.bytes() - 1);
                resize(ty, arg_ty(0), &arg(0), |a| a.clamp(-limit, limit - 1))
            }
            // dot products
            Op::Dot2U8S8 => {
                let (a, b) = (arg(0), arg(1));
                let product = |i: usize| i32::from(a.lane::<u8>(i)) * i32::from(b.lane::<i8>(i));
                Vector::from_lanes(lanes, |i| {
                    let sum = product(2 * i) + product(2 * i + 1);
                    sum.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
                })
            }
            Op::Dot2S16 => {
                let (a, b) = (arg(0), arg(1));
                let product = |i: usize| i32::from(a.lane::<i16>(i)) * i32::from(b.lane::<i16>(i));
                Vector::from_lanes(lanes, |i| product(2 * i).wrapping_add(product(2 * i + 1)))
            }
            Op::Dot4U8S8 => {
                let (acc, u, s) = (arg(0), arg(1), arg(2));
                let product = |i: usize| i32::from(u.lane::<u8>(i)) * i32::from(s.lane::<i8>(i));
                Vector::from_lanes(lanes, |i| {
                    (4 * i..4 * i + 4).map(product).fold(acc.lane::<i32>(i), i32::wrapping_add)
                })
            }
            Op::Dot2Bf16 => {
                let (acc, a, b) = (arg(0), arg(1), arg(2));
                let single = |v: &Vector, i: usize| bf16::to_f32(v.lane(i));
                Vector::from_lanes(lanes, |i| {
                    let odd = bf16::fma(single(&a, 2 * i + 1), single(&b, 2 * i + 1), acc.lane(i));
                    bf16::fma(single(&a, 2 * i), single(&b, 2 * i), odd)
                })
            }
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
        // The structure check ensures that the value is in the op's range, which is never negative.
        Imm::Int(value) => *value as usize,
        Imm::None | Imm::Float(_) | Imm::Bytes(_) => 0,
    }
}

fn splat(ty: Type, imm: &Imm) -> Vector {
    match imm {
        Imm::Float(value) => Vector::from_lanes(usize::from(ty.lanes), |_| *value),
        Imm::Int(value) => Vector::from_ints(ty, |_| *value),
        Imm::None | Imm::Bytes(_) => Vector::ZERO,
    }
}

fn bytes_of(imm: &Imm) -> Vector {
    let mut vector = Vector::ZERO;
    if let Imm::Bytes(bytes) = imm {
        vector.0[..bytes.len()].copy_from_slice(bytes);
    }
    vector
}

fn repeat_element(ty: Type, a: &Vector, lane: usize) -> Vector {
    let element = a.int(ty.elem, lane);
    Vector::from_ints(ty, |_| element)
}

fn unpack(ty: Type, a: &Vector, b: &Vector, unit: usize, half: usize) -> Vector {
    let mut vector = Vector::ZERO;
    for chunk in (0..ty.bytes() as usize).step_by(16) {
        for i in 0..8 {
            let (from, to) = (chunk + half + i, chunk + (i / unit) * 2 * unit + i % unit);
            vector.0[to] = a.0[from];
            vector.0[to + unit] = b.0[from];
        }
    }
    vector
}

/// Returns `a < b ? a : b`. With NaN, and for two zeros, this is `b`, as on x86.
fn min(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// Returns `a > b ? a : b`. With NaN, and for two zeros, this is `b`, as on x86.
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

fn to_i32(a: f32) -> i32 {
    // Both limits are exact in f32, and no range contains NaN.
    const RANGE: std::ops::Range<f32> = -2147483648.0..2147483648.0;
    let nearest = a.round_ties_even();
    if RANGE.contains(&nearest) { nearest as i32 } else { i32::MIN }
}

#[inline]
fn float2(lanes: usize, a: &Vector, b: &Vector, f: impl Fn(f32, f32) -> f32) -> Vector {
    Vector::from_lanes(lanes, |i| f(a.lane(i), b.lane(i)))
}

/// Computes integer arithmetic in 64 bits, which hold every exact result, and cuts it to the
/// element.
#[inline]
fn int2(ty: Type, a: &Vector, b: &Vector, f: impl Fn(i64, i64) -> i64) -> Vector {
    let lanes = usize::from(ty.lanes);
    match ty.elem {
        Elem::I8 => Vector::from_lanes(lanes, |i| f(i64::from(a.lane::<i8>(i)), i64::from(b.lane::<i8>(i))) as i8),
        Elem::I16 | Elem::F16 | Elem::Bf16 => {
            Vector::from_lanes(lanes, |i| f(i64::from(a.lane::<i16>(i)), i64::from(b.lane::<i16>(i))) as i16)
        }
        Elem::I32 | Elem::F32 => {
            Vector::from_lanes(lanes, |i| f(i64::from(a.lane::<i32>(i)), i64::from(b.lane::<i32>(i))) as i32)
        }
    }
}

fn resize(ty: Type, from: Type, a: &Vector, f: impl Fn(i64) -> i64) -> Vector {
    Vector::from_ints(ty, |i| f(a.int(from.elem, i)))
}

fn select(lanes: usize, mask: &Vector, a: &Vector, b: &Vector) -> Result<Vector, InterpretError> {
    for lane in 0..lanes {
        let found = mask.lane::<u32>(lane);
        if found != 0 && found != u32::MAX {
            return Err(InterpretError::Mask { lane, found });
        }
    }
    Ok(Vector::from_lanes(lanes, |i| if mask.lane::<u32>(i) != 0 { a.lane::<u32>(i) } else { b.lane(i) }))
}

/// Folds the upper half onto the lower until one lane is left. The lower half is the first operand.
fn reduce(ty: Type, a: &Vector, float: impl Fn(f32, f32) -> f32, int: impl Fn(i32, i32) -> i32) -> Vector {
    let mut folded = *a;
    let mut lanes = usize::from(ty.lanes);
    while lanes > 1 {
        lanes /= 2;
        folded = match ty.elem {
            Elem::F32 | Elem::F16 | Elem::Bf16 => {
                Vector::from_lanes(lanes, |i| float(folded.lane(i), folded.lane(i + lanes)))
            }
            Elem::I8 | Elem::I16 | Elem::I32 => {
                Vector::from_lanes(lanes, |i| int(folded.lane(i), folded.lane(i + lanes)))
            }
        };
    }
    folded
}
