//! Completion of routings: the experts of a token are known once all of its ids have been computed.

use crate::descriptor::Port;

use super::SimulateError;
use super::pass::{Pass, Why};
use super::routing::draw;
use crate::layout::{InstancePlace, RoutedIds, start};

impl Pass<'_, '_> {
    /// Records that an instance has computed some of a token's ids.
    pub(super) fn ids(
        &mut self,
        instance: u32,
        ids: RoutedIds,
        firing: u32,
        token: u32,
        now: u64,
    ) -> Result<(), SimulateError> {
        let RoutedIds { routing, port, .. } = ids;
        let d = &self.machine.descriptor;
        let shape = d.routings[routing as usize];
        let program = &d.programs[self.machine.layout.program[instance as usize] as usize];
        let Some(Port::Send(slice)) = program.ports.get(port as usize) else {
            return Ok(());
        };
        let InstancePlace { column, part, .. } = self.machine.layout.unit(instance).place(instance);
        let from = start(slice, column, part) as usize;
        let row_bytes = d.tensors[shape.ids as usize].row_bytes;
        if let Some(data) = &mut self.data {
            let streamed = self.machine.layout.unit(instance).outlets.iter().any(|outlet| outlet.port == port);
            let payload = data.take(instance, port, firing, !streamed);
            let host = &mut self.host[shape.ids as usize];
            if host.rows.len() < self.tokens.len() {
                host.rows.resize(self.tokens.len(), vec![0; row_bytes as usize]);
            }
            if let Some(there) = host.rows[token as usize].get_mut(from..from + payload.len()) {
                there.copy_from_slice(&payload);
            }
        }
        let state = &mut self.routed[routing as usize];
        state.made[token as usize] += slice.bytes;
        state.source = self.machine.layout.pe[instance as usize];
        let mut news = false;
        while let Some(made) = self.routed[routing as usize].made.get(self.routed[routing as usize].known as usize) {
            if *made < row_bytes {
                break;
            }
            let token = self.routed[routing as usize].known;
            let ids = match &self.data {
                None => {
                    let seed = self.seed ^ (u64::from(routing) << 40) ^ u64::from(self.position + token);
                    draw(seed.wrapping_mul(0x2545_f491_4f6c_dd1d), shape.experts, shape.top_k)
                }
                Some(_) => {
                    let words = self.host[shape.ids as usize].rows[token as usize].chunks_exact(4);
                    words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
                }
            };
            if let Some(found) = ids.iter().find(|id| **id >= shape.experts) {
                let (found, experts) = (*found, shape.experts);
                return Err(SimulateError::Expert { routing, token, found, experts });
            }
            self.routed[routing as usize].note(&ids, now);
            news = true;
        }
        if news {
            let waited = std::mem::take(&mut self.routed[routing as usize].waiting);
            for outlet in &waited {
                self.waiting[*outlet as usize].routing = false;
            }
            for outlet in waited {
                self.send(outlet, now, self.cause(instance, Why::Routing))?;
            }
        }
        Ok(())
    }
}
