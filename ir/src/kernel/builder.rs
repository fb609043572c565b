//! Construction of kernels in Rust, for the generators in `ixc-kernels`.
//!
//! The builder assigns ids and keeps the nesting of statements. It does not verify the kernel. Loop
//! bodies are closures, so that Rust's scopes prevent the use of values outside their loop.

use super::*;

/// Builder of one kernel.
pub struct KernelBuilder {
    kernel: Kernel,
    open: Vec<Vec<Stmt>>,
}

/// A loop whose body is not finished: its variable, and the values that it carries.
struct OpenLoop {
    var: VarId,
    inner: Vec<ValueId>,
}

impl KernelBuilder {
    /// Starts a kernel without parameters or statements.
    pub fn new(name: impl Into<String>) -> KernelBuilder {
        let kernel = Kernel {
            name: name.into(),
            dims: Vec::new(),
            buffers: Vec::new(),
            values: Vec::new(),
            vars: Vec::new(),
            body: Vec::new(),
        };
        KernelBuilder { kernel, open: vec![Vec::new()] }
    }

    /// Adds a run-time size with the range `lo..=hi`.
    pub fn dim(&mut self, name: &str, lo: i64, hi: i64) -> DimId {
        self.kernel.dims.push(Dim { name: name.into(), lo, hi });
        DimId(self.kernel.dims.len() as u32 - 1)
    }

    /// Adds a buffer of `size` bytes.
    pub fn buffer(&mut self, name: &str, kind: BufferKind, size: impl Into<Affine>) -> BufferId {
        self.kernel.buffers.push(Buffer { name: name.into(), kind, size: size.into() });
        BufferId(self.kernel.buffers.len() as u32 - 1)
    }

    /// Adds a buffer that is only read.
    pub fn read(&mut self, name: &str, size: impl Into<Affine>) -> BufferId {
        self.buffer(name, BufferKind::Read, size)
    }

    /// Adds a buffer that is only written.
    pub fn write(&mut self, name: &str, size: impl Into<Affine>) -> BufferId {
        self.buffer(name, BufferKind::Write, size)
    }

    /// Returns the type of a value.
    pub fn ty(&self, value: ValueId) -> Type {
        self.kernel.ty(value)
    }

    /// Returns the finished kernel.
    pub fn finish(mut self) -> Kernel {
        debug_assert_eq!(self.open.len(), 1);
        self.kernel.body = self.open.pop().unwrap_or_default();
        self.kernel
    }

    fn value(&mut self, ty: Type) -> ValueId {
        self.kernel.values.push(ty);
        ValueId(self.kernel.values.len() as u32 - 1)
    }

    fn var(&mut self, name: &str) -> VarId {
        let id = self.kernel.vars.len() as u32;
        // Variables get unique names, so that the text form needs no scopes.
        let taken = |name: &str| {
            self.kernel.vars.iter().any(|v| v == name) || self.kernel.dims.iter().any(|dim| dim.name == name)
        };
        let mut name = if taken(name) { format!("{name}{id}") } else { name.to_string() };
        while taken(&name) {
            name.push('_');
        }
        self.kernel.vars.push(name);
        VarId(id)
    }

    fn push(&mut self, stmt: Stmt) {
        if let Some(block) = self.open.last_mut() {
            block.push(stmt);
        }
    }

    fn inst(&mut self, op: Op, ty: Type, operands: &[ValueId], imm: Imm, address: Option<Address>) -> ValueId {
        let result = self.value(ty);
        let operands = operands.to_vec();
        self.push(Stmt::Inst(Inst { op, ty, operands, imm, address, index: None, result: Some(result) }));
        result
    }

    /// Adds an op without an immediate or an address. `ty` is the type of its result.
    pub fn op(&mut self, op: Op, ty: Type, operands: &[ValueId]) -> ValueId {
        self.inst(op, ty, operands, Imm::None, None)
    }

    /// Adds an op with an integer immediate. `ty` is the type of its result.
    pub fn op_imm(&mut self, op: Op, ty: Type, operands: &[ValueId], imm: i64) -> ValueId {
        self.inst(op, ty, operands, Imm::Int(imm), None)
    }

    /// Adds an op whose result has the type of its first operand.
    pub fn same(&mut self, op: Op, operands: &[ValueId]) -> ValueId {
        let ty = self.ty(operands[0]);
        self.op(op, ty, operands)
    }

    /// Returns a vector with the same float in every lane.
    pub fn splat_f32(&mut self, lanes: u16, value: f32) -> ValueId {
        self.inst(Op::Splat, Type::f32(lanes), &[], Imm::Float(value), None)
    }

    /// Returns a vector with the same integer in every lane.
    pub fn splat_int(&mut self, ty: Type, value: i64) -> ValueId {
        self.inst(Op::Splat, ty, &[], Imm::Int(value), None)
    }

    /// Returns a constant vector of these bytes.
    pub fn bytes(&mut self, ty: Type, bytes: Vec<u8>) -> ValueId {
        self.inst(Op::Bytes, ty, &[], Imm::Bytes(bytes), None)
    }

    /// Returns the value of an affine expression as a scalar of type `i32`.
    pub fn index(&mut self, value: impl Into<Affine>) -> ValueId {
        let result = self.value(Type::i32(1));
        let inst = Inst {
            op: Op::Index,
            ty: Type::i32(1),
            operands: Vec::new(),
            imm: Imm::None,
            address: None,
            index: Some(value.into()),
            result: Some(result),
        };
        self.push(Stmt::Inst(inst));
        result
    }

    /// Loads a vector from a buffer.
    pub fn load(&mut self, ty: Type, buffer: BufferId, offset: impl Into<Affine>) -> ValueId {
        self.inst(Op::Load, ty, &[], Imm::None, Some(Address { buffer, offset: offset.into() }))
    }

    /// Loads one element from a buffer, and copies it to every lane.
    pub fn load_splat(&mut self, ty: Type, buffer: BufferId, offset: impl Into<Affine>) -> ValueId {
        self.inst(Op::LoadSplat, ty, &[], Imm::None, Some(Address { buffer, offset: offset.into() }))
    }

    /// Stores a vector to a buffer.
    pub fn store(&mut self, buffer: BufferId, offset: impl Into<Affine>, value: ValueId) {
        let (ty, address) = (self.ty(value), Some(Address { buffer, offset: offset.into() }));
        let inst =
            Inst { op: Op::Store, ty, operands: vec![value], imm: Imm::None, address, index: None, result: None };
        self.push(Stmt::Inst(inst));
    }

    /// Prefetches the cache line at an address, which may lie outside the buffer.
    pub fn prefetch(&mut self, buffer: BufferId, offset: impl Into<Affine>) {
        let address = Some(Address { buffer, offset: offset.into() });
        let (op, ty) = (Op::Prefetch, Type::i8(1));
        self.push(Stmt::Inst(Inst {
            op,
            ty,
            operands: Vec::new(),
            imm: Imm::None,
            address,
            index: None,
            result: None,
        }));
    }

    /// Returns a tile of zeros.
    pub fn tile_zero(&mut self, ty: Type) -> ValueId {
        self.op(Op::TileZero, ty, &[])
    }

    /// Loads a tile with rows that are `stride` bytes apart.
    pub fn tile_load(&mut self, ty: Type, buffer: BufferId, offset: impl Into<Affine>, stride: i64) -> ValueId {
        self.inst(Op::TileLoad, ty, &[], Imm::Int(stride), Some(Address { buffer, offset: offset.into() }))
    }

    /// Stores a tile with rows that are `stride` bytes apart.
    pub fn tile_store(&mut self, buffer: BufferId, offset: impl Into<Affine>, value: ValueId, stride: i64) {
        let (ty, address) = (self.ty(value), Some(Address { buffer, offset: offset.into() }));
        let (op, operands, imm) = (Op::TileStore, vec![value], Imm::Int(stride));
        self.push(Stmt::Inst(Inst { op, ty, operands, imm, address, index: None, result: None }));
    }

    /// Adds the product of tiles `a` and `b` to `acc`, by one of the `tile_dot_` ops.
    pub fn tile_dot(&mut self, op: Op, acc: ValueId, a: ValueId, b: ValueId) -> ValueId {
        self.same(op, &[acc, a, b])
    }

    /// Loads a `u32` from an index buffer. Returns it as a variable for address expressions.
    pub fn load_index(&mut self, name: &str, buffer: BufferId, offset: impl Into<Affine>) -> VarId {
        let var = self.var(name);
        self.push(Stmt::LoadIndex { var, address: Address { buffer, offset: offset.into() } });
        var
    }

    /// Adds a loop that carries values between iterations. The body takes the loop variable and the
    /// carried values, and returns their next values. The method returns the values after the loop.
    pub fn for_carry(
        &mut self,
        name: &str,
        trip: impl Into<Affine>,
        inits: &[ValueId],
        body: impl FnOnce(&mut KernelBuilder, VarId, &[ValueId]) -> Vec<ValueId>,
    ) -> Vec<ValueId> {
        let opened = self.open_loop(name, inits);
        let next = body(self, opened.var, &opened.inner);
        self.close_loop(opened, trip.into(), inits, &next)
    }

    /// Opens a loop. This part is not generic; otherwise its code would be compiled for each of
    /// several hundred loop bodies.
    fn open_loop(&mut self, name: &str, inits: &[ValueId]) -> OpenLoop {
        let var = self.var(name);
        let inner = inits.iter().map(|&init| self.value(self.ty(init))).collect();
        self.open.push(Vec::new());
        OpenLoop { var, inner }
    }

    /// Closes an open loop, given its trip count and the next values. Returns the values after the
    /// loop.
    fn close_loop(&mut self, opened: OpenLoop, trip: Affine, inits: &[ValueId], next: &[ValueId]) -> Vec<ValueId> {
        let OpenLoop { var, inner } = opened;
        let statements = self.open.pop().unwrap_or_default();
        let results: Vec<ValueId> = inits.iter().map(|&init| self.value(self.ty(init))).collect();
        let carries = (0..inits.len())
            .map(|i| Carry { inner: inner[i], init: inits[i], next: next[i], result: results[i] })
            .collect();
        self.push(Stmt::For(For { var, trip, carries, body: statements }));
        results
    }

    /// Adds a loop that carries no values.
    pub fn for_each(&mut self, name: &str, trip: impl Into<Affine>, body: impl FnOnce(&mut KernelBuilder, VarId)) {
        self.for_carry(name, trip, &[], |b, var, _| {
            body(b, var);
            Vec::new()
        });
    }

    // The methods below add the most frequent ops, so that generators read like formulas.

    /// Computes `a + b` on floats.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.same(Op::Add, &[a, b])
    }

    /// Computes `a - b` on floats.
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.same(Op::Sub, &[a, b])
    }

    /// Computes `a * b` on floats.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.same(Op::Mul, &[a, b])
    }

    /// Computes `a * b + c` on floats, rounded once.
    pub fn fma(&mut self, a: ValueId, b: ValueId, c: ValueId) -> ValueId {
        self.same(Op::Fma, &[a, b, c])
    }

    /// Computes `a + b` on integers.
    pub fn iadd(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.same(Op::IAdd, &[a, b])
    }

    /// Adds four products to each lane of `acc`: those of unsigned bytes of `u` and signed bytes of
    /// `s`.
    pub fn dot4_u8s8(&mut self, acc: ValueId, u: ValueId, s: ValueId) -> ValueId {
        self.same(Op::Dot4U8S8, &[acc, u, s])
    }

    /// Adds two products to each lane of `acc`: those of bf16 numbers of `a` and `b`.
    pub fn dot2_bf16(&mut self, acc: ValueId, a: ValueId, b: ValueId) -> ValueId {
        self.same(Op::Dot2Bf16, &[acc, a, b])
    }

    /// Returns alternating lanes of the lower and of the upper half of `a`.
    pub fn interleave(&mut self, a: ValueId) -> ValueId {
        self.same(Op::Interleave, &[a])
    }

    /// Converts floats to the nearest bf16, ties to even.
    pub fn to_bf16(&mut self, a: ValueId) -> ValueId {
        let ty = Type::bf16(self.ty(a).lanes);
        self.op(Op::ToBf16, ty, &[a])
    }

    /// Converts bf16 to floats.
    pub fn bf16_to_f32(&mut self, a: ValueId) -> ValueId {
        let ty = Type::f32(self.ty(a).lanes);
        self.op(Op::Bf16ToF32, ty, &[a])
    }

    /// Converts two vectors of floats to one of bf16, with alternating lanes of `a` and `b`.
    pub fn to_bf16_pairs(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let ty = Type::bf16(self.ty(a).lanes * 2);
        self.op(Op::ToBf16Pairs, ty, &[a, b])
    }

    /// Reinterprets the bytes of a vector as another type.
    pub fn bitcast(&mut self, ty: Type, a: ValueId) -> ValueId {
        self.op(Op::Bitcast, ty, &[a])
    }

    /// Copies a scalar to `lanes` lanes.
    pub fn broadcast(&mut self, lanes: u16, a: ValueId) -> ValueId {
        let ty = Type::new(self.ty(a).elem, lanes);
        self.op(Op::Broadcast, ty, &[a])
    }

    /// Shifts each lane by the same constant number of bits.
    pub fn shift(&mut self, op: Op, a: ValueId, by: i64) -> ValueId {
        let ty = self.ty(a);
        self.op_imm(op, ty, &[a], by)
    }
}
