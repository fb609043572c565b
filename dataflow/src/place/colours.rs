//! Choice of routes and colours: each colour of a link belongs to one tensor from one sender.
//!
//! All streams of a tensor from one sender share a route and a colour, so that each message goes
//! over a link once. All columns of a sender send at about the same time. The better of the two
//! routes is therefore the one whose busiest link has fewer messages. Only few experts send at a
//! time, so for experts only the number of links counts. Among equally good routes, the one with
//! fewer links is better. The colour is the lowest one that is free on all links of the better
//! route. If no colour is free there, the other route is used.
//!
//! ```text
//! h: rms_norm -> q, k, v      XThenY, colour 1: 812 links
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use crate::descriptor::{Axis, Descriptor, End, Port, Program, Route, Slice};
use crate::grid::{Edge, Routing};

use super::PlaceError;
use super::streams::received_slice;

/// Names of the directions of links, by number.
const DIRECTIONS: [&str; 4] = ["east", "west", "south", "north"];

/// Sets the routes and colours of streams; returns the max number of colours on a link.
pub(super) fn colours(descriptor: &mut Descriptor) -> Result<u32, PlaceError> {
    let colours = match descriptor.grid.link.routing {
        // Masks have a bit for each colour; grids have at most 64 colours.
        Routing::Colours(colours) => Some(colours),
        Routing::Packets => None,
    };
    let mut groups: BTreeMap<(u32, u32, Option<u32>), Vec<usize>> = BTreeMap::new();
    for (number, stream) in descriptor.streams.iter().enumerate() {
        let from = match stream.from {
            End::Program(program) => Some(program),
            End::Host => None,
        };
        let program = |end: End| match end {
            End::Program(program) => descriptor.programs.get(program as usize),
            End::Host => None,
        };
        let wave = program(stream.from).or(program(stream.to)).map_or(0, |program| program.wave);
        groups.entry((wave, stream.tensor, from)).or_default().push(number);
    }
    let pes = descriptor.grid.pes() as usize;
    let mut links = Links { taken: vec![0; pes * 4], seen: vec![(0, 0); pes * 4], stamp: 0 };
    let (mut wave, mut most) = (0, 0);
    for ((of_wave, tensor, from), numbers) in groups {
        if of_wave != wave {
            wave = of_wave;
            links.taken.fill(0);
        }
        let trees = trees(descriptor, tensor, from, &numbers);
        let sender = from.and_then(|program| descriptor.programs.get(program as usize));
        let routed = sender.is_some_and(|program| matches!(program.axis, Axis::Routed(_)));
        let [a, b] = [Route::XThenY, Route::YThenX].map(|route| {
            let mut count = 0u64;
            let mut used = 0u64;
            let most = links.walk(descriptor, &trees, route, |links, link| {
                count += 1;
                used |= links.taken[link];
            });
            // Only few experts send at a time, so the busiest link does not count.
            (route, (if routed { 0 } else { most }, count), used)
        });
        let mut ways = [a, b];
        ways.sort_by_key(|(_, cost, _)| *cost);
        let Some(colours) = colours else {
            numbers.iter().for_each(|&number| descriptor.streams[number].route = ways[0].0);
            continue;
        };
        let free = |used: u64| used.trailing_ones();
        let Some(&(route, _, used)) = ways.iter().find(|(_, _, used)| free(*used) < colours) else {
            return Err(full(descriptor, &mut links, &trees, ways[0].0, tensor, colours));
        };
        let colour = free(used);
        links.walk(descriptor, &trees, route, |links, link| {
            links.taken[link] |= 1 << colour;
            most = most.max(links.taken[link].count_ones());
        });
        for number in numbers {
            (descriptor.streams[number].route, descriptor.streams[number].colour) = (route, colour);
        }
    }
    Ok(most)
}

/// Returns the error for a tensor without a free colour. It names the link with the most used
/// colours.
fn full(
    descriptor: &Descriptor,
    links: &mut Links,
    trees: &[Tree],
    route: Route,
    tensor: u32,
    colours: u32,
) -> PlaceError {
    let (mut worst, mut most) = (0, 0);
    links.walk(descriptor, trees, route, |links, link| {
        if links.taken[link].count_ones() > most {
            (worst, most) = (link, links.taken[link].count_ones());
        }
    });
    let pe = (worst / 4) as u32;
    let tensor = descriptor.tensors.get(tensor as usize).map_or(String::new(), |tensor| tensor.name.clone());
    let (x, y) = (pe % descriptor.grid.width, pe / descriptor.grid.width);
    PlaceError::Colours { tensor, direction: DIRECTIONS[worst % 4], x, y, colours }
}

/// A sender and the destinations of its messages.
struct Tree {
    from: (u32, u32),
    to: Vec<(u32, u32)>,
}

struct Links {
    /// Mask of the used colours of each link, by PE and direction.
    taken: Vec<u64>,
    /// For each link, the number of the last walk that reached it, and the number of trees that
    /// used it in that walk.
    seen: Vec<(u32, u32)>,
    stamp: u32,
}

impl Links {
    /// Calls `each` once for each link that any of the trees uses. Returns the number of trees on
    /// the busiest link.
    fn walk(
        &mut self,
        descriptor: &Descriptor,
        trees: &[Tree],
        route: Route,
        mut each: impl FnMut(&mut Links, usize),
    ) -> u32 {
        self.stamp += 1;
        let mut busiest = 0;
        let (width, stamp) = (descriptor.grid.width as usize, self.stamp);
        let mut go = |links: &mut Links, x: u32, y: u32, direction: usize| {
            let link = (y as usize * width + x as usize) * 4 + direction;
            if links.seen[link].0 != stamp {
                links.seen[link] = (stamp, 0);
                each(links, link);
            }
            links.seen[link].1 += 1;
            busiest = busiest.max(links.seen[link].1);
        };
        for tree in trees {
            // Each tree goes along the first axis to the farthest branches on both sides, then
            // along each branch.
            let first = |(x, y): (u32, u32)| if route == Route::XThenY { x } else { y };
            let second = |(x, y): (u32, u32)| if route == Route::XThenY { y } else { x };
            let (a, b) = (first(tree.from), second(tree.from));
            let mut reach: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
            for &to in &tree.to {
                let reach = reach.entry(first(to)).or_insert((b, b));
                (reach.0, reach.1) = (reach.0.min(second(to)), reach.1.max(second(to)));
            }
            let pe = |first: u32, second: u32| if route == Route::XThenY { (first, second) } else { (second, first) };
            // First direction of each axis: east (then west) along x, south (then north) along y.
            let (along, across) = if route == Route::XThenY { (0, 2) } else { (2, 0) };
            let low = reach.first_key_value().map_or(a, |(first, _)| *first).min(a);
            let high = reach.last_key_value().map_or(a, |(first, _)| *first).max(a);
            for at in a..high {
                let (x, y) = pe(at, b);
                go(self, x, y, along);
            }
            for at in low + 1..=a {
                let (x, y) = pe(at, b);
                go(self, x, y, along + 1);
            }
            for (at, (least, most)) in reach {
                for to in b..most {
                    let (x, y) = pe(at, to);
                    go(self, x, y, across);
                }
                for to in least + 1..=b {
                    let (x, y) = pe(at, to);
                    go(self, x, y, across + 1);
                }
            }
        }
        busiest
    }
}

/// Returns the edge PE nearest to the PE at column `x` and row `y`. Of equally near edges, the
/// first one of the grid's list is used.
fn edge(descriptor: &Descriptor, x: u32, y: u32) -> (u32, u32) {
    let (width, height) = (descriptor.grid.width, descriptor.grid.height);
    let places = descriptor.grid.io.edges.iter().map(|edge| match edge {
        Edge::West => (x, (0, y)),
        Edge::East => (width - 1 - x, (width - 1, y)),
        Edge::North => (y, (x, 0)),
        Edge::South => (height - 1 - y, (x, height - 1)),
    });
    places.min_by_key(|(distance, _)| *distance).map_or((x, y), |(_, place)| place)
}

/// Returns the trees of a tensor from one sender: one for each sending instance, or for each stream
/// of the host.
fn trees(descriptor: &Descriptor, tensor: u32, from: Option<u32>, streams: &[usize]) -> Vec<Tree> {
    let receivers: Vec<&Program> = streams
        .iter()
        .filter_map(|&stream| match descriptor.streams[stream].to {
            End::Program(program) => descriptor.programs.get(program as usize),
            End::Host => None,
        })
        .collect();
    let to_host = streams.iter().any(|&stream| descriptor.streams[stream].to == End::Host);
    let Some(sender) = from.and_then(|program| descriptor.programs.get(program as usize)) else {
        // Each stream from the host enters at the edge PE nearest to its program's first instance.
        let tree = |program: &&Program| {
            let (x, y) = program.sites.pe(0, 0, 0);
            let from = edge(descriptor, x, y);
            let mut to = Vec::new();
            add_receivers(descriptor, program, tensor, &(0..u64::MAX), None, &mut to);
            Tree { from, to }
        };
        return receivers.iter().map(tree).collect();
    };
    let mut trees = Vec::new();
    for port in &sender.ports {
        let Port::Send(slice) = port else { continue };
        if slice.tensor != tensor {
            continue;
        }
        for expert in 0..descriptor.experts(sender) {
            for part in 0..descriptor.parts(sender) {
                for column in 0..sender.columns {
                    let begin = start(slice, column, part);
                    let bytes = begin..begin.saturating_add(slice.bytes);
                    let from = sender.sites.pe(column, expert, part);
                    let mut to = Vec::new();
                    for program in &receivers {
                        // A row of an expert goes to the same expert of the receiving program.
                        let expert =
                            (program.axis == sender.axis && matches!(sender.axis, Axis::Routed(_))).then_some(expert);
                        add_receivers(descriptor, program, tensor, &bytes, expert, &mut to);
                    }
                    if to_host {
                        let (x, y) = from;
                        to.push(edge(descriptor, x, y));
                    }
                    to.sort_unstable();
                    to.dedup();
                    trees.push(Tree { from, to });
                }
            }
        }
    }
    trees
}

fn start(slice: &Slice, column: u32, part: u32) -> u64 {
    let column = slice.column_stride.saturating_mul(column.into());
    slice.offset.saturating_add(column).saturating_add(slice.part_stride.saturating_mul(part.into()))
}

/// Adds those PEs of a program that need some of these bytes of a tensor's row.
fn add_receivers(
    descriptor: &Descriptor,
    program: &Program,
    tensor: u32,
    bytes: &Range<u64>,
    expert: Option<u32>,
    to: &mut Vec<(u32, u32)>,
) {
    let experts = expert.map_or(0..descriptor.experts(program), |expert| expert..expert.saturating_add(1));
    for port in &program.ports {
        let Some(slice) = received_slice(port).filter(|slice| slice.tensor == tensor) else { continue };
        let (count, all) = match port {
            Port::ReceiveParts { state, .. } => {
                (descriptor.states.get(*state as usize).map_or(1, |state| state.parts.count), true)
            }
            _ => (descriptor.parts(program), false),
        };
        for part in 0..count {
            let first = start(slice, 0, part);
            // Finds the columns whose slices overlap the range of bytes.
            let (begin, end) = match slice.column_stride {
                0 if first < bytes.end && first.saturating_add(slice.bytes) > bytes.start => (0, program.columns),
                0 => continue,
                stride => {
                    if first >= bytes.end {
                        continue;
                    }
                    let end = ((bytes.end - 1 - first) / stride).saturating_add(1).min(program.columns.into());
                    let below = bytes.start.saturating_sub(first.saturating_add(slice.bytes));
                    let begin = if first.saturating_add(slice.bytes) > bytes.start { 0 } else { below / stride + 1 };
                    (begin.min(end) as u32, end as u32)
                }
            };
            let part = if all { 0 } else { part };
            for expert in experts.clone() {
                for column in begin..end {
                    let pe = program.sites.pe(column, expert, part);
                    if to.last() != Some(&pe) {
                        to.push(pe);
                    }
                }
            }
        }
    }
}
