//! The tile unit: configuration, tile registers, and the AMX instructions.
//!
//! The unit has the state TILECFG and TILEDATA. Its methods take tile numbers, and access memory
//! through callbacks. Like the instructions, they zero every byte outside a tile's rows and
//! columns. Faults follow the manual's exception classes AMX-E1 to AMX-E5, and name the tile and
//! the reason. The caller checks CPU support and the system's permission.
//!
//! ```
//! use ixc_emulator::amx::{TileFault, Tiles};
//! let mut config = [0u8; 64];
//! config[0] = 1; // palette
//! config[16] = 64; // tmm0: bytes per row
//! config[48] = 16; // tmm0: rows
//! let mut tiles = Tiles::default();
//! assert_eq!(tiles.zero(0), Err(TileFault::NotConfigured { tile: 0 }));
//! tiles.load_config(&config).unwrap();
//! assert_eq!(tiles.zero(0), Ok(()));
//! assert_eq!(tiles.zero(1), Err(TileFault::Unused { tile: 1 }));
//! ```

mod products;

use iced_x86::{Instruction, Mnemonic, Register};
use thiserror::Error;

use crate::fault::{FaultKind, Trap};
use crate::memory::Memory;
use products::{ProductShape, add_product, dwords};

/// Number of tile registers of palette 1 (CPUID leaf 1DH: max_names).
pub const TILES: usize = 8;
/// Maximum number of rows of a tile of palette 1.
pub const MAX_ROWS: usize = 16;
/// Maximum number of bytes of a tile's row of palette 1.
pub const MAX_ROW_BYTES: usize = 64;
/// Number of bytes of a tile configuration in memory.
pub const CONFIG_BYTES: usize = 64;

const DWORDS: usize = MAX_ROW_BYTES / 4;
/// Offset of the numbers of rows in a configuration, one byte for each tile. The next constant is
/// the offset of the bytes per row, two bytes for each tile.
const ROWS_AT: usize = 48;
const COLUMNS_AT: usize = 16;

/// Reason why a tile instruction faults.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TileFault {
    /// A palette in the operand of `ldtilecfg` that does not exist.
    #[error("#GP: byte 0 of the tile configuration selects palette {palette}; the palettes are 0 and 1")]
    Palette {
        /// Palette number: byte 0 of the configuration.
        palette: u8,
    },
    /// A reserved byte in the operand of `ldtilecfg` that is not 0.
    #[error("#GP: byte {byte} of the tile configuration is {value}; it is reserved and must be 0")]
    Reserved {
        /// Offset of the byte in the configuration.
        byte: usize,
        /// Value of the byte.
        value: u8,
    },
    /// A tile in the operand of `ldtilecfg` whose rows are too long.
    #[error("#GP: byte {byte} of the tile configuration gives tmm{tile} rows of {colsb} bytes; at most 64 fit")]
    RowTooLong {
        /// Offset in the configuration of the low byte of the bytes per row.
        byte: usize,
        /// Index of the tile.
        tile: usize,
        /// Number of bytes per row.
        colsb: u16,
    },
    /// A tile in the operand of `ldtilecfg` that has too many rows.
    #[error("#GP: byte {byte} of the tile configuration gives tmm{tile} {rows} rows; it has at most 16")]
    TooManyRows {
        /// Offset in the configuration of the number of rows.
        byte: usize,
        /// Index of the tile.
        tile: usize,
        /// Number of rows.
        rows: u8,
    },
    /// A tile in the operand of `ldtilecfg` with rows but no columns, or with columns but no rows.
    #[error(
        "#GP: byte {byte} of the tile configuration is 0: tmm{tile} has {rows} rows of {colsb} bytes; \
         both are 0 for an unused tile, neither for a used one"
    )]
    HalfConfigured {
        /// Offset in the configuration of the field that is 0.
        byte: usize,
        /// Index of the tile.
        tile: usize,
        /// Number of rows.
        rows: u8,
        /// Number of bytes per row.
        colsb: u16,
    },
    /// Use of a tile before `ldtilecfg` or after `tilerelease`.
    #[error("#UD: tmm{tile} is used, but no tiles are configured; run ldtilecfg first and tilerelease last")]
    NotConfigured {
        /// Index of the tile.
        tile: usize,
    },
    /// Use of a tile to which the configuration gives no rows.
    #[error("#UD: tmm{tile} is used, but the tile configuration gives it no rows")]
    Unused {
        /// Index of the tile.
        tile: usize,
    },
    /// Use of a tile register that does not exist.
    #[error("#UD: tmm{tile} is used; palette 1 has tmm0 to tmm7")]
    NoSuchTile {
        /// Index of the tile.
        tile: usize,
    },
    /// A load, store or product of a tile whose rows are not whole doublewords.
    #[error("#UD: rows of tmm{tile} have {colsb} bytes; loads, stores and products need a multiple of 4")]
    PartialDword {
        /// Index of the tile.
        tile: usize,
        /// Number of bytes per row.
        colsb: usize,
    },
    /// A load or store whose start row is after the tile's last row.
    #[error("#UD: the tile configuration has start row {start_row}, but tmm{tile} has {rows} rows")]
    StartRow {
        /// Index of the tile.
        tile: usize,
        /// Start row in the configuration.
        start_row: u8,
        /// Number of rows of the tile.
        rows: usize,
    },
    /// A product that names one tile twice.
    #[error("#UD: tmm{tile} is used twice in one product; the three tiles must differ")]
    SameTile {
        /// Index of the tile.
        tile: usize,
    },
    /// A product whose result and first factor have different numbers of rows.
    #[error("#UD: tmm{sum} has {sum_rows} rows, its first factor tmm{a} has {a_rows}; they must be equal")]
    RowsDiffer {
        /// Index of the tile of the sums.
        sum: usize,
        /// Number of rows of the sums.
        sum_rows: usize,
        /// Index of the tile of the first factor.
        a: usize,
        /// Number of rows of the first factor.
        a_rows: usize,
    },
    /// A product whose result and second factor have rows of different lengths.
    #[error(
        "#UD: rows of tmm{sum} have {sum_colsb} bytes, rows of its second factor tmm{b} have {b_colsb}; they must be equal"
    )]
    ColumnsDiffer {
        /// Index of the tile of the sums.
        sum: usize,
        /// Number of bytes of a row of the sums.
        sum_colsb: usize,
        /// Index of the tile of the second factor.
        b: usize,
        /// Number of bytes of a row of the second factor.
        b_colsb: usize,
    },
    /// A product of tiles whose inner dimensions differ.
    #[error("#UD: rows of tmm{a} have {a_dwords} doublewords, but tmm{b} has {b_rows} rows; they must be equal")]
    InnerDiffers {
        /// Index of the tile of the first factor.
        a: usize,
        /// Number of doublewords of a row of the first factor.
        a_dwords: usize,
        /// Index of the tile of the second factor.
        b: usize,
        /// Number of rows of the second factor.
        b_rows: usize,
    },
}

impl From<TileFault> for Trap {
    fn from(fault: TileFault) -> Trap {
        Box::new(FaultKind::Tile { reason: fault.to_string() })
    }
}

/// A decoded tile instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileOp {
    /// The instruction `ldtilecfg`.
    LoadConfig,
    /// The instruction `sttilecfg`.
    StoreConfig,
    /// The instruction `tilerelease`.
    Release,
    /// The instruction `tilezero`.
    Zero {
        /// Index of the tile.
        tile: u8,
    },
    /// The instructions `tileloadd` and `tileloaddt1`.
    Load {
        /// Index of the tile.
        tile: u8,
    },
    /// The instruction `tilestored`.
    Store {
        /// Index of the tile.
        tile: u8,
    },
    /// A tile product, one of the instructions `tdp…`.
    Multiply {
        /// Types of the factors.
        product: TileProduct,
        /// Index of the tile of the sums, the instruction's first operand.
        sum: u8,
        /// Index of the tile of the first factor, the instruction's second operand.
        a: u8,
        /// Index of the tile of the second factor, the instruction's third operand.
        b: u8,
    },
}

/// Decodes a tile instruction. Returns `None` for other instructions.
pub fn decode(instruction: &Instruction) -> Option<TileOp> {
    let tile = |operand: u32| {
        let register = instruction.op_register(operand);
        register.is_tmm().then(|| (register as u32 - Register::TMM0 as u32) as u8)
    };
    let multiply = |product| Some(TileOp::Multiply { product, sum: tile(0)?, a: tile(1)?, b: tile(2)? });
    match instruction.mnemonic() {
        Mnemonic::Ldtilecfg => Some(TileOp::LoadConfig),
        Mnemonic::Sttilecfg => Some(TileOp::StoreConfig),
        Mnemonic::Tilerelease => Some(TileOp::Release),
        Mnemonic::Tilezero => Some(TileOp::Zero { tile: tile(0)? }),
        Mnemonic::Tileloadd | Mnemonic::Tileloaddt1 => Some(TileOp::Load { tile: tile(0)? }),
        Mnemonic::Tilestored => Some(TileOp::Store { tile: tile(1)? }),
        Mnemonic::Tdpbssd => multiply(TileProduct::SignedSigned),
        Mnemonic::Tdpbsud => multiply(TileProduct::SignedUnsigned),
        Mnemonic::Tdpbusd => multiply(TileProduct::UnsignedSigned),
        Mnemonic::Tdpbuud => multiply(TileProduct::UnsignedUnsigned),
        Mnemonic::Tdpbf16ps => multiply(TileProduct::Bf16),
        Mnemonic::Tdpfp16ps => multiply(TileProduct::F16),
        _ => None,
    }
}

/// Executes a tile instruction. `address` is base plus displacement; for `ldtilecfg` and
/// `sttilecfg`, it is the whole address. `stride` is the index register shifted by the scale, or
/// zero without an index register.
///
/// # Errors
/// Fails with [`FaultKind::Tile`], which has the text of a [`TileFault`], or with a fault of a
/// memory access.
pub fn execute(op: &TileOp, tiles: &mut Tiles, memory: &mut Memory, address: u64, stride: u64) -> Result<(), Trap> {
    match *op {
        TileOp::LoadConfig => tiles.load_config(&memory.load(address)?)?,
        TileOp::StoreConfig => memory.store(address, tiles.store_config())?,
        TileOp::Release => tiles.release(),
        TileOp::Zero { tile } => tiles.zero(tile.into())?,
        TileOp::Load { tile } => tiles.load(tile.into(), address, stride, |at, row| memory.read(at, row))?,
        TileOp::Store { tile } => tiles.store(tile.into(), address, stride, |at, row| memory.write(at, row))?,
        TileOp::Multiply { product, sum, a, b } => tiles.multiply(product, sum.into(), a.into(), b.into())?,
    }
    Ok(())
}

/// Types of a tile product's factors, named as in `TDPBssD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileProduct {
    /// `TDPBSSD`: signed bytes times signed bytes.
    SignedSigned,
    /// `TDPBSUD`: signed bytes times unsigned bytes.
    SignedUnsigned,
    /// `TDPBUSD`: unsigned bytes times signed bytes.
    UnsignedSigned,
    /// `TDPBUUD`: unsigned bytes times unsigned bytes.
    UnsignedUnsigned,
    /// `TDPBF16PS`: bfloat16 times bfloat16.
    Bf16,
    /// `TDPFP16PS`: half precision times half precision.
    F16,
}

/// Shape of a tile. Both numbers are zero for an unused tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileShape {
    /// Number of rows, at most 16.
    pub rows: usize,
    /// Number of bytes per row, at most 64.
    pub colsb: usize,
}

type Tile = [[u8; MAX_ROW_BYTES]; MAX_ROWS];
const EMPTY: Tile = [[0; MAX_ROW_BYTES]; MAX_ROWS];
type Sums = [[u32; DWORDS]; MAX_ROWS];

/// Tile registers and their configuration.
#[derive(Clone, Debug)]
pub struct Tiles {
    configured: bool,
    start_row: u8,
    shapes: [TileShape; TILES],
    data: Box<[Tile; TILES]>,
}

impl Default for Tiles {
    fn default() -> Tiles {
        Tiles { configured: false, start_row: 0, shapes: [TileShape::default(); TILES], data: Box::new([EMPTY; TILES]) }
    }
}

impl Tiles {
    /// Returns whether no tiles are configured. This must hold when a kernel returns.
    pub fn is_init(&self) -> bool {
        !self.configured
    }

    /// Returns the shape of a tile, or `None` if the tile is not configured.
    pub fn shape(&self, tile: usize) -> Option<TileShape> {
        self.shapes.get(tile).copied().filter(|s| s.rows != 0)
    }

    /// Returns the bytes of a tile register: all 16 rows of 64 bytes. Returns `None` if the index
    /// is out of range.
    pub fn bytes(&self, tile: usize) -> Option<&[[u8; MAX_ROW_BYTES]; MAX_ROWS]> {
        self.data.get(tile)
    }

    /// Executes `LDTILECFG`, which also zeroes all tiles. Palette 0 releases them.
    ///
    /// # Errors
    /// Returns the first violation of the manual's checks, in the order of the configuration's
    /// bytes. The tiles are then unchanged.
    pub fn load_config(&mut self, config: &[u8; CONFIG_BYTES]) -> Result<(), TileFault> {
        match config[0] {
            0 => {
                self.release();
                return Ok(());
            }
            1 => {}
            palette => return Err(TileFault::Palette { palette }),
        }
        let mut shapes = [TileShape::default(); TILES];
        must_be_zero(config, 2..COLUMNS_AT)?;
        for (tile, shape) in shapes.iter_mut().enumerate() {
            let byte = COLUMNS_AT + 2 * tile;
            let colsb = u16::from_le_bytes([config[byte], config[byte + 1]]);
            shape.colsb = usize::from(colsb);
            if shape.colsb > MAX_ROW_BYTES {
                return Err(TileFault::RowTooLong { byte, tile, colsb });
            }
        }
        must_be_zero(config, COLUMNS_AT + 2 * TILES..ROWS_AT)?;
        for (tile, shape) in shapes.iter_mut().enumerate() {
            let byte = ROWS_AT + tile;
            let rows = config[byte];
            shape.rows = usize::from(rows);
            if shape.rows > MAX_ROWS {
                return Err(TileFault::TooManyRows { byte, tile, rows });
            }
            if (rows == 0) != (shape.colsb == 0) {
                let byte = if rows == 0 { byte } else { COLUMNS_AT + 2 * tile };
                return Err(TileFault::HalfConfigured { byte, tile, rows, colsb: shape.colsb as u16 });
            }
        }
        must_be_zero(config, ROWS_AT + TILES..CONFIG_BYTES)?;
        *self = Tiles { configured: true, start_row: config[1], shapes, ..Tiles::default() };
        Ok(())
    }

    /// Executes `STTILECFG`. Returns the configuration, which is all zero if no tiles are
    /// configured.
    pub fn store_config(&self) -> [u8; CONFIG_BYTES] {
        let mut config = [0; CONFIG_BYTES];
        if self.configured {
            config[0] = 1;
            config[1] = self.start_row;
            for (tile, shape) in self.shapes.iter().enumerate() {
                config[COLUMNS_AT + 2 * tile] = shape.colsb as u8; // at most 64: the high byte stays 0
                config[ROWS_AT + tile] = shape.rows as u8;
            }
        }
        config
    }

    /// Executes `TILERELEASE`.
    pub fn release(&mut self) {
        *self = Tiles::default();
    }

    /// Executes `TILEZERO`.
    ///
    /// # Errors
    /// Fails if the tile is not configured.
    pub fn zero(&mut self, tile: usize) -> Result<(), TileFault> {
        self.tile_shape(tile)?;
        self.data[tile] = EMPTY;
        self.start_row = 0;
        Ok(())
    }

    /// Executes `TILELOADD` and `TILELOADDT1`: loads row `r` from `base + r · stride`. Addresses
    /// wrap at 2⁶⁴, so a stride may be negative. `read` is called once for each row.
    ///
    /// # Errors
    /// Fails if the tile cannot be loaded, or if `read` fails. After a failure of `read`, the start
    /// row of the configuration is the row to continue with.
    pub fn load<E: From<TileFault>>(
        &mut self,
        tile: usize,
        base: u64,
        stride: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let shape = self.transferable(tile)?;
        let start = usize::from(self.start_row);
        for row in &mut self.data[tile][start..] {
            *row = [0; MAX_ROW_BYTES];
        }
        for row in start..shape.rows {
            self.start_row = row as u8;
            let mut bytes = [0; MAX_ROW_BYTES];
            read(base.wrapping_add(stride.wrapping_mul(row as u64)), &mut bytes[..shape.colsb])?;
            self.data[tile][row] = bytes;
        }
        self.start_row = 0;
        Ok(())
    }

    /// Executes `TILESTORED`: stores row `r` to `base + r · stride`. `write` is called once for
    /// each row.
    ///
    /// # Errors
    /// Fails if the tile cannot be stored, or if `write` fails. The start row of the configuration
    /// is then the next row to store.
    pub fn store<E: From<TileFault>>(
        &mut self,
        tile: usize,
        base: u64,
        stride: u64,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let shape = self.transferable(tile)?;
        for row in usize::from(self.start_row)..shape.rows {
            self.start_row = row as u8;
            let bytes = &self.data[tile][row][..shape.colsb];
            write(base.wrapping_add(stride.wrapping_mul(row as u64)), bytes)?;
        }
        self.start_row = 0;
        Ok(())
    }

    /// Executes `TDPB**D`, `TDPBF16PS` and `TDPFP16PS`: adds the product of tiles `a` and `b` to
    /// the tile `sum`.
    ///
    /// # Errors
    /// Fails if two tiles are the same, a tile is not configured, or the shapes do not fit.
    pub fn multiply(&mut self, product: TileProduct, sum: usize, a: usize, b: usize) -> Result<(), TileFault> {
        let shape = self.product_shape(sum, a, b)?;
        let (left, right) = (&self.data[a], &self.data[b]);
        let mut sums = Sums::default();
        for (row, from) in sums.iter_mut().zip(&self.data[sum]) {
            *row = dwords(from);
        }
        add_product(&mut sums, product, left, right, shape);
        let result = &mut self.data[sum];
        *result = EMPTY;
        for (row, from) in result.iter_mut().zip(&sums).take(shape.rows) {
            for (bytes, sum) in row.chunks_exact_mut(4).zip(from).take(shape.columns) {
                bytes.copy_from_slice(&sum.to_le_bytes());
            }
        }
        self.start_row = 0;
        Ok(())
    }

    /// Returns the shape of a tile, which the configuration must have.
    fn tile_shape(&self, tile: usize) -> Result<TileShape, TileFault> {
        if !self.configured {
            return Err(TileFault::NotConfigured { tile });
        }
        let shape = *self.shapes.get(tile).ok_or(TileFault::NoSuchTile { tile })?;
        if shape.rows == 0 {
            return Err(TileFault::Unused { tile });
        }
        Ok(shape)
    }

    fn whole_dwords(&self, tile: usize) -> Result<TileShape, TileFault> {
        let shape = self.tile_shape(tile)?;
        if shape.colsb % 4 != 0 {
            return Err(TileFault::PartialDword { tile, colsb: shape.colsb });
        }
        Ok(shape)
    }

    /// Checks the conditions of exception class AMX-E3.
    fn transferable(&self, tile: usize) -> Result<TileShape, TileFault> {
        let shape = self.whole_dwords(tile)?;
        if usize::from(self.start_row) >= shape.rows {
            return Err(TileFault::StartRow { tile, start_row: self.start_row, rows: shape.rows });
        }
        Ok(shape)
    }

    /// Checks the conditions of exception class AMX-E4.
    fn product_shape(&self, sum: usize, a: usize, b: usize) -> Result<ProductShape, TileFault> {
        if sum == a || sum == b {
            return Err(TileFault::SameTile { tile: sum });
        }
        if a == b {
            return Err(TileFault::SameTile { tile: a });
        }
        let [of_sum, of_a, of_b] = [self.whole_dwords(sum)?, self.whole_dwords(a)?, self.whole_dwords(b)?];
        if of_sum.colsb != of_b.colsb {
            return Err(TileFault::ColumnsDiffer { sum, sum_colsb: of_sum.colsb, b, b_colsb: of_b.colsb });
        }
        if of_sum.rows != of_a.rows {
            return Err(TileFault::RowsDiffer { sum, sum_rows: of_sum.rows, a, a_rows: of_a.rows });
        }
        if of_a.colsb / 4 != of_b.rows {
            return Err(TileFault::InnerDiffers { a, a_dwords: of_a.colsb / 4, b, b_rows: of_b.rows });
        }
        Ok(ProductShape { rows: of_sum.rows, columns: of_sum.colsb / 4, inner: of_b.rows })
    }
}

fn must_be_zero(config: &[u8; CONFIG_BYTES], range: std::ops::Range<usize>) -> Result<(), TileFault> {
    let set = config.iter().copied().enumerate().take(range.end).skip(range.start).find(|(_, value)| *value != 0);
    set.map_or(Ok(()), |(byte, value)| Err(TileFault::Reserved { byte, value }))
}
