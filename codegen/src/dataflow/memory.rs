//! What each PE's memory holds, to the byte: the account of [`ixc_ir::dataflow::memory`], added up over PEs.

use ixc_ir::dataflow::descriptor::Descriptor;

use super::check::program_name;
use super::layout::Layout;

/// Items of a full PE that are named, the largest first.
const NAMED: usize = 8;

/// A PE whose memory does not hold what is put there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PE ({x}, {y}) holds {found} bytes and has {right}: {}", list(items))]
pub struct MemoryError {
    /// Column of the PE.
    pub x: u32,
    /// Row of the PE.
    pub y: u32,
    /// Bytes put there.
    pub found: u64,
    /// Bytes that it has.
    pub right: u64,
    /// What fills it: what, and how many bytes; the largest first.
    pub items: Vec<(String, u64)>,
}

fn list(items: &[(String, u64)]) -> String {
    let named: Vec<String> = items.iter().take(NAMED).map(|(what, bytes)| format!("{bytes} for {what}")).collect();
    let more = items.len().saturating_sub(NAMED);
    if more > 0 { format!("{}, and {more} more", named.join(", ")) } else { named.join(", ") }
}

/// Bytes of each PE, `y * width + x`, of the fullest wave.
///
/// # Errors
/// The first PE that is too full.
pub fn check(descriptor: &Descriptor, layout: &Layout) -> Result<Vec<u64>, Box<MemoryError>> {
    // It fits: a grid has at most 2^28 PEs.
    let pes = descriptor.grid.pes() as usize;
    let mut most = vec![0u64; pes];
    let mut bytes = vec![0u64; pes];
    let mut stamp = vec![u32::MAX; pes];
    for wave in 0..descriptor.waves.len() as u32 {
        bytes.fill(0);
        each(descriptor, layout, wave, &mut stamp, |pe, _, count| {
            bytes[pe as usize] = bytes[pe as usize].saturating_add(count);
        });
        let right = descriptor.grid.usable_bytes();
        if let Some(pe) = bytes.iter().position(|bytes| *bytes > right) {
            let mut items: Vec<(String, u64)> = Vec::new();
            each(descriptor, layout, wave, &mut stamp, |other, what, count| {
                if other as usize == pe && count > 0 {
                    items.push((name(descriptor, what), count));
                }
            });
            items.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
            let (x, y) = (pe as u32 % descriptor.grid.width, pe as u32 / descriptor.grid.width);
            return Err(Box::new(MemoryError { x, y, found: bytes[pe], right, items }));
        }
        most.iter_mut().zip(&bytes).for_each(|(most, bytes)| *most = (*most).max(*bytes));
    }
    Ok(most)
}

/// What takes memory.
#[derive(Clone, Copy)]
enum What {
    /// Weights, buffers and working memory of an instance.
    Instance { program: usize, instance: u32 },
    /// A state's part.
    State(u32),
    /// A kernel's code.
    Code(usize),
}

fn name(descriptor: &Descriptor, what: What) -> String {
    match what {
        What::Instance { program, instance } => {
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
        What::State(state) => format!("a part of state {state}"),
        What::Code(kernel) => format!("code of {}", descriptor.kernels[kernel].name),
    }
}

/// Calls `add` with all that is put on PEs in a wave.
fn each(descriptor: &Descriptor, layout: &Layout, wave: u32, stamp: &mut [u32], mut add: impl FnMut(u32, What, u64)) {
    let programs = || layout.units.iter().enumerate().filter(|(_, unit)| unit.wave == wave);
    let sites = |unit: &super::layout::Unit| {
        let (first, end) = (unit.first as usize, (unit.first + unit.instances()) as usize);
        &layout.pe[first..end]
    };
    let mut keeps = vec![false; descriptor.states.len()];
    for (program, unit) in programs() {
        let bytes = descriptor.instance_bytes(&descriptor.programs[program]).total();
        for (instance, pe) in (0..).zip(sites(unit)) {
            add(*pe, What::Instance { program, instance }, bytes);
        }
        if let Some(state) = unit.state
            && !std::mem::replace(&mut keeps[state as usize], true)
        {
            let bytes = descriptor.states[state as usize].part_bytes();
            sites(unit).iter().for_each(|pe| add(*pe, What::State(state), bytes));
        }
    }
    let mut by_kernel: Vec<Vec<usize>> = vec![Vec::new(); descriptor.kernels.len()];
    programs().for_each(|(program, unit)| by_kernel[unit.kernel as usize].push(program));
    for (kernel, programs) in by_kernel.iter().enumerate().filter(|(_, programs)| !programs.is_empty()) {
        stamp.fill(u32::MAX);
        for program in programs {
            for pe in sites(&layout.units[*program]) {
                if std::mem::replace(&mut stamp[*pe as usize], 0) != 0 {
                    add(*pe, What::Code(kernel), descriptor.kernels[kernel].code_bytes);
                }
            }
        }
    }
}
