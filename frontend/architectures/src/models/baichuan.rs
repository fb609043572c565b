//! `baichuan`: Baichuan 1 and 2. Like `llama`, but the models of 13 billion parameters have ALiBi
//! instead of RoPE. The converter writes no key for this. In a file without
//! `attention.max_alibi_bias`, 40 layers identify these models, as in llama.cpp.
//!
//! Baichuan 2 divides the rows of the output matrix by their length at run time. The converter
//! leaves the rows unchanged, and llama.cpp does not divide them. Our key `norm_head` states
//! whether they are divided; without it, the size of the vocabulary does. Rows that already have
//! length 1 stay unchanged.

use ixc_ir::derived::{Axis, Change, Derivation, Element, Extent, Piece};
use ixc_model_files::gguf::{DerivedTensor, Gguf, GgufError};

use crate::architecture::Architecture;
use crate::builder::UNIT_HEAD;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, MAX_BIAS, RopeUse, Scales};

const STYLE: Style = Style::LLAMA;
/// Number of layers of the models of 13 billion parameters, which have ALiBi. The models of 7
/// billion have 32.
const BIASED_LAYERS: u64 = 40;
/// Vocabulary size of Baichuan 2.
const SECOND_VOCABULARY: u64 = 125_696;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "baichuan",
    doc: "Baichuan 1 and 2",
    defaults: Defaults {
        reads: &[MAX_BIAS],
        rope_use: RopeUse::WithoutAlibi,
        scales: |widths| if widths.layers == BIASED_LAYERS { Scales::ALIBI } else { Scales::NONE },
        complete: |gguf, name| {
            let made = unit_head(&gguf, name)?;
            gguf.with(made)
        },
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};

/// Derives the output matrix with rows of length 1. If the file's matrix is f32, f16 or bf16, it
/// keeps that format. Otherwise it becomes f16.
fn unit_head(gguf: &Gguf, architecture: &str) -> Result<Vec<DerivedTensor>, GgufError> {
    // In a folder of safetensors, the conversion has already derived this matrix.
    let Some(head) = gguf.tensor("output.weight").filter(|head| head.file() < gguf.files().len()) else {
        return Ok(Vec::new());
    };
    let &[columns, rows] = head.dims() else { return Ok(Vec::new()) };
    if !gguf.metadata().read_or(&format!("{architecture}.norm_head"), rows == SECOND_VOCABULARY)? {
        return Ok(Vec::new());
    }
    let element = Element::from_format(gguf.require_format(head)?);
    let piece = Piece {
        extent: Extent { file: head.file() as u32, offset: head.offset(), bytes: head.bytes() },
        element,
        first: 0,
        rows: vec![Axis { len: rows, stride: columns }],
        columns: vec![Axis { len: columns, stride: 1 }],
        scales: None,
        groups: None,
        change: Change::Unit,
    };
    let derived = Derivation { format: element.unit_format(), columns, pieces_per_row: 1, pieces: vec![piece] };
    Ok(vec![DerivedTensor { name: format!("{UNIT_HEAD}.weight"), dims: vec![columns, rows], derived }])
}
