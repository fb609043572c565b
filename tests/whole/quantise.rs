//! `ixc quantise`: the formats of tensors, the change of predictions, independence of the number of
//! threads, and refused inputs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::support::{engines, ixc, scratch, shared, stderr, stdout};
use ixc::compile;
use ixc::model::Model;
use ixc::model_files::gguf::Gguf;
use ixc::model_files::gguf::write::GgufWriter;
use ixc::passes::observe;
use ixc::passes::options::OptionSet;
use ixc::quantise::importance::{self, ActivationSums, Importance, StateSums};
use ixc::runtime::states::StateValues;
use ixc::targets::Target;
use ixc_files::{Guard, Output};
use serde_json::Value as Json;

const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/LICENSE-APACHE");

/// Returns the path of the demo model in f32, whose weights have the exact values of the quantised
/// weights.
fn exact() -> &'static Path {
    static EXACT: OnceLock<PathBuf> = OnceLock::new();
    EXACT.get_or_init(|| {
        let path = scratch("quantise").join("exact.gguf");
        stdout(ixc(["quantise", "demo", "F32", "--allow-requantize", "-o", path.to_str().unwrap()]));
        path
    })
}

fn quantise(from: &Path, mix: &str, arguments: &[&str]) -> Json {
    let common = ["quantise", from.to_str().unwrap(), mix, "--json"];
    serde_json::from_str(&stdout(ixc([&common[..], arguments].concat()))).unwrap()
}

/// Returns the new format of each tensor from the JSON of a planned quantisation.
fn formats(found: &Json) -> Vec<(String, String)> {
    let rows = found["tensors"].as_array().unwrap().iter();
    rows.map(|row| (row["name"].as_str().unwrap().to_owned(), row["to"].as_str().unwrap().to_owned())).collect()
}

type Four = [&'static str; 4];

/// Formats of each mix by the rules of ggml-org/llama.cpp. The first two lists have the formats in
/// layers 0 to 3 of attention's values and of the experts' down projection. The third list has the
/// formats of the output, the embedding, queries and attention's output.
///
/// For dense models, ik_llama.cpp's llama-quantize uses the same rules. For models with eight or
/// more experts, it uses other rules.
const MIXES: [(&str, [Four; 3]); 19] = [
    // The demo model has four layers. Rules for the first eighth of the layers apply to no layer.
    // Rules for the last eighth apply to layer 3. Rules for every third layer between them apply to
    // layer 2.
    ("Q4_K_M", [["Q4_K", "Q4_K", "Q6_K", "Q6_K"], ["Q4_K", "Q4_K", "Q6_K", "Q6_K"], ["Q6_K", "Q4_K", "Q4_K", "Q4_K"]]),
    ("Q4_K_S", [["Q5_K", "Q5_K", "Q5_K", "Q5_K"], ["Q4_K"; 4], ["Q6_K", "Q4_K", "Q4_K", "Q4_K"]]),
    ("Q5_K_M", [["Q5_K", "Q5_K", "Q6_K", "Q6_K"], ["Q5_K", "Q5_K", "Q6_K", "Q6_K"], ["Q6_K", "Q5_K", "Q5_K", "Q5_K"]]),
    ("Q3_K_M", [["Q5_K", "Q5_K", "Q4_K", "Q4_K"], ["Q4_K"; 4], ["Q6_K", "Q3_K", "Q3_K", "Q4_K"]]),
    ("Q3_K_L", [["Q5_K"; 4], ["Q5_K"; 4], ["Q6_K", "Q3_K", "Q3_K", "Q5_K"]]),
    ("Q2_K", [["Q3_K"; 4], ["Q3_K"; 4], ["Q6_K", "Q2_K", "Q2_K", "Q3_K"]]),
    ("Q4_0", [["Q4_0"; 4], ["Q4_0"; 4], ["Q6_K", "Q4_0", "Q4_0", "Q4_0"]]),
    ("Q8_0", [["Q8_0"; 4], ["Q8_0"; 4], ["Q8_0", "Q8_0", "Q8_0", "Q8_0"]]),
    ("MXFP4_MOE", [["Q8_0"; 4], ["MXFP4"; 4], ["Q8_0", "Q8_0", "Q8_0", "Q8_0"]]),
    ("IQ3_M", [["Q4_K"; 4], ["IQ3_S"; 4], ["Q6_K", "IQ3_S", "IQ3_S", "Q4_K"]]),
    ("IQ3_S", [["IQ3_S"; 4], ["IQ3_S"; 4], ["Q6_K", "IQ3_S", "IQ3_S", "IQ3_S"]]),
    ("IQ3_XS", [["IQ3_S"; 4], ["IQ3_S"; 4], ["Q6_K", "IQ3_S", "IQ3_XXS", "IQ3_S"]]),
    // llama-quantize chooses these formats for IQ3_XXS if it has no importance matrix.
    ("IQ3_XXS", [["IQ3_S"; 4], ["Q3_K"; 4], ["Q5_K", "IQ3_S", "IQ2_S", "IQ3_S"]]),
    // In models with four experts or more, attention's values are Q4_K.
    ("IQ2_M", [["Q4_K"; 4], ["IQ2_S"; 4], ["Q5_K", "IQ3_S", "IQ2_S", "IQ3_S"]]),
    ("IQ2_S", [["Q4_K"; 4], ["IQ2_XS"; 4], ["Q5_K", "IQ3_S", "IQ2_XS", "IQ3_S"]]),
    ("IQ2_XS", [["Q4_K"; 4], ["IQ2_XS"; 4], ["Q5_K", "Q2_K", "IQ2_XS", "IQ2_XS"]]),
    ("IQ2_XXS", [["Q4_K"; 4], ["IQ2_XXS"; 4], ["Q5_K", "Q2_K", "IQ2_XXS", "IQ2_XXS"]]),
    ("IQ1_M", [["Q4_K"; 4], ["IQ1_M"; 4], ["Q5_K", "Q2_K", "IQ1_M", "IQ2_XXS"]]),
    ("IQ1_S", [["Q4_K"; 4], ["IQ1_S"; 4], ["Q5_K", "Q2_K", "IQ1_S", "IQ2_XXS"]]),
];

#[test]
fn quantisation_mixes_match_llama_quantize() {
    for (mix, [values, downs, [head, embedding, query, output]]) in MIXES {
        let formats = formats(&quantise(exact(), mix, &["--dry-run"]));
        let of = |name: &str| &*formats.iter().find(|(tensor, _)| tensor == name).unwrap().1;
        for layer in 0..4 {
            assert_eq!(of(&format!("blk.{layer}.attn_v.weight")), values[layer], "{mix} {layer}");
            assert_eq!(of(&format!("blk.{layer}.ffn_down_exps.weight")), downs[layer], "{mix} {layer}");
            assert_eq!(of(&format!("blk.{layer}.attn_q.weight")), query, "{mix}");
            assert_eq!(of(&format!("blk.{layer}.attn_output.weight")), output, "{mix}");
            assert_eq!(of(&format!("blk.{layer}.ffn_gate_inp.weight")), "F32");
            assert_eq!(of(&format!("blk.{layer}.attn_norm.weight")), "F32");
        }
        let tied = !formats.iter().any(|(name, _)| name == "output.weight");
        assert_eq!(of("token_embd.weight"), if tied { head } else { embedding }, "{mix}");
        assert!(tied || of("output.weight") == head, "{mix}");
    }
}

/// Checks that formats are those that `llama-quantize --dry-run` prints. The models have tensors
/// that only some layers have, or architectures with special rules.
#[test]
fn layer_positions_are_counted_like_llama_quantize() {
    for (model, mix, tensor, format) in [
        ("granitehybrid", "Q4_K_M", "blk.1.attn_v.weight", "Q8_0"),
        ("kimi-k3", "Q4_K_M", "blk.3.attn_v.weight", "Q8_0"),
        ("deci", "Q4_K_M", "blk.5.ffn_down.weight", "Q4_K"),
        ("mimo2", "Q2_K", "blk.0.attn_v.weight", "Q5_0"),
        ("qwen4exp", "Q2_K", "blk.0.ffn_gate_inp_shexp.weight", "F32"),
        ("deepseek2-groups", "MXFP4_MOE", "blk.0.attn_v_b.weight", "MXFP4"),
        ("glm5-next", "Q4_K_M", "blk.0.hc_attn_fn.weight", "F32"),
        ("glm5-next", "Q2_K", "blk.0.attn_v.weight", "Q4_0"),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/models/{model}.gguf"));
        let planned = formats(&quantise(&path, mix, &["--dry-run"]));
        let found = planned.iter().find(|(name, _)| name == tensor).map(|(_, format)| &**format);
        assert_eq!(found, Some(format), "{model}, {mix}: {tensor}");
    }
}

/// Quantises the demo model. Returns the KL divergence of the predictions from the exact model's,
/// and the size in bytes.
fn divergence(mix: &str, arguments: &[&str]) -> (f64, u64) {
    let folder = scratch(&format!("quantise_{mix}_{}", arguments.len()));
    let path = folder.join("model.gguf");
    let found = quantise(exact(), mix, &[arguments, &["-o", path.to_str().unwrap()]].concat());
    assert_eq!(found["output"], path.to_str().unwrap());
    let exact = exact().to_str().unwrap();
    let evaluated = stdout(ixc([
        "eval",
        path.to_str().unwrap(),
        "--against",
        exact,
        "--text",
        TEXT,
        "--ctx",
        "128",
        "--target",
        "portable",
        "--pieces",
        "4",
        "--json",
        "-t",
        "2",
    ]));
    let evaluated: Json = serde_json::from_str(&evaluated).unwrap();
    fs::remove_file(path).unwrap();
    (evaluated["against"]["divergence"]["mean"].as_f64().unwrap(), found["bytes"].as_u64().unwrap())
}

/// Checks that more bits reduce the divergence. Mixes with the demo model's original formats are
/// excluded: they can represent its weights exactly, which is an advantage.
#[test]
fn more_bits_reduce_the_divergence() {
    let found = ["Q8_0", "Q5_K_M", "Q4_K_S", "Q3_K_M", "Q2_K_S"].map(|mix| (mix, divergence(mix, &[])));
    for pair in found.windows(2) {
        let ((more, (near, large)), (fewer, (far, small))) = (pair[0], pair[1]);
        assert!(near < far && large > small, "{more}: {near}, {large} bytes; {fewer}: {far}, {small} bytes");
    }
    println!("{found:?}");
    assert!(found[0].1.0 < 5e-3 && found[2].1.0 < 0.05 && found[4].1.0 < 1.0, "{found:?}");
}

/// Checks that models with grid formats run and predict. Their importance matrices are measured on
/// the demo model's own predictions.
#[test]
fn low_bit_mixes_run_and_predict() {
    let imatrix = scratch("quantise_few_bits").join("imatrix.gguf");
    let (path, exact) = (imatrix.to_str().unwrap(), exact().to_str().unwrap());
    let text = ["eval", exact, "--text", TEXT, "--ctx", "128", "--pieces", "8", "--target", "portable"];
    let output = ixc([&text[..], &["--imatrix", path]].concat()).output().unwrap();
    assert!(
        output.status.success() && stderr(&output).ends_with(&format!(" tensors to {path}\n")),
        "{}",
        stderr(&output)
    );
    // Only the experts of one layer get grid formats, since encoding these takes time.
    let fewer = ["--tensor", "blk.1.*_exps*=q4_0", "--tensor", "blk.2.*_exps*=q4_0", "--tensor", "blk.3.*_exps*=q4_0"];
    let arguments = [&["--imatrix", path], &fewer[..]].concat();
    let found = FEW_BITS.map(|mix| (mix, divergence(mix, &arguments)));
    println!("{found:?}");
    for (mix, (divergence, _)) in found {
        // For a model with unrelated predictions, the divergence would be several nats.
        assert!(divergence.is_finite() && divergence < 3.0, "{mix}: {found:?}");
    }
    // The mixes are of three, two and one bits.
    let [three, two, one] = ["IQ3_M", "IQ2_M", "IQ1_S"].map(|mix| found.iter().find(|row| row.0 == mix).unwrap().1);
    assert!(three.0 < two.0 && two.0 < one.0, "{found:?}");
    assert!(three.1 > two.1 && two.1 > one.1, "{found:?}");
}

/// Mixes that together have all grid formats. The omitted mixes (IQ3_S, IQ3_XS, IQ2_S) have no
/// other formats, and encoding takes time.
const FEW_BITS: [&str; 7] = ["IQ3_M", "IQ3_XXS", "IQ2_M", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"];

#[test]
fn low_bit_mix_without_importance_is_warned_about() {
    for (mix, told) in [("IQ2_XXS", true), ("IQ3_S", false)] {
        let output = ixc(["quantise", exact().to_str().unwrap(), mix, "--dry-run"]).output().unwrap();
        let said = stderr(&output);
        assert_eq!(said.contains("no importance matrix for "), told, "{mix}: {said}");
        let report = String::from_utf8(output.stdout).unwrap();
        assert!(report.contains("\nnothing is written; quantising would change 30 of 51 tensors, "), "{report}");
    }
}

#[test]
fn quantise_is_independent_of_threads_and_allows_tensor_overrides() {
    let folder = scratch("quantise_threads");
    let paths = ["1", "3"].map(|threads| {
        let path = folder.join(format!("{threads}.gguf"));
        // This pattern also matches a vector, which is not quantised.
        let more = ["--tensor", "blk.1.attn_q.weight=iq2_xxs", "--tensor", "blk.2.attn_q.weight=iq1_m"];
        let arguments = ["-t", threads, "--tensor", "blk.0.attn_k*=q5_1", "-o", path.to_str().unwrap()];
        let arguments = [&arguments[..], &more].concat();
        let found = formats(&quantise(exact(), "Q4_K_M", &arguments));
        for (name, format) in [("blk.0.attn_k.weight", "Q5_1"), ("blk.0.attn_k_norm.weight", "F32")] {
            assert!(found.contains(&(name.into(), format.into())), "{found:?}");
        }
        fs::read(path).unwrap()
    });
    assert!(paths[0] == paths[1]);
    let made = Gguf::from_bytes(Path::new("made.gguf"), paths[0].clone()).unwrap();
    let source = Gguf::open(exact()).unwrap();
    assert_eq!(made.metadata().read::<u32>("general.file_type").unwrap(), 15);
    // The keys are those of the source, in the same order.
    let keys = |gguf: &Gguf| gguf.metadata().iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>();
    let new = ["general.quantization_version", "general.file_type"];
    let old = |keys: Vec<String>| keys.into_iter().filter(|key| !new.contains(&&**key)).collect::<Vec<_>>();
    assert_eq!(old(keys(&made)), old(keys(&source)));
}

#[test]
fn importance_matrix_improves_important_columns() {
    let folder = scratch("quantise_importance");
    let source = Gguf::open(exact()).unwrap();
    // In this importance matrix, one column of each matrix has nearly all importance.
    let mut writer = GgufWriter::new().key("general.type", "imatrix");
    for tensor in source.tensors().filter(|tensor| tensor.dims().len() >= 2) {
        let columns = tensor.dims()[0];
        let sums: Vec<f32> = (0..columns).map(|column| if column % 7 == 0 { 1e4 } else { 1.0 }).collect();
        writer = writer.f32_tensor(&format!("{}.in_sum2", tensor.name()), &[columns, 1], &sums);
        writer = writer.f32_tensor(&format!("{}.counts", tensor.name()), &[1, 1], &[2.0]);
    }
    let imatrix = folder.join("i.gguf");
    fs::write(&imatrix, writer.finish()).unwrap();
    let lost = |arguments: &[&str]| {
        let path = folder.join("made.gguf");
        quantise(exact(), "Q4_0", &[arguments, &["--pure", "-o", path.to_str().unwrap()]].concat());
        let made = Gguf::open(&path).unwrap();
        let (name, columns) = ("blk.1.attn_q.weight", 256);
        let numbers = |gguf: &Gguf| {
            let tensor = gguf.tensor(name).unwrap();
            assert_eq!(tensor.dims()[0] as usize, columns);
            gguf.require_format(tensor).unwrap().dequantise_rows(&gguf.tensor_data(tensor), columns)
        };
        let (made, exact) = (numbers(&made), numbers(&source));
        let errors = made.iter().zip(&exact).map(|(a, b)| f64::from(a - b).powi(2));
        errors.enumerate().filter(|(i, _)| i % columns % 7 == 0).map(|(_, error)| error).sum::<f64>()
    };
    let (with, without) = (lost(&["--imatrix", imatrix.to_str().unwrap()]), lost(&[]));
    assert!(with < 0.65 * without, "{with} with it, {without} without");
}

#[test]
fn unsupported_quantisations_are_refused() {
    let folder = scratch("quantise_refused");
    let path = folder.join("out.gguf");
    let out = path.to_str().unwrap();
    let other = folder.join("other.dat");
    // This importance matrix belongs to another model: its first tensor has too many columns.
    let name = b"blk.0.attn_q.weight";
    let words: [&[u8]; 5] =
        [&1i32.to_le_bytes(), &(name.len() as i32).to_le_bytes(), name, &1i32.to_le_bytes(), &3i32.to_le_bytes()];
    fs::write(&other, [&words.concat()[..], &[0; 12]].concat()).unwrap();
    let noise = folder.join("noise.dat");
    fs::write(&noise, [0xff; 64]).unwrap();
    let exact = exact().to_str().unwrap();
    // An impossible number of layers in the header does not matter.
    let many = folder.join("many.gguf");
    let writer = GgufWriter::new().key("general.architecture", "llama").key("llama.block_count", 1u64 << 62);
    fs::write(&many, writer.f32_tensor("blk.1152921504606846976.attn_v.weight", &[256, 1], &[1.0; 256]).finish())
        .unwrap();
    let found = formats(&quantise(&many, "Q4_K_M", &["--dry-run"]));
    assert_eq!(found.len(), 1);
    for (arguments, status, words) in [
        (&["demo", "Q4_0", "-o", out][..], 2, &["already quantised to q4_k", "--allow-requantize"][..]),
        (&[exact, "Q4_X", "-o", out], 2, &["Q4_X", "Q4_K_M"]),
        (&[exact, "Q4_0", "--tensor", "*=i8_row", "-o", out], 2, &["PATTERN=FORMAT", "q4_k"]),
        (&[exact, "Q4_0", "--imatrix", other.to_str().unwrap(), "-o", out], 65, &["blk.0.attn_q.weight", "3 columns"]),
        (&[exact, "Q4_0", "--imatrix", noise.to_str().unwrap(), "-o", out], 65, &["not an importance matrix"]),
        (&[exact, "Q4_0", "-o", exact], 2, &["exact.gguf"]),
    ] {
        let output = ixc([&["quantise"], arguments].concat()).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{arguments:?}: {word}: {said}");
        }
        assert!(!path.exists(), "{arguments:?}");
    }
}

/// Checks that the importance matrix of every golden model has all matrices that rows are
/// multiplied with. Tensor names are those of llama-imatrix. The models have experts without gates,
/// gate and up matrices in one tensor, and a separate matrix for each head.
///
/// Embedding tables, convolutions and grouped norms are not matrix products. If one tensor has the
/// matrices of all heads (`attn_kv_b`, `attn_output_a`), importance is recorded for each head. No
/// code reads it yet.
#[test]
fn importance_covers_every_multiplied_matrix() {
    let folder = scratch("quantise_observed");
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models");
    let files = [Some(models), shared("golden/models")].into_iter().flatten().flat_map(|folder| {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.collect::<Vec<_>>()
    });
    let mut seen = [false; 3];
    for path in files {
        let model = Model::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let passes = OptionSet::default().with(&observe::ObserveOptions { inputs: true });
        let options =
            compile::CompileOptions { target: Some(Target::AVX2), passes, max_tokens: Some(4), ..Default::default() };
        let plan =
            compile::compile(&model, &options).unwrap_or_else(|error| panic!("{}: {error}", path.display())).plan;
        let mut engine = engines::load(plan, Target::AVX2, 0).unwrap();
        for id in 0..3 {
            engine.step(&[id], &[0]).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        let mut observed = ActivationSums::default();
        let states = engine.state_values();
        observed.add(states.map(|StateValues { name, width, values }| StateSums { name, width, values }));
        let written = folder.join("imatrix.gguf");
        let output = Output::open(&written, &Guard::replacing(&importance::KIND)).unwrap();
        observed.write(output, "text", 16).unwrap();
        let found = Importance::read(&written).unwrap();
        for tensor in Gguf::open(&path).unwrap().tensors() {
            let name = tensor.name();
            let dims = tensor.dims();
            let is_matrix = name.starts_with("blk.")
                && name.ends_with(".weight")
                && dims.len() >= 2
                && dims[1] > 1
                && !["conv", "_norm.", "_ape.", "tid2eid", "attn_kv_b.", "attn_output_a.", "time_mix_first."]
                    .iter()
                    .any(|part| name.contains(part))
                && model.arch.module.weights.iter().any(|weight| weight.tensor() == name);
            if !is_matrix {
                continue;
            }
            let (columns, matrices) = (dims[0], dims.get(2).copied().unwrap_or(1));
            let means = found
                .column_means(name, columns, matrices)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let means = means.unwrap_or_else(|| panic!("{}: nothing of {name}", path.display()));
            assert_eq!(means.len() as u64, columns * matrices, "{}: {name}", path.display());
            assert!(means.iter().any(|mean| *mean > 0.0), "{}: {name}", path.display());
            let ungated = name.contains("ffn_up_exps") && path.to_string_lossy().contains("nemotron_h_moe");
            seen[0] |= ungated;
            seen[1] |= name.contains("ffn_gate_up_exps");
            seen[2] |= name.contains("attn_k_b");
        }
    }
    // Only DeepSeek models have separate matrices for heads, and they are among the shared models,
    // which may be missing.
    assert!(seen[0] && seen[1], "{seen:?}");
}

/// Checks that derived tensors are not written. They are computed for the graph when a file is
/// opened, and llama.cpp does not know them.
#[test]
fn tensors_derived_for_the_graph_are_not_written() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models");
    let folder = scratch("quantise_made");
    let names = |gguf: &Gguf| gguf.tensors().map(|tensor| tensor.name().to_owned()).collect::<Vec<_>>();
    for (model, made) in [("qwen4exp-chosen", ".indexer.mean.weight"), ("deepseek2-kv_b", ".attn_k_b.weight")] {
        let (from, to) = (golden.join(format!("{model}.gguf")), folder.join(format!("{model}.gguf")));
        let own = names(&Gguf::open(&from).unwrap());
        let completed = names(&ixc::model::open_files(&from).unwrap());
        assert!(completed.iter().any(|name| name.ends_with(made)), "{model} has {made} of its own: {completed:?}");
        stdout({
            let mut command = ixc(["quantise"]);
            command.arg(&from).args(["Q8_0", "--allow-requantize", "-q", "-o"]).arg(&to);
            command
        });
        assert_eq!(names(&Gguf::open(&to).unwrap()), own, "{model}");
        // When the new file is opened, the tensors are derived again, and the model is complete.
        assert_eq!(names(&ixc::model::open_files(&to).unwrap()).len(), completed.len(), "{model}");
    }
}

/// Checks that quantising a model that changes meanwhile is an error, and leaves no file with old
/// and new bytes.
#[test]
fn a_model_that_changes_while_it_is_quantised_is_an_error() {
    use ixc::quantise::{self, QuantiseError, QuantiseOptions, mix::Mix};
    let folder = scratch("quantise_changed");
    let (path, to) = (folder.join("model.gguf"), folder.join("to.gguf"));
    let begin = |change_at: Option<usize>| {
        fs::copy(crate::support::demo_model(), &path).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        // The file's time is set to the distant past. Even a file system with a coarse clock then
        // shows that the file changes now.
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30)).unwrap();
        let model = Gguf::open(&path).unwrap();
        let options = QuantiseOptions { requantise: true, ..QuantiseOptions::new(Mix::find("Q8_0").unwrap()) };
        let plan = quantise::plan(&model, &options).unwrap();
        let output = Output::open(&to, &Guard::replacing(&importance::KIND)).unwrap();
        let change = || std::os::unix::fs::FileExt::write_all_at(&file, &[0x55; 4096], 1 << 20).unwrap();
        if change_at.is_none() {
            change();
        }
        let mut told = 0;
        plan.write(output, 2, |_| {
            told += 1;
            if Some(told) == change_at {
                change();
            }
        })
    };
    for change_at in [None, Some(1), Some(9)] {
        let error = begin(change_at).unwrap_err();
        assert!(matches!(error, QuantiseError::Changed(_)), "{change_at:?}: {error}");
        assert!(error.to_string().contains("model.gguf: the file was replaced or changed"), "{error}");
        assert!(!to.exists(), "{change_at:?}");
    }
    assert!(begin(Some(usize::MAX)).unwrap() > 0 && to.exists());
}
