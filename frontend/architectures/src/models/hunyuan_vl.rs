//! `hunyuan_vl`: the text part of HunyuanVL and HunyuanOCR: `hunyuan-dense`. RoPE's sections say which of an image's positions turns a pair; a text's are equal. The base of RoPE
//! grows by `rope.scaling.alpha`, to the power `d / (d - 2)` of a head of `d` elements.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::AfterRope, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hunyuan_vl",
    doc: "HunyuanVL, HunyuanOCR, for text",
    defaults: Defaults { based_by_alpha: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
