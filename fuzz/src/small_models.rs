//! Small models for targets: a GGUF file that code generates, and random models with their plans.

use std::path::PathBuf;

use ixc_compile::compile::with_kernels;
use ixc_ir::graph::Place;
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{Plan, SourceFile};
use ixc_model_files::gguf::write::GgufWriter;
use ixc_passes::manager::{self, Ir, graph_passes, plan_passes};
use ixc_passes::options::OptionSet;
use ixc_passes::pack;
use ixc_passes::pass::{Context, GraphResult, PlanProperties};
use ixc_targets::Target;
use ixc_testing::random_graphs::{Formats, RandomModule, random_model};

use crate::scratch;

/// Max tokens in a step of the models.
pub const MAX_TOKENS: u32 = 24;
/// Number of positions in the context of the models.
pub const CONTEXT: u32 = 128;
/// First bytes of a file with weights. They are those of GGUF, because a plan opens no other file.
const HEADER: &[u8; 64] = &{
    let mut header = [b'x'; 64];
    [header[0], header[1], header[2], header[3]] = *b"GGUF";
    header
};

/// A random model, its plan, and the folder of its weights.
#[derive(Clone, Debug)]
pub struct SmallModel {
    /// Graph before the passes, and the bytes of its weights.
    pub random: RandomModule,
    /// Plan of the model.
    pub plan: Plan<Kernel>,
    /// Folder that contains the file with the weights.
    pub folder: PathBuf,
}

/// Returns the plan of a random model with weights in f32.
///
/// # Panics
/// If the passes refuse the model.
pub fn small_model(seed: u64, target: Target) -> SmallModel {
    let mut random = random_model(seed, Formats::F32);
    // There are only a few file names, so that the folder stays small.
    let name = format!("model-{}.weights", seed % 8);
    let mut bytes = HEADER.to_vec();
    for (weight, content) in random.module.weights.iter_mut().zip(&random.weights) {
        weight.place = Some(Place { file: 0, offset: bytes.len() as u64 });
        bytes.extend_from_slice(content);
    }
    let file = SourceFile {
        path: name.clone(),
        bytes: bytes.len() as u64,
        header_crc: crc32fast::hash(HEADER),
        header_bytes: HEADER.len() as u64,
    };
    scratch::file(&name, &bytes);
    let plan = plan_of(&random, file, target);
    SmallModel { random, plan, folder: scratch::folder().to_owned() }
}

fn plan_of(random: &RandomModule, file: SourceFile, target: Target) -> Plan<Kernel> {
    let facts = PlanProperties {
        architecture: "test".to_owned(),
        max_tokens: MAX_TOKENS,
        context_length: CONTEXT,
        result: GraphResult::Logits,
        files: vec![file],
        derived: Vec::new(),
        tokenizer: Vec::new(),
        result_width: 0,
        weights: &random.weights,
    };
    let options = OptionSet::default().with(&pack::PackOptions { weights: false });
    let context = Context { target, caches: target.row().caches(), options, facts: Some(facts), decisions: None };
    let passes = graph_passes().into_iter().chain(["pack", "tile"]).collect::<Vec<_>>();
    let module = manager::run_pipeline(random.module.clone(), &passes, &context).expect("a random model compiles");
    match manager::run(Ir::Graph(module), &plan_passes(), &context).expect("a random model has a plan") {
        Ir::Plan(plan) => with_kernels(*plan, target).expect("a random model has kernels"),
        other => panic!("{} is no plan", other.kind()),
    }
}

/// Returns a GGUF file with a model that has one layer and a vocabulary of bytes.
pub fn gguf() -> GgufWriter {
    let tokens: Vec<String> =
        (0..32).map(|id| if id < 3 { format!("<s{id}>") } else { format!("{}", (b'a' + id - 3) as char) }).collect();
    let types: Vec<i32> = (0..32).map(|id| if id < 3 { 3 } else { 1 }).collect();
    let weights = |writer: GgufWriter, name: &str, dims: &[u64]| {
        let count = dims.iter().product::<u64>() as usize;
        writer.f32_tensor(name, dims, &vec![0.01; count])
    };
    let mut writer = GgufWriter::new()
        .key("general.architecture", "llama")
        .key("llama.block_count", 1u32)
        .key("llama.context_length", 64u32)
        .key("llama.embedding_length", 32u32)
        .key("llama.feed_forward_length", 32u32)
        .key("llama.attention.head_count", 2u32)
        .key("llama.attention.head_count_kv", 1u32)
        .key("llama.attention.layer_norm_rms_epsilon", 1e-5f32)
        .key("llama.rope.dimension_count", 16u32)
        .key("llama.vocab_size", 32u32)
        .key("tokenizer.ggml.model", "llama")
        .key("tokenizer.ggml.tokens", tokens.iter().map(String::as_str).collect::<Vec<&str>>())
        .key("tokenizer.ggml.scores", vec![0.0f32; 32])
        .key("tokenizer.ggml.token_type", types)
        .key("tokenizer.ggml.bos_token_id", 1u32)
        .key("tokenizer.ggml.eos_token_id", 2u32);
    for (name, dims) in [
        ("token_embd.weight", &[32, 32][..]),
        ("output_norm.weight", &[32]),
        ("output.weight", &[32, 32]),
        ("blk.0.attn_norm.weight", &[32]),
        ("blk.0.attn_q.weight", &[32, 32]),
        ("blk.0.attn_k.weight", &[32, 16]),
        ("blk.0.attn_v.weight", &[32, 16]),
        ("blk.0.attn_output.weight", &[32, 32]),
        ("blk.0.ffn_norm.weight", &[32]),
        ("blk.0.ffn_gate.weight", &[32, 32]),
        ("blk.0.ffn_up.weight", &[32, 32]),
        ("blk.0.ffn_down.weight", &[32, 32]),
    ] {
        writer = weights(writer, name, dims);
    }
    writer
}
