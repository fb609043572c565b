//! Measurements of a trace from `ixc run --trace`, reduced to sums that fit in a page. They are the
//! time by task and kind of step, the steps, and experts in memory over time.
//!
//! A trace can have a million events. They are read one by one, and only sums are kept.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use ixc_measure::roofline::Roofline;
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::fold::without_number;
use crate::Error;

/// Max size of a trace.
const MAX_BYTES: u64 = 1 << 30;
/// Max number of steps that are listed. Further steps are only added to sums.
const MAX_STEPS: usize = 4096;
/// Intervals of the timeline of experts in memory.
const PARTS: usize = 480;
/// Max number of expert groups, and max number of experts in a group.
const MAX_GROUPS: usize = 1024;
const MAX_EXPERTS: usize = 4096;
/// Max number of names of threads' work.
const MAX_NAMES: usize = 1 << 16;

/// Measurements of a trace.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TraceView {
    file: String,
    made_by: String,
    /// Events that the recorder dropped.
    dropped: u64,
    threads: usize,
    /// Microseconds from the first event to the last.
    span: f64,
    /// Start and length of each step in microseconds, and its tokens.
    steps: Vec<(f64, f64, u64)>,
    more_steps: usize,
    /// Number of steps with one token, and tokens of the other steps.
    one_steps: usize,
    long_tokens: u64,
    /// Time of the threads, by kind of work.
    work: Vec<Work>,
    /// Kernels that ran, if the trace contains them.
    kernels: Vec<KernelTime>,
    residency: Option<Residency>,
    /// Peak rates of this machine, measured when the page was made.
    pub limits: Option<Roofline>,
}

/// Microseconds of a kind of work, and its shares of the time, in steps of one token and in longer
/// ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Work {
    name: String,
    /// Name without the layer, which all layers share.
    kind: String,
    /// Whether the work is a task of the plan.
    task: bool,
    decode: f64,
    prefill: f64,
    /// Number of events of this work.
    events: u64,
    items: u64,
    /// Bytes read, in steps of one token and in longer ones, if the trace contains them.
    bytes: [u64; 2],
}

/// Microseconds of a kernel, in steps of one token and in longer ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct KernelTime {
    name: String,
    decode: f64,
    prefill: f64,
}

/// Experts in memory over time.
#[derive(Clone, Debug, Default, Serialize)]
struct Residency {
    /// Number of all slots.
    slots: usize,
    /// Mean number of experts in memory, for each group and interval.
    held: Vec<Vec<f32>>,
    /// Bytes read in each interval.
    read: Vec<u64>,
    /// Share of the time in which each expert was in memory, by group and expert.
    experts: Vec<Vec<f32>>,
    reads: u64,
    bytes: u64,
}

/// Kinds of lanes, by the name of their process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    Steps,
    Threads,
    Drive,
    Slots,
}

/// The names of processes.
const LANES: [(&str, Lane); 4] =
    [("tokens", Lane::Steps), ("threads", Lane::Threads), ("drive", Lane::Drive), ("slots", Lane::Slots)];

/// Work of threads other than tasks, with numbers omitted.
const OTHER_EVENTS: [&str; 9] = [
    "wait for ",
    "pack ",
    "pack weights",
    "barrier",
    "sort by expert",
    "request experts",
    "predict experts",
    "release experts",
    "go on with",
];

/// Fields of an event that are used.
#[derive(Deserialize)]
struct Event<'t> {
    #[serde(borrow, default)]
    ph: Cow<'t, str>,
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    tid: u64,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(borrow, default)]
    name: Cow<'t, str>,
    #[serde(borrow, default)]
    args: Args<'t>,
}

#[derive(Default, Deserialize)]
struct Args<'t> {
    #[serde(borrow, default)]
    name: Option<Cow<'t, str>>,
    #[serde(default)]
    tokens: Option<u64>,
    #[serde(default)]
    expert: Option<u64>,
    #[serde(default)]
    items: Option<u64>,
    #[serde(default)]
    bytes: Option<u64>,
    #[serde(borrow, default)]
    kernel: Option<Cow<'t, str>>,
}

/// Sums over all events of a trace.
#[derive(Default)]
struct EventSums {
    lanes: BTreeMap<u64, Lane>,
    threads: BTreeMap<u64, ()>,
    steps: Vec<(f64, f64, u64)>,
    work: BTreeMap<String, Work>,
    kernels: BTreeMap<String, KernelTime>,
    /// Group, expert, start and end of each time in a slot.
    held: Vec<(usize, usize, f64, f64)>,
    slots: BTreeMap<u64, f64>,
    reads: Vec<(f64, u64)>,
    first: f64,
    last: f64,
}

impl EventSums {
    fn take(&mut self, event: Event<'_>) {
        if event.ph == "M" {
            let named = event.args.name.as_deref().filter(|_| event.name == "process_name");
            if let Some((_, lane)) = named.and_then(|name| LANES.iter().find(|(known, _)| *known == name)) {
                self.lanes.insert(event.pid, *lane);
            }
            return;
        }
        // Skip invalid times.
        let is_time = |time: f64| (0.0..1e18).contains(&time);
        if event.ph != "X" || !is_time(event.ts) || !is_time(event.dur) {
            return;
        }
        // Other lanes, such as compiling and loading, are not part of a run's time.
        let Some(&lane) = self.lanes.get(&event.pid) else { return };
        let (start, end) = (event.ts, event.ts + event.dur);
        if self.last == 0.0 && self.first == 0.0 {
            self.first = start;
        }
        (self.first, self.last) = (self.first.min(start), self.last.max(end));
        match lane {
            Lane::Steps => self.steps.push((start, event.dur, event.args.tokens.unwrap_or(1))),
            Lane::Threads => self.thread(&event),
            Lane::Drive => self.reads.push((end, event.args.bytes.unwrap_or(0))),
            Lane::Slots => self.slot(&event, start, end),
        }
    }

    fn thread(&mut self, event: &Event<'_>) {
        self.threads.insert(event.tid, ());
        // The step of the event. Steps come first in the file, ordered by time.
        let at = self.steps.partition_point(|step| step.0 <= event.ts);
        let tokens = at.checked_sub(1).and_then(|at| self.steps.get(at)).map_or(1, |step| step.2);
        let task = !OTHER_EVENTS.iter().any(|begin| event.name.starts_with(begin));
        let name = match event.args.expert {
            Some(expert) => event.name.strip_suffix(&format!(" expert {expert}")).unwrap_or(&event.name).to_owned(),
            None if task => event.name.to_string(),
            None => {
                event.name.split_whitespace().filter(|word| word.parse::<u64>().is_err()).collect::<Vec<_>>().join(" ")
            }
        };
        if self.work.len() >= MAX_NAMES && !self.work.contains_key(&name) {
            return;
        }
        let work = self.work.entry(name).or_default();
        let long = tokens != 1;
        work.task = task;
        *(if long { &mut work.prefill } else { &mut work.decode }) += event.dur;
        work.events += 1;
        work.items = work.items.saturating_add(event.args.items.unwrap_or(0));
        let bytes = &mut work.bytes[usize::from(long)];
        *bytes = bytes.saturating_add(event.args.bytes.unwrap_or(0));
        if let Some(kernel) = event.args.kernel.as_deref()
            && (self.kernels.len() < MAX_NAMES || self.kernels.contains_key(kernel))
        {
            let time = self.kernels.entry(kernel.to_owned()).or_default();
            *(if long { &mut time.prefill } else { &mut time.decode }) += event.dur;
        }
    }

    /// Records an event of a slot: `layer L expert E` is the time of an expert in the slot. Its
    /// stages lie within this time.
    fn slot(&mut self, event: &Event<'_>, start: f64, end: f64) {
        let whole = event.name.strip_prefix("layer ").and_then(|rest| rest.split_once(" expert "));
        let Some((group, expert)) = whole.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?))) else { return };
        self.slots.insert(event.tid, end);
        if group < MAX_GROUPS && expert < MAX_EXPERTS {
            self.held.push((group, expert, start, end));
        }
    }

    fn residency(&self) -> Option<Residency> {
        if self.held.is_empty() && self.reads.is_empty() {
            return None;
        }
        let span = (self.last - self.first).max(1e-3);
        let part = span / PARTS as f64;
        let groups = self.held.iter().map(|held| held.0 + 1).max().unwrap_or(0);
        let mut residency = Residency {
            slots: self.slots.len(),
            held: vec![vec![0.0; PARTS]; groups],
            read: vec![0; PARTS],
            experts: vec![Vec::new(); groups],
            reads: self.reads.len() as u64,
            bytes: self.reads.iter().fold(0, |sum, read| sum.saturating_add(read.1)),
        };
        let at = |time: f64| ((time - self.first) / part).max(0.0);
        for &(group, expert, start, end) in &self.held {
            let (start, end) = (at(start), at(end).min(PARTS as f64));
            for (number, held) in residency.held[group].iter_mut().enumerate().skip(start as usize) {
                if number as f64 >= end {
                    break;
                }
                *held += (end.min(number as f64 + 1.0) - start.max(number as f64)).max(0.0) as f32;
            }
            let experts = &mut residency.experts[group];
            if experts.len() <= expert {
                experts.resize(expert + 1, 0.0);
            }
            experts[expert] += ((end - start).max(0.0) / PARTS as f64) as f32;
        }
        for &(end, bytes) in &self.reads {
            let sum = &mut residency.read[(at(end) as usize).min(PARTS - 1)];
            *sum = sum.saturating_add(bytes);
        }
        Some(residency)
    }
}

impl<'de> Deserialize<'de> for EventSums {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EventSums, D::Error> {
        struct Events;
        impl<'de> Visitor<'de> for Events {
            type Value = EventSums;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<EventSums, A::Error> {
                let mut gathered = EventSums::default();
                while let Some(event) = events.next_element::<Event<'de>>()? {
                    gathered.take(event);
                }
                Ok(gathered)
            }
        }
        deserializer.deserialize_seq(Events)
    }
}

/// A trace's file.
#[derive(Deserialize)]
struct File {
    #[serde(rename = "traceEvents")]
    events: EventSums,
    #[serde(rename = "otherData", default)]
    other: OtherData,
    #[serde(rename = "displayTimeUnit", default)]
    _unit: IgnoredAny,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OtherData {
    made_by: String,
    #[serde(deserialize_with = "number_in_text")]
    dropped_events: u64,
}

fn number_in_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

impl TraceView {
    /// Reads a trace.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a trace of ixc.
    pub fn read(path: &Path) -> Result<TraceView, Error> {
        let text = ixc_files::read_text(path, MAX_BYTES)?;
        TraceView::parse(&text, path).map_err(|source| Error::Trace { path: path.to_owned(), source })
    }

    fn parse(text: &str, path: &Path) -> Result<TraceView, serde_json::Error> {
        let File { events, other, .. } = serde_json::from_str(text)?;
        if !events.lanes.values().any(|lane| *lane == Lane::Steps) {
            return Err(de::Error::custom("no lane of steps; expected the trace of a run"));
        }
        let residency = events.residency();
        let more_steps = events.steps.len().saturating_sub(MAX_STEPS);
        let mut steps = events.steps;
        let one_steps = steps.iter().filter(|step| step.2 == 1).count();
        let long_tokens = steps.iter().map(|step| step.2).filter(|&tokens| tokens != 1).fold(0, u64::saturating_add);
        steps.truncate(MAX_STEPS);
        let named = |(name, work): (String, Work)| {
            let kind = if work.task { without_number(&name) } else { name.clone() };
            Work { name, kind, ..work }
        };
        Ok(TraceView {
            file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            made_by: other.made_by.chars().take(64).collect(),
            dropped: other.dropped_events,
            threads: events.threads.len(),
            span: events.last - events.first,
            steps: steps.into_iter().map(|(start, length, tokens)| (start - events.first, length, tokens)).collect(),
            more_steps,
            one_steps,
            long_tokens,
            work: events.work.into_iter().map(named).collect(),
            kernels: events.kernels.into_iter().map(|(name, time)| KernelTime { name, ..time }).collect(),
            residency,
            limits: None,
        })
    }

    /// Returns the number of threads that worked.
    pub fn threads(&self) -> usize {
        self.threads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"{"displayTimeUnit":"ns","traceEvents":[
        {"ph":"M","pid":1,"name":"process_name","args":{"name":"tokens"}},
        {"ph":"M","pid":2,"name":"process_name","args":{"name":"threads"}},
        {"ph":"M","pid":3,"name":"process_name","args":{"name":"drive"}},
        {"ph":"M","pid":4,"name":"process_name","args":{"name":"slots"}},
        {"ph":"M","pid":5,"name":"process_name","args":{"name":"compile and load"}},
        {"ph":"X","pid":5,"tid":0,"ts":0.0,"dur":9000.0,"name":"load","args":{}},
        {"ph":"X","pid":1,"tid":0,"ts":0.0,"dur":100.0,"name":"prefill of 5 tokens","args":{"tokens":5,"position":0,"failed":false}},
        {"ph":"X","pid":1,"tid":0,"ts":100.0,"dur":60.0,"name":"token 5","args":{"tokens":1,"position":5,"failed":false}},"#;

    #[test]
    fn times_are_summed_by_task_and_kind_of_step() {
        let text = format!(
            r#"{HEAD}
            {{"ph":"X","pid":2,"tid":0,"ts":10.0,"dur":20.5,"name":"linear blk.0.q","args":{{"items":4}}}},
            {{"ph":"X","pid":2,"tid":1,"ts":110.0,"dur":5.0,"name":"linear blk.0.q","args":{{"items":2,"kernel":"gemv","rows":2,"bytes":64}}}},
            {{"ph":"X","pid":2,"tid":1,"ts":120.0,"dur":7.0,"name":"down expert 7","args":{{"expert":7,"items":2}}}},
            {{"ph":"X","pid":2,"tid":1,"ts":130.0,"dur":1.0,"name":"wait for layer 0 expert 5","args":{{}}}},
            {{"ph":"X","pid":2,"tid":1,"ts":131.0,"dur":2.0,"name":"wait for layer 1 expert 3","args":{{}}}},
            {{"ph":"X","pid":3,"tid":0,"ts":0.0,"dur":80.0,"name":"layer 0 expert 1","args":{{"class":"routed","bytes":4096,"offset":0,"whole":true}}}},
            {{"ph":"C","pid":3,"ts":0.0,"name":"outstanding reads","args":{{"routed":1,"predicted":0}}}},
            {{"ph":"X","pid":4,"tid":2,"ts":0.0,"dur":160.0,"name":"layer 0 expert 1","args":{{}}}},
            {{"ph":"X","pid":4,"tid":2,"ts":0.0,"dur":80.0,"name":"loading, primary","args":{{"block":"layer 0 expert 1","role":"primary"}}}}
            ],"otherData":{{"made_by":"ixc 0.1.0","dropped_events":"3"}}}}"#
        );
        let view = TraceView::parse(&text, Path::new("t.json")).unwrap();
        assert_eq!((view.dropped, view.threads, view.span, view.steps.len()), (3, 2, 160.0, 2));
        assert_eq!((view.one_steps, view.long_tokens), (1, 5));
        let of = |name: &str| view.work.iter().find(|work| work.name == name).unwrap().clone();
        assert_eq!(
            (of("linear blk.0.q").prefill, of("linear blk.0.q").decode, of("linear blk.0.q").items),
            (20.5, 5.0, 6)
        );
        assert_eq!((of("linear blk.0.q").bytes, view.kernels.len(), view.kernels[0].decode), ([64, 0], 1, 5.0));
        assert_eq!((of("down").decode, of("wait for layer expert").decode, of("down").task), (7.0, 3.0, true));
        let residency = view.residency.unwrap();
        assert_eq!((residency.slots, residency.reads, residency.bytes), (1, 1, 4096));
        assert!(residency.held[0].iter().all(|held| (*held - 1.0).abs() < 1e-4));
        assert!((residency.experts[0][1] - 1.0).abs() < 1e-3);
    }

    /// Checks that sums and their divisors include all steps, even those that are not listed.
    #[test]
    fn unlisted_steps_count_in_sums() {
        let steps = (0..MAX_STEPS + 5)
            .map(|i| format!(r#"{{"ph":"X","pid":1,"ts":{}.0,"dur":1.0,"args":{{"tokens":1}}}}"#, 200 + i));
        let text = format!("{HEAD}{}]}}", steps.collect::<Vec<_>>().join(","));
        let view = TraceView::parse(&text, Path::new("t.json")).unwrap();
        assert_eq!((view.steps.len(), view.more_steps, view.one_steps), (MAX_STEPS, 7, MAX_STEPS + 6));
    }

    #[test]
    fn invalid_traces_are_refused() {
        let refused = |text: &str| TraceView::parse(text, Path::new("t.json")).unwrap_err().to_string();
        assert!(refused("[]").contains("expected struct File"), "{}", refused("[]"));
        assert!(refused(r#"{"traceEvents":[]}"#).contains("no lane of steps"));
        assert!(refused(r#"{"traceEvents":[{"ts":"x"}]}"#).contains("line 1"));
        // Invalid times are skipped.
        let text = format!(r#"{HEAD}{{"ph":"X","pid":2,"tid":0,"ts":-5.0,"dur":1e300,"name":"x","args":{{}}}}]}}"#);
        assert_eq!(TraceView::parse(&text, Path::new("t.json")).unwrap().work.len(), 0);
    }
}
