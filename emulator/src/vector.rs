//! Steps that all vector instructions share: fetch the operands, broadcast, compute, mask, and
//! clear the upper bytes.
//!
//! A [`Row`] of a table has the properties of one instruction: its lane function and the widths of
//! elements. Length, mask, broadcast and rounding come from the decoded instruction.

use iced_x86::{Instruction, Mnemonic, OpKind};

use crate::fault::{FaultKind, Trap};
use crate::lanes;
use crate::op::{LaneFn, Machine, MaskFn, Op, Run};
use crate::state::Vector;

type Step = Result<(), Trap>;

/// Form of an instruction's result, with its lane function.
pub(crate) enum Shape {
    /// Elements that are computed from the sources.
    Lanes(LaneFn),
    /// Elements that are computed from the sources and from the old value of the destination or of
    /// a fourth operand.
    Accumulate(LaneFn),
    /// A lowest element that is computed from the sources. All other elements come from `a`.
    Scalar(LaneFn),
    /// A lowest element that is computed from the sources and the old value. All other elements do
    /// not change.
    ScalarAccumulate(LaneFn),
    /// A mask with one bit for each element.
    Mask(MaskFn),
    /// A mask with one bit.
    ScalarMask(MaskFn),
    /// Elements of `b` where the mask bit is set, and elements of `a` elsewhere.
    Blend,
}

/// Properties of one instruction: a row of a module's table.
pub(crate) struct Row {
    pub shape: Shape,
    /// Number of bytes of an element of the result.
    pub element: u8,
    /// Number of bytes of an element of the source. 0 if the source may have any number of
    /// elements.
    pub source: u8,
    /// Whether the memory operand is read as a whole, including masked elements. The manual
    /// requires this for instructions that move elements (exception classes `NF`). Some processors
    /// also do it for other instructions.
    pub whole: bool,
}

impl Row {
    pub fn new(shape: Shape, element: u8) -> Row {
        Row { shape, element, source: element, whole: false }
    }

    /// Returns the row changed so that the memory operand is read as a whole. Masked elements then
    /// fault like others.
    pub fn whole(self) -> Row {
        Row { whole: true, ..self }
    }

    /// Returns the row with this number of bytes of an element of the source.
    pub fn from(self, source: u8) -> Row {
        Row { source, ..self }
    }
}

/// Returns the mask bits of the result's elements; all are set without a mask.
#[inline]
fn active(m: &Machine, op: &Op) -> u64 {
    let all = u64::MAX >> (64 - u32::from(op.count).max(1));
    if op.mask == 0 { all } else { m.state.mask[usize::from(op.mask)] & all }
}

/// Checks that the address has the alignment that the instruction requires.
#[inline]
pub(crate) fn check_alignment(op: &Op, address: u64) -> Step {
    if op.alignment > 1 && !address.is_multiple_of(u64::from(op.alignment)) {
        let (bytes, alignment) = (usize::from(op.memory_bytes), usize::from(op.alignment));
        return Err(Box::new(FaultKind::Misaligned { address, bytes, alignment }));
    }
    Ok(())
}

/// Returns the memory operand as a vector. Masked elements are not read, unless the operand is read
/// as a whole.
#[inline]
pub(crate) fn memory_source(m: &Machine, op: &Op) -> Result<Vector, Trap> {
    let address = m.address(op);
    check_alignment(op, address)?;
    let mut v = Vector::ZERO;
    let bytes = usize::from(op.memory_bytes);
    if op.broadcast {
        if op.mask != 0 && !op.whole && active(m, op) == 0 {
            return Ok(v);
        }
        let end = usize::from(op.source_bytes);
        match op.memory_element {
            2 => v.0[..end].as_chunks_mut::<2>().0.fill(m.memory.load(address)?),
            4 => v.0[..end].as_chunks_mut::<4>().0.fill(m.memory.load(address)?),
            _ => v.0[..end].as_chunks_mut::<8>().0.fill(m.memory.load(address)?),
        }
        return Ok(v);
    }
    if op.mask != 0 && !op.whole && !m.memory.contains(address, bytes) {
        return masked_source(m, op, address);
    }
    match bytes {
        64 => v.0 = m.memory.load(address)?,
        32 => v.0.as_chunks_mut::<32>().0[0] = m.memory.load(address)?,
        16 => v.0.as_chunks_mut::<16>().0[0] = m.memory.load(address)?,
        _ => m.memory.read(address, &mut v.0[..bytes])?,
    }
    Ok(v)
}

/// Reads memory element by element, so that masked elements cannot fault.
#[cold]
fn masked_source(m: &Machine, op: &Op, address: u64) -> Result<Vector, Trap> {
    let mut v = Vector::ZERO;
    let (bytes, element) = (usize::from(op.memory_bytes), usize::from(op.memory_element));
    let active = active(m, op);
    if bytes / element < usize::from(op.count) {
        // The instruction uses elements in memory several times, so all of them are read unless all
        // result elements are masked.
        if active != 0 {
            m.memory.read(address, &mut v.0[..bytes])?;
        }
        return Ok(v);
    }
    for i in (0..usize::from(op.count)).filter(|i| active >> i & 1 == 1) {
        m.memory.read(address.wrapping_add((i * element) as u64), &mut v.0[i * element..][..element])?;
    }
    Ok(v)
}

#[inline(always)]
fn second<const MEMORY: bool>(m: &Machine, op: &Op) -> Result<Vector, Trap> {
    if MEMORY { memory_source(m, op) } else { Ok(m.state.vector[usize::from(op.b)]) }
}

/// Applies the mask to a result, and writes it to the destination. The upper bytes of `r` are zero;
/// legacy instructions keep those of the destination.
#[inline(always)]
pub(crate) fn finish<const MASKED: bool>(m: &mut Machine, op: &Op, mut r: Vector) {
    let destination = &mut m.state.vector[usize::from(op.destination)];
    if MASKED {
        let old = if op.zeroing { &Vector::ZERO } else { &*destination };
        lanes::select(&mut r, old, m.state.mask[usize::from(op.mask)], op);
    }
    if op.legacy {
        r.0[16..].copy_from_slice(&destination.0[16..]);
    }
    *destination = r;
}

fn run_lanes<const MEMORY: bool, const MASKED: bool>(m: &mut Machine, op: &Op) -> Step {
    let b = second::<MEMORY>(m, op)?;
    let mut r = Vector::ZERO;
    (op.lanes)(&mut r, &m.state.vector[usize::from(op.a)], &b, op);
    finish::<MASKED>(m, op, r);
    Ok(())
}

/// Returns the first `bytes` bytes of a vector, with zeros after them.
#[inline(always)]
fn low(v: &Vector, bytes: u8) -> Vector {
    let mut r = Vector::ZERO;
    match bytes {
        64 => r = *v,
        32 => r.0[..32].copy_from_slice(&v.0[..32]),
        _ => r.0[..16].copy_from_slice(&v.0[..16]),
    }
    r
}

fn run_accumulate<const MEMORY: bool, const MASKED: bool>(m: &mut Machine, op: &Op) -> Step {
    let b = second::<MEMORY>(m, op)?;
    let mut r = low(&m.state.vector[usize::from(op.c)], op.bytes);
    (op.lanes)(&mut r, &m.state.vector[usize::from(op.a)], &b, op);
    finish::<MASKED>(m, op, r);
    Ok(())
}

fn run_scalar<const MEMORY: bool, const MASKED: bool>(m: &mut Machine, op: &Op) -> Step {
    let b = second::<MEMORY>(m, op)?;
    let a = m.state.vector[usize::from(op.a)];
    // `c` is the destination if the lane function uses its old value, and `a` otherwise.
    let mut computed = low(&m.state.vector[usize::from(op.c)], 16);
    (op.lanes)(&mut computed, &a, &b, op);
    let element = usize::from(op.element);
    let mut r = low(&m.state.vector[usize::from(op.c)], 16);
    r.0[..element].copy_from_slice(&computed.0[..element]);
    finish::<MASKED>(m, op, r);
    Ok(())
}

fn run_mask<const MEMORY: bool, const MASKED: bool>(m: &mut Machine, op: &Op) -> Step {
    let b = second::<MEMORY>(m, op)?;
    let bits = (op.compare)(&m.state.vector[usize::from(op.a)], &b, op);
    m.state.mask[usize::from(op.destination)] = if MASKED { bits & active(m, op) } else { bits };
    Ok(())
}

fn run_blend<const MEMORY: bool>(m: &mut Machine, op: &Op) -> Step {
    let mut r = low(&second::<MEMORY>(m, op)?, op.bytes);
    if op.mask != 0 {
        let other = if op.zeroing { Vector::ZERO } else { m.state.vector[usize::from(op.a)] };
        lanes::select(&mut r, &other, m.state.mask[usize::from(op.mask)], op);
    }
    m.state.vector[usize::from(op.destination)] = r;
    Ok(())
}

/// Writes the result to memory. A masked result is written element by element.
pub(crate) fn store_masked(m: &mut Machine, op: &Op, r: &Vector) -> Step {
    let address = m.address(op);
    check_alignment(op, address)?;
    let bytes = usize::from(op.memory_bytes);
    if op.mask == 0 {
        return match bytes {
            64 => m.memory.store(address, r.0),
            32 => m.memory.store(address, r.0.as_chunks::<32>().0[0]),
            16 => m.memory.store(address, r.0.as_chunks::<16>().0[0]),
            _ => m.memory.write(address, &r.0[..bytes]),
        };
    }
    if op.whole {
        m.memory.check_store(address, bytes)?;
    }
    let element = usize::from(op.element);
    let active = active(m, op);
    for i in (0..usize::from(op.count)).filter(|i| active >> i & 1 == 1) {
        m.memory.write(address.wrapping_add((i * element) as u64), &r.0[i * element..][..element])?;
    }
    Ok(())
}

fn run_store(m: &mut Machine, op: &Op) -> Step {
    let b = m.state.vector[usize::from(op.b)];
    let mut r = Vector::ZERO;
    (op.lanes)(&mut r, &b, &b, op);
    store_masked(m, op, &r)
}

macro_rules! by_source {
    ($op:expr, $memory:expr, $f:ident) => {
        match ($memory, $op.mask != 0) {
            (false, false) => $f::<false, false> as Run,
            (false, true) => $f::<false, true>,
            (true, false) => $f::<true, false>,
            (true, true) => $f::<true, true>,
        }
    };
}

/// Returns the number of bytes that a broadcast fills. If the result is shorter than the source,
/// this number is only in the name of the memory operand's size.
fn broadcast_bytes(i: &Instruction) -> u8 {
    let name = format!("{:?}", i.memory_size());
    let digits: String = name.trim_start_matches("Broadcast").chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u16>().map_or(0, |bits| (bits / 8) as u8)
}

/// Whether an instruction's mask selects between its sources.
pub(crate) fn is_blend(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Vpblendmb | M::Vpblendmw | M::Vpblendmd | M::Vpblendmq | M::Vblendmps | M::Vblendmpd)
}

/// Sets the operands of an instruction that has this table row.
pub(crate) fn operands(i: &Instruction, op: &mut Op, row: &Row) -> Option<Run> {
    let count = (0..i.op_count()).filter(|n| matches!(i.op_kind(*n), OpKind::Register | OpKind::Memory)).count() as u32;
    let register = |n: u32| (i.op_kind(n) == OpKind::Register).then(|| i.op_register(n).number() as u8);
    op.whole = row.whole;
    op.element = row.element;
    let to_memory = i.op0_kind() == OpKind::Memory;
    if !to_memory {
        op.destination = register(0)?;
    }
    // Index of the last source operand, which may be in memory.
    let last = match count {
        1 => 0,
        2 => 1,
        3 | 4 => 2,
        _ => return None,
    };
    op.a = if count <= 2 { op.destination } else { register(1)? };
    let memory = i.op_kind(last) == OpKind::Memory;
    let mut c = op.destination;
    if count == 4 {
        // Four-operand instructions that have their last two operands exchanged are not supported.
        c = register(3)?;
    }
    let vector_bytes = |n: u32| {
        let r = i.op_register(n);
        (i.op_kind(n) == OpKind::Register && r.is_vector_register()).then(|| r.size() as u8)
    };
    if !memory {
        op.b = register(last)?;
        vector_bytes(last)?;
    }
    op.source_bytes = match vector_bytes(last) {
        Some(bytes) => bytes,
        None if op.broadcast => broadcast_bytes(i),
        None => op.memory_bytes,
    };
    let scalar = matches!(row.shape, Shape::Scalar(_) | Shape::ScalarAccumulate(_) | Shape::ScalarMask(_));
    op.bytes = match vector_bytes(0) {
        Some(bytes) => bytes,
        None if to_memory => op.memory_bytes,
        None => vector_bytes(1)?,
    };
    op.count = if scalar {
        1
    } else if count <= 2 || to_memory {
        // If the source may have any number of elements, it does not limit the number of elements.
        let limit = op.source_bytes.checked_div(row.source).unwrap_or(u8::MAX);
        (op.bytes / row.element).min(limit)
    } else {
        op.bytes / row.element
    };
    // With embedded rounding, a packed instruction has the full vector length, and its registers
    // show this length already.
    Some(match row.shape {
        Shape::Lanes(lanes) => {
            op.lanes = lanes;
            if to_memory {
                return Some(run_store);
            }
            by_source!(op, memory, run_lanes)
        }
        Shape::Accumulate(lanes) => {
            (op.lanes, op.c) = (lanes, c);
            by_source!(op, memory, run_accumulate)
        }
        Shape::Scalar(lanes) => {
            (op.lanes, op.c) = (lanes, op.a);
            by_source!(op, memory, run_scalar)
        }
        Shape::ScalarAccumulate(lanes) => {
            (op.lanes, op.c) = (lanes, op.destination);
            by_source!(op, memory, run_scalar)
        }
        Shape::Mask(compare) | Shape::ScalarMask(compare) => {
            op.compare = compare;
            by_source!(op, memory, run_mask)
        }
        Shape::Blend if memory => run_blend::<true>,
        Shape::Blend => run_blend::<false>,
    })
}
