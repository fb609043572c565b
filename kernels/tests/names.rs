//! Checks that generators, the lowering and the runtime name no block format. They must read the
//! meaning of a format's bytes from its codec.

use std::path::{Path, PathBuf};

use ixc_ir::format::{FORMATS, Format};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn no_source_file_names_a_block_format() {
    let names: Vec<String> =
        FORMATS.iter().filter(|row| row.format != Format::F32).map(|row| format!("Format::{:?}", row.format)).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut files, mut wrong) = (Vec::new(), Vec::new());
    for folder in [
        "kernels/src",
        "codegen/src",
        "passes/src",
        "runtime/src",
        "frontend/model_files/src",
        "frontend/architectures/src",
    ] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 100, "{} files", files.len());
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        // Code before the first test module is checked. Tests are at the end of a file, or in
        // separate files.
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = product.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
        let named = lines.filter(|(_, line)| {
            names.iter().any(|name| {
                line.match_indices(name.as_str()).any(|(at, name)| {
                    !line[at + name.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
                })
            })
        });
        wrong.extend(named.map(|(number, line)| format!("{}:{}: {}", file.display(), number + 1, line.trim())));
    }
    wrong.retain(|line| !line.contains("/tests/") && !line.contains("/tests.rs"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
