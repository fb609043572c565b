//! Streams that want the same colour of a link: a router that is set up for colours knows one way for each, so during a wave a colour of a link belongs
//! to one tensor from one end.
//!
//! All the links that a stream may ever use are walked, also those to experts that no token names; machines whose messages carry where they go
//! have no such conflict.

use std::fmt;

use ixc_ir::dataflow::descriptor::{Descriptor, End, Route};
use ixc_ir::dataflow::grid::Routing;

use super::layout::{Layout, Outlet, Unit, columns_of, edge, start};

/// Two streams on one colour of a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the link {direction} from PE ({x}, {y}) has two streams of colour {colour}: {first} and {second}")]
pub struct RouteConflict {
    /// Column of the PE that the link leaves.
    pub x: u32,
    /// Row of the PE.
    pub y: u32,
    /// Where it goes.
    pub direction: Direction,
    /// The colour.
    pub colour: u32,
    /// One stream: its tensor, and from where.
    pub first: String,
    /// The other.
    pub second: String,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To larger x.
    East,
    /// To smaller x.
    West,
    /// To smaller y.
    North,
    /// To larger y.
    South,
}

impl Direction {
    /// All, in the order of their numbers.
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

/// Calls `step` with each link from a PE to another, as the number of the PE that it leaves and its direction; stops at the first `Err`.
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

/// A tensor from an end, in a colour.
struct Group<'a> {
    tensor: u32,
    from: End,
    outlet: &'a Outlet,
    /// The program and its first instance's place, or where the host's stream comes in.
    sender: Result<&'a Unit, u32>,
}

/// Checks all links of all waves.
///
/// # Errors
/// The first conflict, and a colour that links do not have.
pub fn check(descriptor: &Descriptor, layout: &Layout) -> Result<(), super::check::CheckError> {
    let Routing::Colours(colours) = descriptor.grid.link.routing else { return Ok(()) };
    for (number, stream) in descriptor.streams.iter().enumerate() {
        if stream.colour >= colours {
            return Err(super::check::CheckError::Malformed {
                what: format!("stream {number}"),
                problem: format!("colour {}, of which links have {colours}", stream.colour),
            });
        }
    }
    let mut owner = vec![0u32; descriptor.grid.pes() as usize * Direction::ALL.len()];
    for wave in 0..descriptor.waves.len() as u32 {
        let units = layout.units.iter().enumerate().filter(|(_, unit)| unit.wave == wave);
        let mut groups: Vec<Group<'_>> = units
            .flat_map(|(number, unit)| {
                unit.outlets.iter().map(move |outlet| {
                    let (tensor, from) = (outlet.slice.tensor, End::Program(number as u32));
                    Group { tensor, from, outlet, sender: Ok(unit) }
                })
            })
            .collect();
        groups.extend(layout.host.iter().filter(|host| host.wave == wave).map(|host| {
            let (tensor, outlet) = (host.outlet.slice.tensor, &host.outlet);
            Group { tensor, from: End::Host, outlet, sender: Err(host.entry) }
        }));
        for colour in 0..colours {
            let of_colour: Vec<&Group<'_>> = groups.iter().filter(|group| group.outlet.colour == colour).collect();
            if of_colour.len() < 2 {
                continue;
            }
            owner.fill(0);
            for (number, group) in (1u32..).zip(&of_colour) {
                mark(descriptor, layout, &of_colour, group, number, &mut owner)?;
            }
        }
    }
    Ok(())
}

fn describe(descriptor: &Descriptor, group: &Group<'_>) -> String {
    let tensor = &descriptor.tensors[group.tensor as usize].name;
    match group.from {
        End::Host => format!("{tensor} from the host"),
        End::Program(program) => format!("{tensor} from {}", super::check::program_name(descriptor, program as usize)),
    }
}

/// Takes the links of a group.
fn mark(
    descriptor: &Descriptor,
    layout: &Layout,
    groups: &[&Group<'_>],
    group: &Group<'_>,
    number: u32,
    owner: &mut [u32],
) -> Result<(), Box<RouteConflict>> {
    let width = descriptor.grid.width;
    let outlet = group.outlet;
    let mut link = |pe: u32, direction: Direction| {
        let owner = &mut owner[pe as usize * Direction::ALL.len() + direction as usize];
        let before = groups.get((*owner as usize).wrapping_sub(1));
        match before {
            Some(before) if *owner != number && (before.tensor, before.from) != (group.tensor, group.from) => {
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
                *owner = number;
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
                // Rows of an expert stay with it.
                let same = descriptor.programs[consumer.program as usize].axis == outlet.axis;
                let experts = match expert.filter(|_| same && unit.experts > 1) {
                    Some(expert) => expert..expert + 1,
                    None => 0..unit.experts,
                };
                for expert in experts {
                    for column in begin..begin + count {
                        let part = if unit.state.is_some() { part } else { 0 };
                        let pe = layout.pe[unit.instance(expert, column, part) as usize];
                        // Neighbours share PEs.
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
            let (expert, column, part) = unit.place(instance);
            let (low, high) = outlet.range(column, part);
            one(layout.pe[instance as usize], Some(expert), low, high)
        }),
    }
}

/// Parts whose slices a port takes: those of its own instances, or all of another program's.
fn slice_parts(unit: &Unit, receive: u32) -> u32 {
    match unit.receives[receive as usize].kind {
        super::layout::Kind::Parts { count, .. } => count,
        super::layout::Kind::Row | super::layout::Kind::Rope | super::layout::Kind::Slots { .. } => unit.parts,
    }
}
