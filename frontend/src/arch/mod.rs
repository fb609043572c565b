//! Architectures: from a checked file to a graph, as its authors wrote the model.
//!
//! In: a [`Gguf`] whose bytes are sound. Out: a [`Model`]: hyperparameters and a [`Module`] whose function `@step` computes
//! logits, unfused, weights named after their tensors. What makes one architecture differ from another is in the graph, as
//! ops and attributes; nothing after this module knows its name.
//!
//! ```text
//! %7 = rms_norm %6, @blk.0.attn_norm.weight {eps = 1e-6} : f32[T, 256]
//! %8 = dequantise @blk.0.attn_q.weight : f32[256, 256]
//! %9 = matmul %7, %8 : f32[T, 256]
//! ```
//!
//! | file | what it owns |
//! | --- | --- |
//! | `hyper` | keys to hyperparameters, with every range check |
//! | `builder` | weights by name and shape; ops with their types |
//! | `decoder` | the parts that decoders share, and in what they differ |
//! | `encoder` | the same of encoders, whose attention sees all of a text |
//! | `mla` | latent attention |
//! | `absorbed` | what older files of it lack |
//! | `delta_net` | layers of linear attention by the gated delta rule |
//! | `kda` | the same with a decay for each element of a key |
//! | `ssm` | layers with a selective state space |
//! | `selective` | the same with a decay for each element of a state |
//! | `lightning` | layers of linear attention with constant decays |
//! | `shift` | what rows of RWKV take of those before, and projections through short rows |
//! | `goose` | layers of RWKV-7 |
//! | `finch` | layers of RWKV-6 |
//! | `streams` | residuals of several streams |
//! | `layer_inputs` | what each layer takes of a token beside the stream |
//! | the others, each with the name of its | one architecture each |
//! | `numbers` | tensors of one number that no file has |
//! | `weights` | a model's bytes, for the interpreter |
//!
//! To add an architecture: a file with its row, and a line in [`ARCHITECTURES`].

mod absorbed;
mod afmoe;
mod apertus;
mod arcee;
mod arctic;
mod arwkv7;
mod axk1;
mod baichuan;
mod bailingmoe;
mod bailingmoe2;
mod bailingmoe3;
mod bert;
mod bitnet;
mod bitnet_b1_58;
mod bloom;
mod builder;
mod chameleon;
mod chatglm;
mod codeshell;
mod cogvlm;
mod cohere2;
mod cohere2moe;
mod command_r;
mod cwm;
mod dbrx;
mod deci;
mod decoder;
mod deepseek;
mod deepseek2;
mod deepseek2_ocr;
mod deepseek32;
mod deepseek4;
mod delta_net;
mod dots1;
mod dots3note;
mod encoder;
mod ernie4_5;
mod ernie4_5_moe;
mod error;
mod eurobert;
mod exaone;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod finch;
mod flint;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod glm5_next;
mod glm_dsa;
mod goose;
mod gpt2;
mod gpt_oss;
mod gptj;
mod gptneo;
mod gptneox;
mod granite;
mod granite_swa;
mod granitehybrid;
mod granitemoe;
mod grok;
mod grovemoe;
mod hrm_text;
mod hunyuan_dense;
mod hunyuan_moe;
mod hunyuan_vl;
mod hy_v3;
mod hy_v4;
mod hyper;
mod hyperclovax;
mod internlm2;
mod jais;
mod jais2;
mod jamba;
mod kda;
mod kimi_k3;
mod kimi_linear;
mod laguna;
mod layer_inputs;
mod lfm2;
mod lfm2moe;
mod lfm3;
mod lightning;
mod llama;
mod llama4;
mod longcat_flash;
mod maincoder;
mod mamba;
mod mamba2;
mod maple;
mod mellum;
mod mimo2;
mod minicpm;
mod minicpm3;
mod minimax_01;
mod minimax_m2;
mod minimax_m3;
mod mistral3;
mod mistral4;
mod mistral_large4;
mod mla;
mod modern_bert;
mod mpt;
mod muse_glimmer;
mod nanbeige;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod nemotron_h_moe;
mod nomic_bert;
mod numbers;
mod olmo;
mod olmo2;
mod olmo_hybrid;
mod olmoe;
mod openelm;
mod opt;
mod orion;
mod paddleocr;
mod pangu_embed;
mod phi2;
mod phi3;
mod phimoe;
mod plamo;
mod plamo2;
mod plamo3;
mod plm;
mod qwen;
mod qwen2;
mod qwen2moe;
mod qwen2vl;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod qwen3vlmoe;
mod qwen4exp;
mod refact;
mod rwkv6;
mod rwkv6qwen2;
mod rwkv7;
mod seed_oss;
mod selective;
mod shift;
mod smallthinker;
mod smollm3;
mod spark2_5;
mod ssm;
mod stablelm;
mod starcoder;
mod starcoder2;
mod step35;
mod streams;
mod talkie;
mod vaultgemma;
mod weights;
mod xverse;

use std::path::Path;

use ixc_ir::graph::{Module, ValueId};
use ixc_ir::plan::Pooling;

pub use builder::layer_of;
use builder::{Builder, Guessing};
pub use error::{ArchError, NextnProblem};
pub use hyper::{
    Adjugate, Alternating, Bends, Compressed, Experts, Hyper, Indexer, Layer, LayerInputs, Limits, Mla, Ngrams,
    Precise, Rope, Scales, Ssm, Stacks, Streams, Wkv, Xielu,
};
use hyper::{Defaults, GuessFrom};
use ixc_model_files::checkpoint::CheckpointError;
use ixc_model_files::gguf::{Gguf, GgufError};
pub use weights::FileWeights;

/// A row of the registry.
#[derive(Debug)]
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    /// Which models it is.
    pub doc: &'static str,
    /// What keys mean that its files do not have.
    defaults: Defaults,
    build: fn(&mut Builder<'_>) -> Result<ValueId, ArchError>,
}

/// Every architecture that can be built.
pub static ARCHITECTURES: &[Architecture] = &[
    llama::ARCHITECTURE,
    qwen2::ARCHITECTURE,
    qwen2moe::ARCHITECTURE,
    qwen3::ARCHITECTURE,
    qwen3moe::ARCHITECTURE,
    qwen3next::ARCHITECTURE,
    qwen35::ARCHITECTURE,
    qwen35moe::ARCHITECTURE,
    olmoe::ARCHITECTURE,
    minimax_01::ARCHITECTURE,
    minimax_m2::ARCHITECTURE,
    minimax_m3::ARCHITECTURE,
    mimo2::ARCHITECTURE,
    glm4moe::ARCHITECTURE,
    ernie4_5::ARCHITECTURE,
    ernie4_5_moe::ARCHITECTURE,
    granite::ARCHITECTURE,
    granitemoe::ARCHITECTURE,
    granitehybrid::ARCHITECTURE,
    granite_swa::ARCHITECTURE,
    gemma3::ARCHITECTURE,
    gemma3n::ARCHITECTURE,
    gemma4::ARCHITECTURE,
    dots1::ARCHITECTURE,
    dots3note::ARCHITECTURE,
    bailingmoe2::ARCHITECTURE,
    hunyuan_moe::ARCHITECTURE,
    hyperclovax::ARCHITECTURE,
    qwen3vl::ARCHITECTURE,
    qwen3vlmoe::ARCHITECTURE,
    smollm3::ARCHITECTURE,
    seed_oss::ARCHITECTURE,
    phi3::ARCHITECTURE,
    gpt_oss::ARCHITECTURE,
    deepseek2::ARCHITECTURE,
    deepseek4::ARCHITECTURE,
    deepseek32::ARCHITECTURE,
    glm_dsa::ARCHITECTURE,
    kimi_linear::ARCHITECTURE,
    kimi_k3::ARCHITECTURE,
    lfm2::ARCHITECTURE,
    lfm2moe::ARCHITECTURE,
    lfm3::ARCHITECTURE,
    nemotron_h::ARCHITECTURE,
    nemotron_h_moe::ARCHITECTURE,
    phimoe::ARCHITECTURE,
    mistral3::ARCHITECTURE,
    mistral4::ARCHITECTURE,
    llama4::ARCHITECTURE,
    gemma::ARCHITECTURE,
    gemma2::ARCHITECTURE,
    deepseek::ARCHITECTURE,
    exaone4::ARCHITECTURE,
    exaone_moe::ARCHITECTURE,
    afmoe::ARCHITECTURE,
    hy_v3::ARCHITECTURE,
    hy_v4::ARCHITECTURE,
    laguna::ARCHITECTURE,
    cohere2::ARCHITECTURE,
    cohere2moe::ARCHITECTURE,
    command_r::ARCHITECTURE,
    cwm::ARCHITECTURE,
    glm4::ARCHITECTURE,
    chatglm::ARCHITECTURE,
    olmo2::ARCHITECTURE,
    stablelm::ARCHITECTURE,
    phi2::ARCHITECTURE,
    starcoder2::ARCHITECTURE,
    nemotron::ARCHITECTURE,
    arcee::ARCHITECTURE,
    hunyuan_dense::ARCHITECTURE,
    internlm2::ARCHITECTURE,
    minicpm::ARCHITECTURE,
    minicpm3::ARCHITECTURE,
    falcon_h1::ARCHITECTURE,
    flint::ARCHITECTURE,
    mamba2::ARCHITECTURE,
    maple::ARCHITECTURE,
    mamba::ARCHITECTURE,
    jamba::ARCHITECTURE,
    step35::ARCHITECTURE,
    glm5_next::ARCHITECTURE,
    bailingmoe3::ARCHITECTURE,
    qwen4exp::ARCHITECTURE,
    qwen2vl::ARCHITECTURE,
    muse_glimmer::ARCHITECTURE,
    exaone::ARCHITECTURE,
    pangu_embed::ARCHITECTURE,
    xverse::ARCHITECTURE,
    orion::ARCHITECTURE,
    jais2::ARCHITECTURE,
    maincoder::ARCHITECTURE,
    bailingmoe::ARCHITECTURE,
    deci::ARCHITECTURE,
    gpt2::ARCHITECTURE,
    starcoder::ARCHITECTURE,
    mellum::ARCHITECTURE,
    apertus::ARCHITECTURE,
    smallthinker::ARCHITECTURE,
    arctic::ARCHITECTURE,
    axk1::ARCHITECTURE,
    grok::ARCHITECTURE,
    dbrx::ARCHITECTURE,
    olmo::ARCHITECTURE,
    grovemoe::ARCHITECTURE,
    nanbeige::ARCHITECTURE,
    gptneox::ARCHITECTURE,
    falcon::ARCHITECTURE,
    plamo::ARCHITECTURE,
    plamo3::ARCHITECTURE,
    bitnet::ARCHITECTURE,
    bitnet_b1_58::ARCHITECTURE,
    mistral_large4::ARCHITECTURE,
    bloom::ARCHITECTURE,
    mpt::ARCHITECTURE,
    baichuan::ARCHITECTURE,
    refact::ARCHITECTURE,
    jais::ARCHITECTURE,
    olmo_hybrid::ARCHITECTURE,
    nanochat::ARCHITECTURE,
    vaultgemma::ARCHITECTURE,
    longcat_flash::ARCHITECTURE,
    qwen::ARCHITECTURE,
    plm::ARCHITECTURE,
    spark2_5::ARCHITECTURE,
    plamo2::ARCHITECTURE,
    openelm::ARCHITECTURE,
    codeshell::ARCHITECTURE,
    paddleocr::ARCHITECTURE,
    hunyuan_vl::ARCHITECTURE,
    deepseek2_ocr::ARCHITECTURE,
    cogvlm::ARCHITECTURE,
    hrm_text::ARCHITECTURE,
    chameleon::ARCHITECTURE,
    talkie::ARCHITECTURE,
    rwkv7::ARCHITECTURE,
    arwkv7::ARCHITECTURE,
    rwkv6::ARCHITECTURE,
    rwkv6qwen2::ARCHITECTURE,
    opt::ARCHITECTURE,
    gptneo::ARCHITECTURE,
    gptj::ARCHITECTURE,
    bert::ARCHITECTURE,
    nomic_bert::ARCHITECTURE,
    eurobert::ARCHITECTURE,
    gemma_embedding::ARCHITECTURE,
    modern_bert::ARCHITECTURE,
];

/// A model: what its keys say, and its graph.
#[derive(Clone, Debug)]
pub struct Model {
    /// Hyperparameters.
    pub hyper: Hyper,
    /// The graph: one function, `step`.
    pub module: Module,
    /// What it gives of the rows that are wanted.
    pub output: Output,
}

/// What a graph gives of the rows that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Logits.
    Logits,
    /// Hidden states behind the last norm, as the output matrix takes them.
    Hidden {
        /// How those of a text become one vector, where the file says it.
        pooling: Option<Pooling>,
        /// Whether vectors have length 1; otherwise they keep the length of what was pooled.
        unit: bool,
    },
    /// Sums over rows' experts, in a function for each layer: what [`ixc_ir::graph::expert_layers`] leaves of a model.
    Experts,
}

/// Which parts of a model its graph has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Layers, from the first on.
    pub layers: usize,
    /// Whether it ends with the output matrix, so that it gives logits, or before it.
    pub head: bool,
    /// What of guessing by its own layers.
    pub nextn: Nextn,
}

/// What a graph has of guessing by the model's own layers ("nextn", multi-token prediction). Such a layer takes a token and the hidden state of the one before it,
/// and guesses the token behind: a function `step` with a fourth parameter.
///
/// ```text
/// func @step(%ids: i32[T], %pos: i32[T], %rows: i32[L], %hidden: f32[T, 256]) -> (f32[L, 4096], f32[T, 256]) {
///   %4 = embed %ids, @token_embd.weight
///   %5 = rms_norm %4, @blk.4.nextn.enorm.weight
///   %6 = rms_norm %hidden, @blk.4.nextn.hnorm.weight
///   %7 = concat %5, %6
///   %8 = matmul %7, @blk.4.nextn.eh_proj.weight          and a layer as the model's, with keys and values of its own
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nextn {
    /// Nothing.
    #[default]
    Absent,
    /// The model gives hidden states of all tokens, beside the logits of those that are wanted.
    Fed,
    /// The first such layer alone, which gives hidden states for its next guess.
    Alone,
}

impl Parts {
    /// All of it.
    pub const ALL: Parts = Parts { layers: usize::MAX, head: true, nextn: Nextn::Absent };
}

/// Opens a model: a GGUF file, or a folder of safetensors. Adds tensors that older files have in another form ([`complete`]).
///
/// # Errors
/// When it is missing, malformed, or of an unsupported kind.
pub fn open(path: &Path) -> Result<Gguf, CheckpointError> {
    Ok(complete(ixc_model_files::open(path)?)?)
}

/// The model with the tensors that its architecture takes and its files, older ones, lack but have in another form.
///
/// # Errors
/// When these are of another shape than keys say.
pub fn complete(gguf: Gguf) -> Result<Gguf, GgufError> {
    let name = gguf.metadata().read_optional::<&str>("general.architecture")?;
    let Some(architecture) = ARCHITECTURES.iter().find(|row| Some(row.name) == name) else { return Ok(gguf) };
    let made = (architecture.defaults.made)(&gguf, architecture.name)?;
    let gguf = gguf.with(made)?;
    if architecture.defaults.embeds_by_output { gguf.with_same("token_embd.weight", "output.weight") } else { Ok(gguf) }
}

/// What quantisers leave alone of a model of this architecture; of those that are not known, nothing.
pub fn precise(architecture: &str) -> Precise {
    let known = ARCHITECTURES.iter().find(|row| row.name == architecture);
    known.map_or(Defaults::USUAL.precise, |row| row.defaults.precise)
}

/// Builds the graph of the model in `gguf`.
///
/// # Errors
/// When the architecture is unknown, a key or tensor is missing or impossible, or a tensor's type has no format.
pub fn build(gguf: &Gguf) -> Result<Model, ArchError> {
    build_parts(gguf, Parts::ALL)
}

/// Builds the graph of parts of it. The first layers, between the embedding and the output matrix of the whole model, compute what means nothing,
/// and take the time of so many layers.
///
/// # Errors
/// As [`build`].
pub fn build_parts(gguf: &Gguf, parts: Parts) -> Result<Model, ArchError> {
    let Parts { layers, head, nextn } = parts;
    let name: &str = gguf.metadata().read("general.architecture")?;
    let architecture = ARCHITECTURES.iter().find(|row| row.name == name).ok_or_else(|| {
        let (path, found) = (gguf.metadata().path().into(), name.into());
        ArchError::UnknownArchitecture { path, found, known: ARCHITECTURES.iter().map(|row| row.name).collect() }
    })?;
    let mut hyper = Hyper::read(gguf, architecture.name, architecture.defaults, nextn == Nextn::Alone)?;
    if head && !hyper.causal {
        return Err(ArchError::NotCausal { path: gguf.metadata().path().into(), architecture: architecture.name });
    }
    let guessing = match nextn {
        Nextn::Absent => Guessing::None,
        Nextn::Fed => Guessing::Fed(guess_from(gguf, architecture, &hyper)?),
        Nextn::Alone => Guessing::Alone(guess_from(gguf, architecture, &hyper)?),
    };
    let whole = hyper.layers.len() <= layers;
    hyper.layers.truncate(layers);
    let mut builder = Builder::new(gguf, &hyper, architecture.name, (head, guessing));
    let result = (architecture.build)(&mut builder)?;
    let module = builder.finish(result, whole)?;
    let output = match head {
        true => Output::Logits,
        false => Output::Hidden { pooling: pooling(gguf, architecture.name)?, unit: unit(gguf, architecture.name)? },
    };
    Ok(Model { hyper, module, output })
}

/// What the model's own layers guess from, where it has some that can be built.
fn guess_from(gguf: &Gguf, architecture: &Architecture, hyper: &Hyper) -> Result<GuessFrom, ArchError> {
    let refused = |problem| Err(ArchError::Nextn { path: gguf.metadata().path().into(), problem });
    // Files may count layers that they do not have.
    let is_of_one = |name: &str| name.ends_with(".nextn.eh_proj.weight");
    if hyper.draft_layers == 0 || !gguf.tensors().any(|tensor| is_of_one(tensor.name())) {
        return refused(NextnProblem::None);
    }
    if hyper.layers.iter().any(|layer| layer.recurrent) || hyper.compressed.is_some() || hyper.ngrams.is_some() {
        return refused(NextnProblem::Recurrent);
    }
    match architecture.defaults.guess_from {
        Some(from) => Ok(from),
        None => {
            let known = ARCHITECTURES.iter().filter(|row| row.defaults.guess_from.is_some());
            let known = known.map(|row| row.name).collect();
            refused(NextnProblem::Architecture { architecture: architecture.name, known })
        }
    }
}

/// Returns whether vectors have length 1: of GGUF files always, of folders as `modules.json` says.
fn unit(gguf: &Gguf, architecture: &str) -> Result<bool, GgufError> {
    gguf.metadata().read_or(&format!("{architecture}.embedding_normalized"), true)
}

/// What `ARCHITECTURE.pooling_type` says, in llama.cpp's numbers: 0 is none.
fn pooling(gguf: &Gguf, architecture: &str) -> Result<Option<Pooling>, GgufError> {
    let key = format!("{architecture}.pooling_type");
    Ok(match gguf.metadata().read_or(&key, 0u32)? {
        0 => None,
        1 => Some(Pooling::Mean),
        2 => Some(Pooling::First),
        3 => Some(Pooling::Last),
        other => return Err(gguf.metadata().bad_value(&key, other, "0 to 3 (none, mean, cls, last)")),
    })
}
