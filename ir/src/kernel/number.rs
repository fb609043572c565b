//! Canonical numbering: values and variables are numbered in the order of their definitions in the
//! text. Values without a definition are dropped. A loop defines its variable and the inner carried
//! values first, then the values of its body, then its results.
//!
//! [`super::KernelBuilder`] assigns canonical numbers. Passes that insert and delete statements
//! leave gaps. `parse(print(k)) == canonical(k)` for every kernel that passes the verifier.
//!
//! ```text
//! %3 = iota i32x8        becomes     %0 = iota i32x8
//! %1 = iabs i32x8 %3                 %1 = iabs i32x8 %0
//! ```

use super::*;

/// Returns the kernel in canonical numbering. The verifier must accept the kernel.
pub fn canonical(kernel: &Kernel) -> Kernel {
    let mut numbering = Numbering {
        values: vec![ValueId(u32::MAX); kernel.values.len()],
        vars: vec![VarId(u32::MAX); kernel.vars.len()],
        kernel,
        out: Kernel {
            name: kernel.name.clone(),
            dims: kernel.dims.clone(),
            buffers: kernel.buffers.clone(),
            values: Vec::with_capacity(kernel.values.len()),
            vars: Vec::with_capacity(kernel.vars.len()),
            body: Vec::new(),
        },
    };
    let body = numbering.block(&kernel.body);
    Kernel { body, ..numbering.out }
}

struct Numbering<'a> {
    kernel: &'a Kernel,
    values: Vec<ValueId>,
    vars: Vec<VarId>,
    out: Kernel,
}

impl Numbering<'_> {
    fn block(&mut self, statements: &[Stmt]) -> Vec<Stmt> {
        statements.iter().map(|statement| self.statement(statement)).collect()
    }

    fn statement(&mut self, statement: &Stmt) -> Stmt {
        match statement {
            Stmt::Inst(inst) => Stmt::Inst(Inst {
                op: inst.op,
                ty: inst.ty,
                operands: inst.operands.iter().map(|value| self.values[value.index()]).collect(),
                imm: inst.imm.clone(),
                address: inst.address.as_ref().map(|address| self.address(address)),
                index: inst.index.as_ref().map(|affine| self.affine(affine)),
                result: inst.result.map(|value| self.define(value)),
            }),
            Stmt::LoadIndex { var, address } => {
                let address = self.address(address);
                Stmt::LoadIndex { var: self.define_var(*var), address }
            }
            Stmt::For(f) => {
                let var = self.define_var(f.var);
                let inner: Vec<ValueId> = f.carries.iter().map(|carry| self.define(carry.inner)).collect();
                let body = self.block(&f.body);
                let carries = f.carries.iter().zip(inner);
                let carries = carries
                    .map(|(carry, inner)| Carry {
                        inner,
                        init: self.values[carry.init.index()],
                        next: self.values[carry.next.index()],
                        result: self.define(carry.result),
                    })
                    .collect();
                Stmt::For(For { var, trip: self.affine(&f.trip), carries, body })
            }
        }
    }

    fn address(&self, address: &Address) -> Address {
        Address { buffer: address.buffer, offset: self.affine(&address.offset) }
    }

    fn affine(&self, affine: &Affine) -> Affine {
        let mut affine = affine.clone();
        for (atom, _) in &mut affine.terms {
            if let Atom::Var(var) = atom {
                *var = self.vars[var.index()];
            }
        }
        affine.terms.sort_by_key(|(atom, _)| *atom);
        affine
    }

    fn define(&mut self, value: ValueId) -> ValueId {
        let number = ValueId(self.out.values.len() as u32);
        self.out.values.push(self.kernel.ty(value));
        self.values[value.index()] = number;
        number
    }

    fn define_var(&mut self, var: VarId) -> VarId {
        let number = VarId(self.out.vars.len() as u32);
        self.out.vars.push(self.kernel.vars[var.index()].clone());
        self.vars[var.index()] = number;
        number
    }
}
