//! `openelm`: OpenELM: layers have heads and networks of their own numbers (arrays of `attention.head_count`, `attention.head_count_kv` and `feed_forward_length`), queries, keys and
//! values are of one matrix, and each head of queries and keys is normalised before RoPE. The output matrix is the table of embeddings.
//! (Apple's `modeling_openelm.py`.)

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::Heads, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "openelm", doc: "OpenELM", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
