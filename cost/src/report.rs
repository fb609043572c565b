//! Reports: the loops of a kernel with their costs, and the whole kernel for given dims.

use std::fmt::{Display, Formatter, Result as FmtResult};

use iced_x86::{Formatter as _, Instruction, IntelFormatter};
use ixc_ir::kernel::call::{CallError, check_dims};
use ixc_ir::kernel::{Affine, Atom, Dim, Kernel};
use serde::Serialize;

use ixc_codegen::line::Line;

use super::block::{self, Block, Bound};
use super::loops::{self, FoundLoop};
use super::model::CpuModel;

/// The static cost of one kernel on one CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The kernel's name.
    pub kernel: String,
    /// The CPU model's name.
    pub cpu: &'static str,
    /// Slots of the CPU's front end per cycle.
    pub slots_per_cycle: u32,
    /// Number of machine instructions in the whole kernel.
    pub instructions: u32,
    /// Instructions that the model does not know. Their cost is counted as 0.
    pub unknown: Vec<UnknownInstruction>,
    /// Loops; outer loops come before their inner loops.
    pub loops: Vec<LoopReport>,
    /// Cost of the code outside of all loops.
    pub outside: Block,
    /// The kernel's dims, in order.
    #[serde(skip)]
    dims: Vec<Dim>,
}

/// An instruction that belongs to no class, or to a class without a row in the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownInstruction {
    /// Offset of the instruction in the code.
    pub offset: u32,
    /// The instruction as text.
    pub text: String,
}

/// Cost of a loop.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoopReport {
    /// The loop of the kernel IR: `for %kb in 0..%nb`, or `loop` if it is unknown.
    pub label: String,
    /// Number of the IR statement, in the order of the kernel's text.
    pub statement: Option<u32>,
    /// Offset of the loop's first instruction.
    pub start: u32,
    /// Offset of the loop's last instruction: the jump back.
    pub end: u32,
    /// Number of loops around this loop.
    pub depth: u32,
    /// Index in [`Report::loops`] of the loop around this loop.
    pub parent: Option<usize>,
    /// Whether the loop ends with a jump back. Without such a jump, its code runs at most once each
    /// time it is reached.
    pub repeats: bool,
    /// Whether the loop contains no other loop.
    pub innermost: bool,
    /// Steps of the IR loop in one iteration of the code.
    pub step: i64,
    /// Cost of one iteration, without the inner loops.
    pub body: Block,
    #[serde(skip)]
    trip: Option<Affine>,
}

/// Analyses a kernel. `code` has only instructions; `lines` has the statement of each instruction.
pub fn analyse(code: &[u8], lines: &[Line], kernel: &Kernel, cpu: &'static CpuModel) -> Report {
    let code = loops::decode(code, lines);
    let ir = loops::of_kernel(kernel);
    let found = loops::find(&code, |statement| ir.iter().any(|(number, _)| *number == statement));
    // Index of the innermost loop around each instruction.
    let mut owner: Vec<Option<usize>> = vec![None; code.len()];
    for (number, FoundLoop { first, last, .. }) in found.iter().enumerate() {
        owner[*first..=*last].fill(Some(number));
    }
    let mut unknown = Vec::new();
    let mut body = |whose: Option<usize>, repeats: bool| {
        let own: Vec<Instruction> =
            code.iter().zip(&owner).filter(|(_, o)| **o == whose).map(|(d, _)| d.instruction).collect();
        let (block, without) = block::cost(&own, repeats, cpu);
        unknown.extend(without.into_iter().map(|at| describe(&own[at])));
        block
    };
    let loops = found
        .iter()
        .enumerate()
        .map(|(number, f)| {
            let statement = f.origin;
            let source = statement.and_then(|s| ir.iter().find(|(n, _)| *n == s)).map(|(_, source)| source);
            let label = match source {
                Some(s) if f.repeats => format!("for %{} in 0..{}", s.var, s.trip_text),
                Some(s) => format!("once %{} in 0..{}", s.var, s.trip_text),
                None => "loop".into(),
            };
            let mut depth = 0;
            let mut around = f.parent;
            while let Some(outer) = around {
                (depth, around) = (depth + 1, found[outer].parent);
            }
            LoopReport {
                label,
                statement,
                start: code[f.first].instruction.ip() as u32,
                end: code[f.last].instruction.ip() as u32,
                depth,
                parent: f.parent,
                repeats: f.repeats,
                innermost: !found.iter().any(|inner| inner.parent == Some(number)),
                step: f.step,
                body: body(Some(number), f.repeats),
                trip: source.map(|s| s.trip.clone()),
            }
        })
        .collect();
    let outside = body(None, false);
    unknown.sort_by_key(|u: &UnknownInstruction| u.offset);
    Report {
        kernel: kernel.name.clone(),
        cpu: cpu.name,
        slots_per_cycle: cpu.front_end,
        instructions: code.len() as u32,
        unknown,
        loops,
        outside,
        dims: kernel.dims.clone(),
    }
}

fn describe(instruction: &Instruction) -> UnknownInstruction {
    let mut text = String::new();
    IntelFormatter::new().format(instruction, &mut text);
    UnknownInstruction { offset: instruction.ip() as u32, text }
}

/// Reasons why the whole kernel has no cost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelCostError {
    /// A wrong number of dims, or a dim outside its range.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A loop of the code does not belong to any loop of the kernel IR.
    #[error(
        "the loop at offset {start:#x} of the code belongs to no loop of the kernel IR, so its trip count is unknown"
    )]
    Trip {
        /// Offset of the loop.
        start: u32,
    },
}

/// Cycles of a whole kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelCost {
    /// Values of the kernel's dims.
    pub dims: Vec<i64>,
    /// Cycles if every loop takes the cycles of its bound, and loops run one after the other.
    pub cycles: f64,
    /// Cycles if, in addition, each loop must finish before any later code starts. In an innermost
    /// loop, the first iteration of each entry then takes at least its latency. In other loops,
    /// every iteration does. Real cycles are between the two numbers.
    pub cycles_drained: f64,
    /// Cycles that the tile unit takes for all tile products.
    pub tile_cycles: f64,
    /// The tile unit's share: `tile_cycles / cycles`.
    pub share: f64,
    /// The tile unit's share of the drained cycles: `tile_cycles / cycles_drained`.
    pub share_drained: f64,
    /// Share of the cycles in which the multipliers work, for vector kernels.
    pub multiply_share: f64,
    /// Cycles outside of all loops.
    pub outside: f64,
    /// Cycles outside of all loops, counted as in [`KernelCost::cycles_drained`].
    pub outside_drained: f64,
    /// The loops, in the order of [`Report::loops`].
    pub loops: Vec<WholeLoop>,
}

/// Cost of a loop within a whole kernel, without its inner loops.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WholeLoop {
    /// See [`LoopReport::label`].
    pub label: String,
    /// Number of loops around this loop.
    pub depth: u32,
    /// Number of times that the loop is entered.
    pub entries: f64,
    /// Number of iterations of the loop, over all entries.
    pub iterations: f64,
    /// Cycles of all iterations.
    pub cycles: f64,
    /// The loop's part of [`KernelCost::cycles_drained`].
    pub cycles_drained: f64,
    /// Cycles of the tile unit in all iterations.
    pub tile_cycles: f64,
    /// The loop's share of the kernel's cycles.
    pub part: f64,
}

impl Report {
    /// Computes the cycles of the whole kernel for given dims.
    ///
    /// # Errors
    /// Fails if the dims are not valid for the kernel, or a loop's trip count is unknown.
    pub fn whole(&self, dims: &[i64]) -> Result<KernelCost, KernelCostError> {
        check_dims(&self.dims, dims)?;
        let outside_drained = self.outside.cycles.max(f64::from(self.outside.critical_path));
        let mut out = KernelCost {
            dims: dims.to_vec(),
            cycles: self.outside.cycles,
            cycles_drained: outside_drained,
            tile_cycles: tile_cycles(&self.outside),
            share: 0.0,
            share_drained: 0.0,
            multiply_share: 0.0,
            outside: self.outside.cycles,
            outside_drained,
            loops: Vec::with_capacity(self.loops.len()),
        };
        let mut multiply = self.outside.multiply_share * self.outside.cycles;
        for l in &self.loops {
            let trip = l.trip.as_ref().and_then(|trip| {
                trip.evaluate(|atom| match atom {
                    Atom::Dim(dim) => dims.get(dim.index()).copied().unwrap_or(0),
                    Atom::Var(_) => 0,
                })
            });
            let Some(trip) = trip else { return Err(KernelCostError::Trip { start: l.start }) };
            let entries = l.parent.map_or(1.0, |outer| out.loops[outer].iterations);
            // If an iteration has several steps, the remaining steps run in other code.
            let iterations = entries * (trip.max(0) / l.step) as f64;
            let entries = if iterations > 0.0 { entries } else { 0.0 };
            let cycles = iterations * l.body.cycles;
            let tile = iterations * tile_cycles(&l.body);
            let latency = f64::from(l.body.critical_path);
            out.cycles += cycles;
            let cycles_drained = if l.innermost {
                cycles + entries * (latency - l.body.cycles).max(0.0)
            } else {
                iterations * l.body.cycles.max(latency)
            };
            out.cycles_drained += cycles_drained;
            out.tile_cycles += tile;
            multiply += l.body.multiply_share * cycles;
            out.loops.push(WholeLoop {
                label: l.label.clone(),
                depth: l.depth,
                entries,
                iterations,
                cycles,
                cycles_drained,
                tile_cycles: tile,
                part: 0.0,
            });
        }
        if out.cycles > 0.0 {
            out.share = out.tile_cycles / out.cycles;
            out.share_drained = out.tile_cycles / out.cycles_drained;
            out.multiply_share = multiply / out.cycles;
            out.loops.iter_mut().for_each(|l| l.part = l.cycles / out.cycles);
        }
        Ok(out)
    }
}

fn tile_cycles(block: &Block) -> f64 {
    block::TILE_DOT_CYCLES * f64::from(block.mix.tile_dot)
}

impl Block {
    /// Describes the resource that bounds the block, such as `ports p0|p5`.
    pub fn bound_text(&self) -> String {
        match self.bound {
            Bound::None => "nothing".into(),
            Bound::Tile => "tile unit".into(),
            Bound::Ports => format!("ports {}", self.busiest),
            Bound::FrontEnd => "front end".into(),
            Bound::Chain => format!("chain {}", self.chain_register.as_deref().unwrap_or("of several")),
            Bound::Branch => "taken branch".into(),
        }
    }

    /// Returns the table row with numbers of instructions.
    fn instructions_row(&self) -> String {
        let m = &self.mix;
        format!(
            "{:>6} {:>4} {:>5} {:>4} {:>4} {:>4} {:>5} {:>6} {:>6} {:>5}",
            self.instructions,
            m.tile_dot + m.tile_other,
            m.dot,
            m.fma,
            m.vector,
            m.load,
            m.store,
            m.scalar,
            m.reads,
            m.writes
        )
    }

    /// Returns the table row with cycles.
    fn cycles_row(&self) -> String {
        format!(
            "{:>5} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>8.2}  {:>4.0}% {:>4.0}%  {}",
            self.slots,
            self.front_end,
            self.port_cycles,
            self.chain,
            self.tile,
            self.cycles,
            100.0 * self.tile_share,
            100.0 * self.multiply_share,
            self.bound_text()
        )
    }
}

/// Minimum width of the column of labels.
const LABEL: usize = 34;
/// Max number of ports on one line of the report.
const PORTS: usize = 8;

/// Returns the width of the longest label, at least [`LABEL`], for aligning columns.
pub(super) fn label_width(labels: impl Iterator<Item = String>) -> usize {
    labels.map(|label| label.chars().count()).fold(LABEL, usize::max)
}

/// Returns a label, indented by the loop's depth.
pub(super) fn indent(depth: u32, label: &str) -> String {
    format!("{:1$}{label}", "", 2 * depth as usize)
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        let width = label_width(self.loops.iter().map(|l| indent(l.depth, &l.label)));
        writeln!(
            f,
            "{} on {}, {} slots a cycle; one iteration of each loop:",
            self.kernel, self.cpu, self.slots_per_cycle
        )?;
        writeln!(
            f,
            "{:<width$} {:>6} {:>4} {:>5} {:>4} {:>4} {:>4} {:>5} {:>6} {:>6} {:>5}",
            "instructions", "all", "tile", "dot", "fma", "vec", "load", "store", "scalar", "reads", "write"
        )?;
        let rows = |f: &mut Formatter<'_>, row: fn(&Block) -> String| {
            for l in &self.loops {
                let label = indent(l.depth, &l.label);
                writeln!(f, "{label:<width$} {}", row(&l.body))?;
            }
            writeln!(f, "{:<width$} {}", "outside of loops", row(&self.outside))
        };
        rows(f, Block::instructions_row)?;
        writeln!(
            f,
            "{:<width$} {:>5} {:>7} {:>7} {:>7} {:>7} {:>8}  {:>5} {:>5}  bound by",
            "cycles", "slots", "front", "ports", "chain", "tile", "cycles", "tile", "mul"
        )?;
        rows(f, Block::cycles_row)?;
        for l in self.loops.iter().filter(|l| l.innermost && l.repeats) {
            let ports: Vec<_> = l.body.ports.iter().map(|p| format!("{} {:.2}", p.port, p.cycles)).collect();
            writeln!(f, "ports of {} (offset {:#x}):", l.label, l.start)?;
            ports.chunks(PORTS).try_for_each(|ports| writeln!(f, "  {}", ports.join(", ")))?;
        }
        for u in &self.unknown {
            writeln!(f, "unknown to {}: {} at {:#x}; its cost counts as 0", self.cpu, u.text, u.offset)?;
        }
        Ok(())
    }
}

impl Display for KernelCost {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        let width = label_width(self.loops.iter().map(|l| indent(l.depth, &l.label)));
        let dims: Vec<_> = self.dims.iter().map(i64::to_string).collect();
        writeln!(f, "the whole kernel for dims [{}]:", dims.join(", "))?;
        writeln!(
            f,
            "{:<width$} {:>12} {:>12} {:>14} {:>14} {:>6}",
            "", "entries", "iterations", "cycles", "tile cycles", "part"
        )?;
        for l in &self.loops {
            let label = indent(l.depth, &l.label);
            writeln!(
                f,
                "{label:<width$} {:>12.0} {:>12.0} {:>14.0} {:>14.0} {:>5.1}%",
                l.entries,
                l.iterations,
                l.cycles,
                l.tile_cycles,
                100.0 * l.part
            )?;
        }
        let part = if self.cycles > 0.0 { 100.0 * self.outside / self.cycles } else { 0.0 };
        writeln!(
            f,
            "{:<width$} {:>12} {:>12} {:>14.0} {:>14} {part:>5.1}%",
            "outside of loops", 1, 1, self.outside, ""
        )?;
        writeln!(
            f,
            "cycles {:.0} (no overlap at all: {:.0}); tile unit {:.1} % (no overlap at all: {:.1} %); multipliers {:.1} %",
            self.cycles,
            self.cycles_drained,
            100.0 * self.share,
            100.0 * self.share_drained,
            100.0 * self.multiply_share
        )
    }
}
