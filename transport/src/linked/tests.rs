use super::*;
use crate::frames::FRAME;
use crate::header::Header;
use crate::link::Channel;
use crate::memory::{MemoryLink, links};

fn transport(link: MemoryLink) -> LinkedTransport<MemoryLink> {
    let handler = FailureHandler { report: Box::new(|_| {}), react: Box::new(|_| {}) };
    LinkedTransport::new(link, handler).unwrap()
}

fn group(ranks: u32) -> Vec<LinkedTransport<MemoryLink>> {
    links(ranks).into_iter().map(transport).collect()
}

fn pair() -> [LinkedTransport<MemoryLink>; 2] {
    group(2).try_into().unwrap()
}

/// Returns a rank with a bare link as its peer. Through this link, tests can send any messages.
fn with_hostile_peer() -> (LinkedTransport<MemoryLink>, MemoryLink) {
    let [link, hostile] = links(2).try_into().unwrap();
    (transport(link), hostile)
}

fn receive(transport: &dyn Transport, from: u32, bytes: &mut [u8]) -> Result<(), TransportError> {
    transport.exchange(&[], &mut [Incoming { from, bytes }])
}

#[test]
fn all_ranks_exchange_messages_of_all_sizes() {
    std::thread::scope(|scope| {
        for transport in group(3) {
            scope.spawn(move || {
                let rank = transport.rank();
                for length in [0, 1, 5, 4096, FRAME, FRAME + 1, 2 * FRAME] {
                    let own = vec![rank as u8; length];
                    let others = (0..3).filter(|other| *other != rank);
                    let outgoing: Vec<_> = others.clone().map(|to| Outgoing { to, bytes: &own }).collect();
                    let mut found = vec![vec![9; length]; 2];
                    let mut incoming: Vec<_> =
                        others.clone().zip(&mut found).map(|(from, bytes)| Incoming { from, bytes }).collect();
                    transport.exchange(&outgoing, &mut incoming).unwrap();
                    for (from, found) in others.zip(&found) {
                        assert!(found.iter().all(|byte| *byte == from as u8), "{length} bytes of rank {from}");
                    }
                }
                transport.close().unwrap();
            });
        }
    });
}

#[test]
fn two_messages_of_one_rank_arrive_in_their_order() {
    let [first, second] = pair();
    let outgoing = [Outgoing { to: 1, bytes: &[1, 1] }, Outgoing { to: 1, bytes: &[2] }];
    first.exchange(&outgoing, &mut []).unwrap();
    let (mut one, mut two) = ([0; 2], [0]);
    let mut incoming = [Incoming { from: 0, bytes: &mut one }, Incoming { from: 0, bytes: &mut two }];
    second.exchange(&[], &mut incoming).unwrap();
    assert_eq!((one, two), ([1, 1], [2]));
}

#[test]
fn open_exchanges_arrive_in_their_order_with_one_between() {
    std::thread::scope(|scope| {
        for transport in group(3) {
            scope.spawn(move || {
                let rank = transport.rank();
                let others: Vec<u32> = (0..3).filter(|other| *other != rank).collect();
                let receipts = |bytes: &dyn Fn(u32) -> Vec<u8>| -> Vec<Receipt> {
                    others.iter().map(|from| Receipt { from: *from, bytes: bytes(*from) }).collect()
                };
                let lengths = [4096, FRAME + 1];
                for length in lengths {
                    let own = vec![rank as u8; length];
                    let outgoing: Vec<_> = others.iter().map(|to| Outgoing { to: *to, bytes: &own }).collect();
                    transport.begin(&outgoing, receipts(&|_| vec![9; length])).unwrap();
                }
                let next = (rank + 1) % 3;
                let mut found = [9];
                let mut incoming = [Incoming { from: (rank + 2) % 3, bytes: &mut found }];
                transport.exchange(&[Outgoing { to: next, bytes: &[rank as u8] }], &mut incoming).unwrap();
                assert_eq!(u32::from(found[0]), (rank + 2) % 3);
                for length in lengths {
                    let found = transport.finish().unwrap();
                    assert!(found == receipts(&|from| vec![from as u8; length]), "{length} bytes");
                }
                assert_eq!(transport.finish(), Ok(Vec::new()));
                transport.close().unwrap();
            });
        }
    });
}

#[test]
fn a_hostile_message_of_an_open_exchange_ends_the_group_while_this_rank_computes() {
    let [link, mut hostile] = links(2).try_into().unwrap();
    let (sender, failures) = std::sync::mpsc::channel();
    let sender = Mutex::new(sender);
    let react = move |error: &TransportError| sender.lock().unwrap().send(error.clone()).unwrap();
    let handler = FailureHandler { report: Box::new(|_| {}), react: Box::new(react) };
    let transport = LinkedTransport::new(link, handler).unwrap();
    transport.begin(&[], vec![Receipt { from: 1, bytes: vec![0; 4] }]).unwrap();
    let header = Header { sequence: 0, message_bytes: 5 }.encode();
    hostile.send(0, Channel::Data, &header, &[0; 5]).unwrap();
    // The heartbeat thread detects the failure.
    let expected = TransportError::Length { rank: 0, from: 1, found: 5, expected: 4 };
    assert_eq!(failures.recv().unwrap(), expected);
    assert_eq!(transport.finish(), Err(expected));
}

#[test]
fn an_open_exchange_with_a_rank_that_ends_fails() {
    let [first, second] = pair();
    let receipt = || vec![Receipt { from: 0, bytes: vec![0] }];
    first.begin(&[Outgoing { to: 1, bytes: &[7] }], Vec::new()).unwrap();
    second.begin(&[], receipt()).unwrap();
    second.begin(&[], receipt()).unwrap();
    first.end("the drive is full");
    // This message was sent before the end of the group.
    assert_eq!(second.finish(), Ok(vec![Receipt { from: 0, bytes: vec![7] }]));
    assert_eq!(second.finish(), Err(TransportError::Ended { by: 0, reason: "the drive is full".to_owned() }));
}

#[test]
fn a_rank_that_ended_the_group_takes_no_message_of_an_open_exchange() {
    let [first, second] = pair();
    let receipt = || vec![Receipt { from: 0, bytes: vec![0] }];
    second.begin(&[], receipt()).unwrap();
    for byte in [1, 2] {
        first.begin(&[Outgoing { to: 1, bytes: &[byte] }], Vec::new()).unwrap();
    }
    second.end("a kernel failed");
    let ended = TransportError::Ended { by: 1, reason: "a kernel failed".to_owned() };
    assert_eq!(receive(&second, 0, &mut [0]), Err(ended.clone()));
    assert_eq!(second.exchange(&[Outgoing { to: 0, bytes: &[3] }], &mut []), Err(ended.clone()));
    assert_eq!(second.begin(&[], receipt()), Err(ended.clone()));
    assert_eq!(second.finish(), Err(ended));
}

#[test]
fn messages_of_other_lengths_are_refused() {
    for (found, expected) in [(3, 2), (2, 3), (0, 1), (FRAME + 2, FRAME + 1)] {
        let [first, second] = pair();
        first.exchange(&[Outgoing { to: 1, bytes: &vec![7; found] }], &mut []).unwrap();
        let error = receive(&second, 0, &mut vec![0; expected]).unwrap_err();
        let (found, expected) = (found as u64, expected as u64);
        match error {
            TransportError::Length { rank: 1, from: 0, found: bytes, expected: wanted } => {
                // A frame that is too long is refused before its header is checked.
                assert_eq!((bytes, wanted), (found.min(bytes), expected));
                assert_ne!(bytes, expected);
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn hostile_frames_are_refused() {
    let frame = |sequence, message_bytes, contents: &[u8]| {
        [&Header { sequence, message_bytes }.encode()[..], contents].concat()
    };
    let cases = [
        (frame(1, 4, &[0; 4]), "message 1 of rank 1"),
        (frame(0, 5, &[0; 4]), "5 bytes"),
        (frame(0, 4, &[0; 3]), "3 bytes"),
        (frame(0, u64::MAX, &[0; 5]), "5 bytes"),
        (vec![0; 3], "0 bytes"),
    ];
    for (bytes, expected) in cases {
        let (transport, mut hostile) = with_hostile_peer();
        hostile.send(0, Channel::Data, &bytes, &[]).unwrap();
        let error = receive(&transport, 1, &mut [0; 4]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_reason_of_an_end_reaches_a_waiting_rank_and_its_handler() {
    let [first, second] = links(2).try_into().unwrap();
    let failures = Arc::new(Mutex::new(Vec::new()));
    let of_handler = Arc::clone(&failures);
    let react = move |error: &TransportError| of_handler.lock().unwrap().push(error.clone());
    let unexpected = || Box::new(|error: &TransportError| panic!("{error}"));
    let reports = Arc::new(Mutex::new(Vec::new()));
    let of_handler = Arc::clone(&reports);
    let report = move |error: &TransportError| of_handler.lock().unwrap().push(error.clone());
    let handler = FailureHandler { report: Box::new(report), react: unexpected() };
    let first = LinkedTransport::new(first, handler).unwrap();
    let handler = FailureHandler { report: unexpected(), react: Box::new(react) };
    let second = LinkedTransport::new(second, handler).unwrap();
    let expected = TransportError::Ended { by: 0, reason: "the drive is full".to_owned() };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| receive(&second, 0, &mut [0]));
        first.end("the drive is full");
        assert_eq!(waiting.join().unwrap(), Err(expected.clone()));
    });
    assert_eq!(receive(&first, 1, &mut [0]), Err(expected.clone()));
    assert_eq!(*failures.lock().unwrap(), std::slice::from_ref(&expected));
    // The rank that ends the group is the only one that reports it.
    drop(first);
    assert_eq!(*reports.lock().unwrap(), [expected]);
}

#[test]
fn a_link_hangs_only_while_this_process_runs() {
    let [transport, _peer] = pair();
    transport.stop_heartbeats();
    let shared = &transport.shared;
    let tick = UPDATE;
    let expected = TransportError::Stuck { rank: 0, seconds: SILENCE.as_secs() };
    // The lock keeps the heartbeat thread from the link, so no update changes the times in this
    // test.
    let _state = shared.lock();
    let begin = shared.begin + Duration::from_secs(100);
    shared.answered.store(shared.milliseconds(begin), Ordering::Relaxed);
    assert_eq!(shared.hang(begin + SILENCE, tick), None);
    assert_eq!(shared.hang(begin + SILENCE + tick, tick), Some(expected.clone()));
    // After a suspension of an hour, the link again has the full time for its answer.
    let later = begin + Duration::from_secs(3600);
    assert_eq!(shared.hang(later, Duration::from_secs(3590)), None);
    assert_eq!(shared.hang(later + SILENCE, tick), None);
    assert_eq!(shared.hang(later + SILENCE + tick, tick), Some(expected));
}

#[test]
fn each_rank_has_a_patience_of_its_own() {
    for ranks in [2, 3, 8, 64, 1024] {
        let all: Vec<Duration> = (0..ranks).map(|rank| patience(rank, ranks)).collect();
        assert_eq!(all[0], Duration::ZERO);
        assert!(all.is_sorted_by(|a, b| a < b) && all[all.len() - 1] <= PATIENCE, "{ranks} ranks");
    }
    assert_eq!(patience(2, 4), 2 * PRECEDENCE);
}

#[test]
fn a_rank_that_cannot_leave_tells_the_others() {
    let [mut link, peer] = links(2).try_into().unwrap();
    link.failures = 1;
    let failures = Arc::new(Mutex::new(Vec::new()));
    let of_handler = Arc::clone(&failures);
    let react = move |error: &TransportError| of_handler.lock().unwrap().push(error.clone());
    let handler = FailureHandler { report: Box::new(|_| {}), react: Box::new(react) };
    let first = LinkedTransport::new(link, handler).unwrap();
    let second = transport(peer);
    let error = first.close().unwrap_err();
    assert!(matches!(error, TransportError::Link { rank: 0, .. }), "{error}");
    assert_eq!(*failures.lock().unwrap(), std::slice::from_ref(&error));
    let found = receive(&second, 0, &mut [0]).unwrap_err();
    assert_eq!(found, TransportError::Ended { by: 0, reason: error.to_string() });
}

#[test]
fn a_link_that_hangs_does_not_stop_the_end() {
    let (transport, _peer) = with_hostile_peer();
    let state = transport.shared.lock();
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| transport.end("the run was interrupted"));
        ending.join().unwrap();
    });
    drop(state);
    assert!(transport.shared.failure.is_completed());
}

#[test]
fn a_message_of_a_rank_that_left_is_not_awaited() {
    let (transport, mut peer) = with_hostile_peer();
    peer.send(0, Channel::Control, &Control::Leave.encode(), &[]).unwrap();
    let error = receive(&transport, 1, &mut [0]).unwrap_err();
    assert_eq!(error, TransportError::Ended { by: 1, reason: "it is finished".to_owned() });
}

#[test]
fn a_dropped_rank_ends_the_group() {
    let [first, second] = pair();
    drop(first);
    assert!(matches!(receive(&second, 0, &mut [0]), Err(TransportError::Ended { by: 0, .. })));
}

/// Failures that a handler has reported.
type Reports = Arc<Mutex<Vec<TransportError>>>;

/// Returns a rank with a handler that records reports.
fn reporting(link: MemoryLink) -> (LinkedTransport<MemoryLink>, Reports) {
    let reports = Reports::default();
    let of_handler = Arc::clone(&reports);
    let report = move |error: &TransportError| of_handler.lock().unwrap().push(error.clone());
    let handler = FailureHandler { report: Box::new(report), react: Box::new(|_| {}) };
    (LinkedTransport::new(link, handler).unwrap(), reports)
}

#[test]
fn rank_0_reports_the_end_by_another_rank() {
    let mut links = links(3).into_iter();
    let (first, of_first) = reporting(links.next().unwrap());
    let (second, of_second) = reporting(links.next().unwrap());
    let (third, of_third) = reporting(links.next().unwrap());
    second.end("the drive is full");
    assert!(second.is_end_reported());
    let expected = TransportError::Ended { by: 1, reason: "the drive is full".to_owned() };
    assert_eq!(*of_first.lock().unwrap(), std::slice::from_ref(&expected));
    // The end caused by rank 0 may arrive first.
    let end = receive(&third, 0, &mut [0]).unwrap_err();
    assert!(matches!(&end, TransportError::Ended { by: 0 | 1, reason } if reason == "the drive is full"), "{end}");
    drop((first, second, third));
    assert_eq!((of_second.lock().unwrap().len(), of_third.lock().unwrap().len()), (0, 0));
}

#[test]
fn a_failure_of_all_ranks_is_reported_once() {
    for round in 0..3 {
        let ranks: Vec<_> = links(3).into_iter().map(reporting).collect();
        std::thread::scope(|scope| {
            for (place, (transport, _)) in ranks.iter().enumerate() {
                // Rank 0 fails last, when the time for which the other ranks wait for it is over.
                let delay = Duration::from_millis(if place == 0 { 200 + 200 * round } else { 0 });
                scope.spawn(move || {
                    std::thread::sleep(delay);
                    transport.end("found 3 ranks; the plan is for 4");
                });
            }
        });
        let reports: Vec<TransportError> =
            ranks.iter().flat_map(|(_, reports)| reports.lock().unwrap().clone()).collect();
        assert_eq!(reports.len(), 1, "{reports:?}");
    }
}

#[test]
fn a_rank_reports_its_end_if_rank_0_does_not_answer() {
    let [_silent, link] = links(2).try_into().unwrap();
    let (second, reports) = reporting(link);
    second.end("the drive is full");
    assert!(second.is_end_reported());
    let expected = TransportError::Ended { by: 1, reason: "the drive is full".to_owned() };
    assert_eq!(*reports.lock().unwrap(), [expected]);
}

#[test]
fn rank_0_reports_a_malformed_message_once() {
    let [first, second] = links(2).try_into().unwrap();
    let ((first, of_first), (second, of_second)) = (reporting(first), reporting(second));
    first.exchange(&[Outgoing { to: 1, bytes: &[1, 2] }], &mut []).unwrap();
    let error = receive(&second, 0, &mut [0]).unwrap_err();
    assert!(matches!(error, TransportError::Length { rank: 1, .. }), "{error}");
    let expected = TransportError::Ended { by: 1, reason: error.to_string() };
    assert_eq!((&*of_first.lock().unwrap(), of_second.lock().unwrap().len()), (&vec![expected], 0));
    assert!(second.is_end_reported());
}
