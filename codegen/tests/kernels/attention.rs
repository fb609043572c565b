//! Attention: over a cache, in parts, by tiles, with windows, sinks, slopes and chosen entries.

use ixc_ir::format::Format;
use ixc_ir::plan::RopeStyle;
use ixc_kernels::{
    Attention, AttentionCombine, AttentionEntries, AttentionPart, AttentionWindow, Bits, Cache, RopeAppend,
};

use crate::support::Group;
use crate::{HALVES, ODD};

#[test]
fn attention() {
    let mut group = Group::new("attention");
    for (heads, d, dv) in [
        (1, 64, 64),
        (2, 33, 16),
        (3, 16, 24),
        (4, 128, 128),
        (8, 64, 64),
        (9, 40, 8),
        (16, 32, 32),
        (2, 100, 100),
        (9, 7, 7),
        (1, 2, 1),
        (5, 10, 33),
    ] {
        let (scale, several) = (Bits::of(0.125), (16 / heads).max(2));
        for blocks in [1, 2, 3] {
            for rows in [1, several] {
                group.rows(
                    Attention {
                        group: heads,
                        d,
                        dv,
                        scale,
                        cap: None,
                        sinks: false,
                        slopes: false,
                        heads: 1 + blocks % 2,
                        rows,
                        cache: HALVES,
                    },
                    blocks,
                );
            }
            group.rows(
                AttentionPart { group: heads, d, dv, scale, cap: None, sinks: false, slopes: false, cache: HALVES },
                blocks,
            );
            let cap = Some(Bits::of(0.5));
            group.rows(
                Attention {
                    group: heads,
                    d,
                    dv,
                    scale,
                    cap,
                    sinks: false,
                    slopes: false,
                    heads: 2,
                    rows: several,
                    cache: HALVES,
                },
                blocks,
            );
            group.rows(
                AttentionPart { group: heads, d, dv, scale, cap, sinks: false, slopes: false, cache: HALVES },
                blocks,
            );
        }
        for parts in [1, 2, 16] {
            group.rows(AttentionCombine { group: heads, dv, parts: 16 }, parts);
        }
    }
    group.done();
}

/// Attention to so many blocks of a cache: by one row and several, in parts, and through a window or in a chunk.
fn every_way(group: &mut Group, of: AttentionPart, blocks: u32) {
    let AttentionPart { group: heads, d, dv, scale, cap, sinks, slopes, cache } = of;
    let several = (16 / heads).max(2);
    for rows in [1, several] {
        group.rows(Attention { group: heads, d, dv, scale, cap, sinks, slopes, heads: 2, rows, cache }, blocks);
    }
    group.rows(of, blocks);
    let (window, chunked) = if blocks == 2 { (32, true) } else { (20 * blocks, false) };
    let window = AttentionWindow {
        group: heads,
        d,
        dv,
        scale,
        cap,
        sinks,
        slopes,
        heads: 2,
        rows: several,
        window,
        chunked,
        both: false,
        cache,
    };
    group.rows(window, blocks);
}

/// Scores that fall with distance: as they are, bent, with sinks, over windows and chunks, of halves and of blocks.
#[test]
fn attention_slopes() {
    let mut group = Group::new("attention_slopes");
    let blocks_of = |keys, values| Cache { keys, values };
    for (heads, d, dv, cache) in [
        (1, 64, 64, HALVES),
        (3, 16, 24, HALVES),
        (8, 64, 64, HALVES),
        (5, 10, 33, HALVES),
        (1, 128, 128, blocks_of(Format::Q8_0, Format::Q8_0)),
        (3, 64, 96, blocks_of(Format::Q4_0, Format::F16)),
    ] {
        for blocks in [1, 2, 3] {
            let (scale, cap) = (Bits::of(0.125), (blocks == 2).then(|| Bits::of(0.5)));
            let of = AttentionPart { group: heads, d, dv, scale, cap, sinks: blocks == 3, slopes: true, cache };
            every_way(&mut group, of, blocks);
        }
    }
    group.done();
}

#[test]
fn attention_sinks() {
    let mut group = Group::new("attention_sinks");
    for (heads, d, dv) in [(1, 64, 64), (3, 16, 24), (8, 64, 64), (5, 10, 33)] {
        let (scale, several, sinks) = (Bits::of(0.125), (16 / heads).max(2), true);
        for blocks in [1, 2, 3] {
            for rows in [1, several] {
                group.rows(
                    Attention {
                        group: heads,
                        d,
                        dv,
                        scale,
                        cap: None,
                        sinks,
                        slopes: false,
                        heads: 2,
                        rows,
                        cache: HALVES,
                    },
                    blocks,
                );
            }
            group.rows(
                AttentionPart { group: heads, d, dv, scale, cap: None, sinks, slopes: false, cache: HALVES },
                blocks,
            );
            let (rows, window) = (several, 20 * blocks);
            group.rows(
                AttentionWindow {
                    group: heads,
                    d,
                    dv,
                    scale,
                    cap: None,
                    sinks,
                    slopes: false,
                    heads: 2,
                    rows,
                    window,
                    chunked: false,
                    both: false,
                    cache: HALVES,
                },
                blocks,
            );
        }
    }
    group.done();
}

#[test]
fn attention_window() {
    let mut group = Group::new("attention_window");
    for (heads, d, dv) in [(1, 64, 64), (3, 16, 24), (9, 40, 8), (2, 100, 100), (5, 10, 33)] {
        let (scale, rows) = (Bits::of(0.125), (16 / heads).max(2));
        // They begin inside a block, at its edge, and before what there is.
        for (window, blocks) in [(1, 1), (20, 2), (64, 3), (500, 3)] {
            group.rows(
                AttentionWindow {
                    group: heads,
                    d,
                    dv,
                    scale,
                    cap: None,
                    sinks: false,
                    slopes: false,
                    heads: 2,
                    rows,
                    window,
                    chunked: false,
                    both: false,
                    cache: HALVES,
                },
                blocks,
            );
        }
        // Rows on both sides of where a chunk begins.
        for (window, blocks) in [(32, 2), (64, 3)] {
            let cap = Some(Bits::of(0.5));
            group.rows(
                AttentionWindow {
                    group: heads,
                    d,
                    dv,
                    scale,
                    cap,
                    sinks: false,
                    slopes: false,
                    heads: 2,
                    rows,
                    window,
                    chunked: true,
                    both: false,
                    cache: HALVES,
                },
                blocks,
            );
        }
    }
    group.done();
}

/// Keys and values in blocks: appended, and attended by one row and several, in parts and through windows.
#[test]
fn cached_blocks() {
    let mut group = Group::new("cached_blocks");
    for (keys, values) in [
        (Format::Q8_0, Format::Q8_0),
        (Format::Q4_0, Format::Q4_0),
        (Format::Q8_0, Format::F16),
        (Format::F16, Format::Q4_0),
    ] {
        let cache = Cache { keys, values };
        for (d, dv) in [(32, 32), (64, 64), (96, 160), (128, 32)] {
            let norm = (d == 64).then(|| Bits::of(1e-6));
            for style in [RopeStyle::Neox, RopeStyle::Norm] {
                group.rows(RopeAppend { d, dv, dims: 32, style, norm, cache }, 4);
            }
        }
        for (heads, d, dv, sinks) in
            [(1, 32, 32, false), (3, 64, 96, true), (4, 128, 128, false), (8, 64, 64, true), (11, 96, 160, false)]
        {
            let (scale, cap) = (Bits::of(0.125), sinks.then(|| Bits::of(0.5)));
            let of = AttentionPart { group: heads, d, dv, scale, cap, sinks, slopes: false, cache };
            (1..=3).for_each(|blocks| every_way(&mut group, of, blocks));
        }
    }
    group.done();
}

/// Of entries beside a window: of rows that see none of a block, and of blocks that are not whole.
#[test]
fn attention_over_chosen_entries() {
    let mut group = Group::new("attention_over_chosen_entries");
    let scale = Bits::of(0.125);
    for (group_of, n) in ODD.into_iter().enumerate() {
        for (sinks, window, every, blocks) in [(true, 20, 4, 1), (false, 64, 128, 2), (true, 500, 4, 3)] {
            let (group_of, dv) = (group_of as u32 + 1, 34 - n);
            group.rows(
                AttentionEntries { group: group_of, d: n, dv, scale, sinks, window, every, chosen: Some(9) },
                blocks,
            );
        }
    }
    group.done();
}
