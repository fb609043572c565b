//! A small valid model, and methods to change it.

use ixc_architectures::{ArchError, Parts};
use ixc_failure::Class;
use ixc_model_files::gguf::Gguf;
use ixc_model_files::gguf::write::GgufWriter;

/// Small model of architecture `llama`. It has two layers, width 8, 4 query heads of length 2, 2
/// key heads, network width 16, and a vocabulary of 5 tokens.
pub struct Small {
    pub keys: Vec<(&'static str, ixc_model_files::gguf::Value)>,
    pub tensors: Vec<(String, u32, Vec<u64>)>,
}

pub fn small() -> Small {
    let mut tensors =
        vec![("token_embd.weight".to_owned(), 0, vec![8, 5]), ("output_norm.weight".to_owned(), 0, vec![8])];
    for layer in 0..2 {
        let parts: [(&str, &[u64]); 9] = [
            ("attn_norm", &[8]),
            ("attn_q", &[8, 8]),
            ("attn_k", &[8, 4]),
            ("attn_v", &[8, 4]),
            ("attn_output", &[8, 8]),
            ("ffn_norm", &[8]),
            ("ffn_gate", &[8, 16]),
            ("ffn_up", &[8, 16]),
            ("ffn_down", &[16, 8]),
        ];
        tensors.extend(parts.map(|(part, dims)| (format!("blk.{layer}.{part}.weight"), 0, dims.to_vec())));
    }
    let keys = vec![
        ("general.architecture", "llama".into()),
        ("llama.block_count", 2u32.into()),
        ("llama.context_length", 64u32.into()),
        ("llama.embedding_length", 8u32.into()),
        ("llama.feed_forward_length", 16u32.into()),
        ("llama.attention.head_count", 4u32.into()),
        ("llama.attention.head_count_kv", 2u32.into()),
        ("llama.attention.layer_norm_rms_epsilon", 1e-5f32.into()),
    ];
    Small { keys, tensors }
}

impl Small {
    pub fn key(mut self, key: &'static str, value: impl Into<ixc_model_files::gguf::Value>) -> Small {
        self.keys.retain(|(name, _)| *name != key);
        self.keys.push((key, value.into()));
        self
    }

    pub fn tensor(mut self, name: &str, type_id: u32, dims: &[u64]) -> Small {
        self.tensors.retain(|(other, ..)| other != name);
        self.tensors.push((name.to_owned(), type_id, dims.to_vec()));
        self
    }

    pub fn without(mut self, name: &str) -> Small {
        self.keys.retain(|(key, _)| *key != name);
        self.tensors.retain(|(tensor, ..)| tensor != name);
        self
    }

    pub fn build(self) -> Result<ixc_architectures::Model, ArchError> {
        self.build_parts(Parts::ALL)
    }

    pub fn build_parts(self, parts: Parts) -> Result<ixc_architectures::Model, ArchError> {
        let writer = self.keys.into_iter().fold(GgufWriter::new(), |writer, (key, value)| writer.key(key, value));
        let writer = self.tensors.into_iter().fold(writer, |writer, (name, id, dims)| {
            let ty = ixc_model_files::gguf::TensorType::from_id(id).unwrap();
            writer.zero_tensor(&name, ty, &dims)
        });
        ixc_architectures::build_parts(&Gguf::from_bytes("m.gguf".as_ref(), writer.finish()).unwrap(), parts)
    }

    /// Returns the message of the error when the model is built, without the file's name.
    pub fn refused(self) -> String {
        self.refused_parts(Parts::ALL)
    }

    pub fn refused_parts(self, parts: Parts) -> String {
        let error = self.build_parts(parts).unwrap_err();
        assert_eq!(error.class(), Class::Data);
        error.to_string().strip_prefix("m.gguf: ").unwrap().to_owned()
    }
}

/// Returns the small model as another architecture, with additional `keys` of that architecture.
pub fn as_architecture(name: &'static str, keys: &[(&str, ixc_model_files::gguf::Value)]) -> Small {
    let own = small().keys.into_iter().map(|(key, value)| match key.strip_prefix("llama.") {
        Some(part) => (&*format!("{name}.{part}").leak(), value),
        None => (key, value),
    });
    let model = Small { keys: own.collect(), ..small() }.key("general.architecture", name);
    keys.iter().fold(model, |model, (key, value)| model.key(format!("{name}.{key}").leak(), value.clone()))
}
