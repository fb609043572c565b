//! Models: options, loading and facts.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ixc::compile;
use ixc::grammar::Vocabulary;
use ixc::loaded_model::{LoadOptions, LoadedModel};
use ixc::runtime::engine::{self, SequenceId};
use ixc::runtime::sample::SamplerState;
use ixc::session::Session;
use ixc::targets::{TARGETS, Target};
use ixc::text::tokenizer::Tokenizer;

use crate::arguments::{HandlePlace, SizedStruct, free, not_null, optional_string, read_struct, string, write_sized};
use crate::error::{Failure, IxcStatus, catch_failure, status};
use crate::exclusive::{Exclusive, LockGuard};

/// `IXC_NO_TOKEN`.
const NO_TOKEN: u32 = u32::MAX;

/// A loaded model.
#[derive(Debug)]
pub struct IxcModel(pub(crate) Arc<Shared>);

/// `ixc_model_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcModelOptions {
    size: usize,
    target: *const c_char,
    model_file: *const c_char,
    memory: u64,
    threads: u32,
    context: u32,
    sequences: u32,
    max_step: u32,
}

// SAFETY: it is `repr(C)` and begins with its size. Any bytes are pointers and numbers.
unsafe impl SizedStruct for IxcModelOptions {}

/// `ixc_facts`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcFacts {
    size: usize,
    weight_bytes: u64,
    pub(crate) vocabulary: u32,
    pub(crate) context: u32,
    pub(crate) trained_context: u32,
    max_step: u32,
    pub(crate) sequences: u32,
    threads: u32,
    bos: u32,
    eos: u32,
}

// SAFETY: it is `repr(C)` and begins with its size. Any bytes are numbers.
unsafe impl SizedStruct for IxcFacts {}

/// A model, and the state that all handles of it share.
#[derive(Debug)]
pub(crate) struct Shared {
    running: Exclusive<Running>,
    tokenizer: Result<Arc<Tokenizer>, Failure>,
    pub chat_template: Option<String>,
    pub facts: IxcFacts,
    architecture: CString,
    target: CString,
    /// Vocabulary for grammars, created for the first grammar.
    vocabulary: OnceLock<Result<Vocabulary, Failure>>,
    /// Sequences whose handles were freed. The next call removes them, so that freeing never waits.
    freed: Mutex<Vec<SequenceId>>,
}

/// The state of a model that only one call at a time may use.
#[derive(Debug)]
pub(crate) struct Running {
    pub session: Session,
    /// Tokens of the session's last text.
    pub text: Vec<u32>,
    /// Sampler of a loaded state.
    pub sampler: Option<SamplerState>,
    /// Tokens of each sequence.
    pub sequences: HashMap<SequenceId, Vec<u32>>,
}

impl Shared {
    /// Waits until no other call uses the model.
    pub fn lock(&self) -> Result<LockGuard<'_, Running>, Failure> {
        let mut running = self.running.lock("the model")?;
        let freed = std::mem::take(&mut *self.freed.lock().unwrap_or_else(PoisonError::into_inner));
        for id in freed {
            running.sequences.remove(&id);
            running.session.engine_mut().remove_sequence(id);
        }
        Ok(running)
    }

    /// Marks a sequence, so that the next call removes it.
    pub fn remove_later(&self, id: SequenceId) {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }

    pub fn tokenizer(&self) -> Result<&Tokenizer, Failure> {
        self.tokenizer.as_deref().map_err(Failure::clone)
    }

    /// Returns the vocabulary for grammars.
    pub fn vocabulary(&self) -> Result<&Vocabulary, Failure> {
        let new = || Ok(Vocabulary::new(self.tokenizer()?)?);
        self.vocabulary.get_or_init(new).as_ref().map_err(Failure::clone)
    }
}

/// Returns the target with this name.
pub(crate) fn target(name: &str) -> Result<Target, Failure> {
    Target::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|row| row.name).collect();
        Failure::usage(format!("there is no target {name:?}; targets are {}", names.join(", ")))
    })
}

/// Reads options of loading. `further` is the number of sequences in addition to the option
/// `sequences`.
///
/// # Safety
/// `at` is null or valid, and so are its texts.
pub(crate) unsafe fn load_options(at: *const IxcModelOptions, further: u32) -> Result<LoadOptions, Failure> {
    // SAFETY: the caller meets the conditions of `# Safety`.
    let given = unsafe { read_struct("options", at) }?;
    let mut options = LoadOptions::default();
    // SAFETY: the caller meets the conditions of `# Safety`.
    if let Some(name) = unsafe { optional_string("options->target", given.target) }? {
        options.compile = compile::CompileOptions { target: Some(target(name)?), ..options.compile };
    }
    // SAFETY: the caller meets the conditions of `# Safety`.
    options.model_file = unsafe { optional_string("options->model_file", given.model_file) }?.map(PathBuf::from);
    options.compile.max_tokens = Some(given.max_step).filter(|&tokens| tokens > 0);
    options.run = engine::EngineOptions {
        threads: Some(given.threads as usize).filter(|&threads| threads > 0),
        memory: Some(given.memory).filter(|&memory| memory > 0),
        context: Some(given.context.into()).filter(|&context| context > 0),
        sequences: given.sequences.saturating_add(further),
        ..options.run
    };
    Ok(options)
}

/// Converts a text to a C string, without zero bytes.
fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

impl IxcFacts {
    fn from_model(model: &LoadedModel) -> IxcFacts {
        let tokenizer = model.tokenizer().ok();
        let token = |id: fn(&Tokenizer) -> Option<u32>| tokenizer.and_then(id).unwrap_or(NO_TOKEN);
        let engine = model.engine();
        IxcFacts {
            size: size_of::<IxcFacts>(),
            weight_bytes: model.facts().bytes,
            vocabulary: engine.vocabulary(),
            context: engine.context(),
            trained_context: u32::try_from(model.facts().context).unwrap_or(u32::MAX),
            max_step: engine.max_tokens(),
            // The first sequence belongs to the session.
            sequences: engine.sequences().saturating_sub(1),
            threads: engine.threads() as u32,
            bos: token(Tokenizer::bos),
            eos: token(Tokenizer::eos),
        }
    }
}

impl Shared {
    fn new(model: LoadedModel) -> Shared {
        Shared {
            tokenizer: model.shared_tokenizer().cloned().map_err(Failure::from),
            chat_template: model.chat_template().map(str::to_owned),
            facts: IxcFacts::from_model(&model),
            architecture: c_text(&model.facts().architecture),
            target: c_text(model.target().name()),
            vocabulary: OnceLock::new(),
            freed: Mutex::default(),
            running: Exclusive::new(Running {
                session: Session::new(model),
                text: Vec::new(),
                sampler: None,
                sequences: HashMap::new(),
            }),
        }
    }
}

/// Opens a model.
///
/// # Safety
/// `path` is null or a text that ends with 0; `options` is null or valid, and so are its texts.
/// `model` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_model_open(
    path: *const c_char,
    options: *const IxcModelOptions,
    model: *mut *mut IxcModel,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let place = unsafe { HandlePlace::new("model", model) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let (path, options) = unsafe { (string("path", path)?, load_options(options, 1)?) };
        let model = LoadedModel::open(Some(Path::new(path)), &options)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { place.give(IxcModel(Arc::new(Shared::new(model)))) };
        Ok(())
    })
}

/// Closes a model.
///
/// # Safety
/// `model` is null, or came from [`ixc_model_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_model_close(model: *mut IxcModel) {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { free(model) };
}

/// Writes facts about a model.
///
/// # Safety
/// `model` is null or open; `facts` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_model_facts(model: *const IxcModel, facts: *mut IxcFacts) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { write_sized("facts", facts, &model.facts) }
    })
}

/// Returns the name of a model's architecture.
///
/// # Safety
/// `model` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_model_architecture(model: *const IxcModel) -> *const c_char {
    catch_failure(std::ptr::null(), || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        Ok(model.architecture.as_ptr())
    })
}

/// Returns the name of a model's target.
///
/// # Safety
/// `model` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_model_target(model: *const IxcModel) -> *const c_char {
    catch_failure(std::ptr::null(), || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        Ok(model.target.as_ptr())
    })
}
