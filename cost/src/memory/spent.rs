//! Time of each loop with caches.
//!
//! A stretch takes the larger of two times: the cycles of its code, and the sum of the cycles of
//! its lines from beyond the first level. A stretch is a whole run of an innermost loop, whose
//! iterations overlap, or one iteration of any other loop. All code outside of loops is one
//! stretch.
//!
//! A written line takes its level's time twice: it is first read, and written back later.

use std::collections::BTreeMap;

use ixc_targets::memory::{Level, TILE_LINES, line_load, tile_load};

use super::super::report::{KernelCost, LoopReport, Report};
use super::cache::Caches;
use super::walk::{Access, Kind, Visitor};

/// Number of transfers of a written line.
const MOVES_OF_A_STORE: f64 = 2.0;

/// Accesses of one kind to one buffer that one level serves. Either a stream or the code bounds a
/// stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    /// Level of the lines.
    pub level: Level,
    /// Kind of access.
    pub kind: Kind,
    /// Index of the buffer.
    pub buffer: usize,
}

/// Cycles of stretches by bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Cycles of stretches that their code bounds.
    pub code: f64,
    /// Cycles of the other stretches: each stream's part of the combined time.
    pub streams: BTreeMap<Stream, f64>,
}

/// Result for a loop, or for the code outside of loops.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Total {
    /// Lines from each level, in the order of [`Level::ALL`].
    pub lines: [u64; 4],
    /// Cycles, and cycles without any overlap, as in [`KernelCost`].
    pub cycles: f64,
    /// See [`Total::cycles`].
    pub cycles_drained: f64,
    /// The cycles by bound.
    pub bounds: Bounds,
    /// Cycles of the code alone, and the same without overlap.
    code: (f64, f64),
}

/// Cycles of a loop's code, or of the code outside of loops.
#[derive(Clone, Copy, Debug)]
struct Code {
    /// Cycles of an iteration.
    cycles: f64,
    /// Latency of an iteration.
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

    /// Returns the number of cycles of the code alone in a stretch of `iterations` iterations of
    /// the kernel's loop.
    fn of_stretch(self, iterations: u64) -> f64 {
        match self.innermost {
            true => (iterations / self.step) as f64 * self.cycles,
            false => iterations as f64 / self.step as f64 * self.cycles,
        }
    }

    /// Returns the number of cycles of a stretch without overlap. It includes the first iteration's
    /// latency, as in [`KernelCost::cycles_drained`].
    fn cycles_without_overlap(self, code: f64, lines: f64) -> f64 {
        match self.innermost {
            true => code.max(lines) + (self.latency - self.cycles).max(0.0),
            false => code.max(self.latency).max(lines),
        }
    }
}

/// An unfinished stretch.
#[derive(Debug, Default)]
struct OpenStretch {
    /// Index of the stretch's loop in the totals.
    owner: usize,
    iterations: u64,
    streams: Vec<(Stream, f64)>,
}

/// Walks a kernel through caches.
#[derive(Debug)]
pub struct CacheWalk<'a> {
    caches: &'a mut Caches,
    /// Loops of the code by statement.
    loops: BTreeMap<u32, usize>,
    codes: Vec<Code>,
    /// Results for each loop of the code, and finally for the code outside.
    totals: Vec<Total>,
    /// Lines from each level by buffer and kind of access.
    traffic: BTreeMap<usize, [[u64; 4]; Kind::ALL.len()]>,
    /// Open stretches. The innermost is last; the first is the code outside of loops.
    open: Vec<OpenStretch>,
    /// Whether the machine code also has the loop, for each open loop of the kernel IR.
    owns: Vec<bool>,
}

/// Accesses of one kind to one buffer.
pub struct BufferTraffic {
    /// Number of the buffer.
    pub buffer: usize,
    /// Kind of access.
    pub kind: Kind,
    /// Lines from each level.
    pub lines: [u64; 4],
}

impl<'a> CacheWalk<'a> {
    /// Starts with empty results. `caches` must be in the state after the previous call.
    pub fn new(report: &Report, caches: &'a mut Caches) -> CacheWalk<'a> {
        let mut loops = BTreeMap::new();
        for (number, l) in report.loops.iter().enumerate() {
            // Of several loops of one statement, the first gets the accesses.
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

    /// Returns the lines from each level, by buffer and kind of access.
    pub fn traffic(&self) -> impl Iterator<Item = BufferTraffic> {
        let kinds = |(&buffer, lines): (&usize, &[[u64; 4]; Kind::ALL.len()])| {
            Kind::ALL.into_iter().zip(*lines).map(move |(kind, lines)| BufferTraffic { buffer, kind, lines })
        };
        self.traffic.iter().flat_map(kinds).filter(|traffic| traffic.lines.iter().any(|lines| *lines > 0))
    }

    /// Returns the results for each loop of the code, and finally for the code outside. The cycles
    /// of loops without accesses come from `whole`.
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

/// Returns the number of cycles of a line; `None` for the first level, in which only the ports
/// limit accesses.
fn cycles(kind: Kind, level: Level) -> Option<f64> {
    let once = match kind.is_tile() {
        true => tile_load(level)?.cycles / TILE_LINES as f64,
        false => line_load(level)?.cycles,
    };
    Some(if kind.writes() { MOVES_OF_A_STORE * once } else { once })
}
