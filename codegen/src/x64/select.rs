//! Instruction selection: kernel IR to machine IR, statement by statement.
//!
//! This file owns blocks, loops, values and addresses; what each op becomes stands in [`super::arithmetic`],
//! [`super::lanes`] and [`super::memory`].
//!
//! - A load with one use waits until its use, which takes it as a memory operand where the encoding allows; at a store, a
//!   loop or a use that needs a register it becomes an instruction of its own.
//! - Equal constants are one register, which [`super::constants`] places.
//! - A carried value has one home register: written before the loop, read in the body as the inner value, written at the
//!   back edge, read after the loop as the result. [`super::allocate`] merges the copies away.
//! - A value narrower than 16 bytes stands in the low part of a register. What is above it is arbitrary and never
//!   influences a lane of the value.

use iced_x86::Code;
use ixc_ir::kernel::{Address, Affine, Atom, Carry, For, Imm, Inst as Statement, Kernel, Op, Stmt, Type, ValueId};

use super::address::{Addresses, Key, MAX_TERMS};
use super::constants::place;
use super::machine::{BlockId, Class, Function, Inst, Loop, LoopId, Mem, Opcode, Rm, Vreg, Width};
use super::{X64Error, limit};

/// Widest vector of this lowering.
const VECTOR_BYTES: u32 = 32;

/// Lowers a verified kernel.
///
/// # Errors
/// Where the kernel uses vectors wider than 32 bytes, or too many different addresses.
pub fn select(kernel: &Kernel) -> Result<Function, X64Error> {
    if let Some(value) = kernel.values.iter().position(|ty| ty.bytes() > VECTOR_BYTES) {
        return Err(X64Error::Unsupported { value: ValueId(value as u32), ty: kernel.values[value] });
    }
    let addresses = Addresses::collect(kernel);
    limit("address terms", addresses.terms, MAX_TERMS)?;
    let mut selector = Selector {
        kernel,
        f: Function::default(),
        current: BlockId(0),
        values: vec![Value::Undefined; kernel.values.len()],
        constants: vec![None; kernel.values.len()],
        shared: Vec::new(),
        uses: vec![0; kernel.values.len()],
        pending: Vec::new(),
        addresses,
        origin: 0,
        statements: 0,
        in_loop: None,
    };
    count_uses(&kernel.body, &mut selector.uses);
    selector.entry();
    selector.block(&kernel.body)?;
    place(&mut selector.f, &selector.shared);
    Ok(selector.f)
}

fn count_uses(body: &[Stmt], uses: &mut [u32]) {
    for stmt in body {
        match stmt {
            Stmt::Inst(inst) => inst.operands.iter().for_each(|v| uses[v.index()] += 1),
            Stmt::For(f) => {
                for carry in &f.carries {
                    uses[carry.init.index()] += 1;
                    uses[carry.next.index()] += 1;
                }
                count_uses(&f.body, uses);
            }
            Stmt::LoadIndex { .. } => {}
        }
    }
}

/// Where a value is.
#[derive(Clone, Copy, Debug)]
enum Value {
    Undefined,
    Register(Vreg),
    Pending(usize),
}

/// A load that waits for its only use.
struct Pending {
    owner: ValueId,
    ty: Type,
    mem: Mem,
    origin: u32,
}

/// The 128-bit and the 256-bit form of an instruction.
#[derive(Clone, Copy)]
pub struct Codes(pub Code, pub Code);

impl Codes {
    /// The form for a type of so many bytes.
    pub fn of(self, bytes: u32) -> (Code, Width) {
        if bytes > 16 { (self.1, Width::Y) } else { (self.0, Width::X) }
    }
}

/// State of the selection of one kernel.
pub struct Selector<'k> {
    /// The kernel.
    pub kernel: &'k Kernel,
    /// What is made.
    pub f: Function,
    current: BlockId,
    values: Vec<Value>,
    /// Pool entries of values that are constants.
    constants: Vec<Option<u32>>,
    /// The register of each pool entry, not yet defined.
    shared: Vec<(u32, Vreg)>,
    uses: Vec<u32>,
    pending: Vec<Option<Pending>>,
    addresses: Addresses,
    origin: u32,
    statements: u32,
    in_loop: Option<LoopId>,
}

impl Selector<'_> {
    // Instructions and registers.

    /// Appends an instruction.
    pub fn emit(&mut self, mut inst: Inst) {
        inst.origin = self.origin;
        self.f.blocks[self.current.index()].insts.push(inst);
    }

    /// A new vector register for a value of so many bytes.
    pub fn vector(&mut self, bytes: u32) -> Vreg {
        self.f.vreg(Class::Vector { bytes: if bytes > 16 { 32 } else { 16 } })
    }

    fn gpr(&mut self) -> Vreg {
        self.f.vreg(Class::Gpr)
    }

    /// `code d, a, b` for a result of so many bytes.
    pub fn three(&mut self, codes: Codes, bytes: u32, a: Vreg, b: Rm) -> Vreg {
        let (code, width) = codes.of(bytes);
        let d = self.vector(bytes);
        self.emit(Inst::code(code).def(d, width).read(a, width).rm(b, width));
        d
    }

    /// `code d, a, b, imm` for a result of so many bytes.
    pub fn three_imm(&mut self, codes: Codes, bytes: u32, a: Vreg, b: Rm, imm: i64) -> Vreg {
        let (code, width) = codes.of(bytes);
        let d = self.vector(bytes);
        self.emit(Inst::code(code).def(d, width).read(a, width).rm(b, width).imm(imm));
        d
    }

    /// `code d, a` for a result of so many bytes, source and result alike.
    pub fn two(&mut self, codes: Codes, bytes: u32, a: Rm) -> Vreg {
        let (code, width) = codes.of(bytes);
        let d = self.vector(bytes);
        self.emit(Inst::code(code).def(d, width).rm(a, width));
        d
    }

    /// `code d, a, imm` for a result of so many bytes, source and result alike.
    pub fn two_imm(&mut self, codes: Codes, bytes: u32, a: Rm, imm: i64) -> Vreg {
        let (code, width) = codes.of(bytes);
        let d = self.vector(bytes);
        self.emit(Inst::code(code).def(d, width).rm(a, width).imm(imm));
        d
    }

    // Values.

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> Type {
        self.kernel.ty(value)
    }

    /// States the register of a value.
    pub fn set(&mut self, value: ValueId, register: Vreg) {
        self.values[value.index()] = Value::Register(register);
    }

    /// Whether a value could still be a memory operand of so many bytes.
    pub fn in_memory(&self, value: ValueId, bytes: u32) -> bool {
        let Value::Pending(p) = self.values[value.index()] else { return false };
        self.pending[p].as_ref().is_some_and(|p| p.ty.bytes() >= bytes)
    }

    /// The value in a register.
    pub fn reg(&mut self, value: ValueId) -> Vreg {
        match self.values[value.index()] {
            Value::Register(v) => v,
            Value::Pending(p) => {
                let bytes = self.ty(value).bytes();
                let register = self.vector(bytes);
                self.settle(p, register);
                register
            }
            // The verifier proves that every value is defined before it is used.
            Value::Undefined => {
                debug_assert!(false, "{} uses an undefined value {value:?}", self.kernel.name);
                self.vector(32)
            }
        }
    }

    /// The value as a register, or as memory of so many bytes if it still waits.
    pub fn rm(&mut self, value: ValueId, bytes: u32) -> Rm {
        if self.in_memory(value, bytes)
            && let Value::Pending(p) = self.values[value.index()]
            && let Some(pending) = self.pending[p].take()
        {
            self.values[value.index()] = Value::Undefined;
            return Rm::Mem(pending.mem);
        }
        Rm::Reg(self.reg(value))
    }

    /// Two operands of a commutative op: the one that can be memory is second. A constant could become memory, too.
    pub fn commute(&mut self, a: ValueId, b: ValueId, bytes: u32) -> (Vreg, Rm) {
        let memory = |s: &Self, v| (s.in_memory(v, bytes), s.constants[ValueId::index(v)].is_some());
        let (a, b) = if memory(self, a) > memory(self, b) { (b, a) } else { (a, b) };
        (self.reg(a), self.rm(b, bytes))
    }

    /// Makes `to` another name of `from`.
    pub fn alias(&mut self, to: ValueId, from: ValueId) {
        if let Value::Pending(p) = self.values[from.index()]
            && self.uses[to.index()] == 1
            && self.ty(to).bytes() <= self.ty(from).bytes()
        {
            if let Some(pending) = &mut self.pending[p] {
                pending.owner = to;
            }
            self.values[to.index()] = Value::Pending(p);
            self.values[from.index()] = Value::Undefined;
            return;
        }
        let register = self.reg(from);
        self.set(to, register);
        self.constants[to.index()] = self.constants[from.index()];
    }

    /// Gives a waiting value its register.
    fn settle(&mut self, p: usize, register: Vreg) {
        let Some(pending) = self.pending[p].take() else { return };
        let origin = std::mem::replace(&mut self.origin, pending.origin);
        self.load_into(register, pending.ty, pending.mem);
        self.origin = origin;
        self.set(pending.owner, register);
    }

    /// Gives every waiting load its register.
    pub fn settle_all(&mut self) {
        for p in 0..self.pending.len() {
            let Some(pending) = &self.pending[p] else { continue };
            let bytes = self.ty(pending.owner).bytes();
            let register = self.vector(bytes);
            self.settle(p, register);
        }
        self.pending.clear();
    }

    /// Defines a value as a load: it waits if it has one use.
    pub fn define_load(&mut self, result: ValueId, ty: Type, mem: Mem) {
        self.values[result.index()] = Value::Pending(self.pending.len());
        self.pending.push(Some(Pending { owner: result, ty, mem, origin: self.origin }));
        if self.uses[result.index()] > 1 {
            self.reg(result);
        }
    }

    /// Defines a value as a constant, given its bytes or more.
    pub fn define_constant(&mut self, result: ValueId, mut bytes: Vec<u8>) {
        let wide = self.ty(result).bytes() > 16;
        bytes.resize(if wide { 32 } else { 16 }, 0);
        let id = self.f.constant(&bytes);
        self.constants[result.index()] = Some(id);
        // The pool grows by one entry at a time, and each gets its register here.
        if id as usize == self.shared.len() {
            let register = self.vector(bytes.len() as u32);
            self.shared.push((id, register));
        }
        let (_, register) = self.shared[id as usize];
        self.set(result, register);
    }

    // Addresses and integers.

    /// The memory operand of an address.
    pub fn mem(&mut self, address: &Address) -> Mem {
        let key = self.addresses.key(Some(address.buffer), &address.offset);
        let Some(base) = self.addresses.register(&key) else {
            debug_assert!(false, "{}: no register for {key:?}", self.kernel.name);
            return Mem::slot(0);
        };
        let constant = address.offset.constant;
        match i32::try_from(constant) {
            Ok(disp) => Mem::at(base, disp),
            Err(_) => {
                let far = self.integer(constant);
                Mem::at(self.multiply_add(Some(base), far, 1), 0)
            }
        }
    }

    /// An integer constant in a register.
    fn integer(&mut self, value: i64) -> Vreg {
        let d = self.gpr();
        if u32::try_from(value).is_ok() {
            self.emit(Inst::code(Code::Mov_r32_imm32).def(d, Width::R32).imm(value));
        } else {
            self.emit(Inst::code(Code::Mov_r64_imm64).def(d, Width::R64).imm(value));
        }
        d
    }

    /// `a + x * coefficient`; may be `x` itself.
    fn multiply_add(&mut self, a: Option<Vreg>, x: Vreg, coefficient: i64) -> Vreg {
        if a.is_none() && coefficient == 1 {
            return x;
        }
        let (x, scale) = match (coefficient, i32::try_from(coefficient)) {
            (1 | 2 | 4 | 8, _) if a.is_some() => (x, coefficient as u32),
            (_, Ok(_)) => {
                let d = self.gpr();
                let inst = Inst::code(Code::Imul_r64_rm64_imm32).def(d, Width::R64);
                self.emit(inst.rm(Rm::Reg(x), Width::R64).imm(coefficient));
                (d, 1)
            }
            (_, Err(_)) => {
                // Beyond what a verified kernel has.
                let (c, d) = (self.integer(coefficient), self.gpr());
                self.emit(Inst::new(Opcode::Copy).def(d, Width::R64).read(c, Width::R64));
                self.emit(Inst::code(Code::Imul_r64_rm64).update(d, Width::R64).rm(Rm::Reg(x), Width::R64));
                (d, 1)
            }
        };
        match a {
            None => x,
            Some(a) => {
                let d = self.gpr();
                let mem = Mem { index: Some((x, scale)), ..Mem::at(a, 0) };
                self.emit(Inst::code(Code::Lea_r64_m).def(d, Width::R64).mem(mem));
                d
            }
        }
    }

    /// The value of an affine expression without a buffer; if `own`, in a register that nothing else uses.
    pub fn affine(&mut self, value: &Affine, own: bool) -> Vreg {
        let key = self.addresses.key(None, value);
        match (self.addresses.register(&key), i32::try_from(value.constant)) {
            (None, _) => self.integer(value.constant),
            (Some(v), Ok(0)) if !own => v,
            (Some(v), Ok(0)) => {
                let d = self.gpr();
                self.emit(Inst::new(Opcode::Copy).def(d, Width::R64).read(v, Width::R64));
                d
            }
            (Some(v), Ok(disp)) => {
                let d = self.gpr();
                self.emit(Inst::code(Code::Lea_r64_m).def(d, Width::R64).mem(Mem::at(v, disp)));
                d
            }
            (Some(v), Err(_)) => {
                let c = self.integer(value.constant);
                self.multiply_add(Some(v), c, 1)
            }
        }
    }

    // Structure.

    fn start(&mut self, block: BlockId) {
        self.f.layout.push(block);
        self.current = block;
    }

    fn go_to(&mut self, successors: &[BlockId]) {
        self.f.blocks[self.current.index()].successors = successors.to_vec();
    }

    fn entry(&mut self) {
        let block = self.f.block(None);
        self.start(block);
        let arguments = [self.gpr(), self.gpr()];
        self.f.arguments = Some(arguments);
        let [buffers, dims] = arguments;
        let mut dim_registers = vec![None; self.kernel.dims.len()];
        for key in self.addresses.at_entry().to_vec() {
            let mut sum = match key.buffer {
                Some(buffer) if key.terms.is_empty() => {
                    let d = self.gpr();
                    let at = Mem::at(buffers, 8 * buffer.0 as i32);
                    self.emit(Inst::code(Code::Mov_r64_rm64).def(d, Width::R64).mem(at));
                    Some(d)
                }
                buffer => self.addresses.register(&Key { buffer, terms: Vec::new() }),
            };
            for &(atom, coefficient) in &key.terms {
                let Atom::Dim(dim) = atom else { continue };
                let x = match dim_registers[dim.index()] {
                    Some(x) => x,
                    None => {
                        let x = self.gpr();
                        let at = Mem::at(dims, 8 * dim.0 as i32);
                        self.emit(Inst::code(Code::Mov_r64_rm64).def(x, Width::R64).mem(at));
                        dim_registers[dim.index()] = Some(x);
                        x
                    }
                };
                sum = Some(self.multiply_add(sum, x, coefficient));
            }
            if let Some(sum) = sum {
                self.addresses.set(key, sum);
            }
        }
    }

    fn block(&mut self, body: &[Stmt]) -> Result<(), X64Error> {
        for stmt in body {
            self.origin = self.statements;
            self.statements += 1;
            match stmt {
                Stmt::Inst(inst) => self.statement(inst)?,
                Stmt::For(f) => self.for_loop(f)?,
                Stmt::LoadIndex { var, address } => {
                    let mem = self.mem(address);
                    let x = self.gpr();
                    self.emit(Inst::code(Code::Mov_r32_rm32).def(x, Width::R32).mem(mem));
                    for key in self.addresses.at(*var).to_vec() {
                        if let Some((parent, _, coefficient)) = key.split() {
                            let parent = self.addresses.register(&parent);
                            let d = self.multiply_add(parent, x, coefficient);
                            self.addresses.set(key, d);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn for_loop(&mut self, f: &For) -> Result<(), X64Error> {
        match f.trip.as_constant() {
            Some(0) => {
                self.statements += count(&f.body);
                for carry in &f.carries {
                    self.alias(carry.result, carry.init);
                }
                return Ok(());
            }
            Some(1) => return self.once(f),
            _ => {}
        }
        let origin = self.origin;
        let homes: Vec<Vreg> = f.carries.iter().map(|c| self.vector(self.kernel.ty(c.inner).bytes())).collect();
        for (carry, &home) in f.carries.iter().zip(&homes) {
            self.write_home(home, carry.init);
        }
        self.settle_all();
        for (carry, &home) in f.carries.iter().zip(&homes) {
            self.set(carry.inner, home);
            self.set(carry.result, home);
        }

        let counter = self.affine(&f.trip, true);
        let exit = self.f.block(self.in_loop);
        if self.least(&f.trip) < 1 {
            let before = self.f.block(self.in_loop);
            self.emit(Inst::code(Code::Test_rm64_r64).read(counter, Width::R64).read(counter, Width::R64));
            self.emit(Inst::code(Code::Je_rel32_64).block(exit));
            self.go_to(&[before, exit]);
            self.start(before);
        }
        let keys = self.addresses.at(f.var).to_vec();
        let mut steps = Vec::new();
        for key in keys {
            let Some((parent, _, coefficient)) = key.split() else { continue };
            let pointer = self.gpr();
            match self.addresses.register(&parent) {
                Some(v) => self.emit(Inst::new(Opcode::Copy).def(pointer, Width::R64).read(v, Width::R64)),
                None => self.emit(Inst::code(Code::Mov_r32_imm32).def(pointer, Width::R32).imm(0)),
            }
            self.addresses.set(key, pointer);
            steps.push((pointer, coefficient));
        }
        let parent = self.in_loop;
        let this = LoopId(self.f.loops.len() as u32);
        self.f.loops.push(Loop { parent, preheader: self.current });
        self.in_loop = Some(this);
        let header = self.f.block(self.in_loop);
        self.go_to(&[header]);

        self.start(header);
        self.block(&f.body)?;
        self.origin = origin;
        self.back_edge(&f.carries, &homes);
        for (pointer, step) in steps {
            self.advance(pointer, step);
        }
        self.emit(Inst::code(Code::Dec_rm64).update(counter, Width::R64).or_mem());
        self.emit(Inst::code(Code::Jne_rel32_64).block(header));
        self.go_to(&[header, exit]);
        self.f.blocks[self.current.index()].innermost = this.0 as usize + 1 == self.f.loops.len();
        self.pending.clear();
        self.in_loop = parent;
        self.start(exit);
        Ok(())
    }

    /// A loop that runs exactly once is its body.
    fn once(&mut self, f: &For) -> Result<(), X64Error> {
        for carry in &f.carries {
            let init = self.reg(carry.init);
            self.set(carry.inner, init);
        }
        for key in self.addresses.at(f.var).to_vec() {
            let Some((parent, ..)) = key.split() else { continue };
            let register = match self.addresses.register(&parent) {
                Some(v) => v,
                None => self.integer(0),
            };
            self.addresses.set(key, register);
        }
        self.block(&f.body)?;
        for carry in &f.carries {
            let next = self.reg(carry.next);
            self.set(carry.result, next);
        }
        Ok(())
    }

    /// Writes a carried value's home before the loop; constants are made in place, so that several homes can start from
    /// one without a copy.
    fn write_home(&mut self, home: Vreg, init: ValueId) {
        let width = self.f.width(home);
        match (self.values[init.index()], self.constants[init.index()]) {
            (Value::Pending(p), _) => self.settle(p, home),
            (_, Some(id)) => self.emit(Inst::new(Opcode::Constant(id)).def(home, width)),
            _ => {
                let init = self.reg(init);
                self.emit(Inst::new(Opcode::Copy).def(home, width).read(init, width));
            }
        }
    }

    /// Writes all homes at once: a next value that is another carry's home is saved before any is written.
    fn back_edge(&mut self, carries: &[Carry], homes: &[Vreg]) {
        let mut copies = Vec::new();
        for (carry, &home) in carries.iter().zip(homes) {
            let width = self.f.width(home);
            if let Some(id) = self.constants[carry.next.index()] {
                copies.push(Inst::new(Opcode::Constant(id)).def(home, width));
                continue;
            }
            let mut next = self.reg(carry.next);
            if next == home {
                continue;
            }
            if homes.contains(&next) {
                let saved = self.f.vreg(self.f.vregs[home.index()]);
                self.emit(Inst::new(Opcode::Copy).def(saved, width).read(next, width));
                next = saved;
            }
            copies.push(Inst::new(Opcode::Copy).def(home, width).read(next, width));
        }
        for copy in copies {
            self.emit(copy);
        }
    }

    fn advance(&mut self, pointer: Vreg, step: i64) {
        if let Ok(small) = i8::try_from(step) {
            self.emit(Inst::code(Code::Add_rm64_imm8).update(pointer, Width::R64).or_mem().imm(small.into()));
        } else if i32::try_from(step).is_ok() {
            self.emit(Inst::code(Code::Add_rm64_imm32).update(pointer, Width::R64).or_mem().imm(step));
        } else {
            let step = self.integer(step);
            self.emit(Inst::code(Code::Add_rm64_r64).update(pointer, Width::R64).or_mem().read(step, Width::R64));
        }
    }

    /// The smallest value of an expression over dims.
    fn least(&self, value: &Affine) -> i64 {
        value.terms.iter().fold(value.constant, |sum, &(atom, coefficient)| {
            let bound = match atom {
                Atom::Dim(d) if coefficient > 0 => self.kernel.dims[d.index()].lo,
                Atom::Dim(d) => self.kernel.dims[d.index()].hi,
                Atom::Var(_) => i64::MAX,
            };
            sum.saturating_add(bound.saturating_mul(coefficient))
        })
    }

    fn statement(&mut self, inst: &Statement) -> Result<(), X64Error> {
        let result = inst.result;
        if result.is_some_and(|r| self.uses[r.index()] == 0) {
            return Ok(());
        }
        // The verifier proves the number of operands, and that what has an address or immediate has one.
        let o = &inst.operands;
        let ty = inst.ty;
        let int = match inst.imm {
            Imm::Int(i) => i,
            Imm::None | Imm::Float(_) | Imm::Bytes(_) => 0,
        };
        let (Some(&first), second) = (o.first(), o.get(1).copied()) else {
            return self.without_operands(inst);
        };
        if inst.op == Op::Store {
            return self.store(inst, first);
        }
        let Some(result) = result else { return Ok(()) };
        let register = match inst.op {
            Op::Splat | Op::Bytes | Op::Iota | Op::Index | Op::Load | Op::LoadSplat | Op::Store => return Ok(()),
            Op::Bitcast => {
                self.alias(result, first);
                return Ok(());
            }
            Op::Extract | Op::Slice => {
                if int == 0 {
                    self.alias(result, first);
                    return Ok(());
                }
                self.slice(first, ty, int)
            }
            Op::Shl | Op::ShrU | Op::ShrS if int == 0 => {
                self.alias(result, first);
                return Ok(());
            }
            Op::Broadcast if ty.lanes == 1 => {
                self.alias(result, first);
                return Ok(());
            }
            Op::Broadcast => self.broadcast(first, ty),
            Op::Concat | Op::JoinLo | Op::JoinHi | Op::UnpackLo | Op::UnpackHi => {
                let second = second.unwrap_or(first);
                self.combine(inst.op, ty, first, second, int)
            }
            Op::SwapPairs => self.swap_pairs(first, ty),
            Op::Fma | Op::Select => {
                let (second, third) = (second.unwrap_or(first), o.get(2).copied().unwrap_or(first));
                if inst.op == Op::Fma {
                    self.fma(first, second, third, ty)
                } else {
                    self.choose(first, second, third, ty)
                }
            }
            Op::Add
            | Op::Sub
            | Op::Mul
            | Op::Div
            | Op::Min
            | Op::Max
            | Op::IAdd
            | Op::ISub
            | Op::IMul
            | Op::IMin
            | Op::IMax
            | Op::Sign
            | Op::And
            | Op::Or
            | Op::Xor
            | Op::CmpEq
            | Op::CmpGt
            | Op::CmpLtF
            | Op::Dot2U8S8
            | Op::Dot2S16
            | Op::ShuffleBytes => self.binary(inst.op, ty, first, second.unwrap_or(first))?,
            Op::Sqrt | Op::IAbs | Op::ToF32 | Op::ToI32 | Op::F16ToF32 | Op::F32ToF16 => {
                self.unary(inst.op, ty, first)?
            }
            Op::Shl | Op::ShrU | Op::ShrS => self.shift(inst.op, ty, first, int)?,
            Op::ExtendS | Op::ExtendU => self.extend(inst.op == Op::ExtendS, first, ty)?,
            Op::NarrowS => self.narrow(first, ty),
            Op::ReduceAdd | Op::ReduceMax | Op::ReduceMin => self.reduce(inst.op, first)?,
        };
        self.set(result, register);
        Ok(())
    }
}

fn count(body: &[Stmt]) -> u32 {
    body.iter().map(|stmt| 1 + if let Stmt::For(f) = stmt { count(&f.body) } else { 0 }).sum()
}
