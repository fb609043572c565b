//! The instruction table: the 128-, 256- and 512-bit forms of every vector instruction that
//! selection uses.
//!
//! Selection names an instruction and a width, and gets the shortest encoding: VEX up to 256 bits,
//! EVEX for 512. VEX reaches only the lower 16 registers and has neither masks nor broadcast memory
//! operands. Registers are known only after allocation, so [`super::encode`] asks [`evex`] for the
//! EVEX form where needed.
//!
//! ```text
//! PADDD   vpaddd ymm3, ymm1, ymm2            VEX, 4 bytes
//!         vpaddd ymm19, ymm1, ymm2           EVEX, 6 bytes
//!         vpaddd ymm3, ymm1, [rsi]{1to8}     EVEX
//! ```
//!
//! Invariant: on a target with AVX-512, every instruction that selection emits has an EVEX form.
//! Allocation can therefore use any register for it.

use iced_x86::Code;

use super::machine::Width;

/// The 128-, the 256- and the 512-bit form of an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Codes(pub Code, pub Code, pub Code);

impl Codes {
    /// Returns the form for a vector of `bytes` bytes.
    pub fn for_size(self, bytes: u32) -> (Code, Width) {
        let width = Width::from_bytes(bytes);
        (self.at(width), width)
    }

    /// Returns the form for this part of a vector register.
    pub fn at(self, width: Width) -> Code {
        match width {
            Width::Z => self.2,
            Width::Y => self.1,
            Width::X | Width::K | Width::T | Width::R16 | Width::R32 | Width::R64 => self.0,
        }
    }

    /// Returns the codes of an instruction whose operand width is independent of the result's
    /// width.
    const fn single(code: Code) -> Codes {
        Codes(code, code, code)
    }
}

macro_rules! table {
    (
        packed { $($name:ident $x:ident $y:ident $ex:ident $ey:ident $ez:ident;)* }
        single { $($v:ident $e:ident;)* }
        evex { $($only:ident $ox:ident $oy:ident $oz:ident;)* }
        vex { $($vex:ident $vx:ident $vy:ident;)* }
    ) => {
        $(pub(super) const $name: Codes = Codes(Code::$x, Code::$y, Code::$ez);)*
        $(pub(super) const $only: Codes = Codes(Code::$ox, Code::$oy, Code::$oz);)*
        // There is no 512-bit form: targets with 512-bit vectors use other instructions.
        $(pub(super) const $vex: Codes = Codes(Code::$vx, Code::$vy, Code::INVALID);)*

        /// Returns the EVEX form of a VEX instruction.
        pub fn evex(code: Code) -> Option<Code> {
            Some(match code {
                $(Code::$x => Code::$ex,
                Code::$y => Code::$ey,)*
                $(Code::$v => Code::$e,)*
                _ => return None,
            })
        }
    };
}

table! {
    packed {
    ADDPS VEX_Vaddps_xmm_xmm_xmmm128 VEX_Vaddps_ymm_ymm_ymmm256
        EVEX_Vaddps_xmm_k1z_xmm_xmmm128b32 EVEX_Vaddps_ymm_k1z_ymm_ymmm256b32 EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er;
    SUBPS VEX_Vsubps_xmm_xmm_xmmm128 VEX_Vsubps_ymm_ymm_ymmm256
        EVEX_Vsubps_xmm_k1z_xmm_xmmm128b32 EVEX_Vsubps_ymm_k1z_ymm_ymmm256b32 EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er;
    MULPS VEX_Vmulps_xmm_xmm_xmmm128 VEX_Vmulps_ymm_ymm_ymmm256
        EVEX_Vmulps_xmm_k1z_xmm_xmmm128b32 EVEX_Vmulps_ymm_k1z_ymm_ymmm256b32 EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er;
    DIVPS VEX_Vdivps_xmm_xmm_xmmm128 VEX_Vdivps_ymm_ymm_ymmm256
        EVEX_Vdivps_xmm_k1z_xmm_xmmm128b32 EVEX_Vdivps_ymm_k1z_ymm_ymmm256b32 EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er;
    MINPS VEX_Vminps_xmm_xmm_xmmm128 VEX_Vminps_ymm_ymm_ymmm256
        EVEX_Vminps_xmm_k1z_xmm_xmmm128b32 EVEX_Vminps_ymm_k1z_ymm_ymmm256b32 EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae;
    MAXPS VEX_Vmaxps_xmm_xmm_xmmm128 VEX_Vmaxps_ymm_ymm_ymmm256
        EVEX_Vmaxps_xmm_k1z_xmm_xmmm128b32 EVEX_Vmaxps_ymm_k1z_ymm_ymmm256b32 EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae;
    PADDB VEX_Vpaddb_xmm_xmm_xmmm128 VEX_Vpaddb_ymm_ymm_ymmm256
        EVEX_Vpaddb_xmm_k1z_xmm_xmmm128 EVEX_Vpaddb_ymm_k1z_ymm_ymmm256 EVEX_Vpaddb_zmm_k1z_zmm_zmmm512;
    PADDW VEX_Vpaddw_xmm_xmm_xmmm128 VEX_Vpaddw_ymm_ymm_ymmm256
        EVEX_Vpaddw_xmm_k1z_xmm_xmmm128 EVEX_Vpaddw_ymm_k1z_ymm_ymmm256 EVEX_Vpaddw_zmm_k1z_zmm_zmmm512;
    PADDD VEX_Vpaddd_xmm_xmm_xmmm128 VEX_Vpaddd_ymm_ymm_ymmm256
        EVEX_Vpaddd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpaddd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32;
    PSUBB VEX_Vpsubb_xmm_xmm_xmmm128 VEX_Vpsubb_ymm_ymm_ymmm256
        EVEX_Vpsubb_xmm_k1z_xmm_xmmm128 EVEX_Vpsubb_ymm_k1z_ymm_ymmm256 EVEX_Vpsubb_zmm_k1z_zmm_zmmm512;
    PSUBW VEX_Vpsubw_xmm_xmm_xmmm128 VEX_Vpsubw_ymm_ymm_ymmm256
        EVEX_Vpsubw_xmm_k1z_xmm_xmmm128 EVEX_Vpsubw_ymm_k1z_ymm_ymmm256 EVEX_Vpsubw_zmm_k1z_zmm_zmmm512;
    PSUBD VEX_Vpsubd_xmm_xmm_xmmm128 VEX_Vpsubd_ymm_ymm_ymmm256
        EVEX_Vpsubd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpsubd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32;
    PSUBQ VEX_Vpsubq_xmm_xmm_xmmm128 VEX_Vpsubq_ymm_ymm_ymmm256
        EVEX_Vpsubq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpsubq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64;
    PMULLW VEX_Vpmullw_xmm_xmm_xmmm128 VEX_Vpmullw_ymm_ymm_ymmm256
        EVEX_Vpmullw_xmm_k1z_xmm_xmmm128 EVEX_Vpmullw_ymm_k1z_ymm_ymmm256 EVEX_Vpmullw_zmm_k1z_zmm_zmmm512;
    PMULLD VEX_Vpmulld_xmm_xmm_xmmm128 VEX_Vpmulld_ymm_ymm_ymmm256
        EVEX_Vpmulld_xmm_k1z_xmm_xmmm128b32 EVEX_Vpmulld_ymm_k1z_ymm_ymmm256b32 EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32;
    PMINSB VEX_Vpminsb_xmm_xmm_xmmm128 VEX_Vpminsb_ymm_ymm_ymmm256
        EVEX_Vpminsb_xmm_k1z_xmm_xmmm128 EVEX_Vpminsb_ymm_k1z_ymm_ymmm256 EVEX_Vpminsb_zmm_k1z_zmm_zmmm512;
    PMINSW VEX_Vpminsw_xmm_xmm_xmmm128 VEX_Vpminsw_ymm_ymm_ymmm256
        EVEX_Vpminsw_xmm_k1z_xmm_xmmm128 EVEX_Vpminsw_ymm_k1z_ymm_ymmm256 EVEX_Vpminsw_zmm_k1z_zmm_zmmm512;
    PMINSD VEX_Vpminsd_xmm_xmm_xmmm128 VEX_Vpminsd_ymm_ymm_ymmm256
        EVEX_Vpminsd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpminsd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32;
    PMAXSB VEX_Vpmaxsb_xmm_xmm_xmmm128 VEX_Vpmaxsb_ymm_ymm_ymmm256
        EVEX_Vpmaxsb_xmm_k1z_xmm_xmmm128 EVEX_Vpmaxsb_ymm_k1z_ymm_ymmm256 EVEX_Vpmaxsb_zmm_k1z_zmm_zmmm512;
    PMAXSW VEX_Vpmaxsw_xmm_xmm_xmmm128 VEX_Vpmaxsw_ymm_ymm_ymmm256
        EVEX_Vpmaxsw_xmm_k1z_xmm_xmmm128 EVEX_Vpmaxsw_ymm_k1z_ymm_ymmm256 EVEX_Vpmaxsw_zmm_k1z_zmm_zmmm512;
    PMAXSD VEX_Vpmaxsd_xmm_xmm_xmmm128 VEX_Vpmaxsd_ymm_ymm_ymmm256
        EVEX_Vpmaxsd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpmaxsd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32;
    PAND VEX_Vpand_xmm_xmm_xmmm128 VEX_Vpand_ymm_ymm_ymmm256
        EVEX_Vpandd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpandd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32;
    POR VEX_Vpor_xmm_xmm_xmmm128 VEX_Vpor_ymm_ymm_ymmm256
        EVEX_Vpord_xmm_k1z_xmm_xmmm128b32 EVEX_Vpord_ymm_k1z_ymm_ymmm256b32 EVEX_Vpord_zmm_k1z_zmm_zmmm512b32;
    PXOR VEX_Vpxor_xmm_xmm_xmmm128 VEX_Vpxor_ymm_ymm_ymmm256
        EVEX_Vpxord_xmm_k1z_xmm_xmmm128b32 EVEX_Vpxord_ymm_k1z_ymm_ymmm256b32 EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32;
    PMADDUBSW VEX_Vpmaddubsw_xmm_xmm_xmmm128 VEX_Vpmaddubsw_ymm_ymm_ymmm256
        EVEX_Vpmaddubsw_xmm_k1z_xmm_xmmm128 EVEX_Vpmaddubsw_ymm_k1z_ymm_ymmm256 EVEX_Vpmaddubsw_zmm_k1z_zmm_zmmm512;
    PMADDWD VEX_Vpmaddwd_xmm_xmm_xmmm128 VEX_Vpmaddwd_ymm_ymm_ymmm256
        EVEX_Vpmaddwd_xmm_k1z_xmm_xmmm128 EVEX_Vpmaddwd_ymm_k1z_ymm_ymmm256 EVEX_Vpmaddwd_zmm_k1z_zmm_zmmm512;
    PSHUFB VEX_Vpshufb_xmm_xmm_xmmm128 VEX_Vpshufb_ymm_ymm_ymmm256
        EVEX_Vpshufb_xmm_k1z_xmm_xmmm128 EVEX_Vpshufb_ymm_k1z_ymm_ymmm256 EVEX_Vpshufb_zmm_k1z_zmm_zmmm512;
    PACKSSDW VEX_Vpackssdw_xmm_xmm_xmmm128 VEX_Vpackssdw_ymm_ymm_ymmm256
        EVEX_Vpackssdw_xmm_k1z_xmm_xmmm128b32 EVEX_Vpackssdw_ymm_k1z_ymm_ymmm256b32 EVEX_Vpackssdw_zmm_k1z_zmm_zmmm512b32;
    PACKSSWB VEX_Vpacksswb_xmm_xmm_xmmm128 VEX_Vpacksswb_ymm_ymm_ymmm256
        EVEX_Vpacksswb_xmm_k1z_xmm_xmmm128 EVEX_Vpacksswb_ymm_k1z_ymm_ymmm256 EVEX_Vpacksswb_zmm_k1z_zmm_zmmm512;
    PABSB VEX_Vpabsb_xmm_xmmm128 VEX_Vpabsb_ymm_ymmm256
        EVEX_Vpabsb_xmm_k1z_xmmm128 EVEX_Vpabsb_ymm_k1z_ymmm256 EVEX_Vpabsb_zmm_k1z_zmmm512;
    PABSW VEX_Vpabsw_xmm_xmmm128 VEX_Vpabsw_ymm_ymmm256
        EVEX_Vpabsw_xmm_k1z_xmmm128 EVEX_Vpabsw_ymm_k1z_ymmm256 EVEX_Vpabsw_zmm_k1z_zmmm512;
    PABSD VEX_Vpabsd_xmm_xmmm128 VEX_Vpabsd_ymm_ymmm256
        EVEX_Vpabsd_xmm_k1z_xmmm128b32 EVEX_Vpabsd_ymm_k1z_ymmm256b32 EVEX_Vpabsd_zmm_k1z_zmmm512b32;
    CVTDQ2PS VEX_Vcvtdq2ps_xmm_xmmm128 VEX_Vcvtdq2ps_ymm_ymmm256
        EVEX_Vcvtdq2ps_xmm_k1z_xmmm128b32 EVEX_Vcvtdq2ps_ymm_k1z_ymmm256b32 EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er;
    CVTPS2DQ VEX_Vcvtps2dq_xmm_xmmm128 VEX_Vcvtps2dq_ymm_ymmm256
        EVEX_Vcvtps2dq_xmm_k1z_xmmm128b32 EVEX_Vcvtps2dq_ymm_k1z_ymmm256b32 EVEX_Vcvtps2dq_zmm_k1z_zmmm512b32_er;
    SQRTPS VEX_Vsqrtps_xmm_xmmm128 VEX_Vsqrtps_ymm_ymmm256
        EVEX_Vsqrtps_xmm_k1z_xmmm128b32 EVEX_Vsqrtps_ymm_k1z_ymmm256b32 EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er;
    PSLLW VEX_Vpsllw_xmm_xmm_imm8 VEX_Vpsllw_ymm_ymm_imm8
        EVEX_Vpsllw_xmm_k1z_xmmm128_imm8 EVEX_Vpsllw_ymm_k1z_ymmm256_imm8 EVEX_Vpsllw_zmm_k1z_zmmm512_imm8;
    PSLLD VEX_Vpslld_xmm_xmm_imm8 VEX_Vpslld_ymm_ymm_imm8
        EVEX_Vpslld_xmm_k1z_xmmm128b32_imm8 EVEX_Vpslld_ymm_k1z_ymmm256b32_imm8 EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8;
    PSRLW VEX_Vpsrlw_xmm_xmm_imm8 VEX_Vpsrlw_ymm_ymm_imm8
        EVEX_Vpsrlw_xmm_k1z_xmmm128_imm8 EVEX_Vpsrlw_ymm_k1z_ymmm256_imm8 EVEX_Vpsrlw_zmm_k1z_zmmm512_imm8;
    PSRLD VEX_Vpsrld_xmm_xmm_imm8 VEX_Vpsrld_ymm_ymm_imm8
        EVEX_Vpsrld_xmm_k1z_xmmm128b32_imm8 EVEX_Vpsrld_ymm_k1z_ymmm256b32_imm8 EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8;
    PSLLQ VEX_Vpsllq_xmm_xmm_imm8 VEX_Vpsllq_ymm_ymm_imm8
        EVEX_Vpsllq_xmm_k1z_xmmm128b64_imm8 EVEX_Vpsllq_ymm_k1z_ymmm256b64_imm8 EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8;
    PSRLQ VEX_Vpsrlq_xmm_xmm_imm8 VEX_Vpsrlq_ymm_ymm_imm8
        EVEX_Vpsrlq_xmm_k1z_xmmm128b64_imm8 EVEX_Vpsrlq_ymm_k1z_ymmm256b64_imm8 EVEX_Vpsrlq_zmm_k1z_zmmm512b64_imm8;
    PSLLVQ VEX_Vpsllvq_xmm_xmm_xmmm128 VEX_Vpsllvq_ymm_ymm_ymmm256
        EVEX_Vpsllvq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpsllvq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpsllvq_zmm_k1z_zmm_zmmm512b64;
    PSRLVQ VEX_Vpsrlvq_xmm_xmm_xmmm128 VEX_Vpsrlvq_ymm_ymm_ymmm256
        EVEX_Vpsrlvq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpsrlvq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpsrlvq_zmm_k1z_zmm_zmmm512b64;
    PSRAW VEX_Vpsraw_xmm_xmm_imm8 VEX_Vpsraw_ymm_ymm_imm8
        EVEX_Vpsraw_xmm_k1z_xmmm128_imm8 EVEX_Vpsraw_ymm_k1z_ymmm256_imm8 EVEX_Vpsraw_zmm_k1z_zmmm512_imm8;
    PSRAD VEX_Vpsrad_xmm_xmm_imm8 VEX_Vpsrad_ymm_ymm_imm8
        EVEX_Vpsrad_xmm_k1z_xmmm128b32_imm8 EVEX_Vpsrad_ymm_k1z_ymmm256b32_imm8 EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8;
    PUNPCKLBW VEX_Vpunpcklbw_xmm_xmm_xmmm128 VEX_Vpunpcklbw_ymm_ymm_ymmm256
        EVEX_Vpunpcklbw_xmm_k1z_xmm_xmmm128 EVEX_Vpunpcklbw_ymm_k1z_ymm_ymmm256 EVEX_Vpunpcklbw_zmm_k1z_zmm_zmmm512;
    PUNPCKLWD VEX_Vpunpcklwd_xmm_xmm_xmmm128 VEX_Vpunpcklwd_ymm_ymm_ymmm256
        EVEX_Vpunpcklwd_xmm_k1z_xmm_xmmm128 EVEX_Vpunpcklwd_ymm_k1z_ymm_ymmm256 EVEX_Vpunpcklwd_zmm_k1z_zmm_zmmm512;
    PUNPCKLDQ VEX_Vpunpckldq_xmm_xmm_xmmm128 VEX_Vpunpckldq_ymm_ymm_ymmm256
        EVEX_Vpunpckldq_xmm_k1z_xmm_xmmm128b32 EVEX_Vpunpckldq_ymm_k1z_ymm_ymmm256b32 EVEX_Vpunpckldq_zmm_k1z_zmm_zmmm512b32;
    PUNPCKLQDQ VEX_Vpunpcklqdq_xmm_xmm_xmmm128 VEX_Vpunpcklqdq_ymm_ymm_ymmm256
        EVEX_Vpunpcklqdq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpunpcklqdq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpunpcklqdq_zmm_k1z_zmm_zmmm512b64;
    PUNPCKHBW VEX_Vpunpckhbw_xmm_xmm_xmmm128 VEX_Vpunpckhbw_ymm_ymm_ymmm256
        EVEX_Vpunpckhbw_xmm_k1z_xmm_xmmm128 EVEX_Vpunpckhbw_ymm_k1z_ymm_ymmm256 EVEX_Vpunpckhbw_zmm_k1z_zmm_zmmm512;
    PUNPCKHWD VEX_Vpunpckhwd_xmm_xmm_xmmm128 VEX_Vpunpckhwd_ymm_ymm_ymmm256
        EVEX_Vpunpckhwd_xmm_k1z_xmm_xmmm128 EVEX_Vpunpckhwd_ymm_k1z_ymm_ymmm256 EVEX_Vpunpckhwd_zmm_k1z_zmm_zmmm512;
    PUNPCKHDQ VEX_Vpunpckhdq_xmm_xmm_xmmm128 VEX_Vpunpckhdq_ymm_ymm_ymmm256
        EVEX_Vpunpckhdq_xmm_k1z_xmm_xmmm128b32 EVEX_Vpunpckhdq_ymm_k1z_ymm_ymmm256b32 EVEX_Vpunpckhdq_zmm_k1z_zmm_zmmm512b32;
    PUNPCKHQDQ VEX_Vpunpckhqdq_xmm_xmm_xmmm128 VEX_Vpunpckhqdq_ymm_ymm_ymmm256
        EVEX_Vpunpckhqdq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpunpckhqdq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpunpckhqdq_zmm_k1z_zmm_zmmm512b64;
    PSHUFD VEX_Vpshufd_xmm_xmmm128_imm8 VEX_Vpshufd_ymm_ymmm256_imm8
        EVEX_Vpshufd_xmm_k1z_xmmm128b32_imm8 EVEX_Vpshufd_ymm_k1z_ymmm256b32_imm8 EVEX_Vpshufd_zmm_k1z_zmmm512b32_imm8;
    PERMILPS VEX_Vpermilps_xmm_xmmm128_imm8 VEX_Vpermilps_ymm_ymmm256_imm8
        EVEX_Vpermilps_xmm_k1z_xmmm128b32_imm8 EVEX_Vpermilps_ymm_k1z_ymmm256b32_imm8 EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8;
    FMADD132PS VEX_Vfmadd132ps_xmm_xmm_xmmm128 VEX_Vfmadd132ps_ymm_ymm_ymmm256
        EVEX_Vfmadd132ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmadd132ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmadd132ps_zmm_k1z_zmm_zmmm512b32_er;
    FMADD213PS VEX_Vfmadd213ps_xmm_xmm_xmmm128 VEX_Vfmadd213ps_ymm_ymm_ymmm256
        EVEX_Vfmadd213ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmadd213ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er;
    FMADD231PS VEX_Vfmadd231ps_xmm_xmm_xmmm128 VEX_Vfmadd231ps_ymm_ymm_ymmm256
        EVEX_Vfmadd231ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmadd231ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er;
    DPBUSD VEX_Vpdpbusd_xmm_xmm_xmmm128 VEX_Vpdpbusd_ymm_ymm_ymmm256
        EVEX_Vpdpbusd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpdpbusd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpdpbusd_zmm_k1z_zmm_zmmm512b32;
    DPWSSD VEX_Vpdpwssd_xmm_xmm_xmmm128 VEX_Vpdpwssd_ymm_ymm_ymmm256
        EVEX_Vpdpwssd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpdpwssd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpdpwssd_zmm_k1z_zmm_zmmm512b32;
    PMOVSXBW VEX_Vpmovsxbw_xmm_xmmm64 VEX_Vpmovsxbw_ymm_xmmm128
        EVEX_Vpmovsxbw_xmm_k1z_xmmm64 EVEX_Vpmovsxbw_ymm_k1z_xmmm128 EVEX_Vpmovsxbw_zmm_k1z_ymmm256;
    PMOVSXBD VEX_Vpmovsxbd_xmm_xmmm32 VEX_Vpmovsxbd_ymm_xmmm64
        EVEX_Vpmovsxbd_xmm_k1z_xmmm32 EVEX_Vpmovsxbd_ymm_k1z_xmmm64 EVEX_Vpmovsxbd_zmm_k1z_xmmm128;
    PMOVSXWD VEX_Vpmovsxwd_xmm_xmmm64 VEX_Vpmovsxwd_ymm_xmmm128
        EVEX_Vpmovsxwd_xmm_k1z_xmmm64 EVEX_Vpmovsxwd_ymm_k1z_xmmm128 EVEX_Vpmovsxwd_zmm_k1z_ymmm256;
    PMOVZXBW VEX_Vpmovzxbw_xmm_xmmm64 VEX_Vpmovzxbw_ymm_xmmm128
        EVEX_Vpmovzxbw_xmm_k1z_xmmm64 EVEX_Vpmovzxbw_ymm_k1z_xmmm128 EVEX_Vpmovzxbw_zmm_k1z_ymmm256;
    PMOVZXBD VEX_Vpmovzxbd_xmm_xmmm32 VEX_Vpmovzxbd_ymm_xmmm64
        EVEX_Vpmovzxbd_xmm_k1z_xmmm32 EVEX_Vpmovzxbd_ymm_k1z_xmmm64 EVEX_Vpmovzxbd_zmm_k1z_xmmm128;
    PMOVZXWD VEX_Vpmovzxwd_xmm_xmmm64 VEX_Vpmovzxwd_ymm_xmmm128
        EVEX_Vpmovzxwd_xmm_k1z_xmmm64 EVEX_Vpmovzxwd_ymm_k1z_xmmm128 EVEX_Vpmovzxwd_zmm_k1z_ymmm256;
    CVTPH2PS VEX_Vcvtph2ps_xmm_xmmm64 VEX_Vcvtph2ps_ymm_xmmm128
        EVEX_Vcvtph2ps_xmm_k1z_xmmm64 EVEX_Vcvtph2ps_ymm_k1z_xmmm128 EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae;
    CVTPS2PH VEX_Vcvtps2ph_xmmm64_xmm_imm8 VEX_Vcvtps2ph_xmmm128_ymm_imm8
        EVEX_Vcvtps2ph_xmmm64_k1z_xmm_imm8 EVEX_Vcvtps2ph_xmmm128_k1z_ymm_imm8 EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae;
    MOVAPS VEX_Vmovaps_xmm_xmmm128 VEX_Vmovaps_ymm_ymmm256
        EVEX_Vmovaps_xmm_k1z_xmmm128 EVEX_Vmovaps_ymm_k1z_ymmm256 EVEX_Vmovaps_zmm_k1z_zmmm512;
    MOVUPS VEX_Vmovups_xmm_xmmm128 VEX_Vmovups_ymm_ymmm256
        EVEX_Vmovups_xmm_k1z_xmmm128 EVEX_Vmovups_ymm_k1z_ymmm256 EVEX_Vmovups_zmm_k1z_zmmm512;
    MOVUPS_STORE VEX_Vmovups_xmmm128_xmm VEX_Vmovups_ymmm256_ymm
        EVEX_Vmovups_xmmm128_k1z_xmm EVEX_Vmovups_ymmm256_k1z_ymm EVEX_Vmovups_zmmm512_k1z_zmm;
    MOVDQU VEX_Vmovdqu_xmm_xmmm128 VEX_Vmovdqu_ymm_ymmm256
        EVEX_Vmovdqu32_xmm_k1z_xmmm128 EVEX_Vmovdqu32_ymm_k1z_ymmm256 EVEX_Vmovdqu32_zmm_k1z_zmmm512;
    MOVDQU_STORE VEX_Vmovdqu_xmmm128_xmm VEX_Vmovdqu_ymmm256_ymm
        EVEX_Vmovdqu32_xmmm128_k1z_xmm EVEX_Vmovdqu32_ymmm256_k1z_ymm EVEX_Vmovdqu32_zmmm512_k1z_zmm;
    PBROADCASTB VEX_Vpbroadcastb_xmm_xmmm8 VEX_Vpbroadcastb_ymm_xmmm8
        EVEX_Vpbroadcastb_xmm_k1z_xmmm8 EVEX_Vpbroadcastb_ymm_k1z_xmmm8 EVEX_Vpbroadcastb_zmm_k1z_xmmm8;
    PBROADCASTW VEX_Vpbroadcastw_xmm_xmmm16 VEX_Vpbroadcastw_ymm_xmmm16
        EVEX_Vpbroadcastw_xmm_k1z_xmmm16 EVEX_Vpbroadcastw_ymm_k1z_xmmm16 EVEX_Vpbroadcastw_zmm_k1z_xmmm16;
    PBROADCASTD VEX_Vpbroadcastd_xmm_xmmm32 VEX_Vpbroadcastd_ymm_xmmm32
        EVEX_Vpbroadcastd_xmm_k1z_xmmm32 EVEX_Vpbroadcastd_ymm_k1z_xmmm32 EVEX_Vpbroadcastd_zmm_k1z_xmmm32;
    BROADCASTSS VEX_Vbroadcastss_xmm_xmm VEX_Vbroadcastss_ymm_xmm
        EVEX_Vbroadcastss_xmm_k1z_xmmm32 EVEX_Vbroadcastss_ymm_k1z_xmmm32 EVEX_Vbroadcastss_zmm_k1z_xmmm32;
    BROADCASTSS_LOAD VEX_Vbroadcastss_xmm_m32 VEX_Vbroadcastss_ymm_m32
        EVEX_Vbroadcastss_xmm_k1z_xmmm32 EVEX_Vbroadcastss_ymm_k1z_xmmm32 EVEX_Vbroadcastss_zmm_k1z_xmmm32;
    }
    single {
    VEX_Vaddss_xmm_xmm_xmmm32 EVEX_Vaddss_xmm_k1z_xmm_xmmm32_er;
    VEX_Vsubss_xmm_xmm_xmmm32 EVEX_Vsubss_xmm_k1z_xmm_xmmm32_er;
    VEX_Vmulss_xmm_xmm_xmmm32 EVEX_Vmulss_xmm_k1z_xmm_xmmm32_er;
    VEX_Vdivss_xmm_xmm_xmmm32 EVEX_Vdivss_xmm_k1z_xmm_xmmm32_er;
    VEX_Vminss_xmm_xmm_xmmm32 EVEX_Vminss_xmm_k1z_xmm_xmmm32_sae;
    VEX_Vmaxss_xmm_xmm_xmmm32 EVEX_Vmaxss_xmm_k1z_xmm_xmmm32_sae;
    VEX_Vsqrtss_xmm_xmm_xmmm32 EVEX_Vsqrtss_xmm_k1z_xmm_xmmm32_er;
    VEX_Vfmadd132ss_xmm_xmm_xmmm32 EVEX_Vfmadd132ss_xmm_k1z_xmm_xmmm32_er;
    VEX_Vfmadd213ss_xmm_xmm_xmmm32 EVEX_Vfmadd213ss_xmm_k1z_xmm_xmmm32_er;
    VEX_Vfmadd231ss_xmm_xmm_xmmm32 EVEX_Vfmadd231ss_xmm_k1z_xmm_xmmm32_er;
    VEX_Vextracti128_xmmm128_ymm_imm8 EVEX_Vextracti32x4_xmmm128_k1z_ymm_imm8;
    VEX_Vextractf128_xmmm128_ymm_imm8 EVEX_Vextractf32x4_xmmm128_k1z_ymm_imm8;
    VEX_Vinserti128_ymm_ymm_xmmm128_imm8 EVEX_Vinserti32x4_ymm_k1z_ymm_xmmm128_imm8;
    VEX_Vinsertf128_ymm_ymm_xmmm128_imm8 EVEX_Vinsertf32x4_ymm_k1z_ymm_xmmm128_imm8;
    VEX_Vpsrldq_xmm_xmm_imm8 EVEX_Vpsrldq_xmm_xmmm128_imm8;
    VEX_Vmovhps_xmm_xmm_m64 EVEX_Vmovhps_xmm_xmm_m64;
    VEX_Vmovsd_xmm_m64 EVEX_Vmovsd_xmm_k1z_m64;
    VEX_Vmovq_xmm_xmmm64 EVEX_Vmovq_xmm_xmmm64;
    VEX_Vmovss_xmm_m32 EVEX_Vmovss_xmm_k1z_m32;
    VEX_Vmovd_xmm_rm32 EVEX_Vmovd_xmm_rm32;
    VEX_Vmovsd_m64_xmm EVEX_Vmovsd_m64_k1_xmm;
    VEX_Vmovq_xmmm64_xmm EVEX_Vmovq_xmmm64_xmm;
    VEX_Vmovss_m32_xmm EVEX_Vmovss_m32_k1_xmm;
    VEX_Vmovd_rm32_xmm EVEX_Vmovd_rm32_xmm;
    VEX_Vpextrw_r32m16_xmm_imm8 EVEX_Vpextrw_r32m16_xmm_imm8;
    VEX_Vpextrb_r32m8_xmm_imm8 EVEX_Vpextrb_r32m8_xmm_imm8;
    VEX_Vmovq_rm64_xmm EVEX_Vmovq_rm64_xmm;
    VEX_Vpextrq_rm64_xmm_imm8 EVEX_Vpextrq_rm64_xmm_imm8;
    VEX_Vpextrd_rm32_xmm_imm8 EVEX_Vpextrd_rm32_xmm_imm8;
    VEX_Vpinsrd_xmm_xmm_rm32_imm8 EVEX_Vpinsrd_xmm_xmm_rm32_imm8;
    }
    evex {
    CMPPS EVEX_Vcmpps_kr_k1_xmm_xmmm128b32_imm8 EVEX_Vcmpps_kr_k1_ymm_ymmm256b32_imm8
        EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae;
    PCMPEQD EVEX_Vpcmpeqd_kr_k1_xmm_xmmm128b32 EVEX_Vpcmpeqd_kr_k1_ymm_ymmm256b32
        EVEX_Vpcmpeqd_kr_k1_zmm_zmmm512b32;
    PCMPGTD EVEX_Vpcmpgtd_kr_k1_xmm_xmmm128b32 EVEX_Vpcmpgtd_kr_k1_ymm_ymmm256b32
        EVEX_Vpcmpgtd_kr_k1_zmm_zmmm512b32;
    BLENDMPS EVEX_Vblendmps_xmm_k1z_xmm_xmmm128b32 EVEX_Vblendmps_ymm_k1z_ymm_ymmm256b32
        EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32;
    PBLENDMD EVEX_Vpblendmd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpblendmd_ymm_k1z_ymm_ymmm256b32
        EVEX_Vpblendmd_zmm_k1z_zmm_zmmm512b32;
    PBLENDMB EVEX_Vpblendmb_xmm_k1z_xmm_xmmm128 EVEX_Vpblendmb_ymm_k1z_ymm_ymmm256
        EVEX_Vpblendmb_zmm_k1z_zmm_zmmm512;
    PERMT2B EVEX_Vpermt2b_xmm_k1z_xmm_xmmm128 EVEX_Vpermt2b_ymm_k1z_ymm_ymmm256
        EVEX_Vpermt2b_zmm_k1z_zmm_zmmm512;
    PBLENDMW EVEX_Vpblendmw_xmm_k1z_xmm_xmmm128 EVEX_Vpblendmw_ymm_k1z_ymm_ymmm256
        EVEX_Vpblendmw_zmm_k1z_zmm_zmmm512;
    PERMT2W EVEX_Vpermt2w_xmm_k1z_xmm_xmmm128 EVEX_Vpermt2w_ymm_k1z_ymm_ymmm256
        EVEX_Vpermt2w_zmm_k1z_zmm_zmmm512;
    PSRLVW EVEX_Vpsrlvw_xmm_k1z_xmm_xmmm128 EVEX_Vpsrlvw_ymm_k1z_ymm_ymmm256
        EVEX_Vpsrlvw_zmm_k1z_zmm_zmmm512;
    MULTISHIFT EVEX_Vpmultishiftqb_xmm_k1z_xmm_xmmm128b64 EVEX_Vpmultishiftqb_ymm_k1z_ymm_ymmm256b64
        EVEX_Vpmultishiftqb_zmm_k1z_zmm_zmmm512b64;
    PTERNLOGD EVEX_Vpternlogd_xmm_k1z_xmm_xmmm128b32_imm8 EVEX_Vpternlogd_ymm_k1z_ymm_ymmm256b32_imm8
        EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8;
    PMOVM2D EVEX_Vpmovm2d_xmm_kr EVEX_Vpmovm2d_ymm_kr
        EVEX_Vpmovm2d_zmm_kr;
    PMOVB2M EVEX_Vpmovb2m_kr_xmm EVEX_Vpmovb2m_kr_ymm
        EVEX_Vpmovb2m_kr_zmm;
    PMOVM2B EVEX_Vpmovm2b_xmm_kr EVEX_Vpmovm2b_ymm_kr
        EVEX_Vpmovm2b_zmm_kr;
    PTESTMB EVEX_Vptestmb_kr_k1_xmm_xmmm128 EVEX_Vptestmb_kr_k1_ymm_ymmm256
        EVEX_Vptestmb_kr_k1_zmm_zmmm512;
    PMOVW2M EVEX_Vpmovw2m_kr_xmm EVEX_Vpmovw2m_kr_ymm
        EVEX_Vpmovw2m_kr_zmm;
    PMOVM2W EVEX_Vpmovm2w_xmm_kr EVEX_Vpmovm2w_ymm_kr
        EVEX_Vpmovm2w_zmm_kr;
    PTESTMW EVEX_Vptestmw_kr_k1_xmm_xmmm128 EVEX_Vptestmw_kr_k1_ymm_ymmm256
        EVEX_Vptestmw_kr_k1_zmm_zmmm512;
    PMOVD2M EVEX_Vpmovd2m_kr_xmm EVEX_Vpmovd2m_kr_ymm
        EVEX_Vpmovd2m_kr_zmm;
    PTESTMD EVEX_Vptestmd_kr_k1_xmm_xmmm128b32 EVEX_Vptestmd_kr_k1_ymm_ymmm256b32
        EVEX_Vptestmd_kr_k1_zmm_zmmm512b32;
    PTESTNMD EVEX_Vptestnmd_kr_k1_xmm_xmmm128b32 EVEX_Vptestnmd_kr_k1_ymm_ymmm256b32
        EVEX_Vptestnmd_kr_k1_zmm_zmmm512b32;
    CVTNEPS2BF16 EVEX_Vcvtneps2bf16_xmm_k1z_xmmm128b32 EVEX_Vcvtneps2bf16_xmm_k1z_ymmm256b32
        EVEX_Vcvtneps2bf16_ymm_k1z_zmmm512b32;
    CVTNE2PS2BF16 EVEX_Vcvtne2ps2bf16_xmm_k1z_xmm_xmmm128b32 EVEX_Vcvtne2ps2bf16_ymm_k1z_ymm_ymmm256b32
        EVEX_Vcvtne2ps2bf16_zmm_k1z_zmm_zmmm512b32;
    DPBF16PS EVEX_Vdpbf16ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vdpbf16ps_ymm_k1z_ymm_ymmm256b32
        EVEX_Vdpbf16ps_zmm_k1z_zmm_zmmm512b32;
    PERMW EVEX_Vpermw_xmm_k1z_xmm_xmmm128 EVEX_Vpermw_ymm_k1z_ymm_ymmm256
        EVEX_Vpermw_zmm_k1z_zmm_zmmm512;
    PMOVDW EVEX_Vpmovdw_xmmm64_k1z_xmm EVEX_Vpmovdw_xmmm128_k1z_ymm
        EVEX_Vpmovdw_ymmm256_k1z_zmm;
    PMOVSDW EVEX_Vpmovsdw_xmmm64_k1z_xmm EVEX_Vpmovsdw_xmmm128_k1z_ymm
        EVEX_Vpmovsdw_ymmm256_k1z_zmm;
    PMOVSWB EVEX_Vpmovswb_xmmm64_k1z_xmm EVEX_Vpmovswb_xmmm128_k1z_ymm
        EVEX_Vpmovswb_ymmm256_k1z_zmm;
    PMOVSDB EVEX_Vpmovsdb_xmmm32_k1z_xmm EVEX_Vpmovsdb_xmmm64_k1z_ymm
        EVEX_Vpmovsdb_xmmm128_k1z_zmm;
    }
    vex {
    PSIGNB VEX_Vpsignb_xmm_xmm_xmmm128 VEX_Vpsignb_ymm_ymm_ymmm256;
    PSIGNW VEX_Vpsignw_xmm_xmm_xmmm128 VEX_Vpsignw_ymm_ymm_ymmm256;
    PSIGND VEX_Vpsignd_xmm_xmm_xmmm128 VEX_Vpsignd_ymm_ymm_ymmm256;
    PCMPEQD_VEX VEX_Vpcmpeqd_xmm_xmm_xmmm128 VEX_Vpcmpeqd_ymm_ymm_ymmm256;
    PCMPGTD_VEX VEX_Vpcmpgtd_xmm_xmm_xmmm128 VEX_Vpcmpgtd_ymm_ymm_ymmm256;
    CMPPS_VEX VEX_Vcmpps_xmm_xmm_xmmm128_imm8 VEX_Vcmpps_ymm_ymm_ymmm256_imm8;
    PACKUSDW VEX_Vpackusdw_xmm_xmm_xmmm128 VEX_Vpackusdw_ymm_ymm_ymmm256;
    PBLENDW VEX_Vpblendw_xmm_xmm_xmmm128_imm8 VEX_Vpblendw_ymm_ymm_ymmm256_imm8;
    BLENDVPS VEX_Vblendvps_xmm_xmm_xmmm128_xmm VEX_Vblendvps_ymm_ymm_ymmm256_ymm;
    }
}

pub(super) const ADDSS: Codes = Codes::single(Code::VEX_Vaddss_xmm_xmm_xmmm32);
pub(super) const SUBSS: Codes = Codes::single(Code::VEX_Vsubss_xmm_xmm_xmmm32);
pub(super) const MULSS: Codes = Codes::single(Code::VEX_Vmulss_xmm_xmm_xmmm32);
pub(super) const DIVSS: Codes = Codes::single(Code::VEX_Vdivss_xmm_xmm_xmmm32);
pub(super) const MINSS: Codes = Codes::single(Code::VEX_Vminss_xmm_xmm_xmmm32);
pub(super) const MAXSS: Codes = Codes::single(Code::VEX_Vmaxss_xmm_xmm_xmmm32);

/// Interleaving of low halves, by unit: 1, 2, 4 and 8 bytes.
pub(super) const UNPACK_LO: [Codes; 4] = [PUNPCKLBW, PUNPCKLWD, PUNPCKLDQ, PUNPCKLQDQ];
/// Interleaving of high halves, by unit: 1, 2, 4 and 8 bytes.
pub(super) const UNPACK_HI: [Codes; 4] = [PUNPCKHBW, PUNPCKHWD, PUNPCKHDQ, PUNPCKHQDQ];
