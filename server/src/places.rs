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
//! A client is an IPv4 address or an IPv6 network of 64 bits. It has at most three quarters of all
//! places, so that other clients can connect.
//!
//! Invariant: there are never more connections than places.
//! Invariant: a connection that answers keeps its place.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
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
}

/// A connection's place.
#[derive(Debug)]
pub(crate) struct Place {
    client: IpAddr,
    /// The activity, and its beginning.
    phase: Mutex<(Phase, Instant)>,
    is_closing: AtomicBool,
    close: Notify,
}

impl Place {
    /// Records the connection's new activity.
    pub(crate) fn enter(&self, phase: Phase) {
        *self.phase() = (phase, Instant::now());
    }

    fn phase(&self) -> MutexGuard<'_, (Phase, Instant)> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }
}

/// A request on a connection; the connection is idle again when this is dropped.
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
        self.0.enter(Phase::Idle);
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
    freed: Notify,
}

impl Places {
    /// Makes `most` places.
    pub(crate) fn new(most: usize) -> Places {
        let most_of_client = (most - most / 4).max(1);
        Places { most, most_of_client, open: Mutex::default(), freed: Notify::new() }
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
            let phase = Mutex::new((Phase::Idle, Instant::now()));
            let place = Arc::new(Place { client, phase, is_closing: AtomicBool::new(false), close: Notify::new() });
            open.push(Arc::clone(&place));
            return Search::Found(place);
        }
        let mut others = open.iter().filter(|place| !is_crowded || place.client == client);
        if others.clone().any(|place| place.is_closing()) {
            return Search::Wait;
        }
        // Clients with many connections lose theirs first.
        let order = |place: &&Arc<Place>| {
            let (phase, since) = *place.phase();
            (phase, Reverse(count_of(place.client)), since)
        };
        let victim = others.by_ref().filter(|place| place.phase().0 != Phase::Answering).min_by_key(order);
        match victim {
            Some(place) => {
                place.is_closing.store(true, Ordering::Relaxed);
                place.close.notify_one();
                Search::Wait
            }
            None if is_crowded => Search::Crowded,
            None => Search::Wait,
        }
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
        self.place.close.notified().await;
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
    async fn the_longest_idle_connection_gives_its_place_up() {
        let places = Arc::new(Places::new(4));
        let mut seats = Vec::new();
        for last in 0..4 {
            seats.push(places.take(address(last)).await.unwrap());
        }
        seats[0].place().enter(Phase::Answering);
        // Idle again, and so later than the others.
        drop(InRequest::new(Arc::clone(seats[1].place())));
        seats[2].place().enter(Phase::Receiving);
        assert!(at_once(&places, address(9)).await.is_none());
        // No other is closed.
        seats[3].taken_back().await;
        assert!(seats[..3].iter().all(|seat| !seat.place().is_closing()));
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
    async fn a_client_leaves_places_to_others() {
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
