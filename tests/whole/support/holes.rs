//! A model file that is almost empty on the drive. It has a header, and holes in place of the
//! tensors' data.

use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Row width, feed-forward width and number of layers of a model of some 12 GiB.
const SIZES: (u64, u64, u64) = (4096, 28_672, 24);

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Writes the model file.
pub fn write(path: &Path) {
    let (width, inner, layers) = SIZES;
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    let (f32, q8_0) = (0u32, 8u32);
    let mut tensors =
        vec![("token_embd".to_owned(), vec![width, 64], q8_0), ("output_norm".to_owned(), vec![width], f32)];
    for layer in 0..layers {
        let matrices =
            [("attn_q", width, width), ("attn_k", width, 1024), ("attn_v", width, 1024), ("attn_output", width, width)];
        let network = [("ffn_gate", width, inner), ("ffn_up", width, inner), ("ffn_down", inner, width)];
        for (name, columns, rows) in matrices.into_iter().chain(network) {
            tensors.push((format!("blk.{layer}.{name}"), vec![columns, rows], q8_0));
        }
        tensors.extend(["attn_norm", "ffn_norm"].map(|name| (format!("blk.{layer}.{name}"), vec![width], f32)));
    }
    let numbers = [
        ("llama.block_count", layers),
        ("llama.context_length", 4096),
        ("llama.embedding_length", width),
        ("llama.feed_forward_length", inner),
        ("llama.attention.head_count", 32),
        ("llama.attention.head_count_kv", 8),
        ("llama.vocab_size", 64),
    ];
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((numbers.len() as u64 + 2).to_le_bytes());
    text(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    text(&mut out, "llama");
    text(&mut out, "llama.attention.layer_norm_rms_epsilon");
    out.extend(6u32.to_le_bytes());
    out.extend(1e-5f32.to_le_bytes());
    for (key, number) in numbers {
        text(&mut out, key);
        out.extend(4u32.to_le_bytes());
        out.extend((number as u32).to_le_bytes());
    }
    let mut offset = 0u64;
    for (name, dims, ty) in &tensors {
        text(&mut out, &format!("{name}.weight"));
        out.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(ty.to_le_bytes());
        out.extend(offset.to_le_bytes());
        let elements: u64 = dims.iter().product();
        // An f32 has 4 bytes; blocks of q8_0 have 32 elements in 34 bytes.
        let bytes = if *ty == f32 { 4 * elements } else { elements / 32 * 34 };
        offset = (offset + bytes).next_multiple_of(32);
    }
    let mut file = File::create(path).unwrap();
    file.write_all(&out).unwrap();
    file.set_len((out.len() as u64).next_multiple_of(32) + offset).unwrap();
}
