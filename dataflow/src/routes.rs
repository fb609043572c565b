//! Conflicts between streams on the colours of a link: during a wave, each colour of a link belongs
//! to one tensor from one sender.
//!
//! A colour is a virtual channel. All instances of a program use the same channel. Their messages
//! carry their destination, so they can split at any router. A router may have several routes for
//! one colour, because placed descriptors need them.
//!
//! The check walks all links that a stream can use, including those to experts that no token
//! selects. Machines whose messages are packets have no such conflicts.

use std::fmt;

use crate::descriptor::{Descriptor, End, Route, program_name};
use crate::grid::Routing;
use crate::layout::{InstancePlace, Layout, Outlet, Unit, columns_of, edge, start};

/// Two streams use one colour of a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the link {direction} from PE ({x}, {y}) has two streams of colour {colour}: {first} and {second}")]
pub struct RouteConflict {
    /// Column of the PE at the link's beginning.
    pub x: u32,
    /// Row of the PE at the link's beginning.
    pub y: u32,
    /// Direction of the link.
    pub direction: Direction,
    /// Number of the colour.
    pub colour: u32,
    /// The first stream, as its tensor and its sender.
    pub first: String,
    /// The second stream, as its tensor and its sender.
    pub second: String,
}

/// Direction of a link on the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Direction towards larger x.
    East,
    /// Direction towards smaller x.
    West,
    /// Direction towards smaller y.
    North,
    /// Direction towards larger y.
    South,
}

impl Direction {
    /// All directions, in the order of their numbers.
    pub const ALL: [Direction; 4] = [Direction::East, Direction::West, Direction::North, Direction::South];
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::East => "east",
            Direction::West => "west",
            Direction::North => "north",
            Direction::South => "south",
        })
    }
}

/// Calls `step` with each link from one PE to another; a link is given as the PE where it begins
/// and its direction. Stops at the first `Err`.
pub fn walk<E>(
    width: u32,
    from: u32,
    to: u32,
    route: Route,
    mut step: impl FnMut(u32, Direction) -> Result<(), E>,
) -> Result<(), E> {
    let (mut x, mut y) = (from % width, from / width);
    let (end_x, end_y) = (to % width, to / width);
    let axes = match route {
        Route::XThenY => [true, false],
        Route::YThenX => [false, true],
    };
    for along_x in axes {
        while if along_x { x != end_x } else { y != end_y } {
            let pe = y * width + x;
            let direction = match (along_x, if along_x { x < end_x } else { y < end_y }) {
                (true, true) => Direction::East,
                (true, false) => Direction::West,
                (false, true) => Direction::South,
                (false, false) => Direction::North,
            };
            step(pe, direction)?;
            match direction {
                Direction::East => x += 1,
                Direction::West => x -= 1,
                Direction::South => y += 1,
                Direction::North => y -= 1,
            }
        }
    }
    Ok(())
}

/// Messages of one tensor from one sender in one colour.
struct Group<'a> {
    tensor: u32,
    from: End,
    outlet: &'a Outlet,
    /// The sending program, or the PE at which the host's stream enters the grid.
    sender: Result<&'a Unit, u32>,
}

/// Checks all links of all waves. Each stream must have a colour that links have.
///
/// # Errors
/// The first conflict.
pub fn check(descriptor: &Descriptor, layout: &Layout) -> Result<(), Box<RouteConflict>> {
    if descriptor.grid.link.routing == Routing::Packets {
        return Ok(());
    }
    // For each link, the mark of the last group that uses it. Marks are numbered on over all
    // colours and waves.
    let mut owner = vec![0u32; descriptor.grid.pes() as usize * Direction::ALL.len()];
    let mut base = 0;
    let mut host: Vec<Vec<Group<'_>>> = descriptor.waves.iter().map(|_| Vec::new()).collect();
    for entry in &layout.host {
        let (tensor, outlet) = (entry.outlet.slice.tensor, &entry.outlet);
        host[entry.wave as usize].push(Group { tensor, from: End::Host, outlet, sender: Err(entry.entry) });
    }
    for (programs, host) in layout.waves.iter().zip(host) {
        let units = programs.iter().map(|number| (*number, &layout.units[*number as usize]));
        let mut groups: Vec<Group<'_>> = units
            .flat_map(|(number, unit)| {
                unit.outlets.iter().map(move |outlet| {
                    let (tensor, from) = (outlet.slice.tensor, End::Program(number));
                    Group { tensor, from, outlet, sender: Ok(unit) }
                })
            })
            .collect();
        groups.extend(host);
        groups.sort_by_key(|group| group.outlet.colour);
        for of_colour in groups.chunk_by(|a, b| a.outlet.colour == b.outlet.colour) {
            if of_colour.len() < 2 {
                continue;
            }
            for (number, group) in (0u32..).zip(of_colour) {
                mark(descriptor, layout, of_colour, base, group, number, &mut owner)?;
            }
            base += of_colour.len() as u32;
        }
    }
    Ok(())
}

fn describe(descriptor: &Descriptor, group: &Group<'_>) -> String {
    let tensor = &descriptor.tensors[group.tensor as usize].name;
    match group.from {
        End::Host => format!("{tensor} from the host"),
        End::Program(program) => format!("{tensor} from {}", program_name(descriptor, program as usize)),
    }
}

/// Marks the links that a group uses with `base + 1 + number`; `number` is its index in `groups`.
fn mark(
    descriptor: &Descriptor,
    layout: &Layout,
    groups: &[Group<'_>],
    base: u32,
    group: &Group<'_>,
    number: u32,
    owner: &mut [u32],
) -> Result<(), Box<RouteConflict>> {
    let width = descriptor.grid.width;
    let outlet = group.outlet;
    let mut link = |pe: u32, direction: Direction| {
        let owner = &mut owner[pe as usize * Direction::ALL.len() + direction as usize];
        // A link with mark 0 is free; marks up to `base` belong to other colours or waves.
        let before = owner.checked_sub(base + 1).and_then(|before| groups.get(before as usize));
        match before {
            Some(before) if (before.tensor, before.from) != (group.tensor, group.from) => {
                Err(Box::new(RouteConflict {
                    x: pe % width,
                    y: pe / width,
                    direction,
                    colour: outlet.colour,
                    first: describe(descriptor, before),
                    second: describe(descriptor, group),
                }))
            }
            _ => {
                *owner = base + 1 + number;
                Ok(())
            }
        }
    };
    let mut one = |from: u32, expert: Option<u32>, low: u64, high: u64| {
        if outlet.host {
            walk(width, from, edge(descriptor, from), outlet.route, &mut link)?;
        }
        for consumer in &outlet.consumers {
            let unit = &layout.units[consumer.program as usize];
            let slice = unit.receives[consumer.receive as usize].slice;
            let mut last = u32::MAX;
            for part in 0..slice_parts(unit, consumer.receive) {
                let first = start(&slice, 0, part);
                let (begin, count) = columns_of(first, slice.column_stride, slice.bytes, unit.columns, low, high);
                // A row of an expert goes to the same expert of the receiving program.
                let same = descriptor.programs[consumer.program as usize].axis == outlet.axis;
                let experts = match expert.filter(|_| same && unit.experts > 1) {
                    Some(expert) => expert..expert + 1,
                    None => 0..unit.experts,
                };
                for expert in experts {
                    for column in begin..begin + count {
                        let part = if unit.state.is_some() { part } else { 0 };
                        let pe = layout.pe[unit.instance(expert, column, part) as usize];
                        // Neighbouring instances may share a PE.
                        if pe != last {
                            walk(width, from, pe, outlet.route, &mut link)?;
                        }
                        last = pe;
                    }
                }
            }
        }
        Ok(())
    };
    match group.sender {
        Err(entry) => one(entry, None, 0, u64::MAX),
        Ok(unit) => (unit.first..unit.first + unit.instances()).try_for_each(|instance| {
            let InstancePlace { expert, column, part } = unit.place(instance);
            let (low, high) = outlet.range(column, part);
            one(layout.pe[instance as usize], Some(expert), low, high)
        }),
    }
}

/// Returns the number of state parts whose slices a port receives: one for each part of its own
/// program, or all parts of another program.
fn slice_parts(unit: &Unit, receive: u32) -> u32 {
    match unit.receives[receive as usize].kind {
        crate::layout::Kind::Parts { count, .. } => count,
        crate::layout::Kind::Row | crate::layout::Kind::Rope | crate::layout::Kind::Slots { .. } => unit.parts,
    }
}
