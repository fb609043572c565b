//! A model's routed experts as an operator.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ixc::moe::{Handle, Layer, Moe, MoeOptions, Rows};
use pyo3::prelude::*;

use crate::failure::{library_error, usage};
use crate::floats::Floats;
use crate::options::{compile_options, run_options};
use crate::wait;

/// The routed experts of a model.
#[pyclass(frozen, module = "ixc._ixc")]
#[derive(Debug)]
pub struct Experts {
    /// `None` after the end.
    moe: Mutex<Option<Arc<Moe>>>,
}

/// Submitted rows that are being computed.
#[pyclass(frozen, module = "ixc._ixc")]
#[derive(Debug)]
pub struct Job {
    /// `None` after the result was taken.
    handle: Mutex<Option<Handle>>,
    rows: usize,
}

/// Reads numbers from bytes in this machine's byte order.
fn numbers<const N: usize, T>(py: Python<'_>, what: &str, bytes: &[u8], of: fn([u8; N]) -> T) -> PyResult<Vec<T>> {
    match bytes.as_chunks::<N>() {
        (chunks, []) => Ok(chunks.iter().map(|&chunk| of(chunk)).collect()),
        _ => Err(usage(py, &format!("{what} has {} bytes, which is no multiple of {N}", bytes.len()))),
    }
}

impl Experts {
    fn moe(&self, py: Python<'_>) -> PyResult<Arc<Moe>> {
        let moe = self.moe.lock().unwrap_or_else(PoisonError::into_inner).clone();
        moe.ok_or_else(|| usage(py, "the experts are closed"))
    }
}

#[pymethods]
impl Experts {
    /// Opens a model's experts.
    #[staticmethod]
    #[pyo3(signature = (path, *, memory, threads, target, max_rows))]
    fn open(
        py: Python<'_>,
        path: Option<PathBuf>,
        memory: Option<u64>,
        threads: Option<usize>,
        target: Option<&str>,
        max_rows: Option<u32>,
    ) -> PyResult<Experts> {
        let compile = ixc::compile::CompileOptions { max_tokens: max_rows, ..compile_options(py, target)? };
        let options = MoeOptions { compile, run: run_options(memory, threads) };
        let moe = wait::run(py, move || Moe::open(path.as_deref(), &options))?;
        let moe = moe.map_err(|error| library_error(py, &error.into()))?;
        Ok(Experts { moe: Mutex::new(Some(Arc::new(moe))) })
    }

    /// Returns the layers with experts: layer number, row width, experts used per row, and number
    /// of experts.
    fn layers(&self, py: Python<'_>) -> PyResult<Vec<(u32, u32, u32, u32)>> {
        let all = self.moe(py)?;
        let of = |&Layer { number, width, used, experts, .. }: &Layer| (number, width, used, experts);
        Ok(all.layers().iter().map(of).collect())
    }

    /// Submits rows: bytes of f32, or of bf16 if `is_bf16`; of i32 ids; and of f32 weights.
    fn submit(
        &self,
        py: Python<'_>,
        layer: u32,
        is_bf16: bool,
        rows: &[u8],
        ids: &[u8],
        weights: &[u8],
    ) -> PyResult<Job> {
        let moe = self.moe(py)?;
        let ids = numbers(py, "ids", ids, i32::from_ne_bytes)?;
        let weights = numbers(py, "weights", weights, f32::from_ne_bytes)?;
        let used = moe.layers().iter().find(|one| one.number == layer).map_or(0, |one| one.used as usize);
        let count = ids.len().checked_div(used).unwrap_or(0);
        let handle = if is_bf16 {
            let rows = numbers(py, "rows", rows, u16::from_ne_bytes)?;
            py.detach(|| moe.submit(layer, Rows::Bf16(&rows), &ids, &weights))
        } else {
            let rows = numbers(py, "rows", rows, f32::from_ne_bytes)?;
            py.detach(|| moe.submit(layer, Rows::F32(&rows), &ids, &weights))
        };
        let handle = handle.map_err(|error| library_error(py, &error.into()))?;
        Ok(Job { handle: Mutex::new(Some(handle)), rows: count })
    }

    /// Waits for all submitted rows.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let moe = self.moe(py)?;
        wait::run(py, move || moe.sync())
    }

    /// Frees the experts.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let moe = self.moe.lock().unwrap_or_else(PoisonError::into_inner).take();
        wait::run(py, move || drop(moe))
    }
}

#[pymethods]
impl Job {
    /// Returns whether the result is ready.
    fn done(&self) -> bool {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_none_or(Handle::is_done)
    }

    /// Waits for the sums, f32 [rows, width]. The result can be taken only once.
    fn wait(&self, py: Python<'_>) -> PyResult<Floats> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        let handle = handle.ok_or_else(|| usage(py, "the result of this job was taken already"))?;
        let sums = wait::run(py, move || handle.wait())?;
        Ok(Floats::of_rows(sums.map_err(|error| library_error(py, &error.into()))?, self.rows))
    }
}
