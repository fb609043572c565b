//! Time of each loop with caches.
//!
//! A stretch takes the larger of two times: the cycles of its code, and the sum of the cycles of
//! those lines that are not in the first level. A stretch is a whole run of an innermost loop,
//! whose iterations overlap, or one iteration of any other loop. All code outside of loops is one
//! stretch.
//!
//! A written line takes its level's time twice: it is first read, and later written back.

use std::collections::BTreeMap;

use ixc_targets::memory::{Level, TILE_LINES, line_load, tile_load};

use super::super::report::{KernelCost, LoopReport, Report};
use super::cache::Caches;
use super::walk::{Access, Kind, Visitor};

/// Number of transfers for a written line.
const MOVES_OF_A_STORE: f64 = 2.0;

/// Accesses of one kind to one buffer whose lines come from one level. A stretch is bounded either
/// by streams or by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    /// Level from which the lines come.
    pub level: Level,
    /// Kind of access.
    pub kind: Kind,
    /// Index of the buffer.
    pub buffer: usize,
}

/// Cycles of all stretches, by what bounds them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Cycles of those stretches that their code bounds.
    pub code: f64,
    /// Cycles of all other stretches, divided among the streams.
    pub streams: BTreeMap<Stream, f64>,
}

/// Result for one loop, or for the code outside of loops.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Total {
    /// Number of lines from each level, in the order of [`Level::ALL`].
    pub lines: [u64; 4],
    /// Cycles if code and transfers of lines overlap.
    pub cycles: f64,
    /// Cycles without any overlap, as in [`KernelCost::cycles_drained`].
    pub cycles_drained: f64,
    /// The cycles by bound.
    pub bounds: Bounds,
    /// Cycles of the code without caches: with overlap, and without.
    code: (f64, f64),
}

/// Cycles of a loop's code, or of the code outside of loops.
#[derive(Clone, Copy, Debug)]
struct Code {
    /// Cycles of one iteration.
    cycles: f64,
    /// Latency of one iteration.
    latency: f64,
    /// Steps of the kernel's loop in one iteration.
    step: u64,
    /// Whether a stretch is a whole run of the loop.
    innermost: bool,
}

impl Code {
    fn from_loop(l: &LoopReport) -> Code {
        let latency = f64::from(l.body.critical_path);
        Code { cycles: l.body.cycles, latency, step: l.step.max(1) as u64, innermost: l.innermost && l.repeats }
    }

    /// Returns the cycles of the code, without caches, in a stretch of `iterations` iterations of
    /// the kernel's loop.
    fn of_stretch(self, iterations: u64) -> f64 {
        match self.innermost {
            true => (iterations / self.step) as f64 * self.cycles,
            false => iterations as f64 / self.step as f64 * self.cycles,
        }
    }

    /// Returns the cycles of a stretch without overlap. They include the latency of the first
    /// iteration, as in [`KernelCost::cycles_drained`].
    fn cycles_without_overlap(self, code: f64, lines: f64) -> f64 {
        match self.innermost {
            true => code.max(lines) + (self.latency - self.cycles).max(0.0),
            false => code.max(self.latency).max(lines),
        }
    }
}

/// A stretch that has not ended yet.
#[derive(Debug, Default)]
struct OpenStretch {
    /// Index in the totals of the loop to which the stretch belongs.
    owner: usize,
    iterations: u64,
    streams: Vec<(Stream, f64)>,
}

/// Visitor that counts the accesses of a kernel, with simulated caches.
#[derive(Debug)]
pub struct CacheWalk<'a> {
    caches: &'a mut Caches,
    /// Index of the code's loop, by the number of the IR statement.
    loops: BTreeMap<u32, usize>,
    codes: Vec<Code>,
    /// Results for each loop of the code, and last for the code outside of loops.
    totals: Vec<Total>,
    /// Number of lines from each level, by buffer and kind of access.
    traffic: BTreeMap<usize, [[u64; 4]; Kind::ALL.len()]>,
    /// Open stretches. The last one is innermost; the first one is the code outside of loops.
    open: Vec<OpenStretch>,
    /// For each open loop of the kernel IR, whether the machine code also has this loop.
    owns: Vec<bool>,
}

/// Accesses of one kind to one buffer.
pub struct BufferTraffic {
    /// Number of the buffer.
    pub buffer: usize,
    /// Kind of access.
    pub kind: Kind,
    /// Number of lines from each level.
    pub lines: [u64; 4],
}

impl<'a> CacheWalk<'a> {
    /// Creates a visitor with empty results. `caches` must have the contents after the previous
    /// call.
    pub fn new(report: &Report, caches: &'a mut Caches) -> CacheWalk<'a> {
        let mut loops = BTreeMap::new();
        for (number, l) in report.loops.iter().enumerate() {
            // If several loops of the code come from one statement, the first one gets the
            // accesses.
            if let Some(statement) = l.statement {
                loops.entry(statement).or_insert(number);
            }
        }
        let outside = &report.outside;
        let outside =
            Code { cycles: outside.cycles, latency: f64::from(outside.critical_path), step: 1, innermost: false };
        let codes: Vec<Code> = report.loops.iter().map(Code::from_loop).chain([outside]).collect();
        let open = vec![OpenStretch { owner: report.loops.len(), ..OpenStretch::default() }];
        let totals = vec![Total::default(); codes.len()];
        CacheWalk { caches, loops, codes, totals, traffic: BTreeMap::new(), open, owns: Vec::new() }
    }

    /// Returns the number of lines from each level, by buffer and kind of access.
    pub fn traffic(&self) -> impl Iterator<Item = BufferTraffic> {
        let kinds = |(&buffer, lines): (&usize, &[[u64; 4]; Kind::ALL.len()])| {
            Kind::ALL.into_iter().zip(*lines).map(move |(kind, lines)| BufferTraffic { buffer, kind, lines })
        };
        self.traffic.iter().flat_map(kinds).filter(|traffic| traffic.lines.iter().any(|lines| *lines > 0))
    }

    /// Returns the results for each loop of the code, and last for the code outside of loops.
    /// `whole` has the cycles of loops without accesses.
    pub fn finish(mut self, whole: &KernelCost) -> Vec<Total> {
        self.close(1);
        let outside = (whole.outside, whole.outside_drained);
        let alone = whole.loops.iter().map(|l| (l.cycles, l.cycles_drained)).chain([outside]);
        for (total, (cycles, drained)) in self.totals.iter_mut().zip(alone) {
            let left = (cycles - total.code.0).max(0.0);
            total.cycles += left;
            total.bounds.code += left;
            total.cycles_drained += (drained - total.code.1).max(0.0);
        }
        self.totals
    }

    /// Ends a stretch of the innermost open loop and begins the next one.
    fn close(&mut self, iterations: u64) {
        let Some(open) = self.open.last_mut() else { return };
        let (code, total) = (self.codes[open.owner], &mut self.totals[open.owner]);
        let alone = code.of_stretch(iterations);
        let lines: f64 = open.streams.iter().map(|(_, cycles)| cycles).sum();
        total.code.0 += alone;
        total.code.1 += code.cycles_without_overlap(alone, 0.0);
        total.cycles += alone.max(lines);
        total.cycles_drained += code.cycles_without_overlap(alone, lines);
        if lines > alone {
            for &(stream, cycles) in &open.streams {
                *total.bounds.streams.entry(stream).or_default() += cycles;
            }
        } else {
            total.bounds.code += alone;
        }
        open.streams.clear();
        open.iterations = 0;
    }
}

impl Visitor for CacheWalk<'_> {
    fn line(&mut self, access: &Access, line: u64) {
        let level = self.caches.access(line, access.kind.writes());
        let Some(open) = self.open.last_mut() else { return };
        self.totals[open.owner].lines[level as usize] += 1;
        self.traffic.entry(access.buffer).or_default()[access.kind as usize][level as usize] += 1;
        let Some(cycles) = cycles(access.kind, level) else { return };
        let stream = Stream { level, kind: access.kind, buffer: access.buffer };
        match open.streams.iter_mut().find(|(found, _)| *found == stream) {
            Some((_, sum)) => *sum += cycles,
            None => open.streams.push((stream, cycles)),
        }
    }

    fn enter(&mut self, statement: u32, _: u64) {
        let owner = self.loops.get(&statement);
        self.owns.push(owner.is_some());
        self.open.extend(owner.map(|&owner| OpenStretch { owner, ..OpenStretch::default() }));
    }

    fn iteration(&mut self) {
        let Some(open) = self.open.last_mut().filter(|_| self.owns.last() == Some(&true)) else { return };
        open.iterations += 1;
        if !self.codes[open.owner].innermost {
            self.close(1);
        }
    }

    fn leave(&mut self) {
        if self.owns.pop() != Some(true) {
            return;
        }
        if let Some(iterations) = self.open.last().map(|open| open.iterations).filter(|iterations| *iterations > 0) {
            self.close(iterations);
        }
        self.open.pop();
    }
}

/// Returns the number of cycles of a line from a level. Returns `None` for the first level, whose
/// accesses are limited only by ports.
fn cycles(kind: Kind, level: Level) -> Option<f64> {
    let once = match kind.is_tile() {
        true => tile_load(level)?.cycles / TILE_LINES as f64,
        false => line_load(level)?.cycles,
    };
    Some(if kind.writes() { MOVES_OF_A_STORE * once } else { once })
}
