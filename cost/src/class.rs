//! Instruction classes: the kind of an instruction's work, independent of the CPU.
//!
//! A class contains instructions that have the same cost on each modelled CPU. Only [`classify`]
//! knows mnemonics. Memory operands are not part of the class, because their cost is the same for
//! every class ([`Memory`]). If the form with a memory operand is different work, it has its own
//! class (`ExtractStore`).
//!
//! ```text
//! vpaddd zmm1, zmm2, [rax]   VecAdd, 64 bytes wide, reads memory
//! ```
//!
//! Invariant: an instruction that is not listed here has no class; there is no default.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

macro_rules! classes {
    ($($variant:ident $kind:ident $doc:literal;)*) => {
        /// A kind of work.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Class { $(#[doc = $doc] $variant),* }

        impl Class {
            /// Every class.
            pub const ALL: &[Class] = &[$(Class::$variant),*];

            /// Returns the column of an instruction mix that counts instructions of the class.
            pub const fn kind(self) -> Kind {
                match self { $(Class::$variant => Kind::$kind),* }
            }

            /// Returns a description of the instructions in the class.
            pub const fn description(self) -> &'static str {
                match self { $(Class::$variant => $doc),* }
            }
        }
    };
}

/// The columns of an instruction mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Tile instructions.
    Tile,
    /// Integer products of vectors, and dot products of integers or bf16.
    Dot,
    /// Fused multiply-adds and products of float vectors.
    Fma,
    /// All other vector and mask instructions.
    Vector,
    /// Loads without other work.
    Load,
    /// Stores.
    Store,
    /// Integer instructions and branches.
    Scalar,
}

classes! {
    Nothing Scalar "instructions without work: nop, endbr64";
    IntAlu Scalar "integer sums, logic, comparisons, constants, extensions between registers";
    IntMove Scalar "copies between integer registers";
    IntShift Scalar "integer shifts and rotations by an immediate";
    Lea Scalar "lea of two parts";
    LeaThree Scalar "lea of base, index and displacement";
    IntMul Scalar "imul";
    Branch Scalar "jumps; a comparison or sum just before a conditional one is fused with it";
    Return Scalar "ret";
    LoadInt Load "loads of an integer register, pop, prefetches";
    StoreInt Store "stores of an integer register or immediate, push";
    Load Load "vector loads, broadcasts of 4 bytes and more included";
    BroadcastNarrow Load "broadcasts of a byte or word in memory";
    Store Store "vector stores";
    VecMove Vector "copies between vector registers";
    Zero Vector "zeroing idioms";
    VecAdd Vector "integer sums and differences, wrapping";
    VecCompare Vector "integer minimum, maximum, comparison to a vector, saturating sums";
    VecSign Vector "absolute values, vpsign";
    Logic Vector "logic, vpternlog, blends by an immediate";
    Blend Vector "blends by a vector";
    BlendMask Vector "blends by a mask";
    Shift Vector "shifts by an immediate or one count per element";
    ShiftCount Vector "shifts by a count in a register";
    Shuffle Vector "shuffles within 16 bytes by an immediate or none: vpshufd, unpack, vshufps";
    ShuffleBytes Vector "vpshufb";
    Align Vector "vpalignr, vpslldq, vpsrldq";
    Pack Vector "packs with saturation";
    Extract Vector "upper halves and quarters to a register";
    ExtractStore Store "upper halves and quarters to memory";
    Insert Vector "insertion of a half or quarter; from memory it is a blend";
    InsertLoad Vector "insertion of a half or quarter from memory";
    Permute Vector "across 16 bytes in units of 16, 8 or 4 bytes: vperm2i128, vpermq, vpermd, vshufi32x4, valignd";
    PermuteWords Vector "vpermw";
    PermuteBytes Vector "vpermb";
    PermuteTwo Vector "from two registers in units of 4 or 8 bytes: vpermt2d, vpermi2ps";
    PermuteTwoWords Vector "vpermt2w, vpermi2w";
    PermuteTwoBytes Vector "vpermt2b, vpermi2b";
    Multishift Vector "vpmultishiftqb";
    Broadcast Vector "broadcasts of a vector register's lowest element";
    ExtendShort Vector "vpmovzx and vpmovsx to vectors of up to 16 bytes";
    Extend Vector "vpmovzx and vpmovsx to vectors of more than 16 bytes";
    Narrow Vector "vpmov from wider to narrower elements";
    NarrowStore Store "vpmov from wider to narrower elements, to memory";
    FloatAdd Vector "float sums and differences";
    FloatMul Fma "float products";
    Fma Fma "fused multiply-adds";
    FloatCompare Vector "float minimum, maximum, comparison to a vector";
    FloatRound Vector "rounding to integral floats";
    FloatScale Vector "vscalefps and its like";
    FloatDiv Vector "float quotients of more than 16 bytes";
    FloatSqrt Vector "float roots of more than 16 bytes";
    FloatDivShort Vector "float quotients of up to 16 bytes";
    FloatSqrtShort Vector "float roots of up to 16 bytes";
    HorizontalAdd Vector "vhaddps";
    MulWord Dot "vpmullw, vpmaddubsw, vpmaddwd, vpsadbw";
    MulDword Dot "vpmulld";
    DotInt Dot "vpdpbusd, vpdpwssd and their like";
    DotBf16 Dot "vdpbf16ps";
    Convert Vector "between 32-bit integers and floats";
    HalfToFloat Vector "vcvtph2ps";
    HalfToFloatLoad Vector "vcvtph2ps from memory";
    FloatToHalf Vector "vcvtps2ph";
    FloatToHalfStore Store "vcvtps2ph to memory";
    FloatToBf16 Vector "vcvtneps2bf16";
    FloatToBf16Two Vector "vcvtne2ps2bf16";
    CompareMask Vector "comparisons and tests to a mask";
    MaskLogic Vector "logic of masks";
    MaskShift Vector "shifts and unpacks of masks";
    MaskFromInt Vector "integer register to mask";
    MaskToInt Vector "mask to integer register, ktest, kortest";
    MaskToVector Vector "vpmovm2d and its like";
    VecToInt Vector "lowest element or sign bits to an integer register";
    VecToIntAny Vector "any element to an integer register";
    IntToVec Vector "integer register to the lowest element";
    IntToVecAny Vector "integer register to any element";
    IntBroadcast Vector "integer register to every element";
    ElementInsert Vector "element from memory to any place";
    ElementExtract Store "any element to memory";
    UpperZero Vector "vzeroupper";
    TileDot Tile "tile products: TDPBSSD, TDPBF16PS and their like";
    TileLoad Tile "TILELOADD, TILELOADDT1";
    TileStore Tile "TILESTORED";
    TileZero Tile "TILEZERO";
    TileConfig Tile "LDTILECFG";
    TileRelease Tile "TILERELEASE";
}

/// The widest register of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// The instruction has no vector register.
    Scalar,
    /// Registers of 16 bytes, or less.
    X,
    /// Registers of 32 bytes.
    Y,
    /// Registers of 64 bytes.
    Z,
}

/// Memory access of an instruction, in addition to the work of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// No access, or only an access that is part of the class.
    None,
    /// The instruction reads memory before its work.
    Read,
    /// Writes the result to memory after the work.
    Write,
    /// The instruction reads memory, works, and writes memory.
    Update,
}

/// A classified instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Class of the work.
    pub class: Class,
    /// Width of the work.
    pub width: Width,
    /// Additional memory access.
    pub memory: Memory,
    /// Width of the bytes that are read from memory. For a broadcast, they are 4 bytes.
    pub loaded: Width,
}

/// Whether the instruction zeroes its first operand, independent of the other operands.
pub fn is_zero_idiom(i: &Instruction) -> bool {
    use Mnemonic::*;
    let last = i.op_count();
    if last < 2 || (0..last).any(|n| i.op_kind(n) != OpKind::Register) {
        return false;
    }
    let same = i.op_register(last - 1) == i.op_register(last - 2);
    same && matches!(
        i.mnemonic(),
        Xor | Sub | Vpxor | Vpxord | Vpxorq | Vxorps | Vxorpd | Vpsubb | Vpsubw | Vpsubd | Vpsubq
    )
}

/// An instruction, and the properties of its operands that its class depends on.
struct ClassifiedInstruction<'i> {
    i: &'i Instruction,
    width: Width,
    loaded: Width,
    /// Whether the first operand is memory.
    to_memory: bool,
    /// Whether another operand is memory.
    from_memory: bool,
    /// The first operand, if it is a register.
    op0: Register,
    /// The second operand, if it is a register.
    op1: Register,
}

impl ClassifiedInstruction<'_> {
    fn new(i: &Instruction) -> ClassifiedInstruction<'_> {
        let width = width(i);
        let register = |n| {
            if i.op_count() > n && i.op_kind(n) == OpKind::Register { i.op_register(n) } else { Register::None }
        };
        ClassifiedInstruction {
            i,
            width,
            loaded: load_width(i, width),
            to_memory: i.op_count() > 0 && i.op0_kind() == OpKind::Memory,
            from_memory: (1..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory),
            op0: register(0),
            op1: register(1),
        }
    }

    fn with(&self, class: Class, memory: Memory) -> Option<Work> {
        Some(Work { class, width: self.width, memory, loaded: self.loaded })
    }

    /// Returns work without a memory access outside its class.
    fn plain(&self, class: Class) -> Option<Work> {
        self.with(class, Memory::None)
    }

    /// Returns work that may read a memory operand.
    fn work(&self, class: Class) -> Option<Work> {
        self.with(class, if self.from_memory { Memory::Read } else { Memory::None })
    }

    /// Returns work whose result is stored to memory.
    fn store(&self, class: Class) -> Option<Work> {
        self.with(class, Memory::Write)
    }

    /// Returns integer work whose first operand may be memory, which is then read and written.
    fn int(&self, class: Class) -> Option<Work> {
        if self.to_memory { self.with(class, Memory::Update) } else { self.work(class) }
    }
}

/// Returns the class of an instruction; `None` if it has none.
pub fn classify(i: &Instruction) -> Option<Work> {
    let f = &ClassifiedInstruction::new(i);
    if is_zero_idiom(i) {
        return f.plain(if f.width == Width::Scalar { Class::Nothing } else { Class::Zero });
    }
    scalar(f)
        .or_else(|| vector_move(f))
        .or_else(|| vector_integer(f))
        .or_else(|| shuffle(f))
        .or_else(|| part_move(f))
        .or_else(|| float(f))
        .or_else(|| product(f))
        .or_else(|| conversion(f))
        .or_else(|| mask(f))
        .or_else(|| element_move(f))
        .or_else(|| tile(f))
}

/// Returns the class of an instruction on integer registers.
fn scalar(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Nop | Endbr64 => f.plain(C::Nothing),
        Add | Sub | And | Or | Xor | Neg | Not | Inc | Dec | Adc | Sbb => f.int(C::IntAlu),
        Cmp | Test => f.with(C::IntAlu, if f.to_memory || f.from_memory { Memory::Read } else { Memory::None }),
        Mov if f.to_memory => f.plain(C::StoreInt),
        Mov if f.from_memory => f.plain(C::LoadInt),
        Mov if f.op1 == Register::None => f.plain(C::IntAlu),
        Mov => f.plain(C::IntMove),
        Movzx | Movsx | Movsxd if f.from_memory => f.plain(C::LoadInt),
        Movzx | Movsx | Movsxd => f.plain(C::IntAlu),
        Cmove | Cmovne | Cmovl | Cmovge | Cmovle | Cmovg | Cmovb | Cmovae | Cmovbe | Cmova => f.work(C::IntAlu),
        Shl | Shr | Sar | Rol | Ror => f.int(C::IntShift),
        Lea => {
            let parts = u32::from(f.i.memory_base() != Register::None)
                + u32::from(f.i.memory_index() != Register::None)
                + u32::from(f.i.memory_displacement64() != 0);
            f.plain(if parts > 2 { C::LeaThree } else { C::Lea })
        }
        Imul => f.work(C::IntMul),
        Jmp | Ja | Jae | Jb | Jbe | Je | Jne | Jg | Jge | Jl | Jle | Js | Jns | Jo | Jno | Jp | Jnp => {
            f.plain(C::Branch)
        }
        Ret => f.plain(C::Return),
        Push => f.plain(C::StoreInt),
        Pop | Prefetcht0 => f.plain(C::LoadInt),
        _ => None,
    }
}

/// Returns the class of a copy, load, store or broadcast of vectors.
fn vector_move(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Vmovdqu | Vmovdqa | Vmovups | Vmovaps | Vmovupd | Vmovapd | Vmovdqu8 | Vmovdqu16 | Vmovdqu32 | Vmovdqu64
        | Vmovdqa32 | Vmovdqa64 | Vmovss | Vmovsd
            if f.to_memory || f.from_memory =>
        {
            f.plain(if f.to_memory { C::Store } else { C::Load })
        }
        Vmovdqu | Vmovdqa | Vmovups | Vmovaps | Vmovupd | Vmovapd | Vmovdqu8 | Vmovdqu16 | Vmovdqu32 | Vmovdqu64
        | Vmovdqa32 | Vmovdqa64 => f.plain(if f.i.has_op_mask() { C::Logic } else { C::VecMove }),
        Vmovss | Vmovsd => f.plain(C::Shuffle),
        Vlddqu | Vmovntdqa => f.plain(C::Load),
        Vmovntdq | Vmovntps => f.plain(C::Store),
        Vmovd | Vmovq | Vmovw if f.to_memory => f.plain(C::Store),
        Vmovd | Vmovq | Vmovw if f.from_memory => f.plain(C::Load),
        Vmovd | Vmovq | Vmovw if f.op0.is_gpr() => f.plain(C::VecToInt),
        Vmovd | Vmovq | Vmovw if f.op1.is_gpr() => f.plain(C::IntToVec),
        Vmovq => f.plain(C::Shuffle),
        Vbroadcastss | Vbroadcastsd | Vpbroadcastd | Vpbroadcastq | Vbroadcasti128 | Vbroadcastf128
        | Vbroadcasti32x4 | Vbroadcastf32x4 | Vbroadcasti64x2 | Vbroadcastf64x2 | Vbroadcasti64x4 | Vbroadcastf64x4
        | Vbroadcasti32x8 | Vbroadcastf32x8 | Vbroadcasti32x2 | Vbroadcastf32x2
            if f.from_memory =>
        {
            f.plain(C::Load)
        }
        Vpbroadcastb | Vpbroadcastw if f.from_memory => f.plain(C::BroadcastNarrow),
        Vpbroadcastb | Vpbroadcastw | Vpbroadcastd | Vpbroadcastq if f.op1.is_gpr() => f.plain(C::IntBroadcast),
        Vbroadcastss | Vbroadcastsd | Vpbroadcastb | Vpbroadcastw | Vpbroadcastd | Vpbroadcastq => {
            f.plain(C::Broadcast)
        }
        _ => None,
    }
}

/// Returns the class of an integer operation within elements.
fn vector_integer(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Vpaddb | Vpaddw | Vpaddd | Vpaddq | Vpsubb | Vpsubw | Vpsubd | Vpsubq => f.work(C::VecAdd),
        Vpaddsb | Vpaddsw | Vpaddusb | Vpaddusw | Vpsubsb | Vpsubsw | Vpsubusb | Vpsubusw | Vpavgb | Vpavgw
        | Vpminsb | Vpminsw | Vpminsd | Vpminub | Vpminuw | Vpminud | Vpmaxsb | Vpmaxsw | Vpmaxsd | Vpmaxub
        | Vpmaxuw | Vpmaxud => f.work(C::VecCompare),
        Vpcmpeqb | Vpcmpeqw | Vpcmpeqd | Vpcmpeqq | Vpcmpgtb | Vpcmpgtw | Vpcmpgtd | Vpcmpgtq if f.op0.is_k() => {
            f.work(C::CompareMask)
        }
        Vpcmpeqb | Vpcmpeqw | Vpcmpeqd | Vpcmpeqq | Vpcmpgtb | Vpcmpgtw | Vpcmpgtd | Vpcmpgtq => f.work(C::VecCompare),
        Vpabsb | Vpabsw | Vpabsd | Vpsignb | Vpsignw | Vpsignd => f.work(C::VecSign),
        Vpand | Vpandn | Vpor | Vpxor | Vpandd | Vpandq | Vpandnd | Vpandnq | Vpord | Vporq | Vpxord | Vpxorq
        | Vpternlogd | Vpternlogq | Vandps | Vandpd | Vandnps | Vandnpd | Vorps | Vorpd | Vxorps | Vxorpd
        | Vpblendd | Vblendps | Vblendpd => f.work(C::Logic),
        Vpblendvb | Vblendvps | Vblendvpd => f.work(C::Blend),
        Vpblendmb | Vpblendmw | Vpblendmd | Vpblendmq | Vblendmps | Vblendmpd => f.work(C::BlendMask),
        Vpsllw | Vpslld | Vpsllq | Vpsrlw | Vpsrld | Vpsrlq | Vpsraw | Vpsrad | Vpsraq => {
            let counted = f.i.op_count() > 2 && f.i.op2_kind() != OpKind::Immediate8;
            f.work(if counted { C::ShiftCount } else { C::Shift })
        }
        Vpsllvd | Vpsllvq | Vpsllvw | Vpsrlvd | Vpsrlvq | Vpsrlvw | Vpsravd | Vpsravq | Vpsravw | Vprold | Vprord
        | Vprolvd | Vprorvd | Vpshldd | Vpshrdd | Vpshldw | Vpshrdw => f.work(C::Shift),
        _ => None,
    }
}

/// Returns the class of an instruction that moves elements within vectors.
fn shuffle(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Vpblendw => f.work(C::Shuffle),
        Vpshufd | Vpshufhw | Vpshuflw | Vpunpcklbw | Vpunpcklwd | Vpunpckldq | Vpunpcklqdq | Vpunpckhbw
        | Vpunpckhwd | Vpunpckhdq | Vpunpckhqdq | Vunpcklps | Vunpckhps | Vunpcklpd | Vunpckhpd | Vshufps | Vshufpd
        | Vpermilps | Vpermilpd | Vmovshdup | Vmovsldup | Vmovddup | Vmovhlps | Vmovlhps => f.work(C::Shuffle),
        Vpshufb => f.work(C::ShuffleBytes),
        Vpalignr | Vpslldq | Vpsrldq => f.work(C::Align),
        Vpacksswb | Vpackssdw | Vpackuswb | Vpackusdw => f.work(C::Pack),
        Vperm2i128 | Vperm2f128 | Vpermq | Vpermpd | Vpermd | Vpermps | Vshufi32x4 | Vshuff32x4 | Vshufi64x2
        | Vshuff64x2 | Valignd | Valignq => f.work(C::Permute),
        Vpermw => f.work(C::PermuteWords),
        Vpermb => f.work(C::PermuteBytes),
        Vpermt2d | Vpermt2q | Vpermt2ps | Vpermt2pd | Vpermi2d | Vpermi2q | Vpermi2ps | Vpermi2pd => {
            f.work(C::PermuteTwo)
        }
        Vpermt2w | Vpermi2w => f.work(C::PermuteTwoWords),
        Vpermt2b | Vpermi2b => f.work(C::PermuteTwoBytes),
        Vpmultishiftqb => f.work(C::Multishift),
        _ => None,
    }
}

/// Returns the class of a move of a half or quarter of a vector, or of a change of the elements'
/// size.
fn part_move(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Vextracti128 | Vextractf128 | Vextracti32x4 | Vextractf32x4 | Vextracti64x4 | Vextractf64x4 | Vextracti64x2
        | Vextractf64x2 | Vextracti32x8 | Vextractf32x8 => {
            if f.to_memory {
                f.store(C::ExtractStore)
            } else {
                f.plain(C::Extract)
            }
        }
        Vinserti128 | Vinsertf128 | Vinserti32x4 | Vinsertf32x4 | Vinserti64x4 | Vinsertf64x4 | Vinserti64x2
        | Vinsertf64x2 | Vinserti32x8 | Vinsertf32x8 => f.work(if f.from_memory { C::InsertLoad } else { C::Insert }),
        Vpmovzxbw | Vpmovzxbd | Vpmovzxbq | Vpmovzxwd | Vpmovzxwq | Vpmovzxdq | Vpmovsxbw | Vpmovsxbd | Vpmovsxbq
        | Vpmovsxwd | Vpmovsxwq | Vpmovsxdq => f.work(if f.width <= Width::X { C::ExtendShort } else { C::Extend }),
        Vpmovwb | Vpmovdb | Vpmovdw | Vpmovqb | Vpmovqw | Vpmovqd | Vpmovswb | Vpmovsdb | Vpmovsdw | Vpmovuswb
        | Vpmovusdb | Vpmovusdw => {
            if f.to_memory {
                f.store(C::NarrowStore)
            } else {
                f.plain(C::Narrow)
            }
        }
        _ => None,
    }
}

/// Returns the class of float arithmetic.
fn float(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Vaddps | Vaddss | Vaddpd | Vaddsd | Vsubps | Vsubss | Vsubpd | Vsubsd | Vaddph | Vsubph => f.work(C::FloatAdd),
        Vmulps | Vmulss | Vmulpd | Vmulsd | Vmulph => f.work(C::FloatMul),
        Vfmadd132ps | Vfmadd213ps | Vfmadd231ps | Vfmadd132ss | Vfmadd213ss | Vfmadd231ss | Vfmsub132ps
        | Vfmsub213ps | Vfmsub231ps | Vfnmadd132ps | Vfnmadd213ps | Vfnmadd231ps | Vfnmadd132ss | Vfnmadd213ss
        | Vfnmadd231ss | Vfmsub132ss | Vfmsub213ss | Vfmsub231ss | Vfmadd132ph | Vfmadd213ph | Vfmadd231ph => {
            f.work(C::Fma)
        }
        Vcmpps | Vcmpss | Vcmppd | Vcmpsd if f.op0.is_k() => f.work(C::CompareMask),
        Vminps | Vminss | Vmaxps | Vmaxss | Vcmpps | Vcmpss | Vcmppd | Vcmpsd | Vminph | Vmaxph => {
            f.work(C::FloatCompare)
        }
        Vroundps | Vroundss | Vrndscaleps | Vrndscaless => f.work(C::FloatRound),
        Vscalefps | Vscalefss | Vgetexpps | Vgetmantps => f.work(C::FloatScale),
        Vdivps | Vdivss => f.work(if f.width <= Width::X { C::FloatDivShort } else { C::FloatDiv }),
        Vsqrtps | Vsqrtss => f.work(if f.width <= Width::X { C::FloatSqrtShort } else { C::FloatSqrt }),
        Vhaddps => f.work(C::HorizontalAdd),
        _ => None,
    }
}

/// Returns the class of an integer product or a dot product.
fn product(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Vpmullw | Vpmulhw | Vpmulhuw | Vpmulhrsw | Vpmaddubsw | Vpmaddwd | Vpmuldq | Vpmuludq | Vpsadbw => {
            f.work(C::MulWord)
        }
        Vpmulld => f.work(C::MulDword),
        Vpdpbusd | Vpdpbusds | Vpdpwssd | Vpdpwssds | Vpdpbssd | Vpdpbuud | Vpdpbsud => f.work(C::DotInt),
        Vdpbf16ps => f.work(C::DotBf16),
        _ => None,
    }
}

/// Returns the class of a conversion between number formats.
fn conversion(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Vcvtdq2ps | Vcvtudq2ps | Vcvtps2dq | Vcvttps2dq | Vcvtps2udq => f.work(C::Convert),
        Vcvtph2ps | Vcvtph2psx => f.work(if f.from_memory { C::HalfToFloatLoad } else { C::HalfToFloat }),
        Vcvtps2ph | Vcvtps2phx => {
            if f.to_memory {
                f.store(C::FloatToHalfStore)
            } else {
                f.plain(C::FloatToHalf)
            }
        }
        Vcvtneps2bf16 => f.work(C::FloatToBf16),
        Vcvtne2ps2bf16 => f.work(C::FloatToBf16Two),
        _ => None,
    }
}

/// Returns the class of an instruction on masks.
fn mask(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Vpcmpb | Vpcmpw | Vpcmpd | Vpcmpq | Vpcmpub | Vpcmpuw | Vpcmpud | Vpcmpuq | Vptestmb | Vptestmw | Vptestmd
        | Vptestmq | Vptestnmb | Vptestnmw | Vptestnmd | Vptestnmq | Vpmovb2m | Vpmovw2m | Vpmovd2m | Vpmovq2m => {
            f.work(C::CompareMask)
        }
        Kandb | Kandw | Kandd | Kandq | Kandnb | Kandnw | Kandnd | Kandnq | Korb | Korw | Kord | Korq | Kxorb
        | Kxorw | Kxord | Kxorq | Kxnorb | Kxnorw | Kxnord | Kxnorq | Knotb | Knotw | Knotd | Knotq => {
            f.plain(C::MaskLogic)
        }
        Kshiftlb | Kshiftlw | Kshiftld | Kshiftlq | Kshiftrb | Kshiftrw | Kshiftrd | Kshiftrq | Kunpckbw | Kunpckwd
        | Kunpckdq | Kaddb | Kaddw | Kaddd | Kaddq => f.plain(C::MaskShift),
        Kmovb | Kmovw | Kmovd | Kmovq if f.to_memory => f.plain(C::Store),
        Kmovb | Kmovw | Kmovd | Kmovq if f.from_memory => f.plain(C::Load),
        Kmovb | Kmovw | Kmovd | Kmovq if f.op0.is_gpr() => f.plain(C::MaskToInt),
        Kmovb | Kmovw | Kmovd | Kmovq if f.op1.is_gpr() => f.plain(C::MaskFromInt),
        Kmovb | Kmovw | Kmovd | Kmovq => f.plain(C::MaskLogic),
        Kortestb | Kortestw | Kortestd | Kortestq | Ktestb | Ktestw | Ktestd | Ktestq => f.plain(C::MaskToInt),
        Vpmovm2b | Vpmovm2w | Vpmovm2d | Vpmovm2q => f.plain(C::MaskToVector),
        _ => None,
    }
}

/// Returns the class of a move between one element of a vector and an integer register or memory.
fn element_move(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Vpmovmskb | Vmovmskps | Vmovmskpd => f.plain(C::VecToInt),
        Vpextrb | Vpextrw | Vpextrd | Vpextrq | Vextractps => {
            if f.to_memory {
                f.store(C::ElementExtract)
            } else {
                f.plain(C::VecToIntAny)
            }
        }
        Vpinsrb | Vpinsrw | Vpinsrd | Vpinsrq => f.work(if f.from_memory { C::ElementInsert } else { C::IntToVecAny }),
        Vinsertps => f.work(if f.from_memory { C::ElementInsert } else { C::Shuffle }),
        _ => None,
    }
}

/// Returns the class of an instruction on tiles, or on the state of vector registers.
fn tile(f: &ClassifiedInstruction) -> Option<Work> {
    use Class as C;
    use Mnemonic::*;
    match f.i.mnemonic() {
        Vzeroupper => f.plain(C::UpperZero),

        Tdpbssd | Tdpbsud | Tdpbusd | Tdpbuud | Tdpbf16ps | Tdpfp16ps => f.plain(C::TileDot),
        Tileloadd | Tileloaddt1 => f.plain(C::TileLoad),
        Tilestored => f.plain(C::TileStore),
        Tilezero => f.plain(C::TileZero),
        Ldtilecfg => f.plain(C::TileConfig),
        Tilerelease => f.plain(C::TileRelease),
        _ => None,
    }
}

/// Whether Zen 4 reads 64 bytes for this instruction, even if it needs fewer (measured).
fn reads_whole(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Vbroadcastss | Vbroadcastsd | Vbroadcasti32x4 | Vbroadcastf32x4 | Vbroadcasti64x2 | Vbroadcastf64x2
    )
}

fn load_width(i: &Instruction, width: Width) -> Width {
    if width == Width::Scalar || reads_whole(i.mnemonic()) {
        return width;
    }
    let bytes = if i.is_broadcast() { 0 } else { i.memory_size().size() };
    let read = match bytes {
        0..=16 => Width::X,
        17..=32 => Width::Y,
        _ => Width::Z,
    };
    read.min(width)
}

fn width(i: &Instruction) -> Width {
    let of = |register: Register| {
        if register.is_zmm() {
            Width::Z
        } else if register.is_ymm() {
            Width::Y
        } else if register.is_xmm() {
            Width::X
        } else {
            Width::Scalar
        }
    };
    (0..i.op_count())
        .filter(|&n| i.op_kind(n) == OpKind::Register)
        .map(|n| of(i.op_register(n)))
        .max()
        .unwrap_or(Width::Scalar)
}
