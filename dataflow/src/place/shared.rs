//! Many instances on a PE. Each program gets PEs that have room, with as few instances on each as
//! possible. If the grid is too small even so, programs run in waves.
//!
//! Programs are placed in order. Each begins at the PE where the previous one ended, and takes PEs
//! row by row. If a program has more instances than there are PEs, neighbouring instances share a
//! PE.
//!
//! ```text
//! 64 columns on a grid of 4 x 4:   4 neighbours on each PE
//! ```
//!
//! A wave ends before the first program for which it has no room. Later waves read its results.

use std::collections::HashSet;

use crate::descriptor::{Descriptor, Lattice};
use ixc_ir::names::Label;
use ixc_passes::decision::{Decision, Decisions};

use super::PlaceError;
use super::blocks::{Block, Needs, Place};

/// Max waves.
const MAX_WAVES: u32 = 4096;

/// Free memory of each PE.
struct Free {
    width: u32,
    height: u32,
    bytes: Vec<u64>,
    kernels: HashSet<(usize, u32)>,
    /// PE at which the next program begins.
    cursor: usize,
}

/// Places all blocks; returns the number of waves.
pub(super) fn place(
    descriptor: &mut Descriptor,
    blocks: &[Block],
    waves: bool,
    decisions: Option<&Decisions>,
) -> Result<u32, PlaceError> {
    let units = units(blocks);
    let fresh = |descriptor: &Descriptor| Free {
        width: descriptor.grid.width,
        height: descriptor.grid.height,
        bytes: vec![descriptor.grid.usable_bytes(); descriptor.grid.pes() as usize],
        kernels: HashSet::new(),
        cursor: 0,
    };
    let mut free = fresh(descriptor);
    let (mut wave, mut first_of_wave) = (0, true);
    for unit in &units {
        let needs = unit.needs(descriptor, 0);
        let mut place = free.place(descriptor, unit, &needs);
        if place.is_none() && waves && !first_of_wave && wave + 1 < MAX_WAVES {
            wave += 1;
            free = fresh(descriptor);
            place = free.place(descriptor, unit, &needs);
        }
        let Some(place) = place else {
            let program = unit.programs().next().and_then(|program| descriptor.programs.get(program as usize));
            let task = program.map_or(String::new(), |program| program.label.clone());
            let left = free.bytes.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
            let wanted = needs.lane.saturating_mul(unit.lanes());
            let problem = format!("it needs {wanted} bytes; {left} bytes are free on all PEs together");
            return Err(PlaceError::Room { task, grid: descriptor.grid.name.clone(), problem });
        };
        decisions.into_iter().for_each(|decisions| record_lanes(decisions, descriptor, unit, &place));
        unit.put(descriptor, 0, &place, wave);
        first_of_wave = false;
    }
    Ok(wave + 1)
}

/// Records how many lanes of a unit share a PE.
fn record_lanes(decisions: &Decisions, descriptor: &Descriptor, unit: &Block, place: &Place) {
    let program = unit.programs().next().and_then(|program| descriptor.programs.get(program as usize));
    let label = program.map_or("", |program| &*program.label);
    let Label { op, rest: name } = Label::parse(label);
    let share = u64::from(place.inner.share).saturating_mul(place.outer.share.into());
    let least = unit.lanes().div_ceil(descriptor.grid.pes().max(1)).max(1);
    let said = |share: u64| format!("up to {share} of {} instances on a PE", unit.lanes());
    let decision = Decision::new(op, name, "instances on a PE").chose(said(share));
    decisions.add(if share > least {
        decision.over(said(least), "there are not enough adjacent PEs with free memory")
    } else if share < unit.lanes() {
        let more = share.saturating_mul(2).min(unit.lanes());
        decision.over(said(more), "instances of a PE work in turn, and fewer instances for each PE fit on the grid")
    } else {
        decision
    });
}

/// Returns units of placement: blocks with one program each, or with all programs that use a state.
/// They are ordered by the last program of each.
fn units(blocks: &[Block]) -> Vec<Block> {
    let mut units = Vec::new();
    for block in blocks {
        if block.state.is_some() {
            units.push(Block { cells: vec![block.programs().collect()], ..block.clone() });
            continue;
        }
        units.extend(block.programs().map(|program| Block { cells: vec![vec![program]], ..block.clone() }));
    }
    units.sort_by_key(|unit| unit.programs().max());
    units
}

impl Free {
    /// Finds PEs for a unit's lanes, and takes their memory.
    fn place(&mut self, descriptor: &Descriptor, unit: &Block, needs: &Needs) -> Option<Place> {
        let (inner, outer) = (unit.inner.max(1), unit.outer.max(1));
        let pes = u64::from(self.width) * u64::from(self.height);
        let mut share = unit.lanes().div_ceil(pes).max(1);
        loop {
            for (inner_share, outer_share) in shares(inner, outer, share) {
                if let Some(place) = self.find(descriptor, needs, inner, outer, inner_share, outer_share) {
                    self.take(descriptor, unit, needs, &place);
                    return Some(place);
                }
            }
            if share >= unit.lanes() {
                return None;
            }
            share = (share * 2).min(unit.lanes());
        }
    }

    /// Finds PEs for `inner` times `outer` lanes. Groups of `inner_share` times `outer_share`
    /// neighbouring lanes share a PE.
    fn find(
        &self,
        descriptor: &Descriptor,
        needs: &Needs,
        inner: u32,
        outer: u32,
        inner_share: u32,
        outer_share: u32,
    ) -> Option<Place> {
        let (n, m) = (inner.div_ceil(inner_share), outer.div_ceil(outer_share));
        let across = n.min(self.width);
        let lines = n.div_ceil(across);
        let beside = (self.width / across).clamp(1, m);
        let down = m.div_ceil(beside);
        let (wide, high) = (across.checked_mul(beside)?, lines.checked_mul(down)?);
        if wide > self.width || high > self.height {
            return None;
        }
        let lattices = (
            Lattice { share: inner_share, per_line: across, pitch_x: 1, pitch_y: 1 },
            Lattice { share: outer_share, per_line: beside, pitch_x: across, pitch_y: lines },
        );
        let together = u64::from(inner_share.min(inner)) * u64::from(outer_share.min(outer));
        let wanted = needs.lane.saturating_mul(together);
        let code = |pe: usize| {
            let new = needs.kernels.iter().filter(|kernel| !self.kernels.contains(&(pe, **kernel)));
            new.filter_map(|&kernel| descriptor.kernels.get(kernel as usize))
                .map(|kernel| kernel.code_bytes)
                .sum::<u64>()
        };
        // Tries all corners of the rectangle, from the cursor on, with wrap-around.
        let (columns, rows) = (self.width - wide + 1, self.height - high + 1);
        let start = (self.cursor / self.width as usize).min(rows as usize - 1) as u32;
        for turn in 0..=rows {
            let y = (start + turn) % rows;
            let mut x = if turn == 0 { (self.cursor as u32 % self.width).min(columns - 1) } else { 0 };
            while x < columns {
                let full = (y..y + high).find_map(|row| {
                    (x..x + wide).rev().find(|&column| {
                        let pe = row as usize * self.width as usize + column as usize;
                        self.bytes[pe] < wanted.saturating_add(code(pe))
                    })
                });
                match full {
                    None => return Some(Place { x, y, inner: lattices.0, outer: lattices.1 }),
                    Some(column) => x = column + 1,
                }
            }
        }
        None
    }

    fn take(&mut self, descriptor: &Descriptor, unit: &Block, needs: &Needs, place: &Place) {
        let mut last = self.cursor;
        for outer in 0..unit.outer {
            for inner in 0..unit.inner {
                let (x, y) = place.pe(inner, outer);
                let pe = y as usize * self.width as usize + x as usize;
                let Some(left) = self.bytes.get_mut(pe) else { continue };
                *left = left.saturating_sub(needs.lane);
                for &kernel in &needs.kernels {
                    if self.kernels.insert((pe, kernel)) {
                        let code = descriptor.kernels.get(kernel as usize).map_or(0, |kernel| kernel.code_bytes);
                        *left = left.saturating_sub(code);
                    }
                }
                last = pe;
            }
        }
        self.cursor = (last + 1) % self.bytes.len().max(1);
    }
}

/// Returns the two ways of choosing `share` neighbouring lanes for a PE: along a line, or across
/// lines.
fn shares(inner: u32, outer: u32, share: u64) -> [(u32, u32); 2] {
    let of = |n: u32| u32::try_from(share).unwrap_or(u32::MAX).min(n);
    let rest = |taken: u32, n: u32| u32::try_from(share.div_ceil(taken.into())).unwrap_or(u32::MAX).min(n);
    let (a, b) = (of(inner), of(outer));
    [(a, rest(a, outer)), (rest(b, inner), b)]
}
