//! Blocks: groups of programs that are placed together.
//!
//! - Programs that use a state are on the PEs of its parts.
//! - The products of a chain are placed one below another, each with the program that adds its
//!   sum. The sum thus moves one hop from product to product.
//! - A row op that has the same columns as the op before it is placed below that op.
//! - A program that scales a piece of a row by the sums of all pieces is on the same PE as the
//!   program that computes that piece's sum. Both receive the piece.
//!
//! ```text
//! column      0     1     2          cell 0: linear w
//!             v     v     v          cell 1: linear w 1, linear w 1 sum
//! ```
//!
//! A *lane* is one column of one expert, or one part of one head. A *cell* is a place in the block
//! for programs on the same PEs. A lane has one PE for each cell.

use crate::descriptor::{Axis, Descriptor, Lattice, Port, Program, Slice, State};

/// Programs that are placed together.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    /// Programs in each cell.
    pub(super) cells: Vec<Vec<u32>>,
    /// Number of lanes in a line: columns, or parts of a head.
    pub(super) inner: u32,
    /// Number of lines of lanes: one for each expert, or for each head.
    pub(super) outer: u32,
    /// State that is divided among the lanes; `None` if the block has no state.
    pub(super) state: Option<u32>,
}

/// Memory that a cell needs on its PE.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    /// Bytes that each lane needs, without code.
    pub(super) lane: u64,
    /// Kernels whose code the cell needs.
    pub(super) kernels: Vec<u32>,
}

impl Block {
    /// Returns all programs of the block.
    pub(super) fn programs(&self) -> impl Iterator<Item = u32> {
        self.cells.iter().flatten().copied()
    }

    /// Returns the number of lanes of the block.
    pub(super) fn lanes(&self) -> u64 {
        u64::from(self.inner) * u64::from(self.outer)
    }

    /// Returns the memory that a cell needs.
    pub(super) fn needs(&self, descriptor: &Descriptor, cell: usize) -> Needs {
        let mut needs = Needs::default();
        for program in self.cells.get(cell).into_iter().flatten().filter_map(|&p| descriptor.programs.get(p as usize)) {
            needs.lane = needs.lane.saturating_add(descriptor.instance_bytes(program).total());
            if !needs.kernels.contains(&program.kernel) {
                needs.kernels.push(program.kernel);
            }
        }
        if let Some(state) = self.state.and_then(|state| descriptor.states.get(state as usize)) {
            needs.lane = needs.lane.saturating_add(state.part_bytes());
        }
        needs
    }

    /// Sets the PEs and the wave of a cell's programs.
    pub(super) fn put(&self, descriptor: &mut Descriptor, cell: usize, place: &Place, wave: u32) {
        for &program in self.cells.get(cell).into_iter().flatten() {
            let Some(program) = descriptor.programs.get_mut(program as usize) else { continue };
            let sites = &mut program.sites;
            (sites.x, sites.y) = (place.x, place.y);
            (sites.columns, sites.experts, sites.parts) = match self.state {
                Some(_) => (place.outer, Lattice::ONE, place.inner),
                None => (place.inner, place.outer, Lattice::ONE),
            };
            program.wave = wave;
        }
    }
}

/// PEs of a cell's lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) inner: Lattice,
    pub(super) outer: Lattice,
}

impl Place {
    /// Returns the PE of a lane.
    pub(super) fn pe(&self, inner: u32, outer: u32) -> (u32, u32) {
        let (a, b) = (self.inner.offset(inner), self.outer.offset(outer));
        (self.x.saturating_add(a.0).saturating_add(b.0), self.y.saturating_add(a.1).saturating_add(b.1))
    }
}

/// Returns the blocks, ordered by the last program of each. A block thus reads only results of
/// earlier blocks.
pub(super) fn blocks(descriptor: &Descriptor) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    // Block and cell in which each program is placed.
    let mut places: Vec<(usize, usize)> = Vec::with_capacity(descriptor.programs.len());
    let mut senders: Vec<Vec<u32>> = vec![Vec::new(); descriptor.tensors.len()];
    let mut of_state: Vec<Option<usize>> = vec![None; descriptor.states.len()];
    for (number, program) in descriptor.programs.iter().enumerate() {
        let own = |blocks: &mut Vec<Block>, state: Option<u32>| {
            let [inner, outer] = match state.and_then(|state| descriptor.states.get(state as usize)) {
                Some(State { heads, parts, .. }) => [parts.count, *heads],
                None => [program.columns, descriptor.experts(program)],
            };
            blocks.push(Block { cells: Vec::new(), inner, outer, state });
            blocks.len() - 1
        };
        let (block, cell) = if let Some(state) = program.state {
            let block = *of_state[state as usize].get_or_insert_with(|| own(&mut blocks, Some(state)));
            (block, 0)
        } else {
            match neighbour(descriptor, program, &senders) {
                Some((other, next)) => {
                    let (block, cell) = places[other as usize];
                    if next { (block, blocks[block].cells.len()) } else { (block, cell) }
                }
                None => (own(&mut blocks, None), 0),
            }
        };
        let cells = &mut blocks[block].cells;
        if cells.len() <= cell {
            cells.resize(cell + 1, Vec::new());
        }
        cells[cell].push(number as u32);
        places.push((block, cell));
        for port in &program.ports {
            if let Port::Send(slice) = port {
                senders[slice.tensor as usize].push(number as u32);
            }
        }
    }
    blocks.sort_by_key(|block| block.programs().max());
    blocks
}

/// Returns the program next to which a program is placed. The flag is `true` if it goes below that
/// program, and `false` if it shares its cell.
fn neighbour(descriptor: &Descriptor, program: &Program, senders: &[Vec<u32>]) -> Option<(u32, bool)> {
    let weight = matrix(program);
    let mut found = None;
    for port in &program.ports {
        let Port::Receive(slice) = port else { continue };
        for &other in &senders[slice.tensor as usize] {
            let Some(sender) = descriptor.programs.get(other as usize) else { continue };
            if shares(sender, program, slice) {
                return Some((other, false));
            }
            if !has_equal_columns(sender, program, slice) {
                continue;
            }
            match (weight, matrix(sender)) {
                // This is the next product of the sender's chain.
                (Some(own), Some(others)) if own == others => found = Some((other, true)),
                (Some(own), None) if is_sum(sender) && chain_weight(descriptor, sender, senders) == Some(own) => {
                    found = Some((other, true));
                }
                (Some(_), _) => {}
                // A sum is placed with the last of the products that it adds.
                (None, Some(_)) if is_sum(program) => found = found.max(Some((other, false))),
                (None, Some(_)) => {}
                (None, None) if is_sum(program) || is_sum(sender) => {}
                (None, None) => found = found.max(Some((other, true))),
            }
        }
    }
    // If sums are computed by separate programs, products of a chain have no stream between them.
    // The products are then recognised by their common weight.
    if found.is_none()
        && let Some(own) = weight
        && let Some(offset) = own_offset(program)
    {
        found = descriptor
            .programs
            .iter()
            .enumerate()
            .take_while(|(_, other)| !std::ptr::eq(*other, program))
            .filter(|(_, other)| {
                matrix(other) == Some(own)
                    && (other.columns, other.axis) == (program.columns, program.axis)
                    && own_offset(other).is_some_and(|at| same_rows(descriptor, own, at, offset))
            })
            .map(|(number, _)| (number as u32, true))
            .last();
    }
    found
}

/// Returns the weight matrix of a program that is a matrix product. In such a program, every column
/// receives the whole input, and the weight's slices differ by column or expert.
fn matrix(program: &Program) -> Option<u32> {
    match (program.ports.first(), program.ports.get(1)) {
        (Some(Port::Receive(x)), Some(Port::Weight { weight, column_stride, expert_stride, .. }))
            if x.column_stride == 0 && (*column_stride > 0 || *expert_stride > 0) =>
        {
            Some(*weight)
        }
        _ => None,
    }
}

fn own_offset(program: &Program) -> Option<u64> {
    match program.ports.get(1) {
        Some(Port::Weight { offset, .. }) => Some(*offset),
        _ => None,
    }
}

/// Whether two offsets in a weight are in the same strip of rows.
fn same_rows(descriptor: &Descriptor, weight: u32, a: u64, b: u64) -> bool {
    let Some(info) = descriptor.weights.get(weight as usize) else { return false };
    let Some(format) = ixc_ir::format::Format::from_name(&info.format) else { return false };
    let columns = info.shape.last().copied().unwrap_or(0);
    let strip = format.row_bytes(columns).unwrap_or(0).saturating_mul(format.rows() as u64).max(1);
    a / strip == b / strip
}

fn is_sum(program: &Program) -> bool {
    matches!(program.ports[..], [Port::Receive(a), Port::Receive(b), Port::Send(y)]
        if a.bytes == b.bytes && a.bytes == y.bytes && program.label.contains(" sum"))
}

/// Returns the weight of the chain of products to which a sum belongs.
fn chain_weight(descriptor: &Descriptor, sum: &Program, senders: &[Vec<u32>]) -> Option<u32> {
    sum.ports.iter().find_map(|port| {
        let Port::Receive(slice) = port else { return None };
        let mut products = senders[slice.tensor as usize].iter();
        products.find_map(|&other| matrix(descriptor.programs.get(other as usize)?))
    })
}

/// Whether each column of `program` receives exactly the slice that the same column of `sender`
/// sends.
fn has_equal_columns(sender: &Program, program: &Program, slice: &Slice) -> bool {
    let same = |port: &Port| match port {
        Port::Send(sent) => {
            (sent.tensor, sent.offset, sent.column_stride, sent.bytes)
                == (slice.tensor, slice.offset, slice.column_stride, slice.bytes)
        }
        _ => false,
    };
    let axis = |axis: Axis| axis;
    sender.state.is_none()
        && program.state.is_none()
        && (sender.columns, axis(sender.axis)) == (program.columns, axis(program.axis))
        && sender.ports.iter().any(same)
}

/// Whether each column of `program` receives the slices of all columns of `sender`, and also the
/// slice that the same column of `sender` receives.
fn shares(sender: &Program, program: &Program, slice: &Slice) -> bool {
    let piece = |port: &Port| match port {
        Port::Receive(slice) => Some((slice.tensor, slice.offset, slice.column_stride, slice.bytes)),
        _ => None,
    };
    slice.column_stride == 0
        && sender.state.is_none()
        && program.state.is_none()
        && (sender.columns, sender.axis) == (program.columns, program.axis)
        && matches!(sender.ports[..], [Port::Receive(_), Port::Send(_)])
        && piece(&sender.ports[0]).is_some_and(|own| program.ports.iter().any(|port| piece(port) == Some(own)))
}

/// Returns the bytes used on each PE in a wave.
pub(super) fn usage(descriptor: &Descriptor, blocks: &[Block], wave: u32) -> Vec<u64> {
    let width = descriptor.grid.width as usize;
    let mut bytes = vec![0u64; descriptor.grid.pes() as usize];
    let mut kernels = std::collections::HashSet::new();
    for block in blocks {
        for cell in 0..block.cells.len() {
            let needs = block.needs(descriptor, cell);
            let Some(program) = block.cells[cell].first().and_then(|&p| descriptor.programs.get(p as usize)) else {
                continue;
            };
            if program.wave != wave {
                continue;
            }
            for outer in 0..block.outer {
                for inner in 0..block.inner {
                    let (x, y) = match block.state {
                        Some(_) => program.sites.pe(outer, 0, inner),
                        None => program.sites.pe(inner, outer, 0),
                    };
                    let pe = y as usize * width + x as usize;
                    let Some(sum) = bytes.get_mut(pe) else { continue };
                    *sum = sum.saturating_add(needs.lane);
                    for &kernel in &needs.kernels {
                        if kernels.insert((pe, kernel)) {
                            let code = descriptor.kernels.get(kernel as usize).map_or(0, |kernel| kernel.code_bytes);
                            *sum = sum.saturating_add(code);
                        }
                    }
                }
            }
        }
    }
    bytes
}
