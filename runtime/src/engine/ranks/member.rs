//! Membership of an engine in a group of ranks.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ixc_transport::Transport;

use super::command::{self, Command, CommandError};
use crate::error::execute::ExecuteError;
use crate::homes::RankMemory;

/// Membership of an engine in a group of ranks.
#[derive(Debug)]
pub(crate) struct Member {
    pub(in crate::engine) transport: Arc<dyn Transport>,
    /// Threads that run the other ranks, if these are in this process.
    pub(super) followers: Vec<JoinHandle<()>>,
    /// Largest [`Engine::min_rows`](crate::engine::Engine::min_rows) of all ranks.
    pub(in crate::engine) min_rows: u32,
    /// Memory of those ranks of this process that have homes on NUMA nodes.
    pub(in crate::engine) memory: Arc<Mutex<Vec<RankMemory>>>,
}

impl Member {
    /// Sends a command from rank 0 to the other ranks. Does nothing if this rank is not rank 0.
    pub(in crate::engine) fn tell(&self, command: impl FnOnce() -> Command) -> Result<(), ExecuteError> {
        if self.transport.rank() > 0 || self.transport.ranks() == 1 {
            return Ok(());
        }
        command::send(&*self.transport, &command()).map_err(|error| match error {
            CommandError::Transport(error) => ExecuteError::Transport(error),
            CommandError::Length { .. } | CommandError::Decode(_) => ExecuteError::Panic { message: error.to_string() },
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Sending fails if the group has ended already. Then the other ranks know this, too.
        let _ = self.tell(|| Command::End);
        for follower in self.followers.drain(..) {
            // If the thread of another rank panicked, it has ended the group already.
            let _ = follower.join();
        }
    }
}
