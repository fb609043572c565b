//! `cache`: stores keys and values in another format than f16, on request.
//!
//! The pass changes what a model computes, as `requantise` does. It does nothing unless an option
//! requests it. Every state with keys and values gets the requested formats. Rows appended to the
//! state are rounded ([`ixc_ir::cache`]), and attention reads the rounded rows. The pass fails for
//! a head whose width is not a multiple of the format's block length.
//!
//! Needs: a graph. Leaves: the same ops; states of keys and values in the requested formats.
//!
//! ```text
//! state @kv.0 : paged f16[8, S, 128], f16[8, S, 128]
//! ```
//! becomes, with `cache.keys = q8_0` and `cache.values = q4_0`,
//! ```text
//! state @kv.0 : paged q8_0[8, S, 128], q4_0[8, S, 128]
//! ```

use ixc_ir::cache::is_cached;
use ixc_ir::format::{FORMATS, Format};
use ixc_ir::graph::{Dim, Module};
use ixc_ir::state::{FieldRow, STATES};

use crate::decision::{Decision, RejectedAlternative};
use crate::error::PassError;
use crate::options::{OptionValue, PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "cache",
    doc: "Stores keys and values in other formats than f16, if `keys` or `values` names one.",
    options: CacheOptions::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct CacheOptions for "cache" {
        #[doc = "Format of keys: f16, q8_0, q4_0, or keep for the format in the graph."]
        pub keys: CacheFormat = CacheFormat::default(),
        #[doc = "The format of values: f16, q8_0 or q4_0; keep leaves it as the graph has it."]
        pub values: CacheFormat = CacheFormat::default(),
    }
}

/// Format for keys or values. `None` keeps the graph's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFormat(pub Option<Format>);

impl CacheFormat {
    /// Returns all formats that keys or values may have.
    pub fn formats() -> impl Iterator<Item = Format> {
        FORMATS.iter().map(|row| row.format).filter(|format| is_cached(*format))
    }
}

/// Option value that keeps the graph's format.
const KEEP: &str = "keep";

impl OptionValue for CacheFormat {
    const EXPECTED: &'static str = "f16, q8_0, q4_0 or keep";

    fn read(text: &str) -> Option<CacheFormat> {
        match text {
            KEEP => Some(CacheFormat(None)),
            name => Some(CacheFormat(Some(CacheFormat::formats().find(|format| format.name() == name)?))),
        }
    }

    fn text(&self) -> String {
        self.0.map_or(KEEP, Format::name).to_owned()
    }
}

/// Runs the pass.
///
/// # Errors
/// [`PassError::Head`].
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let CacheOptions { keys, values } = context.options.get();
    let asked = |row: &FieldRow| match row.name {
        "keys" => keys.0,
        "values" => values.0,
        _ => None,
    };
    for state in &mut module.states {
        for (field, row) in state.fields.iter_mut().zip(STATES[state.kind as usize].fields) {
            let Some(format) = asked(row).filter(|format| row.formats.contains(format)) else { continue };
            let width = field.dims.last().and_then(Dim::fixed).unwrap_or(0);
            if !width.is_multiple_of(format.block_len() as u64) {
                return Err(PassError::Head { state: state.name.clone(), field: row.name, width, format });
            }
            context.decide(|| {
                let decision = Decision::new("state", &state.name, "format").chose(format!("{} in {format}", row.name));
                let rejected = (field.format != format).then_some(field.format);
                decision.over_all(
                    rejected.map(|own| RejectedAlternative::new(own.name(), format!("cache.{} is {format}", row.name))),
                )
            });
            field.format = format;
        }
    }
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::OptionSet;
    use ixc_ir::graph::State;
    use ixc_ir::state::Rollback;
    use ixc_targets::Target;

    fn module(width: u64) -> Module {
        let states = vec![State::paged("kv.0", 2, width, 64), State::recurrent("s", &[32, 33], Rollback::None)];
        Module { states, ..Module::default() }
    }

    fn states(module: Module, options: CacheOptions) -> Result<Vec<String>, PassError> {
        let context = Context { options: OptionSet::default().with(&options), ..Context::new(Target::AVX2) };
        run(module, &context).map(|module| module.states.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn cache_pass_sets_key_and_value_formats_only() {
        let read = |text: &str| CacheFormat::read(text).unwrap();
        let asked = CacheOptions { keys: read("q8_0"), values: read("q4_0") };
        let expected = [
            "state @kv.0 : paged q8_0[2, S, 32], q4_0[2, S, 64]",
            "state @s : recurrent f32[32, 33] {rollback = none}",
        ];
        assert_eq!(states(module(32), asked).unwrap(), expected);
        let kept = CacheOptions { keys: read("keep"), values: read("f16") };
        assert_eq!(states(module(80), kept).unwrap()[0], "state @kv.0 : paged f16[2, S, 80], f16[2, S, 64]");
        assert_eq!(CacheFormat::read("f32"), None);
        for format in CacheFormat::formats() {
            assert!(CacheFormat::EXPECTED.contains(format.name()) && read(format.name()).text() == format.name());
        }
    }

    #[test]
    fn heads_of_partial_cache_blocks_are_refused() {
        let asked = CacheOptions { keys: CacheFormat::read("q8_0").unwrap(), values: CacheFormat::default() };
        let error = states(module(80), asked).unwrap_err().to_string();
        assert_eq!(
            error,
            "the keys of @kv.0 have heads of 80 elements, which are not a multiple of the q8_0 block of 32 elements; f16 works for any width"
        );
    }
}
