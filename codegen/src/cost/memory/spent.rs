//! The time of each loop, where operands come from where they lie.
//!
//! A stretch takes the larger of two: the cycles of its code, and those that its lines take from beyond the first level, one after the
//! other. A stretch is a whole run of an innermost loop, whose iterations overlap, and one iteration of any other. What the kernel does
//! outside of loops is one stretch.
//!
//! A line that is written takes its level's time twice: it is read first, and goes back later.

use std::collections::BTreeMap;

use ixc_targets::memory::{Level, TILE_LINES, line_load, tile_load};

use super::super::report::{LoopReport, Report, Whole};
use super::cache::Caches;
use super::walk::{Access, Kind, Visitor};

/// How often a line that is written is moved.
const MOVES_OF_A_STORE: f64 = 2.0;

/// Accesses of one kind to one buffer that one level serves: what can bound a stretch beside its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    /// Where lines come from.
    pub level: Level,
    /// What is done with them.
    pub kind: Kind,
    /// The buffer, by its position.
    pub buffer: usize,
}

/// Cycles of stretches by what bounds them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Stretches that their code bounds.
    pub code: f64,
    /// The others: each stream's part of the time that it takes with others.
    pub streams: BTreeMap<Stream, f64>,
}

/// What a loop, or the code outside of loops, has taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Total {
    /// Lines from each level, in the order of [`Level::ALL`].
    pub lines: [u64; 4],
    /// Cycles, and those if nothing overlaps, as in [`Whole`].
    pub cycles: f64,
    /// See [`Total::cycles`].
    pub cycles_drained: f64,
    /// What bounds them.
    pub bounds: Bounds,
    /// Cycles that the code alone would have taken, and those without overlap.
    code: (f64, f64),
}

/// What the code of a loop takes, or the code outside of loops.
#[derive(Clone, Copy, Debug)]
struct Code {
    /// Cycles of an iteration.
    cycles: f64,
    /// Its latency.
    latency: f64,
    /// Steps of the kernel's loop in one iteration.
    step: u64,
    /// Whether a stretch is a whole run.
    innermost: bool,
}

impl Code {
    fn of(l: &LoopReport) -> Code {
        let latency = f64::from(l.body.critical_path);
        Code { cycles: l.body.cycles, latency, step: l.step.max(1) as u64, innermost: l.innermost && l.repeats }
    }

    /// Cycles of the code alone in a stretch of so many iterations of the kernel's loop.
    fn of_stretch(self, iterations: u64) -> f64 {
        match self.innermost {
            true => (iterations / self.step) as f64 * self.cycles,
            false => iterations as f64 / self.step as f64 * self.cycles,
        }
    }

    /// Cycles of a stretch without overlap: the first iteration's latency is paid, as [`Whole::cycles_drained`] says.
    fn drained(self, code: f64, lines: f64) -> f64 {
        match self.innermost {
            true => code.max(lines) + (self.latency - self.cycles).max(0.0),
            false => code.max(self.latency).max(lines),
        }
    }
}

/// A stretch that has not ended.
#[derive(Debug, Default)]
struct Open {
    /// Whose it is, by its position in the totals.
    owner: usize,
    iterations: u64,
    streams: Vec<(Stream, f64)>,
}

/// Walks a kernel through caches.
#[derive(Debug)]
pub struct Spent<'a> {
    caches: &'a mut Caches,
    /// The loop of the code that each statement is, where it is one.
    loops: BTreeMap<u32, usize>,
    codes: Vec<Code>,
    /// Of each loop of the code, and last of the code outside.
    totals: Vec<Total>,
    /// Lines from each level by buffer and kind of access.
    traffic: BTreeMap<usize, [[u64; 4]; Kind::ALL.len()]>,
    /// The innermost is last; the first is the code outside of loops.
    open: Vec<Open>,
    /// For each open loop of the kernel whether the code has it, too.
    owns: Vec<bool>,
}

impl<'a> Spent<'a> {
    /// Nothing spent yet. Caches are as the call before left them.
    pub fn new(report: &Report, caches: &'a mut Caches) -> Spent<'a> {
        let mut loops = BTreeMap::new();
        for (number, l) in report.loops.iter().enumerate() {
            // Of several loops that come from one statement the first has its accesses.
            if let Some(statement) = l.statement {
                loops.entry(statement).or_insert(number);
            }
        }
        let outside = &report.outside;
        let outside =
            Code { cycles: outside.cycles, latency: f64::from(outside.critical_path), step: 1, innermost: false };
        let codes: Vec<Code> = report.loops.iter().map(Code::of).chain([outside]).collect();
        let open = vec![Open { owner: report.loops.len(), ..Open::default() }];
        let totals = vec![Total::default(); codes.len()];
        Spent { caches, loops, codes, totals, traffic: BTreeMap::new(), open, owns: Vec::new() }
    }

    /// Lines from each level, by buffer and kind of access.
    pub fn traffic(&self) -> impl Iterator<Item = (usize, Kind, [u64; 4])> {
        let kinds = |(&buffer, lines): (&usize, &[[u64; 4]; Kind::ALL.len()])| {
            Kind::ALL.into_iter().zip(*lines).map(move |(kind, lines)| (buffer, kind, lines))
        };
        self.traffic.iter().flat_map(kinds).filter(|(.., lines)| lines.iter().any(|lines| *lines > 0))
    }

    /// What each loop of the code has taken, and last the code outside of loops. `whole` says what loops without accesses take.
    pub fn finish(mut self, whole: &Whole) -> Vec<Total> {
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

    /// Ends a stretch of the innermost open loop of the code; another of it begins.
    fn close(&mut self, iterations: u64) {
        let Some(open) = self.open.last_mut() else { return };
        let (code, total) = (self.codes[open.owner], &mut self.totals[open.owner]);
        let alone = code.of_stretch(iterations);
        let lines: f64 = open.streams.iter().map(|(_, cycles)| cycles).sum();
        total.code.0 += alone;
        total.code.1 += code.drained(alone, 0.0);
        total.cycles += alone.max(lines);
        total.cycles_drained += code.drained(alone, lines);
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

impl Visitor for Spent<'_> {
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
        self.open.extend(owner.map(|&owner| Open { owner, ..Open::default() }));
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

/// What a line takes; nothing beside the ports where the first level has it.
fn cycles(kind: Kind, level: Level) -> Option<f64> {
    let once = match kind.is_tile() {
        true => tile_load(level)?.cycles / TILE_LINES as f64,
        false => line_load(level)?.cycles,
    };
    Some(if kind.writes() { MOVES_OF_A_STORE * once } else { once })
}
