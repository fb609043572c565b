//! Exact contents of each PE's memory: the sizes of [`crate::account`], summed for each PE.

use std::collections::HashSet;

use crate::descriptor::{Descriptor, program_name};

use crate::layout::Layout;

/// Max number of memory items that an error about a full PE lists.
const MAX_ITEMS_IN_ERROR: usize = 8;

/// Bytes that an item uses in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse<T> {
    /// Item that occupies the bytes.
    pub what: T,
    /// Number of bytes of the item.
    pub bytes: u64,
}

/// The memory of a PE is too small for its contents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PE ({x}, {y}) needs {found} bytes, but has {available}: {}", list(items, *more))]
pub struct MemoryError {
    /// Column of the PE.
    pub x: u32,
    /// Row of the PE.
    pub y: u32,
    /// Bytes that the contents of the PE take.
    pub found: u64,
    /// Bytes of memory that the PE has.
    pub available: u64,
    /// Largest memory items of the PE, the largest first.
    pub items: Vec<MemoryUse<String>>,
    /// Number of items that are not listed.
    pub more: u64,
}

fn list(items: &[MemoryUse<String>], more: u64) -> String {
    let named: Vec<String> = items.iter().map(|MemoryUse { what, bytes }| format!("{bytes} for {what}")).collect();
    if more > 0 { format!("{}, and {more} more", named.join(", ")) } else { named.join(", ") }
}

/// Returns the bytes used on each PE (index `y * width + x`) in its fullest wave.
///
/// # Errors
/// The first PE whose memory is too small.
pub fn check(descriptor: &Descriptor, layout: &Layout) -> Result<Vec<u64>, Box<MemoryError>> {
    // The number fits: a grid has at most 2^22 PEs.
    let pes = descriptor.grid.pes() as usize;
    let mut most = vec![0u64; pes];
    let mut bytes = vec![0u64; pes];
    let mut code = Code { stamps: vec![0; pes], last: 0 };
    let mut touched: Vec<u32> = Vec::new();
    let available = descriptor.grid.usable_bytes();
    for wave in 0..descriptor.waves.len() as u32 {
        each(descriptor, layout, wave, &mut code, |pe, _, count| {
            let bytes = &mut bytes[pe as usize];
            if *bytes == 0 && count > 0 {
                touched.push(pe);
            }
            *bytes = bytes.saturating_add(count);
        });
        let full = touched.iter().copied().filter(|pe| bytes[*pe as usize] > available).min();
        if let Some(pe) = full.map(|pe| pe as usize) {
            // One PE may hold all instances, so only the largest items are kept.
            let (mut largest, mut all): (Vec<MemoryUse<MemoryItem>>, u64) = (Vec::new(), 0);
            each(descriptor, layout, wave, &mut code, |other, what, count| {
                if other as usize == pe && count > 0 {
                    all += 1;
                    largest.push(MemoryUse { what, bytes: count });
                    if largest.len() == 2 * MAX_ITEMS_IN_ERROR {
                        keep_largest(&mut largest);
                    }
                }
            });
            keep_largest(&mut largest);
            let more = all - largest.len() as u64;
            let named =
                |item: MemoryUse<MemoryItem>| MemoryUse { what: name(descriptor, item.what), bytes: item.bytes };
            let items = largest.into_iter().map(named).collect();
            let (x, y) = (pe as u32 % descriptor.grid.width, pe as u32 / descriptor.grid.width);
            return Err(Box::new(MemoryError { x, y, found: bytes[pe], available, items, more }));
        }
        for pe in touched.drain(..) {
            let held = std::mem::take(&mut bytes[pe as usize]);
            most[pe as usize] = most[pe as usize].max(held);
        }
    }
    Ok(most)
}

/// Keeps only the largest items. Of equally large items, it keeps the first ones.
fn keep_largest(items: &mut Vec<MemoryUse<MemoryItem>>) {
    items.sort_by_key(|item| std::cmp::Reverse(item.bytes));
    items.truncate(MAX_ITEMS_IN_ERROR);
}

/// An item in a PE's memory.
#[derive(Clone, Copy)]
enum MemoryItem {
    /// Weights, buffers and working memory of an instance.
    Instance { program: usize, instance: u32 },
    /// One head's part of a state.
    State(u32),
    /// A kernel's code.
    Code(usize),
}

fn name(descriptor: &Descriptor, what: MemoryItem) -> String {
    match what {
        MemoryItem::Instance { program, instance } => {
            let bytes = descriptor.instance_bytes(&descriptor.programs[program]);
            format!(
                "instance {instance} of {} ({} weights, {} received, {} sent, {} working memory)",
                program_name(descriptor, program),
                bytes.weights,
                bytes.receives,
                bytes.sends,
                bytes.scratch
            )
        }
        MemoryItem::State(state) => format!("a part of state {state}"),
        MemoryItem::Code(kernel) => format!("code of {}", descriptor.kernels[kernel].name),
    }
}

/// Finder of the PEs that hold a kernel's code, for one kernel after the other.
struct Code {
    /// For each PE, the number of the last kernel whose code it holds. Kernels are numbered on over
    /// all waves.
    stamps: Vec<u32>,
    last: u32,
}

/// Calls `add` with each item that a wave puts on a PE.
fn each(
    descriptor: &Descriptor,
    layout: &Layout,
    wave: u32,
    code: &mut Code,
    mut add: impl FnMut(u32, MemoryItem, u64),
) {
    let mut programs = layout.waves[wave as usize].clone();
    let sites = |unit: &crate::layout::Unit| {
        let (first, end) = (unit.first as usize, (unit.first + unit.instances()) as usize);
        &layout.pe[first..end]
    };
    let mut keeps = HashSet::new();
    for program in &programs {
        let program = *program as usize;
        let unit = &layout.units[program];
        let bytes = descriptor.instance_bytes(&descriptor.programs[program]).total();
        for (instance, pe) in (0..).zip(sites(unit)) {
            add(*pe, MemoryItem::Instance { program, instance }, bytes);
        }
        if let Some(state) = unit.state.filter(|state| keeps.insert(*state)) {
            let bytes = descriptor.states[state as usize].part_bytes();
            sites(unit).iter().for_each(|pe| add(*pe, MemoryItem::State(state), bytes));
        }
    }
    programs.sort_by_key(|program| layout.units[*program as usize].kernel);
    let mut before = None;
    for program in programs {
        let unit = &layout.units[program as usize];
        if before.replace(unit.kernel) != Some(unit.kernel) {
            code.last += 1;
        }
        for pe in sites(unit) {
            if std::mem::replace(&mut code.stamps[*pe as usize], code.last) != code.last {
                let kernel = unit.kernel as usize;
                add(*pe, MemoryItem::Code(kernel), descriptor.kernels[kernel].code_bytes);
            }
        }
    }
}
