//! Parts of an answer, as they arrive.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ixc::server::{Events, Local};
use pyo3::prelude::*;

use crate::failure::usage;
use crate::wait::wait;

/// Parts of an answer. The answer is cancelled when its stream is closed or freed.
#[pyclass(frozen, module = "ixc._ixc")]
#[derive(Debug)]
pub struct Stream {
    state: Mutex<State>,
    /// In-process server that generates the answer. Dropping it ends the answer.
    _local: Local,
}

/// State of a stream.
#[derive(Debug)]
enum State {
    Open(Box<Events>),
    /// A thread is waiting for the next part.
    Waiting,
    Closed,
}

impl Stream {
    pub(crate) fn new(events: Events, local: Local) -> Stream {
        Stream { state: Mutex::new(State::Open(Box::new(events))), _local: local }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Stream {
    /// Waits for the next part, and returns its JSON; `None` after the last one.
    fn next(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let mut events = {
            let mut state = self.state();
            match std::mem::replace(&mut *state, State::Waiting) {
                State::Open(events) => events,
                State::Waiting => return Err(usage(py, "another thread waits for the next part of this stream")),
                State::Closed => {
                    *state = State::Closed;
                    return Ok(None);
                }
            }
        };
        let waited = wait(py, async move {
            let part = events.next().await;
            (part, events)
        });
        // After Ctrl-C, the events are dropped.
        let (part, next) = match waited {
            Ok((Some(part), events)) => (Ok(Some(part)), State::Open(events)),
            Ok((None, _)) => (Ok(None), State::Closed),
            Err(error) => (Err(error), State::Closed),
        };
        let mut state = self.state();
        // Another thread may have closed the stream.
        if matches!(*state, State::Waiting) {
            *state = next;
        }
        part
    }

    /// Cancels the answer.
    fn close(&self) {
        *self.state() = State::Closed;
    }
}
