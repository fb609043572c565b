//! Location of each value during selection: in a register, or not yet emitted.
//!
//! - A load with one use is deferred to this use, where it becomes a memory operand if the
//!   encoding allows. A store, a loop, or a use that needs a register turns it into a separate
//!   instruction.
//! - On targets with EVEX, a `load_splat` of 32 bits is also deferred: its user reads `{1to16}`.
//! - An op that one instruction can compute together with its only user is deferred as
//!   [`DeferredValue`](super::locations::DeferredValue) ([`super::combine`]).
//!
//! Invariant: deferred ops are emitted before control flow. Their registers are then defined
//! wherever the value is in scope.

use iced_x86::Code;
use ixc_ir::kernel::{Type, ValueId};

use super::locations::{Pending, Read, Value};
use super::machine::{Inst, Mem, Opcode, Rm, Vreg, Width};
use super::select::Selector;

/// Max number of instructions that read a broadcast lane from memory, instead of from a register
/// that holds it. Two loads are cheaper than occupying a register; more loads are not.
const FOLDED_SPLATS: u32 = 2;

impl Selector<'_> {
    /// Returns the type of a value.
    pub fn ty(&self, value: ValueId) -> Type {
        self.kernel.ty(value)
    }

    /// Sets the register of a value.
    pub fn set(&mut self, value: ValueId, register: Vreg) {
        self.values[value.index()] = Value::Register(register);
    }

    /// Whether a value is still a deferred load that `read` accepts as a memory operand.
    pub fn in_memory(&self, value: ValueId, read: Read) -> bool {
        let Value::Pending(p) = self.values[value.index()] else { return false };
        self.pending[p].as_ref().is_some_and(|p| if p.splat { read.splat } else { p.ty.bytes() >= read.bytes })
    }

    /// Returns the register of a value. Emits the load or op first, if it is deferred.
    pub fn reg(&mut self, value: ValueId) -> Vreg {
        match self.values[value.index()] {
            Value::Register(v) => v,
            Value::Pending(p) => {
                let bytes = self.ty(value).bytes();
                let register = self.vector(bytes);
                self.settle(p, register);
                register
            }
            Value::Deferred(d) => {
                let register = self.make(d);
                self.set(value, register);
                register
            }
            // The verifier proves that every value is defined before its use.
            Value::Undefined => {
                debug_assert!(false, "{} uses an undefined value {value:?}", self.kernel.name);
                let bytes = self.ty(value).bytes();
                self.vector(bytes)
            }
        }
    }

    /// Returns the value as memory if it is still deferred and `read` accepts it, otherwise as a
    /// register.
    pub fn rm(&mut self, value: ValueId, read: Read) -> Rm {
        if self.in_memory(value, read)
            && let Value::Pending(p) = self.values[value.index()]
            && let Some(pending) = &mut self.pending[p]
        {
            let mem = Mem { broadcast: pending.splat, ..pending.mem };
            pending.uses -= 1;
            if pending.uses == 0 {
                self.pending[p] = None;
                self.values[value.index()] = Value::Undefined;
            }
            return Rm::Mem(mem);
        }
        Rm::Reg(self.reg(value))
    }

    /// Returns the operands of a commutative op, with the one that can be memory second. If neither
    /// can, a constant comes second, because it can become memory later.
    pub fn commute(&mut self, a: ValueId, b: ValueId, read: Read) -> (Vreg, Rm) {
        let memory = |s: &Self, v| (s.in_memory(v, read), s.constants[ValueId::index(v)].is_some());
        let (a, b) = if memory(self, a) > memory(self, b) { (b, a) } else { (a, b) };
        (self.reg(a), self.rm(b, read))
    }

    /// Makes `to` an alias of `from`, or of its lower lanes.
    pub fn alias(&mut self, to: ValueId, from: ValueId) {
        let uses = self.uses.count(to);
        if let Value::Pending(p) = self.values[from.index()]
            && self.ty(to).bytes() <= self.ty(from).bytes()
            && let Some(pending) = &mut self.pending[p]
            && pending.uses == 1
            && (uses == 1 || pending.splat && uses <= FOLDED_SPLATS && self.uses.all_fold(to))
        {
            (pending.owner, pending.uses) = (to, uses);
            self.values[to.index()] = Value::Pending(p);
            self.values[from.index()] = Value::Undefined;
            return;
        }
        let register = self.reg(from);
        self.set(to, register);
        self.constants[to.index()] = self.constants[from.index()];
    }

    /// Emits a deferred load into a register.
    fn settle(&mut self, p: usize, register: Vreg) {
        let Some(pending) = self.pending[p].take() else { return };
        let origin = std::mem::replace(&mut self.origin, pending.origin);
        if pending.splat {
            self.broadcast_into(register, pending.ty.elem, pending.mem);
        } else {
            self.load_into(register, pending.ty, pending.mem);
        }
        self.origin = origin;
        self.set(pending.owner, register);
    }

    /// Emits every deferred load.
    pub fn settle_all(&mut self) {
        for p in 0..self.pending.len() {
            let Some(pending) = &self.pending[p] else { continue };
            let bytes = self.ty(pending.owner).bytes();
            let register = self.vector(bytes);
            self.settle(p, register);
        }
        self.pending.clear();
    }

    /// Emits every deferred load and op.
    pub fn make_all(&mut self) {
        for d in 0..self.deferred.len() {
            let value = self.deferred[d].value;
            if matches!(self.values[value.index()], Value::Deferred(_)) {
                self.reg(value);
            }
        }
        self.deferred.clear();
        self.settle_all();
    }

    /// Defines a value as a load, which is deferred if it has one use.
    pub fn define_load(&mut self, result: ValueId, ty: Type, mem: Mem) {
        self.wait(Pending { owner: result, ty, mem, splat: false, uses: 1, origin: self.origin });
        if self.uses.count(result) > 1 {
            self.reg(result);
        }
    }

    /// Defines a value as one element of memory in every lane. The load is deferred if its uses can
    /// broadcast from memory.
    pub fn define_splat(&mut self, result: ValueId, ty: Type, mem: Mem) {
        let uses = self.uses.count(result);
        if self.has_evex() && ty.elem.bytes() == 4 && (uses == 1 || uses <= FOLDED_SPLATS && self.uses.all_fold(result))
        {
            self.wait(Pending { owner: result, ty, mem, splat: true, uses, origin: self.origin });
            return;
        }
        let d = self.vector(ty.bytes());
        self.broadcast_into(d, ty.elem, mem);
        self.set(result, d);
    }

    fn wait(&mut self, pending: Pending) {
        self.values[pending.owner.index()] = Value::Pending(self.pending.len());
        self.pending.push(Some(pending));
    }

    /// Returns the pool entry of these bytes, and the register that holds the constant.
    pub fn constant(&mut self, mut bytes: Vec<u8>) -> (u32, Vreg) {
        let whole = bytes.len().next_power_of_two().max(16);
        bytes.resize(whole, 0);
        let id = self.f.constant(&bytes);
        // Only this method adds entries to the pool, one at a time, and gives each entry its
        // register.
        if id as usize == self.shared.len() {
            let register = self.vector(whole as u32);
            self.shared.push((id, register));
        }
        self.shared[id as usize]
    }

    /// Defines a value as a constant; bytes beyond the value's size are ignored.
    pub fn define_constant(&mut self, result: ValueId, mut bytes: Vec<u8>) {
        bytes.truncate(self.ty(result).bytes().max(16) as usize);
        let (id, register) = self.constant(bytes);
        self.constants[result.index()] = Some(id);
        self.set(result, register);
    }

    /// Writes a value to a register that has no other use. Examples are a carried value's home
    /// before the loop, and a sum that an instruction updates. Constants are loaded directly into
    /// the register, so several homes can start from one constant without a copy.
    pub fn write_home(&mut self, home: Vreg, init: ValueId) {
        let width = self.f.width(home);
        if let Value::Pending(p) = self.values[init.index()]
            && self.pending[p].is_some_and(|pending| pending.uses == 1)
        {
            self.settle(p, home);
        } else if let Some(id) = self.constants[init.index()] {
            self.emit(Inst::new(Opcode::Constant(id)).def(home, width));
        } else {
            let init = self.reg(init);
            self.emit(Inst::new(Opcode::Copy).def(home, width).read(init, width));
        }
    }

    /// Emits `vmovd`: a 32-bit integer becomes a vector's lowest lane.
    pub fn from_integer(&mut self, x: Vreg) -> Vreg {
        let d = self.vector(4);
        self.emit(Inst::code(Code::VEX_Vmovd_xmm_rm32).def(d, Width::X).read(x, Width::R32).or_mem());
        d
    }
}
