//! Options for speculation, for commands that generate text.
//!
//! ```text
//! ixc run model.gguf -f code.rs --spec ngram
//! ixc serve large.gguf --spec small.gguf
//! ixc run glm-4.7.gguf -p "The borrow checker" --spec nextn
//! ```

use std::path::Path;
use std::sync::Arc;

use clap::builder::{OsStringValueParser, TypedValueParser};
use ixc_architectures::Nextn;
use ixc_generate::draft_model::{self, DraftModel};
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
use ixc_generate::own_layer::OwnLayer;
use ixc_generate::speculate::{self, Drafter, MAX_DRAFT, MAX_ROWS, Ngram, NgramOptions, Speculation};
use ixc_runtime::engine;
use ixc_runtime::progress::ProgressCounter;

use super::Usage;
use super::model_name::ModelName;
use super::output::note;

/// Methods of drafting tokens, with the names that llama.cpp gives them, too.
static WORDS: [(SpeculationMethod, &[&str]); 4] = [
    (SpeculationMethod::Off, &["off", "none"]),
    (SpeculationMethod::Ngram, &["ngram", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]),
    (SpeculationMethod::OwnLayer, &["nextn", "mtp", "draft-mtp"]),
    (SpeculationMethod::Model(None), &["draft", "draft-simple"]),
];
/// Names of draft models that use the target model's activations, which are not supported.
const OF_ACTIVATIONS: [&str; 5] = ["eagle", "draft-eagle3", "draft-dflash", "draft-dspark", "eagle3"];

/// Method of drafting tokens, as the options name it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SpeculationMethod {
    Off,
    Ngram,
    /// The model's own draft layer.
    OwnLayer,
    /// A small model; `None` is the one that --model-draft names.
    Model(Option<ModelName>),
}

impl SpeculationMethod {
    fn parser() -> impl TypedValueParser<Value = SpeculationMethod> {
        OsStringValueParser::new().try_map(|word| {
            if let Some((how, _)) = WORDS.iter().find(|(_, words)| words.iter().any(|known| word == *known)) {
                return Ok(how.clone());
            }
            if OF_ACTIVATIONS.iter().any(|known| word == *known) {
                return Err(
                    "draft models that read the activations of the main model are not supported; expected ngram, nextn or a separate draft model"
                        .to_owned(),
                );
            }
            ModelName::parse(&word).map(|name| SpeculationMethod::Model(Some(name)))
        })
    }
}

/// Speculation, for a command that generates text.
#[derive(Debug, clap::Args)]
pub struct SpeculationChoice {
    /// Speculative decoding: draft tokens and verify them in one step. ngram drafts from earlier
    /// text, nextn with the model's own layer, a file with a small model. The output stays the
    /// same. Drafting pauses while it does not pay.
    #[arg(long, visible_alias = "spec-type", value_name = "HOW", default_value = "off", value_parser = SpeculationMethod::parser())]
    spec: SpeculationMethod,
    /// Draft model with the same vocabulary; same as --spec MODEL.
    #[arg(long, alias = "spec-draft-model", value_name = "MODEL", value_parser = ModelName::parser())]
    model_draft: Option<ModelName>,
    /// Maximum number of draft tokens in a step.
    #[arg(long, aliases = ["draft", "draft-n", "spec-draft-n-max", "spec-ngram-mod-n-max", "spec-ngram-simple-size-m"], value_name = "N",
          default_value_t = speculate::SpeculationOptions::default().max, value_parser = limit(1, MAX_DRAFT))]
    draft_max: usize,
    /// Minimum number of draft tokens; shorter drafts are not verified.
    #[arg(long, aliases = ["draft-n-min", "spec-draft-n-min", "spec-ngram-mod-n-min"], value_name = "N",
          default_value_t = speculate::SpeculationOptions::default().min, value_parser = limit(0, MAX_DRAFT))]
    draft_min: usize,
    /// Minimum probability of a draft token, for a draft model or nextn; the draft ends before a
    /// less likely one.
    #[arg(long, alias = "spec-draft-p-min", value_name = "P", default_value_t = draft_model::DraftModelOptions::default().min_probability)]
    draft_p_min: f32,
    /// Maximum length of the n-gram that ngram searches for.
    #[arg(long, aliases = ["spec-ngram-size-n", "spec-ngram-simple-size-n", "spec-ngram-mod-n-match"], value_name = "N",
          default_value_t = NgramOptions::default().max, value_parser = limit(1, MAX_NGRAM))]
    spec_ngram_max: usize,
    /// Minimum length of the n-gram that ngram searches for.
    #[arg(long, value_name = "N", default_value_t = NgramOptions::default().min, value_parser = limit(1, MAX_NGRAM))]
    spec_ngram_min: usize,
    /// Always draft up to --draft-max tokens, even if it does not pay.
    #[arg(long, alias = "spec-force")]
    spec_always: bool,
}

/// Max length of an n-gram to search for: longer n-grams would not improve a match.
const MAX_NGRAM: usize = 1024;

/// Returns clap's parser of a number in a range.
fn limit(least: usize, most: usize) -> impl TypedValueParser<Value = usize> {
    let range = least as u64..=most as u64;
    clap::value_parser!(u64).range(range).map(|count| usize::try_from(count).unwrap_or(usize::MAX))
}

/// Source of draft tokens, before the target model is loaded.
#[derive(Debug)]
pub enum Guesser {
    Ngram(Ngram),
    /// The model's own draft layer, loaded.
    OwnLayer(Box<LoadedModel>),
    /// A loaded draft model.
    Model(Box<LoadedModel>),
}

impl SpeculationChoice {
    fn method(&self) -> SpeculationMethod {
        match (&self.spec, &self.model_draft) {
            (SpeculationMethod::Off, Some(name)) => SpeculationMethod::Model(Some(name.clone())),
            (SpeculationMethod::Model(None), Some(name)) => SpeculationMethod::Model(Some(name.clone())),
            (how, _) => how.clone(),
        }
    }

    /// Returns whether there is a source of draft tokens.
    pub fn is_on(&self) -> bool {
        self.method() != SpeculationMethod::Off
    }

    /// Returns the file of the draft model.
    pub fn file(&self) -> Option<&Path> {
        let named = match &self.spec {
            SpeculationMethod::Model(Some(name)) => Some(name),
            SpeculationMethod::Off
            | SpeculationMethod::Ngram
            | SpeculationMethod::OwnLayer
            | SpeculationMethod::Model(None) => self.model_draft.as_ref(),
        };
        named.and_then(ModelName::path)
    }

    /// Returns the extra outputs that the model needs for its own draft layer.
    pub fn nextn(&self) -> Nextn {
        if self.method() == SpeculationMethod::OwnLayer { Nextn::Fed } else { Nextn::Absent }
    }

    /// Returns the engine options `run`, with room for draft tokens if speculation is on.
    pub fn options(&self, run: engine::EngineOptions) -> engine::EngineOptions {
        if !self.is_on() {
            return run;
        }
        let sequences = run.sequences.max(1) as usize;
        // Max number of rows in a step with drafts.
        let more = MAX_ROWS.saturating_sub(sequences);
        engine::EngineOptions { more_additions: more as u32, ..run }
    }

    /// Opens the source of draft tokens; `None` without speculation. A draft model, or the model's
    /// own draft layer, is loaded before the large model, and the large model gets the rest of the
    /// memory budget. `like` has the options of the large model, and `model` is its path (`None`
    /// for the demo model).
    ///
    /// # Errors
    /// When the options contradict each other, or the draft model or draft layer cannot be loaded.
    pub fn open(&self, model: Option<&Path>, like: &LoadOptions) -> anyhow::Result<Option<Guesser>> {
        if !(0.0..=1.0).contains(&self.draft_p_min) {
            return Err(Usage(format!("--draft-p-min is {}; a probability is from 0 to 1", self.draft_p_min)).into());
        }
        let (path, nextn) = match self.method() {
            SpeculationMethod::Off => return Ok(None),
            SpeculationMethod::Ngram | SpeculationMethod::OwnLayer if self.model_draft.is_some() => {
                let wrong = "--spec ngram and --spec nextn use no draft model: leave --spec or --model-draft out";
                return Err(Usage(wrong.into()).into());
            }
            SpeculationMethod::OwnLayer => (model.map(Path::to_owned), Nextn::Alone),
            SpeculationMethod::Ngram => {
                let (min, max) = (self.spec_ngram_min, self.spec_ngram_max);
                if min > max {
                    let wrong = format!("--spec-ngram-min is {min}, more than --spec-ngram-max, {max}");
                    return Err(Usage(wrong).into());
                }
                return Ok(Some(Guesser::Ngram(Ngram::new(NgramOptions { min, max }))));
            }
            SpeculationMethod::Model(None) => {
                return Err(Usage("the draft model is missing; give it with --model-draft".into()).into());
            }
            SpeculationMethod::Model(Some(name)) => (name.path().map(Path::to_owned), Nextn::Absent),
        };
        let path = path.as_deref();
        if self.model_draft.is_some() && matches!(&self.spec, SpeculationMethod::Model(Some(_))) {
            return Err(Usage("--spec and --model-draft both name a draft model; leave one of them out".into()).into());
        }
        let run = &like.run;
        let run = engine::EngineOptions {
            threads: run.threads,
            pin: run.pin,
            context: None,
            sequences: run.sequences,
            backend: run.backend,
            skip_weight_check: run.skip_weight_check,
            progress: Some(Arc::new(ProgressCounter::default())),
            ..engine::EngineOptions::default()
        };
        let compile = ixc_compile::compile::CompileOptions {
            target: like.compile.target,
            ..ixc_compile::compile::CompileOptions::default()
        };
        let options = |context| LoadOptions {
            compile: compile.clone(),
            run: engine::EngineOptions { context, ..run.clone() },
            nextn,
            plan_cache: like.plan_cache.clone(),
            ..LoadOptions::default()
        };
        // Use the context of the large model, or the draft model's max context if that is shorter.
        let session = match LoadedModel::open(path, &options(like.run.context)) {
            Err(ixc_generate::Error::Load(ixc_runtime::load::LoadError::Context { max, .. })) => {
                LoadedModel::open(path, &options(Some(max.into())))?
            }
            other => other?,
        };
        let session = Box::new(session);
        Ok(Some(if nextn == Nextn::Alone { Guesser::OwnLayer(session) } else { Guesser::Model(session) }))
    }

    /// Returns the speculation for a model, or `None` with a message if the model's states do not
    /// allow it.
    ///
    /// # Errors
    /// When the draft model has another vocabulary, or the model does not provide the inputs of its
    /// draft layer.
    pub fn for_model(&self, guesser: Option<Guesser>, model: &LoadedModel) -> anyhow::Result<Option<Speculation>> {
        let Some(guesser) = guesser else { return Ok(None) };
        if let Err(error) = model.check_speculation() {
            note!("ixc: --spec has no effect: {error}");
            return Ok(None);
        }
        let least = draft_model::DraftModelOptions { min_probability: self.draft_p_min };
        let drafter: Box<dyn Drafter> = match guesser {
            Guesser::Ngram(ngram) => Box::new(ngram),
            Guesser::OwnLayer(layer) => Box::new(OwnLayer::new(*layer, model, least)?),
            Guesser::Model(small) => Box::new(DraftModel::new(*small, model, least)?),
        };
        let options =
            speculate::SpeculationOptions { max: self.draft_max, min: self.draft_min, always: self.spec_always };
        Ok(Some(Speculation::new(drafter, options)))
    }
}
