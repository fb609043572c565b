//! States of a model's last text, in files.

use std::ffi::c_char;
use std::path::Path;

use crate::arguments::{Buffer, not_null, string};
use crate::error::{IxcStatus, status};
use crate::model::IxcModel;
use crate::sequence::state_output;

/// Writes the state at the end of the last text.
///
/// # Safety
/// `model` is null or open; `path` is null or a text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_state_save(model: *const IxcModel, path: *const c_char) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let output = state_output(Path::new(unsafe { string("path", path) }?))?;
        model.lock()?.session.save_state(output)?;
        Ok(())
    })
}

/// Reads a state.
///
/// # Safety
/// See [`ixc_state_save`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_state_load(model: *mut IxcModel, path: *const c_char) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let path = Path::new(unsafe { string("path", path) }?);
        let mut running = model.lock()?;
        let loaded = running.session.load_state(path)?;
        (running.text, running.sampler) = (loaded.tokens, loaded.sampler);
        Ok(())
    })
}

/// Writes the tokens of the last text.
///
/// # Safety
/// `model` is null or open; the buffer is as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_state_tokens(
    model: *const IxcModel,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcModel(model) = not_null("model", unsafe { model.as_ref() })?;
        let buffer = Buffer::new("tokens", tokens, capacity, count)?;
        let running = model.lock()?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { buffer.fill(&running.text) }
    })
}
