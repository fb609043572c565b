//! `hunyuan_vl`: the text part of HunyuanVL and HunyuanOCR. Like `hunyuan-dense`. The sections of
//! RoPE, which assign pairs to dimensions of a position in an image, have no effect: in text, all
//! dimensions are equal. The base of RoPE is multiplied by `rope.scaling.alpha` to the power `d /
//! (d - 2)`, for heads of `d` elements.

use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, Keys, Rope, RopeSizes};

const STYLE: Style = Style { head_norm: HeadNorm::AFTER_ROPE, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hunyuan_vl",
    doc: "HunyuanVL, HunyuanOCR (text only)",
    defaults: Defaults { adjust: |keys, hyper| hyper.set_rope(keys, rope), ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};

/// Reads RoPE. If the file has `rope.scaling.alpha`, it increases the base (NTK scaling).
fn rope(keys: &Keys<'_>, sizes: RopeSizes) -> Result<Rope, GgufError> {
    const ALPHA: &str = "rope.scaling.alpha";
    let rope = Rope::usual(keys, sizes)?;
    let alpha = keys.float(ALPHA, 0.0, |x| (0.0..=1e9).contains(&x), "from 0 (off) to 1000000000")?;
    if alpha == 0.0 {
        return Ok(rope);
    }
    if sizes.key_length <= 2 {
        return Err(keys.metadata.bad_value(&keys.name(ALPHA), alpha, "absent, for heads of two elements"));
    }
    let dims = sizes.key_length as f64;
    Ok(Rope { base: rope.base * alpha.powf(dims / (dims - 2.0)), ..rope })
}
