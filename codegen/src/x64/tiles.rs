//! Tiles: selection of ops on tiles, and the tile configuration at the start of a kernel.
//!
//! `ldtilecfg` is at the start of the kernel and `tilerelease` at its end, so a tile register has
//! one shape throughout. Tile registers cannot be moved or spilled. A product overwrites its
//! accumulator. This needs no copy if the accumulator has no other use, as in sums in loops. A
//! kernel is rejected if an accumulator has another use, or if more tiles are live at once than
//! there are registers.
//!
//! ```text
//! %c1 = tile_dot_bf16 tile<16x16xf32> %c0, %a, %b        tdpbf16ps tmm0, tmm1, tmm2
//! ```

use iced_x86::Code;
use ixc_ir::kernel::{Imm, Inst as Statement, ValueId};

use super::X64Error;
use super::families::{TileDot, TileOp};
use super::machine::{Class, Function, Inst, Mem, Opcode, Vreg, Width};
use super::select::Selector;
use super::statement::{malformed_error, operand_of, result_of};
use ixc_targets::Feature;

/// Rows and row bytes of each used tile register.
pub type Shapes = [Option<(u8, u8)>; 8];

/// The only palette (format of a tile configuration) that has tiles.
const PALETTE: u8 = 1;
/// Offsets in a tile configuration: each register's bytes per row (as words) and its number of rows
/// (as bytes).
const ROW_BYTES: usize = 16;
const ROWS: usize = 48;

/// Adds the operand of `ldtilecfg` to the constant pool, and returns its index; `None` for a kernel
/// without tiles.
///
/// # Errors
/// Fails if register allocation left a copy between two tile registers.
pub fn configuration(f: &mut Function, registers: &[u8], shapes: &Shapes) -> Result<Option<u32>, X64Error> {
    if shapes.iter().all(Option::is_none) {
        return Ok(None);
    }
    for inst in f.layout.iter().flat_map(|b| &f.blocks[b.index()].insts) {
        if let Some((to, from)) = inst.as_copy()
            && matches!(f.vregs[to.index()], Class::Tile { .. })
            && registers[to.index()] != registers[from.index()]
        {
            return Err(X64Error::TileCopy { statement: inst.origin });
        }
    }
    let mut configuration = [0; 64];
    configuration[0] = PALETTE;
    for (i, shape) in shapes.iter().enumerate() {
        let (rows, bytes) = shape.unwrap_or_default();
        configuration[ROW_BYTES + 2 * i] = bytes;
        configuration[ROWS + i] = rows;
    }
    Ok(Some(f.constant(&configuration)))
}

impl Selector<'_> {
    /// Selects an op on tiles.
    pub fn tile(&mut self, op: TileOp, inst: &Statement) -> Result<(), X64Error> {
        let needs = match op {
            TileOp::Dot(TileDot::Bf16) => Feature::AmxBf16,
            TileOp::Dot(TileDot::S8S8 | TileDot::S8U8 | TileDot::U8S8 | TileDot::U8U8) => Feature::AmxInt8,
            TileOp::Zero | TileOp::Load | TileOp::Store => Feature::AmxTile,
        };
        if !self.f.target.has(needs) {
            return Err(X64Error::NoLowering { op: inst.op, ty: inst.ty });
        }
        match op {
            TileOp::Zero => {
                let result = result_of(inst)?;
                let d = self.tile_register(result);
                self.emit(Inst::code(Code::VEX_Tilezero_tmm).def(d, Width::T));
                self.set(result, d);
            }
            TileOp::Load => {
                let (result, mem) = (result_of(inst)?, self.rows_of(inst)?);
                let d = self.tile_register(result);
                self.emit(Inst::code(Code::VEX_Tileloadd_tmm_sibmem).def(d, Width::T).mem(mem));
                self.set(result, d);
            }
            TileOp::Store => {
                let (value, mem) = (operand_of(inst, 0)?, self.rows_of(inst)?);
                // Deferred loads may read memory that this store overwrites.
                self.settle_all();
                let value = self.reg(value);
                self.emit(Inst::code(Code::VEX_Tilestored_sibmem_tmm).mem(mem).read(value, Width::T));
            }
            TileOp::Dot(factors) => self.tile_dot(factors, inst)?,
        }
        Ok(())
    }

    /// Selects a product of tiles.
    fn tile_dot(&mut self, factors: TileDot, inst: &Statement) -> Result<(), X64Error> {
        let code = match factors {
            TileDot::S8S8 => Code::VEX_Tdpbssd_tmm_tmm_tmm,
            TileDot::S8U8 => Code::VEX_Tdpbsud_tmm_tmm_tmm,
            TileDot::U8S8 => Code::VEX_Tdpbusd_tmm_tmm_tmm,
            TileDot::U8U8 => Code::VEX_Tdpbuud_tmm_tmm_tmm,
            TileDot::Bf16 => Code::VEX_Tdpbf16ps_tmm_tmm_tmm,
        };
        let result = result_of(inst)?;
        let (sum, a, b) = (operand_of(inst, 0)?, operand_of(inst, 1)?, operand_of(inst, 2)?);
        // The processor rejects an instruction with the same tile register twice.
        if a == b {
            return Err(X64Error::TileCopy { statement: self.origin });
        }
        let d = self.accumulator_copy(sum, result);
        let (a, b) = (self.reg(a), self.reg(b));
        self.emit(Inst::code(code).update(d, Width::T).read(a, Width::T).read(b, Width::T));
        self.set(result, d);
        Ok(())
    }

    /// Creates a register for a tile.
    fn tile_register(&mut self, value: ValueId) -> Vreg {
        let class = self.class_of(value);
        self.f.vreg(class)
    }

    /// Returns the register of an accumulator, to be overwritten: the value's register if this is
    /// its only use, otherwise a copy.
    fn accumulator_copy(&mut self, sum: ValueId, result: ValueId) -> Vreg {
        let register = self.reg(sum);
        if self.uses.count(sum) == 1 {
            return register;
        }
        let copy = self.tile_register(result);
        self.emit(Inst::new(Opcode::Copy).def(copy, Width::T).read(register, Width::T));
        copy
    }

    /// Returns the memory operand of a load or store of a tile's rows. Its index register holds the
    /// stride.
    fn rows_of(&mut self, inst: &Statement) -> Result<Mem, X64Error> {
        let (Some(address), Imm::Int(stride)) = (&inst.address, &inst.imm) else { return Err(malformed_error(inst)) };
        let stride = self.stride(*stride);
        Ok(Mem { index: Some((stride, 1)), ..self.mem(address) })
    }

    /// Returns a register that holds the stride.
    fn stride(&mut self, stride: i64) -> Vreg {
        let block = self.outside_innermost();
        if let Some(&register) = self.strides.get(&(block, stride)) {
            return register;
        }
        let register = self.f.vreg(Class::Gpr);
        // The type rule limits strides to 31 bits.
        let set = Inst { origin: self.origin, ..Inst::code(Code::Mov_r32_imm32).def(register, Width::R32).imm(stride) };
        self.f.blocks[block.index()].insts.push(set);
        self.strides.insert((block, stride), register);
        register
    }
}
