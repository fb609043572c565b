//! A model in several files, made from a model in one file.

use std::path::{Path, PathBuf};

use ixc::model_files::gguf::Gguf;
use ixc::model_files::gguf::write::GgufWriter;

/// Splits a model into two files with half of the tensors each. Returns their paths; the first is
/// `PATH-00001-of-00002.gguf`.
pub fn split(path: &Path, model: &Gguf) -> [PathBuf; 2] {
    let tensors: Vec<_> = model.tensors().collect();
    let halves = tensors.split_at(tensors.len() / 2);
    let mut paths = [PathBuf::new(), PathBuf::new()];
    for (number, tensors) in [halves.0, halves.1].into_iter().enumerate() {
        let mut writer = GgufWriter::new();
        if number == 0 {
            writer = model.metadata().iter().fold(writer, |writer, (key, value)| writer.key(key, value.clone()));
        }
        writer = writer.key("split.no", number as u32).key("split.count", 2u32);
        for tensor in tensors {
            let data = model.tensor_data(tensor).to_vec();
            writer = writer.tensor(tensor.name(), tensor.tensor_type().id, tensor.dims(), data);
        }
        let mut name = path.as_os_str().to_owned();
        name.push(format!("-{:05}-of-00002.gguf", number + 1));
        paths[number] = name.into();
        std::fs::write(&paths[number], writer.finish()).unwrap();
    }
    paths
}
