//! Tests tiles against the processor manual. [`Model`] implements the manual's pseudocode with flat
//! bytes and plain loops.

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};
use ixc_emulator::amx::{self, TileFault, TileOp, TileProduct, TileShape, Tiles};
use ixc_emulator::memory::{Memory, Slice};
use ixc_emulator::{FaultKind, Program};
use ixc_ir::random::Random;
use ixc_targets::{Feature, Features};

use crate::exact::{add32, fma32};
use crate::manual::{byte, half, single};

pub const PRODUCTS: [TileProduct; 6] = [
    TileProduct::SignedSigned,
    TileProduct::SignedUnsigned,
    TileProduct::UnsignedSigned,
    TileProduct::UnsignedUnsigned,
    TileProduct::Bf16,
    TileProduct::F16,
];

/// State that the manual's pseudocode uses: `tilecfg`, and 8 tiles of 1024 bytes.
#[derive(Clone)]
pub struct Model {
    pub rows: [usize; 8],
    pub colsb: [usize; 8],
    pub tile: [[u8; 1024]; 8],
}

impl Model {
    /// Returns a model whose tiles have these shapes (rows, bytes per row) and are all zero.
    pub fn new(shapes: [(usize, usize); 8]) -> Model {
        Model { rows: shapes.map(|s| s.0), colsb: shapes.map(|s| s.1), tile: [[0; 1024]; 8] }
    }

    /// Returns the operand of `ldtilecfg` for these shapes.
    pub fn config(&self) -> [u8; 64] {
        let mut config = [0; 64];
        config[0] = 1;
        for t in 0..8 {
            config[16 + 2 * t] = self.colsb[t] as u8;
            config[48 + t] = self.rows[t] as u8;
        }
        config
    }

    fn byte(&self, tile: usize, row: usize, i: usize) -> u8 {
        self.tile[tile][64 * row + i]
    }

    fn word(&self, tile: usize, row: usize, i: usize) -> u16 {
        u16::from(self.byte(tile, row, 2 * i)) | u16::from(self.byte(tile, row, 2 * i + 1)) << 8
    }

    fn dword(&self, tile: usize, row: usize, i: usize) -> u32 {
        u32::from(self.word(tile, row, 2 * i)) | u32::from(self.word(tile, row, 2 * i + 1)) << 16
    }

    fn set_row(&mut self, tile: usize, row: usize, dwords: &[u32]) {
        self.tile[tile][64 * row..][..64].fill(0);
        for (i, dword) in dwords.iter().enumerate() {
            self.tile[tile][64 * row + 4 * i..][..4].copy_from_slice(&dword.to_le_bytes());
        }
    }

    fn zero_upper_rows(&mut self, tile: usize, row: usize) {
        self.tile[tile][64 * row..].fill(0);
    }

    /// Executes `TILELOADD` from a buffer. Row `r` is at offset `start + r · stride`.
    pub fn load(&mut self, tile: usize, buffer: &[u8], start: isize, stride: isize) {
        for row in 0..self.rows[tile] {
            let at = (start + row as isize * stride) as usize;
            for i in 0..64 {
                self.tile[tile][64 * row + i] = if i < self.colsb[tile] { buffer[at + i] } else { 0 };
            }
        }
        self.zero_upper_rows(tile, self.rows[tile]);
    }

    /// Executes `TILESTORED` to a buffer. Row `r` is at offset `start + r · stride`.
    pub fn store(&self, tile: usize, buffer: &mut [u8], start: isize, stride: isize) {
        for row in 0..self.rows[tile] {
            for i in 0..self.colsb[tile] {
                buffer[(start + row as isize * stride) as usize + i] = self.byte(tile, row, i);
            }
        }
    }

    /// Executes a tile product, one of the instructions `TDP…`.
    pub fn multiply(&mut self, product: TileProduct, c: usize, a: usize, b: usize) {
        for m in 0..self.rows[c] {
            let row: Vec<u32> = match product {
                TileProduct::Bf16 => self.float_row(c, a, b, m, |half| u32::from(half) << 16),
                TileProduct::F16 => self.float_row(c, a, b, m, half_to_single),
                _ => self.byte_row(product, c, a, b, m),
            };
            self.set_row(c, m, &row);
        }
        self.zero_upper_rows(c, self.rows[c]);
    }

    fn byte_row(&self, product: TileProduct, c: usize, a: usize, b: usize, m: usize) -> Vec<u32> {
        let (signed_a, signed_b) = match product {
            TileProduct::SignedSigned => (true, true),
            TileProduct::SignedUnsigned => (true, false),
            TileProduct::UnsignedSigned => (false, true),
            _ => (false, false),
        };
        let extend = |byte: u8, signed: bool| if signed { i64::from(byte as i8) } else { i64::from(byte) };
        let mut tmp: Vec<i64> = (0..self.colsb[c] / 4).map(|n| i64::from(self.dword(c, m, n))).collect();
        for k in 0..self.colsb[a] / 4 {
            for (n, sum) in tmp.iter_mut().enumerate() {
                for i in 0..4 {
                    *sum += extend(self.byte(a, m, 4 * k + i), signed_a) * extend(self.byte(b, k, 4 * n + i), signed_b);
                }
            }
        }
        tmp.into_iter().map(|sum| sum.rem_euclid(1 << 32) as u32).collect()
    }

    fn float_row(&self, c: usize, a: usize, b: usize, m: usize, make_fp32: fn(u16) -> u32) -> Vec<u32> {
        let mut temp1 = vec![0u32; self.colsb[c] / 2];
        for k in 0..self.colsb[a] / 4 {
            for n in 0..self.colsb[c] / 4 {
                for odd in 0..2 {
                    let (x, y) = (self.word(a, m, 2 * k + odd), self.word(b, k, 2 * n + odd));
                    temp1[2 * n + odd] = fma32(make_fp32(x), make_fp32(y), temp1[2 * n + odd]);
                }
            }
        }
        let sums = temp1.chunks(2).map(|pair| add32(pair[0], pair[1]));
        sums.enumerate().map(|(n, sum)| add32(self.dword(c, m, n), sum)).collect()
    }
}

/// Converts half precision to single precision. A NaN keeps its sign and payload.
fn half_to_single(bits: u16) -> u32 {
    let sign = u32::from(bits >> 15) << 31;
    match (bits >> 10 & 0x1f, bits & 0x3ff) {
        (0x1f, fraction) => sign | 0x7f80_0000 | u32::from(fraction) << 13,
        (0, fraction) => sign | (f32::from(fraction) / 16_777_216.0).to_bits(),
        (exponent, fraction) => sign | (u32::from(exponent) + 112) << 23 | u32::from(fraction) << 13,
    }
}

fn configured(model: &Model) -> Tiles {
    let mut tiles = Tiles::default();
    tiles.load_config(&model.config()).unwrap();
    tiles
}

fn assert_same(tiles: &Tiles, model: &Model, context: &str) {
    for t in 0..8 {
        let found = tiles.bytes(t).unwrap().as_flattened();
        let at = found.iter().zip(&model.tile[t]).position(|(a, b)| a != b);
        assert!(at.is_none(), "tmm{t}, row {}, byte {}: {context}", at.unwrap() / 64, at.unwrap() % 64);
    }
}

/// Returns bytes of a factor that are likely to reveal errors.
pub fn operand(random: &mut Random, product: TileProduct, bytes: usize) -> Vec<u8> {
    match product {
        TileProduct::Bf16 => (0..bytes / 2).flat_map(|_| ((single(random) >> 16) as u16).to_le_bytes()).collect(),
        TileProduct::F16 => (0..bytes / 2).flat_map(|_| half(random).to_le_bytes()).collect(),
        _ => (0..bytes).map(|_| byte(random)).collect(),
    }
}

/// Returns bytes of sums. They have few NaN and infinities, because these would hide other errors.
pub fn sums(random: &mut Random, product: TileProduct, bytes: usize) -> Vec<u8> {
    let one = |random: &mut Random| match product {
        TileProduct::Bf16 | TileProduct::F16 => single(random),
        _ => random.bits() as u32,
    };
    (0..bytes / 4).flat_map(|_| one(random).to_le_bytes()).collect()
}

fn load_rows(tiles: &mut Tiles, model: &mut Model, tile: usize, bytes: &[u8]) {
    model.load(tile, bytes, 0, 64);
    let mut memory = Memory::new();
    let at = memory.map(Slice::read("rows", bytes)).unwrap();
    amx::execute(&TileOp::Load { tile: tile as u8 }, tiles, &mut memory, at, 64).unwrap();
}

#[test]
fn tile_products_of_every_shape_match_the_manual() {
    let mut random = Random::new(0x0061_6d78);
    for rows in 1..=16 {
        for inner in 1..=16 {
            // All numbers of columns occur, but not in combination with all rows and inner
            // dimensions.
            let columns = 1 + (5 * rows + 3 * inner) % 16;
            for product in PRODUCTS {
                let mut shapes = [(16, 64); 8];
                let [c, a, b] = [(rows + inner) % 8, (rows + inner + 3) % 8, (rows + inner + 5) % 8];
                shapes[c] = (rows, 4 * columns);
                shapes[a] = (rows, 4 * inner);
                shapes[b] = (inner, 4 * columns);
                let mut model = Model::new(shapes);
                let mut tiles = configured(&model);
                let bytes = operand(&mut random, product, 1024);
                load_rows(&mut tiles, &mut model, a, &bytes);
                let bytes = operand(&mut random, product, 1024);
                load_rows(&mut tiles, &mut model, b, &bytes);
                let bytes = sums(&mut random, product, 1024);
                load_rows(&mut tiles, &mut model, c, &bytes);
                tiles.multiply(product, c, a, b).unwrap();
                model.multiply(product, c, a, b);
                assert_same(&tiles, &model, &format!("{product:?} {rows}×{inner}×{columns}"));
            }
        }
    }
}

/// Tests products of one doubleword each: every pair of bytes, at every position, with all four
/// combinations of signedness.
#[test]
fn all_byte_pairs_multiply_with_correct_signedness() {
    let value = |byte: usize, signed: bool| if signed { byte as u8 as i8 as i32 } else { byte as i32 };
    let cases = [
        (TileProduct::SignedSigned, true, true),
        (TileProduct::SignedUnsigned, true, false),
        (TileProduct::UnsignedSigned, false, true),
        (TileProduct::UnsignedUnsigned, false, false),
    ];
    // Row m of the first factor has the byte 16 · i + m at one of four positions. Column n of the
    // second factor has the byte 16 · j + n at the same position.
    let mut model = Model::new([(16, 64), (16, 4), (1, 64), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)]);
    for (product, signed_a, signed_b) in cases {
        for (i, j) in (0..16).flat_map(|i| (0..16).map(move |j| (i, j))) {
            let place = (i + j) % 4;
            let mut tiles = configured(&model);
            let (mut a, mut b) = (vec![0; 1024], vec![0; 1024]);
            for m in 0..16 {
                a[64 * m + place] = (16 * i + m) as u8;
                b[4 * m + place] = (16 * j + m) as u8;
            }
            load_rows(&mut tiles, &mut model, 1, &a);
            load_rows(&mut tiles, &mut model, 2, &b);
            tiles.multiply(product, 0, 1, 2).unwrap();
            for (m, row) in tiles.bytes(0).unwrap().iter().enumerate() {
                for (n, sum) in row.chunks(4).enumerate() {
                    let (x, y) = (16 * i + m, 16 * j + n);
                    let right = value(x, signed_a) * value(y, signed_b);
                    assert_eq!(i32::from_le_bytes(sum.try_into().unwrap()), right, "{product:?} {x} {y}");
                }
            }
        }
    }
}

#[test]
fn loads_and_stores_follow_base_and_stride() {
    let mut random = Random::new(0x7374_7269);
    let memory_size = 4096;
    for rows in [1, 2, 7, 15, 16] {
        for colsb in [4, 8, 32, 60, 64] {
            for stride in [0isize, 4, 64, 100, 200, -4, -64, -100, -200] {
                let mut model = Model::new([(rows, colsb); 8]);
                let mut tiles = configured(&model);
                let mut bytes: Vec<u8> = (0..memory_size).map(|_| random.bits() as u8).collect();
                let mut right = bytes.clone();
                let start = if stride < 0 { 3200 } else { 17 };
                // The load must replace the tile's whole content, including rows and columns
                // outside of the shape.
                model.load(3, &bytes, start, stride);
                let mut memory = Memory::new();
                let at = memory.map(Slice::write("buffer", &mut bytes)).unwrap();
                let address = at + start as u64;
                amx::execute(&TileOp::Load { tile: 3 }, &mut tiles, &mut memory, address, stride as u64).unwrap();
                assert_same(&tiles, &model, &format!("load {rows}×{colsb}, stride {stride}"));
                // The store has another address and a shorter stride than the load, so that rows
                // overlap.
                amx::execute(&TileOp::Store { tile: 3 }, &mut tiles, &mut memory, address + 5, (stride / 2) as u64)
                    .unwrap();
                drop(memory);
                model.store(3, &mut right, start + 5, stride / 2);
                assert_eq!(bytes, right, "store {rows}×{colsb}, stride {}", stride / 2);
            }
        }
    }
}

#[test]
fn faulting_tile_load_records_row_and_can_resume() {
    let mut model = Model::new([(8, 64); 8]);
    let mut tiles = configured(&model);
    let bytes: Vec<u8> = (0..64 * 8).map(|i| (i / 64 + 1) as u8).collect();
    for short in [1, 64] {
        tiles.load_config(&model.config()).unwrap();
        load_rows(&mut tiles, &mut model, 0, &[5; 1024]);
        let mut memory = Memory::new();
        let at = memory.map(Slice::read("rows", &bytes[..bytes.len() - short])).unwrap();
        let trap = amx::execute(&TileOp::Load { tile: 0 }, &mut tiles, &mut memory, at, 64).unwrap_err();
        let FaultKind::OutOfBounds { offset, bytes: 64, write: false, .. } = *trap else { panic!("{trap}") };
        assert_eq!(offset, 64 * 7);
        assert_eq!(tiles.store_config()[1], 7, "the row to go on at");
    }
    assert_eq!(tiles.bytes(0).unwrap()[6], [7; 64]);
    assert_eq!(tiles.bytes(0).unwrap()[7], [0; 64]);
    // The buffer has only one row. With this start row, the load reads only the last row of the
    // tile.
    let mut memory = Memory::new();
    let at = memory.map(Slice::read("last row", &[9; 64])).unwrap();
    amx::execute(&TileOp::Load { tile: 0 }, &mut tiles, &mut memory, at.wrapping_sub(64 * 7), 64).unwrap();
    assert_eq!(tiles.bytes(0).unwrap()[7], [9; 64]);
    assert_eq!(tiles.store_config()[1], 0);

    // A store also continues at the start row. Memory of earlier rows must not change.
    let mut out = [0; 100];
    let mut memory = Memory::new();
    let at = memory.map(Slice::write("out", &mut out)).unwrap();
    let trap = amx::execute(&TileOp::Store { tile: 0 }, &mut tiles, &mut memory, at, 64).unwrap_err();
    assert!(matches!(*trap, FaultKind::OutOfBounds { offset: 64, bytes: 64, write: true, .. }), "{trap}");
    assert_eq!(tiles.store_config()[1], 1);
    drop(memory);
    assert_eq!((out[63], out[64]), (1, 0));

    // A product and `tilezero` each reset the start row.
    tiles.zero(1).unwrap();
    assert_eq!(tiles.store_config()[1], 0);
}

#[test]
fn configurations_are_loaded_stored_and_released() {
    let model = Model::new([(16, 64), (1, 4), (0, 0), (3, 12), (16, 2), (1, 1), (9, 63), (0, 0)]);
    let mut tiles = Tiles::default();
    assert!(tiles.is_init());
    assert_eq!(tiles.store_config(), [0; 64]);
    let mut config = model.config();
    config[1] = 200;
    tiles.load_config(&config).unwrap();
    assert!(!tiles.is_init());
    assert_eq!(tiles.store_config(), config);
    assert_eq!((tiles.shape(3), tiles.shape(2)), (Some(TileShape { rows: 3, colsb: 12 }), None));
    // `tilezero` accepts tiles of any shape; loads do not.
    tiles.zero(6).unwrap();
    config[1] = 0;
    assert_eq!(tiles.store_config(), config);

    // A new configuration zeroes all tiles.
    let mut model = Model::new([(16, 64); 8]);
    let mut tiles = configured(&model);
    load_rows(&mut tiles, &mut model, 5, &[7; 1024]);
    assert_same(&tiles, &model, "loaded");
    tiles.load_config(&model.config()).unwrap();
    assert_same(&tiles, &Model::new([(16, 64); 8]), "configured again");
    // A rejected configuration changes nothing.
    load_rows(&mut tiles, &mut model, 5, &[7; 1024]);
    let mut bad = model.config();
    bad[40] = 1;
    tiles.load_config(&bad).unwrap_err();
    assert_same(&tiles, &model, "refused");

    // Palette 0 releases the tiles, for any values of the other bytes. `tilerelease` does too.
    for by_palette in [true, false] {
        let mut tiles = tiles.clone();
        if by_palette {
            let mut config = [0xff; 64];
            config[0] = 0;
            tiles.load_config(&config).unwrap();
        } else {
            tiles.release();
        }
        assert!(tiles.is_init());
        assert_eq!(tiles.store_config(), [0; 64]);
        assert_same(&tiles, &Model::new([(0, 0); 8]), "released");
        assert_eq!(tiles.zero(5), Err(TileFault::NotConfigured { tile: 5 }));
    }
}

fn refused(change: impl Fn(&mut [u8; 64])) -> TileFault {
    let mut config = Model::new([(16, 64); 8]).config();
    change(&mut config);
    Tiles::default().load_config(&config).unwrap_err()
}

#[test]
fn invalid_tile_configurations_are_refused() {
    for palette in 2..=255 {
        assert_eq!(refused(|c| c[0] = palette), TileFault::Palette { palette });
    }
    for byte in (2..16).chain(32..48).chain(56..64) {
        for value in [1, 0x80] {
            let fault = refused(|c| c[byte] = value);
            assert_eq!(fault, TileFault::Reserved { byte, value });
            assert!(fault.to_string().starts_with(&format!("#GP: byte {byte} of the tile configuration is {value};")));
        }
    }
    for tile in 0..8 {
        let (at_columns, at_rows) = (16 + 2 * tile, 48 + tile);
        for colsb in [65, 66, 128, 255, 256, 0x0140, 0xffff] {
            let fault = refused(|c| c[at_columns..][..2].copy_from_slice(&u16::to_le_bytes(colsb)));
            assert_eq!(fault, TileFault::RowTooLong { byte: at_columns, tile, colsb });
        }
        for rows in [17, 18, 32, 255] {
            assert_eq!(refused(|c| c[at_rows] = rows), TileFault::TooManyRows { byte: at_rows, tile, rows });
        }
        assert_eq!(
            refused(|c| c[at_columns] = 0),
            TileFault::HalfConfigured { byte: at_columns, tile, rows: 16, colsb: 0 }
        );
        assert_eq!(refused(|c| c[at_rows] = 0), TileFault::HalfConfigured { byte: at_rows, tile, rows: 0, colsb: 64 });
    }
    // Every size up to the limits is accepted.
    for rows in 1..=16 {
        for colsb in 1..=64 {
            configured(&Model::new([(rows, colsb); 8]));
        }
    }
}

#[test]
fn tiles_that_are_not_configured_fault() {
    let mut memory = Memory::new();
    let bytes = [0; 1024];
    let at = memory.map(Slice::read("rows", &bytes)).unwrap();
    let operations = [
        TileOp::Zero { tile: 6 },
        TileOp::Load { tile: 6 },
        TileOp::Store { tile: 6 },
        TileOp::Multiply { product: TileProduct::SignedSigned, sum: 6, a: 1, b: 2 },
        TileOp::Multiply { product: TileProduct::Bf16, sum: 0, a: 6, b: 2 },
        TileOp::Multiply { product: TileProduct::F16, sum: 0, a: 1, b: 6 },
    ];
    let mut shapes = [(16, 64); 8];
    shapes[6] = (0, 0);
    let partly = configured(&Model::new(shapes));
    for op in operations {
        let mut reason = |mut tiles: Tiles| {
            let trap = amx::execute(&op, &mut tiles, &mut memory, at, 64).unwrap_err();
            let FaultKind::Tile { reason } = *trap else { panic!("{op:?}: {trap}") };
            reason
        };
        assert_eq!(reason(partly.clone()), TileFault::Unused { tile: 6 }.to_string(), "{op:?}");
        let first = match op {
            TileOp::Multiply { sum, .. } => sum.into(),
            _ => 6,
        };
        assert_eq!(reason(Tiles::default()), TileFault::NotConfigured { tile: first }.to_string(), "{op:?}");
    }
    // Palette 1 has only tiles 0 to 7.
    assert_eq!(partly.clone().zero(8), Err(TileFault::NoSuchTile { tile: 8 }));
}

#[test]
fn shapes_that_do_not_fit_fault() {
    let multiply = |c: (usize, usize), a: (usize, usize), b: (usize, usize)| {
        let mut shapes = [(16, 64); 8];
        [shapes[5], shapes[3], shapes[7]] = [c, a, b];
        let mut tiles = configured(&Model::new(shapes));
        let faults = PRODUCTS.map(|product| tiles.multiply(product, 5, 3, 7));
        assert!(faults.iter().all(|f| *f == faults[0]));
        faults[0].clone()
    };
    assert_eq!(multiply((3, 8), (3, 20), (5, 8)), Ok(()));
    assert_eq!(multiply((3, 8), (4, 20), (5, 8)), Err(TileFault::RowsDiffer { sum: 5, sum_rows: 3, a: 3, a_rows: 4 }));
    assert_eq!(
        multiply((3, 12), (3, 20), (5, 8)),
        Err(TileFault::ColumnsDiffer { sum: 5, sum_colsb: 12, b: 7, b_colsb: 8 })
    );
    assert_eq!(multiply((3, 8), (3, 20), (6, 8)), Err(TileFault::InnerDiffers { a: 3, a_dwords: 5, b: 7, b_rows: 6 }));
    assert_eq!(multiply((3, 8), (3, 16), (5, 8)), Err(TileFault::InnerDiffers { a: 3, a_dwords: 4, b: 7, b_rows: 5 }));
    for odd in [1, 2, 3] {
        assert_eq!(multiply((3, 8 + odd), (3, 20), (5, 8)), Err(TileFault::PartialDword { tile: 5, colsb: 8 + odd }));
        assert_eq!(multiply((3, 8), (3, 20 + odd), (5, 8)), Err(TileFault::PartialDword { tile: 3, colsb: 20 + odd }));
        assert_eq!(multiply((3, 8), (3, 20), (5, 8 + odd)), Err(TileFault::PartialDword { tile: 7, colsb: 8 + odd }));
        let mut tiles = configured(&Model::new([(3, 8 + odd); 8]));
        for op in [TileOp::Load { tile: 2 }, TileOp::Store { tile: 2 }] {
            let trap = amx::execute(&op, &mut tiles, &mut Memory::new(), 0, 0).unwrap_err();
            assert_eq!(trap.to_string(), TileFault::PartialDword { tile: 2, colsb: 8 + odd }.to_string());
        }
    }
    // A product that names one tile twice is rejected, even if the shapes match.
    let mut tiles = configured(&Model::new([(16, 64); 8]));
    for product in PRODUCTS {
        assert_eq!(tiles.multiply(product, 1, 1, 2), Err(TileFault::SameTile { tile: 1 }));
        assert_eq!(tiles.multiply(product, 1, 2, 1), Err(TileFault::SameTile { tile: 1 }));
        assert_eq!(tiles.multiply(product, 1, 2, 2), Err(TileFault::SameTile { tile: 2 }));
    }
    // The start row is after the tile's last row.
    let mut config = Model::new([(5, 8); 8]).config();
    config[1] = 5;
    tiles.load_config(&config).unwrap();
    for op in [TileOp::Load { tile: 2 }, TileOp::Store { tile: 2 }] {
        let trap = amx::execute(&op, &mut tiles, &mut Memory::new(), 0, 0).unwrap_err();
        assert_eq!(trap.to_string(), TileFault::StartRow { tile: 2, start_row: 5, rows: 5 }.to_string());
    }
}

/// Returns a program of these instructions. It first loads the addresses of the call's buffers into
/// rax, rcx, rdx and r8.
fn encoded(instructions: &[Instruction]) -> Program {
    let mut encoder = Encoder::new(64);
    let buffers = [Register::RAX, Register::RCX, Register::RDX, Register::R8].into_iter().enumerate().map(|(n, to)| {
        let from = MemoryOperand::with_base_displ(Register::RDI, 8 * n as i64);
        Instruction::with2(Code::Mov_r64_rm64, to, from).unwrap()
    });
    let mut at = 0;
    for instruction in buffers.chain(instructions.iter().copied()) {
        at += encoder.encode(&instruction, at).unwrap() as u64;
    }
    let code = encoder.take_buffer();
    Program::new(&code, code.len(), Features::from_list(Feature::ALL)).unwrap_or_else(|fault| panic!("{fault}"))
}

fn tile_memory(base: Register, index: Register, scale: u32, displacement: i64) -> MemoryOperand {
    MemoryOperand::new(base, index, scale, displacement, 8, false, Register::None)
}

/// Tests encodings of tile instructions: the order of operands, strides with every scale, a
/// displacement, and no index register.
#[test]
fn encoded_tile_instructions_match_the_manual() {
    use Register::{R8, R9, RAX, RCX, RDX, TMM1, TMM3, TMM6};
    let codes = [
        Code::VEX_Tdpbssd_tmm_tmm_tmm,
        Code::VEX_Tdpbsud_tmm_tmm_tmm,
        Code::VEX_Tdpbusd_tmm_tmm_tmm,
        Code::VEX_Tdpbuud_tmm_tmm_tmm,
        Code::VEX_Tdpbf16ps_tmm_tmm_tmm,
        Code::VEX_Tdpfp16ps_tmm_tmm_tmm,
    ];
    let mut random = Random::new(0x656e_6362);
    for (product, code) in PRODUCTS.into_iter().zip(codes) {
        for scale in [1u32, 2, 4, 8] {
            let stride = 128 / i64::from(scale) * if scale == 2 { -1 } else { 1 };
            // With a negative stride, the first address is that of the last row.
            let start = if stride < 0 { 15 * 128 } else { 0 };
            // The product is tmm6 (5×12) += tmm1 (5×28) · tmm3 (7×12). Its shapes and values show
            // whether operands are exchanged.
            let shapes = [(0, 0), (5, 28), (0, 0), (7, 12), (0, 0), (0, 0), (5, 12), (0, 0)];
            let mut model = Model::new(shapes);
            let (a, b) = (operand(&mut random, product, 2048), operand(&mut random, product, 2048));
            let mut c = sums(&mut random, product, 2048);
            model.load(1, &a, start as isize, 128 * stride.signum() as isize);
            model.load(3, &b, 4, 0);
            model.load(6, &c, start as isize, 128 * stride.signum() as isize);
            model.multiply(product, 6, 1, 3);
            let mut right = c.clone();
            model.store(6, &mut right, start as isize, 128 * stride.signum() as isize);

            let program = encoded(&[
                Instruction::with2(Code::Mov_r64_imm64, R9, stride).unwrap(),
                Instruction::with1(Code::VEX_Ldtilecfg_m512, MemoryOperand::with_base(RAX)).unwrap(),
                Instruction::with2(Code::VEX_Tileloadd_tmm_sibmem, TMM1, tile_memory(RCX, R9, scale, start)).unwrap(),
                Instruction::with2(Code::VEX_Tileloaddt1_tmm_sibmem, TMM3, tile_memory(RDX, Register::None, 1, 4))
                    .unwrap(),
                Instruction::with2(Code::VEX_Tileloadd_tmm_sibmem, TMM6, tile_memory(R8, R9, scale, start)).unwrap(),
                Instruction::with3(code, TMM6, TMM1, TMM3).unwrap(),
                Instruction::with2(Code::VEX_Tilestored_sibmem_tmm, tile_memory(R8, R9, scale, start), TMM6).unwrap(),
                Instruction::with(Code::VEX_Tilerelease),
                Instruction::with(Code::Retnq),
            ]);
            let config = model.config();
            let buffers =
                [Slice::read("config", &config), Slice::read("a", &a), Slice::read("b", &b), Slice::write("c", &mut c)];
            program.call(&buffers, &[]).unwrap_or_else(|fault| panic!("{product:?}: {fault}"));
            assert_eq!(c, right, "{product:?}, scale {scale}, stride {stride}");
        }
    }
}

#[test]
fn encoded_tile_configurations_are_stored_and_released() {
    use Register::{RAX, RCX, TMM5};
    let model = Model::new([(16, 64), (1, 4), (0, 0), (3, 12), (16, 2), (1, 1), (9, 63), (0, 0)]);
    let config = model.config();
    let call = |instructions: &[Instruction], out: &mut [u8]| {
        let buffers =
            [Slice::read("config", &config), Slice::write("out", out), Slice::read("", &[]), Slice::read("", &[])];
        encoded(instructions).call(&buffers, &[])
    };
    let load = Instruction::with1(Code::VEX_Ldtilecfg_m512, MemoryOperand::with_base(RAX)).unwrap();
    let store = |at| Instruction::with1(Code::VEX_Sttilecfg_m512, MemoryOperand::with_base_displ(RCX, at)).unwrap();
    let zero = Instruction::with1(Code::VEX_Tilezero_tmm, TMM5).unwrap();
    let (release, ret) = (Instruction::with(Code::VEX_Tilerelease), Instruction::with(Code::Retnq));

    let mut out = [0xee; 192];
    call(&[store(0), load, zero, store(64), release, store(128), ret], &mut out).unwrap();
    assert_eq!((&out[..64], &out[64..128], &out[128..]), (&[0; 64][..], &config[..], &[0; 64][..]));

    let kind = |instructions: &[_]| call(instructions, &mut [0; 64]).unwrap_err().kind;
    assert_eq!(kind(&[load, ret]), FaultKind::TileState);
    let reason = TileFault::NotConfigured { tile: 5 }.to_string();
    assert_eq!(kind(&[load, release, zero, ret]), FaultKind::Tile { reason: reason.clone() });
    assert_eq!(kind(&[zero, ret]), FaultKind::Tile { reason });
}
