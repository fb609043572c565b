//! Tests that both backends read the correct bytes in the correct order.

use std::sync::{Arc, Mutex};

use super::super::counters::Class;
use super::super::drive::BackendChoice;
use super::super::files::PAGE;
use super::super::queue::{ReadJob, TakenBack};
use super::super::threaded_reader::ThreadedReader;
use super::super::{Extent, StreamError};
use super::planted::{Fate, Gate, Planted};
use super::*;

fn extent(offset: u64, bytes: u64) -> Extent {
    Extent { file: 0, offset, bytes, at: 0 }
}

fn job(tag: u64, class: Class, offset: u64, bytes: u64, at: u64) -> ReadJob {
    ReadJob { tag, class, parts: vec![(extent(offset, bytes), at)] }
}

#[test]
fn both_backends_read_correct_bytes() {
    // The length is not a multiple of the page size, so the last read ends inside the file's last
    // page.
    let length = (1 << 20) + 777;
    let content = pattern(length);
    for (choice, direct) in [
        (BackendChoice::Auto, true),
        (BackendChoice::Auto, false),
        (BackendChoice::ThreadedReader, true),
        (BackendChoice::ThreadedReader, false),
    ] {
        let rig = Rig::new(&content, choice, direct, 8 * PAGE);
        println!("{choice:?}, direct {direct}: {:?}", rig.drive.report());
        let mut random = Random::new(7);
        let (mut jobs, mut places, mut at) = (Vec::new(), Vec::new(), 0);
        for tag in 0..40 {
            let extents = match tag {
                0 => vec![extent(0, length)],
                1 => vec![extent(length - 1, 1)],
                2 => vec![extent(length - 777, 777), extent(PAGE, PAGE)],
                _ => (0..1 + random.below(3))
                    .map(|_| {
                        let offset = random.below(length - 1);
                        extent(offset, 1 + random.below((length - offset).min(100_000)))
                    })
                    .collect(),
            };
            let mut parts = Vec::new();
            for extent in extents {
                parts.push((extent, at));
                at += extent.span();
            }
            places.push(parts.clone());
            let class = if tag % 3 == 0 { Class::Predicted } else { Class::Routed };
            jobs.push(ReadJob { tag, class, parts });
        }
        rig.submit(jobs);
        for (tag, result) in rig.results(40) {
            assert_eq!(result, Ok(()), "job {tag}");
        }
        let mut in_file = 0;
        for (extent, at) in places.into_iter().flatten() {
            let found = rig.read(at + extent.head(), extent.bytes);
            assert!(found == content[extent.offset as usize..][..extent.bytes as usize], "{choice:?} {extent:?}");
            // The counter does not include bytes after the end of the file.
            let start = extent.offset - extent.head();
            in_file += extent.span().min(length - start);
        }
        let counters = rig.queue.counters();
        assert_eq!(counters.bytes(), in_file, "{counters:?}");
        assert!(counters.routed.reads > 0 && counters.predicted.reads > 0);
        assert!((1..=4).contains(&counters.max_outstanding), "{counters:?}");
        assert_eq!(counters.latency.iter().sum::<u64>(), counters.routed.reads + counters.predicted.reads);
        assert!(counters.rate() > 0.0 && counters.routed_rate() > 0.0);
    }
}

/// Makes a rig of depth 1 whose first read waits at the returned gate. Also returns the offsets of
/// the reads, in the order in which they start.
fn stuck_first() -> (Rig, Arc<Gate>, Arc<Mutex<Vec<u64>>>) {
    let (gate, order) = (Arc::new(Gate::default()), Arc::new(Mutex::new(Vec::new())));
    let (inner, begun) = (Arc::clone(&gate), Arc::clone(&order));
    let rig = Rig::planted(&pattern(64 * PAGE), 1, PAGE, move |queue| {
        Planted::new(queue.files(), &inner, move |read| {
            let mut begun = begun.lock().unwrap();
            begun.push(read.offset / PAGE);
            if begun.len() == 1 { Fate::Stuck } else { Fate::Good }
        })
    });
    (rig, gate, order)
}

/// Waits until the first read has started. From then on, the drive is full.
fn until_begun(order: &Mutex<Vec<u64>>) {
    while order.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn routed_reads_go_before_predicted_ones() {
    let (rig, gate, order) = stuck_first();
    rig.submit(vec![job(0, Class::Predicted, 0, 3 * PAGE, 0)]);
    until_begun(&order);
    rig.submit(vec![
        job(1, Class::Predicted, 10 * PAGE, PAGE, 10 * PAGE),
        job(2, Class::Routed, 20 * PAGE, 2 * PAGE, 20 * PAGE),
    ]);
    rig.submit(vec![job(3, Class::Routed, 30 * PAGE, PAGE, 30 * PAGE)]);
    gate.open();
    assert!(rig.results(4).iter().all(|(_, result)| result.is_ok()));
    assert_eq!(*order.lock().unwrap(), [0, 20, 21, 30, 1, 2, 10]);
}

#[test]
fn confirmed_predictions_are_promoted_and_refuted_ones_cancelled() {
    let (rig, gate, order) = stuck_first();
    rig.submit(vec![job(0, Class::Predicted, 0, 3 * PAGE, 0)]);
    until_begun(&order);
    rig.submit((1..=3).map(|i| job(i, Class::Predicted, 10 * i * PAGE, PAGE, 10 * i * PAGE)).collect());
    rig.submit(vec![job(4, Class::Routed, 40 * PAGE, PAGE, 40 * PAGE)]);
    rig.queue.upgrade(3);
    assert_eq!(rig.queue.take_back(1, true), TakenBack::Gone { saved: PAGE });
    // One of the job's three reads is outstanding. So the job cannot be cancelled as a whole, and
    // it can be cancelled in part only once.
    assert_eq!(rig.queue.take_back(0, true), TakenBack::No);
    assert_eq!(rig.queue.take_back(0, false), TakenBack::Ending { saved: 2 * PAGE });
    // These tags belong to a cancelled job, to no job, and to routed jobs. So nothing is cancelled.
    assert!([0, 99, 4, 3].iter().all(|&tag| rig.queue.take_back(tag, false) == TakenBack::No));
    gate.open();
    let results = rig.results(4);
    assert_eq!(results, [(0, Err(StreamError::TakenBack)), (2, Ok(())), (3, Ok(())), (4, Ok(()))]);
    assert_eq!(*order.lock().unwrap(), [0, 40, 30, 20]);
    // After its job was cancelled, a tag can be used again.
    rig.submit(vec![job(1, Class::Routed, 10 * PAGE, PAGE, 10 * PAGE)]);
    assert_eq!(rig.results(1), [(1, Ok(()))]);
}

#[test]
fn reads_use_the_full_depth_and_limit_predictions() {
    let gate = Arc::new(Gate::default());
    let inner = Arc::clone(&gate);
    let (queue, _file) = Rig::parts(&pattern(64 * PAGE), false, PAGE);
    let (sender, results) = mpsc::channel();
    let options = DriveOptions { depth: 8, predicted_depth: 3, ..DriveOptions::default() };
    let (shared, begun) = (Arc::clone(&queue), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&begun);
    let drive = Drive::start_with(&options, &queue, Arc::new(Mutex::new(sender)), move || {
        let planted = Planted::new(shared.files(), &inner, move |read| {
            log.lock().unwrap().push(read.offset / PAGE);
            Fate::Stuck
        });
        Ok((Box::new(planted) as Box<dyn Backend>, Vec::new()))
    })
    .unwrap();
    let until = |count| {
        while begun.lock().unwrap().len() < count {
            std::thread::yield_now();
        }
    };
    queue.submit(vec![job(0, Class::Predicted, 0, 20 * PAGE, 0)]).unwrap();
    until(3);
    queue.submit(vec![job(1, Class::Routed, 30 * PAGE, 20 * PAGE, 30 * PAGE)]).unwrap();
    until(8);
    // While three or more reads of any class are outstanding, no predicted read starts.
    assert_eq!(*begun.lock().unwrap(), [0, 1, 2, 30, 31, 32, 33, 34]);
    assert_eq!(queue.counters().max_outstanding, 8);
    gate.open();
    let mut count = 0;
    while count < 2 {
        count += results.recv().unwrap().len();
    }
    drop(drive);
    assert_eq!(queue.counters().max_outstanding, 8);
    assert_eq!(queue.counters().bytes(), 40 * PAGE);
}

#[test]
fn reads_outside_the_reservation_or_off_a_page_are_refused() {
    let rig = Rig::new(&pattern(PAGE), BackendChoice::ThreadedReader, false, PAGE);
    for (at, bytes) in [(1, 1), (8 << 20, 1), ((8 << 20) - PAGE, PAGE + 1), (u64::MAX - PAGE + 1, 10), (0, u64::MAX)] {
        let refused = rig.queue.submit(vec![job(0, Class::Routed, 0, bytes, at)]);
        assert!(matches!(refused, Err(StreamError::Memory { .. })), "{at} {bytes}: {refused:?}");
    }
    rig.submit(vec![job(0, Class::Routed, 0, 1, (8 << 20) - PAGE)]);
    assert_eq!(rig.results(1), [(0, Ok(()))]);
}

#[test]
fn throttled_drive_reads_correctly_within_its_rate() {
    let bytes = pattern(40 * PAGE);
    let rate = 4e6;
    let rig = Rig::planted(&bytes, 8, PAGE, move |queue| {
        ThreadedReader::with_rate(Arc::clone(queue.files()), 8, rate).unwrap()
    });
    let begun = std::time::Instant::now();
    rig.submit((0..4).map(|i| job(i, Class::Routed, 10 * i * PAGE, 10 * PAGE, 10 * i * PAGE)).collect());
    assert!(rig.results(4).iter().all(|(_, result)| result.is_ok()));
    assert!(begun.elapsed().as_secs_f64() >= 40.0 * PAGE as f64 / rate, "{:?}", begun.elapsed());
    assert!(rig.read(0, 40 * PAGE) == bytes);
}
