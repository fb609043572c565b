//! Cost of a block: one iteration of a loop, or straight-line code that runs once.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind};
use serde::Serialize;

use super::chain::{self, Latency, Node};
use super::class::{Class, Kind, Memory, Width, Work, classify};
use super::model::{Cost, CpuModel, Uop, WideVectors};
use super::ports::Load;

/// Cycles from one tile product to the next: a product has 16 rows, one per cycle.
pub const TILE_DOT_CYCLES: f64 = 16.0;

/// Number of instructions by kind of work. Each instruction is counted once, in the first field
/// that it fits. `reads` and `writes` count instructions a second time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mix {
    /// Number of tile products.
    pub tile_dot: u32,
    /// Number of other tile instructions.
    pub tile_other: u32,
    /// Number of integer products of vectors, and of dot products of integers or bf16.
    pub dot: u32,
    /// Number of float products and fused multiply-adds.
    pub fma: u32,
    /// Number of other vector and mask instructions.
    pub vector: u32,
    /// Number of instructions that only load.
    pub load: u32,
    /// Number of stores.
    pub store: u32,
    /// Number of integer instructions and branches.
    pub scalar: u32,
    /// Number of instructions of any of these kinds that read memory.
    pub reads: u32,
    /// Number of instructions of any of these kinds that write memory.
    pub writes: u32,
}

/// Resource that bounds a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The block is empty.
    #[default]
    None,
    /// The tile unit.
    Tile,
    /// Ports other than the tile unit.
    Ports,
    /// Slots of the front end.
    FrontEnd,
    /// The longest chain of latencies from one iteration to the next.
    Chain,
    /// The limit of one taken branch per cycle.
    Branch,
}

/// Cycles that a block takes on one port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PortCycles {
    /// Name of the port.
    pub port: &'static str,
    /// Cycles on this port if µops are distributed as evenly as possible.
    pub cycles: f64,
}

/// Cost of one iteration, or of code that runs once.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Block {
    /// Number of instructions of the block.
    pub instructions: u32,
    /// Instructions by kind of work.
    pub mix: Mix,
    /// Slots of the front end; fused µops count once.
    pub slots: u32,
    /// Number of µops that run on ports.
    pub uops: u32,
    /// Cycles that the front end takes.
    pub front_end: f64,
    /// Cycles of the busiest ports, except for the tile unit.
    pub port_cycles: f64,
    /// Names of the busiest ports.
    pub busiest: String,
    /// All ports that execute µops of the block.
    pub ports: Vec<PortCycles>,
    /// Cycles that the tile unit takes.
    pub tile: f64,
    /// Cycles of the longest chain from one iteration to the next; 0 in code outside loops.
    pub chain: f64,
    /// Register of this chain, if the chain has only one register.
    pub chain_register: Option<String>,
    /// Cycles from the first operand to the last result, if no other code ran.
    pub critical_path: u32,
    /// Cycles of the block: the largest of front end, ports, tile unit and chain.
    pub cycles: f64,
    /// The resource that takes the most cycles: front end, ports, tile unit or chain.
    pub bound: Bound,
    /// Share of the cycles in which the tile unit works: 16 cycles for each tile product.
    pub tile_share: f64,
    /// Cycles of the ports for the integer and float products alone, divided by the cycles.
    pub multiply_share: f64,
}

/// Returns the cost of a block, and the indices of the instructions that the model does not know.
/// `loops` states whether the block repeats.
pub fn cost(block: &[Instruction], loops: bool, model: &CpuModel) -> (Block, Vec<usize>) {
    let mut out = Block { instructions: block.len() as u32, ..Block::default() };
    let mut unknown = Vec::new();
    let (mut load, mut products) = (Load::default(), Load::default());
    let mut nodes: Vec<Node> = Vec::with_capacity(block.len());
    let mut factory = InstructionInfoFactory::new();
    let works: Vec<Option<Work>> = block.iter().map(classify).collect();
    let wide = works.iter().flatten().any(|w| w.width == Width::Z && is_vector_work(w.class));
    let closed = if wide { model.port_set(model.closed_by_wide).unwrap_or(0) } else { 0 };
    for (at, instruction) in block.iter().enumerate() {
        let Some((work, cost, memory)) = works[at].and_then(|work| full_cost(model, work)) else {
            unknown.push(at);
            continue;
        };
        count(&mut out.mix, work);
        let fused = block.get(at + 1).is_some_and(|next| fuses(instruction, next));
        if !fused {
            out.slots += cost.slots;
            out.uops += cost.uops.len() as u32;
            for &uop in &cost.uops {
                let mut uop = uop;
                if work.width != Width::Scalar && uop.ports & !closed != 0 {
                    uop.ports &= !closed;
                }
                load.add(uop);
                if matches!(work.class.kind(), Kind::Dot | Kind::Fma) && !memory.contains(&uop) {
                    products.add(uop);
                }
            }
        }
        if work.class == Class::UpperZero {
            continue;
        }
        let breaks = matches!(work.class, Class::Zero | Class::TileZero)
            || work.class == Class::Nothing && super::class::is_zero_idiom(instruction);
        let latency = Latency { work: cost.latency, load: load_latency(model, work), breaks };
        nodes.push(chain::node(&mut factory, instruction, latency));
    }
    let tile_port = model.port_set("T").unwrap_or(0);
    out.tile = load.cycles_within(tile_port) as f64;
    let all = load.pressure(model.ports.len());
    out.ports = model
        .ports
        .iter()
        .zip(&all.ports)
        .filter(|(_, cycles)| **cycles > 0.0)
        .map(|(port, &cycles)| PortCycles { port: port.name, cycles })
        .collect();
    let rest = load.without_ports(tile_port).pressure(model.ports.len());
    out.port_cycles = rest.cycles;
    out.busiest = model.port_names(rest.busiest);
    out.front_end = f64::from(out.slots) / f64::from(model.front_end);
    out.critical_path = chain::critical_path(&nodes);
    if loops {
        let carried_chain = chain::carried_chain(&nodes);
        out.chain = carried_chain.cycles;
        out.chain_register = carried_chain.register.map(|r| format!("{r:?}").to_lowercase());
    }
    let branch = if loops { 1.0 } else { 0.0 };
    // Of equal bounds, the first in this list counts. The bound for which kernels are tuned comes
    // first.
    let bounds = [
        (out.tile, Bound::Tile),
        (out.port_cycles, Bound::Ports),
        (out.chain, Bound::Chain),
        (out.front_end, Bound::FrontEnd),
        (branch, Bound::Branch),
    ];
    for (cycles, bound) in bounds {
        if cycles > out.cycles {
            (out.cycles, out.bound) = (cycles, bound);
        }
    }
    if out.cycles > 0.0 {
        out.tile_share = TILE_DOT_CYCLES * f64::from(out.mix.tile_dot) / out.cycles;
        out.multiply_share = products.pressure(model.ports.len()).cycles / out.cycles;
    }
    (out, unknown)
}

fn is_vector_work(class: Class) -> bool {
    matches!(class.kind(), Kind::Dot | Kind::Fma | Kind::Vector) && !matches!(class, Class::VecMove | Class::Zero)
}

/// Returns the work, its cost including the memory operand, and the µops of the memory operand.
fn full_cost(model: &CpuModel, work: Work) -> Option<(Work, Cost, Vec<Uop>)> {
    // A CPU that executes vectors in halves needs two loads for 64 bytes, and one load for fewer
    // bytes.
    let load_width = if model.wide == WideVectors::Halves { work.loaded } else { work.width };
    let width = if matches!(work.class, Class::Load | Class::BroadcastNarrow) { load_width } else { work.width };
    let mut cost = model.cost(work.class, width)?;
    let (load, store) = memory_classes(work);
    let mut memory = Vec::new();
    // A load adds no slot: it fuses with the work, or takes the slot of work that needs no port.
    if let Some(class) = load {
        memory.extend(model.cost(class, load_width)?.uops);
    }
    if let Some(class) = store {
        memory.extend(model.cost(class, work.width)?.uops);
        // A store adds a slot, unless the work needs no port.
        if !cost.uops.is_empty() {
            cost.slots += 1;
        }
    }
    cost.uops.extend(&memory);
    Some((work, cost, memory))
}

fn memory_classes(work: Work) -> (Option<Class>, Option<Class>) {
    let (load, store) =
        if work.width == Width::Scalar { (Class::LoadInt, Class::StoreInt) } else { (Class::Load, Class::Store) };
    // If only a part of a register is stored, it is at most half of the register.
    match work.memory {
        Memory::None => (None, None),
        Memory::Read => (Some(load), None),
        Memory::Write => (None, Some(store)),
        Memory::Update => (Some(load), Some(store)),
    }
}

/// Returns the number of cycles from an address to the loaded operand. It is 0 for an instruction
/// that is only a load, because the latency of that instruction's class includes it.
fn load_latency(model: &CpuModel, work: Work) -> u32 {
    let (load, _) = memory_classes(work);
    load.and_then(|class| model.cost(class, work.width)).map_or(0, |cost| cost.latency)
}

fn count(mix: &mut Mix, work: Work) {
    let column = match work.class.kind() {
        Kind::Tile if work.class == Class::TileDot => &mut mix.tile_dot,
        Kind::Tile => &mut mix.tile_other,
        Kind::Dot => &mut mix.dot,
        Kind::Fma => &mut mix.fma,
        Kind::Vector => &mut mix.vector,
        Kind::Load => &mut mix.load,
        Kind::Store => &mut mix.store,
        Kind::Scalar => &mut mix.scalar,
    };
    *column += 1;
    let kind = work.class.kind();
    let reads = matches!(work.memory, Memory::Read | Memory::Update)
        || kind == Kind::Load
        || matches!(work.class, Class::TileLoad | Class::TileConfig);
    let writes =
        matches!(work.memory, Memory::Write | Memory::Update) || kind == Kind::Store || work.class == Class::TileStore;
    mix.reads += u32::from(reads);
    mix.writes += u32::from(writes);
}

/// Whether a comparison or sum and the following conditional jump fuse to one µop.
fn fuses(instruction: &Instruction, next: &Instruction) -> bool {
    use Mnemonic::{Add, And, Cmp, Dec, Inc, Sub, Test};
    let plain = (0..instruction.op_count()).all(|n| instruction.op_kind(n) != OpKind::Memory);
    plain && next.is_jcc_short_or_near() && matches!(instruction.mnemonic(), Add | And | Cmp | Dec | Inc | Sub | Test)
}
