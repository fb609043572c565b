//! Tests tile instructions against this CPU: results, configurations, and faults.
//!
//! A case is a whole function, from `ldtilecfg` to `tilerelease`, so that tiles are live only
//! during one call. The emulator executes all cases on any machine. A CPU with tiles also executes
//! them, in a separate process. If the emulator finds `#GP`, the process must end with SIGSEGV; for
//! `#UD`, it must end with SIGILL. Invalid configurations are constructed from valid ones, because
//! random bytes would rarely be valid.
//!
//! Sums that are NaN may have other bits, because `ixc` does not specify the payloads of NaN. The
//! number of these differences is printed.

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};
use ixc_emulator::amx::TileProduct;
use ixc_emulator::{FaultKind, Program, Slice};
use ixc_ir::random::Random;
use ixc_targets::cpu;
use ixc_targets::{Feature, Features};

use crate::amx::{Model, PRODUCTS, operand, sums};
use crate::apart::{Function, Shared, Signal};

/// Register with the address of the configuration. The next four have the addresses of three input
/// buffers and of the output.
const CONFIG: Register = Register::RAX;
const READ: [Register; 3] = [Register::RCX, Register::RDX, Register::R8];
const OUT: Register = Register::R9;
/// Index register of tile operands, which contains the stride.
const STRIDE: Register = Register::R10;
/// Number of bytes of a tile in the output. The output has eight tiles, and then configurations.
const TILE: usize = 1024;
const CONFIGS_AT: usize = 8 * TILE;
const OUT_BYTES: usize = CONFIGS_AT + 4 * 64;
/// Byte that fills the output before a case.
const POISON: u8 = 0xee;

fn code_of(product: TileProduct) -> (Code, Feature) {
    match product {
        TileProduct::SignedSigned => (Code::VEX_Tdpbssd_tmm_tmm_tmm, Feature::AmxInt8),
        TileProduct::SignedUnsigned => (Code::VEX_Tdpbsud_tmm_tmm_tmm, Feature::AmxInt8),
        TileProduct::UnsignedSigned => (Code::VEX_Tdpbusd_tmm_tmm_tmm, Feature::AmxInt8),
        TileProduct::UnsignedUnsigned => (Code::VEX_Tdpbuud_tmm_tmm_tmm, Feature::AmxInt8),
        TileProduct::Bf16 => (Code::VEX_Tdpbf16ps_tmm_tmm_tmm, Feature::AmxBf16),
        TileProduct::F16 => (Code::VEX_Tdpfp16ps_tmm_tmm_tmm, Feature::AmxFp16),
    }
}

fn is_float(product: TileProduct) -> bool {
    matches!(product, TileProduct::Bf16 | TileProduct::F16)
}

fn tmm(n: usize) -> Register {
    Register::TMM0 + n as u32
}

fn ldtilecfg() -> Instruction {
    Instruction::with1(Code::VEX_Ldtilecfg_m512, MemoryOperand::with_base(CONFIG)).unwrap()
}

/// Returns the instruction that stores the configuration as number `n` of the output's
/// configurations.
fn sttilecfg(n: usize) -> Instruction {
    let to = MemoryOperand::with_base_displ(OUT, (CONFIGS_AT + 64 * n) as i64);
    Instruction::with1(Code::VEX_Sttilecfg_m512, to).unwrap()
}

fn set_stride(stride: i64) -> Instruction {
    Instruction::with2(Code::Mov_r64_imm64, STRIDE, stride).unwrap()
}

fn rows_at(base: Register, scale: u32, displacement: i64) -> MemoryOperand {
    MemoryOperand::new(base, STRIDE, scale, displacement, 8, false, Register::None)
}

fn load(tile: usize, from: MemoryOperand) -> Instruction {
    Instruction::with2(Code::VEX_Tileloadd_tmm_sibmem, tmm(tile), from).unwrap()
}

fn store(tile: usize, to: MemoryOperand) -> Instruction {
    Instruction::with2(Code::VEX_Tilestored_sibmem_tmm, to, tmm(tile)).unwrap()
}

fn zero(tile: usize) -> Instruction {
    Instruction::with1(Code::VEX_Tilezero_tmm, tmm(tile)).unwrap()
}

fn multiply(product: TileProduct, [c, a, b]: [usize; 3]) -> Instruction {
    Instruction::with3(code_of(product).0, tmm(c), tmm(a), tmm(b)).unwrap()
}

fn release() -> Instruction {
    Instruction::with(Code::VEX_Tilerelease)
}

/// A test case: one function, which is called once.
struct Case {
    name: String,
    code: Vec<u8>,
    /// Contents of the input buffers: the configuration, and three more.
    read: [Vec<u8>; 4],
    /// Whether the dwords of the output are floats.
    float: bool,
}

impl Case {
    /// Returns a case. `body` may be any code that does not change the stack pointer. If it leaves
    /// tiles configured, they are released at the end.
    fn new(name: String, config: [u8; 64], read: [Vec<u8>; 3], float: bool, body: &[Instruction]) -> Case {
        let buffers = [CONFIG].into_iter().chain(READ).chain([OUT]).enumerate().map(|(n, to)| {
            let from = MemoryOperand::with_base_displ(Register::RDI, 8 * n as i64);
            Instruction::with2(Code::Mov_r64_rm64, to, from).unwrap()
        });
        let mut encoder = Encoder::new(64);
        let mut at = 0;
        for i in buffers.chain(body.iter().copied()).chain([release(), Instruction::with(Code::Retnq)]) {
            at += encoder.encode(&i, at).unwrap_or_else(|error| panic!("{name}: {i}: {error}")) as u64;
        }
        let [a, b, c] = read;
        Case { name, code: encoder.take_buffer(), read: [config.to_vec(), a, b, c], float }
    }

    /// Returns the output from the emulator, or the signal that corresponds to its fault.
    fn emulate(&self) -> Result<Vec<u8>, Signal> {
        let mut out = vec![POISON; OUT_BYTES];
        let mut slices: Vec<Slice<'_>> = self.read.iter().map(|bytes| Slice::read("read", bytes)).collect();
        slices.push(Slice::write("out", &mut out));
        let program = Program::new(&self.code, self.code.len(), Features::from_list(Feature::ALL));
        let result = program.and_then(|program| program.call(&slices, &[]));
        drop(slices);
        match result.map_err(|fault| fault.kind) {
            Ok(_) => Ok(out),
            Err(FaultKind::Tile { reason }) if reason.starts_with("#GP") => Err(Signal(libc::SIGSEGV)),
            Err(FaultKind::Tile { reason }) if reason.starts_with("#UD") => Err(Signal(libc::SIGILL)),
            // The bytes are an invalid encoding because of the operands.
            Err(FaultKind::Unknown { .. }) => Err(Signal(libc::SIGILL)),
            // The emulator reports an undefined register if a tile is used without a configuration.
            Err(FaultKind::Undefined { register }) if register.starts_with("tmm") => Err(Signal(libc::SIGILL)),
            Err(other) => panic!("{}: {other}", self.name),
        }
    }

    /// Returns the output from this CPU, or the signal that ended the process.
    ///
    /// # Safety
    /// The CPU must have the instructions, and the process must have the permission to use tiles.
    unsafe fn execute(&self, shared: &mut Shared) -> Result<Vec<u8>, Signal> {
        shared.bytes().fill(POISON);
        let mut pointers: Vec<*mut u8> = self.read.iter().map(|bytes| bytes.as_ptr().cast_mut()).collect();
        pointers.push(shared.bytes().as_mut_ptr());
        // SAFETY: the caller guarantees both.
        unsafe { Function::new(&self.code).call_apart(&pointers) }?;
        Ok(shared.bytes().to_vec())
    }
}

/// Runs cases and counts them.
struct Comparison {
    what: &'static str,
    /// Whether this CPU has the features that the cases need.
    native: bool,
    cases: usize,
    faults: usize,
    other_nans: usize,
    shared: Shared,
}

impl Comparison {
    fn new(what: &'static str, needs: &[Feature]) -> Comparison {
        let missing = cpu::missing(Features::from_list(&[Feature::AmxTile]).with(needs));
        if !missing.is_empty() {
            println!("NOT RUN natively: {what}, emulated only: this machine lacks {}", cpu::list(&missing));
        }
        let shared = Shared::new(OUT_BYTES);
        Comparison { what, native: missing.is_empty(), cases: 0, faults: 0, other_nans: 0, shared }
    }

    fn run(&mut self, case: &Case, faults: bool) {
        let emulated = case.emulate();
        assert_eq!(emulated.is_err(), faults, "{}: {:?}", case.name, emulated.err());
        self.cases += 1;
        self.faults += usize::from(faults);
        if !self.native {
            return;
        }
        // SAFETY: the CPU has the features that the cases need, and the process has the permission.
        let native = unsafe { case.execute(&mut self.shared) };
        match (&native, &emulated) {
            (Ok(native), Ok(emulated)) => {
                let dwords =
                    |bytes: &[u8]| bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect::<Vec<_>>();
                for (n, (native, emulated)) in dwords(native).into_iter().zip(dwords(emulated)).enumerate() {
                    let nan = case.float
                        && 4 * n < CONFIGS_AT
                        && f32::from_bits(native).is_nan()
                        && f32::from_bits(emulated).is_nan();
                    self.other_nans += usize::from(nan && native != emulated);
                    assert!(
                        nan || native == emulated,
                        "{}: byte {}: {native:08x}, emulated {emulated:08x}",
                        case.name,
                        4 * n
                    );
                }
            }
            _ => assert_eq!(
                native.err(),
                emulated.err(),
                "{}: what this CPU does, and what the emulator says",
                case.name
            ),
        }
    }

    fn done(self) {
        let Comparison { what, cases, faults, other_nans, .. } = self;
        if self.native {
            println!("native: {what}: {cases} cases, {faults} of them faults; {other_nans} sums are another NaN");
        }
        assert!(cases > 0);
    }
}

/// Returns a case with one product. The three buffers are the sums and the factors. Afterwards, the
/// case stores all tiles and the configuration.
fn product_case(name: String, product: TileProduct, model: &Model, tiles: [usize; 3], read: [Vec<u8>; 3]) -> Case {
    let mut body = vec![ldtilecfg(), set_stride(64)];
    body.extend(tiles.into_iter().zip(READ).map(|(tile, from)| load(tile, rows_at(from, 1, 0))));
    body.push(multiply(product, tiles));
    body.extend(tiles.map(|tile| store(tile, rows_at(OUT, 1, (TILE * tile) as i64))));
    body.push(sttilecfg(0));
    Case::new(name, model.config(), read, is_float(product), &body)
}

#[test]
fn emulated_tile_products_match_this_cpu() {
    for product in PRODUCTS {
        let code = code_of(product);
        let what: &'static str = match product {
            TileProduct::SignedSigned => "tdpbssd",
            TileProduct::SignedUnsigned => "tdpbsud",
            TileProduct::UnsignedSigned => "tdpbusd",
            TileProduct::UnsignedUnsigned => "tdpbuud",
            TileProduct::Bf16 => "tdpbf16ps",
            TileProduct::F16 => "tdpfp16ps",
        };
        let mut comparison = Comparison::new(what, &[code.1]);
        let mut random = Random::new(0x7469_6c65);
        for (rows, inner) in (1..=16).flat_map(|rows| (1..=16).map(move |inner| (rows, inner))) {
            let columns = 1 + (5 * rows + 3 * inner) % 16;
            let tiles = [(rows + inner) % 8, (rows + inner + 3) % 8, (rows + inner + 5) % 8];
            let mut shapes = [(16, 64); 8];
            for (tile, shape) in tiles.into_iter().zip([(rows, 4 * columns), (rows, 4 * inner), (inner, 4 * columns)]) {
                shapes[tile] = shape;
            }
            let mut factor = || {
                let mut bytes = operand(&mut random, product, TILE);
                if !is_float(product) && (rows + inner) % 4 == 0 {
                    // All bytes are above 127, so that signed and unsigned products differ.
                    bytes.iter_mut().for_each(|byte| *byte |= 0x80);
                }
                bytes
            };
            let (a, b) = (factor(), factor());
            let c = sums(&mut random, product, TILE);
            let name = format!("{what} {rows}×{inner}×{columns}");
            comparison.run(&product_case(name, product, &Model::new(shapes), tiles, [c, a, b]), false);
        }
        comparison.done();
    }
}

/// Tests each pair of bytes at one of four positions, for all combinations of signedness. Both
/// bytes may be above 127.
#[test]
fn emulated_byte_products_match_this_cpu() {
    let mut comparison = Comparison::new("products of all pairs of bytes", &[Feature::AmxInt8]);
    let model = Model::new([(16, 64), (16, 4), (1, 64), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)]);
    for product in PRODUCTS.into_iter().filter(|product| !is_float(*product)) {
        for (i, j) in (0..16).flat_map(|i| (0..16).map(move |j| (i, j))) {
            let place = (i + j) % 4;
            let (mut a, mut b) = (vec![0; TILE], vec![0; TILE]);
            for m in 0..16 {
                a[64 * m + place] = (16 * i + m) as u8;
                b[4 * m + place] = (16 * j + m) as u8;
            }
            let name = format!("{product:?}: bytes from {} and {}", 16 * i, 16 * j);
            comparison.run(&product_case(name, product, &model, [0, 1, 2], [vec![0; TILE], a, b]), false);
        }
    }
    comparison.done();
}

#[test]
fn emulated_tile_loads_and_stores_match_this_cpu() {
    let mut comparison = Comparison::new("tile loads and stores", &[]);
    let mut random = Random::new(0x6c6f_6164);
    let bytes: Vec<u8> = (0..2 * 4096).map(|_| random.bits() as u8).collect();
    let read = [bytes, vec![], vec![]];
    for (rows, colsb) in [(1, 4), (2, 64), (7, 8), (15, 60), (16, 32), (16, 64)] {
        for stride in [0, 8, 64, 104, 200, -8, -64, -104, -200] {
            for (scale, start_row) in [(1, 0), (2, rows / 2), (4, rows - 1), (8, 0)] {
                let mut config = Model::new([(rows, colsb); 8]).config();
                config[1] = start_row as u8;
                // With a negative stride, the rows start near the end of the buffer; with a
                // positive stride, near its beginning.
                let (from, to) = if stride < 0 { (3200, 3300) } else { (17, 5) };
                let by_hint = |i: Instruction| match scale {
                    4 => Instruction::with2(
                        Code::VEX_Tileloaddt1_tmm_sibmem,
                        i.op0_register(),
                        rows_at(READ[0], 4, from),
                    ),
                    _ => Ok(i),
                };
                let body = [
                    ldtilecfg(),
                    set_stride(stride / i64::from(scale)),
                    by_hint(load(3, rows_at(READ[0], scale, from))).unwrap(),
                    // The start row applies only to one load, and is then 0.
                    sttilecfg(0),
                    store(3, rows_at(OUT, scale, to)),
                    set_stride(64),
                    store(3, rows_at(OUT, 1, 4096)),
                    sttilecfg(1),
                ];
                let name = format!("{rows} rows of {colsb} bytes from row {start_row}, stride {stride}, scale {scale}");
                comparison.run(&Case::new(name, config, read.clone(), false, &body), false);
            }
        }
    }
    comparison.done();
}

#[test]
fn emulated_tile_configurations_match_this_cpu() {
    let mut comparison = Comparison::new("tile configurations", &[]);
    let mut random = Random::new(0x636f_6e66);
    let empty = || [vec![], vec![], vec![]];
    for n in 0..200 {
        let shapes = [(); 8].map(|()| match random.bits() & 3 {
            0 => (0, 0),
            _ => (1 + random.bits() as usize % 16, 1 + random.bits() as usize % 64),
        });
        let mut config = Model::new(shapes).config();
        config[1] = random.bits() as u8;
        let used = shapes.iter().position(|(rows, _)| *rows > 0);
        // `tilezero` ignores the start row, and sets it to 0.
        let zeroed = used.map(zero);
        let body =
            [Some(sttilecfg(0)), Some(ldtilecfg()), Some(sttilecfg(1)), zeroed, Some(sttilecfg(2)), Some(release())];
        let body: Vec<Instruction> = body.into_iter().flatten().chain([sttilecfg(3)]).collect();
        comparison.run(&Case::new(format!("configuration {n}: {shapes:?}"), config, empty(), false, &body), false);
    }
    // Palette 0 releases the tiles, for any values of the other bytes.
    let mut config = [0xff; 64];
    config[0] = 0;
    let body = [ldtilecfg(), sttilecfg(0)];
    comparison.run(&Case::new("palette 0".into(), config, empty(), false, &body), false);
    comparison.done();
}

/// Tests each kind of fault of tile instructions that the manual lists.
#[test]
fn emulated_tile_faults_match_this_cpu() {
    let mut comparison = Comparison::new("faults of tile instructions", &[Feature::AmxInt8, Feature::AmxBf16]);
    let good = || Model::new([(16, 64); 8]).config();
    let mut refuse = |name: String, config: [u8; 64], body: &[Instruction]| {
        let rows = || vec![0x55; 4096];
        comparison.run(&Case::new(name, config, [rows(), rows(), rows()], false, body), true);
    };
    let mut refuse_config = |name: String, change: &dyn Fn(&mut [u8; 64])| {
        let mut config = good();
        change(&mut config);
        refuse(name, config, &[ldtilecfg()]);
    };
    for palette in [2, 3, 127, 128, 255] {
        refuse_config(format!("palette {palette}"), &|config| config[0] = palette);
    }
    for byte in (2..16).chain(32..48).chain(56..64) {
        refuse_config(format!("reserved byte {byte}"), &|config| config[byte] = if byte % 2 == 0 { 1 } else { 0x80 });
    }
    for tile in 0..8 {
        for colsb in [0, 65, 128, 256, 0xffff_u16] {
            refuse_config(format!("tmm{tile}: rows of {colsb} bytes"), &|config| {
                config[16 + 2 * tile..][..2].copy_from_slice(&colsb.to_le_bytes());
            });
        }
        for rows in [0, 17, 255] {
            refuse_config(format!("tmm{tile}: {rows} rows"), &|config| config[48 + tile] = rows);
        }
    }

    // Uses of tiles that are not configured: no tile is configured, or only this one is not.
    let mut partly = [(16, 64); 8];
    partly[6] = (0, 0);
    let first = rows_at(READ[0], 1, 0);
    let uses = [
        ("tilezero", zero(6)),
        ("tileloadd", load(6, first)),
        ("tilestored", store(6, rows_at(OUT, 1, 0))),
        ("sums", multiply(TileProduct::UnsignedSigned, [6, 1, 2])),
        ("first factor", multiply(TileProduct::Bf16, [0, 6, 2])),
        ("second factor", multiply(TileProduct::SignedSigned, [0, 1, 6])),
    ];
    for (name, i) in uses {
        refuse(format!("{name} without a configuration"), good(), &[set_stride(64), i]);
        refuse(format!("{name} after tilerelease"), good(), &[set_stride(64), ldtilecfg(), release(), i]);
        refuse(format!("{name} of a tile left out"), Model::new(partly).config(), &[set_stride(64), ldtilecfg(), i]);
    }

    // Products with shapes that do not match, with rows that are not whole dwords, or with the same
    // tile twice.
    let cases: [(&str, [(usize, usize); 3]); 7] = [
        ("rows differ", [(3, 8), (4, 20), (5, 8)]),
        ("columns differ", [(3, 12), (3, 20), (5, 8)]),
        ("the second factor has a row too many", [(3, 8), (3, 20), (6, 8)]),
        ("the first factor has a column too few", [(3, 8), (3, 16), (5, 8)]),
        ("sums of no whole dwords", [(3, 9), (3, 20), (5, 8)]),
        ("a first factor of no whole dwords", [(3, 8), (3, 22), (5, 8)]),
        ("a second factor of no whole dwords", [(3, 8), (3, 20), (5, 11)]),
    ];
    let products = PRODUCTS.into_iter().filter(|product| *product != TileProduct::F16);
    for product in products {
        for (name, [c, a, b]) in cases {
            let mut shapes = [(16, 64); 8];
            [shapes[5], shapes[3], shapes[7]] = [c, a, b];
            let body = [ldtilecfg(), multiply(product, [5, 3, 7])];
            refuse(format!("{product:?}: {name}"), Model::new(shapes).config(), &body);
        }
        for tiles in [[1, 1, 2], [1, 2, 1], [1, 2, 2]] {
            refuse(format!("{product:?} of {tiles:?}"), good(), &[ldtilecfg(), multiply(product, tiles)]);
        }
    }
    for odd in [1, 2, 3] {
        let config = Model::new([(3, 8 + odd); 8]).config();
        refuse(format!("load of rows of {} bytes", 8 + odd), config, &[ldtilecfg(), set_stride(64), load(2, first)]);
        let to = rows_at(OUT, 1, 0);
        refuse(format!("store of rows of {} bytes", 8 + odd), config, &[ldtilecfg(), set_stride(64), store(2, to)]);
    }
    let mut config = Model::new([(5, 8); 8]).config();
    config[1] = 5;
    refuse("load from behind the last row".into(), config, &[ldtilecfg(), set_stride(64), load(2, first)]);
    refuse(
        "store from behind the last row".into(),
        config,
        &[ldtilecfg(), set_stride(64), store(2, rows_at(OUT, 1, 0))],
    );
    comparison.done();
}
