//! Registry of architectures. Each file is one architecture. Its module comment lists the
//! differences from other architectures.

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
mod deepseek;
mod deepseek2;
mod deepseek2_ocr;
mod deepseek32;
mod deepseek4;
mod dots1;
mod dots3note;
mod ernie4_5;
mod ernie4_5_moe;
mod eurobert;
mod exaone;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
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
mod hyperclovax;
mod internlm2;
mod jais;
mod jais2;
mod jamba;
mod kimi_k3;
mod kimi_linear;
mod laguna;
mod lfm2;
mod lfm2moe;
mod lfm3;
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
mod modern_bert;
mod mpt;
mod muse_glimmer;
mod nanbeige;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod nemotron_h_moe;
mod nomic_bert;
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
mod smallthinker;
mod smollm3;
mod spark2_5;
mod stablelm;
mod starcoder;
mod starcoder2;
mod step35;
mod talkie;
mod vaultgemma;
mod xverse;

use crate::architecture::Architecture;

/// All supported architectures.
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
