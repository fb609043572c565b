//! Decoded instructions, and the machine that executes them.

use iced_x86::{Instruction, OpKind, Register};

use crate::amx::TileOp;
use crate::fault::{FaultKind, Trap};
use crate::memory::Memory;
use crate::soft::Rounding;
use crate::state::{ALWAYS_ZERO, State, Vector};

/// Function that executes a decoded instruction.
pub(crate) type Run = fn(&mut Machine, &Op) -> Result<(), Trap>;
/// Lane function of a vector instruction. It computes `result`, which is zero or the accumulator on
/// entry, from the sources.
pub(crate) type LaneFn = fn(result: &mut Vector, a: &Vector, b: &Vector, op: &Op);
/// Lane function of a vector instruction whose result is a mask.
pub(crate) type MaskFn = fn(a: &Vector, b: &Vector, op: &Op) -> u64;

/// Registers and memory of a call.
pub(crate) struct Machine<'a> {
    pub state: State,
    pub memory: Memory<'a>,
    /// Index of the next instruction.
    pub next: usize,
    /// Whether `ret` was executed.
    pub returned: bool,
}

/// A memory operand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Address {
    pub base: u8,
    pub index: u8,
    /// Scale of the index register, as a number of bits to shift.
    pub scale: u8,
    /// Displacement. If the address is relative to `rip`, this is the whole address.
    pub displacement: u64,
}

/// A decoded instruction.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub run: Run,
    /// Set of registers that must be defined. Bits 0 to 15 are general registers, 16 to 47 vectors,
    /// 48 to 55 masks, and 56 to 63 tiles.
    pub reads: u64,
    /// Set of registers that become defined, with the same bits as `reads`.
    pub writes: u64,
    /// Set of registers that become undefined, with the same bits as `reads`.
    pub lost: u64,
    /// Set of flags that must be defined, in the decoder's numbering.
    pub flags_read: u8,
    /// Set of flags that become defined.
    pub flags_written: u8,
    /// Set of flags that become undefined.
    pub flags_lost: u8,
    /// Whether the instruction writes more than the low half of one of the first 16 vector
    /// registers.
    pub dirties: bool,

    pub destination: u8,
    pub a: u8,
    pub b: u8,
    /// Number of the register that is a fourth operand or the accumulator.
    pub c: u8,
    pub address: Address,
    pub immediate: u64,
    /// Number of bytes of the memory operand.
    pub memory_bytes: u8,
    /// Alignment in bytes that the memory operand must have.
    pub alignment: u8,
    /// Number of bytes of the operands of an integer instruction.
    pub size: u8,

    pub lanes: LaneFn,
    pub compare: MaskFn,
    /// Number of bytes of the result.
    pub bytes: u8,
    /// Number of elements of the result.
    pub count: u8,
    /// Number of bytes of the vector that a broadcast memory operand fills.
    pub source_bytes: u8,
    /// Number of bytes of an element of the result. Each element has one mask bit.
    pub element: u8,
    /// Number of bytes of an element in memory.
    pub memory_element: u8,
    /// Number of the mask register, or 0 for no mask.
    pub mask: u8,
    pub zeroing: bool,
    pub broadcast: bool,
    /// Whether the memory operand is read as a whole, including masked elements.
    pub whole: bool,
    /// Whether the instruction keeps the destination's upper bytes.
    pub legacy: bool,
    pub rounding: Rounding,
    pub tile: Option<TileOp>,

    /// Index of the instruction that a jump goes to.
    pub target: u32,
    /// Offset of the instruction in the code.
    pub offset: u32,
}

fn no_lanes(_: &mut Vector, _: &Vector, _: &Vector, _: &Op) {}

fn no_mask(_: &Vector, _: &Vector, _: &Op) -> u64 {
    0
}

fn no_run(_: &mut Machine, _: &Op) -> Result<(), Trap> {
    Err(Box::new(FaultKind::End))
}

impl Op {
    /// Returns an op with the properties that all instructions have. The caller must set the
    /// function.
    pub fn new(i: &Instruction) -> Option<Op> {
        let mut op = Op {
            run: no_run,
            reads: 0,
            writes: 0,
            lost: 0,
            flags_read: 0,
            flags_written: 0,
            flags_lost: 0,
            dirties: false,
            destination: 0,
            a: 0,
            b: 0,
            c: 0,
            address: Address::default(),
            immediate: 0,
            memory_bytes: 0,
            alignment: 0,
            size: 0,
            lanes: no_lanes,
            compare: no_mask,
            bytes: 0,
            count: 0,
            source_bytes: 0,
            element: 0,
            memory_element: i.memory_size().info().element_size() as u8,
            mask: 0,
            zeroing: i.zeroing_masking(),
            broadcast: i.is_broadcast(),
            whole: false,
            legacy: false,
            rounding: Rounding::Nearest,
            tile: None,
            target: 0,
            offset: i.ip() as u32,
        };
        if i.has_op_mask() {
            op.mask = i.op_mask().number() as u8;
        }
        op.rounding = match i.rounding_control() {
            iced_x86::RoundingControl::None | iced_x86::RoundingControl::RoundToNearest => Rounding::Nearest,
            iced_x86::RoundingControl::RoundDown => Rounding::Down,
            iced_x86::RoundingControl::RoundUp => Rounding::Up,
            iced_x86::RoundingControl::RoundTowardZero => Rounding::Zero,
        };
        for n in 0..i.op_count() {
            match i.op_kind(n) {
                OpKind::Memory => {
                    op.address = address(i)?;
                    op.memory_bytes = i.memory_size().info().size() as u8;
                }
                OpKind::Immediate8
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64 => op.immediate = i.immediate(n),
                _ => {}
            }
        }
        Some(op)
    }

    /// Returns the immediate of a vector instruction.
    #[inline]
    pub fn imm8(&self) -> u8 {
        self.immediate as u8
    }
}

/// Returns the memory operand. Returns `None` unless it has a 64-bit address without a segment.
fn address(i: &Instruction) -> Option<Address> {
    if i.segment_prefix() != Register::None {
        return None;
    }
    let number = |r: Register| match r {
        Register::None | Register::RIP => Some(ALWAYS_ZERO as u8),
        r if r.is_gpr64() || r.is_vector_register() => Some(r.number() as u8),
        _ => None,
    };
    Some(Address {
        base: number(i.memory_base())?,
        index: number(i.memory_index())?,
        scale: i.memory_index_scale().trailing_zeros() as u8,
        displacement: i.memory_displacement64(),
    })
}

impl Machine<'_> {
    /// Returns the address of the memory operand.
    #[inline]
    pub fn address(&self, op: &Op) -> u64 {
        let a = &op.address;
        let index = self.state.gpr[usize::from(a.index)] << a.scale;
        a.displacement.wrapping_add(self.state.gpr[usize::from(a.base)]).wrapping_add(index)
    }
}
