//! Machine IR: x86 instructions over virtual registers, in blocks with explicit successors.
//!
//! Machine IR makes no assumption beyond encodings: an instruction is an [`iced_x86::Code`] with
//! operands, or one of four pseudo instructions. Pseudo instructions get their form after
//! allocation ([`Opcode::Fma`], [`Opcode::Ternary`], [`Opcode::Constant`], [`Opcode::Copy`]).
//!
//! AVX instructions have a separate destination, so virtual registers are assigned once. Registers
//! of loop-carried values are exceptions: they are written before the loop and at its back edge.
//! [`super::allocate`] leaves the same function and adds a physical register for every virtual
//! register.
//!
//! ```text
//! b1:                                   ; depth 1, successors b1 b2
//!   vmovups v7(ymm), [g2 + 32]
//!   fma     v4(ymm), v7, v3, v4         ; becomes vfmadd231ps, as v4 dies here and lives on
//!   add     g2, 64
//!   dec     g3
//!   jne     b1
//! ```

use std::collections::{HashMap, HashSet};

use iced_x86::Code;

use ixc_targets::Target;

/// A virtual register; its class is in [`Function::vregs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vreg(pub u32);

impl Vreg {
    /// Returns the position in [`Function::vregs`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Class of the values that a virtual register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A 64-bit integer: pointers, counters.
    Gpr,
    /// The low part of a vector register: 16 bytes (also for narrower values), 32 or 64.
    Vector {
        /// Size of that part in bytes: 16, 32 or 64.
        bytes: u32,
    },
    /// A tile register. All its values in a kernel have one shape. Tile registers are never copied
    /// or spilled.
    Tile {
        /// Number of rows of the tile.
        rows: u8,
        /// Bytes of a row of the tile.
        bytes: u8,
    },
    /// A mask register, with a bit per lane. It is used next to its definition, so it is never
    /// spilled.
    Mask,
}

/// A register file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// General registers.
    General,
    /// Vector registers; `xmm`, `ymm` and `zmm` name parts of them.
    Vector,
    /// Mask registers.
    Mask,
    /// Tile registers.
    Tile,
}

impl File {
    /// Number of register files, to size tables that are indexed by [`File`].
    pub const COUNT: usize = 4;
}

impl Class {
    /// Returns the register file.
    pub fn file(self) -> File {
        match self {
            Class::Gpr => File::General,
            Class::Vector { .. } => File::Vector,
            Class::Mask => File::Mask,
            Class::Tile { .. } => File::Tile,
        }
    }

    /// Whether both classes use the same register file.
    pub fn same_file(self, other: Class) -> bool {
        self.file() == other.file()
    }

    /// Returns the smallest class for a vector of `bytes` bytes.
    pub fn vector(bytes: u32) -> Class {
        Class::Vector { bytes: bytes.next_power_of_two().max(16) }
    }

    /// Returns the part of a register that a value of this class occupies.
    pub fn width(self) -> Width {
        match self {
            Class::Gpr => Width::R64,
            Class::Vector { bytes } => Width::from_bytes(bytes),
            Class::Mask => Width::K,
            Class::Tile { .. } => Width::T,
        }
    }
}

/// Part of a register that an operand names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 16-bit part of a general register; instructions only read it.
    R16,
    /// 32-bit part of a general register. A write of it clears the upper half.
    R32,
    /// 64-bit general register.
    R64,
    /// 128-bit vector register; writing it clears the upper half.
    X,
    /// 256-bit vector register.
    Y,
    /// 512-bit vector register.
    Z,
    /// Mask register.
    K,
    /// Tile register.
    T,
}

impl Width {
    /// Returns the part of a vector register that holds `bytes` bytes.
    pub fn from_bytes(bytes: u32) -> Width {
        match bytes {
            33.. => Width::Z,
            17..=32 => Width::Y,
            ..=16 => Width::X,
        }
    }
}

/// Access of an instruction to an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The instruction reads the operand.
    Use,
    /// The instruction writes the operand; the old value is lost.
    Def,
    /// The instruction reads the operand, and then writes it.
    Update,
}

/// Base address of a memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// A virtual register with a pointer.
    Reg(Vreg),
    /// A slot of the frame, for a spilled value or for a vector that is read element by element.
    Slot(u32),
    /// A constant of the pool.
    Pool(u32),
}

/// A memory operand: `base + index * scale + disp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mem {
    /// The base address.
    pub base: Base,
    /// Index register and its scale (1, 2, 4 or 8). `lea`, table lookups, and loads and stores of
    /// tiles use it; for tiles it is the stride.
    pub index: Option<(Vreg, u32)>,
    /// Displacement in bytes.
    pub disp: i32,
    /// Whether one 32-bit element is copied to every lane, written as `{1to16}`.
    pub broadcast: bool,
}

impl Mem {
    /// Returns `[base + disp]`.
    pub fn at(base: Vreg, disp: i32) -> Mem {
        Mem { base: Base::Reg(base), index: None, disp, broadcast: false }
    }

    /// Returns a slot of the frame.
    pub fn slot(slot: u32) -> Mem {
        Mem { base: Base::Slot(slot), index: None, disp: 0, broadcast: false }
    }

    /// Returns a constant of the pool.
    pub fn pool(id: u32) -> Mem {
        Mem { base: Base::Pool(id), index: None, disp: 0, broadcast: false }
    }
}

/// A register or memory operand (`r/m` of the encoding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rm {
    /// A register.
    Reg(Vreg),
    /// Memory at an address.
    Mem(Mem),
}

/// An operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// No operand.
    None,
    /// A register.
    Reg(Vreg, Width, Role),
    /// Memory at an address.
    Mem(Mem),
    /// An immediate.
    Imm(i64),
    /// A branch target.
    Block(BlockId),
}

/// A block of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Returns the position in [`Function::blocks`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Operation of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// An instruction with exactly this encoding.
    Code(Code),
    /// `op0 = op1 * op2 + op3`. The 132, 213 or 231 form is chosen after allocation. At most one
    /// source is memory.
    Fma {
        /// Whether the instruction computes one lane only (the `ss` form).
        scalar: bool,
    },
    /// `op0 = f(op1, op2, op3)` bit by bit; bit `4a + 2b + c` of the table is `f(a, b, c)`. At most
    /// one source is memory. Becomes `vpternlogd`, which overwrites one source, chosen after
    /// allocation.
    Ternary(u8),
    /// `op0 = constant of the pool`: a load, or an instruction that sets all bits to zero or one.
    Constant(u32),
    /// `op0 = op1` within one register file. It disappears if both operands get the same register.
    Copy,
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub struct Inst {
    /// The operation.
    pub opcode: Opcode,
    /// Operands in the order of the encoding; the list ends at [`Operand::None`].
    pub operands: [Operand; 5],
    /// Index of the operand that may be in memory instead of a register. A spilled value can then
    /// be used or defined in its slot.
    pub rm: Option<u8>,
    /// Mask of the lanes that the instruction computes, and whether the other lanes become zero. If
    /// they do not, the instruction defines them.
    pub mask: Option<(Vreg, bool)>,
    /// Number of the instruction's IR statement, in the order of the kernel's text.
    pub origin: u32,
}

impl Inst {
    /// Returns an instruction without operands.
    pub fn new(opcode: Opcode) -> Inst {
        Inst { opcode, operands: [Operand::None; 5], rm: None, mask: None, origin: 0 }
    }

    /// Returns an encoded instruction without operands.
    pub fn code(code: Code) -> Inst {
        Inst::new(Opcode::Code(code))
    }

    fn push(mut self, operand: Operand) -> Inst {
        if let Some(free) = self.operands.iter_mut().find(|o| **o == Operand::None) {
            *free = operand;
        }
        self
    }

    fn len(&self) -> usize {
        self.operands.iter().take_while(|o| **o != Operand::None).count()
    }

    /// Adds a written register.
    pub fn def(self, v: Vreg, width: Width) -> Inst {
        self.push(Operand::Reg(v, width, Role::Def))
    }

    /// Adds a register that is read and written.
    pub fn update(self, v: Vreg, width: Width) -> Inst {
        self.push(Operand::Reg(v, width, Role::Update))
    }

    /// Adds a read register.
    pub fn read(self, v: Vreg, width: Width) -> Inst {
        self.push(Operand::Reg(v, width, Role::Use))
    }

    /// Adds a memory operand.
    pub fn mem(self, mem: Mem) -> Inst {
        self.push(Operand::Mem(mem))
    }

    /// Adds a register or memory that is read, at the position where the encoding allows both.
    pub fn rm(mut self, rm: Rm, width: Width) -> Inst {
        self.rm = Some(self.len() as u8);
        match rm {
            Rm::Reg(v) => self.read(v, width),
            Rm::Mem(mem) => self.mem(mem),
        }
    }

    /// Marks the operand that was added last as one that may be in memory.
    pub fn or_mem(mut self) -> Inst {
        self.rm = Some(self.len() as u8 - 1);
        self
    }

    /// Sets the mask. If `zero` is set, lanes outside the mask become zero.
    pub fn with_mask(mut self, mask: Vreg, zero: bool) -> Inst {
        self.mask = Some((mask, zero));
        self
    }

    /// Adds an immediate.
    pub fn imm(self, value: i64) -> Inst {
        self.push(Operand::Imm(value))
    }

    /// Adds a branch target.
    pub fn block(self, block: BlockId) -> Inst {
        self.push(Operand::Block(block))
    }

    /// Calls `f` with every register that is read or written.
    pub fn for_each(&self, mut f: impl FnMut(Vreg, Role)) {
        for operand in &self.operands {
            match *operand {
                Operand::Reg(v, _, role) => f(v, role),
                Operand::Mem(mem) => {
                    if let Base::Reg(v) = mem.base {
                        f(v, Role::Use);
                    }
                    if let Some((v, _)) = mem.index {
                        f(v, Role::Use);
                    }
                }
                Operand::None | Operand::Imm(_) | Operand::Block(_) => {}
            }
        }
        if let Some((mask, _)) = self.mask {
            f(mask, Role::Use);
        }
    }

    /// Replaces every register.
    pub fn rename(&mut self, mut f: impl FnMut(Vreg, Role) -> Vreg) {
        for operand in &mut self.operands {
            match operand {
                Operand::Reg(v, _, role) => *v = f(*v, *role),
                Operand::Mem(mem) => {
                    if let Base::Reg(v) = &mut mem.base {
                        *v = f(*v, Role::Use);
                    }
                    if let Some((v, _)) = &mut mem.index {
                        *v = f(*v, Role::Use);
                    }
                }
                Operand::None | Operand::Imm(_) | Operand::Block(_) => {}
            }
        }
        if let Some((mask, _)) = &mut self.mask {
            *mask = f(*mask, Role::Use);
        }
    }

    /// Returns the result and the three sources of an instruction that overwrites one source. The
    /// source that should be overwritten comes first.
    pub fn as_overwriting(&self) -> Option<(Vreg, [Operand; 3])> {
        let [Operand::Reg(to, ..), a, b, c, _] = self.operands else { return None };
        match self.opcode {
            Opcode::Fma { .. } | Opcode::Ternary(_) => Some((to, [c, a, b])),
            Opcode::Code(_) | Opcode::Constant(_) | Opcode::Copy => None,
        }
    }

    /// Returns the written and the copied register, if this is a copy.
    pub fn as_copy(&self) -> Option<(Vreg, Vreg)> {
        let [Operand::Reg(to, ..), Operand::Reg(from, ..), ..] = self.operands else { return None };
        (self.opcode == Opcode::Copy).then_some((to, from))
    }

    /// Whether the instruction does more than write registers: it stores, branches or sets flags
    /// for a branch.
    pub fn has_effect(&self) -> bool {
        match self.opcode {
            Opcode::Code(_) => !self.operands.iter().any(|o| matches!(o, Operand::Reg(_, _, Role::Def))),
            Opcode::Fma { .. } | Opcode::Ternary(_) | Opcode::Constant(_) | Opcode::Copy => false,
        }
    }
}

/// A basic block.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Instructions; branches come last.
    pub insts: Vec<Inst>,
    /// Blocks to which control can go from this block.
    pub successors: Vec<BlockId>,
    /// Number of loops around the block.
    pub depth: u32,
    /// The innermost loop around the block.
    pub in_loop: Option<LoopId>,
    /// Whether the block's loop contains no other loop.
    pub innermost: bool,
}

/// A loop of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoopId(pub u32);

/// Place of a loop in the function.
#[derive(Clone, Copy, Debug)]
pub struct Loop {
    /// The surrounding loop.
    pub parent: Option<LoopId>,
    /// The block before the loop; it ends without a branch.
    pub preheader: BlockId,
}

/// A function: blocks in the order of [`Function::layout`].
#[derive(Clone, Debug)]
pub struct Function {
    /// Target whose instructions the function uses.
    pub target: Target,
    /// Blocks of the function.
    pub blocks: Vec<Block>,
    /// The order in which blocks are emitted; the first is the entry, the last returns.
    pub layout: Vec<BlockId>,
    /// Classes of virtual registers.
    pub vregs: Vec<Class>,
    /// Constants, each 16, 32 or 64 bytes.
    pub pool: Vec<Vec<u8>>,
    pool_ids: HashMap<Vec<u8>, u32>,
    /// Sizes of the frame's slots in bytes.
    pub slots: Vec<u32>,
    /// Loops; outer loops come before their inner loops.
    pub loops: Vec<Loop>,
    /// Constants that a register holds throughout a loop, each with this loop.
    pub held: HashMap<Vreg, LoopId>,
    /// Registers that live for one instruction. Spilling them would free nothing.
    pub unspillable: HashSet<Vreg>,
    /// The arguments: the pointer to the buffers, then the pointer to the dims.
    pub arguments: Option<[Vreg; 2]>,
}

impl Function {
    /// Returns an empty function.
    pub fn new(target: Target) -> Function {
        Function {
            target,
            blocks: Vec::new(),
            layout: Vec::new(),
            vregs: Vec::new(),
            pool: Vec::new(),
            pool_ids: HashMap::new(),
            slots: Vec::new(),
            loops: Vec::new(),
            held: HashMap::new(),
            unspillable: HashSet::new(),
            arguments: None,
        }
    }

    /// Creates a virtual register.
    pub fn vreg(&mut self, class: Class) -> Vreg {
        self.vregs.push(class);
        Vreg(self.vregs.len() as u32 - 1)
    }

    /// Creates a virtual register that lives for one instruction.
    pub fn piece(&mut self, class: Class) -> Vreg {
        let piece = self.vreg(class);
        self.unspillable.insert(piece);
        piece
    }

    /// Creates a block that is not yet in the layout.
    pub fn block(&mut self, in_loop: Option<LoopId>) -> BlockId {
        let mut depth = 0;
        let mut around = in_loop;
        while let Some(l) = around {
            depth += 1;
            around = self.loops[l.0 as usize].parent;
        }
        self.blocks.push(Block { depth, in_loop, ..Block::default() });
        BlockId(self.blocks.len() as u32 - 1)
    }

    /// Whether an instruction can create the constant without reading memory.
    pub fn is_idiom(&self, constant: u32) -> bool {
        let bytes = &self.pool[constant as usize];
        bytes.iter().all(|b| *b == 0) || bytes.iter().all(|b| *b == 0xff)
    }

    /// Returns the pool entry with these bytes.
    pub fn constant(&mut self, bytes: &[u8]) -> u32 {
        if let Some(&id) = self.pool_ids.get(bytes) {
            return id;
        }
        let id = self.pool.len() as u32;
        self.pool.push(bytes.to_vec());
        self.pool_ids.insert(bytes.to_vec(), id);
        id
    }

    /// Returns the part of a physical register that this virtual one occupies.
    pub fn width(&self, v: Vreg) -> Width {
        self.vregs[v.index()].width()
    }
}
