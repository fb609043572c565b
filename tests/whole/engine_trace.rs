//! Traces contain all computation, reads and resident experts, in a form that any viewer can read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::timeline::Timeline;
use crate::tiny::{EXPERTS, Factors, Folder, MAX_TOKENS, VOCABULARY, grouped};
use ixc::ir::plan::Step;
use ixc::runtime::engine::{BackendKind, Engine, EngineOptions};
use ixc::runtime::streaming::backend::Backend;
use ixc::runtime::streaming::queue::Queue;
use ixc::runtime::streaming::store::{BackendFactory, Config};
use ixc::runtime::streaming::threaded_reader::ThreadedReader;
use ixc::runtime::trace::Recorder;
use ixc::targets::Target;

const STEPS: [u32; 6] = [1, 30, 1, 5, MAX_TOKENS, 1];

fn step(engine: &mut Engine, length: u32) {
    let tokens: Vec<u32> = (0..length).map(|i| (engine.position() + i * 7 + i * i) % VOCABULARY).collect();
    engine.step(&tokens, &[0]).unwrap();
}

#[test]
fn trace_shows_every_block_read_in_its_lanes() {
    let folder = Folder::new();
    for (target, factors) in [(Target::PORTABLE, Factors::F32), (Target::AVX512, Factors::Packed)] {
        let backend = if target.missing().is_empty() { BackendKind::Native } else { BackendKind::Emulated };
        println!("{}: {backend:?}", target.name());
        let plan = grouped(&folder.0, target, factors);
        let recorder = Arc::new(Recorder::new());
        let stream = Config { budget: 1 << 20, chunk: 4096, ..Config::default() };
        let options = EngineOptions {
            threads: Some(3),
            stream,
            backend,
            trace: Some(Arc::clone(&recorder)),
            ..EngineOptions::default()
        };
        let mut engine = Engine::load(plan, &folder.0, &options).unwrap();
        STEPS.into_iter().for_each(|length| step(&mut engine, length));
        let stats = engine.stream().unwrap().stats();
        drop(engine);
        let path = folder.0.join("trace.json");
        assert_eq!(recorder.save(&path).unwrap(), 0);
        let trace = Timeline::read(&std::fs::read_to_string(&path).unwrap());
        assert_eq!(trace.dropped, 0);

        let reads = trace.spans("drive");
        assert_eq!(reads.len() as u64, stats.drive.routed.reads + stats.drive.predicted.reads);
        let bytes: u64 = reads.iter().map(|read| read.args["bytes"].as_u64().unwrap()).sum();
        assert_eq!(bytes, stats.drive.bytes());
        // Reads in the same lane do not overlap.
        assert!(reads.iter().all(|read| read.depth == 0 && read.args["whole"] == true));
        let counter = &trace.counters["outstanding reads"];
        assert_eq!(counter.last().unwrap()["routed"], 0);
        let most = |value: &serde_json::Value| value["routed"].as_u64().unwrap() + value["predicted"].as_u64().unwrap();
        assert!(counter.iter().map(most).max().unwrap() <= stats.drive.max_outstanding as u64);

        // A block occupies a memory slot while it is read, and is resident afterwards.
        let slots = trace.spans("slots");
        for read in &reads {
            let inside = |slot: &&&crate::support::timeline::Span| {
                slot.depth == 0 && slot.name == read.name && slot.start <= read.start && read.end <= slot.end
            };
            assert!(slots.iter().any(|slot| inside(&slot)), "{read:?}");
        }
        let count = |stage: &str| slots.iter().filter(|slot| slot.depth == 1 && slot.name.starts_with(stage)).count();
        let blocks = (stats.groups[0].misses + stats.groups[0].on_the_way) as usize;
        assert_eq!((count("loading"), count("resident")), (blocks, blocks));
        assert_eq!(count("packing") > 0, target == Target::AVX512);

        // A thread that waited for a block continues after the block was read.
        for [read, wait] in &trace.arrows {
            assert_eq!((read.process.as_str(), wait.process.as_str()), ("drive", "threads"));
            assert!(wait.name == format!("wait for {}", read.name) && read.end <= wait.end, "{read:?} {wait:?}");
        }
        let waits = trace.spans("threads").iter().filter(|span| span.name.starts_with("wait for ")).count();
        assert!(trace.arrows.len() <= waits && (waits == 0 || !trace.arrows.is_empty()), "{waits}");
        // Each task has its kernel, the number of rows, and the bytes that were read for it.
        for span in trace.spans("threads").iter().filter(|span| span.args["items"].is_u64()) {
            assert!(span.args["kernel"].is_string() && span.args["rows"].as_u64() > Some(0), "{span:?}");
        }
        assert!(trace.spans("threads").iter().any(|span| span.args["bytes"].as_u64() > Some(0)));
        let phases: Vec<&str> = trace.spans("compile and load").iter().map(|span| span.name.as_str()).collect();
        assert!(phases.contains(&"generate code"), "{phases:?}");

        let steps: Vec<u64> = trace.spans("tokens").iter().map(|step| step.args["tokens"].as_u64().unwrap()).collect();
        assert_eq!(steps, STEPS.map(u64::from));
        let threads = trace.spans("threads");
        for lane in 0..3 {
            assert!(threads.iter().any(|span| span.lane == lane && span.name == "barrier"), "thread {lane}");
        }
        assert!(threads.iter().any(|span| span.name == "request experts of layer 0"));
        // Every span of a thread lies in a step.
        let steps = trace.spans("tokens");
        assert!(threads.iter().all(|span| steps.iter().any(|step| step.start <= span.start && span.end <= step.end)));
    }
}

#[test]
fn trace_of_resident_model_is_complete_with_escaped_labels() {
    let folder = Folder::new();
    let mut plan = grouped(&folder.0, Target::PORTABLE, Factors::F32);
    let label = "\"}],\\ \n\u{1b}[31m\u{202e}\u{0}é";
    for step in &mut plan.steps {
        if let Step::Run { tasks, .. } = step {
            tasks.iter_mut().for_each(|task| task.label = label.into());
        }
    }
    let recorder = Arc::new(Recorder::new());
    let options =
        EngineOptions { threads: Some(2), stats: true, trace: Some(Arc::clone(&recorder)), ..EngineOptions::default() };
    let mut engine = Engine::load(plan, &folder.0, &options).unwrap();
    STEPS.into_iter().for_each(|length| step(&mut engine, length));
    let mut text = Vec::new();
    recorder.write(&mut text).unwrap();
    assert!(!text.iter().any(|byte| matches!(byte, 0..=9 | 11..=31)));
    let trace = Timeline::read(std::str::from_utf8(&text).unwrap());
    assert!(trace.spans("drive").is_empty() && trace.spans("slots").is_empty() && trace.counters.is_empty());
    let items: u64 = trace.spans("threads").iter().filter_map(|span| span.args["items"].as_u64()).sum();
    assert_eq!(items, engine.take_stats().tasks.iter().map(|task| task.work.items).sum::<u64>());
    assert!(trace.spans("threads").iter().any(|span| span.name == label));
    assert!(trace.spans("threads").iter().any(|span| span.name.starts_with(label) && span.args["expert"].is_u64()));
}

#[test]
fn resident_experts_finish_while_others_are_read() {
    let folder = Folder::new();
    let plan = grouped(&folder.0, Target::PORTABLE, Factors::F32);
    let recorder = Arc::new(Recorder::new());
    // The read of one block is delayed by half a second.
    let block =
        plan.expert_groups[0].weights.iter().map(|&w| plan.weights[w as usize].bytes).sum::<u64>() / u64::from(EXPERTS);
    let slow = move |queue: &Queue| -> Box<dyn Backend> {
        Box::new(ThreadedReader::with_rate(Arc::clone(queue.files()), 4, 2.0 * block as f64).unwrap())
    };
    let stream = Config { budget: 1 << 20, backend: Some(BackendFactory(Arc::new(slow))), ..Config::default() };
    let options =
        EngineOptions { threads: Some(2), stream, trace: Some(Arc::clone(&recorder)), ..EngineOptions::default() };
    let mut engine = Engine::load(plan, &folder.0, &options).unwrap();
    (0..8).for_each(|_| step(&mut engine, 1));
    drop(engine);
    let mut text = Vec::new();
    recorder.write(&mut text).unwrap();
    let trace = Timeline::read(std::str::from_utf8(&text).unwrap());
    let (threads, drive, mut found) = (trace.spans("threads"), trace.spans("drive"), 0);
    for step in trace.spans("tokens") {
        let inside: Vec<_> = threads.iter().filter(|span| step.start <= span.start && span.end <= step.end).collect();
        // End of the reads of this step, for each block.
        let mut came: BTreeMap<&str, u64> = BTreeMap::new();
        for read in drive.iter().filter(|read| step.start <= read.start && read.end <= step.end) {
            came.entry(&read.name).and_modify(|end| *end = read.end.max(*end)).or_insert(read.end);
        }
        let Some(arrived) = came.values().copied().min() else { continue };
        let was_there = |expert: u64| !came.contains_key(format!("layer 0 expert {expert}").as_str());
        for down in inside.iter().filter(|span| span.name.starts_with("down")) {
            if down.args["expert"].as_u64().is_some_and(was_there) {
                assert!(down.end < arrived, "{down:?}: others came at {arrived}");
                found += 1;
            }
        }
    }
    assert!(found > 0, "no step had both");
}

#[test]
fn a_trace_is_never_renamed_over_a_device() {
    let recorder = Recorder::new();
    let error = recorder.save(std::path::Path::new("/dev/null")).unwrap_err().to_string();
    assert_eq!(error, "/dev/null: is a device; a trace can only be written to a regular file");
}
