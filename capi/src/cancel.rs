//! Cancellation switches: one thread sets a switch to end a call of another thread.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::arguments::{HandlePlace, free, not_null};
use crate::error::{Failure, IxcStatus, status};

/// A cancellation switch.
#[derive(Clone, Debug, Default)]
pub struct IxcCancel(Arc<AtomicBool>);

impl IxcCancel {
    /// Returns a second handle of a switch. For null, returns a switch that is never set.
    ///
    /// # Safety
    /// `at` is null or was not freed.
    pub(crate) unsafe fn read(at: *const IxcCancel) -> IxcCancel {
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { at.as_ref() }.cloned().unwrap_or_default()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Checks that the switch is not set.
    ///
    /// # Errors
    /// [`IxcStatus::Interrupted`].
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.is_set() {
            true => Err(Failure { status: IxcStatus::Interrupted, text: "the call was cancelled".to_owned() }),
            false => Ok(()),
        }
    }
}

/// Creates a cancellation switch, which is not set.
///
/// # Safety
/// `cancel` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_cancel_new(cancel: *mut *mut IxcCancel) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        unsafe { HandlePlace::new("cancel", cancel)?.give(IxcCancel::default()) };
        Ok(())
    })
}

/// Sets a cancellation switch, or resets it.
///
/// # Safety
/// `cancel` is null or was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_cancel_set(cancel: *mut IxcCancel, is_set: c_int) -> IxcStatus {
    status(|| {
        // SAFETY: the caller meets the conditions of `# Safety`.
        let IxcCancel(flag) = not_null("cancel", unsafe { cancel.as_ref() })?;
        flag.store(is_set != 0, Ordering::Relaxed);
        Ok(())
    })
}

/// Frees a switch.
///
/// # Safety
/// `cancel` is null, or came from [`ixc_cancel_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ixc_cancel_free(cancel: *mut IxcCancel) {
    // SAFETY: the caller meets the conditions of `# Safety`.
    unsafe { free(cancel) };
}
