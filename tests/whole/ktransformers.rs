//! Experts in the format of KTransformers' converter (kt-kernel). They give the same logits as the
//! same experts stored as plain floats. Damaged folders give a one-line error.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::support::engines::{self, bits};
use crate::support::{ixc, list, read_npy, scratch, stderr, stdout};
use ixc::compile::{CompileOptions, compile};
use ixc::ir::random::Random;
use ixc::model::Model;
use ixc::model_files::gguf::Gguf;
use ixc::runtime::load::LoadError;
use ixc::targets::Target;
use ixc_testing::nmse::nmse;
use serde_json::{Map, Value as Json, json};

const WIDTH: usize = 128;
const EXPERT_WIDTH: usize = 256;
const EXPERTS: usize = 4;
const LAYERS: usize = 2;
const VOCABULARY: usize = 48;
const HEADS: [usize; 3] = [4, 2, 32];
const TOKENS: [u32; 9] = [3, 47, 0, 11, 11, 30, 8, 21, 2];
/// Max error of compiled logits from the interpreter's logits. Kernels round activations to eight
/// bits.
const LIMIT: f64 = 3e-5;

/// A tensor of a safetensors folder.
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn write(at: &Path, tensors: &[Tensor]) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for Tensor { name, dtype, shape, bytes } in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    fs::write(at.join("model.safetensors"), file).unwrap();
    let config = json!({
        "model_type": "qwen3_moe", "hidden_size": WIDTH, "intermediate_size": 64, "moe_intermediate_size": EXPERT_WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS[0], "num_key_value_heads": HEADS[1], "head_dim": HEADS[2],
        "num_experts": EXPERTS, "num_experts_per_tok": 2, "norm_topk_prob": true, "vocab_size": VOCABULARY,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    });
    fs::write(at.join("config.json"), config.to_string()).unwrap();
}

/// Returns the tensors that are not experts, with the names of transformers.
fn others(random: &mut Random) -> Vec<Tensor> {
    let [heads, kv_heads, head] = HEADS;
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
    ];
    for layer in 0..LAYERS {
        let parts: [(&str, &[usize]); 9] = [
            ("input_layernorm", &[WIDTH]),
            ("post_attention_layernorm", &[WIDTH]),
            ("self_attn.q_norm", &[head]),
            ("self_attn.k_norm", &[head]),
            ("self_attn.q_proj", &[heads * head, WIDTH]),
            ("self_attn.k_proj", &[kv_heads * head, WIDTH]),
            ("self_attn.v_proj", &[kv_heads * head, WIDTH]),
            ("self_attn.o_proj", &[WIDTH, heads * head]),
            ("mlp.gate", &[EXPERTS, WIDTH]),
        ];
        shapes.extend(parts.map(|(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape.to_vec())));
    }
    let of = |(name, shape): (String, Vec<usize>)| {
        let by = if name.contains("norm") { 1.0 } else { 3.0 / (WIDTH as f32).sqrt() };
        let number = |_| {
            let x = random.signed() * by + f32::from(u8::from(name.contains("norm")));
            ((x.to_bits() >> 16) as u16).to_le_bytes()
        };
        let bytes = (0..shape.iter().product::<usize>()).flat_map(number).collect();
        Tensor { name, dtype: "BF16", shape, bytes }
    };
    shapes.into_iter().map(of).collect()
}

/// Part of a matrix for one NUMA node: integers, and a scale for each row. Every product of an
/// integer and its scale is exact in `f32`.
struct Quantised {
    rows: usize,
    columns: usize,
    integers: Vec<i8>,
    scales: Vec<f32>,
}

/// Returns random quantised rows in kt-kernel's form: the largest magnitude in each row is the
/// largest integer.
fn quantised(random: &mut Random, (largest, unit): (i8, f32), [rows, columns]: [usize; 2]) -> Quantised {
    let mut integers: Vec<i8> =
        (0..rows * columns).map(|_| (random.signed() * (f32::from(largest) + 0.49)).round() as i8).collect();
    for row in integers.chunks_exact_mut(columns) {
        let (at, sign) = (random.below(columns as u64) as usize, random.below(2) as i8 * 2 - 1);
        row[at] = sign * largest;
    }
    let number = |random: &mut Random| (64 + random.below(64)) as f32 / f32::from(largest) / unit / 1024.0;
    // The mantissa of a scale has 8 bits, so that products are exact.
    let scales = (0..rows).map(|_| f32::from_bits(number(random).to_bits() & 0xffff_0000)).collect();
    Quantised { rows, columns, integers, scales }
}

/// Packs a part like `BufferB::_pack_block`: first the rows of a tile one after the other, then the
/// transposed dwords of the tile's halves.
fn packed(bits: usize, part: &Quantised) -> Vec<u8> {
    let &Quantised { rows, columns, ref integers, .. } = part;
    let tile_columns = 512 / bits;
    // These matrices are narrower than a block of columns, so blocks of rows follow each other in
    // the order of their tiles.
    let mut out = Vec::new();
    for band in (0..rows).step_by(32) {
        for from in (0..columns).step_by(tile_columns) {
            let row = |row: usize| &integers[(band + row) * columns + from..][..tile_columns];
            let bytes = |row: &[i8]| -> Vec<u8> {
                match bits {
                    4 => (0..64).map(|i| row[i] as u8 & 15 | (row[i + 64] as u8) << 4).collect(),
                    _ => row.iter().map(|q| *q as u8).collect(),
                }
            };
            let tile: Vec<Vec<u8>> = (0..32).map(|number| bytes(row(number))).collect();
            for half in tile.chunks(16) {
                for dword in 0..16 {
                    half.iter().for_each(|row| out.extend(&row[4 * dword..][..4]));
                }
            }
        }
    }
    out
}

/// Writes two folders of the same model. In one, experts are packed for `nodes` NUMA nodes; in the
/// other, experts are floats.
fn folders(at: &Path, bits: usize, nodes: usize) -> [std::path::PathBuf; 2] {
    let mut random = Random::new(41 + bits as u64 + nodes as u64);
    let (largest, unit) = if bits == 4 { (7, 16.0) } else { (127, 1.0) };
    let mut plain = others(&mut random);
    let renamed = |tensor: &Tensor| {
        let name = tensor.name.replace("model.layers.", "blk.").replace("model.", "");
        Tensor { name, dtype: tensor.dtype, shape: tensor.shape.clone(), bytes: tensor.bytes.clone() }
    };
    let mut converted: Vec<Tensor> = plain.iter().map(renamed).collect();
    for layer in 0..LAYERS {
        for expert in 0..EXPERTS {
            for (matrix, shape) in
                [("gate", [EXPERT_WIDTH, WIDTH]), ("up", [EXPERT_WIDTH, WIDTH]), ("down", [WIDTH, EXPERT_WIDTH])]
            {
                let own = if matrix == "down" { [shape[0], shape[1] / nodes] } else { [shape[0] / nodes, shape[1]] };
                let parts: Vec<Quantised> = (0..nodes).map(|_| quantised(&mut random, (largest, unit), own)).collect();
                let mut numbers = vec![0f32; shape[0] * shape[1]];
                for (node, part) in parts.iter().enumerate() {
                    let name = format!("blk.{layer}.ffn_{matrix}_exps.{expert}.numa.{node}");
                    let bytes = packed(bits, part);
                    let (weight, scale) = (format!("{name}.weight"), format!("{name}.scale"));
                    converted.push(Tensor { name: weight, dtype: "I8", shape: vec![bytes.len()], bytes });
                    let scales = part.scales.iter().flat_map(|d| d.to_le_bytes()).collect();
                    converted.push(Tensor { name: scale, dtype: "F32", shape: vec![part.rows], bytes: scales });
                    let [first_row, first_column] =
                        if matrix == "down" { [0, node * own[1]] } else { [node * own[0], 0] };
                    for (i, q) in part.integers.iter().enumerate() {
                        let (row, column) = (i / part.columns, i % part.columns);
                        let x = unit * part.scales[row] * f32::from(*q);
                        numbers[(first_row + row) * shape[1] + first_column + column] = x;
                    }
                }
                let name = format!("model.layers.{layer}.mlp.experts.{expert}.{matrix}_proj.weight");
                let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                plain.push(Tensor { name, dtype: "F32", shape: shape.to_vec(), bytes });
            }
        }
    }
    // The folder also has tensors that only training uses.
    converted.push(Tensor {
        name: "blk.0.ffn_up_bwd_exps.0.numa.0.weight".to_owned(),
        dtype: "I8",
        shape: vec![1],
        bytes: vec![7],
    });
    [("converted", converted), ("plain", plain)].map(|(name, tensors)| {
        let at = at.join(format!("{name}-{bits}-{nodes}"));
        fs::create_dir_all(&at).unwrap();
        write(&at, &tensors);
        at
    })
}

fn logits(model: &Path, out: &Path, arguments: &[&str]) -> Vec<f32> {
    let mut command = ixc(["logits", "--force", "-q", "-t", "2", "--tokens", &list(&TOKENS)]);
    command.arg("-o").arg(out).arg(model).args(arguments);
    stdout(command);
    read_npy(out).1
}

fn target(target: Target) -> Vec<&'static str> {
    let emulate = (!target.missing().is_empty()).then_some("--emulate");
    ["--target", target.name()].into_iter().chain(emulate).collect()
}

/// Checks that packed experts give the same logits as the same numbers stored as floats, for one
/// NUMA node or several. Plans and GGUF files made from the packed experts do so too.
#[test]
fn ktransformers_experts_decode_to_their_numbers() {
    let scratch = scratch("ktransformers");
    let out = scratch.join("logits.npy");
    for (bits_of, nodes) in [(8, 1), (8, 2), (8, 4), (4, 1), (4, 2)] {
        let [converted, plain] = folders(&scratch, bits_of, nodes);
        let [ours, exact] = [&converted, &plain].map(|model| logits(model, &out, &["--engine", "interpreter"]));
        assert!(bits(&ours) == bits(&exact), "{bits_of} bits, {nodes} nodes: other logits than those of the numbers");
        for name in [Target::AVX2, Target::AVX512, Target::AMX, Target::PORTABLE] {
            // A target with tiles may be emulated, which takes long.
            if name == Target::AMX && nodes != 2 {
                continue;
            }
            let compiled = logits(&converted, &out, &target(name));
            let error = nmse(&compiled, &exact);
            println!("{error:.1e} <= {LIMIT:.0e}  {bits_of} bits, {nodes} nodes, {}", name.name());
            assert!(error <= LIMIT, "{bits_of} bits, {nodes} nodes, {}: {error:e}", name.name());
        }
        // Rows of integers with one scale are also a format for requantised weights. Requantising
        // the floats gives the same integers.
        if (bits_of, nodes) == (8, 1) {
            let [requantised, ours] = [&plain, &converted].map(|model| {
                let arguments = [&target(Target::AVX2)[..], &["--weights", "*_exps*=i8_row"]].concat();
                logits(model, &out, &arguments)
            });
            assert!(bits(&requantised) == bits(&ours), "other bits than of weights that ixc requantised");
        }
        let quantised = [&converted, &plain].map(|model| {
            let made = scratch.join("made.gguf");
            let mut command = ixc(["quantise"]);
            command.arg(model).args(["Q8_0", "--allow-requantize", "-q", "--force", "-o"]).arg(&made);
            stdout(command);
            let file = Gguf::open(&made).unwrap();
            let tensors =
                file.tensors().map(|tensor| (tensor.name().to_owned(), file.tensor_data(tensor).into_owned()));
            tensors.collect::<BTreeMap<_, _>>()
        });
        assert!(quantised[0] == quantised[1], "{bits_of} bits, {nodes} nodes: other blocks than of the numbers");
    }
}

/// Checks that experts in this layout are streamed from a plan, because kernels cannot read the
/// layout directly. Their logits have the same bits as with experts in memory.
#[test]
fn packed_experts_are_streamed_from_a_plan() {
    let scratch = scratch("ktransformers_streamed");
    let [converted, _] = folders(&scratch, 4, 2);
    let options = CompileOptions { target: Some(Target::AVX2), ..CompileOptions::default() };
    let model = Model::open(&converted).unwrap();
    let plan = |expert_memory| compile(&model, &CompileOptions { expert_memory, ..options.clone() }).unwrap().plan;
    let refused = engines::load(plan(Some(0)), Target::AVX2, 1 << 20).unwrap_err();
    assert!(matches!(refused, LoadError::ConvertedExperts { .. }), "{refused}");
    let made = scratch.join("made.ixp");
    let mut command = ixc(["compile", "-q", "--target", "avx2", "--memory", "1MiB", "--pack", "-o"]);
    command.arg(&made).arg(&converted);
    stdout(command);
    let emulate: &[&str] = if Target::AVX2.missing().is_empty() { &[] } else { &["--emulate"] };
    let out = scratch.join("logits.npy");
    // Most of this budget is used for memory other than experts.
    let streamed = logits(&made, &out, &[&["--memory", "96MiB"], emulate].concat());
    let resident = logits(&converted, &out, &target(Target::AVX2));
    assert!(bits(&streamed) == bits(&resident), "other bits than from memory");
}

/// A kind of damage: its name, a change of a folder's header and data, and a part of the expected
/// error.
type Damage = (&'static str, fn(&mut Map<String, Json>, &mut Vec<u8>), &'static str);

const UP: &str = "blk.1.ffn_up_exps.2.numa.1";

fn without(header: &mut Map<String, Json>, end: &str) {
    // The bytes then belong to a tensor with another name, which no code reads.
    let tensor = header.remove(&format!("{UP}.{end}")).unwrap();
    header.insert("mtp.unused".to_owned(), tensor);
}

/// Shortens a tensor. The removed bytes then belong to another tensor, which no code reads.
fn shortened(header: &mut Map<String, Json>, end: &str, by: u64, each: u64) {
    let tensor = header.get_mut(&format!("{UP}.{end}")).unwrap();
    let [from, to] = [0, 1].map(|i| tensor["data_offsets"][i].as_u64().unwrap());
    tensor["data_offsets"] = json!([from, to - by]);
    tensor["shape"] = json!([(to - by - from) / each]);
    header.insert("mtp.unused".to_owned(), json!({"dtype": "I8", "shape": [by], "data_offsets": [to - by, to]}));
}

const DAMAGES: &[Damage] = &[
    ("a node without weights", |header, _| without(header, "weight"), "blk.1.ffn_up_exps.2.numa.1.weight\" is missing"),
    ("a node without scales", |header, _| without(header, "scale"), "blk.1.ffn_up_exps.2.numa.1.scale\" is missing"),
    (
        "a node too many",
        |header, _| {
            let weight = header.remove(&format!("{UP}.weight")).unwrap();
            header.insert("blk.1.ffn_up_exps.2.numa.2.weight".to_owned(), weight);
        },
        "expected 10880 (AMXINT8) or 5440 (AMXINT4) bytes",
    ),
    (
        "a node of no machine",
        |header, _| {
            let weight = header.remove(&format!("{UP}.weight")).unwrap();
            header.insert("blk.1.ffn_up_exps.2.numa.256.weight".to_owned(), weight);
        },
        "a NUMA node below 256",
    ),
    (
        "an expert too many",
        |header, _| {
            let weight = header.remove(&format!("{UP}.weight")).unwrap();
            header.insert("blk.1.ffn_up_exps.4.numa.1.weight".to_owned(), weight);
        },
        "is packed for expert 4 and NUMA node 1; expected an expert below 4",
    ),
    (
        "weights cut short",
        |header, _| shortened(header, "weight", 64, 1),
        "is 16320 bytes of I8; expected 16384 bytes of I8",
    ),
    ("a scale too few", |header, _| shortened(header, "scale", 4, 4), "is 508 bytes of F32; expected 512 bytes of F32"),
    (
        "scales of another type",
        |header, _| header[&format!("{UP}.scale")]["dtype"] = "I32".into(),
        "is 512 bytes of I32; expected 512 bytes of F32",
    ),
    (
        "parts that overlap",
        |header, _| {
            let before = header["blk.1.ffn_up_exps.2.numa.0.weight"].clone();
            header.insert(format!("{UP}.weight"), before);
        },
        "begins at byte",
    ),
    (
        "another method's names",
        |header, _| {
            let weight = header.remove(&format!("{UP}.weight")).unwrap();
            header.insert("blk.1.ffn_up_exps.2.weight".to_owned(), weight);
        },
        "by an unsupported method",
    ),
    (
        "another order",
        |header, data| {
            let tensor = &header["blk.0.ffn_gate_exps.0.numa.0.weight"]["data_offsets"];
            let [from, to] = [0, 1].map(|i| tensor[i].as_u64().unwrap() as usize);
            // The rows of a tile follow each other.
            for half in data[from..to].chunks_exact_mut(1024) {
                let dwords: Vec<[u8; 4]> = half.as_chunks::<4>().0.to_vec();
                for (i, to) in half.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *to = dwords[i % 16 * 16 + i / 16];
                }
            }
        },
        "for kernels other than AMX",
    ),
];

fn damaged(what: &str, at: &Path, change: impl FnOnce(&mut Map<String, Json>, &mut Vec<u8>)) -> String {
    let path = at.join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let begin = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: Map<String, Json> = serde_json::from_slice(&file[8..begin]).unwrap();
    let mut data = file[begin..].to_vec();
    change(&mut header, &mut data);
    let header = serde_json::to_vec(&header).unwrap();
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()).unwrap();
    let arguments = ["logits", "--tokens", "1", "-q", "--engine", "interpreter", "-o"].map(OsStr::new);
    let mut command = ixc(arguments);
    command.arg(at.join("out.npy")).arg(at);
    let output = command.output().unwrap();
    fs::write(&path, file).unwrap();
    assert_eq!(output.status.code(), Some(65), "{what}: {}", stderr(&output));
    stderr(&output)
}

#[test]
fn damaged_parts_are_refused_in_a_line() {
    let scratch = scratch("ktransformers_damaged");
    let [converted, _] = folders(&scratch, 8, 2);
    for (what, change, says) in DAMAGES {
        let said = damaged(what, &converted, change);
        assert!(said.contains(says) && said.trim_end().lines().count() == 1, "{what}: {said}");
    }
    // The cases have a width that is not divisible by the number of nodes, or experts that the
    // configuration does not have.
    for (key, value, says) in [
        ("moe_intermediate_size", 257, "one node's part of a matrix of 257 by 128 for 2 nodes"),
        ("moe_intermediate_size", 0, "expected 0 (AMXINT8)"),
        ("hidden_size", 96, "expected 12288 (AMXINT8)"),
        ("num_experts", 5, "is missing"),
        ("num_experts", u32::MAX, "is missing"),
        ("num_experts", 3, "expected an expert below 3"),
    ] {
        let path = converted.join("config.json");
        let config = fs::read_to_string(&path).unwrap();
        let mut json: Json = serde_json::from_str(&config).unwrap();
        json[key] = value.into();
        fs::write(&path, json.to_string()).unwrap();
        let said = damaged(key, &converted, |_, _| ());
        fs::write(&path, config).unwrap();
        assert!(said.contains(says), "{key} = {value}: {said}");
    }
}
