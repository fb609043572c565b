//! Limits of connections: in total and for each client. If all permits (*places*) are in use,
//! another connection is closed to make place for the new one.
//!
//! ```text
//! a client connects ──▶ free place? ── yes ──▶ it has it
//!                        │ no
//!                        ├── close the connection that has been idle longest, and take its place
//!                        ├── else close the one whose body has been arriving longest
//!                        └── all answer: wait; refuse a client whose own places all answer
//! ```
//!
//! A connection counts as answering until the system has accepted the last byte of the answer,
//! because a client may read slowly. If a request arrives while its connection is being closed, the
//! connection keeps its place.
//!
//! A client is an IPv4 address or an IPv6 network of 64 bits. A client gets at most three quarters
//! of all places, so that some places remain for other clients.
//!
//! Invariant: there are never more connections than places.
//! Invariant: a connection that answers keeps its place.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

/// Activity of a connection, in the order in which connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Waiting for the head of a request.
    Idle,
    /// Reading a body.
    Receiving,
    /// Answering a request.
    Answering,
    /// Sending the rest of a complete answer.
    Sending,
}

impl Phase {
    /// Returns whether closing the connection would lose a part of an answer.
    fn answers(self) -> bool {
        matches!(self, Phase::Answering | Phase::Sending)
    }
}

/// Activity of a connection, with its start time.
#[derive(Clone, Copy, Debug)]
struct Activity {
    phase: Phase,
    since: Instant,
    /// Whether this connection is being closed, to free its place for another connection.
    is_closing: bool,
    /// Time at which the client must have read the answer, if the request has a time limit.
    deadline: Option<Instant>,
}

/// State of a connection that has a place.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    client: IpAddr,
    activity: Mutex<Activity>,
    close: Notify,
    /// Notifies connections that wait for a place when a place becomes free.
    freed: Arc<Notify>,
}

impl ConnectionState {
    fn new(client: IpAddr, freed: Arc<Notify>) -> ConnectionState {
        let activity = Activity { phase: Phase::Idle, since: Instant::now(), is_closing: false, deadline: None };
        ConnectionState { client, activity: Mutex::new(activity), close: Notify::new(), freed }
    }

    /// Records the new phase of the connection. If it begins to answer, it keeps its place, even if
    /// the place was promised to another connection, which then searches again.
    pub(crate) fn enter(&self, phase: Phase) {
        let mut activity = self.lock();
        (activity.phase, activity.since) = (phase, Instant::now());
        if phase.answers() && std::mem::take(&mut activity.is_closing) {
            self.freed.notify_waiters();
        }
    }

    /// Returns whether the connection waits for the head of a request.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().phase == Phase::Idle
    }

    /// Sets the time at which the request must have ended, `None` for no limit.
    pub(crate) fn set_deadline(&self, deadline: Option<Instant>) {
        self.lock().deadline = deadline;
    }

    /// Returns the time at which the request must have ended, if it has a time limit.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.lock().deadline
    }

    /// Records that the system has accepted all written bytes.
    pub(crate) fn record_flush(&self) {
        let mut activity = self.lock();
        if activity.phase == Phase::Sending {
            (activity.phase, activity.since, activity.deadline) = (Phase::Idle, Instant::now(), None);
            self.freed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to close the connection, unless it is answering. Returns whether it will be closed.
    fn begin_closing(&self) -> bool {
        let mut activity = self.lock();
        if activity.phase.answers() {
            return false;
        }
        activity.is_closing = true;
        self.close.notify_one();
        true
    }
}

/// Guard of a request on a connection. When it is dropped, the answer is complete, and only its
/// last bytes are still being sent.
#[derive(Debug)]
pub(crate) struct RequestGuard(Arc<ConnectionState>);

impl RequestGuard {
    /// Begins a request, whose body is received first.
    pub(crate) fn new(state: Arc<ConnectionState>) -> RequestGuard {
        state.enter(Phase::Receiving);
        RequestGuard(state)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.enter(Phase::Sending);
    }
}

/// The client has the max number of places, and all of them are answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientLimitReached;

/// The result of a search for a place.
enum Search {
    Found(Arc<ConnectionState>),
    /// Another connection is being closed, so a place will be free.
    Wait,
    ClientLimitReached,
}

/// The places of all connections.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    max: usize,
    max_of_client: usize,
    open: Mutex<Vec<Arc<ConnectionState>>>,
    freed: Arc<Notify>,
}

impl ConnectionLimit {
    /// Makes `max` places.
    pub(crate) fn new(max: usize) -> ConnectionLimit {
        let max_of_client = (max - max / 4).max(1);
        ConnectionLimit { max, max_of_client, open: Mutex::default(), freed: Arc::default() }
    }

    /// Takes a place for a connection of a client. Waits for one if it will become free.
    pub(crate) async fn take(
        self: &Arc<ConnectionLimit>,
        client: IpAddr,
    ) -> Result<ConnectionPermit, ClientLimitReached> {
        let client = network(client);
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            match self.search(client) {
                Search::Found(state) => return Ok(ConnectionPermit { limit: Arc::clone(self), state }),
                Search::Wait => freed.await,
                Search::ClientLimitReached => return Err(ClientLimitReached),
            }
        }
    }

    /// Waits until all connections are closed.
    pub(crate) async fn wait_until_empty(&self) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.open().is_empty() {
                return;
            }
            freed.await;
        }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<ConnectionState>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn search(&self, client: IpAddr) -> Search {
        let mut open = self.open();
        let count_of = |client: IpAddr| open.iter().filter(|state| state.client == client).count();
        let is_limit_reached = count_of(client) >= self.max_of_client;
        if !is_limit_reached && open.len() < self.max {
            let state = Arc::new(ConnectionState::new(client, Arc::clone(&self.freed)));
            open.push(Arc::clone(&state));
            return Search::Found(state);
        }
        let others = open.iter().filter(|state| !is_limit_reached || state.client == client);
        // Connections of clients with many connections are closed first.
        let order = |(state, activity): &(&Arc<ConnectionState>, Activity)| {
            (activity.phase, Reverse(count_of(state.client)), activity.since)
        };
        let mut others: Vec<_> = others.map(|state| (state, *state.lock())).collect();
        others.sort_by_key(order);
        // A chosen connection may begin an answer meanwhile; then the next one is closed.
        let is_found = others.iter().any(|(_, activity)| activity.is_closing)
            || others.iter().any(|(state, _)| state.begin_closing());
        if is_limit_reached && !is_found { Search::ClientLimitReached } else { Search::Wait }
    }
}

/// Permit for a connection. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    state: Arc<ConnectionState>,
}

impl ConnectionPermit {
    /// Returns the state of the connection.
    pub(crate) fn state(&self) -> &Arc<ConnectionState> {
        &self.state
    }

    /// Waits until another connection gets this place.
    pub(crate) async fn wait_for_revocation(&self) {
        loop {
            self.state.close.notified().await;
            // A request may have arrived since the notification.
            if self.state.lock().is_closing {
                return;
            }
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.open().retain(|state| !Arc::ptr_eq(state, &self.state));
        self.limit.freed.notify_waiters();
    }
}

/// Returns the address that stands for a client: an IPv6 network of 64 bits is one client.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// Takes a place if that is possible without waiting.
    async fn at_once(
        limit: &Arc<ConnectionLimit>,
        client: IpAddr,
    ) -> Option<Result<ConnectionPermit, ClientLimitReached>> {
        let take = limit.take(client);
        tokio::select! {
            biased;
            found = take => Some(found),
            () = tokio::task::yield_now() => None,
        }
    }

    #[tokio::test]
    async fn longest_idle_connection_is_closed_first() {
        let limit = Arc::new(ConnectionLimit::new(4));
        let mut permits = Vec::new();
        for last in 0..4 {
            permits.push(limit.take(address(last)).await.unwrap());
        }
        permits[0].state().enter(Phase::Answering);
        // This connection became idle again later than the others.
        drop(RequestGuard::new(Arc::clone(permits[1].state())));
        permits[1].state().record_flush();
        permits[2].state().enter(Phase::Receiving);
        assert!(at_once(&limit, address(9)).await.is_none());
        // No other connection is closed.
        permits[3].wait_for_revocation().await;
        assert!(permits[..3].iter().all(|permit| !permit.state().lock().is_closing));
        permits.pop();
        let fifth = limit.take(address(9)).await.unwrap();
        fifth.state().enter(Phase::Answering);
        // Idle connections are closed before connections that receive bodies. Connections that
        // answer are not closed.
        for expected in [1, 1] {
            assert!(at_once(&limit, address(9)).await.is_none());
            permits[expected].wait_for_revocation().await;
            permits.remove(expected);
            let permit = limit.take(address(8)).await.unwrap();
            permit.state().enter(Phase::Answering);
            permits.push(permit);
        }
        assert!(at_once(&limit, address(7)).await.is_none(), "it waits");
        drop(fifth);
        assert!(at_once(&limit, address(7)).await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn connection_stays_open_until_its_answer_is_sent() {
        let limit = Arc::new(ConnectionLimit::new(1));
        let permit = limit.take(address(1)).await.unwrap();
        let request = RequestGuard::new(Arc::clone(permit.state()));
        permit.state().enter(Phase::Answering);
        // Flushed parts of an unfinished answer do not end the answering phase.
        permit.state().record_flush();
        assert!(at_once(&limit, address(2)).await.is_none());
        drop(request);
        assert!(at_once(&limit, address(2)).await.is_none());
        assert!(!permit.state().lock().is_closing, "the answer is made, and not sent");
        permit.state().record_flush();
        assert!(at_once(&limit, address(2)).await.is_none());
        permit.wait_for_revocation().await;
    }

    #[tokio::test]
    async fn request_in_time_keeps_its_connection_open() {
        let limit = Arc::new(ConnectionLimit::new(2));
        let (first, second) = (limit.take(address(1)).await.unwrap(), limit.take(address(2)).await.unwrap());
        let (found, ()) = tokio::join!(limit.take(address(3)), async {
            assert!(first.state().lock().is_closing);
            first.state().enter(Phase::Receiving);
            assert!(first.state().lock().is_closing, "the request is not whole");
            first.state().enter(Phase::Answering);
            tokio::task::yield_now().await;
            // The waiting connection takes the other place instead.
            second.wait_for_revocation().await;
            drop(second);
        });
        found.unwrap();
        let mut revoked = std::pin::pin!(first.wait_for_revocation());
        tokio::select! {
            biased;
            () = &mut revoked => panic!("an answer was cut"),
            () = tokio::task::yield_now() => {}
        }
    }

    #[tokio::test]
    async fn one_client_cannot_take_all_connections() {
        let limit = Arc::new(ConnectionLimit::new(8));
        let mut permits = Vec::new();
        for _ in 0..6 {
            permits.push(limit.take(address(1)).await.unwrap());
        }
        // The client's seventh connection replaces its first one.
        assert!(at_once(&limit, address(1)).await.is_none());
        permits[0].wait_for_revocation().await;
        permits.remove(0);
        permits.push(limit.take(address(1)).await.unwrap());
        permits.iter().for_each(|permit| permit.state().enter(Phase::Answering));
        assert_eq!(at_once(&limit, address(1)).await.unwrap().unwrap_err(), ClientLimitReached);
        let other = limit.take(address(2)).await.unwrap();
        permits.push(limit.take(address(3)).await.unwrap());
        drop(other);
        drop(permits);
        limit.wait_until_empty().await;
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2::ffff"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
