//! Time statistics of steps: time in each task and kernel, time of packing weights, and time at
//! barriers. Time at a barrier has three parts: waiting for the last thread, waiting while that
//! thread works alone, and the barrier itself.
//!
//! Each thread has its own [`Clock`], and [`Stats`] is the sum of all clocks. Measuring reads the
//! system's clock twice for each range of items that a thread takes. This costs less than 1 % of a
//! step.

use std::collections::HashMap;
use std::ops::{AddAssign, Sub};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ixc_ir::kernel::products::Products;
use ixc_ir::plan::KernelId;

use crate::program::Program;

/// The time of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskTime {
    /// The task's label.
    pub label: String,
    /// The work of the task's items.
    pub work: Work,
}

/// The time of a kernel in the tasks of one op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// The kernel's name.
    pub kernel: String,
    /// The op: the first word of the tasks' labels.
    pub op: String,
    /// The work of the kernel. Each item is one call of the kernel.
    pub work: Work,
}

/// Amount of work of some items, and the time that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Time in kernels, summed over threads.
    pub time: Duration,
    /// Number of items that ran.
    pub items: u64,
    /// Bytes of weights and states that the items read, counted again for each item. For items
    /// without weights and states, these are all bytes that they read and write. If an index
    /// selects rows of a table, only the bytes that are moved are counted, not the whole table.
    pub bytes: u64,
    /// Multiply-adds of the items.
    pub products: Products,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.time += other.time;
        self.items += other.items;
        self.bytes += other.bytes;
        self.products += other.products;
    }
}

/// Counts of exchanges with other ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeCounts {
    /// Number of exchanges.
    pub exchanges: u64,
    /// Number of messages that this rank sent.
    pub messages: u64,
    /// Number of bytes that this rank sent.
    pub bytes: u64,
    /// Time spent in exchanges: waiting for the other ranks, and transfer of the bytes.
    pub waited: Duration,
}

impl AddAssign for ExchangeCounts {
    fn add_assign(&mut self, other: ExchangeCounts) {
        self.exchanges += other.exchanges;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.waited += other.waited;
    }
}

impl Sub for ExchangeCounts {
    type Output = ExchangeCounts;

    fn sub(self, before: ExchangeCounts) -> ExchangeCounts {
        ExchangeCounts {
            exchanges: self.exchanges.saturating_sub(before.exchanges),
            messages: self.messages.saturating_sub(before.messages),
            bytes: self.bytes.saturating_sub(before.bytes),
            waited: self.waited.saturating_sub(before.waited),
        }
    }
}

/// The time of steps, divided by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of threads.
    pub threads: usize,
    /// Number of steps. Prefill counts one step for each chunk of the prompt.
    pub steps: u64,
    /// Number of tokens of all steps.
    pub tokens: u64,
    /// Sum of the number of threads over all steps.
    pub thread_steps: u64,
    /// Number of steps with a reduced number of threads, because other processes use processors,
    /// too.
    pub reduced: u64,
    /// Wall time of the steps.
    pub wall: Duration,
    /// Time from a thread's arrival until the last thread arrived, at barriers and at the end of a
    /// pass, summed over threads. It shows how unevenly work was divided.
    pub imbalance: Duration,
    /// Time at barriers while the last thread worked alone, summed over the other threads. That
    /// thread runs short stages, and actions that only one thread may do.
    pub alone: Duration,
    /// Time at barriers after all work was done, summed over threads. It is the cost of the barrier
    /// itself.
    pub meeting: Duration,
    /// Number of barriers passed, counted for each thread.
    pub barriers: u64,
    /// Time of packing weights that steps needed, summed over threads. The time of tasks does not
    /// include it.
    pub packing: Duration,
    /// Times of tasks, in the plan's order. The times of tasks with the same label are added.
    pub tasks: Vec<TaskTime>,
    /// Times of kernels that ran, one entry for each kernel and op.
    pub kernels: Vec<KernelTime>,
    /// For each stage: time in kernels plus the wait for the last thread after the stage, summed
    /// over threads. This is the stage's wall time multiplied by the number of threads. A plan step
    /// with tasks has one stage, or two if it computes its rows in halves.
    pub stages: Vec<Duration>,
    /// Counts of this rank's exchanges with other ranks.
    pub exchanged: ExchangeCounts,
}

/// Completes the clocks of all threads that took part in a pass. No barrier follows the last stage,
/// but threads that finished early waited for the last one, which is counted as imbalance.
pub(crate) fn end<'c>(clocks: impl Iterator<Item = &'c Mutex<Clock>>, stage: usize) {
    let mut clocks: Vec<_> = clocks.map(|clock| clock.lock().unwrap_or_else(PoisonError::into_inner)).collect();
    let last = clocks.iter().map(|clock| clock.left).max().unwrap_or_default();
    for clock in &mut clocks {
        let imbalance = last.saturating_sub(clock.left);
        clock.waits.get_mut(stage).into_iter().for_each(|wait| *wait += imbalance);
        clock.imbalance += imbalance;
    }
}

/// The work of one kernel in one task.
#[derive(Clone, Copy, Debug)]
struct KernelWork {
    kernel: KernelId,
    work: Work,
}

/// The times of one thread.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// For each task of the plan, the work of each of its kernels. A task has few kernels.
    tasks: Vec<Vec<KernelWork>>,
    /// For each stage, the time of waiting for the last thread after it.
    waits: Vec<Duration>,
    imbalance: Duration,
    alone: Duration,
    meeting: Duration,
    barriers: u64,
    packing: Duration,
    /// Time from the start of the pass until this thread finished.
    left: Duration,
}

impl Clock {
    /// Creates a clock for the tasks and stages of a program.
    pub fn new(program: &Program) -> Clock {
        let tasks = program.stages.iter().map(|stage| stage.tasks.len()).sum();
        let waits = vec![Duration::ZERO; program.stages.len()];
        Clock { tasks: vec![Vec::new(); tasks], waits, ..Clock::default() }
    }

    /// Adds the work of a kernel to a task.
    pub fn work(&mut self, task: usize, kernel: KernelId, work: Work) {
        let Some(kernels) = self.tasks.get_mut(task) else { return };
        match kernels.iter_mut().find(|entry| entry.kernel == kernel) {
            Some(entry) => entry.work += work,
            None => kernels.push(KernelWork { kernel, work }),
        }
    }

    /// Adds the three times of this thread at the barrier after a stage. They are waiting for the
    /// last thread, waiting while that thread works alone, and the barrier itself.
    pub fn wait(&mut self, stage: usize, imbalance: Duration, alone: Duration, meeting: Duration) {
        self.waits.get_mut(stage).into_iter().for_each(|wait| *wait += imbalance);
        self.imbalance += imbalance;
        self.alone += alone;
        self.meeting += meeting;
        self.barriers += 1;
    }

    /// Records the time from the beginning of the pass until this thread finished its last stage.
    pub fn leave(&mut self, at: Duration) {
        self.left = at;
    }

    /// Adds time of packing weights.
    pub fn pack(&mut self, time: Duration) {
        self.packing += time;
    }

    /// Adds the times of this clock to the statistics.
    pub fn add_to(&self, program: &Program, stats: &mut Stats) {
        stats.imbalance += self.imbalance;
        stats.alone += self.alone;
        stats.meeting += self.meeting;
        // Every thread passes each barrier, so this counts each barrier once for each thread.
        stats.barriers += self.barriers;
        stats.packing += self.packing;
        stats.stages.resize(program.stages.len(), Duration::ZERO);
        for (i, (stage, sum)) in program.stages.iter().zip(&mut stats.stages).enumerate() {
            let tasks = self.tasks.iter().skip(stage.first_task).take(stage.tasks.len());
            *sum += tasks.flatten().map(|entry| entry.work.time).sum::<Duration>();
            *sum += self.waits.get(i).copied().unwrap_or_default();
        }
        self.add_tasks_to(program, stats);
        self.add_kernels_to(program, stats);
    }

    fn add_tasks_to(&self, program: &Program, stats: &mut Stats) {
        let labels = program.stages.iter().flat_map(|stage| &stage.tasks).map(|task| &task.label);
        let mut known: HashMap<String, usize> =
            stats.tasks.iter().enumerate().map(|(i, entry)| (entry.label.clone(), i)).collect();
        for (label, kernels) in labels.zip(&self.tasks) {
            let work = kernels.iter().fold(Work::default(), |mut sum, entry| {
                sum += entry.work;
                sum
            });
            match known.get(label.as_str()).and_then(|&i| stats.tasks.get_mut(i)) {
                Some(entry) => entry.work += work,
                None => {
                    known.insert(label.clone(), stats.tasks.len());
                    stats.tasks.push(TaskTime { label: label.clone(), work });
                }
            }
        }
    }

    fn add_kernels_to(&self, program: &Program, stats: &mut Stats) {
        let labels = program.stages.iter().flat_map(|stage| &stage.tasks).map(|task| task.label.as_str());
        for (label, kernels) in labels.zip(&self.tasks) {
            let op = label.split_whitespace().next().unwrap_or_default();
            for &KernelWork { kernel, work } in kernels {
                let Some(kernel) = program.kernels.get(kernel.0 as usize).map(|kernel| &kernel.name) else { continue };
                match stats.kernels.iter_mut().find(|entry| entry.op == op && entry.kernel == *kernel) {
                    Some(entry) => entry.work += work,
                    None => stats.kernels.push(KernelTime { kernel: kernel.clone(), op: op.to_owned(), work }),
                }
            }
        }
    }

    /// Resets all times to 0.
    pub fn reset(&mut self) {
        let (tasks, waits) = (std::mem::take(&mut self.tasks), std::mem::take(&mut self.waits));
        *self = Clock { tasks, waits, ..Clock::default() };
        self.tasks.iter_mut().for_each(Vec::clear);
        self.waits.fill(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_threads_wait_for_the_last_one() {
        let ms = Duration::from_millis;
        let clock = |left| Mutex::new(Clock { waits: vec![ms(1); 2], left: ms(left), ..Clock::default() });
        // Only the first three of the four threads took part in the pass.
        let clocks = [clock(5), clock(9), clock(3), clock(100)];
        end(clocks.iter().take(3), 1);
        let [waits, imbalance] = [|clock: &Clock| clock.waits[1], |clock: &Clock| clock.imbalance]
            .map(|of| clocks.iter().map(|clock| of(&clock.lock().unwrap()).as_millis()).collect::<Vec<_>>());
        assert_eq!((waits, imbalance), (vec![5, 1, 7, 1], vec![4, 0, 6, 0]));
    }
}
