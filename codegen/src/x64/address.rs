//! Strength-reduced addresses: the pointers that a kernel needs, and the place at which each
//! pointer is computed.
//!
//! A *key* is a buffer and the varying terms of an address; terms that are defined further outside
//! come first. Addresses that differ only in their constant share a key and differ in displacement.
//! A key's register is computed from the register of its *parent*, the key without the innermost
//! term. The kind of that term decides where:
//!
//! - a loop variable: copied from the parent before the loop; `coefficient` is added at each back
//!   edge;
//! - an index value: `parent + coefficient * value` right after the value is loaded;
//! - only dims, or no term: at the entry of the kernel.
//!
//! For example, `%w[4096*%m + 64*%k + 32]` in loops over `%m` and `%k` is `[p + 32]`. The loop over
//! `%k` advances `p` by 64. At the start of that loop, `p` is a copy of the pointer that the loop
//! over `%m` advances by 4096. Index values and trip counts are keys without a buffer.

use std::collections::HashMap;

use ixc_ir::kernel::{Affine, Atom, BufferId, Kernel, Stmt, VarId};

use super::machine::Vreg;

/// Maximum terms of all keys together, a thousand times the number in generated kernels. Collection
/// stops at this limit.
pub const MAX_TERMS: usize = 1 << 20;

/// A register's varying value: a pointer into a buffer, or (without one) an integer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The buffer whose address is added.
    pub buffer: Option<BufferId>,
    /// Terms of the address; terms that are defined further outside come first.
    pub terms: Vec<(Atom, i64)>,
}

/// A key, split into its parent and its innermost term.
pub struct SplitKey {
    /// The key without its innermost term.
    pub parent: Key,
    /// Variable or dim of the innermost term.
    pub atom: Atom,
    /// Factor of the innermost term.
    pub coefficient: i64,
}

impl Key {
    /// Returns the key without its innermost term, and that term.
    pub fn split(&self) -> Option<SplitKey> {
        let mut parent = self.clone();
        let (atom, coefficient) = parent.terms.pop()?;
        Some(SplitKey { parent, atom, coefficient })
    }
}

/// All keys of a kernel, by the place at which they are computed.
#[derive(Default)]
pub struct Addresses {
    order: HashMap<VarId, usize>,
    entry: Vec<Key>,
    at: HashMap<VarId, Vec<Key>>,
    registers: HashMap<Key, Option<Vreg>>,
    /// Number of terms of all keys together.
    pub terms: usize,
}

impl Addresses {
    /// Collects the keys of all addresses, trip counts and index values.
    pub fn collect(kernel: &Kernel) -> Addresses {
        let mut addresses = Addresses::default();
        addresses.visit(&kernel.body);
        addresses
    }

    fn visit(&mut self, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::Inst(inst) => {
                    if let Some(address) = &inst.address {
                        self.need(self.key(Some(address.buffer), &address.offset));
                    }
                    if let Some(index) = &inst.index {
                        self.need(self.key(None, index));
                    }
                }
                Stmt::For(f) => {
                    self.need(self.key(None, &f.trip));
                    self.define(f.var);
                    self.visit(&f.body);
                }
                Stmt::LoadIndex { var, address } => {
                    self.need(self.key(Some(address.buffer), &address.offset));
                    self.define(*var);
                }
            }
        }
    }

    fn define(&mut self, var: VarId) {
        let next = self.order.len();
        self.order.insert(var, next);
    }

    /// Returns the key of an affine value in a buffer.
    pub fn key(&self, buffer: Option<BufferId>, offset: &Affine) -> Key {
        let mut terms = offset.terms.clone();
        // A variable that is defined later is defined further inside. Dims are outermost.
        terms.sort_by_key(|(atom, _)| match atom {
            Atom::Dim(_) => 0,
            Atom::Var(v) => 1 + self.order.get(v).copied().unwrap_or(usize::MAX - 1),
        });
        Key { buffer, terms }
    }

    fn need(&mut self, key: Key) {
        if self.terms > MAX_TERMS || self.registers.contains_key(&key) || (key.buffer.is_none() && key.terms.is_empty())
        {
            return;
        }
        self.terms += key.terms.len();
        self.registers.insert(key.clone(), None);
        match key.split() {
            Some(SplitKey { parent, atom: Atom::Var(var), .. }) => {
                self.need(parent);
                self.at.entry(var).or_default().push(key);
            }
            Some(SplitKey { atom: Atom::Dim(_), .. }) | None => {
                if key.buffer.is_some() && !key.terms.is_empty() {
                    self.need(Key { buffer: key.buffer, terms: Vec::new() });
                }
                self.entry.push(key);
            }
        }
    }

    /// Returns the keys that are computed at the kernel's entry. The plain address of a buffer
    /// precedes the keys that are computed from it.
    pub fn at_entry(&self) -> &[Key] {
        &self.entry
    }

    /// Returns the keys that are computed where this variable is defined.
    pub fn at(&self, var: VarId) -> &[Key] {
        self.at.get(&var).map_or(&[], Vec::as_slice)
    }

    /// Returns the register of a key; `None` for the number 0.
    pub fn register(&self, key: &Key) -> Option<Vreg> {
        self.registers.get(key).copied().flatten()
    }

    /// Sets the register of a key.
    pub fn set(&mut self, key: Key, register: Vreg) {
        self.registers.insert(key, Some(register));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_ir::kernel::{KernelBuilder, Type};

    #[test]
    fn accesses_that_differ_in_their_constant_share_a_pointer() {
        let mut b = KernelBuilder::new("k");
        let n = b.dim("n", 1, 64);
        let x = b.read("x", n * 128);
        let y = b.write("y", n * 128);
        b.for_each("i", n, |b, i| {
            b.for_each("j", 2, |b, j| {
                let a = b.load(Type::f32(8), x, i * 128 + j * 64);
                let c = b.load(Type::f32(8), x, i * 128 + j * 64 + 32);
                let sum = b.add(a, c);
                b.store(y, i * 32, sum);
            });
        });
        let kernel = b.finish();
        let addresses = Addresses::collect(&kernel);
        assert_eq!(addresses.at(VarId(1)).len(), 1, "one pointer into x");
        assert_eq!(addresses.at(VarId(0)).len(), 2, "the start of a row of x, and y");
        assert_eq!(addresses.at_entry().len(), 3, "x, y and the trip count");
    }
}
