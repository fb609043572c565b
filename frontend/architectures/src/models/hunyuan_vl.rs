//! `hunyuan_vl`: the text part of HunyuanVL and HunyuanOCR. Like `hunyuan-dense`. RoPE's sections
//! assign pairs to dimensions of an image's position, which are equal in text. The base of RoPE is
//! multiplied by `rope.scaling.alpha` to the power `d / (d - 2)`, for heads of `d` elements.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::AfterRope, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hunyuan_vl",
    doc: "HunyuanVL, HunyuanOCR (text only)",
    defaults: Defaults { based_by_alpha: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
