//! MPI's functions, with errors of our own.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;

use ixc_transport::link::LinkError;
use mpi::ffi;

/// Most bytes of an error message (`MPI_MAX_ERROR_STRING` is less in all implementations).
const ERROR_BYTES: usize = 4096;

/// Returns the result of an MPI function.
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

/// Returns the communicator of all processes that were started together.
pub(crate) fn world() -> ffi::MPI_Comm {
    // SAFETY: a constant of the MPI library.
    unsafe { ffi::RSMPI_COMM_WORLD }
}

/// Makes failed calls return an error. Otherwise MPI ends the process.
///
/// # Errors
/// Fails if MPI does.
pub(crate) fn return_errors() -> Result<(), LinkError> {
    // SAFETY: MPI is initialised, and both are its constants.
    let code = unsafe { ffi::MPI_Comm_set_errhandler(world(), ffi::RSMPI_ERRORS_RETURN) };
    check("MPI_Comm_set_errhandler", code)
}

/// Ends all processes that were started together, with an exit status.
pub(crate) fn abort(status: u8) {
    // SAFETY: MPI is initialised, because a transport exists. It returns only if it fails.
    unsafe { ffi::MPI_Abort(world(), c_int::from(status)) };
}

/// A message that has arrived, or has begun to.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// MPI's handle, with which the message is received once.
    pub message: ffi::MPI_Message,
    /// The sending rank.
    pub from: u32,
    /// Bytes of the message; `None` if MPI cannot count them.
    pub bytes: Option<usize>,
}

/// Returns the next message of a rank, or of any, if one has arrived. The caller must receive it.
///
/// # Errors
/// Fails if MPI does.
pub(crate) fn probe(from: Option<u32>, tag: c_int) -> Result<Option<Arrival>, LinkError> {
    // SAFETY: a constant of the MPI library.
    let any = unsafe { ffi::RSMPI_ANY_SOURCE };
    let source = from.map_or(any, |rank| rank as c_int);
    // SAFETY: a constant of the MPI library.
    let mut message = unsafe { ffi::RSMPI_MESSAGE_NULL };
    let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
    let mut has_arrived = 0;
    // SAFETY: all pointers are valid for writes, and MPI is initialised.
    let code = unsafe { ffi::MPI_Improbe(source, tag, world(), &mut has_arrived, &mut message, status.as_mut_ptr()) };
    check("MPI_Improbe", code)?;
    if has_arrived == 0 {
        return Ok(None);
    }
    // SAFETY: all fields of a status are integers, for which zero is valid; MPI has set it.
    let status = unsafe { status.assume_init() };
    let mut bytes = 0;
    // SAFETY: the status is of a message, and the datatype is a constant of the library.
    let code = unsafe { ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut bytes) };
    check("MPI_Get_count", code)?;
    // Larger numbers than a C integer are MPI_UNDEFINED, which is negative.
    let bytes = usize::try_from(bytes).ok();
    Ok(Some(Arrival { message, from: status.MPI_SOURCE as u32, bytes }))
}

/// An operation that MPI has not completed, and the memory that MPI uses for it.
#[derive(Debug)]
pub(crate) struct Operation {
    request: ffi::MPI_Request,
    /// Memory that MPI reads or writes. It is leaked if the operation is dropped before its end.
    buffer: Option<Vec<u8>>,
}

// SAFETY: MPI's handles, pointers in Open MPI, are valid on all threads of a process. MPI was
// initialised for calls from several threads. Only one at a time uses the operation.
unsafe impl Send for Operation {}

impl Operation {
    /// Begins to send bytes to a rank.
    ///
    /// # Errors
    /// Fails if the buffer is longer than a C integer counts, or if MPI fails.
    pub fn send(to: u32, tag: c_int, buffer: Vec<u8>) -> Result<Operation, LinkError> {
        let count = count(buffer.len())?;
        // SAFETY: a constant of the MPI library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the operation keeps the buffer, unmoved in memory, until MPI has read it.
        let code = unsafe {
            ffi::MPI_Isend(buffer.as_ptr().cast(), count, ffi::RSMPI_UINT8_T, to as c_int, tag, world(), &mut request)
        };
        let operation = Operation { request, buffer: Some(buffer) };
        check("MPI_Isend", code).map(|()| operation)
    }

    /// Begins to receive a message into a buffer, which must have at least its length.
    ///
    /// # Errors
    /// Fails if the buffer is longer than a C integer counts, or if MPI fails.
    pub fn receive(mut message: ffi::MPI_Message, mut buffer: Vec<u8>, bytes: usize) -> Result<Operation, LinkError> {
        assert!(bytes <= buffer.len());
        let count = count(bytes)?;
        // SAFETY: a constant of the MPI library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the operation keeps the buffer until MPI has written it. It has `bytes` bytes.
        let code = unsafe {
            ffi::MPI_Imrecv(buffer.as_mut_ptr().cast(), count, ffi::RSMPI_UINT8_T, &mut message, &mut request)
        };
        let operation = Operation { request, buffer: Some(buffer) };
        check("MPI_Imrecv", code).map(|()| operation)
    }

    /// Returns the buffer if MPI has completed the operation.
    ///
    /// # Errors
    /// Fails if MPI does.
    pub fn complete(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        let mut is_complete = 0;
        // SAFETY: the request is valid, or the null request after its completion.
        let code = unsafe { ffi::MPI_Test(&mut self.request, &mut is_complete, ffi::RSMPI_STATUS_IGNORE) };
        check("MPI_Test", code)?;
        Ok(if is_complete == 0 { None } else { self.buffer.take() })
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // MPI may still read or write this memory.
        std::mem::forget(self.buffer.take());
    }
}

/// Returns a length as MPI counts it.
fn count(bytes: usize) -> Result<c_int, LinkError> {
    c_int::try_from(bytes)
        .map_err(|_| LinkError::Library { call: "MPI", message: format!("{bytes} bytes in a message") })
}
