//! Placement with a separate PE for each cell of each lane. Blocks are placed side by side on
//! shelves, in the order of the layers.
//!
//! A shelf is a band of rows of the grid. The lanes of a block are folded into lines until the
//! block is as high as the shelf, and so as narrow as possible. If space is left below a low block,
//! another block is put there. Every other shelf is filled from the east, so that consecutive
//! blocks are near each other.
//!
//! ```text
//! 32 columns of 2 cells, shelf of 8 rows:  4 lines of 8 columns, each 2 high
//! ```

use crate::descriptor::{Descriptor, Lattice};
use ixc_ir::names::Label;
use ixc_passes::decision::{Decision, Decisions};

use super::PlaceError;
use super::blocks::{Block, Place};

/// Heights of shelves to try, up to the grid's height. Low shelves come first, because paths on
/// them are short.
const HEIGHTS: [u32; 8] = [32, 48, 64, 96, 128, 192, 256, 512];

/// Folding of a block's lanes into lines.
#[derive(Clone, Copy, Debug)]
struct Fold {
    width: u32,
    height: u32,
    inner: Lattice,
    outer: Lattice,
}

/// Places all blocks in one wave; returns the number of waves.
pub(super) fn place(
    descriptor: &mut Descriptor,
    blocks: &[Block],
    decisions: Option<&Decisions>,
) -> Result<u32, PlaceError> {
    let available = descriptor.grid.usable_bytes();
    for block in blocks {
        for cell in 0..block.cells.len() {
            let needs = block.needs(descriptor, cell);
            let code = |&kernel: &u32| descriptor.kernels.get(kernel as usize).map_or(0, |kernel| kernel.code_bytes);
            let bytes = needs.kernels.iter().map(code).fold(needs.lane, u64::saturating_add);
            if bytes > available {
                return Err(room(
                    descriptor,
                    block,
                    format!("an instance needs {bytes} bytes on its PE; a PE has {available}"),
                ));
            }
        }
    }
    let grid_height = descriptor.grid.height;
    let heights = HEIGHTS.into_iter().filter(|&height| height < grid_height).chain([grid_height]);
    let mut error: Option<PlaceError> = None;
    let mut decision = Decision::new("shelves", "", "rows");
    for height in heights {
        match shelves(descriptor, blocks, height) {
            Ok(places) => {
                if let Some(decisions) = decisions {
                    let decision = decision.chose(format!("shelves of {height} rows"));
                    let higher = HEIGHTS.into_iter().find(|&other| other > height && other < grid_height);
                    decisions.add(match higher {
                        Some(other) => {
                            decision.over(format!("of {other} rows"), "messages travel farther on higher shelves")
                        }
                        None => decision,
                    });
                    places
                        .iter()
                        .zip(blocks)
                        .for_each(|(place, block)| record_place(decisions, descriptor, block, place));
                }
                for (block, place) in blocks.iter().zip(&places) {
                    for cell in 0..block.cells.len() {
                        let y = place.y.saturating_add(cell as u32);
                        block.put(descriptor, cell, &Place { y, ..*place }, 0);
                    }
                }
                return Ok(1);
            }
            Err(other) => {
                decision = decision.over(format!("of {height} rows"), other.to_string());
                error = Some(other);
            }
        }
    }
    Err(error.unwrap_or_else(|| PlaceError::Room {
        task: String::new(),
        grid: descriptor.grid.name.clone(),
        problem: "no rows".to_string(),
    }))
}

/// Records how a block's lanes were folded.
fn record_place(decisions: &Decisions, descriptor: &Descriptor, block: &Block, place: &Place) {
    let cells = block.cells.len() as u32;
    let program = block.programs().next().and_then(|program| descriptor.programs.get(program as usize));
    let label = program.map_or("", |program| &*program.label);
    let Label { op, rest: name } = Label::parse(label);
    let shape = |inner: u32, outer: u32| {
        let (lines, groups) = (block.inner.max(1).div_ceil(inner.max(1)), block.outer.max(1).div_ceil(outer.max(1)));
        (outer.saturating_mul(inner), groups.saturating_mul(lines).saturating_mul(cells.max(1)))
    };
    let (wide, high) = shape(place.inner.per_line, place.outer.per_line);
    let said = |(wide, high): (u32, u32)| format!("{wide} x {high} PEs");
    let flat = shape(block.inner.max(1), block.outer.max(1));
    let decision = Decision::new(op, name, "shape").chose(said((wide, high)));
    let decision = decision
        .since("the narrowest shape that is no higher than its shelf, or than the free rows below another program");
    // The unfolded shape is listed as rejected, unless it was impossible or chosen.
    if flat != (wide, high) {
        decisions.add(decision.over(said(flat), "a single line of PEs is wider and puts later programs farther away"));
    }
}

fn room(descriptor: &Descriptor, block: &Block, problem: String) -> PlaceError {
    let program = block.programs().next().and_then(|program| descriptor.programs.get(program as usize));
    let task = program.map_or(String::new(), |program| program.label.clone());
    PlaceError::Room { task, grid: descriptor.grid.name.clone(), problem }
}

/// Free space below a placed block.
struct Rest {
    x: u32,
    y: u32,
    width: u32,
    height: u32,
}

/// Number of free spaces that the search tries. These are the most recent ones.
const RESTS: usize = 12;

fn shelves(descriptor: &Descriptor, blocks: &[Block], shelf: u32) -> Result<Vec<Place>, PlaceError> {
    let (width, height) = (descriptor.grid.width, descriptor.grid.height);
    let (mut top, mut used, mut from_west) = (0u32, 0u32, true);
    let mut rests: Vec<Rest> = Vec::new();
    let mut places = Vec::with_capacity(blocks.len());
    for block in blocks {
        let below = rests.iter().rev().take(RESTS).enumerate().find_map(|(back, rest)| {
            let fold = fold(block, rest.height, rest.width)?;
            Some((rests.len() - 1 - back, fold))
        });
        let (x, y, fold) = match below {
            Some((number, fold)) => {
                let rest = &mut rests[number];
                let (x, y) = (rest.x, rest.y);
                // The remaining space below may have room for another block.
                (rest.y, rest.height) = (rest.y + fold.height, rest.height - fold.height);
                (x, y, fold)
            }
            None => {
                let high = shelf.min(height - top);
                let mut next = fold(block, high, width - used);
                if next.is_none() {
                    // The block goes to the next shelf.
                    (top, used, from_west) = (top.saturating_add(shelf), 0, !from_west);
                    rests.clear();
                    let lanes = block.lanes().saturating_mul(block.cells.len() as u64);
                    if top >= height {
                        let problem = format!("{lanes} more PEs are needed, but all shelves of {shelf} rows are full");
                        return Err(room(descriptor, block, problem));
                    }
                    next = fold(block, shelf.min(height - top), width);
                }
                let Some(fold) = next else {
                    let problem = format!("its instances do not fit into the width of a shelf of {shelf} rows");
                    return Err(room(descriptor, block, problem));
                };
                let x = if from_west { used } else { width - used - fold.width };
                used += fold.width;
                let left = shelf.min(height - top) - fold.height;
                rests.push(Rest { x, y: top + fold.height, width: fold.width, height: left });
                (x, top, fold)
            }
        };
        places.push(Place { x, y, inner: fold.inner, outer: fold.outer });
    }
    Ok(places)
}

/// Returns the narrowest fold of a block that is at most `high` rows high and `wide` columns wide.
fn fold(block: &Block, high: u32, wide: u32) -> Option<Fold> {
    let cells = u32::try_from(block.cells.len()).ok()?.max(1);
    let (inner, outer) = (block.inner.max(1), block.outer.max(1));
    let mut best: Option<Fold> = None;
    for lines in 1..=inner.min(high / cells) {
        let across = inner.div_ceil(lines);
        // Number of lines that are needed if each line has `across` lanes.
        let lines = inner.div_ceil(across);
        let group = lines * cells;
        let down = outer.min(high / group);
        let beside = outer.div_ceil(down);
        let down = outer.div_ceil(beside);
        let Some(width) = beside.checked_mul(across) else { continue };
        let fold = Fold {
            width,
            height: down * group,
            inner: Lattice { share: 1, per_line: across, pitch_x: 1, pitch_y: cells },
            outer: Lattice { share: 1, per_line: beside, pitch_x: across, pitch_y: group },
        };
        if best.is_none_or(|best| (fold.width, fold.height) < (best.width, best.height)) {
            best = Some(fold);
        }
    }
    best.filter(|fold| fold.width <= wide)
}
