//! The transport between processes, over any [`Link`].
//!
//! Messages have headers that are checked, and large ones are divided. A thread of its own sends
//! heartbeats while this rank computes, or waits hours for a request.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::control::Control;
use crate::header::Header;
use crate::link::{Channel, Link, LinkError};
use crate::membership::{Membership, SILENCE};
use crate::{Incoming, Outgoing, Transport, TransportError, check_peers};

/// Max bytes of a frame's contents.
const FRAME: usize = 16 << 20;
/// Time between two updates of the membership.
const UPDATE: Duration = Duration::from_millis(50);
/// Time in which the end of the group is sent to the others.
const FAREWELL: Duration = Duration::from_millis(300);
/// Time that a rank leaves to each lower one to end the group first.
const PRECEDENCE: Duration = Duration::from_millis(300);
/// Rounds in which a waiting rank keeps its processor: messages of a machine take microseconds.
const SPINS: u32 = 200;
/// Rounds after which a waiting rank sleeps. Until then, it yields its processor to another rank.
const YIELDS: u32 = 20_000;
/// Sleep of a rank that waits longer, such as for the next request.
const NAP: Duration = Duration::from_micros(200);
/// Sleep of a rank that has waited for seconds.
const SLEEP: Duration = Duration::from_millis(1);
/// Rounds with [`NAP`].
const NAPS: u32 = YIELDS + 10_000;

/// Function that takes a failure, on any thread. It must not use the transport.
pub type FailureFunction = Box<dyn Fn(&TransportError) + Send + Sync>;

/// Reactions to a failure of another rank, or of the link, also while no exchange waits.
pub struct FailureHandler {
    /// Reports a failure that no other rank reports, before the other ranks know it.
    pub report: FailureFunction,
    /// Reacts to any failure, after the other ranks were informed.
    pub react: FailureFunction,
}

/// Memory of one rank, which its threads share.
struct Shared<L> {
    rank: u32,
    state: Mutex<State<L>>,
    /// Time at which the link last answered, in milliseconds since `begin`.
    answered: AtomicU64,
    /// Time of the last update of the membership, in milliseconds since `begin`.
    updated: AtomicU64,
    begin: Instant,
    /// Whether the thread for heartbeats must end.
    stops: AtomicBool,
    handler: FailureHandler,
    /// The one failure of the group. Other threads wait until its handler has returned, so that a
    /// handler can end the process before they report the same failure.
    failure: Once,
}

/// Link and membership. One thread at a time uses them.
#[derive(Debug)]
struct State<L> {
    link: L,
    membership: Membership,
    /// Frames sent to each rank.
    sent: Vec<u64>,
    /// Frames received from each rank.
    received: Vec<u64>,
}

/// A rank in a group of processes.
pub struct LinkedTransport<L: Link + 'static> {
    rank: u32,
    ranks: u32,
    shared: Arc<Shared<L>>,
    heartbeats: Mutex<Option<JoinHandle<()>>>,
}

impl<L: Link> fmt::Debug for LinkedTransport<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkedTransport").field("rank", &self.rank).field("ranks", &self.ranks).finish_non_exhaustive()
    }
}

impl<L: Link> Shared<L> {
    fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.begin).as_millis()).unwrap_or(u64::MAX)
    }

    /// Records that the link answered, and updates the membership if this is due.
    fn update(&self, state: &mut State<L>, now: Instant) {
        let (now_ms, period) = (self.milliseconds(now), UPDATE.as_millis() as u64);
        self.answered.store(now_ms, Ordering::Relaxed);
        if now_ms >= self.updated.load(Ordering::Relaxed) + period {
            state.membership.update(&mut state.link, now);
            self.updated.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Informs the other ranks and the handler about a failure, once. The other ranks know an end
    /// that one of them caused.
    fn fail(&self, error: &TransportError) {
        self.failure.call_once(|| {
            let is_known = matches!(error, TransportError::Ended { .. });
            if !is_known {
                (self.handler.report)(error);
            }
            // A link that hangs has no message to others.
            if !is_known && !matches!(error, TransportError::Stuck { .. }) {
                self.say_farewell(&error.to_string());
            }
            (self.handler.react)(error);
        });
    }

    /// Sends the end of the group to the other ranks.
    fn say_farewell(&self, reason: &str) {
        let mut state = self.lock();
        let State { link, membership, .. } = &mut *state;
        // If the link fails here, the other ranks notice the silence of this one.
        if membership.send(link, &Control::End(reason.to_owned())).is_ok() {
            let begin = Instant::now();
            while begin.elapsed() < FAREWELL && matches!(link.has_sent_all(), Ok(false)) {
                thread::sleep(SLEEP);
            }
        }
    }

    /// Sends heartbeats until the transport is closed.
    fn send_heartbeats(&self) {
        while !self.stops.load(Ordering::Relaxed) {
            thread::sleep(UPDATE);
            let now = Instant::now();
            let end = match self.state.try_lock() {
                Ok(mut state) => {
                    self.update(&mut state, now);
                    state.membership.end().cloned()
                }
                // A thread exchanges messages and updates the membership, or the link hangs.
                Err(_) => {
                    let pause = self.milliseconds(now).saturating_sub(self.answered.load(Ordering::Relaxed));
                    let rank = self.rank;
                    (u128::from(pause) > SILENCE.as_millis())
                        .then_some(TransportError::Stuck { rank, seconds: SILENCE.as_secs() })
                }
            };
            if let Some(error) = end {
                return self.fail(&error);
            }
        }
    }
}

impl<L: Link> State<L> {
    /// Sends a message in frames.
    fn send(&mut self, message: &Outgoing<'_>) -> Result<(), LinkError> {
        let sent = &mut self.sent[message.to as usize];
        let message_bytes = message.bytes.len() as u64;
        // A message without bytes has one frame, too.
        let mut rest = message.bytes;
        loop {
            let (frame, later) = rest.split_at(rest.len().min(FRAME));
            let header = Header { sequence: *sent, message_bytes };
            self.link.send(message.to, Channel::Data, &header.encode(), frame)?;
            *sent += 1;
            rest = later;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Receives the next frame of a message after `done` bytes. Returns the
    /// number of bytes that arrived; `None` if no frame has.
    fn receive(&mut self, rank: u32, message: &mut Incoming<'_>, done: usize) -> Result<Option<usize>, TransportError> {
        let (from, expected) = (message.from, message.bytes.len());
        let room = &mut message.bytes[done..];
        let frame_bytes = room.len().min(FRAME);
        let sequence = self.received[from as usize];
        let length = |found| TransportError::Length { rank, from, found, expected: expected as u64 };
        let mut checked = Ok(());
        let mut take = |_, frame: &[u8]| {
            checked = match Header::split(frame) {
                None => Err(length(0)),
                Some((header, _)) if header.sequence != sequence => {
                    Err(TransportError::Sequence { rank, from, found: header.sequence, expected: sequence })
                }
                Some((header, _)) if header.message_bytes != expected as u64 => Err(length(header.message_bytes)),
                Some((_, contents)) if contents.len() != frame_bytes => Err(length((done + contents.len()) as u64)),
                Some((_, contents)) => {
                    room[..frame_bytes].copy_from_slice(contents);
                    Ok(())
                }
            };
        };
        let limit = Header::BYTES + frame_bytes;
        match self.link.receive(Some(from), Channel::Data, limit, &mut take) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(LinkError::Oversized { bytes, .. }) => return Err(length(bytes.saturating_sub(Header::BYTES as u64))),
            Err(error) => return Err(error.of_rank(rank)),
        }
        checked?;
        self.received[from as usize] += 1;
        Ok(Some(frame_bytes))
    }
}

impl<L: Link + 'static> LinkedTransport<L> {
    /// Returns the transport over a link. The handler is called once if another rank or the link
    /// fails.
    ///
    /// # Errors
    /// Fails if the system refuses a thread for heartbeats.
    pub fn new(link: L, handler: FailureHandler) -> std::io::Result<LinkedTransport<L>> {
        let (rank, ranks, begin) = (link.rank(), link.ranks(), Instant::now());
        let frames = vec![0; ranks as usize];
        let membership = Membership::new(ranks, begin);
        let shared = Arc::new(Shared {
            rank,
            state: Mutex::new(State { link, membership, sent: frames.clone(), received: frames }),
            answered: AtomicU64::new(0),
            updated: AtomicU64::new(0),
            begin,
            stops: AtomicBool::new(false),
            handler,
            failure: Once::new(),
        });
        let of_thread = Arc::clone(&shared);
        let heartbeats = thread::Builder::new().name("heartbeats".into()).spawn(move || of_thread.send_heartbeats())?;
        Ok(LinkedTransport { rank, ranks, shared, heartbeats: Mutex::new(Some(heartbeats)) })
    }

    /// Exchanges messages; see [`Transport::exchange`].
    fn exchange_checked(&self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), TransportError> {
        let link_error = |error: LinkError| error.of_rank(self.rank);
        let mut state = self.shared.lock();
        for message in outgoing {
            state.send(message).map_err(link_error)?;
        }
        let mut pending = Pending::new(incoming.len());
        let mut round = 0;
        loop {
            // Messages that were sent before the group ended still arrive.
            state.receive_all(self.rank, incoming, &mut pending)?;
            if pending.is_empty() && state.link.has_sent_all().map_err(link_error)? {
                return Ok(());
            }
            let now = Instant::now();
            self.shared.update(&mut state, now);
            if let Some(error) = state.membership.end() {
                return Err(error.clone());
            }
            if let Some(by) = pending.senders(incoming).find(|from| state.membership.left_before(*from, now)) {
                return Err(TransportError::Ended { by, reason: "it is finished".to_owned() });
            }
            drop(state);
            wait(round);
            round = round.saturating_add(1);
            state = self.shared.lock();
        }
    }

    /// Waits for the end of the group by a lower rank. All ranks often fail for the same reason,
    /// such as a missing file, which the lowest rank then reports.
    fn end_of_lower_rank(&self) -> Option<TransportError> {
        let begin = Instant::now();
        let patience = PRECEDENCE.saturating_mul(self.rank.min(2));
        while !self.shared.failure.is_completed() && begin.elapsed() < patience {
            let mut state = self.shared.lock();
            self.shared.update(&mut state, Instant::now());
            if let Some(error) = state.membership.end() {
                return Some(error.clone());
            }
            drop(state);
            thread::sleep(SLEEP);
        }
        None
    }

    /// Ends the thread for heartbeats.
    fn stop_heartbeats(&self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        let thread = self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A failure handler may drop the transport on that thread, which cannot wait for itself.
        if let Some(thread) = thread.filter(|heartbeats| heartbeats.thread().id() != thread::current().id()) {
            // The thread has no result. A panic of the handler was printed.
            let _ = thread.join();
        }
    }
}

/// Waits between two looks at the link.
fn wait(round: u32) {
    match round {
        0..SPINS => std::hint::spin_loop(),
        SPINS..YIELDS => thread::yield_now(),
        YIELDS..NAPS => thread::sleep(NAP),
        NAPS.. => thread::sleep(SLEEP),
    }
}

/// Progress of the messages that an exchange receives.
#[derive(Debug)]
struct Pending {
    /// Bytes of each message that arrived; `None` if the message is complete.
    arrived: Vec<Option<usize>>,
}

impl Pending {
    fn new(messages: usize) -> Pending {
        Pending { arrived: vec![Some(0); messages] }
    }

    fn is_empty(&self) -> bool {
        self.arrived.iter().all(Option::is_none)
    }

    /// Returns the senders of incomplete messages.
    fn senders<'m>(&'m self, incoming: &'m [Incoming<'_>]) -> impl Iterator<Item = u32> + 'm {
        self.arrived.iter().zip(incoming).filter(|(arrived, _)| arrived.is_some()).map(|(_, message)| message.from)
    }

    /// Returns the arrived bytes of a message if its frames are the next ones of its sender.
    fn next_of(&self, place: usize, incoming: &[Incoming<'_>]) -> Option<usize> {
        let from = incoming[place].from;
        let arrived = self.arrived[place]?;
        let waits = (0..place).any(|other| self.arrived[other].is_some() && incoming[other].from == from);
        (!waits).then_some(arrived)
    }
}

impl<L: Link> State<L> {
    /// Receives the frames that have arrived.
    fn receive_all(
        &mut self,
        rank: u32,
        incoming: &mut [Incoming<'_>],
        pending: &mut Pending,
    ) -> Result<(), TransportError> {
        for place in 0..incoming.len() {
            while let Some(before) = pending.next_of(place, incoming) {
                let message = &mut incoming[place];
                let Some(bytes) = self.receive(rank, message, before)? else { break };
                let arrived = before + bytes;
                pending.arrived[place] = (arrived < message.bytes.len()).then_some(arrived);
                self.membership.heard(message.from, Instant::now());
            }
        }
        Ok(())
    }
}

impl<L: Link + 'static> Transport for LinkedTransport<L> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn exchange(&self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), TransportError> {
        check_peers(self, outgoing, incoming)?;
        self.exchange_checked(outgoing, incoming).inspect_err(|error| self.shared.fail(error))
    }

    fn end(&self, reason: &str) {
        if let Some(error) = self.end_of_lower_rank() {
            return self.shared.fail(&error);
        }
        self.shared.failure.call_once(|| {
            let error = TransportError::Ended { by: self.rank, reason: reason.to_owned() };
            self.shared.lock().membership.set_end(error);
            self.shared.say_farewell(reason);
        });
    }

    fn close(&self) -> Result<(), TransportError> {
        let mut state = self.shared.lock();
        let State { link, membership, .. } = &mut *state;
        membership.leave(link)?;
        let mut round = 0;
        loop {
            self.shared.update(&mut state, Instant::now());
            if let Some(error) = state.membership.end().cloned() {
                drop(state);
                self.shared.fail(&error);
                return Err(error);
            }
            if state.membership.all_left(self.rank) && matches!(state.link.has_sent_all(), Ok(true)) {
                break;
            }
            drop(state);
            wait(round);
            round = round.saturating_add(1);
            state = self.shared.lock();
        }
        drop(state);
        // After this, an end is no failure.
        self.shared.failure.call_once(|| {});
        self.stop_heartbeats();
        self.shared.lock().link.close();
        Ok(())
    }
}

impl<L: Link + 'static> Drop for LinkedTransport<L> {
    fn drop(&mut self) {
        self.end("it is finished");
        self.stop_heartbeats();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    /// Returns a rank whose peer is a bare link, which sends anything.
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
    fn messages_of_other_lengths_are_refused() {
        for (found, expected) in [(3, 2), (2, 3), (0, 1), (FRAME + 2, FRAME + 1)] {
            let [first, second] = pair();
            first.exchange(&[Outgoing { to: 1, bytes: &vec![7; found] }], &mut []).unwrap();
            let error = receive(&second, 0, &mut vec![0; expected]).unwrap_err();
            let (found, expected) = (found as u64, expected as u64);
            match error {
                TransportError::Length { rank: 1, from: 0, found: bytes, expected: wanted } => {
                    // A frame that is too long is refused before its header is read.
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
        let handler = FailureHandler { report: unexpected(), react: unexpected() };
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
        assert_eq!(*failures.lock().unwrap(), [expected]);
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
}
