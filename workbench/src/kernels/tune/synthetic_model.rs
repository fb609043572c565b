//! Model of one product, for a spec that belongs to no model. Each layer multiplies a row of
//! activations with a weight of the spec's shape. A product of gate and up is followed by another
//! product, which gives their result the width of the input again.
//!
//! ```text
//! %1 = embed %ids, @token_embd             f32[T, k]
//! %2 = quantise %1                         in the format that the weight takes
//! %3 = linear %2, @blk.0.w, _, _           f32[T, n]
//! %4 = linear %2, @blk.1.w, _, %3          each adds to the one before it, as layers do
//! ```
//!
//! The weights are bytes of a file in the system's temporary folder. The file is deleted as soon as
//! the engine has mapped it.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ixc_compile::Error as CompileError;
use ixc_files::private_files::create_own;
use ixc_ir::format::{FORMATS, Format};
use ixc_ir::graph::Module;
use ixc_ir::graph::parse::parse;
use ixc_ir::plan::{Plan, SourceFile};
use ixc_kernels::catalogue::inputs;
use ixc_kernels::cut::ProductCut;
use ixc_kernels::{KernelSpec, Swiglu};
use ixc_passes::manager::{Ir, Stop, run_watched};
use ixc_passes::options::OptionSet;
use ixc_passes::pass::{Context, GraphResult, PlanProperties};
use ixc_passes::tuned::{TunedChoice, TunedChoices};
use ixc_passes::{pack, tile};
use ixc_runtime::engine::{self, Engine};
use ixc_targets::{CoreCaches, Target};
use ixc_text::tokenizer::TokenizerSpec;

use super::steps::Steps;
use crate::Error;
use crate::kernels::KernelError;
use crate::kernels::bench::MemoryLevel;
use ixc_compile::compile::{encode_tokenizer, with_kernels};
use ixc_compile::machine::bandwidth;

/// Rows of the embedding table.
const VOCABULARY: u64 = 64;
/// Start of the file, before the weights. It begins like GGUF, because the runtime opens no other
/// file.
const HEADER: &[u8; 4096] = &{
    let mut header = [b'x'; 4096];
    [header[0], header[1], header[2], header[3]] = *b"GGUF";
    header
};
/// Number of different weight rows.
const ROWS: u64 = 64;
/// Max bytes of packed weights.
const MAX_BYTES: u64 = 1 << 30;
/// Max multiply-adds of a step, as long as the number of layers can be reduced.
const MAX_PRODUCTS: u64 = 1 << 33;
/// Min number of layers. With two, a layer begins when another one ends, as in a whole model.
const MIN_LAYERS: u64 = 2;
/// Max number of layers.
const MAX_LAYERS: u64 = 1024;

/// Weight in the format of the kernels, and in the format of the file.
struct Matrix {
    name: &'static str,
    layout: Format,
    x: Format,
    shape: [u64; 2],
    offset: u64,
    /// Distance from one layer to the next; 0 if each layer is packed into separate memory.
    stride: u64,
}

impl Matrix {
    /// Returns the format of the weight, and the format in the file.
    fn formats(&self) -> [Format; 2] {
        let format = self.layout.unpacked_format().unwrap_or(self.layout);
        [format, if format.is_in_files() { format } else { Format::F16 }]
    }

    fn bytes(&self, format: Format) -> Option<u64> {
        format.row_bytes(self.shape[1])?.checked_mul(self.shape[0])
    }
}

/// The synthetic model.
pub(super) struct SyntheticModel {
    module: Module,
    file: SourceFile,
    /// Max rows of a step.
    rows: u32,
    target: Target,
    caches: CoreCaches,
    tokenizer: Vec<u8>,
}

/// File that is deleted on drop.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing else can be done if the file cannot be deleted.
        let _ = fs::remove_file(&self.0);
    }
}

/// Creates the steps of a synthetic model, for at most `rows` rows of activations.
///
/// # Errors
/// If no model can have this shape, there is not enough memory, or the file cannot be written.
pub(super) fn steps(
    spec: &KernelSpec,
    target: Target,
    caches: &CoreCaches,
    place: MemoryLevel,
    rows: u32,
    options: &engine::EngineOptions,
) -> Result<Steps<'static>, Error> {
    let refused = |why: &str| KernelError::NotTuned { spec: spec.to_string(), why: why.to_owned() };
    let mut matrices = matrices(spec).ok_or_else(|| refused("it is not a product with a weight"))?;
    let too_large = || refused("its weight is too large");
    let packed = |matrix: &Matrix| matrix.bytes(matrix.layout.unpacked_format().unwrap_or(matrix.layout));
    let bytes = matrices.iter().try_fold(0u64, |sum, matrix| sum.checked_add(packed(matrix)?)).ok_or_else(too_large)?;
    let products =
        matrices.iter().fold(0u64, |sum, matrix| sum.saturating_add(matrix.shape[0].saturating_mul(matrix.shape[1])));
    let wanted = match place {
        MemoryLevel::Caches => MIN_LAYERS,
        // There are more weights than a cache holds.
        MemoryLevel::Memory => (bandwidth::BUFFER_BYTES as u64).div_ceil(bytes.max(1)),
    };
    let by_time = MAX_PRODUCTS / products.saturating_mul(rows.into()).max(1);
    let layers = wanted.min(if rows == 1 { MAX_LAYERS } else { by_time }).clamp(MIN_LAYERS, MAX_LAYERS);
    if bytes.saturating_mul(layers) > MAX_BYTES {
        return Err(too_large().into());
    }
    let path = temporary();
    let path_text = path.to_str().ok_or_else(|| CompileError::PathNotUtf8 { path: path.clone() })?.to_owned();
    let failed = |error| Error::io(&path, "write")(error);
    let mut file = create_own(&path).map_err(failed)?;
    let _file_guard = Temporary(path.clone());
    file.write_all(HEADER).map_err(failed)?;
    let k = matrices[0].shape[1];
    let table = inputs::blocks(Format::F32, (VOCABULARY * k * 4) as usize, 0);
    file.write_all(&table).map_err(failed)?;
    let mut end = (HEADER.len() + table.len()) as u64;
    for (number, matrix) in matrices.iter_mut().enumerate() {
        let [format, stored] = matrix.formats();
        let row = stored.row_bytes(matrix.shape[1]).ok_or_else(|| refused("its columns are not whole blocks"))?;
        let some = inputs::blocks(stored, (row * ROWS.min(matrix.shape[0])) as usize, 1 + number as u64);
        (matrix.offset, matrix.stride) = (end, 0);
        let own = if matrix.layout == format { layers } else { 1 };
        for _ in 0..own {
            let mut left = usize::try_from(row.saturating_mul(matrix.shape[0])).unwrap_or(usize::MAX);
            while left > 0 {
                let part = &some[..left.min(some.len())];
                file.write_all(part).map_err(failed)?;
                (left, end) = (left - part.len(), end + part.len() as u64);
            }
            // Blocks are aligned like tensors.
            let pad = end.next_multiple_of(64) - end;
            file.write_all(&[0; 64][..pad as usize]).map_err(failed)?;
            end += pad;
        }
        if own > 1 {
            matrix.stride = (end - matrix.offset) / layers;
        }
    }
    // A plan packs at most the bytes in its files. The space after the weights is a hole, which
    // takes no space on the drive.
    end = end.saturating_add(bytes.saturating_mul(layers));
    file.set_len(end).map_err(failed)?;
    let header_bytes = HEADER.len() as u64;
    let file = SourceFile { path: path_text, bytes: end, header_crc: crc32fast::hash(HEADER), header_bytes };
    let module = module(&matrices, layers).map_err(|why| refused(&why))?;
    let tokenizer = encode_tokenizer(&TokenizerSpec::default())?;
    let model = SyntheticModel { module, file, rows, target, caches: *caches, tokenizer };
    let own = model.plan(&[])?;
    let options = engine::EngineOptions { stats: true, context: None, ..options.clone() };
    let engine = Engine::load(with_kernels(own.clone(), target)?, Path::new(""), &options)?;
    Steps::new(engine, own, Box::new(move |choices| model.plan(choices)))
}

fn temporary() -> PathBuf {
    static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("ixc-tune-{}-{number}", std::process::id()))
}

/// Returns the weights of a layer.
fn matrices(spec: &KernelSpec) -> Option<Vec<Matrix>> {
    let ProductCut { weight, .. } = ProductCut::from_spec(spec)?;
    let matrix = |name, layout, x, shape| Matrix { name, layout, x, shape, offset: 0, stride: 0 };
    let shape = [weight.n, weight.k];
    let KernelSpec::Swiglu(Swiglu { gate, up, x, out, .. }) = *spec else {
        return Some(vec![matrix("w", weight.format, weight.x, shape)]);
    };
    let takes = |layout: Format| {
        [Some(layout.activation()), layout.tile_activation(), layout.pair_activation()].contains(&Some(out))
    };
    let all = FORMATS.iter().map(|row| row.format).filter(|format| format.unpacked_format().is_some());
    let down = [gate].into_iter().chain(all).find(|layout| takes(*layout))?;
    Some(vec![
        matrix("gate", gate, x, shape),
        matrix("up", up, x, shape),
        matrix("down", down, out, [weight.k, weight.n]),
    ])
}

fn module(matrices: &[Matrix], layers: u64) -> Result<Module, String> {
    let [n, k] = matrices[0].shape;
    let mut text =
        format!("weight @token_embd.weight : f32[{VOCABULARY}, {k}] {{file = 0, offset = {:#x}}}\n", HEADER.len());
    for layer in 0..layers {
        for matrix in matrices {
            let ([format, _], [n, k]) = (matrix.formats(), matrix.shape);
            let offset = matrix.offset + layer * matrix.stride;
            let name = matrix.name;
            let _ =
                writeln!(text, "weight @blk.{layer}.{name} : {format}[{n}, {k}] {{file = 0, offset = {offset:#x}}}");
        }
    }
    let x = matrices[0].layout.activation();
    let (width, mut next) = (if matrices.len() > 1 { k } else { n }, 3);
    let _ = writeln!(text, "func @step(%ids: i32[T], %pos: i32[T], %rows: i32[L]) -> (f32[L, {width}]) {{");
    let _ = writeln!(text, "  %0 = embed %ids, @token_embd.weight : f32[T, {k}]");
    let quantise = |text: &mut String, from: &str, to: &str| {
        let _ = writeln!(text, "  %{to} = quantise %{from} {{format = {x}}} : {x}[T, {k}]");
    };
    let mut stream = "0".to_owned();
    if matrices.len() == 1 {
        quantise(&mut text, "0", "q");
    }
    for layer in 0..layers {
        let name = next.to_string();
        if let [_, _, down] = matrices {
            let out = down.layout.activation();
            quantise(&mut text, &stream, &format!("q{layer}"));
            let _ = writeln!(
                text,
                "  %g{layer} = linear.swiglu %q{layer}, @blk.{layer}.gate, @blk.{layer}.up, _, _ {{act = silu, limit = 0.0, shift = 0.0, format = {out}}} : {out}[T, {n}]"
            );
            let _ = writeln!(text, "  %{name} = linear %g{layer}, @blk.{layer}.down, _, %{stream} : f32[T, {k}]");
        } else {
            let before = if layer == 0 { "_".to_owned() } else { format!("%{stream}") };
            let _ = writeln!(text, "  %{name} = linear %q, @blk.{layer}.w, _, {before} : f32[T, {n}]");
        }
        stream = name;
        next += 1;
    }
    let _ = writeln!(text, "  %out = take_rows %{stream}, %rows : f32[L, {width}]\n  return %out\n}}");
    let mut module = parse(&text).map_err(|error| format!("no model can be made of it: {error}"))?;
    let all = (0..layers).flat_map(|_| matrices);
    for (weight, matrix) in module.weights.iter_mut().skip(1).zip(all) {
        let [format, stored] = matrix.formats();
        weight.choice.stored = (stored != format).then_some(stored);
        weight.choice.layout = (matrix.layout != format).then_some(matrix.layout);
        weight.choice.activations = (matrix.x != matrix.layout.activation()).then_some(matrix.x);
    }
    Ok(module)
}

impl SyntheticModel {
    /// Returns the plan with these choices.
    fn plan(&self, choices: &[TunedChoice]) -> Result<Plan<KernelSpec>, Error> {
        let none: Vec<Vec<u8>> = Vec::new();
        let facts = PlanProperties {
            architecture: "one product".to_owned(),
            max_tokens: self.rows,
            context_length: self.rows.max(1024),
            result_width: 0,
            result: GraphResult::Hidden { vocabulary: VOCABULARY as u32, pooling: None, unit: true },
            files: vec![self.file.clone()],
            derived: Vec::new(),
            tokenizer: self.tokenizer.clone(),
            weights: &none,
        };
        let tile = tile::TileOptions { tuned: TunedChoices(choices.to_vec()), ..tile::TileOptions::default() };
        let context = Context {
            target: self.target,
            caches: self.caches,
            options: OptionSet::default().with(&tile),
            facts: Some(facts),
            decisions: None,
        };
        let stop = Stop { ir: Ir::Graph(self.module.clone()), after: Some(pack::PASS.name) };
        let passes = stop.passes();
        Ok(ixc_compile::compile::plan_of(run_watched(stop.ir, passes, &context, None)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks, for every target and kind of weight, that the plan of the product's model has the
    /// kernel with its tiles.
    #[test]
    fn single_product_model_has_the_tuned_kernel() {
        let specs = [
            "linear format=q4_k_r16 k=512 tile=32 n=512 shape=gemv",
            "linear format=q4_k k=512 tile=32 n=512 shape=gemm",
            "linear format=f32_r16 k=256 tile=32 n=512 shape=gemv",
            "linear format=i8_row_r16 k=512 tile=32 n=512 shape=gemm",
            "swiglu gate=q4_k_r16 up=q4_k_r16 k=512 tile=256 n=512 out=a8_super rows=48 shape=gemm",
            "swiglu gate=q8_0_r16 up=q8_0_r16 k=512 tile=32 n=512 out=a8_small rows=48 shape=gemv",
        ];
        for target in Target::all() {
            for text in specs {
                let spec: KernelSpec = text.parse().unwrap();
                let matrices = matrices(&spec).unwrap();
                let module = module(&matrices, 2).unwrap();
                let file = SourceFile {
                    path: "none".into(),
                    bytes: 1 << 30,
                    header_crc: 0,
                    header_bytes: HEADER.len() as u64,
                };
                let tokenizer = encode_tokenizer(&TokenizerSpec::default()).unwrap();
                let model = SyntheticModel { module, file, rows: 64, target, caches: target.row().caches(), tokenizer };
                let plan = model.plan(&[]).unwrap_or_else(|error| panic!("{text} for {}: {error}", target.name()));
                let wanted = ProductCut::from_spec(&spec).unwrap().weight;
                let found = plan.kernels.iter().filter_map(ProductCut::from_spec).any(|cut| cut.weight == wanted);
                assert!(found, "{text} for {}: {:?}", target.name(), plan.kernels);
            }
        }
    }
}
