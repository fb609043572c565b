//! A handmade plan of a transformer with one layer and routed experts. It contains every kind of
//! step, of buffer source and of input.

use ixc_codegen::artifact::share_artifacts;
use ixc_kernels::generator::blocks;
use ixc_kernels::{
    Attention, AttentionCombine, AttentionPart, Bits, Cache, Combine, Embed, Gather, Heads, KernelSpec, Linear,
    MatmulStrategy, Pace, RmsNorm, RopeAppend, RopeHeads, Route, Score, Scores, Softmax, Swiglu, generate,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::{Activation, RopeStyle};
use ixc_ir::kernel::Kernel;
use ixc_ir::plan::*;
use ixc_targets::Target;

pub const VOCABULARY: u32 = 40;
pub const MAX_TOKENS: u32 = 48;
pub const CONTEXT: u32 = 100;
const N: u32 = 32;
const HEADS: u32 = 2;
const D: u32 = 16;
pub const EXPERTS: u32 = 8;
pub const TOP_K: u32 = 2;
/// First bytes of the model file, before the weights. They are those of a GGUF file, because plans
/// open no other kind of file.
const HEADER: &[u8] = b"GGUF, a header of thirty-five bytes";

/// A temporary folder that is removed when it is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ixc-runtime-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns random numbers from -0.5 to 0.5, made from a seed.
pub fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

/// Formats of the weights in matrix products. All other weights are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// Stored and read as f32.
    F32,
    /// Stored and read as f16.
    F16,
    /// Stored as f16 and packed, if the weight consists of whole strips.
    Packed,
}

struct Maker {
    factors: Factors,
    plan: Plan<KernelSpec>,
    bytes: Vec<u8>,
}

impl Maker {
    fn weight(&mut self, name: &str, shape: &[u32]) -> Source {
        let count = shape.iter().product::<u32>() as usize;
        let offset = self.bytes.len() as u64;
        let values = numbers(self.plan.weights.len() as u64 + 1, count);
        // Norm weights are near 1, so that activations stay in a normal range.
        let base = if shape.len() == 1 { 1.0 } else { 0.0 };
        let values = values.iter().map(|v| v * 0.5 + base);
        let stored = match self.factors {
            Factors::F16 | Factors::Packed if shape.len() > 1 && name != "embed" => Format::F16,
            _ => Format::F32,
        };
        if stored == Format::F16 {
            self.bytes.extend(values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()));
        } else {
            self.bytes.extend(values.flat_map(f32::to_le_bytes));
        }
        self.plan.weights.push(PlanWeight {
            name: name.into(),
            format: if stored == Format::F16 { self.factor(shape[shape.len() - 2]) } else { Format::F32 },
            stored,
            shape: shape.iter().map(|&d| u64::from(d)).collect(),
            file: WeightFile::Source(0),
            offset,
            bytes: (count * stored.block_bytes()) as u64,
        });
        Source::Weight(self.plan.weights.len() as u32 - 1)
    }

    /// Returns the format in which kernels read a weight of `n` rows.
    fn factor(&self, n: u32) -> Format {
        match self.factors {
            Factors::F32 => Format::F32,
            Factors::Packed if n.is_multiple_of(16) => Format::F16R16,
            Factors::F16 | Factors::Packed => Format::F16,
        }
    }

    fn buffer(&mut self, name: &str, words: u32, rows: RowCount) -> BufferId {
        let row_bytes = u64::from(words) * 4;
        let count = u64::from(MAX_TOKENS) * if let RowCount::Routed { top_k } = rows { u64::from(top_k) } else { 1 };
        let offset = self.plan.arena_bytes;
        self.plan.arena_bytes += (row_bytes * count).next_multiple_of(64);
        self.plan.buffers.push(ArenaBuffer { name: name.into(), row_bytes, rows, offset });
        BufferId(self.plan.buffers.len() as u32 - 1)
    }

    fn kernel(&mut self, spec: impl Into<KernelSpec>) -> KernelId {
        self.plan.kernels.push(spec.into());
        KernelId(self.plan.kernels.len() as u32 - 1)
    }

    fn rows(
        &mut self,
        label: &str,
        rows: RowAxis,
        columns: u32,
        spec: impl Into<KernelSpec>,
        dims: &[DimExpr],
        args: Vec<Arg>,
    ) -> Task {
        let kernel = self.kernel(spec);
        let variant =
            Variant { up_to_rows: u32::MAX, row_chunk: 1, kernel, dims: dims.to_vec(), split: None, bands: None };
        Task { label: label.into(), rows, columns, variants: vec![variant], args }
    }

    /// Makes a matrix product. Its columns have 16 weight rows, or 32 if the weight is packed,
    /// provided that the weight has that many. Few rows use `Gemv`, whose columns are divided into
    /// two bands if there are many threads. More rows use `Gemm`.
    fn product(
        &mut self,
        label: &str,
        rows: RowAxis,
        (x, w, residual, y): (BufferId, Source, Option<BufferId>, BufferId),
        n: u32,
    ) -> Task {
        let format = self.factor(n);
        let (tile, band) = tile(format, n);
        let row = N * format.block_bytes() as u32;
        let spec = |strategy, tile| Linear {
            format,
            x: Format::F32,
            k: N,
            tile,
            n,
            bias: false,
            residual: residual.is_some(),
            strategy,
            pace: Pace::default(),
        };
        let (gemv, gemm) =
            (self.kernel(spec(MatmulStrategy::Gemv, tile)), self.kernel(spec(MatmulStrategy::Gemm, tile)));
        let mut strides = vec![0, (band * row).into()];
        strides.extend(residual.map(|_| u64::from(band * 4)));
        strides.extend([(band * 4).into(), 0]);
        let bands = (tile > band).then(|| bands(tile / band, self.kernel(spec(MatmulStrategy::Gemv, band)), strides));
        let column = |buffer| arg(Source::Arena(buffer), n * 4, tile * 4);
        let mut args = vec![arg(Source::Arena(x), N * 4, 0), weight_arg(w, rows, tile * row, n * row)];
        args.extend(residual.map(column));
        args.push(column(y));
        args.push(arg(Source::Scratch, 0, 0));
        Task { label: label.into(), rows, columns: n / tile, variants: variants((gemv, bands), gemm), args }
    }
}

/// Returns how many weight rows a column has, and how many a band has. A band is half a column, if
/// the column has at least two tiles.
fn tile(format: Format, n: u32) -> (u32, u32) {
    let band = if format.rows() > 1 { 16 } else { 8 };
    (if n.is_multiple_of(2 * band) { 2 * band } else { band }, band)
}

fn dims(strategy: MatmulStrategy) -> Vec<DimExpr> {
    strategy.dims().into_iter().filter_map(|dim| dim.value).collect()
}

fn bands(count: u32, kernel: KernelId, strides: Vec<u64>) -> Bands {
    Bands { count, kernel, dims: dims(MatmulStrategy::Gemv), strides }
}

fn variants((gemv, bands): (KernelId, Option<Bands>), gemm: KernelId) -> Vec<Variant> {
    vec![
        Variant { up_to_rows: 5, row_chunk: 5, kernel: gemv, dims: dims(MatmulStrategy::Gemv), split: None, bands },
        Variant {
            up_to_rows: u32::MAX,
            row_chunk: 12,
            kernel: gemm,
            dims: dims(MatmulStrategy::Gemm),
            split: None,
            bands: None,
        },
    ]
}

fn arg(source: Source, row: u32, column: u32) -> Arg {
    Arg { source, offset: 0, row_stride: row.into(), column_stride: column.into(), expert_stride: 0 }
}

fn weight_arg(source: Source, rows: RowAxis, column: u32, expert: u32) -> Arg {
    let expert = if matches!(rows, RowAxis::Routed(_)) { expert } else { 0 };
    Arg { expert_stride: expert.into(), ..arg(source, 0, column) }
}

/// Makes the plan with kernel specs, and the bytes of its model file.
fn specs(factors: Factors) -> (Plan<KernelSpec>, Vec<u8>) {
    let plan = Plan {
        architecture: "tiny".into(),
        target: Target::native().name().into(),
        max_tokens: MAX_TOKENS,
        context_length: CONTEXT,
        vocabulary: VOCABULARY,
        files: Vec::new(),
        derived: Vec::new(),
        weights: Vec::new(),
        own_weight_bytes: 0,
        expert_groups: Vec::new(),
        ropes: vec![RopeTable {
            style: RopeStyle::Neox,
            frequencies: (0..D / 2).map(|i| 100f64.powf(-f64::from(i) / 8.0)).collect(),
            ..RopeTable::still()
        }],
        states: vec![State::paged("kv.0", 1, D, D)],
        buckets: 1,
        buffers: Vec::new(),
        arena_bytes: 0,
        kernels: Vec::new(),
        steps: Vec::new(),
        logits: BufferId(0),
        output: Output::Logits { softmax: KernelId(0) },
        takes: None,
        gives: None,
        expert_layers: Vec::new(),
        ranks: None,
        tokenizer: vec![1, 2, 3],
    };
    let mut m = Maker { factors, plan, bytes: HEADER.to_vec() };
    let (tokens, outputs, routed) = (RowCount::Tokens, RowCount::Outputs, RowCount::Routed { top_k: TOP_K });
    let bucket = BucketId(0);
    let axis = RowAxis::Routed(bucket);
    let eps = Bits::from_value(1e-5);
    let norm = RmsNorm { n: N, eps, out: Format::F32, plain: false };
    let row = N * 4;
    let arena = |buffer, row| arg(Source::Arena(buffer), row, 0);
    let input = |input, row| arg(Source::Input(input), row, 0);
    let mut steps: Vec<Vec<Task>> = Vec::new();

    let table = m.weight("embed", &[VOCABULARY, N]);
    let x0 = m.buffer("x0", N, tokens);
    let embed = Embed { format: Format::F32, rows: VOCABULARY, n: N };
    let args = vec![input(Input::Tokens, 4), arg(table, 0, 0), arena(x0, row)];
    steps.push(vec![m.rows("embed", RowAxis::Tokens, 1, embed, &[], args)]);

    let (w, h) = (m.weight("norm", &[N]), m.buffer("h", N, tokens));
    let args = vec![arena(x0, row), arg(w, 0, 0), arena(h, row)];
    steps.push(vec![m.rows("norm", RowAxis::Tokens, 1, norm, &[], args)]);

    let [wq, wk, wv] = [("q", HEADS * D), ("k", D), ("v", D)].map(|(name, n)| m.weight(name, &[n, N]));
    let [q, k, v] = [("q", HEADS * D), ("k", D), ("v", D)].map(|(name, n)| m.buffer(name, n, tokens));
    steps.push(vec![
        m.product("q", RowAxis::Tokens, (h, wq, None, q), HEADS * D),
        m.product("k", RowAxis::Tokens, (h, wk, None, k), D),
        m.product("v", RowAxis::Tokens, (h, wv, None, v), D),
    ]);

    let qr = m.buffer("qr", HEADS * D, tokens);
    let number = |row| input(Input::Row(row), 4);
    let position =
        || [number(RowInput::PositionBlock), number(RowInput::PositionLane), arg(Source::Rope(0), 0, 0)].into_iter();
    let rope = RopeHeads { heads: HEADS, d: D, dims: D, style: RopeStyle::Neox, norm: None };
    let append = RopeAppend { d: D, dv: D, dims: D, style: RopeStyle::Neox, norm: None, cache: Cache::default() };
    let mut rope_args = vec![arena(q, HEADS * D * 4)];
    rope_args.extend(position());
    rope_args.push(arena(qr, HEADS * D * 4));
    let mut append_args = vec![arena(k, D * 4), arena(v, D * 4)];
    append_args.extend(position());
    append_args.extend(
        [Source::State { state: 0, field: 0 }, Source::State { state: 0, field: 1 }, Source::Scratch]
            .map(|source| arg(source, 0, 0)),
    );
    steps.push(vec![
        m.rows("rope", RowAxis::Tokens, 1, rope, &[blocks::of_cache()], rope_args),
        m.rows("append", RowAxis::Tokens, 1, append, &[blocks::of_cache()], append_args),
    ]);

    let a = m.buffer("a", HEADS * D, tokens);
    // The attention of one token is divided into parts. Up to three tasks that combine them run at
    // the same time.
    let (heads, scores) = (Heads { group: HEADS, d: D, dv: D }, Scores::with_scale(0.25));
    let attention = Attention { heads, scores, key_heads: 1, rows: 3, cache: Cache::default() };
    let dims = [blocks::full(), blocks::masked_blocks(), DimInput::Rows / 3, DimInput::Rows % 3];
    let mut args = vec![arena(qr, HEADS * D * 4), number(RowInput::Positions)];
    args.extend(
        [Source::State { state: 0, field: 0 }, Source::State { state: 0, field: 1 }].map(|source| arg(source, 0, 0)),
    );
    args.extend([arena(a, HEADS * D * 4), arg(Source::Scratch, 0, 0)]);
    let mut attention = m.rows("attention", RowAxis::Tokens, 1, attention, &dims, args);
    attention.variants[0].row_chunk = 3;
    let combine = m.kernel(AttentionCombine { group: HEADS, dv: D, parts: Division::THREADS.parts });
    let one = Variant {
        up_to_rows: 1,
        row_chunk: 1,
        kernel: m.kernel(AttentionPart { heads, scores, cache: Cache::default() }),
        dims: vec![blocks::full(), blocks::masked_blocks(), blocks::first()],
        split: Some(Split {
            argument: 4,
            division: Division::THREADS,
            every: 1,
            leaves: Leaves::Result,
            combine,
            alone: None,
        }),
        bands: None,
    };
    attention.variants.insert(0, one);
    steps.push(vec![attention]);

    let (wo, x1) = (m.weight("o", &[N, N]), m.buffer("x1", N, tokens));
    steps.push(vec![m.product("o", RowAxis::Tokens, (a, wo, Some(x0), x1), N)]);

    let (w, h2) = (m.weight("norm2", &[N]), m.buffer("h2", N, tokens));
    let args = vec![arena(x1, row), arg(w, 0, 0), arena(h2, row)];
    steps.push(vec![m.rows("norm2", RowAxis::Tokens, 1, norm, &[], args)]);

    // The weight of the router has eight rows.
    let (wr, rl) = (m.weight("router", &[8, N]), m.buffer("router logits", 8, tokens));
    steps.push(vec![m.product("router", RowAxis::Tokens, (h2, wr, None, rl), 8)]);

    let (ids, p) = (m.buffer("ids", TOP_K, tokens), m.buffer("p", TOP_K, tokens));
    let route = Route {
        experts: EXPERTS,
        top_k: TOP_K,
        score: Score::Softmax,
        groups: 1,
        kept: 1,
        highest: false,
        bias: false,
        scales: false,
        normalise: true,
        scale: Bits::from_value(1.0),
        listed: 0,
    };
    let args = vec![arena(rl, 32), arena(ids, TOP_K * 4), arena(p, TOP_K * 4), arg(Source::Scratch, 0, 0)];
    steps.push(vec![m.rows("route", RowAxis::Tokens, 1, route, &[], args)]);
    let bucket_at = steps.len();

    let g = m.buffer("g", N, routed);
    let args = vec![input(Input::RoutedToken(bucket), 4), arena(h2, 0), arena(g, row)];
    let gather = Gather { bytes: row };
    steps.push(vec![m.rows("gather", axis, 1, gather, &[DimInput::Tokens.into()], args)]);

    let (gate, up) = (m.weight("gate", &[EXPERTS, N, N]), m.weight("up", &[EXPERTS, N, N]));
    let s = m.buffer("s", N, routed);
    let format = m.factor(N);
    let ((tile, band), factor_row) = (tile(format, N), N * format.block_bytes() as u32);
    let swiglu = |strategy, tile| Swiglu {
        gate: format,
        up: format,
        x: Format::F32,
        k: N,
        tile,
        n: N,
        out: Format::F32,
        rows: 12,
        act: Activation::Silu,
        limit: None,
        shift: None,
        bend: None,
        gate_bias: false,
        up_bias: false,
        strategy,
        pace: Pace::default(),
    };
    let (gemv, gemm) = (m.kernel(swiglu(MatmulStrategy::Gemv, tile)), m.kernel(swiglu(MatmulStrategy::Gemm, tile)));
    let weight_stride = u64::from(band * factor_row);
    let strides = vec![0, weight_stride, weight_stride, (band * 4).into(), 0];
    let bands = Some(bands(tile / band, m.kernel(swiglu(MatmulStrategy::Gemv, band)), strides));
    let args = vec![
        arena(g, row),
        weight_arg(gate, axis, tile * factor_row, N * factor_row),
        weight_arg(up, axis, tile * factor_row, N * factor_row),
        arg(Source::Arena(s), row, tile * 4),
        arg(Source::Scratch, 0, 0),
    ];
    let label = "swiglu".to_string();
    steps.push(vec![Task { label, rows: axis, columns: N / tile, variants: variants((gemv, bands), gemm), args }]);

    let (down, e) = (m.weight("down", &[EXPERTS, N, N]), m.buffer("e", N, routed));
    steps.push(vec![m.product("down", axis, (s, down, None, e), N)]);

    let x2 = m.buffer("x2", N, tokens);
    let combine = Combine { n: N, slots: TOP_K, residual: true };
    let slots = input(Input::RoutedSlot(bucket), TOP_K * 4);
    let args = vec![slots, arena(p, TOP_K * 4), arena(e, 0), arena(x1, row), arena(x2, row)];
    steps.push(vec![m.rows("combine", RowAxis::Tokens, 1, combine, &[DimInput::Tokens * TOP_K], args)]);

    let o = m.buffer("o", N, outputs);
    let args = vec![input(Input::OutputRows, 4), arena(x2, 0), arena(o, row)];
    steps.push(vec![m.rows("outputs", RowAxis::Outputs, 1, gather, &[DimInput::Tokens.into()], args)]);

    let (w, oh) = (m.weight("norm3", &[N]), m.buffer("oh", N, outputs));
    let args = vec![arena(o, row), arg(w, 0, 0), arena(oh, row)];
    steps.push(vec![m.rows("norm3", RowAxis::Outputs, 1, norm, &[], args)]);

    let (head, logits) = (m.weight("head", &[VOCABULARY, N]), m.buffer("logits", VOCABULARY, outputs));
    steps.push(vec![m.product("head", RowAxis::Outputs, (oh, head, None, logits), VOCABULARY)]);

    let softmax = m.kernel(Softmax { n: VOCABULARY });
    m.plan.steps = steps.into_iter().map(|tasks| Step::Run { tasks, alone: 0 }).collect();
    m.plan
        .steps
        .insert(bucket_at, Step::Bucket { bucket, ids, first: 0, top_k: TOP_K, experts: EXPERTS, nobody: false });
    m.plan.logits = logits;
    m.plan.output = Output::Logits { softmax };
    m.plan.files.push(SourceFile {
        path: "tiny.weights".into(),
        bytes: m.bytes.len() as u64,
        header_crc: crc32fast::hash(HEADER),
        header_bytes: HEADER.len() as u64,
    });
    (m.plan, m.bytes)
}

/// Makes the plan for this machine, and writes its model file into the folder.
pub fn plan(folder: &Path) -> Plan<Kernel> {
    plan_for(folder, Target::native())
}

/// Makes the plan for a target, and writes its model file into the folder.
pub fn plan_for(folder: &Path, target: Target) -> Plan<Kernel> {
    plan_of(folder, target, Factors::F32)
}

/// Makes the plan for a target, with product weights in the given format. From then on, all engines
/// of this process share generated code, because all tests load the same few kernels.
pub fn plan_of(folder: &Path, target: Target, factors: Factors) -> Plan<Kernel> {
    share_artifacts();
    let (mut plan, bytes) = specs(factors);
    std::fs::write(folder.join("tiny.weights"), bytes).unwrap();
    plan.target = target.name().into();
    plan.try_map_kernels(|spec| generate(&spec, target)).unwrap()
}

/// Returns the plan with other limits of single-thread steps. One thread runs step `i` if the step
/// has at most `rows(i)` rows.
pub fn with_single_thread_limits(plan: &Plan<Kernel>, rows: impl Fn(usize) -> u32) -> Plan<Kernel> {
    let mut plan = plan.clone();
    for (i, step) in plan.steps.iter_mut().enumerate() {
        if let Step::Run { alone, .. } = step {
            *alone = rows(i);
        }
    }
    plan
}

/// Makes the plan with its experts in a group, as a schedule does.
pub fn grouped(folder: &Path, target: Target, factors: Factors) -> Plan<Kernel> {
    let mut plan = plan_of(folder, target, factors);
    let number = |name: &str| plan.weights.iter().position(|weight| weight.name == name).unwrap() as u32;
    plan.expert_groups.push(ExpertGroup { experts: EXPERTS, weights: ["gate", "up", "down"].map(number).to_vec() });
    let reads_down = |step: &Step| {
        let Step::Run { tasks, .. } = step else { return false };
        tasks.iter().flat_map(|task| &task.args).any(|arg| arg.source == Source::Weight(number("down")))
    };
    let down = plan.steps.iter().position(reads_down).unwrap();
    plan.steps.insert(down + 1, Step::Release { group: 0 });
    let bucket = plan.steps.iter().position(|step| matches!(step, Step::Bucket { .. })).unwrap();
    plan.steps.insert(bucket + 1, Step::Request { group: 0, bucket: BucketId(0) });
    plan
}

/// Returns a plan of [`grouped`] with `layers` expert layers, one after another. All layers have
/// the same matrices. Each one routes the result of the layer before it.
pub fn deepened(plan: &Plan<Kernel>, layers: u32) -> Plan<Kernel> {
    let mut plan = plan.clone();
    let named = |label: &'static str| move |step: &Step| matches!(step, Step::Run { tasks, .. } if tasks.iter().any(|task| task.label == label));
    let begin = plan.steps.iter().position(named("norm2")).unwrap();
    let end = plan.steps.iter().position(named("combine")).unwrap() + 1;
    let block = plan.steps[begin..end].to_vec();
    let buffer = |name: &str| plan.buffers.iter().position(|buffer| buffer.name == name).unwrap();
    let (input, output, ids) = (buffer("x1"), buffer("x2"), buffer("ids"));
    let (mut at, mut last) = (end, BufferId(output as u32));
    for layer in 1..layers {
        let mut copy = |like: usize| {
            let mut buffer = plan.buffers[like].clone();
            buffer.name.push_str(&layer.to_string());
            buffer.offset = plan.arena_bytes;
            let bytes = buffer.row_bytes * u64::from(MAX_TOKENS);
            plan.arena_bytes += bytes.next_multiple_of(64);
            plan.buffers.push(buffer);
            BufferId(plan.buffers.len() as u32 - 1)
        };
        let (next, own_ids) = (copy(output), copy(ids));
        let old = plan.expert_groups[0].clone();
        let mut weights = Vec::new();
        for &weight in &old.weights {
            let mut weight = plan.weights[weight as usize].clone();
            weight.name.push_str(&layer.to_string());
            plan.weights.push(weight);
            weights.push(plan.weights.len() as u32 - 1);
        }
        let bucket = BucketId(layer);
        let of = |id: BufferId| match id.0 as usize {
            id if id == input => last,
            id if id == output => next,
            id if id == ids => own_ids,
            _ => id,
        };
        let source = |source: Source| match source {
            Source::Arena(id) => Source::Arena(of(id)),
            Source::Weight(weight) => {
                let part = old.weights.iter().position(|&of| of == weight);
                Source::Weight(part.map_or(weight, |part| weights[part]))
            }
            Source::Input(Input::RoutedToken(_)) => Source::Input(Input::RoutedToken(bucket)),
            Source::Input(Input::RoutedSlot(_)) => Source::Input(Input::RoutedSlot(bucket)),
            other => other,
        };
        let steps = block.iter().cloned().map(|mut step| {
            match &mut step {
                Step::Run { tasks, .. } => {
                    for task in tasks {
                        if let RowAxis::Routed(_) = task.rows {
                            task.rows = RowAxis::Routed(bucket);
                        }
                        task.args.iter_mut().for_each(|arg| arg.source = source(arg.source));
                    }
                }
                Step::Bucket { bucket: number, ids, .. } => (*number, *ids) = (bucket, own_ids),
                Step::Request { group, bucket: number } => (*group, *number) = (layer, bucket),
                Step::Release { group } => *group = layer,
                Step::Predict { .. } | Step::Exchange(_) => {}
            }
            step
        });
        let steps: Vec<Step> = steps.collect();
        let count = steps.len();
        plan.steps.splice(at..at, steps);
        at += count;
        plan.expert_groups.push(ExpertGroup { weights, ..old });
        plan.buckets += 1;
        last = next;
    }
    for step in &mut plan.steps[at..] {
        let Step::Run { tasks, .. } = step else { continue };
        for arg in tasks.iter_mut().flat_map(|task| &mut task.args) {
            if arg.source == Source::Arena(BufferId(output as u32)) {
                arg.source = Source::Arena(last);
            }
        }
    }
    plan
}
