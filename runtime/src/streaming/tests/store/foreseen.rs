//! Tests of blocks that are read before their request. They are confirmed, cancelled or announced.

use super::*;

/// Pages at which reads began, in the order of the reads.
type Reads = Arc<Mutex<Vec<u32>>>;

/// Makes a cache with room for four blocks of each of two groups. It makes one read at a time,
/// which waits at the gate.
fn stuck(model: &Model) -> (ExpertCache, Arc<Gate>, Reads) {
    let (gate, reads) = (Arc::new(Gate::default()), Reads::default());
    let log = Arc::clone(&reads);
    let mut config = config(model.minimum(4), 4);
    (config.drive.depth, config.drive.predicted_depth) = (1, 1);
    let store = model.planted(&config, &gate, move |read| {
        log.lock().unwrap().push((read.offset / PAGE) as u32);
        Fate::Stuck
    });
    (store, gate, reads)
}

fn until_begun(reads: &Reads) {
    while reads.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn predicted_block_is_read_once_into_its_final_slot() {
    let model = model(2, 6, false, |_| PAGE);
    let store = model.store(&config(model.minimum(2), 2));
    assert_eq!(store.predict(1, &[3, 4, 5]), 2, "half of the slots are for requests");
    let predicted = |expert| loop {
        if let Some(region) = store.ready(id(1, expert)) {
            return region;
        }
        std::thread::yield_now();
    };
    let (at, _) = (predicted(3).base(), predicted(4));
    let shadow = store.stats().classes[0].shadow;
    assert_eq!(shadow, 2);
    let request = store.request(1, &[5, 3]).unwrap();
    // The first block may have arrived in the meantime.
    assert!(matches!(request.states[..], [_, State::Ready(region)] if region.base() == at));
    assert!(holds(store.wait(id(1, 5)).unwrap(), model.block(id(1, 5))));
    let stats = store.stats();
    assert_eq!((stats.classes[0].primary, stats.classes[0].shadow), (2, 1));
    let group = stats.groups[1];
    assert_eq!((group.hits, group.foreseen, group.misses), (1, 1, 1));
    assert_eq!((group.predicted_bytes, group.right_bytes, group.wasted_bytes), (2 * PAGE, PAGE, 0));
    assert_eq!((stats.drive.predicted.bytes, stats.drive.routed.bytes), (2 * PAGE, PAGE));
    // The block of the wrong prediction is evicted before any block that was used.
    store.release(1);
    model.use_all(&store, 0, &[0, 1]);
    assert!(store.ready(id(1, 4)).is_none() && store.ready(id(1, 3)).is_some() && store.ready(id(1, 5)).is_some());
    assert_eq!(store.stats().groups[1].wasted_bytes, PAGE);
}

#[test]
fn requests_confirm_matching_predictions_and_cancel_others() {
    let model = model(2, 8, false, |_| PAGE);
    let (store, gate, reads) = stuck(&model);
    // The first block is being read. The reads of the others are queued.
    assert_eq!(store.predict(0, &[0, 1, 2, 3]), 4);
    assert_eq!(store.predict(0, &[0, 1, 2, 3]), 0);
    until_begun(&reads);
    let request = store.request(0, &[5, 2, 2]).unwrap();
    assert!(request.states.iter().all(|state| matches!(state, State::Coming)));
    let group = store.stats().groups[0];
    assert_eq!((group.hits, group.on_the_way, group.misses, group.cancelled), (0, 1, 1, 2));
    assert_eq!(group.predicted_bytes, 2 * PAGE);
    gate.open();
    for expert in [5, 2] {
        assert!(holds(store.wait(id(0, expert)).unwrap(), model.block(id(0, expert))));
    }
    assert_eq!(*reads.lock().unwrap(), [0, 2, 5], "the one that was on, then the confirmed one, then the miss");
    assert_eq!(store.wait(id(0, 1)).map(|_| ()), Err(StreamError::NotRequested { block: id(0, 1) }));
    // If a group does not run after all, `refute` cancels its predictions.
    assert_eq!(store.predict(1, &[0]), 1);
    store.refute(1);
    model.use_all(&store, 1, &[0]);
}

#[test]
fn cancelled_partial_read_is_repeated_on_request() {
    for wanted in [false, true] {
        let model = model(2, 8, false, |_| 6 * PAGE);
        let (store, gate, reads) = stuck(&model);
        // The first of the block's three reads is outstanding.
        assert_eq!(store.predict(1, &[0]), 1);
        until_begun(&reads);
        store.refute(1);
        let group = store.stats().groups[1];
        assert_eq!((group.cancelled, group.predicted_bytes, group.wasted_bytes), (1, 2 * PAGE, 2 * PAGE));
        assert_eq!(group.bytes, 2 * PAGE);
        if wanted {
            // The block is requested while that read is outstanding.
            let request = store.request(1, &[0]).unwrap();
            assert!(matches!(request.states[..], [State::Coming]));
        }
        gate.open();
        while !wanted && store.stats().classes[0].shadow > 0 {
            std::thread::yield_now();
        }
        if !wanted {
            store.request(1, &[0]).unwrap();
        }
        assert!(holds(store.wait(id(1, 0)).unwrap(), model.block(id(1, 0))));
        let begin = model.block(id(1, 0)).extents[0].offset as u32 / PAGE as u32;
        let again = reads.lock().unwrap().iter().filter(|&&page| page == begin).count();
        assert_eq!(again, 2, "once for the prediction, once for the request");
        let group = store.stats().groups[1];
        assert_eq!((group.misses, group.right_bytes, group.failures), (1, 0, 0), "{group:?}");
        assert_eq!(group.bytes, 8 * PAGE);
    }
}

#[test]
fn announced_blocks_are_kept_until_requested() {
    let model = model(2, 6, false, |_| PAGE);
    let store = model.store(&config(model.minimum(3), 3));
    assert_eq!(store.announce(0, &[4]), 1);
    assert_eq!(store.predict(0, &[5]), 1);
    while store.ready(id(0, 4)).is_none() || store.ready(id(0, 5)).is_none() {
        std::thread::yield_now();
    }
    // First, the group requests other experts, which need all slots but one.
    model.use_all(&store, 0, &[0, 1, 2]);
    store.release(0);
    model.use_all(&store, 1, &[0, 1]);
    assert!(store.ready(id(0, 4)).is_some() && store.ready(id(0, 5)).is_none());
    let request = store.request(0, &[4]).unwrap();
    assert!(matches!(request.states[..], [State::Ready(_)]));
    let group = store.stats().groups[0];
    assert_eq!((group.right_bytes, group.wasted_bytes), (PAGE, PAGE));
}
