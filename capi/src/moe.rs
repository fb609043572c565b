//! A model's experts, and rows that are computed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use ixc::compile;
use ixc::moe::{Handle, Layer, Moe, MoeOptions, Rows};
use ixc::runtime::engine;
use ixc::targets::Target;

use crate::failure::guarded;

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

fn message(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// So many numbers from there on.
///
/// # Safety
/// Where `count` is not 0 and `at` not null, as many lie there, and stay as they are for as long as they are used.
unsafe fn slice<'a, T>(what: &str, at: *const T, count: Option<usize>) -> Result<&'a [T], String> {
    let count =
        count.filter(|count| count.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize));
    let count = count.ok_or_else(|| format!("{what}: more numbers than memory can hold"))?;
    match (count, at.is_null(), at.is_aligned()) {
        (0, ..) => Ok(&[]),
        (_, false, true) => {
            // SAFETY: the caller's; it is not null, aligned, and no longer than any object.
            Ok(unsafe { std::slice::from_raw_parts(at, count) })
        }
        (_, true, _) => Err(format!("{what} is NULL")),
        (_, false, false) => Err(format!("{what} is at {at:p}, no multiple of {}", align_of::<T>())),
    }
}

/// The text that begins there.
///
/// # Safety
/// `at` is null, or the text ends with 0 and stays as it is for as long as it is used.
unsafe fn string<'a>(what: &str, at: *const c_char) -> Result<&'a str, String> {
    if at.is_null() {
        return Err(format!("{what} is NULL"));
    }
    // SAFETY: the caller's; it is not null.
    unsafe { CStr::from_ptr(at) }.to_str().map_err(|_| format!("{what} is not UTF-8"))
}

fn not_null<'a, T>(what: &str, found: Option<&'a T>) -> Result<&'a T, String> {
    found.ok_or_else(|| format!("{what} is NULL"))
}

/// Opens a model's experts.
///
/// # Safety
/// `path` is null or a string that ends with 0; `options` is null or one, whose target is likewise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_moe_open(path: *const c_char, options: *const IxcOptions) -> *mut IxcMoe {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: the caller's.
        let path = unsafe { string("path", path) }?;
        let mut all = MoeOptions::default();
        // SAFETY: the caller's.
        if let Some(options) = unsafe { options.as_ref() } {
            if !options.target.is_null() {
                // SAFETY: the caller's.
                let name = unsafe { string("target", options.target) }?;
                let target = Target::from_name(name).ok_or_else(|| {
                    let names: Vec<&str> = ixc::targets::TARGETS.iter().map(|row| row.name).collect();
                    format!("there is no target {name:?}; targets are {}", names.join(", "))
                })?;
                all.compile = compile::Options { target: Some(target), ..all.compile };
            }
            all.compile.max_tokens = Some(options.max_rows).filter(|&rows| rows > 0);
            let threads = Some(options.threads as usize).filter(|&threads| threads > 0);
            let memory = Some(options.memory).filter(|&memory| memory > 0);
            all.run = engine::Options { threads, memory, ..all.run };
        }
        let moe = Moe::open(Some(Path::new(path)), &all).map_err(message)?;
        Ok(Box::into_raw(Box::new(IxcMoe(moe))))
    })
}

/// Closes a model's experts.
///
/// # Safety
/// `moe` is null, or came from [`ixc_moe_open`] and is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_moe_close(moe: *mut IxcMoe) {
    guarded((), || {
        if !moe.is_null() {
            // SAFETY: the caller's: it is a box that nobody else has.
            drop(unsafe { Box::from_raw(moe) });
        }
        Ok(())
    });
}

/// The layers that have experts.
///
/// # Safety
/// `moe` is null or open; `layers` has room for `room`, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_moe_layers(moe: *const IxcMoe, layers: *mut IxcLayer, room: usize) -> i64 {
    guarded(-1, || {
        // SAFETY: the caller's.
        let IxcMoe(moe) = not_null("moe", unsafe { moe.as_ref() })?;
        if layers.is_null() && room > 0 {
            return Err("layers is NULL, and there is to be room".to_owned());
        }
        for (at, layer) in moe.layers().iter().enumerate().take(room) {
            let &Layer { number, width, used, experts, .. } = layer;
            // SAFETY: the caller's; there is room for more than `at`.
            unsafe { layers.add(at).write_unaligned(IxcLayer { layer: number, width, used, experts }) };
        }
        Ok(moe.layers().len() as i64)
    })
}

/// Has rows computed.
///
/// # Safety
/// `moe` is null or open; the others have as many numbers as the header says.
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
    guarded(std::ptr::null_mut(), || {
        // SAFETY: the caller's.
        let IxcMoe(moe) = not_null("moe", unsafe { moe.as_ref() })?;
        // A layer that is not there is refused behind this.
        let of = moe.layers().iter().find(|of| of.number == layer);
        let [width, used] = of.map_or([0; 2], |of| [of.width, of.used]).map(|each| n.checked_mul(each as usize));
        let rows = match kind {
            // SAFETY: the caller's.
            0 => Rows::F32(unsafe { slice("rows", rows.cast(), width) }?),
            // SAFETY: the caller's.
            1 => Rows::Bf16(unsafe { slice("rows", rows.cast(), width) }?),
            other => return Err(format!("there is no type {other}; types are IXC_F32 (0) and IXC_BF16 (1)")),
        };
        // SAFETY: the caller's.
        let (ids, weights) = unsafe { (slice("ids", ids, used)?, slice("weights", weights, used)?) };
        let handle = moe.submit(layer, rows, ids, weights).map_err(message)?;
        Ok(Box::into_raw(Box::new(IxcJob(handle))))
    })
}

/// Waits for all that was submitted.
///
/// # Safety
/// `moe` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_moe_sync(moe: *const IxcMoe) -> c_int {
    guarded(-1, || {
        // SAFETY: the caller's.
        let IxcMoe(moe) = not_null("moe", unsafe { moe.as_ref() })?;
        moe.sync();
        Ok(0)
    })
}

/// Whether a job is done.
///
/// # Safety
/// `job` is null, or came from [`ixc_moe_submit`] and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_job_done(job: *const IxcJob) -> c_int {
    guarded(-1, || {
        // SAFETY: the caller's.
        let IxcJob(handle) = not_null("job", unsafe { job.as_ref() })?;
        Ok(handle.is_done().into())
    })
}

/// Waits for a job and frees it.
///
/// # Safety
/// As [`ixc_job_done`]; `sums` has room for `room` numbers. The job is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_job_wait(job: *mut IxcJob, sums: *mut f32, room: usize) -> c_int {
    guarded(-1, || {
        if job.is_null() {
            return Err("job is NULL".to_owned());
        }
        // SAFETY: the caller's: it is a box that nobody else has.
        let IxcJob(handle) = *unsafe { Box::from_raw(job) };
        let found = handle.wait().map_err(message)?;
        if found.len() > room {
            return Err(format!("there is room for {room} numbers of {}", found.len()));
        }
        if found.is_empty() {
            return Ok(0);
        }
        if sums.is_null() || !sums.is_aligned() {
            return Err(format!("sums is {sums:p}, no place for numbers"));
        }
        // SAFETY: the caller's: there is room for as many numbers, which are not these.
        unsafe { sums.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
        Ok(0)
    })
}

/// Frees a job.
///
/// # Safety
/// As [`ixc_job_done`], or null; the job is used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_job_forget(job: *mut IxcJob) {
    guarded((), || {
        if !job.is_null() {
            // SAFETY: the caller's: it is a box that nobody else has.
            drop(unsafe { Box::from_raw(job) });
        }
        Ok(())
    });
}
