//! Options of passes on the command line.
//!
//! ```text
//! ixc compile model.gguf --tile 'blk.*.ffn_down*: rows=16 gemm/48' --set fuse.rounds=8
//! ixc run model.gguf --kv q8_0
//! ```

use ixc::ir::format::Format;
use ixc::passes::cache::{self, Cached};
use ixc::passes::error::PassError;
use ixc::passes::manager::{self, PASSES};
use ixc::passes::options::{OptionSet, OptionValue};
use ixc::passes::requantise::{self, Formats};
use ixc::passes::tile::{self, Override, Overrides};

/// What passes are told.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PassChoice {
    /// Cut weights whose names match a pattern so, in place of how their kernels and the caches say: PATTERN: rows=N of an item, kernels by
    /// rows, or both, such as 'blk.*.ffn_down*: rows=32 gemv<=5/5x16 gemm/48'. Several are taken; of those that match the last counts.
    #[arg(long, value_name = "PATTERN: TILING", value_parser = read_override)]
    tile: Vec<Override>,
    /// Requantise the weights that products read: i8_row or i4_row, one scale for a whole row, or i4_g128, one for 128 columns. By name:
    /// 'i8_row,*_exps*=i4_g128,output*=keep'; of those that match a weight the last counts. Changes what the model says; `ixc compile --text FILE` tells how much.
    #[arg(long, value_name = "FORMATS", value_parser = read_formats)]
    weights: Option<Formats>,
    #[command(flatten)]
    kv: KvChoice,
    /// Set an option of a pass; `ixc opt --help` lists them.
    #[arg(long = "set", value_name = "PASS.KEY=VALUE", value_parser = read_option)]
    options: Vec<String>,
}

/// What keys and values are kept in.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct KvChoice {
    /// Keep keys and values in a format: f16; q8_0, which takes about half of that; q4_0, about a quarter. Or in two, KEYS,VALUES. Heads must have a
    /// multiple of 32 elements for q8_0 and q4_0, which change what the model says: `ixc eval` tells how much [default: f16].
    #[arg(long, value_name = "FORMAT", value_parser = read_cache)]
    kv: Option<cache::Options>,
}

impl KvChoice {
    /// As passes take it, over what else they are told.
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

fn read_cache(text: &str) -> Result<cache::Options, String> {
    let (keys, values) = text.split_once(',').unwrap_or((text, text));
    let read = |text: &str| Cached::read(text.trim()).filter(|format| format.0.is_some());
    match (read(keys), read(values)) {
        (Some(keys), Some(values)) => Ok(cache::Options { keys, values }),
        _ => {
            let names: Vec<&str> = Cached::formats().map(Format::name).collect();
            Err(format!("expected {}, or such a format of keys, a comma and one of values", names.join(", ")))
        }
    }
}

fn read_option(text: &str) -> Result<String, String> {
    // Told here, where clap can say which argument it was.
    let checked = manager::set(&mut OptionSet::default(), text);
    checked.map(|()| text.to_owned()).map_err(|error| error.to_string())
}

impl PassChoice {
    /// As passes take them.
    ///
    /// # Errors
    /// None for what clap has read.
    pub fn options(&self) -> Result<OptionSet, ixc::Error> {
        let mut options = OptionSet::default();
        for text in &self.options {
            manager::set(&mut options, text).map_err(PassError::from)?;
        }
        if !self.tile.is_empty() {
            let mut said: tile::Options = options.of();
            said.choose.0.extend(self.tile.iter().cloned());
            options = options.with(&said);
        }
        if let Some(weights) = &self.weights {
            options = options.with(&requantise::Options { weights: weights.clone() });
        }
        Ok(self.kv.over(options))
    }
}

/// All passes with their options, for help.
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
