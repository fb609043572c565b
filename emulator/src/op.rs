//! A decoded instruction, and the machine that executes it.

use iced_x86::{Instruction, OpKind, Register};

use crate::amx::TileOp;
use crate::fault::{FaultKind, Trap};
use crate::memory::Memory;
use crate::soft::Rounding;
use crate::state::{ALWAYS_ZERO, State, Vector};

/// The function that executes an instruction.
pub(crate) type Run = fn(&mut Machine, &Op) -> Result<(), Trap>;
/// The function of a vector instruction: computes `result` (zero, or the accumulator) from its
/// sources.
pub(crate) type LaneFn = fn(result: &mut Vector, a: &Vector, b: &Vector, op: &Op);
/// The function of a vector instruction with a mask as result.
pub(crate) type MaskFn = fn(a: &Vector, b: &Vector, op: &Op) -> u64;

/// The registers and memory of a call.
pub(crate) struct Machine<'a> {
    pub state: State,
    pub memory: Memory<'a>,
    /// Number of the next instruction.
    pub next: usize,
    /// Whether `ret` was executed.
    pub returned: bool,
}

/// A memory operand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Address {
    pub base: u8,
    pub index: u8,
    /// Scale of the index, as a shift.
    pub scale: u8,
    /// Displacement; the whole address if it is relative to `rip`.
    pub displacement: u64,
}

/// A decoded instruction.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub run: Run,
    /// Registers that must be defined. Bits 0 to 15 are general registers, 16 to 47 vectors, 48 to
    /// 55 masks, and the rest tiles.
    pub reads: u64,
    /// Registers that become defined, with the bits of `reads`.
    pub writes: u64,
    /// Registers that become undefined, with the bits of `reads`.
    pub lost: u64,
    /// Flags that must be defined, in the decoder's numbering.
    pub flags_read: u8,
    /// Flags that become defined.
    pub flags_written: u8,
    /// Flags that become undefined.
    pub flags_lost: u8,
    /// Whether the op writes more than the low half of one of the first 16 vectors.
    pub dirties: bool,

    pub destination: u8,
    pub a: u8,
    pub b: u8,
    /// Register of a fourth operand, or of the accumulator.
    pub c: u8,
    pub address: Address,
    pub immediate: u64,
    /// Bytes of the memory operand.
    pub memory_bytes: u8,
    /// Required alignment of the memory operand.
    pub alignment: u8,
    /// Bytes of the operands of an integer instruction.
    pub size: u8,

    pub lanes: LaneFn,
    pub compare: MaskFn,
    /// Bytes of the result.
    pub bytes: u8,
    /// Elements of the result.
    pub count: u8,
    /// Bytes of the vector that a broadcast memory operand fills.
    pub source_bytes: u8,
    /// Bytes of an element of the result; each has one mask bit.
    pub element: u8,
    /// Bytes of an element in memory.
    pub memory_element: u8,
    /// Number of the mask register; 0 for none.
    pub mask: u8,
    pub zeroing: bool,
    pub broadcast: bool,
    /// Whether memory is read as a whole, including masked elements.
    pub whole: bool,
    /// Whether the destination's upper bytes are unchanged.
    pub legacy: bool,
    pub rounding: Rounding,
    pub tile: Option<TileOp>,

    /// Number of the target instruction of a jump.
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
    /// Makes an op with the properties that all instructions have. The caller sets the function.
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

/// Returns the memory operand, if its kind is emulated: 64-bit addresses without segments.
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
