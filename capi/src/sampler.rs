//! Samplers: settings by name, and draws from logits.

use std::ffi::c_char;
use std::sync::Arc;

use ixc::runtime::sample::{Kind, NUMBERS, SAMPLERS, Sampler, SamplerSettings};
use ixc::session::{DRY_BREAKERS, breakers};

use crate::arguments::{HandlePlace, Place, free, not_null, slice, string};
use crate::error::{Failure, IxcStatus, status};
use crate::exclusive::Exclusive;
use crate::model::{IxcModel, Shared};

/// A sampler.
#[derive(Debug)]
pub struct IxcSampler(Exclusive<State>);

#[derive(Debug)]
struct State {
    settings: SamplerSettings,
    /// The sampler, which is created for the first token. Settings cannot change after that.
    sampler: Option<Sampler>,
}

impl IxcSampler {
    /// Returns the settings, with DRY sequence breakers for this model's tokenizer.
    pub(crate) fn settings(&self, model: &Shared) -> Result<SamplerSettings, Failure> {
        complete(&self.0.lock("the sampler")?.settings, model)
    }

    /// Changes the settings.
    fn change(&self, change: impl FnOnce(&mut SamplerSettings) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut state = self.0.lock("the sampler")?;
        match state.sampler {
            Some(_) => Err(Failure::usage(
                "the sampler already has tokens, so its settings cannot change; set them before its first token",
            )),
            None => change(&mut state.settings),
        }
    }
}

/// Returns settings with the DRY sequence breakers, if the DRY sampler is on.
fn complete(settings: &SamplerSettings, model: &Shared) -> Result<SamplerSettings, Failure> {
    let mut settings = settings.clone();
    if settings.dry_multiplier > 0.0 {
        settings.dry_breakers = Arc::new(breakers(model.tokenizer()?, &DRY_BREAKERS)?);
    }
    Ok(settings)
}

/// Creates a sampler.
///
/// # Safety
/// `sampler` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sampler_new(sampler: *mut *mut IxcSampler) -> IxcStatus {
    status(|| {
        let state = State { settings: SamplerSettings::default(), sampler: None };
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { HandlePlace::new("sampler", sampler)?.give(IxcSampler(Exclusive::new(state))) };
        Ok(())
    })
}

/// Frees a sampler.
///
/// # Safety
/// `sampler` is null, or came from [`ixc_sampler_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sampler_free(sampler: *mut IxcSampler) {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { free(sampler) };
}

/// Sets a number among the settings.
///
/// # Safety
/// `sampler` is null or was not freed; `name` is null or a text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sampler_set(sampler: *mut IxcSampler, name: *const c_char, value: f64) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let sampler = not_null("sampler", unsafe { sampler.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let name = unsafe { string("name", name) }?;
        let number = NUMBERS.iter().find(|number| number.name == name).ok_or_else(|| {
            let names: Vec<&str> = NUMBERS.iter().map(|number| number.name).collect();
            Failure::usage(format!("there is no setting {name:?}; settings are {}", names.join(", ")))
        })?;
        let (min, max) = (number.min, number.max);
        if !(min..=max).contains(&value) {
            return Err(Failure::usage(format!("{name} is {value}; expected {min} to {max}")));
        }
        if number.whole && value.fract() != 0.0 {
            return Err(Failure::usage(format!("{name} is {value}; expected a whole number")));
        }
        sampler.change(|settings| {
            (number.set)(settings, value);
            Ok(())
        })
    })
}

/// Sets the seed of the draws.
///
/// # Safety
/// `sampler` is null or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sampler_set_seed(sampler: *mut IxcSampler, seed: u64) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let sampler = not_null("sampler", unsafe { sampler.as_ref() })?;
        sampler.change(|settings| {
            settings.seed = seed;
            Ok(())
        })
    })
}

/// Sets the samplers and their order.
///
/// # Safety
/// `sampler` is null or was not freed; `names` is null or a text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sampler_set_order(sampler: *mut IxcSampler, names: *const c_char) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let sampler = not_null("sampler", unsafe { sampler.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let names = unsafe { string("names", names) }?;
        let kind = |name: &str| {
            Kind::from_name(name).ok_or_else(|| {
                let known: Vec<&str> = SAMPLERS.iter().map(|row| row.name).collect();
                Failure::usage(format!("there is no sampler {name:?}; samplers are {}", known.join(", ")))
            })
        };
        let kinds = names.split(';').filter(|name| !name.is_empty()).map(kind).collect::<Result<_, _>>()?;
        sampler.change(|settings| {
            settings.samplers = kinds;
            Ok(())
        })
    })
}

/// Adds a number to the logit of a token.
///
/// # Safety
/// `sampler` is null or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sampler_bias(sampler: *mut IxcSampler, token: u32, bias: f32) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let sampler = not_null("sampler", unsafe { sampler.as_ref() })?;
        if bias.is_nan() || bias == f32::INFINITY {
            return Err(Failure::usage(format!("bias is {bias}; expected a number or minus infinity")));
        }
        sampler.change(|settings| {
            settings.bias.push((token, bias));
            Ok(())
        })
    })
}

/// Records tokens for penalties.
///
/// # Safety
/// `sampler` is null or was not freed; `model` is null or open; `tokens` has `count` tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sampler_accept(
    sampler: *mut IxcSampler,
    model: *const IxcModel,
    tokens: *const u32,
    count: usize,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let sampler = not_null("sampler", unsafe { sampler.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let tokens = unsafe { slice("tokens", tokens, Some(count)) }?;
        let mut state = sampler.0.lock("the sampler")?;
        let sampler = state.get_or_create(model)?;
        tokens.iter().for_each(|token| sampler.accept(*token));
        Ok(())
    })
}

impl State {
    /// Returns the sampler. Creates it at the first call; settings cannot change after that.
    fn get_or_create(&mut self, model: &Shared) -> Result<&mut Sampler, Failure> {
        match &mut self.sampler {
            Some(sampler) => Ok(sampler),
            none => Ok(none.insert(Sampler::new(complete(&self.settings, model)?)?)),
        }
    }
}

/// Draws a token from logits.
///
/// # Safety
/// `sampler` is null or was not freed; `model` is null or open; `logits` has `count` numbers.
/// `token` is null or has room for a token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_sampler_sample(
    sampler: *mut IxcSampler,
    model: *const IxcModel,
    logits: *const f32,
    count: usize,
    token: *mut u32,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let sampler = not_null("sampler", unsafe { sampler.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        let place = Place::new("token", token)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let logits = unsafe { slice("logits", logits, Some(count)) }?;
        if logits.len() != model.facts.vocabulary as usize {
            let text = format!(
                "found {count} logits; expected one for each of the {} tokens of the vocabulary",
                model.facts.vocabulary
            );
            return Err(Failure::usage(text));
        }
        // The model comes before other locks everywhere, so that no two calls wait for each other.
        let running = model.lock()?;
        let mut state = sampler.0.lock("the sampler")?;
        let token = state.get_or_create(model)?.sample(logits, running.session.model().engine())?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { place.write(token) };
        Ok(())
    })
}
