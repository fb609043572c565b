//! Checks that the tables in `docs/cost-model.md` match the code.

use ixc_cost::class::Class;
use ixc_cost::class::Width;
use ixc_cost::memory::levels;
use ixc_cost::model::{AVX512, CostSource, CpuModel, Row, Wide, WideVectors};
use ixc_cost::{self as cost, MODELS};
use ixc_kernels::{KernelSpec, MatmulStrategy, generate};
use ixc_targets::memory::{CacheShape, Level, Memory, line_load, tile_load};
use ixc_targets::{Lowering, TARGETS, Target};

use super::silicon;

const HEADING: &str = "## Tables\n";
const CPUS: [&str; 7] = ["haswell", "skylake-x", "icelake", "sapphire-rapids", "zen3", "zen4", "zen5"];

fn by_name(name: &str) -> &'static CpuModel {
    cost::model(Target::from_name(name).expect("a target")).expect("a model")
}

fn uops(text: &str) -> String {
    // A tile store has sixteen equal parts, which would make the table wide.
    let parts: Vec<_> = text.split('+').collect();
    match parts.as_slice() {
        [""] => "-".into(),
        [first, rest @ ..] if rest.len() > 3 && rest.iter().all(|p| p == first) => {
            format!("{}× `{first}`", parts.len())
        }
        _ => format!("`{text}`"),
    }
}

fn cell(model: &CpuModel, row: Option<&Row>) -> String {
    let Some(row) = row else { return String::new() };
    let narrow = format!("{} {}", uops(row.narrow), row.latency);
    let wide = match row.wide {
        Wide::Uops(text) if text != row.narrow || row.wide_latency != row.latency => {
            format!(" \\| {} {}", uops(text), row.wide_latency)
        }
        Wide::AsNarrow if row.wide_latency != row.latency => format!(" \\| {}", row.wide_latency),
        _ if row.wide_source != row.source && row.wide != Wide::None => " \\|".into(),
        _ => String::new(),
    };
    let mark = |source: CostSource| match source {
        CostSource::Measured if model.name != "zen4" => "zen4",
        source => source.mark(),
    };
    let wide = match row.wide_source {
        source if source != row.source && !wide.is_empty() => format!(" {}{wide} {}", mark(row.source), mark(source)),
        _ => format!("{wide} {}", mark(row.source)),
    };
    let wide = if model.wide == WideVectors::None { format!(" {}", mark(row.source)) } else { wide };
    format!("{narrow}{wide}")
}

fn table() -> String {
    let mut out = format!("| class | {} |\n| --- |{}\n", CPUS.join(" | "), " --- |".repeat(CPUS.len()));
    let models = CPUS.map(by_name);
    let slots: Vec<_> = models.iter().map(|m| m.front_end.to_string()).collect();
    out += &format!("| slots per cycle | {} |\n", slots.join(" | "));
    for &class in Class::ALL {
        let cells = models.map(|model| cell(model, model.row(class)));
        out += &format!("| {class:?}: {} | {} |\n", class.description(), cells.join(" | "));
    }
    out
}

/// Returns the text with the table between its marks replaced by `table`.
fn replace(text: &str, name: &str, table: &str) -> String {
    let (begin, end) = (format!("<!-- table: {name} -->\n"), "\n<!-- end -->");
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("marks for {name}"));
    let (_, after) = rest.split_once(end).expect("an end");
    format!("{before}{begin}\n{table}{end}{after}")
}

/// Returns the documentation's table of all CPUs' caches.
fn caches() -> String {
    let mut out = String::from("| CPU | L1 | L2 | L3 per core | L3 contents |\n| --- | --- | --- | --- | --- |\n");
    for row in TARGETS.iter().filter(|row| row.isa.lowering == Lowering::X64) {
        let Memory { l1, l2, l3, third } = row.memory();
        let shape = |cache: CacheShape| format!("{} KiB, {} ways", cache.bytes / 1024, cache.ways);
        let shapes = [l1, l2, l3].map(shape).join(" | ");
        out += &format!("| {} | {shapes} | {} |\n", row.name, third.description());
    }
    out
}

/// Returns the documentation's table of cycles to transfer cache lines, by level.
fn transfers() -> String {
    let ports = by_name("sapphire-rapids").cost(Class::TileLoad, Width::Scalar).expect("a row");
    let tile_ports = ports.uops.iter().map(|uop| uop.cycles).sum::<u32>() / 2;
    let mut out = String::from("| cycles | L1 | L2 | L3 | memory |\n| --- | --- | --- | --- | --- |\n");
    for (what, figure, first) in [
        ("TILELOADD, 16 lines", tile_load as fn(Level) -> _, format!("{tile_ports}, load ports")),
        ("vector load of a line", line_load, "load ports".into()),
    ] {
        let cells = Level::ALL.map(|level| {
            figure(level).map_or_else(|| first.clone(), |figure| format!("{} {}", figure.cycles, figure.origin.mark()))
        });
        out += &format!("| {what} | {} |\n", cells.join(" | "));
    }
    out
}

/// Returns the documentation's table of tile products of `ixc`: with caches, and with all operands
/// in L1.
fn own_kernels() -> String {
    let mut out = String::from(
        "| format | rows | tile unit's share, code alone | with caches | with no overlap at all | bounded by |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let target = Target::from_name("sapphire-rapids").expect("a target");
    for (name, x) in [("q4_k_r16", "a8_super_tile"), ("q8_0_r16", "a8_small_tile")] {
        let spec: KernelSpec =
            format!("linear format={name} x={x} k=2048 tile=64 n=2048 shape=tiles").parse().expect("a spec");
        let kernel = generate(&spec, target).expect("a kernel");
        let report = super::kernels::report(&spec, target);
        for rows in [32, 128, 256, 512] {
            let dims = MatmulStrategy::Tiles.dim_values(rows);
            let whole = report.whole(&dims).expect("a cost");
            let levels = levels(&report, &kernel, target.row().memory(), &dims, &[]).expect("levels");
            let shares = [whole.share, levels.share, levels.share_drained].map(|s| format!("{:.0} %", 100.0 * s));
            out += &format!("| {name} | {rows} | {} | {} |\n", shares.join(" | "), levels.bound);
        }
    }
    out
}

#[test]
fn cost_tables_in_docs_match_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cost-model.md");
    let doc = std::fs::read_to_string(path).expect("docs/cost-model.md");
    let (before, section) = doc.split_once(HEADING).expect("a heading for the tables");
    let text = section.split("\n|").next().unwrap_or_default().trim_end();
    let mut now = format!("{before}{HEADING}{text}\n\n{}", table());
    for (name, table) in
        [("caches", caches()), ("transfers", transfers()), ("products", silicon::table()), ("kernels", own_kernels())]
    {
        now = replace(&now, name, &table);
    }
    if ixc_testing::bless::is_asked_for() {
        std::fs::write(path, &now).expect("to be written");
    }
    let found = std::fs::read_to_string(path).expect("docs/cost-model.md");
    assert!(
        found == now,
        "docs/cost-model.md is not what the tables say: IXC_BLESS=1 cargo test -p ixc-cost --test cost"
    );
}

#[test]
fn models_lack_only_classes_that_their_cpu_lacks() {
    use Class::*;
    let new = [PermuteBytes, PermuteTwoBytes, Multishift, DotInt];
    let bf16 = [DotBf16, FloatToBf16, FloatToBf16Two];
    let tiles = [TileDot, TileLoad, TileStore, TileZero, TileConfig, TileRelease];
    for model in MODELS {
        let lacking = Class::ALL.iter().filter(|c| model.row(**c).is_none());
        let mut right: Vec<Class> = match model.name {
            "haswell" | "zen3" => AVX512.iter().copied().chain([DotInt]).collect(),
            "alder-lake" => AVX512.to_vec(),
            "skylake-x" => new.into_iter().chain(bf16).collect(),
            "icelake" => bf16.to_vec(),
            _ => Vec::new(),
        };
        if !matches!(model.name, "sapphire-rapids" | "granite-rapids") {
            right.extend(tiles);
        }
        right.sort();
        assert_eq!(lacking.copied().collect::<Vec<_>>(), right, "{}", model.name);
    }
}
