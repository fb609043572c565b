//! Liveness: the registers that are live out of each block, and each register's live range as
//! segments with holes.
//!
//! Instruction number `i`, counted in layout order, reads at position `2i` and writes at `2i + 1`.
//! Segments are half-open. A register that instruction `i` reads last ends at `2i + 1`, where a
//! register that `i` defines starts. These registers may therefore share a physical register.
//!
//! A hole is a gap in which the value is dead. For example, a carried value is dead between its
//! last read in a loop's body and its next definition. A chain of accumulations keeps its
//! intermediate values in such a hole.

use super::machine::{Function, Role, Vreg};

/// A set of virtual registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set(Vec<u64>);

impl Set {
    /// An empty set that can hold `n` registers.
    pub fn new(n: usize) -> Set {
        Set(vec![0; n.div_ceil(64)])
    }

    /// Adds a register.
    pub fn insert(&mut self, v: Vreg) {
        self.0[v.index() / 64] |= 1 << (v.index() % 64);
    }

    /// Removes a register.
    pub fn remove(&mut self, v: Vreg) {
        self.0[v.index() / 64] &= !(1 << (v.index() % 64));
    }

    /// Whether the set contains a register.
    pub fn contains(&self, v: Vreg) -> bool {
        self.0[v.index() / 64] >> (v.index() % 64) & 1 == 1
    }

    fn union(&mut self, other: &Set) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    /// Returns the registers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Vreg> + '_ {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            // Each step clears the lowest set bit.
            let rests = std::iter::successors(Some(bits), |rest| Some(rest & rest.wrapping_sub(1)));
            rests.take_while(|rest| *rest != 0).map(move |rest| Vreg(word as u32 * 64 + rest.trailing_zeros()))
        })
    }
}

/// Computes the registers that are live out of each block, by block number.
pub fn live_out(f: &Function) -> Vec<Set> {
    let n = f.vregs.len();
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for block in &f.blocks {
        let (mut read, mut written) = (Set::new(n), Set::new(n));
        for inst in &block.insts {
            inst.for_each(|v, role| {
                if role != Role::Def && !written.contains(v) {
                    read.insert(v);
                }
            });
            inst.for_each(|v, role| {
                if role != Role::Use {
                    written.insert(v);
                }
            });
        }
        reads.push(read);
        writes.push(written);
    }
    let mut out = vec![Set::new(n); f.blocks.len()];
    let mut into = reads.clone();
    let mut changed = true;
    while changed {
        changed = false;
        for block in f.layout.iter().rev().map(|b| b.index()) {
            let mut live = Set::new(n);
            for successor in &f.blocks[block].successors {
                live.union(&into[successor.index()]);
            }
            if live == out[block] {
                continue;
            }
            changed = true;
            out[block] = live.clone();
            for (word, (read, written)) in live.0.iter_mut().zip(reads[block].0.iter().zip(&writes[block].0)) {
                *word = *word & !written | read;
            }
            into[block] = live;
        }
    }
    out
}

/// A live range: disjoint half-open segments, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range(pub Vec<(u32, u32)>);

impl Range {
    /// Whether two ranges are live at the same time.
    pub fn intersects(&self, other: &Range) -> bool {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            if x.0 < y.1 && y.0 < x.1 {
                return true;
            }
            if x.1 <= y.1 {
                a.next();
            } else {
                b.next();
            }
        }
        false
    }

    /// Adds the segments of a range that does not intersect this one.
    pub fn merge(&mut self, other: &Range) {
        self.0.extend_from_slice(&other.0);
        self.0.sort_unstable();
        self.join();
    }

    /// Returns the number of covered positions.
    pub fn length(&self) -> u32 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    fn join(&mut self) {
        self.0.dedup_by(|next, kept| {
            let touches = kept.1 >= next.0;
            if touches {
                kept.1 = kept.1.max(next.1);
            }
            touches
        });
    }
}

/// Computes the live ranges of all virtual registers.
pub fn ranges(f: &Function, live_out: &[Set]) -> Vec<Range> {
    let mut ranges = vec![Range::default(); f.vregs.len()];
    // End of the segment that is open during the backward walk; 0 if none is.
    let mut open = vec![0_u32; f.vregs.len()];
    let mut end = f.layout.iter().map(|b| f.blocks[b.index()].insts.len() as u32).sum::<u32>();
    for block in f.layout.iter().rev() {
        let insts = &f.blocks[block.index()].insts;
        let start = end - insts.len() as u32;
        let mut touched: Vec<Vreg> = live_out[block.index()].iter().collect();
        for &v in &touched {
            open[v.index()] = 2 * end;
        }
        for (i, inst) in (start..end).zip(insts).rev() {
            inst.for_each(|v, role| {
                let at = &mut open[v.index()];
                match role {
                    Role::Def => {
                        let until = if *at == 0 { 2 * i + 2 } else { *at };
                        ranges[v.index()].0.push((2 * i + 1, until));
                        *at = 0;
                    }
                    Role::Update => {
                        if *at == 0 {
                            *at = 2 * i + 2;
                            touched.push(v);
                        }
                    }
                    Role::Use => {}
                }
            });
            inst.for_each(|v, role| {
                if role == Role::Use && open[v.index()] == 0 {
                    open[v.index()] = 2 * i + 1;
                    touched.push(v);
                }
            });
        }
        for v in touched {
            let until = std::mem::take(&mut open[v.index()]);
            if until != 0 {
                ranges[v.index()].0.push((2 * start, until));
            }
        }
        end = start;
    }
    for range in &mut ranges {
        range.0.reverse();
        range.join();
    }
    ranges
}

/// Removes instructions without effects whose results are never read.
pub fn remove_dead(f: &mut Function) {
    let mut reads = vec![0_u32; f.vregs.len()];
    for inst in f.blocks.iter().flat_map(|b| &b.insts) {
        inst.for_each(|v, role| reads[v.index()] += u32::from(role != Role::Def));
    }
    let layout = f.layout.clone();
    loop {
        let mut removed = false;
        for block in layout.iter().rev() {
            let insts = &mut f.blocks[block.index()].insts;
            let mut dead = Vec::new();
            for (i, inst) in insts.iter().enumerate().rev() {
                let mut needed = inst.has_effect();
                inst.for_each(|v, role| needed |= role == Role::Def && reads[v.index()] > 0);
                if !needed {
                    inst.for_each(|v, role| reads[v.index()] -= u32::from(role != Role::Def));
                    dead.push(i);
                }
            }
            if !dead.is_empty() {
                removed = true;
                let mut i = 0;
                insts.retain(|_| {
                    let is_dead = dead.last() == Some(&i);
                    if is_dead {
                        dead.pop();
                    }
                    i += 1;
                    !is_dead
                });
            }
        }
        if !removed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_only_touch_do_not_intersect() {
        let a = Range(vec![(1, 5), (9, 12)]);
        assert!(!a.intersects(&Range(vec![(5, 9), (12, 13)])));
        assert!(a.intersects(&Range(vec![(6, 10)])));
        let mut b = a.clone();
        b.merge(&Range(vec![(5, 9)]));
        assert_eq!(b.0, [(1, 12)]);
        assert_eq!(b.length(), 11);
    }
}
