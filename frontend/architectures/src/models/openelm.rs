//! `openelm`: OpenELM. The numbers of heads and the widths of networks differ by layer (arrays
//! `attention.head_count`, `attention.head_count_kv` and `feed_forward_length`). Queries, keys and
//! values have one matrix, and each query and key head is normalised before RoPE. The output matrix
//! is the embedding table (Apple's `modeling_openelm.py`).

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "openelm", doc: "OpenELM", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
