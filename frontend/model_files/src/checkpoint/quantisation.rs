//! Quantisation of a checkpoint's weights, as the configuration states it.

use super::config::Config;
use super::error::CheckpointError;
use super::integers::Scheme;
use super::targets::Targets;

/// Name ending of packed weights in some checkpoints.
pub(super) const PACKED: &str = "_packed";

/// Quantisation of a checkpoint's weights.
#[derive(Clone, Debug)]
pub(super) struct Quantisation {
    /// Rows and columns of a block of numbers that share a scale, if stated.
    pub block: Option<[u64; 2]>,
    /// Packing of integer matrices, by module name; `None` for modules whose weights are floats.
    pub integers: Targets<Option<Scheme>>,
    /// Whether matrices may be four-bit codes of bitsandbytes.
    pub codes: bool,
}

/// Name ending of a module's matrix.
const MATRIX: &str = ".weight";
/// Format name of compressed-tensors, if each configuration group has its own format.
const MIXED_PRECISION: &str = "mixed-precision";
/// Formats of compressed-tensors whose weights are floats. Four-bit floats have other tensor names
/// than integers.
const FLOAT_FORMATS: [&str; 4] = ["float-quantized", "naive-quantized", "mxfp4-pack-quantized", "nvfp4-pack-quantized"];

impl Quantisation {
    /// Reads `quantization_config` of the configuration.
    pub(super) fn read(config: &Config) -> Result<Quantisation, CheckpointError> {
        let none = Quantisation { block: None, integers: Targets::none(), codes: false };
        let Some(quantisation_config) = config.object("quantization_config")? else { return Ok(none) };
        if let Some(integers) = Scheme::read(&quantisation_config)? {
            return Ok(Quantisation { integers: Targets::for_all(Some(integers)), ..none });
        }
        let refused = |found: &str| CheckpointError::Quantisation { path: config.path().into(), found: found.into() };
        let is_four_bits =
            || Ok::<_, CheckpointError>(quantisation_config.flag(&["load_in_4bit", "_load_in_4bit"])?.unwrap_or(false));
        let method = match quantisation_config.text(&["quant_method"])? {
            Some(method) => method,
            // Early versions of transformers supported only bitsandbytes, so they wrote no method.
            None if is_four_bits()? => "bitsandbytes",
            None => "none",
        };
        match method {
            "bitsandbytes" => return Ok(Quantisation { codes: true, ..none }),
            "fp8" | "mxfp4" => {}
            // This method is NVIDIA's ModelOpt.
            "modelopt" => match quantisation_config.text(&["quant_algo"])?.unwrap_or("FP8") {
                "FP8" | "NVFP4" | "W4A16_NVFP4" | "MIXED_PRECISION" => {}
                other => return Err(refused(&format!("{method}, {other}"))),
            },
            "compressed-tensors" => {}
            other => return Err(refused(other)),
        }
        let mut block = quantisation_config.counts("weight_block_size")?;
        let mut integers = Targets::none();
        if method == "compressed-tensors" {
            let format = quantisation_config.text(&["format"])?.unwrap_or("float-quantized");
            let groups = groups(&quantisation_config)?;
            if groups.is_empty() && Scheme::FORMATS.contains(&format) {
                return Err(quantisation_config.wrong(
                    "config_groups",
                    "an object without a group of quantised weights",
                    "an object whose group_0 has weights",
                ));
            }
            let is_known = |format: &str| FLOAT_FORMATS.contains(&format) || Scheme::FORMATS.contains(&format);
            if !is_known(format) && format != MIXED_PRECISION {
                return Err(refused(&format!("{method}, {format}")));
            }
            for (group, weights) in &groups {
                let own = group.text(&["format"])?.unwrap_or(if format == MIXED_PRECISION {
                    default_format(group, weights)?
                } else {
                    format
                });
                if !is_known(own) {
                    return Err(refused(&format!("{method}, {own}")));
                }
                let scheme = Scheme::compressed_tensors_scheme(weights, own)?;
                block = block.map_or_else(|| weights.counts("block_structure"), |block| Ok(Some(block)))?;
                // If there is only one configuration group, it applies to all quantised modules.
                if groups.len() == 1 {
                    integers = Targets::for_all(scheme);
                    break;
                }
                let targets = group.texts("targets")?;
                for target in targets.ok_or_else(|| group.wrong("targets", "missing", "an array of texts"))? {
                    integers.add(group, target, scheme)?;
                }
            }
        }
        let block = block.map(|block| match block[..] {
            [rows, columns] if rows > 0 && columns > 0 => Ok([u64::from(rows), u64::from(columns)]),
            _ => Err(quantisation_config.wrong(
                "weight_block_size",
                format!("{block:?}"),
                "two counts, the rows and columns of a block",
            )),
        });
        Ok(Quantisation { block: block.transpose()?, integers, codes: false })
    }

    /// Returns the packing of the integer matrix `name`. If the name does not end with `.weight`,
    /// it is looked up as it is.
    pub(super) fn scheme(&self, name: &str) -> Option<Scheme> {
        let matrix = name.strip_suffix(PACKED).unwrap_or(name);
        self.integers.setting(matrix.strip_suffix(MATRIX).unwrap_or(matrix)).flatten()
    }
}

/// Returns the configuration groups of compressed-tensors that quantise weights. Each has its
/// settings for weights.
fn groups(quantisation_config: &Config) -> Result<Vec<(Config, Config)>, CheckpointError> {
    let Some(all) = quantisation_config.object("config_groups")? else { return Ok(Vec::new()) };
    let mut groups = Vec::new();
    for name in all.keys() {
        if let Some(group) = all.object(name)?
            && let Some(weights) = group.object("weights")?
        {
            groups.push((group, weights));
        }
    }
    Ok(groups)
}

/// Returns the default format of a configuration group's weights (compressed-tensors,
/// `infer_module_format`).
fn default_format(group: &Config, weights: &Config) -> Result<&'static str, CheckpointError> {
    let bits = weights.count(&["num_bits"])?.unwrap_or(8);
    Ok(match (weights.text(&["type"])?.unwrap_or("int"), bits) {
        ("int", 8) if group.has("input_activations") => "int-quantized",
        ("int", _) => "pack-quantized",
        (_, 4) => "nvfp4-pack-quantized",
        _ => "float-quantized",
    })
}
