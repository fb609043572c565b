//! Moves of vectors: whole, masked, scalar, gathered, scattered and compressed.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::amx;
use crate::fault::Trap;
use crate::lanes::Lane;
use crate::op::{LaneFn, Machine, Op, Run};
use crate::state::Vector;
use crate::vector::{self, Row, Shape};

type Step = Result<(), Trap>;

fn copy(r: &mut Vector, _: &Vector, b: &Vector, op: &Op) {
    match op.bytes {
        64 => *r = *b,
        32 => r.0[..32].copy_from_slice(&b.0[..32]),
        16 => r.0[..16].copy_from_slice(&b.0[..16]),
        bytes => r.0[..usize::from(bytes)].copy_from_slice(&b.0[..usize::from(bytes)]),
    }
}

/// Loads a whole vector without a mask.
fn load<const BYTES: usize>(m: &mut Machine, op: &Op) -> Step {
    let address = m.address(op);
    vector::check_alignment(op, address)?;
    let mut r = Vector::ZERO;
    r.0.as_chunks_mut::<BYTES>().0[0] = m.memory.load(address)?;
    m.state.vector[usize::from(op.destination)] = r;
    Ok(())
}

/// Stores a whole vector without a mask.
fn store<const BYTES: usize>(m: &mut Machine, op: &Op) -> Step {
    let address = m.address(op);
    vector::check_alignment(op, address)?;
    m.memory.store(address, m.state.vector[usize::from(op.b)].0.as_chunks::<BYTES>().0[0])
}

/// Copies a whole vector without a mask.
fn between<const BYTES: usize>(m: &mut Machine, op: &Op) -> Step {
    let mut r = Vector::ZERO;
    r.0.as_chunks_mut::<BYTES>().0[0] = m.state.vector[usize::from(op.b)].0.as_chunks::<BYTES>().0[0];
    m.state.vector[usize::from(op.destination)] = r;
    Ok(())
}

fn vzeroupper(m: &mut Machine, _: &Op) -> Step {
    for v in &mut m.state.vector[..16] {
        v.0[16..].fill(0);
    }
    m.state.dirty_upper = false;
    Ok(())
}

fn vzeroall(m: &mut Machine, _: &Op) -> Step {
    m.state.vector[..16].fill(Vector::ZERO);
    m.state.dirty_upper = false;
    Ok(())
}

/// Loads half `c` of the low 128 bits from memory, and takes the other half from `a`.
fn load_half(m: &mut Machine, op: &Op) -> Step {
    let mut r = Vector::ZERO;
    r.0[..16].copy_from_slice(&m.state.vector[usize::from(op.a)].0[..16]);
    let at = 8 * usize::from(op.c);
    m.memory.read(m.address(op), &mut r.0[at..at + 8])?;
    vector::finish::<false>(m, op, r);
    Ok(())
}

fn store_half(m: &mut Machine, op: &Op) -> Step {
    let x = u64::get(&m.state.vector[usize::from(op.b)], usize::from(op.c));
    let address = m.address(op);
    m.memory.store(address, x.to_le_bytes())
}

/// Executes `vmaskmovps` and similar loads. An element is read if the sign bit of its mask element
/// is set.
fn load_by_sign(m: &mut Machine, op: &Op) -> Step {
    let (address, size) = (m.address(op), usize::from(op.element));
    let mask = m.state.vector[usize::from(op.a)];
    let mut r = Vector::ZERO;
    for i in (0..usize::from(op.count)).filter(|i| mask.0[(i + 1) * size - 1] & 0x80 != 0) {
        m.memory.read(address.wrapping_add((i * size) as u64), &mut r.0[i * size..][..size])?;
    }
    m.state.vector[usize::from(op.destination)] = r;
    Ok(())
}

fn store_by_sign(m: &mut Machine, op: &Op) -> Step {
    let (address, size) = (m.address(op), usize::from(op.element));
    let mask = m.state.vector[usize::from(op.a)];
    let x = m.state.vector[usize::from(op.b)];
    for i in (0..usize::from(op.count)).filter(|i| mask.0[(i + 1) * size - 1] & 0x80 != 0) {
        m.memory.write(address.wrapping_add((i * size) as u64), &x.0[i * size..][..size])?;
    }
    Ok(())
}

/// Returns the address of element `i` of a gather or scatter. `op.size` is the number of bytes of
/// an index.
fn element_address(m: &Machine, op: &Op, i: usize) -> u64 {
    let indexes = &m.state.vector[usize::from(op.address.index)];
    let index = if op.size == 4 { i64::from(i32::get(indexes, i)) } else { i64::get(indexes, i) };
    let base = m.state.gpr[usize::from(op.address.base)].wrapping_add(op.address.displacement);
    base.wrapping_add((index << op.address.scale).cast_unsigned())
}

fn gather(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.element);
    let by_sign = op.mask == 0;
    let mask = m.state.vector[usize::from(op.a)];
    let bits = m.state.mask[usize::from(op.mask)];
    let old = m.state.vector[usize::from(op.destination)];
    let mut r = Vector::ZERO;
    for i in 0..usize::from(op.count) {
        let active = if by_sign { mask.0[(i + 1) * size - 1] & 0x80 != 0 } else { bits >> i & 1 == 1 };
        let element = &mut r.0[i * size..][..size];
        if active {
            m.memory.read(element_address(m, op, i), element)?;
        } else {
            element.copy_from_slice(&old.0[i * size..][..size]);
        }
    }
    m.state.vector[usize::from(op.destination)] = r;
    // A gather clears its mask when it is complete.
    if by_sign {
        m.state.vector[usize::from(op.a)] = Vector::ZERO;
    } else {
        m.state.mask[usize::from(op.mask)] = 0;
    }
    Ok(())
}

fn scatter(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.element);
    let bits = m.state.mask[usize::from(op.mask)];
    let x = m.state.vector[usize::from(op.b)];
    for i in (0..usize::from(op.count)).filter(|i| bits >> i & 1 == 1) {
        let address = element_address(m, op, i);
        m.memory.write(address, &x.0[i * size..][..size])?;
    }
    m.state.mask[usize::from(op.mask)] = 0;
    Ok(())
}

fn mask_or_all(m: &Machine, op: &Op) -> u64 {
    let all = u64::MAX >> (64 - u32::from(op.count));
    if op.mask == 0 { all } else { m.state.mask[usize::from(op.mask)] & all }
}

/// Moves the elements whose mask bit is set to the lowest positions. Returns these elements and
/// their total number of bytes.
fn compress_lanes(m: &Machine, op: &Op) -> (Vector, usize) {
    let (size, x) = (usize::from(op.element), &m.state.vector[usize::from(op.b)]);
    let (bits, mut r, mut to) = (mask_or_all(m, op), Vector::ZERO, 0);
    for i in (0..usize::from(op.count)).filter(|i| bits >> i & 1 == 1) {
        r.0[to..to + size].copy_from_slice(&x.0[i * size..][..size]);
        to += size;
    }
    (r, to)
}

fn compress(m: &mut Machine, op: &Op) -> Step {
    let (mut r, bytes) = compress_lanes(m, op);
    let end = usize::from(op.bytes);
    if op.mask != 0 && !op.zeroing {
        r.0[bytes..end].copy_from_slice(&m.state.vector[usize::from(op.destination)].0[bytes..end]);
    }
    m.state.vector[usize::from(op.destination)] = r;
    Ok(())
}

fn compress_to_memory(m: &mut Machine, op: &Op) -> Step {
    let (r, bytes) = compress_lanes(m, op);
    let address = m.address(op);
    if bytes == 0 { Ok(()) } else { m.memory.write(address, &r.0[..bytes]) }
}

fn expand<const MEMORY: bool>(m: &mut Machine, op: &Op) -> Step {
    let (size, bits) = (usize::from(op.element), mask_or_all(m, op));
    let mut x = Vector::ZERO;
    if MEMORY {
        let bytes = size * bits.count_ones() as usize;
        if bytes > 0 {
            m.memory.read(m.address(op), &mut x.0[..bytes])?;
        }
    } else {
        x = m.state.vector[usize::from(op.b)];
    }
    let old = m.state.vector[usize::from(op.destination)];
    let (mut r, mut from) = (Vector::ZERO, 0);
    for i in 0..usize::from(op.count) {
        let element = &mut r.0[i * size..][..size];
        if bits >> i & 1 == 1 {
            element.copy_from_slice(&x.0[from..from + size]);
            from += size;
        } else if !op.zeroing {
            element.copy_from_slice(&old.0[i * size..][..size]);
        }
    }
    m.state.vector[usize::from(op.destination)] = r;
    Ok(())
}

fn tile(m: &mut Machine, op: &Op) -> Step {
    let Some(tile) = &op.tile else { return Ok(()) };
    let base = m.state.gpr[usize::from(op.address.base)].wrapping_add(op.address.displacement);
    let stride = m.state.gpr[usize::from(op.address.index)] << op.address.scale;
    // `ldtilecfg` and `sttilecfg` have an ordinary address. The other tile instructions have the
    // address of a row, and a stride.
    let address = if op.c == 1 { base.wrapping_add(stride) } else { base };
    amx::execute(tile, &mut m.state.tiles, &mut m.memory, address, stride)
}

/// Returns the number of bytes of an element that a move has, or `None` for other instructions.
fn element(mnemonic: Mnemonic) -> Option<u8> {
    use Mnemonic as M;
    Some(match mnemonic {
        M::Vmovdqu8 => 1,
        M::Vmovdqu16 => 2,
        M::Vmovaps
        | M::Vmovups
        | M::Vmovdqa
        | M::Vmovdqu
        | M::Vmovdqa32
        | M::Vmovdqu32
        | M::Vlddqu
        | M::Vmovntdq
        | M::Vmovntps
        | M::Vmovntdqa
        | M::Movaps
        | M::Movups
        | M::Movdqa
        | M::Movdqu
        | M::Lddqu
        | M::Movntdq
        | M::Movntps => 4,
        M::Vmovapd | M::Vmovupd | M::Vmovdqa64 | M::Vmovdqu64 | M::Vmovntpd | M::Movapd | M::Movupd | M::Movntpd => 8,
        _ => return None,
    })
}

/// Decodes scalar moves. A move between registers writes the lowest element; a move from or to
/// memory accesses only that element.
fn scalar(i: &Instruction, op: &mut Op) -> Option<Run> {
    let size = match i.mnemonic() {
        Mnemonic::Vmovss | Mnemonic::Movss => 4,
        Mnemonic::Vmovsd | Mnemonic::Movsd => 8,
        Mnemonic::Vmovsh => 2,
        _ => return None,
    };
    // Another instruction named `movsd` exists, which moves strings.
    let memory = |n: u32| i.op_kind(n) == OpKind::Memory;
    if !(0..i.op_count()).all(|n| memory(n) || i.op_register(n).is_vector_register()) {
        return None;
    }
    let low: LaneFn = |r, _, b, op| {
        let size = usize::from(op.element);
        r.0[..size].copy_from_slice(&b.0[..size]);
    };
    let shape = if memory(0) || memory(1) { Shape::Lanes(low) } else { Shape::Scalar(low) };
    vector::operands(i, op, &Row::new(shape, size))
}

fn halves(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    op.c = match i.mnemonic() {
        M::Vmovlps | M::Vmovlpd | M::Movlps | M::Movlpd => 0,
        M::Vmovhps | M::Vmovhpd | M::Movhps | M::Movhpd => 1,
        _ => return None,
    };
    if i.op0_kind() == OpKind::Memory {
        op.b = i.op1_register().number() as u8;
        return Some(store_half);
    }
    op.destination = i.op0_register().number() as u8;
    op.a = if i.op_count() == 3 { i.op1_register().number() as u8 } else { op.destination };
    Some(load_half)
}

fn by_sign(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    op.element = match i.mnemonic() {
        M::Vmaskmovps | M::Vpmaskmovd => 4,
        M::Vmaskmovpd | M::Vpmaskmovq => 8,
        _ => return None,
    };
    op.a = i.op1_register().number() as u8;
    op.bytes = i.op1_register().size() as u8;
    op.count = op.bytes / op.element;
    if i.op0_kind() == OpKind::Memory {
        op.b = i.op2_register().number() as u8;
        return Some(store_by_sign);
    }
    op.destination = i.op0_register().number() as u8;
    Some(load_by_sign)
}

fn indexed_move(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    let (scatters, index, element) = match i.mnemonic() {
        M::Vpgatherdd | M::Vgatherdps => (false, 4, 4),
        M::Vpgatherdq | M::Vgatherdpd => (false, 4, 8),
        M::Vpgatherqd | M::Vgatherqps => (false, 8, 4),
        M::Vpgatherqq | M::Vgatherqpd => (false, 8, 8),
        M::Vpscatterdd | M::Vscatterdps => (true, 4, 4),
        M::Vpscatterdq | M::Vscatterdpd => (true, 4, 8),
        M::Vpscatterqd | M::Vscatterqps => (true, 8, 4),
        M::Vpscatterqq | M::Vscatterqpd => (true, 8, 8),
        _ => return None,
    };
    (op.size, op.element) = (index, element);
    let data = if scatters { i.op1_register() } else { i.op0_register() };
    op.bytes = data.size() as u8;
    op.count = (op.bytes / element).min(i.memory_index().size() as u8 / index);
    if scatters {
        op.b = data.number() as u8;
        return Some(scatter);
    }
    op.destination = data.number() as u8;
    if i.op_count() == 3 {
        op.a = i.op2_register().number() as u8;
    }
    Some(gather)
}

fn packed_move(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    let (expands, element) = match i.mnemonic() {
        M::Vcompressps | M::Vpcompressd => (false, 4),
        M::Vcompresspd | M::Vpcompressq => (false, 8),
        M::Vexpandps | M::Vpexpandd => (true, 4),
        M::Vexpandpd | M::Vpexpandq => (true, 8),
        _ => return None,
    };
    op.element = element;
    let register = |n: u32| if i.op_kind(n) == OpKind::Register { i.op_register(n) } else { Register::None };
    let (to, from) = (register(0), register(1));
    op.bytes = if to == Register::None { from } else { to }.size() as u8;
    op.count = op.bytes / element;
    op.destination = to.number() as u8;
    op.b = from.number() as u8;
    Some(match (expands, to == Register::None, from == Register::None) {
        (false, true, _) => compress_to_memory,
        (false, ..) => compress,
        (true, _, true) => expand::<true>,
        (true, ..) => expand::<false>,
    })
}

/// Decodes a move or a tile instruction. Returns `None` for other instructions.
pub(crate) fn decode(i: &Instruction, op: &mut Op) -> Option<Run> {
    match i.mnemonic() {
        Mnemonic::Vzeroupper => return Some(vzeroupper),
        Mnemonic::Vzeroall => return Some(vzeroall),
        _ => {}
    }
    if let Some(element) = element(i.mnemonic()) {
        let run = vector::operands(i, op, &Row::new(Shape::Lanes(copy), element))?;
        if op.mask != 0 || op.legacy {
            return Some(run);
        }
        return Some(match (i.op0_kind() == OpKind::Memory, i.op1_kind() == OpKind::Memory, op.bytes) {
            (true, _, 16) => store::<16>,
            (true, _, 32) => store::<32>,
            (true, ..) => store::<64>,
            (_, true, 16) => load::<16>,
            (_, true, 32) => load::<32>,
            (_, true, _) => load::<64>,
            (_, _, 16) => between::<16>,
            (_, _, 32) => between::<32>,
            _ => between::<64>,
        });
    }
    if let Some(decoded) = amx::decode(i) {
        op.tile = Some(decoded);
        op.c = u8::from(matches!(i.mnemonic(), Mnemonic::Ldtilecfg | Mnemonic::Sttilecfg));
        return Some(tile);
    }
    scalar(i, op)
        .or_else(|| halves(i, op))
        .or_else(|| by_sign(i, op))
        .or_else(|| indexed_move(i, op))
        .or_else(|| packed_move(i, op))
        .or_else(|| crate::cross::decode(i, op))
}
