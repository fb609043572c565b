//! Output of a recorder's events as JSON in Chrome's trace event format, which Perfetto reads.
//!
//! ```json
//! {"displayTimeUnit":"ns","otherData":{"dropped_events":"0"},"traceEvents":[
//! {"ph":"M","pid":2,"name":"process_name","args":{"name":"threads"}},
//! {"ph":"X","pid":2,"tid":0,"ts":1.250,"dur":80.125,"name":"linear blk.0.attn_q","args":{"items":64}}
//! ]}
//! ```
//!
//! Spans are complete events (`X`, with a duration). Each lane is shown as a thread of one of five
//! processes. The drive has counters (`C`), which are computed here from its reads. An arrow (`s`
//! to `f`) connects a read with the thread that waited for it. Times are in microseconds since the
//! recorder was made, with three decimals.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Write as _};
use std::io::{self, Write};
use std::time::Instant;

use super::{Buffer, Read, Recorder, Slot, SlotContents, Span, Stage, Step, Work, lock};
use crate::reads::{BlockId, Class};

/// Process numbers, in the order in which viewers show the processes.
const STEPS: u32 = 1;
const THREADS: u32 = 2;
const DRIVE: u32 = 3;
const SLOTS: u32 = 4;
const LOADING: u32 = 5;
/// Min length of an interval for the drive's rate, in nanoseconds.
const RATE_SPAN: u64 = 10_000_000;
/// Max number of intervals for the drive's rate.
const RATES: u64 = 4096;

/// First bytes of a trace.
const BEGIN: &[u8] = br#"{"displayTimeUnit":"ns","traceEvents":["#;
/// Name of the first process; used to recognise our traces.
const FIRST_PROCESS: &str = "tokens";

/// Returns whether a file that begins with these bytes is one of our traces.
pub(super) fn is_trace(head: &[u8]) -> bool {
    let block_name = format!("{{\"name\":\"{FIRST_PROCESS}\"}}");
    head.starts_with(BEGIN) && head.windows(block_name.len()).any(|window| window == block_name.as_bytes())
}

/// Text inside a JSON string. Labels come from plans, which are untrusted.
struct Text<T>(T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Escape<'a, 'f>(&'a mut fmt::Formatter<'f>);
        impl fmt::Write for Escape<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|c| match c {
                    '"' => self.0.write_str("\\\""),
                    '\\' => self.0.write_str("\\\\"),
                    // JSON requires escapes for control characters. Unicode marks that reverse the
                    // writing direction are also escaped.
                    c if c.is_control()
                        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
                    {
                        write!(self.0, "\\u{:04x}", u32::from(c))
                    }
                    c => self.0.write_char(c),
                })
            }
        }
        f.write_char('"')?;
        write!(Escape(f), "{}", self.0)?;
        f.write_char('"')
    }
}

/// A number of nanoseconds, displayed in microseconds, as the format requires.
struct Micros(u64);

impl Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// A block's id, or its number if the block was not described.
struct BlockName(Option<BlockId>, u32);

impl Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "layer {} expert {}", id.group, id.expert),
            None => write!(f, "block {}", self.1),
        }
    }
}

fn block_name(id: BlockId) -> BlockName {
    BlockName(Some(id), 0)
}

/// The list of events in the output.
struct Out<'w> {
    out: &'w mut dyn Write,
    first: bool,
}

impl Out<'_> {
    /// Writes an event as an object with these fields.
    fn event(&mut self, fields: fmt::Arguments<'_>) -> io::Result<()> {
        self.out.write_all(if std::mem::take(&mut self.first) { b"\n{" } else { b",\n{" })?;
        self.out.write_fmt(fields)?;
        self.out.write_all(b"}")
    }

    fn process(&mut self, pid: u32, name: &str) -> io::Result<()> {
        self.event(format_args!(r#""ph":"M","pid":{pid},"name":"process_name","args":{{"name":{}}}"#, Text(name)))?;
        self.event(format_args!(r#""ph":"M","pid":{pid},"name":"process_sort_index","args":{{"sort_index":{pid}}}"#))
    }

    fn lane(&mut self, pid: u32, tid: u32, name: fmt::Arguments<'_>) -> io::Result<()> {
        let name = Text(name);
        self.event(format_args!(r#""ph":"M","pid":{pid},"tid":{tid},"name":"thread_name","args":{{"name":{name}}}"#))?;
        let sort = r#""name":"thread_sort_index""#;
        self.event(format_args!(r#""ph":"M","pid":{pid},"tid":{tid},{sort},"args":{{"sort_index":{tid}}}"#))
    }

    /// Writes a span of a thread of a process, from `start` to `end` in nanoseconds.
    fn span(
        &mut self,
        pid: u32,
        tid: u32,
        start: u64,
        end: u64,
        name: &dyn Display,
        args: fmt::Arguments<'_>,
    ) -> io::Result<()> {
        let (ts, dur, name) = (Micros(start), Micros(end.saturating_sub(start)), Text(name));
        self.event(format_args!(
            r#""ph":"X","pid":{pid},"tid":{tid},"ts":{ts},"dur":{dur},"name":{name},"args":{{{args}}}"#
        ))
    }

    /// Writes an event at the time when a buffer became full. Returns the number of dropped events.
    fn write_full_buffer<T>(&mut self, pid: u32, tid: u32, buffer: &Buffer<T>) -> io::Result<u64> {
        if buffer.dropped > 0 {
            let ts = Micros(buffer.spans.iter().map(|span| span.end).max().unwrap_or(0));
            let name = Text(format_args!("{} events did not fit from here on", buffer.dropped));
            self.event(format_args!(r#""ph":"i","s":"t","pid":{pid},"tid":{tid},"ts":{ts},"name":{name}"#))?;
        }
        Ok(buffer.dropped)
    }
}

/// Sorts spans by time, each outer span before its inner spans.
fn sort_spans<T: Copy>(spans: &[Span<T>]) -> Vec<Span<T>> {
    // If two spans are equal, the one that was recorded later is the outer one.
    let mut sorted: Vec<Span<T>> = spans.iter().rev().copied().collect();
    sorted.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
    sorted
}

impl Recorder {
    /// Writes the trace so far, and returns the number of dropped events.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<u64> {
        out.write_all(BEGIN)?;
        let mut list = Out { out, first: true };
        let mut dropped = self.write_steps(&mut list)?;
        dropped += self.write_threads(&mut list)?;
        if self.blocks.get().is_some() {
            dropped += self.write_reads(&mut list)?;
            dropped += self.write_slots(&mut list)?;
            self.write_arrows(&mut list)?;
        }
        self.write_phases(&mut list)?;
        let ixc_version = concat!("ixc ", env!("CARGO_PKG_VERSION"));
        writeln!(out, "\n],\"otherData\":{{\"made_by\":\"{ixc_version}\",\"dropped_events\":\"{dropped}\"}}}}")?;
        Ok(dropped)
    }

    fn write_steps(&self, out: &mut Out<'_>) -> io::Result<u64> {
        out.process(STEPS, FIRST_PROCESS)?;
        out.lane(STEPS, 0, format_args!("steps"))?;
        let steps = lock(&self.steps);
        for Span { start, end, what } in &steps.spans {
            let Step { tokens, position, failed } = *what;
            let name = match tokens {
                1 => format!("token {position}"),
                _ => format!("prefill of {tokens} tokens"),
            };
            let args = format_args!(r#""tokens":{tokens},"position":{position},"failed":{failed}"#);
            out.span(STEPS, 0, *start, *end, &name, args)?;
        }
        out.write_full_buffer(STEPS, 0, &steps)
    }

    fn write_threads(&self, out: &mut Out<'_>) -> io::Result<u64> {
        let Some(threads) = self.threads.get() else { return Ok(0) };
        out.process(THREADS, "threads")?;
        let mut dropped = 0;
        for (tid, lane) in (0u32..).zip(&threads.lanes) {
            out.lane(THREADS, tid, format_args!("thread {tid}"))?;
            let lane = lock(&lane.0);
            for Span { start, end, what } in sort_spans(&lane.spans) {
                let mut span = |name: &dyn Display| out.span(THREADS, tid, start, end, name, format_args!(""));
                match what {
                    Work::Task { task, kernel, expert, items, rows, bytes } => {
                        let label = threads.labels.get(task as usize).map_or("task", String::as_str);
                        let kernel = Text(threads.kernels.get(kernel as usize).map_or("kernel", String::as_str));
                        let did = format!(r#""items":{items},"kernel":{kernel},"rows":{rows},"bytes":{bytes}"#);
                        match expert {
                            Some(expert) => {
                                let args = format_args!(r#"{did},"expert":{expert}"#);
                                out.span(THREADS, tid, start, end, &format_args!("{label} expert {expert}"), args)
                            }
                            None => out.span(THREADS, tid, start, end, &label, format_args!("{did}")),
                        }
                    }
                    Work::Wait(block) => span(&format_args!("wait for {}", block_name(block))),
                    Work::Pack(block) => span(&format_args!("pack {}", block_name(block))),
                    Work::PackWeights => span(&"pack weights"),
                    Work::Barrier => span(&"barrier"),
                    Work::Sort => span(&"sort by expert"),
                    Work::Exchange => span(&"exchange with other ranks"),
                    Work::Request(group) => span(&format_args!("request experts of layer {group}")),
                    Work::Predict(group) => span(&format_args!("predict experts of layer {group}")),
                    Work::Release(group) => span(&format_args!("release experts of layer {group}")),
                    Work::Next => span(&"go on with the next experts"),
                }?;
            }
            dropped += out.write_full_buffer(THREADS, tid, &lane)?;
        }
        Ok(dropped)
    }

    fn block(&self, number: u32) -> BlockName {
        BlockName(self.blocks.get().and_then(|blocks| blocks.ids.get(number as usize)).copied(), number)
    }

    fn write_reads(&self, out: &mut Out<'_>) -> io::Result<u64> {
        out.process(DRIVE, "drive")?;
        let reads = lock(&self.reads);
        let lanes: BTreeSet<u32> = reads.spans.iter().map(|span| span.what.lane).collect();
        lanes.iter().try_for_each(|&lane| out.lane(DRIVE, lane, format_args!("read {lane}")))?;
        for Span { start, end, what } in sort_spans(&reads.spans) {
            let Read { lane, block, class, bytes, offset, whole } = what;
            let class = class_name(class);
            let args = format_args!(r#""class":"{class}","bytes":{bytes},"offset":{offset},"whole":{whole}"#);
            out.span(DRIVE, lane, start, end, &self.block(block), args)?;
        }
        write_counters(out, &reads.spans)?;
        out.write_full_buffer(DRIVE, 0, &reads)
    }

    /// Writes arrows from reads to the threads that waited for them. Each arrow begins at the last
    /// read of a block that ended during the wait.
    fn write_arrows(&self, out: &mut Out<'_>) -> io::Result<()> {
        let Some(threads) = self.threads.get() else { return Ok(()) };
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        struct Read {
            end: u64,
            start: u64,
            lane: u32,
        }
        let mut ends: BTreeMap<(u32, u32), Vec<Read>> = BTreeMap::new();
        for Span { start, end, what } in &lock(&self.reads).spans {
            if let (true, Some(id)) = (what.whole, self.block(what.block).0) {
                ends.entry((id.group, id.expert)).or_default().push(Read { end: *end, start: *start, lane: what.lane });
            }
        }
        ends.values_mut().for_each(|ends| ends.sort_unstable());
        let mut number = 0;
        for (tid, lane) in (0u32..).zip(&threads.lanes) {
            for Span { start, end, what } in &lock(&lane.0).spans {
                let Work::Wait(block) = what else { continue };
                let reads = ends.get(&(block.group, block.expert)).map_or(&[][..], Vec::as_slice);
                let last = reads[..reads.partition_point(|read| read.end <= *end)].last();
                let Some(&Read { end: read_end, start: read_start, lane }) = last.filter(|read| read.end >= *start)
                else {
                    continue;
                };
                number += 1;
                // These times are inside the spans that the arrow connects, because viewers find
                // the spans by time.
                let inside = |start: u64, end: u64| Micros(end.saturating_sub(1).max(start));
                let (from, to) = (inside(read_start, read_end), inside(*start, *end));
                let common = format!(r#""cat":"wait","id":{number},"name":"waited for""#);
                out.event(format_args!(r#""ph":"s","pid":{DRIVE},"tid":{lane},"ts":{from},{common}"#))?;
                out.event(format_args!(r#""ph":"f","bp":"e","pid":{THREADS},"tid":{tid},"ts":{to},{common}"#))?;
            }
        }
        Ok(())
    }

    fn write_phases(&self, out: &mut Out<'_>) -> io::Result<()> {
        let phases = lock(&self.phases);
        if phases.spans.is_empty() {
            return Ok(());
        }
        out.process(LOADING, "compile and load")?;
        out.lane(LOADING, 0, format_args!("before the first step"))?;
        for Span { start, end, what } in sort_spans(&phases.spans) {
            out.span(LOADING, 0, start, end, &what, format_args!(""))?;
        }
        Ok(())
    }

    fn write_slots(&self, out: &mut Out<'_>) -> io::Result<u64> {
        out.process(SLOTS, "slots")?;
        let slots = lock(&self.slots);
        let now = self.at(Instant::now());
        // Stays of blocks that are still in their slots end at the current time.
        let mut open = Buffer { spans: Vec::new(), max: usize::MAX, dropped: 0 };
        for (slot, place) in (0u32..).zip(&slots.open) {
            if let Some(place) = place {
                place.close(slot, now, false, &mut open);
            }
        }
        let all = sort_spans(&[&slots.events.spans[..], &open.spans].concat());
        let slot_of = |what: &Slot| match *what {
            Slot::Whole { slot, .. } | Slot::Part { slot, .. } => slot,
        };
        let lanes: BTreeSet<u32> = all.iter().map(|span| slot_of(&span.what)).collect();
        for &lane in &lanes {
            let bytes = self.blocks.get().and_then(|blocks| blocks.slots.get(lane as usize)).copied().unwrap_or(0);
            out.lane(SLOTS, lane, format_args!("slot {lane} of {} KiB", bytes >> 10))?;
        }
        for Span { start, end, what } in all {
            match what {
                Slot::Whole { slot, block } => {
                    out.span(SLOTS, slot, start, end, &self.block(block), format_args!(""))?;
                }
                Slot::Part { slot, contents: SlotContents { block, stage, shadow } } => {
                    let role = if shadow { "shadow" } else { "primary" };
                    let stage = match stage {
                        Stage::Loading => "loading",
                        Stage::Arrived => "arrived",
                        Stage::Packing => "packing",
                        Stage::Resident => "resident",
                    };
                    let args = format_args!(r#""block":{},"role":"{role}""#, Text(self.block(block)));
                    out.span(SLOTS, slot, start, end, &format_args!("{stage}, {role}"), args)?;
                }
            }
        }
        out.write_full_buffer(SLOTS, 0, &slots.events)
    }
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::Routed => "routed",
        Class::Predicted => "predicted",
    }
}

/// Writes counters of the outstanding reads and of the rate at which bytes arrive.
fn write_counters(out: &mut Out<'_>, reads: &[Span<Read>]) -> io::Result<()> {
    let points = |span: &Span<Read>| [(span.start, 1i64, span.what.class), (span.end, -1, span.what.class)];
    let mut points: Vec<(u64, i64, Class)> = reads.iter().flat_map(points).collect();
    points.sort_by_key(|&(at, change, _)| (at, change));
    let mut outstanding = [0i64; 2];
    for (i, &(at, change, class)) in points.iter().enumerate() {
        outstanding[class as usize] += change;
        if points.get(i + 1).is_none_or(|next| next.0 != at) {
            let (ts, [routed, predicted]) = (Micros(at), outstanding);
            let args = format_args!(r#"{{"routed":{routed},"predicted":{predicted}}}"#);
            out.event(format_args!(r#""ph":"C","pid":{DRIVE},"ts":{ts},"name":"outstanding reads","args":{args}"#))?;
        }
    }
    let (Some(first), Some(last)) = (points.first().map(|p| p.0), points.last().map(|p| p.0)) else { return Ok(()) };
    let width = RATE_SPAN.max((last - first).div_ceil(RATES));
    let mut bytes = vec![0u64; ((last - first) / width + 1) as usize];
    for span in reads {
        let at = (span.end - first) / width;
        if let Some(sum) = usize::try_from(at).ok().and_then(|at| bytes.get_mut(at)) {
            *sum = sum.saturating_add(span.what.bytes);
        }
    }
    for (i, bytes) in (0u64..).zip(bytes.into_iter().chain([0])) {
        let (ts, rate) = (Micros(first + i * width), bytes as f64 / width as f64);
        let name = r#""name":"GB/s read""#;
        out.event(format_args!(r#""ph":"C","pid":{DRIVE},"ts":{ts},{name},"args":{{"GB/s":{rate:.3}}}"#))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let text = Text("a\"b\\c\n\u{1b}[31m\u{202e}\u{7f}é\u{1f600}").to_string();
        assert_eq!(text, "\"a\\\"b\\\\c\\u000a\\u001b[31m\\u202e\\u007fé\u{1f600}\"");
        assert_eq!(Micros(1_002_003).to_string(), "1002.003");
    }

    #[test]
    fn outer_spans_come_first() {
        let spans = [(5, 6, 'i'), (5, 9, 'o'), (1, 4, 'f'), (7, 8, 'e'), (7, 8, 'w')];
        let spans = spans.map(|(start, end, what)| Span { start, end, what });
        let order: String = sort_spans(&spans).iter().map(|span| span.what).collect();
        assert_eq!(order, "foiwe");
    }

    #[test]
    fn throughput_counters_match_the_reads() {
        let read = |lane, class, bytes| Read { lane, block: 0, class, bytes, offset: 0, whole: true };
        let span = |start, end, what| Span { start, end, what };
        let reads = [
            span(0, 5_000_000, read(0, Class::Routed, 4_000_000)),
            span(1_000_000, 5_000_000, read(1, Class::Predicted, 6_000_000)),
            span(5_000_000, 12_000_000, read(0, Class::Routed, 5_000_000)),
        ];
        let mut bytes = Vec::new();
        write_counters(&mut Out { out: &mut bytes, first: true }, &reads).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let values: Vec<&str> = text.split("\"args\":").skip(1).map(|rest| rest.split("}}").next().unwrap()).collect();
        let outstanding = [(1, 0), (1, 1), (1, 0), (0, 0)].map(|(r, p)| format!("{{\"routed\":{r},\"predicted\":{p}"));
        assert_eq!(values[..4], outstanding);
        // The drive reads 10 MB in the first 10 ms, 5 MB in the next, and then nothing.
        assert_eq!(values[4..], ["{\"GB/s\":1.000", "{\"GB/s\":0.500", "{\"GB/s\":0.000"]);
    }
}
