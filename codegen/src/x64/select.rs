//! Instruction selection: kernel IR to machine IR, statement by statement.
//!
//! This file owns blocks and addresses, and [`super::loops`] owns loops. [`super::values`] tracks
//! where values are. [`super::statement`] finds the selection function for each op.
//! [`super::arithmetic`], [`super::combine`], [`super::lanes`] and [`super::memory`] select the
//! ops.
//!
//! - Equal constants share one register; [`super::constants`] decides where it is set.
//! - A carried value has one register, its home. It is written before the loop and at the back
//!   edge, and read in the body and after the loop. [`super::allocate`] merges the copies away.
//! - A value narrower than 16 bytes is in the low part of a register. The bytes above it are
//!   undefined and never influence a lane of the value.

use std::collections::HashMap;

use iced_x86::Code;
use ixc_ir::kernel::{Address, Affine, Atom, DimId, Kernel, Stmt, ValueId};

use super::address::{Addresses, Key, MAX_TERMS, SplitKey};
use super::codes::Codes;
use super::constants::place;
use super::locations::{DeferredValue, Numbers, Pending, Value};
use super::machine::{BlockId, Class, Function, Inst, LoopId, Mem, Opcode, Rm, Vreg, Width};
use super::uses::Uses;
use super::{X64Error, limit};
use ixc_targets::{Feature, Target};

/// Place at which pointers and sizes that vary only with dims are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Once, at the entry of the kernel. This takes the fewest instructions.
    Entry,
    /// At each use outside innermost loops, and before innermost loops. This takes the fewest
    /// registers.
    Use,
}

/// Lowers a verified kernel.
///
/// # Errors
/// The kernel uses vectors wider than the target's, or too many different addresses.
pub fn select(kernel: &Kernel, target: Target, placement: Placement) -> Result<Function, X64Error> {
    let widest = target.isa().vector_bytes;
    if let Some(value) = kernel.values.iter().position(|ty| ty.row_bytes() > widest) {
        return Err(X64Error::Unsupported { target, value: ValueId(value as u32), ty: kernel.values[value] });
    }
    let addresses = Addresses::collect(kernel);
    limit("address terms", addresses.terms, MAX_TERMS)?;
    let mut selector = Selector {
        kernel,
        f: Function::new(target),
        current: BlockId(0),
        values: vec![Value::Undefined; kernel.values.len()],
        constants: vec![None; kernel.values.len()],
        shared: Vec::new(),
        uses: Uses::collect(kernel),
        pending: Vec::new(),
        deferred: Vec::new(),
        addresses,
        origin: 0,
        statements: 0,
        in_loop: None,
        strides: HashMap::new(),
        tables: HashMap::new(),
        numbers: HashMap::new(),
        origins: HashMap::new(),
        placement,
        innermost: false,
        dims: HashMap::new(),
        made_late: HashMap::new(),
    };
    selector.entry();
    selector.block(&kernel.body)?;
    place(&mut selector.f, &selector.shared);
    Ok(selector.f)
}

/// State of the selection of one kernel.
pub struct Selector<'k> {
    /// Kernel whose instructions are selected.
    pub kernel: &'k Kernel,
    /// The resulting function.
    pub f: Function,
    pub(super) current: BlockId,
    /// Location of each value.
    pub(super) values: Vec<Value>,
    /// Pool entry of each value that is a constant.
    pub(super) constants: Vec<Option<u32>>,
    /// Register of each pool entry. No instruction loads the constant into it yet.
    pub(super) shared: Vec<(u32, Vreg)>,
    /// Users of each value.
    pub(super) uses: Uses,
    /// Loads that are deferred to their use.
    pub(super) pending: Vec<Option<Pending>>,
    /// Ops that are deferred to their use.
    pub(super) deferred: Vec<DeferredValue>,
    pub(super) addresses: Addresses,
    /// Number of the current IR statement.
    pub(super) origin: u32,
    pub(super) statements: u32,
    pub(super) in_loop: Option<LoopId>,
    placement: Placement,
    /// Whether the current loop contains no other loop.
    pub(super) innermost: bool,
    /// Register of each dim, which is loaded once.
    dims: HashMap<DimId, Vreg>,
    /// Registers of keys that are computed at their use, by the block that computes them.
    made_late: HashMap<(BlockId, Key), Vreg>,
    /// Registers with the strides of tiles, by the block that sets them.
    pub(super) strides: HashMap<(BlockId, i64), Vreg>,
    /// Base addresses of tables in the pool, by the block that computes them.
    pub(super) tables: HashMap<(BlockId, u32), Vreg>,
    /// Prepared entry numbers of table lookups, by the block that computes them.
    pub(super) numbers: HashMap<(BlockId, ValueId, ValueId, usize), Numbers>,
    /// Address of each vector of bytes loaded from a read-only buffer, and the block in which the
    /// address is valid.
    pub(super) origins: HashMap<ValueId, (BlockId, Mem)>,
}

impl Selector<'_> {
    // The following methods create instructions and registers.

    /// Appends an instruction.
    pub fn emit(&mut self, mut inst: Inst) {
        inst.origin = self.origin;
        self.f.blocks[self.current.index()].insts.push(inst);
    }

    /// Creates a vector register for a value of `bytes` bytes.
    pub fn vector(&mut self, bytes: u32) -> Vreg {
        self.f.vreg(Class::vector(bytes))
    }

    /// Whether the target has EVEX: masks, broadcast memory operands, 32 registers.
    pub fn has_evex(&self) -> bool {
        self.f.target.has(Feature::Avx512vl)
    }

    /// Returns the class of a value's register.
    pub fn class_of(&self, value: ValueId) -> Class {
        let ty = self.kernel.ty(value);
        if ty.is_tile() {
            // A valid tile's row has at most 64 bytes.
            return Class::Tile { rows: ty.rows, bytes: ty.row_bytes() as u8 };
        }
        Class::vector(ty.bytes())
    }

    /// Creates the register (home) for a value that a loop carries.
    pub(super) fn home(&mut self, value: ValueId) -> Vreg {
        let class = self.class_of(value);
        self.f.vreg(class)
    }

    /// Creates a general register.
    pub fn gpr(&mut self) -> Vreg {
        self.f.vreg(Class::Gpr)
    }

    /// Emits `code d, a, b` for a result of `bytes` bytes.
    pub fn three(&mut self, codes: Codes, bytes: u32, a: Vreg, b: Rm) -> Vreg {
        let (code, width) = codes.for_size(bytes);
        let d = self.vector(bytes);
        self.emit(Inst::code(code).def(d, width).read(a, width).rm(b, width));
        d
    }

    /// Emits `code d, a, b, imm` for a result of `bytes` bytes.
    pub fn three_imm(&mut self, codes: Codes, bytes: u32, a: Vreg, b: Rm, imm: i64) -> Vreg {
        let (code, width) = codes.for_size(bytes);
        let d = self.vector(bytes);
        self.emit(Inst::code(code).def(d, width).read(a, width).rm(b, width).imm(imm));
        d
    }

    /// Emits `code d, a`; source and result have `bytes` bytes.
    pub fn two(&mut self, codes: Codes, bytes: u32, a: Rm) -> Vreg {
        let (code, width) = codes.for_size(bytes);
        let d = self.vector(bytes);
        self.emit(Inst::code(code).def(d, width).rm(a, width));
        d
    }

    /// Emits `code d, a, imm`; source and result have `bytes` bytes.
    pub fn two_imm(&mut self, codes: Codes, bytes: u32, a: Rm, imm: i64) -> Vreg {
        let (code, width) = codes.for_size(bytes);
        let d = self.vector(bytes);
        self.emit(Inst::code(code).def(d, width).rm(a, width).imm(imm));
        d
    }

    // The following methods compute addresses and integers.

    /// Returns the memory operand of an address.
    pub fn mem(&mut self, address: &Address) -> Mem {
        let key = self.addresses.key(Some(address.buffer), &address.offset);
        let Some(base) = self.pointer(&key) else {
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

    /// Puts an integer constant into a register.
    pub(super) fn integer(&mut self, value: i64) -> Vreg {
        let d = self.gpr();
        if u32::try_from(value).is_ok() {
            self.emit(Inst::code(Code::Mov_r32_imm32).def(d, Width::R32).imm(value));
        } else {
            self.emit(Inst::code(Code::Mov_r64_imm64).def(d, Width::R64).imm(value));
        }
        d
    }

    /// Computes `a + x * coefficient`. The result may be the register `x` itself.
    pub(super) fn multiply_add(&mut self, a: Option<Vreg>, x: Vreg, coefficient: i64) -> Vreg {
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
                // No instruction multiplies by such a large immediate.
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

    /// Computes an affine expression without a buffer. With `own`, the result is in a register that
    /// has no other use.
    pub fn affine(&mut self, value: &Affine, own: bool) -> Vreg {
        let key = self.addresses.key(None, value);
        match (self.pointer(&key), i32::try_from(value.constant)) {
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

    // The following methods manage blocks, and compute pointers and sizes in them.

    pub(super) fn start(&mut self, block: BlockId) {
        self.f.layout.push(block);
        self.current = block;
    }

    pub(super) fn go_to(&mut self, successors: &[BlockId]) {
        self.f.blocks[self.current.index()].successors = successors.to_vec();
    }

    fn entry(&mut self) {
        let block = self.f.block(None);
        self.start(block);
        let arguments = [self.gpr(), self.gpr()];
        self.f.arguments = Some(arguments);
        if self.placement == Placement::Use {
            return;
        }
        for key in self.addresses.at_entry().to_vec() {
            let register = self.compute(&key);
            self.addresses.set(key, register);
        }
    }

    /// Returns the register of a key; `None` for the number 0.
    pub(super) fn pointer(&mut self, key: &Key) -> Option<Vreg> {
        if let Some(register) = self.addresses.register(key) {
            return Some(register);
        }
        let varies = key.terms.iter().any(|(atom, _)| matches!(atom, Atom::Var(_)));
        if self.placement == Placement::Entry || varies || key.buffer.is_none() && key.terms.is_empty() {
            return None;
        }
        let block = self.outside_innermost();
        if let Some(&register) = self.made_late.get(&(block, key.clone())) {
            return Some(register);
        }
        let here = std::mem::replace(&mut self.current, block);
        let register = self.compute(key);
        self.current = here;
        self.made_late.insert((block, key.clone()), register);
        Some(register)
    }

    /// Returns the block in which loop-invariant values are computed: the current block, or the
    /// block before an innermost loop.
    pub(super) fn outside_innermost(&self) -> BlockId {
        match self.in_loop {
            Some(id) if self.innermost => self.f.loops[id.0 as usize].preheader,
            Some(_) | None => self.current,
        }
    }

    /// Computes a key whose terms are all dims, from the arguments or from registers that already
    /// hold a part of the sum.
    fn compute(&mut self, key: &Key) -> Vreg {
        let [buffers, dims] = self.f.arguments.unwrap_or([Vreg(0); 2]);
        let start = Key { buffer: key.buffer, terms: Vec::new() };
        let mut sum = match (key.buffer, self.addresses.register(&start)) {
            (Some(buffer), None) => {
                let d = self.gpr();
                let at = Mem::at(buffers, 8 * buffer.0 as i32);
                self.emit(Inst::code(Code::Mov_r64_rm64).def(d, Width::R64).mem(at));
                Some(d)
            }
            (_, register) => register,
        };
        for &(atom, coefficient) in &key.terms {
            let Atom::Dim(dim) = atom else { continue };
            let x = match self.dims.get(&dim) {
                Some(&x) => x,
                None => {
                    let x = self.gpr();
                    let at = Mem::at(dims, 8 * dim.0 as i32);
                    self.emit(Inst::code(Code::Mov_r64_rm64).def(x, Width::R64).mem(at));
                    if self.placement == Placement::Entry {
                        self.dims.insert(dim, x);
                    }
                    x
                }
            };
            sum = Some(self.multiply_add(sum, x, coefficient));
        }
        sum.unwrap_or_else(|| self.integer(0))
    }

    pub(super) fn block(&mut self, body: &[Stmt]) -> Result<(), X64Error> {
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
                        if let Some(SplitKey { parent, coefficient, .. }) = key.split() {
                            let parent = self.pointer(&parent);
                            let d = self.multiply_add(parent, x, coefficient);
                            self.addresses.set(key, d);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
