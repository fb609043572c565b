//! Tests with hand-written loops. The expected cost is derived in each test.

use iced_x86::{BlockEncoder, BlockEncoderOptions, Code, Instruction, InstructionBlock, MemoryOperand, Register};
use ixc_codegen::line::Line;
use ixc_cost::{self as cost, Block, Bound, KernelCostError, Report};
use ixc_ir::kernel::{CallError, Kernel, KernelBuilder, Type};
use ixc_targets::Target;

const COUNTERS: [Register; 2] = [Register::RCX, Register::RDX];

pub fn zmm(n: u32) -> Register {
    Register::ZMM0 + n
}

pub fn ymm(n: u32) -> Register {
    Register::YMM0 + n
}

pub fn tmm(n: u32) -> Register {
    Register::TMM0 + n
}

fn at(base: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ(base, displacement)
}

fn three(code: Code, a: Register, b: Register, c: Register) -> Instruction {
    Instruction::with3(code, a, b, c).unwrap()
}

fn add(register: Register) -> Instruction {
    Instruction::with2(Code::Add_rm64_imm8, register, 32).unwrap()
}

/// Part of a test's code: straight-line code, or a loop.
pub enum Part {
    Code(Vec<Instruction>),
    /// A counted loop, and the number of its IR statement.
    Loop(u32, Vec<Part>),
    /// Code after a test, and the number of its IR statement.
    Once(u32, Vec<Part>),
}

pub fn assemble(parts: &[Part]) -> (Vec<u8>, Vec<Line>) {
    let mut out = Vec::new();
    emit(parts, 0, &mut out);
    for (n, (instruction, _)) in out.iter_mut().enumerate() {
        instruction.set_ip(1000 + n as u64);
    }
    let instructions: Vec<Instruction> = out.iter().map(|(i, _)| *i).collect();
    let block = InstructionBlock::new(&instructions, 0);
    let result = BlockEncoder::encode(64, block, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS).unwrap();
    let offsets = result.new_instruction_offsets;
    let lines = offsets.iter().zip(&out).map(|(&offset, &(_, origin))| Line { offset, origin }).collect();
    (result.code_buffer, lines)
}

fn emit(parts: &[Part], depth: usize, out: &mut Vec<(Instruction, Option<u32>)>) {
    for part in parts {
        match part {
            Part::Once(origin, body) => {
                let guard = out.len();
                out.push((Instruction::default(), Some(*origin)));
                emit(body, depth, out);
                let target = 1000 + out.len() as u64;
                out[guard].0 = Instruction::with_branch(Code::Je_rel32_64, target).unwrap();
            }
            Part::Code(code) => out.extend(code.iter().map(|i| (*i, None))),
            Part::Loop(origin, body) => {
                let start = 1000 + out.len() as u64;
                emit(body, depth + 1, out);
                let origin = Some(*origin);
                out.push((Instruction::with1(Code::Dec_rm64, COUNTERS[depth]).unwrap(), origin));
                out.push((Instruction::with_branch(Code::Jne_rel32_64, start).unwrap(), origin));
            }
        }
    }
}

/// Returns two nested loops: `%i` over the dim `%n`, and `%j` over 7.
fn nest() -> Kernel {
    let mut b = KernelBuilder::new("nest");
    let n = b.dim("n", 0, 100);
    let (x, y) = (b.read("x", n * 32), b.write("y", n * 32));
    b.for_each("i", n, |b, i| {
        let a = b.load(Type::f32(8), x, i * 32);
        b.for_each("j", 7, |b, _| b.store(y, i * 32, a));
    });
    b.finish()
}

fn analyse(parts: &[Part], cpu: &str) -> Report {
    let (code, lines) = assemble(parts);
    let target = Target::from_name(cpu).unwrap();
    let report = cost::analyse(&code, &lines, &nest(), cost::model(target).unwrap());
    println!("{report}");
    report
}

fn one_loop(body: Vec<Instruction>, cpu: &str) -> Block {
    let report = analyse(&[Part::Loop(0, vec![Part::Code(body)])], cpu);
    assert_eq!(report.unknown, []);
    report.loops[0].body.clone()
}

fn fmas(n: u32) -> Vec<Instruction> {
    (0..n).map(|i| three(Code::VEX_Vfmadd231ps_ymm_ymm_ymmm256, ymm(i), ymm(14), ymm(15))).collect()
}

#[test]
fn too_few_accumulators_are_bound_by_latency_and_enough_by_ports() {
    // Haswell's multiply-adds have a latency of 5 cycles and two ports. Eight chains give 8
    // multiply-adds in 5 cycles; twelve need 6.
    let few = one_loop(fmas(8), "haswell");
    assert_eq!((few.cycles, few.bound, few.port_cycles), (5.0, Bound::Chain, 4.0));
    let many = one_loop(fmas(12), "haswell");
    assert_eq!((many.cycles, many.bound, many.multiply_share), (6.0, Bound::Ports, 1.0));
    assert_eq!(many.busiest, "p0|p1");
    // `dec` and `jne` take one slot together, so there are 13 slots, 4 per cycle.
    assert_eq!((many.slots, many.front_end), (13, 3.25));
    assert_eq!((many.mix.fma, many.mix.scalar, many.instructions), (12, 2, 14));
    assert_eq!(few.chain_register.as_deref(), Some("zmm0"));
}

#[test]
fn loads_as_operands_take_load_ports_and_no_slot() {
    // There are six sums that each read memory. Haswell loads two values per cycle; Golden Cove has
    // three load ports.
    let body: Vec<Instruction> = (0..6)
        .map(|i| {
            Instruction::with3(Code::VEX_Vpaddd_ymm_ymm_ymmm256, ymm(i), ymm(8), at(Register::RAX, 32 * i64::from(i)))
        })
        .map(Result::unwrap)
        .collect();
    let block = one_loop(body.clone(), "haswell");
    assert_eq!((block.slots, block.uops, block.mix.vector, block.mix.reads), (7, 13, 6, 6));
    assert_eq!((block.cycles, block.bound), (3.0, Bound::Ports));
    assert_eq!(one_loop(body, "alder-lake").port_cycles, 2.0);
}

#[test]
fn store_throughput_of_64_bytes_matches_each_cpu() {
    let body = || -> Vec<Instruction> {
        let store =
            |i: i64| Instruction::with2(Code::EVEX_Vmovdqu64_zmmm512_k1z_zmm, at(Register::RAX, 64 * i), zmm(0));
        (0..3).map(store).map(Result::unwrap).collect()
    };
    assert_eq!(one_loop(body(), "zen4").cycles, 6.0);
    assert_eq!(one_loop(body(), "sapphire-rapids").cycles, 3.0);
    assert_eq!(one_loop(body(), "icelake").cycles, 1.5);
}

#[test]
fn broadcast_load_counts_once_and_64_byte_load_twice() {
    let at = |displacement| MemoryOperand::with_base_displ(Register::RAX, displacement);
    let sum =
        |i: u32| Instruction::with3(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, zmm(i), zmm(20), at(64 * i64::from(i)));
    let whole: Vec<Instruction> = (0..4).map(|i| sum(i).unwrap()).collect();
    let mut broadcast = whole.clone();
    broadcast.iter_mut().for_each(|i| i.set_is_broadcast(true));
    assert_eq!(one_loop(whole, "zen4").cycles, 4.0);
    assert_eq!(one_loop(broadcast, "zen4").cycles, 2.0);
}

#[test]
fn register_moves_cost_only_a_slot_on_zen() {
    let body = vec![Instruction::with2(Code::Mov_r64_rm64, Register::RAX, Register::RBX).unwrap(); 17];
    let block = one_loop(body, "zen4");
    assert_eq!((block.cycles, block.bound, block.slots), (3.0, Bound::FrontEnd, 18));
}

#[test]
fn wide_arithmetic_closes_port_1_to_vectors() {
    let narrow: Vec<Instruction> =
        (0..6).map(|i| three(Code::EVEX_Vpaddd_ymm_k1z_ymm_ymmm256b32, ymm(i), ymm(20), ymm(21))).collect();
    assert_eq!(one_loop(narrow.clone(), "skylake-x").port_cycles, 2.0);
    let mut mixed = narrow;
    mixed.extend((8..12).map(|i| three(Code::EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er, zmm(i), zmm(20), zmm(21))));
    let block = one_loop(mixed, "skylake-x");
    assert_eq!((block.cycles, block.busiest.as_str()), (5.0, "p0|p5"));
}

#[test]
fn a_chain_through_a_load_counts_its_latency() {
    // Following a linked list takes five cycles per element on Intel, and four on Zen.
    let body = vec![Instruction::with2(Code::Mov_r64_rm64, Register::RAX, at(Register::RAX, 8)).unwrap()];
    for (cpu, cycles) in [("haswell", 5.0), ("zen4", 4.0)] {
        let block = one_loop(body.clone(), cpu);
        assert_eq!((block.cycles, block.bound, block.critical_path), (cycles, Bound::Chain, cycles as u32));
    }
    // A zeroing idiom breaks a chain.
    let mut broken = fmas(1);
    broken.insert(0, three(Code::VEX_Vpxor_ymm_ymm_ymmm256, ymm(0), ymm(0), ymm(0)));
    assert_eq!(one_loop(broken, "haswell").chain, 1.0, "the counter's own");
}

fn tile_load(tile: u32, base: Register) -> Instruction {
    let memory = MemoryOperand::with_base_index(base, Register::R8);
    Instruction::with2(Code::VEX_Tileloadd_tmm_sibmem, tmm(tile), memory).unwrap()
}

fn dot(c: u32, a: u32, b: u32) -> Instruction {
    three(Code::VEX_Tdpbssd_tmm_tmm_tmm, tmm(c), tmm(a), tmm(b))
}

/// Returns a loop body that multiplies `m` x `n` tiles, with `scalar` instructions of address
/// arithmetic.
pub fn tiles(m: u32, n: u32, scalar: usize) -> Vec<Instruction> {
    let mut body: Vec<Instruction> = Vec::new();
    for a in 0..m {
        body.push(tile_load(m * n + a, Register::RSI));
    }
    for b in 0..n {
        body.push(tile_load(m * n + m + b, Register::RDI));
    }
    for a in 0..m {
        for b in 0..n {
            body.push(dot(a * n + b, m * n + a, m * n + m + b));
        }
    }
    let registers = [Register::RSI, Register::RDI, Register::R9, Register::R10, Register::R11, Register::RAX];
    body.extend((0..scalar).map(|i| add(registers[i % registers.len()])));
    body
}

#[test]
fn kt_kernel_2x2_loop_is_tile_bound() {
    // Example of FACTS.md: 4 loads, 4 products, 6 to 30 scalar instructions. Products take 4 * 16 =
    // 64 cycles, loads 4 * 8 = 32, chains 52.
    for scalar in [6, 30] {
        let block = one_loop(tiles(2, 2, scalar - 2), "sapphire-rapids");
        assert_eq!((block.mix.tile_dot, block.mix.tile_other, block.mix.scalar), (4, 4, scalar as u32));
        assert_eq!((block.tile, block.port_cycles, block.chain), (64.0, 32.0, 52.0));
        assert_eq!((block.cycles, block.bound, block.tile_share), (64.0, Bound::Tile, 1.0));
    }
}

#[test]
fn small_tile_blockings_are_latency_bound() {
    let one = one_loop(tiles(1, 1, 4), "sapphire-rapids");
    assert_eq!((one.cycles, one.bound, one.tile_share), (52.0, Bound::Chain, 16.0 / 52.0));
    let two = one_loop(tiles(1, 2, 4), "sapphire-rapids");
    assert_eq!((two.cycles, two.tile_share), (52.0, 32.0 / 52.0));
    let three = one_loop(tiles(1, 3, 4), "sapphire-rapids");
    assert_eq!((three.cycles, three.bound), (52.0, Bound::Chain));
    // Three loads for each product, without reuse, are the bottleneck instead of the tile unit.
    let mut body = Vec::new();
    for c in 0..4 {
        body.extend([
            tile_load(4, Register::RSI),
            tile_load(5, Register::RDI),
            tile_load(6, Register::RAX),
            dot(c, 4, 5),
        ]);
    }
    let block = one_loop(body, "granite-rapids");
    assert_eq!((block.cycles, block.bound, block.busiest.as_str()), (96.0, Bound::Ports, "p2|p3"));
}

#[test]
fn kernel_cost_is_sum_of_loops_times_trips() {
    let zero = Instruction::with1(Code::VEX_Tilezero_tmm, tmm(0)).unwrap();
    let memory = MemoryOperand::with_base_index(Register::RBX, Register::R8);
    let store = Instruction::with2(Code::VEX_Tilestored_sibmem_tmm, memory, tmm(0)).unwrap();
    let parts = [
        Part::Code(vec![add(Register::RAX)]),
        Part::Loop(
            0,
            vec![Part::Code(vec![zero]), Part::Loop(2, vec![Part::Code(tiles(2, 2, 4))]), Part::Code(vec![store])],
        ),
        Part::Code(vec![Instruction::with(Code::Retnq)]),
    ];
    let report = analyse(&parts, "sapphire-rapids");
    let labels: Vec<_> = report.loops.iter().map(|l| (l.label.as_str(), l.depth, l.innermost)).collect();
    assert_eq!(labels, [("for %i in 0..%n", 0, false), ("for %j in 0..7", 1, true)]);
    // In the outer loop alone, one tile is zeroed and one is stored, which writes 16 rows.
    assert_eq!((report.loops[0].body.cycles, report.loops[1].body.cycles), (16.0, 64.0));
    let whole = report.whole(&[5]).unwrap();
    println!("{whole}");
    assert_eq!((whole.loops[0].iterations, whole.loops[1].iterations, whole.loops[1].entries), (5.0, 35.0, 5.0));
    assert_eq!(whole.tile_cycles, 35.0 * 64.0);
    assert_eq!(whole.cycles, report.outside.cycles + 5.0 * 16.0 + 35.0 * 64.0);
    assert_eq!(whole.share, whole.tile_cycles / whole.cycles);
    assert!(whole.cycles_drained > whole.cycles);
    // If the loops have no iterations, only the cycles outside of loops remain.
    assert_eq!(report.whole(&[0]).unwrap().cycles, report.outside.cycles);

    assert_eq!(report.whole(&[]), Err(CallError::DimCount { found: 0, expected: vec!["n".into()] }.into()));
    let outside = CallError::DimRange { name: "n".into(), found: 101, lo: 0, hi: 100 }.into();
    assert_eq!(report.whole(&[101]), Err(outside));
    let strange = analyse(&[Part::Loop(9, vec![Part::Code(fmas(1))])], "haswell");
    assert_eq!(
        (strange.loops[0].label.as_str(), strange.whole(&[1])),
        ("loop", Err(KernelCostError::Trip { start: 0 }))
    );
}

#[test]
fn guarded_code_counts_only_if_its_loop_runs() {
    // The forward jump before the inner loop is not counted as code that runs at most once.
    let inner = Part::Loop(2, vec![Part::Code(fmas(12))]);
    let parts = [
        Part::Once(0, vec![Part::Code(tiles(2, 2, 4)), Part::Once(2, vec![Part::Code(fmas(1)), inner])]),
        Part::Code(vec![Instruction::with(Code::Retnq)]),
    ];
    let report = analyse(&parts, "sapphire-rapids");
    let labels: Vec<_> = report.loops.iter().map(|l| (l.label.as_str(), l.depth, l.repeats)).collect();
    assert_eq!(labels, [("once %i in 0..%n", 0, false), ("for %j in 0..7", 1, true)]);
    let (none, one) = (report.whole(&[0]).unwrap(), report.whole(&[1]).unwrap());
    assert_eq!((none.tile_cycles, none.cycles), (0.0, report.outside.cycles));
    assert_eq!((one.tile_cycles, one.loops[0].iterations, one.loops[1].iterations), (64.0, 1.0, 7.0));
}

#[test]
fn unknown_instructions_are_listed() {
    let wide = three(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, zmm(0), zmm(1), zmm(2));
    let body = vec![Instruction::with(Code::Cpuid), wide];
    let report = analyse(&[Part::Loop(0, vec![Part::Code(body.clone())])], "haswell");
    let texts: Vec<_> = report.unknown.iter().map(|u| (u.offset, u.text.as_str())).collect();
    assert_eq!(texts, [(0, "cpuid"), (2, "vpaddd zmm0,zmm1,zmm2")]);
    assert!(report.to_string().contains("unknown to haswell: cpuid at 0x0"));
    let report = analyse(&[Part::Loop(0, vec![Part::Code(body)])], "zen4");
    assert_eq!(report.unknown.len(), 1);
}

#[test]
fn reports_are_json_too() {
    let report = analyse(&[Part::Loop(0, vec![Part::Code(tiles(2, 2, 4))])], "amx");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cpu"], "sapphire-rapids");
    assert_eq!(json["loops"][0]["body"]["mix"]["tile_dot"], 4);
    assert_eq!(json["loops"][0]["body"]["bound"], "tile");
    assert_eq!(serde_json::to_value(report.whole(&[3]).unwrap()).unwrap()["share"], 1.0);
}
