//! A report as a web page: one file that needs no network. It draws the grid (memory, work,
//! traffic), the critical path, and the times of programs. It also shows the programs' names and
//! the IR of their kernels.
//!
//! Large grids are drawn as squares; each square stands for several PEs. The page's data is JSON,
//! escaped so that no text in it can end the surrounding script.

use std::collections::BTreeMap;

use ixc_files::Kind;
use serde::Serialize;

use crate::descriptor::KernelText;
use crate::report::{ProgramTime, Report, Summary};
use crate::routes::Direction;

const PAGE: &str = include_str!("page.html");

/// Max number of squares in a row or column of the drawing.
const MAX_SQUARES: u32 = 256;

#[derive(Serialize)]
struct Data<'a> {
    summary: Summary,
    grid: &'a crate::grid::Grid,
    cells: Cells,
    programs: Vec<&'a ProgramTime>,
    /// Name and IR of each program's kernel, by kernel number.
    kernels: BTreeMap<u32, (&'a str, &'a str)>,
}

/// Values of the squares into which the PEs of the grid are grouped.
#[derive(Debug, PartialEq, Serialize)]
struct Cells {
    /// Side of a square in PEs.
    side: u32,
    width: u32,
    height: u32,
    /// For each square, the max share of memory that is used on one of its PEs.
    memory: Vec<f32>,
    /// For each square, the mean share of time in which its PEs worked.
    work: Vec<f32>,
    /// For each square, the mean number of bytes over the links of a PE.
    traffic: Vec<f32>,
}

impl Cells {
    fn new(report: &Report) -> Cells {
        let grid = &report.grid;
        let side = grid.width.max(grid.height).div_ceil(MAX_SQUARES).max(1);
        let (width, height) = (grid.width.div_ceil(side), grid.height.div_ceil(side));
        let empty = || vec![0.0f32; width as usize * height as usize];
        let (mut memory, mut work, mut traffic, mut count) = (empty(), empty(), empty(), empty());
        for pe in 0..grid.pes() as usize {
            let (x, y) = (pe as u32 % grid.width / side, pe as u32 / grid.width / side);
            let cell = (y * width + x) as usize;
            let share = |numbers: &[u64], of: f64| numbers.get(pe).map_or(0.0, |n| (*n as f64 / of) as f32);
            memory[cell] = memory[cell].max(share(&report.memory, grid.pe.sram_bytes as f64));
            work[cell] += share(&report.worked, report.cycles.max(1) as f64);
            let links = report.traffic.chunks(Direction::ALL.len()).nth(pe);
            traffic[cell] += links.map_or(0.0, |links| links.iter().sum::<u64>() as f32);
            count[cell] += 1.0;
        }
        for ((work, traffic), count) in work.iter_mut().zip(&mut traffic).zip(&count) {
            *work /= count.max(1.0);
            *traffic /= count.max(1.0);
        }
        Cells { side, width, height, memory, work, traffic }
    }
}

/// The file kind of these pages.
pub const KIND: Kind = Kind {
    name: "page of a simulation",
    is: |head| {
        let generator = br#"<meta name="generator" content="ixc">"#;
        head.windows(generator.len()).any(|window| window == generator)
    },
    streams: true,
    private: false,
};

/// Returns the page of a report. `kernels` are the kernels of the simulated descriptor.
pub fn page(report: &Report, kernels: &[KernelText]) -> String {
    let programs: Vec<&ProgramTime> = report.programs.iter().filter(|program| program.firings > 0).collect();
    let of = |program: &&ProgramTime| {
        let kernel = kernels.get(program.kernel as usize)?;
        Some((program.kernel, (kernel.name.as_str(), kernel.text.as_str())))
    };
    let kernels = programs.iter().filter_map(of).collect();
    let data = Data { summary: report.summary(), grid: &report.grid, cells: Cells::new(report), programs, kernels };
    // Serialisation cannot fail: the data is numbers, strings and lists.
    let json = serde_json::to_string(&data).unwrap_or_else(|_| "null".to_owned());
    ixc_files::page::fill_page(PAGE, &format!("{} on {}", report.model, report.grid.name), &json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Machine;
    use crate::simulate::Simulator;
    use crate::simulate::tests::chain;

    fn simulate(width: u32) -> (Report, Vec<KernelText>) {
        let mut descriptor = chain("tiny", &[(1, 0), (6, 5), (2, 7)]);
        descriptor.model = "@DATA@</script><b>&".to_owned();
        descriptor.grid.width = width;
        let machine = Machine::new(descriptor).unwrap();
        let report = Simulator::for_timing(&machine, 1).step(&[0, 1], &[0, 1]).unwrap().report;
        (report, machine.descriptor.kernels)
    }

    #[test]
    fn dataflow_page_is_self_contained_and_escapes_data() {
        let (report, kernels) = simulate(8);
        let page = page(&report, &kernels);
        assert_eq!(ixc_testing::pages::forbidden(PAGE, "ixc"), [""; 0]);
        assert!(page.contains("<title>@DATA@&lt;/script>&lt;b>&amp; on tiny</title>"), "{page}");
        assert_eq!(page.matches("</script>").count(), 2);
        let start = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
        let data = &page[start..start + page[start..].find('<').unwrap()];
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["summary"]["model"], "@DATA@</script><b>&");
        assert_eq!(data["programs"].as_array().unwrap().len(), 3);
        assert_eq!(data["cells"]["memory"].as_array().unwrap().len(), 64);
        let kernel = data["programs"][0]["kernel"].as_u64().unwrap();
        let [name, text] = [0, 1].map(|at| data["kernels"][kernel.to_string()][at].as_str().unwrap());
        assert!(text.starts_with(&format!("kernel {name}")), "{text}");
    }

    #[test]
    fn page_cells_show_maximum_memory_and_mean_traffic() {
        let report = simulate(600).0;
        let cells = Cells::new(&report);
        assert_eq!((cells.side, cells.width, cells.height), (3, 200, 3));
        let most = *report.memory.iter().max().unwrap() as f32 / report.grid.pe.sram_bytes as f32;
        assert_eq!(cells.memory.iter().copied().fold(0.0, f32::max), most);
        let traffic: u64 = report.traffic.iter().sum();
        // The last row of squares covers only two rows of PEs.
        let found: f32 = (0..600).map(|i| cells.traffic[i] * if i < 400 { 9.0 } else { 6.0 }).sum();
        assert!((found - traffic as f32).abs() < 1.0, "{found} {traffic}");
    }
}
