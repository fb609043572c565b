//! Arrays of f32 that NumPy reads without a copy.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Array of numbers, which NumPy reads without a copy and keeps alive.
#[pyclass(frozen, module = "ixc._ixc")]
#[derive(Debug)]
pub struct Floats {
    numbers: Mutex<Vec<f32>>,
    shape: Vec<usize>,
}

impl Floats {
    /// Creates an array of rows of the same length.
    pub(crate) fn of_rows(numbers: Vec<f32>, rows: usize) -> Floats {
        let columns = numbers.len().checked_div(rows).unwrap_or(0);
        Floats { numbers: Mutex::new(numbers), shape: vec![rows, columns] }
    }
}

#[pymethods]
impl Floats {
    /// Returns the array in NumPy's protocol: `numpy.asarray` takes it.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        // The numbers never move: nothing changes the vector.
        let at = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).as_mut_ptr();
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "<f4")?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("data", (at as usize, false))?;
        Ok(interface)
    }
}
