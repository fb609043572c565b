//! Links, and messages on them.
//!
//! A message is a train of flits of [`Link::bytes`](crate::grid::Link::bytes) each. The train is
//! longer if the sender's memory port gives fewer bytes per cycle. The head takes `hop_cycles` from
//! one router to the next, and each link is occupied for the length of the train. Without waiting,
//! the last flit arrives `hops * hop_cycles + train` cycles after the first one left.
//!
//! A PE's router has one link from the PE and one to the PE, called ramps, which take no hop
//! cycles. A head that finds a link occupied waits in the router before the link, which has room
//! for the message (virtual cut-through). Waiting messages do not block other links.
//!
//! A message reserves all links of its route when it leaves its PE. A later message may use a link
//! earlier, if it fits into the last gap before the reserved cycles.
//!
//! A multicast is one message: it goes once over each link of the union of the routes, and splits
//! where they diverge.
//!
//! Invariant: no two messages occupy a link in the same cycle.

use crate::descriptor::Route;
use crate::grid::{Grid, Pe};

use crate::routes::Direction;

/// The route of a message, and whether an end is the host.
#[derive(Clone, Copy, Debug)]
pub struct MessageRoute {
    /// Order of the axes that the message follows.
    pub route: Route,
    /// Whether the message comes from the host instead of a PE's memory.
    pub from_host: bool,
    /// Whether the host is one of the receivers.
    pub exit: bool,
}

/// Splits a PE's number, by the grid's width, into its coordinates. The first is along the trunk of
/// a multicast, the second along its branches.
type Split = fn(u32, u32) -> (u32, u32);

/// Free cycles of a link: all cycles from `free` on, and one gap before `free`.
#[derive(Clone, Copy, Debug, Default)]
struct LinkUse {
    free: u64,
    gap: u64,
    gap_end: u64,
}

impl LinkUse {
    /// Reserves the link for `cycles` cycles, starting at `at` or later; returns the first cycle.
    fn take(&mut self, at: u64, cycles: u64) -> u64 {
        let start = at.max(self.gap);
        if start + cycles <= self.gap_end {
            // Keeps the longer of the two free parts of the gap.
            let (before, after) = (start - self.gap, self.gap_end - (start + cycles));
            if before > after {
                self.gap_end = start;
            } else {
                self.gap = start + cycles;
            }
            return start;
        }
        let start = at.max(self.free);
        let left = self.gap_end.saturating_sub(self.gap.max(at));
        if start - self.free >= left {
            (self.gap, self.gap_end) = (self.free, start);
        }
        self.free = start + cycles;
        start
    }
}

/// All links of a grid.
#[derive(Debug)]
pub struct Network {
    width: u32,
    flit: u64,
    hop: u64,
    read: u64,
    write: u64,
    /// Occupation of each link, by PE and direction.
    links: Vec<LinkUse>,
    /// Ramps of each PE: the one from the PE to its router, and the one to the PE.
    ramps: Vec<[LinkUse; 2]>,
    /// Bytes that went over each link, by PE and direction.
    pub traffic: Vec<u64>,
    /// Sum of the cycles that heads of messages waited.
    pub waited: u64,
    /// Number of links that messages used, over all messages.
    pub hops: u64,
    /// Number of messages.
    pub messages: u64,
    /// Length of the current message's train, and whether it comes from the host.
    cycles: u64,
    from_host: bool,
    /// Cycle at which the current message's head came to each router.
    heads: Vec<u64>,
    /// For each trunk coordinate, the range of the current message's branch.
    low: Vec<u32>,
    high: Vec<u32>,
    touched: Vec<u32>,
}

impl Network {
    /// Returns a network that carries no messages.
    pub fn new(grid: &Grid) -> Network {
        let pes = grid.pes() as usize;
        let side = grid.width.max(grid.height) as usize;
        let Pe { read_bytes, write_bytes, .. } = grid.pe;
        Network {
            width: grid.width,
            flit: grid.link.bytes.max(1).into(),
            hop: grid.link.hop_cycles.into(),
            read: read_bytes.max(1).into(),
            write: write_bytes.max(1).into(),
            links: vec![LinkUse::default(); pes * Direction::ALL.len()],
            ramps: vec![[LinkUse::default(); 2]; pes],
            traffic: vec![0; pes * Direction::ALL.len()],
            waited: 0,
            hops: 0,
            messages: 0,
            cycles: 0,
            from_host: false,
            heads: vec![0; pes],
            low: vec![u32::MAX; side],
            high: vec![0; side],
            touched: Vec::new(),
        }
    }

    /// Returns the number of cycles between a message's head and tail: one per flit, or more if the
    /// sender's memory port is slower.
    fn train(&self, bytes: u64, from_host: bool) -> u64 {
        let read = if from_host { 0 } else { bytes.div_ceil(self.read) };
        bytes.div_ceil(self.flit).max(read).max(1)
    }

    /// Returns the number of cycles that the last sent message would take to one of its receivers
    /// if it never waited.
    pub fn cycles_alone(&self, from: u32, to: u32, bytes: u64) -> u64 {
        let write = bytes.div_ceil(self.write);
        if from == to && !self.from_host {
            return bytes.div_ceil(self.read) + write;
        }
        self.latency(from, to) + self.cycles.max(write)
    }

    /// Returns the number of cycles that a message's head takes between two PEs.
    pub fn latency(&self, from: u32, to: u32) -> u64 {
        self.distance(from, to) * self.hop
    }

    /// Returns the number of links between two PEs.
    pub fn distance(&self, from: u32, to: u32) -> u64 {
        let width = self.width;
        u64::from((from % width).abs_diff(to % width)) + u64::from((from / width).abs_diff(to / width))
    }

    /// Sends a message at cycle `at`. Afterwards, [`Network::arrive`] returns the time of arrival
    /// for each PE of `to`. Receivers on the sender's own PE need no link.
    pub fn send(&mut self, from: u32, at: u64, bytes: u64, to: &[u32], message_route: MessageRoute) {
        let cycles = self.train(bytes, message_route.from_host);
        (self.cycles, self.from_host) = (cycles, message_route.from_host);
        let mut head = at;
        let within = to.iter().all(|pe| *pe == from);
        if !message_route.from_host && (message_route.exit || !within) {
            head = self.ramps[from as usize][0].take(at, cycles);
            self.waited += head - at;
        }
        self.heads[from as usize] = head;
        if within {
            return;
        }
        self.messages += 1;
        let route = message_route.route;
        let width = self.width;
        // `u` is the coordinate along the trunk, `v` along the branches.
        let (turn, split): (bool, Split) = match route {
            Route::XThenY => (false, |pe, width| (pe % width, pe / width)),
            Route::YThenX => (true, |pe, width| (pe / width, pe % width)),
        };
        let (u0, v0) = split(from, width);
        let (mut first, mut last) = (u0, u0);
        for pe in to {
            let (u, v) = split(*pe, width);
            (first, last) = (first.min(u), last.max(u));
            let place = u as usize;
            if self.low[place] == u32::MAX {
                self.touched.push(u);
                (self.low[place], self.high[place]) = (v, v);
            } else {
                self.low[place] = self.low[place].min(v);
                self.high[place] = self.high[place].max(v);
            }
        }
        let along = |turn: bool, up: bool| match (turn, up) {
            (false, true) => Direction::East,
            (false, false) => Direction::West,
            (true, true) => Direction::South,
            (true, false) => Direction::North,
        };
        let step = |turn: bool| if turn { width } else { 1 };
        let (trunk, branch) = (step(turn), step(!turn));
        self.line(from, last - u0, trunk, true, along(turn, true), bytes, cycles);
        self.line(from, u0 - first, trunk, false, along(turn, false), bytes, cycles);
        while let Some(u) = self.touched.pop() {
            let (low, high) = (self.low[u as usize], self.high[u as usize]);
            self.low[u as usize] = u32::MAX;
            let at = if u >= u0 { from + (u - u0) * trunk } else { from - (u0 - u) * trunk };
            self.line(at, high.saturating_sub(v0), branch, true, along(!turn, true), bytes, cycles);
            self.line(at, v0.saturating_sub(low), branch, false, along(!turn, false), bytes, cycles);
        }
    }

    /// Moves the head of a message `count` links in one direction, from a PE that it has reached.
    #[allow(clippy::too_many_arguments, reason = "the hot loop, called six times a message")]
    fn line(&mut self, from: u32, count: u32, step: u32, up: bool, direction: Direction, bytes: u64, cycles: u64) {
        let mut pe = from as usize;
        let mut head = self.heads[pe];
        for _ in 0..count {
            let link = pe * Direction::ALL.len() + direction as usize;
            let start = self.links[link].take(head, cycles);
            self.traffic[link] += bytes;
            self.waited += start - head;
            head = start + self.hop;
            pe = if up { pe + step as usize } else { pe - step as usize };
            self.heads[pe] = head;
        }
        self.hops += u64::from(count);
    }

    /// Returns the time when the last sent message is completely in the memory of one of its
    /// receivers. Within a PE, the message is read and written but delays no other message.
    pub fn arrive(&mut self, from: u32, to: u32, bytes: u64) -> u64 {
        let head = self.heads[to as usize];
        let write = bytes.div_ceil(self.write);
        if from == to && !self.from_host {
            return head + bytes.div_ceil(self.read) + write;
        }
        let cycles = self.cycles.max(write);
        let start = self.ramps[to as usize][1].take(head, cycles);
        self.waited += start - head;
        start + cycles
    }

    /// Returns the time when the tail of the last sent message has left the grid at one of its
    /// receivers.
    pub fn leave(&self, to: u32) -> u64 {
        self.heads[to as usize] + self.cycles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grids;

    fn at(x: u32, y: u32) -> u32 {
        y * 8 + x
    }

    fn message_route(route: Route) -> MessageRoute {
        MessageRoute { route, from_host: false, exit: false }
    }

    #[test]
    fn a_message_takes_a_cycle_for_each_hop_and_each_flit() {
        let mut network = Network::new(&grids::find("tiny").unwrap());
        for (bytes, x, y, route) in [(4, 1, 0, Route::XThenY), (100, 5, 3, Route::YThenX), (1, 7, 7, Route::XThenY)] {
            let mut network = Network::new(&grids::find("tiny").unwrap());
            network.send(at(0, 0), 10, bytes, &[at(x, y)], message_route(route));
            let hops = u64::from(x + y);
            assert_eq!(network.arrive(at(0, 0), at(x, y), bytes), 10 + hops + bytes.div_ceil(4));
            assert_eq!((network.hops, network.waited), (hops, 0));
        }
        network.send(3, 10, 100, &[3], message_route(Route::XThenY));
        // Within a PE, the message is read at 16 bytes per cycle and written at 8.
        assert_eq!((network.arrive(3, 3, 100), network.messages), (10 + 7 + 13, 0));
        assert_eq!(network.cycles_alone(3, 3, 100), 7 + 13);
    }

    #[test]
    fn memory_ports_slow_messages_down() {
        let mut grid = grids::find("tiny").unwrap();
        (grid.pe.read_bytes, grid.pe.write_bytes) = (2, 8);
        let mut network = Network::new(&grid);
        // 40 bytes are 10 flits, but reading takes 20 cycles, so each link is occupied for 20
        // cycles.
        network.send(at(0, 0), 0, 40, &[at(3, 0)], message_route(Route::XThenY));
        assert_eq!(network.arrive(at(0, 0), at(3, 0), 40), 3 + 20);
        assert_eq!(network.cycles_alone(at(0, 0), at(3, 0), 40), 3 + 20);
        network.send(at(1, 0), 1, 4, &[at(2, 0)], message_route(Route::XThenY));
        assert_eq!(network.arrive(at(1, 0), at(2, 0), 4), 1 + 20 + 1 + 2);
        // Messages from the host are not read from a PE's memory, but they are written, even at the
        // edge.
        let host = MessageRoute { route: Route::XThenY, from_host: true, exit: false };
        grid.pe.write_bytes = 1;
        let mut network = Network::new(&grid);
        network.send(at(0, 0), 0, 40, &[at(0, 0)], host);
        assert_eq!((network.arrive(at(0, 0), at(0, 0), 40), network.cycles_alone(at(0, 0), at(0, 0), 40)), (40, 40));
        // Messages to the host are read from memory, even at the edge.
        network.send(at(0, 0), 50, 40, &[at(0, 0)], MessageRoute { exit: true, ..message_route(Route::XThenY) });
        assert_eq!(network.leave(at(0, 0)), 50 + 20);
    }

    #[test]
    fn messages_wait_for_shared_links() {
        let mut network = Network::new(&grids::find("tiny").unwrap());
        // 40 bytes are 10 flits. Both messages need the link from (2, 0) east.
        network.send(at(0, 0), 0, 40, &[at(3, 0)], message_route(Route::XThenY));
        assert_eq!(network.arrive(at(0, 0), at(3, 0), 40), 13);
        network.send(at(2, 0), 0, 40, &[at(4, 0)], message_route(Route::XThenY));
        // The first message occupies the link from cycle 2 to 12. The time before cycle 2 is too
        // short for 10 flits.
        assert_eq!(network.arrive(at(2, 0), at(4, 0), 40), 12 + 2 + 10);
        assert_eq!(network.waited, 12);
        // A short message fits into the time before cycle 2.
        network.send(at(2, 1), 0, 4, &[at(2, 7), at(3, 0)], message_route(Route::YThenX));
        assert_eq!((network.arrive(at(2, 1), at(2, 7), 4), network.waited), (7, 12));
        assert_eq!(network.traffic[at(2, 0) as usize * 4 + Direction::East as usize], 84);
    }

    #[test]
    fn messages_fill_earlier_gaps_of_a_link() {
        let mut link = LinkUse::default();
        assert_eq!(link.take(100, 10), 100);
        assert_eq!(link.take(3, 10), 3);
        assert_eq!(link.take(0, 90), 110);
        assert_eq!(link.take(13, 80), 13);
        assert_eq!(link.take(0, 2), 93);
        assert_eq!(link.take(0, 8), 200, "what is left of the gap is too short");
    }

    #[test]
    fn a_multicast_goes_once_over_each_link() {
        let mut network = Network::new(&grids::find("tiny").unwrap());
        let to: Vec<u32> = (0..8).flat_map(|y| (0..8).map(move |x| at(x, y))).collect();
        network.send(at(3, 4), 0, 4, &to, message_route(Route::XThenY));
        assert_eq!((network.hops, network.messages), (63, 1));
        for pe in to {
            let right = network.distance(at(3, 4), pe) + if pe == at(3, 4) { 2 } else { 1 };
            assert_eq!(network.arrive(at(3, 4), pe, 4), right);
        }
        let mut other = Network::new(&grids::find("tiny").unwrap());
        other.send(at(0, 0), 0, 8, &[at(7, 0), at(5, 3), at(5, 5), at(5, 0)], message_route(Route::YThenX));
        // The message goes down to row 5, and east along rows 0, 3 and 5.
        assert_eq!(other.hops, 5 + 7 + 5 + 5);
    }
}
