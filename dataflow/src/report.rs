//! Report of a simulated step: rates, the use of time, and lower bounds.

use std::fmt::{self, Write};

use crate::grid::Grid;
use ixc_ir::units::{Bytes, Count, count_text};
use serde::Serialize;

use crate::cost::Cost;
use crate::routes::Direction;

/// Max programs that the report's text names.
const MAX_PROGRAMS: usize = 6;

/// Times of the firings of a program.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProgramTime {
    /// The program's label.
    pub label: String,
    /// Index of the program's kernel in the descriptor.
    pub kernel: u32,
    /// Number of instances.
    pub instances: u32,
    /// PE of the middle instance.
    pub place: (u32, u32),
    /// Number of firings of all instances together.
    pub firings: u64,
    /// Cycles that all instances together worked.
    pub cycles: u64,
    /// Cycle in which the first firing began.
    pub first: u64,
    /// Cycle in which the last firing ended.
    pub last: u64,
}

impl ProgramTime {
    pub(super) fn note(&mut self, start: u64, end: u64) {
        if self.firings == 0 {
            self.first = start;
        }
        self.firings += 1;
        self.cycles = self.cycles.saturating_add(end - start);
        self.last = self.last.max(end);
    }
}

/// Critical path: from the last result back to the first input, it goes from each event to the
/// event that it waited for. Its cycles are divided by kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CriticalPath {
    /// Number of cycles of the whole path.
    pub cycles: u64,
    /// Cycles in which kernels ran.
    pub compute: u64,
    /// Cycles that messages took, without waiting for other messages.
    pub link: u64,
    /// Cycles in which messages of the critical path waited for links.
    pub contention: u64,
    /// Cycles of waiting for a PE, for room at a receiver, or for a routing.
    pub wait: u64,
    /// Cycles of transfers from and to the host.
    pub host: u64,
    /// Number of firings on the path.
    pub firings: u64,
    /// Number of firings on the path that waited for their PE.
    pub busy: u64,
    /// Number of firings that waited for room at a receiver.
    pub room: u64,
    /// Number of firings on the path that waited for a routing.
    pub routing: u64,
    /// Cycles of kernels by program, the largest first.
    pub programs: Vec<(String, u64)>,
    /// Cycles in which messages waited for links, by the receiving program, the largest first.
    pub contended: Vec<(String, u64)>,
}

/// Lower bounds of a step's cycles, one for each resource. Each bound assumes that all other
/// resources take no time, and that work is spread evenly.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Roofline {
    /// Cycles of all operations at the combined rate of all PEs.
    pub compute: f64,
    /// Cycles of reading the kernels' bytes through the memory ports of all PEs.
    pub memory: f64,
    /// Cycles of moving each byte over each of its links, at the combined rate of all links.
    pub links: f64,
    /// Cycles of transferring all bytes from and to the host.
    pub io: f64,
    /// Cycles of the busiest PE's work, with the actual placement.
    pub busiest: f64,
    /// Cycles of the busiest link's bytes, with the actual routes.
    pub busiest_link: f64,
}

impl Roofline {
    /// Returns the largest bound.
    pub fn most(&self) -> f64 {
        let all = [self.compute, self.memory, self.links, self.io, self.busiest, self.busiest_link];
        all.into_iter().fold(0.0, f64::max)
    }
}

/// Result of timing a step.
#[derive(Clone, Debug)]
pub struct Report {
    /// The machine.
    pub grid: Grid,
    /// Name of the model.
    pub model: String,
    /// Number of tokens of the step.
    pub rows: u64,
    /// Number of tokens before the step.
    pub position: u32,
    /// Cycles from the first byte that leaves the host to the last byte that returns.
    pub cycles: u64,
    /// The part of these cycles in which weights and states of waves were loaded or stored.
    pub wave_io_cycles: u64,
    /// Work of all kernels.
    pub total: Cost,
    /// Cycles in which each PE worked.
    pub worked: Vec<u64>,
    /// Bytes of memory that each PE uses.
    pub memory: Vec<u64>,
    /// Bytes that went over each link, by PE and direction.
    pub traffic: Vec<u64>,
    /// Sum of the cycles that messages waited for links.
    pub waited: u64,
    /// Number of links that messages used, over all messages.
    pub hops: u64,
    /// Number of messages of the step.
    pub messages: u64,
    /// Number of slices that messages brought to instances.
    pub deliveries: u64,
    /// Number of firings of the step.
    pub firings: u64,
    /// Number of events in the simulation.
    pub events: u64,
    /// Bytes transferred from and to the host.
    pub io_bytes: u64,
    /// Times of the programs.
    pub programs: Vec<ProgramTime>,
    /// The critical path; `None` if there were too many firings to remember.
    pub critical: Option<CriticalPath>,
}

/// Numbers of a report, for JSON output.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The grid's name.
    pub grid: String,
    /// Name of the model.
    pub model: String,
    /// Number of tokens of the step, pipelined on the grid.
    pub rows: u64,
    /// Number of tokens before the step.
    pub position: u32,
    /// Number of cycles of the step.
    pub cycles: u64,
    /// Time of the step, in seconds.
    pub seconds: f64,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// Tokens per second if a step took only the cycles of the largest lower bound.
    pub roofline_tokens_per_second: f64,
    /// Share of all PEs' cycles in which they worked.
    pub busy: f64,
    /// Int8 products and f32 operations (multiply-adds, additions, minima and so on), as a share of
    /// the peak rate of all PEs.
    pub arithmetic_utilisation: f64,
    /// Number of PEs of the grid.
    pub pes: u64,
    /// Number of PEs that worked.
    pub working_pes: u64,
    /// Number of int8 multiplications.
    pub int8_products: u64,
    /// Number of f32 operations.
    pub f32_operations: u64,
    /// Number of links that each byte crossed, summed over all bytes.
    pub byte_hops: u64,
    /// The link with the most bytes: column and row of the PE where it begins, direction, bytes.
    pub busiest_link: (u32, u32, String, u64),
    /// The fullest PE: column, row, bytes.
    pub fullest_pe: (u32, u32, u64),
    /// Bytes of memory that all PEs together use.
    pub memory_bytes: u64,
    /// Bytes transferred from and to the host.
    pub io_bytes: u64,
    /// Cycles in which weights and states of waves were loaded or stored.
    pub wave_io_cycles: u64,
    /// Number of messages of the step.
    pub messages: u64,
    /// Number of links that messages used, over all messages.
    pub hops: u64,
    /// Sum of the cycles that messages waited for links.
    pub waited_cycles: u64,
    /// Number of firings of the step.
    pub firings: u64,
    /// Number of events in the simulation.
    pub events: u64,
    /// Lower bounds of the step's cycles.
    pub roofline: Roofline,
    /// Critical path of the step.
    pub critical: Option<CriticalPath>,
}

impl Report {
    /// Returns the seconds of the step.
    pub fn seconds(&self) -> f64 {
        self.cycles as f64 / self.grid.clock_hz
    }

    /// Returns the index and value of the largest number.
    fn largest(numbers: &[u64]) -> (usize, u64) {
        let mut best = (0, 0);
        for (place, number) in numbers.iter().enumerate() {
            if *number > best.1 {
                best = (place, *number);
            }
        }
        best
    }

    fn place(&self, pe: usize) -> (u32, u32) {
        (pe as u32 % self.grid.width, pe as u32 / self.grid.width)
    }

    /// Returns the number of links of the grid.
    fn links(&self) -> f64 {
        let (w, h) = (f64::from(self.grid.width), f64::from(self.grid.height));
        (2.0 * ((w - 1.0) * h + (h - 1.0) * w)).max(1.0)
    }

    /// Computes the lower bounds of the step's cycles.
    pub fn roofline(&self) -> Roofline {
        let (pes, pe) = (self.grid.pes() as f64, &self.grid.pe);
        let rates = &pe.operations;
        let issue = self.total.int8 as f64 / rates.int8
            + self.total.int as f64 / rates.int
            + self.total.f32 as f64 / rates.f32
            + self.total.special as f64 / rates.special;
        let byte_hops: u64 = self.traffic.iter().sum();
        let link_bytes = f64::from(self.grid.link.bytes);
        Roofline {
            compute: issue / pes,
            memory: self.total.read as f64 / f64::from(pe.read_bytes) / pes,
            links: byte_hops as f64 / link_bytes / self.links(),
            io: self.io_bytes as f64 * self.grid.clock_hz / self.grid.io.bytes_per_second,
            busiest: Report::largest(&self.worked).1 as f64,
            busiest_link: Report::largest(&self.traffic).1 as f64 / link_bytes,
        }
    }

    /// Returns the report in numbers.
    pub fn summary(&self) -> Summary {
        let pes = self.grid.pes() as f64;
        let cycles = self.cycles.max(1) as f64;
        let rates = &self.grid.pe.operations;
        let arithmetic = self.total.int8 as f64 / rates.int8 + self.total.f32 as f64 / rates.f32;
        let (link, link_bytes) = Report::largest(&self.traffic);
        let (link_x, link_y) = self.place(link / Direction::ALL.len());
        let (fullest, fullest_bytes) = Report::largest(&self.memory);
        let (full_x, full_y) = self.place(fullest);
        let direction = Direction::ALL[link % Direction::ALL.len()];
        Summary {
            grid: self.grid.name.clone(),
            model: self.model.clone(),
            rows: self.rows,
            position: self.position,
            cycles: self.cycles,
            seconds: self.seconds(),
            tokens_per_second: self.rows as f64 / self.seconds().max(f64::MIN_POSITIVE),
            roofline_tokens_per_second: self.rows as f64 * self.grid.clock_hz / self.roofline().most().max(1.0),
            busy: self.worked.iter().map(|cycles| *cycles as f64).sum::<f64>() / (pes * cycles),
            arithmetic_utilisation: arithmetic / (pes * cycles),
            pes: self.grid.pes(),
            working_pes: self.worked.iter().filter(|cycles| **cycles > 0).count() as u64,
            int8_products: self.total.int8,
            f32_operations: self.total.f32,
            byte_hops: self.traffic.iter().sum(),
            busiest_link: (link_x, link_y, direction.to_string(), link_bytes),
            fullest_pe: (full_x, full_y, fullest_bytes),
            memory_bytes: self.memory.iter().sum(),
            io_bytes: self.io_bytes,
            wave_io_cycles: self.wave_io_cycles,
            messages: self.messages,
            hops: self.hops,
            waited_cycles: self.waited,
            firings: self.firings,
            events: self.events,
            roofline: self.roofline(),
            critical: self.critical.clone(),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        let part = |cycles: u64| percent(cycles as f64 / self.cycles.max(1) as f64);
        writeln!(f, "grid       {}: {} of {} PEs work", self.grid, self.working_pes, self.pes)?;
        let pipelined = if self.rows > 1 { ", pipelined" } else { "" };
        writeln!(f, "step       {} at position {}{pipelined}", count_text(self.rows, "token"), self.position)?;
        writeln!(f, "time       {} cycles, {}s", self.cycles, short_seconds(self.seconds))?;
        let (rate, most) = (self.tokens_per_second, self.roofline_tokens_per_second);
        writeln!(f, "rate       {rate:.2} tokens/s; the roofline is {most:.2} tokens/s")?;
        if self.wave_io_cycles > 0 {
            writeln!(f, "waves      {} of the time to bring weights and states in and out", part(self.wave_io_cycles))?;
        }
        writeln!(
            f,
            "PEs        busy {}, int8 products and f32 operations {} of the peak",
            percent(self.busy),
            percent(self.arithmetic_utilisation)
        )?;
        let (x, y, bytes) = self.fullest_pe;
        let (all, most) = (Bytes(self.memory_bytes), Bytes(bytes));
        writeln!(f, "memory     {all} in all; PE ({x}, {y}) holds most, {most}")?;
        let (x, y, direction, bytes) = &self.busiest_link;
        writeln!(
            f,
            "links      {} times links; {} messages over {} links; most over ({x}, {y}) {direction}: {}",
            Bytes(self.byte_hops),
            Count(self.messages),
            Count(self.hops),
            Bytes(*bytes)
        )?;
        writeln!(f, "host       {} in and out", Bytes(self.io_bytes))?;
        let r = &self.roofline;
        let mut bounds = String::new();
        for (name, cycles) in [
            ("compute", r.compute),
            ("memory", r.memory),
            ("links", r.links),
            ("host", r.io),
            ("busiest PE", r.busiest),
            ("busiest link", r.busiest_link),
        ] {
            write!(bounds, "{}{name} {cycles:.0}", if bounds.is_empty() { "" } else { ", " })?;
        }
        writeln!(f, "roofline   min cycles by each limit: {bounds}")?;
        let Some(path) = &self.critical else {
            return writeln!(f, "path       not computed: the step has too many firings");
        };
        writeln!(
            f,
            "path       {}: kernels {}, links {}, contention {}, waiting {}, host {}",
            count_text(path.firings, "firing"),
            part(path.compute),
            part(path.link),
            part(path.contention),
            part(path.wait),
            part(path.host)
        )?;
        for (label, cycles) in path.programs.iter().take(MAX_PROGRAMS) {
            writeln!(f, "           {} {label}", part(*cycles))?;
        }
        Ok(())
    }
}

fn short_seconds(seconds: f64) -> String {
    for (unit, name) in [(1.0, ""), (1e-3, "m"), (1e-6, "µ")] {
        if seconds >= unit {
            return format!("{:.3} {name}", seconds / unit);
        }
    }
    format!("{:.3} n", seconds * 1e9)
}
