//! Random kernels that verify, for property tests of the text form and for differential tests of
//! lowerings.
//!
//! [`random_kernel`] takes a seed and the width of the widest vector, and builds a kernel through
//! [`KernelBuilder`]. The kernel can have all vector ops of the table, nested loops, carried
//! values, index loads and affine addresses of all shapes. [`random_kernel_with`] takes
//! [`KernelOptions`], which can also allow tiles and exclude ops. [`random_dims`] and
//! [`random_buffers`] make arguments for the kernel. A seed gives the same kernel on every machine.
//!
//! Invariant: results can be compared bit for bit. No op has an undefined result. IEEE 754 does not
//! define the sign and payload of a computed NaN. A computed NaN is therefore replaced by the
//! canonical NaN before any op can see its bits.
//!
//! ```text
//! let kernel = random_kernel(7, 32);
//! let dims = random_dims(&kernel, 7);
//! let mut buffers = random_buffers(&kernel, &dims, 7);
//! interpret::run(&kernel, &dims, &mut buffers)?;
//! ```

mod ops;
mod tiles;

use ixc_ir::format::grids::{BYTE_TABLES, TABLES};
use ixc_ir::kernel::op::OPS;
use ixc_ir::kernel::*;
use ixc_ir::random::Random;

/// Number of statements in one loop body, without the statements that define their operands.
const STATEMENTS: u64 = 12;
/// Maximum depth of nested loops.
const DEPTH: usize = 3;
/// Number of values that are stored at the end, so that tests can compare them.
const OBSERVED: usize = 24;

/// Maximum number of live tiles in a random kernel. Even with one more tile for copies, they fit
/// x86's 8 tile registers.
pub const MAX_LIVE_TILES: usize = 6;

/// Options of a random kernel.
#[derive(Clone, Copy, Debug)]
pub struct KernelOptions {
    /// Bytes of the widest vector, 32 or 64.
    pub widest: u32,
    /// Whether the kernel has tiles. They have three shapes, and at most [`MAX_LIVE_TILES`] are
    /// live at once.
    pub tiles: bool,
    /// Filter of ops. `and`, `xor`, `cmp_eq`, `cmp_gt`, `cmp_lt_f`, `select`, `splat`, `bitcast`,
    /// loads and stores may occur even if the filter excludes them.
    pub has: fn(Op) -> bool,
}

/// Returns a random kernel of vector ops that verifies. Vectors have at most `widest` bytes (32 or
/// 64).
pub fn random_kernel(seed: u64, widest: u32) -> Kernel {
    random_kernel_with(seed, KernelOptions { widest, tiles: false, has: |_| true })
}

/// Returns a random kernel that verifies, within the options.
pub fn random_kernel_with(seed: u64, options: KernelOptions) -> Kernel {
    let KernelOptions { widest, tiles, has } = options;
    let ops = OPS.iter().map(|row| row.op).filter(|op| has(*op) && (tiles || !op.takes_tiles()));
    let mut rng = Random::new(seed);
    let mut b = KernelBuilder::new(format!("random_{seed:016x}"));
    let n = b.dim("n", 0, 5);
    let m = b.dim("m", 1, 3);
    let size = |bytes: i64| n * 96 + m * 80 + bytes;
    let x = b.read("x", size(256));
    let y = b.write("y", size(256));
    let z = b.buffer("z", BufferKind::ReadWrite, size(192));
    let scratch = b.buffer("scratch", BufferKind::Scratch, size(128));
    let limits = [Affine::constant(3), n + 1, m * 2 + -1, n + m * 1];
    let below = limits[rng.below(4) as usize].clone();
    let ids = b.buffer("ids", BufferKind::Index { below: below.clone() }, n * 16 + (m * 8 + 4));
    let mut sizes = vec![size(256), size(256), size(192), size(128), n * 16 + (m * 8 + 4)];
    let (mut loads, mut stores) = (vec![x, z, scratch], vec![y, z, scratch]);
    let tiles = tiles.then(|| tiles::Tiles::new(&mut rng, &mut b, x));
    if let Some(tiles) = &tiles {
        sizes.extend([tiles::BYTES, tiles::BYTES].map(Affine::constant));
        loads.extend([tiles.input, tiles.output]);
        stores.push(tiles.output);
    }
    let out = b.write("out", 0);
    let mut g = Generator {
        rng,
        b,
        ops: ops.collect(),
        widest,
        dims: [n, m],
        loads,
        stores,
        sizes,
        tiles,
        ids,
        below,
        pool: Vec::new(),
        vars: Vec::new(),
    };
    g.body(0);
    g.store_tiles();
    let mut end = 0;
    for i in (0..g.pool.len()).rev().take(OBSERVED) {
        let value = g.pool[i].value;
        let value = g.clean(value);
        g.b.store(out, end, value);
        end += i64::from(g.b.ty(value).bytes());
    }
    let mut kernel = g.b.finish();
    kernel.buffers[out.index()].size = Affine::constant(end);
    kernel
}

/// Returns random dims in the kernel's ranges. The ends of a range are likely.
pub fn random_dims(kernel: &Kernel, seed: u64) -> Vec<i64> {
    let mut rng = Random::new(seed ^ 0xd1);
    let dims = kernel.dims.iter();
    dims.map(|dim| match rng.below(4) {
        0 => dim.lo,
        1 => dim.hi,
        _ => dim.lo + rng.below((dim.hi - dim.lo + 1) as u64) as i64,
    })
    .collect()
}

/// Returns random contents for every buffer, of exactly its size: floats of all kinds, small and
/// large integers, and index values below their limit.
pub fn random_buffers(kernel: &Kernel, dims: &[i64], seed: u64) -> Vec<Vec<u8>> {
    let mut rng = Random::new(seed ^ 0xb0f);
    let at = |affine: &Affine| {
        let value = affine.evaluate(|atom| match atom {
            Atom::Dim(dim) => dims[dim.index()],
            Atom::Var(_) => 0,
        });
        value.unwrap_or(0).max(0) as u64
    };
    let mut buffers = Vec::new();
    for buffer in &kernel.buffers {
        let size = at(&buffer.size) as usize;
        let mut bytes = Vec::with_capacity(size + 4);
        while bytes.len() < size {
            let word = match &buffer.kind {
                BufferKind::Index { below } => rng.below(at(below).max(1)) as u32,
                BufferKind::Read | BufferKind::Write | BufferKind::ReadWrite | BufferKind::Scratch => {
                    random_word(&mut rng)
                }
            };
            bytes.extend(word.to_le_bytes());
        }
        bytes.truncate(size);
        buffers.push(bytes);
    }
    buffers
}

fn random_word(rng: &mut Random) -> u32 {
    match rng.below(8) {
        0 => rng.bits() as u32,
        1 => rng.below(512) as u32,
        2 => (rng.below(512) as u32).wrapping_neg(),
        3 => random_float(rng).to_bits(),
        // Two f16 values near 1.
        4 => (rng.bits() as u32 & 0x83ff_83ff) | 0x3c00_3c00,
        5 => rng.pick(&[
            0x7f80_0001,
            0xffc0_1234,
            0x8000_0000,
            0x7fff_8000,
            0x80ff_7f00,
            0x7c01_fe00,
            // Denormals, and midpoints between two bf16 values.
            0x0000_8001,
            0x807f_ffff,
            0x3f80_8000,
            0xbf81_8000,
            0x7f7f_8000,
        ]),
        _ => (rng.signed() * 8.0).to_bits(),
    }
}

fn random_float(rng: &mut Random) -> f32 {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        1e30,
        -1e-30,
        f32::INFINITY,
        f32::NEG_INFINITY,
        2_147_483_648.0,
        -2_147_483_648.0,
        65_520.0,
        f32::MIN_POSITIVE,
    ];
    if rng.once_in(2) { rng.pick(&special) } else { rng.signed() * 100.0 }
}

/// A value in scope.
#[derive(Clone, Copy)]
struct Pooled {
    value: ValueId,
    /// Whether the value may be a NaN that arithmetic computed.
    tainted: bool,
}

struct Generator {
    rng: Random,
    b: KernelBuilder,
    /// Allowed ops.
    ops: Vec<Op>,
    widest: u32,
    dims: [DimId; 2],
    loads: Vec<BufferId>,
    stores: Vec<BufferId>,
    /// Sizes of all buffers except the last, by id.
    sizes: Vec<Affine>,
    tiles: Option<tiles::Tiles>,
    ids: BufferId,
    below: Affine,
    pool: Vec<Pooled>,
    /// Loop variables in scope, with their exclusive upper bounds.
    vars: Vec<(VarId, Affine)>,
}

impl Generator {
    fn body(&mut self, depth: usize) {
        for _ in 0..3 + self.rng.below(STATEMENTS) {
            match self.rng.below(8) {
                0 if depth < DEPTH => self.counted_loop(depth),
                1 => self.load_index(),
                2 => self.store(),
                _ => {
                    if let Some(&op) = self.ops.get(self.rng.below(self.ops.len().max(1) as u64) as usize) {
                        self.op(op, depth);
                    }
                }
            }
        }
        self.store();
    }

    fn counted_loop(&mut self, depth: usize) {
        let [n, m] = self.dims;
        let trip = match self.rng.below(7) {
            0 => Affine::constant(0),
            1 => Affine::constant(1),
            2 => Affine::constant(3),
            3 => n.into(),
            4 => m.into(),
            5 => n + m,
            _ => n * -1 + 5,
        };
        let mut inits: Vec<ValueId> = (0..self.rng.below(4))
            .map(|_| {
                let ty = self.any_type();
                self.operand(ty, true)
            })
            .collect();
        inits.extend(self.carried_tile(depth));
        let (values, vars) = (self.pool.len(), self.vars.len());
        // The builder's closure must own the builder, so the builder is taken out of `self`. All
        // other fields stay.
        let inner = std::mem::replace(&mut self.b, KernelBuilder::new(""));
        let mut outer = inner;
        let results = outer.for_carry("i", trip.clone(), &inits, |b, var, carried| {
            std::mem::swap(b, &mut self.b);
            self.vars.push((var, trip));
            self.enter_loop(depth);
            self.enter_scope(carried, depth + 1);
            self.body(depth + 1);
            let next = carried
                .iter()
                .map(|&value| match self.b.ty(value) {
                    ty if ty.is_tile() => self.accumulator(ty.elem, depth + 1),
                    ty => self.operand(ty, true),
                })
                .collect();
            std::mem::swap(b, &mut self.b);
            next
        });
        self.b = outer;
        self.pool.truncate(values);
        self.vars.truncate(vars);
        self.leave_tiles(depth);
        self.enter_scope(&results, depth);
    }

    /// Makes carried values available as operands.
    fn enter_scope(&mut self, values: &[ValueId], depth: usize) {
        for &value in values {
            match self.b.ty(value).is_tile() {
                true => self.push_tile(value, depth),
                false => self.pool.push(Pooled { value, tainted: true }),
            }
        }
    }

    fn load_index(&mut self) {
        let offset = self.offset(self.ids, 4, 4);
        let var = self.b.load_index("row", self.ids, offset);
        self.vars.push((var, self.below.clone()));
    }

    fn store(&mut self) {
        let buffer = self.rng.pick(&self.stores);
        let value = match self.pool.is_empty() {
            true => self.fresh(Type::f32(1)),
            false => self.rng.pick(&self.pool).value,
        };
        let value = self.clean(value);
        let bytes = self.b.ty(value).bytes();
        let offset = self.offset(buffer, bytes, 1);
        self.b.store(buffer, offset, value);
    }

    /// Returns a random offset, a multiple of `unit`, so that `bytes` bytes from there are inside
    /// the buffer. The bytes that remain in the buffer are divided between the constant, the dims
    /// and the variables in scope. Variables count forwards or backwards.
    fn offset(&mut self, buffer: BufferId, bytes: u32, unit: i64) -> Affine {
        let size = &self.sizes[buffer.index()];
        let atoms = self.dims.map(Atom::Dim);
        let mut rest = [size.constant - i64::from(bytes), size.coefficient(atoms[0]), size.coefficient(atoms[1])];
        // The dim `m` is at least 1, so a multiple of it can make up for a negative remainder.
        if rest[0] < 0 {
            rest[2] += rest[0];
            rest[0] = 0;
        }
        let mut offset = Affine::constant(0);
        for (var, limit) in self.vars.clone() {
            if self.rng.once_in(3) {
                continue;
            }
            let need = [limit.constant - 1, limit.coefficient(atoms[0]), limit.coefficient(atoms[1])];
            let fits = |k: i64| (0..3).all(|i| need[i] * k <= rest[i]);
            let Some(k) = [32, 20, 16, 12, 8, 4, 1]
                .into_iter()
                .find(|&k| k % unit == 0 && fits(k) && (k < 16 || self.rng.once_in(2)))
            else {
                continue;
            };
            // A bound that decreases with a dim does not increase the room.
            (0..3).for_each(|i| rest[i] -= (need[i] * k).max(0));
            match self.rng.once_in(3) {
                false => offset = offset + var * k,
                true => offset = offset + var * -k + (limit + -1) * k,
            }
        }
        let spend = |rng: &mut Random, rest: i64| rng.below((rest / unit) as u64 + 1) as i64 * unit;
        for (i, dim) in self.dims.into_iter().enumerate() {
            if self.rng.once_in(2) {
                offset = offset + dim * spend(&mut self.rng, rest[i + 1]);
            }
        }
        offset + spend(&mut self.rng, rest[0])
    }

    fn any_type(&mut self) -> Type {
        loop {
            let ty = Type::new(self.rng.pick(&Elem::ALL), 1 << self.rng.below(7));
            if ty.bytes() <= self.widest {
                return ty;
            }
        }
    }

    fn lanes(&mut self, elem: Elem) -> Type {
        self.lanes_up_to(elem, self.widest)
    }

    /// Returns a type of this element with at most `bytes` bytes.
    fn lanes_up_to(&mut self, elem: Elem, bytes: u32) -> Type {
        let most = u64::from((bytes / elem.bytes()).ilog2());
        Type::new(elem, 1 << self.rng.below(most + 1))
    }

    fn push(&mut self, value: ValueId, tainted: bool) {
        self.pool.push(Pooled { value, tainted });
    }

    /// Returns a value of this type, either from the values in scope or new. Unless
    /// `may_be_tainted` is set, the value is not a computed NaN.
    fn operand(&mut self, ty: Type, may_be_tainted: bool) -> ValueId {
        let fitting: Vec<ValueId> = self.pool.iter().map(|p| p.value).filter(|&v| self.b.ty(v) == ty).collect();
        if fitting.is_empty() || self.rng.once_in(6) {
            return self.fresh(ty);
        }
        // Takes the newest value in half of the cases, so that chains of dependent ops grow.
        let value = if self.rng.once_in(2) { fitting[fitting.len() - 1] } else { self.rng.pick(&fitting) };
        if may_be_tainted { value } else { self.clean(value) }
    }

    fn fresh(&mut self, ty: Type) -> ValueId {
        let value = match self.rng.below(5) {
            0 if ty.elem == Elem::F32 => {
                let float = random_float(&mut self.rng);
                self.b.splat_f32(ty.lanes, float)
            }
            0 if !matches!(ty.elem, Elem::F16 | Elem::Bf16) => {
                let int = self.random_int(ty.elem);
                self.b.splat_int(ty, int)
            }
            1 => {
                let bytes = (0..ty.bytes()).map(|_| self.rng.bits() as u8).collect();
                self.b.bytes(ty, bytes)
            }
            2 => {
                let buffer = self.rng.pick(&self.loads);
                let offset = self.offset(buffer, ty.elem.bytes(), 1);
                self.b.load_splat(ty, buffer, offset)
            }
            _ => {
                let buffer = self.rng.pick(&self.loads);
                let offset = self.offset(buffer, ty.bytes(), 1);
                self.b.load(ty, buffer, offset)
            }
        };
        self.push(value, false);
        value
    }

    fn random_int(&mut self, elem: Elem) -> i64 {
        let bits = 8 * elem.bytes();
        match self.rng.below(4) {
            0 => -(1 << (bits - 1)),
            1 => self.rng.below(1 << bits) as i64,
            _ => self.rng.below(5) as i64 - 2,
        }
    }

    /// Replaces every NaN by `0x7fc00000`, if arithmetic may have produced one.
    fn clean(&mut self, value: ValueId) -> ValueId {
        let ty = self.b.ty(value);
        let tainted = self.pool.iter().any(|p| p.value == value && p.tainted);
        if !tainted || ty.elem != Elem::F32 {
            return value;
        }
        let bits = Type::i32(ty.lanes);
        let (magnitude, infinity) = (self.b.splat_int(bits, 0x7fff_ffff), self.b.splat_int(bits, 0x7f80_0000));
        let quiet = self.b.splat_int(bits, 0x7fc0_0000);
        let integer = self.b.bitcast(bits, value);
        let absolute = self.b.same(Op::And, &[integer, magnitude]);
        let is_nan = self.b.same(Op::CmpGt, &[absolute, infinity]);
        let clean = self.b.op(Op::Select, bits, &[is_nan, quiet, integer]);
        let clean = self.b.bitcast(ty, clean);
        self.push(clean, false);
        clean
    }

    fn mask(&mut self, lanes: u16) -> ValueId {
        let op = self.rng.pick(&[Op::CmpEq, Op::CmpGt, Op::CmpLtF]);
        let of = if op == Op::CmpLtF { Type::f32(lanes) } else { Type::i32(lanes) };
        let operands = [self.operand(of, true), self.operand(of, true)];
        self.b.op(op, Type::i32(lanes), &operands)
    }

    fn emit(&mut self, op: Op, ty: Type, operands: &[Type]) {
        self.emit_imm(op, ty, operands, None);
    }

    fn emit_imm(&mut self, op: Op, ty: Type, operands: &[Type], imm: Option<i64>) {
        let operands: Vec<ValueId> = operands.iter().map(|&ty| self.operand(ty, hides_nan_bits(op))).collect();
        let value = match imm {
            Some(imm) => self.b.op_imm(op, ty, &operands, imm),
            None => self.b.op(op, ty, &operands),
        };
        self.push(value, ty.elem == Elem::F32 && hides_nan_bits(op));
    }
}

/// Whether an op hides the bits of an operand's NaN. Its result shows only that the operand is NaN,
/// or is itself marked as a possible NaN.
fn hides_nan_bits(op: Op) -> bool {
    match op {
        Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Min | Op::Max | Op::Sqrt | Op::Fma | Op::Dot2Bf16 => true,
        Op::CmpLtF | Op::ToI32 | Op::ReduceAdd | Op::ReduceMax | Op::ReduceMin => true,
        Op::Splat | Op::Bytes | Op::Iota | Op::Index | Op::Load | Op::LoadSplat => false,
        Op::Store | Op::Prefetch => false,
        Op::Broadcast | Op::Extract | Op::Slice | Op::Concat | Op::JoinLo | Op::JoinHi | Op::Bitcast => false,
        Op::UnpackLo | Op::UnpackHi | Op::SwapPairs | Op::Interleave | Op::ShuffleBytes | Op::Select => false,
        Op::Lookup | Op::LookupQuarter | Op::LookupByte | Op::Multishift => false,
        Op::IAdd | Op::ISub | Op::IMul | Op::IMin | Op::IMax | Op::IAbs | Op::Sign | Op::And | Op::Or | Op::Xor => {
            false
        }
        Op::Shl | Op::ShrU | Op::ShrS | Op::CmpEq | Op::CmpGt | Op::ToF32 | Op::F16ToF32 | Op::F32ToF16 => false,
        Op::ExtendS | Op::ExtendU | Op::NarrowS | Op::Dot2U8S8 | Op::Dot2S16 | Op::Dot4U8S8 => false,
        Op::ToBf16 | Op::Bf16ToF32 | Op::ToBf16Pairs => false,
        // The operands of these ops are chosen elsewhere. The module `tiles` explains why tiles
        // contain no NaN.
        Op::TileZero | Op::TileLoad | Op::TileStore | Op::TileDotBf16 => false,
        Op::TileDotS8S8 | Op::TileDotS8U8 | Op::TileDotU8S8 | Op::TileDotU8U8 => false,
    }
}
