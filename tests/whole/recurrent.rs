//! Models with states of every kind, generated from a graph's text and random weights. Layers with
//! linear attention, whose state cannot be truncated, are combined with full attention, attention
//! to windows, and experts in memory or streamed. On every target, compiled logits are compared
//! with the reference interpreter's. Runs with steps of different lengths, with different numbers
//! of threads, and after truncation are compared with each other.

use std::path::Path;

use crate::support::steps::{feed, run, same_bits};
use ixc::architectures;
use ixc::compile::{CompileOptions, compile};
use ixc::ir::graph::attrs::RopeScaling;
use ixc::ir::graph::parse::parse;
use ixc::ir::graph::{Module, Place};
use ixc::ir::random::Random;
use ixc::model::Model;
use ixc::model_files::gguf::Gguf;
use ixc::model_files::gguf::write::GgufWriter;
use ixc::runtime::engine::{self, BackendKind, Engine};
use ixc::runtime::states::SNAPSHOTS;
use ixc::runtime::streaming::store::Config;
use ixc::targets::Target;
use ixc::text::tokenizer::TokenizerSpec;
use ixc_testing::nmse::nmse;
use ixc_testing::random_graphs::weight_bytes;

const VOCABULARY: u64 = 96;
const CONTEXT: u64 = 512;
const MAX_TOKENS: u32 = 40;
/// Number of tokens. It is more than two long steps, more than two attention blocks of 32
/// positions, and more positions than memory holds for a window.
const TOKENS: usize = 110;
/// Number of tokens for emulated code, which is slow.
const EMULATED_TOKENS: usize = 43;
/// Max error, as for models of floats in `made_models.rs`: only f32 sums, and keys and values in
/// f16 are rounded.
const BOUND: f64 = 1e-6;
/// Bytes of memory for blocks of experts, less than the experts of a layer need.
const EXPERT_BUDGET: u64 = 1 << 20;

/// Kind of a layer's token mixing.
enum Mixer {
    /// `delta_net` after `short_conv`s. The text is the name of the mapping of value heads to key
    /// heads.
    Delta(&'static str),
    /// `delta_net` with a separate decay for each element of a key.
    Channels,
    /// `ssm_scan` after a `short_conv`, with a norm of each group of heads.
    Scan,
    /// `wkv` of rows that are mixed with the previous rows. If true, `wkv` removes values that it
    /// finds in the state. If false, heads share keys, decays weight the keys, and outputs use the
    /// state before the token.
    Decays(bool),
    /// Rows of a table, which n-grams of token ids select. A `short_conv` with dilation is applied
    /// to the rows, and a gate scales them.
    Named,
    /// Attention over this number of last positions, or over all positions.
    Attention(Option<u64>),
    /// Attention over some positions and over compressed entries. There is one key head, whose keys
    /// are also its values. The fields are the number of positions in an entry, whether entries
    /// overlap, and the number of entries that an index chooses.
    Entries(u64, bool, Option<u64>),
}

const LAYERS: [Mixer; 3] = [Mixer::Delta("grouped"), Mixer::Attention(None), Mixer::Delta("interleaved")];
/// Most steps end with a complete entry in the first layer, but few end with a complete entry in
/// the last layer.
const ENTRIES: [Mixer; 3] = [Mixer::Entries(4, true, None), Mixer::Attention(None), Mixer::Entries(18, false, None)];
/// In these two layers, the index does not choose all entries from the 24th and the 54th position
/// on.
const CHOSEN: [Mixer; 3] =
    [Mixer::Entries(4, true, Some(5)), Mixer::Attention(None), Mixer::Entries(18, false, Some(2))];
const CHANNELS: [Mixer; 3] = [Mixer::Channels, Mixer::Attention(None), Mixer::Channels];
const SCANS: [Mixer; 3] = [Mixer::Scan, Mixer::Attention(None), Mixer::Scan];
const NAMED: [Mixer; 3] = [Mixer::Named, Mixer::Attention(None), Mixer::Named];
const DECAYS: [Mixer; 3] = [Mixer::Decays(true), Mixer::Attention(None), Mixer::Decays(false)];
/// Models with every op that changes a recurrent state, by name.
const RECURRENT: [(&str, [Mixer; 3]); 7] = [
    ("delta", LAYERS),
    ("channels", CHANNELS),
    ("scan", SCANS),
    ("entries", ENTRIES),
    ("chosen", CHOSEN),
    ("named", NAMED),
    ("decays", DECAYS),
];
/// The second window begins inside an attention block, before the first token of a step.
const WINDOWS: [Mixer; 3] = [Mixer::Attention(Some(8)), Mixer::Attention(None), Mixer::Attention(Some(41))];
/// Number of tokens of a prompt. It is more than two runs of positions in attention by tiles. With
/// the second window, some runs are visible to all rows of a work item.
const PROMPT: usize = 320;
const LONG_WINDOWS: [Mixer; 2] = [Mixer::Attention(Some(41)), Mixer::Attention(Some(290))];

/// The text of a graph under construction.
#[derive(Default)]
struct Text {
    declarations: String,
    ops: String,
}

impl Text {
    fn op(&mut self, line: impl AsRef<str>) {
        self.ops += &format!("  {}\n", line.as_ref());
    }

    fn weight(&mut self, name: &str, format: &str, shape: &[u64]) {
        self.declarations += &format!("weight @{name} : {format}{shape:?}\n");
    }

    /// Adds the product `%y = x * w'`. Its new weight is named after the value.
    fn product(&mut self, y: &str, x: &str, format: &str, [n, k]: [u64; 2]) {
        self.weight(y, format, &[n, k]);
        self.op(format!("%{y}.w = dequantise @{y}"));
        self.op(format!("%{y} = matmul %{x}, %{y}.w"));
    }

    fn delta(&mut self, i: usize, keys: &str, channels: bool) {
        // There are two key heads and four value heads.
        for (part, width) in [("q", 128), ("k", 128), ("v", 128)] {
            self.product(
                &format!("{part}{i}"),
                &format!("h{i}"),
                if part == "v" { "q8_0" } else { "q4_k" },
                [width, 256],
            );
            self.weight(&format!("{part}{i}.conv"), "f32", &[width, 4]);
            self.declarations += &format!("state @conv.{part}{i} : recurrent f32[3, {width}]\n");
            self.op(format!("%{part}{i}.s = state.begin @conv.{part}{i}"));
            self.op(format!(
                "%{part}{i}.c, %{part}{i}.n = short_conv %{part}{i}.s, %{part}{i}, @{part}{i}.conv {{dilation = 1}}"
            ));
            self.op(format!("%{part}{i}.a = silu %{part}{i}.c"));
        }
        for (part, heads) in [("q", 2), ("k", 2), ("v", 4)] {
            self.op(format!("%{part}{i}.h = split_heads %{part}{i}.a {{heads = {heads}}}"));
        }
        // With a decay for each element of a key, there are 64 decays for each of the four value
        // heads.
        let decays = if channels { 4 * 64 } else { 4 };
        for (part, width) in [("alpha", decays), ("beta", 4)] {
            self.product(&format!("{part}{i}"), &format!("h{i}"), "f32", [width, 256]);
        }
        let alpha = if channels { format!("alpha{i}.h") } else { format!("alpha{i}") };
        if channels {
            self.op(format!("%{alpha} = split_heads %alpha{i} {{heads = 4}}"));
        }
        self.weight(&format!("a{i}"), "f32", &[4]);
        self.weight(&format!("dt{i}"), "f32", &[decays]);
        self.weight(&format!("norm.y{i}"), "f32", &[32]);
        self.declarations += &format!("state @ssm.{i} : recurrent f32[4, 64, 32] {{rollback = snapshot}}\n");
        self.op(format!("%s{i} = state.begin @ssm.{i}"));
        self.op(format!(
            "%y{i}, %n{i} = delta_net %s{i}, %q{i}.h, %k{i}.h, %v{i}.h, %{alpha}, %beta{i}, @a{i}, @dt{i} {{keys = {keys}, eps = 1e-6, bound = 0.0}}"
        ));
        self.op(format!("%y{i}.r = rms_norm %y{i}, @norm.y{i} {{eps = 1e-6}}"));
        self.op(format!("%y{i}.m = merge_heads %y{i}.r"));
        self.product(&format!("z{i}"), &format!("h{i}"), "q4_k", [128, 256]);
        self.op(format!("%z{i}.a = silu %z{i}"));
        self.op(format!("%mixed{i} = mul %y{i}.m, %z{i}.a"));
        self.product(&format!("o{i}"), &format!("mixed{i}"), "q8_0", [256, 128]);
    }

    fn scan(&mut self, i: usize) {
        // There are six heads of 32 elements, in two groups of 16 numbers.
        self.product(&format!("z{i}"), &format!("h{i}"), "q4_k", [192, 256]);
        self.product(&format!("xbc{i}"), &format!("h{i}"), "q4_k", [256, 256]);
        self.product(&format!("step{i}"), &format!("h{i}"), "f32", [6, 256]);
        self.weight(&format!("xbc{i}.conv"), "f32", &[256, 4]);
        self.declarations += &format!("state @conv.{i} : recurrent f32[3, 256]\n");
        self.op(format!("%xbc{i}.s = state.begin @conv.{i}"));
        self.op(format!("%xbc{i}.c, %xbc{i}.n = short_conv %xbc{i}.s, %xbc{i}, @xbc{i}.conv {{dilation = 1}}"));
        self.op(format!("%xbc{i}.a = silu %xbc{i}.c"));
        for (part, from, count, heads) in [("x", 0, 192, 6), ("b", 192, 32, 2), ("c", 224, 32, 2)] {
            self.op(format!("%in.{part}{i} = slice %xbc{i}.a {{from = {from}, count = {count}}}"));
            self.op(format!("%in.{part}{i}.h = split_heads %in.{part}{i} {{heads = {heads}}}"));
        }
        for weight in ["a", "dt", "d"] {
            self.weight(&format!("{weight}{i}"), "f32", &[6]);
        }
        self.weight(&format!("norm.y{i}"), "f32", &[2, 96]);
        self.declarations += &format!("state @ssm.{i} : recurrent f32[6, 16, 32] {{rollback = snapshot}}\n");
        self.op(format!("%s{i} = state.begin @ssm.{i}"));
        self.op(format!(
            "%y{i}, %n{i} = ssm_scan %s{i}, %in.x{i}.h, %in.b{i}.h, %in.c{i}.h, %step{i}, @a{i}, @dt{i}, @d{i}"
        ));
        self.op(format!("%y{i}.m = merge_heads %y{i}"));
        self.op(format!("%z{i}.a = silu %z{i}"));
        self.op(format!("%y{i}.g = mul %y{i}.m, %z{i}.a"));
        self.op(format!("%y{i}.s = split_heads %y{i}.g {{heads = 2}}"));
        self.op(format!("%y{i}.r = rms_norm %y{i}.s, @norm.y{i} {{eps = 1e-6}}"));
        self.op(format!("%mixed{i} = merge_heads %y{i}.r"));
        self.product(&format!("o{i}"), &format!("mixed{i}"), "q8_0", [256, 192]);
    }

    fn decays(&mut self, i: usize, finds: bool) {
        // There are four heads, with keys of 32 and values of 48 elements. If keys are shared, two
        // heads share a key.
        let key_heads = if finds { 4 } else { 2 };
        self.weight(&format!("h{i}.conv"), "f32", &[256, 2]);
        self.declarations += &format!("state @shift.{i} : recurrent f32[1, 256]\n");
        self.op(format!("%h{i}.s = state.begin @shift.{i}"));
        self.op(format!("%m{i}, %h{i}.n = short_conv %h{i}.s, %h{i}, @h{i}.conv {{dilation = 1}}"));
        for (part, heads, length) in [("q", 4, 32), ("k", key_heads, 32), ("v", key_heads, 48)] {
            self.product(&format!("{part}{i}"), &format!("m{i}"), "q4_k", [heads * length, 256]);
            self.op(format!("%{part}{i}.h = split_heads %{part}{i} {{heads = {heads}}}"));
        }
        // The decays are between 0.54 and 1.
        self.product(&format!("left{i}"), &format!("m{i}"), "f32", [128, 256]);
        self.op(format!("%left{i}.a = sigmoid %left{i}"));
        self.op(format!("%left{i}.l = scale %left{i}.a {{factor = -0.6}}"));
        self.op(format!("%left{i}.e = exp %left{i}.l"));
        self.op(format!("%left{i}.h = split_heads %left{i}.e {{heads = 4}}"));
        let mut deltas = "_, _".to_owned();
        if finds {
            self.product(&format!("find{i}"), &format!("m{i}"), "q4_k", [128, 256]);
            self.product(&format!("rate{i}"), &format!("m{i}"), "f32", [128, 256]);
            self.op(format!("%find{i}.h = split_heads %find{i} {{heads = 4}}"));
            self.op(format!("%find{i}.r = rms_norm %find{i}.h, _ {{eps = 1e-6}}"));
            self.op(format!("%find{i}.u = scale %find{i}.r {{factor = 0.17677669}}"));
            self.op(format!("%rate{i}.a = sigmoid %rate{i}"));
            self.op(format!("%rate{i}.h = split_heads %rate{i}.a {{heads = 4}}"));
            self.op(format!("%remove{i} = mul %find{i}.u, %rate{i}.h"));
            deltas = format!("%find{i}.u, %remove{i}");
        }
        self.declarations += &format!("state @wkv.{i} : recurrent f32[4, 32, 48] {{rollback = snapshot}}\n");
        self.op(format!("%s{i} = state.begin @wkv.{i}"));
        self.op(format!(
            "%y{i}, %n{i} = wkv %s{i}, %q{i}.h, %k{i}.h, %v{i}.h, %left{i}.h, {deltas} {{before = {}, filled = {}}}",
            !finds, !finds
        ));
        self.op(format!("%y{i}.r = rms_norm %y{i}, _ {{eps = 1e-6}}"));
        self.op(format!("%mixed{i} = merge_heads %y{i}.r"));
        self.product(&format!("o{i}"), &format!("mixed{i}"), "f16", [256, 192]);
    }

    fn named(&mut self, i: usize) {
        self.declarations += &format!("state @ids.{i} : recurrent f32[1, 3] {{rollback = snapshot}}\n");
        self.weight(&format!("rows{i}"), "f16", &[100, 64]);
        self.op(format!("%t{i} = state.begin @ids.{i}"));
        self.op(format!(
            "%row{i}, %t{i}.n = ngram %t{i}, %ids {{eos = 7, m0 = 123457, m1 = 7654321, m2 = 1099511627791, m3 = 0, modulus = 97, offset = 2}}"
        ));
        self.op(format!("%e{i} = embed %row{i}, @rows{i}"));
        self.product(&format!("v{i}"), &format!("e{i}"), "f16", [256, 64]);
        self.weight(&format!("v{i}.conv"), "f32", &[256, 4]);
        self.declarations += &format!("state @conv.{i} : recurrent f32[9, 256]\n");
        self.op(format!("%v{i}.s = state.begin @conv.{i}"));
        self.op(format!("%v{i}.c, %v{i}.n = short_conv %v{i}.s, %v{i}, @v{i}.conv {{dilation = 3}}"));
        self.op(format!("%both{i} = mul %v{i}.c, %h{i}"));
        self.op(format!("%both{i}.h = split_heads %both{i} {{heads = 4}}"));
        self.op(format!("%score{i} = heads.sum %both{i}.h"));
        self.op(format!("%root{i} = signed_root %score{i}"));
        self.op(format!("%gate{i}.r = sigmoid %root{i}"));
        self.op(format!("%mixed{i} = scale_heads %v{i}.c, %gate{i}.r, _"));
        self.product(&format!("o{i}"), &format!("mixed{i}"), "q8_0", [256, 256]);
    }

    fn attention(&mut self, i: usize, window: Option<u64>) {
        let rope = "base = 10000.0, dims = 32, style = neox, scaling = none, factor = 1.0, original_context = 0, \
                    beta_fast = 32.0, beta_slow = 1.0, attn_factor = 1.0";
        for (part, heads) in [("q", 4), ("k", 2), ("v", 2)] {
            self.product(&format!("{part}{i}"), &format!("h{i}"), "q4_k", [heads * 64, 256]);
            self.op(format!("%{part}{i}.h = split_heads %{part}{i} {{heads = {heads}}}"));
        }
        for part in ["q", "k"] {
            self.op(format!("%{part}{i}.t = rope %{part}{i}.h, %pos, _, _ {{{rope}}}"));
        }
        let window = window.map_or(String::new(), |window| format!(" {{window = {window}}}"));
        self.declarations += &format!("state @kv.{i} : paged f16[2, S, 64], f16[2, S, 64]{window}\n");
        self.op(format!("%s{i} = state.begin @kv.{i}"));
        self.op(format!("%n{i} = kv.append %s{i}, %k{i}.t, %v{i}.h, %pos"));
        self.op(format!("%y{i}, %m{i} = attention %q{i}.t, %n{i}, %pos, _, _ {{scale = 0.125, cap = 0.0}}"));
        self.op(format!("%mixed{i} = merge_heads %y{i}"));
        self.product(&format!("o{i}"), &format!("mixed{i}"), "q4_k", [256, 256]);
    }

    fn entries(&mut self, i: usize, every: u64, overlap: bool, top_k: Option<u64>) {
        let rope = "base = 10000.0, dims = 32, style = norm, scaling = none, factor = 1.0, original_context = 0, \
                    beta_fast = 32.0, beta_slow = 1.0, attn_factor = 1.0";
        let width = if overlap { 128 } else { 64 };
        for (part, rows) in [("q", 16 * 64), ("k", 64), ("from", width), ("by", width)] {
            self.product(&format!("{part}{i}"), &format!("h{i}"), "q4_k", [rows, 256]);
        }
        self.weight(&format!("ape{i}"), "f32", &[every, width]);
        self.declarations +=
            &format!("state @compressor.{i} : recurrent f32[{}, 64] {{rollback = snapshot}}\n", 3 * width / 64);
        self.op(format!("%c{i} = state.begin @compressor.{i}"));
        self.op(format!(
            "%e{i}, %c{i}.n = compress %c{i}, %from{i}, %by{i}, %pos, @ape{i} {{every = {every}, overlap = {overlap}}}"
        ));
        self.op(format!("%start{i} = positions %pos {{every = {every}, back = false}}"));
        self.op(format!("%back{i} = positions %pos {{every = 1, back = true}}"));
        for (part, heads, pos) in
            [("q", 16, "pos".to_owned()), ("k", 1, "pos".to_owned()), ("e", 1, format!("start{i}"))]
        {
            self.op(format!("%{part}{i}.h = split_heads %{part}{i} {{heads = {heads}}}"));
            self.op(format!("%{part}{i}.r = rms_norm %{part}{i}.h, _ {{eps = 1e-6}}"));
            self.op(format!("%{part}{i}.t = rope %{part}{i}.r, %{pos}, _, _ {{{rope}}}"));
        }
        for (part, attrs, rows) in [("kv", "window = 20".to_owned(), "k"), ("entries", format!("every = {every}"), "e")]
        {
            self.declarations += &format!("state @{part}.{i} : paged f16[1, S, 64], f16[1, S, 64] {{{attrs}}}\n");
            self.op(format!("%{part}{i}.s = state.begin @{part}.{i}"));
            self.op(format!("%{part}{i}.n = kv.append %{part}{i}.s, %{rows}{i}.t, %{rows}{i}.t, %pos"));
        }
        self.weight(&format!("sinks{i}"), "f32", &[16]);
        let chosen = match top_k {
            Some(top_k) => self.chosen(i, (every, overlap), top_k),
            None => "_".to_owned(),
        };
        self.op(format!(
            "%y{i}, %kv{i}.m, %entries{i}.m = attention.entries %q{i}.t, %kv{i}.n, %entries{i}.n, %pos, @sinks{i}, {chosen} {{scale = 0.125}}"
        ));
        self.op(format!("%y{i}.t = rope %y{i}, %back{i}, _, _ {{{rope}}}"));
        self.op(format!("%mixed{i} = merge_heads %y{i}.t"));
        self.product(&format!("o{i}"), &format!("mixed{i}"), "q4_k", [256, 1024]);
    }

    /// Adds an index of two heads that chooses entries.
    fn chosen(&mut self, i: usize, (every, overlap): (u64, bool), top_k: u64) -> String {
        let width = if overlap { 64 } else { 32 };
        for (part, rows) in [("index.q", 64), ("index.w", 2), ("index.from", width), ("index.by", width)] {
            self.product(&format!("{part}{i}"), &format!("h{i}"), "f32", [rows, 256]);
        }
        self.weight(&format!("index.ape{i}"), "f32", &[every, width]);
        self.declarations +=
            &format!("state @index.compressor.{i} : recurrent f32[{}, 32] {{rollback = snapshot}}\n", 3 * width / 32);
        self.declarations += &format!("state @index.{i} : paged f16[1, S, 32], f16[1, S, 1] {{every = {every}}}\n");
        self.op(format!("%index.c{i} = state.begin @index.compressor.{i}"));
        self.op(format!(
            "%index.e{i}, %index.c{i}.n = compress %index.c{i}, %index.from{i}, %index.by{i}, %pos, @index.ape{i} {{every = {every}, overlap = {overlap}}}"
        ));
        self.op(format!("%index.e{i}.h = split_heads %index.e{i} {{heads = 1}}"));
        self.op(format!("%index.e{i}.v = slice %index.e{i}.h {{from = 0, count = 1}}"));
        self.op(format!("%index.q{i}.h = split_heads %index.q{i} {{heads = 2}}"));
        self.op(format!("%index.s{i} = state.begin @index.{i}"));
        self.op(format!("%index.n{i} = kv.append %index.s{i}, %index.e{i}.h, %index.e{i}.v, %pos"));
        self.op(format!(
            "%chosen{i}, %index.m{i} = index.top_k %index.q{i}.h, %index.w{i}, %index.n{i}, %pos {{top_k = {top_k}, entries = true}}"
        ));
        format!("%chosen{i}")
    }

    /// Adds experts. If `gated` is set, they have a gate; otherwise, a squared ReLU is between up
    /// and down.
    fn experts(&mut self, i: usize, used: u64, gated: bool) {
        self.weight(&format!("norm.f{i}"), "f32", &[256]);
        self.op(format!("%f{i} = rms_norm %r{i}, @norm.f{i} {{eps = 1e-6}}"));
        self.product(&format!("router{i}"), &format!("f{i}"), "f32", [8, 256]);
        self.op(format!(
            "%ids{i}, %p{i} = route %router{i}, _, _ {{top_k = {used}, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0}}"
        ));
        let mut product = |part: &str, x: &str| {
            self.weight(&format!("{part}{i}.exps"), "q4_k", &[8, 256, 256]);
            self.op(format!("%{part}{i}.w = dequantise @{part}{i}.exps"));
            self.op(format!("%{part}{i}.e = expert.matmul %{x}, %ids{i}, %{part}{i}.w"));
        };
        if gated {
            product("gate", &format!("f{i}"));
        }
        product("up", &format!("f{i}"));
        if gated {
            self.op(format!("%gate{i}.a = silu %gate{i}.e"));
            self.op(format!("%inner{i} = mul %gate{i}.a, %up{i}.e"));
        } else {
            self.op(format!("%inner{i} = relu_squared %up{i}.e"));
        }
        self.weight(&format!("down{i}.exps"), "q4_k", &[8, 256, 256]);
        self.op(format!("%down{i}.w = dequantise @down{i}.exps"));
        self.op(format!("%down{i}.e = expert.matmul %inner{i}, %ids{i}, %down{i}.w"));
        self.op(format!("%sum{i} = expert.combine %down{i}.e, %p{i}"));
        self.op(format!("%x{} = add %r{i}, %sum{i}", i + 1));
    }

    /// Returns a module with eight experts in each layer; each token uses `used` of them. If `used`
    /// is 0, the module has no experts.
    fn module(layers: &[Mixer], used: u64) -> Module {
        let mut text = Text::default();
        text.weight("embedding", "f16", &[VOCABULARY, 256]);
        text.op("%x0 = embed %ids, @embedding");
        for (i, mixer) in layers.iter().enumerate() {
            text.weight(&format!("norm.h{i}"), "f32", &[256]);
            text.op(format!("%h{i} = rms_norm %x{i}, @norm.h{i} {{eps = 1e-6}}"));
            match mixer {
                Mixer::Delta(keys) => text.delta(i, keys, false),
                Mixer::Channels => text.delta(i, "grouped", true),
                Mixer::Scan => text.scan(i),
                Mixer::Decays(finds) => text.decays(i, *finds),
                Mixer::Named => text.named(i),
                Mixer::Attention(window) => text.attention(i, *window),
                Mixer::Entries(every, overlap, top_k) => text.entries(i, *every, *overlap, *top_k),
            }
            if used == 0 {
                text.op(format!("%x{} = add %x{i}, %o{i}", i + 1));
                continue;
            }
            text.op(format!("%r{i} = add %x{i}, %o{i}"));
            text.experts(i, used, !matches!(mixer, Mixer::Scan));
        }
        text.weight("norm.out", "f32", &[256]);
        text.op(format!("%last = take_rows %x{}, %rows", layers.len()));
        text.op("%normed = rms_norm %last, @norm.out {eps = 1e-6}");
        text.product("logits", "normed", "q8_0", [VOCABULARY, 256]);
        let Text { declarations, ops } = text;
        let text = format!(
            "{declarations}func @step(%ids: i32[T], %pos: i32[T], %rows: i32[L]) -> (f32[L, {VOCABULARY}]) {{\n{ops}  return %logits\n}}"
        );
        parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }
}

/// Returns the graph with all matrices in f16. Only f32 sums, and keys and values in f16 are then
/// rounded.
fn in_floats(module: Module) -> Module {
    let text = module.to_string().replace(" : q4_k[", " : f16[").replace(" : q8_0[", " : f16[");
    parse(&text).unwrap()
}

/// Returns a module whose attention scores decrease with distance (ALiBi).
fn falling(module: &Module) -> Module {
    parse(&module.to_string().replace("cap = 0.0}", "cap = 0.0, max_bias = 8.0}")).unwrap()
}

/// Writes a file with random weights for a graph, and opens the model.
fn model(name: &str, mut module: Module) -> Model {
    let mut rng = Random::new(17);
    let mut writer = GgufWriter::new().key("general.architecture", "made");
    for weight in &module.weights {
        let elements = weight.shape.iter().product::<u64>() as usize;
        let vector = |middle: f32, rng: &mut Random| -> Vec<u8> {
            (0..elements).flat_map(|_| (middle + rng.signed() / 4.0).to_le_bytes()).collect()
        };
        let bytes = match weight.name.as_str() {
            name if name.starts_with("norm.") => vector(1.0, &mut rng),
            // The decays keep 0.3 to 0.9 of the previous state.
            name if name.starts_with('a') && weight.shape.len() == 1 => vector(-0.5, &mut rng),
            name if name.starts_with("dt") => vector(0.0, &mut rng),
            name if name.ends_with(".conv") => vector(0.25, &mut rng),
            _ => weight_bytes(&mut rng, weight.format, elements),
        };
        let dims: Vec<u64> = weight.shape.iter().rev().copied().collect();
        writer = writer.tensor(&weight.name, weight.format.row().gguf_id.unwrap(), &dims, bytes);
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("recurrent_{name}.gguf"));
    std::fs::write(&path, writer.finish()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    for weight in &mut module.weights {
        let offset = gguf.require_tensor(&weight.name).unwrap().offset();
        weight.place = Some(Place { file: 0, offset });
    }
    let rope = architectures::Rope {
        base: 1e4,
        dims: 0,
        scaling: RopeScaling::None,
        factor: 1.0,
        original_context: CONTEXT,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attn_factor: 1.0,
        divided: true,
    };
    let hyper = architectures::Hyper {
        architecture: "made".to_owned(),
        causal: true,
        context_length: CONTEXT,
        embedding_length: 256,
        vocabulary: VOCABULARY,
        norm_eps: 1e-6,
        norms: architectures::Norms::Rms,
        rope,
        has_rope: true,
        local_rope: None,
        scales: architectures::Scales::NONE,
        mla: None,
        layers: Vec::new(),
        draft_layers: 0,
    };
    Model {
        gguf,
        arch: architectures::Model { hyper, module, output: architectures::Output::Logits },
        vocabulary: TokenizerSpec::default(),
    }
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u64).map(|i| ((i * i * 7 + i * 3 + 1) % VOCABULARY) as u32).collect()
}

fn load(model: &Model, options: &CompileOptions, threads: usize, budget: u64) -> Engine {
    let plan = compile(model, options).unwrap().plan;
    let backend = if options.target.is_none_or(|target| target.missing().is_empty()) {
        BackendKind::Native
    } else {
        BackendKind::Emulated
    };
    let stream = Config { budget, ..Config::default() };
    let options = engine::EngineOptions { threads: Some(threads), backend, stream, ..engine::EngineOptions::default() };
    Engine::load(plan, Path::new(""), &options).unwrap()
}

fn options(target: Target) -> CompileOptions {
    CompileOptions { target: Some(target), max_tokens: Some(MAX_TOKENS), ..CompileOptions::default() }
}

/// Checks that every target is close to the interpreter, for all lengths of steps and numbers of
/// threads. The tokens go to all experts. If a router chose experts, rounding could decide between
/// two experts with nearly the same score.
fn check(name: &str, model: &Model) {
    let tokens = tokens(TOKENS);
    let exact = model.exact_logits(&tokens).unwrap();
    assert!(exact.iter().all(|x| x.is_finite()));
    let mut of_avx2 = Vec::new();
    for target in [Target::AVX2, Target::PORTABLE, Target::AVX512, Target::AMX] {
        let native = target.missing().is_empty();
        let count = if native { TOKENS } else { EMULATED_TOKENS };
        let (tokens, exact) = (&tokens[..count], &exact[..count * VOCABULARY as usize]);
        let mut engine = load(model, &options(target), if native { 3 } else { 2 }, 0);
        let logits = run(&mut engine, tokens, |_| MAX_TOKENS as usize);
        let error = nmse(&logits, exact);
        println!("{name}: {} {}: {error:e}", target.name(), if native { "native" } else { "emulated" });
        assert!(error <= BOUND, "{name}: {}: {error:e} > {BOUND:e}", target.name());
        if native {
            for threads in [1, 2] {
                engine.use_threads(threads).unwrap();
                let again = run(&mut engine, tokens, |_| MAX_TOKENS as usize);
                assert!(same_bits(&again, &logits), "{name}: {}: other bits with {threads} threads", target.name());
            }
            let lengths = [1, 5, 2, 33, 7];
            for (how, found) in [
                ("one by one", run(&mut engine, tokens, |_| 1)),
                ("in mixed steps", run(&mut engine, tokens, |step| lengths[step % lengths.len()])),
            ] {
                let error = nmse(&found, exact);
                assert!(error <= BOUND, "{name}: {} {how}: {error:e} > {BOUND:e}", target.name());
            }
        }
        match target {
            Target::AVX2 => of_avx2 = logits,
            Target::PORTABLE => {
                assert!(same_bits(&logits, &of_avx2[..logits.len()]), "{name}: portable has other bits")
            }
            _ => {}
        }
    }
}

#[test]
fn linear_attention_matches_the_interpreter_on_every_target() {
    check("delta", &model("targets", in_floats(Text::module(&LAYERS, 8))));
}

#[test]
fn state_spaces_match_the_interpreter_on_every_target() {
    check("scan", &model("scans", in_floats(Text::module(&SCANS, 8))));
}

#[test]
fn compressed_entries_match_the_interpreter_on_every_target() {
    check("entries", &model("entries", in_floats(Text::module(&ENTRIES, 8))));
}

#[test]
fn selected_entries_match_the_interpreter_on_every_target() {
    check("chosen", &model("chosen", in_floats(Text::module(&CHOSEN, 8))));
}

/// Checks that positions that share entries take memory only for whole blocks of entries.
#[test]
fn shared_entries_take_memory_for_whole_blocks_only() {
    let model = model("places", Text::module(&ENTRIES, 2));
    let states = compile(&model, &options(Target::AVX2)).unwrap().plan.states;
    let of = |name: &str| states.iter().find(|state| state.name == name).unwrap();
    assert_eq!(["entries.0", "entries.2"].map(|name| of(name).entries_in_memory(512, MAX_TOKENS)), [128, 32]);
    let place = 2 * 64 * 2;
    let bytes = ["entries.0", "entries.2"].map(|name| of(name).fixed_and_position_bytes(MAX_TOKENS));
    assert_eq!(bytes, [(32 * place, 64), (32 * place, 15)]);
}

#[test]
fn windows_match_the_interpreter_on_every_target() {
    check("windows", &model("windows", in_floats(Text::module(&WINDOWS, 8))));
}

/// Checks ALiBi slopes in attention over windows, and in attention over all positions. With one
/// token, the latter is divided into several parts.
#[test]
fn attention_slopes_match_the_interpreter_on_every_target() {
    let model = model("falling", falling(&in_floats(Text::module(&WINDOWS, 8))));
    let plan = compile(&model, &options(Target::AVX2)).unwrap().plan;
    let slopes: Vec<_> = plan.weights.iter().filter(|weight| weight.name.starts_with("slopes.")).collect();
    assert_eq!(slopes.iter().map(|slopes| &*slopes.name).collect::<Vec<_>>(), ["slopes.4.8"]);
    check("falling", &model);
}

/// Checks prompts with many rows, which use attention by tiles within windows. Between steps, the
/// window's memory moves, so that it begins at positions that are not the first of a run of tiles.
/// Each row still has the same bits as in one step.
#[test]
fn prompts_longer_than_a_window_use_tiles() {
    let plain = in_floats(Text::module(&LONG_WINDOWS, 0));
    by_tiles(&model("prompts-falling", falling(&plain)));
    by_tiles(&model("prompts", plain));
}

fn by_tiles(model: &Model) {
    let tokens = tokens(PROMPT);
    let exact = model.exact_logits(&tokens).unwrap();
    let compiled = |target, max_tokens: u32| CompileOptions { max_tokens: Some(max_tokens), ..options(target) };
    let plan = compile(model, &compiled(Target::AMX, 64)).unwrap().plan;
    for window in ["attention_tiles_window41_", "attention_tiles_window290_"] {
        assert!(plan.kernels.iter().any(|kernel| kernel.name.starts_with(window)), "{window}");
    }
    assert!(plan.states[0].entries_in_memory(CONTEXT as u32, 64) < PROMPT as u32, "nothing would be dropped");
    for target in [Target::AVX2, Target::AVX512, Target::AMX] {
        let whole = run(&mut load(model, &compiled(target, PROMPT as u32), 2, 0), &tokens, |_| PROMPT);
        let error = nmse(&whole, &exact);
        println!("prompts: {}: {error:e}", target.name());
        assert!(error <= BOUND, "{}: {error:e} > {BOUND:e}", target.name());
        let mut engine = load(model, &compiled(target, 64), 2, 0);
        // The lengths are multiples of sixteen, because some kernels sum the remaining elements of
        // a float row in another order.
        for lengths in [[64, 64], [32, 48]] {
            let found = run(&mut engine, &tokens, |step| lengths[step % 2]);
            let first = found.iter().zip(&whole).position(|(a, b)| a.to_bits() != b.to_bits());
            let at = first.map(|at| at / VOCABULARY as usize);
            assert!(at.is_none(), "{} in steps of {lengths:?}: other bits at {at:?}", target.name());
        }
    }
}

/// Checks that memory holds only the last positions of a window, for any context. Dropping older
/// positions changes no bits, and the sequence cannot be truncated to these positions.
#[test]
fn window_memory_holds_only_the_last_positions() {
    let model = model("held", Text::module(&WINDOWS, 2));
    let tokens = tokens(TOKENS);
    let compiled = |max_tokens: u32| CompileOptions { max_tokens: Some(max_tokens), ..options(Target::AVX2) };
    let states = compile(&model, &compiled(16)).unwrap().plan.states;
    let held = |state: usize, max_tokens: u32| states[state].entries_in_memory(1 << 20, max_tokens);
    assert_eq!([held(0, 16), held(1, 16), held(2, 16)], [64, 1 << 20, 96]);
    let [per_position, other] = [1, 0].map(|state: usize| states[state].fixed_and_position_bytes(16));
    assert_eq!((per_position, other), ((0, 2 * 2 * 64 * 2), (64 * 2 * 2 * 64 * 2, 0)));

    // With steps as long as the context, no position is ever dropped.
    let mut all = load(&model, &compiled(CONTEXT as u32), 2, 0);
    let mut engine = load(&model, &compiled(16), 2, 0);
    let lengths = [16, 1, 7, 16, 16, 3];
    for length in [&lengths[..], &[1]] {
        let expected = run(&mut all, &tokens, |step| length[step % length.len()]);
        let found = run(&mut engine, &tokens, |step| length[step % length.len()]);
        assert!(same_bits(&found, &expected), "steps of {length:?}: other bits");
    }

    // After single steps to position 110, the memory of the two states begins at positions 64 and
    // 32. A token at position 72 needs the last 8 and 41 positions, which are in memory.
    assert!(!engine.cut_anywhere() && !all.cut_anywhere());
    assert_eq!([110, 72, 71, 1].map(|wanted| engine.reach(wanted)), [110, 72, 0, 0]);
    assert_eq!(all.reach(1), 1);
    let expected = run(&mut all, &tokens, |_| 1);
    for (wanted, left) in [(105, 105), (72, 72), (60, 0)] {
        assert_eq!(engine.truncate(wanted), left);
        let left = left as usize;
        // If other tokens are computed and then truncated, results do not change.
        feed(&mut engine, &[5, 6, 7], |_| 3);
        assert_eq!(engine.truncate(left as u32), left as u32);
        let found = feed(&mut engine, &tokens[left..], |_| 1);
        assert!(same_bits(&found, &expected[left * VOCABULARY as usize..]), "from {left} on: other bits");
    }
}

#[test]
fn streamed_experts_change_no_bit() {
    for (name, layers) in RECURRENT {
        let model = model(&format!("streamed_{name}"), Text::module(&layers, 2));
        let tokens = tokens(TOKENS);
        let resident = options(Target::AVX2);
        let streamed = CompileOptions { expert_memory: Some(EXPERT_BUDGET), ..resident.clone() };
        assert_eq!(compile(&model, &streamed).unwrap().plan.expert_groups.len(), layers.len());
        for length in [MAX_TOKENS as usize, 1] {
            let expected = run(&mut load(&model, &resident, 2, 0), &tokens, |_| length);
            let mut engine = load(&model, &streamed, 2, EXPERT_BUDGET);
            let found = run(&mut engine, &tokens, |_| length);
            assert!(same_bits(&found, &expected), "{name}: steps of {length}: other bits");
            let misses =
                engine.stream().map(|store| store.stats().groups.iter().map(|layer| layer.misses).sum::<u64>());
            assert!(misses.is_some_and(|misses| misses > 0), "nothing was streamed");
        }
    }
}

/// Checks that a sequence that was truncated and computed again has the same bits as one that was
/// never truncated.
#[test]
fn truncated_sequence_recomputes_equal_bits() {
    for (name, layers) in RECURRENT {
        goes_back(&model(&format!("truncated_{name}"), Text::module(&layers, 2)));
    }
}

fn goes_back(model: &Model) {
    let tokens = tokens(80);
    let mut engine = load(model, &options(Target::AVX2), 2, 0);
    assert!(!engine.cut_anywhere());
    let width = VOCABULARY as usize;
    // Float products sum in different orders for one row and for many rows, so both runs have the
    // same steps.
    let expected = run(&mut engine, &tokens, |step| if step == 0 { 30 } else { 1 });
    run(&mut engine, &tokens, |_| 1);
    // Steps of one token save no snapshots.
    assert_eq!((engine.reach(79), engine.reach(80), engine.reach(100)), (0, 80, 80));

    engine.reset();
    feed(&mut engine, &tokens[..30], |_| 30);
    feed(&mut engine, &tokens[30..50], |_| 1);
    engine.save();
    feed(&mut engine, &tokens[50..60], |_| 1);
    assert_eq!([10, 30, 49, 50, 59, 60].map(|wanted| engine.reach(wanted)), [0, 30, 30, 50, 50, 60]);
    for (wanted, left) in [(60, 60), (57, 50), (40, 30)] {
        assert_eq!(engine.truncate(wanted), left);
        assert_eq!(engine.position(), left);
        let left = left as usize;
        let found = feed(&mut engine, &tokens[left..64], |_| 1);
        let first = found.iter().zip(&expected[left * width..]).position(|(a, b)| a.to_bits() != b.to_bits());
        assert!(first.is_none(), "from {left} on: another bit at {:?}", first.map(|at| left + at / width));
        engine.truncate(60);
    }

    assert_eq!(engine.truncate(10), 0);
    assert!(same_bits(&feed(&mut engine, &tokens, |step| if step == 0 { 30 } else { 1 }), &expected));

    // If other tokens are computed and then truncated, results do not change.
    engine.reset();
    feed(&mut engine, &tokens[..30], |_| 30);
    feed(&mut engine, &[5, 6, 7, 8], |_| 4);
    assert_eq!(engine.truncate(33), 30);
    assert!(same_bits(&feed(&mut engine, &tokens[30..40], |_| 1), &expected[30 * width..40 * width]));

    // The number of snapshots is limited.
    engine.reset();
    feed(&mut engine, &tokens[..20], |_| 2);
    let oldest = 20 - 2 * (SNAPSHOTS as u32 - 1);
    assert_eq!((engine.reach(oldest), engine.reach(oldest - 1)), (oldest, 0));
}

/// Checks that the reported memory includes all states.
#[test]
fn figures_of_memory_count_every_state() {
    let model = model("figures", Text::module(&LAYERS, 2));
    let plan = compile(&model, &options(Target::AVX2)).unwrap().plan;
    let of = |name: &str| plan.states.iter().find(|state| state.name == name).unwrap();
    let bytes = |name| of(name).fixed_and_position_bytes(MAX_TOKENS);
    assert_eq!((bytes("ssm.0"), bytes("kv.1")), ((4 * 64 * 32 * 4, 0), (0, 2 * 2 * 64 * 2)));
    assert_eq!(of("conv.q2").bytes(1000), Some(3 * 128 * 4));
    assert_eq!(plan.states.len(), 4 + 1 + 4);
}
