//! The simulator's form of programs: numbered instances, the slices that they receive, and
//! *outlets*, from which they send.
//!
//! An instance's number is the number of its program's first instance plus
//! `(expert * columns + column) * parts + part`. An outlet belongs to one port of a program, one
//! route and one colour; its receivers are all over the same routing or none. Each outlet sends its
//! messages in order, independently of other outlets. The host has outlets too, one for each
//! stream.
//!
//! Invariant: a layout comes from a descriptor that [`crate::check`] accepted. Its indices are in
//! range, and its sums fit.

use std::collections::HashMap;

use crate::descriptor::{Axis, Descriptor, End, Port, Program, Route, Slice};

/// Composition of a received slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The slice of one row.
    Row,
    /// One row for each expert slot of a token.
    Slots {
        /// Number of experts of each token.
        top_k: u32,
    },
    /// The slices of all parts that the row sees.
    Parts {
        /// Number of positions of a part.
        positions: u32,
        /// Number of parts.
        count: u32,
    },
    /// A row of a rotary table.
    Rope,
}

/// Slice that an instance receives through one of its ports.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Number of the port.
    pub port: u32,
    /// Slice of the row that the port receives.
    pub slice: Slice,
    /// Composition of the slice.
    pub kind: Kind,
}

/// Receiver of an outlet's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Number of the program.
    pub program: u32,
    /// Index in [`Unit::receives`].
    pub receive: u32,
}

/// Messages that a program sends through one port, by one route and in one colour.
#[derive(Clone, Debug)]
pub struct Outlet {
    /// Slice that each message carries.
    pub slice: Slice,
    /// Axis of the tensor's rows.
    pub axis: Axis,
    /// Route of the outlet's messages.
    pub route: Route,
    /// Number of the colour.
    pub colour: u32,
    /// Programs that receive the messages.
    pub consumers: Vec<Consumer>,
    /// Whether the host receives the rows.
    pub host: bool,
    /// Number of the port in the program.
    pub port: u32,
    /// The routing that selects the receiving instances of a message by its expert ids; `None` if
    /// the consumers are not over a routing.
    pub routing: Option<u32>,
}

/// A program in the simulator's form.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Number of the program's first instance.
    pub first: u32,
    /// Number of experts; 1 if the program is not routed.
    pub experts: u32,
    /// Number of columns.
    pub columns: u32,
    /// Number of parts; 1 without a state.
    pub parts: u32,
    /// Kind of rows that the program fires for.
    pub axis: Axis,
    /// Index of the program's state.
    pub state: Option<u32>,
    /// Number of positions in a part of the program's state.
    pub positions: u32,
    /// Whether the program fires only on the part with the row's position.
    pub appends: bool,
    /// Index of the program's wave.
    pub wave: u32,
    /// Index of the program's kernel.
    pub kernel: u32,
    /// Slices that the program's ports receive.
    pub receives: Vec<Receive>,
    /// Bytes of a row that all ports of the program receive together, except ports that receive
    /// parts of a state.
    pub fixed_bytes: u64,
    /// Max number of rows for which a port of the program has memory.
    pub depth: u32,
    /// Offset of the arrival counters of the program's instances. Each instance has `depth`
    /// counters.
    pub arrivals: u64,
    /// Outlets of each instance.
    pub outlets: Vec<Outlet>,
    /// Number of the first outlet of the program's first instance. The outlets of its other
    /// instances follow.
    pub first_outlet: u32,
    /// Routings whose ids the program computes, with the port and the bytes of a row.
    pub routed_ids: Vec<RoutedIds>,
    /// Earlier programs of the same wave that use the same state.
    pub before: Vec<u32>,
    /// Later programs of the same wave that use the same state.
    pub after: Vec<u32>,
}

/// A routing whose expert ids a program computes.
#[derive(Clone, Copy, Debug)]
pub struct RoutedIds {
    /// Number of the routing.
    pub routing: u32,
    /// Number of the port.
    pub port: u32,
    /// Bytes of a row.
    pub bytes: u64,
}

/// A stream that the host sends.
#[derive(Clone, Debug)]
pub struct HostOutlet {
    /// The host's outlet.
    pub outlet: Outlet,
    /// PE at which the stream enters the grid.
    pub entry: u32,
    /// The wave of the receiving program.
    pub wave: u32,
}

/// Layout of all programs.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The programs, in the order of the descriptor.
    pub units: Vec<Unit>,
    /// PE of each instance: `y * width + x`.
    pub pe: Vec<u32>,
    /// Program of each instance.
    pub program: Vec<u32>,
    /// Instance that each outlet belongs to. The host's outlets come last and have no instance.
    pub owner: Vec<u32>,
    /// Outlets of the host, one for each of its streams.
    pub host: Vec<HostOutlet>,
    /// Number of the first outlet of the host.
    pub first_host_outlet: u32,
    /// Number of arrival counters of all instances.
    pub arrivals: u64,
    /// Programs of each wave.
    pub waves: Vec<Vec<u32>>,
    /// For each wave, the streams from the host, by their number in `host`.
    pub host_waves: Vec<Vec<u32>>,
}

/// Look-up tables of a descriptor, for building its layout.
struct Index {
    /// Slices that each program receives.
    receives: Vec<Vec<Receive>>,
    /// Indices in `receives` of the slices of a tensor, by program and tensor.
    consumers: HashMap<(u32, u32), Vec<u32>>,
    /// Streams by their sending program and tensor.
    sent: HashMap<(u32, u32), Vec<u32>>,
    /// Routings by the tensor that has their ids.
    routings: HashMap<u32, Vec<u32>>,
    /// Programs that work on a state in a wave, by state and wave.
    sharers: HashMap<(u32, u32), Vec<u32>>,
}

impl Index {
    fn new(descriptor: &Descriptor) -> Index {
        let mut index = Index {
            receives: descriptor.programs.iter().map(|program| receives(descriptor, program)).collect(),
            consumers: HashMap::new(),
            sent: HashMap::new(),
            routings: HashMap::new(),
            sharers: HashMap::new(),
        };
        for (program, receives) in (0..).zip(&index.receives) {
            for (number, receive) in (0..).zip(receives) {
                index.consumers.entry((program, receive.slice.tensor)).or_default().push(number);
            }
        }
        for (number, stream) in (0..).zip(&descriptor.streams) {
            if let End::Program(from) = stream.from {
                index.sent.entry((from, stream.tensor)).or_default().push(number);
            }
        }
        for (number, routing) in (0..).zip(&descriptor.routings) {
            index.routings.entry(routing.ids).or_default().push(number);
        }
        for (number, program) in (0..).zip(&descriptor.programs) {
            if let Some(state) = program.state {
                index.sharers.entry((state, program.wave)).or_default().push(number);
            }
        }
        index
    }

    /// Returns the consumers of a tensor in a program.
    fn consumers(&self, program: u32, tensor: u32) -> impl Iterator<Item = Consumer> + '_ {
        let receives = self.consumers.get(&(program, tensor)).map_or(&[][..], Vec::as_slice);
        receives.iter().map(move |receive| Consumer { program, receive: *receive })
    }
}

/// Place of an instance in its unit.
#[derive(Clone, Copy, Debug)]
pub struct InstancePlace {
    /// Number of the expert.
    pub expert: u32,
    /// Number of the column.
    pub column: u32,
    /// Number of the part.
    pub part: u32,
}

impl Unit {
    /// Returns the number of instances of the program.
    pub fn instances(&self) -> u32 {
        self.experts * self.columns * self.parts
    }

    /// Returns expert, column and part of an instance.
    pub fn place(&self, instance: u32) -> InstancePlace {
        let local = instance - self.first;
        let (rest, part) = (local / self.parts, local % self.parts);
        InstancePlace { expert: rest / self.columns, column: rest % self.columns, part }
    }

    /// Returns the number of an instance.
    pub fn instance(&self, expert: u32, column: u32, part: u32) -> u32 {
        self.first + (expert * self.columns + column) * self.parts + part
    }

    /// Returns the number of an instance's outlet.
    pub fn outlet(&self, instance: u32, outlet: usize) -> u32 {
        self.first_outlet + (instance - self.first) * self.outlets.len() as u32 + outlet as u32
    }
}

impl Outlet {
    /// Returns the range of the row's bytes that an instance sends; the end is exclusive.
    pub fn range(&self, column: u32, part: u32) -> (u64, u64) {
        let from = start(&self.slice, column, part);
        (from, from + self.slice.bytes)
    }
}

/// Returns the offset of a slice in the row.
pub fn start(slice: &Slice, column: u32, part: u32) -> u64 {
    slice.offset + u64::from(column) * slice.column_stride + u64::from(part) * slice.part_stride
}

/// Returns the columns whose slices overlap the bytes `low..high`: the number of the first column,
/// and how many there are. Slices have `bytes` bytes and begin at `first + column * stride`.
pub fn columns_of(first: u64, stride: u64, bytes: u64, columns: u32, low: u64, high: u64) -> (u32, u32) {
    if bytes == 0 || low >= high {
        return (0, 0);
    }
    let meets = |start: u64| start < high && start + bytes > low;
    if stride == 0 {
        return if meets(first) { (0, columns) } else { (0, 0) };
    }
    if first >= high {
        return (0, 0);
    }
    let end = ((high - 1 - first) / stride + 1).min(columns.into());
    let begin = if first + bytes > low { 0 } else { (low - first - bytes) / stride + 1 };
    (begin.min(end) as u32, end.saturating_sub(begin) as u32)
}

/// Returns the edge PE nearest to a PE.
pub fn edge(descriptor: &Descriptor, pe: u32) -> u32 {
    use crate::grid::Edge;
    let (width, height) = (descriptor.grid.width, descriptor.grid.height);
    let (x, y) = (pe % width, pe / width);
    let edges = descriptor.grid.io.edges.iter().map(|edge| match edge {
        Edge::West => (x, y * width),
        Edge::East => (width - 1 - x, y * width + width - 1),
        Edge::North => (y, x),
        Edge::South => (height - 1 - y, (height - 1) * width + x),
    });
    edges.min_by_key(|(distance, _)| *distance).map_or(pe, |(_, pe)| pe)
}

impl Layout {
    /// Builds the layout of a descriptor whose indices and sizes were checked.
    pub(super) fn new(descriptor: &Descriptor) -> Layout {
        let mut layout = Layout {
            waves: vec![Vec::new(); descriptor.waves.len()],
            host_waves: vec![Vec::new(); descriptor.waves.len()],
            ..Layout::default()
        };
        let index = Index::new(descriptor);
        for (number, program) in descriptor.programs.iter().enumerate() {
            let unit = unit(descriptor, number as u32, program, &layout, &index);
            layout.waves[unit.wave as usize].push(number as u32);
            let width = descriptor.grid.width;
            for instance in unit.first..unit.first + unit.instances() {
                let InstancePlace { expert, column, part } = unit.place(instance);
                let (x, y) = program.sites.pe(column, expert, part);
                layout.pe.push(y * width + x);
                layout.program.push(number as u32);
                layout.owner.extend(unit.outlets.iter().map(|_| instance));
            }
            layout.arrivals += u64::from(unit.instances()) * u64::from(unit.depth);
            layout.units.push(unit);
        }
        layout.first_host_outlet = layout.owner.len() as u32;
        for stream in &descriptor.streams {
            let (End::Host, End::Program(to)) = (stream.from, stream.to) else { continue };
            let (tensor, unit) = (&descriptor.tensors[stream.tensor as usize], &layout.units[to as usize]);
            let whole = Slice {
                tensor: stream.tensor,
                offset: 0,
                column_stride: 0,
                part_stride: 0,
                bytes: tensor.row_bytes,
                rows: u32::MAX,
            };
            let consumers = index.consumers(to, stream.tensor).collect();
            let routing = routing(unit.axis, tensor.axis);
            let (axis, route, colour) = (tensor.axis, stream.route, stream.colour);
            let outlet = Outlet { slice: whole, axis, route, colour, consumers, host: false, port: u32::MAX, routing };
            let entry = edge(descriptor, layout.pe[unit.first as usize]);
            layout.host_waves[unit.wave as usize].push(layout.host.len() as u32);
            layout.host.push(HostOutlet { outlet, entry, wave: unit.wave });
        }
        layout
    }

    /// Returns the program of an instance.
    pub fn unit(&self, instance: u32) -> &Unit {
        &self.units[self.program[instance as usize] as usize]
    }

    /// Returns the number of outlets, including the host's.
    pub fn outlets(&self) -> usize {
        self.owner.len() + self.host.len()
    }
}

/// Returns the routing whose expert ids select the consumer's instances that fire. Returns `None`
/// if the consumer is not over a routing.
fn routing(consumer: Axis, tensor: Axis) -> Option<u32> {
    match (consumer, tensor) {
        (Axis::Routed(routing), Axis::Tokens | Axis::Outputs | Axis::Routed(_)) => Some(routing),
        (Axis::Tokens | Axis::Outputs, _) => None,
    }
}

fn receives(descriptor: &Descriptor, program: &Program) -> Vec<Receive> {
    let ports = program.ports.iter().enumerate();
    ports
        .filter_map(|(port, at)| {
            let port = port as u32;
            match at {
                Port::Receive(slice) => Some(Receive { port, slice: *slice, kind: Kind::Row }),
                Port::ReceiveRope(slice) => Some(Receive { port, slice: *slice, kind: Kind::Rope }),
                Port::ReceiveSlots(slice) => {
                    let top_k = match descriptor.tensors[slice.tensor as usize].axis {
                        Axis::Routed(routing) => descriptor.routings[routing as usize].top_k,
                        Axis::Tokens | Axis::Outputs => 1,
                    };
                    Some(Receive { port, slice: *slice, kind: Kind::Slots { top_k } })
                }
                Port::ReceiveParts { slice, state } => {
                    let parts = descriptor.states[*state as usize].parts;
                    let kind = Kind::Parts { positions: parts.positions, count: parts.count };
                    Some(Receive { port, slice: *slice, kind })
                }
                Port::Weight { .. } | Port::Send(_) | Port::Keys(_) | Port::Values(_) => None,
                Port::Position | Port::PositionBlock | Port::PositionLane => None,
                Port::SlotNumbers(_) | Port::Scratch { .. } => None,
            }
        })
        .collect()
}

fn unit(descriptor: &Descriptor, number: u32, program: &Program, layout: &Layout, index: &Index) -> Unit {
    let receives = index.receives[number as usize].clone();
    let fixed = receives.iter().map(|receive| match receive.kind {
        Kind::Row | Kind::Rope => receive.slice.bytes,
        Kind::Slots { top_k } => receive.slice.bytes * u64::from(top_k),
        Kind::Parts { .. } => 0,
    });
    let depth = receives.iter().map(|receive| receive.slice.rows).max().unwrap_or(1);
    let mut outlets: Vec<Outlet> = Vec::new();
    let mut routed_ids = Vec::new();
    let mut places = HashMap::new();
    for (port, at) in program.ports.iter().enumerate() {
        let Port::Send(slice) = at else { continue };
        let axis = descriptor.tensors[slice.tensor as usize].axis;
        for routing in index.routings.get(&slice.tensor).into_iter().flatten() {
            let bytes = descriptor.tensors[slice.tensor as usize].row_bytes;
            routed_ids.push(RoutedIds { routing: *routing, port: port as u32, bytes });
        }
        for stream in index.sent.get(&(number, slice.tensor)).into_iter().flatten() {
            let stream = &descriptor.streams[*stream as usize];
            let (route, colour) = (stream.route, stream.colour);
            let wanted = match stream.to {
                End::Host => None,
                End::Program(to) => routing(descriptor.programs[to as usize].axis, axis),
            };
            let place = *places.entry((port, route, colour, wanted)).or_insert_with(|| {
                let (slice, port, consumers) = (*slice, port as u32, Vec::new());
                outlets.push(Outlet { slice, axis, route, colour, consumers, host: false, port, routing: wanted });
                outlets.len() - 1
            });
            let outlet = &mut outlets[place];
            match stream.to {
                End::Host => outlet.host = true,
                End::Program(to) => outlet.consumers.extend(index.consumers(to, stream.tensor)),
            }
        }
    }
    let sharers = program.state.and_then(|state| index.sharers.get(&(state, program.wave)));
    let others = || sharers.into_iter().flatten().copied();
    Unit {
        first: layout.pe.len() as u32,
        experts: descriptor.experts(program),
        columns: program.columns,
        parts: descriptor.parts(program),
        axis: program.axis,
        state: program.state,
        positions: program.state.map_or(0, |state| descriptor.states[state as usize].parts.positions),
        appends: program.appends,
        wave: program.wave,
        kernel: program.kernel,
        fixed_bytes: fixed.sum(),
        depth,
        arrivals: layout.arrivals,
        receives,
        outlets,
        first_outlet: layout.owner.len() as u32,
        routed_ids,
        before: others().filter(|other| *other < number).collect(),
        after: others().filter(|other| *other > number).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_for_a_byte_range_match_brute_force() {
        for stride in 0..5 {
            for bytes in 0..5 {
                for (first, low, high) in
                    [(0, 0, 4), (0, 3, 9), (2, 3, 4), (5, 0, 5), (7, 0, 30), (0, 100, 101), (0, 4, 4)]
                {
                    let right: Vec<u32> = (0..8)
                        .filter(|c| {
                            let start = first + u64::from(*c) * stride;
                            (start.max(low)..(start + bytes).min(high)).next().is_some()
                        })
                        .collect();
                    let (begin, count) = columns_of(first, stride, bytes, 8, low, high);
                    let found: Vec<u32> = (begin..begin + count).collect();
                    assert_eq!(found, right, "{first} + {stride} * column, {bytes} bytes, {low}..{high}");
                }
            }
        }
    }
}
