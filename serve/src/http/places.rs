//! Places of connections: bounds for all connections and for each client. If no place is free, a
//! connection is closed for the new one.
//!
//! ```text
//! a client connects ──▶ free place? ── yes ──▶ it has it
//!                        │ no
//!                        ├── close the connection that has been idle longest, and take its place
//!                        ├── else close the one whose body has been arriving longest
//!                        └── all answer: wait; refuse a client whose own places all answer
//! ```
//!
//! A connection answers until the system has the last byte of the answer: a client may read slowly.
//! A request that has come while its connection was being closed takes the place back.
//!
//! A client is an IPv4 address or an IPv6 network of 64 bits. A client has at most three quarters
//! of all places, so that the others find some.
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
    /// Sending the rest of an answer that is made.
    Sending,
}

impl Phase {
    /// Whether a part of an answer would be lost with the connection.
    fn answers(self) -> bool {
        matches!(self, Phase::Answering | Phase::Sending)
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug)]
struct Activity {
    phase: Phase,
    since: Instant,
    /// Whether another connection waits for the place.
    is_closing: bool,
}

/// A connection's place.
#[derive(Debug)]
pub(crate) struct Place {
    client: IpAddr,
    activity: Mutex<Activity>,
    close: Notify,
    /// Wakes connections that wait for a place, which may get this one.
    freed: Arc<Notify>,
}

impl Place {
    fn new(client: IpAddr, freed: Arc<Notify>) -> Place {
        let activity = Activity { phase: Phase::Idle, since: Instant::now(), is_closing: false };
        Place { client, activity: Mutex::new(activity), close: Notify::new(), freed }
    }

    /// Notes what the connection does from now on. An answer keeps the place, also where another
    /// connection was to have it: that looks for one again.
    pub(crate) fn enter(&self, phase: Phase) {
        let mut activity = self.lock();
        (activity.phase, activity.since) = (phase, Instant::now());
        if phase.answers() && std::mem::take(&mut activity.is_closing) {
            self.freed.notify_waiters();
        }
    }

    /// Notes that the system has all bytes that were written.
    pub(crate) fn flushed(&self) {
        let mut activity = self.lock();
        if activity.phase == Phase::Sending {
            (activity.phase, activity.since) = (Phase::Idle, Instant::now());
            self.freed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the connection closed, unless it answers; returns whether it will be.
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

/// A request on a connection. When this is dropped, the rest of its answer is sent.
#[derive(Debug)]
pub(crate) struct InRequest(Arc<Place>);

impl InRequest {
    /// Begins a request; its body comes first.
    pub(crate) fn new(place: Arc<Place>) -> InRequest {
        place.enter(Phase::Receiving);
        InRequest(place)
    }
}

impl Drop for InRequest {
    fn drop(&mut self) {
        self.0.enter(Phase::Sending);
    }
}

/// The client has the max number of places, and all of them are answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowded;

/// The result of a search for a place.
enum Search {
    Found(Arc<Place>),
    /// Another connection is being closed, so a place will be free.
    Wait,
    Crowded,
}

/// All places.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    most_of_client: usize,
    open: Mutex<Vec<Arc<Place>>>,
    freed: Arc<Notify>,
}

impl Places {
    /// Makes `most` places.
    pub(crate) fn new(most: usize) -> Places {
        let most_of_client = (most - most / 4).max(1);
        Places { most, most_of_client, open: Mutex::default(), freed: Arc::default() }
    }

    /// Takes a place for a connection of a client. Waits for one if it will become free.
    pub(crate) async fn take(self: &Arc<Places>, client: IpAddr) -> Result<Seat, Crowded> {
        let client = network(client);
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            match self.search(client) {
                Search::Found(place) => return Ok(Seat { places: Arc::clone(self), place }),
                Search::Wait => freed.await,
                Search::Crowded => return Err(Crowded),
            }
        }
    }

    /// Waits until no connection is left.
    pub(crate) async fn empty(&self) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.open().is_empty() {
                return;
            }
            freed.await;
        }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<Place>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn search(&self, client: IpAddr) -> Search {
        let mut open = self.open();
        let count_of = |client: IpAddr| open.iter().filter(|place| place.client == client).count();
        let is_crowded = count_of(client) >= self.most_of_client;
        if !is_crowded && open.len() < self.most {
            let place = Arc::new(Place::new(client, Arc::clone(&self.freed)));
            open.push(Arc::clone(&place));
            return Search::Found(place);
        }
        let others = open.iter().filter(|place| !is_crowded || place.client == client);
        // Clients with many connections lose theirs first.
        let order = |(place, activity): &(&Arc<Place>, Activity)| {
            (activity.phase, Reverse(count_of(place.client)), activity.since)
        };
        let mut others: Vec<_> = others.map(|place| (place, *place.lock())).collect();
        others.sort_by_key(order);
        // A connection may begin an answer meanwhile: the next one is closed then.
        let is_found = others.iter().any(|(_, activity)| activity.is_closing)
            || others.iter().any(|(place, _)| place.begin_closing());
        if is_crowded && !is_found { Search::Crowded } else { Search::Wait }
    }
}

/// A taken place, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    places: Arc<Places>,
    place: Arc<Place>,
}

impl Seat {
    /// Returns the place.
    pub(crate) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Waits until another connection gets this place.
    pub(crate) async fn taken_back(&self) {
        loop {
            self.place.close.notified().await;
            // A request may have come since.
            if self.place.lock().is_closing {
                return;
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.places.open().retain(|place| !Arc::ptr_eq(place, &self.place));
        self.places.freed.notify_waiters();
    }
}

/// Returns the address that stands for a client: an IPv6 network of 64 bits is one client.
fn network(address: IpAddr) -> IpAddr {
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

    /// Whether looking for a place comes to an end by itself.
    async fn at_once(places: &Arc<Places>, client: IpAddr) -> Option<Result<Seat, Crowded>> {
        let take = places.take(client);
        tokio::select! {
            biased;
            found = take => Some(found),
            () = tokio::task::yield_now() => None,
        }
    }

    #[tokio::test]
    async fn longest_idle_connection_is_closed_first() {
        let places = Arc::new(Places::new(4));
        let mut seats = Vec::new();
        for last in 0..4 {
            seats.push(places.take(address(last)).await.unwrap());
        }
        seats[0].place().enter(Phase::Answering);
        // Idle again, and so later than the others.
        drop(InRequest::new(Arc::clone(seats[1].place())));
        seats[1].place().flushed();
        seats[2].place().enter(Phase::Receiving);
        assert!(at_once(&places, address(9)).await.is_none());
        // No other is closed.
        seats[3].taken_back().await;
        assert!(seats[..3].iter().all(|seat| !seat.place().lock().is_closing));
        seats.pop();
        let fifth = places.take(address(9)).await.unwrap();
        fifth.place().enter(Phase::Answering);
        // Idle ones go before bodies; those that answer stay.
        for expected in [1, 1] {
            assert!(at_once(&places, address(9)).await.is_none());
            seats[expected].taken_back().await;
            seats.remove(expected);
            let seat = places.take(address(8)).await.unwrap();
            seat.place().enter(Phase::Answering);
            seats.push(seat);
        }
        assert!(at_once(&places, address(7)).await.is_none(), "it waits");
        drop(fifth);
        assert!(at_once(&places, address(7)).await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn connection_stays_open_until_its_answer_is_sent() {
        let places = Arc::new(Places::new(1));
        let seat = places.take(address(1)).await.unwrap();
        let request = InRequest::new(Arc::clone(seat.place()));
        seat.place().enter(Phase::Answering);
        // Parts of the answer are sent while more of it is made.
        seat.place().flushed();
        assert!(at_once(&places, address(2)).await.is_none());
        drop(request);
        assert!(at_once(&places, address(2)).await.is_none());
        assert!(!seat.place().lock().is_closing, "the answer is made, and not sent");
        seat.place().flushed();
        assert!(at_once(&places, address(2)).await.is_none());
        seat.taken_back().await;
    }

    #[tokio::test]
    async fn request_in_time_keeps_its_connection_open() {
        let places = Arc::new(Places::new(2));
        let (first, second) = (places.take(address(1)).await.unwrap(), places.take(address(2)).await.unwrap());
        let (found, ()) = tokio::join!(places.take(address(3)), async {
            assert!(first.place().lock().is_closing);
            first.place().enter(Phase::Receiving);
            assert!(first.place().lock().is_closing, "the request is not whole");
            first.place().enter(Phase::Answering);
            tokio::task::yield_now().await;
            // The other place is looked for instead.
            second.taken_back().await;
            drop(second);
        });
        found.unwrap();
        let mut taken_back = std::pin::pin!(first.taken_back());
        tokio::select! {
            biased;
            () = &mut taken_back => panic!("an answer was cut"),
            () = tokio::task::yield_now() => {}
        }
    }

    #[tokio::test]
    async fn one_client_cannot_take_all_connections() {
        let places = Arc::new(Places::new(8));
        let mut seats = Vec::new();
        for _ in 0..6 {
            seats.push(places.take(address(1)).await.unwrap());
        }
        // The seventh takes the place of the first of its own.
        assert!(at_once(&places, address(1)).await.is_none());
        seats[0].taken_back().await;
        seats.remove(0);
        seats.push(places.take(address(1)).await.unwrap());
        seats.iter().for_each(|seat| seat.place().enter(Phase::Answering));
        assert_eq!(at_once(&places, address(1)).await.unwrap().unwrap_err(), Crowded);
        let other = places.take(address(2)).await.unwrap();
        seats.push(places.take(address(3)).await.unwrap());
        drop(other);
        drop(seats);
        places.empty().await;
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
