//! Options of passes on the command line.
//!
//! ```text
//! ixc compile model.gguf --tile 'blk.*.ffn_down*: rows=16 gemm/48' --set fuse.rounds=8
//! ixc run model.gguf --kv q8_0
//! ```

use ixc_ir::format::Format;
use ixc_passes::cache::{self, CacheFormat};
use ixc_passes::error::PassError;
use ixc_passes::manager::{self, PASSES};
use ixc_passes::options::{OptionSet, OptionValue};
use ixc_passes::requantise::{self, Formats};
use ixc_passes::tile::{self, Override, Overrides};

/// Options of passes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PassChoice {
    /// Tiling for weights whose names match a pattern, instead of the one from cache sizes;
    /// repeatable, the last match wins. It gives rows per item, kernels by row count, or both:
    /// 'blk.*.ffn_down*: rows=32 gemv<=5/5x16 gemm/48'.
    #[arg(long, value_name = "PATTERN: TILING", value_parser = read_override)]
    tile: Vec<Override>,
    /// Requantise weights to i8_row or i4_row (one scale per row) or i4_g128 (one scale per 128
    /// columns). Patterns select weights, the last match wins:
    /// 'i8_row,*_exps*=i4_g128,output*=keep'. This changes the output; `ixc compile --text FILE`
    /// measures how much.
    #[arg(long, value_name = "FORMATS", value_parser = read_formats)]
    weights: Option<Formats>,
    #[command(flatten)]
    kv: KvChoice,
    /// Set an option of a pass; `ixc opt --help` lists them.
    #[arg(long = "set", value_name = "PASS.KEY=VALUE", value_parser = read_option)]
    options: Vec<String>,
}

/// Formats of the KV cache.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct KvChoice {
    /// Format of the KV cache: f16, q8_0 (about half the size) or q4_0 (about a quarter);
    /// KEYS,VALUES gives each its own. q8_0 and q4_0 need heads of a multiple of 32 elements and
    /// change the output; `ixc eval` measures how much [default: f16].
    #[arg(long, value_name = "FORMAT", value_parser = read_cache)]
    kv: Option<cache::CacheOptions>,
}

impl KvChoice {
    /// Returns the options of passes with this choice added.
    pub fn over(&self, options: OptionSet) -> OptionSet {
        match &self.kv {
            Some(kv) => options.with(kv),
            None => options,
        }
    }
}

fn read_override(text: &str) -> Result<Override, String> {
    Override::read(text).ok_or_else(|| format!("expected {}", Overrides::EXPECTED))
}

fn read_formats(text: &str) -> Result<Formats, String> {
    Formats::read(text).ok_or_else(|| format!("expected {}", Formats::EXPECTED))
}

fn read_cache(text: &str) -> Result<cache::CacheOptions, String> {
    let (keys, values) = text.split_once(',').unwrap_or((text, text));
    let read = |text: &str| CacheFormat::read(text.trim()).filter(|format| format.0.is_some());
    match (read(keys), read(values)) {
        (Some(keys), Some(values)) => Ok(cache::CacheOptions { keys, values }),
        _ => {
            let names: Vec<&str> = CacheFormat::formats().map(Format::name).collect();
            Err(format!("expected {}, or a format of keys, a comma and a format of values", names.join(", ")))
        }
    }
}

fn read_option(text: &str) -> Result<String, String> {
    // Checked while parsing, so that clap can report the wrong argument.
    let checked = manager::set(&mut OptionSet::default(), text);
    checked.map(|()| text.to_owned()).map_err(|error| error.to_string())
}

impl PassChoice {
    /// Returns the options in the form that passes take.
    ///
    /// # Errors
    /// Never for options that clap has parsed.
    pub fn options(&self) -> Result<OptionSet, ixc_error::Error> {
        let mut options = OptionSet::default();
        for text in &self.options {
            manager::set(&mut options, text).map_err(PassError::from)?;
        }
        if !self.tile.is_empty() {
            let mut said: tile::TileOptions = options.get();
            said.choose.0.extend(self.tile.iter().cloned());
            options = options.with(&said);
        }
        if let Some(weights) = &self.weights {
            options = options.with(&requantise::RequantiseOptions { weights: weights.clone() });
        }
        Ok(self.kv.over(options))
    }
}

/// Lists all passes with their options, for the help.
pub fn list() -> String {
    let mut list = "PASSES:".to_owned();
    for pass in PASSES {
        list += &format!("\n  {}\n    {}", pass.name, pass.doc);
        for row in pass.options {
            let default = (row.default)();
            let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
            list += &format!("\n    {}.{}: {}{default}", pass.name, row.key, row.doc);
        }
    }
    list
}
