//! Selection of loops: carried values, pointers that advance with the loop variable, and loops that
//! run at most once.

use iced_x86::Code;
use ixc_ir::kernel::{Affine, Atom, Carry, For, Stmt};

use super::X64Error;
use super::address::SplitKey;
use super::machine::{Inst, Loop, LoopId, Opcode, Vreg, Width};
use super::select::Selector;

impl Selector<'_> {
    /// Selects a loop.
    pub(super) fn for_loop(&mut self, f: &For) -> Result<(), X64Error> {
        let trip = f.trip.as_constant();
        if trip == Some(0) {
            self.statements += count(&f.body);
            for carry in &f.carries {
                self.alias(carry.result, carry.init);
            }
            return Ok(());
        }
        if trip == Some(1) {
            return self.select_single_loop(f);
        }
        if f.carries.is_empty() && self.max_value(&f.trip) <= 1 {
            return self.at_most_once(f);
        }
        let origin = self.origin;
        let homes: Vec<Vreg> = f.carries.iter().map(|c| self.home(c.inner)).collect();
        for (carry, &home) in f.carries.iter().zip(&homes) {
            self.write_home(home, carry.init);
        }
        self.make_all();
        for (carry, &home) in f.carries.iter().zip(&homes) {
            self.set(carry.inner, home);
            self.set(carry.result, home);
        }

        let counter = self.affine(&f.trip, true);
        let exit = self.f.block(self.in_loop);
        if self.min_value(&f.trip) < 1 {
            let before = self.f.block(self.in_loop);
            self.emit(Inst::code(Code::Test_rm64_r64).read(counter, Width::R64).read(counter, Width::R64));
            self.emit(Inst::code(Code::Je_rel32_64).block(exit));
            self.go_to(&[before, exit]);
            self.start(before);
        }
        let keys = self.addresses.at(f.var).to_vec();
        let mut steps = Vec::new();
        for key in keys {
            let Some(SplitKey { parent, coefficient, .. }) = key.split() else { continue };
            let pointer = self.gpr();
            match self.pointer(&parent) {
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
        self.innermost = !f.body.iter().any(|stmt| matches!(stmt, Stmt::For(_)));
        self.block(&f.body)?;
        self.innermost = false;
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
        self.deferred.clear();
        self.in_loop = parent;
        self.start(exit);
        Ok(())
    }

    /// Selects a loop that runs exactly once as its body.
    fn select_single_loop(&mut self, f: &For) -> Result<(), X64Error> {
        for carry in &f.carries {
            let init = self.reg(carry.init);
            self.set(carry.inner, init);
        }
        for key in self.addresses.at(f.var).to_vec() {
            let Some(SplitKey { parent, .. }) = key.split() else { continue };
            let register = match self.pointer(&parent) {
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

    /// Selects a loop that runs at most once as its body after a test.
    fn at_most_once(&mut self, f: &For) -> Result<(), X64Error> {
        self.make_all();
        let trip = self.affine(&f.trip, false);
        let (body, exit) = (self.f.block(self.in_loop), self.f.block(self.in_loop));
        self.emit(Inst::code(Code::Test_rm64_r64).read(trip, Width::R64).read(trip, Width::R64));
        self.emit(Inst::code(Code::Je_rel32_64).block(exit));
        self.go_to(&[body, exit]);
        self.start(body);
        // Copies the pointers, so that the original registers can be spilled during the body.
        for key in self.addresses.at(f.var).to_vec() {
            let Some(SplitKey { parent, .. }) = key.split() else { continue };
            let register = match self.pointer(&parent) {
                Some(v) => {
                    let copy = self.gpr();
                    self.emit(Inst::new(Opcode::Copy).def(copy, Width::R64).read(v, Width::R64));
                    copy
                }
                None => self.integer(0),
            };
            self.addresses.set(key, register);
        }
        self.block(&f.body)?;
        self.pending.clear();
        self.deferred.clear();
        self.go_to(&[exit]);
        self.start(exit);
        Ok(())
    }

    /// Writes the registers of all carried values at once. A next value that is in another carried
    /// value's register is saved before any of them is written.
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

    /// Returns the smallest value of an expression over dims. Computed in 128 bits, because the
    /// verifier's proof covers only the dims for which it is evaluated.
    fn min_value(&self, value: &Affine) -> i128 {
        value.terms.iter().fold(value.constant.into(), |sum, &(atom, coefficient)| {
            let bound = match atom {
                Atom::Dim(d) if coefficient > 0 => self.kernel.dims[d.index()].lo,
                Atom::Dim(d) => self.kernel.dims[d.index()].hi,
                // A trip count has no variables.
                Atom::Var(_) => i64::MAX,
            };
            sum + i128::from(bound) * i128::from(coefficient)
        })
    }

    /// Returns the largest value of an expression over dims.
    fn max_value(&self, value: &Affine) -> i128 {
        -self.min_value(&(value.clone() * -1))
    }
}

fn count(body: &[Stmt]) -> u32 {
    body.iter().map(|stmt| 1 + if let Stmt::For(f) = stmt { count(&f.body) } else { 0 }).sum()
}
