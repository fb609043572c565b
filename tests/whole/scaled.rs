//! Scales of weights: the results of `X.weight` are multiplied by `X.scale`, one factor for the
//! whole tensor or one for each expert.

use std::path::Path;

use crate::support::{Golden, scratch};
use ixc::ir::format::Format;
use ixc::model_files::gguf::Gguf;
use ixc::model_files::gguf::write::GgufWriter;
use ixc_testing::nmse::nmse;

/// Models of the repository with dense layers, experts, shared experts, experts whose router
/// already has a factor, and latent experts.
const MODELS: [&str; 6] = ["dots1", "gemma4-moe", "granitehybrid-moe", "nemotron_h_moe", "phi3", "qwen3vlmoe"];
/// Factors that are used in turn. Weights are multiplied by a factor, and the stored scale divides
/// the results by it. This is exact, since the factors are powers of two, and no weight is near the
/// largest half-precision number.
const FACTORS: [f32; 3] = [4.0, 8.0, 2.0];

/// Returns a model with the same results. Its matrices are multiplied by powers of two, and the
/// inverse powers are stored as scales.
fn rescaled(model: &Gguf) -> (GgufWriter, usize) {
    let keys =
        |writer: GgufWriter, (key, value): (&str, &ixc::model_files::gguf::Value)| writer.key(key, value.clone());
    let mut writer = model.metadata().iter().fold(GgufWriter::new(), keys);
    let mut scaled = 0;
    for tensor in model.tensors() {
        let mut data = model.tensor_data(tensor).to_vec();
        let own = tensor.name().strip_suffix(".weight").filter(|name| {
            let part = name.rsplit('.').next().unwrap();
            let multiplied =
                ["attn_", "ffn_", "ssm_in", "ssm_out", "output"].iter().any(|start| part.starts_with(start));
            multiplied && tensor.dims().len() > 1 && model.tensor(&format!("{name}.scale")).is_none()
        });
        if let (Some(name), Some(format)) = (own, Format::from_gguf_id(tensor.tensor_type().id)) {
            let matrices = tensor.dims().get(2).map_or(1, |count| *count as usize);
            let bytes = data.len() / matrices;
            for (i, matrix) in data.chunks_exact_mut(bytes).enumerate() {
                let mut numbers = vec![0.0; matrix.len() / format.block_bytes() * format.block_len()];
                format.dequantise(matrix, &mut numbers);
                numbers.iter_mut().for_each(|number| *number *= FACTORS[i % FACTORS.len()]);
                format.encode_row(&numbers, None, matrix);
            }
            let inverses: Vec<f32> = (0..matrices).map(|i| 1.0 / FACTORS[i % FACTORS.len()]).collect();
            writer = writer.f32_tensor(&format!("{name}.scale"), &[matrices as u64], &inverses);
            writer = writer.f32_tensor(&format!("{name}.input_scale"), &[matrices as u64], &vec![3.0; matrices]);
            scaled += 1;
        }
        writer = writer.tensor(tensor.name(), tensor.tensor_type().id, tensor.dims(), data);
    }
    (writer, scaled)
}

#[test]
fn scale_tensors_undo_the_scaling_of_weights() {
    let folder = scratch("scaled");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for name in MODELS {
        let mut model = Golden::read(&golden.join(format!("expect/{name}.json")));
        let before = model.logits(&folder, &["--engine", "interpreter"]);
        let (writer, scaled) = rescaled(&Gguf::open(&model.model).unwrap());
        assert!(scaled >= 8, "{name}: {scaled}");
        model.model = folder.join(format!("{name}.gguf"));
        std::fs::write(&model.model, writer.finish()).unwrap();
        // Powers of two cause no rounding, unless numbers are subnormal.
        let found = model.logits(&folder, &["--engine", "interpreter"]);
        let error = nmse(&found, &before);
        assert!(error <= 1e-13, "{name}: {error:e}");
        let found = model.logits(&folder, &["-t", "2"]);
        let (error, limit) = (nmse(model.last(&found), &model.exact), model.number("compiled_nmse_max"));
        assert!(error <= limit, "{name}: {error:e} > {limit:e}");
    }
}
