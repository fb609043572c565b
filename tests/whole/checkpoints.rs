//! Folders of safetensors. Their logits have the same bits as those of the GGUF files that
//! llama.cpp's converter makes from them. This also holds after compiling or quantising. The logits
//! are close to those of transformers (`tests/checkpoints/README.md`).

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::engines::{self, bits};
use crate::support::{ixc, read_npy, scratch, stderr, stdout};
use ixc::compile::{CompileOptions, compile};
use ixc::model::{Model, open_files};
use ixc::runtime::load::LoadError;
use ixc::runtime::streaming::StreamError;
use ixc::targets::Target;
use ixc_testing::nmse::nmse;
use serde_json::Value as Json;

/// Max error of compiled logits from the logits of transformers, for each model. If a router
/// chooses experts, activations in bf16 and keys in f16 cause larger errors.
const CHECKPOINTS: [(&str, f64); 3] = [("qwen3moe", 3e-5), ("deepseek-fp8", 3e-5), ("gpt-oss-mxfp4", 3e-4)];
/// Max error of compiled logits of models with f16 matrices, in which only keys are rounded.
const KIN: f64 = 2e-7;
/// Max error of compiled logits of models with integer matrices, in which activations are rounded
/// to eight bits.
const INTEGERS: f64 = 1e-4;
/// Max error of the interpreter's logits. Transformers and the interpreter both round to single
/// precision.
const EXACT: f64 = 1e-9;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints")
}

fn tokens(name: &str) -> Vec<u32> {
    let expect: Json =
        serde_json::from_slice(&fs::read(folder().join(format!("expect/{name}.json"))).unwrap()).unwrap();
    expect["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Returns the logits that `ixc logits` computes.
fn logits(model: &Path, tokens: &[u32], out: &Path, arguments: &[&str]) -> Vec<f32> {
    let tokens = tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut command = ixc(["logits", "--force", "-q", "-t", "2", "--tokens", &tokens]);
    command.arg("-o").arg(out).arg(model).args(arguments);
    stdout(command);
    read_npy(out).1
}

#[test]
fn checkpoint_folder_matches_the_bits_of_its_conversion() {
    let scratch = scratch("checkpoints_bits");
    for (name, limit) in CHECKPOINTS {
        let (from, gguf) = (folder().join(name), folder().join(format!("gguf/{name}.gguf")));
        let (ids, out) = (tokens(name), scratch.join("logits.npy"));
        let (_, expect) = read_npy(&folder().join(format!("expect/{name}.npy")));
        let check = |arguments: &[&str], limit: f64| {
            let [ours, converted] = [&from, &gguf].map(|model| logits(model, &ids, &out, arguments));
            assert!(bits(&ours) == bits(&converted), "{name} {arguments:?}: other bits than the GGUF file's");
            let error = nmse(&ours[ours.len() - expect.len()..], &expect);
            println!("{error:.1e} <= {limit:.0e}  {name} {}", arguments.join(" "));
            assert!(error <= limit, "{name} {arguments:?}: {error:e} > {limit:e}");
        };
        check(&["--engine", "interpreter"], EXACT);
        for target in [Target::AVX2, Target::AVX512, Target::PORTABLE] {
            let emulate = (!target.missing().is_empty()).then_some("--emulate");
            let arguments: Vec<&str> = ["--target", target.name()].into_iter().chain(emulate).collect();
            check(&arguments, limit);
        }
    }
}

/// Checks models whose architecture is a variant of another one, with added or missing parts.
/// Transformers saved these models (`make/kin.py`).
#[test]
fn related_architectures_match_transformers() {
    let scratch = scratch("checkpoints_kin");
    let mut names: Vec<_> =
        fs::read_dir(folder().join("kin")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert!(names.len() >= 27, "{names:?}");
    for name in names {
        let name = name.to_str().unwrap();
        let (model, ids, out) = (folder().join("kin").join(name), tokens(name), scratch.join("logits.npy"));
        let (_, expect) = read_npy(&folder().join(format!("expect/{name}.npy")));
        let emulate = (!Target::AVX2.missing().is_empty()).then_some("--emulate");
        let compiled: Vec<&str> = ["--target", "avx2"].into_iter().chain(emulate).collect();
        let config = fs::read_to_string(model.join("config.json")).unwrap();
        let limit = if config.contains("quantization_config") { INTEGERS } else { KIN };
        for (arguments, limit) in [(&["--engine", "interpreter"][..], EXACT), (&compiled, limit)] {
            let ours = logits(&model, &ids, &out, arguments);
            let error = nmse(&ours[ours.len() - expect.len()..], &expect);
            println!("{error:.1e} <= {limit:.0e}  {name} {}", arguments.join(" "));
            assert!(error <= limit, "{name} {arguments:?}: {error:e} > {limit:e}");
        }
    }
}

/// Checks that plans and quantised files made from a folder have the same logits as those made from
/// the GGUF file. Plans either refer to the folder or hold all weights, including requantised
/// weights.
#[test]
fn plans_and_quantised_files_match_the_converted_file() {
    let scratch = scratch("checkpoints_made");
    let makes: [(&str, &[&str], &str); 4] = [
        ("compile", &["--target", "avx2"], "a.ixp"),
        ("compile", &["--target", "avx2", "--self-contained"], "b.ixp"),
        ("compile", &["--target", "avx2", "--weights", "i8_row"], "c.ixp"),
        ("quantise", &["Q8_0"], "d.gguf"),
    ];
    for (name, _) in CHECKPOINTS {
        let ids = tokens(name);
        for (command, arguments, file) in makes {
            // MXFP4 weights are already quantised, so `quantise` refuses them.
            if name == "gpt-oss-mxfp4" && command == "quantise" {
                continue;
            }
            let made = [folder().join(name), folder().join(format!("gguf/{name}.gguf"))].map(|model| {
                let out = scratch.join(file);
                let mut command = ixc([command, "-q", "--force"]);
                command.arg(&model).args(arguments).arg("-o").arg(&out);
                stdout(command);
                let emulate = (!Target::AVX2.missing().is_empty()).then_some("--emulate");
                let target: &[&str] = if file.ends_with("gguf") { &["--target", "avx2"] } else { &[] };
                let arguments: Vec<&str> = target.iter().copied().chain(emulate).collect();
                logits(&out, &ids, &scratch.join("logits.npy"), &arguments)
            });
            assert!(bits(&made[0]) == bits(&made[1]), "{name}: {command} {arguments:?}: other bits");
        }
    }
}

/// Checks that experts are streamed directly from the shards if their bytes there can be packed
/// without conversion. Converted experts can only be streamed from a plan.
#[test]
fn folder_experts_stream_directly_from_their_shards() {
    let target = Target::AVX2;
    let ids = tokens("qwen3moe");
    let options = CompileOptions { target: Some(target), ..CompileOptions::default() };
    let plan = |name: &str, expert_memory| {
        let model = Model::open(&folder().join(name)).unwrap();
        compile(&model, &CompileOptions { expert_memory, ..options.clone() }).unwrap().plan
    };
    let mut all = engines::load(plan("qwen3moe", None), target, 0).unwrap();
    let blocks = plan("qwen3moe", Some(0));
    let needed = match engines::load(blocks.clone(), target, 1) {
        Err(LoadError::Stream(error)) => match *error {
            StreamError::Budget { needed, .. } => needed,
            other => panic!("{other}"),
        },
        other => panic!("a byte is enough, or not tried: {:?}", other.err()),
    };
    let mut least = engines::load(blocks, target, needed).unwrap();
    for step in [ids.len(), 1] {
        let [resident, streamed] = [&mut all, &mut least].map(|engine| engines::logits(engine, &ids, step));
        assert!(bits(&resident) == bits(&streamed), "steps of {step}: other bits");
    }
    assert!(least.stream().unwrap().stats().groups.iter().all(|layer| layer.misses > 0 && layer.failures == 0));
    for name in ["deepseek-fp8", "gpt-oss-mxfp4"] {
        let refused = engines::load(plan(name, Some(0)), target, 1 << 20).unwrap_err();
        assert!(matches!(&refused, LoadError::ConvertedExperts { .. }), "{name}: {refused}");
    }
}

#[test]
fn folder_vocabulary_and_template_are_used() {
    let run = |words: &[&str], name: &str| {
        stdout({
            let mut command = ixc([words[0], "-q"]);
            command.arg(folder().join(name)).args(&words[1..]);
            command
        })
    };
    let facts: Json = serde_json::from_str(&run(&["inspect", "--json"], "qwen3moe")).unwrap();
    assert_eq!(
        (&facts["architecture"], &facts["files"], &facts["gguf_version"]),
        (&"qwen3moe".into(), &3.into(), &0.into())
    );
    assert_eq!(facts["supported"], true, "{facts}");
    assert!(run(&["inspect"], "qwen3moe").contains("(safetensors, "));
    let ids = |name: &str, text: &str| run(&["tokenize", text, "--json"], name);
    assert!(ids("qwen3moe", "the borrow").contains("257") && ids("qwen3moe", "the borrow").contains("267"));
    let said = run(&["run", "--raw", "-p", "the borrow", "-n", "3", "--seed", "1"], "qwen3moe");
    assert!(!said.is_empty());
    let model = open_files(&folder().join("deepseek-fp8")).unwrap();
    let spec = ixc::model::vocabulary(&model).unwrap();
    assert_eq!((spec.special.bos, spec.special.eos, spec.add_bos, spec.add_eos), (Some(1), Some(2), true, false));
    let spec = ixc::model::vocabulary(&open_files(&folder().join("qwen3moe")).unwrap()).unwrap();
    assert_eq!((spec.pre_tokenizer.as_str(), spec.special.eos, spec.add_bos), ("qwen2", Some(302), false));
    assert!(spec.chat_template.unwrap().contains("<|im_start|>assistant"));
}

/// Copies a checkpoint, so that a test can damage the copy.
fn copy(name: &str, to: &Path) {
    for entry in fs::read_dir(folder().join(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A kind of damage: its name, a function that damages a folder, and a part of the expected error.
type Damage = (&'static str, fn(&Path), &'static str);

fn edit(folder: &Path, file: &str, change: impl FnOnce(&mut Json)) {
    let path = folder.join(file);
    let mut json: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, serde_json::to_vec(&json).unwrap()).unwrap();
}

const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00002-of-00003.safetensors";

const DAMAGES: &[Damage] = &[
    ("a shard is missing", |at| fs::remove_file(at.join(SHARD)).unwrap(), "shard"),
    (
        "a path up",
        |at| edit(at, INDEX, |json| json["weight_map"]["lm_head.weight"] = "../x.safetensors".into()),
        "\"../x.safetensors\" is not a file name; expected a file in the same folder",
    ),
    (
        "an absolute path",
        |at| edit(at, INDEX, |json| json["weight_map"]["lm_head.weight"] = "/etc/passwd".into()),
        "\"/etc/passwd\" is not a file name",
    ),
    (
        "a folder of the folder",
        |at| edit(at, INDEX, |json| json["weight_map"]["lm_head.weight"] = "a/b".into()),
        "\"a/b\" is not a file name",
    ),
    (
        "a number for a shard",
        |at| edit(at, INDEX, |json| json["weight_map"]["lm_head.weight"] = 7.into()),
        "expected the name of a file",
    ),
    ("no map", |at| edit(at, INDEX, |json| json["weight_map"] = Json::Null), "key \"weight_map\""),
    (
        "a tensor that no shard has",
        |at| edit(at, INDEX, |json| json["weight_map"]["model.x"] = SHARD.into()),
        "tensor \"model.x\" is missing",
    ),
    ("an index that is no JSON", |at| fs::write(at.join(INDEX), "{").unwrap(), "EOF while parsing"),
    (
        "a shard cut short",
        |at| {
            let bytes = fs::read(at.join(SHARD)).unwrap();
            fs::write(at.join(SHARD), &bytes[..bytes.len() - 2]).unwrap();
        },
        "they must ascend and end in the file",
    ),
    ("an empty shard", |at| fs::write(at.join(SHARD), "").unwrap(), "has 0 bytes"),
    ("a shard that is none", |at| fs::write(at.join(SHARD), "GGUF\x03\0\0\0\0\0\0\0").unwrap(), "has a header of"),
    (
        "an unknown model",
        |at| edit(at, "config.json", |json| json["model_type"] = "gpt_neo\u{1b}".into()),
        "model_type \"gpt_neo\\u{1b}\" is not supported",
    ),
    ("no model at all", |at| fs::write(at.join("config.json"), "[]").unwrap(), "expected an object"),
    (
        "a number that is text",
        |at| edit(at, "config.json", |json| json["hidden_size"] = "32".into()),
        "key \"hidden_size\" is \"32\"; expected a count",
    ),
    (
        "a negative number",
        |at| edit(at, "config.json", |json| json["num_hidden_layers"] = (-1).into()),
        "key \"num_hidden_layers\" is -1",
    ),
    (
        "a huge number",
        |at| edit(at, "config.json", |json| json["num_attention_heads"] = u64::MAX.into()),
        "expected a count below 2^32",
    ),
    (
        "heads that do not divide",
        |at| edit(at, "config.json", |json| json["num_key_value_heads"] = 3.into()),
        "head_count_kv",
    ),
    (
        "more experts than there are",
        |at| {
            edit(at, "config.json", |json| {
                json["num_experts"] = 5.into();
                json["num_local_experts"] = 5.into();
            })
        },
        "expert 4\" is missing",
    ),
    (
        "fewer",
        |at| {
            edit(at, "config.json", |json| {
                json["num_experts"] = 3.into();
                json["num_local_experts"] = 3.into();
            })
        },
        "is of expert 3; expected below 3",
    ),
    (
        "no experts",
        |at| {
            edit(at, "config.json", |json| {
                json["num_experts"] = 0.into();
                json["num_local_experts"] = 0.into();
            })
        },
        "expected below 0",
    ),
    ("another width", |at| edit(at, "config.json", |json| json["hidden_size"] = 48.into()), "has dimensions"),
    (
        "a quantisation that is not read",
        |at| edit(at, "config.json", |json| json["quantization_config"] = serde_json::json!({"quant_method": "hqq"})),
        "quantisation \"hqq\" is not supported",
    ),
    (
        "scaling that is not known",
        |at| edit(at, "config.json", |json| json["rope_parameters"]["rope_type"] = "xdrope".into()),
        "\"xdrope\"; expected default",
    ),
    (
        "scaling without its factors",
        |at| edit(at, "config.json", |json| json["rope_parameters"]["rope_type"] = "longrope".into()),
        "\"short_factor\" is missing; expected an array of numbers, which longrope needs",
    ),
    (
        "more layers than there are",
        |at| edit(at, "config.json", |json| json["num_hidden_layers"] = u32::MAX.into()),
        "\"num_hidden_layers\" is 4294967295; expected at most 65536",
    ),
    (
        "layers that are not all of experts",
        |at| edit(at, "config.json", |json| json["mlp_only_layers"] = serde_json::json!([0])),
        "mlp_only_layers",
    ),
    (
        "a tokenizer that is no JSON",
        |at| fs::write(at.join("tokenizer.json"), "x").unwrap(),
        "tokenizer.json: expected value",
    ),
    (
        "an id that is too large",
        |at| edit(at, "tokenizer.json", |json| json["added_tokens"][0]["id"] = u32::MAX.into()),
        "of 4294967296 tokens",
    ),
    (
        "two tokens of an id",
        |at| edit(at, "tokenizer.json", |json| json["model"]["vocab"]["zz"] = 5.into()),
        "two tokens have id 5",
    ),
    (
        "a merge of one",
        |at| edit(at, "tokenizer.json", |json| json["model"]["merges"] = serde_json::json!(["ab"])),
        "item 0 is not a pair",
    ),
];

/// Checks that each damage gives a one-line error with the exit status of malformed or missing
/// input, and never a panic.
#[test]
fn damaged_checkpoints_are_refused_in_a_line() {
    for (what, damage, says) in DAMAGES {
        let at = scratch("checkpoints_damaged");
        copy("qwen3moe", &at);
        damage(&at);
        let output = ixc([
            OsStr::new("logits"),
            at.as_os_str(),
            "--tokens".as_ref(),
            "1".as_ref(),
            "-q".as_ref(),
            "-o".as_ref(),
            "-".as_ref(),
        ]);
        let output = { output }.output().unwrap();
        let said = stderr(&output);
        assert!(matches!(output.status.code(), Some(65 | 66)), "{what}: {:?} {said}", output.status);
        assert!(said.contains(says) && said.lines().count() == 1, "{what}: {said}");
        assert!(!said.contains('\u{1b}'), "{what}: {said:?}");
    }
}

/// Checks that changing any byte of a header or an index gives an error or a model, and never a
/// panic.
#[test]
fn damaged_bytes_never_panic() {
    let at = scratch("checkpoints_fuzzed");
    copy("deepseek-fp8", &at);
    for file in ["model.safetensors", "config.json", "tokenizer.json"] {
        let good = fs::read(at.join(file)).unwrap();
        let end = if file == "model.safetensors" { 2000 } else { good.len() };
        for place in (0..end.min(good.len())).step_by(7) {
            for byte in [good[place] ^ 1, b'9', b'"', 0xff] {
                let mut bad = good.clone();
                bad[place] = byte;
                fs::write(at.join(file), bad).unwrap();
                if let Ok(gguf) = open_files(&at) {
                    let _ = Model::new(gguf);
                }
            }
        }
        fs::write(at.join(file), good).unwrap();
    }
    Model::open(&at).unwrap();
}

/// Checks that models in Hugging Face's cache are found by the name that Hugging Face's tools use.
#[test]
fn cached_hub_model_is_found_by_name() {
    let cache = scratch("checkpoints_hub");
    let snapshot = cache.join("hub/models--org--tiny/snapshots/abc");
    fs::create_dir_all(cache.join("hub/models--org--tiny/refs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(cache.join("hub/models--org--tiny/refs/main"), "abc").unwrap();
    copy("qwen3moe", &snapshot);
    let inspect = |arguments: &[&str]| {
        let mut command = ixc(["inspect", "--json", "-q"]);
        command
            .args(arguments)
            .env("HF_HOME", &cache)
            .env_remove("HF_HUB_CACHE")
            .env("LLAMA_CACHE", cache.join("none"));
        command.output().unwrap()
    };
    for name in [&["org/tiny"][..], &["hf:org/tiny"], &["-hf", "org/tiny"], &["https://huggingface.co/org/tiny"]] {
        let output = inspect(name);
        assert!(output.status.success(), "{name:?}: {}", stderr(&output));
        let facts: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(facts["architecture"], "qwen3moe", "{name:?}");
    }
    fs::copy(folder().join("gguf/gpt-oss-mxfp4.gguf"), snapshot.join("tiny-Q8_0.gguf")).unwrap();
    for (name, found) in [
        (&["org/tiny:Q8_0"][..], true),
        (&["-hf", "org/tiny:q8_0"], true),
        (&["-hf", "org/tiny"], true),
        (&["org/tiny:Q2_K"], false),
    ] {
        let output = inspect(name);
        assert_eq!(output.status.success(), found, "{name:?}: {}", stderr(&output));
        if found {
            let facts: Json = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(facts["architecture"], "gpt-oss", "{name:?}");
        } else {
            assert!(
                stderr(&output).contains("`hf download org/tiny --include \"*Q2_K*.gguf\"`"),
                "{}",
                stderr(&output)
            );
        }
    }
}
