//! `chameleon`: the text part of Chameleon. Like `llama`, but each query and key head has a layer
//! norm, with its own weights and biases. In the larger model, norms follow blocks instead of
//! preceding them (`swin_norm`). Image tokens, whose names in the vocabulary begin with `IMGIMG`,
//! must never be generated, so their logits have a negative bias. The source is transformers'
//! `chameleon`; llama.cpp identifies image tokens by their ids, 4 to 8,195.

use ixc_ir::derived::{Axis, Change, Derivation, Element, Extent, Piece};
use ixc_ir::format::Format;
use ixc_model_files::gguf::{DerivedTensor, Gguf, GgufError, StringArray};

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, PostNorms, Style, decoder};
use crate::hyper::Defaults;

/// Epsilon of the layer norms of heads.
const HEAD_EPS: f64 = 1e-5;

/// Layer norms of heads, each head with its own weight and bias.
const HEAD_NORM: HeadNorm = HeadNorm {
    before: |b, x, of| b.layer_norm_of_each(x, of.norm.trim_end_matches(".weight"), of.heads, of.length, HEAD_EPS),
    ..HeadNorm::ABSENT
};

const STYLE: Style = Style { head_norm: HEAD_NORM, ..Style::LLAMA };
/// Style with norms after blocks instead of before them. The norms have the same names in files.
const POST_NORMS: Style =
    Style { pre_norms: false, post_norms: Some(PostNorms { attention: "attn_norm", network: "ffn_norm" }), ..STYLE };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "chameleon",
    doc: "Chameleon (text only)",
    defaults: Defaults {
        complete: |gguf, _| {
            let made = image_token_bias(&gguf)?;
            gguf.with(made)
        },
        ..Defaults::USUAL
    },
    build: |b| {
        let keys = b.keys();
        let norms_follow = keys.metadata.read_or(&keys.name("swin_norm"), false)?;
        decoder(b, if norms_follow { &POST_NORMS } else { &STYLE })
    },
};

/// Derives a bias of the logits that prevents image tokens.
fn image_token_bias(gguf: &Gguf) -> Result<Vec<DerivedTensor>, GgufError> {
    /// Prefix of the names of image tokens in the vocabulary.
    const IMAGE_PREFIX: &str = "IMGIMG";
    const NAME: &str = "output.bias";
    let Some(tokens) = gguf.metadata().read_optional::<&StringArray>("tokenizer.ggml.tokens")? else {
        return Ok(Vec::new());
    };
    let mut runs: Vec<(bool, u64)> = Vec::new();
    for is_image in tokens.iter().map(|token| token.starts_with(IMAGE_PREFIX)) {
        match runs.last_mut() {
            Some((kind, len)) if *kind == is_image => *len += 1,
            _ => runs.push((is_image, 1)),
        }
    }
    if gguf.tensor(NAME).is_some() || !runs.iter().any(|(is_image, _)| *is_image) {
        return Ok(Vec::new());
    }
    let piece = |&(is_image, len): &(bool, u64)| Piece {
        extent: Extent { file: 0, offset: 0, bytes: 4 },
        element: Element::F32,
        first: 0,
        rows: vec![Axis { len: 1, stride: 0 }],
        columns: vec![Axis { len, stride: 0 }],
        scales: None,
        groups: None,
        change: Change::Number(if is_image { f32::MIN } else { 0.0 }),
    };
    let pieces: Vec<Piece> = runs.iter().map(piece).collect();
    let columns = runs.iter().map(|(_, len)| len).sum();
    let derived = Derivation { format: Format::F32, columns, pieces_per_row: pieces.len() as u32, pieces };
    Ok(vec![DerivedTensor { name: NAME.to_owned(), dims: vec![columns], derived }])
}
