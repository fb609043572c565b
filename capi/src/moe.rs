//! A model's experts, and rows that are being computed.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use ixc::compile;
use ixc::moe::{Handle, Layer, Moe, MoeOptions, Rows};
use ixc::runtime::engine;

use crate::arguments::{free, not_null, slice, string};
use crate::error::{Failure, catch_failure};
use crate::model::target;

/// A model's routed experts.
#[derive(Debug)]
pub struct IxcMoe(Moe);

/// Rows that are being computed.
#[derive(Debug)]
pub struct IxcJob(Handle);

/// `ixc_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcOptions {
    target: *const c_char,
    memory: u64,
    threads: u32,
    max_rows: u32,
}

/// `ixc_layer`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IxcLayer {
    layer: u32,
    width: u32,
    used: u32,
    experts: u32,
}

/// Opens a model's experts.
///
/// # Safety
/// `path` is null or a string that ends with 0; `options` is null or valid, and so is its target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_moe_open(path: *const c_char, options: *const IxcOptions) -> *mut IxcMoe {
    catch_failure(std::ptr::null_mut(), || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let path = unsafe { string("path", path) }?;
        let mut all = MoeOptions::default();
        // SAFETY: the caller meets the conditions of `# Safety`.
        if let Some(options) = unsafe { options.as_ref() } {
            if !options.target.is_null() {
                // SAFETY: the caller meets the conditions of `# Safety`.
                let name = unsafe { string("target", options.target) }?;
                all.compile = compile::CompileOptions { target: Some(target(name)?), ..all.compile };
            }
            all.compile.max_tokens = Some(options.max_rows).filter(|&rows| rows > 0);
            let threads = Some(options.threads as usize).filter(|&threads| threads > 0);
            let memory = Some(options.memory).filter(|&memory| memory > 0);
            all.run = engine::EngineOptions { threads, memory, ..all.run };
        }
        let moe = Moe::open(Some(Path::new(path)), &all)?;
        Ok(Box::into_raw(Box::new(IxcMoe(moe))))
    })
}

/// Closes a model's experts.
///
/// # Safety
/// `moe` is null, or came from [`ixc_moe_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_moe_close(moe: *mut IxcMoe) {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { free(moe) };
}

/// Writes the layers that have experts, and returns their number.
///
/// # Safety
/// `moe` is null or open; `layers` is null or has room for `room` layers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_moe_layers(moe: *const IxcMoe, layers: *mut IxcLayer, room: usize) -> i64 {
    catch_failure(-1, || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcMoe(moe) = not_null("moe", unsafe { moe.as_ref() })?;
        if layers.is_null() && room > 0 {
            return Err(Failure::usage("layers is NULL, but its capacity is not 0"));
        }
        for (at, layer) in moe.layers().iter().enumerate().take(room) {
            let &Layer { number, width, used, experts, .. } = layer;
            // SAFETY: the caller meets the conditions of `# Safety`; the array has room for more
            // than `at` layers.
            unsafe { layers.add(at).write_unaligned(IxcLayer { layer: number, width, used, experts }) };
        }
        Ok(moe.layers().len() as i64)
    })
}

/// Submits rows to compute.
///
/// # Safety
/// `moe` is null or open; the other pointers have as many numbers as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_moe_submit(
    moe: *const IxcMoe,
    layer: u32,
    kind: c_int,
    rows: *const c_void,
    ids: *const i32,
    weights: *const f32,
    n: usize,
) -> *mut IxcJob {
    catch_failure(std::ptr::null_mut(), || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcMoe(moe) = not_null("moe", unsafe { moe.as_ref() })?;
        // A layer that does not exist is refused by `submit` below.
        let of = moe.layers().iter().find(|of| of.number == layer);
        let [width, used] = of.map_or([0; 2], |of| [of.width, of.used]).map(|each| n.checked_mul(each as usize));
        let rows = match kind {
            // SAFETY: the caller meets the conditions of `# Safety`.
            0 => Rows::F32(unsafe { slice("rows", rows.cast(), width) }?),
            // SAFETY: the caller meets the conditions of `# Safety`.
            1 => Rows::Bf16(unsafe { slice("rows", rows.cast(), width) }?),
            other => {
                let text = format!("there is no element type {other}; element types are IXC_F32 (0) and IXC_BF16 (1)");
                return Err(Failure::usage(text));
            }
        };
        // SAFETY: the caller meets the conditions of `# Safety`.
        let (ids, weights) = unsafe { (slice("ids", ids, used)?, slice("weights", weights, used)?) };
        let handle = moe.submit(layer, rows, ids, weights)?;
        Ok(Box::into_raw(Box::new(IxcJob(handle))))
    })
}

/// Waits for all submitted rows.
///
/// # Safety
/// `moe` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_moe_sync(moe: *const IxcMoe) -> c_int {
    catch_failure(-1, || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcMoe(moe) = not_null("moe", unsafe { moe.as_ref() })?;
        moe.sync();
        Ok(0)
    })
}

/// Returns whether a job is done.
///
/// # Safety
/// `job` is null, or came from [`ixc_moe_submit`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_job_done(job: *const IxcJob) -> c_int {
    catch_failure(-1, || {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcJob(handle) = not_null("job", unsafe { job.as_ref() })?;
        Ok(handle.is_done().into())
    })
}

/// Waits for a job and frees it.
///
/// # Safety
/// `job` as for [`ixc_job_done`], and not used again; `sums` has room for `room` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_job_wait(job: *mut IxcJob, sums: *mut f32, room: usize) -> c_int {
    catch_failure(-1, || {
        if job.is_null() {
            return Err(Failure::usage("job is NULL"));
        }
        // SAFETY: the caller guarantees that this is the only pointer to the box.
        let IxcJob(handle) = *unsafe { Box::from_raw(job) };
        let found = handle.wait()?;
        if found.len() > room {
            return Err(Failure::buffer("sums", room, found.len()));
        }
        if found.is_empty() {
            return Ok(0);
        }
        if sums.is_null() || !sums.is_aligned() {
            return Err(Failure::usage(format!(
                "sums is {sums:p}; expected the aligned address of an array of floats"
            )));
        }
        // SAFETY: the caller guarantees room for `room` numbers, which do not overlap `found`.
        unsafe { sums.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
        Ok(0)
    })
}

/// Frees a job.
///
/// # Safety
/// `job` as for [`ixc_job_done`], and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_job_forget(job: *mut IxcJob) {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { free(job) };
}
