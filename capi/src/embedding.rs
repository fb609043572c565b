//! Embeddings of texts.

use std::ffi::c_char;
use std::path::Path;

use ixc::embedding::Embedder;
use ixc::loaded_model::{LoadOptions, LoadedModel};

use crate::arguments::{Buffer, HandlePlace, free, not_null, string, texts};
use crate::cancel::IxcCancel;
use crate::error::{Failure, IxcStatus, catch_failure, status};
use crate::exclusive::Exclusive;
use crate::model::{IxcModelOptions, load_options};

/// A model that embeds texts.
#[derive(Debug)]
pub struct IxcEmbedder {
    embedder: Exclusive<Embedder>,
    width: usize,
}

/// Opens a model for embeddings.
///
/// # Safety
/// See [`ixc_model_open`](crate::model::ixc_model_open).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_embedder_open(
    path: *const c_char,
    options: *const IxcModelOptions,
    embedder: *mut *mut IxcEmbedder,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let place = unsafe { HandlePlace::new("embedder", embedder) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let (path, options) = unsafe { (string("path", path)?, load_options(options, 0)?) };
        let options = LoadOptions { embeddings: true, ..options };
        let embedder = Embedder::new(LoadedModel::open(Some(Path::new(path)), &options)?, None)?;
        let width = embedder.width();
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { place.give(IxcEmbedder { embedder: Exclusive::new(embedder), width }) };
        Ok(())
    })
}

/// Closes an embedder.
///
/// # Safety
/// `embedder` is null, or came from [`ixc_embedder_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_embedder_close(embedder: *mut IxcEmbedder) {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { free(embedder) };
}

/// Returns the length of a vector, or 0.
///
/// # Safety
/// `embedder` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_embedder_width(embedder: *const IxcEmbedder) -> usize {
    catch_failure(0, || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        Ok(not_null("embedder", unsafe { embedder.as_ref() })?.width)
    })
}

/// Writes the vectors of texts.
///
/// # Safety
/// `embedder` is null or open; all arrays have as many elements as the header requires. `cancel` is
/// null or was not freed.
#[allow(clippy::too_many_arguments, reason = "C has no slices, so each is two arguments")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_embed(
    embedder: *mut IxcEmbedder,
    texts_at: *const *const c_char,
    bytes: *const usize,
    count: usize,
    cancel: *const IxcCancel,
    vectors: *mut f32,
    capacity: usize,
    needed: *mut usize,
) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let embedder = not_null("embedder", unsafe { embedder.as_ref() })?;
        let buffer = Buffer::new("vectors", vectors, capacity, needed)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let texts = unsafe { texts("texts", texts_at, bytes, count) }?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        let cancel = unsafe { IxcCancel::read(cancel) };
        // SAFETY: the caller meets the conditions of `# Safety`.
        if !unsafe { buffer.has_room(texts.len().saturating_mul(embedder.width), 0) }? {
            return Ok(());
        }
        let mut embedder = embedder.embedder.lock("the embedder")?;
        let vectors = embed(&mut embedder, &texts, &cancel)?;
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { buffer.fill(&vectors) }
    })
}

/// Returns the vectors of texts, one after the other.
fn embed(embedder: &mut Embedder, texts: &[&str], cancel: &IxcCancel) -> Result<Vec<f32>, Failure> {
    let texts = texts.iter().map(|text| embedder.encode(text)).collect::<Result<Vec<_>, _>>()?;
    let mut ids = Vec::with_capacity(texts.len());
    let mut vectors = Vec::with_capacity(texts.len());
    let compute = || {
        for tokens in texts {
            ids.push(embedder.submit(tokens)?);
        }
        while !embedder.is_idle() {
            cancel.check()?;
            for (id, vector) in embedder.step() {
                vectors.push((id, vector?));
            }
        }
        Ok(())
    };
    let result = compute();
    if result.is_err() {
        ids.into_iter().for_each(|id| embedder.cancel(id));
        return result.map(|()| Vec::new());
    }
    vectors.sort_unstable_by_key(|(id, _)| *id);
    Ok(vectors.into_iter().flat_map(|(_, vector)| vector).collect())
}
