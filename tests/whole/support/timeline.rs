//! A strict reader of traces, which accepts only what every viewer accepts: all events are
//! complete, all lanes have a name, and spans of a lane nest.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

/// A span of time.
#[derive(Clone, Debug)]
pub struct Span {
    /// Name of the process to which the span belongs.
    pub process: String,
    /// Number of the lane.
    pub lane: u64,
    /// Name of the span.
    pub name: String,
    /// Start of the span in nanoseconds.
    pub start: u64,
    /// End of the span in nanoseconds.
    pub end: u64,
    /// Number of spans of the same lane that contain it.
    pub depth: usize,
    /// Additional properties of the span (`args` in the trace).
    pub args: Json,
}

/// Contents of a trace.
#[derive(Debug)]
pub struct Timeline {
    /// Spans in the file's order.
    pub spans: Vec<Span>,
    /// Values of each counter, in the order of time.
    pub counters: BTreeMap<String, Vec<Json>>,
    /// Arrows, each as the span where it starts and the span where it ends.
    pub arrows: Vec<[Span; 2]>,
    /// Number of events that the recorder dropped because it had no space.
    pub dropped: u64,
}

impl Timeline {
    /// Reads a trace.
    pub fn read(text: &str) -> Timeline {
        let trace: Json = serde_json::from_str(text).unwrap();
        let (mut processes, mut lanes) = (BTreeMap::new(), BTreeMap::new());
        let (mut spans, mut counters, mut times) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut open: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
        let mut arrows = BTreeMap::new();
        for event in trace["traceEvents"].as_array().unwrap() {
            let number = |key: &str| event[key].as_u64().unwrap_or_else(|| panic!("{key}: {event}"));
            let text = |value: &Json| value.as_str().unwrap_or_else(|| panic!("{event}")).to_owned();
            let nanoseconds = |key: &str| {
                let micros = event[key].as_f64().filter(|micros| *micros >= 0.0);
                (micros.unwrap_or_else(|| panic!("{key}: {event}")) * 1000.0).round() as u64
            };
            let (pid, name) = (number("pid"), text(&event["name"]));
            match event["ph"].as_str().unwrap() {
                "M" => match name.as_str() {
                    "process_name" => {
                        assert!(processes.insert(pid, text(&event["args"]["name"])).is_none(), "{event}");
                    }
                    "thread_name" => {
                        let before = lanes.insert((pid, number("tid")), text(&event["args"]["name"]));
                        assert!(before.is_none(), "{event}");
                    }
                    other => assert!(other.ends_with("_sort_index"), "{event}"),
                },
                "X" => {
                    let lane = (pid, number("tid"));
                    assert!(lanes.contains_key(&lane), "a lane without a name: {event}");
                    let start = nanoseconds("ts");
                    let end = start + nanoseconds("dur");
                    let around = open.entry(lane).or_default();
                    // Events are sorted by time, and outer spans come before inner ones, because
                    // viewers nest spans in this order.
                    assert!(around.last().is_none_or(|last| last.0 <= start), "out of order: {event}");
                    while around.last().is_some_and(|last| last.1 <= start) && !around.is_empty() {
                        around.pop();
                    }
                    assert!(around.last().is_none_or(|last| end <= last.1), "spans cross: {event}");
                    let (process, args) = (processes[&pid].clone(), event["args"].clone());
                    let depth = around.len();
                    spans.push(Span { process, lane: lane.1, name, start, end, depth, args });
                    around.push((start, end));
                }
                // Each arrow has one start and one end, and both are within spans.
                ph @ ("s" | "f") => {
                    assert!(lanes.contains_key(&(pid, number("tid"))), "{event}");
                    let end: &mut [Option<(String, u64, u64)>; 2] = arrows.entry(number("id")).or_default();
                    let end = &mut end[usize::from(ph == "f")];
                    let place = (processes[&pid].clone(), number("tid"), nanoseconds("ts"));
                    assert!(end.replace(place).is_none() && (ph == "s" || event["bp"] == "e"), "{event}");
                }
                "C" => {
                    let time = nanoseconds("ts");
                    let before = times.insert(name.clone(), time);
                    assert!(before.is_none_or(|before| before < time), "out of order: {event}");
                    counters.entry(name).or_insert_with(Vec::new).push(event["args"].clone());
                }
                other => panic!("{other}: {event}"),
            }
        }
        let used: BTreeSet<_> = spans.iter().map(|span: &Span| span.process.clone()).collect();
        assert!(processes.values().all(|name| used.contains(name)), "{processes:?}, {used:?}");
        let dropped = trace["otherData"]["dropped_events"].as_str().unwrap().parse().unwrap();
        let at = |(process, lane, time): (String, u64, u64)| {
            let inside =
                |span: &&Span| span.process == process && span.lane == lane && span.start <= time && time <= span.end;
            spans
                .iter()
                .filter(inside)
                .max_by_key(|span| span.depth)
                .unwrap_or_else(|| panic!("{process} {lane} {time}"))
                .clone()
        };
        let arrows = arrows.into_values().map(|[from, to]| [at(from.unwrap()), at(to.unwrap())]).collect();
        Timeline { spans, counters, arrows, dropped }
    }

    /// Returns the spans of the process with this name.
    pub fn spans(&self, process: &str) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.process == process).collect()
    }
}
