//! Safe functions over MPI's C functions, with this crate's errors.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

use ixc_transport::link::LinkError;
use mpi::ffi;

/// Buffer size for an error message (`MPI_MAX_ERROR_STRING` is smaller in all MPI implementations).
const ERROR_BYTES: usize = 4096;

/// Converts the return code of an MPI function to a result.
///
/// # Errors
/// Fails unless the code is `MPI_SUCCESS`, which is 0.
pub(crate) fn check(call: &'static str, code: c_int) -> Result<(), LinkError> {
    if code == 0 { Ok(()) } else { Err(LinkError::Library { call, message: error_text(code) }) }
}

/// Returns MPI's message for an error code.
fn error_text(code: c_int) -> String {
    let mut text = [0_u8; ERROR_BYTES];
    let mut length = 0;
    // SAFETY: MPI writes at most MPI_MAX_ERROR_STRING bytes, which is less than the array has.
    let result = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    let bytes = usize::try_from(length).ok().and_then(|length| text.get(..length));
    match bytes {
        Some(bytes) if result == 0 => String::from_utf8_lossy(bytes).into_owned(),
        _ => format!("error {code}"),
    }
}

/// Returns the communicator of all processes that `mpirun` started together.
pub(crate) fn world() -> ffi::MPI_Comm {
    // SAFETY: reads a constant that the MPI library defines.
    unsafe { ffi::RSMPI_COMM_WORLD }
}

/// Sets MPI to return an error code when a call fails. By default, MPI ends the process.
///
/// # Errors
/// Fails if the MPI call fails.
pub(crate) fn return_errors() -> Result<(), LinkError> {
    // SAFETY: MPI is initialised, and both arguments are constants of the library.
    let code = unsafe { ffi::MPI_Comm_set_errhandler(world(), ffi::RSMPI_ERRORS_RETURN) };
    check("MPI_Comm_set_errhandler", code)
}

/// Ends all processes that `mpirun` started together, with an exit status.
pub(crate) fn abort(status: u8) {
    // SAFETY: MPI is initialised, because a transport exists. The call returns only if it fails.
    unsafe { ffi::MPI_Abort(world(), c_int::from(status)) };
}

/// A message that has arrived completely or in part, and that is not received yet.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// MPI's handle of the message. The message must be received exactly once with it.
    pub message: ffi::MPI_Message,
    /// Number of the sending rank.
    pub from: u32,
    /// Length of the message in bytes; `None` if it does not fit MPI's C integer.
    pub bytes: Option<usize>,
}

/// Returns the next message from rank `from`, or from any rank for `None`, if one has arrived. The
/// caller must receive it.
///
/// # Errors
/// Fails if an MPI call fails.
pub(crate) fn probe(from: Option<u32>, tag: c_int) -> Result<Option<Arrival>, LinkError> {
    // SAFETY: reads a constant that the MPI library defines.
    let any = unsafe { ffi::RSMPI_ANY_SOURCE };
    let source = from.map_or(any, |rank| rank as c_int);
    // SAFETY: reads a constant that the MPI library defines.
    let mut message = unsafe { ffi::RSMPI_MESSAGE_NULL };
    let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
    let mut has_arrived = 0;
    // SAFETY: all pointers are valid for writes, and MPI is initialised.
    let code = unsafe { ffi::MPI_Improbe(source, tag, world(), &mut has_arrived, &mut message, status.as_mut_ptr()) };
    check("MPI_Improbe", code)?;
    if has_arrived == 0 {
        return Ok(None);
    }
    // SAFETY: all fields of a status are integers, for which zero is valid; the call above has set
    // it.
    let status = unsafe { status.assume_init() };
    let mut bytes = 0;
    // SAFETY: the status is that of a message, and the datatype is a constant of the library.
    let code = unsafe { ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut bytes) };
    check("MPI_Get_count", code)?;
    // If the length does not fit a C integer, MPI returns MPI_UNDEFINED, which is negative.
    let bytes = usize::try_from(bytes).ok();
    Ok(Some(Arrival { message, from: status.MPI_SOURCE as u32, bytes }))
}

/// A send or receive operation that MPI has not completed, and the memory that MPI uses for it.
#[derive(Debug)]
pub(crate) struct Operation {
    request: ffi::MPI_Request,
    /// Memory that MPI reads or writes. If the operation is dropped before it is complete, the
    /// memory is leaked.
    buffer: Option<Vec<u8>>,
}

// SAFETY: MPI's handles (pointers in Open MPI) are valid on all threads of a process. MPI was
// initialised for calls from several threads. Only one thread at a time uses the operation.
unsafe impl Send for Operation {}

impl Operation {
    /// Begins to send the bytes of `buffer` to rank `to`.
    ///
    /// # Errors
    /// Fails if the buffer's length does not fit a C integer, or if the MPI call fails.
    pub fn send(to: u32, tag: c_int, buffer: Vec<u8>) -> Result<Operation, LinkError> {
        let count = count(buffer.len())?;
        // SAFETY: reads a constant that the MPI library defines.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the operation keeps the buffer, unmoved in memory, until MPI has read it.
        let code = unsafe {
            ffi::MPI_Isend(buffer.as_ptr().cast(), count, ffi::RSMPI_UINT8_T, to as c_int, tag, world(), &mut request)
        };
        let operation = Operation { request, buffer: Some(buffer) };
        check("MPI_Isend", code).map(|()| operation)
    }

    /// Begins to receive a message into a buffer, which must be at least `bytes` long, the length
    /// of the message.
    ///
    /// # Errors
    /// Fails if `bytes` does not fit a C integer, or if the MPI call fails.
    pub fn receive(mut message: ffi::MPI_Message, mut buffer: Vec<u8>, bytes: usize) -> Result<Operation, LinkError> {
        assert!(bytes <= buffer.len());
        let count = count(bytes)?;
        // SAFETY: reads a constant that the MPI library defines.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the operation keeps the buffer until MPI has written it. The buffer has at least
        // `bytes` bytes.
        let code = unsafe {
            ffi::MPI_Imrecv(buffer.as_mut_ptr().cast(), count, ffi::RSMPI_UINT8_T, &mut message, &mut request)
        };
        let operation = Operation { request, buffer: Some(buffer) };
        check("MPI_Imrecv", code).map(|()| operation)
    }

    /// Returns the buffer if MPI has completed the operation.
    ///
    /// # Errors
    /// Fails if the MPI call fails.
    pub fn complete(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        let mut is_complete = 0;
        // SAFETY: the request is valid, or the null request after the operation is complete.
        let code = unsafe { ffi::MPI_Test(&mut self.request, &mut is_complete, ffi::RSMPI_STATUS_IGNORE) };
        check("MPI_Test", code)?;
        Ok(if is_complete == 0 { None } else { self.buffer.take() })
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // MPI may still read or write this memory, so it is leaked.
        std::mem::forget(self.buffer.take());
    }
}

/// Converts a length to a C integer, MPI's type for lengths.
fn count(bytes: usize) -> Result<c_int, LinkError> {
    c_int::try_from(bytes)
        .map_err(|_| LinkError::Library { call: "MPI", message: format!("{bytes} bytes in a message") })
}
