//! Keys of xIELU, whose parameters differ from layer to layer. The keys have no architecture as
//! prefix.
//!
//! ```text
//! xielu.alpha_n = [-1.05, …]     // the factor below 0 is beta + softplus of it
//! xielu.alpha_p = [0.2, …]       // the factor of squares is softplus of it
//! xielu.beta    = [0.5, …]
//! xielu.eps     = [-1e-6, …]  // upper bound of an exponent
//! ```

use ixc_model_files::gguf::{Array, GgufError, Value};

use super::Layer;
use super::keys::Keys;

/// Parameters of a layer's activation, as in the op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// Factor below 0.
    pub alpha_n: f64,
    /// Factor of squares.
    pub alpha_p: f64,
    /// Slope at 0.
    pub beta: f64,
    /// Upper bound of an exponent.
    pub eps: f64,
}

/// Maximum magnitude of a parameter: far above any model's, and far below overflow.
const MOST: f32 = 1e6;

/// Reads the parameters of each layer.
pub fn xielu(keys: &Keys<'_>, layers: &mut [Layer]) -> Result<(), GgufError> {
    let [alpha_n, alpha_p, beta, eps] =
        ["xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"].map(|key| numbers(keys, key, layers.len()));
    let (alpha_n, alpha_p, beta, eps) = (alpha_n?, alpha_p?, beta?, eps?);
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    for (i, layer) in layers.iter_mut().enumerate() {
        let beta = beta[i];
        layer.xielu =
            Some(Xielu { alpha_n: beta + softplus(alpha_n[i]), alpha_p: softplus(alpha_p[i]), beta, eps: eps[i] });
    }
    Ok(())
}

/// Returns a number for each layer, from one number or from a list.
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
    match numbers.iter().find(|number| number.is_nan() || number.abs() > MOST) {
        Some(found) => Err(keys.metadata.bad_value(key, found, format!("numbers of at most {MOST} in magnitude"))),
        None => Ok(numbers.into_iter().map(f64::from).collect()),
    }
}
