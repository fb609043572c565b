//! Coverage check: each byte of a received row, of a routing's ids and of the logits is sent
//! exactly once.
//!
//! Adjacent ranges of senders are joined to *runs*, whose bytes are sent at the same positions. A
//! received range must be inside one run, and none of its bytes may be sent twice.
//!
//! ```text
//! | two columns of 16 bytes each: 0..16 and 16..32     one run 0..32
//! the same with column_stride 0: 0..16 and 0..16     0..16 twice, 16..32 missing
//! ```
//!
//! An instance of a program with a state works on one part of the state's positions. It fires only
//! for rows that see its part (or, if it appends, whose position is in the part). A range that is
//! needed at some positions must therefore be sent at all of these positions.

use std::collections::HashMap;
use std::fmt;

use crate::descriptor::{Axis, Descriptor, End, Port, Program, Slice, TensorSource, program_name};

use super::{CheckError, malformed_error, received_slice};
use crate::layout::start;

/// Maximum number of compared ranges. The largest grid has fewer, and comparing this many is still
/// fast.
const MAX_RANGES: u64 = 1 << 26;

/// Fault of some bytes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No program sends the bytes.
    Missing,
    /// The bytes are sent more than once.
    Twice,
    /// The bytes are missing at some position that needs them, or come from different parts of a
    /// state.
    Positions,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Missing => "are not sent by any program; each byte must be sent exactly once",
            Fault::Twice => "are sent twice; each byte must be sent exactly once",
            Fault::Positions => "are not sent by one part for all positions that need them",
        })
    }
}

/// Positions `from..to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Positions {
    from: u64,
    to: u64,
}

impl Positions {
    /// Whether this range contains all positions of `other`.
    fn contain(self, other: Positions) -> bool {
        self.from <= other.from && self.to >= other.to
    }
}

/// All positions.
const ALWAYS: Positions = Positions { from: 0, to: u64::MAX };

/// Bytes `low..high` of a row, with the positions at which they are sent or needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    low: u64,
    high: u64,
    when: Positions,
}

/// Runs of sent bytes in order, and the bytes that are sent more than once.
#[derive(Clone, Debug, Default)]
struct Runs {
    runs: Vec<Run>,
    /// Ranges of bytes that are sent more than once, in order and disjoint.
    twice: Vec<(u64, u64)>,
}

impl Runs {
    fn new(mut ranges: Vec<Run>) -> Runs {
        ranges.sort_unstable();
        let mut joined = Runs::default();
        let mut end = 0;
        for range in ranges {
            if range.low < end {
                let again = (range.low, range.high.min(end));
                match joined.twice.last_mut() {
                    Some(last) if again.0 <= last.1 => last.1 = last.1.max(again.1),
                    _ => joined.twice.push(again),
                }
            }
            // Runs stay disjoint: bytes that overlap an earlier run are only in that run.
            let rest = Run { low: range.low.max(end), ..range };
            end = end.max(range.high);
            match joined.runs.last_mut() {
                _ if rest.low >= rest.high => {}
                Some(last) if rest.low == last.high && rest.when == last.when => last.high = rest.high,
                _ => joined.runs.push(rest),
            }
        }
        joined
    }

    /// Returns the first fault of the bytes `low..high`, which are needed at the positions `when`,
    /// and the affected bytes. Returns `None` if there is no fault.
    fn fault(&self, low: u64, high: u64, when: Positions) -> Option<((u64, u64), Fault)> {
        let twice = self.twice.partition_point(|(_, end)| *end <= low);
        if let Some((from, to)) = self.twice.get(twice).filter(|(from, _)| *from < high) {
            return Some(((low.max(*from), high.min(*to)), Fault::Twice));
        }
        // No byte of the range is sent twice, so the runs that overlap it are disjoint.
        let first = self.runs.partition_point(|run| run.low <= low).saturating_sub(1);
        let run = match self.runs.get(first) {
            Some(run) if (run.low..run.high).contains(&low) => run,
            _ => {
                let next = self.runs.iter().skip(first).map(|run| run.low).find(|at| *at > low);
                return Some(((low, next.unwrap_or(high).min(high)), Fault::Missing));
            }
        };
        if !run.when.contain(when) {
            return Some(((low, high.min(run.high)), Fault::Positions));
        }
        if run.high >= high {
            return None;
        }
        let next = self.runs.get(first + 1).filter(|next| next.low < high);
        match next {
            Some(next) if next.low == run.high => Some(((next.low, high.min(next.high)), Fault::Positions)),
            next => Some(((run.high, next.map_or(high, |next| next.low)), Fault::Missing)),
        }
    }
}

/// Returns the positions of rows for which a part of a state has work. Each part has `positions`
/// positions.
fn visible(positions: u32, part: u32, count: u32, appends: bool) -> Positions {
    let at = |part: u32| u64::from(part) * u64::from(positions);
    let to = if appends && part + 1 < count { at(part + 1) } else { u64::MAX };
    Positions { from: at(part), to }
}

/// Calls `each` for each part and distinct column of a program, with the bytes of the slice and the
/// positions at which they are used.
fn ranges(d: &Descriptor, program: &Program, slice: &Slice, mut each: impl FnMut(u32, u32, Run) -> bool) {
    for part in 0..d.parts(program) {
        let when = match program.state {
            Some(state) => {
                let parts = d.states[state as usize].parts;
                visible(parts.positions, part, parts.count, program.appends)
            }
            None => ALWAYS,
        };
        for column in 0..distinct(slice, program.columns) {
            let low = start(slice, column, part);
            if !each(column, part, Run { low, high: low + slice.bytes, when }) {
                return;
            }
        }
    }
}

/// Returns the number of columns with distinct slices: one if all have the same slice.
fn distinct(slice: &Slice, columns: u32) -> u32 {
    if slice.column_stride == 0 { 1 } else { columns }
}

/// State of the check.
struct Check<'d> {
    d: &'d Descriptor,
    /// Joined runs of bytes, by sending program and tensor.
    joined: HashMap<(u32, u32), Runs>,
    /// Number of ranges checked so far.
    count: u64,
}

impl Check<'_> {
    /// Adds to the number of checked ranges, up to the limit.
    fn note(&mut self, ranges: u64) -> Result<(), CheckError> {
        self.count = self.count.saturating_add(ranges);
        if self.count > MAX_RANGES {
            return Err(malformed_error(
                "streams",
                format!("all ports together send and receive more than {MAX_RANGES} ranges of rows, the limit"),
            ));
        }
        Ok(())
    }

    /// Returns the ranges of a tensor that a program's ports send. Checks their number before it
    /// allocates memory.
    fn sent_ranges(&mut self, program: &Program, tensor: u32) -> Result<Vec<Run>, CheckError> {
        let d = self.d;
        let mut all = Vec::new();
        for port in &program.ports {
            let Port::Send(slice) = port else { continue };
            if slice.tensor != tensor {
                continue;
            }
            // If all columns send the same slice, two copies of it are enough to find the overlap.
            let copies = if slice.column_stride == 0 { program.columns.min(2) } else { 1 };
            let each = u64::from(d.parts(program)).saturating_mul(distinct(slice, program.columns).into());
            self.note(each.saturating_mul(copies.into()))?;
            ranges(d, program, slice, |_, _, run| {
                all.extend((0..copies).map(|_| run));
                true
            });
        }
        Ok(all)
    }

    /// Returns the joined runs of bytes of a tensor that these programs send. If `whole` is set,
    /// the host also sends the whole row.
    fn joined_runs(&mut self, senders: &[u32], tensor: u32, whole: bool) -> Result<Runs, CheckError> {
        let mut all: Vec<Run> = Vec::new();
        if whole {
            all.push(Run { low: 0, high: self.d.tensors[tensor as usize].row_bytes, when: ALWAYS });
        }
        for sender in senders {
            let key = (*sender, tensor);
            if !self.joined.contains_key(&key) {
                let sent = self.sent_ranges(&self.d.programs[*sender as usize], tensor)?;
                self.joined.insert(key, Runs::new(sent));
            }
            let runs = &self.joined[&key];
            let found = (runs.runs.len() + runs.twice.len()) as u64;
            all.extend(&runs.runs);
            // Bytes that one sender sends twice are added twice, so that they remain overlaps.
            all.extend(runs.twice.iter().map(|(low, high)| Run { low: *low, high: *high, when: ALWAYS }));
            self.note(found)?;
        }
        Ok(Runs::new(all))
    }
}

/// Senders of a tensor to one program.
#[derive(Debug, Default)]
struct Senders {
    programs: Vec<u32>,
    host: bool,
}

/// Checks all received rows, the ids of routings, and the logits. Earlier checks must have shown
/// that the ends of streams are in range, and that no two streams are the same.
pub(super) fn check(d: &Descriptor) -> Result<(), CheckError> {
    let mut to_program: HashMap<(u32, u32), Senders> = HashMap::new();
    let mut to_host: HashMap<u32, Vec<u32>> = HashMap::new();
    for stream in &d.streams {
        match (stream.from, stream.to) {
            (End::Program(from), End::Program(to)) => {
                to_program.entry((to, stream.tensor)).or_default().programs.push(from);
            }
            (End::Host, End::Program(to)) => to_program.entry((to, stream.tensor)).or_default().host = true,
            (End::Program(from), End::Host) => to_host.entry(stream.tensor).or_default().push(from),
            (End::Host, End::Host) => {}
        }
    }
    let mut check = Check { d, joined: HashMap::new(), count: 0 };
    let nobody = Senders::default();
    for (number, program) in d.programs.iter().enumerate() {
        for (port, at) in program.ports.iter().enumerate() {
            let Some(slice) = received_slice(at) else { continue };
            let senders = to_program.get(&(number as u32, slice.tensor)).unwrap_or(&nobody);
            let runs = check.joined_runs(&senders.programs, slice.tensor, senders.host)?;
            check_received(&mut check, number, port, slice, &runs, "")?;
            if senders.host && d.tensors[slice.tensor as usize].source == TensorSource::Programs {
                // The host sends rows that earlier waves stored there.
                let stored = to_host.get(&slice.tensor).map_or(&[][..], Vec::as_slice);
                check.note(stored.len() as u64)?;
                let before = |from: &u32| d.programs[*from as usize].wave < program.wave;
                let before: Vec<u32> = stored.iter().copied().filter(before).collect();
                let runs = check.joined_runs(&before, slice.tensor, false)?;
                check_received(&mut check, number, port, slice, &runs, " at the host")?;
            }
        }
    }
    let logits = to_host.get(&d.logits).map_or(&[][..], Vec::as_slice).to_vec();
    let runs = check.joined_runs(&logits, d.logits, false)?;
    let whole = Run { low: 0, high: d.tensors[d.logits as usize].row_bytes, when: ALWAYS };
    fault(d, &runs, whole, d.logits, || "the host".to_owned())?;
    ids(&mut check)?;
    whole_rows(d)
}

/// Checks that each row ends where the slices of its senders end. Otherwise, receivers would
/// reserve memory for bytes that never arrive.
fn whole_rows(d: &Descriptor) -> Result<(), CheckError> {
    let mut ends: HashMap<u32, u64> = HashMap::new();
    for program in &d.programs {
        for port in &program.ports {
            if let Port::Send(slice) = port {
                let last = start(slice, program.columns.saturating_sub(1), d.parts(program).saturating_sub(1));
                let end = ends.entry(slice.tensor).or_default();
                *end = (*end).max(last + slice.bytes);
            }
        }
    }
    for (number, tensor) in (0..).zip(&d.tensors) {
        if let Some(end) = ends.get(&number).filter(|end| **end != tensor.row_bytes) {
            let problem = format!(
                "its rows have {} bytes, but programs write {end} bytes of a row; both numbers must be equal",
                tensor.row_bytes
            );
            return Err(malformed_error(format!("tensor {number} ({})", tensor.name), problem));
        }
    }
    Ok(())
}

/// Checks that all ids of a routing are computed, and not in a later wave than the programs that
/// need them.
fn ids(check: &mut Check<'_>) -> Result<(), CheckError> {
    let d = check.d;
    let mut makers: HashMap<u32, Vec<u32>> = HashMap::new();
    for (number, program) in d.programs.iter().enumerate() {
        for port in &program.ports {
            if let Port::Send(slice) = port {
                let programs = makers.entry(slice.tensor).or_default();
                if programs.last() != Some(&(number as u32)) {
                    programs.push(number as u32);
                }
            }
        }
    }
    let mut checked = vec![false; d.routings.len()];
    for (number, program) in d.programs.iter().enumerate() {
        let Axis::Routed(routing) = program.axis else { continue };
        let tensor = d.routings[routing as usize].ids;
        let programs = makers.get(&tensor).map_or(&[][..], Vec::as_slice);
        if !std::mem::replace(&mut checked[routing as usize], true) {
            let runs = check.joined_runs(programs, tensor, false)?;
            let whole = Run { low: 0, high: d.tensors[tensor as usize].row_bytes, when: ALWAYS };
            fault(d, &runs, whole, tensor, || format!("routing {routing}"))?;
        }
        check.note(programs.len() as u64)?;
        if let Some(late) = programs.iter().find(|maker| d.programs[**maker as usize].wave > program.wave) {
            let late = program_name(d, *late as usize);
            return Err(malformed_error(
                program_name(d, number),
                format!(
                    "{late}, which computes the expert ids, is in a later wave; it must be in the same wave or an earlier one"
                ),
            ));
        }
    }
    Ok(())
}

/// Checks the bytes that a port receives.
fn check_received(
    check: &mut Check<'_>,
    number: usize,
    port: usize,
    slice: &Slice,
    runs: &Runs,
    place: &str,
) -> Result<(), CheckError> {
    let d = check.d;
    let program = &d.programs[number];
    let who = |column: u32, part: u32| {
        format!("{}, port {port}, column {column}, part {part}{place}", program_name(d, number))
    };
    let mut error = Ok(());
    let mut count = 0;
    match &program.ports[port] {
        Port::ReceiveParts { state, .. } => {
            let parts = d.states[*state as usize].parts;
            for part in 0..parts.count {
                let when = visible(parts.positions, part, parts.count, false);
                for column in 0..distinct(slice, program.columns) {
                    let low = start(slice, column, part);
                    count += 1;
                    let needed = Run { low, high: low + slice.bytes, when };
                    fault(d, runs, needed, slice.tensor, || who(column, part))?;
                }
            }
        }
        _ => ranges(d, program, slice, |column, part, needed| {
            count += 1;
            error = fault(d, runs, needed, slice.tensor, || who(column, part));
            error.is_ok()
        }),
    }
    error?;
    check.note(count)
}

/// Checks that `runs` send each byte of `needed` once, at all positions of `needed`. `who` names
/// the receiver for the error.
fn fault(
    d: &Descriptor,
    runs: &Runs,
    needed: Run,
    tensor: u32,
    who: impl FnOnce() -> String,
) -> Result<(), CheckError> {
    match runs.fault(needed.low, needed.high, needed.when) {
        None => Ok(()),
        Some(((from, to), fault)) => {
            let tensor = d.tensors[tensor as usize].name.clone();
            Err(CheckError::Coverage { receiver: who(), tensor, from, to, fault })
        }
    }
}

#[cfg(test)]
mod tests {
    use ixc_ir::random::Random;

    use super::*;

    /// Whether a range has no fault; this reference for tests looks at every byte and position.
    fn by_byte(ranges: &[Run], low: u64, high: u64, when: Positions) -> bool {
        (low..high).all(|byte| {
            let of: Vec<&Run> = ranges.iter().filter(|run| (run.low..run.high).contains(&byte)).collect();
            of.len() == 1 && of[0].when.from <= when.from && of[0].when.to >= when.to
        })
    }

    #[test]
    fn byte_ranges_match_a_check_of_every_byte() {
        const LATE: Positions = Positions { from: 8, to: u64::MAX };
        let mut random = Random::new(1);
        let mut below = |n: u64| random.below(n);
        let (mut good, mut bad) = (0, 0);
        for _ in 0..4000 {
            let mut at = 0;
            let ranges: Vec<Run> = (0..below(6))
                .map(|_| {
                    let low = (at + u64::from(below(5) == 0)).saturating_sub(u64::from(below(6) == 0));
                    at = low + 1 + below(4);
                    Run { low, high: at, when: if below(5) == 0 { LATE } else { ALWAYS } }
                })
                .collect();
            let (low, when) = (below(8), if below(3) == 0 { LATE } else { ALWAYS });
            let high = low + 1 + below(8);
            let right = by_byte(&ranges, low, high, when);
            // Runs of different parts are rejected even if both are sent: see `Fault::Positions`.
            let first = ranges.iter().find(|run| (run.low..run.high).contains(&low));
            let one =
                ranges.iter().filter(|r| r.low < high && low < r.high).all(|r| Some(r.when) == first.map(|f| f.when));
            let found = Runs::new(ranges.clone()).fault(low, high, when);
            assert_eq!(found.is_none(), right && one, "{ranges:?} {low}..{high} {when:?}: {found:?}");
            if let Some(((from, to), _)) = found {
                assert!(low <= from && from < to && to <= high, "{ranges:?} {low}..{high}: {found:?}");
            }
            *(if found.is_none() { &mut good } else { &mut bad }) += 1;
        }
        assert!(good > 400 && bad > 400, "{good} {bad}");
    }

    #[test]
    fn range_count_is_limited_before_allocation() {
        let d = crate::simulate::tests::chain("tiny", &[(1, 0), (3, 0)]);
        let mut check = Check { d: &d, joined: HashMap::new(), count: MAX_RANGES - 1 };
        assert_eq!(check.sent_ranges(&d.programs[0], 1).unwrap().len(), 1);
        let error = check.sent_ranges(&d.programs[0], 1).unwrap_err().to_string();
        assert!(error.contains("more than 67108864 ranges"), "{error}");
    }
}
