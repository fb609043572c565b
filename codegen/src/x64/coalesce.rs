//! Coalescing: two registers joined by a copy become one if they are never live at the same time.
//!
//! Copies in deep loops come first. Then a fused multiply-add or ternary instruction is joined with
//! a source that dies at it: the addend or, if that does not die, a factor. The destructive form of
//! the instruction then needs no move. For example, a chain of accumulations over a carried value
//! becomes one register: the carried value's live range has holes where the intermediate values
//! live.

use super::liveness::{Range, live_out, ranges};
use super::machine::{Class, Function, Operand, Role, Vreg};

/// Joins registers where possible, and removes copies that become redundant.
pub fn coalesce(f: &mut Function) {
    let live = live_out(f);
    let mut classes = Classes { parent: (0..f.vregs.len() as u32).collect(), ranges: ranges(f, &live) };
    let mut copies = Vec::new();
    let mut sums = Vec::new();
    for block in f.layout.iter().map(|b| &f.blocks[b.index()]) {
        for inst in &block.insts {
            if let Some((to, from)) = inst.as_copy() {
                copies.push((block.depth, to, from));
            }
            if let Some((to, sources)) = inst.as_overwriting() {
                sums.push((block.depth, to, sources));
            }
        }
    }
    // The sort is stable: copies at the same loop depth stay in code order.
    copies.sort_by_key(|&(depth, ..)| std::cmp::Reverse(depth));
    sums.sort_by_key(|&(depth, ..)| std::cmp::Reverse(depth));
    for (_, to, from) in copies {
        classes.join(to, from, &mut f.vregs);
    }
    for (_, to, sources) in sums {
        for source in sources {
            if let Operand::Reg(from, _, Role::Use) = source
                && classes.join(to, from, &mut f.vregs)
            {
                break;
            }
        }
    }
    for block in &mut f.blocks {
        for inst in &mut block.insts {
            inst.rename(|v, _| classes.representative(v));
        }
        block.insts.retain(|inst| inst.as_copy().is_none_or(|(to, from)| to != from));
    }
    if let Some(arguments) = &mut f.arguments {
        *arguments = arguments.map(|v| classes.representative(v));
    }
}

struct Classes {
    parent: Vec<u32>,
    ranges: Vec<Range>,
}

impl Classes {
    fn representative(&mut self, v: Vreg) -> Vreg {
        let mut v = v.index();
        while self.parent[v] as usize != v {
            self.parent[v] = self.parent[self.parent[v] as usize];
            v = self.parent[v] as usize;
        }
        Vreg(v as u32)
    }

    fn join(&mut self, a: Vreg, b: Vreg, classes: &mut [Class]) -> bool {
        let (a, b) = (self.representative(a), self.representative(b));
        if a == b {
            return true;
        }
        if !classes[a.index()].same_file(classes[b.index()])
            || self.ranges[a.index()].intersects(&self.ranges[b.index()])
        {
            return false;
        }
        self.parent[b.index()] = a.0;
        let joined = std::mem::take(&mut self.ranges[b.index()]);
        self.ranges[a.index()].merge(&joined);
        if let (Class::Vector { bytes: x }, Class::Vector { bytes: y }) = (classes[a.index()], classes[b.index()]) {
            classes[a.index()] = Class::Vector { bytes: x.max(y) };
        }
        true
    }
}
