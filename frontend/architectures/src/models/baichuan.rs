//! `baichuan`: Baichuan 1 and 2: as `llama`. Scores of the models of 13 billion parameters fall with distance (ALiBi), and they have no RoPE. The converter writes no key that says
//! which of both a file is: llama.cpp knows it by its 40 layers, and so is it here, where there is no `attention.max_alibi_bias`.
//!
//! Rows of Baichuan 2's output matrix are divided by their length as they are used. The converter leaves them as they are, and llama.cpp does not divide; so it is known by the rows of its
//! vocabulary, where no `norm_head` of ours says it. Rows that were divided before stay as they are.

use ixc_ir::derived::{Axis, Change, Derived, Element, Extent, Piece};
use ixc_model_files::gguf::{Gguf, GgufError, Made};

use crate::architecture::Architecture;
use crate::builder::UNIT_HEAD;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, MAX_BIAS, Rotates, Scales};

const STYLE: Style = Style::LLAMA;
/// Layers of the models of 13 billion parameters; those of 7 have 32.
const BIASED_LAYERS: u64 = 40;
/// Rows of the vocabulary of Baichuan 2.
const SECOND: u64 = 125_696;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "baichuan",
    doc: "Baichuan 1 and 2",
    defaults: Defaults {
        reads: &[MAX_BIAS],
        rotates: Rotates::IfUnbiased,
        scales: |widths| if widths.layers == BIASED_LAYERS { Scales::ALIBI } else { Scales::NONE },
        made: unit_head,
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};

/// The output matrix with rows of length 1, in as many bits as numbers of the file's have, or halves.
fn unit_head(gguf: &Gguf, architecture: &str) -> Result<Vec<Made>, GgufError> {
    // Of a folder it is made so already.
    let Some(head) = gguf.tensor("output.weight").filter(|head| head.file() < gguf.files().len()) else {
        return Ok(Vec::new());
    };
    let &[columns, rows] = head.dims() else { return Ok(Vec::new()) };
    if !gguf.metadata().read_or(&format!("{architecture}.norm_head"), rows == SECOND)? {
        return Ok(Vec::new());
    }
    let element = Element::of(gguf.require_format(head)?);
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
    let derived = Derived { format: element.unit_format(), columns, beside: 1, pieces: vec![piece] };
    Ok(vec![Made { name: format!("{UNIT_HEAD}.weight"), dims: vec![columns, rows], derived }])
}
