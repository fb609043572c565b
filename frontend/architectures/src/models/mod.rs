//! Registry of architectures, grouped by family. Each file has one architecture, and its module
//! comment lists the differences from other architectures.

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

use crate::architecture::{Architecture, Family};

/// All supported architectures, by family. Families with only one architecture come last.
pub static FAMILIES: &[Family] = &[
    Family {
        name: "Llama (Meta)",
        architectures: &[
            llama::ARCHITECTURE,
            llama4::ARCHITECTURE,
            cwm::ARCHITECTURE,
            muse_glimmer::ARCHITECTURE,
            chameleon::ARCHITECTURE,
            opt::ARCHITECTURE,
        ],
    },
    Family {
        name: "Qwen (Alibaba)",
        architectures: &[
            qwen::ARCHITECTURE,
            qwen2::ARCHITECTURE,
            qwen2moe::ARCHITECTURE,
            qwen2vl::ARCHITECTURE,
            qwen3::ARCHITECTURE,
            qwen3moe::ARCHITECTURE,
            qwen3vl::ARCHITECTURE,
            qwen3vlmoe::ARCHITECTURE,
            qwen3next::ARCHITECTURE,
            qwen35::ARCHITECTURE,
            qwen35moe::ARCHITECTURE,
            qwen4exp::ARCHITECTURE,
        ],
    },
    Family {
        name: "Gemma (Google)",
        architectures: &[
            gemma::ARCHITECTURE,
            gemma2::ARCHITECTURE,
            gemma3::ARCHITECTURE,
            gemma3n::ARCHITECTURE,
            gemma4::ARCHITECTURE,
            vaultgemma::ARCHITECTURE,
            gemma_embedding::ARCHITECTURE,
        ],
    },
    Family {
        name: "DeepSeek",
        architectures: &[
            deepseek::ARCHITECTURE,
            deepseek2::ARCHITECTURE,
            deepseek2_ocr::ARCHITECTURE,
            deepseek32::ARCHITECTURE,
            deepseek4::ARCHITECTURE,
        ],
    },
    Family {
        name: "GLM (Z.ai)",
        architectures: &[
            chatglm::ARCHITECTURE,
            glm4::ARCHITECTURE,
            glm4moe::ARCHITECTURE,
            glm_dsa::ARCHITECTURE,
            glm5_next::ARCHITECTURE,
            cogvlm::ARCHITECTURE,
        ],
    },
    Family {
        name: "Mistral",
        architectures: &[mistral3::ARCHITECTURE, mistral4::ARCHITECTURE, mistral_large4::ARCHITECTURE],
    },
    Family { name: "Kimi (Moonshot AI)", architectures: &[kimi_linear::ARCHITECTURE, kimi_k3::ARCHITECTURE] },
    Family {
        name: "MiniMax",
        architectures: &[minimax_01::ARCHITECTURE, minimax_m2::ARCHITECTURE, minimax_m3::ARCHITECTURE],
    },
    Family {
        name: "GPT (OpenAI, EleutherAI)",
        architectures: &[
            gpt2::ARCHITECTURE,
            gptj::ARCHITECTURE,
            gptneo::ARCHITECTURE,
            gptneox::ARCHITECTURE,
            gpt_oss::ARCHITECTURE,
        ],
    },
    Family {
        name: "Phi and BitNet (Microsoft)",
        architectures: &[
            phi2::ARCHITECTURE,
            phi3::ARCHITECTURE,
            phimoe::ARCHITECTURE,
            bitnet::ARCHITECTURE,
            bitnet_b1_58::ARCHITECTURE,
        ],
    },
    Family {
        name: "Granite (IBM)",
        architectures: &[
            granite::ARCHITECTURE,
            granitemoe::ARCHITECTURE,
            granitehybrid::ARCHITECTURE,
            granite_swa::ARCHITECTURE,
        ],
    },
    Family {
        name: "Nemotron (NVIDIA)",
        architectures: &[
            nemotron::ARCHITECTURE,
            nemotron_h::ARCHITECTURE,
            nemotron_h_moe::ARCHITECTURE,
            deci::ARCHITECTURE,
        ],
    },
    Family {
        name: "OLMo (Ai2)",
        architectures: &[olmo::ARCHITECTURE, olmo2::ARCHITECTURE, olmo_hybrid::ARCHITECTURE, olmoe::ARCHITECTURE],
    },
    Family {
        name: "Hunyuan (Tencent)",
        architectures: &[
            hunyuan_dense::ARCHITECTURE,
            hunyuan_moe::ARCHITECTURE,
            hunyuan_vl::ARCHITECTURE,
            hy_v3::ARCHITECTURE,
            hy_v4::ARCHITECTURE,
        ],
    },
    Family {
        name: "ERNIE (Baidu)",
        architectures: &[ernie4_5::ARCHITECTURE, ernie4_5_moe::ARCHITECTURE, paddleocr::ARCHITECTURE],
    },
    Family {
        name: "Ling (Ant Group)",
        architectures: &[
            bailingmoe::ARCHITECTURE,
            bailingmoe2::ARCHITECTURE,
            bailingmoe3::ARCHITECTURE,
            grovemoe::ARCHITECTURE,
        ],
    },
    Family {
        name: "EXAONE (LG)",
        architectures: &[exaone::ARCHITECTURE, exaone4::ARCHITECTURE, exaone_moe::ARCHITECTURE],
    },
    Family {
        name: "Command (Cohere)",
        architectures: &[command_r::ARCHITECTURE, cohere2::ARCHITECTURE, cohere2moe::ARCHITECTURE],
    },
    Family { name: "LFM (Liquid AI)", architectures: &[lfm2::ARCHITECTURE, lfm2moe::ARCHITECTURE, lfm3::ARCHITECTURE] },
    Family { name: "Falcon (TII)", architectures: &[falcon::ARCHITECTURE, falcon_h1::ARCHITECTURE] },
    Family { name: "Trinity and AFM (Arcee AI)", architectures: &[arcee::ARCHITECTURE, afmoe::ARCHITECTURE] },
    Family { name: "MiniCPM (OpenBMB)", architectures: &[minicpm::ARCHITECTURE, minicpm3::ARCHITECTURE] },
    Family {
        name: "PLaMo (Preferred Networks)",
        architectures: &[plamo::ARCHITECTURE, plamo2::ARCHITECTURE, plamo3::ARCHITECTURE],
    },
    Family { name: "Jais (Inception)", architectures: &[jais::ARCHITECTURE, jais2::ARCHITECTURE] },
    Family { name: "dots (Xiaohongshu)", architectures: &[dots1::ARCHITECTURE, dots3note::ARCHITECTURE] },
    Family {
        name: "StarCoder and other models for code",
        architectures: &[
            starcoder::ARCHITECTURE,
            starcoder2::ARCHITECTURE,
            refact::ARCHITECTURE,
            codeshell::ARCHITECTURE,
            maincoder::ARCHITECTURE,
            mellum::ARCHITECTURE,
        ],
    },
    Family {
        name: "Mamba and Jamba",
        architectures: &[mamba::ARCHITECTURE, mamba2::ARCHITECTURE, jamba::ARCHITECTURE],
    },
    Family {
        name: "RWKV",
        architectures: &[rwkv6::ARCHITECTURE, rwkv6qwen2::ARCHITECTURE, rwkv7::ARCHITECTURE, arwkv7::ARCHITECTURE],
    },
    Family {
        name: "BERT and other encoders",
        architectures: &[
            bert::ARCHITECTURE,
            nomic_bert::ARCHITECTURE,
            eurobert::ARCHITECTURE,
            modern_bert::ARCHITECTURE,
        ],
    },
    Family {
        name: "Other",
        architectures: &[
            apertus::ARCHITECTURE,
            arctic::ARCHITECTURE,
            axk1::ARCHITECTURE,
            baichuan::ARCHITECTURE,
            bloom::ARCHITECTURE,
            dbrx::ARCHITECTURE,
            flint::ARCHITECTURE,
            grok::ARCHITECTURE,
            hrm_text::ARCHITECTURE,
            hyperclovax::ARCHITECTURE,
            internlm2::ARCHITECTURE,
            laguna::ARCHITECTURE,
            longcat_flash::ARCHITECTURE,
            maple::ARCHITECTURE,
            mimo2::ARCHITECTURE,
            mpt::ARCHITECTURE,
            nanbeige::ARCHITECTURE,
            nanochat::ARCHITECTURE,
            openelm::ARCHITECTURE,
            orion::ARCHITECTURE,
            pangu_embed::ARCHITECTURE,
            plm::ARCHITECTURE,
            seed_oss::ARCHITECTURE,
            smallthinker::ARCHITECTURE,
            smollm3::ARCHITECTURE,
            spark2_5::ARCHITECTURE,
            stablelm::ARCHITECTURE,
            step35::ARCHITECTURE,
            talkie::ARCHITECTURE,
            xverse::ARCHITECTURE,
        ],
    },
];

/// Returns all supported architectures.
pub fn architectures() -> impl Iterator<Item = &'static Architecture> {
    FAMILIES.iter().flat_map(|family| family.architectures)
}
