//! Register allocation: linear scan over live ranges with holes. Values are spilled by cost, and
//! the scan restarts after each round of spills.
//!
//! Live ranges are placed in order of their start. Each gets the first physical register that is
//! free for the whole range. The registers of two kinds of values are tried first: values that it
//! is copied from, and values that die at its definition.
//!
//! If no register is free, the cheapest conflicting values are spilled. The cost is the number of
//! reads and writes, times ten per surrounding loop, divided by the length of the live range.
//! Values outside loops are thus spilled before values used in loops. Constants cost less, because
//! they can be reloaded from the pool; they are first moved to inner loops ([`super::constants`]).
//! The values of spill code live for one instruction and are never spilled.
//!
//! The result gives a physical register for the virtual register of every operand. [`check`] proves
//! that no two live values share a register. It uses liveness alone, not the ranges of the
//! allocation.

use super::X64Error;
use super::coalesce::coalesce;
use super::liveness::{Range, live_out, ranges, remove_dead};
use super::machine::{Class, File, Function, Opcode, Operand, Role, Vreg};
use super::spill::{Eviction, evict, plan};
use super::tiles;

/// General registers in order of preference: first those that need no saving. Then those with a
/// shorter encoding as a base: without a prefix or a displacement byte.
const GENERAL: [u8; 15] = [0, 1, 2, 6, 7, 8, 9, 10, 11, 3, 14, 15, 5, 12, 13];
/// Vector registers; the lower 16 first, which have shorter encodings. The target decides how many
/// exist.
const VECTOR: [u8; 32] = {
    let mut numbers = [0; 32];
    let mut i = 0;
    while i < 32 {
        numbers[i] = i as u8;
        i += 1;
    }
    numbers
};
/// Mask registers except `k0`, which means "unmasked" when an instruction takes it as a mask.
const MASK: [u8; 7] = [1, 2, 3, 4, 5, 6, 7];
/// Tile registers.
const TILE: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// System V: the first argument comes in `rdi`, the second in `rsi`.
const ARGUMENTS: [u8; 2] = [7, 6];
/// Max frame in bytes: far below the smallest thread stack.
const LARGEST_FRAME: u32 = 1 << 15;
/// Cost factor for each loop around an access.
const LOOP_FACTOR: f32 = 10.0;
/// Maximum loop depth that affects costs, so that costs stay finite.
const DEEPEST: u32 = 8;
/// Cost factor of constants. A constant is cheaper: it is reloaded by a folded load and never
/// stored.
const CONSTANT_FACTOR: f32 = 0.2;

/// Physical registers by virtual register.
pub struct Allocation {
    /// Number of the physical register in its file; 255 where the register is not used.
    pub registers: Vec<u8>,
    /// Number of spilled vector values.
    pub vector_spills: usize,
    /// Number of spilled integer values.
    pub gpr_spills: usize,
    /// Number of constants that are read from the pool at each use.
    pub rematerialised: usize,
    /// Pool entry with the shapes of the tile registers, if there are tiles.
    pub tiles: Option<u32>,
}

const NONE: u8 = u8::MAX;

/// Allocates registers, changing the function where values have to be spilled.
///
/// # Errors
/// Spilled values, and vectors that are read element by element, exceed the maximum frame. Or one
/// instruction needs more registers than the target has, which selection prevents.
pub fn allocate(f: &mut Function) -> Result<Allocation, X64Error> {
    remove_dead(f);
    coalesce(f);
    let (mut vector_spills, mut gpr_spills, mut rematerialised) = (0, 0, 0);
    loop {
        let frame = f.slots.iter().sum();
        if frame > LARGEST_FRAME {
            return Err(X64Error::FrameTooLarge { bytes: frame, max: LARGEST_FRAME });
        }
        let round = Attempt::new(f).run()?;
        if round.spilled.is_empty() {
            let (registers, shapes) = (round.registers, round.shapes);
            debug_assert_eq!(check(f, &registers), Ok(()));
            let tiles = tiles::configuration(f, &registers, &shapes)?;
            return Ok(Allocation { registers, vector_spills, gpr_spills, rematerialised, tiles });
        }
        let spilled = round.spilled;
        let plan = plan(f, &spilled);
        let inward = evict(f, &plan);
        for v in spilled {
            match (plan.get(&v), f.vregs[v.index()]) {
                (Some(Eviction::Constant { .. }), _) => rematerialised += usize::from(!inward.contains(&v)),
                (_, Class::Gpr) => gpr_spills += 1,
                (_, Class::Vector { .. }) => vector_spills += 1,
                // Masks and tiles have an infinite spill cost, so they are never spilled.
                (_, Class::Mask | Class::Tile { .. }) => return Err(X64Error::OutOfRegisters),
            }
        }
        remove_dead(f);
    }
}

/// Proves from liveness that values live at the same time have different registers, and that every
/// operand has a register.
///
/// # Errors
/// The two registers that overlap. For an operand without a physical register, its virtual register
/// twice.
pub fn check(f: &Function, registers: &[u8]) -> Result<(), (Vreg, Vreg)> {
    let live_out = live_out(f);
    for block in &f.layout {
        let mut live = live_out[block.index()].clone();
        for inst in f.blocks[block.index()].insts.iter().rev() {
            let mut clash = None;
            inst.for_each(|v, role| {
                if registers[v.index()] == NONE {
                    clash = Some((v, v));
                }
                if role != Role::Use {
                    let same = |w: &Vreg| {
                        *w != v
                            && registers[w.index()] == registers[v.index()]
                            && f.vregs[w.index()].same_file(f.vregs[v.index()])
                    };
                    clash = clash.or(live.iter().find(same).map(|w| (v, w)));
                }
            });
            inst.for_each(|v, role| {
                if role == Role::Def {
                    live.remove(v);
                }
            });
            inst.for_each(|v, role| {
                if role != Role::Def {
                    live.insert(v);
                }
            });
            if let Some(clash) = clash {
                return Err(clash);
            }
        }
    }
    Ok(())
}

/// Occupied segments of a physical register, disjoint and in order: start, end, and value. Values
/// are placed in order of their starts, so nearly all lookups and insertions are near the end.
#[derive(Clone, Default)]
struct OccupiedSegments(Vec<(u32, u32, Vreg)>);

impl OccupiedSegments {
    /// Returns the segments that start before a point.
    fn before(&self, end: u32) -> &[(u32, u32, Vreg)] {
        match self.0.last() {
            Some(last) if last.0 < end => &self.0,
            Some(_) | None => &self.0[..self.0.partition_point(|segment| segment.0 < end)],
        }
    }

    fn add(&mut self, start: u32, end: u32, v: Vreg) {
        let at = self.before(start).len();
        self.0.insert(at, (start, end, v));
    }

    fn remove(&mut self, start: u32) {
        if let Ok(at) = self.0.binary_search_by_key(&start, |segment| segment.0) {
            self.0.remove(at);
        }
    }
}

/// One scan over all live ranges, without restarts.
struct Attempt<'f> {
    f: &'f Function,
    ranges: Vec<Range>,
    cost: Vec<f32>,
    /// For each value, the values whose registers would save a move, best first.
    hints: Vec<Vec<Vreg>>,
    registers: Vec<u8>,
    /// Occupied segments, per register file and physical register.
    occupied: [Vec<OccupiedSegments>; File::COUNT],
    spilled: Vec<Vreg>,
    is_spilled: Vec<bool>,
    /// Rows and row bytes of each tile register; the first tile placed fixes them for the kernel.
    shapes: tiles::Shapes,
}

impl<'f> Attempt<'f> {
    fn new(f: &'f Function) -> Attempt<'f> {
        let n = f.vregs.len();
        let ranges = ranges(f, &live_out(f));
        let mut cost = vec![0.0; n];
        let mut hints = vec![Vec::new(); n];
        let mut definitions = vec![0_u32; n];
        let mut constant = vec![false; n];
        for block in f.layout.iter().map(|b| &f.blocks[b.index()]) {
            let weight = LOOP_FACTOR.powi(block.depth.min(DEEPEST) as i32);
            for inst in &block.insts {
                inst.for_each(|v, role| {
                    cost[v.index()] += weight;
                    definitions[v.index()] += u32::from(role != Role::Use);
                });
                if let Some((to, from)) = inst.as_copy() {
                    hints[to.index()].push(from);
                    hints[from.index()].push(to);
                }
                if let Some((to, sources)) = inst.as_overwriting() {
                    for source in sources {
                        if let Operand::Reg(from, ..) = source {
                            hints[to.index()].push(from);
                            hints[from.index()].push(to);
                        }
                    }
                }
                if let (Opcode::Constant(_), [Operand::Reg(to, ..), ..]) = (inst.opcode, inst.operands) {
                    constant[to.index()] = true;
                }
            }
        }
        for v in 0..n {
            if constant[v] && definitions[v] == 1 {
                cost[v] *= CONSTANT_FACTOR;
            }
            cost[v] /= ranges[v].length().max(1) as f32;
        }
        for v in f.unspillable.iter().chain(f.arguments.iter().flatten()) {
            cost[v.index()] = f32::INFINITY;
        }
        for (v, class) in f.vregs.iter().enumerate() {
            if matches!(class, Class::Mask | Class::Tile { .. }) {
                cost[v] = f32::INFINITY;
            }
        }
        let occupied = std::array::from_fn(|_| vec![OccupiedSegments::default(); 32]);
        Attempt {
            f,
            ranges,
            cost,
            hints,
            registers: vec![NONE; n],
            occupied,
            spilled: Vec::new(),
            is_spilled: vec![false; n],
            shapes: [None; 8],
        }
    }

    fn run(mut self) -> Result<Attempt<'f>, X64Error> {
        for (v, register) in self.f.arguments.iter().flatten().zip(ARGUMENTS) {
            // The arguments are live from the start of the kernel, before the first instruction.
            let range = &mut self.ranges[v.index()];
            if let Some(first) = range.0.first_mut() {
                first.0 = 0;
            }
            self.take(*v, register);
        }
        let mut order: Vec<Vreg> = (0..self.ranges.len() as u32).map(Vreg).collect();
        order.retain(|v| !self.ranges[v.index()].0.is_empty() && self.registers[v.index()] == NONE);
        order.sort_unstable_by_key(|v| (self.ranges[v.index()].0[0].0, *v));
        for v in order {
            if !self.is_spilled[v.index()] {
                self.place(v)?;
            }
        }
        Ok(self)
    }

    /// Returns the register file of a value, as a number, and the registers to choose from.
    fn file(&self, v: Vreg) -> (usize, &'static [u8]) {
        let file = self.f.vregs[v.index()].file();
        let registers: &[u8] = match file {
            File::General => &GENERAL,
            File::Vector => &VECTOR[..usize::from(self.f.target.isa().vector_registers)],
            File::Mask => &MASK,
            File::Tile => &TILE[..usize::from(self.f.target.isa().tile_registers).min(TILE.len())],
        };
        (file as usize, registers)
    }

    fn place(&mut self, v: Vreg) -> Result<(), X64Error> {
        let (_, registers) = self.file(v);
        let hinted = self.hints[v.index()].iter().map(|h| self.registers[h.index()]).filter(|r| *r != NONE);
        let free = hinted.chain(registers.iter().copied()).find(|&r| self.is_free(v, r));
        if let Some(register) = free {
            self.take(v, register);
            return Ok(());
        }
        let cheapest = registers
            .iter()
            .map(|&r| {
                let rivals = self.rivals(v, r);
                (rivals.iter().map(|w| self.cost[w.index()]).sum::<f32>(), r, rivals)
            })
            .min_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((cost, register, rivals)) = cheapest
            && cost < self.cost[v.index()]
        {
            for w in rivals {
                self.release(w);
                self.spill(w);
            }
            self.take(v, register);
            return Ok(());
        }
        if self.cost[v.index()].is_finite() {
            self.spill(v);
            return Ok(());
        }
        match self.f.vregs[v.index()].file() {
            File::Tile => Err(X64Error::OutOfTiles),
            File::General | File::Vector | File::Mask => Err(X64Error::OutOfRegisters),
        }
    }

    fn is_free(&self, v: Vreg, register: u8) -> bool {
        if let (Class::Tile { rows, bytes }, Some(shape)) = (self.f.vregs[v.index()], self.shape(register))
            && shape != (rows, bytes)
        {
            return false;
        }
        let occupied = &self.occupied[self.f.vregs[v.index()].file() as usize][register as usize];
        // Segments are disjoint. If any occupied segment overlaps this one, then the last segment
        // that starts before this one's end overlaps it.
        let met = |&(start, end): &(u32, u32)| occupied.before(end).last().is_some_and(|&(_, until, _)| until > start);
        !self.ranges[v.index()].0.iter().any(met)
    }

    fn rivals(&self, v: Vreg, register: u8) -> Vec<Vreg> {
        let occupied = &self.occupied[self.file(v).0][register as usize];
        let mut rivals = Vec::new();
        for &(start, end) in &self.ranges[v.index()].0 {
            let met = occupied.before(end).iter().rev().take_while(|(_, until, _)| *until > start);
            rivals.extend(met.map(|&(_, _, w)| w));
        }
        rivals.sort_unstable();
        rivals.dedup();
        rivals
    }

    fn shape(&self, tile: u8) -> Option<(u8, u8)> {
        self.shapes.get(usize::from(tile)).copied().flatten()
    }

    fn take(&mut self, v: Vreg, register: u8) {
        if let (Class::Tile { rows, bytes }, Some(shape)) =
            (self.f.vregs[v.index()], self.shapes.get_mut(usize::from(register)))
        {
            *shape = Some((rows, bytes));
        }
        self.registers[v.index()] = register;
        let file = self.file(v).0;
        for &(start, end) in &self.ranges[v.index()].0 {
            self.occupied[file][register as usize].add(start, end, v);
        }
    }

    fn spill(&mut self, v: Vreg) {
        self.spilled.push(v);
        self.is_spilled[v.index()] = true;
    }

    fn release(&mut self, v: Vreg) {
        let (file, register) = (self.file(v).0, self.registers[v.index()]);
        for (start, _) in &self.ranges[v.index()].0 {
            self.occupied[file][register as usize].remove(*start);
        }
        self.registers[v.index()] = NONE;
    }
}
