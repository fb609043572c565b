//! Cost of a kernel with caches, and the cache level that bounds the kernel.

use std::fmt::{Display, Formatter, Result as FmtResult};

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_targets::memory::{Level, Memory};
use serde::Serialize;

use super::super::report::{KernelCostError, Report, indent, label_width};
use super::cache::Caches;
use super::spent::{Bounds, BufferTraffic, CacheWalk, Stream};
use super::start::Start;
use super::walk::{Access, Kind, Visitor, Walk};

/// Label of the code outside of loops.
const OUTSIDE: &str = "outside of loops";
/// Maximum number of line accesses that are simulated, which takes seconds.
pub const MAX_TOUCHES: u64 = 1 << 28;

/// Reasons why a kernel has no cost with caches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelsError {
    /// The whole kernel has no static cost.
    #[error(transparent)]
    Whole(#[from] KernelCostError),
    /// The kernel has no buffer of a given name.
    #[error("the kernel has no buffer {name:?}; its buffers are {}", expected.join(", "))]
    Buffer {
        /// The buffer's name.
        name: String,
        /// Names of the kernel's buffers.
        expected: Vec<String>,
    },
    /// The simulation would take too long.
    #[error(
        "cannot simulate the caches: with these dims, the kernel touches {touches} cache lines; the limit is {most}"
    )]
    TooLong {
        /// Min number of lines that the kernel accesses.
        touches: u64,
        /// Max number of touched lines for which the caches are simulated.
        most: u64,
    },
}

impl LevelsError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            LevelsError::Whole(_) | LevelsError::Buffer { .. } | LevelsError::TooLong { .. } => Class::Data,
        }
    }
}

/// The cost of a whole kernel with caches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Levels {
    /// Sizes and ways of the simulated caches.
    pub memory: Memory,
    /// Cycles of the kernel: the sum over all stretches of its loops, each at its bound. See
    /// [`super::spent`].
    pub cycles: f64,
    /// Cycles if, in addition, each loop must finish before any later code starts, as in
    /// [`KernelCost::cycles_drained`](super::super::report::KernelCost::cycles_drained).
    pub cycles_drained: f64,
    /// Ratio of these cycles to the cycles with all operands in the first level.
    pub slowdown: f64,
    /// The tile unit's share of [`Levels::cycles`].
    pub share: f64,
    /// The tile unit's share of [`Levels::cycles_drained`].
    pub share_drained: f64,
    /// The bound that takes the most cycles.
    pub bound: LevelBound,
    /// The loops in the order of [`Report::loops`], and then the code outside of loops.
    pub loops: Vec<LoopLevels>,
    /// Lines that are accessed, by buffer and kind of access.
    pub traffic: Vec<Traffic>,
}

/// Bound of a kernel or of a loop.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelBound {
    /// Level that bounds the code; `None` if the instructions take longer than the transfers.
    pub level: Option<Level>,
    /// Main cause of the bound: for example `tile loads of x`, or the bound of the instructions.
    pub what: String,
    /// The loop in which this cause takes the most cycles.
    pub place: String,
    /// Share of the cycles that this level, or the code, bounds.
    pub part: f64,
}

/// Cost of a loop, without its inner loops.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoopLevels {
    /// See [`LoopReport::label`](super::super::report::LoopReport::label).
    pub label: String,
    /// Number of loops around this loop.
    pub depth: u32,
    /// Number of lines from each level, in the order of [`Level::ALL`].
    pub lines: [u64; 4],
    /// Cycles of the loop, all iterations together.
    pub cycles: f64,
    /// The loop's bound; `None` if the loop does not run.
    pub bound: Option<LevelBound>,
}

/// Accesses of one kind to one buffer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// Name of the buffer.
    pub buffer: String,
    /// Kind of access.
    pub kind: Kind,
    /// Number of lines from each level, in the order of [`Level::ALL`].
    pub lines: [u64; 4],
}

/// Simulates two calls of a kernel with caches of these sizes and ways, and returns the cost of the
/// second call. Between the calls, the buffers of `starts` are moved to their levels.
///
/// `report` must be for the kernel's code.
///
/// # Errors
/// Fails if the dims are not valid for the kernel, a start names a buffer that the kernel lacks, or
/// the simulation would take too long.
pub fn levels(
    report: &Report,
    kernel: &Kernel,
    memory: Memory,
    dims: &[i64],
    starts: &[Start],
) -> Result<Levels, LevelsError> {
    let whole = report.whole(dims)?;
    let walk = Walk::new(kernel, dims);
    let placed = starts.iter().map(|start| Ok((buffer(kernel, &start.buffer)?, start.level)));
    let placed: Vec<(usize, Level)> = placed.collect::<Result<_, LevelsError>>()?;
    let sizes = placed.iter().map(|(buffer, _)| walk.lines(*buffer)).map(|lines| lines.end.saturating_sub(lines.start));
    let touches = sizes.fold(walk.touches(), u64::saturating_add);
    if touches > MAX_TOUCHES {
        return Err(LevelsError::TooLong { touches, most: MAX_TOUCHES });
    }
    let mut caches = Caches::new(&memory);
    walk.visit(&mut Warm(&mut caches));
    for (buffer, level) in placed {
        walk.lines(buffer).for_each(|line| caches.place(line, level));
    }
    let mut spent = CacheWalk::new(report, &mut caches);
    walk.visit(&mut spent);
    let traffic = spent.traffic().map(|BufferTraffic { buffer, kind, lines }| {
        let buffer = kernel.buffers[buffer].name.clone();
        Traffic { buffer, kind, lines }
    });
    let traffic = traffic.collect();
    let totals = spent.finish(&whole);

    let names = Names { report, kernel };
    let all: Vec<(usize, &Bounds)> = totals.iter().map(|total| &total.bounds).enumerate().collect();
    let loops = totals.iter().enumerate().map(|(number, total)| LoopLevels {
        label: names.label(number).into(),
        depth: report.loops.get(number).map_or(0, |l| l.depth),
        lines: total.lines,
        cycles: total.cycles,
        bound: (total.cycles > 0.0).then(|| names.bound_of_levels(&[(number, &total.bounds)], total.cycles)),
    });
    let loops = loops.collect();
    let cycles: f64 = totals.iter().map(|total| total.cycles).sum();
    let cycles_drained: f64 = totals.iter().map(|total| total.cycles_drained).sum();
    Ok(Levels {
        memory,
        cycles,
        cycles_drained,
        slowdown: part(cycles, whole.cycles),
        share: part(whole.tile_cycles, cycles),
        share_drained: part(whole.tile_cycles, cycles_drained),
        bound: names.bound_of_levels(&all, cycles),
        loops,
        traffic,
    })
}

fn part(part: f64, of: f64) -> f64 {
    if of > 0.0 { part / of } else { 0.0 }
}

fn buffer(kernel: &Kernel, name: &str) -> Result<usize, LevelsError> {
    kernel.buffers.iter().position(|buffer| buffer.name == name).ok_or_else(|| LevelsError::Buffer {
        name: name.into(),
        expected: kernel.buffers.iter().map(|buffer| buffer.name.clone()).collect(),
    })
}

/// Visitor for the first call: it fills the caches and counts nothing.
struct Warm<'a>(&'a mut Caches);

impl Visitor for Warm<'_> {
    fn line(&mut self, access: &Access, line: u64) {
        self.0.access(line, access.kind.writes());
    }
    fn enter(&mut self, _: u32, _: u64) {}
    fn iteration(&mut self) {}
    fn leave(&mut self) {}
}

/// Names of loops and streams, for the texts of bounds.
struct Names<'a> {
    report: &'a Report,
    kernel: &'a Kernel,
}

impl Names<'_> {
    fn label(&self, number: usize) -> &str {
        self.report.loops.get(number).map_or(OUTSIDE, |l| l.label.as_str())
    }

    /// Returns the bound (the code or a level) that takes the most cycles in these loops. Also
    /// returns the loop and the stream that take most of these cycles.
    fn bound_of_levels(&self, loops: &[(usize, &Bounds)], cycles: f64) -> LevelBound {
        let streams =
            || loops.iter().flat_map(|(number, bounds)| bounds.streams.iter().map(|(s, c)| (*number, *s, *c)));
        let of_level = |level: Level| streams().filter(|(_, s, _)| s.level == level).map(|(.., c)| c).sum::<f64>();
        let code = loops.iter().map(|(_, bounds)| bounds.code).sum::<f64>();
        let levels = Level::ALL.into_iter().map(|level| (Some(level), of_level(level)));
        // Of equal bounds, the first counts, so the code comes before levels.
        let all = [(None, code)].into_iter().chain(levels);
        let (level, most) = all.reduce(|best, next| if next.1 > best.1 { next } else { best }).unwrap_or((None, 0.0));
        let (number, what) = match level {
            None => {
                let by_code = |a: &&(usize, &Bounds), b: &&(usize, &Bounds)| a.1.code.total_cmp(&b.1.code);
                let number = loops.iter().max_by(by_code).map_or(self.report.loops.len(), |(number, _)| *number);
                let block = self.report.loops.get(number).map_or(&self.report.outside, |l| &l.body);
                (number, block.bound_text())
            }
            Some(level) => {
                let here = streams().filter(|(_, s, _)| s.level == level);
                let most = here.max_by(|a, b| a.2.total_cmp(&b.2));
                most.map_or((self.report.loops.len(), String::new()), |(number, stream, _)| (number, self.what(stream)))
            }
        };
        LevelBound { level, what, place: self.label(number).into(), part: part(most, cycles) }
    }

    fn what(&self, stream: Stream) -> String {
        format!("{} of {}", stream.kind.name(), self.kernel.buffers[stream.buffer].name)
    }
}

impl Display for LevelBound {
    /// Writes for example `L3 -> tile loads of x`.
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        write!(f, "{} -> {}", self.level.map_or("code", Level::name), self.what)
    }
}

impl Display for Levels {
    fn fmt(&self, f: &mut Formatter<'_>) -> FmtResult {
        let width = label_width(self.loops.iter().map(|l| indent(l.depth, &l.label)));
        let sizes = [self.memory.l1, self.memory.l2, self.memory.l3].map(|cache| format!("{} KiB", cache.bytes / 1024));
        writeln!(f, "with caches of {}; number of cache lines by the level that they come from:", sizes.join(", "))?;
        let [l1, l2, l3, memory] = Level::ALL.map(Level::name);
        writeln!(f, "{:<width$} {l1:>8} {l2:>8} {l3:>8} {memory:>8} {:>11}  bound by", "", "cycles")?;
        for l in &self.loops {
            let [l1, l2, l3, memory] = l.lines;
            write!(f, "{:<width$} {l1:>8} {l2:>8} {l3:>8} {memory:>8} {:>11.0}", indent(l.depth, &l.label), l.cycles)?;
            l.bound.as_ref().map_or(Ok(()), |bound| write!(f, "  {bound}"))?;
            writeln!(f)?;
        }
        writeln!(
            f,
            "cycles {:.0} (no overlap at all: {:.0}), {:.2} times the code's; tile unit {:.1} % (no overlap at all: {:.1} %)",
            self.cycles,
            self.cycles_drained,
            self.slowdown,
            100.0 * self.share,
            100.0 * self.share_drained
        )?;
        writeln!(
            f,
            "bounded by: {} in {}, {:.0} % of the cycles",
            self.bound,
            self.bound.place,
            100.0 * self.bound.part
        )
    }
}
