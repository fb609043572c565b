//! A transport between threads of one process. It is used by tests, and it is the simplest
//! implementation to read.

use std::collections::VecDeque;

use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use crate::{Incoming, Outgoing, Receipt, Transport, TransportError, check_peers, last_words};

/// Messages that have been sent but not received, and the end of the group.
#[derive(Debug, Default)]
struct Messages {
    /// One queue for each pair of ranks, at index `from * ranks + to`.
    queues: Vec<VecDeque<Vec<u8>>>,
    /// The rank that ended the group, and its reason.
    ended: Option<(u32, String)>,
}

/// An exchange that has begun and is not finished.
#[derive(Debug)]
struct OpenExchange {
    incoming: Vec<Receipt>,
    has_arrived: bool,
}

/// Data that the ranks of a group share.
#[derive(Debug)]
struct Shared {
    ranks: u32,
    messages: Mutex<Messages>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Messages> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, by: u32, reason: &str) {
        self.lock().ended.get_or_insert_with(|| (by, reason.to_owned()));
        self.changed.notify_all();
    }
}

/// A rank in a group of threads. When it is dropped, the group ends for ranks that still wait.
#[derive(Debug)]
pub struct LocalTransport {
    rank: u32,
    shared: Arc<Shared>,
    /// Open exchanges, the oldest first.
    open: Mutex<VecDeque<OpenExchange>>,
}

/// Returns the transports of a new group, one for each rank.
pub fn group(ranks: u32) -> Vec<LocalTransport> {
    let queues = (0..ranks as usize * ranks as usize).map(|_| VecDeque::new()).collect();
    let messages = Mutex::new(Messages { queues, ended: None });
    let shared = Arc::new(Shared { ranks, messages, changed: Condvar::new() });
    (0..ranks).map(|rank| LocalTransport { rank, shared: shared.clone(), open: Mutex::default() }).collect()
}

impl LocalTransport {
    fn queue(&self, from: u32, to: u32) -> usize {
        from as usize * self.shared.ranks as usize + to as usize
    }

    fn open(&self) -> MutexGuard<'_, VecDeque<OpenExchange>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, outgoing: &[Outgoing<'_>]) -> Result<(), TransportError> {
        let mut messages = self.shared.lock();
        if let (Some((by, reason)), [_, ..]) = (&messages.ended, outgoing) {
            return Err(TransportError::Ended { by: *by, reason: reason.clone() });
        }
        for message in outgoing {
            let queue = self.queue(self.rank, message.to);
            messages.queues[queue].push_back(message.bytes.to_vec());
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Waits for a message.
    fn receive(&self, message: &mut Incoming<'_>) -> Result<(), TransportError> {
        let queue = self.queue(message.from, self.rank);
        let mut messages = self.shared.lock();
        let bytes = loop {
            // The message may belong to an exchange that has failed on this rank.
            if let Some((by, reason)) = messages.ended.as_ref().filter(|(by, _)| *by == self.rank) {
                return Err(TransportError::Ended { by: *by, reason: reason.clone() });
            }
            // Messages that were sent before another rank ended the group still arrive.
            if let Some(bytes) = messages.queues[queue].pop_front() {
                break bytes;
            }
            if let Some((by, reason)) = &messages.ended {
                return Err(TransportError::Ended { by: *by, reason: reason.clone() });
            }
            messages = self.shared.changed.wait(messages).unwrap_or_else(PoisonError::into_inner);
        };
        if bytes.len() != message.bytes.len() {
            return Err(TransportError::Length {
                rank: self.rank,
                from: message.from,
                found: bytes.len() as u64,
                expected: message.bytes.len() as u64,
            });
        }
        message.bytes.copy_from_slice(&bytes);
        Ok(())
    }

    /// Waits for those messages of an open exchange that have not arrived yet.
    fn receive_open(&self, open: &mut OpenExchange) -> Result<(), TransportError> {
        if !open.has_arrived {
            open.incoming.iter_mut().try_for_each(|receipt| self.receive(&mut receipt.incoming()))?;
            open.has_arrived = true;
        }
        Ok(())
    }
}

impl Transport for LocalTransport {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.shared.ranks
    }

    fn exchange(&self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), TransportError> {
        check_peers(self, outgoing, incoming.iter().map(|message| message.from))?;
        self.send(outgoing)?;
        self.open().iter_mut().try_for_each(|open| self.receive_open(open))?;
        incoming.iter_mut().try_for_each(|message| self.receive(message))
    }

    fn begin(&self, outgoing: &[Outgoing<'_>], incoming: Vec<Receipt>) -> Result<(), TransportError> {
        check_peers(self, outgoing, incoming.iter().map(|message| message.from))?;
        self.send(outgoing)?;
        self.open().push_back(OpenExchange { incoming, has_arrived: false });
        Ok(())
    }

    fn finish(&self) -> Result<Vec<Receipt>, TransportError> {
        let Some(mut open) = self.open().pop_front() else { return Ok(Vec::new()) };
        self.receive_open(&mut open)?;
        Ok(open.incoming)
    }

    fn end(&self, reason: &str) {
        self.shared.end(self.rank, reason);
    }

    fn is_end_reported(&self) -> bool {
        // All ranks are in this process, and its caller receives the failure.
        false
    }

    fn end_of_group(&self) -> Option<TransportError> {
        let messages = self.shared.lock();
        messages.ended.as_ref().map(|(by, reason)| TransportError::Ended { by: *by, reason: reason.clone() })
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        self.shared.end(self.rank, last_words());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> [LocalTransport; 2] {
        group(2).try_into().unwrap()
    }

    #[test]
    fn messages_arrive_in_their_order() {
        let [first, second] = pair();
        for byte in 0..3 {
            first.exchange(&[Outgoing { to: 1, bytes: &[byte] }], &mut []).unwrap();
        }
        for byte in 0..3 {
            let mut found = [9];
            second.exchange(&[], &mut [Incoming { from: 0, bytes: &mut found }]).unwrap();
            assert_eq!(found, [byte]);
        }
    }

    #[test]
    fn open_exchanges_arrive_in_their_order() {
        let [first, second] = pair();
        let one = |byte| [Receipt { from: 0, bytes: vec![byte] }];
        for byte in [1, 2] {
            first.begin(&[Outgoing { to: 1, bytes: &[byte] }], Vec::new()).unwrap();
            second.begin(&[], one(0).into()).unwrap();
        }
        first.exchange(&[Outgoing { to: 1, bytes: &[3] }], &mut []).unwrap();
        let mut found = [0];
        second.exchange(&[], &mut [Incoming { from: 0, bytes: &mut found }]).unwrap();
        assert_eq!((second.finish().unwrap(), second.finish().unwrap(), found), (one(1).into(), one(2).into(), [3]));
        assert_eq!(second.finish(), Ok(Vec::new()));
        second.begin(&[], one(0).into()).unwrap();
        first.end("the drive is full");
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
        let found = second.exchange(&[], &mut [Incoming { from: 0, bytes: &mut [0] }]);
        assert_eq!((found, second.finish()), (Err(ended.clone()), Err(ended)));
    }

    #[test]
    fn a_message_of_another_length_is_refused() {
        let [first, second] = pair();
        first.exchange(&[Outgoing { to: 1, bytes: &[1, 2, 3] }], &mut []).unwrap();
        let found = second.exchange(&[], &mut [Incoming { from: 0, bytes: &mut [0; 2] }]);
        assert_eq!(found, Err(TransportError::Length { rank: 1, from: 0, found: 3, expected: 2 }));
    }

    #[test]
    fn a_rank_has_no_messages_for_itself_or_for_absent_ranks() {
        let [first, _second] = pair();
        for peer in [0, 2] {
            let found = first.exchange(&[Outgoing { to: peer, bytes: &[] }], &mut []);
            assert_eq!(found, Err(TransportError::Peer { rank: 0, peer, ranks: 2 }));
        }
    }

    #[test]
    fn a_waiting_rank_fails_when_another_ends() {
        let [first, second] = pair();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| second.exchange(&[], &mut [Incoming { from: 0, bytes: &mut [0] }]));
            first.end("the drive is full");
            let expected = TransportError::Ended { by: 0, reason: "the drive is full".to_owned() };
            assert_eq!(waiting.join().unwrap(), Err(expected));
        });
    }

    #[test]
    fn a_rank_that_panics_ends_the_group_with_this_reason() {
        let [first, second] = pair();
        let panic = std::thread::spawn(move || {
            let _first = first;
            std::panic::resume_unwind(Box::new("a bug"));
        });
        assert!(panic.join().is_err());
        let found = second.exchange(&[], &mut [Incoming { from: 0, bytes: &mut [0] }]);
        let expected = TransportError::Ended { by: 0, reason: "it panicked; this is a bug".to_owned() };
        assert_eq!(found, Err(expected));
    }

    #[test]
    fn a_dropped_rank_ends_the_group() {
        let [first, second] = pair();
        drop(first);
        let found = second.exchange(&[], &mut [Incoming { from: 0, bytes: &mut [0] }]);
        assert!(matches!(found, Err(TransportError::Ended { by: 0, .. })));
        let sent = second.exchange(&[Outgoing { to: 0, bytes: &[0] }], &mut []);
        assert!(matches!(sent, Err(TransportError::Ended { by: 0, .. })));
    }
}
