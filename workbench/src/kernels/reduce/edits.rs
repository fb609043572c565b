//! Edits of a kernel: removal of statements, loops, carried values, buffers and dims.

use std::collections::{HashMap, HashSet};

use ixc_ir::kernel::op::Memory;
use ixc_ir::kernel::{
    Address, Affine, Atom, BufferId, BufferKind, Carry, DimId, For, Imm, Inst, Kernel, Op, Stmt, Type, ValueId, VarId,
};

use super::Counts;

/// Visits statements in textual order, a loop before its body.
pub(super) fn visit(body: &mut [Stmt], each: &mut dyn FnMut(&mut Stmt)) {
    for statement in body {
        each(statement);
        if let Stmt::For(inner) = statement {
            visit(&mut inner.body, each);
        }
    }
}

/// Edits the loop with this number.
pub(super) fn edit_loop(kernel: &Kernel, number: usize, edit: fn(&mut For)) -> Kernel {
    let (mut kernel, mut at) = (kernel.clone(), 0);
    visit(&mut kernel.body, &mut |statement| {
        if let Stmt::For(inner) = statement {
            if at == number {
                edit(inner);
            }
            at += 1;
        }
    });
    kernel
}

/// Replacement for a removed statement's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replacement {
    /// The statement's first operand of the same type. Without one, the last earlier value of that
    /// type, or else zeros.
    Like,
    /// The statement's last operand of the same type, or else zeros.
    Last,
    /// Zeros in place of the operand.
    Zero,
}

/// A kernel from which some statements are removed.
struct Removal<'k> {
    kernel: &'k Kernel,
    is_removed: &'k dyn Fn(usize) -> bool,
    replacement: Replacement,
    next: usize,
    replacements: HashMap<ValueId, ValueId>,
    /// Variables of removed loops; each is replaced by 0.
    gone: HashSet<VarId>,
    /// Values that may be used at this point.
    visible: Vec<ValueId>,
}

/// Returns the kernel without the chosen statements, and without those that become unused.
pub(super) fn remove_statements(
    kernel: &Kernel,
    is_removed: &dyn Fn(usize) -> bool,
    replacement: Replacement,
) -> Kernel {
    let (replacements, gone, visible) = Default::default();
    let mut removal = Removal { kernel, is_removed, replacement, next: 0, replacements, gone, visible };
    let body = removal.block(&kernel.body);
    let mut kernel = Kernel { body, ..kernel.clone() };
    while remove_unused(&mut kernel) {}
    kernel
}

impl Removal<'_> {
    fn value(&self, value: ValueId) -> ValueId {
        self.replacements.get(&value).copied().unwrap_or(value)
    }

    fn affine(&self, affine: &Affine) -> Affine {
        let mut affine = affine.clone();
        affine.terms.retain(|(atom, _)| !matches!(atom, Atom::Var(var) if self.gone.contains(var)));
        affine
    }

    fn address(&self, address: &Address) -> Address {
        Address { buffer: address.buffer, offset: self.affine(&address.offset) }
    }

    fn block(&mut self, body: &[Stmt]) -> Vec<Stmt> {
        let seen = self.visible.len();
        let mut out = Vec::new();
        for statement in body {
            let is_chosen = (self.is_removed)(self.next);
            self.next += 1;
            match statement {
                Stmt::Inst(inst) => {
                    let operands: Vec<ValueId> = inst.operands.iter().map(|value| self.value(*value)).collect();
                    match (is_chosen, inst.result) {
                        (false, _) => {
                            let address = inst.address.as_ref().map(|address| self.address(address));
                            let index = inst.index.as_ref().map(|affine| self.affine(affine));
                            out.push(Stmt::Inst(Inst { operands, address, index, ..inst.clone() }));
                            self.visible.extend(inst.result);
                        }
                        (true, None) => {}
                        (true, Some(result)) => {
                            let ty = self.kernel.ty(result);
                            let alike = |value: &&ValueId| self.kernel.ty(**value) == ty;
                            let replacement = match self.replacement {
                                Replacement::Like => {
                                    operands.iter().find(alike).or(self.visible.iter().rev().find(alike))
                                }
                                Replacement::Last => operands.iter().rev().find(alike),
                                Replacement::Zero => None,
                            };
                            match replacement.copied() {
                                Some(replacement) => {
                                    self.replacements.insert(result, replacement);
                                }
                                None => {
                                    out.push(Stmt::Inst(zeros(result, ty)));
                                    self.visible.push(result);
                                }
                            }
                        }
                    }
                }
                Stmt::LoadIndex { var, .. } if is_chosen => {
                    self.gone.insert(*var);
                }
                Stmt::LoadIndex { var, address } => {
                    out.push(Stmt::LoadIndex { var: *var, address: self.address(address) });
                }
                Stmt::For(inner) if is_chosen => {
                    self.next += Counts::from_kernel(&Kernel { body: inner.body.clone(), ..empty() }).statements;
                    for carry in &inner.carries {
                        let init = self.value(carry.init);
                        self.replacements.insert(carry.result, init);
                    }
                }
                Stmt::For(inner) => {
                    let inits: Vec<ValueId> = inner.carries.iter().map(|carry| self.value(carry.init)).collect();
                    let before = self.visible.len();
                    self.visible.extend(inner.carries.iter().map(|carry| carry.inner));
                    let body = self.block(&inner.body);
                    let carries = inner.carries.iter().zip(inits);
                    let carries =
                        carries.map(|(carry, init)| Carry { init, next: self.value(carry.next), ..carry.clone() });
                    let carries = carries.collect();
                    self.visible.truncate(before);
                    self.visible.extend(inner.carries.iter().map(|carry| carry.result));
                    out.push(Stmt::For(For { var: inner.var, trip: inner.trip.clone(), carries, body }));
                }
            }
        }
        self.visible.truncate(seen);
        out
    }
}

fn empty() -> Kernel {
    let (dims, buffers, values, vars, body) = Default::default();
    Kernel { name: String::new(), dims, buffers, values, vars, body }
}

fn zeros(result: ValueId, ty: Type) -> Inst {
    let (op, imm) = match ty.is_tile() {
        true => (Op::TileZero, Imm::None),
        false => (Op::Bytes, Imm::Bytes(vec![0; ty.bytes() as usize])),
    };
    Inst { op, ty, operands: Vec::new(), imm, address: None, index: None, result: Some(result) }
}

/// Removes statements whose results are unused. Returns whether there were any.
fn remove_unused(kernel: &mut Kernel) -> bool {
    fn collect_uses(body: &[Stmt], values: &mut HashSet<ValueId>, vars: &mut HashSet<VarId>) {
        let mut affine = |affine: &Affine| {
            vars.extend(affine.terms.iter().filter_map(|(atom, _)| match atom {
                Atom::Var(var) => Some(*var),
                Atom::Dim(_) => None,
            }));
        };
        let mut nested = Vec::new();
        for statement in body {
            match statement {
                Stmt::Inst(inst) => {
                    values.extend(&inst.operands);
                    inst.address.iter().for_each(|address| affine(&address.offset));
                    inst.index.iter().for_each(&mut affine);
                }
                Stmt::LoadIndex { address, .. } => affine(&address.offset),
                Stmt::For(inner) => {
                    values.extend(inner.carries.iter().flat_map(|carry| [carry.init, carry.next]));
                    nested.push(&inner.body);
                }
            }
        }
        nested.into_iter().for_each(|body| collect_uses(body, values, vars));
    }
    fn sweep(body: &mut Vec<Stmt>, values: &HashSet<ValueId>, vars: &HashSet<VarId>) -> bool {
        let before = body.len();
        let mut changed = false;
        body.retain_mut(|statement| match statement {
            Stmt::Inst(inst) => {
                inst.op.row().memory == Memory::Hint || inst.result.is_none_or(|result| values.contains(&result))
            }
            Stmt::LoadIndex { var, .. } => vars.contains(var),
            Stmt::For(inner) => {
                changed |= sweep(&mut inner.body, values, vars);
                !inner.body.is_empty() || inner.carries.iter().any(|carry| values.contains(&carry.result))
            }
        });
        changed || body.len() < before
    }
    let (mut values, mut vars) = (HashSet::new(), HashSet::new());
    collect_uses(&kernel.body, &mut values, &mut vars);
    sweep(&mut kernel.body, &values, &vars)
}

/// Replaces a loop by its body in the first iteration.
pub(super) fn loop_to_body(kernel: &Kernel, number: usize) -> Option<Kernel> {
    fn block(removal: &mut Removal<'_>, body: &[Stmt], number: usize, at: &mut usize, found: &mut bool) -> Vec<Stmt> {
        let mut out = Vec::new();
        for statement in body {
            let Stmt::For(inner) = statement else {
                // Substitute values whose definitions were removed.
                out.extend(removal.block(std::slice::from_ref(statement)));
                continue;
            };
            let own = *at;
            *at += 1;
            if own == number {
                *found = true;
                removal.gone.insert(inner.var);
                for carry in &inner.carries {
                    let init = removal.value(carry.init);
                    removal.replacements.insert(carry.inner, init);
                }
                out.extend(block(removal, &inner.body, number, at, found));
                for carry in &inner.carries {
                    let next = removal.value(carry.next);
                    removal.replacements.insert(carry.result, next);
                }
                continue;
            }
            let inits: Vec<ValueId> = inner.carries.iter().map(|carry| removal.value(carry.init)).collect();
            let body = block(removal, &inner.body, number, at, found);
            let carries = inner.carries.iter().zip(inits);
            let carries = carries.map(|(carry, init)| Carry { init, next: removal.value(carry.next), ..carry.clone() });
            let carries = carries.collect();
            let trip = removal.affine(&inner.trip);
            out.push(Stmt::For(For { var: inner.var, trip, carries, body }));
        }
        out
    }
    let (replacements, gone, visible) = Default::default();
    let none = |_| false;
    let mut removal =
        Removal { kernel, is_removed: &none, replacement: Replacement::Zero, next: 0, replacements, gone, visible };
    let (mut at, mut found) = (0, false);
    let body = block(&mut removal, &kernel.body, number, &mut at, &mut found);
    found.then(|| Kernel { body, ..kernel.clone() })
}

/// Removes a carried value from a loop: in every iteration it has its initial value.
pub(super) fn without_carry(kernel: &Kernel, number: usize, carry: usize) -> Option<Kernel> {
    let mut replacements: Vec<(ValueId, ValueId)> = Vec::new();
    let (mut kernel, mut at) = (kernel.clone(), 0);
    visit(&mut kernel.body, &mut |statement| {
        if let Stmt::For(inner) = statement {
            if at == number && carry < inner.carries.len() {
                let Carry { inner, init, result, .. } = inner.carries.remove(carry);
                replacements = vec![(inner, init), (result, init)];
            }
            at += 1;
        }
    });
    let renamed = |value: &mut ValueId| {
        if let Some((_, replacement)) = replacements.iter().find(|(from, _)| from == value) {
            *value = *replacement;
        }
    };
    visit(&mut kernel.body, &mut |statement| match statement {
        Stmt::Inst(inst) => inst.operands.iter_mut().for_each(renamed),
        Stmt::LoadIndex { .. } => {}
        Stmt::For(inner) => inner.carries.iter_mut().for_each(|carry| {
            renamed(&mut carry.init);
            renamed(&mut carry.next);
        }),
    });
    if replacements.is_empty() {
        return None;
    }
    while remove_unused(&mut kernel) {}
    Some(kernel)
}

/// Removes a buffer; `None` if it is used.
pub(super) fn without_buffer(kernel: &Kernel, number: usize) -> Option<Kernel> {
    let mut kernel = kernel.clone();
    let mut is_used = false;
    visit(&mut kernel.body, &mut |statement| match statement {
        Stmt::Inst(Inst { address: Some(address), .. }) | Stmt::LoadIndex { address, .. } => {
            let BufferId(own) = &mut address.buffer;
            is_used |= *own as usize == number;
            *own -= u32::from(*own as usize > number);
        }
        Stmt::Inst(_) | Stmt::For(_) => {}
    });
    kernel.buffers.remove(number);
    (!is_used).then_some(kernel)
}

/// Removes a dim; `None` if it is used.
pub(super) fn without_dim(kernel: &Kernel, number: usize) -> Option<Kernel> {
    let mut kernel = kernel.clone();
    let mut is_used = false;
    let mut affine = |affine: &mut Affine| {
        for (atom, _) in &mut affine.terms {
            if let Atom::Dim(DimId(own)) = atom {
                is_used |= *own as usize == number;
                *own -= u32::from(*own as usize > number);
            }
        }
    };
    for buffer in &mut kernel.buffers {
        affine(&mut buffer.size);
        if let BufferKind::Index { below } = &mut buffer.kind {
            affine(below);
        }
    }
    visit(&mut kernel.body, &mut |statement| match statement {
        Stmt::Inst(inst) => {
            inst.address.iter_mut().for_each(|address| affine(&mut address.offset));
            inst.index.iter_mut().for_each(&mut affine);
        }
        Stmt::LoadIndex { address, .. } => affine(&mut address.offset),
        Stmt::For(inner) => affine(&mut inner.trip),
    });
    kernel.dims.remove(number);
    (!is_used).then_some(kernel)
}
