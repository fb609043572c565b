//! Reader of Hugging Face checkpoints: folders with `config.json`, safetensors and a tokenizer.
//! They are presented like a GGUF file.
//!
//! The input is a folder. The output is a [`Gguf`] with GGUF's keys and tensor names, so later
//! stages need not distinguish folders and files. Weights stay in the mapped files. Tensors that
//! GGUF stores in another form are [derived](ixc_ir::derived) when they are read: stacked experts,
//! reordered rows of heads, FP8 numbers with scales. Tables list the tensors, their conversions and
//! the keys of each model.
//!
//! ```text
//! model.layers.3.mlp.experts.{0..127}.up_proj.weight  bf16[768, 2048] each
//!     ->  blk.3.ffn_up_exps.weight  bf16[128, 768, 2048]
//! ```
//!
//! All input is checked as for GGUF files. Lengths and offsets must fit the file, and names and
//! shapes must fit each other. A tensor without a rule is an error, so that no part of a model is
//! silently dropped.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `safetensors` | header of a safetensors file |
//! | `shards` | files of a checkpoint, and the tensors in them |
//! | `array` | views of stored tensors |
//! | `names` | rules that map tensor names and make tensors |
//! | `codebook` | matrices of codes with scales for blocks |
//! | `integers` | matrices of integers with scales for groups of columns |
//! | `machine_parts` | experts divided among several machines |
//! | `packed` | experts that KTransformers' converter packed |
//! | `targets` | modules to which a quantisation setting applies |
//! | `families` | table of models, by `model_type` |
//! | `description` | GGUF keys and sizes of a model, from its configuration |
//! | `keys` | collection of GGUF keys, made from keys of the configuration |
//! | `sizes` | numbers that rules for tensors depend on |
//! | `tokenizer_json` | contents of `tokenizer.json` |
//! | `vocabulary` | GGUF keys of the tokenizer, from `tokenizer.json` |
//! | `plamo_vocabulary` | GGUF keys of the tokenizer, from PLaMo's `tokenizer.jsonl` |
//! | `word_pieces` | BERT's WordPiece, from `tokenizer.json` and `vocab.txt` |
//! | `modules` | `modules.json` of sentence-transformers |
//! | `special_tokens` | tokens with a role, and tokens added at the ends of a text |
//! | `template` | the chat template |
//! | `unit_columns` | output matrices whose columns the model divides by their length |
//! | `config` | JSON files, read with type checks |
//! | `error` | errors, each with its file, tensor or key |

mod array;
mod codebook;
mod config;
mod conversions;
mod description;
mod error;
mod families;
mod integers;
mod keys;
mod machine_parts;
mod modules;
mod names;
mod packed;
mod plamo_vocabulary;
mod quantisation;
mod safetensors;
mod shards;
mod sizes;
mod special_tokens;
mod state_conversions;
mod targets;
mod template;
mod tokenizer_json;
mod unit_columns;
mod vocabulary;
mod weights;
mod word_pieces;

use std::collections::BTreeMap;
use std::path::Path;

use ixc_ir::derived::{Change, Derivation, Element, Indexed};
use ixc_ir::format::Format;

use crate::gguf::{Gguf, Metadata, Tensor, TensorType};
use array::Array;
use config::Config;
use conversions::ConvertedPart;
use description::ModelDescription;
pub use error::{CheckpointError, HeaderFault, PackedFault};
use families::Family;
use modules::Modules;
use names::{PartIndex, SHARED};
use packed::StackedExperts;
use quantisation::Quantisation;
use shards::Shards;
use sizes::{LayerConfig, Sizes};

/// Name of the configuration file.
const CONFIG: &str = "config.json";
/// Type number of four-byte integers in GGUF files, for tables.
const TABLE: u32 = 26;
/// Maximum number of files in a folder that are examined.
const MAX_ENTRIES: usize = 4096;
/// Alignment of weights that kernels read in place. It is the minimum that GGUF allows.
const ALIGNMENT: u64 = crate::gguf::MIN_ALIGNMENT as u64;
/// Name beginnings of tensors that are not part of the text decoder: vision and audio encoders, and
/// draft layers.
const OTHER_PARTS: [&str; 55] = [
    "visual.",
    "model.visual.",
    "transformer.visual.",
    "vision_tower.",
    "model.vision_tower.",
    "vision_model.",
    "model.vision_model.",
    "model.connector.",
    "model.resampler_model.",
    "model.embed_tokens_extend.",
    "model.vision_tokenizer.",
    "model.audio_tokenizer.",
    "resampler_model.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "audio_tower.",
    "model.audio_tower.",
    "model.vision_adapter.",
    "model.vision_projection.",
    "model.embed_vision.",
    "model.embed_audio.",
    "mtp.",
    "vision.",
    "vit.",
    "aligner.",
    "image_",
    "patch_merge_mlp.",
    "mlp_AR.",
    "model.mtp_block.",
    "model.mtp_emb_norm.",
    "model.mtp_hidden_norm.",
    "model.mtp.",
    "model.mtp_layers.",
    "audio_encoder.",
    "speech_embeddings.",
    "vit_large_projector.",
    "linear_proj.",
    "mm_projector.",
    "thinker.visual.",
    "thinker.audio_tower.",
    "talker.",
    "token2wav.",
    "code2wav.",
    "vision_encoder.",
    "vision_language_adapter.",
    "pre_mm_projector_norm.",
    "patch_merger.",
    "mtp_dspark.",
    "model.vqmodel.",
    "model.vision.",
    "model.sam_model.",
    "model.qwen2_model.",
    "model.projector.",
    "model.image_newline",
    "model.view_sep",
];
/// Name prefix of a layer's tensors, before the layer number.
const LAYER: &str = "model.layers.";
/// Prefixes of the decoder's tensor names in models with other parts. Each has the prefix that
/// replaces it.
const PREFIXES: [(&str, &str); 23] = [
    ("bert.", ""),
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head", "lm_head"),
    ("model.text_model.", "model."),
    ("thinker.model.", "model."),
    ("thinker.lm_head.", "lm_head."),
    ("ernie.", "model."),
    ("backbone.", "model."),
    ("model.backbone.", "model."),
    ("model.lm_head.", "lm_head."),
    ("transformer.", "model."),
    // KTransformers' converter writes these names.
    ("blk.", "model.layers."),
    // Models without an output matrix have these names.
    ("decoder.", "model.decoder."),
    ("layers.", "model.layers."),
    ("embed_tokens.", "model.embed_tokens."),
    ("norm.", "model.norm."),
    ("h.", "model.h."),
    ("ln_f.", "model.ln_f."),
    ("wte.", "model.wte."),
    ("wpe.", "model.wpe."),
    ("word_embeddings.", "model.word_embeddings."),
    ("word_embeddings_layernorm.", "model.word_embeddings_layernorm."),
];

/// Returns whether a folder is a checkpoint: it has a configuration, and it has safetensors or no
/// GGUF file.
pub fn is_checkpoint(folder: &Path) -> bool {
    let has_gguf = || {
        let entries = std::fs::read_dir(folder).into_iter().flatten().take(MAX_ENTRIES).filter_map(Result::ok);
        entries.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|end| end == "gguf"))
    };
    folder.join(CONFIG).is_file() && (shards::has_weights(folder) || !has_gguf())
}

/// Returns all supported `model_type`s with their architectures.
pub fn supported_models() -> impl Iterator<Item = (&'static str, &'static str)> {
    families::all().flat_map(|family| family.model_types.iter().map(|name| (*name, family.architecture)))
}

/// Returns the architectures that are read from GGUF files only, not from folders.
pub fn only_in_gguf() -> &'static [&'static str] {
    families::ONLY_IN_GGUF
}

/// Opens the model of a folder.
///
/// # Errors
/// When a file is missing or malformed, or the model's `model_type` is not supported.
pub fn open(folder: &Path) -> Result<Gguf, CheckpointError> {
    if !shards::has_weights(folder) {
        return Err(CheckpointError::NoWeights { path: folder.into(), hint: shards::hint(folder) });
    }
    let config = Config::open(&folder.join(CONFIG))?;
    keys::check_layer_count(&config)?;
    let family = family(&config)?;
    let config = config.with_defaults(family.defaults);
    let quantisation = Quantisation::read(&config)?;
    let modules = Modules::read(folder, family)?;
    let ModelDescription { mut entries, sizes, layers, constants } = description::read(&config, family, &modules)?;
    let mut shards = Shards::open(folder)?;
    for (module, file) in family.dense_modules.iter().zip(&modules.dense) {
        shards.add(file, module)?;
    }
    for (end, key) in family.numbers {
        if let Some(numbers) = shards::numbers(&shards, end)? {
            entries.push((format!("{}.{key}", family.architecture).into(), numbers));
        }
    }
    for (end, key) in family.layer_numbers {
        entries.push(((*key).into(), shards::layer_numbers(&shards, end, sizes.layers)?));
    }
    for (name, key) in family.model_numbers {
        if let Some(number) = shards::number(&shards, name)? {
            entries.push((format!("{}.{key}", family.architecture).into(), number.into()));
        }
    }
    let mut packed = packed::experts(&mut shards, &sizes)?;
    packed.extend(machine_parts::experts(&mut shards, family, &sizes)?);
    let weights = weights::weights(&shards, &quantisation, family)?;
    let mut made = make_tensors(&shards, &config, family, &sizes, &layers, weights)?;
    check_dense(&shards, &made, &(family.dense)(&config)?)?;
    if family.unit_columns && config.flag(&["norm_head"])? == Some(true) {
        packed.push(unit_columns::norm(&shards, &mut made)?);
    }
    let table = made.get("token_embd.weight").or_else(|| made.get("output.weight"));
    let rows = table.and_then(|group| group.arrays.first()).map_or(0, |array| array.len(0));
    entries.extend(vocabulary::keys(folder, &config, rows, family.pieces)?);
    if modules.lowercase {
        vocabulary::lowercase(folder, &mut entries)?;
    }
    let (tensors, derived) = place_tensors(&shards, made, packed, family.single)?;
    let metadata = Metadata::from_entries(&folder.join(CONFIG), entries);
    Ok(Gguf::from_files(shards.files, metadata, tensors, derived, &constants)?)
}

/// Checks that dense layers, by the configuration, have no router. Each other layer must have a
/// router if it has a network.
fn check_dense(shards: &Shards, made: &BTreeMap<String, TensorGroup>, dense: &[bool]) -> Result<(), CheckpointError> {
    for (layer, dense) in dense.iter().enumerate() {
        let has = |part: &str| made.contains_key(&format!("blk.{layer}.{part}.weight"));
        let router = has("ffn_gate_inp");
        let (name, found) = match dense {
            true if router => {
                ("ffn_gate_inp", "present in a layer that mlp_only_layers or decoder_sparse_step makes dense")
            }
            false if !router && has("ffn_gate") => (
                "ffn_gate",
                "present without a router in a layer that has experts according to mlp_only_layers and decoder_sparse_step",
            ),
            _ => continue,
        };
        let expected = "the tensors of the kind of layer that config.json states";
        return Err(shards.wrong(&format!("blk.{layer}.{name}.weight"), found.to_owned(), expected));
    }
    Ok(())
}

/// Returns the model's tensors, each with a file number and an offset, and the derived tensors. A
/// tensor that is stored unchanged and aligned has the number of its file. Any other tensor is
/// derived from parts of the files. Its file number is the number of files plus its index among
/// the derived tensors.
fn place_tensors(
    shards: &Shards,
    made: BTreeMap<String, TensorGroup>,
    packed: Vec<StackedExperts>,
    single: &[&str],
) -> Result<(Vec<Tensor>, Vec<Indexed>), CheckpointError> {
    let lengths = shards.lengths();
    let (mut tensors, mut all) = (Vec::with_capacity(made.len() + packed.len()), Vec::new());
    let checked = |name: &str, derived: &Derivation| {
        let wrong = |source| CheckpointError::Derived { path: shards.folder.clone(), tensor: name.into(), source };
        derived.check(&lengths).map_err(wrong)
    };
    let mut made: Vec<(String, TensorGroup)> = made.into_iter().collect();
    made.sort_by_key(|(name, _)| layer(name));
    for (name, TensorGroup { arrays, is_stacked }) in made {
        let unusable = |found: String| shards.wrong(&name, found, "a tensor of the model");
        let first = arrays.first().ok_or_else(|| unusable("empty".to_owned()))?;
        let element = first.element().map_err(|dtype| unusable(format!("of type {dtype}")))?;
        let scaled = first.scaled_format().unwrap_or_else(|| element.scaled_format());
        // If the scaled formats of the experts differ, all experts become F16.
        let same = arrays.iter().all(|array| array.scaled_format() == first.scaled_format());
        let scaled = if same { scaled } else { Element::F16.scaled_format() };
        let format = format(&name, first.rank() + usize::from(is_stacked), element, scaled, first.change(), single);
        let (derived, dims) = array::concatenate(&arrays, is_stacked, format).ok_or_else(|| {
            let mut shapes: Vec<_> = arrays.iter().map(|array| format!("{:?}", array.shape())).collect();
            shapes.dedup();
            unusable(format!("made of tensors with different shapes or types: {}", shapes.join(", ")))
        })?;
        checked(&name, &derived)?;
        let derived = derived.with_index();
        let place = derived.place(0, derived.bytes().unwrap_or(0));
        let (file, offset) = match place.filter(|(_, offset)| offset.is_multiple_of(ALIGNMENT)) {
            Some((file, offset)) => (file as usize, offset),
            None => {
                all.push(derived);
                (shards.files.len() + all.len() - 1, 0)
            }
        };
        let tensor_type = if first.is_table() { TensorType::from_id(TABLE) } else { TensorType::from_format(format) };
        let tensor = tensor_type.and_then(|ty| Tensor::new(&name, ty, &dims, file, offset));
        tensors.push(tensor.ok_or_else(|| unusable(format!("{dims:?}")))?);
    }
    for StackedExperts { name, derived, dims } in packed {
        checked(&name, &derived)?;
        let file = shards.files.len() + all.len();
        let tensor = TensorType::from_format(derived.format).and_then(|ty| Tensor::new(&name, ty, &dims, file, 0));
        tensors.push(tensor.ok_or_else(|| shards.wrong(&name, format!("{dims:?}"), "a tensor of the model"))?);
        all.push(derived.with_index());
    }
    tensors.sort_by_key(|tensor| layer(tensor.name()));
    Ok((tensors, all))
}

/// Returns the row of the table for a configuration.
fn family(config: &Config) -> Result<&'static Family, CheckpointError> {
    // The outer `model_type` describes all parts of a model, the inner one its decoder. If both are
    // known, the inner one is tried first, as it is more specific.
    let inner = config.text(&["model_type"])?;
    let outer = config.top_level("model_type").and_then(|value| value.as_str());
    // Some configurations have a class name, but no `model_type`.
    let class = config.texts("architectures")?.and_then(|names| names.first().copied());
    for name in [inner, outer, class].into_iter().flatten() {
        for family in families::all().filter(|family| family.model_types.contains(&name)) {
            if (family.applies)(&config.clone().with_defaults(family.defaults))? {
                return Ok(family);
            }
        }
    }
    let (path, found) = (config.path().into(), outer.or(inner).unwrap_or("").into());
    Err(CheckpointError::UnknownModel { path, found, known: families::model_types() })
}

/// Returns the layer index in a GGUF name. `None`, for other tensors, sorts first.
fn layer(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Stored arrays that together form one GGUF tensor.
struct TensorGroup {
    arrays: Vec<Array>,
    is_stacked: bool,
}

/// Returns the name that rules use for a stored tensor; `None` if the tensor is not part of the
/// decoder.
fn decoder_name(name: &str) -> Option<String> {
    if OTHER_PARTS.iter().any(|part| name.starts_with(part)) {
        return None;
    }
    let found = PREFIXES.iter().find_map(|(prefix, meant)| Some(format!("{meant}{}", name.strip_prefix(prefix)?)));
    Some(found.unwrap_or_else(|| name.to_owned()))
}

/// Adapts the layer number in a name to the removal of skipped layers; `None` if the layer is
/// skipped.
fn renumber(name: String, skipped_layers: &[u32]) -> Option<String> {
    let Some((number, part)) = name.strip_prefix(LAYER).and_then(|rest| rest.split_once('.')) else {
        return Some(name);
    };
    let Ok(number) = number.parse::<u32>() else { return Some(name) };
    if skipped_layers.contains(&number) {
        return None;
    }
    let before = skipped_layers.iter().filter(|layer| **layer < number).count() as u32;
    Some(format!("{LAYER}{}.{part}", number - before))
}

/// Applies the rules to all weights. Returns the resulting tensors by GGUF name.
fn make_tensors(
    shards: &Shards,
    config: &Config,
    family: &Family,
    sizes: &Sizes,
    layers: &[LayerConfig],
    weights: BTreeMap<Box<str>, Array>,
) -> Result<BTreeMap<String, TensorGroup>, CheckpointError> {
    let mut made: BTreeMap<String, TensorGroup> = BTreeMap::new();
    let mut several: BTreeMap<String, (PartIndex, BTreeMap<u64, Array>)> = BTreeMap::new();
    let skipped_layers = family.skipped_layers.map_or(Ok(None), |key| config.counts(key))?.unwrap_or_default();
    for (stored, array) in weights {
        let Some(name) = decoder_name(&stored).and_then(|name| renumber(name, &skipped_layers)) else { continue };
        let rules = family.tensors.iter().copied().flatten().chain(SHARED);
        let Some((rule, found)) = rules.into_iter().find_map(|rule| Some((rule, names::matches(rule, sizes, &name)?)))
        else {
            // Layers after the decoder's layers are draft layers, whose tensors have no rules.
            if layer(&name.replacen("model.layers.", "blk.", 1)).is_some_and(|layer| layer >= sizes.layers) {
                continue;
            }
            let model = family.model_types.first().copied().unwrap_or_default();
            return Err(CheckpointError::UnknownTensor { path: shards.folder.clone(), tensor: stored, model });
        };
        if found.layer.is_some_and(|layer| layer >= sizes.layers) {
            continue;
        }
        let shape = array.shape();
        let of_layer = found.layer.and_then(|layer| layers.get(usize::try_from(layer).ok()?));
        let sizes = of_layer.map_or(*sizes, |of| sizes.for_layer(of));
        let of_codes = array.element().is_ok_and(|element| element.columns() > 1);
        let parts = (rule.conversion)(&sizes, array).ok_or_else(|| match of_codes {
            false => shards.wrong(&stored, format!("{shape:?}"), "a shape that fits the sizes in the configuration"),
            true => {
                let expected = "numbers, because the tensor must be transposed or split: quantise the model again with this module under \"ignore\" of quantization_config";
                shards.wrong(&stored, format!("made of blocks of codes with shape {shape:?}"), expected)
            }
        })?;
        for ConvertedPart { part, arrays } in parts {
            let to = found.to.replace("{P}", part);
            // An additional factor becomes a tensor `.scale`. For experts, it is a vector with a
            // factor for each expert.
            let factor = arrays.first().and_then(Array::factor).cloned();
            let beside = factor.map(|factor| (format!("{}.scale", to.trim_end_matches(".weight")), vec![factor]));
            let is_stacked = found.part_index.is_some_and(|of| of.is_stacked);
            for ((to, arrays), is_stacked) in
                [((to, arrays), is_stacked)].into_iter().chain(beside.map(|beside| (beside, false)))
            {
                if let Some(of @ PartIndex { number, word, count, allows_more, .. }) = found.part_index {
                    if let Some(count) = count.filter(|count| number >= *count) {
                        if allows_more {
                            continue;
                        }
                        return Err(shards.wrong(&stored, format!("of {word} {number}"), format!("below {count}")));
                    }
                    let (_, parts) = several.entry(to).or_insert((PartIndex { is_stacked, ..of }, BTreeMap::new()));
                    parts.extend(arrays.into_iter().map(|array| (number, array)));
                } else if made.insert(to, TensorGroup { arrays, is_stacked: false }).is_some() {
                    return Err(shards.wrong(&stored, "stored under two names".to_owned(), "stored once"));
                }
            }
        }
    }
    for (name, (PartIndex { word, count, is_stacked, .. }, parts)) in several {
        let there = parts.last_key_value().map_or(0, |(last, _)| last.saturating_add(1));
        if let Some(missing) = (0..count.unwrap_or(there)).find(|number| !parts.contains_key(number)) {
            let tensor = format!("{name}, {word} {missing}").into();
            return Err(CheckpointError::TensorMissing { path: shards.folder.clone(), tensor });
        }
        let arrays = parts.into_values().collect();
        if made.insert(name.clone(), TensorGroup { arrays, is_stacked }).is_some() {
            return Err(shards.wrong(
                &name,
                format!("present {word} by {word} and also as one tensor"),
                "one of these two forms",
            ));
        }
    }
    Ok(made)
}

/// Returns the format of a tensor. Vectors, norms, biases and matrices listed in `single` are f32,
/// as in GGUF files. Otherwise the format is `scaled`, that of elements times their scales; for
/// FP8, it is bf16.
fn format(name: &str, rank: usize, element: Element, scaled: Format, change: Change, single: &[&str]) -> Format {
    let single = rank <= 1
        || matches!(
            change,
            Change::PlusOne | Change::Plus(_) | Change::MinusExp | Change::Exp | Change::ExpMinus | Change::Inverse
        )
        || name.ends_with("_norm.weight")
        || name.ends_with(".bias")
        || single.iter().any(|end| name.ends_with(end));
    // Quantised blocks keep their format, even in such tensors.
    if single && element.is_number() { Format::F32 } else { scaled }
}
