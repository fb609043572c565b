//! Tests of deliberate bugs that a processor would not report. There is one of each kind, with the
//! expected fault.

use iced_x86::Register::{
    EAX, ECX, EDX, K1, K2, K3, R8, R9, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RIP, RSI, RSP, TMM0, TMM1,
    TMM2, XMM0, XMM1, XMM2, YMM0, YMM1, YMM2, ZMM0, ZMM1, ZMM2, ZMM3, ZMM17,
};
use iced_x86::{BlockEncoder, BlockEncoderOptions, Code, Instruction, InstructionBlock, MemoryOperand, Register};
use ixc_emulator::{Fault, FaultKind, Program, Slice};
use ixc_targets::{Feature, Features, Target};

fn at(base: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ(base, displacement)
}

fn op(code: Code) -> Instruction {
    Instruction::with(code)
}

fn op1(code: Code, a: Register) -> Instruction {
    Instruction::with1(code, a).unwrap()
}

fn op2(code: Code, a: Register, b: Register) -> Instruction {
    Instruction::with2(code, a, b).unwrap()
}

fn op3(code: Code, a: Register, b: Register, c: Register) -> Instruction {
    Instruction::with3(code, a, b, c).unwrap()
}

fn load(code: Code, to: Register, from: MemoryOperand) -> Instruction {
    Instruction::with2(code, to, from).unwrap()
}

fn store(code: Code, to: MemoryOperand, from: Register) -> Instruction {
    Instruction::with2(code, to, from).unwrap()
}

fn masked(mut i: Instruction, mask: Register) -> Instruction {
    i.set_op_mask(mask);
    i
}

fn zeroing(i: Instruction, mask: Register) -> Instruction {
    let mut i = masked(i, mask);
    i.set_zeroing_masking(true);
    i
}

fn encode(code: &[Instruction]) -> Vec<u8> {
    let block = InstructionBlock::new(code, 0);
    BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).unwrap().code_buffer
}

/// Returns code that loads the pointers to the first and the second buffer into `rax` and `rcx`.
fn pointers() -> Vec<Instruction> {
    vec![load(Code::Mov_r64_rm64, RAX, at(RDI, 0)), load(Code::Mov_r64_rm64, RCX, at(RDI, 8))]
}

/// Runs the code and a return, for the target with the widest vectors. The call has two buffers of
/// 64 bytes: `x`, which is read-only, and `y`. Returns the contents of `y`.
fn run(code: &[Instruction]) -> Result<[u8; 64], Fault> {
    let code = [&pointers()[..], code, &[op(Code::Retnq)]].concat();
    run_exactly(&code)
}

fn run_exactly(code: &[Instruction]) -> Result<[u8; 64], Fault> {
    let bytes = encode(code);
    let target = Target::from_name("granite-rapids").unwrap();
    let program = Program::new(&bytes, bytes.len(), target.features())?.with_step_limit(1000);
    let (x, mut y) = (std::array::from_fn::<u8, 64, _>(|i| i as u8), Box::new([0xee; 64]));
    program.call(&[Slice::read("x", &x), Slice::write("y", &mut y[..])], &[7, 9])?;
    Ok(*y)
}

fn fault(code: &[Instruction]) -> FaultKind {
    run(code).unwrap_err().kind
}

fn undefined(register: &str) -> FaultKind {
    FaultKind::Undefined { register: register.into() }
}

const LOAD: Code = Code::VEX_Vmovups_ymm_ymmm256;
const STORE: Code = Code::VEX_Vmovups_ymmm256_ymm;
const LOAD_512: Code = Code::EVEX_Vmovups_zmm_k1z_zmmm512;
const STORE_512: Code = Code::EVEX_Vmovups_zmmm512_k1z_zmm;

fn clean() -> Instruction {
    op(Code::VEX_Vzeroupper)
}

/// Returns code that sets `k1` to these bits.
fn mask(bits: u32) -> [Instruction; 2] {
    [Instruction::with2(Code::Mov_r32_imm32, EDX, bits).unwrap(), op2(Code::VEX_Kmovd_kr_r32, K1, EDX)]
}

#[test]
fn correct_code_runs_without_a_fault() {
    let y = run(&[load(LOAD, YMM0, at(RAX, 32)), store(STORE, at(RCX, 0), YMM0), clean()]).unwrap();
    assert_eq!(y[..32], std::array::from_fn::<u8, 32, _>(|i| 32 + i as u8));
    assert_eq!(y[32..], [0xee; 32]);
}

#[test]
fn out_of_bounds_load_is_reported() {
    for displacement in [33, -1] {
        let fault = run(&[load(LOAD, YMM0, at(RAX, displacement)), clean()]).unwrap_err();
        let expected =
            FaultKind::OutOfBounds { buffer: "x".into(), offset: displacement, bytes: 32, size: 64, write: false };
        assert_eq!(fault.kind, expected);
        assert!(fault.instruction.starts_with("vmovups ymm0,[rax"), "{fault}");
        assert_eq!(fault.offset, Some(8));
    }
    let dims = fault(&[load(Code::Mov_r64_rm64, RDX, at(RSI, 16))]);
    assert!(matches!(dims, FaultKind::OutOfBounds { buffer, offset: 16, .. } if buffer == "the dims"));
    let pointers = fault(&[load(Code::Mov_r64_rm64, RDX, at(RDI, 16))]);
    assert!(matches!(pointers, FaultKind::OutOfBounds { offset: 16, .. }));
    // This load reads the caller's stack frame.
    let above = fault(&[load(Code::Mov_r64_rm64, RDX, at(RSP, 8))]);
    assert!(matches!(above, FaultKind::OutOfBounds { buffer, .. } if buffer == "stack"));
}

#[test]
fn stores_to_read_only_memory_are_refused() {
    let x = fault(&[load(LOAD, YMM0, at(RAX, 0)), store(STORE, at(RAX, 8), YMM0), clean()]);
    assert_eq!(x, FaultKind::ReadOnly { buffer: "x".into(), offset: 8, bytes: 32 });
    let code = fault(&[store(Code::Mov_rm32_r32, at(RIP, 0), EAX)]);
    assert!(matches!(code, FaultKind::ReadOnly { buffer, .. } if buffer == "code"));
    let dims = fault(&[store(Code::Mov_rm64_r64, at(RSI, 0), RAX)]);
    assert!(matches!(dims, FaultKind::ReadOnly { buffer, offset: 0, .. } if buffer == "the dims"));
}

#[test]
fn excess_mask_bit_is_an_out_of_bounds_store() {
    let tail = |bits| {
        let code = [load(LOAD_512, ZMM0, at(RAX, 0)), masked(store(STORE_512, at(RCX, 32), ZMM0), K1), clean()];
        run(&[&mask(bits)[..], &code].concat())
    };
    let y = tail(0xff).unwrap();
    assert_eq!(y[32..], std::array::from_fn::<u8, 32, _>(|i| i as u8));
    let kind = tail(0x1ff).unwrap_err().kind;
    assert_eq!(kind, FaultKind::OutOfBounds { buffer: "y".into(), offset: 64, bytes: 4, size: 64, write: true });
}

#[test]
fn elements_that_are_masked_away_are_not_loaded() {
    let with = |bits, i: Instruction| run(&[&mask(bits)[..], &[zeroing(i, K1), clean()]].concat()).map(|_| ());
    let add = Instruction::with3(Code::EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er, ZMM0, ZMM0, at(RAX, 64 - 12)).unwrap();
    let zero = op3(Code::VEX_Vpxor_xmm_xmm_xmmm128, XMM0, XMM0, XMM0);
    let add_with = |bits| run(&[&mask(bits)[..], &[zero, zeroing(add, K1), clean()]].concat()).map(|_| ());
    add_with(0b111).unwrap();
    let far = FaultKind::OutOfBounds { buffer: "x".into(), offset: 64, bytes: 4, size: 64, write: false };
    assert_eq!(add_with(0b1111).unwrap_err().kind, far);
    let widen = load(Code::EVEX_Vpmovzxbd_zmm_k1z_xmmm128, ZMM0, at(RAX, 62));
    with(0b11, widen).unwrap();
    assert!(with(0b111, widen).is_err());
    let mut broadcast = load(Code::EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er, ZMM0, at(RAX, 64));
    broadcast.set_is_broadcast(true);
    with(0, broadcast).unwrap();
    assert!(with(1, broadcast).is_err());
    // Instructions that move elements read their whole memory operand, including masked elements.
    let permute = Instruction::with3(Code::EVEX_Vpermd_zmm_k1z_zmm_zmmm512b32, ZMM0, ZMM0, at(RAX, 4)).unwrap();
    assert!(run(&[&mask(0)[..], &[zero, zeroing(permute, K1), clean()]].concat()).is_err());
}

#[test]
fn clobbered_callee_saved_state_is_a_fault() {
    for (register, name) in [(RBX, "rbx"), (RBP, "rbp"), (R12, "r12"), (R13, "r13"), (R14, "r14"), (R15, "r15")] {
        let clobber = Instruction::with2(Code::Mov_r64_imm64, register, 5u64).unwrap();
        let kind = fault(&[clobber]);
        assert!(matches!(kind, FaultKind::CalleeSaved { register, found: 5, .. } if register == name), "{kind:?}");
        run(&[op1(Code::Push_r64, register), clobber, op1(Code::Pop_r64, register)]).unwrap();
    }
    // The stack pointer is wrong at the return. In the second case, the stack still has a return
    // address there.
    let lower = [op1(Code::Push_r64, RAX)];
    assert!(matches!(fault(&lower), FaultKind::ReturnAddress { .. }));
    let copied = [load(Code::Mov_r64_rm64, RDX, at(RSP, 0)), op1(Code::Push_r64, RDX)];
    assert!(matches!(fault(&copied), FaultKind::CalleeSaved { register: "rsp", .. }));
    let overwritten = [store(Code::Mov_rm64_r64, at(RSP, 0), RAX)];
    assert!(matches!(fault(&overwritten), FaultKind::ReturnAddress { .. }));
    assert_eq!(fault(&[op(Code::Std)]), FaultKind::DirectionFlag);
}

#[test]
fn dirty_upper_halves_at_return_are_a_fault() {
    let low = Instruction::with2(Code::VEX_Vmovups_xmm_xmmm128, XMM1, at(RAX, 0)).unwrap();
    run(&[low]).unwrap();
    assert_eq!(fault(&[load(LOAD, YMM1, at(RAX, 0))]), FaultKind::DirtyUpper);
    assert_eq!(fault(&[load(LOAD_512, ZMM1, at(RAX, 0))]), FaultKind::DirtyUpper);
    // Registers 16 to 31, which legacy instructions cannot use, do not count as dirty.
    run(&[load(LOAD_512, ZMM17, at(RAX, 0))]).unwrap();
}

#[test]
fn unreleased_tiles_are_a_fault() {
    // The stack contains a tile configuration: palette 1, and tile 0 with 16 rows of 64 bytes.
    let immediate = |place: i64, value: u32| Instruction::with2(Code::Mov_rm32_imm32, at(RSP, place), value).unwrap();
    let mut code = vec![Instruction::with2(Code::Sub_rm64_imm8, RSP, 72).unwrap()];
    code.extend((0..16).map(|i| immediate(4 * i, [1, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0][i as usize])));
    code.push(Instruction::with1(Code::VEX_Ldtilecfg_m512, at(RSP, 0)).unwrap());
    code.push(op3(Code::VEX_Tdpbssd_tmm_tmm_tmm, TMM0, TMM1, TMM2));
    let end = [Instruction::with2(Code::Add_rm64_imm8, RSP, 72).unwrap()];
    let kind = fault(&[&code[..], &end].concat());
    assert!(matches!(kind, FaultKind::Tile { .. }), "{kind}");
    code.pop();
    assert_eq!(fault(&[&code[..], &end].concat()), FaultKind::TileState);
    code.push(op(Code::VEX_Tilerelease));
    run(&[&code[..], &end].concat()).unwrap();
    code.push(op1(Code::VEX_Tilezero_tmm, TMM0));
    assert!(run(&[&code[..], &end].concat()).is_err());
    assert_eq!(fault(&[op3(Code::VEX_Tdpbssd_tmm_tmm_tmm, TMM0, TMM1, TMM2)]), undefined("tmm0"));
}

#[test]
fn instructions_outside_the_target_are_refused() {
    let of = |i: Instruction, target: Target| {
        let bytes = encode(&[i, op(Code::Retnq)]);
        Program::new(&bytes, bytes.len(), target.features()).map(|_| ()).map_err(|f| (f.instruction, f.kind))
    };
    let refused = |text: &str, feature: Feature| {
        let kind = FaultKind::Feature { feature: feature.name().to_string(), known: Some(feature) };
        Err((text.to_string(), kind))
    };
    let wide = op3(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, ZMM0, ZMM1, ZMM2);
    assert_eq!(of(wide, Target::AVX2), refused("vpaddd zmm0,zmm1,zmm2", Feature::Avx512f));
    assert_eq!(of(wide, Target::AVX512), Ok(()));
    let dot = op3(Code::EVEX_Vpdpbusd_zmm_k1z_zmm_zmmm512b32, ZMM0, ZMM1, ZMM2);
    assert_eq!(of(dot, Target::AVX512), refused("vpdpbusd zmm0,zmm1,zmm2", Feature::Avx512vnni));
    let tile = op3(Code::VEX_Tdpfp16ps_tmm_tmm_tmm, TMM0, TMM1, TMM2);
    assert_eq!(of(tile, Target::AMX), refused("tdpfp16ps tmm0,tmm1,tmm2", Feature::AmxFp16));
    // The target table does not list the feature of this instruction.
    let conflict = op2(Code::EVEX_Vpconflictd_zmm_k1z_zmmm512b32, ZMM0, ZMM1);
    assert!(matches!(of(conflict, Target::AMX), Err((_, FaultKind::Feature { known: None, .. }))));
    let bytes = encode(&[op3(Code::VEX_Vaddps_ymm_ymm_ymmm256, YMM0, YMM1, YMM2)]);
    assert!(Program::new(&bytes, bytes.len(), Features::default()).is_err());
}

#[test]
fn undefined_registers_are_not_read() {
    assert_eq!(fault(&[op2(Code::Add_r64_rm64, RAX, RDX)]), undefined("rdx"));
    assert_eq!(fault(&[load(Code::Mov_r64_rm64, RDX, at(R9, 0))]), undefined("r9"));
    assert_eq!(fault(&[op3(Code::VEX_Vaddps_xmm_xmm_xmmm128, XMM0, XMM1, XMM1)]), undefined("zmm1"));
    assert_eq!(fault(&[op2(Code::VEX_Kmovd_r32_kr, EAX, K3)]), undefined("k3"));
    let merging = masked(load(LOAD_512, ZMM0, at(RAX, 0)), K1);
    assert_eq!(fault(&[&mask(1)[..], &[merging]].concat()), undefined("zmm0"));
    assert_eq!(
        fault(&[masked(load(LOAD_512, ZMM0, at(RAX, 0)), K2)]).to_string(),
        "reads zmm0, which is undefined here"
    );
    assert_eq!(fault(&[zeroing(load(LOAD_512, ZMM0, at(RAX, 0)), K2)]), undefined("k2"));
    let jump = Instruction::with_branch(Code::Jb_rel8_64, 0).unwrap();
    assert_eq!(fault(&[jump]), undefined("the flag cf"));
    // Multiplication leaves the zero flag undefined.
    let multiply = op2(Code::Imul_r64_rm64, RAX, RAX);
    let branch = |code| Instruction::with_branch(code, 0).unwrap();
    assert_eq!(fault(&[multiply, branch(Code::Je_rel8_64)]), undefined("the flag zf"));
    // Sources of idioms for zero and for all ones may be undefined.
    let ones = |code| Instruction::with4(code, ZMM3, ZMM3, ZMM3, 0xffu32).unwrap();
    run(&[
        op3(Code::VEX_Vpxor_xmm_xmm_xmmm128, XMM1, XMM1, XMM1),
        op3(Code::VEX_Vpcmpeqd_xmm_xmm_xmmm128, XMM2, XMM2, XMM2),
        ones(Code::EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8),
        op3(Code::VEX_Kxnorw_kr_kr_kr, K1, K1, K1),
        op2(Code::Xor_r32_rm32, EDX, EDX),
        op3(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, ZMM1, ZMM2, ZMM3),
        op2(Code::VEX_Kmovw_r32_kr, EDX, K1),
        clean(),
    ])
    .unwrap();
    assert_eq!(
        fault(&[ones(Code::EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8), op2(Code::Add_r64_rm64, R8, RAX)]),
        undefined("r8")
    );
}

#[test]
fn misaligned_aligned_accesses_are_a_fault() {
    let aligned = Code::VEX_Vmovaps_xmm_xmmm128;
    let kind = fault(&[load(aligned, XMM0, at(RSP, 0)), clean()]);
    assert!(matches!(kind, FaultKind::Misaligned { bytes: 16, alignment: 16, .. }), "{kind}");
    run(&[load(aligned, XMM0, at(RSP, -8)), clean()]).unwrap();
    // Legacy instructions require an aligned memory operand of 16 bytes.
    let legacy = Instruction::with2(Code::Paddd_xmm_xmmm128, XMM0, at(RSP, 0)).unwrap();
    let kind = fault(&[load(Code::VEX_Vmovups_xmm_xmmm128, XMM0, at(RAX, 0)), legacy]);
    assert!(matches!(kind, FaultKind::Misaligned { .. }), "{kind}");
}

#[test]
fn the_stack_is_used_down_to_the_red_zone() {
    run(&[store(Code::Mov_rm64_r64, at(RSP, -128), RAX)]).unwrap();
    let kind = fault(&[store(Code::Mov_rm64_r64, at(RSP, -129), RAX)]);
    assert_eq!(kind, FaultKind::RedZone { below: 129, write: true });
}

#[test]
fn jumps_outside_the_code_are_a_fault() {
    // This loop never ends.
    let mut label = op(Code::Nopd);
    label.set_ip(0x100);
    let back = Instruction::with_branch(Code::Jmp_rel8_64, 0x100).unwrap();
    assert_eq!(run_exactly(&[label, back]).unwrap_err().kind, FaultKind::StepLimit { limit: 1000 });
    assert_eq!(run_exactly(&[op2(Code::Mov_r64_rm64, RAX, RDI)]).unwrap_err().kind, FaultKind::End);
    let features = Target::AVX2.features();
    // The `jmp` goes to an offset inside of a `mov`.
    let middle = [0xeb, 0x01, 0xb8, 0, 0, 0, 0, 0xc3];
    let kind = Program::new(&middle, middle.len(), features).map(|_| ()).unwrap_err().kind;
    assert_eq!(kind, FaultKind::Branch { target: 3 });
    // `ud2`, which kernels must not use, and then bytes that are not a whole instruction.
    let fault = Program::new(&[0x90, 0x0f, 0x0b], 3, features).map(|_| ()).unwrap_err();
    assert_eq!((fault.offset, fault.kind.clone()), (Some(1), FaultKind::Unknown { bytes: "0f 0b".into() }));
    assert_eq!(fault.to_string(), "0x0001 `ud2`: unknown instruction, bytes 0f 0b");
    let cut = Program::new(&[0x48, 0x8b], 2, features).map(|_| ()).unwrap_err();
    assert_eq!(cut.kind, FaultKind::Unknown { bytes: "48 8b".into() });
    assert!(matches!(Program::new(&[0xc3], 2, features).map(|_| ()).unwrap_err().kind, FaultKind::Arguments { .. }));
}

#[test]
fn division_by_zero_is_a_fault() {
    let zero = |r| op2(Code::Xor_r32_rm32, r, r);
    assert_eq!(fault(&[zero(EDX), zero(ECX), op1(Code::Div_rm64, RCX)]), FaultKind::Divide);
}
