//! `apertus`: Apertus. It has norms of each query and key head. The network has no gate; its
//! activation is xIELU, with parameters for each layer. The keys of these parameters have no
//! architecture as prefix.
//!
//! ```text
//! xielu.alpha_n = [-1.05, …]     // factor below 0: beta + softplus(alpha_n)
//! xielu.alpha_p = [0.2, …]       // factor on squares: softplus(alpha_p)
//! xielu.beta    = [0.5, …]
//! xielu.eps     = [-1e-6, …]     // upper bound of the argument of exp
//! ```

use ixc_ir::graph::ValueId;
use ixc_model_files::gguf::{Array, GgufError, Value};

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder, Xielu};
use crate::decoder::{HeadNorm, Style, attention};
use crate::error::ArchError;
use crate::hyper::{Defaults, Keys};

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "apertus", doc: "Apertus", defaults: Defaults::USUAL, build: decoder };

/// Maximum magnitude of a parameter. It is far above any model's parameters, and far below
/// overflow.
const MAX_PARAMETER: f32 = 1e6;

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let activations = activations(&b.keys(), b.model_layers)?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (width, inner) = (b.hyper.embedding_length, b.hyper.layers[layer].feed_forward);
        x = attention(b, layer, x, &STYLE)?;
        let h = b.norm(x, &name("ffn_norm.weight"))?;
        let up = b.linear(h, &name("ffn_up"), width, inner, Bias::Optional)?;
        let y = b.xielu(up, &activations[layer])?;
        let y = b.linear(y, &name("ffn_down"), inner, width, Bias::Optional)?;
        x = b.add(y, x)?;
    }
    b.logits(x)
}

/// Reads the activation's parameters for each layer.
fn activations(keys: &Keys<'_>, layers: usize) -> Result<Vec<Xielu>, GgufError> {
    let read = |key: &str| numbers(keys, key, layers);
    let (alpha_n, alpha_p, beta, eps) =
        (read("xielu.alpha_n")?, read("xielu.alpha_p")?, read("xielu.beta")?, read("xielu.eps")?);
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let activation = |i: usize| Xielu {
        alpha_n: beta[i] + softplus(alpha_n[i]),
        alpha_p: softplus(alpha_p[i]),
        beta: beta[i],
        eps: eps[i],
    };
    Ok((0..layers).map(activation).collect())
}

/// Returns a number for each layer. The file has one number for all layers, or a list.
fn numbers(keys: &Keys<'_>, key: &str, layers: usize) -> Result<Vec<f64>, GgufError> {
    let limit = || format!("a float or an array of {layers} floats, one for each layer (block_count)");
    let numbers: Vec<f32> = match keys.metadata.get(key) {
        None => return Err(keys.metadata.missing(key, "array of f32")),
        Some(Value::F32(number)) => vec![*number; layers],
        Some(Value::Array(Array::F32(numbers))) if numbers.len() == layers => numbers.to_vec(),
        Some(Value::Array(array)) => {
            return Err(keys.metadata.bad_value(key, format!("an array of {}", array.len()), limit()));
        }
        Some(value) => return Err(keys.metadata.bad_value(key, value.type_name(), limit())),
    };
    match numbers.iter().find(|number| number.is_nan() || number.abs() > MAX_PARAMETER) {
        Some(found) => {
            Err(keys.metadata.bad_value(key, found, format!("numbers of at most {MAX_PARAMETER} in magnitude")))
        }
        None => Ok(numbers.into_iter().map(f64::from).collect()),
    }
}
