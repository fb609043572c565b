//! Expert use of a model: counted in a run, written as JSON, and read by a run that keeps the most
//! used experts in memory.
//!
//! ```json
//! {"schema":"ixc.experts.v1","tokens":2,"chosen":[[2,0,1,1],[1,1,2,0]],"weights":["blk.0.ffn_gate_exps.weight",…],"streamed":[…]}
//! ```
//!
//! The last field of a file, `crc32`, is the checksum of its text. A file that is written by hand
//! may omit it.
//!
//! `chosen` has a list for each layer with experts, in order: the number of tokens that chose each
//! expert. `weights` names a weight of each layer, which shows the layer's number in the model.
//! `streamed` counts the requests in each layer with streamed experts. Readers of a file use only
//! `chosen`.

use std::path::Path;

use ixc_failure::Class;
use ixc_files::{Kind, Output, OutputError, ReadError, read_text};
use ixc_runtime::engine::Engine;
use ixc_runtime::streaming::store::stats::{GroupBlocks, GroupStats};
use serde::{Deserialize, Serialize};

use ixc_compile::checksum::{ChecksumError, add_checksum, unsealed_if_there};

/// The schema's name and version.
pub const SCHEMA: &str = "ixc.experts.v1";
/// First bytes of a record of expert use.
const BEGIN: &[u8] = br#"{"schema":"ixc.experts.v"#;
/// Record of expert use.
pub const KIND: Kind =
    Kind { name: "record of expert use", is: |head| head.starts_with(BEGIN), streams: false, private: false };
/// Max bytes of a file with expert counts. A number of 20 digits for each of 512 experts in 128
/// layers takes a twelfth of it.
const MAX_BYTES: u64 = 16 << 20;

/// Count of tokens that chose each expert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertUse {
    /// Name and version of the file's format: [`SCHEMA`].
    schema: String,
    /// Tokens of all steps.
    #[serde(default)]
    pub tokens: u64,
    /// Number of tokens that chose each expert, by layer with experts, then by expert.
    pub chosen: Vec<Vec<u64>>,
    /// Name of one weight for each layer: the first of its experts' weights.
    #[serde(default)]
    pub weights: Vec<String>,
    /// Counts of streaming by layer, if experts are streamed.
    #[serde(default, skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub streamed: Option<Vec<LayerRequests>>,
}

/// Requests for a layer's streamed experts. An expert that several tokens of a step chose is
/// requested once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LayerRequests {
    /// Requested experts that were in memory.
    pub hits: u64,
    /// Requested experts that were already being read.
    pub on_the_way: u64,
    /// Requested experts that had to be read.
    pub misses: u64,
    /// Bytes read, as whole pages.
    pub bytes: u64,
    /// Experts that are in memory now.
    pub in_memory: u32,
    /// Experts that stay in memory once they are loaded.
    pub pinned: u32,
}

/// Error of reading a record of expert use.
#[derive(Debug, thiserror::Error)]
pub enum ExpertUseError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A damaged or edited file.
    #[error("{path}: {source}")]
    Damaged {
        /// File with the counts.
        path: String,
        /// The failed check.
        source: ChecksumError,
    },
    /// The file is not JSON of the expected form.
    #[error("{path}: is not a record of expert use: {source}")]
    Json {
        /// File with the counts.
        path: String,
        /// The fault and its position.
        source: serde_json::Error,
    },
    /// The file is of another kind or version.
    #[error("{path}: has schema {found:?}, expected {SCHEMA:?}")]
    Schema {
        /// File with the counts.
        path: String,
        /// Start of the schema in the file.
        found: String,
    },
}

impl ExpertUseError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ExpertUseError::Read(error) => error.class(),
            ExpertUseError::Damaged { .. } | ExpertUseError::Json { .. } | ExpertUseError::Schema { .. } => Class::Data,
        }
    }
}

impl ExpertUse {
    /// Returns the counts of an engine since it was loaded.
    pub fn from_engine(engine: &Engine) -> ExpertUse {
        let counts = engine.expert_counts();
        let streamed = engine.stream().map(|store| {
            let (groups, blocks) = (store.stats().groups, store.blocks_by_group());
            let of = |group: Option<u32>| {
                let number = group? as usize;
                let GroupStats { hits, on_the_way, misses, bytes, .. } = *groups.get(number)?;
                let GroupBlocks { in_memory, kept: pinned } = blocks.get(number).copied().unwrap_or_default();
                Some(LayerRequests { hits, on_the_way, misses, bytes, in_memory, pinned })
            };
            counts.layers().iter().map(|layer| of(layer.group).unwrap_or_default()).collect()
        });
        ExpertUse {
            schema: SCHEMA.to_owned(),
            tokens: counts.tokens(),
            chosen: counts.layers().iter().map(|layer| layer.chosen.clone()).collect(),
            weights: counts.layers().iter().map(|layer| layer.weight.clone()).collect(),
            streamed,
        }
    }

    /// Reads a file from [`ExpertUse::write`]. The caller must check that the counts fit the
    /// model's layers and experts.
    ///
    /// # Errors
    /// See [`ExpertUseError`].
    pub fn read(path: &Path) -> Result<ExpertUse, ExpertUseError> {
        ExpertUse::parse(&read_text(path, MAX_BYTES)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<ExpertUse, ExpertUseError> {
        let named = || path.display().to_string();
        let text = unsealed_if_there(&[], text).map_err(|source| ExpertUseError::Damaged { path: named(), source })?;
        let found: ExpertUse =
            serde_json::from_str(&text).map_err(|source| ExpertUseError::Json { path: named(), source })?;
        match found.schema == SCHEMA {
            true => Ok(found),
            false => Err(ExpertUseError::Schema { path: named(), found: found.schema.chars().take(64).collect() }),
        }
    }

    /// Returns these counts plus earlier counts of the same layers and experts.
    #[must_use]
    pub fn plus(mut self, before: &ExpertUse) -> ExpertUse {
        self.tokens = self.tokens.saturating_add(before.tokens);
        for (now, before) in self.chosen.iter_mut().zip(&before.chosen) {
            now.iter_mut().zip(before).for_each(|(now, before)| *now = now.saturating_add(*before));
        }
        self
    }

    /// Returns one line of JSON.
    pub fn to_json(&self) -> String {
        // Serialisation fails only for maps with keys that are not texts.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Writes the record.
    ///
    /// # Errors
    /// See [`OutputError`].
    pub fn write(&self, output: Output) -> Result<(), OutputError> {
        let text = add_checksum(&[], self.to_json().trim_end()) + "\n";
        output.write(|out| out.write_all(text.as_bytes())).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> Result<ExpertUse, String> {
        ExpertUse::parse(text, Path::new("hot.json")).map_err(|error| error.to_string())
    }

    #[test]
    fn expert_use_record_reads_back() {
        let streamed = Some(vec![LayerRequests { hits: 1, bytes: 4096, ..LayerRequests::default() }]);
        let used = ExpertUse {
            schema: SCHEMA.into(),
            tokens: 7,
            chosen: vec![vec![1, u64::MAX], vec![]],
            weights: vec!["blk.0.ffn_gate_exps.weight".into()],
            streamed,
        };
        let text = used.to_json();
        assert!((KIND.is)(text.as_bytes()) && !(KIND.is)(b"{\"schema\":\"ixc.inspect.v1\""));
        assert_eq!(parse_text(&text).unwrap(), ExpertUse { streamed: None, ..used.clone() });
        // A changed number in a file with a checksum is an error.
        let file = add_checksum(&[], text.trim_end());
        assert_eq!(parse_text(&file).unwrap(), parse_text(&text).unwrap());
        assert!(
            parse_text(&file.replacen("\"tokens\":7", "\"tokens\":8", 1))
                .unwrap_err()
                .contains("is damaged or was edited")
        );
        let twice = used.clone().plus(&used);
        assert_eq!((twice.tokens, twice.chosen), (14, vec![vec![2, u64::MAX], vec![]]));
    }

    #[test]
    fn invalid_expert_use_record_is_refused_with_place() {
        for (text, expected) in [
            ("", "hot.json: is not a record of expert use: EOF while parsing a value at line 1 column 0"),
            ("[]", "hot.json: is not a record of expert use: invalid length 0, expected struct ExpertUse"),
            (
                r#"{"schema":"ixc.experts.v1","chosen":[[1,-2]]}"#,
                "hot.json: is not a record of expert use: invalid value: integer `-2`, expected u64",
            ),
            (
                r#"{"schema":"ixc.experts.v1","chosen":[[1.5]]}"#,
                "hot.json: is not a record of expert use: invalid type: floating point `1.5`, expected u64",
            ),
            (r#"{"schema":"ixc.experts.v1"}"#, "hot.json: is not a record of expert use: missing field `chosen`"),
            (
                r#"{"schema":"ixc.experts.v2","chosen":[]}"#,
                "hot.json: has schema \"ixc.experts.v2\", expected \"ixc.experts.v1\"",
            ),
        ] {
            let error = parse_text(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(parse_text(&"[".repeat(1 << 20)).is_err());
    }
}
