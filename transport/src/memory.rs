//! A link between ranks in the same process, for tests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::link::{Channel, Link, LinkError};

/// A message that has been sent but not received.
#[derive(Debug)]
struct Message {
    from: u32,
    to: u32,
    channel: Channel,
    bytes: Vec<u8>,
}

/// The link of one rank.
#[derive(Debug)]
pub(crate) struct MemoryLink {
    rank: u32,
    ranks: u32,
    messages: Arc<Mutex<VecDeque<Message>>>,
    /// Number of further messages that fail to be sent.
    pub failures: u32,
}

/// Returns the links of a new group.
pub(crate) fn links(ranks: u32) -> Vec<MemoryLink> {
    let messages = Arc::default();
    (0..ranks).map(|rank| MemoryLink { rank, ranks, messages: Arc::clone(&messages), failures: 0 }).collect()
}

impl Link for MemoryLink {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn send(&mut self, to: u32, channel: Channel, head: &[u8], rest: &[u8]) -> Result<(), LinkError> {
        if let Some(failures) = self.failures.checked_sub(1) {
            self.failures = failures;
            return Err(LinkError::Library { call: "send", message: "the test breaks it".to_owned() });
        }
        let message = Message { from: self.rank, to, channel, bytes: [head, rest].concat() };
        self.messages.lock().unwrap().push_back(message);
        Ok(())
    }

    fn receive(
        &mut self,
        from: Option<u32>,
        channel: Channel,
        limit: usize,
        take: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<bool, LinkError> {
        let mut messages = self.messages.lock().unwrap();
        let is_next = |message: &Message| {
            message.to == self.rank && message.channel == channel && from.is_none_or(|from| from == message.from)
        };
        let Some(place) = messages.iter().position(is_next) else { return Ok(false) };
        let Message { from, bytes, .. } = messages.remove(place).unwrap();
        if bytes.len() > limit {
            return Err(LinkError::Oversized { from, bytes: bytes.len() as u64, limit: limit as u64 });
        }
        take(from, &bytes);
        Ok(true)
    }

    fn has_sent_all(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn close(&mut self) {}
}
